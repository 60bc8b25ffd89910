# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job is limited to is what the server has granted."""

import os
import re

from contract import kernel
from contract.harness import EAT, MIB, PYTHON, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, running
from contract.sites import until

from ..harness import ask, expect_as_granted
from ..sites import granted, kib_of, run, seconds_of


@case
def several_chunks(site):
    """The chunks that are on one host are one grant."""
    jobid, group = running(site, "alice", "sleep 1000", "-lselect=2:ncpus=1:mem=50mb")
    expect_equal(granted(site.job(jobid)), {site.node: (2, 100 * 1024)}, "what PBS has granted")
    expect_as_granted(site, jobid, group)


@case
def cores_of_its_own(site):
    """With ConstrainCores each job runs on as many CPUs as it was granted, and on no other job's."""
    site.configure(ConstrainCores="yes")
    jobs = [site.submit("alice", "sleep 1000", ask(1, 50)) for _ in range(2)]
    groups = [fenced(site, jobid) for jobid in jobs]
    allowed = [os.sched_getaffinity(min(group.members())) for group in groups]
    expect_equal([len(one) for one in allowed], [1, 1], f"the CPUs of each: {allowed}")
    expect(allowed[0] != allowed[1], f"both jobs run on {allowed[0]}")
    site.end(*jobs)
    site.configure()


@case(layout=False)
def nothing_asked(site):
    """A job that asks for nothing gets the server's default of one CPU, and no limit of memory."""
    jobid, group = running(site, "alice", "sleep 1000")
    expect_equal(granted(site.job(jobid)), {site.node: (1, 0)}, "what PBS has granted")
    expect_equal(group.parent.cpu_limit(), 1.0, "CPU limit")
    expect_equal(group.parent.memory_limit(), None, "memory limit")


@case
def zero_cpus(site):
    """A job that asks for no CPU gets what the configuration says, and the memory that it was granted."""
    site.configure(ZeroCPUs="0.1")
    jobid, group = running(site, "alice", "sleep 1000", "-lselect=1:ncpus=0:mem=50mb")
    cpus, kib = granted(site.job(jobid))[site.node]
    expect_equal(cpus, 0, "CPUs that PBS has granted")
    expect_equal(group.parent.memory_limit(), kib * 1024, "memory limit")
    expect_equal(group.parent.cpu_limit(), 0.1, "CPU limit")


@case
def card(site):
    """The job's output ends with what it has used of what it was granted, and PBS's own figures are the same."""
    site.configure(UsageCard="always")
    script = f"{PYTHON} -S -c 'import time; b = b\"x\" * (60 << 20)\nwhile time.process_time() < 3: pass'; sleep 60"
    jobid = site.submit("alice", script, ask(2, 100), "-lwalltime=0:10:00")
    job = site.wait(jobid, 120)
    said = site.told(jobid)
    cput, wall = seconds_of(job["resources_used.cput"]), seconds_of(job["resources_used.walltime"])
    expect_equal(job["Exit_status"], "0", f"Exit_status of the job that said {said!r}")
    expect_match(rf"jobfence: job {re.escape(jobid)} \(STDIN\) on {os.uname().nodename} completed after 1 min", said, "its stderr")
    found = expect_match(r"CPU .* (\d+\.\d+) of 2 CPUs on average", said, "its stderr")
    expect(abs(float(found[1]) - cput / wall) <= 0.03, f"{found[1]} CPUs, but cput {cput} s in {wall} s")
    found = expect_match(r"memory .* peak ([\d.]+) MiB of ([\d.]+) MiB", said, "its stderr")
    peak, limit = kib_of(job["resources_used.mem"]) / 1024, granted(job)[site.node][1] / 1024
    expect(abs(float(found[1]) - peak) <= 1 and abs(float(found[2]) - limit) <= 0.1, f"{said}\nbut mem is {peak} MiB")
    expect_match(r"time .* 1 min \d+ s of 10 min 0 s", said, "its stderr")
    # It has slept most of the time on two CPUs.
    expect_match(r"ncpus=1 in -l select +0\.\d+ of 2 CPUs", said, "its stderr")
    return said


