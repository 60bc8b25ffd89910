#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The example of "Add a scheduler" in CONTRIBUTING.md: a site with a root prolog and epilog, and the contract's cases in it.

    python3 shell.py --site private --bin PATH [NAME…]

The batch system is this file: it starts a job at once, on this host, with the three scripts of docs/install/shell.md, which are taken
from that page. Its own word on a job is what it has said to the prolog, and the status that its runner has written down.
"""

import contextlib
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import kernel, runner, sites  # noqa: E402
from contract.harness import expect_equal  # noqa: E402
from contract.sites import undisturbed, until  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/install/shell.md"
# What stands for the batch system's daemon of one job. The fence has its name as the holder: if it dies, the janitor does the rest.
RUNNER = """#!/bin/sh
cd "$PLACE"
if {prolog} --holder pid:$$ >"$SPOOL/prolog" 2>&1; then
    {starter} sh "$SPOOL/script" >"$JOB_ID.out" 2>"$JOB_ID.err" </dev/null
    status=$?
    {epilog} >>"$JOB_ID.err" 2>&1
else
    status=refused
fi
echo $status >"$SPOOL/status.new"; mv "$SPOOL/status.new" "$SPOOL/status"
"""


class ShellSite(sites.Private):
    SCHEDULER, NUMBER, PLACE, STEP = "shell", "JOB_ID", "PLACE", "step_0"

    def __enter__(self):
        self.leases = sites.system_users()
        self.users = tuple(one.name for one in self.leases)
        with undisturbed():
            self.top = Path(tempfile.mkdtemp(prefix="jobfence-shell-"))
            self.keeper = sites.Keeper(self.top, self.environment, [self.base])
        self.top.chmod(0o755)
        self.home, self.config = self.top / "home", self.top / "jobfence.conf"
        self.home.mkdir()
        self.run_directory().mkdir(mode=0o700)  # jobfence takes no other
        self.configure()
        self.start_hold()
        # The three scripts of the page, with this command and this configuration.
        scripts = dict(re.findall(r"```sh\n#!/bin/sh\n# /etc/batch/(\w+)\n(.*?)```", PAGE.read_text(), re.S))
        for name, text in scripts.items():
            text = re.sub(r"/usr/local/sbin/jobfence (\w+)", rf"{self.jobfence} \1 --config {self.config}", text)
            # Behind what the page has: options of the batch system's.
            text = text.rstrip() + (' "$@"\n' if name == "prolog" else "\n")
            (self.top / name).write_text("#!/bin/sh\n" + text)
            (self.top / name).chmod(0o755)
        (self.top / "runner").write_text(RUNNER.format(**{name: self.top / name for name in scripts}))
        return self

    # -- the contract ---------------------------------------------------------------------

    def spool(self, jobid):
        return self.top / f"job-{jobid}"

    def submit(self, user, script, *options, cpus=1, mib=100, again=None, env=None):
        jobid = str(len(list(self.top.glob("job-*"))) + 1)
        spool, place = self.spool(jobid), self.directory(user)
        spool.mkdir(mode=0o755)
        (spool / "script").write_text(script + "\n")
        said = {"JOB_ID": jobid, "JOB_USER": user, "JOB_CPUS": cpus, "JOB_MEMORY": f"{mib}M", "PLACE": place, "SPOOL": spool}
        self.keeper.start(jobid, ["env", *(f"{name}={value}" for name, value in said.items()), "sh", str(self.top / "runner")])
        self.submitted.append((user, jobid))
        return jobid

    def granted(self, jobid):
        said = kernel.environment(self.keeper.pids[jobid])
        return int(said["JOB_CPUS"]), int(said["JOB_MEMORY"].rstrip("M"))

    def has_ended(self, jobid):
        return (self.spool(jobid) / "status").exists() or not kernel.is_alive(self.keeper.pids[jobid])

    def wait(self, jobid, timeout=60):
        until(lambda: self.has_ended(jobid), timeout, f"the end of job {jobid}")
        return kernel.read(self.spool(jobid) / "status")

    def status(self, jobid):
        return int(self.wait(jobid))

    def output(self, jobid, stream="out"):
        return "".join(path.read_text(errors="replace") for path in self.home.glob(f"*/{jobid}.{stream}"))

    def told(self, jobid):
        return self.output(jobid, "err")

    def delete(self, *jobids):
        """As such a system does: it ends what it knows of a job. The runner does the rest, as at any end."""
        for jobid in jobids:
            self.ours("close", "--job", jobid)
            for pid in self.job_pids(jobid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def idle_again(self):
        return all(self.has_ended(jobid) for _, jobid in self.submitted)

    def suspend(self, jobid):
        expect_equal(self.ours("freeze", "--job", jobid)[0], 0, "'jobfence freeze'")

    def resume(self, jobid):
        expect_equal(self.ours("thaw", "--job", jobid)[0], 0, "'jobfence thaw'")

    def refusal(self, jobid, mark):
        if (status := self.wait(jobid)) != "refused":
            raise AssertionError(f"job {jobid} has ended with {status}")
        return kernel.read(self.spool(jobid) / "prolog")

    def after_refusal(self, jobid, script):
        return self.submit(self.users[0], script)

    def holders(self, jobid):
        return [self.keeper.pids[jobid]]

    def log_mark(self):
        return {path: path.stat().st_size for path in self.top.glob("job-*/prolog")}

    def log_since(self, mark):
        return "\n".join(path.read_text()[mark.get(path, 0):] for path in sorted(self.top.glob("job-*/prolog")))

    def describe(self, jobid):
        return f"{kernel.read(self.spool(jobid) / 'status')} {kernel.read(self.spool(jobid) / 'prolog')}"


class ShellProgram(runner.Program):
    SCHEDULER, DEFAULT = "shell", "private"
    SITES = {"private": lambda options: ShellSite(options.so, options.bin)}


if __name__ == "__main__":
    os.umask(0o022)
    ShellProgram().exit(__doc__)
