// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for processes that Slurm calls no plugin for: those that pam_slurm_adopt lets in.
//!
//! Slurm adds such a process to the job's extern step without any callback. If it tracks processes by cgroup (overlay), the step's limits
//! hold the process; otherwise nothing does. So PAM calls jobfence when the session is opened (`pam.rs`, or `jobfence adopt` through
//! pam_exec). The process that opens it is moved into the extern step's directories, and all other processes of the session descend from
//! it.
//!
//! A session that begins within a job stays in that job (`take_back.rs`).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};
use nix::unistd::{Pid, Uid, User};

use crate::cgroup::layout::Hierarchy;
use crate::cgroup::membership::Membership;
use crate::config::{Config, LoadError, Loaded, Resolved};
use crate::doors::adoptee::Adoptee;
use crate::doors::take_back::{self, TakenBack, step_of};
use crate::error::{Error, Result};
use crate::fence::{self, Fence};
use crate::host::Host;
use crate::job::{Id, JobKey};
use crate::launch::{self, Answer, NotFenced};
use crate::private::PrivateDirs;
use crate::record::{Owner, Record, Records};
use crate::scheduler;
use crate::schedulers::ALL;
use crate::sorted;

/// How long steps that have just begun have to make their directories.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which process is to go where.
#[derive(Debug, Clone, Default)]
pub struct AdoptRequest {
    /// The process. `None`, only under PAM: the one that opens the session.
    pub pid: Option<i32>,
    /// If the caller knows when the process has started: another one with its pid is not adopted.
    pub id: Option<Owner>,
    /// The job. `None`: the user's job that began last.
    pub job: Option<Id>,
    /// What PAM says, if PAM called.
    pub pam: Option<Pam>,
    /// Where the process was at PAM's first call for this session.
    pub began: Option<Membership>,
    /// Whether a session that does not come from a job is left alone.
    pub stays: bool,
}

/// What PAM says about the session that is being opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pam {
    /// `PAM_TYPE`: account, auth, password, open_session or close_session.
    pub kind: String,
    /// `PAM_USER`: the user of the session.
    pub user: String,
    /// The process that opens the session.
    pub caller: i32,
}

impl Pam {
    /// From the variables of pam_exec's command, in their order, and the command's parent. `None`: there is no `PAM_TYPE`.
    ///
    /// The last variable of a name counts. pam_exec puts its own behind those of the session's environment, which the user may have set;
    /// getenv(3) would return the first.
    pub fn from_environment(variables: impl Iterator<Item = (OsString, OsString)>, caller: i32) -> Option<Self> {
        let (mut kind, mut user) = (None, None);
        for (name, value) in variables {
            if name == OsStr::new("PAM_TYPE") {
                kind = Some(value.to_string_lossy().into_owned());
            } else if name == OsStr::new("PAM_USER") {
                user = Some(value.to_string_lossy().into_owned());
            }
        }
        kind.map(|kind| Self { kind, user: user.unwrap_or_default(), caller })
    }

    /// The user of the session's processes. `None`: there is nothing to do, as for root and at the end of a session.
    fn becomes(&self) -> Result<Option<u32>> {
        match self.kind.as_str() {
            "open_session" | "account" => {}
            "close_session" => return Ok(None),
            _ => {
                return Err(Error::new("jobfence can do nothing in this PAM stack:")
                    .value(&self.kind)
                    .hint("its line must begin with 'session', see jobfence(8)"));
            }
        }
        match User::from_name(&self.user) {
            Ok(Some(user)) => Ok(Some(user.uid.as_raw()).filter(|uid| *uid != 0)),
            Ok(None) => Err(Error::new("PAM names a user that this node does not know:").value(&self.user)),
            Err(errno) => Err(Error::new("look for PAM's user").value(&self.user).errno(errno)),
        }
    }
}

