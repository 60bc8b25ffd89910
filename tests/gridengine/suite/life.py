# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a job: how it is stopped, runs again and ends."""

import os
import pty
import re
import select
import signal
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import (
    ESCAPEE, case, escapee_of, expect, expect_all_dead, expect_dead, expect_ended, expect_equal, expect_gone, expect_in, expect_match,
    fenced, is_frozen, running, steps_of,
)
from contract.kernel import Group
from contract.sites import until

from ..harness import ask, expect_limits
from ..sites import CELL, ROOT


@case
def out_of_time(site):
    """h_rt ends it as qdel does."""
    def seen(jobid):
        """The fence and the escapee; or that the job has ended before both were seen."""
        escapee = site.directory("alice") / f"escapee.{jobid}"

        def found():
            group, who = steps_of(site, jobid).get("step_job"), escapee.exists() and escapee_of(site, jobid)
            return (group, who) if group and who else not site.queued(jobid) and (None, None)
        return until(found, 60, f"the fence of job {jobid} or its end")
    for seconds in 4, 20, 120:
        jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000", "-l", f"h_rt={seconds}")
        group, who = seen(jobid)
        if group:
            break
    expect(group, "nothing of any job was seen before its end")
    row = site.wait(jobid, timeout=120)
    expect_equal(row["exit_status"].split()[0], "137", "exit_status")
    expect_ended([who], group)


@case
def suspended_at_its_soft_limit(site):
    """A warning at s_rt lets no suspended job go on: the job hears it later."""
    warned, begin = (site.directory("alice") / name for name in ("warned.soft", "began.soft"))
    jobid, group = running(site, "alice", f"trap 'touch {warned}' USR1\ntouch {begin}\nwhile :; do sleep 0.2; done", "-l", "s_rt=20")
    until(begin.exists, 20, "its beginning")
    mark = site.log_mark()
    site.qmod("-sj", jobid)
    until(lambda: is_frozen(group), 10, "a frozen fence")
    expect(not warned.exists(), "it was warned before it was suspended, and this shows nothing")
    until(lambda: "soft wallclock" in site.log_since(mark), 60, "execd's word of the soft limit")
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        expect(is_frozen(group), "it goes on")
        time.sleep(0.1)
    site.qmod("-usj", jobid)
    until(warned.exists, 20, "the warning")
    site.end(jobid)


@case
def suspended_with_notice(site):
    """A job that is warned before (-notify) has the time to hear it: nothing stands still meanwhile."""
    jobid, group = running(site, "alice", "trap 'echo warned >warned.$JOB_ID' USR1\nwhile :; do sleep 0.2; done", "-notify")
    site.qmod("-sj", jobid)
    until((site.directory("alice") / f"warned.{jobid}").exists, 20, "the warning")
    expect(not is_frozen(group), "the fence stands still")
    site.qdel(jobid)
    site.wait(jobid, timeout=120)


@case
def runs_again(site):
    """A job that is put back into the queue has a fence again, under its old number."""
    jobid, group = running(site, "alice", "echo restarted $RESTARTED; [ $RESTARTED = 1 ] || sleep 1000; cat /proc/self/cgroup", "-r", "y")
    members = [kernel.identity(pid) for pid in group.members()]
    site.qmod("-rj", jobid)
    expect_all_dead(members, 20)
    site.wait(jobid, timeout=120)
    expect_in("restarted 1", site.output(jobid), "the second run")
    expect_in(f"/job_{jobid}/step_job", site.output(jobid), "its cgroup")


@case
def asks_to_run_again(site):
    """Exit status 99 puts the job back into the queue."""
    script = "[ -e ran.$JOB_ID ] || { touch ran.$JOB_ID; exit 99; }\ncat /proc/self/cgroup"
    jobid = site.submit("alice", script, "-r", "y")
    site.wait(jobid, timeout=120)
    expect_in(f"/job_{jobid}/step_job", site.output(jobid), "its cgroup")


