#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The RPM packages: rpm.py --so FILE --bin FILE [NAME]...

They are made of these two files, and installed, upgraded and removed in a directory with a shell, which rpm takes as its root. So
scriptlets run there as root, and see nothing of this host.
"""

import argparse
import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import removal  # noqa: E402

TOP = Path(__file__).resolve().parents[1]
SPEC = TOP / "packaging/rpm/jobfence.spec"
LACKS = 77  # for check.py: this machine lacks something
PROGRAMS = "rpmbuild", "rpmlint", "createrepo_c", "cpio", "cargo"
EPOCH = 1_700_000_000
LIBRARY = "/usr/lib64/jobfence/libjobfence.so"
LINE = "etc/slurm/plugstack.conf.d/jobfence.conf"
DOCUMENTS = "/usr/share/doc/jobfence/"

CONTENTS = {
    "jobfence": """
        /etc/jobfence /etc/jobfence/jobfence.conf /usr/bin/jobfence /usr/lib/systemd/system-preset/80-jobfence.preset
        /usr/lib/systemd/system/jobfence.service /usr/lib/systemd/system/jobfence.slice /usr/sbin/jobfence
        /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/bash-completion/completions/jobfence
        /usr/share/doc/jobfence /usr/share/fish /usr/share/fish/vendor_completions.d /usr/share/fish/vendor_completions.d/jobfence.fish
        /usr/share/jobfence /usr/share/licenses/jobfence /usr/share/licenses/jobfence/LICENSE /usr/share/licenses/jobfence/LICENCES.txt
        /usr/share/man/man1/jobfence.1.gz /usr/share/man/man5/jobfence.conf.5.gz
        /usr/share/man/man8/jobfence.8.gz /usr/share/zsh /usr/share/zsh/site-functions
        /usr/share/zsh/site-functions/_jobfence""",
    "libjobfence": f"""
        /usr/include/jobfence.h /usr/lib64/jobfence {LIBRARY} /usr/share/licenses/libjobfence /usr/share/licenses/libjobfence/LICENSE
        /usr/share/licenses/libjobfence/LICENCES.txt""",
    "jobfence-slurm": "/usr/lib64/slurm /usr/lib64/slurm/libjobfence.so /usr/share/jobfence/plugstack.conf",
    "jobfence-pbs": " ".join(f"/usr/share/jobfence/pbs{name}" for name in ("", "/jobfence.CF", "/jobfence.HK", "/jobfence.py")),
    "jobfence-gridengine": " ".join(f"/usr/share/jobfence/gridengine{name}" for name in ("", "/jsv", "/load-sensor")),
    "jobfence-htcondor": " ".join(f"/usr/libexec/jobfence{name}" for name in ("", "/docker", "/htcondor-job")),
}
NAMES = tuple(CONTENTS)

# What rpmbuild of these systems brings along, as far as the spec asks for it. What would restart a service is here, so that it is
# noticed.
COMMON = r"""
%_libdir /usr/lib64
%_libexecdir /usr/libexec
%_unitdir /usr/lib/systemd/system
%_presetdir /usr/lib/systemd/system-preset
%_docdir_fmt %%{NAME}
"""
RHEL = COMMON + r"""
%systemd_postun() %{nil}
%systemd_postun_with_restart() systemctl try-restart %{?*}
"""
CALLS_SYSTEMCTL = RHEL + r"""
%_sbindir /usr/sbin
%systemd_post() [ $1 -ne 1 ] || systemctl --no-reload preset %{?*} || :
%systemd_preun() [ $1 -ne 0 ] || systemctl --no-reload disable --now %{?*} || :
"""
HAS_HELPER = RHEL + r"""
%systemd_post() [ $1 -ne 1 ] || /usr/lib/systemd/systemd-update-helper install-system-units %{?*} || :
%systemd_preun() [ $1 -ne 0 ] || /usr/lib/systemd/systemd-update-helper remove-system-units %{?*} || :
"""
SUSE = COMMON + r"""
%_sbindir /usr/sbin
%_defaultdocdir /usr/share/doc/packages
%_docdir %{_defaultdocdir}
%service_add_pre() service_add_pre %{?*}
%service_add_post() service_add_post %{?*}
%service_del_preun() service_del_preun %{?*}
%service_del_postun() systemctl try-restart %{?*}
%service_del_postun_without_restart() %{nil}
"""
CARGO = r"""
%cargo_prep cargo_prep
%cargo_generate_buildrequires cargo_generate_buildrequires
%cargo_build cargo_build
%cargo_license cargo_license
"""
SYSTEMS = {
    "rhel8": "%rhel 8\n%dist .el8" + CALLS_SYSTEMCTL,
    "rhel9": "%rhel 9\n%dist .el9\n%_sbindir /usr/sbin" + HAS_HELPER,
    "rhel10": "%rhel 10\n%dist .el10\n%_sbindir /usr/sbin" + HAS_HELPER,
    "fedora": "%fedora 43\n%dist .fc43\n%_sbindir /usr/bin" + HAS_HELPER + CARGO,
    "sle15": "%suse_version 1500" + SUSE,
    "tumbleweed": "%suse_version 1699" + SUSE,
}
# Which a system has before.
DIRECTORIES = (
    "bin", "dev", "etc/pam.d", "etc/slurm", "root", "tmp", "usr/bin", "usr/include", "usr/lib/systemd/system",
    "usr/lib/systemd/system-preset", "usr/lib64", "usr/libexec", "usr/sbin", "usr/share/doc", "usr/share/licenses", "usr/share/man/man1",
    "usr/share/man/man5", "usr/share/man/man8", "var/tmp", "var/lib/rpm",
)
# Those of RHEL 8's rpm.
RPMLIB = "CompressedFileNames", "FileDigests", "PayloadFilesHavePrefix", "PayloadIsXz"


def output(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


def same(what, is_now, expected):
    is_now, expected = set(is_now), set(expected)
    assert is_now == expected, f"{what}: too much {sorted(is_now - expected)}, and too little {sorted(expected - is_now)}"


class Packages:
    """One build of them."""

    def __init__(self, directory):
        self.directory = directory

    def file(self, name):
        (found,) = [file for file in self.directory.glob(f"{name}-[0-9]*.rpm") if not file.name.endswith(".src.rpm")]
        return found

    def files(self):
        return [self.file(name) for name in NAMES]

    def contents(self, name):
        documents = lambda path: path.startswith(DOCUMENTS) or path.startswith("/usr/share/doc/packages/jobfence/")  # noqa: E731
        return [path for path in output("rpm", "-qpl", self.file(name)).split() if not documents(path)]

    def scripts(self):
        return {name: output("rpm", "-qp", "--scripts", self.file(name)) for name in NAMES}


class Site:
    """Where packages are made. Each kind of them is made once."""

    def __init__(self, scratch, so, binary):
        self.scratch, self.so, self.binary = scratch, so, binary
        self.built = {}

    @functools.cache
    def archive(self, change=""):
        """What of a source release the packages are made of; with this at the end of the configuration."""
        version = re.search(r'(?m)^version = "(.*)"', (TOP / "Cargo.toml").read_text())[1]
        place = self.scratch / f"sources{len(change)}"
        place.mkdir(exist_ok=True)
        tree = place / f"jobfence-{version}"
        for name in "packaging", "plugstack", "hooks", "include", "docs":
            shutil.copytree(TOP / name, tree / name, dirs_exist_ok=True)
        for file in TOP.glob("*.md"):
            shutil.copy(file, tree)
        shutil.copy(TOP / "LICENSE", tree)
        # 'make dist' has those of the crates in it.
        (tree / "LICENCES.txt").write_text("MIT\n")
        with (tree / "plugstack/jobfence.conf").open("a") as file:
            file.write(change)
        for path in tree.rglob("*"):
            os.utime(path, (EPOCH, EPOCH))
        os.utime(tree, (EPOCH, EPOCH))
        archive = place / f"{tree.name}.tar.xz"
        with tarfile.open(archive, "w:xz", preset=0) as tar:
            tar.add(tree, tree.name)
        return archive

    def packages(self, name="", change="", macros=None, directory=None):
        key = (name, change, directory)
        if key not in self.built:
            out = self.scratch / (directory or f"rpm{len(self.built)}")
            environment = {**os.environ, "JOBFENCE_OUT": str(out), "SOURCE_DATE_EPOCH": str(EPOCH)}
            if macros:
                file = self.scratch / f"macros-{name}"
                file.write_text(macros)
                environment["MACROS"] = str(file)
            words = ("--with", "prebuilt", "--define", f"so {self.so}", "--define", f"bin {self.binary}")
            more = ("--define", "dist .new") if name == "new" else ()
            output(TOP / "packaging/rpm/build", self.archive(change), *words, *more, env=environment)
            self.built[key] = Packages(out)
        return self.built[key]


class Root:
    """A small system: a shell with a few tools, a C library, and a systemctl that writes down how it is called."""

    def __init__(self, directory, binary, has_systemd=True, is_merged=False):
        self.directory = directory
        for name in DIRECTORIES:
            (directory / name).mkdir(parents=True)
        if is_merged:
            (directory / "usr/sbin").rmdir()
            (directory / "usr/sbin").symlink_to("bin")
        os.mknod(directory / "dev/null", 0o20666, os.makedev(1, 3))
        programs = {name: Path(shutil.which(name)).resolve() for name in ("sh", "grep", "sed", "tail", "cat", "uname")}
        for name, program in programs.items():
            shutil.copy(program, directory / "bin" / name)
        # The libraries of these, and of the command, where this host has them.
        for library in {found for program in (binary, *programs.values()) for found in re.findall(r"/\S+", output("ldd", program))}:
            (directory / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, directory / library[1:])
        if has_systemd:
            (directory / "run/systemd/system").mkdir(parents=True)
            (directory / "bin/systemctl").write_text('#!/bin/sh\necho "$@" >>/tmp/systemctl\n')
            (directory / "bin/systemctl").chmod(0o755)

    def rpm(self, *words, fails=False):
        done = subprocess.run(["rpm", "--root", self.directory, "--dbpath", "/var/lib/rpm", *map(str, words)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=900)
        assert (done.returncode != 0) == fails, f"{words}: {done.returncode}: {done.stdout}"
        return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("rpm: "))

    def install(self, packages, *words, names=NAMES, fails=False):
        return self.rpm("-U", "--nodeps", "--nosignature", *words, *map(packages.file, names), fails=fails)

    def called(self):
        """How systemctl was called since the last time."""
        log = self.directory / "tmp/systemctl"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def path(self, name):
        return self.directory / name.lstrip("/")

    def tree(self):
        """All there is but rpm's own account."""
        return {str(path.relative_to(self.directory)) + (f" -> {os.readlink(path)}" if path.is_symlink() else "")
                for path in self.directory.rglob("*") if "var/lib" not in str(path.relative_to(self.directory))}

    def installed(self):
        return set(self.rpm("-qa", "--qf", "%{NAME}\n").split())


