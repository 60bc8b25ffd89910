// SPDX-License-Identifier: GPL-2.0-or-later
//! Refuses a job that cannot be fenced: HTCondor puts it on hold, and its user reads why. The starter runs this program as a hook before it
//! does anything for the job, and the hook refuses. If the host is to blame, and takes no more jobs (START asks for `JobfenceHealthy`), the
//! job is idle again.
//!
//! jobfence gives the starter the settings for that hook (`own_line`). `STARTER_JOB_HOOK_KEYWORD` overrides the keyword of each job. A
//! hook's `HookStatusCode` from 1 to 299 holds the job, with `HookStatusMessage` as the reason, and a higher one puts it back
//! (`HookPrepareJobClient::hookExited`, the same in 23.9 and 25.14). Only the persistent configuration is read after these settings
//! (`process_dynamic_configs`), so it is switched off.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jobfence::error::{Error, Result};
use jobfence::schedulers::htcondor::quoted;

use super::own_line;

/// The word by which this program knows that it is the hook.
const WORD: &str = "refuse-job";
/// The keyword of jobfence's hooks in HTCondor's configuration.
const KEYWORD: &str = "JOBFENCE";
/// The variable with the sentence for the user.
const SENTENCE: &str = "JOBFENCE_REFUSED";
/// The variable that says whether the job is put back, and not held.
const BACK: &str = "JOBFENCE_BACK";
/// The subcode of the hold. Other hooks have their own.
const STATUS: u32 = 190;
/// The status that puts the job back: from 300 on it is idle again.
const STATUS_BACK: u32 = 390;
/// How long the hook keeps the slot busy. The startd asks for the host's health each minute, and until then the slot would take another
/// job.
const UNTIL_ASKED: Duration = Duration::from_secs(60);

/// Has the starter that this process becomes refuse its job. `local_name`: the starter's local name. With `is_back` the job is not to
/// blame, and goes to another host.
pub fn have_refused(sentence: &str, local_name: Option<&str>, is_back: bool) -> Result<()> {
    let this =
        std::fs::read_link("/proc/self/exe").map_err(|error| Error::new(format!("find this program: {error}")))?;
    let this = this.to_str().filter(|path| Path::new(path).is_file());
    let this = this.ok_or_else(|| Error::new("this program is not where it was started from"))?;
    for (key, value) in lines(this) {
        own_line::set(&key, value, local_name);
    }
    own_line::set_variable(SENTENCE, sentence);
    own_line::set_variable(BACK, if is_back { "yes" } else { "no" });
    Ok(())
}

/// The settings of HTCondor that have its starter run `this` as its hook.
fn lines(this: &str) -> [(String, &str); 5] {
    [
        ("ENABLE_PERSISTENT_CONFIG".to_owned(), "False"),
        ("STARTER_JOB_HOOK_KEYWORD".to_owned(), KEYWORD),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB_BEFORE_TRANSFER"), this),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB"), this),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB_ARGS"), WORD),
    ]
}

/// In the hook: refuses the job. `None`: this process is not the hook.
pub fn refuse() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD || words.next().is_some() {
        return None;
    }
    let sentence = std::env::var(SENTENCE).ok()?;
    let is_back = std::env::var(BACK).is_ok_and(|text| text == "yes");
    if is_back {
        std::thread::sleep(UNTIL_ASKED);
    }
    let status = if is_back { STATUS_BACK } else { STATUS };
    println!("HookStatusMessage = {}\nHookStatusCode = {status}", quoted(&sentence));
    Some(ExitCode::FAILURE)
}
