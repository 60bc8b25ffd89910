# SPDX-License-Identifier: GPL-2.0-or-later
"""An OpenPBS to test with: a private one in namespaces of its own, or the installed one of a virtual machine.

The private one looks like an installed one to everything in it: this process itself enters the namespaces. So both are
the same to the cases.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import inspect
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from contract import kernel, sites
from contract.harness import Skip
from contract.sites import Installed, Keeper, Lacks, Private, SiteError, undisturbed, until, write_atomically

TOP = Path(__file__).resolve().parents[2]
EXEC = Path("/opt/pbs")
SPOOL = Path("/var/spool/pbs")
CONF = Path("/etc/pbs.conf")
PATH = f"{EXEC}/bin:{EXEC}/sbin:{sites.PATH}"
NODE = "node1"
# What the server must know besides its own defaults: a job that has ended can be asked for, and the scheduler looks
# at once.
SETTINGS = (
    "set server job_history_enable = True",
    "set server flatuid = True",
    "set server scheduler_iteration = 5",
    "set server acl_roots = root",
)
FINISHED = {"F", "X"}


def tree():
    """The tree of an installed OpenPBS that the user of the tests has given."""
    given = os.environ.get("OPENPBS")
    if not given:
        raise Lacks("needs an OpenPBS: OPENPBS=DIR names a tree with opt/pbs, as 'make install DESTDIR=DIR' of OpenPBS makes it")
    path = Path(given).resolve()
    if not (path / "opt/pbs/sbin/pbs_mom").is_file():
        raise Lacks(f"OPENPBS={given} has no opt/pbs/sbin/pbs_mom")
    return path


def postgres():
    """Where PostgreSQL's programs are: PBS looks for them beside psql."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise Lacks("needs PostgreSQL: the Debian package postgresql")
    return found[-1].parent


# ----------------------------------------------------------------------------------------
# What both sites can do


