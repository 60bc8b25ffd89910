#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes down what a real OpenPBS gives to hooks: OPENPBS=DIR record.py [--into FILE]

Two hosts run some jobs with the hook recorder.py, and with no other. The result is a line about the release, and one for each kind of
event in the order of the events, as recorded/ has it for each release that was there to be asked."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from contract.sites import die_properly, until  # noqa: E402
from pbs import sites  # noqa: E402

DSH = f"{sites.EXEC}/bin/pbsdsh"
BOTH = "-lselect=2:ncpus=1:mem=64mb", "-lplace=scatter"


# What is the same in every event.
OF_ALL = "module", "attributes_of_jobs", "pbs_conf"


def without(value):
    """The same without dictionaries that are empty, what this event has not, and what is secret."""
    if not isinstance(value, dict):
        return value
    nothing = {"raises": "EventIncompatibleError"}, {"dict": []}, None
    return {name: without(one) for name, one in value.items() if one not in nothing and name != "cookie"}


def kind_of(value):
    """Names without values."""
    return {name: kind_of(one) for name, one in value.items()} if isinstance(value, dict) else None


def started(site, jobid):
    site.wait_running(jobid)
    until(lambda: site.job_pids(jobid), 30, "the job's processes")


def jobs(site):
    """Each in its turn: what hooks are told differs."""
    ask = "-lselect=1:ncpus=1:mem=64mb"
    plain = site.submit("alice", "sleep 1; exit 3", ask, "-A", "lab", "-P", "p", "-j", "oe", "-lwalltime=100")
    yield plain, "with an account"
    # On the server's command line, a byte that is no UTF-8.
    done = site.as_user("alice", ["sh", "-c", f"printf 'cd $PBS_O_WORKDIR\\n{DSH} -n 0 sleep 25' | qsub {ask} -v X=$(printf '\\377')"])
    odd = done.stdout.strip()
    site.submitted.append(("alice", odd))
    yield odd, "with a byte that is no UTF-8 in its environment"
    yield site.submit("alice", f"{DSH} sleep 2", *BOTH), "on two hosts"
    stopped = site.submit("alice", "sleep 1000", ask)
    started(site, stopped)
    site.qsig(stopped, "suspend")
    site.wait_state(stopped, "S")
    site.qsig(stopped, "resume")
    site.wait_running(stopped)
    attached = subprocess.Popen(["sleep", "1000"])
    site.as_user("alice", ["pbs_attach", "-j", stopped, "sleep", "1"])
    attached.kill()
    attached.wait()
    site.qdel(stopped)
    yield stopped, "suspended, resumed, deleted"
    array = site.submit("alice", "sleep 1", ask, "-J", "0-1")
    until(lambda: site.idle_again(), 90, "the end of the array")
    yield array, "an array"
    given_back = site.submit("alice", "sleep 1; pbs_release_nodes -a; sleep 2", *BOTH)
    yield given_back, "which gives a host back"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    die_properly()
    with sites.HostsPbs() as site:
        release = site.command("qstat", "--version").stdout.split("=")[-1].strip()
        place = site.top / "recorded"
        place.mkdir()
        directory = site.home / "recorder"
        directory.mkdir()
        events = sites.sites.settings_in(sites.PbsSite.shipped / "jobfence.HK")["event"]
        (directory / "recorder.HK").write_text(f"event={events}\nfreq=20\nalarm=60\n")
        (directory / "recorder.py").write_text((HERE / "recorder.py").read_text().replace("@PLACE@", str(place)))
        site.install_hook("recorder", directory)
        lines, seen, kinds = [], set(), set()

        def take(what):
            for path in sorted(place.glob("*.json")):
                if path not in seen:
                    seen.add(path)
                    found = json.loads(path.read_text().replace(str(site.top), "/TOP"))
                    if not lines and not all(name in found for name in OF_ALL):
                        continue
                    if not lines:
                        lines.append({"release": release, **{name: found[name] for name in OF_ALL}})
                    line = without({"when": what, **{name: value for name, value in found.items() if name not in OF_ALL}})
                    # Of those that tell the same with other values, one is enough.
                    kind = line["event"] + json.dumps(kind_of(line), sort_keys=True)
                    if kind not in kinds:
                        kinds.add(kind)
                        lines.append(line)
        for jobid, what in jobs(site):
            until(site.idle_again, 120, f"the end of job {jobid}")
            take(what)
        with site.two_vnodes("node2"):
            jobid = site.submit("alice", "sleep 1", "-lselect=3:ncpus=1:mem=64mb", "-lplace=vscatter")
            until(site.idle_again, 60, f"the end of job {jobid}")
        take("of vnodes and at MoM's start")
        site.remove_hook("recorder")
    into = options.into or HERE / f"recorded/openpbs-{release}.jsonl"
    into.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    print(f"{len(lines)} events of OpenPBS {release} in {into}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except sites.Lacks as reason:
        print(f"record: {reason}", file=sys.stderr)
        sys.exit(77)
