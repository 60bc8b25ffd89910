# SPDX-License-Identifier: GPL-2.0-or-later
"""The card: what a job's output says of its use, at the end of a batch script."""

import itertools
import re

from contract import kernel
from contract.harness import EAT, MIB, PYTHON, case, expect, expect_equal, expect_in, expect_match, fenced
from contract.sites import until
from ..harness import expect_limits, expect_not_drained
from .commands import jobfence
from .devices import gres_conf_of
from .newer import release

# Burns CPU time and memory, and starts more than it may: that is worth a card, however short the job is.
BUSY = f"""{PYTHON} -S -c '
import time
b = [bytes([i + 1]) * (8 << 20) for i in range(8)]
while time.process_time() < 2: pass'"""
FORKS = f"""{PYTHON} -S -c '
import os, signal, time
children = []
try:
    for i in range(30):
        children.append(os.fork())
        if not children[-1]: time.sleep(60)
except OSError: pass
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.wait()'"""
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ENDED = r"jobfence: job \S+( \(.*\))? on \S+( and \d+ other nodes?)? (completed|failed|was (ended|killed)|lost)"


def card_of(site, jobid):
    """The lines of the card in a job's output; none if it has none. Slurm may have a word behind it."""
    lines = site.output(jobid).splitlines()
    begin = next((at for at, line in enumerate(lines) if re.match(ENDED, line)), len(lines))
    return [*lines[begin:begin + 1], *itertools.takewhile(lambda line: line.startswith("  "), lines[begin + 1:])]


def one_line_of(site, jobid):
    return [line for line in site.output(jobid).splitlines() if re.match(r"jobfence: job \S+: (ok|status|signal)", line)]


def expect_readable(text, ascii=True):
    """At 80 columns, and with nothing that a terminal obeys."""
    for line in text.splitlines():
        expect(len(line) <= 80, f"{len(line)} columns: {line}")
        expect(all(c.isprintable() for c in line), f"not printable: {line!r}")
        expect(line.isascii() or not ascii, f"not ASCII: {line}")


def row(card, label):
    """How much of it is used, in percent, and the text behind that."""
    return expect_match(rf"(?m)^  {label} +[#.]* +(?:(\d+) %)? +(.*)$", "\n".join(card), "the card").groups()


def daemons_seconds(job):
    """What Slurm's step daemons that live have used, where they are in the job's directory."""
    unified = job.directory("")
    stats = [kernel.read(daemon / "cpu.stat") for daemon in unified.glob("step_*/slurm")] if unified else []
    return sum(int(kernel.keyed(stat)["usage_usec"]) for stat in stats) / 1e6


def amount(text):
    """The first amount of bytes in a text."""
    number, unit = expect_match(r"([\d.]+) (B|[KMG]iB)\b", text, "an amount").groups()
    return float(number) * UNITS[unit]


