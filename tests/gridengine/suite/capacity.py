# SPDX-License-Identifier: GPL-2.0-or-later
"""What the load sensor says of the host, qmaster knows."""

import json
import re
import signal

from slurm.harness import MIB, case, expect, expect_equal
from slurm.sites import until

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
