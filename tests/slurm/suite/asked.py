# SPDX-License-Identifier: GPL-2.0-or-later
"""A user's word: what he asks for when he submits, and what his job is told of its limits."""

import os
import re
import tempfile
from pathlib import Path

from contract import kernel
from contract.harness import IN_VAR, MIB, allocated, case, ended, expect, expect_equal, expect_in, expect_match, fenced, logged, started
from contract.sites import until
from ..harness import RAN, NOT_STARTED, expect_not_drained, expect_not_started, fences_well
from ..sites import UNFINISHED
from .disks import a_disk
from .limits import LONG_PERIOD, SPIN, expect_quota_used, spinning
from .steps import running_job

OPTIONS = {
    "--cpu-limit": ("CPUS", ["half", "0", "0.0005", "-1", "1025", "0.5 ", "x" * 2000]),
    "--cpu-burst": ("PERCENT", ["101", "-1", "much"]),
    "--mem-high": ("SIZE", ["1K", "1.5G", "all"]),
    "--pids-max": ("COUNT", ["0", "4194305", "99999999999999999999", "50 60"]),
    "--io-max": ("RULES", ["/scratch", "scratch rbps=1M", "/scratch rbps=1M; /scratch rbps=2M", "/scratch speed=1",
                           "/scratch rbps=1023K", "/scratch riops=99"]),
    "--usage-card": ("WHEN", ["sometimes", "always ", "yes"]),
    "--delegate": ("YES", ["maybe", "yes "]),
    "--signal-at": ("SHARES", ["mem:100%", "90%", "mem:90%:KILL", "B:mem:90%", "mem:90%,", "pids:90%,pids:90%:USR1", "cpu:20%", "pressure:10%"]),
    "--elastic-ram": ("PERCENT", ["99", "1001", "no", "120,5"]),
}
# Slurm's own name for an option of a plugin in the environment of its commands.
VARIABLE = "SLURM_SPANK__SLURM_SPANK_OPTION_jobfence_{}"
# In a step's environment: what the command that launched it read.
LAUNCHED = "_SLURM_SPANK_OPTION_jobfence_{}"
# What sbatch and salloc tell every step of the job.
OF_THE_JOB = "SLURM_SPANK_JOBFENCE_{}"
TOLD = "env | grep ^JOBFENCE_ | sort; echo ."


def told(said):
    """The variables in what TOLD has written, of the one time or the last."""
    lines = said.split("\n.\n")[-2] if "\n.\n" in said else said
    return dict(line.split("=", 1) for line in lines.splitlines() if line.startswith("JOBFENCE_"))


def told_by(site, jobid):
    until(lambda: "\n.\n" in site.output(jobid) or site.job(jobid).get("JobState") not in UNFINISHED, 20,
          "what the job is told")
    return told(site.output(jobid))


@case(layout=False)
def options_in_help(site):
    for command in "sbatch", "srun", "salloc":
        done = site.as_user(site.users[0], [command, "--help"])
        for option, (argument, _) in OPTIONS.items():
            expect_in(f"{option}={argument}", done.stdout, f"{command} --help")
        expect(done.stdout.count("[jobfence]") >= len(OPTIONS), f"{command} --help does not say whose options they are")


@case(release=True)
def part_of_a_cpu(site):
    site.configure(**LONG_PERIOD)
    jobid = site.submit(site.users[0], f"{TOLD}\n{SPIN}", "-c1", "--mem=200", "--cpu-limit=0.5")
    group = spinning(site, jobid)
    expect_equal(group.cpu_limit(), 0.5, "CPU limit of the job")
    # In Slurm's own directory of the job its daemons have some more.
    step = fenced(site, jobid)
    expect_equal(step.cpu_limit(), 0.5, "CPU limit of the step")
    expect_equal(told_by(site, jobid).get("JOBFENCE_CPUS"), "0.5", "what the job is told")
    said = expect_quota_used(site, step, 0.5)
    site.end(jobid)
    return said


