// SPDX-License-Identifier: GPL-2.0-or-later
//! When `jobfence hold` limits the users of a node for logins, and when it gives the limits back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use jobfence::config::{Config, Loaded, LoginLimits, Mode};
use jobfence::error::{Error, Result};
use jobfence::fence::Fence;
use jobfence::host::Host;
use jobfence::report::account::utc;
use jobfence::sys::process::{self, Owner};

use super::budget::BudgetStep;
use super::files::{self, LimitedPlace, LoginUser};
use super::limits::{UserLimits, WantedOfUser, wanted};
use super::{slices, terminals, tidy, tree};
use crate::idle::speed;
use crate::living::user_name;
use crate::local_time::LocalTime;
use crate::strays::{FoundStrays, Stray, StrayAccounts, StraysSearch, adopting};
use crate::table::clock;

/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(10);

/// How long one look may take for all users after the search, and how long moving one user may take: `hold` has other work, too. A user who
/// was left out comes first at the next look.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_FOR_ONE: Duration = Duration::from_secs(2);

/// How long there must be no scheduler's daemon before users are limited: a daemon that restarts is gone for a moment.
const WITHOUT_DAEMON: Duration = Duration::from_secs(60);

/// What `jobfence hold` knows of the users of this node.
#[derive(Default)]
pub struct LoginWatch {
    /// When the next look is due. `None`: at once.
    next: Option<Instant>,
    users: BTreeMap<u32, LoginUser>,
    has_taken_over: bool,
    /// The user who was looked at last.
    turn: u32,
    /// Since when it is certain that no scheduler's daemon is here.
    without_daemon: Option<Instant>,
    has_daemon: bool,
    /// The failures that were logged, without their numbers: the numbers of processes differ each time.
    said: BTreeSet<String>,
}

/// A user at one look.
struct UserLook<'a> {
    host: &'a Host,
    config: &'a Config,
    search: &'a StraysSearch<'a>,
    wanted: WantedOfUser,
    /// The user's processes that are in no fence.
    strays: Vec<Stray>,
    /// Seconds since boot.
    now: f64,
    deadline: Instant,
    /// What failed for the user. The rest was done all the same.
    failed: Option<String>,
}

fn is_on(config: &Config) -> bool {
    config.mode != Mode::Off && config.login_limits != LoginLimits::No
}

/// Why nobody is limited on this node: a scheduler's daemon starts jobs here. `None`: users may be limited.
pub fn obstacle(config: &Config, has_nodes_daemon: bool) -> Option<String> {
    let is_refused = config.login_limits == LoginLimits::Yes && has_nodes_daemon;
    is_refused.then(|| {
        "a scheduler's daemon starts jobs on this node, and their processes are the scheduler's; LoginLimits=always \
         limits users all the same"
            .to_owned()
    })
}

