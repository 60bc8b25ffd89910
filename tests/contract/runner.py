# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs cases one after the other, under whatever scheduler, and prints a line for each: what `cases.py` of each scheduler is."""

import argparse
import contextlib
import re
import sys
import time
import traceback
from pathlib import Path

import leases

from . import sites
from .cases import ONLY_FOR_A_RELEASE, is_for
from .harness import CASES, Skip
from .sites import Lacks, die_properly, until

LACKS = 77  # this machine lacks something, as automake has it


class Runner:
    def after(self, site, known):
        """What must hold after every case; `known` is what an earlier one has left."""
        site.configure()
        site.revive()
        if site.submitted and not site.idle_again():
            site.delete(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 180, "the end of every job")
        try:
            until(lambda: site.left() <= known, 60, "a clean tree")
        except AssertionError:
            left = sorted(site.left() - known)
            known.update(left)
            if left:
                raise AssertionError("left behind: " + ", ".join(left)) from None
        try:
            until(site.is_ready, 120, "a host that takes jobs")
        except AssertionError as error:
            raise AssertionError(f"{error}, which is {site.mend()}") from None

    def details(self, site, mark):
        """Lines about a case that has failed, and began at this mark of the log."""
        for user, jobid in site.submitted:
            yield f"job {jobid} of {user}: {site.describe(jobid)}"
            yield from ("  | " + line for line in (site.output(jobid) + site.told(jobid)).splitlines()[:30])
        for whose, said in ("the daemons' log", site.log_since(mark)), ("jobfence's log", site.said_since(mark)):
            yield f"{whose}:"
            yield from ("  | " + line for line in said.splitlines()[-50:])

    def run_case(self, site, function, known):
        """"ok", "skip" or "FAIL", and what there is to say.

        A mistake in a case, whichever, fails that case alone.
        """
        outcome, problems, mark = "ok", [], None
        try:
            site.submitted.clear()
            mark = site.log_mark()
            site.begin(function)
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
        known = site.left()
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


def part_of(text):
    """K/N, for an option: the K-th of N parts."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not found or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N")
    return int(found[1]), int(found[2])


class Program:
    """`cases.py` of a scheduler."""

    SCHEDULER = ""
    SITES = {}  # by --site: what makes it of the options
    DEFAULT = "installed"
    PATIENCE = {"installed": 3}

    def arguments(self, doc):
        parser = argparse.ArgumentParser(description=doc.split("\n")[0])
        if "private" in self.SITES:
            parser.add_argument("--site", choices=tuple(self.SITES), default=self.DEFAULT)
            parser.add_argument("--so", help="the shared object (private sites); without it nothing is fenced")
            parser.add_argument("--bin", help="the jobfence command (private sites)")
        parser.add_argument("--patience", type=float, metavar="FACTOR",
                            help=f"multiplies every time limit; otherwise 1, but for these sites: {self.PATIENCE}")
        parser.add_argument("--layout", action="store_true", help="only the cases in which the cgroup layout makes a difference")
        parser.add_argument("--patient", action=argparse.BooleanOptionalAction,
                            help="only the cases that wait for the scheduler for more than a minute, or only the others")
        parser.add_argument("--release", action=argparse.BooleanOptionalAction,
                            help="only the cases that 'make check' leaves out, or only the others")
        parser.add_argument("--slice", type=part_of, default=(1, 1), metavar="K/N", help="of all that is chosen otherwise, only the K-th of N parts")
        parser.add_argument("--list", action="store_true")
        parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="the same as names without it")
        parser.add_argument("cases", nargs="*", metavar="NAME")
        parser.set_defaults(site=self.DEFAULT)
        return parser

    def is_for_a_release(self, function):
        return function.release or function.__name__ in ONLY_FOR_A_RELEASE.get(self.SCHEDULER, ())

    def chosen(self, options):
        fitting = [one for one in CASES if options.site in one.sites and is_for(one, self.SCHEDULER)]
        unknown = set(options.cases) - {one.__name__ for one in fitting}
        if unknown:
            sys.exit(f"no such case for the {options.site} site: {', '.join(sorted(unknown))}")
        part, parts = options.slice
        return [
            one for one in fitting if (not options.cases or one.__name__ in options.cases) and (one.layout or not options.layout)
            and options.patient in (None, one.patient) and options.release in (None, self.is_for_a_release(one))
        ][part - 1::parts]

    def entered(self, options, stack):
        return stack.enter_context(self.SITES[options.site](options))

    def run(self, options, chosen):
        sites.PATIENCE = options.patience or self.PATIENCE.get(options.site, 1)
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            site = self.entered(options, stack)
            print(f"{self.SCHEDULER} is ready after {time.monotonic() - start:.1f} s", flush=True)
            counts = Runner().run(site, chosen)
        print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
        return 1 if counts["FAIL"] else 0

    def main(self, doc):
        options = self.arguments(doc).parse_intermixed_args()
        beside_a_check = leases.company()  # noqa: F841
        options.cases += options.only
        if options.site != "installed" and not (options.bin or options.list or getattr(options, "base", None)):
            sys.exit("cases: a private site needs --bin")
        chosen = self.chosen(options)
        if options.list:
            print("\n".join(one.__name__ for one in chosen))
            return 0
        die_properly()
        return self.run(options, chosen)

    def exit(self, doc):
        """Runs it, and exits."""
        ended(lambda: self.main(doc))


def ended(main):
    try:
        sys.exit(main())
    except Lacks as reason:
        print(f"{Path(sys.argv[0]).name}: {reason}", file=sys.stderr)
        sys.exit(LACKS)
    except KeyboardInterrupt:
        sys.exit(130)
