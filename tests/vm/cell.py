#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the cases in one virtual machine: cell.py CELL [OPTION...] [CASE...], or cell.py CELL --soak N [--seed SEED].

The cases are those of a Slurm that is installed beside what 'make install' installs, and then those of two nodes, by a
private Slurm that is placed as the cell says. `--help` has the options that choose among them.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "tests/vm"), str(TOP / "benches")]
import leases  # noqa: E402
import program  # noqa: E402
import repository  # noqa: E402
from pbs import replay  # noqa: E402
from cells import CELLS, lacking  # noqa: E402
from chosen import CHOSEN, OF_HTCONDOR  # noqa: E402
from vm import NEVER_REPORTED, TIMED_OUT  # noqa: E402
from slurm import reboot, saboteur, suite  # noqa: E402, F401
from contract.cases import is_for  # noqa: E402
from contract.harness import CASES  # noqa: E402

TESTS = "opt/jobfence-tests"
# What docs/pictures shows; other kernels count less, and say so.
PICTURED = "debian13-v2-own"

# For the record: what the table of matrix.py says of the cell.
WHAT_IT_IS = """
echo "cell: Linux $(uname -r), $(systemctl --version | head -n 1 | cut -d ' ' -f 1,2), $(slurmd -V)"
"""

# What `make install` does: the guest has no make. tests/pages.py runs the commands of the pages.
PUT = "plugstack/installation", "put"
# An emulated processor needs a quarter of a minute for it. So the payload has the files, but where a guest is to begin without them.
HAS_THEM = """
export PREFIX=/usr
systemctl daemon-reload || exit 1
"""
INSTALL = f"""
export PREFIX=/usr
/{TESTS}/jobfence/{' '.join(PUT)} || exit 1
"""
TRACES = f"""
/opt/guest/start-slurm || exit 1
python3 -B /{TESTS}/vm/traces.py /{TESTS}/jobfence/plugstack/installation || status=1
systemctl stop slurmd.service slurmctld.service munge.service
"""
PACKAGED = f"""
/opt/guest/start-slurm || exit 1
exec python3 -B /{TESTS}/vm/packaged.py /{TESTS}/deb $VERSIONS
"""
INSTALLED = f"""
if [ -e /sys/fs/cgroup/cgroup.controllers ] && jobfence check; then
    echo "jobfence check must fail where systemd has delegated nothing" >&2
    exit 1
fi
# 'make demo' needs no installation; it makes a scope of its own.
if [ -z "$INSTALLED_CASES" ]; then
    python3 -B /{TESTS}/demo.py --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence --patience 3 || status=1
fi
/opt/guest/start-slurm || exit 1
jobfence enable || {{ systemctl status jobfence.service; exit 1; }}
jobfence check || exit 1
python3 -B /{TESTS}/slurm/cases.py --site installed $INSTALLED_CASES || status=1
systemctl stop slurmd.service slurmctld.service
"""
BENCH = f"""
python3 -B /{TESTS}/benches/others.py --bin /usr/sbin/jobfence --setup /{TESTS}/benches/setup || status=1
/{TESTS}/benches/setup --rounds 50 || status=1
python3 -B /{TESTS}/benches/launch.py --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence --rounds 20 --batches 1 \
    --jobs 20 --steps 20 --tasks 1 8 64 || status=1
exit $status
"""
# A counted clock goes on for all processors whichever of them does an instruction: what one does would be time of what is on another.
ONE_CPU = """
for file in /sys/devices/system/cpu/cpu[1-9]*/online; do echo 0 >$file; done
"""
SHARE = f"""
mkdir -p /var/tmp/results
python3 -B /{TESTS}/benches/share.py --bin /{TESTS}/benches/jobfence --keep /var/tmp/results/share.json $SHARE_OPTIONS || status=1
exit $status
"""
SOAK = f"""
/opt/guest/start-slurm || exit 1
jobfence enable || {{ systemctl status jobfence.service; exit 1; }}
python3 -B /{TESTS}/slurm/soak.py --site installed $SOAK || status=1
"""
# The guest's command is run again after a reset.
WAS_REBOOTED = f"""
[ ! -e {reboot.NOTES} ] || exec python3 -B /{TESTS}/slurm/reboot.py after
"""
REBOOT = f"""
[ $status = 0 ] || exit $status  # with the logs of this boot
systemctl stop munge.service
echo RunDir={reboot.RUN_DIR} >{reboot.CONFIG}
/opt/guest/start-slurm || exit 1
jobfence enable || {{ systemctl status jobfence.service; exit 1; }}
systemctl restart jobfence.service
exec python3 -B /{TESTS}/slurm/reboot.py before
"""
TWO_NODES = f"""
python3 -B /{TESTS}/slurm/cases.py --site two-nodes --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence \
    --settings /opt/guest/run --patience 3 $TWO_NODES_CASES || status=1
"""
# The hook of OpenPBS without OpenPBS: it is run as MoM runs it.
HOOK = f"""
python3 -B /{TESTS}/pbs/replay.py --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence \\
    --hook /{TESTS}/jobfence/hooks/pbs/jobfence.py $HOOK_CASES || status=1
"""
# A scheduler that is not Slurm: what starts it, and its cases, are in its folder.
OTHERS = f"""
echo "cell: Linux $(uname -r), $(systemctl --version | head -n 1 | cut -d ' ' -f 1,2), $SCHEDULER"
{HAS_THEM}
systemctl enable --now jobfence.service || {{ systemctl status jobfence.service; exit 1; }}
/{TESTS}/$SCHEDULER/start || exit 1
exec python3 -B /{TESTS}/$PROGRAM $CASES
"""
# As an administrator does who follows the page on installing: the scheduler is there, and nothing of jobfence.
PAGE = f"""
echo "cell: Linux $(uname -r), $(systemctl --version | head -n 1 | cut -d ' ' -f 1,2), $SCHEDULER"
FRESH=1 /{TESTS}/$SCHEDULER/start || exit 1
exec python3 -B /{TESTS}/vm/typed.py $SCHEDULER
"""


