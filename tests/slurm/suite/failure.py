# SPDX-License-Identifier: GPL-2.0-or-later
"""Each callback fails, for real: the job fails with a sentence, or goes on as it would have; nothing else does.

What makes them fail is tests/slurm/saboteur.c. The callbacks are named as there.
"""

import contextlib
import os
import re
import subprocess
import time

from contract import kernel, sites
from contract.harness import Skip, case, expect, expect_equal, expect_in, expect_match, fenced, logged, nobody_looks, running, until_clean
from contract.sites import until
from ..harness import RAN, NOT_STARTED, expect_not_drained, fences_well
from ..saboteur import CannotBuild, sabotaged

NOT_THIS_TASK = "jobfence: this task was not started, since it cannot be fenced: "
# At the beginning of a line, but for the name of its daemon, which Slurm puts before some messages.
TO_THE_USER = r"(?m)^(?:slurmstepd[^:]*: )?"
COMBINATIONS = [(kind, on_error) for kind in ("required", "optional") for on_error in ("fail", "warn")]
# Those in which what plugstack.conf says is not what jobfence.conf says: enough for a second failure of the same callback.
CROSSED = [("optional", "fail"), ("required", "warn")]


@contextlib.contextmanager
def failing(site, callback, action, *selection, **options):
    """With this sabotage; afterwards, the next job is fenced as if nothing had been."""
    mark = site.log_mark()
    try:
        with sabotaged(site, callback, action, *selection, **options):
            yield mark
            logged(site, mark, f"saboteur: {action} in {callback} done")
    except CannotBuild as reason:
        expect(os.environ.get("CI") != "true", str(reason))
        raise Skip(str(reason)) from None
    expect("does not work" not in site.log_since(mark), "the sabotage did not work")


class Trial:
    """A batch job and a job of srun alone, at the same time."""

    def __init__(self, site, *options, script=RAN):
        self.site, self.user = site, site.users[0]
        self.name = f"trial{time.monotonic_ns()}"
        self.batch = site.submit(self.user, script, "-n1", "--mem=100", *options)
        self.srun = site.as_user(self.user, [
            "srun", f"--job-name={self.name}", "-n1", "--mem=100", *options, "sh", "-c", script], start=True)

    def ended(self):
        """(state, output, whether it ran) of both, by their name here."""
        try:
            _, self.stderr = self.srun.communicate(timeout=120 * sites.PATIENCE)
        except subprocess.TimeoutExpired:
            self.srun.kill()
            raise AssertionError(f"srun hangs: {self.srun.communicate()[1]}") from None
        found = {"batch job": (self.site.wait(self.batch), self.site.output(self.batch), self.batch)}
        jobs = [job for job in self.site.jobs() if job["JobName"] == self.name]
        expect_equal(len(jobs), 1, f"jobs of the name {self.name}")
        state = self.site.wait(jobs[0]["JobId"])
        found["srun's job"] = (state, self.stderr, jobs[0]["JobId"])
        self.jobids = [self.batch, jobs[0]["JobId"]]
        directory = self.site.directory(self.user)
        return {what: (state, said, (directory / f"ran.{jobid}").exists())
                for what, (state, said, jobid) in found.items()}

    def expect_refused(self, sentence):
        for what, (state, said, ran) in self.ended().items():
            expect_equal(state, "FAILED", f"state of the {what}")
            expect_match(TO_THE_USER + sentence, said, f"what the {what} says")
            expect(not ran, f"the program of the {what} has run")
        expect(self.srun.returncode != 0, "srun returned 0")
        # With these words, srun has thrown away what had not reached it: the sentence was there by chance.
        expect(not sentence or "Force Terminated" not in self.stderr, f"srun's stderr: {self.stderr}")
        expect_not_drained(self.site)

    def expect_untouched(self):
        for what, (state, said, ran) in self.ended().items():
            expect_equal(state, "COMPLETED", f"state of the {what}")
            expect(ran, f"the program of the {what} has not run")
        expect_equal(self.srun.returncode, 0, "srun's exit code")
        expect_not_drained(self.site)

    def step_daemons(self):
        return [pid for jobid in self.jobids for pid in self.site.step_daemons(jobid)]


def placed(site):
    """Where a job is on this site."""
    jobid, group = running(site, site.users[0], "sleep 300", "-c1", "--mem=100")
    site.end(jobid)
    return group


