# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence as an administrator installs it, below a directory of a private Slurm's."""

import contextlib
import subprocess
from pathlib import Path

from contract.harness import Skip
from contract.sites import write_atomically

TOP = Path(__file__).resolve().parents[2]


class Installation:
    """With a prefix of its own, and the site's slurm.conf and jobfence.conf; nothing is turned on by it."""

    def __init__(self, site):
        if not site.so or not site.jobfence:
            raise Skip("needs --so and --bin")
        if site.systemd:
            raise Skip("would switch the jobfence.service of this machine")
        self.site, self.prefix = site, site.top / "installed"
        self.command = self.prefix / "sbin/jobfence"
        etc = self.prefix / "etc/slurm"
        self.line = etc / "plugstack.conf.d/jobfence.conf"
        etc.mkdir(parents=True, exist_ok=True)
        config = etc / "jobfence.conf"
        config.unlink(missing_ok=True)
        config.symlink_to(site.config)
        self.places = {"PREFIX": self.prefix, "SYSCONFDIR": self.prefix / "etc", "SO": site.so.resolve(), "BIN": site.jobfence}

        # No crash of the machine is looked at here, and a busy disk takes seconds for each file.
        self.programs = site.top / "programs"
        self.programs.mkdir(exist_ok=True)
        sync = self.programs / "sync"
        sync.write_text("#!/bin/sh\n")
        sync.chmod(0o755)

    def make(self, what):
        environment = {**self.site.environment, "PATH": f"{self.programs}:{self.site.environment['PATH']}"}
        done = subprocess.run(
            [TOP / "plugstack/installation", what], env={**environment, **{k: str(v) for k, v in self.places.items()}},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def run(self, *arguments):
        done = self.site.command(str(self.command), *arguments)
        return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def plugstack(site, text):
    path, before, _ = site._plugin_line()
    write_atomically(path, text)
    try:
        yield path
    finally:
        write_atomically(path, before)
