# SPDX-License-Identifier: GPL-2.0-or-later
"""Ways out of a job: sessions, and what other daemons start for a user. docs/limitations.md has them in a table.

The programs are in the image of one cell alone.
"""

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

from slurm import kernel
from slurm.harness import Skip, case, expect, expect_equal, expect_in
from slurm.kernel import Group
from slurm.sites import until, write_atomically

from ..harness import ask, fenced

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


def ssh_line(service):
    return service_with(service, [], [f"session required {MODULE}"])


def notes(site):
    """Where all users may write."""
    directory = site.home / "notes"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    return directory


def cgroups_said(site, jobid):
    """What the job has written down of a process that it has started by one of the ways."""
    file = notes(site) / f"cgroup.{jobid}"
    try:
        return until(lambda: kernel.read(file) if "\n" in kernel.read(file) else None, 20, f"{file}")
    except AssertionError as error:
        all_ = "; ".join(f"{pid} {kernel.command_line(pid)}" for pid in kernel.all_pids() if kernel.command_line(pid))
        raise AssertionError(f"{error}; the job says {site.output(jobid)} {site.told(jobid)}; {all_[-2000:]}") from None


def job_that(site, does):
    """A job that does this. The program `$NOTE` writes down where it is, and stays there."""
    directory = notes(site)
    note = directory / "note"
    note.write_text("#!/bin/sh\n"
                    f"cat /proc/self/cgroup >{directory}/new.$1\necho $$ >{directory}/pid.$1\nmv {directory}/new.$1 {directory}/cgroup.$1\n"
                    "exec sleep 1000\n")
    note.chmod(0o755)
    return site.submit("alice", f"export NOTE={note}\n{does}\nsleep 1000", *ask(1, 400))


def is_in_job(site, jobid, text):
    group = Group.named_in(text)
    return group is not None and f"/job_{jobid}/" in group.path


def end(site, jobid):
    """Nothing of the job outlives it, if it is in its fence."""
    pid = int(kernel.read(notes(site) / f"pid.{jobid}") or 0)
    who = pid and kernel.identity(pid)
    site.qdel(jobid)
    site.wait(jobid)
    if who:
        with contextlib.suppress(AssertionError):
            until(lambda: kernel.identity(pid) != who, 10, "the end of what it has started")
    is_alive = bool(who) and kernel.identity(pid) == who
    if is_alive:
        subprocess.run(["kill", "-KILL", str(pid)])
    return is_alive


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


SU = f"echo {PASSWORD} | su - bob -c \"$NOTE $JOB_ID\" &"
# What su has begun is no child of the job's any more.
SU_ALONE = f"(echo {PASSWORD} | setsid su - bob -c \"$NOTE $JOB_ID\" &)"


@case
def su_in_a_job(site):
    """pam_systemd moves out what su begins, and the module's two lines put it back, whoever its parent is."""
    needs_logind()
    with password_of("bob"), held_with(site, "ReapInterval=Never\n"):
        jobid = job_that(site, SU)
        open_ = cgroups_said(site, jobid)
        expect_in("/user.slice/", open_, "without a line, the cgroups of what su began")
        expect(end(site, jobid), "nothing outlived the job: pam_systemd has not moved it, and this shows nothing")
        said = [open_.strip().splitlines()[-1]]
        with stays("su-l"):
            for way in SU, SU_ALONE:
                jobid = job_that(site, way)
                text = cgroups_said(site, jobid)
                expect(is_in_job(site, jobid, text), f"{way}: su is in {text}")
                expect(not end(site, jobid), f"{way}: it outlives its job")
    return "; ".join(said)


@case
def su_is_fetched_back(site):
    """Without a line, jobfence hold fetches back what su has begun, while its parent is in the job."""
    needs_logind()
    with password_of("bob"), held_with(site, "ReapInterval=5s\n"):
        jobid = job_that(site, SU)
        expect_in("/user.slice/", cgroups_said(site, jobid), "the cgroups of what su began")
        pid = int(kernel.read(notes(site) / f"pid.{jobid}"))
        until(lambda: is_in_job(site, jobid, kernel.read(f"/proc/{pid}/cgroup")), 60, f"process {pid} in job {jobid}")
        expect(not end(site, jobid), "it outlives its job")


