// SPDX-License-Identifier: GPL-2.0-or-later
//! Where jobs' own directories are, and what is kept about them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat, stat};
use nix::unistd::{geteuid, gethostname};

use crate::error::{Error, Result};
use crate::record::make_directory;
use crate::sys::dir::Dir;
use crate::sys::mount;

/// In `RunDir`: a tmpfs with a directory for each job that has its own directories.
pub(super) const DIRECTORY: &str = "private";
/// In such a directory: which paths are the job's own.
pub(super) const NOTE: &str = "paths";
/// The same while they are made, by which they are found if that stops midway.
pub(super) const BEGUN: &str = "begun";
/// Likewise: the job's tmpfs.
pub(super) const TMPFS: &str = "tmpfs";
/// The first line of a note.
pub const FORM: &str = "jobfence-private 1";
/// That of a job that does not see others' processes. An older release must not take such a note for one that it knows.
pub const FORM_THAT_HIDES: &str = "jobfence-private 2";
/// How long another process may have the lock.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The mode of a directory that lets only root into the next one.
pub(super) const ROOTS: Mode = Mode::S_IRWXU;
/// How the name of what no job uses any more begins. No job's name begins so.
pub(super) const GONE: &str = "gone.";

/// What is kept about a job's directories, since the configuration may change while it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PrivateNote {
    /// The job's directory on disk.
    pub(super) disk: Option<PathBuf>,
    /// The paths that are on disk.
    pub(super) on_disk: Vec<PathBuf>,
    /// The paths that are in the tmpfs.
    pub(super) in_tmpfs: Vec<PathBuf>,
    /// Whether the job does not see others' processes.
    pub(super) hides_others: bool,
}

impl PrivateNote {
    pub(super) fn text(&self) -> String {
        let line = |key: &'static str| move |path: &PathBuf| format!("{key}={}\n", path.display());
        let lines: String = (self.disk.iter().map(line("disk")))
            .chain(self.on_disk.iter().map(line("on_disk")))
            .chain(self.in_tmpfs.iter().map(line("in_tmpfs")))
            .collect();
        let (form, hides_others) =
            if self.hides_others { (FORM_THAT_HIDES, "hides_others=/proc\n") } else { (FORM, "") };
        format!("{form}\n{lines}{hides_others}end\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let lines = text
            .strip_prefix(FORM)
            .or_else(|| text.strip_prefix(FORM_THAT_HIDES))?
            .strip_prefix('\n')?
            .strip_suffix("end\n")?;
        let mut note = Self::default();
        for line in lines.lines() {
            let (key, path) = line.split_once("=/")?;
            let path = Path::new("/").join(path);
            match key {
                "disk" => note.disk = Some(path),
                "on_disk" => note.on_disk.push(path),
                "in_tmpfs" => note.in_tmpfs.push(path),
                "hides_others" => note.hides_others = true,
                _ => return None,
            }
        }
        Some(note)
    }

    /// `None`: the job's directories are not complete.
    pub(super) fn read(jobs: &Dir) -> Result<Option<Self>> {
        Self::read_named(jobs, NOTE)
    }

    /// As `read`, also of directories that are not complete.
    pub(super) fn read_any(jobs: &Dir) -> Result<Option<Self>> {
        Self::read(jobs)?.map_or_else(|| Self::read_named(jobs, BEGUN), |note| Ok(Some(note)))
    }

    fn read_named(jobs: &Dir, name: &str) -> Result<Option<Self>> {
        if !jobs.has(name) {
            return Ok(None);
        }
        let unknown =
            || Error::new("another release of jobfence has made the job's own directories:").at(jobs.path().join(name));
        Self::parse(&jobs.read(name)?).map(Some).ok_or_else(unknown)
    }
}

/// Opens, or makes, a directory that only root can use.
pub(super) fn roots_own(parent: &Dir, name: &str) -> Result<Dir> {
    match mkdirat(parent, name, ROOTS) {
        Ok(()) | Err(Errno::EEXIST) => checked(parent.child(name)?),
        Err(errno) => Err(Error::os("make the directory", parent.path().join(name), errno)),
    }
}

fn checked(dir: Dir) -> Result<Dir> {
    let stat = dir.stat()?;
    if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(Error::new("jobs' own directories must be in one of root's with mode 0700:")
            .at(dir.path())
            .hint("remove it, or set PrivateTmpBase in jobfence.conf to another directory"));
    }
    Ok(dir)
}