@case(layout=False)
def joined_output(site):
    """With qsub -j oe the sentence is in the output, where the job's stderr went."""
    jobid = site.submit("alice", f"{EAT}; sleep 1", ask(1, 100), "-joe")
    site.wait(jobid)
    expect_match(r"jobfence: job \S+ step 1: process \d+ \(python3\) was killed", site.output(jobid), "its output")


@case(layout=False)
def whole_host(site):
    """A job that has the host for itself has no quota, and the memory that it was granted."""
    jobid, group = running(site, "alice", "sleep 1000", ask(1, 100), "-lplace=exclhost")
    cpus, kib = granted(site.job(jobid))[site.node]
    expect_equal((group.parent.cpu_limit(), group.parent.memory_limit()), (None, kib * 1024), f"limits of a job with {cpus} CPU")


@case
def children_count(site):
    """What processes of a step use counts in the job's directory, which has none of its own."""
    jobid = site.submit("alice", f"exec {PYTHON} -S -c 'import time; b = b\"x\" * (40 << 20); time.sleep(1000)'", ask(1, 100))
    job = fenced(site, jobid).parent

    def used():
        return int(job.file("memory", "memory.current", "memory.usage_in_bytes"))
    until(lambda: used() >= 40 * MIB, 20, "40 MiB in the job's directory")
    hierarchical = job.file("memory", None, "memory.use_hierarchy")
    expect(hierarchical in ("", "1"), f"memory.use_hierarchy is {hierarchical}")


@case(on=("private",))
def mounted_twice(site):
    """Where cgroups are mounted twice, those below CgroupMountpoint count."""
    second = site.top / "second"
    second.mkdir()
    run("mount", "--rbind", "/sys/fs/cgroup", second)
    try:
        for keys in {}, {"CgroupMountpoint": second}:
            site.configure(**keys)
            jobid = site.submit("alice", "sleep 1000", ask(1, 100))
            expect_as_granted(site, jobid, fenced(site, jobid))
            says = site.command(str(site.jobfence), "check", "--config", str(site.config)).stdout
            wanted = keys.get("CgroupMountpoint", "/sys/fs/cgroup")
            expect_match(rf"(?m)^\S.* {re.escape(str(wanted))}", says, "'jobfence check'")
            site.end(jobid)
    finally:
        run("umount", "-R", "-l", second)


@case(on=("installed",))
def excluded_cpus(site):
    """CPUs that the slice may not use are counted by no host and used by no job."""
    if not kernel.has_v2_controllers() or os.cpu_count() < 2:
        raise Skip("needs cgroup v2 and two CPUs")

    def allow(cpus):
        run("systemctl", "set-property", "--runtime", "jobfence.slice", f"AllowedCPUs={cpus}")
    allow("0")
    try:
        said = site.command("jobfence", "host", "--pbs").stdout
        expect_match(r"resources_available.ncpus = 1\n", said, "'jobfence host'")
        jobid = site.submit("alice", "grep Cpus_allowed_list /proc/self/status", ask(1, 100))
        expect_equal(site.wait(jobid)["Exit_status"], "0", "Exit_status")
        expect_match(r"Cpus_allowed_list:\s+0\n", site.output(jobid), "the CPUs of a job")
    finally:
        allow("")


@case(on=("private",))
def names_that_the_server_knows(site):
    """'jobfence check' asks the server for the queues that sections name; an account is its user's word for explain, too."""
    site.configure_raw("MaxProcesses=300\n[Queue=workq,worq]\nMaxProcesses=9\n[Account=lab]\nMaxProcesses=44\n[Project=x]\nMaxProcesses=55\n")
    said = site.ours("check")[1]
    expect_equal(re.findall(r"(?m)^section +(.*: there is no .*)$", said), ["[Queue=workq,worq]: there is no partition or queue worq; did you mean workq?"],
                 "the names that are not there")
    status, said = site.ours("explain", "--cpus", "1", "--account", "other", "--project", "y", "--partition", "other", "--user", "alice")
    expect_equal(status, 0, f"exit status of explain: {said}")
    expect_in("account unknown (other, as its user says)", said, "explain")
    expect_match(r"/pids.max = 44\n", said, "explain")
    site.configure()
