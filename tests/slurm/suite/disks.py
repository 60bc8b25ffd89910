# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs read and write, on a disk that nobody else uses: the guests' /scratch, or a loop device of the case."""

import contextlib
import os
import re
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from contract import kernel
from contract.harness import MIB, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, logged, running
from contract.sites import until
from ..harness import NOT_STARTED, expect_not_started

SCRATCH = Path("/scratch")
RATE = 4 * MIB  # bytes in a second
SECONDS = 5
SECONDS_OF_CACHE = 8


class Disk:
    """`target` is what the configuration names, `number` is as in io.max, and `file` gives a user something to write on."""

    def __init__(self, target, number, is_mounted):
        self.target, self.number, self.is_mounted = target, number, is_mounted

    def file(self, jobs_own):
        return f"{self.target}/{jobs_own}" if self.is_mounted else self.target


@contextlib.contextmanager
def a_disk():
    if not kernel.hierarchies().get("blkio") and not (
            kernel.has_v2_controllers() and "io" in kernel.controllers_of_v2()):
        raise Skip("no controller of I/O")
    if os.path.ismount(SCRATCH):
        device = os.stat(SCRATCH).st_dev
        yield Disk(str(SCRATCH), f"{os.major(device)}:{os.minor(device)}", True)
        for file in SCRATCH.glob("jobfence.*"):
            file.unlink()
        return
    with tempfile.NamedTemporaryFile(suffix=".disk") as file:
        file.truncate(64 * MIB)
        made = subprocess.run(["losetup", "--find", "--show", file.name], capture_output=True, text=True)
        if made.returncode != 0:
            raise Skip(f"neither /scratch nor a loop device: {made.stderr.strip()}")
        device = made.stdout.strip()
        mode = stat.S_IMODE(os.stat(device).st_mode)
        # It goes when nobody has it open any more, also when this process is killed.
        held = os.open(device, os.O_RDONLY)
        subprocess.run(["losetup", "--detach", device], check=True)
        file.close()
        try:
            os.chmod(device, 0o666)
            number = os.stat(device).st_rdev
            yield Disk(device, f"{os.major(number)}:{os.minor(number)}", False)
        finally:
            os.chmod(device, mode)
            os.close(held)


def dd(arguments, seconds):
    """So many seconds' bytes; conv=notrunc leaves the blocks where they are."""
    return f"dd bs=512K count={RATE * seconds // (MIB // 2)} {arguments}"


def seconds_of(said):
    return [float(text) for text in re.findall(r"copied, ([\d.e+-]+) s", said)]


def expect_rate(measure, what, seconds=SECONDS):
    """Never faster than the limit, and once in three times as fast as that: an emulated machine can be late."""
    slowest = []
    for _ in range(3):
        taken = measure()
        expect(taken and min(taken) >= seconds * 0.85, f"{what}: {seconds} s of bytes took {taken} s")
        slowest.append(max(taken))
        if slowest[-1] <= seconds * 1.15:
            return f"{what} {slowest[-1]:.2f} s of {seconds}"
    raise AssertionError(f"{what}: {seconds} s of bytes took {slowest} s")


def copied(site, users, script, watch=lambda groups: None):
    """What the same job takes for each of these users, all at once; `watch` sees their groups while they run."""
    for user in users:
        (site.directory(user) / "go").unlink(missing_ok=True)
    jobids = {user: site.submit(user, f"while [ ! -e go ]; do sleep 0.05; done; {script(user)}", "-c1", "--mem=100")
              for user in users}
    groups = [fenced(site, jobid) for jobid in jobids.values()]
    for user in users:
        (site.directory(user) / "go").touch()
    watch(groups)
    taken = []
    for user, jobid in jobids.items():
        expect_equal(site.wait(jobid, 120), "COMPLETED", f"state of {user}'s job ({site.output(jobid)})")
        taken += seconds_of(site.output(jobid))
    return taken


class WrittenOut:
    """How fast the kernel writes out the page cache of each of some groups, from its first write to its last.

    A slow machine begins with it seconds after the job has (Linux 6.12: when a share of the job's memory is dirty, and
    its flusher has its turn), which is no matter of the limit.
    """

    def __init__(self, disk):
        self.disk, self.seen = disk, []

    def watch(self, groups):
        """Until they have ended, note when each count was first seen."""
        self.seen = [[] for _ in groups]

        def ended():
            for group, seen in zip(groups, self.seen):
                written = group.written(self.disk.number)
                if written > (seen[-1][1] if seen else 0):
                    seen.append((time.monotonic(), written))
            return not any(group.exists() for group in groups)
        until(ended, 120, "the jobs' end")

    def taken(self, size):
        """By group, the seconds that so many bytes take at its rate."""
        seconds = []
        for seen in self.seen:
            (began, first), (ended, last) = seen[:1] + seen[-1:] or ((0, 0), (0, 0))
            expect(last - first >= size / 2, f"half of {size} bytes was seen to be written: {seen}")
            seconds.append((ended - began) * size / (last - first))
        return seconds


