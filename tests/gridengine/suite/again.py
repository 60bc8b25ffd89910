# SPDX-License-Identifier: GPL-2.0-or-later
"""OnOutOfMemory: a job that failed after a kill at its memory limit goes back into the queue, and its next run has more.

h_rss is what is granted here: execd ends a job at h_vmem itself, and the address space of a process is limited by it.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess

from contract import kernel, sites
from contract.harness import PYTHON, case, expect, expect_equal, expect_in, fenced, uid
from contract.sites import until

# More than 100 MiB, with what Python itself takes, and less than 150.
GROWS = f"{PYTHON} -S -c 'x = b\"x\" * (110 << 20)'"
NEVER_FITS = f"{PYTHON} -S -c 'x = b\"x\" * (260 << 20)'"
ASKS = ("-r", "y", "-l", "h_rss=100M,h_vmem=400M")
KEYS = "SlotMemory=h_rss\n", "OnOutOfMemory=requeue:150%,2\n"
FAILED = "failed at its memory limit"
PATIENCE = 120
REFUSED = PATIENCE + 2 * 90  # three refusals
SPEED = 15  # how much faster the time between them passes, in a program that was built for tests
CASE = {"on": ["private"]}


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def held(site, place=None, every=1, program=None):
    """`jobfence hold` with a usage log, which looks at once and then so often, in seconds: where the log is, and what it says. It takes the
    place of the site's own. `program` is another one than the site's: if it was built for tests, the time between refusals passes faster."""
    log, said = site.home / "usage", site.home / "hold.said"
    site.configure(f"UsageLog={log}/usage.jsonl\nReapInterval={every}\n{''.join(KEYS)}")
    def own_ones():
        return [pid for pid in kernel.all_pids() if re.fullmatch(r"\S*jobfence hold ?", kernel.command_line(pid))]
    own = own_ones()
    for pid in own:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not any(map(kernel.is_alive, own)), 60, "the end of the site's own hold")
    environment = {**site.environment, **({"PATH": f"{place}:{sites.PATH}"} if place else {}),
                   **({"JOBFENCE_TEST_IDLE_SPEED": str(SPEED)} if program else {})}
    with open(said, "a") as words:
        hold = subprocess.Popen([str(program or site.jobfence), "hold", "--config", str(site.config)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=words, env=environment, preexec_fn=die_with_parent)
    try:
        until(lambda: kernel.is_alive(hold.pid), 60, "hold")
        yield log, said
    finally:
        hold.terminate()
        hold.wait(120)
        site.configure()
        if own:
            subprocess.Popen([site.jobfence, "hold"], stdin=subprocess.DEVNULL)
            until(own_ones, 60, "the site's own hold")


def until_said(site, words, patience=PATIENCE):
    def is_said():
        return words in kernel.read(site.home / "hold.said") + site.logged()
    until(is_said, patience, f"{words!r} in the log: {kernel.read(site.home / 'hold.said')[-2000:]} {site.logged()[-2000:]}")


def not_requeued(jobid, why, user="alice"):
    return f"job {jobid} of {user} {FAILED}, and is not requeued: {why}"


def asks_for(site, jobid):
    return site.job(jobid).get("hard resource_list")


def expect_over(site, jobid, failed):
    """It has ended, with this last row of its accounting, and nothing of it is left beside the log."""
    row = site.wait(jobid, timeout=PATIENCE)
    expect_in(failed, row["failed"], f"the end of job {jobid}")
    return row


@case(**CASE)
def a_job_runs_again_with_more(site):
    """Its output has all runs, and a line of each restart. What else it asks for stays as it is."""
    with held(site) as (log, said):
        jobid = site.submit("alice", f"{GROWS} && echo all of it", *ASKS, "-l", "arch=lx*&!x", "-soft", "-l", "calendar=none")
        row = site.wait(jobid, timeout=PATIENCE, ends=2)
        expect_equal((row["failed"].split()[0], row["exit_status"].split()[0]), ("0", "0"), f"its last run; {kernel.read(said)}")
        first = site.ends_of(jobid)[0]
        expect_equal((first["failed"].split()[0], first["exit_status"].split()[0]), ("25", "137"), "its first run")
        told = site.told(jobid).replace("\n    ", " ")
        expect_in("the job reached its memory limit of 100.0 MiB", told, "what the user reads")
        goes_back = f"jobfence: job {jobid} goes back into the queue: its next run is to have 150.0 MiB of memory (h_rss=150M, restart 1)"
        restart = "jobfence: this is a restart of the job, with 150.0 MiB of memory"
        lines = [line for line in told.splitlines() if line in (goes_back, restart)]
        expect_equal(lines, [goes_back, restart], f"the lines of both runs:\n{told}")
        expect_equal(site.output(jobid).split("\n")[0], "all of it", "the output")
        asked = [value for end in site.ends_of(jobid) for key, value in end.items() if key == "category"]
        expect("arch=lx*&!x" in asked[-1] and "h_vmem=400M" in asked[-1] and "h_rss=150M" in asked[-1], f"what it asked for: {asked}")
        until(lambda: not list(log.glob(".usage.jsonl.again*/*")) and not list(log.glob(".usage.jsonl.again-gridengine")), PATIENCE, "the end of what was begun")
        until_said(site, f"job {jobid} of alice {FAILED} and is requeued: it asks for 150.0 MiB on its host now (restart 1)")


@case(**CASE)
def a_job_runs_again_no_more_often_and_with_no_more_than_there_is(site):
    """Slots share what is added. The last run has what the queue allows at most."""
    with held(site):
        jobid = site.submit("alice", NEVER_FITS, *ASKS)
        row = site.wait(jobid, timeout=PATIENCE, ends=3)
        until_said(site, not_requeued(jobid, "it was restarted 2 times already, and OnOutOfMemory=requeue:150%,2 allows no more"))
        expect_equal((row["failed"].split()[0], row["exit_status"].split()[0], len(site.ends_of(jobid))), ("0", "137", 3), "its end")
        expect_in("the job reached its memory limit of 225.0 MiB", site.told(jobid), "what the user reads")
        with site.queue(h_rss="60M"):
            jobid = site.submit("alice", NEVER_FITS, "-r", "y", "-pe", "smp", "2", "-l", "h_rss=50M,h_vmem=200M")
            site.wait(jobid, timeout=PATIENCE, ends=2)
            expect_in("is to have 120.0 MiB of memory (h_rss=60M, restart 1)", site.told(jobid), "what the user reads")
            until_said(site, not_requeued(jobid, "neither its queue nor its host has more than the 120.0 MiB on its host that it has asked for"))


@case(**CASE)
def only_a_job_that_failed_by_it_runs_again(site):
    """Not one whose user has not said -r y, that went on, was deleted, has asked for something else or a range of slots, or is a task of an array."""
    with held(site):
        limits = ASKS[2:]
        unsaid = site.submit("alice", GROWS, *limits)
        forbids = site.submit("alice", GROWS, "-r", "n", *limits)
        goes_on = site.submit("alice", f"{GROWS}\necho went on", *ASKS)
        other = site.submit("alice", "exit 3", *ASKS)
        fails = site.submit("alice", f"{GROWS}\nexit 100", *ASKS)
        ranged = site.submit("alice", GROWS, "-r", "y", "-pe", "smp", "1-2", "-l", "h_rss=50M,h_vmem=200M")
        (task,), array = site.submit_array("alice", GROWS, 1, *ASKS)
        for one in unsaid, forbids:
            until_said(site, not_requeued(one, "its user has not said that it may run again (qsub -r y)"))
        until_said(site, not_requeued(task, "it is a task of an array, and all tasks ask for the same"))
        until_said(site, not_requeued(ranged, "it asks for a range of slots, and its next run may have another number of them"))
        site.wait_state(fails, "Eqw", PATIENCE)
        site.qdel(fails)
        deleted = site.submit("alice", f"{GROWS}\necho waits\nsleep 900", *ASKS)
        until(lambda: "waits" in site.output(deleted), PATIENCE, "the kill")
        site.qdel(deleted)
        for one in unsaid, forbids, goes_on, other, ranged, array, deleted:
            site.wait(one, timeout=PATIENCE)
            expect_equal(len(site.ends_of(one)), 1, f"the ends of job {one}")
        for one in goes_on, other, fails, deleted:
            expect(f"job {one} of alice {FAILED}" not in site.logged(), f"the log speaks of job {one}: {site.logged()[-3000:]}")


@case(**CASE)
def a_job_waits_for_what_it_is_to_have(site):
    """Until hold looks, a job that was put back is held: it does not run with the old size."""
    with held(site, every=3600) as (log, _):
        jobid = site.submit("alice", f"{GROWS} && echo all of it", *ASKS)
        until(lambda: list(log.glob(".usage.jsonl.again-gridengine.new/*")), PATIENCE, "what was begun")
        until(lambda: site.queued(jobid) and "Job is in hold state" in site.command("qstat", "-j", jobid).stdout, PATIENCE, "the job to be held")
        expect_equal(asks_for(site, jobid), "h_rss=100M,h_vmem=400M", "what it asks for")
    with held(site):
        site.wait(jobid, timeout=PATIENCE, ends=2)
        expect_equal(site.output(jobid).split("\n")[0], "all of it", "the output")


@contextlib.contextmanager
def instead_of(site, name, body):
    """A directory with a program of this name, which has the real one's path as `REAL`."""
    place = site.home / "instead"
    place.mkdir(exist_ok=True)
    real = shutil.which(name, path=sites.PATH)
    program = place / name
    program.write_text(f"#!{PYTHON} -SB\nimport os, sys\nREAL, PLACE = {real!r}, {str(place)!r}\n{body}\nos.execv(REAL, [REAL, *sys.argv[1:]])\n")
    program.chmod(0o755)
    place.chmod(0o777)
    yield place
    program.unlink()


