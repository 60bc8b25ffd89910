// SPDX-License-Identifier: GPL-2.0-or-later
//! When `jobfence hold` does something with strays.
//!
//! The time counts for a user, and not for a process: otherwise one that starts another and ends, again and again, would never have been
//! there long enough. It begins anew once two looks in a row have found nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jobfence::config::{Config, Loaded, Mode, StraysAction};
use jobfence::host::Host;
use jobfence::sys::process::Owner;

use super::accounts::StrayAccounts;
use super::adopt::adopt;
use super::containers::StrayContainer;
use super::ending;
use super::figures::StraysFigures;
use super::search::{FoundStrays, Stray, StraysSearch};
use crate::table::printable;

/// The shortest and the longest time between two looks. In between it is a quarter of `StraysGrace`.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(15);

/// How long all that is done in a look may take, for all users together: `jobfence hold` has other work. The next look does the rest.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most processes that are named in a line of the log.
const MOST_NAMED: usize = 5;

/// The most rounds of adoption in one look. A round that has adopted a process is followed by another, since the process may have started
/// others.
const MOST_ROUNDS: usize = 10;

/// What `jobfence hold` knows of strays.
#[derive(Default)]
pub struct StraysWatch {
    /// When the next look is due. `None`: at once.
    next: Option<Instant>,
    users: BTreeMap<u32, StraysClock>,
    /// When each container in no fence was seen first, and whether that was reported.
    containers: BTreeMap<String, (Instant, bool)>,
    /// The first user of the next look: the first one for whom the last look had no time.
    turn: u32,
    figures: StraysFigures,
    said: Option<String>,
}

/// How long a user has had strays.
struct StraysClock {
    action: StraysAction,
    since: Instant,
    /// Whether the last look has found no stray of this user.
    is_missed: bool,
    is_reported: bool,
    /// When the first stray got SIGTERM.
    asked: Option<Instant>,
    /// The strays that got SIGTERM.
    signalled: BTreeSet<Owner>,
    /// The failures that were logged.
    said: BTreeSet<String>,
}

impl StraysClock {
    fn new(action: StraysAction) -> Self {
        Self {
            action,
            since: Instant::now(),
            is_missed: false,
            is_reported: false,
            asked: None,
            signalled: BTreeSet::new(),
            said: BTreeSet::new(),
        }
    }

    fn complain(&mut self, what: String) {
        if self.said.len() < 100 && self.said.insert(what.clone()) {
            log::error!("{what}");
        }
    }
}

/// Whether anything is to be done with strays on this node.
fn is_on(config: &Config, loaded: Option<&Loaded>) -> bool {
    let mut in_sections = loaded.into_iter().flat_map(Loaded::sections).flat_map(|(_, settings)| settings);
    config.mode != Mode::Off
        && (config.strays != StraysAction::Off || in_sections.any(|setting| setting.key().name == "Strays"))
}

impl StraysWatch {
    /// The time until the next look. `None`: there will be none.
    pub fn wait(&self, config: &Config, loaded: Option<&Loaded>) -> Option<Duration> {
        is_on(config, loaded)
            .then(|| self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())))
    }

    /// The counts for the metrics. `None`: the key is off.
    pub fn figures(&self, config: &Config, loaded: Option<&Loaded>) -> Option<&StraysFigures> {
        is_on(config, loaded).then_some(&self.figures)
    }

    /// Looks if that is due, and does what is due.
    pub fn look(&mut self, config: &Config, loaded: Option<&Loaded>) {
        if !is_on(config, loaded) {
            *self = Self::default();
            return;
        }
        if self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let done = Host::read_what_there_is(config).and_then(|(host, _)| self.look_at(&host, (config, loaded)));
        self.next = Some(Instant::now() + (config.strays_grace / 4).clamp(SHORTEST, LONGEST));
        let error = done.err().map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|error| self.said.as_ref() != Some(*error)) {
            log::error!("cannot look for processes in no fence: {error}");
        }
        self.said = error;
    }

    fn look_at(&mut self, host: &Host, which: (&Config, Option<&Loaded>)) -> jobfence::error::Result<()> {
        let (config, loaded) = which;
        let accounts = StrayAccounts::new(config, loaded);
        let search = StraysSearch::new(host, which, &accounts);
        let FoundStrays { all, containers, doubt, is_whole, .. } = search.find()?;
        self.report_containers(config, containers, is_whole);
        let mut by_user: BTreeMap<u32, Vec<Stray>> = BTreeMap::new();
        for stray in all.into_iter().filter(|stray| stray.action().is_some()) {
            by_user.entry(stray.uid).or_default().push(stray);
        }
        let counts = by_user.values().filter_map(|all| Some((all.first()?.user.clone(), all.len())));
        self.figures.by_user = counts.collect();
        self.users.retain(|uid, clock| {
            let is_here = by_user.contains_key(uid) || !is_whole;
            is_here || !std::mem::replace(&mut clock.is_missed, true)
        });
        let deadline = Instant::now() + PATIENCE;
        let others = by_user.split_off(&std::mem::take(&mut self.turn));
        for (uid, strays) in others.into_iter().chain(by_user) {
            if Instant::now() >= deadline {
                self.turn = uid;
                break;
            }
            let Some(wanted) = strays.first().and_then(Stray::action) else { continue };
            let action = if doubt.is_some() { StraysAction::Report } else { wanted };
            let clock = self.users.entry(uid).or_insert_with(|| StraysClock::new(action));
            if clock.action != action {
                *clock = StraysClock::new(action);
            }
            clock.is_missed = false;
            if clock.since.elapsed() < config.strays_grace {
                continue;
            }
            let left = doubt.as_ref().filter(|_| wanted != StraysAction::Report);
            match action {
                StraysAction::Off => {}
                StraysAction::Report => report(clock, &strays, left),
                StraysAction::Adopt => {
                    self.figures.adopted += adopt_all((host, config), (&search, deadline), clock, uid, strays);
                }
                StraysAction::Kill => {
                    let grace = config.strays_grace;
                    self.figures.ended += end(host, (&search, deadline), clock, (uid, grace), &strays);
                }
            }
        }
        Ok(())
    }
}

