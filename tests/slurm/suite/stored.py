# SPDX-License-Identifier: GPL-2.0-or-later
"""StoreUsage=admincomment: what a job has used, in its record at the controller, as jobstats reads it."""

import base64
import contextlib
import gzip
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

from contract import kernel, sites
from contract.harness import MIB, PYTHON, Skip, case, expect, expect_equal, expect_in, expect_match
from contract.sites import die_with_parent, until
from ..harness import expect_not_drained
from ..sites import InstalledSite
from .granted import accounted
from .left_behind import stepd_dies
from .newer import release, since
from .with_systemd import journal, systemctl

BURN = f"{PYTHON} -S -c 'import time\nb = b\"x\" * (60 << 20)\nwhile time.process_time() < %s: pass'"


# Slurm 22.05 makes each comment lower case before it sends it, and is otherwise as later releases are.
AS_WRITTEN = """\
#include <stdint.h>
static int32_t table[384];
static const int32_t *same = table + 128;
const int32_t **__ctype_tolower_loc(void)
{
    for (int c = -128; c < 256; c++)
        table[c + 128] = c;
    return &same;
}
"""
# With ReapInterval=1 it takes a minute: a restart, a job, and fewer jobs than many wait for others. A call that is late waits longer.
PATIENCE = 300
# In how many seconds the database's commands answer, or hold asks again, about half. Less than `FRESH`, since a call ends before its caller.
IN_TIME = 2
# Three calls to ask and three to tell are by design for so many jobs, of which some are due later than others.
FEW = 6
# A job that ran for less than a second has the second mark: jobstats would divide by its time.
MARKS = "JS1:", "JF1:"


def commands(site):
    """Where Slurm's commands for the database are that note down how often they are called, and what they are told: the directory."""
    place, old = site.home / "commands", release(site) < (23, 2)
    place.mkdir(exist_ok=True)
    preload = ""
    if old:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            raise Skip("Slurm has this since 23.02, and a stand-in for that needs a C compiler")
        done = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", place / "as_written.so"],
                              input=AS_WRITTEN, capture_output=True, text=True, check=False)
        expect_equal((done.returncode, done.stderr), (0, ""), "the compiler")
        preload = f"[ \"$1\" = --version ] && echo 'slurm 23.02.0' && exit\nLD_PRELOAD={place}/as_written.so\nexport LD_PRELOAD\n"
    for name in ("sacct", "sacctmgr"):
        real = shutil.which(name, path=sites.PATH)
        script = place / name
        preloaded = preload if name == "sacctmgr" else ""
        script.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && {{ {preloaded}exec {real} \"$@\"; }}\n"
                          f"echo {name} \"$@\" >>{place}/calls\nbegan=$(date +%s%N)\n{preloaded}{real} \"$@\"\ncode=$?\n"
                          f"[ $(($(date +%s%N) - began)) -gt {IN_TIME}000000000 ] || echo {name} >>{place}/in_time\nexit $code\n")
        script.chmod(0o755)
    return place


def calls(site):
    """What was asked and told since the last time."""
    place = site.home / "commands/calls"
    said = kernel.read(place).splitlines() if place.exists() else []
    place.unlink(missing_ok=True)
    place.with_name("in_time").unlink(missing_ok=True)
    return said


def calls_by_design(site):
    """The calls since the last time, and how many there may be: a call that a busy machine answered late is made again, about half."""
    place = site.home / "commands/in_time"
    in_time = len(kernel.read(place).splitlines()) if place.exists() else 0
    said = calls(site)
    return said, FEW + 2 * (len(said) - in_time)


@contextlib.contextmanager
def held(site, place=None, program=None, variables=(), **keys):
    """The usage log is on, and somebody stores what comes, every second: where the log is, and what he says (but a service).

    `program` is another jobfence than the site's, and `variables` are of its environment.
    """
    log, said = site.home / "usage", site.home / "hold.said"
    site.configure(UsageLog=f"{log}/usage.jsonl", StoreUsage="admincomment", ReapInterval=1, **keys)
    if isinstance(site, InstalledSite):
        systemctl(site, "restart", "jobfence.service")
        hold = None
    else:
        command = [str(program or site.jobfence), "hold", "--config", str(site.config)]
        if Path("/run/systemd/system").is_dir():
            # The scope belongs to the service, so this one sees no systemd.
            command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/systemd && exec "$@"', "sh", *command]
        environment = {**site.environment, **({"PATH": f"{place}:{sites.PATH}"} if place else {}), **dict(variables)}
        with open(said, "w") as words:
            hold = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
                                    env=environment, preexec_fn=die_with_parent)
    site.hold = hold
    try:
        yield log, said
    finally:
        site.hold = None
        site.configure()
        if hold:
            hold.terminate()
            hold.wait(120)
        else:
            systemctl(site, "restart", "jobfence.service")


