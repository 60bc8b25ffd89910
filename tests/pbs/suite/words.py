# SPDX-License-Identifier: GPL-2.0-or-later
"""What users put into a job, which pbs_python need not understand."""

import contextlib

from contract import kernel
from contract.harness import case, expect, expect_equal, logged
from contract.kernel import Group
from contract.sites import until

from ..harness import MIB, ask, frequent, the_fence
from ..sites import EXEC

# $'\xff' of bash.
NO_UTF8 = "printf '\\377'"


def waits_for(name):
    """A part of a script."""
    return f"touch begun.$PBS_JOBID; while [ ! -e {name}.$PBS_JOBID ]; do sleep 0.1; done;"


def seen(site, name, jobid):
    """The job's script has come so far."""
    until(lambda: (site.directory("alice") / f"{name}.{jobid}").exists(), 60, f"the job to come to {name}")


def submit_odd(site, script, *more):
    """A job with a byte that is no UTF-8 in its environment."""
    path = site.directory("alice") / "odd.sh"
    path.write_text('cd "$PBS_O_WORKDIR"\n' + script + "\n")
    command = f"qsub {' '.join((*more, ask(1, 50)))} -N STDIN -v ODD=$({NO_UTF8}) odd.sh"
    jobid = site.as_user("alice", ["sh", "-c", command]).stdout.strip()
    expect(jobid, "qsub has said no job")
    site.submitted.append(("alice", jobid))
    return jobid


@case(on=("private",), layout=False)
def a_byte_that_is_no_utf8(site):
    """The job and its tasks are in the job's fence, limited, and the periodic event looks after the host all the same."""
    with frequent(site):
        jobid = submit_odd(site, f"cat /proc/self/cgroup >first; {EXEC}/bin/pbsdsh -- sleep 1000 & sleep 1000")

        def tasks():
            return [pid for pid in site.job_pids(jobid) if kernel.command_line(pid) == "sleep 1000"]
        pids = until(lambda: len(tasks()) == 2 and tasks(), 30, "the two processes")
        outside = {pid: kernel.cgroups_of(pid) for pid in pids if not Group.of(pid)}
        expect(not outside, f"outside of a fence: {outside}")
        expect_equal(the_fence(site, jobid).memory_limit(), 50 * MIB, "the job's memory")
        # What is in no fence is found, although a job on this host cannot be decoded.
        other = site.submit("bob", "sleep 1000", ask(1, 50))
        site.wait_running(other)
        stray = site.as_user("bob", ["env", f"PBS_JOBID={other}", f"PBS_O_WORKDIR={site.directory('bob')}", "sleep", "1000"], start=True)
        until(lambda: Group.of(stray.pid), 40, "the stray in a fence")
        site.qdel(jobid, other)
        until(site.idle_again, 60, "the end of the jobs")
        until(lambda: not kernel.is_alive(stray.pid), 20, "the end of the stray")
        stray.wait()


@contextlib.contextmanager
def without_library(site):
    """For the time being, no event of the hook can do anything. A job does not end meanwhile."""
    site.configure_hook(**{**site.hook_settings(), "Library": "/nonexistent/libjobfence.so"})
    try:
        yield
    finally:
        site.configure_hook(**site.hook_settings())


@case(on=("private",), layout=False)
def a_byte_that_is_no_utf8_and_no_library(site):
    """What cannot be fenced does not run, though pbs_python has no answer for MoM."""
    jobid = submit_odd(site, f"{waits_for('go')} touch came.$PBS_JOBID; {EXEC}/bin/pbsdsh -- touch $PWD/ran.$PBS_JOBID; sleep 1000")
    seen(site, "begun", jobid)
    mark = site.log_mark()
    with without_library(site):
        (site.directory("alice") / f"go.{jobid}").touch()
        logged(site, mark, r"cannot load[^\n]*\n[^\n]*a process of the job is ended", 30)
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "the task has run")


@case(on=("private",), layout=False)
def a_task_that_is_refused(site):
    """A task is refused alone: its job goes on, and is not started again."""
    script = f"{waits_for('go')} {EXEC}/bin/pbsdsh -- true; touch came.$PBS_JOBID; {waits_for('end')} echo the end"
    jobid = site.submit("alice", script, ask(1, 50))
    seen(site, "begun", jobid)
    with without_library(site):
        (site.directory("alice") / f"go.{jobid}").touch()
        seen(site, "came", jobid)
    (site.directory("alice") / f"end.{jobid}").touch()
    job = site.wait(jobid)
    expect_equal((job["Exit_status"], job.get("run_count")), ("0", "1"), "Exit_status and run_count")
    expect("the end" in site.output(jobid), f"output: {site.output(jobid)!r}")
