#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a word in time takes: from the moment at which the kernel's own counter has passed the share, to the signal.

Needs root. Each program is a job of `jobfence open`. It has three quarters of the share, waits, and grows until it has its signal.
After each 64 KiB it reads the counter of its directory, as `jobfence hold` does. So the moment of the crossing is known to one such
piece, and the time from then on is that of hold's look, of its child, and of the signal.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

LIMIT = 64 << 20
SHARE = 50
PIECE = 64 << 10
# It grows by one piece in so many seconds: 32 MiB a second.
PAUSE = 0.002
# So many seconds after its beginning a program may grow: by then hold has found the step.
LEAST = 9


def memory(pid="self"):
    """The directory of this process that counts its memory, and the files of the counter, by version."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path(f"/sys/fs/cgroup/memory{path}"), "memory.usage_in_bytes", "total_"
    for mount in "/sys/fs/cgroup", "/sys/fs/cgroup/unified":
        here = Path(f"{mount}{path}")
        if (here / "memory.current").exists():
            return here, "memory.current", ""
    sys.exit("word.py: no directory counts the memory of this process")


def grow(least, file):
    """In the fence: says in JSON how long the signal took. `file`: what fills the page cache first, if anything."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    input()
    here, counter, before = memory()
    share = LIMIT * SHARE // 100
    table = open(here / "memory.stat", "rb", buffering=0)

    def cached():
        """What hold takes away: page cache of files."""
        stat = dict(line.split() for line in os.pread(table.fileno(), 1 << 16, 0).decode().splitlines())
        return sum(int(stat[f"{before}{key}"]) for key in ("inactive_file", "active_file"))

    if file:
        with open(file, "wb") as written:
            for _ in range(share // PIECE * 5 // 4):
                written.write(bytes(PIECE))
            os.fsync(written.fileno())
    files = cached()
    kept = [b"x" * (share * 3 // 4 - int((here / counter).read_text()) + files)]
    # Long enough for hold to have found the step, and at no phase of its looks.
    time.sleep(least + random.random() * 10)
    with open(here / counter, "rb", buffering=0) as used:
        crossed = None
        while True:
            kept.append(b"x" * PIECE)
            now = time.monotonic_ns()
            if crossed is None and int(os.pread(used.fileno(), 32, 0)) - (cached() if file else files) >= share:
                crossed = now
            if signal.sigtimedwait({signal.SIGUSR1}, PAUSE):
                break
            if sum(map(len, kept)) > LIMIT * 8 // 10:
                # It grows no more, and its signal comes all the same.
                if not signal.sigtimedwait({signal.SIGUSR1}, 60):
                    sys.exit("word.py: no signal for a minute")
                break
    heard = time.monotonic_ns()
    print(json.dumps({"ms": None if crossed is None else (heard - crossed) / 1e6}))


def crossings(directory, arguments, jobfence, before):
    """Those of so many jobs at once."""
    running = []
    program = directory / "word.py"
    program.write_text(Path(__file__).read_text())
    for number in range(before, before + arguments.at_once):
        job, errors = f"word{os.getpid()}-{number}", open(directory / f"errors.{number}", "w+")
        os.fchmod(errors.fileno(), 0o666)
        cache = directory / f"cache.{number}"
        cache.touch()
        cache.chmod(0o666)
        grows_with = ["--file", str(cache)] if arguments.polled else []
        jobfence("open", "--job", job, "--user", arguments.user, "--mem", f"{LIMIT >> 20}M", "-o", f"SignalAt=mem:{SHARE}%:USR1")
        command = ["/usr/bin/python3", "-B", "-S", str(program), "--grow", str(LEAST), *grows_with]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd="/",
                               user=arguments.user, group="nogroup", extra_groups=[])
        jobfence("attach", "--job", job, str(one.pid))
        running.append((job, one, errors))
    for _, one, _ in running:
        one.stdin.write("\n")
        one.stdin.flush()
    for job, one, errors in running:
        said = one.communicate()[0]
        errors.seek(0)
        told = errors.read()
        jobfence("close", "--job", job)
        if one.returncode or told.count(" uses ") != 1:
            sys.exit(f"word.py: a program ended with {one.returncode} and said {said!r}; it read {told!r}")
        yield json.loads(said)["ms"]


def at(values, share):
    """The least value that so much of all is not above."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default="jobfence", help="the program (default: %(default)s)")
    parser.add_argument("--option", action="append", default=[], help="an -o of each of its commands; with any, hold is started here")
    parser.add_argument("--count", type=int, default=100, help="crossings (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=10, help="programs at once (default: %(default)s)")
    parser.add_argument("--user", default="nobody")
    parser.add_argument("--polled", action="store_true", help="on v1: with page cache above the share, so hold looks as on v2")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--grow", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grow is not None:
        return grow(arguments.grow, arguments.file)
    options = [word for option in arguments.option for word in ("-o", option)]

    def jobfence(command, *words):
        return subprocess.run([arguments.bin, command, *words, *options], check=True, stdout=subprocess.PIPE, text=True)

    hold = subprocess.Popen([arguments.bin, "hold", *options]) if options else None
    found = []
    try:
        time.sleep(2 if hold else 0)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            os.chmod(directory, 0o755)
            while len(found) < arguments.count:
                found += crossings(Path(directory), arguments, jobfence, len(found))
    finally:
        if hold:
            hold.terminate()
            hold.wait()
    # None: the signal was there before this program itself had seen the crossing.
    times = [0.0 if one is None else one for one in found]
    where, counter, _ = memory()
    print(f"{len(times)} crossings, {os.uname().release}, {counter}: median {at(times, 0.5):.1f} ms, p90 {at(times, 0.9):.1f} ms, "
          f"p99 {at(times, 0.99):.1f} ms, most {max(times):.1f} ms, none seen before its signal {found.count(None)}")
    print(" ".join(f"{one:.1f}" for one in sorted(times)))


if __name__ == "__main__":
    main()
