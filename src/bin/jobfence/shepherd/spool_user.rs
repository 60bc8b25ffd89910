// SPDX-License-Identifier: GPL-2.0-or-later
//! execd has the rights of its administrator, whom `admin_user` of bootstrap(5) names, and is root behind that: so is what it starts.
//!
//! A fence needs root. What goes into the spool is the administrator's, also where a server of files gives root no right there. And the
//! shepherd is started as execd would start it.

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::unistd::{Gid, Uid, getegid, geteuid, getgid, getuid, setegid, seteuid};

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
    pub fn write(self, dir: &Dir, name: &str, text: &str) -> Result<()> {
        self.act()?;
        let done = dir.replace_file(name, text);
        Self { uid: getuid(), gid: getgid() }.act()?;
        done
    }
}
