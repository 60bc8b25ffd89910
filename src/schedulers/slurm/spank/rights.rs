// SPDX-License-Identifier: GPL-2.0-or-later
//! Regains root's rights, which another thread of the step daemon may have taken from this one for a moment.
//!
//! When a thread of the extern step's daemon ends X11 forwarding (even if there is none), it gives up root's rights for a moment, and the C
//! library takes them from every thread.

use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};

use crate::error::Error;

/// How long another thread of the daemon may keep root's rights away.
const RIGHTS_RETURN: Duration = Duration::from_secs(2);

/// Takes the rights back as often as they are missing, for a limited time.
pub struct Rights {
    deadline: Instant,
    /// How long to go on, set when they were first missing.
    until: Option<Instant>,
}

impl Rights {
    /// Until this deadline at the latest.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline, until: None }
    }

    /// Whether to repeat what failed with this error, now that this thread has the rights again.
    ///
    /// The daemon may be gone a moment later, so the first attempt follows at once; only a repeated error waits in between.
    pub fn take_back(&mut self, error: &Error) -> bool {
        if !error.is_about_rights() {
            return false;
        }
        if self.until.is_some() {
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
        let now = Instant::now();
        if now >= *self.until.get_or_insert(self.deadline.min(now + RIGHTS_RETURN)) {
            return false;
        }
        become_root();
        true
    }
}

/// Makes only this thread root again: by the system calls themselves, since the C library's functions change every thread.
fn become_root() {
    let same: libc::c_long = -1;
    for call in [libc::SYS_setresuid, libc::SYS_setresgid] {
        // SAFETY: the call takes three numbers, and two of them say "as it is". The kernel decides by the real and the saved id whether the
        // call may do it.
        unsafe { libc::syscall(call, same, 0, same) };
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_thread_takes_its_rights_back_and_leaves_the_others_theirs() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root has rights to take back");
        }
        // SAFETY: asks for nothing but a number.
        let effective = || unsafe { libc::syscall(libc::SYS_geteuid) };
        let thread = std::thread::spawn(move || {
            let (same, nobody): (libc::c_long, libc::c_long) = (-1, 65_534);
            // SAFETY: as in become_root; this thread alone, which ends with the test.
            unsafe { libc::syscall(libc::SYS_setresuid, same, nobody, same) };
            let before = effective();
            become_root();
            (before, effective())
        });
        assert_eq!(thread.join().unwrap(), (65_534, 0));
        assert_eq!(effective(), 0);
    }

    #[test]
    fn only_what_rights_are_missing_for_is_tried_again_and_not_for_ever() {
        let mut rights = Rights::until(Instant::now() + Duration::from_millis(30));
        assert!(!rights.take_back(&Error::os("remove", "/x", Errno::EBUSY)));
        let missing = Error::os("remove", "/x", Errno::EACCES);
        // This process is root already, and stays so. Each attempt takes a millisecond, or longer on a busy machine.
        let again = (0..1000).take_while(|_| rights.take_back(&missing)).count();
        assert!(again <= 31, "{again}");
        assert!(Rights::until(Instant::now() + Duration::from_secs(300)).take_back(&missing));
    }
}
