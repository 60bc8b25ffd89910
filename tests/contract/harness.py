# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases are written with, whatever the scheduler is: declaring one, waiting, and comparing."""

import contextlib
import os
import pwd
import re
import signal
import subprocess
import time
from pathlib import Path

from . import kernel, sites
from .kernel import Group
from .sites import until

MIB = 1 << 20
PYTHON = "/usr/bin/python3"
# Fills memory with something, since the kernel counts no page that was never written.
# Gives up at 800 MiB, in case no limit stops it: it must not take this machine along.
EAT = f"{PYTHON} -S -c 'b = [bytes([i + 1]) * (8 << 20) for i in range(100)]'"
# So many MiB in one process, for so many seconds.
TAKE = f"{PYTHON} -S -c 'import time; b = bytes([1]) * (%d << 20); time.sleep(%d)'"
CASES = []
# A process in a session of its own.
ESCAPEE = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >escapee.new; mv escapee.new escapee.$JOB_ID"
# Until the case has looked at it.
WAIT = "until [ -e go.$JOB_ID ]; do sleep 0.2; done"
HAS_RUN = "touch ran.$JOB_ID"
# For a temporary directory, as `tempfile` takes it, that the keeper removes if this process cannot.
IN_VAR = {"dir": "/var/tmp", "prefix": "jobfence-", "suffix": f".{os.getpid()}"}


class Skip(Exception):
    """The case makes no sense here; the text says why."""


def case(function=None, *, on=("private", "installed"), layout=True, patient=False, release=False):
    """Declares a case: `@case`, or with what is special about it.

    on: the sites where it makes sense.
    layout=False: it is the same whatever the cgroup layout is.
    patient: it waits for the scheduler for more than a minute.
    release: what it notices, a shorter test notices, too; or it goes by the clock, which only a quiet machine allows.
        'make check' leaves it out, 'make check-all' has it.
    """
    def declare(function):
        function.sites = on
        function.layout = layout
        function.patient = patient
        function.release = release
        # Of each scheduler, as far as contract/cases.py says no otherwise.
        function.is_common = function.__module__.startswith(f"{__package__}.")
        CASES.append(function)
        return function
    return declare(function) if function else declare


def logged_in(user):
    """The words before a command of root's by which the kernel takes it for one of a user who has logged in and become root."""
    return "sh", "-c", 'echo "$1" >/proc/self/loginuid && shift && exec "$@"', "sh", str(uid(user))


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


def uid(user):
    return pwd.getpwnam(user).pw_uid


def steps_of(site, jobid, node=None):
    """The step groups in which the kernel holds processes of this job, by name.

    Where several nodes share this host, `node` says which one's.
    """
    groups = (Group.of(pid) for pid in site.job_pids(jobid))
    return {group.name: group for group in groups
            if group and (node is None or group.is_on(node))}


def fenced(site, jobid, step=None, timeout=180, node=None):
    """Wait until processes of the job's step are in a group of their own, and return that."""
    step, asked = step or site.STEP, time.monotonic()

    def found():
        nonlocal asked
        groups = steps_of(site, jobid, node)
        group = groups.get(step) if step else next(iter(groups.values()), None)
        if not group and time.monotonic() - asked > 1:
            # Its end before that will not turn into a beginning: do not wait for it.
            asked = time.monotonic()
            expect(not site.has_ended(jobid), f"job {jobid} has ended and should run: {site.describe(jobid)}")
        return group
    try:
        return until(found, timeout, f"a fence of job {jobid}")
    except AssertionError as error:
        seen = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}
        raise AssertionError(f"{error}; its processes are in {seen}, and it is {site.describe(jobid)}") from None


def running(site, *given, **asked):
    """A job that is submitted with this, and its fence, when it is there."""
    jobid = site.submit(*given, **asked)
    return jobid, fenced(site, jobid)


def escaping(site, user, script, *given, **asked):
    """The same, when the job has an escapee before all else; with what the kernel says of that."""
    jobid, group = running(site, user, f"{ESCAPEE}; {script}", *given, **asked)
    return jobid, group, escapee_of(site, jobid, user)


def escapee_of(site, jobid, user=None):
    """What the kernel says of the process that ESCAPEE has started."""
    return kernel.identity(pid_from(site.directory(user or site.users[0]) / f"escapee.{jobid}"))


