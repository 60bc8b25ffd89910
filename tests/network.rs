// SPDX-License-Identifier: GPL-2.0-or-later
//! `NetworkAccounting` and `NetworkMax`: what the kernel's counters of an interface say is what the programs count and allow. Jobs send
//! from one network namespace to another, by a pair of interfaces that no other program uses.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobfence::cgroup::network::{BOUNDS, EGRESS};
use jobfence::sys::bpf;
use jobfence::sys::bpf::map::BpfMap;
use jobfence::sys::dir::Dir;

mod common;

use common::Held as Site;

const MIB: u64 = 1 << 20;

/// Takes all that arrives, and sends back a byte for each connection that has ended.
const RECEIVES: &str = "
import socket, threading
server = socket.create_server(('10.9.0.2', 5000))
def take(connection):
    while connection.recv(1 << 17):
        pass
    connection.sendall(b'.')
    connection.close()
print('ready', flush=True)
while True:
    threading.Thread(target=take, args=server.accept()[:1], daemon=True).start()
";

/// Sends so many MiB for each line that it reads, by so many connections, and says when they have arrived.
const SENDS: &str = "
import socket, sys, threading
def send(mebibytes):
    connection = socket.create_connection(('10.9.0.2', 5000))
    for _ in range(mebibytes):
        connection.sendall(bytes(1 << 20))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print('ready', flush=True)
for line in sys.stdin:
    mebibytes, connections = map(int, line.split())
    all = [threading.Thread(target=send, args=(mebibytes,)) for _ in range(connections)]
    [one.start() for one in all]
    [one.join() for one in all]
    print('sent', flush=True)
";

/// Two network namespaces, and what arrives in the second one. They go with their processes.
struct Link {
    sender: Child,
    receiver: Child,
}

impl Link {
    fn new() -> Self {
        let apart = |program: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--net", "--"]).args(program).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let sender = apart(&["/bin/cat"]);
        let mut link = Self { sender, receiver: apart(&["/bin/cat"]) };
        let (one, other) = (link.sender.id().to_string(), link.receiver.id().to_string());
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        for pid in [&one, &other] {
            common::until("a namespace", || {
                fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|found| found != own)
            });
        }
        let ip = |args: &[&str]| {
            let done = Command::new("ip").args(args).output().unwrap();
            assert!(done.status.success(), "ip {args:?}: {done:?}");
        };
        ip(&["link", "add", "jf0", "netns", &one, "type", "veth", "peer", "name", "jf1", "netns", &other]);
        link.within(&one, &["ip", "addr", "add", "10.9.0.1/24", "dev", "jf0"]);
        link.within(&other, &["ip", "addr", "add", "10.9.0.2/24", "dev", "jf1"]);
        for (pid, name) in [(&one, "jf0"), (&other, "jf1"), (&one, "lo")] {
            link.within(pid, &["ip", "link", "set", name, "up"]);
        }
        // The namespaces are held by the first two processes.
        let mut receives = Command::new("nsenter");
        receives.args([&format!("--net=/proc/{other}/ns/net"), "--", "/usr/bin/python3", "-c", RECEIVES]);
        let mut receives = receives.stdout(Stdio::piped()).spawn().unwrap();
        receives.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let holder = std::mem::replace(&mut link.receiver, receives);
        end(holder);
        link
    }

    fn within(&self, pid: &str, program: &[&str]) {
        let done = Command::new("nsenter").arg(format!("--net=/proc/{pid}/ns/net")).arg("--").args(program).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{program:?}: {done:?}");
    }

    /// A program that waits until it is to send.
    fn sends(&self, uid: Option<u32>) -> Child {
        self.runs(uid, SENDS)
    }

    fn runs(&self, uid: Option<u32>, program: &str) -> Child {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.sender.id()));
        if let Some(uid) = uid {
            command.args([format!("--setuid={uid}"), format!("--setgid={uid}")]);
        }
        command.args(["--", "/usr/bin/python3", "-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        child
    }

    /// What the kernel says that the interface has sent: bytes, and packets as it was given them.
    fn sent(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/net/dev", self.sender.id())).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("jf0:")).unwrap();
        line.split_whitespace().nth(8).unwrap().parse().unwrap()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for child in [&mut self.sender, &mut self.receiver] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    child.wait().unwrap();
}

/// Has it send, and waits until all has arrived.
fn send(child: &mut Child, mebibytes: u64, connections: u64) {
    writeln!(child.stdin.as_mut().unwrap(), "{mebibytes} {connections}").unwrap();
    let mut said = String::new();
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "sent\n");
}