# By the clock, as a rate is. That the right limits are written is what io_limits notices.
@case(release=True)
def io_rate_measured(site):
    """Reading and writing, past the page cache and on cgroup2 through it; and two jobs at once, each as fast as it may."""
    users = site.users if os.cpu_count() > 1 else site.users[:1]
    with a_disk() as disk:
        site.configure(IOMax=f"{disk.target} rbps={RATE // MIB}M wbps={RATE // MIB}M")
        for user in users:
            size = RATE * SECONDS
            if disk.is_mounted:
                with open(disk.file(f"jobfence.{user}"), "wb") as file:
                    file.write(bytes(size))
                    os.fsync(file.fileno())
                os.chmod(file.name, 0o666)

        def script(arguments, seconds):
            return lambda user: dd(arguments.replace("FILE", disk.file(f"jobfence.{user}")), seconds)

        writing = script("if=/dev/zero of=FILE oflag=direct conv=notrunc", SECONDS)
        reading = script("if=FILE of=/dev/null iflag=direct", SECONDS)
        measured = [expect_rate(lambda: copied(site, users, writing), "writing"),
                    expect_rate(lambda: copied(site, users, reading), "reading")]
        # cgroup2 knows for whom the page cache is written, with the help of the file system: for who has first written the
        # file, so it must be the job's own.
        if not kernel.has_v2_controllers() or not disk.is_mounted:
            return ", ".join([*measured, "not through the page cache"])
        cached = script("if=/dev/zero of=FILE.new conv=fsync; rm FILE.new", SECONDS_OF_CACHE)

        def written_out():
            kernels = WrittenOut(disk)
            taken = copied(site, users, cached, kernels.watch)
            expect(min(taken) >= SECONDS_OF_CACHE * 0.85, f"{SECONDS_OF_CACHE} s of bytes took the job {taken} s")
            return kernels.taken(RATE * SECONDS_OF_CACHE)
        measured.append(expect_rate(written_out, "writing through the page cache", SECONDS_OF_CACHE))
        return ", ".join(measured)


@case
def io_limits(site):
    """What the kernel's files have, for a job, its step, and a task."""
    mark = site.log_mark()
    with a_disk() as disk:
        mib = RATE // MIB
        tasks = "" if site.tasks_share_a_directory() else f"IOMaxPerTask={disk.target} wiops=50 rbps=1G\n"
        site.configure_raw(f"IOMax={disk.target} rbps={mib}M wbps={mib}M\n{tasks}")
        jobid, step = running(site, site.users[0], "sleep 300", "-c1", "--mem=100")
        ours = {"rbps": RATE, "wbps": RATE}
        is_v1 = not kernel.has_v2_controllers()
        expect_equal(step.io_max(), {disk.number: ours}, f"rates of {step.path}")
        # v1 looks at the directory in which a process is, and at no other.
        expect_equal(step.parent.io_max(), {} if is_v1 else {disk.number: ours}, f"rates of {step.parent.path}")
        # And no more than what is around it.
        of_task = {**ours, "wiops": 50}
        task = step.task(0)
        if tasks:
            expect_equal(task.io_max(), {disk.number: of_task}, f"rates of {task.path}")
        site.end(jobid)

        site.configure(IOMaxPerUser=f"{disk.target} wbps={mib}M")
        user = site.users[0]
        jobid = site.submit(user, "touch ran.$SLURM_JOB_ID; sleep 300", "-c1", "--mem=100")
        if is_v1 or step.slurms.get(""):
            expect_not_started(site, user, jobid)
            expect_in("together" if is_v1 else "Slurm has no directory for all jobs of a user",
                      site.output(jobid), "the job's output")
        else:
            group = fenced(site, jobid)
            expect_equal(group.parent.user.io_max(), {disk.number: {"wbps": RATE}}, "rates of the user")
            expect_equal(group.io_max(), {}, "rates of the step")
        site.scancel(jobid)
    expect("panicked" not in site.log_since(mark), "a panic")


@case
def io_of_no_disk(site):
    """A file system in memory is named with the reason, and OnError decides."""
    user = site.users[0]
    sentence = r"/dev/shm is on /dev/shm \(tmpfs of \w+\), which is kept in memory"
    site.configure(IOMax="/dev/shm rbps=1M")
    jobid = site.submit(user, "touch ran.$SLURM_JOB_ID", "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    expect_match(NOT_STARTED + ".*" + sentence, site.output(jobid), "the job's output")
    mark = site.log_mark()
    site.configure(IOMax="/dev/shm rbps=1M", OnError="fail,io:warn")
    jobid = site.submit(user, "echo ran", "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state with OnError=fail,io:warn")
    expect_equal(site.output(jobid), "ran\n", "the job's output")
    logged(site, mark, sentence)


@case
def io_weight(site):
    """A job's share of a busy disk, where the kernel has any."""
    user = site.users[0]
    site.configure(IOWeight="50")
    jobid = site.submit(user, "touch ran.$SLURM_JOB_ID; sleep 300", "-c1", "--mem=100")
    ran = site.directory(user) / f"ran.{jobid}"
    until(lambda: ran.exists() or site.job(jobid).get("JobState") == "FAILED", 30, "the job's begin or end")
    if ran.exists():
        job = fenced(site, jobid).parent
        expect_equal(job.io_weight(), 50, f"weight of {job.path}")
        site.scancel(jobid)
        return "the kernel has weights"
    expect_not_started(site, user, jobid)
    expect_in("this kernel has no weights of I/O", site.output(jobid), "the job's output")
    return "the kernel has none"
