// SPDX-License-Identifier: GPL-2.0-or-later
//! The slot's ad that the startd has sent to the starter. It is only peeked at: the starter reads it again.

use std::fs::File;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, FromRawFd, RawFd};
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::launch::NotFenced;
use jobfence::schedulers::htcondor::slot_ad::SlotAd;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::getppid;

/// The variable that lists the sockets that the starter inherits: the startd's process ID and address, and for each socket a type and a
/// description that begins with the descriptor's number (`DaemonCore::Create_Process` and `Sock::serialize`, the same in 23.9 and 25.14).
pub const INHERITED: &str = "CONDOR_INHERIT";
/// How long to wait for the ad. The startd writes it before it starts this process, so it is there, unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);
/// The hint for a job whose ad is too long.
pub const SHORTER: &str =
    "a text of the job, such as its accounting group, is too long: submit the job with a shorter one";
/// In bytes. No slot's ad is longer.
const LARGEST: usize = 4 << 20;
/// The bytes that are read of the kernel's table: more than the connections of a node need.
const LARGEST_TABLE: u64 = 256 << 20;

/// Reads the slot's ad, and leaves it in the socket.
pub fn slot() -> Result<SlotAd, NotFenced> {
    let text = std::env::var(INHERITED).unwrap_or_default();
    let (socket, _) = sockets_of(&text).ok_or_else(|| {
        Error::new("no startd says which slot this is").hint(
            "STARTER and STARTER_LOCAL of HTCondor's configuration name this program for what a startd and a schedd start, \
             and nothing else does",
        )
    })?;
    // SAFETY: this process has inherited the descriptor, and nothing closes it before its exec: it is never dropped here.
    let socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(socket) });
    check_peer(&socket)?;
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = peek(&socket, &mut buffer)?;
        if let Some(slot) = SlotAd::parse(buffer.get(..length).unwrap_or_default())? {
            return Ok(slot);
        }
        if length == buffer.len() && length < LARGEST {
            buffer.resize(length * 2, 0);
        } else if length == buffer.len() {
            // Only texts of the job's user make it so long.
            return Err(NotFenced::Asked(Error::new("the slot's ad is too long").hint(SHORTER)));
        } else if Instant::now() >= deadline {
            return Err(Error::new("the startd has not said all of the slot's ad")
                .value(format!("{length} bytes"))
                .into());
        } else {
            // There is something already, so poll(2) would return at once.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The user that owns the startd's sockets.
pub fn sockets_owner() -> Option<u32> {
    let text = std::env::var(INHERITED).ok()?;
    // SAFETY: as in `slot`.
    let socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(sockets_of(&text)?.0) });
    Some(fstat(&*socket).ok()?.st_uid)
}

/// The address of the startd.
pub fn address() -> Option<String> {
    let text = std::env::var(INHERITED).ok()?;
    text.split(' ').nth(1).filter(|address| address.starts_with('<')).map(str::to_owned)
}

/// Whether the job's shadow, at the other end of the second socket, is on this host. As in HTCondor, an address is this host's if a socket
/// can be bound to it (`Sock::peer_is_local`). `None`: not known.
pub fn submitter_is_here() -> Option<bool> {
    let text = std::env::var(INHERITED).ok()?;
    let shadow = sockets_of(&text)?.1?;
    // SAFETY: as in `slot`.
    let shadow = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(shadow) });
    let address = shadow.peer_addr().ok()?.ip();
    Some(UdpSocket::bind((address, 0)).is_ok())
}

/// The first two inherited sockets, if this process's parent has written the text.
fn sockets_of(text: &str) -> Option<(RawFd, Option<RawFd>)> {
    let mut words = text.split(' ');
    let parent = words.next()?.parse::<i32>().ok()?;
    let _address = words.next()?;
    (parent == getppid().as_raw()).then_some(())?;
    let mut socket = || {
        let (kind, socket) = (words.next()?, words.next()?);
        let number = socket.split('*').next()?.parse().ok()?;
        (kind == "1" && number > 2).then_some(number)
    };
    Some((socket()?, socket()))
}

