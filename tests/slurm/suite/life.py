# SPDX-License-Identifier: GPL-2.0-or-later
"""What happens to a running job: it is stopped, goes on, starts again, and its daemons do."""

import contextlib
import os
import re
import signal
import time

from contract import kernel
from contract.harness import (
    allocated, case, ended, ended_after, expect, expect_all_dead, expect_dead, expect_equal, expect_match, fenced, fenced_in_all, logged,
    nobody_looks, running, started,
)
from contract.kernel import Group
from contract.sites import until
from ..harness import ended_line, expect_limits, fences_well, kill_daemons, until_gone
from .steps import running_job

SPINNER = "while :; do :; done"


def scontrol(site, *args):
    done = site.command("scontrol", *(str(arg) for arg in args))
    expect_equal(done.returncode, 0, f"scontrol {' '.join(map(str, args))} ({done.stderr})")


RUNS_AGAIN = """
echo run $((SLURM_RESTART_COUNT)) $JOBFENCE_CGROUP
setsid sleep 300 </dev/null >/dev/null 2>&1 &
sleep 300
"""


@case
def requeue_after_stepd_killed(site):
    """The new run finds the directories of the old one, with somebody in them."""
    jobid = site.submit(site.users[0], RUNS_AGAIN, "-c1", "--mem=100", "--requeue",
                        "--open-mode=append")
    group = fenced(site, jobid)
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 10, "its processes")
    orphans = list(filter(None, map(kernel.identity, group.members(below=True))))
    expect(orphans, "no process found")
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*orphans))
        with nobody_looks():
            kill_daemons(site, jobid)
            site.run_again(jobid)
            expect_all_dead(orphans, 20)
            again = fenced(site, jobid)
            # Slurm 26.05 has other directories for each run.
            if not again.slurms:
                expect_equal(again.path, group.path, "the second run's group")
            site.expect_limits(again, 1.0, 100)
        until(lambda: len(again.members(below=True)) >= 3, 10, "the second run's processes")
        runs = re.findall(r"^run (\d+) (\S+)", site.output(jobid), re.M)
        expect_equal(runs, [("0", group.path), ("1", again.path)], "what both runs say of themselves")
        expect_equal(site.end(jobid), "CANCELLED", "state")
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")


def suspended(site):
    """A spinning job that has been suspended: its number and its step."""
    jobid, group = running(site, site.users[0], SPINNER, "-c1", "--mem=100")
    until(lambda: group.cpu_seconds() > 0.2, 30, "the spinner's first turns")
    scontrol(site, "suspend", jobid)
    expect_equal(site.job(jobid)["JobState"], "SUSPENDED", "state")

    def stands():
        used = group.cpu_seconds()
        time.sleep(1)
        return group.cpu_seconds() - used < 0.02
    until(stands, 10, "the spinner to stand still")
    return jobid, group


@case
def suspend_resume(site):
    jobid, group = suspended(site)
    members = group.members()
    expect(members, "the suspended job has lost its processes")
    site.expect_limits(group, 1.0, 100)
    # Its CPUs are free for others meanwhile, who are fenced as ever.
    fences_well(site, site.users[1])
    used = group.cpu_seconds()
    scontrol(site, "resume", jobid)
    until(lambda: group.cpu_seconds() > used + 0.2, 30, "the spinner's further turns")
    expect_equal(group.members(), members, "processes after it")
    site.expect_limits(group, 1.0, 100)
    expect_equal(site.end(jobid), "CANCELLED", "state")
    until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")


@case
def suspended_outside_of_the_tree(site):
    """As docs/install/slurm.md has it: what Slurm's tracking does not find goes on, at the job's own cost."""
    jobid, group = running(site, site.users[0], f"(setsid sh -c '{SPINNER}' </dev/null >/dev/null 2>&1 &)\nexec sleep 300", "-c1", "--mem=100")
    until(lambda: group.cpu_seconds() > 0.2, 30, "the spinner's first turns")
    scontrol(site, "suspend", jobid)
    sleeping, = site.job_pids(jobid, "sleep")
    spinning, = set(group.members(below=True)) - {sleeping}
    until(lambda: kernel.stat_fields(sleeping)[0] == "T", 20, "the stop of what is in the tree")
    if kernel.slurm_tracks:
        # It hears no SIGTSTP, and is frozen: it neither runs nor waits for a CPU.
        until(lambda: kernel.stat_fields(spinning)[0] != "R", 20, "the stop of what has left the tree")
    else:
        used = group.cpu_seconds()
        until(lambda: group.cpu_seconds() > used + 0.2, 30, "further turns of what has left the tree")
        expect_limits(group, 1.0, 100)
    scontrol(site, "resume", jobid)
    expect_equal(site.end(jobid), "CANCELLED", "state")
    until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")


