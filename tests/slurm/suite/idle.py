# SPDX-License-Identifier: GPL-2.0-or-later
"""IdleAfter and IdleAction: a job that does nothing is told so and cancelled; one that works is not."""

import contextlib
import json
import signal
import time

from contract import kernel
from contract.harness import PYTHON, case, expect, expect_equal, expect_in
from contract.sites import until
from ..harness import expect_not_drained
from .stored import held

BUSY = f"exec {PYTHON} -S -c 'while True: pass'"


def shown(site, *arguments):
    done = site.command(str(site.jobfence), *arguments, "--config", str(site.config))
    expect_equal((done.returncode, done.stderr), (0, ""), f"jobfence {arguments}")
    return done.stdout


@contextlib.contextmanager
def stopped(hold):
    """However long this takes: nobody is idle while nobody looks."""
    hold.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        hold.send_signal(signal.SIGCONT)


# How much faster idle time passes in a program that was built for tests. No more: what takes the rest of a busy machine is not idle then.
SPEED = 6


@case(on=["private"], layout=False, patient=True)
def an_idle_job_is_told_and_cancelled(site):
    """The shortest time of all is a minute: the sentence comes after one, the end after another."""
    user, speed = site.users[0], SPEED if site.for_tests else 1
    fast = {"program": site.for_tests, "variables": {"JOBFENCE_TEST_IDLE_SPEED": str(speed)}}
    with held(site, SampleInterval=2, IdleAfter="1m", IdleAction="cancel", **fast) as (_, said):
        began = time.monotonic()
        sleeps = site.submit(user, "sleep 900", "--mem=50", "-n1")
        works = site.submit(user, BUSY, "--mem=50", "-n1")
        for jobid in (sleeps, works):
            site.wait_running(jobid)
        words = f"job {sleeps} of {user} has used almost no CPU time for 1:"
        until(lambda: words in kernel.read(said), 300, "the sentence in hold's log")
        expect(time.monotonic() - began >= 60 / speed, "it came too early")
        until(lambda: "If that stays so, the job will be cancelled at about" in site.output(sleeps), 300, "the user's sentence")
        with stopped(site.hold):
            fences = json.loads(shown(site, "ls", "--json"))["fences"]
            idle = {fence["job"]: fence["idle_seconds"] for fence in fences if fence["step"] != "extern"}
            expect(idle[str(sleeps)] >= 60, f"idle_seconds: {idle}")
            expect_equal(idle[str(works)], None, "idle_seconds of the one that works")
            expect_in("the job has used almost no CPU time for 1:", shown(site, "show", str(sleeps)), "show")
            expect(" idle " in shown(site, "ls", "--job", str(sleeps)), "ls has no mark")
        end = f"job {sleeps} of {user} is cancelled, since it has used almost no CPU time for "
        until(lambda: end in kernel.read(said), 600, "hold's words at the end")
        expect_equal(site.wait(sleeps), "CANCELLED", f"the state; hold says: {kernel.read(said)}")
        expect_equal(site.job(works).get("JobState"), "RUNNING", f"the other; hold says: {kernel.read(said)}")
        log = kernel.read(said)
        expect_equal([log.count(text) for text in (words, end, f"job {works} of")], [1, 1, 0], f"what hold says: {log}")
        site.command("scancel", str(works))
        site.end(works)
    expect_not_drained(site)
