#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real Slurm.

    python3 cases.py --site private --so PATH [--bin PATH] [--only NAME…]
    python3 cases.py --site two-nodes --so PATH [--bin PATH]
    python3 cases.py --site installed
    python3 cases.py [--site SITE] --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files
with what was granted. After each, nothing of it may be left and the node must be idle.
"""

import argparse
import contextlib
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slurm import kernel, sites  # noqa: E402
from slurm.kernel import Group  # noqa: E402
from slurm.sites import (  # noqa: E402
    UNFINISHED, InstalledSite, PrivateSite, TwoNodesSite, die_properly, until,
)

MIB = 1 << 20
PYTHON = "/usr/bin/python3"
# Fills memory with something, since the kernel counts no page that was never written.
# Gives up at 800 MiB, in case no limit stops it: it must not take this machine along.
EAT = f"{PYTHON} -S -c 'b = [bytes([i + 1]) * (8 << 20) for i in range(100)]'"
CASES = []


class Skip(Exception):
    """The case makes no sense here; the text says why."""


def case(function=None, *, on=("private", "installed"), layout=True):
    """Declares a case: `@case`, or with the sites where it makes sense, or that it is the same
    whatever the cgroup layout is."""
    def declare(function):
        function.sites = on
        function.layout = layout
        CASES.append(function)
        return function
    return declare(function) if function else declare


def expect(true, said):
    if not true:
        raise AssertionError(said)


def expect_equal(found, wanted, what):
    expect(found == wanted, f"{what}: {found!r}, and should be {wanted!r}")


def expect_in(part, whole, what):
    expect(part in whole, f"{what} should contain {part!r}, and is:\n{whole}")


def expect_match(pattern, whole, what):
    found = re.search(pattern, whole)
    expect(found, f"{what} should match {pattern!r}, and is:\n{whole}")
    return found


# ----------------------------------------------------------------------------------------
# What the cases share


def uid(user):
    return pwd.getpwnam(user).pw_uid


def steps_of(site, jobid, node=None):
    """The step groups in which the kernel holds processes of this job, by name.

    Where several nodes share this host, `node` says which one's.
    """
    groups = (Group.of(pid) for pid in site.job_pids(jobid))
    return {group.name: group for group in groups
            if group and (node is None or f"/{node}/uid_" in group.path)}


def fenced(site, jobid, step="step_batch", timeout=10, node=None):
    """Wait until the step's processes are in a group of their own, and return that."""
    def found():
        group = steps_of(site, jobid, node).get(step)
        # Its end before that will not turn into a beginning: do not wait for it.
        state = None if group else site.job(jobid).get("JobState")
        expect(group or state in UNFINISHED, f"job {jobid} is {state} and should run")
        return group
    try:
        return until(found, timeout, f"{step} of job {jobid}")
    except AssertionError as error:
        seen = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}
        raise AssertionError(f"{error}; its processes are in {seen}") from None


def fenced_in_all(pid, path):
    """The process is in that path in every hierarchy that counts."""
    found = kernel.cgroups_of(pid)
    for controller in kernel.expected_hierarchies():
        expect_equal(found.get(controller), path,
                     f"cgroup of process {pid} in hierarchy {controller or 'cgroup2'}")


def expect_limits(group, cpus, mib):
    expect_equal(group.cpu_limit(), cpus, f"CPU limit of {group.path}")
    wanted = None if mib is None else mib * MIB
    expect_equal(group.memory_limit(), wanted, f"memory limit of {group.path}")


def ended_line(jobid, step):
    return rf"jobfence: job {jobid} step {step} ended: cpu [\d.]+ s, throttled [\d.]+ s"


def logged(site, mark, pattern, timeout=5):
    """Wait for a line in slurmd's log."""
    try:
        return until(lambda: re.search(pattern, site.slurmd_log_since(mark)), timeout, "it")
    except AssertionError:
        raise AssertionError(f"slurmd's log has no line like {pattern!r}") from None


def pid_from(path, timeout=10):
    return int(until(lambda: kernel.read(path), timeout, f"a pid in {path}"))


def expect_dead(who, timeout=5):
    """`who` is what kernel.identity said when it was alive."""
    until(lambda: kernel.identity(who[0]) != who, timeout, f"the death of process {who[0]}")


@contextlib.contextmanager
def ended_after(who):
    """Whatever the case finds: a process that it made survives no longer than it."""
    try:
        yield
    finally:
        if kernel.identity(who[0]) == who:
            os.kill(who[0], signal.SIGKILL)


def fences_well(site, user):
    """One small job, fenced as it should be."""
    jobid = site.submit(user, "cat /proc/self/cgroup", "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state of the job after it")
    expect_in(f"/uid_{uid(user)}/job_{jobid}/step_batch", site.output(jobid), "its cgroup")


NOT_STARTED = "jobfence: this job was not started, since it cannot be fenced: "


def expect_not_started(site, user, jobid):
    state = site.wait(jobid)
    expect_equal(state, "FAILED", f"state of job {jobid}")
    expect_in(NOT_STARTED, site.output(jobid), "the job's output")
    expect(not (site.directory(user) / f"ran.{jobid}").exists(), "the job's script has run")


