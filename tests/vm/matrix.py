#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the Slurm cases in many cells and shows one table: matrix.py [--jobs N] [--only CASE...] [--cell CELL...].

Without --cell in all of them. The table also goes to target/vm/table.txt, each cell's output to
target/vm/results/CELL/output.log.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from cells import CELLS, lacking
from vm import NEVER_REPORTED, SKIPPED, TIMED_OUT

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "target/vm"

# As tests/slurm/cases.py prints them.
CASE = re.compile(r"(ok|FAIL|skip) +(\w+) +([\d.]+) s\b")
# As cell.py does.
WHAT_IT_IS = re.compile(r"cell: (Linux .*)$")
SUMMARY = re.compile(r"\d+ passed, \d+ failed, \d+ skipped$")

ENDS = {TIMED_OUT: "late", NEVER_REPORTED: "died", SKIPPED: "none"}
MEANING = {
    "late": "not finished in time",
    "died": "ended before the last case",
    "none": "this machine lacks something",
    "skip": "the cell needs what was not given",
}


@dataclass
class Result:
    """What one cell has said; `end` is ok or FAIL, or a word of MEANING."""

    cases: dict = field(default_factory=dict)  # name: (outcome, seconds)
    end: str = "died"
    what: str = ""  # its kernel, systemd and Slurm
    seconds: float = 0.0

    def count(self, outcome):
        return sum(found == outcome for found, _ in self.cases.values())


class Runner:
    def __init__(self, only, prefix):
        self.only, self.prefix = only, prefix
        self.children, self.lock, self.ending = set(), threading.Lock(), False

    def run(self, cell):
        result, start = Result(), time.monotonic()
        lines = []
        with self.lock:
            if self.ending:
                return result
            # A group of its own: a signal goes to all of it, once.
            child = subprocess.Popen(
                [sys.executable, "-B", HERE / "cell.py", cell, *self.only], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self.children.add(child)
        complete = False
        for line in child.stdout:
            lines.append(line)
            print(f"{cell}: {line}" if self.prefix else line, end="", flush=True)
            if found := CASE.match(line):
                result.cases[found[2]] = (found[1], float(found[3]))
            if found := WHAT_IT_IS.match(line.rstrip()):
                result.what = found[1]
            complete = complete or bool(SUMMARY.match(line.rstrip()))
        status = child.wait()
        with self.lock:
            self.children.discard(child)
        result.seconds = time.monotonic() - start
        if status in ENDS:
            result.end = ENDS[status]
        elif complete:
            result.end = "FAIL" if status or result.count("FAIL") else "ok"
        # After it has run, since cell.py begins with an empty directory.
        log = RESULTS / "results" / cell / "output.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(lines))
        return result

    def end(self):
        with self.lock:
            self.ending = True
            for child in self.children:
                os.killpg(child.pid, signal.SIGTERM)


def entry(found):
    if found is None:
        return "-"
    outcome, seconds = found
    if outcome == "skip":
        return "skip"
    shown = f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"
    return shown if outcome == "ok" else f"F {shown}"


def table(results):
    """Cases against cells; a cell is a letter there, since its name is too long for the head of a column."""
    names = list(dict.fromkeys(case for result in results.values() for case in result.cases))
    letters = {cell: chr(ord("A") + number) for number, cell in enumerate(results)}
    wide = max(len(name) for name in [*names, "seconds"])

    def row(name, entries):
        return name.ljust(wide) + "".join(f"{one:>7}" for one in entries)

    longest = max(map(len, results))
    yield from (f"{letters[cell]}  {cell:{longest}}  {result.what}".rstrip() for cell, result in results.items())
    yield ""
    yield row("", letters.values())
    for name in names:
        yield row(name, (entry(result.cases.get(name)) for result in results.values()))
    yield ""
    for word, outcome in ("passed", "ok"), ("failed", "FAIL"), ("skipped", "skip"):
        yield row(word, (result.count(outcome) for result in results.values()))
    yield row("seconds", (f"{result.seconds:.0f}" for result in results.values()))
    yield row("cell", (result.end for result in results.values()))
    yield ""
    yield "A number: seconds, passed. F: failed. -: not run."
    for word, meaning in MEANING.items():
        if any(result.end == word for result in results.values()):
            yield f"{word}: {meaning}."
    yield "What a cell has said: target/vm/results/CELL/output.log."


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; each has 2 CPUs and 2 GB")
    parser.add_argument("--only", nargs="*", metavar="CASE", default=[], help="without: every case, and the demo")
    parser.add_argument("--cell", nargs="*", choices=CELLS, metavar="CELL", default=[])
    return parser.parse_args()


def main():
    arguments = parse()
    cells = arguments.cell or [name for name in CELLS if not name.endswith("-bench")]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    runner = Runner(arguments.only, prefix=len(cells) > 1)
    results = {cell: Result() for cell in cells}
    for cell, reason in ((cell, lacking(cell)) for cell in cells):
        if reason:
            print(f"skip: {reason}")
            results[cell].end = "skip"
    with ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            running = {cell: pool.submit(runner.run, cell) for cell in cells if results[cell].end != "skip"}
            for cell, future in running.items():
                results[cell] = future.result()
        except BaseException:
            runner.end()
            raise
    text = "\n".join(table(results)) + "\n"
    (RESULTS / "table.txt").write_text(text)
    print("\n" + text, end="")
    ends = {result.end for result in results.values()} - {"skip"}
    # Where none can run, nothing has failed; some without the others is no success.
    return 0 if ends == {"ok"} else SKIPPED if ends <= {"none"} else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
