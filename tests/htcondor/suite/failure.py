# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes wrong: a job is held rather than unfenced, and whoever dies leaves nothing behind."""

import os
import signal
import time

from contract import kernel
from contract.harness import (
    case, escaping, expect, expect_dead, expect_equal, expect_gone, expect_in, expect_match, fenced, reap, reaped, running, steps_of,
)
from contract.sites import until

from ..harness import inode, restarts

# HTCondor waits for so long for a daemon that may come back to the job.
FORGOTTEN_SOON = {"job_lease_duration": 20}


@case
def hook_of_the_users(site):
    """A keyword of the job's own does not keep it from being held."""
    site.configure("CPUQuotaPercnt=90\n")
    with site.changed(OTHER_HOOK_PREPARE_JOB="/bin/true"):
        jobid = site.submit("alice", "touch ran.$JOB_ID", **{"+HookKeyword": '"OTHER"'})
        reason, _, _ = site.held(jobid)
    expect_match("cannot be fenced", reason, "the reason")
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")


@case
def network_is_not_bounded(site):
    """A job whose network is to be bounded is held, where its processes are in a directory that HTCondor may make anew, and where nobody runs
    `jobfence hold`. 'jobfence check' says so."""
    site.configure(NetworkMax="1M")
    status, said = site.ours("check")
    expect_equal(status, 1, f"exit status of jobfence check ({said})")
    expect_in("NO job would be fenced here as configured: no program holds back what jobs send (NetworkMax)", said, "what jobfence check says")
    jobid = site.submit("alice", "touch ran.$JOB_ID")
    reason, _, _ = site.held(jobid)
    expect_match("jobs in cgroups of the scheduler's own have no NetworkMax|no program holds back what jobs send", reason, "the reason")
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")


@case(release=True)  # a restart of HTCondor; hook_of_the_users shows that no hook keeps a job from being held
@restarts
def hook_of_the_sites(site):
    """No keyword of the site's runs a job that is to be refused, however the configuration names the starters that it is for."""
    name = "STARTER_JOB_HOOK_KEYWORD"
    persistent = site.home / "persistent/.config.STARTER"
    persistent.parent.mkdir(exist_ok=True)
    persistent.write_text(f"STARTER.{name} = SITE\nSLOT_TYPE_1.{name} = SITE\n")
    forms = (
        {f"STARTER.{name}": "SITE"}, {f"SLOT_TYPE_1.{name}": "SITE"},
        {"STARTER.ENABLE_PERSISTENT_CONFIG": "True", "PERSISTENT_CONFIG_DIR": persistent.parent},
    )
    # A starter has the name of its slot's type only where the configuration has types.
    types = {"NUM_SLOTS_TYPE_1": 1, "SLOT_TYPE_1": "100%", "SLOT_TYPE_1_PARTITIONABLE": True}
    with site.changed(restart=True, SITE_HOOK_PREPARE_JOB="/bin/true", **types):
        jobid = site.submit("alice", "sleep 1000")
        expect_in("-local-name slot_type_1", kernel.command_line(site.starter(fenced(site, jobid))), "the starter's arguments")
        site.remove(jobid)
        line = site.configure("CPUQuotaPercnt=90\n") + 1
        reasons, refused = {}, f"cannot be fenced: /etc/jobfence/jobfence.conf:{line}:1"
        for keys in forms:
            with site.changed(**keys):
                jobid = site.submit("alice", "touch ran.$JOB_ID")
                reason = site.held_or_ended(jobid)
                if refused not in reason or (site.directory("alice") / f"ran.{jobid}").exists():
                    reasons[" and ".join(keys)] = reason or "it has run"
        site.configure()
    expect_equal(reasons, {}, "what became of jobs that are to be refused, by HTCondor's keys")


@case
def debugs_its_starter(site):
    """A text of the job's that becomes an argument of the starter is no option of ours."""
    for text in "-classad", "-local-name":
        jobid, group = running(site, "alice", "sleep 1000", **{"+JobStarterDebug": f'"{text}"'})
        expect_equal(group.cpu_limit(), 1.0, "its CPU limit")
        site.remove(jobid)


