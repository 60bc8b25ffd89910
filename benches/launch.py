#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""How much longer `srun true` takes with the plugin, beside the kernel's own migration.

A private Slurm of one node runs the same command with the plugin and without it in turn. Between
them, and as long after anything else, a process that was made for it is moved into a cgroup of
each hierarchy that jobfence uses, as jobfence does it: one write after the other. That is the
price of the kernel alone, and it is high only when nothing was moved shortly before. It is paid
on a host that did nothing else just before, and on one where processes have just ended, as those
do that srun and slurmd start for each job.
"""

import argparse
import collections
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from slurm import kernel  # noqa: E402
from slurm.sites import PrivateSite, die_properly, until, write_atomically  # noqa: E402

# After so long without a migration, the kernel takes the long way again.
QUIET = 0.2
WARM_UP = 2

LAUNCH_GOAL_MS = 3
SIZE_GOAL = 1_500_000


class Goals:
    """What is wanted, what was found, and whether that is enough."""

    def __init__(self):
        self.lines = []
        self.missed = False

    def add(self, name, value, wanted, met):
        self.missed |= not met
        verdict = "met" if met else "MISSED"
        self.lines.append(f"  {name:<52}{value:>12}{wanted:>12}  {verdict}")

    def print(self):
        print(f"\n{'goal':<54}{'value':>12}{'wanted':>12}")
        print("\n".join(self.lines))


def heading(title):
    print(f"\n{title:<46}{'least ms':>10}{'median':>10}{'p90':>10}{'most':>10}")


def row(name, seconds):
    ordered = sorted(seconds)
    p90 = ordered[-(-len(ordered) * 9 // 10) - 1]
    shown = (ordered[0], statistics.median(ordered), p90, ordered[-1])
    print(f"  {name:<44}" + "".join(f"{1000 * value:>10.2f}" for value in shown))


# ----------------------------------------------------------------------------------------
# The kernel's own migration


class Migration:
    """Directories of our own in the hierarchies that jobfence uses, to move a process into."""

    def __init__(self):
        self.name = f"jobfence-bench-{os.getpid()}"
        # cgroup2 comes first, as in jobfence; its controllers, if it has any, are one hierarchy.
        self.names = sorted(kernel.expected_hierarchies())
        mounted = kernel.hierarchies()
        self.directories = [mounted[name].mount_point / self.name for name in self.names]

    def __enter__(self):
        for directory in self.directories:
            directory.mkdir()
        return self

    def __exit__(self, *_):
        for directory in self.directories:
            # Whoever was moved there has just been waited for, and may still be on its way out.
            until(lambda: remove(directory), 5, f"the removal of {directory}")

    def measure(self):
        """Seconds for one write of a new process's pid in each hierarchy."""
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        with child:
            took = []
            for directory in self.directories:
                start = time.perf_counter()
                file = os.open(directory / "cgroup.procs", os.O_WRONLY)
                os.write(file, str(child.pid).encode())
                os.close(file)
                took.append(time.perf_counter() - start)
            child.stdin.close()
        return took

    def measure_in_company(self):
        """The same as a launch meets it: other processes have ended just before.

        Their end has begun a grace period of RCU. The kernel waits for the rest of it and for
        the whole of the next, and on an idle host for one only.
        """
        for _ in range(3):
            subprocess.run(["true"], check=True)
        return self.measure()


def remove(directory):
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()


# ----------------------------------------------------------------------------------------
# srun


class Plugstack:
    """Puts the plugin into plugstack.conf and takes it out; Slurm reads it at each launch."""

    def __init__(self, site):
        self.file = site.plugstack_files()[0]
        self.line = self.file.read_text()

    def use(self, plugin):
        write_atomically(self.file, self.line if plugin else "")


def srun(site, *args):
    done = site.srun(site.users[0], *args)
    if done.returncode != 0:
        sys.exit(f"srun failed: {done.stderr.strip()}")
    return done.stdout


def timed_launch(site, plugstack, plugin):
    plugstack.use(plugin)
    start = time.perf_counter()
    srun(site, "true")
    return time.perf_counter() - start


def check_that_it_fences(site, plugstack):
    """What is compared must be a fenced job and one that is not."""
    for plugin in (False, True):
        plugstack.use(plugin)
        fenced = "/job_" in srun(site, "cat", "/proc/self/cgroup")
        if fenced != plugin:
            sys.exit("the job is fenced without the plugin" if fenced else
                     "the job is not fenced with the plugin:\n"
                     + site.slurmd_log.read_text(errors="replace")[-3000:])


