// SPDX-License-Identifier: GPL-2.0-or-later
//! What a scheduler's part of the command wants done on this host. To plan is to read: nothing here changes anything.

use std::fmt;
use std::path::{Path, PathBuf};

use jobfence::sys::dir::Dir;
use jobfence::sys::systemd::is_systemd;
use nix::sys::statfs::statfs;

use super::sleeping_job::SleepingJob;
use crate::command::Failure;
use crate::systemd::{self, Service};

/// This host and this installation of jobfence.
pub struct SetupHost {
    /// The directory of the processes, `/proc`.
    pub proc: Dir,
    /// The path of this command that a scheduler's configuration can name.
    pub program: PathBuf,
    /// The directory `PREFIX/share/jobfence`.
    pub data: PathBuf,
}

/// What was found of a scheduler here, and the steps that are to be done, in their order.
#[derive(Default)]
pub struct SetupPlan {
    /// Sentences: the release, the files of its configuration, the placement, and how they were found.
    pub found: Vec<String>,
    /// A sentence that says what the administrator has to do first. With it, no step is done.
    pub obstacle: Option<String>,
    /// Whether the host runs no jobs, like a login node. Then nothing is checked at the end.
    pub is_bystander: bool,
    /// The configuration that the scheduler names for its jobs, if it names one. `jobfence check` reads it at the end.
    pub config: Option<PathBuf>,
    pub steps: Vec<SetupStep>,
}

/// One thing to be done.
pub struct SetupStep {
    /// The purpose in a few words, such as "Slurm loads the plugin by it".
    pub why: String,
    /// Whether the step reaches more than this node. Without `--central`, such a step is only printed.
    pub is_central: bool,
    pub action: SetupAction,
}

pub enum SetupAction {
    File(FileChange),
    Command(CommandChange),
    /// A question that is asked when all steps before it are done. If the answer is no, it has said why. Then these steps are undone, and
    /// the rest is not done.
    Condition(SetupCondition),
    /// A task for the administrator. `why` says what to do, and names the page.
    Remark,
}

/// Whether the steps behind it may be done.
pub type SetupCondition = Box<dyn Fn(Checker<'_>) -> Result<bool, Failure>>;

/// Has `jobfence check` look at this host, as if the schedulers started jobs by jobfence already. Returns whether a job would be fenced.
pub type Checker<'a> = &'a dyn Fn(PlannedCheck) -> Result<bool, Failure>;

/// What the check reads instead of what is in force now.
#[derive(Debug, Default)]
pub struct PlannedCheck {
    /// The value of `--plugstack`.
    pub plugstack: Option<PathBuf>,
    /// The value of `--config`.
    pub config: Option<PathBuf>,
}

/// A file as it should be. If the file is so already, the step is done. Missing directories above it are made.
pub struct FileChange {
    pub path: PathBuf,
    /// The whole text. `None`: the file should not exist.
    pub text: Option<Vec<u8>>,
    /// The mode of a new file. A file that exists keeps its mode and owner.
    pub mode: u32,
}

/// A command that changes something, and the commands that undo the change.
pub struct CommandChange {
    pub run: SetupCommand,
    /// The undo, in this order. It may be run by a later release: so it has whole paths, and nothing that only this release knows.
    pub undo: Vec<SetupCommand>,
    /// Whether the planner has seen that the change is in effect.
    pub is_done: bool,
}

/// A command of a scheduler or of the system. Its environment has only PATH. `env NAME=VALUE program …` gives it other variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupCommand {
    pub argv: Vec<String>,
    /// The name and the text of a file that is made for the command. The file's path becomes the last argument.
    pub file: Option<(String, String)>,
}

/// What became of the real job that `jobfence setup` has run.
pub enum JobTried {
    /// The job ran in a fence: which job, and where.
    Fenced(String),
    /// The job did not run, for a reason that is not jobfence's: the scheduler is down or busy.
    NotRun(String),
    /// The job ran without a fence, or jobfence refused it: what to do.
    Unfenced(String),
    /// The job has not run yet: it is to be submitted and waited for.
    Asleep(Box<dyn SleepingJob>),
}

