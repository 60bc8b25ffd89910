# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs on two nodes."""

import re

from contract import kernel
from contract.harness import MIB, case, expect, expect_equal, expect_in, fenced, fenced_in_all, logged, running, steps_of, uid
from contract.kernel import Group, Job
from contract.sites import until
from ..harness import expect_limits
from .sections import prologs
from .user import FORGED


def job_on(site, user, jobid, node):
    """The directory there of a job that runs: by our own rule, whether it exists or not. Slurm's is where its processes
    are, those of the extern step among them."""
    def found():
        daemons = site.step_daemons(jobid)
        groups = [Group.of(pid) for daemon in daemons for pid in kernel.descendants(daemon)]
        # Since 25.05 nobody but the daemon belongs to an extern step; it is beside those whom it looks after.
        where = (kernel.read(f"/proc/{daemon}/cgroup") for daemon in daemons)
        groups += (Group.named_in(re.sub(r"(?m)/slurm$", "/user", text)) for text in where)
        groups = [group for group in groups if group and group.slurms]
        if not groups:
            return Job(ours)
        slurms = next((group.parent.slurms for group in groups if group.is_on(node)), None)
        return slurms and Job(None if kernel.expected_hierarchies() <= set(slurms) else ours, slurms)

    ours = f"/{site.bases()[0]}/{node}/uid_{uid(user)}/job_{jobid}"
    return until(found, 10, f"the directory of job {jobid} on {node}")


def extern_of(job):
    return job.step("step_extern")


def made_before(group, other):
    """The kernel numbers its directories as they are made."""
    numbers = [one.limits_directory("cpu").stat().st_ino for one in (group, other)]
    return numbers[0] < numbers[1]


# srun -N1 in a job of two nodes, on the one where the batch script does not run.
ELSEWHERE = "srun -N1 -n1 -w n2"


@case(on=["two-nodes"])
def extern_first(site):
    """PrologFlags=Contain: a step that nobody starts, on each node, before any other."""
    user = site.users[0]
    mark = site.log_mark()
    jobid, batch = running(site, user, "sleep 300", "-N2", "-n3", "--mem-per-cpu=100")
    jobs = [job_on(site, user, jobid, node) for node in site.nodes]
    expect_equal(batch.parent, jobs[0], "job directory of the batch step")
    for job, cpus in zip(jobs, (2, 1)):
        until(extern_of(job).exists, 5, f"{extern_of(job).path}")
        expect_limits(job, cpus, cpus * 100)
        expect_limits(extern_of(job), cpus, cpus * 100)
    expect_limits(batch, 2.0, 200)
    expect(made_before(extern_of(jobs[0]), batch), "the extern step was not the first")
    expect_equal(sorted(steps_of(site, jobid)), ["step_batch"], "steps with processes")

    # Slurm's own placeholder is root's, and no plugin is told its pid: it is where Slurm has put it.
    for job in filter(lambda job: not job.slurms, jobs):
        expect_equal(extern_of(job).members(), set(), f"processes in {extern_of(job).path}")
    site.end(jobid)
    for node, job in zip(site.nodes, jobs):
        until(lambda: not job.remains(), 5, f"the removal of {job.path}")
        logged(site, mark, rf"jobfence: job {jobid} step extern ended:")
        said = site.log_since(mark, node)
        expect("WITHOUT a fence" not in said, f"{node} says that something is not fenced")
    until(lambda: not site.step_daemons(jobid), 5, "the end of the step daemons")
    expect_equal(site.node_state(), "IDLE", "state of the nodes")


def granted_differently(site, granted):
    """A job with one step on both nodes, and another in a part of the second node."""
    user = site.users[0]
    jobid = site.submit(user, f"""
        srun -n3 sleep 300 &
        while [ ! -e second ]; do sleep 0.1; done
        {ELSEWHERE} --overlap --mem=50 sleep 300 &
        wait
        """, "-N2", "-n3", "--mem-per-cpu=100")
    groups = {node: fenced(site, jobid, "step_0", node=node) for node in site.nodes}
    expect_equal(site.granted_by_node(jobid), granted, "what the controller says")
    for node, (cpus, mib) in granted.items():
        job = job_on(site, user, jobid, node)
        expect_equal(groups[node].parent, job, f"job directory on {node}")
        expect_limits(job, cpus, mib)
        expect_limits(groups[node], cpus, mib)
        until(lambda: len(groups[node].members()) == cpus, 5, f"{cpus} tasks on {node}")
    second = site.directory(user) / "second"
    second.touch()
    try:
        # Nothing else limits the job here: no batch step has been on this node.
        cpus, mib = granted["n2"]
        part = fenced(site, jobid, "step_1", node="n2")
        expect_limits(part, cpus, 50)
        expect_limits(part.parent, cpus, mib)
        expect("step_batch" not in steps_of(site, jobid, "n2"), "a batch step on n2")
        expect("step_1" not in steps_of(site, jobid, "n1"), "the second step is on n1, too")
    finally:
        second.unlink()
    site.end(jobid)


