# SPDX-License-Identifier: GPL-2.0-or-later
"""What two runs of tests on one machine, in two clones, may not share: one place hands it out. In Rust: tests/common/leases.rs.

A lease is a locked file, PLACE/KIND.NUMBER. Its lock ends with the process that has it, however that ends, and with no other:
a program that it starts does not inherit the descriptor. So nothing is to be tidied up, and the files stay.
"""

import contextlib
import fcntl
import os

PLACE = "/run/jobfence-tests"
# Numeric users that nobody has: so many from FIRST_UID + UIDS * number on.
FIRST_UID, UIDS, RANGES = 62_000, 10, 300
# At most so many runs of tests at once.
CHECKS = 16
# The group of `tests/check.py` of which a process is, in its environment.
MARK = "JOBFENCE_CHECK_GROUP"


class Lease:
    """The first free number of a kind below a count; given back by release, at the end of a with, or when the process ends."""

    file = None

    def __init__(self, kind, count):
        os.makedirs(PLACE, mode=0o700, exist_ok=True)
        for number in range(count):
            file = os.open(f"{PLACE}/{kind}.{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            self.file, self.number = file, number
            return
        raise RuntimeError(f"all {count} of {kind} are taken; 'lsof {PLACE}' says by whom")

    def __del__(self):
        self.release()

    def release(self):
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def __enter__(self):
        return self.number

    def __exit__(self, *_):
        self.release()


def lease(kind, count):
    """Keep what this returns for as long as its 'number' is used: without a reference to it, it is given back."""
    return Lease(kind, count)


def company():
    """While what it returns is kept, a `make check` on this machine knows that what comes may be another's than its tests'."""
    return lease("check", CHECKS) if os.geteuid() == 0 and MARK not in os.environ else None


@contextlib.contextmanager
def alone(kind):
    """Waits until nobody has this kind, and has it until the end of the with."""
    os.makedirs(PLACE, mode=0o700, exist_ok=True)
    file = os.open(f"{PLACE}/{kind}.0", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def names(names):
    """A lease of the first free one of these names, such as users of /etc/passwd: its 'name' is the name."""
    taken = []
    for name in names:
        try:
            found = Lease(f"name.{name}", 1)
        except RuntimeError:
            taken.append(name)
            continue
        found.name = name
        return found
    raise RuntimeError(f"all of {', '.join(taken)} are taken; 'lsof {PLACE}' says by whom")


def uids():
    """A lease of ten numeric users: its 'first' is the least."""
    found = Lease("uids", RANGES)
    found.first = FIRST_UID + UIDS * found.number
    return found
