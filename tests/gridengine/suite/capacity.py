# SPDX-License-Identifier: GPL-2.0-or-later
"""What the load sensor says of the host, qmaster knows; what the JSV notes of a job, the host knows."""

import contextlib
import json
import re
import signal
from pathlib import Path

from contract import kernel
from contract.harness import MIB, case, expect, expect_equal, expect_in, expect_match, fenced, running
from contract.sites import until

from ..harness import reported
from ..hosts import HOSTS

JSV = "/usr/share/jobfence/gridengine/jsv"
SENSOR = "/usr/share/jobfence/gridengine/load-sensor"
QMASTER_LOG = "/var/spool/gridengine/qmaster/messages"
# As it lies beside the tests of a scheduler, where they run.
PAGE = Path(__file__).resolve().parents[2] / "jobfence/docs/install/gridengine.md"


@contextlib.contextmanager
def complexes_of(site, text):
    """For the time being, Grid Engine has these complexes."""
    before = site.command("qconf", "-sc").stdout
    given = site.home / "complexes"

    def change(text):
        given.write_text(text)
        site.qconf("-Mc", str(given))
    change(text)
    try:
        yield
    finally:
        change(before)


def size(text):
    """What qhost makes of bytes, with three decimals."""
    return float(text.rstrip("KMGT")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1], 1)


@case
def load_sensor(site):
    """qhost shows what 'jobfence host' says, also when execd was started again; what the site has to set is in the log."""
    site.configure("SlotMemory=mem_free\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], load_sensor=SENSOR):
        found = until(lambda: reported(site), 60, "the first report")
        expect_in("mem_free is no consumable: qmaster grants more of it than the host has", site.logged(), "what the sensor has logged")
        host = json.loads(site.command(str(site.jobfence), "host", "--json").stdout)
        expect_equal(float(found["jobfence_threads"]), float(host["ncpus"]), "threads")
        for name, bytes in ("jobfence_mem", host["mem_bytes"]), ("jobfence_vmem", host["vmem_bytes"]):
            expect(abs(size(found[name]) - bytes) <= 257 * MIB, f"{name}: {found[name]}, and 'jobfence host' says {bytes}")
        expect(0 <= float(found["jobfence_pressure"]) <= 100, f"jobfence_pressure: {found['jobfence_pressure']}")
        expect(size(found["jobfence_free"]) <= size(found["jobfence_mem"]), f"more is free than there is: {found}")
        site.stop_execd(signal.SIGTERM)
        site.start_execd()
        until(lambda: reported(site), 60, "a report to the new execd")
    return ", ".join(f"{name} {value}" for name, value in found.items())


@case
def applied(site):
    """'jobfence host --gridengine --apply' has qmaster grant what the host has, does nothing twice, and makes a new host an execution host."""
    def apply(*words):
        done = site.command(str(site.jobfence), "host", "--gridengine", "--apply", *words)
        return done.returncode, done.stdout, done.stderr

    def values(host):
        text = site.command("qconf", "-se", host).stdout
        return dict(word.split("=") for word in re.search(r"complex_values\s+(.*)", text.replace("\\\n", ""))[1].replace(" ", "").split(","))
    def expect_set(host, said):
        # What the system uses is something else each time.
        found = values(host)
        there_is = json.loads(site.command(str(site.jobfence), "host", "--json").stdout)
        expect_equal(dict(re.findall(rf"{host}: (\w+)=([^\s,]+)", said)), found, f"what {host} has")
        expect_equal(found["slots"], str(there_is["ncpus"]), "its slots")
        expect(abs(size(found["h_vmem"]) - there_is["mem_bytes"]) <= 1024 * MIB, f"its memory, of {there_is}: {found}")
    before = site.command("qconf", "-se", site.node).stdout
    other = "node7"
    hosts = HOSTS.read_text()
    HOSTS.write_text(f"{hosts}192.0.2.7 {other}\n")
    try:
        status, said, wrong = apply()
        expect_equal((status, wrong), (0, ""), f"what it says: {said}")
        expect_set(site.node, said)
        until(lambda: apply()[1].count("as before") == 2, 60, "a time when there is nothing to do")
        status, said, wrong = apply("--node", other)
        expect_equal((status, wrong), (0, ""), f"what it says of a new host: {said}")
        expect_in(f"{other}: is an execution host from now on\n", said, "what it says of a new host")
        expect_set(other, said)
        known = values(site.node)
        done = site.as_user("alice", [str(site.jobfence), "host", "--gridengine", "--apply", "--reserve", "1G"])
        expect(done.returncode == 1 and "denied" in done.stderr, f"a user's: {done.stdout}{done.stderr}")
        expect_equal(values(site.node), known, f"what {site.node} has then")
    finally:
        site.command("qconf", "-de", other)
        HOSTS.write_text(hosts)
        (site.home / "host").write_text("\n".join(line for line in before.splitlines() if not line.startswith(("load_values", "processors", " "))))
        site.qconf("-Me", str(site.home / "host"))


@case
def configured_for_one_host(site):
    """The page's command makes the configuration of a host that has none, and jobs there are fenced by that."""
    editor, line = site.home / "editor", f"shepherd_cmd {site.jobfence}"
    editor.write_text(f"#!/bin/sh\nsed -i '/^shepherd_cmd/d' \"$1\"\necho '{line}' >>\"$1\"\n")
    editor.chmod(0o755)
    command = re.search(r"(?m)^# (qconf \S+) node1\nshepherd_cmd ", PAGE.read_text())[1]
    with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd="none"):
        # On a host that has one, execd has made it.
        before = site.command("qconf", "-sconf", site.node).stdout
        if before:
            site.qconf("-dconf", site.node)
        try:
            site.environment["EDITOR"] = str(editor)
            site.qconf(*command.split()[1:], site.node)
            expect_match(rf"(?m)^shepherd_cmd +{site.jobfence}$", site.command("qconf", "-sconf", site.node).stdout, "its configuration")
            site.stop_execd(signal.SIGTERM)
            site.start_execd()
            jobid = site.submit("alice", "cat /proc/self/cgroup")
            site.wait(jobid)
            expect_in(f"/job_{jobid}/", site.output(jobid), "its cgroup")
        finally:
            del site.environment["EDITOR"]
            site.command("qconf", "-dconf", site.node)
            if before:
                (site.home / site.node).write_text(before)
                site.qconf("-Aconf", str(site.home / site.node))
    site.stop_execd(signal.SIGTERM)
    site.start_execd()
    return command


