#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence at work, in a private Slurm on this machine: what `make demo` runs.

    python3 demo.py --so target/release/libjobfence.so --bin target/release/jobfence

Needs root, Slurm and munge installed (none of it running), and touches none of their
configuration. Every claim is checked, in the kernel's files where it is about processes and
limits: the exit status is not 0 if one of them is not so.
"""

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from contract import kernel, sites  # noqa: E402
from contract.sites import SiteError, die_properly, until  # noqa: E402
from slurm.sites import PrivateSite  # noqa: E402
from contract.runner import Claims  # noqa: E402
from slurm.suite.limits import is_held_back, use_of_quotas  # noqa: E402

MIB = 1 << 20
SPIN = "for i in 1 2 3 4; do while :; do :; done & done; wait"
EAT = "/usr/bin/python3 -S -c 'b = [bytes([i + 1]) * (8 << 20) for i in range(100)]'; sleep 300"


class Demo(Claims):
    def submit(self, script, *args):
        shown = script if len(script) < 70 else script[:67] + "…"
        print(f"   $ sbatch {' '.join(args)} --wrap \"{shown}\"     (as {self.site.users[0]})")
        return self.site.submit(self.site.users[0], script, *args)

    def show(self, path):
        print(f"   {path}: {kernel.read(path)}")

    def step(self, jobid):
        """The group in which the kernel holds the job's batch step."""
        def found():
            groups = map(kernel.Group.of, self.site.job_pids(jobid))
            return next((g for g in groups if g and g.name == "step_batch"), None)
        return until(found, 10, f"job {jobid} in a cgroup of its own")

    # -- the acts -------------------------------------------------------------------------

    def limits(self):
        self.head("A job that was granted one CPU and 200 MiB")
        jobid = self.submit("sleep 300", "-c1", "--mem=200")
        step = self.step(jobid)
        pid = until(lambda: self.site.job_pids(jobid, "sleep"), 10, "its process")[0]
        print(f"   /proc/{pid}/cgroup of its process says {step.path}")
        for group in (step.parent, step):
            if kernel.has_v2_controllers():
                names = (("cpu", "cpu.max"), ("memory", "memory.max"))
            else:
                names = (("cpu", "cpu.cfs_quota_us"), ("memory", "memory.limit_in_bytes"))
            for controller, name in names:
                self.show(group.limits_directory(controller) / name)
            self.check(group.cpu_limit() == 1.0 and group.memory_limit() == 200 * MIB,
                       f"{group.name} may use one CPU and 200 MiB")
        self.site.scancel(jobid)
        self.site.wait(jobid)

    def quota(self):
        self.head("Four spinning processes in a job that was granted one CPU")
        jobid = self.submit(SPIN, "-c1", "--mem=200")
        job = self.step(jobid).parent
        until(lambda: len(job.members(below=True)) >= 5, 10, "the spinners")
        used, throttled = use_of_quotas(self.site, job, periods=20)[0]
        print(f"   the kernel charged {job.path} {used:.2f} s of CPU time in each second")
        self.check(used <= 1.05, f"they used no more than the one CPU, of {os.cpu_count()} that are there")
        if used >= 0.95:
            self.check(True, "and no less")
        else:
            # A busy machine gives less than the fence allows: that is no fence's fault which allows it, and nothing was idle.
            self.check(job.cpu_limit() == 1.0 and not is_held_back(used, throttled, 1),
                       f"and no less than this busy machine let them use (held back in {throttled:.0%} of the time)")
        self.site.scancel(jobid)
        self.site.wait(jobid)

    def memory(self):
        self.head("A job that takes more memory than it asked for")
        jobid = self.submit(EAT, "-c1", "--mem=200")
        step = self.step(jobid)
        # The shell outlives the kill, so that its cgroup can still be looked at.
        until(lambda: self.site.job_pids(jobid, "sleep"), 30, "the end of its python3")
        directory = step.limits_directory("memory")
        if kernel.has_v2_controllers():
            names = ("memory.max", "memory.peak", "memory.events")
        else:
            names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")
        for name in names:
            shown = kernel.read(directory / name).replace("\n", ", ")
            print(f"   {directory / name}: {shown}")
        self.check("oom_kill 1" in kernel.read(directory / names[2]), "the kernel has killed one process of it")
        peak = kernel.read(directory / names[1])
        # Linux before 5.19 does not keep it in cgroup v2.
        self.check(not peak or 190 * MIB <= int(peak) <= 200 * MIB,
                   "when it had all of its memory, and not more")
        self.site.scancel(jobid)
        self.site.wait(jobid)
        until(lambda: not self.site.step_daemons(jobid), 5, "the end of the step")
        said = self.site.output(jobid)
        print(f"   its output file, {jobid}.out:")
        for line in said.splitlines():
            print(f"   | {line}")
        sentence = (r"process \d+ \(python3\) was killed: the (job|step) reached its memory limit "
                    r"of 200\.0 MiB" + (r" \(peak use (19\d|200)\.\d MiB(, \d+ % of it cached files)?\)" if peak else ""))
        self.check(re.search(sentence, said), "its owner is told which process, why, and how much")

    def emptiness(self):
        self.head("Afterwards")
        until(self.site.idle_again, 20, "the end of every job")
        with contextlib.suppress(AssertionError):
            until(lambda: not self.site.leftovers(), 30, "a clean tree")
        left = self.site.leftovers()
        for directory in kernel.Group("/" + self.site.base).directories():
            below = sorted(p.name for p in directory.iterdir() if p.is_dir())
            print(f"   directories in {directory}: {' '.join(below) or 'none'}")
        for one in left:
            print(f"   left: {one}")
        self.check(not left, "no directory, process or record of a job is left")
        self.check(self.site.node_state() == "IDLE", "the node is idle")

    def log(self):
        self.head("What slurmd's log says of it")
        lines = [line for line in self.site.log_since(0).splitlines()
                 if "jobfence:" in line and " ended:" in line]
        for line in lines:
            print("   " + line[line.index("jobfence:"):])
        self.check(len(lines) == 3, "one line for each step")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--so", required=True, help="the plugin")
    parser.add_argument("--bin", required=True, help="the jobfence command")
    parser.add_argument("--patience", type=float, default=1, metavar="FACTOR", help="by which this machine is slower than others")
    options = parser.parse_args()
    sites.PATIENCE = options.patience
    if os.geteuid() != 0:
        sys.exit("the demo starts a Slurm of its own and needs to be root for it")
    if not Path(options.so).is_file():
        sys.exit(f"there is no {options.so}: build it first")
    die_properly()
    print(f"Starting a private Slurm ({kernel.layout()}, {os.cpu_count()} CPUs)…", flush=True)
    try:
        with PrivateSite(options.so, options.bin) as site:
            demo = Demo(site)
            for act in (demo.limits, demo.quota, demo.memory, demo.emptiness, demo.log):
                act()
    except (AssertionError, SiteError) as error:
        print(f"\nThe demo cannot go on: {error}")
        return 1
    print("\nAll of it is so, and the private Slurm has gone." if not demo.untrue
          else f"\n{demo.untrue} of it is not so.")
    return 1 if demo.untrue else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
