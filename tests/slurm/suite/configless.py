# SPDX-License-Identifier: GPL-2.0-or-later
"""Configless Slurm: the node has no slurm.conf, and fetches the controller's when slurmd starts.

plugstack.conf is among the files that the controller serves. What it includes by a relative
path is not, nor is jobfence.conf: see "Configless Slurm" in docs/install/slurm.md.
"""

import contextlib
import re
import shutil
from pathlib import Path

from contract.harness import Skip, case, expect, expect_equal, expect_in, fenced
from contract.sites import until, write_atomically
from ..harness import expect_limits, fences_well
from ..sites import InstalledSite

ETC = Path("/etc/slurm")
THEIRS = Path("/etc/slurm-controller")
UNITS = Path("/run/systemd/system")
OPTIONS = {"slurmctld": ("SLURMCTLD_OPTIONS", f"-f {THEIRS}/slurm.conf"),
           "slurmd": ("SLURMD_OPTIONS", "--conf-server node1")}


@contextlib.contextmanager
def fetched(site, plugstack):
    """The controller's files are where no node looks for them, with this plugstack.conf."""
    if not isinstance(site, InstalledSite):
        raise Skip("needs an installed Slurm")
    kept = {path: path.read_bytes() for path in (ETC / "slurm.conf", ETC / "cgroup.conf", ETC / "plugstack.conf")
            if path.exists()}
    try:
        THEIRS.mkdir()
        for path, content in kept.items():
            (THEIRS / path.name).write_bytes(content)
            path.unlink()
        text = re.sub(r"(?mi)^(PlugStackConfig|SlurmctldParameters)=.*\n", "", kept[ETC / "slurm.conf"].decode())
        (THEIRS / "slurm.conf").write_text(text + "SlurmctldParameters=enable_configless\n")
        (THEIRS / "plugstack.conf").write_text(plugstack)
        for daemon, (name, value) in OPTIONS.items():
            options = THEIRS / f"{daemon}.options"
            options.write_text(f'{name}="{value}"\n')
            (UNITS / f"{daemon}.service.d").mkdir(parents=True, exist_ok=True)
            # Debian starts them only where there is a slurm.conf.
            dropin(daemon).write_text(
                f"[Unit]\nConditionPathExists=\n[Service]\nEnvironmentFile={options}\n")
        restart(site)
        expect(Path("/run/slurm/conf/slurm.conf").exists(), "slurmd has fetched no slurm.conf")
        yield
    finally:
        for path, content in kept.items():
            write_atomically(path, content)
        for daemon in OPTIONS:
            dropin(daemon).unlink(missing_ok=True)
        shutil.rmtree(THEIRS, ignore_errors=True)
        restart(site)


def dropin(daemon):
    return UNITS / f"{daemon}.service.d/configless.conf"


def restart(site):
    site.command("systemctl", "daemon-reload")
    for daemon in ("slurmctld", "slurmd"):
        done = site.command("systemctl", "restart", daemon, timeout=120)
        expect_equal(done.returncode, 0, f"restart of {daemon} ({done.stderr})")
    until(lambda: site.node_state() == "IDLE", site.partition_wait, "the idle node")


@case(layout=False)
def configless(site):
    """The plugin's line is served, and the node's own jobfence.conf is read."""
    user = site.users[0]
    if not isinstance(site, InstalledSite):
        raise Skip("needs an installed Slurm")
    _, _, line = site._plugin_line()
    with fetched(site, line + "\n"):
        site.configure(CPUQuotaPercent="50")
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        expect_limits(fenced(site, jobid), 0.5, 100)
        site.end(jobid)
        done = site.command("jobfence", "check")
        expect_equal(done.returncode, 0, f"exit status of jobfence check ({done.stdout})")
        expect_in("slurm.conf     /run/slurm/conf/slurm.conf", done.stdout, "jobfence check")
        # Without the file the defaults hold; the controller can say more, in the plugin's line.
        site.config.unlink()
        fences_well(site, user)
    site.configure()
    include = f"include {ETC}/plugstack.conf.d/*.conf\n"
    with fetched(site, include):
        fences_well(site, user)
