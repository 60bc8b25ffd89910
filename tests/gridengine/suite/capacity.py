# SPDX-License-Identifier: GPL-2.0-or-later
"""What the load sensor says of the host, qmaster knows; what the JSV notes of a job, the host knows."""

import json
import re
import signal

from slurm.harness import MIB, case, expect, expect_equal, expect_in
from slurm.sites import until

from ..harness import fenced

JSV = "/usr/share/jobfence/gridengine/jsv"
SENSOR = "/usr/share/jobfence/gridengine/load-sensor"
NAMES = ("jobfence_threads", "jobfence_mem", "jobfence_vmem", "jobfence_free")


def reported(site):
    """The values of the sensor, as qhost shows them; none before the first report."""
    text = site.command("qhost", "-F", ",".join(NAMES), "-h", site.node).stdout
    found = dict(re.findall(r"hl:(\w+)=([\d.]+[KMGT]?)", text))
    return found if set(found) == set(NAMES) else None


def size(text):
    """What qhost makes of bytes, with three decimals."""
    return float(text.rstrip("KMGT")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1], 1)


@case
def load_sensor(site):
    """qhost shows what 'jobfence host' says, also when execd was started again."""
    with site.changed(["-sconf", "global"], ["-Mconf"], load_sensor=SENSOR):
        found = until(lambda: reported(site), 60, "the first report")
        host = json.loads(site.command(str(site.jobfence), "host", "--json").stdout)
        expect_equal(float(found["jobfence_threads"]), float(host["ncpus"]), "threads")
        for name, bytes in ("jobfence_mem", host["mem_bytes"]), ("jobfence_vmem", host["vmem_bytes"]):
            expect(abs(size(found[name]) - bytes) <= 257 * MIB, f"{name}: {found[name]}, and 'jobfence host' says {bytes}")
        expect(size(found["jobfence_free"]) <= size(found["jobfence_mem"]), f"more is free than there is: {found}")
        site.stop_execd(signal.SIGTERM)
        site.start_execd()
        until(lambda: reported(site), 60, "a report to the new execd")
    return ", ".join(f"{name} {value}" for name, value in found.items())


@case
def verified(site):
    """The JSV of the cluster notes other requests of memory, whatever the user has put there, and refuses a forgotten unit."""
    site.configure("SlotMemory=mem_free:job,h_vmem\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        forged = "-v", "JOBFENCE_REQUESTED=mem_free=1T"
        jobid = site.submit("alice", "sleep 1000", "-pe", "smp", "2", "-l", "mem_free=90M,h_vmem=100M", *forged)
        expect_equal(fenced(site, jobid).parent.memory_limit(), 90 * MIB, "the memory of the job")
        site.qdel(jobid)
        site.wait(jobid)
        done = site.as_user("alice", ["qsub", "-l", "h_vmem=200"], stdin="true\n")
        expect(done.returncode != 0, "a job with 200 bytes was taken")
        expect_in("jobfence: h_vmem=200 is 200 bytes", done.stdout + done.stderr, "what qsub says")


@case
def checked(site):
    """'jobfence check' says what Grid Engine starts, and what is missing of the rest."""
    def verdict():
        done = site.command(str(site.jobfence), "check")
        return done.returncode, done.stdout
    status, said = verdict()
    expect_equal(status, 0, f"the status of a good check ({said})")
    expect_in("gridengine     load_sensor is none: qmaster does not learn", said, "what is missing")
    with site.changed(["-sconf", "global"], ["-Mconf"], load_sensor=SENSOR, jsv_url=f"script:{JSV}"):
        status, said = verdict()
        expect_in("complexes are missing, so their values are lost: jobfence_pressure\n", said, "what is missing")
        site.configure("SlotMemory=mem_free\n")
        expect_equal(verdict()[0], 0, "the status with the JSV")
    status, said = verdict()
    expect(status == 1 and "NO job would be fenced here as configured: jsv_url of Grid Engine is none" in said, said)
    site.configure()
    with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd="none"):
        status, said = verdict()
    expect(status == 1 and "NO job would be fenced here: shepherd_cmd of Grid Engine is none, and not jobfence" in said, said)

    # execd reads it again with its next report.
    def is_fenced():
        jobid = site.submit("alice", "cat /proc/self/cgroup")
        site.wait(jobid)
        return f"/job_{jobid}/" in site.output(jobid)
    until(is_fenced, 60, "a job with a fence")