@contextlib.contextmanager
def root(site, **options):
    with tempfile.TemporaryDirectory(dir=site.scratch) as directory:
        yield Root(Path(directory), site.binary, **options)


def licences(package):
    """Of all crates that are linked into this, as an expression."""
    targets = [f"--target={arch}-unknown-linux-gnu" for arch in ("x86_64", "aarch64")]
    crates = output("cargo", "tree", "--locked", "--offline", "--edges=no-build,no-dev,no-proc-macro", "--prefix=none", "--format={l}", *targets,
                    "--package", package, cwd=TOP)
    ours = "GPL-2.0-or-later"
    # The same words in another order are the same licence.
    lines = {line.removesuffix(" (*)").replace("/", " OR ") for line in crates.splitlines()} - {ours, ""}
    others = {line if " AND " in line else " OR ".join(sorted(line.split(" OR "))) for line in lines}
    return " AND ".join([ours, *sorted((f"({each})" if " OR " in each else each) for each in others)])


def the_licence_is_that_of_all_crates(site):
    packages = site.packages()
    for name, package in ("jobfence", "jobfence-command"), ("libjobfence", "libjobfence"):
        said = output("rpm", "-qp", "--qf", "%{LICENSE}", packages.file(name))
        assert said == licences(package), f"License: of {name} should be {licences(package)}"


