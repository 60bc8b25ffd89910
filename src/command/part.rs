// SPDX-License-Identifier: GPL-2.0-or-later
//! What the subcommands ask of a scheduler's part of the command. `schedulers` has the table; the subcommands name no scheduler.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::config::{Config, IdleAction, Loaded, Named};
use jobfence::facts::Facts;
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::record::Owner;
use jobfence::sys::dir::Dir;

use crate::again::{AgainPart, LoggedFacts};
use crate::check::claims::Claims;
use crate::check::names::KnownNames;
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;
use crate::command::Failure;
use crate::job_match::JobMatch;
use crate::report::accounting::AccountingPart;
use crate::setup::plan::{JobTried, SetupHost, SetupPlan};

/// A scheduler's part of the command. The defaults are for schedulers that have nothing to add.
pub trait SchedulersPart: Sync {
    /// The scheduler's name in messages.
    fn name(&self) -> &'static str;

    /// For which releases of the scheduler this build is. `None`: its interfaces do not depend on them.
    fn releases(&self) -> Option<String> {
        None
    }

    /// The facts that a job's user writes, if the scheduler runs here and nothing checks them.
    fn claims(&self, _proc: &Dir) -> Option<Claims> {
        None
    }

    /// For `jobfence check`: says what the scheduler's configuration says here, and adds to the verdict why no job would be fenced.
    fn check(&self, _host: &CheckedHost<'_>, _rows: &mut Rows, _verdict: &mut Verdict) {}

    /// For `jobfence check`: adds the names that the scheduler knows here, as far as sections need them.
    fn add_names(&self, _host: &CheckedHost<'_>, _sections: &[Named<'_>], _known: &mut KnownNames) {}

    /// The variable that has the id of each job, if the scheduler runs here and sets one.
    fn job_variable(&self, _host: &CheckedHost<'_>) -> Option<&'static str> {
        None
    }

    /// How a text matches an id, if the id can be this scheduler's and is longer than the name that people use.
    fn means(&self, _text: &str, _id: &str) -> Option<JobMatch> {
        None
    }

    /// The id that only the scheduler knows for this name; `ids` are those known here. `None`: the name itself is the id.
    fn id_of(&self, _name: &str, _ids: &[String]) -> Option<Result<Id, Failure>> {
        None
    }

    /// For `jobfence setup`: what is to be done here. It reads, and changes nothing. `None`: the scheduler is not here.
    fn plan(&self, _host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        Ok(None)
    }

    /// For `jobfence setup`, when all is done: has the scheduler run a real job here, and waits for it at most until the deadline.
    fn try_job(&self, _host: &SetupHost, _deadline: Instant) -> JobTried {
        JobTried::NotRun(format!("no job was tried under {}", self.name()))
    }

    /// For `jobfence setup --undo`: whether this scheduler starts jobs of this node by jobfence now, whoever has told it to.
    fn starts_jobs(&self, _host: &SetupHost) -> StartsJobs {
        StartsJobs::No
    }

    /// For `jobfence setup --undo`: waits until the daemons notice that files and commands are as they were. Until then they start jobs by
    /// jobfence. It is asked for before the undo. `None`: nothing is to be noticed.
    fn after_undo(&self, _host: &SetupHost) -> Option<AfterUndo> {
        None
    }

    /// For `jobfence setup --undo`: what removes the rest when no scheduler starts jobs of this node by jobfence any more. Asked before;
    /// `None`: nothing.
    fn clear_up(&self, _host: &SetupHost) -> Option<AfterUndo> {
        None
    }

    /// For `jobfence setup --undo`: whether the file is as this installation has it, which need not be the one that has set it up. Nothing of
    /// the administrator's is in it then.
    fn is_as_installed(&self, _host: &SetupHost, _file: &Path) -> bool {
        false
    }

    /// For `jobfence hold`: finds a job of this node at the scheduler, if that lets root on any node tell its user something, and end it.
    /// `None`: it does not, or the job is none of its own. The error is why the job cannot be reached now.
    fn reach(&self, _job: &JobHere<'_>, _deadline: Instant) -> Option<Result<Box<dyn ReachedJob>, String>> {
        None
    }

    /// The programs of the scheduler's daemons, by the beginnings of their names: what such a daemon of a system account starts is the
    /// scheduler's. The first is the one that starts the jobs of a node.
    fn daemons(&self) -> &'static [&'static str];

