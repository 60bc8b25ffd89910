#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The tests, in groups: check.py [--tier quick|check|all] [--slice N] [GROUP...]. 'make check' is the tier of this name.

Groups run side by side, the longest first. A group whose needs this machine does not meet is skipped, with the reason; with CI=true in the
environment that is a failure instead. The whole output of each group is in target/check/.
"""

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[1]
LOGS = TOP / "target/check"
sys.path.insert(0, str(TOP / "tests"))
from checks import crates, output, slices  # noqa: E402
from checks.groups import BUILT, GROUPS, LINTED, RELEASE  # noqa: E402
from checks.pool import Pool, end  # noqa: E402, F401

DEAREST = 10


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tier", choices=("quick", "check", "all"), help="check, unless groups are named")
    parser.add_argument("--slice", type=int, metavar="N", help="this slice of what 'make check-all' alone has, and no group but those named")
    parser.add_argument("--list", action="store_true", help="the groups and the slices")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="whole groups, by their names or the first words of them")
    options = parser.parse_intermixed_args()
    words = {word for group in GROUPS for word in (group.name, group.name.split()[0])}
    if unknown := set(options.groups) - words:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are: {', '.join(group.name for group in GROUPS)}")
    return options


def of_slice(wanted):
    """The groups of a slice, by its number or by this commit, and a line that says how to run it again."""
    known = slices.slices()
    number = (slices.ancestors() if wanted is None else wanted - 1) % len(known) + 1
    names = ", ".join(group.name for group in known[number - 1])
    return known[number - 1], f"slice {number} of {len(known)}: {names}; once more: make slice SLICE={number}"


def chosen_by(options):
    tier = options.tier or ("all" if options.groups else "check")
    named = [g for g in GROUPS if {g.name, g.name.split()[0]} & set(options.groups)]
    if options.groups or options.slice is not None:
        chosen = [group for group in named if tier in group.tiers]
    else:
        chosen = [group for group in GROUPS if tier in group.tiers]
    left_out = [group.name for group in GROUPS if "check" in group.tiers and group not in chosen] if tier == "quick" else []
    said = ""
    if options.slice is not None or tier == "check" and not options.groups:
        groups, said = of_slice(options.slice)
        chosen += groups
    return chosen, said, left_out


def report(pool, chosen, said):
    """The table, what failed, which slice it was, and the sum. Whether nothing failed."""
    print()
    for group in chosen:
        if result := pool.results.get(group):
            spent = f"{result.seconds:.0f} s" if result.seconds else "-"
            print(f"{group.name:34} {result.verdict:5} {spent:>7}  {result.words}")
        else:
            print(f"{group.name:34} {'-':5} {'-':>7}  not run")
    cases = [(spent, name, group.name) for group, result in pool.results.items() for name, spent in output.seconds(result.text).items()]
    if cases:
        dearest = sorted(cases, reverse=True)[:DEAREST]
        print("\nthe dearest cases:", *(f"{spent:6.1f} s  {name} ({group})" for spent, name, group in dearest), sep="\n")
    totals = [sum(result.counts[column] for result in pool.results.values()) for column in range(3)]
    # Once more at the end, since what shows a long output may leave out its middle.
    for group in (group for group in chosen if group in pool.results and pool.results[group].verdict in ("FAIL", "ended")):
        result = pool.results[group]
        print(f"\n{group.name}, in {pool.log_of(group).relative_to(TOP)}:", *(output.failures(result.text) or [result.words]), sep="\n")
    for what, groups in sorted(pool.watch.left().items()):
        if pool.watch.is_a_tests(what):
            totals[1] += 1
            print(f"FAIL left behind: {what}; it came while these ran: {', '.join(groups) or 'none'}")
        else:
            print(f"it came meanwhile, and may be somebody else's: {what}")
    if changed := pool.watch.installed():
        print(f"packages that changed meanwhile, which may have disturbed tests: {' '.join(changed)}")
    print(f"\n{said}" if said else "")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped", flush=True)
    return totals[1] == 0


def main():
    options = arguments()
    if options.list:
        print(*(f"{group.name:34} {' '.join(group.tiers)}" for group in GROUPS), sep="\n")
        print(*(f"slice {number}: {', '.join(group.name for group in one)}" for number, one in enumerate(slices.slices(), 1)), sep="\n")
        return 0
    if not shutil.which("cargo"):
        sys.exit("check: cargo is missing: install Rust 1.88 or later, for example with rustup")
    # Ended like an exception, so that what runs is ended too.
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen, said, left_out = chosen_by(options)
    if said:
        print(said, flush=True)
    # Here nobody builds again and again; what would make that faster makes each build slower by a quarter.
    if not (TOP / "target/debug/incremental").is_dir():
        os.environ.setdefault("CARGO_INCREMENTAL", "0")
    is_new = crates.restore()
    pool = Pool(TOP, LOGS, strict=os.environ.get("CI") == "true")
    status = 1
    try:
        pool.run(chosen)
        status = 0
        if is_new and all(pool.built.get(build) == 0 for build in (RELEASE, LINTED, BUILT)):
            crates.keep()
    except KeyboardInterrupt:
        status = 130
    except SystemExit as ended:
        status = ended.code
    is_good = report(pool, chosen, said)
    if left_out:
        print(f"left out, since 'make check' has them: {', '.join(left_out)}")
    return status or (0 if is_good else 1)


if __name__ == "__main__":
    sys.exit(main())
