# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes minutes to build and is the same in every clone of this machine: kept outside of them.

An entry is a directory of files that its name and key say, beside a lock. Whoever uses an entry holds the lock together with others,
and whoever builds or removes it holds the lock alone. A lock of the kernel ends with its process. So nothing that a killed builder
left is taken for whole, and nobody waits for it.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
DEFAULT = Path("/var/cache/jobfence-tests")
HERE = TOP / "target/vm"  # of this clone, where nothing can be written outside of it

UNUSED_SECONDS = 14 * 24 * 3600
# Two clones have two keys each in a month at most; whoever changes what images are made of does not fill the disk.
KEPT = 4

MANIFEST = "manifest.json"
END_BYTES = 1 << 20


class NoPlace(SystemExit):
    """Nothing can be kept, and who needs it cannot go on."""


def root():
    """Where the entries are: JOBFENCE_CACHE, or a directory of this machine, or of this clone."""
    given = os.environ.get("JOBFENCE_CACHE")
    for place in [Path(given)] if given else [DEFAULT, HERE]:
        with contextlib.suppress(OSError):
            (place / "built").mkdir(parents=True, exist_ok=True)
            if os.access(place / "built", os.W_OK):
                return place / "built"
    raise NoPlace(f"vm: {given or HERE} cannot be written")


def say(text):
    print(f"vm: {text}", file=sys.stderr, flush=True)


def remove(path):
    # A build killed at a bad moment could have left a mount of the host's /dev in the tree.
    subprocess.run(["rm", "-rf", "--one-file-system", path], check=True)


def files(directory):
    for place, _, names in os.walk(directory):
        for name in names:
            path = Path(place) / name
            if not path.is_symlink() and path.is_file() and path != directory / MANIFEST:
                yield str(path.relative_to(directory)), path


def ends(path, size):
    """A checksum of how a large file begins and ends. Small ones have only their size compared: there are thousands of them."""
    if size < END_BYTES:
        return None
    with open(path, "rb") as file:
        found = zlib.crc32(file.read(END_BYTES))
        file.seek(-END_BYTES, os.SEEK_END)
        return zlib.crc32(file.read(END_BYTES), found)


def everything(path):
    found = 0
    with open(path, "rb") as file:
        while data := file.read(END_BYTES):
            found = zlib.crc32(data, found)
    return found


def described(path):
    size = path.stat().st_size
    return [size, ends(path, size), everything(path)]


def is_whole(directory, to_the_last_byte=False):
    """Its files are those that were built. The manifest is written last."""
    try:
        wanted = json.loads((directory / MANIFEST).read_text())
        for name, (size, checksum, of_all) in wanted.items():
            path = directory / name
            if path.stat().st_size != size or ends(path, size) != checksum:
                return False
            if to_the_last_byte and everything(path) != of_all:
                return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    return True


def take(lock, kind, what):
    """Locks the file, and says so where that takes long."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another run builds {what}{' or uses it' * (kind == fcntl.LOCK_EX)}: waiting")
        began = time.monotonic()
        fcntl.flock(lock, kind)
        say(f"waited {time.monotonic() - began:.0f} s for {what}")


@contextlib.contextmanager
def locked(path, kind, what):
    """Holds the lock, whose file is there: whoever removes an entry removes that, too."""
    while True:
        with open(path, "a", encoding="ascii") as lock:
            take(lock, kind, what)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                    yield
                    return


@contextlib.contextmanager
def held(name, key, build):
    """The directory of an entry, which stays while the block runs. `build(directory)` fills it where it is not whole."""
    place = root()
    directory, path = place / f"{name}-{key}", place / f"{name}-{key}.lock"
    while True:
        with locked(path, fcntl.LOCK_SH, name):
            if is_whole(directory):
                os.utime(path)
                forget_old(place, directory.name)
                yield directory
                return
        with locked(path, fcntl.LOCK_EX, name):
            # Another run may have built it meanwhile.
            if not is_whole(directory):
                if directory.exists():
                    say(f"{name} is broken and is built anew: {directory}")
                make(name, directory, build)


def make(name, directory, build):
    """Whatever of it was there is removed. What is built gets its name when it is whole."""
    new = directory.with_name(directory.name + ".new")
    remove(new)
    remove(directory)
    new.mkdir()
    say(f"building {name}")
    began = time.monotonic()
    try:
        build(new)
    except BaseException:
        remove(new)
        raise
    (new / MANIFEST).write_text(json.dumps({name: described(path) for name, path in files(new)}))
    new.rename(directory)
    say(f"built {name} in {time.monotonic() - began:.0f} s")


def distrust(directory, without_proof):
    """Whoever wants it next builds it anew if it is broken, or `without_proof`. Those who use it now go on."""
    if without_proof or not is_whole(directory, to_the_last_byte=True):
        (directory / MANIFEST).unlink(missing_ok=True)


def forget_old(place, mine):
    """Removes what nobody has used for long, and of each name all but the latest."""
    count = {}
    used = sorted(((path.stat().st_mtime, path) for path in place.glob("*.lock")), reverse=True)
    for when, path in used:
        name = path.stem.rpartition("-")[0]
        count[name] = count.get(name, 0) + 1
        if path.stem == mine or (time.time() - when < UNUSED_SECONDS and count[name] <= KEPT):
            continue
        with open(path, "a", encoding="ascii") as lock, contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody may have begun to use it since.
            if os.stat(path).st_mtime == when:
                remove(place / path.stem)
                remove(place / f"{path.stem}.new")
                path.unlink()
