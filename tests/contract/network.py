# SPDX-License-Identifier: GPL-2.0-or-later
"""What jobs send to another network namespace, under each scheduler: NetworkAccounting and NetworkMax. tests/network.rs has more of it,
without a scheduler and without the qdisc fq.

The figures are the kernel's: what arrives, what the interface counts, and what TCP says of its connections. All jobs send by one interface,
and nothing else of the guest does.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time

from . import kernel
from .harness import MIB, PYTHON, WAIT, Skip, case, expect, expect_equal, expect_in, expect_match, running
from .sites import die_with_parent, until

# Of documentation (RFC 5737). A guest's own address is of another such block.
HERE, THERE = "198.51.100.1", "198.51.100.2"
NAME, PEER = "jftest0", "jftest1"
FREE, BOUNDED = 5000, 5001  # ports
# Takes all that arrives at a port, and notes when, and how much that is by then.
RECEIVES = """
import socket, sys, threading, time
server, lock, total, noted = socket.create_server((sys.argv[1], int(sys.argv[2]))), threading.Lock(), 0, 0
file = open(sys.argv[3], "w", buffering=1)
def take(connection):
    global total, noted
    place = bytearray(1 << 18)
    while length := connection.recv_into(place):
        with lock:
            total += length
            if (now := time.monotonic()) > noted + 0.05:
                noted = now
                print(now, total, file=file)
print("ready", flush=True)
while True:
    threading.Thread(target=take, args=server.accept()[:1], daemon=True).start()
"""
# Sends to a port, by so many connections, so many bytes in a second: 0 for as many as it can. What it could not send in time it sends later.
SENDS = f"""{PYTHON} -S -c '
import socket, sys, threading, time
port, connections, rate = map(int, sys.argv[1:])
def send():
    connection, some = socket.create_connection(("{THERE}", port)), bytes(1 << 20)
    begun, sent = time.monotonic(), 0
    while True:
        if rate and (early := sent / rate - (time.monotonic() - begun)) > 0:
            time.sleep(early)
        connection.sendall(some)
        sent += len(some)
for _ in range(connections):
    threading.Thread(target=send).start()
' %d %d %d; """ + WAIT
# A bound is this part of what the machine can send, and the job beside it sends so many times the bound: there is time for both.
PART, TIMES = 32, 2
# So long a rate is measured. Before that, what may leave at once after a rest has left: so much of the bound, in seconds.
SECONDS, AT_FIRST, AT_ONCE = 10, 2, 0.3
WAYS = "sent", "received"


