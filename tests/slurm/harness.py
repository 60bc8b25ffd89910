# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases are written with: declaring one, waiting, and comparing."""

import contextlib
import os
import pwd
import re
import signal
import time

from . import kernel, sites
from .kernel import Group, Job
from .sites import LEAST, UNFINISHED, until

MIB = 1 << 20
PYTHON = "/usr/bin/python3"
# Fills memory with something, since the kernel counts no page that was never written.
# Gives up at 800 MiB, in case no limit stops it: it must not take this machine along.
EAT = f"{PYTHON} -S -c 'b = [bytes([i + 1]) * (8 << 20) for i in range(100)]'"
CASES = []
# For a temporary directory, as `tempfile` takes it, that the keeper removes if this process cannot.
IN_VAR = {"dir": "/var/tmp", "prefix": "jobfence-", "suffix": f".{os.getpid()}"}


class Skip(Exception):
    """The case makes no sense here; the text says why."""


def case(function=None, *, on=("private", "installed"), layout=True, patient=False, release=False):
    """Declares a case: `@case`, or with what is special about it.

    on: the sites where it makes sense.
    layout=False: it is the same whatever the cgroup layout is.
    patient: it waits for Slurm for more than a minute.
    release: what it notices, a shorter test notices, too; or it goes by the clock, which only a quiet machine allows.
        'make check' leaves it out, 'make check-all' has it.
    """
    def declare(function):
        function.sites = on
        function.layout = layout
        function.patient = patient
        function.release = release
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
            if group and (node is None or group.is_on(node))}


def fenced(site, jobid, step="step_batch", timeout=10, node=None):
    """Wait until the step's processes are in a group of their own, and return that."""
    asked = time.monotonic()

    def found():
        nonlocal asked
        group = steps_of(site, jobid, node).get(step)
        if not group and time.monotonic() - asked > 1:
            # Its end before that will not turn into a beginning: do not wait for it.
            state, asked = site.job(jobid).get("JobState"), time.monotonic()
            expect(state in UNFINISHED, f"job {jobid} is {state} and should run")
        return group
    try:
        return until(found, timeout, f"{step} of job {jobid}")
    except AssertionError as error:
        seen = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}
        raise AssertionError(f"{error}; its processes are in {seen}") from None


def fenced_in_all(pid, group):
    """The process is where the group is, in every hierarchy that counts."""
    found = kernel.cgroups_of(pid)
    for controller in kernel.expected_hierarchies():
        wanted, path = group.path_in(controller), found.get(controller, "")
        # Slurm has a directory for each task below the step's, and so have we where tasks are limited.
        expect(wanted and (path == wanted or path.startswith(wanted + "/task_")),
               f"process {pid} is in {path!r} of hierarchy {controller or 'cgroup2'}, "
               f"and should be in {wanted!r}")


def expect_limits(group, cpus, mib, granted=None):
    """`granted`: in MiB, where jobfence.conf makes something else of it. Slurm does not read
    that, and its own memory limits stay."""
    expect_equal(group.cpu_limit(), cpus, f"CPU limit of {group.path}")
    if group.memory_is_slurms():
        if kernel.slurm_limits_memory:
            mib = mib if granted is None else granted
        elif isinstance(group, Job):
            # jobfence writes no memory limit into a directory with Slurm's daemons in it.
            mib = None
    wanted = None if mib is None else mib * MIB
    expect_equal(group.memory_limit(), wanted, f"memory limit of {group.path}")


def expect_unfenced(pid):
    """The process is where it would be without jobfence."""
    group = Group.of(pid)
    if group:
        expect(not group.own, f"process {pid} is in {group}")
        found = [one.cpu_limit() for one in (group, group.parent)]
        expect_equal(found, [None, None], f"CPU limits of {group}")


def kill_daemons(site, jobid, daemons=None):
    """SIGKILL for the job's step daemons, or these of them. They are dead then, with all their threads."""
    daemons = daemons or site.step_daemons(jobid)
    expect(daemons, "no step daemon found")
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)

    def is_gone(pid):
        # State, and how many threads it has.
        fields = kernel.stat_fields(pid)
        return not fields or fields[0] in "ZX" and int(fields[17]) <= 1
    until(lambda: all(map(is_gone, daemons)), 5, "the death of the step daemon")


def ended_line(jobid, step):
    return rf"jobfence: job {jobid} step {step} ended: cpu [\d.]+ s, throttled [\d.]+ s"


def logged(site, mark, pattern, timeout=5):
    """Wait for a line in slurmd's log."""
    try:
        return until(lambda: re.search(pattern, site.slurmd_log_since(mark)), timeout, "it")
    except AssertionError:
        raise AssertionError(f"slurmd's log has no line like {pattern!r}") from None


