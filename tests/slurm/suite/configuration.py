# SPDX-License-Identifier: GPL-2.0-or-later
"""What the administrator says, in jobfence.conf and plugstack.conf."""

import os
import re

from contract import kernel
from contract.harness import MIB, Skip, case, expect, expect_equal, expect_in, fenced, logged, running
from contract.sites import until
from ..harness import (
    RAN, NOT_STARTED, ended_line, expect_limits, expect_not_drained, expect_not_started, fences_well, without_places_of_the_defaults,
)


BROKEN = {
    "unknown mode": ("Mode=perhaps\n", 1),
    "no value": ("# a comment\n\nMode\n", 3),
    "no number": ("Mode=enforce\nAllowedRAMSpace=plenty\n", 2),
    "negative number": ("CPUQuotaPercent=-5\n", 1),
    "not text": (b"Mode=enf\xff\xfe\x00rce\n", 1),
    "byte order mark": (b"\xef\xbb\xbfMode=enforce\n", 1),
    "old line ends": (b"Mode=enforce\rMaxProcesses=50\r", 1),
}
# What the log names, beside the place.
NAMED = {"byte order mark": "a byte order mark", "old line ends": "a carriage return"}


@case(layout=False)
def broken_files(site):
    """Whatever is wrong with the file, no job runs, its place is named, and slurmd goes on and starts."""
    user = site.users[0]
    daemon = site.slurmd_pid()
    for what, (text, line) in BROKEN.items():
        before = site.configure_raw(text)
        mark = site.log_mark()
        jobid = site.submit(user, RAN, "-c1", "--mem=100")
        try:
            expect_not_started(site, user, jobid)
            logged(site, mark, rf"{re.escape(str(site.config))}:{before + line}:\d+.*{NAMED.get(what, '')}")
            expect_in("Only your administrator can fix that", site.output(jobid), "the job's output")
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
        expect_not_drained(site)
        expect_equal(site.slurmd_pid(), daemon, f"{what}: pid of slurmd")
        expect(kernel.is_alive(daemon), f"{what}: slurmd has died")
    # It must also start with such a file, or a typing error would take the node away.
    site.restart_slurmd()
    expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=100"))
    site.configure()
    fences_well(site, user)


@case(layout=False)
def another_systems_line_ends(site):
    """With them, and without the last one, a file says the same."""
    user = site.users[0]
    for text in (b"MaxProcesses=50\r\nMinRAMSpace=60MB\r\n", b"MaxProcesses=50\nMinRAMSpace=60MB"):
        site.configure_raw(text)
        jobid, group = running(site, user, "sleep 300", "-c1", "--mem=20")
        expect_limits(group, 1.0, 60)
        expect_equal(group.processes_limit(), 50, "processes")
        site.end(jobid)


@case(layout=False)
def wrong_arguments(site):
    """The line in plugstack.conf is named, though Slurm does not tell it."""
    user = site.users[0]
    for argument, found in (("Foo=bar", 'column 1: found "Foo"'), ("MaxProcesses=50\r", "carriage return")):
        with site.plugstack(argument):
            path, text, line = site._plugin_line()
            place = f"{path}:{text.splitlines().index(line.rstrip()) + 1} argument {len(line.split()) - 2}, "
            jobid = site.submit(user, RAN, "-c1", "--mem=100")
            expect_not_started(site, user, jobid)
            said = site.output(jobid)
            expect_in(NOT_STARTED + place, said, "the job's output")
            expect_in(found, said, "the job's output")
            expect_in("Only your administrator can fix that", said, "the job's output")
            mark = site.log_mark()
            site.restart_slurmd()
            logged(site, mark, "will not be fenced as configured: " + re.escape(place))
    fences_well(site, user)


