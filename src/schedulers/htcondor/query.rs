// SPDX-License-Identifier: GPL-2.0-or-later
//! The query that condor_status(1) sends to a startd about a slot, and the startd's answer. condor_status first reads all of HTCondor's
//! configuration, and takes longer than all else that jobfence does for a job.
//!
//! The query is that of a client that proposes no security: the command's number and an ad, in one message. The startd answers unless the
//! site requires that readers negotiate (`SEC_READ_NEGOTIATION`; `DaemonCommandProtocol::VerifyCommand`, `command_query_ads`). If daemons
//! share a port, a message before the query names the daemon (`SharedPortClient::sendSharedPortID`). All of this is the same in 23.9.6 and
//! 25.13.2.

use std::fmt;
use std::net::SocketAddr;

use super::slot_ad::{Attributes, SlotJob, message, number};
use crate::error::{Error, Result};

/// The numbers of the commands (condor_commands.h).
const QUERY_STARTD_ADS: u64 = 5;
const SHARED_PORT_CONNECT: u64 = 75;
/// The client's name in log lines of the shared port.
const WE: &str = "jobfence";
/// The seconds within which the shared port must hand the connection on.
const HAND_ON: u64 = 30;

/// Where a startd or a schedd listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host and port. Several daemons can share the port.
    pub socket: SocketAddr,
    /// The daemon's name at a shared port. `None`: the port is the daemon's alone.
    daemon: Option<String>,
}

/// The form that HTCondor reads, without other addresses of the daemon.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, daemon } = self;
        match daemon {
            Some(daemon) => write!(f, "<{socket}?sock={daemon}>"),
            None => write!(f, "<{socket}>"),
        }
    }
}

impl Address {
    /// Reads HTCondor's form: `<127.0.0.1:9618?addrs=127.0.0.1-9618&sock=startd_7_1>`. `None`: the text has something that is not read
    /// here.
    pub fn parse(text: &str) -> Option<Self> {
        let inside = text.strip_prefix('<')?.strip_suffix('>')?;
        let (socket, parameters) = inside.split_once('?').unwrap_or((inside, ""));
        let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        let daemon = parameters.split('&').find_map(|one| one.strip_prefix("sock="));
        daemon.is_none_or(is_plain).then_some(())?;
        Some(Self { socket: socket.parse().ok()?, daemon: daemon.map(str::to_owned) })
    }

    /// The bytes that ask which job runs in the slot that meets the constraint `is_slot`.
    pub fn question(&self, is_slot: &str) -> Vec<u8> {
        let attributes = [
            r#"MyType = "Query""#.to_owned(),
            r#"TargetType = "Machine""#.to_owned(),
            format!("Requirements = {is_slot}"),
            format!("Projection = \"{}\"", SlotJob::attributes()),
        ];
        let mut question = self.daemon.as_deref().map_or_else(Vec::new, |daemon| {
            let mut words = numbers(&[SHARED_PORT_CONNECT]);
            words.extend(texts(&[daemon, WE]));
            words.extend(numbers(&[HAND_ON, 0]));
            packet(&words)
        });
        let mut words = numbers(&[QUERY_STARTD_ADS, attributes.len() as u64]);
        words.extend(texts(&attributes));
        // The two types of the ad, which the startd reads and ignores.
        words.extend(texts(&["", ""]));
        question.extend(packet(&words));
        question
    }
}

/// Reads the answer: a number that is not zero before each ad, and zero at the end. `None`: the message is not whole yet.
pub fn answer(bytes: &[u8]) -> Result<Option<SlotJob>> {
    let Some(message) = message(bytes)? else { return Ok(None) };
    let (more, ad) = message.split_at_checked(8).ok_or_else(|| Error::new("the answer is cut off"))?;
    if number(more) == Some(0) {
        return Ok(Some(SlotJob::default()));
    }
    SlotJob::from_ad(&Attributes::from_message(ad)?).map(Some)
}

fn numbers(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|one| one.to_be_bytes()).collect()
}

fn texts(all: &[impl AsRef<str>]) -> Vec<u8> {
    all.iter().flat_map(|one| one.as_ref().bytes().chain([0])).collect()
}

fn packet(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    [&[1], length.to_be_bytes().as_slice(), content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Id;

    #[test]
    fn where_a_startd_listens() {
        let read = |text: &str| Address::parse(text).map(|found| (found.socket.to_string(), found.daemon));
        let text = "<127.0.0.1:9618?addrs=127.0.0.1-9618&alias=node1&noUDP&sock=startd_717_1b2c>";
        assert_eq!(read(text), Some(("127.0.0.1:9618".to_owned(), Some("startd_717_1b2c".to_owned()))));
        assert_eq!(read("<[::1]:4000>"), Some(("[::1]:4000".to_owned(), None)));
        for wrong in ["", "<>", "127.0.0.1:9618", "<node1:9618>", "<127.0.0.1:9618?sock=a%20b>", "<127.0.0.1>"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_written_to_the_port() {
        let shared = Address::parse("<127.0.0.1:1?sock=x>").unwrap().question("TRUE");
        let first = b"\x01\0\0\0\x23\0\0\0\0\0\0\0\x4bx\0jobfence\0\0\0\0\0\0\0\0\x1e\0\0\0\0\0\0\0\0";
        assert_eq!(shared.get(..first.len()), Some(first.as_slice()));
        let plain = Address::parse("<127.0.0.1:1>").unwrap().question("TRUE");
        assert_eq!(shared.get(first.len()..), Some(plain.as_slice()));
        let follows = number(plain.get(1..5).unwrap()).unwrap();
        assert_eq!(plain.len() as u64, 5 + follows, "the length of what follows");
        assert!(plain.ends_with(b"\0\0\0"), "the two types");
    }

    #[test]
    fn what_a_startd_answers() {
        let ad = |attributes: &[&str]| {
            [numbers(&[1, attributes.len() as u64]), texts(attributes), texts(&["", ""])].concat()
        };
        let read = |content: &[u8]| answer(&packet(content));
        let said = [ad(&["JobId = \"12.0\"", "RemoteUser = \"alice@example\""]), numbers(&[0])].concat();
        let found = read(&said).unwrap().unwrap();
        assert_eq!((found.job, found.user.as_deref()), (Some(Id::new("12.0").unwrap()), Some("alice@example")));
        assert_eq!(read(&numbers(&[0])).unwrap(), Some(SlotJob::default()));
        let whole = packet(&said);
        for end in [0, 4, 5, 20, whole.len() - 1] {
            assert_eq!(answer(whole.get(..end).unwrap()).unwrap(), None, "{end} bytes");
        }
        // A line end in a user's text, which would begin an attribute where an ad is printed.
        let forged = ad(&["AccountingGroup = \"a\nJobId = \\\"9.0\\\"\"", "JobId = \"12.0\""]);
        assert!(read(&forged).unwrap_err().to_string().contains("an end of a line"));
        assert!(read(b"").is_err() && read(&ad(&["JobId = 7"])).is_err());
    }
}
