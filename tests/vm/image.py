# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds what a cell needs from Debian's archive: guest images, without a loop device or a mount, and the emulator."""

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import cache
from cells import IMAGES, Image

HERE = Path(__file__).resolve().parent
GUEST = HERE / "guest"

IMAGE_SIZE = "3500M"
SWAP_BYTES = 256 << 20

# Nothing a test reads; leaving them out halves the time dpkg and mkfs need. MPICH depends on GPU libraries and a
# compiler for them, which are loaded only where there is a GPU: half of the tree otherwise.
UNWANTED = (
    "/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*",
    "/usr/lib/*/libLLVM*", "/usr/lib/llvm-*", "/usr/lib/*/libamd*", "/usr/lib/*/libz3*", "/usr/lib/*/ucx/*rocm*",
)  # fmt: skip

# Older emulators (7.2 is Debian 12's) die of the kernels of later releases. Taken from a release of our choice and not
# from the machine, so that a cell is the same everywhere; trixie's qemu is 10.
EMULATOR = Image("trixie", ("qemu-system-x86",))

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "mkswap": "util-linux",
    "unshare": "util-linux",
}


class Skip(Exception):
    """This machine cannot run the tests: exit status 77."""


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            raise Skip(f"{tool} is missing: install the Debian package {TOOLS[tool]}")


def die_with_parent():
    """Run in the child: covers the one end that no handler of ours sees, a SIGKILL."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def child(argv, **options):
    """A process in a group of its own, which is gone when the block is left, however it is left."""
    process = subprocess.Popen(argv, start_new_session=True, preexec_fn=die_with_parent, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def call(*argv):
    with child(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr) as process:
        if process.wait() != 0:
            sys.exit(f"vm: failed with status {process.returncode}: {shlex.join(argv)}")


def pack(tree, archive, plain_modes=False):
    """Adds `tree` to the open tar `archive`, owned by root; plain_modes hides the umask of the checkout."""

    def owned_by_root(member):
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        if plain_modes:
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    for path in sorted(tree.iterdir()):
        archive.add(path, arcname=path.name, filter=owned_by_root)


def apt_entries():
    """(URIs, suites, components) of every binary source the machine's own apt knows."""
    directory = Path("/etc/apt/sources.list.d")
    for path in sorted(directory.glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            lines = "\n".join(line for line in stanza.splitlines() if not line.startswith("#"))
            fields = {
                key.lower(): value.split() for key, value in re.findall(r"^(\S+):((?:.*)(?:\n[ \t].*)*)", lines, re.M)
            }
            if "deb" in fields.get("types", ()) and fields.get("enabled") != ["no"]:
                yield fields.get("uris", []), fields.get("suites", []), fields.get("components", [])
    for path in [Path("/etc/apt/sources.list"), *sorted(directory.glob("*.list"))]:
        if path.exists():
            for uri, suite, components in re.findall(
                r"^[ \t]*deb[ \t]+(?:\[[^]]*\][ \t]+)?(\S+)[ \t]+(\S+)[ \t]+([^#\n]*)", path.read_text(), re.M
            ):
                yield [uri], [suite], components.split()


def mirror():
    """The Debian mirror of this machine. It serves every release, so it need not be of the image's."""
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().replace('"', "").splitlines() if "=" in line
    )
    names = {release.get("VERSION_CODENAME"), "stable", "testing", "unstable", "sid"}
    for uris, suites, components in apt_entries():
        # Others name their suites after Debian's too; only Debian's own archive is called debian.
        debian = [uri for uri in uris if re.search(r"/debian\b(?!-)", uri)]
        if debian and names & set(suites) and "main" in components:
            return debian[0]
    raise Skip("no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d to build the guest from")


def key(image, files=()):
    """Names what is made from `image` and `files` after everything it is made from, this program included."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(image), sort_keys=True).encode())
    digest.update(Path(__file__).read_bytes())
    for path in sorted(files):
        executable = os.access(path, os.X_OK)
        content = path.read_bytes()
        digest.update(f"{path.relative_to(GUEST)} {executable} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def debootstrap(image, tree, *options):
    call(
        # mmdebstrap forks; a namespace is the one thing that ends all of it when this program is killed.
        "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
        "mmdebstrap", "--quiet", "--mode=root",
        "--include=" + ",".join(image.packages),
        *(f"--dpkgopt=path-exclude={path}" for path in UNWANTED),
        *(f"--aptopt={option}" for option in image.apt_options),
        *options,
        image.suite, str(tree), mirror(),
    )  # fmt: skip


def build_guest(image, name, new):
    tree = new / "tree"
    answers = "".join(line + "\n" for line in image.answers)
    with tarfile.open(new / "guest.tar", "w") as archive:
        pack(GUEST, archive, plain_modes=True)
    debootstrap(
        image, tree, "--variant=minbase",
        # Before the kernel is installed, so that its initrd is made once and small.
        f"--essential-hook=tar-in {shlex.quote(str(new / 'guest.tar'))} /",
        *([f"--essential-hook=printf %s {shlex.quote(answers)} | chroot \"$1\" debconf-set-selections"] if answers else []),
        '--customize-hook=chroot "$1" /opt/guest/setup',
    )  # fmt: skip
    # mmdebstrap leaves the host's name and an empty machine-id. With the latter the first boot, and every boot of a
    # snapshot is the first, would enable all services that Debian enables by default.
    (tree / "etc/hostname").write_text("node1\n")
    (tree / "etc/machine-id").write_text(name + "\n")
    for file, kept in ("vmlinuz", "kernel"), ("initrd.img", "initrd"):
        (found,) = (tree / "boot").glob(file + "-*")
        shutil.copy(found, new / kept)
    # The journal would double the writes, for a file system that is thrown away.
    call("mkfs.ext4", "-q", "-O", "^has_journal", "-L", "guest", "-d", str(tree), str(new / "root"), IMAGE_SIZE)
    # Swap is a drive of its own: mkfs -d makes holes of zeroes, and swapon refuses a file with holes.
    with open(new / "swap", "wb") as swap:
        swap.truncate(SWAP_BYTES)
    call("mkswap", "--quiet", str(new / "swap"))
    cache.remove(tree)
    cache.remove(new / "guest.tar")


def held(name):
    """The directory of the image `name` (kernel, initrd, root, swap) or of the emulator, while a block runs; built if its inputs changed."""
    if name == "qemu":
        image, wanted = EMULATOR, key(EMULATOR)
    else:
        image = IMAGES[name]
        wanted = key(image, (path for path in GUEST.rglob("*") if path.is_file()))

    def build(new):
        need("mmdebstrap", "mkfs.ext4", "mkswap", "unshare")
        if os.geteuid() != 0:
            raise Skip(f"building {name} needs root")
        if name == "qemu":
            debootstrap(EMULATOR, new / "tree", "--variant=extract")
        else:
            build_guest(image, wanted, new)

    return cache.held(name, wanted, build)


def program(emulator):
    """The first arguments of a command line that runs qemu from a Debian tree, without chroot: its loader and libraries."""
    tree = emulator / "tree/usr"
    libraries = tree / "lib/x86_64-linux-gnu"
    return [
        str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries),
        str(tree / "bin/qemu-system-x86_64"), "-L", str(tree / "share/qemu"), "-L", str(tree / "share/seabios"),
    ]  # fmt: skip
