# SPDX-License-Identifier: GPL-2.0-or-later
"""systemd does what it does, and leaves the jobs alone."""

import os
import subprocess
from pathlib import Path

from .. import kernel
from ..harness import Skip, case, expect, expect_equal, expect_limits, fenced, fenced_in_all
from ..sites import InstalledSite, until


def unchanged_by(site, *command):
    if not isinstance(site, InstalledSite) or not Path("/run/systemd/system").is_dir():
        raise Skip("only beside systemd")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=200")
    group = fenced(site, jobid)
    members = group.members()
    done = site.command(*command, timeout=120)
    expect_equal(done.returncode, 0, f"{' '.join(command)} ({done.stderr})")
    # What systemd does to cgroups it does when its queue is worked off: give it that time.
    until(lambda: site.command("systemctl", "is-system-running").returncode in (0, 1), 30,
          "systemd")
    expect_limits(group, 1.0, 200)
    expect_limits(group.parent, 1.0, 200)
    expect_equal(group.members() & members, members, "the processes in the group")
    for pid in members:
        fenced_in_all(pid, group)
    site.scancel(jobid)


@case
def daemon_reload(site):
    unchanged_by(site, "systemctl", "daemon-reload")


@case
def daemon_reexec(site):
    unchanged_by(site, "systemctl", "daemon-reexec")


@case
def service_restart(site):
    """With a job in the scope, and without one: then systemd has just removed the scope."""
    unchanged_by(site, "systemctl", "restart", "jobfence.service")
    for _ in range(3):
        done = site.command("systemctl", "restart", "jobfence.service", timeout=120)
        expect_equal(done.returncode, 0, f"systemctl restart jobfence.service ({done.stderr})")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=200")
    expect_limits(fenced(site, jobid), 1.0, 200)
    site.scancel(jobid)


@case(layout=False)
def dollars_are_not_expanded(site):
    """systemd-run expands $ in its arguments (254 and later): our own options do not pass by there."""
    if not isinstance(site, InstalledSite) or not Path("/run/systemd/system").is_dir():
        raise Skip("only beside systemd")
    name = f"jobfencetest{os.getpid()}"
    config = site.home / "a$$b ${HOME} $HOME.conf"
    config.write_text(f"CgroupBase={name}.slice/{name}.scope\n")
    holder = subprocess.Popen(["jobfence", "hold", "--config", str(config)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        leaf = kernel.Group(f"/{name}.slice/{name}.scope")

        def held():
            expect(holder.poll() is None, f"jobfence hold has ended: {holder.poll()}")
            return leaf.exists()
        until(held, 10, f"{leaf.path}")
    finally:
        holder.terminate()
        said, _ = holder.communicate(timeout=60)
    until(lambda: not leaf.exists(), 10, f"the end of {leaf.path} ({said})")
