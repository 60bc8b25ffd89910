# SPDX-License-Identifier: GPL-2.0-or-later
"""'jobfence setup' on a host with MoM and the server: hooks that are there already, and an upgrade."""

from contract.commands import set_up_here, setup
from contract.harness import case, expect, expect_in


@case(on=("private",))
def set_up_beside_others(site):
    """Nothing is done beside PBS's own hook for cgroups, or another hook of this name."""
    with site.not_set_up():
        site.qmgr("set hook pbs_cgroups enabled = true")
        said = setup(site, 1, "--central")
        site.qmgr("set hook pbs_cgroups enabled = false")
        expect_in("the hook pbs_cgroups is enabled", said, "what it says")
        site.qmgr("create hook jobfence")
        expect_in("the server has another hook named jobfence", setup(site, 1, "--central"), "what it says")
        expect_in("Hook jobfence\n", site.what_setup_changes()[0], "the hooks then")
        site.qmgr("delete hook jobfence")


@case(on=("private",))
def upgraded(site):
    """An upgrade brings another program, and --undo takes back both. Without --central it leaves what is the server's."""
    with set_up_here(site):
        program = site.home / "share/pbs/jobfence.py"
        program.write_text(program.read_text() + "# of another release\n")
        site.qmgr("set hook jobfence order = 7")
        setup(site, 2, "--central")
        has = site.command("qmgr", "-c", "export hook jobfence application/x-python default").stdout
        expect(has.endswith("# of another release\n"), "the hook has not the new program")
        expect_in("order = 7", site.command("qmgr", "-c", "list hook jobfence").stdout, "the attributes of the site")
        expect_in("qmgr -c 'create hook jobfence'", setup(site, 3, "--undo"), "what it leaves")
        expect("jobfence" in site.what_setup_changes()[0], "the hook is gone from all hosts")
