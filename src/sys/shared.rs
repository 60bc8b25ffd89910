// SPDX-License-Identifier: GPL-2.0-or-later
//! A number that a forked child can tell this process. An exec in the child ends that.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use crate::error::{Error, Result};

/// A page that this process shares with its children.
#[derive(Debug)]
pub struct SharedNumber(NonNull<AtomicU64>);

// SAFETY: what it points to is an atomic number, and stays until it is dropped.
unsafe impl Send for SharedNumber {}

const LENGTH: usize = size_of::<AtomicU64>();

impl SharedNumber {
    /// It is 0 until it is set.
    pub fn new() -> Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of no file, at an address that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, flags, -1, 0) };
        let page = if page == libc::MAP_FAILED { None } else { NonNull::new(page.cast()) };
        page.map(Self).ok_or_else(|| Error::new("share a page with children").errno(Errno::last()))
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: the kernel's page begins with it, zeroed, and is there as long as this.
        unsafe { self.0.as_ref() }
    }

    /// Sets the number, in a child or here.
    pub fn set(&self, number: u64) {
        self.number().store(number, Ordering::Relaxed);
    }

    /// The number that was set last.
    pub fn get(&self) -> u64 {
        self.number().load(Ordering::Relaxed)
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.0.as_ptr().cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::waitpid;

    #[test]
    fn a_child_tells_its_parent() {
        let number = SharedNumber::new().unwrap();
        assert_eq!(number.get(), 0);
        let child = crate::sys::child::start(|| {
            number.set(5);
            0
        });
        waitpid(child.unwrap(), None).unwrap();
        assert_eq!(number.get(), 5);
    }
}
