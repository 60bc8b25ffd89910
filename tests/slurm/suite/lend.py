# SPDX-License-Identifier: GPL-2.0-or-later
"""MemoryPool: a job that outgrows its memory goes on, and what it frees comes back; a scavenger gives way to an owner."""

import contextlib
import json

from contract import kernel
from contract.harness import PYTHON, case, expect, expect_equal, expect_in, expect_match, fenced
from contract.sites import until
from ..harness import expect_not_drained
from ..sites import InstalledSite
from .again import asks_for, start, until_said
from .idle import shown
from .stored import held

MIB = 1 << 20
NOTHING_LENT = "nothing is lent in Slurm's own directories"

# Has as many MiB as the file says.
PROGRAM = f"""
cat >lent.$SLURM_JOB_ID.py <<'EOF'
import mmap, os, time
kept = []
while True:
    wanted = int(open("wanted").read() or 0) if os.path.exists("wanted") else 0
    while len(kept) > wanted:
        kept.pop().close()
    while len(kept) < wanted:
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(b"x" * (1 << 20))
    with open("has.new", "w") as has:
        has.write(str(len(kept)))
    os.rename("has.new", "has")
    if wanted == 1:
        break
    time.sleep(0.02)
EOF
exec {PYTHON} -S lent.$SLURM_JOB_ID.py
"""


class Grows:
    """What a user's job of the program is to have, and has."""

    def __init__(self, site, user):
        self.place = site.directory(user)
        for name in ("wanted", "has"):
            (self.place / name).unlink(missing_ok=True)

    def wants(self, mib):
        (self.place / "wanted.new").write_text(str(mib))
        (self.place / "wanted.new").rename(self.place / "wanted")

    def has(self, mib):
        self.wants(mib)
        place = self.place / "has"
        until(lambda: place.exists() and kernel.read(place) == str(mib), 300, f"{mib} MiB")


@case(layout=False, patient=True)
def outgrows_its_memory(site):
    """A job of 200 MiB has 280, and grows no faster than it is lent."""
    user = site.users[0]
    has = Grows(site, user).has
    with held(site, MemoryPool="512M", MemoryPoolReserve="1M", ElasticRAMPercent="200") as (_, said):
        jobid = site.submit(user, PROGRAM, "-n1", "--mem=200")
        group = fenced(site, jobid)
        if not group.own:
            site.scancel(jobid)
            return NOTHING_LENT

        has(100)
        for mib in range(115, 281, 15):
            until(lambda mib=mib: group.parent.memory_limit() >= (mib + 12) * MIB, 60, f"room for {mib} MiB")
            has(mib)
        limit = group.parent.memory_limit()
        expect(280 * MIB < limit <= 400 * MIB, f"the job's limit is {limit / MIB}")
        until(lambda: group.memory_limit() == group.parent.memory_limit(), 60, "the step's limit")
        expect_in("beyond its limit of 200.0 MiB (MemoryPool)", shown(site, "show", str(jobid)), "show")
        fences = json.loads(shown(site, "ls", "--json"))["fences"]
        lent = [fence["memory_lent_bytes"] for fence in fences if fence["job"] == str(jobid)]
        expect(lent and all(lent), f"memory_lent_bytes: {lent}")
        has(20)
        until(lambda: group.parent.memory_limit() == group.memory_limit() == 200 * MIB, 120, "what comes back")
        expect_equal(group.oom_kills(), 0, "kills")
        has(1)
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        if not isinstance(site, InstalledSite):
            expect_in(f"job {jobid} of {user} is lent ", kernel.read(said), "hold's words")
    expect_not_drained(site)
    return "lent piece by piece"


def in_use(node):
    """MiB in use below, without page cache. Not the sums of memory.stat: the kernel brings them up to date every two seconds."""
    files = [node / name for name in ("memory.usage_in_bytes", "memory.current")]
    figures = {name: int(value) for name, value in (line.split() for line in kernel.read(node / "memory.stat").splitlines())}
    caches = [figures.get(f"total_{name}", figures[name]) for name in ("inactive_file", "active_file")]
    return (int(kernel.read(next(file for file in files if file.exists()))) - sum(caches)) / MIB


