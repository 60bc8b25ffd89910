# SPDX-License-Identifier: GPL-2.0-or-later
"""The same jobs with jobfence and without it: what Slurm and the user see of them is the same.

No value of Slurm's is written down here but to make sure that a scenario shows what it is meant
to. What is expected is what the Slurm of this very site does when it has never heard of jobfence.
Only what jobfence is for differs on purpose, and has no scenario: running out of memory, and what
becomes of processes that are left behind.
"""

import contextlib
import inspect
import os
import re
import time

from contract import kernel
from contract.harness import PYTHON, Skip, case, expect, expect_equal, expect_in, expect_match
from contract.sites import until
from .. import accounting
from ..accounting import Accounting
from .steps import MPI, mpi_ways

SCENARIOS = []


def scenario(function):
    """A function that returns something comparable, the same each time without jobfence. One that yields begins before the others, and
    goes on after them."""
    SCENARIOS.append(function)
    return function


# ----------------------------------------------------------------------------------------
# What is seen of a job


def plain(text, *jobids):
    """Without what differs from one run to the next: numbers of jobs and processes, times."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+(\.\d+)?", "TIME", text)
    for jobid in jobids:
        text = re.sub(rf"(?i)\b((?:job|allocation|step) |stepid=){jobid}\b", r"\1JOB", text)
    # A step that follows another at once may come before its end is known: a matter of chance.
    text = re.sub(r"(?m)^srun: (Job JOB step creation temp|Step created for).*\n", "", text)
    # What a shell says of the `sleep` for which it waited, if it gets so far.
    return re.sub(r"(?m)^(.*slurm_script: line.*)?(Killed|Terminated|User defined signal).*\n", "", text)


class Watch:
    """The logs from now on."""

    def __init__(self, site):
        self.site = site
        self.mark = site.controller_log.stat().st_size
        self.completions = site.controller_log.with_name("jobcomp.log")
        self.completed = self.completions.stat().st_size if self.completions.exists() else 0

    def controller(self):
        with open(self.site.controller_log, "rb") as log:
            log.seek(self.mark)
            return log.read().decode(errors="replace")

    def steps_made(self, jobid):
        """In their order. The log has DebugFlags=Steps."""
        return re.findall(rf"step_create\w*: JobId={jobid} StepId=(?:{jobid}\.)?(\S+)",
                          self.controller())

    def steps_ended(self, jobid):
        """With the status that the controller was told; two at once may come in any order."""
        return sorted(re.findall(
            rf"REQUEST_STEP_COMPLETE for StepId={jobid}\.(\S+) nodes \S+ rc=(\d+)",
            self.controller()))

    def runs(self, jobid):
        """Each end of a run, as Slurm keeps it in its own records."""
        with open(self.completions) as records:
            records.seek(self.completed)
            lines = [line for line in records if line.startswith(f"JobId={jobid} ")]
        keys = ("JobState", "ExitCode", "DerivedExitCode", "NodeCnt", "ProcCnt", "Tres")
        return [{key: value for key, value in re.findall(r"(\w+)=(\S*)", line) if key in keys}
                for line in lines]


def seen_of(site, watch, jobid):
    """All that remains to be seen of a job that is over."""
    keys = ("JobState", "Reason", "ExitCode", "DerivedExitCode", "Restarts", "NumCPUs", "TRES")
    until(lambda: not site.step_daemons(jobid), 20, f"the end of the step daemons of job {jobid}")
    found = watch.runs(jobid)
    expect(found, f"Slurm has no record of the end of job {jobid}")
    return {
        "job": [{key: job.get(key) for key in keys} for job in site.jobs(jobid)],
        "runs": found,
        "steps made": watch.steps_made(jobid),
        "steps ended": watch.steps_ended(jobid),
        # Sorted: srun, the tasks and the step daemon say it, each when it comes to it.
        "output": sorted(plain(site.output(jobid), jobid).splitlines()),
    }


def heard(site, name="heard"):
    """What tasks have written to this file: srun does not pass on all that they say at the end."""
    return sorted(set(kernel.read(site.directory(site.users[0]) / name).splitlines()))


def begun(site, script, *args, name="heard"):
    """A job in whose file of this name nothing was heard yet, and what watches it."""
    watch = Watch(site)
    (site.directory(site.users[0]) / name).unlink(missing_ok=True)
    return watch, site.submit(site.users[0], script, "--mem=100", *args)


def batch(site, script, *args, state="COMPLETED", during=None):
    """Runs it to its end, after what happens to it meanwhile."""
    watch, jobid = begun(site, script, *args)
    if during:
        during(jobid)
    expect_equal(site.wait(jobid), state, f"state of job {jobid}")
    return {**seen_of(site, watch, jobid), "heard": heard(site)}


def hears(site, what, name="heard"):
    until(lambda: what in heard(site, name), 20, f"{what!r}")


# ----------------------------------------------------------------------------------------
# The scenarios


@scenario
def statuses_of_steps(site):
    found = batch(site, """
        srun -n1 true; echo normal $?
        srun -n1 sh -c 'exit 3'; echo status $?
        srun -n1 sh -c 'kill -9 $$'; echo killed $?
        srun -n1 sh -c 'kill -SEGV $$'; echo fault $?
        srun -n1 /nonexistent/program; echo no program $?
        srun -n4 -O sh -c 'exit $((SLURM_PROCID * 2))'; echo four $?
        srun -n1 --input=none cat; echo input $?
        exit 7
        """, "-c1", state="FAILED")
    expect_equal(found["runs"][-1]["ExitCode"], "7:0", "ExitCode")
    expect_equal(found["steps made"], [str(n) for n in range(7)], "steps")
    expect_equal(len(found["steps ended"]), 7, "number of steps that have ended")
    for line in ("normal 0", "status 3", "killed 137", "four 6"):
        expect_in(line, found["output"], "output")
    return found


@scenario
def bad_exit_kills(site):
    """Until the other tasks are there, nobody fails."""
    task = """
        if [ $SLURM_PROCID = 2 ]; then
            until [ -e there.0 ] && [ -e there.1 ] && [ -e there.3 ]; do sleep 0.1; done
            exit 5
        fi
        touch there.$SLURM_PROCID
        exec sleep 300
        """
    found = batch(site, f"""
        rm -f there.*
        srun -n4 -O --kill-on-bad-exit=1 sh -c '{task}'
        echo srun $?
        rm -f there.*
        """, "-c1")
    # Slurm sends the others SIGTERM and SIGKILL together. Of which they die, and with whose status
    # srun ends, is a matter of chance: only the first cause is compared.
    expect_match(r"task 2: Exited with exit code 5", "\n".join(found["output"]), "output")
    return [line for line in found["output"] if "task 2:" in line or "Terminating" in line]


@scenario
def programs_of_its_own(site):
    """TaskProlog's exports and words, srun's prologs, the order of all."""
    user = site.users[0]
    for name, text in {
        "prolog": "#!/bin/sh\necho export FROM_PROLOG=honoured\necho print from the prolog\n",
        "epilog": "#!/bin/sh\necho epilog $SLURM_STEP_ID $FROM_PROLOG >>order\n",
        "programs": "0 sh -c 'echo first; exit 1'\n1-2 echo %t is %o\n",
    }.items():
        path = site.directory(user) / name
        path.write_text(text)
        path.chmod(0o755)
    found = batch(site, """
        rm -f order
        srun -n1 --task-prolog=$PWD/prolog --task-epilog=$PWD/epilog \\
            sh -c 'echo task $FROM_PROLOG >>order; exit 2'
        echo srun $? >>order
        srun -n1 --prolog=$PWD/prolog --epilog=$PWD/epilog sh -c 'echo task $FROM_PROLOG >>order'
        cat order; rm order
        srun -n3 -O -l --multi-prog programs; echo several $?
        """, "-c1")
    expect_in("task honoured", found["output"], "output")
    expect_in("several 1", found["output"], "output")
    return found


@scenario
def streams_of_srun(site):
    """What goes in and comes out, and where. Of one status that both tasks have, srun would speak once or twice."""
    done = site.as_user(site.users[0], [
        "srun", "-n2", "-O", "--mem=100", "--label", "sh", "-c",
        "cat; echo out; echo err >&2; exit $((4 + SLURM_PROCID))"], stdin="one\ntwo\n")
    expect_equal(done.returncode, 5, "exit status of srun")
    expect_in("0: two\n", done.stdout, "srun's stdout")
    return done.returncode, sorted(done.stdout.splitlines()), sorted(done.stderr.splitlines())


@scenario
def death_of_the_script(site):
    found = batch(site, "echo here; kill -9 $$", "-c1", state="FAILED")
    expect_equal(found["runs"][-1]["ExitCode"], "0:9", "ExitCode")
    return found


# srun does not wait until the controller knows how its step has ended; that of a job that has ended does not count.
UNTIL_ITS_END_IS_KNOWN = r"while squeue -h -s -o %i | grep -q '\.0$'; do sleep 0.1; done"
NEVER_ENDS = "while :; do sleep 300 </dev/null >/dev/null 2>&1 & wait $!; done"


@scenario
def signals(site):
    """To the steps alone, to the script alone, to both."""
    def during(jobid):
        hears(site, "task ready")
        for options, words in (
            (("--signal=USR1",), ["task USR1"]),
            (("--signal=USR2", "--batch"), ["script USR2"]),
            (("--signal=USR1", "--full"), ["script USR1"]),
        ):
            before = heard(site)
            expect(not set(words) & set(before), f"before {options}: {before}")
            site.scancel(*options, jobid)
            for word in words:
                hears(site, word)
        site.scancel("--signal=TERM", f"{jobid}.0")
    found = batch(site, f"""
        trap 'echo script USR1 >>heard' USR1
        trap 'echo script USR2 >>heard' USR2
        srun -n1 sh -c 'trap "echo task USR1 >>heard" USR1; trap "echo task USR2 >>heard" USR2
            trap "echo task TERM >>heard; exit 6" TERM
            echo task ready >>heard; {NEVER_ENDS}' &
        srun=$!
        while kill -0 $srun 2>/dev/null; do wait $srun; status=$?; done
        echo srun $status
        {UNTIL_ITS_END_IS_KNOWN}
        exit 2
        """, "-c1", state="FAILED", during=during)
    # Without --batch or --full a script hears nothing, and with --batch nobody else.
    expect_equal(found["heard"], ["script USR1", "script USR2", "task TERM", "task USR1", "task ready"],
                 "what was heard")
    expect_in("srun 6", found["output"], "output")
    expect_equal(found["runs"][-1]["ExitCode"], "2:0", "ExitCode")
    return found


@scenario
def cancelled(site):
    """SIGCONT, SIGTERM, and after KillWait SIGKILL for those who do not listen."""
    found = batch(site, f"""
        srun -n1 sh -c 'trap "echo task TERM >>heard" TERM; trap "echo task CONT >>heard" CONT
            echo task ready >>heard; {NEVER_ENDS}'
        """, "-c1", state="CANCELLED", during=lambda jobid: (
            hears(site, "task ready"), site.scancel(jobid)))
    expect_equal(found["heard"], ["task CONT", "task TERM", "task ready"], "what was heard")
    # How far srun comes with what it has to say until it is killed itself is a matter of chance.
    del found["output"]
    return found


@scenario
def cancelled_script(site):
    found = batch(site, f"trap 'echo TERM >>heard' TERM; echo ready >>heard; {NEVER_ENDS}", "-c1",
                  state="CANCELLED", during=lambda jobid: (
                      hears(site, "ready"), site.scancel("--full", jobid)))
    expect_in("TERM", found["heard"], "what was heard")
    return found


@scenario
def suspended(site):
    """The task stands still meanwhile, and goes on where it was."""
    alive = site.directory(site.users[0]) / "alive"
    states = []

    def during(jobid):
        hears(site, "ready")
        for command, wanted in (("suspend", False), ("resume", True)):
            done = site.command("scontrol", command, str(jobid))
            states.append((command, done.returncode, done.stderr, site.job(jobid)["JobState"]))
            # Without waiting for it, the signal would be refused: Slurm answers first.
            until(lambda: (time.time() - alive.stat().st_mtime < 1.5) is wanted, 20, command)
        site.scancel("--signal=USR1", jobid)
    found = batch(site, """
        srun -n1 sh -c 'trap "echo USR1 >>heard; exit 0" USR1; touch alive; echo ready >>heard
            while :; do touch alive; sleep 0.2; done'
        echo srun $?
        """, "-c1", during=during)
    expect_equal([state for *_, state in states], ["SUSPENDED", "RUNNING"], "states")
    expect_in("srun 0", found["output"], "output")
    return found, states


@scenario
def requeued(site):
    def during(jobid):
        hears(site, "run 0")
        site.run_again(jobid)
    found = batch(site, f"""
        echo run $((SLURM_RESTART_COUNT)) >>heard
        [ $((SLURM_RESTART_COUNT)) = 1 ] && exit 3
        {NEVER_ENDS}
        """, "-c1", "--requeue", "--open-mode=append", state="FAILED", during=during)
    expect_equal(found["heard"], ["run 0", "run 1"], "what was heard")
    expect_equal(found["runs"][-1]["ExitCode"], "3:0", "ExitCode")
    expect_equal(found["job"][0]["Restarts"], "1", "Restarts")
    return found


@scenario
def time_limit(site):
    """Its end is moved here. The controller looks every 30 s, and no limit is below a minute: so the others run meanwhile."""
    script = f"trap 'echo TERM >>timed' TERM; echo ready >>timed; {NEVER_ENDS}"
    watch, jobid = begun(site, script, "-c1", "--time=1", name="timed")
    hears(site, "ready", "timed")
    site.command("scontrol", "update", f"jobid={jobid}", "EndTime=now+1seconds")
    yield
    expect_equal(site.wait(jobid), "TIMEOUT", f"state of job {jobid}")
    found = {**seen_of(site, watch, jobid), "heard": heard(site, "timed")}
    expect_match("TIME LIMIT", "\n".join(found["output"]), "output")
    return found


@scenario
def array(site):
    watch = Watch(site)
    jobid = site.submit(site.users[0], "echo task $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID",
                        "--array=0-3", "-c1", "--mem=50")
    site.wait(jobid)
    tasks = sorted((int(job["ArrayTaskId"]), int(job["JobId"])) for job in site.jobs(jobid))
    expect_equal(len(tasks), 4, "number of tasks")
    found = [(watch.runs(number), site.output(number)) for _, number in tasks]
    expect_equal([runs[-1]["ExitCode"] for runs, _ in found], ["0:0", "1:0", "2:0", "3:0"],
                 "exit codes")
    return found


@scenario
def never_started(site):
    """Jobs that Slurm itself refuses or cannot start."""
    user = site.users[0]
    watch = Watch(site)
    jobid = site.submit(user, "true", "-c1", "--mem=100", "--output=/nonexistent/%j.out")
    site.wait(jobid)
    nowhere = site.srun(user, "--partition=nonexistent", "true")
    expect(nowhere.returncode != 0, "srun returned 0")
    return watch.runs(jobid), site.job(jobid)["JobState"], nowhere.returncode, nowhere.stderr


@scenario
def allocation(site):
    """Steps in salloc's allocation: srun tells the user, and so does salloc."""
    done = site.as_user(site.users[0], [
        "salloc", "-n1", "--mem=100", "sh", "-c",
        "srun sh -c 'exit 3'; echo $?; srun sh -c 'echo on stderr >&2'; exit 9"])
    expect_equal(done.returncode, 9, "exit status of salloc")
    jobid = expect_match(r"job allocation (\d+)", done.stderr, "salloc's stderr")[1]
    # Whether salloc still hears of the end of its own allocation is a matter of chance.
    told = [line for line in plain(done.stderr, jobid).splitlines() if "revoked" not in line]
    return done.returncode, done.stdout, sorted(told)


