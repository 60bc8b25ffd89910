# SPDX-License-Identifier: GPL-2.0-or-later
"""systemd does what it does, and leaves the jobs alone."""

import contextlib
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from contract import kernel
from contract.harness import TAKE, Skip, case, expect, expect_equal, expect_in, expect_match, fenced, fenced_in_all, running
from contract.sites import until
from ..harness import expect_limits, expect_not_drained, expect_not_started, fences_well
from ..sites import InstalledSite
from .newer import since
from .placement import tracked_by_cgroup


def only_with_systemd(site):
    if not isinstance(site, InstalledSite) or not Path("/run/systemd/system").is_dir():
        raise Skip("only beside systemd")


def unchanged_by(site, *arguments):
    only_with_systemd(site)
    jobid, group = running(site, site.users[0], "sleep 300", "-c1", "--mem=200")
    members = group.members()
    systemctl(site, *arguments)
    # What systemd does to cgroups it does when its queue is worked off: give it that time.
    until(lambda: site.command("systemctl", "is-system-running").returncode in (0, 1), 30,
          "systemd")
    site.expect_limits(group, 1.0, 200)
    expect_equal(group.members() & members, members, "the processes in the group")
    for pid in members:
        fenced_in_all(pid, group)
    site.scancel(jobid)


@case
def moves_are_early(site):
    """When a launch begins, jobfence.service takes the kernel's lock of moves, unless the site wants it otherwise."""
    only_with_systemd(site)
    socket = site.run_directory() / "hold.lock/early_move"

    def holder():
        return int(site.command("systemctl", "show", "--property=MainPID", "--value", "jobfence.service").stdout)

    def slept(pid):
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", kernel.read(f"/proc/{pid}/status"), re.M)[1])
    until(socket.exists, 20, "the place where launches ask")
    pid = holder()
    before = slept(pid)
    expect_equal(site.srun(site.users[0], "true").returncode, 0, "the status of srun")
    # It sleeps between the six times.
    until(lambda: slept(pid) - before >= 6, 10, "jobfence.service at work")
    expect_equal(kernel.read("/sys/kernel/rcu_expedited").strip(), "0", "whether the kernel hurries on")
    with service_with(site, EarlyMoves="no"):
        until(lambda: not socket.exists(), 20, "no place where launches ask")
        expect_equal(site.srun(site.users[0], "true").returncode, 0, "the status of srun")


@case
def daemon_reload(site):
    unchanged_by(site, "daemon-reload")


@case
def daemon_reexec(site):
    unchanged_by(site, "daemon-reexec")


@case
def service_restart(site):
    """With a job in the scope, and without one: then systemd has just removed the scope."""
    unchanged_by(site, "restart", "jobfence.service")
    for _ in range(3):
        systemctl(site, "restart", "jobfence.service")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=200")
    expect_limits(fenced(site, jobid), 1.0, 200)
    site.scancel(jobid)


@case(on=["installed"])
def hold_is_heard_where_one_looks(site):
    """jobfence hold sits in the scope, and what it says is the service's all the same."""
    only_with_systemd(site)
    word = "no figures for Prometheus: "
    with service_with(site, MetricsFile="/nowhere/jobfence.prom", ReapInterval=1):
        # Another start of it has said the same, perhaps.
        began = site.command("systemctl", "show", "-p", "ExecMainStartTimestamp", "--value", "jobfence.service").stdout.split()[1:3]
        heard = ["journalctl", "-b", "-o", "cat", "-u", "jobfence", "--since", " ".join(began)]
        until(lambda: word in site.command(*heard).stdout, 30, "what the journal has")
        status = site.command("systemctl", "status", "--no-pager", "--full", "--lines=100", "jobfence.service").stdout
        expect_in(word, status, "what systemctl status shows")
        members = kernel.Group("/jobfence.slice/jobfence.scope").members(below=True)
        expect_in(site.command("systemctl", "show", "-p", "MainPID", "--value", "jobfence.service").stdout.strip(),
                  {str(pid) for pid in members}, "the processes of the scope")


