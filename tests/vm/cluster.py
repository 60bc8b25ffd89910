#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Types the page on clusters in a virtual machine, with the packages of 'make deb', the role of Ansible and the snippet of cloud-init.

Without arguments: on this machine, which gives the guest its Ansible, since the guest has no network. 'guest': in the guest.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "vm")]

import repository  # noqa: E402
from pages import Untrue, blocks, commands, is_as_expected  # noqa: E402

PAGE = "docs/install/cluster.md"
CELL = "debian12-v2-own"
LACKS = 77  # for check.py: this machine lacks something
IN_GUEST = Path("/opt/jobfence-tests")
REPOSITORY, NEWER = "srv/jobfence", "srv/newer"
SNIPPET = "packaging/cloud-init/jobfence.yaml"
IMAGE = Path("/srv/image")
SOURCES = Path("/etc/apt/sources.list.d/jobfence.list")
# For Debian's Python: as the part of cloud-init behind a site's own, the snippet takes nothing away.
MERGED = """
import sys, types
from cloudinit.handlers.cloud_config import CloudConfigPartHandler
handler = CloudConfigPartHandler(types.SimpleNamespace(get_ipath=lambda name: None))
own = "#cloud-config\\n{packages: [vim], runcmd: [date], write_files: [{path: /etc/own}], package_update: true}"
for part in own, open(sys.argv[1]).read():
    handler.handle_part(None, "text/cloud-config", "part", part, None, {})
for name, first in ("packages", "vim"), ("runcmd", "date"), ("write_files", {"path": "/etc/own"}):
    assert handler.cloud_buf[name][0] == first and len(handler.cloud_buf[name]) > 1, handler.cloud_buf
"""
# With what these need. The guest has the same release of Debian.
ANSIBLE = ("ansible-core", "python3-jinja2", "python3-markupsafe", "python3-yaml", "libyaml-0-2", "python3-packaging", "python3-resolvelib",
           "python3-cryptography", "python3-cffi-backend", "python3-apt", "python-apt-common")


def lack(why):
    print(f"cluster: {why}")
    sys.exit(LACKS)


