# SPDX-License-Identifier: GPL-2.0-or-later
"""The end of a step: nothing of it is left, however it ends."""

import contextlib
import os
import signal
import time

from .. import kernel, sites
from ..harness import (
    PYTHON, Skip, case, ended_after, expect, expect_dead, expect_equal, fenced, fences_well, pid_from,
)
from ..kernel import Group
from ..sites import until


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
def scancel(site):
    jobid = site.submit(site.users[0], "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    processes = [kernel.identity(pid) for pid in group.members()]
    start = time.monotonic()
    site.scancel(jobid)
    expect_equal(site.wait(jobid, 5), "CANCELLED", "state")
    until(lambda: not group.parent.remains(), 5, "the removal of the job's directories")
    for who in filter(None, processes):
        expect_dead(who, 1)
    limit = 5 * sites.PATIENCE
    expect(time.monotonic() - start < limit, f"it took more than {limit:g} s")


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
    jobid = site.submit(user, "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    if group.slurms:
        raise Skip("what Slurm's own cgroups hold when its daemon dies is not ours to end")
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    orphans = [kernel.identity(pid) for pid in group.members()]
    daemons = site.step_daemons(jobid)
    expect(daemons, "no step daemon found")
    with contextlib.ExitStack() as cleanup:
        for who in filter(None, orphans):
            cleanup.enter_context(ended_after(who))
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not site.step_daemons(jobid), 5, "the death of the step daemon")
        site.scancel(jobid)
        site.wait(jobid)
        expect(group.exists(), "the dead step's directory went without anyone to remove it")
        fences_well(site, user)
        for who in filter(None, orphans):
            expect_dead(who)
        until(lambda: not group.parent.remains(), 5, f"the removal of {group.parent.path}")
