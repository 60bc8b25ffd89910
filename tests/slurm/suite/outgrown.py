# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs that need more memory than their jobs asked for: with a word in time, a loan and a second run, all of them end as they should.

What each needs follows from a seed. What was done for it is counted from the usage log, from Slurm and from the kernel's files.
"""

import contextlib
import json
import math
import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from contract import kernel
from contract.harness import MIB, PYTHON, case, expect, expect_equal, expect_in, expect_match
from contract.sites import until
from ..harness import expect_not_drained
from ..sites import UNFINISHED
from .again import FAILED, scontrol
from .stored import held

HERE = Path(__file__).resolve().parents[1]
KEYS = {"MemoryPoolReserve": "1M", "ElasticRAMPercent": "150", "OnOutOfMemory": "requeue:150%,2"}
ELASTIC, SHARE, MOST = 1.5, 1.5, 2  # as these keys say
AT_ONCE = 8  # jobs on each CPU: most of the time they wait for Slurm
PATIENCE = 1200
# What they need, as a share of what they asked for. Any but the first is more than the limit may grow, and Python needs some MiB itself.
IN_PLACE, BEYOND, FAR_BEYOND, NEVER = (1.15, 1.3), (1.1, 1.9), (1.6, 1.9), 10
WORD = "--signal-at=B:mem:50%:USR1"


@dataclass
class Program:
    """A job's program, and what became of it."""

    kind: str
    seed: int
    asked: int  # MiB
    needs: int  # MiB, without those of the program itself
    options: tuple = ()
    jobid: int = 0
    user: str = ""

    def line(self, built, wait):
        """`wait`: for how many seconds it may wait for what helps it."""
        numbers = f"{self.seed} {self.needs}"
        if self.kind in ("blocks", "whole") and built:
            return f"exec {built} {self.kind} {numbers}"
        kind = {"blocks": "fast", "whole": "call", "step": "fast"}.get(self.kind, self.kind)
        return f"{'srun' if self.kind == 'step' else 'exec'} {PYTHON} -S outgrows.py {kind} {numbers} {wait} $SLURM_JOB_ID"

    def bytes(self):
        every = []
        for number in range(self.needs):
            every.append(((every[-1] if every else self.seed % 251) * 73 + number + 1) % 251 + 1)
        return bytes(every)


def granted(line):
    """What a run asked for, in MiB."""
    return line["memory_granted_bytes"] // MIB


def limit_said(line):
    """The limit in MiB at which a process was killed, which the log says."""
    return float(expect_match(r"the (?:job|step) reached its memory limit of ([\d.]+) MiB", " ".join(line["sentences"]), "a killed run")[1])


def asked_after(line):
    """What the run after this one asks for, in MiB: half as much again, or if this one was lent as much as that, half as much again as it had."""
    more = int(granted(line) * SHARE)
    # A loan just after the kill counts for the sentence, and one long before for the peak.
    had = math.ceil(min(limit_said(line), line["job_memory_peak_bytes"] / MIB))
    return more if more > had else min(int(had * SHARE), int(more * SHARE))


KINDS = {
    "fast": BEYOND, "blocks": BEYOND, "tree": BEYOND, "mapped": BEYOND, "call": BEYOND, "whole": BEYOND, "slow": IN_PLACE,
    "saves": FAR_BEYOND, "step": BEYOND,
}


def programs(count, seed):
    """So many of all kinds, one after the other."""
    chance, made = random.Random(seed), []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        asked = chance.randint(40, 60)
        needs = round(asked * chance.uniform(*KINDS[kind]))
        made.append(Program(kind, chance.randint(1, 1 << 30), asked, needs, (WORD,) if kind == "saves" else ()))
    return made


