// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that cannot be fenced is put on hold, and its user reads why: the starter is told to run a hook before it does anything for the job,
//! and that hook is this program, which says no. Where the host is to blame, and takes itself out (START asks for `JobfenceHealthy`), the job is
//! idle again.
//!
//! The starter has the lines for that of us (`own_line`). `STARTER_JOB_HOOK_KEYWORD` is the keyword of all jobs, whatever theirs is. A hook's `HookStatusCode` from 1 to 299 holds the job,
//! with `HookStatusMessage` as the reason, and a higher one puts it back (`HookPrepareJobClient::hookExited`, the same in 23.9 and 25.14).
//! Only the persistent configuration is read after those lines (`process_dynamic_configs`), and so it is switched off.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jobfence::error::{Error, Result};
use jobfence::schedulers::htcondor::quoted;

use super::own_line;

/// The word by which this program knows that it is the hook.
const WORD: &str = "refuse-job";
/// The name of our hooks in HTCondor's configuration.
const KEYWORD: &str = "JOBFENCE";
/// Where the sentence for the user is.
const SENTENCE: &str = "JOBFENCE_REFUSED";
/// Whether the job is to be put back, and not on hold.
const BACK: &str = "JOBFENCE_BACK";
/// The subcode of the hold. Other hooks have their own.
const STATUS: u32 = 190;
/// From 300 on the job is idle again.
const STATUS_BACK: u32 = 390;
/// The startd asks each minute for the health of the host. Until it has asked, this slot takes no other job.
const UNTIL_ASKED: Duration = Duration::from_secs(60);

/// From now on a starter that this process becomes runs no job. `local_name` is the one that the starter has. With `is_back` the job is not to
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

/// The lines of HTCondor's configuration that have its starter run `this` as its hook.
fn lines(this: &str) -> [(String, &str); 5] {
    [
        ("ENABLE_PERSISTENT_CONFIG".to_owned(), "False"),
        ("STARTER_JOB_HOOK_KEYWORD".to_owned(), KEYWORD),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB_BEFORE_TRANSFER"), this),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB"), this),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB_ARGS"), WORD),
    ]
}

/// As the hook: refuses the job. `None`: this is no hook.
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