@case
def scancel_suspended(site):
    """Nothing is left of it, stopped or frozen."""
    jobid, group = suspended(site)
    processes = list(filter(None, map(kernel.identity, group.members())))
    expect(processes, "the suspended job has lost its processes")
    expect_equal(site.end(jobid), "CANCELLED", "state")
    expect_all_dead(processes)
    until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")


def goes_on_through(site, happening):
    """A job with a step of srun's, to which `happening` does nothing."""
    user = site.users[0]
    # A pipe, since a shell that reads from it has no children that come and go.
    go = site.directory(user) / "pipe"
    go.unlink(missing_ok=True)
    os.mkfifo(go)
    go.chmod(0o666)
    mark = site.log_mark()
    jobid = site.submit(user, """
        srun --mem=80 sh -c 'read word <pipe; exit 3'
        echo srun=$?
        srun --mem=70 sh -c 'echo $JOBFENCE_MEMORY_BYTES; sleep 300 & wait'
        """, "-c1", "--mem=100")
    batch, step = fenced(site, jobid), fenced(site, jobid, "step_0")
    processes = list(filter(None, map(kernel.identity, batch.members() | step.members())))
    daemons = site.step_daemons(jobid)
    expect(len(daemons) >= 2, f"step daemons {daemons}")
    happening()

    def as_before():
        site.expect_limits(batch, 1.0, 100)
    as_before()
    expect_limits(step, 1.0, 80)
    expect_equal(sorted(site.step_daemons(jobid)), sorted(daemons), "step daemons")
    for who in processes:
        expect_equal(kernel.identity(who[0]), who, "a process of the job")
        expect(Group.of(who[0]) in (batch, step), f"process {who[0]} is in {Group.of(who[0])}")
    if os.cpu_count() > 1:
        # A second job beside it, which looks for what dead step daemons have left.
        fences_well(site, user)
    as_before()
    # Without a reader this is an error.
    with open(os.open(go, os.O_WRONLY | os.O_NONBLOCK), "w") as pipe:
        pipe.write("go\n")
    second = fenced(site, jobid, "step_1", timeout=20)
    go.unlink()
    expect_limits(second, 1.0, 70)
    as_before()
    expect_match(r"srun=3\n", site.output(jobid), "the job's output")
    logged(site, mark, ended_line(jobid, "0"))
    expect_equal(site.end(jobid), "CANCELLED", "state")
    until(lambda: not batch.parent.remains(), 5, f"the end of {batch.parent.path}")
    for name in ("1", "batch"):
        logged(site, mark, ended_line(jobid, name))
    expect_equal(site.node_state(), "IDLE", "state of the node")


@case
def slurmd_restarts(site):
    daemon = site.slurmd_pid()

    def happening():
        site.restart_slurmd()
        expect(site.slurmd_pid() != daemon, "slurmd has not been restarted")
    goes_on_through(site, happening)


@case(layout=False)
def slurmd_killed(site):
    """Without a farewell: what slurmd left is no litter as long as the step daemons live."""
    daemon = kernel.identity(site.slurmd_pid())

    def happening():
        os.kill(daemon[0], signal.SIGKILL)
        expect_dead(daemon)
        site.restart_slurmd()
    goes_on_through(site, happening)


@case(layout=False)
def reconfigure(site):
    def happening():
        mark = site.log_mark()
        scontrol(site, "reconfigure")
        # Which is all that it says of it at this level, in any release.
        until(lambda: site.log_since(mark), 20, "a word of slurmd")
        until(lambda: site.command("scontrol", "show", "slurmd").returncode == 0, 30, "slurmd")
    goes_on_through(site, happening)


@case(layout=False)
def controller_restarts(site):
    goes_on_through(site, site.restart_controller)


def mapped(pid, plugin):
    """Whether the process has the plugin loaded from the file that is there, and whether from one that is not any more."""
    names = {line.split(None, 5)[5] for line in kernel.read(f"/proc/{pid}/maps").splitlines()
             if str(plugin) in line}
    return str(plugin) in names, f"{plugin} (deleted)" in names


@contextlib.contextmanager
def replaced(plugin):
    """For the time being another file, by a rename as of 'make install'; what follows the last section is no part of it."""
    before, mode = plugin.read_bytes(), plugin.stat().st_mode

    def put(data):
        beside = plugin.with_name(f".{plugin.name}.new")
        beside.write_bytes(data)
        beside.chmod(mode)
        beside.rename(plugin)
    put(before + b"\0")
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def record_of_another_release(site):
    """Of a step that runs, in a form that this release does not know but for its first lines."""
    records = site.run_directory()
    made = not records.exists()
    records.mkdir(mode=0o700, exist_ok=True)
    owner, start = kernel.identity(os.getpid())
    record = records / "uid_65533,job_1,step_0"
    record.write_text(
        f"jobfence-record 3\nboot_id={kernel.read('/proc/sys/kernel/random/boot_id')}\n"
        f"pid_namespace={os.readlink('/proc/self/ns/pid')}\nowner_pid={owner}\nowner_start={start}\n"
        "directories=in words that are still to be found\nend\n")
    try:
        yield record
    finally:
        record.unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):
                records.rmdir()


