// SPDX-License-Identifier: GPL-2.0-or-later
//! What every entry point does with a fence: begin it, attach processes, tell the user what happened in it, end it, or refuse.
//!
//! An entry point knows its host program and its scheduler's terms; everything that does not depend on them is here. Sentences for the user
//! are returned, and the entry point shows them where the user reads. Each part may run in a process of its own: nothing is remembered
//! here, and what the next part must know is returned.

use std::time::Instant;

use crate::config::{Config, LoadError, Loaded, Mode, OnErrors, Resolved};
use crate::error::Error;
use crate::record::counters::{Counters, Event};

pub mod account;
pub mod attach;
pub mod begin;
pub mod early_move;
pub mod end;
pub mod refuse;
pub mod tell;

pub use account::{account, limited_to, write_down};
pub use attach::{Joining, attach};
pub use begin::{Begin, Begun};
pub use refuse::NotFenced;
pub use tell::{AskedProcesses, Reported, tell};

/// The outcome for a job or step that an entry point wants to fence.
#[derive(Debug)]
pub enum Answer<T> {
    /// Nothing is fenced here: Mode=off.
    Off,
    /// It is fenced.
    Fenced(T),
    /// The configuration lets it go on without a fence.
    Unfenced {
        /// The configuration that applies.
        config: Box<Config>,
        /// The assignment that lets it go on.
        by: &'static str,
        /// Why there is no fence.
        why: NotFenced,
    },
    /// It must not go on.
    Refused(NotFenced),
}

/// Like [`answer`], for a step that begins: counts the outcome, if metrics are kept.
pub fn begun<J, T>(
    loaded: Result<Loaded, LoadError>,
    job: impl FnOnce(&Loaded) -> Result<(Resolved, J), NotFenced>,
    fence: impl FnOnce(Resolved, J) -> Result<T, NotFenced>,
) -> Answer<T> {
    let config = loaded.as_ref().ok().map(|loaded| &loaded.config);
    let run_dir = config.filter(|config| config.metrics_file.is_some()).map(|config| config.run_dir.clone());
    let start = Instant::now();
    let answer = answer(loaded, job, fence);
    let event = match &answer {
        Answer::Off => None,
        Answer::Fenced(_) => Some(Event::Fenced(start.elapsed())),
        Answer::Unfenced { .. } => Some(Event::Unfenced),
        Answer::Refused(_) => Some(Event::Refused),
    };
    if let Some((run_dir, event)) = run_dir.zip(event) {
        Counters::count(&run_dir, event);
    }
    answer
}

/// Fences as the configuration says. `job` finds the job and its configuration; `fence` makes the fence.
///
/// The job's configuration decides whether an error is tolerated. While it is not known, the strictest of all that could apply decides.
pub fn answer<J, T>(
    loaded: Result<Loaded, LoadError>,
    job: impl FnOnce(&Loaded) -> Result<(Resolved, J), NotFenced>,
    fence: impl FnOnce(Resolved, J) -> Result<T, NotFenced>,
) -> Answer<T> {
    let (config, result) = match loaded {
        Ok(loaded) if loaded.config.mode == Mode::Off => return Answer::Off,
        Err(errors) if errors.mode == Mode::Off => return Answer::Off,
        Ok(loaded) => {
            let job = job(&loaded);
            let config = job.as_ref().map_or_else(|_| loaded.strictest(), |(resolved, _)| resolved.config.clone());
            (config, job.and_then(|(resolved, job)| fence(resolved, job)))
        }
        Err(errors) => {
            let why = Error::new(errors.to_string());
            (Config { mode: errors.mode, on_error: errors.on_error, ..Config::default() }, Err(why.into()))
        }
    };
    decided(config, result)
}

/// What `OnError` and `Mode` make of a result.
pub fn decided<T>(config: Config, result: Result<T, NotFenced>) -> Answer<T> {
    match result {
        Ok(fenced) => Answer::Fenced(fenced),
        // With Mode=observe no job may fail, whatever its user requested.
        Err(why) if why.is_bearable(config.on_error.within(config.mode).general()) || is_observed(&config, &why) => {
            let by = OnErrors::softened_by(config.mode);
            Answer::Unfenced { config: Box::new(config), by, why }
        }
        Err(why) => Answer::Refused(why),
    }
}

fn is_observed(config: &Config, why: &NotFenced) -> bool {
    config.mode == Mode::Observe && matches!(why, NotFenced::Asked(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    /// The outcome for a job with this result for its configuration, or for its fence.
    fn became(text: &str, job: Result<(), NotFenced>, fence: Result<(), NotFenced>) -> String {
        became_with(&[], text, job, fence)
    }

    fn became_with(
        arguments: &[&[u8]],
        text: &str,
        job: Result<(), NotFenced>,
        fence: Result<(), NotFenced>,
    ) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let named = format!("config={}", file.path().display());
        let loaded = config::load(&[&[named.as_bytes()], arguments].concat());
        let job = |loaded: &Loaded| job.map(|()| (Resolved::plain(loaded.config.clone()), ()));
        match answer(loaded, job, |_, ()| fence) {
            Answer::Off => "off".to_owned(),
            Answer::Fenced(()) => "fenced".to_owned(),
            Answer::Unfenced { by, why, .. } => format!("{by}: {why}"),
            Answer::Refused(why) => format!("refused: {why}"),
        }
    }

    #[test]
    fn only_what_onerror_says_in_general_lets_a_job_go_on_without_a_fence() {
        let general = || Err(NotFenced::General(Error::new("x")));
        let limit = || Err(NotFenced::Limit { limit: None, error: Error::new("x"), asked: None });
        assert_eq!(became("", Ok(()), Ok(())), "fenced");
        let asked = || Err(NotFenced::Asked(Error::new("x")));
        assert_eq!(became("Mode=off\n", general(), general()), "off");
        for (text, without) in
            [("", "refused: x"), ("OnError=warn\n", "refused: x"), ("Mode=observe\n", "Mode=observe: x")]
        {
            assert_eq!(became(text, asked(), Ok(())), without, "{text}");
        }
        for (text, without) in
            [("", "refused: x"), ("OnError=warn\n", "OnError=warn: x"), ("Mode=observe\n", "Mode=observe: x")]
        {
            assert_eq!(became(text, general(), Ok(())), without, "{text}");
            assert_eq!(became(text, Ok(()), general()), without, "{text}");
            assert_eq!(became(text, Ok(()), limit()), "refused: x", "{text}");
        }
    }

    #[test]
    fn a_mistake_in_the_file_is_borne_by_what_the_arguments_say() {
        let became = |arguments: &[&[u8]], text: &str| became_with(arguments, text, Ok(()), Ok(()));
        for said in ["OnError=warn", "Mode=observe"] {
            assert!(became(&[], &format!("{said}\nNoSuchKey=1\n")).starts_with("refused: "), "{said}");
            assert!(became(&[said.as_bytes()], "NoSuchKey=1\n").starts_with(&format!("{said}: ")), "{said}");
        }
        assert!(became(&[], "Mode=off\nNoSuchKey=1\n").starts_with("refused: "));
        assert_eq!(became(&[b"Mode=off"], "NoSuchKey=1\n"), "off");
    }
}
