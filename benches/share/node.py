# SPDX-License-Identifier: GPL-2.0-or-later
"""A node for one run: a directory of jobfence's own with so much memory and so many CPUs, `jobfence hold`, and jobs.

Jobs are made by `jobfence open` and `attach`, as a scheduler does it.
"""

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests"), str(TOP)]  # in a guest, what is in tests/ is at its top

import leases  # noqa: E402
from contract import kernel  # noqa: E402

MIB = 1 << 20
CONFIG = """
RunDir={place}/run
UsageLog={place}/usage.jsonl
{base}
MemoryPool=75%
MemoryPoolReserve={reserve}%
MemoryPoolUnused=50%
[Partition=scavenge]
Scavenger=yes
ElasticRAMPercent=1000
"""
# Debian's, since another one may not be readable for all users.
PYTHON = "/usr/bin/python3"


class Kills:
    """What the kernel says of processes that it killed for want of memory: of which directory, and in which."""

    LINE = re.compile(r"oom-kill:.*oom_memcg=([^,]*),task_memcg=([^,]*),")

    def __init__(self):
        self.file = None
        with contextlib.suppress(OSError):
            self.file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.file, 0, os.SEEK_END)
        self.found = []

    def look(self):
        while self.file is not None:
            try:
                line = os.read(self.file, 8192).decode(errors="replace")
            except BrokenPipeError:  # it has lost the oldest
                continue
            except OSError:
                break
            if found := self.LINE.search(line):
                self.found.append((time.monotonic(), *found.groups()))
        return self.found


