// SPDX-License-Identifier: GPL-2.0-or-later
//! Trial directories like those that Slurm's own cgroup plugins make for a step, but of no job: they show whether limits can be written to
//! Slurm's.
//!
//! On cgroup2 they are in Slurm's scope, which has exactly the controllers that Slurm has; `SCOPE/jobfence-check-PID.NAMESPACE` takes the
//! place of a job. Slurm reads no directory there except its own jobs' (src/plugins/cgroup/v2 of 22.05 to 26.11). On v1 `slurm_jobfence-check-…` is
//! beside Slurm's own at the top of each hierarchy, as another node's would be.

use std::time::{Duration, Instant};

use jobfence::cgroup::base::fill;
use jobfence::cgroup::handing_down::not_given;
use jobfence::cgroup::layout::{Hierarchy, LayoutKind, Version};
use jobfence::cgroup::limits;
use jobfence::cgroup::membership::Membership;
use jobfence::cgroup::walk;
use jobfence::config::Candidate;
use jobfence::error::Result;
use jobfence::fence;
use jobfence::host::Host;
use jobfence::janitor;
use jobfence::job::JobKey;
use jobfence::schedulers::slurm::placement::is_scope;
use jobfence::schedulers::slurm::plugins::{ByConfig, Slurm};
use jobfence::schedulers::slurm::units;
use jobfence::sys::dir::Dir;

use crate::check::rows::Rows;

/// The prefix of their name. The pid of the process that made them follows, and the number of its pid namespace.
const NAME: &str = "jobfence-check-";

/// Where Slurm has, or will have, directories of its own.
pub struct SlurmDirs {
    /// Slurm's scopes on cgroup2: this node's, or all if that cannot be told.
    pub scopes: Vec<Dir>,
    /// Whether jobs will be in such a scope on cgroup2.
    in_scope: bool,
    /// Whether jobfence first makes directories of its own there in any case.
    ours_first: bool,
}

impl SlurmDirs {
    pub fn find(host: &Host, slurm: Option<&Slurm>, node: Option<&str>) -> Result<Self> {
        let is_slurms = |slurm: &&Slurm| is_overlay(host.layout.unified(), slurm);
        let Some((slurm, unified)) = slurm.filter(is_slurms).zip(host.layout.unified()) else {
            return Ok(Self { scopes: Vec::new(), in_scope: false, ours_first: true });
        };
        let mut scopes = scopes(unified);
        let name = node.map(|node| format!("{node}_slurmstepd.scope"));
        let is_ours = |scope: &Dir| scope.path().file_name().and_then(|file| file.to_str()) == name.as_deref();
        if scopes.iter().any(is_ours) {
            scopes.retain(is_ours);
        }
        Ok(Self { scopes, in_scope: true, ours_first: slurm.makes_ours_first(unified) })
    }

    /// Whether Slurm's directory of all jobs does not exist yet.
    pub fn are_unknown(&self) -> bool {
        self.in_scope && self.scopes.is_empty()
    }

    /// Whether jobs will be in directories of Slurm's on cgroup2.
    pub fn are_theirs(&self) -> bool {
        self.in_scope
    }

    /// Whether there is no directory for a trial.
    pub fn are_nowhere(&self) -> bool {
        self.are_unknown() && !self.ours_first
    }

    /// Prints the controllers of Slurm's scopes.
    pub fn describe(&self, rows: &mut Rows, host: &Host, candidates: &[Candidate]) {
        for scope in &self.scopes {
            let given = scope.read_value("cgroup.controllers").unwrap_or_default();
            rows.fact("scope", format!("{} has {}", scope.path().display(), given.trim()));
            // A trial needs root, but anybody can read this.
            let Some(unified) = host.layout.unified().filter(|_| !nix::unistd::geteuid().is_root()) else { continue };
            let mut wanted: Vec<&str> =
                candidates.iter().flat_map(|candidate| fence::controllers(&candidate.config)).collect();
            wanted.sort_unstable();
            wanted.dedup();
            let handed = wanted.into_iter().filter(|controller| unified.hands_down(controller));
            for error in handed.filter_map(|controller| not_given(scope, unified, controller, host.systemd)) {
                rows.remark("scope", error);
            }
        }
        if self.are_unknown() {
            rows.remark("scope", "Slurm has none yet: it makes one when slurmd starts");
        }
    }

    /// Every place in which to try a step: each scope, or once without one.
    pub fn each(&self) -> Vec<Option<&Dir>> {
        if self.scopes.is_empty() { vec![None] } else { self.scopes.iter().map(Some).collect() }
    }
}

/// Slurm's scopes in a hierarchy that slurmd has made so far.
pub fn scopes(hierarchy: &Hierarchy) -> Vec<Dir> {
    let mut scopes = Vec::new();
    if let Ok(root) = hierarchy.open() {
        units::find_units(&root, is_scope, units::SLICES, &mut scopes, &mut Vec::new());
    }
    scopes
}

fn is_overlay(hierarchy: Option<&Hierarchy>, slurm: &Slurm) -> bool {
    hierarchy.is_some_and(|hierarchy| matches!(slurm.placement(hierarchy), ByConfig::Overlay(_)))
}