@case
def verified(site):
    """The JSV of the cluster notes other requests of memory, whatever the user has put there, and refuses a forgotten unit."""
    site.configure("SlotMemory=mem_free:job,h_vmem\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        forged = "-v", "JOBFENCE_REQUESTED=mem_free=1T"
        for amount in "90M", "0x5a00000":
            jobid = site.submit("alice", "sleep 1000", "-pe", "smp", "2", "-l", f"mem_free={amount},h_vmem=100M", *forged)
            expect_equal(fenced(site, jobid).parent.memory_limit(), 90 * MIB, f"the memory of a job with mem_free={amount}")
            site.end(jobid)
        # What it has noted would be untrue then.
        held = site.submit("alice", "true", "-h", "-l", "mem_free=90M")
        done = site.as_user("alice", ["qalter", "-l", "mem_free=1M", held])
        expect_in("jsv_allowed_mod", done.stdout + done.stderr, "what qalter says")
        expect_in("mem_free=90M", site.job(held)["hard resource_list"], "what the job asks for")
        site.qdel(held)
        done = site.as_user("alice", ["qsub", "-l", "h_vmem=200"], stdin="true\n")
        expect(done.returncode != 0, "a job with 200 bytes was taken")
        expect_in("jobfence: h_vmem=200 is 200 bytes", done.stdout + done.stderr, "what qsub says")


# The counts of qmaster for one slot, all slots and each host are in the unit tests; these are the ways that lead there.
COUNTED = "threads threads INT <= YES {} {} 0\nmem_own mem_own MEMORY <= YES {} {} 0\n"


@contextlib.contextmanager
def counted(site, threads, memory, *hosts):
    """Complexes of a site's own, each with how it counts and its default, and hosts that have some of both to give."""
    complexes = site.command("qconf", "-sc").stdout + COUNTED.format(*threads, *memory)
    given = "threads=9,mem_own=900M"
    with complexes_of(site, complexes), site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        site.forget_debits()
        try:
            for host in (site.node, *hosts):
                site.qconf("-aattr", "exechost", "complex_values", given, host)
            yield
        finally:
            site.forget_debits()
            for host in (site.node, *hosts):
                site.command("qconf", "-dattr", "exechost", "complex_values", given, host)


@case
def cpus_of_a_complex(site):
    """SlotCPUs names the complex by which jobs ask for CPUs: for each slot or for the job, as the complex says, also by a section alone."""
    asked = "-pe", "smp", "2", "-l", "threads=3"
    for per, consumable, cpus in ("", "YES", 6), ("", "JOB", 3), (":slot", "JOB", 6):
        site.configure(f"CPUsPerSlot=0.5\n[Queue=all.q]\nSlotCPUs=threads{per}\n")
        with counted(site, (consumable, 0), ("YES", 0)):
            jobid, group = running(site, "alice", "sleep 1000", *asked, "-v", "JOBFENCE_REQUESTED=threads=64")
            expect_equal(group.parent.cpu_limit(), float(cpus), f"CPUs by a consumable {consumable}, as threads{per}")
            site.end(jobid)
            jobid = site.submit("alice", "sleep 1000", "-pe", "smp", "2", "-v", "JOBFENCE_REQUESTED=threads=64")
            expect_equal(fenced(site, jobid).parent.cpu_limit(), 1.0, "CPUs of a job that asks for slots alone")
            site.end(jobid)
            done = site.as_user("alice", ["qsub", "-l", "threads=INFINITY"], stdin="true\n")
            expect(done.returncode != 0, "a job with CPUs without end was taken")


@case
def debited_by_default(site):
    """A job that does not ask for a consumable has what qmaster debits: the complex's default, where somebody has some to give."""
    site.configure("SlotCPUs=threads\nSlotMemory=mem_own\n")
    with counted(site, ("YES", 2), ("JOB", "90M")):
        jobid, group = running(site, "alice", "sleep 1000", "-pe", "smp", "2")
        said = site.command("qstat", "-F", "threads,mem_own", "-q", "all.q").stdout
        for free in "hc:threads=5", "hc:mem_own=810":
            expect_in(free, said, "what qmaster has left")
        expect_equal(group.parent.cpu_limit(), 4.0, "CPUs by default")
        expect_equal(group.parent.memory_limit(), 90 * MIB, "memory by default")
        site.end(jobid)


# A JSV as Grid Engine's manual has it, with its library for the shell.
THEIRS = """#!/bin/bash
. /usr/share/gridengine/util/resources/jsv/jsv_include.sh
jsv_on_start() { jsv_send_env; }
jsv_on_verify() {
    case $(jsv_get_env WISH) in
    refuse) jsv_reject "the site says no"; return;;
    more) jsv_sub_add_param l_hard mem_free 80M; jsv_set_param A lab; jsv_correct "so it is"; return;;
    silent) exec sleep 900;;
    esac
    jsv_accept "fine"
}
jsv_main
"""


@case
def beside_another_jsv(site):
    """A site's own JSV is asked first: what it changes counts, what it refuses is refused, and nobody waits for it for ever."""
    theirs, url = site.home / "theirs", site.home / "verify"
    theirs.write_text(THEIRS)
    url.write_text(f"#!/bin/sh\nexec {site.jobfence} jsv --timeout 3 -- {theirs}\n")
    for script in theirs, url:
        script.chmod(0o755)
    site.configure("SlotMemory=mem_free:host\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{url}"):
        for wish, asked, mib in ("more", "70M", 80), ("none", "70M", 70):
            jobid = site.submit("alice", "sleep 1000", "-l", f"mem_free={asked}", "-v", f"WISH={wish}")
            expect_equal(fenced(site, jobid).parent.memory_limit(), mib * MIB, f"memory of a job with {wish}")
            expect_in(f"mem_free={mib}M", site.job(jobid)["hard resource_list"], "what qmaster grants")
            expect_equal(site.job(jobid).get("account") == "lab", wish == "more", "what it has changed besides")
            site.end(jobid)
        for wish, why in ("refuse", "the site says no"), ("silent", "does not answer. Try again later."), ("refuse", "the site says no"):
            done = site.as_user("alice", ["qsub", "-v", f"WISH={wish}"], stdin="true\n")
            expect(done.returncode != 0, f"a job with {wish} was taken")
            expect_in(why, done.stdout + done.stderr, f"what qsub says of {wish}")
        said = site.command(str(site.jobfence), "check").stdout
        expect_in(f"gridengine     jsv_url is script:{url}\n", said, "what check says of a script that runs ours")
        # A path that names us is not us.
        other = site.home / "jobfence-jsv"
        other.write_text(THEIRS)
        other.chmod(0o755)
        with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{other}"):
            said = site.command(str(site.jobfence), "check").stdout
        expect_in(f"jsv_url of Grid Engine is script:{other}, which is not seen to run 'jobfence jsv'", said, "what check says of another")


@case
def submitted_with_a_mistake(site):
    """A mistake in the configuration, or a file that the JSV cannot read, keeps nobody from submitting; qmaster logs it."""
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        for mistake, why in ("MaxProceses=5\n", "MaxProceses"), (None, "ermission denied"):
            site.configure(mistake or "SlotMemory=mem_free:job\n")
            before = len(kernel.read(QMASTER_LOG))
            if mistake is None:
                site.config.chmod(0o600)
            # Held, since the hosts have the same mistake.
            done = site.as_user("alice", ["qsub", "-terse", "-h", "-l", "mem_free=90M"], stdin="true\n")
            expect_equal(done.returncode, 0, f"the status of qsub ({done.stdout}{done.stderr})")
            jobid = done.stdout.strip()
            site.submitted.append(("alice", jobid))
            expect_in("JOBFENCE_REQUESTED=mem_free=90M", site.job(jobid)["env_list"], "what is noted")
            told = r"(?m)^.*\|W\|jobfence: .*" + why
            until(lambda: re.search(told, kernel.read(QMASTER_LOG)[before:]), 60, f"a warning of {why} in qmaster's log")
            site.qdel(jobid)


@case
def forged_requests(site):
    """A newline in an argument looks like a line of the JSV's protocol: such a job is refused, and the next one is not."""
    script = site.directory("alice") / "script"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    site.configure("SlotMemory=mem_free:job,h_vmem\n")
    with site.changed(["-sconf", "global"], ["-Mconf"], jsv_url=f"script:{JSV}"):
        for argument in "x\nPARAM l_hard mem_free=1T", "x\nPARAM j n\nPARAM l_hard mem_free=1T", "x\nBEGIN", "x\nQUIT":
            done = site.as_user("alice", ["qsub", "-terse", "-cwd", "-l", "mem_free=90M", "script", argument])
            if done.returncode == 0:
                site.submitted.append(("alice", done.stdout.strip()))
            expect(done.returncode != 0, f"a job with {argument!r} was taken: {site.job(done.stdout.strip())}")
            expect_in("jobfence: there is a newline in a name, a path or an argument of the job", done.stdout + done.stderr, f"what qsub says of {argument!r}")
            jobid = site.submit("alice", "sleep 1000", "-l", "mem_free=90M")
            expect_equal(fenced(site, jobid).parent.memory_limit(), 90 * MIB, "the memory of the next job")
            site.end(jobid)
        done = site.as_user("alice", ["qrsh", "-now", "no", "-l", "mem_free=90M", "echo", "two", "words"])
        expect_equal(done.stdout.strip(), "two words", f"what an interactive job says ({done.stderr})")
        done = site.as_user("alice", ["qsub", "-v", "JOBFENCE_CPU_LIMIT=half"], stdin="true\n")
        expect(done.returncode != 0, "a job with half of what is no number was taken")
        expect_in('jobfence: JOBFENCE_CPU_LIMIT: found "half", expected a number of CPUs', done.stdout + done.stderr, "what qsub says")


@contextlib.contextmanager
def project(site, name):
    given = site.home / "project"
    given.write_text(f"name {name}\noticket 0\nfshare 0\nacl NONE\nxacl NONE\n")
    site.qconf("-Aprj", str(given))
    try:
        yield
    finally:
        site.command("qconf", "-dprj", name)


def unknown_names(site):
    """What check says that sections name and qmaster does not know."""
    return re.findall(r"(?m)^section +(.*: there is no .*)$", site.command(str(site.jobfence), "check").stdout)


@case
def names_that_qmaster_knows(site):
    """'jobfence check' asks qmaster for the queues, projects and parallel environments that sections name."""
    of_projects = "[Project=biology,biologie]\nMaxProcesses=9\n"
    site.configure(f"[Queue=all.q,al.q]\nMaxProcesses=9\n{of_projects}[PE=smp,mpj,mpi]\nMaxProcesses=9\n[PE=mpi]\nMaxProcesses=8\n")
    others = ["[Queue=all.q,al.q]: there is no partition or queue al.q; did you mean all.q?",
              "[PE=smp,mpj,mpi]: there is no parallel environment mpj; did you mean mpi?"]
    with project(site, "biology"):
        expect_equal(unknown_names(site),
                     [others[0], "[Project=biology,biologie]: there is no project biologie; did you mean biology?", others[1]],
                     "the names that are not there")
    # Without any project, none of these is there.
    expect_equal(unknown_names(site),
                 [others[0], *(f"[Project=biology,biologie]: there is no project {name}" for name in ("biology", "biologie")), others[1]],
                 "the names that are not there, without any project")


@case
def checked(site):
    """'jobfence check' says what Grid Engine starts, and what is missing of the rest."""
    def verdict():
        done = site.command(str(site.jobfence), "check")
        return done.returncode, done.stdout
    status, said = verdict()
    expect_equal(status, 0, f"the status of a good check ({said})")
    healthy = site.command(str(site.jobfence), "check", "--health", "--within", "60")
    expect(healthy.returncode == 0 and healthy.stdout.startswith("ok: jobfence "), f"what a health check says of it: {healthy.stdout}")
    expect_in("gridengine     load_sensor is none: qmaster does not learn", said, "what is missing")
    for lacking in "complexes", "consumable":
        expect(lacking not in said, f"all complexes are as they should be: {said}")
    complexes = site.command("qconf", "-sc").stdout
    # qmaster keeps a complex that a host has reported, so what is said of missing ones is tested with the command's units.
    with complexes_of(site, re.sub(r"(?m)^h_vmem .*$", "h_vmem h_vmem MEMORY <= YES NO 0 0", complexes)):
        said = verdict()[1]
        expect_in("h_vmem is no consumable: qmaster grants more of it than the host has\n", said, "what is no grant")
    site.qconf("-mattr", "exechost", "complex_values", "h_vmem=99T", site.node)
    try:
        expect_in("gridengine     h_vmem=99T of this host is more than jobs can have", verdict()[1], "what is more than the host has")
        # Less than any host of the tests has.
        site.qconf("-mattr", "exechost", "complex_values", "h_vmem=100M", site.node)
        said = verdict()[1]
        expect("more than jobs can have" not in said, f"what is no more than the host has: {said}")
    finally:
        site.qconf("-mattr", "exechost", "complex_values", "h_vmem=1500M", site.node)
    with site.changed(["-sconf", "global"], ["-Mconf"], load_sensor=SENSOR, jsv_url=f"script:{JSV}", jsv_allowed_mod="ac,l_hard,N"):
        expect("jsv_allowed_mod" not in verdict()[1], "what qalter changes matters to h_vmem")
        site.configure("SlotMemory=mem_free\n")
        status, said = verdict()
        expect_equal(status, 0, f"the status with the JSV ({said})")
        expect_in("jsv_allowed_mod has l_hard: after 'qalter -l' a job has other limits than it was granted\n", said, "what users may change")
        expect_in("mem_free is no consumable", said, "what is no grant")
    status, said = verdict()
    expect(status == 1 and "NO job would be fenced here as configured: jsv_url of Grid Engine is none" in said, said)
    site.configure()
    with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd="none"):
        status, said = verdict()
        healthy = site.command(str(site.jobfence), "check", "--health", "--within", "60")
        expect(healthy.returncode == 1 and healthy.stdout.startswith("unfenced: "), f"what a health check says of it: {healthy.stdout}")
    expect(status == 1 and "NO job would be fenced here: shepherd_cmd of Grid Engine is none, and not jobfence" in said, said)
    gone = site.home / "jobfence"
    for why in "and no such file is here", "which is not executable":
        with site.changed(["-sconf", "global"], ["-Mconf"], shepherd_cmd=str(gone)):
            status, said = verdict()
        expect(status == 1 and f"NO job would be fenced here: shepherd_cmd of Grid Engine is {gone}, {why}" in said, said)
        gone.touch(mode=0o644)

    # execd reads it again with its next report.
    def is_fenced():
        jobid = site.submit("alice", "cat /proc/self/cgroup")
        site.wait(jobid)
        return f"/job_{jobid}/" in site.output(jobid)
    until(is_fenced, 60, "a job with a fence")
