# SPDX-License-Identifier: GPL-2.0-or-later
"""The groups of tests: what each runs, what it needs, and in which tiers it is."""

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/vm"))
from cells import BY_THEMSELVES, CELLS, CHECKED  # noqa: E402

SO, BIN = "target/release/libjobfence.so", "target/release/jobfence"
PYTHON = "python3", "-B"


@dataclass(frozen=True)
class Build:
    """What several groups need. It is made once."""

    name: str
    command: tuple
    # Builds of one place follow each other, since each would lock it.
    place: str


RELEASE = Build("the release", ("cargo", "build", "--release", "--locked"), "target/release")
LINTED = Build("clippy", ("cargo", "clippy", "--locked", "--all-targets", "--", "-D", "warnings"), "target/debug")
# The test programs, and the shared object that they ask for: in one command, so that what both need is built for both.
BUILT = Build("the tests", ("cargo", "build", "--locked", "--lib", "--bins", "--tests"), "target/debug")
# A virtual machine and what computes want a processor; a private Slurm waits for most of its time.
WHOLE, THIRD = 3, 1


@dataclass(frozen=True)
class Group:
    name: str
    commands: tuple
    about: int = 60  # seconds on a quiet machine, where no run has told
    builds: tuple = ()  # first, and not in the time limit
    after: tuple = ()  # the names of groups that end first, if they run
    is_last: bool = False  # after all others
    is_alone_on_host: bool = False  # beside guests alone, and what touches no cgroup
    units: int = WHOLE  # thirds of a processor
    root: bool = False
    programs: tuple = ()
    controllers: tuple = ()
    tiers: tuple = ("check", "all")
    given: str = ""  # a variable of the environment without which the group is skipped, with CI=true, too
    seconds: int = 3000  # more than this is a hang

    def may_be_beside(self, other):
        is_apart = any(map(Group.is_a_guest, (self, other))) or not (self.controllers and other.controllers)
        return is_apart or not (self.is_alone_on_host or other.is_alone_on_host)

    def is_a_guest(self):
        return self.name.startswith("vm ")

    def lacking(self):
        """Why this machine cannot run the group, or nothing."""
        if self.given and not os.environ.get(self.given):
            return f"needs {self.given}=DIR"
        if self.root and os.geteuid() != 0:
            return "needs root"
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        for program in self.programs:
            if not shutil.which(program, path=path):
                return f"needs {program}"
        for controller in self.controllers:
            if not has_controller(controller):
                return f"needs the {controller} controller"
        return None


def has_controller(controller):
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists() and controller in unified.read_text().split():
        return True
    # Fields of /proc/cgroups: name, hierarchy (0 where it is not in a v1 one), number of cgroups, enabled.
    rows = (line.split() for line in Path("/proc/cgroups").read_text().splitlines())
    return any(row[0] == controller and row[1] != "0" for row in rows)


QUICK = ("quick", "check", "all")
CGROUPS = {"root": True, "controllers": ("cpu", "memory")}
PRIVATE_SLURM = {"builds": (RELEASE,), "programs": ("slurmctld", "slurmd", "munged"), **CGROUPS}
PRIVATE_PBS = {"builds": (RELEASE,), "programs": ("unshare", "ip"), "given": "OPENPBS", **CGROUPS}
# Beside much else a guest does not only take longer: its processors wait for each other at work, and it takes a quarter more CPU time.
GUEST = {"builds": (RELEASE,), "after": ("images",), "units": WHOLE + 2 * THIRD, "root": True, "programs": ("mmdebstrap", "mkfs.ext4"),
         "seconds": 4500}
