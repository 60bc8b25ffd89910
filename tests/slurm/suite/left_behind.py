# SPDX-License-Identifier: GPL-2.0-or-later
"""What would stay for ever: beside the tasks, without a fence, in Slurm's own directories, with no record, inside the kernel."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import (
    PYTHON, Skip, case, ended_after, expect, expect_all_dead, expect_dead, expect_equal, expect_in, expect_match, fenced, logged,
    nobody_looks, pid_from, reap, running, until_clean,
)
from contract.sites import PATH, die_with_parent, until
from ..harness import expect_limits, expect_not_drained, expect_not_started, fences_well, kill_daemons
from .failure import failing, makes_ours_first
from .with_systemd import SCOPE, only_with_systemd, systemctl

STUCK = Path(__file__).resolve().parents[1] / "stuck.py"


@contextlib.contextmanager
def held(site):
    """Somebody looks again and again, as jobfence.service does where it is installed."""
    if Path("/run/systemd/system").is_dir():
        yield
        return
    command = [str(site.jobfence), "hold", "--config", str(site.config), "-o", "ReapInterval=1"]
    hold = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            preexec_fn=die_with_parent)
    try:
        until((site.run_directory() / "hold.lock").is_dir, 5, "jobfence hold")
        yield
    finally:
        hold.terminate()
        hold.wait(120)


def stepd_dies(site, jobid):
    """slurmstepd is killed, and the controller gives the job up."""
    kill_daemons(site, jobid)
    site.end(jobid)


# Leaves its parent, its group and its session, and spins.
ESCAPES = f"""{PYTHON} -S -c '
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("%s", "w").write(str(os.getpid()) + "\\n")
        for fd in range(3): os.close(fd)
        while True: pass
    os._exit(0)
os.wait()'"""


@case
def task_epilog(site):
    """What TaskEpilog= starts as the user runs where Slurm's daemons do, and ends with the step."""
    user = site.users[0]
    directory = site.directory(user)
    with held(site):
        for environment in ("", "env -i "):
            if environment and not Path("/run/systemd/system").is_dir():
                # Slurm's daemons are where anybody can be: only the mark in its environment says whose it is.
                continue
            file = directory / f"epilog.{time.monotonic_ns()}"
            program = directory / f"{file.name}.sh"
            program.write_text(f"#!/bin/sh\n{environment}{ESCAPES % file}\n")
            program.chmod(0o755)
            done = site.srun(user, "-n1", "--mem=100", f"--task-epilog={program}", "sh", "-c", "true")
            expect_equal(done.returncode, 0, f"srun ({done.stderr})")
            who = kernel.identity(pid_from(file))
            if who:
                with ended_after(who):
                    expect_dead(who, 20)
        # It is as what another plugin has started, which the other tasks need.
        file = directory / f"epilog.{time.monotonic_ns()}"
        program.write_text(f"#!/bin/sh\n[ $SLURM_PROCID = 1 ] || {ESCAPES % file}\n")
        script = f'[ $SLURM_PROCID = 0 ] || {{ until [ -s {file} ]; do sleep 0.1; done; sleep 1; kill -0 $(cat {file}) && echo lives; }}'
        done = site.srun(user, "-n2", "-O", "--mem=100", f"--task-epilog={program}", "sh", "-c", script)
        expect_equal((done.returncode, done.stdout), (0, "lives\n"), f"srun, and what the second task says ({done.stderr})")
        who = kernel.identity(pid_from(file))
        if who:
            with ended_after(who):
                expect_dead(who, 20)


