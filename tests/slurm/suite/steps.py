# SPDX-License-Identifier: GPL-2.0-or-later
"""Every kind of step, and what runs in it: each is fenced like any other."""

import contextlib
import ctypes.util
import os
import re

from contract import kernel
from contract.harness import (
    MIB, PYTHON, Skip, allocated, case, ended, expect, expect_equal, expect_in, expect_match, fenced, fenced_in_all, logged, running,
    started, steps_of,
)
from contract.kernel import Group
from contract.sites import until
from ..harness import ended_line, expect_limits
from .limits import SPIN, use_of_quotas


@case
def extern_step(site):
    """PrologFlags=Contain: its directory, which nobody's process is in, goes like the others."""
    user = site.users[0]
    with site.reconfigured(PrologFlags="Contain"):
        mark = site.log_mark()
        jobid, batch = running(site, user, "sleep 300", "-c1", "--mem=100")
        extern = batch.parent.step("step_extern")
        until(extern.exists, 5, f"{extern.path}")
        site.expect_limits(extern, 1.0, 100)
        # Also where the batch step is over long before it.
        site.end(jobid)
        until(lambda: not extern.parent.remains(), 5, f"the end of {extern.parent.path}")
        # What it used, Slurm may have removed by then.
        logged(site, mark, rf"jobfence: job {jobid} step extern ended:")

        # Here it is the only step but srun's: no batch step has set the job's limits.
        with started(site, user, ["salloc", "-n1", "--mem=120", "srun", "sleep", "300"]) as salloc:
            jobid = allocated(site, user, running_job(site, user))
            step = fenced(site, jobid, "step_0")
            site.expect_limits(step, 1.0, 120)
            expect_limits(step.parent.step("step_extern"), 1.0, 120)
            site.scancel(jobid)
            ended(salloc)
        site.wait(jobid)
        until(lambda: not step.parent.remains(), 5, f"the end of {step.parent.path}")


def running_job(site, user):
    """The number of the one job that this user has."""
    return until(lambda: site.command("squeue", "-h", "-t", "R", "-u", user, "-o", "%A")
                 .stdout.strip(), 20, f"a job of {user}")


@contextlib.contextmanager
def terminal():
    """Both ends of a new terminal: the user's keyboard and screen, and the command's side."""
    ends = os.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@case(layout=False)
def interactive_step(site):
    """With use_interactive_step salloc's shell is a step on the node."""
    user = site.users[0]
    with site.reconfigured(LaunchParameters="use_interactive_step"), terminal() as (ours, theirs):
        os.set_blocking(ours, False)
        mark = site.log_mark()
        args = ["salloc", "-n1", "--mem=200"]
        with started(site, user, args, terminal=theirs, env={"SHELL": "/bin/sh"}) as salloc:
            jobid = allocated(site, user, running_job(site, user))
            group = fenced(site, jobid, "step_interactive")
            site.expect_limits(group, 1.0, 200)
            for pid in group.members():
                fenced_in_all(pid, group)
            # A step of this shell, beside it.
            os.write(ours, b"srun --overlap --mem=100 sleep 300 &\n")
            step = fenced(site, jobid, "step_0")
            expect_equal(step.parent, group.parent, "job directory of the inner step")
            expect_limits(step, 1.0, 100)
            site.scancel(f"{jobid}.0")
            until(lambda: not step.remains(), 10, "the end of the inner step")
            expect(group.members(), "the shell has gone with the inner step")
            os.write(ours, b"exit 5\n")
            # What the terminal shows must be read, or whoever writes waits for it.
            said = []
            until(lambda: shown(ours, said) or salloc.poll() is not None, 20, "salloc's end")
            expect_equal(salloc.returncode, 5, f"exit status of salloc, which said {said}")
        site.wait(jobid)
        until(lambda: not group.parent.remains(), 5, f"the end of {group.parent.path}")
        logged(site, mark, ended_line(jobid, "interactive"))


def shown(end, said):
    with contextlib.suppress(OSError):
        said.append(os.read(end, 65536).decode(errors="replace"))


