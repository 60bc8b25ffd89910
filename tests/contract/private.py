# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job has for itself, under each scheduler: PrivateTmp, PrivateIPC, HideProcesses, and not PrivatePIDs."""

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from .harness import (
    HAS_RUN, IN_VAR, PYTHON, WAIT, Skip, case, expect, expect_equal, expect_in, expect_match, has_run, let_go, running,
)
from .sites import die_with_parent, until

# With these flags of shmget(2): a segment of this key, or -1.
SEGMENT_KEY = 0x4A464E43
SEGMENT = f"{PYTHON} -S -c 'import ctypes; print(ctypes.CDLL(None).shmget({SEGMENT_KEY}, 4096, %s))'"
# A segment of memory, a message queue and a set of semaphores.
IPC = f"{PYTHON} -S -c 'import ctypes; c, k, f = ctypes.CDLL(None), {SEGMENT_KEY}, %s; print(c.shmget(k, 4096, f), c.msgget(k, f), c.semget(k, 1, f))'"


@contextlib.contextmanager
def own_directories(site, paths="/tmp,/dev/shm", disk=True, on=contextlib.nullcontext, **keys):
    """Jobs have directories of their own, and then nothing of them is left. The files of a site in /tmp stay visible.

    `on` mounts what the directories are on.
    """
    before = mounts_of("self")

    def left():
        """What is there of them: in RunDir, on disk, and mounted in this namespace."""
        mounts = [line for line in mounts_of("self") if line not in before and (str(base) in line or str(site.run_directory()) in line)]
        return [*mounts, *(site.run_directory() / "private").glob("*"), *Path(base).glob("*/*")]
    with tempfile.TemporaryDirectory(**IN_VAR) as base, on(base):
        os.chmod(base, 0o755)
        before += [line for line in mounts_of("self") if str(base) in line]
        place = {"PrivateTmpBase": base} if disk else {}
        share = {"PrivateTmpShare": Path(*site.home.parts[:3])} if site.home.is_relative_to("/tmp") else {}
        site.configure(PrivateTmp=paths, **place, **share, **keys)
        yield Path(base)
        site.configure()
        until(lambda: not left(), 20, lambda: f"the removal of jobs' own directories, such as {left()}")


def mounts_of(process):
    return Path(f"/proc/{process}/mountinfo").read_text().splitlines()


def is_another_sites(site, line):
    """A private scheduler of another group of cases has mounts in its own directory."""
    place = Path(line.split()[4])
    is_private = str(place).startswith("/tmp/jobfence-site-") and place.parts[3:5] == ("run", "private")
    return is_private and not place.is_relative_to(site.run_directory())


@case
def private_directories(site):
    """No job sees files of the host's, of its user's other job or of another user's, and the host sees none of its mounts. Its TMPDIR works."""
    mark = Path(f"/tmp/jobfence-mark-{os.getpid()}")
    script = f"""ls /tmp /dev/shm; echo of $JOB_ID | tee /tmp/whose >/dev/shm/whose; echo a >${{TMPDIR-/tmp}}/a && cat ${{TMPDIR-/tmp}}/a
        stat -c '%U %a' /tmp /dev/shm; ls -l /proc/self/fd; grep ' /dev/shm ' /proc/self/mountinfo; echo so far
        {WAIT}; cat /tmp/whose /dev/shm/whose"""
    mark.touch()
    try:
        with own_directories(site):
            before, beside = mounts_of("self"), []
            for user in (site.users[0], *site.users[:2]):
                jobid = site.submit(user, script, cpus=1, mib=100)
                said = until(lambda: "so far\n" in site.output(jobid) and site.output(jobid), 60, f"the output of job {jobid}")  # noqa: B023
                expect(mark.name not in said and "whose" not in said, f"job {jobid} sees what is not its own: {said}")
                expect_in("a\nroot 1777\nroot 1777\n", said, "a file in its TMPDIR, and whose its directories are")
                expect_match(r"(?m)^(?!.*shared:).* /dev/shm ", said, "its mounts")
                added = [line for line in mounts_of("self") if line not in before and not is_another_sites(site, line)]
                expect(all(str(site.run_directory()) in line for line in added), f"mounts on the host: {added}")
                beside.append((jobid, user))
                # Two at a time: there may be no more CPUs.
                if len(beside) == min(2, os.cpu_count()):
                    jobid, user = beside.pop(0)
                    let_go(site, jobid, user)
                    site.wait(jobid)
                    expect(site.output(jobid).endswith(f"of {jobid}\nof {jobid}\n"), f"another job has written over {site.output(jobid)}")
            site.end(*(jobid for jobid, _ in beside))
    finally:
        mark.unlink()


