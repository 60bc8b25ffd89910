# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTCondor of a Debian tree that vm/place.py runs us in: what systemd and the guest do elsewhere, is done here.

jobfence refuses HTCondor's jobs where cgroup v1 is mounted. So HTCondor sees nothing but cgroup2 here: the hierarchies of this machine
are in another directory, which jobfence is told of. This cgroup2 has no memory and no CPU time to limit, so HTCondor's own limits are
missing. The fence has those of v1, and HTCondor has its job in a cgroup of its own in the fence, as elsewhere.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import expect_equal, expect_in
from contract.sites import until

from .sites import LOGS, InstalledHTCondor, is_whole

HERE = Path(__file__).resolve().parent
USUAL, CGROUPS = Path("/sys/fs/cgroup"), Path("/cgroups")
UNIFIED = CGROUPS / "unified"
# What HTCondor sees of cgroup2, without a job: nobody's processes are there.
SEEN = "htcondor-sees"
STARTER, REAL_STARTER = Path("/usr/sbin/condor_starter"), Path("/usr/sbin/condor_starter.real")
# HTCondor makes a job's cgroup below what it sees as the root of cgroup2. To the starter of a job, that is the job's fence.
IN_ITS_FENCE = f"""#!/bin/bash
own=$(sed -n 's|^0::\\(/.*/step_[^/]*\\)/starter$|\\1|p' /proc/self/cgroup)
[ "$own" ] || exec -a condor_starter {REAL_STARTER} "$@"
exec unshare --mount bash -c 'mount --bind "$0" {USUAL} && exec -a condor_starter {REAL_STARTER} "$@"' "{UNIFIED}$own" "$@"
"""

NO_LIMIT = "HTCondor's own limit of memory is what it is about"
NO_COUNT = "it reads what cgroup2 counts of memory"
# What 'make check' runs and a guest alone shows, by case: why. Where a release has more, a guest has it, too.
IN_GUESTS = {
    "out_of_memory": NO_LIMIT,
    "out_of_the_fences_memory": NO_LIMIT,
    "memory_as_the_site_says": NO_LIMIT,
    "local_out_of_memory": NO_LIMIT,
    "why_it_is_held": NO_LIMIT,
    "card": NO_COUNT,
    "stays_in": "the limits that a job tries to raise are files of cgroup2",
    "container": "Docker is a daemon of the host's",
    "gpus": "terminals of a screen stand for GPUs, and the kernel must have those",
    "service_comes_first": "it is about units of systemd",
}


def run(*argv):
    """What must succeed. Its output is ours."""
    if (status := subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode) != 0:
        raise sites.SiteError(f"{' '.join(map(str, argv))}: status {status}")


class PrivateHTCondor(InstalledHTCondor):
    CGROUP2, HTCONDOR_LIMITS_MEMORY = UNIFIED, False

    def __init__(self, base):
        if not (USUAL / "memory").is_dir():
            raise sites.Lacks("needs a machine with the memory controller in a hierarchy of cgroup v1")
        self.base = base
        run("env", "PREFIX=/usr", HERE.parent / "jobfence/plugstack/installation", "put")
        super().__init__()

    def __enter__(self):
        super().__enter__()
        self.show_cgroup2_alone()
        STARTER.rename(REAL_STARTER)
        STARTER.write_text(IN_ITS_FENCE)
        STARTER.chmod(0o755)
        self.configure()
        self.holder = subprocess.Popen([self.jobfence, "hold"], stdin=subprocess.DEVNULL)
        # systemd gives each unit one, and a site's configuration can ask for it.
        os.environ["INVOCATION_ID"] = self.base
        run(HERE / "start")
        return self

    def show_cgroup2_alone(self):
        CGROUPS.mkdir()
        # Nobody else sees it: we have mounts of our own.
        run("mount", "--move", USUAL, CGROUPS)
        if not UNIFIED.is_dir():
            raise sites.Lacks(f"needs a machine with cgroup2 at {USUAL}/unified")
        seen = UNIFIED / self.base / SEEN
        seen.mkdir(parents=True)
        run("mount", "--bind", seen, USUAL)

    def own_keys(self):
        return {"CgroupBase": self.base, "CgroupMountpoint": CGROUPS}

    def configure_raw(self, text):
        """A case can say otherwise where the hierarchies are."""
        keys = self.own_keys()
        said = {line.partition("=")[0] for line in text.splitlines()}
        first = "".join(f"{key}={value}\n" for key, value in keys.items() if key not in said)
        sites.write_atomically(self.config, first + text)
        return first.count("\n")

    def bases(self):
        return [self.base]

    # -- the daemons ----------------------------------------------------------------------

    def is_of_the_pool(self, pid):
        with contextlib.suppress(FileNotFoundError):
            return os.stat(f"/proc/{pid}").st_uid in (0, os.stat(LOGS).st_uid)
        return False

    def stop(self):
        """As systemd does it: at once, and then whatever is left."""
        master = self.daemon_pid("condor_master")
        os.kill(master, signal.SIGQUIT)
        until(lambda: not kernel.is_alive(master), 180, "the end of HTCondor")

    def restart(self):
        self.stop()
        mark = self.log_mark()
        run("condor_master")
        self.is_stale = False
        until(lambda: is_whole(self.log_since(mark, "Collector")), 180, "slots and schedd in the pool")
        self.answered = self.daemons()

    # -- jobfence -------------------------------------------------------------------------

    def said(self, since):
        """Of lines with a moment of this machine's clock, in seconds and without a year."""
        found, year = [], time.localtime(since).tm_year
        for line in kernel.read("/var/log/syslog").splitlines():
            moment, said = line.partition(">")[2][:15], line[20:]
            if "jobfence: " in said and time.mktime(time.strptime(f"{year} {moment}", "%Y %b %d %H:%M:%S")) >= int(since):
                found.append(line)
        return "\n".join(found)

    def expect_beside(self, group, jobid):
        expect_equal(group.name, "step_" + self.slot(jobid)["Name"].partition("@")[0], "its directory")
        expect_equal(bool(self.starter(group)), True, "whether the starter is in the fence")
        pid = self.job_pids(jobid, "sleep")[0]
        expect_in(f"{group.path}/htcondor/", kernel.cgroups_of(pid)[""], "where HTCondor has put the job")
        expect_equal(group.parent.cpu_limit(), None, "the CPU limit of the job, which may have other slots")
