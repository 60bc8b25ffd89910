// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` keeps of a job that runs, in a file beside the series of the job's steps, which its user can read.

use std::path::Path;

use jobfence::error::{Error, Result};
use serde_json::Value;

use crate::series;

/// What is kept of a job on this node.
pub trait KeptJob: Sized {
    /// The ending of the file's name.
    const ENDING: &'static str;

    /// Node, user and id of the job.
    fn job(&self) -> (Option<&str>, Option<u32>, &str);

    /// All that is in the file.
    fn state(&self) -> Value;

    /// Parses what `state` wrote. `None`: it is something else.
    fn of_json(value: &Value) -> Option<Self>;

    /// What tells the job from others that live on this host.
    fn key(&self) -> String {
        let (node, uid, job) = self.job();
        key(node, uid, job)
    }
}

/// See [`KeptJob::key`].
pub fn key(node: Option<&str>, uid: Option<u32>, job: &str) -> String {
    format!("{} {} {job}", node.unwrap_or_default(), uid.map(|uid| uid.to_string()).unwrap_or_default())
}

/// Writes the file of a job that runs.
pub fn write<K: KeptJob>(run_dir: &Path, kept: &K) -> Result<()> {
    series::write_file(run_dir, (kept.job().1, &kept.key(), K::ENDING), &kept.state().to_string())
}

/// Removes it.
pub fn remove<K: KeptJob>(run_dir: &Path, kept: &K) {
    series::remove_file(run_dir, (kept.job().1, &kept.key(), K::ENDING));
}

/// What is known of a job that runs, if it was looked at and may be read.
pub fn living<K: KeptJob>(run_dir: &Path, node: Option<&str>, uid: Option<u32>, job: &str) -> Option<K> {
    let key = key(node, uid, job);
    let value = series::read_file(run_dir, (uid, &key, K::ENDING))?;
    K::of_json(&value).filter(|kept| kept.key() == key)
}

/// All jobs with a file, whether they are alive or not.
pub fn all_living<K: KeptJob>(run_dir: &Path) -> Result<Vec<K>> {
    Ok(series::all_files(run_dir, K::ENDING)?.iter().filter_map(K::of_json).collect())
}

/// As [`all_living`], but one that cannot be read or parsed is an error.
pub fn all_without_gap<K: KeptJob>(run_dir: &Path) -> Result<Vec<K>> {
    let parse =
        |value: &Value| K::of_json(value).ok_or_else(|| Error::new("not a record of this release in").at(run_dir));
    series::files_without_gap(run_dir, K::ENDING)?.iter().map(parse).collect()
}
