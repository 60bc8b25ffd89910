# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a program in a Debian tree, in namespaces of its own, with this machine's kernel and cgroups.

To the program it looks like an installed host without systemd: it is root, /dev/log is listened to, and what it writes
is in memory. It has /scratch, which is on a disk. However it ends, nothing of it stays. Its processes end with the first
one of their PID namespace, which ends with the keeper; and the keeper, which ends with us, removes what is no process.
If somebody kills the keeper, we remove it.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contract import kernel
from contract.sites import die_with_parent, undisturbed

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_NOSUID, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x2, 0x1000, 0x4000, 0x40000, 2
NODE, ADDRESS = "node1", "192.0.2.1"
HOSTS = f"127.0.0.1 localhost\n{ADDRESS} {NODE}\n"
LOG = "/var/log/syslog"


def libc(name, *arguments):
    given = [one.encode() if isinstance(one, str) else one for one in arguments]
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*given) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0, options=None):
    libc("mount", str(source), str(target), kind, flags, options)


def exit_status(status):
    """Of what waitpid says. Who was killed has failed."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 1


def call(*argv):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


# ----------------------------------------------------------------------------------------
# Outside


def run(tree, binds, argv, base, environment):
    """The exit status of `argv`, whose output is ours. `binds` has pairs: what is seen in the tree under which name.

    `base` is the name of the cgroups below which its jobs are.
    """
    with undisturbed():
        top = Path(tempfile.mkdtemp(prefix="jobfence-place-"))
        ends, alive = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        keeper = os.fork()
        if keeper == 0:
            status = 1
            try:
                os.close(alive)
                status = keep(ends, top, base, lambda: inside(tree, top, binds, argv, environment))
            finally:
                os._exit(status)
        os.close(ends)
    try:
        _, status = os.waitpid(keeper, 0)
        keeper = None
        return exit_status(status)
    finally:
        # The end of this pipe is what the keeper waits for. It has its own session: a second ctrl-C does not stop it.
        before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        os.close(alive)
        if keeper:
            os.waitpid(keeper, 0)
        if top.exists():
            remove(top, base)
        for number, handler in before.items():
            signal.signal(number, handler)


def keep(ends, top, base, first):
    """Starts the first process of a PID namespace, and waits for its end or ours."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    keeper, pid = os.pidfd_open(os.getpid()), None
    try:
        libc("unshare", CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                if not select.select([keeper], [], [], 0)[0]:
                    status = first()
            except BaseException as error:
                print(f"place: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        select.select([ends, os.pidfd_open(pid)], [], [])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        # The kernel says so when all processes of the namespace have gone.
        _, status = os.waitpid(pid, 0)
        return exit_status(status)
    finally:
        remove(top, base)


def remove(top, base):
    """What is no process: directories of cgroups, from the leaf up, and files on the disk."""
    deadline = time.monotonic() + 60
    while directories := kernel.Group("/" + base).directories():
        for place in (place for one in directories for place in [*sorted(kernel.directories_below(one), reverse=True), one]):
            with contextlib.suppress(OSError):
                place.rmdir()
        if time.monotonic() > deadline:
            print(f"cgroups below {base} could not be removed", file=sys.stderr)
            break
        time.sleep(0.02)
    shutil.rmtree(top, ignore_errors=True)


# ----------------------------------------------------------------------------------------
# Inside: the first process of the PID namespace


def inside(tree, top, binds, argv, environment):
    libc("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
    enter(tree, top, binds)
    libc("sethostname", NODE, len(NODE))
    Path("/etc/hostname").write_text(NODE + "\n")
    Path("/etc/hosts").write_text(HOSTS)
    os.environ.clear()
    os.environ.update(environment)
    call("ip", "link", "set", "lo", "up")
    call("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    return serve(argv)


def enter(tree, top, binds):
    # Nothing that is mounted here is seen outside.
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    memory, scratch = top / "memory", top / "scratch"
    for path in memory, scratch:
        path.mkdir()
    scratch.chmod(0o1777)
    mount("tmpfs", memory, "tmpfs", options="mode=755")
    root = memory / "root"
    for name in ("root", "upper", "work"):
        (memory / name).mkdir(mode=0o755)
    try:
        mount("overlay", root, "overlay", options=f"lowerdir={tree},upperdir={memory}/upper,workdir={memory}/work")
    except OSError:
        # This kernel has no overlay.
        call("cp", "-a", f"{tree}/.", str(root))
    mount("proc", root / "proc", "proc")
    mount("/sys", root / "sys", flags=MS_BIND | MS_REC)
    make_dev(root / "dev")
    for source, name in [(scratch, "scratch"), *binds]:
        target = root / name
        if Path(source).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        mount(source, target, flags=MS_BIND | MS_REC)
    os.chdir(root)
    libc("pivot_root", ".", ".")
    libc("umount2", ".", MNT_DETACH)
    os.chdir("/")


def make_dev(place):
    """The devices of this machine, in a directory of our own: a socket and terminals are made there, too."""
    mount("tmpfs", place, "tmpfs", MS_NOSUID, "mode=755")
    for above, names, files in os.walk("/dev"):
        names[:] = [name for name in names if not os.path.ismount(f"{above}/{name}")]
        below = place / os.path.relpath(above, "/dev")
        below.mkdir(exist_ok=True)
        for name in files:
            found = os.lstat(f"{above}/{name}")
            if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                os.mknod(below / name, found.st_mode, found.st_rdev)
                os.chmod(below / name, stat.S_IMODE(found.st_mode))
    for name, target in ("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"), ("ptmx", "pts/ptmx"):
        with contextlib.suppress(FileNotFoundError):
            (place / name).unlink()
        (place / name).symlink_to(target)
    for name, kind, options in ("shm", "tmpfs", "mode=1777"), ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620,gid=5"):
        (place / name).mkdir(exist_ok=True)
        mount(kind, place / name, kind, MS_NOSUID, options)


def serve(argv):
    """Runs `argv`, is the parent of whom others have left, and keeps what is said to syslog. The status of `argv`."""
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.bind("/dev/log")
    os.chmod("/dev/log", 0o666)
    woken, wake = os.pipe()
    for end in woken, wake:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program = os.fork()
    if program == 0:
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.execvp(argv[0], argv)
        finally:
            os._exit(127)
    with open(LOG, "ab", buffering=0) as said:
        while True:
            ready, _, _ = select.select([log, woken], [], [])
            if log in ready:
                said.write(log.recv(1 << 16) + b"\n")
            if woken in ready:
                os.read(woken, 4096)
                with contextlib.suppress(ChildProcessError):
                    while (found := os.waitpid(-1, os.WNOHANG))[0]:
                        if found[0] == program:
                            return exit_status(found[1])
