# SPDX-License-Identifier: GPL-2.0-or-later
"""Which files the removal of a package looks at, for packages of either kind: packages.py and rpm.py."""

import contextlib
import os
import threading

COMMAND = "/usr/sbin/jobfence"
# docs/install/cluster.md has this line.
HEALTH = "* || check_cmd_output -t 5 -M '%L' -m '!/^unfenced:/' jobfence check --health"
SLURM = 'Prolog=/opt/site/prolog.d/*\nEpilog="/opt/site/*.sh"\nHealthCheckProgram=/opt/site/health\n'
PLUGIN = "required libjobfence.so"


def read(cell, host):
    """Files that a daemon reads or runs, each with a line for which the command or the library must stay. SLURM is in slurm.conf."""
    return (
        ("etc/nhc/nhc.conf", HEALTH),
        ("etc/nhc/scripts/site.nhc", "why=$(jobfence check --health)"),
        ("opt/site/health", "jobfence check --health || drain"),
        # Slurm runs whatever its pattern matches, and reads whatever an include does.
        ("opt/site/prolog.d/10.bak", f"{COMMAND} prolog"),
        ("etc/slurm/plugstack.conf.d/jobfence.conf.rpmsave", PLUGIN),
        ("etc/condor/config.d/90-jobfence.bak", f"STARTER = {COMMAND}"),
        (f"{cell}/local_conf/{host}", f"shepherd_cmd {COMMAND}"),
        (f"{cell}/local_conf/{host}.example", f"shepherd_cmd {COMMAND}"),
        ("etc/slurm/prolog", f"[ $# = 0 ] && exec {COMMAND} prolog"),
        ("etc/slurm/prolog", f"[ $# = 0 ]&&{COMMAND} prolog"),
    )


def unread(cell, host):
    """Files that no daemon of this host reads, and lines that mean nothing."""
    copies = ("~", ".bak", ".orig", ".dpkg-old", ".dpkg-dist", ".rpmnew", ".rpmsave", ".rpmorig")
    return (
        *((f"etc/pam.d/sshd{copy}", f"session required pam_exec.so {COMMAND}\nsession required libjobfence.so") for copy in copies),
        *((f"etc/nhc/nhc.conf{copy}", HEALTH) for copy in copies),
        *((f"etc/condor/config.d/90-jobfence{copy}", f"STARTER = {COMMAND}") for copy in ("~", ".rpmnew", ".rpmsave")),
        (f"{cell}/local_conf/{host}0", f"shepherd_cmd {COMMAND}"),
        (f"{cell}/local_conf/{host}-2", f"shepherd_cmd {COMMAND}"),
        ("etc/slurm/epilog", f"#{COMMAND} epilog\n  #{COMMAND}\n##{COMMAND}"),
        ("etc/nhc/nhc.conf", f"#{HEALTH}\n* || check_file_test -r /etc/jobfence/checked\n* || check_ps_daemon notjobfence check"),
    )


@contextlib.contextmanager
def fifo(path, text):
    """Who waits at it for a writer gets the text, so that nothing waits for ever."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    over = threading.Event()

    def feed():
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(writer, text.encode())
                finally:
                    os.close(writer)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        over.set()
        feeder.join()
        path.unlink()
