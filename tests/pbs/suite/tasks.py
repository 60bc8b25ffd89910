# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks that a job starts by PBS, each of which is a step."""

import re

from slurm.harness import case, expect, expect_equal, expect_match

from ..harness import ask, name_of
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
    expect_match(re.escape(name_of(jobid)) + "/step_2", site.output(jobid), "the task's cgroups")


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
