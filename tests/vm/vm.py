#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a command in a virtual machine with systemd, a cgroup layout of choice and Slurm. See README.md."""

import argparse
import contextlib
import fcntl
import os
import select
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import cache
import image
import state
import ticks
from cells import CELLS, CHECKED, IMAGES

TIMED_OUT = 124
NEVER_REPORTED = 125
SKIPPED = 77

RESULTS_BYTES = 256 << 20
SCRATCH_BYTES = 256 << 20
CONSOLE_LINES = 60
# The first line of a command comes after a minute. More than this is a hang, however busy the host is.
BOOT_SECONDS = 900

# Errors still show; the rest only costs time on an emulated processor and console.
CMDLINE = (
    "console=ttyS0 quiet loglevel=4 systemd.show_status=error panic=-1 root=LABEL=guest rw fsck.mode=skip"
    " mitigations=off"
    # A clock that is read without asking the emulator. The kernel distrusts it, since it cannot see that it is the same on each processor.
    " tsc=reliable"
    # On a busy host, the emulated timer can be so late that the kernel takes it for broken, and stops.
    " no_timer_check"
)

# As much of a processor as the emulator has, without what slows it down: it takes each byte of "fast" string instructions
# by itself, by which the kernel clears every page, and walks five levels of tables where four are enough.
PROCESSOR = "max,erms=off,fsrm=off,la57=off"


# A drive whose limits can be tested: nothing else uses it, so what it does is what a job has asked of it.
MOUNT_SCRATCH = """\
mkdir -p /scratch
mount -o noatime /dev/disk/by-id/virtio-scratch /scratch || exit 125
chmod 1777 /scratch
"""


class Ended(Exception):
    """A signal asked us to stop."""


def on_signal(number, _frame):
    raise Ended(number)


def write_payload(path, payload, cell, command):
    """The tar which the guest unpacks at /: the payload, and what this run asks for."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory, tarfile.open(path, "w") as archive:
        image.pack(payload, archive)
        run = Path(directory) / "opt/guest/run"
        run.mkdir(parents=True)
        (run / "now").write_text(f"{int(time.time())}\n")
        (run / "command").write_text(f"{MOUNT_SCRATCH}exec {shlex.join(command)}\n")
        for name, settings in ("slurm.conf", cell.slurm), ("cgroup.conf", cell.cgroup):
            (run / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        image.pack(Path(directory), archive, plain_modes=True)
    if path.stat().st_size > state.PAYLOAD_BYTES:
        sys.exit(f"vm: the payload has more than {state.PAYLOAD_BYTES} bytes")
    empty(path, state.PAYLOAD_BYTES)


def make_scratch(path):
    """An empty file system, as large as the drive and of holes; the guests of some releases have no mkfs. Without a journal
    the drive sees what jobs write and little else."""
    image.need("mkfs.ext4")
    with open(path, "wb") as drive:
        drive.truncate(SCRATCH_BYTES)
    image.call("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-L", "scratch", str(path))


# A clock that counts the guest's instructions, 4 ns each, one processor at a time: it does not see what else the host does.
COUNTED = ("tcg,thread=single", "-icount", "shift=2,sleep=off")
COUNTED_KHZ = 1_000_000


def qemu(program, files, work, cell, with_results, khz, *, reboots=False, counted=False, saved=None, saves=False):
    """The command line. `saved`: goes on from this state; `saves`: becomes one, so nothing is kept for this run alone."""
    drives = [
        ("root", (saved or files) / "root", "readonly=off" if saves else "snapshot=on"),
        ("swap", (saved or files) / "swap", "readonly=off" if saves else "snapshot=on"),
        ("payload", work / "payload", "readonly=on"),
        ("scratch", work / "scratch", "readonly=off"),
    ]
    if with_results:
        drives.append(("results", work / "results", "readonly=off"))
    clock = f" tsc_early_khz={khz}" if khz else ""
    argv = [
        *program, "-no-user-config", "-nodefaults", "-display", "none",
        # What was written to its drives is there after a reset, too; a panic ends it in time only without one.
        "-action", f"reboot={'reset' if reboots else 'shutdown'}",
        "-accel", *(COUNTED if counted else ("tcg,thread=multi",)), "-cpu", PROCESSOR, "-m", "2048", "-smp", "2",
        "-kernel", str(files / "kernel"), "-initrd", str(files / "initrd"),
        "-append", f"{CMDLINE}{clock} {cell.cmdline}".strip(),
        # Three ports: the console, the command's output, its exit status. Getty and the kernel fight over the first.
        "-serial", f"file:{work / 'console'}", "-serial", "stdio", "-serial", f"file:{work / 'status'}",
    ]  # fmt: skip
    for name, path, option in drives:
        # The guest finds its drives by serial number: their letters depend on the order they are probed in.
        # A comma ends a value for qemu unless it is doubled.
        file = str(path).replace(",", ",,")
        kind = "qcow2" if saved and name in ("root", "swap") else "raw"
        # What becomes the lower layer of a state is only read, and others read it, too.
        lock = "file.locking=off,file.filename" if option == "readonly=off" and saves else "file"
        argv += ["-drive", f"if=none,id={name},format={kind},cache=unsafe,{option},{lock}={file}"]
        argv += ["-device", f"virtio-blk-pci,drive={name},serial={name}"]
    return argv + (["-incoming", f"file:{saved / 'memory'}"] if saved else [])


def empty(path, size):
    with open(path, "ab") as drive:
        drive.truncate(size)


@contextlib.contextmanager
def saved_state(cell, files, emulator):
    """The directory of a state from which this cell can go on."""
    def command_line(program, files, work, khz):
        return qemu(program, files, work, cell, True, khz, saves=True)

    def build(new):
        with run_directory() as work:
            for name, size in ("payload", state.PAYLOAD_BYTES), ("scratch", SCRATCH_BYTES), ("results", RESULTS_BYTES):
                empty(work / name, size)
            khz = ticks.khz()
            if not khz:
                raise state.Failed("nobody knows how fast this processor counts")
            (new / "khz").write_text(str(khz))
            state.make(new, work, command_line(image.program(emulator), files, work, khz), BOOT_SECONDS)

    key = state.key(files, emulator, command_line(["qemu"], Path("files"), Path("work"), 0))
    with state.held(cell, key, build) as directory:
        yield directory


ENDED, LATE, SILENT = "ended", "late", "silent"


def stream(process, seconds):
    """Copies the guest's output to ours until qemu ends: how that came, and whether the guest has said anything."""
    start, has_spoken = time.monotonic(), False
    while True:
        patience = seconds if has_spoken else min(seconds, BOOT_SECONDS)
        ready, _, _ = select.select([process.stdout], [], [], max(0, start + patience - time.monotonic()))
        if not ready:
            return LATE if patience == seconds else SILENT, has_spoken
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            return ENDED, has_spoken
        has_spoken = True
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def extract(archive, target):
    """Unpacks regular files only, below `target` only, and no more than the drive could hold."""
    room = RESULTS_BYTES
    while member := archive.next():
        path = PurePosixPath(member.name)
        room -= member.size
        if not member.isreg() or member.issparse() or path.is_absolute() or ".." in path.parts or room < 0:
            continue
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(archive.extractfile(member).read())


