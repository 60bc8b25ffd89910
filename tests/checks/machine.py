# SPDX-License-Identifier: GPL-2.0-or-later
"""What a test may leave on the machine, seen before and after: a test leaves the machine as it was, however it ends."""

import ctypes
import fcntl
import os
import re
import signal
import time
from pathlib import Path

import leases
from leases import CHECKS, MARK, lease

PR_SET_CHILD_SUBREAPER = 36
# What has been ended may take a moment to be gone.
GRACE = 20
TEMPORARY = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/srv")
# By these names what comes meanwhile is a test's, and not that of somebody who works on the machine. Rust's temporary directories are
# called .tmp and six letters.
OURS = re.compile(r"jobfence|/\.tmp\w{6}\b|/slurm_")


def adopt_orphans():
    """From now on, what a test leaves running is a child of this process, and so is known as ours."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for path in found for pid in read(path).split()}


def read(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def is_dead(pid):
    return re.search(r"^State:\s+[ZX]", read(f"/proc/{pid}/status"), re.M) or not Path(f"/proc/{pid}").exists()


def described(pid):
    line = read(f"/proc/{pid}/cmdline").replace("\0", " ").strip() or read(f"/proc/{pid}/comm").strip()
    return f"process {pid} ({line[:80]})"


def orphans(known):
    """The processes that tests have left to us, each with its group; the dead among them are buried."""
    found = {}
    for pid in children() - known:
        if is_dead(pid):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        else:
            match = re.search(rf"(?:^|\0){MARK}=([^\0]*)", read(f"/proc/{pid}/environ"))
            found[pid] = match[1] if match else None
    return found


def end(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def mounts():
    return {f"mount {line.split()[4]}" for line in read("/proc/self/mountinfo").splitlines()}


def loops():
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return {f"loop device {path.parts[3]} of {read(path).strip()}" for path in files}


def cgroups():
    """Directories of the first two levels of each hierarchy: each test has one there."""
    tops = [line.split()[4] for line in read("/proc/self/mountinfo").splitlines() if re.search(r" - cgroup2? ", line)]
    found = set()
    for top in tops:
        for one in below(top):
            found |= {f"cgroup {one}"} | {f"cgroup {two}" for two in below(one)}
    return found


def below(path):
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def files():
    """What is called ours in the places of temporary files."""
    found = (path for place in TEMPORARY for path in Path(place).glob("*jobfence*") if str(path) != leases.PLACE)
    return {f"file {path}" for path in found}


def namespaces():
    return {f"network namespace {path.name}" for path in Path("/run/netns").glob("*")}


def users():
    return {f"user {line.split(':')[0]}" for line in read("/etc/passwd").splitlines()}


def packages():
    return set(re.findall(r"^Package: (\S+)\n(?:Status: install ok installed)$", read("/var/lib/dpkg/status"), re.M))


def things():
    return mounts() | loops() | cgroups() | files() | namespaces() | users()


class Watch:
    """Looks again and again, so that what stays is known with the groups that ran when it came."""

    def __init__(self):
        self.before, self.packages = things(), packages()
        self.came = {}  # what is new: the groups that ran when it was first seen
        self.beside = Beside()
        self.had_company = False

    def look(self, running):
        self.had_company = self.had_company or self.beside.others() > 0
        now = things() - self.before
        self.came = {what: groups for what, groups in self.came.items() if what in now}
        for what in now:
            self.came.setdefault(what, tuple(running))

    def left(self):
        """What stays, each with the groups that ran when it came. What is about to go has time for it."""
        deadline = time.monotonic() + GRACE
        self.look(())
        while any(map(self.is_a_tests, self.came)) and time.monotonic() < deadline:
            time.sleep(0.5)
            self.look(())
        return self.came

    def is_a_tests(self, what):
        """Whether it was certainly these tests that left it."""
        return bool(OURS.search(what)) and not self.had_company

    def installed(self):
        """Packages that came or went meanwhile: no test does that, and what they disturb is told with them."""
        now = packages()
        return sorted(f"+{name}" for name in now - self.packages) + sorted(f"-{name}" for name in self.packages - now)


class Beside:
    """Whether another check, or a test by itself, runs on this machine: what comes then may be that one's."""

    def __init__(self):
        self.lease = lease("check", CHECKS) if os.geteuid() == 0 else None

    def others(self):
        """So many others run now."""
        return sum(is_taken(number) for number in range(CHECKS) if number != self.lease.number) if self.lease else 0


def is_taken(number):
    try:
        with open(Path(leases.PLACE, f"check.{number}"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