@case(layout=False)
def salloc_command(site):
    """salloc's own command runs where salloc does, outside; what it starts by srun is fenced."""
    user = site.users[0]
    mark = site.log_mark()
    program = """
        cat /proc/self/cgroup >outside
        srun sh -c 'cat /proc/self/cgroup >inside; exit 3'; echo srun=$?
        exec srun sleep 300
        """
    args = ["salloc", "-n1", "--mem=100", "sh", "-c", program]
    with started(site, user, args) as salloc:
        jobid = allocated(site, user, running_job(site, user))
        step = fenced(site, jobid, "step_1")
        site.expect_limits(step, 1.0, 100)
        expect_equal(sorted(steps_of(site, jobid)), ["step_1"], "steps with processes")
        first = step.parent.step("step_0")
        expect(not first.remains(), f"{first.path} is still there")
        read = {name: (site.directory(user) / name).read_text() for name in ("inside", "outside")}
        expect_equal(Group.named_in(read["inside"]), first, "the first step's cgroup")
        expect(step.parent.path not in read["outside"], "salloc's shell is in the job's directory")
        site.scancel(f"{jobid}.1")
        _, said, _ = ended(salloc)
        expect_in("srun=3\n", said, "salloc's output")
    site.wait(jobid)
    until(lambda: not step.parent.remains(), 5, f"the end of {step.parent.path}")
    logged(site, mark, ended_line(jobid, "1"))


@case(layout=False)
def salloc_no_shell(site):
    """A job without any step of its own; steps come and go from elsewhere."""
    user = site.users[0]
    done = site.as_user(user, ["salloc", "--no-shell", "-n1", "--mem=200"])
    expect_equal(done.returncode, 0, f"salloc ({done.stderr})")
    jobid = allocated(site, user, expect_match(r"job allocation (\d+)", done.stderr, "salloc")[1])
    for number in (0, 1):
        args = ["srun", f"--jobid={jobid}", "--mem=150", "sleep", "300"]
        # In such a step Slurm does not say where the job was submitted, by which it is found.
        where = {"SLURM_SUBMIT_DIR": str(site.directory(user))}
        with started(site, user, args, env=where) as srun:
            step = fenced(site, jobid, f"step_{number}")
            expect_limits(step, 1.0, 150)
            expect_limits(step.parent, 1.0, 200)
            site.scancel(f"{jobid}.{number}")
            status, _, _ = ended(srun)
            expect(status != 0, "srun returned 0 for a cancelled step")
        # The last step out takes the job's directory with it, and the next makes it again.
        until(lambda: not step.parent.remains(), 5, f"the end of {step.parent.path}")
    expect_equal(site.job(jobid)["JobState"], "RUNNING", "state of the job between its steps")
    site.end(jobid)


@case(on=["two-nodes"])
def het_job(site):
    """Each component is a job of its own, with a number and limits of its own.

    Two nodes, since the backfill scheduler starts the components at once on different ones only.
    """
    user = site.users[0]
    mark = site.log_mark()
    with site.reconfigured(SchedulerParameters="batch_sched_delay=0,bf_interval=1"):
        jobid = site.submit(
            user, """
            srun --het-group=0,1 sh -c 'echo $JOBFENCE_CPUS $JOBFENCE_MEMORY_BYTES; sleep 300' &
            wait
            """, "-n1", "-c2", "--mem=200", ":", "-n1", "-c1", "--mem=100")
        jobs = until(lambda: all(job["JobState"] == "RUNNING" for job in site.jobs(jobid))
                     and site.jobs(jobid), 30, f"the start of job {jobid}")
        expect_equal([int(job["JobId"]) for job in jobs], [jobid, jobid + 1], "the components")
        batch = fenced(site, jobid)
        found = {}
        for job, cpus, mib in zip(jobs, (2, 1), (200, 100)):
            step = fenced(site, jobid, "step_0", node=job["NodeList"])
            site.expect_limits(step, cpus, mib)
            found[int(job["JobId"])] = step
        expect_equal(found[jobid].parent, batch.parent, "job directory of the leader")
        expect(found[jobid].parent.name != found[jobid + 1].parent.name,
               f"both components are in {batch.parent.name}")
        until(lambda: site.output(jobid).count("\n") == 2, 5, "the tasks' output")
        expect_equal(sorted(site.output(jobid).splitlines()),
                     [f"1 {100 * MIB}", f"2 {200 * MIB}"], "what the tasks are told")
        site.end(jobid)
        for number, step in found.items():
            until(lambda: not step.parent.remains(), 10, f"the end of {step.parent.path}")
            logged(site, mark, ended_line(number, "0"))


