#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a line of the usage log costs 'jobfence report --by', counted: report_cost.py --bin FILE

Counted is what a log with more lines of the same kind costs more, for each thousand of these lines:

  system calls    by strace
  instructions    by callgrind

A figure that is more than 3 % above its bound fails, as in tests/cost.py. On another architecture, instructions have no bound.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests"))
from cost import LACKS, Lacking, judge  # noqa: E402

FEW, MANY = 3_000, 13_000
ARCHITECTURE = "x86_64"
BOUNDS = {"system calls": 14, "instructions": 25_700_000}


class Log:
    """A usage log as a site has it, and what the report says of it."""

    def __init__(self, place, command, count):
        self.place, self.count = Path(place) / str(count), count
        self.place.mkdir()
        words = "--lines", str(count), self.place / "usage.jsonl"
        subprocess.run([sys.executable, "-B", TOP / "tests/usage_log.py", *words], check=True)
        self.report = command, "report", "--by", "user", "--json", "--logs", self.place

    def below(self, *tool):
        """The report below a tool."""
        done = subprocess.run([*tool, *self.report], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        # What is passed over costs little.
        if done.returncode != 0 or json.loads(done.stdout)["lines"] != self.count:
            raise SystemExit(f"the report failed with status {done.returncode}:\n{done.stdout[:999]}\n{done.stderr}")

    def system_calls(self):
        output = self.place.parent / "strace"
        self.below("strace", "-f", "-qq", "-o", output)
        return len(output.read_text().splitlines())

    def instructions(self):
        output = self.place.parent / "callgrind"
        self.below("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}")
        return int(re.search(r"^totals: (\d+)$", output.read_text(), re.M)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=Path)
    options = parser.parse_args()
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False).stdout
    try:
        for program in ("strace", "valgrind"):
            if not shutil.which(program):
                raise Lacking(f"needs {program}")
    except Lacking as lacking:
        print(lacking)
        return LACKS
    with tempfile.TemporaryDirectory() as place:
        few, many = (Log(place, options.bin.resolve(), count) for count in (FEW, MANY))
        thousands = (MANY - FEW) / 1000
        found = {
            "system calls": round((many.system_calls() - few.system_calls()) / thousands),
            "instructions": round((many.instructions() - few.instructions()) / thousands),
        }
    is_theirs = platform.machine() == ARCHITECTURE
    counts = judge(found, {name: bound for name, bound in BOUNDS.items() if is_theirs or name != "instructions"}, compiler)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