RAN = "touch ran.$SLURM_JOB_ID"


# ----------------------------------------------------------------------------------------
# Limits


@case
def tree_and_limits(site):
    user = site.users[0]
    mark = site.log_mark()
    jobid = site.submit(user, """
        env | grep ^JOBFENCE_ | sort
        srun -n1 --mem=100 sleep 300 &
        sleep 300 &
        wait
        """, "-c1", "--mem=200")
    batch = fenced(site, jobid)
    tail = f"/uid_{uid(user)}/job_{jobid}/step_batch"
    expect(batch.path.endswith(tail), f"{batch.path} does not end in {tail}")
    for pid in until(lambda: site.job_pids(jobid, "sleep"), 10, "its processes"):
        fenced_in_all(pid, Group.of(pid).path)
    expect_limits(batch.parent, 1.0, 200)
    expect_limits(batch, 1.0, 200)

    inner = fenced(site, jobid, "step_0")
    expect_equal(inner.parent, batch.parent, "job directory of the inner step")
    expect_limits(inner, 1.0, 100)

    environment = dict(line.split("=", 1) for line in site.output(jobid).splitlines()
                       if line.startswith("JOBFENCE_"))
    expect_equal(environment, {
        "JOBFENCE_CGROUP": batch.path,
        "JOBFENCE_CPUS": "1",
        "JOBFENCE_MEMORY_BYTES": str(200 * MIB),
    }, "the job's environment")

    site.scancel(jobid)
    site.wait(jobid)
    logged(site, mark, ended_line(jobid, "batch"))
    logged(site, mark, ended_line(jobid, "0"))


SPIN = "for i in 1 2 3 4; do while :; do :; done & done; wait"


def busy_cpus(site, group, seconds=5):
    """How many CPUs the group used, and how many had nothing to do, over that time."""
    with site.favoured():
        start, used, idle = time.monotonic(), group.cpu_seconds(), kernel.idle_seconds()
        time.sleep(seconds)
        used, idle = group.cpu_seconds() - used, kernel.idle_seconds() - idle
        wall = time.monotonic() - start
    return used / wall, idle / wall


@case
def quota_measured(site):
    jobid = site.submit(site.users[0], SPIN, "-c1", "--mem=200")
    group = fenced(site, jobid).parent
    for _ in range(4):
        used, idle = busy_cpus(site, group)
        expect(used <= 1.05, f"four spinners with one CPU granted used {used:.3f} CPUs")
        if used >= 0.95:
            break
        # Less is no fault of the quota as long as others keep the CPUs busy: look again.
        expect(idle < 0.1, f"only {used:.3f} CPUs used while {idle:.3f} were idle")
    else:
        said = f"this machine is too busy to measure one CPU ({used:.3f})"
        expect(os.environ.get("CI") != "true", said)
        raise Skip(said)
    site.scancel(jobid)
    site.wait(jobid)

    if os.cpu_count() < 2:
        return
    jobid = site.submit(site.users[0], SPIN, "-c2", "--mem=200")
    group = fenced(site, jobid).parent
    expect_equal(group.cpu_limit(), 2.0, "CPU limit of a job with two CPUs")
    used, idle = busy_cpus(site, group)
    expect(used <= 2.1, f"two CPUs granted and {used:.3f} used")
    expect(used >= 1.9 or idle < 0.1,
           f"two CPUs granted, {used:.3f} used while {idle:.3f} were idle")
    site.scancel(jobid)


def expect_killed_for_memory(said, jobid, step, limit):
    # Step and job have the same limit here: either may be the one that the kernel met.
    found = expect_match(
        rf"jobfence: job {jobid} step {step}: process \d+ \(python3[^)]*\) was killed: "
        rf"the (?:step|job) reached its memory limit of {limit}\.0 MiB \(peak use ([\d.]+) MiB\)\. "
        r"Ask for more memory \(--mem\) or use less\.",
        said, "what the user is told")
    peak = float(found.group(1))
    expect(limit * 0.75 <= peak <= limit * 1.02, f"peak use of {peak} MiB")
    expect_equal(said.count("was killed:"), 1, "number of sentences")


@case
def memory_oom(site):
    user = site.users[0]
    mark = site.log_mark()
    jobid = site.submit(user, EAT, "-c1", "--mem=200")
    state = site.wait(jobid)
    expect(state in ("OUT_OF_MEMORY", "FAILED"), f"state {state}")
    until(lambda: not site.step_daemons(jobid), 5, "the end of the step daemon")
    expect_killed_for_memory(site.output(jobid), jobid, "batch", 200)
    logged(site, mark, ended_line(jobid, "batch") + r", peak memory [\d.]+ MiB, OOM kills [1-9]")


