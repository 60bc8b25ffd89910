# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose directories a job is in, and what holds in both placements: ours, and Slurm's own."""

import os
import re
import time
from pathlib import Path

from contract import kernel
from contract.harness import EAT, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, running
from contract.sites import until
from ..sites import InstalledSite
from .failure import makes_ours_first
from .limits import LONG_PERIOD, account, use_of_quotas

SPINS = "while :; do :; done"


SLURMS_FILES = Path("/etc/slurm/slurm.conf"), Path("/etc/slurm/cgroup.conf")


def settings_with_places():
    """What Slurm's files say, by key: KEY=VALUE (FILE:LINE)."""
    found = {}
    for file in SLURMS_FILES:
        for number, line in enumerate(kernel.read(file).splitlines(), 1):
            found[line.partition("=")[0]] = f"{line} ({file}:{number})"
    return found


def expected_reason(site, version, controllers):
    """Which of Slurm's plugins uses this hierarchy, by the settings with which Slurm runs; or that none of them does."""
    by_key = settings_with_places()
    shown = site.command("scontrol", "show", "config").stdout
    plugins = "ProctrackType", "TaskPlugin", "JobAcctGatherType"
    uses_cgroups = [key for key in plugins if re.search(rf"^{key}\s*=.*\bcgroup", shown, re.M)]
    proctrack, task, accounting = (by_key[key] for key in plugins)
    if version == "v2":
        if not kernel.has_v2_controllers():
            return "own", "Slurm's cgroup plugins use cgroup v1 on such a host"
        candidates = plugins
    elif "cpuacct" in controllers:
        candidates = plugins[2:]
    elif "memory" in controllers:
        candidates = plugins[1:]
        by_key["TaskPlugin"] += f" with {by_key.get('ConstrainRAMSpace')}"
    else:
        candidates = plugins[:1] if "freezer" in controllers else ()
    for key in candidates:
        if key in uses_cgroups:
            return "overlay", by_key[key]
    none = f"{proctrack}, {task}, {accounting}"
    return "own", none if version == "v2" else f"none of {none} uses it"


@case
def check_says_placement(site):
    """What 'jobfence check' says beforehand is what then happens, in each hierarchy, and why."""
    if not isinstance(site, InstalledSite):
        raise Skip("jobfence is not installed here")
    done = site.command("jobfence", "check")
    expect_equal(done.returncode, 0, f"exit status of jobfence check ({done.stdout})")
    said = re.findall(r"^hierarchy +(v[12]) (\S+) \((.*)\): used\nplacement +(\w+),[^:\n]*: (.*)$", done.stdout, re.M)
    jobid, group = running(site, site.users[0], "sleep 300", "-c1", "--mem=100")
    for version, mount, controllers, placement, why in said:
        name = "" if version == "v2" else controllers.split(",")[0]
        found = "overlay" if name in group.slurms else "own"
        expect_equal(found, placement, f"placement in {version} ({controllers}), {group}")
        expect_equal((placement, why), expected_reason(site, version, controllers.split(",")),
                     f"placement in {version} ({controllers}) and its reason")
    covered = {"" if version == "v2" else name
               for version, _, controllers, *_ in said for name in controllers.split(",")}
    expect(kernel.expected_hierarchies() <= covered, f"check names only {covered}")
    # Where directories of ours are made first, or stay, it is jobfence that moves.
    is_ours = "own" in {placement for *_, placement, _ in said} or makes_ours_first(site)
    is_early = is_ours and (site.run_directory() / "hold.lock/early_move").exists()
    expect_favordynmods(done.stdout, [mount for _, mount, *_ in said], is_early)
    site.scancel(jobid)


def expect_favordynmods(said, mounts, is_early):
    """How long moving a process takes here, whether the kernel was told to make it faster, and what that would save."""
    times = expect_match(r"(?m)^attach +a process was moved in ([\d.]+) ms, and the next in ([\d.]+) ms$", said, "check")
    first, following = map(float, times.groups())
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    options = {line.split()[4]: line.split()[-1].split(",") for line in lines}
    has = {mount for mount in mounts if "favordynmods" in options[mount]}
    lacks = set(mounts) - has
    told = expect_match(r"(?m)^favordynmods +(.*)$", said, "check").group(1)
    on, off = ({name.rstrip(",;") for name in re.findall(r"/\S+", part)} for part in re.split("off in|$", told, maxsplit=1))
    expect_equal((on, off), (has, lacks), f"where the option is on and off, in {told!r}")
    saved = re.search(r"; it would save a job's start about ([\d.]+) ms", told)
    expect_equal(bool(saved), not has and not is_early, f"whether something would be saved, in {told!r}")
    expect_equal("jobfence.service waits in the place of jobs" in told, is_early and not has, f"who waits, in {told!r}")
    if saved:
        expect(abs(float(saved.group(1)) - max(first - following, 0)) < 0.11, f"{told} ({first} and {following} ms)")


