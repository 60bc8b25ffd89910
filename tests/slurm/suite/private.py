# SPDX-License-Identifier: GPL-2.0-or-later
"""PrivateTmp, PrivateIPC and HideProcesses: what is only Slurm's of a job's own directories, of its memory, and of what it sees."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from contract import kernel
from contract.harness import MIB, PYTHON, case, expect, expect_equal, expect_in, expect_match, reap, running
from contract.private import SEGMENT, own_directories
from contract.sites import until
from ..harness import fences_well
from .steps import mpi


@case
def steps_share_private_directories(site):
    """The steps of a job share its own directories, and begin where it is in them."""
    with own_directories(site):
        jobid = site.submit(site.users[0], """
            echo $SLURM_JOB_ID >/tmp/whose; echo $SLURM_JOB_ID >/dev/shm/whose
            srun sh -c 'cat /tmp/whose /dev/shm/whose; echo step >/tmp/from_step; stat -c "%U %a" /tmp /dev/shm'
            cat /tmp/from_step; mkdir -p /tmp/w && cd /tmp/w && srun pwd""", "-c1", "--mem=100")
        site.wait(jobid)
        # Slurm's step daemon says there that it does not find the directory in which a step begins.
        said = re.sub(r"(?m)^slurmstepd-\S+ error: .*\n", "", site.output(jobid))
        expect_in(f"{jobid}\n{jobid}\nroot 1777\nroot 1777\nstep\n/tmp/w\n", said, "what the steps share, and where they begin")


@case
def private_space(site):
    """A tmpfs has a size, which df shows; a job that fills it is told, and its pages are the job's memory."""
    user = site.users[0]
    with own_directories(site, disk=False, PrivateTmpSpace="16M"):
        jobid, group = running(site, user, """
            df -B1M --output=size,target /tmp | tail -1; head -c 8M /dev/zero >/tmp/a; echo wrote; sleep 300""", "-c1", "--mem=100")
        until(lambda: "wrote" in site.output(jobid), 20, "a file in the job's own /tmp")
        expect_match(r"16 /tmp\b", site.output(jobid), "what df says")
        directory = group.limits_directory("memory").parent
        used = next(int(kernel.read(path)) for path in (directory / "memory.current", directory / "memory.usage_in_bytes") if path.exists())
        expect(used >= 8 * MIB, f"the pages are not the job's, which uses {used} bytes")
        site.end(jobid)
        jobid = site.submit(user, "head -c 32M /dev/zero >/dev/shm/a", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "FAILED", "state of the job that writes more")
        expect_match(r"No space left on device[\s\S]*the job's own /tmp and /dev/shm is full[\s\S]*PrivateTmpSpace in jobfence.conf says",
                     site.output(jobid), "what its user is told")


@case
def private_disk_is_full(site):
    """Without a limit of space, a job that finds the whole disk full is not told of one."""
    with own_directories(site, paths="/tmp", on=small_disk):
        jobid = site.submit(site.users[0], "head -c 32M /dev/zero >/tmp/a", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "FAILED", "state of the job that writes more than there is")
        expect_match(r"the job's own /tmp is full[\s\S]*PrivateTmpSpace in jobfence.conf is not set", site.output(jobid), "what its user is told")


@contextlib.contextmanager
def small_disk(path):
    """A file system of 8 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "jobfence-test", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@case
def private_space_is_never_unlimited(site):
    """No job runs with a limit on disk that nothing holds."""
    user = site.users[0]
    with own_directories(site, PrivateTmpSpace="16M"):
        jobid = site.submit(user, "touch ran", "-c1", "--mem=100")
        expect_equal(site.wait(jobid), "FAILED", "state of the job")
        expect_match(r"not started[\s\S]*PrivateTmpSpace cannot be held", site.output(jobid), "what its user is told")
        expect_in("PrivateTmpSpace cannot be held on disk", site.ours("check")[1], "what check says")


@case
def private_directories_of_a_dead_daemon(site):
    """kill -9 of the step daemon: the janitor removes what is left, of a job that leaves what is hard to remove."""
    user = site.users[0]
    with own_directories(site) as base:
        jobid, group = running(site, user, """
            cd /tmp; d=x; for i in 1 2 3 4 5 6; do d=$d/$d; done; mkdir -p $d; ln -s /etc $d/etc; mkfifo fifo
            touch -- -rf "$(printf 'a\\nb')"; chmod 000 x; touch /dev/shm/a; touch ready; exec sleep 300""", "-c1", "--mem=100")
        members = group.members()
        until(lambda: list(base.glob("*/*/tmp/ready")), 20, "its files")
        for pid in site.step_daemons(jobid):
            os.kill(pid, signal.SIGKILL)
        site.scancel(jobid)
        until(lambda: not site.step_daemons(jobid), 20, "the end of its daemon")
        reap(site)
        until(lambda: not any(map(kernel.is_alive, members)), 10, "its end")
        expect(Path("/etc/passwd").exists(), "a link was followed")
    fences_well(site, user)


@case
def private_directories_and_mpi(site):
    """What Slurm's mpi/pmix puts into TmpFS stays visible, and ranks share the job's /dev/shm."""
    with own_directories(site):
        return mpi(site)


# The tasks of a step find each other's segment, whichever comes first.
TASK = f"""{PYTHON} -S -c '
import ctypes, os, time
get = lambda flags: ctypes.CDLL(None).shmget(0x4A464E44, 4096, flags)
if os.environ["SLURM_PROCID"] == "0":
    print("sees" if get(0o600) >= 0 else "alone")
    get(0o1600)
