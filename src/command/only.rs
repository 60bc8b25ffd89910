// SPDX-License-Identifier: GPL-2.0-or-later
//! One `jobfence hold` for each `RunDir`. A second one would take what the first lends for the jobs' own limits, and would do again what the
//! first does: store usage, requeue, tell users.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::record::tracked::OnlyLock;

use crate::command::Failure;

/// For so long one that ends is waited for: systemd starts the next one when the process of the last has ended, or was killed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// What this process is the only one in.
#[derive(Debug, Default)]
pub struct OnlyHold {
    lock: Option<(PathBuf, OnlyLock)>,
    /// The last failure that was reported.
    said: Option<String>,
}

impl OnlyHold {
    /// Waits for one that ends, and fails if there is another one still.
    pub fn begin(run_dir: &Path) -> Result<Self, Failure> {
        let (mut this, deadline) = (Self::default(), Instant::now() + PATIENCE);
        while let Err(other) = this.take(run_dir) {
            if Instant::now() >= deadline {
                return Err(other.into());
            }
            if this.said.is_none() {
                log::info!("{other}; waiting for its end");
                this.said = Some(other);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(this)
    }

    /// Whether this process may work in this `RunDir`. If not, the journal says why.
    pub fn may_have(&mut self, run_dir: &Path) -> bool {
        let other = self.take(run_dir).err();
        if let Some(other) = other.as_ref().filter(|other| self.said.as_ref() != Some(*other)) {
            log::error!("{other}; until then the last settings hold");
        }
        self.said = other;
        self.said.is_none()
    }

    fn take(&mut self, run_dir: &Path) -> Result<(), String> {
        if self.lock.as_ref().is_some_and(|(of, lock)| of == run_dir && lock.is_of(run_dir)) {
            return Ok(());
        }
        match OnlyLock::take(run_dir) {
            Ok(Ok(lock)) => self.lock = Some((run_dir.to_owned(), lock)),
            Ok(Err(pid)) => {
                let who = if pid > 0 { format!(" (process {pid})") } else { String::new() };
                return Err(format!(
                    "another 'jobfence hold'{who} has RunDir={}: end that one, or give this one a RunDir of its own",
                    run_dir.display()
                ));
            }
            // Without a RunDir there are no records, and nothing to lend by. The scope is held all the same.
            Err(error) => log::debug!("nobody is kept from this RunDir: {error}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_lock_is_that_of_the_directory_that_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let (run, other) = (temp.path().join("run"), temp.path().join("other"));
        let mut only = OnlyHold::begin(&run).unwrap();
        let inode = |only: &OnlyHold| only.lock.as_ref().is_some_and(|(of, lock)| lock.is_of(of));
        assert!(inode(&only) && only.may_have(&run));
        fs::remove_dir_all(&run).unwrap();
        assert!(!inode(&only));
        assert!(only.may_have(&run) && inode(&only) && run.join("hold.only/lock").exists());
        assert!(only.may_have(&other) && inode(&only));
    }
}
