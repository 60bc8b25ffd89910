// SPDX-License-Identifier: GPL-2.0-or-later
//! The files of usage logs, and of the logs of GPUs beside them: this node's, or all below a directory, plain or packed by gzip or zstd.
//!
//! A file is a log if one of its first lines is.

use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};

use jobfence::error::{Error, Result};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use usage_lines::lines::{LogLines, Next};

use super::line::{self, EndText, Read as LineRead, moment_of};

/// How deep directories may be in each other.
const DEEPEST: usize = 32;

/// How many bytes of the first lines are read at once.
const PIECE: usize = 1 << 13;

/// The most lines that are looked at.
const FIRST_LINES: usize = 16;

/// A file that may have lines.
#[derive(Debug)]
pub struct LogSource {
    pub path: PathBuf,
    /// The open file, if it is one of this node: its name may change while the log is read.
    file: Option<File>,
    /// When the step of the first line ended.
    pub first: EndText,
}

/// The files below a directory, and what could not be read.
#[derive(Debug, Default)]
pub struct FoundLogs {
    pub sources: Vec<LogSource>,
    pub errors: Vec<Error>,
    /// Files that are no usage logs.
    pub others: u64,
}

impl FoundLogs {
    /// The files of this node's log, and the log of its GPUs. If that cannot be read, the GPUs' use is unknown, and the error is kept.
    pub fn from_files(files: Vec<(PathBuf, File)>, of_gpus: Result<Vec<(PathBuf, File)>>) -> Self {
        let mut found = Self::default();
        for (path, file) in files {
            found.add(path, file);
        }
        let others = found.others;
        match of_gpus {
            Ok(files) => files.into_iter().for_each(|(path, file)| found.add(path, file)),
            Err(error) => found.errors.push(error),
        }
        // An empty file of this node's own log is no file that somebody has put there. So it is not counted.
        found.others = others;
        found.sources.sort_by_key(|source| source.first);
        found
    }

    /// Every usage log below the directory. Symbolic links are not followed.
    pub fn below(directory: &Path) -> Result<Self> {
        let mut found = Self::default();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = Dir::open(directory, flags, Mode::empty());
        let dir = dir.map_err(|errno| Error::os("open the directory of --logs", directory, errno))?;
        found.walk(dir, directory, 0);
        // Of two files with the same first time, the one with the lesser path comes first.
        found.sources.sort_by(|one, other| (one.first, &one.path).cmp(&(other.first, &other.path)));
        Ok(found)
    }

    fn walk(&mut self, mut dir: Dir, path: &Path, depth: usize) {
        let mut entries = Vec::new();
        for entry in dir.iter() {
            match entry {
                Ok(entry) => {
                    let name = entry.file_name().to_owned();
                    if !matches!(name.to_bytes(), b"." | b"..") {
                        entries.push((name, entry.file_type()));
                    }
                }
                Err(errno) => self.errors.push(Error::os("list", path, errno)),
            }
        }
        for (name, kind) in entries {
            use std::os::unix::ffi::OsStrExt;
            let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            // Some file systems do not tell the kind of an entry.
            let kind = kind.or_else(|| {
                let stat = fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
                match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
                    SFlag::S_IFDIR => Some(Type::Directory),
                    SFlag::S_IFREG => Some(Type::File),
                    _ => None,
                }
            });
            // A pipe in the place of a file must not stop the command.
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            match kind {
                Some(Type::Directory) if depth < DEEPEST => {
                    match Dir::openat(&dir, name.as_c_str(), flags | OFlag::O_DIRECTORY, Mode::empty()) {
                        Ok(inner) => self.walk(inner, &path, depth + 1),
                        Err(errno) => self.errors.push(Error::os("open", &path, errno)),
                    }
                }
                Some(Type::File) => match openat(&dir, name.as_c_str(), flags, Mode::empty()) {
                    Ok(file) => {
                        let is_file =
                            fstat(&file).is_ok_and(|stat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits());
                        if is_file {
                            self.add_below(path, File::from(file));
                        }
                    }
                    // Somebody has removed the file meanwhile.
                    Err(Errno::ENOENT) => {}
                    Err(errno) => self.errors.push(Error::os("open", &path, errno)),
                },
                _ => {}
            }
        }
    }

    fn add_below(&mut self, path: PathBuf, file: File) {
        self.add(path, file);
        if let Some(source) = self.sources.last_mut() {
            // A directory may have more files than a process may have open.
            source.file = None;
        }
    }

    /// Adds a file if its first whole line is one of a usage log.
    fn add(&mut self, path: PathBuf, file: File) {
        match first_of(&file) {
            Ok(Some(first)) => self.sources.push(LogSource { path, file: Some(file), first }),
            Ok(None) => self.others += 1,
            Err(error) => self.errors.push(Error::new(format!("cannot read a usage log: {error}")).at(&path)),
        }
    }
}

/// When the step of the first line ended. `None`: it is no usage log.
fn first_of(file: &File) -> io::Result<Option<EndText>> {
    let mut lines = LogLines::new(file.try_clone()?, PIECE)?;
    let mut first = None;
    // A log may begin with half a line, or with foreign lines. A line of any length is no line of a log.
    for _ in 0..FIRST_LINES {
        match lines.read()? {
            Some(Next::Whole) => {
                let first_line = line::read(lines.line(), "");
                if matches!(first_line, LineRead::Line(_) | LineRead::Gpus(_) | LineRead::Newer) {
                    first = moment_of(lines.line());
                    break;
                }
            }
            Some(Next::TooLong | Next::Half) | None => break,
        }
    }
    let mut file = file;
    file.rewind()?;
    Ok(first)
}

impl LogSource {
    /// The lines, from the first.
    pub fn lines(self, piece: usize) -> Result<LogLines> {
        let failed = |error: io::Error| Error::new(format!("cannot open a usage log: {error}")).at(&self.path);
        let file = match self.file {
            Some(file) => file,
            None => {
                use std::os::unix::fs::OpenOptionsExt;
                let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
                File::options().read(true).custom_flags(flags).open(&self.path).map_err(failed)?
            }
        };
        LogLines::new(file, piece).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_node_has_two_logs_and_what_cannot_be_read_of_the_second_is_an_error() {
        let log = |name: &str, text: &str| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.rewind().unwrap();
            (PathBuf::from(name), file)
        };
        let usage = r#"{"schema":"jobfence-usage-1","ended":"2026-11-25T03:31:01Z","job":"7","step":"0"}"#;
        let of_gpus = r#"{"gpus":[],"job":"7","looked":"2026-11-25T03:31:00Z","schema":"jobfence-gpus-1","started":"2026-11-25T03:30:00Z"}"#;
        let usage = || vec![log("usage", &format!("{usage}\n"))];
        let found = FoundLogs::from_files(usage(), Ok(vec![log("empty", ""), log("gpus", &format!("{of_gpus}\n"))]));
        let names: Vec<&str> = found.sources.iter().map(|source| source.path.to_str().unwrap()).collect();
        assert_eq!((&names[..], found.errors.len(), found.others), (&["gpus", "usage"][..], 0, 0));
        let found = FoundLogs::from_files(usage(), Err(Error::new("cannot open the usage log")));
        assert_eq!((found.sources.len(), found.errors.len()), (1, 1));
    }
}