def take_results(work, target):
    target.mkdir(parents=True, exist_ok=True)
    if (work / "console").exists():
        (target / "console.log").write_bytes((work / "console").read_bytes())
    try:
        with tarfile.open(work / "results", "r:") as archive:
            extract(archive, target)
    except tarfile.TarError as error:
        print(f"vm: the guest handed back no results: {error}", file=sys.stderr)


def show_console(console):
    lines = console.read_text(errors="replace").splitlines() if console.exists() else []
    print(f"vm: the last lines of the guest's console ({len(lines)} in all):", file=sys.stderr)
    for line in lines[-CONSOLE_LINES:]:
        print(f"  {line}", file=sys.stderr)


def boot(argv, work, seconds):
    """Runs qemu to its end, as `stream` says. If this process is ended, the guest's console says how far it was."""
    # qemu keeps the changes of a snapshot in TMPDIR.
    environment = {**os.environ, "TMPDIR": str(work)}
    with image.child(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment) as process:
        try:
            return stream(process, seconds)
        except Ended:
            show_console(work / "console")
            raise


@contextlib.contextmanager
def run_directory():
    """A directory of this run. Those of runs that were killed are removed."""
    runs = cache.HERE
    runs.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with locked(runs, fcntl.LOCK_EX):
            for other in runs.glob("run-*"):
                with contextlib.suppress(BlockingIOError), locked(other, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    cache.remove(other)
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=runs, prefix="run-")))
            stack.enter_context(locked(work, fcntl.LOCK_SH))
        yield work


@contextlib.contextmanager
def locked(directory, how):
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


def reported(work):
    """The exit status that the guest has reported, or None."""
    status = (work / "status").read_text(errors="replace").strip() if (work / "status").exists() else ""
    return int(status) if status.isdecimal() else None


