# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of HTCondor are written with, beside what they share with those of other schedulers."""

import contextlib

from slurm import kernel
from slurm.harness import MIB, expect_equal, pid_from, steps_of
from slurm.sites import until

# In a session of its own.
ESCAPEE = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >escapee.new; mv escapee.new escapee.$JOB_ID"
# Until the case has looked at it.
WAIT = "until [ -e go.$JOB_ID ]; do sleep 0.2; done"
# What the starter has of the fence.
STARTERS_MIB = 64


def fenced(site, jobid, timeout=60):
    """Wait until processes of the job are in a fence, and return that group."""
    try:
        return until(lambda: next(iter(steps_of(site, jobid).values()), None), timeout, f"a fence of job {jobid}")
    except AssertionError as error:
        seen = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}
        raise AssertionError(f"{error}; its processes are in {seen}, and it is {site.queued(jobid)} {site.job(jobid).get('HoldReason')}") from None


def expect_limits(group, slot):
    """As the startd says of the job's slot."""
    expect_equal(group.cpu_limit(), float(slot["Cpus"]), f"CPU limit of {group.path}")
    expect_equal(group.memory_limit(), (slot["Memory"] + STARTERS_MIB) * MIB, f"memory limit of {group.path}")


def escapee_of(site, jobid, user="alice"):
    """What the kernel says of the process that ESCAPEE has started."""
    return kernel.identity(pid_from(site.directory(user) / f"escapee.{jobid}"))


def inode(group):
    """By which fences of one name differ; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        place = group.directory("")
        return place and place.stat().st_ino


def expect_gone(group, timeout=20):
    until(lambda: not group.exists(), timeout, f"the end of {group.path}")


def let_go(site, jobid, user="alice"):
    """Ends the WAIT of a job."""
    (site.directory(user) / f"go.{jobid}").touch()
