# SPDX-License-Identifier: GPL-2.0-or-later
"""MemoryPool: a job that outgrows its memory goes on, and what it frees comes back."""

import json

from contract import kernel
from contract.harness import PYTHON, case, expect, expect_equal, expect_in, fenced
from contract.sites import until
from ..harness import expect_not_drained
from ..sites import InstalledSite
from .idle import shown
from .stored import held

MIB = 1 << 20

# Has as many MiB as the file says.
PROGRAM = f"""
cat >lent.$SLURM_JOB_ID.py <<'EOF'
import mmap, os, time
kept = []
while True:
    wanted = int(open("wanted").read() or 0) if os.path.exists("wanted") else 0
    while len(kept) > wanted:
        kept.pop().close()
    while len(kept) < wanted:
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(b"x" * (1 << 20))
    with open("has.new", "w") as has:
        has.write(str(len(kept)))
    os.rename("has.new", "has")
    if wanted == 1:
        break
    time.sleep(0.02)
EOF
exec {PYTHON} -S lent.$SLURM_JOB_ID.py
"""


@case(layout=False, patient=True)
def outgrows_its_memory(site):
    """A job of 200 MiB has 280, and grows no faster than it is lent."""
    user = site.users[0]
    place = site.directory(user)
    for name in ("wanted", "has"):
        (place / name).unlink(missing_ok=True)
    with held(site, MemoryPool="512M", MemoryPoolReserve="1M", ElasticRAMPercent="200") as (_, said):
        jobid = site.submit(user, PROGRAM, "-n1", "--mem=200")
        group = fenced(site, jobid)
        if not group.own:
            site.scancel(jobid)
            return "nothing is lent in Slurm's own directories"

        def has(mib):
            (place / "wanted.new").write_text(str(mib))
            (place / "wanted.new").rename(place / "wanted")
            until(lambda: (place / "has").exists() and kernel.read(place / "has") == str(mib), 300, f"{mib} MiB")

        has(100)
        for mib in range(115, 281, 15):
            until(lambda mib=mib: group.parent.memory_limit() >= (mib + 12) * MIB, 60, f"room for {mib} MiB")
            has(mib)
        limit = group.parent.memory_limit()
        expect(280 * MIB < limit <= 400 * MIB, f"the job's limit is {limit / MIB}")
        until(lambda: group.memory_limit() == group.parent.memory_limit(), 60, "the step's limit")
        expect_in("beyond its limit of 200.0 MiB (MemoryPool)", shown(site, "show", str(jobid)), "show")
        fences = json.loads(shown(site, "ls", "--json"))["fences"]
        lent = [fence["memory_lent_bytes"] for fence in fences if fence["job"] == str(jobid)]
        expect(lent and all(lent), f"memory_lent_bytes: {lent}")
        has(20)
        until(lambda: group.parent.memory_limit() == group.memory_limit() == 200 * MIB, 120, "what comes back")
        expect_equal(group.oom_kills(), 0, "kills")
        has(1)
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        if not isinstance(site, InstalledSite):
            expect_in(f"job {jobid} of {user} is lent ", kernel.read(said), "hold's words")
    expect_not_drained(site)
    return "lent piece by piece"
