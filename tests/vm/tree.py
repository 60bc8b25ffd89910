# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian trees: what a scheduler's packages install, for a site in namespaces of its own on this machine.

Several clones share the trees: each tree bears the name of all that it is made from, and is never written to. Who uses
one holds its lock, and who needs another removes those that nobody has used for a month.
"""

import contextlib
import fcntl
import hashlib
import os
import shlex
import sys
import time
from pathlib import Path

import image
from cells import GRIDENGINE, NO_CLUSTER, Image

UNUSED_SECONDS = 30 * 24 * 3600

# What the cases and the programs of the site want of Debian.
TOOLS = ("python3", "iproute2", "procps", "passwd", "hostname")
TREES = {
    "debian12-gridengine": Image("bookworm", TOOLS + GRIDENGINE, answers=(NO_CLUSTER,)),
    "debian13-gridengine": Image("trixie", TOOLS + GRIDENGINE, answers=(NO_CLUSTER,)),
}
USERS = "".join(f"useradd --create-home --uid {uid} --user-group --shell /bin/bash {name}\n"
                for name, uid in (("alice", 1001), ("bob", 1002)))


def cache():
    return Path(os.environ.get("JOBFENCE_CACHE", "/var/cache/jobfence-tests")) / "trees"


def build(wanted, new):
    answers = "".join(line + "\n" for line in wanted.answers)
    image.debootstrap(
        wanted, new, "--variant=minbase",
        f'--essential-hook=printf %s {shlex.quote(answers)} | chroot "$1" debconf-set-selections',
        f'--customize-hook=chroot "$1" sh -euc {shlex.quote(USERS)}',
    )  # fmt: skip


def discard_unused(directory, kept):
    for lock in directory.glob("*.lock"):
        tree = lock.with_suffix("")
        if tree != kept and time.time() - lock.stat().st_mtime > UNUSED_SECONDS:
            with open(lock, "r+") as held, contextlib.suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                image.remove(tree)
                lock.unlink()


@contextlib.contextmanager
def used(name):
    """The directory of this tree, which is built if it is not there. It stays for as long as the block lasts."""
    key = hashlib.sha256((image.key(TREES[name]) + USERS).encode()).hexdigest()[:32]
    tree = cache() / f"{name}-{key}"
    tree.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as locks:
        with open(tree.parent / "building", "w") as building:
            # Nobody else builds or removes meanwhile.
            fcntl.flock(building, fcntl.LOCK_EX)
            lock = locks.enter_context(open(f"{tree}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock.name)
            build_if_missing(name, tree)
        yield tree


def build_if_missing(name, tree):
    if tree.is_dir():
        return
    image.need("mmdebstrap", "unshare")
    if os.geteuid() != 0:
        raise image.Skip(f"building {name} needs root")
    print(f"tree: building {name}", file=sys.stderr)
    discard_unused(tree.parent, tree)
    new = tree.parent / "new"
    image.remove(new)
    build(TREES[name], new)
    new.rename(tree)
