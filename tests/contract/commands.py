# SPDX-License-Identifier: GPL-2.0-or-later
"""What the command says and does under each scheduler."""

import json

from .harness import case, expect_equal, expect_in, expect_match, fenced, uid


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