def the_version_is_cargos(site):
    version = re.search(r'(?m)^version = "(.*)"', (TOP / "Cargo.toml").read_text())[1]
    assert re.search(r"(?m)^Version: +(.*)", SPEC.read_text())[1] == version
    assert f"- {version}-1\n" in SPEC.read_text()


def each_has_its_files(site):
    packages = site.packages()
    for name, expected in CONTENTS.items():
        same(name, packages.contents(name), expected.split())
    assert "/usr/share/doc/jobfence/docs/install/slurm.md" in output("rpm", "-qpl", packages.file("jobfence"))
    assert output("rpm", "-qpc", packages.file("jobfence")).split() == ["/etc/jobfence/jobfence.conf"]
    assert (packages.directory / "repodata/repomd.xml").exists()


def each_needs_little(site):
    packages = site.packages()
    libraries = r"lib(c|dl|pthread)\.so\.\d|ld-linux-[^(]*"
    for name in NAMES:
        for line in output("rpm", "-qp", "--requires", packages.file(name)).splitlines():
            if found := re.fullmatch(r"rpmlib\((.*)\) <= .*", line):
                assert found[1] in RPMLIB, f"RHEL 8's rpm cannot read {name}: {line}"
            elif found := re.match(rf"({libraries})\((GLIBC_(\d+)\.(\d+))?", line):
                assert not found[3] or (int(found[4]), int(found[5])) <= (2, 28), f"{name}: {line}"
            else:
                ours = r"(config\()?(lib)?jobfence(\)|\(x86-64\)|\(aarch-64\))? = \S+"
                assert re.fullmatch(rf"/bin/sh|coreutils|grep|sed|rtld\(GNU_HASH\)|{ours}", line), f"{name}: {line}"
        assert ".so" not in output("rpm", "-qp", "--provides", packages.file(name)), f"{name} is taken for a library to link with"


