# SPDX-License-Identifier: GPL-2.0-or-later
"""A job has to make room for one of an express queue, in each of the three ways that the scheduler knows."""

import contextlib

from contract import kernel
from contract.harness import (
    ESCAPEE, case, escapee_of, expect, expect_dead, expect_ended, expect_equal, expect_gone, fenced, is_frozen, pid_from,
)
from contract.kernel import Group
from contract.sites import until, write_atomically

from ..harness import ask, expect_as_granted, frequent
from ..sites import EXEC, granted, seconds_of
from .hosts import BOTH, FIRST_THERE, groups_of
from .used import burn

UNTIL_GO = "while [ ! -e go ]; do sleep 0.2; done"


@contextlib.contextmanager
def preemption(site, order):
    """The scheduler makes room in this way: S suspends, C checkpoints, R runs it again later."""
    settings = "queue_type=execution,enabled=True,started=True,Priority=200"
    site.qmgr(f"create queue express {settings}", f"set sched preempt_order = {order}")
    (site.directory("alice") / "go").unlink(missing_ok=True)
    try:
        yield
    finally:
        (site.directory("alice") / "go").touch()
        site.qdel(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 60, "the end of every job")
        (site.directory("alice") / "go").unlink()
        site.qmgr("set sched preempt_order = SCR", "delete queue express")


def all_of_it(site):
    """Of qsub: all CPUs of the node, so that nothing else fits beside."""
    return ask(site.node_attributes()["resources_available.ncpus"], 64)


def runs_instead(site, *ask_for):
    """The express job, once it runs in a fence with limits of its own."""
    jobid = site.submit("bob", "sleep 1000", "-qexpress", *ask_for)
    group = fenced(site, jobid, timeout=60)
    expect_as_granted(site, jobid, group)
    return jobid, group


def begins_well(site, jobid):
    """Running, for the server, too: before that the scheduler preempts nothing."""
    until(lambda: site.job(jobid).get("substate") == "42", 30, f"the beginning of job {jobid}")
    return jobid


@case
def preempted_by_suspension(site):
    """A job that is preempted stands still, and goes on by itself."""
    with preemption(site, "S"):
        low = begins_well(site, site.submit("alice", f"{ESCAPEE}; sleep 1000", all_of_it(site)))
        group, who = fenced(site, low), escapee_of(site, low)
        express, _ = runs_instead(site, all_of_it(site))
        expect_equal(site.state(low), "S", "state of the job that was preempted")
        until(lambda: is_frozen(group), 10, "a frozen fence")
        site.qdel(express)
        site.wait_running(low, 60)
        until(lambda: not is_frozen(group), 10, "a fence that goes on")
        expect_equal(kernel.identity(who[0]), who, "the escapee")
        expect_as_granted(site, low, group)


@case
def preempted_by_requeue(site):
    """A job that is preempted leaves nothing, and runs later as a new run in a new fence."""
    with preemption(site, "R"):
        low = begins_well(site, site.submit("alice", f"{ESCAPEE}; sleep 1000", all_of_it(site)))
        group, who = fenced(site, low), escapee_of(site, low)
        express, _ = runs_instead(site, all_of_it(site))
        expect_equal((site.state(low), site.job_pids(low)), ("Q", []), "the job that was preempted")
        expect_ended([who], group)
        site.qdel(express)
        until(lambda: site.job(low).get("run_count") == "2", 60, "the second run")
        expect_as_granted(site, low, fenced(site, low))


# A checkpoint is what these scripts of the site make it. MoM calls them as root, with the session of the task.
CHECKPOINT = 'kill -9 "-$1"\n'
RESTARTED = "restarted"


@contextlib.contextmanager
def checkpoints(site, restart):
    """MoM can checkpoint a job. To restart it is to run `restart` as root, in a process that becomes the job's first task."""
    for node in site.nodes:
        for name, text in ("checkpoint", CHECKPOINT), ("restart", restart):
            path = site.spool(node) / f"mom_priv/{name}.sh"
            write_atomically(path, "#!/bin/sh\n" + text)
            path.chmod(0o700)
    place = "/var/spool/pbs/mom_priv"
    (site.directory("alice") / RESTARTED).unlink(missing_ok=True)
    with site.mom_says(f"$action checkpoint_abort 30 !{place}/checkpoint.sh %sid",
                       f"$action restart 30 !{place}/restart.sh %sid", "$restart_transmogrify true"):
        yield


