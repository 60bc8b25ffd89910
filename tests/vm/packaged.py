#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run in a guest whose Slurm runs and which has no jobfence: installs Debian packages by apt, upgrades them while a job runs, goes back,
removes and purges them, and looks for what is left. packaged.py REPOSITORIES VERSION NEWER."""

import sys
import traceback
from pathlib import Path

sys.dont_write_bytecode = True
import repository
from traces import OTHERS, SERVICE, cgroups, end_waiting_job, expect, fail, files, job, sh, until, waiting_job

PLACE, VERSION, NEWER = sys.argv[1:]
LINE = Path("/etc/slurm/plugstack.conf.d/jobfence.conf")
# What dpkg and apt keep of what has ever been installed.
OTHERS = (*OTHERS, "/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/etc/ld.so.cache")


def apt(words):
    print("apt", words, flush=True)
    return sh(f"DEBIAN_FRONTEND=noninteractive {repository.apt(PLACE)} {words}")


def install(version):
    return apt("install " + repository.named(version))


def is_fenced():
    return "/step_0" in job()


def holder():
    return sh(f"systemctl show --value -p MainPID {SERVICE}").strip()


def restart():
    # Not even by a restart of slurmd is more turned on, or off.
    sh("systemctl restart slurmd.service")
    until(lambda: sh("sinfo --noheader --format=%T").strip() in ("idle", "mixed", "allocated"), "the node")


def went_well(number):
    end_waiting_job()
    until(lambda: "JobState=COMPLETED" in sh(f"scontrol show job {number}"), "the job's success")


def set_up():
    said = sh("jobfence setup", 2)
    expect("/step_0" in said.splitlines()[-1], f"setup does not say that its job was fenced: {said}")
    sh(f"systemctl is-enabled {SERVICE}")
    sh(f"systemctl is-active {SERVICE}")
    expect(is_fenced(), "a job is not fenced after setup")
    expect("unchanged" in sh("jobfence setup"), "a second setup has changed something")


def main():
    job()
    Path(PLACE, "list").write_text(repository.sources(PLACE))
    before = files(OTHERS)
    apt("update")

    expect("Next: jobfence setup" in install(VERSION), "the next step is not said")
    sh(f"systemctl is-enabled {SERVICE}")
    sh(f"systemctl is-active {SERVICE}")
    restart()
    expect(not is_fenced(), "installing has turned it on")
    sh("jobfence enable")
    expect(is_fenced(), "a job is not fenced")

    number, service = waiting_job(), holder()
    for version in NEWER, VERSION:
        install(version)
        expect(version in sh("dpkg-query --show libjobfence"), f"{version} is not installed")
        expect(holder() == service, "the service was restarted")
        expect(sh(f"systemctl show --value -p NeedDaemonReload {SERVICE}").strip() == "no", "systemd has the unit of before")
        expect(any("step_batch" in each for each in cgroups()), "the running job has lost its fence")
        expect(is_fenced(), f"a job is not fenced after {version}")
    went_well(number)
    restart()
    expect(is_fenced(), "a job is not fenced after slurmd's restart")

    # Slurm does not answer.
    sh("systemctl stop slurmctld.service slurmd.service")
    install(NEWER)
    sh("systemctl start slurmctld.service slurmd.service")
    until(lambda: "idle" in sh("sinfo --noheader --format=%T"), "the idle node")
    expect(is_fenced(), "a job is not fenced after an upgrade without Slurm")

    number = waiting_job()
    said = apt("remove '~njobfence'")
    expect(".batch (process " in said, f"it is not said what still runs: {said}")
    expect(not LINE.exists(), "the line is left, and names a file that is gone")
    expect(any("step_batch" in each for each in cgroups()), "the running job has lost its fence")
    expect(not is_fenced(), "a job is fenced by what is gone")
    restart()
    went_well(number)
    expect(not is_fenced(), "a job is fenced by what is gone")
    # The slice above it stays, empty, until the boot.
    until(lambda: not any("scope" in each for each in cgroups()), "the end of the scope")

    install(NEWER)
    # What the package has done with the service, setup does where somebody has undone it, and takes it back.
    sh(f"systemctl disable --now {SERVICE}")
    set_up()
    sh("jobfence setup --undo", 2)
    sh(f"systemctl is-enabled {SERVICE}", 1)
    # It runs on, for what has begun.
    sh(f"systemctl is-active {SERVICE}")
    expect(not is_fenced(), "a job is fenced after setup was taken back")
    set_up()
    apt("purge '~njobfence'")
    restart()
    expect(not is_fenced(), "a job is fenced")
    expect(not cgroups(), f"left: {cgroups()}")
    for listing in "list-units --all", "list-unit-files":
        said = sh(f"systemctl --no-legend --plain {listing} 'jobfence*' || true")
        expect(not said.strip(), f"systemctl {listing}: {said}")
    changed = sorted(before ^ files(OTHERS))
    expect(not changed, f"other files than before: {changed}")
    print("ok   packaged  (installed, upgraded, used and removed, and nothing is left)")
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    try:
        main()
    except Exception:
        fail(traceback.format_exc())
