# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a job: how it is stopped, runs again and ends."""

from slurm import kernel
from slurm.harness import PYTHON, case, expect, expect_dead, expect_equal, expect_in, expect_match
from slurm.kernel import Group
from slurm.sites import until

from ..harness import ESCAPEE, WAIT, escapee_of, expect_gone, fenced, let_go


@case
def escapee(site):
    """A process with a session of its own is in the fence, and dies with the job."""
    jobid = site.submit("alice", f"{ESCAPEE}; {WAIT}; exit 4")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    expect_equal(Group.of(who[0]), group, "the escapee's group")
    let_go(site, jobid)
    expect_equal(site.wait(jobid)["ExitCode"], 4, "ExitCode")
    expect_dead(who)
    expect_gone(group.parent)


@case
def removed(site):
    """condor_rm ends all that is in the fence, and the fence."""
    jobid = site.submit("alice", f"{ESCAPEE}; trap '' TERM; while :; do sleep 1; done", want_graceful_removal="False")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    site.remove(jobid)
    expect_dead(who, 30)
    expect_gone(group.parent)


@case
def suspended(site):
    """condor_suspend is HTCondor's own: the processes stand still in its directory, and go on in the fence."""
    jobid = site.submit("alice", f"{ESCAPEE}; sleep 1000")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    site.act("suspend", jobid)
    site.wait_state(jobid, "suspended")
    site.act("continue", jobid)
    site.wait_state(jobid, "running")
    expect_equal(kernel.identity(who[0]), who, "the escapee")
    expect_equal(Group.of(who[0]), group, "its fence")


@case
def held_and_released(site):
    """A job that is put on hold leaves nothing, and has a fence again when it is released."""
    jobid = site.submit("alice", f"{ESCAPEE}; echo run; sleep 1000")
    group, who = fenced(site, jobid), escapee_of(site, jobid)
    site.act("hold", jobid)
    site.wait_state(jobid, "held")
    expect_dead(who, 20)
    expect_gone(group.parent)
    site.act("release", jobid)
    again = fenced(site, jobid)
    expect_in(f"/job_{jobid}.0/", again.path, "its directory")


@case
def stays_in(site):
    """The job's user can make cgroups below HTCondor's, and neither leave the fence nor widen it."""
    script = """
step=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's|/htcondor/.*||')
for file in $step/cpu.max $step/memory.max $step/pids.max; do (echo max >$file) 2>/dev/null && echo "wrote $file"; done
for place in $step $step/starter $step/../.. /sys/fs/cgroup; do
    (echo $$ >$place/cgroup.procs) 2>/dev/null && echo "went to $place"
done
mkdir $step/mine 2>/dev/null && echo "made $step/mine"
echo tried
"""
    jobid = site.submit("alice", script)
    site.wait(jobid)
    expect_equal(site.output(jobid).split(), ["tried"], "what the user could do")


def reported(site, **keys):
    """The startd's own cron has `jobfence host --htcondor` report every two seconds."""
    return site.changed(**{
        "STARTD_CRON_JOBLIST": "$(STARTD_CRON_JOBLIST) JOBFENCE",
        "STARTD_CRON_JOBFENCE_EXECUTABLE": str(site.jobfence), "STARTD_CRON_JOBFENCE_ARGS": "host --htcondor",
        "STARTD_CRON_JOBFENCE_PERIOD": "2s", **keys,
    })


METRICS = "PEAK:JobfenceMemory, PEAK:JobfenceCpuTime"


@case
def capacity(site):
    """What jobs can have of the host is in each slot's ad."""
    with reported(site):
        def seen():
            ads = site.ads("condor_status")
            return next((ad for ad in ads if "JobfenceMemory" in ad), None)
        ad = until(seen, 60, "the attributes in a slot's ad")
        said = fields(site.command(str(site.jobfence), "host", "--htcondor").stdout)
        for name in "JobfenceCpus", "JobfenceMemory", "JobfenceReservedMemory":
            expect_equal(str(ad[name]), said[name], name)
        expect_match(r"^\d+$", str(ad["JobfenceFreeMemory"]), "JobfenceFreeMemory")
    return f"{ad['JobfenceMemory']} MiB"


@case
def used_in_the_ad(site):
    """With METRICS the job's own ad has the peak of its memory and its CPU time, of processes with sessions of their own, too."""
    spin = f"{PYTHON} -S -c 'import time\nb = bytes([1]) * (60 << 20)\nwhile time.process_time() < 3: pass\ntime.sleep(9)'"
    with reported(site, STARTD_CRON_JOBFENCE_METRICS=METRICS):
        until(lambda: any("JobfenceMemory" in ad for ad in site.ads("condor_status")), 60, "the first report")
        jobid = site.submit("alice", f"setsid {spin} & sleep 20", mib=200)
        fenced(site, jobid)
        ad = site.wait(jobid)
    expect(60 <= ad.get("JobfenceMemoryUsage", 0) <= 264, f"JobfenceMemoryUsage {ad.get('JobfenceMemoryUsage')}")
    expect(3 <= ad.get("JobfenceCpuTimeUsage", 0) < 10, f"JobfenceCpuTimeUsage {ad.get('JobfenceCpuTimeUsage')}")
    return f"{ad['JobfenceMemoryUsage']} MiB, {ad['JobfenceCpuTimeUsage']} s"


def fields(text):
    return dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