def makes_ours_first(site):
    """Whether our directories are made in the beginning: not where Slurm's daemon is seen in its own."""
    shown = site.command("scontrol", "show", "config").stdout
    tracks = re.search(r"^ProctrackType\s*=\s*proctrack/cgroup", shown, re.M)
    return not (tracks and kernel.has_v2_controllers())


# ----------------------------------------------------------------------------------------
# Before the tasks


@case(layout=False)
def begin_fails(site):
    """Not even the configuration can be read: only the line in plugstack.conf says what then."""
    for kind, on_error in COMBINATIONS:
        with failing(site, "init_post_opt", "descriptors", kind=kind,
                     arguments=[f"OnError={on_error}"]) as mark:
            trial = Trial(site)
            if on_error == "fail":
                trial.expect_refused(NOT_STARTED)
            else:
                trial.expect_untouched()
                logged(site, mark, r"WITHOUT a fence \(OnError=warn\).*Too many open files")
    fences_well(site, site.users[0])


@case
def begin_fails_otherwise(site):
    user = site.users[0]
    run = site.home / "run-is-a-file"
    run.touch()
    with site.plugstack(f"RunDir={run}"):
        Trial(site).expect_refused(NOT_STARTED + ".*run-is-a-file")
    with failing(site, "init_post_opt", "noproc"):
        Trial(site).expect_refused(NOT_STARTED + ".*/proc")
    # As in a container. Where the directories are Slurm's, the first that cannot be written is a limit.
    for kind, on_error in CROSSED:
        with failing(site, "init_post_opt", "readonly", kind=kind, arguments=[f"OnError={on_error}"]) as mark:
            trial = Trial(site)
            if on_error == "fail":
                trial.expect_refused(NOT_STARTED + ".*EROFS")
            else:
                trial.expect_untouched()
                logged(site, mark, r"(WITHOUT a fence|without its CPU limit) \(OnError=warn\).*EROFS")
    fences_well(site, user)
    if "" in kernel.hierarchies() and makes_ours_first(site):
        with full(site):
            Trial(site).expect_refused(NOT_STARTED + ".*EAGAIN")
    fences_well(site, user)


@contextlib.contextmanager
def full(site):
    """As where the kernel's own limit of cgroups below ours is reached."""
    files = [top / "cgroup.max.descendants" for base in site.bases()
             if (top := kernel.Group("/" + base).directory(""))]
    expect(files, "our own directory is not there")
    for file in files:
        file.write_text("0")
    try:
        yield
    finally:
        for file in files:
            file.write_text("max")


@case(layout=False)
def begin_panics(site):
    """Then nothing is known of what was configured: OnError=warn does not soften it."""
    for kind, on_error in COMBINATIONS:
        with failing(site, "init_post_opt", "panic", kind=kind, arguments=[f"OnError={on_error}"]) as mark:
            Trial(site).expect_refused(NOT_STARTED + "jobfence did not finish its preparation")
            logged(site, mark, "slurm_spank_init_post_opt did not finish")
    fences_well(site, site.users[0])


@case
def limit_is_refused(site):
    """On v1 no quota may be above that of the user's directory, and an administrator can have set one there."""
    if kernel.has_v2_controllers():
        raise Skip("cgroup v2 refuses no quota")
    user = site.users[0]
    # A job that holds the directory, within the quota.
    site.configure(CPUQuotaPercent="20")
    jobid = site.submit(user, "sleep 300", "-n1", "--mem=100")
    quota = fenced(site, jobid).parent.parent.directory("cpu") / "cpu.cfs_quota_us"
    site.configure()
    quota.write_text("20000")
    try:
        for kind, on_error in CROSSED:
            mark = site.log_mark()
            with site.plugstack(f"OnError={on_error}", kind=kind):
                trial = Trial(site)
                if on_error == "fail":
                    trial.expect_refused("jobfence: this (job|task) was not started, since it cannot be fenced: .*EINVAL")
                else:
                    trial.expect_untouched()
                    logged(site, mark, r"without its CPU limit \(OnError=warn\).*EINVAL")
    finally:
        # Slurm may keep it.
        quota.write_text("-1")
    site.end(jobid)
    fences_well(site, user)


# ----------------------------------------------------------------------------------------
# In the task's own process


