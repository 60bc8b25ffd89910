// SPDX-License-Identifier: GPL-2.0-or-later
//! What dead steps left in a scheduler's own directories.

use std::time::Instant;

use super::ledger::DeadStep;
use super::reaped::{PATIENCE_EACH, PATIENCE_WITH_MANY, Reaped};
use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::record::{Record, Records};
use crate::scheduler::{LeftBehind, LeftShell, LeftStep, Scheduler};

/// How many directories a launch ends and removes, however late it is. On a machine where the search alone takes all the time, nothing
/// would ever be removed otherwise. Each costs a few calls.
const AT_LEAST: usize = 8;

/// Whether the owner that left a mark with this text is certainly dead.
pub fn is_wanted(host: &Host, mark: &str) -> Result<Option<bool>> {
    Record::parse(mark).ok().map(|record| record.is_left_behind(host)).transpose()
}

/// How leftovers are ended and removed.
#[derive(Debug, Clone, Copy)]
pub struct Theirs<'a> {
    /// Where.
    pub host: &'a Host,
    /// Says whether directories are removed, too.
    pub config: &'a Config,
    /// Has the lock: two janitors would only hinder each other.
    pub records: &'a Records,
    /// Whether a step waits: at the deadline it has been delayed long enough, and the end of the step tries again.
    pub is_launch: bool,
    /// How long to wait.
    pub deadline: Instant,
}

/// A step whose processes have all been signalled.
struct KilledStep {
    step: Box<dyn LeftStep>,
    /// Its usage, if that is to be logged.
    dead: Option<DeadStep>,
    was_inhabited: bool,
    /// Whether some may not have ended yet.
    is_inhabited: bool,
}

