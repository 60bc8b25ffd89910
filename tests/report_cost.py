#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a line of the usage log costs 'jobfence report --by', counted: report_cost.py --bin FILE

Counted is what a log with more lines of the same kind costs more, for each thousand of these lines:

  system calls             by strace
  instructions             by callgrind
  instructions of GPUs     the same, for lines of the log of GPUs
  instructions of earlier  the same, for such lines from before the time in question

A figure that is more than 3 % above its bound fails, as in tests/cost.py. Another architecture has other instructions, and no bound.
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
from cost import COMPILER, LACKS, Lacking, judge  # noqa: E402

FEW, MANY = 3_000, 13_000
SINCE = ("--since", "2026-08-01")
ARCHITECTURE = "x86_64"
BOUNDS = {"system calls": 14, "instructions": 26_900_000, "instructions of GPUs": 72_900_000, "instructions of earlier": 25_400_000}


# As src/command/gpu/files.rs writes it: serde_json has the members in the order of the alphabet.
GPU = {
    "busy_seconds": 812.5, "device": "/dev/nvidia0", "energy_joules": 812345.125, "gpu": 0, "idle_seconds": 12.5, "is_shared": False,
    "longest_idle_seconds": None, "memory_now_bytes": 8 << 30, "memory_peak_bytes": 9 << 30, "memory_source": "driver",
    "memory_total_bytes": 80 << 30, "observed_seconds": 3590.25, "slowed_by": [], "slowed_seconds": 0.0,
    "utilization_now_percent": 12.0, "utilization_percent": 22.631, "utilization_source": "samples",
    "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef",
}


def of_gpus(job):
    """The line of a job with four GPUs."""
    gpus = [{**GPU, "gpu": number, "device": f"/dev/nvidia{number}"} for number in range(4)]
    line = {
        "energy_joules": 3249380.5, "granted": 4, "gpus": gpus, "idle_after_seconds": None, "idle_seconds": 12.5, "job": str(job),
        "looked": "2026-06-01T01:00:00Z", "memory_peak_bytes": 36 << 30, "memory_total_bytes": 320 << 30, "node": None,
        "schema": "jobfence-gpus-1", "started": "2026-06-01T00:00:00Z", "uid": 10_001, "utilization_now_percent": 12.0,
        "utilization_percent": 22.631,
    }
    return json.dumps(line, separators=(",", ":")) + "\n"


class Log:
    """A usage log as a site has it, with lines about GPUs beside it, and what the report says of it."""

    def __init__(self, place, command, count, gpus=0, since=()):
        self.place, self.count, self.since = Path(place) / f"{count}-{gpus}-{len(since)}", count, since
        self.place.mkdir()
        if gpus:
            (self.place / "usage.jsonl.gpus").write_text("".join(map(of_gpus, range(gpus))))
        words = "--lines", str(count), self.place / "usage.jsonl"
        subprocess.run([sys.executable, "-B", TOP / "tests/usage_log.py", *words], check=True)
        self.report = command, "report", "--by", "user", "--json", "--logs", self.place, *since

    def below(self, *tool):
        """The report below a tool."""
        done = subprocess.run([*tool, *self.report], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        # What is passed over costs little.
        if done.returncode != 0 or json.loads(done.stdout)["lines"] != self.count and not self.since:
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
        command = options.bin.resolve()
        few, many = (Log(place, command, count) for count in (FEW, MANY))
        thousands = (MANY - FEW) / 1000
        # The log of GPUs is from before the time in question, which the usage log is not: its last jobs end in September.
        of_log, earlier = ([Log(place, command, FEW, gpus, since) for gpus in (1000, 11_000)] for since in ((), SINCE))
        found = {
            "system calls": round((many.system_calls() - few.system_calls()) / thousands),
            "instructions": round((many.instructions() - few.instructions()) / thousands),
            "instructions of GPUs": round((of_log[1].instructions() - of_log[0].instructions()) / 10),
            "instructions of earlier": round((earlier[1].instructions() - earlier[0].instructions()) / 10),
        }
    is_theirs = platform.machine() == ARCHITECTURE and compiler.startswith(COMPILER)
    bounds = {name: bound for name, bound in BOUNDS.items() if is_theirs or not name.startswith("instructions")}
    counts = judge(found, bounds, compiler)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
