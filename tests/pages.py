#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs what the pages tell an administrator to type: pages.py --so FILE --bin FILE [--users A B] [PAGE...]

The commands, the files and the expected output are read from the pages themselves. A private Slurm of one node runs
meanwhile. /etc, /usr/local and others (HIDDEN) are overlays in a mount namespace, so the machine keeps its own. Each page has
a namespace and a Slurm of its own. What a page may contain:

  ```console    Commands, and what they print. "$ " is an ordinary user, "# " is root. In the output "…" is any text, and
                alone on a line any lines; an indented line goes on with the line above it; numbers that differ in
                each run (VOLATILE) are any. A command without output may print what it likes.
  ```sh         A script, if it begins with #!: its second line is "# PATH", where it is installed, executable.
  ```ini        A file: its first line is "# PATH". It is written to that place; a part of slurm.conf is added to it.
  ```text       Anything else. It is not run.

A comment above a block says what is different: <!-- not run: REASON -->, or <!-- run last -->: when the rest of the page
has been run. Every command must end with exit status 0, and behind <!-- ends with N --> with N.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests"))

from contract.sites import SiteError, die_properly, until  # noqa: E402
from slurm.sites import PrivateSite  # noqa: E402

PAGES = ("README.md", "docs/install/slurm.md", "docs/install/shell.md", "docs/install/pbs.md",
         "docs/install/gridengine.md")
RUN = ("console", "sh", "ini")
CONFIG = Path("/etc/jobfence/jobfence.conf")
GROUPS = ("students",)  # of users, in the pages' examples
HIDDEN = ("/etc", "/usr/local", "/var/lib", "/var/log", "/srv")
NOTE = re.compile(r"<!-- (not run: \S.*|run last|ends with \d) -->")
LACKS = 77  # for check.py: this machine lacks something


@dataclass
class Block:
    page: str
    line: int
    kind: str
    note: str
    lines: list = field(default_factory=list)

    @property
    def where(self):
        return f"{self.page}:{self.line}"


class Untrue(Exception):
    """A page says something that is not so."""


class CannotMount(Exception):
    """This machine does not let the test hide its own files."""


def blocks(page, text):
    """The fenced blocks of a page, each with the comment above it."""
    found, block, note = [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        # A list's blocks are as far in as the list.
        if line.lstrip().startswith("```"):
            if block is None:
                inside = len(line) - len(line.lstrip())
                block = Block(page, number, line.strip()[3:], note)
                note = ""
            else:
                found.append(block)
                block = None
        elif block is not None:
            block.lines.append(line[inside:])
        elif line.strip():
            comment = NOTE.fullmatch(line.strip())
            note = comment.group(1) if comment else ""
    if block is not None:
        raise Untrue(f"{block.where}: the block has no end")
    return found


def commands(block):
    """(who, command, expected output) of a console block. A command that ends in a backslash goes on behind '> '."""
    found = []
    for line in block.lines:
        if line[:2] in ("$ ", "# "):
            found.append((line[0], line[2:], []))
        elif found and found[-1][1].endswith("\\") and line.startswith("> "):
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line[2:]}", [])
        elif found:
            found[-1][2].append(line)
        else:
            raise Untrue(f"{block.where}: a console block begins with '$ ' or '# '")
    return found


# What no two runs have in common; every other number of a page is exact.
VOLATILE = re.compile(
    r"((?:uid_|job[ _]|run-|process |peak memory |peak use |MiB, |cpu |throttled |in )"
    r"|\"(?:\w+_seconds|memory_peak_bytes|read_bytes|written_bytes)\": *)\d+(?:\.\d+)?"
)


def pattern(lines):
    """What the output must look like: '…' is any text, alone on a line any lines; an indented line goes on."""
    parts = []
    for line in lines:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
            continue
        if line.startswith("    ") and parts:
            parts[-1] = parts[-1].removesuffix(r"[ \t]*\n") + r"\s+"
        words = (re.escape(word).replace("…", ".*") for word in VOLATILE.sub(r"\1N", line).split())
        parts.append(r"[ \t]+".join(words) + r"[ \t]*\n")
    return re.compile("".join(parts))


