# SPDX-License-Identifier: GPL-2.0-or-later
"""'jobfence setup' on an execution host."""

import re
import signal

from contract.harness import case, expect, expect_equal, expect_in, expect_match, logged_in, running
from contract.sites import until

from .capacity import reported


def all_of(site):
    """What qmaster says of the cluster, of this host and of the complexes."""
    shown = ["-sconf", "global"], ["-sconfl"], ["-sconf", site.node], ["-sc"]
    return [site.command("qconf", *words).stdout for words in shown]


def setup(site, *words):
    """The status, and all that it says to an administrator who has logged in as alice."""
    done = site.command(*logged_in("alice"), str(site.jobfence), "setup", "--any-program", "--scheduler", "gridengine", *words, timeout=120)
    return done.returncode, done.stdout + done.stderr


def runs_fenced(site):
    """Whether a job that is submitted now has a fence. execd hears of a change with its next load report."""
    jobid = site.submit("alice", "cat /proc/self/cgroup", cpus=1, mib=100)
    site.wait(jobid)
    return f"/job_{jobid}/" in site.output(jobid)


def read_again(site):
    """execd reads its configuration when it starts."""
    site.stop_execd(signal.SIGTERM)
    site.start_execd()


@case
def set_up(site):
    """It shows what is qmaster's, has it done with --central, then does nothing, and takes all of it back."""
    with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd="none"):
        before = all_of(site)
        status, said = setup(site)
        expect_equal(status, 1, f"the status of what is qmaster's: {said}")
        for line in "-Aconf", f"shepherd_cmd {site.jobfence}", "load_sensor /":
            expect_in(line, said, "what it shows")
        expect_equal(all_of(site), before, "what qmaster has then")
        status, said = setup(site, "--central")
        expect_equal(status, 2, f"the status of --central: {said}")
        expect_match(r"(?m)^set up .*: job \d+ ran in .*/job_\d+", said, "its last line")
        after = all_of(site)
        expect_equal((after[0], after[3]), (before[0], before[3]), "the configuration of the cluster, and its complexes")
        jobid, group = running(site, "alice", "sleep 1000", cpus=1, mib=100)
        site.expect_limits(group, 1, 100)
        site.end(jobid)
        until(lambda: reported(site), 60, "a report of the load sensor")
        for words in [], ["--central"], ["--dry-run"]:
            status, said = setup(site, *words)
            expect_equal(status, 0, f"the status of the second time, {words}: {said}")
        expect_equal(all_of(site), after, "what qmaster has then")
        status, said = setup(site, "--undo", "--central")
        expect_equal(status, 2, f"the status of --undo: {said}")
        expect_equal(all_of(site), before, "what qmaster has then")
        expect_equal(setup(site, "--undo", "--central")[0], 0, "the status of the second --undo")
        until(lambda: not runs_fenced(site), 60, "a job without a fence")
    read_again(site)


@case
def set_up_beside_others(site):
    """A host's own configuration stays, and so does what somebody changes in it meanwhile. A shepherd of the site's own is not replaced."""
    def host(**keys):
        file = site.home / site.node
        file.write_text("".join(f"{key} {value}\n" for key, value in keys.items()))
        option = "-Aconf" if site.command("qconf", "-sconf", site.node).returncode else "-Mconf"
        site.qconf(option, str(file))

    def values():
        text = re.sub(r" *\\\n *", "", site.command("qconf", "-sconf", site.node).stdout)
        return dict(line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#"))
    with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd="none", load_sensor="/opt/site/global"):
        try:
            host(shepherd_cmd="/opt/site/shepherd")
            status, said = setup(site, "--central")
            expect_equal(status, 1, f"the status beside another shepherd: {said}")
            expect_in("shepherd_cmd is /opt/site/shepherd", said, "what it says")
            host(mailer="/opt/site/mail", load_sensor="/opt/site/one")
            status, said = setup(site, "--central")
            expect_equal(status, 2, f"the status: {said}")
            found = values()
            sensor = found["load_sensor"]
            expect(sensor.startswith("/opt/site/one,") and sensor.endswith("/gridengine/load-sensor"), f"load_sensor is {sensor}")
            expect_equal((found["mailer"], found["shepherd_cmd"]), ("/opt/site/mail", str(site.jobfence)), "the others")
            host(**{**found, "mailer": "/opt/site/other"})
            status, said = setup(site, "--undo", "--central")
            expect_equal(status, 2, f"the status of --undo: {said}")
            expect_equal(values(), {"mailer": "/opt/site/other", "load_sensor": "/opt/site/one"}, "what the host has then")
        finally:
            site.command("qconf", "-dconf", site.node)
            read_again(site)
