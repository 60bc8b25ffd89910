# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time among several: weights, scavengers, bursts, and the limits of users and tasks."""

import contextlib
import os
import time

from contract import kernel
from contract.harness import PYTHON, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, logged, running
from contract.kernel import Group
from contract.sites import until
from ..harness import NOT_STARTED, tasks_are_refused
from .limits import LONG_PERIOD, SPIN, account, spinning, use_of_quotas


@contextlib.contextmanager
def oversubscribed(site):
    """For the time being several jobs can be granted the same CPUs, if they say --oversubscribe."""
    partition = site.command("sinfo", "-h", "-o", "%R").stdout.split()[0]
    # Both sites have one partition, with one line.
    line = f"{partition} Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=YES:4"
    with site.reconfigured(PartitionName=line):
        yield


def submit_spinners(site, user):
    """On every CPU of the node: Slurm may bind a job to those that it was granted."""
    jobid = site.submit(user, SPIN, f"-c{os.cpu_count()}", "--mem=100", "--oversubscribe")
    return jobid, spinning(site, jobid)


def use(site, groups, seconds=5):
    """The CPUs that each of the groups uses."""
    with site.favoured():
        start, before = time.monotonic(), [group.cpu_seconds() for group in groups]
        time.sleep(seconds)
        after, wall = [group.cpu_seconds() for group in groups], time.monotonic() - start
    return [(one - other) / wall for one, other in zip(after, before)]


def until_shared(site, groups, wanted, what):
    """Each gets its share of what all get, within a tenth of the whole; what the host's other work takes is nobody's."""
    seen = []

    def is_so():
        used = use(site, groups)
        shares = [one / sum(used) for one in used]
        seen.append([round(share, 3) for share in shares])
        return all(abs(share - right) <= 0.1 for share, right in zip(shares, wanted))
    try:
        until(is_so, 30, what)
    except AssertionError:
        raise AssertionError(f"{what}: shares {seen}, and should be {wanted}") from None


def has_users(site):
    """Whether a user's jobs have a directory together: Slurm's own on v2 have none."""
    return not (kernel.has_v2_controllers() and site.slurm_tracks())


def is_ours(group):
    """Whether CPU time is shared in directories of jobfence: Slurm may have its own there, and none elsewhere."""
    return ("" if kernel.has_v2_controllers() else "cpu") not in group.slurms


@case(release=True)
def weights_between_users(site):
    """A user weighs what his jobs weigh together, and no more when one has ended."""
    first, second = site.users
    with oversubscribed(site):
        site.configure(CPUPolicy="weight")
        (one, of_one), (_, of_two), (_, of_other) = [submit_spinners(site, user) for user in (first, first, second)]
        weight = 10 * os.cpu_count()
        for group in (of_one, of_two, of_other):
            expect_equal(group.cpu_weight(), weight, f"CPU weight of {group.path}")
            expect_equal(group.cpu_limit(), None, f"CPU limit of {group.path}")
        users = [one.user for one in (of_one, of_other) if one.user.limits_directory("cpu")]
        if users:
            expect_equal([user.cpu_weight() for user in users], [2 * weight, weight], "CPU weights of the users")
        until_shared(site, [of_one, of_two, of_other], [1 / 3] * 3, "three jobs of two users")
        site.end(one)
        until(lambda: not of_one.remains(), 10, "the end of its directories")
        if users and is_ours(of_one):
            until(lambda: [user.cpu_weight() for user in users] == [weight, weight], 5, "the weights of the users afterwards")
            until_shared(site, [of_two, of_other], [1 / 2] * 2, "two jobs of two users")


@case(release=True)
def scavengers(site):
    """Who runs in what others leave idle is not felt by them, and gets all of it."""
    worker, scavenger = site.users
    with oversubscribed(site):
        site.configure(Scavenger="yes", CPUPolicy="weight")
        _, theirs = submit_spinners(site, scavenger)
        if is_ours(theirs):
            expect_in("/idle/uid_", theirs.own, "its place")
            top = Group(theirs.own.split("/uid_")[0])
            expect_equal(top.is_idle(), True, f"class of {top.path}")
        alone = use(site, [theirs])[0]
        expect(alone > 0.5, f"alone it uses {alone:.3f} CPUs")
        site.configure(CPUPolicy="weight")
        jobid, ours = submit_spinners(site, worker)
        expect("/idle/" not in ours.path, f"{ours.path} is a scavenger's")
        until_shared(site, [ours, theirs], [1, 0], "a job beside a scavenger")
        site.end(jobid)
        until(lambda: use(site, [theirs], 2)[0] > alone * 0.5, 20, "the scavenger's return")