def base_directories(site):
    """Where all our own directories are, as they are made and removed only as a whole."""
    tops = {top for base in site.bases() for top in kernel.Group("/" + base).directories()}
    return {str(top): top.stat().st_ino for top in tops}


@case
def upgraded(site):
    """A new release is installed while a job runs: what runs ends with the old one, what begins has the new one."""
    user, plugin = site.users[0], site.plugin()
    go = site.directory(user) / "go"
    go.unlink(missing_ok=True)
    # One that began before jobfence was enabled does without it.
    site.restart_slurmd()
    slurmd = kernel.identity(site.slurmd_pid())
    mark = site.log_mark()

    def daemon_of(name):
        title = f"slurmstepd: [{jobid}.{name}]"
        return until(lambda: [pid for pid in site.step_daemons(jobid) if kernel.command_line(pid).startswith(title)],
                     5, f"the step daemon of {name}")[0]

    with record_of_another_release(site) as record:
        strange = record.stat().st_ino, record.read_text()
        jobid = site.submit(user, """
            srun --overlap --mem=40 sleep 300 &
            until [ -e go ]; do sleep 0.1; done
            srun --overlap --mem=60 sleep 300 &
            wait
            """, "-n1", "-c1", "--mem=200")
        batch, old = fenced(site, jobid), fenced(site, jobid, "step_0")
        bases = base_directories(site)
        expect(bases or not old.own, "our own directories are nowhere")
        old_daemons = {name: daemon_of(name) for name in ("batch", "0")}
        for name, pid in old_daemons.items():
            expect_equal(mapped(pid, plugin), (True, False), f"step {name} has the file, or one that was removed")
        with replaced(plugin):
            go.touch()
            new = fenced(site, jobid, "step_1", timeout=20)
            go.unlink()
            expect_equal(mapped(daemon_of("1"), plugin), (True, False), "step 1 has the new file, or the old one")
            for name, pid in old_daemons.items():
                expect_equal(mapped(pid, plugin), (False, True), f"step {name} has the new file, or the old one")
            expect_equal(mapped(slurmd[0], plugin), (False, True), "slurmd has the new file, or the old one")
            for group, mib in ((batch.parent, 200), (batch, 200), (old, 40), (new, 60)):
                expect_limits(group, 1.0, mib)
            processes = list(filter(None, map(kernel.identity, old.members())))
            expect(processes, "step 0 has lost its processes")
            site.scancel(f"{jobid}.0")
            expect_all_dead(processes)
            until(lambda: not old.remains(), 10, f"the end of {old.path}")
            logged(site, mark, ended_line(jobid, "0"))
            expect(new.members(), "step 1 has lost its processes")
            expect_limits(batch.parent, 1.0, 200)
            expect_equal(base_directories(site), bases, "our base, and its number")
            fences_well(site, user)
            expect_equal(site.end(jobid), "CANCELLED", "state")
            until(lambda: not batch.parent.remains(), 5, f"the end of {batch.parent.path}")
            for name in ("1", "batch"):
                logged(site, mark, ended_line(jobid, name))
            expect_equal(kernel.identity(site.slurmd_pid()), slurmd, "slurmd")
            expect_equal((record.stat().st_ino, record.read_text()), strange, "the record of another release")
            expect(record.name not in site.log_since(mark), "slurmd's log has something to say of that record")
    fences_well(site, user)


@case(on=["two-nodes"])
def one_of_two_restarts(site):
    """Two slurmd on a host: what one does to its jobs is nothing to the other's.

    The same job and user on both, so that but for the node everything has the same name.
    """
    user = site.users[0]
    jobid = site.submit(user, "srun sleep 300", "-N2", "-n2", "-c1", "--mem=100")
    groups = {node: fenced(site, jobid, "step_0", node=node) for node in site.nodes}
    processes = {node: list(filter(None, map(kernel.identity, group.members())))
                 for node, group in groups.items()}
    other, kept = running(site, site.users[1], "sleep 300", "-w", "n2", "-c1", "--mem=120")
    site.restart_slurmd("n1")
    # It cleans up when it starts, and so does each launch.
    small = site.submit(user, "true", "-w", "n1", "-c1", "--mem=100")
    expect_equal(site.wait(small), "COMPLETED", "state of a job after it")
    for node, group in groups.items():
        site.expect_limits(group, 1.0, 100)
        for who in processes[node]:
            expect_equal(kernel.identity(who[0]), who, f"a process of the job on {node}")
            fenced_in_all(who[0], group)
    expect_limits(kept, 1.0, 120)
    expect(kept.members(), "the other user's job has lost its processes")
    site.scancel(jobid, other)
    for one in (jobid, other):
        expect_equal(site.wait(one), "CANCELLED", f"state of job {one}")
    for group in groups.values():
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")


