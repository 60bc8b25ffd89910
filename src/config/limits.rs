// SPDX-License-Identifier: GPL-2.0-or-later
//! The table of limits: one row names a limit, and a row with a [`Number`] is all that such a limit needs.

use std::fmt;

#[cfg(test)]
use proptest::prelude::*;

use super::units::{Wrong, processes};
use crate::cgroup::layout::Version;
use crate::cgroup::limits::MOST_PROCESSES;

/// Generates all that names each limit, from rows of `Variant: "word in OnError", "name in messages"` and optionally a [`Number`].
macro_rules! limits {
    ($($(#[$doc:meta])* $limit:ident: $word:literal, $name:literal $(, $number:expr)?;)*) => {
        /// The limits for which `OnError` can differ.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Limit {
            $($(#[$doc])* $limit,)*
        }

        /// The word of each for `OnError`, in the order of [`Limit`].
        pub(super) static LIMITS: &[(&str, Limit)] = &[$(($word, Limit::$limit),)*];

        /// What the value of `OnError` must be.
        pub(super) const ON_ERROR_EXPECTS: &str = concat!(
            "fail or warn, then perhaps at most once each of ", $($word, ", ",)* "as fail,swap:warn"
        );

        /// The limits that are a number, in the order of [`Limit`].
        pub static NUMBERS: &[(Limit, Number)] = &[$($((Limit::$limit, $number),)?)*];

        impl Limit {
            /// Its word in `OnError`.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$limit => $word,)*
                }
            }
        }

        impl fmt::Display for Limit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$limit => $name,)*
                })
            }
        }
    };
}

limits! {
    /// CPU quota.
    Cpu: "cpu", "CPU";
    /// CPU time saved for later.
    Burst: "burst", "CPU burst";
    /// CPU weight, and the class of scavengers.
    Weight: "weight", "CPU weight";
    /// The CPUs that may be used.
    Cores: "cores", "cores";
    /// Memory.
    Ram: "ram", "RAM";
    /// Swap.
    Swap: "swap", "swap";
    /// Reclaim before the limit of memory.
    MemoryHigh: "memhigh", "memory.high";
    /// Memory that is not reclaimed.
    MemoryProtection: "memlow", "memory protection";
    /// Out-of-memory kills of whole steps.
    OomGroup: "oomgroup", "OOM group";
    /// The number of processes.
    Processes: "processes", "processes", Number {
        controller: "pids",
        file: |_| Some("pids.max"),
        spares_daemons: false,
        keys: ["MaxProcesses", "MaxProcessesPerUser", "MaxProcessesPerTask"],
        expects: "a whole number of processes from 1 to 4194304, or unlimited",
        read: processes,
        text: |count| count.to_string(),
        in_words: |count| format!("{count} processes"),
        // With headroom for daemons it may be more than the kernel takes.
        in_kernel: |count| count.min(MOST_PROCESSES),
    };
    /// I/O bandwidth and operations.
    Io: "io", "I/O";
    /// I/O weight.
    IoWeight: "ioweight", "I/O weight";
    /// Huge pages.
    HugePages: "hugepages", "huge pages";
    /// Devices.
    Devices: "devices", "devices";
    /// What leaves the node by the network.
    Network: "network", "network";
}

/// A limit that is one number in one file of a controller, and `unlimited` if its key is absent.
#[derive(Debug)]
pub struct Number {
    /// The controller that the file belongs to.
    pub controller: &'static str,
    /// The file; `None` if this version has none.
    pub file: fn(Version) -> Option<&'static str>,
    /// Whether it is not set in directories with a daemon of the scheduler's, which it could kill.
    pub spares_daemons: bool,
    /// The keys: of the job and each of its steps, of the user, and of each task.
    pub keys: [&'static str; 3],
    /// What the value of a key must be; completes "expected ...".
    pub expects: &'static str,
    /// Reads a value that is not `unlimited`.
    pub read: fn(&str) -> Result<u64, Wrong>,
    /// The reverse of `read`.
    pub text: fn(u64) -> String,
    /// Its text for the log and `jobfence explain`.
    pub in_words: fn(u64) -> String,
    /// The value as the kernel keeps it, such as whole pages.
    pub in_kernel: fn(u64) -> u64,
}

impl Number {
    /// The number of this limit, if it is one.
    pub fn for_limit(limit: Limit) -> Option<&'static Self> {
        NUMBERS.iter().find(|(known, _)| *known == limit).map(|(_, number)| number)
    }
}

/// The limits at one level that are a [`Number`]; `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitNumbers([Option<u64>; NUMBERS.len()]);

impl LimitNumbers {
    /// This limit alone.
    pub fn with(limit: Limit, number: impl Into<Option<u64>>) -> Self {
        let mut all = Self::default();
        all.set(limit, number.into());
        all
    }

    /// The value of a limit.
    pub fn get(&self, limit: Limit) -> Option<u64> {
        self.0.iter().zip(NUMBERS).find(|(_, (known, _))| *known == limit).and_then(|(number, _)| *number)
    }

    /// Sets the value of a limit.
    pub fn set(&mut self, limit: Limit, number: Option<u64>) {
        for (current, _) in self.0.iter_mut().zip(NUMBERS).filter(|(_, (known, _))| *known == limit) {
            *current = number;
        }
    }

    /// The limits that are set, for the log.
    pub fn in_words(&self) -> Option<String> {
        let limited = NUMBERS.iter().zip(self.0).filter_map(|((_, number), value)| value.map(number.in_words));
        let all: Vec<String> = limited.collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// For each limit none, or a value that it accepts: as it is, or in MiB.
    #[cfg(test)]
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let number = |(limit, number): &'static (Limit, Number)| {
            let value =
                |small: u64| [small, small << 20].into_iter().find(|n| (number.read)(&(number.text)(*n)) == Ok(*n));
            prop::option::of(1_u64..=MOST_PROCESSES).prop_map(move |small| (*limit, small.and_then(value)))
        };
        NUMBERS.iter().map(number).collect::<Vec<_>>().prop_map(|all| {
            all.into_iter().fold(Self::default(), |mut numbers, (limit, number)| {
                numbers.set(limit, number);
                numbers
            })
        })
    }

    /// The lower of each.
    #[must_use]
    pub fn at_most(mut self, other: &Self) -> Self {
        for (number, other) in self.0.iter_mut().zip(other.0) {
            *number = number.map_or(other, |number| Some(other.map_or(number, |other| number.min(other))));
        }
        self
    }

    /// The limits that are set here, none above that of the level around it.
    #[must_use]
    pub fn within(mut self, around: &Self) -> Self {
        for (number, around) in self.0.iter_mut().zip(around.0) {
            *number = number.map(|number| around.map_or(number, |around| number.min(around)));
        }
        self
    }
}

/// Joins the three parts of a table: the limits that are numbers stand between others.
pub(crate) const fn joined<T: Copy, const ALL: usize>(parts: [&[T]; 3]) -> [T; ALL] {
    let mut all = [parts[0][0]; ALL];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut row = 0;
        while row < parts[part].len() {
            all[at] = parts[part][row];
            (row, at) = (row + 1, at + 1);
        }
        part += 1;
    }
    assert!(at == ALL);
    all
}
