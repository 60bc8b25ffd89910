# SPDX-License-Identifier: GPL-2.0-or-later
"""The usage log: what jobs of known use have used, beside what Slurm's own accounting says of them."""

import contextlib
import json
import os
import re
import shutil

from contract import kernel
from contract.harness import EAT, MIB, PYTHON, case, expect, expect_equal, expect_match, fenced, logged
from contract.sites import until
from .. import accounting
from ..accounting import Accounting
from ..harness import tasks_are_refused
from ..sites import InstalledSite
from .left_behind import held, reap, stepd_dies
from .life import replaced
from .with_systemd import systemctl

# What it has used by its own count, on a line of its own, as JSON. What CPU time its shell has had is on the last two lines, with that of
# the program's end, which takes long in an emulated machine.
COUNT = """
def count():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
"""
CPU = "import json, resource\n" + COUNT + """
while count() < 2: pass
print(json.dumps({"cpu_seconds": count()}))
"""
MEMORY = """import json, re
held = bytes([1]) * (300 << 20)
anonymous = int(re.search(r"Anonymous: +(\\d+)", open("/proc/self/smaps_rollup").read())[1]) << 10
print(json.dumps({"memory_peak_bytes": anonymous}))
"""
# With and without the page cache.
IO = """import json, mmap, os
piece = mmap.mmap(-1, 1 << 20)
piece.write(b"x" * (1 << 20))
path = f"/var/tmp/jobfence-usage.{os.getpid()}"
direct = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
os.unlink(path)
for at in range(64): os.pwrite(direct, piece, at << 20)
for at in range(32): os.preadv(direct, [piece], at << 20)
cached = os.open(f"/proc/self/fd/{direct}", os.O_RDWR)
for at in range(16): os.pwrite(cached, piece, at << 20)
os.fdatasync(cached)
os.posix_fadvise(cached, 0, 0, os.POSIX_FADV_DONTNEED)
for again in range(3):
    for at in range(48): os.pread(cached, 1 << 20, at << 20)
own = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(json.dumps({"read_bytes": int(own["read_bytes"]), "written_bytes": int(own["write_bytes"])}))
"""
# They come and go faster than anything samples.
MANY = "import json, os, resource, time\n" + COUNT + """
for batch in range(200):
    children = []
    for one in range(10):
        pid = os.fork()
        if pid == 0:
            while time.process_time() < 0.005: pass
            os._exit(0)
        children.append(pid)
    for pid in children: os.waitpid(pid, 0)
print(json.dumps({"cpu_seconds": count()}))
"""


# Without any disk, and in a child of a child; a pipe of the shell's counts once more. Then what the step daemon passes on to srun.
MOVED = """import json, os
def move(megabytes):
    zero, null, piece = os.open("/dev/zero", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY), bytearray(1 << 20)
    for one in range(megabytes):
        os.readv(zero, [piece])
        os.write(null, piece[:1 << 19])
def forked(what):
    pid = os.fork()
    if pid == 0:
        what()
        os._exit(0)
    os.waitpid(pid, 0)
move(16)
forked(lambda: forked(lambda: move(32)))
"""
# The step daemon's own reading, the interpreter's and the shell's.
BESIDE = 8 * MIB


# A job's name as a user may choose it. (Slurm stores a quote as another character.)
NAMED = "of {mine}, \\: \u00e4"


def run(program):
    """A command that runs this program."""
    return f"{PYTHON} -S - <<'program'\n{program}\nprogram\ntimes"


def log_of(site):
    """The usage log of the site; below RunDir, which no user can open."""
    return site.run_directory().with_name(site.run_directory().name + "-usage") / "usage.jsonl"


