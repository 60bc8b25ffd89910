// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` keeps of a job that runs, in a file beside the series of the job's steps, which its user can read.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jobfence::error::{Error, Result};
use serde_json::Value;

use crate::series;

/// What is kept of a job on this node: an object with the name of its format, with the job, and with members of its own.
pub trait KeptJob: Sized {
    /// The ending of the file's name.
    const ENDING: &'static str;

    /// The name of the object's format. A program that reads such objects checks it first.
    const SCHEMA: &'static str;

    /// Node, user and id of the job.
    fn job(&self) -> (Option<&str>, Option<u32>, &str);

    /// The members of its own.
    fn members(&self) -> Value;

    /// Reads them. `None`: they are something else.
    fn from_members(job: KeptId, value: &Value) -> Option<Self>;

    /// All that is in the file.
    fn state(&self) -> Value {
        self.object(self.members())
    }

    /// The object with these members of its own.
    fn object(&self, mut members: Value) -> Value {
        let (node, uid, job) = self.job();
        members["schema"] = Self::SCHEMA.into();
        (members["node"], members["uid"], members["job"]) = (node.into(), uid.into(), job.into());
        members
    }

    /// Reads such an object. `None`: it is another one.
    fn from_json(value: &Value) -> Option<Self> {
        if value.get("schema")?.as_str()? != Self::SCHEMA {
            return None;
        }
        let uid = number(value, "uid").and_then(|uid| u32::try_from(uid).ok());
        Self::from_members(KeptId { node: text(value, "node"), uid, job: text(value, "job")? }, value)
    }

    /// What tells the job from others that live on this host.
    fn key(&self) -> String {
        let (node, uid, job) = self.job();
        key(node, uid, job)
    }
}

/// The job that an object is about.
pub struct KeptId {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
}

/// The text of a member.
pub fn text(value: &Value, member: &str) -> Option<String> {
    Some(value.get(member)?.as_str()?.to_owned())
}

/// The whole number of a member.
pub fn number(value: &Value, member: &str) -> Option<u64> {
    value.get(member)?.as_u64()
}

/// The number of a member, with places.
pub fn decimal(value: &Value, member: &str) -> Option<f64> {
    value.get(member)?.as_f64()
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
    K::from_json(&value).filter(|kept| kept.key() == key)
}

/// All jobs with a file, whether they are alive or not.
pub fn all_living<K: KeptJob>(run_dir: &Path) -> Result<Vec<K>> {
    Ok(series::all_files(run_dir, K::ENDING)?.iter().filter_map(K::from_json).collect())
}

/// As [`all_living`], but one that cannot be read or parsed is an error.
pub fn all_without_gap<K: KeptJob>(run_dir: &Path) -> Result<Vec<K>> {
    let parse =
        |value: &Value| K::from_json(value).ok_or_else(|| Error::new("not a record of this release in").at(run_dir));
    series::files_without_gap(run_dir, K::ENDING)?.iter().map(parse).collect()
}

/// What an earlier process has kept of jobs, by their keys.
pub fn taken_over<K: KeptJob>(run_dir: &Path) -> Result<BTreeMap<String, K>> {
    Ok(all_living(run_dir)?.into_iter().map(|job: K| (job.key(), job)).collect())
}

/// Whether a job is over by its directory and the number of that: another run of the job has a new directory of the same name. If the
/// directory cannot be looked at, the job may be there.
pub fn is_over(directory: &str, inode: u64) -> bool {
    match std::fs::symlink_metadata(directory) {
        Ok(found) => found.ino() != inode,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct KeptNumber(Option<u32>, u64);

    impl KeptJob for KeptNumber {
        const ENDING: &'static str = ".number";
        const SCHEMA: &'static str = "number-1";

        fn job(&self) -> (Option<&str>, Option<u32>, &str) {
            (Some("n1"), self.0, "7")
        }

        fn members(&self) -> Value {
            json!({ "number": self.1 })
        }

        fn from_members(job: KeptId, value: &Value) -> Option<Self> {
            (job.node.as_deref() == Some("n1") && job.job == "7").then_some(Self(job.uid, number(value, "number")?))
        }
    }

    #[test]
    fn an_object_names_its_format_and_its_job() {
        for uid in [None, Some(0), Some(u32::MAX)] {
            let object = KeptNumber(uid, 5).state();
            assert_eq!(object, json!({"schema": "number-1", "node": "n1", "uid": uid, "job": "7", "number": 5}));
            assert_eq!(KeptNumber::from_json(&object), Some(KeptNumber(uid, 5)));
            for (member, other) in
                [("schema", json!("number-2")), ("schema", Value::Null), ("job", json!(7)), ("number", json!("5"))]
            {
                let mut object = object.clone();
                object[member] = other;
                assert_eq!(KeptNumber::from_json(&object), None, "{object}");
            }
        }
    }

    #[test]
    fn a_job_is_over_when_its_directory_is_gone_or_anothers() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().to_str().unwrap();
        let inode = std::fs::metadata(directory).unwrap().ino();
        assert!(!is_over(directory, inode) && is_over(directory, inode + 1));
        assert!(is_over(&format!("{directory}/gone"), inode));
        // No answer.
        assert!(!is_over(&format!("{directory}/{}", "x".repeat(300)), inode));
    }
}
