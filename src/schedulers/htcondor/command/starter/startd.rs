// SPDX-License-Identifier: GPL-2.0-or-later
//! Asks the startd without a program of HTCondor's: see `jobfence::schedulers::htcondor::query`.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use jobfence::schedulers::htcondor::query::{Address, answer};
use jobfence::schedulers::htcondor::slot_ad::SlotJob;

/// In bytes. The answer has a few short texts.
const LARGEST: usize = 1 << 20;
/// The state of a socket that listens, in the kernel's table.
const LISTENS: &str = "0A";

/// The outcome of a question.
#[derive(Debug, PartialEq, Eq)]
pub enum StartdAnswer {
    /// The startd has answered.
    Said(Box<SlotJob>),
    /// It does not talk to clients of this kind, but may talk to condor_status(1).
    Refused,
    /// It has answered something else. condor_status(1) may understand that, or show what a user has written there.
    Unclear,
    /// It has not answered in time.
    Silent,
}

/// Asks about a slot. `owner`: the user that owns the startd's sockets.
pub fn ask(address: &Address, is_slot: &str, owner: u32, patience: Duration) -> StartdAnswer {
    // Only this host is asked: on the way to another one, the first message can be lost.
    if !is_daemons(address, owner) {
        return StartdAnswer::Refused;
    }
    let deadline = Instant::now() + patience;
    let Ok(mut socket) = TcpStream::connect_timeout(&address.socket, patience) else { return StartdAnswer::Silent };
    if socket.write_all(&address.question(is_slot)).is_err() {
        return StartdAnswer::Refused;
    }
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match answer(&said) {
            Ok(Some(job)) => return StartdAnswer::Said(Box::new(job)),
            Ok(None) => {}
            Err(_) => return StartdAnswer::Unclear,
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let read = socket.set_read_timeout(Some(left)).and_then(|()| socket.read(&mut piece));
        match read {
            Ok(0) => return StartdAnswer::Refused,
            Ok(_) if said.len() > LARGEST => {
                return StartdAnswer::Unclear;
            }
            Ok(length) => said.extend_from_slice(piece.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return StartdAnswer::Silent;
            }
            Err(_) => return StartdAnswer::Refused,
        }
    }
}

/// Whether this address is that of a daemon of HTCondor's on this host, and not of another user's program. `owner`: as in `ask`.
pub fn is_daemons(address: &Address, owner: u32) -> bool {
    UdpSocket::bind((address.socket.ip(), 0)).is_ok() && is_theirs(address.socket.port(), owner)
}

/// Whether root or this user alone listens at the port. If HTCondor is gone, any user's program can listen there.
fn is_theirs(port: u16, owner: u32) -> bool {
    let open = |table: &&str| File::open(table).ok().map(BufReader::new);
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let listeners: Vec<u32> = tables.iter().filter_map(open).flat_map(|table| listeners(table, port)).collect();
    !listeners.is_empty() && listeners.iter().all(|user| [0, owner].contains(user))
}

/// The users that listen at the port. The table begins with the listening sockets, and can have very many others.
fn listeners(table: impl BufRead, port: u16) -> Vec<u32> {
    let ending = format!(":{port:04X}");
    let lines = table.lines().map_while(|line| line.ok()).skip(1);
    let fields = lines.map(|line| line.split_whitespace().take(8).map(str::to_owned).collect::<Vec<_>>());
    let listening = fields.take_while(|fields| fields.get(3).is_some_and(|state| state == LISTENS));
    let at_port = listening.filter(|fields| fields.get(1).is_some_and(|address| address.ends_with(&ending)));
    at_port.map(|fields| fields.get(7).and_then(|user| user.parse().ok()).unwrap_or(u32::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SLOT: &str = "TRUE";
    const MOMENT: Duration = Duration::from_secs(10);

    /// The outcome with a startd that reads the question, and answers with these bytes.
    fn asked(said: &'static [u8]) -> StartdAnswer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::parse(&format!("<{}>", listener.local_addr().unwrap())).unwrap();
        let length = address.question(SLOT).len();
        let startd = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_read_timeout(Some(MOMENT)).unwrap();
            socket.read_exact(&mut vec![0; length]).unwrap();
            socket.write_all(said).unwrap();
        });
        let found = ask(&address, SLOT, this_user(), MOMENT);
        startd.join().unwrap();
        found
    }

    fn this_user() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    #[test]
    fn a_startd_answers_or_closes() {
        let none = b"\x01\0\0\0\x08\0\0\0\0\0\0\0\0";
        assert_eq!(asked(none), StartdAnswer::Said(Box::default()));
        assert_eq!(asked(b""), StartdAnswer::Refused);
        assert_eq!(asked(none.get(..9).unwrap()), StartdAnswer::Refused);
        assert_eq!(asked(b"\x01\0\0\0\x01x"), StartdAnswer::Unclear);
    }

    #[test]
    fn a_startd_that_is_late_or_no_more_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::parse(&format!("<{}>", listener.local_addr().unwrap())).unwrap();
        let (user, short) = (this_user(), Duration::from_millis(50));
        assert_eq!(ask(&address, SLOT, user, short), StartdAnswer::Silent);
        drop(listener);
        assert_eq!(ask(&address, SLOT, user, MOMENT), StartdAnswer::Refused);
        let elsewhere = Address::parse("<192.0.2.77:9618>").unwrap();
        assert_eq!(ask(&elsewhere, SLOT, user, MOMENT), StartdAnswer::Refused);
    }

    #[test]
    fn who_listens_at_a_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:2592 00000000:0000 0A 00000000:00000000 00:00000000 00000000   121        0 1 1 0\n   \
                     1: 00000000:2593 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0\n   \
                     2: 00000000:2592 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 3 1 0\n   \
                     3: 0100007F:2592 0100007F:8AE0 01 00000000:00000000 00:00000000 00000000     7        0 4 1 0\n";
        assert_eq!(listeners(table.as_bytes(), 0x2592), [121, 1000]);
        assert_eq!(listeners(table.as_bytes(), 0x2593), [0]);
        assert!(listeners(table.as_bytes(), 0x8AE0).is_empty());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_theirs(port, this_user()));
        drop(listener);
        assert!(!is_theirs(port, this_user()), "nobody listens there");
    }
}
