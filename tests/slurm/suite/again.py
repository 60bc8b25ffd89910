# SPDX-License-Identifier: GPL-2.0-or-later
"""OnOutOfMemory: a batch job that was killed at its memory limit is requeued with more, and only such a job, and only so often.

The controller lets a requeued job wait for two minutes: here each is told to start at once, when it is let go.
"""

import contextlib
import os
import re
import shutil
import signal
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import PYTHON, case, expect, expect_equal, expect_in, uid
from contract.sites import until
from ..harness import expect_not_drained
from .life import scontrol
from .stored import held

# More than 100 MiB, with what Python itself takes, and less than 150.
GROWS = f"{PYTHON} -S -c 'x = b\"x\" * (110 << 20)'"
NEVER_FITS = f"{PYTHON} -S -c 'x = b\"x\" * (1000 << 20)'"
KEYS = {"OnOutOfMemory": "requeue:150%,2"}
FAILED = "failed at its memory limit"
PATIENCE = 120
REFUSED = PATIENCE + 2 * 90  # three refusals
SPEED = 15  # how much faster the time between them passes, in a program that was built for tests


def requeued(user, jobid, mib, restart, unit="on each node"):
    return (f"job {jobid} of {user} {FAILED} and is requeued: it asks for {mib}.0 MiB {unit} now (restart {restart})")


def not_requeued(user, jobid, why):
    return f"job {jobid} of {user} {FAILED}, and is not requeued: {why}"


def until_said(said, words, patience=PATIENCE):
    until(lambda: words in kernel.read(said), patience, f"{words!r} in hold's log")


def start(site, jobid):
    """At once. Slurm refuses a run that begins in the second in which the one before it was ended."""
    scontrol(site, "update", f"jobid={jobid}", "starttime=now+2seconds")


def asks_for(site, jobid):
    shown = site.command("scontrol", "--oneliner", "show", "job", str(jobid)).stdout
    return re.findall(r"MinMemory(\w+=\S+)", shown)


@case(on=["private"], layout=False)
def a_job_runs_again_with_more(site):
    """Its output is truncated, as Slurm does it by default, and says so all the same. A task of an array, too, and memory for each CPU."""
    user = site.users[0]
    with held(site, **KEYS) as (_, said):
        jobid = site.submit(user, f"{GROWS} && echo all of it", "--mem=100", "-n1")
        array = site.submit(user, f"{GROWS} && echo all of it", "--mem-per-cpu=100", "-n1", "--array=1-2")
        until_said(said, requeued(user, jobid, 150, 1))
        expect_equal(asks_for(site, jobid), ["Node=150M"], "what it asks for")
        start(site, jobid)
        expect_equal(site.wait(jobid), "COMPLETED", f"the state; hold says: {kernel.read(said)}")
        lines = site.output(jobid).splitlines()
        line = "jobfence: this is restart 1 of the job, with 150.0 MiB of memory"
        expect_equal([text for text in lines if text], [line, "all of it"], "the output")
        numbers = [int(one["JobId"]) for one in site.jobs(array)]
        expect_equal(len(numbers), 2, "the tasks")
        for number in numbers:
            until_said(said, requeued(user, number, 150, 1, "for each CPU"))
        for task in (1, 2):
            expect_equal(asks_for(site, f"{array}_{task}"), ["CPU=150M"], "what the task asks for")
            start(site, f"{array}_{task}")
        for number in numbers:
            expect_equal(site.wait(number), "COMPLETED", "the task")
        expect_equal(kernel.read(said).count(f"{FAILED} and is requeued"), 3, f"what hold says: {kernel.read(said)}")
    expect_not_drained(site)


@case(on=["private"], layout=False)
def a_job_runs_again_no_more_often_than_the_site_allows(site):
    user = site.users[0]
    with held(site, **KEYS) as (_, said):
        jobid = site.submit(user, NEVER_FITS, "--mem=100", "-n1")
        for restart, mib in ((1, 150), (2, 225)):
            until_said(said, requeued(user, jobid, mib, restart))
            start(site, jobid)
        until_said(said, not_requeued(user, jobid, "it was restarted 2 times already, and OnOutOfMemory=requeue:150%,2 allows no more"))
        expect_equal(site.wait(jobid), "FAILED", "the state")
        expect_equal((site.job(jobid)["Restarts"], asks_for(site, jobid)), ("2", ["Node=225M"]), "its end")
        expect_in("the job reached its memory limit of 225.0 MiB", site.output(jobid), "the output")
    expect_not_drained(site)


