# SPDX-License-Identifier: GPL-2.0-or-later
"""--signal-at: a job hears that its memory comes near its limit, before the kernel kills it."""

from contract import kernel
from contract.harness import PYTHON, TAKE, case, expect, expect_equal, expect_in, expect_match
from ..harness import expect_not_drained, expect_not_started
from .stored import held

# Has three fifths of 200 MiB, and waits for the signal and for the sentence as long as it takes: they come in any order, and what a
# program's stderr gets when the program has ended is not read.
PROGRAM = """
export OUTPUT=$(readlink /proc/$$/fd/1)
cat >grows.$SLURM_JOB_ID.py <<'EOF'
import os, signal, time
kept, saved = [], []
signal.signal(signal.SIGUSR1, lambda *_: saved.append(print("saved", flush=True)))
while len(kept) < 12:
    kept.append(b"x" * (10 << 20))
until = time.monotonic() + 300
while not (saved and " uses " in open(os.environ["OUTPUT"]).read()) and time.monotonic() < until:
    time.sleep(0.05)
EOF
"""
WAIT = 'for _ in $(seq 3000); do grep -q " uses " "$OUTPUT" && break; sleep 0.1; done'
RUN = f"{PYTHON} -S grows.$SLURM_JOB_ID.py"
SENTENCE = r"jobfence: job {} step {} uses 1[0-9]+\.\d MiB of 200\.0 MiB of memory on \S+, more than 50% of its limit\. " \
           r"At the limit the kernel kills it\. It gets SIGUSR1 now\."


@case(layout=False, patient=True)
def a_word_before_memory_ends(site):
    """The task has the signal and the sentence, and the shell of the script goes on; with B: the shell alone has it."""
    user = site.users[0]
    with held(site):
        of_tasks = site.submit(user, f"{PROGRAM}srun {RUN}\necho the shell goes on", "-n1", "--mem=200", "--signal-at=mem:50%:USR1")
        state = site.wait(of_tasks, timeout=400)
        said = site.output(of_tasks)
        expect_equal(state, "COMPLETED", f"the job whose task is told: {said}")
        expect_match(SENTENCE.format(of_tasks, 0), said, "what the task reads")
        expect_equal([said.count(text) for text in ("saved\n", "the shell goes on", " uses ")], [1, 1, 1], f"what is said: {said}")
        of_shell = site.submit(user, f"{PROGRAM}trap 'echo trapped; kill $!' USR1\n{RUN} &\nwait $!\nwait\n{WAIT}", "-n1", "--mem=200",
                               "--signal-at=B:mem:50%:USR1")
        site.wait(of_shell, timeout=400)
        said = site.output(of_shell)
        expect_in("trapped\n", said, "what the shell does")
        expect("saved" not in said, f"a child of the shell has had its signal: {said}")
        expect_match(SENTENCE.format(of_shell, "batch"), said, "what the script reads")
        beside = site.submit(user, f"{PROGRAM}srun --signal-at=none {TAKE % (120, 1000)} &\n{WAIT}\nkill $!\nwait\ntrue", "-n1", "--mem=200",
                             "--signal-at=mem:50%:USR1")
        state, said = site.wait(beside, timeout=400), site.output(beside)
        expect_equal((state, said.count(" uses ")), ("COMPLETED", 1), f"the job whose step wants no word: {said}")
        expect_in(f"jobfence: job {beside} step batch uses 1", said, "what its script reads")
    expect_not_drained(site)


# Waits for the sentence as long as it takes, while something else goes on in the background.
TOLD = """
export OUTPUT=$(readlink /proc/$$/fd/1)
{}
for _ in $(seq 3000); do grep -q "^jobfence: job" "$OUTPUT" && break; sleep 0.1; done
kill $(jobs -p)
"""
SPIN = f"{PYTHON} -S -c 'while True: pass' &"


@case(layout=False, patient=True)
def a_word_about_processes_time_and_waiting(site):
    """A job hears of its processes, of its quota, and where there is cgroup2 of waiting; on v1 alone a job that asks for that is refused."""
    user = site.users[0]
    forks = "for _ in $(seq 40); do sleep 1000 & done"
    with held(site):
        jobs = {
            r"has [2-9]\d of \d+ processes and threads on \S+, more than 35% of its limit\. At the limit it can start no other\.":
                site.submit(user, TOLD.format(forks), "-n1", "--mem=200", "--pids-max=60", "--signal-at=mem:99%,pids:35%"),
            r"was throttled in [\d.]+% of the last minute on \S+, more than 3%\. It wants more CPU time than it has been granted\.":
                site.submit(user, TOLD.format(SPIN), "-n1", "--mem=200", "--cpu-limit=0.1", "--signal-at=cpu:throttled=3%"),
        }
        waits = site.submit(user, TOLD.format(f"{SPIN}\n{SPIN}"), "-n1", "--mem=200", "--cpu-limit=0.1", "--signal-at=pressure:cpu=10%")
        if kernel.hierarchies().get(""):
            jobs[r"waited for a CPU in [\d.]+% of the last ten seconds on \S+, more than 10%\."] = waits
        else:
            expect_not_started(site, user, waits)
            expect_in("--signal-at=pressure: cgroup v1 has no pressure", site.output(waits), "why it is refused")
        for sentence, jobid in jobs.items():
            state = site.wait(jobid, timeout=500)
            said = site.output(jobid)
            expect_equal((state, said.count("jobfence: ")), ("COMPLETED", 1), f"how the job ends: {said}")
            expect_match(rf"jobfence: job {jobid} step batch {sentence}\n", said, "what the script reads")
    expect_not_drained(site)