@case(layout=False)
def cannot_be_fenced(site):
    user = site.users[0]
    site.configure(CgroupMountpoint="/nonexistent")
    expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=100"))
    done = site.srun(user, "--mem=100", "touch", "ran.srun")
    expect(done.returncode != 0, "srun returned 0")
    expect_in(NOT_STARTED, done.stderr, "srun's stderr")
    expect(not (site.directory(user) / "ran.srun").exists(), "srun's program has run")
    expect_not_drained(site)

    site.configure(CgroupMountpoint="/nonexistent", OnError="warn")
    mark = site.log_mark()
    jobid = site.submit(user, RAN, "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state with OnError=warn")
    expect((site.directory(user) / f"ran.{jobid}").exists(), "the job's script has not run")
    logged(site, mark, r"jobfence:.*(fence|nonexistent)")
    site.configure()
    fences_well(site, user)


@case
def binding_is_kept(site):
    """What Slurm has bound a task to, it is bound to in its fence, too."""
    if os.cpu_count() < 2:
        raise Skip("one CPU")
    plugins = site.command("scontrol", "show", "config").stdout
    if not re.search(r"^TaskPlugin\s*=.*affinity", plugins, re.M):
        raise Skip("Slurm does not bind tasks here")
    jobid = site.submit(site.users[0], """
        srun -n2 --cpu-bind=map_cpu:0,1 \\
            sh -c 'echo $SLURM_LOCALID bound to $(taskset -pc $$ | sed "s/.*: //")'
        """, "-n2", "-c1", "--mem=100")
    site.wait(jobid)
    for task in (0, 1):
        expect_in(f"{task} bound to {task}\n", site.output(jobid), "the job's output")


@case(layout=False)
def percentages(site):
    """Each key that changes a number changes it in the kernel's files."""
    site.configure(CPUQuotaPercent="50", CPUQuotaPeriod="20ms", AllowedRAMSpace="90",
                   MinRAMSpace="60M", AllowedSwapSpace="10")
    jobid = site.submit(site.users[0], """
        srun --mem=40 sleep 300
        """, "-c1", "--mem=100")
    step = fenced(site, jobid, "step_0")
    expect_limits(step, 0.5, 60, granted=40)
    expect_limits(step.parent, 0.5, 90, granted=100)
    expect_equal(step.cpu_period_us(), 20000, "period")
    if step.swap_is_accounted() and not step.memory_is_slurms():
        expect_equal(step.parent.swap_limit(), 10 * MIB, "swap of the job")
    site.scancel(jobid)


@case
def one_limit_off(site):
    """What is switched off is not limited, and nothing fails for it, whatever the controllers are."""
    for keys, cpus, mib in (
        ({"ConstrainCPUQuota": "no"}, None, 100),
        ({"ConstrainRAMSpace": "no", "ConstrainSwapSpace": "no"}, 1.0, None),
        ({"ConstrainCPUQuota": "no", "ConstrainRAMSpace": "no", "ConstrainSwapSpace": "no"},
         None, None),
    ):
        site.configure(**keys)
        jobid = site.submit(site.users[0], """
            env | grep -o "^JOBFENCE_[CM][PE][UM][^=]*" | sort; echo end; sleep 300
            """, "-c1", "--mem=100")
        group = fenced(site, jobid)
        expect_limits(group, cpus, mib, granted=100)
        expect_limits(group.parent, cpus, mib, granted=100)
        until(lambda: "end" in site.output(jobid), 5, "the job's output")
        told = ["JOBFENCE_CPUS"] * (cpus is not None) + ["JOBFENCE_MEMORY_BYTES"] * (mib is not None)
        expect_equal(site.output(jobid).split(), [*told, "end"], f"{keys}: what the job is told")
        site.end(jobid)


