// SPDX-License-Identifier: GPL-2.0-or-later
//! How many descriptors the kernel may tell by. systemd gives a service 1024 at first, and lets it have many more (`DefaultLimitNOFILE`
//! of systemd-system.conf(5)).

/// As many as are asked for, and those that stay for all else.
const WANTED: u64 = 16_384;
const OTHERS: u64 = 324;

/// Takes more descriptors if this process may, and returns how many of them there are for this.
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
