// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads `/proc/PID/status`: proc_pid_status(5).

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

/// The members that are needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The process's name, which the process itself chooses.
    pub name: String,
    /// The real, effective and saved uid, and the one for files.
    pub uids: [u32; 4],
    /// The process that traces this one. 0: none does.
    pub tracer: i32,
}

impl ProcessStatus {
    /// Reads it. `None`: there is no such process, or it has ended.
    pub fn read(proc: &Dir, pid: i32) -> Result<Option<Self>> {
        match proc.read_table(&format!("{pid}/status")) {
            Ok(text) => {
                let unknown = || Error::new("a process's status is not understood:").value(format!("pid {pid}"));
                if value(&text, "State:").is_some_and(|state| state.starts_with(['X', 'Z'])) {
                    return Ok(None);
                }
                Self::parse(&text).map(Some).ok_or_else(unknown)
            }
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ESRCH)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut uids = value(text, "Uid:")?.split_whitespace().map(|uid| uid.parse().ok());
        let mut uid = || uids.next().flatten();
        Some(Self {
            name: value(text, "Name:")?.to_owned(),
            uids: [uid()?, uid()?, uid()?, uid()?],
            tracer: value(text, "TracerPid:")?.parse().ok()?,
        })
    }

    /// The real uid. A set-user-ID program leaves it as it is.
    pub fn uid(&self) -> u32 {
        let [real, ..] = self.uids;
        real
    }
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_count_and_not_what_a_name_pretends() {
        // The kernel writes a newline in a name as two characters.
        let text = "Name:\ta\\nUid:\t0\nState:\tS (sleeping)\nTracerPid:\t7\nUid:\t1\t2\t3\t4\nGid:\t9\t9\t9\t9\n";
        let expected = ProcessStatus { name: "a\\nUid:\t0".to_owned(), uids: [1, 2, 3, 4], tracer: 7 };
        assert_eq!(ProcessStatus::parse(text), Some(expected));
        assert_eq!(ProcessStatus::parse("Name:\tx\nUid:\t1\t2\t3\n"), None);
        let this = ProcessStatus::read(&Dir::open("/proc").unwrap(), std::process::id().cast_signed()).unwrap();
        assert_eq!(this.unwrap().uid(), nix::unistd::getuid().as_raw());
    }
}
