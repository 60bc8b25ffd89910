# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence at work, under whatever scheduler: what tests/demo.py shows.

Every claim is checked, in the kernel's files where it is about processes and limits, and in the scheduler's own programs where it is
about what was granted and how a job ended.
"""

import contextlib
import os
import time

from . import kernel
from .cases import TOO_MUCH, TOO_MUCH_FOR
from .harness import ESCAPEE, HAS_RUN, escapee_of, fenced, has_run, is_frozen
from .sites import until

SPIN = "for i in 1 2 3 4; do sh -c 'while :; do :; done' & done; sleep 300"


class Demo:
    """Claims, each with what was found."""

    def __init__(self, site):
        self.site, self.untrue = site, 0

    def head(self, text):
        print(f"\n== {text}", flush=True)

    def check(self, true, claim):
        self.untrue += not true
        print(f"   {'[yes]' if true else '[NO] '} {claim}", flush=True)

    def submit(self, script, mib=200):
        shown = script if len(script) < 60 else script[:57] + "…"
        print(f"   {self.site.users[0]} submits a job for one CPU and {mib} MiB: {shown}")
        return self.site.submit(self.site.users[0], script, cpus=1, mib=mib)

    # -- the acts -------------------------------------------------------------------------

    def limits(self):
        self.head("A job that was granted one CPU and 200 MiB")
        jobid = self.submit(f"{ESCAPEE}; sleep 300")
        group, who = fenced(self.site, jobid), escapee_of(self.site, jobid)
        job = self.site.limited(group)
        print(f"   the kernel says {job.cpu_limit():g} CPUs and {job.memory_limit() >> 20} MiB for {job.path}")
        try:
            self.site.expect_limits(group, 1, 200)
            self.check(True, "the kernel's limits are what was granted")
        except AssertionError as error:
            self.check(False, error)
        self.head("The job is deleted; one of its processes has a session of its own")
        self.site.end(jobid)
        self.site.until_gone(group.parent)
        self.check(kernel.identity(who[0]) != who, "all of its processes and its fence have gone")

    def quota(self):
        self.head("Four spinning processes in a job that was granted one CPU")
        jobid = self.submit(SPIN)
        group = fenced(self.site, jobid)
        until(lambda: len(self.site.job_pids(jobid)) >= 6, 60, "the spinners")
        began, before = time.monotonic(), group.cpu_seconds()
        time.sleep(4)
        used = (group.cpu_seconds() - before) / (time.monotonic() - began)
        print(f"   the kernel charged {group.path} {used:.2f} s of CPU time in each second")
        self.check(used <= 1.05, f"they used no more than the one CPU, of {os.cpu_count()} that are there")
        with contextlib.suppress(NotImplementedError):
            self.site.suspend(jobid)
            until(lambda: is_frozen(group), 20, "the freeze")
            before = group.cpu_seconds()
            time.sleep(1)
            self.check(group.cpu_seconds() - before < 0.01, "suspended, they use none")
            self.site.resume(jobid)
            until(lambda: group.cpu_seconds() - before > 0.1, 20, "the job's going on")
            self.check(True, "resumed, they go on")
        self.site.end(jobid)

    def memory(self):
        self.head("A job whose processes together take more memory than it asked for")
        jobid = self.submit(TOO_MUCH, TOO_MUCH_FOR)
        said = self.site.why_killed(jobid)
        # Where it is held, it is in the queue.
        self.site.delete(jobid)
        for line in said.splitlines():
            print(f"   | {line}")
        self.check(self.site.is_why(said), "its user reads which process was killed, and why")

    def wrong_configuration(self):
        self.head("jobfence.conf of the host is wrong")
        line, mark = self.site.configure("MaxProcesses=many\n") + 1, self.site.log_mark()
        jobid = self.submit(HAS_RUN)
        reason = self.site.refusal(jobid, mark)
        print(f"   it is refused: {reason}")
        self.check(f"jobfence.conf:{line}:" in reason, "the reason says which line of jobfence.conf is wrong")
        self.check(not has_run(self.site, jobid), "the job does not run without its limits")
        self.site.configure()
        self.site.wait(self.site.after_refusal(jobid, HAS_RUN))

    def emptiness(self):
        self.head("Afterwards")
        until(self.site.idle_again, 60, "the end of every job")
        with contextlib.suppress(AssertionError):
            until(lambda: not self.site.left(), 30, "a clean tree", least=30)
        for one in sorted(self.site.left()):
            print(f"   left: {one}")
        self.check(not self.site.left(), "no directory, process or record of a job is left")
        self.check(until(self.site.is_ready, 60, "a host that takes jobs"), "the host takes jobs")


def shown(site):
    """The exit status."""
    try:
        with site:
            site.begin(None)
            demo = Demo(site)
            for act in demo.limits, demo.quota, demo.memory, demo.wrong_configuration, demo.emptiness:
                act()
    except AssertionError as error:
        print(f"\nThe demo cannot go on: {error}")
        return 1
    print("\nAll of it is so." if not demo.untrue else f"\n{demo.untrue} of it is not so.")
    return 1 if demo.untrue else 0