fn site(test: &str, jobs: &[&str]) -> Option<Site> {
    let mut site = Site::new("network", test, jobs)?;
    if !fs::read_to_string("/proc/mounts").unwrap().contains(" cgroup2 ") {
        common::skip("there is no cgroup2");
        return None;
    }
    site.settings.extend(["ReapInterval=1", "SampleInterval=1", "NetworkAccounting=yes"].map(str::to_owned));
    Some(site)
}

impl Site {
    /// `jobfence hold` with these settings, from when it has attached the programs.
    fn hold_network(&mut self, more: &[&str]) {
        let settings: Vec<&str> = more.iter().flat_map(|setting| ["-o", *setting]).collect();
        let mut hold = self.command(&[&["hold"][..], &settings].concat());
        let ready = self.path("ready");
        let socket = std::os::unix::net::UnixDatagram::bind(&ready).unwrap();
        hold.env("NOTIFY_SOCKET", &ready);
        self.start_hold(hold);
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        socket.recv(&mut [0; 64]).unwrap();
        fs::remove_file(ready).unwrap();
    }

    fn end_hold(&mut self, signal: &str) {
        let mut hold = self.hold.take().unwrap();
        let pid = hold.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        hold.wait().unwrap();
    }

    /// A job with a program that sends when it is told to.
    fn job(&mut self, job: &str, link: &Link, more: &[&str]) -> Child {
        self.job_of(job, link, more, SENDS)
    }

    fn job_of(&mut self, job: &str, link: &Link, more: &[&str], program: &str) -> Child {
        let uid = common::uids();
        self.out(&[&["open", "--job", job, "--user", &uid.to_string()][..], more].concat());
        let child = link.runs(Some(uid), program);
        self.out(&[&["attach", "--job", job, &child.id().to_string()][..], more].concat());
        child
    }

    /// What is known of the job: bytes sent and received, without the loopback.
    fn counted(&self, job: &str) -> Option<(u64, u64)> {
        let shown: serde_json::Value = serde_json::from_str(&self.out(&["show", "--json", job])).unwrap();
        let network = &shown["fences"][0]["network"];
        Some((network["sent_bytes"].as_u64()?, network["received_bytes"].as_u64()?))
    }

    /// How many entries a table of the programs has, whose keys and values have so many words.
    fn entries<const KEY: usize, const VALUE: usize>(&self, table: &str) -> usize
    where
        [u64; KEY]: Default,
        [u64; VALUE]: Default,
    {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" cgroup2 ")).unwrap().split(' ').nth(1).unwrap();
        let dir = Dir::open(format!("{mount}/{}", self.base.name)).unwrap();
        let programs = bpf::ours(&EGRESS, &bpf::attached(&EGRESS, dir.as_fd()).unwrap().ids).unwrap();
        let maps = programs.iter().flat_map(|program| program.maps().unwrap());
        let map =
            maps.map(|id| BpfMap::by_id(id).unwrap()).find(|map| map.is::<[u64; KEY], [u64; VALUE]>(table)).unwrap();
        map.keys::<[u64; KEY]>(1000).unwrap().len()
    }

    /// What is known of it when that does not change any more.
    fn counted_in_the_end(&self, job: &str) -> (u64, u64) {
        let mut last = None;
        common::until("the same figures twice", || {
            std::thread::sleep(Duration::from_millis(2500));
            let now = self.counted(job);
            std::mem::replace(&mut last, now) == now && now.is_some()
        });
        last.unwrap()
    }
}

/// Whether the counted bytes are those of the interface's counter. That has 14 bytes more for each packet, of the link, and is also of
/// ARP and of IPv6.
fn is_same(counted: u64, of_interface: u64) -> bool {
    counted <= of_interface && counted + of_interface / 50 + 10_000 >= of_interface
}

