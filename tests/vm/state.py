# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest that has booted and waits for its payload, kept in the cache. A run goes on from there, in two seconds instead of a boot.

The scheduler is not started yet, so one state serves all cells that boot alike, and the clock can be set before anything reads it.
"""

import contextlib
import hashlib
import json
import os
import select
import socket
import subprocess
import time
import zlib

import cache
import image
import ticks

# As tests/vm/guest/opt/guest/main says it.
WAITS = b"waits for its payload"
# The drives of a guest cannot grow while it runs.
PAYLOAD_BYTES = 512 << 20
# The guest's kernel has been told how fast the processor's counter counts. This is how wrong its clock may be.
CLOCK_OFF = 0.002


class Failed(Exception):
    """There is no state. The guest can be booted all the same."""


class Monitor:
    """Commands to qemu, by its own protocol."""

    def __init__(self, process, path, until):
        self.process, self.until = process, until
        self.connection = socket.socket(socket.AF_UNIX)
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                self.connection.connect(str(path))
                break
            if process.poll() is not None or time.monotonic() > until:
                raise Failed("qemu has not started")
            time.sleep(0.05)
        self.connection.settimeout(max(1, until - time.monotonic()))
        self.lines = self.connection.makefile("r")
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        try:
            self.connection.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
            for line in self.lines:
                said = json.loads(line)
                if "error" in said:
                    raise Failed(f"qemu's answer to {command}: {said['error']}")
                if "return" in said:
                    return said["return"]
        except OSError as error:
            raise Failed(f"no answer of qemu to {command}: {error}") from None
        raise Failed("qemu has ended")

    def save(self, file):
        self.ask("migrate", uri=f"file:{file}")
        while (status := self.ask("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > self.until:
                raise Failed(f"saving it: {status}")
            time.sleep(0.1)


def wait_for_it(process, until):
    said = b""
    while WAITS not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0, until - time.monotonic()))
        data = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not data:
            raise Failed("the guest has not booted")
        said += data


def make(new, work, argv, seconds):
    """Boots the guest, whose changes go to files in `new`, and saves its memory there."""
    until = time.monotonic() + seconds
    argv = [*argv, "-S", "-qmp", f"unix:{work / 'monitor'},server=on,wait=off"]
    with image.child(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(work)}) as process:
        monitor = Monitor(process, work / "monitor", until)
        for drive in "root", "swap":
            monitor.ask("blockdev-snapshot-sync", device=drive, format="qcow2", **{"snapshot-file": str(new / drive)})
        monitor.ask("cont")
        wait_for_it(process, until)
        monitor.save(new / "memory")
        monitor.ask("quit")
        process.wait()


def key(files, emulator, argv):
    """What a state depends on: each byte of the image and of the emulator, where the image is, and what qemu is told."""
    made_of = [(one / cache.MANIFEST).read_text() for one in (files, emulator)]
    return hashlib.sha256(json.dumps([str(files), *made_of, argv]).encode()).hexdigest()[:32]


def fits(directory):
    now = ticks.khz()
    return now and abs(int((directory / "khz").read_text()) - now) <= now * CLOCK_OFF


@contextlib.contextmanager
def held(cell, key, build):
    """The directory of a state (memory, root, swap), while the block runs. `build(new)` makes it."""
    name = f"booted-{cell.image}-{zlib.crc32(cell.cmdline.encode()):08x}"
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(cache.held(name, key, build))
        if not fits(directory):
            cache.distrust(directory, without_proof=True)
            stack.close()
            directory = stack.enter_context(cache.held(name, key, build))
        yield directory
