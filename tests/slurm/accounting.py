# SPDX-License-Identifier: GPL-2.0-or-later
"""Accounting for the Slurm of any site: a slurmdbd and a MariaDB of its own, for as long as a case wants it.

Both run in a directory of their own below a keeper, which ends and removes them whatever happens to us. MariaDB listens on a
socket there alone, slurmdbd on a free port of the loopback; no service of the machine is used or touched.
"""

import re
import shutil
import tempfile
from pathlib import Path

from contract import kernel, sites
from contract.sites import Keeper, SiteError, undisturbed, until
from .sites import free_ports

PROGRAMS = ("slurmdbd", "mariadbd")
# What mariadb-install-db makes a new server's own tables from; that itself needs a program of another package.
SYSTEM_TABLES = ("mysql/mysql_system_tables.sql", "mariadb/mariadb_system_tables.sql")

# Nothing is to be found again after a crash: nothing waits for the disk.
MARIADB = """\
[mariadbd]
datadir={top}/data
socket={top}/socket
pid-file={top}/mariadbd.pid
init-file={top}/init.sql
user=root
skip-networking
skip-grant-tables
skip-log-bin
innodb_flush_log_at_trx_commit=0
innodb_flush_method=nosync
innodb_doublewrite=0
innodb_log_file_size=16M
innodb_buffer_pool_size=32M
innodb_temp_data_file_path=ibtmp1:1M:autoextend
"""

SLURMDBD = """\
AuthType=auth/munge
{auth}
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
PidFile={top}/slurmdbd.pid
LogFile={top}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def missing():
    """What this machine lacks for it."""
    return [name for name in PROGRAMS if not shutil.which(name, path=sites.PATH)]


class Accounting:
    """`keys` are what slurm.conf must say meanwhile. The site knows it as its `accounting`."""

    def __init__(self, site):
        self.site = site
        self.late = False
        shown = site.command("scontrol", "show", "config").stdout
        self.user = re.search(r"(?m)^SlurmUser *= (\w+)", shown)[1]
        munge = re.search(r"(?m)^AuthInfo *= (socket=(\S+))", shown)
        self.auth, socket = munge.groups() if munge else ("", None)
        self.state = Path(re.search(r"(?m)^StateSaveLocation *= (\S+)", shown)[1])
        (self.port,) = free_ports(1)
        self.keys = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "localhost",
            "AccountingStoragePort": self.port,
            "AccountingStoragePass": socket,
        }

    def __enter__(self):
        with undisturbed():
            self.top = Path(tempfile.mkdtemp(prefix="jobfence-accounting-"))
            self.keeper = Keeper(self.top, {
                **self.site.environment,
                # slurmdbd.conf is looked for beside it.
                "SLURM_CONF": str(self.top / "slurm.conf"),
                # slurmdbd.conf has no key for the socket.
                "MYSQL_UNIX_PORT": str(self.top / "socket"),
            }, ())
        try:
            self._write_files()
            self.keeper.start("mariadbd", ["mariadbd", f"--defaults-file={self.top}/mariadb.conf"])
            self._until_ready((self.top / "socket").exists, "mariadbd")
            self.keeper.start("dbd", ["slurmdbd", "-D"])
            log = self.top / "slurmdbd.log"
            self._until_ready(lambda: re.search("slurmdbd version .* started", kernel.read(log)), "slurmdbd")
        except BaseException:
            self.keeper.finish()
            raise
        self.site.accounting = self
        return self

    def __exit__(self, *_):
        self.site.accounting = None
        self.keeper.finish()
        return False

    def _write_files(self):
        # Since 24.11 the cluster's number is there, and a new slurmdbd has another for it: the controller would not start.
        (self.state / "clustername").unlink(missing_ok=True)
        (self.top / "data").mkdir()
        tables = next(path for name in SYSTEM_TABLES if (path := Path("/usr/share", name)).exists())
        # slurmdbd makes its database itself, but not with MariaDB's client 3.4.10: what fails once fails ever after.
        (self.top / "init.sql").write_text(
            "CREATE DATABASE slurm_acct_db;\nCREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
            + tables.read_text())
        (self.top / "mariadb.conf").write_text(MARIADB.format(top=self.top))
        settings = self.top / "slurmdbd.conf"
        settings.write_text(SLURMDBD.format(
            top=self.top, port=self.port, user=self.user, auth=f"AuthInfo={self.auth}" if self.auth else ""))
        settings.chmod(0o600)
        for path in (self.top, settings):
            shutil.chown(path, self.user)

    def _until_ready(self, condition, what):
        try:
            until(condition, 60, what)
        except AssertionError as error:
            raise SiteError(f"{error}\n{self.logs()}") from None

    def logs(self):
        """The ends of its daemons' logs."""
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                       for path in sorted(self.top.glob("*.log")))

    def rows(self, jobs, fields, steps=()):
        """What sacct says of each run of these jobs and of each of its steps, once it says how all have ended.

        It waits for `steps`, such as 12.interactive: slurmdbd can learn of a step after its job's end.

        The first job is number 0, whatever its own. A run's steps are in the order of their beginnings, those of the
        same second in sacct's.
        """
        # It would not come the next time either, and each time takes as long.
        if self.late:
            raise AssertionError("slurmdbd was late before")
        said = ""

        def ended():
            nonlocal said
            done = self.site.command(
                "sacct", "--duplicates", "--parsable2", "--noheader", "--units=M", "-j", ",".join(map(str, jobs)),
                "-o", ",".join(("JobID", "Start", "End", "Partition", *fields)))
            said = done.stdout + done.stderr
            rows = [line.split("|") for line in done.stdout.splitlines()]
            # slurmdbd can learn of a job's end before its beginning: then it knows no partition yet.
            unknown = [name for name, _, end, partition, *_ in rows
                       if end == "Unknown" or not (partition or "." in name)]
            return rows if rows and not unknown and {name for name, *_ in rows}.issuperset(steps) else None

        try:
            rows = until(ended, 30, f"the end of jobs {jobs} in sacct")
        except AssertionError as error:
            self.late = True
            raise AssertionError(f"{error}:\n{said}{self.logs()}") from None
        found, runs = [], 0
        for name, start, _, _, *values in rows:
            job, _, step = name.partition(".")
            runs += not step
            # Such as 12, 12_3 and 12+1.
            numbers = [int(number) for number in re.findall(r"\d+", job)]
            relative = re.sub(r"^\d+", str(numbers[0] - min(jobs)), name)
            found.append((numbers, runs, start, {"JobID": relative, **dict(zip(fields, values))}))
        return [row for *_, row in sorted(found, key=lambda one: one[:3])]
