// SPDX-License-Identifier: GPL-2.0-or-later
//! The first line of a card: which job it is of, and what ended it.

use std::time::Duration;

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
        let name = self.name.map(printable).filter(|name| !name.trim().is_empty());
        let name = name.map(|name| format!(" ({})", cut(name.trim(), 24))).unwrap_or_default();
        let after = self.wall.map(|wall| format!(" after {}", duration(wall))).unwrap_or_default();
        format!("jobfence: job {}{name}{node} {}", cut(&printable(self.job), 24), self.how(&after))
    }

    /// How the job ended, and after which time: what killed it comes first.
    fn how(&self, after: &str) -> String {
        if let Some(limit) = self.ended_at_its_time_limit() {
            let lost = self.killed().map(|kills| several(kills, "process", "processes"));
            let lost = lost.map(|lost| format!("lost {lost} for lack of memory, and ")).unwrap_or_default();
            return format!("{lost}was ended at its time limit of {}", duration(limit));
        }
        let with = match self.exit {
            Some(Exit::Status(status)) => format!(" with exit status {status}"),
            Some(Exit::Signal(signal)) => format!(" by signal {signal}"),
            None => String::new(),
        };
        match (self.killed(), self.exit) {
            (Some(_), _) if self.was_killed() => format!("was killed for lack of memory{after}"),
            // As with a script that does not check how its program ended.
            (Some(kills), _) => {
                format!("lost {} for lack of memory, and ended{with}{after}", several(kills, "process", "processes"))
            }
            (None, Some(Exit::Status(0))) => format!("completed{after}"),
            (None, Some(Exit::Status(_))) => format!("failed{with}{after}"),
            (None, Some(Exit::Signal(_))) => format!("was ended{with}{after}"),
            (None, None) => format!("ended{after}"),
        }
    }

    /// Whether its end was that of a process that the kernel has killed for lack of memory.
    pub(super) fn was_killed(&self) -> bool {
        self.killed().is_some() && self.exit.is_some_and(|exit| exit.is_by(libc::SIGKILL))
    }

    /// The time limit, if the scheduler ended the job at it: by signal 15, and by signal 9 if it did not end then.
    pub(super) fn ended_at_its_time_limit(&self) -> Option<Duration> {
        // The limit counts from the grant, and the script begins a little later.
        const LATER: Duration = Duration::from_secs(5);
        // A job that has run on for longer had its limit extended, or was suspended, and something else has ended it.
        const MOST: Duration = Duration::from_secs(300);
        let is_over = |limit: &Duration| {
            self.wall.is_some_and(|wall| wall + LATER >= *limit && wall <= limit.saturating_add(MOST))
        };
        // After a kill by the kernel, signal 9 is that.
        let is_ended = |exit: Exit| exit.is_by(libc::SIGTERM) || exit.is_by(libc::SIGKILL) && self.killed().is_none();
        self.time_limit.filter(is_over).filter(|_| self.exit.is_some_and(is_ended))
    }
}
