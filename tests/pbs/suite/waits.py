# SPDX-License-Identifier: GPL-2.0-or-later
"""How long MoM stands still for an event, by her own log: with this hook, and with one that does nothing."""

import re
import statistics

from contract.harness import case, expect, fenced
from contract.sites import until

from ..harness import ask
from ..sites import EXEC
from .hosts import BOTH, FIRST_THERE, groups_of

ROUNDS = 9
ALL = "$logevent 0xffffffff"
TOOK = re.compile(r"label=hook_(\w+?)_(nothing|jobfence)_\S+ action=mom_process_hooks walltime=([\d.]+)")


def times(site, mark, node, events):
    """By event and hook the seconds that MoM has waited for each."""
    found = {}
    for event, hook, seconds in TOOK.findall(site.log_since(mark, node)):
        if event in events:
            found.setdefault(event, {}).setdefault(hook, []).append(float(seconds))
    return found


def told(found, events):
    """The medians in words. Each event was there; what this hook adds to an empty one is little."""
    said = []
    for event in events:
        expect(len(found.get(event, {}).get("jobfence", [])) >= ROUNDS, f"{event} was there {found.get(event)}")
        ours, nothing = (statistics.median(found[event][hook]) * 1000 for hook in ("jobfence", "nothing"))
        said.append(f"{event} {ours:.1f} ms, empty {nothing:.1f} ms")
        expect(ours <= 3 * nothing, f"MoM waits {ours:.1f} ms at {event}, and {nothing:.1f} ms for an empty hook")
    return "; ".join(said)


@case(on=("private",), layout=False)
def mom_waits(site):
    """On the first host, for those events that stop her."""
    events = "execjob_begin", "execjob_attach", "execjob_postsuspend", "execjob_preresume", "execjob_preterm"
    with site.empty_hook("nothing"), site.mom_says(ALL):
        mark = site.log_mark()
        for _ in range(ROUNDS):
            jobid = site.submit("alice", "sleep 1000", ask(1, 64))
            fenced(site, jobid)
            until(lambda: site.job(jobid).get("substate") == "42", 20, "a job that has begun")
            own = site.as_user("alice", ["setsid", "sleep", "1000"], start=True)
            try:
                until(lambda: "sleep" in site.command("ps", "-o", "args=", "-p", str(own.pid)).stdout, 10, "a process")
                done = site.as_user("alice", [f"{EXEC}/bin/pbs_attach", "-j", jobid, "-p", str(own.pid)])
                expect(done.returncode == 0, f"pbs_attach: {done.stderr}")
                site.qsig(jobid, "suspend")
                site.wait_state(jobid, "S")
                site.qsig(jobid, "resume")
                site.wait_running(jobid)
                site.end(jobid)
            finally:
                own.kill()
                own.communicate()
        return told(times(site, mark, site.node, events), events)


@case(on=("hosts",))
def sister_waits(site):
    """On another host, for those events that stop her only there."""
    events = "execjob_begin", "execjob_prologue", "execjob_epilogue"
    with site.empty_hook("nothing"), site.mom_says(ALL):
        mark = site.log_mark()
        for _ in range(ROUNDS):
            jobid = site.submit("alice", f"{EXEC}/bin/pbsdsh -- sleep 1000", *BOTH)
            groups_of(site, jobid, {"node2": FIRST_THERE})
            site.end(jobid)
        return told(times(site, mark, "node2", events), events)
