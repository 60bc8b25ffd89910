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

from .. import kernel
from ..harness import (
    RAN, Skip, case, ended, expect, expect_equal, expect_in, expect_not_drained, expect_not_started, fenced, fences_well, started,
)
from ..sites import PATH
from .steps import terminal

# What anybody can open who has the right to, on most machines, without any hardware.
CANDIDATES = "cpu_dma_latency", "loop-control", "fuse", "vcs", "autofs"
MISC = 10  # the major number of most of them
EPERM = "Operation not permitted"


def openable(site, user):
    """Two devices that this user can open outside of a job: nodes of our own, open for all."""
    # Not in /tmp, which may be a file system without devices.
    nodes = Path(tempfile.mkdtemp(prefix="jobfence-devices-", dir="/var/tmp"))
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

    site.configure(ConstrainDevices="yes", DeviceAllow=f'"{allowed} r"')
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
    site.configure(ConstrainDevices="yes", DeviceAllow=f"char-{'misc' if major == MISC else major}")
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
    site.configure(ConstrainDevices="yes", DeviceAllow="/dev/jobfence-has-none")
    jobid = site.submit(user, RAN, "-n1", "--mem=100")
    expect_not_started(site, user, jobid)
    expect_in("/dev/jobfence-has-none", site.output(jobid), "the job's output")
    expect_not_drained(site)
    site.configure(ConstrainDevices="yes", DeviceAllow="/dev/jobfence-has-none", OnError="fail,devices:warn")
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
    site.scancel(job)
    site.wait(job)
    site.configure(ConstrainDevices="yes")
    with alone_at(place):
        jobid = site.submit(user, RAN, "-n1", "--mem=100")
        expect_not_started(site, user, jobid)
        expect_in("the device program somebodys (id ", site.output(jobid), "the job's output")
        expect_in(f"is attached to {place} and admits none beside it", site.output(jobid), "the job's output")
        expect_not_drained(site)
    fences_well(site, user)


@case
def gpus_by_the_record(site):
    """Whichever devices are called so: the job's by what its prolog has noted down, and none of others."""
    user = site.users[0]
    command = getattr(site, "jobfence", None) or shutil.which("jobfence", path=PATH)
    if not command:
        raise Skip("this site has no jobfence command for a prolog")
    gpus = [node.rename(node.with_name(f"gpu{number}")) for number, node in enumerate(openable(site, user))]
    scripts = {}
    for what in "prolog", "epilog":
        script = site.home / f"{what}-of-gpus"
        # As slurmd would say it, had it gres.conf and GPUs.
        script.write_text(f"#!/bin/sh\nSLURM_JOB_GPUS=1 exec {command} {what} --config {site.config}\n")
        script.chmod(0o755)
        scripts[what.capitalize()] = str(script)
    keys = {"ConstrainDevices": "yes", "GPUDevice": gpus[0].with_name("gpu%d")}
    with site.reconfigured(**scripts):
        site.configure(**keys)
        jobid = site.submit(user, f"{tries(*gpus)}\necho devices=$JOBFENCE_DEVICES", "-n1", "--mem=100")
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        expect_in(f"devices={gpus[1]} rw\n", site.output(jobid), "its output")
        expect_in(f"{gpus[1]} works\n", site.output(jobid), "its output")
        expect_in(f"{gpus[0]}: {EPERM}", site.output(jobid), "its output")
    # Nobody has said of this one that it has any.
    site.configure(**keys)
    jobid = site.submit(user, tries(*gpus), "-n1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state without a prolog")
    expect_equal(site.output(jobid).count(EPERM), 2, "devices denied without a prolog")
