#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The hook of OpenPBS without OpenPBS: replay.py --so FILE --bin FILE [--short] [--only CASE...]

The file hooks/pbs/jobfence.py and the shared object are the real ones, and so are the cgroups. The module 'pbs' is
stand_in/pbs.py, and the daemon is the class Mom here. It does to a hook what MoM does: a process of its own for each
event, with MoM's environment and nothing else, in a session of its own; at prologue and launch below the process that
becomes the job, with a umask of 077, and with the job's files as stdout and stderr.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import marshal
import os
import pwd
import re
import resource
import shlex
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import leases  # noqa: E402
from contract import kernel  # noqa: E402
from contract.gpus import SHOW_GPUS, gpus_of_the_node  # noqa: E402
from contract.harness import MIB, expect, expect_equal  # noqa: E402
from contract.sites import LEAST, system_users, until  # noqa: E402

# What MoM's name is for hooks, and what it is for the server: that is in exec_host2, and whoever asks for the event is it.
HOST, FULL_NAME = "node1", "node1.site"
TASKS_JOBID = 284  # the length of a job's id in MoM's file about a task, with its zero byte and what aligns the numbers
CASES = []


def recorded():
    """What real MoMs have given to hooks: the names of what an event and a job have, and of what of a job is ever set."""
    found = {"attributes": set(), "set": set(), "fields": set(), "module": set()}
    for path in (TESTS / "pbs/recorded").glob("*.jsonl"):
        release, *events = map(json.loads, path.read_text().splitlines())
        found["attributes"].update(release["attributes_of_jobs"])
        found["module"].update(release["module"])
        for event in events:
            found["fields"].update(event["fields"])
            for job in [event.get("job", {}), *event.get("job_list", {}).values()]:
                found["set"].update(job.get("attributes", {}) if isinstance(job, dict) else {})
    return {name: sorted(names) for name, names in found.items()}


RECORDED = recorded()
METHODS = {"in_ms_mom", "stdout_file", "stderr_file"}
NUMBERS = itertools.count(1)


def case(function=None, *, is_long=False):
    """Declares a case: `@case`, or `@case(is_long=True)` for one of more than two seconds, which 'make quick' leaves to 'make check'."""
    def declare(function):
        function.is_long = is_long
        CASES.append(function)
        return function
    return declare(function) if function else declare


# No hook takes so many seconds, on any machine.
HANGS = 300


def is_of(pid, user):
    """Whether a process is this user's."""
    uids = re.search(r"^Uid:\s+(\d+)", kernel.read(f"/proc/{pid}/status"), re.M)
    return uids is not None and int(uids[1]) == pwd.getpwnam(user).pw_uid


def processes_of(user):
    """Of each process of this user's, its command. The dead that nobody has buried have none, and count for the user's limit."""
    return {pid: kernel.command_line(pid) for pid in kernel.all_pids() if is_of(pid, user)}


def expect_no_process(user):
    """A case ends what it has started. What was killed may take a moment."""
    alive = {}

    def none():
        nonlocal alive
        alive = {pid: line for pid, line in processes_of(user).items() if kernel.is_alive(pid)}
        return not alive
    try:
        until(none, LEAST, "the end of the processes that the case has started")
    except AssertionError as error:
        raise AssertionError(f"{error}: {alive}") from None


class Crashed(Exception):
    """A signal has ended the hook."""


