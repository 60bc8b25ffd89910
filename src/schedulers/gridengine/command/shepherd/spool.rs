// SPDX-License-Identifier: GPL-2.0-or-later
//! The spool of the job, in which execd starts this program, and the user who owns it.
//!
//! execd has the effective ids of its administrator (`admin_user` of bootstrap(5)) and the real ids of root. A program that it starts has
//! the same.
//!
//! A fence needs root. Files in the spool are written as the administrator, since a file server may give root no rights there. The
//! shepherd is started with the ids that execd would give it.

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
    /// The reason, for the job's user or the administrator.
    pub why: String,
    /// Whether no job at all could be fenced on this host.
    pub is_of_host: bool,
    /// Whether the job's client has printed the reason, so that the job is over.
    pub is_over: bool,
}

impl NotStarted {
    /// The exit status that tells execd.
    pub fn status(&self) -> u8 {
        match self {
            Self { is_over: true, .. } => JOB_IS_OVER,
            Self { is_of_host: true, .. } => HOST_IS_IN_ERROR,
            _ => JOB_IS_IN_ERROR,
        }
    }

    /// One line for the job's user.
    pub fn sentence(&self) -> String {
        format!("jobfence: this job was not started, since it cannot be fenced: {}", self.why.replace('\n', "; "))
    }
}

impl From<String> for NotStarted {
    fn from(why: String) -> Self {
        Self { why, is_of_host: false, is_over: false }
    }
}

/// The ids with which execd writes to the spool.
#[derive(Clone, Copy)]
pub struct SpoolUser {
    uid: Uid,
    gid: Gid,
}

impl SpoolUser {
    /// Returns the effective ids of this process, and gives it root's.
    pub fn step_aside() -> Result<Self> {
        let found = Self { uid: geteuid(), gid: getegid() };
        Self { uid: getuid(), gid: getgid() }.act()?;
        if geteuid().is_root() { Ok(found) } else { Err(Error::new("only root can fence jobs").value(geteuid())) }
    }

    /// Gives this process these effective ids. It needs root's to change them.
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

/// The directory in which execd started this program.
pub struct Spool {
    /// The directory.
    pub dir: Dir,
    /// Its owner.
    pub user: SpoolUser,
}

impl Spool {
    /// Opens the working directory, and takes root's effective ids.
    pub fn open() -> Result<Self> {
        let user = SpoolUser::step_aside()?;
        let path =
            std::env::current_dir().map_err(|error| Error::new(format!("there is no spool of the job: {error}")))?;
        Ok(Self { dir: Dir::open(path)?, user })
    }

    /// The name of the spool's owner, whose rights execd has most of the time.
    pub fn administrator(&self) -> Result<String> {
        let uid = self.user.uid;
        let found = User::from_uid(uid).map_err(|errno| Error::new("look for the user").value(uid).errno(errno))?;
        Ok(found.ok_or_else(|| Error::new("this node does not know the user").value(uid))?.name)
    }

    /// Replaces a file of the spool, with its owner's rights.
    pub fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        self.user.write(&self.dir, name, text)
    }

    /// Writes what a shepherd writes that cannot start its job. qstat -j shows the first line of `error` as the reason.
    pub fn refuse(&self, refusal: &NotStarted) {
        for (name, text) in [("error", refusal.sentence()), (EXIT_STATUS, refusal.status().to_string())] {
            let text = text + "\n";
            if let Err(error) = self.write(name, text.as_bytes()) {
                log::error!("cannot tell execd why: {error}");
            }
        }
    }
}