@contextlib.contextmanager
def storing(site):
    """As `held`, where Slurm has a database, and commands that do not spoil what they store."""
    place = None
    if isinstance(site, InstalledSite):
        since(site, 23, 2)
    else:
        place = commands(site)
    with accounted(site) as records, site.reconfigured(**records.keys), held(site, place) as (log, _):
        yield log


def comment_of(site, jobid):
    done = site.command("sacct", "--noheader", "--parsable2", "--allocations", "--jobs", str(jobid), "--format", "AdminComment")
    return done.stdout.strip()


def summary_of(site, jobid):
    """As jobstats reads it."""
    comment = comment_of(site, jobid)
    return comment.startswith("JS1:") and json.loads(gzip.decompress(base64.b64decode(comment[4:])))


def settled(site, jobid, nodes=1, submitted=0):
    """The summary of a run that was submitted no earlier, once it has all nodes and does not change any more."""
    def found():
        summary = summary_of(site, jobid)
        return summary and len(summary["nodes"]) == nodes and summary["jobfence"]["submitted"] >= submitted and summary
    try:
        summary = until(found, PATIENCE, f"the AdminComment of job {jobid}")
    except AssertionError as error:
        said = site.home / "hold.said"
        raise AssertionError(f"{error}; hold says: {kernel.read(said) if said.exists() else ''}; calls: {calls(site)}") from None
    time.sleep(2.5)
    expect_equal(summary_of(site, jobid)["nodes"].keys(), summary["nodes"].keys(), "the nodes, later")
    return summary_of(site, jobid)


@case(on=["private"], layout=False)
def an_old_slurm_is_told(site):
    """Slurm 22.05 would make the summary lower case: nothing is stored, and the log says why, once."""
    if release(site) >= (23, 2):
        raise Skip("this Slurm can store it")
    with held(site) as (log, said):
        jobid = site.submit(site.users[0], "true", "--mem=100")
        site.wait(jobid)
        until(lambda: any(f'"job":"{jobid}"' in kernel.read(file) for file in log.glob("usage.jsonl*")), 10, "the job's line")
        sentence = "needs Slurm 23.02 or later, and this is "
        until(lambda: sentence in kernel.read(said), 20, "hold's words")
        time.sleep(3)
    expect_equal(kernel.read(said).count(sentence), 1, f"what hold says: {kernel.read(said)}")


@case
def summary_of_a_job(site):
    """The controller knows what the job has used on its node, all its steps together."""
    user = site.users[0]
    with storing(site):
        jobid = site.submit(user, f"{BURN % 1}\nsrun {BURN % 2}\n", "--mem=200", "-n1")
        expect_equal(site.wait(jobid), "COMPLETED", f"state ({site.output(jobid)})")
        summary = settled(site, jobid)
        report = site.command(str(site.jobfence), "report", str(jobid), "--stored")
    expect_equal((report.returncode, report.stderr), (0, ""), "jobfence report --stored")
    expect_match(rf"(?m)^{site.nodes[0]} .* 200.0$", report.stdout, "the report")
    (node, part), = summary["nodes"].items()
    expect_equal(node, site.nodes[0], "the node's name is Slurm's")
    expect_equal(part["total_memory"], 200 * MIB, "total_memory")
    expect(60 * MIB <= part["used_memory"] <= 130 * MIB, f"used_memory is {part['used_memory'] / MIB:.1f} MiB")
    expect(3 <= part["total_time"] <= 3 + 2 * sites.PATIENCE, f"total_time of the node is {part['total_time']} s of CPU, and should be 3")
    expect(part["cpus"] >= 1 and isinstance(part["cpus"], int), f"cpus is {part['cpus']!r}")
    expect(3 <= summary["total_time"] <= 60, f"total_time is {summary['total_time']} s")
    expect_equal(summary["gpus"], 0, "gpus")
    expect_not_drained(site)


