# SPDX-License-Identifier: GPL-2.0-or-later
"""The groups of tests: what each runs, what it needs, and in which tiers it is."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/vm"))
from cells import CELLS, CHECKED  # noqa: E402

SO, BIN = "target/release/libjobfence.so", "target/release/jobfence"
PYTHON = "python3", "-B"
RELEASE = ("cargo", "build", "--release", "--locked")
# The test programs, and the shared object that they ask for.
BUILT = ("cargo", "test", "--locked", "--no-run"), ("cargo", "build", "--locked", "--package", "libjobfence")
# A virtual machine and what computes want a processor; a private Slurm waits for half of its time.
WHOLE, HALF = 2, 1


@dataclass(frozen=True)
class Group:
    name: str
    commands: tuple
    about: int = 60  # seconds on a quiet machine, where no run has told
    builds: tuple = ()  # first, and not in the time limit
    stage: str = "jobs"  # all of one stage before those of the next
    is_alone_on_host: bool = False  # beside guests alone
    units: int = WHOLE  # halves of a processor
    root: bool = False
    programs: tuple = ()
    controllers: tuple = ()
    tiers: tuple = ("check", "all")
    given: str = ""  # a variable of the environment without which the group is skipped, with CI=true, too
    seconds: int = 3000  # more than this is a hang

    def may_be_beside(self, other):
        return any(map(Group.is_a_guest, (self, other))) or not (self.is_alone_on_host or other.is_alone_on_host)

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
GUEST = {"builds": (RELEASE,), "root": True, "programs": ("mmdebstrap", "mkfs.ext4"), "seconds": 4500}
# Where Debian packages are installed.
PACKAGED = "debian12-v2-own", "debian13-v2-own", "forky-v2-own"
PACKAGED_GUEST = GUEST | {"programs": (*GUEST["programs"], "dh", "apt-ftparchive")}
# It waits for the kernel most of the time. It runs janitors, which look at the directories of Slurm's on the whole machine. So nothing is
# beside it that has jobs here.
FAULTS = {"is_alone_on_host": True, "units": HALF, "builds": BUILT, **CGROUPS}
HOOK = {"units": HALF, "root": True, "controllers": ("cpu", "memory", "freezer")}
FILES = "--so", SO, "--bin", BIN
FILES_FOR_TESTS = "--so", "target/debug/libjobfence.so", "--bin", "target/debug/jobfence"
CASES = (*PYTHON, "tests/slurm/cases.py", *FILES)
PBS_CASES = (*PYTHON, "tests/pbs/cases.py", *FILES)
CHECKED_CASES = (*CASES, "--no-release")
PARTS, NODES_PARTS = 4, 2  # of the cases of a private Slurm, side by side

# The tests of cargo, by their files. A file that is in no list is of the host's, and ends soon.
FILES_OF = {
    "fuzz": ("fuzz",),
    # They read the repository, or logs that they have made. Nothing else on the machine is in their way.
    "sources": ("layers", "messages", "pages", "version"),
    "summary": ("summary", "summary_stored"),
    # They look at how time passes.
    "host long": ("gpus", "idle", "lend", "login", "network", "own_report", "samples", "setup", "usage", "usage_commands"),
    "faults": ("crowd", "faults", "wear"),
}
FILES_OF["host"] = tuple(sorted({path.stem for path in (TOP / "tests").glob("*.rs")}.difference(*FILES_OF.values())))


def of_cargo(name, *words):
    """What runs the group's files."""
    return (("cargo", "test", "--locked", "--no-fail-fast", *(word for file in FILES_OF[name] for word in ("--test", file)), *words),)


# In namespaces of its own; where systemd has the cgroups, in a guest.
IN_TREES = not Path("/run/systemd/system").is_dir()


def in_tree(scheduler, about):
    command = (*PYTHON, f"tests/{scheduler}/cases.py", "--site", "private", *FILES)
    options = GUEST | {"units": HALF, "seconds": 3000, "controllers": ("cpu", "memory")}
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

