# SPDX-License-Identifier: GPL-2.0-or-later
"""The card of a batch job with several nodes: each hands on what the job used there."""

import os

from contract.harness import EAT, MIB, case, expect, expect_equal, expect_in, expect_match
from contract.sites import until
from .card import BUSY, FORKS, amount, card_of, expect_readable, row
from .two_nodes import ELSEWHERE

LOCALE = {"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""}
SILENT = r"Not known here:[^.]*the use of n2"


# What Slurm calls a job whose script has failed, and in which the kernel has killed a process.
NOT_WELL = "FAILED", "OUT_OF_MEMORY"


# With a kill in it, so that it has a card however short it is.
def failed(site, script, *options):
    user = site.users[0]
    jobid = site.submit(user, script + "\nexit 3\n", "-N2", "-n2", "-c1", "--mem=200", *options, env=LOCALE)
    expect_in(site.wait(jobid), NOT_WELL, "state")
    text = "\n".join(site.output(jobid).splitlines())
    return jobid, text


def expect_no_litter(site, jobid):
    """What other jobs have planted stays."""
    left = list(site.directory(site.users[0]).glob(f".jobfence-{jobid}*"))
    expect_equal(left, [], "what is left in the directory of the job")


@case(on=["two-nodes"])
def card_of_all_nodes(site):
    site.configure(UsageCard="always", MaxProcesses="20")
    # Two steps on the other node, one after the other, and one here.
    user = site.users[0]
    jobid = site.submit(user, f"""
        {ELSEWHERE} {BUSY}
        ls .jobfence-$SLURM_JOB_ID > handed
        {ELSEWHERE} {BUSY}
        cd /
        {ELSEWHERE} true
        {FORKS}
        """, "-N2", "-n2", "-c1", "--mem=200", env=LOCALE)
    site.wait(jobid)
    card = card_of(site, jobid)
    text = "\n".join(card)
    expect(card, f"no card:\n{site.output(jobid)}")
    expect_readable(text)
    expect_equal((site.directory(user) / "handed").read_text(), "n2\n", "what lies there while the job runs")
    expect_match(r"^jobfence: job \d+( \(.*\))? on n1 and 1 other node ", text, "the title")
    expect_match(r"of 2 CPUs on average", row(card, "CPU")[1], "CPUs")
    first, = [line for line in card if line.startswith("  n1: ")]
    other, = [line for line in card if line.startswith("  n2: ")]
    busy = [float(expect_match(r"n\d: ([\d.]+) of 1 CPU", line, "the node's line").group(1)) for line in (first, other)]
    expect(busy[1] > 2 * busy[0], f"CPU time of n1 and n2: {busy}")
    total = float(expect_match(r"^([\d.]+) of", row(card, "CPU")[1], "CPU").group(1))
    expect(abs(total - sum(busy)) <= 0.15, f"{total} CPUs in all, and {busy}")
    if "\n  memory " in text:
        expect_in(" on n2", row(card, "memory")[1], "the worst node")
        expect(amount(row(card, "memory")[1]) >= 64 * MIB, f"memory: {row(card, 'memory')}")
    expect("Not known here: the use of n" not in text and "; the use of n" not in text, text)
    expect_no_litter(site, jobid)
    return text.replace("\n", " | ")


@case(on=["two-nodes"])
def card_without_a_node(site):
    """A node that says nothing is named, and so is one whose words are no figures."""
    site.configure(UsageCard="failed")
    user = site.users[0]
    where = site.directory(user)
    # What the user plants: a link to a file, and one to a directory; a directory in the place of the file; a forged text.
    secret = where / "precious"
    secret.write_text("jobfence-node-1 secret\n")
    folder = ".jobfence-$SLURM_JOB_ID"
    plants = {
        "link": f"ln -s ../precious {folder}/n2",
        "directory": f"mkdir -p {folder}/n2",
        "fifo": f"mkfifo {folder}/n2",
        "forged": f"printf 'jobfence-node-1 \\033[31m\\n' > {folder}/n2",
        "large": f"head -c 100000 /dev/zero > {folder}/n2",
        "a link as the directory": f"rmdir {folder}; mkdir -p real.$SLURM_JOB_ID; ln -s real.$SLURM_JOB_ID {folder}",
        "a file as the directory": f"rmdir {folder}; touch {folder}",
        "open to all": f"chmod 777 {folder}",
        "no right to write": f"chmod 500 {folder}",
    }
    for what, plant in plants.items():
        jobid, text = failed(site, f"{plant}\n{EAT}")
        expect_readable("\n".join(card_of(site, jobid)))
        expect_match(SILENT.replace(" ", r"\s+"), "\n".join(card_of(site, jobid)), f"the card, {what} being there")
        expect_equal(secret.read_text(), "jobfence-node-1 secret\n", f"the file of the user, {what}")
    return f"{len(plants)} plants"


@case(on=["two-nodes"])
def card_when_a_step_writes_over(site):
    """A link in the place of its file leads a step nowhere."""
    site.configure(UsageCard="failed")
    user = site.users[0]
    where = site.directory(user)
    (where / "precious").write_text("mine\n")
    folder = ".jobfence-$SLURM_JOB_ID"
    jobid, _ = failed(site, f"""
        ln -s ../precious {folder}/n2
        {ELSEWHERE} true
        ls -l {folder} >&2
        {EAT}""")
    expect_match(SILENT.replace(" ", r"\s+"), "\n".join(card_of(site, jobid)), "the card")
    expect_equal((where / "precious").read_text(), "mine\n", "the file of the user")
    # With a directory that is not there, as where it is not shared.
    jobid, _ = failed(site, f"export SLURM_SUBMIT_DIR=/nowhere\n{ELSEWHERE} true\n{EAT}")
    expect_match(SILENT.replace(" ", r"\s+"), "\n".join(card_of(site, jobid)), "the card")
    # Through a descriptor of the step daemon's.
    jobid, _ = failed(site, f"export SLURM_SUBMIT_DIR=/proc/self/cwd\n{ELSEWHERE} true\n{EAT}")
    expect_match(SILENT.replace(" ", r"\s+"), "\n".join(card_of(site, jobid)), "the card")


@case(on=["two-nodes"])
def card_of_a_requeued_job(site):
    """What an earlier run has handed on does not count."""
    site.configure(UsageCard="failed")
    user = site.users[0]
    jobid = site.submit(user, f"""
        if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
            {ELSEWHERE} true
            touch ran.$SLURM_JOB_ID; sleep 300
        fi
        echo "handed: $(ls -A .jobfence-$SLURM_JOB_ID)."
        {EAT}
        exit 3
        """, "-N2", "-n2", "-c1", "--mem=200", "--requeue", "--open-mode=append", env=LOCALE)
    until((site.directory(user) / f"ran.{jobid}").exists, 30, "the first run")
    folder = site.directory(user) / f".jobfence-{jobid}"
    old = (folder / "n2").read_text()
    site.command("scontrol", "requeuehold", str(jobid))
    until(lambda: site.jobs(jobid)[0].get("JobState") == "PENDING", 60, "the requeue")
    until(lambda: not folder.exists(), 10, "the removal by the first run's card")
    folder.mkdir(exist_ok=True)
    (folder / "n2").write_text(old)
    owner = site.directory(user).stat()
    for path in folder, folder / "n2":
        os.chown(path, owner.st_uid, owner.st_gid)
    # slurmd refuses a run that begins in the second in which the one before it was ended.
    site.command("scontrol", "update", f"JobId={jobid}", "StartTime=now+2seconds")
    site.command("scontrol", "release", str(jobid))
    expect_in(site.wait(jobid, timeout=300), NOT_WELL, "state")
    expect_in("handed: .\n", site.output(jobid), "what the second run finds")
    expect_match(SILENT.replace(" ", r"\s+"), "\n".join(card_of(site, jobid)), "the card")


@case(on=["two-nodes"])
def card_of_a_job_whose_step_goes_on(site):
    """A step that the script leaves behind is not in the card: there is no advice, and nothing is left."""
    site.configure(UsageCard="failed")
    jobid, _ = failed(site, f"""
        {ELSEWHERE} sleep 300 &
        sleep 2
        {EAT}""")
    expect_match(r"(?s)steps\s+that\s+may\s+still\s+run\s+on\s+other\s+nodes|the\s+use\s+of\s+n2", "\n".join(card_of(site, jobid)), "the card")
    until(lambda: not site.step_daemons(jobid), 30, "the end of the step")
    expect_no_litter(site, jobid)


@case(on=["two-nodes"])
def card_without_a_step_whose_srun_was_killed(site):
    """That the node has handed on the figures of an earlier step does not make them all: no card then says to ask for less."""
    site.configure(UsageCard="failed")
    # Its child would end the step in its place.
    left = f"""
        {ELSEWHERE} --overlap sh -c 'touch begun.$SLURM_JOB_ID; exec sleep 300' &
        until [ -e begun.$SLURM_JOB_ID ]; do sleep 0.1; done
        kill -KILL $(pgrep -P $!) $!
        wait $!"""
    texts = []
    for script in "", left:
        jobid, _ = failed(site, f"{ELSEWHERE} --overlap true\n{script}\n{EAT}")
        texts.append(" ".join("\n".join(card_of(site, jobid)).split()))
        until(lambda jobid=jobid: not site.step_daemons(jobid), 30, "the end of the steps")
        expect_no_litter(site, jobid)
    still = "the use of steps that may still run on other nodes"
    for text in texts:
        expect("the use of n2" not in text, f"the earlier step on n2 counts: {text}")
    expect(texts[0] and still not in texts[0], f"the card of a job whose steps have ended: {texts[0]}")
    expect_in(still, texts[1], "the card of a job with a step")
    return texts[1]
