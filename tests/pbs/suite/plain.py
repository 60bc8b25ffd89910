# SPDX-License-Identifier: GPL-2.0-or-later
"""OpenPBS without jobfence: what the other cases take for granted."""

from contract import kernel
from contract.harness import case, expect, expect_equal, expect_in, expect_unfenced
from contract.sites import until

from ..harness import ask, unfenced


@unfenced
@case(layout=False)
def plain_job(site):
    """A job runs, its output arrives, and the server knows how it ended."""
    jobid = site.submit("alice", "id -un; echo to stderr >&2", ask(1, 100))
    job = site.wait(jobid)
    expect_equal(job["Exit_status"], "0", "Exit_status")
    expect_equal(site.output(jobid), "alice\n", "its output")
    expect_in("to stderr", site.told(jobid), "its stderr")


@unfenced
@case(layout=False)
def plain_suspend(site):
    """qsig stops the job's session and lets it go on. It is in no fence."""
    jobid = site.submit("alice", "sleep 1000", ask(1, 100))
    site.wait_running(jobid)
    sleeper, = until(lambda: site.job_pids(jobid, "sleep 1000"), 10, "the job's process")
    expect_unfenced(sleeper)
    site.qsig(jobid, "suspend")
    site.wait_state(jobid, "S")
    until(lambda: kernel.stat_fields(sleeper)[0] == "T", 10, "a stopped process")
    site.qsig(jobid, "resume")
    site.wait_running(jobid)
    until(lambda: kernel.stat_fields(sleeper)[0] == "S", 10, "a process that goes on")
    site.end(jobid)
    expect(not kernel.is_alive(sleeper), "the process is alive after qdel")
