# SPDX-License-Identifier: GPL-2.0-or-later
"""A Slurm to test with: a private one made for the purpose, or an installed one."""

import contextlib
import os
import random
import re
import socket
import tempfile
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import Skip, expect, expect_equal, expect_in, expect_match, fenced, logged, started
from contract.kernel import Group
from contract.sites import Installed, Private, SiteError, hostname, settings_in, system_users, undisturbed, until, with_keys, write_atomically

from . import harness
from .installation import Installation, plugstack

UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED",
              "RESIZING"}


# ----------------------------------------------------------------------------------------
# What both sites can do


class Site(sites.Site):
    SCHEDULER, NUMBER, PLACE, STEP = "slurm", "SLURM_JOB_ID", "SLURM_SUBMIT_DIR", "step_batch"
    HAS_RUN_FENCED = r"job \d+ ran in .*/step_0$"
    STATUSES_AFTER_A_KILL = 7, 0  # 0 where Slurm itself says OUT_OF_MEMORY
    partition_wait = 30
    slurmd_log = controller_log = None
    began = 0  # where the log was when the case began
    accounting = None  # while there is one: see accounting.py

    # -- jobs -------------------------------------------------------------------------

    def submit(self, user, script, *args, cpus=None, mib=None, again=None, env=None):
        """Submit a batch script (without its first line) and return the job's number."""
        options = [] if any(a.startswith("--output") for a in args) else ["--output=%j.out"]
        options += [f"-c{cpus}"] * bool(cpus) + [f"--mem={mib}"] * bool(mib)
        options += {None: [], True: ["--requeue"], False: ["--no-requeue"]}[again]
        if "$JOB_ID" in script:
            script = "JOB_ID=$SLURM_JOB_ID\n" + script
        done = self.as_user(
            user, ["sbatch", "--parsable", *options, *args],
            stdin="#!/bin/bash\n" + script.strip("\n") + "\n", env=env,
        )
        if done.returncode != 0:
            raise AssertionError(f"sbatch failed: {done.stderr.strip()}")
        jobid = int(done.stdout.strip().split(";")[0])
        self.submitted.append((user, jobid))
        return jobid

    def submit_array(self, user, script, count, *options, **asked):
        whole = self.submit(user, script, f"--array=1-{count}", *options, **asked)
        return until(lambda: len(found := {int(one["JobId"]) for one in self.jobs(whole) if one["JobState"] == "RUNNING"}) == count and found,
                     60, f"all of array {whole}"), whole

    def granted(self, jobid):
        return self.granted_by_node(jobid)[self.node]

    def has_ended(self, jobid):
        return self.job(jobid).get("JobState") not in UNFINISHED

    def status(self, jobid):
        self.wait(jobid)
        return int(self.job(jobid)["ExitCode"].split(":")[0])

    def describe(self, jobid):
        job = self.job(jobid)
        return f"{job.get('JobState')} {job.get('ExitCode')}"

    def refused(self, jobid):
        expect_equal(self.wait(jobid), "FAILED", f"state of job {jobid}")
        expect_in(harness.NOT_STARTED, self.output(jobid), "the job's output")
        return self.output(jobid)

    def refusal(self, jobid, mark):
        """The job fails, and the log says why."""
        expect_in("Only your administrator can fix that", self.refused(jobid), "the job's output")
        return until(lambda: re.search(r"jobfence: .*:\d+:\d+: .*", self.log_since(mark)), 20, "the reason in slurmd's log")[0]

    def after_refusal(self, jobid, script):
        return self.submit(self.users[0], script, cpus=1, mib=100)

    def holders(self, jobid):
        return *self.step_daemons(jobid), self.slurmd_pid()

    def revive(self):
        if not self.slurmd_pid() or not kernel.is_alive(self.slurmd_pid()):
            self.restart_slurmd()
        if self.jobfence and any("/tracked/" in one for one in self.left()):
            # Left to 'jobfence hold', whose next round may be a minute away.
            self.ours("reap")

    def expect_limits(self, group, cpus, mib):
        for one in group, group.parent:
            harness.expect_limits(one, cpus, mib)

    def expect_no_limits(self, group, mib):
        for one in group, group.parent:
            harness.expect_limits(one, None, None, granted=mib)

    def begin(self, function):
        super().begin(function)
        self.began = self.log_mark()

    def processes_limit(self, group):
        """Slurm's own processes can be in the job's directory, too."""
        return group.processes_limit()

    def expect_beside(self, group, jobid):
        """A step has limits of its own in the job's directory. The job's environment has the job's."""
        user = next(user for user, submitted in self.submitted if submitted == jobid)
        srun = ["srun", f"--jobid={jobid}", "-n1", "-c1", "--mem=100", "sleep", "1000"]
        with started(self, user, srun, env={self.PLACE: str(self.directory(user))}):
            inner = fenced(self, jobid, "step_0")
            expect_equal(inner.parent, group.parent, "job directory of the inner step")
            harness.expect_limits(inner, 1.0, 100)
            environment = kernel.environment(next(pid for pid in self.job_pids(jobid, "sleep") if Group.of(pid) == group))
            self.scancel(f"{jobid}.0")
            logged(self, self.began, harness.ended_line(jobid, "0"))
        found = {name: value for name, value in environment.items() if name.startswith("JOBFENCE_")}
        # The boot, the step daemon, and when that started.
        boot = kernel.read("/proc/sys/kernel/random/boot_id").strip()
        expect_match(rf"^{boot}/\d+/\d+$", found.pop("JOBFENCE_STEP", ""), "JOBFENCE_STEP")
        wanted = {"JOBFENCE_CGROUP": group.path, "JOBFENCE_CPUS": "2", "JOBFENCE_MEMORY_BYTES": str(200 << 20)}
        expect_equal(found, wanted, "the job's environment")

    def expect_behind(self, jobid, runs=1):
        ended = harness.ended_line(jobid, "batch")
        until(lambda: len(re.findall(ended, self.log_since(self.began))) == runs, 10, f"a line about the end of each of {runs} runs")

    def why_killed(self, jobid):
        state = self.wait(jobid)
        expect(state in ("OUT_OF_MEMORY", "FAILED"), f"state {state}")
        until(lambda: not self.step_daemons(jobid), 5, "the end of the step daemon")
        harness.expect_killed_for_memory(self.output(jobid), jobid, "batch", 125)
        logged(self, self.began, harness.ended_line(jobid, "batch") + r", peak memory [\d.]+ MiB, OOM kills [1-9]")
        return self.output(jobid)

    def run_again(self, jobid):
        """Without the two minutes for which the controller holds such a job back."""
        runs = int(self.job(jobid)["Restarts"]) + 1
        done = self.command("scontrol", "requeue", str(jobid))
        expect_equal(done.returncode, 0, f"scontrol requeue {jobid} ({done.stderr})")
        until(lambda: self.job(jobid).get("JobState") == "PENDING", 20, f"job {jobid} in the queue")
        until(lambda: not self.step_daemons(jobid), 20, f"the end of the old run of job {jobid}")
        # slurmd refuses a run that begins in the second in which the one before it was ended.
        done = self.command("scontrol", "update", f"jobid={jobid}", "starttime=now+2seconds")
        expect_equal(done.returncode, 0, f"scontrol update {jobid} ({done.stderr})")
        until(lambda: int(self.job(jobid)["Restarts"]) == runs, 30, f"run {runs} of job {jobid}")

    def until_gone(self, group):
        harness.until_gone(self, group, 5, f"the end of {group.path}")

    def left(self):
        return {*self.leftovers(), *self.slurms_leftovers()}

    def is_ready(self):
        return self.node_state() == "IDLE"

    def mend(self):
        state = self.node_state()
        self.resume()
        return state

    def srun(self, user, *args, text=True, env=None):
        return self.as_user(user, ["srun", *args], text=text, env=env)

    def jobs(self, jobid=None):
        """What the controller knows, one dictionary for each job (an array has many); or of all."""
        which = [] if jobid is None else [str(jobid)]
        shown = self.command("scontrol", "show", "job", "-o", *which).stdout
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.splitlines()
                if line.startswith("JobId=")]

    def granted_by_node(self, jobid):
        """By node, how many CPUs and MiB the controller has granted there."""
        shown = self.command("scontrol", "show", "job", "-d", "-o", str(jobid)).stdout
        found = {}
        for names, ids, mib in re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+)", shown):
            ends = [part.split("-") for part in ids.split(",")]
            cpus = sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
            for node in self.command("scontrol", "show", "hostnames", names).stdout.split():
                found[node] = (cpus, int(mib))
        return found

    def job(self, jobid):
        found = self.jobs(jobid)
        return found[0] if found else {}

    def wait(self, jobid, timeout=60):
        """Wait until the job (or all of an array) is over; its state, or their states."""
        def ended():
            found = self.jobs(jobid)
            states = [one.get("JobState", "PENDING") for one in found]
            return states if states and not UNFINISHED & set(states) else None
        states = until(self.when_logged(ended), timeout, f"the end of job {jobid}")
        return states[0] if len(set(states)) == 1 else ",".join(sorted(states))

    def wait_running(self, jobid, timeout=30):
        def running():
            state = self.job(jobid).get("JobState")
            if state not in UNFINISHED:
                raise AssertionError(f"job {jobid} is {state} and should run:\n"
                                     + self.output(jobid))
            return state == "RUNNING"
        until(self.when_logged(running), timeout, f"the start of job {jobid}")

    def when_logged(self, ask):
        """`ask`, for `until`: at once when the controller has logged something, then ever more seldom, down to once a second. Each question
        costs a machine with many tests more than a look at a file."""
        asked, pause, size = 0.0, 0.0, None

        def condition():
            nonlocal asked, pause, size
            length = self.controller_log.stat().st_size if self.controller_log.exists() else 0
            if length != size:
                pause, size = 0.0, length
            if time.monotonic() - asked < pause:
                return None
            asked, pause = time.monotonic(), min(2 * pause + 0.05, 1)
            return ask()
        return condition

    def scancel(self, *args):
        return self.command("scancel", *(str(a) for a in args))

    delete = scancel

    def output(self, jobid):
        """The batch output file of a job."""
        for path in self.home.glob(f"*/{jobid}.out"):
            return path.read_text(errors="replace")
        return ""

    told = output

    def step_daemons(self, jobid):
        """The pids of slurmstepd for this job."""
        return [pid for pid in self.our_processes()
                if kernel.command_line(pid).startswith(f"slurmstepd: [{jobid}.")]

    def our_processes(self):
        return kernel.all_pids()

    def idle_again(self):
        """No job left in the queue."""
        return not self.command("squeue", "-h").stdout.strip()

    # -- the node and its daemon --------------------------------------------------------

    def node_state(self):
        """The state of the node, or the states of several that differ."""
        shown = self.command("scontrol", "show", "node", "-o", ",".join(self.nodes)).stdout
        states = re.findall(r"\bState=(\S+)", shown)
        return ",".join(sorted(set(states))) if states else "UNKNOWN"

    def resume(self):
        self.command("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=resume")

    def log_mark(self):
        try:
            return self.slurmd_log.stat().st_size
        except FileNotFoundError:
            return 0

    def log_since(self, mark):
        try:
            with open(self.slurmd_log, "rb") as log:
                log.seek(mark)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def slurmd_pid(self):
        """The running node daemon."""
        raise NotImplementedError

    def restart_slurmd(self):
        raise NotImplementedError

    def write_slurm_conf(self, **keys):
        """slurm.conf as this site has it, but for these keys; None takes one out.

        No daemon reads it for that: see `reconfigured`.
        """
        raise NotImplementedError

    def write_cgroup_conf(self, **keys):
        """The same of cgroup.conf."""
        raise NotImplementedError

    def restart_controller(self):
        raise NotImplementedError

    def _restart_slurm(self):
        """The controller too, with what it has saved: no number is given to two jobs."""
        raise NotImplementedError

    @contextlib.contextmanager
    def reconfigured(self, cgroup=None, **keys):
        """For the time being slurm.conf says this, and cgroup.conf that, and the daemons have started with it."""
        try:
            self.write_slurm_conf(**keys)
            if cgroup:
                self.write_cgroup_conf(**cgroup)
            self._restart_slurm()
            yield
        finally:
            self._end_jobs()
            self.write_slurm_conf()
            if cgroup:
                self.write_cgroup_conf()
            self._restart_slurm()

    def _end_jobs(self):
        """Ours, before a restart: the daemons would forget what still runs."""
        with contextlib.suppress(AssertionError):
            if self.submitted:
                self.scancel(*(jobid for _, jobid in self.submitted))
            until(self.idle_again, 20, "the end of every job")

    # -- jobfence -----------------------------------------------------------------------

    def slurms_leftovers(self):
        """Job directories of Slurm's own cgroup plugins, which it must be able to remove."""
        root, found = Path("/sys/fs/cgroup"), []
        if not kernel.slurm_tracks:
            # It does not kill all that is in them before it tries, and does not try again.
            return []
        for scope, top in self.slurms_names():
            # 26.05 puts a slurmd there that systemd has not started.
            found += (p for p in kernel.directories_below(root / "system.slice")
                      if p.match(f"{root}/system.slice/{scope}/*") and p.name not in ("system", "slurmd"))
            # Only where we have written something. Slurm 22.05 can leave its own behind elsewhere.
            for controller in ("cpu", "memory"):
                found += (p for p in kernel.directories_below(root / controller)
                          if p.match(f"{root}/{controller}/{top}/uid_*/job_*"))
        return sorted(map(str, found))

    def slurms_names(self):
        """What Slurm's own plugins call a node's directory, on v2 and on v1."""
        return [(f"{node}_slurmstepd.scope", f"slurm_{node}") for node in self.nodes]

    def slurm_tracks(self):
        """Whether Slurm knows by its cgroups which processes are a step's."""
        shown = self.command("scontrol", "show", "config").stdout
        return bool(re.search(r"^ProctrackType\s*=\s*proctrack/cgroup", shown, re.M))

    def slurm_has_directories(self):
        """Whether Slurm makes cgroups for a step: to track its processes, or to limit them."""
        shown = self.command("scontrol", "show", "config").stdout
        return self.slurm_tracks() or bool(re.search(r"^TaskPlugin\s*=.*\bcgroup", shown, re.M))

    def tasks_share_a_directory(self):
        """Whether all tasks of a step are in one directory of Slurm's: nothing but proctrack/cgroup makes any."""
        shown = self.command("scontrol", "show", "config").stdout
        return (kernel.has_v2_controllers() and self.slurm_tracks()
                and not re.search(r"^TaskPlugin\s*=.*\bcgroup", shown, re.M))

    def slurm_limits_memory(self):
        """Whether Slurm's task/cgroup writes memory limits of its own."""
        shown = self.command("scontrol", "show", "config").stdout
        return bool(re.search(r"^TaskPlugin\s*=.*\bcgroup", shown, re.M)
                    and re.search(r"^ConstrainRAMSpace\s*=\s*yes", shown, re.M | re.I))

    def not_set_up(self):
        raise Skip("would set up the Slurm of this machine")

    def plugstack_files(self):
        raise NotImplementedError

    @contextlib.contextmanager
    def plugstack(self, *arguments, kind="required", twice=False, before=(), after=()):
        """For the time being, the plugin's line in plugstack.conf is another, between others."""
        path, text, line = self._plugin_line()
        changed = " ".join([kind, *line.split()[1:], *arguments])
        lines = [*before, *[changed] * (1 + twice), *after]
        write_atomically(path, text.replace(line, "\n".join(lines)))
        try:
            yield
        finally:
            write_atomically(path, text)

    def _plugin_line(self):
        """The file that names the plugin, its text, and the line in it."""
        for path in self.plugstack_files():
            text = path.read_text()
            for line in text.splitlines():
                if "libjobfence" in line and not line.lstrip().startswith("#"):
                    return path, text, line
        raise AssertionError("no plugstack file names the plugin")

    def plugin(self):
        """The shared object that Slurm loads."""
        return Path(self._plugin_line()[2].split()[1])

    @contextlib.contextmanager
    def unplugged(self):
        """For the time being this is a Slurm that has never heard of jobfence.

        slurmd starts again for it: it has the plugin loaded, and newer releases tell their
        step daemons what to load.
        """
        path, text, line = self._plugin_line()
        try:
            write_atomically(path, text.replace(line, "#" + line))
            self.restart_slurmd()
            yield
        finally:
            self._end_jobs()
            write_atomically(path, text)
            self.restart_slurmd()


