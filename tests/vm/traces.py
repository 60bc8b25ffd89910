#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run in a guest whose Slurm runs and which has no jobfence: installs it, turns it on, runs jobs, turns it off, removes it, and looks
for what is left. traces.py INSTALLATION (plugstack/installation)."""

import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

SERVICE = "jobfence.service"
# What Slurm and the system write there is theirs.
OTHERS = ("/proc", "/sys", "/dev", "/scratch", "/tmp", "/var/log", "/var/spool", "/var/tmp", "/var/lib/systemd", "/run/systemd", "/run/user",
          "/run/udev", "/opt/jobfence-tests")  # fmt: skip


def fail(said):
    print(f"FAIL {Path(sys.argv[0]).stem}", *said.splitlines(), sep="\n     ")
    print("0 passed, 1 failed, 0 skipped")
    sys.exit(1)


def sh(command, status=0):
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != status:
        fail(f"{command}: exit status {done.returncode}, and should be {status}:\n{said}")
    return said


def expect(true, said):
    if not true:
        fail(said)


def files(others=OTHERS):
    """Every name on the disk and below /run, but those of others."""
    found = set()
    for top in "/", "/run":
        device = os.stat(top).st_dev
        for place, directories, names in os.walk(top):
            directories[:] = [name for name in directories
                              if not f"{place}/{name}".replace("//", "/").startswith(others)
                              and os.lstat(f"{place}/{name}").st_dev == device]  # fmt: skip
            found.update(os.path.join(place, name) for name in [*directories, *names])
    return found


def cgroups():
    return sorted(place for place, _, _ in os.walk("/sys/fs/cgroup") if "jobfence" in place)


def job(script="cat /proc/self/cgroup"):
    return sh(f"su alice -c 'cd; srun --mem=50 sh -c \"{script}\"'")


def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        expect(time.monotonic() < deadline, f"waited in vain for {what}")
        time.sleep(0.2)


def waiting_job():
    """A batch job that runs until 'go' is there, and says then in which cgroup it is; its number."""
    said = sh("su alice -c 'cd; rm -f go out; sbatch --parsable --mem=50 --output=out "
              "--wrap=\"until [ -e go ]; do sleep 0.2; done; cat /proc/self/cgroup\"'")  # fmt: skip
    until(lambda: "R" in sh("squeue --noheader --format=%t"), "a running job")
    until(lambda: any("step_batch" in each for each in cgroups()), "its cgroup")
    return said.split()[-1]


def end_waiting_job():
    sh("su alice -c 'cd; touch go'")
    until(lambda: not sh("squeue --noheader"), "the job's end")
    expect("step_batch" in Path("/home/alice/out").read_text(), "the job was not fenced to its end")
    sh("su alice -c 'cd; rm go out'")


def main():
    os.environ["PREFIX"] = "/usr"
    installation = sys.argv[1]
    job()
    before = files()

    sh(f"{installation} put")
    # Not even by a restart of slurmd.
    sh("systemctl restart slurmd.service")
    until(lambda: "idle" in sh("sinfo --noheader --format=%T"), "the idle node")
    expect("/step_0" not in job(), "installing has turned it on")
    expect(not cgroups(), f"installing has made {cgroups()}")
    sh(f"systemctl is-enabled {SERVICE}", 1)
    sh(f"systemctl is-active {SERVICE}", 3)

    # Where jobs would be refused nothing is turned on, and what was started is stopped again.
    Path("/etc/jobfence/jobfence.conf").rename("/etc/jobfence/jobfence.conf.kept")
    Path("/etc/jobfence/jobfence.conf").write_text("IOMax=\"/nonexistent rbps=1M\"\n")
    expect("nothing was activated" in sh("jobfence enable", 1), "it is not said that nothing was activated")
    sh(f"systemctl is-enabled {SERVICE}", 1)
    sh(f"systemctl is-active {SERVICE}", 3)
    expect("/step_0" not in job(), "it was turned on all the same")
    Path("/etc/jobfence/jobfence.conf.kept").rename("/etc/jobfence/jobfence.conf")

    for _ in range(2):
        sh("jobfence enable")
        expect("/step_0" in job(), "a job is not fenced")
    # An upgrade while a job runs, then off.
    waiting_job()
    sh(f"{installation} put")
    expect(sh(f"systemctl show --value -p NeedDaemonReload {SERVICE}").strip() == "no", "systemd has the unit of before")
    expect(".batch (process " in sh("jobfence disable", 3), "it is not said what still runs")
    sh(f"systemctl is-active {SERVICE}")
    sh(f"systemctl is-enabled {SERVICE}", 1)
    sh(f"{installation} remove", 1)
    expect("/step_0" not in job(), "a job is fenced after it was turned off")
    expect(any("step_batch" in each for each in cgroups()), "the running job has lost its fence")
    end_waiting_job()
    until(lambda: subprocess.run(["jobfence", "disable"], capture_output=True, check=False).returncode == 0, "the end of its step")

    sh(f"{installation} remove")
    expect(not cgroups(), f"left: {cgroups()}")
    for listing in "list-units --all", "list-unit-files":
        said = sh(f"systemctl --no-legend --plain {listing} 'jobfence*' || true")
        expect(not said.strip(), f"systemctl {listing}: {said}")
    changed = sorted(before ^ files())
    expect(not changed, f"other files than before: {changed}")
    expect("/step_0" not in job(), "a job is fenced")
    expect("idle" in sh("sinfo --noheader --format=%T"), "the node is not idle")
    print("ok   traces  (installed, used and removed, and nothing is left)")
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    try:
        main()
    except Exception:
        fail(traceback.format_exc())
