# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes from outside that are put into a job, as sessions of ssh are."""

import contextlib
import re
import subprocess
import time
from pathlib import Path

from contract import kernel, sites
from contract.cases import holding, strays_of
from contract.harness import EAT, Skip, case, expect, expect_all_dead, expect_equal, expect_in, fenced, fenced_in_all, logged
from contract.kernel import Group
from contract.logins import SERVICE, logged_in, login, service_says
from contract.sites import until, write_atomically
from ..harness import ended_line, expect_limits
from .limits import LONG_PERIOD, use_of_quotas
from .placement import SPINS
from .two_nodes import extern_of, job_on


def adopt(site, pid, *more):
    return site.command(str(site.jobfence), "adopt", "--config", str(site.config),
                        "--pid", str(pid), *more)


def adopted(site, pid, step):
    done = adopt(site, pid)
    expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of 'jobfence adopt'")
    expect_in(f"process {pid} is in job ", done.stdout, "its output")
    fenced_in_all(pid, step)


@contextlib.contextmanager
def session(site, user, command):
    """A process of the user's that no job has started; it begins when the file `go` is there."""
    go = site.directory(user) / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.1; done; {command}"
    process = site.as_user(user, ["bash", "-c", script], start=True)
    try:
        yield process, go
    finally:
        go.unlink(missing_ok=True)
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def job_with_extern(site, user, *args):
    jobid = site.submit(user, "sleep 300", "-N1", "-n1", "-w", "n1", *args)
    fenced(site, jobid)
    step = extern_of(job_on(site, user, jobid, "n1"))
    if step.slurms:
        raise Skip("where Slurm tracks processes, pam_slurm_adopt puts sessions into its own cgroups")
    expect(step.exists(), f"{step.path} does not exist")
    return jobid, step


@case(on=["two-nodes"])
def adopted_process_shares_the_jobs_cpus(site):
    user = site.users[0]
    jobid, step = job_with_extern(site, user, "-c1", "--mem=100")
    spin = "for i in 1 2 3 4; do while :; do :; done & done; wait"
    with session(site, user, spin) as (process, go):
        who = kernel.identity(process.pid)
        adopted(site, process.pid, step)
        go.touch()
        until(lambda: len(step.members()) >= 5, 10, "the spinners in the step")
        used, _ = use_of_quotas(site, step.parent, periods=20)[0]
        expect(used <= 1.05, f"four spinners in a job with one CPU used {used:.3f} CPUs")
        # Step and job have the same quota: either may be the one that the kernel met.
        # Not while others have the second CPU.
        with site.favoured():
            until(lambda: throttled(step) + throttled(step.parent) > 0, 30, "a period in which they are throttled")
        spinners = [kernel.identity(pid) for pid in step.members()]
        mark = site.log_mark()
        site.end(jobid)
        expect_all_dead(filter(None, [who, *spinners]), 10)
        logged(site, mark, ended_line(jobid, "extern"))


def throttled(group):
    text = kernel.read(group.limits_directory("cpu") / "cpu.stat")
    return int(kernel.keyed(text)["nr_throttled"])


@case(on=["two-nodes"])
def adopted_process_shares_the_jobs_memory(site):
    user = site.users[0]
    jobid, step = job_with_extern(site, user, "-c1", "--mem=100")
    with session(site, user, f"exec {EAT}") as (process, go):
        adopted(site, process.pid, step)
        go.touch()
        try:
            status = process.wait(120)
        except subprocess.TimeoutExpired:
            raise AssertionError("it holds more memory than its job has") from None
        expect_equal(status, -9, "its end")
    expect_equal(site.job(jobid).get("JobState"), "RUNNING", "state of the job")
    site.scancel(jobid)


@case(on=["two-nodes"])
def adopted_into_the_last_job(site):
    user = site.users[0]
    first, _ = job_with_extern(site, user, "-c1", "--mem=100")
    second, step = job_with_extern(site, user, "-c1", "--mem=100")
    with session(site, user, "sleep 300") as (process, _):
        adopted(site, process.pid, step)
        again = adopt(site, process.pid, "--job", str(first))
        expect_equal(again.returncode, 0, "exit status when it is in a step already")
        fenced_in_all(process.pid, step)
    # It goes on elsewhere when the last one has ended.
    site.end(second)
    until(lambda: not step.remains(), 10, f"the removal of {step.path}")
    with session(site, user, "sleep 300") as (process, _):
        adopted(site, process.pid, extern_of(job_on(site, user, first, "n1")))
    site.scancel(first)


