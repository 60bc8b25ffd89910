#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job's launch costs with jobfence, beside Slurm alone and beside Slurm's own cgroup plugins.

Two private Slurms of one node run the same commands in turn: one that uses no cgroups, and one with its own cgroup
plugins. Each runs them with the plugin and without it, beside a `jobfence hold`: with that, the kernel's wait for a
move is over when a task comes (EarlyMoves). One row is without it.
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

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests"), str(TOP), str(TOP / "benches")]

from contract import kernel  # noqa: E402
from contract.sites import die_properly, until, write_atomically  # noqa: E402
from slurm.sites import PrivateSite  # noqa: E402
from tables import HOW_TO_READ, Goals, in_turn, table  # noqa: E402

# After so long without a migration, the kernel takes the long way again.
QUIET = 0.2

LAUNCH_GOAL_MS = 1
SIZE_GOAL = 1_500_000
# Slurm's own, as most sites have them.
CGROUPS = {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup", "JobAcctGatherType": "jobacct_gather/cgroup"}
CONSTRAIN = {"ConstrainCores": "yes", "ConstrainRAMSpace": "yes"}

ALONE, BARE, FENCED = "Slurm alone", "Slurm alone, with jobfence and no hold", "Slurm alone, with jobfence"
CGROUP, OVERLAY = "Slurm's own cgroup plugins", "Slurm's own cgroup plugins, with jobfence"
BASE = "Slurm alone, with jobfence of BASE"


def is_tmpfs(path):
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return any(mount[1:3] == [path, "tmpfs"] for mount in mounts)


class BenchSite(PrivateSite):
    """A private Slurm, as many of them at once as have names of their own."""

    def __init__(self, options, name, placement=None, cgroup=None):
        super().__init__(options.so, options.bin)
        self.placement.update(placement or {})
        self.cgroup.update(cgroup or {})
        self.name = f"{self.name}-{name}"
        self.base = f"jobfence.slice/{self.name}.scope" if self.systemd else self.name
        self.holder = None
        self.records = None

    def __enter__(self):
        # The kind of file system counts: /run is a tmpfs wherever systemd boots, and where it is not another one is taken.
        beside = next((top for top in ("/run", "/dev/shm") if is_tmpfs(top)), None)
        self.records = Path(tempfile.mkdtemp(prefix="jobfence-bench-", dir=beside))
        super().__enter__()
        self.file = self.plugstack_files()[0]
        self.line = self.file.read_text()
        self.plugins = {True: self.line, False: ""}
        return self

    def __exit__(self, *failure):
        try:
            return super().__exit__(*failure)
        finally:
            shutil.rmtree(self.records, ignore_errors=True)

    def run_directory(self):
        return self.records

    def use(self, plugin):
        """Puts the plugin into plugstack.conf or takes it out; Slurm reads it at each launch."""
        write_atomically(self.file, self.plugins[plugin])

    def hold(self):
        """What jobfence.service runs, for this RunDir."""
        self.keeper.start("early", [str(self.jobfence), "hold", "-o", f"CgroupBase={self.base}",
                                    "-o", f"RunDir={self.run_directory()}"])
        self.socket = self.run_directory() / "hold.lock/early_move"
        until(self.socket.exists, 20, "jobfence hold")

    @contextlib.contextmanager
    def without_hold(self):
        """As if it did not run: launches do not find it."""
        away = self.socket.with_name("away")
        self.socket.rename(away)
        try:
            yield
        finally:
            away.rename(self.socket)


class Rows:
    """The kinds of launches, each of which is one of the sites with a plugin or without."""

    def __init__(self, alone, cgroup, base):
        self.of = {ALONE: (alone, False), BARE: (alone, True), FENCED: (alone, True)}
        if base:
            alone.plugins["base"] = alone.line.replace(str(alone.top / "libjobfence.so"), str(base))
            self.of[BASE] = (alone, "base")
        if cgroup:
            self.of |= {CGROUP: (cgroup, False), OVERLAY: (cgroup, True)}

    @contextlib.contextmanager
    def ready(self, kind):
        site, plugin = self.of[kind]
        site.use(plugin)
        with site.without_hold() if kind == BARE else contextlib.nullcontext():
            yield site


def srun(site, *args):
    done = site.srun(site.users[0], *args)
    if done.returncode != 0:
        sys.exit(f"srun failed: {done.stderr.strip()}")
    return done.stdout


def check_that_it_fences(rows):
    """What is compared must be fenced jobs and others."""
    for kind, (_, plugin) in rows.of.items():
        with rows.ready(kind) as site:
            is_told = "JOBFENCE_CPUS=" in srun(site, "env")
        if is_told != bool(plugin):
            sys.exit(f"{kind}: the job is {'' if is_told else 'not '}fenced\n" + site.slurmd_log.read_text(errors="replace")[-3000:])


def timed(site, *argv, check=True):
    start = time.perf_counter()
    done = site.as_user(site.users[0], list(argv))
    if check and done.returncode != 0:
        sys.exit(f"{argv[0]} failed: {done.stderr.strip()}")
    return time.perf_counter() - start


def launches(rows, options, goals):
    def one(kind, quiet):
        with rows.ready(kind) as site:
            time.sleep(quiet)
            return timed(site, "srun", "true")
    found = in_turn(rows.of, options.rounds, lambda kind: one(kind, QUIET), warm_up=2)
    table(f"srun true, {options.rounds} times, {QUIET * 1000:.0f} ms before each", found)
    medians = {kind: 1000 * statistics.median(samples) for kind, samples in found.items()}
    more = medians[FENCED] - medians[ALONE]
    goals.add("srun true: ms above Slurm alone", f"{more:.2f}", f"<= {LAUNCH_GOAL_MS}", more <= LAUNCH_GOAL_MS)
    if CGROUP in medians:
        ratio = medians[FENCED] / medians[CGROUP]
        goals.add("the same, beside Slurm's own cgroup plugins", f"{ratio:.2f}", "< 1", ratio < 1)

    def many(kind):
        with rows.ready(kind) as site:
            return timed(site, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do srun true || exit 1; done") / 10
    table("srun true, each of ten one after the other", in_turn(rows.of, max(options.rounds // 10, 2), many))


def tasks(rows, options):
    """What each of many tasks of a step costs. They have one CPU together, whose quota is not to be measured."""
    rows.of[FENCED][0].configure(ConstrainCPUQuota="no")
    for count in options.tasks:
        def one(kind, count=count):
            with rows.ready(kind) as site:
                time.sleep(QUIET)
                # Each task is first a copy of its step daemon, and so many need room.
                return timed(site, "srun", f"--ntasks={count}", "--overcommit", "--mem=1200", "true")
        # One differs from the next by a tenth.
        rounds = max(options.rounds // (10 if count < 100 else 3), 3)
        found = in_turn([ALONE, FENCED], rounds, one)
        table(f"a step with {count} tasks", found)
        more = statistics.median(found[FENCED]) - statistics.median(found[ALONE])
        print(f"  {'jobfence adds, for each task, us':<58}{1e6 * more / count:>12.0f}")
    rows.of[FENCED][0].configure()


def many_jobs(rows, options, goals):
    """Empty jobs by sbatch, and steps in one job."""
    kinds = [kind for kind in rows.of if kind not in (BARE, BASE)]
    jobs = f"for i in $(seq {options.jobs}); do sbatch -Q -n1 --mem=1 -o /dev/null --wrap=true || exit 1; done"

    def batch(kind):
        with rows.ready(kind) as site:
            start = time.perf_counter()
            timed(site, "sh", "-c", jobs)
            until(lambda: not site.command("squeue", "-h").stdout.strip(), 600, "the end of the jobs")
            return time.perf_counter() - start
    found = in_turn(kinds, options.batches, batch, warm_up=0)
    table(f"{options.jobs} empty jobs by sbatch", found, "s")
    more = 100 * (statistics.median(found[FENCED]) / statistics.median(found[ALONE]) - 1)
    goals.add("jobs by sbatch: percent above Slurm alone", f"{more:.1f}", "<= 3", more <= 3)

    steps = f"seq {options.steps} | xargs -P8 -I% srun --overlap -n1 --mem=1 true"

    def in_one_job(kind):
        with rows.ready(kind) as site:
            return timed(site, "salloc", "-Q", "-n1", "--mem=100", "sh", "-c", steps)
    table(f"{options.steps} steps of srun in one job, 8 at a time", in_turn(kinds, options.batches, in_one_job, warm_up=0), "s")


# ----------------------------------------------------------------------------------------
# What it costs in other coin


@contextlib.contextmanager
def running_step(site):
    """A step daemon whose task has been running for a moment."""
    job = site.as_user(site.users[0], ["srun", "sleep", "60"], start=True)
    try:
        def running():
            ours = [(pid, kernel.command_line(pid)) for pid in site.our_processes()]
            daemons = [pid for pid, line in ours if line.startswith("slurmstepd: [")]
            # srun itself is no process of the site's: this is the task.
            return daemons if any(line.endswith("sleep 60") for _, line in ours) else None
        daemon, = until(running, 20, "the step")
        # One that is starting has more of everything.
        time.sleep(1)
        yield daemon
    finally:
        # Twice in a second, and srun ends its job.
        for _ in range(2):
            if job.poll() is None:
                job.send_signal(signal.SIGINT)
                time.sleep(0.1)
        job.communicate(timeout=30)
        until(site.idle_again, 20, "the end of the job")


def status(pid, key):
    return int(re.search(rf"^{key}:\s*(\d+)", kernel.read(f"/proc/{pid}/status"), re.M).group(1))


def rollup_kib(pid, keys):
    text = kernel.read(f"/proc/{pid}/smaps_rollup")
    return sum(int(amount) for amount in re.findall(rf"^(?:{keys}):\s*(\d+)", text, re.M))


def private_kib(pid):
    """What would be free without it."""
    return rollup_kib(pid, "Private_Clean|Private_Dirty")


def slurmd_that_began(rows, kind):
    """What a slurmd that has just begun has written to its memory, in KiB, and the milliseconds of CPU time that it has used:
    medians of five. It does nothing of ours for a launch."""
    found = []
    with rows.ready(kind) as site:
        for _ in range(5):
            site.restart_slurmd()
            time.sleep(1)
            pid = site.slurmd_pid()
            used = sum(int(kernel.read(f"/proc/{pid}/task/{thread}/schedstat").split()[0]) for thread in os.listdir(f"/proc/{pid}/task"))
            found.append((rollup_kib(pid, "Anonymous"), used / 1e6))
    return tuple(statistics.median(column) for column in zip(*found))


def daemons(rows, goals):
    seen = {}
    for kind in ALONE, FENCED:
        with rows.ready(kind) as site, running_step(site) as daemon:
            seen[kind] = private_kib(daemon), status(daemon, "Threads")
    (alone, threads), (fenced, with_us) = seen[ALONE], seen[FENCED]
    print("\nmemory, threads and wake-ups")
    print(f"  slurmstepd alone has {alone} KiB of its own and {threads} threads; jobfence adds {fenced - alone} KiB")
    goals.add("memory added to slurmstepd, KiB", str(fenced - alone), "<= 1024", fenced - alone <= 1024)
    goals.add("threads of slurmstepd (without the plugin the same)", str(with_us), f"= {threads}", with_us == threads)
    (alone, used), (fenced, used_with_us) = (slurmd_that_began(rows, kind) for kind in (ALONE, FENCED))
    print(f"  slurmd alone has written to {alone} KiB, and needs {used:.1f} ms of CPU time to begin;"
          f" jobfence adds {fenced - alone} KiB and {used_with_us - used:.1f} ms")
    holder = rows.of[FENCED][0].keeper.pids["early"]
    before = status(holder, "voluntary_ctxt_switches")
    time.sleep(65)
    woken = status(holder, "voluntary_ctxt_switches") - before
    print(f"  'jobfence hold' has {private_kib(holder)} KiB of its own; in 65 quiet seconds it gave up its CPU {woken} times")


def size(so, goals):
    found = os.stat(so).st_size
    goals.add("size of the shared object in bytes", str(found), f"<= {SIZE_GOAL}", found <= SIZE_GOAL)


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
    goals.add(f"writes to cgroup.procs in the {used} hierarchies", per, "/".join("1" * used), exact)


# ----------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--so", required=True, help="the plugin")
    parser.add_argument("--bin", required=True, help="the jobfence command")
    parser.add_argument("--base", help="another plugin, to compare with")
    parser.add_argument("--rounds", type=int, default=60, help="launches of each kind [60]")
    parser.add_argument("--batches", type=int, default=3, help="times that many jobs are run [3]")
    parser.add_argument("--jobs", type=int, default=200, help="so many of them [200]")
    parser.add_argument("--steps", type=int, default=500, help="steps in one job [500]")
    parser.add_argument("--tasks", type=int, nargs="*", default=[1, 8, 64, 512], help="tasks of a step [1 8 64 512]")
    parser.add_argument("--no-cgroups", action="store_true", help="leave out Slurm's own cgroup plugins")
    parser.add_argument("--strict", action="store_true", help="fail when a goal is missed")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("this needs root")
    die_properly()
    goals = Goals()
    print(f"{kernel.layout()}, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with contextlib.ExitStack() as sites:
        alone = sites.enter_context(BenchSite(options, "alone"))
        cgroup = None if options.no_cgroups else sites.enter_context(BenchSite(options, "cgroup", CGROUPS, CONSTRAIN))
        print(alone.command("srun", "--version").stdout.strip())
        for site in filter(None, (alone, cgroup)):
            site.hold()
        rows = Rows(alone, cgroup, options.base)
        check_that_it_fences(rows)
        launches(rows, options, goals)
        tasks(rows, options)
        if options.batches:
            many_jobs(rows, options, goals)
        daemons(rows, goals)
    size(options.so, goals)
    if not Path("/run/systemd/system").is_dir():
        writes(options.bin, goals)
    goals.print()
    print(HOW_TO_READ, end="")
    return 1 if goals.missed and options.strict else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
