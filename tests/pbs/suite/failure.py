# SPDX-License-Identifier: GPL-2.0-or-later
"""What cannot be fenced does not run, its reason is said, and the node takes other jobs."""

import time

from slurm.harness import case, expect, expect_equal, expect_in, logged
from slurm.sites import until

from ..harness import RAN, ask, fenced, free


def not_started(site, jobid, mark, reason):
    """The job waits in its queue, the reason is in MoM's log, and the node is free."""
    said = logged(site, mark, reason, 20)
    until(lambda: site.state(jobid) in ("Q", "H"), 20, "a job that waits")
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "the job's script has run")
    comment = site.job(jobid).get("comment", "")
    free(site)
    return f"{said[0]}; comment: {comment}"


def then_it_runs(site, jobid):
    """Once the mistake is mended, the same job runs; the server may have given it up until then."""
    site.command("qrls", "-h", "s", jobid)
    until(lambda: (site.directory("alice") / f"ran.{jobid}").exists(), 60, "the job to run at last")
    fenced(site, jobid)


@case
def bad_configuration(site):
    """A mistake in jobfence.conf: no job starts until it is mended."""
    lines = site.configure_raw("MaxProcesses=many\n")
    mark = site.log_mark()
    jobid = site.submit("alice", f"{RAN}; sleep 1000", ask(1, 100))
    said = not_started(site, jobid, mark, rf"jobfence: [^\n]*{site.config}:{lines + 1}[^\n]*MaxProcesses[^\n]*")
    site.configure()
    then_it_runs(site, jobid)
    return said


@case(layout=False)
def node_set_offline(site):
    """Where the site wants it: a host that can fence no job is set offline, once, with the reason, and the job waits without a hold."""
    site.qmgr(f"set node {site.node} comment = 'rack 3'")
    site.configure_hook(**site.hook_settings(), OfflineNode="yes")
    lines = site.configure_raw("MaxProcesses=many\n")
    try:
        jobs = [site.submit("alice", f"{RAN}; sleep 1000", ask(1, 100)) for _ in range(2)]
        until(lambda: site.node_state() == "offline", 30, "a node that is set offline")
        comment = site.node_attributes()["comment"]
        expect(comment.startswith("rack 3 jobfence: no job can be fenced here: ") and f"{site.config}:{lines + 1}" in comment, comment)
        until(lambda: {site.state(job) for job in jobs} == {"Q"}, 20, "jobs that wait")
        expect_in("no job can be fenced here", site.node_attributes()["comment"], "the comment")
        site.configure()
        # Nobody but the administrator brings it back.
        time.sleep(6)
        expect_equal((site.node_state(), {site.state(job) for job in jobs}), ("offline", {"Q"}), "the node and the jobs")
    finally:
        site.configure()
        site.configure_hook(**site.hook_settings())
        site.command("pbsnodes", "-r", site.node, "-C", "")
    until(lambda: any((site.directory("alice") / f"ran.{job}").exists() for job in jobs), 60, "a job that runs at last")
    expect("comment" not in site.node_attributes(), "the comment is still there")
    return comment


@case(layout=False)
def bad_hook_configuration(site):
    """A mistake in the hook's own configuration."""
    site.configure_hook(**site.hook_settings(), Libary="x")
    mark = site.log_mark()
    jobid = site.submit("alice", f"{RAN}; sleep 1000", ask(1, 100))
    said = not_started(site, jobid, mark, r"jobfence: [^\n]*found Libary=x[^\n]*")
    site.configure_hook(**site.hook_settings())
    then_it_runs(site, jobid)
    return said


@case(layout=False)
def no_library(site):
    """The library is not where the configuration says."""
    site.configure_hook(**{**site.hook_settings(), "Library": "/nonexistent/libjobfence.so"})
    mark = site.log_mark()
    jobid = site.submit("alice", f"{RAN}; sleep 1000", ask(1, 100))
    said = not_started(site, jobid, mark, r"jobfence: [^\n]*cannot load /nonexistent/libjobfence.so[^\n]*")
    expect_in("cannot load", said, "the reason")
    site.configure_hook(**site.hook_settings())
    then_it_runs(site, jobid)
