#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What 'make deb' makes: packages.py --so FILE --bin FILE. What is in the packages, what lintian says, and what is on the disk before,
between and after, in a Debian without schedulers and systemd. With jobs: tests/vm/packaged.py."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "tests/vm")]
import image  # noqa: E402
import removal  # noqa: E402
import repository  # noqa: E402
import tree  # noqa: E402

LINE = "etc/slurm/plugstack.conf.d/jobfence.conf"
KEPT = "etc/slurm/jobfence.plugstack.disabled"
CONFIG = "etc/jobfence/jobfence.conf"
UNIT = "etc/systemd/system/multi-user.target.wants/jobfence.service"
CONTENTS = """
jobfence /etc/jobfence/jobfence.conf
jobfence /usr/bin/jobfence -> ../sbin/jobfence
jobfence /usr/lib/systemd/system/jobfence.service
jobfence /usr/lib/systemd/system/jobfence.slice
jobfence /usr/sbin/jobfence
jobfence /usr/share/bash-completion/completions/jobfence
jobfence /usr/share/fish/vendor_completions.d/jobfence.fish
jobfence /usr/share/lintian/overrides/jobfence
jobfence /usr/share/man/man1/jobfence.1.gz
jobfence /usr/share/man/man5/jobfence.conf.5.gz
jobfence /usr/share/man/man8/jobfence.8.gz
jobfence /usr/share/zsh/vendor-completions/_jobfence
jobfence-gridengine /usr/share/jobfence/gridengine/jsv
jobfence-gridengine /usr/share/jobfence/gridengine/load-sensor
jobfence-htcondor /usr/libexec/jobfence/docker -> ../../sbin/jobfence
jobfence-htcondor /usr/libexec/jobfence/htcondor-job -> ../../sbin/jobfence
jobfence-pbs /usr/share/jobfence/pbs/jobfence.CF
jobfence-pbs /usr/share/jobfence/pbs/jobfence.HK
jobfence-pbs /usr/share/jobfence/pbs/jobfence.py
jobfence-slurm /usr/lib/TRIPLET/slurm-wlm/libjobfence.so -> ../jobfence/libjobfence.so
jobfence-slurm /usr/share/jobfence/plugstack.conf
libjobfence /usr/include/jobfence.h
libjobfence /usr/lib/TRIPLET/jobfence/libjobfence.so
"""
DEPENDS = {
    "jobfence": "libc6 (>= 2.28)",
    "libjobfence": "libc6 (>= 2.28)",
    "jobfence-slurm": "jobfence (= VERSION), libjobfence (= VERSION)",
    "jobfence-pbs": "jobfence (= VERSION), libjobfence (= VERSION)",
    "jobfence-gridengine": "jobfence (>= VERSION), jobfence (<< VERSION.1~)",
    "jobfence-htcondor": "jobfence (>= VERSION), jobfence (<< VERSION.1~)",
}
# A number of a bug is for what goes into Debian.
NOT_FOR_US = "initial-upload-closes-no-bugs"
# What dpkg, apt and those whom they call keep of what has ever been installed.
ACCOUNTS = ("var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "etc/ld.so.cache", "tmp", "srv", "proc", "dev")


class Failure(Exception):
    pass


def expect(true, said):
    if not true:
        raise Failure(said)


def run(*command, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    return done.returncode, done.stdout


class Debian:
    """A Debian of which nothing is kept: the cached tree, with a layer above it. It ends with this process's namespace of mounts."""

    def __init__(self, lower, above, packages):
        self.lower, self.upper, self.top = lower, above / "upper", above / "top"
        for place in self.upper, above / "work", self.top:
            place.mkdir(parents=True)
        self.mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={self.upper},workdir={above / 'work'}", self.top)
        self.mount("-t", "proc", "proc", self.top / "proc")
        (self.top / "srv/deb").mkdir()
        self.mount("--bind", packages, self.top / "srv/deb")
        self.mount("--rbind", "/dev", self.top / "dev")
        self.write("srv/deb/list", repository.sources("/srv/deb"))
        self.apt("update")

    @staticmethod
    def mount(*words):
        subprocess.run(["mount", *map(str, words)], check=True)

    def write(self, name, text):
        place = self.top / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, name):
        return (self.top / name).read_text()

    def has(self, name):
        return os.path.lexists(self.top / name)

    def sh(self, command, status=0):
        said = run("chroot", self.top, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", command)
        expect(said[0] == status, f"{command}: exit status {said[0]}, and should be {status}:\n{said[1]}")
        return said[1]

    def apt(self, words, status=0):
        return self.sh(f"{repository.apt('/srv/deb')} {words}", status)

    def is_installed(self, package):
        return "installed" == self.sh(f"dpkg-query --show --showformat '${{db:Status-Status}}' {package} || true")

    def changed(self):
        """Each name that is not as in the tree, but those of accounts."""
        found = []
        for place, directories, names in os.walk(self.upper):
            for name in [*directories, *names]:
                path = Path(place) / name
                inner = path.relative_to(self.upper)
                if not str(inner).startswith(ACCOUNTS) and self.described(path) != self.described(self.lower / inner):
                    found.append(str(inner))
        return sorted(found)

    @staticmethod
    def described(path):
        if not os.path.lexists(path):
            return None
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        return status.st_mode, status.st_uid, status.st_gid, status.st_rdev, content


def contents(site):
    version = site.versions[0]
    expect(version.split("-")[0] == re.search(r'^version = "(.*)"', (TOP / "Cargo.toml").read_text(), re.M)[1],
           f"packaging/debian/changelog has {version}, and Cargo.toml another version")
    found = []
    for package in DEPENDS:
        deb = site.deb(package)
        for line in run("dpkg-deb", "--contents", deb)[1].splitlines():
            mode, owner, _, _, _, name = line.split(maxsplit=5)
            expect(owner == "root/root", line)
            expect(mode[7] == "r", f"users cannot read it: {line}")
            if not name.endswith("/") and "/usr/share/doc/" not in name:
                found.append(f"{package} {name[1:]}".replace(site.triplet, "TRIPLET"))
        depends = run("dpkg-deb", "--field", deb, "Depends")[1].strip()
        expect(depends == DEPENDS[package].replace("VERSION", version), f"{package} depends on {depends}")
    expect(sorted(found) == CONTENTS.split("\n")[1:-1], "other files: " + "\n".join(set(found) ^ set(CONTENTS.split("\n")[1:-1])))
    expect(run("dpkg-deb", "--info", site.deb("jobfence"), "conffiles")[1] == f"/{CONFIG}\n", "conffiles")
    # What debhelper has added: an upgrade neither stops nor restarts the service.
    postinst, prerm = (run("dpkg-deb", "--info", site.deb("jobfence"), script)[1] for script in ("postinst", "prerm"))
    expect("deb-systemd-invoke start" in postinst and "restart" not in postinst, postinst)
    expect(re.search(r"^if .* remove .*\n\s*deb-systemd-invoke stop", prerm, re.M) and prerm.count("invoke") == 1, prerm)
    for name in "Packages", "Sources", "Release":
        expect("jobfence" in (site.made / name).read_text(), f"{name} does not name jobfence")


def what_vanishes_is_left_out(site):
    """Other tests' files come and go while the source is packed up."""
    archive, here = site.place / "vanished.tar.xz", TOP / "Makefile"
    repository.pack(archive, {"gone": site.place / "gone", "Makefile": here})
    with tarfile.open(archive) as tar:
        expect(tar.getnames() == ["jobfence/Makefile"] and tar.extractfile("jobfence/Makefile").read() == here.read_bytes(), "another archive")


def clean(site):
    status, said = run("lintian", "--fail-on=error,warning", "--allow-root", "--suppress-tags", NOT_FOR_US, *site.made.glob("*.changes"))
    expect(status == 0, said)


def only_the_command(site):
    """`apt install ./jobfence_*.deb` is all that 'jobfence run' needs."""
    debian = site.debian()
    said = debian.apt("install /srv/deb/made/" + site.deb("jobfence").name)
    expect("Next: jobfence setup" in said, said)
    expect(debian.has(UNIT), "the service is not enabled")
    expect("Usage" in debian.sh("jobfence run --help"), "the command")
    expect("Next: jobfence setup" not in debian.apt("install --reinstall jobfence"), "it is said again")
    debian.apt("remove jobfence")
    expect(debian.has(CONFIG), "a removal has taken the configuration")
    left = [name for name in debian.changed() if not name.startswith(("etc/jobfence", "etc/systemd", "var/lib/systemd"))]
    expect(not left, f"after the removal: {left}")
    debian.apt("purge jobfence")
    expect(not debian.changed(), f"left: {debian.changed()}")


def all_of_them(site):
    debian, (version, newer) = site.debian(), site.versions
    debian.apt("install " + repository.named(version))
    library = f"/usr/lib/{site.triplet}/jobfence/libjobfence.so"
    expect(f"required {library}\n" in debian.read("usr/share/jobfence/plugstack.conf"), "the line names another library")
    expect(f"Library={library}\n" in debian.read("usr/share/jobfence/pbs/jobfence.CF"), "the hook names another library")
    expect("ExecStart=/usr/sbin/jobfence hold\n" in debian.read("usr/lib/systemd/system/jobfence.service"), "ExecStart")
    expect(not debian.has("etc/slurm"), "something was turned on")
    debian.write(CONFIG, "Mode=observe\n")
    for changed in newer, version:
        debian.apt("install " + repository.named(changed))
        expect(debian.read(CONFIG) == "Mode=observe\n", "the configuration was written over")
    debian.apt("remove '~njobfence'")
    expect(debian.read(CONFIG) == "Mode=observe\n", "the configuration was removed")
    debian.apt("purge '~njobfence'")
    expect(not debian.changed(), f"left: {debian.changed()}")


def slurm(site, line=None):
    """A Debian with a configured Slurm, and everything installed. The line is that of the package, or another."""
    debian = site.debian()
    debian.write("etc/slurm/slurm.conf", "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n")
    debian.write("etc/slurm/plugstack.conf", "include /etc/slurm/plugstack.conf.d/*\n")
    debian.apt("install " + repository.named(site.versions[0]))
    debian.write(LINE, line or debian.read("usr/share/jobfence/plugstack.conf"))
    return debian


def the_line_goes_first(site):
    debian = slurm(site)
    debian.apt("install " + repository.named(site.versions[1]))
    expect(debian.has(LINE), "an upgrade has turned it off")
    debian.apt("remove jobfence-slurm")
    expect(not debian.has(LINE), "the line has stayed")
    expect(debian.has(UNIT), "another scheduler needs the service, and it was disabled")
    # The administrator's own words.
    changed = slurm(site)
    changed.write(LINE, changed.read(LINE) + "# ours\n")
    changed.apt("remove '~njobfence'")
    expect(not changed.has(LINE) and changed.read(KEPT).endswith("# ours\n"), "the changed line is lost")
    changed.apt("purge '~njobfence'")
    expect(not changed.has(KEPT), "the changed line is left")


def what_others_load_stays(site):
    """A removal would make every job fail, or every login."""
    debian = slurm(site)
    library = f"/usr/lib/{site.triplet}/jobfence/libjobfence.so"
    for file, line in (("etc/pam.d/sshd", f"session required {library}"), ("etc/slurm/plugstack.conf", "required libjobfence.so"),
                       ("var/spool/pbs/mom_priv/hooks/jobfence.CF", f"Library={library}")):  # fmt: skip
        before = debian.read(file) if debian.has(file) else None
        debian.write(file, f"{before or ''}{line}\n")
        for package in "libjobfence", "jobfence":
            said = debian.apt(f"remove {package}", 100)
            # Slurm's own is found by 'jobfence disable'.
            expect(f"/{file}" in said, f"{file} is not named:\n{said}")
            expect(debian.has(library[1:]) and debian.has("usr/sbin/jobfence"), f"removed in spite of {file}")
        debian.write(file, f"{before or ''}# {line}\n")
    debian.apt("install jobfence-slurm")
    # The link is its own, and is looked for before anything is undone.
    debian.write(LINE, debian.read("usr/share/jobfence/plugstack.conf"))
    link = f"usr/lib/{site.triplet}/slurm-wlm/libjobfence.so"
    debian.write("etc/pam.d/sshd", f"session required /{link}\n")
    debian.apt("remove jobfence-slurm", 100)
    expect(debian.has(link) and debian.has(LINE), "a login needs the link")
    debian.write("etc/pam.d/sshd", f"session required {library}\n")
    debian.apt("remove jobfence-slurm")
    debian.write("etc/pam.d/sshd", "")
    debian.apt("remove libjobfence jobfence")
    expect(not debian.has(library[1:]) and not debian.has("usr/sbin/jobfence"), "a comment keeps the packages")


def what_starts_the_command_stays(site):
    """Jobs would fail, or the node would drain."""
    debian = slurm(site)
    command, shepherd = "/usr/sbin/jobfence", "/usr/share/jobfence/gridengine/jsv"
    debian.write("etc/slurm/slurm.conf", debian.read("etc/slurm/slurm.conf") + 'Epilog="/opt/site/*.sh"\n')
    hosts = "var/lib/gridengine/default/common/local_conf"
    for package, file, line in (
        ("jobfence", "etc/slurm/prolog", f"[ $# = 0 ] && exec {command} prolog"),
        ("jobfence", "etc/slurm/prolog.d/10", f"{command} prolog"), ("jobfence", "opt/site/epilog.sh", "/usr/bin/jobfence epilog"),
        ("jobfence", "etc/condor/config.d/90-jobfence", f"STARTER = {command}"), ("jobfence", "etc/pam.d/sshd", f"session required pam_exec.so {command}"),
        ("jobfence", f"{hosts}/{os.uname().nodename}", f"shepherd_cmd {command}"),
        ("jobfence-htcondor", "etc/condor/condor_config.local", "DOCKER=/usr/libexec/jobfence/docker"),
        ("jobfence-gridengine", "var/lib/gridengine/default/common/configuration", f"jsv_url   {shepherd}"),
    ):  # fmt: skip
        before = debian.read(file) if debian.has(file) else None
        debian.write(file, f"{before or ''}{line}\n")
        said = debian.apt(f"remove {package}", 100)
        expect(f"/{file}:{line}" in said, f"{file} is not named:\n{said}")
        expect(debian.is_installed(package), f"{package} is removed in spite of {file}")
        debian.apt("install " + repository.named(site.versions[0]))
        others = line.replace("/usr/", "/usr/local/")
        debian.write(file, f"{before or ''}# {line}\n{others}\n")
    debian.write(f"{hosts}/another", f"shepherd_cmd {command}\n")
    debian.apt("remove '~njobfence'")
    expect(not debian.has(command[1:]), "comments, another installation or another host keep the packages")


def what_a_daemon_reads_is_looked_at(site):
    """And nothing else: a removal must not be refused for a copy, nor wait for a FIFO."""
    debian, cell, host = site.debian(), "var/lib/gridengine/default/common", os.uname().nodename
    debian.write("etc/slurm/slurm.conf", removal.SLURM)
    debian.apt("install jobfence")
    for file, line in removal.read(cell, host):
        debian.write(file, f"{line}\n")
        said = debian.apt("remove jobfence", 100)
        expect(f"/{file}:{line}\n" in said and debian.is_installed("jobfence"), f"{file} is not named:\n{said}")
        (debian.top / file).unlink()
    for file, line in removal.unread(cell, host):
        debian.write(file, f"{line}\n")
    with removal.fifo(debian.top / "etc/pam.d/fifo", f"{removal.PLUGIN}\n"), removal.fifo(debian.top / "etc/slurm/prolog", f"{removal.COMMAND}\n"):
        debian.apt("remove jobfence")
    # By its name, the command is that of /usr/local.
    debian.apt("install jobfence")
    debian.write("etc/nhc/nhc.conf", f"{removal.HEALTH}\n")
    debian.write("usr/local/lib/systemd/system/jobfence.service", "")
    debian.apt("remove jobfence")
    # A host may be known without its domain.
    debian.write("bin/uname", f"#!/bin/sh\necho {host}.example.org\n")
    debian.apt("install jobfence")
    debian.write(f"{cell}/local_conf/{host}", f"shepherd_cmd {removal.COMMAND}\n")
    debian.apt("remove jobfence", 100)


def answers(debian, call, status, said="kept"):
    """The command answers a call so, and any other with nothing."""
    debian.write("usr/sbin/jobfence", f"#!/bin/sh\n[ \"$*\" = '{call}' ] || exit 0\nprintf '%s\\n' '{said}'\nexit {status}\n")


def what_a_scheduler_would_go_on_to_use_stays(site):
    """By the exit status of 'jobfence setup --undo', whatever it prints. Under Slurm, 'jobfence disable' has the last word."""
    debian = slurm(site)
    debian.sh("mkdir -p -m 0700 /var/lib/jobfence/setup")
    said = r"kept           qconf failed: not found\c; it is undone by: systemctl"
    for package, words in (("slurm", "slurm"), ("pbs", "openpbs"), ("htcondor", "htcondor"), ("gridengine", "gridengine --central")):
        for status in (3,) if package != "gridengine" else (3, 0, 1, 2):
            answers(debian, f"setup --undo --scheduler {words}", status, said)
            stays = status == 3 and package != "slurm"
            printed = debian.apt(f"remove jobfence-{package}", 100 if stays else 0)
            expect(f"{said}\n" in printed, f"other words than {said}: {printed}")
            expect(("rm -r /var/lib/jobfence/setup" in printed) == stays, f"{package}, {status}: {printed}")
            expect(debian.is_installed(f"jobfence-{package}") == stays, f"{package} after {status}")
            debian.apt(f"install jobfence-{package}={site.versions[0]}")
    answers(debian, "disable --keep-service", 1)
    debian.apt("remove jobfence-slurm", 100)
    debian.sh("rm -r /var/lib/jobfence/setup")
    answers(debian, "disable --keep-service", 0)
    (debian.top / LINE).unlink()
    debian.apt("remove '~njobfence'")


def what_a_server_keeps_is_asked_for(site):
    """Such as Grid Engine's shepherd_cmd in a database, with the package of the command alone."""
    debian, unit = site.debian(), "usr/local/lib/systemd/system/jobfence.service"
    for status in 3, 0, 1, 2:
        debian.apt(f"install jobfence={site.versions[0]}")
        answers(debian, "setup --undo --dry-run", status)
        printed = debian.apt("remove jobfence", 100 if status == 3 else 0)
        expect(debian.is_installed("jobfence") == (status == 3), f"{status}: {printed}")
        expect(("kept\n" in printed and "setup --undo --central" in printed) == (status == 3), f"{status}: {printed}")
        if status == 3:
            debian.write(unit, "")
            debian.apt("remove jobfence")
            (debian.top / unit).unlink()


def of_usr_local(site):
    """'make install' before: what it has turned on is no package's."""
    theirs = "required /usr/local/lib/slurm/libjobfence.so\n"
    debian = slurm(site, theirs)
    debian.write("usr/local/lib/systemd/system/jobfence.service", "[Service]\nExecStart=/usr/local/sbin/jobfence hold\n")
    journal = "var/lib/jobfence/setup/journal.json"
    debian.write(journal, '{"version": 1, "entries": [{"number": 1, "scheduler": "Slurm", "done": true, "change": {"file": "/%s", '
                 '"before": null, "after": [420, 0, 0]}}]}' % LINE)  # fmt: skip
    debian.write("var/lib/jobfence/setup/1.after", theirs)
    debian.sh("chmod 0700 /var/lib/jobfence/setup")
    debian.write(KEPT, theirs)
    debian.apt("install " + repository.named(site.versions[1]))
    debian.apt("purge '~njobfence'")
    expect(debian.read(LINE) == theirs and debian.has(KEPT), "the line of another installation was changed")
    expect(debian.has(journal), "what another installation has recorded is gone")
    expect(debian.has(UNIT), "the service of another installation is disabled")
    # In plugstack.conf itself.
    alone = slurm(site)
    (alone.top / LINE).unlink()
    alone.write("etc/slurm/plugstack.conf", theirs)
    alone.apt("remove '~njobfence'")
    expect(alone.read("etc/slurm/plugstack.conf") == theirs, "the line of another installation was changed")


def its_removal_leaves_a_package(site):
    """'make uninstall' after the installation of packages."""
    debian = site.debian()
    debian.apt("install jobfence")
    for name in "plugstack", "hooks":
        shutil.copytree(TOP / name, debian.top / "srv/source" / name)
    debian.sh("/srv/source/plugstack/installation remove")
    expect(debian.has(CONFIG), "the conffile of a package is gone")
    debian.apt("purge jobfence")
    debian.write(CONFIG, (TOP / "plugstack/jobfence.conf").read_text())
    debian.sh("/srv/source/plugstack/installation remove")
    expect(not debian.has(CONFIG), "its own example stays")


def a_build_of_a_part(site):
    """Of the packages for all machines alone; and a directory of others is left alone."""
    place = site.place / "part"
    place.mkdir()
    environment = {**os.environ, "SO": str(site.so.resolve()), "BIN": str(site.program.resolve())}
    for words in ["dpkg-source", "--extract", next(site.made.glob("*.dsc")), "source"], \
            ["sh", "-c", "cd source && dpkg-buildpackage --build=all --no-sign --no-check-builddeps"]:
        status, said = run(*words, cwd=place, env=environment)
        expect(status == 0, said)
    expect(len(list(place.glob("*_all.deb"))) == 2, "not the two packages")
    status, said = run(TOP / "packaging/deb", env={**environment, "JOBFENCE_OUT": str(place)})
    expect(status == 1 and "JOBFENCE_OUT" in said and (place / "source").exists(), f"a directory of others: {said}")


def the_same_bytes(site):
    """Once more, from the source package, in another directory, later, and by a careful administrator."""
    place = site.place / "elsewhere/of/another/length"
    place.mkdir(parents=True)
    environment = {**os.environ, "SO": str(site.so.resolve()), "BIN": str(site.program.resolve()), "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}
    script = 'umask 077; dpkg-source --extract "$0" source && cd source && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps'
    status, said = run("sh", "-c", script, next(site.made.glob("*.dsc")), cwd=place, env=environment)
    expect(status == 0, said)
    made = sorted(place.glob("*.deb"))
    expect(len(made) == len(repository.PACKAGES), f"the packages are {made}")
    other = [deb.name for deb in made if deb.read_bytes() != (site.made / deb.name).read_bytes()]
    expect(not other, f"other bytes: {other}")


CASES = contents, what_vanishes_is_left_out, clean, only_the_command, all_of_them, the_line_goes_first, what_others_load_stays, \
    what_starts_the_command_stays, what_a_daemon_reads_is_looked_at, what_a_scheduler_would_go_on_to_use_stays, \
    what_a_server_keeps_is_asked_for, of_usr_local, its_removal_leaves_a_package, a_build_of_a_part, the_same_bytes
# What 'make check' has: what is in the packages, and that they come and go. A slice has the rest.
SHORT = contents, what_vanishes_is_left_out, clean, the_line_goes_first, what_others_load_stays, a_build_of_a_part


class Site:
    def __init__(self, lower, place, so, program):
        self.lower, self.place, self.packages, self.count = lower, place, place / "deb", 0
        self.so, self.program = so, program
        self.made = self.packages / "made"
        self.triplet = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH")[1].strip()
        self.versions = repository.make(self.packages, so, program)

    def deb(self, package):
        return next(self.made.glob(f"{package}_{self.versions[0]}_*.deb"))

    def debian(self):
        self.count += 1
        return Debian(self.lower, self.place / str(self.count), self.packages)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--so", required=True, type=Path)
    parser.add_argument("--bin", required=True, type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE")
    parser.add_argument("--short", action="store_true", help="the short cases alone")
    options = parser.parse_args()
    if os.environ.get("JOBFENCE_OF_ITS_OWN") != "yes":
        os.environ["JOBFENCE_OF_ITS_OWN"] = "yes"
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, *sys.orig_argv[1:]])
    counts = {"ok": 0, "FAIL": 0}
    place = Path(tempfile.mkdtemp(prefix="jobfence-packages-"))
    try:
        # A layer cannot be above one of the same kind.
        Debian.mount("-t", "tmpfs", "tmpfs", place)
        with tree.used("debian12-gridengine") as lower:
            site = Site(lower / "tree", place, options.so, options.bin)
            for case in SHORT if options.short else CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                begun, said, word = time.monotonic(), "", "ok"
                try:
                    case(site)
                except Failure as failure:
                    word, said = "FAIL", str(failure)
                except Exception:
                    word, said = "FAIL", traceback.format_exc()
                counts[word] += 1
                print(f"{word:4} {case.__name__}  {time.monotonic() - begun:.1f} s", *said.splitlines(), sep="\n     ", flush=True)
    except image.Skip as why:
        print(f"packages: {why}")
        sys.exit(77)
    finally:
        subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(place, ignore_errors=True)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, 0 skipped")
    sys.exit(counts["FAIL"] > 0)


if __name__ == "__main__":
    main()
