# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases that each scheduler has, in the words of the contract: see `Site` in sites.py.

Grant, end and reason are what the scheduler's own programs say, and limits and places what the kernel's files say. Each scheduler
runs all of them, but for those that stand in the tables.
"""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from . import commands, kernel, network, private  # noqa: F401
from .harness import (
    HAS_RUN, PYTHON, TAKE, WAIT, Skip, case, end_of, escaping, expect, expect_all_dead, expect_dead, expect_ended, expect_equal,
    expect_in, expect_match, expect_not_left, expect_unfenced, fenced, fenced_in_all, has_run, is_frozen, let_go, no_other_hold,
    pid_from, reaped, running, uid,
)
from .kernel import Group
from .sites import die_with_parent, until, write_atomically

OF_ITS_OWN = "its own suite has it, with more: "


def refused_with(key):
    """Where jobfence does not start the processes of a job itself."""
    starters = {"shell": "the batch system starts", "htcondor": "HTCondor starts", "openpbs": "MoM starts"}
    return {scheduler: f"with {key} its jobs are refused: {starts} their processes" for scheduler, starts in starters.items()}


# By case and scheduler: why it does not run there.
NOT_FOR = {
    "suspended": {
        "slurm": "Slurm stops the processes that it knows, and freezes none: suspend_resume, suspended_outside_of_the_tree",
        "htcondor": "HTCondor freezes its own directory in the fence: suspended_by_htcondor",
    },
    "suspended_is_deleted": {"slurm": OF_ITS_OWN + "scancel_suspended", "htcondor": "HTCondor freezes its own directory in the fence"},
    "quota": {"slurm": OF_ITS_OWN + "quota_measured", "htcondor": OF_ITS_OWN + "quota"},
    "resized": {"slurm": OF_ITS_OWN + "resized"},
    "outgrows_its_memory": {
        "slurm": OF_ITS_OWN + "outgrows_its_memory",
        "htcondor": "nothing is lent where the limit is the slot's and not the job's",
    },
    "runs_again": {"gridengine": OF_ITS_OWN + "runs_again, asks_to_run_again, door_of_a_job_that_runs_again", "shell": "the prolog says which run it is: a second `open` is refused"},
    "daemon_restarts": {
        "slurm": OF_ITS_OWN + "slurmd_restarts",
        "htcondor": "a starter ends without its startd, and the job with it: startd_is_killed",
        "shell": "it has no daemon",
    },
    "array": {"shell": "it has no arrays", "htcondor": "the jobs of a cluster: two_at_once"},
    "strays": {
        "shell": "it has no daemon, so nothing is done on its node",
        "htcondor": "strays are only reported there",
        "openpbs": "strays are only reported there",
    },
    "ipc_of_its_own": refused_with("PrivateIPC"),
    "processes_of_others": refused_with("HideProcesses"),
    "two_jobs_of_one_account": refused_with("PrivateTmp"),
    "private_directories": refused_with("PrivateTmp"),
    "private_directories_fail": refused_with("PrivateTmp"),
    "set_up": {"shell": "its administrator writes the three scripts"},
    "network_bounded": {
        "htcondor": "it is refused there: network_is_not_bounded",
    },
    "called_as": {
        "slurm": OF_ITS_OWN + "called_as_in_squeue",
        "shell": "it has no arrays",
        "htcondor": "the jobs of a cluster: two_at_once",
    },
    "killed_outright": {"openpbs": "a job outlives its MoM, and the next one finds it: job_ends_without_mom, mom_forgets_her_jobs"},
}
# By scheduler and case: what 'make check' runs that notices the same.
ONLY_FOR_A_RELEASE = {
    "htcondor": {
        "observed": "goes_on_without shows that the mode is read",
        "killed_outright": "watcher_is_killed shows that the janitor does the rest",
        "processes": "by_account_and_type shows the limit in the kernel's files",
        "runs_again": "starter_is_killed, too, has a second fence of one job",
    },
}
# Two processes: a scheduler that limits the address space of each lets one of 70 MiB pass. When the kernel has killed one, the other ends.
TOO_MUCH_FOR, TOO_MUCH = 125, f"""{TAKE % (70, 100)} & one=$!; {TAKE % (70, 100)} & other=$!
    while kill -0 $one && kill -0 $other; do sleep 0.2; done 2>/dev/null
    kill $one $other 2>/dev/null; exit 7"""



def is_for(function, scheduler):
    """Whether a case runs for this scheduler: a suite's own case can have the name of a common one."""
    return not (function.is_common and scheduler in NOT_FOR.get(function.__name__, ()))

