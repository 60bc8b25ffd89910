# SPDX-License-Identifier: GPL-2.0-or-later
"""A job is limited to what its slot has, and HTCondor's own limits go on working."""

import time
from pathlib import Path

from contract import kernel
from contract.harness import MIB, PYTHON, TAKE, WAIT, case, expect, expect_equal, expect_in, expect_match, fenced, let_go, running, uid
from contract.sites import until

from ..harness import check, expect_limits, expect_quota
from ..sites import STARTERS_MIB

SPIN = "for i in 1 2 3 4; do sh -c 'while :; do :; done' & done"


@case(release=True)  # a unit test of watch.rs shows that the watcher is told the directory
def in_another_directory(site):
    """BASE_CGROUP has HTCondor make the job's cgroup in another directory. That one has the memory of the slot, and the log says so."""
    with site.changed(BASE_CGROUP="site"):
        began = time.time()
        jobid = site.submit("alice", f"cat /proc/self/cgroup; {WAIT}; {TAKE % (190, 1)}; echo status $?", mib=100)
        group = fenced(site, jobid)
        expect_equal(group.step("site").memory_limit(), 100 * MIB, "the job's part of the fence")
        let_go(site, jobid)
        reason, code, _ = site.held(jobid)
        expect_equal(code, 34, f"the code of the hold, whose reason is {reason}")
        expect_in(f"{group.path}/site/", site.output(jobid), "where HTCondor has put the job")
        said = until(lambda: f"job {jobid}.0 step" in site.said(began) and site.said(began), 60, "the end of the fence")
        expect_in("its memory limit of 100.0 MiB", said, "the sentence")
        expect("HTCondor has made no cgroup" not in said, f"what the log says: {said}")


@case(release=True)  # as_granted shows the limit in the kernel's files
def quota(site):
    """Four spinners have the time of one CPU, and HTCondor's own accounting says so in the job's ad."""
    jobid, group = running(site, "alice", f"{TAKE % (60, 1000)} & {SPIN}; {WAIT}")
    used = expect_quota(group, 1)
    # HTCondor's own directory, without the starter. What its ad of the job has of CPUs and memory, the startd has seen while it ran.
    (own,) = filter(Path.is_dir, (group.directory("") / "htcondor").iterdir())
    until(lambda: (ad := site.job(jobid)).get("CpusUsage", 0) > 0 and ad.get("ResidentSetSize_RAW", 0) >= 60 << 10, 120, "its use in its ad")
    least, began = int(kernel.keyed(kernel.read(own / "cpu.stat"))["usage_usec"]) / 1e6, time.monotonic()
    let_go(site, jobid)
    ad = site.wait(jobid)
    most = least + time.monotonic() - began
    seconds = ad["RemoteUserCpu"] + ad["RemoteSysCpu"]
    # HTCondor has whole seconds of each.
    expect(least - 2 <= seconds <= most + 2, f"RemoteUserCpu and RemoteSysCpu: {seconds} s, and the kernel has counted {least} s to {most} s")
    # By the startd's clock, which a busy machine stops for long: how much it can be, the kernel has said.
    expect(ad["CpusUsage"] > 0, f"CpusUsage {ad['CpusUsage']}")
    # MemoryUsage is an expression over this, in KiB.
    expect(60 << 10 <= ad["ResidentSetSize_RAW"] <= 100 << 10, f"ResidentSetSize {ad['ResidentSetSize_RAW']}")
    said = site.command("condor_history", str(jobid), "-limit", "1", "-af", "MemoryUsage").stdout.strip()
    expect(said.isdecimal() and 60 <= int(said) <= 100, f"MemoryUsage {said}")
    return f"{used}; HTCondor says {seconds:.0f} s, {ad['CpusUsage']:.2f} CPUs, {said} MiB"


@case(release=True)  # as_granted shows the limit, and out_of_the_fences_memory that it kills
def without_htcondors_limits(site):
    """Where HTCondor limits no memory, or tracks no job by cgroup, jobfence does; and the job ends there, too."""
    with site.changed(CGROUP_MEMORY_LIMIT_POLICY="none"):
        jobid, group = running(site, "alice", f"{WAIT}; {TAKE % (300, 1)}; echo status $?", mib=100)
        expect_limits(site, group, site.slot(jobid))
        let_go(site, jobid)
        # 25.14 holds it for that, too.
        site.held_or_ended(jobid)
        expect("status 0" not in site.output(jobid), "it had three times its memory")


