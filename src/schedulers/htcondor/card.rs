// SPDX-License-Identifier: GPL-2.0-or-later
//! The submit file's words for resources, which the advice of a card uses.

use crate::bytes;
use crate::report::card::Words;

/// The words of a submit file. A size without a letter would be in MiB.
pub static WORDS: Words = Words {
    memory: |bytes| format!("request_memory = {}", bytes::text(bytes)),
    cpus: |count| format!("request_cpus = {count}"),
    all_cpus: "request_cpus of all nodes",
    time: None,
    signal_15: Some("HTCondor sends signal 15 to a job that is held, removed or evicted."),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_condor_submit_reads_them() {
        assert_eq!((WORDS.memory)(320 << 20), "request_memory = 320M");
        assert_eq!((WORDS.cpus)(2), "request_cpus = 2");
    }
}