@case
def without_a_fence(site):
    """OnError=warn: the processes of a step that has no cgroup of ours end with it all the same, and no others do."""
    if not makes_ours_first(site):
        raise Skip("where directories are Slurm's there is nothing to make, and a step is always fenced")
    user = site.users[0]
    file = site.directory(user) / f"escaped.{time.monotonic_ns()}"
    with held(site), contextlib.ExitStack() as cleanup:
        other = site.as_user(user, ["sleep", "300"], start=True)
        cleanup.callback(other.wait)
        cleanup.callback(other.kill)
        with failing(site, "init_post_opt", "readonly", arguments=["OnError=warn"]) as mark:
            jobid = site.submit(user, f"{ESCAPES % file}\nsleep 300", "-c1", "--mem=100")
            who = kernel.identity(pid_from(file))
            logged(site, mark, "WITHOUT a fence")
        with ended_after(who):
            records = site.run_directory() / "tracked"
            until(lambda: records.is_dir() and list(records.iterdir()), 5, "a record of the step")
            expect_equal(who, kernel.identity(who[0]), "the escaped process")
            site.end(jobid)
            until(lambda: not site.step_daemons(jobid), 20, "the end of the step daemon")
            reap(site)
            expect_dead(who, 20)
            expect(other.poll() is None, "another process of the user's was ended")
    fences_well(site, user)


@case(layout=False)
def without_cgroups(site):
    """Where no cgroup can be seen, what dead step daemons left is ended by a launch, a start of slurmd and jobfence reap all the same."""
    user = site.users[0]
    site.configure(CgroupMountpoint="/nonexistent", OnError="warn")

    def launch():
        done = site.srun(user, "-n1", "--mem=100", "true")
        expect_equal(done.returncode, 0, f"srun ({done.stderr})")

    def by_hand():
        status, said = site.ours("reap")
        expect_equal(status, 1, "status of jobfence reap")
        expect_in("only processes of steps without a fence", said, "what jobfence reap says")

    for chance in launch, site.restart_slurmd, by_hand:
        mark = site.log_mark()
        jobid = site.submit(user, "sleep 300 & sleep 300", "-c1", "--mem=100")
        who = until(lambda: site.job_pids(jobid, "sleep 300")[1:] and site.job_pids(jobid), 10, "its processes")  # noqa: B023
        logged(site, mark, "WITHOUT a fence")
        with contextlib.ExitStack() as cleanup:
            orphans = list(filter(None, map(kernel.identity, who)))
            cleanup.enter_context(ended_after(*orphans))
            stepd_dies(site, jobid)
            expect(any(kernel.identity(orphan[0]) == orphan for orphan in orphans), "they have ended before")
            chance()
            expect_all_dead(orphans, 20)
    expect_not_drained(site)


@case
def slurmd_starts_where_others_died(site):
    """The start of slurmd is a chance of its own: with no launch, and with nobody else who looks."""
    user = site.users[0]
    jobid, group = running(site, user, "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100", "--no-requeue")
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    bystander, theirs = running(site, site.users[1], "sleep 300", "-c1", "--mem=100")
    orphans = list(filter(None, map(kernel.identity, group.members(below=True))))
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(nobody_looks())
        cleanup.enter_context(ended_after(*orphans))
        stepd_dies(site, jobid)
        expect(any(kernel.identity(who[0]) == who for who in orphans), "they have ended before")
        mark = site.log_mark()
        site.restart_slurmd()
        logged(site, mark, "removed .*, which a dead step daemon left", 10 * sites.PATIENCE)
        expect_all_dead(orphans, 20)
    until(lambda: not group.parent.exists(), 5, f"the end of {group.parent.path}")
    expect(theirs.members(below=True), "the processes of another job were ended")
    expect_equal(site.end(bystander), "CANCELLED", "state of the other job")
    expect_not_drained(site)