@case
def migrated(site):
    """A job that is suspended into a checkpoint ends here, its method runs in the fence, and the job begins again in a new one."""
    where = site.directory("alice")
    method = site.home / "migrate"
    method.write_text(f"#!/bin/sh\ncat /proc/self/cgroup >{where}/migrated.$1\nkill -9 -$2\n")
    method.chmod(0o755)
    checkpoint = {
        "ckpt_name": "own", "interface": "APPLICATION-LEVEL", "ckpt_command": "none", "migr_command": f"{method} $job_id $job_pid",
        "restart_command": "none", "clean_command": "none", "ckpt_dir": "/tmp", "signal": "none", "when": "sx"}
    given = site.home / "checkpoint"
    given.write_text("".join(f"{key} {value}\n" for key, value in checkpoint.items()))
    site.qconf("-Ackpt", str(given))
    try:
        with site.queue(ckpt_list="own"):
            script = f"echo restarted $RESTARTED; [ $RESTARTED = 2 ] || {{ {ESCAPEE}; sleep 1000; }}; cat /proc/self/cgroup"
            jobid = site.submit("alice", script, "-ckpt", "own")
            group, who = fenced(site, jobid), escapee_of(site, jobid)
            site.qmod("-sj", jobid)
            until((where / f"migrated.{jobid}").exists, 30, "the method of the checkpoint")
            expect_dead(who, 20)
            expect_in(f"/job_{jobid}/step_shepherd", (where / f"migrated.{jobid}").read_text(), "the group of the method")
            expect_gone(group.parent, 20)
            site.qmod("-usj", jobid)
            site.wait(jobid, timeout=120, ends=2)
            expect_in("restarted 2", site.output(jobid), "the second run")
            expect_in(f"/job_{jobid}/step_job", site.output(jobid), "its cgroup")
    finally:
        site.qconf("-dckpt", "own")


@case
def reserved(site):
    """A job for which qmaster has kept slots free (-R y) begins when the job before it has ended, in a fence of its own."""
    with site.changed(["-ssconf"], ["-Msconf"], max_reservation="10"):
        first = site.submit("alice", "until [ -e end.$JOB_ID ]; do sleep 0.2; done", "-pe", "smp", "3", "-l", "h_rt=0:10:0")
        fenced(site, first)
        whole = site.submit("bob", "sleep 1000", "-pe", "smp", "4", "-R", "y", "-p", "0", "-l", "h_vmem=50M")
        # A run of the scheduler, which finds it waiting.
        schedule = Path(ROOT, CELL, "common/schedd_runlog")
        before = kernel.read_bytes(schedule)
        site.qconf("-tsm")
        until(lambda: kernel.read_bytes(schedule)[len(before):], 30, "a run of the scheduler")
        expect_equal(site.queued(whole), ["qw"], "the state of a job with no room")
        (site.directory("alice") / f"end.{first}").touch()
        group = fenced(site, whole, timeout=90)
        expect_limits(group.parent, 4, 200)
        site.end(whole)


@case
def interactive(site):
    """qrsh has a fence, too."""
    done = site.as_user("alice", ["qrsh", "-now", "no", "cat", "/proc/self/cgroup"])
    expect_equal(done.returncode, 0, f"qrsh ({done.stderr})")
    expect_in("/step_job", done.stdout, "its cgroup")


@case
def at_a_terminal(site):
    """The shells of qrsh and qlogin are fenced, with a terminal, and so is what they leave behind."""
    for command in "qrsh", "qlogin":
        ours, theirs = pty.openpty()
        process = site.as_user("alice", [command, "-now", "no"], terminal=theirs, env={"TERM": "dumb"})
        os.close(theirs)
        said = b""
        deadline = time.monotonic() + 30 * sites.PATIENCE
        try:
            is_asked = False
            while not re.search(rb"/step_job.*terminal=yes.*left=\d+", said, re.S):
                expect(time.monotonic() < deadline, f"{command} says {said.decode(errors='replace')}")
                # qrsh ends if something is typed before the shell is there.
                if not is_asked and re.search(rb"\$ $", said):
                    # Not as it is echoed.
                    os.write(ours, b"cat /proc/self/cgroup; tty -s && echo terminal=y''es; sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo left=$!'\n")
                    is_asked = True
                if select.select([ours], [], [], 0.5)[0]:
                    try:
                        said += os.read(ours, 4096)
                    except OSError:
                        raise AssertionError(f"{command} has ended, and said {said.decode(errors='replace')}") from None
            who = kernel.identity(int(re.findall(rb"left=(\d+)", said)[-1]))
            os.write(ours, b"exit\n")
            expect_dead(who, 20)
            process.wait(20 * sites.PATIENCE)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        until(site.idle_again, 30, f"the end of {command}")


