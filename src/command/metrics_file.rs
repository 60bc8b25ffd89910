// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of the file that `metrics` writes.

use jobfence::config::Config;

use crate::whole;

/// The beginning of every such file.
pub const BEGIN: &str = "# HELP jobfence_";

/// Removes the file for good: otherwise a collector would go on with its last content.
pub fn forget(config: &Config) -> Result<(), String> {
    let Some(path) = &config.metrics_file else { return Ok(()) };
    match whole::remove(path, BEGIN) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is no file of jobfence's, and stays", path.display())),
        Err(error) => Err(error.to_string()),
    }
}
