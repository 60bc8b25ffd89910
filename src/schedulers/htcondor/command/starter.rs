// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for HTCondor: the startd starts this program as its starter, if `STARTER` of its configuration names it.
//!
//! This process makes a fence, enters a directory of it, and becomes the real starter, so it keeps the process ID that the startd knows.
//! HTCondor makes the job's own directories beside that one. Its limits, its accounting and its holds for too much memory go on working
//! inside. This process holds the fence. A second process, the watcher, outlives it, closes the fence and logs the usage. If the watcher is
//! killed, the janitor does so.
//!
//! The schedd does the same for a job of the local universe, if `STARTER_LOCAL` names this program. Such a job has no slot and no grant.

mod apart;
mod environment;
mod family;
mod job;
mod kept;
mod late;
mod local;
mod own_line;
mod reason;
mod refusal;
mod slot;
mod startd;
mod watch;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use jobfence::config::Loaded;
use jobfence::doors::life::{self, LiveFence, Room};
use jobfence::doors::opening::{Granted, HeldBy, OpenRequest};
use jobfence::doors::recorded::WantedFences;
use jobfence::doors::user;
use jobfence::error::{Error, Result};
use jobfence::facts::{Fact, Facts, Gpus};
use jobfence::job::{Cpus, Id};
use jobfence::launch::NotFenced;
use jobfence::requests::{Requests, UserRequests};
use jobfence::schedulers::htcondor::settings::{StarterSettings, Submitter};
use jobfence::schedulers::htcondor::slot_ad::{SlotAd, SlotJob};
use jobfence::schedulers::htcondor::{CONTAINERS_BRANCH, JOBS_BRANCH, LOCAL, STARTER, STARTERS_LEAF};
use jobfence::sys::dir::Dir;
use jobfence::sys::nvidia;
use nix::fcntl::readlink;
use nix::sys::statfs::{Statfs, TMPFS_MAGIC, statfs};
use nix::unistd::{Pid, User, execv, geteuid, getppid};

use crate::command::{fenced, ignore_sigpipe};
use crate::configured::Configured;
use crate::schedulers::htcondor::monitor::{self, health};
use crate::syslog::SyslogOfDaemon;

use self::kept::Kept;

pub use apart::apart;
pub use environment::CARD;
pub use family::stand_in;
pub use late::ask as ask_late;
pub use refusal::refuse;
pub use watch::watch;

/// The directory of the real starter, if it is not beside the daemon that has started this process.
const USUAL_PLACE: &str = "/usr/sbin";
/// As the only argument: asks the starter what it can do, and no job runs. Among others it can be a user's text (`JobStarterDebug`).
const CAPABILITIES: &str = "-classad";
/// The option before the name of the slot's type. It stands behind the first argument. Elsewhere it can be a user's text
/// (`Starter::execDCStarter`, the same in 23.9 and 25.13).
const LOCAL_NAME: &str = "-local-name";
/// Added to a process ID, the number of an unknown user. No user has a number so high, and a process ID has at most 22 bits
/// (`PID_MAX_LIMIT`, include/linux/threads.h). So jobs of unknown users share no directory, and no limit of one user.
const UNKNOWN_USERS: u32 = 0xff00_0000;
/// The variable with the directory of this starter's sandboxes.
const EXECUTE: &str = "_CONDOR_EXECUTE";

