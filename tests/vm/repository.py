# SPDX-License-Identifier: GPL-2.0-or-later
"""What 'make deb' makes of files that are built, and the same packages once more with a higher version."""

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PACKAGES = "jobfence", "libjobfence", "jobfence-slurm", "jobfence-pbs", "jobfence-gridengine", "jobfence-htcondor"
MORE = "+newer"


def pack(archive, files):
    """Packs up files, by the names that they get. What is gone meanwhile, such as another test's, is left out."""
    with tarfile.open(archive, "w:xz", preset=0) as tar:
        for name, file in files.items():
            try:
                member = tar.gettarinfo(file, f"jobfence/{name}")
                text = file.read_bytes() if member.isreg() else b""
            except FileNotFoundError:
                continue
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))


def make(place, so, program):
    """Repositories of apt below this place: 'made', and 'newer' with a higher version. Returns the two versions."""
    made, newer = place / "made", place / "newer"
    newer.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory, "archive.tar.xz")
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP, stdout=subprocess.PIPE, text=True,
                                check=True)  # fmt: skip
        # Of the crates, of which nothing is packed up, one file, of a name that debhelper does not like.
        crate = Path(directory, "Cargo.toml.orig")
        crate.write_text("[package]\n")
        files = {name: TOP / name for name in listed.stdout.split("\0")[:-1]}
        pack(archive, files | {f"vendor/crate-1.0.0/{crate.name}": crate})
        environment = {**os.environ, "JOBFENCE_OUT": str(made), "ARCHIVE": str(archive), "SO": str(so), "BIN": str(program)}
        subprocess.run([TOP / "packaging/deb"], env=environment, stdout=subprocess.DEVNULL, check=True)
    version = next(made.glob("libjobfence_*.deb")).name.split("_")[1]
    for deb in made.glob("*.deb"):
        with tempfile.TemporaryDirectory() as unpacked:
            subprocess.run(["dpkg-deb", "--raw-extract", deb, unpacked], check=True)
            control = Path(unpacked, "DEBIAN/control")
            control.write_text(control.read_text().replace(version, version + MORE))
            conffile = Path(unpacked, "etc/jobfence/jobfence.conf")
            if conffile.exists():
                conffile.write_text(conffile.read_text() + "# of the newer release\n")
            subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", unpacked, newer / deb.name.replace(version, version + MORE)],
                           stdout=subprocess.DEVNULL, check=True)  # fmt: skip
    listed = subprocess.run(["dpkg-scanpackages", "."], cwd=newer, capture_output=True, text=True, check=True)
    (newer / "Packages").write_text(listed.stdout)
    return version, version + MORE


def apt(place):
    """apt-get with the repositories at this place, and no others. A conffile that was changed stays: nobody can answer dpkg."""
    return ("apt-get -qq -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 --yes --allow-downgrades "
            f"--no-install-recommends -o Dpkg::Options::=--force-confold -o Dir::Etc::sourcelist={place}/list")  # fmt: skip


def named(version, packages=PACKAGES):
    return " ".join(f"{package}={version}" for package in packages)


def sources(place):
    return "".join(f"deb [trusted=yes] file:{place}/{name} ./\n" for name in ("made", "newer"))
