# SPDX-License-Identifier: GPL-2.0-or-later
"""What an administrator does with jobfence as a whole, while users' jobs go on: install, turn on and off, upgrade, remove.

Done here below a directory of its own; with systemd and from the root directory it is done in tests/vm/traces.py.
"""

import contextlib
import re
import threading

from contract.commands import is_fenced, setup
from contract.harness import WAIT, case, expect, expect_equal, expect_in, let_go, running
from contract.sites import until
from ..harness import expect_not_drained
from ..installation import Installation, plugstack


@contextlib.contextmanager
def meanwhile(work):
    """Calls it again and again; what it raises is raised here."""
    enough, raised, times = threading.Event(), [], []

    def loop():
        while not enough.is_set() and not raised:
            try:
                work()
                times.append(1)
            except Exception as error:
                raised.append(error)
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield times
    finally:
        enough.set()
        thread.join()
    if raised:
        raise raised[0]


def upgraded_beside_jobs(site, times):
    """Upgrades in a loop, beside jobs and a prolog and an epilog that are the command itself: not one of them fails."""
    installation, user = Installation(site), site.users[0]
    expect_equal(installation.make("put")[0], 0, "exit status of the first installation")
    called = site.top / "called"
    scripts = {}
    for name in "prolog", "epilog":
        script = site.top / f"{name}.sh"
        script.write_text(f"#!/bin/sh\necho {name} >>{called}\n"
                          f"exec {installation.command} {name} --config={site.config}\n")  # fmt: skip
        script.chmod(0o755)
        scripts[name.capitalize()] = script

    def upgrade():
        status, said = installation.make("put")
        expect_equal(status, 0, f"exit status of an installation ({said})")

    with plugstack(site, "") as conf:
        conf.unlink()
        status, said = installation.run("enable")
        expect_equal(status, 0, f"exit status of jobfence enable ({said})")
        mark = site.log_mark()
        with site.reconfigured(**scripts), meanwhile(upgrade) as upgrades:
            jobs = 0
            try:
                while len(upgrades) < times or jobs < 20:
                    done = site.srun(user, "-n1", "--mem=50", "sh", "-c", "cat /proc/self/cgroup; echo cpus=$JOBFENCE_CPUS")
                    expect_not_drained(site)
                    expect_equal(done.returncode, 0, f"exit status of srun after {len(upgrades)} installations ({done.stderr})")
                    expect_in("/step_0", done.stdout, "where the step was")
                    expect_in("cpus=1\n", done.stdout, "the step's environment")
                    jobs += 1
            finally:
                site.resume()
        log = site.log_since(mark)
        expect(not re.search("prolog.*(fail|error|status)|Permission denied|No such file", log, re.I), f"slurmd's log:\n{log}")
        expect_equal(called.read_text().split().count("prolog"), jobs, "calls of the prolog")
        status, said = installation.run("disable")
        expect_equal(status, 0, f"exit status of jobfence disable ({said})")
    return f"{jobs} jobs beside {len(upgrades)} installations"


@case(on=("private",), layout=False)
def installed_beside_jobs(site):
    return upgraded_beside_jobs(site, 10)


@case(on=("private",), layout=False, release=True)
def installed_often_beside_jobs(site):
    return upgraded_beside_jobs(site, 40)