def restart_by(site, *first):
    """What restarts a job: it goes on as its user, and says its number."""
    file = site.directory("alice") / RESTARTED
    return "\n".join([*first, 'exec setpriv --reuid="$UID" --regid="$GID" --clear-groups sh -c \''
                      f"echo $$ >{file}.new; mv {file}.new {file}; exec sleep 1000' </dev/null >/dev/null 2>&1\n"])


def restarted(site):
    return pid_from(site.directory("alice") / RESTARTED, 60)


def checkpointed(site):
    """A job that was checkpointed and ended for an express job, its fence, and the express job."""
    low = begins_well(site, site.submit("alice", f"{ESCAPEE}; {burn(3)}; touch burnt; sleep 1000", all_of_it(site)))
    group, who = fenced(site, low), escapee_of(site, low)
    burnt = site.directory("alice") / "burnt"
    until(burnt.exists, 30, "CPU time of the job")
    burnt.unlink()
    express, _ = runs_instead(site, all_of_it(site))
    expect_equal((site.state(low), site.job_pids(low)), ("Q", []), "the job that was checkpointed")
    expect_dead(who)
    expect_gone(group)
    job = group.parent
    expect(job.step("step_extern").exists(), "no fence is kept for the restart")
    expect_equal(job.members(below=True), set(), "processes in that fence")
    return low, job, express


@case
def preempted_by_checkpoint(site):
    """The checkpoint leaves no process. What restarts comes into the job's fence with the periodic event."""
    with frequent(site), checkpoints(site, restart_by(site)), preemption(site, "C"):
        low, job, express = checkpointed(site)
        site.qdel(express)
        pid = restarted(site)
        group = until(lambda: Group.of(pid), 60, f"process {pid} in a fence")
        expect_equal(group, job.step("step_extern"), "the step")
        expect_as_granted(site, low, group)
        who = kernel.identity(pid)
        used = seconds_of(site.end(low)["resources_used.cput"])
        expect(used >= 2, f"cput is {used} s, and the job has used 3 s before the checkpoint")
        expect_dead(who)
        expect_gone(job)


@case
def restart_script_attaches(site):
    """With one line in the script that restarts jobs, a job is in its fence before it goes on."""
    attach = f"{site.jobfence} attach --config {site.config} --job $PBS_JOBID --step extern --any-user $$ || exit 1"
    with checkpoints(site, restart_by(site, attach)), preemption(site, "C"):
        low, job, express = checkpointed(site)
        site.qdel(express)
        pid = restarted(site)
        expect_equal(Group.of(pid), job.step("step_extern"), f"the group of process {pid}")
        expect_as_granted(site, low, job.step("step_extern"))


@case(layout=False)
def checkpointed_is_deleted(site):
    """A job that waits for its restart can be deleted, and leaves nothing."""
    with checkpoints(site, restart_by(site)), preemption(site, "C"):
        low, job, _ = checkpointed(site)
        site.end(low)
        expect_gone(job)


@case(on=("hosts",))
def preempted_by_checkpoint_on_both(site):
    """The same on two hosts: no process is left on either, and each has a fence after the restart."""
    with checkpoints(site, restart_by(site)), preemption(site, "C"):
        low = begins_well(site, site.submit("alice", f"{EXEC}/bin/pbsdsh -- sleep 1000", *BOTH[:1], "-lplace=scatter:exclhost"))
        groups = groups_of(site, low, {"node1": "step_2", "node2": FIRST_THERE})
        express = site.submit("bob", f"{EXEC}/bin/pbsdsh -- sleep 1000", *BOTH, "-qexpress")
        instead = groups_of(site, express, {"node1": "step_2", "node2": FIRST_THERE})
        for node, (cpus, kib) in granted(site.wait_running(express)).items():
            job = instead[node].parent
            expect_equal((job.cpu_limit(), job.memory_limit()), (float(cpus), kib * 1024), f"the limits on {node}")
        expect_equal(site.job_pids(low), [], "processes of the job that was checkpointed")
        for node, group in groups.items():
            expect_equal(group.parent.members(below=True), set(), f"processes in its fence on {node}")
        site.qdel(express)
        for group in instead.values():
            expect_gone(group.parent, 30)
        for node, group in groups.items():
            until(lambda: group.parent.step("step_extern").exists(), 60, f"a fence on {node} after the restart")

