# SPDX-License-Identifier: GPL-2.0-or-later
"""How long each group and each case took on this machine, kept from run to run, so that the longest begin first."""

import contextlib
import fcntl
import json
import os
from pathlib import Path


def cache():
    """What outlives a clone: images, trees, and these times."""
    return Path(os.environ.get("JOBFENCE_CACHE") or "/var/cache/jobfence-tests")


def read():
    """By group: its seconds, and those of its cases. Nothing, where nothing is known yet."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads((cache() / "times.json").read_text())
        return known if isinstance(known, dict) else {}
    return {}


def keep(group, seconds, cases):
    """A run that could not write here has only no times the next time."""
    with contextlib.suppress(OSError):
        cache().mkdir(parents=True, exist_ok=True)
        with open(cache() / "times.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = read()
            known[group] = {"seconds": round(seconds, 1), "cases": cases}
            beside = cache() / "times.json.new"
            beside.write_text(json.dumps(known, indent=1, sort_keys=True))
            beside.rename(cache() / "times.json")


def expected(known, group, otherwise):
    with contextlib.suppress(KeyError, TypeError):
        return float(known[group]["seconds"])
    return otherwise