def attempt(arguments, boots):
    """Boots the cell, or goes on from a saved state of it, and runs the command. None: nothing was said, so what was to be tested
    has not begun."""
    cell, name = CELLS[arguments.cell], arguments.cell
    with contextlib.ExitStack() as stack:
        files, emulator = (stack.enter_context(image.held(each)) for each in (cell.image, "qemu"))
        work = stack.enter_context(run_directory())
        used = [files, emulator]
        saved = None
        # Its drives are those of every run that has results.
        if not boots and arguments.results and not arguments.counted:
            try:
                saved = stack.enter_context(saved_state(cell, files, emulator))
                used = [saved]
            except state.Failed as reason:
                print(f"vm: {name}: no saved state: {reason}", file=sys.stderr)
        write_payload(work / "payload", arguments.payload, cell, arguments.command)
        make_scratch(work / "scratch")
        if arguments.results:
            empty(work / "results", RESULTS_BYTES)
        argv = qemu(image.program(emulator), files, work, cell, bool(arguments.results), COUNTED_KHZ if arguments.counted else ticks.khz(),
                    reboots=arguments.reboots, counted=arguments.counted, saved=saved)  # fmt: skip
        outcome, has_spoken = boot(argv, work, arguments.timeout)
        if arguments.results:
            take_results(work, arguments.results)
        status = reported(work)
        if outcome == ENDED and status is not None:
            return status
        said = {
            LATE: f"not finished after {arguments.timeout:g} s",
            SILENT: f"the guest has said nothing for {BOOT_SECONDS} s",
            ENDED: "the guest ended without reporting an exit status",
        }
        print(f"vm: {name}: {said[outcome]}", file=sys.stderr)
        show_console(work / "console")
        if not has_spoken:
            # As where qemu cannot read a file, or the guest's kernel cannot.
            for directory in used:
                cache.distrust(directory, without_proof=outcome == ENDED)
        if outcome == LATE:
            return TIMED_OUT
        return NEVER_REPORTED if has_spoken else None


def run(arguments):
    if not arguments.payload.is_dir():
        sys.exit(f"vm: the payload is not a directory: {arguments.payload}")
    status = attempt(arguments, boots=False)
    if status is None:
        print(f"vm: {arguments.cell}: it is booted once more", file=sys.stderr)
        status = attempt(arguments, boots=True)
    return NEVER_REPORTED if status is None else status


def build(arguments):
    """Builds what is named; several in processes of their own."""
    names = arguments.cell or list(dict.fromkeys(["qemu", *(CELLS[cell].image for cell, _ in CHECKED)]))
    if len(names) == 1:
        with image.held(names[0]) as directory:
            print(directory)
        return 0
    running, status = [], 0
    with contextlib.ExitStack() as stack:
        while names or running:
            if names and len(running) < arguments.jobs:
                argv = [sys.executable, "-B", __file__, "image", "--cell", names.pop(0)]
                running.append(stack.enter_context(image.child(argv, stdin=subprocess.DEVNULL)))
                continue
            time.sleep(0.1)
            for child in [child for child in running if child.poll() is not None]:
                running.remove(child)
                status = status or child.returncode
    return status


def parse():
    parser = argparse.ArgumentParser(prog="vm.py", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="image|run")
    action = actions.add_parser("image", help="build guest images and the emulator (qemu), if their inputs changed")
    action.add_argument("--cell", choices=[*IMAGES, "qemu"], action="append", help="without: what 'make check' needs")
    action.add_argument("--jobs", type=int, default=2, help="so many at once (default: %(default)s)")
    action.set_defaults(action=build)
    action = actions.add_parser("run", help="boot a cell and run a command in it")
    action.add_argument("--cell", choices=CELLS, required=True)
    action.add_argument("--payload", type=Path, required=True, help="a tree to unpack at / of the guest")
    action.add_argument("--timeout", type=float, default=900, help="seconds, boot included (default: %(default)s)")
    action.add_argument("--results", type=Path, help="where to put what the command left in /var/tmp/results")
    action.add_argument("--reboots", action="store_true", help="a reset of the guest does not end the run: it runs the command again")
    action.add_argument("--counted", action="store_true", help="its clock counts instructions: slow, and punctual on a busy host")
    action.add_argument("command", nargs="+", help="after --: the command and its arguments")
    action.set_defaults(action=run)
    return parser.parse_args()


def main():
    arguments = parse()
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, on_signal)
    try:
        return arguments.action(arguments)
    except Ended as ended:
        return 128 + ended.args[0]
    except image.Skip as reason:
        print(f"vm: {reason}", file=sys.stderr)
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
