# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of the Docker universe: Docker makes the container, and it is inside the job's fence."""

import contextlib
import os
import signal
import time

from contract import kernel
from contract.harness import (
    ESCAPEE, MIB, WAIT, case, end_of, expect, expect_all_dead, expect_ended, expect_equal, expect_gone, expect_match, expect_unfenced,
    fenced,
)
from contract.kernel import Group
from contract.sites import until

from .. import docker
from ..harness import check, expect_limits, expect_none_outside

# From then on HTCondor itself has Docker fetch an image first, and a word that is none has no image.
PULLS_FROM = (24, 7)


def place_of(pid):
    """The cgroup of a process below its step, as a list of names."""
    return kernel.cgroups_of(pid)[""].removeprefix(Group.of(pid).path).strip("/").split("/")


@case
def container(site):
    """All processes of a container, and what is started in it later, are in the fence, and the job ends there."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", f"{ESCAPEE}; {WAIT}; exit 4")
        group = fenced(site, jobid)
        expect_limits(site, group, site.slot(jobid))
        until(lambda: (site.directory("alice") / f"escapee.{jobid}").exists(), 60, "the escapee")
        (found,) = docker.containers()
        pids = [pid for pid in kernel.all_pids() if found in kernel.read(f"/proc/{pid}/cgroup")]
        expect(len(pids) >= 3, f"the container's processes are {pids}")
        expect_none_outside(pids, group)
        names = place_of(pids[0])
        expect_equal(names[0], "docker", "the directory of the containers")
        own = group.directory("") / "/".join(names) / "memory.max"
        expect_equal(int(kernel.read(own)), site.slot(jobid)["Memory"] * MIB, "the limit that HTCondor has Docker set")
        docker.ask("exec", "--detach", found, "sleep", "4321")
        later = until(lambda: [pid for pid in kernel.all_pids() if kernel.command_line(pid).startswith("sleep 4321")], 30, "docker exec")
        expect_equal(Group.of(later[0]), group, "the group of a process of docker exec")
        who = kernel.identity(later[0])
        end_of(site, jobid)
        expect_ended([who], group)
        docker.expect_none()
    return f"{len(pids)} processes"


@case(release=True)  # removed, and container's end
def container_is_removed(site):
    """condor_rm ends all that is in it, and leaves nothing."""
    with docker.universe(site):
        jobid, group, who = docker.job_with_escapee(site, "trap '' TERM; while :; do sleep 1; done", want_graceful_removal="False")
        site.remove(jobid)
        expect_ended(who, group)
        docker.expect_none()


@case(release=True)  # starter_is_killed
def container_of_a_starter_that_is_killed(site):
    """All of the container ends with the starter."""
    with docker.universe(site):
        jobid, group, who = docker.job_with_escapee(site, "sleep 1000")
        os.kill(site.starter(group), signal.SIGKILL)
        expect_all_dead(who, 20)
        site.remove(jobid)
        expect_gone(group.parent, 60)
        # The startd of 23.9 leaves the remains of it to Docker.
        until(lambda: not docker.running(), 60, "the end of all containers that run")


@contextlib.contextmanager
def ssh(site, user, jobid):
    """condor_ssh_to_job on a terminal, which 'docker exec -ti' wants; the descriptor of who types."""
    ours, users = os.openpty()
    process = site.as_user(user, ["condor_ssh_to_job", "-auto-retry", jobid], terminal=users)
    os.close(users)
    try:
        yield ours
    except AssertionError as error:
        os.set_blocking(ours, False)
        with contextlib.suppress(OSError):
            raise AssertionError(f"{error}; condor_ssh_to_job says {os.read(ours, 4096)}") from None
        raise
    finally:
        process.terminate()
        os.close(ours)
        process.wait(60)


@case(release=True)  # container has what is started in it later
def ssh_to_container(site):
    """The shell of condor_ssh_to_job is one of the container's, by Docker: it is in the fence, and what it leaves ends with the job."""
    with docker.universe(site):
        jobid, group = docker.fenced_job(site, f"{WAIT}; exit 4")
        (container,) = docker.containers()

        def in_container(end):
            return next((pid for pid in kernel.all_pids() if kernel.command_line(pid).endswith(end)
                         and container in kernel.read(f"/proc/{pid}/cgroup")), None)
        with ssh(site, "alice", jobid) as typing:
            shell = until(lambda: in_container("sh -i"), 120, "the shell")
            os.write(typing, b"setsid sleep 4322 </dev/null &\n")
            left = until(lambda: in_container("sleep 4322"), 60, "its command")
            expect_none_outside([shell, left, *kernel.descendants(site.starter(group))], group)
            who = [kernel.identity(pid) for pid in (shell, left)]
            end_of(site, jobid)
            expect_ended(who, group)
        docker.expect_none()