@case(on=["private"], layout=False)
def a_job_has_no_more_than_its_partition(site):
    user = site.users[0]
    with held(site, **KEYS) as (_, said):
        scontrol(site, "update", "PartitionName=all", "MaxMemPerNode=120")
        try:
            jobid = site.submit(user, NEVER_FITS, "--mem=100", "-n1")
            until_said(said, requeued(user, jobid, 120, 1))
            start(site, jobid)
            why = "neither its partition nor its nodes have more than the 120.0 MiB on each node that it has asked for"
            until_said(said, not_requeued(user, jobid, why))
            expect_equal((site.wait(jobid), site.job(jobid)["Restarts"]), ("FAILED", "1"), "its end")
        finally:
            scontrol(site, "update", "PartitionName=all", "MaxMemPerNode=0")
    expect_not_drained(site)


@case(on=["private"], layout=False)
def only_a_job_that_failed_by_it_runs_again(site):
    """Not one whose user allows no requeue, whose script went on, that was cancelled, or that failed for another reason. Nor one of which a
    step has failed at a limit of its own, which is the same in the next run."""
    user = site.users[0]
    with held(site, **KEYS) as (log, said):
        options = ("--mem=100", "-n1")
        forbids = site.submit(user, GROWS, "--no-requeue", *options)
        goes_on = site.submit(user, f"{GROWS}\necho went on", *options)
        other = site.submit(user, "exit 3", *options)
        own = site.submit(user, f"srun --mem=50 {GROWS}", *options)
        until_said(said, not_requeued(user, forbids, "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)"))
        cancelled = site.submit(user, f"{GROWS}\necho waits\nsleep 900", *options)
        until(lambda: "waits" in site.output(cancelled), PATIENCE, "the kill")
        site.command("scancel", str(cancelled))
        until_said(said, not_requeued(user, cancelled, "Slurm says that it is CANCELLED"))
        # Of two steps, one is killed, and the script fails by it.
        by_step = site.submit(user, f"set -e\nsrun {GROWS}\necho not here", *options)
        until_said(said, requeued(user, by_step, 150, 1))
        site.command("scancel", str(by_step))
        states = [site.wait(one) for one in (forbids, goes_on, other, cancelled, by_step, own)]
        expect_equal(states[:5], ["FAILED", "COMPLETED", "FAILED", "CANCELLED", "CANCELLED"], "the states")
        expect(states[5] in ("FAILED", "OUT_OF_MEMORY"), f"the state of the job with a small step: {states[5]}")
        expect_in("the step reached its memory limit of 50.0 MiB", kernel.read(log / "usage.jsonl"), "what is logged of the steps")
        expect_in("went on", site.output(goes_on), "the output")
        restarts = [site.job(one)["Restarts"] for one in (forbids, goes_on, other, cancelled, own)]
        expect_equal(restarts, ["0"] * 5, f"the restarts; hold says: {kernel.read(said)}")
        for one in (goes_on, other, own):
            expect(f"job {one} of" not in kernel.read(said), f"hold speaks of job {one}: {kernel.read(said)}")
    expect_not_drained(site)


@contextlib.contextmanager
def instead_of_scontrol(site, body):
    """A directory with a program of this name, which has the real one's path as `REAL`, and notes down who calls it."""
    place = site.home / "instead"
    place.mkdir(exist_ok=True)
    program = place / "scontrol"
    real = shutil.which("scontrol", path=sites.PATH)
    program.write_text(f"#!{PYTHON} -SB\nimport os, sys\nREAL, PLACE = {real!r}, {str(place)!r}\n{body}\n"
                       "os.execv(REAL, [REAL, *sys.argv[1:]])\n")
    program.chmod(0o755)
    place.chmod(0o777)
    yield place
    program.unlink()


