# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of durations: rows that were measured in turn, each beside the first."""

import math
import statistics

HOW_TO_READ = """
How to read it: the rows of a table were measured in turn, in one run, so what disturbs one disturbs all.
Compare ratios and not times, since times hold for this machine alone.
The median is what a job usually meets, and p99 what a user complains about.
"""


class Goals:
    """What is wanted, what was found, and whether that is enough."""

    def __init__(self):
        self.lines = []
        self.missed = False

    def add(self, name, value, wanted, met):
        self.missed |= not met
        self.lines.append(f"  {name:<52}{value:>12}{wanted:>12}  {'met' if met else 'MISSED'}")

    def print(self):
        print(f"\n{'goal':<54}{'value':>12}{'wanted':>12}")
        print("\n".join(self.lines))


def percentile(samples, percent):
    """The smallest of which at least so many percent of all are not above (the nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def table(title, rows, unit="ms"):
    """`rows`: names with seconds; the first is what the others are compared with. A name may have no samples."""
    scale = {"s": 1, "ms": 1e3, "us": 1e6}[unit]
    print(f"\n{title:<60}{'median ' + unit:>12}{'p90':>10}{'p99':>10}{'ratio':>8}")
    first = None
    for name, samples in rows.items():
        if not samples:
            print(f"  {name:<58}{'not here':>12}")
            continue
        median = statistics.median(samples)
        first = first or median
        shown = (median, percentile(samples, 90), percentile(samples, 99))
        print(f"  {name:<58}{scale * shown[0]:>12.2f}{scale * shown[1]:>10.2f}{scale * shown[2]:>10.2f}{median / first:>8.2f}")


def in_turn(kinds, rounds, one, warm_up=1):
    """Seconds that `one` says of each kind, in an order that changes from round to round."""
    kinds = list(kinds)
    found = {kind: [] for kind in kinds}
    for number in range(-warm_up, rounds):
        at = number % len(kinds)
        for kind in kinds[at:] + kinds[:at]:
            seconds = one(kind)
            if number >= 0 and seconds is not None:
                found[kind].append(seconds)
    return found
