# SPDX-License-Identifier: GPL-2.0-or-later
"""What the starter does for itself, beside the job: files that it transfers, by HTCondor's own way and by plugins, both ways."""

import contextlib
import subprocess

from contract import kernel
from contract.harness import MIB, PYTHON, TAKE, WAIT, case, expect, expect_equal, fenced, let_go, running, uid
from contract.sites import until

from ..harness import expect_limits, restarts

# More than the slot has, and more than what the starter had of the fence once.
FILE_MIB = 130
# Of the site's: it has so much memory as plugins for some storages have.
PLUGIN = f"""#!{PYTHON}
import re, sys
if sys.argv[1:] == ["-classad"]:
    print('PluginVersion = "0.2"\\nPluginType = "FileTransfer"\\nSupportedMethods = "large"\\nMultipleFileSupport = true')
    sys.exit()
words = dict(zip(sys.argv[1:-1], sys.argv[2:]))
memory = bytes([1]) * (250 << 20)
with open(words["-infile"]) as asked, open(words["-outfile"], "w") as done:
    text = asked.read()
    for name, url in zip(re.findall('LocalFileName *= *"([^"]*)"', text), re.findall('Url *= *"([^"]*)"', text)):
        if "-upload" not in sys.argv:
            open(name, "w").write("fetched")
        done.write(f'[ TransferSuccess = true; TransferFileName = "{{name}}"; TransferUrl = "{{url}}"; TransferTotalBytes = 7; ]\\n')
"""


def transferred(site):
    """A job in a small slot gets a large file, and gives it back. It begins once."""
    given = site.directory("alice") / "large"
    given.write_bytes(bytes(FILE_MIB * MIB))
    script = f"[ $(stat -c %s large) = {FILE_MIB * MIB} ] || exit 3; mv large back; exit 0"
    files = {"should_transfer_files": "YES", "transfer_input_files": given, "transfer_output_files": "back"}
    jobid = site.submit("alice", script, mib=40, **files)
    ad = site.wait(jobid, 300)
    expect_equal((ad["ExitCode"], ad["NumShadowStarts"]), (0, 1), "ExitCode, and how often it began")
    back = site.directory("alice") / "back"
    expect_equal(back.stat().st_size, FILE_MIB * MIB, "what has come back")
    back.unlink()
    given.unlink()


@case(release=True)  # transfer_into_a_tmpfs moves as much
def transfer(site):
    """A large file into a small slot and back, where the sandbox is on a disk."""
    transferred(site)


@contextlib.contextmanager
def sandboxes_in_memory(site):
    place = site.home / "execute"
    place.mkdir()
    # The startd takes no directory of another user's.
    options = f"size=700m,mode=755,uid={uid('condor')}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
    try:
        with site.changed(restart=True, EXECUTE=place):
            yield
            until(lambda: not list(place.glob("dir_*")), 60, "the end of all sandboxes")
    finally:
        site.restored()
        subprocess.run(["umount", "--lazy", place], check=True)


@case
@restarts
def transfer_into_a_tmpfs(site):
    """What the starter writes into a sandbox in memory is no memory of the job's, which has the slot's as its own limit."""
    with sandboxes_in_memory(site):
        transferred(site)
        if not site.HTCONDOR_LIMITS_MEMORY:
            return
        jobid = site.submit("alice", f"{TAKE % (90, 1)}; echo status $?", mib=40, should_transfer_files="YES")
        expect(site.held_or_ended(jobid) or "status 0" not in site.output(jobid), "it had twice its memory")


@case
def transfer_by_a_plugin(site):
    """A plugin that has more memory than the slot brings a file, and takes one away."""
    plugin = site.home / "plugin"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    files = {"should_transfer_files": "YES", "transfer_input_files": "large://host/file", "transfer_output_files": "out",
             "output_destination": "large://host/"}
    with site.changed(ENABLE_URL_TRANSFERS=True, FILETRANSFER_PLUGINS=plugin):
        jobid = site.submit("alice", "[ $(cat file) = fetched ] || exit 3; touch out", mib=100, **files)
        expect_equal(site.wait(jobid, 300)["ExitCode"], 0, "ExitCode")


@case
def memory_as_the_site_says(site):
    """Where HTCondor limits memory by an expression of the site's, that is the limit, and jobfence has none of its own."""
    with site.changed(CGROUP_MEMORY_LIMIT_POLICY="custom", CGROUP_HARD_MEMORY_LIMIT_EXPR="2 * MY.Memory"):
        jobid, group = running(site, "alice", f"{WAIT}; {TAKE % (190, 1)}; echo status $?", mib=110)
        expect_equal(group.memory_limit(), None, "the fence's limit")
        own = [kernel.read(path).strip() for path in group.directory("").rglob("memory.max")]
        expect(str(220 * MIB) in own and str(110 * MIB) not in own, f"the limits below it: {own}")
        let_go(site, jobid)
        site.wait(jobid)
        expect_equal(site.output(jobid).split(), ["status", "0"], "what it says")
        # Unless jobfence.conf has one for jobs to which nothing was granted. It is the job's alone.
        site.configure("DefaultRAMSpace=150M\nStarterMemory=64M\n")
        jobid, group = running(site, "alice", "sleep 1000", mib=110)
        expect_equal(group.memory_limit(), (150 + 64) * MIB, "the fence's limit")
        expect_equal(group.step("htcondor").memory_limit(), 150 * MIB, "the job's part of it")


@case(release=True)  # transfer_by_a_plugin has the default
def room_of_the_starter(site):
    """StarterMemory is what the starter has beside the slot."""
    site.configure("StarterMemory=64M\n")
    jobid = site.submit("alice", "sleep 1000", mib=100)
    expect_equal(fenced(site, jobid).memory_limit(), (100 + 64) * MIB, "the fence's limit")
    site.configure()
    jobid = site.submit("alice", "sleep 1000", mib=100)
    expect_limits(site, fenced(site, jobid), site.slot(jobid))
