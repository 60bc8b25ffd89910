# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for some jobs only, and who says which they are."""

import contextlib
import grp
import pwd

from contract.harness import case, expect, expect_equal, expect_in, fenced, logged, running, uid
from contract.sites import until
from ..harness import RAN, NOT_STARTED, expect_not_drained, expect_not_started
from .newer import since

STAYS = "sleep 300"
UNLIMITED, FEW, SOME = None, 50, 200
BY_PARTITION = (
    f"MaxProcesses={SOME}\n[Partition=small]\nMaxProcesses={FEW}\n[Queue=free]\nMaxProcesses=unlimited\n"
    # A job of Slurm's is known to have neither: no process could start if that were unknown.
    "[Project=p]\nMaxProcesses=1\n[VnodeType=*]\nMaxProcesses=1\n[PE=smp]\nMaxProcesses=1\n"
)
# What a user can put into the environment of what he starts.
FORGED = {
    "SLURM_JOB_PARTITION": "free", "SLURM_JOB_ACCOUNT": "free", "SLURM_JOB_QOS": "free", "SLURMD_NODENAME": "free",
    # With this Slurm up to 25.11 does not write over the account and the QOS in a batch step's environment.
    "SLURM_ARBITRARY_NODELIST": "nowhere",
}


@contextlib.contextmanager
def partitions(site):
    """Two more partitions of the site's nodes, beside the default one."""
    names = ("small", "free")
    try:
        for name in names:
            done = site.command("scontrol", "create", f"PartitionName={name}", "Nodes=ALL", "State=UP", "MaxTime=60")
            expect_equal((done.returncode, done.stderr), (0, ""), "scontrol create")
        yield
    finally:
        if site.submitted:
            site.scancel(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 30, "the end of every job")
        for name in names:
            site.command("scontrol", "delete", f"PartitionName={name}")


def limit_of_batch(site, user, *args, env=None):
    """How many processes a batch job's step may have."""
    jobid = site.submit(user, STAYS, "-c1", "--mem=100", *args, env=env)
    limit = fenced(site, jobid).processes_limit()
    site.end(jobid)
    return limit


def limit_of_srun(site, user, *args, env=None):
    """The same of a step without any batch step, as it is told itself; None where it is told of no limit."""
    done = site.srun(user, "-c1", "--mem=100", *args, "sh", "-c", "echo limit ${JOBFENCE_MAX_PROCESSES-none}", env=env)
    expect_equal(done.returncode, 0, f"exit status of srun, which says {done.stderr!r}")
    word = done.stdout.split()[-1]
    return None if word == "none" else int(word)


@contextlib.contextmanager
def prologs(site, **keys):
    """Slurm calls `jobfence prolog` and `epilog`, by scripts as a site has them."""
    scripts = {}
    for which in ("prolog", "epilog"):
        # Beside slurm.conf, where only root can write.
        path = site.config.with_name(f"jobfence-{which}")
        command = getattr(site, "jobfence", None) or "/usr/sbin/jobfence"
        path.write_text(f"#!/bin/sh\nexec {command} {which} --config {site.config}\n")
        path.chmod(0o755)
        scripts[which.capitalize()] = str(path)
    try:
        with site.reconfigured(**{**scripts, **keys}):
            yield
    finally:
        for path in scripts.values():
            site.config.with_name(path.rsplit("/", 1)[1]).unlink()


def record_of(site, jobid):
    found = [path for path in (site.run_directory() / "jobs").glob("*")
             if path.name.split(",")[-1] == str(jobid)]
    return found[0].read_text() if found else None


