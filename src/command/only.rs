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
    /// Where this process works.
    run_dir: PathBuf,
    lock: Option<OnlyLock>,
    /// The last failure that was reported.
    said: Option<String>,
    /// Why nobody can be kept from it, as it was reported.
    said_open: Option<String>,
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
        this.run_dir = run_dir.to_owned();
        Ok(this)
    }

    /// Whether this process may work in this `RunDir`. If not, the journal says why. Fails if it works there already, and another one does,
    /// too: the directory was deleted, and the other one has made it anew.
    pub fn may_have(&mut self, run_dir: &Path) -> Result<bool, Failure> {
        let other = self.take(run_dir).err();
        match &other {
            None => self.run_dir = run_dir.to_owned(),
            Some(other) if self.run_dir == run_dir => return Err(other.clone().into()),
            Some(other) if self.said.as_ref() == Some(other) => {}
            Some(other) => log::error!("{other}; until then the last settings hold"),
        }
        self.said = other;
        Ok(self.said.is_none())
    }

    fn take(&mut self, run_dir: &Path) -> Result<(), String> {
        let taken = match self.lock.as_ref().map(|lock| lock.is_of(run_dir)) {
            Some(Ok(true)) => {
                self.said_open = None;
                return Ok(());
            }
            // The file may be the same. To open it again, and to close it, would let go of the lock.
            Some(Err(error)) => Err(error),
            Some(Ok(false)) | None => OnlyLock::take(run_dir),
        };
        match taken {
            Ok(Ok(lock)) => (self.lock, self.said_open) = (Some(lock), None),
            Ok(Err(pid)) => {
                let who = if pid > 0 { format!(" (process {pid})") } else { String::new() };
                return Err(format!(
                    "another 'jobfence hold'{who} has RunDir={}: end that one, or give this one a RunDir of its own",
                    run_dir.display()
                ));
            }
            // Without a RunDir there are no records, and nothing to lend by. The scope is held all the same.
            Err(error) => {
                let error = error.to_string();
                if self.said_open.as_ref() != Some(&error) {
                    log::warn!("no other 'jobfence hold' is kept from this RunDir: {error}");
                }
                self.said_open = Some(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    #[test]
    fn the_lock_is_that_of_the_directory_that_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let (run, other) = (temp.path().join("run"), temp.path().join("other"));
        let mut only = OnlyHold::begin(&run).unwrap();
        let inode = |only: &OnlyHold| only.lock.as_ref().is_some_and(|lock| lock.is_of(&only.run_dir).unwrap());
        assert!(inode(&only) && only.may_have(&run).unwrap());
        fs::remove_dir_all(&run).unwrap();
        assert!(!inode(&only));
        assert!(only.may_have(&run).unwrap() && inode(&only) && run.join("hold.only/lock").exists());
        assert!(only.may_have(&other).unwrap() && inode(&only));
    }

    /// Whether the kernel has a lock of a process on the file.
    fn is_locked(run: &Path) -> bool {
        let file = format!(":{} ", fs::metadata(run.join("hold.only/lock")).unwrap().ino());
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains(" POSIX ") && line.contains(&file))
    }

    #[test]
    fn the_lock_stays_by_another_name_and_while_its_file_cannot_be_looked_at() {
        let temp = tempfile::tempdir().unwrap();
        let (run, alias) = (temp.path().join("run"), temp.path().join("alias"));
        let mut only = OnlyHold::begin(&run).unwrap();
        assert!(is_locked(&run));
        symlink(&run, &alias).unwrap();
        assert!(only.may_have(&alias).unwrap() && is_locked(&run));
        let rights = |mode| fs::set_permissions(&run, fs::Permissions::from_mode(mode)).unwrap();
        rights(0o755);
        assert!(only.lock.as_ref().unwrap().is_of(&run).is_err());
        assert!(only.may_have(&run).unwrap() && is_locked(&run) && only.said_open.is_some());
        rights(0o700);
        assert!(only.may_have(&run).unwrap() && is_locked(&run) && only.said_open.is_none());
    }

    #[test]
    fn it_ends_if_another_one_has_made_its_run_dir_anew_and_waits_outside_of_anothers() {
        let temp = tempfile::tempdir().unwrap();
        let (run, next) = (temp.path().join("run"), temp.path().join("next"));
        let mut only = OnlyHold::begin(&run).unwrap();
        drop(OnlyLock::take(&next).unwrap().unwrap());
        fs::remove_file(run.join("hold.only/lock")).unwrap();
        let mut other = Command::new("python3");
        let program = "import fcntl, sys\nfiles = [open(name, 'w') for name in sys.argv[1:]]\n\
                       [fcntl.lockf(file, fcntl.LOCK_EX) for file in files]\nprint('ready', flush=True)\nsys.stdin.read()";
        other.args(["-c", program]).args([&run, &next].map(|run| run.join("hold.only/lock")));
        let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let waits = only.may_have(&next).is_ok_and(|may| !may);
        let ends = only.may_have(&run).err().map(|failure| failure.to_string());
        drop(other.stdin.take());
        other.wait().unwrap();
        assert!(waits);
        assert!(ends.as_ref().is_some_and(|why| why.contains(&format!("process {}", other.id()))), "{ends:?}");
        assert!(only.may_have(&run).unwrap() && is_locked(&run));
    }
}
