# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's own files are read as Slurm reads them: the authority is the Slurm of this very site."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

from contract.harness import case, expect_equal, expect_in
from contract.sites import hostname
from .. import slurms_reader
from ..sites import InstalledSite

KEYS = "ProctrackType", "TaskPlugin", "JobAcctGatherType"
READER = Path(slurms_reader.__file__)
SEED, FILES = 36, 150
# In a guest, where each takes half a second: what differs there is the release that reads them.
IN_A_GUEST = 30


def included(chance, beside):
    """Names that are there; one that is not stops Slurm for a minute."""
    names = ["%c.conf", "one.conf", "sub/two.conf"]
    if beside == "sub":
        # Before Slurm 23.02 a name in an included file begins beside that.
        names = ["three.conf"]
    if beside == "top":
        names = ["one.conf"]
    return chance.choice(names)


def value(chance):
    plain = "".join(chance.choice(["a", "B", "7", "/x", ",y", ".", "=", "\\\\", "\\z", '"', "\\#"]) for _ in range(chance.randint(1, 4)))
    return chance.choice([plain, plain, f'"{plain}"', f'"{plain} {plain}"', f'"{plain}"z', "\\\n" + plain, plain + "#c"])


def line(chance, patterns, beside=None):
    """A line of a file as an administrator may have it, or nearly so."""
    blank = ["", "", " ", "\t", "  ", "\v"]
    key = "".join(chance.choice([c.lower(), c.upper()]) if chance.random() < 0.2 else c for c in chance.choice(KEYS))
    setting = f"{key}{chance.choice(blank)}{chance.choice(['=', '=', '=', '+=', '=='])}{chance.choice(blank)}{value(chance)}"
    name = included(chance, beside)
    text = chance.choice([
        setting, setting, setting, setting,
        chance.choice(blank) + setting,
        f"{setting} {chance.choice(KEYS)}=more",
        f"#{setting}", "# a comment", "",
        f"ClusterName={chance.choice(['Tau', 'mu'])}",
        f"NodeName=n1 CPUs=2 {chance.choice(KEYS)}=nodes",
        f"{chance.choice(['Include', 'include', 'INCLUDE'])}{chance.choice([' ', chr(9), '  '])}{name}",
        f" Include {name}", f"Include={name}",
        *(["Include *.conf"] if patterns else []),
    ])
    # A name of a file, or of the cluster, must stay one that is there.
    is_name = text.lstrip().lower().startswith(("include", "cluster"))
    tail = chance.choice(["", "", "", " ", "\t", " # c", " #c \\", "\r"] + ([] if is_name else ["\\", " \\", "\\ ", " \\\t ", "\\\\", "\\  # c", "\\\r"]))
    return text + tail + "\n"


def put(directory, number, chance, patterns, is_old):
    """Files that include each other, in a directory of their own."""
    top = directory / str(number)
    (top / "sub").mkdir(parents=True)
    several = lambda most, beside=None: "".join(line(chance, patterns, beside) for _ in range(chance.randint(1, most)))  # noqa: E731
    inner = [text for text in several(4).splitlines(keepends=True) if "nclude" not in text.lower()]
    for name in ("one.conf", "tau.conf", "mu.conf", "sub/three.conf"):
        (top / name).write_text("".join(text for text in several(3).splitlines(keepends=True) if "nclude" not in text.lower()) + "\n")
    two = f"Include {'three.conf' if is_old else 'one.conf'}\n" + "".join(inner)
    (top / "sub/two.conf").write_text(two)
    # Not Slurm's default, with which check names nothing else on cgroup2.
    text = "ProctrackType=proctrack/linuxproc\n" + several(12)
    # The last line may have no end.
    (top / "slurm.conf").write_text(text if chance.random() < 0.7 or "nclude" in text.lower() else text[:-1])
    return top / "slurm.conf"


