#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In a virtual machine: types the page on installing under a scheduler, line by line and in its order: typed.py gridengine|htcondor

The scheduler runs, and nothing of jobfence is there. The commands, the files and the expected output are those of the page, as tests/pages.py
reads them; each number in the output may be another one. Lines below 'qconf -aconf', 'qconf -mconf' and 'cat' are what the administrator writes
there. What the page takes for granted, such as a job that runs meanwhile, is in ACTS, and so is what must be so behind a line.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from pages import Untrue, blocks, commands, is_as_expected  # noqa: E402

SOURCE = TESTS / "jobfence"
CONFIG = Path("/etc/jobfence/jobfence.conf")
HOME = Path("~alice").expanduser()  # where Grid Engine puts the output of a job
# On an emulated processor, and beside other work.
PATIENCE = 90
# These change something, or begin a job: they are typed once.
ONCE = re.compile(r"qsub|qconf|make|systemctl (en|dis)able|echo|condor_reconfig")
NOT_TYPED = {"systemctl restart docker.service": "the cell masks Docker, and its cases start one of their own"}
EDITOR = """#!/usr/bin/python3
import os, sys
lines = open(sys.argv[1]).read().splitlines()
for new in os.environ["TYPED"].splitlines():
    key = new.split()[0]
    lines = [line for line in lines if line.split()[:1] != [key]] + [new]
open(sys.argv[1], "w").write("\\n".join(lines) + "\\n")
# qconf looks whether the file is newer than it was.
os.utime(sys.argv[1], (os.stat(sys.argv[1]).st_mtime + 2,) * 2)
"""
# The guest has no make: what is built is there already.
MAKE = f"""#!/bin/sh
cd {SOURCE} && case $1 in install) plugstack/installation put;; uninstall) plugstack/installation remove;; esac
"""


def numberless(text):
    """With N for each number that is no part of a name."""
    return re.sub(r"\.\d+", ".N", re.sub(r"(?<![A-Za-z_\d.])\d+(\.\d+)?", "N", text))


def joined(lines):
    """With each command of several lines in one."""
    found = []
    for line in lines:
        if line.startswith("> ") and found:
            found[-1] += "\n" + line[2:]
        else:
            found.append(line)
    return found


