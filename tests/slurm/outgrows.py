# SPDX-License-Identifier: GPL-2.0-or-later
"""A program that needs so many MiB at once: outgrows.py KIND SEED MIB WAIT FILE

Each block of 1 MiB is full of one byte, which follows from the one before it. When it has all, it prints what it finds in them. WAIT is for
how many seconds it waits for what helps it, and FILE is how the files begin that it may make.
"""

import mmap
import os
import signal
import sys
import time

MIB = 1 << 20
PROCESSES = 7  # of a tree
# Seconds of CPU time for a block that is worth saving, on any machine: what is lost is about what it takes to begin.
WORK = max(0.05, 3 * time.process_time())
AHEAD = 2 * MIB
# A share of what it needs for the first time, at which a program that saves waits for the word. It is told before that.
TOLD_BY = 0.3


def following(byte, number):
    return (byte * 73 + number + 1) % 251 + 1


def chain(seed, count):
    every = []
    for number in range(count):
        every.append(following(every[-1] if every else seed % 251, number))
    return every


def block(byte):
    return bytes([byte]) * MIB


def found_in(blocks):
    """What each of them is full of; 0 for one that is not full of one byte."""
    return bytes(one[MIB // 2] if one.count(one[MIB // 2:MIB // 2 + 1]) == MIB else 0 for one in blocks)


def fill(mapped, seed, mib):
    for number, byte in enumerate(chain(seed, mib)):
        mapped[number * MIB:(number + 1) * MIB] = block(byte)
    return found_in(mapped[number * MIB:(number + 1) * MIB] for number in range(mib))


def fast(seed, mib, *_):
    """One block after the other."""
    return found_in([block(byte) for byte in chain(seed, mib)])


def call(seed, mib, *_):
    """All in one call."""
    return fill(mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE), seed, mib)


def mapped(seed, mib, wait, path):
    """A file in memory, which it changes for itself."""
    with open(f"{path}.mapped", "w+b") as file:
        os.unlink(file.name)
        file.truncate(mib * MIB)
        return fill(mmap.mmap(file.fileno(), mib * MIB, mmap.MAP_PRIVATE), seed, mib)


def own_memory():
    """The limit of its cgroup, and what it has in use there without page cache. Some runtimes look at that, too."""
    for line in open("/proc/self/cgroup"):
        _, controllers, path = line.rstrip().split(":", 2)
        place = f"/sys/fs/cgroup/memory{path}" if controllers == "memory" else f"/sys/fs/cgroup{path}"
        for limit, used in ("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"):
            if controllers in ("", "memory") and os.path.exists(f"{place}/{limit}"):
                stat = dict(line.split() for line in open(f"{place}/memory.stat"))
                cached = sum(int(stat.get(f"total_{name}", stat[name])) for name in ("inactive_file", "active_file"))
                most = open(f"{place}/{limit}").read().strip()
                return int(most) if most != "max" else 1 << 62, int(open(f"{place}/{used}").read()) - cached
    raise SystemExit("no limit of memory is to be seen")


def has_room():
    limit, used = own_memory()
    return limit - used >= AHEAD


def until(is_so, wait):
    end = time.monotonic() + wait
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)


def slow(seed, mib, wait, _):
    """One block after the other, when there is room for it."""
    blocks = []
    for byte in chain(seed, mib):
        until(has_room, wait)
        blocks.append(block(byte))
    return found_in(blocks)


def tree(seed, mib, *_):
    """Processes that have it together, and speak when all of them have their parts."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    go, going = os.pipe()

    def process(number, up=None):
        below = []
        for child in range(2 * number + 1, min(2 * number + 3, PROCESSES)):
            heard, says = os.pipe()
            if os.fork() == 0:
                # Who waits for a process that was killed hears the end of its pipe: nobody else has that open.
                os.close(heard)
                os.close(going if number == 0 else up)
                process(child, says)
                os._exit(0)
            os.close(says)
            below.append(open(heard))
        blocks = [block(byte) for byte in chain(seed, mib)[number::PROCESSES]]
        if not all(child.readline() == "ready\n" for child in below):
            os._exit(1)
        if number == 0:
            os.close(going)
        else:
            os.write(up, b"ready\n")
            os.read(go, 1)
        parts = [f"{number}:{found_in(blocks).hex()}\n", *(line for child in below for line in child)]
        if number:
            os.write(up, "".join(parts).encode())
        return dict(line.strip().split(":") for line in parts)

    parts, every = process(0), bytearray(mib)
    for number in range(PROCESSES):
        every[number::PROCESSES] = bytes.fromhex(parts[str(number)])
    return bytes(every)


def saves(seed, mib, wait, path):
    """Works for each block, and from the word on that its memory ends it saves what it has found. A later run goes on from there."""
    told = False

    def hear(*_):
        nonlocal told
        told = True

    def note(what, count):
        # The numbers of this run, for who counts: CPU time is that of this process.
        os.write(notes, f"{os.environ.get('SLURM_RESTART_COUNT', 0)} {what} {count} {time.process_time()}\n".encode())

    signal.signal(signal.SIGUSR1, hear)
    notes = os.open(f"{path}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    state = os.open(f"{path}.state", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    every = list(os.read(state, mib))
    blocks, saved = [block(byte) for byte in every], len(every)
    told = saved > 0
    note("begins", saved)
    while len(every) < mib:
        until_cpu = time.process_time() + WORK
        while time.process_time() < until_cpu:
            pass
        every.append(following(every[-1] if every else seed % 251, len(every)))
        blocks.append(block(every[-1]))
        if len(every) == int(TOLD_BY * mib):
            until(lambda: told, wait)
        if told:
            os.write(state, bytes(every[saved:]))
            saved = len(every)
            note("saved", saved)
    return found_in(blocks)


if __name__ == "__main__":
    kind, seed, mib, wait, path = sys.argv[1:]
    found = globals()[kind](int(seed), int(mib), float(wait), path)
    print("has", found.hex(), flush=True)