@case
def summary_of_a_dead_step(site):
    """What the janitor finds of a step whose daemon died belongs to the job's summary."""
    user = site.users[0]
    with storing(site):
        jobid = site.submit(user, f"{BURN % 2}\ntouch burnt\nsleep 300", "--mem=200", "-n1")
        burnt = site.directory(user) / "burnt"
        until(burnt.exists, 60, "two seconds of CPU time")
        burnt.unlink()
        stepd_dies(site, jobid)
        summary = settled(site, jobid)
    (node, part), = summary["nodes"].items()
    expect_equal((node, part["total_memory"]), (site.nodes[0], 200 * MIB), "the node, and total_memory")
    expect(2 <= part["total_time"] <= 2 + 2 * sites.PATIENCE, f"total_time is {part['total_time']} s, and should be 2")
    return f"{part['total_time']} s"


@case(release=True)
def a_comment_of_somebody_elses_stays(site):
    """What an administrator has written into AdminComment is not overwritten."""
    user = site.users[0]
    with storing(site) as log:
        go = site.directory(user) / "go"
        go.unlink(missing_ok=True)
        jobid = site.submit(user, "until [ -e go ]; do sleep 0.1; done", "--mem=100")
        site.wait_running(jobid)
        done = site.command("scontrol", "update", f"JobId={jobid}", "AdminComment=approved|by root")
        expect_equal(done.returncode, 0, f"scontrol update ({done.stderr})")
        go.touch()
        site.wait(jobid)
        until(lambda: any(f'"job":"{jobid}"' in kernel.read(file) for file in log.glob("usage.jsonl*")), 10, "the job's line")
        until(lambda: comment_of(site, jobid), 20, "the comment in the database")
        said = (lambda: journal(site)) if isinstance(site, InstalledSite) else lambda: kernel.read(site.home / "hold.said")
        until(lambda: f"job {jobid}: its AdminComment has another text" in said(), PATIENCE, "hold's words")
        expect_equal(comment_of(site, jobid), "approved|by root", "AdminComment")


@case(release=True)
def each_of_an_array_has_its_own(site):
    """The last job of an array has the array's number, which would be all of them."""
    user = site.users[0]
    with storing(site):
        array = site.submit(user, f"[ $SLURM_ARRAY_TASK_ID = 1 ] || {BURN % 2}", "--mem=100", "--array=0-1")
        def rows():
            done = site.command("sacct", "--noheader", "--parsable2", "--allocations", "--jobs", str(array),
                                "--format", "JobID,AdminComment")
            found = dict(line.split("|") for line in done.stdout.splitlines())
            return len(found) == 2 and all(found.values()) and found
        found = until(rows, PATIENCE, "both comments")
        time.sleep(2.5)
        found = rows()
    times = [next(iter(json.loads(gzip.decompress(base64.b64decode(found[f"{array}_{task}"][4:])))["nodes"].values()))["total_time"]
             for task in (0, 1)]
    expect(times[0] >= 2 > 1 > times[1], f"the CPU times of the two are {times}")


@case(on=["two-nodes"])
def summary_of_two_nodes(site):
    """Each node adds its part."""
    user = site.users[0]
    with storing(site):
        jobid = site.submit(user, f"srun {BURN % 1}\n", "-N2", "-n2", "--mem-per-cpu=100")
        expect_equal(site.wait(jobid), "COMPLETED", f"state ({site.output(jobid)})")
        summary = settled(site, jobid, nodes=2)
    expect_equal(sorted(summary["nodes"]), site.nodes, "the nodes")
    for node, part in summary["nodes"].items():
        # Beside its second the interpreter starts, and on one of the nodes srun.
        most = 2 + 2 * sites.PATIENCE
        expect(1 <= part["total_time"] <= most, f"total_time on {node} is {part['total_time']}")
        expect_in("used_memory", part, node)


