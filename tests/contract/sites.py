# SPDX-License-Identifier: GPL-2.0-or-later
"""What every scheduler's site has, whatever the scheduler is: `Site`, and what its daemons are started with.

(This module is not called `site`, since Python has one of that name.)
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from . import kernel

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLL = 0.05
# Every time limit of a test is multiplied by this: an emulated processor is slow.
PATIENCE = 1.0
# No wait for an event is given up before so many seconds: what else a machine does meanwhile says nothing of jobfence.
LEAST = 120


class SiteError(Exception):
    """The site itself does not work; this says nothing about jobfence."""


class Lacks(Exception):
    """What this machine does not have: exit status 77."""


def hostname():
    return os.uname().nodename.split(".")[0]


def until(condition, timeout, what, least=LEAST):
    """Poll until `condition()` is true and return its value. `what` may be a function that says it at the end.

    `least=0` is for what may well not come.

    No more than a third of the time is spent with looking: on an emulated or busy processor what is waited for needs it more.
    """
    timeout = max(timeout, least) * PATIENCE
    deadline = time.monotonic() + timeout
    while True:
        start = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for {what() if callable(what) else what}")
        time.sleep(max(POLL, min(2 * (now - start), 1)))


def write_atomically(path, text):
    """Nobody ever reads half of it."""
    data = text if isinstance(text, bytes) else text.encode()
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.chmod(0o644)
    beside.rename(path)


def with_keys(text, keys):
    """Lines KEY=VALUE in which these keys say something else; None takes one out."""
    for key, value in keys.items():
        text = re.sub(rf"(?mi)^{key}=.*\n", "", text)
        text += f"{key}={value}\n" if value else ""
    return text


def settings_in(path):
    """The lines KEY=VALUE of a file, by their keys; none where there is no file."""
    lines = (line.partition("=") for line in kernel.read(path).splitlines())
    return {key: value for key, equals, value in lines if equals}


def end_by_exception(*_):
    """SIGTERM and SIGHUP then take the way through every `finally`, as SIGINT does."""
    raise SystemExit(1)


def die_properly():
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_exception)


@contextlib.contextmanager
def undisturbed():
    """A signal that comes meanwhile is taken afterwards."""
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(number=signal.SIGKILL):
    """Called in a new child: it does not outlive the process that made it."""
    ctypes.CDLL(None, use_errno=True).prctl(1, int(number), 0, 0, 0)


def system_users(count=2, at_home=False):
    """Leases of users of the system with nothing to do: jobfence looks for a job's processes among those of its user.

    Where other tests have them all, these wait for the end of some. Nobody waits with half of what he needs. `at_home`: a user whose home
    exists.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import leases

    def found():
        owners = set()
        for pid in kernel.all_pids():
            with contextlib.suppress(FileNotFoundError):
                owners.add(os.stat(f"/proc/{pid}").st_uid)
        idle = [one.pw_name for one in pwd.getpwall()
                if 0 < one.pw_uid < 1000 and one.pw_uid not in owners and one.pw_shell.endswith(("/nologin", "/false"))
                and (not at_home or Path(one.pw_dir).is_dir())]
        taken = []
        try:
            while len(taken) < count:
                taken.append(leases.names(idle))
        except RuntimeError:
            for one in taken:
                one.release()
            return None
        return taken
    return until(found, 1800, f"{count} users of the system whom no other test has")