@contextlib.contextmanager
def a_scavenger(site, then="kill", *options):
    """On a node of 400 MiB it has what an owner has reserved and not touched: the two jobs, what each has, their fences, a function that
    tells whether the scavenger has ended, of which each call lets the owner have more, and what `held` yields. `None` where nothing is lent."""
    owner, scavenger = site.users[:2]
    speed = 60 if site.for_tests else 1
    fast = {"program": site.for_tests, "variables": {"JOBFENCE_TEST_IDLE_SPEED": str(speed)}}
    of_scavengers = f"100\n[User={scavenger}]\nScavenger=yes\nScavengerEnd={then}\nElasticRAMPercent=1000"
    pool = {"MemoryPool": "400M", "MemoryPoolReserve": "40M", "MemoryPoolUnused": of_scavengers}
    with held(site, **fast, UsageCard="always", **pool) as (log, said):
        owners, scavengers = Grows(site, owner), Grows(site, scavenger)
        jobs = [site.submit(owner, PROGRAM, "-n1", "--mem=300"), site.submit(scavenger, PROGRAM, "-n1", "--mem=64", *options)]
        groups = [fenced(site, jobid) for jobid in jobs]
        if not all(group.own for group in groups):
            for jobid in jobs:
                site.scancel(jobid)
            yield None
            return
        places = kernel.Group("/" + site.bases()[0]).directories()
        files = [place / name for place in places for name in ("memory.limit_in_bytes", "memory.max")]
        limit = next(file for file in files if file.exists())
        limit.write_text(str(400 * MIB))
        for mib in range(40, 151, 8):
            # The job begins five minutes before it counts as one that does not need what it has.
            until(lambda mib=mib: groups[1].parent.memory_limit() >= (mib + 6) * MIB, 900, f"room for {mib} MiB")
            scavengers.has(mib)
        mib = 0

        def has_ended():
            nonlocal mib
            if in_use(limit.parent) < 382:
                mib += 2
                owners.has(mib)
            return site.has_ended(jobs[1]) or int(site.job(jobs[1]).get("Restarts") or 0)
        yield jobs, (owners, scavengers), groups, has_ended, (log, said)


@case(on=["private"], layout=False, patient=True)
def scavenger_gives_way(site):
    """It ends when the owner needs what it has reserved."""
    scavenger = site.users[1]
    with a_scavenger(site) as found:
        if not found:
            return NOTHING_LENT
        jobs, (owners, _), groups, has_ended, (log, said) = found
        until(has_ended, 300, "the scavenger's end")
        expect_equal(site.wait(jobs[1]), "FAILED", "the scavenger's state")
        words = f"job {jobs[1]} of {scavenger} is ended: the node has only"
        until(lambda: words in kernel.read(said), 60, "the line in hold's log")
        owners.has(280)
        expect_equal(groups[0].oom_kills(), 0, "kills of the owner")
        owners.has(1)
        expect_equal(site.wait(jobs[0]), "COMPLETED", "the owner's state")
        output = " ".join(site.output(jobs[1]).split())
        expect_equal(output.count(f"job {jobs[1]} step batch: jobfence ended this job, since the node ran short of memory"), 1, output)
        expect_in("The job was granted 64.0 MiB, and used ", output, "what its user reads")
        expect_in("(Scavenger). Submit it again.", output, "what its user reads")
        expect_match(r" lent at most [\d.]+ MiB beyond its limit of 64.0 MiB, from 20", output, "the card")
        expect("jobfence ended" not in site.output(jobs[0]), "the owner is told that it was ended")
        logged = log / "usage.jsonl"
        batch = lambda: {line["job"]: line for line in map(json.loads, kernel.read(logged).splitlines()) if line["step"] == "batch"}  # noqa: E731
        until(lambda: logged.exists() and {str(job) for job in jobs} <= batch().keys(), 60, "the lines of the usage log")
        of_owner, of_scavenger = (batch()[str(job)] for job in jobs)
        expect(of_scavenger["job_memory_lent_peak_bytes"] >= 80 * MIB, f"the scavenger's line: {of_scavenger}")
        expect_equal(of_owner["job_memory_lent_peak_bytes"], None, "what the owner was lent")
        expect_in("jobfence ended this job", str(of_scavenger["sentences"]), "the usage log")
        expect_equal((of_scavenger["job_ended_for_owners"], of_owner["job_ended_for_owners"]), ("kill", None), "what becomes of them")
        expect("requeued" not in kernel.read(said), f"hold says: {kernel.read(said)}")
    expect_not_drained(site)
    return "an owner has what it has reserved"


