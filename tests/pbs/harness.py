# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of OpenPBS are written with, beside what they share with Slurm's."""

import contextlib
import re
import subprocess
import time

from contract import kernel
from contract.harness import MIB, expect, expect_equal, steps_of
from contract.kernel import Group
from contract.sites import die_with_parent

from .sites import FINISHED, granted, until

RAN = "touch ran.$PBS_JOBID"


def unfenced(function):
    """Declares that the hook is not there in this case."""
    function.fenced = False
    return function


def ask(cpus, mib):
    """Of qsub: one chunk with so much."""
    return f"-lselect=1:ncpus={cpus}:mem={mib}mb"


def fenced(site, jobid, step="step_1", timeout=15):
    """Wait until processes of the job are in a group of their own, and return that."""
    asked = time.monotonic()

    def found():
        nonlocal asked
        group = steps_of(site, jobid).get(step)
        if not group and time.monotonic() - asked > 1:
            job, asked = site.job(jobid), time.monotonic()
            expect(job.get("job_state") not in FINISHED, f"job {jobid} has ended and should run: {job.get('comment')}")
        return group
    try:
        return until(found, timeout, f"{step} of job {jobid}")
    except AssertionError as error:
        seen = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}
        raise AssertionError(f"{error}; its processes are in {seen}") from None


@contextlib.contextmanager
def frequent(site, seconds=2):
    """For the time being, the periodic event comes every so often. Jobs begin and end within.

    MoM asks for the interval only when an event is over, so the hook is made anew: then the first one comes at once."""
    site.remove_hook()
    site.fence(attributes={"freq": seconds})
    try:
        yield
    finally:
        site.remove_hook()
        site.fence()


@contextlib.contextmanager
def served(site):
    """For the time being, jobfence.service looks after the host, and often."""
    command = [str(site.jobfence), "hold", "--config", str(site.config), "-o", "ReapInterval=1"]
    hold = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            preexec_fn=die_with_parent)
    try:
        until((site.run_directory() / "hold.lock").is_dir, 10, "jobfence hold")
        yield
    finally:
        hold.terminate()
        hold.wait(120)


def name_of(jobid):
    """The directory of a job: all but letters, digits and a few signs is written as +5B."""
    return "job_" + re.sub(r"[^A-Za-z0-9_.-]", lambda found: f"+{ord(found[0]):02X}", jobid)


def expect_as_granted(site, jobid, group):
    """The step's job is limited to what the server says it has granted on this node."""
    cpus, kib = granted(site.job(jobid))[site.node]
    found = group.parent
    expect_equal(group.path.rsplit("/", 2)[1], name_of(jobid), "the job's directory")
    expect_equal(found.cpu_limit(), float(cpus), f"CPU limit of {found.path}")
    expect_equal(found.memory_limit(), kib * 1024, f"memory limit of {found.path}")


def the_fence(site, jobid, user=None):
    """The group of a job whose step is not known."""
    for pid in site.job_pids(jobid):
        group = Group.of(pid)
        if group:
            return group.parent
    return None


def is_frozen(group):
    """Whether the kernel has stopped all processes of a group."""
    unified = group.directory("")
    if unified and kernel.keyed(kernel.read(unified / "cgroup.events")).get("frozen") == "1":
        return True
    return group.file("freezer", None, "freezer.state") == "FROZEN"


def expect_gone(group, timeout=10):
    until(lambda: not group.exists(), timeout, f"the end of {group.path}")


def free(site):
    """The node takes jobs; states that pass by themselves are waited for."""
    until(lambda: site.node_state() in ("free", "job-busy"), 20, "a free node")


__all__ = ["MIB", "RAN", "ask", "expect_as_granted", "expect_gone", "fenced", "free", "frequent", "is_frozen", "name_of", "served", "the_fence",
           "unfenced"]
