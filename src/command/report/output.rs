// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a page goes, and what a user reads who may not read the log.

use std::path::Path;

use jobfence::config::Config;

use crate::command::Failure;
use crate::whole;

/// Writes a page to its destination.
pub fn put(file: &Path, page: &str) -> Result<(), Failure> {
    if file == Path::new("-") {
        print!("{page}");
        return Ok(());
    }
    whole::replace(file, page.as_bytes(), None).map_err(|error| format!("{error}; --html=- writes to stdout").into())
}

/// Why the log could not be read, for a user without the right to.
pub fn refused(config: &Config, error: &jobfence::error::Error) -> Failure {
    if nix::unistd::geteuid().is_root() {
        return error.to_string().into();
    }
    // The reason is that of `jobfence hold`, which the user has asked.
    if config.user_reports {
        return error.to_string().into();
    }
    let path = config.usage_log.as_deref().unwrap_or_else(|| Path::new("")).display();
    format!(
        "only root can read the usage log ({path}): ask your administrator for the report, or to set UserReports=yes in \
         jobfence.conf, with which each user has that of the own jobs. For a job that runs: 'jobfence show JOB'"
    )
    .into()
}
