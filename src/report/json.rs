// SPDX-License-Identifier: GPL-2.0-or-later
//! Usage as JSON (RFC 8259). The names of members and their units stay the same in every release; additions get new names.
//!
//! Figures that the kernel does not keep are `null`, never 0. `docs/usage.md` lists the members.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use crate::cgroup::usage::{DiskIo, Pressure, Usage};
use crate::printable::is_printable;

/// An object under construction.
#[derive(Debug)]
pub struct Object(String);

impl Object {
    /// An object without members.
    pub fn new() -> Self {
        Self("{".to_owned())
    }

    /// Adds a member whose value is JSON already.
    pub fn add(&mut self, name: &str, value: impl Display) -> &mut Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{name}\":{value}");
        self
    }

    /// Adds a number, or `null` if it is not known.
    pub fn number(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        match value {
            Some(value) => self.add(name, value),
            None => self.add(name, "null"),
        }
    }

    /// Adds a text, or `null`.
    pub fn text(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        self.number(name, value.map(text))
    }

    /// Adds a time in seconds, or `null`.
    pub fn seconds(&mut self, name: &str, value: Option<Duration>) -> &mut Self {
        self.number(name, value.map(seconds))
    }

    /// Adds usage figures: the same members in every object.
    pub fn usage(&mut self, usage: &Usage) -> &mut Self {
        let io = usage.io.as_deref();
        let sum = |of: fn(&DiskIo) -> u64| io.map(|disks| disks.iter().map(of).fold(0, u64::saturating_add));
        self.seconds("cpu_seconds", usage.cpu)
            .seconds("cpu_user_seconds", usage.cpu_user)
            .seconds("cpu_system_seconds", usage.cpu_system)
            .number("periods", usage.periods)
            .number("throttled_periods", usage.throttled_periods)
            .seconds("throttled_seconds", usage.throttled)
            .number("memory_peak_bytes", usage.memory_peak)
            .number("swap_peak_bytes", usage.swap_peak)
            .number("memory_anonymous_bytes", usage.memory.anonymous)
            .number("memory_file_bytes", usage.memory.file)
            .number("memory_unwritten_bytes", usage.memory.unwritten)
            .number("memory_shared_bytes", usage.memory.shared)
            .number("memory_kernel_bytes", usage.memory.kernel)
            .number("memory_huge_pages_bytes", usage.memory.huge)
            .number("memory_swap_bytes", usage.memory.swap)
            .number("memory_high_events", usage.memory_high_events)
            .number("memory_max_events", usage.memory_max_events)
            .number("oom_kills", usage.oom_kills)
            .number("processes_peak", usage.processes_peak)
            .number("forks_refused", usage.forks_refused)
            .number("read_bytes", sum(|disk| disk.read))
            .number("written_bytes", sum(|disk| disk.written))
            .number("read_operations", sum(|disk| disk.reads))
            .number("write_operations", sum(|disk| disk.writes))
            .number("disks", io.map(|disks| array(disks.iter().map(of_disk))))
            .pressure("cpu", &usage.cpu_pressure)
            .pressure("memory", &usage.memory_pressure)
            .pressure("io", &usage.io_pressure)
    }

    fn pressure(&mut self, of: &str, pressure: &Pressure) -> &mut Self {
        self.seconds(&format!("{of}_pressure_some_seconds"), pressure.some)
            .seconds(&format!("{of}_pressure_full_seconds"), pressure.full)
    }

    /// The finished object.
    pub fn end(&mut self) -> String {
        self.0.push('}');
        std::mem::take(&mut self.0)
    }
}

impl Default for Object {
    fn default() -> Self {
        Self::new()
    }
}

fn of_disk(disk: &DiskIo) -> String {
    Object::new()
        .text("disk", Some(&format!("{}:{}", disk.disk.0, disk.disk.1)))
        .add("read_bytes", disk.read)
        .add("written_bytes", disk.written)
        .add("read_operations", disk.reads)
        .add("write_operations", disk.writes)
        .end()
}

/// An array of values that are JSON already.
pub fn array(all: impl Iterator<Item = String>) -> String {
    format!("[{}]", all.collect::<Vec<_>>().join(","))
}

/// A time in seconds, to the microsecond.
pub fn seconds(time: Duration) -> String {
    let rounded = time.saturating_add(Duration::from_nanos(500));
    format!("{}.{:06}", rounded.as_secs(), rounded.subsec_micros())
}

/// A JSON string.
pub fn text(value: &str) -> String {
    let mut quoted = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if !is_printable(c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_of_json() {
        assert_eq!(text("12[3].host"), "\"12[3].host\"");
        assert_eq!(text("a\"b\\c\nd\u{85}é"), "\"a\\\"b\\\\c\\u000ad\\u0085é\"");
        assert_eq!(text("\u{202e}x\u{e0001}"), "\"\\u202ex\\udb40\\udc01\"", "what directs a reader's eye");
    }

    #[test]
    fn a_time_is_rounded() {
        let seconds = |nanos| seconds(Duration::from_nanos(nanos));
        assert_eq!([0, 499, 500, 999_999_500].map(seconds), ["0.000000", "0.000000", "0.000001", "1.000000"]);
        assert_eq!(seconds(u64::MAX), "18446744073.709552");
    }

    #[test]
    fn what_is_not_known_is_null() {
        let disk = DiskIo { disk: (8, 0), read: 1, written: 2, reads: 3, writes: 4 };
        let usage = Usage { cpu: Some(Duration::from_micros(1_500_000)), io: Some(vec![disk]), ..Usage::default() };
        let json = Object::new().usage(&usage).end();
        for member in [
            "{\"cpu_seconds\":1.500000,",
            "\"cpu_user_seconds\":null,",
            "\"read_bytes\":1,\"written_bytes\":2,\"read_operations\":3,\"write_operations\":4,",
            "\"disks\":[{\"disk\":\"8:0\",\"read_bytes\":1,",
            "\"io_pressure_full_seconds\":null}",
        ] {
            assert!(json.contains(member), "{member} in {json}");
        }
        assert!(Object::new().usage(&Usage::default()).end().contains("\"disks\":null"));
    }
}
