// SPDX-License-Identifier: GPL-2.0-or-later
//! HTCondor from 23.9 on: the startd starts a starter for each job, as root, by the path that `STARTER` of its configuration names.
//! `jobfence` is there under that starter's name, fences itself, and becomes the starter. The schedd starts one for each job of the local
//! universe, by `STARTER_LOCAL`.

use crate::printable::printable;

pub mod asked;
pub mod card;
pub mod environment;
pub mod job_ad;
pub mod query;
pub mod settings;
pub mod slot_ad;
pub mod slot_gpus;
mod value;

/// What the user can do about an ad that says something twice.
const NO_LINE_END: &str = "a text of the job has an end of a line in it: submit the job without";

/// The name of the program that runs one job.
pub const STARTER: &str = "condor_starter";

/// The directory of the fence in which the starter is. HTCondor makes the job's own directories beside it: it begins them in the parent of
/// the starter's (`VanillaProc::StartJob` of 23.9 and 25.14).
pub const STARTERS_LEAF: &str = "starter";

/// The first directory that HTCondor makes there, unless `BASE_CGROUP` of its configuration says otherwise.
pub const JOBS_BRANCH: &str = "htcondor";

/// The directory of the fence in which Docker makes the cgroups of the job's containers.
pub const CONTAINERS_BRANCH: &str = "docker";

/// The step of a job of the local universe, and its slot type for sections of the configuration: it has no slot.
pub const LOCAL: &str = "local";

/// As ClassAds have a text, in one line.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, ' ').replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_stays_one_text() {
        assert_eq!(quoted("a \"b\"\nc\\"), "\"a \\\"b\\\" c\\\\\"");
    }
}