# This machine lacks something, as automake has it.
LACKS = 77

# What is installed: for plugstack/installation, as in the source tree.
FILES = (
    "target/release/libjobfence.so", "target/release/jobfence", "plugstack", "hooks", "include/jobfence.h", "docs/man", "README.md",
    "docs/install/gridengine.md", "docs/install/htcondor.md",
)


def payload(directory, scheduler, is_installed):
    subprocess.run(["make", "--no-print-directory", "--silent", "built"], cwd=TOP, check=True, stdout=subprocess.DEVNULL)
    if is_installed:
        subprocess.run(PUT, cwd=TOP, check=True, env={**os.environ, "DESTDIR": directory, "PREFIX": "/usr"})
    tests = Path(directory) / TESTS
    # pages.py has a site of Slurm's.
    for name in {"contract", "slurm", scheduler, *(["pbs"] if scheduler == "slurm" else [])}:
        shutil.copytree(TOP / "tests" / name, tests / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "demo.py", "leases.py", "pages.py":
        shutil.copy(TOP / "tests" / name, tests)
    for name in FILES:
        place = tests / "jobfence" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (TOP / name).is_dir() else shutil.copy)(TOP / name, place)
    if scheduler == "pbs":
        openpbs(Path(os.environ["OPENPBS"]), Path(directory))
    (tests / "vm").mkdir()
    for name in "traces.py", "packaged.py", "repository.py", "typed.py":
        shutil.copy(TOP / "tests/vm" / name, tests / "vm")
    if scheduler != "slurm":
        return
    try:
        saboteur.build(tests / "slurm" / saboteur.BUILT.name)
    except saboteur.CannotBuild as reason:
        # The cases that want it are skipped then.
        if os.environ.get("CI") == "true":
            sys.exit(f"cell: {reason}")
        print(f"cell: {reason}", file=sys.stderr)


