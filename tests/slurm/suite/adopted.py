# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes from outside that are put into a job, as sessions of ssh are."""

import contextlib
import re
import subprocess
from pathlib import Path

from .. import kernel
from ..harness import (
    EAT, Skip, case, ended_line, expect, expect_dead, expect_equal, expect_in, expect_limits,
    fenced, fenced_in_all, logged,
)
from ..kernel import Group
from ..sites import until, write_atomically
from .limits import busy_cpus
from .two_nodes import extern_of, job_on


def adopt(site, pid, *more):
    if not site.jobfence:
        raise Skip("needs the jobfence command: --bin")
    return site.command(str(site.jobfence), "adopt", "--config", str(site.config),
                        "--pid", str(pid), *more)


def adopted(site, pid, step):
    done = adopt(site, pid)
    expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of 'jobfence adopt'")
    expect_in(f"process {pid} is in job ", done.stdout, "its output")
    fenced_in_all(pid, step)


@contextlib.contextmanager
def session(site, user, command):
    """A process of the user's that no job has started; it begins when the file `go` is there."""
    go = site.directory(user) / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.1; done; {command}"
    process = site.as_user(user, ["bash", "-c", script], start=True)
    try:
        yield process, go
    finally:
        go.unlink(missing_ok=True)
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def job_with_extern(site, user, *args):
    jobid = site.submit(user, "sleep 300", "-N1", "-n1", "-w", "n1", *args)
    fenced(site, jobid)
    step = extern_of(job_on(site, user, jobid, "n1"))
    if step.slurms:
        raise Skip("where Slurm tracks processes, pam_slurm_adopt puts sessions into its own cgroups")
    expect(step.exists(), f"{step.path} does not exist")
    return jobid, step


@case(on=["two-nodes"])
def adopted_process_shares_the_jobs_cpus(site):
    user = site.users[0]
    jobid, step = job_with_extern(site, user, "-c1", "--mem=100")
    spin = "for i in 1 2 3 4; do while :; do :; done & done; wait"
    with session(site, user, spin) as (process, go):
        who = kernel.identity(process.pid)
        adopted(site, process.pid, step)
        go.touch()
        until(lambda: len(step.members()) >= 5, 10, "the spinners in the step")
        used, _ = busy_cpus(site, step.parent)
        expect(0.2 <= used <= 1.05, f"four spinners in a job with one CPU used {used:.3f} CPUs")
        expect(throttled(step) > 0, "nothing was throttled")
        spinners = [kernel.identity(pid) for pid in step.members()]
        mark = site.log_mark()
        site.scancel(jobid)
        site.wait(jobid)
        for one in filter(None, [who, *spinners]):
            expect_dead(one, 10)
        logged(site, mark, ended_line(jobid, "extern"))


def throttled(group):
    text = kernel.read(group.limits_directory("cpu") / "cpu.stat")
    return int(kernel.keyed(text)["nr_throttled"])


@case(on=["two-nodes"])
def adopted_process_shares_the_jobs_memory(site):
    user = site.users[0]
    jobid, step = job_with_extern(site, user, "-c1", "--mem=100")
    with session(site, user, f"exec {EAT}") as (process, go):
        adopted(site, process.pid, step)
        go.touch()
        try:
            status = process.wait(30)
        except subprocess.TimeoutExpired:
            raise AssertionError("it holds more memory than its job has") from None
        expect_equal(status, -9, "its end")
    expect_equal(site.job(jobid).get("JobState"), "RUNNING", "state of the job")
    site.scancel(jobid)


@case(on=["two-nodes"])
def adopted_into_the_last_job(site):
    user = site.users[0]
    first, _ = job_with_extern(site, user, "-c1", "--mem=100")
    second, step = job_with_extern(site, user, "-c1", "--mem=100")
    with session(site, user, "sleep 300") as (process, _):
        adopted(site, process.pid, step)
        again = adopt(site, process.pid, "--job", str(first))
        expect_equal(again.returncode, 0, "exit status when it is in a step already")
        fenced_in_all(process.pid, step)
    # It goes on elsewhere when the last one has ended.
    site.scancel(second)
    site.wait(second)
    until(lambda: not step.exists(), 10, f"the removal of {step.path}")
    with session(site, user, "sleep 300") as (process, _):
        adopted(site, process.pid, extern_of(job_on(site, user, first, "n1")))
    site.scancel(first)


