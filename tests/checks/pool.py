# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs groups side by side, as many as the machine has processors for, the longest first."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from . import machine, output, times
from .groups import WHOLE

LACKS = 77  # as automake has it: this machine lacks something, and the output's last line says what
# With some thirds more, what waits leaves no processor idle: with nine private schedulers on two, a third of their time was.
UNITS = WHOLE * (os.cpu_count() or 1) + 5
# A build that takes longer hangs, whatever the machine.
BUILD_SECONDS = 3600
MINUTE = 60
LOOKS = 5  # after so many seconds again


@dataclass
class Result:
    verdict: str  # pass, FAIL, skip, or ended: by us, in the middle
    words: str
    seconds: float = 0.0
    counts: list = field(default_factory=lambda: [0, 0, 0])
    text: str = ""


class Pool:
    def __init__(self, top, logs, strict):
        self.top, self.logs, self.strict = top, logs, strict
        self.results = {}  # by group
        self.running = {}  # by group: when it began
        self.to_build = []
        self.built = {}  # by build: its exit status, and None while it is being built
        self.waiting = []
        self.processes = {}  # of commands, by pid
        # A process is known before somebody can look for orphans; the end of a group is told to whoever waits.
        self.changed = threading.Condition()
        self.is_ending = False
        self.started = time.monotonic()
        self.known = times.read()
        self.watch = machine.Watch()
        machine.adopt_orphans()

    # -- what runs ----------------------------------------------------------------------

    def run(self, groups):
        """All of them. If this process is asked to end, so are they, and what they have said so far counts."""
        try:
            for is_last in False, True:
                self.run_all([group for group in groups if group.is_last == is_last])
        except BaseException:
            self.end_all()
            raise

    def run_all(self, groups):
        # First those beside which little may run: while they wait, nothing begins beside which they may not.
        self.waiting = sorted(groups, key=lambda group: (group.is_alone_on_host, self.expected(group)), reverse=True)
        # In the order of the groups' list, where that of clippy is the first.
        self.to_build = list(dict.fromkeys(build for group in groups if not group.lacking() for build in group.builds))
        told = time.monotonic()
        threads = []
        while self.waiting or self.running:
            with self.changed:
                for build in self.next_builds():
                    self.built[build] = None
                    threads.append(threading.Thread(target=self.of_builder, args=(build,), daemon=True))
                    threads[-1].start()
                for group in self.next_groups():
                    threads.append(threading.Thread(target=self.of_thread, args=(group,), daemon=True))
                    threads[-1].start()
                self.changed.wait(LOOKS)
                # As init would: a dead process counts for its user's limit until somebody has buried it.
                machine.orphans(set(self.processes))
            self.watch.look([group.name for group in self.running])
            if time.monotonic() - told >= MINUTE:
                told = time.monotonic()
                self.tell()
        for thread in threads:
            thread.join()

    def next_builds(self):
        """Of each place the next one, whatever else runs, since much waits for it."""
        taken = {build.place for build, status in self.built.items() if status is None}
        for build in self.to_build:
            if build not in self.built and build.place not in taken:
                taken.add(build.place)
                yield build

    def next_groups(self):
        """Those that begin now, longest first."""
        free = UNITS - WHOLE * sum(status is None for status in self.built.values()) - sum(group.units for group in self.running)
        held_up = []  # groups that could begin, if others did not run
        for group in list(self.waiting):
            if not self.is_ready(group):
                continue
            if not all(map(group.may_be_beside, [*self.running, *held_up])):
                held_up += [group] * group.is_alone_on_host
            elif group.units <= free or not self.running:
                free -= group.units
                self.waiting.remove(group)
                self.running[group] = time.monotonic()
                yield group

    def is_ready(self, group):
        """Whether all is built for it, or some of it cannot be."""
        before = [*self.waiting, *self.running]
        is_built = group.lacking() or all(self.built.get(build) is not None for build in group.builds)
        return is_built and not any(other.name in group.after for other in before)

    def of_builder(self, build):
        """Runs it, with its output in a file of its own."""
        status = 1
        try:
            with open(self.log_of(build), "w", encoding="utf-8", errors="replace") as log:
                status = self.command(build, build.command, BUILD_SECONDS, log)
        finally:
            with self.changed:
                # A status of None would be one that is being built.
                self.built[build] = 1 if status is None else status
                self.changed.notify_all()

    def expected(self, group):
        return times.expected(self.known, group.name, group.about)

    def of_thread(self, group):
        result = Result("FAIL", "the runner itself failed", counts=[0, 1, 0])
        try:
            result = self.result(group)
        finally:
            with self.changed:
                self.results[group] = result
                del self.running[group]
                self.changed.notify_all()

    # -- one group ----------------------------------------------------------------------

    def log_of(self, group):
        return self.logs / f"{group.name.translate(str.maketrans(' /:', '---'))}.log"

    def result(self, group):
        reason = group.lacking()
        if reason:
            is_given = group.given and not os.environ.get(group.given)
            return Result("FAIL", reason, counts=[0, 1, 0]) if self.strict and not is_given else Result("skip", reason, counts=[0, 0, 1])
        print(f"{self.clock()} {group.name} ...", flush=True)
        with open(self.log_of(group), "w", encoding="utf-8", errors="replace") as log:
            status, seconds = self.commands(group, log)
        text = self.text(group)
        passed, failed, skipped = output.counts(text)
        if status == LACKS and not self.strict:
            return Result("skip", (text.splitlines() or ["it lacks something"])[-1], counts=[0, 0, 1])
        stayed = self.stayed(group)
        if status is None:
            verdict, failed = "ended", max(failed, 1)
        elif status or failed or stayed:
            verdict, failed = "FAIL", max(failed, 1)
        else:
            # format, clippy and the demo are one test each.
            verdict, passed = "pass", max(passed, 1)
        words = f"{passed} passed, {failed} failed, {skipped} skipped"
        print(f"{self.clock()} {group.name}: {words}", flush=True)
        if verdict == "FAIL":
            print("\n".join([f"{group.name}:", *output.failures(text), *stayed, "", *output.tail(text)]), flush=True)
        else:
            times.keep(group.name, seconds, output.seconds(text))
        return Result(verdict, words, seconds, [passed, failed, skipped], "\n".join([text, *stayed]))

    def commands(self, group, log):
        """Runs the group's commands, until one fails: the status, and the seconds. What cannot be built for it is its failure, too."""
        for build in group.builds:
            log.write(self.text(build) if self.built[build] else "")
            log.flush()
            if status := self.built[build]:
                return None if self.is_ending else status, 0.0
        start, status = time.monotonic(), 0
        for command in group.commands:
            status = self.command(group, command, group.seconds, log)
            if status != 0:
                break
        return status, time.monotonic() - start

    def command(self, group, command, seconds, log):
        """Its exit status; None, if we were asked to end."""
        log.write(f"$ {' '.join(map(str, command))}\n")
        log.flush()
        with self.changed:
            if self.is_ending:
                return None
            child = subprocess.Popen(
                command, cwd=self.top, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, machine.MARK: group.name},
            )  # fmt: skip
            self.processes[child.pid] = child
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            log.write(f"not finished after {seconds} s\n")
            end(child)
            status = 1
        with self.changed:
            del self.processes[child.pid]
            if self.is_ending:
                return None
        if status not in (0, LACKS):
            log.write(f"exit status {status}\n")
        return status

    def stayed(self, group):
        """The group's processes that outlived it, which are ended now."""
        deadline = time.monotonic() + machine.GRACE
        while True:
            with self.changed:
                left = [pid for pid, mark in machine.orphans(set(self.processes)).items() if mark == group.name]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        lines = [f"FAIL left behind: {machine.described(pid)}" for pid in left]
        machine.end(left)
        return lines

    def text(self, group):
        try:
            return self.log_of(group).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def end_all(self):
        """Everything that runs tidies up after itself when it is asked to end."""
        with self.changed:
            self.is_ending = True
            children = list(self.processes.values())
        for child in children:
            signal_group(child, signal.SIGTERM)
        with self.changed:
            self.changed.wait_for(lambda: not self.running, 60)
        for child in children:
            signal_group(child, signal.SIGKILL)
        with self.changed:
            self.changed.wait_for(lambda: not self.running, 10)

    # -- what is told -------------------------------------------------------------------

    def clock(self):
        """Minutes and seconds since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self.started), MINUTE)
        return f"{minutes:3}:{seconds:02}"

    def tell(self):
        """One line: what runs, how far it is, and what is left."""
        with self.changed:
            running, left = dict(self.running), len(self.waiting)
            parts = [build.name for build, status in self.built.items() if status is None]
        for group in running:
            ended, announced = output.far(self.text(group))
            parts.append(f"{group.name} ({ended} of {max(announced, ended)})" if announced else group.name)
        waiting = f"; {left} more to begin" if left else ""
        print(f"{self.clock()} running: {', '.join(parts)}{waiting}", flush=True)


def signal_group(child, number):
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass


def end(child):
    """Everything that the command started: each tidies up after itself when it is asked to end."""
    for number, seconds in (signal.SIGTERM, 60), (signal.SIGKILL, 60):
        signal_group(child, number)
        try:
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            print(f"check: process {child.pid} does not end by signal {number}", file=sys.stderr)
