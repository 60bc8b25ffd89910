# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be booted: a table of images and a table of cells.

An image is one Debian release on disk. A cell is an image, a kernel command line (which decides the cgroup layout), a
scheduler, and for Slurm the settings that decide which program owns the job's cgroup. Adding a release, a placement or
a scheduler's cell is adding a line here.
"""

import os
from dataclasses import dataclass, field

PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "linux-image-cloud-amd64", "initramfs-tools", "iproute2", "procps", "kmod",
    "passwd", "python3", "slurm-wlm", "slurm-wlm-basic-plugins", "munge", "libpam-slurm-adopt", "libmpich12",
    "slurmdbd", "mariadb-server-core",
)
# What an OpenPBS that was built on Debian 12 loads and starts. It is no package itself.
OPENPBS = (
    "postgresql", "libical3", "libhwloc15", "libpython3.11", "libedit2", "libexpat1", "libcjson1", "libpq5", "libssl3",
    "libtcl8.6", "hostname",
)
GRIDENGINE = ("gridengine-master", "gridengine-exec", "gridengine-client")
# The Docker of its Docker universe, and what the container of a case is made of.
DOCKER = ("docker.io", "docker-cli", "containerd", "runc", "iptables", "busybox-static")
POOL = ("minicondor",)
HTCONDOR = (*POOL, "openssh-server", "openssh-client", *DOCKER)
# What ends jobs for lack of memory on a node, beside the kernel.
OOMD = ("systemd-oomd",)
# By what a user can leave a job, or tries to: docs/limitations.md has the table.
SESSIONS = ("libpam-systemd", "openssh-server", "openssh-client", "cron", "at", "tmux", "podman", "uidmap", "crun", "docker.io", "busybox-static")
# A cluster is made in the guest, since it notes the name of its host.
NO_CLUSTER = "gridengine-common shared/gridengineconfig boolean false"

@dataclass(frozen=True)
class Image:
    suite: str
    packages: tuple = PACKAGES
    apt_options: tuple = ()  # mmdebstrap --aptopt=
    answers: tuple = ()  # to what packages ask when they are installed, as debconf-set-selections(1) reads them


@dataclass(frozen=True)
class Cell:
    image: str
    cmdline: str = ""
    slurm: dict = field(default_factory=dict)  # lines added to slurm.conf
    cgroup: dict = field(default_factory=dict)  # lines of cgroup.conf
    # A folder of tests/, which goes into the guest. If it is not Slurm's, its 'start' and then its 'cases.py' run there.
    scheduler: str = "slurm"
    # A variable of the environment without which the cell is skipped, and what it must name.
    needs: tuple = ()


# Slurm keeps its hands off cgroups: jobfence owns the tree. It binds tasks to CPUs by affinity alone.
OWN = {
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/affinity",
    "JobAcctGatherType": "jobacct_gather/linux",
}

# Slurm makes a cgroup for every step and confines it, as most sites have it: jobfence adds to those.
OVERLAY = {
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "JobAcctGatherType": "jobacct_gather/cgroup",
}
CONSTRAIN = {"ConstrainCores": "yes", "ConstrainRAMSpace": "yes", "ConstrainSwapSpace": "yes"}

# Settings between the two: Slurm has cgroups that are not those by which it ends a step, and the reverse.
LINUXPROC = {**OVERLAY, "ProctrackType": "proctrack/linuxproc"}
PROCTRACK = {**OWN, "ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/none"}

# systemd 252 still has both old layouts; "legacy" takes effect only when unified is off.
HYBRID = "systemd.unified_cgroup_hierarchy=0"
# Its case starts it.
NO_OOMD = "systemd.mask=systemd-oomd.service systemd.mask=systemd-oomd.socket"
V1 = HYBRID + " systemd.legacy_systemd_cgroup_controller=1"

IMAGES = {
    "debian12": Image("bookworm"),
    "debian12-openpbs": Image("bookworm", PACKAGES + OPENPBS),
    "debian12-gridengine": Image("bookworm", PACKAGES + GRIDENGINE, answers=(NO_CLUSTER,)),
    "debian13": Image("trixie", PACKAGES + OOMD),
    "debian13-gridengine": Image("trixie", PACKAGES + GRIDENGINE, answers=(NO_CLUSTER,)),
    "debian13-htcondor": Image("trixie", PACKAGES + HTCONDOR),
    "debian12-sessions": Image("bookworm", PACKAGES + GRIDENGINE + SESSIONS, answers=(NO_CLUSTER,)),
    # Its signatures last a week, and a mirror may be a snapshot.
    "forky": Image("forky", apt_options=('Acquire::Check-Valid-Until "false"',)),
    # What a site would use instead of jobfence.
    "debian12-bench": Image("bookworm", PACKAGES + ("cgroup-tools", "crun")),
    "forky-htcondor": Image("forky", PACKAGES + HTCONDOR, apt_options=('Acquire::Check-Valid-Until "false"',)),
}



def openpbs(cmdline=""):
    """A cell of OpenPBS, which has a PostgreSQL of its own."""
    return Cell(
        "debian12-openpbs", f"{cmdline} systemd.mask=postgresql.service".strip(), scheduler="pbs",
        needs=("OPENPBS", "the tree of an OpenPBS 23.06 for Debian 12, which 'make install DESTDIR=...' of OpenPBS makes"),
    )


def gridengine(cmdline="", image="debian12-gridengine"):
    """A cell of Grid Engine, whose packages bring a mail server that nobody needs here."""
    return Cell(image, f"{cmdline} systemd.mask=exim4.service".strip(), scheduler="gridengine")


def sessions():
    """A cell of Grid Engine in which users log in, also from within jobs. The cases of Docker start a daemon of their own."""
    masked = ("docker.service", "docker.socket", "containerd.service")
    return gridengine(" ".join(f"systemd.mask={unit}" for unit in masked), image="debian12-sessions")


def htcondor(image):
    """A cell of HTCondor. It uses cgroup v2 alone. Its starters start an sshd for a job, and nobody needs that of the host. The cases
    of Docker start a daemon of their own."""
    masked = " ".join(f"systemd.mask={unit}" for unit in ("ssh.service", "docker.service", "docker.socket", "containerd.service"))
    return Cell(image, masked, scheduler="htcondor")


# By name: image, layout, and who owns the job's cgroup.
CELLS = {
    "debian12-v2-own": Cell("debian12", "", OWN),
    "debian12-hybrid-own": Cell("debian12", HYBRID, OWN),
    "debian12-v1-own": Cell("debian12", V1, OWN),
    "debian13-v2-own": Cell("debian13", NO_OOMD, OWN),
    "forky-v2-own": Cell("forky", "", OWN),
    "debian12-v2-overlay": Cell("debian12", "", OVERLAY, CONSTRAIN),
    "debian12-hybrid-overlay": Cell("debian12", HYBRID, OVERLAY, CONSTRAIN),
    "debian12-v1-overlay": Cell("debian12", V1, OVERLAY, CONSTRAIN),
    "debian13-v2-overlay": Cell("debian13", NO_OOMD, OVERLAY, CONSTRAIN),
    "forky-v2-overlay": Cell("forky", "", OVERLAY, CONSTRAIN),
    "debian12-v2-mixed-linuxproc": Cell("debian12", "", LINUXPROC, CONSTRAIN),
    "debian12-v2-mixed-proctrack": Cell("debian12", "", PROCTRACK),
    "debian12-hybrid-mixed-linuxproc": Cell("debian12", HYBRID, LINUXPROC, CONSTRAIN),
    "debian12-hybrid-mixed-proctrack": Cell("debian12", HYBRID, PROCTRACK),
    "debian12-v2-bench": Cell("debian12-bench", "", OWN),
    "debian12-v2-openpbs": openpbs(),
    "debian12-hybrid-openpbs": openpbs(HYBRID),
    "debian12-v1-openpbs": openpbs(V1),
    "debian12-v2-gridengine": gridengine(),
    "debian12-hybrid-gridengine": gridengine(HYBRID),
    "debian12-v1-gridengine": gridengine(V1),
    "debian13-v2-gridengine": gridengine(image="debian13-gridengine"),
    "debian12-v2-sessions": sessions(),
    "debian13-v2-htcondor": htcondor("debian13-htcondor"),
    "forky-v2-htcondor": htcondor("forky-htcondor"),
}


def lacking(cell):
    """What the user of the tests has not given for this cell, in one line; or nothing."""
    needs = CELLS[cell].needs
    return f"{cell} needs {needs[0]}=DIR: {needs[1]}" if needs and not os.environ.get(needs[0]) else None


# What 'make check' runs, with the options of cell.py. The one that takes longest begins first. chosen.py has the cases of Slurm.
CHECKED = (
    ("debian13-v2-htcondor", ("--chosen",)),
    ("debian13-v2-own", ("--installed", "--chosen")),
    ("debian12-v2-own", ("--installed", "--chosen", "--hook")),
    ("forky-v2-overlay", ("--installed", "--chosen")),
    ("debian12-hybrid-overlay", ("--installed", "--chosen")),
)
# What else has a guest of its own in 'make check-all', and a slice: the cell, its name, and the options of cell.py.
BY_THEMSELVES = (
    ("debian12-v2-own", "traces", ("traces",)),
    ("debian13-v2-own", "reboot", ("--only-reboot",)),
    # Of the hook of OpenPBS, what takes longest in a guest.
    ("debian12-v2-own", "hook", ("gpus_by_job", "granted_huge_pages")),
    ("forky-v2-overlay", "two nodes", ("--two-nodes", "--chosen")),
)
