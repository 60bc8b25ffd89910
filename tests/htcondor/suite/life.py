# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a job: how it is stopped, runs again and ends."""

import time
from pathlib import Path

from contract import kernel
from contract.harness import (
    ESCAPEE, PYTHON, WAIT, case, end_of, escapee_of, escaping, expect, expect_dead, expect_ended, expect_equal, expect_gone, expect_in,
    expect_match, fenced, let_go, pid_from, running, uid,
)
from contract.kernel import Group
from contract.sites import until

from ..harness import expect_limits, restarts


@case(release=True)  # HTCondor's own freezer: that the job stands in HTCondor's directory, as_granted shows
def suspended_by_htcondor(site):
    """condor_suspend is HTCondor's own: the processes stand still in its directory, and go on in the fence."""
    spin = "setsid sh -c 'echo $$ >spinner.new; mv spinner.new spinner.$JOB_ID; while :; do :; done' & wait"
    jobid, group, who = escaping(site, "alice", f"{spin}")
    spinner = pid_from(site.directory("alice") / f"spinner.{jobid}")

    def used_in(seconds):
        before = kernel.process_seconds(spinner)
        time.sleep(seconds)
        return kernel.process_seconds(spinner) - before
    until(lambda: kernel.process_seconds(spinner) > 0.2, 60, "that the spinner runs")
    site.act("suspend", jobid)
    site.wait_state(jobid, "suspended")
    place = Path(f"{site.CGROUP2}{kernel.cgroups_of(who[0])['']}")
    until(lambda: kernel.keyed(kernel.read(place / "cgroup.events"))["frozen"] == "1", 30, f"that {place} is frozen")
    expect_equal(used_in(3), 0.0, "the spinner's CPU time while it is suspended")
    site.act("continue", jobid)
    site.wait_state(jobid, "running")
    until(lambda: used_in(1) > 0.1, 30, "that the spinner goes on")
    expect_equal(kernel.identity(who[0]), who, "the escapee")
    expect_equal(Group.of(who[0]), group, "its fence")


@case(release=True)  # escapee shows that the fence holds and ends what has a session of its own
def before_and_after(site):
    """What HTCondor runs before and after the job is in the job's fence, and what that leaves running dies with the fence."""
    place = site.directory("alice")
    script = place / "around"
    script.write_text(f"#!/bin/sh\ncat /proc/self/cgroup >$1\nJOB_ID=$1\n{ESCAPEE}\n")
    script.chmod(0o755)
    around = {f"+{when}{name}": f'"{value}"' for when in ("Pre", "Post") for name, value in (("Cmd", script), ("Arguments", when))}
    # Later releases run neither by themselves.
    with site.changed(STARTER_ALLOW_JOB_PRE_AND_POST_CMD="True"):
        jobid = site.submit("alice", f"{WAIT}; exit 4", **around)
        group, who = fenced(site, jobid), escapee_of(site, "Pre")
        end_of(site, jobid)
    for when in "Pre", "Post":
        expect_in(f"0::{group.path}/", (place / when).read_text(), f"the cgroup of {when}Cmd")
    expect_gone(group.parent)
    expect_dead(who, 20)
    expect(not kernel.is_alive(pid_from(place / "escapee.Post")), "what PostCmd has left is alive")
    return (place / "Pre").read_text().strip().removeprefix(f"0::{group.path}")


@case
def claim_used_again(site):
    """Jobs that have a slot one after the other, by one claim, have fences of their own: the startd's ad has the job of before when each begins."""
    mark = site.log_mark()
    with site.changed(CLAIM_WORKLIFE="3600"):
        # A submitter's name that is no user's: alice and bob can have one claim.
        jobs = {user: site.submit(user, WAIT, cpus=4, accounting_group_user="both") for user in site.users}
        places = []
        for user, jobid in jobs.items():
            group = fenced(site, jobid)
            places.append(group.path)
            expect_in(f"/uid_{uid(user)}/job_{jobid}.0/", group.path, f"the directory of the job of {user}")
            let_go(site, jobid, user)
            expect_equal(site.wait(jobid)["ExitCode"], 0, "ExitCode")
            expect_gone(group.parent)
        claims = site.log_since(mark, "Start").count("Remote owner is ")
    return f"{claims} claims for {len(places)} jobs"


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


@case(release=True)  # a restart of HTCondor; two_at_once has two fences of one cluster
@restarts
def parallel_universe(site):
    """Each node of a parallel job has a starter and a fence of its own, with what its slot has; the first node's end ends all."""
    scheduler = f'"DedicatedScheduler@{site.ads("condor_status", "-schedd")[0]["Name"]}"'
    # Slots that are not made anew for each claim: the dedicated scheduler of 23.9 can lose the claim of one that is.
    slots = {"NUM_SLOTS_TYPE_1": 2, "SLOT_TYPE_1": "cpus=1 memory=100", "SLOT_TYPE_1_PARTITIONABLE": False}
    keys = {"DedicatedScheduler": scheduler, "RANK": f"Scheduler =?= {scheduler}", **slots}
    with site.changed(restart=True, STARTD_ATTRS="$(STARTD_ATTRS) DedicatedScheduler", **keys):
        script = f"setsid sleep 1000 </dev/null >/dev/null 2>&1 & {WAIT}; [ $_CONDOR_PROCNO = 0 ] && exit 4; sleep 2000"
        jobid = site.submit("alice", script, universe="parallel", machine_count=2)

        def seen():
            found = {Group.of(pid): kernel.identity(pid) for pid in site.job_pids(jobid, "sleep 1000")}
            return found if len(found) == 2 and None not in found else None
        escapees = until(seen, 120, "two fences")
        for group in escapees:
            expect_in(f"/uid_{uid('alice')}/job_{jobid}.0/step_", group.path, "its directory")
            slot = site.slot_named(group.name.removeprefix("step_"))
            expect_equal((slot["Cpus"], slot["Memory"]), (1, 100), f"the CPUs and memory of {slot['Name']}")
            expect_limits(site, group, slot)
        expect_equal(len({site.starter(group) for group in escapees} - {None}), 2, "the number of starters")
        end_of(site, jobid)
        for group, who in escapees.items():
            expect_ended([who], group)
    return " and ".join(sorted(group.name for group in escapees))


