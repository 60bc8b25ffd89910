// SPDX-License-Identifier: GPL-2.0-or-later
//! A step beside many other steps, other cgroups, mounts and processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::fence;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::Failure;
use crate::daemon::{By, Daemon};
use crate::launch;
use crate::place::{Place, soon};
use crate::processes::Others;
use crate::stats::{Sample, heading, micros, row};

const ROUNDS: usize = 60;
const MOUNTS: usize = 2_000;
const PROCESSES: usize = 5_000;
/// The kernel goes on for some milliseconds after a directory's removal, with locks that the next set-up wants.
const QUIET: Duration = Duration::from_millis(10);

pub fn measure(place: &Place, counts: &[usize]) -> Result<(), Failure> {
    heading(&format!("begin and end of a step, {ROUNDS} times"));
    let first = beside(place, "alone", None)?;
    for count in counts {
        let others = steps(place, *count)?;
        beside(place, &format!("beside {count} steps"), Some(first))?;
        end(others)?;
    }
    beside(place, "alone again", Some(first))?;
    for count in counts {
        let cgroups = Cgroups::make(place, *count)?;
        beside(place, &format!("beside {count} other cgroups"), Some(first))?;
        drop(cgroups);
    }
    let others = Others::start(PROCESSES)?;
    beside(place, &format!("beside {PROCESSES} processes"), Some(first))?;
    drop(others);
    let mounts = Mounts::make(MOUNTS)?;
    beside(place, &format!("beside {MOUNTS} mounts"), Some(first))?;
    drop(mounts);
    beside(place, "alone at the end", Some(first))?;
    Ok(())
}

/// Prints a row, and returns its median in microseconds.
fn beside(place: &Place, name: &str, first: Option<f64>) -> Result<f64, Failure> {
    let key = launch::key(place, 1, 0)?;
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::sleep(QUIET);
        let start = Instant::now();
        launch::begin(place, &key)?.close(soon())?;
        found.push(start.elapsed());
    }
    let sample = Sample::new(found);
    row(name, &sample);
    let median = micros(sample.median());
    if let Some(first) = first {
        println!("    times the first row (medians): {:.2}", median / first);
    }
    Ok(median)
}

/// Steps of other jobs, all of which live. A fence keeps handles, and a process may have so many.
pub fn steps(place: &Place, count: usize) -> Result<Vec<Daemon>, Failure> {
    const OF_ONE: usize = 250;
    let keys =
        (0..count).map(|number| launch::key(place, 2 + number / 10, number % 10)).collect::<Result<Vec<_>, _>>()?;
    let mut daemons = Vec::new();
    for keys in keys.chunks(OF_ONE) {
        let daemon = Daemon::start(place, keys.to_vec(), By::Fences)?;
        daemon.tell()?;
        daemon.wait()?;
        daemons.push(daemon);
    }
    Ok(daemons)
}

/// Closes them.
pub fn end(others: Vec<Daemon>) -> Result<(), Failure> {
    for other in &others {
        other.tell()?;
        other.wait()?;
    }
    Daemon::end(others)
}

/// Directories that are nobody's, one in each hierarchy that jobfence uses.
struct Cgroups(Vec<PathBuf>);

impl Cgroups {
    fn make(place: &Place, count: usize) -> Result<Self, Failure> {
        let mut made = Self(Vec::new());
        for hierarchy in place.host.hierarchies(&fence::controllers(&place.config))? {
            let top = hierarchy.mount.join(&place.host.base).join("others");
            made.make_one(top.clone())?;
            for number in 0..count {
                made.make_one(top.join(number.to_string()))?;
            }
        }
        Ok(made)
    }

    fn make_one(&mut self, path: PathBuf) -> Result<(), Failure> {
        fs::create_dir(&path)?;
        self.0.push(path);
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            let _ = fs::remove_dir(path);
        }
    }
}

/// Mounts that only this process sees.
struct Mounts {
    on: tempfile::TempDir,
    count: usize,
}

impl Mounts {
    fn make(count: usize) -> Result<Self, Failure> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        let mut made = Self { on: tempfile::tempdir()?, count: 0 };
        for _ in 0..count {
            let path: &Path = made.on.path();
            mount(Some(path), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            made.count += 1;
        }
        Ok(made)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for _ in 0..self.count {
            let _ = umount2(self.on.path(), MntFlags::MNT_DETACH);
        }
    }
}