@case(layout=False)
def every_option_of_a_job(site):
    site.configure(CPUBurst="50")
    user = site.users[0]
    jobid = site.submit(user, f"{TOLD}\nsleep 300", "-c1", "--mem=200", "--cpu-limit=0.75", "--cpu-burst=20",
                        "--mem-high=100M", "--pids-max=50")
    step = fenced(site, jobid)
    site.expect_limits(step, 0.75, 200)
    expect_equal(step.processes_limit(), 50, "process limit")
    expect_equal(step.cpu_burst_us(), step.cpu_period_us() * 0.75 * 0.2, "burst in us")
    if kernel.has_v2_controllers():
        expect_equal(step.memory_high(), 100 * MIB, "memory above which it is reclaimed")
    found = told_by(site, jobid)
    wanted = {"CPUS": "0.75", "CPU_BURST": "20", "MEMORY_HIGH_BYTES": str(100 * MIB), "MAX_PROCESSES": "50",
              "MEMORY_BYTES": str(200 * MIB)}
    expect_equal({name: found.get(f"JOBFENCE_{name}") for name in wanted}, wanted, "what the job is told")
    site.scancel(jobid)


@case
def io_that_is_asked_for(site):
    """By the site and by the user: the lower rates of both, and what only one has named."""
    with a_disk() as disk:
        site.configure(IOMax=f"{disk.target} rbps=8M wbps=4M")
        jobid = site.submit(site.users[0], f"{TOLD}\nsleep 300", "-c1", "--mem=100",
                            f"--io-max={disk.target} rbps=2M wbps=900M riops=500")
        step = fenced(site, jobid)
        wanted = {"rbps": 2 * MIB, "wbps": 4 * MIB, "riops": 500}
        # v1 counts each directory for itself, so each step is held to it.
        for one in (step, step.parent) if kernel.has_v2_controllers() else (step,):
            expect_equal(one.io_max().get(disk.number), wanted, f"I/O limits of {one.path}")
        expect_equal(told_by(site, jobid).get("JOBFENCE_IO_MAX"), f"{disk.target} rbps=2M wbps=4M riops=500",
                     "what the job is told")
        site.end(jobid)
        # Where the site has no such limit.
        site.configure()
        jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100", f"--io-max={disk.target} wbps=1M")
        expect_equal(fenced(site, jobid).io_max().get(disk.number), {"wbps": MIB}, "I/O limits of the step")
        site.end(jobid)


@case(layout=False)
def paths_that_are_not_ones_own(site):
    """Root's answers would tell what is in a directory that the user cannot enter, and where links there lead."""
    user = site.users[0]
    with tempfile.TemporaryDirectory(**IN_VAR) as closed:
        os.chmod(closed, 0o700)
        Path(closed, "there").touch()
        Path(closed, "link").symlink_to("/secret/place")
        said = set()
        for name in "there", "none", "link":
            done = site.srun(user, "--mem=50", f"--io-max={closed}/{name} rbps=1M", "true")
            expect(done.returncode != 0, f"the step ran with a rate for {closed}/{name}")
            expect_in("Permission denied", done.stderr, "what srun says")
            expect_in("Try it without --io-max", done.stderr, "what srun says")
            reason = next(line for line in done.stderr.splitlines() if NOT_STARTED in line)
            said.add(re.sub(r"\d+", "", reason.replace(f"{closed}/{name}", "PATH")))
        expect_equal(len(said), 1, f"different answers: {said}")
    expect_not_drained(site)


@case(layout=False)
def whose_limit_it_is(site):
    """Who is refused a process reads who can allow more: the user himself, or the administrator alone."""
    user = site.users[0]
    forks = ["bash", "-c", "for i in {1..40}; do sleep 2 & done 2> refused; wait; true"]
    for most, asked, advice in ((None, 20, "Start fewer, or ask for more with --pids-max."),
                                (20, None, "Start fewer, or ask your administrator (MaxProcesses)."),
                                (20, 30, "Start fewer, or ask your administrator (MaxProcesses)."),
                                (30, 20, "Start fewer, or ask for more with --pids-max.")):
        site.configure(**({"MaxProcesses": most} if most else {}))
        done = site.srun(user, "--mem=100", *([f"--pids-max={asked}"] if asked else []), *forks)
        expect_in("this node allows the job 20 at once. " + advice, done.stderr, f"what srun says ({most}, {asked})")


