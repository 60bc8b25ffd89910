// SPDX-License-Identifier: GPL-2.0-or-later
//! The holder of a fence: as long as it lives, or may live, the janitor leaves the fence.

use std::fmt;

use crate::error::{Error, Result};
use crate::sys::process::Owner;

/// What holds a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A process: the one that opened it, or another.
    Process(Owner),
    /// One start of a systemd unit; each start has its own invocation.
    Unit {
        /// As systemctl names it: `torque-mom.service`.
        name: String,
        /// Its `InvocationID`, 32 hexadecimal digits.
        invocation: String,
    },
    /// A scheduler, which is asked whether the job still runs.
    Scheduler {
        /// As it calls itself.
        name: String,
    },
    /// Nothing that can be asked: only closing the fence, or another boot, ends it.
    Manual,
}

/// The longest name of a unit (`UNIT_NAME_MAX` of systemd).
const LONGEST_UNIT: usize = 255;

impl Holder {
    /// One start of a unit.
    pub fn unit(name: &str, invocation: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || ":_.\\@-".contains(c);
        let is_named = !name.is_empty() && name.len() <= LONGEST_UNIT && name.chars().all(plain);
        if !is_named || name.starts_with('-') || !name.contains('.') {
            return Err(Error::new("not the name of a unit of systemd's:").value(name));
        }
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if invocation.len() != 32 || !invocation.chars().all(is_digit) {
            return Err(Error::new("not an InvocationID of systemd's:").value(invocation));
        }
        Ok(Self::Unit { name: name.to_owned(), invocation: invocation.to_owned() })
    }

    /// A scheduler of this name.
    pub fn scheduler(name: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(Error::new("not the name of a scheduler:").value(name));
        }
        Ok(Self::Scheduler { name: name.to_owned() })
    }

    /// Reads what `Display` writes, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let holder = match words.next()? {
            "process" => {
                let owner = Owner { pid: words.next()?.parse().ok()?, start: words.next()?.parse().ok()? };
                (owner.pid > 0).then_some(Self::Process(owner))?
            }
            "unit" => Self::unit(words.next()?, words.next()?).ok()?,
            "scheduler" => Self::scheduler(words.next()?).ok()?,
            "manual" => Self::Manual,
            _ => return None,
        };
        (holder.to_string() == text).then_some(holder)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(Owner { pid, start }) => write!(f, "process {pid} {start}"),
            Self::Unit { name, invocation } => write!(f, "unit {name} {invocation}"),
            Self::Scheduler { name } => write!(f, "scheduler {name}"),
            Self::Manual => f.write_str("manual"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVOCATION: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_is_written_is_understood_and_nothing_else() {
        let all = [
            Holder::Process(Owner { pid: 7, start: 9 }),
            Holder::unit("a@b\\x2d.service", INVOCATION).unwrap(),
            Holder::scheduler("OpenPBS").unwrap(),
            Holder::Manual,
        ];
        for holder in all {
            let text = holder.to_string();
            assert_eq!(Holder::parse(&text).as_ref(), Some(&holder));
            for wrong in [format!("{text} "), format!(" {text}"), format!("{text} x"), text.to_uppercase()] {
                assert_eq!(Holder::parse(&wrong), None, "{wrong:?}");
            }
        }
        for wrong in ["", "process 0 1", "process +7 9", "process 07 9", "unit a.service", "scheduler", "manual x"] {
            assert_eq!(Holder::parse(wrong), None, "{wrong:?}");
        }
        for name in ["", "-p.service", "a b.service", "a\n.service", "a"] {
            assert!(Holder::unit(name, INVOCATION).is_err(), "{name:?}");
        }
        assert!(Holder::unit("a.service", &INVOCATION[1..]).is_err());
        assert!(Holder::scheduler("a b").is_err());
    }
}
