# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job may use: limits in the kernel's files, and what becomes of a job that runs into them."""

import contextlib
import ctypes.util
import os
import threading
import time

from contract import kernel, sites
from contract.harness import EAT, MIB, PYTHON, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, logged
from contract.kernel import Group
from contract.sites import until
from ..harness import ended_line, expect_killed_for_memory, expect_limits


SPIN = "for i in 1 2 3 4; do while :; do :; done & done; wait"


# For what is used of a quota: with Linux 7.2 that is about a tick of the scheduler more in each period, 4 ms of 50 in the default one.
LONG_PERIOD = {"CPUQuotaPeriod": "500ms"}


def account(group):
    """The seconds of CPU time that the group has used, the periods of its quota, and in how many of those it was throttled."""
    stat = kernel.keyed(kernel.read(group.limits_directory("cpu") / "cpu.stat"))
    return group.cpu_seconds(), int(stat["nr_periods"]), int(stat["nr_throttled"])


def at_an_edge(group):
    """The same when a period has just begun: it is then of whole periods."""
    length = group.cpu_period_us() / 1e6

    def found():
        before = account(group)
        for _ in range(100):
            start = time.monotonic()
            time.sleep(length / 50)
            now = account(group)
            # Who was not on a processor meanwhile does not know when the period has begun.
            if now[1] > before[1] and time.monotonic() - start < length / 10:
                return now
            before = now
        return None
    return until(found, 60, f"the begin of a period of the quota of {group.path}")


def use_of_quotas(site, *groups, periods=10):
    """Of each group, how many CPUs it used over so many periods of its quota, and the share of those in which it was throttled.

    The periods are the kernel's, so neither the speed of this machine nor its other work counts.
    """
    # Who may use all of this machine is not held back, and would hold up all others.
    is_small = any(Group.cpu_limit(group) < os.cpu_count() for group in groups)
    with site.favoured() if is_small else contextlib.nullcontext(), kernel.punctual():
        begun = [at_an_edge(group) for group in groups]
        until(lambda: all(account(group)[1] >= before[1] + periods for group, before in zip(groups, begun)), 60,
              f"{periods} periods in which there is somebody to run")
        ended = [at_an_edge(group) for group in groups]
    found = []
    for group, before, after in zip(groups, begun, ended):
        used, passed, throttled = (now - then for now, then in zip(after, before))
        found.append((used / (passed * group.cpu_period_us() / 1e6), throttled / passed))
    return found


def spinning(site, jobid):
    """The job's group, once its four spinners are there beside the shell that waits for them."""
    group = fenced(site, jobid).parent
    until(lambda: len(group.members(below=True)) > 4, 10, "the spinners")
    return group


def is_held_back(used, throttled, cpus):
    """Whether a group was throttled in so many periods that it cannot have been for want of its quota."""
    return used < throttled * cpus * 0.85


def expect_quota_used(site, group, cpus, periods=20):
    """Spinners use their quota: never more, and nothing is held back before that is used. Returns that in words."""
    seen = []

    def has_its_quota():
        used, throttled = use_of_quotas(site, group, periods=periods)[0]
        expect(used <= cpus * 1.05, f"four spinners with {cpus} CPUs granted used {used:.3f} CPUs")
        seen.append(f"{used:.3f} of {cpus} CPUs used, held back in {throttled:.0%} of the periods")
        return not is_held_back(used, throttled, cpus) and seen[-1]
    # Periods that an emulated timer has missed count, too.
    return until(has_its_quota, 60, lambda: f"the use of all of the quota ({', '.join(seen[-3:])})")


@case
def quota_measured(site):
    said = []
    for cpus in range(1, min(os.cpu_count(), 2) + 1):
        jobid = site.submit(site.users[0], SPIN, f"-c{cpus}", "--mem=200")
        group = spinning(site, jobid)
        expect_equal(group.cpu_limit(), cpus, f"CPU limit of a job with {cpus} CPUs")
        # The step's quota is the same, but in Slurm's own directory of the job its daemons have some more.
        said.append(expect_quota_used(site, fenced(site, jobid), cpus))
        site.end(jobid)
    return ", ".join(said)


