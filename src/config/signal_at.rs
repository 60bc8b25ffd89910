// SPDX-License-Identifier: GPL-2.0-or-later
//! The value of `SignalAt` and of the option of that name: at which share of what a job's user is told, and by which signal.

use std::fmt;

use super::units::{Percent, Wrong, percent};

/// When a job is told, and how: at most six conditions, each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalAt([Option<ToldAt>; MOST]);

/// The most conditions of one value.
const MOST: usize = 6;

/// One condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldAt {
    /// What comes near its end.
    pub watched: Watched,
    /// The share of its limit, or of time.
    pub share: Percent,
    /// The number of the signal. `None`: a sentence alone.
    pub signal: Option<i32>,
    /// Whether the batch shell gets it, in place of the tasks of steps.
    pub to_batch_shell: bool,
}

/// The whole that the share is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// Memory in use, of its limit.
    Memory,
    /// Processes and threads, of their limit.
    Processes,
    /// Periods of the CPU quota that it ran out in, of the last minute.
    Throttled,
    /// Time in which a process waited for memory, of the last ten seconds.
    MemoryPressure,
    /// The same for a CPU.
    CpuPressure,
    /// The same for I/O.
    IoPressure,
}

/// How each begins, in capitals, and which it is: one text takes less room in a scheduler's daemon than six.
const BEGINNINGS: &str = "MEM: PIDS: CPU:THROTTLED= PRESSURE:MEMORY= PRESSURE:CPU= PRESSURE:IO=";
const WATCHED: [Watched; 6] = [
    Watched::Memory,
    Watched::Processes,
    Watched::Throttled,
    Watched::MemoryPressure,
    Watched::CpuPressure,
    Watched::IoPressure,
];

/// What a value must be.
pub(crate) const EXPECTS: &str = "none, or at most six conditions with commas between them, each one of mem: pids: cpu:throttled= \
                                  pressure:memory= pressure:cpu= pressure:io= and a percentage from 1 to 99, then perhaps a colon \
                                  and one of the signals HUP INT QUIT USR1 USR2 TERM CONT XCPU, and with one perhaps B: before it, \
                                  as mem:90%, B:mem:90%:TERM or mem:90%:USR1,pids:90%";

/// Which of several is wrong: one sentence behind the other, each of so many bytes.
const WRONG: &str = "condition 1 is wrongcondition 2 is wrongcondition 3 is wrongcondition 4 is wrongcondition 5 is wrongcondition 6 is wrong";
const EACH: usize = WRONG.len() / MOST;

/// Those that a program may expect. One that no program can catch is no word in time.
const SIGNALS: &str = "HUP INT QUIT USR1 USR2 TERM CONT XCPU";
const NUMBERS: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGXCPU,
];

fn beginnings() -> impl Iterator<Item = (&'static str, Watched)> {
    BEGINNINGS.split(' ').zip(WATCHED)
}

fn signals() -> impl Iterator<Item = (&'static str, i32)> {
    SIGNALS.split(' ').zip(NUMBERS)
}

/// Reads a value.
#[inline(never)]
pub(crate) fn read(text: &str) -> Result<SignalAt, Wrong> {
    let text = text.to_ascii_uppercase();
    let mut found = [None; MOST];
    for (at, piece) in text.split(',').enumerate() {
        let why = WRONG.get(at * EACH..(at + 1) * EACH).ok_or(Wrong::Because("there are more than six"))?;
        let which = |wrong| if text.contains(',') { Wrong::Because(why) } else { wrong };
        let condition = condition(piece).map_err(which)?;
        // Two of the same share would be said at once.
        let is_same = |other: &ToldAt| (other.watched, other.share) == (condition.watched, condition.share);
        if found.iter().flatten().any(is_same) {
            return Err(which(Wrong::Form));
        }
        if let Some(next) = found.get_mut(at) {
            *next = Some(condition);
        }
    }
    Ok(SignalAt(found))
}

fn condition(text: &str) -> Result<ToldAt, Wrong> {
    let rest = text.strip_prefix("B:");
    let to_batch_shell = rest.is_some();
    let rest = rest.unwrap_or(text);
    let begins = |(name, watched): (&str, Watched)| Some((watched, rest.strip_prefix(name)?));
    let (watched, rest) = beginnings().find_map(begins).ok_or(Wrong::Form)?;
    let (share, signal) = rest.split_once(':').unwrap_or((rest, ""));
    let name = signal.strip_prefix("SIG").unwrap_or(signal);
    let found = signals().find(|(known, _)| *known == name).map(|(_, number)| number);
    // Without a signal, nothing goes to the shell.
    if found.is_none() && (to_batch_shell || rest.contains(':')) {
        return Err(Wrong::Form);
    }
    Ok(ToldAt { watched, share: percent(share, 1..=99)?, signal: found, to_batch_shell })
}

impl Watched {
    /// Whether the kernel has it for cgroups of v2 alone.
    pub fn is_pressure(self) -> bool {
        matches!(self, Self::MemoryPressure | Self::CpuPressure | Self::IoPressure)
    }
}

