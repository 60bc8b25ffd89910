# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job's user says to jobfence and reads of it: variables, limits that are asked for, the card, and why a job is on hold."""

from contract import kernel
from contract.harness import MIB, TAKE, WAIT, case, expect, expect_equal, expect_in, expect_match, fenced, let_go
from contract.sites import until

from ..harness import check
from ..sites import STARTERS_MIB
from .local import submit as submit_local

WRAPPER = "/usr/libexec/jobfence/htcondor-job"
# As docs/install/htcondor.md has it.
ASKED = "JobfenceCpuLimit JobfenceCpuBurst JobfenceMemHigh JobfencePidsMax JobfenceIoMax JobfenceUsageCard JobfenceSignalAt JobfenceElasticRam"
HEARD = {"STARTD_JOB_ATTRS": f"$(STARTD_JOB_ATTRS) {ASKED}"}
SAY = "env | grep -E '^(JOBFENCE_[CM]|SITE|OMP_NUM)' | sort"


def said(site, jobid):
    return dict(line.split("=", 1) for line in site.output(jobid).splitlines())


@case
def variables(site):
    """The job reads its limits in its environment, beside what the site and its user put there; so does a local job."""
    site.configure("MaxProcesses=60\n[VnodeType=local]\nZeroCPUs=0.5\n")
    # One of the startd's own variables, which HTCondor's programs do not need.
    startd = dict(line.split("=", 1) for line in kernel.environment_bytes(site.daemon_pid("condor_startd")).decode().split("\0") if "=" in line)
    with site.changed(STARTER_JOB_ENVIRONMENT='"SITE=\'a b\' SITES_UNIT=$ENV(INVOCATION_ID)"'):
        jobids = site.submit("alice", SAY, cpus=2, mib=200), submit_local(site, SAY)
        for jobid in jobids:
            site.wait(jobid)
    found = said(site, jobids[0])
    expect_match(rf"/job_{jobids[0]}\.0/step_slot\w+$", found.pop("JOBFENCE_CGROUP"), "JOBFENCE_CGROUP")
    memory = (200 if site.HTCONDOR_LIMITS_MEMORY else 200 + STARTERS_MIB) * MIB
    expected = {"JOBFENCE_CPUS": "2", "JOBFENCE_MAX_PROCESSES": "60", "JOBFENCE_MEMORY_BYTES": str(memory), "SITE": "a b", "OMP_NUM_THREADS": "2", "SITES_UNIT": startd["INVOCATION_ID"]}
    expect_equal(found, expected, "the variables of a job with a slot")
    found = said(site, jobids[1])
    expect_equal((found["JOBFENCE_CPUS"], found["SITE"], "JOBFENCE_MEMORY_BYTES" in found), ("0.5", "a b", False), "those of a local job")


@case
def asked_for(site):
    """A user lowers limits by attributes of the job and never raises one; what is wrong puts the job on hold, and its user reads why."""
    with site.changed(**HEARD):
        low = site.submit("alice", "sleep 1000", **{"+JobfenceCpuLimit": "0.5", "+JobfencePidsMax": '"50"', "+JobfenceMemHigh": '"80M"'})
        high = site.submit("alice", "sleep 1000", **{"+JobfenceCpuLimit": "64"})
        wrong = site.submit("alice", "sleep 1000", **{"+JobfenceCpuLimit": "RequestCpus"})
        group = fenced(site, low)
        expect_equal((group.cpu_limit(), group.processes_limit()), (0.5, 50), "what is asked for")
        expect_equal(group.step("htcondor").memory_high(), 80 * MIB, "memory.high of the job's part")
        expect_equal(fenced(site, high).cpu_limit(), 1.0, "the CPU limit of a job that asks for more than its slot has")
        reason, *_ = site.held(wrong)
        expect_in("JobfenceCpuLimit of the job's ad is neither a number nor a text in quotes", reason, "why it is on hold")
        expect_in("RequestCpus", reason, "why it is on hold")
        local = submit_local(site, "sleep 1000", **{"+JobfencePidsMax": "40"})
        expect_equal(fenced(site, local).processes_limit(), 40, "what a local job asks for")


