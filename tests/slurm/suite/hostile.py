# SPDX-License-Identifier: GPL-2.0-or-later
"""A hostile user: what he does in his job, and to root's work at its end, comes to nothing.

The attempts are in tests/contract/attempts.py, which runs in the job. Each is named in its output; one that succeeds fails the
case. Meanwhile a bystander's job runs, which must notice nothing.
"""

import contextlib
import os
import re
import shutil
from pathlib import Path

from contract import kernel
from contract.attempted import ATTEMPTS, END, expect_refused, expect_state, state_of
from contract.harness import (
    PYTHON, Skip, case, ended_after, expect, expect_equal, expect_in, expect_not_left, fenced, logged, nobody_looks, running, started,
    uid,
)
from contract.sites import until
from ..harness import ended_line, expect_limits, fences_well, kill_daemons
from .sharing import oversubscribed

# A shell that can start nothing more can still wait.
PREPARED = "rm -f never; mkfifo never; exec 3<>never"  # a pipe that says nothing
UNTIL_STOP = "while read -t 0.2 -u 3 || [ ! -e stop ]; do :; done; echo stopped"


def program(site):
    """The attempts, where every user can read them."""
    copy = site.home / ATTEMPTS.name
    if not copy.exists():
        shutil.copyfile(ATTEMPTS, copy)
        copy.chmod(0o644)
    return f"{PYTHON} -S {copy}"


def fresh(site, user, *names):
    """The user's directory without these files of an earlier case, and without what attempts have made there."""
    top = site.directory(user)
    for path in (*(top / name for name in names), *top.glob("mount.*"), *top.glob("bound.*")):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    return top


@contextlib.contextmanager
def bystander(site, *args):
    """Another user's job, which is as before at the end."""
    user = site.users[1]
    beat = site.directory(user) / "beat"
    beat.unlink(missing_ok=True)
    jobid = site.submit(user, f"sleep 3000 & {PREPARED}; while :; do echo $((n += 1)) >beat; read -t 0.2 -u 3; done",
                        "-c1", "--mem=100", "--time=60", *args)
    group = fenced(site, jobid)
    until(lambda: kernel.read(beat), 10, "the bystander's first beat")
    processes = list(filter(None, map(kernel.identity, site.job_pids(jobid, "sleep") + site.job_pids(jobid, "script"))))
    expect(processes, "the bystander has no processes")
    before = state_of(group)
    yield jobid, group
    for who in processes:
        expect_equal(kernel.identity(who[0]), who, "a process of the bystander's")
    expect_state(group, before)
    # Empty for the moment in which it is written.
    last = int(until(lambda: kernel.read(beat), 10, "the bystander's last beat"))
    until(lambda: int(kernel.read(beat) or 0) > last + 1, 10, "the bystander's next beat")
    expect_equal(site.job(jobid)["JobState"], "RUNNING", "state of the bystander's job")
    expect_equal(site.end(jobid), "CANCELLED", "state of the bystander's job")


def attempted(site, user, what, *args, options=("-c1", "--mem=100")):
    """A job that has made the attempts and goes on: its number, its step, and what this was before."""
    top = fresh(site, user, "go")
    jobid = site.submit(user, f"until [ -e go ]; do sleep 0.1; done; {program(site)} {what} "
                        + " ".join(map(str, args)) + "; sleep 300", *options)
    group = fenced(site, jobid)
    before = state_of(group)
    (top / "go").touch()
    until(lambda: any(word in site.output(jobid) for word in (END, "Traceback")) or site.job(jobid)["JobState"] != "RUNNING",
          120, "the end of the attempts")
    return jobid, group, before


def expect_as_before(site, jobid, group, before):
    expect_state(group, before)
    sleeper = until(lambda: site.job_pids(jobid, "sleep 300"), 10, "the rest of the job")[0]
    expect_equal(kernel.Group.of(sleeper), group, "the job's group afterwards")


# Where Slurm 22.05 gives directories of its own on v1 to the user, he may do with them what he likes.
def slurm_gives_away(group):
    return [d for d in group.directories() if d.stat().st_uid]


def not_where_slurm_gives_away(site, user):
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
    theirs = slurm_gives_away(fenced(site, jobid))
    site.end(jobid)
    if theirs:
        raise Skip(f"Slurm gives the user its own {theirs[0]}")