# ----------------------------------------------------------------------------------------
# A private Slurm


class PrivateSite(Private, Site):
    """A Slurm of one node in a directory of its own, gone without a trace afterwards.

    The daemons are children of a *keeper*, a child of ours which is the subreaper of
    everything below it. However this process ends, even by SIGKILL, the keeper sees its
    socket close and ends whatever is still there: it finds each process as its own
    descendant, so it needs no list and touches nobody else's.
    """

    # What Slurm does with cgroups, unless the settings say otherwise: nothing.
    PLACEMENT = {
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
    }

    def __init__(self, so=None, command=None, users=None, settings=None):
        """`users`: two, or any two with nothing to do. `settings`: a directory whose slurm.conf and cgroup.conf have lines for ours."""
        super().__init__(so, command)
        self.placement, self.cgroup = dict(self.PLACEMENT), {}
        if settings:
            self.placement.update(settings_in(Path(settings, "slurm.conf")))
            self.cgroup.update(settings_in(Path(settings, "cgroup.conf")))
        self.users = tuple(users or ())
        if not self.systemd:
            # Slurm takes a hybrid host without systemd for one with cgroup2, and refuses it.
            self.cgroup.setdefault("CgroupPlugin", "cgroup/v1")
        self.leases, self.ports = [], {}
        self.topology = self.default_topology()

    def default_topology(self):
        """What slurm.conf says of a node's CPUs: those of this machine, without their threads."""
        cpus = os.cpu_count()
        return f"CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1"

    def __enter__(self):
        # The keeper has them, too: they are given back when all that is theirs has ended.
        self.leases = [] if self.users else system_users()
        self.users = self.users or tuple(one.name for one in self.leases)
        with undisturbed():
            # No directory without a keeper that will remove it.
            self.top = Path(tempfile.mkdtemp(prefix="jobfence-site-"))
            self.environment["SLURM_CONF"] = str(self.top / "slurm.conf")
            trees = [self.base, *(top for _, top in self.slurms_names() if self.placement != self.PLACEMENT)]
            self.keeper = Keeper(self.top, self.environment, trees)
        try:
            self.top.chmod(0o755)
            self.home = self.top / "home"
            self.config = self.top / "jobfence.conf"
            self.slurmd_log = self.top / "slurmd.log"
            self.controller_log = self.top / "slurmctld.log"
            self._write_files()
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _write_files(self):
        for name in ("home", "munge", "state", "spool"):
            (self.top / name).mkdir(mode=0o755)
        (self.top / "run").mkdir(mode=0o700)  # jobfence takes no other
        (self.top / "munge/key").write_bytes(os.urandom(128))
        (self.top / "munge/key").chmod(0o600)
        for user in self.users:
            self.directory(user)
        self.configure()
        line = ""
        if self.so:
            line = f"required {self.copied(self.so)} config={self.config}\n"
        (self.top / "plugstack.conf").write_text(line)
        self.write_cgroup_conf()
        daemons = ["slurmctld", *self.nodes]
        self.ports = dict(zip(daemons, free_ports(len(daemons))))
        self.write_slurm_conf()

    def write_slurm_conf(self, topology=None, **keys):
        """Also with nodes that look like this."""
        self.topology = topology or self.default_topology()
        write_atomically(self.top / "slurm.conf", with_keys(self._slurm_conf(), keys))

    def write_cgroup_conf(self, **keys):
        write_atomically(self.top / "cgroup.conf", with_keys("", {**self.cgroup, **keys}))

    def _slurm_conf(self):
        address = own_address()
        return f"""\
ClusterName={self.name}
SlurmctldHost={hostname()}({address or LOOPBACK})
SlurmctldPort={self.ports["slurmctld"]}
SlurmdPort={self.ports[self.node]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.top}/munge/socket
{"CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if address else ""}
StateSaveLocation={self.top}/state
SlurmdSpoolDir={self.top}/spool
SlurmctldPidFile={self.top}/slurmctld.pid
SlurmdPidFile={self.top}/slurmd.pid
SlurmctldLogFile={self.controller_log}
SlurmdLogFile={self.slurmd_log}
SlurmctldDebug=info
SlurmdDebug=info
PlugStackConfig={self.top}/plugstack.conf
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=5
KillWait=2
MinJobAge=3600
InactiveLimit=0
PartitionName=all Nodes=ALL Default=YES MaxTime=60 OverSubscribe=NO State=UP
""" + with_keys("", self.placement) + self._node_lines()

    def _node_lines(self):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        return f"""\
NodeName={self.node} NodeAddr={own_address() or LOOPBACK} Port={self.ports[self.node]} {self.topology} \
RealMemory={memory * 9 // 10}
"""

    def _start(self):
        munge = self.top / "munge"
        if self.so:
            self.start_hold()
        self.keeper.start("munged", [
            "munged", "--foreground", "--force", f"--socket={munge}/socket",
            f"--key-file={munge}/key", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed",
            f"--log-file={munge}/log",
        ])
        self._until_ready((munge / "socket").exists, "munged")
        self._start_slurm()

    def _start_slurm(self, controller=("slurmctld", "-c", "-D")):
        self.keeper.start("slurmctld", controller)
        self._start_slurmd()
        self._until_ready(lambda: self.node_state() == "IDLE", "the idle node")

    def _start_slurmd(self):
        self.keeper.start("slurmd", ["slurmd", "-D"])

    def _stop_slurmd(self):
        self.keeper.stop("slurmd")

    def restart_controller(self):
        self.keeper.stop("slurmctld")
        self.keeper.start("slurmctld", ["slurmctld", "-D"])
        until(lambda: self.command("scontrol", "ping").returncode == 0, self.partition_wait,
              "the new controller")

    def _restart_slurm(self):
        self._stop_slurmd()
        self.keeper.stop("slurmctld")
        self._start_slurm(("slurmctld", "-D"))

    def _until_ready(self, condition, what):
        try:
            until(condition, self.partition_wait, what)
        except AssertionError as error:
            logs = "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                           for path in sorted(self.top.glob("*.log")))
            raise SiteError(f"{error}\n{logs}") from None

    def our_processes(self):
        return kernel.descendants(self.keeper.pid)

    def slurmd_pid(self):
        return self.keeper.pids["slurmd"]

    def restart_slurmd(self):
        self._stop_slurmd()
        self._start_slurmd()
        self._until_answering(self.node)

    def _until_answering(self, node):
        """The controller goes on calling it idle for a while: ask slurmd itself.

        Without its name scontrol looks for one on the loopback, where newer releases do not listen.
        """
        until(lambda: self.command("env", f"SLURMD_NODENAME={node}", "scontrol", "show", "slurmd").returncode == 0,
              self.partition_wait, f"the new slurmd of {node}")

    def plugstack_files(self):
        return [self.top / "plugstack.conf"]

    @contextlib.contextmanager
    def not_set_up(self):
        """jobfence is installed below a directory of its own, whose command is the site's meanwhile."""
        here, self.installation = self.jobfence, Installation(self)
        expect_equal(self.installation.make("put")[0], 0, "exit status of the installation")
        journal = self.top / "journal/setup"
        journal.parent.mkdir(exist_ok=True)
        self.jobfence, self.setup_words = self.installation.command, ("--journal", str(journal))
        try:
            with plugstack(self, "# of this site\n"):
                yield [f"+include {self.installation.line.parent}/*.conf\n"]
                expect(not journal.parent.exists(), "the journal is left")
                status, said = self.installation.make("remove")
                expect_equal(status, 0, f"exit status of the removal ({said})")
        finally:
            self.jobfence = here

    def what_setup_changes(self):
        """Files of Slurm's and of jobfence's, with their modes."""
        found = [*self.top.glob("*.conf"), *self.installation.prefix.rglob("*")]
        return {str(path): (path.lstat().st_mode, hash(path.read_bytes())) for path in found if path.is_file()}


