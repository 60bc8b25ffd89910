# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTCondor of a virtual machine, which `start` has set up: the whole pool is on this host."""

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

from slurm import kernel, sites
from slurm.sites import until

LOGS = Path("/var/log/condor")
CONFIG = Path("/etc/condor/config.d/60-jobfence-case")
DROP_IN = Path("/run/systemd/system/condor.service.d/60-jobfence-case.conf")
# As condor_q has them.
STATES = {1: "idle", 2: "running", 3: "removed", 4: "completed", 5: "held", 6: "transferring", 7: "suspended"}


class InstalledHTCondor(sites.Site):
    users = ("alice", "bob")

    def __init__(self):
        super().__init__()
        self.config = Path("/etc/slurm/jobfence.conf")
        self.jobfence = Path(shutil.which("jobfence", path=sites.PATH))
        # HTCondor runs with settings of a case that is over, which it reads at its start alone.
        self.is_stale = False

    def __enter__(self):
        # HTCondor gives each job a /tmp of its own.
        self.home = Path(tempfile.mkdtemp(prefix="jobfence-htcondor-", dir="/srv"))
        self.home.chmod(0o755)
        self.config.parent.mkdir(exist_ok=True)
        for user in self.users:
            self.directory(user)
        return self

    def __exit__(self, *_):
        self.command("condor_rm", "-all")
        self.config.unlink(missing_ok=True)
        CONFIG.unlink(missing_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)
        return False

    # -- jobs ---------------------------------------------------------------------------

    def submit(self, user, script, cpus=1, mib=100, queue=1, schedd=None, **lines):
        """Submit a script and return the cluster's number. Its output is N.out in the user's directory."""
        place = self.directory(user)
        fd, path = tempfile.mkstemp(prefix="script-", dir=place)
        os.write(fd, ("#!/bin/bash\n" + script.strip("\n") + "\n").encode())
        os.close(fd)
        os.chmod(path, 0o755)
        said = {
            "universe": "vanilla", "executable": path, "initialdir": place, "should_transfer_files": "NO",
            "output": "$(Cluster).$(Process).out", "error": "$(Cluster).$(Process).err", "log": "$(Cluster).log",
            "environment": f'"JOB_ID=$(Cluster) JOBFENCE_SITE={self.home}"', "request_cpus": cpus, "request_memory": mib,
            "request_disk": 1, "job_lease_duration": 20, **lines,
        }
        text = "".join(f"{key} = {value}\n" for key, value in said.items()) + f"queue {queue}\n"
        done = self.as_user(user, ["condor_submit", *(["-name", schedd] if schedd else []), "-terse", "-"], stdin=text)
        if done.returncode != 0:
            raise AssertionError(f"condor_submit failed: {done.stderr.strip()} {done.stdout.strip()}")
        jobid = done.stdout.strip().split(".")[0]
        self.submitted.append((user, jobid))
        return jobid

    def ads(self, program, *args):
        """What a command says in JSON; nothing where it says nothing."""
        text = self.command(program, *args, "-json", timeout=60).stdout.strip()
        return json.loads(text) if text else []

    def queued(self, jobid, process=None):
        """The states of the cluster's jobs that the schedd still has."""
        which = str(jobid) if process is None else f"{jobid}.{process}"
        return [STATES.get(ad["JobStatus"], ad["JobStatus"]) for ad in self.ads("condor_q", which)]

    def job(self, jobid):
        found = self.ads("condor_q", str(jobid))
        return found[0] if found else {}

    def slot(self, jobid, process=0):
        """What the startd says of the slot in which the job runs: what it was granted."""
        name = until(lambda: next(iter(self.ads("condor_q", f"{jobid}.{process}")), {}).get("RemoteHost"), 60, f"the slot of job {jobid}")
        return self.slot_named(name)

    def slot_named(self, name):
        """The same by the slot's name, with or without that of the host."""
        said = f'Name == "{name}" || split(Name, "@")[0] == "{name}"'
        return until(lambda: self.ads("condor_status", "-constraint", said), 30, f"the ad of {name}")[0]

    def wait(self, jobid, timeout=120):
        """Wait until the job is over; what the history says of it."""
        def ended():
            states = self.queued(jobid)
            if "held" in states:
                raise AssertionError(f"job {jobid} is held: {self.job(jobid).get('HoldReason')}")
            return not states and self.ads("condor_history", str(jobid), "-limit", "1")
        return until(ended, timeout, f"the end of job {jobid}")[0]

    def wait_state(self, jobid, wanted, timeout=60):
        return until(lambda: wanted in self.queued(jobid), timeout, f"state {wanted} of job {jobid}, not {self.queued(jobid)}")

    def held(self, jobid, timeout=120):
        """Wait until the job is on hold; why, with the codes."""
        self.wait_state(jobid, "held", timeout)
        ad = self.job(jobid)
        return ad.get("HoldReason", ""), ad.get("HoldReasonCode"), ad.get("HoldReasonSubCode")

    def output(self, jobid, stream="out", process=0):
        for path in self.home.glob(f"*/{jobid}.{process}.{stream}"):
            return path.read_text(errors="replace")
        return ""

    def log(self, jobid):
        """The events that HTCondor writes for the job's user."""
        return "".join(path.read_text(errors="replace") for path in self.home.glob(f"*/{jobid}.log"))

    def job_pids(self, jobid, program=None):
        """The user's processes of a job, by the environment that HTCondor gave them."""
        found, marks = [], (f"JOB_ID={jobid}\0".encode(), f"JOBFENCE_SITE={self.home}\0".encode())
        for pid in kernel.all_pids():
            environment = kernel.environment_bytes(pid) + b"\0"
            if all(mark in environment for mark in marks) and kernel.is_alive(pid) and (
                    program is None or program in kernel.command_line(pid)):
                found.append(pid)
        return found

    def starter(self, group):
        """The starter in this fence."""
        place = group.directory("") / "starter"
        found = [pid for pid in map(int, kernel.read(place / "cgroup.procs").split())
                 if kernel.command_line(pid).startswith("condor_starter")]
        return found[0] if found else None

    def watcher(self, jobid):
        """The process that waits for the end of a job's starter."""
        return next((pid for pid in kernel.all_pids() if kernel.command_line(pid).startswith(f"jobfence-watch {jobid}.")), None)

    def remove(self, *jobids):
        return self.command("condor_rm", *map(str, jobids))

    def act(self, verb, jobid):
        done = self.command(f"condor_{verb}", str(jobid))
        if done.returncode != 0:
            raise AssertionError(f"condor_{verb}: {done.stdout}{done.stderr}")

    def idle_again(self):
        # A dynamic slot goes when its claim is given up, which can be later.
        # A schedd that does not answer says nothing, either.
        queue = self.command("condor_q", "-allusers", "-json", timeout=60)
        return queue.returncode == 0 and not queue.stdout.strip().strip("[]").strip()

    # -- the host and its daemons ---------------------------------------------------------

    def startd_pid(self):
        return self.daemon_pid("condor_startd")

    def daemon_pid(self, name):
        return next((pid for pid in kernel.all_pids() if re.match(rf"(\S*/)?{name}\b", kernel.command_line(pid))), None)

    def is_answering(self):
        return bool(self.ads("condor_status", "-limit", "1")) and self.command("condor_q", "-allusers").returncode == 0

    def release(self):
        return tuple(map(int, self.command("condor_version").stdout.split()[1].split(".")[:2]))

    def restart(self):
        done = self.command("systemctl", "restart", "condor.service", timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"systemctl restart: {done.stderr}")
        self.is_stale = False
        until(self.is_answering, 180, "the pool")

    @contextlib.contextmanager
    def changed(self, restart=False, **keys):
        """For the time being HTCondor's configuration has these lines, too. Some, as those of slots, are read at the start alone:
        the next restart forgets them, and `restored` sees to that."""
        def read():
            self.command("condor_reconfig")
        before = CONFIG.read_text() if CONFIG.exists() else ""
        CONFIG.write_text(before + "".join(f"{key} = {value}\n" for key, value in keys.items()))
        try:
            self.restart() if restart else read()
            yield
        finally:
            self.is_stale |= restart
            if before:
                CONFIG.write_text(before)
            else:
                CONFIG.unlink()
            if not self.is_stale:
                read()

    @contextlib.contextmanager
    def unit_changed(self, *lines):
        """For the time being condor.service has these lines of its section [Service], too."""
        DROP_IN.parent.mkdir(parents=True, exist_ok=True)
        DROP_IN.write_text("".join(f"{line}\n" for line in ("[Service]", *lines)))
        try:
            self.command("systemctl", "daemon-reload")
            self.restart()
            yield
        finally:
            self.is_stale = True
            DROP_IN.unlink()
            self.command("systemctl", "daemon-reload")

    def restored(self):
        """HTCondor has the settings of `start` again."""
        if self.is_stale:
            self.restart()

    def log_mark(self):
        return {path: path.stat().st_size for path in LOGS.glob("*Log*")}

    def slurmd_log_since(self, mark):
        """The startd's and the starters', under the name by which the shared helpers ask for it."""
        found = []
        for path in sorted(LOGS.glob("Start*Log*")):
            found.append(kernel.read_bytes(path)[mark.get(path, 0):].decode(errors="replace"))
        return "".join(found)

    def said(self, since):
        """What jobfence has logged since a moment of time.time()."""
        shown = self.command("journalctl", "--no-pager", "--since", f"@{int(since)}", "-o", "cat").stdout
        return "\n".join(line for line in shown.splitlines() if "jobfence: " in line)

    def kill_startd(self):
        os.kill(self.startd_pid(), signal.SIGKILL)

    # -- jobfence -----------------------------------------------------------------------

    def configure(self, text=""):
        if text:
            sites.write_atomically(self.config, text)
        else:
            self.config.unlink(missing_ok=True)

    def bases(self):
        return ["jobfence.slice/jobfence.scope", "jobfence"]

    def run_directory(self):
        return Path("/run/jobfence")
