// SPDX-License-Identifier: GPL-2.0-or-later
//! Lines for the job's user at the end of the job's file for errors.

use std::path::Path;

use jobfence::doors::user;
use jobfence::error::{Error, Result};
use jobfence::schedulers::gridengine::spool::SpooledJob;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};

/// Appends the lines, if there is such a file. An interactive job and a slave task have none.
pub fn say(job: &SpooledJob, lines: impl Iterator<Item = String>) {
    let text: String = lines.map(|line| line + "\n").collect();
    if text.is_empty() || ["", "/dev/null"].contains(&job.errors_path.as_str()) || job.slave_task.is_some() {
        return;
    }
    let path = Path::new(&job.errors_path);
    // The user chose the path, so it is looked up with the user's rights.
    let said = user::rights(job.uid)
        .look(|| if path.is_dir() { append(&path.join(&job.errors_name), &text) } else { append(path, &text) });
    if let Err(error) = said {
        log::warn!("job {}: cannot tell its user: {error}", job.job);
    }
}

fn append(path: &Path, text: &str) -> Result<()> {
    let failed = |errno| Error::os("write to", path, errno);
    // No file is made, and opening a FIFO does not block.
    let flags =
        OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = fstat(&file).map_err(failed)?;
    if stat.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        return Err(Error::new("no file").at(path));
    }
    nix::unistd::write(&file, text.as_bytes()).map_err(failed).map(drop)
}