impl SetupCommand {
    pub fn new(argv: &[&str]) -> Self {
        Self { argv: argv.iter().map(|word| (*word).to_owned()).collect(), file: None }
    }
}

/// Writes the command as an administrator types it.
impl fmt::Display for SetupCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.file.iter().map(|(name, _)| name);
        for (number, word) in self.argv.iter().chain(name).enumerate() {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
            let blank = if number > 0 { " " } else { "" };
            if !word.is_empty() && word.chars().all(is_plain) {
                write!(f, "{blank}{word}")?;
            } else {
                write!(f, "{blank}'{}'", word.replace('\'', "'\\''"))?;
            }
        }
        Ok(())
    }
}

/// The file systems that several nodes can have mounted, by the magic numbers of statfs(2) and of their own sources: NFS, SMB, Ceph, AFS,
/// Lustre, GPFS, BeeGFS, OCFS2, GFS2, 9p, and FUSE, which mounts many others.
const SHARED: [u32; 12] = [
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x5346_414f,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0x7461_636f,
    0x0116_1970,
    0x0102_1997,
    0x6573_5546,
];

/// Whether several nodes can share this file. If it does not exist, the directory above it counts.
pub fn is_shared(path: &Path) -> bool {
    let found = path.ancestors().find_map(|directory| statfs(directory).ok());
    // The kernel's magic numbers have 32 bits.
    found.is_some_and(|found| SHARED.contains(&(found.filesystem_type().0 as u32)))
}

impl SetupStep {
    /// What the step changes, for people.
    pub fn about(&self) -> String {
        match &self.action {
            SetupAction::File(file) => file.path.display().to_string(),
            SetupAction::Command(command) => command.run.to_string(),
            SetupAction::Condition(_) | SetupAction::Remark => self.why.clone(),
        }
    }

    /// A step that gives this file this text.
    pub fn file(path: impl Into<PathBuf>, text: impl Into<Vec<u8>>, why: &str) -> Self {
        let file = FileChange { path: path.into(), text: Some(text.into()), mode: 0o644 };
        Self { why: why.to_owned(), is_central: false, action: SetupAction::File(file) }
    }

    pub fn command(run: SetupCommand, undo: Vec<SetupCommand>, is_done: bool, why: &str) -> Self {
        let command = CommandChange { run, undo, is_done };
        Self { why: why.to_owned(), is_central: false, action: SetupAction::Command(command) }
    }

    pub fn condition(why: &str, holds: impl Fn(Checker<'_>) -> Result<bool, Failure> + 'static) -> Self {
        Self { why: why.to_owned(), is_central: false, action: SetupAction::Condition(Box::new(holds)) }
    }

    pub fn remark(what: impl Into<String>) -> Self {
        Self { why: what.into(), is_central: false, action: SetupAction::Remark }
    }

    /// The same step, as one that reaches more than this node.
    #[must_use]
    pub fn central(self) -> Self {
        Self { is_central: true, ..self }
    }

    /// A step that starts jobfence.service now and at each boot. `None`: systemd does not run here, or does not have the unit.
    pub fn service() -> Option<Self> {
        is_systemd().then(systemd::state).flatten().as_ref().map(Self::service_that)
    }

    fn service_that(was: &Service) -> Self {
        let run = SetupCommand::new(&["systemctl", "enable", "--now", systemd::SERVICE]);
        // The undo does not stop the service: while a scheduler still starts jobs by jobfence, each of them would be refused.
        let disable = (!was.enabled).then(|| SetupCommand::new(&["systemctl", "disable", systemd::SERVICE]));
        let is_done = was.enabled && was.active;
        Self::command(run, disable.into_iter().collect(), is_done, "systemd delegates a part of the cgroup tree to it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_never_stopped() {
        for (enabled, active) in [(false, false), (false, true), (true, false), (true, true)] {
            let SetupAction::Command(step) = SetupStep::service_that(&Service { enabled, active }).action else {
                panic!()
            };
            assert_eq!(step.is_done, enabled && active);
            let undo: Vec<String> = step.undo.iter().map(ToString::to_string).collect();
            let disable: &[&str] = if enabled { &[] } else { &["systemctl disable jobfence.service"] };
            assert_eq!(undo, disable);
        }
    }
}
