// SPDX-License-Identifier: GPL-2.0-or-later
//! HTCondor from 23.9 on: the startd starts a starter for each job, as root, by the path that `STARTER` of its configuration names.
//! `jobfence` is there under that starter's name, fences itself, and becomes the starter.

pub mod slot_ad;

/// The name of the program that runs one job.
pub const STARTER: &str = "condor_starter";

/// The directory of the fence in which the starter is. HTCondor makes the job's own directories beside it: it begins them in the parent of
/// the starter's (`VanillaProc::StartJob` of 23.9 and 25.14).
pub const STARTERS_LEAF: &str = "starter";

/// The first directory that HTCondor makes there, unless `BASE_CGROUP` of its configuration says otherwise.
pub const JOBS_BRANCH: &str = "htcondor";
