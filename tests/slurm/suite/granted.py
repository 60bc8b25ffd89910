# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPUs of each step: those that Slurm has allocated to it, as sacct shows them."""

import contextlib
import os
import re
import time
from typing import NamedTuple

from contract import kernel
from contract.harness import Skip, allocated, case, expect, expect_equal, expect_in, fenced, logged, started, steps_of
from contract.kernel import Group
from contract.sites import until
from .. import accounting
from ..accounting import Accounting
from ..harness import ended_line, expect_limits, expect_not_drained
from .cores import needs_cpusets
from .sections import prologs
from .steps import shown, terminal
from .two_nodes import TWO_THREADS

class Step(NamedTuple):
    """One of srun. `nodes`: on how many it is. `more` is what it has beyond what sacct shows: threads of its own cores that it did
    not ask for, so that Slurm counts them for nobody."""
    options: str
    nodes: int = 1
    more: int = 0


class Request(NamedTuple):
    """A job. `less` is what it and its steps have less than sacct shows: threads of its cores that it does not want,
    and that SLURM_JOB_CPUS_PER_NODE leaves out. `more` is what salloc's shell has beyond that where no prolog says how many CPUs
    the job has: the rest of its last core, which is nobody else's."""
    options: str
    steps: tuple
    nodes: int = 1
    less: int = 0
    more: int = 0


# By what is said of the nodes in slurm.conf.
ONE_THREAD = [
    Request("-n2", (
        Step("-n1"), Step("-n2"), Step("-n1 --overlap"), Step("-n4 --overcommit"), Step("-n1 --exact"), Step("-n1 -c2"),
    )),
    Request("-N2 -n3", (
        Step("-n3", nodes=2), Step("-N2 -n2 --exact", nodes=2), Step("-N1 -n1 -w n2"), Step("-N1 -n1 -w n1"),
    ), nodes=2),
]
WHOLE_CORES = [
    # Slurm gives a core, and with it both of its threads.
    Request("-n1", (
        Step("-n1"), Step("-n2 --overcommit"), Step("-n1 --overlap"), Step("-n1 --threads-per-core=2"),
        Step("-n1 -c1", more=1), Step("-n1 --exact", more=1), Step("-n1 --exact -c2"),
    )),
    # As mpiexec does: one task, which starts them all.
    Request("-n2", (Step("-N1 -n1"), Step("-n2"))),
    Request("-n4", (
        Step("-n1"), Step("-n4"), Step("-n1 --exact", more=1), Step("-n1 -c2"), Step("-n1 -c3", more=1), Step("-n1 -c4"),
        # To a plugin it looks the same as "-n1 --exact", and sacct shows both threads.
        Step("-n1 --exact --threads-per-core=1"),
        # A core for each.
        Step("-n2 --exact", more=2),
    )),
    # One thread of each core was asked for.
    Request("-n1 --threads-per-core=1", (Step("-n1"),), less=1),
    Request("-n2 --hint=nomultithread", (Step("-n1"), Step("-n2")), less=2),
    Request("-N2 -n5", (
        Step("-n5", nodes=2), Step("-N2 -n2", nodes=2), Step("-N1 -n1 -w n2"), Step("-N1 -n1 -w n1 --exact", more=1),
    ), nodes=2),
]
# A thread of a core can be all that a job has.
THREADS = [
    Request("-n1", (Step("-n1"), Step("-n1 -c1")), more=1),
    Request("-n3", (Step("-n3"), Step("-n1"), Step("-n1 --exact", more=1)), more=1),
]
# Whole nodes.
LINEAR = [Request("-n1", (Step("-n1"), Step("-n2"), Step("-n1 --exact", more=1)))]

