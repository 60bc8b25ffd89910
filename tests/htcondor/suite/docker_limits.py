# SPDX-License-Identifier: GPL-2.0-or-later
"""What the fence's limits do to a container of the Docker universe. Docker and HTCondor set only a few of them."""

import os
import re
import signal
from pathlib import Path

from contract import kernel
from contract.harness import MIB, case, expect, expect_equal, expect_match
from contract.sites import until

from .. import docker
from ..harness import WAIT, expect_gone, expect_quota, let_go, screens

# Earlier ones leave the starter of a container that was out of memory alive (HTCONDOR-3621).
STARTER_ENDS_FROM = (25, 11)
SPIN = "for i in 1 2 3 4; do sh -c 'while :; do :; done' & done; wait"
# A disk that only this case uses.
SCRATCH = "/scratch"
SECONDS = 5
RATE = 4 * MIB  # bytes in a second
# dd of a busybox does not say how long it took.
CLOCK = "cut -d ' ' -f 1 /proc/uptime"
ALLOWED, DENIED = "/dev/jobfence-case1", "/dev/jobfence-case2"
EVERYBODYS = "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"


@case(release=True)  # container shows that all of it is in the fence
def container_has_the_quota(site):
    """Four spinners in a container have the time of one CPU, as the slot has."""
    with docker.universe(site):
        jobid, group = docker.fenced_job(site, SPIN)
        expect_equal(site.slot(jobid)["Cpus"], 1, "the slot's CPUs")
        until(lambda: len(site.job_pids(jobid, "while")) >= 4, 60, "the spinners")
        used = expect_quota(group, 1)
        site.remove(jobid)
        expect_gone(group.parent, 60)
    return used


@case(release=True)  # as container_has_the_quota
def container_stops_at_its_processes(site):
    """A fork bomb in a container stops at the limit. Docker's client counts, too."""
    site.configure("MaxProcesses=60\n")
    bomb = "for i in $(seq 100); do sleep 1000 & done"
    with docker.universe(site):
        jobid, group = docker.fenced_job(site, f"{WAIT}; sh -c '{bomb}'; exit 0")
        expect_equal(group.parent.processes_limit(), 60, "the limit")
        clients = int(kernel.read(group.directory("") / "starter/pids.current"))
        let_go(site, jobid)
        site.wait(jobid)
    expect_match("can't fork|Resource temporarily unavailable", site.output(jobid, "err"), "what the shell says")
    return f"{clients} of the starter and of Docker's client"


@case(release=True)  # as container_has_the_quota
def container_is_out_of_memory(site):
    """HTCondor holds the job, as without jobfence."""
    with docker.universe(site):
        jobid, group = docker.fenced_job(site, f"{WAIT}; dd if=/dev/zero of=/dev/null bs=300M count=1", mib=100)
        before = int(kernel.read(group.directory("") / "memory.current"))
        let_go(site, jobid)
        reason, code, _ = site.held(jobid)
        expect_equal(code, 34, f"the code of the hold, whose reason is {reason}")
        if site.release() < STARTER_ENDS_FROM:
            os.kill(site.starter(group), signal.SIGKILL)
        expect_gone(group.parent)
        docker.expect_none()
    return f"{reason}; before that, the fence had {before // MIB} MiB"


@case(release=True)  # as container_has_the_quota
def container_reads_and_writes_at_its_rate(site):
    """IOMax holds for a volume of the container's, past the page cache."""
    device = os.stat(SCRATCH).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    site.configure(f"IOMax={SCRATCH} rbps={RATE // MIB}M wbps={RATE // MIB}M\n")
    volume = {"DOCKER_VOLUMES": "SCRATCH", "DOCKER_VOLUME_DIR_SCRATCH": SCRATCH, "DOCKER_MOUNT_VOLUMES": "SCRATCH"}
    file = f"{SCRATCH}/jobfence.$JOB_ID"
    copy = f"dd bs=512K count={RATE * SECONDS // (MIB // 2)}"
    with docker.universe(site, **volume):
        script = f"{WAIT}; {CLOCK}; {copy} if=/dev/zero of={file} oflag=direct && {CLOCK}; {copy} if={file} of=/dev/null iflag=direct && {CLOCK}; sleep 1000"
        jobid, group = docker.fenced_job(site, script)
        expect_equal(group.io_max(), {number: {"rbps": RATE, "wbps": RATE}}, "the rates")
        let_go(site, jobid)
        try:
            shown = until(lambda: len(found := site.output(jobid).split()) == 3 and [float(one) for one in found], 60, "two copies")
        finally:
            Path(file.replace("$JOB_ID", jobid)).unlink(missing_ok=True)
        expect(group.written(number) >= RATE * SECONDS, f"the fence has written {group.written(number)} bytes")
        site.remove(jobid)
        expect_gone(group.parent, 60)
    taken = [round(end - start, 2) for start, end in zip(shown, shown[1:])]
    # No upper bound: the guest can be late.
    expect(min(taken) >= SECONDS * 0.85, f"{SECONDS} s of bytes took {taken} s")
    return f"{SECONDS} s of bytes took {taken} s"


@case(release=True)  # as container_has_the_quota; gpus has such devices
def container_has_its_devices(site):
    """Of two devices that Docker gives to a container, ConstrainDevices leaves it the one that is allowed, for reading alone."""
    tries = "; ".join(f"for device in {' '.join(devices)}; do (: {how}$device) 2>/dev/null && echo can {what} $device; done"
                      for how, what, devices in (("<", "read", (ALLOWED, DENIED, *EVERYBODYS)), (">", "write", (ALLOWED, DENIED))))

    def opened():
        jobid, group = docker.fenced_job(site, f"{tries}; echo said; {WAIT}")
        said = until(lambda: "said" in site.output(jobid) and site.output(jobid), 60, "what the job can open")
        site.remove(jobid)
        expect_gone(group.parent, 60)
        return set(re.findall("(?m)^can (.*)$", said))
    everybodys = {f"read {device}" for device in EVERYBODYS}
    with screens({ALLOWED: 1, DENIED: 2}), docker.universe(site, DOCKER_EXTRA_ARGUMENTS=f"--device={ALLOWED} --device={DENIED}"):
        both = {f"{what} {device}" for what in ("read", "write") for device in (ALLOWED, DENIED)}
        expect_equal(opened(), both | everybodys, "what a container can do, where the fence allows all")
        site.configure(f'ConstrainDevices=closed\nDeviceAllow="{ALLOWED} r"\n')
        expect_equal(opened(), {f"read {ALLOWED}"} | everybodys, "what it can do in a fence with a closed list")
