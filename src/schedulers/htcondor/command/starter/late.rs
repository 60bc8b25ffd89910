// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the job of a fence that has only its slot's name, because the startd did not answer before the starter had to begin. A process
//! goes on asking, and logs the answer.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use jobfence::error::{Error, Result};
use jobfence::job::Id;
use jobfence::printable::is_printable;
use jobfence::schedulers::htcondor::slot_ad::SlotJob;
use jobfence::sys::child::{self, leave_descriptors};
use nix::unistd::{execv, getpid};

use super::job::Question;
use crate::command::ignore_sigpipe;
use crate::syslog::SyslogOfDaemon;

/// The first word of that process's command line.
const LATE: &str = "jobfence-late";
/// What is asked for: no other text of the job's user, which could make the answer unreadable.
const ATTRIBUTES: &str = "JobId,RemoteUser";
/// The seconds before each question, since the startd is busy. After the last one the process gives up.
const PAUSES: [u64; 7] = [5, 15, 30, 60, 120, 300, 600];

/// Starts that process. It has HTCondor's environment, and so HTCondor ends it with the starter.
pub fn start(question: &Question, slot: &str) -> Result<()> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new("a NUL in a word"));
    let Question { program, address, is_slot } = question;
    // The ID of the process that becomes the starter. When it is gone, the slot can have another job.
    let starter = getpid().to_string();
    let words =
        [LATE.as_bytes(), program.as_os_str().as_bytes(), address.as_bytes(), is_slot.as_bytes(), slot.as_bytes()];
    let words: Vec<CString> = words.into_iter().chain([starter.as_bytes()]).map(c_string).collect::<Result<_>>()?;
    child::start_orphan(|| {
        let _ = leave_descriptors();
        let _ = execv(c"/proc/self/exe", &words);
    })
}

/// Runs as that process. `None`: this process is another.
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
    let pauses = PAUSES.map(Duration::from_secs);
    Some(match whose(&question, &starter, &pauses) {
        LateAnswer::Said { job, user } => {
            log::info!("the fence that has the name of {slot} is that of job {job}, of {user}");
            ExitCode::SUCCESS
        }
        LateAnswer::Ended => ExitCode::SUCCESS,
        LateAnswer::Unknown => {
            log::warn!("the startd has not said which job has the fence by the name of {slot}");
            ExitCode::FAILURE
        }
    })
}

/// The outcome of the questions.
#[derive(Debug, PartialEq, Eq)]
enum LateAnswer {
    Said {
        job: Id,
        user: String,
    },
    /// The starter has ended, so an answer could be about another job.
    Ended,
    Unknown,
}

fn whose(question: &Question, starter: &Path, pauses: &[Duration]) -> LateAnswer {
    for pause in pauses {
        std::thread::sleep(*pause);
        if !starter.exists() {
            return LateAnswer::Ended;
        }
        let said = question.ask(ATTRIBUTES).ok().and_then(|said| SlotJob::parse(&said).ok());
        let found = said.and_then(|said| Some((said.job?, said.user.unwrap_or_default())));
        if let Some((job, user)) = found.filter(|_| starter.exists()) {
            let user = user.chars().filter(|c| is_printable(*c)).take(60).collect();
            return LateAnswer::Said { job, user };
        }
    }
    LateAnswer::Unknown
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_startd_that_is_busy_is_asked_until_it_answers_or_the_starter_ends() {
        let temp = tempfile::tempdir().unwrap();
        let (program, starter) = (temp.path().join("condor_status"), temp.path().join("starter"));
        let place = temp.path().display();
        let said = "JobId = \"12.0\"\nRemoteUser = \"alice\u{1b}@x\"";
        // The program fails at first, then prints a slot without a job, and then the job.
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{place}/asked\n[ -e {place}/starter ] && case $(wc -l <{place}/asked) in\n\
             1) exit 1;; 2) echo 'JobId = undefined';; *) echo '{said}'; [ ! -e {place}/last ] || rm {place}/starter;;\n\
             esac\n"
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&starter, "").unwrap();
        let question = Question { program, address: "<a>".into(), is_slot: "Name == \"s@n\"".into() };
        let whose = |times| super::whose(&question, &starter, &vec![Duration::ZERO; times]);
        assert_eq!(whose(2), LateAnswer::Unknown);
        assert_eq!(whose(2), LateAnswer::Said { job: Id::new("12.0").unwrap(), user: "alice@x".to_owned() });
        let asked = fs::read_to_string(temp.path().join("asked")).unwrap();
        let expected = "-direct <a> -long -attributes JobId,RemoteUser -constraint Name == \"s@n\"";
        assert_eq!(asked.lines().collect::<Vec<_>>(), [expected; 3]);
        // The starter ends while the startd answers: the answer can be about the next job.
        fs::write(temp.path().join("last"), "").unwrap();
        assert_eq!(whose(2), LateAnswer::Ended);
        assert_eq!(whose(1), LateAnswer::Ended);
    }
}
