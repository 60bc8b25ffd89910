#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence at work, in the Grid Engine of a virtual machine: what `make demo SCHEDULER=gridengine` runs there.

Every claim is checked, in the kernel's files where it is about processes and limits, and in qstat and qacct where it is
about what was granted or used: the exit status is not 0 if one of them is not so.
"""

import os
import re
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gridengine import harness, sites  # noqa: E402
from gridengine.suite.limits import EAT  # noqa: E402
from contract import kernel  # noqa: E402
from contract import sites as shared  # noqa: E402
from contract.runner import Claims  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402

USER = "alice"
SPIN = "for i in 1 2 3 4; do sh -c 'while :; do :; done' & done; sleep 300"


class Demo(Claims):
    def submit(self, script, *args):
        shown = script if len(script) < 60 else script[:57] + "…"
        print(f"   $ echo '{shown}' | qsub {' '.join(args)}     (as {USER})")
        return self.site.submit(USER, script, *args)

    # -- the acts -------------------------------------------------------------------------

    def limits(self):
        self.head("A job with two slots, and 100 MB for each")
        jobid = self.submit(f"{harness.ESCAPEE}; sleep 300", *harness.ask(2, 200))
        job = harness.fenced(self.site, jobid).parent
        who = harness.escapee_of(self.site, jobid, USER)
        print(f"   qstat says {self.site.slots(jobid)} slots and {self.site.job(jobid)['hard resource_list']}")
        print(f"   the kernel says {job.cpu_limit():g} CPUs and {job.memory_limit() >> 20} MiB for {job.path}")
        self.check((job.cpu_limit(), job.memory_limit()) == (self.site.slots(jobid) * 1.0, 200 << 20),
                   "the kernel's limits of the job are what qmaster has granted")
        self.head("The job is deleted; one of its processes has a session of its own")
        self.site.qdel(jobid)
        self.site.wait(jobid)
        self.check(not job.exists() and kernel.identity(who[0]) != who, "all of its processes and its fence have gone")

    def suspend(self):
        self.head("Four spinning processes in a job with one slot, which is then suspended")
        jobid = self.submit(SPIN)
        group = harness.fenced(self.site, jobid)
        until(lambda: len(group.members()) >= 6, 20, "the spinners")
        began, before = time.monotonic(), group.cpu_seconds()
        time.sleep(4)
        used = (group.cpu_seconds() - before) / (time.monotonic() - began)
        print(f"   the kernel charged {group.path} {used:.2f} s of CPU time in each second")
        self.check(used <= 1.05, f"they used no more than the one CPU, of {os.cpu_count()} that are there")
        print("   $ qmod -sj")
        self.site.qmod("-sj", jobid)
        until(lambda: harness.is_frozen(group), 20, "the freeze")
        before = group.cpu_seconds()
        time.sleep(1)
        self.check(group.cpu_seconds() - before < 0.01, "frozen, they use none")
        self.site.qmod("-usj", jobid)
        until(lambda: group.cpu_seconds() - before > 0.1, 20, "the job's going on")
        self.check(True, "resumed, they go on")
        self.site.qdel(jobid)
        row = self.site.wait(jobid)
        print(f"   qacct says ru_utime {row['ru_utime']}, ru_stime {row['ru_stime']}")
        self.check(float(row["ru_utime"].rstrip("s")) + float(row["ru_stime"].rstrip("s")) >= 3,
                   "qacct has the CPU time that the kernel has counted")

    def memory(self):
        self.head("A job whose processes together take more memory than it asked for")
        jobid = self.submit(f"{EAT % 9} & {EAT % 9}; wait; exit 3", "-l", "h_vmem=125M")
        row = self.site.wait(jobid)
        said = until(lambda: self.site.told(jobid), 10, "a sentence")
        for line in said.splitlines():
            print(f"   | {line}")
        self.check(re.search(r"process \d+ \(python3\) was killed: the job reached its memory\s+limit of 125\.0 MiB", said),
                   "its user reads which process, why, and how much, in the job's own error file")
        self.check(row["exit_status"].split()[0] == "3", "the shepherd lives, and says how the job has ended")

    def wrong_configuration(self):
        self.head("jobfence.conf of the host is wrong")
        self.site.configure("MaxProcesses=many\n")
        jobid = self.submit("touch ran.$JOB_ID")
        self.site.wait_state(jobid, "Eqw")
        print(f"   qstat -j says {self.site.reason(jobid)}")
        self.check("jobfence.conf:1:" in self.site.reason(jobid), "the job is in error, and qstat -j says which line is wrong")
        self.check(not (self.site.directory(USER) / f"ran.{jobid}").exists(), "the job does not run without its limits")
        self.check(not self.site.host_state(), "the host takes other jobs")
        self.site.configure()
        self.site.qdel(jobid)

    def emptiness(self):
        self.head("Afterwards")
        until(self.site.idle_again, 30, "the end of every job")
        deadline = time.monotonic() + 10
        while (left := self.site.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for one in left:
            print(f"   left: {one}")
        self.check(not left, "no directory, process or record of a job is left")


def main():
    die_properly()
    shared.PATIENCE = 3
    try:
        with sites.InstalledGridEngine() as site:
            demo = Demo(site)
            for act in (demo.limits, demo.suspend, demo.memory, demo.wrong_configuration, demo.emptiness):
                act()
    except AssertionError as error:
        print(f"\nThe demo cannot go on: {error}")
        return 1
    print("\nAll of it is so." if not demo.untrue else f"\n{demo.untrue} of it is not so.")
    return 1 if demo.untrue else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