TABLE = [
    ("one thread", {"SelectTypeParameters": "CR_CPU_Memory"}, ONE_THREAD),
    ("one thread, CR_Core", {"SelectTypeParameters": "CR_Core_Memory"}, ONE_THREAD[:1]),
    ("two threads, CR_Core", {"topology": TWO_THREADS, "SelectTypeParameters": "CR_Core_Memory"}, WHOLE_CORES),
    ("two threads, CR_CPU, prolog", {"topology": TWO_THREADS, "SelectTypeParameters": "CR_CPU_Memory", "PrologFlags": "Alloc"},
     [request._replace(more=0) for request in THREADS]),
    ("two threads, CR_CPU", {"topology": TWO_THREADS, "SelectTypeParameters": "CR_CPU_Memory"}, THREADS),
    ("two threads, linear", {"topology": TWO_THREADS, "SelectType": "select/linear", "SelectTypeParameters": "CR_Memory"}, LINEAR),
]


@contextlib.contextmanager
def accounted(site):
    """A site of which sacct knows."""
    lacking = " and ".join(accounting.missing())
    expect(not lacking or os.environ.get("CI") != "true", f"accounting needs {lacking}")
    if lacking:
        raise Skip(f"accounting needs {lacking}")
    with Accounting(site) as found:
        yield found


def limits_of(site, request):
    """The job's number, and by step how many CPUs it has on all its nodes, one step after the other."""
    user = site.users[0]
    directory = site.directory(user)
    script = "\n".join(
        f"srun --mem=20 {step.options} sh -c 'while [ ! -e go.$SLURM_STEP_ID ]; do sleep 0.1; done'" for step in request.steps)
    jobid = site.submit(user, script, "--mem=100", *request.options.split())
    what = f"job {request.options}"
    batch = fenced(site, jobid)
    found = {"batch": batch.cpu_limit()}
    expect_equal(batch.parent.cpu_limit(), found["batch"], f"{what}: CPUs of the job's directory where its batch step is")
    for number, step in enumerate(request.steps):
        def there(number=number, nodes=step.nodes):
            groups = [steps_of(site, jobid, node).get(f"step_{number}") for node in site.nodes]
            groups = [group for group in groups if group]
            return len(groups) == nodes and groups
        groups = until(there, 20, f"{what}: step {number} on {step.nodes} nodes")
        for group in groups:
            expect(group.cpu_limit() <= group.parent.cpu_limit(), f"{what}: step {step.options} has more than its job")
        found[str(number)] = sum(group.cpu_limit() for group in groups)
        (directory / f"go.{number}").touch()
    state = site.wait(jobid)
    for number in range(len(request.steps)):
        (directory / f"go.{number}").unlink()
    expect_equal(state, "COMPLETED", f"{what}: state, whose output is {site.output(jobid)!r}")
    return jobid, found


def interactive_limits(site, *options):
    """The number of salloc's job, and how many CPUs its shell has on the node, and its only task."""
    user = site.users[0]
    with terminal() as (ours, theirs):
        os.set_blocking(ours, False)
        args = ["salloc", "--mem=100", *options]
        with started(site, user, args, terminal=theirs, env={"SHELL": "/bin/sh"}) as salloc:
            said = []

            def number():
                shown(ours, said)
                return re.search(r"Granted job allocation (\d+)", "".join(said))
            try:
                jobid = allocated(site, user, until(number, 20, "salloc's job")[1])
                group = fenced(site, jobid, "step_interactive", timeout=20)
            except AssertionError as error:
                raise AssertionError(f"salloc {' '.join(options)}: {error}; it said {said}") from None
            found = group.cpu_limit(), group.task(0).cpu_limit()
            os.write(ours, b"exit\n")
            until(lambda: shown(ours, said) or salloc.poll() is not None, 20, "salloc's end")
    site.wait(jobid)
    return jobid, found


