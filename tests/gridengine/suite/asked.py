# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job reads of its fence, what its user asks for, and which GPUs it has."""

import contextlib

from contract.gpus import SHOW_GPUS, gpus_of_the_node
from contract.harness import MIB, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, running
from contract.sites import until

from ..harness import ask, expect_limits
from .capacity import JSV, complexes_of
from .failure import refused


@case
def told_of_its_limits(site):
    """The job reads its limits in its environment; what its user has put there is gone."""
    forged = "-v", "JOBFENCE_MAX_PROCESSES=1,JOBFENCE_CPUS=64,KEPT='a b'"
    jobid = site.submit("alice", 'env | grep -e JOBFENCE -e KEPT; cat /proc/self/cgroup', *forged, *ask(2, 200))
    site.wait(jobid)
    said = site.output(jobid)
    for line in "JOBFENCE_CPUS=2", f"JOBFENCE_MEMORY_BYTES={200 * MIB}", "KEPT='a b'":
        expect_in(line + "\n", said, "the job's environment")
    expect("MAX_PROCESSES" not in said, f"a limit that the job has not: {said}")
    expect_equal(threads_told(site, 2), [], "threads with a quota of all the CPUs")
    expect_in(expect_match(r"JOBFENCE_CGROUP=(\S+)", said, "its cgroup")[1], said.split("JOBFENCE_CGROUP")[1].split("\n", 1)[1], "its cgroup")


def threads_told(site, slots, *options):
    """The lines of a job's environment that say how many threads to start."""
    jobid = site.submit("alice", "env | grep -e THREADS -e GOMAXPROCS", *options, *ask(slots, 100))
    site.wait(jobid)
    return sorted(site.output(jobid).split())


@case
def told_how_many_threads(site):
    """A program is told to start no more threads than have CPU time, unless its user says how many, or it is bound to cores."""
    expect_equal(threads_told(site, 1), [], "threads that nobody has asked for")
    site.configure("ThreadHints=yes\n")
    names = "GOMAXPROCS", "JOBFENCE_THREADS", "OMP_NUM_THREADS"
    ours = [f"{name}=1" for name in names]
    expect_equal(threads_told(site, 1), ours, "threads with a quota of one CPU of two")
    expect_equal(threads_told(site, 1, "-v", "OMP_NUM_THREADS=4"), ["OMP_NUM_THREADS=4"], "threads of a user who says how many")
    # As 'qsub -V' has it in a job that was told.
    inherited = ",".join(f"{name}=4" for name in names)
    expect_equal(threads_told(site, 1, "-v", inherited), ours, "threads of a job that another has submitted")
    expect_equal(threads_told(site, 1, "-binding", "linear:1"), [], "threads of a job that is bound")
    site.configure("ThreadHints=yes\nCPUQuotaPercent=50\n")
    expect_equal(threads_told(site, 1), ours, "threads with a quota of half a CPU")
    expect_equal(threads_told(site, 2), [], "threads of a job that starts two processes")


@case
def asks_for_less(site):
    """A variable of qsub -v lowers a limit, and raises none; one that is wrong is said."""
    site.configure("MaxProcesses=90\n")
    for count, allowed in (60, 60), (100, 90):
        given = f"JOBFENCE_CPU_LIMIT=0.5,JOBFENCE_PIDS_MAX={count}"
        jobid, group = running(site, "alice", "sleep 1000", "-v", given, *ask(2, 200))
        expect_limits(group.parent, 0.5, 200)
        expect_equal(group.processes_limit(), allowed, "processes")
        site.end(jobid)
    reason = refused(site, "touch ran.$JOB_ID", "-v", "JOBFENCE_CPU_LIMIT=half")
    expect_in("JOBFENCE_CPU_LIMIT: found \"half\", expected a number of CPUs", reason, "the reason")


@case
def usage_card(site):
    """The file of the job's errors ends with a card, if the site or the user wants one."""
    jobid = site.submit("alice", "sleep 1; exit 3", "-v", "JOBFENCE_USAGE_CARD=always", "-l", "h_rt=0:10:0", *ask(1, 100))
    site.wait(jobid)
    card = until(lambda: site.told(jobid), 10, "a card")
    expect_match(rf"jobfence: job {jobid}: status 3, \d+ s, .*memory \d+ % of 100\.0 MiB", card, "the card")
    site.configure("UsageCard=failed\n")
    for script, is_there in ("exit 0", False), ("exit 1", True):
        jobid = site.submit("alice", script)
        site.wait(jobid)
        expect_equal(f"jobfence: job {jobid}: status 1" in site.told(jobid), is_there, f"a card of '{script}'")


@contextlib.contextmanager
def granted_gpus(site, count, per="gpu"):
    """Two devices that stand for GPUs, of which qmaster says that there are so many; with the lines of jobfence.conf that go with them."""
    complexes = site.command("qconf", "-sc").stdout + "gpu gpu INT <= YES YES 0 0\n"
    with complexes_of(site, complexes), contextlib.ExitStack() as ends:
        ends.callback(site.command, "qconf", "-dattr", "exechost", "complex_values", f"gpu={count}", site.node)
        with gpus_of_the_node((0, 1)) as top, site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
            if site.as_user("alice", ["sh", "-c", f": <{top}/nvidia0 && : <{top}/nvidia1"]).returncode != 0:
                raise Skip("this machine has no two devices that a user can open")
            site.qconf("-aattr", "exechost", "complex_values", f"gpu={count}", site.node)
            yield top, f"SlotGPUs={per}\nGPUDevice={top}/nvidia%d\nConstrainDevices=yes\n"