impl Theirs<'_> {
    /// Ends what was found of a scheduler's dead steps, and removes it.
    pub fn end(&self, (scheduler, found): (&dyn Scheduler, LeftBehind), reaped: &mut Reaped) {
        let LeftBehind { marked, shells, unseen, others: _ } = found;
        reaped.note_unseen(&unseen);
        if let Err(error) = self.end_unless_alive(scheduler, marked, &shells, reaped) {
            reaped.failed.push(error.to_string());
        }
    }

    fn end_unless_alive(
        &self,
        scheduler: &dyn Scheduler,
        mut steps: Vec<Box<dyn LeftStep>>,
        shells: &[Box<dyn LeftShell>],
        reaped: &mut Reaped,
    ) -> Result<()> {
        // After the marks were read, and once for all of them.
        let daemons = if steps.is_empty() { Vec::new() } else { scheduler.daemons(&self.host.proc)? };
        steps.retain(|step| !step.is_alive(self.host, &daemons));
        if steps.is_empty() && shells.is_empty() {
            return Ok(());
        }
        let Some(_lock) = self.records.lock_janitor()? else { return Ok(()) };
        for (number, ended) in self.end_each(scheduler, steps, reaped).into_iter().enumerate() {
            self.remove(number, ended, reaped);
        }
        if self.config.reap_scheduler_leftovers {
            self.remove_shells(shells, reaped);
        }
        Ok(())
    }

    /// Ends each step, regardless of the time, before waiting for any.
    fn end_each(
        &self,
        scheduler: &dyn Scheduler,
        steps: Vec<Box<dyn LeftStep>>,
        reaped: &mut Reaped,
    ) -> Vec<KilledStep> {
        let mut all = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            if self.is_late(number) && Instant::now() >= self.deadline + PATIENCE_WITH_MANY {
                reaped.failed.push(format!("{}: there was no time left for it", step.path()));
                continue;
            }
            let used = self.config.usage_log.as_ref().and_then(|_| step.used());
            let dead = used.map(|used| DeadStep::from_scheduler(scheduler.name(), used));
            let done = step.end(self.host, self.deadline.min(Instant::now() + PATIENCE_EACH));
            let (was_inhabited, is_inhabited) = done.map_or((true, true), |was_inhabited| (was_inhabited, false));
            all.push(KilledStep { step, dead, was_inhabited, is_inhabited });
        }
        all
    }

    fn remove(&self, number: usize, ended: KilledStep, reaped: &mut Reaped) {
        let KilledStep { step, dead, was_inhabited, is_inhabited } = ended;
        if self.is_late(number) {
            return reaped.failed.push(format!("{}: there was no time left for it", step.path()));
        }
        let ended = if is_inhabited { step.end(self.host, self.deadline) } else { Ok(was_inhabited) };
        let removes = self.config.reap_scheduler_leftovers;
        let done = ended
            .and_then(|was_inhabited| if removes { step.remove(self.host, self.deadline) } else { Ok(was_inhabited) });
        if done == Ok(true)
            && let Some(dead) = dead
        {
            reaped.ledger.add(dead);
        }
        match done {
            Ok(true) if removes => reaped.removed.push(step.path()),
            Ok(true) => reaped.removed.push(format!("the processes in {}", step.path())),
            Ok(false) => {}
            Err(error) => reaped.failed.push(format!("{}: {error}", step.path())),
        }
    }

    fn remove_shells(&self, shells: &[Box<dyn LeftShell>], reaped: &mut Reaped) {
        for (number, shell) in shells.iter().enumerate() {
            if self.is_late(number) {
                // They hold no processes.
                return reaped
                    .failed
                    .push(format!("{}: there was no time left for it and others like it", shell.path()));
            }
            match shell.remove(self.deadline) {
                Ok(true) => reaped.removed.push(shell.path()),
                Ok(false) => {}
                Err(error) => reaped.failed.push(format!("{}: {error}", shell.path())),
            }
        }
    }

    /// Whether the directory with this number is left to the next launch.
    fn is_late(&self, number: usize) -> bool {
        self.is_launch && number >= AT_LEAST && Instant::now() >= self.deadline
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::cgroup::usage::Used;
    use crate::job::{Id, JobKey};
    use crate::scheduler::{Age, Runs, Titled, WithoutCgroups};
    use crate::sys::process::Owner;

    struct StandIn;

    impl WithoutCgroups for StandIn {
        fn name(&self) -> &'static str {
            "stand-in"
        }

        fn runs(&self, _: &Id, _: u32, _: Age<'_>) -> Runs {
            Runs::Unknown
        }
    }

    /// A directory that notes its removal.
    struct Left(usize, Rc<RefCell<Vec<usize>>>);

    impl LeftStep for Left {
        fn path(&self) -> String {
            self.0.to_string()
        }

        fn used(&self) -> Option<(JobKey, Owner, Used)> {
            None
        }

        fn is_alive(&self, _: &Host, _: &[Titled]) -> bool {
            false
        }

        fn end(&self, _: &Host, _: Instant) -> Result<bool> {
            Ok(true)
        }

        fn remove(&self, _: &Host, _: Instant) -> Result<bool> {
            self.1.borrow_mut().push(self.0);
            Ok(true)
        }
    }

    impl LeftShell for Left {
        fn path(&self) -> String {
            self.0.to_string()
        }

        fn remove(&self, _: Instant) -> Result<bool> {
            self.1.borrow_mut().push(self.0);
            Ok(true)
        }
    }

    #[test]
    fn a_launch_that_is_late_goes_on_with_the_removal_and_leaves_the_rest_to_the_next() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { run_dir: temp.path().join("run"), ..Config::default() };
        let host = Host::read(&config).unwrap();
        let records = Records::open(&config.run_dir).unwrap();
        let late = Instant::now();
        for (is_launch, expected) in [(true, AT_LEAST), (false, 20)] {
            let removed = Rc::new(RefCell::new(Vec::new()));
            let left = |number| Box::new(Left(number, Rc::clone(&removed)));
            let found = LeftBehind {
                marked: (0..20).map(|number| left(number) as Box<dyn LeftStep>).collect(),
                shells: (20..40).map(|number| left(number) as Box<dyn LeftShell>).collect(),
                ..LeftBehind::default()
            };
            let mut reaped = Reaped::default();
            let ours = Theirs { host: &host, config: &config, records: &records, is_launch, deadline: late };
            ours.end((&StandIn, found), &mut reaped);
            let all: Vec<usize> = (0..expected).chain(20..20 + expected).collect();
            assert_eq!(*removed.borrow(), all, "{is_launch}");
            assert_eq!(reaped.removed.len(), all.len());
            assert_eq!(reaped.failed.is_empty(), !is_launch, "what is left is said");
        }
    }
}
