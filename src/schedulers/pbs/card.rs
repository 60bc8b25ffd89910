// SPDX-License-Identifier: GPL-2.0-or-later
//! The words of OpenPBS in which a job's card advises its user.

use std::time::Duration;

use crate::bytes;
use crate::report::card::Words;

/// The words of qsub. `select` gives amounts per chunk, and the card knows only the sum on the node.
pub static WORDS: Words = Words {
    memory: |bytes| format!("mem={} in -l select", size(bytes)),
    cpus: |count| format!("ncpus={count} in -l select"),
    all_cpus: "ncpus of all chunks",
    time: Some(|time| format!("-l walltime={}", walltime(time))),
    signal_15: Some("PBS sends signal 15 to a job that is deleted, preempted, or out of time."),
};

/// A size as in qsub(1B).
fn size(bytes: u64) -> String {
    bytes::text(bytes).to_ascii_lowercase() + "b"
}

/// A duration as in pbs_resources(7B).
fn walltime(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_as_qsub_reads_them() {
        assert_eq!([1 << 30, 320 << 20, 1000].map(size), ["1gb", "320mb", "1000b"]);
        assert_eq!([59, 90_061].map(|seconds| walltime(Duration::from_secs(seconds))), ["00:00:59", "25:01:01"]);
    }
}
