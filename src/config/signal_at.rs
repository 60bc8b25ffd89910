// SPDX-License-Identifier: GPL-2.0-or-later
//! The value of `SignalAt` and of the option of that name: at which share of a job's memory its user is told, and by which signal.

use std::fmt;

use super::units::{Percent, Wrong, percent};

/// When a job is told that its memory comes near its limit, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalAt {
    /// The share of the limit.
    pub share: Percent,
    /// The number of the signal. `None`: a sentence alone.
    pub signal: Option<i32>,
    /// Whether the batch shell gets it, in place of the tasks of steps.
    pub to_batch_shell: bool,
}

/// What a value must be.
pub(crate) const EXPECTS: &str = "none, or mem: and a percentage from 1 to 99, then perhaps a colon and one of the signals HUP INT QUIT \
                                  USR1 USR2 TERM CONT XCPU, and with one perhaps B: before all, as mem:90%, mem:90%:USR1 or B:mem:90%:TERM";

/// Those that a program may expect. One that no program can catch is no word in time.
const SIGNALS: [(&str, i32); 8] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("XCPU", libc::SIGXCPU),
];

/// Reads a value.
#[inline(never)]
pub(crate) fn read(text: &str) -> Result<SignalAt, Wrong> {
    let text = text.to_ascii_uppercase();
    let rest = text.strip_prefix("B:");
    let to_batch_shell = rest.is_some();
    let rest = rest.unwrap_or(&text).strip_prefix("MEM:").ok_or(Wrong::Form)?;
    let (share, signal) = rest.split_once(':').unwrap_or((rest, ""));
    let name = signal.strip_prefix("SIG").unwrap_or(signal);
    let found = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    // Without a signal, nothing goes to the shell.
    if found.is_none() && (to_batch_shell || rest.contains(':')) {
        return Err(Wrong::Form);
    }
    Ok(SignalAt { share: percent(share, 1..=99)?, signal: found, to_batch_shell })
}

impl SignalAt {
    /// The signal's name.
    pub fn signal_name(self) -> Option<&'static str> {
        SIGNALS.iter().find(|(_, number)| Some(*number) == self.signal).map(|(name, _)| *name)
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        read(text).ok()
    }
}

/// As [`read`] reads it.
impl fmt::Display for SignalAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.to_batch_shell { "B:mem:" } else { "mem:" })?;
        self.share.fmt(f)?;
        let Some(name) = self.signal_name() else { return Ok(()) };
        f.write_str(":")?;
        f.write_str(name)
    }
}

/// Any value.
#[cfg(test)]
pub(super) fn any() -> impl proptest::strategy::Strategy<Value = SignalAt> {
    use proptest::prelude::*;
    let signal = prop::option::of(prop::sample::select(SIGNALS.to_vec()));
    (100_u32..=9_900, signal, any::<bool>()).prop_map(|(share, signal, shell)| SignalAt {
        share: Percent::from_hundredths(share),
        signal: signal.map(|(_, number)| number),
        to_batch_shell: shell && signal.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_people_write_them() {
        let said = |text: &str| read(text).map(|value| value.to_string());
        for (text, same) in [
            ("mem:90%", "mem:90%"),
            ("mem:90", "mem:90%"),
            ("MEM:87.5%:sigusr1", "mem:87.5%:USR1"),
            ("b:mem:1:TERM", "B:mem:1%:TERM"),
        ] {
            assert_eq!(said(text), Ok(same.to_owned()));
            assert_eq!(SignalAt::parse(same), read(text).ok());
        }
        assert_eq!(read("B:mem:90%:USR2").unwrap().signal, Some(12));
        for text in ["", "mem", "mem:", "90%", "mem:90%:", "mem:90%:SIG", "mem:90%:KILL", "mem:90%:STOP", "mem:90%:10"]
        {
            assert_eq!(said(text), Err(Wrong::Form), "{text}");
        }
        for text in ["B:mem:90%", "B:", "pids:90%", "mem:90%:USR1:USR2", " mem:90%", "mem:90% :USR1"] {
            assert_eq!(said(text), Err(Wrong::Form), "{text}");
        }
        for text in ["mem:0", "mem:100", "mem:99.5%", "mem:0.5"] {
            assert_eq!(said(text), Err(Wrong::Range), "{text}");
        }
    }
}
