# SPDX-License-Identifier: GPL-2.0-or-later
"""Parallel jobs: a slave task is a step of its own, within the limits of the job."""

from contract import kernel
from contract.gpus import SHOW_GPUS
from contract.harness import MIB, case, expect, expect_equal, expect_gone, expect_in, expect_match, fenced, steps_of
from contract.kernel import Group
from contract.sites import until

from ..harness import expect_limits
from ..hosts import NODE, second_host, slots_by_host
from .asked import granted_gpus
from .capacity import JSV, counted


@case
def slave_task(site):
    """What qrsh -inherit starts has a step of its own, and the job's directory the slots of all on this host."""
    site.configure("[PE=mpi]\nMaxProcesses=50\n[PE=smp]\nMaxProcesses=5\n")
    script = "qrsh -inherit $(hostname) sleep 1000 & sleep 1000"
    jobid = site.submit("alice", script, "-pe", "mpi", "3", "-l", "h_vmem=100M", "-v", "PATH")

    def steps():
        found = steps_of(site, jobid)
        return found if len(found) >= 2 else None
    found = until(steps, 40, "two steps")
    names = sorted(found)
    expect_in("step_job", names, "the steps")
    slave = next(name for name in names if name != "step_job")
    expect_in(".", slave.replace("+2E", "."), "the slave task's name")
    expect_equal(found[slave].parent, found["step_job"].parent, "its job's directory")
    expect_limits(found["step_job"].parent, 3, 300)
    for group in found.values():
        expect_equal(group.processes_limit(), 50, f"processes of {group.path}")
    site.end(jobid)


@case
def slave_task_that_says_more(site):
    """What a user has qrsh -inherit say raises nothing on the host of the job."""
    site.configure("SlotMemory=mem_free\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        script = "qrsh -inherit -v JOBFENCE_REQUESTED=mem_free=1T $(hostname) sleep 1000 & sleep 1000"
        jobid = site.submit("alice", script, "-pe", "mpi", "2", "-l", "mem_free=90M", "-v", "PATH")
        found = until(lambda: (steps := steps_of(site, jobid)) and len(steps) >= 2 and steps, 40, "two steps")
        for name, group in found.items():
            expect_equal(group.memory_limit(), 180 * MIB, f"memory of {name}")
        expect_equal(found["step_job"].parent.memory_limit(), 180 * MIB, "memory of the job")
        site.end(jobid)


@case
def two_hosts(site):
    """On each host the job is limited to its slots there, and the end of the job ends it on both."""
    script = """
        for host in $(cut -d ' ' -f 1 $PE_HOSTFILE); do
            [ $host = $(hostname) ] || qrsh -inherit $host sleep 1234 &
        done
        sleep 4321"""

    def group_of(program):
        return next((Group.of(pid) for pid in kernel.all_pids() if kernel.command_line(pid) == program), None)
    with second_host(site):
        jobid = site.submit("alice", script, "-pe", "mpi", "5", "-l", "h_vmem=100M", "-v", "PATH")
        slave, master = (until(lambda program=program: group_of(program), 60, program) for program in ("sleep 1234", "sleep 4321"))
        slots = slots_by_host(site)
        expect_equal(sum(slots.values()), 5, f"slots by host: {slots}")
        groups = [slave, master]
        of_second = [f"/{NODE}/" in group.path for group in groups]
        expect_equal(sorted(of_second), [False, True], f"where they are: {[group.path for group in groups]}")
        expect_in("step_1.", slave.path.replace("+2E", "."), "the slave task's step")
        for group, is_second in zip(groups, of_second):
            count = slots[NODE if is_second else site.node]
            expect_limits(group.parent, count, 100 * count)
        site.end(jobid)
        for group in groups:
            expect_gone(group.parent)
    return f"slots {slots}"


@case
def refused_on_another_host(site):
    """If another host cannot fence the job's tasks, qrsh -inherit says so at once, and the job goes on."""
    script = """
        for host in $(cut -d ' ' -f 1 $PE_HOSTFILE); do
            [ $host = $(hostname) ] || { timeout -s KILL 25 qrsh -inherit $host touch ran.$JOB_ID; echo status $?; }
        done
        echo goes on"""
    with second_host(site, "CPUQuotaPercnt=90\n"):
        jobid = site.submit("alice", script, "-pe", "mpi", "5", "-l", "h_vmem=100M", "-v", "PATH", "-masterq", f"all.q@{site.node}")
        site.wait(jobid)
    expect_match(r'jobfence: this job was not started, .*: found "CPUQuotaPercnt"', site.told(jobid), "what qrsh says")
    expect_equal(site.output(jobid).split("\n")[:2], ["status 1", "goes on"], "what the job says")
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "the task has run")


