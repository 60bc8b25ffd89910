# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job sends to another network namespace, under each scheduler: NetworkAccounting and NetworkMax. tests/network.rs has more of it,
without a scheduler and without the qdisc fq.

All bytes and times are the kernel's: those that arrive, and those of the interface. Both jobs send by the same interface, and nothing else
of the guest does.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from . import kernel
from .harness import PYTHON, WAIT, Skip, case, expect, expect_equal, expect_in, let_go, running
from .sites import die_with_parent, until

# Of documentation (RFC 5737): no host has it, and a guest's own is another one.
HERE, THERE = "198.51.100.1", "198.51.100.2"
FREE_PORT, BOUND_PORT = 5000, 5001
NAME, PEER = f"jf{os.getpid() % 10**6}a", f"jf{os.getpid() % 10**6}b"
# Takes all that arrives, and notes when, and how much that is by then.
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
# Sends by so many connections as much as it can.
SENDS = f"""{PYTHON} -S -c '
import socket, threading
def send():
    connection, some = socket.create_connection(("{THERE}", %d)), bytes(1 << 16)
    while True:
        connection.sendall(some)
for _ in range(%d):
    threading.Thread(target=send).start()
'; """ + WAIT
# A bound is this part of what the machine can send: it has time for both jobs.
PART = 8
# So long a rate is measured, and what may leave at once after a rest does not count.
SECONDS, AT_FIRST = 10, 2


class Link:
    """A pair of interfaces to a network namespace in which a process for each port takes what arrives."""

    def __init__(self, site, stack):
        self.site, self.logs = site, {}
        holder = self.start(stack, "unshare", "--net", "sh", "-c", "echo ready; exec sleep 100000")
        space = "nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"
        self.ip("link", "add", NAME, "type", "veth", "peer", "name", PEER, "netns", str(holder.pid))
        # It goes with the namespace, and at once.
        stack.callback(subprocess.run, ["ip", "link", "delete", NAME], check=False)
        for before, name, address in ((), NAME, HERE), (space, PEER, THERE):
            # No neighbours are asked for by IPv6 meanwhile.
            self.root(*before, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
            self.ip("address", "add", f"{address}/24", "dev", name, before=before)
            self.ip("link", "set", name, "up", before=before)
        for port in FREE_PORT, BOUND_PORT:
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

    def ip(self, *words, before=()):
        return self.root(*before, "ip", *words)

    def queues_by(self, qdisc):
        self.root("tc", "qdisc", "replace", "dev", NAME, "root", qdisc)

    def statistic(self, name):
        return int(kernel.read(f"/sys/class/net/{NAME}/statistics/{name}"))

    def refused_by_the_queue(self):
        return int(re.search(r"\(dropped (\d+),", self.root("tc", "-s", "qdisc", "show", "dev", NAME))[1])

    def sent_again(self, port):
        """Segments of the connections to this port that TCP has sent more than once, and how many connections those are."""
        said = self.root("ss", "-tinOH", "state", "established", "dst", f"{THERE}:{port}")
        return sum(map(int, re.findall(r"\bretrans:\d+/(\d+)", said))), len(said.splitlines())

    def arrived(self, port):
        """Moments, and how many bytes had arrived by then: whole lines of the log."""
        lines = kernel.read(self.logs[port]).split("\n")[:-1]
        return [(float(moment), int(count)) for moment, count in map(str.split, lines)]

    def arrives(self, port, seconds=SECONDS):
        """Bytes in a second from now on, over so long a time, by what has arrived."""
        begun = time.monotonic()

        def over():
            found = [(moment, count) for moment, count in self.arrived(port) if moment >= begun]
            return found if found and found[-1][0] - found[0][0] >= seconds else None
        found = until(over, 60, f"what arrives at port {port} in {seconds} seconds")
        return (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])


@contextlib.contextmanager
def link(site):
    with contextlib.ExitStack() as stack:
        yield Link(site, stack)


