# SPDX-License-Identifier: GPL-2.0-or-later
"""What jobfence(8) tells a reader to type, read from the page itself: a command that is changed there is another test."""

import contextlib
import re
import subprocess
from pathlib import Path

from contract import kernel
from contract.harness import case, expect, expect_equal, expect_in, expect_match, fenced
from contract.sites import until
from .explained import number_of
from .granted import accounted
from .sections import record_of

# In a guest, the project is beside the suites.
PAGE = next(top / "docs/man/jobfence.8" for top in (Path(__file__).resolve().parents[3], Path(__file__).resolve().parents[2] / "jobfence")
            if (top / "docs").is_dir())
# As roff(7) has them.
CHARACTERS = {r"\-": "-", r"\e": "\\", r"\(ha": "^", r"\(aq": "'", r"\(dq": '"', r"\fI": "", r"\fB": "", r"\fP": ""}

# Each example of the page, by words that no other one has: the case that runs it, or why none does.
EXAMPLES = {
    "findmnt -no OPTIONS": "the mount of the whole machine is changed by it",
    "jobfence explain --cpus 2": "commands_of_the_manual",
    "# Prolog=/etc/slurm/prolog": "prologs_of_the_manual",
    "-o \"%A %q\"": "prologs_of_the_manual",
    "jobfence open --job": "fences_of_the_manual",
    "jsv_url            script": "no command",
    "exec /usr/local/sbin/jobfence jsv": "tests/gridengine has it in beside_another_jsv",
    "sbatch next.sh": "next_of_the_manual",
    "uid_UID/job_JOB/step_STEP\n\\Z": "no command",
    "v2  SCOPE/JOB": "no command",
    "java -XX:MaxRAM": "needs three runtimes that few machines have",
    "# jobfence check\n\\Z": "commands_of_the_manual",
    "# jobfence check -o": "commands_of_the_manual",
    "# jobfence run -v": "commands_of_the_manual",
    "cat /sys/fs/cgroup$JOBFENCE_CGROUP": "commands_of_the_manual",
    "session required /usr/local/lib/slurm/libjobfence.so\n\\Z": "no command",
    "libjobfence.so stay": "no command",
    "session [success=1": "no command",
}


def examples():
    """The text of each, as a reader sees it."""
    found = re.findall(r"(?ms)^\.EX\n(.*?)^\.EE$", PAGE.read_text())
    plain = re.compile("|".join(map(re.escape, CHARACTERS)))
    return [plain.sub(lambda escape: CHARACTERS[escape[0]], text) for text in found]


def example(words):
    pattern = re.escape(words).replace(re.escape("\n\\Z"), "\n\\Z")
    (text,) = [text for text in examples() if re.search(pattern, text)]
    return text


def commands(words):
    """Of an example, what stands behind the prompts; a backslash at a line's end goes on."""
    text = example(words).replace("\\\n", "")
    return [line[2:] for line in text.splitlines() if line[:2] in ("# ", "$ ")]


@case(layout=False)
def examples_of_the_manual(site):
    """Each has its row above, and each row its example."""
    unknown = [text for text in examples() if text not in [example(words) for words in EXAMPLES]]
    expect(not unknown, f"examples without a row: {unknown}")
    for words, how in EXAMPLES.items():
        expect(" " in how or how in globals(), f"there is no case {how}, which runs {words!r}")


def by_this_command(site, text, *more):
    """The same by the command that is tested, and with its configuration."""
    options = " ".join(["--config", str(site.config), *more])
    changed, count = re.subn(r"(?m)(?:/usr/local/sbin/|^)jobfence (\w+)", rf"{site.jobfence} \1 {options}", text)
    expect(count, f"{text!r} does not call jobfence")
    return changed


@contextlib.contextmanager
def with_prolog(site, text, **keys):
    prolog, epilog = (site.config.with_name(f"jobfence-{which}") for which in ("prolog", "epilog"))
    prolog.write_text(by_this_command(site, text if text.startswith("#!") else f"#!/bin/sh\n{text}"))
    epilog.write_text(by_this_command(site, "#!/bin/sh\njobfence epilog\n"))
    try:
        for script in prolog, epilog:
            script.chmod(0o755)
        with site.reconfigured(Prolog=str(prolog), Epilog=str(epilog), PrologFlags="Alloc", **keys):
            yield
    finally:
        prolog.unlink()
        epilog.unlink()


def qualities(site, *names):
    """Slurm's database has these, and the controller knows of them."""
    for name in names:
        until(lambda name=name: site.command("sacctmgr", "-i", "add", "qos", name).returncode == 0, 30, f"QOS {name}")
    until(lambda: all(name in site.command("scontrol", "show", "assoc_mgr", "flags=qos").stdout for name in names), 30, "the controller")


def expect_quality(site, jobid, name):
    said = until(lambda: record_of(site, jobid), 30, f"what is noted of job {jobid}")
    expect_in("owner_pid=0\n", said, f"what the prolog has noted of job {jobid}")
    # A name that slurmctld does not check is what the user says.
    expect_match(rf"(?m)^qos=[=~]{name}$", said, f"what is noted of job {jobid}")


