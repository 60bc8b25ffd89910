# SPDX-License-Identifier: GPL-2.0-or-later
"""A host that can fence no job takes itself out: its jobs go back, and none is put on hold for it."""

from contract.harness import case, expect, expect_equal, expect_in, expect_match
from contract.sites import until

from ..harness import check
from .life import reported

# As docs/install/htcondor.md has it.
GUARDED = {"START": "($(START)) && (JobfenceHealthy =!= False)"}


def health(site):
    """Of the host's own slot. The ad of a job's slot outlives a startd that was killed, by minutes, and nobody makes it anew."""
    asked = "-constraint", "PartitionableSlot =?= True", "-attributes", "Name,JobfenceHealthy,JobfenceFault"
    return [(ad.get("JobfenceHealthy"), ad.get("JobfenceFault")) for ad in site.ads("condor_status", *asked)]


@case
def service_comes_first(site):
    """jobfence.service starts before HTCondor, which can start jobs at once."""
    expect_in("jobfence.service", site.command("systemctl", "show", "condor.service", "--property=After").stdout, "after what condor.service starts")


@case
def before_the_startd_knows(site):
    """A job that comes between two reports goes back, and its user reads why: the host is to blame."""
    with reported(site, STARTD_CRON_JOBFENCE_PERIOD="1h", **GUARDED):
        until(lambda: all(healthy is True for healthy, _ in health(site)), 60, "the first report")
        line = site.configure("CPUQuotaPercnt=90\n") + 1
        jobid = site.submit("alice", "touch ran.$JOB_ID")
        until(lambda: "this job cannot be fenced" in site.log(jobid), 180, "why it goes back, in its log")
        expect_match(rf"jobfence.conf:{line}:1: .*CPUQuotaPercnt", site.log(jobid), "its log")
        expect_equal(site.queued(jobid), ["idle"], "its state")
        expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "it has run")
        site.configure()
        expect_equal(site.wait(jobid)["ExitCode"], 0, "ExitCode")
        expect("\n012 (" not in site.log(jobid), "it was on hold")


@case
def unhealthy(site):
    """With a misspelled key the slots say so, and take no job: none is put on hold, and all run when the key is mended."""
    with reported(site, **GUARDED):
        until(lambda: all(healthy is True for healthy, _ in health(site)), 60, "the first report")
        expect_in("htcondor       START asks for JobfenceHealthy", check(site).stdout, "what 'jobfence check' says")
        line = site.configure("CPUQuotaPercnt=90\n") + 1
        jobids = [site.submit("alice", "touch ran.$JOB_ID") for _ in range(6)]
        said = until(lambda: next((found for found in health(site) if found[0] is False), None), 60, "the slots' own word")
        expect_match(rf"jobfence.conf:{line}:1: .*CPUQuotaPercnt", said[1], "JobfenceFault")
        # Where the first of them were as fast as the report, those are back.
        until(lambda: all(site.queued(jobid) == ["idle"] for jobid in jobids), 180, "that all are idle")
        sent_back = [jobid for jobid in jobids if "cannot be fenced" in site.log(jobid)]
        held = [jobid for jobid in jobids if "\n012 (" in site.log(jobid)]
        expect_equal(held, [], "jobs that were on hold")
        expect(all(not (site.directory("alice") / f"ran.{jobid}").exists() for jobid in jobids), "one has run")
        site.configure()
        for jobid in jobids:
            expect_equal(site.wait(jobid)["ExitCode"], 0, "ExitCode")
    return f"{len(sent_back)} of {len(jobids)} came back"
