// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that cannot be fenced is put on hold, and its user reads why: the starter is told to run a hook before it does anything for the job,
//! and that hook is this program, which says no.
//!
//! Each of HTCondor's daemons takes `_CONDOR_NAME` of its environment for a line of its configuration (the manual's "Configuration", in each
//! release). `STARTER_JOB_HOOK_KEYWORD` is the keyword of all jobs, whatever theirs is. A hook's `HookStatusCode` from 1 to 299 holds the job,
//! with `HookStatusMessage` as the reason (`HookPrepareJobClient::hookExited`, the same in 23.9 and 25.14).

use std::path::Path;
use std::process::ExitCode;

use jobfence::error::{Error, Result};

/// The word by which this program knows that it is the hook.
const WORD: &str = "refuse-job";
/// Where the sentence for the user is.
const SENTENCE: &str = "JOBFENCE_REFUSED";
/// The subcode of the hold. Other hooks have their own.
const STATUS: u32 = 190;

/// From now on a starter that this process becomes runs no job.
pub fn have_refused(sentence: &str) -> Result<()> {
    let this =
        std::fs::read_link("/proc/self/exe").map_err(|error| Error::new(format!("find this program: {error}")))?;
    let this = this.to_str().filter(|path| Path::new(path).is_file());
    let this = this.ok_or_else(|| Error::new("this program is not where it was started from"))?;
    let keyword = "JOBFENCE";
    let lines = [
        ("_CONDOR_STARTER_JOB_HOOK_KEYWORD".to_owned(), keyword),
        (format!("_CONDOR_{keyword}_HOOK_PREPARE_JOB_BEFORE_TRANSFER"), this),
        (format!("_CONDOR_{keyword}_HOOK_PREPARE_JOB"), this),
        (format!("_CONDOR_{keyword}_HOOK_PREPARE_JOB_ARGS"), WORD),
        (SENTENCE.to_owned(), sentence),
    ];
    for (name, value) in lines {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// As the hook: refuses the job. `None`: this is no hook.
pub fn refuse() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD || words.next().is_some() {
        return None;
    }
    let sentence = std::env::var(SENTENCE).ok()?;
    println!("HookStatusMessage = {}\nHookStatusCode = {STATUS}", quoted(&sentence));
    Some(ExitCode::FAILURE)
}

/// As ClassAds have a text, in one line.
pub fn quoted(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    format!("\"{}\"", plain.collect::<String>().replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_stays_one_text() {
        assert_eq!(quoted("a \"b\"\nc\\"), "\"a \\\"b\\\" c\\\\\"");
    }
}