class Mom:
    """What MoM does for its hooks, and the files that it keeps."""

    def __init__(self, options, top):
        self.top, self.options, self.is_realtime = Path(top), options, options.realtime
        self.spool = self.top / "spool/mom_priv/jobs"
        self.spool.mkdir(parents=True)
        self.workdir = self.spool.parent / "hooks/tmp"
        self.workdir.mkdir(parents=True)
        # As MoM has while she lives.
        self.lock = open(self.spool.parent / "mom.lock", "w", encoding="ascii")
        fcntl.lockf(self.lock, fcntl.LOCK_EX)
        (self.top / "output").mkdir(mode=0o1777)
        (self.top / "output").chmod(0o1777)
        self.top.chmod(0o755)
        self.conf = self.top / "pbs.conf"
        self.conf.write_text(f"PBS_HOME={self.top}/spool\n")
        # What one case leaves is not in the way of the next.
        self.base, self.holder = f"jobfence-pbs-{os.getpid()}-{next(NUMBERS)}", None
        self.has_systemd = Path("/run/systemd/system").is_dir()
        if self.has_systemd:
            self.base = f"jobfence.slice/{self.base}.scope"
        self.config = self.top / "jobfence.conf"
        self.write_config()
        self.settings = {"Library": str(Path(options.so).resolve()), "Config": str(self.config)}
        self.hook = Path(options.hook).resolve()
        self.count, self.jobs, self.strays, self.prefix = 0, [], [], []

    def __enter__(self):
        try:
            self.hold()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def hold(self):
        """Where systemd is, the place of jobs is a scope that it delegates."""
        if not self.has_systemd:
            return
        place = f"/{self.base}" + ("/hold" if "" in kernel.hierarchies() else "")

        def holds():
            # As jobfence.service is started again: systemd may be busy with something else.
            if not self.holder or self.holder.poll() is not None:
                # With a RunDir of its own, since only one may have that of jobfence.service.
                self.holder = subprocess.Popen([self.options.bin, "hold", "-o", f"CgroupBase={self.base}", "-o", f"RunDir={self.top}/scope"])
            return place in kernel.read(f"/proc/{self.holder.pid}/cgroup")
        until(holds, LEAST, "the delegated scope")

    def bases(self):
        return [self.base]

    def write_config(self, *lines):
        keys = f"CgroupBase={self.base}", f"RunDir={self.top}/run"
        self.config.write_text("".join(f"{line}\n" for line in (*keys, *lines)))

    def end(self):
        """Each of these, whatever becomes of another; the last that is named here is the first."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.remove_base)
            if self.holder:
                stack.callback(self.holder.wait)
                stack.callback(self.holder.terminate)
            reap = [self.options.bin, "reap", f"--config={self.config}"]
            stack.callback(subprocess.run, reap, check=False, capture_output=True)
            for job in self.jobs:
                stack.callback(job.kill)
            for stray in self.strays:
                stack.callback(stray.wait)
                stack.callback(stray.kill)

    def stray(self, user, jobid=None, script=""):
        """A process that MoM has not started. Its environment says the job, if there is one. It has ended when the case has."""
        named = ("env", f"PBS_JOBID={jobid}") if jobid else ("env", "-i")
        words = ["setpriv", f"--reuid={user}", "--clear-groups", *named, "sh", "-c", f"{script} exec sleep 300"]
        process = subprocess.Popen(words, start_new_session=True)
        self.strays.append(process)
        until(lambda: kernel.command_line(process.pid).startswith("sleep"), LEAST, "the start of a process")
        return process

    def fetches(self, job, pid, job_list=()):
        """The answer of the periodic event that puts the process into the job's fence.

        On a busy machine an environment may come too late. Then the next event looks at it."""
        given = None if job_list is None else [job.attributes()]

        def fetched():
            answer = self.accepted("EXECHOST_PERIODIC", job_list=given)
            return answer if job.is_in(pid, "extern") else None
        return until(fetched, LEAST, f"process {pid}, which is in {kernel.cgroups_of(pid)}, in the fence")

    def remove_base(self):
        left = set()
        for directory in kernel.Group(f"/{self.base}").directories():
            left.update(kernel.Group(f"/{self.base}").members(below=True))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: not any(map(kernel.is_alive, left)), LEAST, "the death of what is left")
            # Where there is a scope, systemd removes it meanwhile.
            for below in (*sorted(kernel.directories_below(directory), reverse=True), directory):
                with contextlib.suppress(FileNotFoundError):
                    below.rmdir()

    def prepare(self, event, job, **more):
        """The files and the environment of one event."""
        self.count += 1
        names = ("cput", "mem", "vmem", "cpupercent", "walltime", "diag_messages", "usage")
        given = {"event": event, "host": HOST, "full_name": FULL_NAME, "home": str(self.top / "spool"), "resources": names,
                 "recorded": RECORDED, **more}
        if job:
            given["job"] = job.attributes()
        files = {what: self.top / f"{what}.{self.count}" for what in ("event", "answer", "config")}
        files["event"].write_bytes(marshal.dumps(given))
        settings = self.settings
        lines = [settings] if isinstance(settings, str) else [f"{key}={value}\n" for key, value in settings.items()]
        files["config"].write_text("# of the tests\n" + "".join(lines))
        environment = {
            "PATH": "/bin:/usr/bin",
            "LC_CTYPE": "C.UTF-8",
            "PBS_CONF_FILE": str(self.conf),
            "PBS_HOOK_CONFIG_FILE": str(files["config"]),
            "REPLAY_EVENT": str(files["event"]),
            "REPLAY_ANSWER": str(files["answer"]),
        }
        code = f"import sys; sys.path.insert(0, {str(TESTS / 'pbs/stand_in')!r}); sys.argv = [{str(self.hook)!r}]; " \
               f"exec(compile(open({str(self.hook)!r}).read(), {str(self.hook)!r}, 'exec'), {{'__name__': '__main__'}})"
        first = self.prefix + (["/usr/bin/chrt", "--fifo", "50"] if self.is_realtime else [])
        return [*first, sys.executable, "-I", "-B", "-S", "-c", code], environment, files["answer"]

    def run(self, event, job=None, **more):
        """One event whose hook is MoM's own child. The answer."""
        command, environment, answer = self.prepare(event, job, **more)
        if event in ("EXECJOB_PROLOGUE", "EXECJOB_LAUNCH"):
            # The parent becomes the job.
            command = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *command]
        done = subprocess.run(command, env=environment, cwd=self.workdir, start_new_session=True, capture_output=True,
                              timeout=HANGS)
        return self.answer(done.returncode, answer, done.stdout + done.stderr)

    def answer(self, status, answer, output=b""):
        if status < 0:
            raise Crashed(status)
        expect_equal((status, output), (0, b""), "the hook's exit status and output")
        return marshal.loads(answer.read_bytes())

    def accepted(self, event, job=None, **more):
        answer = self.run(event, job, **more)
        expect(answer["accepted"], f"{event} was refused: {answer}")
        return answer

    def begin(self, job):
        answer = self.accepted("EXECJOB_BEGIN", job)
        self.save(job)
        return answer

    def begun(self, user, **given):
        """A job that has begun."""
        job = Job(self, user, **given)
        self.begin(job)
        return job

    def save(self, job):
        """MoM's file about the job."""
        (self.spool / f"{job.id}.JB").write_bytes(b"\1\0Job_Name\0x\0\0run_version\0%d\0" % job.run)

    def forget(self, job):
        (self.spool / f"{job.id}.JB").unlink()

    def save_task(self, job, number, session, status=1):
        """MoM's file about a task that runs, struct taskfix of job.h of 23.06."""
        directory = self.spool / f"{job.id}.TK"
        directory.mkdir(exist_ok=True)
        numbers = (0, 0, 0, number, status, session, 0, *[0] * 16)
        (directory / f"{number:08X}").write_bytes(struct.pack(f"{TASKS_JOBID}s{len(numbers)}i", job.id.encode(), *numbers))

    @contextlib.contextmanager
    def service(self):
        """jobfence.service, and a process that is MoM to it: by its name, its user, and where it works."""
        program = self.top / "pbs_mom"
        shutil.copy("/bin/sleep", program)
        hold = [self.options.bin, "hold", f"--config={self.config}", "-o", "ReapInterval=1"]
        # The name of a program becomes the process's.
        with contextlib.ExitStack() as stack:
            mom = subprocess.Popen([program, "300"], cwd=self.spool.parent, stdin=subprocess.DEVNULL)
            stack.callback(mom.wait)
            stack.callback(mom.kill)
            log = stack.enter_context(open(self.top / "service.log", "wb"))
            service = subprocess.Popen(hold, env={**os.environ, "PBS_CONF_FILE": str(self.conf)}, stdout=log, stderr=log)
            stack.callback(service.wait)
            stack.callback(service.terminate)
            yield lambda: (self.top / "service.log").read_text()

    def start(self, job, script, prologue=True, launch=None, is_interactive=False, tasknum="1", limits=()):
        """Becomes the job as MoM's starter does; what the events have answered is in job.answers.

        A hook that crashes, MoM skips. One that refuses ends the starter."""
        starter = os.fork()
        if starter:
            job.starters.append(starter)
            return starter
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            os.umask(0o077)
            # Of an earlier job of this name. In a directory that is everybody's, root does not open a file of somebody else's.
            for path in job.output, job.stderr:
                path.unlink(missing_ok=True)
            out = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            error = os.open(job.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.fchown(error, job.uid, job.gid)
            os.dup2(out, 1)
            os.dup2(error, 2)
            os.close(0)
            if prologue:
                self.below(job, "EXECJOB_PROLOGUE")
            if is_interactive:
                # The parent goes on as a relay of the terminal.
                shell = os.fork()
                if shell:
                    os.waitpid(shell, 0)
                    os._exit(0)
            for what, number in limits:
                resource.setrlimit(what, number if isinstance(number, tuple) else (number, number))
            env = self.below(job, "EXECJOB_LAUNCH", **{"env": {"PBS_TASKNUM": tasknum}, **(launch or {})})
            os.setgroups([job.gid])
            os.setgid(job.gid)
            os.setuid(job.uid)
            os.execve("/bin/sh", ["sh", "-c", script], {**env, "PATH": "/usr/bin:/bin", "PBS_JOBID": job.id})
        except Crashed:
            os._exit(97)
        except BaseException:  # noqa: B036
            traceback.print_exc()
        os._exit(98)

    def below(self, job, event, **more):
        """One event whose hook is this process's child, and has its files. The environment as the hook leaves it."""
        command, environment, answer = self.prepare(event, job, **more)
        child = subprocess.Popen(command, env=environment, cwd=self.workdir, start_new_session=True)
        status = child.wait()
        if status < 0:
            return {}  # "Skipping hook"
        found = marshal.loads(answer.read_bytes())
        (self.top / f"{job.name}.{event}").write_text(str(found))
        if not found["accepted"]:
            os._exit(17)
        # As MoM reads it: one text with commas between the variables, but for those behind a backslash.
        variables = ",".join(f"{name}={value}" for name, value in found["env"].items()).replace("\\,", "\0").split(",")
        return dict(variable.replace("\0", ",").split("=", 1) for variable in variables if "=" in variable)


class Job:
    """A job as MoM's hooks see it."""

    def __init__(self, mom, user, number="7", run=1, **attributes):
        self.mom, self.id, self.run = mom, f"{number}.server", run
        entry = pwd.getpwnam(user)
        self.user, self.uid, self.gid = user, entry.pw_uid, entry.pw_gid
        self.name = "".join(c if c.isalnum() else "_" for c in self.id)
        self.output, self.stderr = (mom.top / "output" / f"{self.name}.{end}" for end in ("OU", "ER"))
        self.starters, self.more = [], attributes
        mom.jobs.append(self)

    def attributes(self):
        return {
            "id": self.id, "euser": self.user, "queue": "workq", "project": "_pbs_project_default", "run_version": self.run,
            "run_count": self.run, "exec_vnode": f"({HOST}:ncpus=1:mem=204800kb)", "exec_host2": f"{FULL_NAME}:15002/0",
            "stderr": str(self.stderr), **self.more,
        }

    def path(self, step=None):
        name = self.id.replace("[", "+5B").replace("]", "+5D")
        whole = f"/{self.mom.base}/uid_{self.uid}/job_{name}"
        return whole + (f"/step_{step}" if step is not None else "")

    def group(self, step=None):
        return kernel.Group(self.path(step))

    def is_in(self, pid, step):
        found = kernel.cgroups_of(pid)
        return bool(found) and all(found.get(name) == self.path(step) for name in kernel.expected_hierarchies())

    def started(self, step="1"):
        """The starter, once it has become the job."""
        pid = self.starters[-1]
        until(lambda: not kernel.is_alive(pid) or os.stat(f"/proc/{pid}").st_uid == self.uid, LEAST, "the start of the job")
        expect(kernel.is_alive(pid), f"the job did not start: {self.stderr.read_text()}{self.answers()}")
        expect(self.is_in(pid, step), f"process {pid} is in {kernel.cgroups_of(pid)}, not in {self.path(step)}")
        return pid

    def answers(self):
        return [path.read_text() for path in sorted(self.mom.top.glob(f"{self.name}.*"))]

    def wait(self):
        for pid in self.starters:
            os.waitpid(pid, 0)
        self.starters.clear()

    def kill(self):
        for pid in self.starters:
            os.kill(pid, signal.SIGKILL)
        self.wait()

    def ended(self):
        """It is killed, and over."""
        self.kill()
        return self.over()

    def over(self):
        """The last events of a job, and what the first of them has answered."""
        answer = self.mom.accepted("EXECJOB_EPILOGUE", self)
        self.mom.accepted("EXECJOB_END", self)
        self.mom.forget(self)
        expect(not self.group().exists(), f"{self.path()} is still there")
        return answer


@case
def life(mom, user):
    """From begin to end: the limits, the usage, a process with a session of its own."""
    job = mom.begun(user)
    expect(job.group("extern").exists(), "begin has made no fence")
    expect_equal(job.group().cpu_limit(), 1.0, "the job's CPUs")
    expect_equal(job.group().memory_limit(), 200 * MIB, "the job's memory")
    mom.start(job, "setsid sleep 300 & python3 -S -c 'import time\nwhile time.process_time() < 1: pass'; exec sleep 300")
    job.started()
    expect_equal(job.group("1").cpu_limit(), 1.0, "the step's CPUs")
    until(lambda: len(job.group("1").members()) == 2 and job.group("1").cpu_seconds() > 0.5, LEAST, "the two processes, and CPU time")
    answer = mom.accepted("EXECHOST_PERIODIC", job_list=[{**job.attributes(), "resources_used": {"walltime": 2}}])
    used = answer["used"][job.id]
    expect(int(used["cput"]) >= 0 and int(used["mem"][:-2]) > 0 and int(used["cpupercent"]) > 10, f"used {used}")
    escaped = [pid for pid in job.group("1").members() if pid != job.starters[0]]
    job.kill()
    used = job.over()["used"][job.id]
    expect(used["mem"].endswith("kb") and "cput" in used, f"used {used}")
    expect(not any(kernel.is_alive(pid) for pid in escaped), "a process with a session of its own is alive")
    expect_equal(job.output.read_bytes() + job.stderr.read_bytes(), b"", "the job's output")


@case
def usage_log(mom, user):
    """Each step has a line, with the queue that the first event has said, though other processes have closed it."""
    log = mom.top / "usage/usage.jsonl"
    mom.write_config(f"UsageLog={log}")
    job = mom.begun(user, number="30", queue="express", project="p 1", Job_Name="solve \"1")
    # The clock of the process has run while it was the starter, outside the step.
    mom.start(job, "exec python3 -S -c 'import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass'")
    job.wait()
    job.over()
    # At midnight another file begins.
    text = "".join(file.read_text() for file in log.parent.glob("usage.jsonl*"))
    lines = {line["step"]: line for line in map(json.loads, text.splitlines())}
    expect_equal(sorted(lines), ["1", "extern"], "steps in the usage log")
    for line in lines.values():
        found = [line[key] for key in ("job", "job_name", "run", "uid", "user", "partition", "project", "holder", "end")]
        expect_equal(found, ["30.server", "solve \"1", 1, job.uid, user, "express", "p 1", "scheduler OpenPBS", "closed"], "line")
        expect_equal((line["memory_granted_bytes"], line["gpus_granted"]), (200 * MIB, 0), "what was granted")
    # Beside half a second the interpreter starts, for which an emulated processor takes its time.
    expect(0.5 <= lines["1"]["cpu_seconds"] <= 2, f"cpu_seconds: {lines['1']}")


@case(is_long=True)
def card(mom, user):
    """A job's output ends with its card, if the site wants one, on the first host alone."""
    more = {"Exit_status": 271, "resources_used": {"walltime": 100}, "Resource_List": {"walltime": 200},
            "exec_host2": f"{FULL_NAME}:15002/0+other.site:15002/0", "Variable_List": {"PBS_O_LANG": "de_DE.UTF-8", "LANG": ""}}
    mom.settings["Config"] = str(mom.config)
    said = {}
    for number, (settings, attributes) in enumerate((
        ("UsageCard=always", {}),
        ("UsageCard=always\nUsageCardText=\"Ask us: %j\"", {"Variable_List": {"PBS_O_LANG": "de_DE.UTF-8", "LANG": "C"}, "Exit_status": 0}),
        ("UsageCard=failed", {"Exit_status": 0}),
        ("", {}),
        ("UsageCard=always", {"is_first": False}),
        ("UsageCard=never\n[Queue=express]\nUsageCard=always", {"queue": "express", "Exit_status": None}),
        # MoM has ended it at its walltime.
        ("UsageCard=failed", {"Exit_status": -29}),
    )):
        mom.write_config(settings)
        job = Job(mom, user, number=str(40 + number), **{**more, **attributes})
        mom.begin(job)
        mom.start(job, "exec true")
        job.wait()
        job.over()
        said[number] = job.stderr.read_text()
    for number, how in ((0, "was ended by signal 15"), (1, "completed"), (5, "ended"), (6, "was ended by signal 15")):
        lines = said[number].splitlines()
        expect_equal(lines[0], f"jobfence: job {40 + number}.server on {os.uname().nodename} {how} after 1 min 40 s", "the card")
        bar = ("#" if number == 1 else "\u2588") * 10 + ("." if number == 1 else "\u2591") * 10
        expect(any(bar in line and "1 min 40 s of 3 min 20 s" in line for line in lines), f"no bar of time:\n{said[number]}")
        expect("peak" in said[number] and "of 200.0 MiB" in said[number], f"no memory:\n{said[number]}")
        expect("the use of the 1 other node" in " ".join(said[number].split()), f"nothing of the other host:\n{said[number]}")
        expect(max(map(len, lines)) <= 80, f"lines too long:\n{said[number]}")
    expect_equal([said[number] for number in (2, 3, 4)], ["", "", ""], "what is no card")
    expect("PBS sends signal 15" in said[0], f"nothing about the signal:\n{said[0]}")
    expect_equal([number for number, text in said.items() if text.endswith(f"\n  Ask us: {40 + number}.server\n")], [1], "the site's text")
    limits = [number for number, text in said.items() if "PBS has ended the job at its limit of walltime." in text]
    expect_equal(limits, [6], "whose card says that the time was up")
    # Without it the end is as ever.
    mom.write_config("UsageCard=always")
    for fail in ["jobfence_card", "exception"], ["jobfence_card", "-4"]:
        job = mom.begun(user, number="50", **more)
        mom.start(job, "exec true")
        job.wait()
        answer = mom.accepted("EXECJOB_EPILOGUE", job, fail=fail)
        expect("there is no card of the job" in str(answer["log"]), f"{answer}")
        expect(not job.group().exists(), f"{job.path()} is still there")
        mom.accepted("EXECJOB_END", job)
        mom.forget(job)


@case
def over_its_memory(mom, user):
    job = Job(mom, user, number="8")
    mom.settings["DiagMessages"] = "yes"
    mom.begin(job)
    mom.start(job, "exec python3 -c 'x = bytearray(300 << 20)'")
    job.wait()
    answer = job.over()
    said = job.stderr.read_text()
    expect("was killed: the job reached its memory limit" in said, f"stderr: {said!r}")
    expect(HOST in answer["used"][job.id]["diag_messages"], f"{answer}")
    expect_equal(job.output.read_bytes(), b"", "the job's output")


@case
def users_stderr_is_a_link(mom, user):
    """Root writes nothing where a user's link leads."""
    job, secret = Job(mom, user), mom.top / "secret"
    secret.write_text("")
    secret.chmod(0o666)
    mom.begin(job)
    mom.start(job, "exec python3 -c 'x = bytearray(300 << 20)'")
    job.wait()
    job.stderr.unlink()
    job.stderr.symlink_to(secret)
    answer = mom.accepted("EXECJOB_EPILOGUE", job)
    expect("cannot be written" in str(answer["log"]), f"{answer}")
    expect_equal(secret.read_text(), "", "the file behind the link")
    # A link on the way to the file, to what only root can write.
    secret.chmod(0o600)
    (mom.top / "output/way").symlink_to(mom.top)
    job.more["stderr"] = str(mom.top / "output/way/secret")
    mom.begin(job)
    mom.start(job, "exec python3 -c 'x = bytearray(300 << 20)'")
    job.wait()
    answer = job.over()
    expect("cannot be written" in str(answer["log"]), f"{answer}")
    expect_equal(secret.read_text(), "", "the file behind a link on the way")


@case
def ids_and_grants(mom, user):
    """Arrays, several vnodes of one host, other hosts' chunks, no CPU, a host of the job's own."""
    two = f"({HOST}[0]:ncpus=1:mem=100mb+{HOST}[1]:ncpus=2:mem=51200kb)+(other:ncpus=8:mem=8gb)"
    for attributes, cpus, memory in (
        ({"exec_vnode": two}, 3.0, 150 * MIB),
        ({"exec_vnode": f"({HOST}:ncpus=2:vmem=64mw)"}, 2.0, 512 * MIB),
        ({"exec_vnode": "(gpu0:ncpus=2:mem=1gb)+(x:ncpus=1)", "exec_host2": f"{FULL_NAME}:15002/0*2+other.site:15002/0"}, 2.0, 1024 * MIB),
        ({"exec_vnode": "(a:ncpus=1:mem=1gb+b:ncpus=1)+(x:ncpus=1)+(c:ncpus=4)",
          "exec_host2": f"{FULL_NAME}:15002/0*2+other.site:15002/0+{FULL_NAME}:15002/1*4"}, 6.0, 1024 * MIB),
        # Made by its full name, which is none of the short one.
        ({"exec_vnode": f"({FULL_NAME}:ncpus=2:mem=1gb)", "exec_host2": f"{FULL_NAME}:15002/0*2"}, 2.0, 1024 * MIB),
        ({"exec_vnode": f"({HOST}:ncpus=2:mem=1gb)", "exec_host2": "an.alias:15002/0*2"}, 2.0, 1024 * MIB),
        ({"Resource_List": {"place": "excl:exclhost"}}, None, 200 * MIB),
        ({"Resource_List": {"place": "free:group=exclhosts"}}, 1.0, 200 * MIB),
    ):
        job = mom.begun(user, number="12[3]", **attributes)
        expect_equal((job.group().cpu_limit(), job.group().memory_limit()), (cpus, memory), f"limits for {attributes}")
        job.over()
    # As 'pbs_mom -s insert' writes it: PBS places other jobs there then.
    definitions = mom.spool.parent / "config.d"
    definitions.mkdir()
    for sharing, cpus in ("default_shared", None), ("ignore_excl", 1.0):
        (definitions / "vnodes").write_text(f"$configversion 2\n{HOST}: sharing = {sharing}\n")
        job = mom.begun(user, Resource_List={"place": "exclhost"})
        expect_equal(job.group().cpu_limit(), cpus, f"CPUs of a job with place=exclhost and sharing={sharing}")
        job.over()
    answer = mom.run("EXECJOB_BEGIN", Job(mom, user, exec_vnode="(other:ncpus=1)", exec_host2="other.site:15002/0"))
    expect(not answer["accepted"] and answer["rerun"] and "PBS_MOM_NODE_NAME" in answer["message"], f"{answer}")


@case
def sections(mom, user):
    """By queue, project, type of vnode and host. What the user writes counts only where the site says so."""
    for section, is_its in (
        ("Queue=workq", True), ("Queue=other", False), ("Project=_pbs_project_default", True), ("Project=p", False),
        ("Account=lab", True), ("Account=other", False),
        ("VnodeType=gpu", True), ("VnodeType=cpu", False), (f"User={user}", True), (f"Host={os.uname().nodename}", True),
    ):
        (mom.spool.parent / "vntype").write_text("big,gpu\n")
        is_claimed = section.startswith(("Account", "Project"))
        for trust in ("yes", "no") if is_claimed else ("no",):
            mom.write_config(f"TrustAccount={trust}", "MaxProcesses=99", f"[{section}]", "MaxProcesses=50")
            job = mom.begun(user, Account_Name="lab")
            expected = 50 if is_its or is_claimed and trust == "no" else 99
            expect_equal(job.group().processes_limit(), expected, f"processes with a section [{section}] and TrustAccount={trust}")
            job.over()


@case
def where_the_configuration_is(mom, user):
    """The hook follows the order of jobfence.conf(5), unless its own configuration names a file, as that of an earlier release does."""
    slurms, own = "/etc/slurm/jobfence.conf", "/etc/jobfence/jobfence.conf"
    for file, most in (slurms, 71), (own, 72):
        mom.write_config(f"MaxProcesses={most}")
        shutil.copy(mom.config, mom.top / str(most))
    put = {slurms: f"cp {mom.top}/71 {slurms}", own: f"cp {mom.top}/72 {own}"}
    prefix = mom.prefix
    for files, named, expected in (
        ((own,), "", 72), ((slurms, own), "", 71), ((slurms,), "", 71),
        ((slurms, own), slurms, 71), ((slurms, own), own, 72), ((own,), slurms, None),
    ):
        made = "; ".join(put[file] for file in files)
        script = f'cd /etc; mount -t tmpfs none /etc; cp passwd group nsswitch.conf /etc; cd /etc; mkdir slurm jobfence; {made}; ' \
                 f'cd {mom.workdir}; exec "$@"'
        mom.prefix = ["unshare", "--mount", "sh", "-ec", script, "sh", *prefix]
        mom.settings = {key: value for key, value in (("Library", mom.settings["Library"]), ("Config", named)) if value}
        job = Job(mom, user)
        answer = mom.run("EXECJOB_BEGIN", job)
        what = f"with {' and '.join(files)}, and Config={named}"
        if expected:
            expect(answer["accepted"], f"{what}: {answer}")
            expect_equal(job.group().processes_limit(), expected, f"processes {what}")
        else:
            expect(not answer["accepted"], f"{what}: the job begins")
            expect(f"{named}: found No such file" in str(answer), f"{what}: {answer}")
        mom.run("EXECJOB_END", job)


def rows_of_facts():
    """The attributes in the table of docs/facts.md, each with the word in the last column."""
    text = (TESTS.parent / "docs/facts.md").read_text().split("\n## OpenPBS\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")]
    return {key.strip("`"): row[-1] for row in cells for key in row[0].split(", ")}