@case(on=["private"], layout=False)
def runs_of_a_requeued_job_are_apart(site):
    """The newest run's record has what that run has used; a record of a run before has nothing."""
    user = site.users[0]
    with storing(site):
        script = f"[ -n \"$SLURM_RESTART_COUNT\" ] || {{ {BURN % 3}; touch burnt; sleep 300; }}\n{BURN % 1}"
        jobid = site.submit(user, script, "--mem=200", "-n1", "--requeue", "--open-mode=append")
        burnt = site.directory(user) / "burnt"
        until(burnt.exists, 60, "three seconds of CPU time")
        burnt.unlink()
        again = int(time.time())
        site.run_again(jobid)
        expect_equal(site.wait(jobid), "COMPLETED", f"state ({site.output(jobid)})")
        summary = settled(site, jobid, submitted=again)
        done = site.command("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--jobs", str(jobid),
                            "--format", "State,ElapsedRaw,AdminComment")
    runs = [line.split("|") for line in done.stdout.splitlines()]
    expect_equal([(state, bool(comment)) for state, _, comment in runs], [("REQUEUED", False), ("COMPLETED", True)], "the records")
    (part,) = summary["nodes"].values()
    expect(1 <= part["total_time"] < 3, f"the CPU time of the second run is {part['total_time']} s, and should be 1")
    expect(abs(summary["total_time"] - int(runs[1][1])) <= 1, f"total_time is {summary['total_time']} s, and Slurm says {runs[1][1]}")


# More than `hold` makes wait for others.
MANY = 45


def marked(site, *arrays):
    """How many jobs of these have a summary. None, while slurmdbd does not know all."""
    done = site.command("sacct", "--noheader", "--parsable2", "--allocations", "--jobs", ",".join(map(str, arrays)),
                        "--format", "JobIDRaw,End,AdminComment")
    rows = [line.split("|") for line in done.stdout.splitlines()]
    is_whole = len(rows) == len({job for job, *_ in rows}) and all(end != "Unknown" for _, end, _ in rows)
    return (len(rows), sum(comment.startswith(MARKS) for *_, comment in rows)) if is_whole else None


def noted_as_stored(log):
    """The numbers of the jobs about which hold will not ask again."""
    text = kernel.read(log / ".usage.jsonl.stored")
    return {str(number) for number, _, _, _, is_done, *_ in json.loads(text or "{}").get("jobs", ()) if is_done}


@case(on=["private"], layout=False, patient=True)
def many_jobs_are_few_calls(site):
    """Many jobs that ended before are three calls at most; a restart asks about none of them; more output than a pipe holds is read."""
    user = site.users[0]
    place = commands(site)
    with accounted(site) as records, site.reconfigured(**records.keys):
        with held(site, place):
            pass
        log = site.home / "usage"
        site.configure(UsageLog=f"{log}/usage.jsonl")
        array = site.submit(user, "true", "--mem=50", f"--array=0-{MANY - 1}")
        site.wait(array)
        until(lambda: marked(site, array) == (MANY, 0), 240, "the end of all of the array")
        calls(site)
        with held(site, place) as (_, said):
            until(lambda: marked(site, array) == (MANY, MANY), 900, "all comments")
            first, most = calls_by_design(site)
            expect(len(first) <= most, f"for {MANY} jobs there were {len(first)} calls: {first}; hold says: {kernel.read(said)}")
            array_jobs = {str(job["JobId"]) for job in site.jobs(array)}
            # What a call has written that was answered late is not known to be written, and is asked about again.
            until(lambda: noted_as_stored(log) >= array_jobs, PATIENCE, "all of these among those that hold has noted as stored")
        text = "x" * 2000
        done = site.command("sacctmgr", "--immediate", "modify", "job", "where", f"jobid={array}", "set", f"AdminComment={text}")
        expect_equal(done.returncode, 0, f"sacctmgr ({done.stderr})")
        with held(site, place) as (_, said):
            # Whatever is known to be due is asked about with it.
            jobid = site.submit(user, BURN % 1, "--mem=200")
            settled(site, jobid)
            asked = [number for call in calls(site) for numbers in re.findall(r"--jobs (\S+)", call) for number in numbers.split(",")]
            expect(str(jobid) in asked, f"asked about after a restart, beside job {jobid}: {asked}")
            expect(not array_jobs.intersection(asked), f"asked about after a restart: {asked}; hold says: {kernel.read(said)}")
        # Without what it has noted down, it asks about all again, and sacct says more than a pipe holds.
        (log / ".usage.jsonl.stored").unlink()
        with held(site, place) as (_, said):
            of_another = lambda: len(set(re.findall(r"job (\d+): its AdminComment has another text", kernel.read(said))) & array_jobs)  # noqa: E731
            until(lambda: of_another() == MANY, PATIENCE, lambda: f"hold's words about all, and not {of_another()}: {kernel.read(said)}")
            again, most_again = calls_by_design(site)
            expect(len(again) <= most_again, f"then there were {len(again)} calls: {again}; hold says: {kernel.read(said)}")
    return f"{len(first)} calls of at most {most}, then {len(again)} of at most {most_again}"


