# SPDX-License-Identifier: GPL-2.0-or-later
"""What the cases of HTCondor are written with, beside what they share with those of other schedulers."""

import contextlib
import os
import stat

from contract import kernel
from contract.harness import Skip, expect
from contract.kernel import Group
from contract.sites import until

# Of a quota, in us.
PERIOD = 100_000


def restarts(function):
    """Declares that a case begins with a restart of HTCondor, which takes half a minute. Those cases come last, one after the other: what one
    leaves to be read, the next one's restart reads, and after the last one nothing has to."""
    function.restarts = True
    return function


def expect_limits(site, group, slot):
    """As the startd says of the job's slot."""
    site.expect_limits(group, slot["Cpus"], slot["Memory"])


def check(site):
    """What 'jobfence check' has found. It does not wait for long for HTCondor's commands, and then says so."""
    def asked():
        done = site.command(str(site.jobfence), "check", timeout=60)
        return None if "it does not answer" in done.stdout + done.stderr else done
    return until(asked, 120, "a check in which HTCondor answers")


def inode(group):
    """By which fences of one name differ; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        place = group.directory("")
        return place and place.stat().st_ino


def expect_none_outside(pids, group=None):
    """Each of these processes that lives is in a fence, or in this one. One that is ending is in none: so it is looked at again."""
    def is_outside(pid):
        return Group.of(pid) != group if group else not Group.of(pid)
    elsewhere = {pid: found for pid in pids if (found := Group.of(pid)) not in (None, group)} if group else {}
    expect(not elsewhere, f"{elsewhere} are in another fence than {group}")
    suspects = {pid: who for pid in pids if is_outside(pid) and (who := kernel.identity(pid))}

    def outside():
        return [pid for pid, who in suspects.items() if kernel.identity(pid) == who and is_outside(pid)]
    try:
        until(lambda: not outside(), 20, "their end")
    except AssertionError:
        found = [(kernel.command_line(pid), kernel.cgroups_of(pid)) for pid in outside()]
        raise AssertionError(f"{found} run outside") from None


def expect_quota(group, cpus, periods=30):
    """Its processes want more CPU time than these CPUs have, and get no more, by the kernel's own count of periods."""
    def counted():
        return {name: int(text) for name, text in kernel.keyed(kernel.read(group.directory("") / "cpu.stat")).items()}
    until(lambda: counted()["nr_throttled"] > 0, 60, f"that {group.path} is kept at its quota")
    before = counted()
    after = until(lambda: (now := counted())["nr_throttled"] >= before["nr_throttled"] + periods and now, 60, f"{periods} periods at the quota")
    limit = (after["nr_periods"] - before["nr_periods"] + 2) * cpus * PERIOD
    used = after["usage_usec"] - before["usage_usec"]
    expect(used <= limit, f"{used} us of CPU time were used in {after['nr_periods'] - before['nr_periods']} periods")
    return f"{used / limit * cpus:.2f} CPUs"


# What can be read of a terminal on a screen: the device of one that is there can be opened by whoever may.
SCREENS = 7


@contextlib.contextmanager
def screens(numbers):
    """Devices that any user may open, by their path and the number of a screen."""
    made = []
    try:
        for node, number in numbers.items():
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(SCREENS, number))
            made.append(node)
            os.chmod(node, 0o666)
            try:
                os.close(os.open(node, os.O_RDONLY))
            except OSError:
                raise Skip(f"this machine has no terminal {number} on a screen") from None
        yield
    finally:
        for node in made:
            os.unlink(node)