def let_go(site, jobid, user=None):
    """Ends the WAIT of a job."""
    (site.directory(user or site.users[0]) / f"go.{jobid}").touch()


def has_run(site, jobid, user=None):
    """Whether the HAS_RUN of a job has run."""
    return (site.directory(user or site.users[0]) / f"ran.{jobid}").exists()


def expect_gone(group, timeout=20):
    until(lambda: not group.exists(), timeout, f"the end of {group.path}")


def expect_ended(whom, group, timeout=60):
    """All of these processes, and the fence of their job."""
    expect_all_dead(whom, timeout)
    expect_gone(group.parent, timeout)


def end_of(site, jobid, status=4):
    """The job ends its WAIT, and then with this exit status."""
    let_go(site, jobid)
    expect_equal(site.status(jobid), status, "its exit status")


def expect_not_left(site, mark):
    """No end since then has left anything to a later launch: that is how long an end may take (CleanupTimeout)."""
    found = re.findall(r"jobfence: .*cannot remove the step's directories yet.*", site.said_since(mark))
    expect(not found, "\n".join(found))


def is_frozen(group):
    """Whether the kernel has stopped all processes of a group."""
    unified = group.directory("")
    if unified and kernel.keyed(kernel.read(unified / "cgroup.events")).get("frozen") == "1":
        return True
    return group.file("freezer", None, "freezer.state") == "FROZEN"


def reap(site):
    """A look of the janitor's, and what it says."""
    status, said = site.ours("reap")
    expect_equal(status, 0, f"jobfence reap ({said})")
    return said


def reaped(site, group):
    """The janitor removes it, when the kernel is done with the death of its holder."""
    def is_gone():
        reap(site)
        return not group.parent.exists()
    until(is_gone, 20, f"the end of {group.parent.path}")


def fenced_in_all(pid, group):
    """The process is where the group is, in every hierarchy that counts."""
    found = kernel.cgroups_of(pid)
    for controller in kernel.expected_hierarchies():
        wanted, path = group.path_in(controller), found.get(controller, "")
        # Slurm has a directory for each task below the step's, and so have we where tasks are limited.
        expect(wanted and (path == wanted or path.startswith(wanted + "/task_")),
               f"process {pid} is in {path!r} of hierarchy {controller or 'cgroup2'}, "
               f"and should be in {wanted!r}")


def expect_unfenced(pid):
    """The process is where it would be without jobfence."""
    group = Group.of(pid)
    if group:
        expect(not group.own, f"process {pid} is in {group}")
        found = [one.cpu_limit() for one in (group, group.parent)]
        expect_equal(found, [None, None], f"CPU limits of {group}")


def logged(site, mark, pattern, timeout=5):
    """Wait for a line in the daemon's log."""
    try:
        return until(lambda: re.search(pattern, site.said_since(mark)), timeout, "it")
    except AssertionError:
        raise AssertionError(f"the daemon's log has no line like {pattern!r}") from None


@contextlib.contextmanager
def no_other_hold(site):
    """One `jobfence hold` alone may have a RunDir: jobfence.service, or what a site has in its place, ends meanwhile."""
    is_service = (Path("/run/systemd/system").is_dir() and site.run_directory() == Path("/run/jobfence")
                  and not site.command("systemctl", "is-active", "--quiet", "jobfence.service").returncode)
    ours = getattr(site, "holder", None)
    if is_service:
        site.command("systemctl", "stop", "jobfence.service")
    elif ours:
        ours.terminate()
        ours.wait(120)
    try:
        yield
    finally:
        if is_service:
            expect_equal(site.command("systemctl", "start", "jobfence.service").returncode, 0, "the start of jobfence.service")
        elif ours:
            site.holder = subprocess.Popen(ours.args, stdin=subprocess.DEVNULL)


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


def expect_all_dead(whom, timeout=5):
    for who in whom:
        expect_dead(who, timeout)


@contextlib.contextmanager
def ended_after(*whom):
    """Whatever the case finds: processes that it made survive no longer than it."""
    try:
        yield
    finally:
        for who in whom:
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


def until_clean(site, timeout, after=""):
    """Nothing of jobfence's may stay, but for what was there before the first case. What does is named."""
    def left():
        return [name for name in site.leftovers() if name not in site.there_before]

    try:
        until(lambda: not left(), timeout, f"a clean tree{after}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {left()} stays") from None
