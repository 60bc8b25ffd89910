// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the processes of users that are in no fence, and judges each.
//!
//! Most processes of a busy node are in fences, and of each of these only its cgroups are read. A process that ends while it is looked at
//! may have started another, so the list of processes is read again then.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jobfence::cgroup::mark;
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Config, Loaded, Mode, OnError, StraysAction, at_or_above};
use jobfence::error::{Error, Result};
use jobfence::host::Host;
use jobfence::record::tracked;
use jobfence::scheduler::placement;
use jobfence::schedulers::ALL;
use jobfence::sys::process::{self, Owner};
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstatat};
use nix::unistd::Pid;

use super::accounts::{StrayAccount, StrayAccounts};
use super::containers::{SeenContainers, StrayContainer, container_in};
use super::lineage::Lineage;
use super::namespaces::{HostNamespaces, NamespaceMaker};
use super::status::ProcessStatus;
use crate::schedulers;

/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the list of processes is read in one look.
const MOST_LISTS: usize = 20;

/// A process of a user that is in no fence.
#[derive(Debug, Clone)]
pub struct Stray {
    pub id: Owner,
    /// The user.
    pub uid: u32,
    pub user: String,
    /// The name that the process gives itself.
    pub name: String,
    /// Its cgroup in the hierarchy that tells most.
    pub cgroup: String,
    /// What the site wants done with it. The error says why nothing is done.
    pub judged: std::result::Result<StraysAction, String>,
}

impl Stray {
    /// What is to be done with it. `None`: nothing.
    pub fn action(&self) -> Option<StraysAction> {
        self.judged.as_ref().ok().copied()
    }
}

/// The result of one look.
pub struct FoundStrays {
    pub all: Vec<Stray>,
    pub containers: Vec<StrayContainer>,
    /// Why nothing is done to any process now.
    pub doubt: Option<String>,
    /// Whether all processes were looked at.
    pub is_whole: bool,
    /// Whether a daemon was seen that starts jobs on this node.
    pub has_nodes_daemon: bool,
}

/// The configuration in which all processes in no fence are to be put into one, whatever the site wants of strays.
pub fn adopting(config: &Config) -> Config {
    Config { strays: StraysAction::Adopt, ..config.clone() }
}

/// One look at the processes of this host.
pub struct StraysSearch<'a> {
    host: &'a Host,
    config: &'a Config,
    loaded: Option<&'a Loaded>,
    accounts: &'a StrayAccounts<'a>,
    lineage: Lineage<'a>,
    namespaces: Result<HostNamespaces>,
    /// Processes of jobs without a fence.
    tracked: Result<BTreeSet<Owner>>,
    /// The services of systemd that have processes of system accounts.
    services: RefCell<BTreeSet<String>>,
}

impl<'a> StraysSearch<'a> {
    pub fn new(
        host: &'a Host,
        (config, loaded): (&'a Config, Option<&'a Loaded>),
        accounts: &'a StrayAccounts<'a>,
    ) -> Self {
        Self {
            host,
            config,
            loaded,
            accounts,
            lineage: Lineage::new(host, accounts),
            namespaces: HostNamespaces::read(&host.proc),
            tracked: tracked::of_living(host, &config.run_dir),
            services: RefCell::default(),
        }
    }

