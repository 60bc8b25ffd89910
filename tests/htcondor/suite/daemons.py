# SPDX-License-Identifier: GPL-2.0-or-later
"""Daemons that are started otherwise: by an ordinary user, or each in a cgroup of its own."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

from contract import kernel
from contract.harness import (
    WAIT, Skip, case, end_of, escaping, expect, expect_dead, expect_ended, expect_equal, expect_gone, expect_in, expect_match, fenced,
)
from contract.sites import until

from ..harness import check, expect_limits, restarts
from ..sites import HELD, is_whole

PORT = 9700
PERSONAL = f"""
LOCAL_DIR = %(top)s
LOG = %(top)s/log
SPOOL = %(top)s/spool
EXECUTE = %(top)s/execute
LOCK = %(top)s/log
RUN = %(top)s/log
RELEASE_DIR = /usr
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{PORT}
SHARED_PORT_PORT = {PORT}
use ROLE: Personal
use SECURITY: HOST_BASED
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
START = True
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
STARTER = %(jobfence)s
STARTER_LOCAL = %(jobfence)s
"""
JOB = """
universe = %(universe)s
arguments = %(top)s/ran.%(universe)s
executable = /bin/touch
log = %(top)s/log/of.%(universe)s
transfer_executable = False
should_transfer_files = NO
request_cpus = 1
request_memory = 1
request_disk = 1
queue
"""


@contextlib.contextmanager
def personal_condor(site, user):
    """A pool that this user has started; what runs HTCondor's commands in it."""
    top = Path(site.directory(user)) / "condor"
    words = {"top": top, "jobfence": site.jobfence}

    def run(*argv, **others):
        return site.as_user(user, ["env", f"CONDOR_CONFIG={top}/config", *map(str, argv)], **others)
    expect_equal(site.as_user(user, ["mkdir", "-p", *(str(top / name) for name in ("log", "spool", "execute"))]).returncode, 0, "mkdir")
    (top / "config").write_text(PERSONAL % words)
    run("sh", "-c", "setsid condor_master -f </dev/null >/dev/null 2>&1 &")
    try:
        until(lambda: is_whole(kernel.read(top / "log/CollectorLog")), 120, "the user's own pool")
        yield top, run, words
    finally:
        run("condor_off", "-master")
        until(lambda: site.command("pgrep", "-u", user, "condor_").returncode == 1, 120, "the end of the user's own pool")


@case
def started_by_a_user(site):
    """Where root has not started HTCondor, nothing can be fenced: each job is held with that reason, and none runs."""
    with personal_condor(site, "alice") as (top, run, words):
        for universe in "vanilla", "local":
            done = run("condor_submit", "-", stdin=JOB % {**words, "universe": universe})
            expect_equal(done.returncode, 0, f"condor_submit ({done.stderr})")

        def held():
            reasons = [found["reason"] for log in top.glob("log/of.*") for found in HELD.finditer(kernel.read(log))]
            return reasons if len(reasons) == 2 or list(top.glob("ran.*")) else None
        reasons = until(held, 120, "two jobs on hold")
        expect_equal(list(top.glob("ran.*")), [], "what has run")
        for reason in reasons:
            expect_match("cannot be fenced: root has not started this HTCondor", reason, "the reason")
    return reasons[0]


