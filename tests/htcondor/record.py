#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes down what real daemons of HTCondor say to a starter: `tests/vm/cell.py CELL --record`, in a virtual machine where `start` has run.

A job in a slot and one of the local universe run with recorder.py in the place of jobfence. The result is a directory for each kind of starter
below recorded/RELEASE. The words by which one host, user or run differs from another are always the same there. Of an attribute that jobfence
does not read, there is only what kind of value it has. tests/facts.rs compares what our tests take for HTCondor's with that."""

import re
import socket
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from contract import sites as shared  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402

from htcondor import sites  # noqa: E402
from htcondor.suite.gpus import DISCOVERY  # noqa: E402
from htcondor.suite.local import submit as submit_local  # noqa: E402
from htcondor.suite.requests_and_cards import ASKED  # noqa: E402

INTO = Path("/var/tmp/results/recorded")
# What the startd says of jobs if docs/install/htcondor.md is followed.
HEARD = f"AcctGroup OsUser RunAsOwner {ASKED}"
OF_JOBS = ",".join(["JobId", "RemoteUser", "AccountingGroup", "GlobalJobId", *HEARD.split()])
READ = {"Name", "Cpus", "Memory", "GPUs", "AssignedGPUs", "Start", "Owner", "User", *OF_JOBS.split(",")}
SETTINGS = (
    "UID_DOMAIN TRUST_UID_DOMAIN TRUST_LOCAL_UID_DOMAIN STARTER_ALLOW_RUNAS_OWNER NOBODY_SLOT_USER CGROUP_MEMORY_LIMIT_POLICY BASE_CGROUP"
    " STARTER_JOB_ENVIRONMENT LOCAL_CONFIG_DIR LOCAL_CONFIG_FILE ENABLE_PERSISTENT_CONFIG"
)
# A type, so that the starter has a name for its own lines of the configuration.
TYPE = {"NUM_SLOTS_TYPE_1": 1, "SLOT_TYPE_1": "100%", "SLOT_TYPE_1_PARTITIONABLE": True}
ASKS = {
    "+JobfenceCpuLimit": "0.5", "+JobfenceCpuBurst": "20", "+JobfenceMemHigh": '"80M"', "+JobfencePidsMax": "100",
    "+JobfenceIoMax": '"/ wbps=100M"', "+JobfenceUsageCard": '"always"', "+RunAsOwner": "True",
}


def attribute(line):
    """With the kind of its value, unless jobfence reads it."""
    name, is_one, value = line.partition(" = ")
    if not is_one or name in READ:
        return line
    kinds = {r"-?\d+": "1", r"-?[\d.]+(E[-+]?\d+)?": "1.0", r'"(\\.|[^"\\])*"': '"text"', r"(?i)true|false|undefined|error": value}
    return f"{name} = " + next((kind for pattern, kind in kinds.items() if re.fullmatch(pattern, value)), "expression")


def variable(line):
    """What names places and sockets, as it is; of the rest only the name."""
    name, is_one, value = line.partition("=")
    if not is_one:
        return None
    name = re.sub(r"\d{2,}", "1", name)
    if name == "CONDOR_INHERIT":
        # Of a socket only its number: the rest has its name, and can have its keys.
        value = re.sub(r"([*]|SharedPort:)\S*", r"\1more", value)
        return f"{name}={re.sub(r'^[0-9]+', '1', value)}"
    return line if name in ("CONDOR_CONFIG", "_CONDOR_EXECUTE", "PATH") else f"{name}=text"


def fixed(text, site):
    """With words that are the same on each host and in each run."""
    text = text.replace(str(site.directory("alice")), "/home/alice").replace(str(site.home), "/site")
    for name in socket.getfqdn(), socket.gethostname():
        text = re.sub(rf"(?i)(?<![\w/.]){re.escape(name)}(?![\w/])", "node1", text)
    text = re.sub(r"\b(\d+\.\d+\.\d+\.\d+)([:-])\d+", r"127.0.0.1\g<2>9618", text)
    text = re.sub(r"\b(sock=\w+?)_\d\w*", r"\1_1_1", text)
    return re.sub(r"\b\d{9,}\b", "1764327000", text)


def record(site, place):
    program = site.home / "recorder"
    text = (HERE / "recorder.py").read_text()
    for name, value in ("PLACE", place), ("JOBS", OF_JOBS), ("SETTINGS", SETTINGS):
        text = text.replace(f"@{name}@", str(value))
    program.write_text(text)
    program.chmod(0o755)
    with site.changed(restart=True, STARTER=program, STARTER_LOCAL=program, GPU_DISCOVERY_EXTRA=DISCOVERY,
                      STARTD_JOB_ATTRS=f"$(STARTD_JOB_ATTRS) {HEARD}", **TYPE):
        # A schedd of a later release says it itself, and lets no user do so.
        os_user = {"+OsUser": '"alice"'} if site.release() < (24, 7) else {}
        asks = {**ASKS, **os_user, "accounting_group": "group_a"}
        jobids = site.submit("alice", "env", request_gpus=1, **asks), submit_local(site, "sleep 1", **asks)
        try:
            for jobid in jobids:
                site.wait(jobid)
        finally:
            if (place / "error").exists():
                print((place / "error").read_text(), flush=True)
    (place / "slot/job").write_text(site.output(jobids[0]))
    release = site.command("condor_version").stdout.split()[1]
    for file in sorted(place.glob("*/*")):
        text = file.read_text()
        # Each attribute has a line of its own.
        edit = {"ad": attribute, "answer": attribute, "environment": variable, "job": variable}.get(file.name, lambda line: line)
        lines = [fixed(line, site) for line in map(edit, text.split("\n")) if line is not None]
        if file.name in ("environment", "job"):
            lines = [*sorted(set(lines)), ""]
        to = INTO / release / file.relative_to(place)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text("\n".join(lines))
        print(f"{to}: {len(lines)} lines", flush=True)
    return {str(file.relative_to(place)) for file in place.glob("*/*")}


def main():
    die_properly()
    shared.PATIENCE = 6
    with sites.InstalledHTCondor() as site:
        place = site.home / "recorded"
        place.mkdir()
        written = record(site, place)
        until(site.idle_again, 60, "the end of the jobs")
    wanted = {f"{kind}/{name}" for kind in ("slot", "local") for name in ("arguments", "environment", "ad", "settings")}
    missing = (wanted | {"slot/answer", "slot/status", "slot/job", "capabilities/arguments"}) - written
    if missing:
        print(f"not recorded: {', '.join(sorted(missing))}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