@case(on=["two-nodes"])
def stray_goes_into_the_extern_step(site):
    """`Strays=adopt`: `jobfence hold` does by itself what the line of PAM does for a session."""
    user = site.users[0]
    jobid, step = job_with_extern(site, user, "-c1", "--mem=100")
    with session(site, user, "sleep 300") as (process, go):
        go.touch()
        site.configure_raw(f"StraysGrace=1\nStraysMinUID=1\n[User={user}]\nStrays=adopt\n")
        planned = strays_of(site)
        expect_equal((planned[process.pid]["action"], planned[process.pid]["job"]), ("adopt", str(jobid)), "what is done")
        of_job = set(site.job_pids(jobid))
        expect(not of_job & set(planned), f"processes of the job are among {planned}")
        with holding(site) as said:
            until(lambda: process.pid in step.members(), 60, f"it is in {step.path}: {kernel.read(said)}")
        site.configure()
    site.end(jobid)


@case(on=["two-nodes"])
def adopted_by_no_other_users_job(site):
    user, other = site.users
    jobid, _ = job_with_extern(site, user, "-c1", "--mem=100")

    def refused(pid, why, *more):
        before = kernel.cgroups_of(pid)
        done = adopt(site, pid, *more)
        expect_equal(done.returncode, 1, "exit status of 'jobfence adopt'")
        expect_in(why, done.stderr, "its stderr")
        expect_equal(kernel.cgroups_of(pid), before, "the cgroups of the process")

    with session(site, other, "sleep 300") as (process, _):
        refused(process.pid, "has no job with an extern step on this node")
        refused(process.pid, f"job {jobid} belongs to uid", "--job", str(jobid))
    refused(site.slurmd_pid(), "is root's")
    site.end(jobid)
    until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemons")
    with session(site, user, "sleep 300") as (process, _):
        refused(process.pid, "has no job with an extern step on this node")


@case(on=["two-nodes"])
def adopted_by_no_job_without_extern_step(site):
    user = site.users[0]
    with site.reconfigured(PrologFlags=None):
        jobid = site.submit(user, "sleep 300", "-N1", "-n1", "-w", "n1", "-c1", "--mem=100")
        fenced(site, jobid)
        with session(site, user, "sleep 300") as (process, _):
            done = adopt(site, process.pid)
            expect_equal(done.returncode, 1, "exit status of 'jobfence adopt'")
            expect_in("slurm.conf needs PrologFlags=Contain", done.stderr, "its stderr")
        site.end(jobid)


# Slurm itself reads a log-in environment by this service (--export=NONE): it refuses nobody but during the case. What lets users
# set variables is as in Debian 12's sshd; pam_systemd need not be installed.
ADOPTING = """\
auth sufficient pam_rootok.so
account required pam_slurm_adopt.so service=su-l action_adopt_failure=deny action_generic_failure=deny
session required pam_permit.so
-session optional pam_systemd.so
session required pam_env.so readenv=0 user_readenv=1
"""


@contextlib.contextmanager
def session_line(site):
    """What 'jobfence check' says is missing in the PAM configuration is there, for the time being; whether anything was."""
    with service_says(ADOPTING):
        said = site.command("jobfence", "check").stdout
        line = re.search(r"ssh sessions are NOT fenced: .*: (session required .*)", said)
        if line:
            expect_in("libjobfence.so", line.group(1), "the line that 'jobfence check' says")
            write_atomically(SERVICE, f"{ADOPTING}{line.group(1)}\n")
            content = site.command("jobfence", "check").stdout
            # How sessions leave a job otherwise, such as by su, is another line.
            expect("ssh sessions" not in content, f"check is not content:\n{content}")
        yield bool(line)


def spinning_job(site, cpus):
    """A job whose batch step and two more use all the CPUs that they get, once they do."""
    spinners = f"({SPINS}) & " * (cpus - 1) + SPINS
    jobid = site.submit(site.users[0], f"""
        srun --overlap -c{cpus} --mem=50 bash -c '{spinners}' &
        srun --overlap -c{cpus} --mem=50 bash -c '{spinners}' &
        ({SPINS}) & ({SPINS}) &
        wait
        """, "-n1", f"-c{cpus}", "--mem=300")

    def steps():
        return {kernel.environment(pid).get("SLURM_STEP_ID") for pid in site.job_pids(jobid)}
    until(lambda: {"0", "1"} <= steps(), 30, f"the steps of job {jobid}")
    return jobid