@scenario
def parallel_program(site):
    try:
        ways = mpi_ways(site)
    except Skip:
        return "no MPI here"
    found = []
    for library, plugin in ways:
        done = site.srun(site.users[0], f"--mpi={plugin}", "-n4", "--overcommit", "--mem=400",
                         PYTHON, "-S", "-c", MPI, library)
        # Where an MPI library was installed without what Slurm's plugin needs, it fails without jobfence, too.
        found.append((library, plugin, done.returncode, sorted(re.findall(r"rank \d+ of \d+: \d+", done.stdout))))
    return found


@scenario
def measured(site):
    """What Slurm itself measures of a step it goes on measuring; how much that is, is a matter of chance."""
    jobid = site.submit(site.users[0], f"""
        srun -n1 {PYTHON} -S -c '
        import time
        filled = bytes([1]) * (50 << 20)
        while time.process_time() < 2: pass
        '
        """.replace("\n        ", "\n"), "-c1", "--mem=200")
    expect_equal(site.wait(jobid), "COMPLETED", f"state of job {jobid}")
    if not site.accounting:
        return None
    (step,) = [row for row in site.accounting.rows([jobid], ("TotalCPU", "MaxRSS")) if row["JobID"] == "0.0"]
    # Such as 00:04.123 and 59.12M. What an emulated processor does before it comes to the loop counts, too.
    minutes, seconds = step["TotalCPU"].split(":")[-2:]
    mib = float(step["MaxRSS"].rstrip("M") or 0)
    expect(2 <= 60 * int(minutes) + float(seconds) < 40 and 50 <= mib <= 200, f"measured is {step}")
    return "as much as it has used"