/// Directories made like Slurm's.
#[derive(Default)]
pub struct Likeness {
    /// What must be removed: the parent directory and the name.
    made: Vec<(Dir, String)>,
    /// Where Slurm would put a task.
    tasks: Vec<Dir>,
    /// Where Slurm's step daemon would be, as in /proc/PID/cgroup.
    daemon: String,
}

impl Likeness {
    /// Makes those of a step. What was made is in `self`, even after an error.
    pub fn make(&mut self, host: &Host, slurm: &Slurm, key: &JobKey, scope: Option<&Dir>) -> Result<()> {
        let task = if slurm.has_task_directories() { "task_0" } else { "task_special" };
        for hierarchy in &host.layout.hierarchies {
            match (hierarchy.version, scope) {
                _ if !is_overlay(Some(hierarchy), slurm) => {}
                (Version::V2, Some(scope)) if host.layout.kind() == LayoutKind::Unified => {
                    self.make_in_scope(host, hierarchy, slurm, key, scope, task)?;
                }
                (Version::V2, _) => {}
                (Version::V1, _) => self.make_on_v1(host, hierarchy, slurm, key)?,
            }
        }
        Ok(())
    }

    fn make_in_scope(
        &mut self,
        host: &Host,
        hierarchy: &Hierarchy,
        slurm: &Slurm,
        key: &JobKey,
        scope: &Dir,
        task: &str,
    ) -> Result<()> {
        remove_dead(host, scope, NAME);
        let name = name(host, NAME);
        let top = again(scope)?;
        let job = top.ensure(&name)?;
        self.made.push((top, name.clone()));
        limit_memory(slurm, hierarchy, &job);
        let step = job.ensure(&key.step_dir(1))?;
        step.ensure("slurm")?;
        self.tasks.push(step.ensure("user")?.ensure(task)?);
        if !slurm.makes_ours_first(hierarchy) {
            let below = scope.path().strip_prefix(&hierarchy.mount).unwrap_or(scope.path()).display().to_string();
            let path = hierarchy.in_proc(&format!("/{below}/{name}/{}/slurm", key.step_dir(1)));
            self.daemon.push_str(&format!("0::{path}\n"));
        }
        Ok(())
    }

    fn make_on_v1(&mut self, host: &Host, hierarchy: &Hierarchy, slurm: &Slurm, key: &JobKey) -> Result<()> {
        let root = hierarchy.open()?;
        let prefix = format!("slurm_{NAME}");
        remove_dead(host, &root, &prefix);
        let name = name(host, &prefix);
        let mut dir = root.ensure(&name)?;
        fill(&root, &dir, hierarchy, true)?;
        self.made.push((root, name));
        let task = (!hierarchy.has("freezer")).then(|| "task_0".to_owned());
        let below = [format!("uid_{}", key.uid), format!("job_{}", key.job), key.step_dir(1)];
        for name in below.into_iter().chain(task) {
            let child = dir.ensure(&name)?;
            fill(&dir, &child, hierarchy, false)?;
            if name.starts_with("job_") {
                limit_memory(slurm, hierarchy, &child);
            }
            dir = child;
        }
        self.tasks.push(dir);
        Ok(())
    }

    /// Where the step daemon would be.
    pub fn daemon(&self) -> Membership {
        Membership::parse(&self.daemon)
    }

    /// Puts a process where Slurm would put a task.
    pub fn put(&self, pid: i32) -> Result<()> {
        self.tasks.iter().try_for_each(|task| task.write("cgroup.procs", &pid.to_string()))
    }

    /// Removes them.
    pub fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + janitor::PATIENCE;
        let each = |(parent, name): &(Dir, String)| walk::remove(parent, name, deadline);
        // An error with one must not keep the others from being removed.
        self.made.iter().map(each).fold(Ok(()), std::result::Result::and)
    }
}

/// If Slurm limits a job's memory, some limits are left to Slurm. If the memory controller is missing there, Slurm cannot limit it either,
/// so an error is ignored.
fn limit_memory(slurm: &Slurm, hierarchy: &Hierarchy, job: &Dir) {
    /// More than a trial needs.
    const ENOUGH: &str = "1073741824";
    if slurm.limits_memory() && hierarchy.has("memory") {
        let (file, _) = limits::memory_files(hierarchy.version);
        let _ = job.write(file, ENOUGH);
    }
}

fn again(dir: &Dir) -> Result<Dir> {
    Ok(dir.child(".")?.named(dir.path().to_path_buf()))
}

fn name(host: &Host, prefix: &str) -> String {
    format!("{prefix}{}{}", std::process::id(), of_namespace(host))
}

fn of_namespace(host: &Host) -> String {
    let number = host.pid_namespace.trim_start_matches("pid:[").trim_end_matches(']');
    format!(".{number}")
}

/// Removes what a killed check left. If a process is in another pid namespace, nobody here knows whether it lives.
fn remove_dead(host: &Host, parent: &Dir, prefix: &str) {
    for name in parent.list(true).unwrap_or_default() {
        let pid = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(&of_namespace(host)));
        let Some(pid) = pid.filter(|pid| pid.parse::<u32>().is_ok()) else { continue };
        if host.proc.child(pid).is_err() {
            let deadline = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
            // The killed check's process ends a moment after it.
            while walk::remove(parent, &name, deadline).is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
