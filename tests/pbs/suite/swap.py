# SPDX-License-Identifier: GPL-2.0-or-later
"""vmem is memory and swap together, and address space only where the site says so; hpmem is huge pages."""

import re

from contract import kernel
from contract.harness import MIB, Skip, case, expect, expect_equal, fenced, running
from contract.hugetlb import handed_down, has_hugetlb, sizes_of_this_host

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
            site.end(jobid)
    return f"up to {together // MIB} MiB"


@case(layout=False)
def address_space_is_pvmems(site):
    """MoM limits each process to vmem; with AddressSpace=pvmem only pvmem does that, and the fence limits vmem all the same."""
    # A container can lack CAP_SYS_RESOURCE.
    if not int(re.search(r"CapEff:\t(\w+)", kernel.read("/proc/self/status"))[1], 16) >> 24 & 1:
        raise Skip("root may raise no limit of a process here")
    said = []
    with site.granting(["vmem"], vmem="8gb"):
        for setting, asked, limit in (
            ("mom", (), "614400"), ("pvmem", (), "unlimited"), ("pvmem", ("-lpvmem=400mb",), "409600"),
        ):
            site.configure_hook(**site.hook_settings(), AddressSpace=setting)
            jobid = site.submit("alice", "ulimit -v", "-lselect=1:ncpus=1:mem=100mb:vmem=600mb", *asked)
            site.wait(jobid)
            said.append(site.output(jobid).strip())
            expect_equal(said[-1], limit, f"the address space in KiB with AddressSpace={setting} and {asked}")
        site.configure_hook(**site.hook_settings())
    return ", ".join(said)


@case
def huge_pages_are_granted(site):
    """With ConstrainHugePages=closed a job has the huge pages that the server has granted it, and no others."""
    if not has_hugetlb():
        raise Skip("no hugetlb controller")
    none = sizes_of_this_host()
    if "2MB" not in none:
        raise Skip("no huge pages of 2 MiB")
    with site.granting(["hpmem"], hpmem="1gb"), handed_down(site):
        site.configure(ConstrainHugePages="closed")
        for asked, bytes_of_2m in (":hpmem=8mb", 8 * MIB), ("", 0):
            jobid, group = running(site, "alice", "sleep 1000", f"-lselect=1:ncpus=1:mem=100mb{asked}")
            expect_equal(group.parent.huge_pages(), {**none, "2MB": bytes_of_2m}, f"huge pages for {asked!r}")
            site.end(jobid)
        site.configure()