@case(release=True)  # escapee shows that what the starter starts is in the fence
def ssh_to_job(site):
    """The shell of condor_ssh_to_job is in the job's fence, and what it leaves running dies with the job."""
    jobid, group = running(site, "alice", f"{WAIT}; exit 4")
    shell = f"cd {site.directory('alice')}; cat /proc/self/cgroup; {ESCAPEE.replace('$JOB_ID', jobid)}"
    done = site.as_user("alice", ["condor_ssh_to_job", "-auto-retry", jobid, shell])
    expect_equal(done.returncode, 0, f"the status of condor_ssh_to_job, which says {done.stderr}")
    expect_in(f"0::{group.path}/", done.stdout, "the shell's cgroup")
    who = escapee_of(site, jobid)
    expect_equal(Group.of(who[0]), group, "the group of what it has left")
    end_of(site, jobid)
    expect_ended([who], group)
    return done.stdout.strip().removeprefix(f"0::{group.path}")


def reported(site, **keys):
    """The startd's own cron has `jobfence host --htcondor` report every two seconds."""
    return site.changed(**{
        "STARTD_CRON_JOBLIST": "$(STARTD_CRON_JOBLIST) JOBFENCE",
        "STARTD_CRON_JOBFENCE_EXECUTABLE": str(site.jobfence), "STARTD_CRON_JOBFENCE_ARGS": "host --htcondor",
        "STARTD_CRON_JOBFENCE_PERIOD": "2s", **keys,
    })


METRICS = "PEAK:JobfenceMemory, PEAK:JobfenceCache, PEAK:JobfenceCpuTime"


@case
def capacity(site):
    """What jobs can have of the host is in each slot's ad."""
    names = "JobfenceCpus", "JobfenceMemory", "JobfenceReservedMemory"
    with reported(site):
        def agreed():
            # What else the machine does changes the memory from one report to the next.
            said = fields(site.command(str(site.jobfence), "host", "--htcondor").stdout)
            return next((ad for ad in site.ads("condor_status") if all(str(ad.get(name)) == said[name] for name in names)), None)
        ad = until(agreed, 60, "what 'jobfence host' says, in a slot's ad")
        expect_match(r"^\d+$", str(ad["JobfenceFreeMemory"]), "JobfenceFreeMemory")
    return f"{ad['JobfenceMemory']} MiB"


@case(release=True)  # capacity shows that the startd reads the reports, and used what is in them
def used_in_the_ad(site):
    """With METRICS the job's own ad has the peak of its memory and its CPU time, of processes with sessions of their own, too."""
    return used_as_reported(site)


@case(release=True)  # as used_in_the_ad
def used_by_a_scavenger(site):
    """The same for a job whose fence lies below that of all scavengers."""
    site.configure("Scavenger=yes\n")
    return used_as_reported(site)


def used_as_reported(site):
    spin = f"{PYTHON} -S -c 'import time\nb = bytes([1]) * (60 << 20)\nwhile time.process_time() < 3: pass\ntime.sleep(1000)'"
    with reported(site, STARTD_CRON_JOBFENCE_METRICS=METRICS):
        until(lambda: any("JobfenceMemory" in ad for ad in site.ads("condor_status")), 60, "the first report")
        began = time.monotonic()
        read = "truncate -s 150M hole.$JOB_ID && cat hole.$JOB_ID >/dev/null"
        jobid = site.submit("alice", f"{read}; setsid {spin} & {WAIT}; rm hole.$JOB_ID", mib=300)
        fenced(site, jobid)

        def is_in_the_ad():
            ad = site.job(jobid)
            return ad.get("JobfenceMemoryUsage", 0) >= 60 and ad.get("JobfenceCacheUsage", 0) >= 100 and ad.get("JobfenceCpuTimeUsage", 0) >= 3
        until(is_in_the_ad, 120, "its use in its ad")
        let_go(site, jobid)
        ad, most = site.wait(jobid), time.monotonic() - began
    expect(60 <= ad.get("JobfenceMemoryUsage", 0) <= 120, f"JobfenceMemoryUsage {ad.get('JobfenceMemoryUsage')}")
    expect(3 <= ad.get("JobfenceCpuTimeUsage", 0) <= most, f"JobfenceCpuTimeUsage {ad.get('JobfenceCpuTimeUsage')} in {most} s of one CPU")
    return f"{ad['JobfenceMemoryUsage']} MiB, {ad['JobfenceCpuTimeUsage']} s"


def fields(text):
    return dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