# Where Debian packages are installed.
PACKAGED = "debian12-v2-own", "debian13-v2-own", "forky-v2-own"
PACKAGED_GUEST = GUEST | {"programs": (*GUEST["programs"], "dh", "apt-ftparchive")}
# It waits for the kernel most of the time. It runs janitors, which look at the directories of Slurm's on the whole machine. So nothing is
# beside it that has jobs here.
FAULTS = {"is_alone_on_host": True, "units": THIRD, "builds": (BUILT,), **CGROUPS}
HOOK = {"units": THIRD, "root": True, "controllers": ("cpu", "memory", "freezer")}
FILES = "--so", SO, "--bin", BIN
FILES_FOR_TESTS = "--so", "target/debug/libjobfence.so", "--bin", "target/debug/jobfence"
CASES = (*PYTHON, "tests/slurm/cases.py", *FILES)
PBS_CASES = (*PYTHON, "tests/pbs/cases.py", *FILES)
CHECKED_CASES = (*CASES, "--no-release")
PARTS, PATIENT_PARTS, NODES_PARTS = 4, 3, 2  # of the cases of a private Slurm, side by side

# The tests of cargo, by their files. A file that is in no list is of the host's, and ends soon.
FILES_OF = {
    "fuzz": ("fuzz",),
    # They read the repository, or logs that they have made. Nothing else on the machine is in their way.
    "sources": ("layers", "messages", "pages", "version"),
    "summary": ("summary", "summary_stored"),
    # They look at how time passes. Those of the first look at all users of the host, or have a directory of Slurm's.
    "host long": ("lend", "login", "network", "own_report", "resctrl", "setup", "usage_commands"),
    "host time": ("gpus", "idle", "samples", "usage", "wear"),
    "faults": ("crowd", "faults"),
}
FILES_OF["host"] = tuple(sorted({path.stem for path in (TOP / "tests").glob("*.rs")}.difference(*FILES_OF.values())))


def of_cargo(name, *words):
    """What runs the group's files."""
    return (("cargo", "test", "--locked", "--no-fail-fast", *(word for file in FILES_OF[name] for word in ("--test", file)), *words),)


# In namespaces of its own; where systemd has the cgroups, in a guest.
IN_TREES = not Path("/run/systemd/system").is_dir()


def in_tree(scheduler, about):
    command = (*PYTHON, f"tests/{scheduler}/cases.py", "--site", "private", *FILES, "--bin-for-tests", FILES_FOR_TESTS[-1])
    options = GUEST | {"units": THIRD, "seconds": 3000, "controllers": ("cpu", "memory"), "builds": (RELEASE, BUILT)}
    return [Group(f"{scheduler} {part}/2", ((*command, "--slice", f"{part}/2"),), about=about, **options) for part in (1, 2)]


GRIDENGINE = in_tree("gridengine", 250) if IN_TREES else [
    Group("vm debian12-v2-gridengine", ((*PYTHON, "tests/vm/cell.py", "debian12-v2-gridengine"),), about=900, **GUEST)
]
# It sees cgroup2 alone, and its fences have limits of v1. A guest has the cases that need more, or on another machine all of them.
IS_HYBRID = IN_TREES and all(Path("/sys/fs/cgroup", name).is_dir() for name in ("memory", "unified"))
HTCONDOR = in_tree("htcondor", 120) if IS_HYBRID else []
IN_GUESTS = [(cell, options if IS_HYBRID or CELLS[cell].scheduler != "htcondor" else ("--no-release",)) for cell, options in CHECKED]

# The archive: it is made twice, and then built on two releases of Debian. 'make check' has them in slices.
RELEASED = tuple(
    Group(f"release {what}", ((*PYTHON, "tests/release.py", what),), about=about, tiers=("all",), **GUEST)
    for what, about in (("archive", 60), ("built", 250))
)

# What 'make check' has of them is short.
PACKAGES = (
    Group("packages deb whole", ((*PYTHON, "tests/packages.py", *FILES),), about=130, builds=(RELEASE,), after=("images",), root=True,
          programs=("mmdebstrap", "dh", "lintian", "apt-ftparchive", "unshare"), tiers=("all",)),
    Group("packages rpm whole", ((*PYTHON, "tests/rpm.py", *FILES),), about=120, builds=(RELEASE,), root=True,
          programs=("rpmbuild", "rpmlint", "createrepo_c", "cpio"), tiers=("all",)),
)

