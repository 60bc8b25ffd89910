// SPDX-License-Identifier: GPL-2.0-or-later
//! The process that closes a fence when its holder has ended. Only it says why the job was killed. So while it lives, a janitor leaves the
//! fence to it.
//!
//! It has a lock on one byte of the directory of records, at the number of the holder's process. The directory is root's alone, so no user
//! can hold a janitor off.

use crate::error::Result;
use crate::sys::dir::Dir;
use crate::sys::lock::ByteLock;

/// That this process closes the fence of a holder. Dropping it, or the end of the process, leaves the fence to the janitors.
#[derive(Debug)]
#[must_use]
pub struct Closer(#[expect(dead_code, reason = "held until it is dropped")] ByteLock);

impl Closer {
    /// Begins to be that of a holder, by the number of its process. `records`: the directory of records.
    pub fn new(records: &Dir, holder: u32) -> Result<Self> {
        ByteLock::on(records, holder).map(Self)
    }

    /// Whether a process lives that closes the fence of this holder.
    pub fn lives(records: &Dir, holder: u32) -> bool {
        ByteLock::is_held(records, holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_a_closer_while_that_lives() {
        let temp = tempfile::tempdir().unwrap();
        let records = Dir::open(temp.path()).unwrap();
        let closer = Closer::new(&records, 71).unwrap();
        let lives = |holder| Closer::lives(&Dir::open(temp.path()).unwrap(), holder);
        assert_eq!([70, 71, 72].map(lives), [false, true, false]);
        let second = Closer::new(&records, 71).unwrap();
        drop(closer);
        assert!(lives(71), "another one lives");
        drop(second);
        assert!(!lives(71));
    }
}
