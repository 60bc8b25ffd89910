# SPDX-License-Identifier: GPL-2.0-or-later
"""Which devices a job may use: what is denied gives EPERM, and what is allowed works."""

import atexit
import contextlib
import ctypes
import os
import shutil
import stat
import struct
import tempfile
from pathlib import Path

from contract import kernel
from contract.harness import IN_VAR, Skip, case, ended, expect, expect_equal, expect_in, expect_match, fenced, logged, started
from contract.sites import PATH, until, write_atomically
from ..harness import RAN, expect_not_drained, expect_not_started, fences_well
from .sections import prologs, record_of
from .steps import terminal

# What anybody can open who has the right to, on most machines, without any hardware.
CANDIDATES = "cpu_dma_latency", "loop-control", "fuse", "vcs", "autofs"
MISC = 10  # the major number of most of them
EPERM = "Operation not permitted"


def openable(site, user):
    """Two devices that this user can open outside of a job: nodes of our own, open for all."""
    # Not in /tmp, which may be a file system without devices.
    nodes = Path(tempfile.mkdtemp(**IN_VAR))
    nodes.chmod(0o755)
    atexit.register(shutil.rmtree, nodes, ignore_errors=True)
    found = []
    for name in CANDIDATES:
        try:
            known = os.stat(f"/dev/{name}")
        except OSError:
            continue
        node = nodes / name
        os.mknod(node, stat.S_IFCHR | 0o666, known.st_rdev)
        node.chmod(0o666)
        if site.as_user(user, ["sh", "-c", f": <{node}"]).returncode == 0:
            found.append(node)
        if len(found) == 2:
            return found
    raise Skip("this machine has no two devices that a user can open: " + ", ".join(CANDIDATES))


def tries(*paths):
    """A script that says of each of these whether it can be opened for reading."""
    return "\n".join(f"if (: <{path}) 2>err.$$; then echo {path} works; else cat err.$$; fi" for path in paths)


ALWAYS = "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"


@case
def devices_denied_and_allowed(site):
    user = site.users[0]
    allowed, denied = openable(site, user)
    script = tries(allowed, denied, *ALWAYS)
    jobid = site.submit(user, script, "-n1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state without ConstrainDevices")
    for path in (allowed, denied, *ALWAYS):
        expect_in(f"{path} works\n", site.output(jobid), "its output")

    site.configure(ConstrainDevices="closed", DeviceAllow=f'"{allowed} r"')
    write = f"if (: >>{allowed}) 2>err.$$; then echo writing works; else cat err.$$; fi"
    jobid = site.submit(user, f"{script}\n{write}\necho devices=$JOBFENCE_DEVICES\nsrun -n1 --mem=50 sh -c '{tries(allowed, denied)}' >step.out 2>&1",
                        "-n1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state with it")
    step = (site.directory(user) / "step.out").read_text()
    for what, said in ("the batch script", site.output(jobid)), ("the step", step):
        expect_in(f"{allowed} works\n", said, what)
        expect(f"{denied} works" not in said and f"{denied}: {EPERM}" in said, f"{what} and what is denied:\n{said}")
    for path in ALWAYS:
        expect_in(f"{path} works\n", site.output(jobid), "its output")
    expect_in(f"devices={allowed} r\n", site.output(jobid), "its output")
    # For reading alone.
    expect("writing works" not in site.output(jobid) and site.output(jobid).count(EPERM) == 2, site.output(jobid))

    # A class, by its driver; and pseudo terminals as ever.
    major = os.major(os.stat(denied).st_rdev)
    site.configure(ConstrainDevices="closed", DeviceAllow=f"char-{'misc' if major == MISC else major}")
    jobid = site.submit(user, tries(denied), "-n1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state with a class")
    expect_in(f"{denied} works\n", site.output(jobid), "its output")
    command = ["srun", "-n1", "--mem=100", "--pty", "sh", "-c", "echo so >/dev/tty; echo far"]
    with terminal() as (ours, theirs), started(site, user, command, terminal=theirs) as srun:
        status, *_ = ended(srun)
        expect_equal(status, 0, "status of srun --pty")
        said = os.read(ours, 1 << 16).decode()
        expect("so" in said and "far" in said, f"srun --pty said {said!r}")