@contextlib.contextmanager
def with_log(site, **keys):
    """What is written to the usage log meanwhile, as a function of the job's number."""
    log = log_of(site)
    site.configure(UsageLog=log, **keys)

    def lines(jobid=None):
        # All of them, the one that is being written included. At midnight another file begins.
        files = *sorted(log.parent.glob("usage.jsonl-*")), log
        found = [json.loads(line) for file in files for line in kernel.read(file).splitlines()]
        return [line for line in found if jobid is None or line["job"] == str(jobid)]
    try:
        yield lines
    finally:
        site.configure()
        # With the logs, and what is locked beside them.
        shutil.rmtree(log.parent, ignore_errors=True)


def line_of(lines, jobid, step="batch", timeout=15):
    """The line about a step, once it is there."""
    def there():
        found = [line for line in lines(jobid) if line["step"] == step]
        expect(len(found) <= 1, f"{len(found)} lines about step {step}: {found}")
        return found[0] if found else None
    return until(there, timeout, f"the line about job {jobid} step {step}")


def own_count(site, jobid):
    """What the job has said of itself."""
    said = [line for line in site.output(jobid).splitlines() if line.startswith("{")]
    expect(said, f"the job said: {site.output(jobid)}")
    found = json.loads(said[-1])
    times = re.findall(r"(\d+)m([\d.]+)s", site.output(jobid))
    expect_equal(len(times), 4, f"what the shell says in {site.output(jobid)!r}")
    if "cpu_seconds" in found:
        found["cpu_seconds"] = sum(60 * int(minutes) + float(seconds) for minutes, seconds in times)
    return found


def expect_near(line, own, member, tolerance=0.02):
    """The figure is what the program says."""
    found, wanted = line[member], own[member]
    expect(found is not None, f"{member} is unknown: {line}")
    expect(abs(found / wanted - 1) <= tolerance, f"{member} is {found}, and should be {wanted}: {found / wanted - 1:+.2%}")
    return f"{member} {found / wanted - 1:+.2%}"


def measured(site, lines, program, *options):
    """A job of one program: its line, and its own count."""
    jobid = site.submit(site.users[0], run(program), "-c1", "--mem=500", *options)
    # Some 11 s of CPU time, on a machine that may be busy.
    with site.favoured():
        ended = site.wait(jobid, 600)
    expect_equal(ended, "COMPLETED", f"state of job {jobid}, which said {site.output(jobid)!r}")
    line, own = line_of(lines, jobid), own_count(site, jobid)
    for member, value in (("schema", "jobfence-usage-1"), ("end", "closed"), ("exit_status", 0), ("exit_signal", None),
                          ("cpus_granted", 1), ("memory_granted_bytes", 500 * MIB)):
        expect_equal(line[member], value, member)
    return jobid, line, own