@case(layout=False)
def task_lacks_descriptors(site):
    """Whether it may run has been decided before, and is said without any."""
    user = site.users[0]
    run = site.home / "run-is-a-file"
    run.touch()
    for callback, kind in (("task_init_privileged", "optional"), ("task_init", "required")):
        with failing(site, callback, "descriptors", kind=kind):
            fences_well(site, user)
    for kind in ("required", "optional"):
        with failing(site, "task_init_privileged", "descriptors", kind=kind, arguments=[f"RunDir={run}"]):
            Trial(site).expect_refused(NOT_STARTED + ".*run-is-a-file")


# ----------------------------------------------------------------------------------------
# The task waits, and cannot be put into its fence


@case
def attach_fails(site):
    for kind, on_error in COMBINATIONS:
        with failing(site, "task_post_fork", "descriptors", kind=kind,
                     arguments=[f"OnError={on_error}"]) as mark:
            trial = Trial(site)
            if on_error == "fail":
                trial.expect_refused(NOT_THIS_TASK)
            else:
                trial.expect_untouched()
                logged(site, mark, r"WITHOUT a fence \(OnError=warn\).*Too many open files")
    place = placed(site)
    own = bool(place.own)
    if place.slurms and makes_ours_first(site):
        # Only now are the limits written, for which a lock is waited for, until some time.
        with failing(site, "task_post_fork", "panic", kind="optional"):
            Trial(site).expect_refused(NOT_THIS_TASK + "jobfence did not finish")
    if own:
        with failing(site, "task_post_fork", "rmdir"):
            Trial(site).expect_refused(NOT_THIS_TASK)
    if own and kernel.layout() == "hybrid":
        # Elsewhere the kernel does not let it become threaded, for the controllers of its parent.
        with failing(site, "task_post_fork", "threaded"):
            Trial(site).expect_refused(NOT_THIS_TASK + ".*threaded")
    fences_well(site, site.users[0])


@case
def task_is_elsewhere(site):
    """What is limited is where Slurm has put the task: it must be there, and that must be the step's, and root's."""
    user = site.users[0]
    if not placed(site).slurms:
        raise Skip("Slurm has no directories of its own here")
    if not makes_ours_first(site):
        with failing(site, "task_post_fork", "move", kind="optional"):
            Trial(site).expect_refused(NOT_THIS_TASK + ".*not where Slurm tracks its step")
    else:
        with failing(site, "task_post_fork", "disown"):
            Trial(site).expect_refused(NOT_THIS_TASK + ".*(not root's|does not belong to root)")
    with failing(site, "task_post_fork", "astray", "step=0", kind="optional"):
        jobid = site.submit(user, "srun --mem=50 touch ran.astray; echo srun=$?", "-n1", "--mem=100")
        expect_equal(site.wait(jobid), "COMPLETED", "state of the job")
        expect_match(TO_THE_USER + NOT_THIS_TASK + ".*another step's cgroup", site.output(jobid), "the job's output")
        expect_match(r"(?m)^srun=[1-9]", site.output(jobid), "the job's output")
        expect(not (site.directory(user) / "ran.astray").exists(), "the step's program has run")
        expect_not_drained(site)
    fences_well(site, user)


@case(layout=False)
def attach_needs_no_proc(site):
    """Another plugin has given the step daemon a /proc of its own: jobfence has opened the host's before."""
    with failing(site, "task_post_fork", "noproc"):
        fences_well(site, site.users[0])


@case(layout=False)
def task_is_gone(site):
    """Whoever ends the task before it is attached, jobfence has nothing to say of it."""
    for callback, action in (("task_post_fork", "kill"), ("task_init_privileged", "refuse")):
        with failing(site, callback, action) as mark:
            Trial(site).expect_refused("")
            expect("jobfence: this" not in site.log_since(mark), "jobfence blames itself")
    fences_well(site, site.users[0])


@case(layout=False)
def one_task_of_many(site):
    """The others, whether they come before it or after it, do not wait for it for ever."""
    user = site.users[0]
    for task in (0, 1, 2):
        with failing(site, "task_post_fork", "descriptors", f"task={task}"):
            done = site.srun(user, "-n3", "-O", "--mem=100", "sh", "-c", "touch ran.many")
            expect(done.returncode != 0, "srun returned 0")
            expect_match(TO_THE_USER + NOT_THIS_TASK, done.stderr, "srun's stderr")
            expect_equal(len(re.findall(NOT_THIS_TASK, done.stderr)), 1, "number of such sentences")
        expect(not (site.directory(user) / "ran.many").exists(), "a task has run")
    fences_well(site, user)


