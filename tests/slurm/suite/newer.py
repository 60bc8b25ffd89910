# SPDX-License-Identifier: GPL-2.0-or-later
"""What only newer releases of Slurm have; elsewhere these cases are skipped."""

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path

from contract import kernel
from contract.harness import (
    IN_VAR, MIB, Skip, allocated, case, ended, expect, expect_equal, expect_in, expect_match, fenced, pid_from, running, started,
)
from contract.sites import until, write_atomically
from ..harness import expect_limits, fences_well
from ..sites import InstalledSite
from .failure import failing


def release(site):
    """(24, 11), as srun says."""
    found = re.search(r"(\d+)\.(\d+)", site.command("srun", "--version").stdout)
    return tuple(map(int, found.groups()))


def since(site, *wanted):
    if release(site) < wanted:
        raise Skip(f"Slurm has this since {wanted[0]}.{wanted[1]:02}")


@contextlib.contextmanager
def beside_slurm_conf(site, name, text):
    """For the time being, a file with this content is where slurm.conf is."""
    if not isinstance(site, InstalledSite):
        raise Skip("needs an installed Slurm")
    path = Path("/etc/slurm") / name
    write_atomically(path, text)
    try:
        yield
    finally:
        path.unlink()


@contextlib.contextmanager
def private_tmp(site, **keys):
    """Each job has a mount namespace of its own, with a /tmp of its own in it."""
    with tempfile.TemporaryDirectory(**IN_VAR, ignore_cleanup_errors=True) as base:
        os.chmod(base, 0o755)
        config = f"AutoBasePath=true\nBasePath={base}\n"
        with (beside_slurm_conf(site, "job_container.conf", config),
              site.reconfigured(JobContainerType="job_container/tmpfs", PrologFlags="Contain", **keys)):
            yield


def mount_namespace(process):
    return os.readlink(f"/proc/{process}/ns/mnt")


def fenced_in_container(site):
    """Jobs of a batch script and of srun; the mount namespaces of a step's tasks, and of the plugin when it attached them."""
    user = site.users[0]
    mark = Path(f"/tmp/jobfence-mark-{time.monotonic_ns()}")
    try:
        with failing(site, "task_post_fork", "where", "step=0") as log:
            jobid = site.submit(user, f"touch {mark}; srun sh -c 'ls {mark}; sleep 300'",
                                "-c1", "--mem=200")
            step = fenced(site, jobid, "step_0")
        batch = fenced(site, jobid)
        until(lambda: str(mark) in site.output(jobid), 10, "the step's output")
        expect(not mark.exists(), "the job's /tmp is the host's: it is in no container")
        tasks = {mount_namespace(pid) for pid in step.members()}
        plugin = expect_match(r"saboteur: task_post_fork runs in (mnt:\S+)", site.log_since(log), "slurmd's log").group(1)
    finally:
        mark.unlink(missing_ok=True)
    for one in (step, step.parent, batch):
        expect_limits(one, 1.0, 200)
    site.end(jobid)
    done = site.srun(user, "-c1", "--mem=100", "sh", "-c", "echo $JOBFENCE_CPUS; exit 3")
    expect_equal((done.returncode, done.stdout), (3, "1\n"), f"srun's end and output ({done.stderr})")
    expect(mount_namespace("self") not in tasks, "the tasks are in the host's mount namespace")
    return tasks, plugin


@case
def private_tmp_of_jobs(site):
    with private_tmp(site):
        _, plugin = fenced_in_container(site)
        expect_equal(plugin, mount_namespace(site.slurmd_pid()), "mount namespace in which tasks are attached")


@case
def plugins_in_the_container(site):
    """contain_spank: tasks are attached by a process that shares the daemon's memory, not its descriptors."""
    since(site, 24, 5)
    with private_tmp(site, SlurmdParameters="contain_spank"):
        tasks, plugin = fenced_in_container(site)
        expect_equal({plugin}, tasks, "mount namespaces in which tasks are attached, and in which they run")


@case
def prolog_in_the_job(site):
    """PrologFlags=RunInJob: the prolog is run by the extern step's daemon, where that is."""
    since(site, 24, 5)
    user = site.users[0]
    ran = Path("/var/tmp") / f"jobfence-prolog-{time.monotonic_ns()}"
    prolog = site.home / "prolog"
    prolog.write_text(f"#!/bin/sh\n(echo $SLURM_JOB_ID; cat /proc/self/cgroup) >>{ran}\n")
    prolog.chmod(0o755)
    try:
        with site.reconfigured(PrologFlags="RunInJob", Prolog=str(prolog)):
            jobid, group = running(site, user, "sleep 300", "-c1", "--mem=100")
            site.expect_limits(group, 1.0, 100)
            ran_for, *lines = ran.read_text().splitlines()
            expect_equal(ran_for, str(jobid), "job whose prolog has run")
            was_in = kernel.paths_by_controller("\n".join(lines))
            extern, = (pid for pid in site.step_daemons(jobid) if "extern" in kernel.command_line(pid))
            expect_equal(was_in, kernel.cgroups_of(extern), "where the prolog ran")
            expect(was_in != kernel.cgroups_of(site.slurmd_pid()), f"the prolog ran where slurmd is: {was_in}")
            site.end(jobid)
    finally:
        ran.unlink(missing_ok=True)