@contextlib.contextmanager
def nobody_looks():
    """jobfence.service, where it runs, or what we have in its place stands still: what is dead stays until somebody else looks."""
    ours = kernel.descendants(os.getpid())
    watchers = [pid for pid in kernel.all_pids() if re.search(r"/jobfence hold( |$)", kernel.command_line(pid))
                and (pid in ours or kernel.stat_fields(pid)[1:2] == ["1"])]

    def rest():
        # In the middle of a round others would wait for it.
        before = [kernel.read(f"/proc/{pid}/schedstat") for pid in watchers]
        time.sleep(0.3)
        return before == [kernel.read(f"/proc/{pid}/schedstat") for pid in watchers]
    until(rest, 10, "jobfence hold to rest")
    try:
        for pid in watchers:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in watchers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


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
        # It may go while we look.
        with contextlib.suppress(ProcessLookupError):
            if kernel.identity(who[0]) == who:
                os.kill(who[0], signal.SIGKILL)


@contextlib.contextmanager
def started(site, user, args, **options):
    """A user's command that goes on meanwhile; it is ended if it has not ended by itself."""
    process = site.as_user(user, args, start=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=sites.LEAST * sites.PATIENCE)


def ended(process, timeout=20):
    """Exit status and what it said, of a command that was `started`."""
    out, err = process.communicate(timeout=max(timeout, sites.LEAST) * sites.PATIENCE)
    return process.returncode, out, err


def allocated(site, user, jobid):
    """A job that the case has not got from `submit` ends with the case, too."""
    site.submitted.append((user, int(jobid)))
    return int(jobid)


def fences_well(site, user):
    """One small job, fenced as it should be."""
    jobid = site.submit(user, "cat /proc/self/cgroup; echo cpus=$JOBFENCE_CPUS",
                        "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state of the job after it")
    expect_in("/step_batch", site.output(jobid), "its cgroup")
    expect_in("cpus=1\n", site.output(jobid), "its environment")


def expect_not_drained(site):
    # COMPLETING and the like pass by themselves.
    expect("DRAIN" not in site.node_state(), f"the node is {site.node_state()}")


NOT_STARTED = "jobfence: this job was not started, since it cannot be fenced: "


def expect_not_started(site, user, jobid):
    state = site.wait(jobid)
    expect_equal(state, "FAILED", f"state of job {jobid}")
    expect_in(NOT_STARTED, site.output(jobid), "the job's output")
    expect(not (site.directory(user) / f"ran.{jobid}").exists(), "the job's script has run")


def until_gone(site, group, timeout, what):
    """Ours must be gone. Slurm may leave its own v1 directories, as the kernel is not done with them; the janitor removes those."""
    def ours():
        return [name for name in kernel.hierarchies() if group.own and name not in group.slurms and group.directory(name)]
    until(lambda: not ours(), timeout, what)
    try:
        until(lambda: not group.remains(), timeout, what, least=LEAST if kernel.has_v2_controllers() else 0)
    except AssertionError:
        if kernel.has_v2_controllers():
            raise
        done = site.command(str(site.jobfence), "reap", "--config", str(site.config))
        expect_equal(done.returncode, 0, f"jobfence reap ({done.stdout}{done.stderr})")
        until(lambda: not group.remains(), timeout, f"{what}, after the janitor")


def expect_not_left(site, mark):
    """No end since then has left anything to a later launch: that is how long an end may take (CleanupTimeout)."""
    found = re.findall(r"jobfence: .*cannot remove the step's directories yet.*", site.slurmd_log_since(mark))
    expect(not found, "\n".join(found))


def until_clean(site, timeout, after=""):
    """Nothing of jobfence's may stay, but for what was there before the first case. What does is named."""
    def left():
        return [name for name in site.leftovers() if name not in site.there_before]

    try:
        until(lambda: not left(), timeout, f"a clean tree{after}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {left()} stays") from None


def tasks_are_refused(site, **keys):
    """Whether tasks cannot be limited each by itself, and that is said, where Slurm has one directory for all of a step."""
    if not site.tasks_share_a_directory():
        return False
    site.configure(**keys)
    jobid = site.submit(site.users[0], RAN, "-c1", "--mem=100")
    expect(site.wait(jobid) != "COMPLETED", "a job without its tasks' limits has run")
    expect_in("Slurm makes no directory for each task", site.output(jobid), "the job's output")
    expect(not (site.directory(site.users[0]) / f"ran.{jobid}").exists(), "the job's script has run")
    return True


RAN = "touch ran.$SLURM_JOB_ID"
