# SPDX-License-Identifier: GPL-2.0-or-later
"""What the command says and does under each scheduler."""

import contextlib
import json

from .harness import case, expect_equal, expect_in, expect_match, fenced, logged_in, running, uid
from .sites import until


@case(layout=False)
def called_as(site):
    """Each command knows a job of an array by all of its names; all of the array is several jobs, and no command takes that."""
    user, log = site.users[0], site.home / "called"
    log.mkdir(mode=0o700, exist_ok=True)
    site.configure(f"MaxProcesses=300\nUsageLog={log}/usage.jsonl\n[Queue={site.QUEUE}]\nMaxProcesses=77\n")
    jobs, whole = site.submit_array(user, "sleep 1000", 2, *site.NAME, "called.as", cpus=1, mib=100)
    for jobid in jobs:
        step = fenced(site, jobid).name
        for name in site.names_of(jobid):
            status, said = site.ours("explain", name)
            expect_equal(status, 0, f"exit status of explain {name}: {said}")
            expect_in(f"job        {jobid} of {user} (uid {uid(user)}), partition {site.QUEUE},", said, f"explain {name}")
            expect_in("granted    1 CPU, 100.0 MiB of memory", said, f"explain {name}")
            expect_match(rf"step +\S+/{step}/pids.max = 77\nstep +now the same\n +processes by the record of the fence", said, f"explain {name}")
            for words in (["show", name], ["usage", "--job", name], ["ls", "--job", name], ["freeze", "--job", name], ["thaw", "--job", name],
                          ["limit", "--job", name, "--step", step.removeprefix("step_"), "--cpus", "1"]):
                status, said = site.ours(*words)
                expect_equal(status, 0, f"exit status of {words}: {said}")
    array = site.names_of(whole)[0]
    several = 1, f"jobfence: the name {array} means several jobs here, and this command takes one: {', '.join(jobs)}\n"
    for words in (["explain", array], ["show", array], ["ls", "--job", array], ["usage", "--job", array], ["freeze", "--job", array],
                  ["limit", "--job", array, "--cpus", "1"], ["attach", "--job", array, "1234567"]):
        expect_equal(site.ours(*words), several, f"{words}")
    # An epilog may come twice, and by a name that is not the job's own nothing ends.
    hints = {array: "", **{name: f"; did you mean {jobs[0]}?" for name in site.names_of(jobs[0]) if name != jobs[0]}}
    for name, hint in hints.items():
        nothing = 0, f"jobfence: there is no fence of job {name}: nothing to close{hint}\n"
        expect_equal(site.ours("close", "--job", name), nothing, f"close of {name}")
    site.end(whole)
    for jobid in jobs:
        for name in site.names_of(jobid):
            status, said = site.ours("report", name)
            expect_equal((status, f"job {jobid}" in said), (0, True), f"report {name}: {said}")
    lines = [json.loads(line) for file in log.glob("usage.jsonl*") for line in file.read_text().splitlines()]
    expect_equal({(line["job"], line["job_name"]) for line in lines}, {(jobid, "called.as") for jobid in jobs}, "the jobs of the usage log")
    expect_equal(site.ours("report", array), several, "report of all")


def setup(site, status, *words):
    """What `jobfence setup` says to an administrator who has logged in as a user, and it has this exit status."""
    command = [*logged_in(site.users[0]), str(site.jobfence), "setup", "--any-program", "--scheduler", site.SCHEDULER, *site.setup_words, *words]
    done = site.command(*command, timeout=300)
    expect_equal(done.returncode, status, f"the status of 'jobfence setup' {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


@contextlib.contextmanager
def set_up_here(site):
    """For the time being, the host is set up, which was never set up before; that is shown before it is done, and is taken back."""
    central = ["--central"] * site.IS_SET_UP_CENTRALLY
    with site.not_set_up() as shown:
        before = site.what_setup_changes()
        for status, words in [(2, ["--dry-run", *central]), *[(1, [])] * len(central)]:
            said = setup(site, status, *words)
            for line in shown:
                expect_in(line, said, f"what {words} shows")
            expect_equal(site.what_setup_changes(), before, f"what is there after {words}")
        last = setup(site, 2, *central).splitlines()[-1]
        expect_match(rf"^set up .*: {site.HAS_RUN_FENCED}", last, "its last line")
        site.until_set_up()
        yield central
        setup(site, 2, "--undo", *central)
        expect_equal(site.what_setup_changes(), before, "what is there after --undo")
        setup(site, 0, "--undo", *central)
        until(lambda: not is_fenced(site), 120, "a job without a fence")


def is_fenced(site):
    """Whether a job that is submitted now has a fence."""
    jobid = site.submit(site.users[0], "cat /proc/self/cgroup", cpus=1, mib=100)
    site.wait(jobid)
    return f"/{site.directory_of(jobid)}/" in site.output(jobid)


@case(layout=False)
def set_up(site):
    """'jobfence setup' shows what it would do, does it and has a job run in a fence, does nothing the second time, and takes all of it back."""
    with set_up_here(site) as central:
        after = site.what_setup_changes()
        jobid, group = running(site, site.users[0], "sleep 1000", cpus=1, mib=100)
        site.expect_limits(group, 1, 100)
        site.end(jobid)
        for words in [], ["--dry-run"], *[central][:len(central)]:
            setup(site, 0, *words)
        expect_equal(site.what_setup_changes(), after, "what is there after the second time")
