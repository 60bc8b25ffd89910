#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The tests, in groups: check.py [--tier quick|check|all] [GROUP...]. 'make check' is the tier of this name.

Groups of one stage run side by side (AT_ONCE), those of no stage alone: they measure on this machine itself.
A group whose needs this machine does not meet is skipped, with the reason; with CI=true in the environment that is a
failure. The whole output of each group is in target/check/.

What fails beside other groups may have failed for want of a processor. So a few failed tests of a group are run once more at the
end, alone. If they pass then, the group is "unsteady", which is named at the end and no failure; in the tier "all" it is one.
"""

import argparse
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[1]
LOGS = TOP / "target/check"
STARTED = time.monotonic()
TAIL = 60
# A private Slurm waits half of its time. A guest wants a processor.
AT_ONCE = {"slurm": 4}
OTHERWISE = 2
RUNNING = set()  # what to end when we are ended
sys.path.insert(0, str(TOP / "tests/vm"))
from cells import CELLS, CHECKED  # noqa: E402

SO, BIN = "target/release/libjobfence.so", "target/release/jobfence"
RELEASE = ("cargo", "build", "--release", "--locked")
# The test programs, and the shared object that they ask for.
BUILT = ("cargo", "test", "--locked", "--no-run"), ("cargo", "build", "--locked", "--package", "libjobfence")
PRIVATE_SLURM = {"root": True, "programs": ("slurmctld", "slurmd", "munged"), "controllers": ("cpu", "memory")}
GUESTS = ("mmdebstrap", "mkfs.ext4")
SITES = "--installed", "--two-nodes"  # of cell.py
FEW_LINES = 5
# More than so many failed tests of a group are no accident.
FEW = 3


@dataclass(frozen=True)
class Group:
    name: str
    commands: tuple
    seconds: int  # more than this is a hang
    stage: str = ""
    root: bool = False
    programs: tuple = ()
    controllers: tuple = ()
    tiers: tuple = ("check", "all")
    again: tuple = ()  # runs those of its tests alone whose names follow
    given: str = ""  # a variable of the environment without which the group is skipped, with CI=true, too


QUICK = ("quick", "check", "all")
IMAGES = tuple(("python3", "-B", "tests/vm/vm.py", "image", "--cell", image)
               for image in dict.fromkeys(CELLS[cell].image for cell, _ in CHECKED))
CASES = ("python3", "-B", "tests/slurm/cases.py", "--so", SO, "--bin", BIN)
PRIVATE_PBS = {"root": True, "programs": ("unshare", "ip"), "controllers": ("cpu", "memory")}
PBS_CASES = ("python3", "-B", "tests/pbs/cases.py", "--so", SO, "--bin", BIN)
# Beside another private Slurm: jobfence looks for a job's processes among those of its user.
USERS = ("daemon", "mail"), ("news", "list"), ("uucp", "proxy")
OTHER_USERS = tuple(("--users", *users) for users in USERS)
CHECKED_CASES = (*CASES, "--no-patient", "--no-release")

# The host's tests, by their files: those of minutes, and the others.
IS_LONG = ("crowd", "faults", "wear")
LONG = tuple(word for name in IS_LONG for word in ("--test", name))
HOSTS = sorted({path.stem for path in (TOP / "tests").glob("*.rs")} - set(IS_LONG) | {"fuzz"})
SHORT = tuple(word for name in HOSTS for word in ("--test", name))

GROUPS = (
    # With the table of 'make mutants': each of its rows still applies.
    Group("format", (("cargo", "fmt", "--all", "--check"), ("python3", "-B", "tests/mutants.py", "--stale")), 60, "build", tiers=QUICK),
    Group("install", (RELEASE, ("tests/install.sh",)), 900, "build"),
    Group("clippy", (("cargo", "clippy", "--locked", "--all-targets", "--", "-D", "warnings"),), 900, "build", tiers=QUICK),
    Group("unit", (("cargo", "test", "--locked", "--package", "jobfence", "--lib", "--bins"),), 900, "build", tiers=QUICK),
    Group("cost", (RELEASE, ("python3", "-B", "tests/cost.py", "--so", SO)), 900, "build", root=True, controllers=("cpu", "memory")),
    Group("images", IMAGES, 1800, "build", root=True, programs=GUESTS),
    # All that the host's tests need is built with it.
    Group("fuzz", (*BUILT, ("cargo", "test", "--locked", "--test", "fuzz")), 900, "build"),
    Group(
        "host",
        # What is fuzzed has a group of its own, which needs no root.
        (("cargo", "test", "--locked", *SHORT, "--", "--skip", "targets::fuzz::"),),
        1800,
        again=("cargo", "test", "--locked", *SHORT, "--"),
        root=True,
        controllers=("cpu", "memory"),
        tiers=QUICK,
    ),
    # Minutes each: faults.rs looks at all of this machine, so nothing is beside it.
    Group("faults", (("cargo", "test", "--locked", *LONG),), 3600, root=True, controllers=("cpu", "memory"),
          again=("cargo", "test", "--locked", *LONG, "--")),
    Group("slurm", (RELEASE, (*CHECKED_CASES, "--share", "1/2", "--dear", "1/2")), 1500, "slurm", again=(*CASES, "--only"),
          **PRIVATE_SLURM),
    Group("slurm other half", (RELEASE, (*CHECKED_CASES, "--share", "2/2", "--dear", "2/2", *OTHER_USERS[0])), 1500, "slurm",
          again=(*CASES, *OTHER_USERS[0], "--only"), **PRIVATE_SLURM),
    Group("slurm patient", (RELEASE, (*CASES, "--patient", *OTHER_USERS[1])), 900, "slurm", again=(*CASES, *OTHER_USERS[1], "--only"),
          **PRIVATE_SLURM),
    Group("slurm two nodes", (RELEASE, (*CASES, "--site", "two-nodes", *OTHER_USERS[2])), 900, "slurm",
          again=(*CASES, "--site", "two-nodes", *OTHER_USERS[2], "--only"), **PRIVATE_SLURM),
    # What a shorter test notices, too.
    Group("slurm release", (RELEASE, (*CASES, "--release")), 900, tiers=("all",), **PRIVATE_SLURM),
    Group("soak", (RELEASE, ("python3", "-B", "tests/slurm/soak.py", "--so", SO, "--bin", BIN, "-n", "40")), 600, **PRIVATE_SLURM),
    Group("demo", (RELEASE, ("python3", "-B", "tests/demo.py", "--so", SO, "--bin", BIN)), 600, **PRIVATE_SLURM),
    # The hook of OpenPBS without OpenPBS.
    Group("hook", (RELEASE, ("python3", "-B", "tests/pbs/replay.py", "--so", SO, "--bin", BIN, "--patience", "3")), 600,
          root=True, controllers=("cpu", "memory", "freezer"), tiers=QUICK),
    # Beside each other, since each is in namespaces of its own.
    Group("openpbs", (RELEASE, (*PBS_CASES, "--site", "private")), 1800, "openpbs", given="OPENPBS", **PRIVATE_PBS),
    Group("openpbs hosts", (RELEASE, (*PBS_CASES, "--site", "hosts")), 1200, "openpbs", given="OPENPBS", **PRIVATE_PBS),
    # Debian's Python has selenium, another one in PATH may not.
    Group("browser", (RELEASE, ("/usr/bin/python3", "-B", "tests/browser.py", "--bin", BIN)), 300, "build", programs=("chromedriver",)),
    # What README.md and docs/install tell an administrator to type.
    Group("pages", (RELEASE, ("python3", "-B", "tests/pages.py", "--so", SO, "--bin", BIN)), 600, **PRIVATE_SLURM),
    *(
        Group(
            f"vm {cell}" + " two nodes" * ("--two-nodes" in options),
            (RELEASE, ("python3", "-B", "tests/vm/cell.py", cell, *options)),
            4500,
            "guests",  # a processor each
            root=True,
            programs=GUESTS,
            again=("python3", "-B", "tests/vm/cell.py", cell, *(word for word in options if word in SITES)),
        )
        for cell, options in CHECKED
    ),
    # After those, which have more to look at: every case in every cell.
    Group(
        "matrix",
        (RELEASE, ("python3", "-B", "tests/vm/matrix.py", "--jobs", "2")),
        12 * 3600,
        root=True,
        programs=GUESTS,
        tiers=("all",),
    ),
)


def lacking(group):
    """Why this machine cannot run the group, or nothing."""
    if group.root and os.geteuid() != 0:
        return "needs root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for program in group.programs:
        if not shutil.which(program, path=path):
            return f"needs {program}"
    for controller in group.controllers:
        if not has_controller(controller):
            return f"needs the {controller} controller"
    return None


def has_controller(controller):
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists() and controller in unified.read_text().split():
        return True
    # Fields of /proc/cgroups: name, hierarchy (0 where it is not in a v1 one), number of cgroups, enabled.
    rows = (line.split() for line in Path("/proc/cgroups").read_text().splitlines())
    return any(row[0] == controller and row[1] != "0" for row in rows)


def log_of(group):
    return LOGS / f"{group.name.replace(' ', '-')}.log"


LACKS = 77  # as automake has it: this machine lacks something, and the output's last line says what


def run(group, log):
    """Runs the group's commands until one fails; its exit status."""
    for command in group.commands:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        child = subprocess.Popen(
            command, cwd=TOP, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        RUNNING.add(child)
        try:
            status = child.wait(group.seconds)
        except subprocess.TimeoutExpired:
            log.write(f"not finished after {group.seconds} s\n")
            end(child)
            return 1
        except BaseException:
            end(child)
            raise
        finally:
            RUNNING.discard(child)
        if status != 0:
            log.write(f"exit status {status}\n" if status != LACKS else "")
            return status
    return 0


def end(child):
    """Everything that the command started: each tidies up after itself when it is asked to end."""
    for number, seconds in (signal.SIGTERM, 30), (signal.SIGKILL, 30):
        try:
            os.killpg(child.pid, number)
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            pass
        except ProcessLookupError:
            return


def counts(text):
    """Passed, failed and skipped tests in a group's output, in the words of cargo or of our own runners."""
    total = [0, 0, 0]
    cargo = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", text, re.M)
    own = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", text, re.M)
    for found in cargo + own:
        total = [sum + int(number) for sum, number in zip(total, found)]
    return total


def said_of_failed(text):
    """Each test that failed, with the first lines of what our own runners say of it, and what ended a runner itself."""
    told = r"^FAIL .*(?:\n     .*){0,3}|^test \S+ \.\.\. FAILED|^Traceback .*(?:\n .*)*\n.*|^ +\[NO\].*"
    return re.findall(told, text, re.M) or text.splitlines()[-FEW_LINES:]


def names_of_failed(text):
    """Their names, in the words of our own runners or of cargo."""
    names = re.findall(r"^FAIL +(\w+)|^test (\S+) \.\.\. FAILED", text, re.M)
    return list(dict.fromkeys(ours or cargos for ours, cargos in names))


def passes_alone(group, failed):
    """Whether the failed tests of a group pass now, when nothing else runs; None where that would say nothing."""
    log = log_of(group)
    text = log.read_text(errors="replace") if group.again and log.exists() else ""
    names = names_of_failed(text)
    if not names or len(names) != failed or failed > FEW:
        return None
    # After a failed case nothing is rebooted.
    if "--reboot" in group.commands[-1] and not re.search(r"^\w+ +rebooted ", text, re.M):
        names.append("rebooted")
    print(f"{clock()} {group.name}, once more and alone: {', '.join(names)} ...", flush=True)
    with open(log.with_suffix(".again.log"), "w+", encoding="utf-8", errors="replace") as again:
        status = run(replace(group, commands=((*group.again, *names),)), again)
        again.seek(0)
        passed, failed, _ = counts(again.read())
    has_passed = status == 0 and failed == 0 and passed >= len(names)
    print(f"{clock()} {group.name}: {'unsteady' if has_passed else 'it fails alone, too'}", flush=True)
    return has_passed


def telling(text):
    """What to read of a group that failed: which tests did, what our own runners say of each, and how the output ends."""
    lines = text.splitlines()
    names = names_of_failed(text)
    shown = [f"failed: {', '.join(names)}"] if names else []
    is_of_failed = False
    for line in lines[:-TAIL]:
        is_of_failed = line.startswith("FAIL ") or is_of_failed and line.startswith("     ")
        shown += [line] if is_of_failed else []
    return shown + lines[-TAIL:]


def main():
    # Ended like an exception, so that what runs is ended too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tier", choices=("quick", "check", "all"), help="check, unless groups are named")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    options = parser.parse_intermixed_args()
    wanted, tier = options.groups, options.tier or ("all" if options.groups else "check")
    unknown = set(wanted) - {word for group in GROUPS for word in (group.name, group.name.split()[0])}
    if unknown:
        sys.exit(f"{__doc__}\nunknown: {', '.join(sorted(unknown))}; there are: {', '.join(g.name for g in GROUPS)}")
    strict = os.environ.get("CI") == "true"
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen = [g for g in GROUPS if tier in g.tiers and (not wanted or {g.name, g.name.split()[0]} & set(wanted))]
    results = {}
    for stage, groups in itertools.groupby(chosen, lambda group: group.stage or group.name):
        pool = ThreadPoolExecutor(AT_ONCE.get(stage, OTHERWISE))
        try:
            # In their order, each when one before it has ended.
            for group, found in [(group, pool.submit(result, group, strict)) for group in groups]:
                results[group.name] = found.result()
        except BaseException:
            # First: what is ended makes room for the next.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(RUNNING):
                end(child)
            raise
        pool.shutdown()
    for group in (group for group in chosen if tier != "all" and results[group.name][0] == "FAIL"):
        _, seconds, words, (passed, failed, skipped) = results[group.name]
        if passes_alone(group, failed):
            results[group.name] = "unsteady", seconds, words, (passed + failed, 0, skipped)
    print()
    for group in chosen:
        verdict, seconds, words, _ = results[group.name]
        print(f"{group.name:28} {verdict:8} {seconds:>6}  {words}")
    # Once more at the end, since what shows a long output may leave out its middle.
    for group in (group for group in chosen if results[group.name][0] in ("FAIL", "unsteady") and log_of(group).exists()):
        print(f"\n{group.name}:", *said_of_failed(log_of(group).read_text(errors="replace")), sep="\n")
    total = [sum(column) for column in zip(*(counted for *_, counted in results.values()))]
    print(f"\n{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    sys.exit(1 if total[1] else 0)


def clock():
    """Minutes and seconds since the start."""
    minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
    return f"{minutes:3}:{seconds:02}"


def result(group, strict):
    """What the group's row of the table says: the verdict, seconds, words, and its (passed, failed, skipped)."""
    if group.given and not os.environ.get(group.given):
        return "skip", "-", f"needs {group.given}=DIR", (0, 0, 1)
    reason = lacking(group)
    if reason:
        return ("FAIL", "-", reason, (0, 1, 0)) if strict else ("skip", "-", reason, (0, 0, 1))
    print(f"{clock()} {group.name} ...", flush=True)
    start = time.monotonic()
    with open(log_of(group), "w+", encoding="utf-8", errors="replace") as log:
        status = run(group, log)
        log.seek(0)
        text = log.read()
    passed, failed, skipped = counts(text)
    if status == LACKS and not strict:
        return "skip", "-", (text.splitlines() or ["it lacks something"])[-1], (0, 0, 1)
    if status:
        print("\n".join([f"{group.name}:", *telling(text)]), flush=True)
        failed = max(failed, 1)
    elif passed == 0:
        passed = 1  # format, clippy and the demo are one test each
    words = f"{passed} passed, {failed} failed, {skipped} skipped"
    # Who is ended in the middle has said how far it was.
    print(f"{clock()} {group.name}: {words}", flush=True)
    return "FAIL" if failed else "pass", f"{time.monotonic() - start:.0f} s", words, (passed, failed, skipped)


if __name__ == "__main__":
    main()