/// What was done with the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// The process was moved into this step.
    Adopted {
        /// The process.
        pid: i32,
        /// The step.
        key: JobKey,
        /// Its directory, as in `/proc/PID/cgroup`.
        path: String,
    },
    /// The process was in a step of jobfence's before; left alone.
    Inside {
        /// The process.
        pid: i32,
        /// The step's directory.
        path: String,
    },
    /// The process came from a job, was moved out of it, and is in it again.
    Back(TakenBack),
    /// Slurm itself put the process into a cgroup of its own; left alone.
    Slurms {
        /// The process.
        pid: i32,
        /// Its cgroup.
        path: String,
    },
    /// There is nothing to do: a session of root, the end of a session, or one that comes from no job.
    Nothing,
}

impl fmt::Display for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adopted { pid, key, path } => write!(f, "process {pid} is in {key} now: {path}"),
            Self::Inside { pid, path } => write!(f, "process {pid} is fenced already, in {path}"),
            Self::Back(back) => write!(f, "{back}"),
            Self::Slurms { pid, path } => write!(f, "Slurm itself has put process {pid} into {path}; it stays there"),
            Self::Nothing => write!(f, "there is nothing to do: root's session, the end of one, or one from no job"),
        }
    }
}

/// Adopts as the configuration says. An error is softened only for PAM's sessions.
pub fn answer(loaded: Result<Loaded, LoadError>, request: &AdoptRequest) -> Answer<Adoption> {
    // Root must be able to log in, to correct a configuration with a mistake.
    if request.pam.as_ref().is_some_and(|pam| pam.becomes() == Ok(None)) {
        return Answer::Fenced(Adoption::Nothing);
    }
    let of_every_job = |loaded: &Loaded| Ok((Resolved::plain(loaded.config.clone()), ()));
    let answer = launch::answer(loaded, of_every_job, |resolved, ()| {
        let host = Host::read(&resolved.config)?;
        let adoption = adopt(&host, &resolved.config, request)?;
        // No program can change what another process sees.
        if let Adoption::Adopted { pid, key, .. } = &adoption
            && *pid == Pid::this().as_raw()
            && let Some(private) = PrivateDirs::find(&resolved.config, &key.parents())?
        {
            private.enter(&[])?;
        }
        Ok(adoption)
    });
    match answer {
        Answer::Unfenced { why, .. } if request.pam.is_none() => Answer::Refused(why),
        answer => answer,
    }
}

/// The sentence that a session goes on without a fence, as a step that cannot be fenced does, and why.
pub fn goes_on_without(why: &NotFenced, by: &str) -> String {
    format!("this session is not fenced ({by}): {why}")
}

/// Moves a process into the extern step of its user's job on this node.
///
/// On an error the process is where it was, in every hierarchy, or the error says where that could not be done.
pub fn adopt(host: &Host, config: &Config, request: &AdoptRequest) -> Result<Adoption> {
    let becomes = match &request.pam {
        None => None,
        Some(pam) => match pam.becomes()? {
            None => return Ok(Adoption::Nothing),
            user => user,
        },
    };
    let caller = request.pam.as_ref().map(|pam| pam.caller);
    let pid = request.pid.or(caller).ok_or_else(|| Error::new("no process is named: use --pid PID"))?;
    let process = Adoptee::open(&host.proc, pid)?;
    if request.id.is_some_and(|id| id != process.this) {
        return Err(Error::new(format!("there is no process {pid} any more")));
    }
    let before = Membership::read(&host.proc, pid)?;
    if caller == Some(pid)
        && let Some(back) = take_back::session(host, config, &process, (request.began.as_ref(), &before))?
    {
        return Ok(Adoption::Back(back));
    }
    if request.stays {
        return Ok(Adoption::Nothing);
    }
    let uid = process.user(becomes, caller)?;
    if let Some(outcome) = already(host, config, pid, &before)? {
        return Ok(outcome);
    }
    let mut failure = None;
    let deadline = Instant::now() + PATIENCE;
    for candidate in extern_steps(host, config, uid, request)? {
        match candidate.take(host, config, &process, &before, deadline) {
            Ok(outcome) => return Ok(outcome),
            Err(error) if !process.is_alive(&host.proc) => return Err(error),
            // The step may be about to end; the user may have another.
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| no_job(uid, request)))
}

