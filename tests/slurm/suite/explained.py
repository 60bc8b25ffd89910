# SPDX-License-Identifier: GPL-2.0-or-later
"""What `jobfence explain` says of a job is what the kernel has of it."""

import glob
import re
import subprocess

from .. import kernel
from ..harness import Skip, case, expect, expect_equal, expect_in, fenced


def explain(site, *arguments):
    if not site.jobfence:
        raise Skip("needs the jobfence command: --bin")
    return subprocess.run([str(site.jobfence), "explain", "--config", str(site.config), *map(str, arguments)],
                          capture_output=True, text=True, timeout=60, env=site.environment)


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
    checked = []
    for level, path, value in re.findall(r"^(user|job|step) +(/\S+) = (.*)$", done.stdout, re.M):
        found = [one for one in glob.glob(path) if f"job_{jobid}" in one or level == "user"]
        # 26.05 names jobs by another number.
        if not found and "slurmstepd.scope" in path:
            found = [str(one.limits_directory("cpu") / path.rsplit("/", 1)[1])
                     for one in [group if level == "step" else group.parent]]
        expect_equal(len(found), 1, f"files of the name {path}")
        # In Slurm's directories its own memory limits stay.
        if "memory." in path and group.memory_is_slurms() and kernel.slurm_limits_memory:
            continue
        expect_equal(kernel.read(found[0]), value, f"{found[0]}")
        checked.append(found[0].rsplit("/", 1)[1])
    for name in ("pids.max", "cpu.max" if kernel.has_v2_controllers() else "cpu.cfs_quota_us"):
        expect(checked.count(name) >= 2, f"{name} of job and step is not explained: {checked}")
    site.scancel(jobid)
    site.wait(jobid)
    unknown = explain(site, 999999, "--node", site.node)
    expect_equal(unknown.returncode, 1, "exit status for a job that Slurm does not know")
    expect_in("Slurm does not know job 999999", unknown.stderr, "what it says")
