// SPDX-License-Identifier: GPL-2.0-or-later
//! The usage of fences as text: JSON for programs, sentences for people. Every entry point with separate commands uses it.

use crate::doors::life::{Seen, in_words};
use crate::report::json::{Object, array};

/// The version of the object in JSON.
pub const SCHEMA: u32 = 1;

/// The fences as one JSON object.
pub fn json(all: &[Seen]) -> String {
    let one = |seen: &Seen| {
        Object::new()
            .text("job", Some(seen.key.job.as_str()))
            .text("step", Some(seen.key.step.as_str()))
            .add("run", seen.run)
            .add("uid", seen.key.uid)
            .text("holder", Some(&seen.holder.to_string()))
            .text("path", seen.path.as_deref())
            .usage(&seen.usage)
            .number("job_memory_peak_bytes", seen.job.memory_peak)
            .number("job_memory_swap_peak_bytes", seen.job_memory_swap_peak)
            .number("cpus_limit", seen.limits.cpus)
            .number("memory_limit_bytes", seen.limits.memory)
            .number("processes_limit", seen.limits.processes)
            .texts("gpus", &seen.gpus)
            .texts("sentences", &seen.sentences)
            .end()
    };
    Object::new().add("schema", SCHEMA).add("fences", array(all.iter().map(one))).end()
}

/// The fences in lines: what each used, followed by the limits at which it was stopped.
pub fn lines(all: &[Seen]) -> String {
    let one = |seen: &Seen| std::iter::once(in_words(seen)).chain(seen.sentences.iter().cloned()).collect::<Vec<_>>();
    all.iter().flat_map(one).collect::<Vec<_>>().join("\n")
}