@case(on=["two-nodes"])
def not_the_batch_host(site):
    granted_differently(site, {"n1": (2, 200), "n2": (1, 100)})
    # Now less on the batch host than elsewhere: a neighbour leaves one CPU there.
    neighbour = site.submit(site.users[1], "sleep 300", "-w", "n1", "-c3", "--mem=100")
    fenced(site, neighbour)
    granted_differently(site, {"n1": (1, 100), "n2": (2, 200)})
    site.scancel(neighbour)


@case(on=["two-nodes"])
def first_step_elsewhere(site):
    """Without Contain, nothing has been on the second node before srun's step."""
    with site.reconfigured(PrologFlags=None):
        granted_differently(site, {"n1": (2, 200), "n2": (1, 100)})


@case(on=["two-nodes"])
def prolog_of_the_first_step_elsewhere(site):
    """Without PrologFlags=Alloc slurmd calls the prolog with the step's nodes beside the CPUs of all the job's."""
    user = site.users[0]
    elsewhere = f"{ELSEWHERE.replace('-n1', '-n4')} --mem=100 sh -c 'echo cpus=$JOBFENCE_CPUS'; sleep 300"
    # A list of other places, and one that says the same of each.
    for flags, neighbours, tasks, noted in ((None, 3, 5, 0), ("Alloc", 3, 5, 4), (None, 0, 8, 4)):
        with prologs(site, PrologFlags=flags):
            left = []
            if neighbours:
                left.append(site.submit(site.users[1], "sleep 300", "-w", "n1", f"-c{neighbours}", "--mem=100"))
                fenced(site, left[0])
            jobid = site.submit(user, elsewhere, "-N2", f"-n{tasks}", "--mem=200")
            said = until(lambda: "cpus=" in site.output(jobid) and site.output(jobid), 20, "the step's output")
            what = f"with PrologFlags={flags} and {tasks} tasks"
            expect_in("cpus=4\n", said, f"what the step on n2 is told {what}")
            record = (site.run_directory() / f"jobs/n2,{jobid}").read_text()
            expect_in(f"\ncpus={noted}\n", record, f"the record on n2 {what}")
            left.append(jobid)
            site.end(*left)


@case(on=["two-nodes"])
def forged_elsewhere(site):
    user = site.users[0]
    forged = {
        **FORGED, "SLURMD_NODENAME": "n1", "SLURM_CPUS_PER_TASK": "64", "SLURM_NPROCS": "64",
        "SLURM_JOB_UID": "0", "SLURM_MEM_PER_NODE": "64", "SLURM_TASKS_PER_NODE": "64",
    }
    assignments = " ".join(f"{k}={v}" for k, v in forged.items())
    # Options win over what srun reads from its environment; the rest it passes on.
    jobid = site.submit(user, f"""
        {assignments} {ELSEWHERE} -c1 --mem=100 bash -c \
            'echo step $SLURM_CPUS_ON_NODE $JOBFENCE_CPUS $JOBFENCE_MEMORY_BYTES $JOBFENCE_CGROUP
             sleep 300'
        """, "-N2", "-n2", "-c1", "--mem=100", env=FORGED)
    step = fenced(site, jobid, "step_0")
    expect_equal(step.parent, job_on(site, user, jobid, "n2"), "the job's directory")
    site.expect_limits(step, 1.0, 100)
    until(lambda: "step " in site.output(jobid), 5, "the step's output")
    expect_equal(site.output(jobid), f"step 1 1 {100 * MIB} {step.path}\n", "the variables")
    site.scancel(jobid)


def first_of(group):
    """Who was the first there: the others are started by it, and end at any time.

    A start is counted in hundredths of a second: a shell and its first command can share one.
    """
    return min(filter(None, map(kernel.identity, group.members())),
               key=lambda who: (int(who[1]), int(who[0])))