@case
def nonsense(mom, user):
    """Of each fact that PBS says, nonsense becomes what docs/facts.md says, with OnError=warn, too."""
    bad = "nonsense"
    chunk = {name: {"exec_vnode": f"({HOST}:ncpus=1:mem=200mb:{name}={bad})"} for name in ("ncpus", "mem", "vmem", "ngpus", "hpmem")}
    simple = {name: {name: bad} for name in ("euser", "run_version", "queue", "Account_Name", "project", "Join_Path", "Job_Name")}
    given = chunk | simple | {
        "vntype": {}, "sharing": {}, "place": {"Resource_List": {"place": bad}}, "Variable_List": {"Variable_List": {"LANG": bad}}}
    rows = rows_of_facts()
    expect_equal(sorted(given), sorted(rows), "the rows of the table")
    (mom.spool.parent / "config.d").mkdir()
    for number, (name, word) in enumerate(rows.items()):
        sections = [line for kind in ("Account", "Project", "Queue") for line in (f"[{kind}=x]", "MaxProcesses=9")]
        mom.write_config("OnError=warn", "MaxProcesses=99", *(sections if word == "unknown" else sections[-2:]))
        for file, of in ("vntype", "vntype"), ("config.d/vnodes", "sharing"):
            (mom.spool.parent / file).write_text(f"{HOST}: sharing = {bad}\n" if name == of == "sharing" else bad if name == of else "")
        job = Job(mom, user, number=str(100 + number), **({"Account_Name": "y"} | given[name]))
        if word == "refused":
            answer = mom.run("EXECJOB_BEGIN", job)
            expect(not answer["accepted"], f"a job with nonsense as {name} goes on: {answer}")
            continue
        mom.begin(job)
        found = job.group().cpu_limit(), job.group().memory_limit(), job.group().processes_limit()
        expect_equal(found, (1.0, 200 * MIB, 9 if word == "unknown" else 99), f"limits with nonsense as {name}")
        job.over()


@case
def site_wide_values(mom, user):
    """What the stock hook's defaults and factors are here: of a job without memory, of a quota, of no CPUs."""
    nothing = {"exec_vnode": f"({HOST}:ncpus=1)"}
    for keys, attributes, cpus, memory in (
        (["DefaultRAMSpace=256M"], nothing, 1.0, 256 * MIB),
        (["DefaultRAMSpace=256M"], {}, 1.0, 200 * MIB),
        (["DefaultRAMSpace=unlimited"], nothing, 1.0, None),
        (["DefaultRAMSpace=256M", "ConstrainSwapSpace=no"], nothing, 1.0, 256 * MIB),
        (["CPUQuotaPercent=103", "CPUQuotaPeriod=50ms"], {}, 1.03, 200 * MIB),
        (["ZeroCPUs=0.5"], {"exec_vnode": f"({HOST}:ncpus=0:mem=200mb)"}, 0.5, 200 * MIB),
    ):
        mom.write_config(*keys)
        job = mom.begun(user, **attributes)
        expect_equal((job.group().cpu_limit(), job.group().memory_limit()), (cpus, memory), f"limits with {keys}")
        job.over()


@case
def no_cpus(mom, user):
    """A job with ncpus=0 is not one without a limit."""
    job = Job(mom, user, exec_vnode=f"({HOST}:ncpus=0:mem=100mb)")
    mom.begin(job)
    expect_equal(job.group().cpu_limit(), 0.2, "the CPUs of a job without any")
    job.over()


# So many bytes from the job, and how long they took to arrive. The job says first when it began: a process that is late makes that longer.
SENT = 4 * MIB
SENDS = """
import socket, struct, sys, time
begun = time.monotonic()
connection = socket.create_connection((sys.argv[1], 5000))
connection.sendall(struct.pack("d", begun) + bytes(int(sys.argv[2])))
time.sleep(300)
"""
ARRIVES = """
import socket, struct, sys, time
with socket.create_server((sys.argv[1], 5000)) as server:
    print("ready", flush=True)
    connection, left = server.accept()[0], int(sys.argv[2])
    begun, = struct.unpack("d", connection.recv(8, socket.MSG_WAITALL))
    while left > 0:
        received = len(connection.recv(1 << 16))
        if not received:
            sys.exit("the job ended before all had arrived")
        left -= received
    print(time.monotonic() - begun, flush=True)
"""


@contextlib.contextmanager
def another_network(here, there):
    """The words before a command in a network namespace that a pair of interfaces leads to."""
    name = f"jf{os.getpid()}"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 1000"], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        space = "nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"
        for words in (
            ("ip", "link", "add", name, "type", "veth", "peer", "name", name, "netns", str(holder.pid)),
            *((*before, "ip", *of) for before, address in (((), here), (space, there))
              for of in (("address", "add", f"{address}/24", "dev", name), ("link", "set", name, "up"))),
        ):
            subprocess.run(words, check=True)
        yield space
    finally:
        holder.kill()
        holder.wait()
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)


