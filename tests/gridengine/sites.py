# SPDX-License-Identifier: GPL-2.0-or-later
"""A Grid Engine that `start` has set up, with qmaster and execd on this host.

This host is a virtual machine, or a Debian tree in namespaces of its own on this machine.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import expect, expect_equal
from contract.sites import until

from .harness import ask, expect_limits, reported

HERE = Path(__file__).resolve().parent
ROOT, CELL = "/var/lib/gridengine", "default"
SPOOL = Path("/var/spool/gridengine/execd") / os.uname().nodename
PID_FILE = Path("/run/gridengine/execd.pid")
# The programs behind Debian's wrappers, each of which starts four more processes.
PROGRAMS = Path("/usr/lib/gridengine")


def fields(text):
    """What qacct and qconf print: a name and a value in each line. A name that comes again stands for the last."""
    found = (re.match(r"(\S+)\s+(.*\S)", line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


class InstalledGridEngine(sites.Installed):
    SCHEDULER, NUMBER, PLACE, STEP = "gridengine", "JOB_ID", "SGE_O_WORKDIR", "step_job"
    REFUSES_DESPITE_WARN = True
    PREFIX, QUEUE, IS_SET_UP_CENTRALLY = "jobfence-gridengine-", "all.q", True
    for_tests = None  # the command as it is built for tests

    def __init__(self):
        super().__init__()
        self.environment.update(SGE_ROOT=ROOT, SGE_CELL=CELL)

    def __exit__(self, *_):
        self.command("qdel", "-f", "-u", "*")
        return super().__exit__()

    def command(self, program, *args, **options):
        """Debian's command. What tests ask again and again, until something comes, they ask without its wrapper."""
        is_asked = program in ("qstat", "qacct")
        return super().command(str(PROGRAMS / program) if is_asked else program, *args, **options)

    # -- jobs ---------------------------------------------------------------------------

    def submit(self, user, script, *args, cpus=None, mib=None, again=None, env=None):
        """Submit a script and return the job's number. Its output is STDIN.oN in the user's directory."""
        args = (*args, *(ask(cpus, mib) if cpus else ()), *(() if again is None else ("-r", "y" if again else "n")))
        done = self.as_user(user, ["qsub", "-terse", "-cwd", *args], stdin=script.strip("\n") + "\n", env=env)
        if done.returncode != 0:
            raise AssertionError(f"qsub failed: {done.stderr.strip()} {done.stdout.strip()}")
        jobid = done.stdout.strip().split(".")[0].split("\n")[-1]
        self.submitted.append((user, jobid))
        return jobid

    def submit_array(self, user, script, count, *options, **asked):
        whole = self.submit(user, script, "-t", f"1-{count}", *options, **asked)
        return [f"{whole}.{task}" for task in range(1, count + 1)], whole

    def granted(self, jobid):
        """h_vmem is that of each slot."""
        slots = self.slots(jobid)
        return slots, slots * int(re.search(r"h_vmem=(\d+)M", self.job(jobid)["hard resource_list"])[1])

    def has_ended(self, jobid):
        states = self.queued(jobid.split(".")[0])
        return not states or "Eqw" in states

    def status(self, jobid):
        return int(self.wait(jobid, timeout=120)["exit_status"].split()[0])

    def describe(self, jobid):
        return f"{self.queued(jobid)} {self.reason(jobid)} {self.ends_of(jobid)[-1:]}"

    def queued(self, jobid):
        """The states of the job, or of its tasks, that qmaster has not forgotten yet."""
        rows = (line.split() for line in self.command("qstat", "-u", "*", "-g", "d").stdout.splitlines())
        return [row[4] for row in rows if row and row[0] == str(jobid)]

    def job(self, jobid):
        """What qmaster knows of a job that has not ended, as qstat -j prints it."""
        lines = self.command("qstat", "-j", str(jobid)).stdout.splitlines()
        return {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}

    def slots(self, jobid):
        """So many slots qmaster has granted to the job."""
        rows = (line.split() for line in self.command("qstat", "-u", "*").stdout.splitlines())
        return int(next(row for row in rows if row and row[0] == str(jobid))[8])

    def ends_of(self, jobid, task=None):
        """What the accounting says of each end of the job, the last one behind."""
        which = [] if task is None else ["-t", str(task)]
        done = self.command("qacct", "-j", str(jobid), *which)
        return [fields(part) for part in re.split(r"(?m)^=+$", done.stdout) if part.strip()]

    def last_end(self):
        """What the accounting says last."""
        rows = [fields(part) for part in re.split(r"(?m)^=+$", self.command("qacct", "-j").stdout)]
        return next((row for row in reversed(rows) if "jobnumber" in row), None)

    def wait(self, jobid, timeout=60, ends=1):
        """Wait until the job is over, and `ends` times in the accounting; its last row there."""
        def ended():
            states = self.queued(jobid)
            if "Eqw" in states:
                raise AssertionError(f"job {jobid} is in error: {self.reason(jobid)}")
            rows = not states and self.ends_of(jobid)
            return rows[-1] if rows and len(rows) >= ends else None
        return until(ended, timeout, f"the end of job {jobid}")

    def wait_state(self, jobid, wanted, timeout=30):
        """Wait for a state of qstat(1), such as r, s, or Eqw."""
        return until(lambda: wanted in self.queued(jobid), timeout, f"state {wanted} of job {jobid}, not {self.queued(jobid)}")

    def reason(self, jobid):
        """Why it is in error."""
        return " ".join(value for key, value in self.job(jobid).items() if key.startswith("error reason"))

    def output(self, jobid, stream="o", user=None):
        for path in self.home.glob(f"{user or '*'}/*.{stream}{jobid}"):
            return path.read_text(errors="replace")
        return ""

    def told(self, jobid):
        return self.output(jobid, "e")

    def job_pids(self, jobid, program=None):
        """Of a job, of one task of an array (JOB.TASK), or of all of them."""
        number, _, task = str(jobid).partition(".")
        return [pid for pid in super().job_pids(number, program) if not task or kernel.environment(pid).get("SGE_TASK_ID") == task]

    def shepherds(self, jobid):
        """The process that execd has started for the job, and the shepherd below it."""
        found = {pid: kernel.command_line(pid).strip() for pid in kernel.all_pids()
                 if re.match(rf"sge_shepherd-{jobid}( |$)", kernel.command_line(pid))}
        door = [pid for pid, line in found.items() if not line.endswith("-bg")]
        own = [pid for pid, line in found.items() if line.endswith("-bg")]
        return (door or [None])[0], (own or [None])[0]

    def qdel(self, *jobids):
        return self.command("qdel", *map(str, jobids))

    delete = qdel

    def suspend(self, jobid):
        self.qmod("-sj", jobid)
        self.wait_state(jobid, "s")

    def resume(self, jobid):
        self.qmod("-usj", jobid)
        self.wait_state(jobid, "r")

    def qmod(self, option, jobid):
        done = self.command("qmod", option, str(jobid))
        if done.returncode != 0:
            raise AssertionError(f"qmod {option}: {done.stdout}{done.stderr}")

    def qconf(self, *words):
        done = self.command("qconf", *words)
        if done.returncode != 0:
            raise AssertionError(f"qconf {words[0]}: {done.stdout}{done.stderr}")

    def idle_again(self):
        return not self.command("qstat", "-u", "*").stdout.strip()

    # -- the host and its daemon ----------------------------------------------------------

    def host_state(self):
        """The states of the queue's instance: nothing where it takes jobs."""
        rows = (line.split() for line in self.command("qstat", "-f").stdout.splitlines())
        return " ".join(next((row[5:] for row in rows if row and row[0].startswith("all.q@")), ["no queue"]))

    def is_ready(self):
        return not self.host_state()

    def mend(self):
        state = self.host_state()
        self.command("qmod", "-c", "*")
        return f"in state {state}"

    def refused(self, jobid):
        self.wait_state(jobid, "Eqw", 60)
        return self.reason(jobid)

    def refusal(self, jobid, mark):
        """The host takes no job after the first one, of which the log says why; none is in error."""
        until(lambda: "E" in self.host_state(), 30, f"the queue in error ({self.queued(jobid)})")
        # The scheduler may have sent both jobs to the host at once.
        until(lambda: self.queued(jobid) == ["qw"], 30, f"job {jobid} in the queue")
        reason = self.command("qstat", "-f", "-explain", "E").stdout
        if not re.search(r"job \d+'s failure at host", reason):
            raise AssertionError(f"qstat -explain says {reason}")
        return "\n".join(line for line in self.said_since(mark).splitlines() if "was not started: " in line)

    def after_refusal(self, jobid, script):
        self.command("qmod", "-c", "*")
        return jobid

    def holders(self, jobid):
        return *self.shepherds(jobid), self.execd_pid()

    def restart_daemon(self):
        self.stop_execd(signal.SIGTERM)
        self.start_execd()

    def look_for_ends(self):
        # Of jobs that it has not started itself, it looks once a minute (OLD_JOB_INTERVAL of execd_ck_to_do.c), and first when it begins.
        self.restart_daemon()

    def revive(self):
        if not self.execd_pid():
            self.start_execd()

    def accounted(self, ended):
        return float(ended["cpu"].rstrip("s"))

    def expect_beside(self, group, jobid):
        """Both steps have the limits; the shepherd has one of its own, and what execd has started is outside."""
        other = group.parent.step("step_shepherd")
        for one in group, other:
            expect_limits(one, 2, 200)
        door, shepherd = self.shepherds(jobid)
        expect_equal(other.members(), {shepherd}, "the step of the shepherd")
        expect(door not in group.parent.members(below=True), "the process that execd has started is in the fence")

    def execd_pid(self):
        text = kernel.read(PID_FILE).strip()
        return int(text) if text and kernel.is_alive(int(text)) else None

    def stop_execd(self, number=signal.SIGKILL):
        """SIGTERM is what 'softstop' sends: the jobs go on."""
        pid = self.execd_pid()
        os.kill(pid, number)
        until(lambda: not kernel.is_alive(pid), 20, "the end of execd")

    def start_execd(self):
        """In the cgroup of its service, where it belongs."""
        place = Path("/sys/fs/cgroup/system.slice/gridengine-exec.service/cgroup.procs")

        def enter():
            with contextlib.suppress(OSError):
                place.write_text("0")
        # Otherwise the script asks systemd, which has not noticed that it is gone.
        environment = {**self.environment, "SYSTEMCTL_SKIP_REDIRECT": "1"}
        subprocess.run(["/etc/init.d/gridengine-exec", "start"], env=environment, check=True, preexec_fn=enter,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(self.execd_pid, 20, "execd")

    def log_mark(self):
        return {"began": time.time(), "syslog": len(self.syslog()), "messages": len(kernel.read_bytes(SPOOL / "messages"))}

    def log_since(self, mark):
        """execd's."""
        return kernel.read_bytes(SPOOL / "messages")[mark["messages"] :].decode(errors="replace")

    @contextlib.contextmanager
    def changed(self, show, modify, **keys):
        """For the time being, these keys of what `qconf show` prints say something else; `modify` reads a file."""
        before = self.command("qconf", *show).stdout
        text = before
        for key, value in keys.items():
            text = re.sub(rf"(?m)^{key}\s.*(?:\\\n.*)*", f"{key} {value}", text)

        def write(text):
            place = Path(tempfile.mkdtemp(prefix="jobfence-qconf-"))
            # Of a configuration, the file's name is that of the host.
            file = place / "global"
            file.write_text(text)
            try:
                self.qconf(*modify, str(file))
            finally:
                shutil.rmtree(place)
        write(text)
        try:
            yield
        finally:
            write(before)

    def queue(self, **keys):
        return self.changed(["-sq", "all.q"], ["-Mq"], **keys)

    # -- jobfence -----------------------------------------------------------------------

    @contextlib.contextmanager
    def not_set_up(self, **keys):
        try:
            with self.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd="none", **keys):
                yield "-Aconf", f"shepherd_cmd {self.jobfence}", "load_sensor /"
        finally:
            # execd reads its configuration when it starts.
            self.restart_daemon()

    def what_setup_changes(self):
        """What qmaster says of the cluster, of this host and of the complexes."""
        shown = {"global": ["-sconf", "global"], "hosts": ["-sconfl"], "host": ["-sconf", self.node], "complexes": ["-sc"]}
        return {name: self.command("qconf", *words).stdout for name, words in shown.items()}

    def until_set_up(self):
        until(lambda: reported(self), 60, "a report of the load sensor")

    def syslog(self):
        return []

    def said_since(self, mark):
        lines = self.command("journalctl", "--no-pager", "--since", f"@{int(mark['began'])}").stdout.splitlines()
        return "\n".join(line for line in lines if "jobfence:" in line)

    def logged(self):
        """What jobfence has logged last."""
        lines = self.command("journalctl", "--no-pager", "-n", "300").stdout.splitlines()
        return "\n".join(line for line in lines if "jobfence:" in line)

    def forget_debits(self):
        """What a launch has asked qmaster, and the next ones read: it holds for minutes."""
        shutil.rmtree(self.run_directory() / "gridengine", ignore_errors=True)

    def leftovers(self):
        return [one for one in super().leftovers() if not one.startswith(f"{self.run_directory()}/gridengine/")]


class PrivateGridEngine(InstalledGridEngine):
    """The same in a Debian tree that vm/place.py runs us in: what systemd and the guest do there, is done here."""

    def __init__(self, base):
        self.base = base
        built = HERE.parent / "jobfence/target/debug/jobfence"
        self.for_tests = built if built.exists() else None
        run("env", "PREFIX=/usr", HERE.parent / "jobfence/plugstack/installation", "put")
        super().__init__()

    def __enter__(self):
        super().__enter__()
        self.configure()
        self.holder = subprocess.Popen([self.jobfence, "hold"], stdin=subprocess.DEVNULL)
        run(HERE / "start")
        return self

    def own_keys(self):
        return {"CgroupBase": self.base}

    def syslog(self):
        lines = kernel.read("/var/log/syslog").splitlines()
        return [line for line in lines if "jobfence:" in line or "jobfence[" in line]

    def said_since(self, mark):
        return "\n".join(self.syslog()[mark["syslog"] :])

    def logged(self):
        return "\n".join(self.syslog())

    def bases(self):
        return [self.base]


def run(*argv):
    """What must succeed. Its output is ours."""
    if (status := subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode) != 0:
        raise sites.SiteError(f"{' '.join(map(str, argv))}: status {status}")