impl StraysWatch {
    /// Says of each container once that it is in no fence, after the time that users have, too.
    fn report_containers(&mut self, config: &Config, found: Vec<StrayContainer>, is_whole: bool) {
        let found = if config.strays == StraysAction::Off { Vec::new() } else { found };
        self.figures.containers = found.len();
        self.containers.retain(|id, _| !is_whole || found.iter().any(|container| container.id == *id));
        for container in found {
            let (since, is_reported) = self.containers.entry(container.id.clone()).or_insert((Instant::now(), false));
            if since.elapsed() >= config.strays_grace && !std::mem::replace(is_reported, true) {
                log::warn!("a container is in no fence (Strays in jobfence.conf): {}", container.in_words());
            }
        }
    }
}

/// Says once that a user has strays. `left`: why nothing more is done.
fn report(clock: &mut StraysClock, strays: &[Stray], left: Option<&String>) {
    if !std::mem::replace(&mut clock.is_reported, true) {
        let left = left.map(|why| format!("; nothing more is done, since {why}")).unwrap_or_default();
        log::warn!("{} in no fence (Strays in jobfence.conf): {}{left}", of_user(strays, ["is", "are"]), named(strays));
    }
}

/// Adopts all strays, and those that they have started meanwhile. Returns how many.
fn adopt_all(
    (host, config): (&Host, &Config),
    (search, deadline): (&StraysSearch<'_>, Instant),
    clock: &mut StraysClock,
    uid: u32,
    mut strays: Vec<Stray>,
) -> u64 {
    let (mut adopted, mut last) = (Vec::new(), String::new());
    for _ in 0..MOST_ROUNDS {
        let before = adopted.len();
        for stray in strays.iter().take_while(|_| Instant::now() < deadline) {
            if !search.is_still(stray, StraysAction::Adopt) {
                continue;
            }
            match adopt(host, config, (stray.id, uid)) {
                Ok(said) => {
                    last = said;
                    adopted.push(stray.clone());
                }
                Err(_) if !stray.id.is_alive(&host.proc).unwrap_or(true) => {}
                Err(error) => clock.complain(format!("processes of {} stay in no fence: {error}", stray.user)),
            }
        }
        if adopted.len() == before || Instant::now() >= deadline {
            break;
        }
        let Ok(found) = search.find() else { break };
        strays = if found.doubt.is_none() { found.all } else { Vec::new() };
        strays.retain(|stray| stray.uid == uid && stray.action() == Some(StraysAction::Adopt));
    }
    if !adopted.is_empty() {
        let were = of_user(&adopted, ["was", "were"]);
        log::warn!("{were} in no fence (Strays in jobfence.conf), and went into a job: {}; {last}", named(&adopted));
    }
    u64::try_from(adopted.len()).unwrap_or(0)
}

/// Sends SIGTERM to strays that have not got it, and SIGKILL to all that are left after the time. Returns how many got a signal.
fn end(
    host: &Host,
    (search, deadline): (&StraysSearch<'_>, Instant),
    clock: &mut StraysClock,
    (uid, grace): (u32, Duration),
    strays: &[Stray],
) -> u64 {
    let user = strays.first().map(|stray| stray.user.clone()).unwrap_or_default();
    if clock.asked.is_some_and(|asked| asked.elapsed() >= grace) {
        match ending::kill(host, search, uid, deadline) {
            Ok(0) => {}
            Ok(count) => {
                log::warn!("{} of {user} got SIGKILL: they stayed in no fence after SIGTERM", processes(count));
                // Later strays have the whole time, too.
                *clock = StraysClock::new(clock.action);
                return u64::try_from(count).unwrap_or(0);
            }
            Err(error) => clock.complain(format!("processes of {user} in no fence cannot be killed: {error}")),
        }
        return 0;
    }
    let mut sent = Vec::new();
    for stray in strays.iter().take_while(|_| Instant::now() < deadline) {
        if clock.signalled.contains(&stray.id) {
            continue;
        }
        match ending::ask_to_end(host, search, stray) {
            Ok(false) => {}
            Ok(true) => {
                clock.asked.get_or_insert_with(Instant::now);
                clock.signalled.insert(stray.id);
                sent.push(stray.clone());
            }
            Err(error) => clock.complain(format!("a process of {user} in no fence cannot be sent SIGTERM: {error}")),
        }
    }
    if !sent.is_empty() {
        log::warn!(
            "{} in no fence (Strays in jobfence.conf), and got SIGTERM: {}",
            of_user(&sent, ["was", "were"]),
            named(&sent)
        );
    }
    u64::try_from(sent.len()).unwrap_or(0)
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// `2 processes of alice are`.
fn of_user(strays: &[Stray], [one, several]: [&str; 2]) -> String {
    let user = strays.first().map(|stray| stray.user.as_str()).unwrap_or_default();
    format!("{} of {user} {}", processes(strays.len()), if strays.len() == 1 { one } else { several })
}

fn named(strays: &[Stray]) -> String {
    let one = |stray: &Stray| format!("{} {} in {}", stray.id.pid, printable(&stray.name), printable(&stray.cgroup));
    let mut all: Vec<String> = strays.iter().take(MOST_NAMED).map(one).collect();
    if let Some(more) = strays.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        all.push(format!("{more} more"));
    }
    all.join(", ")
}