def as_sacct_says(site, table):
    """What each step may use, by the kernel, is what sacct shows as its AllocCPUS, in every row of the table."""
    wrong, rows = [], 0
    # The nodes only claim threads, and an extern step counts those that the machine has: no Contain.
    common = {"PrologFlags": None, "LaunchParameters": "use_interactive_step"}
    with accounted(site) as records:
        for name, keys, requests in table:
            keys = {**records.keys, **common, **keys}
            with prologs(site, **keys) if keys["PrologFlags"] else site.reconfigured(**keys):
                found = {}
                for request in requests:
                    jobid, limits = limits_of(site, request)
                    found[jobid] = request, limits
                    if request.nodes == 1 and not request.less:
                        jobid, (limit, _) = interactive_limits(site, *request.options.split())
                        found[jobid] = request, {"interactive": limit}
                first = min(found)
                steps = [f"{jobid}.{step}" for jobid, (_, limits) in found.items() for step in limits]
                rows_of_it = records.rows(list(found), ["AllocCPUS"], steps)
                said = {row["JobID"]: int(row["AllocCPUS"]) for row in rows_of_it}
                for jobid, (request, limits) in found.items():
                    for step, limit in limits.items():
                        of_step = Step("", more=request.more if step == "interactive" else 0)
                        if step.isdigit():
                            of_step = request.steps[int(step)]
                        has = said[f"{jobid - first}.{step}"]
                        wanted = has + of_step.more - request.less
                        rows += 1
                        if limit != wanted:
                            wrong.append(f"{name}: job {request.options}, step {step} {of_step.options}: it has {limit:g} CPUs, "
                                         f"should have {wanted}, and sacct shows {has}")
    expect(not wrong, "\n".join(wrong))
    return f"{rows} rows"


# Beside each other in two sites: each takes a minute.
@case(on=["two-nodes"], layout=False)
def granted_as_sacct_says(site):
    return as_sacct_says(site, [row for row in TABLE if "topology" not in row[1]])


@case(on=["two-nodes"], layout=False)
def threads_granted_as_sacct_says(site):
    return as_sacct_says(site, [row for row in TABLE if "topology" in row[1]])


@case(on=["two-nodes"], layout=False)
def tasks_share_their_step(site):
    """MaxCPUsPerTask=granted divides what the step has, and not what its user has asked for each task."""
    if site.tasks_share_a_directory():
        raise Skip("one directory for all tasks")
    site.configure(MaxCPUsPerTask="granted")
    user = site.users[0]
    keys = {"topology": TWO_THREADS, "SelectTypeParameters": "CR_Core_Memory", "PrologFlags": None}
    with site.reconfigured(LaunchParameters="use_interactive_step", **keys):
        _, limits = interactive_limits(site, "-n4")
        expect_equal(limits, (4.0, 4.0), "CPUs of salloc's shell, and of its task")
        for options, tasks, each in (("-N1 -n1", 1, 4.0), ("-n2", 2, 2.0), ("-n3", 3, 2.0), ("-n4", 4, 1.0)):
            jobid = site.submit(user, f"srun --mem=20 {options} sleep 300", "-N1", "-n4", "--mem=100")
            expect_equal(fenced(site, jobid).task(0).cpu_limit(), 4.0, "CPUs of the script's task")
            step = fenced(site, jobid, "step_0", timeout=20)
            found = [until(lambda task=task: step.task(task).cpu_limit(), 10, f"the limit of task {task}") for task in range(tasks)]
            expect_equal(found, [each] * tasks, f"CPUs of the tasks of srun {options}")
            site.end(jobid)


def more_than_one_cpu(group):
    """How many CPUs the group uses, once that is more than one or nothing but this machine's other work is in its way."""
    # Where Slurm has bound its tasks to some, the idleness of the others says nothing.
    cpus = kernel.allowed_cpus(group.members(below=True))
    start, used, idle = time.monotonic(), group.cpu_seconds(), kernel.idle_seconds(cpus)
    time.sleep(1)
    used, idle, wall = group.cpu_seconds() - used, kernel.idle_seconds(cpus) - idle, time.monotonic() - start
    return used / wall if used > 1.2 * wall or idle < 0.1 * wall else None