@case(on=["two-nodes"])
def adopted_by_no_other_users_job(site):
    user, other = site.users
    jobid, _ = job_with_extern(site, user, "-c1", "--mem=100")

    def refused(pid, why, *more):
        before = kernel.cgroups_of(pid)
        done = adopt(site, pid, *more)
        expect_equal(done.returncode, 1, "exit status of 'jobfence adopt'")
        expect_in(why, done.stderr, "its stderr")
        expect_equal(kernel.cgroups_of(pid), before, "the cgroups of the process")

    with session(site, other, "sleep 300") as (process, _):
        refused(process.pid, "has no job with an extern step on this node")
        refused(process.pid, f"job {jobid} belongs to uid", "--job", str(jobid))
    refused(site.slurmd_pid(), "is root's")
    site.scancel(jobid)
    site.wait(jobid)
    until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemons")
    with session(site, user, "sleep 300") as (process, _):
        refused(process.pid, "has no job with an extern step on this node")


@case(on=["two-nodes"])
def adopted_by_no_job_without_extern_step(site):
    user = site.users[0]
    with site.reconfigured(PrologFlags=None):
        jobid = site.submit(user, "sleep 300", "-N1", "-n1", "-w", "n1", "-c1", "--mem=100")
        fenced(site, jobid)
        with session(site, user, "sleep 300") as (process, _):
            done = adopt(site, process.pid)
            expect_equal(done.returncode, 1, "exit status of 'jobfence adopt'")
            expect_in("slurm.conf have PrologFlags=Contain", done.stderr, "its stderr")
        site.scancel(jobid)
        site.wait(jobid)


SERVICE = Path("/etc/pam.d/su-l")


def login(user, command):
    """As sshd would: PAM's account and session stacks, then the user's command."""
    return subprocess.Popen(["su", "-l", user, "-c", command], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def session_line(site):
    """What 'jobfence check' says is missing in the PAM configuration is there, for the time being."""
    said = site.command("jobfence", "check").stdout
    line = re.search(r"ssh sessions are NOT fenced: .*: (session required .*)", said)
    before = SERVICE.read_text()
    try:
        if line:
            write_atomically(SERVICE, f"{before}{line.group(1)}\n")
            expect("NOT fenced" not in site.command("jobfence", "check").stdout, "check is not content")
        yield
    finally:
        write_atomically(SERVICE, before)


@case(on=["installed"])
def logins_by_pam_slurm_adopt(site):
    """A login on a node goes into the user's job, shares its limits, and ends with it."""
    if not SERVICE.exists() or "pam_slurm_adopt" not in SERVICE.read_text():
        raise Skip("no service of PAM has pam_slurm_adopt")
    user, other = site.users
    with site.reconfigured(PrologFlags="Contain"), session_line(site):
        jobid = site.submit(user, "sleep 300", "-n1", "-c1", "--mem=200")
        batch = fenced(site, jobid)
        refused = login(other, "true")
        refused.communicate(timeout=60)
        expect(refused.returncode != 0, "a user without a job could log in")
        spin = "for i in 1 2 3; do while :; do :; done & done; echo begun; wait"
        process = login(user, spin)
        try:
            # `echo` comes last, and su starts its command when the session is open.
            expect_equal(process.stdout.readline(), "begun\n", "the session's output")
            spinners = [pid for pid in kernel.descendants(process.pid)
                        if kernel.command_line(pid).startswith(("-bash", "bash"))]
            expect(len(spinners) >= 3, f"the session has {spinners}")
            steps = {Group.of(pid) for pid in spinners}
            expect_equal(len(steps), 1, f"number of cgroups of the session: {steps}")
            step = steps.pop()
            expect(step, "the session is in no step")
            expect_equal(step.name, "step_extern", "its step")
            expect_equal(step.parent, batch.parent, "its job")
            expect_limits(step, 1.0, 200)
            for pid in spinners:
                fenced_in_all(pid, step)
            used, _ = busy_cpus(site, step)
            expect(used <= 1.05, f"three spinners in a job with one CPU used {used:.3f} CPUs")
            who = [kernel.identity(pid) for pid in spinners]
            site.scancel(jobid)
            site.wait(jobid)
            for one in filter(None, who):
                expect_dead(one, 10)
        finally:
            process.kill()
            process.communicate(timeout=60)
