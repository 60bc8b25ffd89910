# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of the local universe, which the schedd starts on its own host: they have no slot, and a fence all the same."""

import os
import signal

from contract import kernel
from contract.cases import refused_until_mended
from contract.harness import (
    ESCAPEE, MIB, TAKE, WAIT, Skip, case, end_of, escapee_of, escaping, expect, expect_dead, expect_ended, expect_equal, expect_gone,
    expect_in, expect_match, fenced, let_go, pid_from, reap, uid,
)
from contract.sites import until

from ..harness import inode
from ..sites import STARTERS_MIB


def submit(site, script, user="alice", **lines):
    # The schedd compares what is asked for with its own ad, where more than one CPU or 1 MiB is never found.
    return site.submit(user, script, cpus=1, mib=1, universe="local", **lines)


@case
def local_universe(site):
    """The fence is its owner's, with the limits that the configuration has for a job to which nothing was granted."""
    log = site.home / "usage.jsonl"
    section = "[VnodeType=local]\nZeroCPUs=0.5\nDefaultRAMSpace=120\nMaxProcesses=50\n"
    site.configure(f"UsageLog={log}\n{section}")
    jobid = submit(site, f"{ESCAPEE}; {WAIT}; exit 4")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    expect_in(f"/uid_{uid('alice')}/job_{jobid}.0/step_local", group.path, "its directory")
    expect_equal(group.cpu_limit(), 0.5, "its CPU limit")
    expect_equal(group.memory_limit(), 120 * MIB, "its memory limit")
    expect_equal(group.parent.processes_limit(), 50, "its limit of processes")
    expect_equal(group.parent.cpu_limit(), None, "the CPU limit of the job, whose number a job of another schedd can have")
    expect(site.starter(group), "the starter is not in the fence")
    expect_equal(kernel.Group.of(who[0]), group, "the group of a process with a session of its own")
    end_of(site, jobid)
    expect_ended([who], group)
    done = until(lambda: (got := site.command(str(site.jobfence), "report", f"{jobid}.0", "--json")).returncode == 0 and got, 20, "a line")
    expect_in('"step":"local"', done.stdout, "the usage log")


@case(release=True)  # local_and_slot_at_once has this limit, too
def local_without_a_configuration(site):
    """With an empty configuration, a local job has ZeroCPUs, and not the CPU that it asks for."""
    jobid = submit(site, "sleep 1000")
    group = fenced(site, jobid)
    expect_equal((group.cpu_limit(), group.memory_limit()), (0.2, None), "its limits")


@case
def local_out_of_memory(site):
    """What takes too much is killed, and the starter lives. The job is on hold, and condor_q -hold says our sentence."""
    site.configure("[VnodeType=local]\nDefaultRAMSpace=100\n")
    jobid = submit(site, f"{WAIT}; {TAKE % (300, 1)}; echo status $?; sleep 2; exit 7")
    group = fenced(site, jobid)
    starter = site.starter(group)
    expect(starter, "the starter is not in the fence")
    let_go(site, jobid)
    # Only the starter tells the schedd why.
    reason, code, _ = site.held(jobid)
    expect_equal(code, 34, f"the code of the hold, whose reason is {reason}")
    expect("status 0" not in site.output(jobid), "it had three times its memory")
    expect_gone(group.parent)
    until(lambda: site.watcher(jobid) is None, 60, "the end of the watcher")
    reason = site.job(jobid)["HoldReason"]
    ours = f"job {jobid}.0 step local: process .* was killed: the step reached its memory limit of 100.0 MiB"
    expect_match(ours, reason, "what the watcher has told the schedd")
    site.act("release", jobid)
    fenced(site, jobid)
    return reason


@case(release=True)  # local_universe shows the limit, and local_out_of_memory that it kills
def local_without_htcondors_cgroup(site):
    """Without a cgroup of HTCondor's, what takes too much is killed alone: the job goes on, and the starter says how it ends."""
    site.configure("[VnodeType=local]\nDefaultRAMSpace=100\n")
    with site.changed(USE_CGROUPS_FOR_LOCAL_UNIVERSE="False"):
        jobid = submit(site, f"cat /proc/self/cgroup; {WAIT}; {TAKE % (300, 1)}; echo status $?; exit 7")
        group = fenced(site, jobid)
        expect_equal(group.memory_limit(), 100 * MIB, "its memory limit")
        end_of(site, jobid, 7)
        expect_in("status 137", site.output(jobid), "how the program ended")
        expect("/htcondor/" not in site.output(jobid), "HTCondor has made a cgroup for it")
        expect_gone(group.parent)
        until(lambda: site.watcher(jobid) is None, 120, "the end of the watcher")