    /// Whether tests have shown that no process of its jobs is taken for a stray. Otherwise strays are only reported beside it.
    fn tells_strays(&self) -> bool {
        false
    }

    /// Whether the scheduler itself keeps processes of jobs in a cgroup of this path, as far as its names tell.
    fn keeps(&self, _path: &str) -> bool {
        false
    }

    /// The job into which the scheduler's own way would put a process of this user's. `None`: it has no such way, or the user no job.
    fn newest_job(&self, _host: &Host, _config: &Config, _uid: u32) -> jobfence::error::Result<Option<Id>> {
        Ok(None)
    }

    /// Puts a process there, and returns what is said of it.
    fn adopt(&self, _host: &Host, _config: &Config, _id: Owner) -> jobfence::error::Result<Option<String>> {
        Ok(None)
    }

    /// How a job that was killed at its memory limit runs again with more. `None`: nobody but its user can have it do so.
    fn again(&self) -> Option<&'static dyn AgainPart> {
        None
    }

    /// If the scheduler is here and can have a job run again: what keeps it from that, as its configuration says. `every`: how often
    /// `jobfence hold` looks. `named`: the configuration that the command line names.
    fn again_here(&self, _named: Option<&Path>, _every: Duration) -> Option<Vec<String>> {
        None
    }

    /// Reduces the facts in a job's line of the usage log to what is certain. `named`: the configuration that the command line names.
    /// Without one, the user may have written what a scheduler assigns.
    fn logged_facts(&self, _named: Option<&Path>) -> LoggedFacts {
        Box::new(|facts: Facts| Facts {
            account: facts.account.if_checked(false),
            qos: facts.qos.if_checked(false),
            project: facts.project.if_checked(false),
            ..facts
        })
    }

    /// How an administrator changes the memory limit of a job that runs, where the scheduler itself sets that limit. `None`: it sets none.
    fn changes_memory(&self) -> Option<&'static str> {
        None
    }

    /// The scheduler's accounting, if nodes store there what jobs used.
    fn accounting(&self) -> Option<&'static dyn AccountingPart> {
        None
    }

    /// The work that `jobfence hold` does for the scheduler at each of its looks.
    fn chore(&self) -> Option<Box<dyn Chore>> {
        None
    }
}

/// A job that runs on this node.
#[derive(Debug, Clone, Copy)]
pub struct JobHere<'a> {
    pub id: &'a str,
    pub uid: u32,
    /// Whether a program has opened its fence for the scheduler, and not the scheduler's own step daemon.
    pub is_opened: bool,
}

/// A running job as its scheduler knows it.
pub trait ReachedJob {
    /// Whether this is its only node.
    fn is_here_alone(&self) -> bool;

    /// Tells its user something, where the job's terminal or output shows it.
    fn tell(&self, text: &str, deadline: Instant) -> Result<(), String>;

    /// Sends SIGTERM to its processes, or cancels it.
    fn end(&self, how: IdleAction, deadline: Instant) -> Result<(), String>;
}

/// Whether a scheduler starts jobs of a node by jobfence.
#[derive(Debug, PartialEq, Eq)]
pub enum StartsJobs {
    No,
    Yes {
        /// The setting that makes it, for people.
        by: String,
        /// The files that it would not do so without.
        files: Vec<PathBuf>,
        /// What is in each command after which it does not.
        commands: &'static [&'static str],
    },
    /// Why this cannot be seen.
    Unknown(String),
}

/// What is done behind an undo. Returns what is left to do for the administrator, if something is.
pub type AfterUndo = Box<dyn FnOnce() -> Result<Option<String>, Failure>>;

/// Work that is done again and again. It may remember what it has logged.
pub trait Chore {
    /// Does the work once, in bounded time. `loaded`: the configuration with its sections, if it could be read.
    fn once(&mut self, config: &Config, loaded: Option<&Loaded>);
}

/// The host that `jobfence check` looks at.
pub struct CheckedHost<'a> {
    /// The directory of the processes, `/proc`.
    pub proc: &'a Dir,
    /// The configuration.
    pub loaded: &'a Loaded,
    /// The configuration that the command line names.
    pub named: Option<&'a Path>,
    /// Where PAM's services are configured, and jobfence's line there.
    pub pam: (&'a Path, &'a str),
}