@case(is_long=True)
def a_bound_of_the_network(mom, user):
    """Where nobody bounds what jobs send, a job with NetworkMax is refused. Where jobfence.service does, it sends no faster, and is counted."""
    keys = "NetworkMax=1M", "NetworkAccounting=yes", "SampleInterval=1"
    mom.write_config(*keys)
    job = Job(mom, user)
    refused = mom.run("EXECJOB_BEGIN", job)
    expect(not refused["accepted"] and "(NetworkMax)" in str(refused), f"begin without a program: {refused}")
    if "" not in kernel.hierarchies():
        return
    with mom.service(), leases.lease("networks", 256) as number, another_network(*(f"198.18.{number}.{end}" for end in (1, 2))) as space:
        there = f"198.18.{number}.2"
        until(lambda: mom.run("EXECJOB_BEGIN", job)["accepted"], LEAST, "a job that begins")
        mom.save(job)
        arrives = subprocess.Popen([*space, sys.executable, "-S", "-c", ARRIVES, there, str(SENT)], stdout=subprocess.PIPE, text=True)
        try:
            expect_equal(arrives.stdout.readline(), "ready\n", "what the other side says")
            mom.start(job, f"exec /usr/bin/python3 -S -c {shlex.quote(SENDS)} {there} {SENT}")
            job.started()
            # 0.3 s of the bound leave at once, and each packet has a head.
            seconds = float(arrives.stdout.readline())
            expect(seconds > SENT / MIB - 0.35, f"{SENT} bytes arrived in {seconds} s")
        finally:
            arrives.kill()
            arrives.wait()

        def counted():
            show = mom.options.bin, "show", "--json", f"--config={mom.config}", job.id
            done = subprocess.run(show, capture_output=True, text=True, check=False)
            network = json.loads(done.stdout)["fences"][0]["network"] if done.returncode == 0 else None
            return network and network["sent_bytes"]
        until(lambda: SENT < (counted() or 0) < 1.2 * SENT, LEAST, lambda: f"{SENT} bytes and their heads, not {counted()}")
        job.kill()
        job.over()


@case
def memory_and_swap(mom, user):
    """vmem beside mem grants swap; alone it is memory."""
    for resources, keys, memory, swap in (
        ("mem=100mb:vmem=150mb", (), 100, 50),
        ("mem=100mb:vmem=150mb", ("AllowedSwapSpace=10",), 100, 50),
        ("mem=100mb", ("AllowedSwapSpace=10",), 100, 10),
        ("mem=100mb:vmem=60mb", (), 60, 0),
        ("vmem=60mb", ("DefaultRAMSpace=40M",), 60, 0),
        ("mem=100mb:vmem=150mb", ("ConstrainSwapSpace=no",), 100, None),
    ):
        mom.write_config(*keys)
        job = Job(mom, user, exec_vnode=f"({HOST}:ncpus=1:{resources})")
        mom.begin(job)
        expect_equal(job.group().memory_limit(), memory * MIB, f"memory for {resources} with {keys}")
        if job.group().swap_is_accounted():
            expect_equal(job.group().swap_limit(), swap and swap * MIB, f"swap for {resources} with {keys}")
        job.over()


def gpus_in_records(mom, job):
    """The GPUs of each fence of a job, by the command."""
    said = subprocess.run([mom.options.bin, "usage", f"--config={mom.config}", f"--job={job.id}", "--json"], check=True, capture_output=True)
    return {fence["step"]: [path.rsplit("/", 1)[1] for path in fence["gpus"]] for fence in json.loads(said.stdout)["fences"]}


def granted_gpus(mom, user, number, gpus):
    return Job(mom, user, number=str(number), exec_vnode=f"({HOST}:ncpus=1:mem=100mb:ngpus={gpus})")


@case
def gpus_by_job(mom, user):
    """Each job has a GPU of its own, in all its steps, and can open no other."""
    with gpus_of_the_node((0, 1)) as top:
        mom.write_config("ConstrainDevices=yes", f"GPUDevice={top}/nvidia%d")
        first, second, third = (granted_gpus(mom, user, number, 1) for number in (1, 2, 3))
        for job, gpu in (first, "nvidia0"), (second, "nvidia1"):
            mom.begin(job)
            mom.start(job, SHOW_GPUS.format(top) + "exec sleep 300")
            job.started()
            said = until(lambda job=job: "CUDA=" in job.output.read_text() and job.output.read_text(), LEAST, "the job's words")
            expect_equal(said, f"{gpu}\nCUDA=0\n", "what the job can open, and is told")
        for event in "EXECJOB_BEGIN", "EXECJOB_BEGIN":
            answer = mom.run(event, third)
            expect(not answer["accepted"] and answer["rerun"], f"a third job has a GPU: {answer}")
            expect("too few GPUs are free for this job" in answer["message"] and "job 3.server; granted 1" in answer["message"] and "nvidia0 by job 1.server run 1" in answer["message"], f"{answer}")
            expect_equal(answer["hold"], "", "the hold of a job that can run in a moment")
            expect(not third.group().exists(), "the third job has a fence")
        # A later task, another open of each step, and a resize.
        mom.accepted("EXECJOB_BEGIN", first)
        mom.accepted("EXECJOB_RESIZE", first)
        mom.start(first, SHOW_GPUS.format(top), tasknum="00000002", prologue=False)
        os.waitpid(first.starters.pop(), 0)
        expect_equal(first.output.read_text(), "nvidia0\nCUDA=0\n", "what a later task can open, and is told")
        expect_equal(gpus_in_records(mom, first), {step: ["nvidia0"] for step in ("extern", "1", "2")}, "the GPUs of its steps")
        # MoM starts again: the choice stands in the records.
        mom.accepted("EXECHOST_STARTUP")
        expect(not mom.run("EXECJOB_BEGIN", third)["accepted"], "the third job has a GPU of a job that runs")
        first.ended()
        mom.begin(third)
        expect_equal(gpus_in_records(mom, third), {"extern": ["nvidia0"]}, "the GPUs of the third job")
        # Another run of a job is another's, until it is closed: begin does that.
        again = Job(mom, user, number="2", run=2, exec_vnode=second.more["exec_vnode"])
        mom.accepted("EXECJOB_BEGIN", again)
        mom.save(again)
        second.wait()
        expect_equal(gpus_in_records(mom, again), {"extern": ["nvidia1"]}, "the GPUs of the second run")
        without = mom.begun(user, number="4")
        mom.start(without, SHOW_GPUS.format(top))
        without.wait()
        expect_equal(without.output.read_text(), "CUDA=\n", "what a job without GPUs can open, and is told")
        for job in without, third, again:
            job.over()


@case
def gpus_are_given_back(mom, user):
    """A job that gives back a chunk of this host gives back its GPU."""
    with gpus_of_the_node((0, 1)) as top:
        mom.write_config("ConstrainDevices=yes", f"GPUDevice={top}/nvidia%d")
        job, other = granted_gpus(mom, user, 1, 2), granted_gpus(mom, user, 2, 1)
        mom.begin(job)
        mom.start(job, f"while [ ! -e {mom.top}/go ]; do sleep 0.05; done; " + SHOW_GPUS.format(top))
        job.started()
        expect(not mom.run("EXECJOB_BEGIN", other)["accepted"], "another job has a GPU of a job that has all of them")
        job.more["exec_vnode"] = job.more["exec_vnode"].replace("ngpus=2", "ngpus=1")
        mom.accepted("EXECJOB_RESIZE", job)
        mom.begin(other)
        expect_equal(gpus_in_records(mom, other), {"extern": ["nvidia1"]}, "the GPUs of the other job")
        (mom.top / "go").touch()
        job.wait()
        expect_equal(job.output.read_text(), "nvidia0\nCUDA=0,1\n", "what is left, and what the job was told when it began")
        job.over()
        other.over()


@case(is_long=True)
def gpus_are_told_alone(mom, user):
    """Without ConstrainDevices the numbers are those of the node, and without GPUDevice nothing is said."""
    with gpus_of_the_node((0, 1, 2), is_local=True) as top:
        for keys, gpus, said in (
            ([f"GPUDevice={top}/nvidia%d"], 2, "CUDA=1,2\n"),
            ([f'GPUDevice="{top}/nvidia[2,0-1]"'], 2, "CUDA=2,1\n"),
            ([f"GPUDevice={top}/nvidia%d"], 0, "CUDA=\n"),
            (["ConstrainDevices=yes", f"GPUDevice={top}/nvidia%d"], 2, "CUDA=0,1\n"),
            ([f"GPUDevice={top}/card%d"], 0, "CUDA=unset\n"),
            ([], 2, "CUDA=unset\n"),
        ):
            mom.write_config(f"GPUDevice={top}/nvidia%d")
            other, job = granted_gpus(mom, user, 8, 1), granted_gpus(mom, user, 9, gpus)
            mom.begin(other)
            mom.write_config(*keys)
            mom.begin(job)
            mom.start(job, SHOW_GPUS.format(top))
            job.wait()
            expect(job.output.read_text().endswith(said), f"with {keys} the job is told {job.output.read_text()!r}, not {said!r}")
            job.over()
            other.over()


@case
def gpus_chosen_at_once(mom, user):
    """Of many jobs that begin at the same moment no two have the same GPU, and one that there is none for has none."""
    with gpus_of_the_node(range(8), is_local=True) as top:
        mom.write_config(f"GPUDevice={top}/nvidia%d")
        jobs = [granted_gpus(mom, user, number, 1) for number in range(1, 11)]
        prepared = [mom.prepare("EXECJOB_BEGIN", job) for job in jobs]
        running = [subprocess.Popen(command, env=env, cwd=mom.workdir, start_new_session=True) for command, env, _ in prepared]
        answers = [mom.answer(process.wait(), answer) for process, (_, _, answer) in zip(running, prepared)]
        begun = [job for job, answer in zip(jobs, answers) if answer["accepted"]]
        expect(all("too few GPUs" in answer["message"] for answer in answers if not answer["accepted"]), f"{answers}")
        had = [gpu for job in begun for gpu in gpus_in_records(mom, job)["extern"]]
        expect_equal(sorted(had), [f"nvidia{number}" for number in range(8)], "the GPUs of the jobs that have begun")
        for job in begun:
            mom.save(job)
            job.over()


@case
def crashes_at_launch(mom, user):
    """MoM goes on with a job whose launch has crashed: its prologue has put it in."""
    for fail in (["jobfence_open_gpus", "crash"], ["jobfence_attach", "crash"], ["jobfence_abi_version", "crash"]):
        job = mom.begun(user)
        mom.start(job, "exec sleep 300", launch={"fail": fail})
        job.started("extern")
        job.ended()


@case
def crashes_at_launch_without_a_prologue(mom, user):
    """As of a task on another host: the periodic event puts its processes in."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300", prologue=False, launch={"fail": ["jobfence_attach", "crash"]})
    pid = job.starters[0]
    until(lambda: kernel.command_line(pid).startswith("sleep"), LEAST, "the start of the job")
    expect(not any(job.is_in(pid, step) for step in ("extern", "1")), "the process is in the fence already")
    stranger = mom.stray(user, "8.server")
    answer = mom.fetches(job, pid)
    expect("outside of the job's fence" in str(answer["log"]), f"{answer}")
    expect(not job.is_in(stranger.pid, "extern"), "a process of the user's that is none of the job's was put in")
    job.ended()


@case(is_long=True)
def the_service_finds_processes_in_no_fence(mom, user):
    """Those of a task of which MoM has told no hook: jobfence.service knows them by the session that MoM notes, by the process that has
    started them, and by their environment. It touches nobody else's."""
    job, ended, unfenced = (Job(mom, user, number=number) for number in ("7[3]", "8", "9"))
    mom.begin(job)
    mom.begin(ended)
    mom.save(unfenced)
    task = mom.stray(user, script="setsid sh -c 'setsid sleep 301 & exec sleep 302' &")
    children = until(lambda: len(found := kernel.descendants(task.pid)) == 2 and found, LEAST, "the children of the task")
    named, stranger, over, without = mom.stray(user, job.id), mom.stray(user), mom.stray(user), mom.stray(user)
    other = leases.uids()
    strange = [subprocess.Popen([*of, "env", f"PBS_JOBID={job.id}", "sleep", "300"], start_new_session=True)
               for of in ((), ("setpriv", f"--reuid={other.first}", "--clear-groups"))]
    mom.strays += strange
    for process in strange:
        until(lambda process=process: kernel.command_line(process.pid).startswith("sleep"), LEAST, "the start of a stranger")
    mom.save_task(job, 0x20, task.pid)
    for number, process in enumerate(strange, 0x21):
        mom.save_task(job, number, process.pid)
    mom.save_task(ended, 1, over.pid, status=3)
    also = mom.stray(user)
    for number, process in enumerate((without, also), 1):
        mom.save_task(unfenced, number, process.pid)
    before = {process.pid: kernel.cgroups_of(process.pid) for process in (stranger, over, without, also, *strange)}
    with mom.service() as log:
        for pid in task.pid, *children, named.pid:
            until(lambda pid=pid: job.is_in(pid, "extern"), LEAST, f"process {pid}, which is in {kernel.cgroups_of(pid)}, in the fence")
            until(lambda pid=pid: f"process {pid} of job {job.id} ran outside" in log(), LEAST, "that it is said")
        until(lambda: f"processes of job {unfenced.id} are in no fence" in log(), LEAST, "the name of what has no fence")
        time.sleep(2.5)
        expect_equal({pid: kernel.cgroups_of(pid) for pid in before}, before, "where strangers are")
        expect_equal(log().count("ran outside"), 4, f"how many were put in\n{log()}")
        expect_equal(log().count("are in no fence; the job has none"), 1, f"what is said of that\n{log()}")
        expect(f"process {strange[1].pid} of job {job.id} is in no fence, and is not of the job's user" in log(), f"{log()}")
    job.over()
    expect(all(kernel.is_alive(pid) for pid in before), "a stranger was killed")
    mom.forget(unfenced)
    for process in strange:
        process.kill()
        process.wait()
    other.release()