@case
def as_granted(site):
    """The job, in a directory of its user's, is limited to what it was granted, and all of its processes are in there."""
    user = site.users[0]
    jobid, group = running(site, user, "cat /proc/self/cgroup; sleep 1000 & wait", cpus=2, mib=200)
    expect_equal(site.granted(jobid), (2, 200), "CPUs and MiB that were granted")
    site.expect_limits(group, 2, 200)
    if group.own:
        expect_in(f"/uid_{uid(user)}/{site.directory_of(jobid)}/{site.STEP or 'step_'}", group.own, "its directory")
    for pid in until(lambda: site.job_pids(jobid, "sleep"), 20, "its processes"):
        expect_equal(Group.of(pid), group, "the group of its process")
        if not site.HAS_CGROUPS:
            fenced_in_all(pid, group)
    site.expect_beside(group, jobid)
    site.end(jobid)
    site.until_gone(group.parent)
    site.expect_behind(jobid)


@case
def quota(site):
    """Four spinners have the time of one CPU, period by period of the kernel's, and the scheduler's accounting has no less."""
    with site.favoured():
        jobid, group = running(site, site.users[0], "for i in 1 2 3 4; do sh -c 'while :; do :; done' & done; wait", cpus=1, mib=100)
        job = group.parent
        until(lambda: len(group.members()) >= 5, 30, "the spinners")

        def now():
            """Periods in which the job wanted to run, those in which it was stopped and in which its step was, and CPU seconds."""
            ours, steps = (kernel.keyed(one.file("cpu", "cpu.stat", "cpu.stat")) for one in (job, group))
            return int(ours["nr_periods"]), int(ours["nr_throttled"]), int(steps["nr_throttled"]), job.cpu_seconds()

        def since():
            return [last - first for first, last in zip(before, now())]
        before = now()
        until(lambda: max(since()[1:3]) >= 30, 60, "30 periods in which the spinners were stopped")
        periods, *stops, cpu = since()
    stopped, second = max(stops), job.cpu_period_us() / 1e6
    expect(0.8 * stopped * second < cpu < 1.1 * (periods + 2) * second, f"{cpu} s of CPU time in {periods} periods of {second} s, {stopped} to the full")
    total = job.cpu_seconds()
    accounted = site.accounted(site.end(jobid))
    expect(accounted is None or accounted >= total - 0.1, f"the accounting has {accounted} s, and the kernel had counted {total} s before")
    return f"{cpu:.2f} s in {periods} periods of {second} s, stopped in {stopped}"


@case
def resized(site):
    """A job that runs gets more and less than it was granted, and the kernel's files say so. What it uses is not taken."""
    eat = f"{PYTHON} -S -c 'import sys, time; b = bytes([1]) * (120 << 20); open(sys.argv[1], \"w\"); time.sleep(1000)' eaten.$JOB_ID"
    user = site.users[0]
    jobid, group = running(site, user, eat, cpus=1, mib=200)
    until(lambda: (site.directory(user) / f"eaten.{jobid}").exists(), 120, "its memory")
    name = site.directory_of(jobid).removeprefix("job_")
    def resize(*words):
        return site.ours("resize", name, *words)
    for cpus, mib in (2, 400), (0.5, 160), (1, 200):
        expect_equal(resize("--cpus", cpus, "--memory", f"{mib}M"), (0, ""), f"'jobfence resize' to {cpus} CPUs and {mib} MiB")
        site.expect_limits(group, cpus, mib)
    if site.IS_ALONE:
        status, said = resize("--cpus", 2, "--memory", "100M")
        expect_equal(status, 1, "its status where memory is in use")
        expect_in("of memory are in use and cannot be taken back", said, "what it says of memory in use")
        site.expect_limits(group, 1, 200)
    expect(kernel.is_alive(site.job_pids(jobid, "python3")[0]), "the process has ended")
    site.end(jobid)
    site.until_gone(group.parent)


