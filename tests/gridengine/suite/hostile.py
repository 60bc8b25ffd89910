# SPDX-License-Identifier: GPL-2.0-or-later
"""A hostile user: what he tries in his job, with the cgroups, with the processes of root, and with his files in the spool."""

import re
import shutil

from contract import kernel
from contract.attempted import ATTEMPTS, END, expect_refused, expect_state, state_of
from contract.harness import PYTHON, case, expect, expect_equal, expect_gone, expect_in, running
from contract.kernel import Group
from contract.sites import until

from ..harness import ask

# As prolog and epilog, the shepherd opens them with the rights of the job's user.
USERS_OWN = {"trace", "error", "exit_status"}


@case
def stays_in(site):
    """The user can neither raise the limits of the job nor leave its fence, and cannot kill door and shepherd."""
    attempts = site.home / ATTEMPTS.name
    shutil.copyfile(ATTEMPTS, attempts)
    attempts.chmod(0o644)
    other, theirs = running(site, "alice", "sleep 1000", *ask(1, 100))
    elsewhere = [str(path) for one in (theirs, theirs.parent) for path in one.directories()]
    door_of = "$(awk '/^PPid:/ {print $2}' /proc/$PPID/status)"
    kills = f"for pid in $PPID {door_of}; do for number in 9 15 18 19 21; do kill -$number $pid 2>/dev/null && echo \"signal $number reached $pid\"; done; done"
    script = f"{PYTHON} -S {attempts} raise; {PYTHON} -S {attempts} move {' '.join(elsewhere)}; {kills}; echo $PPID {door_of} tried; sleep 1000"
    jobid, group = running(site, "alice", f"until [ -e go.$JOB_ID ]; do sleep 0.2; done; {script}", *ask(1, 100))
    before, others = state_of(group), state_of(theirs)
    door, shepherd = site.shepherds(jobid)
    (site.directory("alice") / f"go.{jobid}").touch()
    said = until(lambda: site.output(jobid) if "tried" in site.output(jobid) else None, 200, "the end of the attempts")
    expect_equal(said.count(END), 2, f"the ends of the attempts in {said[-2000:]}{site.told(jobid)[-2000:]}")
    wanted = [rf"^write .*/{file}$" for file in (("cpu.max", "memory.max") if kernel.has_v2_controllers() else ("memory.limit_in_bytes",))]
    count = expect_refused(said, *wanted, f"^cgroup.procs of .*{theirs.parent.name}.*, itself$", r"^cgroup.procs of \S*, a child$", "being elsewhere")
    expect("reached" not in said, f"a signal has reached a process of root's: {said[-500:]}")
    expect_in(f"{shepherd} {door} tried", said, "whom the job has tried to kill")
    expect_equal(site.shepherds(jobid), (door, shepherd), "door and shepherd")
    expect_state(group, before)
    expect_state(theirs, others)
    sleeper = until(lambda: site.job_pids(jobid, "sleep 1000"), 10, "the rest of the job")[0]
    expect_equal(Group.of(sleeper), group, "its cgroup at the end")
    site.end(jobid, other)
    for one in group, theirs:
        expect_gone(one.parent)
    return f"{count} attempts"


def switches(pid):
    """So often a process has slept and gone on."""
    return int(re.search(r"voluntary_ctxt_switches:\s+(\d+)", kernel.read(f"/proc/{pid}/status"))[1])


@case
def spool_of_the_job(site):
    """The user can write to three files of the spool, and to nothing else there; that neither wakes the door nor changes the job's end."""
    script = """
        cd $SGE_JOB_SPOOL_DIR
        for file in *; do { true >>$file; } 2>/dev/null && echo "can write $file"; done
        for name in pid job_pid usage signal config; do
            { echo 1 >$name; } 2>/dev/null && echo "wrote $name"
            mv $name $name.new 2>/dev/null && echo "moved $name"
            [ -e $name ] && rm -f $name 2>/dev/null && echo "removed $name"
        done
        mkdir new 2>/dev/null && echo "made new"
        until [ -e $OLDPWD/go.$JOB_ID ]; do sleep 0.2; done
        i=0; while [ $i -lt 2000 ]; do { true >>trace; } 2>/dev/null; { true >>exit_status; } 2>/dev/null; i=$((i + 1)); done
        touch $OLDPWD/written.$JOB_ID
        until [ -e $OLDPWD/stop.$JOB_ID ]; do sleep 0.2; done
        exit 3"""
    jobid, group = running(site, "alice", script, *ask(1, 100))
    top = site.directory("alice")
    until(lambda: "can write" in site.output(jobid), 60, "what the user can write")
    door, _ = site.shepherds(jobid)
    before = switches(door)
    (top / f"go.{jobid}").touch()
    until((top / f"written.{jobid}").exists, 120, "the writes")
    woken = switches(door) - before
    said = site.output(jobid).splitlines()
    (top / f"stop.{jobid}").touch()
    row = site.wait(jobid)
    expect_gone(group.parent)
    expect_in("can write trace", said, "what the user can write")
    expect_equal({line.removeprefix("can write ") for line in said} - USERS_OWN, set(), "what else the user could do")
    expect(woken <= 5, f"4000 writes of the user's have woken the door {woken} times")
    expect_equal(row["exit_status"].split()[0], "3", "exit_status")
    return f"{', '.join(said)}; woken {woken} times"