def launches(site, plugstack, pairs, goals):
    with_plugin, without, idle, company = [], [], [], []
    with Migration() as migration:
        names = migration.names
        for pair in range(-WARM_UP, pairs):
            # Which of them comes first makes a difference, so it changes.
            doings = [
                (with_plugin, lambda: timed_launch(site, plugstack, True)),
                (without, lambda: timed_launch(site, plugstack, False)),
                (idle, migration.measure),
                (company, migration.measure_in_company),
            ]
            for into, doing in doings if pair % 2 else reversed(doings):
                time.sleep(QUIET)
                took = doing()
                if pair >= 0:
                    into.append(took)

    differences = [a - b for a, b in zip(with_plugin, without)]
    heading(f"srun true, {pairs} pairs, {QUIET * 1000:.0f} ms between any two")
    row("without the plugin", without)
    row("with the plugin", with_plugin)
    row("difference within each pair", differences)
    for samples, where in ((idle, "on an idle host"), (company, "after other processes")):
        sums = [sum(each) for each in samples]
        row(f"the kernel's migration {where}", sums)
        for name, each in zip(names, zip(*samples)):
            row(f"  {name or 'cgroup2'}", each)
        more = 1000 * (statistics.median(differences) - statistics.median(sums))
        goals.add(f"srun: ms beyond the migration {where}", f"{more:.2f}",
                  f"<= {LAUNCH_GOAL_MS}", more <= LAUNCH_GOAL_MS)


# ----------------------------------------------------------------------------------------
# What the plugin costs in other coin


def threads(site, plugstack, goals):
    counts = {}
    for plugin in (False, True):
        plugstack.use(plugin)
        counts[plugin] = threads_of_a_step(site)
    goals.add("threads of slurmstepd (without the plugin the same)", str(counts[True]),
              f"= {counts[False]}", counts[True] == counts[False])


def threads_of_a_step(site):
    """The threads of a step daemon whose task has been running for a moment."""
    job = site.as_user(site.users[0], ["srun", "sleep", "60"], start=True)
    try:
        def running():
            ours = [(pid, kernel.command_line(pid)) for pid in site.our_processes()]
            daemons = [pid for pid, line in ours if line.startswith("slurmstepd: [")]
            # srun itself is no process of the site's: this is the task.
            task = any(line.endswith("sleep 60") for _, line in ours)
            return daemons if task else None
        daemon, = until(running, 20, "the step")
        # A daemon that is starting has more: take what it settles at.
        samples = []
        for _ in range(20):
            time.sleep(0.05)
            status = kernel.read(f"/proc/{daemon}/status")
            samples.append(int(re.search(r"^Threads:\s*(\d+)", status, re.M).group(1)))
        return samples[-1]
    finally:
        # Twice in a second, and srun ends its job.
        for _ in range(2):
            if job.poll() is None:
                job.send_signal(signal.SIGINT)
                time.sleep(0.1)
        job.communicate(timeout=30)
        until(site.idle_again, 20, "the end of the job")


def size(so, goals):
    found = os.stat(so).st_size
    goals.add("size of the shared object in bytes", str(found), f"<= {SIZE_GOAL}",
              found <= SIZE_GOAL)


def writes(program, goals):
    """How often each pid is written to cgroup.procs, in each hierarchy."""
    if not shutil.which("strace"):
        print("strace is missing: the writes to cgroup.procs are not counted")
        return
    with tempfile.TemporaryDirectory(prefix="jobfence-bench-") as scratch:
        log = Path(scratch) / "strace"
        base = f"jobfence-bench-{os.getpid()}"
        subprocess.run(
            ["strace", "-f", "-qq", "-y", "-e", "trace=write", "-o", log, program, "run",
             "-o", f"RunDir={scratch}/run", "-o", f"CgroupBase={base}",
             "--cpus", "1", "--mem", "100M", "--", "true"],
            stdin=subprocess.DEVNULL, check=True, timeout=60,
        )
        for directory in kernel.Group("/" + base).directories():
            directory.rmdir()
        written = re.findall(r'write\(\d+<([^>]*)/cgroup\.procs>, "(\d+)', log.read_text())
    counts = collections.Counter(written)
    used = len(kernel.expected_hierarchies())
    exact = len(counts) == used and set(counts.values()) == {1}
    per = "/".join(str(count) for count in counts.values()) or "0"
    goals.add(f"writes to cgroup.procs in the {used} hierarchies", per,
              "/".join("1" * used), exact)


# ----------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--so", required=True, help="the plugin")
    parser.add_argument("--bin", required=True, help="the jobfence command")
    parser.add_argument("--pairs", type=int, default=60, help="launches of each kind [60]")
    parser.add_argument("--strict", action="store_true", help="fail when a goal is missed")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    return options


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("this needs root")
    die_properly()
    goals = Goals()
    print(f"{kernel.layout()}, Linux {os.uname().release}, "
          f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with PrivateSite(options.so, options.bin) as site:
        print(site.command("srun", "--version").stdout.strip())
        plugstack = Plugstack(site)
        check_that_it_fences(site, plugstack)
        launches(site, plugstack, options.pairs, goals)
        threads(site, plugstack, goals)
    size(options.so, goals)
    writes(options.bin, goals)
    goals.print()
    return 1 if goals.missed and options.strict else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