@case(release=True)  # a later release alone can do so
@restarts
def daemons_in_cgroups(site):
    """With CGROUP_ALL_DAEMONS the startd makes a cgroup for the starter, ends what is left there, and nothing of that is the fence's."""
    if site.release() < (24, 8):
        raise Skip("HTCondor before 24.8 has no CGROUP_ALL_DAEMONS")
    log = site.home / "usage.jsonl"
    site.configure(f"UsageLog={log}\n")
    with site.changed(restart=True, CGROUP_ALL_DAEMONS="True", KILLING_TIMEOUT="5"):
        jobid, group, who = escaping(site, "alice", f"{WAIT}; exit 4")
        expect_limits(site, group, site.slot(jobid))
        expect_match("STARTD", str(kernel.cgroups_of(site.startd_pid())), "the startd's cgroup")
        end_of(site, jobid)
        expect_ended([who], group)
        expect_match('"end":"closed"', until(lambda: log.exists() and log.read_text(), 20, "the usage log"), "how the fence ended")
        # The startd looks for the load of its jobs in that cgroup, and the load is in the fence.
        jobid = site.submit("alice", "while :; do :; done")
        fenced(site, jobid)
        until(lambda: (site.ads("condor_status", "-constraint", f'JobId == "{jobid}.0"', "-attributes", "LoadAvg") or [{}])[0].get("LoadAvg", 0) > 0.3,
              120, "the load of the host")
        ad = site.ads("condor_status", "-constraint", f'JobId == "{jobid}.0"', "-attributes", "CondorLoadAvg,CpusUsage,LoadAvg")[0]
        expect(ad["CondorLoadAvg"] < 0.1, f"HTCondor counts the job's load: {ad}, and what check and the page say of it is not so")
        expect_in("CGROUP_ALL_DAEMONS is on: CpusUsage and CondorLoadAvg", check(site).stdout, "the check")
        site.remove(jobid)
        # A starter that hangs is killed, as without CGROUP_ALL_DAEMONS.
        jobid, group, who = escaping(site, "alice", "sleep 1000")
        os.kill(site.starter(group), signal.SIGSTOP)
        site.command("condor_vacate_job", "-fast", str(jobid))
        site.remove(jobid)
        expect_gone(group, 60)
        expect_dead(who, 20)
    expect(not site.watcher(jobid), "the watcher lives")


@case(release=True)  # two restarts of HTCondor
@restarts
def daemons_without_a_subgroup(site):
    """Where systemd knows no DelegateSubgroup=, as that of EL 9 does not, HTCondor makes its directories beside its unit. The fence holds."""
    with site.unit_changed("DelegateSubgroup="):
        expect_equal(kernel.cgroups_of(site.startd_pid())[""], "/system.slice/condor.service", "the startd's cgroup")
        expect_equal(check(site).returncode, 0, "the status of the check")
        jobid, group, who = escaping(site, "alice", f"{WAIT}; exit 4")
        expect_limits(site, group, site.slot(jobid))
        expect_in(f"{group.path}/htcondor/", kernel.cgroups_of(who[0])[""], "the job's cgroup")
        expect(not Path("/sys/fs/cgroup/system.slice/htcondor").exists(), "HTCondor has made directories beside its unit")
        end_of(site, jobid)
        expect_ended([who], group)


@case(release=True)  # two restarts of HTCondor; checked shows the sentences
@restarts
def checked_elsewhere(site):
    """'jobfence check' asks the configuration of the daemons that run, also where that is not the usual one."""
    place = site.home / "condor"
    shutil.copytree("/etc/condor/config.d", place / "config.d")
    (place / "config.d/99-other").write_text("STARTER = /usr/sbin/condor_starter\nSTARTER_LOCAL = /usr/sbin/condor_starter\n")
    (place / "condor_config").write_text(Path("/etc/condor/condor_config").read_text() + f"\nLOCAL_CONFIG_DIR = {place}/config.d\n")
    with site.unit_changed(f"Environment=CONDOR_CONFIG={place}/condor_config"):
        done = check(site)
    expect_in("NO job would be fenced here: STARTER of HTCondor is /usr/sbin/condor_starter", done.stdout, "the check")
    expect_in("STARTER_LOCAL is /usr/sbin/condor_starter, and not jobfence: jobs of the local universe are not fenced", done.stdout, "the check")
    expect_equal(done.returncode, 1, "the status of the check")


@case
def asked_what_it_can(site):
    """What the startd asks a starter, jobfence answers as the starter itself, also where STARTER names a link to it."""
    link = site.home / "condor_starter"
    link.symlink_to(site.jobfence)
    said = {program: site.command(str(program), "-classad") for program in ("/usr/sbin/condor_starter", site.jobfence, link)}
    real, *ours = said.values()
    expect_in("HasFileTransfer = True", real.stdout, "what the real starter can")
    for done in ours:
        expect_equal((done.returncode, done.stdout), (real.returncode, real.stdout), f"what {done.args} says")