@case
def starter_is_killed(site):
    """All of its job ends at once, and the job runs again in a fence of its own."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", **FORGOTTEN_SOON)
    before = inode(group)
    os.kill(site.starter(group), signal.SIGKILL)
    expect_dead(who, 20)

    def runs_again():
        return any(inode(group) not in (None, before) for group in steps_of(site, jobid).values())
    until(lambda: runs_again() or "held" in site.queued(jobid), 180, "its next run, in a fence of its own")


@case
def watcher_is_killed(site):
    """The janitor does its work."""
    jobid, group, who = escaping(site, "alice", "sleep 1000")
    pid = site.watcher(jobid)
    expect(pid, "nobody waits for the end of the starter")
    expect(pid not in group.members(below=True), "it is in the fence that it closes")
    os.kill(pid, signal.SIGKILL)
    site.remove(jobid)
    until(lambda: not site.starter(group), 60, "the end of the starter")
    reaped(site, group)
    expect_dead(who, 20)


@case
def janitor_leaves_it_to_the_watcher(site):
    """Only the watcher says why a job was killed. So the janitor waits until the watcher has closed the fence, or is gone."""
    jobid, group = running(site, "alice", "sleep 1000")
    watcher, began = site.watcher(jobid), time.time()
    os.kill(watcher, signal.SIGSTOP)
    try:
        site.remove(jobid)
        until(lambda: not site.starter(group), 60, "the end of the starter")
        said = reap(site)
        expect(group.parent.exists(), f"the janitor has removed {group.parent.path}, and says {said}")
    finally:
        os.kill(watcher, signal.SIGCONT)
    expect_gone(group.parent)
    until(lambda: f"job {jobid}.0 step" in site.said(began), 60, "what the watcher says")


@case(release=True)  # tests/watcher.rs and janitor_leaves_it_to_the_watcher, without chance
@restarts
def many_begin_and_end_at_once(site):
    """Each watcher closes its fence and says so: HTCondor takes none for a process of the starter's, and no janitor is faster."""
    count, turns = 24, 3
    with site.changed(restart=True, NUM_CPUS=count, MEMORY=50 * count):
        for _ in range(turns):
            began = time.time()
            jobid = site.submit("alice", "exit 0", mib=50, queue=count)
            until(lambda jobid=jobid: not site.queued(jobid), 300, f"the end of the {count} jobs {jobid}")

            def unsaid(jobid=jobid, began=began):
                said = site.said(began)
                return [n for n in range(count) if f"job {jobid}.{n} step" not in said]
            try:
                until(lambda unsaid=unsaid: not unsaid(), 120, "what the watchers say")
            except AssertionError:
                raise AssertionError(f"of jobs {jobid}.{unsaid()} no watcher has said anything: {site.said(began)}") from None
            expect("dead step daemon" not in site.said(began), f"a janitor was faster than a watcher: {site.said(began)}")
    return f"{count * turns} jobs"


@case
def startd_is_killed(site):
    """The starter ends for want of its parent, and with it the job and the fence."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", **FORGOTTEN_SOON)
    os.kill(site.startd_pid(), signal.SIGKILL)
    expect_gone(group, 120)
    expect_dead(who, 20)
    site.remove(jobid)


@case(release=True)  # two starts of HTCondor; startd_is_killed shows that a job ends with its daemons
def master_is_killed(site):
    """systemd ends the daemons that are left, and with them the job and the fence. HTCondor starts again, and so does the job."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", **FORGOTTEN_SOON)
    before, startd = inode(group), kernel.identity(site.startd_pid())
    os.kill(site.daemon_pid("condor_master"), signal.SIGKILL)
    until(lambda: inode(group) != before, 120, f"the end of {group.path}")
    expect_dead(who, 20)
    expect_dead(startd, 60)
    site.restart()
    again = fenced(site, jobid)
    expect(inode(again) not in (None, before), "the same fence")
    expect_equal(again.cpu_limit(), 1.0, "its CPU limit")
    site.remove(jobid)
    expect_gone(again, 60)


@case(release=True)  # a restart of HTCondor; startd_is_killed shows that a job ends with its daemons
def condor_is_restarted(site):
    """Jobs that run are ended, and no fence of theirs stays."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", **FORGOTTEN_SOON)
    before = inode(group)
    site.restart()
    expect_dead(who, 30)
    # Where the restart takes long, the job runs again by then, in a fence of the same name.
    until(lambda: inode(group) != before, 30, f"the end of {group.path}")
    site.remove(jobid)
    expect(kernel.is_alive(site.startd_pid()), "no startd")
