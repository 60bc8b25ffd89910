// SPDX-License-Identifier: GPL-2.0-or-later
//! How a user of Slurm requests resources: the words of a card's advice.

use std::time::Duration;

use crate::bytes;
use crate::report::card::Words;

/// The options of sbatch.
pub static WORDS: Words = Words {
    memory: |bytes| format!("#SBATCH --mem={}", bytes::text(bytes)),
    cpus: |count| format!("#SBATCH --cpus-per-task={count}"),
    all_cpus: "--ntasks times --cpus-per-task",
    time: Some(|time| format!("#SBATCH --time={}", time_text(time))),
    signal_15: Some("Slurm sends signal 15 to a job that is cancelled, preempted, or out of time."),
};

/// The same for a job that requested memory per CPU: sbatch accepts only one of the two options.
pub static WORDS_PER_CPU: Words = Words {
    memory: |bytes| format!("#SBATCH --mem={} (no --mem-per-cpu)", bytes::text(bytes)),
    ..Words { time: WORDS.time, signal_15: WORDS.signal_15, ..WORDS }
};

/// The same for a job that requested memory per GPU.
pub static WORDS_PER_GPU: Words = Words {
    memory: |bytes| format!("#SBATCH --mem={} (no --mem-per-gpu)", bytes::text(bytes)),
    ..Words { time: WORDS.time, signal_15: WORDS.signal_15, ..WORDS }
};

/// The format of sbatch(1) and squeue(1): `[days-]hours:minutes:seconds`.
fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let days = if days > 0 { format!("{days}-") } else { String::new() };
    format!("{days}{hours:02}:{minutes:02}:{:02}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_sbatch_reads_them() {
        let texts = [59, 1200, 5400, 86_400 + 3661].map(|seconds| time_text(Duration::from_secs(seconds)));
        assert_eq!(texts, ["00:00:59", "00:20:00", "01:30:00", "1-01:01:01"]);
    }
}