/// The directory of all jobs in `RunDir`. It is a mount of its own, so that no other namespace gets what is mounted below it.
pub(super) fn all_in_run_dir(run_dir: &Path) -> Result<Dir> {
    let below = make_directory(run_dir, DIRECTORY)?;
    let parent = Dir::open(run_dir)?;
    if below.stat()?.st_dev == parent.stat()?.st_dev {
        mount::tmpfs(&below, c"mode=0700,size=64m")?;
    }
    let all = checked(parent.child(DIRECTORY)?)?;
    mount::keep_private(&all)?;
    Ok(all)
}

/// As [`all_in_run_dir`], but makes nothing. `None`: no job has had directories of its own since boot.
pub(super) fn existing_in_run_dir(run_dir: &Path) -> Result<Option<Dir>> {
    match Dir::open(run_dir).and_then(|parent| parent.child(DIRECTORY)) {
        Err(error) if error.is_gone() => Ok(None),
        dir => checked(dir?).map(Some),
    }
}

/// Refuses a path of `PrivateTmp` in whose place a user could put something else.
pub(super) fn check_place(path: &Path) -> Result<()> {
    let real = path
        .canonicalize()
        .map_err(|error| Error::os("look for", path, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))))?;
    let Some(parent) = real.parent() else { return Ok(()) };
    let look = |path: &Path| stat(path).map_err(|errno| Error::os("look at", path, errno));
    let (above, place) = (look(parent)?, look(&real)?);
    let is_users = above.st_mode & 0o022 != 0 && (above.st_mode & 0o1000 == 0 || place.st_uid != 0);
    if above.st_uid != 0 || is_users {
        return Err(Error::new("users may exchange what is named in PrivateTmp:")
            .at(path)
            .hint("take it out of PrivateTmp in jobfence.conf, or let only root write into the directory above it"));
    }
    Ok(())
}

/// The name of this host's directory below `PrivateTmpBase`, which several hosts may share, and several `RunDir`.
pub(super) fn name_of_host(run_dir: &Path) -> Result<String> {
    let host = gethostname().map_err(|errno| Error::new("look for the host's name").errno(errno))?;
    Ok(format!("jobfence-{}{}", host.display(), run_dir.display().to_string().replace('/', ":")))
}

/// The name of the directory for a path.
pub(super) fn name_of(path: &Path) -> String {
    path.display().to_string().trim_start_matches('/').replace('/', "+")
}

/// The name of a job's directories.
pub(super) fn name_of_job(parents: &[String]) -> String {
    parents.join(",")
}

/// Takes the directory of all jobs away from an empty `RunDir`, which is being removed. `Ok(false)`: a job has directories in it.
pub fn forget_all(run_dir: &Path) -> Result<bool> {
    let Some(all) = existing_in_run_dir(run_dir)? else { return Ok(true) };
    if !all.list(true)?.is_empty() {
        return Ok(false);
    }
    let parent = Dir::open(run_dir)?;
    if all.stat()?.st_dev != parent.stat()?.st_dev {
        mount::detach(&all).map_err(|errno| Error::os("unmount", all.path(), errno))?;
    }
    drop(all);
    parent.remove(DIRECTORY).map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_users_may_exchange_is_refused() {
        if !geteuid().is_root() {
            return crate::skip::skip("needs root");
        }
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let is_taken = |mode: u32, above: u32, owner: u32| {
            std::os::unix::fs::chown(temp.path(), Some(above), None).unwrap();
            std::os::unix::fs::chown(&place, Some(owner), None).unwrap();
            std::fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            check_place(&place).is_ok()
        };
        assert!(is_taken(0o755, 0, 65_534) && is_taken(0o1777, 0, 0));
        assert!(!is_taken(0o777, 0, 0) && !is_taken(0o1777, 0, 65_534) && !is_taken(0o755, 65_534, 0));
    }

    #[test]
    fn a_note_is_understood_again_and_nothing_less() {
        let note = PrivateNote {
            disk: Some("/x/jobfence-n:run/uid_1,job_2".into()),
            on_disk: vec!["/tmp".into(), "/var/tmp".into()],
            in_tmpfs: vec!["/dev/shm".into()],
            hides_others: true,
        };
        let text = note.text();
        assert!(text.starts_with(FORM_THAT_HIDES));
        assert_eq!(PrivateNote::parse(&text).as_ref(), Some(&note));
        let seen = PrivateNote { hides_others: false, ..note };
        assert!(seen.text().starts_with(FORM));
        assert_eq!(PrivateNote::parse(&seen.text()), Some(seen));
        for end in 0..text.len() - 1 {
            assert_eq!(PrivateNote::parse(&text[..end]), None, "{end}");
        }
        assert_eq!(PrivateNote::parse(&text.replace("on_disk", "elsewhere")), None);
        assert_eq!([name_of(Path::new("/var/tmp")), name_of(Path::new("/tmp"))], ["var+tmp", "tmp"]);
    }
}
