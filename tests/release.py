#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a release consists of: release.py bill | archive | built

bill: the list of crates, and their licences, against what the compiler has built into target/release.
archive: two archives of one commit, in two directories, with checksums and a signature; known defects of crates.
built: two builds of an archive, in two directories and two releases of Debian; the second has no network and no libclang.
"""

import argparse
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "tests/vm")]
from checks import plain  # noqa: E402
from checks.plain import Skip  # noqa: E402

FILES = "libjobfence.so", "jobfence"


class Untrue(AssertionError):
    pass


def expect(is_true, *words):
    if not is_true:
        raise Untrue(" ".join(map(str, words)))


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    expect(done.returncode == 0, argv, "ends with", done.returncode, done.stdout[-2000:])
    return done.stdout


def script(name):
    """A program of packaging/, which has no suffix, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(TOP / "packaging" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def bill_of(directory):
    run(TOP / "packaging/sbom", directory)
    (path,) = Path(directory).glob("jobfence-*.cdx.json")
    return json.loads(path.read_text()), next(Path(directory).glob("jobfence-*.licences.txt")).read_text()


# ----------------------------------------------------------------------------------------
# The bill


def of_compiler():
    """Name and version of each crate that cargo has compiled for the files, not for what runs meanwhile, and not in a test."""
    words = "build", "--release", "--locked", "--message-format=json-render-diagnostics"
    said = subprocess.run(("cargo", *words), cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout
    for row in map(json.loads, said.splitlines()):
        # What runs meanwhile is not optimised, and one crate of the command is for speed.
        is_in_a_file = row["reason"] == "compiler-artifact" and row["profile"]["opt_level"] in ("z", "3")
        if is_in_a_file and row["target"]["kind"][0] in ("lib", "rlib", "cdylib", "bin"):
            name, version = re.search(r"(?:[/#])([\w-]+)[#@]([\d.]+\S*)$", row["package_id"]).groups()
            manifest = tomllib.loads(Path(row["manifest_path"]).read_text())
            yield manifest["package"]["name"], version


def bill_has_each_crate(top):
    bom, texts = bill_of(top)
    rows = {(row["name"], row["version"]): row for row in bom["components"]}
    built = set(of_compiler())
    expect(len(built) > 30, "cargo says that it has compiled", built)
    expect(not built - set(rows), "in the files, and not in the bill:", built - set(rows))
    # So far, no crate is for one processor alone.
    expect(not set(rows) - built, "in the bill, and not compiled:", set(rows) - built)
    lock = {(row["name"], row["version"]): row.get("checksum") for row in tomllib.loads((TOP / "Cargo.lock").read_text())["package"]}
    for key, row in rows.items():
        expect([one["content"] for one in row.get("hashes", ())] == [one for one in [lock[key]] if one], key, "has another checksum")
        expect(f"{key[0]} {key[1]} " in texts, key, "is not in the licences")
    return f"{len(rows)} crates"


def bill_tells_the_files_apart(top):
    """By the names of sources that each file has for its panics: not of each crate, but of no other."""
    bom, _ = bill_of(top)
    of = {f"{row['name']}-{row['version']}": [one["value"] for one in row["properties"]] for row in bom["components"]}
    for file in FILES:
        content = (TOP / "target/release" / file).read_bytes()
        seen = {name.decode() for name in re.findall(rb"/(?:crates|registry/src/[^/\0]+)/([\w.+-]+)/src/", content)}
        expect(len(seen) > 2, file, "has the names of", seen)
        for name in seen:
            expect(file in of.get(name, ()), name, "is in", file, "and by the bill in", of.get(name))
    alone = [name for name, files in of.items() if files == ["jobfence"]]
    expect(any(name.startswith("clap-") for name in alone), "clap is in the command alone, and not", alone)


def bill_is_whole(top):
    """What CycloneDX asks for: a reference for each component, once, and none that leads nowhere."""
    bom, _ = bill_of(top)
    expect((bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5"), bom["specVersion"])
    main = bom["metadata"]["component"]
    known = [main["bom-ref"], *(row["bom-ref"] for row in main["components"]), *(row["bom-ref"] for row in bom["components"])]
    expect(len(known) == len(set(known)), "a reference stands twice in", known)
    depends = {row["ref"]: row["dependsOn"] for row in bom["dependencies"]}
    expect(set(depends) == set(known), "differ:", set(depends) ^ set(known))
    reached, rest = set(), [main["bom-ref"]]
    while rest:
        reached.add(one := rest.pop())
        rest += [more for more in depends[one] if more not in reached]
    expect(reached == set(known), "nothing leads to", set(known) - reached)


def licence_that_is_not_allowed(_):
    sbom = script("sbom")
    for expression, is_allowed in {
        "MIT": True, "MIT OR Apache-2.0": True, "Apache-2.0/MIT": True, "Apache-2.0": False, "MIT AND Unicode-3.0": False,
        "(MIT OR Apache-2.0) AND ISC": True, "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT": True,
        "Apache-2.0 WITH LLVM-exception": False, "AGPL-3.0-only": False,
    }.items():  # fmt: skip
        expect(sbom.is_allowed(expression, ["MIT", "ISC"]) == is_allowed, expression)
    crate = {"name": "clang-sys", "version": "1", "license": "Apache-2.0", "publish": None}
    expect(sbom.refused([crate]) == [], "an exception of deny.toml does not count")
    others = [crate | {"name": "other"}, crate | {"license": None}, crate | {"license": "GPL-3.0-only"}]
    expect(len(sbom.refused(others)) == 3, sbom.refused(others))
    words = [word for target in sbom.TARGETS for word in ("--filter-platform", target)]
    metadata = json.loads(run("cargo", "metadata", "--locked", "--offline", "--format-version", "1", *words, cwd=TOP))
    # Cargo.lock also has crates of other targets, and of features that nothing here switches on.
    used = run("cargo", "tree", "--locked", "--offline", "--workspace", "--edges", "all", "--prefix", "none", "--format", "{p}", cwd=TOP)
    used = {line.split()[0] for line in used.splitlines() if line.strip()}
    expect(len(used) > 60, "few crates:", used)
    wrong = sbom.refused([row for row in metadata["packages"] if row["name"] in used])
    expect(not wrong, "deny.toml allows none of the licences of", wrong)


# ----------------------------------------------------------------------------------------
# The archive


def archive_in(clone, **environment):
    """What 'make dist' writes, of this tree's last commit, in a clone."""
    run("git", "clone", "--quiet", "--shared", TOP, clone)
    run("make", "dist", *(f"{name}={value}" for name, value in environment.items() if name == "SIGN"), cwd=clone,
        env={**os.environ, **environment})
    return clone / "target/dist"


def archive_is_the_same_again(top):
    try:
        run("minisign", "-v")
        run("minisign", "-G", "-W", "-p", top / "public", "-s", top / "secret")
    except FileNotFoundError:
        raise Skip("minisign is missing") from None
    one = archive_in(top / "one")
    before = os.umask(0o077)
    try:
        other = archive_in(top / "a longer name", TZ="Asia/Kathmandu", LC_ALL="C.UTF-8", SIGN=str(top / "secret"))
    finally:
        os.umask(before)
    sums = [(place / "SHA256SUMS").read_text() for place in (one, other)]
    expect(sums[0] == sums[1], "differ:\n" + "".join(sums))
    expect(len(sums[0].splitlines()) == 3, sums[0])
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=other)
    said = run("minisign", "-V", "-p", top / "public", "-m", other / "SHA256SUMS")
    expect("Trusted comment: jobfence-" in said, said)
    names = run("tar", "-tf", next(one.glob("*.tar.xz"))).splitlines()
    expect(all(name.startswith("jobfence-") for name in names), "a file of the archive is in no directory of its own")
    expect(any("/vendor/libc-" in name for name in names), "the archive has no crates")
    return f"{next(one.glob('*.tar.xz')).stat().st_size >> 10} KiB"


def known_defects(_):
    """cargo-deny is no Debian package, and its database is elsewhere."""
    if not shutil.which("cargo-deny"):
        raise Skip("cargo-deny is missing")
    if subprocess.run(("cargo", "deny", "fetch"), cwd=TOP, capture_output=True, check=False).returncode != 0:
        raise Skip("the database of defects cannot be had")
    run("cargo", "deny", "--locked", "check", cwd=TOP)


# ----------------------------------------------------------------------------------------
# What is built


def toolchain():
    return Path(run("rustc", "--print", "sysroot", cwd=TOP).strip())


def sums_of(directory):
    return {file: hashlib.sha256((directory / "release" / file).read_bytes()).hexdigest() for file in FILES}


def built_alike(top):
    import place
    import tree

    if os.geteuid() != 0:
        raise Skip("a Debian tree needs root")
    if "-gnu" not in (where := toolchain()).name and not (where / "bin/rustc").exists():
        raise Skip("the compiler is no toolchain that can be taken along")
    (archive,) = archive_in(top / "clone").glob("*.tar.xz")
    for name in "here", "there":
        (top / name).mkdir()
        run("tar", "-C", top / name, "-xf", archive)
    (one,), (other,) = (top / "here").iterdir(), (top / "there").iterdir()
    moved = one.rename(top / "here" / "a place with blanks")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO_", "RUST"))}
    began = time.monotonic()
    run("unshare", "--net", where / "bin/cargo", "build", "--release", "--locked", "--target-dir", top / "target of one", cwd=moved,
        env={**plain, "CARGO_HOME": str(top / "home"), "PATH": f"{where}/bin:{plain['PATH']}"})
    with tree.used("debian13-compiler") as held:
        binds = (where, "opt/rust"), (other, "src/jobfence"), (top, "out")
        words = "cd /src/jobfence && ! ls /usr/lib/llvm* 2>/dev/null && cargo build --release --locked >/out/log 2>&1"
        environment = {"PATH": "/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "CARGO_TARGET_DIR": "/out/other"}
        status = place.run(held / "tree", binds, ("sh", "-c", words), f"jobfence-release-{os.getpid()}", environment)
    expect(status == 0, "Debian 13:", (top / "log").read_text()[-2000:] if (top / "log").exists() else status)
    sums = sums_of(top / "target of one"), sums_of(top / "other")
    if sums[0] != sums[1] and (kept := os.environ.get("JOBFENCE_KEEP")):
        for name in "target of one", "other":
            shutil.copytree(top / name / "release", Path(kept) / name, ignore=lambda _, names: set(names) - set(FILES))
    expect(sums[0] == sums[1], "differ:", sums)
    content = b"".join((top / "other/release" / file).read_bytes() for file in FILES)
    # "/root" alone is one of the directories that PrivateTmp= refuses.
    for word in str(top), "/src/jobfence", "/out/", "/root/", "GCC: ":
        expect(word.encode() not in content, "a file has", word)
    return f"{time.monotonic() - began:.0f} s"


CASES = {
    "bill": (bill_has_each_crate, bill_tells_the_files_apart, bill_is_whole, licence_that_is_not_allowed),
    "archive": (archive_is_the_same_again, known_defects),
    "built": (built_alike,),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=CASES, nargs="+")
    return plain.run([case for what in parser.parse_args().what for case in CASES[what]], "jobfence-release.")


if __name__ == "__main__":
    sys.exit(main())
