// SPDX-License-Identifier: GPL-2.0-or-later
//! The door of HTCondor: what the startd starts in the place of its starter, where `STARTER` of its configuration names this program.
//!
//! To the startd this process is the starter, whose number it knows, and it becomes it: it makes a fence, goes into a directory of that, and
//! runs the starter in its place. HTCondor makes the job's own directories beside that one, and its limits, accounting, and holds for want of
//! memory go on working inside. The fence is held by this process. A second one outlives it, closes the fence, and says what was used; where
//! that is killed, the janitor does so.
//!
//! The schedd does the same for a job of the local universe, where `STARTER_LOCAL` names this program. Such a job has no slot, and no grant.

mod family;
mod job;
mod local;
mod reason;
mod refusal;
mod slot;
mod watch;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use jobfence::config::Loaded;
use jobfence::door::life::{self, Granted, HeldBy, OpenRequest, Which};
use jobfence::door::{enter, user};
use jobfence::error::{Error, Result};
use jobfence::facts::{Fact, Facts, Gpus};
use jobfence::job::{Cpus, Id};
use jobfence::launch::NotFenced;
use jobfence::requests::UserRequests;
use jobfence::scheduler::htcondor::slot_ad::{SlotAd, SlotJob};
use jobfence::scheduler::htcondor::{LOCAL, STARTER, STARTERS_LEAF};
use jobfence::sys::dir::Dir;
use jobfence::sys::nvidia;
use log::LevelFilter;
use nix::fcntl::readlink;
use nix::unistd::{Pid, User, execv, geteuid, getppid};

use crate::command::{fenced, ignore_sigpipe};
use crate::configured::Configured;
use crate::syslog::SyslogOfDaemon;

pub use family::stand_in;
pub use refusal::refuse;
pub use watch::watch;

/// Where it is if it does not lie beside the daemon that starts it.
const USUAL_PLACE: &str = "/usr/sbin";
/// Alone, it asks the starter what it can do, and no job runs. Among others it can be a user's text: `JobStarterDebug` of a job stands there.
const CAPABILITIES: &str = "-classad";
/// Before the name of the slot's type, where it has one. It stands behind the first argument, or it is a user's text, too
/// (`Starter::execDCStarter`, the same in 23.9 and 25.13).
const LOCAL_NAME: &str = "-local-name";
/// Where the job's user is nobody here, HTCondor runs the job as this one.
const NOBODY: &str = "nobody";
const NOBODYS_NUMBER: u32 = 65_534;
/// What the starter itself may need beside the memory of the slot, in bytes: it shares the fence with the job. Starters of 23.9 and 25.14 were
/// charged 3 to 5 MiB there. What transfers files for them needs more.
const STARTERS_MEMORY: u64 = 64 << 20;
/// HTCondor has the whole of cgroup v2 here, or none of it.
const UNIFIED: &str = "/sys/fs/cgroup/cgroup.procs";

/// Whether a startd or a schedd has started this program: for a job under the starter's name, and to ask what the starter can do under its own.
pub fn is_asked_for() -> bool {
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_name = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new(STARTER));
    words.first().is_some_and(is_name) || asks_for_capabilities(&words)
}

fn asks_for_capabilities(words: &[OsString]) -> bool {
    matches!(words, [_, word] if word == CAPABILITIES)
}

/// Fences the job, and becomes the starter.
pub fn starter() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if !asks_for_capabilities(&arguments) {
        if log::set_logger(&SyslogOfDaemon).is_ok() {
            log::set_max_level(LevelFilter::Info);
        }
        ignore_sigpipe();
        if let Err(why) = fence(&arguments) {
            log::error!("this job is not run: {why}");
            let sentence = format!("this job cannot be fenced: {why}");
            if let Err(error) = refusal::have_refused(&sentence, slot_type_in(&arguments)) {
                log::error!("its user cannot be told: {error}");
                return ExitCode::FAILURE;
            }
        }
        default_sigpipe();
    }
    let error = match become_starter(&arguments) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    log::error!("{error}");
    eprintln!("jobfence: {error}");
    ExitCode::FAILURE
}

/// A run of a job, for which a daemon of HTCondor's has started this process.
struct Run {
    uid: u32,
    job: Id,
    step: Id,
    cpus: Cpus,
    memory: Option<u64>,
    facts: Facts,
    /// What the watcher of a local job needs, to tell why the job is on hold.
    environment: Vec<CString>,
}

