# SPDX-License-Identifier: GPL-2.0-or-later
"""MoM dies and comes back."""

import os
import time

from contract import kernel
from contract.harness import ESCAPEE, case, escapee_of, expect, expect_dead, expect_equal, expect_gone, fenced, running
from contract.kernel import Group
from contract.sites import until

from ..harness import ask, expect_as_granted, free, served
from ..sites import EXEC


@case(layout=False)
def job_ends_without_mom(site):
    """The job ends while there is no MoM. The next one removes the fence."""
    jobid, group = running(site, "alice", "sleep 3", ask(1, 100))
    site.kill_mom()
    until(lambda: not site.job_pids(jobid), 15, "the end of the job's processes")
    site.start_mom("-p")
    job = site.wait(jobid)
    expect_gone(group.parent)
    return f"Exit_status {job.get('Exit_status')}"


@case
def mom_forgets_her_jobs(site):
    """Without -p MoM kills what ran, and the server begins the job anew: in a fence, without anything of the first run."""
    jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000", ask(1, 100))
    fenced(site, jobid)
    who = escapee_of(site, jobid)
    site.kill_mom()
    site.start_mom()
    until(lambda: site.job(jobid).get("run_count", "1") != "1" and site.state(jobid) == "R", 60, "the second run")
    expect_dead(who, 10)
    group = fenced(site, jobid)
    expect_as_granted(site, jobid, group)
    site.end(jobid)
    expect_gone(group.parent)
    free(site)
    expect(not site.leftovers(), f"left behind: {site.leftovers()}")


def an_hour_ago(site):
    """As if each fence had been changed then: a younger one may be of a job that MoM is about to note."""
    for record in site.run_directory().rglob("uid_*"):
        os.utime(record, (time.time() - 3600,) * 2)


@case(on=("private",), layout=False)
def mom_with_another_directory(site):
    """pbs_mom -d: her jobs are not where pbs.conf says. Nobody ends them, and the hook knows which have ended."""
    with site.mom_with_a_directory():
        jobid, group = running(site, "alice", "sleep 1000", ask(1, 100))
        expect((site.spool() / f"mom_priv/jobs/{jobid}.JB").exists(), "the job is not in the directory of the option")
        said = site.command(str(site.jobfence), "check", "--config", str(site.config)).stdout
        expect(f"MoM's directory is {site.spool()}" in said, f"check says:\n{said}")
        an_hour_ago(site)
        with served(site):
            time.sleep(5)
            done = site.command(str(site.jobfence), "reap", "--config", str(site.config))
        expect(group.members(), f"the job was ended: {done.stdout}{done.stderr}")
        site.kill_mom()
        an_hour_ago(site)
        site.start_mom("-p")
        site.wait_free()
        site.wait_running(jobid)
        expect(group.members(), "the job was ended when MoM began")
        site.end(jobid)
        expect_gone(group.parent)


@case(on=("private",), layout=False)
def a_task_without_an_event(site):
    """While the hook is not there, MoM starts a task that no event puts in. jobfence.service does, and touches nobody else's."""
    pid_of = 'touch begun.$PBS_JOBID; while [ ! -e go.$PBS_JOBID ]; do sleep 0.1; done;'
    task = "env -i /bin/sh -c 'setsid sleep 1001 & exec sleep 1002'"
    (site.directory("alice") / "task.sh").write_text(f"#!/bin/sh\nexec {task}\n")
    (site.directory("alice") / "task.sh").chmod(0o755)
    jobid, group = running(site, "alice", f"{pid_of} {EXEC}/bin/pbsdsh -- {site.directory('alice')}/task.sh", ask(1, 100))
    stranger = site.as_user("alice", ["setsid", "sleep", "1003"], start=True)
    try:
        site.remove_hook()
        (site.directory("alice") / f"go.{jobid}").touch()

        def which_run(seconds):
            return [pid for pid in kernel.all_pids() if kernel.command_line(pid) == f"sleep {seconds}"
                    and pid in site.our_processes()]
        pids = [until(lambda seconds=seconds: which_run(seconds), 30, "the task")[0] for seconds in (1001, 1002)]
        expect_equal([Group.of(pid) for pid in pids], [None, None], "the fences of the task")
        before = kernel.cgroups_of(stranger.pid)
        with served(site):
            extern = group.parent.step("step_extern")
            for pid in pids:
                until(lambda pid=pid: pid in extern.members(), 30, f"process {pid}, which is in {kernel.cgroups_of(pid)}, in the fence")
        expect_equal(kernel.cgroups_of(stranger.pid), before, "the cgroups of a process that is not the job's")
    finally:
        stranger.kill()
        stranger.wait()
        site.fence()
    site.end(jobid)
    expect_gone(group.parent)