def benches(place):
    """The benchmarks, with the one that cargo builds."""
    shutil.copytree(TOP / "benches", place, ignore=shutil.ignore_patterns("__pycache__", "setup"))
    shutil.copy(program.built("setup"), place / "setup")


def share(place, bin_for_tests):
    """The benchmark of scavengers, with the jobfence in which time may pass faster."""
    shutil.copytree(TOP / "benches", place, ignore=shutil.ignore_patterns("__pycache__", "setup"))
    shutil.copy(bin_for_tests, place / "jobfence")


def openpbs(tree, directory):
    """An installed OpenPBS, without what is only for programmers."""
    if not (tree / "opt/pbs/sbin/pbs_mom").is_file():
        print(f"cell: OPENPBS={tree} has no opt/pbs/sbin/pbs_mom")
        sys.exit(LACKS)
    shutil.copytree(tree / "opt/pbs", directory / "opt/pbs", symlinks=True,
                    ignore=shutil.ignore_patterns("*.a", "*.la", "include", "man", "__pycache__"))
    unit = "lib/systemd/system/pbs.service"
    (directory / unit).parent.mkdir(parents=True)
    shutil.copy(tree / unit, directory / unit)


def in_guest(sites, chosen_by, reboots, cases, traces, hook):
    """The guest's commands; nothing is said of a site that has none of these cases."""
    hooks = [case.__name__ for case in replay.CASES if case.__name__ in cases]
    # By their names in the output, as the cases of Slurm.
    traces, hook = traces or "traces" in cases, hook or hooks
    unknown = set(cases) - {"traces", reboot.NAME, *hooks}
    lines = [WAS_REBOOTED, "status=0", WHAT_IT_IS, *([TRACES, INSTALL] if traces else [HAS_THEM])]
    lines += [f"HOOK_CASES='{' '.join(['--only', *hooks] if hooks else [])}'", HOOK] if hook else []
    for site, name, commands in ("installed", "INSTALLED_CASES", INSTALLED), ("two-nodes", "TWO_NODES_CASES", TWO_NODES):
        if site not in sites:
            continue
        chosen = [case.__name__ for case in CASES if site in case.sites and is_for(case, "slurm") and case.__name__ in cases]
        unknown -= set(chosen)
        if cases and not chosen:
            continue
        options = chosen_by + (["--only", *chosen] if chosen else [])
        lines += [f"{name}='{' '.join(options)}'", commands]
    if unknown:
        sys.exit(f"cell: no such case: {', '.join(sorted(unknown))}")
    return "\n".join([*lines, REBOOT if reboots else "exit $status"])


def others_in_guest(scheduler, program, cases):
    what = [PAGE] if program == "page" else [f"PROGRAM='{program}'", f"CASES='{' '.join(cases)}'", OTHERS]
    return "\n".join([f"SCHEDULER={scheduler}", *what])


def soak_in_guest(count, seed):
    options = f"-n {count}" + ("" if seed is None else f" --seed {seed}")
    return "\n".join(["status=0", WHAT_IT_IS, HAS_THEM, f"SOAK='{options}'", SOAK, "exit $status"])


def packaged_in_guest(versions):
    return "\n".join([WHAT_IT_IS, f"VERSIONS='{' '.join(versions)}'", PACKAGED])


def bench_in_guest():
    return "\n".join(["status=0", WHAT_IT_IS, HAS_THEM, "systemctl start jobfence.service", BENCH])


def share_in_guest(minutes, seed, counted):
    options = " ".join(f"--{name} {value}" for name, value in (("minutes", minutes), ("seed", seed)) if value is not None)
    return "\n".join(["status=0", WHAT_IT_IS, HAS_THEM, *[ONE_CPU] * counted, f"SHARE_OPTIONS='{options}'", SHARE])


