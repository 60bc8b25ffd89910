#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian trees: what a scheduler's packages install, for a site in namespaces of its own on this machine.

A tree is never written to, so that any number of sites can use it. As a program: builds those of 'make check'.
"""

import hashlib
import os
import shlex
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import cache
import image
from cells import GRIDENGINE, NO_CLUSTER, POOL, Image

# What the cases and the programs of the site want of Debian.
TOOLS = ("python3", "iproute2", "procps", "passwd", "hostname")
TREES = {
    "debian12-gridengine": Image("bookworm", TOOLS + GRIDENGINE, answers=(NO_CLUSTER,)),
    "debian13-gridengine": Image("trixie", TOOLS + GRIDENGINE, answers=(NO_CLUSTER,)),
    "debian13-htcondor": Image("trixie", TOOLS + POOL),
    # With another compiler of C and another C library, as a release can be built anywhere.
    "debian13-compiler": Image("trixie", ("gcc", "libc6-dev", "iproute2")),
}
CHECKED = "debian12-gridengine", "debian13-htcondor"
USERS = "".join(f"useradd --create-home --uid {uid} --user-group --shell /bin/bash {name}\n"
                for name, uid in (("alice", 1001), ("bob", 1002)))


def build(wanted, new):
    answers = "".join(line + "\n" for line in wanted.answers)
    image.debootstrap(
        wanted, new, "--variant=minbase",
        f'--essential-hook=printf %s {shlex.quote(answers)} | chroot "$1" debconf-set-selections',
        f'--customize-hook=chroot "$1" sh -euc {shlex.quote(USERS)}',
    )  # fmt: skip


def used(name):
    """The directory of this tree, which stays while a block runs; built if it is not there."""
    wanted = TREES[name]
    key = hashlib.sha256((image.key(wanted) + USERS).encode()).hexdigest()[:32]

    def make(new):
        image.need("mmdebstrap", "unshare")
        if os.geteuid() != 0:
            raise image.Skip(f"building {name} needs root")
        build(wanted, new / "tree")

    return cache.held(f"tree-{name}", key, make)


if __name__ == "__main__":
    for name in CHECKED:
        with used(name):
            pass
