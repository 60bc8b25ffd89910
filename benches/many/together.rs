// SPDX-License-Identifier: GPL-2.0-or-later
//! Steps that begin at the same moment, and end at the same moment, beside the same number one after the other.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::daemon::{By, Daemon};
use crate::launch;
use crate::place::Place;
use crate::stats::{Sample, heading, micros, row};

const STEPS: usize = 64;
const ROUNDS: usize = 15;

pub fn measure(place: &Place) -> Result<(), Failure> {
    for (by, name) in [(By::Fences, "jobfence"), (By::BareCalls, "bare system calls")] {
        let (mut begins, mut ends, mut all_begin, mut all_end) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (begin, end) = one_after_the_other(place, by)?;
            let (together_begin, together_end) = at_once(place, by)?;
            // The first warms up.
            if round > 0 {
                begins.push(begin);
                ends.push(end);
                all_begin.push(together_begin);
                all_end.push(together_end);
            }
        }
        heading(&format!("{STEPS} steps by {name}, {ROUNDS} times in turn"));
        for (what, turns, at_once) in [("begin", begins, all_begin), ("end", ends, all_end)] {
            let (turns, at_once) = (Sample::new(turns), Sample::new(at_once));
            row(&format!("{what}, one after the other"), &turns);
            row(&format!("{what}, at the same moment"), &at_once);
            println!("  ratio (medians): {:.2}", micros(at_once.median()) / micros(turns.median()));
        }
    }
    Ok(())
}

/// Each by a process of its own, as step daemons are; but the next one starts when the last one is done.
fn one_after_the_other(place: &Place, by: By) -> Result<(Duration, Duration), Failure> {
    let daemons = daemons(place, by)?;
    let each = |daemons: &[Daemon]| -> Result<Duration, Failure> {
        let start = Instant::now();
        for daemon in daemons {
            daemon.tell()?;
            daemon.wait()?;
        }
        Ok(start.elapsed())
    };
    let took = (each(&daemons)?, each(&daemons)?);
    Daemon::end(daemons)?;
    Ok(took)
}

fn daemons(place: &Place, by: By) -> Result<Vec<Daemon>, Failure> {
    (0..STEPS).map(|number| Daemon::start(place, vec![launch::key(place, 1 + number, 0)?], by)).collect()
}

fn at_once(place: &Place, by: By) -> Result<(Duration, Duration), Failure> {
    let daemons = daemons(place, by)?;
    let all = |daemons: &[Daemon]| -> Result<Duration, Failure> {
        let start = Instant::now();
        daemons.iter().try_for_each(Daemon::tell)?;
        daemons.iter().try_for_each(Daemon::wait)?;
        Ok(start.elapsed())
    };
    let took = (all(&daemons)?, all(&daemons)?);
    Daemon::end(daemons)?;
    Ok(took)
}