@case
def private_directories_fail(site):
    """A job that cannot be isolated is refused with a sentence, unless OnError says otherwise, where that can be."""
    user, paths = site.users[0], "/tmp,/no/such/directory"

    def expect_refused(**keys):
        mark = site.log_mark()
        with own_directories(site, paths, **keys):
            jobid = site.submit(user, HAS_RUN, cpus=1, mib=100)
            expect_match(r"not started[\s\S]*/no/such/directory", site.refused(jobid), "what its user is told")
            until(lambda: "/no/such/directory" in site.said_since(mark), 60, "the reason in the log")
            expect(not has_run(site, jobid), "it has run")
            site.delete(jobid)
    expect_refused()
    if site.REFUSES_DESPITE_WARN:
        expect_refused(OnError="warn")
        return
    with own_directories(site, paths, OnError="warn"):
        jobid, group = running(site, user, "sleep 1000", cpus=1, mib=100)
        expect(not any("uid_" in line.split()[3] for line in mounts_of(next(iter(group.members())))), "half of the directories are its own")
        site.end(jobid)


@case
def ipc_of_its_own(site):
    """With PrivateIPC, a job's memory, queues and semaphores of System V are seen neither by its user's other job nor on the host, and go with it."""
    site.configure("PrivateIPC=yes\n")
    def on_host():
        rows = (line.split() for kind in ("shm", "msg", "sem") for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:])
        return [row for row in rows if int(row[0]) == SEGMENT_KEY]
    expect_equal(on_host(), [], "what another test has on the host")
    look, make = IPC % "0o600", IPC % "0o1600"
    jobs = []
    for _ in range(min(2, os.cpu_count())):
        jobs.append(site.submit(site.users[0], f"{look}; {make}; {look}; echo made; sleep 1000", cpus=1, mib=100))
        said = until(lambda: "made" in site.output(jobs[-1]) and site.output(jobs[-1]), 120, f"the segment of job {jobs[-1]}")
        before, made, after, _ = said.splitlines()[-4:]
        expect_equal((before, after), ("-1 -1 -1", made), f"what job {jobs[-1]} sees before and after it makes one of each")
        expect(min(map(int, made.split())) >= 0, f"what it made: {said}")
    expect_equal(on_host(), [], "what the host sees of them")
    site.end(*jobs)
    expect_equal(on_host(), [], "what is left of them")


@case
def processes_of_others(site):
    """With HideProcesses, a job sees its own user's processes and no one else's, and what the host has mounted below /proc. The host is as it was."""
    user, other = site.users[:2]
    secret = subprocess.Popen(["sh", "-c", "read x", "a-secret-argument"], stdin=subprocess.PIPE, user=other, preexec_fn=die_with_parent)
    def on_host():
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return sorted(line for line in mounts if line.split()[4].startswith("/proc"))
    def devices(points):
        return [f"{point} {os.stat(point).st_dev}" for point in points]
    before = on_host()
    points = sorted({line.split()[4] for line in before} - {"/proc"})
    script = f"""tr '\\0' ' ' </proc/{secret.pid}/cmdline; echo; ls /proc | grep -cx {secret.pid}; ls -d /proc/$$ /proc/self/fd
        {PYTHON} -c 'import os, sys; print(*(f"{{x}} {{os.stat(x).st_dev}}" for x in sys.argv[1:]), "end", sep="\\n")' {' '.join(points)}"""
    try:
        for hides in ("yes", "no"):
            site.configure(f"HideProcesses={hides}\n")
            jobid = site.submit(user, script, cpus=1, mib=100)
            site.wait(jobid)
            said = site.output(jobid)
            expect_equal("a-secret-argument" in said, hides == "no", f"whether it sees the argument of another's process ({said})")
            expect_match(r"(?m)^0$" if hides == "yes" else r"(?m)^1$", said, "whether it sees the process")
            expect_match(r"/proc/\d+\n/proc/self/fd\n", said, "its own")
            expect_in("\n".join([*devices(points), "end"]), said, "what is mounted below /proc")
            expect_equal(on_host(), before, "the host's mounts of proc")
            until(lambda: not (site.run_directory() / "private").exists(), 60, "the end of what is kept about the job")
    finally:
        secret.stdin.close()
        secret.wait()


@case
def processes_of_its_own_are_refused(site):
    """With PrivatePIDs, no scheduler's job starts: not with OnError=warn either. Who can read it is told why."""
    def reason(jobid, mark):
        if site.SCHEDULER in ("slurm", "gridengine"):
            return site.refused(jobid)
        if site.SCHEDULER == "openpbs":
            return until(lambda: re.search(r"not[^\n]*\(PrivatePIDs\)", site.log_since(mark)), 60, "the reason in MoM's log")[0]
        return site.refusal(jobid, mark)
    for keys in ({}, {"OnError": "warn"}):
        site.configure(PrivatePIDs="yes", **keys)
        mark = site.log_mark()
        jobid = site.submit(site.users[0], HAS_RUN, cpus=1, mib=100)
        expect_in("(PrivatePIDs)", reason(jobid, mark), f"what is said of it with {keys}")
        expect(not has_run(site, jobid), f"it has run with {keys}")
        site.delete(jobid)


