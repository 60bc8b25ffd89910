// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence reap`: the janitor, by hand.

use std::process::ExitCode;
use std::time::Instant;

use jobfence::host::Host;
use jobfence::janitor;

use crate::{Configured, Failure, require_root};

/// Removes what dead owners left, and says what. Fails if something could not be removed.
pub fn reap(configured: &Configured) -> Result<ExitCode, Failure> {
    require_root("'jobfence reap'")?;
    let config = configured.load()?.config;
    let reaped = janitor::reap(&Host::read(&config)?, &config, Instant::now() + janitor::PATIENCE)?;
    for step in &reaped.removed {
        println!("removed {step}");
    }
    for failure in &reaped.failed {
        eprintln!("jobfence: {failure}");
    }
    println!(
        "{} removed, {} alive, {} could not be removed",
        reaped.removed.len(),
        reaped.alive + reaped.busy,
        reaped.failed.len()
    );
    Ok(if reaped.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