#[test]
fn what_a_job_sends_and_receives_is_what_the_interface_counts() {
    let Some(mut site) = site("counted", &["7", "8"]) else { return };
    let link = Link::new();
    site.hold_network(&[]);
    let (mut job, mut other) = (site.job("7", &link, &[]), link.sends(None));
    // Outside of any job.
    send(&mut other, 5, 1);
    let before = link.sent();
    send(&mut job, 20, 3);
    let sent = link.sent() - before;
    let (counted, received) = site.counted_in_the_end("7");
    assert!(sent > 60 * MIB && is_same(counted, sent), "{counted} of {sent}");
    assert!(received > 1000 && received < MIB, "{received}");
    let shown = site.out(&["show", "7"]);
    assert!(shown.contains("  network    the job: 6") && shown.contains("MiB sent"), "{shown}");
    // What another process sends meanwhile is not the job's.
    send(&mut other, 5, 1);
    assert_eq!(site.counted_in_the_end("7").0, counted);

    // A killed `hold` leaves the programs, and the next one goes on with the same counts.
    site.end_hold("-KILL");
    send(&mut job, 10, 1);
    site.hold_network(&[]);
    send(&mut job, 10, 1);
    let all = link.sent() - before;
    let (counted, _) = site.counted_in_the_end("7");
    // The other has sent 5 MiB of it.
    assert!(is_same(counted, all - 5 * MIB) && counted > 80 * MIB, "{counted} of {all}");
    assert!(site.said().matches("is counted from now on").count() == 1, "{}", site.said());

    // Its end is a line of the log, and nothing of it is left.
    assert_ne!(site.entries::<2, 4>("jobfence_counts"), 0);
    end(job);
    site.out(&["close", "--job", "7"]);
    common::until("the line of the log", || site.path("log/usage.jsonl.network").exists());
    let line = fs::read_to_string(site.path("log/usage.jsonl.network")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((line["job"].as_str(), line["sent_bytes"].as_u64()), (Some("7"), Some(counted)));
    assert!(site.said().contains("job 7: network: "), "{}", site.said());
    common::until("its entries are removed", || site.entries::<2, 4>("jobfence_counts") == 0);
    end(other);
}

#[test]
fn a_job_sends_no_faster_than_its_bound_and_not_much_slower() {
    let Some(mut site) = site("bounded", &["7", "8"]) else { return };
    let link = Link::new();
    // So low that each machine, however busy, could send many times as fast.
    const RATE: u64 = 4 * MIB;
    let bound = ["-o", "NetworkMax=4M"];
    // Nobody would hold it back.
    let refused = site.command(&["open", "--job", "7", "--user", "60007", "-o", "NetworkMax=4M"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("no program holds back what jobs send (NetworkMax)"), "{said}");
    let warned = ["-o", "OnError=fail,network:warn"];
    site.out(&[&["open", "--job", "7", "--user", "60007"], &bound[..], &warned].concat());
    site.out(&["close", "--job", "7"]);

    site.hold_network(&["NetworkMax=4M"]);
    let mut job = site.job("7", &link, &bound);
    let mut free = site.job("8", &link, &[]);
    // What may be sent at once is used up.
    send(&mut job, 2, 1);
    let measure = |child: &mut Child, mebibytes: u64, connections: u64| {
        let (before, begun) = (link.sent(), Instant::now());
        send(child, mebibytes, connections);
        let passed = begun.elapsed().as_secs_f64();
        ((link.sent() - before) as f64 / passed, passed)
    };
    for connections in [1, 4] {
        let slow_enough = || {
            let (rate, passed) = measure(&mut job, 12 / connections, connections);
            // What it has not used before, it may use now: 0.3 seconds.
            let most = RATE as f64 * (passed + 0.3) / passed * 1.1;
            assert!(rate <= most, "{rate} of {RATE} by {connections} connections in {passed} seconds");
        };
        // 12 MiB take 3 seconds. A busy machine needs longer.
        assert!(common::is_once_within(Duration::from_millis(4500), slow_enough), "{connections} connections");
    }
    // Also when `hold` has ended in either way, and for a job that begins then.
    site.end_hold("-TERM");
    let mut late = site.job("9", &link, &bound);
    site.jobs.push("9".to_owned());
    send(&mut late, 2, 1);
    let (rate, passed) = measure(&mut late, 4, 2);
    assert!(rate <= RATE as f64 * (passed + 0.3) / passed * 1.1, "{rate} in {passed} seconds");
    // The control: the same program in a job without a bound is not slowed down.
    assert!(
        common::is_once_within(Duration::from_secs(2), || send(&mut free, 12, 1)),
        "a job without a bound needs as long as one with a bound"
    );

    // The bound of a job that has ended stays, since its sockets may. That of the job without a bound says where the job is.
    end(late);
    site.out(&["close", "--job", "9"]);
    site.hold_network(&["NetworkMax=4M"]);
    common::until("the job without a bound is known", || site.entries::<1, 2>(BOUNDS) == 3);
    site.end_hold("-TERM");

    // Without the setting, nothing is left.
    let accounting = site.settings.iter().position(|setting| setting.starts_with("NetworkAccounting")).unwrap();
    site.settings.remove(accounting);
    let reaped = site.out(&["reap"]);
    assert!(reaped.contains("detached the network programs"), "{reaped}");
    assert!(common::is_once_within(Duration::from_secs(2), || send(&mut job, 12, 1)), "it is still bounded");
    let refused = site.command(&["open", "--job", "6", "--user", "60007", "-o", "NetworkMax=4M"]).output().unwrap();
    assert!(!refused.status.success(), "a program is still attached");
    [job, free].into_iter().for_each(end);
}

/// Sends datagrams of one byte, 64 with each call, for two seconds. Says how many calls it made: the kernel does not say
/// which of them were refused.
const SEGMENTS: &str = "
import socket, sys, time
print('ready', flush=True)
sys.stdin.readline()
# In the job: a socket belongs to the cgroup in which it was made.
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# SOL_UDP, UDP_SEGMENT
one.setsockopt(17, 103, 1)
one.connect(('10.9.0.2', 5001))
calls, end = 0, time.monotonic() + 2
while time.monotonic() < end:
    calls += 1
    try:
        one.send(bytes(64))
    except OSError:
        pass
print(calls, flush=True)
sys.stdin.readline()
";

/// A program that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes datagrams.
const TAKES: &str = "
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('10.9.0.2', 5001))
print('ready', flush=True)
while True:
    server.recv(9)
";

impl Link {
    /// How many datagrams have arrived in the second namespace: also those for which there was no room.
    fn datagrams(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/net/snmp", self.receiver.id())).unwrap();
        let line = text.lines().filter_map(|line| line.strip_prefix("Udp: ")).nth(1).unwrap();
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        // InDatagrams and InErrors
        numbers[0] + numbers[2]
    }
}

#[test]
fn small_datagrams_take_what_they_take_on_the_line_and_what_is_refused_is_not_counted() {
    let Some(mut site) = site("segments", &["7"]) else { return };
    let link = Link::new();
    let mut takes = Command::new("nsenter");
    takes.args([&format!("--net=/proc/{}/ns/net", link.receiver.id()), "--", "/usr/bin/python3", "-c", TAKES]);
    let mut takes = Killed(takes.stdout(Stdio::piped()).spawn().unwrap());
    takes.0.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    site.hold_network(&["NetworkMax=1M"]);
    // The first job of a branch.
    let mut job = site.job_of("7", &link, &["-o", "NetworkMax=1M", "-o", "Scavenger=yes"], SEGMENTS);
    let (before, begun) = (link.sent(), Instant::now());
    writeln!(job.stdin.as_mut().unwrap()).unwrap();
    let mut calls = String::new();
    BufReader::with_capacity(1, job.stdout.as_mut().unwrap()).read_line(&mut calls).unwrap();
    let passed = begun.elapsed().as_secs_f64();
    let (counted, _) = site.counted_in_the_end("7");
    let (sent, arrived) = (link.sent() - before, link.datagrams());
    let calls: u64 = calls.trim().parse().unwrap();
    assert!(calls * 64 > 2 * arrived, "nothing was refused: {arrived} datagrams of {calls} calls");
    // The least frame of Ethernet has 60 bytes, without its checksum.
    let on_the_line = arrived as f64 * 60.0;
    let most = MIB as f64 * (passed + 0.3);
    assert!(arrived > 1000 && on_the_line <= most, "{arrived} datagrams in {passed} seconds");
    // The interface has 14 bytes more for each call.
    assert!(counted <= sent && counted + counted / 5 + 10_000 >= sent, "{counted} of {sent}, {calls} calls");
    end(job);
}
