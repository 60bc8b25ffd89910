# SPDX-License-Identifier: GPL-2.0-or-later
"""A fence's life in commands, beside a Slurm that knows nothing of it: for batch systems without a plugin."""

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

from contract import kernel
from contract.harness import Skip, case, expect, expect_equal, expect_in
from contract.sites import until

JOB = "12[3].server"
UID = 65534


def jobfence(site, *words, status=0):
    found, said = site.ours(*words)
    expect_equal(found, status, f"exit status of jobfence {' '.join(words)} ({said})")
    return said


@contextlib.contextmanager
def process(*command):
    """One of the job's user, whom nobody fences."""
    child = subprocess.Popen(command, user=UID, group=UID, extra_groups=[], cwd="/", stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def directories():
    """Where the kernel has one of the job, in any hierarchy."""
    mounts = {h.mount_point for h in kernel.hierarchies().values()}
    return [path for mount in mounts for path in kernel.directories_below(mount) if path.name == "job_12+5B3+5D.server"]


@contextlib.contextmanager
def closed_at_the_end(site):
    try:
        yield
    finally:
        site.command(str(site.jobfence), "close", "--job", JOB, "--config", str(site.config), timeout=120)


@case
def life_in_commands(site):
    """Each command goes on where the one before has ended; what the kernel shows is what was asked for."""
    with closed_at_the_end(site), process("sleep", "300") as child:
        path = jobfence(site, "open", "--job", JOB, "--user", str(UID), "--cpus", "0.5", "--mem", "64").strip()
        jobfence(site, "attach", "--job", JOB, str(child.pid))
        expect_in(path, Path(f"/proc/{child.pid}/cgroup").read_text(), "where the process is")
        expect(directories(), "the job has no directory")
        for cpus, mib in (0.5, 64), (1.0, 96), (0.25, 48):
            jobfence(site, "limit", "--job", JOB, "--cpus", str(cpus), "--mem", str(mib))
            group = kernel.Group(path)
            expect_equal((group.cpu_limit(), group.memory_limit()), (cpus, mib << 20), "the limits in the kernel")
            found = json.loads(jobfence(site, "usage", "--job", JOB, "--json"))["fences"][0]
            expect_equal((found["job"], found["cpus_limit"], found["memory_limit_bytes"]), (JOB, cpus, mib << 20),
                         "what 'jobfence usage' says")
        with process("sh", "-c", "while :; do :; done") as busy:
            jobfence(site, "attach", "--job", JOB, str(busy.pid))
            jobfence(site, "freeze", "--job", JOB)
            before = cpu_ticks(busy.pid)
            time.sleep(0.5)
            expect_equal(cpu_ticks(busy.pid), before, "CPU time of a frozen process")
            jobfence(site, "thaw", "--job", JOB)
            until(lambda: cpu_ticks(busy.pid) > before, 10, "the process goes on")
            expect_in(f"job {JOB} step 0 ended: cpu ", jobfence(site, "close", "--job", JOB, "--verbose"), "what close says")
            expect_equal(busy.wait(120), -9, "how the process has ended")
        expect_equal(child.wait(120), -9, "how the other has ended")
        expect_equal(directories(), [], "directories of the job")
        expect_in("nothing to close", jobfence(site, "close", "--job", JOB), "what a second close says")


def cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@case
def held_by_a_unit(site):
    """As long as this start of the unit: neither reloaded nor asked about too late it loses the fence; stopped or started anew it does."""
    if not Path("/run/systemd/system").is_dir():
        raise Skip("only beside systemd")
    unit = f"jobfence-test-{os.getpid()}.service"

    def systemctl(*words):
        done = site.command(*words, timeout=120)
        expect_equal(done.returncode, 0, f"{' '.join(words)} ({done.stderr})")

    def reap():
        return jobfence(site, "reap")

    expect_in("is not active", jobfence(site, "open", "--job", JOB, "--user", str(UID), "--holder", f"unit:{unit}", status=1),
              "what open says of a unit that is not there")
    for end in ("stop",), ("restart",):
        systemctl("systemd-run", f"--unit={unit}", "sleep", "300")
        try:
            with closed_at_the_end(site), process("sleep", "300") as child:
                jobfence(site, "open", "--job", JOB, "--user", str(UID), "--holder", f"unit:{unit}")
                jobfence(site, "attach", "--job", JOB, str(child.pid))
                systemctl("systemctl", "daemon-reload")
                reap()
                expect(child.poll() is None and directories(), "the fence of a unit that lives is gone")
                systemctl("systemctl", *end, unit)
                reap()
                expect_equal(child.wait(120), -9, f"how the process has ended after {end[0]}")
                expect_equal(directories(), [], "directories of the job")
        finally:
            site.command("systemctl", "stop", unit)