/// Whether a startd or a schedd has started this program: under the starter's name for a job, or with `-classad` alone to ask what the
/// starter can do.
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
        SyslogOfDaemon::begin();
        ignore_sigpipe();
        if let Err(why) = fence(&arguments) {
            log::error!("this job is not run: {why}");
            let sentence = format!("this job cannot be fenced: {why}");
            if let Err(error) = refusal::have_refused(&sentence, slot_type_in(&arguments), is_taken_out()) {
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
    /// The watcher's environment, if a schedd of this host can be told why the job is on hold.
    environment: Vec<CString>,
    /// The limits that the job requests for itself.
    asked: Requests,
    /// HTCondor's settings for the starter, if they are known.
    settings: Option<StarterSettings>,
    /// Memory beside the slot's, for the starter and what it runs for itself, such as the transfer of files.
    room: Option<Room>,
    /// The question to repeat to the startd, if it has not said which job this is.
    question: Option<job::Question>,
}

/// Whether this host can fence no job, and its startd will take no more, because START asks for the host's health.
fn is_taken_out() -> bool {
    let health = health(&Configured { config: None, overrides: Vec::new() });
    matches!(health, Some(Err(_))) && slot::slot().is_ok_and(|slot| slot.asks_for_health)
}

/// Puts this process into a fence of its own, unless the configuration lets the job run without. The error is for the job's user.
fn fence(arguments: &[OsString]) -> Result<(), String> {
    // If the kernel killed the starter with the job, HTCondor would not learn how the job ended.
    let overrides = vec![OsString::from("OOMKillStep=no")];
    let loaded = Configured { config: None, overrides }.load();
    let find = |()| Run::find(arguments, loaded.as_ref().ok().and_then(|loaded| Kept::open(&loaded.config.run_dir)));
    let mut run = match check_host().map_err(NotFenced::from).and_then(find) {
        Ok(run) => run,
        Err(error) => return fenced(life::of_unknown(loaded, error)).map(drop),
    };
    let number = u32::try_from(Pid::this().as_raw()).unwrap_or_default();
    let which = WantedFences { job: run.job.clone(), step: Some(run.step.clone()), run: Some(number) };
    let environment = run.environment.clone();
    let question = run.question.take();
    let (room, settings) = (run.room.take(), run.settings.take());
    let branch = settings.as_ref().map_or(JOBS_BRANCH, |settings| settings.branch.as_str());
    let live = life::open_live(loaded.clone(), &run.request(number, loaded.as_ref().ok()), room.as_ref());
    let Some(mut live) = fenced(live)? else { return Ok(()) };
    // Both processes start before this one enters the fence, so they stay outside. Without the first, only the log lacks the job's number.
    if let Some(question) = &question
        && let Err(error) = late::start(question, which.job.as_str())
    {
        log::warn!("cannot ask later whose fence this is: {error}");
    }
    // Without the watcher, the janitor closes the fence.
    if let Err(error) = watch::start(&which, branch, &environment) {
        log::warn!("job {}: no watcher waits for its end: {error}", which.job);
    }
    let entered = fenced(live.enter(STARTERS_LEAF));
    if !matches!(&entered, Ok(Some(()))) {
        close(loaded.ok().as_ref(), &which);
    } else if let (Ok(loaded), Some(settings)) = (&loaded, &settings)
        && let Err(error) = tell(loaded, &live, settings, slot_type_in(arguments))
    {
        log::warn!("job {}: cannot tell it of its limits: {error}", which.job);
    }
    entered.map(drop)
}

fn tell(loaded: &Loaded, live: &LiveFence, said: &StarterSettings, local_name: Option<&str>) -> Result<()> {
    let Some(site) = &said.job_environment else {
        return Err(Error::new("HTCondor does not say what it tells its jobs"));
    };
    environment::tell(&loaded.config, live, site, &said.branch, local_name)
}

fn close(loaded: Option<&Loaded>, which: &WantedFences) {
    let closed = loaded.map(|loaded| life::close(&loaded.config, which));
    if let Some(Err(error)) = closed {
        log::warn!("job {}: {error}; the janitor looks again", which.job);
    }
}

/// Checks that fences can be made here at all. On cgroup v1 HTCondor takes jobs out of each fence: it makes their directories below the
/// root of each hierarchy.
fn check_host() -> Result<()> {
    if !geteuid().is_root() {
        return Err(Error::new("root has not started this HTCondor, and only root can make fences").hint(
            "start HTCondor as root, or have STARTER and STARTER_LOCAL of its configuration name its own starter",
        ));
    }
    if monitor::has_unified() {
        return Ok(());
    }
    Err(Error::new("HTCondor takes its jobs out of the fence where cgroup v1 is mounted").hint(
        "boot with systemd.unified_cgroup_hierarchy=1, or have STARTER of HTCondor's configuration name its own starter",
    ))
}

impl Run {
    /// The run, as the daemon that has started this process describes it.
    fn find(arguments: &[OsString], kept: Option<Kept>) -> Result<Self, NotFenced> {
        match local::order_in(arguments) {
            Some(order) => {
                Ok(Self::from_local(local::job(order)?, || job::settings(&Id::new(LOCAL)?, None, kept.as_ref()))?)
            }
            None => {
                let slot = slot::slot()?;
                let slot_type = slot_type_in(arguments);
                let host = arguments.last().and_then(|word| word.to_str()).unwrap_or_default();
                let submitter = Submitter { host, is_this_host: slot::submitter_is_here() };
                // Before the job: new settings also clear the note that the startd refuses jobfence's query.
                let settings = job::settings(&slot.slot, slot_type, kept.as_ref());
                let job = job::job_in(&slot, kept.as_ref());
                Self::from_slot(&slot, slot_type, job, || settings, submitter)
            }
        }
    }

    fn from_slot(
        slot: &SlotAd,
        slot_type: Option<&str>,
        job: Result<SlotJob, NotFenced>,
        settings: impl FnOnce() -> Result<StarterSettings>,
        submitter: Submitter<'_>,
    ) -> Result<Self, NotFenced> {
        let job = match job {
            Ok(job) => job,
            Err(why @ NotFenced::Asked(_)) => return Err(why),
            // The grant does not depend on this answer, so a missing answer does not stop the job. Its user and facts stay unknown.
            Err(why) => {
                log::warn!("the fence has the slot's name, and each section that could hold for its job holds: {why}");
                SlotJob::default()
            }
        };
        let settings = settings().inspect_err(|error| {
            log::warn!("each section that could hold for the user of this job holds: {error}");
        });
        let account = settings.as_ref().map(|settings| settings.account(&job, submitter)).unwrap_or_default();
        let limits_memory = !settings.as_ref().is_ok_and(|settings| settings.has_own_memory_limit);
        let branch = settings.as_ref().map_or_else(|_| JOBS_BRANCH.to_owned(), |settings| settings.branch.clone());
        // With `SOFT_UID_DOMAIN` the shadow gives the number of a user that this host does not know.
        let user = account.name.as_deref().and_then(|name| User::from_name(name).ok().flatten());
        let uid = user.as_ref().map(|user| user.uid.as_raw());
        let certain = user.filter(|_| account.is_certain);
        Ok(Self {
            uid: uid.unwrap_or(UNKNOWN_USERS | std::process::id()),
            job: job.job.clone().unwrap_or_else(|| slot.slot.clone()),
            step: slot.slot.clone(),
            cpus: slot.cpus,
            memory: limits_memory.then_some(slot.memory),
            // Also beside `DefaultRAMSpace`, which stands for the slot's memory if HTCondor alone limits that.
            room: Some(Room { more: sandbox(), branches: vec![branch, CONTAINERS_BRANCH.to_owned()] }),
            facts: Facts {
                gpus: gpus_of(slot),
                uid: Fact::from(certain.as_ref().map(|user| user.uid.as_raw())),
                ..job.facts(slot_type, certain.map(|user| user.name))
            },
            environment: reason_of(&job, submitter, slot::sockets_owner()),
            asked: job.asked.clone(),
            settings: settings.ok(),
            question: if job.job.is_none() { job::Question::about(slot).ok() } else { None },
        })
    }

    /// A local job has no grant: no daemon grants the CPUs and memory that its user requests.
    fn from_local(job: local::LocalJob, settings: impl FnOnce() -> Result<StarterSettings>) -> Result<Self> {
        let settings = settings().inspect_err(|error| log::warn!("a local job is told no limits: {error}"));
        let facts = Facts { uid: Fact::Known(job.user.uid.as_raw()), ..job.ad.facts(&job.user.name) };
        let (uid, step) = (job.user.uid.as_raw(), Id::new(LOCAL)?);
        let local::LocalOrder { id, schedd } = job.order;
        let environment = job.ad.global_job.zip(local::sockets_owner());
        let environment =
            environment.map(|(name, owner)| reason::environment(&name, &schedd, owner)).unwrap_or_default();
        Ok(Self {
            uid,
            job: id,
            step,
            cpus: Cpus::ZERO,
            memory: None,
            facts,
            environment,
            asked: job.ad.asked,
            settings: settings.ok(),
            room: None,
            question: None,
        })
    }

    fn request(self, number: u32, loaded: Option<&Loaded>) -> OpenRequest {
        let mut facts = self.facts;
        if let Some(loaded) = loaded {
            user::know_groups(&mut facts, &loaded.asked());
        }
        let mut requests = UserRequests { job: Requests::default(), step: self.asked };
        if requests.names_paths() {
            let rights = user::rights(self.uid);
            requests.paths().for_each(|rules| rules.asked_by(&rights));
        }
        let granted = Granted {
            huge_pages: None,
            cpus: Some(self.cpus),
            memory: self.memory,
            memory_and_swap: None,
            gpus: None,
            requests,
            facts,
            chooses_cores: false,
            is_of_step: true,
        };
        let holder = HeldBy::Process(Pid::this().as_raw());
        OpenRequest {
            uid: self.uid,
            job: self.job,
            step: self.step,
            run: number,
            granted,
            holder,
            ask_unit: None,
            starts_processes: false,
        }
    }
}

/// The watcher's environment, if a schedd of this host can be told why the job is on hold. `owner`: the user that owns the sockets of
/// HTCondor's daemons.
fn reason_of(job: &SlotJob, submitter: Submitter<'_>, owner: Option<u32>) -> Vec<CString> {
    let global_job = job.global_job.as_deref().filter(|_| submitter.is_this_host == Some(true));
    // The job's user can change this text. With an address in place of the name, root would connect to that address.
    let schedd = global_job.and_then(|name| name.split('#').next()).filter(|name| !name.starts_with('<'));
    let all = global_job.zip(schedd).zip(owner);
    all.map(|((name, schedd), owner)| reason::environment(name, schedd, owner)).unwrap_or_default()
}

/// The memory that the job's sandbox can take: none, unless it is in a tmpfs. What the starter writes there, also before the job begins, is
/// charged to the starter's cgroup, as without a fence. What the job writes is charged to the job's.
fn sandbox() -> u64 {
    let found = std::env::var_os(EXECUTE).and_then(|path| statfs(Path::new(&path)).ok());
    let tmpfs = found.filter(|found| found.filesystem_type() == TMPFS_MAGIC);
    let size = |found: Statfs| found.blocks().saturating_mul(u64::try_from(found.block_size()).unwrap_or_default());
    tmpfs.map_or(0, size)
}

/// The slot's GPUs. The driver is asked only if the slot has some.
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

/// Replaces this process by the real starter.
fn become_starter(arguments: &[OsString]) -> Result<Infallible> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new("a NUL in a word"));
    let path = real_starter()?;
    let words: Vec<CString> = arguments.iter().map(|word| c_string(word.as_bytes())).collect::<Result<_>>()?;
    execv(&c_string(path.as_os_str().as_bytes())?, &words).map_err(|errno| Error::os("run", &path, errno))
}

