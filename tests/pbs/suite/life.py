# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a job: how it begins, is stopped, runs again and ends."""

import os
import pty
import re
import select
import time

from contract import sites
from contract.harness import PYTHON, case, escaping, expect, expect_ended, expect_equal, expect_gone, expect_in, expect_match, fenced
from contract.sites import until

from ..harness import ask, expect_as_granted
from ..sites import seconds_of

@case(layout=False)
def deleted_by_force(site):
    """qdel -W force ends all that is in the fence, and the fence."""
    jobid, group, who = escaping(site, "alice", "sleep 1000", ask(1, 100))
    until(lambda: site.job(jobid).get("substate") == "42", 20, "a job that has begun")
    done = site.command("qdel", "-Wforce", jobid)
    expect_equal((done.returncode, done.stderr), (0, ""), "qdel -W force")
    expect_ended([who], group)


@case
def usage(site):
    """What a job has used is what the kernel has counted, at once when it has ended."""
    burn = f"{PYTHON} -S -c 'import time\nb = b\"x\" * (60 << 20)\nwhile time.process_time() < 3: pass'"
    jobid = site.submit("alice", f"{burn}\ncat /proc/self/cgroup >/dev/null", ask(1, 100))
    job = site.wait(jobid)
    cput, kib = seconds_of(job["resources_used.cput"]), int(job["resources_used.mem"].removesuffix("kb"))
    # Beside its three seconds the interpreter starts, for which an emulated processor takes its time.
    expect(3 <= cput <= 3 + 2 * sites.PATIENCE, f"resources_used.cput is {cput}, and should be 3")
    expect(60 << 10 <= kib <= 100 << 10, f"resources_used.mem is {kib} KiB, and should be a little more than 60 MiB")
    return f"cput {cput} s, mem {kib >> 10} MiB, cpupercent {job['resources_used.cpupercent']}"


@case
def interactive(site):
    """qsub -I: the shell is in a fence of its own."""
    ours, theirs = pty.openpty()
    process = site.as_user("alice", ["qsub", "-I", ask(1, 100)], terminal=theirs, env={"TERM": "dumb"})
    os.close(theirs)
    said = ""

    def until_said(pattern, seconds=30):
        nonlocal said
        deadline = time.monotonic() + seconds
        while not re.search(pattern, said):
            ready, _, _ = select.select([ours], [], [], max(0, deadline - time.monotonic()))
            try:
                part = os.read(ours, 4096) if ready else b""
            except OSError:
                part = b""
            if not part:
                raise AssertionError(f"qsub -I should say {pattern!r}, and said:\n{said}")
            said += part.decode(errors="replace")
        return re.search(pattern, said)
    try:
        jobid = until_said(r"job (\S+) ready")[1]
        site.submitted.append(("alice", jobid))
        os.write(ours, b"cat /proc/self/cgroup; echo status=$((6 * 7))\n")
        until_said("status=42")
        group = fenced(site, jobid)
        expect_in(group.path, said, "the shell's cgroups")
        expect_as_granted(site, jobid, group)
        os.write(ours, b"exit\n")
        until_said("completed")
        process.wait(20)
        site.wait(jobid)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    expect_gone(group.parent)


@case(layout=False)
def many_at_once(site):
    """Ten short jobs leave nothing behind."""
    jobs = [site.submit("alice", "cat /proc/self/cgroup", ask(1, 64)) for _ in range(10)]
    for jobid in jobs:
        expect_equal(site.wait(jobid, 120)["Exit_status"], "0", f"Exit_status of {jobid}")
        expect_match(rf"{re.escape(site.directory_of(jobid))}/step_1$", re.sub(r"(?s).*?([^\n]*step_1)\n.*", r"\1", site.output(jobid)), "its cgroups")


@case(on=("private",), layout=False)
def a_hundred_at_once(site):
    """A hundred short jobs of an array, of which as many run at once as the server can start: each is in its fence, and nothing is left."""
    array = site.submit("alice", "cat /proc/self/cgroup", "-J0-99", "-lselect=1:ncpus=0:mem=16mb")
    site.wait(array, 300)
    number, server = array.split("[")[0], array.split(".", 1)[1]
    for index in range(100):
        name = f"{number}[{index}].{server}"
        said = site.output(name)
        expect(f"/{site.directory_of(name)}/step_1\n" in said, f"job {name} was in {said!r}")
