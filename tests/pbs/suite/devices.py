# SPDX-License-Identifier: GPL-2.0-or-later
"""Which GPUs a job has, where PBS only says how many."""

import re

from contract.gpus import SHOW_GPUS, gpus_of_the_node
from contract.harness import Skip, case, expect, expect_equal, expect_in, expect_match, fenced
from contract.sites import until

from ..sites import EXEC, FINISHED


def submit(site, user, top, gpus, after="sleep 1000", cpus=0):
    """A job with so many GPUs, which shows what it has of them."""
    script = SHOW_GPUS.format(top) + f"echo TEXT=$TEXT; {after}"
    return site.submit(user, script, "-koed", "-v", "TEXT='a,b c'", f"-lselect=1:ncpus={cpus}:mem=50mb:ngpus={gpus}")


def said(site, user, jobid):
    """What the job has said so far: its output is in the home of its user."""
    number = jobid.split(".")[0]
    path = site.directory(user) / f"STDIN.o{number}"
    return until(lambda: path.exists() and "TEXT=" in path.read_text() and path.read_text(), 30, f"the words of job {jobid}")


@case
def gpus(site):
    """Each job can open its own GPU, and no other, and CUDA is told so."""
    with gpus_of_the_node((0, 1)) as top, site.granting(["ngpus"], ngpus=3):
        if site.as_user("alice", ["sh", "-c", f": <{top}/nvidia0 && : <{top}/nvidia1"]).returncode != 0:
            raise Skip("this machine has no two devices that a user can open")
        site.configure(ConstrainDevices="yes", GPUDevice=f"{top}/nvidia%d")
        jobs = [submit(site, user, top, 1) for user in ("alice", "bob")]
        had = []
        for user, jobid in zip(("alice", "bob"), jobs):
            fenced(site, jobid)
            expect_in("ngpus=1", site.job(jobid)["exec_vnode"], "what PBS has granted")
            found = expect_match(r"^(nvidia[01])\nCUDA=0\nTEXT=a,b c\n", said(site, user, jobid), f"the words of job {jobid}")
            had.append(found[1])
        expect_equal(sorted(had), ["nvidia0", "nvidia1"], "the GPUs of both jobs")
        # PBS counts one more than there is: such a job waits for one of the others.
        mark = site.log_mark()
        third = submit(site, "alice", top, 1)
        refused = f"too few GPUs are free for this job: .*job {re.escape(third)}; granted 1"
        until(lambda: re.search(refused, site.log_since(mark)), 30, "the refusal of a third job")
        expect(site.job(third)["job_state"] not in FINISHED, "the third job is gone")
        site.qdel(jobs[0])
        site.wait(jobs[0])
        until(lambda: site.job(third)["job_state"] != "Q", 30, "the start or the hold of the third job")
        if site.job(third)["job_state"] == "H":
            site.command("qrls", "-h", "s", third)
        fenced(site, third, timeout=60)
        expect_match(f"^{had[0]}\nCUDA=0\n", said(site, "alice", third), "the words of the third job")
        none = submit(site, "bob", top, 0)
        expect_in("CUDA=\nTEXT=", said(site, "bob", none), "the words of a job without GPUs")
        expect("nvidia" not in said(site, "bob", none), f"a job without GPUs can open one: {said(site, 'bob', none)}")


@case(layout=False)
def gpus_are_named_to_all_tasks(site):
    """A list reaches the job and its tasks whole; a node without GPUDevice leaves the variable to the user."""
    with gpus_of_the_node((0, 1, 2), is_local=True) as top, site.granting(["ngpus"], ngpus=3):
        show = f"{EXEC}/bin/pbsdsh -- /usr/bin/printenv CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER; exit 0"
        for keys, wanted in (
            ({"GPUDevice": f'"{top}/nvidia[2,0-1]"'}, "2,0"),
            ({}, "unset"),
        ):
            site.configure(**keys)
            # A job without a CPU has no task beside its first one.
            jobid = submit(site, "alice", top, 2, show, cpus=1)
            site.wait(jobid)
            output = site.output(jobid)
            expect_in(f"CUDA={wanted}\nTEXT=a,b c\n", output, "the job's words")
            expect_equal(f"\n{wanted}\nPCI_BUS_ID\n" in output, wanted != "unset", f"a task's variables, in {output!r}")