# Has as many MiB as a file says, and says so in another.
GROWS = """
import mmap, os, sys, time
wanted, has, kept = "wanted." + sys.argv[1], "has." + sys.argv[1], []
while True:
    number = int(open(wanted).read()) if os.path.exists(wanted) else 0
    while len(kept) > number:
        kept.pop().close()
    while len(kept) < number:
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(b"x" * (1 << 20))
    with open(has + ".new", "w") as file:
        file.write(str(len(kept)))
    os.rename(has + ".new", has)
    time.sleep(0.02)
"""


@case(layout=False, patient=True)
def outgrows_its_memory(site):
    """MemoryPool: a job of 200 MiB has 280, grows no faster than it is lent, and gives back what it frees."""
    user = site.users[0]
    place = site.directory(user)
    (place / "grows.py").write_text(GROWS)
    # Grid Engine itself gives no process more than the h_vmem that the job asked for, and ends a job that has more.
    mib, keys = (800, {"AllowedRAMSpace": 25}) if site.SCHEDULER == "gridengine" else (200, {})
    site.configure(MemoryPool="512M", MemoryPoolReserve="1M", ElasticRAMPercent=200, ReapInterval=1, **keys)
    # One that runs reads it within a minute. A second one beside it would take what this one lends for the job's own.
    is_held = (site.run_directory() / "hold.lock/early_move").exists()
    with contextlib.nullcontext() if is_held else holding(site):
        jobid, group = running(site, user, f"{PYTHON} -S grows.py $JOB_ID", cpus=1, mib=mib)
        job = group.parent

        def has(mib):
            write_atomically(place / f"wanted.{jobid}", str(mib))
            until(lambda: kernel.read(place / f"has.{jobid}") == str(mib), 300, f"{mib} MiB")

        expect_equal(job.memory_limit(), 200 << 20, "the job's limit")
        has(100)
        for mib in range(115, 281, 15):
            until(lambda mib=mib: job.memory_limit() >= (mib + 12) << 20, 120, f"room for {mib} MiB")
            has(mib)
        expect(280 << 20 < job.memory_limit() <= 400 << 20, f"the job's limit is {job.memory_limit()}")
        until(lambda: group.memory_limit() == job.memory_limit(), 60, "the step's limit")
        name = site.directory_of(jobid).removeprefix("job_")
        shown = site.command(str(site.jobfence), "show", name, "--config", str(site.config)).stdout
        expect_in("beyond its limit of 200.0 MiB (MemoryPool)", shown, "what 'jobfence show' says")
        has(20)
        until(lambda: job.memory_limit() == group.memory_limit() == 200 << 20, 120, "what comes back")
        expect_equal(group.oom_kills(), 0, "kills")
        site.end(jobid)
        site.until_gone(job)


@case
def two_users(site):
    """Jobs of two users have directories of their users, each with its own grant, and the end of one is none of the other."""
    if os.cpu_count() < 2:
        raise Skip("this host has one CPU")
    amounts = dict(zip(site.users, (200, 120)))
    jobs = {user: site.submit(user, "sleep 1000", cpus=1, mib=mib) for user, mib in amounts.items()}
    groups = {user: fenced(site, jobid) for user, jobid in jobs.items()}
    for user, group in groups.items():
        if group.own:
            expect_in(f"/uid_{uid(user)}/{site.directory_of(jobs[user])}/", group.own, "its directory")
        site.expect_limits(group, 1, amounts[user])
    first, second = site.users
    site.end(jobs[first])
    site.until_gone(groups[first].parent)
    site.expect_limits(groups[second], 1, amounts[second])


