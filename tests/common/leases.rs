// SPDX-License-Identifier: GPL-2.0-or-later
//! What two test programs on one machine, of two clones, must not share: the same place and the same files as in tests/leases.py.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use nix::fcntl::{Flock, FlockArg};

const PLACE: &str = "/run/jobfence-tests";
/// See tests/leases.py.
const FIRST_UID: u32 = 62_000;
const IN_RANGE: u32 = 10;
const RANGES: u32 = 300;

/// A file that is locked as long as this value exists, and at most as long as this process.
pub struct Lease {
    _file: Flock<File>,
}

/// `None`: another process holds the lock, and the call does not wait.
fn lock(name: &str, how: FlockArg) -> Option<Lease> {
    DirBuilder::new().mode(0o700).recursive(true).create(PLACE).unwrap();
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(Path::new(PLACE).join(name)).unwrap();
    Flock::lock(file, how).ok().map(|file| Lease { _file: file })
}

/// The variable with the uids for a test program that another one starts.
pub const UIDS: &str = "JOBFENCE_TEST_UIDS";

/// The first of ten uids that only this program uses.
pub fn uids() -> u32 {
    if let Ok(first) = std::env::var(UIDS) {
        return first.parse().unwrap();
    }
    static OURS: OnceLock<(u32, Lease)> = OnceLock::new();
    let find = || {
        // Not those of the previous program, which may still have processes.
        let numbers = (0..RANGES).map(|number| (number + std::process::id()) % RANGES);
        let mut all = numbers.map(|number| (number, format!("uids.{number}")));
        let found = all.find_map(|(number, name)| Some((number, lock(&name, FlockArg::LockExclusiveNonblock)?)));
        found.unwrap_or_else(|| panic!("all {RANGES} ranges of users are taken: 'lsof {PLACE}' says by whom"))
    };
    FIRST_UID + IN_RANGE * OURS.get_or_init(find).0
}

/// A janitor examines the schedulers' directories on the whole machine. So a test that leaves a dead step in one is alone with it, among
/// all threads and all test programs: every other test with a janitor waits, as long as necessary.
pub fn alone() -> Lease {
    lock("janitors", FlockArg::LockExclusive).expect("a lock that is waited for")
}

/// For a test that runs a janitor, and leaves nothing of dead steps.
pub fn beside_others() -> Lease {
    lock("janitors", FlockArg::LockShared).expect("a lock that is waited for")
}

/// An account of the system with nothing to do, which only this test uses as long as the lease exists: tests/contract/sites.py takes its users
/// by the same files. `None`: all that there are have processes, or are another test's.
pub fn account() -> Option<(Lease, nix::unistd::User)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let busy: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
        .map(|process| std::os::unix::fs::MetadataExt::uid(&process))
        .collect();
    passwd.lines().rev().find_map(|line| {
        let name = line.split(':').next()?;
        let user = nix::unistd::User::from_name(name).ok().flatten()?;
        let uid = user.uid.as_raw();
        // Those below have names in other tests.
        let is_free = (6..1000).contains(&uid) && line.ends_with("/nologin") && !busy.contains(&uid);
        let lease = is_free.then(|| lock(&format!("name.{name}.0"), FlockArg::LockExclusiveNonblock)).flatten()?;
        Some((lease, user))
    })
}
