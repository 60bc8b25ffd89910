# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of Grid Engine are written with, beside what they share with Slurm's."""

from contract import kernel
from contract.harness import MIB, expect_equal, pid_from, steps_of
from contract.sites import until

# In a session of its own.
ESCAPEE = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >escapee.new; mv escapee.new escapee.$JOB_ID"


def ask(slots, mib):
    """Of qsub: so many slots on this host, and memory for all of them together."""
    return "-pe", "smp", str(slots), "-l", f"h_vmem={mib // slots}M"


def fenced(site, jobid, step="step_job", timeout=20):
    """Wait until processes of the job are in its own step, and return that group."""
    try:
        return until(lambda: steps_of(site, jobid).get(step), timeout, f"{step} of job {jobid}")
    except AssertionError as error:
        seen = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}
        raise AssertionError(f"{error}; its processes are in {seen}, and it is {site.queued(jobid)} {site.reason(jobid)}") from None


def expect_limits(group, cpus, mib):
    expect_equal(group.cpu_limit(), float(cpus), f"CPU limit of {group.path}")
    expect_equal(group.memory_limit(), mib * MIB, f"memory limit of {group.path}")


def escapee_of(site, jobid, user="alice"):
    """What the kernel says of the process that ESCAPEE has started."""
    return kernel.identity(pid_from(site.directory(user) / f"escapee.{jobid}"))


def expect_gone(group, timeout=10):
    until(lambda: not group.exists(), timeout, f"the end of {group.path}")


def is_frozen(group):
    """Whether the kernel has stopped all processes of a group."""
    unified = group.directory("")
    if unified and kernel.keyed(kernel.read(unified / "cgroup.events")).get("frozen") == "1":
        return True
    return group.file("freezer", None, "freezer.state") == "FROZEN"