@case(on=["two-nodes"])
def dead_step_on_one_of_two(site):
    """What is left on one node is removed by a launch; the same step goes on on the other."""
    user = site.users[0]
    jobid = site.submit(user, "srun sleep 300", "-N2", "-n2", "-c1", "--mem=100", "--no-kill")
    groups = {node: fenced(site, jobid, "step_0", node=node) for node in site.nodes}
    orphans = list(filter(None, map(kernel.identity, groups["n2"].members())))
    alive = list(filter(None, map(kernel.identity, groups["n1"].members())))
    daemons = [pid for pid in site.step_daemons(jobid)
               if f"{jobid}.0" in kernel.command_line(pid)
               and set(kernel.descendants(pid)) & {pid for pid, _ in orphans}]
    expect_equal(len(daemons), 1, "step daemons of step 0 on n2")
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_after(*orphans))
        kill_daemons(site, jobid, daemons)
        small = site.submit(site.users[1], "true", "-w", "n2", "-c1", "--mem=100")
        expect_equal(site.wait(small), "COMPLETED", "state of a job on n2")
        expect_all_dead(orphans)
        for who in alive:
            expect_equal(kernel.identity(who[0]), who, "process on n1")
        until_gone(site, groups["n2"], 5, f"the end of {groups['n2'].path}")
        expect_limits(groups["n1"], 1.0, 100)
    site.end(jobid)
    for group in groups.values():
        until_gone(site, group.parent, 10, f"the end of {group.parent.path}")


@case(layout=False, patient=True, release=True)
def warned_and_timed_out(site):
    """`sbatch --signal=B:…` comes to the script alone, and a step's own time limit ends that step."""
    user = site.users[0]
    # The controller looks every 30 s. The job's own limit is a minute later than all that is waited for.
    jobid = site.submit(user, """
        trap 'echo warned' USR1
        srun --time=1 --mem=80 sh -c 'trap "echo task warned" USR1; while :; do sleep 1; done' &
        while :; do wait -n && break; status=$?; jobs %1 >/dev/null 2>&1 || break; done
        echo srun=$status
        sleep 300 & wait
        """, "-c1", "--mem=100", "--time=3", "--signal=B:USR1@120")
    batch, step = fenced(site, jobid), fenced(site, jobid, "step_0")
    until(lambda: "warned" in site.output(jobid), 100, "the signal")
    expect_limits(batch, 1.0, 100)
    until(lambda: "srun=" in site.output(jobid), 120, "the end of the step")
    until(lambda: not step.remains(), 10, f"the end of {step.path}")
    said = site.output(jobid)
    expect("task warned" not in said, f"the step has had the script's signal:\n{said}")
    expect_match(r"DUE TO TIME LIMIT", said, "the job's output")
    expect_limits(batch, 1.0, 100)
    expect_equal(site.end(jobid), "CANCELLED", "state")


@case(layout=False)
def srun_waits(site):
    """--wait: when the first task has ended, the others are given so long, and killed with all."""
    user = site.users[0]
    task = """
        [ $SLURM_PROCID = 0 ] && { until [ -e go ]; do sleep 0.1; done; exit 0; }
        setsid sleep 300 </dev/null >/dev/null 2>&1 &
        sleep 300
        """
    args = ["srun", "-n2", "--overcommit", "-c1", "--mem=100", "--wait=1", "sh", "-c", task]
    go = site.directory(user) / "go"
    go.unlink(missing_ok=True)
    with started(site, user, args) as srun:
        jobid = allocated(site, user, running_job(site, user))
        step = fenced(site, jobid, "step_0")
        until(lambda: len(site.job_pids(jobid, "sleep 300")) >= 2, 10, "the second task")
        processes = list(filter(None, map(kernel.identity, step.members())))
        go.touch()
        status, _, said = ended(srun)
        go.unlink()
    expect(status != 0, "srun returned 0")
    expect_match(r"(?i)first task exited 1s ago", said, "srun's stderr")
    expect_all_dead(processes)
    until(lambda: not step.parent.remains(), 5, f"the end of {step.parent.path}")