@case(release=True)
def both_policies(site):
    """The quota holds beside the weight."""
    site.configure(CPUPolicy="both", CPUQuotaPercent="50", **LONG_PERIOD)
    jobid = site.submit(site.users[0], SPIN, "-c1", "--mem=100")
    group = spinning(site, jobid)
    expect_equal((group.cpu_weight(), group.cpu_limit()), (10, 0.5), f"CPU weight and limit of {group.path}")
    # In Slurm's own directory of the job its daemons have some more.
    used, _ = use_of_quotas(site, fenced(site, jobid))[0]
    expect(used <= 0.525, f"{used:.3f} CPUs used of 0.5")


# A spike of 90 ms of two processes after a pause, again and again: more than a quota of one CPU has for one period of 100 ms,
# wherever most of them begin in a period.
SPIKES = f"""{PYTHON} -S -c '
import os, time
for _ in range(2):
    if not os.fork(): break
else:
    os.wait(); os.wait(); os._exit(0)
end = time.monotonic() + 300
while time.monotonic() < end:
    time.sleep(1.03 - time.time() % 1.03)
    start = time.process_time()
    while time.process_time() - start < 0.09: pass
' &
wait
"""


@case(release=True)
def burst(site):
    """A short spike goes through, and on average the quota holds."""
    user = site.users[0]
    if os.cpu_count() < 2:
        raise Skip("this host has one CPU")
    # Slurm may bind a job to the CPUs that it was granted: two, of which it has the time of one.
    site.configure(CPUBurst="100", CPUQuotaPercent="50")
    jobid, step = running(site, user, SPIKES, "-c2", "--mem=200")
    group = step.parent
    if step.cpu_burst_us() is None:
        raise Skip("this kernel saves no CPU time for later")
    for one in (step, group):
        expect_equal(one.cpu_burst_us(), round(Group.cpu_limit(one) * one.cpu_period_us()), f"burst of {one.path}")
    # The job's own may have headroom.
    stat = step.limits_directory("cpu") / "cpu.stat"

    def bursts():
        return int(kernel.keyed(kernel.read(stat)).get("nr_bursts", 0))
    with site.favoured():
        until(lambda: bursts() >= 3, 20, "three spikes that went through")
    site.end(jobid)
    site.configure(CPUBurst="100", CPUQuotaPercent="50", **LONG_PERIOD)
    jobid = site.submit(user, SPIN, "-c2", "--mem=200")
    spinning(site, jobid)
    step = fenced(site, jobid)
    expect(step.cpu_burst_us() > 0, "no burst")
    # What it has saved comes on top, once.
    used, _ = use_of_quotas(site, step, periods=50)[0]
    expect(used <= 1.05, f"{used:.3f} CPUs used of 1")


@case
def limits_of_users(site):
    """All of a user's jobs together, and nobody else's; where Slurm has no directory of users it is refused."""
    first, second = site.users
    with oversubscribed(site):
        site.configure(MaxCPUsPerUser="0.5", MaxProcessesPerUser="40", MaxRAMPerUser="300M", **LONG_PERIOD)
        jobid = site.submit(first, SPIN, "-c1", "--mem=100", "--oversubscribe")
        if not has_users(site):
            expect_equal(site.wait(jobid), "FAILED", "state")
            expect_in(NOT_STARTED, site.output(jobid), "the job's output")
            why = r"Slurm has no directory for all jobs of a user"
            expect_match(why, site.output(jobid), "the job's output")
            # Said already when the configuration is loaded.
            mark = site.log_mark()
            site.restart_slurmd()
            logged(site, mark, rf"jobs on this node cannot have their \w+ limit as configured: {why}", 30)
            return
        one = spinning(site, jobid)
        _, two = submit_spinners(site, first)
        _, other = submit_spinners(site, second)
        user = one.user
        (used, _), _ = use_of_quotas(site, user, other.user)
        expect(used <= 0.525, f"the user's jobs used {used:.3f} CPUs together")
        for group, who in (user, "the user"), (other.user, "another user"):
            with site.favoured():
                until(lambda group=group: account(group)[2] >= 3, 60, f"three periods in which {who} has used up what all his jobs may")
        expect(two.user.path == user.path != other.user.path, f"places of users {user}, {two.user} and {other.user}")
        expect_equal(user.processes_limit(), 40, f"process limit of {user.path}")
        expect_equal(Group.memory_limit(user), 300 << 20, f"memory limit of {user.path}")


