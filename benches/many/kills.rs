// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a step of many processes, by jobfence and by the least that ends them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::config::{Limit, LimitNumbers};
use jobfence::fence;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Failure;
use crate::launch;
use crate::place::{Place, soon};
use crate::processes::{Leader, NobodyWaits};
use crate::stats::{Sample, heading, micros, row};

/// At which a fork bomb stands still.
const BOMB: u64 = 500;
/// The kernel tells of the last exit at once, but not within 10 ms of telling something else about the same cgroup
/// (`CGROUP_FILE_NOTIFY_MIN_INTV`).
const LIFE: Duration = Duration::from_millis(25);
const ROUNDS: usize = 15;
const ROUNDS_OF_THOUSANDS: usize = 5;

/// Those that jobfence writes, too: the processes die at the expense of their step's quota.
const LIMITS: [(&str, &str); 5] = [
    ("cpu.max", "100000"),
    ("cpu.cfs_quota_us", "100000"),
    ("cpu.cfs_burst_us", "10000"),
    ("memory.max", "4294967296"),
    ("memory.limit_in_bytes", "4294967296"),
];

/// Who ends the processes, and then removes the directories.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// One write to `cgroup.kill`.
    Kernel,
    Jobfence,
    /// Freezes, signals each process, thaws, and looks whether all are gone.
    Signals,
}

pub fn measure(place: &Place, counts: &[usize]) -> Result<(), Failure> {
    for count in counts {
        in_turn(place, &format!("kill and remove {count} processes"), Some(*count))?;
    }
    in_turn(place, &format!("kill and remove a fork bomb at its limit of {BOMB}"), None)
}

fn in_turn(place: &Place, title: &str, count: Option<usize>) -> Result<(), Failure> {
    let _nobody = NobodyWaits::begin()?;
    let rounds = if count.is_some_and(|count| count > 1000) { ROUNDS_OF_THOUSANDS } else { ROUNDS };
    let Some(unified) = place.host.layout.unified() else {
        println!("\n{title}: not measured, there is no cgroup2 that could do it at once");
        return Ok(());
    };
    let mut kinds = vec![By::Kernel, By::Jobfence];
    // A bomb goes on while the processes are signalled one by one.
    kinds.extend(count.map(|_| By::Signals));
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (by, found) in kinds.iter().zip(&mut found) {
            found.push(match by {
                By::Jobfence => by_jobfence(place, count)?,
                by => bare(place, &unified.mount, *by, count)?,
            });
        }
    }
    heading(&format!("{title}, {rounds} times in turn"));
    let [kernel, ours, signals] = found;
    let (kernel, ours) = (Sample::new(kernel), Sample::new(ours));
    row("bare cgroup.kill and rmdir (the floor)", &kernel);
    row("jobfence", &ours);
    if !signals.is_empty() {
        row("freeze, signal each, thaw", &Sample::new(signals));
    }
    println!("  times the floor (medians): {:.2}", micros(ours.median()) / micros(kernel.median()));
    Ok(())
}

fn by_jobfence(place: &Place, count: Option<usize>) -> Result<Duration, Failure> {
    let mut config = place.config.clone();
    if count.is_none() {
        config.numbers = LimitNumbers::with(Limit::Processes, Some(BOMB));
    }
    let mut fence = launch::begin_with(&config, &launch::key(place, 1, 0)?)?;
    let leader = Leader::start(count)?;
    fence.attach(&place.host, leader.pid.as_raw(), None)?;
    leader.begin()?;
    std::thread::sleep(LIFE);
    let start = Instant::now();
    fence.close(soon())?;
    Ok(start.elapsed())
}

/// In directories like those of a step, one in each hierarchy that jobfence uses.
fn bare(place: &Place, unified: &Path, by: By, count: Option<usize>) -> Result<Duration, Failure> {
    let mut wanted = fence::controllers(&place.config);
    if count.is_none() {
        wanted.push("pids");
    }
    let base = &place.host.base;
    let mut tops: Vec<PathBuf> =
        place.host.hierarchies(&wanted)?.iter().map(|hierarchy| hierarchy.mount.join(base)).collect();
    // A hybrid host holds processes on its cgroup2, too.
    let top = unified.join(base);
    if !tops.contains(&top) {
        tops.push(top.clone());
    }
    let steps: Vec<Vec<PathBuf>> = tops
        .iter()
        .map(|top| ["uid_0", "uid_0/job_1", "uid_0/job_1/step_0"].map(|name| top.join(name)).to_vec())
        .collect();
    for path in steps.iter().flatten() {
        fs::create_dir_all(path)?;
        let bomb = BOMB.to_string();
        let processes = count.is_none().then_some(("pids.max", bomb.as_str()));
        let limits = LIMITS.into_iter().chain(processes);
        for (file, value) in limits.filter(|(file, _)| !path.ends_with("uid_0") && path.join(file).exists()) {
            fs::write(path.join(file), value)?;
        }
    }
    let leader = Leader::start(count)?;
    for path in steps.iter().filter_map(|step| step.last()) {
        fs::write(path.join("cgroup.procs"), leader.pid.to_string())?;
    }
    leader.begin()?;
    std::thread::sleep(LIFE);
    let step = top.join("uid_0/job_1/step_0");
    let start = Instant::now();
    match by {
        By::Signals => freeze_and_signal(&step)?,
        _ => fs::write(step.join("cgroup.kill"), "1")?,
    }
    for path in steps.iter().flat_map(|step| step.iter().rev()) {
        remove(path)?;
    }
    Ok(start.elapsed())
}

fn freeze_and_signal(step: &Path) -> Result<(), Failure> {
    loop {
        fs::write(step.join("cgroup.freeze"), "1")?;
        while !fs::read_to_string(step.join("cgroup.events"))?.contains("frozen 1") {
            std::thread::yield_now();
        }
        let members = fs::read_to_string(step.join("cgroup.procs"))?;
        for pid in members.lines() {
            // One that has just been reaped has the number 0, which would be all of our own group.
            let Some(pid) = pid.parse().ok().filter(|pid| *pid > 0) else { continue };
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fs::write(step.join("cgroup.freeze"), "0")?;
        if members.is_empty() {
            return Ok(());
        }
    }
}

/// As soon as the last process is gone.
fn remove(path: &Path) -> Result<(), Failure> {
    let deadline = soon();
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline => {
                return Err(format!("{}: {error}", path.display()).into());
            }
            Err(_) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}