@case(layout=False)
def where_a_word_is_given(site):
    """A line of the script, a variable, the command line: the later of them counts."""
    user = site.users[0]
    line = "#SBATCH --pids-max=50\necho $JOBFENCE_MAX_PROCESSES"
    variable = {VARIABLE.format("pids_max"): "60"}
    for args, env, wanted in (
        ([], None, "50"),
        ([], variable, "60"),
        (["--pids-max=70"], variable, "70"),
        (["--pids-max=80", "--pids-max=70"], None, "70"),
        (["--pids-max=70", "--export=NIL"], None, "70"),
        (["--pids-max=70", "--array=3"], None, "70"),
    ):
        jobid = site.submit(user, line, "-c1", "--mem=50", *args, env=env)
        expect_equal(site.wait(jobid), "COMPLETED", f"state with {args} and {env}")
        expect_equal(site.output(jobid), f"{wanted}\n", f"process limit with {args} and {env}")
    for args, env, wanted in (
        (["--pids-max=70"], None, "70"), ([], variable, "60"), (["--pids-max=70"], variable, "70"),
    ):
        done = site.srun(user, "--mem=50", *args, "sh", "-c", "echo $JOBFENCE_MAX_PROCESSES", env=env)
        expect_equal((done.returncode, done.stdout), (0, f"{wanted}\n"), f"srun with {args} and {env} ({done.stderr})")


@case
def word_of_job_and_step(site):
    """The job's word is each step's, too; a step may ask for less, and its more is no more than the job's."""
    jobid = site.submit(site.users[0], """
        srun --overlap --mem=50 sleep 300 &
        until [ -e one ]; do sleep 0.1; done
        srun --overlap --mem=50 --cpu-limit=0.25 --pids-max=20 sleep 300 &
        until [ -e two ]; do sleep 0.1; done
        srun --overlap --mem=50 --cpu-limit=1 --pids-max=90 sleep 300 &
        wait
        """, "-c1", "--mem=200", "--cpu-limit=0.5", "--pids-max=40")
    batch = fenced(site, jobid)
    for number, cpus, processes, flag in ((0, 0.5, 40, "one"), (1, 0.25, 20, "two"), (2, 0.5, 40, "three")):
        step = fenced(site, jobid, f"step_{number}", timeout=20)
        expect_equal(step.cpu_limit(), cpus, f"CPU limit of step {number}")
        expect_equal(step.processes_limit(), processes, f"process limit of step {number}")
        (site.directory(site.users[0]) / flag).touch()
    expect_equal(batch.parent.cpu_limit(), 0.5, "CPU limit of the job")
    daemons = batch.parent.processes_limit() - 40
    expect(daemons % kernel.HEADROOM_PROCESSES == 0, f"process limit of the job: {daemons} more than was asked for")
    site.scancel(jobid)


@case(layout=False)
def word_in_salloc(site):
    """salloc tells the steps of its allocation; srun of its own job asks for the step."""
    user = site.users[0]
    args = ["salloc", "-n1", "--mem=120", "--cpu-limit=0.5", "srun", "--cpu-limit=0.75", "sleep", "300"]
    with started(site, user, args) as salloc:
        jobid = allocated(site, user, running_job(site, user))
        step = fenced(site, jobid, "step_0")
        expect_equal((step.cpu_limit(), step.parent.cpu_limit()), (0.5, 0.5), "CPU limits of step and job")
        site.scancel(jobid)
        ended(salloc)
    site.wait(jobid)
    with started(site, user, ["srun", "-n1", "--mem=120", "--cpu-limit=0.5", "sleep", "300"]) as srun:
        jobid = allocated(site, user, running_job(site, user))
        step = fenced(site, jobid, "step_0")
        expect_equal((step.cpu_limit(), step.parent.cpu_limit()), (0.5, 1), "CPU limits of step and job")
        site.scancel(jobid)
        ended(srun)


