# SPDX-License-Identifier: GPL-2.0-or-later
"""Sessions that no task of PBS has started: those of ssh."""

import contextlib
import os
import signal

from contract import kernel
from contract.harness import case, expect, expect_all_dead, expect_equal, expect_gone, expect_in, fenced, fenced_in_all
from contract.kernel import Group
from contract.logins import logged_in, login, service_says
from contract.sites import until

from ..harness import ask, frequent

# As sshd's, with the line that the page on the installation adds.
JOINING = """\
auth sufficient pam_rootok.so
account required pam_permit.so
session required pam_permit.so
session required {} config={}
"""


def refused(user):
    """That PAM lets the user not in; what it says."""
    process = login(user, "echo in")
    out, said = process.communicate(timeout=60)
    expect(process.returncode != 0 and "in" not in out.split(), f"{user} has no job, and could log in")
    return said


def end_of(session):
    """As a logout."""
    for pid in Group.of(session[0]).members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@case
def session_joins_its_users_job(site):
    """A session is in the extern step of its user's job, and dies with it. A user without a job is not let in."""
    with service_says(JOINING.format(site.so, site.config)):
        refused("alice")
        jobid = site.submit("alice", "sleep 1000", ask(1, 100))
        extern = fenced(site, jobid).parent.step("step_extern")
        with logged_in("alice", "sleep 1000") as session:
            expect(len(session) >= 1, "the session has no process")
            for pid in session:
                fenced_in_all(pid, extern)
            # Also what it starts meanwhile.
            members = extern.members()
            expect(len(members) > len(session), f"the step has {members}, and the session's shell is {session}")
            said = refused("bob")
            everyone = [who for who in map(kernel.identity, members) if who]
            site.end(jobid)
            expect_all_dead(everyone)
        expect_gone(extern.parent)
        refused("alice")
    return said.strip().splitlines()[0]


@case
def session_joins_the_last_job(site):
    """Of two jobs, a session is in the one that began last. When that ends, the next session is in the other."""
    with service_says(JOINING.format(site.so, site.config)):
        jobs = [site.submit("alice", "sleep 1000", ask(1, 64)) for _ in range(2)]
        groups = {}
        for jobid in jobs:
            site.wait_running(jobid)
            groups[jobid] = fenced(site, jobid).parent
        expect_equal(len(set(groups.values())), 2, "number of fences")
        with logged_in("alice", "sleep 1000") as session:
            last = Group.of(session[0]).parent
            expect_in(last, groups.values(), "the jobs")
            end_of(session)
        ended = next(jobid for jobid, group in groups.items() if group == last)
        site.end(ended)
        other = groups[next(jobid for jobid in jobs if jobid != ended)]
        with logged_in("alice", "sleep 1000") as session:
            expect_equal(Group.of(session[0]), other.step("step_extern"), "the step of the second session")
            end_of(session)


@case(layout=False)
def session_with_the_jobs_number(site):
    """Without PAM, a process with PBS_JOBID in its environment is put in by the periodic event, and no other user's is."""
    with frequent(site):
        jobid = site.submit("alice", "sleep 1000", ask(1, 100))
        extern = fenced(site, jobid).parent.step("step_extern")
        number = {"PBS_JOBID": jobid}
        own, bobs = (site.as_user(user, ["setsid", "sleep", "1000"], start=True, env=number) for user in ("alice", "bob"))
        try:
            before = kernel.cgroups_of(bobs.pid)
            until(lambda: own.pid in extern.members(), 30, "the process in the extern step")
            expect_equal(kernel.cgroups_of(bobs.pid), before, "the cgroups of another user's process")
            site.end(jobid)
            until(lambda: own.poll() is not None, 10, "the end of the process")
            expect_equal(bobs.poll(), None, "another user's process after the end of the job")
        finally:
            for process in own, bobs:
                process.kill()
                process.communicate()
