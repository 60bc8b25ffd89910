// SPDX-License-Identifier: GPL-2.0-or-later
//! `ThreadHints`: how many threads a program is told to start.

use std::ffi::CStr;

use crate::job::Cpus;

/// Variables that tell programs how many threads to start: without them these programs count CPUs, and know of no quota. Not among them
/// are:
///
/// - those that outrank OMP_NUM_THREADS, since a script that sets that one means it (OPENBLAS_NUM_THREADS, MKL_NUM_THREADS,
///   NUMEXPR_NUM_THREADS);
/// - those of programs that start one thread by default, since a number would be more (JULIA_NUM_THREADS, BLIS_NUM_THREADS);
/// - those of run times that read the quota. Rust and libuv (Node.js), and Java since 24, read it in every directory above them. Java
///   before, .NET, and Go since 1.25 read it only in the process's own directory (their sources; docs/decisions.md has a table), which
///   is not the limited one if each task has a directory. Of these only Go has a variable that it obeys without a word on stderr, so it
///   is listed.
pub const THREADS: [&CStr; 2] = [c"OMP_NUM_THREADS", c"GOMAXPROCS"];

/// The value that jobfence has set them to, so that a step within the job gets its own number, and a user's value stays.
pub const HINT: &CStr = c"JOBFENCE_THREADS";

/// How many threads use so much CPU time; `None` if that is no less than the CPUs that they can run on (`visible`). Rounded up, so that
/// a fraction is not lost: 1.5 CPUs are two threads that pause for a quarter of the time.
pub fn threads(share: Cpus, visible: u32) -> Option<u64> {
    let threads = share.thousandths().div_ceil(1000).max(1);
    (threads < u64::from(visible)).then_some(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_than_cpu_time_and_no_hint_where_cpus_are_the_limit() {
        for (thousandths, visible, hint) in [
            (500, 2, Some(1)),
            (500, 1, None),
            (1000, 2, Some(1)),
            (1001, 4, Some(2)),
            (1500, 2, None),
            (2000, 2, None),
            (64_000, 128, Some(64)),
            (0, 2, Some(1)),
        ] {
            assert_eq!(threads(Cpus::from_thousandths(thousandths), visible), hint, "{thousandths} of {visible}");
        }
    }
}