@case(layout=False)
def devices_that_are_not_there(site):
    user = site.users[0]
    site.configure(ConstrainDevices="closed", DeviceAllow="/dev/jobfence-has-none")
    jobid = site.submit(user, RAN, "-n1", "--mem=100")
    expect_not_started(site, user, jobid)
    expect_in("/dev/jobfence-has-none", site.output(jobid), "the job's output")
    expect_not_drained(site)
    site.configure(ConstrainDevices="closed", DeviceAllow="/dev/jobfence-has-none", OnError="fail,devices:warn")
    fences_well(site, user)
    jobid = site.submit(user, "echo devices=$JOBFENCE_DEVICES", "-n1", "--mem=100", env={"JOBFENCE_DEVICES": "mine"})
    expect_equal(site.wait(jobid), "COMPLETED", "state with OnError=warn")
    expect_equal(site.output(jobid), "devices=\n", "what it is told of devices that are not limited")


# Commands, types and flags of bpf(2): include/uapi/linux/bpf.h.
LOAD, ATTACH, DETACH, CGROUP_DEVICE, AT_CGROUP_DEVICE, ALLOW_OVERRIDE = 5, 8, 9, 15, 6, 1


def bpf(command, *words):
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.create_string_buffer(struct.pack(f"={len(words)}I", *words), 160)
    number = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351}[os.uname().machine]
    done = libc.syscall(number, command, argument, 160)
    if done < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return done


@contextlib.contextmanager
def alone_at(directory):
    """A program of somebody else's there, attached as Slurm attaches its own to the job's: it admits none beside it."""
    def address(buffer):
        return struct.unpack("=2I", struct.pack("=Q", ctypes.addressof(buffer)))
    # r0 = 1; exit: it admits every access.
    admits_all = ctypes.create_string_buffer(struct.pack("=2Q", 0x1000000B7, 0x95), 16)
    license_ = ctypes.create_string_buffer(b"GPL")
    name = struct.unpack("=4I", b"somebodys".ljust(16, b"\0"))
    program = bpf(LOAD, CGROUP_DEVICE, 2, *address(admits_all), *address(license_), 0, 0, 0, 0, 0, 0, *name)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bpf(ATTACH, fd, program, AT_CGROUP_DEVICE, ALLOW_OVERRIDE)
        try:
            yield
        finally:
            bpf(DETACH, fd, program, AT_CGROUP_DEVICE)
    finally:
        os.close(fd)
        os.close(program)


@case
def devices_beside_a_program_that_admits_none(site):
    if "devices" in kernel.hierarchies():
        raise Skip("devices are limited on cgroup v1 here, by lists")
    user = site.users[0]
    job = site.submit(user, "sleep 300", "-n1", "--mem=100")
    # Above all that goes with the job: our own directory, or Slurm's scope.
    place = fenced(site, job).parent.directory("").parent
    place = place.parent if place.name.startswith("uid_") else place
    site.end(job)
    site.configure(ConstrainDevices="closed")
    with alone_at(place):
        jobid = site.submit(user, RAN, "-n1", "--mem=100")
        expect_not_started(site, user, jobid)
        expect_in("the device program somebodys (id ", site.output(jobid), "the job's output")
        expect_in(f"is attached to {place} and admits none beside it", site.output(jobid), "the job's output")
        expect_not_drained(site)
    fences_well(site, user)


def beside_slurm_conf(site, name):
    """An installed jobfence has its configuration in a directory of its own."""
    return getattr(site, "SLURM_CONF", site.config).with_name(name)


@contextlib.contextmanager
def gres(site, gres_conf, count, **keys):
    """Slurm has GPUs on its only node, and jobfence's prolog and epilog."""
    if not (getattr(site, "jobfence", None) or shutil.which("jobfence", path=PATH)):
        raise Skip("this site has no jobfence command for a prolog")
    lines = [line for line in beside_slurm_conf(site, "slurm.conf").read_text().splitlines() if line.startswith("NodeName=")]
    if len(lines) != 1:
        raise Skip("slurm.conf has not one line for the node")
    node = f"{lines[0].partition('=')[2]} Gres=gpu:{count}"
    with gres_conf_of(site, gres_conf), prologs(site, GresTypes="gpu", NodeName=node, **keys):
        yield


@contextlib.contextmanager
def gres_conf_of(site, text):
    file = beside_slurm_conf(site, "gres.conf")
    if file.exists():
        raise Skip(f"{file} is the site's own")
    write_atomically(file, text)
    try:
        yield
    finally:
        file.unlink()