@case
def slurms_directories(site):
    """Where the step daemon is killed, Slurm leaves its own directories: they go if that is wanted, and not before they are empty."""
    user = site.users[0]
    jobid, group = running(site, user, "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    if not group.slurms:
        site.scancel(jobid)
        raise Skip("Slurm has no directories of its own here")
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    bystander, theirs = running(site, user, "sleep 300", "-c1", "--mem=100")
    orphans = list(filter(None, map(kernel.identity, group.members(below=True))))
    site.configure(ReapSchedulerLeftovers="no")
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*orphans))
        cleanup.enter_context(nobody_looks())
        stepd_dies(site, jobid)
        said = reap(site)
        expect("removed /" not in said, f"it says that a directory of Slurm's was removed:\n{said}")
        expect_all_dead(orphans, 20)
        expect(group.exists(), "Slurm's directory was removed, and was to stay")
        site.configure()
        expect_in("removed ", reap(site), "what jobfence reap says")
    until(lambda: not group.parent.exists(), 5, f"the end of {group.parent.path}")
    expect(theirs.members(below=True), "the processes of another job were ended")
    expect_equal(site.end(bystander), "CANCELLED", "state of the other job")
    fences_well(site, user)


@case
def next_launch_removes(site):
    """Where nobody else looks: the next step on the node ends and removes what a dead daemon has left, Slurm's own directories, too."""
    user, other = site.users
    jobid, group = running(site, user, "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100", "--no-requeue")
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    bystander, theirs = running(site, other, "sleep 300", "-c1", "--mem=100")
    orphans = list(filter(None, map(kernel.identity, group.members(below=True))))
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(nobody_looks())
        cleanup.enter_context(ended_after(*orphans))
        stepd_dies(site, jobid)
        expect(any(kernel.identity(who[0]) == who for who in orphans), "they have ended before")
        fences_well(site, other)
        expect_all_dead(orphans, 5)
        # A launch waits 200 ms for what others have left, and a slow machine needs more: the launch after it goes on.
        until(lambda: not group.parent.exists() or fences_well(site, other), 5, f"the end of {group.parent.path}")
    expect(theirs.members(below=True), "the processes of another job were ended")
    expect_equal(site.end(bystander), "CANCELLED", "state of the other job")
    expect_not_drained(site)


@case
def extern_daemon_is_killed(site):
    """Of the extern step no plugin is told of any process: its directories go all the same, wherever Slurm has some."""
    user = site.users[0]
    with site.reconfigured(PrologFlags="Contain"):
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        group = fenced(site, jobid).parent
        until(lambda: len(site.step_daemons(jobid)) == 2, 10, "the daemons of two steps")
        until(group.step("step_extern").exists, 10, "the extern step's directory")
        with contextlib.ExitStack() as cleanup:
            orphans = list(filter(None, map(kernel.identity, group.members(below=True))))
            cleanup.enter_context(ended_after(*orphans))
            cleanup.enter_context(nobody_looks())
            stepd_dies(site, jobid)
            reap(site)
            expect_all_dead(orphans, 20)
        until(lambda: not group.remains(), 5, f"the end of {group.path}")
    expect_not_drained(site)


@case
def records_are_deleted(site):
    """Somebody empties /run: what runs is limited and ends as before, and what a dead daemon leaves is found by its mark."""
    user = site.users[0]
    first = site.submit(user, "sleep 300", "-c1", "--mem=100")
    second = site.submit(user, "setsid sleep 300 & sleep 300", "-c1", "--mem=100")
    groups = [fenced(site, jobid) for jobid in (first, second)]
    shutil.rmtree(site.run_directory())
    expect_limits(groups[0], 1.0, 100)
    expect_equal(site.end(first), "CANCELLED", "state")
    fences_well(site, user)
    orphans = list(filter(None, map(kernel.identity, groups[1].members(below=True))))
    expect(orphans, "no process found")
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*orphans))
        shutil.rmtree(site.run_directory())
        stepd_dies(site, second)
        reap(site)
        expect_all_dead(orphans, 20)
    for group in groups:
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")  # noqa: B023
    expect_not_drained(site)


