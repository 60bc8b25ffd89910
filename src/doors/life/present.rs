// SPDX-License-Identifier: GPL-2.0-or-later
//! A fence in its present state, for those who ask, and for its line in the usage log.

use std::ffi::CStr;

use crate::config::{Config, Mode};
use crate::fence::Fence;
use crate::figures::{LimitedTo, Usage};
use crate::job::JobKey;
use crate::launch::{self, AskedProcesses, Reported};
use crate::policy::variables;
use crate::record::Record;
use crate::record::holder::Holder;
use crate::report::account::{End, Ending, since_boot};

/// A fence in its present state.
#[derive(Debug)]
pub struct Seen {
    /// The step.
    pub key: JobKey,
    /// The run of the step.
    pub run: u32,
    /// The holder.
    pub holder: Holder,
    /// Its directory, below the root of each hierarchy.
    pub path: Option<String>,
    /// What it has used.
    pub usage: Usage,
    /// CPU time and peak memory of its job: of all steps together, also of closed ones.
    pub job: Usage,
    /// The job's peak memory and swap in bytes.
    pub job_memory_swap_peak: Option<u64>,
    /// Its limits.
    pub limits: LimitedTo,
    /// The devices of the GPUs that were chosen for the job.
    pub gpus: Vec<String>,
    /// The limits that stopped it, in sentences.
    pub sentences: Vec<String>,
}

impl Seen {
    /// The variables by which its processes learn of their limits. `None`: there is no such limit.
    pub fn variables(&self, mode: Mode) -> [(&'static CStr, Option<String>); 4] {
        let limit = |value: Option<String>| value.filter(|_| mode == Mode::Enforce);
        [
            (variables::CGROUP, self.path.clone()),
            (variables::CPUS, limit(self.limits.cpus.map(|cpus| cpus.to_string()))),
            (variables::MEMORY, limit(self.limits.memory.map(|bytes| bytes.to_string()))),
            (variables::PROCESSES, limit(self.limits.processes.map(|count| count.to_string()))),
        ]
    }
}

/// The fence's line in the usage log.
pub(super) fn line_of(fence: &Fence, config: &Config, record: &Record, seen: &Seen) -> Option<String> {
    let noted = record.noted();
    let ending = Ending {
        holder: &seen.holder.to_string(),
        run: seen.run,
        facts: &noted.facts(),
        granted: noted.granted,
        limits: seen.limits,
        started: record.shared.as_ref().and_then(|shared| since_boot(shared.opener.start)),
        exit: None,
        tasks: &[],
        sentences: &seen.sentences,
        end: End::Closed,
    };
    launch::account(fence, config, &seen.usage, &ending)
}

/// The fence's usage, in one line.
pub fn in_words(seen: &Seen) -> String {
    crate::report::ended(&seen.key, &seen.usage)
}

/// The state of this fence now.
pub(super) fn see(fence: &Fence) -> Seen {
    // The fence's own record, since this process may have changed it.
    let shared = fence.shared_record().and_then(|record| record.shared.as_deref());
    let left = shared.and_then(|shared| shared.plan.as_ref());
    let asked = left.and_then(|left| left.asked_processes).map(AskedProcesses::by_user);
    let (sentences, _) = launch::tell(fence, fence.kernel_log().as_ref(), asked, Reported::default(), (None, None));
    Seen {
        key: fence.key().clone(),
        run: shared.map_or(0, |shared| shared.run),
        holder: shared.map_or(Holder::Manual, |shared| shared.holder.clone()),
        path: fence.path(),
        usage: fence.usage(),
        job: fence.job_usage(),
        job_memory_swap_peak: fence.job_memory_swap_peak(),
        limits: fence.limited_to(),
        gpus: fence.gpus().to_vec(),
        sentences,
    }
}