@case
def all_steps_together(site):
    """Each step alone may use the grant; all of them, and what is adopted, no more than the job."""
    # So little that the quota is met on one core, too: Slurm may have bound them all to one.
    grant, headroom = 0.5, 0.25
    site.configure(CPUQuotaPercent="50", HeadroomCPUs=str(headroom), **LONG_PERIOD)
    jobid = site.submit(site.users[0], f"""
        srun --overlap --mem=50 bash -c '{SPINS}' &
        srun --overlap --mem=50 bash -c '{SPINS}' &
        ({SPINS}) & ({SPINS}) &
        wait
        """, "-n1", "-c1", "--mem=300")
    steps = [fenced(site, jobid, name) for name in ("step_batch", "step_0", "step_1")]
    expect_equal([step.cpu_limit() for step in steps], [grant] * 3, "CPU limits of the steps")
    job = steps[0].parent
    allowed = grant if job.own or not kernel.has_v2_controllers() else grant + headroom
    used, _ = use_of_quotas(site, job)[0]
    expect(used <= allowed * 1.05, f"the job used {used:.3f} CPUs of {allowed}")
    if os.cpu_count() > 1:
        # Each step has the job's quota: either may be the one that the kernel met.
        with site.favoured():
            until(lambda: sum(account(group)[2] for group in (job, *steps)) >= 3, 60, "three periods in which the quota was used up")
    processes = [who for step in steps for who in map(kernel.identity, step.members()) if who]
    site.scancel(jobid)
    until(lambda: not any(kernel.identity(who[0]) == who for who in processes), 10,
          "the death of every process after scancel")
    site.wait(jobid)
    return f"{used:.3f} CPUs of {allowed}"


@case
def headroom_changes(site):
    """A job that began with another headroom: its next step has what it was granted, not less and not more."""
    user = site.users[0]
    go = site.directory(user) / "go"
    for before, after in (("0", "1"), ("1", "0")):
        site.configure(HeadroomCPUs=before)
        jobid = site.submit(user, "while [ ! -e go ]; do sleep 0.1; done; srun sleep 300", "-c1", "--mem=100")
        fenced(site, jobid)
        site.configure(HeadroomCPUs=after)
        go.touch()
        try:
            step = fenced(site, jobid, "step_0")
        finally:
            go.unlink()
        expect_equal(step.cpu_limit(), 1.0, f"CPU limit of {step.path}, HeadroomCPUs from {before} to {after}")
        site.end(jobid)


@case
def nothing_of_ours_in_slurms(site):
    """We make no directory in Slurm's, and move nobody out of them."""
    jobid = site.submit(site.users[0], "srun sleep 300", "-c1", "--mem=100")
    step = fenced(site, jobid, "step_0")
    if not step.slurms:
        raise Skip("Slurm has no directories of its own here")
    for controller in step.slurms:
        top = step.parent.directory(controller)
        if top is None:
            continue
        names = {p.name for p in top.rglob("*") if p.is_dir()}
        strange = [n for n in names if not re.fullmatch(r"step_\w+|user|slurm|task_\w+", n)]
        expect_equal(strange, [], f"directories below {top}")
    for pid in step.members():
        for controller, path in kernel.cgroups_of(pid).items():
            if controller in step.slurms:
                expect_in("/step_0", path, f"where process {pid} is in {controller or 'cgroup2'}")
    site.scancel(jobid)


@case
def told_where_it_is(site):
    """JOBFENCE_CGROUP is a path that /proc/self/cgroup of the task shows, too."""
    done = site.srun(site.users[0], "-c1", "--mem=100", "sh", "-c",
                     "echo at=$JOBFENCE_CGROUP; cat /proc/self/cgroup")
    expect_equal(done.returncode, 0, f"srun ({done.stderr})")
    at = expect_match(r"^at=(/.+)$", done.stdout.splitlines()[0], "the variable").group(1)
    paths = [line.split(":", 2)[2] for line in done.stdout.splitlines()[1:]]
    expect(any(path == at or path.startswith(at + "/") for path in paths),
           f"{at} is none of {paths}")


def tracked_by_cgroup(site):
    shown = site.command("scontrol", "show", "config").stdout
    return kernel.has_v2_controllers() and re.search(r"^ProctrackType\s*=\s*proctrack/cgroup", shown, re.M)


def settings(directory):
    """What can be set in a cgroup, and is: no events, no processes, no measurements."""
    volatile = re.compile(r"cgroup\.(procs|threads|kill|subtree_control)|.*\.(pressure|peak|reclaim|stat|events)")
    return {path.name: kernel.read(path) for path in directory.iterdir()
            if path.is_file() and path.stat().st_mode & 0o600 == 0o600 and not volatile.fullmatch(path.name)}


def settings_of_all(step):
    """Those of the job's directory, the step's, the one of its daemon, and the one of its tasks."""
    top = step.directory("").parent
    places = {"job": top.parent, "step": top, "daemon": top / "slurm", "tasks": top / "user"}
    return {name: settings(place) for name, place in places.items()}


