# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be booted: a table of images and a table of cells.

An image is one Debian release on disk. A cell is an image, a kernel command line (which decides the cgroup layout) and
the Slurm settings (which decide who owns the job's cgroup). Adding a release or a placement is adding a line here.
"""

from dataclasses import dataclass, field

PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "linux-image-cloud-amd64", "iproute2", "procps", "kmod", "passwd",
    "python3", "slurm-wlm", "slurm-wlm-basic-plugins", "munge",
)


@dataclass(frozen=True)
class Image:
    suite: str
    packages: tuple = PACKAGES
    apt_options: tuple = ()  # mmdebstrap --aptopt=


@dataclass(frozen=True)
class Cell:
    image: str
    cmdline: str = ""
    slurm: dict = field(default_factory=dict)  # lines added to slurm.conf
    cgroup: dict = field(default_factory=dict)  # lines of cgroup.conf


# Slurm keeps its hands off cgroups: jobfence owns the tree. It binds tasks to CPUs by affinity alone.
OWN = {
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/affinity",
    "JobAcctGatherType": "jobacct_gather/linux",
}

# systemd 252 still has both old layouts; "legacy" takes effect only when unified is off.
HYBRID = "systemd.unified_cgroup_hierarchy=0"
V1 = HYBRID + " systemd.legacy_systemd_cgroup_controller=1"

IMAGES = {
    "debian12": Image("bookworm"),
    "debian13": Image("trixie"),
    # Signed for a week at a time, and a mirror may be a snapshot.
    "forky": Image("forky", apt_options=('Acquire::Check-Valid-Until "false"',)),
}

CELLS = {
    "debian12-v2-own": Cell("debian12", slurm=OWN),
    "debian12-hybrid-own": Cell("debian12", HYBRID, OWN),
    "debian12-v1-own": Cell("debian12", V1, OWN),
    "debian13-v2-own": Cell("debian13", slurm=OWN),
    "forky-v2-own": Cell("forky", slurm=OWN),
}
