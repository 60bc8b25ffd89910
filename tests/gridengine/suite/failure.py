# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes wrong: a job is refused rather than unfenced, and whoever dies leaves nothing behind."""

import os
import signal

from contract import kernel
from contract.harness import (
    case, escaping, expect, expect_all_dead, expect_ended, expect_equal, expect_gone, expect_in, expect_match, fenced, reaped,
)
from contract.sites import until


def refused(site, script="touch ran.$JOB_ID", *args):
    """A job in error, and why. The queue goes on."""
    jobid = site.submit("alice", script, *args)
    site.wait_state(jobid, "Eqw")
    reason = site.reason(jobid)
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")
    expect_equal(site.host_state(), "", "the state of the queue")
    site.qdel(jobid)
    return reason


@case
def nonsense(site):
    """With OnError=warn, too, no job goes on without a fence because of what its user has written."""
    site.configure("OnError=warn\n")
    for given, why in (
        (("-v", "JOBFENCE_CPU_LIMIT=half"), 'JOBFENCE_CPU_LIMIT: found "half"'),
        (("-v", "JOBFENCE_REQUESTED=mem_free=much"), 'mem_free: found "much", expected an amount'),
        # To qmaster that is an hour, and so 3600 bytes.
        (("-l", "h_vmem=1:0:0"), 'h_vmem: found "1:0:0", expected an amount'),
    ):
        expect_in(why, refused(site, "touch ran.$JOB_ID", *given), "the reason")


@case
def forged(site):
    """A user who has a newline in an argument gets no more slots, and reads why, also with OnError=warn."""
    site.configure("OnError=warn\n")
    script = site.directory("alice") / "script"
    script.write_text("#!/bin/sh\ntouch ran.$JOB_ID\n")
    for argument in "x\nhost_slots 64", "x\njob_owner root", "x\n= h_vmem INFINITY", "x\nckpt_dir=/x", "x\nPARAM l_hard gpu=4":
        done = site.as_user("alice", ["qsub", "-terse", "-cwd", "script", argument])
        jobid = done.stdout.strip()
        site.submitted.append(("alice", jobid))
        site.wait_state(jobid, "Eqw")
        line = argument.split("\n")[1]
        key = line.strip(" =").split()[0]
        why = f"{key} stands there with more than one value" if key in ("host_slots", "job_owner", "h_vmem") else f'behind job_arg1 stands "{line}'
        expect_in(why, site.reason(jobid), "the reason")
        site.qdel(jobid)


# What its user has asked for can be fenced nowhere. qrsh is deaf to SIGTERM while it waits.
WRONG = ("-v", "JOBFENCE_CPU_LIMIT=half")
SOON = ("timeout", "-s", "KILL", "25")
WHY = "jobfence: this job was not started, since it cannot be fenced: JOBFENCE_CPU_LIMIT: found"


def expect_over(site):
    """The last job is over, and the accounting says that it has failed."""
    until(site.idle_again, 20, "the end of the job")
    row = until(lambda: site.last_end(), 10, "a row of the accounting")
    expect_match(r"^100 ", row["failed"], f"failed of job {row['jobnumber']}")
    expect_equal(site.host_state(), "", "the state of the queue")


@case
def refused_session(site):
    """Who waits at a terminal reads at once why the job was not started, by each way that its client is called; and the job is over. The mail
    that the user has asked for says it, too."""
    ran = site.directory("alice") / "ran"
    mails, mailer = site.home / "mails", site.home / "mailer"
    mailer.write_text(f"#!/bin/sh\ncat >>{mails}/mail\n")
    mailer.chmod(0o755)
    mails.mkdir()
    mails.chmod(0o777)
    for builtin in True, False:
        daemon, command = ("builtin", "builtin") if builtin else ("/usr/sbin/sshd -i", "/usr/bin/ssh")
        keys = {f"{kind}_{what}": value for kind in ("rsh", "rlogin", "qlogin") for what, value in (("daemon", daemon), ("command", command))}
        with site.changed(["-sconf", "global"], ["-Mconf"], mailer=str(mailer), **keys):
            # It reads its configuration then, and otherwise at some time.
            site.stop_execd(signal.SIGTERM)
            site.start_execd()
            for now in "no", "yes":
                (mails / "mail").unlink(missing_ok=True)
                done = site.as_user("alice", [*SOON, "qrsh", "-now", now, "-m", "a", *WRONG, "touch", str(ran)])
                expect_in(WHY, done.stderr, "what qrsh says")
                expect_equal(done.returncode, 1, f"exit status of qrsh -now {now} with {daemon}")
                expect_over(site)
                until(lambda: WHY in kernel.read(mails / "mail"), 20, f"a mail with the reason, not {kernel.read(mails / 'mail')!r}")
            done = site.as_user("alice", [*SOON, "qrsh", "-now", "no", "-pe", "mpi", "2", *WRONG, "touch", str(ran)])
            expect_in(WHY, done.stderr, "what qrsh of a parallel job says")
            expect_over(site)
            # They have no option for variables.
            site.configure("ConstrainCores=yes\n")
            for client in "qlogin", "qrsh":
                done = site.as_user("alice", [*SOON, client, "-now", "no"])
                expect_in("jobfence: this job was not started", done.stderr, f"what {client} says")
                expect_equal(done.returncode, 1, f"exit status of {client} with {daemon}")
                expect_over(site)
            site.configure()
        site.stop_execd(signal.SIGTERM)
        site.start_execd()
    expect(not ran.exists(), "it has run")