@case(release=True)  # asked_for has the attributes by themselves
def by_template(site):
    """A submit template of the site's, as the page has it, gives users shorter words for the same."""
    template = """
  if $(1?)
    MY.JobfenceCpuLimit = "$(1)"
  endif
  if $(2?)
    MY.JobfencePidsMax = "$(2)"
  endif
@end"""
    names = f"$(SUBMIT_TEMPLATE_NAMES) Jobfence\nSUBMIT_TEMPLATE_Jobfence @=end{template}"
    with site.changed(SUBMIT_TEMPLATE_NAMES=names, **HEARD):
        both, one = (site.submit("alice", "sleep 1000", **{f"use template : Jobfence({words})\n#": ""}) for words in ("0.5, 50", "0.25"))
        group = fenced(site, both)
        expect_equal((group.cpu_limit(), group.processes_limit()), (0.5, 50), "what is asked for by both words")
        group = fenced(site, one)
        expect_equal((group.cpu_limit(), group.processes_limit()), (0.25, None), "what is asked for by one word")


@case
def card(site):
    """The card stands behind what the job has written to its standard error, also where HTCondor transfers that; the job ends as it would."""
    site.configure("UsageCard=always\n")
    transferred = {"should_transfer_files": "YES", "when_to_transfer_output": "ON_EXIT", "transfer_executable": "True"}
    with site.changed(USER_JOB_WRAPPER=WRAPPER, STARTD_JOB_ATTRS=HEARD["STARTD_JOB_ATTRS"]):
        failed = site.submit("alice", "echo out; echo err >&2; exit 4", **transferred)
        killed = site.submit("alice", f"trap 'echo heard; exit 5' USR1; {WAIT}; kill -KILL $$")
        stopped = site.submit("alice", f"trap 'echo heard; exit 5' USR1; touch ready.$JOB_ID; {WAIT}", remove_kill_sig="SIGUSR1")
        paused = site.submit("alice", "(sleep 1; kill -CONT $$) & kill -STOP $$; exit 6")
        without = site.submit("alice", f"cat /proc/$PPID/comm; {WAIT}", **{"+JobfenceUsageCard": '"never"'})
        expect_equal(site.wait(failed)["ExitCode"], 4, "ExitCode")
        expect_equal(site.output(failed), "out\n", "its output")
        text = site.output(failed, "err")
        expect_match(rf"\Aerr\njobfence: job {failed}\.0.* (failed with exit )?status 4", text, "its standard error")
        share = int(expect_match(r", (\d+) % of 1 CPU", text, "its share of a CPU")[1])
        expect(share <= 300, f"{share} % of a CPU: what was used before the job counts")
        let_go(site, killed)
        ad = site.wait(killed)
        expect_equal((ad["ExitBySignal"], ad["ExitSignal"]), (True, 9), "how a job that is killed has ended")
        expect_match(rf"jobfence: job {killed}\.0.*signal 9", site.output(killed, "err"), "its card")
        expect_equal(site.wait(paused)["ExitCode"], 6, "ExitCode of a job that stops itself, and goes on")
        until(lambda: (site.directory("alice") / f"ready.{stopped}").exists(), 120, "that it waits for a signal")
        site.remove(stopped)
        until(lambda: "heard\n" in site.output(stopped), 60, "the signal of a removal in the job")
        until(lambda: site.output(without), 120, "who the job's parent is")
        let_go(site, without)
        site.wait(without)
        expect_match("condor_starter", site.output(without), "the parent of a job that has no card")
        expect_equal(site.output(without, "err"), "", "its standard error")
        missing = site.submit("alice", "true", executable="/no/such/program", transfer_executable="False")
        expect_equal(site.wait(missing)["ExitCode"], 127, "ExitCode of a job whose program is missing")
        expect_in("jobfence: cannot run", site.output(missing, "err"), "what its user reads")
    return text.splitlines()[1]