def end_of(site, jobid, session):
    """The seconds from scancel until the job's last process and step daemon have gone; and, in words, until whose have."""
    daemons = set(site.step_daemons(jobid))
    expect_equal(len(daemons), 4, f"number of step daemons of job {jobid}")
    whose = {"steps": set(site.job_pids(jobid)) - daemons, "session": set(session), "daemons": daemons}
    left = {what: [who for who in map(kernel.identity, pids) if who] for what, pids in whose.items()}
    # The script and its two spinners, two sruns and what they started.
    expect(len(left["steps"]) >= 7, f"only {left['steps']} are alive")
    took = {}
    start = time.monotonic()
    site.scancel(jobid)

    def gone():
        for what, processes in left.items():
            if what not in took and not any(kernel.identity(who[0]) == who for who in processes):
                took[what] = time.monotonic() - start
        return len(took) == len(left)
    until(gone, 30, f"the end of all that job {jobid} was after scancel")
    expect_equal(site.wait(jobid), "CANCELLED", "state")
    return max(took.values()), ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items())


def slurms_own_ends(site, grants):
    """The seconds of such jobs' ends, by their CPUs, when this Slurm has no jobfence."""
    took = {}
    with site.unplugged(), service_says(ADOPTING):
        for cpus in grants:
            jobid = spinning_job(site, cpus)
            with logged_in(site.users[0], f"({SPINS})") as session:
                # Where Slurm does not track it, it stays.
                tracked = [pid for pid in session if "/step_extern" in kernel.read(f"/proc/{pid}/cgroup")]
                took[cpus], _ = end_of(site, jobid, tracked)
    return took


def session_in_a_spinning_job(site, ours, cpus, grant):
    """How many CPUs the steps of a job and a session used together, in words, and its end."""
    user = site.users[0]
    jobid = spinning_job(site, cpus)
    steps = [fenced(site, jobid, name) for name in ("step_batch", "step_0", "step_1")]
    # Without our line only Slurm puts the session somewhere: into its own directories.
    hierarchies = kernel.expected_hierarchies() - (set() if ours else {""} - set(steps[0].slurms))
    with logged_in(user, f"({SPINS})") as session:
        expect(len(session) >= 4, f"the session has {session}")
        for pid in session:
            found = Group.of(pid)
            expect(found, f"process {pid} of the session is in no step: {kernel.cgroups_of(pid)}")
            for controller in hierarchies:
                wanted = steps[0].parent.step("step_extern").path_in(controller)
                expect_equal(found.path_in(controller), wanted,
                             f"where process {pid} of the session is in {controller or 'cgroup2'}")
        extern = Group.of(session[0])
        expect_limits(extern, grant, 300)
        expect_equal([step.cpu_limit() for step in steps], [grant] * 3, "CPU limits of the steps")
        # Whose use is counted: on hybrid hosts the session need not be in our directory of cgroup2.
        job = extern.parent
        allowed = grant + (kernel.HEADROOM_CPUS if "" in job.slurms else 0)
        expect_equal(Group.cpu_limit(job), allowed, f"CPU limit of {job}")
        (used, _), (alone, _) = use_of_quotas(site, job, extern)
        expect(used <= allowed * 1.05, f"the job and the session used {used:.3f} CPUs of {allowed}")
        # Slurm may have bound them all to one core.
        expect(used >= min(allowed, 1.0) / 2, f"the job and the session used only {used:.3f} CPUs of {allowed}")
        expect(0 < alone <= grant * 1.05, f"the session used {alone:.3f} CPUs of {grant}")
        took, said = end_of(site, jobid, session)
    until(lambda: not job.remains(), 10, f"the removal of {job.path}")
    return took, f"{used:.2f} CPUs of {allowed:g}, after scancel {said}"


def prompt_end(site, ours, cpus, grant, slurms):
    """It ends within two seconds beyond those of Slurm alone, as this machine counts seconds."""
    took, said = session_in_a_spinning_job(site, ours, cpus, grant)
    said += f"; without jobfence all {slurms:.1f} s"
    expect(took <= slurms + 2 * sites.PATIENCE, said)
    return said


@case(on=["installed"])
def logins_by_pam_slurm_adopt(site):
    """A login on a node goes into the user's job, shares its limits with the steps, and ends with it."""
    if not any(Path("/usr/lib").glob(f"{place}security/pam_slurm_adopt.so") for place in ("", "*/")):
        raise Skip("pam_slurm_adopt is not installed")
    # One core is less than grant and headroom; of two, they are so little that the job's quota is met.
    jobs = (1, 100, 1.0), (2, 40, 0.8)
    said = []
    with site.reconfigured(PrologFlags="Contain"):
        slurms = slurms_own_ends(site, [cpus for cpus, _, _ in jobs])
        with session_line(site) as ours:
            refused = login(site.users[0], "true")
            refused.communicate(timeout=120)
            expect(refused.returncode != 0, "a user without a job could log in")
            for cpus, percent, grant in jobs:
                site.configure(CPUQuotaPercent=str(percent), **LONG_PERIOD)
                said.append(prompt_end(site, ours, cpus, grant, slurms[cpus]))
    return "; ".join(said)
