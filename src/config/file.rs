// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the configuration file, if it is one that root may obey.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::error::ConfigError;

/// A larger file, in bytes, is a mistake, and slurmstepd need not hold it in memory.
pub(super) const MAX_FILE: usize = 1 << 20;

/// How often to open a file whose name appears meanwhile: an editor renames a new file into its place.
const ATTEMPTS: usize = 3;

/// The file's text. All checks use the handle through which it is read. `None` if it is missing and may be.
///
/// Of a file larger than [`MAX_FILE`], one byte more than that is read.
pub(super) fn read(path: &Path, may_be_missing: bool) -> Result<Option<Vec<u8>>, ConfigError> {
    let refuse = |found: String, expected: &str| ConfigError::new(path.display(), found, expected);
    let failed = |error: io::Error| refuse(describe(&error), "a file that can be read");
    // A fifo must not stop slurmstepd until a process writes, and a terminal must not become its controlling terminal.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut attempts = 0;
    let file = loop {
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        attempts += 1;
        match opened {
            Err(error) if is_missing(&error) => match missing(path) {
                Ok(Missing::Unnamed) if may_be_missing => return Ok(None),
                Ok(Missing::Link(found)) => return Err(refuse(found, "a file that can be read, or no such link")),
                Ok(Missing::Nothing) if attempts < ATTEMPTS => {}
                Ok(Missing::Unnamed | Missing::Nothing) => return Err(failed(error)),
                Err(error) => return Err(failed(error)),
            },
            opened => break opened.map_err(failed)?,
        }
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a directory" } else { "a special file" };
        return Err(refuse(found.to_owned(), "a regular file"));
    }
    if metadata.mode() & 0o002 != 0 {
        let found = format!("the mode {:04o}", metadata.mode() & 0o7777);
        return Err(refuse(found, "a file that only trusted users can write, since root obeys it; use chmod o-w"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok(Some(text))
}

/// Whether [`read`] would read this file, or say why it cannot.
pub(super) fn exists(path: &Path) -> bool {
    !matches!(missing(path), Ok(Missing::Unnamed))
}

/// What is missing if a file is not found.
enum Missing {
    /// Its name, or that of a directory on the way to it: no file has been put there.
    Unnamed,
    /// What a symbolic link on the way names: a file was meant to be there. In words.
    Link(String),
    /// Nothing any more: it has appeared meanwhile.
    Nothing,
}

/// Whether a name does not exist. Below a regular file nothing exists, either.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// `None`: it is not there.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_missing(&error) => Ok(None),
        found => found.map(Some),
    }
}

/// What is missing of this file.
fn missing(path: &Path) -> io::Result<Missing> {
    for part in path.ancestors() {
        // A dangling link leads to nothing, so a file behind it does not exist either.
        let Some(itself) = if_there(fs::symlink_metadata(part))? else { continue };
        if itself.is_symlink() && if_there(fs::metadata(part))?.is_none() {
            let target = if_there(fs::read_link(part))?.unwrap_or_default();
            let link = if part == path { String::new() } else { format!(" {}", part.display()) };
            return Ok(Missing::Link(format!("the symbolic link{link} to {}, which does not exist", target.display())));
        }
        return Ok(if part == path { Missing::Nothing } else { Missing::Unnamed });
    }
    Ok(Missing::Unnamed)
}

/// The error in the words, and with the name, that manual pages use.
fn describe(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => crate::error::in_words(errno),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode as FileMode;

    use super::super::layer::Written;
    use super::super::limits::Limit;
    use super::super::resolve::Loaded;
    use super::super::samples::{load_at, load_file};
    use super::*;

    #[test]
    fn without_the_default_file_the_defaults_fence() {
        assert_eq!(load_file(&[], None), Ok(Loaded::new(None, Written::default(), Vec::new())));
        assert_eq!(
            load_file(&["CONFIG=/nonexistent/f"], None).unwrap_err(),
            "/nonexistent/f: found No such file or directory (ENOENT), expected a file that can be read"
        );
    }

    #[test]
    fn a_name_that_leads_to_no_file_is_no_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let path = dir.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        let expected = "expected a file that can be read, or no such link";
        let dangling = link("jobfence.conf", "gone/jobfence.conf");
        let nowhere = link("slurm", "/nonexistent/slurm");
        for args in [vec![], vec![format!("config={}", dangling.display())]] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!(
                load_at(&args, &dangling).unwrap_err(),
                format!("FILE: found the symbolic link to gone/jobfence.conf, which does not exist, {expected}")
            );
        }
        // Through a link to a dangling one, and through a dangling one of a directory above.
        let second = link("second", "jobfence.conf");
        assert!(load_at(&[], &second).unwrap_err().contains("link to jobfence.conf, which does not exist"));
        assert_eq!(
            load_at(&[], &nowhere.join("jobfence.conf")).unwrap_err(),
            format!(
                "FILE: found the symbolic link {} to /nonexistent/slurm, which does not exist, {expected}",
                nowhere.display()
            )
        );
        // Without its name a file is missing, also if links on the way lead to directories.
        let link_to_here = link("there", ".");
        fs::write(dir.path().join("file"), "").unwrap();
        for none in
            [link_to_here.join("f"), dir.path().join("no/f"), link_to_here.join("no/f"), dir.path().join("file/f")]
        {
            assert_eq!(load_at(&[], &none).unwrap().file, None, "{}", none.display());
            assert!(!exists(&none), "{}", none.display());
        }
        assert!(exists(&dangling) && exists(&nowhere.join("f")) && exists(&dir.path().join("file")));
        let error_of = |path: &Path| load_at(&[], path).unwrap_err().split(", expected").next().unwrap().to_owned();
        let circle = link("circle", "circle");
        assert!(error_of(&circle).ends_with("(ELOOP)") && error_of(&circle.join("f")).ends_with("(ELOOP)"));
        // A file that appears while it is looked for is read.
        fs::create_dir(dir.path().join("gone")).unwrap();
        fs::write(dir.path().join("gone/jobfence.conf"), "MaxProcesses=7\n").unwrap();
        assert_eq!(load_at(&[], &dangling).unwrap().config.numbers.get(Limit::Processes), Some(7));
        assert!(matches!(missing(&dangling), Ok(Missing::Nothing)));
    }

    #[test]
    fn only_a_small_regular_file_that_others_cannot_write_is_obeyed() {
        assert_eq!(
            load_file(&[], Some(("", 0o646))).unwrap_err(),
            "FILE: found the mode 0646, expected a file that only trusted users can write, since root obeys it; use chmod o-w"
        );
        let line = "#".repeat(63) + "\n";
        assert!(load_file(&[], Some((&line.repeat(1 << 14), 0o644))).is_ok());
        assert_eq!(
            load_file(&[], Some((&(line.repeat(1 << 14) + "\n"), 0o644))).unwrap_err(),
            "FILE: found a larger file, expected at most 1048576 bytes"
        );
        let endless = format!("# first\nMode={}", "x".repeat(10_000_000));
        assert_eq!(
            load_file(&[], Some((&endless, 0o644))).unwrap_err(),
            format!(
                "FILE:2:1: found \"Mode={}...\", expected a line of at most 4096 bytes\n\
                 FILE: found a larger file, expected at most 1048576 bytes",
                "x".repeat(55)
            )
        );
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, FileMode::S_IRWXU).unwrap();
        for (path, found) in
            [(dir.path(), "directory"), (&fifo, "special file"), (Path::new("/dev/null"), "special file")]
        {
            assert_eq!(load_at(&[], path).unwrap_err(), format!("FILE: found a {found}, expected a regular file"));
        }
    }
}
