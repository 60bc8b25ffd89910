# SPDX-License-Identifier: GPL-2.0-or-later
"""What 'jobfence check' says of a configuration, and what a real job meets with it: the same."""

import contextlib
import os
import pwd
import re
import shutil
from pathlib import Path

from contract import kernel
from contract.harness import Skip, case, expect, expect_equal, expect_in
from contract.sites import until, write_atomically
from ..harness import expect_not_drained, fences_well, without_places_of_the_defaults
from ..sites import InstalledSite
from .placement import tracked_by_cgroup

# Says whether it is in a fence, and in which cgroups.
WHERE = "echo fenced=${JOBFENCE_CGROUP:+yes}; cat /proc/self/cgroup"


@contextlib.contextmanager
def line(site, changed, **files):
    """For the time being plugstack.conf has this in the place of our line, and files beside it."""
    path, text, ours = site._plugin_line()
    made = [path.with_name(name.replace("_", ".")) for name in files]
    for file, said in zip(made, files.values()):
        file.write_text(said)
    write_atomically(path, text.replace(ours, changed.format(line=ours, so=ours.split()[1], rest=" ".join(ours.split()[2:]))))
    try:
        yield
    finally:
        write_atomically(path, text)
        for file in made:
            file.unlink()


@contextlib.contextmanager
def run_dir(site, path, mode=None, owner=None):
    """For the time being records are there; made with these rights, or not made."""
    if mode is not None:
        path.mkdir(mode=mode)
        path.chmod(mode)
        os.chown(path, owner or 0, -1)
    try:
        with site.plugstack(f"RunDir={path}"):
            yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def not_a_library(site):
    path = site.home / "libjobfence.so"
    path.write_text("no library\n")
    path.chmod(0o755)
    try:
        with line(site, f"required {path} {{rest}}"):
            yield
    finally:
        path.unlink()


@contextlib.contextmanager
def in_plugin_dir(site):
    """Slurm finds a plugin without a path in the directories that slurm.conf names."""
    theirs = Path(site.command("scontrol", "show", "config").stdout.split("PluginDir")[1].split("=")[1].split()[0])
    with site.reconfigured(PluginDir=f"{theirs}:{site.plugin().parent}"), line(site, "required libjobfence.so {rest}"):
        yield


def said_in_file(**keys):
    @contextlib.contextmanager
    def change(site):
        site.configure(**keys)
        yield
    return change


def sections(text):
    @contextlib.contextmanager
    def change(site):
        site.configure_raw(text.format(user=site.users[0], other=site.users[1]))
        yield
    return change


def table(site):
    """Each with its name, what it changes, whether a job is fenced then (None: that depends on the kernel), and what check says."""
    v2 = kernel.has_v2_controllers()
    overlay = v2 and site.slurm_has_directories()
    nobody = pwd.getpwnam(site.users[1]).pw_uid
    least = "the kernel's least is 1000 us"
    rows = [
        ("defaults", said_in_file(), True, "a job would be fenced here"),
        ("processes", said_in_file(MaxProcesses="100"), True, ""),
        ("processes of a user", said_in_file(MaxProcessesPerUser="100"), not overlay, "all jobs of a user" if overlay else ""),
        ("I/O of a user", said_in_file(IOMaxPerUser="/,rbps=100M"), None if v2 and not overlay else False,
         "all jobs of a user" if overlay else "" if v2 else "IOMaxPerUser"),
        ("I/O on no disk", said_in_file(IOMax="/proc,rbps=100M"), False, "/proc"),
        ("devices", said_in_file(ConstrainDevices="closed"), None, ""),
        ("a device of nobody's", said_in_file(ConstrainDevices="closed", DeviceAllow="/dev/of-nobody"), False, "/dev/of-nobody"),
        ("GPUs without names", said_in_file(ConstrainDevices="yes"), False, "set GPUDevice"),
        ("cores", said_in_file(ConstrainCores="yes"), None, ""),
        ("huge pages", said_in_file(MaxHugePages="2M:0"), None, ""),
        ("protection", said_in_file(MemoryLowPercent="50"), v2, "" if v2 else "set MemoryLowPercent=0"),
        ("protection, or not", said_in_file(MemoryLowPercent="50", OnError="fail,memlow:warn"), True, ""),
        ("a task's memory", said_in_file(MaxRAMPerTask="90M", MaxCPUsPerTask="1"), not site.tasks_share_a_directory(), ""),
        ("a quota below the least", said_in_file(CPUQuotaPeriod="1ms", CPUQuotaPercent="50"), False, least),
        ("a task's quota below the least", said_in_file(MaxCPUsPerTask="0.001"), False, least),
        ("which is no matter", said_in_file(MaxCPUsPerTask="0.001", OnError="fail,cpu:warn"), True, "lets jobs run without it"),
        ("of one user", sections("[User={user}]\nMaxCPUsPerTask=0.001\n"), False, f"NO job with [User={site.users[0]}] would"),
        ("of another node", sections("[Node=elsewhere[1-9]]\nMaxCPUsPerTask=0.001\n"), True, ""),
        ("records in a new directory", lambda site: run_dir(site, site.home / "new"), True, ""),
        ("records nowhere", lambda site: run_dir(site, site.home / "no/new"), False, "RunDir="),
        ("records that all can read", lambda site: run_dir(site, site.home / "new", 0o755), False, "mode 0700"),
        ("records of another", lambda site: run_dir(site, site.home / "new", 0o700, nobody), False, "must belong to root"),
        ("a wrong key in the line", lambda site: site.plugstack("MaxProceses=100"), False, "MaxProceses"),
        ("a key in the line", lambda site: site.plugstack("MaxProcesses=100"), True, ""),
        ("no path", lambda site: line(site, "required libjobfence.so {rest}"), False, "write the whole path"),
        ("no path, and optional", lambda site: line(site, "optional libjobfence.so {rest}"), False, "write the whole path"),
        ("no library", not_a_library, False, "cannot be loaded"),
        ("a word that Slurm ignores", lambda site: line(site, "requird {so} {rest}"), False, "does not begin with"),
        ("a line of Windows", lambda site: line(site, "required {so}\r"), False, "cannot be loaded"),
        ("a comment", lambda site: line(site, "# {line}"), False, "no line of"),
        ("an included file", lambda site: line(site, "include [b]e*de.inc", beside_inc=f"{site._plugin_line()[2]}\n"), True, ""),
        ("Slurm's own directory", in_plugin_dir, True, "libjobfence.so"),
    ]
    if Path("/run/systemd/system").is_dir():
        nowhere = said_in_file(CgroupBase="jobfence.slice/of-nobody.scope")
        # If Slurm does not track the job on cgroup2, jobfence makes the job a directory there, also where cgroup2 has no controllers.
        needed = not tracked_by_cgroup(site) and "" in kernel.hierarchies()
        rows.append(("no scope", nowhere, not needed, "does not exist" if needed else ""))
    return rows


