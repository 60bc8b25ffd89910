// SPDX-License-Identifier: GPL-2.0-or-later
//! How much of the last ten seconds at least one process of a step waited: `some avg10` of psi.rst. Only v2 has it for cgroups.
//!
//! The kernel computes the figure every two seconds. It moves towards the share of each two seconds, so it reaches a share only if there
//! was as much waiting in some two seconds. The kernel tells of half of that, and until then nothing is looked at.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use jobfence::config::{Percent, Watched};
use jobfence::fence::living::LivingStep;
use jobfence::sys::dir::Dir;

use super::crossing::{StepLook, UseLevel};
use super::directories::{Directories, Unseen};
use super::pace::COARSE;
use super::stall::{self, Waits};

const WINDOW: Duration = Duration::from_secs(2);

/// How long after the kernel has told the figure shows all that happened until then: it has moved twice, and was read since.
const SETTLED: Duration = Duration::from_secs(6);

/// The directory of a step, and what it waits for.
#[derive(Debug)]
pub struct StepPressure {
    pub directories: Directories,
    of: &'static str,
    pub trigger: Option<OwnedFd>,
    /// The share that the kernel tells of.
    told_of: Percent,
    /// When the kernel told, or was asked to tell.
    heard: Instant,
}

/// What the file's name begins with.
pub fn waited_for(watched: Watched) -> Option<&'static str> {
    match watched {
        Watched::MemoryPressure => Some("memory"),
        Watched::CpuPressure => Some("cpu"),
        Watched::IoPressure => Some("io"),
        Watched::Memory | Watched::Processes | Watched::Throttled => None,
    }
}

impl StepPressure {
    /// The pressure of a step. `None`: this kernel does not measure it.
    pub fn from_step(step: &LivingStep<'_>, of: &'static str) -> Option<Self> {
        let (directories, told_of) = (Directories::with_pressure(step)?, Percent::from_hundredths(0));
        some_avg10(&directories.open_step().ok()?, of)?;
        Some(Self { directories, of, trigger: None, told_of, heard: Instant::now() })
    }

    /// Looks once; with `may_be_told` the kernel is asked to tell.
    pub fn look(&mut self, share: Percent, may_be_told: bool) -> Result<StepLook, Unseen> {
        // Only the step's own processes count as waiting.
        let dir = self.directories.open_step()?;
        if self.trigger.is_none() && may_be_told {
            // The kernel is asked to tell of half of the share in two seconds.
            let waited = Duration::from_micros(share.of(1_000_000));
            self.trigger = stall::trigger(&dir, self.of, Waits::Some, (waited, WINDOW));
            self.hear();
            self.told_of = share;
        }
        let levels: Vec<UseLevel> = some_avg10(&dir, self.of).map(UseLevel::from_hundredths).into_iter().collect();
        let is_calm =
            is_settled(self.heard.elapsed()) && levels.iter().all(|level| level.used < share.of(level.limit) / 2);
        Ok(StepLook { is_told: self.trigger.is_some() && is_calm, levels, pause: COARSE })
    }

    /// The kernel has told.
    pub fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// Takes the file that tells of a share, if it tells of another share than this one.
    pub fn take_other(&mut self, share: Percent) -> Option<OwnedFd> {
        self.trigger.take_if(|_| self.told_of != share)
    }
}

/// Whether the figure shows all that had happened when the kernel told.
fn is_settled(since: Duration) -> bool {
    since >= SETTLED
}

/// The figure in hundredths of a percent.
fn some_avg10(dir: &Dir, of: &str) -> Option<u64> {
    hundredths(&dir.read_value(&format!("{of}.pressure")).ok()?)
}

/// The kernel writes two decimals.
fn hundredths(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let (whole, part) = some.split_whitespace().find_map(|part| part.strip_prefix("avg10="))?.split_once('.')?;
    let (whole, part): (u64, u64) = (whole.parse().ok()?, part.get(..2)?.parse().ok()?);
    Some(whole.saturating_mul(100).saturating_add(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_kernels_figure_is_read() {
        let text = "some avg10=12.07 avg60=3.00 avg300=1.00 total=5\nfull avg10=90.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(hundredths(text), Some(1_207));
        for text in [
            "",
            "some",
            "some avg10=",
            "some avg10=1",
            "some avg10=1.2",
            "full avg10=90.00 total=1\n",
            "some avg10=x.00",
        ] {
            assert_eq!(hundredths(text), None, "{text}");
        }
    }

    proptest! {
        /// A burst may come at any phase of the kernel's two seconds, of its windows, and of the looks. A look sees the share that the
        /// figure reaches.
        #[test]
        fn a_burst_is_seen_before_it_is_calm(
            share in 100_u64..9_900, burst in 1_u64..4_000, figure in 1_u64..2_001, window in 1_u64..2_001, look in 1_u64..1_001
        ) {
            let (mut average, mut most, mut seen) = (0.0_f64, 0.0_f64, 0.0_f64);
            let (mut before, mut begun, mut heard, mut has_heard) = (0, 0, None, false);
            for now in 1..20_000_u64 {
                let waited = now.min(burst);
                if now % 2_000 == figure % 2_000 {
                    let part = (waited - before) as f64 / 2_000.0 * 10_000.0;
                    average += (1.0 - (-0.2_f64).exp()) * (part - average);
                    (before, most) = (waited, most.max(average));
                }
                // The kernel tells once in each window.
                if !has_heard && waited > begun && (waited - begun) * 10_000 >= share * 1_000 {
                    (heard, has_heard) = (Some(now), true);
                }
                if now % 2_000 == window % 2_000 {
                    (begun, has_heard) = (waited, false);
                }
                let looks = heard.is_some_and(|heard| !is_settled(Duration::from_millis(now - heard)));
                if now % 1_000 == look % 1_000 && looks {
                    seen = seen.max(average);
                }
            }
            prop_assert!(most < share as f64 || seen >= share as f64, "{most} {seen} {heard:?}");
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,60}", figure in "some avg10=.{0,20}") {
            let _ = (hundredths(&text), hundredths(&figure));
        }

        /// The figure is computed as in kernel/sched/psi.c (`calc_avgs`), from random waiting. A step that crosses the share has waited for
        /// half of it in some two seconds.
        #[test]
        fn the_kernel_tells_before_the_figure_is_there(share in 100_u64..9_900, waited in prop::collection::vec(0_u64..10_001, 0..100)) {
            let (mut average, mut most) = (0.0_f64, 0);
            for waited in waited {
                most = most.max(waited);
                average += (1.0 - (-0.2_f64).exp()) * (waited as f64 - average);
                prop_assert!(average < share as f64 || most >= share / 2, "{average} {most}");
            }
        }
    }
}