@case(layout=False)
def run_is_full(site):
    """Where no record can be written no step is fenced; none is left either, and the next one after it is fenced."""
    user = site.users[0]
    run = site.home / "run-is-full"
    run.mkdir()
    options = "size=4k,nr_inodes=4,mode=700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", run], check=False, env={"PATH": PATH})
    expect_equal(done.returncode, 0, "mount")
    try:
        with contextlib.suppress(OSError):
            for number in range(4):
                (run / f".full{number}").touch()
        with site.plugstack(f"RunDir={run}"):
            jobid = site.submit(user, "touch ran.$SLURM_JOB_ID", "-c1", "--mem=100")
            expect_not_started(site, user, jobid)
            expect_in("No space left on device", site.output(jobid), "the job's output")
        mark = site.log_mark()
        with site.plugstack(f"RunDir={run}", "OnError=warn"):
            # What leaves its session, too, would be known to nobody now.
            jobid = site.submit(user, "sleep 300 & sleep 1", "-c1", "--mem=100")
            expect_equal(site.wait(jobid), "COMPLETED", "state")
            logged(site, mark, "WITHOUT a fence.*No space left on device")
            until(lambda: not site.job_pids(jobid), 20, "the end of its processes")
    finally:
        subprocess.run(["umount", "-l", run], check=False, env={"PATH": PATH})
        run.rmdir()
    expect_not_drained(site)
    fences_well(site, user)


@case
def scope_is_stopped(site):
    """systemd ends all jobs in the scope: that is what was asked for. Nothing is left, and the next job is fenced."""
    only_with_systemd(site)
    user = site.users[0]
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
    if fenced(site, jobid).slurms:
        site.scancel(jobid)
        raise Skip("the jobs are in Slurm's own scope here")
    systemctl(site, "stop", SCOPE.path.rsplit("/", 1)[-1])
    expect_match("FAILED|CANCELLED|COMPLETED", site.wait(jobid), "state of the job whose processes systemd has ended")
    systemctl(site, "restart", "jobfence.service")
    until(SCOPE.remains, 20, "the scope")
    expect_not_drained(site)
    fences_well(site, user)


@case(layout=False)
def node_fails(site):
    """The controller gives the node up while a job runs there, and takes it back."""
    user = site.users[0]
    jobid, group = running(site, user, "setsid sleep 300 & sleep 300", "-c1", "--mem=100", "--no-requeue")
    orphans = list(filter(None, map(kernel.identity, group.members(below=True))))
    try:
        site.command("scontrol", "update", f"nodename={site.node}", "state=down", "reason=test")
        expect_equal(site.wait(jobid), "NODE_FAIL", "state")
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(ended_after(*orphans))
            expect_all_dead(orphans, 30)
        until(lambda: not group.parent.remains(), 10, f"the end of {group.parent.path}")
    finally:
        site.resume()
    until(lambda: site.node_state() == "IDLE", 30, "the node")
    fences_well(site, user)


def fence_holds_until_the_node_is_heard_of(site, give_up):
    """On a node whose slurmd stands still, `give_up` makes the controller think that it is gone; then it goes on."""
    user = site.users[0]
    neighbour, kept = running(site, site.users[1], "sleep 300", "-w", "n2", "-c1", "--mem=100")
    jobid = site.submit(user, "srun sh -c 'setsid sleep 300 & sleep 300'", "-N2", "-n2", "-c1", "--mem=100", "--no-requeue")
    groups = {node: fenced(site, jobid, "step_0", node=node) for node in site.nodes}
    until(lambda: len(groups["n2"].members(below=True)) >= 3, 5, "the job's processes on n2")
    there = list(filter(None, map(kernel.identity, groups["n2"].members(below=True))))
    slurmd = site.slurmd_pid("n2")

    def given_up():
        if "DOWN" in site.node_state():
            return True
        give_up()
        return False
    os.kill(slurmd, signal.SIGSTOP)
    try:
        give_up()
        expect_equal(site.wait(jobid, 90), "NODE_FAIL", "state")
        until(lambda: not groups["n1"].remains(), 10, f"the end of {groups['n1'].path} on n1")
        # What slurmd had said before it stood still may be read after this, and then the node is back.
        until(given_up, 30, "the node, given up")
        expect_equal([kernel.identity(who[0]) for who in there], there, "the job's processes on n2")
        for group in (groups["n2"], kept):
            expect_limits(group, 1.0, 100)
    finally:
        os.kill(slurmd, signal.SIGCONT)
    # It reports to the controller at once, and not only when it is asked again.
    os.kill(slurmd, signal.SIGHUP)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*there))
        expect_all_dead(there, 30)
    until(lambda: not groups["n2"].parent.remains(), 10, f"the end of {groups['n2'].parent.path}")
    until(lambda: site.node_state() == "IDLE", 30, "the nodes")
    fences_well(site, user)


