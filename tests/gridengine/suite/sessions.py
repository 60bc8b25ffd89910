# SPDX-License-Identifier: GPL-2.0-or-later
"""Ways out of a job: sessions, and what other daemons start for a user. docs/limitations.md has them in a table.

The programs are in the image of one cell alone.
"""

import contextlib
import itertools
import json
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from contract import kernel, sites
from contract.harness import Skip, case, expect, expect_equal, expect_in
from contract.sites import until, write_atomically

PAM = Path("/etc/pam.d")
MODULE = "/usr/lib/slurm/libjobfence.so"
PASSWORD = "a-password-of-the-test"


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Skip(f"{program} is not here")


def needs_logind():
    if not any(Path("/usr/lib").glob("*/security/pam_systemd.so")) or not Path("/run/systemd/system").is_dir():
        raise Skip("pam_systemd is not here")


@contextlib.contextmanager
def service_with(service, before=(), behind=()):
    """PAM's service has these lines before all of its session lines, and behind them."""
    file = PAM / service
    text = file.read_text()
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if re.match(r"-?session|@include common-session", line))
    write_atomically(file, "\n".join([*lines[:first], *before, *lines[first:], *behind]) + "\n")
    try:
        yield
    finally:
        write_atomically(file, text)


def stays(service):
    """As the page says."""
    line = f"session required {MODULE} stay"
    return service_with(service, [line], [line])


def stay_behind(service):
    return service_with(service, [], [f"session required {MODULE} stay"])


def ssh_line(service):
    return service_with(service, [], [f"session required {MODULE}"])


def notes(site):
    """Where all users may write."""
    directory = site.home / "notes"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    return directory


NOTE = """#!/bin/sh
cat /proc/self/cgroup >{0}/new.$1
echo $$ >{0}/pid.$1
mv {0}/new.$1 {0}/cgroup.$1
exec sleep 1000
"""


class Job:
    """A fence of alice's, without a scheduler: what a job does is the same under each."""

    numbers = itertools.count(1)

    def __init__(self, site, *words):
        self.site, self.name, self.number = site, f"wayout{next(self.numbers)}", itertools.count(1)
        self.directory, self.processes = notes(site), []
        note = self.directory / "note"
        note.write_text(NOTE.format(self.directory))
        note.chmod(0o755)
        self.jobfence("open", "--user", "alice", *words, step="0")

    def jobfence(self, command, *words, step=None):
        done = self.site.command("jobfence", command, "--job", self.name, *(["--step", step] if step else []), *words)
        expect_equal(done.returncode, 0, f"exit status of jobfence {command}, which says {done.stderr}")
        return done.stdout

    def does(self, script):
        """The job does this, in which `$NOTE` writes down where it is, and stays there. Returns what it is called."""
        name = f"{self.name}.{next(self.number)}"
        go = self.directory / f"go.{name}"
        script = f"until [ -e {go} ]; do sleep 0.1; done; NOTE='{self.directory}/note {name}'; {script}"
        process = self.site.as_user("alice", ["bash", "-c", script], start=True)
        self.processes.append(process)
        self.jobfence("attach", str(process.pid), step="0")
        go.touch()
        return name

    def where(self, name, timeout=20, least=sites.LEAST):
        """Where the process is that has this name, as it says itself."""
        file = self.directory / f"cgroup.{name}"
        return until(lambda: kernel.read(file), timeout, f"{file}", least)

    def pid(self, name):
        return int(kernel.read(self.directory / f"pid.{name}") or 0)

    def has(self, text):
        return f"/job_{self.name}/" in text

    def outlived_by(self, name):
        """Ends the job; whether this process goes on."""
        pid = self.pid(name)
        who = kernel.identity(pid)
        self.jobfence("close")
        return who is not None and kernel.identity(pid) == who


@contextlib.contextmanager
def in_a_job(site, *words):
    job = Job(site, *words)
    try:
        yield job
    finally:
        site.command("jobfence", "close", "--job", job.name)
        # What is outside has the pipes that are read to their ends.
        for file in job.directory.glob(f"pid.{job.name}.*"):
            subprocess.run(["kill", "-KILL", file.read_text().strip()], stderr=subprocess.DEVNULL)
        for process in job.processes:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)


