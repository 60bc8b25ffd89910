// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` needs while nothing is to be done: memory, wake-ups, and CPU time.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Failure;
use crate::crowd::{end, steps};
use crate::place::Place;

/// How long `jobfence hold` may take to begin.
const BEGINNING: Duration = Duration::from_secs(5);

/// How many of its looks for dead steps are watched.
const LOOKS: u32 = 3;

pub fn measure(place: &Place, counts: &[usize]) -> Result<(), Failure> {
    let title = "'jobfence hold', with nothing to be done";
    println!("\n{title:<46}{:>10}{:>14}{:>14}", "own KiB", "wake-ups/min", "CPU s/hour");
    for count in counts {
        let others = steps(place, *count)?;
        let (memory, wakeups, cpu) = idle(place)?;
        println!("  {:<44}{memory:>10}{wakeups:>14.1}{cpu:>14.2}", format!("beside {count} steps"));
        end(others)?;
    }
    Ok(())
}

/// Private memory in KiB, wake-ups in a minute, and seconds of CPU time in an hour.
fn idle(place: &Place) -> Result<(u64, f64, f64), Failure> {
    let interval = place.config.reap_interval.ok_or("it looks for steps only with a ReapInterval")?;
    let settings = tempfile::NamedTempFile::new()?;
    let base = place.config.cgroup_base.as_ref().map(|base| format!("CgroupBase={base}\n")).unwrap_or_default();
    fs::write(&settings, format!("{base}RunDir={}\n", place.config.run_dir.display()))?;
    let mut hold = Hold::start(settings.path())?;
    std::thread::sleep(BEGINNING);
    let before = hold.seen()?;
    std::thread::sleep(interval * LOOKS);
    let after = hold.seen()?;
    if let Some(status) = hold.0.try_wait()? {
        return Err(format!("'jobfence hold' has ended: {status}").into());
    }
    let watched = (interval * LOOKS).as_secs_f64();
    let cpu = Duration::from_nanos(after.cpu_ns - before.cpu_ns).as_secs_f64();
    Ok((hold.private_kib()?, (after.wakeups - before.wakeups) as f64 * 60.0 / watched, cpu * 3600.0 / watched))
}

/// Ended when it is dropped.
struct Hold(Child);

/// Since it began.
struct Seen {
    wakeups: u64,
    cpu_ns: u64,
}

impl Hold {
    fn start(settings: &Path) -> Result<Self, Failure> {
        let mut hold = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        hold.arg("hold").arg(format!("--config={}", settings.display()));
        Ok(Self(hold.stdin(Stdio::null()).spawn()?))
    }

    fn read(&self, file: &str) -> Result<String, Failure> {
        Ok(fs::read_to_string(format!("/proc/{}/{file}", self.0.id()))?)
    }

    fn seen(&self) -> Result<Seen, Failure> {
        // The CPU time, the time of waiting for a CPU, and how often it had one.
        let cpu = self.read("schedstat")?.split(' ').next().unwrap_or_default().parse()?;
        Ok(Seen { wakeups: sum(&self.read("status")?, &["voluntary_ctxt_switches"]), cpu_ns: cpu })
    }

    /// What would be free without it.
    fn private_kib(&self) -> Result<u64, Failure> {
        Ok(sum(&self.read("smaps_rollup")?, &["Private_Clean", "Private_Dirty"]))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// The numbers of these lines, `NAME: NUMBER`.
fn sum(text: &str, names: &[&str]) -> u64 {
    let number = |line: &str| {
        let (name, value) = line.split_once(':')?;
        names.contains(&name).then(|| value.split_whitespace().next()?.parse::<u64>().ok())?
    };
    text.lines().filter_map(number).sum()
}