def rpmlint_is_content(site):
    packages = site.packages()
    output("rpmlint", "--strict", "--config", TOP / "packaging/rpm/rpmlint.toml", *packages.directory.glob("*.rpm"), SPEC)


def the_same_bytes_again(site):
    one, other = site.packages(), site.packages(directory="a/longer/name/of/a/directory")
    for file in one.directory.rglob("*"):
        if file.is_file():
            twin = other.directory / file.relative_to(one.directory)
            assert file.read_bytes() == twin.read_bytes(), f"{file.name} has other bytes in another directory"


def each_system_has_its_places_and_macros(site):
    for name, macros in SYSTEMS.items():
        packages = site.packages(name=name, macros=macros)
        expected = {package: set(files.split()) for package, files in CONTENTS.items()}
        if name == "fedora":
            expected["jobfence"].remove("/usr/sbin/jobfence")
        is_suse = "suse_version" in macros
        if is_suse:
            expected["jobfence"] = {path.replace("/doc/", "/doc/packages/") for path in expected["jobfence"]}
        for package, files in expected.items():
            same(f"{package} of {name}", packages.contents(package), files)
        scripts = packages.scripts()
        text = "".join(scripts.values())
        assert "restart" not in text, f"an upgrade restarts a service of {name}: {text}"
        assert "%" not in re.sub(r"%\* |%% |'%s\\n'", "", text), f"a macro that {name} lacks: {text}"
        calls = ("service_add_pre", "service_add_post", "service_del_preun") if is_suse else \
            ("preset", "disable --now") if name == "rhel8" else ("install-system-units", "remove-system-units")
        for call in calls:
            assert f"{call} jobfence.service" in scripts["jobfence"], f"{name}: no {call}"
        place = "/usr/bin" if name == "fedora" else "/usr/sbin"
        unpack = f"rpm2cpio {packages.file('jobfence')} | cpio -i --quiet --to-stdout ./usr/lib/systemd/system/jobfence.service"
        service = output("sh", "-c", unpack)
        assert f"ExecStart={place}/jobfence hold\n" in service, service


def with_crates_of_a_distribution(site):
    file = site.scratch / "macros-crates"

    def parsed(macros, *words):
        file.write_text(macros)
        return output("rpmspec", f"--load={file}", "-P", *words, SPEC)

    theirs = parsed(SYSTEMS["fedora"], "--without", "vendor")
    for line in ("rm -rf vendor Cargo.lock\ncargo_prep\n", "\ncargo_generate_buildrequires\n",
                 "\ncargo_build\ncargo_license >LICENCES.txt\n"):
        assert line in theirs, theirs
    assert "BuildRequires:  cargo-rpm-macros" in theirs and "BuildRequires:  rust" not in theirs
    for name, macros in SYSTEMS.items():
        ours = parsed(macros)
        assert "\ncargo build --release --locked --offline\n" in ours, f"{name}: {ours}"
        assert "generate_buildrequires" not in ours and "cargo_prep" not in ours, f"{name} does not know that: {ours}"


