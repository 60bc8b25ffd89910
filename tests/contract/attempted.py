# SPDX-License-Identifier: GPL-2.0-or-later
"""What has come of the attempts of attempts.py, for the hostile cases of each scheduler."""

import re
from pathlib import Path

from . import kernel
from .harness import expect

ATTEMPTS = Path(__file__).resolve().parent / "attempts.py"
# What is written to limit or to stop somebody, whatever the version.
SET = (
    "cgroup.freeze", "cgroup.max.depth", "cgroup.max.descendants", "cgroup.subtree_control", "cgroup.type", "cpu.cfs_period_us",
    "cpu.cfs_quota_us", "cpu.idle", "cpu.max", "cpu.max.burst", "cpu.shares", "cpu.weight", "cpuset.cpus", "devices.list",
    "freezer.state", "io.max", "memory.high", "memory.limit_in_bytes", "memory.max", "memory.memsw.limit_in_bytes",
    "memory.oom.group", "memory.swap.max", "pids.max",
)
END = "end of the attempts"


def state_of(group):
    """All that is set in the directories of step, job and user, and whose these are."""
    found = {}
    for one in (group, group.parent, group.parent.user):
        for directory in one.directories():
            stat = directory.stat()
            found[str(directory)] = stat.st_uid, stat.st_gid, oct(stat.st_mode)
            for name in SET:
                if (directory / name).exists():
                    found[str(directory / name)] = kernel.read(directory / name)
    return found


def expect_state(group, before):
    after = state_of(group)
    changed = {name: (before.get(name), after.get(name)) for name in {*before, *after} if before.get(name) != after.get(name)}
    expect(not changed, f"what the kernel's files say has changed: {changed}")


def expect_refused(said, *wanted):
    """None of the attempts has succeeded, and among them were some like these. How many there were."""
    lines = re.findall(r"^(.+): (SUCCEEDED|refused|E[A-Z0-9]+)$", said, re.M)
    through = [name for name, word in lines if word == "SUCCEEDED"]
    expect(not through, f"{len(through)} attempts succeeded: {', '.join(through[:40])}")
    expect(END in said, f"the attempts have not come to their end:\n{said[-2000:]}")
    for pattern in wanted:
        expect(any(re.search(pattern, name) for name, _ in lines), f"no attempt was like {pattern!r}")
    return len(lines)
