// SPDX-License-Identifier: GPL-2.0-or-later
//! The whole life of a step: its directories are made and limited, a process is attached, what it has used is read, it is
//! killed, and everything is removed.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::floor::Floor;
use crate::place::{Place, soon};
use crate::removal::{LIFE, Member};
use crate::trace::between_marks;

/// By jobfence. What the step lives is not counted.
pub fn ours(place: &Place) -> Result<Duration, Failure> {
    let mut member = Member::start()?;
    place.move_early()?;
    let start = Instant::now();
    let mut fence = between_marks(|| -> Result<_, Failure> {
        let (mut fence, _) = place.set_up()?;
        fence.attach(&place.host, member.pid(), None)?;
        Ok(fence)
    })?;
    let began = start.elapsed();
    std::thread::sleep(LIFE);
    let end = Instant::now();
    between_marks(|| -> Result<_, Failure> {
        std::hint::black_box(fence.usage());
        Ok(fence.close(soon())?)
    })?;
    let ended = end.elapsed();
    member.was_killed()?;
    Ok(began + ended)
}

/// By bare system calls.
pub fn bare(place: &Place, floor: &Floor) -> Result<Duration, Failure> {
    let mut member = Member::start()?;
    place.move_early()?;
    let start = Instant::now();
    between_marks(|| floor.set_up().and_then(|()| floor.attach(member.pid())))?;
    let began = start.elapsed();
    std::thread::sleep(LIFE);
    let end = Instant::now();
    between_marks(|| -> Result<_, Failure> {
        floor.read_usage();
        floor.kill(member.pid())?;
        member.was_killed()?;
        Ok(floor.remove()?)
    })?;
    Ok(began + end.elapsed())
}