/// Puts this process into a fence of its own, unless it is to go on without. The error is for the job's user.
fn fence(arguments: &[OsString]) -> Result<(), String> {
    let configured = |overrides| Configured { config: None, overrides }.load();
    let run = match check_host().map_err(NotFenced::from).and_then(|()| Run::find(arguments)) {
        Ok(run) => run,
        Err(error) => return fenced(life::of_unknown(configured(Vec::new()), error)).map(drop),
    };
    // A starter that is killed with the job says nothing of its end.
    let loaded = configured(vec![OsString::from("OOMKillStep=no")]);
    let number = u32::try_from(Pid::this().as_raw()).unwrap_or_default();
    let which = Which { job: run.job.clone(), step: Some(run.step.clone()), run: Some(number) };
    let environment = run.environment.clone();
    if fenced(life::open(loaded.clone(), &run.request(number, loaded.as_ref().ok())))?.is_none() {
        return Ok(());
    }
    // A process that starts now is outside of the fence. Without this one the janitor closes the fence.
    if let Err(error) = watch::start(&which, &environment) {
        log::warn!("job {}: nobody waits for its end: {error}", which.job);
    }
    let entered = fenced(enter::enter(loaded.clone(), &which, STARTERS_LEAF));
    if !matches!(&entered, Ok(Some(()))) {
        close(loaded.ok().as_ref(), &which);
    }
    entered.map(drop)
}

fn close(loaded: Option<&Loaded>, which: &Which) {
    let closed = loaded.map(|loaded| life::close(&loaded.config, which));
    if let Some(Err(error)) = closed {
        log::warn!("job {}: {error}; the janitor looks again", which.job);
    }
}

/// Whether fences can be made here at all. On cgroup v1 HTCondor takes the job out of each fence: there it makes its directories below the root
/// of each hierarchy.
fn check_host() -> Result<()> {
    if !geteuid().is_root() {
        return Err(Error::new("root has not started this HTCondor, and only root can make fences").hint(
            "start HTCondor as root, or have STARTER and STARTER_LOCAL of its configuration name its own starter",
        ));
    }
    if Path::new(UNIFIED).exists() {
        return Ok(());
    }
    Err(Error::new("HTCondor takes its jobs out of the fence where cgroup v1 is mounted").hint(
        "boot with systemd.unified_cgroup_hierarchy=1, or have STARTER of HTCondor's configuration name its own starter",
    ))
}

impl Run {
    /// As the daemon says it that has started this process.
    fn find(arguments: &[OsString]) -> Result<Self, NotFenced> {
        match local::order_in(arguments) {
            Some(order) => Ok(Self::of_local(local::job(order)?)?),
            None => {
                let slot = slot::slot()?;
                Self::of_slot(&slot, slot_type_in(arguments), job::job_in(&slot))
            }
        }
    }

    fn of_slot(slot: &SlotAd, slot_type: Option<&str>, job: Result<SlotJob, NotFenced>) -> Result<Self, NotFenced> {
        let job = match job {
            Ok(job) => job,
            Err(why @ NotFenced::Asked(_)) => return Err(why),
            // What it is granted does not hang on it, so an answer that does not come keeps no job. Whose it is remains unknown.
            Err(why) => {
                log::warn!("the fence has the slot's name, and each section that could hold for its job holds: {why}");
                SlotJob::default()
            }
        };
        let known = |name: &str| User::from_name(name).ok().flatten();
        let user = job.user.as_deref().and_then(known).or_else(|| known(NOBODY));
        let uid = user.map_or(NOBODYS_NUMBER, |user| user.uid.as_raw());
        let known_uid = (job.job.is_some() && !job.is_of_other_domain).then_some(uid);
        Ok(Self {
            uid,
            job: job.job.clone().unwrap_or_else(|| slot.slot.clone()),
            step: slot.slot.clone(),
            cpus: slot.cpus,
            memory: Some(slot.memory.saturating_add(STARTERS_MEMORY)),
            facts: Facts { gpus: gpus_of(slot), uid: Fact::from(known_uid), ..job.facts(slot_type) },
            environment: Vec::new(),
        })
    }

    /// What its user has asked for, nobody has granted.
    fn of_local(job: local::LocalJob) -> Result<Self> {
        let facts = Facts { uid: Fact::Known(job.user.uid.as_raw()), ..job.ad.facts(&job.user.name) };
        let (uid, step) = (job.user.uid.as_raw(), Id::new(LOCAL)?);
        let local::LocalOrder { id, schedd } = job.order;
        let environment = job.ad.global_job.map(|name| reason::environment(&name, &schedd)).unwrap_or_default();
        Ok(Self { uid, job: id, step, cpus: Cpus::ZERO, memory: None, facts, environment })
    }

    fn request(self, number: u32, loaded: Option<&Loaded>) -> OpenRequest {
        let mut facts = self.facts;
        if let Some(loaded) = loaded {
            user::know_groups(&mut facts, &loaded.asked());
        }
        let granted = Granted {
            cpus: Some(self.cpus),
            memory: self.memory,
            memory_and_swap: None,
            gpus: None,
            requests: UserRequests::default(),
            facts,
            is_of_step: true,
        };
        let holder = HeldBy::Process(Pid::this().as_raw());
        OpenRequest { uid: self.uid, job: self.job, step: self.step, run: number, granted, holder, ask_unit: None }
    }
}

