# SPDX-License-Identifier: GPL-2.0-or-later
"""An HTCondor that `start` has set up: the whole pool is on this host, which is a virtual machine, or in private.py a Debian tree."""

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import expect_equal, expect_match, fenced
from contract.sites import until

# What the starter has of the fence: StarterMemory.
STARTERS_MIB = 1024
LOGS = Path("/var/log/condor")
CONFIG = Path("/etc/condor/config.d/60-jobfence-case")
# What `start` has written, and what 'jobfence setup' writes.
STARTED, SET_UP = Path("/etc/condor/config.d/50-jobfence-tests"), Path("/etc/condor/config.d/90-jobfence.conf")
DROP_IN = Path("/run/systemd/system/condor.service.d/60-jobfence-case.conf")
# Where the schedd writes the ad of each job that has left its queue, if `start` has set it up: nothing has to be asked then.
HISTORY = Path("/var/lib/condor/jobfence-history")
# The state of a job after an event in the log that HTCondor writes for the job's user.
STATES = {
    "000": "idle", "001": "running", "004": "idle", "007": "idle", "010": "suspended", "011": "running", "012": "held", "013": "idle",
    "023": "running",
}
RELEASED = "\n013 ("
HELD = re.compile(r"(?m)^012 .*\n\t(?P<reason>.*)\n\tCode (?P<code>\d+) Subcode (?P<subcode>\d+)$")
# What the logs of the daemons say of the configuration.
READ = "Re-reading config files"
DAEMONS = "master", "collector", "negotiator", "schedd", "startd"


