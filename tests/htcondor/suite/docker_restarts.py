# SPDX-License-Identifier: GPL-2.0-or-later
"""Docker's daemon is started anew while a container of a job runs. What HTCondor makes of the job is its own; nothing runs outside."""

from contract import kernel
from contract.harness import case, expect_all_dead, expect_gone
from contract.kernel import Group
from contract.sites import until

from .. import docker
from ..harness import expect_none_outside, inode


def fate(site, jobid, before):
    """What becomes of a job when the fence with this inode is gone. Until then, each process of it is in a fence."""
    def decided():
        expect_none_outside(site.job_pids(jobid))
        groups = {Group.of(pid) for pid in site.job_pids(jobid)} - {None}
        again = [group for group in groups if inode(group) not in (before, None)]
        states = site.queued(jobid)
        if again:
            return "runs again"
        if "held" in states:
            return f"held: {site.reason(jobid)}"
        if not states:
            ended = site.ended(jobid)
            return f"ended: ExitCode {ended.get('ExitCode')}, ExitSignal {ended.get('ExitSignal')}"
        return None
    return until(decided, 180, f"what becomes of job {jobid}")


def restarted(site, live_restore):
    with docker.universe(site, live_restore=live_restore):
        jobid, group, who = docker.job_with_escapee(site, "sleep 1000")
        before = inode(group)
        docker.restart()
        survived = [one for one in who if kernel.identity(one[0]) == one]
        became = fate(site, jobid, before)
        expect_all_dead(who, 60)
        until(lambda: inode(group) != before, 60, "the end of the fence")
        site.remove(jobid)
        expect_gone(group.parent, 90)
        until(lambda: not docker.running(), 60, "the end of all containers that run")
    return len(survived), became


@case(release=True)  # another start of Docker's daemon
def docker_is_restarted(site):
    """The daemon ends the container, and the fence goes with it."""
    _, became = restarted(site, live_restore=False)
    return became


@case(release=True)  # as docker_is_restarted
def docker_is_restarted_with_live_restore(site):
    """The daemon leaves the container running, and HTCondor takes the job for ended: the container ends with the fence."""
    survivors, became = restarted(site, live_restore=True)
    return f"{survivors} processes were there when the daemon was back; {became}"
