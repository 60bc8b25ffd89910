# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a job: how it begins, is stopped, runs again and ends."""

import contextlib
import os
import pty
import re
import select
import time

from contract import kernel, sites
from contract.harness import PYTHON, case, expect, expect_dead, expect_equal, expect_in, expect_match, pid_from
from contract.kernel import Group
from contract.sites import until

from ..harness import ask, expect_as_granted, expect_gone, fenced, is_frozen, name_of
from ..sites import seconds_of

# In a session of its own MoM does not find it.
ESCAPEE = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >escapee.new; mv escapee.new escapee"


def escapee_of(site):
    """What the kernel says of the process that ESCAPEE has started."""
    return kernel.identity(pid_from(site.directory("alice") / "escapee"))


@contextlib.contextmanager
def no_escapee_yet(site):
    file = site.directory("alice") / "escapee"
    file.unlink(missing_ok=True)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


@case
def escapee(site):
    """A process with a session of its own is in the fence, and dies with the job."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; sleep 3", ask(1, 100))
        group = fenced(site, jobid)
        who = escapee_of(site)
        expect_equal(Group.of(who[0]), group, "the escapee's group")
        job = site.wait(jobid)
    expect_equal(job["Exit_status"], "0", "Exit_status")
    expect_dead(who)
    expect_gone(group.parent)


@case
def array_job(site):
    """Each job of an array has a fence, whose name has no brackets."""
    array = site.submit("alice", "cat /proc/self/cgroup; sleep 5", "-J0-1", ask(1, 64))
    number, server = array.split(".", 1)
    jobs = [f"{number.replace('[]', f'[{index}]')}.{server}" for index in (0, 1)]
    for jobid in jobs:
        group = fenced(site, jobid, timeout=30)
        expect_in(name_of(jobid), group.path, "the job's directory")
        expect_as_granted(site, jobid, group)
    for jobid in jobs:
        expect_equal(site.wait(jobid)["Exit_status"], "0", f"Exit_status of {jobid}")
        expect_in(name_of(jobid), site.output(jobid), "its cgroups")


@case
def qdel(site):
    """qdel ends all that is in the fence, and the fence."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; trap '' TERM; sleep 1000", ask(1, 100))
        group, who = fenced(site, jobid), escapee_of(site)
        site.qdel(jobid)
        site.wait(jobid)
    expect_dead(who)
    expect_gone(group.parent)


@case(layout=False)
def deleted_by_force(site):
    """qdel -W force ends all that is in the fence, and the fence."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000", ask(1, 100))
        group, who = fenced(site, jobid), escapee_of(site)
        until(lambda: site.job(jobid).get("substate") == "42", 20, "a job that has begun")
        done = site.command("qdel", "-Wforce", jobid)
        expect_equal((done.returncode, done.stderr), (0, ""), "qdel -W force")
        expect_dead(who, 20)
        expect_gone(group.parent, 20)


@case
def suspend_and_resume(site):
    """qsig suspend also stops a process that MoM does not know, and qsig resume lets all go on."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000", ask(1, 100))
        group, who = fenced(site, jobid), escapee_of(site)
        site.qsig(jobid, "suspend")
        site.wait_state(jobid, "S")
        until(lambda: is_frozen(group), 10, "a frozen fence")
        site.qsig(jobid, "resume")
        site.wait_running(jobid)
        until(lambda: not is_frozen(group), 10, "a fence that goes on")
        expect_equal(kernel.identity(who[0]), who, "the escapee")
        site.qdel(jobid)
        site.wait(jobid)
    expect_dead(who)


@case
def suspended_is_deleted(site):
    """A frozen job can be deleted."""
    jobid = site.submit("alice", "sleep 1000", ask(1, 100))
    group = fenced(site, jobid)
    site.qsig(jobid, "suspend")
    site.wait_state(jobid, "S")
    until(lambda: is_frozen(group), 10, "a frozen fence")
    site.qdel(jobid)
    site.wait(jobid)
    expect_gone(group.parent)


