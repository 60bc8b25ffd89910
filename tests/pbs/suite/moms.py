# SPDX-License-Identifier: GPL-2.0-or-later
"""MoM dies and comes back."""

from slurm import kernel
from slurm.harness import case, expect, expect_dead, expect_equal
from slurm.sites import until

from ..harness import ask, expect_as_granted, expect_gone, fenced, free
from .life import ESCAPEE, escapee_of, no_escapee_yet


@case
def mom_comes_back(site):
    """After kill -9 and pbs_mom -p the job goes on in its fence, and ends as any other."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; while [ ! -e go ]; do sleep 0.2; done; rm go; echo done", ask(1, 100))
        group, who = fenced(site, jobid), escapee_of(site)
        site.kill_mom()
        expect_equal(kernel.identity(who[0]), who, "the escapee")
        site.start_mom("-p")
        site.wait_running(jobid)
        expect_as_granted(site, jobid, group)
        expect_equal(fenced(site, jobid), group, "the job's group")
        (site.directory("alice") / "go").touch()
        job = site.wait(jobid)
    expect_equal(job["Exit_status"], "0", "Exit_status")
    expect_equal(site.output(jobid), "done\n", "its output")
    expect_dead(who)
    expect_gone(group.parent)


@case(layout=False)
def job_ends_without_mom(site):
    """The job ends while there is no MoM. The next one removes the fence."""
    jobid = site.submit("alice", "sleep 3", ask(1, 100))
    group = fenced(site, jobid)
    site.kill_mom()
    until(lambda: not site.job_pids(jobid), 15, "the end of the job's processes")
    site.start_mom("-p")
    job = site.wait(jobid)
    expect_gone(group.parent)
    return f"Exit_status {job.get('Exit_status')}"


@case
def mom_forgets_her_jobs(site):
    """Without -p MoM kills what ran, and the server begins the job anew: in a fence, without anything of the first run."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000", ask(1, 100))
        fenced(site, jobid)
        who = escapee_of(site)
        site.kill_mom()
        site.start_mom()
        until(lambda: site.job(jobid).get("run_count", "1") != "1" and site.state(jobid) == "R", 60, "the second run")
        expect_dead(who, 10)
        group = fenced(site, jobid)
        expect_as_granted(site, jobid, group)
        site.qdel(jobid)
        site.wait(jobid)
    expect_gone(group.parent)
    free(site)
    expect(not site.leftovers(), f"left behind: {site.leftovers()}")
