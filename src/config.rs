// SPDX-License-Identifier: GPL-2.0-or-later
//! What the administrator decides, in the familiar grammar of Slurm's `cgroup.conf`.
//!
//! ```text
//! # /etc/slurm/jobfence.conf
//! Mode=enforce  OnError=fail,swap:warn
//! CgroupMountpoint = "/sys/fs/cgroup"
//! AllowedRAMSpace=98.5
//! ```
//!
//! Assignments `Key=Value` on a line are separated by blanks or tabs. Keys are case-insensitive. `#` starts a comment until the end of the
//! line, and `\#` does not escape it: a value with a `#` or a blank must be in double quotes, which have no escapes either. The last line
//! needs no newline. The same assignments may be arguments in `plugstack.conf`, where they override the file; there everything behind the
//! `=` is the value, since Slurm has already split the line.
//!
//! `IOMax` has several parts, like NodeName in slurm.conf(5): the rates behind it on its line belong to it, and it may be repeated for
//! another target.
//!
//! Root obeys the file: whatever is not understood is refused with its line and column, and nothing is guessed.

mod error;
mod file;
mod keys;
mod layer;
mod lexer;
mod limits;
mod load;
mod parser;
mod pattern;
mod resolve;
#[cfg(test)]
mod samples;
mod sections;
mod setting;
mod slot_request;
mod strictness;
mod suggest;
pub(crate) mod units;
mod values;

pub use error::ConfigError;
pub use keys::{KEYS, Key, USAGE_CARD_EXPECTS, usage_card, usage_card_text};
pub(crate) use limits::joined;
pub use limits::{Limit, LimitNumbers, NUMBERS, Number};
pub use load::{DEFAULT_FILE, LoadError, load, load_named, parse};
pub use resolve::{Candidate, Loaded, Named, Resolved};
pub use sections::SectionKind;
pub use setting::{Origin, Setting};
pub use slot_request::{PerSlot, SlotRequest};
pub use suggest::nearest;
pub(crate) use units::SIZE;
pub use units::{Percent, Period, Wrong};
pub use values::{
    Config, CpuPolicy, DeniedDevices, Mode, OnError, OnErrors, StoreUsage, SwapSpace, TaskCpus, UsageCard,
};

use crate::job::Cpus;

/// A size as in `MinRAMSpace`, in bytes, at least 1 MiB: a plain number is in MiB.
pub fn parse_size(text: &str) -> Option<u64> {
    units::size(text).ok()
}

/// CPUs as in `MaxCPUsPerUser`: a number up to 1024 with at most three decimals.
pub fn parse_cpus(text: &str) -> Option<Cpus> {
    units::cpus(text).ok()
}