@case(layout=False)
def refused_at_the_prompt(site):
    user = site.users[0]
    (site.directory(user) / "script").write_text("#!/bin/sh\ntouch submitted\n")
    before = {job["JobId"] for job in site.jobs()}
    for option, (_, values) in OPTIONS.items():
        for value in values:
            for command in (["sbatch"], ["srun", "-n1"], ["salloc", "-n1"]):
                args = [*command, f"{option}={value}", "sh" if command != ["sbatch"] else "script"]
                done = site.as_user(user, args)
                expect(done.returncode != 0, f"{args[:2]} with {value[:20]!r} returned 0")
                expect_match(rf"error: jobfence: {option}: found .*, expected .*for example {option}=.+\n",
                             done.stderr, f"what {command[0]} says of {value[:20]!r}")
    name = VARIABLE.format("cpu_limit")
    done = site.as_user(user, ["sbatch", "script"], env={name: "half"})
    expect(done.returncode != 0, "sbatch with a wrong variable returned 0")
    expect_in('jobfence: --cpu-limit: found "half"', done.stderr, "what sbatch says of a variable")
    expect_in(name, done.stderr, "what sbatch says of a variable")
    expect_equal({job["JobId"] for job in site.jobs()}, before, "jobs")


@case(layout=False)
def forged_words(site):
    """Past the commands' own check: the step is refused, whatever else is borne, and the node goes on."""
    user = site.users[0]
    forged = [
        {LAUNCHED.format("pids_max"): "many"},
        {LAUNCHED.format("cpu_limit"): "\x1b[31m0.5\n"},
        {LAUNCHED.format("cpu_limit"): "9" * 5000},
        {OF_THE_JOB.format("CPU_LIMIT"): "0"},
        {OF_THE_JOB.format("MEM_HIGH"): "1" * 5000},
        # Who waits for that cannot be killed, and the node would be drained.
        {LAUNCHED.format("io_max"): "/ rbps=1"},
    ]
    for on_error in "fail", "warn":
        site.configure(OnError=on_error)
        for env in forged:
            jobid = site.submit(user, RAN, "-c1", "--mem=50", env=env)
            expect_not_started(site, user, jobid)
            expect("\x1b" not in site.output(jobid), "control characters reach the terminal")
            done = site.srun(user, "--mem=50", "touch", "ran.srun", env=env)
            expect(done.returncode != 0, f"srun returned 0 with {env}")
            expect_in(NOT_STARTED, done.stderr, "what srun says")
            # The user has made the mistake, and reads what to write.
            expect_in("; for example --", done.stderr, "what srun says")
            expect("administrator" not in done.stderr, f"srun sends the user to the administrator: {done.stderr}")
            expect(not (site.directory(user) / "ran.srun").exists(), f"the step has run with {env}")
            expect_not_drained(site)
    # Nobody is refused for what he would only be told.
    site.configure(Mode="observe")
    done = site.srun(user, "--mem=50", "echo", "ran", env=forged[0])
    expect_equal((done.returncode, done.stdout), (0, "ran\n"), f"srun where nothing is limited ({done.stderr})")
    site.configure()
    fences_well(site, user)


@case(layout=False)
def more_than_the_site_allows(site):
    site.configure(MaxProcesses="60", CPUBurst="10")
    user = site.users[0]
    mark = site.log_mark()
    jobid = site.submit(user, f"{TOLD}\nsleep 300", "-c1", "--mem=200", "--cpu-limit=64", "--cpu-burst=100",
                        "--mem-high=1T", "--pids-max=4000000")
    step = fenced(site, jobid)
    site.expect_limits(step, 1.0, 200)
    expect_equal(step.processes_limit(), 60, "process limit")
    expect_equal(step.cpu_burst_us(), step.cpu_period_us() * 0.1, "burst in us")
    logged(site, mark, rf"jobfence: job {jobid} step batch: the user asked for .*--pids-max=4000000")
    found = told_by(site, jobid)
    expect_equal((found.get("JOBFENCE_CPUS"), found.get("JOBFENCE_MAX_PROCESSES"), found.get("JOBFENCE_CPU_BURST")),
                 ("1", "60", "10"), "what the job is told")
    site.scancel(jobid)


@case(layout=False)
def less_than_the_kernel_can(site):
    """0.005 CPUs are half a millisecond in a period of 100 ms, and enough in one of a second."""
    user = site.users[0]
    jobid = site.submit(user, RAN, "-c1", "--mem=50", "--cpu-limit=0.005")
    expect_not_started(site, user, jobid)
    expect_in("ask for at least --cpu-limit=0.01", site.output(jobid), "the job's output")
    site.configure(CPUQuotaPeriod="1s")
    jobid = site.submit(user, "echo $JOBFENCE_CPUS", "-c1", "--mem=50", "--cpu-limit=0.005")
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    expect_equal(site.output(jobid), "0.005\n", "what the job is told")


