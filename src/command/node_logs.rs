// SPDX-License-Identifier: GPL-2.0-or-later
//! The three logs of this node: the usage log, and two beside it that `jobfence hold` writes.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jobfence::error::{Error, Result};
use jobfence::report::usage_log::UsageLog;
use serde_json::Value;

/// The usage log itself: what stands behind its name.
pub const USAGE: &str = "";
/// The log of ended steps' samples.
pub const SERIES: &str = ".series";
/// The log of what jobs did with GPUs.
pub const GPUS: &str = ".gpus";

/// All logs, in the order in which `jobfence hold` numbers them.
pub const ALL: [&str; 3] = [USAGE, SERIES, GPUS];

/// How often the list of files is read again, if a file is renamed meanwhile.
const TRIES: usize = 3;

/// A log beside the usage log: its name has this behind it.
pub fn log_with(usage_log: &UsageLog<'_>, log: &str) -> PathBuf {
    let mut name = usage_log.path().file_name().unwrap_or_default().to_owned();
    name.push(log);
    usage_log.path().with_file_name(name)
}

/// What all lines about a job have behind `"job":"`, and those about what its name may stand for. Empty: nothing is certain.
pub fn number_of(job: &str) -> &str {
    let number = job.split(['.', '[']).next().unwrap_or_default();
    // Only Slurm knows the number of what it calls 12_3 or 12+1.
    if number.bytes().all(|byte| byte.is_ascii_digit()) { number } else { "" }
}

/// Whether a line is of this user, and of a job whose id begins so. Its object has to say whose it is: a name that a user chose cannot.
pub fn is_own(line: &[u8], uid: u32, number: &str) -> bool {
    // Most lines are others', and need not be parsed.
    let Ok(line) = std::str::from_utf8(line) else { return false };
    line.contains(&format!("\"uid\":{uid}"))
        && line.contains(&format!("\"job\":\"{number}"))
        && serde_json::from_str(line).is_ok_and(|value: Value| value["uid"].as_u64() == Some(u64::from(uid)))
}

/// The files of one of the logs, the oldest first. A file that is set aside meanwhile is read under its old or its new name.
pub fn open(usage_log: &UsageLog<'_>, log: &str) -> Result<Vec<(PathBuf, File)>> {
    let path = log_with(usage_log, log);
    let usage_log = usage_log.at(&path);
    let mut names = usage_log.files()?;
    for _ in 0..TRIES {
        let mut files = Vec::with_capacity(names.len());
        for path in &names {
            match File::open(path) {
                Ok(file) => files.push((path.clone(), file)),
                // The file was too old and has been removed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(path, &error)),
            }
        }
        let now = usage_log.files()?;
        if now == names {
            return Ok(files);
        }
        names = now;
    }
    Err(Error::new("the files of the usage log get other names all the time").hint("run the command again"))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("cannot open the usage log: {error}")).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_users_by_its_object_alone() {
        let own = r#"{"schema":"jobfence-usage-1","job":"77","uid":7,"sentences":[]}"#;
        assert!(is_own(own.as_bytes(), 7, "") && is_own(own.as_bytes(), 7, "77"));
        assert!(is_own(own.as_bytes(), 7, "7") && !is_own(own.as_bytes(), 7, "8"));
        // Another user, whose number begins so, or who has written this in a name; half a line; and no text.
        for foreign in [
            r#"{"job":"7","uid":77}"#,
            r#"{"job":"7","job_name":"\"uid\":7","uid":8}"#,
            r#"{"uid":8,"inner":{"uid":7}}"#,
            r#"{"uid":8,"tasks":[{"uid":7}]}"#,
            r#"{"job":"7","uid":7"#,
            r#"{"job":"7","uid":"7"}"#,
            r#"{"job":"7","uid":null}"#,
        ] {
            assert!(!is_own(foreign.as_bytes(), 7, ""), "{foreign}");
        }
        assert!(!is_own(b"{\"uid\":7,\"job\":\"\xff\"}", 7, ""));
    }

    #[test]
    fn a_jobs_number_is_in_its_lines_or_nothing_is_demanded() {
        let all: Vec<&str> = ["12", "12.3", "12[3].server", "12_3", "12+1", "a\"b"].map(number_of).into();
        assert_eq!(all, ["12", "12", "12", "", "", ""]);
    }
}
