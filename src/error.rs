// SPDX-License-Identifier: GPL-2.0-or-later
//! One error for everything that can go wrong between jobfence and the kernel.
//!
//! An administrator reads these at three in the morning, so each one says what was attempted, on which file, with which value, what the
//! kernel answered, and what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::printable::printable;

/// What was attempted, where, with what value, why it failed and what to do about it.
///
/// It is a pointer, since nearly every function may return one: its fields are written in one place, and each `?` passes one word on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<ErrorParts>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ErrorParts {
    op: Cow<'static, str>,
    path: Option<PathBuf>,
    value: Option<String>,
    errno: Option<Errno>,
    hint: Option<Cow<'static, str>>,
    is_passing: bool,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error in words: `op` is the whole sentence unless more is added.
    pub fn new(op: impl Into<Cow<'static, str>>) -> Self {
        Self::from_operation(op.into())
    }

    // Short generic functions, here and below: the compiler makes a copy for each type.
    #[cold]
    #[inline(never)]
    fn from_operation(op: Cow<'static, str>) -> Self {
        Self(Box::new(ErrorParts { op, path: None, value: None, errno: None, hint: None, is_passing: false }))
    }

    /// A failed system call: `op` in the infinitive, as "open" or "make the directory".
    pub fn os(op: impl Into<Cow<'static, str>>, path: impl AsRef<Path>, errno: Errno) -> Self {
        Self::from_operation(op.into()).at_path(path.as_ref()).errno(errno)
    }

    /// Names the file or directory.
    #[must_use]
    pub fn at(self, path: impl AsRef<Path>) -> Self {
        self.at_path(path.as_ref())
    }

    #[cold]
    #[inline(never)]
    fn at_path(mut self, path: &Path) -> Self {
        self.0.path = Some(path.to_path_buf());
        self
    }

    /// Names the value that was to be written, or that was found.
    #[must_use]
    pub fn value(self, value: impl fmt::Display) -> Self {
        self.shown(&value)
    }

    #[cold]
    #[inline(never)]
    fn shown(mut self, value: &dyn fmt::Display) -> Self {
        self.0.value = Some(value.to_string());
        self
    }

    /// Adds what the kernel answered.
    #[must_use]
    pub fn errno(mut self, errno: Errno) -> Self {
        self.0.errno = Some(errno);
        self
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hinted(hint.into())
    }

    #[cold]
    #[inline(never)]
    fn hinted(mut self, hint: Cow<'static, str>) -> Self {
        self.0.hint = Some(hint);
        self
    }

    /// Marks an error that may pass by itself although the kernel did not report it.
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.0.is_passing = true;
        self
    }

    /// Whether the error may pass by itself: what the kernel refuses now, it may grant later.
    pub fn is_passing(&self) -> bool {
        self.0.is_passing || self.0.errno.is_some()
    }

    /// The kernel's error number, if the kernel refused.
    pub fn kernel_errno(&self) -> Option<Errno> {
        self.0.errno
    }

    /// Whether the object does not exist, or no longer: the kernel answers so for a cgroup that is removed meanwhile.
    pub fn is_gone(&self) -> bool {
        matches!(self.0.errno, Some(Errno::ENOENT | Errno::ENODEV))
    }

    /// Whether the kernel denied permission.
    pub fn is_about_rights(&self) -> bool {
        matches!(self.0.errno, Some(Errno::EACCES | Errno::EPERM))
    }
}

/// The C library's text for an error, and its name. `Errno::desc` would need a table of 17 KB with its relocations. In English, unless the
/// host program has chosen another language.
pub fn in_words(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let words = text.rsplit_once(" (os error").map_or(text.as_str(), |(words, _)| words);
    format!("{words} ({errno:?})")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.op)?;
        if let Some(path) = &self.0.path {
            write!(f, " {}", printable(&path.to_string_lossy(), '?'))?;
        }
        if let Some(value) = &self.0.value {
            write!(f, " (value {value:?})")?;
        }
        if let Some(errno) = self.0.errno {
            write!(f, ": {}", in_words(errno))?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_operation_path_value_errno_and_remedy() {
        let error = Error::os("write", "/sys/fs/cgroup/x/memory.max", Errno::EINVAL).value("12").hint("try 13");
        assert_eq!(
            error.to_string(),
            "write /sys/fs/cgroup/x/memory.max (value \"12\"): Invalid argument (EINVAL); try 13"
        );
    }
}