def called(gpus, *numbers):
    """Devices, renamed as GPUs with these numbers."""
    return [gpu.rename(gpu.with_name(f"gpu{number}")) for gpu, number in zip(gpus, numbers)]


def job_with_a_gpu(site, user, gpus):
    """Which of these devices a job can use that asks for one GPU, and goes on with it; and what it is told."""
    jobid = site.submit(user, f"{tries(*gpus)}\necho devices=$JOBFENCE_DEVICES\nsleep 300", "-n1", "--mem=100", "--gres=gpu:1")
    said = until(lambda: "devices=" in site.output(jobid) and site.output(jobid), 20, "the job's output")
    return jobid, [gpu for gpu in gpus if f"{gpu} works\n" in said], said


@case
def gpus_as_slurm_counts_them(site):
    """The first GPU in gres.conf is another than that with the number 0 in its name."""
    user = site.users[0]
    gpus = called(openable(site, user), 1, 0)
    pattern = gpus[0].with_name("gpu%d")
    with gres(site, f"Name=gpu File={gpus[0].with_name('gpu[1,0]')}\n", 2):
        site.configure(ConstrainDevices="closed", GPUDevice=pattern)
        jobs = []
        for position, gpu in enumerate(gpus):
            jobid, usable, said = job_with_a_gpu(site, user, gpus)
            expect_in(f"gpus={position}\ngpu_devices={gpu}\n", record_of(site, jobid), "its record")
            expect_equal(usable, [gpu], f"what the job can use that has Slurm's GPU {position}; it says:\n{said}")
            expect_equal(said.count(EPERM), 1, "devices that are denied it")
            expect_in(f"devices={gpu} rw\n", said, "its output")
            jobs.append(jobid)
        site.end(*jobs)
        # One that asks for none has none, and hears nothing of it.
        jobid = site.submit(user, tries(*gpus), "-n1", "--mem=100")
        expect_equal(site.wait(jobid), "COMPLETED", "state without a GPU")
        expect_equal(site.output(jobid).count(EPERM), 2, "devices denied without a GPU")
        expect("jobfence: " not in site.output(jobid), site.output(jobid))
    # And without a prolog nobody has said of any.
    site.configure(ConstrainDevices="closed", GPUDevice=pattern)
    jobid = site.submit(user, tries(*gpus), "-n1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state without a prolog")
    expect_equal(site.output(jobid).count(EPERM), 2, "devices denied without a prolog")


@case
def gpus_of_others_and_nothing_else(site):
    """As Slurm's own ConstrainDevices: a job can use all devices but the GPUs that it does not have."""
    user = site.users[0]
    other, gpu = openable(site, user)
    [gpu] = called([gpu], 0)
    lines, unlimited = f"Name=gpu File={gpu}\n", [other, gpu]
    with gres(site, lines, 1):
        site.configure(ConstrainDevices="yes", GPUDevice=gpu.with_name("gpu%d"))
        jobid, usable, said = job_with_a_gpu(site, user, unlimited)
        expect_equal(usable, unlimited, f"what a job can use that has the GPU; it says:\n{said}")
        expect_in("devices=\n", said, "what it is told of a list that there is not")
        without = site.submit(user, tries(*unlimited, *ALWAYS), "-n1", "--mem=100")
        expect_equal(site.wait(without), "COMPLETED", "state without a GPU")
        said = site.output(without)
        expect(f"{other} works\n" in said and f"{gpu}: {EPERM}" in said and said.count(EPERM) == 1, f"without a GPU:\n{said}")
        site.end(jobid)
        # A closed list and an open one: nobody is taken to have meant the open one.
        site.configure(ConstrainDevices="yes", GPUDevice=gpu.with_name("gpu%d"), DeviceAllow=other)
        jobid = site.submit(user, RAN, "-n1", "--mem=100")
        expect_not_started(site, user, jobid)
        expect_in("ConstrainDevices=closed", site.output(jobid), "its output")
        expect_not_drained(site)


@case(layout=False)
def gpus_that_no_prolog_has_noted_down(site):
    """A job that has GPUs, and can use none of them, hears why."""
    user = site.users[0]
    gpus = called(openable(site, user), 0, 1)
    with gres(site, f"Name=gpu File={gpus[0].with_name('gpu[0-1]')}\n", 2, Prolog=None):
        site.configure(ConstrainDevices="yes", GPUDevice=gpus[0].with_name("gpu%d"))
        jobid, usable, said = job_with_a_gpu(site, user, gpus)
        expect_equal(usable, [], f"what it can use; it says:\n{said}")
        expect_in("the job may use none of its GPUs, since jobfence is not certain which devices they are: no 'jobfence prolog' has", said,
                  "its output")
        site.end(jobid)
        jobid = site.submit(user, tries(*gpus), "-n1", "--mem=100")
        expect_equal(site.wait(jobid), "COMPLETED", "state without a GPU")
        expect("jobfence: " not in site.output(jobid), f"a job without GPUs hears of them: {site.output(jobid)}")