@case(release=True)  # removed, and local_universe's end
def local_removed(site):
    """condor_rm ends all that is in the fence, and the fence."""
    jobid = submit(site, f"{ESCAPEE}; sleep 1000")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    site.remove(jobid)
    expect_ended([who], group)


@case
def local_refused(site):
    """A local job that cannot be fenced is put on hold with the reason, and runs when the file is mended."""
    return refused_until_mended(site, lambda script: submit(site, script))


@case
def local_of_another_name(site):
    """What its user writes into the job's ad makes it nobody else's. An ad that is longer than a pipe comes whole."""
    for lines in {"+OsUser": '"bob"'}, {"+Long": '"' + "x" * 200_000 + '"'}:
        jobid = submit(site, f"id -u >uid.$JOB_ID; {WAIT}; exit 4", **lines)
        group = fenced(site, jobid)
        expect_in(f"/uid_{uid('alice')}/job_{jobid}.0/", group.path, "its directory")
        expect_equal(pid_from(site.directory("alice") / f"uid.{jobid}"), uid("alice"), "the user who runs it")
        end_of(site, jobid)
    # An end of a line in a text: for the starter it is one of the ad, too.
    forged = submit(site, "id -u >uid.$JOB_ID", **{"+Aa": r'"x\nOwner = \"bob\"\nOsUser = \"bob\""'})
    reason = site.held_or_ended(forged)
    if reason:
        expect_match("cannot be fenced: the job's ad says .* twice", reason, "the reason")
    ran = site.directory("alice") / f"uid.{forged}"
    expect(not ran.exists() or not reason, "it was held, and has run")
    if not reason:
        expect_equal(pid_from(ran), uid("alice"), "the user who runs it")
    return reason or "the schedd lets no end of a line through"


@case(release=True)  # starter_is_killed and watcher_is_killed
def local_starter_is_killed(site):
    """All of a local job ends at once with its starter, and the fence too; also if the watcher dies with it."""
    for is_watched in True, False:
        jobid = submit(site, f"{ESCAPEE}; sleep 1000")
        group, who = fenced(site, jobid), escapee_of(site, jobid)
        before = inode(group)
        if not is_watched:
            os.kill(site.watcher(jobid), signal.SIGKILL)
        os.kill(site.starter(group), signal.SIGKILL)

        def is_gone(group=group, before=before, is_watched=is_watched):
            if not is_watched:
                reap(site)
            # The schedd starts the job again, in a fence of the same name.
            return inode(group) != before
        until(is_gone, 30, "the end of the fence")
        expect_dead(who, 30)
        site.remove(jobid)
        expect_gone(group, 60)


@case(release=True)  # startd_is_killed
def local_schedd_is_killed(site):
    """The starter ends for want of its parent, and with it the local job and the fence."""
    jobid = submit(site, f"{ESCAPEE}; sleep 1000")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    os.kill(site.daemon_pid("condor_schedd"), signal.SIGKILL)
    expect_gone(group, 120)
    expect_dead(who, 20)
    until(site.is_answering, 120, "the pool")
    site.remove(jobid)


@case(release=True)  # as_granted; a later release alone can do so
def local_by_a_startd(site):
    """Where the schedd has a startd of its own for local jobs, each has a slot, and the limits of that."""
    if site.release() < (24, 0):
        raise Skip("HTCondor 23.9 starts no job in this way: the schedd does not understand its startd")
    with site.changed(SCHEDD_USES_STARTD_FOR_LOCAL_UNIVERSE="True"):
        jobid, group, who = escaping(site, "alice", f"{WAIT}; exit 4", cpus=2, mib=100, universe="local")
        expect_in(f"/uid_{uid('alice')}/job_{jobid}.0/step_slot1_1", group.path, "its directory")
        expect_equal((group.cpu_limit(), group.memory_limit()), (2.0, (100 + STARTERS_MIB) * MIB), "its limits")
        end_of(site, jobid)
        expect_ended([who], group)


@case
def local_and_slot_at_once(site):
    """A job of a slot and a local one of one user do not change each other's limits."""
    local, other = submit(site, "sleep 1000"), site.submit("alice", "sleep 1000")
    groups = fenced(site, local), fenced(site, other)
    expect_equal([group.cpu_limit() for group in groups], [0.2, 1.0], "their CPU limits")
    site.remove(local)
    expect_gone(groups[0].parent, 60)
    expect_equal(groups[1].cpu_limit(), 1.0, "the CPU limit of the other job")