class Said:
    """What the guest's runners have said since their last sum. A guest that ends before the next one has run cases all the same."""

    CASE = re.compile(r"(ok|FAIL|skip) +(\w+) ")
    BEGINS = re.compile(r"case \d+ of \d+: (\w+)$")
    SUM = re.compile(r"\d+ passed, \d+ failed, \d+ skipped$")

    def __init__(self):
        self.counts, self.running, self.since = {"ok": 0, "FAIL": 0, "skip": 0}, None, time.monotonic()
        self.last = None

    def read(self, line):
        if begins := self.BEGINS.match(line):
            self.running, self.since = begins[1], time.monotonic()
        elif case := self.CASE.match(line):
            self.counts[case[1]] += 1
            self.running, self.since, self.last = None, time.monotonic(), case[2]
        elif self.SUM.match(line):
            self.__init__()

    def cut_off(self):
        """The case in which the guest was, as one that has failed, and the sum."""
        # Not every runner says which case begins.
        where = "in this case" if self.running else f"after {self.last}" if self.last else "before its first case"
        yield f"FAIL {self.running or 'guest'}  {time.monotonic() - self.since:.1f} s"
        yield f"     the guest ended {where}"
        yield f"{self.counts['ok']} passed, {self.counts['FAIL'] + 1} failed, {self.counts['skip']} skipped"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cell", choices=CELLS, metavar="CELL")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--installed", dest="sites", action="store_const", const=["installed"],
                      help="only the cases of the installed Slurm")
    only.add_argument("--two-nodes", dest="sites", action="store_const", const=["two-nodes"],
                      help="only the cases of two nodes")
    only.add_argument("--only-reboot", dest="sites", action="store_const", const=[], help="no cases, but a reboot")
    parser.add_argument("--reboot", action="store_true", help="a reboot after cases that have passed")
    parser.add_argument("--traces", action="store_true", help="first, what is left when jobfence has been used and removed")
    parser.add_argument("--hook", action="store_true", help="first, the hook of OpenPBS, without OpenPBS")
    parser.add_argument("--layout", action="store_true", help="only those in which the cgroup layout makes a difference")
    parser.add_argument("--chosen", action="store_true", help="only those that 'make check' runs in this cell: see chosen.py")
    parser.add_argument("--release", action=argparse.BooleanOptionalAction,
                        help="only those that 'make check' leaves out, or only the others")
    parser.add_argument("--slice", metavar="K/N", help="of each site's cases only the K-th of N parts")
    parser.add_argument("--soak", type=int, metavar="N", help="no cases: so many short jobs, and kills at random")
    parser.add_argument("--seed", type=int, help="of an earlier --soak, for the same decisions, or of the trace of --bench-share")
    parser.add_argument("--packaged", action="store_true", help="no cases, but what Debian packages do, installed by apt beside jobs")
    parser.add_argument("--bench", action="store_true", help="no cases, but the benchmarks")
    parser.add_argument("--bench-share", metavar="BIN", help="no cases: what a node does with scavengers, by this jobfence, built for tests")
    parser.add_argument("--minutes", type=float, help="of --bench-share")
    parser.add_argument("--demo", action="store_true", help="no cases, but the demo of a scheduler that is not Slurm")
    parser.add_argument("--record", action="store_true", help="no cases: what real daemons of HTCondor say, into tests/htcondor/recorded")
    parser.add_argument("--page", action="store_true", help="no cases: type the page on installing Grid Engine's or HTCondor's cell")
    parser.add_argument("--counted", action="store_true", help="the guest's clock counts instructions: slow, and punctual on a busy host")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.set_defaults(sites=["installed", "two-nodes"])
    options = parser.parse_intermixed_args()
    is_htcondors = CELLS[options.cell].scheduler == "htcondor"
    if options.chosen and (is_htcondors or CELLS[options.cell].scheduler == "slurm"):
        sites = [*options.sites, *["hook"] * options.hook]
        options.cases += OF_HTCONDOR if is_htcondors else [name for site in sites for name in CHOSEN[options.cell, site]]
    if CELLS[options.cell].scheduler != "slurm":
        for name, value in vars(options).items():
            if name not in ("bench", "cell", "cases", *["chosen"] * is_htcondors, "counted", "demo", "page", "record", "release", "slice") and value != parser.get_default(name):
                parser.error(f"--{name.replace('_', '-')} is for Slurm's cells")
    if options.record and CELLS[options.cell].scheduler != "htcondor":
        parser.error("--record is for HTCondor's cells")
    if options.page and CELLS[options.cell].scheduler not in ("gridengine", "htcondor"):
        parser.error("--page is for the cells of Grid Engine and HTCondor; tests/pages.py types the other pages")
    if options.demo and CELLS[options.cell].scheduler == "slurm":
        parser.error("the cell of the demo is one of another scheduler than Slurm: 'make demo' needs no guest for Slurm")
    return options


