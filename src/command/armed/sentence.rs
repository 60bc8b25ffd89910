// SPDX-License-Identifier: GPL-2.0-or-later
//! What the user of a step reads, with the figures of that moment, and what the log says.

use jobfence::bytes::mebibytes;
use jobfence::config::{Percent, ToldAt, Watched};
use nix::sys::signal::Signal;

use super::crossing::UseLevel;
use crate::table::printable;

/// The sentence for the user. `name`: the step's name.
pub fn sentence(name: &str, node: &str, level: UseLevel, condition: ToldAt, signal: Option<Signal>) -> String {
    let UseLevel { used, limit } = level;
    let (node, share) = (printable(node), condition.share);
    let time = || Percent::from_hundredths(used.try_into().unwrap_or(u32::MAX));
    let waited =
        |what: &str| format!("waited for {what} in {} of the last ten seconds on {node}, more than {share}.", time());
    let said = match condition.watched {
        Watched::Memory => format!(
            "uses {} of {} of memory on {node}, more than {share} of its limit. At the limit the kernel kills it.",
            mebibytes(used),
            mebibytes(limit)
        ),
        Watched::Processes => format!(
            "has {used} of {limit} processes and threads on {node}, more than {share} of its limit. At the limit it can start no other."
        ),
        Watched::Throttled => format!(
            "was throttled in {} of the last minute on {node}, more than {share}. It wants more CPU time than it has been granted.",
            time()
        ),
        Watched::MemoryPressure => waited("memory"),
        Watched::CpuPressure => waited("a CPU"),
        Watched::IoPressure => waited("I/O"),
    };
    let then = signal.map_or_else(String::new, |signal| format!(" It gets {signal} now."));
    format!("jobfence: {name} {said}{then}")
}

/// The words for the log.
pub fn in_short(watched: Watched) -> &'static str {
    match watched {
        Watched::Memory => "its memory comes near its limit",
        Watched::Processes => "its processes come near their limit",
        Watched::Throttled => "it is throttled",
        Watched::MemoryPressure => "it waits for memory",
        Watched::CpuPressure => "it waits for a CPU",
        Watched::IoPressure => "it waits for I/O",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobfence::config::SignalAt;

    fn said(text: &str, (used, limit): (u64, u64), signal: Option<Signal>) -> String {
        let condition = SignalAt::parse(text).unwrap().conditions().next().unwrap();
        sentence("job 7 step 0", "n1", UseLevel { used, limit }, condition, signal)
    }

    #[test]
    fn the_sentence_has_the_figures_and_says_what_follows() {
        let first = "jobfence: job 7 step 0 uses 181.0 MiB of 200.0 MiB of memory on n1, more than 90% of its limit. At the limit the \
                     kernel kills it.";
        let memory = (181 << 20, 200 << 20);
        assert_eq!(said("mem:90%", memory, None), first);
        assert_eq!(said("mem:90%:USR1", memory, Some(Signal::SIGUSR1)), format!("{first} It gets SIGUSR1 now."));
        for (text, level, expected) in [
            (
                "pids:90%",
                (905, 1000),
                "has 905 of 1000 processes and threads on n1, more than 90% of its limit. At the limit it can start no other.",
            ),
            (
                "cpu:throttled=20%",
                (2_550, 10_000),
                "was throttled in 25.5% of the last minute on n1, more than 20%. It wants more CPU time than it has been granted.",
            ),
            (
                "pressure:memory=10%",
                (1_207, 10_000),
                "waited for memory in 12.07% of the last ten seconds on n1, more than 10%.",
            ),
            (
                "pressure:cpu=10%",
                (1_207, 10_000),
                "waited for a CPU in 12.07% of the last ten seconds on n1, more than 10%.",
            ),
            (
                "pressure:io=10%",
                (1_207, 10_000),
                "waited for I/O in 12.07% of the last ten seconds on n1, more than 10%.",
            ),
        ] {
            assert_eq!(said(text, level, None), format!("jobfence: job 7 step 0 {expected}"));
        }
    }
}