@case
def memory_oom_srun(site):
    done = site.srun(site.users[0], "--mem=150", "bash", "-c",
                     f"echo job $SLURM_JOB_ID; {EAT}; exit 9")
    expect(done.returncode != 0, "srun returned 0")
    jobid = int(expect_match(r"job (\d+)", done.stdout, "srun's output").group(1))
    expect_killed_for_memory(done.stderr, jobid, "0", 150)


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
    until(lambda: not steps[1].exists(), 10, "the end of step 0")
    expect_limits(steps[0].parent, 2.0, 400)
    expect(steps[2].members(), "step 1 has lost its processes")
    site.scancel(jobid)


@case
def two_users(site):
    if os.cpu_count() < 2:
        raise Skip("this host has one CPU")
    jobids = {user: site.submit(user, "sleep 300", "-c1", f"--mem={mib}")
              for user, mib in zip(site.users, (200, 120))}
    groups = {user: fenced(site, jobid) for user, jobid in jobids.items()}
    for (user, group), mib in zip(groups.items(), (200, 120)):
        expect_in(f"/uid_{uid(user)}/job_{jobids[user]}/", group.path, "the path")
        expect_limits(group.parent, 1.0, mib)
    first, second = site.users
    site.scancel(jobids[first])
    site.wait(jobids[first])
    until(lambda: not groups[first].parent.parent.exists(), 5, "the end of the first user's")
    expect_limits(groups[second].parent, 1.0, 120)
    site.scancel(jobids[second])


@case
def array_of_20(site):
    user = site.users[0]
    jobid = site.submit(user, "echo $JOBFENCE_CGROUP", "--array=1-20", "-c1", "--mem=50")
    expect_equal(site.wait(jobid, 120), "COMPLETED", "states")
    tasks = [int(job["JobId"]) for job in site.jobs(jobid)]
    expect_equal(len(tasks), 20, "number of tasks")
    for task in tasks:
        expect_in(f"/uid_{uid(user)}/job_{task}/step_batch\n", site.output(task), "the path")


# ----------------------------------------------------------------------------------------
# The end of a step


def straggler(site, command):
    """A batch job that leaves a process behind, which must die with it."""
    user = site.users[0]
    file = site.directory(user) / f"straggler.{time.monotonic_ns()}"
    go = file.with_name(file.name + ".go")
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
    jobid = site.submit(user, f"{command.format(file=file)}\n{wait}", "-c1", "--mem=100")
    who = kernel.identity(pid_from(file))
    with ended_after(who):
        expect(Group.of(who[0]), f"process {who[0]} is not in the tree before the job's end")
        go.touch()
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        expect_dead(who)


@case
def straggler_setsid(site):
    straggler(site, "setsid sh -c 'echo $$ >{file}; exec sleep 300' >/dev/null 2>&1 &")


@case
def straggler_double_fork(site):
    straggler(site, f"""{PYTHON} -S -c '
import os, time
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
os.closerange(0, 100)
with open("{{file}}", "w") as file: file.write(str(os.getpid()))
time.sleep(300)'""")