@case(layout=False, patient=True)
def prologs_of_the_manual(site):
    """Each job's own QOS is noted: of tasks of an array, also the one with the array's number, and of a job that runs again."""
    user = site.users[0]
    site.configure_raw("[QOS=slow]\nMaxProcesses=50\n")
    with with_prolog(site, example("# Prolog=/etc/slurm/prolog")):
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=50")
        fenced(site, jobid)
        expect_match("(?s)owner_pid=0\n.*partition==.*qos=[?]\n", record_of(site, jobid), "what is noted of a job")
        site.end(jobid)
    with accounted(site) as records, with_prolog(site, example("-o \"%A %q\""), **records.keys):
        qualities(site, "slow", "quick")
        array = site.submit(user, "sleep 300", "-c1", "--mem=50", "--qos=slow", "--array=1-2", "--output=%A.%a.out")
        numbers = [number_of(site, f"{array}_{task}") for task in (1, 2)]
        expect(str(array) in numbers, f"no task of {array} has the array's number: {numbers}")
        for number in numbers:
            expect_quality(site, number, "slow")
        # One runs again, while the other runs.
        first = numbers[0]
        site.run_again(first)
        number_of(site, f"{array}_1")
        expect_quality(site, first, "slow")
        site.scancel(array)
        until(site.idle_again, 60, "the end of the array")
        single = site.submit(user, "sleep 300", "-c1", "--mem=50", "--qos=quick")
        fenced(site, single, timeout=30)
        expect_quality(site, single, "quick")
        site.end(single)


@case(layout=False, on=["two-nodes"], patient=True)
def prologs_of_the_manual_for_components(site):
    """Each component of a heterogeneous job has a QOS of its own."""
    user = site.users[0]
    site.configure_raw("[QOS=slow]\nMaxProcesses=50\n")
    keys = {"SchedulerParameters": "batch_sched_delay=0,bf_interval=1"}
    with accounted(site) as records, with_prolog(site, example("-o \"%A %q\""), **records.keys, **keys):
        qualities(site, "slow", "quick")
        jobid = site.submit(user, "sleep 300", "-n1", "--mem=50", "--qos=slow", ":", "-n1", "--mem=50", "--qos=quick")
        for component, name in enumerate(("slow", "quick")):
            expect_quality(site, number_of(site, f"{jobid}+{component}"), name)
        site.end(jobid)


@case(layout=False)
def fences_of_the_manual(site):
    """The prolog and the epilog of any batch system, for jobs with names of every scheduler."""
    script = by_this_command(site, example("jobfence open --job"))
    for job in ("7", "7_1", "7+1", "7[1].server", "7.1"):
        process = subprocess.Popen(["sleep", "300"], user=site.users[0])
        try:
            begin, end = script.split("# epilog\n")
            environment = {**site.environment, "JOB": job, "JOB_USER": site.users[0], "PID": str(process.pid)}
            for part in begin, end:
                done = subprocess.run(["sh", "-ec", part], env=environment, capture_output=True, text=True, timeout=60)
                expect_equal(done.returncode, 0, f"exit status of {part} for job {job}, which says {done.stderr}")
            expect_match(rf"job {re.escape(job)} step 0 ended: ", done.stdout, "what the epilog says")
            expect_equal(process.wait(60), -9, "the end of the job's process")
        finally:
            process.kill()
            process.wait()


@case(layout=False)
def next_of_the_manual(site):
    """A job that is submitted within another one has nothing of what that one was told."""
    user = site.users[0]
    directory = site.directory(user)
    # The example is bash's.
    (directory / "next.sh").write_text("#!/bin/bash\n#SBATCH --mem=50 --output=next.out\necho limit $JOBFENCE_CPUS\n")
    for text, limit in ((example("sbatch next.sh"), "1"), ("sbatch next.sh", "0.5")):
        (directory / "next.out").unlink(missing_ok=True)
        jobid = site.submit(user, f"cat >script <<'end'\n{text}\nend\nbash script", "-c1", "--mem=50", "--cpu-limit=0.5")
        expect_equal(site.wait(jobid), "COMPLETED", f"state: {site.output(jobid)}")
        until(lambda: kernel.read(directory / "next.out"), 30, "the next job's words")
        expect_equal(kernel.read(directory / "next.out"), f"limit {limit}", f"CPUs of the job that is submitted by {text!r}")
        until(site.idle_again, 30, "its end")


@case(layout=False)
def commands_of_the_manual(site):
    user = site.users[0]
    site.configure_raw("MaxProcesses=50\n")
    for words in ("jobfence explain --cpus 2", "# jobfence check\n\\Z", "# jobfence check -o"):
        for command in commands(words):
            command = by_this_command(site, command).replace("alice", user)
            done = site.command("sh", "-c", command)
            expect_equal(done.returncode, 0, f"exit status of {command}, which says {done.stdout}{done.stderr}")
    # The verdict stands at the beginning; the keys are what was asked for.
    expect_in("CPUQuotaPeriod=10", done.stdout, command)
    (site.directory(user) / "Makefile").write_text("all:\n\t@cat /proc/self/cgroup\n")
    (command,) = commands("# jobfence run -v")
    done = subprocess.run(["sh", "-c", by_this_command(site, command).replace("alice", user)], cwd=site.directory(user),
                          env=site.environment, capture_output=True, text=True, timeout=120)
    expect_equal(done.returncode, 0, f"exit status of {command}, which says {done.stderr}")
    expect_match(r"/job_run-\S+/step_", done.stdout, "where make was")
    if "memory" in kernel.controllers_of_v2():
        (command,) = commands("cat /sys/fs/cgroup$JOBFENCE_CGROUP")
        jobid = site.submit(user, command, "-c1", "--mem=60")
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        expect_equal(site.output(jobid), f"{60 << 20}\n", f"what {command} prints in a job")