# A thousand short sleeps a second.
SLEEPER = f"""{PYTHON} -S -c '
import time
while True:
    end = time.perf_counter() + 9e-4
    while time.perf_counter() < end: pass
    time.sleep(1e-5)
'"""
# Two that wait for each other as parallel programs do: without sleeping.
PING_PONG = f"""{PYTHON} -S -c '
import mmap, os
shared = mmap.mmap(-1, 1)
me = 0 if os.fork() else 1
while True:
    while shared[0] != me: pass
    shared[0] = 1 - me
'"""
MPI_PING_PONG = f"""srun --mpi=pmi2 -n2 {PYTHON} -S -c '
import ctypes
mpi = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
world, integer, rank, word = 0x44000000, 0x4c000405, ctypes.c_int(), ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
def send(): mpi.MPI_Send(ctypes.byref(word), 1, integer, 1 - rank.value, 0, world)
def receive(): mpi.MPI_Recv(ctypes.byref(word), 1, integer, 1 - rank.value, 0, world, ctypes.c_void_p(1))
while True:
    for act in (receive, send) if rank.value else (send, receive): act()
'"""


class Punctuality:
    """How late the most favoured thread of each CPU was while this was open: where a machine's own CPUs are taken away from it for
    longer than the slack of a quota, that tells nothing of the quota."""

    ENOUGH = 0.005

    def __enter__(self):
        self.latest, self.over = 0.0, threading.Event()
        self.threads = [threading.Thread(target=self.watch, args=[cpu]) for cpu in os.sched_getaffinity(0)]
        for thread in self.threads:
            thread.start()
        return self

    def watch(self, cpu):
        os.sched_setaffinity(0, [cpu])
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not self.over.is_set():
            start = time.monotonic()
            time.sleep(0.01)
            self.latest = max(self.latest, time.monotonic() - start - 0.01)

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def lost_of(site, groups, seconds=2):
    """How much of the CPU time that they could have used the quotas of these groups, one within the other, have held back. Other work
    of this machine takes from what is used, and not from that."""
    stats = [group.limits_directory("cpu") / "cpu.stat" for group in groups]

    name, unit = ("throttled_usec", 1e6) if kernel.has_v2_controllers() else ("throttled_time", 1e9)

    def throttled():
        return sum(int(kernel.keyed(kernel.read(stat))[name]) for stat in stats) / unit
    with site.favoured():
        used, held = groups[-1].cpu_seconds(), throttled()
        time.sleep(seconds)
        used, held = groups[-1].cpu_seconds() - used, throttled() - held
    return held / (used + held)


@case(release=True)
def nothing_lost_at_the_grant(site):
    """A quota of as many CPUs as a job can use costs it at most 0.5 % of them, in any period."""
    cpus = min(os.cpu_count(), 2)

    def on_each(command):
        return f"for i in {' '.join(map(str, range(cpus)))}; do {command} & done; wait"
    works = {"spinning": on_each("while :; do :; done"), "sleeping": on_each(SLEEPER)}
    if cpus == 2:
        works["ping-pong"] = PING_PONG
        if ctypes.util.find_library("mpich"):
            works["MPI"] = MPI_PING_PONG
    said = []
    for period in ("100ms", "10ms"):
        site.configure(CPUQuotaPeriod=period)
        for name, work in works.items():
            jobid = site.submit(site.users[0], work, f"-n{cpus}" if name == "MPI" else f"-c{cpus}", "--mem=400")
            step = fenced(site, jobid, "step_0" if name == "MPI" else "step_batch")
            if step.cpu_burst_us() is None:
                raise Skip("this kernel saves no CPU time for later")
            until(lambda: len(step.members(below=True)) >= cpus, 10, f"those who are {name}")
            expect_equal(step.cpu_limit(), cpus, "CPU limit")
            lost, latest = [], []
            for _ in range(int(6 * sites.PATIENCE)):
                with Punctuality() as punctuality:
                    found = lost_of(site, [step.parent, step])
                latest.append(punctuality.latest)
                lost += [found] if punctuality.latest < Punctuality.ENOUGH else []
                if len(lost) == 2:
                    break
            if not lost:
                raise Skip(f"this machine's CPUs are taken away from it, each time for {min(latest) * 1000:.0f} ms at the least")
            expect(max(lost) <= 0.005, f"{name} in periods of {period} lost {', '.join(f'{one:.2%}' for one in lost)}")
            said.append(f"{name} {period} {max(lost):.2%}")
            site.end(jobid)
    return "lost: " + ", ".join(said)


@case
def memory_oom_srun(site):
    done = site.srun(site.users[0], "--mem=150", "bash", "-c",
                     f"echo job $SLURM_JOB_ID; {EAT}; exit 9")
    expect(done.returncode != 0, "srun returned 0")
    jobid = int(expect_match(r"job (\d+)", done.stdout, "srun's output").group(1))
    expect_killed_for_memory(done.stderr, jobid, "0", 150)


