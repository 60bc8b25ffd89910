# SPDX-License-Identifier: GPL-2.0-or-later
"""The hook is turned off or removed."""

from contract.harness import case, expect, expect_equal, expect_gone, expect_unfenced, running
from contract.kernel import Group
from contract.sites import until

from ..harness import ask


@case
def hook_is_removed(site):
    """Without the hook a job is what it was before jobfence, and nothing is left of it."""
    jobid, group = running(site, "alice", "sleep 1000", ask(1, 100))
    site.end(jobid)
    expect_gone(group.parent)
    site.remove_hook()
    jobid = site.submit("alice", "sleep 1000", ask(1, 100))
    pid = until(lambda: site.job_pids(jobid, "sleep 1000"), 15, "the job's process")[0]
    expect_unfenced(pid)
    expect(not site.leftovers(), f"left behind: {site.leftovers()}")


@case(layout=False)
def hook_is_disabled_meanwhile(site):
    """A job that began in a fence ends well when the hook is off. What is left of the fence goes when the hook is on again."""
    jobid, group = running(site, "alice", "sleep 3; echo done", ask(1, 100))
    site.qmgr("set hook jobfence enabled = false")
    job = site.wait(jobid)
    expect_equal((job["Exit_status"], site.output(jobid)), ("0", "done\n"), "Exit_status and output")
    left = [str(path) for path in group.directories()]
    site.qmgr("set hook jobfence enabled = true")
    done = site.submit("alice", "true", ask(1, 100))
    site.wait(done)
    # The janitor asks MoM's spool: after ten minutes the job counts as gone. By hand it goes at once.
    closed = site.command(str(site.jobfence), "close", "--config", str(site.config), "--job", jobid)
    expect_equal((closed.returncode, closed.stderr), (0, ""), "jobfence close")
    expect_gone(group.parent)
    return f"left until then: {len(left)} directories of {Group.__name__.lower()} {group.name}"