def is_as_expected(output, expected):
    output = output if not output or output.endswith("\n") else output + "\n"
    return pattern(expected).fullmatch(VOLATILE.sub(r"\1N", output)) is not None


class Machine:
    """Where the pages' commands are run: this machine, but for /etc and /usr/local."""

    def __init__(self, site, make_flags, verbose):
        self.site, self.verbose = site, verbose
        path = f"{site.top}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.root = {**os.environ, "PATH": f"{path}:{os.environ.get('PATH', '')}", "MAKEFLAGS": make_flags, "LANG": "C.UTF-8"}
        self.root.pop("SLURM_CONF", None)
        self.user = site.users[0]

    def run(self, who, command):
        # Who builds owns the tree.
        if who == "#" or command.split()[0] == "make":
            done = subprocess.run(
                ["sh", "-c", command], cwd=TOP, env=self.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=1800, check=False,
            )  # fmt: skip
            return done.returncode, self.as_installed(done.stdout)
        words = ["sh", "-c", f"exec 2>&1; {command}"]
        done = self.site.as_user(self.user, words, env={"SLURM_CONF": "/etc/slurm/slurm.conf"})
        return done.returncode, self.as_installed(done.stdout)

    def as_installed(self, output):
        """With the directories that a node under systemd has, in the place of this test's."""
        return output.replace(self.site.base, "jobfence.slice/jobfence.scope")

    def do(self, block):
        if block.kind == "console":
            self.type(block)
        else:
            self.write(block)

    def type(self, block):
        for who, command, expected in commands(block):
            print(f"  {who} {command}", flush=True)
            mark = self.site.log_mark()
            if command.startswith("srun"):
                # It says so, if it waits for the end of the job before it.
                until(self.site.idle_again, 60, "the end of the jobs before it")
            status, output = self.run(who, command)
            if command == "scontrol reconfigure":
                # It comes back before the daemons have read the file. slurmd says something of it, in any release.
                until(lambda mark=mark: self.site.log_since(mark), 20, "a word of slurmd")
                until(lambda: self.site.command("scontrol", "show", "slurmd").returncode == 0, 30, "slurmd")
            if self.verbose:
                print(output, end="", flush=True)
            right = int(block.note[-1]) if block.note.startswith("ends with") else 0
            if status != right:
                raise Untrue(f"{block.where}: '{command}' has ended with exit status {status}:\n{output}")
            if command.startswith("grep") and expected:
                # A step's last line comes when its srun has ended.
                with contextlib.suppress(AssertionError):
                    until(lambda who=who, command=command, expected=expected: is_as_expected(self.run(who, command)[1], expected), 30, "it")
                status, output = self.run(who, command)
            if expected and not is_as_expected(output, expected):
                shown = "\n".join(expected)
                raise Untrue(f"{block.where}: '{command}' prints\n{output}\nand the page says\n{shown}")

    def write(self, block):
        is_script = block.kind == "sh"
        name = block.lines[1 if is_script else 0]
        if not re.fullmatch(r"# /etc/\S+", name) or is_script and not block.lines[0].startswith("#!/"):
            raise Untrue(f"{block.where}: it does not say in which file of /etc this is ('# PATH')")
        path = Path(name[2:])
        print(f"  {path} is written", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join(block.lines) + "\n"
        if path.name == "slurm.conf":
            # The page has a part of it. The daemons read the site's.
            for each in (path, self.site.top / "slurm.conf"):
                with open(each, "a", encoding="utf-8") as whole:
                    whole.write(text)
            return
        # The directories of this test stay in force.
        is_config = path in (CONFIG, CONFIG.with_suffix(".conf.new"))
        before = self.site.config_text() if is_config else ""
        path.write_text(before + text)
        path.chmod(0o755 if is_script else 0o644)


class PagesSite(PrivateSite):
    """One whose nodes have their configuration where an administrator's have it."""

    def _slurm_conf(self):
        return re.sub(r"(?m)^PlugStackConfig=.*\n", "PlugStackConfig=/etc/slurm/plugstack.conf\n", super()._slurm_conf())

    def _write_files(self):
        super()._write_files()
        for name in ("slurm.conf", "cgroup.conf"):
            shutil.copy(self.top / name, "/etc/slurm")
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.write_text(self.config_text())
        # 'sudo' of a page: root is here already.
        (self.top / "bin").mkdir()
        (self.top / "bin/sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (self.top / "bin/sudo").chmod(0o755)
        Path("/var/log/slurm").mkdir(exist_ok=True)
        Path("/var/log/slurm/slurmd.log").unlink(missing_ok=True)
        Path("/var/log/slurm/slurmd.log").symlink_to(self.slurmd_log)

    def config_text(self):
        return "".join(f"{key}={value}\n" for key, value in self.own_keys().items())


def hide_the_machine(scratch):
    """What the pages have written there goes with this process."""

    def mount(*words):
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotMount(done.stderr.strip())

    mount("-t", "tmpfs", "tmpfs", scratch)
    for place in HIDDEN:
        upper, work = (Path(scratch, place.strip("/").replace("/", "-") + end) for end in ("", ".work"))
        upper.mkdir(mode=0o755)
        work.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={work}", place)
    if Path("/run/systemd/system").is_dir():
        # The machine's own service manager is not the pages' to command.
        mount("-t", "tmpfs", "tmpfs", "/run/systemd")
    with open("/etc/group", "a", encoding="utf-8") as groups:
        groups.write("".join(f"{name}:x:{60000 + number}:\n" for number, name in enumerate(GROUPS)))
    shutil.rmtree("/etc/slurm", ignore_errors=True)
    Path("/etc/slurm").mkdir()


def run_page(options, page):
    make_flags = f" -- SO={options.so} BIN={options.bin}"
    with PagesSite(users=options.users) as site:
        machine = Machine(site, make_flags, options.verbose)
        ran = 0
        print(f"{page}:", flush=True)
        in_order = sorted(blocks(page, (TOP / page).read_text()), key=lambda block: block.note == "run last")
        for block in in_order:
            if block.note.startswith("not run"):
                print(f"  line {block.line}: {block.note}")
            elif block.kind in RUN:
                machine.do(block)
                ran += 1
            elif block.kind != "text":
                raise Untrue(f"{block.where}: a block that is not run is ```text")
        until(site.idle_again, 20, "the end of every job")
        until(lambda: not site.leftovers(), 10, f"the end of what is left: {site.leftovers()}")
        return ran


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--so", required=True)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--users", nargs=2, metavar="USER")
    parser.add_argument("-v", "--verbose", action="store_true", help="also print what the commands print")
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(LACKS)
    die_properly()
    scratch = os.environ.pop("JOBFENCE_PAGES", None)
    if scratch:
        sys.exit(in_namespace(options, scratch))
    # Each page has mounts of its own, where nobody else sees them.
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", *sys.argv[: -len(options.pages) or None]]
    ends = set()
    for page in options.pages or PAGES:
        with tempfile.TemporaryDirectory(prefix="jobfence-pages-") as scratch:
            environment = {**os.environ, "JOBFENCE_PAGES": scratch}
            ends.add(subprocess.run([*words, page], env=environment, check=False).returncode)
    sys.exit(1 if ends - {0, LACKS} else max(ends))


def in_namespace(options, scratch):
    """The one page that was given; an exit status."""
    try:
        hide_the_machine(scratch)
        ran = run_page(options, options.pages[0])
    except CannotMount as reason:
        print(f"needs to mount file systems: {reason}")
        return LACKS
    except (Untrue, AssertionError, SiteError) as error:
        print(f"FAIL {error}\n0 passed, 1 failed, 0 skipped")
        return 1
    print(f"{ran} passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    main()
