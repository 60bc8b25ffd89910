// SPDX-License-Identifier: GPL-2.0-or-later
//! The configuration as slurmd and slurmstepd load it. Slurm passes the plugin's arguments without their place in the file; only if one of
//! them is wrong is the line looked up.

use crate::config::{self, LoadError, Loaded};
use crate::schedulers::slurm::plugins::Slurm;

/// Reads the arguments and the configuration file. Errors name the line of plugstack.conf, if that is certain.
pub fn load(arguments: &[&[u8]]) -> Result<Loaded, LoadError> {
    config::load(arguments).map_err(|errors| {
        if !errors.are_of_arguments() {
            return errors;
        }
        let place = Slurm::read(None).and_then(|slurm| slurm.line_with(arguments));
        let again = place.map(|place| config::load_named(arguments, &|number| format!("{place} argument {number}")));
        // The file may have been corrected meanwhile; the step was refused for what was read first.
        again.and_then(Result::err).unwrap_or(errors)
    })
}