@case(layout=False)
def gpus_of_which_it_is_not_certain_which_they_are(site):
    """With AutoDetect they are in gres.conf's order, or in one that was detected: none is allowed, until the site names it."""
    user = site.users[0]
    gpus = called(openable(site, user), 1, 0)
    with gres(site, f"AutoDetect=nvml\nName=gpu File={gpus[0].with_name('gpu[1,0]')}\n", 2):
        site.configure(ConstrainDevices="closed", GPUDevice=gpus[0].with_name("gpu%d"))
        mark = site.log_mark()
        jobid, usable, said = job_with_a_gpu(site, user, gpus)
        expect_equal((usable, said.count(EPERM)), ([], 2), f"what it can use; it says:\n{said}")
        expect_in("the job may use none of its GPUs, since jobfence is not certain which devices they are: with AutoDetect=nvml", said, "its output")
        expect_in("GPUDevice in jobfence.conf(5)", said, "its output")
        expect_in("devices=none\n", said, "its output")
        expect_match(r"\ngpus=0\ngpu_devices=\ngpus_unknown=with AutoDetect=nvml", record_of(site, jobid), "its record")
        logged(site, mark, "the job may use none of its GPUs")
        site.end(jobid)
        expect_not_drained(site)
        site.configure(ConstrainDevices="yes", GPUDevice=f'"{gpus[0].with_name("gpu[1,0]")}"')
        jobid, usable, said = job_with_a_gpu(site, user, gpus)
        expect_equal(usable, gpus[:1], f"what it can use in the order that the site names; it says:\n{said}")
        site.end(jobid)


@case(on=["two-nodes"])
def gpus_of_another_node(site):
    """Without PrologFlags=Alloc slurmd says of the second node's GPUs what is said of the first node's."""
    user = site.users[0]
    gpus = called(openable(site, user), 2, 3)
    others = [gpus[0].with_name(f"gpu{number}") for number in (0, 1)]
    for number, other in enumerate(others):
        # Nobody opens them: numbers that are for local use (admin-guide/devices.txt).
        os.mknod(other, stat.S_IFCHR | 0o666, os.makedev(60, number))
    lines = "".join(f"NodeName={node} Name=gpu File={gpus[0].with_name(names)}\n"
                    for node, names in (("n1", "gpu[0-1]"), ("n2", "gpu[2-3]")))
    job = f"srun -N1 -n1 -w n2 --mem=100 sh -c '{tries(*gpus)}' 2>&1; echo done"
    for flags, usable, record in (
        (None, [], "gpus=\ngpu_devices=\ngpus_unknown=the numbers of GPUs that slurmd says can be another node's"),
        ("Alloc", [gpus[1]], f"gpus=1\ngpu_devices={gpus[1]}\n"),
    ):
        keys = {"topology": f"{site.default_topology()} Gres=gpu:2", "GresTypes": "gpu", "PrologFlags": flags}
        with gres_conf_of(site, lines), prologs(site, **keys):
            site.configure(ConstrainDevices="yes", GPUDevice=gpus[0].with_name("gpu%d"))
            # It has the second node's first GPU.
            neighbour = site.submit(site.users[1], "sleep 300", "-w", "n2", "-n1", "--mem=100", "--gres=gpu:1")
            fenced(site, neighbour)
            jobid = site.submit(user, f"{job}\nsleep 300", "-N2", "-n2", "--mem=200", "--gres=gpu:1")
            said = until(lambda: "done\n" in site.output(jobid) and site.output(jobid), 20, "the job's output")
            found = (site.run_directory() / f"jobs/n2,{jobid}").read_text()
            expect_in(record, found, f"the record on n2 with PrologFlags={flags}")
            expect_equal([gpu for gpu in gpus if f"{gpu} works\n" in said], usable,
                         f"what the step on n2 can use with PrologFlags={flags}; it says:\n{said}")
            site.scancel(jobid, neighbour)
            for one in (jobid, neighbour):
                site.wait(one)