fn no_job(uid: u32, request: &AdoptRequest) -> Error {
    let who = match (&request.pam, User::from_uid(Uid::from_raw(uid))) {
        (Some(_), _) => "you have".to_owned(),
        (None, Ok(Some(user))) => format!("user {} (uid {uid}) has", user.name),
        (None, _) => format!("uid {uid} has"),
    };
    let what = request.job.as_ref().map_or_else(|| "job".to_owned(), |job| format!("job {job}"));
    Error::new(format!("{who} no {what} with an extern step on this node")).hint(
        "start a job on this node first; if squeue or qstat shows one here, ask the administrator (with Slurm, \
         slurm.conf needs PrologFlags=Contain)",
    )
}

/// Whether the process is where it should be, or must be left where it is.
fn already(host: &Host, config: &Config, pid: i32, membership: &Membership) -> Result<Option<Adoption>> {
    let others = others(host, config, membership)?;
    if others.is_empty() {
        return Ok(slurms(host, config, pid, membership));
    }
    let step_in = |h: &Hierarchy| membership.path_in(h).and_then(|path| step_of(h, &host.base, path));
    let Some(path) = others.iter().find_map(|h| step_in(h)) else { return Ok(None) };
    for hierarchy in others {
        // A step made with another configuration may lack a directory in some hierarchies.
        let daemons_dir = hierarchy.in_proc(&path);
        if step_in(hierarchy).as_ref() != Some(&path) && hierarchy.dir_of(&daemons_dir).is_ok() {
            return Err(Error::new(format!("process {pid} is in a step in another hierarchy, but not in"))
                .at(&hierarchy.mount)
                .value(path)
                .hint("an earlier attempt failed between the two; end the process"));
        }
    }
    Ok(Some(Adoption::Inside { pid, path }))
}

/// The hierarchies in use, except for those in which Slurm itself holds the process.
fn others<'a>(host: &'a Host, config: &Config, membership: &Membership) -> Result<Vec<&'a Hierarchy>> {
    let mut used = host.hierarchies(&fence::controllers(config))?;
    used.retain(|h| scheduler::placement(ALL, membership, h).is_none());
    Ok(used)
}

/// Where Slurm itself holds the process, if it does.
fn slurms(host: &Host, config: &Config, pid: i32, membership: &Membership) -> Option<Adoption> {
    let used = host.hierarchies(&fence::controllers(config)).ok()?;
    let path = used
        .iter()
        .find_map(|h| membership.path_in(h).filter(|_| scheduler::placement(ALL, membership, h).is_some()))?;
    Some(Adoption::Slurms { pid, path: path.to_owned() })
}

/// An extern step whose daemon or holder is alive.
struct ExternStep {
    record: Record,
    key: JobKey,
}

impl ExternStep {
    /// The time when the step began; steps of the same time are in an arbitrary fixed order.
    fn began(&self) -> (u64, usize, Id) {
        let opener = self.record.shared.as_ref().map_or(self.record.owner, |shared| shared.opener);
        (opener.start, self.key.job.as_str().len(), self.key.job.clone())
    }
}