@case
def slots_that_are_not_said(site):
    """Where execd binds no jobs, it says no slots of a slave task: they are known all the same."""
    script = """
        for host in $(cut -d ' ' -f 1 $PE_HOSTFILE); do
            qrsh -inherit $host sleep 1234 &
        done
        sleep 4321"""

    def groups():
        found = [Group.of(pid) for pid in kernel.all_pids() if kernel.command_line(pid) == "sleep 1234"]
        return found if len(found) == 2 else None
    with site.changed(["-sconf", "global"], ["-Mconf"], execd_params="ENABLE_BINDING=false"), second_host(site):
        jobid = site.submit("alice", script, "-pe", "mpi", "5", "-l", "h_vmem=100M", "-v", "PATH")
        found = until(groups, 60, f"a slave task on each host ({site.told(jobid)})")
        slots = slots_by_host(site)
        for group in found:
            count = slots[NODE if f"/{NODE}/" in group.path else site.node]
            expect_limits(group.parent, count, 100 * count)
        site.end(jobid)
    return f"slots {slots}"


@case
def debited_on_one_host(site):
    """A consumable JOB is debited on the host of the job's script alone, and elsewhere the job has no more than a job without any."""
    configured = "SlotCPUs=threads\nSlotMemory=mem_own\nZeroCPUs=0.3\nMinRAMSpace=40\n"
    script = """
        for host in $(cut -d ' ' -f 1 $PE_HOSTFILE); do
            [ $host = $(hostname) ] || qrsh -inherit $host sleep 1234 &
        done
        sleep 1000"""

    def slave():
        return next((Group.of(pid) for pid in kernel.all_pids() if kernel.command_line(pid) == "sleep 1234"), None)
    site.configure(configured)
    with second_host(site, configured), counted(site, ("JOB", 0), ("JOB", 0), NODE):
        jobid = site.submit("alice", script, "-pe", "mpi", "5", "-l", "threads=2,mem_own=120M", "-v", "PATH")
        group, found = fenced(site, jobid), until(slave, 60, f"a slave task on the other host ({site.told(jobid)})")
        expect_limits(group.parent, 2, 120)
        expect_limits(found.parent, 0.3, 40)
        site.end(jobid)


@case
def gpus_of_slave_tasks(site):
    """On the host of its script, a job's slave tasks have the GPUs of the job, and on another host none, whatever they say."""
    script = site.directory("alice") / "show"
    tell = """
        for host in $(cut -d ' ' -f 1 $PE_HOSTFILE); do
            qrsh -inherit -v JOBFENCE_REQUESTED=gpu=2 $host sh $PWD/show >on.$host.$JOB_ID </dev/null
        done
        sh ./show; hostname"""
    with granted_gpus(site, 4, "gpu:job") as (top, configured):
        script.write_text(SHOW_GPUS.format(top) + "\n")
        site.configure(configured)
        with second_host(site, configured):
            site.qconf("-aattr", "exechost", "complex_values", "gpu=4", NODE)
            jobid = site.submit("alice", tell, "-pe", "mpi", "5", "-l", "gpu=1", "-v", "PATH")
            site.wait(jobid)
    seen = {path.name.split(".")[1]: path.read_text().split() for path in site.directory("alice").glob(f"on.*.{jobid}")}
    *gpus, master = site.output(jobid).split()
    expect_equal(sorted(seen), sorted((site.node, NODE)), f"the hosts of slave tasks ({site.told(jobid)})")
    expect_equal(gpus, ["nvidia0", "CUDA=0"], "the GPUs of the job")
    for host, words in seen.items():
        expect_equal(words, ["nvidia0", "CUDA=0"] if host == master else ["CUDA="], f"the GPUs of the slave task on {host}, of a job on {master}")
    return f"the job was on {master}"