@case(is_long=True)
def each_call_fails(mom, user):
    """Whatever fails, and however: no exception leaves the hook, and no job goes on without a fence."""
    starting = ("EXECJOB_BEGIN", "EXECJOB_PROLOGUE", "EXECJOB_LAUNCH")
    calls = {
        "EXECJOB_BEGIN": ("total", "open_gpus"), "EXECJOB_ATTACH": ("attach",), "EXECJOB_RESIZE": ("limit",),
        "EXECJOB_POSTSUSPEND": ("freeze",), "EXECJOB_PRERESUME": ("thaw",), "EXECJOB_PRETERM": ("thaw",),
        "EXECJOB_EPILOGUE": ("total", "close"), "EXECJOB_END": ("close",), "EXECJOB_ABORT": ("close",),
        "EXECHOST_PERIODIC": ("total", "reap"), "EXECHOST_STARTUP": ("reap",),
        "EXECJOB_PROLOGUE": ("open_gpus", "attach"), "EXECJOB_LAUNCH": ("open_gpus", "attach"),
    }
    sleeper = mom.stray(user)
    for event, names in calls.items():
        job = mom.begun(user)
        of_nodes = event.startswith("EXECHOST")
        for name in (*names, "abi_version", "set_log"):
            for how in "exception", "-2", "-4", "-5":
                if name in ("abi_version", "set_log") and how != "exception":
                    continue
                answer = mom.run(event, None if of_nodes else job, fail=["jobfence_" + name, how], pid=sleeper.pid,
                                 env={"PBS_TASKNUM": "00000002"}, job_list=[job.attributes()] if of_nodes else [])
                is_fatal = event in starting or event in ("EXECJOB_ATTACH", "EXECJOB_PRERESUME")
                expect_equal(answer["accepted"], not is_fatal, f"{event}, {name} fails with {how}: {answer}")
                # A task is refused alone.
                is_rerun = event in starting and event != "EXECJOB_LAUNCH"
                expect_equal(answer["rerun"], is_rerun, f"{event}, {name} fails with {how}: {answer}")
                is_held = event == "EXECJOB_BEGIN" and how == "-2"
                expect_equal(answer["hold"], "s" * is_held, f"the hold after {event}, {name} fails with {how}")
                # What may pass is tried again, and not at once.
                is_later = event == "EXECJOB_BEGIN" and how != "-2"
                expect_equal(bool(answer["not_before"] and answer["not_before"] > time.time() + 10), is_later, f"{event} {name} {how} {answer}")
                expect("jobfence: " in str(answer["log"]), f"nothing in MoM's log: {event} {name} {how} {answer}")
                expect(not is_fatal or answer["message"].startswith("jobfence: "), f"{event} {name} {how} {answer}")
        job.over()


@case
def nothing_to_load(mom, user):
    """A library or a configuration that is not there, or is wrong: the job is refused, and told why."""
    job, right = Job(mom, user), mom.settings
    for settings, said in (
        ({**right, "Library": "/none.so"}, "cannot load /none.so"),
        ("\nLibary=x\n", ":3: found Libary=x, expected one of Library, Config"),
        ("Library\n", ":2: found Library, expected"),
        ({**right, "DiagMessages": "1"}, "DiagMessages: found 1, expected yes or no"),
    ):
        mom.settings = settings
        answer = mom.run("EXECJOB_BEGIN", job)
        expect(not answer["accepted"] and answer["rerun"] and said in answer["message"], f"{settings}: {answer}")
        expect_equal(answer["hold"], "s", "the hold of a job that would be refused again")
        expect(mom.run("EXECHOST_STARTUP")["accepted"], "startup was refused")
    mom.settings = right
    mom.write_config("MaxProcesses=many")
    answer = mom.run("EXECJOB_BEGIN", job)
    expect(not answer["accepted"] and f"{mom.config}:3" in answer["message"], f"{answer}")
    mom.write_config("Mode=off")
    expect(mom.run("EXECJOB_BEGIN", job)["accepted"], "Mode=off")
    mom.save(job)
    mom.start(job, "exec sleep 300")
    pid = job.starters[0]
    until(lambda: kernel.command_line(pid).startswith("sleep"), LEAST, "the start of the job")
    job.kill()
    mom.write_config()
    job.over()


@case(is_long=True)
def a_mistake_at_the_end(mom, user):
    """A configuration that was broken while a job ran keeps neither what the job has used nor its fence."""
    right = mom.settings
    for broken in "jobfence.conf", "jobfence.CF":
        job = mom.begun(user)
        mom.start(job, "exec python3 -S -c 'import time\nwhile time.process_time() < 1.2: pass'")
        job.wait()
        if broken == "jobfence.conf":
            mom.write_config("MaxProcesses=many", "Nonsense=1")
        else:
            mom.settings = "Libary=x\n" + "".join(f"{key}={value}\n" for key, value in right.items())
        answer = mom.accepted("EXECJOB_EPILOGUE", job)
        expect(int(answer["used"][job.id]["cput"]) >= 1, f"used with a broken {broken}: {answer}")
        expect(not job.group().exists(), f"{job.path()} is still there, with a broken {broken}")
        mom.accepted("EXECJOB_END", job)
        expect(not mom.run("EXECJOB_BEGIN", job)["accepted"], f"a job begins with a broken {broken}")
        mom.write_config()
        mom.settings = right
        mom.forget(job)


@case
def a_begin_that_comes_to_nothing(mom, user):
    """A hook after ours can refuse the job, of which MoM tells nobody: the fence, with the job's GPUs, goes within two minutes."""
    with gpus_of_the_node((0,)) as top:
        mom.write_config("ConstrainDevices=yes", f"GPUDevice={top}/nvidia%d")
        refused, other = granted_gpus(mom, user, 1, 1), granted_gpus(mom, user, 2, 1)
        mom.accepted("EXECJOB_BEGIN", refused)

        def later(seconds):
            for record in (mom.top / "run").rglob("*1.server*"):
                os.utime(record, (time.time() - seconds,) * 2)
            mom.accepted("EXECHOST_PERIODIC")
        later(30)
        expect(refused.group().exists(), "the fence of a job that may be about to begin is gone")
        expect(not mom.run("EXECJOB_BEGIN", other)["accepted"], "two jobs have one GPU")
        later(90)
        expect(not refused.group().exists(), "the fence of a job that does not begin is still there")
        mom.begin(other)
        other.over()
        # One with a process in it is no such fence.
        stray = mom.stray(user)
        mom.accepted("EXECJOB_BEGIN", refused)
        mom.accepted("EXECJOB_ATTACH", refused, pid=stray.pid)
        later(90)
        expect(refused.is_in(stray.pid, "extern"), "a fence with a process in it is gone")
        mom.accepted("EXECJOB_END", refused)


@case(is_long=True)
def used_on_another_host(mom, user):
    """MoM counts no walltime there, and adds up each host's share of the CPUs."""
    job = Job(mom, user, is_first=False, stime=int(time.time()) - 10, resources_used={"walltime": 0})
    mom.begin(job)
    mom.start(job, "exec python3 -S -c 'import time\nwhile time.process_time() < 2: pass'", prologue=False)
    job.wait()
    used = job.over()["used"][job.id]
    expect(5 <= int(used["cpupercent"]) <= 40, f"used {used}")


@case(is_long=True)
def a_host_that_can_fence_no_job(mom, user):
    """Where the site wants it, such a host is set offline, once, and the job waits for another one. A job's own fault sets none offline."""
    named, right = {"vnodes": {HOST: {}}, "comments": {HOST: "rack 3"}}, mom.settings
    offline = {**right, "OfflineNode": "yes"}

    def broken(settings, *lines, run=None, comments=None, **attributes):
        mom.settings = settings
        mom.write_config(*lines)
        if run:
            (mom.top / "file").write_text("")
            mom.config.write_text("\n".join((f"CgroupBase={mom.base}", f"RunDir={run}", *lines, "")))
        job = Job(mom, user, **attributes)
        answer = mom.run("EXECJOB_BEGIN", job, **{**named, **({"comments": comments} if comments else {})})
        expect(not answer["accepted"] and answer["rerun"], f"{answer}")
        return answer

    mistake, no_size = "MaxProcesses=many", "MaxHugePages=64K:0"
    of_queue = "[Queue=workq]", no_size
    (mom.top / "cores").mkdir(mode=0o700)
    (mom.top / "cores/cores.lock").write_text("")
    for settings, lines, more, said in (
        (offline, [mistake], {}, f"{mom.config}:3"),
        (offline, [no_size], {}, "no huge pages of the size"),
        (offline, [], {"run": f"{mom.top}/file"}, f"{mom.top}/file"),
        # The probe goes on without a fence, and leaves none to be closed.
        (offline, ["OnError=warn", "ConstrainCores=yes", "[Queue=workq]", "OnError=fail"], {"run": f"{mom.top}/cores"}, "cores.lock"),
        ({**offline, "Library": "/none.so"}, [], {}, "cannot load /none.so"),
        # A comment of ours is there once.
        (offline, [mistake], {"comments": {HOST: "rack 3 jobfence: no job can be fenced here: x"}}, f"{mom.config}:3"),
    ):
        answer = broken(settings, *lines, **more)
        expect_equal((answer["hold"], list(answer["vnodes"])), ("", [HOST]), f"{lines}: the hold and the vnodes: {answer}")
        state, comment = answer["vnodes"][HOST]["state"], answer["vnodes"][HOST]["comment"]
        begins = "rack 3 jobfence: no job can be fenced here: "
        expect(state == 1 and comment.startswith(begins) and said in comment and "\n" not in comment, f"{state}: {comment!r}")
        expect(comment.count("no job can be") == 1 and comment.endswith("pbsnodes -r NODE -C ''"), comment)
    # The server does not answer, for both together.
    two = [f"{HOST}[{number}]" for number in (0, 1)]
    mom.settings, asked = offline, mom.top / "spool/asked"
    asked.unlink(missing_ok=True)
    mom.write_config(mistake)
    job = Job(mom, user, exec_vnode="+".join(f"({name}:ncpus=1)" for name in two), exec_host2=f"{FULL_NAME}:15002/0+{FULL_NAME}:15002/1")
    answer = mom.run("EXECJOB_BEGIN", job, vnodes={name: {} for name in two})
    # What the administrator may have written there stays; MoM's log has the reason.
    expect_equal(answer["vnodes"], {name: {"state": 1} for name in two}, f"the vnodes: {answer}")
    for name in two:
        expect(any(f"{name} is set offline: " in line and f"{mom.config}:3" in line for line in answer["log"]), f"{answer}")
    expect_equal(kernel.read(asked), "x", "how often the server was asked")
    for settings, lines, more in (
        (right, [mistake], {}),
        (offline, of_queue, {}),
        (offline, [], {"exec_vnode": "(other:ncpus=1)", "exec_host2": "other:15002/0"}),
        (offline, [], {"exec_vnode": f"({HOST}:ncpus=nonsense)"}),
        (offline, ["GPUDevice=/dev/none%d"], {"exec_vnode": f"({HOST}:ncpus=1:ngpus=1)"}),
        # MoM does not know one of the vnodes: none is set offline, and the job is not sent elsewhere.
        (offline, [mistake], {"exec_vnode": f"({HOST}:ncpus=1)+({HOST}[9]:ncpus=1)", "exec_host2": f"{FULL_NAME}:1/0+{FULL_NAME}:1/1"}),
    ):
        answer = broken(settings, *lines, **more)
        expect_equal(answer["vnodes"], {}, f"what is set of vnodes with {lines}, {more}: {answer}")
    expect(not (mom.top / "run").exists() or not list((mom.top / "run").glob("*probe*")), "a probe is left")
    expect(not list(kernel.Group(f"/{mom.base}/uid_65534").directories()), "a fence of a probe is left")
    mom.settings = right


