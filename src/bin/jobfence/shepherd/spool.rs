// SPDX-License-Identifier: GPL-2.0-or-later
//! The spool of the job, in which execd has started us, and whose it is.
//!
//! execd has the rights of its administrator, whom `admin_user` of bootstrap(5) names, and is root behind that: so is what it starts.
//!
//! A fence needs root. What goes into the spool is the administrator's, also where a server of files gives root no right there. And the
//! shepherd is started as execd would start it.

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::unistd::{Gid, Uid, getegid, geteuid, getgid, getuid, setegid, seteuid};

/// `SSTATE_APPERROR` of execution_states.h: the job is in error, and neither its queue nor its host is.
pub const JOB_IS_IN_ERROR: u8 = 30;

/// `SSTATE_BEFORE_PROLOG`: all queues of the host are in error, and the job waits for another host.
const HOST_IS_IN_ERROR: u8 = 7;

/// Why a job is not started.
pub struct NotStarted {
    /// For its user, or for the administrator.
    pub why: String,
    /// Whether no job could be fenced here.
    pub is_of_host: bool,
}

impl NotStarted {
    /// As execd is told.
    pub fn status(&self) -> u8 {
        if self.is_of_host { HOST_IS_IN_ERROR } else { JOB_IS_IN_ERROR }
    }
}

impl From<String> for NotStarted {
    fn from(why: String) -> Self {
        Self { why, is_of_host: false }
    }
}

/// Whose the spool is.
#[derive(Clone, Copy)]
pub struct SpoolUser {
    uid: Uid,
    gid: Gid,
}

impl SpoolUser {
    /// The one whose rights this process has; it has root's then.
    pub fn step_aside() -> Result<Self> {
        let found = Self { uid: geteuid(), gid: getegid() };
        Self { uid: getuid(), gid: getgid() }.act()?;
        if geteuid().is_root() { Ok(found) } else { Err(Error::new("only root can fence jobs").value(geteuid())) }
    }

    /// From now on this process has these rights. Root's are needed on the way.
    pub fn act(self) -> Result<()> {
        let failed = |errno| Error::new("cannot have the rights of").value(format!("uid {}", self.uid)).errno(errno);
        if self.uid.is_root() {
            seteuid(self.uid).map_err(failed)?;
            return setegid(self.gid).map_err(failed);
        }
        setegid(self.gid).map_err(failed)?;
        seteuid(self.uid).map_err(failed)
    }

    /// Replaces a file of the spool.
    fn write(self, dir: &Dir, name: &str, text: &[u8]) -> Result<()> {
        self.act()?;
        let done = dir.replace_file(name, text);
        Self { uid: getuid(), gid: getgid() }.act()?;
        done
    }
}

/// The directory in which execd has started us.
pub struct Spool {
    /// The directory.
    pub dir: Dir,
    /// Whose it is.
    pub user: SpoolUser,
}

impl Spool {
    /// Opens it, and takes root's rights.
    pub fn open() -> Result<Self> {
        let user = SpoolUser::step_aside()?;
        let path =
            std::env::current_dir().map_err(|error| Error::new(format!("there is no spool of the job: {error}")))?;
        Ok(Self { dir: Dir::open(path)?, user })
    }

    /// Replaces a file of it, with the rights of whose it is.
    pub fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        self.user.write(&self.dir, name, text)
    }

    /// What a shepherd does that cannot start a job. qstat -j shows the first line as the reason of the error.
    pub fn refuse(&self, refusal: &NotStarted) {
        log::error!("{}: this job was not started: {}", self.dir.path().display(), refusal.why);
        let why = refusal.why.replace('\n', "; ");
        let sentence = format!("jobfence: this job was not started, since it cannot be fenced: {why}\n");
        for (name, text) in [("error", sentence), ("exit_status", format!("{}\n", refusal.status()))] {
            if let Err(error) = self.write(name, text.as_bytes()) {
                log::error!("cannot tell execd why: {error}");
            }
        }
    }
}