@case
def gpus(site):
    """Each job can open the GPUs that it asked for, and no other, and CUDA is told so."""
    with granted_gpus(site, 3) as (top, configured):
        site.configure(configured)
        script = SHOW_GPUS.format(top)
        # What a user notes there is replaced.
        forged = "-v", "JOBFENCE_REQUESTED=gpu=2"
        jobs = [site.submit(user, f"{script} sleep 1000", "-l", "gpu=1", *forged) for user in site.users]
        none = site.submit("bob", f"{script} sleep 1000", *forged)
        said = [until(lambda jobid=jobid: "CUDA=" in site.output(jobid) and site.output(jobid), 60, "its words").split() for jobid in jobs + [none]]
        for jobid in jobs:
            expect_in("gpu=1", site.job(jobid)["hard resource_list"], "what qmaster has granted")
        expect_equal(sorted(words[0] for words in said[:2]), ["nvidia0", "nvidia1"], f"the GPUs of both: {said}")
        expect(all(len(words) == 2 and words[1] == "CUDA=0" for words in said[:2]), f"what CUDA is told: {said}")
        expect_equal(said[2], ["CUDA="], "what a job without GPUs sees")
        # qmaster says that there is a third.
        expect_in("too few GPUs are free for this job", refused(site, "touch ran.$JOB_ID", "-l", "gpu=1"), "the reason")
        for jobid in (*jobs, none):
            site.end(jobid)
        both = site.submit("alice", script, "-l", "gpu=1", "-pe", "smp", "2")
        site.wait(both)
        expect_equal(site.output(both).split(), ["nvidia0", "nvidia1", "CUDA=0,1"], "a GPU for each slot")


def submitted_by_bob(site, script, given):
    """The number of a job that qsub takes; otherwise nothing, and what it says."""
    done = site.as_user("bob", ["qsub", "-terse", "-cwd", *given], stdin=script)
    if done.returncode != 0:
        return None, done.stdout + done.stderr
    jobid = done.stdout.strip().split("\n")[-1]
    site.submitted.append(("bob", jobid))
    return jobid, ""


@case
def gpus_that_are_not_granted(site):
    """A newline in a user's word can make a line that looks as if the job asked for a GPU: no job has one that qmaster has not counted."""
    line = "PARAM l_hard gpu=1"
    hidden = {
        "context": ("-ac", f"a=x\n{line}"), "variable": ("-v", f"A=x\n{line}"), "name of a variable": ("-v", f"A\n{line}"),
        "mail": ("-M", f"x\n{line}"), "queue": ("-q", f"all.q,x\n{line}"), "job before": ("-hold_jid", f"x\n{line}"),
        "path elsewhere": ("-o", f"localhost:/tmp/x\n{line}"), "soft": ("-soft", "-l", f"arch=x\n{line}")}
    outcomes, waiting = {}, None
    with granted_gpus(site, 1) as (top, configured):
        site.configure(configured)
        script = SHOW_GPUS.format(top)
        holder = site.submit("alice", f"{script} sleep 1000", "-l", "gpu=1")
        until(lambda: "CUDA=0" in site.output(holder), 60, "a job with the one GPU that qmaster grants")
        for name, given in hidden.items():
            jobid, why = submitted_by_bob(site, script, given)

            def outcome(jobid=jobid):
                if "CUDA=" in site.output(jobid):
                    return " ".join(site.output(jobid).split())
                if "Eqw" in site.queued(jobid):
                    return f"in error: {site.reason(jobid)}"
                is_counted = "gpu=1" in site.job(jobid).get("hard resource_list", "")
                return "waits for it" if is_counted and site.queued(jobid) else None
            outcomes[name] = until(outcome, 60, f"what becomes of a job with it in the {name}") if jobid else f"refused: {' '.join(why.split())[:80]}"
            expect("nvidia" not in outcomes[name], f"a GPU that nobody has granted, by the {name}: {outcomes}")
            if jobid and name != "context":
                site.qdel(jobid)
                until(lambda jobid=jobid: not site.queued(jobid), 30, "its end")
            waiting = waiting or jobid
        expect_equal(outcomes["context"], "waits for it", "a job with it in its context")
        site.qdel(holder)
        site.wait(waiting)
        expect_equal(site.output(waiting).split(), ["nvidia0", "CUDA=0"], "its GPUs, when qmaster has granted one")
    return "; ".join(f"{name}: {what}" for name, what in outcomes.items())


@case
def asked_by_a_shortcut(site):
    """The JSV hears what the user has written: where a complex has a shortcut, the site names both, and 'jobfence check' says so."""
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        wanted = "mem_free has the shortcut mf: a job that asks by it has no limit"
        site.configure("SlotMemory=mem_free:job\n")
        expect_in(wanted, site.command(str(site.jobfence), "check").stdout, "what is missing")
        site.configure("SlotMemory=mem_free:job,mf:job\n")
        expect("shortcut" not in site.command(str(site.jobfence), "check").stdout, "all names are there")
        jobid = site.submit("alice", "sleep 1000", "-l", "mf=90M")
        expect_equal(fenced(site, jobid).parent.memory_limit(), 90 * MIB, "the memory of the job")
        expect_in("mem_free=90M", site.job(jobid)["hard resource_list"], "what qmaster has granted")
        site.end(jobid)