impl LoginWatch {
    /// The time until the next look. `None`: there will be none.
    pub fn wait(&self, config: &Config) -> Option<Duration> {
        let has_work = is_on(config) || !self.has_taken_over;
        has_work.then(|| self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())))
    }

    /// Looks, if that is due.
    pub fn look(&mut self, config: &Config, loaded: Option<&Loaded>) {
        if self.next.is_some_and(|next| Instant::now() < next)
            || !is_on(config) && self.has_taken_over && self.users.is_empty()
        {
            return;
        }
        let interval = INTERVAL.div_f64(speed().max(1.0)).max(Duration::from_secs(1));
        if loaded.is_none() {
            // The file has had mistakes since the start, so the wishes of the site are not known. All stays as it is.
            self.next = Some(Instant::now() + interval);
            return;
        }
        let done = Host::read_what_there_is(config).and_then(|(host, _)| {
            self.take_over(&host, config);
            if is_on(config) {
                self.look_at(&host, (config, loaded))
            } else {
                self.give_all_back(&host, config, true, Instant::now() + PATIENCE);
                Ok(())
            }
        });
        self.next = Some(Instant::now() + interval);
        if let Err(error) = done {
            self.complain(format!("cannot limit the users of this node: {error}"));
        }
    }

    /// Gives all limits back, since the program ends. What was used is kept for the next start.
    pub fn end(&mut self, config: &Config) {
        if self.users.values().all(|user| user.place.is_none()) {
            return;
        }
        match Host::read_what_there_is(config) {
            Ok((host, _)) => self.give_all_back(&host, config, false, Instant::now() + tidy::PATIENCE),
            Err(error) => self.complain(format!("login limits stay, see 'jobfence reap': {error}")),
        }
    }

    fn complain(&mut self, what: String) {
        if self.said.len() < 100 && self.said.insert(what.replace(|c: char| c.is_ascii_digit(), "")) {
            log::error!("{what}");
        }
    }

    /// Continues with what an earlier program has kept.
    fn take_over(&mut self, host: &Host, config: &Config) {
        if std::mem::replace(&mut self.has_taken_over, true) {
            return;
        }
        let begun = tidy::known(host, config).unwrap_or_else(|why| {
            self.complain(format!("cannot go on with the budgets of users: {why}"));
            Vec::new()
        });
        for user in begun {
            if user.boot_id == host.boot_id {
                self.users.insert(user.uid, user);
            } else {
                files::remove(&config.run_dir, user.uid);
            }
        }
    }

    fn give_all_back(&mut self, host: &Host, config: &Config, forgets: bool, deadline: Instant) {
        let mut failed = Vec::new();
        self.users.retain(|uid, user| {
            if user.place.is_none() && !forgets {
                return true;
            }
            match tidy::give_back(host, config, user, deadline) {
                Err(why) => failed.push(format!("the login limits of {} stay: {why}", user_name(*uid))),
                Ok(()) if forgets => {
                    files::remove(&config.run_dir, *uid);
                    return false;
                }
                Ok(()) => {}
            }
            let written = files::write(&config.run_dir, user);
            failed.extend(written.err().map(|error| format!("what a user has used is not kept: {error}")));
            true
        });
        failed.into_iter().for_each(|what| self.complain(what));
    }

    /// Gives back the limits of a user whom the site does not limit any more.
    fn leave(&mut self, host: &Host, config: &Config, uid: u32, deadline: Instant) {
        let Some(user) = self.users.get_mut(&uid) else { return };
        match tidy::give_back(host, config, user, deadline) {
            Ok(()) => {
                files::remove(&config.run_dir, uid);
                self.users.remove(&uid);
            }
            Err(why) => self.complain(format!("the login limits of {} stay: {why}", user_name(uid))),
        }
    }

    fn look_at(&mut self, host: &Host, (config, loaded): (&Config, Option<&Loaded>)) -> Result<()> {
        let adopting = adopting(config);
        let accounts = StrayAccounts::new(&adopting, None);
        let search = StraysSearch::new(host, (&adopting, None), &accounts);
        let found = search.find()?;
        if config.login_limits == LoginLimits::Yes {
            let has_daemon = self.has_daemon(&found, Instant::now());
            if let Some(why) = obstacle(config, has_daemon == Some(true)) {
                self.complain(format!("LoginLimits=yes does nothing here: {why}"));
                self.give_all_back(host, config, false, Instant::now() + PATIENCE);
            }
            if has_daemon != Some(false) {
                return Ok(());
            }
        }
        let FoundStrays { all, is_whole, .. } = found;
        let unlimited = if host.systemd { slices::count_outside(&all) } else { 0 };
        if unlimited > 0 {
            self.complain(format!("{unlimited} processes of users are in no slice of systemd's, and are not limited"));
        }
        if !is_whole {
            self.complain(
                "not all processes could be looked at in time, so no process is moved into a fence".to_owned(),
            );
        }
        let mut by_user: BTreeMap<u32, Vec<Stray>> = BTreeMap::new();
        for stray in all.into_iter().filter(|stray| is_whole && stray.action().is_some()) {
            by_user.entry(stray.uid).or_default().push(stray);
        }
        let uptime = process::now(&host.proc).ok_or_else(|| Error::new("the time since boot cannot be read"))?;
        // The ticks of proc_pid_stat(5) are hundredths of a second on every architecture that we build for.
        let now = uptime as f64 / 100.0 * speed();
        let has_slices = host.systemd;
        let present: BTreeSet<u32> =
            if has_slices { slices::uids(host)?.into_iter().collect() } else { by_user.keys().copied().collect() };
        let uids: BTreeSet<u32> = present.iter().chain(self.users.keys()).copied().collect();
        let mut uids: Vec<u32> = uids.into_iter().filter(|uid| !accounts.is_systems(*uid)).collect();
        let first = uids.iter().position(|uid| *uid > self.turn).unwrap_or(0);
        uids.rotate_left(first);
        let deadline = Instant::now() + PATIENCE;
        for uid in uids.into_iter().take_while(|_| Instant::now() < deadline) {
            self.turn = uid;
            let wanted = match wanted((config, loaded), uid) {
                Ok(wanted) => wanted,
                Err(why) => {
                    self.complain(format!("the login limits of {} stay as they are: {why}", user_name(uid)));
                    continue;
                }
            };
            if !wanted.is_any() {
                self.leave(host, config, uid, deadline);
                continue;
            }
            let strays = by_user.remove(&uid).unwrap_or_default();
            let user = self.users.entry(uid).or_insert_with(|| LoginUser::new(uid, &host.boot_id));
            let look = UserLook { host, config, search: &search, wanted, strays, now, deadline, failed: None };
            let done = look.look(user);
            let is_done_with = !present.contains(&uid)
                && user.place.is_none()
                && !user.used.is_limited()
                && user.used.used() == 0.0
                && done.is_ok();
            let written = if is_done_with {
                files::remove(&config.run_dir, uid);
                self.users.remove(&uid);
                Ok(())
            } else {
                files::write(&config.run_dir, user).map_err(|error| error.to_string())
            };
            for why in [done, written].into_iter().filter_map(std::result::Result::err) {
                self.complain(format!("the login limits of {}: {why}", user_name(uid)));
            }
        }
        Ok(())
    }

    /// Whether a scheduler's daemon is here. `None`: that is not certain yet. If a look has not seen all processes, the last certain answer
    /// holds.
    fn has_daemon(&mut self, found: &FoundStrays, now: Instant) -> Option<bool> {
        if found.has_nodes_daemon {
            (self.has_daemon, self.without_daemon) = (true, None);
        } else if found.is_whole {
            self.without_daemon.get_or_insert(now);
        }
        match self.without_daemon {
            None => self.has_daemon.then_some(true),
            Some(since) => (now.duration_since(since).mul_f64(speed().max(1.0)) >= WITHOUT_DAEMON).then_some(false),
        }
    }
}