def cpus_of(job, step="extern"):
    """The CPUs that a step is limited to, and those of its job."""
    group = job.group(step)
    return tuple(found.file("cpuset", "cpuset.cpus", "cpuset.cpus") for found in (group, group.parent))


@case
def cores_by_job(mom, user):
    """With ConstrainCores each job has CPUs of its own, in all its steps, until it gives them back."""
    everything = kernel.Group("/").file("cpuset", "cpuset.cpus.effective", "cpuset.effective_cpus")
    numbers = [number for part in everything.split(",") for ends in [part.split("-")] for number in range(int(ends[0]), int(ends[-1]) + 1)]
    if len(numbers) < 2:
        print("     this machine has one CPU")
        return
    mom.write_config("ConstrainCores=yes")
    half = len(numbers) // 2

    def job_of(number, cpus, **more):
        return Job(mom, user, number=str(number), exec_vnode=f"({HOST}:ncpus={cpus}:mem=100mb)", **more)

    first, second, third = job_of(1, half), job_of(2, len(numbers) - half), job_of(3, 1)
    for job in first, second:
        mom.begin(job)
    taken = [cpus_of(job) for job in (first, second)]
    sets = [{number for part in of.split(",") for ends in [part.split("-")] for number in range(int(ends[0]), int(ends[-1]) + 1)}
            for of, around in taken if of == around]
    expect_equal([len(one) for one in sets], [half, len(numbers) - half], f"how many CPUs: {taken}")
    expect_equal(sets[0] | sets[1], set(numbers), f"all CPUs: {taken}")
    # A later step has the same ones, and so has a job that begins again.
    mom.start(first, "exec sleep 300")
    first.started()
    expect_equal(cpus_of(first, "1"), taken[0], "the CPUs of a later step")
    expect_equal(set(os.sched_getaffinity(first.starters[0])), sets[0], "where its process runs")
    mom.begin(first)
    expect_equal(cpus_of(first), taken[0], "the CPUs of the same job again")
    # PBS counts them, too, but grants those of a suspended job once more.
    answer = mom.begin(third)
    expect(any("too few CPUs are free" in line for line in answer["log"]), f"{answer}")
    expect(cpus_of(third)[0] in map(str, numbers), f"a CPU that is shared: {cpus_of(third)}")
    third.over()
    # One that has the host alone, or no CPU, is kept to none, and takes none from others.
    for job in job_of(4, 0), job_of(5, 1, Resource_List={"place": "exclhost"}):
        mom.begin(job)
        expect(cpus_of(job)[0] in ("", everything), f"the CPUs of {job.id}: {cpus_of(job)}")
        job.over()
    first.ended()
    mom.begin(third)
    expect(cpus_of(third)[0] in map(str, sets[0]), f"a CPU that is free again: {cpus_of(third)}")
    third.over()
    # What a job gives back is free.
    if half > 1 or len(numbers) - half > 1:
        second.more["exec_vnode"] = f"({HOST}:ncpus=1:mem=100mb)"
        mom.accepted("EXECJOB_RESIZE", second)
        expect(cpus_of(second)[0] in map(str, sets[1]), f"the CPUs of a job that is resized: {cpus_of(second)}")
    second.over()


@case(is_long=True)
def granted_huge_pages(mom, user):
    """hpmem is what a job may have in huge pages of the kernel's default size, where the site counts that."""
    from contract.hugetlb import handed_down, has_hugetlb, name_of, sizes_of_this_host

    if not has_hugetlb():
        print("     this machine has no hugetlb controller")
        return
    kib = int(re.search(r"Hugepagesize: +(\d+) kB", kernel.read("/proc/meminfo"))[1])
    size, none = name_of(kib), sizes_of_this_host()
    page = kib << 10
    with handed_down(mom):
        for setting, asked, wanted in (
            ("no", page * 3, {}), ("yes", page * 3, {size: page * 3}), ("yes", page * 3 + 1024, {size: page * 3}), ("yes", 0, {size: 0}),
            ("yes", None, {}), ("closed", page * 3, {**none, size: page * 3}), ("closed", 0, none), ("closed", None, none),
        ):
            mom.write_config(f"ConstrainHugePages={setting}")
            more = "" if asked is None else f":hpmem={asked}b"
            job = Job(mom, user, exec_vnode=f"({HOST}:ncpus=1:mem=100mb{more})")
            mom.begin(job)
            expect_equal(job.group().huge_pages(), wanted, f"huge pages with {setting} of {asked}")
            job.over()
        # Two vnodes of this host.
        mom.write_config("ConstrainHugePages=yes")
        job = Job(mom, user, exec_vnode=f"({HOST}[0]:ncpus=1:hpmem={page}b+{HOST}[1]:ncpus=1:hpmem={page}b)")
        mom.begin(job)
        expect_equal(job.group().huge_pages(), {size: page * 2}, "huge pages of two vnodes")
        job.over()


@case
def address_space(mom, user):
    """RLIMIT_AS is MoM's, or pvmem alone, where the site wants that: the fence limits vmem."""
    of_mom = 400 * MIB
    pvmem = {"AddressSpace": "pvmem"}
    for settings, asked, wanted, lines in (
        ({}, {}, of_mom, ()), ({"AddressSpace": "mom"}, {"pvmem": "600mb"}, of_mom, ()),
        (pvmem, {}, "unlimited", ()), (pvmem, {"pvmem": "600mb"}, 600 * MIB, ()),
        # Otherwise nothing would limit vmem.
        (pvmem, {}, of_mom, ("Mode=observe",)), (pvmem, {}, of_mom, ("ConstrainRAMSpace=no", "ConstrainSwapSpace=no")),
    ):
        mom.write_config(*lines)
        mom.settings = {**mom.settings, "AddressSpace": "mom", **settings}
        job = Job(mom, user, exec_vnode=f"({HOST}:ncpus=1:mem=200mb:vmem=400mb)", Resource_List=asked)
        mom.begin(job)
        mom.start(job, "exec sleep 300", limits=((resource.RLIMIT_AS, (of_mom, resource.RLIM_INFINITY)),))
        until(lambda job=job: kernel.command_line(job.starters[0]).startswith("sleep"), LEAST, "the start of the job")
        line = re.search(r"Max address space +(\S+) +(\S+)", kernel.read(f"/proc/{job.starters[0]}/limits"))
        hard = "unlimited" if wanted == of_mom else wanted
        expect_equal(line.groups(), (str(wanted), str(hard)), f"RLIMIT_AS with {settings}, {asked}, {lines}")
        if not lines:
            expect_equal(job.group().memory_limit(), 200 * MIB, "the memory of the fence")
        job.ended()


@case
def a_default_and_the_whole_host(mom, user):
    """DefaultRAMSpace is for a job that has the host alone, too, unless the site says otherwise."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    mom.write_config("DefaultRAMSpace=40M")
    for place, setting, asked, memory in (
        ("excl", "host", "", 40 * MIB), ("exclhost", "granted", "", 40 * MIB), ("exclhost", "host", "", whole),
        ("scatter:exclhost", "host", ":mem=100mb", 100 * MIB), ("exclhost", "host", ":vmem=60mb", 60 * MIB),
    ):
        mom.settings = {**mom.settings, "ExclhostMemory": setting}
        job = Job(mom, user, exec_vnode=f"({HOST}:ncpus=1{asked})", Resource_List={"place": place})
        mom.begin(job)
        expect_equal(job.group().memory_limit(), memory, f"memory with {place}, {asked}, {setting}")
        job.over()


@case
def repeated_and_missing_events(mom, user):
    job = mom.begun(user)
    mom.start(job, "exec sleep 300", prologue=False)
    pid = job.started()
    mom.accepted("EXECJOB_BEGIN", job)
    expect(job.is_in(pid, "1"), "a repeated begin has touched the job")
    # It runs again: what its earlier run has left is gone before.
    again = Job(mom, user, run=2)
    mom.accepted("EXECJOB_BEGIN", again)
    expect(not kernel.is_alive(pid), "a process of the earlier run is alive")
    mom.save(again)
    job.wait()
    expect(again.group("extern").exists(), "the second run has no fence")
    for event in ("EXECJOB_EPILOGUE", "EXECJOB_EPILOGUE", "EXECJOB_END", "EXECJOB_ABORT", "EXECJOB_END"):
        mom.accepted(event, again)
    expect(not again.group().exists(), "the fence is still there")
    # Only its end, and nothing before.
    job = mom.begun(user)
    mom.accepted("EXECJOB_END", job)
    expect(not job.group().exists(), "the fence is still there after the end alone")


@case
def mom_dies(mom, user):
    """A job is dead when MoM does not have it any more, and at no other time."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300")
    pid = job.started()

    def startup(seconds=3600):
        """So long after the fence was last changed."""
        for record in (mom.top / "run").rglob("*server*"):
            os.utime(record, (time.time() - seconds,) * 2)
        mom.accepted("EXECHOST_STARTUP")

    startup()
    expect(job.is_in(pid, "1"), "a job that is in MoM's spool was touched")
    # Its file is gone, but the fence is younger than a start takes.
    mom.forget(job)
    startup(500)
    expect(job.is_in(pid, "1"), "a job that may be about to begin was touched")
    mom.spool.rename(mom.top / "away")
    startup()
    expect(job.is_in(pid, "1"), "a job of which nothing is known was touched")
    (mom.top / "away").rename(mom.spool)
    startup()
    until(lambda: not kernel.is_alive(pid), LEAST, "the death of the job")
    until(lambda: not job.group().exists(), LEAST, "the end of the fence")
    job.wait()


@case
def suspended(mom, user):
    job = mom.begun(user)
    mom.start(job, "setsid sh -c 'while :; do :; done' & exec sleep 300")
    job.started()
    until(lambda: len(job.group("1").members()) == 2, LEAST, "the two processes")
    mom.accepted("EXECJOB_POSTSUSPEND", job)
    spinner = next(pid for pid in job.group("1").members() if pid != job.starters[0])
    before = kernel.process_seconds(spinner)
    time.sleep(0.5)
    expect_equal(kernel.process_seconds(spinner), before, "CPU time of a frozen process")
    mom.accepted("EXECJOB_PRERESUME", job)
    until(lambda: kernel.process_seconds(spinner) > before, LEAST, "CPU time of a thawed process")
    mom.accepted("EXECJOB_POSTSUSPEND", job)
    mom.accepted("EXECJOB_PRETERM", job)
    job.ended()
    expect(not kernel.is_alive(spinner), "a process of the job is alive")


