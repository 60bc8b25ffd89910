# SPDX-License-Identifier: GPL-2.0-or-later
"""Two schedds of one host, whose jobs have the same number at the same time."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

from contract import kernel
from contract.harness import MIB, TAKE, case, expect, expect_equal, expect_gone, expect_match, pid_from
from contract.sites import until

from ..sites import STARTERS_MIB

OTHER = "other@"


@contextlib.contextmanager
def another_schedd(site, first):
    """A second schedd of this pool, whose first job has this number."""
    spool = Path(tempfile.mkdtemp(prefix="schedd-", dir="/var/spool/condor"))
    execute = spool / "local_univ_execute"
    execute.mkdir()
    for place in spool, execute:
        place.chmod(0o755)
        shutil.chown(place, "condor", "condor")
    own = {
        "SCHEDD_NAME": OTHER, "SPOOL": spool, "SCHEDD_LOG": "$(LOG)/OtherSchedLog", "SCHEDD_ADDRESS_FILE": spool / "address",
        "SCHEDD_DAEMON_AD_FILE": spool / "ad", "HISTORY": spool / "history", "SCHEDD_CLUSTER_INITIAL_VALUE": first,
        "LOCAL_UNIV_EXECUTE": execute, "PER_JOB_HISTORY_DIR": spool,
    }
    keys = {"DAEMON_LIST": "$(DAEMON_LIST) OTHER", "OTHER": "$(SCHEDD)", "OTHER_ARGS": "-local-name OTHER"}
    try:
        with site.changed(**keys, **{f"OTHER.{name}": value for name, value in own.items()}):
            until(lambda: OTHER in site.command("condor_status", "-schedd", "-af", "Name").stdout.split(), 60, "the other schedd")
            try:
                yield
            finally:
                site.command("condor_rm", "-name", OTHER, "-all")
                until(lambda: not site.ads("condor_q", "-name", OTHER, "-allusers"), 60, "the end of its jobs")
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def pid_of(site, name):
    return pid_from(site.directory("alice") / f"{name}.pid")


def twin(site, schedd, **lines):
    """A job of alice's, and the fence in which it is. Its number does not tell it from the other schedd's."""
    name = schedd.strip("@") if schedd else "usual"
    files = {key: f"{name}.{key}" for key in ("output", "error", "log")}
    script = f"echo $$ >{name}.new; mv {name}.new {name}.pid; exec sleep 1000"
    jobid = site.submit("alice", script, schedd=schedd, **files, **lines)
    return jobid, until(lambda: (pid := pid_of(site, name)) and kernel.Group.of(pid), 60, f"the fence of the {name} schedd's job")


@case(release=True)  # another schedd
def two_schedds(site):
    """Jobs of two schedds with one number have fences and limits of their own; the end of one leaves the other alone."""
    log = site.home / "usage.jsonl"
    site.configure(f"UsageLog={log}\n")
    jobid, usual = twin(site, None, cpus=1, mib=100)
    with another_schedd(site, jobid):
        same, other = twin(site, OTHER, cpus=2, mib=200)
        expect_equal((same, other.parent), (jobid, usual.parent), "number and directory of the other schedd's job")
        expect_equal([usual.cpu_limit(), other.cpu_limit()], [1.0, 2.0], "CPU limits")
        expect_equal([group.memory_limit() for group in (usual, other)], [(mib + STARTERS_MIB) * MIB for mib in (100, 200)], "memory limits")
        shown = site.command(str(site.jobfence), "ls").stdout
        for step in "slot1_1", "slot1_2":
            expect_match(rf"(?m)^{jobid}\.0 +{step}[. ].*alice", shown, "jobfence ls")
        site.command("condor_rm", "-name", OTHER, jobid)
        expect_gone(other, 60)
        expect(kernel.is_alive(pid_of(site, "usual")), "the job of the usual schedd has ended, too")
        expect_equal(usual.cpu_limit(), 1.0, "its CPU limit")
    site.remove(jobid)
    expect_gone(usual.parent, 60)

    def runs():
        done = site.command(str(site.jobfence), "report", f"{jobid}.0", "--all", "--json")
        found = json.loads(done.stdout)["runs"] if done.returncode == 0 else []
        return found if len(found) == 2 else None
    for run in until(runs, 30, "two runs in the usage log"):
        expect_equal(len(run["steps"]), 1, "the steps of each")
        expect_equal(run["memory_peak_bytes"], run["steps"][0]["memory_peak_bytes"], "its peak, without the other one's memory")
    names = sorted(json.loads(line)["global_job"] for line in log.read_text().splitlines())
    expect(len(set(names)) == 2 and all(f"#{jobid}.0#" in name for name in names) and names[1].startswith(OTHER), f"the jobs' names: {names}")


@case(release=True)  # as two_schedds
def two_schedds_local(site):
    """So have local jobs of two schedds, and the schedd whose job was killed for want of memory says our sentence."""
    site.configure("[VnodeType=local]\nDefaultRAMSpace=100\n")
    local = {"universe": "local", "cpus": 1, "mib": 1}
    jobid, usual = twin(site, None, **local)
    with another_schedd(site, jobid):
        same, other = twin(site, OTHER, **local)
        expect_equal((same, other.parent), (jobid, usual.parent), "number and directory of the other schedd's job")
        expect(other != usual, "both are in one fence")
        site.command("condor_rm", "-name", OTHER, jobid)
        expect_gone(other, 60)
        expect(kernel.is_alive(pid_of(site, "usual")), "the job of the usual schedd has ended, too")
        greedy = site.submit("alice", TAKE % (300, 1), schedd=OTHER, output="greedy.out", error="greedy.err", log="greedy.log", **local)

        def reason():
            ads = site.ads("condor_q", "-name", OTHER, greedy)
            return ads and "reached its memory limit of 100.0 MiB" in ads[0].get("HoldReason", "") and ads[0]["HoldReason"]
        return until(reason, 90, "our sentence")