class PbsSite(sites.Site):
    """Commands, jobs and hooks of an OpenPBS with one server; `nodes` are its hosts."""

    SCHEDULER, NUMBER, PLACE, STEP = "openpbs", "PBS_JOBID", "PBS_O_WORKDIR", "step_1"
    LEARNS_STATUS = LOGS_NOTICES = False  # MoM's log has the library's warnings
    QUEUE, users = "workq", ("alice", "bob")
    nodes = [NODE]
    IS_SET_UP_CENTRALLY = True
    shipped = TOP / "hooks/pbs"  # the hook
    journal = None  # of 'jobfence setup'

    def __init__(self):
        super().__init__()
        self.environment["PATH"] = PATH
        self.hooks = set()
        self.so = None

    @property
    def node(self):
        return self.nodes[0]

    # -- commands -----------------------------------------------------------------------

    def qmgr(self, *lines):
        """An administrator's commands, each of which must succeed."""
        for line in lines:
            done = self.command("qmgr", "-c", line)
            if done.returncode != 0:
                raise SiteError(f"qmgr: {line}: {done.stderr.strip()}")

    # -- jobs ---------------------------------------------------------------------------

    def submit(self, user, script, *args, cpus=None, mib=None, again=None, env=None):
        """Submit a batch script and return the job's id, which is a text. The job's output is STDIN.oN."""
        args = (*args, *([f"-lselect=1:ncpus={cpus}:mem={mib}mb"] if cpus else []))
        args += () if again is None else ("-r", "y" if again else "n")
        # PBS starts a job in the home of its user.
        script = 'cd "$PBS_O_WORKDIR"\nJOB_ID=$PBS_JOBID\n' + script.strip("\n") + "\n"
        done = self.as_user(user, ["qsub", *args], stdin=script, env=env)
        if done.returncode != 0:
            raise AssertionError(f"qsub failed: {done.stderr.strip()}")
        jobid = done.stdout.strip()
        self.submitted.append((user, jobid))
        return jobid

    def job(self, jobid):
        """What the server knows of a job, also of one that has ended: its attributes as qstat -f names them."""
        shown = self.command("qstat", "-xfw", jobid)
        return attributes(shown.stdout) if shown.returncode == 0 else {}

    def submit_array(self, user, script, count, *options, **asked):
        array = self.submit(user, script, f"-J0-{count - 1}", *options, **asked)
        number, server = array.split("[].")
        return [f"{number}[{index}].{server}" for index in range(count)], array

    def names_of(self, jobid):
        """Without its server, as a whole, and with the server's host."""
        number, server = jobid.split(".", 1)
        return list(dict.fromkeys([number, jobid, f"{number}.{server.split('.')[0]}"]))

    def granted(self, jobid):
        cpus, kib = granted(self.job(jobid))[self.node]
        return cpus, kib >> 10

    def has_ended(self, jobid):
        return self.state(jobid) in FINISHED

    def status(self, jobid):
        return int(self.wait(jobid, 120)["Exit_status"])

    def describe(self, jobid):
        job = self.job(jobid)
        return f"{job.get('job_state')} {job.get('Exit_status')} {job.get('comment')}"

    def state(self, jobid):
        return self.job(jobid).get("job_state", "")

    def wait(self, jobid, timeout=60):
        """Wait until the job is over and return its attributes."""
        def ended():
            found = self.job(jobid)
            return found if found.get("job_state") in FINISHED else None
        return until(ended, timeout, f"the end of job {jobid}")

    def wait_state(self, jobid, wanted, timeout=30):
        """Wait until the job is in this state (R, S, H, Q, ...) and return its attributes."""
        def is_there():
            found = self.job(jobid)
            state = found.get("job_state", "")
            if state in FINISHED and state != wanted:
                raise AssertionError(f"job {jobid} has ended and should be in state {wanted}: "
                                     f"Exit_status {found.get('Exit_status')}, {found.get('comment')}")
            return found if state == wanted else None
        return until(is_there, timeout, f"state {wanted} of job {jobid}")

    def wait_running(self, jobid, timeout=30):
        return self.wait_state(jobid, "R", timeout)

    def output(self, jobid, stream="o"):
        """What a job has said, after its end; with `stream` "e" on stderr."""
        number = re.sub(r"\[(\d+)\]", r".\1", jobid.split(".")[0])
        for path in self.home.glob(f"*/STDIN.{stream}{number}"):
            return path.read_text(errors="replace")
        return ""

    def told(self, jobid):
        return self.output(jobid, "e")

    def qdel(self, *jobids):
        return self.command("qdel", *jobids)

    delete = qdel

    def suspend(self, jobid):
        # The server may have no connection yet to a MoM that has just come back.
        until(lambda: self.command("qsig", "-s", "suspend", jobid).returncode == 0, 60, "qsig -s suspend")
        self.wait_state(jobid, "S")

    def resume(self, jobid):
        self.qsig(jobid, "resume")
        self.wait_running(jobid)

    def run_again(self, jobid):
        done = self.command("qrerun", jobid)
        if done.returncode != 0:
            raise AssertionError(f"qrerun: {done.stderr.strip()}")

    def refusal(self, jobid, mark):
        """The job waits in its queue, the reason is in MoM's log, and the node is free."""
        said = until(lambda: re.search(r"jobfence: [^\n]*:\d+:\d+[^\n]*", self.log_since(mark)), 60, "the reason in MoM's log")
        until(lambda: self.state(jobid) in ("Q", "H"), 60, f"a job that waits, and not {self.describe(jobid)}")
        until(lambda: self.node_state() in ("free", "job-busy"), 20, "a free node")
        return said[0]

    def after_refusal(self, jobid, script):
        """The server may have given it up until then."""
        self.command("qrls", "-h", "s", jobid)
        return jobid

    def restart_daemon(self):
        self.kill_mom()
        self.start_mom("-p")

    def revive(self):
        if "jobfence" in self.hooks:
            self.configure_hook(**self.hook_settings())
        if not self.mom_pid() or not kernel.is_alive(self.mom_pid()):
            self.start_mom("-p")

    def begin(self, function):
        """The hook is there as shipped, or not at all."""
        super().begin(function)
        wanted = getattr(function, "fenced", True)
        if wanted and "jobfence" not in self.hooks:
            self.fence()
        elif not wanted and "jobfence" in self.hooks:
            self.remove_hook()

    def is_ready(self):
        return self.node_state() == "free"

    def mend(self):
        state = self.node_state()
        self.resume_nodes()
        return state

    def expect_beside(self, group, jobid):
        if not group.parent.step("step_extern").exists():
            raise AssertionError("there is no step_extern for what is no task")

    def directory_of(self, jobid):
        """All but letters, digits and a few signs is written as +5B."""
        return "job_" + re.sub(r"[^A-Za-z0-9_.-]", lambda found: f"+{ord(found[0]):02X}", jobid)

    def qsig(self, jobid, name):
        """suspend, resume, or a signal; the server must accept it."""
        done = self.command("qsig", "-s", name, jobid)
        if done.returncode != 0:
            raise AssertionError(f"qsig -s {name}: {done.stderr.strip()}")

    def idle_again(self):
        """No job left in the queue."""
        return not self.command("qselect").stdout.strip()

    # -- the nodes ----------------------------------------------------------------------

    def node_attributes(self, node=None):
        return attributes(self.command("pbsnodes", "-v", node or self.node).stdout)

    def node_state(self):
        """The state of the nodes, or the states of several that differ."""
        return ",".join(sorted({self.node_attributes(node).get("state", "unknown") for node in self.nodes}))

    def resume_nodes(self):
        self.command("pbsnodes", "-r", *self.nodes)

    def spool(self, node=None):
        """PBS_HOME of a node, as this process sees it."""
        return SPOOL

    def mom_pid(self, node=None):
        text = kernel.read(self.spool(node) / "mom_priv/mom.lock")
        return int(text) if text else None

    def kill_mom(self, node=None):
        """SIGKILL for MoM; her jobs go on."""
        pid = self.mom_pid(node)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not kernel.is_alive(pid), 5, "the death of MoM")

    def start_mom(self, *options, node=None):
        raise NotImplementedError

    def start_server(self):
        raise NotImplementedError

    def restart_server(self):
        """The server ends and comes back; MoM and the jobs go on."""
        pid = int(kernel.read(SPOOL / "server_priv/server.lock"))
        run("qterm", "-t", "quick", env=self.environment)
        until(lambda: not kernel.is_alive(pid), 30, "the end of the server")
        self.start_server()
        until(lambda: self.command("qstat", "-B").returncode == 0, 60, "the new server")

    @contextlib.contextmanager
    def mom_says(self, *lines):
        """For the time being, these lines are in the configuration of every MoM."""
        files = [self.spool(node) / "mom_priv/config" for node in self.nodes]
        before = [kernel.read(path) for path in files]

        def read_again(texts):
            mark = self.log_mark()
            for node, path, text in zip(self.nodes, files, texts):
                write_atomically(path, text)
                os.kill(self.mom_pid(node), signal.SIGHUP)
            until(lambda: all("read_config" in self.log_since(mark, node) for node in self.nodes), 30,
                  "every MoM to read her configuration")
        try:
            read_again(["".join(f"{line}\n" for line in [*text.splitlines(), *lines]) for text in before])
            yield
        finally:
            read_again(before)

    def wait_free(self, timeout=60):
        until(lambda: self.node_state() == "free", timeout, "free nodes")

    def mom_log(self, node=None):
        """All that MoM has logged; she begins a file every day."""
        return b"".join(kernel.read_bytes(path) for path in sorted((self.spool(node) / "mom_logs").glob("*")))

    def log_mark(self):
        return {node: len(self.mom_log(node)) for node in self.nodes}

    def log_since(self, mark, node=None):
        """Of the MoM of one node, or of all of them, one after the other."""
        return "".join(self.mom_log(one)[mark[one]:].decode(errors="replace") for one in ([node] if node else self.nodes))

    # -- hooks --------------------------------------------------------------------------

    def install_hook(self, name="jobfence", directory=None, program=None, attributes=None, **settings):
        """Imports NAME.py with the attributes of NAME.HK and the configuration of NAME.CF, in which `attributes` and
        `settings` say something else, and waits until every MoM has all of it."""
        directory = Path(directory or self.shipped)
        program = Path(program) if program else directory / f"{name}.py"
        keys = {**sites.settings_in(directory / f"{name}.HK"), **(attributes or {})}
        if name not in self.hooks:
            self.qmgr(f"create hook {name}")
            self.hooks.add(name)
        self.qmgr(*(f'set hook {name} {key} = "{value}"' for key, value in keys.items()
                    if key not in ("type", "enabled")))
        self.qmgr(f"import hook {name} application/x-python default {program}")
        self.configure_hook(name, directory, **settings)
        self.qmgr(f"set hook {name} enabled = true")
        self._until_copied(name)

    @contextlib.contextmanager
    def extra_hook(self, name, event, program, **attributes):
        """For the time being, a hook of the site's own runs before jobfence's."""
        directory = self.home / name
        directory.mkdir(exist_ok=True)
        keys = {"event": event, "order": 1, **attributes}
        (directory / f"{name}.HK").write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        (directory / f"{name}.py").write_text(program)
        self.install_hook(name, directory)
        try:
            yield
        finally:
            self.qdel(*(jobid for _, jobid in self.submitted))
            until(self.idle_again, 60, "the end of every job")
            self.remove_hook(name)

    def empty_hook(self, name):
        """One that does nothing, at all events of jobfence's."""
        events = sites.settings_in(self.shipped / "jobfence.HK")["event"]
        return self.extra_hook(name, events, "import pbs\npbs.event().accept()\n")

    def configure_hook(self, name="jobfence", directory=None, **settings):
        """The hook's configuration is from now on as shipped, but for these keys."""
        shipped = Path(directory or self.shipped) / f"{name}.CF"
        if shipped.exists():
            file = self.home / shipped.name
            write_atomically(file, sites.with_keys(shipped.read_text(), settings))
            self.qmgr(f"import hook {name} application/x-config default {file}")
            self._until_copied(name)

    @contextlib.contextmanager
    def not_set_up(self):
        """Without the hook, and with what 'make install' puts below share/jobfence, for this site."""
        if not self.journal:
            raise Skip("would set up the server of this machine")
        if "jobfence" in self.hooks:
            self.remove_hook()
        data = self.home / "share"
        shutil.copytree(self.shipped, data / "pbs", dirs_exist_ok=True)
        file = data / "pbs/jobfence.CF"
        write_atomically(file, sites.with_keys(file.read_text(), self.hook_settings()))
        self.setup_words = "--data", str(data), "--journal", str(self.journal)
        yield ["qmgr -c 'create hook jobfence'"]
        self.hooks.discard("jobfence")

    def what_setup_changes(self):
        """What hooks the server has, and who made them; and whether there is a journal."""
        return self.command("qmgr", "-c", "list hook").stdout, self.journal.exists()

    def until_set_up(self):
        self.hooks.add("jobfence")
        self._until_copied("jobfence")

    def remove_hook(self, name="jobfence"):
        """The way back; waits until no MoM has it."""
        self.qmgr(f"delete hook {name}")
        self.hooks.discard(name)
        hooks = [self.spool(node) / f"mom_priv/hooks/{name}.PY" for node in self.nodes]
        # The server, too, keeps the name until every MoM has answered.
        hooks.append(SPOOL / f"server_priv/hooks/{name}.HK")
        until(lambda: not any(path.exists() for path in hooks), 30, f"the end of hook {name}")

    def _until_copied(self, name):
        """Until each MoM has the hook's files as the server has them, which are those of the last command."""
        def files(spool, place):
            return [kernel.read_bytes(spool / place / f"hooks/{name}.{kind}") for kind in ("HK", "CF", "PY")]
        wanted = files(SPOOL, "server_priv")
        until(lambda: all(files(self.spool(node), "mom_priv") == wanted for node in self.nodes), 60,
              f"hook {name} on every node")

    @contextlib.contextmanager
    def granting(self, resources, **available):
        """The scheduler also grants these resources, and the node has so much of them."""
        config = SPOOL / "sched_priv/sched_config"
        before = config.read_text()
        wanted = ", ".join(["ncpus, mem, arch, host, vnode", *resources])

        def schedule(text):
            config.write_text(text)
            os.kill(int(kernel.read(SPOOL / "sched_priv/sched.lock")), signal.SIGHUP)
        schedule(re.sub(r"(?m)^resources:.*$", f'resources: "{wanted}"', before))
        for name, kind in ("ngpus", "long"), ("hpmem", "size"):
            if name in resources and self.command("qmgr", "-c", f"list resource {name}").returncode != 0:
                self.qmgr(f"create resource {name} type={kind}, flag=nh")
        self.qmgr(*(f"set node {self.node} resources_available.{name} = {value}" for name, value in available.items()))
        try:
            yield
        finally:
            if self.submitted:
                self.qdel(*(jobid for _, jobid in self.submitted))
                until(self.idle_again, 60, "the end of every job")
            self.qmgr(*(f"unset node {self.node} resources_available.{name}" for name in available))
            schedule(before)

    # -- jobfence -----------------------------------------------------------------------

    def fence(self, **settings):
        """jobfence, as the administrator turns it on."""
        self.install_hook(**self.hook_settings(), **settings)

    def hook_settings(self):
        return {"Library": self.so, "Config": self.config}