@case(layout=False)
def sections_by_partition(site):
    user = site.users[0]
    site.configure_raw(BY_PARTITION)
    with partitions(site):
        # slurmd itself says the partition of a batch job, whatever its user says.
        for partition, limit in (("small", FEW), ("free", UNLIMITED)):
            for env in (None, FORGED):
                expect_equal(limit_of_batch(site, user, "-p", partition, env=env), limit,
                             f"processes of a job in {partition} with {env}")
        expect_equal(limit_of_batch(site, user, env=FORGED), SOME, "processes of a job in another")
        # It says so to its steps.
        jobid = site.submit(user, f"srun --overlap -n1 {STAYS}", "-p", "free", "-c1", "--mem=100")
        expect_equal(fenced(site, jobid, "step_0").processes_limit(), UNLIMITED, "processes of a step in free")
        expect_in("partition==free\n", record_of(site, jobid), "the job's record")
        site.end(jobid)
        until(lambda: record_of(site, jobid) is None, 10, "the end of the job's record")


@case(layout=False)
def partition_without_prolog(site):
    """Nobody trusted says it of a job that has no batch step: then the strictest holds, forged or not."""
    user = site.users[0]
    site.configure_raw(BY_PARTITION)
    with partitions(site):
        mark = site.log_mark()
        for partition in ("small", "free"):
            for env in (None, FORGED):
                expect_equal(limit_of_srun(site, user, "-p", partition, env=env), FEW,
                             f"processes in {partition} with {env}")
        logged(site, mark, r"which sections of jobfence.conf hold is not known \(Partition\): the strictest limits of 3 possibilities hold")
        # Of an account only the prolog knows.
        site.configure_raw(f"[Account=free]\nMaxProcesses=unlimited\n[Account=other]\nMaxProcesses={SOME}\n")
        expect_equal(limit_of_batch(site, user, env=FORGED), SOME, "processes of a job without an account")
        # More than can be looked at.
        many = "".join(f"[Partition=p{n}]\nMaxProcesses={1000 + n}\n" for n in range(300))
        site.configure_raw(many)
        done = site.srun(user, "-c1", "--mem=100", "touch", "ran.srun")
        expect(done.returncode != 0, "srun returned 0")
        expect_in(NOT_STARTED, done.stderr, "srun's stderr")
        expect_in("more than 256 possibilities", done.stderr, "srun's stderr")
        expect(not (site.directory(user) / "ran.srun").exists(), "srun's program has run")
        expect_not_drained(site)


@case(layout=False)
def sections_by_prolog(site):
    user = site.users[0]
    site.configure_raw(f"TrustAccount=yes\n{BY_PARTITION}[Account=physics]\nMaxProcesses=77\n[Account=free]\nMaxProcesses=unlimited\n")
    with prologs(site), partitions(site):
        for partition, limit in (("small", FEW), ("free", UNLIMITED)):
            for env in (None, FORGED):
                expect_equal(limit_of_srun(site, user, "-p", partition, env=env), limit,
                             f"processes in {partition} with {env}")
        expect_equal(limit_of_srun(site, user, env=FORGED), SOME, "processes of a job in another partition")
        # The later of two sections, by an account that Slurm has taken.
        expect_equal(limit_of_batch(site, user, "-p", "small", "-A", "physics"), 77, "processes of an account")
        expect_equal(limit_of_batch(site, user, "-p", "small", env=FORGED), FEW, "processes without an account")

        jobid, group = running(site, user, STAYS, "-p", "free", "-c1", "--mem=100")
        record = record_of(site, jobid)
        expect_in(f"uid={uid(user)}\npartition==free\n", record, "the job's record")
        expect_in("account=~\ncpus=1\n", record, "the job's record")
        site.end(jobid)
        until(lambda: record_of(site, jobid) is None and not group.remains(), 15, "the end of all that was the job's")
        expect_not_drained(site)
    expect_equal(list((site.run_directory() / "jobs").iterdir()), [], "records of jobs")