HINTS = "OMP_NUM_THREADS", "GOMAXPROCS"
# What libraries ask before OMP_NUM_THREADS: a script that sets that one would not rule them.
OUTRANKING = "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"
SHOW_HINTS = "for name in " + " ".join(HINTS + OUTRANKING) + "; do printenv $name || echo none; done; taskset -p $$"


def hints(said):
    """The values of HINTS and how many CPUs the task could see, from what SHOW_HINTS has written. Of OUTRANKING none is set."""
    *values, mask = said.splitlines()
    expect_equal(values[len(HINTS):], ["none"] * len(OUTRANKING), "variables that outrank OMP_NUM_THREADS")
    return values[:len(HINTS)], int(mask.rpartition(" ")[2], 16).bit_count()


@case
def thread_hints(site):
    """Only where the site asks for them, and only for who is a task: a script that starts tasks is told nothing."""
    user = site.users[0]

    def shown(*args, env=None, script=SHOW_HINTS):
        jobid = site.submit(user, script, "-n1", "-c1", "--mem=50", *args, env=env)
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        return hints(site.output(jobid))

    def expect_hints(found, hint, what):
        values, visible = found
        # Where Slurm binds tasks, that is what programs see, and they need no hint.
        expect_equal(values, [hint if visible > 1 else "none"] * len(HINTS), what)
        return visible

    expect_hints(shown(), "none", "hints that nobody has asked for")
    site.configure(ThreadHints="yes")
    visible = expect_hints(shown(), "1", "hints of a job with one CPU")
    # A step within is told its own, though it has inherited the job's.
    expect_hints(shown(script=f"srun sh -c '{SHOW_HINTS}'"), "1", "hints of a step")
    # Who says something has said it.
    values, _ = shown(env={"OMP_NUM_THREADS": "7"})
    expect_equal(values, ["7", "none"], "hints of a job whose user has set one")
    if os.cpu_count() > 1:
        site.configure(ThreadHints="yes", CPUQuotaPercent=50)
        expect_hints(shown("-n2"), "none", "hints of the script of two tasks")
        expect_hints(shown("-n2", script=f"srun -n1 sh -c '{SHOW_HINTS}'"), "1", "hints of its step of one task")
    site.configure(ThreadHints="yes", ConstrainCPUQuota="no")
    expect_hints(shown(), "none", "hints without a quota")
    return f"{visible} CPUs visible of {os.cpu_count()}"


# What programs make of what they are told. Java would ask its cgroup, too, which is the kernel's word and not ours.
PROGRAMS = """
echo nproc $(nproc)
if command -v make >/dev/null; then echo 'all: ; @echo make $(MAKEFLAGS)' | make -s -j$(nproc) -f - | sed 's/ --jobserver.*//'; fi
if command -v java >/dev/null; then
    java -XX:-UseContainerSupport -XX:+UseParallelGC -XX:+PrintFlagsFinal -version 2>&1 | grep -e ' ParallelGCThreads' -e 'Picked up'
fi
if python3 -c 'import joblib, numpy, threadpoolctl' 2>/dev/null; then
    cat >threads.py <<'END'
import sys
from joblib import Parallel, delayed
def threads():
    import numpy, threadpoolctl
    return max(found["num_threads"] for found in threadpoolctl.threadpool_info())
workers = int(sys.argv[1])
print("joblib", workers, sorted(Parallel(n_jobs=workers)(delayed(threads)() for _ in range(workers))))
END
    python3 threads.py 1
    python3 threads.py 2
    OMP_NUM_THREADS=1 python3 threads.py 1 | sed s/joblib/one/
fi
"""
# Where joblib and numpy are not the system's.
THEIR_PYTHON = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
# Of a job by itself, and in no two the same.
IDS = re.compile(r"(?m)^(?:SLURM\w*|JOBFENCE_\w+|TMPDIR|_|PWD)=.*\n")