@case
def limits_of_tasks(site):
    """Each task has its own."""
    user = site.users[0]
    if tasks_are_refused(site, MaxCPUsPerTask="0.2"):
        return "refused: one directory for all tasks"
    site.configure(MaxCPUsPerTask="0.2", MaxProcessesPerTask="40", MaxRAMPerTask="64M", **LONG_PERIOD)
    tasks = f"""
        srun -n2 --overcommit bash -c '
            echo $SLURM_PROCID >task.$$
            for i in 1 2 3; do {PYTHON} -S -c "while True: pass" & done
            wait' &
        wait
        """
    jobid = site.submit(user, tasks, "-n1", "--mem=200")
    # The script is such a task, too: an emulated srun has been seen to start in half a minute.
    step = fenced(site, jobid, "step_0", timeout=40)

    def spinners():
        return [pid for pid in site.job_pids(jobid, "while True") if kernel.command_line(pid).startswith(PYTHON)]
    until(lambda: len(spinners()) == 6, 20, "six spinners")
    places = {}
    for pid in spinners():
        path = kernel.cgroups_of(pid)[("" if kernel.has_v2_controllers() else "cpu")]
        places.setdefault(path, []).append(pid)
        expect_match(r"/task_\d+$", path, "a task's place")
    expect_equal(sorted(len(pids) for pids in places.values()), [3, 3], "spinners in each task's directory")
    for number in 0, 1:
        task = step.task(number)
        if kernel.has_v2_controllers() or not task.slurms:
            found = task.cpu_limit(), task.processes_limit(), task.memory_limit()
            expect_equal(found, (0.2, 40, 64 << 20), f"limits of {task.path}")

    tasks = [Group(path) for path in places]
    for task, (used, _) in zip(tasks, use_of_quotas(site, *tasks)):
        expect(used <= 0.21, f"task {task.path} used {used:.3f} of 0.2 CPUs")
    site.end(jobid)
    until(lambda: not step.parent.remains(), 10, "the end of its directories")


@case
def tasks_see_their_quota(site):
    """With MaxCPUsPerTask=granted a run time that looks into its own directory alone finds what each task was granted."""
    if not kernel.has_v2_controllers():
        raise Skip("where to look on cgroup v1 is another matter")
    if tasks_are_refused(site, MaxCPUsPerTask="granted"):
        return "refused: one directory for all tasks"
    look = "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpu.max"
    for key, wanted in ("granted", "100000 100000"), ("unlimited", None):
        site.configure(MaxCPUsPerTask=key)
        jobid = site.submit(site.users[0], f"srun -n2 -c1 --label sh -c '{look}'", "-n2", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "COMPLETED", f"state: {site.output(jobid)}")
        # As the manual says: without it they see none where Slurm has directories of tasks, and the step's where none are.
        nothing = "max 100000" if kernel.slurm_tracks else "200000 100000"
        expect_equal(sorted(site.output(jobid).splitlines()), [f"{task}: {wanted or nothing}" for task in (0, 1)],
                     f"what the tasks see with MaxCPUsPerTask={key}")


@case
def forks_refused_in_a_task(site):
    """Whoever reaches the limit of his task alone is told so, and each fork once."""
    if tasks_are_refused(site, MaxProcessesPerTask="20"):
        return "refused: one directory for all tasks"
    site.configure(MaxProcessesPerTask="20")
    forks = """
import os
reads, writes = os.pipe()
refused = 0
for _ in range(40):
    try:
        if os.fork() == 0:
            os.close(writes)
            os.read(reads, 1)
            os._exit(0)
    except OSError:
        refused += 1
print(refused)
"""
    done = site.srun(site.users[0], "--mem=100", PYTHON, "-S", "-c", forks)
    expect_equal(done.returncode, 0, f"status ({done.stderr})")
    refused = int(done.stdout)
    expect(refused >= 20, f"{refused} of 40 forks refused")
    told = rf"{refused} processes or threads were refused: this node allows each of its tasks 20 at once\. Start fewer, or ask your administrator "
    expect_match(told, done.stderr, "what the user is told")
