// SPDX-License-Identifier: GPL-2.0-or-later
//! The spool of the job, in which execd has started us, and whose it is.
//!
//! execd has the rights of its administrator, whom `admin_user` of bootstrap(5) names, and is root behind that: so is what it starts.
//!
//! A fence needs root. What goes into the spool is the administrator's, also where a server of files gives root no right there. And the
//! shepherd is started as execd would start it.

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::unistd::{Gid, Uid, User, getegid, geteuid, getgid, getuid, setegid, seteuid};

/// `SSTATE_APPERROR` of execution_states.h: the job is in error, and neither its queue nor its host is.
pub const JOB_IS_IN_ERROR: u8 = 30;

/// `SSTATE_BEFORE_PROLOG`: all queues of the host are in error, and the job waits for another host.
const HOST_IS_IN_ERROR: u8 = 7;

/// `SSTATE_FAILURE_AFTER_JOB`: the job is over, and neither runs again nor waits.
const JOB_IS_OVER: u8 = 100;

/// The file in which a shepherd says how it has ended.
pub const EXIT_STATUS: &str = "exit_status";

/// Why a job is not started.
pub struct NotStarted {
    /// For its user, or for the administrator.
    pub why: String,
    /// Whether no job could be fenced here.
    pub is_of_host: bool,
    /// Whether the job's client has said it, and the job is over with that.
    pub is_over: bool,
}

impl NotStarted {
    /// As execd is told.
    pub fn status(&self) -> u8 {
        match self {
            Self { is_over: true, .. } => JOB_IS_OVER,
            Self { is_of_host: true, .. } => HOST_IS_IN_ERROR,
            _ => JOB_IS_IN_ERROR,
        }
    }

    /// One line for its user.
    pub fn sentence(&self) -> String {
        format!("jobfence: this job was not started, since it cannot be fenced: {}", self.why.replace('\n', "; "))
    }
}

impl From<String> for NotStarted {
    fn from(why: String) -> Self {
        Self { why, is_of_host: false, is_over: false }
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

    /// The name of its owner, whose rights execd has for most of its time.
    pub fn administrator(&self) -> Result<String> {
        let uid = self.user.uid;
        let found = User::from_uid(uid).map_err(|errno| Error::new("look for the user").value(uid).errno(errno))?;
        Ok(found.ok_or_else(|| Error::new("this node does not know the user").value(uid))?.name)
    }

    /// Replaces a file of it, with the rights of whose it is.
    pub fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        self.user.write(&self.dir, name, text)
    }

    /// What a shepherd does that cannot start a job. qstat -j shows the first line as the reason of the error.
    pub fn refuse(&self, refusal: &NotStarted) {
        for (name, text) in [("error", refusal.sentence()), (EXIT_STATUS, refusal.status().to_string())] {
            let text = text + "\n";
            if let Err(error) = self.write(name, text.as_bytes()) {
                log::error!("cannot tell execd why: {error}");
            }
        }
    }
}