@case
def qrerun(site):
    """A job that runs again has a new fence, and nothing of the old one."""
    with no_escapee_yet(site):
        jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000", ask(1, 100))
        fenced(site, jobid)
        who = escapee_of(site)
        done = site.command("qrerun", jobid)
        expect_equal((done.returncode, done.stderr), (0, ""), "qrerun")
        expect_dead(who, 20)
        until(lambda: site.job(jobid).get("run_count") == "2", 30, "the second run")
        group = fenced(site, jobid)
        expect_as_granted(site, jobid, group)
        site.qdel(jobid)
        site.wait(jobid)
    expect_gone(group.parent)


@case
def usage(site):
    """What a job has used is what the kernel has counted, at once when it has ended."""
    burn = f"{PYTHON} -S -c 'import time\nb = b\"x\" * (60 << 20)\nwhile time.process_time() < 3: pass'"
    jobid = site.submit("alice", f"{burn}\ncat /proc/self/cgroup >/dev/null", ask(1, 100))
    job = site.wait(jobid)
    cput, kib = seconds_of(job["resources_used.cput"]), int(job["resources_used.mem"].removesuffix("kb"))
    # Beside its three seconds the interpreter starts, for which an emulated processor takes its time.
    expect(3 <= cput <= 3 + 2 * sites.PATIENCE, f"resources_used.cput is {cput}, and should be 3")
    expect(60 << 10 <= kib <= 100 << 10, f"resources_used.mem is {kib} KiB, and should be a little more than 60 MiB")
    return f"cput {cput} s, mem {kib >> 10} MiB, cpupercent {job['resources_used.cpupercent']}"


@case
def interactive(site):
    """qsub -I: the shell is in a fence of its own."""
    ours, theirs = pty.openpty()
    process = site.as_user("alice", ["qsub", "-I", ask(1, 100)], terminal=theirs, env={"TERM": "dumb"})
    os.close(theirs)
    said = ""

    def until_said(pattern, seconds=30):
        nonlocal said
        deadline = time.monotonic() + seconds
        while not re.search(pattern, said):
            ready, _, _ = select.select([ours], [], [], max(0, deadline - time.monotonic()))
            try:
                part = os.read(ours, 4096) if ready else b""
            except OSError:
                part = b""
            if not part:
                raise AssertionError(f"qsub -I should say {pattern!r}, and said:\n{said}")
            said += part.decode(errors="replace")
        return re.search(pattern, said)
    try:
        jobid = until_said(r"job (\S+) ready")[1]
        site.submitted.append(("alice", jobid))
        os.write(ours, b"cat /proc/self/cgroup; echo status=$((6 * 7))\n")
        until_said("status=42")
        group = fenced(site, jobid)
        expect_in(group.path, said, "the shell's cgroups")
        expect_as_granted(site, jobid, group)
        os.write(ours, b"exit\n")
        until_said("completed")
        process.wait(20)
        site.wait(jobid)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    expect_gone(group.parent)


@case(layout=False)
def many_at_once(site):
    """Ten short jobs leave nothing behind."""
    jobs = [site.submit("alice", "cat /proc/self/cgroup", ask(1, 64)) for _ in range(10)]
    for jobid in jobs:
        expect_equal(site.wait(jobid, 120)["Exit_status"], "0", f"Exit_status of {jobid}")
        expect_match(rf"{re.escape(name_of(jobid))}/step_1$", re.sub(r"(?s).*?([^\n]*step_1)\n.*", r"\1", site.output(jobid)), "its cgroups")


@case(on=("private",), layout=False)
def a_hundred_at_once(site):
    """A hundred short jobs of an array, of which as many run at once as the server can start: each is in its fence, and nothing is left."""
    array = site.submit("alice", "cat /proc/self/cgroup", "-J0-99", "-lselect=1:ncpus=0:mem=16mb")
    site.wait(array, 300)
    number, server = array.split("[")[0], array.split(".", 1)[1]
    for index in range(100):
        name = f"{number}[{index}].{server}"
        said = site.output(name)
        expect(f"/{name_of(name)}/step_1\n" in said, f"job {name} was in {said!r}")