REQUEUED = "It is requeued if its user and the site allow that, and begins anew."


@case(on=["private"], layout=False, patient=True)
def scavenger_comes_back(site):
    """ScavengerEnd=requeue: it runs again by itself, with the same memory, and its output says so. The controller would let it wait for two
    minutes: it is told to start at once."""
    scavenger = site.users[1]
    with a_scavenger(site, "requeue", "--open-mode=append") as found:
        if not found:
            return NOTHING_LENT
        jobs, (owners, scavengers), groups, has_ended, (log, said) = found
        until(has_ended, 300, "the scavenger's end")
        until_said(said, f"job {jobs[1]} of {scavenger} was ended for owners of memory, and is requeued (restart 1)")
        expect_equal(asks_for(site, jobs[1]), ["Node=64M"], "what it asks for")
        waits = site.job(jobs[1])
        expect(waits["JobState"] == "PENDING" and "held" not in waits.get("Reason", "").lower(), f"it waits, and is not held: {waits}")
        owners.has(280)
        expect_equal(groups[0].oom_kills(), 0, "kills of the owner")
        owners.has(1)
        expect_equal(site.wait(jobs[0]), "COMPLETED", "the owner's state")
        scavengers.wants(1)
        start(site, jobs[1])
        expect_equal(site.wait(jobs[1]), "COMPLETED", f"the scavenger's state; hold says: {kernel.read(said)}")
        expect_equal(site.job(jobs[1])["Restarts"], "1", "the restarts")
        output = " ".join(site.output(jobs[1]).split())
        expect_in(f"(Scavenger). {REQUEUED} A job that uses no more", output, "what its user reads of its end")
        expect_in("jobfence: this is restart 1 of the job, with 64.0 MiB of memory", output, "what its user reads of its start")
        expect("Submit it again" not in output, output)

        def ended():
            lines = [json.loads(line) for line in kernel.read(log / "usage.jsonl").splitlines()]
            return [line["job_ended_for_owners"] for line in lines if line["job"] == str(jobs[1]) and line["step"] == "batch"]
        until(lambda: len(ended()) == 2, 60, "the lines of both runs in the usage log")
        expect_equal(ended(), ["requeue", None], "what the usage log says of its runs")
        expect("is not requeued" not in kernel.read(said), f"hold says: {kernel.read(said)}")
    expect_not_drained(site)
    return "it has run again"


@case(on=["private"], layout=False, patient=True)
def scavenger_does_not_come_back(site):
    """Its user forbids that."""
    scavenger = site.users[1]
    with a_scavenger(site, "requeue", "--no-requeue") as found:
        if not found:
            return NOTHING_LENT
        jobs, (owners, _), _, has_ended, (_, said) = found
        until(has_ended, 300, "the scavenger's end")
        until_said(said, f"job {jobs[1]} of {scavenger} was ended for owners of memory, and is not requeued: it may not be requeued "
                         "(--no-requeue, or JobRequeue=0 in slurm.conf)")
        expect_equal((site.wait(jobs[1]), site.job(jobs[1])["Restarts"]), ("FAILED", "0"), "its end")
        expect_in(f"(Scavenger). {REQUEUED}", " ".join(site.output(jobs[1]).split()), "what its user reads")
        owners.has(1)
        expect_equal(site.wait(jobs[0]), "COMPLETED", "the owner's state")
    expect_not_drained(site)
    return "it has ended"
