# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of Slurm are written with, beside what they share with those of other schedulers."""

import contextlib
import os
import signal
from pathlib import Path

import leases
from contract import kernel
from contract.harness import MIB, expect, expect_equal, expect_in, expect_match, reap
from contract.kernel import Job
from contract.sites import LEAST, until

NOT_STARTED = "jobfence: this job was not started, since it cannot be fenced: "
RAN = "touch ran.$SLURM_JOB_ID"


def expect_limits(group, cpus, mib, granted=None):
    """`granted`: in MiB, where jobfence.conf makes something else of it. Slurm does not read
    that, and its own memory limits stay."""
    expect_equal(group.cpu_limit(), cpus, f"CPU limit of {group.path}")
    if group.memory_is_slurms():
        if kernel.slurm_limits_memory:
            mib = mib if granted is None else granted
        elif isinstance(group, Job):
            # jobfence writes no memory limit into a directory with Slurm's daemons in it.
            mib = None
    wanted = None if mib is None else mib * MIB
    expect_equal(group.memory_limit(), wanted, f"memory limit of {group.path}")


def kill_daemons(site, jobid, daemons=None):
    """SIGKILL for the job's step daemons, or these of them. They are dead then, with all their threads."""
    daemons = daemons or site.step_daemons(jobid)
    expect(daemons, "no step daemon found")
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)

    def is_gone(pid):
        # State, and how many threads it has.
        fields = kernel.stat_fields(pid)
        return not fields or fields[0] in "ZX" and int(fields[17]) <= 1
    until(lambda: all(map(is_gone, daemons)), 5, "the death of the step daemon")


def ended_line(jobid, step):
    return rf"jobfence: job {jobid} step {step} ended: cpu [\d.]+ s, throttled [\d.]+ s"


def expect_killed_for_memory(said, jobid, step, limit):
    # Step and job have the same limit here: either may be the one that the kernel met.
    found = expect_match(
        rf"jobfence: job {jobid} step {step}: process \d+ \(python3[^)]*\) was killed: "
        rf"the (?:step|job) reached its memory limit of {limit}\.0 MiB \(peak use ([\d.]+) MiB(?:, \d+ % of it cached files)?\)\. "
        r"Raise --mem, or use less\.",
        said, "what the user is told")
    peak = float(found.group(1))
    expect(limit * 0.75 <= peak <= limit * 1.02, f"peak use of {peak} MiB")
    expect_equal(said.count("was killed:"), 1, "number of sentences")


def fences_well(site, user):
    """One small job, fenced as it should be."""
    jobid = site.submit(user, "cat /proc/self/cgroup; echo cpus=$JOBFENCE_CPUS",
                        "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state of the job after it")
    expect_in("/step_batch", site.output(jobid), "its cgroup")
    expect_in("cpus=1\n", site.output(jobid), "its environment")


def expect_not_drained(site):
    # COMPLETING and the like pass by themselves.
    expect("DRAIN" not in site.node_state(), f"the node is {site.node_state()}")


def expect_not_started(site, user, jobid):
    state = site.wait(jobid)
    expect_equal(state, "FAILED", f"state of job {jobid}")
    expect_in(NOT_STARTED, site.output(jobid), "the job's output")
    expect(not (site.directory(user) / f"ran.{jobid}").exists(), "the job's script has run")


def until_gone(site, group, timeout, what):
    """Ours must be gone. Slurm may leave its own v1 directories, as the kernel is not done with them; the janitor removes those."""
    def ours():
        return [name for name in kernel.hierarchies() if group.own and name not in group.slurms and group.directory(name)]
    until(lambda: not ours(), timeout, what)
    try:
        until(lambda: not group.remains(), timeout, what, least=LEAST if kernel.has_v2_controllers() else 0)
    except AssertionError:
        if kernel.has_v2_controllers():
            raise
        reap(site)
        until(lambda: not group.remains(), timeout, f"{what}, after the janitor")


def tasks_are_refused(site, **keys):
    """Whether tasks cannot be limited each by itself, and that is said, where Slurm has one directory for all of a step."""
    if not site.tasks_share_a_directory():
        return False
    site.configure(**keys)
    jobid = site.submit(site.users[0], RAN, "-c1", "--mem=100")
    expect(site.wait(jobid) != "COMPLETED", "a job without its tasks' limits has run")
    expect_in("Slurm makes no directory for each task", site.output(jobid), "the job's output")
    expect(not (site.directory(site.users[0]) / f"ran.{jobid}").exists(), "the job's script has run")
    return True


@contextlib.contextmanager
def without_places_of_the_defaults():
    """Where the plugin has no configuration, it uses the places of the defaults, and their directories stay as after a job: takes away those
    that were not there before and are empty. One case at a time has them: another's would be neither new nor empty."""
    tops = {hierarchy.mount_point for hierarchy in kernel.hierarchies().values()}
    with leases.alone("places-of-the-defaults"):
        made = [place for place in (Path("/run/jobfence"), *(Path(top) / "jobfence" for top in tops)) if not place.exists()]
        try:
            yield
        finally:
            for top in made:
                for place in sorted([top, *top.rglob("*")], reverse=True):
                    with contextlib.suppress(OSError):
                        place.rmdir()