# ----------------------------------------------------------------------------------------
# Not enough descriptors, at every stage


# More than jobfence ever needs at once, whatever the layout.
ENOUGH = 32


def at_every_stage(site, callback, stages):
    """A step for each number of free descriptors, from none: each is refused, or fenced with all that belongs to it."""
    if placed(site).slurms and not kernel.has_v2_controllers():
        raise Skip("the limits are not where JOBFENCE_CGROUP is")
    files = [("cpu", "cpu.max", "cpu.cfs_quota_us"), ("memory", "memory.max", "memory.limit_in_bytes")]
    own = kernel.has_v2_controllers()
    limits = " ".join(str(kernel.hierarchies()["" if own else name].mount_point) + "$JOBFENCE_CGROUP/" + (v2 if own else v1)
                      for name, v2, v1 in files)
    with failing(site, callback, "descriptors", "free=step"):
        jobid = site.submit(site.users[0], f"""
            for free in {" ".join(map(str, stages))}; do
                srun --mem=100 sh -c '
                    echo in $(grep -c "$JOBFENCE_CGROUP" /proc/self/cgroup), limits $(cat {limits})' >said 2>&1
                echo "$? $free: $(grep -o -e "^jobfence: th.*" -e "^in .*" said)"
            done
            """, "-c1", "--mem=100", "--time=60")
        expect_equal(site.wait(jobid, 300), "COMPLETED", "state of the batch job")
    said = site.output(jobid).splitlines()
    well = expect_match(r"^0 \d+: (in \d+, limits .*)", said[-1], "the last step").group(1)
    expect_match("^in [1-9]", well, "the last step")
    for line, free in zip(said, stages, strict=True):
        expect_match(rf"^[1-9]\d* {free}: jobfence: this (job|task) was not started|^0 {free}: {re.escape(well)}$", line,
                     f"what became of the step with {free} free descriptors")
    expect(re.match("[1-9]", said[0]), f"without any descriptor the step is not refused: {said[0]}")


@case
def begin_at_every_stage(site):
    at_every_stage(site, "init_post_opt", range(ENOUGH))


@case(layout=False)
def attach_at_every_stage(site):
    at_every_stage(site, "task_post_fork", range(4))


@case(layout=False)
def nothing_stays_open(site):
    """What was opened before there were too many does not stay so in a step that goes on without a fence, but for that by
    which its processes are tracked."""
    tracks = ["/proc", f"{site.run_directory()}/tracked"]
    # In one hierarchy, and in Slurm's own directories, fewer are needed.
    for free in (1, 3) if kernel.has_v2_controllers() or placed(site).slurms else (4, 12):
        with failing(site, "init_post_opt", "descriptors", f"free={free}", arguments=["OnError=warn"]) as mark:
            jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
            until(lambda: site.job_pids(jobid, "sleep"), 10, "the job's process")
            logged(site, mark, "WITHOUT a fence.*Too many open files")
        daemon, = site.step_daemons(jobid)
        ours = re.compile(rf"/cgroup|^/proc|^{re.escape(str(site.run_directory()))}")
        still = sorted(link for link in kernel.descriptors(daemon) if ours.search(link))
        has_none = "processes are not tracked either" in site.log_since(mark)
        expect(still in ([[]] if has_none else [tracks, tracks[:1]]), f"still open in the step daemon: {still}")
        site.end(jobid)
        until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemon")
    # Nor could what was made before be removed again.
    fences_well(site, site.users[0])
    until_clean(site, 5)


# ----------------------------------------------------------------------------------------
# At the end, and in slurmd


@case
def end_fails(site):
    """The job is what it would have been, and what remains of it goes with the next launch."""
    user = site.users[0]
    # Nothing in Slurm's own directories is ours to remove.
    own = bool(placed(site).own)
    for callback, action, kind, remains in (
        ("task_exit", "descriptors", "required", False),
        ("task_exit", "descriptors", "optional", False),
        ("task_exit", "rmdir", "optional", False),
        ("exit", "descriptors", "required", False),
        ("exit", "descriptors", "optional", False),
        ("exit", "panic", "required", True),
        ("exit", "rmdir", "optional", False),
        ("exit", "forget", "required", False),
    ):
        if not own and action in ("rmdir", "forget"):
            continue
        with nobody_looks():
            with failing(site, callback, action, kind=kind) as mark:
                trial = Trial(site)
                trial.expect_untouched()
                until(lambda: not trial.step_daemons(), 10, "the end of the step daemons")
            # The record is written before anything is known of the place.
            remains = remains and (own or makes_ours_first(site))
            expect_equal(bool(site.leftovers()), remains, f"{action} in {callback}: whether something remains")
        if remains:
            logged(site, mark, "cannot remove the step's directories yet|slurm_spank_exit did not finish")
            fences_well(site, user)
            until_clean(site, 5, f" after {action} in {callback}")
    fences_well(site, user)


