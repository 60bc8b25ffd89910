# SPDX-License-Identifier: GPL-2.0-or-later
"""What 'make check-all' alone has, in slices of about three minutes on a quiet machine.

Each 'make check' runs one, chosen by the number of the commit's ancestors. So all of it runs again and again while the project goes on.
"""

import functools
import subprocess
from dataclasses import replace

from .groups import (
    BY_THEMSELVES, CASES, CELLS, FAULTS, GUEST, PACKAGED, PACKAGED_GUEST, PACKAGES, PRIVATE_SLURM, PYTHON, RELEASED, THIRD, TOP, Group,
)  # fmt: skip

# So many cases take two minutes: on this machine, and in a guest, which needs the third minute to boot. There a case takes 15 s on average.
ON_HOST, IN_GUEST = 5, 6
# In which the page on installing under their scheduler is typed.
OF_PAGES = "debian12-v2-gridengine", "debian13-v2-htcondor"
# Two builds of a release, from nothing; and all that is tried of the packages.
ALONE = [group for group in RELEASED if group.name == "release built"] + [*PACKAGES]
# Of what `JOBFENCE_FAULTS=all` has.
PARTS_OF_FAULTS = 40


@functools.cache
def listed(*command):
    done = subprocess.run((*PYTHON, *command, "--list"), cwd=TOP, check=True, capture_output=True, text=True)
    return len(done.stdout.split())


def parts(name, command, cases, most, **options):
    """A group for each part of so many cases, without a word of the slice in which it will be."""
    count = max(1, -(-cases // most))
    return [Group(f"{name} {part}/{count}", ((*command, "--slice", f"{part}/{count}"),), about=150, tiers=("check",), **options)
            for part in range(1, count + 1)]


def in_guests():
    """Every case in every cell. Of cells whose image is the same, the first has also the cases in which the layout makes no difference."""
    images = set()
    for cell, what in CELLS.items():
        command = (*PYTHON, "tests/vm/cell.py", cell)
        if what.needs or cell.endswith("-bench"):
            continue
        if what.scheduler != "slurm":
            yield from parts(f"vm {cell}", command, listed(f"tests/{what.scheduler}/cases.py"), IN_GUEST, **GUEST)
            continue
        chosen = ("--layout",) if what.image in images else ()
        images.add(what.image)
        for site in "installed", "two-nodes":
            cases = listed("tests/slurm/cases.py", "--site", site, *chosen)
            yield from parts(f"vm {cell} {site}", (*command, f"--{site}", *chosen), cases, IN_GUEST, **GUEST)


def on_host():
    for site in "private", "two-nodes":
        command = (*CASES, "--release", "--site", site)
        yield from parts(f"slurm release {site}", command, listed(*command[2:]), ON_HOST, units=THIRD, **PRIVATE_SLURM)
    yield from (replace(group, tiers=("check",)) for group in RELEASED if group not in ALONE)


def alone():
    """Each takes its three minutes by itself."""
    yield from (replace(group, tiers=("check",)) for group in ALONE)
    guests = [(cell, "packaged", ("--packaged",), PACKAGED_GUEST) for cell in PACKAGED]
    guests += [(cell, "page", ("--page",), GUEST) for cell in OF_PAGES] + [(*one, GUEST) for one in BY_THEMSELVES]
    for cell, what, words, options in guests:
        yield Group(f"vm {cell} {what}", ((*PYTHON, "tests/vm/cell.py", cell, *words),), about=200, tiers=("check",), **options)


def faults():
    for part in range(1, PARTS_OF_FAULTS + 1):
        name = f"{part}/{PARTS_OF_FAULTS}"
        words = "env", f"JOBFENCE_FAULTS={name}", "cargo", "test", "--locked", "--test", "faults"
        yield Group(f"faults {name}", (words,), about=150, tiers=("check",), **FAULTS)


def slices():
    """Each is a list of groups: two that run side by side, or a part of the faults or another that is alone."""
    jobs = [*on_host(), *in_guests()]
    # Neighbours are of different kinds.
    half = -(-len(jobs) // 2)
    pairs = zip(jobs[:half], [*jobs[half:], None])
    return [[group for group in pair if group] for pair in pairs] + [[group] for group in (*alone(), *faults())]


def ancestors():
    """So many commits lead to this one; 0 where this is no repository."""
    done = subprocess.run(("git", "rev-list", "--count", "HEAD"), cwd=TOP, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0
