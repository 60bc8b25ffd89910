# SPDX-License-Identifier: GPL-2.0-or-later
"""What cannot be fenced does not run, its reason is said, and the node takes other jobs."""

import os
import time

from contract.harness import HAS_RUN, case, expect, expect_equal, expect_in, fenced, logged
from contract.sites import until

from ..harness import ask, free, frequent
from ..sites import run


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


@case(layout=False)
def node_set_offline(site):
    """Where the site wants it: a host that can fence no job is set offline, once, with the reason, and the job waits without a hold."""
    site.qmgr(f"set node {site.node} comment = 'rack 3'")
    site.configure_hook(**site.hook_settings(), OfflineNode="yes")
    lines = site.configure_raw("MaxProcesses=many\n")
    try:
        jobs = [site.submit("alice", f"{HAS_RUN}; sleep 1000", ask(1, 100)) for _ in range(2)]
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
    jobid = site.submit("alice", f"{HAS_RUN}; sleep 1000", ask(1, 100))
    said = not_started(site, jobid, mark, r"jobfence: [^\n]*found Libary=x[^\n]*")
    site.configure_hook(**site.hook_settings())
    then_it_runs(site, jobid)
    return said


@case(layout=False)
def no_library(site):
    """The library is not where the configuration says."""
    site.configure_hook(**{**site.hook_settings(), "Library": "/nonexistent/libjobfence.so"})
    mark = site.log_mark()
    jobid = site.submit("alice", f"{HAS_RUN}; sleep 1000", ask(1, 100))
    said = not_started(site, jobid, mark, r"jobfence: [^\n]*cannot load /nonexistent/libjobfence.so[^\n]*")
    expect_in("cannot load", said, "the reason")
    site.configure_hook(**site.hook_settings())
    then_it_runs(site, jobid)


@case(on=("private",), layout=False)
def what_passes_is_waited_for(site):
    """Where a host cannot fence a job just now, the server tries again later, and not 21 times within seconds."""
    place = site.run_directory()
    run("mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(place))
    try:
        with open(place / "full", "wb") as file:
            try:
                file.write(b"x" * (1 << 20))
            except OSError:
                pass
        mark = site.log_mark()
        jobid = site.submit("alice", f"{HAS_RUN}; sleep 1000", ask(1, 100))
        said = logged(site, mark, r"jobfence: [^\n]*ENOSPC[^\n]*", 30)
        site.wait_state(jobid, "W")
        time.sleep(10)
        job = site.job(jobid)
        expect(job["job_state"] in "WQ" and int(job["run_count"]) <= 2, f"the job is in state {job['job_state']}, after {job['run_count']} runs")
        (place / "full").unlink()
        until(lambda: (site.directory("alice") / f"ran.{jobid}").exists(), 90, "the job to run at last")
        fenced(site, jobid)
        site.end(jobid)
    finally:
        until(lambda: not site.leftovers(), 20, "the end of every fence")
        run("umount", str(place))
    return said[0]


@case(on=("private",), layout=False)
def a_later_hook_refuses(site):
    """Of a job that another hook refuses at its begin, MoM tells nobody more. Its fence goes within two minutes."""
    with frequent(site), site.extra_hook("theirs", "execjob_begin", "import pbs\npbs.event().reject('not today')\n", order=200):
        jobid = site.submit("alice", HAS_RUN, ask(1, 100))
        until(lambda: site.state(jobid) == "H", 60, "a job that is held")
        records = [path for path in site.run_directory().rglob("uid_*") if path.is_file()]
        expect(records, "the job had no fence")
        # On a slow machine, it is old by now.
        for record in records:
            os.utime(record)
        time.sleep(5)
        expect(all(record.exists() for record in records), "the fence of a job that may be about to begin is gone")
        for record in records:
            os.utime(record, (time.time() - 90,) * 2)
        until(lambda: not any(record.exists() for record in records), 30, "the end of the fence")
        site.qdel(jobid)
