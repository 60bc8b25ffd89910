# SPDX-License-Identifier: GPL-2.0-or-later
"""What `jobfence explain` says of a job is what the kernel has of it."""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile

from .. import kernel
from ..harness import IN_VAR, Skip, case, expect, expect_equal, expect_in, expect_match, fenced
from ..sites import until


def explain(site, *arguments):
    if not site.jobfence:
        raise Skip("needs the jobfence command: --bin")
    return subprocess.run([str(site.jobfence), "explain", "--config", str(site.config), *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, env=site.environment)


def explained_to(site, user, *arguments):
    """As a user, who may not enter the places of the command and of the configuration."""
    if not site.jobfence:
        raise Skip("needs the jobfence command: --bin")
    with tempfile.TemporaryDirectory(**IN_VAR) as open_to_all:
        os.chmod(open_to_all, 0o755)
        for file in (site.jobfence, site.config):
            shutil.copy(file, open_to_all)
        here = os.path.join(open_to_all, os.path.basename(site.jobfence))
        config = os.path.join(open_to_all, os.path.basename(site.config))
        os.chmod(here, 0o755)
        os.chmod(config, 0o644)
        return site.as_user(user, [here, "explain", "--config", config, "--node", site.node, *map(str, arguments)])


# Where a user can write into what Slurm says of his job.
FORGED = "x UserId=root(0) Partition=vip QOS=vip Account=vip NodeList={node} Nodes={node} CPU_IDs=0-63 Mem=99999 GRES="


@case(layout=False)
def explained_whatever_its_name(site):
    """Nothing that a user writes into his job's texts is taken for what Slurm says."""
    user = site.users[0]
    site.configure_raw(f"[User=root]\nMaxProcesses=7777\n[Partition=vip]\nMaxProcesses=8888\n[User={user}]\nMaxProcesses=60\n")
    forged = FORGED.format(node=site.node)
    for options in (["--job-name", forged], ["--job-name", f"{forged}\n  {forged}"], ["--comment", forged],
                    ["--job-name", f"x MinCPUsNode=1 {forged}"], ["--job-name", forged, "--comment", forged]):
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=200", *options)
        with contextlib.ExitStack() as afterwards:
            afterwards.callback(site.scancel, jobid)
            # A name of two lines breaks what the others wait with.
            state = functools.partial(site.command, "squeue", "-h", "-j", str(jobid), "-o", "%T")
            until(lambda: state().stdout == "RUNNING\n", 30, f"the start of job {jobid}")
            done = explain(site, jobid, "--node", site.node)
            said = f"{done.stdout}{done.stderr} ({options})"
            expect("vip" not in done.stdout and "7777" not in done.stdout and "8888" not in done.stdout, said)
            if done.returncode == 0:
                expect_in(f"job        {jobid} of {user} (uid ", said, "whose it is")
                expect_in("1 CPUs, 200.0 MiB", said, "what is granted")
                expect_in("MaxProcesses=60", said, "its limit")
            else:
                # Which of two is Slurm's cannot be known: then it says so, and what to do.
                expect_match(r"^jobfence: \d parts of what Slurm says of job .* speak of node .*--cpus\s+and --mem", said, "why not")
            # A name alone keeps nobody from seeing his limits.
            if options == ["--job-name", forged]:
                expect_equal(done.returncode, 0, f"exit status {said}")
        until(lambda: not state().stdout, 30, f"the end of job {jobid}")


@case(layout=False)
def explained_of_an_array(site):
    """Each of its jobs has a number of its own, also the one that has the array's."""
    user = site.users[0]
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100", "--array=1-2", "--output=%A.%a.out")
    jobs = {}
    while len(jobs) < 2:
        jobs = {job["JobId"]: job["ArrayTaskId"] for job in site.jobs(jobid) if job["JobState"] == "RUNNING"}
    for one in jobs:
        done = explain(site, one, "--node", site.node)
        expect_equal((done.returncode, done.stderr), (0, ""), f"exit status and stderr for job {one}")
        expect_in(f"job        {one} of {user} ", done.stdout, "whose it is")
        expect_in("1 CPUs, 100.0 MiB", done.stdout, "what is granted")
    site.scancel(jobid)
    site.wait(jobid)


@case
def explained(site):
    user = site.users[0]
    site.configure_raw("MaxProcesses=50\nCPUQuotaPercent=80\n[User=nobody-like-this]\nMaxProcesses=1\n"
                       f"[User={user}]\nMaxProcesses=60\n")
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=200")
    group = fenced(site, jobid)
    done = explain(site, jobid, "--node", site.node)
    expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of jobfence explain")
    line = site.config.read_text().splitlines().index("MaxProcesses=60") + 1
    expect_in(f"MaxProcesses=60 ({site.config}:{line} [User={user}])", done.stdout, "what it says")
    expect_in(f"sections   [User={user}]\n", done.stdout, "what it says")
    expect_in("steps      ", done.stdout, "what it says")
    checked = []
    for level, path, value, now in re.findall(r"^(user|job|step) +(/\S+) = (.*)\n\1 +now (.*)$", done.stdout, re.M):
        # The real directories, also where Slurm names jobs by another number (26.05).
        expect("*" not in path and os.path.exists(path), f"{path} is none of the job's")
        expect_equal(now, "the same" if kernel.read(path) == value else kernel.read(path), f"what it says of {path}")
        # In Slurm's directories its own memory limits stay.
        if "memory." in path and group.memory_is_slurms() and kernel.slurm_limits_memory:
            continue
        expect_equal(now, "the same", f"{path}")
        checked.append(path.rsplit("/", 1)[1])
    expect_equal(str(group.limits_directory("cpu")) in done.stdout, True, f"{group.limits_directory('cpu')} is named")
    # Anybody sees as much, as long as its name has the job's number in it, and what somebody else has written since.
    file = group.limits_directory("pids") / "pids.max"
    file.write_text("37\n")
    for asking in (lambda: explain(site, jobid, "--node", site.node), lambda: explained_to(site, user, jobid)):
        expect_match(rf"{re.escape(str(file))} = 60\nstep +now 37\n", asking().stdout, "what it says of another's value")
    done = explain(site, jobid, "--node", site.node, "--step", "17")
    expect_in("steps      batch; 17 has no directories", done.stdout.replace("extern", "batch").replace("batch, batch", "batch"),
              "what it says of a step that is not")
    for name in ("pids.max", "cpu.max" if kernel.has_v2_controllers() else "cpu.cfs_quota_us"):
        expect(checked.count(name) >= 2, f"{name} of job and step is not explained: {checked}")
    site.scancel(jobid)
    site.wait(jobid)
    unknown = explain(site, 999999, "--node", site.node)
    expect_equal(unknown.returncode, 1, "exit status for a job that Slurm does not know")
    expect_in("Slurm does not know job 999999", unknown.stderr, "what it says")