@case(on=["two-nodes"])
def node_level(site):
    user = site.users[0]
    go = site.directory(user) / "go"
    jobid = site.submit(user, """
        srun -n2 bash -c '
            while [ $SLURMD_NODENAME = n1 ] || [ ! -e go ]; do sleep 0.1; done'
        """, "-N2", "-n2", "-c1", "--mem=100")
    # The same step of the same job, once on each node.
    groups = {node: fenced(site, jobid, "step_0", node=node) for node in site.nodes}
    for node, group in groups.items():
        wanted = job_on(site, user, jobid, node).step("step_0")
        expect_equal(group, wanted, f"the step's group on {node}")
        fenced_in_all(first_of(group)[0], group)
    shell = first_of(groups["n1"])
    go.touch()
    try:
        until(lambda: not groups["n2"].remains(), 10, "the end of the step on n2")
    finally:
        go.unlink()
    expect_equal(kernel.identity(shell[0]), shell, "the step's shell on n1")
    fenced_in_all(shell[0], groups["n1"])
    for group in (groups["n1"], groups["n1"].parent, groups["n2"].parent):
        expect_limits(group, 1.0, 100)
    expect_equal(extern_of(groups["n1"].parent).exists(), True, "extern step on n1")
    expect_equal(extern_of(groups["n2"].parent).exists(), True, "extern step on n2")

    # The end of the whole job on one node: the other user's job there stays.
    other, kept = running(site, site.users[1], "sleep 300", "-w", "n2", "-c1", "--mem=120")
    expect(kept.is_on("n2"), f"the other user's job is in {kept.path}")
    site.end(jobid)
    for group in groups.values():
        # Above Slurm's own is the node's, which stays.
        top = group.parent if group.slurms else group.parent.parent
        until(lambda: not top.remains(), 5, f"the end of {group.parent.path}")
    site.expect_limits(kept, 1.0, 120)
    expect(kept.members(), "the other user's job has lost its processes")
    site.scancel(other)


@case(on=["two-nodes"])
def memory_not_managed(site):
    """Where memory is no consumable resource, Slurm grants 0: not managed, not nothing."""
    with site.reconfigured(SelectTypeParameters="CR_Core", PrologFlags=None):
        jobid = site.submit(site.users[0], "srun sleep 300", "-N1", "-n1", "-c1")
        step = fenced(site, jobid, "step_0")
        for group in (step, step.parent):
            expect_equal(group.cpu_limit(), 1.0, f"CPU limit of {group.path}")
            # Slurm's own limit is then all that the host has.
            if not (group.memory_is_slurms() and kernel.slurm_limits_memory):
                expect_equal(group.memory_limit(), None, f"memory limit of {group.path}")
        site.end(jobid)


@case(on=["two-nodes"])
def step_without_exact(site):
    """Without --exact a step is granted all that the job has, with it what it asks for.

    No -c here: srun takes it over from the job since 23.11, and then means --exact.
    """
    jobid = site.submit(site.users[0], """
        srun -n1 sleep 300
        srun -n1 --exact sleep 300
        """, "-N1", "-n2", "--mem=100")
    for step, cpus in (("step_0", 2), ("step_1", 1)):
        group = fenced(site, jobid, step)
        expect_limits(group.parent, 2.0, 100)
        expect_equal(group.cpu_limit(), cpus, f"CPU limit of {step}")
        site.scancel(f"{jobid}.{step[-1]}")
        until(lambda: not group.remains(), 10, f"the end of {step}")


TWO_THREADS = "CPUs=4 Sockets=1 CoresPerSocket=2 ThreadsPerCore=2"


@case(on=["two-nodes"])
def two_threads_per_core(site):
    """The same as the table in src/schedulers/slurm/spank/grant.rs: a step has what its job has. (granted.py asks sacct.)

    The nodes only claim their threads. The extern step, which Contain makes before all others, must not go by those of the host.
    """
    for select, requests in {
        "CR_Core_Memory": [
            (["-c1"], 2),
            (["-c3"], 4),
            (["--threads-per-core=1", "-c1"], 1),
            (["--hint=nomultithread", "-c2"], 2),
        ],
        "CR_CPU_Memory": [
            (["-c1"], 1),
            (["-c3"], 3),
        ],
    }.items():
        with site.reconfigured(topology=TWO_THREADS, SelectTypeParameters=select,
                               PrologFlags="Contain"):
            for request, cpus in requests:
                jobid = site.submit(site.users[0], f"srun -n1 {request[-1]} sleep 300",
                                    "--mem=100", *request)
                what = f"{select} {' '.join(request)}"
                inner = fenced(site, jobid, "step_0")
                batch = fenced(site, jobid)
                found = [one.cpu_limit() for one in (inner.parent, batch, inner)]
                expect_equal(found, [cpus] * 3, f"{what}: CPUs of job, batch step and srun")
                site.end(jobid)
