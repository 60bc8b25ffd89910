// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs whose jobs are put back into the queue by a program that sees the job's end, before the scheduler does. It writes a file for each
//! before it does so, in a directory beside the usage log. The next look of `jobfence hold` takes it over, and finishes what was begun.

use std::fs::{self, DirEntry};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jobfence::job::Id;
use jobfence::report::usage_log::UsageLog;
use nix::unistd::{getegid, geteuid};

use super::files::{AgainState, WaitingRun, place};
use crate::table::printable;
use crate::whole::{self, Ownership};

/// The most files that a look takes over. The next look takes over the rest.
const MOST: usize = 1000;

/// The age at which a file counts as one whose writer has died.
const LEFT: Duration = Duration::from_secs(3600);

/// What the directory has beside the name of the file of what was begun.
const DIRECTORY: &str = "new";

fn directory(usage_log: &UsageLog<'_>, name: &str) -> PathBuf {
    place(usage_log, &format!("{name}.{DIRECTORY}"))
}

/// Whether a look has something to take over.
pub fn is_there(usage_log: &UsageLog<'_>, name: &str) -> bool {
    entries(&directory(usage_log, name)).any(|entry| !is_new(&entry))
}

fn entries(directory: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten()
}

/// Whether a file is not complete: its job is not put back yet, or never will be, if its writer has died.
fn is_new(entry: &DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with('.')
}

/// Writes a run down, such that it outlives a crash of the machine.
pub fn write(usage_log: &UsageLog<'_>, name: &str, one: &WaitingRun) -> Result<(), String> {
    let directory = directory(usage_log, name);
    if !directory.is_dir() {
        match whole::make_directory(&directory, 0o700) {
            // Another job's end has made it.
            Err(error) if !directory.is_dir() => return Err(error.to_string()),
            _ => {}
        }
    }
    let ours = Ownership { mode: 0o600, uid: geteuid().as_raw(), gid: getegid().as_raw() };
    whole::replace_durably(&directory.join(file(one)?), one.json().to_string().as_bytes(), ours)
        .map_err(|error| error.to_string())
}

/// Forgets a run that is not put back. If a look has taken it over already, the look finds that nothing is left to do.
pub fn forget(usage_log: &UsageLog<'_>, name: &str, one: &WaitingRun) {
    if let Ok(file) = file(one) {
        let _ = fs::remove_file(directory(usage_log, name).join(file));
    }
}

/// The file of a run. A job has one run at a time.
fn file(one: &WaitingRun) -> Result<String, String> {
    Id::new(one.run.job.as_str()).map(|job| job.in_a_name().to_string()).map_err(|error| error.to_string())
}

/// Has `state` know all that is there. A file that is not understood stays, and is said.
pub fn take_over(usage_log: &UsageLog<'_>, state: &mut AgainState) -> Result<(), String> {
    let directory = directory(usage_log, state.name);
    let mut wrong = Ok(());
    let mut taken = Vec::new();
    let (new, complete): (Vec<_>, Vec<_>) = entries(&directory).partition(is_new);
    for entry in new {
        let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > LEFT) {
            let _ = fs::remove_file(entry.path());
        }
    }
    for entry in complete.into_iter().take(MOST) {
        let path = entry.path();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            text => text.unwrap_or_default(),
        };
        let one = serde_json::from_str(&text).ok().as_ref().and_then(WaitingRun::from_json);
        let Some(one) = one.filter(|one| one.begun.is_some()) else {
            wrong = Err(format!(
                "a job may be held in the queue, since this file is not understood; release or cancel it, and remove the file: {}",
                printable(&path.display().to_string())
            ));
            continue;
        };
        // If the last look has ended before it could remove the file, the run is known.
        let is_known = |known: &WaitingRun| known.run.job == one.run.job && known.run.began == one.run.began;
        if !state.waiting.iter().any(is_known) {
            state.waiting.push(one);
        }
        taken.push(path);
    }
    if !taken.is_empty() {
        state.save(usage_log)?;
        for path in taken {
            let _ = fs::remove_file(path);
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use jobfence::config::Config;
    use serde_json::json;

    use super::*;
    use crate::again::{AskedMemory, KilledRun, MemoryUnit, NextRun, Refusals};
    use crate::logged::LoggedStep;

    const NAME: &str = "again-x";

    fn one(job: &str, began: f64) -> WaitingRun {
        let line = json!({"job": job, "uid": 0, "started_unix_seconds": began, "ended": "2025-11-25T03:00:10Z"});
        let run = KilledRun { restarts: Some(1), ..KilledRun::from_line(LoggedStep::new(line)).unwrap() };
        let begun = Some(NextRun::More(AskedMemory { unit: MemoryUnit::Host, mib: 150 }));
        WaitingRun { run, begun, tries: 0, refused: Refusals::default() }
    }

    #[test]
    fn a_file_whose_writer_has_died_has_no_look_begin() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { usage_log: Some(temp.path().join("log")), ..Config::default() };
        let log = UsageLog::from_config(&config).unwrap();
        let directory = directory(&log, NAME);
        std::fs::create_dir(&directory).unwrap();
        let left = [".7.new", ".8.new"].map(|name| directory.join(name));
        left.iter().for_each(|path| std::fs::write(path, "{").unwrap());
        let long_ago = std::time::SystemTime::now() - LEFT - Duration::from_secs(60);
        std::fs::File::options().write(true).open(&left[0]).unwrap().set_modified(long_ago).unwrap();
        assert!(!is_there(&log, NAME));
        write(&log, NAME, &one("9", 1.0)).unwrap();
        assert!(is_there(&log, NAME));
        let mut state = AgainState::load(&log, NAME).unwrap();
        take_over(&log, &mut state).unwrap();
        assert_eq!((state.waiting.len(), left.map(|path| path.exists())), (1, [false, true]));
        assert!(!is_there(&log, NAME));
    }

    #[test]
    fn what_was_decided_is_taken_over_once() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { usage_log: Some(temp.path().join("log")), ..Config::default() };
        let log = UsageLog::from_config(&config).unwrap();
        assert!(!is_there(&log, NAME));
        for run in [one("7", 1.0), one("8/9", 1.0), one("10", 1.0)] {
            write(&log, NAME, &run).unwrap();
        }
        forget(&log, NAME, &one("10", 1.0));
        let jobs = |state: &AgainState| {
            let mut all: Vec<_> = state.waiting.iter().map(|one| (one.run.job.clone(), one.begun)).collect();
            all.sort_by(|one, other| one.0.cmp(&other.0));
            all
        };
        let more = Some(NextRun::More(AskedMemory { unit: MemoryUnit::Host, mib: 150 }));
        let mut state = AgainState::load(&log, NAME).unwrap();
        take_over(&log, &mut state).unwrap();
        assert!(!is_there(&log, NAME));
        assert_eq!(jobs(&state), [("7".to_owned(), more), ("8/9".to_owned(), more)]);
        // It is kept before the files go. A look that has not removed one finds it again, and a later run of the job is another one.
        let mut state = AgainState::load(&log, NAME).unwrap();
        write(&log, NAME, &one("7", 1.0)).unwrap();
        take_over(&log, &mut state).unwrap();
        write(&log, NAME, &one("7", 99.0)).unwrap();
        take_over(&log, &mut state).unwrap();
        assert_eq!(jobs(&state).len(), 3);
        // Another release's.
        std::fs::write(directory(&log, NAME).join("11"), "{}").unwrap();
        assert!(take_over(&log, &mut state).unwrap_err().contains("again-x.new/11"));
        assert!(is_there(&log, NAME));
    }
}