impl SignalAt {
    /// The conditions in their order.
    pub fn conditions(&self) -> impl Iterator<Item = ToldAt> {
        self.0.iter().copied().flatten()
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        read(text).ok()
    }
}

/// As [`read`] reads it.
impl fmt::Display for SignalAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, condition) in self.0.iter().flatten().enumerate() {
            f.write_str(if at == 0 { "" } else { "," })?;
            condition.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for ToldAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.to_batch_shell { "B:" } else { "" })?;
        let name = beginnings().find(|(_, watched)| *watched == self.watched).map_or("", |(name, _)| name);
        f.write_str(&name.to_ascii_lowercase())?;
        self.share.fmt(f)?;
        let Some((name, _)) = signals().find(|(_, number)| Some(*number) == self.signal) else { return Ok(()) };
        f.write_str(":")?;
        f.write_str(name)
    }
}

/// Any value.
#[cfg(test)]
pub(super) fn any() -> impl proptest::strategy::Strategy<Value = SignalAt> {
    use proptest::prelude::*;
    let signal = prop::option::of(prop::sample::select(NUMBERS.to_vec()));
    let watched = prop::sample::select(WATCHED.to_vec());
    let condition = (watched, 100_u32..=9_900, signal, any::<bool>()).prop_map(|(watched, share, signal, shell)| {
        let share = Percent::from_hundredths(share);
        let to_batch_shell = shell && signal.is_some();
        ToldAt { watched, share, signal, to_batch_shell }
    });
    prop::collection::vec(condition, 1..=MOST).prop_map(|all| {
        let mut value = [None; MOST];
        let mut next = value.iter_mut();
        for (at, condition) in all.iter().enumerate() {
            let is_same = |other: &ToldAt| (other.watched, other.share) == (condition.watched, condition.share);
            if !all[..at].iter().any(is_same) {
                *next.next().unwrap() = Some(*condition);
            }
        }
        SignalAt(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<String, Wrong> {
        read(text).map(|value| value.to_string())
    }

    #[test]
    fn values_as_people_write_them() {
        for (text, same) in [
            ("mem:90%", "mem:90%"),
            ("mem:90", "mem:90%"),
            ("MEM:87.5%:sigusr1", "mem:87.5%:USR1"),
            ("b:mem:1:TERM", "B:mem:1%:TERM"),
            ("pids:90%", "pids:90%"),
            ("cpu:throttled=20", "cpu:throttled=20%"),
            ("B:Pressure:Memory=10%:usr2", "B:pressure:memory=10%:USR2"),
            ("pressure:cpu=5,pressure:io=99", "pressure:cpu=5%,pressure:io=99%"),
            ("mem:80,mem:95:TERM,pids:90", "mem:80%,mem:95%:TERM,pids:90%"),
        ] {
            assert_eq!(said(text), Ok(same.to_owned()));
            assert_eq!(SignalAt::parse(same), read(text).ok());
        }
        let signals = |text: &str| read(text).unwrap().conditions().map(|one| one.signal).collect::<Vec<_>>();
        assert_eq!(signals("B:mem:90%:USR2,pids:90%"), [Some(12), None]);
        for text in ["", "mem", "mem:", "90%", "mem:90%:", "mem:90%:SIG", "mem:90%:KILL", "mem:90%:STOP", "mem:90%:10"]
        {
            assert_eq!(said(text), Err(Wrong::Form), "{text}");
        }
        for text in ["B:mem:90%", "B:", "pids=90%", "mem:90%:USR1:USR2", " mem:90%", "mem:90% :USR1", "pressure:10%"] {
            assert_eq!(said(text), Err(Wrong::Form), "{text}");
        }
        for text in ["cpu:20%", "cpu:throttled:20%", "pressure:swap=1", "pressure:memory:10%"] {
            assert_eq!(said(text), Err(Wrong::Form), "{text}");
        }
        for text in ["mem:0", "mem:100", "mem:99.5%", "mem:0.5", "cpu:throttled=100"] {
            assert_eq!(said(text), Err(Wrong::Range), "{text}");
        }
    }

    #[test]
    fn of_several_the_wrong_one_is_named() {
        for (text, wrong) in [
            ("mem:90%,", "condition 2 is wrong"),
            (",mem:90%", "condition 1 is wrong"),
            ("mem:90%, pids:90%", "condition 2 is wrong"),
            ("mem:1,mem:2,mem:100,mem:4", "condition 3 is wrong"),
            ("mem:90%,mem:90%:USR1", "condition 2 is wrong"),
            ("mem:1,mem:2,mem:3,mem:4,mem:5,mem:6,mem:7", "there are more than six"),
        ] {
            assert_eq!(said(text), Err(Wrong::Because(wrong)), "{text}");
        }
        assert!(read("mem:1,mem:2,mem:3,mem:4,mem:5,mem:6").is_ok());
    }
}
