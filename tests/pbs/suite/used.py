# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job has used is not lost when the server, MoM or the job itself begins anew."""

from contract import sites
from contract.harness import PYTHON, case, expect, expect_equal
from contract.sites import until

from ..harness import ask, fenced, frequent
from ..sites import EXEC, kib_of, seconds_of
from .hosts import BOTH, FIRST_THERE, groups_of

MEMORY = "memory", "memory.peak", "memory.max_usage_in_bytes"


def burn(seconds, mib=1):
    """A command that uses so much CPU time and memory, and ends."""
    return f"{PYTHON} -S -c 'import time; b = b\"x\" * ({mib} << 20)\nwhile time.process_time() < {seconds}: pass'"


def wait_for(name):
    return f"while [ ! -e {name} ]; do sleep 0.2; done; rm {name}"


def cput(site, jobid):
    return seconds_of(site.job(jobid).get("resources_used.cput", "00:00:00"))


def says_what_the_kernel_counts(site, jobid, *groups, least=0):
    """Wait until the server says of a running job what the kernel has counted in these groups, and return that."""
    def is_so():
        counted = sum(group.cpu_seconds() for group in groups)
        return counted if counted >= least and abs(cput(site, jobid) - counted) <= 1 + len(groups) else None
    try:
        return until(is_so, 40, "it")
    except AssertionError:
        counted = [round(group.cpu_seconds(), 2) for group in groups]
        raise AssertionError(f"the server says cput={cput(site, jobid)}, and the kernel has counted {counted}") from None


def expect_used(job, counted, more=0):
    """At its end a job has used what the kernel counted while it ran, and what it may have used since then."""
    found = seconds_of(job["resources_used.cput"])
    expect(counted - 1 <= found <= counted + more + 1 + sites.PATIENCE,
           f"resources_used.cput is {found} s at the end. The kernel had counted {counted:.2f} s, and up to {more} s followed")


def goes_on(site, name):
    (site.directory("alice") / name).touch()


def begun(site, seconds=3):
    """A job that uses so many seconds, waits, and uses as many once more."""
    for name in "first", "second":
        (site.directory("alice") / name).unlink(missing_ok=True)
    half = burn(seconds)
    jobid = site.submit("alice", f"{half}; {wait_for('first')}; {half}; {wait_for('second')}", ask(1, 100))
    return jobid, fenced(site, jobid).parent


def is_counted_to_its_end(site, jobid, job):
    """The second half of such a job, with what it used before."""
    goes_on(site, "first")
    counted = says_what_the_kernel_counts(site, jobid, job, least=6)
    goes_on(site, "second")
    expect_used(site.wait(jobid), counted)
    return f"cput {counted:.1f} s"


@case(layout=False)
def used_over_a_restart_of_the_server(site):
    """The server ends and comes back while a job runs."""
    with frequent(site):
        jobid, job = begun(site)
        before = says_what_the_kernel_counts(site, jobid, job, least=3)
        site.restart_server()
        site.wait_running(jobid)
        until(lambda: cput(site, jobid) >= before - 1, 30, f"cput={before:.1f} s, as before the restart")
        return is_counted_to_its_end(site, jobid, job)


@case(layout=False)
def used_while_there_is_no_mom(site):
    """What a job uses between two MoMs counts."""
    with frequent(site):
        jobid, job = begun(site)
        before = says_what_the_kernel_counts(site, jobid, job, least=3)
        site.kill_mom()
        goes_on(site, "first")
        until(lambda: job.cpu_seconds() >= before + 3, 20, "CPU time without MoM")
        site.start_mom("-p")
        site.wait_running(jobid)
        counted = says_what_the_kernel_counts(site, jobid, job, least=6)
        goes_on(site, "second")
        expect_used(site.wait(jobid), counted)
        return f"cput {before:.1f} s before, {counted:.1f} s after"


@case(layout=False)
def used_by_each_run(site):
    """A job that runs again has used what its last run has used."""
    with frequent(site):
        jobid, job = begun(site)
        first = says_what_the_kernel_counts(site, jobid, job, least=3)
        done = site.command("qrerun", jobid)
        expect_equal((done.returncode, done.stderr), (0, ""), "qrerun")
        until(lambda: site.job(jobid).get("run_count") == "2", 30, "the second run")
        job = fenced(site, jobid).parent
        second = says_what_the_kernel_counts(site, jobid, job, least=3)
        expect(second < first + 2, f"the second run has used {second:.1f} s, and the first one {first:.1f} s")
        return is_counted_to_its_end(site, jobid, job)


@case(layout=False)
def used_by_jobs_of_an_array(site):
    """Each job of an array has used what it has used, and no other one's."""
    array = site.submit("alice", f"{burn(2)}\n[ $PBS_ARRAY_INDEX = 0 ] || {burn(3)}", "-J0-1", ask(1, 64))
    number, server = array.split(".", 1)
    site.wait(array, 120)
    for index, seconds in (0, 2), (1, 5):
        job = site.job(f"{number.replace('[]', f'[{index}]')}.{server}")
        found = seconds_of(job["resources_used.cput"])
        expect(seconds <= found <= seconds + 2 * sites.PATIENCE, f"job {index} has used {found} s, and should have used {seconds}")


@case(on=("hosts",))
def used_on_both_hosts(site):
    """cput and mem are what the hosts' kernels have counted, added up, while the job runs and at its end."""
    for node in "node1", "node2":
        (site.directory("alice") / f"go.{node}").unlink(missing_ok=True)
    task = site.directory("alice") / "task.sh"
    task.write_text(f"#!/bin/sh\ncd {site.directory('alice')}\n"
                    f"if [ $(hostname) = node1 ]; then {burn(2, 20)}; else {burn(5, 30)}; fi\n"
                    f"{wait_for('go.$(hostname)')}\n")
    task.chmod(0o755)
    with frequent(site):
        jobid = site.submit("alice", f"{EXEC}/bin/pbsdsh -- {task}", *BOTH)
        groups = groups_of(site, jobid, {"node1": "step_2", "node2": FIRST_THERE})
        jobs = [group.parent for group in groups.values()]
        counted = says_what_the_kernel_counts(site, jobid, *jobs, least=7)
        running = site.job(jobid)
        peaks = sum(int(job.file(*MEMORY)) for job in jobs) >> 10
        for node in groups:
            goes_on(site, f"go.{node}")
        job = site.wait(jobid)
    expect_used(job, counted, 1)
    for when, found in ("while it runs", running), ("at its end", job):
        kib = kib_of(found["resources_used.mem"])
        expect(peaks * 0.8 <= kib <= peaks * 1.2 + 4096, f"mem {when} is {kib} KiB, and the peaks of the hosts are {peaks} KiB")
    share = int(job["resources_used.cpupercent"]) / 100 * seconds_of(job["resources_used.walltime"])
    expect(counted * 0.6 <= share <= counted * 1.4 + 2, f"cpupercent means {share:.1f} s of CPU time, and it was {counted:.1f} s")
    return f"cput {job['resources_used.cput']} of {counted:.1f} s, mem {job['resources_used.mem']} of {peaks}kb, {share:.1f} s by cpupercent"