def namespaces(said):
    return "" if "in a user namespace" in said else "no user namespaces here"


@case
def limits_cannot_be_raised(site):
    """Nor anything else be written, made, removed or renamed where a job is, also with mounts of the user's own."""
    user = site.users[0]
    not_where_slurm_gives_away(site, user)
    site.configure(MaxProcesses="200")
    with bystander(site):
        jobid, group, before = attempted(site, user, "raise")
        said = site.output(jobid)
        files = ("cpu.max", "memory.max", "pids.max", "cgroup.kill", "cgroup.freeze", "cgroup.subtree_control") \
            if kernel.has_v2_controllers() else ("cpu.cfs_quota_us", "memory.limit_in_bytes", "pids.max", "tasks")
        ways = ("write", "chmod", "write by handle", "write by descriptor")
        # Nobody can read cgroup.kill.
        wanted = [rf"^{way} .*/{re.escape(file)}$" for file in files for way in ways
                  if (way, file) != ("write by descriptor", "cgroup.kill")]
        wanted += [rf"^{what} .*job_{jobid}$" for what in ("mkdir", "symlink", "chmod", "rename")] if group.own else []
        if not namespaces(said):
            # In Slurm's directories of tasks there are not all controllers.
            wanted += [rf"^write own mount of .*/{re.escape(file)}$" for file in files if group.own or file.startswith("cgroup.")]
        count = expect_refused(said, *wanted)
        given = re.findall(r"^given to the user: (.*)$", said, re.M)
        expect(group.slurms or not given, f"directories of ours are the user's: {given}")
        expect_as_before(site, jobid, group, before)
        expect_equal(site.end(jobid), "CANCELLED", "state")
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")
    return ", ".join(filter(None, [f"{count} attempts", namespaces(said)]))


@case
def nobody_moves_himself_out(site):
    """Neither up, nor into another job, his own or another's; nor does he stop or kill anybody there."""
    user = site.users[0]
    not_where_slurm_gives_away(site, user)
    with oversubscribed(site), bystander(site, "--oversubscribe") as (_, theirs):
        own, other = running(site, user, "sleep 300", "-c1", "--mem=100", "--oversubscribe")
        processes = list(filter(None, map(kernel.identity, other.members())))
        others = state_of(other)
        elsewhere = [*other.directories(), *other.parent.directories(), *theirs.directories(), *theirs.parent.directories()]
        jobid, group, before = attempted(site, user, "move", *elsewhere, options=("-c1", "--mem=100", "--oversubscribe"))
        wanted = [f"^cgroup.procs of .*{re.escape(other.parent.name)}.*, {what}$" for what in ("itself", "a child", "a thread")]
        wanted += ["being elsewhere", "cgroup namespace of init"]
        wanted += ["^birth in .*step_", "^cgroup.kill of .*step_"] if "" in kernel.hierarchies() and group.own else []
        count = expect_refused(site.output(jobid), *wanted)
        expect_as_before(site, jobid, group, before)
        expect_state(other, others)
        for who in processes:
            expect_equal(kernel.identity(who[0]), who, "a process of his other job")
        site.scancel(jobid, own)
        for one in (jobid, own):
            expect_equal(site.wait(one), "CANCELLED", f"state of job {one}")
    return f"{count} attempts"


@case(layout=False)
def records_are_out_of_reach(site):
    user = site.users[0]
    run = site.run_directory()
    with bystander(site) as (theirs, _):
        top = fresh(site, user, "own")
        records = [f"uid_{uid(site.users[1])},job_{theirs},step_batch"]
        known = sorted(path.name for path in run.iterdir())
        jobid, group, before = attempted(site, user, "records", run, *records)
        wanted = [f"^{what} {re.escape(records[0])}$" for what in ("stat", "read", "link", "unlink", "symlink")]
        count = expect_refused(site.output(jobid), *wanted, "^list RunDir$", "^lock RunDir$", "^rename RunDir",
                               "^read limits.lock")
        expect_as_before(site, jobid, group, before)
        expect(set(known) <= {path.name for path in run.iterdir()}, "a record is lost")
        expect_equal((top / "own").stat().st_nlink, 1, "names of the user's own file")
        if site.jobfence:
            for args in (["reap"], ["adopt", "--pid", str(site.job_pids(jobid)[0])], ["hold"]):
                done = site.as_user(user, [str(site.jobfence), *args])
                expect(done.returncode != 0, f"'jobfence {args[0]}' worked for an ordinary user: {done.stdout}")
        site.end(jobid)
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")
    return f"{count} attempts"


