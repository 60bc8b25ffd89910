// SPDX-License-Identifier: GPL-2.0-or-later
//! The tasks of MoM's jobs on this host, which MoM keeps to continue them after a restart: `mom_priv/jobs/<id>.TK/` has a file for each
//! task, which is named by the task's number and has its session (`task_save`).
//!
//! The file is MoM's `struct taskfix` (job.h): a job id in a field whose length differs between releases, then six numbers and room for
//! sixteen more in all releases from 18.1 to 23.06. So the file is read from its end. It is trusted only if the task's number in it is that
//! of its name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::geteuid;

use crate::job::Id;
use crate::sys::dir::Dir;
use crate::sys::process;

/// The variable with the job's id in the environment of each of its processes.
pub const OF_A_JOB: &str = "PBS_JOBID";

/// The offset of `ti_task` from the end of the file, in bytes. `ti_status` and `ti_sid` follow it.
const TASK: usize = 80;
/// `TI_STATE_RUNNING`. A task that has ended keeps its session as a negative number.
const RUNNING: i32 = 1;
/// More than any task file has, in bytes.
const LARGEST: usize = 64 << 10;
/// The most names that are read of one directory.
const MOST_NAMES: usize = 1 << 16;

/// The file name of MoM's program, and the name of its process.
const MOM: &str = "pbs_mom";

/// What the spools of MoMs say.
#[derive(Debug, Default)]
pub struct SpooledJobs {
    /// Their jobs.
    pub jobs: BTreeSet<Id>,
    /// The sessions of running tasks, each with its job.
    pub sessions: BTreeMap<i32, Id>,
}

/// The directories of the MoMs that run on this host: each MoM's working directory is its `mom_priv`, however it was started. A MoM in a
/// container has no jobs of this host. By a link to a set-user-ID program, a user can start a process of root with this name in any
/// directory: so the program's file must have the name, too, and only root may be able to write to the directory.
pub fn homes(proc: &Dir) -> BTreeSet<PathBuf> {
    let is_mom = |pid: i32| {
        process::name(proc, pid).as_deref() == Some(MOM)
            && process::program(proc, pid).is_some_and(|program| program.starts_with(MOM))
    };
    let is_hosts = |pid: i32| process::uid(proc, pid) == Some(0) && !process::is_contained(proc, pid);
    let home = |pid: i32| {
        let cwd = PathBuf::from(readlinkat(proc, format!("{pid}/cwd").as_str()).ok()?);
        cwd.parent().filter(|_| cwd.ends_with("mom_priv")).map(Path::to_path_buf)
    };
    let all = process::all(proc).unwrap_or_default();
    let pids = all.iter().map(|found| found.id.pid).filter(|pid| is_mom(*pid) && is_hosts(*pid));
    pids.filter_map(home).filter(|home| mom_priv(home).is_some()).collect()
}

/// `mom_priv` in a MoM's directory, if only root can write to it.
fn mom_priv(home: &Path) -> Option<Dir> {
    let dir = Dir::open(home.join("mom_priv")).ok()?;
    let stat = dir.stat().ok()?;
    (stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o022 == 0).then_some(dir)
}

/// The jobs of these MoMs, and the sessions of their tasks.
pub fn spooled(homes: &BTreeSet<PathBuf>) -> SpooledJobs {
    let mut spooled = SpooledJobs::default();
    for jobs in homes.iter().filter_map(|home| mom_priv(home)?.child("jobs").ok()) {
        for name in files(&jobs) {
            let Some(job) = name.strip_suffix(".JB").and_then(|job| Id::new(job).ok()) else { continue };
            if let Ok(tasks) = jobs.child(&format!("{job}.TK")) {
                for number in files(&tasks) {
                    let session = bounded(&tasks, &number).and_then(|content| running_session(&content, &number));
                    spooled.sessions.extend(session.map(|session| (session, job.clone())));
                }
            }
            spooled.jobs.insert(job);
        }
    }
    spooled
}

fn files(directory: &Dir) -> impl Iterator<Item = String> {
    directory.list(false).unwrap_or_default().into_iter().take(MOST_NAMES)
}

