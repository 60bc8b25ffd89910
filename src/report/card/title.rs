// SPDX-License-Identifier: GPL-2.0-or-later
//! The first line of a card: which job it is of, and what ended it.

use super::figures::Figures;
use super::words::{cut, duration, printable, several};
use crate::report::account::Exit;

impl Figures<'_> {
    pub(super) fn title(&self) -> String {
        let node = self.node.map(|node| format!(" on {}", cut(&printable(node), 24))).unwrap_or_default();
        let more = self.others.map_or(0, |nodes| nodes.known.len() + nodes.silent.len()).saturating_sub(1);
        let more = match u64::try_from(more).unwrap_or(u64::MAX) {
            0 => String::new(),
            more => format!(" and {}", several(more, "other node", "other nodes")),
        };
        let node = node + &more;
        let how = match (self.exit, self.killed()) {
            // As with a script that does not check how its program ended.
            (Some(Exit::Status(0)), Some(kills)) => {
                format!("lost {} and ended with exit status 0", several(kills, "process", "processes"))
            }
            (exit, _) => self.ended(exit),
        };
        let after = self.wall.map(|wall| format!(" after {}", duration(wall))).unwrap_or_default();
        format!("jobfence: job {}{node} {how}{after}", cut(&printable(self.job), 24))
    }

    fn ended(&self, exit: Option<Exit>) -> String {
        match exit {
            Some(Exit::Status(0)) => "completed".to_owned(),
            Some(Exit::Status(status)) => format!("failed with exit status {status}"),
            Some(Exit::Signal(signal)) => format!("was ended by signal {signal}"),
            None => "ended".to_owned(),
        }
    }
}
