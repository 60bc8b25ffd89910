// SPDX-License-Identifier: GPL-2.0-or-later
//! How long it takes to move a process into a step, and how much of that the mount option `favordynmods` would save.
//!
//! Since Linux 6.0 a move waits for an RCU grace period if there was none for a while, as before a job starts. Mounting any hierarchy with
//! this option prevents that for all.

use std::time::{Duration, Instant};

use jobfence::cgroup::layout;
use jobfence::config::Config;
use jobfence::error::Result;
use jobfence::fence;
use jobfence::host::Host;
use jobfence::record::tracked;
use jobfence::schedulers::slurm::plugins::Slurm;

use super::rows::Rows;
use super::trial::{self, Idle};
use crate::schedulers::slurm::dirs::SlurmDirs;

/// A job does not notice less.
const NOTICED: f64 = 1.0;

/// Prints it. `own`: whether jobfence moves jobs, and not Slurm.
pub fn say(rows: &mut Rows, host: &Host, config: &Config, slurm: Option<&Slurm>, places: &SlurmDirs, own: bool) {
    let scope = if own { None } else { places.scopes.first() };
    let saved = if !own && scope.is_none() {
        None
    } else {
        match trial::measured(host, config, slurm, scope, measure) {
            Ok((first, next)) => {
                let (first, next) = (first.as_secs_f64() * 1e3, next.as_secs_f64() * 1e3);
                rows.fact("attach", format!("a process was moved in {first:.2} ms, and the next in {next:.2} ms"));
                Some((first - next).max(0.0))
            }
            Err(error) => {
                rows.remark("attach", format!("cannot be measured: {error}"));
                None
            }
        }
    };
    let mounts = host.proc.read("self/mountinfo").unwrap_or_default();
    let controllers = fence::controllers(config);
    let used = host.hierarchies(&controllers).unwrap_or_default();
    let mut has = Vec::new();
    let mut lacks = Vec::new();
    for hierarchy in used {
        let is_on = layout::options(&mounts, &hierarchy.mount).contains(&"favordynmods");
        if is_on { &mut has } else { &mut lacks }.push(hierarchy.mount.display().to_string());
    }
    let (has, lacks) = (has.join(", "), lacks.join(", "));
    if lacks.is_empty() {
        return rows.fact("favordynmods", format!("is on in {has}"));
    } else if !has.is_empty() {
        return rows.fact("favordynmods", format!("is on in {has} (that counts for all), off in {lacks}"));
    } else if !knows_favordynmods() {
        return rows.fact(
            "favordynmods",
            format!("is off in {lacks}: Linux before 6.0 has no such option, and does not wait"),
        );
    }
    if own && config.early_moves && tracked::is_watched(&config.run_dir) {
        return rows.fact(
            "favordynmods",
            format!("is off in {lacks}; jobfence.service waits in the place of jobs (EarlyMoves)"),
        );
    }
    let by = if own { "" } else { ", in moves by Slurm" };
    match saved {
        None => rows.fact("favordynmods", format!("is off in {lacks}")),
        Some(saved) if saved < NOTICED => {
            rows.fact(
                "favordynmods",
                format!("is off in {lacks}; it would save a job's start about {saved:.1} ms{by}, which is nothing"),
            );
        }
        Some(saved) => rows.remark(
            "favordynmods",
            format!(
                "is off in {lacks}; it would save a job's start about {saved:.1} ms{by}, and make every fork and exit \
             on the node a little slower: see jobfence(8), check"
            ),
        ),
    }
}

/// Moves two processes, the first one after a time without moves.
fn measure(put: &mut dyn FnMut(i32) -> Result<()>) -> Result<(Duration, Duration)> {
    /// Longer than the grace periods that are still pending after the step was made.
    const QUIET: Duration = Duration::from_millis(50);
    let idle = Idle::start(2)?;
    std::thread::sleep(QUIET);
    let mut moved = [Duration::ZERO; 2];
    for (pid, took) in idle.pids().iter().zip(&mut moved) {
        let start = Instant::now();
        put(*pid)?;
        *took = start.elapsed();
    }
    Ok(moved.into())
}

/// Linux 6.0 introduced the wait and the option.
fn knows_favordynmods() -> bool {
    let major = |name: nix::sys::utsname::UtsName| name.release().to_str()?.split('.').next()?.parse::<u32>().ok();
    nix::sys::utsname::uname().ok().and_then(major).is_none_or(|major| major >= 6)
}