@case
def why_it_is_held(site):
    """Of a job that was killed for want of memory, condor_q -hold names the process and the limit, where the schedd is on this host."""
    jobid = site.submit("alice", TAKE % (190, 1), mib=100)
    expect_equal(site.held(jobid)[1], 34, "the code of the hold")

    def reason():
        found = site.job(jobid).get("HoldReason", "")
        return "was killed" in found and found
    found = until(reason, 60, "our sentence")
    expect_match(rf"job {jobid}\.0 step slot\w+: process .* was killed: .* memory limit of 100.0 MiB", found, "HoldReason")
    return found


@case(release=True)  # life.ssh_to_job has such a shell in the fence
def interactive(site):
    """The shell of condor_submit -i is in the job's fence, and knows its limits."""
    place = site.directory("alice")
    (place / "interactive").write_text("universe = vanilla\nrequest_cpus = 1\nrequest_memory = 100\nrequest_disk = 1\nlog = interactive.log\nqueue\n")
    script = "script -qec 'condor_submit -interactive interactive' /dev/null"
    shell = f"cat /proc/self/cgroup >{place}/where.new\nenv >{place}/env\nmv {place}/where.new {place}/where\nexit\n"
    done = site.as_user("alice", ["sh", "-c", f"cd {place} && {script}"], stdin=shell)
    until((place / "where").exists, 60, f"what the shell says ({done.stdout} {done.stderr})")
    where, environment = (place / "where").read_text(), (place / "env").read_text()
    expect_match(r"/job_[\d.]+/step_slot", where, "the shell's cgroup")
    expect_in(f"JOBFENCE_MEMORY_BYTES={100 * MIB}\n", environment, "its environment")
    return where.strip()


@case
def scheduler_universe(site):
    """A job of the scheduler universe has no fence, since the schedd itself is what runs it; 'jobfence check' says so."""
    jobid = site.submit("alice", f"cat /proc/self/cgroup; {WAIT}", universe="scheduler")
    until(lambda: site.output(jobid), 60, "its cgroup")
    expect("/job_" not in site.output(jobid), f"it is in a fence: {site.output(jobid)}")
    let_go(site, jobid)
    site.wait(jobid)
    said = check(site).stdout
    expect_match("START_SCHEDULER_UNIVERSE is .* NOT fenced", said, "what 'jobfence check' says")
    expect_in("USER_JOB_WRAPPER is not set: no job ends with a card", said, "what 'jobfence check' says")
    expect_match("STARTD_JOB_ATTRS has no JobfenceCpuLimit, .*: what a job of a slot asks for", said, "what 'jobfence check' says")
    refusal = {
        "SUBMIT_REQUIREMENT_NAMES": "$(SUBMIT_REQUIREMENT_NAMES) JOBFENCE",
        "SUBMIT_REQUIREMENT_JOBFENCE": 'JobUniverse =!= 7 || Cmd =?= "$(BIN)/condor_dagman"',
        "SUBMIT_REQUIREMENT_JOBFENCE_REASON": '"Here the scheduler universe is for DAGMan alone."',
    }
    (site.directory("alice") / "dag").write_text("JOB A submitted\n")
    (site.directory("alice") / "submitted").write_text("executable = /bin/true\nuniverse = local\nqueue\n")
    with site.changed(**refusal):
        try:
            site.submit("alice", "true", universe="scheduler")
        except AssertionError as error:
            expect_in("for DAGMan alone", str(error), "why it is refused")
        else:
            raise AssertionError("it is not refused")
        done = site.as_user("alice", ["condor_submit_dag", "dag"])
        expect_equal(done.returncode, 0, f"the status of condor_submit_dag, which says {done.stdout} {done.stderr}")