@case(on=["private"], layout=False)
def both_threads_of_a_core(site):
    """A job of one core with two threads uses both, in a step and in mpiexec's only task; nobody tells it to start one thread."""
    if os.cpu_count() < 2:
        raise Skip("one CPU")
    said = []
    spin = 'echo threads=$(printenv OMP_NUM_THREADS || echo none); for i in 1 2; do while :; do :; done & done; wait'
    with site.reconfigured(topology="CPUs=2 Sockets=1 CoresPerSocket=1 ThreadsPerCore=2", SelectTypeParameters="CR_Core_Memory"):
        for request in ("-n1", "-n2"):
            jobid = site.submit(site.users[0], f"srun -N1 -n1 --mem=50 bash -c '{spin}'", request, "--mem=100")
            step = fenced(site, jobid, "step_0")
            until(lambda: len(step.members()) >= 3, 10, "the spinners")
            used = until(lambda step=step: more_than_one_cpu(step), 30, f"sbatch {request}: two spinners on two CPUs, or no idle CPU")
            expect_equal(step.cpu_limit(), 2.0, f"sbatch {request}: CPU limit of the step")
            expect_in("threads=none\n", site.output(jobid), f"sbatch {request}: what the step is told")
            said.append(f"{request}: {used:.2f} CPUs used")
            site.end(jobid)
    return ", ".join(said)


# ----------------------------------------------------------------------------------------
# srun --no-allocate

# slurmctld knows nothing of it, so nobody can cancel it: it ends by itself, when it is told to.
SHOW = """
env | sort >env.$SLURM_PROCID.new
mv env.$SLURM_PROCID.new env.$SLURM_PROCID
while [ ! -e over ]; do sleep 0.1; done
"""


class Unallocated(NamedTuple):
    """root's own step of two tasks, without a job."""
    jobid: int
    group: Group
    told: dict


@contextlib.contextmanager
def unallocated(site):
    """One while it runs."""
    directory = site.directory("root")
    files = [directory / f"env.{task}" for task in (0, 1)]
    try:
        with started(site, "root", ["srun", "--no-allocate", "-N1", "-n2", "-w", site.node, "sh", "-c", SHOW]) as srun:
            try:
                until(lambda: srun.poll() is not None or all(file.exists() for file in files), 20, "its two tasks")
                expect(srun.poll() is None, "srun --no-allocate has ended at once")
                said = dict(line.split("=", 1) for line in kernel.read(files[0]).splitlines() if "=" in line)
                daemon = [pid for pid in site.our_processes() if re.match(NUMBER, kernel.command_line(pid))]
                expect_equal(len(daemon), 1, "number of its step daemons")
                jobid = int(re.match(NUMBER, kernel.command_line(daemon[0]))[1])
                tasks = [pid for pid in kernel.descendants(daemon[0]) if "sh -c" in kernel.command_line(pid)]
                groups = {Group.of(pid) for pid in tasks}
                expect_equal(len(groups), 1, f"number of groups of {tasks}")
                yield Unallocated(jobid, groups.pop(), {key: value for key, value in said.items() if key in TOLD})
            finally:
                (directory / "over").touch()
                with contextlib.suppress(Exception):
                    srun.wait(120)
    finally:
        for file in (*files, directory / "over"):
            file.unlink(missing_ok=True)


NUMBER = r"slurmstepd: \[(42949\d+)\."
TOLD = ("JOBFENCE_CPUS", "JOBFENCE_MEMORY_BYTES", "JOBFENCE_CORES", "JOBFENCE_MAX_PROCESSES", "JOBFENCE_THREADS")


def expect_no_grant(group):
    """Neither CPU time nor memory is limited; what Slurm itself writes of memory is its affair."""
    for one in (group, group.parent):
        expect_equal(one.cpu_limit(), None, f"CPU limit of {one.path}")
        if not one.memory_is_slurms():
            expect_equal(one.memory_limit(), None, f"memory limit of {one.path}")


