// SPDX-License-Identifier: GPL-2.0-or-later
//! How much of the last ten seconds at least one process of a step waited: `some avg10` of psi.rst. Only v2 has it for cgroups.
//!
//! The kernel computes the figure every two seconds. It moves towards the share of each two seconds, so it reaches a share only if there
//! was as much waiting in some two seconds. The kernel tells of half of that, and until then nothing is looked at.

use std::os::fd::OwnedFd;
use std::time::Duration;

use jobfence::config::{Percent, Watched};
use jobfence::fence::living::LivingStep;
use jobfence::sys::dir::Dir;

use super::crossing::{StepLook, UseLevel};
use super::directories::Directories;
use super::pace::COARSE;
use super::stall::{self, Waits};

const WINDOW: Duration = Duration::from_secs(2);

/// The directory of a step, and what it waits for.
#[derive(Debug)]
pub struct StepPressure {
    pub directories: Directories,
    of: &'static str,
    trigger: Option<OwnedFd>,
}

/// The first part of the file's name.
pub fn waited_for(watched: Watched) -> Option<&'static str> {
    match watched {
        Watched::MemoryPressure => Some("memory"),
        Watched::CpuPressure => Some("cpu"),
        Watched::IoPressure => Some("io"),
        Watched::Memory | Watched::Processes | Watched::Throttled => None,
    }
}

impl StepPressure {
    /// `None`: this kernel does not measure it.
    pub fn of_step(step: &LivingStep<'_>, of: &'static str) -> Option<Self> {
        let this = Self { directories: Directories::with_pressure(step)?, of, trigger: None };
        some_avg10(&this.open()?, of).is_some().then_some(this)
    }

    /// Looks once; with `may_be_told` the kernel is asked to tell. `None`: the step has ended.
    pub fn look(&mut self, share: Percent, may_be_told: bool) -> Option<StepLook> {
        let dir = self.open()?;
        if self.trigger.is_none() && may_be_told {
            // Half of the share of two seconds.
            let waited = Duration::from_micros(share.of(1_000_000));
            self.trigger = stall::trigger(&dir, self.of, Waits::Some, (waited, WINDOW));
        }
        let levels: Vec<UseLevel> = some_avg10(&dir, self.of).map(UseLevel::of_time).into_iter().collect();
        let is_calm = levels.iter().all(|level| level.used < share.of(level.limit) / 2);
        Some(StepLook { is_told: self.trigger.is_some() && is_calm, levels, pause: COARSE })
    }

    /// The step's own directory: its processes are those that wait.
    fn open(&self) -> Option<Dir> {
        self.directories.open()?.pop()
    }

    /// What the kernel tells by.
    pub fn trigger(&self) -> Option<&OwnedFd> {
        self.trigger.as_ref()
    }
}

/// In hundredths of a percent.
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
        #[test]
        fn no_text_makes_it_panic(text in ".{0,60}", figure in "some avg10=.{0,20}") {
            let _ = (hundredths(&text), hundredths(&figure));
        }

        /// The figure as kernel/sched/psi.c has it (`calc_avgs`), of random waiting: whoever crosses the share has waited for half of it in
        /// some two seconds.
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
