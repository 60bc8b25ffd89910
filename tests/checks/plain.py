# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs cases that need no scheduler: each is a function that gets a directory of its own."""

import tempfile
import time
from pathlib import Path


class Skip(Exception):
    """The case makes no sense here; the text says why."""


def run(cases, prefix, *given):
    """Runs each with a directory, and with what is given. Prints a line for each, and the sum; returns the exit status."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    for case in cases:
        began, more = time.monotonic(), ""
        with tempfile.TemporaryDirectory(prefix=prefix) as top:
            try:
                more, verdict = case(Path(top), *given), "ok"
            except AssertionError as error:
                verdict = "FAIL"
                print(f"     {error}")
            except Skip as reason:
                more, verdict = reason, "skip"
        counts[verdict] += 1
        print(f"{verdict:4} {case.__name__} {time.monotonic() - began:.1f} s" + (f"  ({more})" if more else ""), flush=True)
    print(f"\n{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0
