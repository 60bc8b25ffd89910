# SPDX-License-Identifier: GPL-2.0-or-later
"""A second host of the cluster, for the time being: an execd with a name, a network and files of its own.

Both hosts have the kernel in common, so the second has directories of its own: CgroupBase and RunDir.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from contract.sites import until

NODE, ADDRESS = "node2", "192.0.2.2"
HOSTS = Path("/etc/hosts")
SLOTS, MIB = 3, 600
EXEC_HOST = f"""hostname {NODE}
load_scaling NONE
complex_values h_vmem={MIB}M,slots={SLOTS}
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""


def run(*argv):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def delegate(base):
    """A directory in what systemd has delegated to jobfence, as systemd would delegate it; none where there is no cgroup2."""
    tops = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    top = next((top for top in tops if (top / "cgroup.controllers").exists()), None)
    if not top or not Path("/run/systemd/system").is_dir():
        return None
    place = top / base
    place.mkdir(parents=True, exist_ok=True)
    os.setxattr(place, "trusted.delegate", b"1")
    for above in place.parent.parent, place.parent:
        for controller in (above / "cgroup.controllers").read_text().split():
            (above / "cgroup.subtree_control").write_text(f"+{controller}")
    return place


@contextlib.contextmanager
def second_host(site, configured=""):
    """Its configuration has no limits but these; jobs must be gone at the end."""
    top = Path(tempfile.mkdtemp(prefix="jobfence-node2-"))
    top.chmod(0o755)
    # Directly below, the first host's janitor would take it for that of a node that has its RunDir, and remove what is empty there.
    base = f"{site.bases()[0]}/hosts/{NODE}"
    # In Slurm's directory, which comes first: in /etc/jobfence is the file of the first host.
    config, ready = top / "etc", top / "ready"
    config.mkdir()
    (config / "jobfence.conf").write_text(f"CgroupBase={base}\nRunDir={top}/run\nOnError=fail\n{configured}")
    before = HOSTS.read_text()
    HOSTS.write_text(f"{before}{ADDRESS} {NODE}\n")
    delegated = delegate(base)
    commands = [
        "set -e", f"hostname {NODE}", "mkdir -p /etc/slurm", f"mount --bind {config} /etc/slurm", f"touch {ready}",
        "while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done", "ip link set lo up",
        f"ip address add {ADDRESS}/24 dev eth0", "ip link set eth0 up", "ip route add 192.0.2.1/32 dev eth0",
        f"touch {ready}.network", "export SGE_ND=1", "exec /usr/sbin/sge_execd",
    ]
    keeper = None
    try:
        site.qconf("-ah", NODE)
        (top / "exec-host").write_text(EXEC_HOST)
        site.qconf("-Ae", str(top / "exec-host"))
        with open(top / "log", "w", encoding="utf-8") as log:
            keeper = subprocess.Popen(["unshare", "--mount", "--uts", "--net", "sh", "-c", "\n".join(commands)],
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=site.environment)
        until(ready.exists, 20, "its namespaces")
        run("ip", "link", "add", "to-node2", "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
        run("ip", "link", "set", "to-node2", "up")
        run("ip", "route", "add", f"{ADDRESS}/32", "dev", "to-node2", "src", "192.0.2.1")
        site.qconf("-aattr", "hostgroup", "hostlist", NODE, "@allhosts")
        until(lambda: any(word[-1:] in "MG" for word in reported(site)), 60, f"a report of {NODE}: {(top / 'log').read_text()}")
        yield
    finally:
        site.qdel(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 60, "the end of every job")
        for command in ("-dattr", "hostgroup", "hostlist", NODE, "@allhosts"), ("-de", NODE), ("-dh", NODE):
            site.command("qconf", *command)
        if keeper:
            keeper.send_signal(signal.SIGTERM)
            try:
                keeper.wait(20)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
        site.command("ip", "link", "delete", "to-node2")
        HOSTS.write_text(before)
        shutil.rmtree(Path("/var/spool/gridengine/execd") / NODE, ignore_errors=True)
        shutil.rmtree(top, ignore_errors=True)
        if delegated:
            with contextlib.suppress(OSError):
                delegated.rmdir()
                delegated.parent.rmdir()


def reported(site):
    """What qhost says of the second host's memory, when its execd has reported."""
    rows = (line.split() for line in site.command("qhost", "-h", NODE).stdout.splitlines())
    return next((row[4:] for row in rows if row and row[0] == NODE), [])


def slots_by_host(site):
    """So many slots qmaster has granted on each host to the one job that there is: a line for each."""
    lines = site.command("qstat", "-u", "*", "-g", "t").stdout.splitlines()
    hosts = [word.split("@")[1].split(".")[0] for line in lines if "SLAVE" in line for word in line.split() if "@" in word]
    return {host: hosts.count(host) for host in hosts}