else:
    while get(0o600) < 0:
        time.sleep(0.1)
    print("shared")
'"""


@case
def ipc_of_a_step(site):
    """With PrivateIPC, the tasks of a step share System V memory, and another step of the job has none of it."""
    site.configure(PrivateIPC="yes")
    jobid = site.submit(site.users[0], f"for step in 1 2; do srun -n2 {TASK}; done", "-n2", "--mem-per-cpu=100")
    expect_equal(site.wait(jobid), "COMPLETED", f"state ({site.output(jobid)})")
    # srun may say that it waits for the end of the step before.
    said = [word for word in site.output(jobid).split() if word in ("alone", "shared")]
    expect_equal(sorted(said), ["alone", "alone", "shared", "shared"], "what the tasks of two steps see")


@case
def no_shared_memory_outlives_its_step(site):
    """With PrivateIPC, a segment that a killed step leaves is freed, though somebody holds the namespace."""
    site.configure(PrivateIPC="yes")
    jobid = site.submit(site.users[0], f"{SEGMENT % '0o1600'}; echo made; sleep 1000", "-c1", "--mem=100")
    until(lambda: "made" in site.output(jobid), 60, "the segment")
    process = until(lambda: site.job_pids(jobid, "sleep"), 20, "its process")[0]
    with open(f"/proc/{process}/ns/ipc", "rb") as namespace:
        def segments():
            command = "nsenter", f"--ipc=/proc/self/fd/{namespace.fileno()}", "cat", "/proc/sysvipc/shm"
            done = subprocess.run(command, pass_fds=[namespace.fileno()], capture_output=True, text=True, check=True)
            return done.stdout.splitlines()[1:]
        expect_equal(len(segments()), 1, "segments while the step runs")
        site.end(jobid)
        until(lambda: not segments(), 60, "the end of the segment")


# A sibling of this process's shell: as gdb does with a program that runs.
TRACE = f"""{PYTHON} -S -c '
import ctypes, os, sys
pid = int(sys.argv[1])
call = ctypes.CDLL(None, use_errno=True).ptrace
print("attached" if call(16, pid, 0, 0) == 0 and os.waitpid(pid, 0x40000000)[0] == pid else ctypes.get_errno())
print("maps" if open(f"/proc/{{pid}}/maps").read() else "none", os.readlink(f"/proc/{{pid}}/exe"))
'"""


@case
def hidden_processes(site):
    """With HideProcesses, no directory in which a job begins shows more, and all steps of the job see and trace their user's processes."""
    user = site.users[0]
    root = os.getpid()
    # Where the host has it may be in /tmp.
    command = shutil.copy(site.jobfence, site.directory(user))
    with own_directories(site, HideProcesses="yes"):
        script = f"""
            cat {root}/comm ./{root}/comm /proc/{root}/comm; pwd; ls -d /proc/$$
            sleep 300 & {TRACE} $!; kill $!
            srun sh -c 'cat /proc/{root}/comm; cat /proc/'$$'/comm; ls /tmp'
            {command} show --config {site.config} $SLURM_JOB_ID"""
        jobid = site.submit(user, script, "-c1", "--mem=100", "-D", "/proc", f"--output={site.directory(user)}/%j.out")
        expect_equal(site.wait(jobid), "COMPLETED", f"state ({site.output(jobid)})")
        said = site.output(jobid)
        expect_match(r"(?m)^/proc\n/proc/\d+\nattached\nmaps .*/sleep\n", said, "its own processes")
        expect_equal(said.count("No such file or directory"), 4, f"whether it sees this program, in {said}")
        expect_match(r"(?m)^slurm_script\n[\s\S]*^job \d+ step batch", said, "what a step sees of the batch script, and 'jobfence show'")


@case
def no_input_leads_to_the_host(site):
    """slurmstepd opens --input on the host. A directory would lead to all that is there, and a file of proc tells of another's process."""
    user = site.users[0]
    script = "echo ran; cat /proc/self/fd/0/proc/1/comm /proc/self/fd/0/1/comm; cat"
    def said(state, path):
        jobid = site.submit(user, script, "-c1", "--mem=100", f"--input={path}")
        expect_equal(site.wait(jobid), state, f"state with --input={path} ({site.output(jobid)})")
        return site.output(jobid)
    for keys in ({"HideProcesses": "yes"}, {"HideProcesses": "yes", "OnError": "warn"}):
        site.configure(**keys)
        for path in ("/", "/proc", "/usr", f"/proc/{os.getpid()}/cmdline"):
            told = said("FAILED", path)
            expect_match(r'this task was not started[^\n]*descriptor \(value "0"\)', told, f"what the user is told of --input={path}")
            expect("ran" not in told, f"it has run with --input={path}: {told}")
        expect_in("root:", said("COMPLETED", "/etc/passwd"), "what a file has")
    if os.path.ismount("/dev/mqueue"):
        queue = Path(f"/dev/mqueue/jobfence-{os.getpid()}")
        queue.touch()
        try:
            shutil.chown(queue, user)
            site.configure(PrivateIPC="yes")
            told = said("FAILED", queue)
            expect_match(r"this task was not started[^\n]*/dev/mqueue", told, "what the user is told of a queue of the host's")
            expect_in("root:", said("COMPLETED", "/etc/passwd"), "what a file has")
        finally:
            queue.unlink()
    site.configure()
    expect_in("ran", said("FAILED", "/proc"), "what the same job says without HideProcesses")


@case
def hidden_processes_and_mpi(site):
    """Ranks of MPI find each other under HideProcesses."""
    site.configure(HideProcesses="yes")
    return mpi(site)