/// The real starter, beside the daemon that has started this process or at the usual place. Never this program.
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

/// Restores the default, since the starter would go on to ignore the signal.
fn default_sigpipe() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action is no code of ours.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

#[cfg(test)]
mod tests {
    use jobfence::schedulers::htcondor::slot_gpus::SlotGpus;

    use super::*;

    fn slot() -> SlotAd {
        let gpus = SlotGpus::default();
        let name = "slot1_1@n".to_owned();
        SlotAd {
            name,
            slot: Id::new("slot1_1").unwrap(),
            cpus: Cpus::whole(1),
            memory: 1 << 30,
            gpus,
            asks_for_health: false,
        }
    }

    fn of_slot(job: Result<SlotJob, NotFenced>) -> Result<Run, NotFenced> {
        of_slot_by("hard", job)
    }

    fn of_slot_by(policy: &str, job: Result<SlotJob, NotFenced>) -> Result<Run, NotFenced> {
        let settings = "UID_DOMAIN = x\nTRUST_UID_DOMAIN = true\nTRUST_LOCAL_UID_DOMAIN = true\n\
                        STARTER_ALLOW_RUNAS_OWNER = \nSLOT_USER = \nNOBODY_SLOT_USER = daemon\n\
                        CGROUP_MEMORY_LIMIT_POLICY = hard\nBASE_CGROUP = htcondor\n";
        let settings = settings.replace("hard", policy);
        let submitter = Submitter { host: "n", is_this_host: Some(true) };
        Run::from_slot(&slot(), None, job, || StarterSettings::parse(&settings), submitter)
    }

