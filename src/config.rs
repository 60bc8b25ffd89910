// SPDX-License-Identifier: GPL-2.0-or-later
//! The administrator's configuration, in the grammar of Slurm's `cgroup.conf`, so that it need not be learned.
//!
//! ```text
//! # /etc/jobfence/jobfence.conf
//! Mode=enforce  OnError=fail,swap:warn
//! CgroupMountpoint = "/sys/fs/cgroup"
//! AllowedRAMSpace=98.5
//! ```
//!
//! Assignments `Key=Value` stand on a line, separated by blanks or tabs. Keys do not distinguish case. `#` starts a comment
//! that ends with the line, and `\#` does not escape it: a value with a `#` or a blank stands in double quotes, which have
//! no escapes either. The last line needs no newline. The same assignments may be arguments in `plugstack.conf`, where they
//! override the file. There everything behind the `=` is the value, since Slurm has already split the line.
//!
//! `IOMax` has several parts, as NodeName has in slurm.conf(5): the rates that follow it on its line belong to it, and it may be
//! given again for another target.
//!
//! Root obeys the file, so nothing is guessed: what is not understood is refused with its line and column.

/// Larger once a key has gone or means something else. What a file of the form before said is then in CHANGELOG.md.
pub const FORM: u32 = 1;

mod candidates;
mod error;
mod file;
mod keys;
mod kinds;
mod layer;
mod lexer;
mod limits;
mod load;
#[cfg(test)]
mod manual;
mod out_of_memory;
mod parser;
mod pattern;
mod private_paths;
mod resolve;
#[cfg(test)]
mod samples;
mod sections;
mod setting;
pub(crate) mod signal_at;
mod slot_request;
mod strictness;
mod suggest;
pub(crate) mod units;
mod values;

pub use error::ConfigError;
pub use keys::{Config, KEYS, Key};
pub use kinds::{USAGE_CARD_EXPECTS, usage_card, usage_card_text, yes_no};
pub(crate) use limits::joined;
pub use limits::{Limit, LimitNumbers, NUMBERS, Number};
pub use load::{DEFAULT_FILES, LoadError, OWN_FILE, default_files, load, load_named, parse};
pub use out_of_memory::RunAgain;
pub use pattern::at_or_above;
pub(crate) use private_paths::is_shared;
pub use resolve::{Candidate, Loaded, Named, Resolved};
pub use sections::SectionKind;
pub use setting::{Origin, Setting};
pub use signal_at::{SignalAt, ToldAt, Watched};
pub use slot_request::{PerSlot, SlotRequest};
pub use suggest::nearest;
pub(crate) use units::SIZE;
pub use units::{Percent, Period, Wrong};
pub use values::{
    CpuPolicy, Delegation, DeniedDevices, GrantedHugePages, IdleAction, LoginBudget, LoginLimits, MemoryShare, Mode,
    OnError, OnErrors, StoreUsage, StraysAction, SwapSpace, TaskCpus, UsageCard,
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
