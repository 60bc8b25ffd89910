// SPDX-License-Identifier: GPL-2.0-or-later
//! Whose job it is that has a fence by its slot's name alone: the startd did not answer before the starter had to begin. A process asks on, and
//! the log says the answer.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use jobfence::error::{Error, Result};
use jobfence::printable::is_printable;
use jobfence::scheduler::htcondor::slot_ad::SlotJob;
use jobfence::sys::child::{self, leave_descriptors};
use nix::unistd::{execv, getpid};

use super::job::Question;
use crate::command::ignore_sigpipe;
use crate::syslog::SyslogOfDaemon;

/// The first word of its command line.
const LATE: &str = "jobfence-late";
/// No other text of the job's user, which could be wrong.
const ATTRIBUTES: &str = "JobId,RemoteUser";
/// In seconds, before it asks: the startd is busy. Then nobody asks any more.
const PAUSES: [u64; 7] = [5, 15, 30, 60, 120, 300, 600];

/// Starts it. It has HTCondor's environment, and so HTCondor ends it with the starter.
pub fn start(question: &Question, slot: &str) -> Result<()> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new("a NUL in a word"));
    let Question { program, address, is_slot } = question;
    // The number of the process that becomes the starter: when that has gone, the slot can have another job.
    let starter = getpid().to_string();
    let words =
        [LATE.as_bytes(), program.as_os_str().as_bytes(), address.as_bytes(), is_slot.as_bytes(), slot.as_bytes()];
    let words: Vec<CString> = words.into_iter().chain([starter.as_bytes()]).map(c_string).collect::<Result<_>>()?;
    child::start_orphan(|| {
        let _ = leave_descriptors();
        let _ = execv(c"/proc/self/exe", &words);
    })
}

/// As that process. `None`: this is none.
pub fn ask() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let [name, program, address, is_slot, slot, starter] = words.as_slice() else { return None };
    (name == LATE).then_some(())?;
    ignore_sigpipe();
    SyslogOfDaemon::begin();
    let text = |word: &OsString| String::from_utf8_lossy(word.as_bytes()).into_owned();
    let program = PathBuf::from(OsString::from_vec(program.as_bytes().to_vec()));
    let question = Question { program, address: text(address), is_slot: text(is_slot) };
    let (slot, starter) = (text(slot), PathBuf::from("/proc").join(starter));
    for pause in PAUSES {
        std::thread::sleep(Duration::from_secs(pause));
        if !starter.exists() {
            return Some(ExitCode::SUCCESS);
        }
        let said = question.ask(ATTRIBUTES).ok().and_then(|said| SlotJob::parse(&said).ok());
        let found = said.and_then(|said| Some((said.job?, said.user.unwrap_or_default())));
        if let Some((job, user)) = found.filter(|_| starter.exists()) {
            let user: String = user.chars().filter(|c| is_printable(*c)).take(60).collect();
            log::info!("the fence that has the name of {slot} is that of job {job}, of {user}");
            return Some(ExitCode::SUCCESS);
        }
    }
    log::warn!("the startd has not said which job has the fence by the name of {slot}");
    Some(ExitCode::FAILURE)
}
