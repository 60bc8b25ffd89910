#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence at work, in a private OpenPBS on this machine: what `make demo SCHEDULER=openpbs OPENPBS=DIR` runs.

    OPENPBS=DIR python3 demo.py --so target/release/libjobfence.so --bin target/release/jobfence

DIR is the tree of an installed OpenPBS that was never started. Needs root, and touches no configuration of the machine.
Every claim is checked, in the kernel's files where it is about processes and limits, and in qstat where it is about what
was granted or used: the exit status is not 0 if one of them is not so.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pbs import harness, sites  # noqa: E402
from contract import kernel  # noqa: E402
from contract import sites as shared  # noqa: E402
from contract.harness import EAT  # noqa: E402
from contract.runner import Claims  # noqa: E402
from contract.sites import SiteError, die_properly, until  # noqa: E402

USER = "alice"
SPIN = "for i in 1 2 3 4; do while :; do :; done & done; sleep 300"
LACKS = 77  # for make: this machine lacks something


class Demo(Claims):
    def submit(self, script, *args):
        shown = script if len(script) < 60 else script[:57] + "…"
        print(f"   $ echo '{shown}' | qsub {' '.join(args)}     (as {USER})")
        return self.site.submit(USER, script, *args)

    def end(self, jobid):
        self.site.qdel(jobid)
        return self.site.wait(jobid)

    # -- the acts -------------------------------------------------------------------------

    def limits(self):
        self.head("A job that was granted one CPU and 200 MB")
        jobid = self.submit("setsid sleep 300 & sleep 300", "-lselect=1:ncpus=1:mem=200mb")
        group = harness.fenced(self.site, jobid)
        job = group.parent
        until(lambda: len(group.members()) >= 3, 10, "the job's processes")
        pids = sorted(group.members())
        print(f"   /proc/{pids[0]}/cgroup of its shell says {group.path}")
        cpus, kib = sites.granted(self.site.job(jobid))[self.site.node]
        print(f"   qstat -f says exec_vnode = {self.site.job(jobid)['exec_vnode']}")
        self.check((job.cpu_limit(), job.memory_limit()) == (float(cpus), kib * 1024),
                   "the kernel's limits of the job are what qstat says was granted")
        self.head("The job is deleted; one of its processes has a session of its own")
        self.end(jobid)
        until(lambda: not job.exists(), 10, "the end of the fence")
        self.check(not any(map(kernel.is_alive, pids)), "all of its processes have gone")

    def suspend(self):
        self.head("Four spinning processes in a job that was granted one CPU, and is then suspended")
        jobid = self.submit(SPIN, "-lselect=1:ncpus=1:mem=200mb")
        job = harness.fenced(self.site, jobid).parent
        until(lambda: len(job.members(below=True)) >= 5, 10, "the spinners")
        began, before = time.monotonic(), job.cpu_seconds()
        time.sleep(3)
        used = (job.cpu_seconds() - before) / (time.monotonic() - began)
        print(f"   the kernel charged {job.path} {used:.2f} s of CPU time in each second")
        self.check(used <= 1.05, f"they used no more than the one CPU, of {os.cpu_count()} that are there")
        print("   $ qsig -s suspend")
        self.site.qsig(jobid, "suspend")
        until(lambda: harness.is_frozen(job.step("step_1")), 10, "the freeze")
        before = job.cpu_seconds()
        time.sleep(1)
        self.check(job.cpu_seconds() - before < 0.01, "frozen, they use none")
        print("   $ qsig -s resume")
        self.site.qsig(jobid, "resume")
        until(lambda: job.cpu_seconds() - before > 0.1, 10, "the job's going on")
        self.check(True, "thawed, they go on")
        ended = self.end(jobid)
        shown = {name: ended.get(f"resources_used.{name}") for name in ("cput", "cpupercent", "mem", "vmem")}
        print(f"   qstat -xf says resources_used {shown}")
        self.check(sites.seconds_of(shown["cput"]) >= 3, "PBS has the CPU time that the kernel has counted")

    def memory(self):
        self.head("A job that takes more memory than it asked for")
        jobid = self.submit(f"{EAT}; sleep 1", "-lselect=1:ncpus=1:mem=100mb")
        self.site.wait(jobid)
        said = self.site.told(jobid)
        for line in said.splitlines():
            print(f"   | {line}")
        self.check(re.search(r"process \d+ \(python3\) was killed: the job reached its memory limit of 100\.0 MiB", said),
                   "its owner is told which process, why, and how much, in the job's own stderr")

    def wrong_configuration(self):
        self.head("jobfence.conf of the node is wrong")
        right = self.site.config.read_text()
        self.site.config.write_text(f"{right}MaxProcesses=many\n")
        mark = self.site.log_mark()
        jobid = self.submit("sleep 300", "-lselect=1:ncpus=1:mem=100mb")
        job = self.site.wait_state(jobid, "H")
        print(f"   qstat -f says comment = {job['comment']}")
        said = [line for line in self.site.log_since(mark).splitlines() if "MaxProcesses" in line]
        print(f"   MoM's log says {said[-1] if said else 'nothing'}")
        self.check(said, "the job is held, and MoM's log says which line of jobfence.conf is wrong")
        self.check(not self.site.job_pids(jobid), "the job does not run without its limits")
        self.check("offline" not in self.site.node_state(), f"the node stays in service: {self.site.node_state()}")
        self.site.config.write_text(right)
        self.site.qdel(jobid)

    def emptiness(self):
        self.head("Afterwards")
        until(self.site.idle_again, 30, "the end of every job")
        deadline = time.monotonic() + 5
        while (left := self.site.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for one in left:
            print(f"   left: {one}")
        self.check(not left, "no directory, process or record of a job is left")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--so", required=True, help="the library")
    parser.add_argument("--bin", required=True, help="the jobfence command")
    parser.add_argument("--patience", type=float, default=1, metavar="FACTOR", help="by which this machine is slower than others")
    options = parser.parse_args()
    shared.PATIENCE = options.patience
    if os.geteuid() != 0:
        sys.exit("the demo starts an OpenPBS of its own and needs to be root for it")
    die_properly()
    print(f"Starting a private OpenPBS ({kernel.layout()}, {os.cpu_count()} CPUs)…", flush=True)
    try:
        with sites.PrivatePbs(options.so, options.bin) as site:
            site.fence()
            demo = Demo(site)
            for act in (demo.limits, demo.suspend, demo.memory, demo.wrong_configuration, demo.emptiness):
                act()
    except sites.Lacks as what:
        print(f"demo: {what}")
        return LACKS
    except (AssertionError, SiteError) as error:
        print(f"\nThe demo cannot go on: {error}")
        return 1
    print("\nAll of it is so, and the private OpenPBS has gone." if not demo.untrue else f"\n{demo.untrue} of it is not so.")
    return 1 if demo.untrue else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