@case(on=["private"], layout=False, patient=True)
def all_jobs_from_the_database(site):
    """The hours of jobs by two users in two accounts are those of sacct, and a user sees the own ones."""
    users, accounts, each = site.users[:2], ("physics", "biology"), 10
    with storing(site):
        arrays = []
        for user, account in zip(users, accounts):
            for words in (("account", account), ("user", user, f"account={account}")):
                done = site.command("sacctmgr", "--immediate", "add", *words)
                expect_equal(done.returncode, 0, f"sacctmgr add {words}: {done.stdout} {done.stderr}")
            arrays.append(site.submit(user, BURN % 0.5, "--mem=100", f"--account={account}", f"--array=1-{each}"))
        def hours(array):
            done = site.command("sacct", "--noheader", "--parsable2", "--allocations", "--jobs", str(array), "--format", "CPUTimeRAW")
            return sum(map(int, done.stdout.split())) / 3600
        until(lambda: marked(site, *arrays) == (2 * each, 2 * each), 900, "the summaries of all jobs")
        asked = [str(site.jobfence), "report", "--config", str(site.config), "--since", "1day", "--by", "account", "--stored", "--json"]
        done = site.command(*asked)
        expect_equal(done.returncode, 0, f"report ({done.stderr})")
        said = json.loads(done.stdout)
        groups = {group["name"]: group for group in said["groups"]}
        for array, account in zip(arrays, accounts):
            group, reserved = groups[account], hours(array)
            expect_equal(group["jobs"], each, f"jobs of {account}")
            expect(abs(group["cpu_hours_reserved"] + group["cpu_hours_unmeasured"] - reserved) < 1e-4, f"sacct has {reserved} CPU-hours: {group}")
            expect_equal(group["jobs_cpu_unknown"], 0, f"{account}: {group}")
            used = group["cpu_hours_used"] * 3600
            expect(each * 0.4 < used < each * 20, f"{account} used half a second in each job: {group}")
        done = site.as_user(users[1], asked)
        own = json.loads(done.stdout or "{}")
        expect_equal([group["name"] for group in own.get("groups", [])], [accounts[1]], f"what a user sees ({done.stderr})")


@case(on=("private",), layout=False)
def check_asks_the_database(site):
    """QOS and accounts that slurmdbd does not have are named, and none that it has."""
    with accounted(site) as records, site.reconfigured(**records.keys):
        site.configure_raw("[QOS=normal,nosuchqos]\nMaxProcesses=50\n[Account=root,nosuchaccount]\nMaxProcesses=50\n")
        said = site.command(str(site.jobfence), "check", "--config", str(site.config)).stdout
        found = re.findall(r"(?m)^section +(\[.*\]: .*)$", said)
        expect_equal(found, ["[QOS=normal,nosuchqos]: there is no QOS nosuchqos",
                             "[Account=root,nosuchaccount]: there is no account nosuchaccount"], f"what check says\n{said}")