@case
def overlap(site):
    """Two steps that share the job's one CPU: together they get no more."""
    jobid = site.submit(site.users[0], f"""
        srun --overlap --mem=50 bash -c '{SPIN}' &
        srun --overlap --mem=60 bash -c '{SPIN}' &
        wait
        """, "-n1", "-c1", "--mem=200")
    steps = [fenced(site, jobid, name) for name in ("step_0", "step_1")]
    job = steps[0].parent
    expect_equal(steps[1].parent, job, "the job's directory")
    expect_limits(job, 1.0, 200)
    # Which of them is first is a matter of chance.
    expect_equal(sorted((step.cpu_limit(), step.memory_limit()) for step in steps),
                 [(1.0, 50 * MIB), (1.0, 60 * MIB)], "limits of the steps")
    for step in steps:
        until(lambda: len(step.members()) >= 4, 10, f"the spinners in {step.path}")
    used, _ = use_of_quotas(site, job, periods=20)[0]
    expect(used <= job.most() * 1.05, f"two steps of a job with one CPU used {used:.3f} CPUs")
    site.scancel(jobid)


@case(layout=False)
def multi_prog(site):
    """Different programs in one step: each task is in the step, and has its own exit status."""
    user = site.users[0]
    programs = site.directory(user) / "programs"
    programs.write_text("""\
0 sh -c 'cat /proc/self/cgroup >cgroup.0; exit 0'
1 sh -c 'cat /proc/self/cgroup >cgroup.1; exit 4'
2-3 sh -c 'cat /proc/self/cgroup >cgroup.$SLURM_PROCID; exit $SLURM_PROCID'
""")
    done = site.srun(user, "-n4", "--overcommit", "--mem=100", "--multi-prog", str(programs))
    expect_equal(exit_statuses(done.stderr), {1: 4, 2: 2, 3: 3}, "what the tasks returned")
    expect_equal(done.returncode, 4, "exit status of srun")
    found = {Group.named_in((site.directory(user) / f"cgroup.{task}").read_text()) for task in range(4)}
    expect_equal(len(found), 1, f"number of cgroups of the tasks, {found}")
    expect(found.pop(), "the tasks are in no step")


def exit_statuses(said):
    """By task number, what srun says of those that failed."""
    found = {}
    for tasks, status in re.findall(r"tasks? ([\d,-]+): Exited with exit code (\d+)", said):
        for part in tasks.split(","):
            first, _, last = part.partition("-")
            found.update({task: int(status) for task in range(int(first), int(last or first) + 1)})
    return found


@case
def tasks_64(site):
    user = site.users[0]
    # What still had srun's pipes open would keep the step for a minute, as it does without us.
    task = """
        trap 'exit $SLURM_PROCID' USR1
        sleep 300 </dev/null >/dev/null 2>&1 &
        echo $$ >pid.$SLURM_PROCID
        wait
        """
    args = ["srun", "-n64", "--overcommit", "--mem=300", "sh", "-c", task]
    with started(site, user, args) as srun:
        jobid = allocated(site, user, running_job(site, user))
        step = fenced(site, jobid, "step_0")
        expect_limits(step.parent, 1.0, 300)
        files = [site.directory(user) / f"pid.{number}" for number in range(64)]
        until(lambda: all(kernel.read(file) for file in files), 60, "64 tasks")
        pids = {int(kernel.read(file)) for file in files}
        expect_equal(len(pids), 64, "number of processes")
        expect_equal(pids - step.members(), set(), "tasks outside of the step")
        for pid in pids:
            fenced_in_all(pid, step)
        # Only the shells: what they wait for dies with the step.
        for pid in pids:
            os.kill(pid, 10)
        status, _, said = ended(srun, 60)
    expect_equal(exit_statuses(said), {n: n for n in range(1, 64)}, "what the tasks returned")
    expect_equal(status, 63, "exit status of srun")


