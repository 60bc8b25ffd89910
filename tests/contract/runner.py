# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs cases one after the other, under whatever scheduler, and prints a line for each."""

import argparse
import contextlib
import re
import sys
import time
import traceback

from .harness import Skip


class Runner:
    """What is the scheduler's own: `before` and `after` each case, what is `left` of jobs, and `details` of one that failed."""

    def left(self, site):
        return set(site.leftovers())

    def before(self, site, function):
        """What must hold before every case."""

    def after(self, site, known):
        """What must hold after every case; `known` is what an earlier one has left."""

    def details(self, site, mark):
        """Lines about a case that has failed, and began at this mark of the log."""

    def run_case(self, site, function, known):
        """"ok", "skip" or "FAIL", and what there is to say.

        A mistake in a case, whichever, fails that case alone.
        """
        outcome, problems, mark = "ok", [], None
        try:
            site.submitted.clear()
            mark = site.log_mark()
            self.before(site, function)
            said = function(site)
            problems += [said] if said else []
        except Skip as reason:
            outcome = "skip"
            problems.append(str(reason))
        except Exception as error:
            outcome = "FAIL"
            problems.append(describe(error))
        try:
            self.after(site, known)
        except Exception as error:
            problems = [p for p in problems if outcome == "FAIL"] + [describe(error)]
            outcome = "FAIL"
        if outcome == "FAIL" and mark is not None:
            with contextlib.suppress(Exception):
                problems += self.details(site, mark)
        return outcome, problems

    def run(self, site, functions):
        """Runs the cases in their order; how many have had which outcome."""
        counts = {"ok": 0, "FAIL": 0, "skip": 0}
        known = self.left(site)
        site.there_before = frozenset(known)
        for leaving in sorted(known):
            print(f"there before the first case: {leaving}")
        print(f"cases: {len(functions)}", flush=True)
        for number, function in enumerate(functions, 1):
            # For who is cut off in the middle, as a guest can be.
            print(f"case {number} of {len(functions)}: {function.__name__}", flush=True)
            start = time.monotonic()
            outcome, said = self.run_case(site, function, known)
            counts[outcome] += 1
            remark = f"  ({said[0]})" if said and outcome != "FAIL" else ""
            print(f"{outcome:4} {function.__name__}  {time.monotonic() - start:.1f} s{remark}", flush=True)
            if outcome == "FAIL":
                for line in "\n".join(said).splitlines():
                    print("     " + line)
                sys.stdout.flush()
        return counts


def describe(error):
    if isinstance(error, AssertionError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


class Claims:
    """A demo's claims, each with what was found."""

    def __init__(self, site):
        self.site = site
        self.untrue = 0

    def head(self, text):
        print(f"\n== {text}", flush=True)

    def check(self, true, claim):
        self.untrue += not true
        print(f"   {'[yes]' if true else '[NO] '} {claim}", flush=True)


def part_of(text):
    """K/N, for an option: the K-th of N parts."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not found or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N")
    return int(found[1]), int(found[2])