/// What the driver is asked for, only where the slot has GPUs.
fn gpus_of(slot: &SlotAd) -> Gpus {
    let driver = || nvidia::gpus(&Dir::open("/proc").ok()?);
    slot.gpus.on_host(driver)
}

fn slot_type_in(arguments: &[OsString]) -> Option<&str> {
    match arguments {
        [_, _, name, value, ..] if name == LOCAL_NAME => value.to_str(),
        _ => None,
    }
}

/// The starter in the place of this process.
fn become_starter(arguments: &[OsString]) -> Result<Infallible> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new("a NUL in a word"));
    let path = real_starter()?;
    let words: Vec<CString> = arguments.iter().map(|word| c_string(word.as_bytes())).collect::<Result<_>>()?;
    execv(&c_string(path.as_os_str().as_bytes())?, &words).map_err(|errno| Error::os("run", &path, errno))
}

/// It lies beside the daemon that has started us. Another one than this program.
fn real_starter() -> Result<PathBuf> {
    let this = std::fs::canonicalize("/proc/self/exe").ok();
    let daemon = readlink(&PathBuf::from(format!("/proc/{}/exe", getppid()))).ok().map(PathBuf::from);
    let places = [daemon.map(|daemon| daemon.with_file_name(STARTER)), Some(Path::new(USUAL_PLACE).join(STARTER))];
    let is_one = |path: &PathBuf| path.is_file() && std::fs::canonicalize(path).ok() != this;
    places.into_iter().flatten().find(is_one).ok_or_else(|| {
        Error::new("there is no starter beside the program that has started us, nor at")
            .value(Path::new(USUAL_PLACE).join(STARTER).display())
            .hint(format!("its user is {}", geteuid()))
    })
}

/// What is ignored would be so in the starter, too.
fn default_sigpipe() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action is no code of ours.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

#[cfg(test)]
mod tests {
    use jobfence::scheduler::htcondor::slot_gpus::SlotGpus;

    use super::*;

    fn slot() -> SlotAd {
        let gpus = SlotGpus::default();
        let name = "slot1_1@n".to_owned();
        SlotAd { name, slot: Id::new("slot1_1").unwrap(), cpus: Cpus::whole(1), memory: 1 << 30, gpus, domain: None }
    }

    #[test]
    fn a_job_whose_user_is_not_said_is_unknown_and_not_nobodys() {
        let late = Err(NotFenced::General(Error::new("condor_status does not answer")));
        let facts = Run::of_slot(&slot(), None, late).unwrap().facts;
        assert_eq!((facts.uid, facts.user, facts.account), (Fact::Unknown, Fact::Unknown, Fact::Unknown));
        // HTCondor runs it as nobody.
        let said = SlotJob::parse("JobId = \"12.0\"\nRemoteUser = \"no-such-user@x\"\n", None).unwrap();
        assert_eq!(Run::of_slot(&slot(), None, Ok(said)).unwrap().facts.uid, Fact::Known(NOBODYS_NUMBER));
        let of_root = |domain| SlotJob::parse("JobId = \"12.0\"\nRemoteUser = \"root@x\"\n", Some(domain));
        assert_eq!(Run::of_slot(&slot(), None, of_root("X")).unwrap().facts.uid, Fact::Known(0));
        let elsewhere = Run::of_slot(&slot(), None, of_root("y")).unwrap().facts;
        assert_eq!((elsewhere.uid, elsewhere.user), (Fact::Unknown, Fact::Claimed("root".to_owned())));
    }

    #[test]
    fn what_a_user_has_written_is_refused_also_where_errors_are_borne() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "OnError=warn\n").unwrap();
        let loaded = || Configured { config: Some(file.path().to_owned()), overrides: Vec::new() }.load();
        let forged = SlotJob::parse("AccountingGroup = \"a\nJobId = \"9.0\"\n\"\nJobId = \"12.0\"\n", None);
        let why = Run::of_slot(&slot(), None, forged).map(drop).unwrap_err();
        let refused = fenced(life::of_unknown(loaded(), why)).unwrap_err();
        assert!(refused.contains("an end of a line") && !refused.contains("administrator"), "{refused}");
        assert_eq!(fenced(life::of_unknown(loaded(), Error::new("x"))), Ok(None));
    }

    #[test]
    fn a_users_text_among_the_arguments_is_no_option() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(asks_for_capabilities(&words("/usr/sbin/jobfence -classad")));
        let forged = words("condor_starter -f -a2 -classad -a slot1_1 host");
        assert!(!asks_for_capabilities(&forged));
        let typed = words("condor_starter -f -local-name slot_type_2 -a slot1_1 host");
        assert_eq!(slot_type_in(&typed), Some("slot_type_2"));
        let forged = words("condor_starter -f -a2 -local-name -a slot1_1 host");
        assert_eq!(slot_type_in(&forged), None);
    }
}