def built(site):
    """The program in C, if there is a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return None
    program = site.home / "outgrows"
    done = subprocess.run([compiler, "-O1", "-o", program, HERE / "outgrows.c"], capture_output=True, text=True, check=False)
    expect_equal((done.returncode, done.stderr), (0, ""), "the compiler")
    program.chmod(0o755)
    return program


@contextlib.contextmanager
def many_at_once(site):
    """More jobs at a time than the node has CPUs."""
    scontrol(site, "update", "PartitionName=all", f"OverSubscribe=FORCE:{AT_ONCE}")
    try:
        yield
    finally:
        scontrol(site, "update", "PartitionName=all", "OverSubscribe=NO")


def submit(site, every, wait, with_word=True):
    in_c = built(site)
    for user in site.users:
        shutil.copy(HERE / "outgrows.py", site.directory(user))
    for number, one in enumerate(every):
        one.user = site.users[number % len(site.users)]
        options = one.options if with_word else ()
        one.jobid = site.submit(one.user, one.line(in_c, wait), f"--mem={one.asked}", "-n1", "--time=20", *options)
    return every


class Watched:
    """Looks at all jobs until they are over, has each next run begin at once, and compares limits with what is written down."""

    def __init__(self, site, every, said, pool):
        self.site, self.said, self.pool = site, said, pool
        self.every = {one.jobid: one for one in every}
        self.begun, self.jobs = {}, {}
        self.limits, self.wrong = set(), set()

    def has_ended(self):
        now = time.monotonic()
        self.jobs = {int(job["JobId"]): job for job in self.site.jobs() if int(job["JobId"]) in self.every}
        # A job that hold has not let go yet has no priority.
        waiting = [jobid for jobid, job in self.jobs.items()
                   if (job["JobState"], job["Restarts"]) != ("PENDING", "0") and job["JobState"] == "PENDING" and job["Priority"] != "0"
                   and now - self.begun.get((jobid, job["Restarts"]), -60) > 15]
        if waiting:
            # Slurm refuses a run that begins in the second in which the one before it was ended.
            self.site.command("scontrol", "update", f"jobid={','.join(map(str, waiting))}", "starttime=now+2seconds")
            self.begun.update({(jobid, self.jobs[jobid]["Restarts"]): now for jobid in waiting})
        self.look_at_limits()
        return all(self.is_over(jobid, job) for jobid, job in self.jobs.items())

    def is_over(self, jobid, job):
        if job["JobState"] in UNFINISHED:
            return False
        if job["JobState"] == "COMPLETED":
            return True
        # It may be requeued yet.
        return f"job {jobid} of {self.every[jobid].user} {FAILED}, and is not requeued" in kernel.read(self.said)

    def look_at_limits(self):
        """What is written down, before and behind it; and all in all no more is lent than there is."""
        before = records(self.site)
        limits = limits_of_jobs(self.site)
        behind = records(self.site)
        # The record of a job that has just ended may have come and gone between the two.
        limits = {directory: limit for directory, limit in limits.items() if Path(directory).is_dir()}
        # What is the same before and behind was so at one moment.
        lent = sum(record["limit"] - record["grant"] for directory, record in before.items() if behind.get(directory) == record)
        if lent > self.pool * MIB:
            self.wrong.add(f"{lent} bytes are lent, of a pool of {self.pool} MiB")
        for directory, limit in limits.items():
            most = max((record[directory]["limit"] for record in (before, behind) if directory in record), default=0)
            # A job that begins has no limit for a moment.
            if limit < 1 << 60:
                self.limits.add((int(directory.rpartition("job_")[2]), limit, most))

    def expect_limits(self, lines):
        """Each limit was what a run of the job was granted, or written down as a loan, and no larger than a loan may be."""
        for jobid, limit, most in sorted(self.limits):
            grants = [line["memory_granted_bytes"] for line in lines.get(jobid, ())]
            is_right = limit in grants or grants and limit <= min(most, ELASTIC * max(grants))
            expect(is_right, f"job {jobid} has had a limit of {limit} bytes while its record said {most}; it was granted {grants}")
        expect_equal(self.wrong, set(), "what was lent all in all")


def records(site):
    """What is written down of loans, by the directories of jobs."""
    found = {}
    place = site.run_directory()
    for path in place.with_name(f"{place.name}-series").glob("*.lent"):
        with contextlib.suppress(ValueError):
            record = json.loads(kernel.read(path) or "null")
            if record:
                found[record["directory"]] = record
    return found


def limits_of_jobs(site):
    """The limit of each job's directory in bytes."""
    found = {}
    jobs = (path for top in kernel.Group("/" + site.bases()[0]).directories() for path in kernel.directories_below(top))
    for path in (path for path in jobs if path.name.startswith("job_")):
        limit = kernel.read(path / "memory.limit_in_bytes") or kernel.read(path / "memory.max")
        if limit and limit != "max":
            found[str(path)] = int(limit)
    return found


