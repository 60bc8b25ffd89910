#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A fence of CPU time, memory and processes: by jobfence, and by what a site would use instead.

Each row makes a cgroup, limits it, has a process in it, and removes it. What is not installed is not measured. The first two
rows are what a step daemon does by itself, as benches/setup measures it. The others are commands that run `true`.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests"), str(TOP), str(TOP / "benches")]

import program  # noqa: E402
from contract import kernel  # noqa: E402
from tables import HOW_TO_READ, in_turn, table  # noqa: E402

NAME = f"jobfence-bench-{os.getpid()}"
FLOOR, LOADED = "bare system calls, in one process", "jobfence, in the step daemon"
BARE, FENCE = "true alone", "jobfence run"
TOOLS, SCOPE, CRUN = "cgcreate, cgset, cgexec, cgdelete", "systemd-run --scope", "crun run"
# The kernel's wait for the first move after a quiet time is everybody's, so all have a quiet time before.
QUIET = 0.2


def call(*argv):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def by_setup(setup, what):
    """The seconds that it says itself: it also starts, and finds its place."""
    said = subprocess.run([setup, "--once", what], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return int(said.stdout) / 1e9


def by_tools():
    controllers = "cpu,memory,pids"
    files = (("cpu.max=100000 100000", "memory.max=104857600") if kernel.has_v2_controllers()
             else ("cpu.cfs_quota_us=100000", "memory.limit_in_bytes=104857600"))
    call("cgcreate", "-g", f"{controllers}:{NAME}")
    call("cgset", *(word for file in (*files, "pids.max=100") for word in ("-r", file)), NAME)
    call("cgexec", "-g", f"{controllers}:{NAME}", "true")
    call("cgdelete", "-g", f"{controllers}:{NAME}")


def by_systemd():
    call("systemd-run", "--scope", "--quiet", "-p", "CPUQuota=100%", "-p", "MemoryMax=100M", "-p", "TasksMax=100", "true")


@contextlib.contextmanager
def bundle():
    """What crun runs: `true`, with the libraries that it loads and nothing else."""
    with tempfile.TemporaryDirectory(prefix="jobfence-bench-") as top:
        true = shutil.which("true")
        loaded = subprocess.run(["ldd", true], check=True, capture_output=True, text=True).stdout
        for file in (true, *re.findall(r"(/\S+) \(0x", loaded)):
            copy = Path(f"{top}/rootfs{file}")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        subprocess.run(["crun", "spec"], cwd=top, check=True, stdout=subprocess.DEVNULL)
        file = Path(top, "config.json")
        spec = json.loads(file.read_text())
        spec["process"].update(terminal=False, args=[true])
        spec["root"].update(path="rootfs", readonly=True)
        spec["linux"]["resources"] = {"cpu": {"quota": 100000, "period": 100000}, "memory": {"limit": 104857600}, "pids": {"limit": 100}}
        file.write_text(json.dumps(spec))
        yield top


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, help="the jobfence command")
    parser.add_argument("--setup", help="the program of benches/setup [what cargo builds]")
    parser.add_argument("--rounds", type=int, default=40, help="runs of each kind [40]")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("this needs root")
    setup = options.setup or program.built("setup")
    fence = [options.bin, "run", *([] if Path("/run/systemd/system").is_dir() else ["-o", f"CgroupBase={NAME}-base"]), "--cpus", "1", "--mem", "100M", "--processes", "100", "--", "true"]
    with contextlib.ExitStack() as stack:
        kinds = {FLOOR: lambda: by_setup(setup, "whole-floor"), LOADED: lambda: by_setup(setup, "whole"),
                 BARE: lambda: call("true"), FENCE: lambda: call(*fence)}
        if shutil.which("cgcreate"):
            kinds[TOOLS] = by_tools
        if Path("/run/systemd/system").is_dir():
            kinds[SCOPE] = by_systemd
        if shutil.which("crun"):
            top = stack.enter_context(bundle())
            kinds[CRUN] = lambda: call("crun", "run", "--bundle", top, f"{NAME}-crun")
        works = {}
        for kind, one in kinds.items():
            try:
                one()
                works[kind] = one
            except (OSError, subprocess.CalledProcessError) as error:
                why = getattr(error, "stderr", None) or str(error).encode()
                print(f"{kind} does not work here: {why.decode(errors='replace').strip().splitlines()[-1]}")

        def timed(kind):
            time.sleep(QUIET)
            start = time.perf_counter()
            said = works[kind]()
            return time.perf_counter() - start if said is None else said
        found = in_turn(works, options.rounds, timed)
        for name in "base", "crun":
            for directory in kernel.Group(f"/{NAME}-{name}").directories():
                directory.rmdir()
    rows = (FLOOR, LOADED, BARE, FENCE, TOOLS, SCOPE, CRUN)
    table("a fence, with a process in it, and everything removed", {kind: found.get(kind, []) for kind in rows})
    print(HOW_TO_READ, end="")


if __name__ == "__main__":
    main()