def installed_and_removed_without_a_trace(site):
    with root(site) as system:
        before = system.tree()
        said = system.install(site.packages())
        assert said == "jobfence: no job is fenced yet. Next: jobfence setup", said
        called = system.called()
        assert called == ["--no-reload preset jobfence.service", "--quiet is-enabled jobfence.service",
                          "--no-block start jobfence.service"], called
        assert not system.path(LINE).exists()
        output("chroot", system.directory, "/usr/bin/jobfence", "--version")
        system.rpm("-V", "--nodeps", *NAMES)
        system.rpm("-e", *NAMES)
        called = system.called()
        assert called[:2] == ["--no-reload disable jobfence.service", "stop jobfence.service"], called
        same("left behind", system.tree(), before)


def without_systemd(site):
    """As in an image that is being made."""
    with root(site, has_systemd=False) as system:
        assert system.install(site.packages()) == "jobfence: no job is fenced yet. Next: jobfence setup"
        assert system.install(site.packages("new")) == ""
        system.rpm("-e", *NAMES)
        assert not system.installed()


def an_upgrade_leaves_service_and_configuration(site):
    with root(site) as system:
        system.install(site.packages())
        system.called()
        config = system.path("etc/jobfence/jobfence.conf")
        library = system.path(LIBRARY)
        with library.open("rb") as loaded:
            said = system.install(site.packages("new", change="# of the new release\n"))
            assert os.fstat(loaded.fileno()).st_nlink == 0, "the library that running steps have loaded was written over"
        assert said == "", said
        assert config.read_text().endswith("# of the new release\n"), "an unchanged configuration stays old"
        config.write_text("Mode=observe\n")
        said = system.install(site.packages(), "--oldpackage")
        assert "jobfence.conf.rpmnew" in said, said
        assert config.read_text() == "Mode=observe\n"
        called = system.called()
        assert all(line == "daemon-reload" for line in called), f"an upgrade does {called}"
        said = system.rpm("-e", *NAMES)
        assert "jobfence.conf.rpmsave" in said and system.path("etc/jobfence/jobfence.conf.rpmsave").read_text() == "Mode=observe\n"


def the_line_goes_before_what_it_names(site):
    with root(site) as system:
        system.install(site.packages())
        line = system.path(LINE)
        line.parent.mkdir()
        shutil.copy(system.path("usr/share/jobfence/plugstack.conf"), line)
        assert f"\nrequired {LIBRARY}\n" in line.read_text()
        system.install(site.packages("new"))
        assert line.exists(), "an upgrade turns it off"
        system.called()
        system.rpm("-e", "jobfence-slurm")
        assert not line.exists(), "each job would fail"
        assert not system.called(), "jobs of another scheduler need the service"
        system.install(site.packages("new"), "--replacepkgs")
        line.write_text("required /usr/local/lib/slurm/libjobfence.so\n")
        system.rpm("-e", *NAMES)
        assert line.exists(), "the line of another installation is gone"


def what_was_set_up_is_undone(site):
    with root(site) as system:
        system.install(site.packages())
        command = system.path("usr/sbin/jobfence")
        command.write_text('#!/bin/sh\necho "$@" >>/tmp/jobfence\n')
        system.path("var/lib/jobfence/setup").mkdir(parents=True)
        system.install(site.packages("new"))
        assert not system.path("tmp/jobfence").exists(), "an upgrade undoes it"
        command.write_text('#!/bin/sh\necho "$@" >>/tmp/jobfence\n')
        system.rpm("-e", *NAMES)
        called = system.path("tmp/jobfence").read_text().splitlines()
        undone = [f"setup --undo --scheduler {name}" for name in ("openpbs", "gridengine --central", "htcondor")]
        last = ["setup --undo --dry-run", "disable"]
        same("called", called, [*undone, "setup --undo --scheduler slurm", "disable --keep-service", *last])
        of_slurm = called.index("setup --undo --scheduler slurm")
        assert called[of_slurm:][1] == "disable --keep-service" and called[-2:] == last, called


