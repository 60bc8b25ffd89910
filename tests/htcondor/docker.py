# SPDX-License-Identifier: GPL-2.0-or-later
"""A Docker in the virtual machine, without a network: its daemon, and an image of a busybox."""

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from contract import kernel
from contract.sites import until

from .harness import ESCAPEE, fenced

IMAGE = "jobfence-case"
UNIT = "jobfence-case-docker.service"
# What the starter runs.
CLIENT = Path("/usr/libexec/jobfence/docker")
REAL = Path("/usr/bin/docker")
# The scripts of the cases are bash's, by name.
BASH = '#!/bin/busybox sh\nexec /bin/busybox sh "$@"\n'
RUNNING = {"options": None}


def ask(*words, stdin=None, timeout=600):
    """What the real client prints, asked by root."""
    done = subprocess.run([REAL, *words], stdin=stdin or subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"docker {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def containers():
    """All that the daemon knows, whether they run or not."""
    return ask("ps", "--all", "--quiet").split()


def running():
    return ask("ps", "--quiet").split()


def expect_none():
    until(lambda: not containers(), 60, "the end of all containers")


def answers():
    return subprocess.run([REAL, "info"], stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False).returncode == 0


def start(driver, live_restore):
    """Has the daemon run with this cgroup driver, and stop its containers when it ends, or not. It goes on running when the case is over."""
    options = ["--exec-opt", f"native.cgroupdriver={driver}", *["--live-restore"] * live_restore]
    if RUNNING["options"] != options:
        subprocess.run(["systemctl", "stop", UNIT], capture_output=True, check=False)
        subprocess.run(["systemctl", "reset-failed", UNIT], capture_output=True, check=False)
        # The starter runs the client as HTCondor's user.
        words = ["dockerd", "--group", "condor", "--iptables=false", "--ip6tables=false", "--bridge=none", *options]
        # It gives its containerd 15 seconds, which a slow machine needs for reading the program for the first time.
        again = "--property=Restart=on-failure", "--property=RestartSec=1", "--property=StartLimitIntervalSec=0"
        # As Debian's own unit: systemd ends the daemon, and leaves to that what becomes of the containers.
        own = "--property=Delegate=yes", "--property=KillMode=process"
        subprocess.run(["systemd-run", "--quiet", f"--unit={UNIT}", *own, *again, *words], check=True)
        RUNNING["options"] = None
        until(answers, 120, "Docker's daemon")
        RUNNING["options"] = options
    if not ask("images", "--quiet", IMAGE):
        make_image()


def restart():
    """Ends the daemon, and starts it again."""
    subprocess.run(["systemctl", "restart", UNIT], check=True)
    until(answers, 120, "Docker's daemon")


def make_image():
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        (tree / "bin").mkdir(parents=True)
        shutil.copy("/bin/busybox", tree / "bin")
        for name in subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
            with contextlib.suppress(FileExistsError):
                (tree / "bin" / name).symlink_to("busybox")
        (tree / "bin/bash").unlink(missing_ok=True)
        (tree / "bin/bash").write_text(BASH)
        (tree / "bin/bash").chmod(0o755)
        archive = Path(place) / "image.tar"
        subprocess.run(["tar", "-C", tree, "-cf", archive, "."], check=True)
        with open(archive, "rb") as tar:
            ask("import", "--change", "ENV PATH=/bin", "-", IMAGE, stdin=tar)


@contextlib.contextmanager
def universe(site, driver="cgroupfs", client=CLIENT, live_restore=False, **more):
    """For the time being the startd takes jobs of the Docker universe, and runs this client for them."""
    start(driver, live_restore)
    # Of an earlier case. One that goes by itself meanwhile is no mistake.
    for one in containers():
        with contextlib.suppress(AssertionError):
            ask("rm", "--force", one)
    keys = {"DOCKER": client, "DOCKER_TRUST_LOCAL_IMAGES": True, "MOUNT_UNDER_SCRATCH": "", **more}
    with site.changed(**keys):
        until(lambda: any(ad.get("HasDocker") for ad in site.ads("condor_status", "-attributes", "HasDocker")), 120, "HasDocker of a slot")
        yield


def submit(site, user, script, **lines):
    """As the site's submit, in a container."""
    said = {"universe": "docker", "docker_image": IMAGE, "docker_network_type": "none", "transfer_executable": False}
    return site.submit(user, script, **{**said, **lines})


def fenced_job(site, script, **lines):
    """A job in a container, once that is in its fence: the job's number and the fence."""
    jobid = submit(site, "alice", script, **lines)
    return jobid, fenced(site, jobid, 120)


def job_with_escapee(site, script, **lines):
    """The same of one that has a process with a session of its own, and what the kernel says of its processes."""
    jobid, group = fenced_job(site, f"{ESCAPEE}; {script}", **lines)
    until(lambda: (site.directory("alice") / f"escapee.{jobid}").exists(), 60, "the escapee")
    return jobid, group, [who for who in map(kernel.identity, site.job_pids(jobid)) if who]