@case(on=["private"])
def programs_are_told_the_same(site):
    """A fence changes what programs may use. What they are told is the same with jobfence and without, in the same allocation."""
    user = site.users[0]

    def told_with(*options):
        jobid = site.submit(user, f"env | sort\n{PROGRAMS}", *options, "--mem=400", env=THEIR_PYTHON)
        expect_equal(site.wait(jobid, 120), "COMPLETED", "state")
        return IDS.sub("", site.output(jobid))

    requests = [("-n1", "-c1"), ("-n2", "-c1"), ("-n1", "-c2")][:1 if os.cpu_count() < 2 else 3]
    fenced = [told_with(*options) for options in requests]
    site.configure(ThreadHints="yes")
    asked = told_with("-n1", "-c1")
    with site.unplugged():
        for options, found in zip(requests, fenced):
            expect_equal(found.splitlines(), told_with(*options).splitlines(), f"what {' '.join(options)} is told with jobfence")
    # Where a site has asked for hints, a user's own word rules each library.
    expect("one 1" not in asked or "one 1 [1]\n" in asked, f"threads with 'export OMP_NUM_THREADS=1': {asked}")
    programs = ["nproc", *(name for name in ("make", "ParallelGCThreads", "joblib") if name in fenced[0])]
    return f"told the same: {', '.join(programs)}"


@case(layout=False)
def options_are_handed_on(site):
    """Slurm gives them to what a job submits; the manual says how to submit without."""
    user = site.users[0]
    manual = "unset ${!SLURM_SPANK__SLURM_SPANK_OPTION_jobfence_@} ${!SLURM_SPANK_JOBFENCE_@}"
    inner = "sbatch --wait -n1 -c1 --mem=50 --output=with.{0} {1} --wrap='echo cpus $JOBFENCE_CPUS'"
    jobid = site.submit(user, f"""
        {inner.format("nothing", "")}
        {inner.format("another", "--cpu-limit=0.25")}
        {inner.format("most", "--cpu-limit=1024")}
        {inner.format("none", "--export=NONE")}
        ({manual}; {inner.format("unset", "")})
        """, "-n1", "-c1", "--mem=50", "--cpu-limit=0.5")
    expect_equal(site.wait(jobid, 120), "COMPLETED", f"state: {site.output(jobid)}")
    for how, cpus in ("nothing", "0.5"), ("another", "0.25"), ("most", "1"), ("none", "0.5"), ("unset", "1"):
        said = kernel.read(site.directory(user) / f"with.{how}")
        expect_equal(said, f"cpus {cpus}", f"a job that was submitted with {how}")


# As in any job: what jobfence tells, and what a user says himself.
OURS = re.compile(rf"(?m)^(?:JOBFENCE_\w+|{'|'.join(HINTS + OUTRANKING)})=.*$")
# In the shell of a job: everything that makes srun a command of that job.
NO_JOB = "unset $(compgen -v | grep ^SLURM_ | grep -vx SLURM_CONF)"


@case
def nothing_is_handed_on(site):
    """What a job was told is not told to a job that it submits, nor to a step, where those run without a fence."""
    user = site.users[0]
    site.configure(ThreadHints="yes")
    jobid = site.submit(user, f"""
        env >first
        export MKL_NUM_THREADS=3
        while [ ! -e off ]; do sleep 0.1; done
        sbatch --wait -n1 -c1 --mem=50 --output=by.sbatch --wrap=env
        ({NO_JOB}; srun -n1 -c1 --mem=50 env) >by.srun
        ({NO_JOB}; salloc -n1 -c1 --mem=50 srun env) >by.salloc
        srun -n1 --overlap env >by.step
        """, "-n1", "-c1", "--mem=100")
    directory = site.directory(user)
    first = until(lambda: kernel.read(directory / "first"), 20, "the first job's environment")
    expect_in("JOBFENCE_CGROUP=", first, "the first job's environment")
    site.configure(Mode="off")
    (directory / "off").touch()
    expect_equal(site.wait(jobid, 120), "COMPLETED", f"state: {site.output(jobid)}")
    for who in "sbatch", "srun", "salloc", "step":
        said = kernel.read(directory / f"by.{who}")
        expect_in("SLURM_STEP_ID=" if who != "sbatch" else "SLURM_JOB_ID=", said, f"the environment by {who}")
        expect_equal(OURS.findall(said), ["MKL_NUM_THREADS=3"], f"what is left of the first job by {who}")
    return "with hints" if "OMP_NUM_THREADS=" in first else "without hints"


