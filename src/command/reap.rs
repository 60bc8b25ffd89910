// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence reap`: runs the janitor by hand.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller};
use jobfence::schedulers::ALL;

use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::login;
use crate::network;
use crate::resctrl;
use crate::table::printable;

/// Removes what dead owners left, and prints it. Fails if something could not be removed.
pub fn reap(configured: &Configured) -> Result<ExitCode, Failure> {
    require_root("'jobfence reap'")?;
    let loaded = configured.load()?;
    let config = loaded.config.clone();
    let (host, no_cgroups) = Host::read_what_there_is(&config)?;
    if let Some(error) = &no_cgroups {
        let _ = writeln!(io::stderr(), "jobfence: only processes of steps without a fence are looked for: {error}");
    }
    let reaped = janitor::reap(&host, &config, ALL, JanitorCaller::command(), Instant::now() + janitor::PATIENCE)?;
    let (given_back, mut stay) = login::reap(&host, &config);
    let has_detached = network::reap(&loaded).unwrap_or_else(|error| {
        stay.push(error.to_string());
        false
    });
    let freed = resctrl::reap(&config).unwrap_or_else(|error| {
        stay.push(error.to_string());
        Vec::new()
    });
    // An output that cannot be written does not change the result.
    let mut stdout = io::stdout().lock();
    for step in &reaped.removed {
        let _ = writeln!(stdout, "removed {step}");
    }
    for limits in &given_back {
        let _ = writeln!(stdout, "gave back {limits}");
    }
    for job in &freed {
        let _ = writeln!(stdout, "removed the group of resctrl of job {}", printable(job));
    }
    if has_detached {
        let _ = writeln!(stdout, "detached the network programs");
    }
    for failure in reaped.failed.iter().chain(&stay) {
        let _ = writeln!(io::stderr(), "jobfence: {failure}");
    }
    let _ = writeln!(
        stdout,
        "{} removed, {} alive, {} could not be removed",
        reaped.removed.len(),
        reaped.alive + reaped.busy,
        reaped.failed.len()
    );
    Ok(if reaped.failed.is_empty() && stay.is_empty() && no_cgroups.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
