#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the Slurm cases in one virtual machine cell: cell.py CELL [--installed | --two-nodes] [--layout | CASE...].

What is installed is what 'make install' installs, and its cases are run by the Slurm that is installed; then those of two
nodes by a private one, placed as the cell says. --installed, --two-nodes: only one of them. --layout: only the cases in which the cgroup
layout makes a difference.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "tests/vm")]
from cells import CELLS  # noqa: E402
from slurm import saboteur, suite  # noqa: E402, F401
from slurm.harness import CASES  # noqa: E402

TESTS = "opt/jobfence-tests"

# For the record: what the table of matrix.py says of the cell.
WHAT_IT_IS = """
echo "cell: Linux $(uname -r), $(systemctl --version | head -n 1 | cut -d ' ' -f 1,2), $(slurmd -V)"
"""

# As an administrator would after 'make install', from the README.
INSTALLED = f"""
systemctl daemon-reload
if [ -e /sys/fs/cgroup/cgroup.controllers ] && jobfence check; then
    echo "jobfence check must fail where systemd has delegated nothing" >&2
    exit 1
fi
# 'make demo' needs no installation; it makes a scope of its own.
if [ -z "$INSTALLED_CASES" ]; then
    python3 -B /{TESTS}/demo.py --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence --patience 3 || status=1
fi
systemctl enable --now jobfence.service || {{ systemctl status jobfence.service; exit 1; }}
/opt/guest/start-slurm || exit 1
jobfence check || exit 1
python3 -B /{TESTS}/slurm/cases.py --site installed $INSTALLED_CASES || status=1
systemctl stop slurmd.service slurmctld.service
"""
TWO_NODES = f"""
python3 -B /{TESTS}/slurm/cases.py --site two-nodes --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence \
    --settings /opt/guest/run --patience 3 $TWO_NODES_CASES || status=1
"""


def payload(directory):
    subprocess.run(
        ["make", "--no-print-directory", "--silent", "install", f"DESTDIR={directory}", "PREFIX=/usr"],
        cwd=TOP, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    tests = Path(directory) / TESTS
    shutil.copytree(TOP / "tests/slurm", tests / "slurm", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOP / "tests/demo.py", tests)
    try:
        saboteur.build(tests / "slurm" / saboteur.BUILT.name)
    except saboteur.CannotBuild as reason:
        # The cases that want it are skipped then.
        if os.environ.get("CI") == "true":
            sys.exit(f"cell: {reason}")
        print(f"cell: {reason}", file=sys.stderr)


def in_guest(sites, layout, cases):
    """The guest's commands; nothing is said of a site that has none of these cases."""
    lines = ["status=0", WHAT_IT_IS]
    unknown = set(cases)
    for site, name, commands in ("installed", "INSTALLED_CASES", INSTALLED), ("two-nodes", "TWO_NODES_CASES", TWO_NODES):
        if site not in sites:
            continue
        chosen = [case.__name__ for case in CASES if site in case.sites and case.__name__ in cases]
        unknown -= set(chosen)
        if cases and not chosen:
            continue
        options = ["--layout"] if layout else ["--only", *chosen] if chosen else []
        lines += [f"{name}='{' '.join(options)}'", commands]
    if unknown:
        sys.exit(f"cell: no such case: {', '.join(sorted(unknown))}")
    return "\n".join([*lines, "exit $status"])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cell", choices=CELLS, metavar="CELL")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--installed", dest="sites", action="store_const", const=["installed"],
                      help="only the cases of the installed Slurm")
    only.add_argument("--two-nodes", dest="sites", action="store_const", const=["two-nodes"],
                      help="only the cases of two nodes")
    parser.add_argument("--layout", action="store_true", help="only those in which the cgroup layout makes a difference")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.set_defaults(sites=["installed", "two-nodes"])
    return parser.parse_args()


def main():
    options = arguments()
    cell = options.cell
    commands = in_guest(options.sites, options.layout, options.cases)
    results = TOP / "target/vm/results" / cell
    shutil.rmtree(results, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="jobfence-payload-") as directory:
        payload(directory)
        process = subprocess.Popen(
            [TOP / "tests/vm/vm.py", "run", "--cell", cell, "--payload", directory, "--results", results, "--timeout",
             os.environ.get("JOBFENCE_VM_TIMEOUT", "2400"), "--", "sh", "-c", commands],
        )  # fmt: skip
        # It tidies up after itself, and so do we once it has.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        status = process.wait()
    if status not in (0, 77):
        print(f"logs of this cell: {results.relative_to(TOP)}")
    sys.exit(status)


if __name__ == "__main__":
    main()