@contextlib.contextmanager
def password_of(user):
    subprocess.run(["chpasswd"], input=f"{user}:{PASSWORD}\n", text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["usermod", "-p", "*", user], check=True)


@contextlib.contextmanager
def held_with(site, text):
    """`jobfence hold` has read this configuration."""
    restart = ["systemctl", "restart", "jobfence.service"]
    site.configure(text)
    subprocess.run(restart, check=True)
    try:
        yield
    finally:
        site.configure()
        subprocess.run(restart, check=True)


SU = f"echo {PASSWORD} | su - bob -c \"$NOTE\""
# What su has begun is no child of the job's any more.
SU_ALONE = f"(echo {PASSWORD} | setsid su - bob -c \"$NOTE\" &)"


@case
def su_in_a_job(site):
    """pam_systemd moves out what su begins, and the module's two lines put it back, whoever its parent is."""
    needs_logind()
    with password_of("bob"), held_with(site, "ReapInterval=never\n"):
        with in_a_job(site) as job:
            name = job.does(SU)
            before = job.where(name)
            expect_in("/user.slice/", before, "without a line, the cgroups of what su began")
            expect(job.outlived_by(name), "nothing outlived the job, and this shows nothing")
        with stays("su-l"):
            for way in SU, SU_ALONE:
                with in_a_job(site) as job:
                    name = job.does(way)
                    text = job.where(name)
                    expect(job.has(text), f"{way}: su is in {text}")
                    expect(not job.outlived_by(name), f"{way}: it outlives its job")
    return before.strip().splitlines()[-1]


@case
def su_is_fetched_back(site):
    """Without a line, jobfence hold fetches back what su has begun, while its parent is in the job."""
    needs_logind()
    with password_of("bob"), held_with(site, "ReapInterval=1\n"), in_a_job(site) as job:
        name = job.does(SU)
        job.where(name)
        file = f"/proc/{job.pid(name)}/cgroup"
        until(lambda: job.has(kernel.read(file)), 20, lambda: f"{file} in job {job.name}, not {kernel.read(file)}")
        expect(not job.outlived_by(name), "it outlives its job")


