# SPDX-License-Identifier: GPL-2.0-or-later
"""Sessions that PAM opens for users, as sshd has it do."""

import contextlib
import select
import subprocess
from pathlib import Path

from . import kernel, sites
from .harness import ended_after
from .sites import write_atomically

# What "su -l" asks. Nothing else on the machine does during a case.
SERVICE = Path("/etc/pam.d/su-l")


def login(user, command):
    """As sshd would: PAM's account and session stacks, then the user's command."""
    return subprocess.Popen(["su", "-l", user, "-c", command], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def service_says(text):
    before = SERVICE.read_text()
    try:
        write_atomically(SERVICE, text)
        yield
    finally:
        write_atomically(SERVICE, before)


@contextlib.contextmanager
def logged_in(user, command):
    """A login whose session has begun: its processes."""
    process = login(user, f"{command} & {command} & {command} & echo begun; wait")
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(process.communicate, timeout=120)
        cleanup.callback(process.kill)
        ready, _, _ = select.select([process.stdout], [], [], 30 * sites.PATIENCE)
        said = process.stdout.readline() if ready else ""
        if said != "begun\n":
            process.kill()
            raise AssertionError(f"the session says {said!r} ({process.communicate(timeout=120)[1].strip()})")
        session = [pid for pid in kernel.descendants(process.pid)
                   if kernel.command_line(pid).startswith(("-bash", "bash"))]
        cleanup.enter_context(ended_after(*filter(None, map(kernel.identity, session))))
        yield session
