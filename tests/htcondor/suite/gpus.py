# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs that HTCondor has given to a slot, on a host that has none: HTCondor simulates them, and terminals stand for their devices."""

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from contract.harness import case, expect, expect_equal, expect_match
from contract.sites import until

from ..harness import WAIT, restarts, screens

# The UUIDs that condor_gpu_discovery simulates, and the numbers of their devices.
SIMULATED = {1: "GPU-a0223334-4445-5667-899a-abbccddeeff0", 2: "GPU-b1223334-4445-5667-899a-abbccddeeff0"}
DISCOVERY = "-simulate:2,2"
SHOW = "for gpu in 1 2 ctl; do (: </dev/nvidia$gpu) 2>/dev/null && echo can $gpu; done; echo $_CONDOR_AssignedGPUs is $CUDA_VISIBLE_DEVICES"
CONSTRAIN = 'ConstrainDevices=closed\nDeviceAllow="/dev/nvidiactl rw"\nGPUDevice=/dev/nvidia%d\n'


@contextlib.contextmanager
def gpus_of_the_host():
    """Devices of two GPUs, and what NVIDIA's driver would say of them."""
    driver = Path(tempfile.mkdtemp(prefix="driver-", dir="/srv"))
    driver.chmod(0o755)
    nodes = {"/dev/nvidiactl": 0, **{f"/dev/nvidia{number}": number for number in SIMULATED}}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, driver)
        stack.enter_context(screens(nodes))
        for number, uuid in SIMULATED.items():
            place = driver / f"nvidia/gpus/0000:4{number}:00.0"
            place.mkdir(parents=True)
            (place / "information").write_text(f"Model: \t\t none\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n")
        subprocess.run(["mount", "--bind", driver, "/proc/driver"], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "/proc/driver"], check=True)


def show(site, gpus):
    """A job with so many GPUs, which says what it sees of them, and goes on."""
    asked = {"request_gpus": gpus} if gpus else {}
    return site.submit("alice", f"{SHOW}; echo said; {WAIT}", **asked)


def seen(site, jobid):
    """Which devices it can open, and its variables."""
    lines = until(lambda: "said" in site.output(jobid) and site.output(jobid).splitlines(), 60, f"what job {jobid} sees")
    return {line.split()[1] for line in lines if line.startswith("can ")}, lines[-2]


@case
@restarts
def gpus(site):
    """With ConstrainDevices a slot's jobs have the GPUs that HTCondor has named, and no others, whether HTCondor hides others or not."""
    names = {uuid[:12]: str(number) for number, uuid in SIMULATED.items()}
    site.configure(CONSTRAIN)
    with gpus_of_the_host(), site.changed(restart=True, GPU_DISCOVERY_EXTRA=DISCOVERY):
        for hides in "True", "False":
            with site.changed(STARTER_HIDE_GPU_DEVICES=hides):
                jobs = [show(site, count) for count in (1, 1, 0)]
                *with_gpus, without = [seen(site, jobid) for jobid in jobs]
                for devices, variables in with_gpus:
                    name, _, visible = variables.split()
                    # The whole UUID in later releases.
                    expect(visible.startswith(name), f"CUDA_VISIBLE_DEVICES is {visible}, and the slot has {name}")
                    expect_equal(devices, {names[name], "ctl"}, f"what a job with {name} can open, where HTCondor hides GPUs: {hides}")
                expect_equal(set.union(*(devices for devices, _ in with_gpus)), {"1", "2", "ctl"}, "what both have")
                expect_equal(without[0], {"ctl"}, "what a job without GPUs can open")
                site.remove(*jobs)
                until(site.idle_again, 60, "their end")
    return f"{with_gpus}"


@case(release=True)  # a restart of HTCondor; unit tests have the refusal
@restarts
def gpus_without_names(site):
    """A GPU of which nobody says which device it is: with ConstrainDevices its job is held, and others run."""
    site.configure(CONSTRAIN)
    with gpus_of_the_host(), site.changed(restart=True, GPU_DISCOVERY_EXTRA=f"-by-index {DISCOVERY}"):
        jobid, other = site.submit("alice", "true", request_gpus=1), show(site, 0)
        reason = site.held_or_ended(jobid)
        expect_match("HTCondor calls a GPU of the slot CUDA0", reason, "the reason")
        expect_equal(seen(site, other)[0], {"ctl"}, "what a job without GPUs can open")
    return reason
