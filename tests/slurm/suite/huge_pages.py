# SPDX-License-Identifier: GPL-2.0-or-later
"""Huge pages: a job gets no more of them than the site allows, and hears of it in time."""

import contextlib
import json
import re
from pathlib import Path

from contract import kernel
from contract.harness import MIB, PYTHON, Skip, case, expect_equal, expect_in, expect_match, fenced, logged, running
from contract.hugetlb import SIZES, handed_down, has_hugetlb, sizes_of_this_host
from contract.sites import until
from ..harness import NOT_STARTED, expect_limits

POOL = Path("/proc/sys/vm/nr_hugepages")
SIZE = SIZES / "hugepages-2048kB"

# Maps so many MiB of huge pages and touches each: reserved at once, as mmap does, or only when they are touched.
MAP = """
import errno, mmap, os, sys
RESERVED, NOT_RESERVED = 0, 0x4000  # MAP_NORESERVE
def use(mib, how):
    try:
        pages = mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | how)  # MAP_HUGETLB
    except OSError as error:
        return errno.errorcode[error.errno]
    for at in range(0, mib << 20, 2 << 20):
        pages[at] = 1
    return "used"
for mib, how in (4, RESERVED), (6, RESERVED), (4, NOT_RESERVED), (6, NOT_RESERVED):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        print("pages", mib, how, use(mib, how), flush=True)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        print("pages", mib, how, "signal", os.WTERMSIG(status), flush=True)
"""


@contextlib.contextmanager
def pool(pages):
    """So many free huge pages of 2 MiB."""
    if not SIZE.is_dir():
        raise Skip("no huge pages of 2 MiB")
    before = kernel.read(POOL)
    try:
        POOL.write_text(str(pages))
        if int(kernel.read(SIZE / "free_hugepages")) < pages:
            raise Skip(f"the kernel has not found {pages} huge pages")
        yield
    finally:
        POOL.write_text(before)


def needs_hugetlb():
    if not has_hugetlb():
        raise Skip("no hugetlb controller")


# The pool is the whole machine's, and not to be changed where the tests are guests themselves.
def program_of(site, text):
    """A file in the directory of the user's jobs."""
    program = site.directory(site.users[0]) / "huge.py"
    program.write_text(text)
    program.chmod(0o644)
    return program


@case(on=["installed"])
def huge_pages_of_a_job(site):
    """Within the limit they can be used; beyond it mmap fails, and who did not ask beforehand is killed."""
    needs_hugetlb()
    user = site.users[0]
    with pool(8), handed_down(site):
        site.configure(MaxHugePages="2M:5M")
        program = program_of(site, MAP)
        jobid, group = running(site, user, f"{PYTHON} -S {program}\necho told $JOBFENCE_HUGE_PAGES\nsleep 300", "-c1", "--mem=200")
        expect_equal(group.huge_pages(), {"2MB": 4 * MIB}, "the step's limits")
        expect_equal(group.parent.huge_pages(), {"2MB": 4 * MIB}, "the job's limits")
        said = until(lambda: [line for line in site.output(jobid).splitlines() if line.startswith("pages ")][3:], 30, "its pages")
        expect_equal(said[-1], "pages 6 16384 signal 7", "the last, which is killed by SIGBUS")
        expect_in("pages 4 0 used\npages 6 0 ENOMEM\npages 4 16384 used\n", site.output(jobid), "what it says")
        until(lambda: "told 2M:4M\n" in site.output(jobid), 10, "JOBFENCE_HUGE_PAGES")
        site.end(jobid)

        # Slurm grants none.
        site.configure(ConstrainHugePages="closed", MaxHugePages="2M:5M")
        jobid, group = running(site, user, "echo told $JOBFENCE_HUGE_PAGES\nsleep 300", "-c1", "--mem=100")
        here = sizes_of_this_host()
        expect_equal((group.huge_pages(), group.parent.huge_pages()), (here, here), "limits where nothing is granted")
        until(lambda: "told " in site.output(jobid) and ":0" in site.output(jobid), 10, "JOBFENCE_HUGE_PAGES")
        site.end(jobid)

        site.configure(MaxHugePages="2M:4M,16M:0")
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "FAILED", "state of a job with a size that there is not")
        expect_in(NOT_STARTED + 'this host has no huge pages of the size (value "16M")', site.output(jobid), "its output")


# Maps 40 MiB of huge pages, and when it is told to, eats more memory than there is beside them.
HOLD = """
import mmap, os, sys, time
pages = mmap.mmap(-1, 40 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)  # MAP_HUGETLB
for at in range(0, 40 << 20, 2 << 20):
    pages[at] = 1
open(sys.argv[1], "x").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
eaten = [bytes([i + 1]) * (8 << 20) for i in range(100)]
"""


@case(on=["installed"])
def huge_pages_and_the_memory_limit(site):
    """Huge pages are in a job's memory, its peak and the sentence about a kill just where the kernel counts them there."""
    user, unified = site.users[0], kernel.hierarchies().get("")
    mounts = [line.split() for line in kernel.read("/proc/self/mountinfo").splitlines()]
    options = [fields[-1].split(",") for fields in mounts if unified and fields[4] == str(unified.mount_point)]
    count = any("memory_hugetlb_accounting" in those for those in options)
    with pool(32):
        site.configure(UsageCard="failed")
        program = program_of(site, HOLD)
        jobid, group = running(site, user, f"{PYTHON} -S {program} mapped.$SLURM_JOB_ID go.$SLURM_JOB_ID\nexit $?", "-c1", "--mem=200")
        until((site.directory(user) / f"mapped.{jobid}").exists, 30, "its pages")
        fences = json.loads(site.command("jobfence", "show", str(jobid), "--json").stdout)["fences"]
        batch = next(fence for fence in fences if fence["step"] == "batch")
        expect_equal(batch["memory_huge_pages_bytes"], 40 * MIB if count else None, "its huge pages")
        expect_equal(batch["memory_peak_bytes"] >= 40 * MIB, count, "whether its peak has them")
        expect_limits(group, 1.0, 200)
        says = re.search(r"(?m)^huge pages .*counts in its memory limit", site.command("jobfence", "check").stdout)
        expect_equal(bool(says), count, "whether 'jobfence check' says so")
        (site.directory(user) / f"go.{jobid}").touch()
        site.wait(jobid)
        said = site.output(jobid)
        expect_in("reached its memory limit of 200.0 MiB", said, "its output")
        expect_equal(", 40.0 MiB of it huge pages" in said, count, f"whether its output has them ({said})")
        expect_match(r"memory +\S+ +\d+ % +peak (19\d|200)\.\d MiB of 200\.0 MiB", said, "the card")
    return "they count" if count else "they do not count"


@case(on=["installed"])
def huge_pages_are_not_handed_down_by_systemd(site):
    """The controller has to be enabled by hand, and a job says how."""
    needs_hugetlb()
    if "hugetlb" in kernel.hierarchies() or not Path("/run/systemd/system").is_dir():
        raise Skip("not cgroup2 beside systemd")
    site.configure(MaxHugePages="2M:0")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "FAILED", "state of the job")
    expect_in("does not have the hugetlb controller", site.output(jobid), "its output")
    expect_in("do echo +hugetlb >$file; done", site.output(jobid), "its output")
    # It is an error of that limit alone.
    site.configure(MaxHugePages="2M:0", OnError="fail,hugepages:warn")
    mark = site.log_mark()
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
    expect_limits(fenced(site, jobid), 1.0, 100)
    logged(site, mark, rf"job {jobid} step batch runs without its huge pages limit .*does not have the hugetlb controller")
    site.end(jobid)