@case(on=["two-nodes"])
def node_is_given_up(site):
    """The administrator gives up a node on which all goes on. There the fence holds until the node is heard of again; then all of it goes."""
    fence_holds_until_the_node_is_heard_of(
        site, lambda: site.command("scontrol", "update", "nodename=n2", "state=down", "reason=test"))


# How long the controller waits is real time, and on a busy machine the other node can be late, too.
@case(on=["two-nodes"], release=True)
def node_does_not_answer(site):
    """The controller itself gives it up, as soon as it may: a node is asked three times in this time."""
    with site.reconfigured(SlurmdTimeout=int(10 * sites.PATIENCE), MessageTimeout=int(5 * sites.PATIENCE)):
        fence_holds_until_the_node_is_heard_of(site, lambda: None)


@case
def stuck_in_the_kernel(site):
    """A process that no signal reaches holds up the end of its job for CleanupTimeout, and goes when it can."""
    if site.slurm_tracks():
        raise Skip("Slurm itself waits for it, before any callback")
    if not os.path.exists("/dev/fuse"):
        subprocess.run(["modprobe", "fuse"], check=False, env={"PATH": PATH})
    if not os.path.exists("/dev/fuse"):
        raise Skip("no FUSE here")
    if os.cpu_count() < 2:
        raise Skip("one CPU: no job runs beside one that does not end")
    user = site.users[0]
    directory = site.directory(user) / f"stuck.{time.monotonic_ns()}"
    directory.mkdir()
    server = subprocess.Popen([sys.executable, "-S", STUCK, directory], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, preexec_fn=lambda: die_with_parent(signal.SIGTERM))

    def stuck(seconds):
        """A job that may be held up for so long, at its script's end; and its process in the kernel."""
        site.configure(CleanupTimeout=seconds)
        file = site.directory(user) / f"{directory.name}.pid{seconds}"
        # Slurm does not know it: with a session of its own it is not one of its processes.
        jobid = site.submit(user, f"setsid sh -c 'echo $$ >{file}; exec ls {directory}' >/dev/null 2>&1 &\n"
                                  f"while [ ! -e {file} ]; do sleep 0.1; done; sleep 1; date +ended=%s", "-c1", "--mem=100")
        who = kernel.identity(pid_from(file))
        until(lambda: "ended=" in site.output(jobid), 30, "the end of the script")
        return jobid, who
    mark = site.log_mark()
    try:
        expect_equal(server.stdout.readline(), "mounted\n", "the file system")
        # It began to end first, so nothing but its own time keeps it longer.
        longer, other = stuck(600)
        jobid, who = stuck(3)
        began = time.monotonic()
        until(lambda: not site.step_daemons(jobid), 60, "the end of the step daemon")
        took = time.monotonic() - began
        expect(site.step_daemons(longer), "a job that may be held up for ten minutes was so no longer than one for 3 s")
        expect(kernel.identity(who[0]) == who, "the process did not wait inside the kernel: this shows nothing")
        logged(site, mark, "cannot remove the step's directories yet: .*(not die|looked through in time)")
        # Meanwhile others begin and end.
        fences_well(site, user)
        expect_not_drained(site)
    finally:
        server.terminate()
        server.wait(sites.LEAST)
    expect_all_dead((who, other), 10)
    until(lambda: not site.step_daemons(longer), 60, "the end of the other step daemon")
    reap(site)
    until_clean(site, 5)
    return f"held up for {took:.1f} s"
