# SPDX-License-Identifier: GPL-2.0-or-later
"""Slots of unusual amounts, and the limits that HTCondor does not have."""

import contextlib
import os
import re
import stat
import subprocess
import tempfile

from contract import kernel
from contract.harness import MIB, WAIT, Skip, case, expect, expect_equal, fenced, let_go, running
from contract.sites import until

from ..harness import expect_limits, restarts


def own_weights(group):
    """cpu.weight of the directories that HTCondor has made in the fence."""
    found = (group.directory("") / "htcondor").iterdir()
    return [kernel.read(path / "cpu.weight").strip() for path in found if path.is_dir()]


@case(release=True)  # a restart of HTCondor; unit tests have such amounts
@restarts
def unusual_cpus(site):
    """A slot with a part of a CPU, with one and a half, or with 150, has just so much CPU time. HTCondor's own weights do not follow."""
    # 15000 is more than the kernel takes as a weight, and HTCondor counts whole CPUs.
    amounts = {0.5: "100", 1.5: "100", 150: "100"}
    slots = {"NUM_CPUS": 200}
    for number, cpus in enumerate(amounts, 1):
        slots |= {f"NUM_SLOTS_TYPE_{number}": 1, f"SLOT_TYPE_{number}": f"minimal, cpus={cpus}, memory=100", f"SLOT_TYPE_{number}_PARTITIONABLE": False}
    with site.changed(restart=True, **slots):
        jobs = {cpus: site.submit("alice", "sleep 1000", requirements=f"TARGET.Cpus == {cpus}", request_cpus=cpus) for cpus in amounts}
        for cpus, jobid in jobs.items():
            group = fenced(site, jobid)
            slot = site.slot(jobid)
            expect_equal(slot["Cpus"], cpus, "the slot's CPUs")
            expect_limits(site, group, slot)
            expect_equal(own_weights(group), [amounts[cpus]], f"HTCondor's own weights for {cpus} CPUs")
        site.remove(*jobs.values())


@contextlib.contextmanager
def a_disk():
    """A loop device that users can write to, and its number."""
    with tempfile.NamedTemporaryFile(suffix=".disk", dir="/var/tmp") as file:
        file.truncate(16 * MIB)
        made = subprocess.run(["losetup", "--find", "--show", file.name], capture_output=True, text=True)
        if made.returncode != 0:
            raise Skip(f"no loop device: {made.stderr.strip()}")
        device = made.stdout.strip()
        # It gives the device the mode of its rules, and could do so after us.
        subprocess.run(["udevadm", "settle"], check=True)
        mode = stat.S_IMODE(os.stat(device).st_mode)
        try:
            os.chmod(device, 0o666)
            number = os.stat(device).st_rdev
            yield device, f"{os.major(number)}:{os.minor(number)}"
        finally:
            os.chmod(device, mode)
            subprocess.run(["losetup", "--detach", device], check=True)


@case(release=True)  # the other schedulers' cases have the same keys, in the same fence
def io_and_memory_high(site):
    """A job writes no faster than IOMax, and is kept below memory.high by reclaim: HTCondor has neither."""
    with a_disk() as (device, number):
        site.configure(f"IOMax={device} wbps=1M\nMemoryHighPercent=50\n")
        write = f"dd if=/dev/zero of={device} bs=256K count=16 oflag=direct"
        # Zeros of a hole take page cache, and no disk.
        read = "truncate -s 180M hole.$JOB_ID && cat hole.$JOB_ID >/dev/null && rm hole.$JOB_ID && echo read"
        jobid, group = running(site, "alice", f"{WAIT}; {write}; {read}; {WAIT.replace('go', 'end')}", mib=200)
        place = group.directory("") / "htcondor"
        expect_equal(kernel.read(place / "memory.high").strip(), str(100 * MIB), "memory.high of the job's part")
        expect_equal((group.io_max() or group.parent.io_max()).get(number), {"wbps": MIB}, "the rate of I/O")
        let_go(site, jobid)
        until(lambda: "read" in site.output(jobid), 120, "the end of its work")
        events = {name: int(count) for name, count in kernel.keyed(kernel.read(place / "memory.events")).items()}
        (site.directory("alice") / f"end.{jobid}").touch()
        expect_equal(site.wait(jobid)["ExitCode"], 0, "ExitCode")
    taken = float(re.search(r"copied, ([\d.e+-]+) s", site.output(jobid, "err")).group(1))
    expect(taken > 2.5, f"4 MiB took {taken} s")
    expect(events["high"] > 0, f"it never met memory.high: {events}")
    expect_equal(events["oom_kill"], 0, "kills for memory")
    return f"4 MiB took {taken} s; memory.high met {events['high']} times"
