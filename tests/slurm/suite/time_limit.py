# SPDX-License-Identifier: GPL-2.0-or-later
"""OnTimeLimit and OnPreempt: a batch job that slurmctld has ended is requeued as it was, and only such a job, and only so often.

The controller ends nothing at once, so a run's end is moved here, and several jobs end at one look of the controller's.
"""

from contract import kernel
from contract.harness import PYTHON, case, expect, expect_equal, expect_in
from contract.sites import until
from ..harness import expect_not_drained
from .again import DIES, PATIENCE, instead_of_scontrol, start, until_said
from .life import scontrol
from .stored import held

KEYS = {"OnTimeLimit": "requeue,2"}
RUNS = "echo run $((SLURM_RESTART_COUNT))\nsleep 900"
OPTIONS = "-n1", "--mem=50", "--time=5", "--open-mode=append"
AT_LIMIT = "has reached its time limit"
FORBIDDEN = "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)"


def reach_their_limits(site, *jobids):
    """The controller looks every 30 seconds."""
    for jobid in jobids:
        site.wait_running(jobid)
    for jobid in jobids:
        scontrol(site, "update", f"jobid={jobid}", "EndTime=now+1seconds")


def runs(site, jobid):
    return [line for line in site.output(jobid).splitlines() if line.startswith(("run", "jobfence:"))]


@case(on=["private"], layout=False, patient=True)
def a_job_at_its_time_limit_runs_again(site):
    """As often as the site allows, with a line in its output. One whose user forbids it, that succeeds, that fails by itself, that is killed at
    its memory limit or that is cancelled does not."""
    user = site.users[0]
    with held(site, **KEYS) as (_, said):
        others = [site.submit(user, script, *OPTIONS) for script in ("exit 3", f"{PYTHON} -S -c 'x = b\"x\" * (200 << 20)'")]
        states = [site.wait(one) for one in others]
        expect(states[0] == "FAILED" and states[1] in ("FAILED", "OUT_OF_MEMORY"), f"the states of those that fail: {states}")
        jobid = site.submit(user, RUNS, *OPTIONS)
        forbids = site.submit(user, RUNS, "--no-requeue", *OPTIONS)
        reach_their_limits(site, jobid, forbids)
        until_said(said, f"job {jobid} of {user} {AT_LIMIT}, and is requeued (restart 1)")
        until_said(said, f"job {forbids} of {user} {AT_LIMIT}, and is not requeued: {FORBIDDEN}")
        waits = site.job(jobid)
        expect(waits["JobState"] == "PENDING" and "held" not in waits.get("Reason", "").lower(), f"it waits, and is not held: {waits}")
        saves = site.submit(user, "trap 'echo saved; exit 0' TERM\nsleep 900 & wait", *OPTIONS)
        start(site, jobid)
        reach_their_limits(site, jobid, saves)
        until_said(said, f"job {jobid} of {user} {AT_LIMIT}, and is requeued (restart 2)")
        cancelled = site.submit(user, RUNS, *OPTIONS)
        site.wait_running(cancelled)
        site.command("scancel", str(cancelled))
        start(site, jobid)
        reach_their_limits(site, jobid)
        until_said(said, f"job {jobid} of {user} {AT_LIMIT}, and is not requeued: it was restarted 2 times already, and "
                         "OnTimeLimit=requeue,2 allows no more")
        expect_equal((site.wait(jobid), site.job(jobid)["Restarts"]), ("TIMEOUT", "2"), "its end")
        lines = [f"jobfence: this is restart {count} of the job, with 50.0 MiB of memory" for count in (1, 2)]
        expect_equal(runs(site, jobid), ["run 0", lines[0], "run 1", lines[1], "run 2"], "its output")
        expect_equal([site.wait(one) for one in (forbids, saves, cancelled)], ["TIMEOUT", "TIMEOUT", "CANCELLED"], "the states")
        expect_in("saved", site.output(saves), "the output of the one that succeeds")
        silent = [saves, cancelled, *others]
        expect_equal([site.job(one)["Restarts"] for one in (forbids, *silent)], ["0"] * 5, f"the restarts; hold says: {kernel.read(said)}")
        for one in silent:
            expect(f"job {one} of" not in kernel.read(said), f"hold speaks of job {one}: {kernel.read(said)}")
    expect_not_drained(site)


@case(on=["private"], layout=False, patient=True)
def hold_dies_while_it_requeues_what_has_timed_out(site):
    """Before and behind its word to the controller. The next one goes on: the job is requeued once, and is not held."""
    user = site.users[0]
    for when in ("before", "behind"):
        with instead_of_scontrol(site, DIES % ((when, "requeue"),)) as place:
            for mark in place.glob("died.*"):
                mark.unlink()
            with held(site, place, **KEYS) as (log, _):
                jobid = site.submit(user, RUNS, *OPTIONS)
                reach_their_limits(site, jobid)
                until(lambda: list(place.glob("died.*")), PATIENCE, f"the death {when} requeue")
                expect_in("\"begun\":\"same\"", kernel.read(log / ".usage.jsonl.again"), "what it has begun")
            with held(site, place, **KEYS) as (log, said):
                until_said(said, f"job {jobid} of {user} {AT_LIMIT}, and is requeued (restart 1)")
                until(lambda: "\"waiting\":[]" in kernel.read(log / ".usage.jsonl.again"), PATIENCE, "the end of what was begun")
                expect_equal((site.job(jobid)["JobState"], site.job(jobid)["Restarts"]), ("PENDING", "1"), f"the job ({when})")
            site.command("scancel", str(jobid))
    expect_not_drained(site)


@case(on=["private"], layout=False, patient=True)
def a_job_that_is_preempted_runs_again(site):
    """PreemptMode=CANCEL: slurmctld ends it for a job of a partition that comes first, and does not requeue it itself."""
    user, other = site.users
    with site.reconfigured(PreemptType="preempt/partition_prio", PreemptMode="CANCEL"):
        scontrol(site, "create", "PartitionName=urgent", "Nodes=ALL", "PriorityTier=10", "MaxTime=60", "State=UP")
        with held(site, OnPreempt="requeue,1") as (_, said):
            options = "--exclusive", *OPTIONS
            jobid = site.submit(user, "echo run $((SLURM_RESTART_COUNT))\n[ $((SLURM_RESTART_COUNT)) = 1 ] || sleep 900", *options)
            site.wait_running(jobid)
            urgent = site.submit(other, "sleep 2", "--partition=urgent", *options)
            until_said(said, f"job {jobid} of {user} was preempted, and is requeued (restart 1)")
            expect_equal(site.wait(urgent), "COMPLETED", "the state of what came first")
            start(site, jobid)
            expect_equal((site.wait(jobid), site.job(jobid)["Restarts"]), ("COMPLETED", "1"), f"its end; hold says: {kernel.read(said)}")
            line = "jobfence: this is restart 1 of the job, with 50.0 MiB of memory"
            expect_equal(runs(site, jobid), ["run 0", line, "run 1"], "its output")
    expect_not_drained(site)