@contextlib.contextmanager
def by_sshd(site):
    """Grid Engine starts what qrsh asks for by sshd."""
    needs("sshd", "ssh")
    keys = site.home / "keys"
    wrapper = site.home / "ssh"
    home = Path("/home/alice/.ssh")
    keys.mkdir()
    wrapper.write_text("#!/bin/sh\nexec /usr/bin/ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                       f"-o LogLevel=ERROR -i {keys}/key \"$@\"\n")
    wrapper.chmod(0o755)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "key"], check=True)
    home.mkdir(mode=0o700)
    shutil.copy(keys / "key.pub", home / "authorized_keys")
    subprocess.run(["chown", "-R", "alice:alice", keys, home], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    try:
        with site.changed(["-sconf", "global"], ["-Mconf"], rsh_daemon="/usr/sbin/sshd -i", rsh_command=str(wrapper)):
            # execd reads it with its next report.
            until(lambda: "sshd -i" in site.command("qconf", "-sconf", "global").stdout, 10, "the configuration")
            yield
    finally:
        shutil.rmtree(home)
        shutil.rmtree(keys)


@case
def qrsh_by_sshd(site):
    """What qrsh -inherit starts by sshd is in its job: by one line of the module, which denies none, and by two."""
    needs_logind()
    asked = "-pe", "mpi", "2", "-l", "h_vmem=100M", "-v", "PATH"
    with by_sshd(site):
        def job():
            directory = notes(site)
            script = f"qrsh -inherit $(hostname) sh -c \"cat /proc/self/cgroup >{directory}/cgroup.$JOB_ID; sleep 1000\" & sleep 1000"
            return site.submit("alice", script, *asked)
        jobid = job()
        expect_in("/user.slice/", cgroups_said(site, jobid), "without a line, the cgroups of what qrsh began")
        end(site, jobid)
        for lines in ssh_line, stays:
            with lines("sshd"):
                jobid = job()
                text = cgroups_said(site, jobid)
                expect(is_in_job(site, jobid, text), f"with {lines.__name__}, it is in {text}")
                end(site, jobid)


@case
def tmux_in_a_job(site):
    """A server of tmux that a job starts is in the job, and ends with it."""
    needs("tmux")
    jobid = job_that(site, "tmux -L $JOB_ID new-session -d \"$NOTE $JOB_ID\"")
    text = cgroups_said(site, jobid)
    expect(is_in_job(site, jobid, text), f"tmux is in {text}")
    expect(not end(site, jobid), "it outlives its job")


@case
def service_manager_of_a_user(site):
    """systemd-run --user takes a process out of its job if user@.service runs for the user, and is refused if that is masked."""
    needs_logind()
    uid = subprocess.run(["id", "-u", "alice"], capture_output=True, text=True, check=True).stdout.strip()
    run = (f"XDG_RUNTIME_DIR=/run/user/{uid} DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/{uid}/systemd/private "
           "systemd-run --user --quiet $NOTE $JOB_ID || systemd-run --user --scope --quiet $NOTE $JOB_ID & wait; echo refused")
    subprocess.run(["systemctl", "start", f"user@{uid}.service"], check=True)
    try:
        jobid = job_that(site, run)
        expect_in("/user.slice/", cgroups_said(site, jobid), "with user@.service, the cgroups of the process")
        expect(end(site, jobid), "nothing outlived the job, and this shows nothing")
    finally:
        subprocess.run(["systemctl", "stop", f"user@{uid}.service"], check=True)
    subprocess.run(["systemctl", "mask", "--runtime", "user@.service"], check=True)
    try:
        (notes(site) / f"cgroup.{jobid}").unlink()
        jobid = job_that(site, run)
        until(lambda: "refused" in site.output(jobid), 60, "the end of systemd-run")
        expect(not (notes(site) / f"cgroup.{jobid}").exists(), "systemd-run has started it")
        end(site, jobid)
    finally:
        subprocess.run(["systemctl", "unmask", "--runtime", "user@.service"], check=True)


def runs_by(site, jobid, start):
    """Where a process is that another daemon starts for alice when this is done, or None if there is none."""
    file = notes(site) / f"cgroup.{jobid}"
    file.unlink(missing_ok=True)
    start()
    with contextlib.suppress(AssertionError):
        return until(lambda: kernel.read(file) if "\n" in kernel.read(file) else None, 12, "what the daemon starts")
    return None


def of_a_daemon(site, service, start):
    """What a daemon starts is outside of the job from which the user asked for it. With the line for ssh, it is refused while the user has no
    job with an extern step."""
    jobid = job_that(site, "")
    fenced(site, jobid)
    text = runs_by(site, jobid, lambda: start(jobid))
    expect(text and not Group.named_in(text), f"without a line, it is in {text}")
    subprocess.run(["kill", "-KILL", kernel.read(notes(site) / f"pid.{jobid}").strip()])
    with ssh_line(service):
        expect_equal(runs_by(site, jobid, lambda: start(jobid)), None, "with the line, where it is")
        extern = ["--job", "way-out", "--step", "extern"]
        site.command("jobfence", "open", *extern, "--user", "alice")
        try:
            text = runs_by(site, jobid, lambda: start(jobid))
            expect_in("/job_way-out/step_extern", text or "", "with the line and a job, where it is")
        finally:
            site.command("jobfence", "close", "--job", "way-out")
    end(site, jobid)


@case
def crontab_of_a_user(site):
    """A crontab is carried out outside of its job. With the line for ssh it is in a job of the user, or refused."""
    needs("crontab")

    def start(jobid):
        note = notes(site) / "note"
        done = site.as_user("alice", ["crontab", "-"], stdin=f"* * * * * {note} {jobid}\n")
        expect_equal(done.returncode, 0, f"crontab: {done.stderr}")
    subprocess.run(["systemctl", "start", "cron.service"], check=True)
    try:
        of_a_daemon(site, "cron", start)
    finally:
        site.as_user("alice", ["crontab", "-r"])


@case
def crontab_at_reboot(site):
    """The same of @reboot, which cron carries out when it starts."""
    needs("crontab")

    def start(jobid):
        note = notes(site) / "note"
        done = site.as_user("alice", ["crontab", "-"], stdin=f"@reboot {note} {jobid}\n")
        expect_equal(done.returncode, 0, f"crontab: {done.stderr}")
        Path("/run/crond.reboot").unlink(missing_ok=True)
        subprocess.run(["systemctl", "restart", "cron.service"], check=True)
    try:
        of_a_daemon(site, "cron", start)
    finally:
        site.as_user("alice", ["crontab", "-r"])


@case
def job_of_at(site):
    """The same of at."""
    needs("at")

    def start(jobid):
        note = notes(site) / "note"
        done = site.as_user("alice", ["at", "now"], stdin=f"{note} {jobid}\n")
        expect_equal(done.returncode, 0, f"at: {done.stderr}")
    subprocess.run(["systemctl", "start", "atd.service"], check=True)
    of_a_daemon(site, "atd", start)


@contextlib.contextmanager
def an_image(site):
    """What a container of one program is made of, as a tar."""
    needs("busybox")
    archive, tree = notes(site) / "image.tar", site.home / "tree"
    (tree / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox"), tree / "bin/busybox")
    subprocess.run(["tar", "-cf", archive, "-C", tree, "bin"], check=True)
    archive.chmod(0o644)
    yield archive


@case
def docker_by_its_socket(site):
    """Whoever may ask Docker's daemon starts processes outside of every job: root's group is as good as root."""
    needs("docker", "dockerd")
    with an_image(site) as image:
        subprocess.run(["usermod", "-aG", "docker", "alice"], check=True)
        daemon = subprocess.Popen(["dockerd", "--iptables=false", "--bridge=none", "--storage-driver=vfs"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: site.command("docker", "info").returncode == 0, 30, "Docker's daemon")
            site.command("docker", "import", str(image), "busybox")
            run = "docker run --rm --network=none busybox /bin/busybox sh -c 'echo; exec /bin/busybox sleep 1234' & sleep 1000"
            jobid = site.submit("alice", run, *ask(1, 100))
            pid = until(lambda: next((pid for pid in kernel.all_pids() if "sleep 1234" in kernel.command_line(pid)
                                      and "docker" not in kernel.command_line(pid)), None), 20,
                        f"a container; {site.output(jobid)} {site.told(jobid)}")
            expect(Group.of(pid) is None, f"the container is in {kernel.cgroups_of(pid)}")
            site.qdel(jobid)
            site.wait(jobid)
            expect(kernel.is_alive(pid), "the container has ended with the job")
            subprocess.run(["kill", "-KILL", str(pid)])
        finally:
            daemon.terminate()
            daemon.wait(60)
            subprocess.run(["gpasswd", "-d", "alice", "docker"], check=True, stdout=subprocess.DEVNULL)


@case
def podman_without_root(site):
    """A container that a user starts without root is in its job, if no user@.service runs for the user."""
    needs("podman")
    with an_image(site) as image:
        options = "--log-level=error --root=$PWD/storage --runroot=$PWD/run --storage-driver=vfs --cgroup-manager=cgroupfs"
        run = (f"export HOME=$PWD; podman {options} import {image} busybox; podman {options} run --rm --network=none --cgroups=disabled "
               "busybox /bin/busybox sleep 1235")
        jobid = site.submit("alice", f"{run}; sleep 1000", *ask(1, 400))
        pid = until(lambda: next((pid for pid in kernel.all_pids() if kernel.command_line(pid).startswith("/bin/busybox sleep 1235")), None),
                    30, f"a container; {site.output(jobid)} {site.told(jobid)}")
        expect(is_in_job(site, jobid, kernel.read(f"/proc/{pid}/cgroup")), f"the container is in {kernel.cgroups_of(pid)}")
        site.qdel(jobid)
        site.wait(jobid)
        until(lambda: not kernel.is_alive(pid), 20, "the end of the container")
