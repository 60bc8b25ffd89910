// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence enable`: makes Slurm load the plugin, once it is certain that jobs can be fenced here.
//!
//! The order keeps a node from refusing jobs: first what a fence needs, then the check with the line's own arguments, and last the line
//! itself, by one rename. A failure before that leaves the node as it was.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::sys::systemd::is_systemd;

use crate::check;
use crate::command::{Failure, require_root};
use crate::schedulers::slurm::line::{self, InstalledLine};
use crate::systemd::Service;

#[derive(Args)]
pub struct EnableOptions {
    /// Take the plugin's line from this file [default: PREFIX/share/jobfence/plugstack.conf]
    #[arg(long, value_name = "FILE")]
    line: Option<PathBuf>,
    /// Add the missing 'include' to plugstack.conf
    ///
    /// 'jobfence disable' takes the line out again if nothing else is in the directory.
    #[arg(long)]
    write_include: bool,
}

/// Fails, and activates nothing, unless jobs would be fenced here.
pub fn enable(options: &EnableOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence enable'")?;
    let line = InstalledLine::installed(options.line.as_deref());
    if line.plugin.is_none() {
        let file = line.template.display();
        return Err(
            format!("no line of {file} loads libjobfence.so: install jobfence, or name the file with --line").into()
        );
    }
    let slurm = Slurm::read(line.config.as_deref())
        .ok_or("slurm.conf was not found: set SLURM_CONF to its path, as slurmd has it, and run this again")?;
    let service = is_systemd().then(Service::start).transpose()?;
    let turned_on = match line::loading(&slurm) {
        Some(active) => stays_on(&line, &slurm, &active),
        None => turn_on(&line, &slurm, options.write_include),
    };
    // If jobfence was on, it stays on, and so does what it needs.
    if !matches!(turned_on, Ok(true))
        && line::loading(&slurm).is_none()
        && let Some(service) = &service
    {
        service.restore();
    }
    Ok(if turned_on? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `Ok(false)`: the check has printed why not.
fn turn_on(line: &InstalledLine, slurm: &Slurm, write_include: bool) -> Result<bool, Failure> {
    let candidate = line.candidate();
    let as_if = check::CheckOptions {
        plugstack: Some(candidate.to_owned()),
        // The check finds the other arguments in that line.
        configured: line::configured(candidate).file_alone(),
        ..Default::default()
    };
    if check::check(&as_if)? != ExitCode::SUCCESS {
        eprintln!("jobfence: nothing was activated, since jobs would be refused, or run without a fence: see above");
        return Ok(false);
    }
    let is_new = line.activate()?;
    if let Err(error) = included(line, slurm, write_include) {
        line.deactivate()?;
        if !line::is_fetched(slurm) {
            line.remove_include(slurm.plugstack())?;
        }
        if is_new {
            let _ = std::fs::remove_dir(line.directory());
        }
        return Err(error);
    }
    println!(
        "enabled        {}: each step that begins from now on is fenced; running ones stay as they are, and nothing needs a restart",
        line.active.display()
    );
    Ok(true)
}

/// jobfence is on already, by whatever line.
fn stays_on(line: &InstalledLine, slurm: &Slurm, active: &str) -> Result<bool, Failure> {
    let as_it_is = check::CheckOptions { configured: line::active(slurm), ..Default::default() };
    if check::check(&as_it_is)? != ExitCode::SUCCESS {
        eprintln!("jobfence: the plugin stays on, by {active}; 'jobfence disable' turns it off");
        return Ok(false);
    }
    println!("enabled        already, by {active}");
    if line.active.exists() && !line.is_unchanged() {
        println!(
            "               {} was changed, and stays as it is; the line of this release is in {}",
            line.active.display(),
            line.template.display()
        );
    }
    Ok(true)
}

/// Ensures that plugstack.conf includes the file that has just been written.
fn included(line: &InstalledLine, slurm: &Slurm, write: bool) -> Result<(), Failure> {
    let is_read = || line::loading(slurm).is_some();
    if is_read() {
        return Ok(());
    }
    let plugstack = slurm.plugstack();
    let (file, include) = (plugstack.display(), line.include());
    if line::is_fetched(slurm) {
        return Err(format!(
            "nothing was activated: the controller serves {file}, which does not include this node's line. Add there, in the \
             controller's plugstack.conf: {include}; run 'scontrol reconfigure', and this again"
        )
        .into());
    }
    if plugstack.exists() && !write {
        return Err(format!(
            "nothing was activated: {file} does not include the plugin's line. Add to it: {include} (or run 'jobfence enable \
             --write-include'), and run this again"
        )
        .into());
    }
    line.add_include(plugstack)?;
    if is_read() {
        println!("written        {file}: {include}");
        return Ok(());
    }
    Err(format!("nothing was activated: {include} in {file} is not followed").into())
}
