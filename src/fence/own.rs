// SPDX-License-Identifier: GPL-2.0-or-later
//! Our own tree: the directories of a step, made, killed and removed.

use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};

use super::{IDLE, in_mount};
use crate::cgroup::dir::Dir;
use crate::cgroup::kill::{self, Members};
use crate::cgroup::layout::{Hierarchy, Version};
use crate::cgroup::place::Membership;
use crate::error::{Error, Result};
use crate::host::{self, Host};

/// One step's directories in one hierarchy.
#[derive(Debug)]
pub struct Own {
    /// The hierarchy in which they are.
    pub hierarchy: Hierarchy,
    /// Ours, then its descendants as far as they could be made: [node,] user, job, step.
    pub dirs: Vec<Dir>,
    /// The name of the first, where that is a branch below our own directory, and goes with the last step in it.
    pub class: Option<&'static str>,
}

impl Own {
    /// The step's directory.
    pub fn step(&self) -> Option<&Dir> {
        self.dirs.last()
    }

    /// The job's directory.
    pub fn job(&self) -> Option<&Dir> {
        self.dirs.iter().rev().nth(1)
    }

    /// The directory of all the user's jobs.
    pub fn user(&self) -> Option<&Dir> {
        self.dirs.iter().rev().nth(2)
    }
}