@case
def out_of_the_fences_memory(site):
    """Where the fence has less memory than the slot, its kill is one of HTCondor's own cgroup, too: from 24.0 on the job is held for it."""
    site.configure("AllowedRAMSpace=50\n")
    began = time.time()
    jobid, group = running(site, "alice", f"{WAIT}; {TAKE % (190, 1)}; echo status $?", mib=200)
    expect_equal(group.memory_limit(), (200 // 2 + STARTERS_MIB) * MIB, "the fence's limit")
    expect_equal(group.step("htcondor").memory_limit(), 100 * MIB, "the job's part of it")
    let_go(site, jobid)
    said = until(lambda: f"job {jobid}.0 step" in site.said(began) and site.said(began), 60, "the end of the fence")
    expect_match(f"job {jobid}.0 .*memory", said, "the sentence")
    expect("status 0" not in site.output(jobid), "it had more than the fence has")
    release = site.command("condor_version").stdout.split()[1]
    if release.startswith("23."):
        # It takes the host for full, and the job for fit to run elsewhere.
        until(lambda: "Worker node is out of memory" in site.log(jobid), 60, "the event in the user's log")
        site.remove(jobid)
        return f"{release} evicts it"
    reason, code, _ = site.held(jobid)
    expect_equal(code, 34, f"the code of the hold, whose reason is {reason}")
    return f"{release}: {reason}"


@case
def beside_a_hook(site):
    """Before 24.8 a hook of HTCondor's switches its cgroups off: the job is in the fence all the same."""
    with site.changed(STARTER_DEFAULT_JOB_HOOK_KEYWORD="TEST", TEST_HOOK_PREPARE_JOB="/bin/true"):
        began = time.time()
        jobid, group = running(site, "alice", f"cat /proc/self/cgroup; {WAIT}", mib=100)
        expect_limits(site, group, site.slot(jobid))
        let_go(site, jobid)
        site.wait(jobid)
        is_tracked = "/htcondor/" in site.output(jobid)
        said = until(lambda: f"job {jobid}.0 step" in site.said(began) and site.said(began), 10, "the end of the fence")
        expect_equal("HTCondor has made no cgroup for it" in said, not is_tracked, f"what the log says of HTCondor's cgroups: {said}")
    return "tracked by HTCondor" if is_tracked else "not tracked by HTCondor"


@case
def by_account_and_type(site):
    """Sections by accounting group, where the site trusts in that, and by user say more of a job."""
    site.configure("TrustAccount=yes\n[Account=group_a]\nMaxProcesses=77\n[User=bob]\nMaxProcesses=66\n")
    forms = {"accounting_group": "group_a"}, {"accounting_group": "group_a", "accounting_group_user": "carol"}
    jobids = [site.submit("alice", "sleep 1000", **lines) for lines in forms] + [site.submit("bob", "sleep 1000")]
    expect_equal([fenced(site, jobid).parent.processes_limit() for jobid in jobids], [77, 77, 66], "processes")


@case
def two_at_once(site):
    """Jobs of two users, and two of one cluster, have fences of their own."""
    one, other = site.submit("alice", "sleep 1000", queue=2), site.submit("bob", "sleep 1000")
    expect_in(f"/uid_{uid('bob')}/", fenced(site, other).path, "bob's directory")

    def groups():
        found = {kernel.Group.of(pid) for pid in site.job_pids(one, "sleep")} - {None}
        return found if len(found) == 2 else None
    found = sorted(group.path.rsplit("/", 2)[1] for group in until(groups, 60, "two fences"))
    expect_equal(found, [f"job_{one}.0", f"job_{one}.1"], "the jobs' directories")


@case
def used(site):
    """The usage log has the CPU time and the memory of a process that HTCondor has not waited for."""
    log = site.home / "usage.jsonl"
    site.configure(f"UsageLog={log}\n")
    log.parent.chmod(0o755)
    spin = f"{PYTHON} -S -c 'import os, time\nb = bytes([1]) * (60 << 20)\nwhile time.process_time() < 2: pass\nopen(\"spun.\" + os.environ[\"JOB_ID\"], \"w\")'"
    counted = f"grep usage_usec {site.CGROUP2}$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's|/htcondor/.*||')/cpu.stat"
    script = f"cat >spin.$JOB_ID <<'END'\n{spin}\nEND\nsetsid sh spin.$JOB_ID >/dev/null 2>&1 &\n{WAIT.replace('go', 'spun')}; {counted}"
    began = time.monotonic()
    jobid = site.submit("alice", script, mib=200)
    site.wait(jobid)
    most = time.monotonic() - began
    least = int(site.output(jobid).split()[1]) / 1e6
    done = until(lambda: (got := site.command(str(site.jobfence), "report", f"{jobid}.0", "--json")).returncode == 0 and got, 20, "a line")
    seconds = float(expect_match(r'"cpu_seconds":([\d.]+)', done.stdout, "the report")[1])
    # A slot of one CPU.
    expect(2 <= least <= seconds <= most, f"{seconds} s in the report, and the kernel has counted {least} s of at most {most} s")
    return f"{seconds} s"


@case
def checked(site):
    """'jobfence check' says what the startd starts, and whether the slots say what jobs can have."""
    def verdict():
        done = check(site)
        return done.returncode, done.stdout
    status, said = verdict()
    expect_equal(status, 0, f"the status of a good check ({said})")
    expect_in("htcondor       STARTD_CRON_JOBLIST has no jobfence", said, "what is missing")
    expect_match(r"(?m)^htcondor +STARTER_LOCAL is /\S*/jobfence$", said, "what starts local jobs")
    expect_in("htcondor       START does not ask for JobfenceHealthy", said, "what is missing")
    with site.changed(STARTD_CRON_JOBLIST="FENCE", STARTD_CRON_FENCE_EXECUTABLE=site.jobfence):
        expect_in("htcondor       STARTD_CRON_JOBLIST has FENCE\n", verdict()[1], "what is there")
    with site.changed(STARTER="/usr/sbin/condor_starter", STARTER_LOCAL="/usr/sbin/condor_starter"):
        status, said = verdict()
    expect_in("STARTER_LOCAL is /usr/sbin/condor_starter, and not jobfence: jobs of the local universe are not fenced", said, "what is missing")
    expect(status == 1 and "NO job would be fenced here: STARTER of HTCondor is /usr/sbin/condor_starter, and not jobfence" in said, said)
