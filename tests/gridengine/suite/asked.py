# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job reads of its fence, what its user asks for, and which GPUs it has."""

import contextlib

from pbs.gpus import SHOW_GPUS, gpus_of_the_node
from slurm.harness import MIB, Skip, case, expect, expect_equal, expect_in, expect_match
from slurm.sites import until

from ..harness import ask, expect_limits, fenced
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
    names = "GOMAXPROCS", "JOBFENCE_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"
    ours = [f"{name}=1" for name in names]
    expect_equal(threads_told(site, 1), ours, "threads with a quota of one CPU of two")
    expect_equal(threads_told(site, 1, "-v", "OMP_NUM_THREADS=4"), ["OMP_NUM_THREADS=4"], "threads of a user who says how many")
    # As 'qsub -V' has it in a job that was told.
    inherited = ",".join(f"{name}=4" for name in names)
    expect_equal(threads_told(site, 1, "-v", inherited), ours, "threads of a job that another has submitted")
    expect_equal(threads_told(site, 1, "-binding", "linear:1"), [], "threads of a job that is bound")
    site.configure("ThreadHints=no\n")
    expect_equal(threads_told(site, 1), [], "threads with ThreadHints=no")


@case
def asks_for_less(site):
    """A variable of qsub -v lowers a limit, and raises none; one that is wrong is said."""
    site.configure("MaxProcesses=90\n")
    for count, allowed in (60, 60), (100, 90):
        given = f"JOBFENCE_CPU_LIMIT=0.5,JOBFENCE_PIDS_MAX={count}"
        jobid = site.submit("alice", "sleep 1000", "-v", given, *ask(2, 200))
        group = fenced(site, jobid)
        expect_limits(group.parent, 0.5, 200)
        expect_equal(group.processes_limit(), allowed, "processes")
        site.qdel(jobid)
        site.wait(jobid)
    reason = refused(site, "touch ran.$JOB_ID", "-v", "JOBFENCE_CPU_LIMIT=half")
    expect_in("JOBFENCE_CPU_LIMIT: found \"half\", expected a number of CPUs", reason, "the reason")


@case
def usage_card(site):
    """The file of the job's errors ends with a card, if the site or the user wants one."""
    jobid = site.submit("alice", "sleep 1; exit 3", "-v", "JOBFENCE_USAGE_CARD=always", "-l", "h_rt=0:10:0", *ask(1, 100))
    site.wait(jobid)
    card = until(lambda: site.told(jobid), 10, "a card")
    expect_match(rf"jobfence: job {jobid}: status 3, \d s, .*memory \d+ % of 100\.0 MiB", card, "the card")
    site.configure("UsageCard=failed\n")
    for script, is_there in ("exit 0", False), ("exit 1", True):
        jobid = site.submit("alice", script)
        site.wait(jobid)
        expect_equal(f"jobfence: job {jobid}: status 1" in site.told(jobid), is_there, f"a card of '{script}'")


@case
def gpus(site):
    """Each job can open the GPUs that it asked for, and no other, and CUDA is told so."""
    complexes = site.command("qconf", "-sc").stdout + "gpu gpu INT <= YES YES 0 0\n"
    with complexes_of(site, complexes), contextlib.ExitStack() as ends:
        ends.callback(site.command, "qconf", "-dattr", "exechost", "complex_values", "gpu=3", site.node)
        with gpus_of_the_node((0, 1)) as top, site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
            if site.as_user("alice", ["sh", "-c", f": <{top}/nvidia0 && : <{top}/nvidia1"]).returncode != 0:
                raise Skip("this machine has no two devices that a user can open")
            site.qconf("-aattr", "exechost", "complex_values", "gpu=3", site.node)
            site.configure(f"SlotGPUs=gpu\nGPUDevice={top}/nvidia%d\nConstrainDevices=yes\n")
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
                site.qdel(jobid)
                site.wait(jobid)
            both = site.submit("alice", script, "-l", "gpu=1", "-pe", "smp", "2")
            site.wait(both)
            expect_equal(site.output(both).split(), ["nvidia0", "nvidia1", "CUDA=0,1"], "a GPU for each slot")