@case(release=True)  # another start of Docker's daemon; unit tests find the parent that a container is given
def container_is_not_run_outside(site):
    """With systemd as Docker's driver the job is held, and the reason says what to do. OnError lets it go on without a fence."""
    with docker.universe(site, driver="systemd"):
        jobid = docker.submit(site, "alice", "touch ran.$JOB_ID")
        reason, _, _ = site.held(jobid)
        expect_match(r'cannot be fenced: Docker\S* cgroup driver .*systemd.*native\.cgroupdriver=cgroupfs.*Only your administrator', reason, "why")
        expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")
        docker.expect_none()
        said = check(site).stdout
        expect_match(rf"(?m)^htcondor +DOCKER is {docker.CLIENT}: .*refused.*cgroup driver", said, "the check")
        site.configure("OnError=warn\n")
        began = time.time()
        jobid = docker.submit(site, "alice", "sleep 1000")
        pid = until(lambda: site.job_pids(jobid, "sleep"), 120, "its process")[0]
        expect_unfenced(pid)
        expect_match("WITHOUT a fence .*cgroup driver", site.said(began), "the log")
        site.remove(jobid)
        docker.expect_none()
    return reason


@case(release=True)  # unit tests have such names and words
def container_is_not_led_elsewhere(site):
    """Neither an argument of the job, nor the name of the image, nor the site's own words for Docker say where the container is."""
    with docker.universe(site):
        jobid = docker.submit(site, "alice", 'echo "$@"; cat /proc/self/cgroup', arguments='"create --cgroup-parent=/elsewhere"')
        expect_equal(site.wait(jobid)["ExitCode"], 0, "ExitCode")
        expect_equal(site.output(jobid).splitlines()[0], "create --cgroup-parent=/elsewhere", "what the job was given")
        jobid = docker.submit(site, "alice", "", docker_image="--cgroup-parent=/elsewhere", executable="",
                              arguments=f'"{docker.IMAGE} sleep 1000"')
        reason, _, _ = site.held(jobid)
        pulls = site.release() >= PULLS_FROM
        expect_match("Cannot pull image --cgroup-parent" if pulls else r"names another cgroup: .*/elsewhere", reason, "the reason")
        if pulls:
            # After that, the starter of 25.14 waits for its shadow, gives the job up, and never ends. The fence is there as long as it is.
            for pid in kernel.all_pids():
                if kernel.command_line(pid).startswith("condor_starter"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        expect_nothing_elsewhere()
    with docker.universe(site, DOCKER_EXTRA_ARGUMENTS="--cgroup-parent=/elsewhere"):
        reason, _, _ = site.held(docker.submit(site, "alice", "sleep 1000"))
        expect_match(r"names another cgroup: .*/elsewhere", reason, "the reason")
        expect_nothing_elsewhere()
    return reason


def expect_nothing_elsewhere():
    expect(not os.path.exists("/sys/fs/cgroup/elsewhere"), "the container was there")
    docker.expect_none()


@case(release=True)  # checked
def docker_is_checked(site):
    """'jobfence check' says whose client HTCondor runs."""
    def said():
        return check(site).stdout
    with docker.universe(site):
        expect_match(rf"(?m)^htcondor +DOCKER is {docker.CLIENT}$", said(), "the check")
    with docker.universe(site, client=docker.REAL):
        expect_match(rf"(?m)^htcondor +DOCKER is {docker.REAL}: containers .* are not fenced$", said(), "the check")
    with site.changed(DOCKER="/nowhere/docker"):
        expect("DOCKER" not in said(), "it speaks of a Docker that is not there")
    return f"Docker {docker.ask('version', '--format', '{{.Server.Version}}')}"