@case
def refused_slave_task(site):
    """qrsh -inherit says at once why its task was not started, and the job goes on."""
    words = " ".join((*SOON, "qrsh", "-inherit", *WRONG))
    jobid = site.submit("alice", f"{words} $(hostname) touch ran.$JOB_ID; echo status $?; qrsh -inherit $(hostname) echo goes on",
                        "-pe", "mpi", "2", "-v", "PATH", "-j", "n")
    site.wait(jobid)
    expect_in(WHY, site.told(jobid), "what qrsh says")
    expect_in("status 1", site.output(jobid), "its exit status")
    expect_in("goes on", site.output(jobid), "the next task")
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")
    return [row["failed"] for row in site.ends_of(jobid)]


@case
def door_is_killed(site):
    """execd takes the job for dead; the janitor ends what is left of it, the shepherd, too."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", "-r", "n")
    door, shepherd = site.shepherds(jobid)
    own = kernel.identity(shepherd)
    os.kill(door, signal.SIGKILL)
    site.wait(jobid)
    reaped(site, group)
    expect_all_dead((who, own))
    expect_gone(group.parent)


@case
def door_of_a_job_that_runs_again(site):
    """Its door is killed, and the job comes back to this host while its old shepherd lives: both are never together in one fence."""
    top = site.directory("alice")
    jobid, group, who = escaping(site, "alice", "touch ran.$RESTARTED.$JOB_ID; sleep 1234", "-r", "y")
    # The last that its script starts: what comes later is of the second run.
    until(lambda: site.job_pids(jobid, "sleep 1234"), 30, "the sleep of the first run")
    door, shepherd = site.shepherds(jobid)
    step = group.parent.step("step_shepherd")
    old = {pid: kernel.identity(pid) for pid in {*group.members(), *step.members(), shepherd}}
    os.kill(door, signal.SIGKILL)
    expect_equal(kernel.identity(shepherd), old[shepherd], "the shepherd after its door's death")
    mixed = []

    def runs_again():
        for one in group, step:
            members = one.members()
            stale = {pid for pid in members if old.get(pid) and kernel.identity(pid) == old[pid]}
            fresh = {pid for pid in members - set(old) if kernel.is_alive(pid)}
            if stale and fresh:
                mixed.append((one.path, stale, {pid: kernel.command_line(pid) for pid in fresh}))
        return (top / f"ran.1.{jobid}").exists()
    until(runs_again, 150, f"the second run of a job that is {site.queued(jobid)}")
    expect(not mixed, f"processes of both runs in one fence: {mixed[:3]}")
    expect_all_dead((who, *old.values()), 1)
    # A job that is ended while its script still starts what it is about can end otherwise.
    until(lambda: site.job_pids(jobid, "sleep 1234"), 30, "the sleep of the second run")
    again = fenced(site, jobid)
    expect_equal(again, group, "the fence of the second run")
    new_door, new_shepherd = site.shepherds(jobid)
    expect(new_door not in (None, door) and new_shepherd not in (None, shepherd), "there is no new shepherd")
    site.qdel(jobid)
    site.wait(jobid, timeout=120)
    expect_gone(group.parent)


@case
def shepherd_is_killed(site):
    """All of the job ends, and execd hears that the shepherd was killed."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", "-r", "n")
    mark = site.log_mark()
    os.kill(site.shepherds(jobid)[1], signal.SIGKILL)
    site.wait(jobid)
    expect_match(r"died through signal = 9", site.log_since(mark), "execd's log")
    expect_ended([who], group)


@case
def execd_is_killed(site):
    """The job goes on, and what ends meanwhile is accounted for when execd is back."""
    jobid, group, who = escaping(site, "alice", "until [ -e end.$JOB_ID ]; do sleep 0.2; done; exit 6")
    site.stop_execd()
    expect(group.members(), "the job is gone")
    (site.directory("alice") / f"end.{jobid}").touch()
    expect_ended([who], group)
    site.start_execd()
    expect_equal(site.wait(jobid, timeout=120)["exit_status"].split()[0], "6", "exit_status")
