# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of the Docker universe: Docker makes the container, and it is inside the job's fence."""

import os
import signal
import time

from slurm import kernel
from slurm.harness import MIB, case, expect, expect_dead, expect_equal, expect_in, expect_match, expect_unfenced
from slurm.kernel import Group
from slurm.sites import until

from .. import docker
from ..harness import ESCAPEE, WAIT, escapee_of, expect_gone, expect_limits, fenced, let_go

# Earlier ones leave the starter of a container that was out of memory alive (HTCONDOR-3621).
STARTER_ENDS_FROM = (25, 11)
SPIN = "for i in 1 2 3 4; do timeout 60 sh -c 'while :; do :; done' & done; wait"


def place_of(pid):
    """The cgroup of a process below its step, as a list of names."""
    path = next(line.removeprefix("0::") for line in kernel.read(f"/proc/{pid}/cgroup").splitlines() if line.startswith("0::"))
    return path.removeprefix(Group.of(pid).path).strip("/").split("/")


def expect_no_containers():
    until(lambda: not docker.containers(), 60, "the end of all containers")


@case
def container(site):
    """All processes of a container, and what is started in it later, are in the fence, and the job ends there."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", f"{ESCAPEE}; {WAIT}; exit 4")
        group = fenced(site, jobid, 120)
        expect_limits(group, site.slot(jobid))
        until(lambda: (site.directory("alice") / f"escapee.{jobid}").exists(), 60, "the escapee")
        (found,) = docker.containers()
        pids = [pid for pid in kernel.all_pids() if found in kernel.read(f"/proc/{pid}/cgroup")]
        expect(len(pids) >= 3, f"the container's processes are {pids}")
        expect_equal({Group.of(pid) for pid in pids} - {None}, {group}, "the groups of those that live")
        names = place_of(pids[0])
        expect_equal(names[0], "docker", "the directory of the containers")
        own = group.directory("") / "/".join(names) / "memory.max"
        expect_equal(int(kernel.read(own)), site.slot(jobid)["Memory"] * MIB, "the limit that HTCondor has Docker set")
        docker.ask("exec", "--detach", found, "sleep", "4321")
        later = until(lambda: [pid for pid in kernel.all_pids() if kernel.command_line(pid).startswith("sleep 4321")], 30, "docker exec")
        expect_equal(Group.of(later[0]), group, "the group of a process of docker exec")
        who = kernel.identity(later[0])
        let_go(site, jobid)
        expect_equal(site.wait(jobid)["ExitCode"], 4, "ExitCode")
        expect_dead(who)
        expect_gone(group.parent)
        expect_no_containers()
    return f"{len(pids)} processes"


@case
def container_has_the_quota(site):
    """Four spinners in a container have the time of one CPU, as the slot has."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", SPIN)
        group = fenced(site, jobid, 120)
        expect_equal(site.slot(jobid)["Cpus"], 1, "the slot's CPUs")
        until(lambda: len(site.job_pids(jobid, "while")) >= 4, 60, "the spinners")
        began, before = time.monotonic(), group.cpu_seconds()
        time.sleep(8)
        used = (group.cpu_seconds() - before) / (time.monotonic() - began)
        expect(0.6 < used < 1.1, f"{used} CPUs were used")
        site.remove(jobid)
        expect_gone(group.parent, 60)
    return f"{used:.2f} CPUs"


@case
def container_stops_at_its_processes(site):
    """A fork bomb in a container stops at the limit. Docker's client counts, too."""
    site.configure("MaxProcesses=60\n")
    bomb = "for i in $(seq 100); do sleep 5 & done; wait"
    with docker.universe(site):
        jobid = docker.submit(site, "alice", f"{WAIT}; sh -c '{bomb}'; exit 0")
        group = fenced(site, jobid, 120)
        expect_equal(group.parent.processes_limit(), 60, "the limit")
        clients = int(kernel.read(group.directory("") / "starter/pids.current"))
        let_go(site, jobid)
        site.wait(jobid)
    expect_match("can't fork|Resource temporarily unavailable", site.output(jobid, "err"), "what the shell says")
    return f"{clients} of the starter and of Docker's client"


