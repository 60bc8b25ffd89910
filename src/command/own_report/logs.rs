// SPDX-License-Identifier: GPL-2.0-or-later
//! The logs of this node, as this process may read them: root opens the files, and a user is told the lines of the own jobs.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use jobfence::config::Config;
use jobfence::error::{Error, Result};
use jobfence::report::usage_log::UsageLog;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::asking::ask;
use crate::node_logs;

/// See the beginning of this file.
#[derive(Debug)]
pub enum ReadableLogs<'a> {
    /// The files.
    Files(UsageLog<'a>),
    /// What `jobfence hold` has told, by log. It is in memory, so nothing is left however the command ends.
    Told(PathBuf, [File; node_logs::ALL.len()]),
}

impl<'a> ReadableLogs<'a> {
    /// Those that this process may read. A user is told the lines about the job alone, and those that its name may mean.
    pub fn from_config(config: &'a Config, usage_log: UsageLog<'a>, job: Option<&str>) -> Result<Self> {
        if !config.user_reports || nix::unistd::geteuid().is_root() || usage_log.files().is_ok() {
            return Ok(Self::Files(usage_log));
        }
        let path = usage_log.path();
        let memory = || {
            let made = memfd_create(c"jobfence", MFdFlags::MFD_CLOEXEC).map(File::from);
            made.map_err(|errno| Error::os("make room in memory for the lines of", path, errno))
        };
        let mut logs = [memory()?, memory()?, memory()?];
        let number = job.map(node_logs::number_of).unwrap_or_default();
        ask(&config.run_dir, number, &mut |log, line| {
            let file = logs.get_mut(log).ok_or(ErrorKind::InvalidData)?;
            file.write_all(line)
        })?;
        Ok(Self::Told(path.to_owned(), logs))
    }

    /// The files of one of the logs, the oldest first.
    pub fn open(&self, log: &str) -> Result<Vec<(PathBuf, File)>> {
        match self {
            Self::Files(usage_log) => node_logs::open(usage_log, log),
            Self::Told(path, logs) => {
                let Some(file) = node_logs::ALL.iter().position(|one| *one == log).and_then(|at| logs.get(at)) else {
                    return Ok(Vec::new());
                };
                // Each reader begins at the first line.
                let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
                let again =
                    again.map_err(|error| Error::new(format!("cannot read what was told: {error}")).at(path))?;
                Ok(vec![(path.clone(), again)])
            }
        }
    }
}