def holds(site, bound=None):
    """jobfence.service has read this: what jobs of the second user may send, in KiB a second. Where their packets are queued, it has seen."""
    text = f"NetworkAccounting=yes\nSampleInterval=1\nReapInterval=1\nUsageLog={site.home}/log/usage.jsonl\n"
    section = f"[User={site.users[1]}]\nNetworkMax={bound}K\n" if bound else ""
    site.configure_raw(text + section)
    done = site.command("systemctl", "restart", "jobfence.service", timeout=60)
    expect_equal(done.returncode, 0, f"the restart of jobfence.service ({done.stderr})")


def counted(site, jobid):
    """What is known of a job that runs."""
    status, said = site.ours("show", "--json", site.directory_of(jobid).removeprefix("job_"))
    expect_equal(status, 0, f"exit status of 'jobfence show' ({said})")
    return json.loads(said)["fences"][0]["network"]


class Sum:
    """What jobfence counts of jobs that send no more, and what the kernel counts of their interface since they began."""

    NAMES = {"tx": "sent", "rx": "received"}

    def __init__(self, site, link):
        self.site, self.link, self.found = site, link, {}
        self.before = self.of_interface()

    def of_interface(self):
        """Without the header of 14 bytes that each packet has there, as it was given to the interface."""
        return {way: self.link.statistic(f"{way}_bytes") - 14 * self.link.statistic(f"{way}_packets") for way in self.NAMES}

    def take(self, jobid):
        """Ends what the job runs, and notes its figures when they are those of the interface."""
        for pid in self.site.job_pids(jobid, "socket"):
            os.kill(pid, signal.SIGKILL)

        def are_the_same():
            self.found[jobid] = counted(self.site, jobid)["interfaces"][NAME]
            now = self.of_interface()
            sums = {way: sum(one[f"{word}_bytes"] for one in self.found.values()) for way, word in self.NAMES.items()}
            self.said = {way: (sums[way], now[way] - self.before[way]) for way in sums}
            # The last packets of a connection are no socket's any more.
            return all(abs(ours - theirs) <= theirs / 1000 + 10_000 for ours, theirs in self.said.values())
        return are_the_same


@case(on=["installed"], release=True)
def network_bounded(site):
    """A job sends as fast as it may and no faster, with fq without any loss, and the job beside it is not slowed."""
    free, bounded = site.users
    said = []
    with contextlib.ExitStack() as stack:
        pair = stack.enter_context(link(site))
        stack.callback(lambda: (site.configure(), site.command("systemctl", "restart", "jobfence.service", timeout=60)))
        holds(site)
        beside, _ = running(site, free, SENDS % (FREE_PORT, 1), cpus=1, mib=100)
        fast = pair.arrives(FREE_PORT, 5)
        rate = int(fast / PART) // 1024
        said.append(f"unbounded {fast / 2**20:.1f} MiB/s, bound {rate / 1024:.2f} MiB/s")
        for qdisc, connections in ("fq", 1), ("fq", 4), ("noqueue", 1), ("noqueue", 4):
            pair.queues_by(qdisc)
            holds(site, rate)
            jobid, _ = running(site, bounded, SENDS % (BOUND_PORT, connections), cpus=1, mib=100)
            until(lambda: pair.arrived(BOUND_PORT), 60, "first bytes")
            time.sleep(AT_FIRST)
            found = pair.arrives(BOUND_PORT) / 1024 / rate
            again, count = pair.sent_again(BOUND_PORT)
            said.append(f"{qdisc}, {connections}: {found:.3f} of the bound, {again} segments sent again of {count} connections"
                        + (f", {pair.refused_by_the_queue()} dropped" if qdisc == "fq" else "") + f", free {pair.arrives(FREE_PORT, 3) / fast:.2f}")
            print(said[-1], flush=True)
            print(json.dumps(counted(site, jobid)), pair.root("tc", "-s", "qdisc", "show", "dev", NAME), pair.root("ss", "-tinOH", "dst", THERE), flush=True)
            site.end(jobid)
        print(json.dumps(counted(site, beside)))
        print({n: pair.statistic(n) for n in ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")})
        site.end(beside)
    return "; ".join(said)