def components(site):
    """Of a job of several, and of their one step."""
    watch = Watch(site)
    jobid = site.submit(site.users[0], f"""
        srun --het-group=0,1 -l sh -c 'echo $SLURM_NTASKS $SLURM_CPUS_ON_NODE; exit $SLURM_PROCID'
        echo srun $?
        {UNTIL_ITS_END_IS_KNOWN}
        exit 4
        """, "-n1", "-c2", "--mem=200", ":", "-n2", "-c1", "--mem=100")
    site.wait(jobid)
    expect_equal(len(site.jobs(jobid)), 2, "number of components")
    runs = watch.runs(jobid) + watch.runs(jobid + 1)
    expect_equal(runs[0]["ExitCode"], "4:0", "ExitCode of the first")
    output = sorted(plain(site.output(jobid), jobid, jobid + 1).splitlines())
    expect_in("srun 2", output, "output")
    return runs, output


# ----------------------------------------------------------------------------------------
# The comparison


# Not why a job had to wait, nor which scheduler started it: that is a matter of chance.
ACCOUNTED = ("JobName", "User", "Partition", "NNodes", "NTasks", "AllocCPUS", "Layout", "State", "ExitCode",
             "DerivedExitCode", "ReqTRES", "AllocTRES")
ACCOUNTED_BY_CHANCE = {
    # Of which signal the other tasks die.
    "bad_exit_kills": {"State", "ExitCode", "DerivedExitCode"},
    # srun ends its job perhaps before the controller knows how the step has ended.
    "streams_of_srun": {"DerivedExitCode"},
}