@case(layout=False)
def locks_of_users_hold_up_nobody(site):
    """Whatever a user can open he can lock. Others' jobs begin and end meanwhile as ever."""
    user, other = site.users
    top = fresh(site, user, "let-go")
    jobid, group = running(site, user, "sleep 300", "-c1", "--mem=100")
    run = site.run_directory()
    bases = {d for base in site.bases() for d in kernel.Group("/" + base).directories()}
    paths = [run, run / "limits.lock", run.parent, site.config, site.plugin(), site.plugin().parent, *bases]
    paths += [d for one in (group, group.parent, group.parent.user) for d in one.directories()]
    paths += [hierarchy.mount_point for hierarchy in kernel.hierarchies().values()]
    try:
        with started(site, user, [*program(site).split(), "locks", *map(str, dict.fromkeys(paths))]) as holder:
            locked = holder.stdout.readline().split()[1:]
            expect_in(str(run.parent), locked, "what is locked")
            expect_in(str(group.directories()[0]), locked, "what is locked")
            reached = [path for path in locked if path.startswith(f"{run}/") or path == str(run)]
            expect(not reached, f"the user has locked {reached}")
            mark = site.log_mark()
            fences_well(site, other)
            expect_equal(site.end(jobid), "CANCELLED", "state")
            until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")
            expect(holder.poll() is None, "the locks were given back meanwhile")
            expect_not_left(site, mark)
            (top / "let-go").touch()
    finally:
        (top / "let-go").unlink(missing_ok=True)
    return f"{len(locked)} locks"


@case(layout=False)
def forged_names_lead_nowhere(site):
    """Whatever the environment, the name of the job or files beside it say of whose job it is and how it is to be fenced."""
    user = site.users[0]
    top = fresh(site, user, "jobfence.conf", "plugstack.conf", "limits.lock", "uid_0", f"uid_{uid(user)}", "go")
    for name in "jobfence.conf", "plugstack.conf":
        (top / name).write_text("Mode=off\n")
    for name in "limits.lock", "uid_0", f"uid_{uid(user)}":
        (top / name).symlink_to("/etc")
    with bystander(site) as (victim, theirs):
        forged = {
            "SLURM_JOB_ID": victim, "SLURM_JOBID": victim, "SLURM_STEP_ID": 4294967291, "SLURM_STEPID": "../..",
            "SLURM_JOB_UID": 0, "SLURM_UID": 0, "SLURM_JOB_USER": "root", "SLURMD_NODENAME": "../../../etc", "SLURM_NODENAME": "..",
            "SLURM_CPUS_ON_NODE": 64, "SLURM_MEM_PER_NODE": 100000,
            "JOBFENCE_CGROUP": theirs.path, "JOBFENCE_CPUS": 64, "JOBFENCE_CONFIG": "jobfence.conf", "JOBFENCE_RUN_DIR": ".",
            "RUST_BACKTRACE": 1, "TMPDIR": top,
        }
        forged = {name: str(value) for name, value in forged.items()}
        exports = ",".join(["ALL", *(f"{name}={value}" for name, value in forged.items())])
        mark = site.log_mark()
        # srun itself must know its job; what it hands on is forged, and what it is called.
        jobid = site.submit(user, f"""
            srun -n1 --mem=80 --job-name='../../../../../etc/x' --export='{exports}' sh -c 'sleep 300; true' &
            until [ -e go ]; do sleep 0.1; done
            """, "-c1", "--mem=100", "--job-name=../../../../../../tmp/x", f"--comment=../{victim}", env=forged)
        batch = fenced(site, jobid)
        # Its processes say that they are another job's.
        step = batch.parent.step("step_0")
        until(lambda: step.exists() and step.members(), 20, f"processes in {step.path}")
        for group, mib in (batch.parent, 100), (batch, 100), (step, 80):
            expect_limits(group, 1.0, mib)
        expect_equal(step.parent, batch.parent, "the step's job")
        if batch.own:
            expect(batch.own.endswith(f"/uid_{uid(user)}/job_{jobid}/step_batch"), f"the job is in {batch.own}")
        for base in site.bases():
            for directory in kernel.Group("/" + base).directories():
                below = {path.name for path in directory.iterdir() if path.is_dir()}
                strange = {name for name in below if not re.fullmatch(r"uid_\d+|idle|hold", name)} | below & {"uid_0"}
                expect(not strange, f"{directory} has {strange}")
        (top / "go").touch()
        site.wait(jobid)
        until(lambda: not batch.parent.remains(), 10, f"the end of {batch.parent.path}")
        for name in "0", "batch":
            logged(site, mark, ended_line(jobid, name))
        expect(theirs.members(), "the other job has lost its processes")
    fresh(site, user, "jobfence.conf", "plugstack.conf", "limits.lock", "uid_0", f"uid_{uid(user)}", "go")


