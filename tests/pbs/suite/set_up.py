# SPDX-License-Identifier: GPL-2.0-or-later
"""'jobfence setup' on a host with MoM and the server."""

import shutil

from contract import sites
from contract.harness import case, expect, expect_equal, expect_in, expect_match, logged_in, running

from ..harness import ask, unfenced


def installed(site):
    """What 'make install' puts below share/jobfence, for this site."""
    data = site.home / "share"
    shutil.copytree(site.shipped, data / "pbs", dirs_exist_ok=True)
    file = data / "pbs/jobfence.CF"
    sites.write_atomically(file, sites.with_keys(file.read_text(), site.hook_settings()))
    return data


def hooks(site):
    """What the server has, and who made it."""
    return site.command("qmgr", "-c", "list hook").stdout


@unfenced
@case(on=("private",))
def set_up(site):
    """It shows what is the server's, has it done with --central, then does nothing, and takes all of it back."""
    data, journal = installed(site), site.home / "setup"

    def setup(*words):
        places = "--data", str(data), "--journal", str(journal)
        done = site.command(*logged_in("alice"), str(site.jobfence), "setup", "--any-program", "--scheduler", "openpbs", *places, *words, timeout=120)
        return done.returncode, done.stdout + done.stderr
    before = hooks(site)
    site.qmgr("set hook pbs_cgroups enabled = true")
    status, said = setup("--central")
    site.qmgr("set hook pbs_cgroups enabled = false")
    expect_equal(status, 1, f"the status beside pbs_cgroups: {said}")
    expect_in("the hook pbs_cgroups is enabled", said, "what it says")
    site.qmgr("create hook jobfence")
    status, said = setup("--central")
    expect_equal(status, 1, f"the status beside another hook of this name: {said}")
    expect_in("the server has another hook named jobfence", said, "what it says")
    expect_in("Hook jobfence\n", hooks(site), "the hooks then")
    site.qmgr("delete hook jobfence")
    status, said = setup()
    expect_equal(status, 1, f"the status of what is the server's: {said}")
    expect_in("qmgr -c 'create hook jobfence'", said, "what it shows")
    expect_equal(hooks(site), before, "the hooks then")
    status, said = setup("--central")
    expect_equal(status, 2, f"the status of --central: {said}")
    expect_match(r"(?m)^set up .*: job \d+\.\S+ ran in .*/job_\d+", said, "its last line")
    site.hooks.add("jobfence")
    site._until_copied("jobfence")
    jobid, group = running(site, "alice", "sleep 1000", ask(1, 100))
    site.expect_limits(group, 1, 100)
    site.end(jobid)
    for words in [], ["--central"]:
        status, said = setup(*words)
        expect_equal(status, 0, f"the status of the second time, {words}: {said}")
    # An upgrade brings another program, and --undo takes back both.
    program = data / "pbs/jobfence.py"
    program.write_text(program.read_text() + "# of another release\n")
    site.qmgr("set hook jobfence order = 7")
    status, said = setup("--central")
    expect_equal(status, 2, f"the status after an upgrade: {said}")
    has = site.command("qmgr", "-c", "export hook jobfence application/x-python default").stdout
    expect(has.endswith("# of another release\n"), "the hook has not the new program")
    expect_in("order = 7", site.command("qmgr", "-c", "list hook jobfence").stdout, "the attributes of the site")
    status, said = setup("--undo")
    expect_equal(status, 3, f"the status of --undo, which leaves what is the server's: {said}")
    expect_in("qmgr -c 'create hook jobfence'", said, "what it leaves")
    expect("jobfence" in hooks(site), "the hook is gone from all hosts")
    status, said = setup("--undo", "--central")
    expect_equal(status, 2, f"the status of --undo: {said}")
    expect_equal(hooks(site), before, "the hooks then")
    site.hooks.discard("jobfence")
    expect_equal(setup("--undo", "--central")[0], 0, "the status of the second --undo")
    expect(not journal.exists(), "the journal is left")