def attributes(text):
    """`name = value` of one job or node, as qstat -fw and pbsnodes show it."""
    pairs = (line.strip().split(" = ", 1) for line in text.splitlines() if " = " in line)
    return {name: value for name, value in pairs}


def granted(job):
    """(CPUs, KiB) by vnode, from exec_vnode of a job: (node1:ncpus=1:mem=102400kb)+(...)."""
    found = {}
    for chunk in re.findall(r"\(([^)]*)\)", job["exec_vnode"]):
        for part in chunk.split("+"):
            vnode, *resources = part.split(":")
            values = dict(resource.split("=", 1) for resource in resources)
            cpus, kib = found.get(vnode, (0, 0))
            found[vnode] = cpus + int(values.get("ncpus", 0)), kib + kib_of(values.get("mem", "0kb"))
    return found


def kib_of(size):
    """A size as the server shows it: 102400kb, 1gb."""
    number, unit = re.fullmatch(r"(\d+)([kmgt]?)b", size).groups()
    factors = {"": 1 / 1024, "k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
    return int(int(number) * factors[unit])


def seconds_of(duration):
    """00:01:02 as a number."""
    hours, minutes, seconds = map(int, duration.split(":"))
    return (hours * 60 + minutes) * 60 + seconds


# ----------------------------------------------------------------------------------------
# A private OpenPBS

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
ADDRESS = "192.0.2.{}"


def libc(name, *arguments):
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise SiteError(f"{name}: {os.strerror(number)}")


def bind(source, target):
    libc("mount", str(source).encode(), str(target).encode(), None, MS_BIND, None)


def run(*argv, **options):
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options)
    if done.returncode != 0:
        raise SiteError(f"{' '.join(map(str, argv))}: status {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


class PrivatePbs(Private, PbsSite):
    """An OpenPBS in mount, UTS, IPC and network namespaces of its own, gone without a trace afterwards.

    The host's files stay as they are: /etc, /opt, /var/spool, /var/tmp and PostgreSQL's directory of sockets are
    directories of the site's own there. The host's name is node1, and the ports are those of every OpenPBS. cgroups are the host's.
    """

    def __init__(self, so=None, command=None):
        super().__init__(so, command)
        self.tree, self.postgres = tree(), postgres()
        self.plugin_source, self.so = self.so, None
        self.home_of_mom = SPOOL
        self.environment["PATH"] = f"{EXEC}/bin:{EXEC}/sbin:{self.postgres}:{sites.PATH}"

    def __enter__(self):
        with undisturbed():
            self.top = Path(tempfile.mkdtemp(prefix="jobfence-pbs-"))
            self._enter_namespaces()
            self.keeper = PbsKeeper(self.top, self.environment, [self.base])
        try:
            self.home, self.journal = self.top / "home", self.top / "setup"
            self.config = self.top / "etc-jobfence/jobfence.conf"
            self.configure()
            if self.plugin_source:
                self.so = self.copied(self.plugin_source)
            for user in self.users:
                self.directory(user)
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    # -- the place ----------------------------------------------------------------------

    def _enter_namespaces(self):
        self.top.chmod(0o755)
        for name in ("opt", "spool", "sockets", "home", "shm", "tmp", "etc-jobfence"):
            (self.top / name).mkdir()
        for name in ("shm", "tmp"):
            (self.top / name).chmod(0o1777)
        (self.top / "run").mkdir(mode=0o700)  # jobfence takes no other
        shutil.chown(self.top / "sockets", "postgres", "postgres")
        # Without what is only for programmers. pbs_postinstall, which is for a real host, makes these two run as root.
        shutil.copytree(self.tree / "opt/pbs", self.top / "opt/pbs", symlinks=True,
                        ignore=shutil.ignore_patterns("*.a", "*.la", "include", "man", "__pycache__"))
        for name in ("pbs_iff", "pbs_rcp"):
            (self.top / "opt/pbs/sbin" / name).chmod(0o4755)
        self._write_etc()
        libc("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
        # Nothing that is mounted here is seen outside.
        libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
        # qsub leaves a process that serves the user's next qsub by a socket in /var/tmp, whichever server that one means.
        for source, target in (("opt", "/opt"), ("etc", "/etc"), ("spool", "/var/spool"), ("tmp", "/var/tmp"),
                               ("sockets", "/run/postgresql"), ("shm", "/dev/shm")):
            bind(self.top / source, target)
        libc("sethostname", NODE.encode(), len(NODE))
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{ADDRESS.format(1)}/32", "dev", "lo")

    def _write_etc(self):
        etc = self.top / "etc"
        shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
        (etc / "hostname").write_text(NODE + "\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{ADDRESS.format(number + 1)} {node}\n" for number, node in enumerate(self.nodes)))
        for kind, line in ("passwd", "{user}:x:{id}:{id}::{home}:/bin/bash"), ("group", "{user}:x:{id}:"), ("shadow", "{user}:*:19000:0:99999:7:::"):
            lines = [one for one in (etc / kind).read_text().splitlines() if one.split(":")[0] not in self.users]
            # jobfence looks for a job's processes among those of its user, and another site can have a job of the same name.
            first = 20000 + 2 * (os.getpid() % 20000)
            lines += [line.format(user=user, id=first + number, home=self.top / "home" / user)
                      for number, user in enumerate(self.users)]
            (etc / kind).write_text("\n".join(lines) + "\n")
        (etc / "pbs.conf").write_text(self.pbs_conf())

    def pbs_conf(self, server=True):
        starts = "".join(f"PBS_START_{name}={int(name == 'MOM' or server)}\n" for name in ("SERVER", "SCHED", "COMM", "MOM"))
        return f"PBS_EXEC={EXEC}\nPBS_HOME={SPOOL}\nPBS_SERVER={NODE}\n{starts}PBS_CORE_LIMIT=unlimited\n"

    # -- the daemons --------------------------------------------------------------------

    def _start(self):
        if self.plugin_source:
            self.start_hold()
        self._prepare_spool()
        for name in "pbs_comm", "pbs_sched", "pbs_server":
            self.keeper.start(name, [name])
        self.start_mom()
        until(lambda: self.node_attributes().get("state") == "free", 60, "a free node")

    def _prepare_spool(self):
        """PBS_HOME with an empty queue. Making it takes as long as all else, so it is kept for the next time."""
        digest = hashlib.sha256(repr((inspect.getsource(PrivatePbs._make_spool), SETTINGS)).encode())
        for name in "sbin/pbs_server.bin", "libexec/pbs_db_schema.sql":
            digest.update((EXEC / name).read_bytes())
        digest.update(str(self.postgres).encode())
        kept = TOP / "target/pbs" / digest.hexdigest()[:16]
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept.parent / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.is_dir():
                for other in kept.parent.iterdir():
                    if other.is_dir():
                        shutil.rmtree(other)
                self._make_spool()
                run("mv", SPOOL, kept.with_name("new"))
                kept.with_name("new").rename(kept)
            run("cp", "-a", kept, SPOOL)

    def _make_spool(self):
        self.keeper.run("habitat", [str(EXEC / "libexec/pbs_habitat")], 120)
        self.keeper.start("pbs_comm", ["pbs_comm"])
        self.keeper.start("pbs_server", ["pbs_server"])
        until(lambda: self.command("qstat", "-B").returncode == 0, 30, "the new server")
        self.qmgr(*SETTINGS)
        run("qterm", "-t", "quick", env=self.environment)
        for name in "server.lock", "comm.lock":
            text = kernel.read(SPOOL / "server_priv" / name)
            if text and name == "comm.lock":
                os.kill(int(text), signal.SIGTERM)
            until(lambda: not text or not kernel.is_alive(int(text)), 30, f"the end of {name}")
        until(lambda: not (SPOOL / "datastore/postmaster.pid").exists(), 30, "the end of PostgreSQL")

    def spool(self, node=None):
        return self.home_of_mom

    def start_mom(self, *options, node=None):
        elsewhere = ["-d", str(self.home_of_mom)] if self.home_of_mom != SPOOL else []
        self.keeper.run("pbs_mom", ["pbs_mom", *elsewhere, *options])

    @contextlib.contextmanager
    def mom_with_a_directory(self):
        """For the time being, MoM has a directory that pbs.conf does not name (pbs_mom -d), in which the hooks are as before."""
        def change(home):
            self.kill_mom()
            self.home_of_mom = home
            self.start_mom("-p")
            self.wait_free()
        elsewhere = SPOOL.with_name("pbs-of-mom")
        elsewhere.mkdir()
        for name in "aux", "checkpoint", "mom_logs", "mom_priv", "pbs_environment", "spool", "undelivered":
            run("cp", "-a", SPOOL / name, elsewhere)
        change(elsewhere)
        try:
            yield
        finally:
            self.qdel(*(jobid for _, jobid in self.submitted))
            until(self.idle_again, 60, "the end of every job")
            change(SPOOL)
            shutil.rmtree(elsewhere)

    def start_server(self):
        self.keeper.start("pbs_server", ["pbs_server"])

    def our_processes(self):
        return kernel.descendants(self.keeper.pid)


class HostsPbs(PrivatePbs):
    """The same with a second host, which has a MoM and a network of its own, and a link to the first.

    Both have the kernel in common, so each has directories of its own: CgroupBase and RunDir are those of the host.
    """

    nodes = [NODE, "node2"]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.systemd:
            raise Lacks("needs a machine without systemd, which delegates one directory")

    def _of(self, node, name):
        """A directory of the site's, as that host has it."""
        return self.top / (name if node == NODE else f"{name}-{node}")

    def _enter_namespaces(self):
        super()._enter_namespaces()
        run("ip", "address", "delete", f"{ADDRESS.format(1)}/32", "dev", "lo")
        run("ip", "link", "add", "hosts", "type", "bridge")
        run("ip", "address", "add", f"{ADDRESS.format(1)}/24", "dev", "hosts")
        run("ip", "link", "set", "hosts", "up")
        for node in self.nodes[1:]:
            for name, mode in ("spool", 0o755), ("tmp", 0o1777), ("run", 0o700), ("etc-jobfence", 0o755):
                self._of(node, name).mkdir(mode)
                self._of(node, name).chmod(mode)

    def _start(self):
        super()._start()
        for node in self.nodes[1:]:
            self._start_host(node)
            self.qmgr(f"create node {node}")
        self.wait_free()

    def _start_host(self, node):
        conf = self.top / f"pbs.conf-{node}"
        conf.write_text(self.pbs_conf(server=False))
        binds = [(self._of(node, name), place) for name, place in (("spool", "/var/spool"), ("tmp", "/var/tmp"))]
        binds += [(self._of(node, "etc-jobfence"), self.config.parent), (conf, CONF)]
        ready = self.top / f"ready-{node}"
        address = ADDRESS.format(self.nodes.index(node) + 1)
        commands = [
            "set -e", f"hostname {node}", *(f"mount --bind {source} {target}" for source, target in binds), f"touch {ready}",
            "while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done", "ip link set lo up",
            f"ip address add {address}/24 dev eth0", "ip link set eth0 up", f"{EXEC}/libexec/pbs_habitat",
            f"touch {ready}.habitat", "exec sleep infinity",
        ]
        self.keeper.start(node, ["unshare", "--mount", "--uts", "--net", "sh", "-c", "\n".join(commands)])
        until(ready.exists, 20, f"the namespaces of {node}")
        pid = str(self.keeper.pids[node])
        run("ip", "link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", f"to-{node}", "master", "hosts", "up")
        until(Path(f"{ready}.habitat").exists, 20, f"PBS_HOME of {node}")
        self.start_mom(node=node)

    def start_mom(self, *options, node=None):
        if node in (None, NODE):
            return super().start_mom(*options)
        return self.keeper.run("pbs_mom", ["nsenter", "--target", str(self.keeper.pids[node]), "--mount", "--uts", "--net",
                                           "pbs_mom", *options])

    @contextlib.contextmanager
    def two_vnodes(self, node):
        """For the time being, this host has two vnodes with one CPU each, and none in the vnode of its own name."""
        vnodes = [f"{node}[{index}]" for index in (0, 1)]
        file = self.spool(node) / "mom_priv/config.d/vnodes"
        lines = ["$configversion 2", f"{node}: resources_available.ncpus = 0", f"{node}: resources_available.mem = 0"]
        for vnode in vnodes:
            lines += [f"{vnode}: resources_available.ncpus = 1", f"{vnode}: resources_available.mem = 1gb",
                      f"{vnode}: sharing = default_shared"]

        def again():
            self.kill_mom(node)
            self.start_mom("-p", node=node)
            self.wait_free()
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(file, "".join(f"{line}\n" for line in lines))
        try:
            again()
            until(lambda: all(self.node_attributes(vnode).get("state") == "free" for vnode in vnodes), 30, f"vnodes of {node}")
            yield
        finally:
            self.qdel(*(jobid for _, jobid in self.submitted))
            until(self.idle_again, 60, "the end of every job")
            file.unlink()
            again()
            self.qmgr(*(f"delete node {vnode}" for vnode in vnodes))

    def spool(self, node=None):
        return super().spool() if node in (None, NODE) else self._of(node, "spool") / "pbs"

    def configure_raw(self, text):
        for node in self.nodes:
            first = f"CgroupBase={self.base}/{node}\nRunDir={self._of(node, 'run')}\n"
            write_atomically(self._of(node, "etc-jobfence") / self.config.name, first + text)
        return 2

    def bases(self):
        return [f"{self.base}/{node}" for node in self.nodes]

    def leftovers(self):
        found = super().leftovers()
        for node in self.nodes[1:]:
            files = (Path(place, name) for place, _, names in os.walk(self._of(node, "run")) for name in names)
            found += sorted(str(path) for path in files if not str(path).endswith("/roll/list"))
        return found


class PbsKeeper(Keeper):
    """The keeper of OpenPBS's daemons, each of which leaves the program that was started."""

    def run(self, name, argv, timeout=30):
        """Starts what ends by itself, or becomes a daemon, and waits for that."""
        self.start(name, argv)
        pid = self.pids[name]
        until(lambda: not kernel.is_alive(pid), timeout, f"the end of {argv[0]}")

    def _end_jobs(self):
        jobs = self._command("qselect").split()
        if jobs:
            self._command("qdel", *jobs)
            self._poll(lambda: not self._command("qselect").strip(), 8)


# ----------------------------------------------------------------------------------------
# An installed OpenPBS


class InstalledPbs(Installed, PbsSite):
    """The OpenPBS of this machine, which `start` has installed and systemd runs as pbs.service."""

    PREFIX = "jobfence-pbs-"
    shipped = Path("/usr/share/jobfence/pbs")  # where "make install" has put it

    def __init__(self):
        super().__init__()
        self.so = Path("/usr/lib/slurm/libjobfence.so")
        self.nodes = [os.uname().nodename.split(".")[0]]

    def __enter__(self):
        super().__enter__()
        self.configure()
        self.qmgr(*SETTINGS)
        self.wait_free()
        return self

    def __exit__(self, *_):
        jobs = [jobid for _, jobid in self.submitted]
        if jobs:
            self.qdel(*jobs)
        return super().__exit__()

    def hook_settings(self):
        """As shipped, where the hook's configuration names no file."""
        return {"Library": self.so}

    def start_mom(self, *options, node=None):
        """By hand, as after a crash: systemd does not notice it."""
        self._start_daemon("pbs_mom", *options)

    def start_server(self):
        self._start_daemon("pbs_server")

    def _start_daemon(self, *argv):
        """In the cgroups of the service, where it belongs."""
        places = [kernel.hierarchies()[name].directory(path) / "cgroup.procs"
                  for name, path in kernel.cgroups_of(self.service_pid()).items() if name in kernel.hierarchies()]
        places.append(Path("/sys/fs/cgroup/systemd/system.slice/pbs.service/cgroup.procs"))

        def enter():
            for place in places:
                with contextlib.suppress(OSError):
                    place.write_text("0")
        subprocess.run(argv, env=self.environment, check=True, preexec_fn=enter, stdin=subprocess.DEVNULL)

    def service_pid(self):
        """A daemon of the service that no test ends."""
        return int(kernel.read(SPOOL / "server_priv/comm.lock"))
