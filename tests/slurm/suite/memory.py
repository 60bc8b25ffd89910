# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory beside its limit: reclaim before the kill, protection, whole steps killed, and the limits of users and tasks."""

import os
import re
import time

from contract import kernel
from contract.harness import (
    EAT, MIB, PYTHON, Skip, allocated, case, ended, expect, expect_equal, expect_in, expect_match, fenced, logged, running, started,
    until_clean,
)
from contract.kernel import Group
from contract.sites import until
from ..harness import expect_killed_for_memory, expect_not_started, fences_well, tasks_are_refused, until_gone
from ..sites import UNFINISHED, InstalledSite

# Reading a file of holes fills the page cache as any other, and needs no room. Not with cat(1), which need not read at all; and not
# on tmpfs, as /tmp may be, where all holes are one page.
# The job keeps it open, and with it what is cached; nobody else can find it.
READ = f"""file=$(mktemp /var/tmp/jobfence.XXXXXX) && truncate -s {{mib}}M $file && exec 9<$file && rm $file && {PYTHON} -S -c '
import os
while os.read(9, 1 << 20): pass'"""
WAIT = "while [ ! -e {file} ]; do sleep 0.1; done"


def hold(mib):
    """Has so much memory and nothing else to do; says so when it has."""
    return f"{PYTHON} -S -c 'b = bytes([1]) * ({mib} << 20); print(\"holds\", flush=True); import time; time.sleep(300)'"