@case(layout=False)
def too_small_a_quota(site):
    """A number that the kernel refuses is an error of that limit: OnError decides for it alone."""
    user = site.users[0]
    tiny = {"CPUQuotaPercent": "1", "CPUQuotaPeriod": "10ms"}
    site.configure(**tiny)
    jobid = site.submit(user, RAN, "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    expect_in("the kernel's least is 1000 us", site.output(jobid), "the job's output")
    # One limit can be indispensable, though the rest is not.
    site.configure(**tiny, OnError="warn,cpu:fail")
    expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=100"))
    site.configure(**tiny, OnError="fail,cpu:warn")
    mark = site.log_mark()
    jobid, group = running(site, user, "sleep 300", "-c1", "--mem=100")
    expect_limits(group, None, 100)
    logged(site, mark, "runs without its CPU limit")
    site.scancel(jobid)


@case(layout=False)
def plugstack_decides(site):
    """Arguments in plugstack.conf override the file, and alone soften one with mistakes."""
    user = site.users[0]
    with site.plugstack("CPUQuotaPercent=50"):
        site.configure(CPUQuotaPercent="200")
        jobid = site.submit(user, "sleep 300", "-c1", "--mem=100")
        expect_limits(fenced(site, jobid), 0.5, 100)
        site.end(jobid)
    # With mistakes, the file says nothing of the places.
    with without_places_of_the_defaults():
        for softening in ("OnError=warn", "Mode=observe", "Mode=off"):
            with site.plugstack(softening):
                site.configure_raw("Mode=enforce\n%s%n=yes\n")
                mark = site.log_mark()
                jobid = site.submit(user, RAN, "-c1", "--mem=100")
                expect_equal(site.wait(jobid), "COMPLETED", f"{softening}: state of the job")
                if softening != "Mode=off":
                    logged(site, mark, r"WITHOUT a fence.*%s%n")


@case(layout=False)
def listed_as_optional(site):
    """Slurm ignores what an optional plugin answers, and the job is refused all the same."""
    with site.plugstack(kind="optional"):
        site.configure(CgroupMountpoint="/nonexistent")
        expect_not_started(site, site.users[0], site.submit(site.users[0], RAN, "-c1", "--mem=100"))
        site.configure()
        fences_well(site, site.users[0])


@case(on=["private"])
def submitting_needs_no_configuration(site):
    """As on a login node: without the file, jobs are taken, and fail where they cannot be fenced."""
    user = site.users[0]
    site.config.unlink()
    jobid = site.submit(user, RAN, "-c1", "--mem=100")
    expect_not_started(site, user, jobid)
    site.configure()


@case(on=["installed"], layout=False)
def a_name_without_a_file(site):
    """A file that was moved away behind its link is not the same as none: the site's limits would be gone unnoticed."""
    user = site.users[0]
    link = site.config
    link.unlink()
    try:
        link.symlink_to("shared/jobfence.conf")
        mark = site.log_mark()
        jobid = site.submit(user, RAN, "-c1", "--mem=100")
        expect_not_started(site, user, jobid)
        expect_in(f"{link}: found the symbolic link to shared/jobfence.conf, which does not exist",
                  site.output(jobid), "the job's output")
        logged(site, mark, "this step is refused.*symbolic link")
        expect_not_drained(site)
        for command in ("check", "explain"):
            done = site.command(site.jobfence, command, *["--cpus=1"] * (command == "explain"))
            expect(done.returncode != 0, f"jobfence {command} says all is well: {done.stdout}")
            expect_in("which does not exist", done.stderr, f"what jobfence {command} says")
        # Nothing of that name is no file, and the defaults fence.
        link.unlink()
        fences_well(site, user)
    finally:
        link.unlink(missing_ok=True)
        site.configure()
    fences_well(site, user)


@case(layout=False)
def listed_twice(site):
    with site.plugstack(twice=True):
        mark = site.log_mark()
        jobid, group = running(site, site.users[0], "sleep 300", "-c1", "--mem=100")
        for top in group.parent.directories():
            expect_equal([p.name for p in top.iterdir() if p.is_dir()], ["step_batch"],
                         f"directories in {top}")
        site.end(jobid)
        until(lambda: not site.step_daemons(jobid), 5, "the end of the step daemon")
        lines = re.findall(ended_line(jobid, "batch"), site.log_since(mark))
        expect_equal(len(lines), 1, "number of lines about the end of the step")
