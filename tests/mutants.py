#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Breaks the code on purpose, and looks whether a test notices: mutants.py [--list | --stale] [--noticer WORDS] [NAME...].

The breaks are in tests/mutants/table.py. Each is applied to a copy of the source tree in
target/mutants, built there, and tried with the one test that its row names. A test that fails
without a break notices nothing: all of them run once before, with the copy as it is.

With --noticer 'unit', 'host FILE', 'hook', 'slurm', 'nodes', 'htcondor' or 'gridengine', all tests of that kind try each break instead, and all that
notice it are named: so it shows which breaks only one test notices.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[1]
WORK = TOP / "target/mutants"
TREE, TARGET = WORK / "tree", WORK / "target"
HANGS = 1200  # seconds; a break by which a test never ends is noticed, too
sys.path[:0] = str(TOP / "tests/mutants"), str(TOP / "tests")
from checks.pool import end  # noqa: E402
from table import BREAKS  # noqa: E402


def stale(found_in=TOP):
    """The rows that do not apply, each with what is wrong."""
    names = [one.name for one in BREAKS]
    for one in BREAKS:
        path = found_in / one.file
        count = path.read_text().count(one.old) if path.exists() else 0
        if count != 1:
            yield f"{one.name}: its text is {count} times in {one.file}, and should be there once"
        if one.old == one.new:
            yield f"{one.name}: changes nothing"
        if names.count(one.name) != 1:
            yield f"{one.name}: two rows have this name"