@case(layout=False)
def slurms_files_are_read_as_slurm_reads_them(site):
    """Of random files, 'jobfence check' names the values that Slurm's own reader finds in them."""
    user = site.users[0]
    _, api = slurms_reader.loaded()
    directory = site.directory(user) / "slurms-files"
    shutil.rmtree(directory, ignore_errors=True)
    chance = random.Random(SEED)
    count = IN_A_GUEST if isinstance(site, InstalledSite) else FILES
    files = [put(directory, number, chance, api >= slurms_reader.OF_23_11, api < slurms_reader.OF_23_02) for number in range(count)]
    (directory / "jobfence.conf").write_text("")
    done = subprocess.run([sys.executable, READER, ",".join(KEYS), *map(str, files)], capture_output=True, text=True, timeout=300, check=True)
    theirs = json.loads(done.stdout)
    for file, expected in zip(files, theirs):
        checked = site.as_user(user, [str(site.jobfence), "check", "--config", str(directory / "jobfence.conf")],
                               env={"SLURM_CONF": str(file)}).stdout
        found = [named(checked, key) for key in KEYS]
        expect_equal(found, expected, f"{KEYS} of {file}:\n{file.read_text()!r}\n{checked}")
    for number, key in enumerate(KEYS):
        assert sum(one[number] is not None for one in theirs) > count / 3, f"too few files have {key}"
    shutil.rmtree(directory)


# Lines of the nodes with HOST for the machine's short name; the GRES of each are as many as of no other.
NODES = (
    "NodeName=HOST Gres=x:1\nNodeName=other Gres=x:2",
    "NodeName=other Gres=x:1\nNodeName=dyn-1 NodeHostname=HOST Gres=x:2",
    "NodeName=HOST NodeHostname=other Gres=x:1\nNodeName=n2 NodeHostname=HOST Gres=x:2",
    "NodeName=n[1-2] NodeHostname=other,elsewhere Gres=x:1\nNodeName=HOST.example.org Gres=x:2",
    "NodeName=other Gres=x:1\nNodeName=n2 NodeHostname=alias.of.this Gres=x:2",
    "NodeName=alias.of.this Gres=x:1\nNodeName=n2 NodeHostname=HOST Gres=x:2",
    "NodeName=n1 NodeHostname=HOST.example.org Gres=x:1\nNodeName=n2 NodeHostname=localhost Gres=x:2",
    "NodeName=other Gres=x:1\nNodeName=here NodeHostname=localhost Gres=x:2",
    "NodeName=other Gres=x:1",
)
LINE = re.compile(r"^NodeName=(\S+) .*Gres=x:(\d)", re.M)


@case(layout=False)
def a_node_is_found_as_slurmd_finds_it(site):
    """By its host's names and aliases, where nobody has said which node it is."""
    directory = site.directory(site.users[0]) / "node"
    directory.mkdir(exist_ok=True)
    host, conf = hostname(), directory / "slurm.conf"
    (directory / "gres.conf").write_text("")
    # 'check' tries a step where a job of this site would be.
    (directory / "jobfence.conf").write_text("".join(f"{key}={value}\n" for key, value in site.own_keys().items()))
    (directory / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}.example.org {host} alias.of.this\n")

    def asked(*command):
        """In a namespace where the host has these names."""
        script = f'mount --bind {directory}/hosts /etc/hosts && unset SLURMD_NODENAME && SLURM_CONF={conf} exec "$@"'
        done = site.command("unshare", "--mount", "sh", "-c", script, "sh", *command)
        return done.stdout + done.stderr

    for lines in NODES:
        lines = lines.replace("HOST", host)
        conf.write_text(f"ClusterName=c\nSlurmctldHost=h\nProctrackType=proctrack/linuxproc\nGresTypes=x\n{lines}\nPartitionName=p Nodes=ALL\n")
        said = asked("slurmd", "-G", "-f", str(conf))
        count = re.search(r"Gres Name=x Type=\S+ Count=(\d+)", said)
        assert count or "Unable to determine this slurmd's NodeName" in said, said
        node = next((node for node, own in LINE.findall(lines) if count and own == count[1]), None)
        checked = asked(str(site.jobfence), "check", "--config", f"{directory}/jobfence.conf")
        found = re.search(r"^node +(\S+)", checked, re.M)
        expect_equal(found[1] if found else host, node or "unknown:", f"the node of\n{lines}\n{checked}")
    # The last has none.
    checked = asked(str(site.jobfence), "check", "--config", f"{directory}/jobfence.conf", "--node", "other")
    expect_in("node           other", checked, "check --node")


def named(checked, key):
    """The value that check has of a key, if a line has it."""
    found = re.search(rf"(?:own, below [^:]*: (?:none of )?|\), ){key}=(.*?) \((Slurm's default|[^()]*:\d+)\)", checked, re.S)
    assert found, f"no {key}: {checked}"
    return found[1] if found[2] != "Slurm's default" else None