# No compiler in a guest: the library is called as it is. MPICH's handles are numbers, Open MPI's
# are addresses of its own variables.
MPI = r"""
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
if hasattr(lib, "ompi_mpi_comm_world"):
    world, integer, total = (ctypes.c_void_p(ctypes.addressof(ctypes.c_byte.in_dll(lib, name)))
        for name in ("ompi_mpi_comm_world", "ompi_mpi_int", "ompi_mpi_op_sum"))
else:
    world, integer, total = (ctypes.c_int(n) for n in (0x44000000, 0x4c000405, 0x58000003))
def call(name, *args):
    status = getattr(lib, name)(*args)
    status and sys.exit(f"{name} returned {status}")
rank, size, mine, everyone = (ctypes.c_int(-1) for _ in range(4))
call("MPI_Init", None, None)
call("MPI_Comm_rank", world, ctypes.byref(rank))
call("MPI_Comm_size", world, ctypes.byref(size))
mine.value = 10 ** rank.value
call("MPI_Allreduce", ctypes.byref(mine), ctypes.byref(everyone), ctypes.c_int(1), integer, total, world)
where = open("/proc/self/cgroup").read().replace("\n", " ")
print(f"rank {rank.value} of {size.value}: {everyone.value} in {where}\n", end="", flush=True)
call("MPI_Finalize")
"""


def mpi_ways(site):
    """Which library with which plugin of Slurm, of those that are here."""
    libraries = [name for name in ("libmpich.so.12", "libmpi.so.40")
                 if ctypes.util.find_library(re.match(r"lib(\w+)", name)[1])]
    if not libraries:
        raise Skip("no MPI library")
    listed = site.command("srun", "--mpi=list")
    plugins = [name for name in ("pmix", "pmi2")
               if re.search(rf"\b{name}\b", listed.stdout + listed.stderr)]
    if not plugins:
        raise Skip("no MPI plugin of Slurm")
    # MPICH speaks PMI-1 and PMI-2, as Debian builds it, and Open MPI PMIx.
    spoken = {"libmpich.so.12": "pmi2", "libmpi.so.40": "pmix"}
    ways = [(name, spoken[name]) for name in libraries if spoken[name] in plugins]
    if not ways:
        raise Skip(f"{libraries} and Slurm's {plugins} speak different protocols")
    return ways


def answered(site, program):
    """Runs it, once more where the step daemon says that Slurm's mpi/pmi2 has lost a request: then the ranks wait for it until the time limit.

    On a busy machine a request can reach the plugin in two pieces, and it takes the first for all of it.
    """
    for _ in range(3):
        mark = site.log_mark()
        done = site.srun(*program)
        if done.returncode == 0 or "mpi/pmi2: invalid client request" not in site.log_since(mark):
            break
    return done


@case
def mpi(site):
    """Ranks of a parallel program find each other, and are in the step."""
    user = site.users[0]
    broken, ways = [], mpi_ways(site)
    for library, plugin in ways:
        what = f"{library} by {plugin}"
        program = user, f"--mpi={plugin}", "-n4", "--overcommit", "--mem=400", "--time=3", PYTHON, "-S", "-c", MPI, library
        done = answered(site, program)
        if done.returncode:
            # Slurm's mpi/pmix wants libpmix.so, which an MPI library alone does not bring.
            with site.unplugged():
                alone = answered(site, program)
            if alone.returncode:
                broken.append(f"{what} fails without jobfence, too: {alone.stderr.splitlines()[:1]}")
                continue
        expect_equal(done.returncode, 0, f"{what}: exit status of srun ({done.stderr})")
        found = dict(re.findall(r"rank (\d+) of 4: 1111 in (.*)", done.stdout))
        expect_equal(sorted(found), ["0", "1", "2", "3"], f"{what}: ranks in\n{done.stdout}")
        places = {Group.named_in(where.replace(" ", "\n")) for where in found.values()}
        expect_equal(len(places), 1, f"{what}: number of places, {found}")
        expect(places.pop(), f"{what}: the ranks are in no step, {found}")
    if len(broken) == len(ways):
        raise Skip("; ".join(broken))
    return "; ".join(broken)