@case(on=["private"])
def commands_hand_nothing_on(site):
    """The commands alone take it out: on the node nobody has heard of jobfence, as on one that has none."""
    user = site.users[0]
    inherited = {
        "JOBFENCE_CGROUP": "/jobfence/uid_1/job_1/step_batch", "JOBFENCE_CPUS": "1", "JOBFENCE_THREADS": "1",
        "JOBFENCE_STEP": "00000000-0000-0000-0000-000000000000/1/1", "JOBFENCE_MINE": "1",
        "OMP_NUM_THREADS": "1", "GOMAXPROCS": "1", "MKL_NUM_THREADS": "3",
    }
    kept = ["JOBFENCE_MINE=1", "MKL_NUM_THREADS=3"]
    # Another plugstack.conf for the commands than for the daemons.
    line, conf = site.plugstack_files()[0].read_text(), site.environment["SLURM_CONF"]
    theirs = site.top / "commands"
    theirs.mkdir(exist_ok=True)
    (theirs / "plugstack.conf").write_text(line)
    (theirs / "slurm.conf").write_text(re.sub(r"(?m)^PlugStackConfig=.*", f"PlugStackConfig={theirs}/plugstack.conf",
                                              Path(conf).read_text()))
    (theirs / "cgroup.conf").write_text((site.top / "cgroup.conf").read_text())
    theirs_env = {**inherited, "SLURM_CONF": str(theirs / "slurm.conf")}

    def found(said):
        return sorted(OURS.findall(said))
    with site.unplugged():
        for env, wanted in ({**inherited}, sorted(f"{key}={value}" for key, value in inherited.items())), (theirs_env, kept):
            # Whoever runs in the first job is its process still, and the mark says so.
            local = sorted({*wanted, f"JOBFENCE_STEP={inherited['JOBFENCE_STEP']}"})
            jobid = site.submit(user, "env", "-c1", "--mem=50", env=env)
            expect_equal(site.wait(jobid), "COMPLETED", "state")
            expect_equal(found(site.output(jobid)), wanted, "by sbatch")
            expect_equal(found(site.srun(user, "--mem=50", "env", env=env).stdout), local, "by srun")
            done = site.as_user(user, ["salloc", "--mem=50", "env"], env=env)
            expect_equal(found(done.stdout), local, "by salloc")
            # What is named is the user's word.
            done = site.srun(user, "--mem=50", "--export=ALL,OMP_NUM_THREADS=1", "env", env=env)
            expect_in("OMP_NUM_THREADS=1\n", done.stdout, "by srun --export")


@case(on=["two-nodes"])
def word_on_every_node(site):
    """Where the batch script does not run, the steps carry the job's word, also one that asks for more."""
    jobid = site.submit(site.users[0], "srun -N2 -n2 --cpu-limit=1 sleep 300", "-N2", "-n2", "--mem-per-cpu=100",
                        "--cpu-limit=0.5", "--pids-max=40")
    for node in site.nodes:
        step = fenced(site, jobid, "step_0", node=node, timeout=20)
        expect_equal((step.cpu_limit(), step.parent.cpu_limit()), (0.5, 0.5), f"CPU limits of step and job on {node}")
        expect_equal(step.processes_limit(), 40, f"process limit of the step on {node}")
    site.scancel(jobid)


@case(on=["two-nodes"])
def word_of_components(site):
    """What the first component was told is the script's and every step's."""
    with site.reconfigured(SchedulerParameters="batch_sched_delay=0,bf_interval=1"):
        jobid = site.submit(site.users[0], "echo $JOBFENCE_CPUS; srun --het-group=0,1 sh -c 'echo $JOBFENCE_CPUS'",
                            "--cpu-limit=0.5", "-n1", "--mem=50", ":", "--cpu-limit=0.75", "-n1", "--mem=50")
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        expect_equal(site.output(jobid), "0.5\n" * 3, "CPUs of the script and its two tasks")