@case
def a_user_locks_the_library(mom, user):
    """Users can open the library, and so keep a lock on it. Nothing waits for that."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300")
    job.started()
    job.more.update(substate=42, Exit_status=-12)
    words = ["setpriv", f"--reuid={user}", "--clear-groups", "flock", mom.settings["Library"], "sh", "-c", "echo; exec sleep 300"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as locker:
        locker.stdout.readline()
        mom.accepted("EXECJOB_END", job)
        os.killpg(locker.pid, signal.SIGKILL)
    expect(job.group("extern").exists() and not job.group("1").exists(), "the fence for the restart is not there, or not alone")
    lock = mom.top / "spool/mom_priv/jobfence.lock"
    expect_equal(lock.stat().st_mode & 0o7777, 0o600, "the mode of what is locked")
    job.more["substate"] = 51
    job.over()


@case
def an_environment_that_cannot_be_read(mom, user):
    """As of a process that maps a file of a file system that does not answer: nobody waits for it, and others are looked at."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300")
    job.started()
    waits, stray = (mom.stray(user, job.id) for _ in range(2))
    never = mom.top / "never"
    os.mkfifo(never)
    mom.prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                  f'mount --bind {never} /proc/{waits.pid}/environ && exec "$@"', "sh"]
    try:
        mom.fetches(job, stray.pid)
    finally:
        mom.prefix = []
    expect(not job.is_in(waits.pid, "extern"), "a process was put in of which nobody knows whose it is")
    job.ended()


@case
def checkpointed(mom, user):
    """A checkpoint that ends the job leaves one fence without processes, and what the job has used. The first event is the last."""
    job = mom.begun(user)
    mom.start(job, "setsid sleep 300 & while :; do :; done")
    pid = job.started()
    until(lambda: job.group().cpu_seconds() > 1.2, LEAST, "CPU time")
    job.more.update(substate=42, Exit_status=-12)
    mom.accepted("EXECJOB_END", job)
    job.wait()
    expect_equal((kernel.is_alive(pid), job.group().members(below=True)), (False, set()), "what is alive")
    expect(job.group("extern").exists() and not job.group("1").exists(), "the fence for the restart is not there, or not alone")
    job.more.update(substate=51, Exit_status=-12)
    used = mom.accepted("EXECJOB_EPILOGUE", job)["used"][job.id]
    expect(int(used["cput"]) >= 1, f"used at the checkpoint: {used}")
    # Nothing tells the hook that it restarts.
    job.more.update(substate=42, Exit_status=None)
    again = mom.stray(user, job.id)
    mom.fetches(job, again.pid)
    job.more["substate"] = 51
    used = job.over()["used"][job.id]
    expect(int(used["cput"]) >= 1, f"used at the end: {used}")
    again.wait()
    # Other hosts make a new fence, at begin.
    job.more.update(substate=42, is_first=False)
    mom.begin(job)
    mom.accepted("EXECJOB_END", job)
    expect(not job.group().exists(), "another host has kept a fence")
    # A job that runs and is deleted by force has that substate, too.
    job.more.update(substate=42, Exit_status=None, is_first=True)
    mom.begin(job)
    mom.accepted("EXECJOB_END", job)
    expect(not job.group().exists(), "a job that was deleted by force has kept a fence")


@case
def interactive(mom, user):
    """The relays of the terminal are root's, and the job's shell is in its step."""
    job = mom.begun(user)
    relay = mom.start(job, "exec sleep 300", is_interactive=True)
    shell = until(lambda: next((p for p in job.group("1").members() if kernel.command_line(p).startswith("sleep")), 0), LEAST, "the shell")
    expect(job.is_in(relay, "extern"), f"the relay is in {kernel.cgroups_of(relay)}")
    os.kill(shell, signal.SIGKILL)
    job.wait()
    job.over()


@case
def tasks_and_attached(mom, user):
    """Each task has a step; what pbs_attach brings comes with its session."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300")
    job.started()
    mom.start(job, "exec sleep 300", prologue=False, tasknum="0000000A")
    job.started("10")
    script = "sleep 300 & exec sleep 301"
    stranger = subprocess.Popen(["setpriv", f"--reuid={user}", "--clear-groups", "sh", "-c", script], start_new_session=True)
    child = until(lambda: next(iter(kernel.descendants(stranger.pid)), 0), LEAST, "the child")
    mom.accepted("EXECJOB_ATTACH", job, pid=stranger.pid)
    expect(job.is_in(stranger.pid, "extern") and job.is_in(child, "extern"), "pbs_attach: not both are in the extern step")
    job.more["exec_vnode"] = f"({HOST}:ncpus=2:mem=100mb)"
    mom.accepted("EXECJOB_RESIZE", job)
    for step in None, "extern", "1", "10":
        expect_equal(job.group(step).cpu_limit(), 2.0, f"CPUs of step {step} after the resize")
    job.ended()
    stranger.wait()


@case
def a_task_of_a_job_that_began_without_the_hook(mom, user):
    """Such a task has its fence, and from then on the job has one: what runs of it is put in."""
    job = Job(mom, user)
    mom.save(job)
    earlier = mom.stray(user, job.id)
    mom.start(job, "exec sleep 300", prologue=False)
    job.started()
    mom.fetches(job, earlier.pid)
    expect(job.is_in(earlier.pid, "extern"), f"process {earlier.pid} is in {kernel.cgroups_of(earlier.pid)}")
    job.ended()


@case
def strangers_are_not_attached(mom, user):
    """A user chooses the number that pbs_attach brings, and MoM looks whose it is only after the hook."""
    job = mom.begun(user)
    other = leases.uids()
    strangers = [subprocess.Popen([*of, "sleep", "300"], start_new_session=True)
                 for of in ((), ("setpriv", f"--reuid={other.first}", "--clear-groups"))]
    try:
        for stranger in strangers:
            until(lambda: kernel.command_line(stranger.pid).startswith("sleep"), LEAST, "the start of a stranger")
            answer = mom.run("EXECJOB_ATTACH", job, pid=stranger.pid)
            expect(not answer["accepted"] and "is not of the job's user" in answer["message"], f"{answer}")
        job.over()
        expect(all(kernel.is_alive(stranger.pid) for stranger in strangers), "a stranger was killed")
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()
        other.release()


@case
def periodic_bears_odd_names(mom, user):
    """A user's cgroup can have any name, and keeps no other job from what the event does."""
    job, dead = Job(mom, user), Job(mom, user, number="8")
    mom.begin(job)
    mom.begin(dead)
    mom.forget(dead)
    odd = [os.path.join(os.fsencode(str(directory)), b"\xff") for directory in kernel.Group(f"/{mom.base}").directories()]
    stray = mom.stray(user, job.id)
    try:
        for path in odd:
            os.mkdir(path)
            with open(os.path.join(path, b"cgroup.procs"), "w") as file:
                file.write(str(stray.pid))
        for record in (mom.top / "run").rglob("*8.server*"):
            os.utime(record, (time.time() - 3600,) * 2)
        mom.fetches(job, stray.pid)
        expect(not dead.group().exists(), "the fence of a dead job is still there")
    finally:
        stray.kill()
        stray.wait()
        for path in odd:
            os.rmdir(path)
    job.over()


@case
def a_name_is_no_fence(mom, user):
    """A user can have made a directory that is called as a fence of the user's: what is there is fetched all the same."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300")
    job.started()
    stray = mom.stray(user, job.id)
    above = [kernel.Group(f"/{mom.base}").limits_directory("memory") / "user.slice"]
    above += [above[0] / f"uid_{job.uid}", above[0] / f"uid_{job.uid}/job_{job.id}"]
    try:
        for directory in above:
            directory.mkdir()
        (above[-1] / "cgroup.procs").write_text(str(stray.pid))
        mom.fetches(job, stray.pid)
        answer = mom.accepted("EXECHOST_PERIODIC", job_list=[job.attributes()])
        expect("outside of the job's fence" not in str(answer["log"]), f"what is in was put in again: {answer}")
    finally:
        stray.kill()
        stray.wait()
        for directory in reversed(above):
            directory.rmdir()
    job.ended()


@case
def usage_outlives_a_failed_close(mom, user):
    job = mom.begun(user)
    answer = mom.run("EXECJOB_EPILOGUE", job, fail=["jobfence_close", "-4"])
    expect(answer["accepted"] and "cput" in answer["used"][job.id] and answer["log"], f"{answer}")
    job.over()


@case
def joined_output(mom, user):
    """With qsub -j oe the sentence is where the job's stderr went."""
    job = Job(mom, user, Join_Path="oe")
    job.more["stdout"] = str(job.output)
    mom.begin(job)
    mom.start(job, "exec python3 -c 'x = bytearray(300 << 20)'")
    job.wait()
    os.chown(job.output, job.uid, job.gid)
    job.over()
    expect("reached its memory limit" in job.output.read_text(), "nothing was said in the joined output")


@case
def what_cannot_be_decoded(mom, user):
    """A byte that is no UTF-8 in a job's environment: pbs_python gives the hook no environment and has no answer for MoM, who goes on."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300", launch={"env": None})
    job.started("extern")
    mom.start(job, "exec sleep 300", prologue=False, tasknum="00000002", launch={"env": None})
    job.started("extern")
    # What cannot be put into a fence does not run.
    mom.start(job, "exec sleep 300", prologue=False, tasknum="00000003", launch={"env": None, "fail": ["jobfence_attach", "-2"]})
    task = job.starters[-1]
    ended = until(lambda: os.waitid(os.P_PID, task, os.WEXITED | os.WNOHANG | os.WNOWAIT), LEAST, "the end of a task without a fence")
    expect_equal(ended.si_status, signal.SIGKILL, "by what it has ended")
    os.waitpid(job.starters.pop(), 0)
    # Nor has the periodic event any jobs then.
    stray = mom.stray(user, job.id)
    mom.fetches(job, stray.pid, job_list=None)
    job.ended()
    stray.wait()


@case
def a_refused_task(mom, user):
    """Only the first process's refusal is the job's."""
    job = mom.begun(user)
    for number, is_jobs in (("1", True), ("00000001", True), ("00000002", False), ("40000001", False)):
        answer = mom.run("EXECJOB_LAUNCH", job, env={"PBS_TASKNUM": number}, fail=["jobfence_open_gpus", "-2"])
        expect_equal((answer["accepted"], answer["rerun"]), (False, is_jobs), f"the answer for task {number}")
    job.over()


@case
def the_scripts_of_a_site(mom, user):
    """The hook runs the prologue and the epilogue of a site where MoM would have run them: where no other hook has the event."""
    said = mom.top / "said"
    for name in "prologue", "epilogue":
        script = mom.spool.parent / name
        script.write_text(f'#!/bin/sh\necho "$0 $*" >>{said}\nexit $(cat {mom.top}/status)\n')
        script.chmod(0o755)
    job = Job(mom, user, egroup="users", Job_Name="a b", session_id=77, Resource_List={"ncpus": 1, "mem": "1gb"}, Exit_status=4,
              resources_used={"walltime": 5}, stdout="/dev/null")
    mom.begin(job)
    for status, accepted, deleted in ("0", True, False), ("1", False, True), ("3", False, False):
        (mom.top / "status").write_text(status)
        answer = mom.run("EXECJOB_PROLOGUE", job)
        expect_equal((answer["accepted"], answer["delete"]), (accepted, deleted), f"the answer when the prologue ends with {status}")
    answer = mom.accepted("EXECJOB_EPILOGUE", job)
    expect("the epilogue of the site has ended with 3" in str(answer["log"]), f"{answer}")
    words = ["prologue 7.server USER users"] * 3
    lines = said.read_text().replace(f"{mom.spool.parent}/", "").replace(f" {user} ", " USER ").splitlines()
    expect_equal(lines[:3], words, "the prologue's words")
    expect(lines[3].startswith("epilogue 7.server USER users a b 77 mem=1gb,ncpus=1 cpupercent="), f"the epilogue's words: {lines[3]}")
    expect(lines[3].endswith(" workq null 4"), f"the epilogue's words: {lines[3]}")
    # On another host, or where another hook has the event, nobody has run them.
    job.more["is_first"] = False
    for event in "EXECJOB_PROLOGUE", "EXECJOB_EPILOGUE":
        mom.accepted(event, job)
    job.more["is_first"] = True
    hooks = mom.workdir.parent
    (hooks / "theirs.PY").touch()
    (hooks / "theirs.HK").write_text("type=site\nevent=execjob_begin,execjob_prologue,execjob_epilogue\n")
    for event in "EXECJOB_PROLOGUE", "EXECJOB_EPILOGUE":
        mom.accepted(event, job)
    expect_equal(len(said.read_text().splitlines()), 4, "how often they have run")
    (hooks / "theirs.HK").write_text("enabled=false\ntype=site\nevent=execjob_begin,execjob_prologue,execjob_epilogue\n")
    (mom.spool.parent / "prologue").chmod(0o777)
    answer = mom.run("EXECJOB_PROLOGUE", job)
    expect(answer["rerun"] and "must be a file of root's" in answer["message"], f"{answer}")
    (mom.spool.parent / "prologue").chmod(0o755)
    (mom.spool.parent / "prologue").write_text("#!/bin/sh\nsleep 300\n")
    (mom.spool.parent / "config").write_text("$logevent 0x1ff\n$prologalarm 1\n")
    answer = mom.run("EXECJOB_PROLOGUE", job)
    expect(answer["rerun"] and "ended with -4" in answer["message"], f"{answer}")
    job.over()


@case
def two_jobs_of_a_user(mom, user):
    """Each event of one job leaves the other whole, whose limits are in other hierarchies of v1."""
    mom.write_config("[Queue=small]", "MaxProcesses=100")
    small, large = Job(mom, user, number="1", queue="small"), Job(mom, user, number="2", queue="large")
    for job in small, large:
        mom.begin(job)
        mom.start(job, "exec sleep 300")
        job.started()
    for job in small, large:
        stray = mom.stray(user)
        for event in "EXECJOB_ATTACH", "EXECJOB_RESIZE", "EXECJOB_POSTSUSPEND", "EXECJOB_PRERESUME", "EXECJOB_PRETERM":
            answer = mom.accepted(event, job, pid=stray.pid)
            expect_equal(answer["log"], [], f"what is said at {event}")
        mom.accepted("EXECHOST_PERIODIC", job_list=[job.attributes()])
        mom.start(job, "exec sleep 300", prologue=False, tasknum="00000002")
        job.started("2")
        job.ended()
        stray.wait()


@case
def readers_of_limits(mom, user):
    """MoM's umask is 077 at launch; users read what limits them."""
    job = mom.begun(user)
    mom.start(job, "exec sleep 300")
    job.started()
    modes = {str(path): path.stat().st_mode & 0o777 for step in (None, "extern", "1") for path in job.group(step).directories()}
    expect_equal(set(modes.values()), {0o755}, f"the modes of {modes}")
    job.ended()


