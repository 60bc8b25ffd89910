// SPDX-License-Identifier: GPL-2.0-or-later
//! The tasks of a step are attached one after the other, as its step daemon does.

use std::time::Instant;

use crate::Failure;
use crate::floor::Floor;
use crate::launch;
use crate::place::{Place, soon};
use crate::processes::Others;
use crate::stats::{Sample, heading, micros, row};

const TASKS: [usize; 4] = [1, 8, 64, 512];
const ROUNDS: usize = 15;

/// A task of so large a step takes at most so many microseconds.
const GOAL: f64 = 60.0;

pub fn measure(place: &Place) -> Result<(), Failure> {
    for count in TASKS {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (one, other) = (by_jobfence(place, count)?, by_bare_calls(place, count)?);
            // The first warms up.
            if round > 0 {
                ours.push(one);
                bare.push(other);
            }
        }
        let (ours, bare) = (Sample::new(ours), Sample::new(bare));
        heading(&format!("a step of {count} tasks is attached, {ROUNDS} times in turn"));
        row("bare writes to cgroup.procs (the floor)", &bare);
        row("jobfence", &ours);
        let each = |sample: &Sample| micros(sample.median()) / u32::try_from(count).map_or(1.0, f64::from);
        println!("  each task (medians): floor {:.1} us, jobfence {:.1} us", each(&bare), each(&ours));
        if count == 512 {
            println!("  goal: {GOAL} us, {}", if each(&ours) <= GOAL { "met" } else { "MISSED" });
        }
    }
    Ok(())
}

fn by_jobfence(place: &Place, count: usize) -> Result<std::time::Duration, Failure> {
    let tasks = Others::start(count)?;
    let mut fence = launch::begin(place, &launch::key(place, 1, 0)?)?;
    place.move_early()?;
    let start = Instant::now();
    for (number, pid) in (0..).zip(tasks.pids()) {
        fence.attach(&place.host, pid.as_raw(), Some(number))?;
    }
    let took = start.elapsed();
    drop(tasks);
    fence.close(soon())?;
    Ok(took)
}

fn by_bare_calls(place: &Place, count: usize) -> Result<std::time::Duration, Failure> {
    let tasks = Others::start(count)?;
    // The same directories with the same limits: who is attached is charged there.
    let mut fence = launch::begin(place, &launch::key(place, 1, 0)?)?;
    let floor = Floor::of(place, &launch::key(place, 1, 0)?)?;
    place.move_early()?;
    let start = Instant::now();
    for pid in tasks.pids() {
        floor.attach(pid.as_raw())?;
    }
    let took = start.elapsed();
    drop(tasks);
    fence.close(soon())?;
    Ok(took)
}