NOT_NOW = """
with open(os.path.join(PLACE, "callers"), "a") as callers:
    print(os.getresuid(), os.getgroups(), *sys.argv[1:], file=callers)
with open(os.path.join(PLACE, "callers")) as callers:
    count = len([line for line in callers if " -l " in line])
if "-l" in sys.argv and count < 4:
    sys.exit("error: commlib error: got select error (Connection refused)")
"""

REFUSES = """
if "-l" in sys.argv:
    import time
    with open(os.path.join(PLACE, "refused"), "a") as refused:
        print(time.time(), file=refused)
    print("denied: no")
    sys.exit(1)
"""


@case(**CASE)
def what_acts_for_a_user_has_that_users_name(site):
    """Not root's, whom qmaster takes for a manager. A failure is tried again; what is refused three times has the job deleted."""
    with instead_of(site, "qalter", NOT_NOW) as place:
        (place / "callers").touch()
        (place / "callers").chmod(0o666)
        with held(site, place) as (_, said):
            jobid = site.submit("alice", f"{GROWS} && echo all of it", *ASKS)
            site.wait(jobid, timeout=PATIENCE, ends=2)
            expect_equal(site.output(jobid).split("\n")[0], "all of it", f"the output; {kernel.read(said)}")
        calls = kernel.read(place / "callers").splitlines()
        names = {line.partition("]")[0] + "]" for line in calls}
        expect_equal(names, {f"({uid('alice')}, 65534, 65534) []"}, f"who has asked: {calls}")
        expect_equal(len([line for line in calls if " -l " in line]), 4, f"the attempts: {calls}")
    with instead_of(site, "qalter", REFUSES) as place, held(site, place, program=site.for_tests):
        (place / "refused").touch()
        (place / "refused").chmod(0o666)
        jobid = site.submit("alice", NEVER_FITS, *ASKS)
        until_said(site, f"job {jobid} of alice {FAILED} and was requeued, and is cancelled, since it may not ask for 150.0 MiB on its host: qalter: denied: no", REFUSED)
        site.wait(jobid)
        at = [float(line) for line in kernel.read(place / "refused").splitlines()]
        # Time counts from a look's begin, and a busy machine may need a second for the command. Without the wait, a look would follow each second.
        least = 90 / (SPEED if site.for_tests else 1) / 2
        expect(len(at) == 3 and all(later - first >= least for first, later in zip(at, at[1:])), f"when it was asked: {at}")


@case(**CASE)
def a_job_that_cannot_be_held_ends_as_without(site):
    """The host may not change jobs. Then nothing is begun."""
    with held(site) as (log, _):
        site.qconf("-ds", site.node)
        try:
            jobid = site.submit("alice", GROWS, *ASKS)
        except AssertionError:
            jobid = None
        finally:
            site.qconf("-as", site.node)
        expect_equal(jobid, None, "a job from a host that may not submit")
        jobid = site.submit("alice", f"{GROWS} || until [ -e go.$JOB_ID ]; do sleep 0.1; done; exit 1", *ASKS)
        fenced(site, jobid)
        until(lambda: site.job_pids(jobid, "sleep"), PATIENCE, "the kill")
        site.qconf("-ds", site.node)
        try:
            (site.directory("alice") / f"go.{jobid}").touch()
            until_said(site, not_requeued(jobid, f'qalter: denied: host "{site.node}" is not a submit host'))
            site.wait(jobid)
        finally:
            site.qconf("-as", site.node)
        expect_equal(len(site.ends_of(jobid)), 1, "its ends")
        expect_equal(list(log.glob(".usage.jsonl.again*/*")), [], "what was begun")
