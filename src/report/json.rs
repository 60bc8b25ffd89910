// SPDX-License-Identifier: GPL-2.0-or-later
//! Usage as JSON (RFC 8259). The names of members and their units stay the same in every release; additions get new names.
//!
//! Figures that the kernel does not keep are `null`, never 0. `docs/usage.md` lists the members.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use crate::figures::{DiskIo, FIGURES, Unit, Usage};
use crate::job::Cpus;
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

    /// Adds a number of CPUs, or `null`.
    pub fn cpus(&mut self, name: &str, value: Option<Cpus>) -> &mut Self {
        self.number(name, value)
    }

    /// Adds texts.
    pub fn texts(&mut self, name: &str, all: &[String]) -> &mut Self {
        self.add(name, array(all.iter().map(|one| text(one))))
    }

    /// Adds usage figures: the same members in every object.
    pub fn usage(&mut self, usage: &Usage) -> &mut Self {
        for (figure, number) in FIGURES.iter().zip(usage.numbers()) {
            match figure.unit {
                Unit::Seconds => self.seconds(figure.member, number.map(Duration::from_micros)),
                Unit::Bytes | Unit::Count => self.number(figure.member, number),
                Unit::EachDisk => {
                    let disks = usage.disks.as_ref().map(|disks| array(disks.iter().map(of_disk)));
                    self.number(figure.member, disks)
                }
            };
        }
        self
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

/// A value of JSON that was read: the counterpart of [`Object`]. A member that is missing, or of another kind, is not known.
pub trait Given<'a>: Copy {
    /// The member of this name.
    fn member(self, name: &str) -> Option<Self>;
    /// The values of an array.
    fn values(self) -> Option<Vec<Self>>;
    /// The value as a text.
    fn as_text(self) -> Option<&'a str>;
    /// The value as a number.
    fn as_decimal(self) -> Option<f64>;
    /// The value as a whole number.
    fn as_whole(self) -> Option<u64>;

    /// A text.
    fn text(self, name: &str) -> Option<String> {
        self.member(name)?.as_text().map(str::to_owned)
    }

    /// A whole number.
    fn number(self, name: &str) -> Option<u64> {
        self.member(name)?.as_whole()
    }

    /// A time.
    fn seconds(self, name: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(self.member(name)?.as_decimal()?).ok()
    }

    /// A number of CPUs.
    fn cpus(self, name: &str) -> Option<Cpus> {
        let thousandths = (self.member(name)?.as_decimal()? * 1000.0).round();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 65536 CPUs")]
        (thousandths >= 0.0).then(|| Cpus::from_thousandths(thousandths as u64))
    }

    /// Texts.
    fn texts(self, name: &str) -> Vec<String> {
        let all = self.member(name).and_then(Self::values).unwrap_or_default();
        all.into_iter().filter_map(|one| one.as_text().map(str::to_owned)).collect()
    }

    /// Usage figures.
    fn usage(self) -> Usage {
        let mut numbers = Usage::default().numbers();
        let mut disks = None;
        for (figure, number) in FIGURES.iter().zip(&mut numbers) {
            match figure.unit {
                Unit::Seconds => {
                    // A decimal fraction in a float can be a little less than the microsecond that was written.
                    let rounded = |time: Duration| time.saturating_add(Duration::from_nanos(500)).as_micros() as u64;
                    *number = self.seconds(figure.member).map(rounded);
                }
                Unit::Bytes | Unit::Count => *number = self.number(figure.member),
                Unit::EachDisk => disks = self.member(figure.member).and_then(Self::values),
            }
        }
        let disks = disks.map(|all| all.into_iter().filter_map(disk_of).collect());
        Usage { disks, ..Usage::from_numbers(numbers) }
    }
}

fn disk_of<'a>(given: impl Given<'a>) -> Option<DiskIo> {
    let number = |name| given.number(name).unwrap_or_default();
    let (major, minor) = given.member("disk")?.as_text()?.split_once(':')?;
    Some(DiskIo {
        disk: (major.parse().ok()?, minor.parse().ok()?),
        read: number("read_bytes"),
        written: number("written_bytes"),
        reads: number("read_operations"),
        writes: number("write_operations"),
    })
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
        let usage = Usage { cpu: Some(Duration::from_micros(1_500_000)), ..Usage::from_disks(vec![disk]) };
        let json = Object::new().usage(&usage).end();
        for member in [
            "{\"cpu_seconds\":1.500000,",
            "\"cpu_user_seconds\":null,",
            "\"read_bytes\":1,\"written_bytes\":2,\"read_operations\":3,\"write_operations\":4,",
            "\"disks\":[{\"disk\":\"8:0\",\"read_bytes\":1,",
            "\"io_pressure_full_seconds\":null,\"rchar_bytes\":null,\"wchar_bytes\":null}",
        ] {
            assert!(json.contains(member), "{member} in {json}");
        }
        assert!(Object::new().usage(&Usage::default()).end().contains("\"disks\":null"));
    }
}
