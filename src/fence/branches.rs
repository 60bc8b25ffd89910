// SPDX-License-Identifier: GPL-2.0-or-later
//! The layout of jobfence's own directories, and the one walk through all of them: `BASE[/idle][/NODE]/uid_U/job_J/step_S`. Directories may
//! come and go during a walk.

use super::names::IDLE;
use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// One step's directory in one hierarchy.
pub(super) struct OwnStep<'a> {
    /// The directory above its levels: jobfence's own, or `idle` in that.
    pub base: &'a str,
    /// The names below, outermost first: `[node,] user, job, step`.
    pub levels: &'a [&'a str],
    /// The job's directory.
    pub job: &'a Dir,
}

/// Calls `each` for every step below `base`. `is_wanted` selects names of users' and jobs' directories. Errors that can hide more steps are
/// added to `unseen`. One directory of each level is open at a time.
pub(super) fn each_step(
    root: &Dir,
    base: &str,
    is_wanted: &dyn Fn(&str) -> bool,
    unseen: &mut Vec<Error>,
    each: &mut dyn FnMut(&OwnStep<'_>, &mut Vec<Error>),
) {
    let Some(top) = child(root, base, unseen) else { return };
    let mut walk = BranchWalk { base, is_wanted, unseen, each };
    walk.nodes(&top);
    if let Some(idle) = child(&top, IDLE, walk.unseen) {
        BranchWalk { base: &format!("{base}/{IDLE}"), ..walk }.nodes(&idle);
    }
}

struct BranchWalk<'w> {
    base: &'w str,
    is_wanted: &'w dyn Fn(&str) -> bool,
    unseen: &'w mut Vec<Error>,
    each: &'w mut dyn FnMut(&OwnStep<'_>, &mut Vec<Error>),
}

impl BranchWalk<'_> {
    /// A branch has directories of users, and of nodes if several daemons share the host.
    fn nodes(&mut self, branch: &Dir) {
        for name in children(branch, |name| name != IDLE && !name.starts_with("step_"), self.unseen) {
            if name.starts_with("uid_") {
                self.jobs(branch, &[], &name);
            } else if let Some(node) = child(branch, &name, self.unseen) {
                for user in children(&node, |name| name.starts_with("uid_"), self.unseen) {
                    self.jobs(&node, &[&name], &user);
                }
            }
        }
    }

    fn jobs(&mut self, parent: &Dir, above: &[&str], user: &str) {
        if !(self.is_wanted)(user) {
            return;
        }
        let Some(dir) = child(parent, user, self.unseen) else { return };
        let is_wanted = |name: &str| name.starts_with("job_") && (self.is_wanted)(name);
        for job in children(&dir, is_wanted, self.unseen) {
            let Some(dir) = child(&dir, &job, self.unseen) else { continue };
            for step in children(&dir, |name| name.starts_with("step_"), self.unseen) {
                let levels = &[above, &[user, &job, &step]].concat();
                (self.each)(&OwnStep { base: self.base, levels, job: &dir }, self.unseen);
            }
        }
    }
}

/// The wanted names among the directories in `dir`. An error is added to `unseen`; if `dir` is gone, there are none.
pub fn children(dir: &Dir, is_wanted: impl Fn(&str) -> bool, unseen: &mut Vec<Error>) -> Vec<String> {
    let mut names = found_or_noted(dir.list(true), unseen).unwrap_or_default();
    names.retain(|name| is_wanted(name));
    names
}

/// Opens one of these directories. Open one at a time: there may be more than this process may have descriptors.
pub fn child(dir: &Dir, name: &str, unseen: &mut Vec<Error>) -> Option<Dir> {
    found_or_noted(dir.child(name), unseen)
}

/// Returns what was found. `None`: it is gone, or there was an error, which is added to `unseen`.
pub fn found_or_noted<T>(what: Result<T>, unseen: &mut Vec<Error>) -> Option<T> {
    match what {
        Ok(what) => Some(what),
        Err(error) => {
            unseen.extend((!error.is_gone()).then_some(error));
            None
        }
    }
}