@contextlib.contextmanager
def key_of_alice(site):
    """What ssh needs to become alice without a word, as its options."""
    keys, home = site.home / "keys", Path("/home/alice/.ssh")
    keys.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "key"], check=True)
    home.mkdir(mode=0o700, parents=True)
    shutil.copy(keys / "key.pub", home / "authorized_keys")
    subprocess.run(["chown", "-R", "alice:alice", home], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    try:
        yield ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", str(keys / "key")]
    finally:
        shutil.rmtree(home)
        shutil.rmtree(keys)


@case
def sshd_in_a_job(site):
    """A session of an sshd that root has begun within a job, as Grid Engine's shepherd does it for qrsh, is in that job by either line."""
    needs_logind()
    needs("sshd", "ssh")
    with key_of_alice(site) as options, held_with(site, "ReapInterval=never\n"):
        def begun():
            """Where such a session is, and whether that is in its job."""
            with in_a_job(site) as job:
                member = job.does("$NOTE")
                job.where(member)
                name = f"{job.name}.ssh"
                words = ["ssh", *options, "-o", "ProxyCommand=/usr/sbin/sshd -i", "alice@within", f"{job.directory}/note {name}"]
                step = Path(f"/sys/fs/cgroup{kernel.Group.of(job.pid(member)).path}")
                job.processes.append(subprocess.Popen(["sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(step), *words],
                                                      stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                text = job.where(name)
                return text, job.has(text)
        text, _ = begun()
        expect_in("/user.slice/", text, "without a line, the cgroups of the session")
        for lines in ssh_line, stay_behind:
            with lines("sshd"):
                text, is_inside = begun()
                expect(is_inside, f"with {lines.__name__}, it is in {text}")


@case
def tmux_in_a_job(site):
    """A server of tmux that a job starts is in the job, and ends with it."""
    needs("tmux")
    with in_a_job(site) as job:
        name = job.does("tmux -L way-out new-session -d \"$NOTE\"")
        text = job.where(name)
        expect(job.has(text), f"tmux is in {text}")
        expect(not job.outlived_by(name), "it outlives its job")


@case
def service_manager_of_a_user(site):
    """systemd-run --user takes a process out of its job if user@.service runs for the user, and is refused if that is masked."""
    needs_logind()
    unit = f"user@{pwd.getpwnam('alice').pw_uid}.service"

    def run(option):
        return f"XDG_RUNTIME_DIR=/run/user/$(id -u) systemd-run --user {option} --quiet $NOTE"
    subprocess.run(["systemctl", "start", unit], check=True)
    try:
        for option in "", "--scope":
            with in_a_job(site) as job:
                name = job.does(run(option))
                expect_in("/user.slice/", job.where(name), "with user@.service, the cgroups of the process")
                expect(job.outlived_by(name), "nothing outlived the job, and this shows nothing")
    finally:
        subprocess.run(["systemctl", "stop", unit], check=True)
    subprocess.run(["systemctl", "mask", "--runtime", "user@.service"], check=True)
    try:
        with in_a_job(site) as job:
            name = job.does(f"{run('')} || touch {job.directory}/refused")
            until((job.directory / "refused").exists, 20, "the refusal of systemd-run")
            expect(not job.pid(name), "systemd-run has started it")
    finally:
        subprocess.run(["systemctl", "unmask", "--runtime", "user@.service"], check=True)


def of_a_daemon(site, service, asks, timeout):
    """What a daemon starts when alice `asks` for it is outside of every job. With the line for ssh, it is refused while the user has no job with an
    extern step, and in that job otherwise. `timeout`: as long as the daemon may take."""
    with in_a_job(site) as job:
        def started(number, least=sites.LEAST):
            name = f"{job.name}.daemon{number}"
            asks(f"{job.directory}/note {name}")
            return job.where(name, timeout, least)
        text = started(1)
        expect("/job_" not in text, f"without a line, it is in {text}")
        with ssh_line(service):
            try:
                text = started(2, least=0)
            except AssertionError:
                text = None
            expect_equal(text, None, "with the line, where it is")
            job.jobfence("open", "--user", "alice", step="extern")
            text = started(3)
            expect(job.has(text) and "/step_extern" in text, f"with the line and a job, it is in {text}")


@contextlib.contextmanager
def crontab(site):
    """Gives alice a crontab, which is gone at the end."""
    needs("crontab")
    if not Path("/run/systemd/system").is_dir():
        raise Skip("nothing starts cron here")

    def gives(line):
        done = site.as_user("alice", ["crontab", "-"], stdin=f"{line}\n")
        expect_equal(done.returncode, 0, f"exit status of crontab, which says {done.stderr}")
    try:
        yield gives
    finally:
        site.as_user("alice", ["crontab", "-r"])


@case
def crontab_of_a_user(site):
    """A crontab is carried out outside of its job. With the line for ssh it is in a job of the user, or refused."""
    with crontab(site) as gives:
        subprocess.run(["systemctl", "restart", "cron.service"], check=True)
        # Each minute, whatever the machine's patience is.
        of_a_daemon(site, "cron", lambda command: gives(f"* * * * * {command}"), 90 / sites.PATIENCE)


@case
def crontab_at_reboot(site):
    """Cron carries out @reboot, when it starts, where it carries out any other line."""
    with crontab(site) as gives:
        def asks(command):
            gives(f"@reboot {command}")
            Path("/run/crond.reboot").unlink(missing_ok=True)
            subprocess.run(["systemctl", "restart", "cron.service"], check=True)
        of_a_daemon(site, "cron", asks, 10)


@case
def job_of_at(site):
    """A job of at is carried out outside of every job. With the line for ssh it is in a job of the user, or refused."""
    needs("at")

    def asks(command):
        done = site.as_user("alice", ["at", "now"], stdin=f"{command}\n")
        expect_equal(done.returncode, 0, f"exit status of at, which says {done.stderr}")
    subprocess.run(["systemctl", "start", "atd.service"], check=True)
    of_a_daemon(site, "atd", asks, 10)


def an_image(site):
    """What a container of one program is made of, as a tar."""
    needs("busybox")
    archive, tree = notes(site) / "image.tar", site.home / "tree"
    (tree / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox"), tree / "bin/busybox")
    subprocess.run(["tar", "-cf", archive, "-C", tree, "bin"], check=True)
    archive.chmod(0o644)
    return archive


def containers(seconds):
    """The processes of containers that sleep so long."""
    return [pid for pid in kernel.all_pids() if kernel.command_line(pid).startswith(f"/bin/busybox sleep {seconds}")]


@contextlib.contextmanager
def docker_for_alice(site, driver="cgroupfs"):
    """Docker's daemon, which alice may ask, and which has the image `busybox`. Commands that `sg docker -c` starts have the group."""
    needs("docker", "dockerd")
    image = an_image(site)
    subprocess.run(["usermod", "-aG", "docker", "alice"], check=True)
    daemon = subprocess.Popen(["dockerd", "--iptables=false", "--bridge=none", "--storage-driver=vfs", "--exec-opt", f"native.cgroupdriver={driver}"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: site.command("docker", "info").returncode == 0, 30, "Docker's daemon")
        expect_equal(site.command("docker", "import", str(image), "busybox").returncode, 0, "exit status of docker import")
        yield
    finally:
        daemon.terminate()
        daemon.wait(60)
        subprocess.run(["gpasswd", "-d", "alice", "docker"], check=True, stdout=subprocess.DEVNULL)


# Who starts a job has no other groups than the user's own: `sg` gives it this one.
RUN = "sg docker -c '{} run --rm --network=none --security-opt=apparmor=unconfined {} busybox /bin/busybox {}'"
LINK = "/usr/libexec/jobfence/docker"
MIB = 1 << 20


def container(seconds):
    """The process of the container that sleeps so long."""
    return until(lambda: next(iter(containers(seconds)), None), 30, "a container")


@case
def docker_by_its_socket(site):
    """A user who may ask Docker's daemon starts processes outside of every job."""
    with docker_for_alice(site, "systemd"), in_a_job(site) as job:
        job.does(RUN.format("docker", "", "sleep 1234"))
        pid = container(1234)
        text = kernel.read(f"/proc/{pid}/cgroup")
        expect(not job.has(text), f"the container is in {text}")
        why = as_a_stray(site, pid)
        expect(why and re.match(r"container [0-9a-f]{12}, since \d{4}-.*: after 60 s", why), f"of the container jobfence strays says {why}")
        job.jobfence("close")
        expect(kernel.is_alive(pid), "the container has ended with the job")
        subprocess.run(["kill", "-KILL", str(pid)])


def as_a_stray(site, pid):
    """What `jobfence strays` says of the process; None if that is in a fence."""
    done = site.command("jobfence", "strays", "--json", "-o", "Strays=report")
    return next((one["why"] for one in json.loads(done.stdout)["processes"] if one["pid"] == pid), None)


@case
def docker_by_the_link(site):
    """A container that a job starts by jobfence's link is in the job: its limits hold, what it uses counts, and it ends with the job."""
    with docker_for_alice(site):
        site.configure("Delegate=containers\nMaxProcesses=50\n")
        try:
            with in_a_job(site, "--cpus", "0.5", "--mem", "200M") as job:
                job.does(RUN.format(LINK, "", "sh -c \"busybox sleep 1236 & while :; do :; done\""))
                pid = until(lambda: next((pid for pid in kernel.all_pids() if "while :; do :" in kernel.command_line(pid)
                                          and "/docker/" in kernel.read(f"/proc/{pid}/cgroup")), None), 30, "a container")
                expect_in_its_job(site, job, pid)
            with in_a_job(site, "--cpus", "0.5", "--mem", "200M") as job:
                note = job.directory / "refused"
                job.does(RUN.format(LINK, "--restart=always", "sleep 1237") + f" 2>{note}; touch {note}.done")
                until((note.parent / "refused.done").exists, 30, "a refusal")
                expect_in("this container cannot be in its job: Docker would start it again", note.read_text(), "what the link says")
                expect(not containers(1237), "the container runs")
        finally:
            site.configure()
        with in_a_job(site) as job:
            note = job.directory / "whole"
            job.does(RUN.format(LINK, "", "sleep 1238") + f" 2>{note}; touch {note}.done")
            until((note.parent / "whole.done").exists, 30, "a refusal")
            expect_in("Delegate=containers", note.read_text(), "what the link says in a job that is not divided")
        with in_a_job(site, "-o", "Delegate=containers") as job:
            note = job.directory / "made"
            job.does(RUN.format(LINK, "", "sleep 1240").replace(" run --rm ", " create --name=left ") + f" >{note} 2>&1; touch {note}.done")
            until((note.parent / "made.done").exists, 30, "a container that is made")
        said = site.as_user("alice", ["sg", "docker", "-c", f"{LINK} start left"])
        expect_in("this container is another job's", said.stderr, f"what the link says to start one that said {note.read_text()}")
        expect(not containers(1240), "another job's container runs")
        outside = site.as_user("alice", ["sh", "-c", RUN.format(LINK, "-d", "sleep 1239")])
        expect_equal(outside.returncode, 0, f"outside of a job, the exit status of the link, which says {outside.stderr}")
        subprocess.run(["kill", "-KILL", str(container(1239))])


def expect_in_its_job(site, job, pid):
    """The container of this process is in the job, and ends with it. The loop in it has half a CPU, and no more."""
    text = kernel.read(f"/proc/{pid}/cgroup")
    expect(job.has(text) and "/step_0/docker/" in text, f"the container is in {text}")
    expect_equal(as_a_stray(site, pid), None, "what jobfence strays says of the container")
    group = kernel.Group.of(pid)
    expect_equal(group.cpu_limit(), 0.5, "the CPUs of its step")
    expect_equal(group.memory_limit(), 200 * MIB, "the memory of its step")
    expect_equal(group.processes_limit(), 50, "the processes of its step")
    inner = Path(f"/sys/fs/cgroup{text.strip().split('::')[-1]}")
    expect_equal(kernel.read(inner / "memory.max").strip(), "max", "a limit that would be Docker's own")
    expect_equal(kernel.read(inner / "pids.max").strip(), "max", "a limit that would be Docker's own")
    until(lambda: int(kernel.keyed(kernel.read(group.directory("") / "cpu.stat"))["nr_throttled"]), 30, "a loop that is held back")

    def used():
        # Nothing else in the job does so much.
        return next(fence["cpu_seconds"] for fence in json.loads(job.jobfence("usage", "--json"))["fences"])
    until(lambda: used() > 3, 60, "CPU time that is counted")
    bomb = subprocess.run(["docker", "exec", text.strip().rpartition("/docker/")[2], "/bin/busybox", "sh", "-c", "for i in $(busybox seq 100); do busybox sleep 100 & done"],
                          capture_output=True, text=True, check=False)
    expect_in("can't fork", bomb.stderr, "what a fork bomb in the container says")
    members = [kernel.identity(one) for one in kernel.all_pids() if text == kernel.read(f"/proc/{one}/cgroup")]
    expect(len(members) > 10, f"processes of the container: {len(members)}")
    job.jobfence("close")
    until(lambda: not any(kernel.identity(who[0]) == who for who in members if who), 20, "the end of the container")
    until(lambda: not group.exists(), 20, "the end of its cgroup")
    until(lambda: not site.command("docker", "ps", "--all", "--quiet").stdout.strip(), 20, "the end of the container in Docker")
    expect(not containers(1236), "what the container started goes on")


@case
def podman_without_root(site):
    """A container that a user starts without root is in its job, if no user@.service runs for the user."""
    needs("podman")
    image = an_image(site)
    podman = "podman --log-level=error --root=$PWD/storage --runroot=$PWD/run --storage-driver=vfs"
    with in_a_job(site) as job:
        job.does(f"export XDG_RUNTIME_DIR=$PWD; {podman} import {image} localhost/bb; "
                 f"{podman} run --rm --network=none localhost/bb /bin/busybox sleep 1235")
        pid = until(lambda: next(iter(containers(1235)), None), 30, "a container")
        text = kernel.read(f"/proc/{pid}/cgroup")
        expect(job.has(text), f"the container is in {text}")
        job.jobfence("close")
        until(lambda: not kernel.is_alive(pid), 10, "the end of the container")