    /// Looks at every process. An error: no process can be judged.
    pub fn find(&self) -> Result<FoundStrays> {
        if !self.host.has_cgroups() {
            return Err(Error::new("no cgroups can be seen, so no process is known to be in no fence"));
        }
        let deadline = Instant::now() + PATIENCE;
        let mut candidates: Vec<i32> = Vec::new();
        let mut seen: BTreeSet<i32> = BTreeSet::new();
        let mut containers = SeenContainers::new();
        let mut is_whole = true;
        for _ in 0..MOST_LISTS {
            let mut pids: Vec<i32> = self.host.proc.list(true)?.iter().filter_map(|name| name.parse().ok()).collect();
            pids.retain(|pid| !seen.contains(pid));
            // The youngest processes are the last ones, and may end first. So they are looked at first.
            pids.reverse();
            let mut has_vanished = false;
            for pid in pids {
                if Instant::now() >= deadline {
                    is_whole = false;
                    break;
                }
                seen.insert(pid);
                match self.is_candidate(pid, &mut containers) {
                    Ok(Some(true)) => candidates.push(pid),
                    Ok(Some(false)) => {}
                    Ok(None) | Err(_) => has_vanished = true,
                }
            }
            if !has_vanished || !is_whole {
                break;
            }
        }
        // A process that was not looked at could be a daemon.
        let doubt =
            if is_whole { self.doubt() } else { Some("not all processes could be looked at in time".to_owned()) };
        candidates.sort_unstable();
        process::in_turn(&mut candidates, &self.host.proc);
        let mut all = BTreeMap::new();
        for pid in candidates {
            if Instant::now() >= deadline {
                is_whole = false;
                break;
            }
            if let Some(stray) = self.judge(pid) {
                all.insert(stray.id, stray);
            }
        }
        let has_nodes_daemon = self.lineage.has_nodes_daemon();
        let containers = containers.into_iter().filter_map(|(id, pids)| self.container(&id, pids)).collect();
        Ok(FoundStrays { all: all.into_values().collect(), containers, doubt, is_whole, has_nodes_daemon })
    }

    /// The container, unless the site allows it or it is in a fence.
    fn container(&self, id: &str, pids: Vec<i32>) -> Option<StrayContainer> {
        let place = pids.iter().find_map(|pid| self.place(*pid).ok().flatten())?;
        let is_allowed = self.paths(&place).any(|path| at_or_above(&self.config.strays_allow, path).is_some());
        if is_allowed || self.is_placed(&place) || self.is_marked(&place) {
            return None;
        }
        StrayContainer::from_pids(self.host, id, pids, self.telling(&place))
    }

    /// Whether a process can be a stray at all. A scheduler's daemon is noted. `None`: the process is gone.
    fn is_candidate(&self, pid: i32, containers: &mut SeenContainers) -> Result<Option<bool>> {
        let Some(place) = self.place(pid)? else { return Ok(None) };
        if self.is_placed(&place) {
            return Ok(Some(false));
        }
        if let Some(id) = self.paths(&place).find_map(container_in) {
            containers.entry(id.to_owned()).or_default().push(pid);
        }
        let Some(status) = ProcessStatus::read(&self.host.proc, pid)? else { return Ok(None) };
        if self.accounts.is_systems(status.uid()) {
            self.lineage.note(pid, &place);
            self.services.borrow_mut().extend(self.paths(&place).filter_map(service_of).map(str::to_owned));
            return Ok(Some(false));
        }
        Ok(Some(true))
    }

