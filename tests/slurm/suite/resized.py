# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that get more or less than they were granted while they run."""

from contract import kernel
from contract.harness import MIB, Skip, case, expect, expect_equal, expect_in, fenced, running
from contract.sites import until
from .memory import READ, hold

# A step each time when it is told to.
STEPS = "for i in 0 1 2; do while [ ! -e go.$SLURM_JOB_ID.$i ]; do sleep 0.1; done; srun --overlap --mem=0 sleep 1000 & done; wait"


def resize(site, jobid, *words):
    return site.command(str(site.jobfence), "resize", str(jobid), *words, "--config", str(site.config))


@case
def resized(site):
    """Its job and all its steps get more and less, and so do later steps, of which Slurm says what was granted. Slurm's own limits stay."""
    user = site.users[0]
    jobid, batch = running(site, user, STEPS, "-n1", "-c1", "--mem=200")
    steps = [batch]
    # Where Slurm has a directory for the job, jobfence limits only the steps below it, or Slurm itself limits memory.
    is_theirs = batch.memory_is_slurms()
    for number, (cpus, mib) in enumerate(((2, 400), (0.5, 120), (1.5, 300))):
        words = ["--cpus", str(cpus)]
        if is_theirs and kernel.slurm_limits_memory:
            mib = 200
            done = resize(site, jobid, *words, "--memory", "400M")
            expect_equal(done.returncode, 1, "its status where Slurm limits memory")
            expect_in("MinMemoryNode", done.stderr, "what it says of memory that Slurm limits")
        else:
            words += ["--memory", f"{mib}M"]
        done = resize(site, jobid, *words)
        expect_equal((done.returncode, done.stdout, done.stderr), (0, "", ""), f"'jobfence resize {' '.join(words)}'")
        (site.directory(user) / f"go.{jobid}.{number}").touch()
        steps.append(fenced(site, jobid, f"step_{number}"))
        until(lambda number=number: len(site.job_pids(jobid, "sleep")) > number, 60, "the new step's process")
        for group in steps if is_theirs is False or kernel.slurm_limits_memory else steps[:-1]:
            site.expect_limits(group, cpus, mib)
        expect_equal(steps[-1].cpu_limit(), cpus, "CPUs of the step that has begun since")
    shown = site.command(str(site.jobfence), "show", str(jobid), "--config", str(site.config))
    expect_in("from 1 CPU to 1.5 CPUs", shown.stdout, "what 'jobfence show' says of the change")
    # A step alone has no more than its job.
    done = resize(site, jobid, "--step", "0", "--cpus", "8")
    expect_equal((done.returncode, done.stderr), (0, ""), "status and stderr of 'jobfence resize' of a step")
    expect_equal(steps[1].cpu_limit(), 1.5, "CPUs of the step")
    expect(kernel.is_alive(site.job_pids(jobid, "sleep")[0]), "a process has ended")
    site.end(jobid)
    until(lambda: not batch.parent.remains(), 60, f"the end of {batch.parent.path}")


@case
def resized_memory_in_use(site):
    """What programs use is not taken, and no process is killed. Page cache is taken back."""
    user = site.users[0]
    jobid, group = running(site, user, hold(100), "-c1", "--mem=200")
    if group.memory_is_slurms():
        site.end(jobid)
        raise Skip("Slurm's own directory holds the limit of memory")
    until(lambda: "holds" in site.output(jobid), 120, "its memory")
    done = resize(site, jobid, "--cpus", "2", "--memory", "60M")
    expect_equal(done.returncode, 1, "its status where memory is in use")
    expect_in("of memory are in use and cannot be taken back", done.stderr, "what it says of memory in use")
    site.expect_limits(group, 1.0, 200)
    done = resize(site, jobid, "--memory", "150M")
    expect_equal((done.returncode, done.stderr), (0, ""), "status and stderr where there is room")
    site.expect_limits(group, 1.0, 150)
    expect_equal(group.oom_kills(), 0, "processes that were killed")
    site.end(jobid)

    jobid, group = running(site, user, f"{READ.format(mib=150)}; echo has read; sleep 1000", "-c1", "--mem=200")
    until(lambda: "has read" in site.output(jobid), 120, "its page cache")
    before = in_use(group)
    expect(before > 120 * MIB, f"its page cache is {before / MIB:.1f} MiB")
    done = resize(site, jobid, "--memory", "60M")
    expect_equal((done.returncode, done.stderr), (0, ""), "status and stderr where page cache is in the way")
    site.expect_limits(group, 1.0, 60)
    expect(in_use(group) <= 60 * MIB, f"{in_use(group)} bytes are in use")
    expect_equal(group.memory_high(), None, "the limit from which on it is slowed")
    expect_equal(group.oom_kills(), 0, "processes that were killed")
    site.end(jobid)


def in_use(group):
    return int(group.file("memory", "memory.current", "memory.usage_in_bytes"))