@case
def scancel(site):
    jobid = site.submit(site.users[0], "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    processes = [kernel.identity(pid) for pid in group.members()]
    start = time.monotonic()
    site.scancel(jobid)
    expect_equal(site.wait(jobid, 5), "CANCELLED", "state")
    until(lambda: not group.parent.exists(), 5, "the removal of the job's directories")
    for who in filter(None, processes):
        expect_dead(who, 1)
    limit = 5 * sites.PATIENCE
    expect(time.monotonic() - start < limit, f"it took more than {limit:g} s")


@case
def time_limit(site):
    """The controller looks every 30 s, and no limit is below a minute: move its end here."""
    jobid = site.submit(site.users[0], "setsid sleep 300 &\nsleep 300",
                        "-c1", "--mem=100", "--time=1")
    group = fenced(site, jobid)
    done = site.command("scontrol", "update", f"jobid={jobid}", "EndTime=now+1seconds")
    expect_equal(done.returncode, 0, f"scontrol update ({done.stderr})")
    expect_equal(site.wait(jobid, 100), "TIMEOUT", "state")
    until(lambda: not group.parent.exists(), 5, "the removal of the job's directories")


@case(layout=False)
def step_cannot_start(site):
    user = site.users[0]
    done = site.srun(user, "--mem=100", "/nonexistent/program")
    expect(done.returncode != 0, "srun of no program returned 0")
    expect("jobfence" not in done.stderr, f"srun's stderr: {done.stderr}")
    jobid = site.submit(user, "true", "--mem=100", "--output=/nonexistent/directory/%j.out")
    expect_equal(site.wait(jobid), "FAILED", "state without an output file")
    # A missing working directory is no obstacle: Slurm takes /tmp instead.
    output = f"--output={site.directory(user)}/%j.out"
    jobid = site.submit(user, "pwd", "--mem=100", "--chdir=/nonexistent/directory", output)
    expect_equal(site.wait(jobid), "COMPLETED", "state without a working directory")
    fences_well(site, user)


@case
def stepd_killed(site):
    user = site.users[0]
    jobid = site.submit(user, "setsid sleep 300 &\nsleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    until(lambda: len(site.job_pids(jobid, "sleep")) >= 2, 5, "its processes")
    orphans = [kernel.identity(pid) for pid in group.members()]
    daemons = site.step_daemons(jobid)
    expect(daemons, "no step daemon found")
    with contextlib.ExitStack() as cleanup:
        for who in filter(None, orphans):
            cleanup.enter_context(ended_after(who))
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not site.step_daemons(jobid), 5, "the death of the step daemon")
        site.scancel(jobid)
        site.wait(jobid)
        expect(group.exists(), "the dead step's directory went without anyone to remove it")
        fences_well(site, user)
        for who in filter(None, orphans):
            expect_dead(who)
        until(lambda: not group.parent.exists(), 5, f"the removal of {group.parent.path}")


# ----------------------------------------------------------------------------------------
# Configuration


BROKEN = {
    "unknown key": ("ConstrainEverything=yes\n", 1),
    "unknown mode": ("Mode=perhaps\n", 1),
    "no value": ("# a comment\n\nMode\n", 3),
    "no number": ("Mode=enforce\nAllowedRAMSpace=plenty\n", 2),
    "negative number": ("CPUQuotaPercent=-5\n", 1),
    "not text": (b"Mode=enf\xff\xfe\x00rce\n", 1),
}


@case(layout=False)
def bad_configuration(site):
    user = site.users[0]
    daemon = site.slurmd_pid()
    for what, (text, line) in BROKEN.items():
        before = site.configure_raw(text)
        mark = site.log_mark()
        jobid = site.submit(user, RAN, "-c1", "--mem=100")
        try:
            expect_not_started(site, user, jobid)
            logged(site, mark, rf"{re.escape(str(site.config))}:{before + line}:\d+")
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
        expect_equal(site.node_state(), "IDLE", f"{what}: state of the node")
        expect_equal(site.slurmd_pid(), daemon, f"{what}: pid of slurmd")
        expect(kernel.is_alive(daemon), f"{what}: slurmd has died")
    # It must also start with such a file, or a typing error would take the node away.
    site.restart_slurmd()
    expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=100"))
    site.configure()
    fences_well(site, user)


@case(layout=False)
def cannot_be_fenced(site):
    user = site.users[0]
    site.configure(CgroupMountpoint="/nonexistent")
    expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=100"))
    done = site.srun(user, "--mem=100", "touch", "ran.srun")
    expect(done.returncode != 0, "srun returned 0")
    expect_in(NOT_STARTED, done.stderr, "srun's stderr")
    expect(not (site.directory(user) / "ran.srun").exists(), "srun's program has run")
    expect_equal(site.node_state(), "IDLE", "state of the node")

    site.configure(CgroupMountpoint="/nonexistent", OnError="warn")
    mark = site.log_mark()
    jobid = site.submit(user, RAN, "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state with OnError=warn")
    expect((site.directory(user) / f"ran.{jobid}").exists(), "the job's script has not run")
    logged(site, mark, r"jobfence:.*(fence|nonexistent)")
    site.configure()
    fences_well(site, user)


@case
def mode_observe(site):
    site.configure(Mode="observe")
    mark = site.log_mark()
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    expect_limits(group, None, None)
    expect_limits(group.parent, None, None)
    logged(site, mark, r"jobfence:.*\bwould\b")
    site.scancel(jobid)
    site.wait(jobid)
    logged(site, mark, ended_line(jobid, "batch"))


@case
def binding_is_kept(site):
    """What Slurm has bound a task to, it is bound to in its fence, too."""
    if os.cpu_count() < 2:
        raise Skip("one CPU")
    plugins = site.command("scontrol", "show", "config").stdout
    if not re.search(r"^TaskPlugin\s*=.*affinity", plugins, re.M):
        raise Skip("Slurm does not bind tasks here")
    jobid = site.submit(site.users[0], """
        srun -n2 --cpu-bind=map_cpu:0,1 \\
            sh -c 'echo $SLURM_LOCALID bound to $(taskset -pc $$ | sed "s/.*: //")'
        """, "-n2", "-c1", "--mem=100")
    site.wait(jobid)
    for task in (0, 1):
        expect_in(f"{task} bound to {task}\n", site.output(jobid), "the job's output")


@case
def percentages(site):
    """Each key that changes a number changes it in the kernel's files."""
    site.configure(CPUQuotaPercent="50", CPUQuotaPeriod="20ms", AllowedRAMSpace="90",
                   MinRAMSpace="60M", AllowedSwapSpace="10")
    jobid = site.submit(site.users[0], """
        srun --mem=40 sleep 300
        """, "-c1", "--mem=100")
    step = fenced(site, jobid, "step_0")
    expect_limits(step, 0.5, 60)
    expect_limits(step.parent, 0.5, 90)
    expect_equal(step.cpu_period_us(), 20000, "period")
    if step.swap_is_accounted():
        expect_equal(step.parent.swap_limit(), 10 * MIB, "swap of the job")
    site.scancel(jobid)


@case
def one_limit_off(site):
    """What is switched off is not limited, and nothing fails for it, whatever the controllers are."""
    for keys, cpus, mib in (
        ({"ConstrainCPUQuota": "no"}, None, 100),
        ({"ConstrainRAMSpace": "no", "ConstrainSwapSpace": "no"}, 1.0, None),
        ({"ConstrainCPUQuota": "no", "ConstrainRAMSpace": "no", "ConstrainSwapSpace": "no"},
         None, None),
    ):
        site.configure(**keys)
        jobid = site.submit(site.users[0], """
            env | grep -o "^JOBFENCE_[CM][PE][UM][^=]*" | sort; echo end; sleep 300
            """, "-c1", "--mem=100")
        group = fenced(site, jobid)
        expect_limits(group, cpus, mib)
        expect_limits(group.parent, cpus, mib)
        until(lambda: "end" in site.output(jobid), 5, "the job's output")
        told = ["JOBFENCE_CPUS"] * (cpus is not None) + ["JOBFENCE_MEMORY_BYTES"] * (mib is not None)
        expect_equal(site.output(jobid).split(), [*told, "end"], f"{keys}: what the job is told")
        site.scancel(jobid)
        site.wait(jobid)


@case(layout=False)
def too_small_a_quota(site):
    """A number that the kernel refuses is an error of that limit: OnError decides for it alone."""
    user = site.users[0]
    tiny = {"CPUQuotaPercent": "1", "CPUQuotaPeriod": "10ms"}
    site.configure(**tiny)
    jobid = site.submit(user, RAN, "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    expect_in("the kernel's least is 1000 us", site.output(jobid), "the job's output")
    site.configure(**tiny, OnError="fail,cpu:warn")
    mark = site.log_mark()
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    expect_limits(group, None, 100)
    logged(site, mark, "runs without its CPU limit")
    site.scancel(jobid)


@case(layout=False)
def plugstack_decides(site):
    """Arguments in plugstack.conf override the file, and alone soften one with mistakes."""
    user = site.users[0]
    with site.plugstack("CPUQuotaPercent=50"):
        site.configure(CPUQuotaPercent="200")
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        expect_limits(fenced(site, jobid), 0.5, 100)
        site.scancel(jobid)
        site.wait(jobid)
    for softening in ("OnError=warn", "Mode=observe", "Mode=off"):
        with site.plugstack(softening):
            site.configure_raw("Mode=enforce\n%s%n=yes\n")
            mark = site.log_mark()
            jobid = site.submit(user, RAN, "-c1", "--mem=100")
            expect_equal(site.wait(jobid), "COMPLETED", f"{softening}: state of the job")
            if softening != "Mode=off":
                logged(site, mark, r"WITHOUT a fence.*%s%n")


@case(layout=False)
def listed_as_optional(site):
    """Slurm ignores what an optional plugin answers, and the job is refused all the same."""
    with site.plugstack(kind="optional"):
        site.configure(CgroupMountpoint="/nonexistent")
        expect_not_started(site, site.users[0], site.submit(site.users[0], RAN, "-c1", "--mem=100"))
        site.configure()
        fences_well(site, site.users[0])


@case(on=["private"])
def submitting_needs_no_configuration(site):
    """As on a login node: without the file, jobs are taken, and fail where they cannot be fenced."""
    user = site.users[0]
    site.config.unlink()
    jobid = site.submit(user, RAN, "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    site.configure()


@case(layout=False)
def mode_off(site):
    site.configure(Mode="off")
    jobid = site.submit(site.users[0], "env | grep JOBFENCE; sleep 300", "-c1", "--mem=100")
    pid = until(lambda: site.job_pids(jobid, "sleep"), 10, "its process")[0]
    expect(Group.of(pid) is None, f"the job is in {Group.of(pid)}")
    expect_equal(site.leftovers(), [], "the tree")
    expect_equal(site.output(jobid), "", "the job's environment")
    site.scancel(jobid)


@case(layout=False)
def listed_twice(site):
    with site.plugstack(twice=True):
        mark = site.log_mark()
        jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
        group = fenced(site, jobid)
        for top in group.parent.directories():
            expect_equal([p.name for p in top.iterdir() if p.is_dir()], ["step_batch"],
                         f"directories in {top}")
        site.scancel(jobid)
        site.wait(jobid)
        until(lambda: not site.step_daemons(jobid), 5, "the end of the step daemon")
        lines = re.findall(ended_line(jobid, "batch"), site.slurmd_log_since(mark))
        expect_equal(len(lines), 1, "number of lines about the end of the step")


# ----------------------------------------------------------------------------------------
# The user's side


FORGED = {
    "SLURM_JOB_CPUS_PER_NODE": "64", "SLURM_CPUS_ON_NODE": "64", "JOBFENCE_CPUS": "64",
    "JOBFENCE_MEMORY_BYTES": str(1 << 40), "JOBFENCE_CGROUP": "/",
}


@case(layout=False)
def forged_environment(site):
    forged = " ".join(f"{k}={v}" for k, v in FORGED.items())
    jobid = site.submit(site.users[0], f"""
        echo batch $JOBFENCE_CPUS $JOBFENCE_MEMORY_BYTES
        {forged} srun -n1 bash -c 'echo step $JOBFENCE_CPUS $JOBFENCE_MEMORY_BYTES; sleep 300'
        """, "-c1", "--mem=200", env=FORGED)
    step = fenced(site, jobid, "step_0")
    expect_limits(step, 1.0, 200)
    expect_limits(step.parent, 1.0, 200)
    until(lambda: "step " in site.output(jobid), 5, "the step's output")
    expect_equal(site.output(jobid), f"batch 1 {200 * MIB}\nstep 1 {200 * MIB}\n",
                 "the variables of job and step")
    site.scancel(jobid)


@case(layout=False)
def export_none(site):
    user = site.users[0]
    # NONE makes Slurm read a log-in environment, which some accounts do not have; NIL not.
    for value in ("NONE", "NIL"):
        jobid = site.submit(user, "cat /proc/self/cgroup; echo cpus=$JOBFENCE_CPUS",
                            "-c1", "--mem=100", f"--export={value}")
        expect_equal(site.wait(jobid), "COMPLETED", f"state with --export={value}")
        expect_in(f"/job_{jobid}/step_batch", site.output(jobid), "the job's cgroup")
        expect_in("cpus=1\n", site.output(jobid), "the job's environment")


@case(layout=False)
def stderr_clean(site):
    jobid = site.submit(site.users[0], "echo out\necho err >&2", "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    until(lambda: not site.step_daemons(jobid), 5, "the end of the step daemon")
    expect_equal(site.output(jobid), "out\nerr\n", "the job's output")


@case(layout=False)
def stdout_protocol(site):
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    done = site.srun(site.users[0], "--mem=100", PYTHON, "-S", "-c", program, text=False)
    expect_equal(done.returncode, 0, "srun's exit code")
    expect(done.stdout == bytes(range(256)) * 1000, "srun's output is not the program's")
    expect_equal(done.stderr, b"", "srun's stderr")
    done = site.srun(site.users[0], "--mem=100", "bash", "-c", "exit 7")
    expect_equal(done.returncode, 7, "srun's exit code")


@case
def descriptors(site):
    """No handle on a cgroup or on a record passes to the user's program."""
    bad = ("/sys/fs/cgroup", "cgroup.", str(site.run_directory()))
    jobid = site.submit(site.users[0], "ls -l /proc/$$/fd /proc/self/fd", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    done = site.srun(site.users[0], "--mem=100", "ls", "-l", "/proc/self/fd")
    for said in (site.output(jobid), done.stdout):
        expect_in(" -> ", said, "the list of descriptors")
        for line in said.splitlines():
            expect(not any(part in line for part in bad), f"open in the job: {line}")


# ----------------------------------------------------------------------------------------
# Beside systemd


def unchanged_by(site, *command):
    if not isinstance(site, InstalledSite) or not Path("/run/systemd/system").is_dir():
        raise Skip("only beside systemd")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=200")
    group = fenced(site, jobid)
    members = group.members()
    done = site.command(*command, timeout=120)
    expect_equal(done.returncode, 0, f"{' '.join(command)} ({done.stderr})")
    # What systemd does to cgroups it does when its queue is worked off: give it that time.
    until(lambda: site.command("systemctl", "is-system-running").returncode in (0, 1), 30,
          "systemd")
    expect_limits(group, 1.0, 200)
    expect_limits(group.parent, 1.0, 200)
    expect_equal(group.members() & members, members, "the processes in the group")
    for pid in members:
        fenced_in_all(pid, group.path)
    site.scancel(jobid)


@case
def daemon_reload(site):
    unchanged_by(site, "systemctl", "daemon-reload")


@case
def daemon_reexec(site):
    unchanged_by(site, "systemctl", "daemon-reexec")


@case
def service_restart(site):
    """With a job in the scope, and without one: then systemd has just removed the scope."""
    unchanged_by(site, "systemctl", "restart", "jobfence.service")
    for _ in range(3):
        done = site.command("systemctl", "restart", "jobfence.service", timeout=120)
        expect_equal(done.returncode, 0, f"systemctl restart jobfence.service ({done.stderr})")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=200")
    expect_limits(fenced(site, jobid), 1.0, 200)
    site.scancel(jobid)


# ----------------------------------------------------------------------------------------
# Two nodes


def job_on(site, user, jobid, node):
    """The job's directory in that node's branch of the tree, whether it exists or not."""
    return Group(f"/{site.bases()[0]}/{node}/uid_{uid(user)}/job_{jobid}")


def extern_of(job):
    return Group(f"{job.path}/step_extern")


def made_at(group):
    """When a directory without children was made."""
    return min(top.stat().st_ctime_ns for top in group.directories())


# srun -N1 in a job of two nodes, on the one where the batch script does not run.
ELSEWHERE = "srun -N1 -n1 -w n2"


@case(on=["two-nodes"])
def extern_first(site):
    """PrologFlags=Contain: a step that nobody starts, on each node, before any other."""
    user = site.users[0]
    mark = site.log_mark()
    jobid = site.submit(user, "sleep 300", "-N2", "-n3", "--mem-per-cpu=100")
    batch = fenced(site, jobid)
    jobs = [job_on(site, user, jobid, node) for node in site.nodes]
    expect_equal(batch.parent, jobs[0], "job directory of the batch step")
    for job, cpus in zip(jobs, (2, 1)):
        until(extern_of(job).exists, 5, f"{extern_of(job).path}")
        expect_limits(job, cpus, cpus * 100)
        expect_limits(extern_of(job), cpus, cpus * 100)
    expect_limits(batch, 2.0, 200)
    expect(made_at(extern_of(jobs[0])) < made_at(batch), "the extern step was not the first")
    expect_equal(sorted(steps_of(site, jobid)), ["step_batch"], "steps with processes")

    # Slurm's own placeholder is root's, and no plugin is told its pid: it stays outside.
    for job in jobs:
        expect_equal(extern_of(job).members(), set(), f"processes in {extern_of(job).path}")
    site.scancel(jobid)
    site.wait(jobid)
    for node, job in zip(site.nodes, jobs):
        until(lambda: not job.exists(), 5, f"the removal of {job.path}")
        logged(site, mark, ended_line(jobid, "extern"))
        said = site.slurmd_log_since(mark, node)
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
    expect_equal(site.granted(jobid), granted, "what the controller says")
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
    site.scancel(jobid)
    site.wait(jobid)


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
    expect_limits(step, 1.0, 100)
    expect_limits(step.parent, 1.0, 100)
    until(lambda: "step " in site.output(jobid), 5, "the step's output")
    expect_equal(site.output(jobid), f"step 1 1 {100 * MIB} {step.path}\n", "the variables")
    site.scancel(jobid)


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
        wanted = Group(f"{job_on(site, user, jobid, node).path}/step_0")
        expect_equal(group, wanted, f"the step's group on {node}")
        for pid in (p for p in site.job_pids(jobid, "bash") if Group.of(p) == group):
            fenced_in_all(pid, group.path)
    shells = [kernel.identity(pid) for pid in groups["n1"].members()
              if "bash" in kernel.command_line(pid)]
    expect(shells, "no shell on n1")
    go.touch()
    try:
        until(lambda: not groups["n2"].exists(), 10, "the end of the step on n2")
    finally:
        go.unlink()
    for who in shells:
        expect_equal(kernel.identity(who[0]), who, "the step's shell on n1")
        fenced_in_all(who[0], groups["n1"].path)
    for group in (groups["n1"], groups["n1"].parent, groups["n2"].parent):
        expect_limits(group, 1.0, 100)
    expect_equal(extern_of(groups["n1"].parent).exists(), True, "extern step on n1")
    expect_equal(extern_of(groups["n2"].parent).exists(), True, "extern step on n2")

    # The end of the whole job on one node: the other user's job there stays.
    other = site.submit(site.users[1], "sleep 300", "-w", "n2", "-c1", "--mem=120")
    kept = fenced(site, other)
    expect_in("/n2/uid_", kept.path, "the other user's path")
    site.scancel(jobid)
    site.wait(jobid)
    for group in groups.values():
        until(lambda: not group.parent.parent.exists(), 5, f"the end of {group.parent.path}")
    expect_limits(kept, 1.0, 120)
    expect_limits(kept.parent, 1.0, 120)
    expect(kept.members(), "the other user's job has lost its processes")
    site.scancel(other)


@case(on=["two-nodes"])
def memory_not_managed(site):
    """Where memory is no consumable resource, Slurm grants 0: not managed, not nothing."""
    with site.reconfigured(SelectTypeParameters="CR_Core", PrologFlags=None):
        jobid = site.submit(site.users[0], "srun sleep 300", "-N1", "-n1", "-c1")
        step = fenced(site, jobid, "step_0")
        expect_limits(step, 1.0, None)
        expect_limits(step.parent, 1.0, None)
        site.scancel(jobid)
        site.wait(jobid)


@case(on=["two-nodes"])
def step_without_exact(site):
    """Without --exact a step is granted all that the job has, with it what it asks for."""
    jobid = site.submit(site.users[0], """
        srun -n1 sleep 300
        srun -n1 --exact sleep 300
        """, "-N1", "-n2", "-c1", "--mem=100")
    for step, cpus in (("step_0", 2), ("step_1", 1)):
        group = fenced(site, jobid, step)
        expect_limits(group.parent, 2.0, 100)
        expect_equal(group.cpu_limit(), cpus, f"CPU limit of {step}")
        site.scancel(f"{jobid}.{step[-1]}")
        until(lambda: not group.exists(), 10, f"the end of {step}")


TWO_THREADS = "CPUs=4 Sockets=1 CoresPerSocket=2 ThreadsPerCore=2"


@case(on=["two-nodes"])
def two_threads_per_core(site):
    """The same as the table in src/entry/spank/grant.rs.

    Without Contain: the extern step counts threads as the host has them, and these nodes only
    claim theirs.
    """
    for select, requests in {
        "CR_Core_Memory": [
            (["-c1"], 2, 1),
            (["-c3"], 4, 3),
            (["--threads-per-core=1", "-c1"], 1, 1),
            (["--hint=nomultithread", "-c2"], 2, 2),
        ],
        "CR_CPU_Memory": [
            (["-c1"], 1, 1),
            (["-c3"], 3, 3),
        ],
    }.items():
        with site.reconfigured(TWO_THREADS, SelectTypeParameters=select, PrologFlags=None):
            for request, job, step in requests:
                jobid = site.submit(site.users[0], f"srun -n1 {request[-1]} sleep 300",
                                    "--mem=100", *request)
                what = f"{select} {' '.join(request)}"
                inner = fenced(site, jobid, "step_0")
                batch = fenced(site, jobid)
                found = [one.cpu_limit() for one in (inner.parent, batch, inner)]
                expect_equal(found, [job, job, step], f"{what}: CPUs of job, batch step and srun")
                site.scancel(jobid)
                site.wait(jobid)


# ----------------------------------------------------------------------------------------
# Running them


def after(site, known):
    """What must hold after every case; `known` is what an earlier one has left."""
    site.configure()
    if site.submitted:
        site.scancel(*(jobid for _, jobid in site.submitted))
    until(site.idle_again, 60, "the end of every job")
    try:
        until(lambda: set(site.leftovers()) <= known, 5, "a clean tree")
    except AssertionError:
        left = sorted(set(site.leftovers()) - known)
        known.update(left)
        if left:
            raise AssertionError("left behind: " + ", ".join(left)) from None
    try:
        until(lambda: site.node_state() == "IDLE", 10, "idle")
    except AssertionError:
        state = site.node_state()
        site.resume()
        raise AssertionError(f"the node is {state}") from None


def details(site, mark, problem):
    yield problem
    for user, jobid in site.submitted:
        job = site.job(jobid)
        yield f"job {jobid} of {user}: {job.get('JobState')} {job.get('ExitCode')}"
        yield from ("  | " + line for line in site.output(jobid).splitlines()[:30])
    yield "slurmd's log:"
    yield from ("  | " + line for line in site.slurmd_log_since(mark).splitlines()[-40:])


def describe(error):
    if isinstance(error, AssertionError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def run_case(site, function, known):
    """"ok", "skip" or "FAIL", and what there is to say."""
    site.configure()
    site.submitted.clear()
    mark = site.log_mark()
    outcome, problems = "ok", []
    try:
        function(site)
    except Skip as reason:
        outcome = "skip"
        problems.append(str(reason))
    except (AssertionError, OSError, subprocess.SubprocessError, LookupError, ValueError,
            TypeError) as error:
        outcome = "FAIL"
        problems.append(describe(error))
    try:
        after(site, known)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        problems = [p for p in problems if outcome == "FAIL"] + [describe(error)]
        outcome = "FAIL"
    if outcome == "FAIL":
        return outcome, list(details(site, mark, "\n".join(problems)))
    return outcome, problems


def run(site, functions):
    """Run the cases in their order; the number of failures."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    known = set(site.leftovers())
    for leaving in sorted(known):
        print(f"there before the first case: {leaving}")
    for function in functions:
        start = time.monotonic()
        outcome, said = run_case(site, function, known)
        counts[outcome] += 1
        reason = f"  ({said[0]})" if outcome == "skip" else ""
        print(f"{outcome:4} {function.__name__}  {time.monotonic() - start:.1f} s{reason}",
              flush=True)
        if outcome == "FAIL":
            for line in "\n".join(said).splitlines():
                print("     " + line)
            sys.stdout.flush()
    return counts


SITES = {
    "private": lambda options: PrivateSite(options.so, options.bin),
    "two-nodes": lambda options: TwoNodesSite(options.so, options.bin),
    "installed": lambda options: InstalledSite(),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--site", choices=tuple(SITES), default="private")
    parser.add_argument("--so", help="the plugin (private sites); without it nothing is fenced")
    parser.add_argument("--bin", help="the jobfence command (private sites beside systemd)")
    parser.add_argument("--patience", type=float, metavar="FACTOR",
                        help="multiplies every time limit: 1, or 3 for an installed site")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--layout", action="store_true",
                        help="only the cases in which the cgroup layout makes a difference")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    fitting = [function for function in CASES if options.site in function.sites]
    unknown = set(options.only) - {function.__name__ for function in fitting}
    if unknown:
        sys.exit(f"no such case for the {options.site} site: {', '.join(sorted(unknown))}")
    chosen = [f for f in fitting if not options.only or f.__name__ in options.only]
    chosen = [f for f in chosen if f.layout or not options.layout]
    if options.list:
        print("\n".join(function.__name__ for function in chosen))
        return 0
    die_properly()
    sites.PATIENCE = options.patience or (3 if options.site == "installed" else 1)
    with SITES[options.site](options) as site:
        counts = run(site, chosen)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