# Before 2.34, glibc has mq_open in a library of its own.
QUEUES = 'ctypes.CDLL(None if hasattr(ctypes.CDLL(None), "mq_open") else "librt.so.1")'
# What a job does to its user's other job, whose process and directories are named: a word for each, and whether it can.
NEIGHBOUR = f"""{PYTHON} -S -c '
import ctypes, os, sys
libc, pid, name = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), sys.argv[2]
queues = {QUEUES}
def can(does):
    try:
        return does() is not False
    except OSError:
        return False
def reads_memory():
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    own = ctypes.create_string_buffer(4)
    with open(f"/proc/{{pid}}/maps") as maps:
        at = int(maps.read().split("-")[0], 16)
    here, there = Part(ctypes.addressof(own), 4), Part(at, 4)
    return libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 4
def traces():
    if libc.ptrace(16, pid, None, None) != 0:
        return False
    os.waitpid(pid, 0x40000000)
    return libc.ptrace(17, pid, None, None) == 0
tries = dict(
    file_in_tmp=lambda: os.stat(f"/tmp/{{name}}"), file_in_shm=lambda: os.stat(f"/dev/shm/{{name}}"),
    memory=lambda: libc.shmget({SEGMENT_KEY}, 4096, 0o600) >= 0, queue=lambda: libc.msgget({SEGMENT_KEY}, 0o600) >= 0,
    semaphores=lambda: libc.semget({SEGMENT_KEY}, 1, 0o600) >= 0,
    posix_queue=lambda: queues.mq_open(f"/{{name}}".encode(), os.O_RDWR) >= 0, posix_queue_as_file=lambda: os.stat(f"/dev/mqueue/{{name}}"),
    posix_queue_by_root=lambda: os.stat(f"/proc/{{pid}}/root/dev/mqueue/{{name}}"),
    arguments=lambda: name in open(f"/proc/{{pid}}/cmdline").read(), root=lambda: os.stat(f"/proc/{{pid}}/root/tmp/{{name}}"),
    signal=lambda: os.kill(pid, 0), trace=traces, traced_memory=reads_memory)
print(*(f"{{word}}={{can(does)}}" for word, does in tries.items()), "tried", flush=True)
' """
MAKES = f"""touch /tmp/$1 /dev/shm/$1; {IPC % '0o1600'}
{PYTHON} -S -c 'import ctypes, os, sys; print(({QUEUES}).mq_open(("/" + sys.argv[1]).encode(), os.O_CREAT | os.O_RDWR, 0o600, None))' $1"""
# The first half is what is promised, the rest is what docs/private.md says is open.
CLOSED = ("file_in_tmp", "file_in_shm", "memory", "queue", "semaphores", "posix_queue", "posix_queue_as_file")
OPEN = ("arguments", "root", "posix_queue_by_root", "signal", "trace", "traced_memory")


@case
def two_jobs_of_one_account(site):
    """What docs/private.md says that a job can do to its user's other job, and cannot, with PrivateTmp, PrivateIPC and HideProcesses."""
    if os.cpu_count() < 2:
        raise Skip("two jobs need two CPUs")
    user, name = site.users[0], f"jobfence-{os.getpid()}"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    # Whoever may trace a process that is no child: on such a host the kernel closes it for all.
    traces = not scope.exists() or scope.read_text().strip() == "0"
    with own_directories(site, PrivateIPC="yes", HideProcesses="yes"):
        other = site.submit(user, f"set -- {name}; {MAKES}; echo pid $$; export JOB_ID; exec sh -c '{WAIT}' {name}", cpus=1, mib=100)
        made = until(lambda: "pid " in site.output(other) and site.output(other), 120, "what the first job has")
        numbers, pid = re.findall(r"(?m)^-?\d+.*$", made), re.search(r"pid (\d+)", made)[1]
        expect(all(int(number) >= 0 for line in numbers for number in line.split()) and len(numbers) == 2, f"what it has made: {made}")
        until(lambda: name in Path(f"/proc/{pid}/cmdline").read_text(), 60, "its process")
        jobid = site.submit(user, f"{NEIGHBOUR} {pid} {name}", cpus=1, mib=100)
        said = until(lambda: "tried" in site.output(jobid) and site.output(jobid), 120, "what its neighbour can")
        found = {word: answer == "True" for word, answer in re.findall(r"(\w+)=(True|False)", said)}
        wanted = {**dict.fromkeys(CLOSED, False), **dict.fromkeys(OPEN, True), "trace": traces, "traced_memory": traces,
                  "posix_queue_by_root": os.path.ismount("/dev/mqueue")}
        expect_equal(found, wanted, f"what a job can do to its neighbour ({said})")
        site.wait(jobid)
        let_go(site, other, user)
        site.wait(other)
