# SPDX-License-Identifier: GPL-2.0-or-later
"""A job is limited to what it was granted, and its user is told."""

import json
import os
import re
import resource
from pathlib import Path

from contract import kernel
from contract.harness import MIB, TAKE, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, running
from contract.sites import until

from ..harness import ask, expect_limits
from .capacity import complexes_of

PAGE = resource.getpagesize()
# execd kills a job whose processes have more address space than h_vmem. So half of too much is a file in memory, which is no address space
# and counts as memory of the job.
HALF = "exec 9>/dev/shm/half.$JOB_ID && rm /dev/shm/half.$JOB_ID && head -c 70M /dev/zero >&9"


def parent_of(pid):
    fields = kernel.stat_fields(pid)
    return int(fields[1]) if fields else None


@case
def amounts(site):
    """An amount means in a fence what it means to the shepherd, which limits each process by it: octal, hexadecimal, with an exponent."""
    for amount in "0x8000000", "01000000000", "0400M", "1e8", "1.5e2M", "0.125G":
        jobid, group = running(site, "alice", "ulimit -v; sleep 1000", "-l", f"h_vmem={amount}")
        kib = int(until(lambda jobid=jobid: site.output(jobid), 30, "its limit"))
        expect_equal(group.parent.memory_limit(), kib * 1024 // PAGE * PAGE, f"memory of a job with h_vmem={amount}")
        site.end(jobid)


@case
def resident_memory(site):
    """h_rss is a grant, too, where the site says so: execd says the lower one of the job's amount and the queue's."""
    site.configure("SlotMemory=h_rss\n")
    for queue, asked, mib in ("INFINITY", "90M", 180), ("60M", "40M", 80), ("60M", None, 120):
        with site.queue(h_rss=queue):
            jobid = site.submit("alice", "sleep 1000", "-pe", "smp", "2", *(["-l", f"h_rss={asked}"] if asked else []))
            expect_equal(fenced(site, jobid).parent.memory_limit(), mib * MIB, f"memory with {asked} in a queue of {queue}")
            site.end(jobid)
    # execd does not say that it is counted once.
    counted = re.sub(r"(?m)^h_rss .*$", "h_rss h_rss MEMORY <= YES JOB 0 0", site.command("qconf", "-sc").stdout)
    with complexes_of(site, counted):
        site.forget_debits()
        try:
            jobid = site.submit("alice", "sleep 1000", "-pe", "smp", "2", "-l", "h_rss=90M")
            expect_equal(fenced(site, jobid).parent.memory_limit(), 90 * MIB, "memory by a consumable JOB")
            site.end(jobid)
        finally:
            site.forget_debits()


@case
def more_than_a_thread(site):
    """CPUsPerSlot says what a slot is; a section by queue says more of it."""
    site.configure("CPUsPerSlot=0.5\n[Queue=all.q]\nMaxProcesses=77\n[Project=x]\nMaxProcesses=5\n")
    jobid, group = running(site, "alice", "sleep 1000", *ask(2, 200))
    expect_limits(group.parent, 1, 200)
    expect_equal(group.processes_limit(), 77, "processes")
    site.end(jobid)


@case
def sections(site):
    """A job has the sections of its project, of its parallel environment, and, where the site trusts in that, of its account."""
    project = site.home / "project"
    project.write_text("name p1\noticket 0\nfshare 0\nacl NONE\nxacl NONE\n")
    site.qconf("-Aprj", str(project))
    try:
        of_sections = "MaxProcesses=90\n[Account=lab]\nMaxProcesses=70\n[Project=p1]\nMaxProcesses=60\n[PE=mpi]\nMaxProcesses=50\n"
        for trust, given, count in (
            ("yes", (), 90), ("yes", ("-A", "lab"), 70), ("yes", ("-P", "p1"), 60), ("yes", ("-pe", "mpi", "2"), 50),
            ("yes", ("-pe", "smp", "2"), 90), ("no", ("-A", "other"), 70),
        ):
            site.configure(f"TrustAccount={trust}\n{of_sections}")
            jobid = site.submit("alice", "sleep 1000", *given)
            expect_equal(fenced(site, jobid).processes_limit(), count, f"processes of a job with {given} and TrustAccount={trust}")
            site.end(jobid)
        said = site.command(str(site.jobfence), "check").stdout
        expect_in("under Grid Engine a job's user writes what [Account=lab] ask for", said, "what 'jobfence check' says")
    finally:
        site.command("qconf", "-dprj", "p1")


@case
def bytes_of_system_calls(site):
    """The usage log has what the job's processes and their children have read and written without any disk."""
    (site.home / "moved").mkdir(mode=0o700, exist_ok=True)
    site.configure(f"UsageLog={site.home}/moved/usage.jsonl\n")
    jobid = site.submit("alice", f"sh -c 'head -c {96 << 20} /dev/zero >/dev/null; :'", *ask(1, 100))
    site.wait(jobid)

    def lines():
        log = (site.home / "moved").glob("usage.jsonl*")
        found = {line["step"]: line for file in log for line in map(json.loads, file.read_text().splitlines()) if line["job"] == jobid}
        return len(found) == 2 and found
    found = until(lines, 20, "both lines of the job")
    said = []
    for member in "rchar_bytes", "wchar_bytes":
        job, shepherd = found["job"][member], found["shepherd"][member]
        # The shepherd and the shell read and write little.
        expect(job is not None and 96 << 20 <= job <= 104 << 20, f"{member}: {job}")
        expect_equal(shepherd, None, f"{member} of the shepherd, whose figures are in the job's")
        said.append(f"{member} {job - (96 << 20):+}")
    return ", ".join(said)


@case
def explained_as_the_door_takes_it(site):
    """The account that a user writes is no fact for explain either."""
    for trust, limit in (("no", 44), ("yes", 300)):
        site.configure(f"TrustAccount={trust}\nMaxProcesses=300\n[Account=lab]\nMaxProcesses=44\n")
        jobid = site.submit("alice", "sleep 1000", "-A", "other")
        expect_equal(fenced(site, jobid).processes_limit(), limit, f"processes of a job with another account, TrustAccount={trust}")
        status, said = site.ours("explain", "--cpus", "1", "--account", "other", "--user", "alice")
        expect_equal(status, 0, f"exit status of explain: {said}")
        expect_match(rf"/pids.max = {limit}\n", said, f"explain with TrustAccount={trust}")
        expect_in("account other" if trust == "yes" else "account unknown (other, as its user says)", said, "explain")
        site.end(jobid)


@case
def soft_memory(site):
    """MemoryHighPercent has the kernel take memory back before the limit is reached."""
    if "memory" not in kernel.controllers_of_v2():
        raise Skip("cgroup v1 has no memory.high")
    site.configure("MemoryHighPercent=50\n")
    jobid = site.submit("alice", "sleep 1000", *ask(1, 200))
    expect_equal(fenced(site, jobid).memory_high(), 100 * MIB, "memory.high")
    site.end(jobid)


@case
def out_of_memory_as_a_whole(site):
    """OOMKillStep kills all of the job, and not its shepherd, which says so."""
    if "memory" not in kernel.controllers_of_v2():
        raise Skip("cgroup v1 kills single processes")
    site.configure("OOMKillStep=yes\n")
    jobid = site.submit("alice", f"{HALF}; {TAKE % (70, 9)}; echo survived", *ask(1, 125))
    row = site.wait(jobid)
    expect("survived" not in site.output(jobid), "the job's shell has survived")
    expect_equal(row["exit_status"].split()[0], "137", "exit_status")
    expect_in("100", row["failed"], "failed")


@case
def at_no_file(site):
    """An interactive job has no file for its errors: the log says why a process of it was killed."""
    script = site.directory("alice") / "too-much"
    script.write_text(f"#!/bin/bash\necho $JOB_ID\n{HALF}; {TAKE % (70, 9)}\n")
    script.chmod(0o755)
    done = site.as_user("alice", ["qrsh", "-now", "no", "-l", "h_vmem=125M", str(script)])
    jobid = expect_match(r"^\d+", done.stdout, f"its number ({done.stderr})")[0]
    until(lambda: re.search(rf"job {jobid} step job: process \d+ \(python3\) was killed: the job reached its memory\s+limit", site.logged()),
          10, f"the reason in the log of jobfence:\n{site.logged()[-2000:]}")


@case
def epilog_out_of_memory(site):
    """What the shepherd runs behind the job is within the job's limits, and the user reads why it was killed."""
    epilog = site.home / "epilog"
    epilog.write_text(f"#!/bin/bash\n{HALF}; {TAKE % (70, 9)}; exit 0\n")
    epilog.chmod(0o755)
    # The shepherd is in the job's own fence until the job has begun, and so would be an epilog that begins as soon.
    moved = "until grep -q step_shepherd /proc/$PPID/cgroup; do sleep 0.1; done"
    with site.queue(epilog=str(epilog)):
        jobid = site.submit("alice", moved, *ask(1, 125))
        site.wait(jobid)
    told = until(lambda: site.told(jobid), 10, "a sentence")
    expect_match(rf"jobfence: job {jobid} step shepherd: process \d+ \(python3\) was killed", told.replace("\n    ", " "), "what the user reads")


def peak_of(row):
    """In bytes: qacct takes KiB for bytes, and so says kB for MiB."""
    amount = expect_match(r"^([\d.]+)([KM]?)B", row["ru_maxrss"], "ru_maxrss")
    return float(amount[1]) * {"": 1, "K": 1000, "M": 1000000}[amount[2]] * 1024


@case
def used(site):
    """qacct shows the CPU time and the peak of memory of processes that the shepherd never waits for: they are init's children."""
    spin = "(ulimit -t 4; while :; do :; done)"
    orphans = f"(setsid sh -c '{spin}; touch spun.$JOB_ID' >/dev/null 2>&1 &); (setsid {TAKE % (70, 60)} >/dev/null 2>&1 & echo $! >eater.$JOB_ID)"
    jobid = site.submit("alice", f"{orphans}; until [ -e spun.$JOB_ID ] && [ -e stop.$JOB_ID ]; do sleep 0.2; done", *ask(1, 200))
    top = site.directory("alice")
    for program in "sh -c", "import time":
        orphan = until(lambda program=program: [pid for pid in site.job_pids(jobid, program) if parent_of(pid) == 1], 60, f"an orphan: {program}")[0]
        expect(kernel.identity(orphan), "the orphan is gone")
    until((top / f"spun.{jobid}").exists, 60, "the end of the spinner")
    group = fenced(site, jobid)

    def eaten():
        """What is no file, as v2 calls it and as v1 does."""
        now = kernel.keyed(group.file("memory", "memory.stat", "memory.stat"))
        return int(now["anon"] if "anon" in now else now["rss"])
    until(lambda: eaten() >= 70 * MIB, 30, "70 MiB")
    (top / f"stop.{jobid}").touch()
    row = site.wait(jobid)
    cpu = float(row["ru_utime"].rstrip("s")) + float(row["ru_stime"].rstrip("s"))
    expect(cpu > 2, f"CPU time {cpu} s: {row}")
    expect(peak_of(row) >= 64 * MIB, f"ru_maxrss {row['ru_maxrss']}")
    return f"{cpu:.1f} s, {row['ru_maxrss']}"


@case
def cache_is_nobodys_need(site):
    """What the kernel keeps of files is in no figure of the accounting: users would ask for it the next time."""
    jobid = site.submit("alice", "head -c 100M /dev/zero >/var/tmp/big.$JOB_ID; touch read.$JOB_ID; until [ -e stop.$JOB_ID ]; do sleep 0.2; done", *ask(1, 200))
    top = site.directory("alice")
    try:
        until((top / f"read.{jobid}").exists, 60, "the file is read")
        now = kernel.keyed(fenced(site, jobid).file("memory", "memory.stat", "memory.stat"))
        cached = int(now["file"]) - int(now["shmem"]) if "anon" in now else int(now["cache"]) - int(now.get("shmem", 0))
        (top / f"stop.{jobid}").touch()
        row = site.wait(jobid)
    finally:
        Path(f"/var/tmp/big.{jobid}").unlink(missing_ok=True)
    if cached < 80 * MIB:
        raise Skip("this file system keeps its files in shared memory")
    expect(peak_of(row) < 50 * MIB, f"ru_maxrss {row['ru_maxrss']} with {cached >> 20} MiB of cache")


@case
def io(site):
    """The lower rates of the site and of the user hold for the job."""
    if not kernel.hierarchies().get("blkio") and not (kernel.has_v2_controllers() and "io" in kernel.controllers_of_v2()):
        raise Skip("no controller of I/O")
    device = os.stat("/scratch").st_dev
    site.configure("IOMax=\"/scratch rbps=8M wbps=4M\"\n")
    wanted = {"rbps": 2 * MIB, "wbps": 4 * MIB, "riops": 500}
    asked = "JOBFENCE_IO_MAX=/scratch rbps=2M wbps=900M riops=500"
    for user, given, limits in ("alice", (), {"rbps": 8 * MIB, "wbps": 4 * MIB}), ("bob", ("-v", asked), wanted):
        jobid, step = running(site, user, "sleep 1000", *given)
        # v1 counts each directory for itself, so each step is held to it.
        for one in (step, step.parent) if kernel.has_v2_controllers() else (step,):
            expect_equal(one.io_max().get(f"{os.major(device)}:{os.minor(device)}"), limits, f"I/O limits of {one.path}")
        site.end(jobid)
