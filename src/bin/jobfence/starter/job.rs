// SPDX-License-Identifier: GPL-2.0-or-later
//! Which job it is that runs in a slot: the startd is asked, since it knows that only when it has started the starter.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::scheduler::htcondor::slot_ad::{SlotAd, SlotJob};
use nix::unistd::getppid;

use super::descriptors::leave_inherited;
use super::slot::{INHERITED, address};
use crate::command::output_until;

/// The startd has one thread, and starts other jobs meanwhile. Five seconds were too few on a busy host.
const PATIENCE: Duration = Duration::from_secs(30);
/// HTCondor's own command.
const STATUS: &str = "condor_status";
/// What is for the starter alone, beside what names its sockets: the keys of its sessions.
pub const PRIVATE: &str = "CONDOR_PRIVATE_INHERIT";

/// Asks the startd that has started this process.
pub fn job_in(slot: &SlotAd) -> Result<SlotJob> {
    let failed = |why: String| Error::new(format!("{STATUS} does not say which job runs here: {why}"));
    let address = address().ok_or_else(|| failed("no address of the startd".to_owned()))?;
    let name = slot.name.replace('\\', "\\\\").replace('"', "\\\"");
    let mut command = Command::new(beside_daemon(STATUS));
    command
        .args(["-direct", &address, "-long", "-attributes", SlotJob::ATTRIBUTES, "-constraint"])
        .arg(format!("Name == \"{name}\""))
        .env_remove(INHERITED)
        .env_remove(PRIVATE);
    leave_inherited(&mut command);
    let output = output_until(&mut command, Instant::now() + PATIENCE).map_err(|error| failed(error.to_string()))?;
    let output = output.ok_or_else(|| failed("it does not answer".to_owned()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    SlotJob::parse(&String::from_utf8_lossy(&output.stdout))
}

/// A program of the same installation as the daemon that has started this process, whose directory has `bin` beside it.
pub fn beside_daemon(program: &str) -> PathBuf {
    let daemon = std::fs::read_link(format!("/proc/{}/exe", getppid())).ok();
    let top = daemon.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = top.map(|top| top.join("bin").join(program));
    installed.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(program))
}
