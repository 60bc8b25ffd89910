# SPDX-License-Identifier: GPL-2.0-or-later
"""What docs/pictures shows, from a real run. tests/pictures.py makes the pictures of it, and compares them with it."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

from contract.harness import MIB, case, expect_equal, fenced
from contract.sites import until
from .usage import line_of, with_log

TAKEN = Path("/var/tmp/results/pictures")
COLUMNS, LINES = 96, 7  # of the terminal of 'jobfence top'
SPINNERS = "for i in 1 2 3 4; do timeout 5 sh -c 'while :; do :; done' & done; wait"
JOB = f"""#!/bin/sh
{SPINNERS}
python3 -c 'bytearray(300 << 20)'
"""
SPINS = "srun --overlap sh -c 'while :; do :; done'"
FILLS = "exec python3 -c 'import time; kept = bytearray(1) * (180 << 20); time.sleep(300)'"


def on_terminal(command, seconds=None):
    """What a terminal gets of a command, which is ended by 'q' after so many seconds."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                             env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
    os.close(theirs)
    said, deadline = b"", time.monotonic() + (seconds or 120)
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                said += os.read(ours, 1 << 16)
            except OSError:
                break  # nobody has the other end
    if seconds:
        os.write(ours, b"q")
    child.wait(timeout=60)
    os.close(ours)
    return said.decode()


def keep(name, *typed):
    """Pairs of a command, as it is typed, and what the terminal gets of it."""
    TAKEN.mkdir(parents=True, exist_ok=True)
    (TAKEN / f"{name}.json").write_text(json.dumps({"columns": COLUMNS, "lines": LINES, "typed": typed}))


def typed(command):
    return f"# {command}", on_terminal(["sh", "-c", command])


@case(on=("installed",), layout=False)
def pictures(site):
    """A first look, a card, top, check and a report, for the pictures of the pages."""
    alice, bob = site.users[:2]
    home = site.directory(alice)
    with with_log(site) as logged:
        keep("check", typed("jobfence check"))
        keep("run", typed("jobfence run --cpus 0.5 --mem 200M -- sh -c 'timeout 5 yes | cat >/dev/null'"),
             typed("jobfence run --cpus 0.5 --mem 200M -- tail /dev/zero"))

        (home / "job.sh").write_text(JOB)
        words = ["sbatch", "--mem=200M", "--usage-card=always", "job.sh"]
        done = site.as_user(alice, words, env={"LC_ALL": "C.UTF-8"})
        jobid = int(re.search(r"(\d+)$", done.stdout.strip())[1])
        site.submitted.append((alice, jobid))
        site.wait(jobid)
        output = home / f"slurm-{jobid}.out"
        until(lambda: "Next time" in output.read_text(), 30, "the card")
        keep("card", ("$ " + " ".join(words), done.stdout), (f"$ cat {output.name}", output.read_text()))
        line_of(logged, jobid)
        report = site.command(str(site.jobfence), "report", str(jobid), "--html=-", "--config", str(site.config))
        expect_equal((report.returncode, report.stderr), (0, ""), "the report")
        (TAKEN / "report.html").write_text(report.stdout)

        spins, fills = site.submit(alice, SPINS, cpus=1, mib=300), site.submit(bob, FILLS, cpus=1, mib=200)
        fenced(site, spins, "step_0")
        until(lambda: int(fenced(site, fills).file("memory", "memory.current", "memory.usage_in_bytes")) > 180 * MIB, 60, "a job that has filled its memory")
        keep("top", ("# jobfence top", on_terminal(["jobfence", "top"], seconds=8)))
        for each in spins, fills:
            site.end(each)