# Another one may be at work beside ours.
CHECK = 'echo pid=$$ >&2; exec "$0" check'


def check(site):
    """What 'jobfence check' says; it leaves nothing behind."""
    done = site.command("sh", "-c", CHECK, str(site.jobfence))
    expect_equal(left_by(done), [], "what check has left")
    return done


def left_by(done):
    """Directories of these checks that are still there."""
    names = [f"jobfence-check-{pid}." for pid in re.findall(r"^pid=(\d+)$", done.stderr, re.M)]
    expect(names, f"no check has begun: {done.stderr}")
    return [place for top in kernel.hierarchies().values() for place in kernel.directories_below(top.mount_point)
            if place.name.removeprefix("slurm_").startswith(tuple(names))]


@case
def check_agrees_with_a_real_job(site):
    """Of many configurations, good and bad: check passes where a job is fenced, and nowhere else; and says why."""
    if not site.jobfence:
        raise Skip("there is no jobfence command here (--bin)")
    # Where Slurm finds no line for the plugin, check tries a step by the defaults.
    with without_places_of_the_defaults():
        return agrees_with_a_real_job(site)


def agrees_with_a_real_job(site):
    user = site.users[0]
    agreed, problems = {True: 0, False: 0}, []
    for what, change, expected, said in table(site):
        try:
            with change(site):
                done = check(site)
                ran = site.srun(user, "-n1", "-c1", "--mem=100", "sh", "-c", WHERE)
                is_fenced = ran.returncode == 0 and "fenced=yes" in ran.stdout
                told = f"{done.stdout}{done.stderr}\nsrun ({ran.returncode}):\n{ran.stdout}{ran.stderr}"
                expect_equal(done.returncode == 0, is_fenced, f"whether check passes, and whether a job is fenced\n{told}")
                expect(expected in (None, is_fenced), f"whether a job is fenced should be {expected}\n{told}")
                expect_in(said, done.stdout + done.stderr, "what check says")
                agreed[is_fenced] += 1
        except AssertionError as error:
            problems.append(f"{what}: {error}")
        site.configure()
    expect(not problems, f"{len(problems)} configurations:\n" + "\n".join(problems))
    expect_not_drained(site)
    fences_well(site, user)
    return f"{agreed[True]} times that jobs are fenced, {agreed[False]} times that not"


@case
def check_leaves_running_jobs_alone(site):
    """Beside a job: again and again, also ended in its middle."""
    if not site.jobfence:
        raise Skip("there is no jobfence command here (--bin)")
    site.configure(MaxProcesses="100", MaxCPUsPerTask="1")
    if site.tasks_share_a_directory():
        site.configure(MaxProcesses="100")
    jobid = site.submit(site.users[0], "srun --mem=100 sleep 300", "-c1", "--mem=200")
    until(lambda: site.job_pids(jobid, "sleep"), 30, "the step")
    places = {pid: kernel.cgroups_of(pid) for pid in site.job_pids(jobid)}

    def seen():
        # Where check has been, too: in Slurm's directories those of other jobs are beside them.
        return {pid: kernel.cgroups_of(pid) for pid in places}
    for number in range(10):
        script = f"sh -c '{CHECK}' '{site.jobfence}' >/dev/null & sleep 0.0{number}; kill -TERM $!; wait $!; echo pid=$! >&2"
        done = site.command("sh", "-c", script)
        expect_equal(left_by(done), [], f"what a check has left that was ended after {number}0 ms")
    for _ in range(3):
        expect_equal(check(site).returncode, 0, "exit status of check")
    expect_equal(seen(), places, "where the job's processes are")
    expect_equal(site.end(jobid), "CANCELLED", "state")


@case
def check_without_root(site):
    """Says what it did not see and try, blames nothing of what is right, and fails as the manual says."""
    if not isinstance(site, InstalledSite):
        raise Skip("jobfence is not installed here")
    site.configure()
    done = site.as_user(site.users[0], [str(site.jobfence), "check"])
    expect_equal(done.returncode, 1, "exit status of a user's check")
    expect_in("none without root: RunDir, the directories of jobs and their limits were not tried", done.stdout, "check")
    expect_in("only root can see whether a job would be fenced here", done.stdout, "check")
    for wrong in ("NO job", "remove it", "must belong to root"):
        expect(wrong not in done.stdout + done.stderr, f"a user reads {wrong!r}:\n{done.stdout}{done.stderr}")
