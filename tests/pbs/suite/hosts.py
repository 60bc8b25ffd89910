# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs on several hosts, each of which has a fence of the job."""

import os
import signal

from contract import kernel
from contract.harness import case, expect, expect_dead, expect_equal, expect_gone, is_frozen, pid_from, steps_of
from contract.sites import until

from ..sites import EXEC, granted

# MoM of the job's host number n counts her tasks from n * 0x40000000 on.
FIRST_THERE = f"step_{0x40000001}"
BOTH = "-lselect=2:ncpus=1:mem=64mb", "-lplace=scatter"


def groups_of(site, jobid, wanted):
    """By host the group of this step, as soon as each host of `wanted` has it: {host: step}."""
    def found():
        groups = {node: steps_of(site, jobid, node).get(step) for node, step in wanted.items()}
        return groups if all(groups.values()) else None
    return until(found, 30, f"{wanted} of job {jobid}")


@case(on=("hosts",))
def on_two_hosts(site):
    """Each host limits the job to what was granted there, and ends what is left there."""
    pid = site.directory("alice") / "escapee"
    pid.unlink(missing_ok=True)
    task = site.directory("alice") / "task.sh"
    task.write_text("#!/bin/sh\nsetsid sleep 1000 </dev/null >/dev/null 2>&1 &\necho $! >escapee.new; mv escapee.new escapee\n"
                    "while [ ! -e go ]; do sleep 0.2; done\n")
    task.chmod(0o755)
    (site.directory("alice") / "go").unlink(missing_ok=True)
    jobid = site.submit("alice", f"sleep 1000 & {EXEC}/bin/pbs_tmrsh node2 {task}", *BOTH)
    groups = groups_of(site, jobid, {"node1": "step_1", "node2": FIRST_THERE})
    for node, (cpus, kib) in granted(site.wait_running(jobid)).items():
        job = groups[node].parent
        expect(job.path.endswith("/" + site.directory_of(jobid)), f"the job's directory on {node} is {job.path}")
        expect_equal((job.cpu_limit(), job.memory_limit()), (float(cpus), kib * 1024), f"the limits on {node}")
    who = kernel.identity(pid_from(pid))
    (site.directory("alice") / "go").touch()
    expect_equal(site.wait(jobid)["Exit_status"], "0", "Exit_status")
    expect_dead(who)
    for group in groups.values():
        expect_gone(group.parent)


@case(on=("hosts",))
def both_are_deleted(site):
    """qdel ends the job on both hosts."""
    jobid = site.submit("alice", f"{EXEC}/bin/pbsdsh -- sleep 1000", *BOTH)
    groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
    site.end(jobid)
    for group in groups.values():
        expect_gone(group.parent)


@case(on=("hosts",))
def sister_refuses(site):
    """A host that cannot fence the job lets it begin on no host; the other one keeps nothing of it."""
    (site._of("node2", "etc-jobfence") / "jobfence.conf").write_text("MaxProcesses=many\n")
    mark = site.log_mark()
    jobid = site.submit("alice", "touch ran; sleep 1000", *BOTH)
    until(lambda: "MaxProcesses" in site.log_since(mark, "node2"), 30, "the reason in the log of node2")
    expect(not (site.directory("alice") / "ran").exists(), "the job has run")
    site.configure()
    site.command("qrls", "-h", "s", jobid)
    until(lambda: (site.directory("alice") / "ran").exists(), 60, "the job to run at last")
    (site.directory("alice") / "ran").unlink()


@case(on=("hosts",))
def a_host_is_down(site):
    """MoM of the second host stands still while the job begins, and dies: the first host keeps nothing. Once she is back, the job runs."""
    mark, pid = site.log_mark(), site.mom_pid("node2")
    os.kill(pid, signal.SIGSTOP)
    try:
        jobid = site.submit("alice", "sleep 1000", *BOTH)
        group = until(lambda: the_fence_of(site, jobid), 30, "the fence on node1")
    finally:
        site.kill_mom("node2")
    until(lambda: "job_start_error" in site.log_since(mark, "node1"), 60, "the end of the start on node1")
    expect_gone(group, 30)
    site.start_mom(node="node2")
    site.wait_free()
    site.wait_running(jobid, 60)


def the_fence_of(site, jobid):
    """The job's group on node1, which has no process yet."""
    for path in kernel.Group(f"/{site.bases()[0]}").directories():
        for found in path.glob(f"uid_*/{site.directory_of(jobid)}"):
            return kernel.Group(f"/{site.bases()[0]}/{found.parent.name}/{found.name}")
    return None


@case(on=("hosts",))
def suspended_on_both(site):
    """qsig suspend freezes the job on both hosts."""
    jobid = site.submit("alice", f"{EXEC}/bin/pbsdsh -- sleep 1000", *BOTH)
    groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
    site.qsig(jobid, "suspend")
    site.wait_state(jobid, "S")
    for node, group in groups.items():
        until(lambda: is_frozen(group), 10, f"a frozen fence on {node}")
    site.qsig(jobid, "resume")
    for node, group in groups.items():
        until(lambda: not is_frozen(group), 10, f"a fence that goes on, on {node}")


@case(on=("hosts",))
def hosts_are_released(site):
    """pbs_release_nodes gives the second host back: nothing of the job stays there, and the first one goes on."""
    jobid = site.submit("alice", f"{EXEC}/bin/pbsdsh -- sleep 1000", *BOTH)
    groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
    # Running, for the server, too.
    until(lambda: site.job(jobid).get("substate") == "42", 20, "a job that has begun")
    done = site.command("pbs_release_nodes", "-j", jobid, "node2")
    expect_equal((done.returncode, done.stderr), (0, ""), "pbs_release_nodes")
    expect_gone(groups["node2"].parent, 30)
    expect(groups["node1"].exists(), "the fence on node1 has gone, too")
    cpus, kib = granted(site.job(jobid))["node1"]
    job = groups["node1"].parent
    expect_equal((job.cpu_limit(), job.memory_limit()), (float(cpus), kib * 1024), "the limits on node1")
