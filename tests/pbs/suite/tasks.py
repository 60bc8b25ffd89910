# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks that a job starts by PBS, each of which is a step."""

import re
import subprocess

from contract import kernel
from contract.harness import case, expect, expect_equal, expect_match, fenced
from contract.sites import until

from ..harness import ask
from ..sites import EXEC


def steps_said(text):
    """The steps in what processes have read of their /proc/self/cgroup."""
    return sorted(set(re.findall(r"/step_(\d+)$", text, re.M)), key=int)


@case
def pbsdsh(site):
    """pbsdsh starts a task on each chunk."""
    jobid = site.submit("alice", f"cat /proc/self/cgroup; {EXEC}/bin/pbsdsh -- cat /proc/self/cgroup", ask(1, 100))
    job = site.wait(jobid)
    expect_equal(job["Exit_status"], "0", f"Exit_status of the job that said {site.output(jobid)!r}, {site.told(jobid)!r}")
    expect_equal(steps_said(site.output(jobid)), ["1", "2"], "the steps")
    expect_match(re.escape(site.directory_of(jobid)) + "/step_2", site.output(jobid), "the task's cgroups")


@case(layout=False)
def pbs_tmrsh(site):
    """pbs_tmrsh, by which MPI starts its daemons, is a task, too; many of them are many steps."""
    task = f"{EXEC}/bin/pbs_tmrsh {site.node} cat /proc/self/cgroup"
    count = 17
    jobid = site.submit("alice", f"for i in $(seq {count}); do {task}; done", ask(1, 100))
    job = site.wait(jobid, 120)
    expect_equal(job["Exit_status"], "0", f"Exit_status of the job that said {site.output(jobid)!r}, {site.told(jobid)!r}")
    # Numbers are decimal in the names of steps, and hexadecimal in PBS_TASKNUM.
    expect_equal(steps_said(site.output(jobid)), [str(number) for number in range(2, count + 2)], "the steps")


@case(layout=False)
def task_is_killed(site):
    """A task over the memory of the job is killed, and the job reads which task it was."""
    eat = "/usr/bin/python3 -S -c 'b = [bytes([i + 1]) * (8 << 20) for i in range(100)]'"
    (site.directory("alice") / "eat.sh").write_text(f"#!/bin/sh\n{eat}\n")
    (site.directory("alice") / "eat.sh").chmod(0o755)
    script = f"{EXEC}/bin/pbs_tmrsh {site.node} {site.directory('alice')}/eat.sh; sleep 1"
    jobid = site.submit("alice", script, ask(1, 100))
    job = site.wait(jobid)
    expect("step 2" in site.told(jobid) and "was killed" in site.told(jobid),
           f"Exit_status {job['Exit_status']}; the job's stderr is:\n{site.told(jobid)}")


@case(layout=False)
def attached(site):
    """pbs_attach brings a user's own process into the extern step, and nobody else's, whatever number the user says."""
    jobid = site.submit("alice", "sleep 1000", ask(1, 100))
    extern = fenced(site, jobid).parent.step("step_extern")
    # Each in a session of its own: MoM ends the whole session of what was attached.
    own, bobs = (site.as_user(user, ["setsid", "sleep", "1000"], start=True) for user in ("alice", "bob"))
    roots = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        for process in own, bobs, roots:
            until(lambda: kernel.command_line(process.pid).startswith("sleep"), 10, "the start of a process")
            before = kernel.cgroups_of(process.pid)
            done = site.as_user("alice", [f"{EXEC}/bin/pbs_attach", "-j", jobid, "-p", str(process.pid)])
            expect_equal(done.returncode == 0, process is own, f"pbs_attach of {process.args}: {done.stderr}")
            if process is own:
                expect(process.pid in extern.members(), f"the process is in {kernel.cgroups_of(process.pid)}")
            else:
                expect_equal(kernel.cgroups_of(process.pid), before, "the cgroups of a stranger")
        site.end(jobid)
        until(lambda: own.poll() is not None, 10, "the end of what was attached")
        expect_equal((bobs.poll(), roots.poll()), (None, None), "strangers after the end of the job")
    finally:
        for process in own, bobs, roots:
            process.kill()
            process.wait()
