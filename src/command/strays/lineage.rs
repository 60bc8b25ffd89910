// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds out whether a process is a scheduler's: a daemon of a scheduler has started it, or it is in the cgroup of such a daemon's unit,
//! which no user can enter.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use jobfence::cgroup::layout::Hierarchy;
use jobfence::cgroup::membership::Membership;
use jobfence::host::Host;
use jobfence::sys::process::{self, Owner};

use super::accounts::StrayAccounts;
use crate::schedulers;

/// The name of jobfence's own program, which some schedulers start before the job's program.
const OURS: &str = "jobfence";

/// The longest way from a process to init that is followed. No real one is that long.
const LONGEST: usize = 4096;

/// How often the way up is tried again, if a process on it ends meanwhile.
const TRIES: usize = 3;

/// What is known of the processes of one moment and of their parents.
pub struct Lineage<'a> {
    host: &'a Host,
    accounts: &'a StrayAccounts<'a>,
    /// Whether a process is a daemon, or has one above it, for each process that was looked at.
    known: RefCell<BTreeMap<Owner, bool>>,
    /// The cgroups of daemons.
    places: RefCell<Vec<Membership>>,
    /// Whether a daemon was seen that starts jobs on this node.
    has_nodes_daemon: Cell<bool>,
    /// A scheduler whose jobs may be taken for strays.
    unsure: Cell<Option<&'static str>>,
    /// The cgroups of the first process. A daemon that is in the same ones cannot be told by them.
    first: Option<Membership>,
}

impl<'a> Lineage<'a> {
    pub fn new(host: &'a Host, accounts: &'a StrayAccounts<'a>) -> Self {
        let first = Membership::read(&host.proc, 1).ok();
        Self {
            host,
            accounts,
            known: RefCell::default(),
            places: RefCell::default(),
            has_nodes_daemon: Cell::new(false),
            unsure: Cell::new(None),
            first,
        }
    }

    /// Notes a daemon's cgroups, if the process is one.
    pub fn note(&self, pid: i32, place: &Membership) {
        let daemons = || schedulers::ALL.iter().flat_map(|part| part.daemons());
        if !self.is_daemon(pid, daemons()) {
            return;
        }
        if !self.places.borrow().contains(place) {
            self.places.borrow_mut().push(place.clone());
        }
        for part in schedulers::ALL {
            // A daemon that starts jobs must have the whole name: slurmdbd is not slurmd.
            let is_whole =
                |name: &&&str| process::program(&self.host.proc, pid).is_some_and(|it| is_version(&it, name));
            if self.is_daemon(pid, part.daemons().first().into_iter().filter(is_whole)) {
                self.has_nodes_daemon.set(true);
                if !part.tells_strays() {
                    self.unsure.set(Some(part.name()));
                }
            }
        }
    }

    /// Whether a daemon was seen that starts jobs on this node.
    pub fn has_nodes_daemon(&self) -> bool {
        self.has_nodes_daemon.get()
    }

    /// The scheduler of this node whose jobs may be taken for strays, if there is one.
    pub fn unsure(&self) -> Option<&'static str> {
        self.unsure.get()
    }

    /// Whether the process runs the program of a daemon for a system account. The name alone is no proof: a user can give it to any
    /// program, and by a link also to a set-user-ID program.
    fn is_daemon<'n>(&self, pid: i32, mut names: impl Iterator<Item = &'n &'static str>) -> bool {
        let proc = &self.host.proc;
        process::program(proc, pid).is_some_and(|program| names.any(|name| program.starts_with(name)))
            && process::uid(proc, pid).is_some_and(|uid| self.accounts.is_systems(uid))
            && !process::is_contained(proc, pid)
    }

    /// Whether a daemon, or what a daemon has started, has started the process. The answer is `true` if that cannot be seen.
    pub fn is_of_a_daemon(&self, id: Owner) -> bool {
        (0..TRIES).find_map(|_| self.walk(id)).unwrap_or(true)
    }

    /// Follows the parents. `None`: a process on the way has ended, and its children have another parent now.
    fn walk(&self, id: Owner) -> Option<bool> {
        let proc = &self.host.proc;
        let (mut way, mut here) = (Vec::new(), id.pid);
        let mut start = id.start;
        let daemons = || schedulers::ALL.iter().flat_map(|part| part.daemons()).chain([&OURS]);
        let found = loop {
            if here <= 1 {
                break false;
            }
            let this = match process::of(proc, here) {
                // A parent that is younger than its child is another process with that number.
                Ok(Some(this)) if this.id.start <= start => this,
                Ok(_) => return None,
                Err(_) => break true,
            };
            if let Some(known) = self.known.borrow().get(&this.id) {
                break *known;
            }
            if way.len() >= LONGEST || self.is_daemon(here, daemons()) {
                break true;
            }
            way.push(this.id);
            (here, start) = (this.parent, this.id.start);
        };
        self.known.borrow_mut().extend(way.into_iter().map(|id| (id, found)));
        Some(found)
    }

    /// Whether the process is in the cgroup of a daemon.
    pub fn is_in_a_daemons_cgroup(&self, place: &Membership) -> bool {
        let places = self.places.borrow();
        self.host.layout.hierarchies.iter().any(|hierarchy| {
            place.path_in(hierarchy).is_some_and(|path| {
                places.iter().filter_map(|daemon| self.telling(daemon, hierarchy)).any(|daemon| is_below(path, daemon))
            })
        })
    }

    /// The daemon's cgroup, if only the daemon's own processes can be in it.
    fn telling<'d>(&self, daemon: &'d Membership, hierarchy: &Hierarchy) -> Option<&'d str> {
        let path = daemon.path_in(hierarchy)?;
        let first = self.first.as_ref().and_then(|first| first.path_in(hierarchy)).unwrap_or("/");
        // An administrator may have started the daemon from a session, or by a program that starts users' sessions, too. Only the cgroup of
        // a service is sure.
        let is_units = path.ends_with(".service") && !path.split('/').any(|name| name == "user.slice");
        (is_units && !is_below(first, path)).then_some(path)
    }
}

/// Whether a path is the other one, or is below it.
fn is_below(path: &str, above: &str) -> bool {
    let above = above.trim_end_matches('/');
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a program has this name, with or without a version or a suffix.
fn is_version(program: &str, name: &str) -> bool {
    program.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_itself_and_below_the_root() {
        assert!(is_below("/a/b", "/a") && is_below("/a", "/a") && is_below("/a", "/") && is_below("/", "/"));
        assert!(!is_below("/ab", "/a") && !is_below("/", "/a"));
    }

    #[test]
    fn a_longer_name_is_another_program() {
        let is = |program| is_version(program, "slurmd");
        assert_eq!(["slurmd", "slurmd-23.11", "slurmdbd", "slurm"].map(is), [true, true, false, false]);
    }
}
