// SPDX-License-Identifier: GPL-2.0-or-later
//! What qmaster debits for a queue's jobs on this host. A launch asks qmaster and keeps the answer in `RunDir` for launches after it.

use std::time::{Duration, Instant, SystemTime};

use jobfence::config::{Config, PerSlot, SlotRequest};
use jobfence::error::{Error, Result};
use jobfence::job::Id;
use jobfence::record::make_directory;
use jobfence::schedulers::gridengine::KEPT;
use jobfence::schedulers::gridengine::complexes::Debits;
use jobfence::schedulers::gridengine::spool::SpooledJob;
use jobfence::sys::dir::Dir;
use nix::fcntl::OFlag;
use nix::unistd::getppid;

use crate::check::daemon::SchedulerDaemon;
use crate::schedulers::gridengine::check::EXECD;

/// How long an answer holds, and how long a failure to get one.
const LASTS: Duration = Duration::from_secs(300);
const SILENCE_LASTS: Duration = Duration::from_secs(60);
/// The content of a queue's file if qmaster has never answered.
const SILENCE: &str = "none\n";
/// How long a launch waits for all of qmaster's answers together.
const PATIENCE: Duration = Duration::from_secs(5);

/// The debits of this job's queue, if one of these requests depends on them. Logs if they are not known.
pub fn of(spooled: &SpooledJob, wanted: &[&SlotRequest], config: &Config) -> Debits {
    if wanted.iter().all(|request| spooled.is_said(request)) {
        return Debits::default();
    }
    let debits = kept_or_asked(spooled, config).unwrap_or_else(|error| {
        log::warn!("job {}: {error}", spooled.job);
        Debits::default()
    });
    if !debits.are_known() && wanted.iter().any(|one| one.per == PerSlot::AsCounted && !spooled.is_said(one)) {
        let why = "what qmaster debits is not known here, so an amount is of each slot unless jobfence.conf says more";
        log::warn!("job {}: {why}", spooled.job);
    }
    debits
}

fn kept_or_asked(spooled: &SpooledJob, config: &Config) -> Result<Debits> {
    let queue = spooled.facts.partition.known().cloned().unwrap_or_default();
    let name = Id::new(queue.as_str())?.in_a_name();
    // The directory has a file for each queue.
    let dir = make_directory(&config.run_dir, KEPT)?;
    if let Some(kept) = kept(&dir, &name) {
        return Ok(kept);
    }
    // An old answer is better than none.
    let before = || dir.read(&name).ok().map(|text| Debits::parse(&text)).filter(Debits::are_known);
    let asked = ask(&queue, &spooled.host).or_else(|why| before().ok_or(why));
    let text = asked.as_ref().map_or_else(|_| SILENCE.to_owned(), Debits::text);
    if let Err(error) = dir.replace_file(&name, text.as_bytes()) {
        log::info!("{error}");
    }
    asked.map_err(Error::new)
}

/// The kept answer, if it still holds.
fn kept(dir: &Dir, name: &str) -> Option<Debits> {
    let file = std::fs::File::from(dir.open_file(name, OFlag::O_RDONLY).ok()?);
    let written = file.metadata().ok()?.modified().ok()?;
    // Launches share the name of the new file, so one launch can rename another's file while it is still empty.
    let debits = Debits::parse(&dir.read(name).ok().filter(|text| !text.is_empty())?);
    let lasts = if debits.are_known() { LASTS } else { SILENCE_LASTS };
    // After the clock was set back, the file can be of the future.
    SystemTime::now().duration_since(written).ok().filter(|age| *age < lasts).map(|_| debits)
}

/// Asks qmaster, as execd would.
fn ask(queue: &str, host: &str) -> Result<Debits, String> {
    let execd =
        SchedulerDaemon::from_pid(&Dir::open("/proc").map_err(|error| error.to_string())?, getppid().as_raw(), EXECD);
    let deadline = Instant::now() + PATIENCE;
    let qconf = |option: &str, of: &[&str]| execd.ask_by(&[&["qconf", option], of].concat(), deadline);
    let complexes = qconf("-sc", &[])?;
    let givers = [qconf("-se", &[host])?, qconf("-se", &["global"])?, qconf("-sq", &[&format!("{queue}@{host}")])?];
    Ok(Debits::from_qconf(&complexes, &givers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_a_while() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        assert_eq!(kept(&dir, "all+2Eq"), None);
        let written = |text: &str, age: Duration| {
            let file = std::fs::File::create(temp.path().join("all+2Eq")).unwrap();
            std::io::Write::write_all(&mut &file, text.as_bytes()).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            kept(&dir, "all+2Eq").map(|debits| debits.are_known())
        };
        let second = Duration::from_secs(1);
        let known = "mem_free mf YES 0\n";
        assert_eq!([written(known, second), written(known, LASTS + second)], [Some(true), None]);
        assert_eq!([written(SILENCE, second), written(SILENCE, SILENCE_LASTS + second)], [Some(false), None]);
        assert_eq!(written("", second), None, "another launch is about to write it");
        let tomorrow = std::fs::File::create(temp.path().join("all+2Eq")).unwrap();
        tomorrow.set_modified(SystemTime::now() + Duration::from_secs(86_400)).unwrap();
        assert_eq!(kept(&dir, "all+2Eq"), None, "of the future");
    }
}