/// Up to `LARGEST` bytes of a regular file of root. O_NONBLOCK: a FIFO would wait for a writer.
fn bounded(directory: &Dir, name: &str) -> Option<Vec<u8>> {
    let file = directory.open_file(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
    let stat = fstat(&file).ok()?;
    let is_file = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits() && stat.st_uid == geteuid().as_raw();
    let mut content = vec![0; LARGEST];
    let length = is_file.then(|| nix::unistd::read(&file, &mut content).ok())??;
    content.truncate(length);
    Some(content)
}

/// The session of the task with this number, if it runs.
fn running_session(content: &[u8], number: &str) -> Option<i32> {
    let from = content.get(content.len().checked_sub(TASK)?..)?;
    let at = |index: usize| Some(i32::from_ne_bytes(*from.get(index * 4..)?.first_chunk()?));
    let task = u32::from_str_radix(number, 16).ok()?;
    let (is_its, status, session) = (at(0)? == task.cast_signed(), at(1)?, at(2)?);
    (is_its && status == RUNNING && session > 1).then_some(session)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A file as `task_save` writes it, with a job id of `length` bytes.
    fn file(length: usize, task: i32, status: i32, session: i32) -> Vec<u8> {
        let mut content = vec![b'x'; length];
        for number in [0, 0, 0, task, status, session, 0].into_iter().chain([0; 16]) {
            content.extend(i32::to_ne_bytes(number));
        }
        content
    }

    #[test]
    fn a_task_that_runs_has_a_session_whatever_the_release() {
        for length in [88, 276, 280] {
            assert_eq!(running_session(&file(length, 0x20, 1, 4711), "00000020"), Some(4711), "{length}");
        }
        let same = i32::from_ne_bytes(0x8000_0001_u32.to_ne_bytes());
        assert_eq!(running_session(&file(88, same, 1, 4711), "80000001"), Some(4711));
    }

    #[test]
    fn what_does_not_run_and_what_is_no_such_file_has_none() {
        for (content, number) in [
            (file(88, 1, 0, 4711), "00000001"),
            (file(88, 1, 2, 4711), "00000001"),
            (file(88, 1, 3, -4711), "00000001"),
            (file(88, 1, 1, 0), "00000001"),
            (file(88, 1, 1, 1), "00000001"),
            (file(88, 1, 1, -4711), "00000001"),
            (file(88, 1, 1, 4711), "00000002"),
            (file(88, 1, 1, 4711), "new"),
            ([file(88, 1, 1, 4711), vec![0; 4]].concat(), "00000001"),
            (file(88, 1, 1, 4711).split_off(101), "00000001"),
            (Vec::new(), "00000000"),
        ] {
            assert_eq!(running_session(&content, number), None, "{number} {content:?}");
        }
    }

    #[test]
    fn a_name_alone_is_no_mom_and_a_users_directory_no_spool() {
        let proc = Dir::open("/proc").unwrap();
        if !geteuid().is_root() || process::is_contained(&proc, std::process::id().cast_signed()) {
            return;
        }
        for (is_link, mode, uid, expected) in
            [(false, 0o751, 0, true), (true, 0o751, 0, false), (false, 0o771, 0, false), (false, 0o751, 65_534, false)]
        {
            let temp = tempfile::tempdir().unwrap();
            let (program, home) = (temp.path().join(MOM), temp.path().join("mom_priv"));
            if is_link {
                symlink("/bin/sleep", &program).unwrap();
            } else {
                fs::copy("/bin/sleep", &program).unwrap();
            }
            fs::create_dir(&home).unwrap();
            fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
            chown(&home, Some(uid), None).unwrap();
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "cd \"$1\" && exec \"$0\" 60"]).args([&program, &home]);
            let mut child = command.stdin(Stdio::null()).spawn().unwrap();
            let name = |child: &Child| process::name(&proc, child.id().cast_signed());
            // The kernel lets the parent continue a moment before it sets the name. It executes no file that a child of another test
            // still has open for writing.
            while name(&child).as_deref() != Some(MOM) {
                std::thread::yield_now();
                if child.try_wait().unwrap().is_some() {
                    child = command.spawn().unwrap();
                }
            }
            let found = homes(&proc).contains(temp.path());
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, expected, "{is_link} {mode:o} {uid}");
        }
    }

    #[test]
    fn the_spool_says_which_jobs_there_are() {
        let temp = tempfile::tempdir().unwrap();
        let jobs = temp.path().join("mom_priv/jobs");
        fs::create_dir_all(jobs.join("7[3].host.TK")).unwrap();
        fs::create_dir_all(jobs.join("9.host.TK")).unwrap();
        for name in ["7[3].host.JB", "8.host.JB", "8.host.SC"] {
            fs::write(jobs.join(name), "").unwrap();
        }
        fs::write(jobs.join("7[3].host.TK/00000001"), file(88, 1, 1, 100)).unwrap();
        fs::write(jobs.join("7[3].host.TK/0000000A"), file(88, 10, 1, 200)).unwrap();
        fs::write(jobs.join("7[3].host.TK/0000000B"), file(88, 11, 3, -300)).unwrap();
        fs::write(jobs.join("9.host.TK/00000001"), file(88, 1, 1, 400)).unwrap();
        // A FIFO must not block the reader, and a symlink is not followed.
        nix::unistd::mkfifo(&jobs.join("7[3].host.TK/0000000C"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink(jobs.join("9.host.TK/00000001"), jobs.join("7[3].host.TK/00000002")).unwrap();
        let job = |name: &str| Id::new(name).unwrap();
        let found = spooled(&[temp.path().to_path_buf(), "/none".into()].into());
        assert_eq!(found.jobs, [job("7[3].host"), job("8.host")].into());
        assert_eq!(found.sessions, [(100, job("7[3].host")), (200, job("7[3].host"))].into());
    }
}