def lines_of(log, every):
    """The lines of the usage log about these jobs, one for each run: that of the script, with what else is said of its step."""
    lines = [json.loads(line) for path in log.glob("usage.jsonl*") for line in kernel.read(path).splitlines()]
    found = {}
    for one in every:
        of_job = sorted((line for line in lines if line["job"] == str(one.jobid)), key=lambda line: line["started_unix_seconds"])
        scripts = [line for line in of_job if line["step"] == "batch"]
        for step in (line for line in of_job if line["step"] != "batch"):
            script = [line for line in scripts if line["started_unix_seconds"] <= step["started_unix_seconds"]][-1]
            script["sentences"] = script["sentences"] + step["sentences"]
            script["cpu_seconds"] += step["cpu_seconds"]
        found[one.jobid] = scripts
    return found


def said_of(site, one):
    return [line for line in site.output(one.jobid).splitlines() if line]


def expect_result(site, one, watched, lines):
    """It has had as many runs as Slurm says, each but the last was killed for its memory, and its output is right."""
    job, output = watched.jobs[one.jobid], site.output(one.jobid)
    what = f"{one} of {one.user}, whose output is {output!r}"
    expect_equal(job["JobState"], "COMPLETED", f"the state of {what}; hold says {kernel.read(watched.said)[-3000:]}")
    expect(f"has {one.bytes().hex()}" in said_of(site, one), f"other bytes of {what}")
    restarts = int(job["Restarts"])
    expect_equal(len(lines), restarts + 1, f"the lines in the usage log of {what}")
    ends = [line["exit_status"] == 0 for line in lines]
    expect_equal(ends, [False] * restarts + [True], f"how the runs ended of {what}")
    expect_grants(one, lines)
    expect(lines[-1]["job_memory_peak_bytes"] <= granted(lines[-1]) * ELASTIC * MIB, f"it had more than it may: {what}")
    # Otherwise it shows nothing: it has outgrown what it asked for.
    expect(lines[-1]["job_memory_peak_bytes"] >= one.needs * MIB > one.asked * MIB, f"it needed less: {what}")
    if restarts:
        restart = f"jobfence: this is restart {restarts} of the job, with {granted(lines[-1])}.0 MiB of memory"
        expect_in(restart, output, f"what the user reads of {what}")


def expect_grants(one, lines):
    """Each run but the last was killed, not below what it was granted, and not above what that may grow to. The next one asked for more."""
    expect_equal(granted(lines[0]), one.asked, f"what the first run of {one} was granted")
    for line, after in zip(lines, lines[1:]):
        expect_killed_at_its_limit(one, line)
        expect_equal(granted(after), asked_after(line), f"what the run after one with {granted(line)} MiB of {one} was granted: {line}")


def expect_killed_at_its_limit(one, line):
    expect(granted(line) <= limit_said(line) <= granted(line) * ELASTIC, f"a run of {one} was killed at {limit_said(line)} MiB: {line}")


def twice_of(site, one, lines):
    """The seconds of CPU time that were spent twice. From a program that saves, those behind its last note, and until it goes on."""
    if one.kind != "saves":
        return sum(line["cpu_seconds"] for line in lines[:-1])
    notes = [line.split() for line in kernel.read(site.directory(one.user) / f"{one.jobid}.notes").splitlines()]
    lost = 0
    for run, line in enumerate(lines):
        of_run = [(what, float(cpu)) for restart, what, _, cpu in notes if int(restart) == run]
        if run:
            lost += next((cpu for what, cpu in of_run if what == "begins"), 0)
        if run < len(lines) - 1:
            lost += line["cpu_seconds"] - max((cpu for _, cpu in of_run), default=0)
    return lost


def expect_nothing_left(site, log, said):
    """Nothing is lent, held or kept of what was begun, while hold still runs."""
    until(lambda: not records(site), 120, lambda: f"the end of loans: {records(site)}")
    until(lambda: not limits_of_jobs(site), 120, lambda: f"the end of directories: {limits_of_jobs(site)}")
    until(site.idle_again, 120, "an empty queue")
    until(lambda: '"waiting":[]' in kernel.read(log / ".usage.jsonl.again"), 120, "the end of what was begun")
    wrong = [line for line in kernel.read(said).splitlines() if "cannot" in line and "cannot store with Slurm" not in line]
    expect_equal(wrong, [], "what hold could not do")


