// SPDX-License-Identifier: GPL-2.0-or-later
//! A step's processes outside its fence: tasks that could not be fenced and run all the same (`OnError=warn`), and what TaskEpilog= started
//! beside the step daemon.

use std::collections::BTreeSet;
use std::time::Instant;

use nix::unistd::Pid;

use crate::cgroup::membership::Membership;
use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::janitor;
use crate::job::JobKey;
use crate::log;
use crate::record::Records;
use crate::record::tracked::{self, TrackedRecords, Tracker};
use crate::schedulers::slurm::daemon_children;
use crate::sorted;
use crate::sys::process::{self, Owner};

/// The unfenced processes of one step.
pub struct UnfencedProcesses {
    /// The step daemon; with contain_spank some callbacks run in a child of it, which may see other files.
    daemon: Pid,
    /// Where the daemon has been: Slurm moves it before the last callback.
    places: Vec<Membership>,
    /// Tasks that are not tracked yet.
    waiting: Vec<Owner>,
    tracker: Option<Tracker>,
    /// When the last task was put into the fence, in the unit of start times.
    attached_at: Option<u64>,
    /// Whether something that TaskEpilog left could not be ended.
    failed: bool,
}

impl UnfencedProcesses {
    /// For a step daemon that is at this place.
    pub fn new(place: Membership) -> Self {
        let daemon = Pid::this();
        Self { daemon, places: vec![place], waiting: Vec::new(), tracker: None, attached_at: None, failed: false }
    }

    /// The same for a step that is outside as a whole.
    pub fn with_tracker(place: Membership, tracker: Option<Tracker>) -> Self {
        Self { tracker, ..Self::new(place) }
    }

    /// Where the daemon was at first.
    pub fn place(&self) -> Option<&Membership> {
        self.places.first()
    }

    /// A task that runs without a fence.
    pub fn add(&mut self, host: &Host, config: &Config, key: &JobKey, pid: i32) {
        self.waiting.extend(Owner::from_pid(&host.proc, pid).ok().flatten());
        self.track(host, config, key);
    }

    fn track(&mut self, host: &Host, config: &Config, key: &JobKey) {
        if self.waiting.is_empty() || Pid::this() != self.daemon {
            return;
        }
        self.tracker = self.tracker.take().or_else(|| Tracker::begin(host, &config.run_dir, key));
        if let Some(tracker) = &mut self.tracker {
            self.waiting.drain(..).for_each(|process| tracker.add(process));
        }
    }

    /// Notes that a task was put into the fence.
    pub fn task_attached(&mut self, host: &Host) {
        self.attached_at = process::now(&host.proc);
    }

    /// Called when a task and its TaskEpilog have ended: notes where the TaskEpilog was started.
    pub fn task_ended(&mut self, host: &Host) {
        if let Ok(place) = Membership::read(&host.proc, self.daemon.as_raw())
            && !self.places.contains(&place)
        {
            self.places.push(place);
        }
    }

    /// Called after the last task: ends what the TaskEpilogs left where it would hinder Slurm.
    pub fn end_after_tasks(&mut self, host: &Host, config: &Config, key: &JobKey) {
        let are_all_inside = self.tracker.is_none() && self.waiting.is_empty();
        let Some(since) = self.attached_at.filter(|_| are_all_inside && !self.failed && Pid::this() == self.daemon)
        else {
            return;
        };
        let deadline = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
        let ended = self.in_each_place(host, config, key, |step, place| step.end_after_tasks(place, since, deadline));
        if let Err(error) = ended {
            // The end of the step tries again.
            self.failed = true;
            log::debug!("{key}: cannot end the processes that TaskEpilog left yet: {error}");
        }
    }

    /// At the end of the step: ends all of it.
    pub fn end(&mut self, host: &Host, config: &Config, key: &JobKey, deadline: Instant) {
        self.track(host, config, key);
        match self.tracker.as_mut().map_or(Ok(0), |tracker| tracker.end(host, deadline)) {
            Ok(0) => {}
            Ok(count) => log::info!("{key}: ended {count} processes of the step that ran without a fence"),
            Err(error) => log::error!("{key}: cannot end the step's processes that run without a fence yet: {error}"),
        }
        if Pid::this() != self.daemon {
            return;
        }
        let ended = self.in_each_place(host, config, key, |step, place| step.end(place, deadline));
        match ended.map(|counts| counts.into_iter().flatten().reduce(usize::saturating_add)) {
            // The daemon has only been where any process can be: only the mark finds what it started.
            Ok(None) if self.tracker.is_none() && !host.systemd && tracked::is_watched(&config.run_dir) => {
                let _ = Tracker::begin(host, &config.run_dir, key);
            }
            Ok(None | Some(0)) => {}
            Ok(Some(count)) => {
                log::info!("{key}: ended {count} processes that TaskEpilog had left")
            }
            Err(error) => log::error!("{key}: cannot end the processes that TaskEpilog left yet: {error}"),
        }
    }

    /// Calls `ask` for each place where the daemon has been.
    fn in_each_place<T>(
        &self,
        host: &Host,
        config: &Config,
        key: &JobKey,
        ask: impl Fn(&daemon_children::DaemonsStep<'_>, &Membership) -> Result<T>,
    ) -> Result<Vec<T>> {
        let step = daemon_children::DaemonsStep {
            host,
            owner: Owner::this(&host.proc)?,
            uid: key.uid,
            known: &|| owners(host, config),
            daemons: &|| daemons(host, config),
        };
        self.places.iter().map(|place| ask(&step, place)).collect()
    }
}

/// The daemons of all recorded steps on the node, with their users.
fn owners(host: &Host, config: &Config) -> Result<Vec<(Owner, u32)>> {
    let mut known = Records::open(&config.run_dir)?.owners(&host.pid_namespace)?;
    if let Some(records) = TrackedRecords::existing(&config.run_dir)? {
        known.extend(records.list()?.iter().map(|tracked| (tracked.owner, tracked.uid)));
    }
    Ok(known)
}

/// The pids of all processes that began a step and may be alive: a fast look-up.
fn daemons(host: &Host, config: &Config) -> BTreeSet<i32> {
    let roll = Records::open(&config.run_dir).and_then(|records| records.roll(&host.boot_id)).ok().flatten();
    sorted::set(roll.iter().flat_map(|roll| roll.owners(&host.pid_namespace)).map(|owner| owner.pid))
}
