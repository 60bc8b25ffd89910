// SPDX-License-Identifier: GPL-2.0-or-later
//! How many descriptors the kernel may tell by. systemd gives a service 1024 at first, and lets it have many more (`DefaultLimitNOFILE`
//! of systemd-system.conf(5)).

use std::collections::BTreeMap;

/// The most descriptors by which the kernel tells that processes wait. The kernel takes tens of milliseconds to close one, and this process
/// closes all at its end. Further steps are looked at once a second.
const MOST_WAITING: usize = 1000;

/// One user's steps have at most this part of the descriptors.
const PART_OF_USER: usize = 4;

/// The descriptors that this process asks for, and those of them that stay for its other work: up to a hundred tell of memory that
/// may be lent.
const WANTED: u64 = 16_384;
const OTHERS: u64 = 424;

/// Takes more descriptors if this process may, and returns how many there are for the kernel to tell by.
pub fn most() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the two numbers.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max.min(WANTED).max(limit.rlim_cur), ..limit };
    // SAFETY: the call reads the two numbers.
    let is_given = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0;
    let given = if is_given { wanted.rlim_cur } else { limit.rlim_cur };
    usize::try_from(given.min(WANTED).saturating_sub(OTHERS)).unwrap_or(0)
}

/// How many descriptors the kernel tells by.
#[derive(Debug, Default)]
pub struct Told {
    /// The numbers of each user: all descriptors, and those of them for waiting.
    of_users: BTreeMap<u32, [usize; 2]>,
    all: [usize; 2],
}

impl Told {
    /// Counts one more of this user's. `of_waiting`: it is for waiting.
    pub fn add(&mut self, uid: u32, of_waiting: bool) {
        for count in [&mut self.all, self.of_users.entry(uid).or_default()] {
            count[0] += 1;
            count[1] += usize::from(of_waiting);
        }
    }

    /// Whether there may be one more, if there are `most` for all.
    pub fn has_room(&self, uid: u32, of_waiting: bool, most: usize) -> bool {
        let is_below = |counts: &[usize; 2], part: usize| {
            counts[0] < most / part && (!of_waiting || counts[1] < MOST_WAITING.min(most) / part)
        };
        is_below(&self.all, 1) && self.of_users.get(&uid).is_none_or(|counts| is_below(counts, PART_OF_USER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_has_all_descriptors() {
        let mut told = Told::default();
        (0..MOST_WAITING / PART_OF_USER).for_each(|_| told.add(1000, true));
        assert!(!told.has_room(1000, true, 16_000) && told.has_room(1000, false, 16_000));
        assert!(told.has_room(1001, true, 16_000));
        (1001..1004).for_each(|uid| (0..MOST_WAITING / PART_OF_USER).for_each(|_| told.add(uid, true)));
        assert!(!told.has_room(1004, true, 16_000) && told.has_room(1004, false, 16_000));
        assert!(!told.has_room(1004, false, MOST_WAITING) && !told.has_room(1004, false, 0));
    }
}
