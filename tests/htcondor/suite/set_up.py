# SPDX-License-Identifier: GPL-2.0-or-later
"""'jobfence setup' on a host with startd and schedd."""

import re
from pathlib import Path

from contract.harness import case, expect, expect_equal, expect_in, expect_match, logged_in, running
from contract.sites import until

# What `start` has written, and what the command writes.
TESTS, OURS = Path("/etc/condor/config.d/50-jobfence-tests"), Path("/etc/condor/config.d/90-jobfence.conf")


def setup(site, *words):
    """The status, and all that it says to an administrator who has logged in as alice."""
    done = site.command(*logged_in("alice"), str(site.jobfence), "setup", "--any-program", "--scheduler", "htcondor", *words, timeout=300)
    return done.returncode, done.stdout + done.stderr


def of_startd(site):
    """What the startd that runs starts for a job."""
    return site.command("condor_config_val", "-startd", "STARTER", timeout=120).stdout.strip()


@case
def set_up(site):
    """It writes one file, which HTCondor reads without a restart, then does nothing, and takes the file back."""
    text = TESTS.read_text()
    TESTS.write_text(re.sub(r"(?m)^STARTER(_LOCAL)? =.*\n", "", text))
    try:
        site.reconfigure()
        stock = "/usr/sbin/condor_starter"
        expect_equal(of_startd(site), stock, "STARTER before")
        status, said = setup(site, "--dry-run")
        expect_equal(status, 2, f"the status of --dry-run: {said}")
        expect_in(f"+STARTER = {site.jobfence}", said, "what it shows")
        expect(not OURS.exists(), "--dry-run has written")
        daemons = site.daemons()
        status, said = setup(site)
        expect_equal(status, 2, f"the status: {said}")
        expect_match(r"(?m)^set up .*: job \d+\.0 (ran in .*/job_\d+|did not begin in time)", said, "its last line")
        until(lambda: of_startd(site) == str(site.jobfence), 60, "a startd that has read it")
        expect_equal(site.daemons(), daemons, "the daemons, of which none is started anew")
        jobid, group = running(site, "alice", "sleep 1000", cpus=1, mib=100)
        site.expect_limits(group, 1, 100)
        site.end(jobid)
        ours = OURS.read_text()
        OURS.write_text(f"{ours}USER_JOB_WRAPPER = /opt/site/wrapper\n")
        status, said = setup(site)
        expect_equal(status, 1, f"the status with a line of the site's: {said}")
        expect_in("has lines that are not of 'jobfence setup'", said, "what it says")
        expect_in("/opt/site/wrapper", OURS.read_text(), "the file then")
        OURS.write_text(ours)
        status, said = setup(site)
        expect_equal(status, 0, f"the status of the second time: {said}")
        until(lambda: "JobfenceMemory" in site.command("condor_status", "-l", timeout=120).stdout, 180, "what jobfence reports of the host")
        status, said = setup(site, "--undo")
        expect_equal(status, 2, f"the status of --undo: {said}")
        expect(not OURS.exists(), "the file is left")
        until(lambda: of_startd(site) == stock, 60, "a startd that has read it")
        expect_equal(setup(site, "--undo")[0], 0, "the status of the second --undo")
    finally:
        TESTS.write_text(text)
        OURS.unlink(missing_ok=True)
        site.reconfigure()