def unallocated_step(site, srun):
    """The number that srun has given to it, and where it is."""
    directory = site.directory("root")

    def told():
        expect(srun.poll() is None, "srun has ended")
        text = kernel.read(directory / "unallocated.0")
        return re.search(r"SLURM_JOB_ID=(\d+)\n", text) and text
    text = until(told, 20, "what the step is told")
    jobid = int(re.search(r"SLURM_JOB_ID=(\d+)\n", text)[1])
    pids = until(lambda: len(site.job_pids(jobid, "sleep")) == 2 and site.job_pids(jobid, "sleep"), 10, "its two tasks")
    (group,) = {Group.of(pid) for pid in pids}
    return jobid, group, set(text.splitlines()) - {f"SLURM_JOB_ID={jobid}"}


@case(on=("private", "installed", "two-nodes"))
def without_an_allocation(site):
    """`srun --no-allocate`: Slurm grants nothing, so the site's own limits hold, and none of a grant."""
    site.configure_raw("MaxProcesses=50\n[QOS=normal]\nMaxProcesses=7\n[Partition=all]\nMaxProcesses=8\n")
    user = site.users[0]
    mark = site.log_mark()
    with unallocated(site) as (jobid, group, told):
        expect(0xffff0000 <= jobid <= 0xfffffffd, f"the job's number is {jobid}")
        expect(group is not None, "its tasks are in no group")
        if group.own:
            expect(group.own.endswith(f"/uid_0/job_{jobid}/{group.name}"), group.path)
        expect_equal(told, {"JOBFENCE_MAX_PROCESSES": "50"}, "what it is told")
        expect_no_grant(group)
        expect_equal(group.processes_limit(), 50, f"process limit of {group.path}")
        # No section holds of what has no partition, and nothing is unknown.
        expect("is not known" not in site.log_since(mark), "which sections hold is not known")
        # Somebody else's job is as it would be without it.
        other = site.submit(user, "sleep 300", "-c1", "--mem=100")
        expect_limits(fenced(site, other), 1.0, 100)
        site.end(other)
    logged(site, mark, ended_line(jobid, r"\d+"))
    until(lambda: not group.parent.remains(), 10, "the end of its directories")
    # Slurm itself refuses anybody else, before there is a step.
    done = site.srun(user, "--no-allocate", "-N1", "-n1", "-w", site.node, "touch", "ran.unallocated")
    expect(done.returncode != 0, "srun --no-allocate of a user has succeeded")
    expect(not (site.directory(user) / "ran.unallocated").exists(), "a user's step without an allocation has run")
    expect_not_drained(site)


@case
def without_an_allocation_no_record_counts(site):
    """slurmd calls the prolog of such a job, and no epilog: what it notes down is no grant, and goes with the step."""
    site.configure(MaxProcesses="50")
    with prologs(site, PrologFlags=None):
        with unallocated(site) as (jobid, group, told):
            expect_equal(told, {"JOBFENCE_MAX_PROCESSES": "50"}, "what it is told")
            expect_no_grant(group)
            expect((site.run_directory() / "jobs" / str(jobid)).exists(), "the prolog has noted nothing down")
        until(lambda: not group.parent.remains(), 10, "the end of its directories")
        until(lambda: not list((site.run_directory() / "jobs").iterdir()), 10, "the end of its record")


@case
def without_an_allocation_no_cores(site):
    """ConstrainCores: nothing says which cores it may use, and so it is not refused for want of them."""
    needs_cpusets(site)
    site.configure(ConstrainCores="yes")
    with unallocated(site) as (_, group, told):
        expect_equal(told, {}, "what it is told")
        expect_no_grant(group)
        free = kernel.allowed_cpus([1])
        # On cgroup2 nothing stands there that nobody has narrowed. Slurm's own has the core that srun makes up, the first.
        expect(group.cores() in (set(), free) or {"cpuset", ""} & set(group.slurms), f"it has the CPUs {group.cores()} of {free}")
    until(lambda: not group.parent.remains(), 10, "the end of its directories")
