// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's processes are in a PID namespace of their own (`PrivatePIDs`): pid_namespaces(7).
//!
//! So they have no number for any process outside of it, and neither signal, trace nor read one, though it is of the same user. Their `/proc`
//! is that of the namespace.
//!
//! Only a command of jobfence does so: the process that makes the namespace must start the job, and have one thread.

use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::readlink;
use nix::unistd::{Pid, chdir, geteuid, read};

use super::processes::{self, PROC};
use crate::config::{Config, Mode};
use crate::error::{Error, Result};
use crate::sys::child;
use crate::sys::mount;
use crate::sys::pid_namespace::PidNamespace;

/// The key.
pub const KEY: &str = "PrivatePIDs";

/// Whether jobs with this configuration have processes of their own.
pub fn is_wanted(config: &Config) -> bool {
    config.private_pids && config.mode == Mode::Enforce
}

/// Begins the namespace, if it is wanted.
pub fn begin(is_wanted: bool) -> Result<Option<PidNamespace>> {
    is_wanted.then(PidNamespace::begin).transpose()
}

/// For a process in the namespace, which has one thread and root's rights: shows its own processes in the place of the host's. `is_shown`: it
/// has a mount namespace of its own, and a proc of its own there. An error means that others' may be seen.
pub fn enter(is_shown: bool) -> Result<()> {
    if !is_shown {
        let here = std::env::current_dir().ok();
        mount::leave_hosts()?;
        processes::show_own(false)?;
        // The working directory is still in the host's, or was removed and may be anywhere.
        let wanted = if here.is_some() { PROC } else { "/" };
        if here.is_none_or(|here| here.starts_with(PROC)) {
            chdir(wanted).map_err(|errno| Error::os("change the working directory to", wanted, errno))?;
        }
    }
    // The proof that it is this namespace's.
    let this = readlink("/proc/self").map_err(|errno| Error::os("look at (PrivatePIDs)", "/proc/self", errno))?;
    if Path::new(&this) != Path::new(&Pid::this().to_string()) {
        return Err(Error::new("the mount of proc shows others' processes (PrivatePIDs):").at(PROC));
    }
    refuse_elsewhere()
}

/// What the host has mounted elsewhere is in the job's mount namespace, too.
fn refuse_elsewhere() -> Result<()> {
    processes::elsewhere()?.map_or(Ok(()), |place| {
        Err(Error::new("another mount of proc shows others' processes (PrivatePIDs):")
            .at(place)
            .hint("unmount it, or set PrivatePIDs=no in jobfence.conf"))
    })
}

/// Why each job would be refused for it on this host, as far as that is seen without a job. Nothing changes by the look. The process must have
/// one thread.
pub fn fault() -> Option<String> {
    if let Err(error) = refuse_elsewhere() {
        return Some(error.to_string());
    }
    if !geteuid().is_root() {
        // A user may not even ask.
        let kernel = Path::new("/proc/self/ns/pid_for_children").exists();
        return (!kernel).then(|| "this kernel has no PID namespaces, and PrivatePIDs needs them".to_owned());
    }
    let text = |failed: Result<()>| failed.err().map(|error| error.to_string()).unwrap_or_default().into_bytes();
    let within = || PidNamespace::begin().map(|namespace| (child::ask(|| text(processes::try_own(false))), namespace));
    let try_all = || match within() {
        Ok((Ok((child, answer)), _namespace)) => {
            let said = answer_of(&answer);
            let _ = child::wait(child);
            said.unwrap_or_else(|errno| text(Err(Error::new("ask a child (PrivatePIDs)").errno(errno))))
        }
        Ok((Err(errno), _)) => text(Err(Error::new("fork (PrivatePIDs)").errno(errno))),
        Err(error) => text(Err(error)),
    };
    let asked = child::keep_until_waited().and_then(|()| child::ask(try_all)).and_then(|(child, answer)| {
        let said = answer_of(&answer);
        child::wait(child)?;
        said
    });
    let said = match asked {
        Ok(said) => String::from_utf8_lossy(&said).into_owned(),
        Err(errno) => Error::new("fork (PrivatePIDs)").errno(errno).to_string(),
    };
    (!said.is_empty()).then_some(said)
}

fn answer_of(pipe: &std::os::fd::OwnedFd) -> nix::Result<Vec<u8>> {
    let mut text = vec![0; 4096];
    loop {
        match read(pipe, &mut text) {
            Err(Errno::EINTR) => {}
            length => {
                text.truncate(length?);
                return Ok(text);
            }
        }
    }
}
