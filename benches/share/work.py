#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs in a fence: an owner that replays its trace, or a scavenger that does units of work until it is ended.

Each says in JSON what it has done, a line for each. A unit is a real program, run to its end.
"""

import json
import mmap
import os
import random
import resource
import shutil
import subprocess
import sys
import time

MIB = 1 << 20
PYTHON = sys.executable, "-S", "-c"
OBJECTS = "d = {i: str(i) * 3 for i in range(500000)}; print(sum(len(d[i]) for i in range(0, 500000, 3)))"
TABLE = """
import sqlite3
c = sqlite3.connect(":memory:")
c.execute("create table t(a, b, c)")
c.executemany("insert into t values (?, ?, ?)", ((i * 7919 % 100003, i, "x" * 40) for i in range(120000)))
c.execute("create index i on t(a)")
print(c.execute("select count(*), sum(b) from t where a in (select a from t where b % 3 = 0)").fetchall())
"""
COMPILE = "import sys; [compile(open(sys.argv[1]).read(), 'words', 'exec') for _ in range(4)]"
# A scavenger loads its data by so many MiB a second.
LOADS = 64


def make(place):
    """The files that units read: words in no order, and sources."""
    rng = random.Random(42)
    with open(f"{place}/words", "w", encoding="ascii") as words:
        for number in range(300000):
            words.write(f"{rng.getrandbits(32):08x} {number} {'x' * rng.randint(0, 60)}\n")
    body = "int s = 0; for (int i = 0; i < a; i++) { s += b[i] * N; if (s & 5) b[i] ^= s; else s >>= 1; } return s;"
    with open(f"{place}/source.c", "w", encoding="ascii") as source:
        for number in range(60):
            source.write(f"int f{number}(int a, int *b) {{ {body.replace('N', str(number + 3))} }}\n")
    with open(f"{place}/source.py", "w", encoding="ascii") as source:
        for number in range(600):
            source.write(f"def f{number}(a, b):\n    s = 0\n    for i in range(a):\n        s += b[i] * {number}\n    return [s, a, {{'b': b}}]\n")


def commands(place):
    """A unit of each kind. A guest may have neither a compiler nor xz."""
    compiler = shutil.which("cc")
    return {
        "compile": [compiler, "-O2", "-c", "-o", "/dev/null", f"{place}/source.c"] if compiler else [*PYTHON, COMPILE, f"{place}/source.py"],
        "objects": [*PYTHON, OBJECTS],
        "sort": ["sort", "--parallel=1", "-S", "64M", f"{place}/words", f"{place}/words"],
        "sqlite": [*PYTHON, TABLE],
        "xz" if shutil.which("xz") else "gzip": ["xz", "-T1", "-2", "-c", "-k", f"{place}/part"] if shutil.which("xz") else ["gzip", "-c", f"{place}/part"],
    }


def one_unit(command):
    """Runs it. Its CPU time is counted by the kernel, with that of its children."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                               env={"LC_ALL": "C", "PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"begin": begin, "wall": time.monotonic() - begin, "cpu": used.ru_utime + used.ru_stime, "status": process.returncode,
            "mib": used.ru_maxrss / 1024}


class Kept:
    """Memory of this process, by MiB."""

    def __init__(self):
        self.pieces = []

    def shrink(self, mib):
        while len(self.pieces) > mib:
            self.pieces.pop().close()

    def grow(self, mib, pace):
        """Touches so much, and returns the longest wait for one MiB."""
        longest = 0.0
        for _ in range(len(self.pieces), mib):
            now = time.monotonic()
            piece = mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            piece.madvise(mmap.MADV_NOHUGEPAGE)
            piece.write(b"x" * MIB)
            self.pieces.append(piece)
            longest = max(longest, time.monotonic() - now)
            if pace:
                # Without catching up after it had to wait: real programs do not.
                time.sleep(max(now + 1 / pace - time.monotonic(), 0))
        return longest


def say(**what):
    print(json.dumps(what), flush=True)


def cpu_used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def own(place):
    """Replays each window that it reads."""
    known, kept = commands(place), Kept()
    say(ready=True)
    for line in sys.stdin:
        given = json.loads(line)
        before = cpu_used()
        for number, action in enumerate(given["actions"]):
            time.sleep(max(given["start"] + action["at"] - time.monotonic(), 0))
            begin = time.monotonic()
            match action["do"]:
                case "unit":
                    say(number=number, **action, late=begin - given["start"] - action["at"], **one_unit(known[action["kind"]]))
                case "grow":
                    longest = kept.grow(action["mib"], action["pace"])
                    say(number=number, **action, begin=begin, wall=time.monotonic() - begin, longest=longest)
                case "shrink":
                    kept.shrink(action["mib"])
        kept.shrink(0)
        say(ended=True, cpu=cpu_used() - before)


def scavenge(place, seed, data, kinds):
    """Loads its data, and does one unit after the other."""
    known, kept, rng = commands(place), Kept(), random.Random(seed)
    say(ready=True)
    if not sys.stdin.readline():
        return
    kept.grow(data, LOADS)
    while True:
        kind = rng.choice(kinds)
        say(kind=kind, **one_unit(known[kind]))


def calibrate(place, rounds):
    """What a unit of each kind costs."""
    for kind, command in commands(place).items():
        runs = [one_unit(command) for _ in range(rounds)]
        say(kind=kind, cpu=min(run["cpu"] for run in runs), mib=max(run["mib"] for run in runs), status=max(run["status"] for run in runs))


if __name__ == "__main__":
    match sys.argv[1:]:
        case "own", where:
            own(where)
        case "scavenge", where, number, data_mib, *of_kinds:
            scavenge(where, int(number), int(data_mib), of_kinds)
        case "calibrate", where, count:
            calibrate(where, int(count))
