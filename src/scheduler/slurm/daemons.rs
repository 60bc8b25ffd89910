// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's step daemons, by their names and titles.

use crate::error::Result;
use crate::scheduler::Titled;
use crate::sys::dir::Dir;
use crate::sys::process::{self, Owner};

/// Slurm's step daemons on this host that live: root's processes of that name, with the titles that they have given themselves, as
/// `[5.0]`.
pub fn all(proc: &Dir) -> Result<Vec<Titled>> {
    let mut found = Vec::new();
    for pid in proc.list(true)?.iter().filter_map(|name| name.parse::<i32>().ok()) {
        if is_step_daemon(proc, pid)
            && let Some(id) = Owner::of(proc, pid)?
            && let Ok(line) = proc.read(&format!("{pid}/cmdline"))
        {
            let title = line.split('\0').next().unwrap_or_default();
            let title = title.strip_prefix("slurmstepd: ").unwrap_or_default();
            found.push((id, title.to_owned()));
        }
    }
    Ok(found)
}

/// Whether it is root's and called as Slurm's step daemon is: a user can give his the name.
pub fn is_step_daemon(proc: &Dir, pid: i32) -> bool {
    process::name(proc, pid).as_deref() == Some("slurmstepd")
        && process::uid(proc, pid) == Some(nix::unistd::getuid().as_raw())
}

/// Whether one of these is of this very step, in a place that may be the step's: its title is there before it makes or enters any
/// directory (`main` and `_set_job_log_prefix` in Slurm's slurmstepd.c). Of another node's on this host it looks the same.
pub fn is_among(daemons: &[Titled], job: &str, step: &str, is_elsewhere: impl Fn(i32) -> bool) -> bool {
    let title = format!("[{job}.{step}");
    // Behind it: the end, the number of a component, or " stepmgr".
    let is_its = |found: &str| found.strip_prefix(&title).is_some_and(|rest| rest.starts_with([']', '+', ' ']));
    daemons.iter().any(|(daemon, found)| is_its(found) && !is_elsewhere(daemon.pid))
}