DIES = """
import signal, subprocess
def dies(at):
    mark = os.path.join(PLACE, "died." + at.replace(" ", "_"))
    if os.path.exists(mark):
        return False
    open(mark, "x").close()
    return True
when, what = %r
if sys.argv[1] == what and dies(when + what):
    if when == "behind":
        subprocess.run([REAL, *sys.argv[1:]])
    # The real user is root. Its parent is the child of hold that looks.
    os.seteuid(0)
    with open(f"/proc/{os.getppid()}/stat") as stat:
        hold = int(stat.read().rpartition(")")[2].split()[1])
    os.kill(hold, signal.SIGKILL)
    # It ends with hold.
    signal.pause()
"""


@case(on=["private"], layout=False)
def hold_dies_while_it_requeues(site):
    """Before and behind each of its words to the controller. The next one goes on: the job runs once more, and is not held."""
    user = site.users[0]
    for when, what in (("before", "requeuehold"), ("behind", "requeuehold"), ("behind", "update"), ("behind", "release")):
        with instead_of_scontrol(site, DIES % ((when, what),)) as place:
            for mark in place.glob("died.*"):
                mark.unlink()
            with held(site, place, **KEYS) as (log, said):
                jobid = site.submit(user, f"{GROWS} && echo all of it", "--mem=100", "-n1")
                until(lambda: list(place.glob("died.*")), PATIENCE, f"the death {when} {what}")
                expect_in("\"begun\":[", kernel.read(log / ".usage.jsonl.again"), "what it has begun")
            with held(site, place, **KEYS) as (log, said):
                until(lambda: asks_for(site, jobid) == ["Node=150M"] and "held" not in site.job(jobid).get("Reason", "").lower(),
                      PATIENCE, f"job {jobid} to be let go ({when} {what})")
                start(site, jobid)
                expect_equal(site.wait(jobid), "COMPLETED", f"the state; hold says: {kernel.read(said)}")
                expect_equal(site.job(jobid)["Restarts"], "1", f"the restarts ({when} {what})")
                until(lambda: "\"waiting\":[]" in kernel.read(log / ".usage.jsonl.again"), PATIENCE, "the end of what was begun")
    expect_not_drained(site)


STOPS = """
import signal
if sys.argv[1] == "requeuehold" and os.path.exists(os.path.join(PLACE, "stops")):
    with open(os.path.join(PLACE, "new"), "w") as new:
        print(os.getpid(), file=new)
    os.rename(os.path.join(PLACE, "new"), os.path.join(PLACE, "stopped"))
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def status(pid):
    """The state of a process and its parent, `None` if there is none."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return state, int(parent)


@case(on=["private"], layout=False)
def a_user_who_stops_what_acts_for_him_stops_nothing_else(site):
    """Hold goes on meanwhile. When it is killed, what it has started for the user ends, stopped as it is; the next hold goes on."""
    user, figures = site.users[0], site.home / "figures.prom"
    with instead_of_scontrol(site, STOPS) as place:
        stopped, stops = place / "stopped", place / "stops"
        stops.touch()
        with held(site, place, MetricsFile=str(figures), **KEYS):
            jobid = site.submit(user, f"{GROWS} && echo all of it", "--mem=100", "-n1")

            def now_stopped():
                """The one that is stopped now."""
                pid = stopped.exists() and int(stopped.read_text())
                return pid if pid and (status(pid) or ["?"])[0] == "T" else None

            def goes_on():
                """Whether hold makes its figures twice while the same process is stopped."""
                pid, made = now_stopped(), set()
                while pid and len(made) < 3 and now_stopped() == pid:
                    with contextlib.suppress(FileNotFoundError):
                        made.add(figures.stat().st_mtime_ns)
                    time.sleep(0.05)
                return len(made) >= 3

            until(goes_on, PATIENCE, "hold's figures while what acts for the user is stopped")
            until(now_stopped, PATIENCE, "the next that is stopped")
            pid = now_stopped()
            _, look = status(pid)
            _, hold = status(look)
            os.kill(hold, signal.SIGKILL)
            until(lambda: (status(pid) or ["X"])[0] in "XZ", PATIENCE, "the end of what acts for the user")
            until(lambda: (status(look) or ["X"])[0] in "XZ", PATIENCE, "the end of what looks")
        stops.unlink()
        with held(site, place, **KEYS) as (_, said):
            until_said(said, requeued(user, jobid, 150, 1))
            start(site, jobid)
            expect_equal((site.wait(jobid), site.job(jobid)["Restarts"]), ("COMPLETED", "1"), f"its end; hold says: {kernel.read(said)}")
    expect_not_drained(site)