    fn of_user(user: &str) -> Run {
        of_slot(Ok(SlotJob::parse(&format!("JobId = \"12.0\"\nRemoteUser = \"{user}\"\n")).unwrap())).unwrap()
    }

    /// The words are recorded from real daemons (tests/htcondor/record.py).
    #[test]
    fn a_starters_words_are_understood() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/htcondor/recorded");
        for release in std::fs::read_dir(top).unwrap() {
            let place = release.unwrap().path();
            let words = |kind: &str| -> Vec<OsString> {
                let text = std::fs::read_to_string(place.join(kind).join("arguments")).unwrap();
                [STARTER].into_iter().chain(text.lines()).map(OsString::from).collect()
            };
            let (slot, local) = (words("slot"), words("local"));
            let asks = [&words("capabilities"), &slot, &local].map(|words| asks_for_capabilities(words));
            assert_eq!(asks, [true, false, false], "{}", place.display());
            assert_eq!((slot_type_in(&slot), local::order_in(&slot)), (Some("slot_type_1"), None));
            assert!(local::order_in(&local).is_some_and(|order| order.schedd.starts_with("<127.0.0.1:9618?")));
        }
    }

    #[test]
    fn a_job_whose_user_is_not_said_is_unknown_and_not_nobodys() {
        let late = of_slot(Err(NotFenced::General(Error::new("condor_status does not answer")))).unwrap();
        assert_eq!((late.uid, late.job.as_str()), (UNKNOWN_USERS | std::process::id(), "slot1_1"));
        let facts = late.facts;
        assert_eq!((facts.uid, facts.user, facts.account), (Fact::Unknown, Fact::Unknown, Fact::Unknown));
        let soft = of_user("no-such-user@x");
        assert_eq!((soft.uid, soft.facts.uid), (UNKNOWN_USERS | std::process::id(), Fact::Unknown));
        assert_eq!(of_user("root@x").facts.uid, Fact::Known(0));
        let said = Ok(SlotJob::parse("JobId = \"12.0\"\nRemoteUser = \"root@x\"\n").unwrap());
        let submitter = Submitter { host: "n", is_this_host: Some(true) };
        let silent = Run::from_slot(&slot(), None, said, || Err(Error::new("condor_config_val")), submitter).unwrap();
        assert_eq!((silent.uid >= UNKNOWN_USERS, silent.job.as_str()), (true, "12.0"));
    }

    #[test]
    fn the_starter_has_room_beside_the_memory_of_the_slot() {
        let run = of_user("root@x");
        let branches = ["htcondor", "docker"].map(str::to_owned).to_vec();
        assert_eq!((run.memory, run.room.unwrap().branches), (Some(1 << 30), branches.clone()));
        // HTCondor alone limits memory here, unless DefaultRAMSpace does.
        let run = of_slot_by("custom", Ok(SlotJob::default())).unwrap();
        assert_eq!((run.memory, run.room.map(|room| room.branches)), (None, Some(branches)));
    }

    #[test]
    fn a_user_lowers_limits_and_a_schedd_of_this_host_says_why_a_job_is_held() {
        let text = "JobId = \"12.0\"\nRemoteUser = \"root@x\"\nGlobalJobId = \"n#12.0#7\"\nJobfencePidsMax = 60\n";
        let job = SlotJob::parse(text).unwrap();
        let submitter = |is_this_host| Submitter { host: "n", is_this_host };
        let said = |job, here, owner| reason_of(job, submitter(here), owner);
        assert!(said(&job, Some(true), Some(7)).iter().any(|line| line.as_bytes() == b"JOBFENCE_SCHEDD=n"));
        assert_eq!([Some(false), None].map(|here| said(&job, here, Some(7)).len()), [0, 0]);
        assert!(said(&job, Some(true), None).is_empty(), "it is not known whose sockets HTCondor's are");
        let forged = SlotJob::parse(&text.replace("n#12", "<127.0.0.1:4444>#12")).unwrap();
        assert!(said(&forged, Some(true), Some(7)).is_empty(), "an address of the user's");
        let granted = of_slot(Ok(job)).unwrap().request(1, None).granted;
        assert_eq!((granted.requests.step.pids_max, granted.requests.job), (Some(60), Requests::default()));
    }

    #[test]
    fn a_stranger_has_the_slots_user_and_no_section_of_a_local_one() {
        let stranger = of_user("root@elsewhere");
        assert_eq!((stranger.uid, stranger.facts.uid, stranger.facts.user), (1, Fact::Unknown, Fact::Unknown));
    }

    #[test]
    fn what_a_user_has_written_is_refused_also_where_errors_are_borne() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "OnError=warn\n").unwrap();
        let loaded = || Configured { config: Some(file.path().to_owned()), overrides: Vec::new() }.load();
        let ends = |text: &str| Err(NotFenced::Asked(SlotJob::parse(text).unwrap_err()));
        let forged = ends("AccountingGroup = \"a\nJobId = \"9.0\"\n\"\nJobId = \"12.0\"\n");
        let why = of_slot(forged).map(drop).unwrap_err();
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