def count_disks(site):
    """On v1 Linux counts nothing of a disk before a limit was set for it somewhere: here one of 8 EiB in a second."""
    blkio = kernel.hierarchies().get("blkio")
    if blkio and not kernel.has_v2_controllers():
        place = blkio.directory("/" + site.bases()[0]) / "counted"
        place.mkdir(parents=True, exist_ok=True)
        device = os.stat("/var/tmp").st_dev
        # No disk of the kernel's own, as that of an overlay, is counted in any case.
        with contextlib.suppress(OSError):
            (place / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {2**63 - 1}\n")
        place.rmdir()


@case
def usage_is_exact(site):
    """CPU time, memory, I/O and short processes are what the programs count themselves, beside what sacct says."""
    lacking = " and ".join(accounting.missing())
    count_disks(site)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(with_log(site))
        if not lacking:
            keys = stack.enter_context(Accounting(site)).keys
            stack.enter_context(site.reconfigured(
                **keys, JobAcctGatherType="jobacct_gather/linux", JobAcctGatherFrequency=1))
            # `reconfigured` may write it anew.
            site.configure(UsageLog=log_of(site))
        said, jobs = [], {}
        for name, program in ("cpu", CPU), ("memory", MEMORY), ("io", IO), ("many", MANY):
            jobid, line, own = measured(site, lines, program, f"--job-name={NAMED} {name}")
            expect_equal(line["job_name"], f"{NAMED} {name}", f"the name of job {jobid}")
            jobs[name] = jobid, line
            for member in own:
                if line[member] is None:
                    # Where the kernel does not tell it is unknown, and only there.
                    expect(member in unknown(site), f"{member} of {name} is unknown: {line}")
                    said.append(f"{member} unknown")
                else:
                    said.append(f"{name}: {expect_near(line, own, member)}")
        if not lacking:
            said += [beside_sacct(site, name, *found) for name, found in jobs.items()]
    return "; ".join(said)


def unknown(site):
    """What this kernel, or Slurm's own directories, do not tell."""
    found = set()
    if not kernel.has_v2_controllers():
        return found
    controllers = kernel.controllers_of_v2()
    if "io" not in controllers:
        found |= {"read_bytes", "written_bytes"}
    return found


def beside_sacct(site, name, jobid, line):
    """Both figures, side by side."""
    rows = site.accounting.rows([jobid], ("JobName", "TotalCPU", "MaxRSS", "MaxDiskRead", "MaxDiskWrite"))
    expect_equal(rows[0]["JobName"], line["job_name"], f"the name of job {jobid} by sacct, and in its line")
    found = [row for row in rows if row["JobID"].endswith(".batch")]
    theirs = {key: value for key, value in (found[0] if found else {}).items() if key != "JobID"}
    ours = f"{line['cpu_seconds']:.2f} s"
    for member in ("memory_peak_bytes", "read_bytes", "written_bytes"):
        ours += f", {member} " + ("unknown" if line[member] is None else f"{line[member] / MIB:.1f}M")
    return f"{name}: here {ours}; sacct {theirs}"


@case
def usage_of_steps(site):
    """Steps that overlap and follow each other have a line each, and together what their job has used."""
    spin = f"{PYTHON} -S -c 'import time\nwhile time.process_time() < 1: pass'"
    with with_log(site) as lines:
        jobid = site.submit(site.users[0], f"""
            srun -n1 --overlap --mem=50 {spin} &
            srun -n1 --overlap --mem=50 {spin} &
            wait
            srun -n1 --overlap --mem=50 {spin}
            srun -n1 --overlap --mem=50 sh -c 'kill -9 $$'
            srun -n1 --overlap --mem=50 -J part sh -c 'exit 3'
            exit 0
            """.replace("\n            ", "\n"), "-c1", "--mem=200", "--job-name=whole")
        expect_equal(site.wait(jobid), "COMPLETED", f"state of job {jobid}, which said {site.output(jobid)!r}")
        batch = line_of(lines, jobid)
        steps = [line_of(lines, jobid, str(number)) for number in range(5)]
        for line in steps[:3]:
            expect(0.98 <= line["cpu_seconds"] <= 1.3, f"cpu_seconds of step {line['step']}: {line['cpu_seconds']}")
        expect_equal([(line["exit_status"], line["exit_signal"]) for line in steps],
                     [(0, None)] * 3 + [(None, 9), (3, None)], "how the steps have ended")
        expect_equal([line["job_name"] for line in [batch, *steps]], ["whole"] * 5 + ["part"], "the names of the job and its steps")
        whole = sum(line["cpu_seconds"] for line in [batch, *steps])
        # In directories of ours the job's lives as long as one of its steps; the batch step ends last, but for the extern step.
        job = batch["job_cpu_seconds"]
        # In Slurm's own on v2 its daemons count, too.
        expect(job is not None and job >= whole * 0.98, f"job_cpu_seconds is {job}, and its steps have used {whole}")
    return f"job {job:.2f} s, its steps {whole:.2f} s"


@case
def usage_of_system_calls(site):
    """What tasks and their children move without any disk is in the line of their step, with what srun is passed of their output."""
    with site.reconfigured(PrologFlags="Contain"), with_log(site) as lines:
        moved = run(MOVED)
        passed = f"srun -n1 --overlap --mem=50 head -c {32 * MIB} /dev/zero | cat >/dev/null"
        jobid = site.submit(site.users[0], f"{moved}\ncat >moved.py <<'program'\n{MOVED}\nprogram\n"
                            f"srun -n2 --overcommit --overlap --mem=50 {PYTHON} -S moved.py\n{passed}\nrm moved.py",
                            "-n1", "--mem=200")
        expect_equal(site.wait(jobid), "COMPLETED", f"state of job {jobid}, which said {site.output(jobid)!r}")
        batch, two, relayed, extern = (line_of(lines, jobid, name) for name in ("batch", "0", "1", "extern"))

        def expect_moved(line, member, least, most):
            found = line[member]
            expect(found is not None and least * MIB <= found <= most * MIB + BESIDE,
                   f"{member} of step {line['step']}: {found}, and should be {least} to {most} MiB")
            return f"{line['step']}: {member} {found / MIB - least:+.2f} MiB"
        said = [
            # The output of srun goes through srun and the pipe to 'cat', which both are the batch script's. With Slurm's TLS it
            # goes over a socket by send(2) and recv(2), which do not count.
            expect_moved(batch, "rchar_bytes", 48 + 32, 48 + 64),
            expect_moved(batch, "wchar_bytes", 24 + 64, 24 + 64),
            expect_moved(two, "rchar_bytes", 96, 96),
            expect_moved(two, "wchar_bytes", 48, 48),
            # Read by the task and by its step daemon, which both write it.
            expect_moved(relayed, "rchar_bytes", 32 + 32, 32 + 32),
            expect_moved(relayed, "wchar_bytes", 32, 32 + 32),
        ]
        expect_equal((extern["rchar_bytes"], extern["wchar_bytes"]), (None, None), "what adopted processes have moved")
    return "; ".join(said)


@case
def usage_over_an_upgrade(site):
    """A job's figures are whole where a new release is installed between its steps: each step has its line, and the job its sum."""
    user, plugin = site.users[0], site.plugin()
    spin = f"{PYTHON} -S -c 'import time\nwhile time.process_time() < 1: pass'"
    said, go = (site.directory(user) / name for name in ("said", "go"))
    with with_log(site) as lines:
        jobid = site.submit(user, f"""
            srun -n1 --overlap --mem=50 {spin}
            touch said
            until [ -e go ]; do sleep 0.1; done
            srun -n1 --overlap --mem=50 {spin}
            """.replace("\n            ", "\n"), "-c1", "--mem=200")
        until(said.exists, 60, "the end of the first step")
        said.unlink()
        with replaced(plugin):
            go.touch()
            expect_equal(site.wait(jobid), "COMPLETED", f"state of job {jobid}, which said {site.output(jobid)!r}")
            go.unlink()
            batch = line_of(lines, jobid)
        steps = [line_of(lines, jobid, name) for name in "01"]
        for line in steps:
            expect(0.98 <= line["cpu_seconds"] <= 1.3, f"cpu_seconds of step {line['step']}: {line['cpu_seconds']}")
        whole = sum(line["cpu_seconds"] for line in [batch, *steps])
        job = batch["job_cpu_seconds"]
        expect(job is not None and whole * 0.98 <= job, f"job_cpu_seconds is {job}, and its steps have used {whole}")
        expect_equal({line["end"] for line in [batch, *steps]}, {"closed"}, "how the steps have ended")
    return f"job {job:.2f} s, its steps {whole:.2f} s"


@case
def usage_over_time(site):
    """What jobfence hold samples of a step is joined with the step's line, on the page of the report."""
    # Samples can be seconds late on a busy machine, so the program waits for them.
    program = f"{PYTHON} -S -c 'import os, time\njob = os.environ[\"SLURM_JOB_ID\"]\n" \
              "def wait(name):\n    while not os.path.exists(name + \".\" + job): time.sleep(0.1)\n" \
              "wait(\"first\")\nb = b\"x\" * (50 << 20)\nwhile time.process_time() < 3: pass\nwait(\"last\")'"
    with with_log(site, SampleInterval=1, ReapInterval=1) as lines, held(site):
        if isinstance(site, InstalledSite):
            # It reads what holds now.
            systemctl(site, "restart", "jobfence.service")
        jobid = site.submit(site.users[0], f"srun -n1 --overlap --mem=100 {program}", "-c1", "--mem=200")
        living = site.run_directory().with_name(f"{site.run_directory().name}-series")

        def points():
            found = [json.loads(kernel.read(path) or "{}") for path in living.glob("*.json")]
            return next((one for one in found if (one.get("job"), one.get("step")) == (str(jobid), "0")), None)

        def let_go(name):
            (site.directory(site.users[0]) / f"{name}.{jobid}").touch()
        until(points, 30, "the first sample")
        let_go("first")
        # The last one is of a step that waits.
        until(lambda: (found := points()) and len(found["at_seconds"]) >= 5 and found["cpu_seconds"][-2] > 2.9, 30,
              "samples until the end")
        let_go("last")
        expect_equal(site.wait(jobid), "COMPLETED", f"state of job {jobid}, which said {site.output(jobid)!r}")
        line_of(lines, jobid)
        log = log_of(site).with_name("usage.jsonl.series")

        def sampled():
            found = [json.loads(line) for line in kernel.read(log).splitlines()]
            return {one["step"]: one for one in found if one["job"] == str(jobid)}
        found = until(lambda: {"0", "batch"} <= sampled().keys() and sampled(), 15, "the series of both steps")["0"]
        expect(len(found["at_seconds"]) >= 5, f"points: {found}")
        expect(found["cpu_seconds"][0] < 0.5 < 2 < found["cpu_seconds"][-1], f"CPU time: {found}")
        expect(found["memory_bytes"][0] < 30 * MIB < 50 * MIB < max(found["memory_bytes"]), f"memory: {found}")
        done = site.command(str(site.jobfence), "report", str(jobid), "--html=-", "--config", str(site.config))
        expect_equal((done.returncode, done.stderr), (0, ""), "the report")
        for text in "<h2>Over time</h2>", "<h3>Step 0</h3>", "<h3>Step batch</h3>":
            expect(text in done.stdout, f"no {text} in the page")
    return f"{len(found['at_seconds'])} points"


@case
def usage_of_the_dead(site):
    """After the death of a step daemon the janitor writes what the step had used, once, whatever directories it was in."""
    with with_log(site) as lines:
        jobid = site.submit(site.users[0], f"{PYTHON} -S -c 'import time\nwhile time.process_time() < 2: pass\n"
                            "open(\"spun\", \"w\")\ntime.sleep(300)'", "-c1", "--mem=200")
        fenced(site, jobid)
        until((site.directory(site.users[0]) / "spun").exists, 30, "two seconds of CPU time")
        (site.directory(site.users[0]) / "spun").unlink()
        stepd_dies(site, jobid)
        reap(site)
        line = line_of(lines, jobid)
        expect_equal((line["end"], line["holder"]), ("reaped", "scheduler Slurm"), "how it ended, and whose it was")
        expect(1.96 <= line["cpu_seconds"] <= 2.5, f"cpu_seconds of the dead step: {line}")
        expect(line["memory_peak_bytes"] is None or line["memory_peak_bytes"] > MIB, f"memory of the dead step: {line}")
        expect_equal((line["exit_status"], line["exit_signal"]), (None, None), "exit status, which nobody knows")
        reap(site)
        line_of(lines, jobid)
    return f"{line['cpu_seconds']:.2f} s, by {line['holder']}"


@case
def usage_of_tasks(site):
    """Where tasks have directories each has its own figures, with its exit status."""
    with with_log(site, MaxRAMPerTask="100M") as lines:
        if tasks_are_refused(site, UsageLog=log_of(site), MaxRAMPerTask="100M"):
            return "Slurm makes no directory for each task"
        program = f"{PYTHON} -S -c 'import os, sys, time\nt = int(os.environ[\"SLURM_PROCID\"])\n" \
            "while time.process_time() < 0.5 * (t + 1): pass\nprint(f\"task {t}: {time.process_time()}\")\nsys.exit(t)'"
        jobid = site.submit(site.users[0], f"srun -n3 --overcommit --overlap {program}\nexit 0", "-n1", "--mem=300")
        site.wait(jobid)
        line = line_of(lines, jobid, "0")
        tasks = sorted(line["tasks"], key=lambda task: task["task"])
        expect_equal([(task["task"], task["exit_status"]) for task in tasks], [(0, 0), (1, 1), (2, 2)], "tasks")
        told = {int(number): float(used) for number, used in re.findall(r"task (\d): ([\d.]+)", site.output(jobid))}
        expect_equal(sorted(told), [0, 1, 2], "tasks that have told what they used")
        for task in tasks:
            # Its end is beside that.
            used = told[task["task"]]
            expect(used * 0.98 <= task["cpu_seconds"] <= used + 0.3, f"cpu_seconds of a task that has used {used}: {task}")
            expect(task["memory_peak_bytes"] is None or task["memory_peak_bytes"] > MIB, f"memory of task {task}")
            # Nothing is limited by this controller: it is enabled to count.
            expect(task["forks_refused"] == 0 or "pids" not in kernel.controllers_of_v2(), f"processes of task {task}")
        expect(line["cpu_seconds"] >= 0.98 * sum(task["cpu_seconds"] for task in tasks), f"cpu_seconds of the step: {line}")
        expect(line["exit_status"] in (1, 2), f"exit status of the step: {line['exit_status']}")
    return ", ".join(f"{task['cpu_seconds']:.2f} s" for task in tasks)


@case
def usage_of_the_killed(site):
    """The sentence about a kill for want of memory says which share was cached files, to the user and in Slurm's log."""
    user = site.users[0]
    with with_log(site) as lines:
        mark = site.log_mark()
        jobid = site.submit(user, EAT, "-c1", "--mem=200")
        expect(site.wait(jobid) in ("OUT_OF_MEMORY", "FAILED"), "the job was not killed")
        line = line_of(lines, jobid)
        expect(line["oom_kills"] >= 1, f"kills: {line}")
        said = site.output(jobid)
        sentence = expect_match(r"job \d+ step batch: process \d+ \(python3[^)]*\) was killed: .* less\.", said, "the sentence")[0]
        expect_equal(line["sentences"][:1], [sentence], "the sentence in the log")
        share = expect_match(r"(\d+) % of it cached files", sentence, "the share of cached files")
        expect(int(share[1]) <= 20, f"of a program that reads nothing: {sentence}")
        logged(site, mark, "was killed: the (step|job) reached its memory limit")
    return sentence


@case
def usage_log_that_cannot_be_written(site):
    """No job fails for it, and slurmd's log says it once."""
    log = log_of(site)
    log.parent.mkdir(mode=0o777)
    log.parent.chmod(0o777)
    try:
        site.configure(UsageLog=log)
        mark = site.log_mark()
        for _ in range(3):
            jobid = site.submit(site.users[0], "true", "-c1", "--mem=50")
            expect_equal(site.wait(jobid), "COMPLETED", f"state of job {jobid}")
        logged(site, mark, "cannot write down what steps have used: only root may be able to write")
        until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemon")
        said = site.log_since(mark).count("cannot write down")
        expect_equal(said, 1, "how often slurmd's log says it")
        expect(not log.exists(), "there is a log")
    finally:
        log.parent.rmdir()
        failed = site.run_directory() / "usage-log.failed"
        if failed.is_dir():
            failed.rmdir()