REFUSES = """
import time
with open(os.path.join(PLACE, "callers"), "a") as callers:
    print(os.getuid(), os.geteuid(), os.getgroups(), *sys.argv[1:], time.time(), file=callers)
if sys.argv[1] == "update":
    sys.exit("Access/permission denied for job")
"""


@case(on=["private"], layout=False, patient=True)
def what_the_user_may_not_ask_for_is_not_given(site):
    """All that changes the job is asked in its user's name. If more is refused, the job does not run in vain."""
    user, speed = site.users[0], SPEED if site.for_tests else 1
    fast = {"program": site.for_tests, "variables": {"JOBFENCE_TEST_IDLE_SPEED": str(speed)}}
    with instead_of_scontrol(site, REFUSES) as place:
        (place / "callers").touch(0o666)
        (place / "callers").chmod(0o666)
        with held(site, place, **fast, **KEYS) as (_, said):
            jobid = site.submit(user, NEVER_FITS, "--mem=100", "-n1")
            until_said(said, f"job {jobid} of {user} {FAILED} and was requeued, and is cancelled, since it may not ask for 150.0 MiB on "
                             "each node: scontrol update: Access/permission denied for job", REFUSED)
            expect_equal((site.wait(jobid), site.job(jobid)["Restarts"]), ("CANCELLED", "1"), "its end")
        calls = [line.split() for line in kernel.read(place / "callers").splitlines()]
        changes = {(call[0], call[1], call[2]) for call in calls if call[3] != "--all"}
        expect_equal(changes, {("0", str(uid(user)), "[]")}, f"who has asked: {calls}")
        at = [float(call[-1]) for call in calls if call[3] == "update"]
        # Time counts from a look's begin, and a busy machine may need a second for the command. Without the wait, a look would follow each second.
        least = 90 / speed / 2
        expect(len(at) == 3 and all(later - first >= least for first, later in zip(at, at[1:])), f"when it was asked: {at}")
    expect_not_drained(site)


NOT_NOW = """
import subprocess
if sys.argv[1] == "update":
    with open(os.path.join(PLACE, "updates"), "a+") as updates:
        print("update", file=updates)
        updates.flush()
        updates.seek(0)
        count = len(updates.readlines())
    if count < 6:
        sys.exit("slurm_update error: Job update not available right now, the DB index is being set, try again in a bit")
    subprocess.run([REAL, *sys.argv[1:]], check=True)
    sys.exit("slurm_update error: Required partition not available (inactive or drain)")
"""


@case(on=["private"], layout=False)
def what_is_no_refusal_is_tried_again(site):
    """slurmctld has no time, and then does what is asked, and says that the partition is down: both happens. The job is not cancelled."""
    user = site.users[0]
    with instead_of_scontrol(site, NOT_NOW) as place:
        (place / "updates").write_text("")
        (place / "updates").chmod(0o666)
        with held(site, place, **KEYS) as (_, said):
            jobid = site.submit(user, f"{GROWS} && echo all of it", "--mem=100", "-n1")
            until_said(said, requeued(user, jobid, 150, 1))
            expect_equal(asks_for(site, jobid), ["Node=150M"], "what it asks for")
            expect_equal(len(kernel.read(place / "updates").splitlines()), 6, "the updates")
            start(site, jobid)
            expect_equal((site.wait(jobid), site.job(jobid)["Restarts"]), ("COMPLETED", "1"), "its end")
    expect_not_drained(site)
