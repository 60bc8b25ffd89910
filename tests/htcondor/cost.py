#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the start of a job costs under HTCondor, counted: cost.py [--jobs N] [--rounds N], in a virtual machine where `start` has run.

By the kernel's trace of what the startd starts: system calls, processes and programs of jobfence, from its exec to that of the starter. Then the
time of many jobs that do nothing, with jobfence and without, in turn.
"""

import argparse
import re
import statistics
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import sites as shared  # noqa: E402
from contract.sites import until  # noqa: E402

from htcondor import sites  # noqa: E402

TRACING = Path("/sys/kernel/tracing")
EVENTS = "raw_syscalls/sys_enter", "sched/sched_process_exec", "sched/sched_process_fork"
LINE = re.compile(r"\s*.+-(?P<pid>\d+)\s+\[\d+\]\s.*?\s(?P<time>\d+\.\d+): (?P<event>\w+): (?P<rest>.*)")
OURS, THEIRS = "/jobfence", "/condor_starter"


def traced(site, act):
    """What the startd and all that it has started did meanwhile."""
    def write(name, text):
        (TRACING / name).write_text(text)
    write("buffer_size_kb", "32768")
    write("trace", "")
    write("options/event-fork", "1")
    write("set_event_pid", str(site.startd_pid()))
    for event in EVENTS:
        write(f"events/{event}/enable", "1")
    try:
        act()
    finally:
        for event in EVENTS:
            write(f"events/{event}/enable", "0")
    return [found.groupdict() for line in (TRACING / "trace").read_text(errors="replace").splitlines() if (found := LINE.match(line))]


def doors(trace):
    """Of each jobfence that became a starter: its system calls, those of what it has started, processes, programs, and milliseconds."""
    found, living = [], {}
    for line in trace:
        pid, rest, now = int(line["pid"]), line["rest"], float(line["time"])
        if line["event"] == "sched_process_exec":
            program = re.search("filename=(\\S+)", rest)[1]
            if pid in living and living[pid]["pid"] == pid and program.endswith(THEIRS):
                door = living.pop(pid)
                door["ms"] = (now - door.pop("began")) * 1000
                living = {one: other for one, other in living.items() if other is not door}
                found.append(door)
            elif pid in living:
                living[pid]["programs"].append(program.rsplit("/", 1)[1])
            elif program.endswith(OURS):
                living[pid] = {"pid": pid, "began": now, "own": 0, "others": 0, "processes": 0, "programs": []}
        elif pid in living:
            door = living[pid]
            if line["event"] == "sched_process_fork":
                door["processes"] += 1
                living[int(re.search("child_pid=(\\d+)", rest)[1])] = door
            else:
                door["own" if door["pid"] == pid else "others"] += 1
    return found


def many(site, jobs):
    """Seconds until so many jobs that do nothing are over."""
    began = time.monotonic()
    jobid = site.submit("alice", "true", queue=jobs)
    until(lambda: not site.queued(jobid), 600, "the end of all jobs")
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    shared.PATIENCE = 6
    with sites.InstalledHTCondor() as site:
        # Of the first job in a slot, some is asked that is kept then.
        found = doors(traced(site, lambda: [many(site, 1) for _ in range(4)]))
        for door in found:
            print(f"{door['own']} system calls of its own, {door['others']} of others, {door['processes']} processes, "
                  f"programs: {', '.join(door['programs']) or 'none'}; {door['ms']:.1f} ms", flush=True)
        times = {"with": [], "without": []}
        for _ in range(options.rounds):
            times["with"].append(many(site, options.jobs))
            with site.changed(STARTER="/usr/sbin/condor_starter"):
                times["without"].append(many(site, options.jobs))
            print({name: f"{all[-1]:.1f} s" for name, all in times.items()}, flush=True)
        medians = {name: statistics.median(all) for name, all in times.items()}
        print(f"{options.jobs} jobs: {medians['with']:.1f} s with jobfence, {medians['without']:.1f} s without")
    return 0


if __name__ == "__main__":
    sys.exit(main())
