// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job's user can request next time.
//!
//! Advice must never make the same job fail: it is above all that was used, and there is none if more may have been used than the figures
//! show.

use std::time::Duration;

use super::figures::{Figures, LITTLE, LONG, MATTERS, REACHED, SHORT, percent};
use super::words::{decimal, duration};
use crate::bytes::binary;
use crate::report::account::Exit;
use crate::report::nodes::Nodes;

/// The advised amount in percent of what was used.
const WITH_RESERVE: u128 = 125;

/// How far above a whole number of CPUs a job may be without needing another one, in thousandths: the shell and the daemon are counted,
/// too.
const NO_OTHER: u64 = 50;

/// The advised amount after a kill for lack of memory, in percent of the limit.
const AFTER_A_KILL: u128 = 150;

/// What to request next time, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// Memory, in bytes.
    pub memory: Option<(u64, String)>,
    /// CPUs of the whole job.
    pub cpus: Option<(u64, String)>,
    /// Time.
    pub time: Option<(Duration, String)>,
}

impl Figures<'_> {
    /// What to request next time.
    pub fn advice(&self) -> Advice {
        let cpus = self.advice_on_cpus();
        // With fewer CPUs the job takes longer.
        let time = if cpus.is_some() { None } else { self.advice_on_time() };
        Advice { memory: self.advice_on_memory(), cpus, time }
    }

    /// Whether less than the grant would have sufficed, by the figures: they must be those of all nodes.
    fn could_have_less(&self) -> bool {
        self.exit.is_some_and(Exit::is_success)
            && !self.was_stopped()
            && self.others.map_or(self.nodes == Some(1), Nodes::are_whole)
            && self.wall.is_some_and(|wall| wall >= SHORT)
    }

    fn advice_on_memory(&self) -> Option<(u64, String)> {
        // Each node gets what is requested.
        if !self.others.is_none_or(Nodes::are_even) {
            return None;
        }
        let (peak, most) = (self.usage.memory_peak?, self.most_memory()?);
        let granted = self.memory.unwrap_or(most);
        // The request that leads to a limit of this size.
        let asked = |bytes: u128| {
            let scaled = if most < granted {
                bytes.checked_mul(granted.into())?.div_ceil(u128::from(most.max(1)))
            } else {
                bytes
            };
            rounded(scaled)
        };
        let is_reached = percent(peak.into(), most.into()).is_some_and(|share| share >= REACHED);
        if self.usage.oom_kills.is_some_and(|kills| kills > 0) {
            let more = asked(u128::from(most.max(peak)) * AFTER_A_KILL / 100).filter(|_| is_reached)?;
            return Some((more, format!("{} was not enough; the need is not known", binary(most))));
        }
        // No peak contains memory that was reclaimed or swapped out.
        let was_kept_down = |count: Option<u64>| count.is_some_and(|count| count > 0);
        let is_all_seen = self.usage.swap_peak.map_or(self.is_without_swap, |peak| peak == 0)
            && !was_kept_down(self.usage.memory_high_events)
            && !was_kept_down(self.usage.memory_max_events)
            && !is_reached;
        let less = asked(u128::from(peak) * WITH_RESERVE / 100)?;
        (self.could_have_less() && is_all_seen && is_memory_worth_it(granted, less))
            .then(|| (less, format!("peak was {} of {}; 25 % reserve", binary(peak), binary(most))))
    }

    fn advice_on_cpus(&self) -> Option<(u64, String)> {
        let (busy, granted, most) = (self.busy()?, self.cpus?, self.most_cpus()?);
        // A program is busy on whole CPUs, so no other reserve is needed. The quota may be a share of the grant. Then it is the same share
        // of fewer CPUs.
        let asked = u128::from(busy.saturating_sub(NO_OTHER)) * u128::from(granted.thousandths());
        let less = asked.checked_div(most.thousandths().into())?.div_ceil(1000);
        let less = u64::try_from(less).ok()?.max(1);
        let is_less = less.checked_mul(1000).is_some_and(|less| less < granted.thousandths());
        (self.could_have_less() && is_less && is_little(busy, most.thousandths()) && self.throttled().is_none()).then(
            || {
                let reason = format!(
                    "{} of {} were busy on average; slower if a part used more",
                    decimal(busy),
                    most.in_words()
                );
                (less, reason)
            },
        )
    }

    fn advice_on_time(&self) -> Option<(Duration, String)> {
        let wall = self.wall.filter(|wall| *wall >= LONG)?;
        self.words.time?;
        let seconds = u128::from(wall.as_secs()) * WITH_RESERVE / 100 + 1;
        let step: u128 = if seconds < 3600 { 60 } else { 300 };
        let enough = Duration::from_secs(u64::try_from(seconds.div_ceil(step).checked_mul(step)?).ok()?);
        let is_less = self.time_limit.is_none_or(|limit| enough < limit && limit - enough >= limit / 5);
        (self.exit.is_some_and(Exit::is_success) && !self.was_stopped() && is_less)
            .then(|| (enough, format!("ran {}; 25 % reserve", duration(wall))))
    }
}

/// The memory to ask for on each node if so much was used at the most, with a reserve in percent of it. `None`: more than can be said.
pub fn memory_to_ask(peak: u64, reserve: u64) -> Option<u64> {
    rounded(u128::from(peak).checked_mul(100 + u128::from(reserve))? / 100)
}

/// Whether asking for so much less memory is worth a sentence.
pub fn is_memory_worth_it(granted: u64, less: u64) -> bool {
    let saved = granted.saturating_sub(less);
    saved >= granted / 5 && saved >= 256 << 20
}

/// The CPUs to ask for if so many were busy on average, both in thousandths, except that the result is whole.
pub fn cpus_to_ask(busy: u64) -> u64 {
    busy.saturating_sub(NO_OTHER).div_ceil(1000).max(1)
}

/// Whether so many busy CPUs would not have fitted into these.
pub fn is_above(busy: u64, cpus: u64) -> bool {
    busy > cpus.saturating_mul(1000).saturating_add(NO_OTHER)
}

/// Whether so many busy CPUs, in thousandths, are little of those that were granted. A program that is busy on one of two has too many.
pub fn is_little(busy: u64, granted: u64) -> bool {
    percent(busy.saturating_sub(NO_OTHER).into(), granted.into()).is_some_and(|share| share < LITTLE)
}

/// Whether a peak may have reached its limit.
pub fn is_reached(peak: u64, limit: u64) -> bool {
    percent(peak.into(), limit.into()).is_some_and(|share| share >= REACHED)
}

/// Whether a quota held processes back in so many of its periods that they needed more.
pub fn is_held_back(throttled: u64, periods: u64) -> bool {
    percent(throttled.into(), periods.into()).is_some_and(|share| share >= MATTERS)
}

/// Whether a job was too short for its figures to be a basis.
pub fn is_too_short(wall: Duration) -> bool {
    wall < SHORT
}

/// Rounds up to amounts that people write: multiples of 64 MiB, then 256 MiB, then 1 GiB.
fn rounded(bytes: u128) -> Option<u64> {
    let step: u128 = match bytes {
        0..0x4000_0000 => 64 << 20,
        0x4000_0000..0x1_0000_0000 => 256 << 20,
        _ => 1 << 30,
    };
    u64::try_from(bytes.max(1).div_ceil(step) * step).ok()
}