GROUPS = (
    # With the table of 'make mutants', of which each row must still apply, and the tests of these programs.
    Group("format", (("cargo", "fmt", "--all", "--check"), (*PYTHON, "tests/mutants.py", "--stale"),
                     (*PYTHON, "-m", "unittest", "-q", "tests.checks.test_checks"), (*PYTHON, "tests/vm/test_cache.py"),
                     (*PYTHON, "tests/vm/chosen.py")), about=5, stage="build", tiers=QUICK),
    Group("clippy", (("cargo", "clippy", "--locked", "--all-targets", "--", "-D", "warnings"),), about=120, stage="build", tiers=QUICK),
    Group("unit", (("cargo", "test", "--locked", "--lib", "--bins"),), about=30, stage="build", tiers=QUICK,
          builds=(("cargo", "test", "--locked", "--lib", "--bins", "--no-run"),)),
    Group("images", ((*PYTHON, "tests/vm/vm.py", "image"), (*PYTHON, "tests/vm/tree.py")), about=250, stage="build", root=True,
          programs=GUEST["programs"]),
    Group("install", (("tests/install.sh",),), about=10, stage="build", builds=(RELEASE,)),
    # The crates that the compiler has built for the files, and their licences.
    Group("release", ((*PYTHON, "tests/release.py", "bill"),), about=10, stage="build", builds=(RELEASE,)),
    *RELEASED,
    Group("packages deb", ((*PYTHON, "tests/packages.py", *FILES),), about=60, builds=(RELEASE,), root=True,
          programs=("mmdebstrap", "dh", "lintian", "apt-ftparchive", "unshare")),
    Group("packages rpm", ((*PYTHON, "tests/rpm.py", *FILES),), about=50, stage="build", builds=(RELEASE,), root=True,
          programs=("rpmbuild", "rpmlint", "createrepo_c", "cpio")),
    # All that the host's tests need is built with it.
    Group("fuzz", of_cargo("fuzz"), about=60, stage="build", builds=BUILT),
    Group("sources", of_cargo("sources") + of_cargo("fuzz", "--", "--skip", "targets::fuzz::"), about=10, stage="build", builds=BUILT, tiers=QUICK),
    Group("summary", of_cargo("summary"), about=20, stage="build", builds=BUILT, root=True),
    Group("cost", ((*PYTHON, "tests/cost.py", "--so", SO), (*PYTHON, "tests/report_cost.py", "--bin", BIN)), about=35, stage="build",
          builds=(RELEASE,), **CGROUPS),
    # What is fuzzed has a group of its own, which needs no root. Janitors of jobs would remove what these tests leave in the name of
    # Slurm, and faults.rs would count what their 'jobfence check' tries there. Most of the time they wait.
    Group("host", of_cargo("host"), about=100, is_alone_on_host=True, units=HALF, builds=BUILT, tiers=QUICK, **CGROUPS),
    Group("host long", of_cargo("host long"), about=250, is_alone_on_host=True, units=HALF, builds=BUILT, **CGROUPS),
    Group("faults", of_cargo("faults"), about=600, **FAULTS),
    # The hook of OpenPBS without OpenPBS. What is built for tests is enough for cases that measure no time.
    Group("hook", ((*PYTHON, "tests/pbs/replay.py", *FILES),), about=40, builds=(RELEASE,), **HOOK),
    Group("hook short", ((*PYTHON, "tests/pbs/replay.py", *FILES_FOR_TESTS, "--short"),), about=30, builds=BUILT, tiers=("quick",), **HOOK),
    *(Group(f"slurm {part}/{PARTS}", ((*CHECKED_CASES, "--no-patient", "--slice", f"{part}/{PARTS}"),), about=200, units=HALF,
            **PRIVATE_SLURM) for part in range(1, PARTS + 1)),
    Group("slurm patient", ((*CHECKED_CASES, "--patient", "--bin-for-tests", FILES_FOR_TESTS[-1]),), about=250, units=HALF,
          **PRIVATE_SLURM | {"builds": (RELEASE, *BUILT)}),
    *(Group(f"slurm two nodes {part}/{NODES_PARTS}", ((*CHECKED_CASES, "--site", "two-nodes", "--slice", f"{part}/{NODES_PARTS}"),),
            about=150, units=HALF, **PRIVATE_SLURM) for part in range(1, NODES_PARTS + 1)),
    # What a shorter test notices, too.
    Group("slurm release", ((*CASES, "--release"), (*CASES, "--site", "two-nodes", "--release")), about=200, units=HALF, tiers=("all",),
          **PRIVATE_SLURM),
    Group("soak", ((*PYTHON, "tests/slurm/soak.py", *FILES, "-n", "40"),), about=60, units=HALF, **PRIVATE_SLURM),
    Group("demo", ((*PYTHON, "tests/demo.py", *FILES),), about=40, units=HALF, **PRIVATE_SLURM),
    # Debian's Python has selenium, another one in PATH may not.
    Group("browser", (("/usr/bin/python3", "-B", "tests/browser.py", "--bin", BIN),), about=30, builds=(RELEASE,),
          programs=("chromedriver",)),
    # Other programs that read the usage log, as docs/usage.md says.
    Group("recipes", ((*PYTHON, "tests/recipes.py", "--bin", BIN),), about=30, units=HALF, builds=(RELEASE,),
          programs=("rsyslogd",)),
    # What README.md and docs/install tell an administrator to type.
    Group("pages", ((*PYTHON, "tests/pages.py", *FILES),), about=50, units=HALF, **PRIVATE_SLURM),
    # The example of a scheduler that only runs commands.
    Group("shell", ((*PYTHON, "tests/contract/shell.py", *FILES),), about=20, units=HALF, builds=(RELEASE,), **CGROUPS),
    # Each in namespaces of its own.
    *GRIDENGINE,
    *HTCONDOR,
    Group("openpbs", ((*PBS_CASES, "--site", "private"),), about=600, units=HALF, **PRIVATE_PBS),
    Group("openpbs hosts", ((*PBS_CASES, "--site", "hosts"),), about=300, units=HALF, **PRIVATE_PBS),
    *(Group(f"vm {cell}" + " two nodes" * ("--two-nodes" in options), ((*PYTHON, "tests/vm/cell.py", cell, *options),), about=300, **GUEST)
      for cell, options in IN_GUESTS),
    # By apt, beside a Slurm with jobs.
    *(Group(f"vm {cell} packaged", ((*PYTHON, "tests/vm/cell.py", cell, "--packaged"),), about=300, **PACKAGED_GUEST, tiers=("all",))
      for cell in PACKAGED),
    # The page on clusters, with Ansible and the packages.
    Group("vm cluster", ((*PYTHON, "tests/vm/cluster.py"),), about=400, tiers=("all",),
          **GUEST | {"programs": (*GUEST["programs"], "dh", "apt-ftparchive", "ansible-playbook", "cloud-init")}),
    # Every case in every cell, after those which have more to look at.
    Group("matrix", ((*PYTHON, "tests/vm/matrix.py", "--jobs", "2"),), stage="matrix", **GUEST | {"seconds": 12 * 3600}, tiers=("all",)),
)
