#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a node does with and without scavengers: units of work, and what its owners notice of it.

Needs root. Owners replay a trace in windows, which come in pairs: one without scavengers and one with them, with the same trace. It prints
ratios of the two. What is not known here it says. `jobfence hold` must be built for tests, since five minutes take less there (--speed).
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path[:0] = [str(Path(__file__).resolve().parent / "share"), str(Path(__file__).resolve().parent)]

import chart  # noqa: E402
import figures  # noqa: E402
import shapes  # noqa: E402
import work  # noqa: E402
from node import Node  # noqa: E402

GRANT = 64  # MiB of a scavenger, at most a sixteenth of the node
DATA = 13  # a scavenger first loads such a part of the node
RESERVE = 10  # percent of the node
AGAIN = 1.0  # seconds until a scheduler starts a scavenger again that was ended
SAMPLES = 0.25
LATE = 600  # a window that takes so much longer is a hang


class Window:
    """One window, as it goes on."""

    def __init__(self, node, shape, seed, scavengers, first, grant):
        self.node, self.shape, self.seed, self.first, self.grant = node, shape, seed, first, grant
        self.found = {"seed": seed, "scavengers": scavengers, "owners": [[] for _ in range(shape.owners)], "units": [], "ends": [],
                      "samples": [], "refused": [], "seconds": shape.seconds}
        self.running, self.due, self.loaded = {}, [0.0] * scavengers, 0
        self.begin = self.by_hold = 0.0

    def run(self, owners):
        self.by_hold = self.node.used_by_hold()
        self.begin = self.found["begin"] = time.monotonic() + 0.5
        for owner, actions in zip(owners, shapes.window(self.shape, self.seed)):
            owner.hears(json.dumps({"start": self.begin, "actions": actions}))
        time.sleep(max(self.begin - time.monotonic(), 0))
        is_over, sampled = [False] * len(owners), 0.0
        while (now := time.monotonic() - self.begin) < self.shape.seconds or not all(is_over):
            if now > self.shape.seconds + LATE:
                sys.exit("share: an owner does not come to its end")
            for number, owner in enumerate(owners):
                said = owner.said()
                if said is None:
                    sys.exit(f"share: {owner.name} has ended with {owner.process.wait()}: {self.node.errors(owner.name)}")
                self.found["owners"][number] += said
                is_over[number] |= any("ended" in line for line in said)
            if now < self.shape.seconds:
                self.scavenge(now)
            elif self.running:
                self.stop(now)
            if now - sampled >= SAMPLES:
                self.found["samples"].append([now, sum(self.node.used(owner.name) for owner in owners),
                                              sum(self.node.used(job.name) for job in self.running.values())])
                sampled = now
            time.sleep(0.02)
        return self.finish()

    def scavenge(self, now):
        """Reads what scavengers have done, and starts those that are due."""
        for place, job in list(self.running.items()):
            said = job.said()
            if said is None:
                cpu = self.node.close(job.name)
                self.found["ends"].append({"job": job.name, "at": now, "cpu": cpu})
                del self.running[place]
                self.due[place] = now + AGAIN
            else:
                self.found["units"] += [line | {"job": job.name} for line in said if "kind" in line]
        for place, due in enumerate(self.due):
            if place not in self.running and due <= now:
                name = str(self.first + self.loaded)
                self.loaded += 1
                job = self.node.starts(name, True, self.grant, "scavenge", str(self.node.place), name, str(self.node.mib // DATA), *sorted(self.shape.costs))
                job.hears("go")
                self.running[place] = job
                return  # owners are heard between two starts

    def stop(self, now):
        for job in self.running.values():
            self.found["units"] += [line | {"job": job.name} for line in job.said() or [] if "kind" in line]
            self.found["ends"].append({"job": job.name, "at": now, "cpu": self.node.close(job.name), "why": "window"})
        self.running = {}

    def finish(self):
        self.stop(self.shape.seconds)
        if self.node.hold.poll() is not None:
            sys.exit(f"share: 'jobfence hold' has ended: {self.node.said()}")
        self.found["hold"] = self.node.used_by_hold() - self.by_hold
        killed, by_hold = self.node.names_killed(self.begin), self.node.ended_by_hold()
        for end in self.found["ends"]:
            end.setdefault("why", "hold" if end["job"] in by_hold else next(iter(killed.get(end["job"], ["unknown"]))))
        owners = {f"owner{number}" for number in range(self.shape.owners)}
        self.found["refused"] += [f"{name} was killed by the kernel" for name in killed if name in owners]
        self.found["killed_units"] = {why: sum(whys.count(why) for name, whys in killed.items() if name not in owners) for why in ("own", "node")}
        return self.found


def measure(options):
    cpus = set(sorted(os.sched_getaffinity(0))[: options.cpus])
    owners, scavengers = len(cpus), options.scavengers or len(cpus)
    mib = options.memory or min(2048 * max(len(cpus) // 2, 1), free() // 2)
    grant = min(GRANT, mib // 16)
    with Node(options.bin, mib, cpus, RESERVE, options.speed, options.weight) as node:
        work.make(node.place)
        (node.place / "part").write_bytes((node.place / "words").read_bytes()[:2500000])
        known = node.calibrated(options.calibrate)
        reserved = (mib * (100 - RESERVE) // 100 - scavengers * grant) // owners
        count = options.windows
        shape = shapes.Shape(owners, reserved, options.minutes * 60 / count, {kind: one["cpu"] for kind, one in known.items()},
                            {kind: one["mib"] for kind, one in known.items()})
        jobs = [node.starts(f"owner{number}", False, reserved, "own", str(node.place)) for number in range(owners)]
        node.bounds()
        windows = []
        for number in range(count):
            windows.append(Window(node, shape, options.seed + number // 2, scavengers * (number % 2), 1000 * (number + 1), grant).run(jobs))
            print(f"window {number + 1} of {count} is over", file=sys.stderr, flush=True)
        said = {"node": {"mib": mib, "cpus": len(cpus), "owners": owners, "reserved": reserved, "scavengers": scavengers, "grant": grant,
                         "release": os.uname().release, "version": 2 if (node.top / "memory.max").exists() else 1, "speed": options.speed,
                         "costs": shape.costs},
                "pid": os.getpid(), "windows": windows}
        if options.keep:
            options.keep.write_text(json.dumps(said | {"said": node.said()}))
    return said


def free():
    """MiB that nobody uses."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) // 1024


def ended(number, _):
    """By a signal: with what is to be tidied up, and once. Whoever ends a group of processes may signal twice."""
    for each in signal.SIGTERM, signal.SIGINT:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default="target/debug/jobfence", help="the jobfence command, built for tests [%(default)s]")
    parser.add_argument("--minutes", type=float, default=4, help="of all windows together [%(default)s]")
    parser.add_argument("--windows", type=int, help="without and with scavengers, in turn [one for each minute]")
    parser.add_argument("--seed", type=int, default=1, help="of the trace [%(default)s]")
    parser.add_argument("--cpus", type=int, default=4, help="of the node at most [%(default)s]")
    parser.add_argument("--memory", type=int, metavar="MIB", help="of the node [1 GiB for each CPU, and at most half of what is free]")
    parser.add_argument("--scavengers", type=int, help="at once [one for each CPU]")
    parser.add_argument("--speed", type=float, default=30, help="how many times faster than a clock five minutes pass; 1 for a release build")
    parser.add_argument("--weight", type=int, default=100, help="of the node's CPU time beside everything else on this machine [%(default)s]")
    parser.add_argument("--calibrate", type=int, default=2, help="runs of each unit before [%(default)s]")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="what was found, in JSON")
    parser.add_argument("--from", dest="given", type=Path, metavar="FILE", help="print what an earlier --keep has found, and measure nothing")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="a picture of it, in SVG")
    options = parser.parse_args()
    options.windows = options.windows or 2 * max(round(options.minutes / 2), 1)
    if options.windows < 2 or options.windows % 2:
        parser.error("--windows must be even")
    if not options.given and os.geteuid() != 0:
        sys.exit("this needs root")
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, ended)
    said = json.loads(options.given.read_text()) if options.given else measure(options)
    sums = figures.sums(said)
    figures.show(sums)
    if options.chart:
        options.chart.write_text(chart.drawn(said, sums))


if __name__ == "__main__":
    main()