def main():
    options = arguments()
    beside_a_check = leases.company()  # noqa: F841
    cell = options.cell
    if reason := lacking(cell):
        print(f"cell: {reason}")
        sys.exit(LACKS)
    reboots = options.reboot or not options.sites or reboot.NAME in options.cases
    chosen_by = ["--layout"] * options.layout + (["--slice", options.slice] if options.slice else [])
    chosen_by += {None: [], True: ["--release"], False: ["--no-release"]}[options.release]
    scheduler = CELLS[cell].scheduler
    if scheduler == "slurm":
        commands = in_guest(options.sites, chosen_by, reboots, options.cases, options.traces, options.hook)
    else:
        name = "record.py" if options.record else "cost.py" if options.bench else "cases.py"
        program = "page" if options.page else f"demo.py --scheduler {scheduler}" if options.demo else f"{scheduler}/{name}"
        commands = others_in_guest(scheduler, program, chosen_by + options.cases)
    # An emulated guest needs some seconds for a job.
    seconds = 4200 if options.soak is None else 1200 + 8 * options.soak
    if options.bench and scheduler == "slurm":
        commands = bench_in_guest()
    if options.bench_share:
        commands = share_in_guest(options.minutes, options.seed, options.counted)
    if options.soak is not None:
        commands = soak_in_guest(options.soak, options.seed)
    # 'make check' has it twice in one cell, at once.
    results = TOP / "target/vm/results" / (cell + ("-two-nodes" if options.sites == ["two-nodes"] else "-packaged" * options.packaged))
    shutil.rmtree(results, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="jobfence-payload-") as directory:
        payload(directory, scheduler, not (options.packaged or options.page or INSTALL in commands))
        if options.bench and scheduler == "slurm":
            benches(Path(directory) / TESTS / "benches")
        if options.bench_share:
            share(Path(directory) / TESTS / "benches", TOP / options.bench_share)
        if options.packaged:
            commands = packaged_in_guest(repository.make(Path(directory) / TESTS / "deb", TOP / FILES[0], TOP / FILES[1]))
        process = subprocess.Popen(
            [TOP / "tests/vm/vm.py", "run", "--cell", cell, "--payload", directory, "--results", results, "--timeout",
             os.environ.get("JOBFENCE_VM_TIMEOUT", str(seconds)), *["--reboots"] * reboots, *["--counted"] * options.counted, "--", "sh", "-c", commands],
            stdout=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        # It tidies up after itself, and so do we once it has.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        said = Said()
        for line in process.stdout:
            print(line, end="", flush=True)
            said.read(line.rstrip())
        status = process.wait()
    if status in (TIMED_OUT, NEVER_REPORTED) or status < 0 or status > 128:
        print("\n".join(said.cut_off()), flush=True)
    if options.record and status == 0:
        shutil.copytree(results / "recorded", TOP / "tests/htcondor/recorded", dirs_exist_ok=True)
    if cell == PICTURED and (results / "pictures").is_dir():
        # Debian's Python has pyte and selenium, another one in PATH may not.
        command = "/usr/bin/python3", "-B", TOP / "tests/pictures.py", results / "pictures"
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end="", flush=True)
        status = status or done.returncode
    if status not in (0, 77):
        print(f"logs of this cell: {results.relative_to(TOP)}")
    sys.exit(status)


if __name__ == "__main__":
    main()
