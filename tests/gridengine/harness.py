# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of Grid Engine are written with, beside what they share with those of other schedulers."""

import re

from contract.harness import MIB, expect_equal

# What the load sensor reports.
NAMES = ("jobfence_threads", "jobfence_mem", "jobfence_vmem", "jobfence_free", "jobfence_pressure")


def reported(site):
    """The values of the sensor, as qhost shows them; none before the first report."""
    text = site.command("qhost", "-F", ",".join(NAMES), "-h", site.node).stdout
    found = dict(re.findall(r"hl:(\w+)=([\d.]+[KMGT]?)", text))
    return found if set(found) == set(NAMES) else None


def ask(slots, mib):
    """Of qsub: so many slots on this host, and memory for all of them together."""
    return "-pe", "smp", str(slots), "-l", f"h_vmem={mib // slots}M"


def expect_limits(group, cpus, mib):
    expect_equal(group.cpu_limit(), float(cpus), f"CPU limit of {group.path}")
    expect_equal(group.memory_limit(), mib * MIB, f"memory limit of {group.path}")
