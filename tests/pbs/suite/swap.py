# SPDX-License-Identifier: GPL-2.0-or-later
"""vmem is memory and swap together."""

from slurm.harness import MIB, case, expect, expect_equal

from ..harness import fenced
from ..sites import granted, kib_of


@case
def memory_and_swap(site):
    """A job may swap as much as the server has granted it of vmem above mem; vmem alone is memory."""
    with site.granting(["vmem"], vmem="8gb"):
        for asked in "mem=100mb:vmem=150mb", "vmem=60mb":
            jobid = site.submit("alice", "sleep 1000", f"-lselect=1:ncpus=1:{asked}")
            group = fenced(site, jobid).parent
            job = site.job(jobid)
            expect("vmem=" in job["exec_vnode"], f"PBS has granted no vmem: {job['exec_vnode']}")
            together = kib_of(job["exec_vnode"].rsplit("vmem=", 1)[1].split(":")[0].rstrip(")")) * 1024
            memory = granted(job)[site.node][1] * 1024 or together
            expect_equal(group.memory_limit(), memory, f"memory limit for {asked}")
            if group.swap_is_accounted():
                expect_equal(group.swap_limit(), together - memory, f"swap limit for {asked}")
            site.qdel(jobid)
            site.wait(jobid)
    return f"up to {together // MIB} MiB"