class Site:
    """A scheduler, as the contract's cases see it. What a new one brings is a class with the names and methods of this first part.

    A job is called by what `submit` returns. In its script, `$JOB_ID` is the same text.
    """

    SCHEDULER = ""  # as in the tables of contract/cases.py
    NUMBER = PLACE = ""  # which variables of a job have its number, and a directory of this site's; see `job_pids`
    STEP = None  # of a job with one step; None: whatever its name is
    QUEUE, NAME = "", ("-N",)  # where its jobs are; by which option of `submit` one has a name
    REFUSES_DESPITE_WARN = False  # whether OnError=warn lets no job run without its own directories
    TELLS = True  # whether a job's own file of errors has our sentences
    KILLED = r"process \d+ \(python3\) was killed: the (job|step) reached its memory limit of 125\.0 MiB"  # in what a job's user reads
    STATUSES_AFTER_A_KILL = (7,)  # of a job that ends so when one of its processes was killed for memory
    DEAF = {}  # what `submit` is given of a job that hears no signal but SIGKILL
    LEARNS_STATUS = True  # whether a daemon that comes back learns how a job ended that has begun before
    LOGS_NOTICES = True  # whether `said_since` has more than warnings
    IS_ALONE = True  # whether nothing of the scheduler's counts for the memory of a job
    HAS_CGROUPS = False  # whether the scheduler has directories of its own in the fence

    IS_SET_UP_CENTRALLY = False  # whether 'jobfence setup' leaves something to --central
    HAS_RUN_FENCED = r"job \S+ ran in \S*/job_\S+"  # what it says last
    setup_words = ()  # which it is given here

    users = ()
    there_before = frozenset()  # what was left here before the first case

    def submit(self, user, script, *options, cpus=None, mib=None, again=None, env=None):
        """A batch job for this script, which is a shell's. `again`: whether the scheduler may run it a second time."""
        raise NotImplementedError

    def submit_array(self, user, script, count, *options, **asked):
        """So many jobs of one array, by their own numbers, when all of them run; and the number by which all are deleted."""
        raise NotImplementedError

    def granted(self, jobid):
        """CPUs and MiB that the job was granted on this host, as the scheduler's own programs say."""
        raise NotImplementedError

    def has_ended(self, jobid):
        """Whether no process of the job will come any more. This is asked often."""
        raise NotImplementedError

    def wait(self, jobid, timeout=60):
        """Wait until the job is over, and return what the scheduler then says of it."""
        raise NotImplementedError

    def status(self, jobid):
        """Wait until the job is over, and return its exit status, as the scheduler says."""
        raise NotImplementedError

    def output(self, jobid):
        """What the job has written."""
        raise NotImplementedError

    def told(self, jobid):
        """What the job has written to its standard error; ours is behind that."""
        raise NotImplementedError

    def delete(self, *jobids):
        """As the administrator ends them. It may take a while."""
        raise NotImplementedError

    def idle_again(self):
        """No job is left in the queue."""
        raise NotImplementedError

    def run_again(self, jobid):
        """Puts a running job back, so that it begins anew under its number."""
        raise NotImplementedError

    def names_of(self, jobid):
        """What people call a job of an array, or all of one: first as short as can be."""
        return [jobid]

    def suspend(self, jobid):
        """Stops all of its processes; `resume` lets them go on."""
        raise NotImplementedError

    def refused(self, jobid):
        """Wait until a job is refused that cannot be fenced, though others can, and return what its user reads."""
        raise NotImplementedError

    def refusal(self, jobid, mark):
        """Wait until the job is refused, and return why. `mark` is of before it."""
        raise NotImplementedError

    def after_refusal(self, jobid, script):
        """The administrator has mended what was wrong: the job that runs then, which is another one where the scheduler has given it up."""
        return jobid

    def holders(self, jobid):
        """The processes on which the job's end depends: those that the scheduler has for it, and the daemon of the host."""
        raise NotImplementedError

    def restart_daemon(self):
        """The daemon of the host ends and comes back; the jobs go on."""
        raise NotImplementedError

    def look_for_ends(self):
        """The daemon, which came back while jobs ran, looks at once which of them have ended."""

    def revive(self):
        """Starts what a case has killed."""

    @contextlib.contextmanager
    def not_set_up(self):
        """For the time being the host is one on which nobody has run 'jobfence setup'. Gives lines in which that shows what it would do."""
        raise NotImplementedError

    def what_setup_changes(self):
        """What there is of that, to be compared."""
        raise NotImplementedError

    def until_set_up(self):
        """Wait until the scheduler has read it."""

    def is_ready(self):
        """Whether the host takes jobs; `mend` makes it so, and says what was wrong."""
        return True

    def log_mark(self):
        """For `log_since`, which has what the daemons of the host have logged since then."""
        raise NotImplementedError

    def said_since(self, mark):
        """What jobfence has logged since then."""
        return self.log_since(mark)

    def describe(self, jobid):
        """For a case that has failed: what the scheduler knows of the job."""
        return ""

    def end(self, *jobids):
        """Deletes the jobs, and waits until they are over. What the scheduler then says of the last one."""
        self.delete(*jobids)
        return [self.wait(jobid) for jobid in jobids][-1]

    # -- what can differ, too -------------------------------------------------------------

    def limited(self, group):
        """Of a job's step, the group that has the job's limits."""
        return group.parent

    def expect_limits(self, group, cpus, mib):
        """Of a job's step: both are as granted."""
        limited = self.limited(group)
        for found, wanted, what in (limited.cpu_limit(), cpus, "CPU"), (limited.memory_limit(), mib and mib << 20, "memory"):
            if found != wanted:
                raise AssertionError(f"{what} limit of {limited.path}: {found}, and should be {wanted}")

    def expect_no_limits(self, group, mib):
        """The same of one that would be limited to so many MiB."""
        for one in group, group.parent:
            if (one.cpu_limit(), one.memory_limit()) != (None, None):
                raise AssertionError(f"limits of {one.path}: {one.cpu_limit()} CPUs and {one.memory_limit()} bytes")

    def why_killed(self, jobid):
        """Wait until a job that wants more memory than it has is over; what its user reads then."""
        self.wait(jobid)
        return until(lambda: self.told(jobid), 60, "what its user reads")

    def is_why(self, said):
        """Whether this says which process was killed, and why."""
        return re.search(self.KILLED, said.replace("\n    ", " "))

    def expect_beside(self, group, jobid):
        """What else of a job's place is the scheduler's own."""

    def accounted(self, ended):
        """Seconds of CPU time in what the scheduler says of a job that is over; None where it counts none."""

    def expect_behind(self, jobid, runs=1):
        """What the scheduler's log has of a job that has ended so many times."""

    def processes_limit(self, group):
        """Of a job's step: how many processes the job may have."""
        return group.parent.processes_limit()

    def directory_of(self, jobid):
        """The name of a job's directory."""
        return f"job_{jobid}"

    @property
    def node(self):
        """The name of this host to the scheduler."""
        return hostname()

    @property
    def nodes(self):
        """Those that share this host."""
        return [self.node]

    def until_gone(self, group):
        until(lambda: not group.exists(), 60, f"the end of {group.path}")

    def begin(self, function):
        """Before each case."""
        self.configure()

    def left(self):
        """What is left of jobs."""
        return set(self.leftovers())

    def __init__(self):
        self.submitted = []
        self.environment = {"PATH": PATH, "LANG": "C.UTF-8"}
        self.home = None
        self.config = None
        self.jobfence = None  # the command

    def job_pids(self, jobid, program=None):
        """The user's processes of a job, by the environment that the scheduler gave them. A directory tells them from jobs of another site."""
        found, mark = [], f"{self.NUMBER}={jobid}\0".encode()
        for pid in kernel.all_pids():
            if mark in kernel.environment_bytes(pid) + b"\0" and kernel.is_alive(pid):
                variables = kernel.environment(pid)
                if (variables.get(self.NUMBER), variables.get(self.PLACE, "").startswith(str(self.home))) == (str(jobid), True) and (
                        program is None or program in kernel.command_line(pid)):
                    found.append(pid)
        return found

    # -- commands ---------------------------------------------------------------------

    def command(self, *args, timeout=30):
        """An administrator's command."""
        return subprocess.run(
            args, env=self.environment, capture_output=True, text=True, errors="replace",
            timeout=max(timeout, LEAST) * PATIENCE, stdin=subprocess.DEVNULL, check=False,
        )

    def ours(self, *words, before=(), timeout=30):
        """A command of jobfence's, with the site's configuration: its exit status, and all that it says. `before` stands before it all."""
        config = ["--config", str(self.config)] if self.config.exists() else []
        done = self.command(*before, str(self.jobfence), words[0], *config, *map(str, words[1:]), timeout=timeout)
        return done.returncode, done.stdout + done.stderr

    def as_user(self, user, args, text=True, env=None, stdin=None, start=False, terminal=None):
        """A user's command, in the user's own directory.

        With `start` it is not waited for; `terminal` is the descriptor of one that it then has.
        """
        account = pwd.getpwnam(user)

        def prepare():
            die_with_parent(signal.SIGTERM)
            if terminal is not None:
                os.setsid()
                fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        options = dict(
            user=account.pw_uid, group=account.pw_gid, extra_groups=[],
            cwd=self.directory(user),
            env={**self.environment, "USER": user, "LOGNAME": user,
                 "HOME": str(self.directory(user)), **(env or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text,
            preexec_fn=prepare,
        )
        if terminal is not None:
            options.update(stdin=terminal, stdout=terminal, stderr=terminal)
            return subprocess.Popen(args, **options)
        if start:
            return subprocess.Popen(args, stdin=subprocess.DEVNULL, **options)
        if stdin is None:
            options["stdin"] = subprocess.DEVNULL
        return subprocess.run(args, input=stdin, timeout=LEAST * PATIENCE, check=False, **options)

    def directory(self, user):
        """A directory in which this user can write; jobs start there."""
        path = self.home / user
        if not path.exists():
            path.mkdir()
            os.chown(path, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        return path

    # -- jobfence -----------------------------------------------------------------------

    def own_keys(self):
        """What every configuration of this site says first."""
        return {}

    def configure(self, text="", **keys):
        """Returns how many lines of the site's own stand before `text`."""
        return self.configure_raw(text + "".join(f"{key}={value}\n" for key, value in keys.items()))

    def configure_raw(self, text):
        """`text` follows the lines of the site; returns how many lines those are."""
        first = "".join(f"{k}={v}\n" for k, v in self.own_keys().items())
        data = text if isinstance(text, bytes) else text.encode()
        write_atomically(self.config, first.encode() + data)
        return first.count("\n")

    def bases(self):
        """The names under which the tree can be, in each hierarchy."""
        raise NotImplementedError

    def run_directory(self):
        raise NotImplementedError

    def leftovers(self):
        """Directories, processes and records of jobs. The base itself may stay."""
        found = []
        for base in self.bases():
            for top in kernel.Group("/" + base).directories():
                # Another step may go while we look: no error, just less to say.
                for user in sorted(kernel.directories_below(top)):
                    if user.name.startswith("uid_") and top in list(user.parents)[:3]:
                        below = sorted(map(str, kernel.directories_below(user)))
                        found += below or [str(user)]
        names = "|".join(map(re.escape, self.bases()))
        tree = re.compile(rf":/(?:{names})/(?:[^/\n]+/){{0,2}}uid_\d+(?:/|$)", re.M)
        for pid in kernel.all_pids():
            if tree.search(kernel.read(f"/proc/{pid}/cgroup")) and kernel.is_alive(pid):
                found.append(f"process {pid} ({kernel.command_line(pid)[:60]})")
        records = self.run_directory()
        if records.is_dir():
            all_files = (os.path.join(place, name) for place, _, names in os.walk(records) for name in names)
            # What launches look at is there from the first of them on, and where 'jobfence hold' listens. Of HTCondor's configuration it is kept
            # what it says.
            known = "/roll/list", "/counters/1", "/hold.lock/early_move", "/hold.only/lock"
            found += sorted(name for name in all_files if not name.endswith(known) and Path(name).parent.name != "htcondor")
        return found

    @contextlib.contextmanager
    def favoured(self):
        """Measurements are not disturbed by the machine's other work: a site with a directory of its own has the greatest weight there is,
        and only their quota holds its jobs."""
        directory = kernel.Group("/" + self.base).limits_directory("cpu") if hasattr(self, "base") else None
        name, most = ("cpu.weight", "10000") if kernel.has_v2_controllers() else ("cpu.shares", "262144")
        if directory is None or not (directory / name).exists():
            yield
            return
        before = kernel.read(directory / name)
        (directory / name).write_text(most)
        try:
            yield
        finally:
            (directory / name).write_text(before)


class Installed(Site):
    """A scheduler that is installed on this machine, beside what 'make install' has put there."""

    users = ("alice", "bob")
    PREFIX, WHERE = "jobfence-site-", None  # of the users' directories

    def __init__(self):
        super().__init__()
        self.config = Path("/etc/jobfence/jobfence.conf")
        found = shutil.which("jobfence", path=PATH)
        self.jobfence = Path(found) if found else None

    def __enter__(self):
        self.home = Path(tempfile.mkdtemp(prefix=self.PREFIX, dir=self.WHERE))
        self.home.chmod(0o755)
        self.config.parent.mkdir(exist_ok=True)
        for user in self.users:
            self.directory(user)
        return self

    def __exit__(self, *_):
        self.config.unlink(missing_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)
        return False

    def configure_raw(self, text):
        """Without a file, each job is limited to its grant."""
        if text or self.own_keys():
            return super().configure_raw(text)
        self.config.unlink(missing_ok=True)
        return 0

    def bases(self):
        return ["jobfence.slice/jobfence.scope", "jobfence"]

    def run_directory(self):
        return Path("/run/jobfence")


class Private(Site):
    """A scheduler with a directory and cgroups of its own, whose daemons a *keeper* starts."""

    def __init__(self, so=None, command=None):
        super().__init__()
        self.so = Path(so) if so else None
        self.jobfence = Path(command).resolve() if command else None
        self.name = f"jobfence-{os.getpid()}"
        # systemd owns cgroup2, and delegates a scope that is asked for.
        self.systemd = Path("/run/systemd/system").is_dir()
        self.base = f"jobfence.slice/{self.name}.scope" if self.systemd else self.name
        self.keeper = None
        self.leases = []

    def __exit__(self, *_):
        # A second ctrl-C does not stop the clean-up: the keeper has its own session.
        before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self.keeper.finish()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for one in self.leases:
                one.release()
        return False

    def copied(self, so):
        """A copy of the shared object: the one that is being built again meanwhile is none of our business, and a user must be able to read it."""
        copy = self.top / "libjobfence.so"
        shutil.copyfile(so, copy)
        copy.chmod(0o755)
        return copy

    def start_hold(self):
        """Where systemd has the cgroups, 'jobfence hold' asks it for a scope."""
        if self.systemd:
            if not self.jobfence:
                raise SiteError("beside systemd the jobfence command is needed, too")
            # It only keeps the scope: no second one may have the RunDir of jobfence.service, nor of the cases' own.
            self.keeper.start("hold", [str(self.jobfence), "hold", "-o", f"CgroupBase={self.base}", "-o", f"RunDir={self.top}/scope"])
            place = f"/{self.base}" + ("/hold" if "" in kernel.hierarchies() else "")
            until(lambda: place in kernel.read(f"/proc/{self.keeper.pids['hold']}/cgroup"), 30, "the delegated scope")

    def own_keys(self):
        return {"CgroupBase": self.base, "RunDir": self.run_directory()}

    def bases(self):
        return [self.base]

    def run_directory(self):
        return self.top / "run"


class Keeper:
    """Starts and stops daemons on request, and ends them all when nobody asks any more."""

    def __init__(self, top, environment, trees):
        self.top, self.environment, self.trees = top, environment, trees
        self.pids, self.owner = {}, os.getpid()
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            status = 1
            try:
                status = self._keep(theirs)
            finally:
                os._exit(status)
        theirs.close()
        self.socket = ours
        self.answers = ours.makefile("r")

    # -- in the process that wants daemons ------------------------------------------------

    def start(self, name, argv):
        self.pids[name] = self._ask(start=name, argv=argv)

    def stop(self, name):
        self._ask(stop=name)
        self.pids.pop(name, None)

    def finish(self):
        if self.pid is None:
            return
        # The end of this socket is what the keeper waits for.
        self.answers.close()
        self.socket.close()
        os.waitpid(self.pid, 0)
        self.pid = None

    def _ask(self, **request):
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        answer = self.answers.readline()
        if not answer:
            raise SiteError("the keeper of the daemons has gone")
        return json.loads(answer)

    # -- in the keeper ----------------------------------------------------------------------

    def _keep(self, requests):
        os.setsid()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        try:
            self._serve_all(requests, woken)
        finally:
            # Also when the other side dies while it waits for an answer.
            signal.set_wakeup_fd(-1)
            self._end_everything()
        return 0

    def _serve_all(self, requests, woken):
        stream = requests.makefile("r")
        while True:
            ready, _, _ = select.select([requests, woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if requests in ready:
                # One request at a time: the other side waits for each answer.
                line = stream.readline()
                if not line:
                    return
                requests.sendall(json.dumps(self._serve(json.loads(line))).encode() + b"\n")

    def _serve(self, request):
        if "start" in request:
            pid = self._spawn(request["start"], request["argv"])
            self.pids[request["start"]] = pid
            return pid
        return self._end([self.pids.pop(request["stop"])], patience=10)

    def _spawn(self, name, argv):
        keeper = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            die_with_parent()
            if os.getppid() != keeper:
                os._exit(1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE,
                           signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.chdir(self.top)
            said = os.open(self.top / f"{name}.stdio.log",
                           os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            nothing = os.open("/dev/null", os.O_RDONLY)
            for number, file in enumerate((nothing, said, said)):
                os.dup2(file, number)
            os.execvpe(argv[0], argv, self.environment)
        finally:
            os._exit(127)

    def _reap(self):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _end(self, pids, patience):
        """SIGTERM, and SIGKILL for those which do not listen; all of them our descendants."""
        # One that has died already may have left its number to somebody else.
        pids = [pid for pid in pids if pid in kernel.descendants(os.getpid())]
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if self._poll(lambda: not any(map(kernel.is_alive, pids)), seconds):
                return True
        return False

    def _poll(self, condition, seconds):
        deadline = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < deadline:
            self._reap()
            if condition():
                return True
            time.sleep(POLL)
        return False

    def _command(self, *argv):
        try:
            return subprocess.run(argv, env=self.environment, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=10 * PATIENCE, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return ""

    def _end_jobs(self):
        """What must be done while the daemons are there; then all that is left ends."""

    def _end_everything(self):
        try:
            self._end_jobs()
            # What has outlived all that was a job's: kill until there is nothing to kill.
            for _ in range(20):
                left = [pid for pid in kernel.descendants(os.getpid()) if kernel.is_alive(pid)]
                if not left:
                    break
                self._end(left, 0)
        finally:
            self._remove_cgroups()
            # What a killed owner of ours has not removed in /var/tmp has his number.
            of_owner = Path("/var/tmp").glob(f"jobfence-*.{self.owner}") if self.trees else ()
            for place in (self.top, *of_owner):
                shutil.rmtree(place, ignore_errors=True)

    def _remove_cgroups(self):
        """Only what is empty, from the leaf up: rmdir refuses the rest by itself."""
        def remove():
            groups = [kernel.Group("/" + tree) for tree in self.trees]
            for top in (top for group in groups for top in group.directories()):
                places = sorted(kernel.directories_below(top), reverse=True)
                for place in [*places, top]:
                    with contextlib.suppress(OSError):
                        place.rmdir()
            return not any(group.exists() for group in groups)
        if not self._poll(remove, 3):
            print(f"cgroups below {', '.join(self.trees)} could not be removed", file=sys.stderr)