@case
def a_mom_with_another_directory(mom, user):
    """pbs_mom -d: the files of her jobs are not where pbs.conf says."""
    mom.conf.write_text(f"PBS_HOME={mom.top}/elsewhere\n")
    (mom.top / "elsewhere/mom_priv/jobs").mkdir(parents=True)
    job, dead = Job(mom, user), Job(mom, user, number="8")
    mom.begin(job)
    mom.begin(dead)
    mom.forget(dead)
    for record in (mom.top / "run").rglob("uid_*"):
        os.utime(record, (time.time() - 3600,) * 2)
    reap = [mom.options.bin, "reap", f"--config={mom.config}"]
    subprocess.run(reap, env={**os.environ, "PBS_CONF_FILE": str(mom.conf)}, check=False, capture_output=True)
    expect(job.group().exists() and dead.group().exists(), "a spool that no MoM has has ended a job")
    mom.accepted("EXECHOST_PERIODIC", job_list=[job.attributes()])
    expect_equal((job.group().exists(), dead.group().exists()), (True, False), "whether the fences are there")
    job.over()


@case
def the_stand_in_is_as_recorded(mom, user):
    """The stand-in, the hook, and the cases know no field that no recording has. The stand-in looks at each event itself."""
    hook = mom.hook.read_text()
    named = {"module": set(re.findall(r"\bpbs\.(?!conf\b|md\b)(\w+)", hook)), "fields": set(re.findall(r"\bevent\.(\w+)", hook)) - {"accept", "reject"}}
    named["attributes"] = set(re.findall(r"\b(?:self\.job|job\.job|of)\.([a-zA-Z_]+)", hook)) - METHODS
    for kind, names in named.items():
        expect_equal(names - set(RECORDED[kind]), set(), f"what of {kind} no recording has")
    for given in {"exec_host": f"{HOST}/0"}, {"no_such_attribute": 1}:
        said = ""
        try:
            mom.run("EXECJOB_BEGIN", Job(mom, user, **given))
        except AssertionError as error:
            said = str(error)
        expect("no job of a real MoM" in said, f"the stand-in takes {given}")


@case
def a_host_without_cgroups(mom, user):
    """With OnError=warn, jobs run there without a fence from the first event to the last, and the log says so; otherwise none begins."""
    mom.write_config("CgroupMountpoint=/nonexistent")
    answer = mom.run("EXECJOB_BEGIN", Job(mom, user))
    expect(not answer["accepted"] and "no cgroup file system" in answer["message"], answer)
    mom.write_config("CgroupMountpoint=/nonexistent", "OnError=warn")
    job = mom.begun(user)
    pid = mom.start(job, "exec sleep 300")
    until(lambda: not kernel.is_alive(pid) or os.stat(f"/proc/{pid}").st_uid == job.uid, LEAST, "the start of the job")
    expect(kernel.is_alive(pid), f"the job did not start: {job.answers()}")
    job.ended()


@case
def small_address_space(mom, user):
    """The job's own limits hold for the hook at launch, too."""
    job = mom.begun(user)
    # What was killed may not be buried yet, and counts for the limit.
    until(lambda: not processes_of(user), LEAST, "the burial of the user's other processes")
    mom.start(job, "exec sleep 300", limits=((resource.RLIMIT_AS, 60 * MIB), (resource.RLIMIT_NPROC, 4)))
    job.started()
    job.ended()


EMPTY_HOOK = "import pbs\npbs.event().accept()\n"


@case(is_long=True)
def time_of_an_event(mom, user):
    """At most three and a half times as long as a hook that does nothing, each as fast as it ever was. It is twice as long."""
    # This machine's other work is nothing to it.
    mom.is_realtime = True
    empty, ours = mom.top / "empty.py", mom.hook
    empty.write_text(EMPTY_HOOK)
    fastest = {}
    for number in range(15):
        job = Job(mom, user, number=str(number + 1))
        for mom.hook in empty, ours:
            for event in "EXECJOB_BEGIN", "EXECJOB_POSTSUSPEND", "EXECJOB_PRERESUME", "EXECHOST_PERIODIC", "EXECJOB_EPILOGUE":
                of = {"job_list": [job.attributes()]} if "HOST" in event else {"job": job}
                with kernel.punctual():
                    began = time.monotonic()
                    mom.accepted(event, **of)
                    taken = time.monotonic() - began
                fastest[event, mom.hook] = min(taken, fastest.get((event, mom.hook), taken))
    ratios = {event: taken / fastest[event, empty] for (event, hook), taken in fastest.items() if hook == ours}
    print("     an empty hook's time: " + ", ".join(f"{event} {ratio:.2f}" for event, ratio in ratios.items()))
    slow = {event: ratio for event, ratio in ratios.items() if ratio > 3.5}
    expect(not slow, f"too slow: {slow}")


# Events for which MoM stands still, and which of them only on another host than the first.
STANDS_STILL = {
    "EXECHOST_STARTUP": {}, "EXECJOB_BEGIN": {}, "EXECJOB_ATTACH": {}, "EXECJOB_RESIZE": {}, "EXECJOB_POSTSUSPEND": {},
    "EXECJOB_PRERESUME": {}, "EXECJOB_PRETERM": {}, "EXECJOB_PROLOGUE": {"is_first": False}, "EXECJOB_EPILOGUE": {"is_first": False},
}


@case(is_long=True)
def time_in_the_library(mom, user):
    """MoM stands still for some events: the library's part of each is shorter than a hook that does nothing, at the median.
    A move between cgroups waits for the kernel in each hierarchy: it may take three times as long."""
    mom.is_realtime = True
    taken, parts, whole = {event: [] for event in STANDS_STILL}, {}, []
    empty, ours = mom.top / "empty.py", mom.hook
    empty.write_text(EMPTY_HOOK)
    # Another job is there meanwhile, as on a node in use.
    beside = mom.begun(user, number="1")
    for number in range(15):
        job = Job(mom, user, number=str(number + 2))
        stranger = mom.stray(user)
        mom.hook, began = empty, time.monotonic()
        mom.accepted("EXECJOB_PRETERM", job)
        whole.append((time.monotonic() - began) * 1000)
        mom.hook = ours
        for event, of in STANDS_STILL.items():
            job.more.update(of)
            answer = mom.accepted(event, None if "HOST" in event else job, timed=True, pid=stranger.pid)
            for name, took in answer["library_ns"].items():
                parts.setdefault(event, {}).setdefault(name, []).append(took / 1e6)
            taken[event].append(sum(answer["library_ns"].values()) / 1e6)
            if event == "EXECJOB_BEGIN":
                mom.save(job)
                mom.start(job, "exec sleep 300", prologue=False)
                job.started()
        job.ended()
        stranger.wait()
    beside.over()
    medians = {event: statistics.median(times) for event, times in taken.items()}
    for event, median in medians.items():
        of = {name.removeprefix("jobfence_"): statistics.median(times) for name, times in parts[event].items()}
        calls = ", ".join(f"{name} {part:.2f}" for name, part in of.items() if part >= 0.05)
        print(f"     in the library: {event} {median:.2f} ms: {calls}")
    least = statistics.median(whole)
    slow = {event: median for event, median in medians.items() if median > least * (3 if event == "EXECJOB_ATTACH" else 1)}
    expect(not slow, f"too slow beside {least:.2f} ms of an empty hook: {slow}")
    # Each asks for the usage of the steps, and that is as long as the rest.
    asking = [event for event in ("EXECJOB_RESIZE", "EXECJOB_EPILOGUE") if "jobfence_usage" in parts[event]]
    expect_equal(asking, [], "the events that ask for what is not needed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--so", required=True)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--hook", default=TESTS.parent / "hooks/pbs/jobfence.py")
    parser.add_argument("--user", help="whose the jobs are; without this, one with nothing to do")
    parser.add_argument("--realtime", action="store_true", help="as the two cases that measure: this machine's other work disturbs no hook")
    parser.add_argument("--short", action="store_true", help="without the cases of more than two seconds")
    parser.add_argument("--only", nargs="*", metavar="CASE")
    options = parser.parse_args()
    # Ended like an exception, so that each case tidies up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    taken = [] if options.user else system_users(1, at_home=True)
    user = options.user or taken[0].name
    unknown = set(options.only or ()) - {function.__name__ for function in CASES}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    failed = 0
    chosen = [one for one in CASES if (not options.only or one.__name__ in options.only) and not (options.short and one.is_long)]
    print(f"cases: {len(chosen)}", flush=True)
    for number, function in enumerate(chosen, 1):
        print(f"case {number} of {len(chosen)}: {function.__name__}", flush=True)
        began, verdict, said = time.monotonic(), "ok", ""
        try:
            # What cannot be set up or tidied up fails the case, too.
            with tempfile.TemporaryDirectory(prefix="jobfence-pbs-") as top, Mom(options, top) as mom:
                function(mom, user)
            expect_no_process(user)
        except Exception as error:  # each case is told
            verdict, failed = "FAIL", failed + 1
            is_plain = isinstance(error, AssertionError) and not error.__context__
            # What happened first: the end of a long output has only some lines of each case.
            said = str(error) if is_plain else f"{error!r}\n{traceback.format_exc()}"
        print(f"{verdict:4} {function.__name__}  {time.monotonic() - began:.1f} s", flush=True)
        print("".join(f"     {line}\n" for line in said.splitlines()), end="", flush=True)
    print(f"\n{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
