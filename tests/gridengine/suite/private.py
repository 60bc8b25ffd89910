# SPDX-License-Identifier: GPL-2.0-or-later
"""PrivateTmp: the job, its prolog and its interactive sessions have directories of their own."""

import contextlib
import os
import tempfile
from pathlib import Path

from contract.harness import IN_VAR, case, expect, expect_equal, expect_in
from contract.sites import until


@contextlib.contextmanager
def own_directories(site, **keys):
    with tempfile.TemporaryDirectory(**IN_VAR) as base:
        os.chmod(base, 0o755)
        share = {"PrivateTmpShare": site.home} if site.home.parent == Path("/tmp") else {}
        site.configure(**{"PrivateTmp": "/tmp,/dev/shm", "PrivateTmpBase": base, **share, **keys})
        yield Path(base)
        site.configure()
        until(lambda: not left(site, Path(base)), 20, f"the removal of jobs' own directories, such as {left(site, Path(base))}")


def left(site, base):
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines()
              if str(base) in line or f"{site.run_directory()}/private" in line]
    return [*mounts, *(site.run_directory() / "private").glob("*"), *base.glob("*/*")]


@case
def private_directories(site):
    """Two jobs of one user see nothing of each other's; each has its TMPDIR where execd has made it."""
    mark = Path(f"/tmp/jobfence-mark-{os.getpid()}")
    mark.touch()
    try:
        with own_directories(site):
            script = "ls /tmp /dev/shm; echo mine >/tmp/whose; echo $JOB_ID >/dev/shm/whose; echo a >$TMPDIR/a && cat $TMPDIR/a; stat -c '%U %a' /tmp"
            for _ in range(2):
                jobid = site.submit("alice", script)
                site.wait(jobid)
                said = site.output(jobid)
                expect(mark.name not in said and "whose" not in said, f"job {jobid} sees what is not its own: {said}")
                expect_in("a\nroot 1777\n", said, "its TMPDIR, and its /tmp")
    finally:
        mark.unlink()


@case
def private_directories_fail(site):
    """A job that cannot be isolated is refused, and does not run."""
    with own_directories(site, PrivateTmp="/tmp,/no/such/directory"):
        ran = site.directory("alice") / "ran.private"
        jobid = site.submit("alice", f"touch {ran}")
        until(lambda: "/no/such/directory" in site.logged(), 60, "the reason in the log")
        expect_equal(ran.exists(), False, "whether the job has run")
        site.delete(jobid)
