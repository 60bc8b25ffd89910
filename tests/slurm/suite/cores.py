# SPDX-License-Identifier: GPL-2.0-or-later
"""The cores that were granted: on which CPUs a job, and each of its steps, can run."""

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from contract import kernel
from contract.harness import PYTHON, Skip, case, expect, expect_equal, expect_in, fenced, logged, running
from contract.kernel import cpu_list
from contract.sites import until
from ..harness import NOT_STARTED

# Whatever Slurm has bound it to, a process may ask for all CPUs; the kernel gives it those of its cpuset.
ASK_FOR_ALL = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))
print("cpus", *sorted(os.sched_getaffinity(0)), flush=True)
"""
DIFFERS = "by jobfence's own map of cores"


def needs_cpusets(site):
    unified = kernel.hierarchies().get("")
    on_v2 = unified and "cpuset" in kernel.read(unified.mount_point / "cgroup.controllers").split()
    if not on_v2 and "cpuset" not in kernel.hierarchies():
        raise Skip("no cpuset controller")
    if len(machines_cores()) < 2:
        raise Skip("one core")


def machines_cores():
    """The CPUs of each core of this machine."""
    cores = []
    for cpu in sorted(cpu_list(kernel.read("/sys/devices/system/cpu/online"))):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        core = cpu_list(kernel.read(topology / "thread_siblings_list"))
        if core not in cores:
            cores.append(core)
    return cores


def asking(site, user):
    """The command by which a job asks for all CPUs, and says what it has got."""
    program = site.directory(user) / "ask_for_all.py"
    program.write_text(ASK_FOR_ALL)
    program.chmod(0o644)
    return f"{PYTHON} -S {program}"


def told(site, jobid, count=1):
    """The sets of CPUs that the job's processes say they have."""
    def said():
        lines = [line.split()[1:] for line in site.output(jobid).splitlines() if line.startswith("cpus ")]
        return [frozenset(map(int, cpus)) for cpus in lines] if len(lines) >= count else None
    return until(said, 20, "what the job says of its CPUs")


@case
def cores_of_two_jobs(site):
    """Each of two jobs has a core for itself, with all its hardware threads, and cannot get at others."""
    needs_cpusets(site)
    mark = site.log_mark()
    site.configure(ConstrainCores="yes")
    cores, seen = machines_cores(), []
    threads = len(cores[0])
    for user in site.users:
        script = f"{asking(site, user)}\necho nproc $(nproc)\necho told $JOBFENCE_CORES\nsleep 300"
        jobid, group = running(site, user, script, f"-c{threads}", "--mem=100")
        expect(group.cores() in cores, f"the step has the CPUs {group.cores()}, and the cores are {cores}")
        if group.own and "cpuset" not in group.slurms and "" not in group.slurms:
            expect_equal(group.parent.cores(), group.cores(), "the CPUs of its job")
        expect_equal(told(site, jobid), [group.cores()], "what its process has")
        pid = until(lambda: site.job_pids(jobid, "sleep"), 10, "its sleep")[0]
        status = dict(line.split(":", 1) for line in kernel.read(f"/proc/{pid}/status").splitlines())
        allowed = cpu_list(status["Cpus_allowed_list"].strip())
        expect(allowed and allowed <= group.cores(), f"Cpus_allowed_list is {allowed}, and should be within {group.cores()}")
        until(lambda: "nproc " in site.output(jobid), 10, "its nproc")
        expect_in(f"nproc {len(allowed)}\n", site.output(jobid), "what it says")
        listed = until(lambda: re.search(r"told (\S+)\n", site.output(jobid)), 10, "JOBFENCE_CORES")
        expect_equal(cpu_list(listed.group(1)), group.cores(), "JOBFENCE_CORES")
        seen.append((jobid, group.cores()))
    (_, first), (_, second) = seen
    expect(not first & second, f"the jobs have {first} and {second}")
    for jobid, _ in seen:
        site.scancel(jobid)
    # Where Slurm has cpusets of its own, they are the same.
    expect(DIFFERS not in site.log_since(mark), "Slurm maps its cores otherwise")


@case
def cores_of_steps(site):
    """Each step has cores of its own among its job's."""
    needs_cpusets(site)
    site.configure(ConstrainCores="yes")
    threads = len(machines_cores()[0])
    user = site.users[0]
    ask = f"{asking(site, user)}; sleep 300"
    jobid = site.submit(user, f"""
        for i in 0 1; do srun --exact -n1 -c{threads} --mem=50 sh -c '{ask}' & done
        wait
        """, "-n2", f"-c{threads}", "--mem=200")
    steps = [fenced(site, jobid, f"step_{number}", timeout=20).cores() for number in (0, 1)]
    whole = fenced(site, jobid).cores()
    cores = machines_cores()
    expect(all(step in cores for step in steps), f"the steps have {steps}, and the cores are {cores}")
    expect(not steps[0] & steps[1], f"the steps have {steps}")
    expect_equal(whole, steps[0] | steps[1], "the CPUs of the batch step, which has the whole job's")
    expect_equal(set(told(site, jobid, 2)), set(map(frozenset, steps)), "what their processes have")
    site.scancel(jobid)


@contextlib.contextmanager
def uncertain():
    """The kernel seems to say that a CPU of this machine is offline."""
    file = Path("/sys/devices/system/cpu/present")
    with tempfile.NamedTemporaryFile("w") as other:
        other.write(f"0-{os.cpu_count()}\n")
        other.flush()
        os.chmod(other.name, 0o644)
        subprocess.run(["mount", "--bind", other.name, file], check=True)
        try:
            yield f"CPUs are offline, and Slurm numbers the cores of those that are not: (value \"{os.cpu_count()}\")"
        finally:
            subprocess.run(["umount", file], check=True)


@case(on=["installed"])
def cores_that_are_uncertain_are_refused(site):
    """At once, when slurmd starts and by 'jobfence check', and for each job as OnError has it."""
    needs_cpusets(site)
    user = site.users[0]
    site.configure(ConstrainCores="yes")
    with uncertain() as reason:
        mark = site.log_mark()
        site.restart_slurmd()
        logged(site, mark, r"jobs on this node cannot have their cores limit as configured: CPUs are offline", 30)
        checked = site.command("jobfence", "check")
        expect_equal(checked.returncode, 1, "exit status of jobfence check")
        expect_in(f"cores          {reason}", checked.stdout, "what it says")
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "FAILED", "state of the job")
        expect_in(NOT_STARTED + reason, site.output(jobid), "the job's output")
        site.configure(ConstrainCores="yes", OnError="fail,cores:warn")
        mark = site.log_mark()
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        fenced(site, jobid)
        logged(site, mark, rf"job {jobid} step batch runs without its cores limit \(.*\): CPUs are offline")
        site.end(jobid)
    site.configure(ConstrainCores="yes")
    expect_equal(site.command("jobfence", "check").returncode, 0, "exit status of jobfence check afterwards")