@case
def sections_of_extern_steps(site):
    """An extern step begins first, and must not settle for all what it does not know."""
    user = site.users[0]
    text = BY_PARTITION.replace("MaxProcesses", "CPUQuotaPercent").replace("unlimited", "100").replace("200", "80")
    site.configure_raw(text)

    def quota():
        jobid, group = running(site, user, STAYS, "-p", "free", "-c1", "--mem=100")
        found = group.cpu_limit(), group.parent.cpu_limit()
        site.end(jobid)
        return found
    # Without a prolog only the batch step knows.
    with site.reconfigured(PrologFlags="Alloc,Contain"), partitions(site):
        expect_equal(quota(), (1.0, 1.0), "CPUs of step and job in free, with an extern step before")
    with prologs(site, PrologFlags="Alloc,Contain"), partitions(site):
        expect_equal(quota(), (1.0, 1.0), "the same with a prolog")
        expect_equal(limit_of_srun(site, user, "-p", "free"), None, "no limit of processes is configured")


@case(layout=False)
def sections_by_prolog_in_the_job(site):
    """PrologFlags=RunInJob: the extern step begins before its daemon runs the prolog."""
    since(site, 24, 5)
    user = site.users[0]
    site.configure_raw("TrustAccount=yes\nCPUQuotaPercent=80\n[Account=poor]\nCPUQuotaPercent=50\n[Account=rich]\nCPUQuotaPercent=100\n")
    with prologs(site, PrologFlags="RunInJob"):
        for account, cpus in (("rich", 1.0), ("poor", 0.5), (None, 0.8)):
            jobid, group = running(site, user, STAYS, "-c1", "--mem=100", *([f"--account={account}"] if account else []), env=FORGED)
            expect_equal((group.cpu_limit(), group.parent.cpu_limit()), (cpus, cpus), f"CPUs of step and job of {account}")
            site.end(jobid)
            until(lambda jobid=jobid: record_of(site, jobid) is None, 15, "the end of the job's record")
        expect_not_drained(site)


@case(layout=False)
def sections_by_user_group_and_node(site):
    alice, bob = site.users
    group = grp.getgrgid(pwd.getpwnam(bob).pw_gid).gr_name
    general = f"MaxProcesses={SOME}\n"
    for header, of_alice, of_bob in (
        (f"[User={alice}]", FEW, SOME),
        (f"[User=nobody-else,{uid(bob)}]", SOME, FEW),
        (f"[Group={group}]", SOME, FEW),
        (f"[Group={pwd.getpwnam(bob).pw_gid}]", SOME, FEW),
        (f"[Node={site.node}]", FEW, FEW),
        ("[Node=another[1-9]]", SOME, SOME),
    ):
        site.configure_raw(f"{general}{header}\nMaxProcesses={FEW}\n")
        expect_equal(limit_of_srun(site, alice, env=FORGED), of_alice, f"{alice}'s processes with {header}")
        expect_equal(limit_of_srun(site, bob), of_bob, f"{bob}'s processes with {header}")
    # All groups of the user have names here, so one that is not there is not among them.
    site.configure_raw(f"{general}[Group=no-such-group]\nMaxProcesses={FEW}\n")
    expect_equal(limit_of_srun(site, alice), SOME, "processes with a group that does not exist")
    # Limited here and only watched there.
    site.configure_raw(f"{general}[User={bob}]\nMode=observe\n")
    expect_equal((limit_of_srun(site, alice), limit_of_srun(site, bob)), (SOME, None), "processes with Mode in a section")


@case(layout=False)
def broken_prolog(site):
    """A prolog that can do nothing costs a job its generous rules, and not the node."""
    user = site.users[0]
    with prologs(site), partitions(site):
        site.configure_raw("RunDir\n")
        expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=100"))
        expect_not_drained(site)
        directory = site.run_directory() / "jobs"
        expect(directory.is_dir(), f"there is no {directory}")
        site.configure_raw(BY_PARTITION)
        directory.chmod(0o777)
        try:
            expect_equal(limit_of_srun(site, user, "-p", "free"), FEW, "processes with records that anybody could write")
        finally:
            directory.chmod(0o700)
        expect_not_drained(site)
        expect_equal(limit_of_srun(site, user, "-p", "free"), UNLIMITED, "processes afterwards")