impl UserLook<'_> {
    /// Counts the user's CPU time, decides, limits and tells.
    fn look(mut self, user: &mut LoginUser) -> std::result::Result<(), String> {
        // The keeper is noted before the first file is written. If this program is killed, the next one finds the file by it.
        user.keeper = Owner::this(&self.host.proc).ok();
        let mut fence = if self.host.systemd { None } else { self.fence(user)? };
        let Self { host, config, wanted, now, .. } = &self;
        let counter = match &fence {
            Some(fence) => tree::counter(fence),
            None if host.systemd => slices::counter(host, user.uid),
            None => None,
        };
        // systemd 219 forgets the properties of a slice when its user logs out.
        let known = user.counter.map(|(number, _)| number);
        let is_new_slice = host.systemd && counter.is_some_and(|(number, _)| known != Some(number));
        let used = user.count(counter) * speed();
        let step = user.used.look(*now, used, wanted.budget.map(|budget| budget.time), config.login_window);
        let lowered = wanted.budget.filter(|_| user.used.is_limited()).map(|budget| budget.cpus);
        let limits = wanted.limits.within(lowered);
        user.is_observed = wanted.mode != Mode::Enforce;
        user.keeper = Owner::this(&host.proc).ok();
        self.set(user, (fence.as_mut(), is_new_slice), &limits)?;
        user.limits = limits.in_words();
        user.budget = wanted.budget.map(|budget| (budget.time.as_secs(), budget.cpus));
        user.window = config.login_window.as_secs();
        user.until = user.used.until(config.login_window).map(|until| moment((until - now) / speed()));
        self.say(user, step);
        self.failed.map_or(Ok(()), Err)
    }

    /// The user's fence, with all of the user's processes in it. `None`: the user has none.
    fn fence(&mut self, user: &mut LoginUser) -> std::result::Result<Option<Fence>, String> {
        let Self { host, config, search, wanted, strays, deadline, .. } = &*self;
        let config = &Config { mode: wanted.mode, ..(*config).clone() };
        let is_other = user.set.first() != words(&wanted.limits, wanted.mode).first();
        if matches!(user.place, Some(LimitedPlace::Fence(_))) && is_other {
            // On v1, a fence can only change limits that it was opened with. So this fence is closed, and the next look opens another one.
            tidy::give_back(host, config, user, *deadline)?;
            return Ok(None);
        }
        let existing = match tree::existing(host, config, user.uid) {
            Ok(existing) => existing,
            Err(error) => {
                // A program was killed while it made the fence, or a part of the fence is gone.
                log::warn!("the login fence of {} is not whole, and is made anew: {error}", user_name(user.uid));
                user.place.get_or_insert_with(|| LimitedPlace::Fence(String::new()));
                tidy::give_back(host, config, user, *deadline)?;
                return Ok(None);
            }
        };
        let mut fence = match (existing, strays.first()) {
            (Some(fence), _) => {
                // The user's file is lost.
                user.place.get_or_insert_with(|| LimitedPlace::Fence(String::new()));
                fence
            }
            (None, None) => return Ok(None),
            (None, Some(first)) => {
                let lowered = wanted.budget.filter(|_| user.used.is_limited()).map(|budget| budget.cpus);
                let limits = wanted.limits.within(lowered);
                let from = tree::cgroups_of(host, first.id.pid).ok_or("its first process has ended")?;
                // The place is kept before a process is moved: if this program is killed now, the next one knows where to put the processes
                // back.
                user.place = Some(LimitedPlace::Fence(from));
                files::write(&config.run_dir, user).map_err(|error| error.to_string())?;
                let fence = tree::open(host, config, user.uid, &limits).inspect_err(|_| user.place = None)?;
                user.set = words(&limits, wanted.mode);
                log::info!("the processes of {} go into {}", user_name(user.uid), fence.key());
                fence
            }
        };
        let deadline = (*deadline).min(Instant::now() + PATIENCE_FOR_ONE);
        // A process that cannot be moved must not keep the others from their limits.
        let (_, failed) = tree::take(host, search, (&mut fence, user.uid), strays.clone(), deadline);
        self.failed = failed;
        Ok(Some(fence))
    }

    /// Sets the limits, unless they were set before.
    fn set(
        &self,
        user: &mut LoginUser,
        (fence, is_new_slice): (Option<&mut Fence>, bool),
        limits: &UserLimits,
    ) -> std::result::Result<(), String> {
        let Self { host, config, wanted, .. } = self;
        let is_enforced = wanted.mode == Mode::Enforce;
        if !host.systemd {
            let Some(fence) = fence else { return Ok(()) };
            let words = words(limits, wanted.mode);
            if user.set != words {
                tree::change(fence, &Config { mode: wanted.mode, ..(*config).clone() }, limits)?;
                said(user.uid, limits);
                user.set = words;
            }
            return Ok(());
        }
        if !is_enforced {
            return tidy::give_back(host, config, user, self.deadline);
        }
        let systemctl = slices::systemctl_until(self.deadline);
        let disks = slices::disks(host, limits)?;
        let assignments = slices::assignments(limits, &disks, wanted.budget, slices::version(host));
        if user.set == assignments && !is_new_slice {
            return Ok(());
        }
        let names = |all: &[String]| -> BTreeSet<String> {
            all.iter().filter_map(|one| one.split_once('=')).map(|(name, _)| name.to_owned()).collect()
        };
        let set = names(&assignments);
        if names(&user.set) != set {
            // Other properties are to be limited now. Those that are not limited any more get their old values back.
            let keeper = user.keeper;
            tidy::give_back(host, config, user, self.deadline)?;
            user.keeper = keeper;
            let mut back = slices::now(&systemctl, user.uid, &assignments)?;
            if std::mem::take(&mut user.is_new) {
                let of = |limits| slices::assignments(limits, &disks, wanted.budget, slices::version(host));
                let lowered = wanted.limits.within(wanted.budget.map(|budget| budget.cpus));
                let ours = [of(&wanted.limits), of(&lowered)];
                back = slices::without_ours(back, &ours, &|name| slices::is_told(user.uid, name));
            }
            user.place = (!assignments.is_empty()).then_some(LimitedPlace::Slice(back));
            // The place is kept before systemd is told, as for a fence.
            files::write(&config.run_dir, user).map_err(|error| error.to_string())?;
        }
        let back = match &user.place {
            Some(LimitedPlace::Slice(back)) => back.clone(),
            _ => Vec::new(),
        };
        // These values are never right. So if systemd refuses, the next look tries again, and the values from before stay known.
        user.set = set.iter().map(|name| format!("{name}=?")).collect();
        slices::set(&systemctl, user.uid, &slices::within(&assignments, &back))?;
        said(user.uid, limits);
        user.set = assignments;
        Ok(())
    }

    /// Tells the log and the user what has changed.
    fn say(&self, user: &mut LoginUser, step: Option<BudgetStep>) {
        let Some(budget) = self.wanted.budget else {
            user.is_told = false;
            return;
        };
        let (name, window) = (user_name(user.uid), clock(self.config.login_window));
        let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let (time, cpus, until) = (clock(budget.time), budget.cpus.in_words(), user.until.clone().unwrap_or_default());
        match step {
            Some(BudgetStep::Begin) if user.is_observed => {
                log::warn!(
                    "{name} has used {time} of CPU time within {window} (LoginBudget); Mode=observe: nothing is limited"
                );
            }
            Some(BudgetStep::Begin) => {
                log::warn!(
                    "{name} has used {time} of CPU time within {window} (LoginBudget), and has {cpus} until {until}"
                );
            }
            Some(BudgetStep::End) => log::info!("{name} has the whole login limits again"),
            None => {}
        }
        if user.is_observed || user.is_told == user.used.is_limited() {
            return;
        }
        user.is_told = user.used.is_limited();
        let lines = if user.is_told {
            [
                format!("jobfence: you have used {time} of CPU time on {node} within {window}."),
                format!("All your processes on {node} together have {cpus} until {until}."),
            ]
        } else {
            let has = user.limits.as_ref().map_or("are not limited".to_owned(), |limits| format!("have {limits}"));
            [
                format!("jobfence: you have {time} of CPU time on {node} within {window} again."),
                format!("All your processes on {node} together {has}."),
            ]
        };
        match terminals::tell(&self.host.proc, user.uid, &lines) {
            Ok(count) => log::debug!("{name} was told at {count} terminals"),
            Err(why) => log::error!("cannot tell {name} of the login limits: {why}"),
        }
    }
}

fn said(uid: u32, limits: &UserLimits) {
    let limits = limits.in_words().unwrap_or_else(|| "none".to_owned());
    log::info!("the login limits of {} are now: {limits}", user_name(uid));
}

/// The limits that were set, in words that can be compared. The first word names the kinds of limits: a fence can change no others.
fn words(limits: &UserLimits, mode: Mode) -> Vec<String> {
    let kinds = [
        ("observed", mode != Mode::Enforce),
        ("memory", limits.memory.is_some()),
        ("processes", limits.processes.is_some()),
        ("io", !limits.io.is_empty()),
    ];
    let kinds = kinds.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
    let of_enforced = limits.in_words().filter(|_| mode == Mode::Enforce);
    [kinds].into_iter().chain(of_enforced).collect()
}

/// The time this many seconds from now, as people of this node write it.
fn moment(seconds: f64) -> String {
    let when = utc(SystemTime::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default());
    LocalTime::from_moment(&when).map_or(when, |local| format!("{} {}", local.date, local.clock))
}