@case
def fork_bomb(site):
    """It ends at its own fence, the node stays usable, and the user reads why his forks fail."""
    user, other = site.users
    site.configure(MaxProcesses="60")
    mark = site.log_mark()
    # Should nothing else hold it, its own ulimit does.
    jobid = site.submit(user, """
        echo may=$JOBFENCE_MAX_PROCESSES
        ulimit -u 500
        mkfifo never
        exec 2>/dev/null 3<>never
        bomb() { bomb | bomb & }
        bomb
        while read -t 1 -u 3 || [ ! -e stop ]; do :; done
        exit 0
        """, "-c1", "--mem=300")
    group = fenced(site, jobid)
    daemons = kernel.HEADROOM_PROCESSES if "" in group.slurms and kernel.has_v2_controllers() else 0
    expect_equal(group.parent.processes_limit(), 60 + daemons, f"process limit of {group.parent.path}")
    counted = []

    def exploded():
        counted.append(int(kernel.read(group.limits_directory("pids") / "pids.current")))
        return counted[-1] >= 50
    until(exploded, 60, "the bomb's explosion")
    done = site.srun(other, "--mem=50", "echo", "usable")
    expect_equal((done.returncode, done.stdout), (0, "usable\n"), f"another user's step ({done.stderr})")
    (site.directory(user) / "stop").touch()
    expect_equal(site.wait(jobid, 90), "COMPLETED", "state")
    # Who is just being refused is counted for a moment, one on each CPU.
    expect(max(counted) <= 60 + os.cpu_count(), f"{max(counted)} processes of 60")
    said = site.output(jobid)
    expect_in("may=60\n", said, "what the job was told")
    refused = r"\d+ processes or threads were refused: this node allows the job 60 at once\. Start fewer, or ask your administrator \(MaxProcesses\)"
    expect_match(rf"jobfence: job {jobid} step batch: {refused}", said, "what the user is told")
    logged(site, mark, ended_line(jobid, "batch") + r".*, forks refused \d+")
    until(lambda: not group.parent.remains(), 10, "the end of its directories")


@case
def swap_limit(site):
    if not kernel.swap_total():
        raise Skip("this host has no swap")
    site.configure(ConstrainSwapSpace="yes", AllowedSwapSpace="0")
    jobid = site.submit(site.users[0], f"while [ ! -e go ]; do sleep 0.1; done; {EAT}",
                        "-c1", "--mem=200")
    group = fenced(site, jobid)
    if not group.swap_is_accounted():
        raise Skip("this kernel keeps no account of swap")
    for one in (group, group.parent):
        # Where Slurm limits memory itself, how much swap that leaves is its own affair; and nothing of memory is
        # written into a directory with its daemons in it.
        if not (one.memory_is_slurms() and (kernel.slurm_limits_memory or one is not group)):
            expect_equal(one.swap_limit(), 0, f"swap limit of {one.path}")
    (site.directory(site.users[0]) / "go").touch()
    expect(site.wait(jobid) != "COMPLETED", "the job went on in swap")


@case
def two_steps_at_once(site):
    if os.cpu_count() < 2:
        raise Skip("this host has one CPU")
    jobid = site.submit(site.users[0], """
        srun -n1 --exact --mem=150 sleep 300 &
        srun -n1 --exact --mem=100 sleep 300 &
        wait
        """, "-n2", "-c1", "--mem=400")
    steps = [fenced(site, jobid, name) for name in ("step_batch", "step_0", "step_1")]
    expect_equal(len({step.parent for step in steps}), 1, "number of job directories")
    expect_limits(steps[0].parent, 2.0, 400)
    expect_equal([step.cpu_limit() for step in steps[1:]], [1.0, 1.0], "CPU limits of the steps")
    expect_equal(sorted(step.memory_limit() for step in steps[1:]), [100 * MIB, 150 * MIB],
                 "memory limits of the steps")
    # The end of one step leaves the others as they are.
    site.scancel(f"{jobid}.0")
    until(lambda: not steps[1].remains(), 10, "the end of step 0")
    expect_limits(steps[0].parent, 2.0, 400)
    expect(steps[2].members(), "step 1 has lost its processes")
    site.scancel(jobid)


@case
def array_of_20(site):
    user = site.users[0]
    jobid = site.submit(user, "echo $JOBFENCE_CGROUP", "--array=1-20", "-c1", "--mem=50")
    expect_equal(site.wait(jobid, 120), "COMPLETED", "states")
    tasks = [int(job["JobId"]) for job in site.jobs(jobid)]
    expect_equal(len(tasks), 20, "number of tasks")
    # What follows is Slurm's: 26.05 says there that it could not wait for its own directory, where it is slow.
    paths = [site.output(task).split("\n", 1)[0] for task in tasks]
    for path in paths:
        expect_match(r"/step_batch(/user)?$", path, "the path")
    expect_equal(len(set(paths)), 20, "number of cgroups")
