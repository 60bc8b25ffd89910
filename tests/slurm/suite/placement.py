# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose directories a job is in, and what holds in both placements: ours, and Slurm's own."""

import os
import re
import time

from .. import kernel
from ..harness import Skip, case, expect, expect_equal, expect_in, expect_match, fenced
from ..sites import InstalledSite, until

SPINS = "while :; do :; done"


@case
def check_says_placement(site):
    """What 'jobfence check' says beforehand is what then happens, in each hierarchy."""
    if not isinstance(site, InstalledSite):
        raise Skip("jobfence is not installed here")
    done = site.command("jobfence", "check")
    expect_equal(done.returncode, 0, f"exit status of jobfence check ({done.stdout})")
    said = re.findall(r"^hierarchy +(v[12]) \S+ \((.*)\): used\nplacement +(\w+),", done.stdout, re.M)
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
    group = fenced(site, jobid)
    for version, controllers, placement in said:
        name = "" if version == "v2" else controllers.split(",")[0]
        found = "overlay" if name in group.slurms else "own"
        expect_equal(found, placement, f"placement in {version} ({controllers}), {group}")
    covered = {"" if version == "v2" else name
               for version, controllers, _ in said for name in controllers.split(",")}
    expect(kernel.expected_hierarchies() <= covered, f"check names only {covered}")
    site.scancel(jobid)


def use_of(group, seconds=5):
    """CPUs that were used over that time."""
    start, used = time.monotonic(), group.cpu_seconds()
    time.sleep(seconds)
    return (group.cpu_seconds() - used) / (time.monotonic() - start)


@case
def all_steps_together(site):
    """Each step alone may use the grant; all of them, and what is adopted, no more than the job."""
    headroom = 0.25
    site.configure(HeadroomCPUs=str(headroom))
    jobid = site.submit(site.users[0], f"""
        srun --overlap --mem=50 bash -c '{SPINS}' &
        srun --overlap --mem=50 bash -c '{SPINS}' &
        ({SPINS}) & ({SPINS}) &
        wait
        """, "-n1", "-c1", "--mem=300")
    steps = [fenced(site, jobid, name) for name in ("step_batch", "step_0", "step_1")]
    expect_equal([step.cpu_limit() for step in steps], [1.0] * 3, "CPU limits of the steps")
    job = steps[0].parent
    allowed = 1.0 if job.own or not kernel.has_v2_controllers() else 1.0 + headroom
    with site.favoured():
        used = use_of(job)
    expect(used <= allowed * 1.05, f"the job used {used:.3f} CPUs of {allowed}")
    if os.cpu_count() > 1:
        expect(used >= 0.5, f"the job used only {used:.3f} CPUs of {allowed}")
    processes = [who for step in steps for who in map(kernel.identity, step.members()) if who]
    site.scancel(jobid)
    until(lambda: not any(kernel.identity(who[0]) == who for who in processes), 2,
          "the death of every process after scancel")
    site.wait(jobid)


@case
def nothing_of_ours_in_slurms(site):
    """We make no directory in Slurm's, and move nobody out of them."""
    jobid = site.submit(site.users[0], "srun sleep 300", "-c1", "--mem=100")
    step = fenced(site, jobid, "step_0")
    if not step.slurms:
        raise Skip("Slurm has no directories of its own here")
    for controller in step.slurms:
        top = step.parent.directory(controller)
        if top is None:
            continue
        names = {p.name for p in top.rglob("*") if p.is_dir()}
        strange = [n for n in names if not re.fullmatch(r"step_\w+|user|slurm|task_\w+", n)]
        expect_equal(strange, [], f"directories below {top}")
    for pid in step.members():
        for controller, path in kernel.cgroups_of(pid).items():
            if controller in step.slurms:
                expect_in("/step_0", path, f"where process {pid} is in {controller or 'cgroup2'}")
    site.scancel(jobid)


@case
def told_where_it_is(site):
    """JOBFENCE_CGROUP is a path that /proc/self/cgroup of the task shows, too."""
    done = site.srun(site.users[0], "-c1", "--mem=100", "sh", "-c",
                     "echo at=$JOBFENCE_CGROUP; cat /proc/self/cgroup")
    expect_equal(done.returncode, 0, f"srun ({done.stderr})")
    at = expect_match(r"^at=(/.+)$", done.stdout.splitlines()[0], "the variable").group(1)
    paths = [line.split(":", 2)[2] for line in done.stdout.splitlines()[1:]]
    expect(any(path == at or path.startswith(at + "/") for path in paths),
           f"{at} is none of {paths}")
