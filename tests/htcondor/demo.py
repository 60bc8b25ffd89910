#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence at work, in the HTCondor of a virtual machine: what `make demo SCHEDULER=htcondor` runs there.

Every claim is checked, in the kernel's files where it is about processes and limits, and in condor_status, condor_q and
condor_history where it is about what was granted or how a job ended: the exit status is not 0 if one of them is not so.
"""

import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from htcondor import harness, sites  # noqa: E402
from htcondor.suite.limits import EAT  # noqa: E402
from contract import kernel  # noqa: E402
from contract import sites as shared  # noqa: E402
from contract.runner import Claims  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402

USER = "alice"
SPIN = "for i in 1 2 3 4; do sh -c 'while :; do :; done' & done; sleep 300"


class Demo(Claims):
    def submit(self, script, **lines):
        shown = script if len(script) < 60 else script[:57] + "…"
        print(f"   $ condor_submit: {shown}  {' '.join(f'{key}={value}' for key, value in lines.items())}     (as {USER})")
        return self.site.submit(USER, script, **lines)

    # -- the acts -------------------------------------------------------------------------

    def limits(self):
        self.head("A job with two CPUs, and 200 MiB")
        jobid = self.submit(f"{harness.ESCAPEE}; sleep 300", cpus=2, mib=200)
        group = harness.fenced(self.site, jobid)
        slot, who = self.site.slot(jobid), harness.escapee_of(self.site, jobid, USER)
        print(f"   condor_status says {slot['Cpus']} CPUs and {slot['Memory']} MiB for {slot['Name']}")
        print(f"   the kernel says {group.cpu_limit():g} CPUs and {group.memory_limit() >> 20} MiB for {group.path}")
        self.check(group.cpu_limit() == slot["Cpus"], "the kernel's limit of CPU time is what the startd has granted")
        self.check(group.memory_limit() >> 20 == slot["Memory"] + harness.STARTERS_MIB,
                   f"the limit of memory is the slot's, and {harness.STARTERS_MIB} MiB for the starter")
        self.head("The job is removed; one of its processes has a session of its own")
        self.site.remove(jobid)
        until(lambda: not group.exists(), 60, "the end of the fence")
        self.check(kernel.identity(who[0]) != who, "all of its processes and its fence have gone")

    def quota(self):
        self.head("Four spinning processes in a job with one CPU")
        jobid = self.submit(SPIN)
        group = harness.fenced(self.site, jobid)
        until(lambda: len(self.site.job_pids(jobid)) >= 6, 60, "the spinners")
        began, before = time.monotonic(), group.cpu_seconds()
        time.sleep(5)
        used = (group.cpu_seconds() - before) / (time.monotonic() - began)
        print(f"   the kernel charged {group.path} {used:.2f} s of CPU time in each second")
        self.check(used <= 1.05, f"they used no more than the one CPU, of {os.cpu_count()} that are there")
        self.site.remove(jobid)

    def memory(self):
        self.head("A job whose processes together take more memory than it asked for")
        jobid = self.submit(f"{EAT % (70, 60)} & {EAT % (70, 60)} & wait; sleep 100", mib=100)
        reason, code, _ = self.site.held(jobid)
        print(f"   condor_q -hold says {reason}")
        self.check(code == 34, "HTCondor's own limit goes on working: it holds the job for want of memory")
        self.site.remove(jobid)

    def wrong_configuration(self):
        self.head("jobfence.conf of the host is wrong")
        self.site.configure("MaxProcesses=many\n")
        jobid = self.submit("touch ran.$JOB_ID")
        reason, _, _ = self.site.held(jobid)
        print(f"   condor_q -hold says {reason}")
        self.check("jobfence.conf:1:" in reason, "the job is on hold, and condor_q -hold says which line is wrong")
        self.check(not (self.site.directory(USER) / f"ran.{jobid}").exists(), "the job does not run without its limits")
        self.site.configure()
        self.site.remove(jobid)

    def emptiness(self):
        self.head("Afterwards")
        until(self.site.idle_again, 60, "the end of every job")
        deadline = time.monotonic() + 30
        while (left := self.site.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for one in left:
            print(f"   left: {one}")
        self.check(not left, "no directory, process or record of a job is left")


def main():
    die_properly()
    shared.PATIENCE = 3
    try:
        with sites.InstalledHTCondor() as site:
            demo = Demo(site)
            for act in (demo.limits, demo.quota, demo.memory, demo.wrong_configuration, demo.emptiness):
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
