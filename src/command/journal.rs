// SPDX-License-Identifier: GPL-2.0-or-later
//! Logs to the journal, by its own protocol (systemd-journald.service(8), "Native Journal Protocol"): `jobfence hold` is in jobfence.scope,
//! so its output to stderr would belong to that unit, and `journalctl -u jobfence` and `systemctl status jobfence` would not show it.

use jobfence::printable::printable;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use log::Level;
use nix::sys::stat::fstat;

const SOCKET: &str = "/run/systemd/journal/socket";

/// The unit that the messages are about: journalctl(1) shows root's messages for a unit if they name it so.
const UNIT: &str = "jobfence.service";

/// Whether messages go to the journal.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// From now on messages go to the journal, if stderr does (`JOURNAL_STREAM`, systemd.exec(5)).
pub fn use_if_started_so() {
    let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = fstat(io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    IS_USED.store(stderr.is_ok_and(|stderr| stderr == journal), Ordering::Relaxed);
}

/// Sends a message to the journal. `false`: the journal does not accept it, or is not used.
pub fn say(level: Level, text: &str) -> bool {
    IS_USED.load(Ordering::Relaxed) && send(message(level, text).as_bytes()).is_ok()
}

/// Does not wait for a journal that is full of other messages.
fn send(message: &[u8]) -> io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(message, SOCKET)
}

fn message(level: Level, text: &str) -> String {
    let priority = match level {
        Level::Error => libc::LOG_ERR,
        Level::Warn => libc::LOG_WARNING,
        _ => libc::LOG_INFO,
    };
    // A line break would begin another field.
    let text = printable(text, ' ');
    format!("MESSAGE={text}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=jobfence\nOBJECT_SYSTEMD_UNIT={UNIT}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_field_and_about_the_unit() {
        let said = message(Level::Warn, "a\nMESSAGE_ID=b\u{1b}[0m");
        let lines: Vec<&str> = said.lines().collect();
        let expected = [
            "MESSAGE=a MESSAGE_ID=b [0m",
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=jobfence",
            "OBJECT_SYSTEMD_UNIT=jobfence.service",
        ];
        assert_eq!(lines, expected);
        // These tests are no service.
        assert!(!say(Level::Info, "nothing"));
    }
}
