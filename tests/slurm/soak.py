#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Many short jobs while daemons and tasks are killed at random; at the end nothing may be left.

    python3 soak.py --site private --so PATH --bin PATH [-n N] [--seed SEED]
    python3 soak.py --site installed [-n N] [--seed SEED]

What is submitted, what is killed and when in their order is decided by the seed before anything begins; how far the jobs are by
then is not. The exit status is 1 if anything of a job is left after 'jobfence reap', if the node is not idle, if slurmd has
grown, or if a job that nobody has touched did not end as it should.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import kernel, sites  # noqa: E402
from contract.harness import EAT, PYTHON  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402
from slurm.sites import UNFINISHED, InstalledSite, PrivateSite  # noqa: E402
from slurm.suite.sharing import oversubscribed  # noqa: E402

AT_ONCE = 6
# A job that something was done to may never end by itself: after so long it is ended. One that nobody has touched takes no longer than
# UNTOUCHED, on a busy machine, too.
LONGEST, UNTOUCHED = 90, 600
# So many jobs of the first and of the last ones say how slurmd was then; with fewer of the same slurmd nothing is said.
WINDOW = 10

FORKS_AWAY = f"""{PYTHON} -S -c '
import os, time
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
os.closerange(0, 100)
time.sleep(300)'"""
STEP = "srun --overlap -n1 --mem=20 sleep {}"

# By kind: the script, how it ends where nobody has touched it, and how often it comes.
KINDS = {
    "short": ("sleep {}", {"COMPLETED"}, 20),
    "steps": (f"{STEP}; {STEP}; srun --overlap -n1 --mem=20 true", {"COMPLETED"}, 15),
    "steps at once": (f"{STEP} & {STEP} & {STEP} & wait", {"COMPLETED"}, 15),
    "srun": ("sleep {}", {"COMPLETED"}, 15),
    "straggler": ("setsid sleep 300 </dev/null >/dev/null 2>&1 & sleep {}", {"COMPLETED"}, 10),
    "double fork": (FORKS_AWAY + "; sleep {}", {"COMPLETED"}, 10),
    "srun's straggler": ("setsid sleep 300 </dev/null >/dev/null 2>&1 & sleep {}", {"COMPLETED"}, 5),
    "too much memory": (f"exec {EAT}", {"FAILED", "OUT_OF_MEMORY"}, 8),
    "cancelled": ("setsid sleep 300 & sleep 300", {"CANCELLED"}, 10),
    "cancelled steps": (" & ".join(["srun --overlap -n1 --mem=20 sleep 300"] * 2) + " & wait", {"CANCELLED"}, 5),
    "time limit": ("setsid sleep 300 & sleep 300", {"TIMEOUT"}, 1),
}
BY_SRUN = {"srun", "srun's straggler"}
KILLS = {"step daemon": 10, "task": 10, "reap": 6}


@dataclass
class Act:
    """A decision: the next job, or something that happens to those that run."""

    what: str
    user: int = 0
    seconds: tuple = ()  # how long its parts sleep, and after how long it is cancelled
    choice: float = 0.0  # who is hit: this part of the list of those that can be