class TwoNodesSite(PrivateSite):
    """A private Slurm of two nodes on this host, each with a slurmd of its own.

    PrologFlags=Contain makes an extern step on each node of a job. The nodes claim more CPUs
    than the host has: what is granted counts here, not what a job does with it.
    """

    nodes = ["n1", "n2"]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Nobody can be bound to CPUs that the host does not have.
        plugins = [p for p in self.placement["TaskPlugin"].split(",") if p != "task/affinity"]
        self.placement["TaskPlugin"] = ",".join(plugins) or "task/none"
        self.cgroup.pop("ConstrainCores", None)

    def default_topology(self):
        return "CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1"

    @property
    def node(self):
        """The first: the batch script of a job on both nodes runs there."""
        return self.nodes[0]

    def _slurm_conf(self):
        return with_keys(super()._slurm_conf(), {
            "SlurmdSpoolDir": f"{self.top}/spool/%n",
            "SlurmdPidFile": f"{self.top}/slurmd-%n.pid",
            "SlurmdLogFile": f"{self.top}/slurmd-%n.log",
            # Shows what Slurm tells jobfence: `granted: Items {…}`.
            "SlurmdDebug": "debug",
            "PrologFlags": "Contain",
        })

    def _node_lines(self):
        host = hostname()
        return "".join(
            f"NodeName={node} NodeHostname={host} NodeAddr={own_address() or LOOPBACK} Port={self.ports[node]} "
            f"{self.topology} RealMemory=1000\n" for node in self.nodes)

    def _start_slurmd(self, *nodes):
        for node in nodes or self.nodes:
            self.keeper.start(f"slurmd-{node}", ["slurmd", "-D", "-N", node])

    def _stop_slurmd(self, *nodes):
        for node in nodes or self.nodes:
            self.keeper.stop(f"slurmd-{node}")

    def restart_slurmd(self, *nodes):
        """These, or all of them."""
        nodes = nodes or self.nodes
        self._stop_slurmd(*nodes)
        self._start_slurmd(*nodes)
        for node in nodes:
            self._until_answering(node)

    def slurmd_pid(self, node=None):
        return self.keeper.pids[f"slurmd-{node or self.node}"]

    def _log(self, node):
        return self.top / f"slurmd-{node}.log"

    def log_mark(self):
        return {node: log.stat().st_size if log.exists() else 0
                for node, log in ((node, self._log(node)) for node in self.nodes)}

    def log_since(self, mark, node=None):
        """Of one node, or of all one after the other."""
        said = ""
        for each in [node] if node else self.nodes:
            with contextlib.suppress(FileNotFoundError), open(self._log(each), "rb") as log:
                log.seek(mark[each])
                said += log.read().decode(errors="replace")
        return said