@case
def array(site):
    """Each job of an array has a job's directory of its own, with its own limits."""
    jobs, whole = site.submit_array(site.users[0], "sleep 1000", 2, cpus=1, mib=100)
    groups = {jobid: fenced(site, jobid) for jobid in jobs}
    for jobid, group in groups.items():
        if group.own:
            expect_in(f"/{site.directory_of(jobid)}/", group.own, "its directory")
        site.expect_limits(group, 1, 100)
    expect_equal(len({group.path for group in groups.values()}), 2, f"the directories of {groups}")
    site.end(whole)
    for group in groups.values():
        site.until_gone(group.parent)


@case
def escapee(site):
    """A process with a session of its own is in the fence, and dies with the job."""
    jobid, group, who = escaping(site, site.users[0], f"{WAIT}; exit 4", cpus=1, mib=100)
    expect_equal(Group.of(who[0]), group, "the escapee's group")
    end_of(site, jobid)
    expect_dead(who, 20)
    site.until_gone(group.parent)


@case
def deleted(site):
    """What the administrator deletes ends with all that is in the fence, which goes before the scheduler takes the job for ended."""
    mark = site.log_mark()
    jobid, group, who = escaping(site, site.users[0], "trap '' TERM; while :; do sleep 1; done", cpus=1, mib=100, **site.DEAF)
    site.end(jobid)
    site.until_gone(group.parent)
    expect_dead(who, 20)
    expect_not_left(site, mark)


@case
def suspended(site):
    """Suspended, the fence stands still, with a process that has a session of its own; then all go on."""
    jobid, group, who = escaping(site, site.users[0], "sleep 1000", cpus=1, mib=100)
    site.suspend(jobid)
    until(lambda: is_frozen(group), 20, "a frozen fence")
    site.resume(jobid)
    until(lambda: not is_frozen(group), 20, "a fence that goes on")
    expect_equal(kernel.identity(who[0]), who, "the escapee")
    site.end(jobid)
    expect_dead(who, 20)


@case
def suspended_is_deleted(site):
    """A frozen job can be deleted."""
    jobid, group, who = escaping(site, site.users[0], "sleep 1000", cpus=1, mib=100)
    site.suspend(jobid)
    until(lambda: is_frozen(group), 20, "a frozen fence")
    site.end(jobid)
    expect_ended([who], group)


@case
def runs_again(site):
    """A job that is put back into the queue has a fence again, with the same limits and nothing of the first run."""
    jobid, group, who = escaping(site, site.users[0], "sleep 1000", cpus=1, mib=100, again=True)
    old = [*filter(None, map(kernel.identity, site.job_pids(jobid))), who]
    escaped = site.directory(site.users[0]) / f"escapee.{jobid}"
    escaped.unlink()
    site.run_again(jobid)
    expect_all_dead(old, 60)
    pid_from(escaped, 180)
    again = fenced(site, jobid)
    # Slurm's own directories can have another number in each run.
    expect_equal(again.own, group.own, "the fence of the second run")
    site.expect_limits(again, 1, 100)
    expect(not {pid for pid, _ in old} & again.members(below=True), "processes of the first run in the second one's fence")
    site.end(jobid)
    site.until_gone(again.parent)
    site.expect_behind(jobid, runs=2)


@case
def daemon_restarts(site):
    """The jobs go on without the daemon of their host, and are suspended, resumed and ended as any other when it is back."""
    jobid, group, who = escaping(site, site.users[0], f"{WAIT}; exit 5", cpus=1, mib=100)
    site.restart_daemon()
    expect_equal(kernel.identity(who[0]), who, "the escapee")
    site.expect_limits(group, 1, 100)
    site.suspend(jobid)
    until(lambda: is_frozen(group), 30, "a frozen fence")
    site.resume(jobid)
    until(lambda: not is_frozen(group), 30, "a fence that goes on")
    let_go(site, jobid)
    expect_ended([who], group)
    site.look_for_ends()
    expect_equal(site.status(jobid), 5 if site.LEARNS_STATUS else 0, "its exit status")