# ----------------------------------------------------------------------------------------
# To stay


def expect_ended(site, group, pids, mark):
    """Nobody and nothing of the job is left, and its end, which began there in the log, was the end of it."""
    for pid in pids:
        until(lambda: not Path(f"/proc/{pid}").exists(), 60, f"the end of process {pid}")
    until(lambda: not group.parent.remains(), 60, f"the end of {group.parent.path}")
    expect_not_left(site, mark)


def ends_by_itself(site, jobid):
    """Returns where the log was when its script was at its end, to which it comes in its turn among all of the job's processes."""
    (site.directory(site.users[0]) / "stop").touch()
    until(lambda: "stopped\n" in site.output(jobid), 60, "the end of the script")
    mark = site.log_mark()
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    return mark


def ends_by_scancel(site, jobid):
    """Returns where the log was then."""
    mark = site.log_mark()
    expect_equal(site.end(jobid), "CANCELLED", "state")
    return mark


ENDS = {"by itself": ends_by_itself, "by scancel": ends_by_scancel}


def strays(site, jobid):
    """Processes of the job, wherever they are."""
    return [f"{pid} ({kernel.command_line(pid)[:60]}) in {kernel.cgroups_of(pid)}" for pid in site.job_pids(jobid)]


def storm(site, arguments, limit, rages):
    """A job of processes that are born and go as fast as they can, at its end."""
    user = site.users[0]
    site.configure(MaxProcesses=limit)
    with bystander(site):
        for name, end in ENDS.items():
            fresh(site, user, "stop", "never")
            jobid, group = running(site, user, f"{PREPARED}; {program(site)} storm {arguments} & {UNTIL_STOP}", "-c1", "--mem=300")
            until(lambda: rages(group), 60, "the storm")
            expect_ended(site, group, (), end(site, jobid))
            expect_equal(strays(site, jobid), [], f"processes of the job that ended {name}")


def others_each_time(count):
    """Whether so many processes have been seen in a group: none is there for long."""
    seen = {}

    def rages(group):
        found = seen.setdefault(group.path, set())
        found.update(group.members())
        return len(found) > count
    return rages


@case
def forks_do_not_outrun_the_end(site):
    return storm(site, "20", 100, others_each_time(300))


@case
def forks_without_first_threads_do_not_either(site):
    """The kernel's cgroup.kill signals the first thread of a process alone, and that of these has ended."""
    return storm(site, "20 leaderless", 100, others_each_time(300))


@case(layout=False)
def no_room_for_processes_at_the_end(site):
    """A step at its limit of processes, all of which want more, ends as any other."""
    def rages(group):
        directory = group.limits_directory("pids")
        refused = kernel.keyed(kernel.read(directory / "pids.events"))
        return int(kernel.read(directory / "pids.current")) >= 39 and int(refused.get("max", 0)) > 100
    return storm(site, "1000", 40, rages)