# A process that no scheduler finds by its session; it would end by itself some time after the case.
STRAY = f"{RAN}; setsid sleep 60 </dev/null >/dev/null 2>&1 &"


@case
def end_without_rights(site):
    """In Slurm 24.11 another thread of the extern step's daemon gives them up for a moment: that is no reason to leave
    anything. If they do not come back, it is not asked for ever, and what remains goes with the next launch."""
    user = site.users[0]
    own = bool(placed(site).own)
    for action, kind, remains in (("rights", "optional", False), ("nobody", "required", own or makes_ours_first(site))):
        with nobody_looks():
            with failing(site, "exit", action, kind=kind) as mark:
                trial = Trial(site, script=STRAY)
                trial.expect_untouched()
                until(lambda: not trial.step_daemons(), 10, "the end of the step daemons")
            expect_equal(bool(site.leftovers()), remains, f"{action} in exit: whether something remains")
        took = re.findall(r"saboteur: without rights for (\d+) ms, (\d+) ms of CPU, slept (\d+) times",
                          site.log_since(mark))
        expect_equal(len(took), 2, "number of ends without rights")
        for wall, cpu, sleeps in (map(int, one) for one in took):
            # One that does not wait uses all of that time, and one that waits for ever does not come here.
            expect(cpu < (100 + 5 * sleeps) * sites.PATIENCE, f"{action}: the end took {wall} ms, used {cpu} ms of CPU and slept {sleeps} times")
        if remains:
            logged(site, mark, "cannot remove the step's directories yet")
            fences_well(site, user)
            until_clean(site, 5)
    fences_well(site, user)


@case(layout=False)
def another_refuses(site):
    """After a required plugin that refuses a step in init, Slurm does not call exit: what is made goes with the next launch."""
    user = site.users[0]
    overlay = bool(placed(site).slurms)
    with failing(site, "init_post_opt", "refuse", "step=0", last=True):
        site.srun(user, "-n1", "--mem=100", "touch", "ran.refused")
        expect(not (site.directory(user) / "ran.refused").exists(), "the program of a refused step has run")
    until(lambda: not any("slurmstepd: [" in kernel.command_line(pid) for pid in site.our_processes()), 10,
          "the end of the step daemon")
    expect(overlay or site.leftovers(), "nothing remains, and should for want of an end")
    fences_well(site, user)
    until_clean(site, 5)


@case(layout=False)
def slurmd_starts(site):
    for action, kind in (("descriptors", "required"), ("panic", "optional")):
        with failing(site, "init", action, "context=slurmd", kind=kind) as mark:
            site.restart_slurmd()
            logged(site, mark, "jobfence: (jobs on this node will not be|cannot look for|slurm_spank_init did not finish)")
    run = site.home / "run-is-a-file"
    run.touch()
    with site.plugstack(f"RunDir={run}"):
        site.restart_slurmd()
    fences_well(site, site.users[0])


# ----------------------------------------------------------------------------------------
# Extern and interactive steps, several nodes, several components

BOTH = ("-N2", "-n2", "-c1", "--mem=100")


@case(on=["two-nodes"])
def extern_fails(site):
    """Nothing of the user's is started in that step: the others of the job do not depend on it."""
    user = site.users[0]
    for callback, on_error in (("init_post_opt", "fail"), ("init_post_opt", "warn"), ("task_post_fork", "fail")):
        with failing(site, callback, "descriptors", "step=extern", arguments=[f"OnError={on_error}"]) as mark:
            jobid = site.submit(user, "cat /proc/self/cgroup; srun -n1 cat /proc/self/cgroup", "-n1", "--mem=100")
            expect_equal(site.wait(jobid), "COMPLETED", "state of the job")
            for step in ("step_batch", "step_0"):
                # In Slurm's own directories the task has one, too.
                expect_match(rf"/{step}(/user/task_\w+)?\n", site.output(jobid), "cgroups of the job's programs")
            # Of the step perhaps, but of no task.
            expect("task runs WITHOUT" not in site.log_since(mark), "a task is said to be without a fence")