@case
def card_of_a_failed_job(site):
    """It names what the kernel has counted for all steps of the job, those that have ended included."""
    user = site.users[0]
    site.configure(UsageCard="failed", MaxProcesses="20", UsageCardText="https://hpc.example.org/jobs/%j?from=card%%20")
    jobid = site.submit(user, f"""
        srun -n1 {BUSY}
        {FORKS}
        touch used.$SLURM_JOB_ID
        while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done
        echo the last word
        exit 3
        """, "-c1", "--mem=200", "--time=10", "--job-name=\x1b[31mred", env={"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""})
    group = fenced(site, jobid)
    job, has_daemons = group.parent, kernel.has_v2_controllers() and bool(group.slurms)
    until((site.directory(user) / f"used.{jobid}").exists, 60, "the job's use")
    cpu = job.cpu_seconds() - daemons_seconds(job)
    peak = int(job.file("memory", "memory.peak", "memory.max_usage_in_bytes") or 0)
    processes = int(job.file("pids", "pids.peak", "pids.peak") or 0)
    (site.directory(user) / f"go.{jobid}").touch()
    expect_equal(site.wait(jobid), "FAILED", "state")
    card = card_of(site, jobid)
    text = "\n".join(card)
    expect(card, f"the output has no card:\n{site.output(jobid)}")
    expect_readable(text)
    expect(site.output(jobid).index("the last word") < site.output(jobid).index(text), "the card is not at the end")
    title = expect_match(r"^jobfence: job (\S+) \(\?\[31mred\) on \S+ failed with exit status 3 after (?:(\d+) min )?(\d+) s", text, "the card")
    expect_equal(title.group(1), str(jobid), "the job")
    expect_equal(card[-1], f"  https://hpc.example.org/jobs/{jobid}?from=card%20", "the line of the site's own")
    # The first release that tells a job its times.
    if release(site) >= (23, 2):
        expect_match(r" of 10 min 0 s$", row(card, "time")[1], "time")
    else:
        expect("\n  time " not in text, f"a time limit that nobody has said:\n{text}")
    share, said = row(card, "CPU")
    busy = float(expect_match(r"^([\d.]+) of 1 CPU on average(, step daemons)?$", said, "CPU time").group(1))
    seconds = 60 * int(title.group(2) or 0) + int(title.group(3)) + 0.5
    # Whole seconds, and tenths of a CPU.
    expect(abs(busy * seconds - cpu) <= 0.05 * seconds + 0.5 * busy + 0.3, f"{busy} CPUs in {seconds} s, and the kernel counts {cpu} s")
    expect(abs(int(share) - 100 * busy) <= 1, f"{share} % and {busy} CPUs")
    if peak:
        share, said = row(card, "memory")
        # What it uses after we have looked is little.
        expect(abs(amount(said) - peak) <= 2 * MIB, f"the card has {said}, and the kernel {peak / MIB:.1f} MiB")
        if " of " in said:
            expect_in("of 200.0 MiB", said, "memory")
    if processes:
        # The daemons are among them, and have room beside the limit.
        said = f"peak {processes} with threads and step daemons" if has_daemons else f"peak {processes} of 20, threads counted"
        expect_equal(row(card, "processes")[1], said, "processes")
    expect_match(r"\d+ process(es)? or threads? could not start because of the\s+limit\s+of\s+20 at once", text, "the card")
    expect("--mem=" not in text, f"advice to a job that failed:\n{text}")
    # A limit of the job stopped one that ended well.
    jobid = site.submit(user, FORKS, "-c1", "--mem=100", env={"LANG": "C.UTF-8"})
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    expect_in("█" if peak or cpu else "", "\n".join(card_of(site, jobid)), "the card where the locale is UTF-8")
    expect_readable("\n".join(card_of(site, jobid)), ascii=False)
    jobid = site.submit(user, "true", "-c1", "--mem=100")
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    expect_equal(site.output(jobid), "", "the output of a job that did not fail")
    expect_not_drained(site)
    return f"{cpu:.1f} s of CPU time, {peak / MIB:.1f} MiB, {processes} processes"


@case
def card_under_a_quota_below_the_grant(site):
    """What a job could use is what its quota allows, for the card and for the report of its line in the log."""
    log = site.home / "usage"
    site.configure(UsageCard="always", CPUQuotaPercent="50", UsageLog=f"{log}/usage.jsonl")
    burn = "import os, sys, time\nwhile time.process_time() < 2 or not os.path.exists(sys.argv[1]): pass"
    jobid = site.submit(site.users[0], f"for i in 1 2; do {PYTHON} -S -c '{burn}' go.$SLURM_JOB_ID & done; wait", "-c2", "--mem=200",
                        env={"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""})
    expect_limits(fenced(site, jobid), 1.0, 200)
    (site.directory(site.users[0]) / f"go.{jobid}").touch()
    expect_equal(site.wait(jobid), "COMPLETED", "state")
    card = "\n".join(card_of(site, jobid) or one_line_of(site, jobid))
    expect_match(r"[\d.]+ of 1 CPU on average; 2 granted|, \d+ % of 1 CPU, ", card, "the card")
    expect("ask for more CPUs" not in card, f"the card advises what does not help:\n{card}")
    expect_match(r"CPU time .* %\), 1 of 2 CPUs\n", jobfence(site, "report", str(jobid)), "the report")


@case
def card_after_a_kill(site):
    site.configure(UsageCard="failed")
    jobid = site.submit(site.users[0], f"{EAT}\nexit $?", "-c1", "--mem=200")
    site.wait(jobid)
    card = card_of(site, jobid)
    text = "\n".join(card)
    expect_readable(text, ascii=False)
    expect_match(r"^jobfence: job \d+( \(.*\))? on \S+ was killed for lack of memory after", text, "the card")
    # A script that does not look at how its program ended.
    careless = site.submit(site.users[0], f"{EAT}\nexit 0", "-c1", "--mem=200")
    site.wait(careless)
    expect_match(r"^jobfence: job \d+( \(.*\))? on \S+ lost 1 process for lack of memory, and ended with exit status 0 after",
                 " ".join(" ".join(card_of(site, careless)).split()), "the card of a job that lost its program")
    if "\n  memory " in text:
        expect_match(r"--mem=320M +200\.0 MiB was not enough", text, "the card")
    # The sentence that names the process stands before it.
    expect_match(r"was killed: the (job|step) reached its memory limit", site.output(jobid).split(card[0])[0],
                 "what stands before the card")


@case(layout=False)
def card_of_a_cancelled_job(site):
    """Slurm closes the output of such a job only when its processes have ended."""
    site.configure(UsageCard="failed")
    jobid = site.submit(site.users[0], "sleep 300", "-c1", "--mem=100")
    fenced(site, jobid)
    expect_equal(site.end(jobid), "CANCELLED", "state")
    # A shell that learns of its child's death before its own signal comes ends with a status.
    expect_match(r"\njobfence: job \d+: (signal (15|9)|status 143), [\d.]+ s, ", "\n" + site.output(jobid), "the output")


@case(layout=False)
def whose_word_on_the_card_counts(site):
    """The user's own output is the user's."""
    user = site.users[0]

    def lines(site_says, *options, script="true"):
        site.configure(**({"UsageCard": site_says} if site_says else {}))
        jobid = site.submit(user, script, "-c1", "--mem=100", *options)
        expect_equal(site.wait(jobid), "COMPLETED", "state")
        expect_equal(card_of(site, jobid), [], "cards of a job in which nothing happened")
        return one_line_of(site, jobid)
    expect_equal(lines(None), [], "cards by default")
    expect_equal(lines("never"), [], "cards where the site wants none")
    for asked in "failed", "wasteful":
        expect_equal(lines("always", f"--usage-card={asked}"), [], f"cards of a good job that wants those of {asked} ones")
    expect_equal(lines("always", script="#SBATCH --usage-card=never\ntrue"), [], "cards of a job that wants none")
    expect_match(r"^jobfence: job \d+: ok, [\d.]+ s, \d+ % of 1 CPU", "\n".join(lines("always")), "a card")
    said = lines("never", script="#SBATCH --usage-card=always\nsrun -n1 true")
    expect_equal(len(said), 1, f"lines of a job that wants a card: {said}")
    # A step is no job, and its output is not the job's.
    site.configure(UsageCard="always")
    done = site.srun(user, "--mem=100", "true")
    expect_equal((done.returncode, done.stderr), (0, ""), "what srun says")
    # By sections, as any key of jobs.
    site.configure_raw(f"[User={user}]\nUsageCard=always\n")
    jobid = site.submit(user, "true", "-c1", "--mem=100")
    site.wait(jobid)
    expect_equal(len(one_line_of(site, jobid)), 1, "lines of a job by its section")
    expect_not_drained(site)


@case(layout=False)
def cards_of_an_array(site):
    """One line for each task."""
    user = site.users[0]
    site.configure(UsageCard="always")
    array = site.submit(user, "sleep 1", "--array=1-20", "-c1", "--mem=50", "--output=%A_%a.out")
    expect_equal(site.wait(array, timeout=180), "COMPLETED", "states")
    for task in range(1, 21):
        said = site.output(f"{array}_{task}").splitlines()
        expect_equal(len(said), 1, f"lines of task {task}: {said}")
        expect_match(rf"^jobfence: job {array}_{task}: ok, [12] s, \d+ % of 1 CPU", said[0], f"the line of task {task}")
        expect_readable(said[0])


@case(on=("private",), layout=False)
def what_a_card_advises_is_taken(site):
    """sbatch takes one of the options about memory, so the advice says which one it stands for."""
    user = site.users[0]
    keys = {"topology": f"{site.default_topology()} Gres=gpu:1", "GresTypes": "gpu"}
    with gres_conf_of(site, "Name=gpu File=/dev/null\n"), site.reconfigured(**keys):
        site.configure(UsageCard="failed")
        for option, *more in (["--mem=200"], ["--mem-per-cpu=200"], ["--mem-per-gpu=200", "--gres=gpu:1"]):
            jobid = site.submit(user, f"{EAT}\nexit $?", "-c1", option, *more)
            site.wait(jobid)
            advised = re.search(r"#SBATCH (--mem=\d+M)(?: \(no (--mem-per-.pu)\))?", "\n".join(card_of(site, jobid)))
            expect(advised, f"no advice on memory after {option}: {site.output(jobid)}")
            asked = [advised[1], *([option] if (advised[2] or "--mem") != option.split("=")[0] else []), *more]
            expect_equal(asked, [advised[1], *more], f"what is asked for after {option}")
            again = site.submit(user, "true", "-c1", *asked)
            expect_equal(site.wait(again), "COMPLETED", f"state of a job with {asked}")