@case
def memory_changes(site):
    """A running job is given less memory (more Slurm refuses): its own limits follow, ours with the next step."""
    since(site, 26, 5)
    user = site.users[0]
    site.configure(MemoryHighPercent="75")
    go = site.directory(user) / "go"
    go.unlink(missing_ok=True)

    # Slurm wants the extern step for that.
    with site.reconfigured(PrologFlags="Contain"):
        # srun would ask for what the job had when it began.
        one = "until [ -e go ]; do sleep 0.1; done; env -u SLURM_MEM_PER_NODE srun sleep 300\n"
        jobid, batch = running(site, user, 2 * one, "-c1", "--mem=200")
        theirs = batch.memory_is_slurms() and kernel.slurm_limits_memory

        def given(mib):
            done = site.command("scontrol", "update", f"jobid={jobid}", f"MinMemoryNode={mib}")
            expect_equal(done.returncode, 0, f"scontrol update ({done.stderr})")
            # Slurm takes no credential of the same second any more: it could be one for more.
            time.sleep(1.1)

        def limited(group, began, now):
            """It has what the job has now where the limit is Slurm's, and its own where not: less could kill it."""
            if theirs:
                until(lambda: group.memory_limit() == now * MIB, 10, f"{now} MiB as memory limit of {group.path}")
            expect_limits(group, 1.0, now if theirs else began)

        def high(group, began, now):
            """Slurm writes memory.high anew, as high as the limit, and nobody is told."""
            wanted = MIB * (now if theirs and now != began else began * 3 / 4)
            # It comes after the limit.
            until(lambda: group.memory_high() == wanted, 10, f"{wanted / MIB} MiB as memory.high of {group.path}")

        def next_step(name, mib):
            go.touch()
            step = fenced(site, jobid, name, timeout=20)
            go.unlink()
            expect_equal(step.memory_limit(), mib * MIB, f"memory limit of {step.path}")
            expect_equal(step.memory_high(), mib * MIB * 3 // 4, f"memory.high of {step.path}")
            return step

        job = batch.parent
        limited(job, 200, 200)
        high(batch, 200, 200)
        given(120)
        limited(job, 200, 120)
        limited(batch, 200, 120)
        high(batch, 200, 120)
        first = next_step("step_0", 120)
        given(110)
        limited(job, 200, 110)
        limited(batch, 200, 110)
        limited(first, 120, 110)
        site.scancel(f"{jobid}.0")
        until(lambda: not first.remains(), 10, f"the end of {first.path}")
        next_step("step_1", 110)
        limited(job, 200, 110)
        site.end(jobid)

        # Where only the extern step is there, which has no process, the job's limit follows with the next step, too.
        done = site.as_user(user, ["salloc", "--no-shell", "-n1", "--mem=200"])
        expect_equal(done.returncode, 0, f"salloc ({done.stderr})")
        jobid = allocated(site, user, expect_match(r"job allocation (\d+)", done.stderr, "salloc")[1])
        where = {"SLURM_SUBMIT_DIR": str(site.directory(user))}
        for number, mib in enumerate((200, 120)):
            if number:
                given(mib)
            with started(site, user, ["srun", f"--jobid={jobid}", "sleep", "300"], env=where) as srun:
                step = fenced(site, jobid, f"step_{number}")
                for one in (step, step.parent) if theirs or not step.memory_is_slurms() else (step,):
                    expect_equal(one.memory_limit(), mib * MIB, f"memory limit of {one.path}")
                site.scancel(f"{jobid}.{number}")
                ended(srun)
            until(lambda: not step.remains(), 10, f"the end of {step.path}")
        site.end(jobid)
        fences_well(site, user)


@case
def waits_for_children(site):
    """srun --wait-for-children sees a task's children only where it left them."""
    help = site.command("srun", "--help").stdout
    if "--wait-for-children" not in help:
        raise Skip("this srun has no --wait-for-children")
    shown = site.command("scontrol", "show", "config").stdout
    if not re.search(r"^ProctrackType\s*=\s*proctrack/cgroup", shown, re.M):
        raise Skip("only proctrack/cgroup can wait for them")

    user = site.users[0]
    parent, go = (site.directory(user) / f"parent.{name}" for name in ("pid", "go"))
    script = "echo $$ >parent.pid; (until [ -e parent.go ]; do sleep 0.1; done; echo child is done) & echo task is done"

    def seen(*options):
        for file in parent, go:
            file.unlink(missing_ok=True)
        with started(site, user, ["srun", "-c1", "--mem=100", *options, "sh", "-c", script]) as srun:
            pid = pid_from(parent, 30)
            until(lambda: not kernel.is_alive(pid), 20, "the end of the task")
            # A child for which srun should not wait has nothing to say before srun has ended.
            if options:
                go.touch()
            try:
                # Slurm gives up what a child holds open after a minute: before that.
                status, said, errors = ended(srun, 15)
            finally:
                go.touch()
        expect_equal(status, 0, f"srun ({errors})")
        return said

    def seen_both():
        return {"asked to": seen("--wait-for-children"), "not asked to": seen()}

    fenced_ones = seen_both()
    with site.unplugged():
        slurms_alone = seen_both()
    expect_equal(fenced_ones, slurms_alone, "output of srun that is asked to wait or not, with jobfence")
    expect_in("child is done", slurms_alone["asked to"], "srun's output")
    expect("child is done" not in slurms_alone["not asked to"], "srun waits for children without being asked to")
