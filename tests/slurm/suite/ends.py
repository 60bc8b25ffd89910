# SPDX-License-Identifier: GPL-2.0-or-later
"""The end of a step: nothing of it is left, however it ends."""

import contextlib
import os
import subprocess
import time

from contract import kernel
from contract.harness import (
    PYTHON, Skip, case, ended_after, expect, expect_all_dead, expect_dead, expect_equal, expect_not_left, fenced, nobody_looks, pid_from,
    running,
)
from contract.kernel import Group
from contract.sites import until
from ..harness import fences_well, kill_daemons


def straggler(site, command):
    """A batch job that leaves a process behind, which must die with it."""
    user = site.users[0]
    file = site.directory(user) / f"straggler.{time.monotonic_ns()}"
    go = file.with_name(file.name + ".go")
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
    jobid = site.submit(user, f"{command.format(file=file)}\n{wait}", "-c1", "--mem=100")
    who = kernel.identity(pid_from(file))
    with ended_after(who):
        expect(Group.of(who[0]), f"process {who[0]} is not in the tree before the job's end")
        go.touch()
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        expect_dead(who)


@case
def straggler_setsid(site):
    straggler(site, "setsid sh -c 'echo $$ >{file}; exec sleep 300' >/dev/null 2>&1 &")


@case
def straggler_double_fork(site):
    straggler(site, f"""{PYTHON} -S -c '
import os, time
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
os.closerange(0, 100)
with open("{{file}}", "w") as file: file.write(str(os.getpid()))
time.sleep(300)'""")


@case
def time_limit(site):
    """The controller looks every 30 s, and no limit is below a minute: move its end here."""
    jobid = site.submit(site.users[0], "setsid sleep 300 &\nsleep 300",
                        "-c1", "--mem=100", "--time=1")
    group = fenced(site, jobid)
    done = site.command("scontrol", "update", f"jobid={jobid}", "EndTime=now+1seconds")
    expect_equal(done.returncode, 0, f"scontrol update ({done.stderr})")
    expect_equal(site.wait(jobid, 100), "TIMEOUT", "state")
    until(lambda: not group.parent.remains(), 5, "the removal of the job's directories")


@case(layout=False)
def step_cannot_start(site):
    user = site.users[0]
    done = site.srun(user, "--mem=100", "/nonexistent/program")
    expect(done.returncode != 0, "srun of no program returned 0")
    expect("jobfence" not in done.stderr, f"srun's stderr: {done.stderr}")
    jobid = site.submit(user, "true", "--mem=100", "--output=/nonexistent/directory/%j.out")
    expect_equal(site.wait(jobid), "FAILED", "state without an output file")
    # A missing working directory is no obstacle: Slurm takes /tmp instead.
    output = f"--output={site.directory(user)}/%j.out"
    jobid = site.submit(user, "pwd", "--mem=100", "--chdir=/nonexistent/directory", output)
    expect_equal(site.wait(jobid), "COMPLETED", "state without a working directory")
    fences_well(site, user)


@case
def stepd_killed(site):
    user = site.users[0]
    jobid, group = running(site, user, "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    orphans = [kernel.identity(pid) for pid in group.members(below=True)]
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*filter(None, orphans)))
        with nobody_looks():
            kill_daemons(site, jobid)
            site.end(jobid)
            expect(group.exists(), "the dead step's directory went without anyone to remove it")
        fences_well(site, user)
        expect_all_dead(filter(None, orphans))
        until(lambda: not group.parent.remains(), 5, f"the removal of {group.parent.path}")


def reaped(site, jobid, group, processes):
    """The step's daemon dies, and 'jobfence reap' ends what it leaves. `processes` are identities."""
    with nobody_looks():
        kill_daemons(site, jobid)
        for who in processes:
            expect_equal(kernel.identity(who[0]), who, "a process whose step daemon is dead")
        done = site.command(str(site.jobfence), "reap", "--config", str(site.config))
    expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of 'jobfence reap'")
    site.end(jobid)


