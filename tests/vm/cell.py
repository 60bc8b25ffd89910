#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the Slurm cases in one virtual machine cell: cell.py CELL [--layout | CASE...].

What is installed is what 'make install' installs. --layout: only the cases in which the cgroup layout makes a difference.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
from slurm import saboteur  # noqa: E402

TESTS = "opt/jobfence-tests"

# As an administrator would after 'make install', from the README.
IN_GUEST = f"""
systemctl daemon-reload
if [ -e /sys/fs/cgroup/cgroup.controllers ] && jobfence check; then
    echo "jobfence check must fail where systemd has delegated nothing" >&2
    exit 1
fi
# 'make demo' needs no installation; it makes a scope of its own.
if [ $# = 0 ]; then
    python3 -B /{TESTS}/demo.py --so /usr/lib/slurm/libjobfence.so --bin /usr/sbin/jobfence || exit 1
fi
systemctl enable --now jobfence.service || {{ systemctl status jobfence.service; exit 1; }}
/opt/guest/start-slurm || exit 1
jobfence check || exit 1
exec python3 -B /{TESTS}/slurm/cases.py --site installed "$@"
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


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cell, *cases = sys.argv[1:]
    only = ["--only", *cases] if cases and cases != ["--layout"] else cases
    results = TOP / "target/vm/results" / cell
    shutil.rmtree(results, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="jobfence-payload-") as directory:
        payload(directory)
        process = subprocess.Popen(
            [TOP / "tests/vm/vm.py", "run", "--cell", cell, "--payload", directory, "--results", results, "--timeout",
             os.environ.get("JOBFENCE_VM_TIMEOUT", "2400"), "--", "sh", "-c", IN_GUEST, "sh", *only],
        )  # fmt: skip
        # It tidies up after itself, and so do we once it has.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        status = process.wait()
    if status not in (0, 77):
        print(f"logs of this cell: {results.relative_to(TOP)}")
    sys.exit(status)


if __name__ == "__main__":
    main()
