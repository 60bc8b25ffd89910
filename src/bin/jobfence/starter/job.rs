// SPDX-License-Identifier: GPL-2.0-or-later
//! Which job it is that runs in a slot: the startd is asked, since it knows that only when it has started the starter.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::error::Error;
use jobfence::launch::NotFenced;
use jobfence::scheduler::htcondor::slot_ad::{SlotAd, SlotJob};
use jobfence::sys::program::{AskedProgram, Silence};
use nix::unistd::getppid;

use super::slot::{SHORTER, address};

/// The startd has one thread, and starts other jobs meanwhile. Five seconds were too few on a busy host.
const PATIENCE: Duration = Duration::from_secs(30);
/// HTCondor's own command.
const STATUS: &str = "condor_status";
/// By which HTCondor's commands find their configuration. What names the starter's sockets, and the keys of its sessions, is not for them.
pub const CONFIGURATION: &[&str] = &["CONDOR_CONFIG", "_CONDOR_"];

/// Asks the startd that has started this process.
///
/// The startd prints texts of the job's user. One that makes the answer too long, or something else, is not overlooked.
pub fn job_in(slot: &SlotAd) -> Result<SlotJob, NotFenced> {
    let failed = |why: String| Error::new(format!("{STATUS} does not say which job runs here: {why}"));
    let address = address().ok_or_else(|| failed("no address of the startd".to_owned()))?;
    let name = slot.name.replace('\\', "\\\\").replace('"', "\\\"");
    let is_slot = format!("Name == \"{name}\"");
    let words = ["-direct", &address, "-long", "-attributes", SlotJob::ATTRIBUTES, "-constraint", &is_slot];
    let asked = AskedProgram::new(beside_daemon(STATUS), &words, CONFIGURATION).ask(Instant::now() + PATIENCE);
    match asked {
        Ok(said) => SlotJob::parse(&said, slot.domain.as_deref()),
        Err(silence @ Silence::Long) => Err(NotFenced::Asked(failed(silence.to_string()).hint(SHORTER))),
        Err(silence) => Err(failed(silence.to_string()).into()),
    }
}

/// A program of the same installation as the daemon that has started this process, whose directory has `bin` beside it.
pub fn beside_daemon(program: &str) -> PathBuf {
    let daemon = std::fs::read_link(format!("/proc/{}/exe", getppid())).ok();
    let top = daemon.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = top.map(|top| top.join("bin").join(program));
    installed.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(program))
}
