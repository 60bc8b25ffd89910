# SPDX-License-Identifier: GPL-2.0-or-later
"""What `jobfence ls`, `show` and `report` say of Slurm's jobs, wherever their directories are."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile

from contract.harness import IN_VAR, MIB, case, expect, expect_equal, expect_in, fenced
from contract.sites import until


def said(site, *arguments):
    """By root."""
    done = subprocess.run([str(site.jobfence), *map(str, arguments), "--config", str(site.config), "--json"],
                          capture_output=True, text=True, timeout=120, env=site.environment)
    expect_equal(done.returncode, 0, f"exit status of {arguments}: {done.stderr}")
    return json.loads(done.stdout)


@case
def living_and_reported(site):
    """A job is listed with its steps while it runs, also to its user, and is reported when it has ended."""
    user = site.users[0]
    uid = pwd.getpwnam(user).pw_uid
    with tempfile.TemporaryDirectory(**IN_VAR) as logged, tempfile.TemporaryDirectory(**IN_VAR) as open_to_all:
        site.configure_raw(f"UsageLog={logged}/usage.jsonl\n")
        jobid = site.submit(user, "srun -n1 --overlap sleep 300 & wait", "-c1", "--mem=200")
        fenced(site, jobid)

        def steps():
            return {fence["step"]: fence for fence in said(site, "ls", "--job", jobid)["fences"]}

        until(lambda: {"batch", "0"} <= set(steps()), 30, f"two steps of job {jobid}")
        for step, fence in steps().items():
            expect_equal((fence["job"], fence["uid"]), (str(jobid), uid), f"whose step {step} is")
            expect_equal(fence["memory_limit_bytes"], 200 * MIB, f"the limit of step {step}")
            expect(0 <= fence["uptime_seconds"] < 120, f"step {step}: {fence}")
        shown = {fence["step"]: fence for fence in said(site, "show", jobid)["fences"]}
        names = [process["name"] for process in shown["0"]["processes"]]
        expect("sleep" in names, f"processes of step 0: {names}")

        # Its user cannot enter the places of the command and of the configuration.
        os.chmod(open_to_all, 0o755)
        here, config = (shutil.copy(file, open_to_all) for file in (site.jobfence, site.config))
        os.chmod(here, 0o755)
        os.chmod(config, 0o644)
        seen = site.as_user(user, [here, "ls", "--config", config, "--json"])
        expect_equal(seen.returncode, 0, f"exit status: {seen.stderr}")
        own = json.loads(seen.stdout)["fences"]
        expect_equal({fence["uid"] for fence in own}, {uid}, "whose fences its user sees")
        expect({"batch", "0"} <= {fence["step"] for fence in own}, f"what its user sees: {own}")
        refused = site.as_user(user, [here, "report", "--config", config, "1"])
        expect_in("only root can read the usage log", refused.stderr, "what its user is told")

        site.end(jobid)
        report = {}

        def is_whole():
            report.update(said(site, "report", jobid))
            ended = {step["step"] for run in report["runs"] for step in run["steps"]}
            return not report["living"] and {"batch", "0"} <= ended

        until(is_whole, 30, f"the lines of job {jobid}")
        expect_equal(len(report["runs"]), 1, "runs")
        run = report["runs"][0]
        expect_equal((run["uid"], run["memory_limit_bytes"]), (uid, 200 * MIB), "whose it was, and its limit")
        expect(run["cpu_seconds"] is not None and run["wall_seconds"] < 120, f"what it used: {run}")