@case
def handles_do_not_keep_directories(site):
    """Descriptors, locks, watches, mounts and working directories that somebody outside has in the directories of a job."""
    user, other = site.users
    for end in ENDS.values():
        top = fresh(site, other, "let-go")
        fresh(site, user, "stop", "never")
        jobid, group = running(site, user, f"setsid sleep 300 & {PREPARED}; {UNTIL_STOP}", "-c1", "--mem=100")
        levels = group, group.parent, group.parent.user
        places = [directory for one in levels for directory in one.directories()]
        slurms = {one.directory(controller) for one in levels for controller in one.slurms}
        # Slurm 22.05 on v1 waits for a lock on its own memory directory of the step, for as long as anybody has it.
        lockable = [place for place in places if place not in slurms]
        arguments = ["handles", *map(str, places), "--", *map(str, lockable)]
        with started(site, other, [*program(site).split(), *arguments]) as holder:
            try:
                held = int(holder.stdout.readline().split()[1])
                expect(held > 5 * len(places), f"only {held} files are held")
                holders = kernel.descendants(holder.pid)
                expect_equal(len(holders), len(places), "processes with a working directory there")
                until(lambda: {os.readlink(f"/proc/{pid}/cwd") for pid in holders} == set(map(str, places)), 10,
                      "their working directories")
                expect_ended(site, group, (), end(site, jobid))
                expect(holder.poll() is None, "the holder has ended before")
                # The next job finds the places free, and has its own.
                fences_well(site, user)
            finally:
                (top / "let-go").touch()
    fresh(site, other, "let-go")


# What /proc/PID/stat says of the last process of each kind when it is as it should be.
KINDS = {
    "ignores": "S", "blocks": "S", "stopped": "T", "traced": "t", "vfork": "D", "leaderless": "Z", "zombies": "S",
    "subreaper": "S", "init": "S",
}


def with_strange(site):
    """A job with processes that are hard to end: its number, its step and their pids."""
    user = site.users[0]
    fresh(site, user, "leave")
    jobid, group = running(site, user, f"exec {program(site)} strange {' '.join(KINDS)}", "-c1", "--mem=300")
    until(lambda: "ready" in site.output(jobid), 60, "all of them")
    pids = [int(pid) for pid in re.findall(r"^\w+ (\d+)$", site.output(jobid), re.M)]
    for kind, wanted in KINDS.items():
        last = re.findall(rf"^{kind} (\d+)$", site.output(jobid), re.M)[-1]
        until(lambda: kernel.stat_fields(last)[:1] == [wanted], 10, f"{kind} (process {last}) in state {wanted}")
    for pid in pids:
        # A first thread that has ended is nowhere on v1, and the others are where they were.
        thread = max(map(int, os.listdir(f"/proc/{pid}/task")))
        found = kernel.Group.named_in(kernel.read(f"/proc/{pid}/task/{thread}/cgroup"))
        expect_equal(found, group, f"group of process {pid}")
    return jobid, group, pids


@case
def who_is_hard_to_end_ends(site):
    """Stopped, traced, waiting in the kernel, deaf to signals, without their first thread, an init of their own."""
    with bystander(site):
        for name in "by itself", "by scancel":
            jobid, group, pids = with_strange(site)
            mark = site.log_mark()
            if name == "by itself":
                (site.directory(site.users[0]) / "leave").touch()
                expect_equal(site.wait(jobid), "COMPLETED", "state")
            else:
                ends_by_scancel(site, jobid)
            expect_ended(site, group, pids, mark)
            expect_equal(strays(site, jobid), [], f"processes of the job that ended {name}")


@case
def who_is_hard_to_end_is_reaped(site):
    """The same when the step's daemon was killed and there is only 'jobfence reap'."""
    with bystander(site), contextlib.ExitStack() as cleanup:
        jobid, group, pids = with_strange(site)
        cleanup.enter_context(ended_after(*filter(None, map(kernel.identity, pids))))
        with nobody_looks():
            kill_daemons(site, jobid)
            expect(group.exists(), "the dead step's directory went without anyone to remove it")
            mark = site.log_mark()
            done = site.command(str(site.jobfence), "reap", "--config", str(site.config))
        expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of 'jobfence reap'")
        expect_in("/step_batch", done.stdout, "what 'jobfence reap' says")
        expect(not group.parent.remains(), f"{group.parent.path} is still there")
        expect_ended(site, group, pids, mark)
        site.end(jobid)