def cancelled(site, jobid, *_):
    expect_equal(site.end(jobid), "CANCELLED", "state")


def with_members(site):
    """A job with a straggler: its number, its step and its processes."""
    jobid, group = running(site, site.users[0], "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    return jobid, group, list(filter(None, map(kernel.identity, group.members())))


def ends_well(site, end, prepare):
    """A job for which root has done something ends as any other."""
    jobid, group, processes = with_members(site)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*processes))
        cleanup.enter_context(prepare(group))
        mark = site.log_mark()
        end(site, jobid, group, processes)
        expect_all_dead(processes)
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")
        expect_not_left(site, mark)


def switch_of(group):
    """What stops all of the group, and the words for it: cgroup2's, or v1's freezer."""
    unified, freezer = group.directory(""), group.directory("freezer")
    if unified and (unified / "cgroup.freeze").exists():
        return unified / "cgroup.freeze", "1", "0"
    if freezer:
        return freezer / "freezer.state", "FROZEN", "THAWED"
    raise Skip("nothing here stops a step")


@contextlib.contextmanager
def frozen(group):
    switch, on, off = switch_of(group)
    switch.write_text(on)
    try:
        if on == "1":
            until(lambda: "frozen 1" in kernel.read(switch.with_name("cgroup.events")), 5, "the frozen step")
        else:
            until(lambda: kernel.read(switch) == "FROZEN", 5, "the frozen step")
        yield
    finally:
        # So that its processes can end, whatever the case has found.
        with contextlib.suppress(OSError):
            switch.write_text(off)


@case
def frozen_step_is_cancelled(site):
    if "" not in kernel.hierarchies():
        raise Skip("v1 lets nobody die who is frozen, and Slurm waits for that before it calls a plugin")
    ends_well(site, cancelled, frozen)


@case
def frozen_step_is_reaped(site):
    ends_well(site, reaped, frozen)


@contextlib.contextmanager
def delegated(group):
    """Root has given the user a directory in the step's, in each hierarchy; there he has made others, wide and deep."""
    sleeper = sorted(group.members())[-1]
    user = os.stat(f"/proc/{sleeper}").st_uid
    for top in group.directories():
        place = top / "delegated"
        subprocess.run([PYTHON, "-S", "-c", f"{MAKE}make({str(place)!r})"], check=True)
        for path in (place, place / "cgroup.procs"):
            os.chown(path, user, user)
        (place / "cgroup.procs").write_text(str(sleeper))
        made = f"""{MAKE}
top = {str(place)!r}
for n in range(100):
    make(f"{{top}}/wide{{n}}")
for n in range({DEEP}):
    top += f"/deep{{n}}"
    make(top)
with open(top + "/cgroup.procs", "w") as procs:
    procs.write("{sleeper}")
"""
        subprocess.run([PYTHON, "-S", "-c", made], user=user, group=user, extra_groups=[], check=True)
    yield


DEEP = 20
# On v1 nobody gets into a cpuset that has no CPUs.
MAKE = """
import os
def make(path):
    os.mkdir(path)
    if os.path.exists(path + "/cpuset.cpus") and not os.path.exists(path + "/cgroup.events"):
        for name in "cpuset.cpus", "cpuset.mems":
            text = open(f"{os.path.dirname(path)}/{name}").read()
            with open(f"{path}/{name}", "w") as file:
                file.write(text)
"""


@case
def delegated_directories_go_too(site):
    def cancelled_and_reaped(site, jobid, group, processes):
        cancelled(site, jobid)
        # On v1 Slurm tries to remove its own before any callback, and not again: that is the janitor's.
        if group.slurms and not kernel.has_v2_controllers() and site.jobfence:
            until(lambda: not site.step_daemons(jobid), 20, "the end of the step daemon")
            expect_all_dead(processes)
            site.command(str(site.jobfence), "reap", "--config", str(site.config))
    for end in cancelled_and_reaped, reaped:
        ends_well(site, end, delegated)
