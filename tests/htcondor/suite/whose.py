# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose job it is: the fence is that of the account that runs it, and what is not known is nobody else's."""

import contextlib
import os
import re
import subprocess
import time

from contract import kernel
from contract.harness import case, expect, expect_equal, expect_in, fenced, running, uid
from contract.sites import until

from ..harness import expect_limits, restarts

# The startd talks to no client that does not agree with it on security first.
STRICT = {"STARTD.SEC_READ_NEGOTIATION": "REQUIRED"}
# The starters' host has another domain than the schedd and its users.
ELSEWHERE = {"STARTER.UID_DOMAIN": "elsewhere.example"}
LETS_ALICE_GO = "[User=alice]\nMode=observe\n"


def expect_account(site, jobid, user):
    """The job runs as this user, in a directory of that user's, with all that the slot has."""
    group = fenced(site, jobid)
    pid = until(lambda: site.job_pids(jobid, "sleep 1000"), 60, "its process")[0]
    expect_equal(os.stat(f"/proc/{pid}").st_uid, uid(user), "as whom HTCondor runs it")
    expect_in(f"/uid_{uid(user)}/job_{jobid}.0/", group.path, "its directory")
    expect_limits(site, group, site.slot(jobid))
    return group


@case
def stranger(site):
    """A user of another domain has the local one's name, and nothing else of theirs: HTCondor runs the job as nobody, or as the slot's user."""
    site.configure(LETS_ALICE_GO)
    # What it writes comes back by the shadow: nobody may write into the directory of alice.
    lines = {"should_transfer_files": "YES"}
    seen = []
    for keys, user in ({}, "nobody"), ({"NOBODY_SLOT_USER": "bob"}, "bob"):
        with site.changed(**ELSEWHERE, **keys):
            jobid = site.submit("alice", "sleep 1000", **lines)
            seen.append(expect_account(site, jobid, user).path)
            site.remove(jobid)
            until(lambda jobid=jobid: not site.queued(jobid), 60, "its end")
    jobid = site.submit("alice", "sleep 1000")
    expect_equal(fenced(site, jobid).cpu_limit(), None, "the CPU limit of the local alice")
    return ", ".join(seen)


@case(release=True)  # stranger has the slot's user, and unit tests the settings
def never_as_the_owner(site):
    """Where the site has no job run as its owner, sections of the slot's user hold, and none of the owner's."""
    site.configure(LETS_ALICE_GO + "[User=bob]\nMaxProcesses=66\n")
    with site.changed(STARTER_ALLOW_RUNAS_OWNER="False", NOBODY_SLOT_USER="bob"):
        jobid = site.submit("alice", "sleep 1000", should_transfer_files="YES")
        expect_equal(expect_account(site, jobid, "bob").parent.processes_limit(), 66, "its limit of processes")


@contextlib.contextmanager
def silent(site, name):
    """A command of HTCondor's that fails for now."""
    script = site.home / f"silent-{name}"
    script.write_text("#!/bin/sh\necho 'no answer' >&2\nexit 1\n")
    script.chmod(0o755)
    subprocess.run(["mount", "--bind", script, f"/usr/bin/{name}"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", f"/usr/bin/{name}"], check=True)


@case  # Before those with STRICT: a startd can refuse on after that.
def no_program_is_asked(site):
    """A second job in a slot needs no program of HTCondor's: neither condor_status nor condor_config_val, whatever they would say."""
    site.wait(site.submit("alice", "true"))
    with silent(site, "condor_config_val"), silent(site, "condor_status"):
        jobid = site.submit("alice", "sleep 1000")
        fenced(site, jobid)
    expect_account(site, jobid, "alice")


@case
@restarts  # after a mere reconfiguration, a startd can go on with the policy that it has applied before
def startd_is_silent(site):
    """Jobs of which nothing is known share no directory, have the strictest of all sections, and the log says later whose they are."""
    site.configure("MaxProcessesPerUser=500\n[User=bob]\nMaxProcesses=66\n" + LETS_ALICE_GO)
    began = time.time()
    with site.changed(restart=True, **STRICT), silent(site, "condor_status"):
        jobids = {user: site.submit(user, "sleep 1000") for user in ("alice", "bob")}
        groups = {user: fenced(site, jobid) for user, jobid in jobids.items()}
    users = {user: group.path.rsplit("/", 3)[1] for user, group in groups.items()}
    expect_equal(len(set(users.values())), 2, f"the number of users' directories of {users}")
    known = {f"uid_{uid(user)}" for user in ("root", "nobody", "alice", "bob")}
    expect(not known & set(users.values()), f"{users} are others'")
    for user, group in groups.items():
        expect_equal(group.cpu_limit(), 1.0, f"the CPU limit of {user}'s job")
        expect_equal(group.parent.processes_limit(), 66, f"the limit of processes of {user}'s job")
        expect_in("/job_slot", group.path, "its directory")
    for user, jobid in jobids.items():
        until(lambda user=user, jobid=jobid: f"is that of job {jobid}.0, of {user}@" in site.said(began), 60, f"whose job {jobid} is, in the log")
    left = [pid for pid in kernel.all_pids() if kernel.command_line(pid).startswith("jobfence-late")]
    until(lambda: not any(kernel.is_alive(pid) for pid in left), 20, "the end of those that ask")
    return ", ".join(users.values())


@case(release=True)  # no_program_is_asked, and startd_is_silent asks in this way
@restarts
def startd_talks_to_few(site):
    """A startd that wants to agree on security with each client is asked by condor_status, and not otherwise again."""
    began, mark = time.time(), site.log_mark()
    with site.changed(restart=True, **STRICT):
        for _ in range(2):
            jobid = site.submit("alice", "sleep 1000")
            expect_account(site, jobid, "alice")
            site.remove(jobid)
    denied = re.findall(r"PERMISSION DENIED .*QUERY_STARTD_ADS", site.log_since(mark, "Start"))
    expect_equal(len(denied), 1, "how often it was asked otherwise")
    expect("the fence has the slot's name" not in site.said(began), "a job was unknown")


@case(release=True)  # startd_is_silent has such a fence, too
def configuration_is_silent(site):
    """Without an answer as whom the starter runs the job, the fence has the job's number, and is no other user's."""
    # What it has said before counts no more when a file has changed.
    with silent(site, "condor_config_val"), site.changed(JOBFENCE_CASE="x"):
        jobid, group = running(site, "alice", "sleep 1000")
    expect_in(f"/job_{jobid}.0/", group.path, "its directory")
    expect(f"/uid_{uid('alice')}/" not in group.path and f"/uid_{uid('nobody')}/" not in group.path, group.path)