def nothing_goes_from_under_a_line(site):
    """All is there after an attempt, however the lines are named."""
    with root(site) as system:
        system.install(site.packages())
        home = system.path("opt/pbs/mom_priv/hooks")
        home.mkdir(parents=True)
        system.path("etc/pbs.conf").write_text("PBS_EXEC=/opt/exec\nPBS_HOME=/opt/pbs\n")
        for file, text in (
            ("etc/pam.d/sshd", f"session required {LIBRARY}"),
            ("etc/pam.d/sshd", "session required /usr/lib64/slurm/libjobfence.so"),
            ("etc/slurm/plugstack.conf", "optional  /usr/lib64/slurm/libjobfence.so Mode=off"),
            ("etc/slurm/plugstack.conf", "required libjobfence.so"),
            ("opt/pbs/mom_priv/hooks/jobfence.CF", f"Library={LIBRARY}"),
        ):
            system.path(file).write_text(f"# {LIBRARY}\n{text}\n")
            system.called()
            said = system.rpm("-e", *NAMES, fails=True)
            assert f"/{file}:{text}\njobfence: the lines above need what is removed." in said, said
            assert {"jobfence", "libjobfence"} <= system.installed(), f"{text}: only {system.installed()} stay"
            # Of a file that is not its own, another package says it.
            assert ("jobfence-slurm" in system.installed()) == (LIBRARY not in text), f"{text}: {system.installed()} stay"
            assert system.path(LIBRARY).exists() and not system.called(), f"{text}: the service is stopped"
            system.path(file).unlink()
            system.install(site.packages(), "--replacepkgs")
        system.path("etc/pam.d/sshd").write_text(f"#session required {LIBRARY}\nsession required /usr/local/lib/slurm/libjobfence.so\n")
        system.rpm("-e", *NAMES)


def says(system, script):
    """The command does this instead."""
    system.path("usr/sbin/jobfence").write_text(f'#!/bin/sh\necho "$@" >>/tmp/jobfence\n{script}\n')


def a_package_stays_with_those_it_needs(site):
    """rpm goes on with its list after a package that refuses."""
    with root(site) as system:
        for call, said, packages in (
            ("disable", f"jobfence is still on, by another line: required {LIBRARY} (/opt/plugstack:1)", {"jobfence-slurm", "libjobfence"}),
            ("setup*pbs", r"not found\c; systemctl", {"jobfence-pbs", "libjobfence"}), ("setup*gridengine*--central", "kept", {"jobfence-gridengine"}), ("setup*htcondor", "kept", {"jobfence-htcondor"}),
        ):
            system.install(site.packages(), "--replacepkgs")
            system.path("var/lib/jobfence/setup").mkdir(parents=True, exist_ok=True)
            says(system, f'case "$*" in {call}*) printf "%s\\n" "{said}" && exit {1 if call == "disable" else 3} ;; esac')
            assert f"{said}\n" in system.rpm("-e", *NAMES, fails=True)
            same(call, system.installed(), {"jobfence", *packages})
        # Any other status of it keeps nothing, whatever it prints.
        for status in 0, 1, 2:
            system.install(site.packages(), "--replacepkgs")
            says(system, f"""case "$*" in
                disable*) echo "by another line: required /usr/local/lib/slurm/libjobfence.so (/etc/slurm/plugstack.conf:1)"; exit 1 ;;
                *) echo "kept           'qconf' failed: busy; it is undone by: x"; exit {status} ;;
            esac""")
            system.rpm("-e", *NAMES)
        # Under Slurm, 'jobfence disable' has the last word.
        system.install(site.packages(), "--replacepkgs")
        says(system, 'case "$*" in setup*slurm*) echo kept; exit 3 ;; esac')
        assert "kept" in system.rpm("-e", *NAMES)


def what_a_server_keeps_is_asked_for(site):
    """Such as Grid Engine's shepherd_cmd in a database, with the package of the command alone."""
    with root(site) as system:
        for status in 3, 0, 1, 2:
            system.install(site.packages(), names=["jobfence"])
            says(system, f"[ \"$*\" = 'setup --undo --dry-run' ] || exit 0; echo kept; exit {status}")
            said = system.rpm("-e", "jobfence", fails=status == 3)
            assert ("kept\n" in said and "setup --undo --central" in said) == (status == 3), f"{status}: {said}"
            if status == 3:
                unit = system.path("usr/local/lib/systemd/system/jobfence.service")
                unit.parent.mkdir(parents=True)
                unit.touch()
                system.rpm("-e", "jobfence")
                unit.unlink()