/// Checks that the startd has the other end, too: it connects to itself, through a port of this host. Another user's program can connect to
/// that port before the startd does. That program would then say what the job gets.
fn check_peer(socket: &TcpStream) -> Result<()> {
    let failed = |error| Error::new(format!("look at the socket of the startd: {error}"));
    let (ours, theirs) = (socket.local_addr().map_err(failed)?, socket.peer_addr().map_err(failed)?);
    let owner = fstat(socket).map_err(|errno| failed(errno.into()))?.st_uid;
    let path = if ours.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let mut table = String::new();
    let opened = File::open(path).and_then(|file| file.take(LARGEST_TABLE).read_to_string(&mut table));
    opened.map_err(|error| Error::new(format!("read {path}: {error}")))?;
    match owner_of(&table, theirs, ours) {
        Some(found) if found == owner || found == 0 => Ok(()),
        Some(found) => Err(Error::new("the other end of the startd's socket belongs to another user:").value(found)),
        None => Err(Error::new("the other end of the startd's socket is closed, or not on this host:").value(theirs)),
    }
}

/// The user that owns the connection from `local` to `remote`. The kernel's table has an address in hexadecimal digits, each four bytes as
/// a number in this machine's byte order. The port is a number.
fn owner_of(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let written = |address: SocketAddr| {
        let bytes = match address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
            std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let word = |four: &[u8]| format!("{:08X}", u32::from_ne_bytes(four.try_into().unwrap_or_default()));
        format!("{}:{:04X}", bytes.chunks(4).map(word).collect::<String>(), address.port())
    };
    let (local, remote) = (written(local), written(remote));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().take(10).collect();
        let is_it = fields.get(1) == Some(&local.as_str()) && fields.get(2) == Some(&remote.as_str());
        // If its program has closed a socket, the kernel shows root as the owner, and no inode.
        let is_open = fields.get(9).is_some_and(|inode| *inode != "0");
        (is_it && is_open).then(|| fields.get(7)?.parse().ok()).flatten()
    })
}

fn peek(socket: &TcpStream, buffer: &mut [u8]) -> Result<usize> {
    let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(Error::new("the startd says nothing of the slot")),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::new("wait for the startd").errno(errno)),
            // poll(2) has seen data or the end, so this does not wait.
            Ok(_) => {
                return match socket.peek(buffer) {
                    Ok(0) => Err(Error::new("the startd has gone")),
                    Ok(length) => Ok(length),
                    Err(error) => Err(Error::new(format!("read what the startd says of the slot: {error}"))),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_socket_is_the_startds() {
        let parent = getppid();
        let text = format!(
            "{parent} <127.0.0.1:9618?addrs=127.0.0.1-9618&sock=startd_1> 1 14*1*0*9*more 1 15*x 0 SharedPort:a 0"
        );
        assert_eq!(sockets_of(&text), Some((14, Some(15))));
        assert_eq!(sockets_of(&text.replacen(" 1 15*x", "", 1)), Some((14, None)));
        assert_eq!(sockets_of(&format!("1{text}")), None);
        assert_eq!(sockets_of(&text.replacen(" 1 14", " 2 14", 1)), None);
        for wrong in ["", "7", "x y 1 14*", &format!("{parent} <a> 0 0"), &format!("{parent} <a> 1 1*")] {
            assert_eq!(sockets_of(wrong), None, "{wrong}");
        }
    }

    /// The text is recorded from a real startd (tests/htcondor/record.py).
    #[test]
    fn what_a_startd_has_its_starter_inherit_is_understood() {
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/htcondor/recorded");
        for release in std::fs::read_dir(top).unwrap() {
            let environment = std::fs::read_to_string(release.unwrap().path().join("slot/environment")).unwrap();
            let start = format!("{INHERITED}=1 ");
            let inherited = environment.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
            let sockets = sockets_of(&format!("{} {inherited}", getppid()));
            assert!(matches!(sockets, Some((startds, Some(shadows))) if startds != shadows), "{inherited}");
            assert!(inherited.starts_with("<127.0.0.1:9618?"), "{inherited}");
        }
    }

    #[test]
    fn whose_the_other_end_is() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:2592 00000000:0000 0A 00000000:00000000 00:00000000 00000000   121        0 1 1 0\n   \
                     1: 0100007F:9C40 0100007F:8AE0 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0\n";
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(owner_of(table, address(0x9C40), address(0x8AE0)), cfg!(target_endian = "little").then_some(1000));
        assert_eq!(owner_of(table, address(0x8AE0), address(0x9C40)), None);
    }

    #[test]
    fn an_end_that_is_closed_is_nobodys() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(host) else { continue };
            let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            drop(listener.accept().unwrap());
            assert!(check_peer(&one).is_err(), "{host}");
        }
    }

    #[test]
    fn a_connection_of_ones_own_is_seen() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(host) else { continue };
            let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _other = listener.accept().unwrap();
            check_peer(&one).unwrap();
        }
    }
}