@case
def dollars_are_not_expanded(site):
    """systemd-run expands $ in what it starts in a scope (262 does, 257 not yet): our own options do not pass by there."""
    only_with_systemd(site)
    name = f"jobfencetest{os.getpid()}"
    config = site.home / "a$$b ${HOME} $HOME.conf"
    config.write_text(f"CgroupBase={name}.slice/{name}.scope\nRunDir={site.home}/scope\n")
    holder = subprocess.Popen(["jobfence", "hold", "--config", str(config)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        leaf = kernel.Group(f"/{name}.slice/{name}.scope")

        def held():
            expect(holder.poll() is None, f"jobfence hold has ended: {holder.poll()}")
            # Not before systemd-run has become it: systemd 262 keeps a scope that is empty again at once.
            return any("--inside" in kernel.command_line(pid) for pid in leaf.members(below=True))
        until(held, 10, f"{leaf.path}")
    finally:
        holder.terminate()
        said, _ = holder.communicate(timeout=120)
    until(lambda: not leaf.remains(), 10, f"the end of {leaf.path} ({said})")


OOMD = Path("/usr/lib/systemd/system/systemd-oomd.service")


@contextlib.contextmanager
def oomd(site):
    """systemd-oomd runs. The command line of the cell masks it, since others' jobs are not to be killed by it."""
    # What is there comes before the masks of generators (systemd.unit(5), "Unit File Load Path").
    place = Path("/run/systemd/system.control")
    place.mkdir(exist_ok=True)
    unmasked = [Path(shutil.copy(unit, place)) for unit in OOMD.parent.glob("systemd-oomd.*")]
    names = [unit.name for unit in unmasked]
    try:
        systemctl(site, "daemon-reload")
        systemctl(site, "start", *names)
        yield
    finally:
        systemctl(site, "stop", *names)
        for unit in unmasked:
            unit.unlink()
        systemctl(site, "daemon-reload")


@case(on=["installed"])
def killed_by_oomd(site):
    """Who is killed by systemd-oomd reads that it was no limit of the job's. `jobfence check` names the slice, and what spares jobs does."""
    only_with_systemd(site)
    if not OOMD.exists():
        raise Skip("no systemd-oomd here")

    def set_for(unit, **properties):
        systemctl(site, "set-property", "--runtime", "--", unit, *(f"{name}={value}" for name, value in properties.items()))

    def says(unit):
        return f"it acts below {unit}," in site.command("jobfence", "check").stdout
    pressure = {"ManagedOOMMemoryPressureLimit": "1%", "ManagedOOMMemoryPressureDurationSec": "1s"}
    try:
        set_for("jobfence.slice", ManagedOOMMemoryPressure="kill", **pressure)
        # It is a property of the scope's own directory, in which nothing is killed.
        set_for("jobfence.scope", ManagedOOMPreference="omit")
        expect(not says("jobfence.slice"), "check warns of what does not run")
        with oomd(site):
            expect(says("jobfence.slice"), "check does not warn of it")
            # What it wants above that is taken back from it, which takes its time.
            jobid = site.submit(site.users[0], TAKE % (200, 1000), "-c1", "--mem=300", "--mem-high=20M")
            expect_equal(site.wait(jobid, timeout=600), "FAILED", f"state ({site.output(jobid)})")
            expect_match(rf"job {jobid} step batch: systemd-oomd \(or oomd\) killed processes of it", site.output(jobid), "what its user reads")
            said = site.command("journalctl", "-b", "-o", "cat", "-u", "systemd-oomd").stdout
            expect_match(rf"Killed /jobfence.slice/jobfence.scope/\S*job_{jobid}/", said, "what it says itself")
            set_for("jobfence.slice", ManagedOOMMemoryPressure="auto", ManagedOOMSwap="auto")
            expect(not says("jobfence.slice"), "check warns of what is no longer so")
    finally:
        set_for("jobfence.slice", ManagedOOMMemoryPressure="auto")
        set_for("jobfence.scope", ManagedOOMPreference="none")


def systemctl(site, *args):
    # It refuses a sixth start within ten seconds, which cases in a row can come to.
    site.command("systemctl", "reset-failed", "jobfence.service")
    done = site.command("systemctl", *args, timeout=120)
    expect_equal(done.returncode, 0, f"systemctl {' '.join(args)} ({done.stderr})")


@contextlib.contextmanager
def service_with(site, **keys):
    """jobfence.service has read these keys."""
    site.configure(**keys)
    try:
        systemctl(site, "restart", "jobfence.service")
        yield
    finally:
        site.configure()
        systemctl(site, "restart", "jobfence.service")


SCOPE = kernel.Group("/jobfence.slice/jobfence.scope")


@contextlib.contextmanager
def without_scope(site):
    """For the time being the service is stopped, and with its last process systemd has removed the scope."""
    try:
        systemctl(site, "stop", "jobfence.service")
        until(lambda: not SCOPE.remains(), 20, "the end of the scope")
        yield
    finally:
        systemctl(site, "start", "jobfence.service")


def refused_and_named(site, parts):
    """A job is not started, and both it and 'jobfence check' say why."""
    user = site.users[0]
    jobid = site.submit(user, "touch ran.$SLURM_JOB_ID", "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    done = site.command("jobfence", "check")
    expect_equal(done.returncode, 1, f"exit status of jobfence check ({done.stdout})")
    for part in parts:
        expect_in(part, site.output(jobid), "the job's output")
        expect_in(part, done.stdout, "what jobfence check says")
    expect_not_drained(site)


@case(on=["installed"])
def network_bound_is_refused(site):
    """Where the programs that bound the network do not see a job, it does not begin, and 'jobfence check' says so. Elsewhere: network_bounded."""
    jobid, group = running(site, site.users[0], "sleep 300", "-c1", "--mem=100")
    site.end(jobid)
    if "" not in kernel.hierarchies():
        why = "there is no cgroup2", "bounded only where there is cgroup2 (NetworkMax)"
    elif "" in group.slurms:
        why = "jobfence's programs see only those below its own directory", "jobs in cgroups of the scheduler's own have no NetworkMax"
    else:
        raise Skip("here the network of a job is bounded")
    with service_with(site, NetworkMax="1M"):
        status, said = site.ours("check")
        expect_equal(status, 1, f"exit status of jobfence check ({said})")
        expect_in(why[0], said, "what jobfence check says")
        jobid = site.submit(site.users[0], "touch ran.$SLURM_JOB_ID", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "FAILED", f"state of job {jobid}")
        # Where Slurm makes its directories late, the task is refused in them.
        expect_match("jobfence: this (job|task) was not started, since it cannot be fenced: ", site.output(jobid), "the job's output")
        expect(not (site.directory(site.users[0]) / f"ran.{jobid}").exists(), "the job's script has run")
        expect_in(why[1], site.output(jobid) + site.log_since(site.began), "what the job and the log say")
        expect_not_drained(site)
    with service_with(site, NetworkMax="1M", OnError="fail,network:warn"):
        mark = site.log_mark()
        jobid = site.submit(site.users[0], "touch ran.$SLURM_JOB_ID", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "COMPLETED", "its state, where the site lets jobs run without it")
        expect((site.directory(site.users[0]) / f"ran.{jobid}").exists(), "the job's script has not run")
        said = site.log_since(mark)
        expect_match(r"without its network limit \(OnError=warn\).*" + re.escape(why[1]), said, "the log")


@case
def controller_not_handed_down(site):
    """A slice that takes the memory controller away: who does, and which line it is, stands in every message."""
    only_with_systemd(site)
    if not kernel.has_v2_controllers():
        raise Skip("cgroup v1 has no controllers to hand down")
    user = site.users[0]
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
    if fenced(site, jobid).slurms:
        raise Skip("the limits are in Slurm's own directories: see controller_not_handed_to_slurm")
    site.end(jobid)
    dropin = Path("/run/systemd/system/jobfence.slice.d/disable.conf")
    taken = "/sys/fs/cgroup/jobfence.slice/cgroup.subtree_control"
    try:
        with without_scope(site):
            dropin.parent.mkdir()
            dropin.write_text("[Slice]\nDisableControllers=memory\n")
            systemctl(site, "daemon-reload")
        expect("memory" not in kernel.read(taken).split(), f"{taken} has memory: nothing was taken away")
        parts = ("does not have the memory controller", "/sys/fs/cgroup/jobfence.slice/jobfence.scope",
                 f"{taken} lacks it", "DisableControllers=memory")
        refused_and_named(site, parts)
    finally:
        with without_scope(site):
            dropin.unlink(missing_ok=True)
            dropin.parent.rmdir()
            systemctl(site, "daemon-reload")
    expect_equal(site.command("jobfence", "check").returncode, 0, "exit status of jobfence check after it")
    fences_well(site, user)


@contextlib.contextmanager
def slice_without(controller, slurms):
    """For the time being Slurm's scope does not get this controller from its slice.

    Not by systemd: with DisableControllers= it goes over what it has delegated, too, and takes Slurm's own ones away.
    """
    taken = slurms.parent / "cgroup.subtree_control"
    # Whoever hands it on keeps it: systemd-udevd does, too.
    files = [file for file in slurms.parent.glob("*/cgroup.subtree_control") if controller in kernel.read(file).split()]
    try:
        for file in [*files, taken]:
            file.write_text(f"-{controller}")
        yield taken
    finally:
        for file in [taken, *files]:
            file.write_text(f"+{controller}")


@case
def controller_not_handed_to_slurm(site):
    """The same for a controller that Slurm does without, above the scope that is Slurm's."""
    only_with_systemd(site)
    if not tracked_by_cgroup(site):
        raise Skip("the limits are not in Slurm's own scope here")
    # Before, Slurm itself takes its other controllers for missing, too.
    since(site, 24, 11)
    user = site.users[0]
    site.configure(MaxProcesses="100")
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
    job = fenced(site, jobid).parent.directory("")
    slurms = job.parent
    site.end(jobid)
    until(lambda: not job.exists(), 10, f"the end of {job}")
    with slice_without("pids", slurms) as taken:
        parts = (f"the cgroup does not have the pids controller: {slurms} ", f"{taken} lacks it", "DisableControllers=pids",
                 f"stop slurmd and {slurms.name}")
        refused_and_named(site, parts)
    expect_equal(site.command("jobfence", "check").returncode, 0, "exit status of jobfence check after it")
    fences_well(site, user)


SPINS = ("sh", "-c", "while :; do :; done")


def limits_of(uid):
    done = subprocess.run(["systemctl", "show", "-p", "CPUQuotaPerSecUSec,MemoryMax,TasksMax,IOWriteBandwidthMax", f"user-{uid}.slice"],
                          capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split())


@case
def login_limits(site):
    """Each user's own slice is limited through systemd, and more so by the budget; and it has what it had before when that ends."""
    only_with_systemd(site)
    uid = pwd.getpwnam(site.users[0]).pw_uid
    session = subprocess.Popen(["systemd-run", "--quiet", "--scope", f"--slice=user-{uid}.slice", f"--uid={uid}", *SPINS])
    try:
        until(lambda: slice_of(session.pid) == f"user-{uid}.slice", 30, "the user's slice")
        systemctl(site, "set-property", "--runtime", f"user-{uid}.slice", "CPUQuota=150%", "TasksMax=900")
        before = limits_of(uid)
        keys = {"MaxRAMPerUser": "512M", "MaxProcessesPerUser": "200", "LoginBudget": "1m:0.25", "LoginWindow": "1h"}
        with service_with(site, LoginLimits="yes", **keys):
            # slurmd starts jobs here.
            until(lambda: "does nothing here" in journal(site), 60, "the refusal")
            expect_equal(limits_of(uid), before, "limits beside slurmd")
        with service_with(site, LoginLimits="always", **keys):
            until(lambda: limits_of(uid)["TasksMax"] == "200", 60, "the limits of the slice")
            expect_equal(limits_of(uid)["MemoryMax"], str(512 << 20), "MemoryMax")
            until(lambda: limits_of(uid)["CPUQuotaPerSecUSec"] == "250ms", 300, "the end of the budget")
            said = site.command("jobfence", "login", "--user", str(uid)).stdout
            expect_in("1:00 of CPU time within 1:00:00 are used up: 0.25 CPUs until 2", said, "jobfence login")
            systemctl(site, "stop", "jobfence.service")
            expect_equal(limits_of(uid), before, "limits after the service stopped")
            # What is still limited when the program is killed is given back by the next one, or by this.
            systemctl(site, "start", "jobfence.service")
            until(lambda: limits_of(uid)["CPUQuotaPerSecUSec"] == "250ms", 60, "the same budget after a restart")
            systemctl(site, "kill", "--signal=KILL", "--kill-whom=main", "jobfence.service")
            expect_equal(session.poll(), None, "the status of the session")
        with service_with(site, LoginLimits="no"):
            until(lambda: limits_of(uid) == before, 60, "the limits from before, after a kill")
    finally:
        session.kill()
        session.wait()
        site.command("systemctl", "revert", f"user-{uid}.slice")


def slice_of(pid):
    return next((part for part in kernel.read(f"/proc/{pid}/cgroup").split("/") if part.startswith("user-")), None)


def journal(site):
    return site.command("journalctl", "--unit", "jobfence.service", "--boot", "--output=cat").stdout


@case
def needs_no_scope(site):
    """Where every directory is Slurm's, jobs are fenced without jobfence.service."""
    only_with_systemd(site)
    if not tracked_by_cgroup(site):
        raise Skip("jobfence has directories of its own here")
    with without_scope(site):
        done = site.command("jobfence", "check")
        expect_equal(done.returncode, 0, f"exit status of jobfence check ({done.stdout})")
        # It moves processes where Slurm would.
        expect_match(r"(?m)^attach +a process was moved in .*\nfavordynmods +is (on|off) in /sys/fs/cgroup", done.stdout, "check")
        jobid = site.submit(site.users[0], "srun --mem=100 sleep 300", "-c1", "--mem=200")
        batch, step = fenced(site, jobid), fenced(site, jobid, "step_0")
        site.expect_limits(batch, 1.0, 200)
        expect_limits(step, 1.0, 100)
        for pid in step.members():
            fenced_in_all(pid, step)
        expect_equal(site.end(jobid), "CANCELLED", "state")
        fences_well(site, site.users[0])
        expect(not SCOPE.exists(), "the scope has come back")
