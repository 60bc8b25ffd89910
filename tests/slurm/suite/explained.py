# SPDX-License-Identifier: GPL-2.0-or-later
"""What `jobfence explain` says of a job is what the kernel has of it."""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile

from contract import kernel
from contract.harness import IN_VAR, case, expect, expect_equal, expect_in, expect_match, fenced, running
from contract.sites import until
from .devices import called, gres, job_with_a_gpu, openable
from .sections import partitions, prologs, record_of


def explain(site, *arguments):
    return subprocess.run([str(site.jobfence), "explain", "--config", str(site.config), *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, env=site.environment)


def explained_to(site, user, *arguments):
    """As a user, who may not enter the places of the command and of the configuration."""
    with tempfile.TemporaryDirectory(**IN_VAR) as open_to_all:
        os.chmod(open_to_all, 0o755)
        for file in (site.jobfence, site.config):
            shutil.copy(file, open_to_all)
        here = os.path.join(open_to_all, os.path.basename(site.jobfence))
        config = os.path.join(open_to_all, os.path.basename(site.config))
        os.chmod(here, 0o755)
        os.chmod(config, 0o644)
        return site.as_user(user, [here, "explain", "--config", config, "--node", site.node, *map(str, arguments)])


# Where a user can write into what Slurm says of his job.
FORGED = "x UserId=root(0) Partition=vip QOS=vip Account=vip NodeList={node} Nodes={node} CPU_IDs=0-63 Mem=99999 GRES="


@case(layout=False)
def explained_whatever_its_name(site):
    """Nothing that a user writes into his job's texts is taken for what Slurm says."""
    user = site.users[0]
    site.configure_raw(f"[User=root]\nMaxProcesses=7777\n[Partition=vip]\nMaxProcesses=8888\n[User={user}]\nMaxProcesses=60\n")
    forged = FORGED.format(node=site.node)
    for options in (["--job-name", forged], ["--job-name", f"{forged}\n  {forged}"], ["--comment", forged],
                    ["--job-name", f"x MinCPUsNode=1 {forged}"], ["--job-name", forged, "--comment", forged]):
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=200", *options)
        with contextlib.ExitStack() as afterwards:
            afterwards.callback(site.scancel, jobid)
            # A name of two lines breaks what the others wait with.
            state = functools.partial(site.command, "squeue", "-h", "-j", str(jobid), "-o", "%T")
            until(lambda: state().stdout == "RUNNING\n", 30, f"the start of job {jobid}")
            done = explain(site, jobid, "--node", site.node)
            said = f"{done.stdout}{done.stderr} ({options})"
            expect("vip" not in done.stdout and "7777" not in done.stdout and "8888" not in done.stdout, said)
            if done.returncode == 0:
                expect_in(f"job        {jobid} of {user} (uid ", said, "whose it is")
                expect_in("1 CPU, 200.0 MiB", said, "what is granted")
                expect_in("MaxProcesses=60", said, "its limit")
            else:
                # Which of two is Slurm's cannot be known: then it says so, and what to do.
                expect_match(r"^jobfence: \d parts of what Slurm says of job .* speak of node .*--cpus\s+and --mem", said, "why not")
            # A name alone keeps nobody from seeing his limits.
            if options == ["--job-name", forged]:
                expect_equal(done.returncode, 0, f"exit status {said}")
        until(lambda: not state().stdout, 30, f"the end of job {jobid}")


@case(layout=False)
def explained_of_an_array(site):
    """Each of its jobs has a number of its own, also the one that has the array's."""
    user = site.users[0]
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100", "--array=1-2", "--output=%A.%a.out")
    jobs = {}
    while len(jobs) < 2:
        jobs = {job["JobId"]: job["ArrayTaskId"] for job in site.jobs(jobid) if job["JobState"] == "RUNNING"}
    for one in jobs:
        done = explain(site, one, "--node", site.node)
        expect_equal((done.returncode, done.stderr), (0, ""), f"exit status and stderr for job {one}")
        expect_in(f"job        {one} of {user} ", done.stdout, "whose it is")
        expect_in("1 CPU, 100.0 MiB", done.stdout, "what is granted")
    site.end(jobid)


def number_of(site, name):
    """Slurm's number of what squeue calls so."""
    def found():
        lines = site.command("squeue", "-h", "-r", "-t", "R", "-o", "%i %A").stdout.split("\n")
        return dict(line.split() for line in lines if line).get(name)
    return until(found, 60, f"the start of {name}")


def expect_called(site, name, user, node):
    """Every command knows the job as squeue calls it, and by its number."""
    number = number_of(site, name)
    fenced(site, number, node=node if len(site.nodes) > 1 else None)
    for word in (name, number):
        status, said = site.ours("explain", word, "--node", node)
        expect_equal(status, 0, f"exit status of explain {word}, which says {said}")
        expect_in(f"job        {number} of {user} ", said, f"explain {word}")
        status, said = site.ours("show", word)
        expect_equal(status, 0, f"exit status of show {word}, which says {said}")
        expect_in(f"job {number} step batch", said, f"show {word}")
        for command in (["ls", "--job", word], ["ls", "--json", "--job", word]):
            status, said = site.ours(*command)
            expect_match(rf'(?m)^{number} +batch |"job":"{number}"', said, " ".join(command))
        # Those of a batch system that holds fences find none of Slurm's, and adopt the process that is in the job already.
        status, said = site.ours("usage", "--job", word)
        expect_in(f"there is no fence of job {number}\n", said, f"usage --job {word}")
        pid = next(iter(site.job_pids(number)))
        status, said = site.ours("adopt", "--job", word, "--pid", pid)
        expect(f"job {name}" not in said, f"adopt --job {word} says {said}")
    # The batch step has a name of its own.
    status, said = site.ours("explain", f"{name}.batch", "--node", node)
    expect_equal((status, "what follows is of batch" in said), (0, True), f"explain {name}.batch: {said}")
    status, said = site.ours("show", f"{name}.batch")
    expect_equal((status, said), (1, f"jobfence: {name}.batch is a step of Slurm's: the job is {name}\n"), f"show {name}.batch")
    return number


@case(layout=False)
def called_as_in_squeue(site):
    """Each command knows a task of an array as squeue does: while the task runs, before, and after."""
    user, log = site.users[0], site.home / "called"
    site.configure(UsageLog=f"{log}/usage.jsonl")
    log.mkdir(mode=0o700, exist_ok=True)
    jobid = site.submit(user, "sleep 300", "-c1", "--mem=100", "--array=1-2%1", "--output=%A.%a.out")
    first = expect_called(site, f"{jobid}_1", user, site.node)
    # The other one waits: it has no number, and no limits. What squeue shows as its number is another's.
    for command in (["explain", f"{jobid}_2", "--node", site.node], ["show", f"{jobid}_2"], ["ls", "--job", f"{jobid}_2"]):
        status, said = site.ours(*command)
        expect_equal(status, 1, f"exit status of {command}")
        expect_match(rf"job {jobid}_2 (has no node: PENDING|waits, and has no number of its own yet)", said, f"{command}")
    done = site.scancel(f"{jobid}_1")
    expect_equal((done.returncode, done.stderr), (0, ""), "scancel")
    expect_called(site, f"{jobid}_2", user, site.node)
    site.end(jobid)
    until(site.idle_again, 30, "the end of the array")
    status, said = site.ours("report", f"{jobid}_1")
    expect_equal(status, 0, f"exit status of report, which says {said}")
    expect_in(f"job {first}", said, "the report")
    status, said = site.ours("explain", f"{jobid}_1", "--node", site.node)
    expect_match(rf"job {jobid}_1 has ended \(CANCELLED\): 'jobfence report {jobid}_1'", said, "of one that has ended")
    status, said = site.ours("show", "999999_1")
    expect_match("(?s)no job here has the id 999999_1.*'squeue -j 999999_1 -o %A' shows", said, "of one that nobody knows")


@case(layout=False, on=["two-nodes"])
def components_called_as_in_squeue(site):
    """Each command knows a component of a heterogeneous job as squeue does. Each has a node of its own."""
    user = site.users[0]
    with site.reconfigured(SchedulerParameters="batch_sched_delay=0,bf_interval=1"):
        script = "srun --het-group=0,1 --overlap sleep 300 & sleep 300"
        jobid = site.submit(user, script, "-n1", "--mem=50", "-w", site.nodes[0], ":", "-n1", "--mem=70", "-w", site.nodes[1])
        first = number_of(site, f"{jobid}+0")
        second = number_of(site, f"{jobid}+1")
        # By the environment of its processes, each is the first one's.
        for number in first, second:
            until(lambda number=number: site.ours("show", number)[0] == 0, 30, f"the fence of job {number}")
        for number, name, node, mib in ((first, f"{jobid}+0", site.nodes[0], 50), (second, f"{jobid}+1", site.nodes[1], 70)):
            for word in (name, number):
                status, said = site.ours("explain", word, "--node", node)
                expect_equal(status, 0, f"exit status of explain {word}, which says {said}")
                expect_in(f"job        {number} of {user} (uid ", said, f"explain {word}")
                expect_in(f", {mib}.0 MiB of memory", said, f"explain {word}")
                status, said = site.ours("show", word)
                expect_match(rf"\Ajob {number} step ", said, f"show {word}")
        status, said = site.ours("explain", f"{jobid}+1", "--node", site.nodes[0])
        expect_in(f"job {jobid}+1 has nothing on node {site.nodes[0]}, but on {site.nodes[1]}", said, "on the other's node")
        site.end(jobid)


@case(layout=False)
def explained_while_it_waits(site):
    """explain says why a job waits, and how to ask for the limits of one like it."""
    user = site.users[0]
    for part, options in (("", []), ("_3", ["--array=3,7"])):
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100", "--hold", *options)
        status, said = site.ours("explain", f"{jobid}{part}", "--node", site.node)
        expect_equal(status, 1, "exit status")
        shown = expect_match(rf"job {jobid}{part} has no node: PENDING \(JobHeldUser\). Which limits a job like it gets on this "
                             r"node: 'jobfence (explain --user \d+ --partition \S+.* --cpus NUMBER --mem SIZE)'", said, "explain")[1]
        status, said = site.ours(*shown.replace("NUMBER", "1").replace("SIZE", "100M").split())
        expect_equal(status, 0, f"exit status of what it names: {said}")
        site.end(jobid)


@case(layout=False)
def explained_as_its_steps_know_it(site):
    """What squeue says of a job is not what its steps were told: as root, the record decides, and what is not noted is unknown."""
    user = site.users[0]
    site.configure_raw("MaxProcesses=500\n[Partition=small]\nMaxProcesses=40\n[Partition=free]\nMaxProcesses=600\n")
    for has_prolog, limit in ((False, 40), (True, 600)):
        with prologs(site) if has_prolog else contextlib.nullcontext():
            with partitions(site):
                # No batch step, which would know the partition by slurmd.
                said_by = site.as_user(user, ["srun", "-p", "free", "-c1", "--mem=100", "--immediate=60", "sleep", "300"], start=True)
                try:
                    jobid = until(lambda: site.command("squeue", "-h", "-t", "R", "-u", user, "-o", "%A").stdout.strip(),
                                  30, "the start of srun's job")
                    step = fenced(site, jobid, "step_0")
                    expect_equal(step.processes_limit(), limit, f"processes of the step, prolog {has_prolog}")
                    status, said = site.ours("explain", jobid, "--node", site.node)
                    expect_equal((status, bool(record_of(site, jobid))), (0, has_prolog), f"exit status and record: {said}")
                    # The step that there is is explained.
                    expect_in("what follows is of 0\n", said, "explain")
                    expect_match(rf"step +\S+/pids.max = {limit}\nstep +now the same", said, f"explain with prolog {has_prolog}")
                    expect_in("partition free," if has_prolog else "partition unknown,", said, "explain")
                    # Nobody else can read the record.
                    said = explained_to(site, user, jobid).stdout
                    expect_in("known by   only root can read the job's record", said, "explain to its user")
                    expect_match(rf"pids.max = 40\nstep +now {'the same' if limit == 40 else limit}", said, "explain to its user")
                finally:
                    site.scancel("-u", user)
                    until(lambda: said_by.poll() is not None, 30, "the end of srun")
                    until(site.idle_again, 30, "the end of the job")


@case(layout=False)
def explained_with_its_gpus(site):
    """The GPUs of a job are those that are noted; to whom cannot read that, and without a note, they are not known."""
    user = site.users[0]
    gpus = called(openable(site, user), 0, 1)
    for keys, to_root in (({}, None), ({"Prolog": None}, "no 'jobfence prolog' has recorded the job")):
        with gres(site, f"Name=gpu File={gpus[0].with_name('gpu[0-1]')}\n", 2, **keys):
            site.configure(ConstrainDevices="yes", GPUDevice=gpus[0].with_name("gpu%d"))
            jobid, usable, said = job_with_a_gpu(site, user, gpus)
            expect_equal(len(usable), 0 if to_root else 1, f"GPUs that the job can use; it says:\n{said}")
            status, said = site.ours("explain", jobid, "--node", site.node)
            expect_equal(status, 0, f"exit status: {said}")
            sentence = "the job may use none of its GPUs, since jobfence is not certain which devices they are: "
            if to_root:
                expect_in(sentence + to_root, said, "explain")
            else:
                expect(sentence not in said, f"explain does not know the job's GPUs:\n{said}")
            said = explained_to(site, user, jobid).stdout
            expect_in(f"{sentence}only root can read the job's record", said, "explain to its user")
            site.end(jobid)


@case
def explained(site):
    user = site.users[0]
    site.configure_raw("MaxProcesses=50\nCPUQuotaPercent=80\n[User=nobody-like-this]\nMaxProcesses=1\n"
                       f"[User={user}]\nMaxProcesses=60\n")
    jobid, group = running(site, user, "sleep 300", "-c1", "--mem=200")
    done = explain(site, jobid, "--node", site.node)
    expect_equal((done.returncode, done.stderr), (0, ""), "exit status and stderr of jobfence explain")
    line = site.config.read_text().splitlines().index("MaxProcesses=60") + 1
    expect_in(f"MaxProcesses=60 ({site.config}:{line} [User={user}])", done.stdout, "what it says")
    expect_in(f"sections   [User={user}]\n", done.stdout, "what it says")
    expect_in("steps      ", done.stdout, "what it says")
    checked = []
    for level, path, value, now in re.findall(r"^(user|job|step) +(/\S+) = (.*)\n\1 +now (.*)$", done.stdout, re.M):
        # The real directories, also where Slurm names jobs by another number (26.05).
        expect("*" not in path and os.path.exists(path), f"{path} is none of the job's")
        expect_equal(now, "the same" if kernel.read(path) == value else kernel.read(path), f"what it says of {path}")
        # In Slurm's directories its own memory limits stay.
        if "memory." in path and group.memory_is_slurms() and kernel.slurm_limits_memory:
            continue
        expect_equal(now, "the same", f"{path}")
        checked.append(path.rsplit("/", 1)[1])
    expect_equal(str(group.limits_directory("cpu")) in done.stdout, True, f"{group.limits_directory('cpu')} is named")
    # Anybody sees as much, as long as its name has the job's number in it, and what somebody else has written since.
    file = group.limits_directory("pids") / "pids.max"
    file.write_text("37\n")
    for asking in (lambda: explain(site, jobid, "--node", site.node), lambda: explained_to(site, user, jobid)):
        expect_match(rf"{re.escape(str(file))} = 60\nstep +now 37\n", asking().stdout, "what it says of another's value")
    done = explain(site, jobid, "--node", site.node, "--step", "17")
    expect_in("steps      batch; 17 has no directories", done.stdout.replace("extern", "batch").replace("batch, batch", "batch"),
              "what it says of a step that is not")
    for name in ("pids.max", "cpu.max" if kernel.has_v2_controllers() else "cpu.cfs_quota_us"):
        expect(checked.count(name) >= 2, f"{name} of job and step is not explained: {checked}")
    site.end(jobid)
    unknown = explain(site, 999999, "--node", site.node)
    expect_equal(unknown.returncode, 1, "exit status for a job that Slurm does not know")
    expect_in("Slurm does not know job 999999", unknown.stderr, "what it says")