def expect_all_end(site, count, seed, pool, never=1):
    """All of them with the keys, and some that need more than all tries give. `pool`: how many MiB are lent, which is less than all want."""
    every = programs(count, seed)
    hopeless = [Program("fast", number + 1, 32, 32 * NEVER) for number in range(never)]
    with many_at_once(site), held(site, MemoryPool=f"{pool}M", **KEYS) as (log, said):
        submit(site, [*every, *hopeless], 300)
        watched = Watched(site, [*every, *hopeless], said, pool)
        until(watched.has_ended, PATIENCE, lambda: f"the end of all jobs: {[*watched.jobs.values()]}; hold says: {kernel.read(said)[-5000:]}")
        lines = lines_of(log, [*every, *hopeless])
        watched.expect_limits(lines)
        lent = [one for one in every if f"job {one.jobid} of {one.user} is lent " in kernel.read(said)]
        for one in every:
            expect_result(site, one, watched, lines[one.jobid])
        for one in hopeless:
            expect_killed(site, one, watched.jobs[one.jobid], lines[one.jobid])
            why = f"is not requeued: it was restarted {MOST} times already, and OnOutOfMemory=requeue:150%,2 allows no more"
            expect_in(f"job {one.jobid} of {one.user} {FAILED}, and {why}", kernel.read(said), "hold's words")
        expect_nothing_left(site, log, said)
    expect_not_drained(site)
    return counted(site, every, watched, lines, lent)


def counted(site, every, watched, lines, lent):
    """What was done, in words. Who waits for room has one run, and who saves begins nothing anew."""
    restarts = {one.jobid: int(watched.jobs[one.jobid]["Restarts"]) for one in every}
    again = [one for one in every if one.kind == "slow" and restarts[one.jobid]]
    expect(not again, f"programs that wait for room had more than one run: {again}")
    savers = [one for one in every if one.kind == "saves"]
    once = [one for one in savers if not restarts[one.jobid]]
    expect(not once, f"programs that need more than their limits may grow had one run: {once}")

    def share(of):
        all_of_it = sum(line["cpu_seconds"] for one in of for line in lines[one.jobid])
        return 100 * sum(twice_of(site, one, lines[one.jobid]) for one in of) / all_of_it
    spent = share(savers)
    expect(spent <= 5, f"programs that save spent {spent:.1f} % of their CPU time twice")
    runs = [sum(1 for count in restarts.values() if count == number) for number in range(MOST + 1)]
    return (f"{len(every)} programs: {runs[0]} grew in place, {runs[1]} ran twice, {runs[2]} three times; {len(lent)} were lent memory; "
            f"{share(every):.1f} % of the CPU time was spent twice, and {spent:.1f} % of those that save")


def expect_killed(site, one, job, lines):
    """It needs more than all tries give, and its user reads which limit that was."""
    what = f"{one}, whose output is {site.output(one.jobid)!r}"
    expect_equal((job["JobState"] in ("FAILED", "OUT_OF_MEMORY"), int(job["Restarts"])), (True, MOST), f"the end of {what}: {job}")
    expect(not any(line.startswith("has ") for line in said_of(site, one)), f"it has it all: {what}")
    expect_equal(len(lines), MOST + 1, f"the lines of {what}")
    expect_grants(one, lines)
    expect_killed_at_its_limit(one, lines[-1])
    expect_in("was killed: the job reached its memory limit of ", site.output(one.jobid), f"what the user reads of {what}")


def expect_killed_without(site, every):
    """As today: each is killed once, at what it asked for, and its user reads that."""
    with many_at_once(site):
        submit(site, every, 0, with_word=False)
        for one in every:
            what = f"{one}, whose output is {site.output(one.jobid)!r}"
            state = site.wait(one.jobid, timeout=300)
            expect(state in ("FAILED", "OUT_OF_MEMORY"), f"the end of {what}: {state}")
            limit = f"the job reached its memory limit of {one.asked}.0 MiB"
            # With these words, srun has thrown away what had not reached it.
            words = (limit, "Force Terminated") if one.kind == "step" else (limit,)
            until(lambda one=one, words=words: any(word in site.output(one.jobid) for word in words), 60, f"the sentence for {what}")
            expect(not any(line.startswith("has ") for line in said_of(site, one)), f"it has it all: {what}")
            expect_equal(site.job(one.jobid)["Restarts"], "0", f"the restarts of {what}")
    expect_not_drained(site)


@case(on=["private"], layout=False)
def ten_programs_outgrow_their_memory(site):
    """One of each kind, and another. All end with the right bytes, and one that never fits is killed."""
    return expect_all_end(site, 10, 1, pool=64)


@case(on=["private"], layout=False, patient=True, release=True)
def a_hundred_programs_outgrow_their_memory(site):
    """All end with the right bytes. Without the keys, ten of them are killed, each at what it asked for."""
    expect_killed_without(site, programs(10, 2))
    return expect_all_end(site, 100, 2, pool=160, never=3)