/// The user's extern steps on this node, the youngest first.
fn extern_steps(host: &Host, config: &Config, uid: u32, request: &AdoptRequest) -> Result<Vec<ExternStep>> {
    let records = Records::open(&config.run_dir)?;
    let mut found = Vec::new();
    let mut failure = None;
    for levels in records.list()? {
        let Some((of_uid, job_dir)) = whose_extern(&levels) else { continue };
        if request.job.as_ref().is_some_and(|wanted| wanted.in_a_name() != job_dir) {
            continue;
        }
        let live = || match records.read(&levels)? {
            Some(record) if is_live(host, &record)? => Ok(record.key().map(|key| ExternStep { record, key })),
            _ => Ok(None),
        };
        match live() {
            Ok(Some(step)) if step.key.uid == uid => found.push(step),
            Ok(Some(step)) if request.job.is_some() => {
                let theirs = format!("job {} belongs to uid {}, not to uid {uid}", step.key.job, step.key.uid);
                failure = failure.or(Some(Error::new(theirs)));
            }
            Ok(_) => {}
            Err(error) if of_uid == uid => failure = Some(error),
            // An unreadable record of another user does not matter here.
            Err(_) => {}
        }
    }
    sorted::sort_by_key(&mut found, |step| std::cmp::Reverse(step.began()));
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

/// The job into which a process of this user's goes if none is named: the one whose extern step began last. `None`: the user has none.
pub fn newest(host: &Host, config: &Config, uid: u32) -> Result<Option<Id>> {
    Ok(extern_steps(host, config, uid, &AdoptRequest::default())?.into_iter().next().map(|step| step.key.job))
}

/// The user and the job of an extern step with these directories.
fn whose_extern(levels: &[String]) -> Option<(u32, &str)> {
    let rest = match levels {
        [_, rest @ ..] if rest.len() == 3 => rest,
        rest => rest,
    };
    let [user, job, step] = rest else { return None };
    // After a requeue the second directory is step_extern.2.
    if step != "step_extern" && !step.starts_with("step_extern.") {
        return None;
    }
    Some((user.strip_prefix("uid_")?.parse().ok()?, job.strip_prefix("job_")?))
}

fn is_live(host: &Host, record: &Record) -> Result<bool> {
    Ok(record.is_here(host) && record.owner.is_alive(&host.proc)?)
}

impl ExternStep {
    fn take(
        &self,
        host: &Host,
        config: &Config,
        process: &Adoptee,
        before: &Membership,
        deadline: Instant,
    ) -> Result<Adoption> {
        let pid = process.this.pid;
        let ended = || Error::new(format!("process {pid} has ended"));
        self.wait_until_made(host, config, before, deadline);
        let records = Records::open(&config.run_dir)?;
        let mut fence = match Fence::from_record(host, ALL, records, self.key.clone(), &self.record, before) {
            Ok(fence) => fence,
            // jobfence's directories were replaced by Slurm's.
            Err(error) => return slurms(host, config, pid, before).ok_or(error),
        };
        // The kernel accepts only a pid, so check as late as possible that it is still this process.
        if !process.is_alive(&host.proc) {
            return Err(ended());
        }
        if let Err(error) = fence.attach_this(host, process.this, None) {
            if !process.is_alive(&host.proc) {
                return Err(error);
            }
            let error = put_back(host, pid, before, error);
            let is_it = process.is_alive(&host.proc);
            return Err(if is_it { error } else { fence::put_back_stranger(host, self.key.uid, process.this) });
        }
        Ok(Adoption::Adopted { pid, key: self.key.clone(), path: fence.path().unwrap_or_default() })
    }

    /// Waits for the step's directories, since the record is written before them. There is no event to wait for; it takes a few
    /// milliseconds.
    fn wait_until_made(&self, host: &Host, config: &Config, membership: &Membership, deadline: Instant) {
        let path = format!("/{}/{}", self.record.base, self.record.levels.join("/"));
        let used = others(host, config, membership).unwrap_or_default();
        // A step that began with another configuration never has all of them, and is taken as it is.
        while !used.iter().all(|h| h.dir_of(&h.in_proc(&path)).is_ok()) && Instant::now() < deadline {
            let _ = poll(&mut [], PollTimeout::from(5u8));
        }
    }
}

/// Moves the process back to where it was, and adds to the error where that failed.
fn put_back(host: &Host, pid: i32, before: &Membership, error: Error) -> Error {
    let remains = before.restore(&host.layout, &host.proc, pid);
    if remains.is_empty() {
        return error;
    }
    Error::new(format!("{error}; and process {pid} cannot be put back, so it remains in {}", remains.join(", ")))
        .hint("end it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::layout::Version;
    use std::path::PathBuf;

    fn pam(variables: &[(&str, &str)]) -> Option<Pam> {
        Pam::from_environment(variables.iter().map(|(name, value)| (name.into(), value.into())), 7)
    }

    #[test]
    fn what_the_user_puts_before_pams_own_variables_does_not_count() {
        assert_eq!(pam(&[("PAM_USER", "alice")]), None);
        let forged =
            [("PAM_TYPE", "close_session"), ("PAM_USER", "root"), ("PAM_USER", "bob"), ("PAM_TYPE", "account")];
        assert_eq!(pam(&forged), Some(Pam { kind: "account".into(), user: "bob".into(), caller: 7 }));
    }

    #[test]
    fn pam_is_heeded_where_a_session_begins() {
        let becomes = |kind: &str, user: &str| Pam { kind: kind.into(), user: user.into(), caller: 7 }.becomes();
        let nobody = User::from_name("nobody").unwrap().unwrap().uid.as_raw();
        assert_eq!(becomes("open_session", "nobody"), Ok(Some(nobody)));
        assert_eq!(becomes("account", "nobody"), Ok(Some(nobody)));
        assert_eq!(becomes("close_session", "nobody"), Ok(None));
        assert_eq!(becomes("open_session", "root"), Ok(None));
        assert!(becomes("auth", "nobody").is_err());
        assert!(becomes("open_session", "").is_err());
        assert!(becomes("open_session", "no-such-user").is_err());
    }

    #[test]
    fn an_extern_step_is_known_by_its_directories() {
        let whose = |path: &str| {
            let levels: Vec<String> = path.split('/').map(str::to_owned).collect();
            whose_extern(&levels).map(|(uid, job)| (uid, job.to_owned()))
        };
        assert_eq!(whose("uid_7/job_5/step_extern"), Some((7, "5".to_owned())));
        assert_eq!(whose("n1/uid_7/job_5/step_extern.2"), Some((7, "5".to_owned())));
        assert_eq!(whose("uid_7/job_12+5B3+5D.host/step_extern"), Some((7, "12+5B3+5D.host".to_owned())));
        for other in [
            "uid_7/job_5/step_batch",
            "uid_7/job_5/step_external",
            "uid_x/job_5/step_extern",
            "job_5/step_extern",
            "limits.lock",
        ] {
            assert_eq!(whose(other), None, "{other}");
        }
    }

    #[test]
    fn our_steps_are_known_by_their_paths() {
        let at = |root: &str, path: &str| {
            let (mount, controllers, name) = (PathBuf::from("/x"), Default::default(), None);
            let hierarchy = Hierarchy { version: Version::V2, mount, root: root.into(), controllers, name };
            step_of(&hierarchy, "a/b", path)
        };
        let step = Some("/a/b/uid_1/job_2/step_3".to_owned());
        assert_eq!(at("/", "/a/b/uid_1/job_2/step_3"), step);
        assert_eq!(at("/", "/a/b/uid_1/job_2/step_3/below"), step);
        assert_eq!(at("/c", "/c/a/b/uid_1/job_2/step_3"), step);
        assert_eq!(at("/", "/a/b/n/uid_1/job_2/step_3"), Some("/a/b/n/uid_1/job_2/step_3".to_owned()));
        for other in ["/", "/a/b", "/a/b/hold", "/a/bc/uid_1/job_2/step_3", "/uid_1/job_2/step_3", "/a/b/uid_1/step_3"]
        {
            assert_eq!(at("/", other), None, "{other}");
        }
    }
}