def copy():
    """The source tree as it is now, and what cargo has built of the dependencies."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=TOP, check=True, capture_output=True)
    names = [name for name in listed.stdout.decode().split("\0") if name and (TOP / name).exists()]
    # An earlier run has written a break into a file there, which cargo has built later than the file without it was written.
    written = lambda top, name: (top / name).stat().st_mtime_ns  # noqa: E731
    others = {name for name in names if (TREE / name).is_file() and written(TREE, name) != written(TOP, name)}
    shutil.rmtree(TREE, ignore_errors=True)
    for name in names:
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, TREE / name)
        if name in others:
            os.utime(TREE / name)
    built = TOP / "target/debug"
    if built.exists() and not TARGET.exists():
        # Without what is ours and large: that is built anew, since the tree has another name.
        ours = lambda directory, names: [
            name for name in names
            if name == "incremental" or not name.startswith("lib") and (Path(directory) / name).is_file()
            and (Path(directory) / name).stat().st_size > 10 << 20
        ]  # fmt: skip
        TARGET.mkdir(parents=True)
        shutil.copytree(built, TARGET / "debug", ignore=ours, symlinks=True)


def commands(noticer, users):
    """What builds a noticer, as tests/mutants/table.py has them, and what runs it."""
    kind, *words = noticer.split()
    cargo = ["cargo", "test", "--locked", "--offline", "--no-fail-fast"]
    if kind == "unit":
        return [*cargo, "--lib", "--bins", "--no-run"], [*cargo, "--lib", "--bins", "--", *words]
    if kind == "host":
        return [*cargo, "--test", words[0], "--no-run"], [*cargo, "--test", words[0], "--", *words[1:]]
    debug = TARGET / "debug"
    build = ["cargo", "build", "--locked", "--offline"]
    built = ["--so", debug / "libjobfence.so", "--bin", debug / "jobfence"]
    if kind == "hook":
        only = ["--only", *words] if words else []
        return build, [sys.executable, "-B", "tests/pbs/replay.py", *built, *only]
    built += ["--bin-for-tests", debug / "jobfence"]
    if kind in ("htcondor", "gridengine"):
        # A break is often noticed by a wait in vain.
        return build, [sys.executable, "-B", f"tests/{kind}/cases.py", "--site", "private", "--patience", "1", *built, *words]
    cases = [sys.executable, "-B", "tests/slurm/cases.py", *built]
    chosen = ["--only", *words] if words else ["--no-patient", "--no-release"]
    if kind == "nodes":
        chosen += ["--site", "two-nodes"]
    return build, [*cases, *(["--users", *users] if users else []), *chosen]


def run(command, seconds=HANGS):
    """Its exit status, or None where it did not end, and what it said."""
    log = WORK / "output.log"
    with open(log, "w+", errors="replace") as output:
        child = subprocess.Popen(
            list(map(str, command)), cwd=TREE, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET), "CARGO_TERM_COLOR": "never"},
        )  # fmt: skip
        try:
            status = child.wait(seconds)
        except BaseException as error:
            end(child)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
        output.seek(0)
        return status, output.read()


def failed_in(text):
    """The names of the tests that failed."""
    cargos = re.findall(r"^test (\S+) \.\.\. FAILED", text, re.M)
    return [name.replace("::tests::", "::") for name in cargos] + re.findall(r"^FAIL +(\w+)", text, re.M)


def passed_in(text):
    return sum(map(int, re.findall(r"^(?:test result: \w+\. )?(\d+) passed[,;]", text, re.M)))


def tried(noticer, users):
    """Whether the noticer fails, what it says, and the seconds without the build; False where it cannot be built."""
    build, test = commands(noticer, users)
    status, text = run(build)
    if status != 0:
        return "broken", text, 0
    start = time.monotonic()
    status, text = run(test)
    return {0: "passes", None: "hangs"}.get(status, "fails"), text, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="the breaks, and who should notice each")
    parser.add_argument("--stale", action="store_true", help="only whether each row still applies")
    parser.add_argument("--users", nargs=2, metavar="USER", default=(), help="of the private Slurm, instead of any two")
    parser.add_argument("--noticer", metavar="WORDS", help="instead of the test of each row, as above")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    wrong = list(stale())
    if wrong:
        sys.exit("mutants: rows of tests/mutants/table.py do not apply:\n" + "\n".join(wrong))
    unknown = set(options.names) - {one.name for one in BREAKS}
    if unknown:
        sys.exit(f"mutants: no such break: {', '.join(sorted(unknown))}; --list shows them")
    chosen = [one for one in BREAKS if not options.names or one.name in options.names]
    if options.noticer:
        chosen = [one._replace(noticer=options.noticer) for one in chosen]
    if options.list:
        print("\n".join(f"{one.name:40} {one.noticer}" for one in chosen))
    if options.list or options.stale:
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    WORK.mkdir(parents=True, exist_ok=True)
    copy()
    # In the order of what is built, so that most of a build is still there.
    chosen.sort(key=lambda one: one.noticer.split()[:1 + one.noticer.startswith("host")])
    for noticer in dict.fromkeys(one.noticer for one in chosen):
        outcome, text, _ = tried(noticer, options.users)
        if outcome != "passes" or not passed_in(text):
            print(text)
            sys.exit(f"mutants: '{noticer}' {outcome} without a break" + ", and runs no test" * (outcome == "passes"))
    unnoticed, broken = [], []
    for one in chosen:
        path = TREE / one.file
        whole, start = path.read_text(), time.monotonic()
        path.write_text(whole.replace(one.old, one.new))
        try:
            outcome, text, seconds = tried(one.noticer, options.users)
        finally:
            path.write_text(whole)
        spent = f"{seconds:.1f} s, {time.monotonic() - start:.0f} s with the build"
        if outcome == "broken":
            broken.append(one.name)
            print(f"FAIL {one.name}  cannot be built:")
            print("\n".join(f"     {line}" for line in text.splitlines()[-20:]))
        elif outcome == "passes":
            unnoticed.append(one.name)
            print(f"FAIL {one.name}  not noticed by {one.noticer}  {spent}")
        else:
            by = failed_in(text)
            most = None if options.noticer else 3
            shown = ", ".join(by[:most]) + f" and {len(by) - 3} more" * (most is not None and len(by) > 3)
            print(f"ok   {one.name}  {'it hangs' if outcome == 'hangs' else shown or 'the run ends early'}  {spent}")
        sys.stdout.flush()
    failed = len(unnoticed) + len(broken)
    if unnoticed:
        print(f"nothing notices: {', '.join(unnoticed)}")
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
