// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that cannot be fenced is put on hold, and its user reads why: the starter is told to run a hook before it does anything for the job,
//! and that hook is this program, which says no. Where the host is to blame, and takes itself out (START asks for `JobfenceHealthy`), the job is
//! idle again.
//!
//! Each of HTCondor's daemons takes `_CONDOR_NAME` of its environment for a line of its configuration (the manual's "Configuration", in each
//! release). `STARTER_JOB_HOOK_KEYWORD` is the keyword of all jobs, whatever theirs is. A hook's `HookStatusCode` from 1 to 299 holds the job,
//! with `HookStatusMessage` as the reason, and a higher one puts it back (`HookPrepareJobClient::hookExited`, the same in 23.9 and 25.14).
//!
//! A site's line can be for some daemons alone. A starter takes the line with its local name before NAME, then the one with its subsystem, and
//! then the plain one (`lookup_macro`). So each of ours stands in all of these forms. Only the persistent configuration is read after the
//! environment (`process_dynamic_configs`), and so it is switched off.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jobfence::error::{Error, Result};
use jobfence::scheduler::htcondor::quoted;

/// The word by which this program knows that it is the hook.
const WORD: &str = "refuse-job";
/// The name of our hooks in HTCondor's configuration.
const KEYWORD: &str = "JOBFENCE";
/// As each starter is called there.
const SUBSYSTEM: &str = "STARTER";
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
    for (name, value) in lines(this, local_name) {
        set(&name, &value);
    }
    set(SENTENCE, sentence);
    set(BACK, if is_back { "yes" } else { "no" });
    Ok(())
}

/// The variables that have HTCondor's starter run `this` as its hook.
fn lines(this: &str, local_name: Option<&str>) -> Vec<(String, String)> {
    let keys = [
        ("ENABLE_PERSISTENT_CONFIG".to_owned(), "False"),
        ("STARTER_JOB_HOOK_KEYWORD".to_owned(), KEYWORD),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB_BEFORE_TRANSFER"), this),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB"), this),
        (format!("{KEYWORD}_HOOK_PREPARE_JOB_ARGS"), WORD),
    ];
    let prefixes = [Some(String::new()), Some(format!("{SUBSYSTEM}.")), local_name.map(|name| format!("{name}."))];
    let prefixes = prefixes.into_iter().flatten();
    prefixes
        .flat_map(|prefix| keys.iter().map(move |(key, value)| (format!("_CONDOR_{prefix}{key}"), (*value).to_owned())))
        .collect()
}

/// HTCondor takes names in capitals and in small letters for the same. So another spelling of it does not stay beside ours.
fn set(name: &str, value: &str) {
    let is_it = |found: &OsString| found.to_str().is_some_and(|found| found.trim_end().eq_ignore_ascii_case(name));
    let others: Vec<OsString> = std::env::vars_os().map(|(found, _)| found).filter(is_it).collect();
    // SAFETY: this process has one thread.
    unsafe {
        others.iter().for_each(|found| std::env::remove_var(found));
        std::env::set_var(name, value);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_stands_in_each_form_that_a_starter_looks_for() {
        let lines = lines("/sbin/jobfence", Some("slot_type_1"));
        for prefix in ["", "STARTER.", "slot_type_1."] {
            let keyword = (format!("_CONDOR_{prefix}STARTER_JOB_HOOK_KEYWORD"), "JOBFENCE".to_owned());
            assert!(lines.contains(&keyword), "{keyword:?}");
        }
        assert_eq!(lines.len(), 15);
        assert_eq!(super::lines("/sbin/jobfence", None).len(), 10);
    }
}