/// Makes the directories of a step; the innermost must not exist, unless nobody has recorded it. `dirs` has those that were
/// opened, whether all of them could be or not. `class` is a branch below our own directory, in which they are then.
pub fn make_dirs(
    host: &Host,
    hierarchy: &Hierarchy,
    wanted: &[&'static str],
    class: Option<&str>,
    levels: &[String],
    dirs: &mut Vec<Dir>,
) -> Result<()> {
    const TRIES: usize = 20;
    let mut tries = 1;
    loop {
        dirs.clear();
        match try_dirs(host, hierarchy, wanted, class, levels, dirs) {
            // A parent that was empty a moment ago went away with the step that ended there.
            Err(error) if matches!(error.kernel_errno(), Some(Errno::ENOENT | Errno::ENODEV)) => {
                if tries < TRIES {
                    tries += 1;
                } else if dirs.is_empty() {
                    // Ours is missing, which has its own remedy.
                    return Err(error);
                } else {
                    return Err(
                        error.hint("somebody removes the step's directories while they are made: see who else does so")
                    );
                }
            }
            other => return other,
        }
    }
}

fn try_dirs(
    host: &Host,
    hierarchy: &Hierarchy,
    wanted: &[&'static str],
    class: Option<&str>,
    levels: &[String],
    dirs: &mut Vec<Dir>,
) -> Result<()> {
    let base = host.open_base(hierarchy, wanted)?;
    dirs.push(match class {
        Some(class) => {
            let (dir, new) = base.ensure_new(class)?;
            host::enable(&dir, hierarchy, wanted, new)?;
            host::fill(&base, &dir, hierarchy, true)?;
            dir
        }
        None => base,
    });
    let mut made = Vec::new();
    let last = levels.len().saturating_sub(1);
    for (depth, name) in levels.iter().enumerate() {
        let Some(parent) = dirs.last() else { break };
        let child = if depth < last {
            let (child, new) = parent.ensure_new(name)?;
            made.push(new);
            child
        } else {
            match parent.make(name) {
                // Its record is ours, so the step that left this directory has lost its own. Whoever is still in it may be
                // another slurmd's, which keeps its records elsewhere (in a container): it is not for us to kill. A cgroup
                // that was ever killed is not used again (kernels before 7.3 kill what is born in it).
                Err(error) if error.kernel_errno() == Some(Errno::EEXIST) => {
                    let stays = || error.clone().hint("processes live there, and no record says whose");
                    if parent.child(name).is_ok_and(|dir| is_inhabited(&dir, 0)) {
                        return Err(stays());
                    }
                    remove_below(parent, name, 0).map_err(|_| stays())?;
                    parent.make(name)?;
                }
                other => other?,
            }
            parent.child(name)?
        };
        // Those that belong to no one job have every CPU.
        host::fill(parent, &child, hierarchy, depth + 1 < last)?;
        dirs.push(child);
    }
    // From the top down, and after the step exists: from now on its parents cannot vanish.
    for (dir, new) in dirs.iter().skip(1).zip(made) {
        host::enable(dir, hierarchy, wanted, new)?;
    }
    Ok(())
}

/// Opens the directories of a recorded step as far as they exist; for the janitor.
pub fn open_existing(host: &Host, base: &str, levels: &[String]) -> Result<Leftovers> {
    let mut trees = Vec::new();
    for hierarchy in &host.layout.hierarchies {
        let mut dirs = vec![hierarchy.open()?];
        let path: Vec<&str> = base.split('/').chain(levels.iter().map(String::as_str)).collect();
        for name in &path {
            let Some(parent) = dirs.last() else { break };
            match parent.child(name) {
                Ok(dir) => dirs.push(dir),
                Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        // Only what lies below our own directory is of interest: [base, …levels].
        let above = base.split('/').count();
        if dirs.len() > above + 1 {
            let class = base.ends_with(&format!("/{IDLE}")).then_some(IDLE);
            trees.push(Own { hierarchy: hierarchy.clone(), dirs: dirs.split_off(above), class });
        }
    }
    Ok(Leftovers { trees, base: base.to_owned(), levels: levels.to_vec() })
}

/// What is left of a step.
pub struct Leftovers {
    pub(super) trees: Vec<Own>,
    base: String,
    levels: Vec<String>,
}

impl Leftovers {
    /// Kills and removes it; refuses to where this process itself is in it.
    pub fn remove(&self, host: &Host, deadline: Instant) -> Result<()> {
        let us = Membership::read(&host.proc, nix::unistd::getpid().as_raw())?;
        for tree in self.trees.iter().filter(|tree| tree.dirs.len() > self.levels.len()) {
            let step = in_mount(&tree.hierarchy, &format!("/{}/{}", self.base, self.levels.join("/")));
            if us.path_in(&tree.hierarchy).is_some_and(|path| path == step || path.starts_with(&format!("{step}/"))) {
                return Err(Error::new("this process is itself in the step that is to be removed:").value(step));
            }
        }
        remove(&self.trees.iter().collect::<Vec<_>>(), &self.levels, deadline)
    }
}

/// Kills a step's processes and removes its directories, and those of the job and the user that are empty then.
pub fn remove(trees: &[&Own], levels: &[String], deadline: Instant) -> Result<()> {
    let whole: Vec<&Own> = trees.iter().copied().filter(|tree| tree.dirs.len() == levels.len() + 1).collect();
    // Usually nobody is left; and this needs no descriptor, of which the host program may have run out.
    let is_gone = |tree: &&Own| match (tree.dirs.iter().rev().nth(1), levels.last()) {
        (Some(parent), Some(step)) => parent.remove(step).is_ok(),
        _ => false,
    };
    if !whole.iter().all(is_gone) {
        kill_members(&whole, deadline)?;
    }
    for tree in trees {
        for (depth, name) in levels.iter().enumerate().rev() {
            let Some(parent) = tree.dirs.get(depth) else { continue };
            if depth + 1 == levels.len() {
                remove_step(parent, name, &tree.hierarchy, deadline)?;
            } else if let Err(error) = parent.remove(name) {
                if error.is_about_rights() {
                    return Err(error);
                }
                // Another step or job still lives there.
                break;
            }
        }
        // Refused while anybody else is in it.
        if let (Some(class), Some(top)) = (tree.class, tree.dirs.first()) {
            let _ = top.child("..").and_then(|base| base.remove(class));
        }
    }
    Ok(())
}

fn kill_members(trees: &[&Own], deadline: Instant) -> Result<()> {
    let step_in = |test: fn(&Hierarchy) -> bool| trees.iter().find(|tree| test(&tree.hierarchy)).and_then(|t| t.step());
    let Some(any) = trees.first().and_then(|tree| tree.step()) else { return Ok(()) };
    let unified = step_in(|h| h.version == Version::V2);
    kill::kill_all(Members { unified, freezer: step_in(|h| h.has("freezer")), any }, deadline)?;
    // A process can be in one hierarchy's directory and not in another's, when attaching failed between the two.
    for tree in trees.iter().filter(|tree| tree.hierarchy.version == Version::V1) {
        if let Some(dir) = tree.step() {
            kill::kill_all(Members { unified: None, freezer: None, any: dir }, deadline)?;
        }
    }
    Ok(())
}

/// Removes a step's directory and whatever is below it. The kernel says EBUSY until the last member has left entirely.
fn remove_step(parent: &Dir, name: &str, hierarchy: &Hierarchy, deadline: Instant) -> Result<()> {
    let mut tries = 0u32;
    loop {
        let Err(error) = remove_below(parent, name, 0) else { return Ok(()) };
        let busy = matches!(error.kernel_errno(), Some(Errno::EBUSY | Errno::ENOTEMPTY));
        if !busy || Instant::now() >= deadline {
            return Err(error.hint("it is tried again at the next launch on this node, or by 'jobfence reap'"));
        }
        let Ok(dir) = parent.child(name) else { continue };
        let unified = (hierarchy.version == Version::V2).then_some(&dir);
        kill::kill_all(Members { unified, freezer: None, any: &dir }, deadline)?;
        // Nobody is a member any more, and still it is busy: a moment inside the kernel, for which there is no event. If it
        // is more than a moment (a member that we cannot see, of another pid namespace), do not burn a CPU until the deadline.
        tries += 1;
        if tries < 100 {
            std::thread::yield_now();
        } else {
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
    }
}

/// Deeper than any step's own directories are.
const DEEPEST: u32 = 32;

/// Whether a process is in a directory or below it; also where that cannot be seen.
pub fn is_inhabited(dir: &Dir, depth: u32) -> bool {
    let is_below =
        |name: &String| dir.child(name).is_ok_and(|child| depth >= DEEPEST || is_inhabited(&child, depth + 1));
    !dir.read("cgroup.procs").is_ok_and(|pids| pids.is_empty())
        || !dir.list(true).is_ok_and(|names| !names.iter().any(is_below))
}

fn remove_below(parent: &Dir, name: &str, depth: u32) -> Result<()> {
    match parent.remove(name) {
        Err(error) if error.kernel_errno() == Some(Errno::EBUSY) && depth < DEEPEST => {}
        other => return other.map(|_| ()),
    }
    let dir = match parent.child(name) {
        Ok(dir) => dir,
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    for child in dir.list(true)? {
        remove_below(&dir, &child, depth + 1)?;
    }
    parent.remove(name).map(|_| ())
}
