# SPDX-License-Identifier: GPL-2.0-or-later
"""PrivateTmpSpace on disk: jobs' own directories on an ext4 with quotas of projects, which is in a file of the case's own."""

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import signal
import struct
import subprocess
import tempfile

from contract.harness import IN_VAR, MIB, WAIT, Skip, case, expect_equal, expect_in, expect_match, let_go, reap, running
from contract.private import own_directories
from contract.sites import until

# linux/fs.h, linux/quota.h, and the number of quotactl_fd(2) on all processors.
FS_IOC_FSGETXATTR = 0x801C581F
Q_GETQUOTA, PRJQUOTA = 0x800007, 2
SYS_QUOTACTL_FD = 443
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def ext4(base, options="prjquota"):
    """Such a file system, mounted there."""
    with tempfile.NamedTemporaryFile(**IN_VAR) as image:
        image.truncate(128 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", image.name], check=True)
        mounted = subprocess.run(["mount", "-o", f"loop,{options}", image.name, base], capture_output=True, text=True)
        if mounted.returncode != 0:
            raise Skip(f"this kernel mounts no ext4 with quotas of projects: {mounted.stderr.strip()}")
        try:
            yield
            until(lambda: subprocess.run(["umount", base]).returncode == 0, 20, "the end of the file system")
        finally:
            # After a failure somebody may use it.
            subprocess.run(["umount", "--lazy", base], capture_output=True)


def project_of(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        return struct.unpack("5I8x", fcntl.ioctl(handle, FS_IOC_FSGETXATTR, bytes(28)))[3]
    finally:
        os.close(handle)


def quota_of(base, project):
    """The kernel's limit in KiB, and the number of files."""
    handle, about = os.open(base, os.O_RDONLY), ctypes.create_string_buffer(80)
    try:
        failed = LIBC.syscall(SYS_QUOTACTL_FD, handle, Q_GETQUOTA << 8 | PRJQUOTA, ctypes.c_ulong(project), about) != 0
        # xfs notes nothing of a project that has nothing.
        if failed and ctypes.get_errno() != errno.ENOENT:
            raise OSError(ctypes.get_errno(), f"quotactl_fd of {base}")
    finally:
        os.close(handle)
    limit, _, _, _, _, files = struct.unpack_from("6Q", about)
    return limit, files


def projects_of_jobs(base):
    """Those of the jobs that have directories there now."""
    return sorted(project_of(path) for path in base.glob("*/uid_*"))


def expect_no_quotas(base, projects):
    until(lambda: not list(base.glob("*/*")), 60, "the end of the jobs' directories")
    left = {project: quota_of(base, project) for project in projects}
    expect_equal(left, dict.fromkeys(projects, (0, 0)), "what is left of their quotas")


@case
def private_space_on_disk(site):
    """Each job has a limit of its own, which df shows. One that fills it is told, and its neighbour notices nothing. No quota is left."""
    if os.cpu_count() < 2:
        raise Skip("two jobs at once need two CPUs")
    user, other = site.users[:2]
    with own_directories(site, "/tmp,/var/tmp", on=ext4, PrivateTmpSpace="16M") as base:
        neighbour = site.submit(other, f"""
            head -c 8M /dev/zero >/var/tmp/a && echo wrote; {WAIT}; head -c 4M /dev/zero >/tmp/a && echo again""", "-c1", "--mem=100")
        until(lambda: "wrote" in site.output(neighbour), 60, "its first file")
        jobid = site.submit(
            user, f"df -B1M --output=size /tmp /var/tmp; head -c 32M /dev/zero >/tmp/a; echo filled; {WAIT}", "-c1", "--mem=100")
        until(lambda: "filled" in site.output(jobid), 60, "as much as it may write")
        expect_match(r"16\n +16\n[\s\S]*Disk quota exceeded", site.output(jobid), "what df says, and head")
        projects = projects_of_jobs(base)
        expect_equal([quota_of(base, project)[0] for project in sorted(set(projects))], [16384, 16384], f"limits of {projects}")
        let_go(site, neighbour, other)
        let_go(site, jobid)
        for job in neighbour, jobid:
            expect_equal(site.wait(job), "COMPLETED", f"state ({site.output(job)})")
        expect_in("the job's own /tmp and /var/tmp is full", site.output(jobid), "what its user is told")
        expect_equal(site.output(neighbour), "wrote\nagain\n", "what its neighbour is told")
        expect_no_quotas(base, projects)


@case
def private_space_of_a_dead_daemon(site):
    """kill -9 of the step daemon: the janitor takes the limit away. What the user has put into another project is removed, too."""
    with own_directories(site, on=ext4, PrivateTmpSpace="16M") as base:
        jobid, _ = running(site, site.users[0], """
            mkdir -p /tmp/a/b/c; chattr -p 7 /tmp/a /tmp/a/b; head -c 1M /dev/zero >/tmp/a/b/c/file; touch /tmp/ready; exec sleep 300""",
            "-c1", "--mem=100")
        until(lambda: list(base.glob("*/*/tmp/ready")), 20, "its files")
        projects = projects_of_jobs(base)
        expect_equal(([quota_of(base, project)[0] for project in projects], project_of(next(base.glob("*/*/tmp/a/b")))), ([16384], 7),
                     "its limit, and the project of what the user has moved")
        for pid in site.step_daemons(jobid):
            os.kill(pid, signal.SIGKILL)
        site.scancel(jobid)
        until(lambda: not site.step_daemons(jobid), 20, "the end of its daemon")

        def is_gone():
            reap(site)
            return not list(base.glob("*/*"))
        until(is_gone, 60, "the end of its directories")
        expect_no_quotas(base, [*projects, 7])


@case
def private_space_that_nothing_holds(site):
    """Where the kernel counts and does not limit, or where a project of the site's holds all jobs, they are refused, and check says so."""
    def expect_refused(reason):
        expect_in(reason, site.ours("check")[1], "what check says")
        jobid = site.submit(site.users[0], "touch ran", "-c1", "--mem=100")
        expect_in(reason, site.refused(jobid), "what its user is told")
    with own_directories(site, on=functools.partial(ext4, options="noquota"), PrivateTmpSpace="16M"):
        expect_refused("PrivateTmpSpace cannot be held on disk without project quotas")
    with own_directories(site, on=ext4, PrivateTmpSpace="16M") as base:
        subprocess.run(["chattr", "-p", "5", "+P", base], check=True)
        expect_refused("PrivateTmpSpace cannot be held in a project of the site's own")
