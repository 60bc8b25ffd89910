# SPDX-License-Identifier: GPL-2.0-or-later
"""Parallel jobs: a slave task is a step of its own, within the limits of the job."""

from slurm.harness import MIB, case, expect_equal, expect_in, steps_of
from slurm.sites import until

from ..harness import expect_limits
from .capacity import JSV


@case
def slave_task(site):
    """What qrsh -inherit starts has a step of its own, and the job's directory the slots of all on this host."""
    script = "qrsh -inherit $(hostname) sleep 1000 & sleep 1000"
    jobid = site.submit("alice", script, "-pe", "mpi", "3", "-l", "h_vmem=100M", "-v", "PATH")

    def steps():
        found = steps_of(site, jobid)
        return found if len(found) >= 2 else None
    found = until(steps, 40, "two steps")
    names = sorted(found)
    expect_in("step_job", names, "the steps")
    slave = next(name for name in names if name != "step_job")
    expect_in(".", slave.replace("+2E", "."), "the slave task's name")
    expect_equal(found[slave].parent, found["step_job"].parent, "its job's directory")
    expect_limits(found["step_job"].parent, 3, 300)
    site.qdel(jobid)
    site.wait(jobid)


@case
def slave_task_that_says_more(site):
    """What a user has qrsh -inherit say raises nothing on the host of the job."""
    site.configure("SlotMemory=mem_free\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        script = "qrsh -inherit -v JOBFENCE_REQUESTED=mem_free=1T $(hostname) sleep 1000 & sleep 1000"
        jobid = site.submit("alice", script, "-pe", "mpi", "2", "-l", "mem_free=90M", "-v", "PATH")
        found = until(lambda: (steps := steps_of(site, jobid)) and len(steps) >= 2 and steps, 40, "two steps")
        for name, group in found.items():
            expect_equal(group.memory_limit(), 180 * MIB, f"memory of {name}")
        expect_equal(found["step_job"].parent.memory_limit(), 180 * MIB, "memory of the job")
        site.qdel(jobid)
        site.wait(jobid)
