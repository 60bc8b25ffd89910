# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes down what a real execd has written for its shepherds: `cases.py --site private … --record`.

Jobs of many kinds run with a shepherd that copies its spool, and without jobfence. The result is a directory for each kind of job below
recorded/RELEASE, as execd has written it; the users' homes have a name that is always the same. tests/facts.rs compares what our tests
take for execd's with that."""

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

from contract.sites import PATIENCE, until

SHEPHERD = """#!/bin/bash -p
# $0 is no name that execd gives.
kind=$(sed -n 's/^job_name=//p' config)
[ "$(basename "$PWD")" = "$(sed -n '0,/^pe_task_id=/s/^pe_task_id=//p' config)" ] && kind=slave
if mkdir {into}/$kind 2>/dev/null; then cp config environment pe_hostfile {into}/$kind/ 2>/dev/null; fi
exec -a "sge_shepherd-$(sed -n 's/^job_id=//p' config)" /usr/sbin/sge_shepherd -bg
"""
PROJECT = "name biology\noticket 0\nfshare 0\nacl NONE\nxacl NONE\n"
CHECKPOINT = """ckpt_name own
interface APPLICATION-LEVEL
ckpt_command none
migr_command none
restart_command none
clean_command none
ckpt_dir /tmp
signal none
when sx
"""


def at_a_terminal(site, *words):
    """A client that wants one; it is told to end."""
    ours, theirs = pty.openpty()
    process = site.as_user("alice", list(words), terminal=theirs, env={"TERM": "dumb"})
    os.close(theirs)
    deadline = time.monotonic() + 20 * PATIENCE
    is_asked, said = False, b""
    while process.poll() is None and time.monotonic() < deadline:
        if not is_asked and re.search(rb"\$ $", said):
            os.write(ours, b"exit\n")
            is_asked = True
        if select.select([ours], [], [], 0.5)[0]:
            with contextlib.suppress(OSError):
                said += os.read(ours, 4096)
    process.kill()
    process.wait()
    os.close(ours)


def jobs(site):
    """One of each kind, by its name."""
    def batch(name, *options, script="sleep 1"):
        site.wait(site.submit("alice", script, "-N", name, *options))
    batch("batch", "-l", "h_vmem=100M,h_rt=100,s_rt=90", "-A", "lab", "-P", "biology", "-m", "n")
    batch("array", "-t", "1-2", "-j", "y", "-notify")
    batch("bound", "-binding", "linear:1", "-r", "y")
    batch("checkpoint", "-ckpt", "own", "-S", "/bin/sh")
    batch("parallel", "-pe", "mpi", "2", "-v", "PATH", script="qrsh -inherit $(hostname) sleep 1")
    script = site.directory("alice") / "script"
    script.write_text("#!/bin/sh\nsleep 1\n")
    script.chmod(0o755)
    done = site.as_user("alice", ["qsub", "-terse", "-cwd", "-N", "binary", "-b", "y", str(script), "one", "two words", "-l"])
    site.wait(done.stdout.strip())
    site.as_user("alice", ["qrsh", "-now", "no", "-N", "command", "sleep", "1"])
    at_a_terminal(site, "qrsh", "-now", "no", "-N", "shell")
    at_a_terminal(site, "qlogin", "-now", "no", "-N", "login")
    site.as_user("alice", ["qsh", "-now", "yes", "-cwd", "-display", "display:7", "-N", "terminal"])
    until(site.idle_again, 60, "the end of all")


def record(site, into):
    """Writes it below `into`."""
    release = subprocess.run(["dpkg-query", "--show", "--showformat=${Version}", "gridengine-exec"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout.split("+")[0]
    place, program, terminal = site.home / "spools", site.home / "shepherd", site.home / "terminal"
    place.mkdir()
    place.chmod(0o777)
    for file, text in (program, SHEPHERD.format(into=place)), (terminal, "#!/bin/sh\nsleep 1\n"):
        file.write_text(text)
        file.chmod(0o755)
    for option, text in ("-Ackpt", CHECKPOINT), ("-Aprj", PROJECT):
        (site.home / "given").write_text(text)
        site.qconf(option, str(site.home / "given"))
    with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd=str(program), xterm=str(terminal)), site.queue(ckpt_list="own"):
        site.stop_execd(signal.SIGTERM)
        site.start_execd()
        jobs(site)
    top = into / release
    shutil.rmtree(top, ignore_errors=True)
    for kind in sorted(place.iterdir()):
        (top / kind.name).mkdir(parents=True)
        for file in kind.iterdir():
            text = file.read_bytes().replace(str(site.directory("alice")).encode(), b"/home/alice").replace(str(site.home).encode(), b"/site")
            (top / kind.name / file.name).write_bytes(text)
    print(f"{release}: {', '.join(sorted(kind.name for kind in top.iterdir()))}")
