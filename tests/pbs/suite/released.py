# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that give back a part of what they have, on a second host that has two vnodes."""

import contextlib
import os

from slurm.harness import case, expect, expect_equal, uid
from slurm.kernel import Group
from slurm.sites import until

from ..harness import expect_gone, name_of
from ..sites import EXEC, granted
from .hosts import BOTH, FIRST_THERE, groups_of

CHUNK = "ncpus=1:mem=64mb"
MIB = 1 << 20
# One chunk on the first host, and one on each vnode of the second.
THREE = f"-lselect=1:{CHUNK}:host=node1+2:{CHUNK}:host=node2", "-lplace=vscatter"
MAY_SHRINK = "-Wtolerate_node_failures=job_start"
RELEASES = """\
import pbs
event = pbs.event()
if event.job.in_ms_mom() and event.job.release_nodes(keep_select="{}") is None:
    event.reject("nothing was released")
event.accept()
"""
REFUSES = """\
import pbs
event = pbs.event()
if event.job.in_ms_mom() == {}:
    event.reject("this host refuses")
event.accept()
"""


@contextlib.contextmanager
def hook(site, name, event, program):
    """A hook of the site's own; it runs before jobfence's."""
    directory = site.home / name
    directory.mkdir()
    (directory / f"{name}.HK").write_text(f"event={event}\norder=1\n")
    (directory / f"{name}.py").write_text(program)
    site.install_hook(name, directory)
    try:
        yield
    finally:
        site.qdel(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 60, "the end of every job")
        site.remove_hook(name)


def limits_of(group):
    return group.cpu_limit(), group.memory_limit()


def job_on(site, jobid, node):
    """The job's directory on a host, whether it is there or not."""
    return Group(f"/{site.base}/{node}/uid_{uid('alice')}/{name_of(jobid)}")


def other_job_has(site, vnode):
    """A job of another user runs where the first one has given room."""
    jobid = site.submit("bob", "sleep 1000", f"-lselect=1:{CHUNK}:vnode={vnode}")
    site.wait_running(jobid)
    expect_equal(list(granted(site.job(jobid))), [vnode], "the vnodes of the other job")


def released(site, jobid, before):
    """The vnode that the job had before, and has no more."""
    def is_less():
        lacks = set(before) - set(granted(site.job(jobid)))
        return lacks.pop() if lacks else None
    return until(is_less, 30, f"a vnode that job {jobid} has given back")


@case(on=("hosts",))
def vnode_is_released(site):
    """pbs_release_nodes gives one of two vnodes of a host back: the job's limits there fall, and it goes on."""
    with site.two_vnodes("node2"):
        jobid = site.submit("alice", f"{EXEC}/bin/pbsdsh -- sleep 1000", *THREE)
        groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
        there = groups["node2"].parent
        expect_equal(limits_of(there), (2.0, 128 * MIB), "the limits on node2")
        until(lambda: site.job(jobid).get("substate") == "42", 20, "a job that has begun")
        done = site.command("pbs_release_nodes", "-j", jobid, "node2[1]")
        expect_equal((done.returncode, done.stderr), (0, ""), "pbs_release_nodes")
        until(lambda: limits_of(there) == (1.0, 64 * MIB), 30, f"lower limits on node2, which are {limits_of(there)}")
        expect_equal(limits_of(groups["node1"].parent), (1.0, 64 * MIB), "the limits on node1")
        expect(groups["node2"].exists(), "the task on node2 has gone")


@case(on=("hosts",))
def vnode_is_released_at_launch(site):
    """The same by a launch hook of the site's."""
    with site.two_vnodes("node2"), hook(site, "trims", "execjob_launch", RELEASES.format(f"{CHUNK}+{CHUNK}")):
        jobid = site.submit("alice", "sleep 1000", *THREE, MAY_SHRINK)
        vnode = released(site, jobid, ["node1", "node2[0]", "node2[1]"])
        until(lambda: site.job(jobid).get("substate") == "42", 30, "a job that has begun")
        there = job_on(site, jobid, "node2")
        until(lambda: limits_of(there) == (1.0, 64 * MIB), 30, f"lower limits on node2, which are {limits_of(there)}")
        other_job_has(site, vnode)


@case(on=("hosts",))
def released_while_files_are_copied(site):
    """With release_nodes_on_stageout the second host has nothing of the job while its files are still copied."""
    pipe = site.directory("alice") / "copy"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o666)
    pipe.chmod(0o666)
    script = f"echo x >result; {EXEC}/bin/pbsdsh -- sleep 3"
    with site.two_vnodes("node2"):
        jobid = site.submit("alice", script, *THREE, "-Wrelease_nodes_on_stageout=true",
                            f"-Wstageout={site.directory('alice')}/result@node1:{pipe}")
        groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
        site.wait_state(jobid, "E")
        expect_gone(groups["node2"].parent, 20)
        other_job_has(site, "node2[0]")
        expect_equal(site.state(jobid), "E", "state of a job whose files are copied")
        # cp waits for somebody to read.
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            expect_equal(site.wait(jobid)["Exit_status"], "0", "Exit_status")
        finally:
            os.close(reader)
            pipe.unlink()


def is_refused(site, jobid, *nodes):
    """PBS puts the job back into its queue, and on no host is a fence left."""
    def is_back():
        job = site.job(jobid)
        return job.get("job_state") in ("Q", "H") and int(job.get("run_count", 0)) > 0
    until(is_back, 60, "a job that is back in its queue")
    site.command("qhold", "-h", "s", jobid)
    for node in nodes:
        expect_gone(job_on(site, jobid, node), 20)
    expect(not (site.directory("alice") / "ran").exists(), "the job has run")


@case(on=("hosts",))
def sister_refuses_a_resize(site):
    """A hook of the site's refuses on the second host that the job gives a vnode back."""
    trims, refuses = RELEASES.format(f"{CHUNK}+{CHUNK}"), REFUSES.format(False)
    with site.two_vnodes("node2"), hook(site, "trims", "execjob_launch", trims), hook(site, "refuses", "execjob_resize", refuses):
        mark = site.log_mark()
        jobid = site.submit("alice", "touch ran; sleep 1000", *THREE, MAY_SHRINK)
        until(lambda: "this host refuses" in site.mom_log_since(mark, "node2"), 60, "the refusal in the log of node2")
        is_refused(site, jobid, "node1", "node2")


@case(on=("hosts",))
def first_host_refuses_a_resize(site):
    """The same on the first host."""
    trims, refuses = RELEASES.format(CHUNK), REFUSES.format(True)
    with hook(site, "trims", "execjob_launch", trims), hook(site, "refuses", "execjob_resize", refuses):
        mark = site.log_mark()
        jobid = site.submit("alice", "touch ran; sleep 1000", *BOTH, MAY_SHRINK)
        until(lambda: "this host refuses" in site.mom_log_since(mark, "node1"), 60, "the refusal in the log of node1")
        is_refused(site, jobid, "node1", "node2")