# On a busy machine the controller hears of the end of a component before it hears of that of its extern step, and then has its own word
# for that.
EXTERN_BY_CHANCE = {"components": {"State"}}


def attempt(function, *args):
    """What fails is an outcome, too."""
    try:
        return function(*args)
    except AssertionError as error:
        return f"failed: {error}"


def ended(beginning):
    """What a scenario that has yielded comes to."""
    try:
        next(beginning)
    except StopIteration as end:
        return end.value
    raise AssertionError("a scenario yields once")


def outcomes(site, scenarios):
    """What each scenario came to, and what sacct says of all its jobs, by their names."""
    def jobs():
        return {int(job["JobId"]) for job in site.jobs()}
    found, made, waiting = {}, {}, {}
    for function in sorted(scenarios, key=inspect.isgeneratorfunction, reverse=True):
        before = jobs()
        if inspect.isgeneratorfunction(function):
            waiting[function.__name__] = function(site)
            found[function.__name__] = attempt(next, waiting[function.__name__])
        else:
            found[function.__name__] = attempt(function, site)
        made[function.__name__] = jobs() - before
    for name, beginning in waiting.items():
        # None, if it came so far.
        found[name] = found[name] or attempt(ended, beginning)
    if site.accounting:
        # At the end: the controller tells slurmdbd of new jobs every five seconds.
        for name, numbers in made.items():
            if numbers:
                fields = [field for field in ACCOUNTED if field not in ACCOUNTED_BY_CHANCE.get(name, ())]
                rows = attempt(site.accounting.rows, numbers, fields)
                for row in (row for row in rows if isinstance(row, dict) and row["JobID"].endswith(".extern")):
                    for field in EXTERN_BY_CHANCE.get(name, ()):
                        del row[field]
                found[f"{name} in sacct"] = rows
    return found