def expect_failed_step(site, done, sentence, what="srun"):
    expect(done.returncode != 0, f"{what} returned 0")
    expect_match(TO_THE_USER + sentence, done.stderr, f"stderr of {what}")
    expect_not_drained(site)


@case(on=["two-nodes"])
def one_node_fails(site):
    """Its tasks end, and the step fails. The other node's go on, as when a task of theirs dies: see KillOnBadExit."""
    user = site.users[0]
    for callback, sentence in (("init_post_opt", NOT_STARTED), ("task_post_fork", NOT_THIS_TASK)):
        for node, other in zip(site.nodes, reversed(site.nodes)):
            with failing(site, callback, "descriptors", f"node={node}", "step=0"):
                done = site.srun(user, *BOTH, "sh", "-c", "touch ran.$SLURMD_NODENAME")
                expect_failed_step(site, done, sentence, f"srun with {callback} on {node}")
            ran = [each for each in site.nodes if (site.directory(user) / f"ran.{each}").exists()]
            expect_equal(ran, [other], f"nodes on which the step's program ran, with {callback} failing on {node}")
            (site.directory(user) / f"ran.{other}").unlink()


@case(on=["two-nodes"])
def one_component_fails(site):
    user = site.users[0]
    # Jobs of several components are started by the backfill scheduler alone.
    with site.reconfigured(SchedulerParameters="bf_interval=1,sched_interval=1"):
        for callback, sentence in (("init_post_opt", NOT_STARTED), ("task_post_fork", NOT_THIS_TASK)):
            with failing(site, callback, "descriptors", "node=n2", "step=0"):
                program = ["-n1", "--mem=100", "sh", "-c", "echo $SLURMD_NODENAME has run"]
                done = site.srun(user, "-w", "n1", *program, ":", "-w", "n2", *program)
                expect_failed_step(site, done, sentence, f"srun of two components with {callback}")
                expect_equal(done.stdout, "n1 has run\n", "what the components' programs say")


@case(on=["two-nodes"])
def interactive_fails(site):
    user = site.users[0]

    def salloc(typed=""):
        # salloc wants a terminal for its shell.
        return site.as_user(user, ["script", "-qec", "salloc -n1 --mem=100", "/dev/null"], stdin=typed,
                            env={"SHELL": "/bin/sh"})

    with site.reconfigured(LaunchParameters="use_interactive_step"):
        for callback, sentence in (("init_post_opt", NOT_STARTED), ("task_post_fork", NOT_THIS_TASK)):
            with failing(site, callback, "descriptors", "step=interactive"):
                done = salloc("touch ran.interactive\n")
                expect(done.returncode != 0, f"salloc returned 0 with {callback}")
                expect_match(sentence, done.stdout, f"what salloc shows with {callback}")
                expect(not (site.directory(user) / "ran.interactive").exists(), f"the shell has run with {callback}")
                expect_not_drained(site)
        done = salloc("cat /proc/self/cgroup; exit\n")
        expect_in("/step_interactive", done.stdout, "what salloc's shell says afterwards")


@case(on=["private"], layout=False)
def another_plugin_changes_the_root(site):
    """What is the node's is read before: behind the other plugin, jobfence.conf, slurm.conf and RunDir are other ones."""
    user = site.users[0]
    site.configure(MaxProcesses="77")
    hidden = [f"path={path}" for path in (site.config, site.environment["SLURM_CONF"], site.run_directory())]
    site.run_directory().mkdir(mode=0o700, exist_ok=True)
    with failing(site, "init_post_opt", "hide", "step=batch", *hidden) as mark:
        jobid = site.submit(user, "echo $JOBFENCE_MAX_PROCESSES; sleep 300", "-c1", "--mem=100")
        fenced(site, jobid)
        until(lambda: site.output(jobid), 30, "the job to say its limit")
        expect_equal(site.output(jobid).strip(), "77", "the job's limit of processes")
        logged(site, mark, "another plugin has changed the step daemon's root")
        records = [path.name for path in site.run_directory().rglob("*") if str(jobid) in path.name]
        expect(records, f"no record of job {jobid} is where the janitor looks for it")
        site.end(jobid)
        until(lambda: not site.leftovers(), 30, "the end of all that the job has had")
    site.configure()