@case
def x_terminal(site):
    """What qsh starts as an X terminal is fenced as a job, ends with all that it has left behind, and qdel ends it."""
    program = site.home / "x-terminal"
    program.write_text(f"#!/bin/sh\n{ESCAPEE}\necho \"$@\" >said.new; mv said.new said.$JOB_ID\nuntil [ -e close.$JOB_ID ]; do sleep 0.2; done\n")
    program.chmod(0o755)
    top = site.directory("alice")
    with site.changed(["-sconf", "global"], ["-Mconf"], xterm=str(program)):
        # It reads its configuration then, and otherwise at some time.
        site.stop_execd(signal.SIGTERM)
        site.start_execd()
        for is_closed in True, False:
            done = site.as_user("alice", ["qsh", "-now", "yes", "-cwd", "-display", "display:7", *ask(2, 200)])
            expect_equal(done.returncode, 0, f"qsh ({done.stdout}{done.stderr})")
            jobid = expect_match(r"Your job (\d+)", done.stdout + done.stderr, "its number")[1]
            site.submitted.append(("alice", jobid))
            until((top / f"said.{jobid}").exists, 30, f"a terminal of job {jobid}, which is {site.queued(jobid)} {site.reason(jobid)}")
            expect_match(r"^-display display:7 -n .* -e /bin/bash$", (top / f"said.{jobid}").read_text().strip(), "what the terminal is told")
            group, who = fenced(site, jobid), escapee_of(site, jobid)
            terminal = site.job_pids(jobid, str(program))
            expect_equal([Group.of(pid) for pid in terminal], [group], "the group of the terminal")
            expect_equal(Group.of(who[0]), group, "the escapee's group")
            expect_in(f"/job_{jobid}/step_job", group.path, "its directory")
            for one in group, group.parent, group.parent.step("step_shepherd"):
                expect_limits(one, 2, 200)
            if is_closed:
                (top / f"close.{jobid}").touch()
            else:
                site.qdel(jobid)
            site.wait(jobid)
            expect_ended([who], group)


@case
def prolog_and_epilog(site):
    """What the shepherd runs before the job is in the job's step, and what it runs later in its own."""
    say = "sh -c 'grep -o \"/job_.*\" /proc/self/cgroup | head -n 1 >/tmp/jobfence-%s'"
    for name in "prolog", "epilog":
        script = site.home / name
        script.write_text(f"#!/bin/sh\n{say % name}\n")
        script.chmod(0o755)
    with site.queue(prolog=f"root@{site.home}/prolog", epilog=f"root@{site.home}/epilog"):
        # One that ends at once can be over before the door has seen that it began.
        jobid = site.submit("alice", "sleep 2")
        site.wait(jobid)
    for name, step in ("prolog", "job"), ("epilog", "shepherd"):
        expect_equal(kernel.read(f"/tmp/jobfence-{name}").strip(), f"/job_{jobid}/step_{step}", f"the {name}'s cgroup")
        os.unlink(f"/tmp/jobfence-{name}")


@case(on=("installed",))
def service_restarts(site):
    """systemd restarts the service of execd, and leaves the jobs and their doors alone, as Debian's unit has it."""
    jobid, group = running(site, "alice", "until [ -e end.$JOB_ID ]; do sleep 0.2; done; exit 5")
    doors, execd = site.shepherds(jobid), site.execd_pid()
    site.command("systemctl", "restart", "gridengine-exec.service")
    until(lambda: site.execd_pid() not in (None, execd), 30, "another execd")
    expect_equal(site.command("systemctl", "show", "-p", "KillMode", "gridengine-exec.service").stdout.strip(), "KillMode=process", "its unit")
    expect_equal(site.shepherds(jobid), doors, "door and shepherd")
    expect(group.members(), "the job is gone")
    (site.directory("alice") / f"end.{jobid}").touch()
    expect_equal(site.wait(jobid, timeout=120)["exit_status"].split()[0], "5", "exit_status")
    expect_gone(group.parent)