def payload(top, directory):
    if "bookworm" not in Path("/etc/os-release").read_text():
        lack("the Ansible of this machine is not for the guest, which is Debian 12")
    for program in "dh", "dpkg-scanpackages", "apt-ftparchive":
        if not shutil.which(program):
            lack(f"{program} is missing: tests/need deb")
    version, _ = repository.make(directory / "repositories", *(top / "target/release" / name for name in ("libjobfence.so", "jobfence")))
    made, newer = (directory / "repositories" / name for name in ("made", "newer"))
    (directory / REPOSITORY).parent.mkdir()
    made.rename(directory / REPOSITORY)
    newer.rename(directory / NEWER)
    shutil.rmtree(directory / "repositories")
    for package in ANSIBLE:
        done = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lack(f"{package} is missing: tests/need cluster")
        for name in map(Path, done.stdout.split()):
            if name.is_relative_to("/usr") and name.is_file() and not name.is_relative_to("/usr/share/doc"):
                place = directory / name.relative_to("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, place, follow_symlinks=False)
    tests = directory / IN_GUEST.relative_to("/")
    for name in "contract", "slurm":
        shutil.copytree(TESTS / name, tests / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "pages.py", "leases.py", "vm/cluster.py", "vm/repository.py":
        (tests / name).parent.mkdir(exist_ok=True)
        shutil.copy(TESTS / name, tests / name)
    shutil.copytree(top / "packaging", tests / "jobfence/packaging")
    (tests / "jobfence/docs/install").mkdir(parents=True)
    shutil.copy(top / PAGE, tests / "jobfence" / PAGE)
    (tests / "version").write_text(version)


def on_this_machine():
    top = TESTS.parent
    schema = subprocess.run(["cloud-init", "schema", "--config-file", top / SNIPPET], check=False) if shutil.which("cloud-init") else None
    if schema is None:
        lack("cloud-init is missing: tests/need cluster")
    if schema.returncode != 0 or subprocess.run(["/usr/bin/python3", "-c", MERGED, top / SNIPPET], check=False).returncode != 0:
        return 1
    with tempfile.TemporaryDirectory(prefix="jobfence-payload-") as directory:
        payload(top, Path(directory))
        inside = f"/opt/guest/start-slurm && exec python3 -B {IN_GUEST}/vm/cluster.py guest"
        return subprocess.run([TESTS / "vm/vm.py", "run", "--cell", CELL, "--payload", directory, "--results", top / "target/vm/results/cluster",
                               "--timeout", "3000", "--", "sh", "-c", inside], check=False).returncode


def sh(command, status=0):
    # Ansible wants a locale that it can read its own files in.
    environment = {**os.environ, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(["sh", "-c", command], cwd=IN_GUEST / "jobfence", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=1500, check=False)
    print("".join(f"      {line}\n" for line in done.stdout.splitlines()), end="", flush=True)
    if done.returncode != status:
        raise Untrue(f"'{command}' has ended with exit status {done.returncode}")
    return done.stdout


def expect(is_so, what):
    if not is_so:
        raise Untrue(what)


def changes(said):
    """How many tasks of the play have changed something."""
    return int(re.search(r"changed=(\d+)", said)[1])


def is_fenced():
    return "jobfence" in sh("su alice -c 'cd; srun --mem=50 cat /proc/self/cgroup'")


def meant(command):
    """The page names a release, and this is the one that the repository has."""
    return re.sub(r"=[\d.]+-\d+", f"={version()}", command)


def version():
    return (IN_GUEST / "version").read_text()


def is_installed(package):
    return sh(f"dpkg-query --show -f '${{Version}}' {package}").strip()


def before(command):
    if str(IMAGE) in command and not IMAGE.exists():
        # A tree with what this machine has, and without its /run, /proc and /sys.
        for name in "upper", "work":
            Path("/scratch/image", name).mkdir(parents=True)
        IMAGE.mkdir(parents=True)
        sh(f"mount -t overlay -o lowerdir=/,upperdir=/scratch/image/upper,workdir=/scratch/image/work none {IMAGE}")
        # It knows nothing of the repository.
        (IMAGE / SOURCES.relative_to("/")).unlink()
        shutil.rmtree(IMAGE / REPOSITORY)
    if command.startswith("cp -r packaging/ansible"):
        expect(not Path("/usr/sbin/jobfence").exists(), "this machine has no jobfence yet")
        # In check mode, Ansible reads no list of packages.
        sh("apt-get update")
        Path("/srv/ansible/hosts").write_text("[compute]\nlocalhost ansible_connection=local\n")
    if command == "apt-get update":
        with SOURCES.open("a") as sources:
            sources.write(f"deb [trusted=yes] file:/{NEWER} ./\n")


def behind(command, said):
    if command.startswith("chroot /srv/image cp"):
        unit = "etc/systemd/system/multi-user.target.wants/jobfence.service"
        expect((IMAGE / unit).is_symlink(), "the service is enabled in the image")
        expect(not Path("/", unit).is_symlink(), "nothing is enabled on this machine")
        sh(f"umount {IMAGE}")
    elif command.endswith("site.yml --check"):
        expect(changes(said) > 0 and not Path("/usr/sbin/jobfence").exists(), "a check of the play tells of changes and makes none")
        sh(command.replace("--check", "--tags packages"))
        expect(Path("/etc/jobfence/jobfence.conf").read_text() == "Mode=observe\n", "the packages come with the site's jobfence.conf")
        expect(not is_fenced(), "the packages turn nothing on")
    elif command.endswith("site.yml"):
        expect(changes(said) > 0 and is_fenced(), "the play turns jobfence on")
        expect(changes(sh(command)) == 0, "a second play changes nothing")
        sh("jobfence setup --undo", 2)
        expect(changes(sh(f"{command} --check")) == 1 and not is_fenced(), "a check of the play asks jobfence setup, and changes nothing")
    elif command == "/etc/slurm/health":
        drains()
    elif command.startswith("apt-get install") and "--allow-downgrades" not in command:
        expect(is_installed("libjobfence") != version() and is_fenced(), "a job is fenced by the newer release")
    elif command.startswith("apt-get install"):
        expect(is_installed("libjobfence") == version() and is_fenced(), "a job is fenced by the earlier release")
    elif command.startswith("jobfence setup --undo"):
        expect(not is_fenced(), "nothing is fenced after setup --undo")


def drains():
    """The page's program drains a node on which each job would fail, and says why."""
    # As slurmd runs it, which gives it nothing else, not even PATH.
    health = "env -i SLURMD_NODENAME=$(hostname -s) /etc/slurm/health"
    state = "sinfo --noheader --format='%T %E'"
    sh(health)
    expect("drain" not in sh(state), "a node on which all is well is not drained")
    conf = Path("/etc/jobfence/jobfence.conf")
    text = conf.read_text()
    conf.write_text("MaxProceses=1\n")
    sh(health)
    expect(re.search(r"drain.* unfenced: .*MaxProceses", sh(state)), "a node on which each job fails is drained, with the reason")
    conf.write_text(text)
    sh("scontrol update NodeName=$(hostname -s) State=resume")


def write(block):
    name = re.match(r"# (/\S+)", block.lines[0 if block.kind == "ini" else 1])
    path = Path(name[1])
    print(f"  {path} is written", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(block.lines[block.kind == "ini":]) + "\n")
    if block.kind == "sh":
        path.chmod(0o755)
    if path.name == "jobfence.yaml":
        expect(path.read_text() == (IN_GUEST / "jobfence" / SNIPPET).read_text(), f"the page shows {SNIPPET}")
        import yaml

        # As cloud-init does it: packages, then what is deferred, then the commands.
        data = yaml.safe_load(path.read_text())
        sh(f"apt-get update; apt-get install -y --no-install-recommends {' '.join(data['packages'])}")
        for file in data["write_files"]:
            Path(file["path"]).write_text(file["content"])
        for line in data["runcmd"]:
            print(f"  runcmd: {line}", flush=True)
            sh(line)
        expect(is_fenced(), "a job is fenced after cloud-init's commands")


def in_guest():
    # The guest has no network.
    Path("/etc/apt/sources.list").unlink(missing_ok=True)
    found = blocks(PAGE, (IN_GUEST / "jobfence" / PAGE).read_text())
    last = [block for block in found if block.note == "run last"]
    for block in [block for block in found if block.note == ""] + last:
        if block.kind in ("ini", "sh"):
            write(block)
        for _, command, expected in commands(block) if block.kind == "console" else ():
            print(f"  # {command}", flush=True)
            before(command)
            said = sh(meant(command))
            if expected and not is_as_expected(said, expected):
                raise Untrue(f"{block.where}: '{command}' prints\n{said}\nand the page says\n" + "\n".join(expected))
            behind(command, said)


def main():
    if sys.argv[1:] != ["guest"]:
        return on_this_machine()
    try:
        in_guest()
    except Untrue as error:
        print("FAIL cluster", *str(error).splitlines(), sep="\n     ")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    print("ok   cluster  0.0 s\n1 passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
