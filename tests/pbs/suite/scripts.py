# SPDX-License-Identifier: GPL-2.0-or-later
"""The site's own prologue and epilogue, which MoM runs only where no hook has taken the event."""

import contextlib
import re

from contract.harness import case, expect, expect_equal, expect_in, logged

from ..harness import ask, unfenced
from ..sites import EXEC, FINISHED, SPOOL

SCRIPT = """#!/bin/sh
{{ echo "$0"; for word; do echo "word $word"; done; id; umask; pwd; env | sort; cat; grep -c job_ /proc/self/cgroup
ps -o sid=,pid= -p $$ | sed 's/^ *\\([0-9]*\\) *\\1$/leads its session/'; }} >{place}/{name}.said
echo {name} says out; echo {name} says error >&2
sleep 300 &
exit {status}
"""


@contextlib.contextmanager
def scripts(site, prologue=0, epilogue=0):
    """For the time being, the site has both, which end so."""
    place = site.top / "scripts"
    place.mkdir(exist_ok=True)
    files = []
    for name, status in (("prologue", prologue), ("epilogue", epilogue)):
        (place / f"{name}.said").unlink(missing_ok=True)
        files.append(SPOOL / "mom_priv" / name)
        files[-1].write_text(SCRIPT.format(name=name, status=status, place=place))
        files[-1].chmod(0o755)
    try:
        yield place
    finally:
        for file in files:
            file.unlink()


def run(site):
    """What both have seen of a job, and its output; without what differs from job to job."""
    with scripts(site) as place:
        jobid = site.submit("alice", "echo of the job", ask(1, 100), "-lwalltime=50", "-A", "lab", "-N", "STDIN")
        job = site.wait(jobid)
        expect_equal(job["Exit_status"], "0", "Exit_status")
        said = {name: (place / f"{name}.said").read_text() for name in ("prologue", "epilogue")}
        said["output"] = site.output(jobid)
        said["error"] = site.told(jobid)
    number = jobid.split(".")[0]
    for name, text in said.items():
        text = text.replace(f"word {number}.", "word NUMBER.")
        text = re.sub(r"(?m)^word \d+$", "word SESSION", text)
        # What was used, which nobody can say before.
        text = re.sub(r"(?m)^word cpupercent=.*$", lambda found: re.sub(r"=[^,]*", "=USED", found[0]), text)
        said[name] = text
    return said


@case(on=("private",), layout=False)
@unfenced
def the_sites_scripts(site):
    """The scripts run with jobfence as they do without: their words, their environment, their output, their place."""
    without = run(site)
    site.fence()
    with_it = run(site)
    with scripts(site):
        said = site.command(str(site.jobfence), "check", "--config", str(site.config)).stdout
        expect("mom_priv/prologue and epilogue: MoM does not run this" in said, f"check says:\n{said}")
        (site.home / "stock.json").write_text('{"cgroup": {"memory": {"enabled": true, "default": "256MB"}}}')
        said = site.command(str(site.jobfence), "pbs-config", str(site.home / "stock.json")).stderr
        expect("on this host: " in said and "prologue and epilogue: MoM does not run this" in said, f"pbs-config says:\n{said}")
    said = site.command(str(site.jobfence), "check", "--config", str(site.config))
    lines = [line for line in said.stdout.splitlines() if line.startswith("openpbs ")]
    expect_equal(len(lines), 1, f"lines on OpenPBS in {lines}")
    expect_in(f"the hook jobfence puts each job into a fence, by {site.so} and {site.config}", lines[0], "what check says")
    site.remove_hook()
    said = site.command(str(site.jobfence), "check", "--config", str(site.config))
    expect("MoM has no hook of jobfence's" in said.stdout and said.returncode == 0, f"check says {said.returncode}:\n{said.stdout}")
    for name in without:
        expect_equal(with_it[name], without[name], f"what is said of {name}")
    expect("says out" in with_it["output"] and "of the job" in with_it["output"], f"output: {with_it['output']!r}")


@case(on=("private",), layout=False)
def a_prologue_that_refuses(site):
    """A prologue that ends with 1 ends its job; any other failure of it puts the job back."""
    with scripts(site, prologue=1):
        jobid = site.submit("alice", f"touch ran.$PBS_JOBID; {EXEC}/bin/pbsdsh true", ask(1, 100))
        site.wait(jobid)
        expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "the job has run")
    with scripts(site, prologue=3):
        mark = site.log_mark()
        jobid = site.submit("alice", "touch ran.$PBS_JOBID", ask(1, 100))
        logged(site, mark, r"jobfence: the prologue of the site has ended with 3", 30)
        expect(site.state(jobid) not in FINISHED, "the job has ended")
    expect(not (site.directory("alice") / f"ran.{jobid}").exists(), "the job has run")
    site.qdel(jobid)
