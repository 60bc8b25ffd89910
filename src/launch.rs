// SPDX-License-Identifier: GPL-2.0-or-later
//! What every door does with a fence: begin it, attach processes, tell the user what happened in it, end it, or refuse.
//!
//! A door knows its host program, and what its scheduler calls things. Here is what follows from that. Sentences for the user are
//! handed back, and the door says them where its user reads. Each part may run in a process of its own: nothing is
//! remembered here, and what the next part needs to know is returned.

use crate::config::{Config, LoadError, Loaded, Mode, OnErrors, Resolved};
use crate::error::Error;

pub mod attach;
pub mod begin;
pub mod end;
pub mod refuse;
pub mod tell;

pub use attach::{Joining, attach};
pub use begin::{Begin, Begun};
pub use refuse::NotFenced;
pub use tell::{AskedProcesses, Told, tell};

/// What becomes of what a door wants to fence.
#[derive(Debug)]
pub enum Answer<T> {
    /// Nothing is fenced here: Mode=off.
    Off,
    /// It is fenced.
    Fenced(T),
    /// It goes on without a fence, by what the configuration says.
    Unfenced {
        /// What was to be kept to.
        config: Box<Config>,
        /// The assignment that lets it go on.
        by: &'static str,
        /// Why there is no fence.
        why: NotFenced,
    },
    /// It must not go on.
    Refused(NotFenced),
}

/// Has it fenced as far as the configuration says so. `job` finds out whose it is and what holds for that job; `fence` does it.
///
/// What goes wrong is borne or not by what holds for the job. As long as that is not known, the strictest of all that could hold counts.
pub fn answer<J, T>(
    loaded: Result<Loaded, LoadError>,
    job: impl FnOnce(&Loaded) -> Result<(Resolved, J), NotFenced>,
    fence: impl FnOnce(Resolved, J) -> Result<T, NotFenced>,
) -> Answer<T> {
    let (config, on_errors, result) = match loaded {
        Ok(loaded) if loaded.config.mode == Mode::Off => return Answer::Off,
        Err(errors) if errors.mode == Mode::Off => return Answer::Off,
        Ok(loaded) => {
            let job = job(&loaded);
            let config = job.as_ref().map_or_else(|_| loaded.strictest(), |(resolved, _)| resolved.config.clone());
            let on_errors = config.on_error.within(config.mode);
            (config, on_errors, job.and_then(|(resolved, job)| fence(resolved, job)))
        }
        Err(errors) => {
            let config = Config { mode: errors.mode, ..Config::default() };
            (config, errors.on_error.within(errors.mode), Err(Error::new(errors.to_string()).into()))
        }
    };
    match result {
        Ok(fenced) => Answer::Fenced(fenced),
        Err(why) if why.is_bearable(on_errors.general()) => {
            let by = OnErrors::softened_by(config.mode);
            Answer::Unfenced { config: Box::new(config), by, why }
        }
        Err(why) => Answer::Refused(why),
    }
}