    fn place(&self, pid: i32) -> Result<Option<Membership>> {
        match Membership::read(&self.host.proc, pid) {
            Ok(place) => Ok(Some(place)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a process with these cgroups is in a fence, or where a scheduler keeps jobs.
    fn is_placed(&self, place: &Membership) -> bool {
        self.host.layout.hierarchies.iter().any(|hierarchy| {
            let Some(path) = place.path_in(hierarchy) else { return false };
            let below = hierarchy.below_mount(path).and_then(|below| below.strip_prefix(&self.host.base));
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                || placement(ALL, place, hierarchy).is_some()
                // A user can choose names below user.slice.
                || !path.split('/').any(|name| name == "user.slice")
                    && schedulers::ALL.iter().any(|part| part.keeps(path))
        })
    }

    /// Whether a stray is still the same process, and the site still wants this done with it.
    pub fn is_still(&self, stray: &Stray, action: StraysAction) -> bool {
        let now = self.judge(stray.id.pid);
        now.is_some_and(|now| now.id == stray.id && now.uid == stray.uid && now.action() == Some(action))
    }

    /// The process as it is now, if it is a stray.
    pub fn judge(&self, pid: i32) -> Option<Stray> {
        let proc = &self.host.proc;
        let id = Owner::from_pid(proc, pid).ok().flatten()?;
        let place = self.place(pid).ok().flatten().filter(|place| !self.is_placed(place))?;
        let status = ProcessStatus::read(proc, pid).ok().flatten()?;
        if self.accounts.is_systems(status.uid()) {
            return None;
        }
        let (uid, judged) = match self.owner(pid, &status) {
            Ok((uid, account)) => (uid, self.wanted(id, &status, (&place, uid), &account)),
            Err(why) => (status.uid(), Err(why)),
        };
        let account = self.accounts.get(uid);
        let stray = Stray {
            id,
            uid,
            user: account.name.unwrap_or_else(|| uid.to_string()),
            name: status.name.clone(),
            cgroup: self.telling(&place),
            judged,
        };
        // If the process has become another user's meanwhile, what was read belongs to two.
        let same = Owner::from_pid(proc, pid) == Ok(Some(id))
            && ProcessStatus::read(proc, pid).is_ok_and(|now| now.is_some_and(|now| now.uids == status.uids));
        same.then_some(stray)
    }

    /// The user of the process. An error: that is not certain, and why.
    fn owner(&self, pid: i32, status: &ProcessStatus) -> std::result::Result<(u32, StrayAccount), String> {
        let uid = status.uid();
        if status.uids.iter().any(|uid| self.accounts.is_systems(*uid)) {
            return Err("it runs a set-user-ID program of a system account".to_owned());
        }
        let account = self.accounts.get(uid);
        let maker = self.namespaces.as_ref().map_err(ToString::to_string)?.maker(&self.host.proc, pid);
        match maker.map_err(|error| error.to_string())? {
            NamespaceMaker::Host if account.name.is_none() => Err("this node knows no account with its uid".to_owned()),
            NamespaceMaker::Host => Ok((uid, account)),
            NamespaceMaker::User(maker) if maker == uid && account.name.is_some() => Ok((uid, account)),
            // newuidmap(1) has lent the uid to the user.
            NamespaceMaker::User(maker) if !self.accounts.is_systems(maker) && account.name.is_none() => {
                let account = self.accounts.get(maker);
                match (&account.name, &account.action) {
                    (None, _) => Err("this node knows no account with its uid".to_owned()),
                    (_, Ok(StraysAction::Adopt)) => {
                        Err("it has a subordinate uid, and no job of its user has a place for that".to_owned())
                    }
                    _ => Ok((maker, account)),
                }
            }
            NamespaceMaker::User(_) => Err("its namespaces are another user's".to_owned()),
            NamespaceMaker::Another => {
                Err("root has made its namespaces: it can be a container's, or a service's".to_owned())
            }
        }
    }

    /// What is to be done with the process. An error: nothing is, and why.
    fn wanted(
        &self,
        id: Owner,
        status: &ProcessStatus,
        (place, uid): (&Membership, u32),
        account: &StrayAccount,
    ) -> std::result::Result<StraysAction, String> {
        let proc = &self.host.proc;
        if self.lineage.is_of_a_daemon(id) {
            return Err("a scheduler's daemon has started it, or what started it".to_owned());
        }
        if self.lineage.is_in_a_daemons_cgroup(place) {
            return Err("it is in the cgroup of a scheduler's daemon".to_owned());
        }
        // A site may run a service such as munged with a person's uid. The jobs of cron are in a service, too, but beside cron itself,
        // which is the system's.
        let services = self.services.borrow();
        if let Some(service) = self.paths(place).filter_map(service_of).find(|service| !services.contains(*service)) {
            return Err(format!("it is of {service}, which runs as a user"));
        }
        if self.is_marked(place) {
            return Err("it is in a fence of another CgroupBase".to_owned());
        }
        if self.is_user_manager(id.pid, (place, uid)) {
            return Err("it is the service manager of its user".to_owned());
        }
        let tracked = self.tracked.as_ref().map_err(|error| format!("jobs without a fence are not known: {error}"))?;
        let this = process::of(proc, id.pid).map_err(|error| error.to_string())?.ok_or("it has ended")?;
        if !tracked.is_empty() && tracked::is_of(self.host, tracked, &this) {
            return Err("it is a job's that runs without a fence".to_owned());
        }
        if status.tracer != 0 {
            let tracer = ProcessStatus::read(proc, status.tracer).ok().flatten();
            if tracer.is_none_or(|tracer| tracer.uids != status.uids) {
                return Err("a process that is not its user's traces it".to_owned());
            }
        }
        let allowed = self.paths(place).find_map(|path| at_or_above(&self.config.strays_allow, path));
        if let Some(allowed) = allowed {
            return Err(format!("StraysAllow has {allowed}"));
        }
        match account.action.clone()? {
            StraysAction::Off => Err(format!("Strays=off holds for uid {uid}")),
            action => Ok(action),
        }
    }

    /// Whether one of these cgroups, or one above it, has jobfence's mark. Only root can set the mark.
    fn is_marked(&self, place: &Membership) -> bool {
        self.host.layout.hierarchies.iter().any(|hierarchy| {
            let mut path = place.path_in(hierarchy).unwrap_or_default();
            while let Some((above, name)) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty()) {
                let dir = hierarchy.dir_of(&format!("{above}/{name}"));
                if dir.is_ok_and(|dir| !matches!(mark::get(&dir), Ok(None))) {
                    return true;
                }
                path = above;
            }
            false
        })
    }

    /// Whether the process is `systemd --user`, or the helper whose name is in brackets. It must be systemd's own program, and where
    /// pam_systemd puts it.
    fn is_user_manager(&self, pid: i32, (place, uid): (&Membership, u32)) -> bool {
        let scope = format!("/user@{uid}.service/init.scope");
        let program = |pid: i32| fstatat(&self.host.proc, format!("{pid}/exe").as_str(), AtFlags::empty());
        let is_first =
            |stat: FileStat| program(1).is_ok_and(|first| (first.st_dev, first.st_ino) == (stat.st_dev, stat.st_ino));
        self.paths(place).any(|path| path.ends_with(&scope)) && program(pid).is_ok_and(is_first)
    }

    fn paths<'p>(&'p self, place: &'p Membership) -> impl Iterator<Item = &'p str> {
        self.host.layout.hierarchies.iter().filter_map(|hierarchy| place.path_in(hierarchy))
    }

    /// The longest of its paths: in a hierarchy that nobody uses, all processes are at the top.
    fn telling(&self, place: &Membership) -> String {
        self.paths(place).max_by_key(|path| path.len()).unwrap_or("/").to_owned()
    }

    fn doubt(&self) -> Option<String> {
        if !self.lineage.has_nodes_daemon() {
            return Some("no daemon is seen that starts jobs on this node".to_owned());
        }
        if let Some(scheduler) = self.lineage.unsure() {
            return Some(format!("under {scheduler}, strays are only reported"));
        }
        if !matches!(process::pidfd_open(Pid::this()), Ok(Some(Some(_)))) {
            return Some("this kernel has no handles of processes (pidfd_open, from Linux 5.3 on)".to_owned());
        }
        doubt(self.config, self.loaded)
    }
}

/// The service of systemd whose cgroup this is. `None`: a user may have chosen the name.
fn service_of(path: &str) -> Option<&str> {
    if path.split('/').any(|name| name == "user.slice") {
        return None;
    }
    let end = path.find(".service/").map(|at| at + ".service".len());
    end.or_else(|| path.ends_with(".service").then_some(path.len())).and_then(|end| path.get(..end))
}

/// Why the configuration lets jobs run in no fence. `None`: it does not.
pub fn doubt(config: &Config, loaded: Option<&Loaded>) -> Option<String> {
    let of = |config: &Config| match (config.mode, config.on_error.general()) {
        (Mode::Off, _) => Some("Mode=off, so jobs run without a fence"),
        (Mode::Observe, _) => Some("Mode=observe"),
        (_, OnError::Warn) => Some("OnError=warn, so a job can run without a fence"),
        _ => None,
    };
    let in_a_section = || {
        loaded?.one_by_one().find_map(|candidate| {
            let why = of(&candidate.config)?;
            Some(format!("{why} ({})", candidate.sections.join(", ")))
        })
    };
    of(config).map(str::to_owned).or_else(in_a_section)
}

#[cfg(test)]
mod tests {
    use super::service_of;

    #[test]
    fn a_service_is_found_where_no_user_names_cgroups() {
        assert_eq!(service_of("/system.slice/munge.service"), Some("/system.slice/munge.service"));
        assert_eq!(service_of("/system.slice/a.service/b/c.service"), Some("/system.slice/a.service"));
        for other in ["/", "/user.slice/user-7.slice/user@7.service/app.slice/x.service", "/system.slice/a.scope/b"] {
            assert_eq!(service_of(other), None, "{other}");
        }
    }
}
