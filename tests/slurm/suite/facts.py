# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose word counts (docs/facts.md): what a user can write for a step is fed to it, and never makes a limit higher."""

import re
from pathlib import Path

from contract.harness import case, expect, expect_equal, expect_in, logged, running
from ..harness import RAN, NOT_STARTED, expect_not_drained, expect_not_started
from .asked import TOLD, told, told_by
from .granted import accounted
from .sections import FEW, UNLIMITED, limit_of_batch, limit_of_srun, prologs

PAGE = Path(__file__).resolve().parents[3] / "docs" / "facts.md"
NONSENSE = "nonsense"
# What a user would like to be in; more than is granted; what is no number; longer than any answer of Slurm's.
FORGED = "free", "4096", "-1", "x" * 3000


def rows():
    """The variables of the table of what a step is told, each with what becomes of nonsense in it."""
    table = PAGE.read_text().split("\n### What a step is told\n")[1].split("\n### ")[0]
    found = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            keys, *_, word = line.strip("|").split(" | ")
            found |= {key.strip(" `"): word.strip() for key in keys.split(", ")}
    return {name: word for name, word in found.items() if not name.startswith("S_")}


def limits_of(group):
    return {"cpus": group.cpu_limit(), "memory": group.memory_limit(), "processes": group.processes_limit()}


def told_otherwise(said):
    """What a step is told of its limits, without where it is."""
    return {name: value for name, value in told(said).items() if name not in ("JOBFENCE_STEP", "JOBFENCE_CGROUP")}


@case(layout=False)
def forged_facts(site):
    """Nonsense of a user's is refused, or changes no limit: where OnError=warn bears everything else, too."""
    user = site.users[0]
    free = "".join(f"[{kind}=free]\nMaxProcesses=unlimited\nMode=observe\n" for kind in ("Partition", "Account", "QOS", "Node"))
    site.configure_raw(f"OnError=warn\nMaxProcesses=40\n{free}")
    words = rows()
    refused = [name for name, word in words.items() if word == "refused"]
    others = [name for name, word in words.items() if word != "refused"]
    expect(len(refused) == 18 and len(others) >= 10, f"the rows of {PAGE}: {words}")
    for name in refused:
        env = {name: NONSENSE}
        expect_not_started(site, user, site.submit(user, RAN, "-c1", "--mem=50", env=env))
        done = site.srun(user, "--mem=50", "touch", "ran.srun", env=env)
        expect(done.returncode != 0 and not (site.directory(user) / "ran.srun").exists(), f"the step has run with {env}")
        expect_in(NOT_STARTED, done.stderr, f"what srun says with {env}")
    usual = None
    for value in (None, *FORGED):
        # Behind the command's own look at its environment.
        export = "ALL" if value is None else ",".join(["ALL", *(f"{name}={value}" for name in others)])
        jobid, step = running(site, user, f"{TOLD}\nsleep 300", "-c1", "--mem=100", f"--export={export}")
        told_by(site, jobid)
        found = [limits_of(step), limits_of(step.parent), told_otherwise(site.output(jobid))]
        site.end(jobid)
        done = site.srun(user, "-c1", "--mem=100", f"--export={export}", "sh", "-c", TOLD)
        expect_equal(done.returncode, 0, f"exit status of srun with {value}, which says {done.stderr!r}")
        found.append(told_otherwise(done.stdout))
        usual = usual or found
        expect_equal(found, usual, f"limits with {str(value)[:20]} in {others}")
    expect_equal(usual[0]["processes"], 40, "processes")
    expect_not_drained(site)


BY_ACCOUNT = f"MaxProcesses={FEW}\n[Account=rich]\nMaxProcesses=unlimited\nMode=observe\n"


def claimed(site):
    """The kinds of sections that check names as the users' words."""
    said = site.command(str(site.jobfence), "check", "--config", str(site.config)).stdout
    found = re.search(r"(?m)^sections +under Slurm a job's user writes what (.*) ask for, .*\(AccountingStorageEnforce", said)
    return set(re.findall(r"\[(\w+)=", found[1])) if found else set()


@case(layout=False)
def account_that_nobody_checks(site):
    """Where slurmctld takes any account, it is the user's word, and the strictest holds."""
    user = site.users[0]
    with prologs(site):
        site.configure_raw(BY_ACCOUNT)
        mark = site.log_mark()
        for args in ([], ["-A", "rich"], ["-A", "poor"]):
            expect_equal(limit_of_batch(site, user, *args), FEW, f"processes of a job with {args}")
        logged(site, mark, r"not known \(Account\): the strictest .*\(AccountingStorageEnforce\)")
        # Unless a plugin of the site's checks it.
        site.configure_raw(f"TrustAccount=yes\n{BY_ACCOUNT}")
        expect_equal(limit_of_srun(site, user, "-A", "rich"), UNLIMITED, "processes of a trusted account")
        expect_equal(limit_of_srun(site, user, "-A", "poor"), FEW, "processes of another trusted account")
        expect_not_drained(site)


@case(on=("private",), layout=False, release=True)  # the units have each word
def account_that_slurmctld_checks(site):
    """With AccountingStorageEnforce=associations nobody has an account but its users. What a word means slurmctld itself says."""
    one, other = site.users[:2]
    site.configure_raw(f"{BY_ACCOUNT}[QOS=rich]\nMaxProcesses=unlimited\n")
    expect_equal(claimed(site), {"Account", "QOS"}, "what nobody checks without a database")
    with accounted(site) as records, site.reconfigured(**records.keys):
        for words in (["account", "rich"], ["account", "poor"], ["user", one, "account=rich"], ["user", other, "account=poor"]):
            done = site.command("sacctmgr", "--immediate", "add", *words)
            expect_equal(done.returncode, 0, f"sacctmgr add {words}: {done.stdout} {done.stderr}")
        for words in ("Limits,nosteps", "2", "safe", "wckeys", "nojobs", "QOS", "all"):
            with site.reconfigured(**records.keys, AccountingStorageEnforce=words):
                shown = site.command("scontrol", "show", "config").stdout
                checked = re.search(r"(?m)^AccountingStorageEnforce *= *(.*)$", shown)[1].split(",")
                wanted = {kind for kind, word in (("Account", "associations"), ("QOS", "qos")) if word not in checked}
                expect_equal(claimed(site), wanted, f"what nobody checks with {words}, which is {checked}")
        site.configure_raw(BY_ACCOUNT)
        with prologs(site, **records.keys, AccountingStorageEnforce="associations"):
            expect_equal(limit_of_srun(site, one, "-A", "rich"), UNLIMITED, "processes of the account's user")
            expect_equal(limit_of_srun(site, other), FEW, "processes of another account's user")
            done = site.srun(other, "--mem=50", "-A", "rich", "true")
            expect(done.returncode != 0, "slurmctld takes another's account")