class Link:
    """A pair of interfaces to a network namespace, in which a process for each port takes what arrives."""

    def __init__(self, site, stack):
        self.site, self.logs = site, {}
        holder = self.start(stack, "unshare", "--net", "sh", "-c", "echo ready; exec sleep 100000")
        space = "nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"
        self.root("ip", "link", "add", NAME, "type", "veth", "peer", "name", PEER, "netns", str(holder.pid))
        # With the namespace it would go, too, but later.
        stack.callback(subprocess.run, ["ip", "link", "delete", NAME], check=False)
        backlog = "net.core.netdev_max_backlog"
        stack.callback(self.root, "sysctl", "-qw", f"{backlog}={self.root('sysctl', '-n', backlog).strip()}")
        self.root("sysctl", "-qw", f"{backlog}=100000")
        for before, name, address in ((), NAME, HERE), ((*space, "unshare", "--mount"), PEER, THERE):
            # One processor takes what arrives, as from a line: with two, a later packet can be first, which TCP takes for a loss.
            mount = "mount -t sysfs none /sys && " if before else ""
            self.root(*before, "sh", "-c", f"{mount}echo 1 >/sys/class/net/{name}/queues/rx-0/rps_cpus")
            # Nothing but TCP, and ARP.
            self.root(*before, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
            self.root(*before, "ip", "address", "add", f"{address}/24", "dev", name)
            self.root(*before, "ip", "link", "set", name, "up")
        for port in FREE, BOUNDED:
            self.logs[port] = site.home / f"arrived.{port}"
            self.start(stack, *space, PYTHON, "-S", "-c", RECEIVES, THERE, str(port), str(self.logs[port]))

    def start(self, stack, *words):
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        stack.callback(process.communicate)
        stack.callback(process.kill)
        expect_equal(process.stdout.readline(), b"ready\n", f"what {words} says")
        return process

    def root(self, *words):
        done = self.site.command(*words)
        expect_equal((done.returncode, done.stderr), (0, ""), f"exit status and stderr of {' '.join(words)}")
        return done.stdout

    def of_queue(self, pattern):
        """A counter of the queue's."""
        return int(expect_match(pattern, self.root("tc", "-s", "qdisc", "show", "dev", NAME), "tc")[1])

    def connections(self, port):
        return self.root("ss", "-tinOH", "state", "established", "dst", f"{THERE}:{port}").splitlines()

    def lost(self, port):
        """How many segments TCP has sent, and how many of them were lost: those that it has sent again, but for those that then arrived
        twice. An emulated machine can be so late that TCP takes for lost what is not."""
        lines = self.connections(port)
        sent, again, twice = (sum(int(found) for line in lines for found in re.findall(rf"\b{pattern}(\d+)", line))
                              for pattern in ("data_segs_out:", r"retrans:\d+/", "dsack_dups:"))
        return sent, again - twice

    def arrived(self, port):
        """Moments, and how many bytes had arrived by then."""
        # The last line may be a half.
        lines = kernel.read(self.logs[port]).split("\n")[:-1]
        return [(float(moment), int(count)) for moment, count in map(str.split, lines)]

    def arrives(self, *ports, seconds=SECONDS):
        """For each port the bytes in a second, from now on and over so long a time."""
        begun = time.monotonic()

        def over():
            found = [[one for one in self.arrived(port) if one[0] >= begun] for port in ports]
            return found if all(one and one[-1][0] - one[0][0] >= seconds for one in found) else None
        ends = [(one[0], one[-1]) for one in until(over, 60, f"what arrives at {ports} in {seconds} seconds")]
        return [(last - first) / (end - start) for (start, first), (end, last) in ends]

    def counted(self):
        """What the kernel counts of the interface: bytes of IP packets, sent and received."""
        def statistic(name):
            return int(kernel.read(f"/sys/class/net/{NAME}/statistics/{name}"))
        # The head of a frame is in the bytes.
        return [statistic(f"{way}_bytes") - 14 * statistic(f"{way}_packets") for way in ("tx", "rx")]


def are_close(ones, others):
    """But for what ends the connections of a program that was killed: it may come after a look."""
    return len(ones) == len(others) and all(abs(one - other) < 1000 for one, other in zip(ones, others))


def holds(site, text):
    """jobfence.service has read this, and has seen by what interfaces queue."""
    site.configure_raw(f"NetworkAccounting=yes\nSampleInterval=1\nReapInterval=1\n{text}")
    restart(site)


def restart(site):
    done = site.command("systemctl", "restart", "jobfence.service", timeout=60)
    expect_equal(done.returncode, 0, f"the restart of jobfence.service ({done.stderr})")


def as_before(site):
    site.configure()
    restart(site)


class Figures:
    """What jobfence has of jobs that send no more, beside what the kernel counts of their interface from now on."""

    def __init__(self, site, link, metrics):
        self.site, self.link, self.metrics, self.begun, self.jobs, self.said = site, link, metrics, link.counted(), {}, ""

    def take(self, *jobids):
        """Waits until the figures of all jobs so far are those of the interface. These send no more."""
        before, stamp, written = None, None, 0

        def are_the_same():
            nonlocal before, stamp, written
            last, stamp = stamp, self.metrics.stat().st_mtime_ns
            written += stamp != last
            for jobid in jobids:
                status, said = self.site.ours("show", "--json", self.name(jobid))
                expect_equal(status, 0, f"exit status of 'jobfence show' ({said})")
                shown = json.loads(said)["fences"][0]["network"]["interfaces"].get(NAME, {})
                self.jobs[self.name(jobid)] = [shown.get(f"{way}_bytes", 0) for way in WAYS]
            ours = list(map(sum, zip(*self.jobs.values())))
            theirs = [now - begun for now, begun in zip(self.link.counted(), self.begun)]
            self.said = f"{ours} bytes sent and received by jobs, and {theirs} by the interface"
            # The last acknowledgements of a connection are no socket's any more, and ARP is nobody's. So the figures of a sample before the
            # last bytes can be close enough, too. There is a sample between two files of metrics, if both intervals are a second.
            if self.jobs != before:
                before, written = dict(self.jobs), 0
            return written > 2 and all(abs(one - other) <= other / 1000 + 10_000 for one, other in zip(ours, theirs))
        until(are_the_same, 20, lambda: f"the same figures: {self.said}")

    def name(self, jobid):
        return self.site.directory_of(jobid).removeprefix("job_")

    def expect_metrics(self, jobid, file):
        """The file of metrics says the same of a job that runs."""
        pattern = rf'^jobfence_job_network_bytes_total{{.*jobid="{re.escape(self.name(jobid))}".*interface="{NAME}",direction="%s"}} (\d+)$'

        def found():
            text = kernel.read(file)
            return [int(one) for way in WAYS for one in re.findall(pattern % way, text, re.M)]
        until(lambda: are_close(found(), self.jobs[self.name(jobid)]), 20, lambda: f"the job's figures in the file of metrics, which has {found()}")

    def expect_logged(self, file):
        """The log has a line of each job, and no other line."""
        def found():
            return {line["job"]: [line["interfaces"].get(NAME, {}).get(f"{way}_bytes", 0) for way in WAYS]
                    for line in map(json.loads, kernel.read(file).splitlines())}

        def are_the_same(logged):
            return logged.keys() == self.jobs.keys() and all(are_close(logged[job], self.jobs[job]) for job in logged)
        until(lambda: are_the_same(found()), 20, lambda: f"a line of each job: {self.jobs}; the log has {found()}")


def signals(site, jobid, number):
    """A signal for the job's program."""
    for pid in site.job_pids(jobid, "socket"):
        os.kill(pid, number)


def stops(site, link, jobid, port):
    """What the job has given to the kernel arrives, and it sends no more. Its connections stay, until it is killed: a scheduler that ends
    the job lets it go on for a moment."""
    signals(site, jobid, signal.SIGSTOP)
    until(lambda: not re.search("unacked:|notsent:", "".join(link.connections(port))), 60, f"the end of what job {jobid} sends")


def rates(link, bound, least):
    """Parts of the bound that both jobs send. Never more than may leave, and once in three times this part: an emulated machine can be late."""
    tries = []
    for _ in range(3):
        one, other = (rate / bound for rate in link.arrives(BOUNDED, FREE))
        tries.append((one, other))
        expect(one <= 1 + AT_ONCE / SECONDS, f"{one:.3f} of the bound have arrived")
        if one >= least and other >= 0.95 * TIMES:
            return one, other
    raise AssertionError(f"parts of the bound that arrived from the bounded job, and from the one that sends {TIMES} times as much: {tries}")


@case(on=["installed"], release=True)
def network_bounded(site):
    """A job sends as fast as it may and no faster, with fq without a loss. The job beside it is not slowed. Their figures are the interface's."""
    free, bounded = site.users
    log, metrics = site.home / "log/usage.jsonl", site.home / "jobfence.prom"
    keys = f"UsageLog={log}\nMetricsFile={metrics}\n"
    with contextlib.ExitStack() as stack:
        stack.callback(as_before, site)
        link = Link(site, stack)
        holds(site, keys)
        figures = Figures(site, link, metrics)
        jobid, group = running(site, free, SENDS % (FREE, 1, 0), cpus=1, mib=100)
        if "" not in kernel.hierarchies() or "" in group.slurms:
            raise Skip("here nothing sees what a job sends: network_bound_is_refused")
        until(lambda: link.arrived(FREE), 60, "first bytes")
        rate, = link.arrives(FREE, seconds=5)
        stops(site, link, jobid, FREE)
        signals(site, jobid, signal.SIGKILL)
        figures.take(jobid)
        site.end(jobid)
        kib = int(rate / PART) // 1024
        keys += f"[User={bounded}]\nNetworkMax={kib}K\n"
        said = [f"of {rate / MIB:.0f} MiB/s {kib / 1024:.1f} may leave"]
        beside, _ = running(site, free, SENDS % (FREE, 1, TIMES * kib * 1024), cpus=1, mib=100)
        # Without the pacing of fq's own, only what has a time waits there.
        for *qdisc, connections in ("fq", "nopacing", 1), ("fq", 4), ("noqueue", 1), ("noqueue", 4):
            link.root("tc", "qdisc", "replace", "dev", NAME, "root", *qdisc)
            holds(site, keys)
            _, words = site.ours("check")
            how = "waits there (fq)" if "fq" in qdisc else f"{NAME} has no queue: what a job sends too fast is refused there"
            expect_in(how, words, "what 'jobfence check' says")
            jobid, _ = running(site, bounded, SENDS % (BOUNDED, connections, 0), cpus=1, mib=100)
            until(lambda: len(link.connections(BOUNDED)) == connections, 60, "its connections")
            time.sleep(AT_FIRST)
            # Where nothing waits, TCP tries again after a time of its own.
            one, other = rates(link, kib * 1024, 0.9 if "fq" in qdisc else 0.75)
            stops(site, link, jobid, BOUNDED)
            sent, lost = link.lost(BOUNDED)
            said.append(f"{' '.join(qdisc)}, {connections}: {one:.3f} and {other:.3f} times that, {lost} of {sent} segments lost")
            if "fq" in qdisc:
                expect(lost <= sent / 1000, f"{lost} of {sent} segments were lost")
                expect_equal(link.of_queue(r"\(dropped (\d+),"), 0, "packets for which there was no room")
                waited = link.of_queue(r"\bgc \d+ .*\bthrottled (\d+)")
                expect(waited > SECONDS, f"the queue had packets wait {waited} times")
            signals(site, jobid, signal.SIGKILL)
            stops(site, link, beside, FREE)
            figures.take(jobid, beside)
            figures.expect_metrics(jobid, metrics)
            signals(site, beside, signal.SIGCONT)
            site.end(jobid)
        stops(site, link, beside, FREE)
        signals(site, beside, signal.SIGKILL)
        figures.take(beside)
        site.end(beside)
        figures.expect_logged(f"{log}.network")
    return "; ".join(said)
