#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A node that loses power while a job runs, and comes back with records of then: reboot.py before, which resets this very machine, and
then reboot.py after. For a guest with an installed Slurm, as cell.py --reboot has it.

RunDir is on disk for that: in /run nothing outlives the machine. Slurm runs before; after, it is started here.
"""

import argparse
import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contract import kernel, sites  # noqa: E402
from contract.harness import Skip, expect, expect_equal, expect_in, fenced, uid  # noqa: E402
from contract.sites import until  # noqa: E402
from slurm.harness import expect_limits, expect_not_drained, fences_well  # noqa: E402
from slurm.sites import InstalledSite  # noqa: E402

NAME = "rebooted"  # in the output
NOTES = Path("/var/tmp/jobfence-reboot.json")
CONFIG = Path("/etc/jobfence/jobfence.conf")
RUN_DIR = Path("/var/lib/jobfence")
# The second time it ends when it may.
SCRIPT = """
echo run=${SLURM_RESTART_COUNT:-0} cpus=$JOBFENCE_CPUS
if [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then
    setsid sleep 1000 &
    srun sleep 1000
fi
while [ ! -e go ]; do sleep 0.2; done
"""
HOME = Path("/var/tmp/jobfence-reboot")


def settle(site):
    """Its users' directories are there after the boot, too. What is in /tmp can be gone."""
    kernel.slurm_limits_memory = site.slurm_limits_memory()
    kernel.slurm_tracks = site.slurm_tracks()
    shutil.rmtree(site.home)
    site.home = HOME
    HOME.mkdir(exist_ok=True)


def boot_id():
    return kernel.read("/proc/sys/kernel/random/boot_id").strip()


def command(site, *args):
    done = site.command(*args, timeout=300)
    expect_equal(done.returncode, 0, f"{' '.join(args)} ({done.stdout}{done.stderr})")
    return done.stdout


def records():
    """Names of those of steps."""
    return sorted(path.name for path in RUN_DIR.glob("*") if kernel.read(path).startswith("jobfence-record "))


def before():
    CONFIG.write_text(f"RunDir={RUN_DIR}\n")
    with InstalledSite() as site:
        settle(site)
        user = site.users[0]
        jobid = site.submit(user, SCRIPT, "-c1", "--mem=100", "--requeue")
        fenced(site, jobid)
        step = fenced(site, jobid, "step_0")
        expect_limits(step.parent, 1.0, 100)
        left = records()
        if step.slurms and not left:
            raise Skip("in Slurm's own directories only marks say whose they are, which end with them")
        expect_equal(len(left), 2, f"records {left}")
        # The controller saves what it knows some seconds after a change.
        now = time.time()
        command(site, "scontrol", "update", f"jobid={jobid}", "comment=saved")
        state = Path("/var/spool/slurmctld/job_state")
        until(lambda: state.exists() and state.stat().st_mtime > now, 30, "the controller's saved state")
        # Who is at their pids by then is somebody else, and alive when they are looked at.
        command(site, "systemctl", "disable", "jobfence.service")
        NOTES.write_text(json.dumps({
            "jobid": jobid, "boot_id": boot_id(), "records": left, "daemons": site.step_daemons(jobid),
        }))  # fmt: skip
        os.sync()
        Path("/proc/sysrq-trigger").write_text("b")
        time.sleep(60)
    raise AssertionError("the machine was not reset")


def with_pid(pid, user):
    """A process of this user's that has this pid."""
    for _ in range(50):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        child = os.fork()
        if child == 0:
            os.setuid(uid(user))
            os.execv("/bin/sleep", ["sleep", "1000"])
        if child == pid:
            return kernel.identity(pid)
        os.kill(child, 9)
        os.waitpid(child, 0)
    raise AssertionError(f"no process could be had at pid {pid}, where there is {kernel.command_line(pid)!r}")


def is_given_up(site, jobid):
    """The controller, which was reset too, takes the job for one that may only be slow until the node says for a while that it has none."""
    if site.job(jobid).get("JobState") == "PENDING":
        return True
    command(site, "systemctl", "restart", "slurmd.service")
    time.sleep(5)
    return False


def after():
    notes = json.loads(NOTES.read_text())
    CONFIG.write_text(f"RunDir={RUN_DIR}\n")
    expect(boot_id() != notes["boot_id"], "it is the same boot")
    expect_equal(records(), notes["records"], "the records of the boot before")
    site = InstalledSite()
    innocents = [with_pid(pid, site.users[0]) for pid in notes["daemons"] if not kernel.is_alive(pid)]
    expect(innocents, f"nobody could be had at the pids {notes['daemons']}")

    command(site, "systemctl", "start", "jobfence.service")
    until(lambda: not records(), 30, f"the end of the records {notes['records']}")
    command(site, "systemctl", "start", "munge.service", "slurmctld.service", "slurmd.service")
    jobid, user = notes["jobid"], site.users[0]
    until(lambda: is_given_up(site, jobid), 60, f"the controller to give job {jobid} up")
    with site:
        settle(site)
        site.submitted.append((user, jobid))
        expect_not_drained(site)
        # It waits for two minutes otherwise.
        command(site, "scontrol", "update", f"jobid={jobid}", "StartTime=now")
        site.wait_running(jobid, 60)
        batch = fenced(site, jobid)
        expect_limits(batch.parent, 1.0, 100)
        expect_equal(len(records()), 1, "records of its steps")
        (site.directory(user) / "go").touch()
        expect_equal(site.wait(jobid), "COMPLETED", "state of the job")
        expect_in("run=1 cpus=1\n", site.output(jobid), "its output")
        fences_well(site, user)
        until(lambda: not site.leftovers(), 10, "a clean tree")
        expect_equal([kernel.identity(who[0]) for who in innocents], innocents, "who is at the pids of the boot before")
        expect_not_drained(site)
        said = command(site, str(site.jobfence), "reap")
        expect_in("0 removed, 0 alive, 0 could not be removed", said, "what jobfence reap says")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("when", choices=("before", "after"))
    when = parser.parse_args().when
    sites.PATIENCE = 3
    outcome, said = "ok", ""
    try:
        before() if when == "before" else after()
    except Skip as reason:
        outcome, said = "skip", f"  ({reason})"
    except Exception as error:
        outcome = "FAIL"
        said = str(error) if isinstance(error, AssertionError) else "".join(traceback.format_exception(error))
    took = float(kernel.read("/proc/uptime").split()[0])
    print(f"{outcome:4} {NAME}  {took:.1f} s{said if outcome == 'skip' else ''}", flush=True)
    if outcome == "FAIL":
        print("\n".join("     " + line for line in said.splitlines()))
    print(", ".join(f"{int(outcome == word)} {name}" for word, name in (("ok", "passed"), ("FAIL", "failed"), ("skip", "skipped"))))
    sys.exit(outcome == "FAIL")


if __name__ == "__main__":
    main()
