#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What jobfence costs a step, counted: cost.py --so FILE [--rounds N]

A step of one task goes through its callbacks in the stand-in for slurmstepd (tests/stand_in/slurmstepd.c). Counted is what the
step daemon does, with the little that the stand-in does itself:

  system calls    by strace
  bytes of /proc  that it reads, by strace; without the paths of cgroups, which are the host's
  instructions    in the callbacks, by callgrind
  allocations     in the callbacks, by callgrind

Of some rounds the least counts: how often a directory's removal is tried again is chance. A figure that is more than 3 % above
its bound fails. If it has to cost more, raise the bound in the same commit, and say in its message what the step gets for it.
If it costs less, lower it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
LACKS = 77  # for check.py: this machine lacks something
SLACK = 1.03

# By the hierarchies in which the step has directories: another host has other files to write.
BOUNDS = {
    ("cpu", "memory", "pids", "unified"): {
        "system calls": 332, "bytes of /proc": 1184, "instructions": 960_000, "allocations": 705,
    },
}
# Another compiler makes other instructions.
COMPILER = "rustc 1.95"
COMPILERS = ("instructions", "allocations")

MARK = "syscall_0x6a6f62("  # MARK in slurmstepd.c, which stands around callbacks
READ = re.compile(r"(?:read|pread64|readlinkat)\(\d+<(/proc(?:/[^>]*)?)>, (.*)= (\d+)$")
ALLOCATE = ("malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc")
CALLBACKS = "slurm_spank_*"


class Lacking(Exception):
    """This machine lacks something."""


class Stand:
    """The stand-in, compiled, with a configuration of its own."""

    def __init__(self, so, place):
        self.so, self.place, self.base = so, Path(place), f"jobfence-cost-{os.getpid()}"
        self.program = self.place / "slurmstepd"
        compiled = subprocess.run(
            ["cc", "-std=gnu11", "-O1", "-rdynamic", "-o", self.program, TOP / "tests/stand_in/slurmstepd.c", "-ldl"],
            stderr=subprocess.PIPE, text=True, check=False,
        )
        if compiled.returncode != 0:
            raise Lacking(f"the stand-in was not compiled: {compiled.stderr}")
        (self.place / "run").mkdir(mode=0o700)
        self.configuration = self.place / "jobfence.conf"
        self.configuration.write_text(f"CgroupBase={self.base}\nRunDir={self.place}/run\nMaxProcesses=40\n")

    def step(self, *tool):
        """One step below a tool; what its task says of its place."""
        done = subprocess.run(
            [*tool, self.program, self.so, "uid=61001", "job=1", "--", f"config={self.configuration}"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )
        if done.returncode != 0 or "error: " in done.stderr:
            raise SystemExit(f"the step failed with status {done.returncode}:\n{done.stderr}")
        return done.stdout

    def hierarchies(self):
        """In which the step has directories."""
        places = (line.split() for line in self.step().splitlines() if line.startswith("place "))
        return tuple(sorted(words[1] for words in places if f"/{self.base}/" in words[2]))

    def remove(self):
        """The directories that are there for the next step."""
        cgroups = Path("/sys/fs/cgroup")
        # On v1 a hierarchy has a directory of its own.
        for top in (cgroups / self.base, *cgroups.glob(f"*/{self.base}")):
            for directory, _, _ in os.walk(top, topdown=False):
                os.rmdir(directory)


def bytes_of_proc(call):
    read = READ.match(call)
    if not read:
        return 0
    path, content, count = read.groups()
    paths = re.findall(r"\d+:[^:]*:(/.*?)\\n", content) if path.endswith("/cgroup") else ()
    return int(count) - sum(map(len, paths))


def by_strace(stand):
    # A file for each process: where two have one, a call can be in two parts.
    output = stand.place / "strace"
    stand.step("strace", "-ff", "-y", "-qq", "-s", "65536", "-o", output)
    files = [file.read_text(errors="replace") for file in stand.place.glob("strace.*")]
    for file in stand.place.glob("strace.*"):
        file.unlink()
    # The task has fewer.
    calls = max(files, key=lambda text: text.count(MARK)).splitlines()
    marks = [number for number, call in enumerate(calls) if call.startswith(MARK)]
    calls = [call for call in calls[marks[0]:marks[-1]] if not call.startswith((MARK, "+++", "---"))]
    return {"system calls": len(calls), "bytes of /proc": sum(map(bytes_of_proc, calls))}


def by_callgrind(stand):
    output = stand.place / "callgrind"
    stand.step("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", f"--toggle-collect={CALLBACKS}")
    text = output.read_text()
    names = dict(re.findall(r"^c?fn=\((\d+)\) (.+)$", text, re.M))
    called = re.findall(r"^cfn=\((\d+)\).*\ncalls=(\d+) ", text, re.M)
    allocations = sum(int(count) for number, count in called if names[number] in ALLOCATE)
    return {"instructions": int(re.search(r"^totals: (\d+)$", text, re.M)[1]), "allocations": allocations}


def least(measure, stand, rounds):
    found = [measure(stand) for _ in range(rounds)]
    return {name: min(figures[name] for figures in found) for name in found[0]}


def judge(found, bounds, compiler):
    """Prints each figure beside its bound; how many passed, failed and were skipped."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    for name, figure in found.items():
        bound = bounds.get(name)
        if bound is None:
            verdict, why = "skip", "there is no bound for such a host"
        elif name in COMPILERS and not compiler.startswith(COMPILER):
            verdict, why = "skip", f"the bound is for {COMPILER}"
        else:
            verdict, why = ("ok" if figure <= bound * SLACK else "FAIL"), f"bound {bound:,}, {figure / bound - 1:+.1%}"
        counts[verdict] += 1
        print(f"{verdict:4} {name.replace(' ', '_').replace('/', '')}: {figure:,} ({why})")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--so", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False).stdout
    try:
        for program in ("strace", "valgrind", "cc"):
            if not shutil.which(program):
                raise Lacking(f"needs {program}")
        with tempfile.TemporaryDirectory() as place:
            stand = Stand(options.so.resolve(), place)
            try:
                hierarchies = stand.hierarchies()
                found = {**least(by_strace, stand, options.rounds), **least(by_callgrind, stand, options.rounds)}
            finally:
                stand.remove()
    except Lacking as lacking:
        print(lacking)
        return LACKS
    print(f"directories in {', '.join(hierarchies)}; {compiler.strip() or 'no rustc'}")
    counts = judge(found, BOUNDS.get(hierarchies, {}), compiler)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