def a_file_of_the_site_keeps_no_package(site):
    """In a directory of ours, which stays with it."""
    with root(site) as system:
        system.install(site.packages())
        for directory in "usr/share/jobfence/pbs", "usr/share/jobfence/gridengine", "usr/libexec/jobfence":
            system.path(f"{directory}/site").touch()
        system.rpm("-e", *NAMES)
        assert not system.installed()


def what_a_daemon_reads_is_looked_at(site):
    """And nothing else: a removal must not be refused for a copy, nor wait for a FIFO."""
    cell, host = "usr/share/gridengine/default/common", os.uname().nodename
    with root(site) as system:
        def write(file, text):
            system.path(file).parent.mkdir(parents=True, exist_ok=True)
            system.path(file).write_text(f"{text}\n")

        write("etc/slurm/slurm.conf", removal.SLURM)
        system.install(site.packages(), names=["jobfence"])
        for file, line in removal.read(cell, host):
            write(file, line)
            said = system.rpm("-e", "jobfence", fails=True)
            assert f"/{file}:{line}\n" in said, f"{file} is not named: {said}"
            system.path(file).unlink()
        for file, line in removal.unread(cell, host):
            write(file, line)
        fifos = ("etc/pam.d/fifo", removal.PLUGIN), ("etc/slurm/prolog", removal.COMMAND)
        with removal.fifo(system.path(fifos[0][0]), f"{fifos[0][1]}\n"), removal.fifo(system.path(fifos[1][0]), f"{fifos[1][1]}\n"):
            system.rpm("-e", "jobfence")
        # By its name, the command is that of /usr/local.
        system.install(site.packages(), names=["jobfence"])
        write("etc/nhc/nhc.conf", removal.HEALTH)
        write("usr/local/lib/systemd/system/jobfence.service", "")
        system.rpm("-e", "jobfence")
        # A host may be known without its domain.
        write("bin/uname", f"#!/bin/sh\necho {host}.example.org")
        system.install(site.packages(), names=["jobfence"])
        write(f"{cell}/local_conf/{host}", f"shepherd_cmd {removal.COMMAND}")
        system.rpm("-e", "jobfence", fails=True)


def the_link_is_looked_for_first(site):
    with root(site) as system:
        system.install(site.packages())
        says(system, "")
        system.path("var/lib/jobfence/setup").mkdir(parents=True)
        system.path("etc/pam.d/sshd").write_text("session required /usr/lib64/slurm/libjobfence.so\n")
        system.rpm("-e", "jobfence-slurm", fails=True)
        assert not system.path("tmp/jobfence").exists(), system.path("tmp/jobfence").read_text()


def what_starts_the_command_stays(site):
    """Jobs would fail, or the node would drain."""
    with root(site) as system:
        system.path("etc/slurm/slurm.conf").write_text('Epilog="/opt/site/*.sh"\n')
        for package, file, line in (
            ("jobfence", "etc/slurm/prolog", "[ $# = 0 ] && exec /usr/sbin/jobfence prolog"),
            ("jobfence", "opt/site/epilog.sh", "/usr/bin/jobfence epilog"),
            ("jobfence", "etc/condor/config.d/90-jobfence", "STARTER = /usr/sbin/jobfence"),
            ("jobfence-htcondor", "etc/condor/condor_config.local", "DOCKER=/usr/libexec/jobfence/docker"),
            ("jobfence-gridengine", "usr/share/gridengine/default/common/configuration", "jsv_url /usr/share/jobfence/gridengine/jsv"),
        ):
            system.install(site.packages(), "--replacepkgs")
            path = system.path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line + "\n")
            assert f"/{file}:{line}\n" in system.rpm("-e", *NAMES, fails=True)
            assert {"jobfence", package} <= system.installed(), f"{line}: only {system.installed()} stay"
            path.write_text(f"# {line}\n{line.replace('/usr/', '/usr/local/')}\n")
        system.rpm("-e", *system.installed())