def decisions(count, seed):
    """The acts of `count` jobs and a last one, the same for the same seed. slurmd is killed among the first jobs only: what it grows by is
    seen of the one that has the others."""
    chance = random.Random(seed)
    kinds, weights = list(KINDS), [weight for *_, weight in KINDS.values()]
    chosen = chance.choices(kinds, weights, k=count)
    # Those with a time limit take half a minute, so there are few; but one there is, and one of each of the others.
    for place, kind in zip(chance.sample(range(count), min(count, len(kinds))), kinds):
        chosen[place] = kind
    first = max(1, count // 4)
    slurmd = {chance.randrange(first // 2, first) for _ in range(max(1, count // 200))}
    for number, kind in enumerate(chosen):
        yield Act(kind, chance.randrange(2), tuple(round(chance.uniform(0.1, 1.5), 2) for _ in range(4)))
        if chance.random() < 0.4:
            yield Act(chance.choices(list(KILLS), list(KILLS.values()))[0], choice=chance.random())
        if number in slurmd:
            yield Act("slurmd")
    # Something for the last reap: the last job's, after which nothing is launched.
    yield Act("wait")
    yield Act("cancelled", chance.randrange(2), (60,) * 4)
    yield Act("step daemon", choice=1.0)


@dataclass
class Job:
    kind: str
    jobid: int
    began: float
    cancel_at: float = 0.0  # when it is time to cancel it; 0: never
    limit: bool = False  # its time limit is still to be moved
    spared: bool = False  # or none that wait for their time limit would ever reach it
    touched: str = ""  # by what
    state: str = "PENDING"


def is_marked(directory):
    """Whether jobfence has written there whose it is."""
    try:
        return bool(os.getxattr(directory, "trusted.jobfence"))
    except OSError:
        return False


def in_slurms_without_mark(pid):
    group = kernel.Group.of(pid)
    if not group or not group.slurms:
        return False
    return not any(is_marked(place) for directory in group.directories() for place in (directory, *directory.parents))


@dataclass
class Soak:
    site: object
    count: int
    seed: int
    jobs: dict = field(default_factory=dict)  # by name
    commands: list = field(default_factory=list)  # sruns that run
    kills: collections.Counter = field(default_factory=collections.Counter)
    drained: list = field(default_factory=list)
    stuck: list = field(default_factory=list)  # jobs that would not have ended, after what was done to them
    failures: list = field(default_factory=list)
    samples: list = field(default_factory=list)  # (slurmd, descriptors, KiB)
    reaped: int = 0
    cancelled: int = 0  # that went on without their step daemon

    # -- jobs -------------------------------------------------------------------------

    def begin(self, act):
        script, _, _ = KINDS[act.what]
        seconds = iter(act.seconds)
        while "{}" in script:
            script = script.replace("{}", str(next(seconds)), 1)
        user = self.site.users[act.user % len(self.site.users)]
        name = f"soak-{self.seed}-{len(self.jobs)}"
        options = [f"--job-name={name}", "-n1", "-c1", "--mem=60", "--oversubscribe"]
        job = Job(act.what, 0, time.monotonic(), limit=act.what == "time limit",
                  spared=act.what == "time limit" and act.seconds[0] < 0.8)
        self.jobs[name] = job
        if act.what.startswith("cancelled"):
            job.cancel_at = time.monotonic() + act.seconds[-1] * sites.PATIENCE
        if act.what in BY_SRUN:
            command = self.site.as_user(user, ["srun", *options, "sh", "-c", script], start=True)
            self.commands.append(command)
        else:
            job.jobid = self.site.submit(user, script, "--no-requeue", "--output=/dev/null", *options)

    def look(self):
        """What the controller says of the jobs, and what is due."""
        shown = self.site.command("squeue", "-h", "-r", "-t", "all", "-o", "%A|%j|%T").stdout
        for line in shown.splitlines():
            jobid, name, state = line.split("|")
            if job := self.jobs.get(name):
                job.jobid, job.state = int(jobid), state
                if ("", job.jobid) not in self.site.submitted and job.kind in BY_SRUN:
                    self.site.submitted.append(("", job.jobid))
        now = time.monotonic()
        for job in self.unfinished():
            if job.jobid and job.cancel_at and now >= job.cancel_at:
                # Some go while they are still in the queue.
                self.site.scancel(job.jobid)
                job.cancel_at = now + 10 * sites.PATIENCE
            if job.limit and job.state == "RUNNING":
                self.site.command("scontrol", "update", f"jobid={job.jobid}", "EndTime=now+1seconds")
                job.limit = False
            longest = (LONGEST if job.touched else UNTOUCHED) * sites.PATIENCE
            if now - job.began > longest and not job.cancel_at:
                long = f"job {job.jobid} ({job.kind}) was {job.state} for {longest:g} s"
                if job.touched:
                    self.stuck.append(f"{long}: {job.touched}")
                else:
                    self.failures.append(long)
                    job.touched = "it took too long"
                job.cancel_at = now
        for command in [one for one in self.commands if one.poll() is not None]:
            command.communicate()
            self.commands.remove(command)
        self.sample()
        state = self.site.node_state()
        if "DRAIN" in state or "DOWN" in state:
            shown = self.site.command("scontrol", "show", "node", "-o", self.site.node).stdout
            reason = shown.partition("Reason=")[2].partition("\n")[0].strip()
            self.drained.append(f"{state}: {reason}")
            if not self.kills["step daemon"] + self.kills["slurmd"]:
                self.failures.append(f"the node is {state} ({reason}), and no daemon was killed")
            self.site.resume()

    def unfinished(self):
        return [job for job in self.jobs.values() if job.state in UNFINISHED]

    def room(self):
        """Waits for the end of some job, if there are as many as there may be."""
        while True:
            self.look()
            if len(self.unfinished()) < AT_ONCE:
                return
            time.sleep(0.1)

    def sample(self):
        """slurmd's size."""
        pid = self.site.slurmd_pid()
        who = pid and kernel.identity(pid)
        if not who:
            return
        with contextlib.suppress(OSError, IndexError):
            pages = int(kernel.stat_fields(pid)[21])
            kib = pages * os.sysconf("SC_PAGE_SIZE") >> 10
            self.samples.append((len(self.jobs), who, len(os.listdir(f"/proc/{pid}/fd")), kib))

    # -- what happens to them ---------------------------------------------------------

    def happen(self, act):
        done = {"step daemon": self.kill_daemon, "task": self.kill_task, "slurmd": self.kill_slurmd, "reap": self.reap,
                "wait": self.wait}
        done[act.what](act)

    def running(self):
        return sorted((job for job in self.unfinished() if job.jobid), key=lambda job: job.jobid)

    def chosen(self, act, pids_of):
        """One of the processes, and its job; where there is none yet it is waited for a little."""
        deadline = time.monotonic() + (30 if act.choice == 1.0 else 2) * sites.PATIENCE
        while time.monotonic() < deadline and self.unfinished():
            # The highest number may be another's: srun gets its own when it likes.
            jobs = self.running() if act.choice < 1.0 else [job for job in [*self.jobs.values()][-1:] if job.jobid]
            found = [(job, pid) for job in jobs if not job.spared for pid in sorted(pids_of(job.jobid))]
            if found:
                return found[min(int(act.choice * len(found)), len(found) - 1)]
            time.sleep(0.05)
            self.look()
        self.kills[f"no {act.what} to be found"] += 1
        return None, None

    def kill_daemon(self, act):
        def daemons(jobid):
            # The last of all leaves processes behind.
            return self.site.step_daemons(jobid) if act.choice < 1.0 or self.site.job_pids(jobid, "sleep 300") else []
        job, pid = self.chosen(act, daemons)
        if not job:
            return
        job.touched = "its step daemon was killed"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills["step daemon"] += 1
        # Nobody tells the controller of it: the job would go on for ever.
        self.cancelled += 1
        job.cancel_at = time.monotonic() + 0.5 * sites.PATIENCE

    def kill_task(self, act):
        def tasks(jobid):
            return [pid for pid in self.site.job_pids(jobid) if not kernel.command_line(pid).startswith(("slurmstepd", "srun"))]
        job, pid = self.chosen(act, tasks)
        if not job:
            return
        job.touched = job.touched or "one of its processes was killed"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills["task"] += 1

    def kill_slurmd(self, _act):
        for job in self.unfinished():
            job.touched = job.touched or "slurmd was killed"
        os.kill(self.site.slurmd_pid(), signal.SIGKILL)
        self.kills["slurmd"] += 1
        self.site.restart_slurmd()

    def reap(self, _act=None):
        done = self.site.command(str(self.site.jobfence), "reap", "--config", str(self.site.config), timeout=60)
        self.reaped += sum(line.startswith("removed ") for line in done.stdout.splitlines())
        self.kills["reap"] += 1
        if done.returncode != 0:
            self.failures.append(f"'jobfence reap' failed: {done.stdout.strip()} {done.stderr.strip()}")

    # -- the end ----------------------------------------------------------------------

    def wait(self, _act=None):
        self.look()
        while self.unfinished():
            self.look()
            time.sleep(0.2)

    def finish(self):
        self.wait()
        until(lambda: not self.running_daemons(), 60, "the end of every step daemon")

    def running_daemons(self):
        ids = {job.jobid for job in self.jobs.values()}
        titles = (kernel.command_line(pid) for pid in self.site.our_processes())
        return [title for title in titles if title.startswith("slurmstepd: [")
                and title[13:].partition(".")[0].isdigit() and int(title[13:].partition(".")[0]) in ids]

    def strays(self):
        """Processes of the jobs, by the environment that Slurm gave them."""
        home = str(self.site.home)
        found = []
        for pid in kernel.all_pids():
            environment = kernel.environment(pid)
            if ("SLURM_JOB_ID" in environment and environment.get("SLURM_SUBMIT_DIR", "").startswith(home)
                    and kernel.is_alive(pid)):
                found.append((pid, f"process {pid} of job {environment['SLURM_JOB_ID']} ({kernel.command_line(pid)[:40]})"))
        return found

    def frozen(self):
        """Directories at or below ours that are stopped."""
        found = []
        for base in self.site.bases():
            for top in kernel.Group("/" + base).directories():
                for place in [top, *kernel.directories_below(top)]:
                    state = kernel.read(place / "freezer.state") or "THAWED"
                    if state != "THAWED" or "frozen 1" in kernel.read(place / "cgroup.events"):
                        found.append(f"{place} is frozen")
        return found

    def check(self):
        """What is left, after the janitor's chance."""
        before = self.site.leftovers()
        processes = [said for said in before if said.startswith("process ")]
        records = [said for said in before if said.startswith(str(self.site.run_directory()))]
        self.before = {"directories": len(before) - len(processes) - len(records), "records": len(records),
                       "processes": len(self.strays())}
        self.reap()
        with contextlib.suppress(AssertionError):
            until(lambda: not self.site.leftovers(), 5, "a clean tree")
        self.failures += [f"left behind: {left}" for left in self.site.leftovers()]
        self.failures += self.frozen()
        # A daemon that dies before we have come leaves Slurm's own directories as it does without us: counted by itself.
        unmarked = {pid for pid, _ in self.strays() if in_slurms_without_mark(pid)}
        slurms = self.site.slurms_leftovers()
        marked = [step for job in slurms for step in Path(job).rglob("step_*") if is_marked(step)]
        self.slurms = {"directories": len(slurms), "processes": len(unmarked)}
        self.failures += [f"left behind: {step}" for step in marked]
        self.failures += [f"left behind: {said}" for pid, said in self.strays() if pid not in unmarked]
        try:
            until(lambda: self.site.node_state() == "IDLE", 30, "the idle node")
        except AssertionError:
            self.failures.append(f"the node is {self.site.node_state()}")
            self.site.resume()
        for job in self.jobs.values():
            if not job.touched and job.state not in KINDS[job.kind][1]:
                self.failures.append(f"job {job.jobid} ({job.kind}) is {job.state}, and nobody has touched it")
        self.grown = self.growth()

    def growth(self):
        """slurmd's descriptors and memory early and late in the life of the last one."""
        if not self.samples:
            return "slurmd was never seen"
        last = self.samples[-1][1]
        mine = [sample for sample in self.samples if sample[1] == last]
        # Its first jobs load what it needs once.
        first = mine[0][0] + WINDOW
        early = [sample for sample in mine if first <= sample[0] < first + WINDOW]
        late = [sample for sample in mine if sample[0] >= mine[-1][0] - WINDOW]
        jobs = mine[-1][0] - first
        if not early or jobs < 2 * WINDOW:
            return f"slurmd {last[0]} had too few jobs to say whether it grows"
        (fds, kib), (fds_late, kib_late) = (
            (statistics.median(sample[2] for sample in some), statistics.median(sample[3] for sample in some))
            for some in (early, late))
        said = (f"slurmd {last[0]}, {jobs} jobs between: descriptors {fds:g}, then {fds_late:g}; "
                f"memory {kib:g} KiB, then {kib_late:g} KiB")
        # Connections come and go; a leak of one a job would be more than this soon.
        if fds_late > fds + 5 or kib_late > kib * 1.1 + 2048:
            self.failures.append(f"slurmd grows: {said}")
        return said

    def table(self):
        states = sorted({job.state for job in self.jobs.values()})
        wide = max(map(len, KINDS)) + 2
        yield "jobs".ljust(wide) + "".join(f"{state:>15}" for state in states) + f"{'touched':>15}"
        for kind in KINDS:
            mine = [job for job in self.jobs.values() if job.kind == kind]
            counts = collections.Counter(job.state for job in mine)
            touched = sum(bool(job.touched) for job in mine)
            yield kind.ljust(wide) + "".join(f"{counts[state] or '-':>15}" for state in states) + f"{touched or '-':>15}"
        yield ""
        yield "killed: " + (", ".join(f"{what} {count}" for what, count in sorted(self.kills.items())) or "nothing")
        yield f"cancelled since their step daemon was dead: {self.cancelled}; since they did not end otherwise: {len(self.stuck)}"
        yield from (f"  {said}" for said in self.stuck[:10])
        yield f"removed by 'jobfence reap': {self.reaped}; by launches and slurmd: {self.by_launches()}"
        yield "left before the last reap: " + ", ".join(f"{count} {what}" for what, count in self.before.items())
        yield "left by daemons that died before we were there, in Slurm's own directories: " + ", ".join(f"{count} {what}" for what, count in self.slurms.items())
        yield f"drained: {len(self.drained)} times" + "".join(f"\n  {said}" for said in self.drained[:5])
        yield self.grown

    def by_launches(self):
        return self.site.log_since(self.mark).count(", which a dead step daemon left")

    def run(self):
        self.mark = self.site.log_mark()
        begun = time.monotonic()
        for act in decisions(self.count, self.seed):
            if act.what in KINDS:
                self.room()
                self.begin(act)
                if len(self.jobs) % 100 == 0:
                    print(f"{len(self.jobs)} jobs, {time.monotonic() - begun:.0f} s", flush=True)
            else:
                self.happen(act)
        self.finish()
        self.check()
        print("\n".join(self.table()))
        print(f"{len(self.jobs)} jobs in {time.monotonic() - begun:.0f} s, seed {self.seed}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--site", choices=("private", "installed"), default="private")
    parser.add_argument("--so", help="the plugin (private site)")
    parser.add_argument("--bin", help="the jobfence command (private site)")
    parser.add_argument("-n", type=int, default=2000, metavar="N", help="so many jobs")
    parser.add_argument("--seed", type=int, help="of an earlier run, for the same decisions")
    parser.add_argument("--patience", type=float, metavar="FACTOR",
                        help="multiplies every time limit: 1, or 3 for an installed site")
    options = parser.parse_args()
    if options.site == "private" and not (options.so and options.bin):
        parser.error("the private site needs --so and --bin")
    return options


def main():
    options = arguments()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    die_properly()
    sites.PATIENCE = options.patience or (3 if options.site == "installed" else 1)
    site = PrivateSite(options.so, options.bin) if options.site == "private" else InstalledSite()
    with site:
        kernel.slurm_tracks = site.slurm_tracks()
        with oversubscribed(site):
            site.configure()
            soak = Soak(site, options.n, seed)
            try:
                soak.run()
            finally:
                for command in soak.commands:
                    command.kill()
                    command.communicate()
    for failure in soak.failures[:50]:
        print(f"FAIL {failure}")
    print(f"{0 if soak.failures else 1} passed, {min(1, len(soak.failures))} failed, 0 skipped")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
