# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of OpenPBS are written with, beside what they share with Slurm's."""

import contextlib
import subprocess

from contract.harness import expect_equal, no_other_hold
from contract.kernel import Group
from contract.sites import die_with_parent

from .sites import granted, until

def unfenced(function):
    """Declares that the hook is not there in this case."""
    function.fenced = False
    return function


def ask(cpus, mib):
    """Of qsub: one chunk with so much."""
    return f"-lselect=1:ncpus={cpus}:mem={mib}mb"


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
    with no_other_hold(site):
        hold = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                preexec_fn=die_with_parent)
        try:
            until((site.run_directory() / "hold.lock").is_dir, 10, "jobfence hold")
            yield
        finally:
            hold.terminate()
            hold.wait(120)


def expect_as_granted(site, jobid, group):
    """The step's job is limited to what the server says it has granted on this node."""
    cpus, kib = granted(site.job(jobid))[site.node]
    found = group.parent
    expect_equal(group.path.rsplit("/", 2)[1], site.directory_of(jobid), "the job's directory")
    expect_equal(found.cpu_limit(), float(cpus), f"CPU limit of {found.path}")
    expect_equal(found.memory_limit(), kib * 1024, f"memory limit of {found.path}")


def the_fence(site, jobid, user=None):
    """The group of a job whose step is not known."""
    for pid in site.job_pids(jobid):
        group = Group.of(pid)
        if group:
            return group.parent
    return None


def free(site):
    """The node takes jobs; states that pass by themselves are waited for."""
    until(lambda: site.node_state() in ("free", "job-busy"), 20, "a free node")
