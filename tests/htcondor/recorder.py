#!/usr/bin/python3 -IB
# SPDX-License-Identifier: GPL-2.0-or-later
"""In the place of jobfence: writes down what a daemon of HTCondor says to a starter, and becomes the starter.

record.py puts it there, in a virtual machine. It reads and asks what jobfence does, and the first starter of each kind has its files. Those of
messages have a line for each number and for each text; the numbers are the lines of digits."""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

PLACE, JOBS, SETTINGS = Path("@PLACE@"), "@JOBS@", "@SETTINGS@".split()
REAL = "/usr/sbin/condor_starter"
PATIENCE = 30


def content(data):
    """That of the first message; None: some of it is missing."""
    found, is_last = b"", False
    while not is_last:
        if len(data) < 5:
            return None
        is_last, length = struct.unpack(">BI", data[:5])
        if len(data) < 5 + length:
            return None
        found, data = found + data[5:5 + length], data[5 + length:]
    return found


def lines(data, numbers):
    """`numbers` are before an ad's attributes, and where they are two, one more is behind the ad."""
    found = [str(number) for number in struct.unpack_from(f">{numbers}Q", data)]
    data, end = data[8 * numbers:], b""
    if numbers == 2:
        data, end = data[:-8], data[-8:]
        end = f"{struct.unpack('>Q', end)[0]}\n".encode()
    assert data.endswith(b"\0") and b"\n" not in data, "it is not what a line can have"
    return "".join(f"{number}\n" for number in found).encode() + data.replace(b"\0", b"\n") + end


def slots_ad(text):
    """It stays where it is: the starter reads it again."""
    deadline = time.monotonic() + PATIENCE
    with socket.socket(fileno=os.dup(int(text.split()[3].split("*")[0]))) as startds:
        while time.monotonic() < deadline:
            select.select([startds], [], [], PATIENCE)
            if (found := content(startds.recv(1 << 20, socket.MSG_PEEK))) is not None:
                return found
            time.sleep(0.01)
    raise AssertionError("the ad is not whole")


def packet(*words):
    said = b"".join(struct.pack(">Q", word) if isinstance(word, int) else word.encode() + b"\0" for word in words)
    return struct.pack(">BI", 1, len(said)) + said


def answer(address, condition):
    """What the startd answers to a client that proposes no security."""
    where, _, parameters = address.strip("<>").partition("?")
    host, _, port = where.rpartition(":")
    attributes = 'MyType = "Query"', 'TargetType = "Machine"', f"Requirements = {condition}", f'Projection = "{JOBS}"'
    question = packet(5, len(attributes), *attributes, "", "")
    for daemon in (one[len("sock="):] for one in parameters.split("&") if one.startswith("sock=")):
        question = packet(75, daemon, "recorder", PATIENCE, 0) + question
    said = b""
    with socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as startd:
        startd.sendall(question)
        while (found := content(said)) is None:
            piece = startd.recv(4096)
            assert piece, f"the startd has closed: {said!r}"
            said += piece
    return found


def asked(*words):
    known = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith(("CONDOR_CONFIG", "_CONDOR_"))}
    return subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=PATIENCE, env=known).stdout


def settings(words, slot):
    named = words[words.index("-local-name"):][:2] if "-local-name" in words else []
    questions = [f"{name} = $({name})" for name in SETTINGS] + [f"SLOT_USER = $({slot.upper()}_USER)"]
    return asked("condor_config_val", "-subsystem", "STARTER", *named, "-config", "-macro", *questions)


def of_slot(words):
    inherited = os.environ["CONDOR_INHERIT"]
    ad = slots_ad(inherited)
    yield "ad", lines(ad, 1)
    name = next(text for text in ad[8:].split(b"\0") if text.startswith(b"Name = ")).decode().partition(" = ")[2].strip('"')
    address, condition = inherited.split()[1], f'Name == "{name}"'
    yield "answer", lines(answer(address, condition), 2)
    yield "status", asked("condor_status", "-direct", address, "-long", "-attributes", JOBS, "-constraint", condition)
    yield "settings", settings(words, name.partition("@")[0])


def of_local(words):
    with tempfile.TemporaryFile() as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.seek(0)
        os.dup2(kept.fileno(), 0)
        yield "ad", kept.read()
    os.lseek(0, 0, os.SEEK_SET)
    yield "settings", settings(words, "local")


def record(words):
    kind = "capabilities" if words == ["-classad"] else "local" if "-job-input-ad" in words else "slot"
    place = PLACE / kind
    try:
        place.mkdir()
    except FileExistsError:
        return
    (place / "arguments").write_text("".join(f"{word}\n" for word in words))
    # As it was at the exec.
    (place / "environment").write_bytes(Path("/proc/self/environ").read_bytes().replace(b"\0", b"\n"))
    for name, data in {"slot": of_slot, "local": of_local}.get(kind, lambda _: [])(words):
        (place / name).write_bytes(data)


if __name__ == "__main__":
    try:
        record(sys.argv[1:])
    except Exception:
        (PLACE / "error").write_text(traceback.format_exc())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(REAL, [os.path.basename(REAL), *sys.argv[1:]])
