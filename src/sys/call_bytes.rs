// SPDX-License-Identifier: GPL-2.0-or-later
//! What system calls have read and written for children, also where no disk is involved: on NFS and Lustre, from the page cache, in pipes.
//!
//! The kernel adds the figures of a process, with those that it has taken over, to the process that waits for it (`wait_task_zombie` of
//! kernel/exit.c). So the process that waits for all of a step needs no samples: it reads its own figures twice. That misses a process that
//! nobody below has waited for: one that outlived its parent, and each child of a process that ignores SIGCHLD.

use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;
use nix::sys::uio::pread;

use super::dir::Dir;

/// The file has some 110 bytes, and seven numbers of 20 digits at most.
const FILE: usize = 256;

/// Bytes that system calls have read, and that they have written. `None`: not known.
pub type Moved = (Option<u64>, Option<u64>);

/// A count that has begun. It is for a process that waits for children, and includes what this process itself reads and writes meanwhile.
#[derive(Debug)]
pub struct CallBytes {
    /// Kept open: opened anew, the file would cost two calls more.
    file: OwnedFd,
    before: (u64, u64),
}

impl CallBytes {
    /// Begins to count, before the first child starts. `None`: this kernel does not count.
    pub fn begin(proc: &Dir) -> Option<Self> {
        let file = proc.open_file("self/io", OFlag::O_RDONLY).ok()?;
        let before = read(&file)?;
        Some(Self { file, before })
    }

    /// What was moved since then, by each child that was waited for. Not known for a count that has not begun.
    pub fn since(begun: Option<&Self>) -> Moved {
        let moved = begun.and_then(|Self { file, before }| {
            let now = read(file)?;
            Some((now.0.checked_sub(before.0)?, now.1.checked_sub(before.1)?))
        });
        moved.unzip()
    }
}

/// `rchar` and `wchar` of proc(5).
fn read(file: &OwnedFd) -> Option<(u64, u64)> {
    let mut text = [0; FILE];
    let length = pread(file, &mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    Some((number("rchar:")?, number("wchar:")?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Other tests of this process read and write meanwhile, but far less than what is moved before.
    #[test]
    fn what_a_childs_child_reads_and_writes_counts() {
        const BEFORE: u64 = 512 << 20;
        const BYTES: u64 = 8 << 20;
        let proc = Dir::open("/proc").unwrap();
        let moves = |bytes: u64| {
            let script = format!("sh -c 'head -c {bytes} /dev/zero >/dev/null; :'; :");
            assert!(Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).status().unwrap().success());
        };
        moves(BEFORE);
        let begun = CallBytes::begin(&proc).unwrap();
        moves(BYTES);
        let (read, written) = CallBytes::since(Some(&begun));
        for bytes in [read, written] {
            assert!(bytes.is_some_and(|bytes| (BYTES..BEFORE).contains(&bytes)), "{bytes:?}");
        }
        assert_eq!(CallBytes::since(None), (None, None));
    }
}
