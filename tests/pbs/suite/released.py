# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that give back a part of what they have, on a second host that has two vnodes."""

from contract.harness import case, expect, expect_equal, uid
from contract.kernel import Group
from contract.sites import until

from ..harness import expect_gone, name_of
from ..sites import EXEC, granted
from .hosts import FIRST_THERE, groups_of

CHUNK = "ncpus=1:mem=64mb"
MIB = 1 << 20
# One chunk on the first host, and one on each vnode of the second.
THREE = f"-lselect=1:{CHUNK}:host=node1+2:{CHUNK}:host=node2", "-lplace=vscatter"
MAY_SHRINK = "-Wtolerate_node_failures=job_start"
# pbs_python of 23.06 crashes if the result is not kept.
RELEASES = """\
import pbs
event = pbs.event()
kept = event.job.in_ms_mom() and event.job.release_nodes(keep_select="{}")
"""
REFUSES = """\
import pbs
event = pbs.event()
if event.job.in_ms_mom() == {}:
    event.reject("this host refuses")
event.accept()
"""


def limits_of(group):
    return group.cpu_limit(), group.memory_limit()


def job_on(site, jobid, node):
    """The job's directory on a host, whether it is there or not."""
    return Group(f"/{site.base}/{node}/uid_{uid('alice')}/{name_of(jobid)}")


def other_job_has(site, vnode):
    """A job of another user runs where the first one has given room."""
    jobid = site.submit("bob", "sleep 1000", f"-lselect=1:{CHUNK}:vnode={vnode}", "-koe")
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
    with site.two_vnodes("node2"), site.extra_hook("trims", "execjob_launch", RELEASES.format(f"{CHUNK}+{CHUNK}")):
        jobid = site.submit("alice", "sleep 1000", *THREE, MAY_SHRINK)
        vnode = released(site, jobid, ["node1", "node2[0]", "node2[1]"])
        until(lambda: site.job(jobid).get("substate") == "42", 30, "a job that has begun")
        there = job_on(site, jobid, "node2")
        until(lambda: limits_of(there) == (1.0, 64 * MIB), 30, f"lower limits on node2, which are {limits_of(there)}")
        other_job_has(site, vnode)


@case(on=("hosts",))
def released_while_files_are_copied(site):
    """With release_nodes_on_stageout the second host has nothing of the job while its files are still copied."""
    script = f"echo x >result; {EXEC}/bin/pbsdsh -- sleep 3"
    with site.two_vnodes("node2"):
        # Nothing on node2 takes files. PBS tries for a while.
        jobid = site.submit("alice", script, *THREE, "-Wrelease_nodes_on_stageout=true",
                            f"-Wstageout={site.directory('alice')}/result@node2:/nonexistent/result")
        groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
        try:
            expect_gone(groups["node2"].parent, 30)
            until(lambda: set(granted(site.job(jobid))) == {"node1"}, 20, "the end of the second host's part")
            expect_equal(site.state(jobid), "E", "state of a job whose files are copied")
            other_job_has(site, "node2[0]")
        finally:
            site.command("qdel", "-Wforce", jobid)


def is_refused(site, chunks, node):
    """PBS puts such a job back into its queue, and on no host is a fence left."""
    (site.directory("alice") / "ran").unlink(missing_ok=True)
    mark = site.log_mark()
    jobid = site.submit("alice", "touch ran; sleep 1000", *chunks, MAY_SHRINK)
    site.wait_running(jobid)
    site.qmgr("set server scheduling = false")
    try:
        until(lambda: "this host refuses" in site.log_since(mark, node), 30, f"the refusal in the log of {node}")
        site.wait_state(jobid, "Q")
        for host in site.nodes:
            expect_gone(job_on(site, jobid, host), 20)
        expect(not (site.directory("alice") / "ran").exists(), "the job has run")
    finally:
        site.qdel(jobid)
        # MoM of 23.06 has a broken list of connections now: what she forks crashes in net_close.
        for host in site.nodes:
            site.kill_mom(host)
            site.start_mom("-p", node=host)
        site.wait_free()
        site.qmgr("set server scheduling = true")


@case(on=("hosts",))
def sister_refuses_a_resize(site):
    """A hook of the site's refuses on the second host that the job gives a vnode back."""
    trims, refuses = RELEASES.format(f"{CHUNK}+{CHUNK}"), REFUSES.format(False)
    with site.two_vnodes("node2"), site.extra_hook("trims", "execjob_launch", trims), site.extra_hook("refuses", "execjob_resize", refuses):
        is_refused(site, THREE, "node2")