def value_of(text):
    """A value of an ad, as far as JSON knows it; what is an expression stays a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def is_whole(log):
    """Whether a collector, whose log this is, knows the slots and the schedd of its pool."""
    return bool(re.search("ScheddAd *: Inserting", log) and re.search(r'Ad *: Inserting \*\* "< slot', log))


class InstalledHTCondor(sites.Installed):
    SCHEDULER, NUMBER, PLACE = "htcondor", "JOB_ID", "HOME_OF_SITE"
    TELLS, HAS_CGROUPS = False, True
    # Its own limit goes on working: it holds the job, as without jobfence.
    KILLED = r"(?i)memory"
    HAS_RUN_FENCED = r"job \d+\.0 (ran in .*/job_\d+|did not begin in time)"
    DEAF = {"want_graceful_removal": "False"}
    # Where cgroup2 is.
    CGROUP2, HTCONDOR_LIMITS_MEMORY = "/sys/fs/cgroup", True
    # HTCondor gives each job a /tmp of its own.
    PREFIX, WHERE = "jobfence-htcondor-", "/srv"

    def __init__(self):
        super().__init__()
        # HTCondor runs with settings of a case that is over, which it reads at its start alone.
        self.is_stale = False
        # How many jobs each cluster has, and where they log; those that the case has removed; the daemons of the last answer.
        self.clusters, self.logs = {}, {}
        self.removed = set()
        self.answered = None

    def __exit__(self, *_):
        self.command("condor_rm", "-all")
        CONFIG.unlink(missing_ok=True)
        return super().__exit__()

    # -- jobs ---------------------------------------------------------------------------

    def submit(self, user, script, cpus=1, mib=100, queue=1, schedd=None, again=None, **lines):
        """Submit a script and return the cluster's number. Its output is N.out in the user's directory."""
        if again is False:
            # HTCondor waits for so long for a daemon that may come back to the job.
            lines["job_lease_duration"] = 20
        place = self.directory(user)
        fd, path = tempfile.mkstemp(prefix="script-", dir=place)
        os.write(fd, ("#!/bin/bash\n" + script.strip("\n") + "\n").encode())
        os.close(fd)
        os.chmod(path, 0o755)
        said = {
            "universe": "vanilla", "executable": path, "initialdir": place, "should_transfer_files": "NO",
            "output": "$(Cluster).$(Process).out", "error": "$(Cluster).$(Process).err", "log": "$(Cluster).log",
            "environment": f'"JOB_ID=$(Cluster) HOME_OF_SITE={self.home}"', "request_cpus": cpus, "request_memory": mib,
            "request_disk": 1, "job_lease_duration": 120, **lines,
        }
        text = "".join(f"{key} = {value}\n" for key, value in said.items()) + f"queue {queue}\n"
        done = self.as_user(user, ["condor_submit", *(["-name", schedd] if schedd else []), "-terse", "-"], stdin=text)
        if done.returncode != 0:
            raise AssertionError(f"condor_submit failed: {done.stderr.strip()} {done.stdout.strip()}")
        jobid = done.stdout.strip().split(".")[0]
        # Of another schedd's jobs, the case itself sees to the end.
        if not schedd:
            self.submitted.append((user, jobid))
            self.clusters[jobid], self.logs[jobid] = queue, place / f"{jobid}.log"
        return jobid

    def ads(self, program, *args):
        """What a command says in JSON; nothing where it says nothing."""
        text = self.command(program, *args, "-json", timeout=60).stdout.strip()
        return json.loads(text) if text else []

    def ended(self, jobid, process=0):
        """The ad of a job that has left the schedd's queue; nothing before that."""
        pairs = (line.split(" = ", 1) for line in kernel.read(HISTORY / f"history.{jobid}.{process}").splitlines() if " = " in line)
        return {name: value_of(text) for name, text in pairs}

    def state(self, jobid, process=0):
        """The state of a job that the schedd still has."""
        events = re.findall(rf"(?m)^(\d{{3}}) \(0*{jobid}\.0*{process}\.\d+\) ", self.log(jobid))
        return None if self.ended(jobid, process) else next((STATES[event] for event in reversed(events) if event in STATES), "idle")

    def has_ended(self, jobid):
        return not self.queued(jobid)

    def granted(self, jobid):
        slot = self.slot(jobid)
        return slot["Cpus"], slot["Memory"]

    def status(self, jobid):
        return self.wait(jobid)["ExitCode"]

    def told(self, jobid):
        return self.output(jobid, "err")

    def describe(self, jobid):
        return "\n  | ".join([f"{self.queued(jobid)} {self.reason(jobid)}", *self.log(jobid).splitlines()[-30:]])

    def queued(self, jobid):
        """The states of the cluster's jobs that the schedd still has."""
        states = (self.state(jobid, process) for process in range(self.clusters[jobid]))
        return [state for state in states if state]

    def has_started(self, jobid):
        """Some time, also if it has ended since."""
        return "\n001 (" in self.log(jobid)

    def job(self, jobid):
        found = self.ads("condor_q", str(jobid))
        return found[0] if found else {}

    def slot(self, jobid, process=0):
        """What the startd says of the slot in which the job runs: what it was granted."""
        return self.slot_that(f'JobId == "{jobid}.{process}"')

    def slot_named(self, name):
        """The same by the slot's name, without that of the host."""
        return self.slot_that(f'split(Name, "@")[0] == "{name}"')

    def slot_that(self, condition):
        asked = "condor_status", "-constraint", condition, "-attributes", "Name,Cpus,Memory"
        return until(lambda: self.ads(*asked), 120, f"the ad of {condition}")[0]

    def wait(self, jobid, timeout=120):
        """Wait until the job is over; what the schedd says of it then."""
        def ended():
            if "held" in self.queued(jobid):
                raise AssertionError(f"job {jobid} is held: {self.reason(jobid)}")
            return self.ended(jobid)
        return until(ended, timeout, f"the end of job {jobid}")

    def wait_state(self, jobid, wanted, timeout=120):
        return until(lambda: wanted in self.queued(jobid), timeout, f"state {wanted} of job {jobid}, not {self.queued(jobid)}")

    def reason(self, jobid):
        """Why a job was put on hold the last time; nothing if it was not."""
        found = list(HELD.finditer(self.log(jobid)))
        return found[-1]["reason"] if found else ""

    def held_or_ended(self, jobid, timeout=120):
        """Wait until the job is over, or on hold; then why it is."""
        until(lambda: set(self.queued(jobid)) <= {"held"}, timeout, f"the end of job {jobid}")
        return self.reason(jobid) if self.queued(jobid) else ""

    def held(self, jobid, timeout=120):
        """Wait until the job is on hold; why, with the codes."""
        self.wait_state(jobid, "held", timeout)
        found = list(HELD.finditer(self.log(jobid)))[-1]
        return found["reason"], int(found["code"]), int(found["subcode"])

    def why_killed(self, jobid):
        reason, code, _ = self.held(jobid)
        expect_equal(code, 34, f"the code of the hold, whose reason is {reason}")
        return reason

    def refusal(self, jobid, mark):
        reason, code, subcode = self.held(jobid)
        expect_match("cannot be fenced: .*Only your administrator", reason, "the reason")
        expect_equal(subcode, 190, f"the subcode, beside code {code}")
        return reason

    def after_refusal(self, jobid, script):
        self.act("release", jobid)
        return jobid

    def output(self, jobid, stream="out", process=0):
        for path in self.home.glob(f"*/{jobid}.{process}.{stream}"):
            return path.read_text(errors="replace")
        return ""

    def log(self, jobid):
        """The events that HTCondor writes for the job's user, as far as they are whole."""
        events, end, _ = kernel.read_bytes(self.logs[jobid]).decode(errors="replace").rpartition("\n...\n")
        return events + end

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
        """Those that are still there. The schedd may be late, and the job with it."""
        self.removed.update(jobids)

        def is_done():
            done = self.command("condor_rm", *map(str, jobids))
            return done.returncode == 0 or not any(self.queued(jobid) for jobid in jobids)
        until(is_done, 60, f"condor_rm of {', '.join(jobids)}")

    delete = remove

    def run_again(self, jobid):
        self.act("hold", jobid)
        self.wait_state(jobid, "held")
        self.act("release", jobid)

    def holders(self, jobid):
        """Starter, watcher and startd."""
        return self.watcher(jobid), self.starter(fenced(self, jobid)), self.startd_pid()

    def act(self, verb, jobid):
        """What the schedd does of it later is in the job's log, in which it notes a release after its answer."""
        said, noted = [], self.log(jobid).count(RELEASED)

        def is_done():
            done = self.command(f"condor_{verb}", str(jobid))
            said.append(done.stdout + done.stderr)
            return done.returncode == 0
        try:
            # The job's log can say what the schedd is about to do.
            until(is_done, 20, verb)
        except AssertionError as error:
            raise AssertionError(f"{error}: condor_{verb}: {said[-1]}") from None
        if verb == "release":
            until(lambda: self.log(jobid).count(RELEASED) > noted, 120, f"the release of job {jobid} in its log")

    def idle_again(self):
        """None of the case's jobs is in the schedd's queue. A dynamic slot goes when its claim is given up, which can be later."""
        return not any(self.queued(jobid) for _, jobid in self.submitted)

    # -- the host and its daemons ---------------------------------------------------------

    def startd_pid(self):
        return self.daemon_pid("condor_startd")

    def daemon_pid(self, name):
        return next((pid for pid in kernel.all_pids() if re.match(rf"(\S*/)?{name}\b", kernel.command_line(pid))), None)

    def is_of_the_pool(self, pid):
        """One of a user's own pool is not."""
        return kernel.cgroups_of(pid).get("", "").startswith("/system.slice/condor.service")

    def daemons(self):
        """What the kernel says of the pool's daemons, by their names."""
        found = {}
        for pid in sorted(kernel.all_pids()):
            name = re.match(r"(?:/\S*/)?condor_(\w+)", kernel.command_line(pid))
            if name and name[1] in DAEMONS and self.is_of_the_pool(pid):
                # Some fork to answer.
                found.setdefault(name[1], kernel.identity(pid))
        return found

    def is_answering(self):
        """The pool's daemons are those that have answered, or they answer now."""
        now = self.daemons()
        if len(now) < len(DAEMONS):
            return False
        if now != self.answered:
            if not self.ads("condor_status", "-limit", "1", "-attributes", "Name") or self.command("condor_q", "-totals").returncode != 0:
                return False
            self.answered = now
        return True

    is_ready = is_answering

    def mend(self):
        return f"one with the daemons {self.daemons()}"

    def begin(self, function):
        if not getattr(function, "restarts", False):
            self.restored()
        super().begin(function)

    def release(self):
        return tuple(map(int, self.command("condor_version").stdout.split()[1].split(".")[:2]))

    def restart(self):
        mark = self.log_mark()
        done = self.command("systemctl", "restart", "condor.service", timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"systemctl restart: {done.stderr}")
        self.is_stale = False
        # A command that asks sooner can wait for a minute, and takes the daemons' time.
        until(lambda: is_whole(self.log_since(mark, "Collector")), 180, "slots and schedd in the pool")
        self.answered = self.daemons()

    def reconfigure(self):
        """HTCondor reads its configuration again. When this returns, its daemons do so, before they take up anything else."""
        mark = self.log_mark()
        os.kill(self.daemon_pid("condor_master"), signal.SIGHUP)
        for name in "Start", "Sched":
            until(lambda name=name: READ in self.log_since(mark, name), 120, f"that {name}Log says {READ!r}")

    @contextlib.contextmanager
    def changed(self, restart=False, **keys):
        """For the time being HTCondor's configuration has these lines, too. Some, as those of slots, are read at the start alone:
        the next restart forgets them, and `restored` sees to that."""
        before = CONFIG.read_text() if CONFIG.exists() else ""
        CONFIG.write_text(before + "".join(f"{key} = {value}\n" for key, value in keys.items()))
        try:
            self.restart() if restart else self.reconfigure()
            yield
        finally:
            self.is_stale |= restart
            if before:
                CONFIG.write_text(before)
            else:
                CONFIG.unlink()
            if not self.is_stale:
                self.reconfigure()

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
        return {"began": time.time(), **{path: path.stat().st_size for path in LOGS.glob("*Log*")}}

    def log_since(self, mark, name=None):
        """Of this daemon; otherwise the startd's and the starters'."""
        paths = [LOGS / f"{name}Log"] if name else sorted(LOGS.glob("Start*Log*"))
        return "".join(kernel.read_bytes(path)[mark.get(path, 0):].decode(errors="replace") for path in paths)

    def said_since(self, mark):
        return self.said(mark["began"])

    def said(self, since):
        """What jobfence has logged since a moment of time.time()."""
        shown = self.command("journalctl", "--no-pager", "--since", f"@{int(since)}", "-o", "cat").stdout
        return "\n".join(line for line in shown.splitlines() if "jobfence: " in line)

    def kill_startd(self):
        os.kill(self.startd_pid(), signal.SIGKILL)

    # -- jobfence -----------------------------------------------------------------------

    @contextlib.contextmanager
    def not_set_up(self):
        """No daemon is started anew by what is done then."""
        text = STARTED.read_text()
        STARTED.write_text(re.sub(r"(?m)^STARTER(_LOCAL)? =.*\n", "", text))
        try:
            self.reconfigure()
            self.until_it_starts("/usr/sbin/condor_starter")
            daemons = self.daemons()
            yield [f"+STARTER = {self.jobfence}"]
            self.until_it_starts("/usr/sbin/condor_starter")
            expect_equal(self.daemons(), daemons, "the daemons, of which none is started anew")
        finally:
            STARTED.write_text(text)
            SET_UP.unlink(missing_ok=True)
            self.reconfigure()

    def what_setup_changes(self):
        return SET_UP.exists() and SET_UP.read_text()

    def until_set_up(self):
        self.until_it_starts(self.jobfence)
        until(lambda: "JobfenceMemory" in self.command("condor_status", "-l", timeout=120).stdout, 180, "what jobfence reports of the host")

    def until_it_starts(self, program):
        """The startd that runs, for a job."""
        asked = "condor_config_val", "-startd", "STARTER"
        until(lambda: self.command(*asked, timeout=120).stdout.strip() == str(program), 60, f"a startd that starts {program}")

    @property
    def IS_ALONE(self):
        """Where HTCondor finds no controllers in cgroup2, it leaves the job beside the starter."""
        return kernel.has_v2_controllers()

    def directory_of(self, jobid):
        return f"job_{jobid}.0"

    def limited(self, group):
        """A job may have other slots."""
        return group

    def expect_limits(self, group, cpus, mib):
        """Beside the slot's memory, the fence has the starter's."""
        super().expect_limits(group, cpus, mib + STARTERS_MIB)
        expect_equal(group.step("htcondor").memory_limit(), mib << 20, "memory limit of all that HTCondor makes in there")

    def expect_beside(self, group, jobid):
        """HTCondor's own directory is in the fence, and so is the starter; the step has the name of the slot."""
        expect_equal(group.name, "step_" + self.slot(jobid)["Name"].partition("@")[0], "its directory")
        expect_equal(bool(self.starter(group)), True, "whether the starter is in the fence")
        own = [kernel.read(path).strip() for path in group.directory("").rglob("memory.max") if f"{group.path}/htcondor/" in str(path)]
        expect_equal(str(200 << 20) in own, True, f"whether {own} has the limit that HTCondor has set")
        expect_equal(group.parent.cpu_limit(), None, "the CPU limit of the job, which may have other slots")