@case
def container_is_out_of_memory(site):
    """HTCondor holds the job, as without jobfence."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", f"{WAIT}; dd if=/dev/zero of=/dev/null bs=300M count=1", mib=100)
        group = fenced(site, jobid, 120)
        before = int(kernel.read(group.directory("") / "memory.current"))
        let_go(site, jobid)
        reason, code, _ = site.held(jobid)
        expect_equal(code, 34, f"the code of the hold, whose reason is {reason}")
        release = tuple(map(int, site.command("condor_version").stdout.split()[1].split(".")))
        if release < STARTER_ENDS_FROM:
            os.kill(site.starter(group), signal.SIGKILL)
        expect_gone(group.parent)
        expect_no_containers()
    return f"{reason}; before that, the fence had {before // MIB} MiB"


@case
def container_is_removed(site):
    """condor_rm ends all that is in it, and leaves nothing."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", f"{ESCAPEE}; trap '' TERM; while :; do sleep 1; done", want_graceful_removal="False")
        group = fenced(site, jobid, 120)
        until(lambda: (site.directory("alice") / f"escapee.{jobid}").exists(), 60, "the escapee")
        who = [kernel.identity(pid) for pid in site.job_pids(jobid)]
        site.remove(jobid)
        for one in who:
            expect_dead(one, 60)
        expect_gone(group.parent, 60)
        expect_no_containers()


@case
def container_of_a_starter_that_is_killed(site):
    """All of the container ends with the starter."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", f"{ESCAPEE}; sleep 1000")
        group = fenced(site, jobid, 120)
        until(lambda: (site.directory("alice") / f"escapee.{jobid}").exists(), 60, "the escapee")
        who = [kernel.identity(pid) for pid in site.job_pids(jobid)]
        os.kill(site.starter(group), signal.SIGKILL)
        for one in who:
            expect_dead(one, 20)
        site.remove(jobid)
        expect_gone(group.parent, 60)
        # The startd of 23.9 leaves the remains of it to Docker.
        until(lambda: not docker.ask("ps", "--quiet"), 60, "the end of all containers that run")


@case
def container_is_not_run_outside(site):
    """With systemd as Docker's driver the job is held, and the reason says what to do. OnError lets it go on without a fence."""
    with docker.universe(site, driver="systemd"):
        jobid = docker.submit(site, "alice", "touch ran.$JOB_ID")
        reason, _, _ = site.held(jobid)
        expect_match(r'cannot be fenced: Docker\S* cgroup driver .*systemd.*native\.cgroupdriver=cgroupfs.*Only your administrator', reason, "why")
        expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")
        expect_no_containers()
        said = site.command(str(site.jobfence), "check", timeout=60).stdout
        expect_match(rf"(?m)^htcondor +DOCKER is {docker.CLIENT}: .*refused.*cgroup driver", said, "the check")
        site.configure("OnError=warn\n")
        began = time.time()
        jobid = docker.submit(site, "alice", "sleep 1000")
        pid = until(lambda: site.job_pids(jobid, "sleep"), 120, "its process")[0]
        expect_unfenced(pid)
        expect_match("WITHOUT a fence .*cgroup driver", site.said(began), "the log")
        site.remove(jobid)
        expect_no_containers()
    return reason


@case
def container_is_not_led_elsewhere(site):
    """Neither the name of the image nor an argument of the job says where the container is."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", 'echo "$@"; cat /proc/self/cgroup', arguments='"create --cgroup-parent=/elsewhere"')
        expect_equal(site.wait(jobid)["ExitCode"], 0, "ExitCode")
        expect_equal(site.output(jobid).splitlines()[0], "create --cgroup-parent=/elsewhere", "what the job was given")
        jobid = docker.submit(site, "alice", "", docker_image="--cgroup-parent=/elsewhere", executable="",
                              arguments=f'"{docker.IMAGE} sleep 1000"')
        reason, _, _ = site.held(jobid)
        expect_match(r"names another cgroup: .*/elsewhere", reason, "the reason")
        expect(not os.path.exists("/sys/fs/cgroup/elsewhere"), "the container was there")
        expect_no_containers()
    return reason


@case
def docker_is_checked(site):
    """'jobfence check' says whose client HTCondor runs."""
    def said():
        return site.command(str(site.jobfence), "check", timeout=60).stdout
    with docker.universe(site):
        expect_match(rf"(?m)^htcondor +DOCKER is {docker.CLIENT}$", said(), "the check")
    with docker.universe(site, client=docker.REAL):
        expect_match(rf"(?m)^htcondor +DOCKER is {docker.REAL}: containers .* are not fenced$", said(), "the check")
    with site.changed(DOCKER="/nowhere/docker"):
        expect("DOCKER" not in said(), "it speaks of a Docker that is not there")
