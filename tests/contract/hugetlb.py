# SPDX-License-Identifier: GPL-2.0-or-later
"""The hugetlb controller of this machine, for the tests of each scheduler."""

import contextlib
from pathlib import Path

from . import kernel

SIZES = Path("/sys/kernel/mm/hugepages")


@contextlib.contextmanager
def handed_down(site):
    """systemd does not know the controller: it is enabled by hand, as 'jobfence check' says, down to what is not ours to enable."""
    unified = kernel.hierarchies().get("")
    if "hugetlb" in kernel.hierarchies() or not unified:
        yield
        return
    places = [place for base in site.bases() for place in (unified.mount_point / base).parents]
    scopes = [scope.parent for scope in unified.mount_point.glob("*.slice/*slurmstepd.scope")]
    places += [place for scope in scopes for place in (scope, *scope.parents)]
    below = [place for place in places if place == unified.mount_point or unified.mount_point in place.parents]
    changed = []
    try:
        for place in sorted(set(below), key=lambda place: len(place.parts)):
            control = place / "cgroup.subtree_control"
            if control.exists() and "hugetlb" not in kernel.read(control).split():
                control.write_text("+hugetlb")
                changed.append(control)
        yield
    finally:
        for control in reversed(changed):
            # What jobfence has enabled below comes first, as far as it is there.
            for inner in control.parent.glob("*/cgroup.subtree_control"):
                with contextlib.suppress(OSError):
                    inner.write_text("-hugetlb")
            with contextlib.suppress(OSError):
                control.write_text("-hugetlb")


def has_hugetlb():
    unified = kernel.hierarchies().get("")
    on_v2 = unified and "hugetlb" in kernel.read(unified.mount_point / "cgroup.controllers").split()
    return on_v2 or "hugetlb" in kernel.hierarchies()


def name_of(kib):
    """A size as the kernel's files have it."""
    return f"{kib >> 20}GB" if kib >> 20 else f"{kib >> 10}MB" if kib >> 10 else f"{kib}KB"


def sizes_of_this_host():
    """Their names there, each with no page."""
    return {name_of(int(path.name.removeprefix("hugepages-").removesuffix("kB"))): 0 for path in SIZES.iterdir()}