@case(on=("private",), layout=False)
def turned_on_and_off(site):
    """By one command each, while jobs run and begin: none fails, none is unfenced that began in between, and nothing is left."""
    installation, user = Installation(site), site.users[0]
    expect_equal(installation.make("put")[0], 0, "exit status of the installation")

    def job():
        done = site.srun(user, "-n1", "--mem=50", "true")
        expect_equal(done.returncode, 0, f"exit status of srun ({done.stderr})")

    def where():
        return site.srun(user, "-n1", "--mem=50", "cat", "/proc/self/cgroup").stdout

    with plugstack(site, "# of this site\n") as conf:
        expect("/step_0" not in where(), "a step is fenced, and nobody has turned that on")
        with meanwhile(job) as jobs:
            # What would have jobs refused is found before.
            site.configure(IOMax='"/nonexistent rbps=1M"')
            status, said = installation.run("enable", "--write-include")
            expect_equal(status, 1, f"exit status of jobfence enable ({said})")
            expect(not installation.line.exists(), "it was activated all the same")
            site.configure()
            for _ in range(3):
                began = len(jobs)
                status, said = installation.run("enable", "--write-include")
                expect_equal(status, 0, f"exit status of jobfence enable ({said})")
                expect_in("/step_0", where(), "where a step is")
                until(lambda: len(jobs) > began + 2, 20, "jobs")
                status, said = installation.run("disable")
                expect(status in (0, 3), f"exit status of jobfence disable: {status} ({said})")
                expect("/step_0" not in where(), "a step is fenced after that was turned off")
        installation.run("enable", "--write-include")
        go = site.directory(user) / "go"
        go.unlink(missing_ok=True)
        jobid, step = running(site, user, f"until [ -e {go} ]; do sleep 0.1; done; echo done", "-c1", "--mem=50")
        status, said = installation.run("disable")
        expect_equal(status, 3, f"exit status of jobfence disable while a job runs ({said})")
        expect_in(f"step {jobid}.batch (process ", said, "jobfence disable")
        status, said = installation.make("remove")
        expect_equal(status, 1, f"exit status of a removal while a job runs ({said})")
        expect(installation.command.exists(), "the command was removed")
        expect_equal(step.cpu_limit(), 1.0, "the CPU limit of what runs")
        expect("/step_0" not in where(), "a step is fenced after that was turned off")
        go.touch()
        expect_equal(site.wait(jobid), "COMPLETED", "state of the job")
        expect_in("done", site.output(jobid), "its output")
        until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemon")
        status, said = installation.run("disable")
        expect_equal(status, 0, f"exit status of jobfence disable ({said})")
        expect_equal(conf.read_text(), "# of this site\n", "plugstack.conf")
        expect(not site.run_directory().exists(), "RunDir is left")
        status, said = installation.make("remove")
        expect_equal(status, 0, f"exit status of the removal ({said})")
        left = sorted(str(path.relative_to(installation.prefix)) for path in installation.prefix.rglob("*"))
        expect_equal(left, ["etc", "etc/slurm", "etc/slurm/jobfence.conf"], "what is left")
        expect_not_drained(site)

@case(on=("private",), layout=False)
def set_up_and_taken_back(site):
    """By 'jobfence setup', beside a job. Files keep their modes, what is to be done is said, and --undo leaves nothing at all."""
    user = site.users[0]
    with site.not_set_up():
        conf = site.plugstack_files()[0]
        conf.chmod(0o664)
        before = site.what_setup_changes()
        setup(site, 2)
        expect_equal(oct(conf.stat().st_mode & 0o777), "0o664", "mode of plugstack.conf")
        expect_in("unchanged ", setup(site, 0), "a second jobfence setup")
        # Slurm goes on beside, and the one thing that is to be done is said.
        site.configure(IOMax='"/nonexistent rbps=1M"')
        expect_in("to do          Slurm: no job would be fenced", setup(site, 1), "what is to be done")
        site.configure()
        # The steps that run keep their fence, and no new one has one.
        jobid, step = running(site, user, WAIT, "-c1", "--mem=50")
        expect_in(f"step {jobid}.batch (process ", setup(site, 1, "--undo"), "jobfence setup --undo beside a job")
        expect_equal(step.cpu_limit(), 1.0, "the CPU limit of what runs")
        expect(not is_fenced(site), "a step is fenced after that was taken back")
        expect_equal(site.what_setup_changes(), before, "files after --undo")
        let_go(site, jobid)
        expect_equal(site.wait(jobid), "COMPLETED", "state of the job")
        until(lambda: not site.step_daemons(jobid), 10, "the end of the step daemon")
        status, said = site.installation.run("disable")
        expect_equal(status, 0, f"exit status of jobfence disable ({said})")
        # Nothing runs: then --undo leaves nothing at all.
        setup(site, 2)
        setup(site, 2, "--undo")
        expect_equal(site.what_setup_changes(), before, "files after --undo")
        expect(not site.run_directory().exists(), "RunDir is left")
    expect_not_drained(site)
