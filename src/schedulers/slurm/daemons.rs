// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's step daemons, by name and title.

use crate::error::Result;
use crate::scheduler::Titled;
use crate::sys::dir::Dir;
use crate::sys::process::{self, Owner};

/// Slurm's live step daemons on this host: root's processes of that name, with the titles that they set, such as `[5.0]`.
pub fn all(proc: &Dir) -> Result<Vec<Titled>> {
    let mut found = Vec::new();
    for pid in proc.list(true)?.iter().filter_map(|name| name.parse::<i32>().ok()) {
        if is_step_daemon(proc, pid)
            && let Some(id) = Owner::from_pid(proc, pid)?
            && let Ok(line) = proc.read(&format!("{pid}/cmdline"))
        {
            let title = line.split('\0').next().unwrap_or_default();
            let title = title.strip_prefix("slurmstepd: ").unwrap_or_default();
            found.push((id, title.to_owned()));
        }
    }
    Ok(found)
}

/// The file name of the step daemon, and at first the process's name.
const NAME: &str = "slurmstepd";

/// Whether the process is root's, bears the step daemon's name, and runs that file. A user can give that name to processes, even to one
/// that becomes root's: by a link of that name to a set-user-ID program.
pub fn is_step_daemon(proc: &Dir, pid: i32) -> bool {
    process::name(proc, pid).as_deref() == Some(NAME)
        && process::uid(proc, pid) == Some(nix::unistd::getuid().as_raw())
        // If the kernel does not say what the process runs, a live daemon must not count as dead. Debian's file is a link to
        // slurmstepd-wlm.
        && process::program(proc, pid).is_none_or(|program| program.starts_with(NAME))
}

/// Whether one of these daemons serves exactly this step, in a place that may be the step's. A daemon sets its title before it makes or
/// enters a directory (`main` and `_set_job_log_prefix` in Slurm's slurmstepd.c). A daemon of another node on this host looks the same.
pub fn is_among(daemons: &[Titled], job: &str, step: &str, is_elsewhere: impl Fn(i32) -> bool) -> bool {
    let title = format!("[{job}.{step}");
    // What follows the title: its end, the number of a component, or " stepmgr".
    let is_its = |found: &str| found.strip_prefix(&title).is_some_and(|rest| rest.starts_with([']', '+', ' ']));
    daemons.iter().any(|(daemon, found)| is_its(found) && !is_elsewhere(daemon.pid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_alone_is_no_step_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let proc = Dir::open("/proc").unwrap();
        let is_daemon = |dir: &str, also: &dyn Fn()| {
            let mut child =
                Command::new(temp.path().join(dir).join(NAME)).arg("60").stdin(Stdio::null()).spawn().unwrap();
            also();
            let pid = i32::try_from(child.id()).unwrap();
            // The kernel lets the parent go on a moment before it sets the name.
            while process::name(&proc, pid).as_deref() != Some(NAME) {
                std::thread::yield_now();
            }
            let found = is_step_daemon(&proc, pid);
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        for dir in ["link", "copy", "debian"] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
        }
        symlink("/bin/sleep", temp.path().join("link").join(NAME)).unwrap();
        let copy = temp.path().join("copy").join(NAME);
        // Copied by another process: a file that is open for writing cannot be run, and other tests of this process start programs
        // meanwhile.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&copy).status().unwrap().success());
        assert!(!is_daemon("link", &|| {}));
        let debians = temp.path().join("slurmstepd-wlm");
        assert!(Command::new("cp").arg("/bin/sleep").arg(&debians).status().unwrap().success());
        symlink(&debians, temp.path().join("debian").join(NAME)).unwrap();
        assert!(is_daemon("debian", &|| {}));
        assert!(is_daemon("copy", &|| {}));
        // As after an upgrade of Slurm.
        assert!(is_daemon("copy", &|| std::fs::remove_file(&copy).unwrap()));
    }
}