def another_installation_goes_on(site):
    """'make install' has put one into /usr/local."""
    with root(site) as system:
        unit = system.path("usr/local/lib/systemd/system/jobfence.service")
        unit.parent.mkdir(parents=True)
        unit.touch()
        setup = system.path("var/lib/jobfence/setup")
        setup.mkdir(parents=True)
        (setup / "1.after").write_text("required /usr/local/lib/slurm/libjobfence.so\n")
        system.install(site.packages())
        system.called()
        says(system, "")
        system.rpm("-e", *NAMES)
        assert not [line for line in system.called() if line != "daemon-reload"], "its service is stopped"
        same("called", system.path("tmp/jobfence").read_text().splitlines(), ["disable --keep-service"])


def only_its_own_files_are_written_over(site):
    """A site collects releases in such a directory, and may call createrepo_c there."""
    packages = site.packages(directory="collected")
    made, hidden = packages.files(), packages.directory / ".site"
    hidden.touch()
    for name in "file", "jobfence-slurm-0.0.9-1.x86_64.rpm", "site-jobfence-0.1.0-1.x86_64.rpm", "build":
        other = packages.directory / name
        other.touch()
        environment = {**os.environ, "JOBFENCE_OUT": str(packages.directory)}
        done = subprocess.run([TOP / "packaging/rpm/build", site.archive()], env=environment, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and other.exists() and f"{other} " in done.stderr and "JOBFENCE_OUT" in done.stderr, done.stderr
        assert all(file.exists() for file in made)
        other.unlink()
    # Once more, over a build that has failed. What is older than the release is not of this build.
    (packages.directory / "build/SOURCES").mkdir(parents=True)
    shutil.copy(site.archive(), packages.directory / "build/SOURCES")
    stale = packages.directory / packages.file("jobfence").name.replace("-1.", "-0.")
    stale.touch()
    del site.built["", "", "collected"]
    site.packages(directory="collected")
    assert hidden.exists() and not stale.exists()
    assert len(packages.files()) == len(NAMES)


def where_sbin_is_bin(site):
    """The command must not become a link to itself. A package that was made for two directories is refused."""
    with root(site, is_merged=True) as system:
        assert "conflicts" in system.install(site.packages(), fails=True)
        assert not system.installed() and not system.path("usr/bin/jobfence").exists()
        system.install(site.packages("fedora", macros=SYSTEMS["fedora"]))
        for place in "bin", "sbin":
            output("chroot", system.directory, f"/usr/{place}/jobfence", "--version")


CASES = (
    the_version_is_cargos, the_licence_is_that_of_all_crates, each_has_its_files, each_needs_little, rpmlint_is_content, the_same_bytes_again,
    each_system_has_its_places_and_macros, with_crates_of_a_distribution, installed_and_removed_without_a_trace, without_systemd,
    an_upgrade_leaves_service_and_configuration, the_line_goes_before_what_it_names, what_was_set_up_is_undone,
    nothing_goes_from_under_a_line, a_package_stays_with_those_it_needs, what_a_server_keeps_is_asked_for,
    a_file_of_the_site_keeps_no_package, the_link_is_looked_for_first, what_starts_the_command_stays, what_a_daemon_reads_is_looked_at,
    another_installation_goes_on, only_its_own_files_are_written_over, where_sbin_is_bin,
)

# What 'make check' has: what is in the packages, and that they come and go. A slice has the rest.
SHORT = (
    the_version_is_cargos, the_licence_is_that_of_all_crates, each_has_its_files, each_needs_little, rpmlint_is_content,
    installed_and_removed_without_a_trace, the_line_goes_before_what_it_names, what_starts_the_command_stays, where_sbin_is_bin,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--so", type=Path, required=True)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--short", action="store_true", help="the short cases alone")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        print(f"rpm: needs {', '.join(missing)}")
        return LACKS
    failed = 0
    cases = [case for case in (SHORT if options.short else CASES) if not options.names or any(name in case.__name__ for name in options.names)]
    with tempfile.TemporaryDirectory(prefix="jobfence-rpm-") as scratch:
        site = Site(Path(scratch), options.so.resolve(), options.bin.resolve())
        for case in cases:
            start = time.monotonic()
            try:
                case(site)
                print(f"ok   {case.__name__}  {time.monotonic() - start:.1f} s", flush=True)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                failed += 1
                print(f"FAIL {case.__name__}  {time.monotonic() - start:.1f} s\n     {str(error)[:2000]}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