class Typist:
    def __init__(self, scheduler):
        self.page, self.untrue = f"docs/install/{scheduler}.md", []
        self.acts = {"gridengine": GridEngine, "htcondor": HTCondor}[scheduler](self)
        HOME.mkdir(parents=True, exist_ok=True)
        shutil.chown(HOME, "alice", "alice")
        for path, text in (Path("/usr/local/bin/make"), MAKE), (Path("/usr/local/bin/typing"), EDITOR):
            path.write_text(text)
            path.chmod(0o755)
        self.environment = {**os.environ, "EDITOR": "/usr/local/bin/typing", "PREFIX": "/usr/local", "LANG": "C.UTF-8",
                            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **self.acts.environment}

    def run(self, who, command, typed=""):
        words = ["sh", "-c", command] if who == "#" else ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "sh", "-c", command]
        environment = {**self.environment, "TYPED": typed, **({"HOME": str(HOME), "USER": "alice"} if who == "$" else {})}
        done = subprocess.run(words, cwd="/root" if who == "#" else HOME, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        return done.returncode, done.stdout

    def until(self, condition, what, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise Untrue(f"{what}: not within {seconds} s")
            time.sleep(1)
        return found

    def until_said(self, command, words, who="#", seconds=PATIENCE):
        said = ""

        def is_said():
            nonlocal said
            said = self.run(who, command)[1]
            return re.search(words, said)
        try:
            return self.until(is_said, f"{words!r} of '{command}'", seconds)
        except Untrue as error:
            raise Untrue(f"{error}, which says\n{said}") from None

    def type(self, block):
        block.lines = joined(block.lines)
        for who, command, expected in commands(block):
            print(f"  {who} {command}", flush=True)
            if command in NOT_TYPED:
                print(f"      not typed: {NOT_TYPED[command]}")
                continue
            with self.noted(block):
                self.line(who, command, expected)

    @contextlib.contextmanager
    def noted(self, block):
        """What is untrue of one line is told at the end, with what is of others."""
        try:
            yield
        except Untrue as error:
            print(f"      UNTRUE {error}\n{self.run('#', self.acts.looks)[1]}", flush=True)
            self.untrue.append(f"{block.where}: {error}")

    def line(self, who, command, expected):
        self.acts.before(command, expected)
        is_edited = command.startswith(("qconf -aconf", "qconf -mconf"))
        status, output = self.run(who, self.acts.meant(command), "\n".join(expected) if is_edited else "")
        if expected and not is_edited:
            wanted = numberless("\n".join(expected)).splitlines()

            def is_right():
                return is_as_expected(numberless(output), wanted)

            def again():
                nonlocal status, output
                status, output = self.run(who, command)
                return status == 0 and is_right()
            if not is_right() and not ONCE.match(command):
                with contextlib.suppress(Untrue):
                    self.until(again, command)
            if not is_right():
                raise Untrue(f"'{command}' prints\n{output}\nand the page says\n" + "\n".join(expected))
        if status != 0:
            raise Untrue(f"'{command}' has ended with exit status {status}:\n{output}")
        print("".join(f"      {line}\n" for line in output.splitlines()), end="", flush=True)
        self.acts.behind(command, output)

    def write(self, block):
        name = re.fullmatch(r"# (/etc/\S+?)(, .*)?", block.lines[0])
        if not name:
            raise Untrue(f"{block.where}: it does not say in which file this is ('# PATH')")
        path, text = Path(name[1]), "\n".join(block.lines[1:]) + "\n"
        print(f"  {path} is written", flush=True)
        if block.kind == "json":
            json.loads(text)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each example of jobfence.conf is one by itself, and a batch system's file grows.
        is_example = path == CONFIG or block.kind == "json"
        path.write_text(text if is_example or not path.exists() else path.read_text() + text)
        self.acts.written(path, text)

    def all(self):
        count = 0
        for block in blocks(self.page, (SOURCE / self.page).read_text()):
            if block.kind == "console":
                self.type(block)
            elif block.kind in ("ini", "json"):
                with self.noted(block):
                    self.write(block)
            else:
                continue
            count += 1
        with self.noted(block):
            self.acts.removed()
        return count


class GridEngine:
    looks = "qstat -f -explain E -u '*'; qstat -u '*' -j '*' | tail -n 20; journalctl --no-pager -n 300 | grep jobfence | tail -n 20"
    environment = {"SGE_ROOT": "/var/lib/gridengine", "SGE_CELL": "default"}

    def __init__(self, typist):
        self.typist, self.jobs = typist, 0

    def job(self, script):
        (HOME / "job.sh").write_text(f"#!/bin/sh\n{script}\n")
        (HOME / "job.sh").chmod(0o755)

    def meant(self, command):
        return command

    def before(self, command, expected):
        run = self.typist.run
        if command == "cat /opt/site/both":
            Path("/opt/site").mkdir()
            theirs = "jsv_on_start() { return; }\njsv_on_verify() { jsv_accept fine; }\njsv_main\n"
            for name, text in ("both", "\n".join(expected)), ("jsv.pl", f"#!/bin/bash\n. /usr/share/gridengine/util/resources/jsv/jsv_include.sh\n{theirs}"):
                path = Path("/opt/site", name)
                path.write_text(text + "\n" * (name == "both"))
                path.chmod(0o755)
        elif command.startswith("qsub -l gpu"):
            for number in range(4):
                os.mknod(f"/dev/nvidia{number}", 0o20666, os.makedev(195, number))
            self.job("env | grep CUDA_VISIBLE_DEVICES")
        elif command.startswith("qsub -pe smp 4"):
            # The numbers of the page are of larger hosts.
            run("#", "qconf -mattr exechost complex_values slots=16 node1")
            self.job("cat /proc/self/cgroup; sleep 1000")
        elif command.startswith("qsub -v"):
            self.job("true")
        elif command.startswith("systemctl disable"):
            run("#", "qdel -u '*'")
            for host in "node1", "global":
                run("#", f"qconf -mconf {host}", "\n".join(self.taken_out()))
            self.typist.until(lambda: len(run("#", "jobfence ls")[1].splitlines()) < 2, "the end of all fences")

    def taken_out(self):
        """What the page says of the end: 'KEY' is set to none, or its line goes."""
        text = (SOURCE / self.typist.page).read_text().split("\n## Remove\n")[1].split("```")[0]
        return [f"{key} none" for key in ("shepherd_cmd", "jsv_url", "load_sensor") if f"`{key}`" in text]

    def behind(self, command, output):
        if command.startswith("qhost -F"):
            self.typist.until_said(command, r"hl:jobfence_mem=\d")
        elif command.startswith("qsub"):
            number = re.search(r"Your job (\d+)", output)
            if not number:
                raise Untrue(f"'{command}' says {output}")
            if "gpu" in command:
                self.typist.until_said(f"cat {HOME}/job.sh.o{number[1]}", "(?m)^CUDA_VISIBLE_DEVICES=0$")
            elif "threads" in command:
                self.typist.until_said("jobfence ls", rf"(?m)^{number[1]} +job +alice +\S+ +\S+ +8 ")
                self.typist.run("#", "qdel -u '*'")
            elif "JOBFENCE_USAGE_CARD" in command:
                self.typist.until_said(f"cat {HOME}/job.sh.e{number[1]}", rf"(?m)^jobfence: job {number[1]}\b")

    def written(self, path, text):
        pass

    def removed(self):
        self.job("cat /proc/self/cgroup")
        status, output = self.typist.run("$", "qsub job.sh")
        number = re.search(r"Your job (\d+)", output)
        if not number:
            raise Untrue(f"after the removal, qsub says {output}")
        said = self.typist.until_said(f"cat {HOME}/job.sh.o{number[1]}", "(?m)^0::.*$")[0]
        if "jobfence" in said:
            raise Untrue(f"after the removal, a job is in {said}")


class HTCondor:
    looks = "condor_q -all -hold; condor_q -all -nobatch; jobfence ls; journalctl --no-pager -n 300 | grep jobfence | tail -n 20"
    environment = {}

    def __init__(self, typist):
        self.typist, self.last = typist, None

    def submit(self, script, universe="vanilla", more=""):
        path = HOME / f"script-{time.monotonic_ns()}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        # The schedd starts no local job that asks for more.
        memory = 1 if universe == "local" else 200
        text = f"universe = {universe}\nexecutable = {path}\noutput = {path}.out\nerror = {path}.err\nrequest_memory = {memory}\n" \
               f"should_transfer_files = NO\nrequest_disk = 1\n{more}\nqueue\n"
        (HOME / "submitted").write_text(text)
        status, output = self.typist.run("$", "condor_submit -terse submitted")
        if status != 0:
            return output, None
        self.last = output.split()[0]
        return self.last, path

    def meant(self, command):
        return command.replace("condor_history 12.0", f"condor_history {self.last}")

    def output_of(self, path, words, stream="out"):
        return self.typist.until_said(f"cat {path}.{stream}", words)

    def before(self, command, expected):
        if command == "jobfence ls":
            self.submit("sleep 1000")
        elif command.startswith("condor_history"):
            self.typist.run("#", "condor_rm -all")
            # Until the startd has heard of it twice.
            job, _ = self.submit("sleep 200")
            self.typist.until_said(f"condor_history {job} -af JobStatus", "^4", seconds=600)
        elif command.startswith("condor_status -constraint"):
            CONFIG.write_text("Nonsense=1\n")
        elif command.startswith("systemctl disable"):
            self.typist.run("#", "condor_rm -all")
            self.typist.until(lambda: len(self.typist.run("#", "jobfence ls")[1].splitlines()) < 2, "the end of all fences")

    def behind(self, command, output):
        if command.startswith("condor_status -af"):
            self.typist.until_said(command, r"(?m)^slot\S+ \d+ \d+$", "$")
        elif command.startswith("condor_history"):
            self.typist.until_said(self.meant(command), r"(?m)^\d+(\.\d+)? \d+(\.\d+)? 200$", "$")
        elif command.startswith("condor_status -constraint"):
            self.typist.until_said(command, "jobfence.conf:1:1: .*Nonsense", "$")
            CONFIG.unlink()
        elif command.startswith("condor_reconfig"):
            # It comes back before the daemons have read the file.
            time.sleep(10)

    def written(self, path, text):
        if path != CONFIG:
            # HTCondor's administrators know.
            self.typist.run("#", "condor_reconfig")
            time.sleep(10)
        if "VnodeType=local" in text:
            self.submit("sleep 1000", "local")
            self.typist.until_said("jobfence ls", rf"(?m)^{re.escape(self.last)} +local\S* +alice +\S+ +\S+ +0\.5 .* 1024\.0 ")
            self.typist.run("#", "condor_rm -all")
        elif "SUBMIT_REQUIREMENT" in text:
            said, _ = self.submit("true", "scheduler")
            if "for DAGMan alone" not in said:
                raise Untrue(f"condor_submit of a job of the scheduler universe says {said}")
        elif "SUBMIT_TEMPLATE" in text:
            self.submit("sleep 1000", more="use template : Jobfence(0.5, 100)")
            self.typist.until_said("jobfence ls", rf"(?m)^{re.escape(self.last)} +slot\S+ +alice +\S+ +\S+ +0\.5 ")
            self.typist.run("#", "condor_rm -all")
        elif "USER_JOB_WRAPPER" in text:
            _, path = self.submit("true", more='+JobfenceUsageCard = "always"')
            self.output_of(path, r"(?m)^jobfence: job \S+", "err")
        elif "ConstrainDevices" in text:
            _, path = self.submit("cat /proc/self/cgroup")
            self.output_of(path, "(?m)^0::.*jobfence.*/htcondor/")
            CONFIG.unlink()

    def removed(self):
        _, path = self.submit("cat /proc/self/cgroup")
        said = self.output_of(path, "(?m)^0::.*$")[0]
        if "jobfence" in said:
            raise Untrue(f"after the removal, a job is in {said}")


def main():
    typist = Typist(sys.argv[1])
    count = typist.all()
    if typist.untrue:
        print("FAIL typed\n" + "\n".join(f"     {line}" for error in typist.untrue for line in error.splitlines()))
        print("0 passed, 1 failed, 0 skipped")
        return 1
    print(f"ok   typed  {count} blocks\n1 passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