LOOPBACK = "127.0.0.1"


def own_address():
    """What this host's name stands for, if that is an address of this host: usually 127.0.1.1.

    Slurm listens there alone when told so, and connects to it from there; otherwise everywhere.
    """
    try:
        address = socket.gethostbyname(os.uname().nodename)
        with socket.socket() as probe:
            probe.bind((address, 0))
        return address
    except OSError:
        return None


def free_ports(count):
    """Ports below the range from which the kernel gives out its own."""
    sockets = []
    try:
        while len(sockets) < count:
            trial = socket.socket()
            sockets.append(trial)
            try:
                trial.bind(("", random.randrange(20000, 32000)))
            except OSError:
                sockets.remove(trial)
                trial.close()
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Keeper(sites.Keeper):
    """The keeper of Slurm's daemons: of their jobs, Slurm itself ends those that it can."""

    def _step_processes(self):
        """What belongs to jobs: every descendant but the daemons and their own helpers."""
        daemons = set(self.pids.values())
        for name in ("slurmctld", "munged"):
            if name in self.pids:
                daemons.update(kernel.descendants(self.pids[name]))
        # `slurmstepd infinity` keeps Slurm's scope alive.
        return [pid for pid in kernel.descendants(os.getpid())
                if pid not in daemons and kernel.is_alive(pid)
                and not kernel.command_line(pid).endswith("slurmstepd infinity")]

    def _end_jobs(self):
        slurmds = [name for name in self.pids if name.startswith("slurmd")]
        if slurmds:
            jobs = self._command("squeue", "-h", "-r", "-o", "%A").split()
            if jobs:
                self._command("scancel", *jobs)
                self._poll(lambda: not self._step_processes(), 8)
        self._end([self.pids[n] for n in (*slurmds, "slurmctld") if n in self.pids], 5)
        self._end([self.pids[n] for n in ("munged", "hold") if n in self.pids], 5)


