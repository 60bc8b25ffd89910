# SPDX-License-Identifier: GPL-2.0-or-later
"""The user's side: what a job sees, and cannot change."""

from contract.harness import MIB, PYTHON, case, expect, expect_equal, expect_in, fenced
from contract.sites import until


FORGED = {
    "SLURM_JOB_CPUS_PER_NODE": "64", "SLURM_CPUS_ON_NODE": "64", "JOBFENCE_CPUS": "64",
    "JOBFENCE_MEMORY_BYTES": str(1 << 40), "JOBFENCE_CGROUP": "/",
}


@case(layout=False)
def forged_environment(site):
    forged = " ".join(f"{k}={v}" for k, v in FORGED.items())
    jobid = site.submit(site.users[0], f"""
        echo batch $JOBFENCE_CPUS $JOBFENCE_MEMORY_BYTES
        {forged} srun -n1 bash -c 'echo step $JOBFENCE_CPUS $JOBFENCE_MEMORY_BYTES; sleep 300'
        """, "-c1", "--mem=200", env=FORGED)
    step = fenced(site, jobid, "step_0")
    site.expect_limits(step, 1.0, 200)
    until(lambda: "step " in site.output(jobid), 5, "the step's output")
    expect_equal(site.output(jobid), f"batch 1 {200 * MIB}\nstep 1 {200 * MIB}\n",
                 "the variables of job and step")
    site.scancel(jobid)


@case(layout=False)
def export_none(site):
    user = site.users[0]
    # NONE makes Slurm read a log-in environment, which some accounts do not have; NIL not.
    for value in ("NONE", "NIL"):
        jobid = site.submit(user, "cat /proc/self/cgroup; echo cpus=$JOBFENCE_CPUS",
                            "-c1", "--mem=100", f"--export={value}")
        expect_equal(site.wait(jobid), "COMPLETED", f"state with --export={value}")
        expect_in("/step_batch", site.output(jobid), "the job's cgroup")
        expect_in("cpus=1\n", site.output(jobid), "the job's environment")


@case(layout=False)
def stderr_clean(site):
    jobid = site.submit(site.users[0], "echo out\necho err >&2", "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    until(lambda: not site.step_daemons(jobid), 5, "the end of the step daemon")
    expect_equal(site.output(jobid), "out\nerr\n", "the job's output")


@case(layout=False)
def stdout_protocol(site):
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    done = site.srun(site.users[0], "--mem=100", PYTHON, "-S", "-c", program, text=False)
    expect_equal(done.returncode, 0, "srun's exit code")
    expect(done.stdout == bytes(range(256)) * 1000, "srun's output is not the program's")
    expect_equal(done.stderr, b"", "srun's stderr")
    done = site.srun(site.users[0], "--mem=100", "bash", "-c", "exit 7")
    expect_equal(done.returncode, 7, "srun's exit code")


@case
def descriptors(site):
    """No handle on a cgroup or on a record passes to the user's program."""
    bad = ("/sys/fs/cgroup", "cgroup.", str(site.run_directory()))
    jobid = site.submit(site.users[0], "ls -l /proc/$$/fd /proc/self/fd", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    done = site.srun(site.users[0], "--mem=100", "ls", "-l", "/proc/self/fd")
    for said in (site.output(jobid), done.stdout):
        expect_in(" -> ", said, "the list of descriptors")
        for line in said.splitlines():
            expect(not any(part in line for part in bad), f"open in the job: {line}")