def expect_refused(site, word, reason, **keys):
    """Where the kernel has no such limit a job is refused with the reason, or runs without it if the site says so."""
    user = site.users[0]
    site.configure(**keys)
    jobid = site.submit(user, "touch ran.$SLURM_JOB_ID", "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    expect_match(reason, site.output(jobid), "the reason")
    site.configure(OnError=f"fail,{word}:warn", **keys)
    mark = site.log_mark()
    fences_well(site, user)
    logged(site, mark, reason)


@case
def reclaim_before_kill(site):
    """A job that reads a big file goes on, and is kept below memory.high by reclaim alone."""
    user = site.users[0]
    site.configure(MemoryHighPercent="75")
    if not kernel.has_v2_controllers():
        # What v1 has instead acts when the whole node is short of memory, which no test may bring about.
        jobid, group = running(site, user, "sleep 300", "-c1", "--mem=200")
        expect_equal(group.memory_high(), 150 * MIB, f"soft limit of {group.path}")
        site.scancel(jobid)
        return "v1: the value only"
    jobid = site.submit(user, f"""
        {READ.format(mib=400)} && echo read
        {WAIT.format(file="reclaimed")}
        """, "-c1", "--mem=200")
    group = fenced(site, jobid)
    expect_equal(group.memory_high(), 150 * MIB, f"memory.high of {group.path}")
    expect_equal(group.memory_limit(), 200 * MIB, f"memory limit of {group.path}")
    until(lambda: "read\n" in site.output(jobid), 60, "the file to be read")
    events = group.memory_events()
    used = int(kernel.read(group.limits_directory("memory") / "memory.current"))
    (site.directory(user) / "reclaimed").touch()
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    expect(events["high"] > 0, f"it never met memory.high: {events}")
    expect_equal((events["max"], events["oom_kill"]), (0, 0), "how often it met memory.max, and was killed")
    # Reclaim comes when a process returns from the kernel: what it got before is above.
    expect(used <= 155 * MIB, f"{used / MIB:.1f} MiB in use")
    return f"memory.high met {events['high']} times, {used / MIB:.1f} MiB of 150 in use"


@case
def slowed_then_killed(site):
    """What cannot be taken back slows a job above memory.high, and the limit kills it as ever."""
    if not kernel.has_v2_controllers():
        raise Skip("cgroup v1 has no memory.high")
    user = site.users[0]
    site.configure(MemoryHighPercent="98")
    # The script outlives what eats, and its directory with it, until that has been looked at.
    jobid = site.submit(user, f"""
        {WAIT.format(file="slowed")}
        {EAT}
        status=$?
        {WAIT.format(file="looked")}
        exit $status
        """, "-c1", "--mem=200")
    group = fenced(site, jobid)
    expect_equal(group.memory_high(), 196 * MIB, f"memory.high of {group.path}")
    (site.directory(user) / "slowed").touch()
    until(group.oom_kills, 90, "the kill")
    seen = group.memory_events()
    (site.directory(user) / "looked").touch()
    expect(site.wait(jobid) in ("OUT_OF_MEMORY", "FAILED"), f"state {site.job(jobid).get('JobState')}")
    until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemon")
    expect_killed_for_memory(site.output(jobid), jobid, "batch", 200)
    expect(seen.get("high", 0) > 0, f"it never met memory.high: {seen}")
    return f"memory.high met {seen['high']} times"


@case
def high_stays_in_place(site):
    """Slurm writes memory.high itself, for the job and each step, at the beginning of each step."""
    if not kernel.has_v2_controllers():
        raise Skip("cgroup v1 has no memory.high")
    site.configure(MemoryHighPercent="90")
    jobid = site.submit(site.users[0], """
        srun -n1 --overlap --mem=100 sleep 300 &
        sleep 300
        """, "-c1", "--mem=200")
    batch, inner = fenced(site, jobid), fenced(site, jobid, "step_0")
    for group, mib in (batch, 180), (inner, 90):
        expect_equal(group.memory_high(), mib * MIB, f"memory.high of {group.path}")
    # A job's directory of Slurm's has its daemons in it: there what Slurm has written stays.
    mib = 200 if kernel.slurm_limits_memory else None
    wanted = 180 * MIB if batch.own else mib and mib * MIB
    expect_equal(batch.parent.memory_high(), wanted, f"memory.high of {batch.parent.path}")
    site.scancel(jobid)


# Holds more than the job was granted, until it may end.
BEYOND = f"""{PYTHON} -S -c '
import os, time
held = bytes([1]) * (130 << 20)
print("holds", flush=True)
while not os.path.exists("release"): time.sleep(0.1)'"""


def expect_swaps(site, what):
    """A job that holds more than the memory that it was granted, and so swaps, completes; its group while it does."""
    user = site.users[0]
    released = site.directory(user) / "release"
    released.unlink(missing_ok=True)
    jobid = site.submit(user, BEYOND, "-c1", "--mem=100")
    until(lambda: site.output(jobid) == "holds\n" or site.job(jobid).get("JobState") not in UNFINISHED, 60,
          f"{what}: the job to hold its memory")
    expect_equal(site.job(jobid).get("JobState"), "RUNNING", f"{what}: state of the job, which says {site.output(jobid)!r}")
    group = Group.of(site.job_pids(jobid, "release")[0])
    seen = group and (group.swap_limit(), group.memory_limit())
    released.touch()
    expect_equal(site.wait(jobid), "COMPLETED", f"{what}: state")
    return seen


@case
def swap_is_slurms_affair(site):
    """Where Slurm limits memory, a job that swaps with Slurm alone swaps with jobfence, too, unless the site says otherwise here."""
    def limited_to_none(why):
        site.configure()
        jobid, group = running(site, site.users[0], "sleep 300", "-c1", "--mem=100")
        if group.swap_is_accounted():
            expect_equal((group.swap_limit(), group.memory_limit()), (0, 100 * MIB), f"{why}: limits of {group.path}")
        site.end(jobid)
    if not kernel.slurm_limits_memory:
        limited_to_none("Slurm limits no memory")
        return "Slurm limits no memory here"
    if kernel.swap_total() < 100 * MIB:
        raise Skip("this host has not enough swap")
    user = site.users[0]
    # Slurm 22.05 writes memory plus swap into v2's file of swap.
    writes_the_sum = kernel.has_v2_controllers() and "22.05" in site.command("slurmd", "-V").stdout
    # As the cell has it, with ConstrainSwapSpace=yes in cgroup.conf: what Slurm has written stays.
    for keys in {}, {"ConstrainSwapSpace": "yes"}, {"ConstrainSwapSpace": "yes", "AllowedSwapSpace": "50"}:
        site.configure(**keys)
        jobid, group = running(site, user, "sleep 300", "-c1", "--mem=100")
        if not group.swap_is_accounted():
            raise Skip("this kernel counts no swap")
        expect_equal(group.memory_limit(), 100 * MIB, f"{keys}: memory limit of {group.path}")
        wanted = 100 * MIB if writes_the_sum else 0
        expect_equal(group.swap_limit(), wanted, f"{keys}: swap limit of {group.path}")
        site.end(jobid)
    with site.reconfigured(cgroup={"ConstrainRAMSpace": None, "ConstrainSwapSpace": None}):
        limited_to_none("Slurm limits no memory for now")
    with site.reconfigured(cgroup={"ConstrainSwapSpace": None}):
        site.configure()
        with site.unplugged():
            expect_swaps(site, "without jobfence")
        expect_equal(expect_swaps(site, "with jobfence"), (None, 100 * MIB), "limits of swap and of memory")
        # Steps of srun, too, and the extern step with them, where there is one.
        jobid = site.submit(user, "srun -n1 --mem=80 sleep 300", "-c1", "--mem=100")
        for group in fenced(site, jobid, "step_0"), fenced(site, jobid):
            expect_equal(group.swap_limit(), None, f"swap limit of {group.path}")
        expect_equal(group.parent.swap_limit(), None, f"swap limit of {group.parent.path}")
        site.end(jobid)
        if isinstance(site, InstalledSite):
            said = site.command("jobfence", "check").stdout
            expect_in("swap is as Slurm says, since it limits memory itself: ConstrainSwapSpace=no", said, "check")
            said = site.command("jobfence", "explain", "--cpus=1", "--mem=100M").stdout
            expect_in("left to it by ConstrainSwapSpace=auto (default)", said, "explain")
            expect(not re.search(r"memory\.(swap\.max|memsw)", said), f"explain shows a limit of swap: {said}")
        # Said by the site, for all or for some: it is limited here.
        for text in "ConstrainSwapSpace=yes\n", f"[User={user}]\nConstrainSwapSpace=yes\n":
            site.configure_raw(text)
            jobid, group = running(site, user, f"{WAIT.format(file='go')}; {BEYOND}", "-c1", "--mem=100")
            expect_equal(group.swap_limit(), 0, f"{text!r}: swap limit of {group.path}")
            (site.directory(user) / "go").touch()
            expect(site.wait(jobid) in ("OUT_OF_MEMORY", "FAILED"), f"{text!r}: state {site.job(jobid).get('JobState')}")
            (site.directory(user) / "go").unlink()


KILLED = f"sleep 300 & {EAT}; echo survived; kill $!"


@case
def oom_kills_step(site):
    """One process is killed, or with OOMKillStep the whole step."""
    if not kernel.has_v2_controllers():
        return expect_refused(site, "oomgroup", "cgroup v1 kills single processes", OOMKillStep="yes")
    user = site.users[0]
    for word, whole in ("no", False), ("yes", True):
        site.configure(OOMKillStep=word)
        jobid, group = running(site, user, f"{WAIT.format(file='go.' + word)}; {KILLED}", "-c1", "--mem=200")
        expect_equal(group.kills_all(), whole, f"memory.oom.group of {group.path}")
        expect_equal(group.parent.kills_all(), False, f"memory.oom.group of {group.parent.path}")
        (site.directory(user) / f"go.{word}").touch()
        site.wait(jobid)
        until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemon")
        expect_equal("survived" in site.output(jobid), not whole, "whether the script survived its child")
        expect_killed_for_memory(site.output(jobid), jobid, "batch", 200)


def needs_two_cpus():
    if os.cpu_count() < 2:
        raise Skip("this host has one CPU")


def has_users(group):
    """Whether users have a directory: Slurm has none on v2."""
    return group.parent.user.limits_directory("memory") is not None


@case
def memory_of_user(site):
    """Two jobs of a user together; what another user holds does not count."""
    first, second = site.users
    site.configure(MaxRAMPerUser="250M")
    if kernel.slurm_tracks and kernel.has_v2_controllers():
        if isinstance(site, InstalledSite):
            checked = site.command("jobfence", "check")
            expect_equal(checked.returncode, 1, f"exit status of jobfence check ({checked.stdout})")
            expect_in("NO job would be fenced here as configured: Slurm has no directory for all jobs of a user", checked.stdout,
                      "check")
        return expect_refused(site, "ram", "Slurm has no directory for all jobs of a user", MaxRAMPerUser="250M")
    needs_two_cpus()
    kept = site.submit(first, hold(80), "-c1", "--mem=200")
    until(lambda: "holds" in site.output(kept), 20, "the first job to hold its memory")
    group = fenced(site, kept)
    if not has_users(group):
        raise Skip("Slurm has no directories of users here")
    expect_equal(group.parent.user.memory_limit(), 250 * MIB, f"memory limit of {group.parent.user.path}")
    # On v1 a user's memory goes to swap first, until a job is at its own limit, which counts that, too.
    top = group.parent.user.limits_directory("memory")
    for switch in (top / "memory.swappiness", *top.rglob("memory.swappiness")):
        if switch.exists():
            switch.write_text("0")
    eater = site.submit(first, f"echo may have $JOBFENCE_MEMORY_BYTES\n{EAT}", "-c1", "--mem=260")
    expect(site.wait(eater) != "COMPLETED", "the second job had all that it wanted")
    # The least of what the user, the job and the step may have.
    expect_in(f"may have {250 * MIB}\n", site.output(eater), "what the second job is told")
    until(lambda: not site.step_daemons(eater), 10, "the end of its step daemon")
    expect_in("was killed: your jobs on this node together reached their memory limit of 250.0 MiB", site.output(eater),
              "what the user is told")
    expect_equal(site.job(kept).get("JobState"), "RUNNING", "state of the first job")
    # 80 and 190 are more than 250.
    other = site.submit(second, hold(190), "-c1", "--mem=250")
    until(lambda: "holds" in site.output(other), 30, "the other user's job to hold its memory")
    expect_equal(site.job(kept).get("JobState"), "RUNNING", "state of the first user's job")
    for jobid in kept, other:
        site.end(jobid)
    until_gone(site, group.parent, 10, "the removal of the user's directory")
    until_clean(site, 10)


@case
def memory_of_task(site):
    """Each task has its own limit: one is killed at it, and the other goes on."""
    user = site.users[0]
    if tasks_are_refused(site, MaxRAMPerTask="60M"):
        return "refused: one directory for all tasks"
    site.configure(MaxRAMPerTask="60M")
    # A task that dies takes the step along only where Slurm is asked to.
    script = f"if [ $SLURM_PROCID = 0 ]; then sleep 300; else {WAIT.format(file='task')}; {EAT}; echo ate $?; sleep 300; fi"
    needs_two_cpus()
    with started(site, user, ["srun", "-n2", "-c1", "--mem=300", "bash", "-c", script]) as process:
        def is_there():
            if process.poll() is not None:
                raise AssertionError(f"srun has ended: {ended(process)}")
            return next((job["JobId"] for job in site.jobs() if job.get("JobState") == "RUNNING"), None)
        jobid = int(until(is_there, 30, "the job"))
        allocated(site, user, jobid)
        group = fenced(site, jobid, "step_0")
        # Each by itself: a task can have begun another program when the other task has not begun.
        until(lambda: all(group.task(number).members() for number in (0, 1)), 10, "both tasks")
        for number in 0, 1:
            expect_equal(group.task(number).memory_limit(), 60 * MIB, f"memory limit of task {number}")
        expect_equal(group.memory_limit(), 300 * MIB, f"memory limit of {group.path}")
        (site.directory(user) / "task").touch()
        until(lambda: group.task(1).oom_kills(), 60, "the kill in task 1")
        expect(group.task(0).members(), "task 0 has lost its processes")
        # A step that is cancelled in its first moments, before its srun has all streams, ends after a minute ("Abandoning IO").
        time.sleep(1)
        site.scancel(jobid)
        ended(process)
    until(lambda: not group.parent.remains(), 10, "the removal of the job's directories")


@case
def memory_protection(site):
    """Protected memory stays where other jobs of the user want more than he may have."""
    keys = {"MemoryLowPercent": "60", "MemoryMinPercent": "30"}
    user = site.users[0]
    if not kernel.has_v2_controllers():
        return expect_refused(site, "memlow", "cgroup v1 protects no memory from reclaim", **keys)
    site.configure(**keys)
    jobid, group = running(site, user, "sleep 300", "-c1", "--mem=200")
    # Nothing of memory is written into a directory with Slurm's daemons in it.
    for one, (low, least) in (group, (120, 60)), (group.parent, (120, 60) if group.own else (0, 0)):
        expect_equal((one.memory_low(), one.memory_min()), (low * MIB, least * MIB), f"memory.low and .min of {one.path}")
    site.end(jobid)
    if group.slurms:
        return "values only"
    needs_two_cpus()
    # Reclaim at the user's limit: the protection of what is directly below counts, whatever is above.
    kept = {}
    for percent in "60", "0":
        site.configure(MaxRAMPerUser="250M", MemoryLowPercent=percent)
        holder = site.submit(user, f"{READ.format(mib=110)} && echo read; sleep 300", "-c1", "--mem=200")
        until(lambda: "read\n" in site.output(holder), 30, "the small file to be read")
        group = fenced(site, holder)
        reader = site.submit(user, f"{READ.format(mib=500)}", "-c1", "--mem=240")
        expect_equal(site.wait(reader), "COMPLETED", "state of the job that reads a large file")
        cached = kernel.keyed(kernel.read(group.limits_directory("memory") / "memory.stat"))
        kept[percent] = int(cached["file"]) / MIB
        site.end(holder)
    expect(kept["60"] >= 90, f"of 110 MiB, {kept['60']:.1f} are still cached")
    return f"of 110 MiB {kept['60']:.1f} stay with memory.low and {kept['0']:.1f} without"


@case
def protection_is_checked(site):
    """'jobfence check' says what protects nothing, and the command that it names is enough."""
    if not isinstance(site, InstalledSite):
        raise Skip("jobfence is not installed here")
    if not kernel.has_v2_controllers():
        raise Skip("cgroup v1 protects no memory")
    site.configure(MemoryLowPercent="50")

    def told():
        return expect_match(r"(?m)^protection +(.*)$", site.command("jobfence", "check").stdout, "check").group(1)
    command = expect_match(r"memory\.low of jobs has NO effect: (\S+) is not protected itself; .*: "
                           r"systemctl set-property (\S+) MemoryLow=SIZE$", told(), "what check says")
    path, unit = command.groups()
    expect_equal(path, unit, "the outermost directory, and its unit")
    try:
        site.command("systemctl", "set-property", "--runtime", unit, "MemoryLow=500M")
        expect_in("memory.low of jobs has an effect", told(), "what check says then")
    finally:
        site.command("systemctl", "set-property", "--runtime", unit, "MemoryLow=0")