def differences(ours, theirs, where):
    """Down to the smallest part in which two outcomes differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        which = f" ({ours['JobID']})" if "JobID" in ours else ""
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            yield from differences(ours.get(key), theirs.get(key), f"{where}{which}, {key}")
    elif (isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple))
          and len(ours) == len(theirs)):
        for number, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, f"{where}, {number}")
    elif ours != theirs:
        yield f"{where}: with jobfence {ours!r}, without {theirs!r}"


def compare(site, scenarios, **changes):
    records = site.controller_log.with_name("jobcomp.log")
    changes.update(DebugFlags="Steps", SlurmctldDebug="debug",
                   JobCompType="jobcomp/filetxt", JobCompLoc=records, JobAcctGatherFrequency=1)
    # The private site gathers nothing otherwise.
    if not re.search("= jobacct_gather/(linux|cgroup)", site.command("scontrol", "show", "config").stdout):
        changes.update(JobAcctGatherType="jobacct_gather/linux")
    lacking = " and ".join(accounting.missing())
    expect(not lacking or os.environ.get("CI") != "true", f"accounting needs {lacking}")
    with contextlib.ExitStack() as stack:
        if not lacking:
            changes.update(stack.enter_context(Accounting(site)).keys)
        stack.enter_context(site.reconfigured(**changes))
        mark = site.log_mark()
        ours = outcomes(site, scenarios)
        ours_said = site.log_since(mark)
        with site.unplugged():
            mark = site.log_mark()
            theirs = outcomes(site, scenarios)
            theirs_said = site.log_since(mark)
    broken = [f"{name} without jobfence: {found}" for name, found in theirs.items()
              if str(found).startswith("failed: ")]
    expect(not broken, "\n".join(broken))
    found = [said for name in theirs for said in differences(ours[name], theirs[name], name)]
    expect(not found, "\n".join(found))
    expect_in("jobfence: job ", ours_said, "slurmd's log")
    expect("jobfence: job " not in theirs_said, "jobfence is still there without its line")
    if lacking:
        raise Skip(f"no difference, but sacct's part is not compared: that needs {lacking}")


@case(layout=False, patient=True)
def as_without_jobfence(site):
    compare(site, SCENARIOS)


@case(on=["two-nodes"])
def components_as_without_jobfence(site):
    compare(site, [components], SchedulerParameters="batch_sched_delay=0,bf_interval=1")
