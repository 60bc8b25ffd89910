// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the processes of a step without a fence, through `/proc`, since there is no cgroup to ask.
//!
//! A process belongs to the step if its daemon started it, if a process of the step did, if it is in a session or process group that a
//! process of the step has begun, or if it bears the step's mark in its environment (`JOBFENCE_STEP`). A process that leaves its parent
//! is known only if it was seen before: `jobfence hold` looks again and again, and records what it has seen. A process whose real user
//! is not the job's is never touched, and root's processes are not tracked.
//!
//! Only jobfence's own commands read environments, never a daemon of the scheduler's: the kernel makes the reader wait while the
//! process is about to map memory, and that can be for ever (a file system that does not answer).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use super::record::{Tracked, TrackedRecords};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::membership::Membership;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::scheduler::{Placement, Scheduler, placement};
use crate::sorted;
use crate::sys::process::{self, Owner, Process};

/// The variable in a task's environment that tells its step.
pub const VARIABLE: &str = "JOBFENCE_STEP";

/// Its value: the boot and the step daemon. Numbers of jobs and steps are used again, these are not.
pub fn mark(boot_id: &str, owner: Owner) -> String {
    format!("{boot_id}/{}/{}", owner.pid, owner.start)
}

/// The step daemon of this boot that a mark names.
pub fn marked(mark: &str, boot_id: &str) -> Option<Owner> {
    let (pid, start) = mark.strip_prefix(boot_id)?.strip_prefix('/')?.split_once('/')?;
    Some(Owner { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

/// Processes of other steps, whatever is in their environment.
#[derive(Debug, Clone, Copy)]
pub struct Others<'a> {
    /// The processes that `of_living` returns.
    pub living: &'a BTreeSet<Owner>,
    /// The schedulers: a process below one of their step daemons, or where one keeps its tasks, is another step's.
    pub schedulers: &'a [&'static dyn Scheduler],
}

impl Tracked {
    /// The step's processes that live now; some may never have been seen. With `others`, environments are read (see above) until the
    /// deadline, except those of other living steps' processes (`of_living`). An error that may hide more is put into `unseen`.
    pub fn processes(
        &self,
        host: &Host,
        others: Option<Others<'_>>,
        unseen: &mut Option<Error>,
        deadline: Instant,
    ) -> Result<Vec<Owner>> {
        let mut all = process::all(&host.proc)?;
        if others.is_some() {
            process::in_turn(&mut all, &host.proc);
        }
        let mark = mark(&self.boot_id, self.owner);
        let unread = RefCell::new(None);
        let is_marked = |process: &Process| {
            !others.is_some_and(|others| is_another_steps(host, others, process))
                && !is_fenced(host, process.id.pid)
                && match process::environment(&host.proc, process.id.pid, VARIABLE, deadline) {
                    Ok(found) => found.as_deref() == Some(&mark),
                    Err(error) => {
                        unread.replace(Some(error));
                        false
                    }
                }
                && !others.is_some_and(|others| is_in_a_step(host, others.schedulers, process.id.pid))
        };
        let is_marked: Option<&dyn Fn(&Process) -> bool> = if others.is_some() { Some(&is_marked) } else { None };
        let uid = |process: &Process| process::uid(&host.proc, process.id.pid);
        let owner = (self.owner, process::session_of(&host.proc, self.owner));
        let found = members(&all, owner, &self.seen, |process| uid(process) == Some(self.uid), is_marked);
        *unseen = unread.into_inner();
        Ok(found)
    }

    /// Ends the step's processes, until the deadline; returns how many. Also fails if an environment could not be read: the step's
    /// record must stay until then.
    pub fn end(&self, host: &Host, others: Option<Others<'_>>, deadline: Instant) -> Result<usize> {
        let (mut seen, mut unseen) = (self.clone(), None);
        // A process that was found leads to its children also after it has ended.
        let ended = process::end_all(&host.proc, || seen.look(host, others, &mut unseen, deadline), deadline)?;
        unseen.map_or(Ok(ended), Err)
    }

    /// As `processes`, and adds new ones to `seen`.
    pub(super) fn look(
        &mut self,
        host: &Host,
        others: Option<Others<'_>>,
        unseen: &mut Option<Error>,
        deadline: Instant,
    ) -> Result<Vec<Owner>> {
        let found = self.processes(host, others, unseen, deadline)?;
        self.seen.extend(found.iter().copied());
        Ok(found)
    }
}

/// Whether a living step daemon is above a process: then the process is that one's, whatever is in its environment. A job's environment
/// goes into the jobs that it submits, whose daemons need not have jobfence loaded.
pub fn has_daemon(host: &Host, schedulers: &[&dyn Scheduler], process: &Process) -> bool {
    let is_daemon = |pid| schedulers.iter().any(|scheduler| scheduler.is_daemon(&host.proc, pid));
    process::any_above(&host.proc, process, |above| is_daemon(above).then_some(true))
}

fn is_another_steps(host: &Host, others: Others<'_>, process: &Process) -> bool {
    is_of(host, others.living, process) || has_daemon(host, others.schedulers, process)
}

/// Whether a process is in a fence, or in a scheduler's directory of a step that has a daemon. That tells more than its environment,
/// which a script may have from anywhere. `true` if it cannot be seen. (A dead step's fence is its janitor's.)
pub fn is_in_a_step(host: &Host, schedulers: &[&'static dyn Scheduler], pid: i32) -> bool {
    let Ok(member) = Membership::read(&host.proc, pid) else { return true };
    host.layout
        .hierarchies
        .iter()
        .any(|hierarchy| is_in_ours(host, &member, hierarchy) || is_among_tasks(host, schedulers, &member, hierarchy))
}

/// Whether a process is in a fence, which is the cheap part of `is_in_a_step`. `true` if it cannot be seen.
pub fn is_fenced(host: &Host, pid: i32) -> bool {
    Membership::read(&host.proc, pid)
        .map_or(true, |member| host.layout.hierarchies.iter().any(|hierarchy| is_in_ours(host, &member, hierarchy)))
}

fn is_in_ours(host: &Host, member: &Membership, hierarchy: &Hierarchy) -> bool {
    let below = member.path_in(hierarchy).and_then(|path| hierarchy.below_mount(path));
    let in_ours = below.and_then(|below| below.strip_prefix(&host.base));
    in_ours.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether the process is where a scheduler keeps the tasks of a step, and a step daemon lives there, too.
fn is_among_tasks(
    host: &Host,
    schedulers: &[&'static dyn Scheduler],
    member: &Membership,
    hierarchy: &Hierarchy,
) -> bool {
    let Some(found) = placement(schedulers, member, hierarchy).filter(|found| found.is_tasks) else { return false };
    let scheduler = found.scheduler;
    // On v1 the daemon is in the job's directory.
    let is_here = |daemon: &Placement| match hierarchy.version {
        Version::V1 => daemon.job == found.job,
        Version::V2 => daemon.step == found.step,
    };
    let Ok(names) = host.proc.list(true) else { return true };
    names.iter().filter_map(|name| name.parse().ok()).any(|pid| {
        scheduler.is_daemon(&host.proc, pid)
            && Membership::read(&host.proc, pid)
                .is_ok_and(|daemon| scheduler.placement(&daemon, hierarchy).is_some_and(|own| is_here(&own)))
    })
}

/// The processes that belong to a step: see the beginning of this file.
fn members(
    all: &[Process],
    (owner, session): (Owner, Option<i32>),
    seen: &BTreeSet<Owner>,
    is_users: impl Fn(&Process) -> bool,
    is_marked: Option<&dyn Fn(&Process) -> bool>,
) -> Vec<Owner> {
    let mut by_pid: Vec<&Process> = all.iter().collect();
    sorted::sort_by_key(&mut by_pid, |process| process.id.pid);
    let find =
        |pid: i32| by_pid.binary_search_by_key(&pid, |process| process.id.pid).ok().and_then(|at| by_pid.get(at));
    let is = |id: Owner| find(id.pid).is_some_and(|process| process.id == id);
    let owner_lives = is(owner);
    // The numbers that its sessions and groups can have: while a process is in one, its number is given to no new process.
    let mut begun = sorted::set(seen.iter().map(|one| one.pid).chain([owner.pid]));
    let mut found: BTreeSet<Owner> = BTreeSet::new();
    // The daemon has a session of its own.
    let mut groups: BTreeSet<i32> = sorted::set(session);
    let mut rest: Vec<&Process> = all.iter().filter(|process| process.id != owner && process.id.pid > 1).collect();
    let mut is_first = true;
    loop {
        let before = found.len();
        rest.retain(|process| {
            let is_child = find(process.parent).is_some_and(|parent| found.contains(&parent.id))
                || owner_lives && process.parent == owner.pid;
            let belongs = is_child
                || seen.contains(&process.id)
                || groups.contains(&process.session)
                || groups.contains(&process.group)
                || is_first && is_marked.is_some_and(|is_marked| is_users(process) && is_marked(process));
            if !belongs {
                return true;
            }
            if is_users(process) {
                found.insert(process.id);
                begun.insert(process.id.pid);
                groups.extend([process.session, process.group].iter().filter(|number| begun.contains(number)));
            }
            false
        });
        is_first = false;
        if found.len() == before {
            return found.into_iter().collect();
        }
    }
}

/// The processes that are known to be of a step without a fence whose daemon lives.
pub fn of_living(host: &Host, run_dir: &Path) -> Result<BTreeSet<Owner>> {
    let mut found = BTreeSet::new();
    for tracked in TrackedRecords::existing(run_dir)?.map_or(Ok(Vec::new()), |records| records.list())? {
        let is_here = tracked.boot_id == host.boot_id && tracked.pid_namespace == host.pid_namespace;
        if is_here && tracked.owner.is_alive(&host.proc)? {
            found.extend(tracked.seen);
        }
    }
    Ok(found)
}

/// Whether a process is one of these, or has come from one of them since they were seen. In doubt `true`, since the process would be
/// ended otherwise.
pub fn is_of(host: &Host, others: &BTreeSet<Owner>, process: &Process) -> bool {
    let has = |pid| others.range(Owner { pid, start: 0 }..=Owner { pid, start: u64::MAX }).next().is_some();
    others.contains(&process.id)
        || has(process.session)
        || has(process.group)
        || process::any_above(&host.proc, process, |above| has(above).then_some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: i32) -> Owner {
        Owner { pid, start: 100 }
    }

    fn process(pid: i32, parent: i32, group: i32, session: i32) -> Process {
        Process { id: owner(pid), parent, group, session }
    }

    /// The daemon is 10, and 20 is a task of it.
    fn found(all: &[Process], seen: &[Owner], users: &[i32], marked: &[i32]) -> Vec<i32> {
        let seen = seen.iter().copied().collect();
        let is_marked = |process: &Process| marked.contains(&process.id.pid);
        let lives = all.iter().any(|process| process.id == owner(10));
        let found =
            members(all, (owner(10), lives.then_some(10)), &seen, |p| users.contains(&p.id.pid), Some(&is_marked));
        found.iter().map(|one| one.pid).collect()
    }

    const DAEMON: [i32; 3] = [1, 10, 10];

    #[test]
    fn parents_sessions_groups_and_marks_lead_to_all_of_a_step() {
        let daemon = process(10, DAEMON[0], DAEMON[1], DAEMON[2]);
        let task = process(20, 10, 20, 10);
        let all = [
            process(1, 0, 1, 1),
            daemon,
            task,
            process(21, 20, 20, 10),
            // A process with a session of its own, and one in that session whose parent has ended.
            process(22, 21, 22, 22),
            process(23, 1, 23, 22),
            // In the task's group, and without its parent.
            process(24, 1, 20, 10),
            // Found by its mark alone.
            process(25, 1, 25, 25),
            process(26, 25, 26, 26),
            // Its parent is gone, it has a group of its own, and it is still in the daemon's session.
            process(27, 1, 27, 10),
            // Another user's process, its child, and two that are unrelated.
            process(30, 20, 30, 30),
            process(31, 30, 31, 31),
            process(40, 1, 40, 40),
            process(41, 40, 40, 40),
        ];
        let users = [20, 21, 22, 23, 24, 25, 26, 27, 31, 40, 41];
        assert_eq!(found(&all, &[], &users, &[25]), [20, 21, 22, 23, 24, 25, 26, 27]);
        // The daemon is dead, and so is the task: only processes that were seen, or are marked, lead on.
        let rest: Vec<Process> = all[3..].to_vec();
        assert_eq!(found(&rest, &[], &users, &[]), Vec::<i32>::new());
        assert_eq!(found(&rest, &[owner(20), owner(24)], &users, &[]), [21, 22, 23, 24, 27]);
        assert_eq!(found(&rest[2..], &[owner(20), owner(24)], &users, &[]), [24, 27]);
        assert_eq!(found(&rest, &[owner(22)], &users, &[]), [22, 23]);
    }

    #[test]
    fn a_number_that_was_given_again_leads_to_nobody() {
        let again = Process { id: Owner { pid: 20, start: 999 }, ..process(20, 1, 20, 20) };
        let all = [again, process(50, 20, 20, 20)];
        assert_eq!(found(&all, &[owner(20)], &[20, 50], &[]), Vec::<i32>::new());
        // The same with the daemon's number.
        let again = Process { id: Owner { pid: 10, start: 999 }, ..process(10, 1, 10, 10) };
        assert_eq!(found(&[again, process(50, 10, 10, 10)], &[], &[10, 50], &[]), Vec::<i32>::new());
    }

    #[test]
    fn a_mark_is_of_one_boot_and_one_daemon() {
        let text = mark("b-1", owner(7));
        assert_eq!(marked(&text, "b-1"), Some(owner(7)));
        for wrong in ["", "b-1", "b-1/7", "b-1/x/1", "b-2/7/100"] {
            assert_eq!(marked(wrong, "b-1"), None, "{wrong}");
        }
    }
}
