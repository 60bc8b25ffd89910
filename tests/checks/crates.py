# SPDX-License-Identifier: GPL-2.0-or-later
"""The crates of others, as cargo has built them: kept beside the images, since they are the same in each clone. A third of what is
compiled for tests is theirs. Without them, everything is compiled: nothing here makes a run fail.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/vm"))
import cache  # noqa: E402

# Without what these say, all is compiled, as without the crates.
TROUBLE = OSError, subprocess.SubprocessError, cache.NoPlace

NAME = "crates"
PROFILES = "debug", "release"
# What decides about them. Cargo itself compares the rest, and builds anew what does not fit.
INPUTS = "Cargo.lock", "Cargo.toml", "src/Cargo.toml", ".cargo/config.toml", ".cargo/rustc"


def said(*command):
    return subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout


def key():
    parts = [said("rustc", "-vV"), os.environ.get("RUSTFLAGS", ""), *((TOP / file).read_text() for file in INPUTS)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def ours():
    metadata = json.loads(said("cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"))
    return {package["name"] for package in metadata["packages"]}


def of_others(target, own):
    """The paths below a profile's directory. Each is named by its crate, and by a hash of how that is built."""
    known = {path.name for path in (target / ".fingerprint").iterdir() if path.name.rpartition("-")[0] not in own}
    hashes = {name.rpartition("-")[2] for name in known}
    yield from (Path(".fingerprint", name) for name in known)
    yield from (Path("build", path.name) for path in (target / "build").iterdir() if path.name in known)
    yield from (Path("deps", path.name) for path in (target / "deps").iterdir() if path.name.rpartition("-")[2].split(".")[0] in hashes)


def copy(source, place):
    """With its times, by which cargo knows what is newer than what."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, symlinks=True)
    else:
        shutil.copy2(source, place, follow_symlinks=False)


def restore(top=TOP):
    """Into a clone in which nothing has been built. Whether it is one."""
    target = top / "target"
    if any((target / profile).exists() for profile in PROFILES):
        return False
    try:
        directory = cache.root() / f"{NAME}-{key()}"
        if not directory.is_dir():
            return True
        with cache.locked(directory.with_name(directory.name + ".lock"), fcntl.LOCK_SH, NAME):
            for profile in PROFILES if cache.is_whole(directory) else ():
                # Cargo would take half a file for a whole one.
                new = target / f"{profile}.new"
                shutil.rmtree(new, ignore_errors=True)
                shutil.copytree(directory / profile, new, symlinks=True)
                new.rename(target / profile)
    except TROUBLE as error:
        print(f"check: crates are compiled that were kept: {error}", file=sys.stderr)
    return True


def keep(top=TOP):
    """What is built here, if nobody has kept it yet."""
    def build(new):
        own = ours()
        for profile in PROFILES:
            for path in of_others(top / "target" / profile, own):
                copy(top / "target" / profile / path, new / profile / path)

    with contextlib.suppress(*TROUBLE), cache.held(NAME, key(), build):
        pass
