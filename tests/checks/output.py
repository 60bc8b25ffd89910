# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads what a group of tests has said so far: cargo's words, and those of our own runners."""

import re

# What a group that failed shows of its output.
TAIL = 40
# Of a failure, the lines that matter first.
FIRST = 3

CASE = re.compile(r"^(ok|FAIL|skip) +(\w+) +([\d.]+) s\b", re.M)
BEGUN = re.compile(r"^cases: (\d+)$", re.M)
CARGO_BEGUN = re.compile(r"^running (\d+) tests?$", re.M)
CARGO_ENDED = re.compile(r"^test \S+(?: - should panic)? \.\.\. \w+", re.M)
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
CARGO_SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)


def counts(text):
    """Passed, failed and skipped tests."""
    found = CARGO_SUMMARY.findall(text) + SUMMARY.findall(text)
    return [sum(int(row[column]) for row in found) for column in range(3)]


def far(text):
    """How far the group is: so many tests have ended, of so many that have been announced."""
    announced = sum(map(int, BEGUN.findall(text) + CARGO_BEGUN.findall(text)))
    return len(CASE.findall(text)) + len(CARGO_ENDED.findall(text)), announced


def seconds(text):
    """The seconds of each case, by its name. A case that ran at several sites counts for each."""
    found = {}
    for _, name, spent in CASE.findall(text):
        found[name] = found.get(name, 0) + float(spent)
    return found


def failures(text):
    """Each test that failed, with the lines that matter first, and what ended a runner itself."""
    own = rf"^FAIL .*(?:\n     .*){{0,{FIRST}}}"
    cargo = rf"^thread '.*' (?:\(\d+\) )?panicked at .*(?:\n(?!thread |note: |\n).+){{0,{FIRST}}}"
    others = r"^Traceback .*(?:\n .*)*\n.*|^ +\[NO\].*|^not finished after .*"
    found = [match[0] for match in re.finditer(f"{own}|{cargo}|{others}", text, re.M)]
    named = re.findall(r"^test (\S+) \.\.\. FAILED", text, re.M)
    found += [f"FAIL {name}" for name in named if not any(name in one for one in found)]
    return found or text.splitlines()[-FIRST:]


def tail(text):
    return text.splitlines()[-TAIL:]