# ----------------------------------------------------------------------------------------
# An installed Slurm


class InstalledSite(Installed, Site):
    """The Slurm of this machine, its services running and its node idle."""

    SLURM_CONF = Path("/etc/slurm/slurm.conf")
    CGROUP_CONF = Path("/etc/slurm/cgroup.conf")

    def __init__(self):
        super().__init__()
        self.slurmd_log = Path("/var/log/slurm/slurmd.log")
        self.controller_log = Path("/var/log/slurm/slurmctld.log")

    def configure_raw(self, text):
        """The file is there without a line, too: cases name it."""
        return Site.configure_raw(self, text)

    def __enter__(self):
        self.saved = self.config.read_bytes() if self.config.exists() else None
        self.slurm_conf = self.SLURM_CONF.read_bytes()
        self.cgroup_conf = self.CGROUP_CONF.read_bytes() if self.CGROUP_CONF.exists() else b""
        super().__enter__()
        try:
            until(lambda: self.node_state() == "IDLE", self.partition_wait, "the idle node")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        # Only our own jobs: this Slurm may have others.
        jobs = [str(jobid) for _, jobid in self.submitted]
        if jobs:
            self.scancel(*jobs)
        super().__exit__()
        if self.saved is not None:
            write_atomically(self.config, self.saved)
        return False

    @property
    def node(self):
        shown = self.command("scontrol", "show", "hostnames", self._node_names()).stdout.split()
        return shown[0] if shown else super().node

    def _node_names(self):
        return self.command("sinfo", "-h", "-o", "%N").stdout.split("\n")[0] or "localhost"

    def slurmd_pid(self):
        for name in ("/run/slurmd.pid", "/run/slurm/slurmd.pid", "/var/run/slurmd.pid"):
            if text := kernel.read(name):
                return int(text)
        found = [p for p in kernel.all_pids() if kernel.read(f"/proc/{p}/comm") == "slurmd"]
        return min(found) if found else None

    def _restart_service(self, name):
        # systemd starts a service five times in ten seconds, and cases that follow each other may want more.
        self.command("systemctl", "reset-failed", name)
        done = self.command("systemctl", "restart", name, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"{name} does not start: {done.stderr}")

    def restart_slurmd(self):
        self._restart_service("slurmd")
        until(lambda: self.command("scontrol", "show", "slurmd").returncode == 0,
              self.partition_wait, "the new slurmd")

    def write_slurm_conf(self, **keys):
        text = self.slurm_conf.decode()
        write_atomically(self.SLURM_CONF, with_keys(text, keys) if keys else text)

    def write_cgroup_conf(self, **keys):
        write_atomically(self.CGROUP_CONF, with_keys(self.cgroup_conf.decode(), keys))

    def restart_controller(self):
        self._restart_service("slurmctld")
        until(lambda: self.command("scontrol", "ping").returncode == 0, self.partition_wait,
              "the new controller")

    def _restart_slurm(self):
        for service in ("slurmctld", "slurmd"):
            self._restart_service(service)
        until(lambda: self.node_state() == "IDLE", self.partition_wait, "the idle node")

    def own_keys(self):
        """Where things are stays as the administrator has said."""
        keys = {}
        for line in (self.saved or b"").decode(errors="replace").splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip().lower() in ("cgroupbase", "rundir"):
                keys[name.strip()] = value.strip()
        return keys

    def bases(self):
        configured = {k.lower(): v for k, v in self.own_keys().items()}.get("cgroupbase")
        return [configured.strip("/")] if configured else super().bases()

    def slurms_names(self):
        return [("*slurmstepd.scope", "slurm*")]

    def run_directory(self):
        configured = {k.lower(): v for k, v in self.own_keys().items()}.get("rundir")
        return Path(configured) if configured else super().run_directory()

    def plugstack_files(self):
        return [Path("/etc/slurm/plugstack.conf"),
                *sorted(Path("/etc/slurm/plugstack.conf.d").glob("*.conf"))]