def daemons_below(site, jobid, step):
    """The job's step daemons, each of which is where Slurm has put it, below the job's directory."""
    job = step.parent.path_in("")
    daemons = {pid: kernel.identity(pid) for pid in site.step_daemons(jobid)}
    for pid in daemons:
        where = kernel.cgroups_of(pid).get("", "")
        expect_match(rf"^{re.escape(job)}/step_\w+/slurm$", where, f"where step daemon {pid} is")
    return daemons


def answers(site, jobid, step, daemons):
    """The step daemons live, say what processes they have, and end them when told to."""
    expect_equal({pid: kernel.identity(pid) for pid in daemons}, daemons, "the step daemons")
    listed = site.command("scontrol", "listpids", str(jobid)).stdout
    found = {int(line.split()[0]) for line in listed.splitlines() if line[:1].isdigit()}
    expect(found & step.members(), f"scontrol listpids says none of {step.members()}:\n{listed}")
    expect_equal(site.job(jobid).get("JobState"), "RUNNING", "state")
    expect_equal(site.command("squeue", "-h", "-o", "%T", "-j", str(jobid)).stdout, "RUNNING\n", "squeue")
    tasks = {pid: kernel.identity(pid) for pid in step.parent.members()}
    start = time.monotonic()
    site.scancel(jobid)
    took = []
    for what, processes in ("tasks", tasks), ("step daemons", daemons):
        until(lambda: not any(who and kernel.identity(pid) == who for pid, who in processes.items()), 5,
              f"the end of the {what} after scancel")
        took.append(time.monotonic() - start)
    expect_equal(site.wait(jobid), "CANCELLED", "state")
    until(lambda: not step.parent.remains(), 5, f"the removal of {step.parent.path}")
    return "scancel: tasks {:.2f} s, daemons {:.2f} s".format(*took)


@case
def daemon_lives_in_the_job(site):
    """In cgroup2 Slurm's step daemons are below the job's directory: what is written there does not harm them."""
    if not tracked_by_cgroup(site):
        raise Skip("Slurm's step daemons are not in a directory of the job here")
    user = site.users[0]
    asked = ["-n1", "-c1", "--mem=200"]

    def seen():
        jobid = site.submit(user, "sleep 300", *asked)
        # Without jobfence too: Slurm's own directories count.
        step = fenced(site, jobid)
        daemons_below(site, jobid, step)
        found = settings_of_all(step)
        site.end(jobid)
        return found

    site.configure(HeadroomCPUs="0.25", MaxProcesses="100")
    fenced_ones = seen()
    with site.unplugged():
        slurms_alone = seen()
    expect_equal(slurms_alone["job"]["cpu.max"].split()[0], "max", "quota of a job without jobfence")
    quota, period = map(int, fenced_ones["job"]["cpu.max"].split())
    expect_equal(quota / period, 1.25, "CPUs of a job with one and a quarter for its daemons")
    expect_equal(fenced_ones["job"]["pids.max"], "164", "processes of a job with 64 for its daemon")
    expect_equal(fenced_ones["job"]["memory.oom.group"], "0", "memory.oom.group of the job")
    quotas = {"cpu.max", "cpu.max.burst", "pids.max"}
    ours = {"job": set(quotas), "step": set(), "daemon": set(), "tasks": set(quotas)}
    if not kernel.slurm_limits_memory:
        ours["tasks"] |= {"memory.max", "memory.swap.max"}
    for place, theirs in slurms_alone.items():
        # Which controllers are on is another matter: with one come its files, without a limit in them.
        changed = {name for name, value in fenced_ones[place].items() if theirs.get(name, "max") != value}
        expect_equal(changed, ours[place], f"files of the {place}'s directory that are not as Slurm writes them")

    jobid, step = running(site, user, f"{EAT}; echo eaten=$?; sleep 300", *asked)
    daemons = daemons_below(site, jobid, step)
    until(lambda: "eaten=" in site.output(jobid), 30, "the end of what eats memory")
    expect_in("eaten=137", site.output(jobid), "its end")
    after_oom = answers(site, jobid, step, daemons)

    site.configure(CPUQuotaPercent="50", HeadroomCPUs="0.25", MaxProcesses="100")
    jobid = site.submit(user, f"""
        srun --overlap --mem=50 bash -c '({SPINS}) & {SPINS}' &
        srun --overlap --mem=50 bash -c '({SPINS}) & {SPINS}' &
        ({SPINS}) & {SPINS}
        """, *asked)
    step = [fenced(site, jobid, name) for name in ("step_0", "step_1", "step_batch")][-1]
    daemons = daemons_below(site, jobid, step)
    expect_equal(len(daemons), 3, "number of step daemons")
    expect_equal(step.parent.processes_limit(), 100 + 3 * kernel.HEADROOM_PROCESSES, "processes of the job")
    throttled = step.parent.directory("") / "cpu.stat"

    def saturated():
        return int(kernel.keyed(kernel.read(throttled))["nr_throttled"]) > 20
    until(saturated, 30, "the job's quota to be used up")
    used_up = answers(site, jobid, step, daemons)
    return f"{after_oom}; when the quota is used up, {used_up}"