GROUPS = (
    # With the table of 'make mutants', of which each row must still apply, and the tests of these programs.
    Group("format", (("cargo", "fmt", "--all", "--check"), (*PYTHON, "tests/mutants.py", "--stale"),
                     (*PYTHON, "-m", "unittest", "-q", "tests.checks.test_checks"), (*PYTHON, "tests/vm/test_cache.py"),
                     (*PYTHON, "tests/vm/chosen.py")), about=5, tiers=QUICK),
    # First, since it locks the place of what is built for tests.
    Group("clippy", (), builds=(LINTED,), tiers=QUICK),
    # Most of it is a download.
    Group("images", ((*PYTHON, "tests/vm/vm.py", "image"), (*PYTHON, "tests/vm/tree.py")), about=250, units=THIRD, root=True,
          programs=GUEST["programs"]),
    Group("unit", (("cargo", "test", "--locked", "--lib", "--bins"),), about=30, builds=(BUILT,), tiers=QUICK),
    Group("install", (("tests/install.sh",),), about=10, builds=(RELEASE,)),
    # The crates that the compiler has built for the files, and their licences.
    Group("release", ((*PYTHON, "tests/release.py", "bill"),), about=10, builds=(RELEASE,)),
    *RELEASED,
    *(replace(group, name=group.name.removesuffix(" whole"), commands=((*group.commands[0], "--short"),), about=40, tiers=("check",))
      for group in PACKAGES),
    *PACKAGES,
    # All that the host's tests need is built with it.
    Group("fuzz", of_cargo("fuzz"), about=60, builds=(BUILT,)),
    Group("sources", of_cargo("sources") + of_cargo("fuzz", "--", "--skip", "targets::fuzz::"), about=10, builds=(BUILT,), tiers=QUICK),
    Group("summary", of_cargo("summary"), about=20, builds=(BUILT,), root=True),
    Group("cost", ((*PYTHON, "tests/cost.py", "--so", SO), (*PYTHON, "tests/report_cost.py", "--bin", BIN)), about=35,
          builds=(RELEASE,), **CGROUPS),
    # What is fuzzed has a group of its own, which needs no root. Janitors of jobs would remove what these tests leave in the name of
    # Slurm, and faults.rs would count what their 'jobfence check' tries there. Most of the time they wait.
    Group("host", of_cargo("host"), about=100, is_alone_on_host=True, units=THIRD, builds=(BUILT,), tiers=QUICK, **CGROUPS),
    Group("host long", of_cargo("host long"), about=120, is_alone_on_host=True, units=THIRD, builds=(BUILT,), **CGROUPS),
    Group("host time", of_cargo("host time"), about=250, units=THIRD, builds=(BUILT,), **CGROUPS),
    # What 'make bench-share' does, with a tiny trace.
    Group("share", ((*PYTHON, "benches/share/test_share.py", "--bin", FILES_FOR_TESTS[-1]),), about=80, units=THIRD, builds=(BUILT,), **CGROUPS),
    Group("faults", of_cargo("faults"), about=600, **FAULTS),
    # The hook of OpenPBS without OpenPBS. What is built for tests is enough for cases that measure no time.
    Group("hook", ((*PYTHON, "tests/pbs/replay.py", *FILES),), about=40, builds=(RELEASE,), **HOOK),
    Group("hook short", ((*PYTHON, "tests/pbs/replay.py", *FILES_FOR_TESTS, "--short"),), about=30, builds=(BUILT,), tiers=("quick",), **HOOK),
    *(Group(f"slurm {part}/{PARTS}", ((*CHECKED_CASES, "--no-patient", "--slice", f"{part}/{PARTS}"),), about=200, units=THIRD,
            **PRIVATE_SLURM) for part in range(1, PARTS + 1)),
    *(Group(f"slurm patient {part}/{PATIENT_PARTS}",
            ((*CHECKED_CASES, "--patient", "--bin-for-tests", FILES_FOR_TESTS[-1], "--slice", f"{part}/{PATIENT_PARTS}"),), about=200,
            units=THIRD, **PRIVATE_SLURM | {"builds": (RELEASE, BUILT)}) for part in range(1, PATIENT_PARTS + 1)),
    *(Group(f"slurm two nodes {part}/{NODES_PARTS}", ((*CHECKED_CASES, "--site", "two-nodes", "--slice", f"{part}/{NODES_PARTS}"),),
            about=150, units=THIRD, **PRIVATE_SLURM) for part in range(1, NODES_PARTS + 1)),
    # What a shorter test notices, too.
    Group("slurm release", ((*CASES, "--release"), (*CASES, "--site", "two-nodes", "--release")), about=200, units=THIRD, tiers=("all",),
          **PRIVATE_SLURM),
    Group("soak", ((*PYTHON, "tests/slurm/soak.py", *FILES, "-n", "40"),), about=60, units=THIRD, **PRIVATE_SLURM),
    Group("demo", ((*PYTHON, "tests/demo.py", *FILES),), about=40, units=THIRD, **PRIVATE_SLURM),
    # Debian's Python has selenium, another one in PATH may not.
    Group("browser", (("/usr/bin/python3", "-B", "tests/browser.py", "--bin", BIN),), about=30, builds=(RELEASE,),
          programs=("chromedriver",)),
    # Other programs that read the usage log, as docs/usage.md says.
    Group("recipes", ((*PYTHON, "tests/recipes.py", "--bin", BIN),), about=30, units=THIRD, builds=(RELEASE,),
          programs=("rsyslogd",)),
    # What README.md and docs/install tell an administrator to type.
    Group("pages", ((*PYTHON, "tests/pages.py", *FILES),), about=50, units=THIRD, **PRIVATE_SLURM),
    # The example of a scheduler that only runs commands.
    Group("shell", ((*PYTHON, "tests/contract/shell.py", *FILES),), about=20, units=THIRD, builds=(RELEASE,), **CGROUPS),
    # Each in namespaces of its own.
    *GRIDENGINE,
    *HTCONDOR,
    Group("openpbs", ((*PBS_CASES, "--site", "private"),), about=600, units=THIRD, **PRIVATE_PBS),
    Group("openpbs hosts", ((*PBS_CASES, "--site", "hosts"),), about=300, units=THIRD, **PRIVATE_PBS),
    *(Group(f"vm {cell}", ((*PYTHON, "tests/vm/cell.py", cell, *options),), about=300, **GUEST)
      for cell, options in IN_GUESTS),
    *(Group(f"vm {cell} {what}", ((*PYTHON, "tests/vm/cell.py", cell, *options),), about=200, tiers=("all",), **GUEST)
      for cell, what, options in BY_THEMSELVES),
    # By apt, beside a Slurm with jobs.
    *(Group(f"vm {cell} packaged", ((*PYTHON, "tests/vm/cell.py", cell, "--packaged"),), about=300, **PACKAGED_GUEST, tiers=("all",))
      for cell in PACKAGED),
    # The page on clusters, with Ansible and the packages.
    Group("vm cluster", ((*PYTHON, "tests/vm/cluster.py"),), about=400, tiers=("all",),
          **GUEST | {"programs": (*GUEST["programs"], "dh", "apt-ftparchive", "ansible-playbook", "cloud-init")}),
    # Every case in every cell, after those which have more to look at.
    Group("matrix", ((*PYTHON, "tests/vm/matrix.py", "--jobs", "2"),), is_last=True, **GUEST | {"seconds": 12 * 3600}, tiers=("all",)),
)