@case
def killed_outright(site):
    """All on which the job's end depends dies at once: the janitor ends the rest."""
    jobid, group, who = escaping(site, site.users[0], "sleep 1000", cpus=1, mib=100, again=False)
    if group.slurms:
        raise Skip("these directories are Slurm's, and the janitor leaves them to Slurm")
    for pid in site.holders(jobid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reaped(site, group)
    expect_ended([who], group)
    site.revive()
    site.delete(jobid)


@case
def out_of_memory(site):
    """A process of a job over its memory is killed, and its user reads which, and why."""
    jobid = site.submit(site.users[0], TOO_MUCH, cpus=1, mib=TOO_MUCH_FOR)
    said = site.why_killed(jobid)
    expect(site.is_why(said), f"what its user reads: {said}")
    if site.TELLS:
        expect_match(rf"jobfence: job {jobid}\b", said, "whose sentence it is")
        expect_equal(said.count("jobfence: job"), 1, f"the sentences in {said}")
        expect(site.status(jobid) in site.STATUSES_AFTER_A_KILL, f"its exit status: {site.status(jobid)}")
    return site.is_why(said)[0]


@case
def processes(site):
    """A fork bomb stops at the limit, and its user reads at which."""
    site.configure("MaxProcesses=60\n")
    bomb = f"{PYTHON} -S -c 'import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(1000)'"
    jobid = site.submit(site.users[0], f"{WAIT}; {bomb}; exit 0", cpus=1, mib=300)
    expect_equal(site.processes_limit(fenced(site, jobid)), 60, "the limit")
    let_go(site, jobid)
    site.wait(jobid, 120)
    expect_match("BlockingIOError|Resource temporarily unavailable", site.told(jobid), "what the program says")
    if site.TELLS:
        expect_match("jobfence: job .* was refused: this node allows the job 60 at once", site.told(jobid), "what its user reads")
        expect_equal(site.told(jobid).count("jobfence: job"), 1, f"the sentences in {site.told(jobid)}")


def refused_until_mended(site, submit):
    """With a configuration that is none, no job runs, and the reason names line, column and key. They run when the file is mended."""
    line, mark = site.configure("CPUQuotaPercnt=90\n") + 1, site.log_mark()
    jobs = [submit(HAS_RUN) for _ in range(2)]
    for jobid in jobs:
        reason = site.refusal(jobid, mark)
        expect_match(rf"{site.config}:{line}:1: .*CPUQuotaPercnt", reason, "the reason")
        expect(not has_run(site, jobid), f"job {jobid} has run")
    site.configure()
    for jobid in jobs:
        again = site.after_refusal(jobid, HAS_RUN)
        until(lambda again=again: has_run(site, again), 120, f"job {again} to run at last")
        site.wait(again)
    return reason.strip().splitlines()[-1]


@case
def bad_configuration(site):
    """No job runs unfenced, its reason is said, and jobs run when the file is mended."""
    return refused_until_mended(site, lambda script: site.submit(site.users[0], script, cpus=1, mib=100))


@case(layout=False)
def slurms_directory_first(site):
    """Nodes that share Slurm's directory, with jobfence.conf in it, go on as before. All other cases have a file in /etc/jobfence alone."""
    if site.config != Path("/etc/jobfence/jobfence.conf"):
        raise Skip("the site names its configuration")
    shared = Path("/etc/slurm/jobfence.conf")
    site.configure("MaxProcesses=71\n")
    is_new = not shared.parent.is_dir()
    shared.parent.mkdir(exist_ok=True)
    shared.write_text(site.config.read_text().replace("MaxProcesses=71", "MaxProcesses=72"))
    try:
        for expected in 72, 71:
            jobid = site.submit(site.users[0], "sleep 1000", cpus=1, mib=100)
            expect_equal(fenced(site, jobid).parent.processes_limit(), expected, f"the limit, where {shared} is {shared.exists()}")
            site.delete(jobid)
            shared.unlink(missing_ok=True)
    finally:
        shared.unlink(missing_ok=True)
        if is_new:
            shared.parent.rmdir()


@case
def goes_on_without(site):
    """With OnError=warn a job whose fence cannot be made runs without, as Mode=off has all jobs run."""
    # Of a job without its fence a record stays where 'jobfence hold' runs, until its next look.
    for text in "Mode=off\n", "OnError=warn\nCgroupMountpoint=/nonexistent\n":
        site.configure(text)
        jobid = site.submit(site.users[0], "env | grep ^JOBFENCE_; sleep 1000", cpus=1, mib=100)
        expect_unfenced(until(lambda jobid=jobid: site.job_pids(jobid, "sleep"), 60, "its process")[0])
        if text.startswith("Mode"):
            expect("JOBFENCE_" not in site.output(jobid), f"its environment: {site.output(jobid)}")
            expect_equal(set(site.leftovers()) - site.there_before, set(), "the tree")
        site.end(jobid)


@case
def observed(site):
    """With Mode=observe the job is fenced and not limited, and the log says what it would be limited to."""
    site.configure("Mode=observe\n")
    mark = site.log_mark()
    jobid, group = running(site, site.users[0], "sleep 1000", cpus=1, mib=100)
    site.expect_no_limits(group, 100)
    if site.LOGS_NOTICES:
        until(lambda: "would" in site.said_since(mark), 20, "what it would be limited to, in the log")
    site.end(jobid)


@case(release=True)
def strays(site):
    """What a user has in no fence ends, or goes into the job. Nothing of a job's is touched, and nothing of another user's."""
    user, other = site.users
    jobid, group, who = escaping(site, user, "sleep 1000 & wait", cpus=1, mib=100)
    of_job = {pid: kernel.identity(pid) for pid in site.job_pids(jobid)}
    for action in "kill", "adopt":
        site.configure_raw(f"StraysGrace=1\nStraysMinUID=1\n[User={user}]\nStrays={action}\n[User={other}]\nStrays=off\n")
        with outside(site, user) as stray, outside(site, other) as others:
            planned = strays_of(site)
            expect(not set(of_job) & set(planned), f"processes of the job are among {planned}")
            expect_equal(planned[others]["action"], "nothing", "what is done to another user's")
            word = planned[stray]["action"]
            # A job of Slurm's takes sessions only into its extern step: stray_goes_into_the_extern_step.
            expect(word == action or action == "adopt" and site.SCHEDULER == "slurm", f"what is done: {planned[stray]}")
            with holding(site) as said:
                if action == "kill":
                    until(lambda: not kernel.is_alive(stray), 60, f"the end of {stray}; it says {kernel.read(said)}")
                elif word == action:
                    # A look that finds no time for all processes does not list it either.
                    until(lambda: Group.of(stray), 60, f"a fence for {stray}; it says {kernel.read(said)}")
                    expect(stray not in strays_of(site), f"{stray} is in a fence, and is listed")
            expect(kernel.is_alive(others), "another user's process has ended")
        expect(kernel.is_alive(who[0]) and all(map(kernel.is_alive, of_job)), f"a process of the job has ended: {kernel.read(said)}")
    site.end(jobid)
    site.until_gone(group.parent)


@contextlib.contextmanager
def outside(site, user):
    """The number of a process of the user's that is no job's."""
    process = site.as_user(user, ["sleep", "1000"], start=True)
    try:
        until(lambda: kernel.read(f"/proc/{process.pid}/comm").strip() == "sleep", 20, "its program")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def strays_of(site):
    done = site.command(str(site.jobfence), "strays", "--json", "--config", str(site.config))
    expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of 'jobfence strays'")
    return {one["pid"]: one for one in json.loads(done.stdout)["processes"]}


@contextlib.contextmanager
def holding(site):
    """Meanwhile `jobfence hold` runs with the site's configuration; what it says is in this file."""
    said = site.home / "strays.said"
    command = [str(site.jobfence), "hold", "--config", str(site.config)]
    if Path("/run/systemd/system").is_dir():
        # The scope belongs to the service, so this one sees no systemd.
        command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/systemd && exec "$@"', "sh", *command]
    with no_other_hold(site):
        with open(said, "w") as words:
            hold = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words, preexec_fn=die_with_parent)
        try:
            yield said
        finally:
            hold.terminate()
            hold.wait(120)