class Job:
    """A program in a fence."""

    def __init__(self, name, process):
        self.name, self.process, self.rest = name, process, b""
        os.set_blocking(process.stdout.fileno(), False)

    def said(self):
        """What it has said since. `None`: it has ended, and all is read."""
        found, is_over = [], False
        while True:
            try:
                part = os.read(self.process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not part:
                is_over = True
                break
            *lines, self.rest = (self.rest + part).split(b"\n")
            found += map(json.loads, lines)
        return None if is_over and not found else found

    def waits_for(self, key):
        """The line with this key. It ends with an error if the program does."""
        before = []
        while True:
            said = self.said()
            if said is None:
                raise RuntimeError(f"job {self.name} has ended with {self.process.wait()} instead of saying {key!r}")
            before += said
            if any(key in line for line in said):
                return before
            time.sleep(0.01)

    def hears(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()


class Node:
    def __init__(self, program, mib, cpus, reserve, speed, weight):
        self.program, self.mib, self.cpus, self.speed, self.weight = program, mib, cpus, speed, weight
        self.has_systemd = Path("/run/systemd/system").is_dir()
        self.base = "jobfence.slice/jobfence.scope" if self.has_systemd else f"jobfence-share-{os.getpid()}"
        self.stack = contextlib.ExitStack()
        self.place = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="jobfence-share-", dir="/var/tmp")))
        self.place.chmod(0o755)
        base = "" if self.has_systemd else f"CgroupBase={self.base}"
        (self.place / "jobfence.conf").write_text(CONFIG.format(place=self.place, base=base, reserve=reserve))
        shutil.copy(Path(__file__).parent / "work.py", self.place)
        self.uids = leases.uids()
        self.stack.enter_context(self.uids)
        self.kills, self.jobs, self.directories = Kills(), {}, {}
        self.top = self.system = None

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def begin(self):
        """Starts hold. What is to be tidied up is so in reverse order, also if one part fails."""
        self.log = self.stack.enter_context(open(self.place / "said", "wb"))
        self.stack.callback(self.remove)
        speed = {"JOBFENCE_TEST_IDLE_SPEED": str(self.speed)}
        command = [self.program, "hold", "--config", self.place / "jobfence.conf"]
        self.hold = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=os.environ | speed)
        for step in self.end_hold, self.unbound, self.close_all:
            self.stack.callback(step)
        until = time.monotonic() + 120
        while not (self.place / "run/hold.lock/early_move").exists():
            if self.hold.poll() is not None or time.monotonic() > until:
                sys.exit(f"share: 'jobfence hold' does not begin: {self.said()}")
            time.sleep(0.02)

    def end_hold(self):
        self.hold.terminate()
        try:
            self.hold.wait(30)
        except subprocess.TimeoutExpired:
            self.hold.kill()
            self.hold.wait()

    def close_all(self):
        for name in list(self.jobs):
            with contextlib.suppress(OSError):
                self.close(name)

    def remove(self):
        """The directories. A process that was killed is in its own until it is gone."""
        until = time.monotonic() + 10
        while not self.has_systemd and (found := kernel.Group(f"/{self.base}").directories()):
            for directory in found:
                for below in sorted((Path(top) for top, _, _ in os.walk(directory)), key=lambda path: -len(path.parts)):
                    with contextlib.suppress(OSError):
                        below.rmdir()
            if time.monotonic() > until:
                print(f"share: these stay: {' '.join(map(str, found))}", file=sys.stderr)
                return
            time.sleep(0.05)

    def said(self):
        return (self.place / "said").read_text(errors="replace")

    def errors(self, name):
        """What a job has said on stderr, and how the kernel has killed there."""
        said = (self.place / f"errors.{name}").read_text(errors="replace")[-1000:]
        return f"killed by the kernel: {self.names_killed(0).get(name, 'not')}; {said}"

    def jobfence(self, command, *words, check=True):
        done = subprocess.run([self.program, command, "--config", self.place / "jobfence.conf", *words], check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if check and done.returncode:
            sys.exit(f"share: jobfence {command} {' '.join(words)}: {done.stderr}")

    def calibrated(self, rounds):
        """What a unit of each kind costs alone, in seconds of CPU time and in MiB."""
        said = subprocess.run([PYTHON, "-B", self.place / "work.py", "calibrate", self.place, str(rounds)], check=True,
                              stdout=subprocess.PIPE, preexec_fn=self.bind).stdout.splitlines()
        found = [json.loads(line) for line in said]
        return {one["kind"]: one for one in found if not one["status"]}

    def bind(self):
        os.sched_setaffinity(0, self.cpus)

    def starts(self, name, is_scavenger, mib, *words):
        """A job of that name, which waits for a line."""
        uid = self.uids.first + is_scavenger
        of_partition = ["--partition", "scavenge" if is_scavenger else "owners"]
        self.jobfence("open", "--job", name, "--user", str(uid), "--mem", f"{mib}M", "--cpus", "1", *of_partition)
        errors = self.stack.enter_context(open(self.place / f"errors.{name}", "wb"))
        process = subprocess.Popen([PYTHON, "-B", "-S", self.place / "work.py", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=errors, cwd="/", user=uid, group=uid, extra_groups=[], start_new_session=True, preexec_fn=self.bind)
        job = self.jobs[name] = Job(name, process)
        job.waits_for("ready")
        self.jobfence("attach", "--job", name, str(process.pid))
        return job

    def close(self, name):
        """Ends the job and removes its fence. Returns the CPU time of its program and of those units that had ended."""
        job = self.jobs.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        _, status, used = os.wait4(job.process.pid, 0) if job.process.returncode is None else (0, 0, None)
        job.process.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(BrokenPipeError):
            job.process.stdin.close()
        job.process.stdout.close()
        self.directories.pop(name, None)
        self.jobfence("close", "--job", name, check=False)
        return used.ru_utime + used.ru_stime if used else 0.0

    def bounds(self):
        """Gives the directory above all jobs the memory of the node. It is there when the first job is."""
        group = kernel.Group(f"/{self.base}")
        is_v2 = kernel.has_v2_controllers()
        memory, cpu = group.limits_directory("memory"), group.limits_directory("cpu")
        (memory / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(self.mib * MIB))
        weight, one = ("cpu.weight", 100) if is_v2 else ("cpu.shares", 1024)
        (cpu / weight).write_text(str(one * self.weight))
        self.top = memory
        if not is_v2:
            # Where systemd is, hold has a place in that directory. What else the node's system does is beside the jobs.
            self.system = cpu.with_name(f"{cpu.name}-system")
            self.system.mkdir()
            (self.system / weight).write_text(str(one * self.weight))
            for pid in self.hold.pid, os.getpid():
                (self.system / "cgroup.procs").write_text(str(pid))

    def unbound(self):
        """As it was before. systemd's scope lives on."""
        if self.system and self.system.is_dir():
            for pid in self.hold.pid, os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    (self.system.parent / "cgroup.procs").write_text(str(pid))
            self.system.rmdir()
        if self.has_systemd and self.top:
            (self.top / "memory.max").write_text("max")
            (kernel.Group(f"/{self.base}").limits_directory("cpu") / "cpu.weight").write_text("100")

    def used_by_hold(self):
        """Its CPU time, in seconds."""
        fields = Path(f"/proc/{self.hold.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def used(self, name):
        """MiB of a job, without page cache."""
        if name not in self.directories:
            found = [*self.top.glob(f"uid_*/job_{name}"), *self.top.glob(f"idle/uid_*/job_{name}")]
            if not found:
                return 0
            self.directories[name] = found[0]
        return used(self.directories[name])

    def names_killed(self, since):
        """How the kernel has killed: by the names of jobs, whether the job was at its own limit or the node at its."""
        found = collections.defaultdict(list)
        for when, whose, which in self.kills.look():
            if when >= since and f"/{self.base}" in which and (job := re.search(r"/job_([^/]+)", which)):
                found[job[1]].append("own" if "/job_" in whose else "node")
        return found

    def ended_by_hold(self):
        return set(re.findall(r"job (\S+) of \S+ is ended", self.said()))


def used(directory):
    counter = kernel.read(directory / "memory.current") or kernel.read(directory / "memory.usage_in_bytes")
    if not counter:
        return 0
    stat = dict(line.split()[:2] for line in kernel.read(directory / "memory.stat").splitlines())
    # v1 has a sum of all below beside each.
    caches = sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in ("inactive_file", "active_file"))
    return max(int(counter) - caches, 0) / MIB
