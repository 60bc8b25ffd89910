// SPDX-License-Identifier: GPL-2.0-or-later
//! execd's files about a job in its spool: `active_jobs/JOB.TASK`, or `active_jobs/JOB.TASK/PETASK` for a slave task.
//!
//! The directory is execd's, and no user can write to it. But some values are the user's: the job's name, arguments and directory. A
//! newline in such a value begins a line that looks like execd's. So each key must have one value, and the line behind a user's value must
//! have the key that execd writes there. Lines are read as the shepherd reads them: see [`Values::from_config`]. The keys are those of
//! `exec_job.c` of 8.1.9. Open Cluster Scheduler 9 has other keys, and other meanings of the same keys, so its jobs are refused.
//!
//! An error that a user can cause is [`NotFenced::Asked`], which refuses the job whatever `OnError` is: a user must not escape the fence
//! by a malformed value.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::User;

use crate::config::{PerSlot, SlotRequest};
use crate::error::{Error, Result};
use crate::facts::{Fact, Facts, job_name};
use crate::job::{Cpus, Id};
use crate::launch::NotFenced;
use crate::printable::is_printable;
use crate::report::card;
use crate::requests::{self, Requests};
use crate::schedulers::gridengine::amount::{number, whole};
use crate::schedulers::gridengine::card::time;
use crate::schedulers::gridengine::complexes::{Counted, Debits};
use crate::sys::dir::Dir;

/// The file that tells the shepherd what to start.
pub const CONFIG: &str = "config";
/// The hosts of a parallel job: a line for each queue instance has the host, the slots there, the queue and a set of processors.
const HOSTS: &str = "pe_hostfile";
/// The shepherd reads a line in pieces of this many bytes (`read_config` of `config_file.c`).
const PIECE: usize = 99_999;
/// The job's script, or the kind of an interactive job.
pub(super) const SCRIPT: &str = "script_file";
/// The script names of interactive jobs, each with the key of the daemon that the shepherd starts for it (`shepherd.c`).
pub(super) const SESSIONS: [(&str, &str); 3] =
    [("QRSH", "rsh_daemon"), ("QRLOGIN", "rlogin_daemon"), ("QLOGIN", "qlogin_daemon")];
/// The script name of a job of qsh(1), which has no such daemon (`builtin_starter.c`).
const TERMINAL: &str = "INTERACTIVE";
/// The host and the port of an interactive job's client.
pub(super) const CALLED: &str = "qrsh_control_port";
/// Each key with a user's value, and the key that execd writes behind it.
pub(super) const BEHIND: [(&str, &str); 21] = [
    ("fs_stdin_host", "fs_stdin_path"),
    ("fs_stdin_path", "fs_stdin_tmp_path"),
    ("fs_stdin_tmp_path", "fs_stdin_file_staging"),
    ("fs_stdout_host", "fs_stdout_path"),
    ("fs_stdout_path", "fs_stdout_tmp_path"),
    ("fs_stdout_tmp_path", "fs_stdout_file_staging"),
    ("fs_stderr_host", "fs_stderr_path"),
    ("fs_stderr_path", "fs_stderr_tmp_path"),
    ("fs_stderr_tmp_path", "fs_stderr_file_staging"),
    ("stdout_path", "stderr_path"),
    ("stderr_path", "stdin_path"),
    ("stdin_path", "merge_stderr"),
    ("shell_path", "script_file"),
    ("script_file", "job_owner"),
    ("cwd", "prolog"),
    ("pe_stdout_path", "pe_stderr_path"),
    ("pe_stderr_path", "shell_start_mode"),
    ("mail_list", "mail_options"),
    ("job_name", "job_id"),
    ("account", "submission_time"),
    ("display", "use_afs"),
];
/// The beginning of an argument's key, and the key that execd writes behind the last argument.
pub(super) const ARGUMENT: &str = "job_arg";
const BEHIND_ARGUMENTS: &str = "queue_tmpdir";
/// The characters that end a key, and are skipped before it.
const ENDS_OF_KEY: [char; 2] = [' ', '='];
/// The file with the job's environment, including variables that a JSV has added.
pub const ENVIRONMENT: &str = "environment";
/// The variable in which `jobfence jsv` notes the job's requests of CPUs, memory and GPUs.
pub const REQUESTED: &str = "JOBFENCE_REQUESTED";
/// The requests of memory that execd writes: the lower of what the job asks for and what its queue allows (`reduce_queue_limit` of
/// `sge_give_jobs.c`).
pub const OF_EXECD: [&str; 6] = ["h_vmem", "s_vmem", "h_data", "s_data", "h_rss", "s_rss"];
/// The end of the key that says whether such a request is a consumable of the whole job.
const IS_OF_JOB: &str = "_is_consumable_job";
/// Whether the job has run before, in its environment (`exec_job.c`).
const RESTARTED: &str = "RESTARTED";
/// The most bytes of a file: more than the arguments or the variables of a job need.
const LARGEST: u64 = 16 << 20;
/// The hint for a line that is not execd's.
const NEWLINE: &str = "a newline in the name, a path or an argument of the job can do that; submit it without";
/// The hint for a job of a relative of Grid Engine, which sums amounts, says slots and binds to cores in other ways.
const OTHER_FAMILY: &str = "jobfence knows what is granted by Son of Grid Engine 8.1; set shepherd_cmd to none";
/// The last second that `sge_u32` can hold.
const LAST_SECOND: u64 = u32::MAX as u64;
/// execd's word for no value.
pub(super) const NONE: &str = "none";
/// execd's words for no binding to cores.
const UNBOUND: [&str; 2] = ["NULL", "no_job_binding"];

/// A job on this host, or one slave task of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SpooledJob {
    /// The job's number; for a task of an array, a dot and the task's number follow.
    pub job: Id,
    /// The slave task's name; `None` for the job's own script.
    pub slave_task: Option<Id>,
    /// The job's user.
    pub uid: u32,
    /// The slots on this host.
    pub slots: u32,
    /// Whether execd says the slots. If not, `slots` is 1, as in the shepherd (`setrlimits.c`).
    pub are_slots_known: bool,
    /// Whether this is the host of the job's script. An amount for the whole job is debited there alone.
    pub is_master_host: bool,
    /// The host's name in Grid Engine.
    pub host: String,
    /// What qmaster debits here for the jobs of this queue.
    pub debits: Debits,
    /// The limits that execd writes, by the names of the requests.
    of_execd: BTreeMap<&'static str, Requested>,
    /// The job's requests of CPUs, memory and GPUs that the site's JSV has noted, by name.
    requested: BTreeMap<String, f64>,
    /// Whether a JSV has noted the job's requests, even if there are none.
    is_noted: bool,
    /// The lower limits that the user asks for in variables of the job's environment.
    pub asked: Requests,
    /// Whether the user can read more than ASCII, by the job's environment.
    pub is_utf8: bool,
    /// The facts by which sections of the configuration are chosen.
    pub facts: Facts,
    /// Whether the shepherd stops the job at once: without a warning before (`qsub -notify`), and without a method of the queue.
    pub is_stopped_at_once: bool,
    /// Where its errors go, as `-e` of qsub(1), or `-o` if both streams go into one file: a file, or its directory.
    pub errors_path: String,
    /// The name of the file, if `errors_path` is a directory.
    pub errors_name: String,
    /// Whether it is a task of an array.
    pub is_array_task: bool,
    /// How long it may run. `None`: no limit, or execd does not say it, as that of 8.1.9.
    pub time_limit: Option<Duration>,
    /// Whether the shepherd binds it to cores (`qsub -binding`).
    pub is_bound: bool,
    /// Whether an earlier run of it has gone back into the queue, by execd's variable.
    pub is_restarted: bool,
    /// Why no run of it with more memory may follow this one. `None`: execd's files do not say a reason.
    pub no_second_run: Option<&'static str>,
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Requested {
    bytes: f64,
    /// Whether it is for the whole job, and not for each slot.
    is_of_job: bool,
}

impl SpooledJob {
    /// Reads the job from the directory in which its shepherd starts.
    pub fn read(dir: &Dir) -> Result<Self, NotFenced> {
        let (text, environment) = (read(dir, CONFIG)?, read(dir, ENVIRONMENT)?);
        let hosts = hosts(dir)?;
        // A slave task's directory has the task's name. A task's name in the `config` of the job's own directory was forged by the user.
        let name = dir.path().file_name().and_then(OsStr::to_str).unwrap_or_default();
        // A mistake of the user's needs no path: the user knows where it was made.
        let at = |name| {
            move |why| match why {
                NotFenced::General(error) => error.at(dir.path().join(name)).into(),
                asked => asked,
            }
        };
        Self::parse(&text, name, hosts.as_deref())
            .map_err(at(CONFIG))?
            .with_environment(&environment)
            .map_err(at(ENVIRONMENT))
    }

    /// Adds what the job's environment says.
    pub fn with_environment(self, text: &str) -> Result<Self, NotFenced> {
        let environment = Values::from_text(text);
        let mut asked = Requests::default();
        for request in requests::everywhere() {
            let name = request.variable();
            if let Some(value) = environment.find(&name)?.filter(|value| !value.is_empty()) {
                request.read(&name, value.as_bytes(), &mut asked).map_err(NotFenced::Asked)?;
            }
        }
        let is_utf8 = card::is_utf8(|name| environment.find(name).ok().flatten().map(str::to_owned));
        let is_noted = environment.find(REQUESTED)?.is_some();
        // 2 is for a job that goes on from a checkpoint.
        let is_restarted = environment.find(RESTARTED).ok().flatten() == Some("1");
        Ok(Self { requested: requested(&environment)?, is_noted, asked, is_utf8, is_restarted, ..self })
    }

    /// Reads the job from the text of `config`. `directory` is the name of the spool directory, and `hosts` the text of `pe_hostfile`.
    pub fn parse(text: &str, directory: &str, hosts: Option<&str>) -> Result<Self, NotFenced> {
        let config = Values::from_config(text)?;
        // Times of Open Cluster Scheduler are microseconds, in 64 bits.
        if config
            .find("submission_time")?
            .and_then(|time| time.parse().ok())
            .is_some_and(|time: u64| time > LAST_SECOND)
        {
            return Err(Error::new("this is a job of Open Cluster Scheduler").hint(OTHER_FAMILY).into());
        }
        let owner = config.get("job_owner")?;
        let user = User::from_name(owner)
            .map_err(|errno| Error::new("cannot look for the job's user").value(short(owner)).errno(errno))?
            .ok_or_else(|| Error::new("this node does not know the job's user:").value(short(owner)))?;
        let uid = user.uid.as_raw();
        let (number, task) = (config.get("job_id")?, config.get("ja_task_id")?);
        let is_array = task != "0";
        let job = if is_array { format!("{number}.{task}") } else { number.to_owned() };
        let slave_task = config.slave_task(directory)?.map(Id::new).transpose()?;
        let slots = slots(&config, slave_task.is_some(), hosts)?;
        let named =
            |key| Ok::<_, NotFenced>(config.find(key)?.filter(|name| *name != NONE).unwrap_or_default().to_owned());
        // qmaster checks that the user may have the queue, the project and the parallel environment, but not the account.
        let facts = Facts {
            partition: Fact::Known(named("queue")?),
            account: Fact::Claimed(named("account")?),
            job_name: job_name(config.find("job_name")?.unwrap_or_default()),
            project: Fact::Known(named("acct_project")?),
            pe: Fact::Known(named("pe")?),
            vnode_types: Fact::Known(Vec::new()),
            qos: Fact::Known(String::new()),
            uid: Fact::Known(uid),
            user: Fact::Known(user.name),
            ..Facts::default()
        };
        let is_none =
            |key| Ok::<_, NotFenced>(config.find(key)?.is_none_or(|method| method.eq_ignore_ascii_case(NONE)));
        let is_merged = config.find("merge_stderr")? == Some("1");
        let (stream, letter) = if is_merged { ("stdout_path", 'o') } else { ("stderr_path", 'e') };
        let part = if is_array { format!(".{task}") } else { String::new() };
        let no_second_run = no_second_run(&config, is_array, slots)?;
        Ok(Self {
            job: Id::new(job)?,
            no_second_run,
            is_restarted: false,
            is_master_host: slave_task.is_none() || hosts.is_some(),
            slave_task,
            uid,
            slots: slots.unwrap_or(1),
            are_slots_known: slots.is_some(),
            host: config.find("host")?.unwrap_or_default().to_owned(),
            debits: Debits::default(),
            of_execd: of_execd(&config)?,
            requested: BTreeMap::new(),
            is_noted: false,
            asked: Requests::default(),
            is_utf8: false,
            is_array_task: is_array,
            time_limit: config.find("h_rt")?.and_then(time),
            is_bound: config.find("binding")?.is_some_and(|binding| !UNBOUND.contains(&binding)),
            facts,
            is_stopped_at_once: is_none("suspend_method")?
                && config.find("notify")?.is_none_or(|seconds| seconds == "0"),
            errors_path: config.find(stream)?.unwrap_or_default().to_owned(),
            errors_name: format!("{}.{letter}{number}{part}", config.find("job_name")?.unwrap_or_default()),
        })
    }

    /// The job's share of a request on this host. `None`: the job does not ask for it, and has none by default.
    fn share(&self, request: &SlotRequest, wanted: &[SlotRequest]) -> Option<Share> {
        let (name, of_execd) = (&request.name, self.of_execd.get(request.name.as_str()));
        let asked = of_execd.map(|limit| limit.bytes).or_else(|| self.requested.get(name).copied());
        // An amount that execd writes already includes the default.
        let is_asked = |name: &str| is_of_execd(name) || self.requested.contains_key(name);
        // The JSV notes the requests that the site's keys name. No note at all: there is no JSV.
        let is_noted = |name: &str| is_of_execd(name) || wanted.iter().any(|one| one.name == name);
        let unasked = || self.is_noted.then(|| self.debits.unasked(name, is_asked, is_noted)).flatten();
        let amount = asked.or_else(unasked)?;
        let of_shepherd = of_execd.filter(|limit| limit.is_of_job).map(|_| Counted::Job);
        let per = match (request.per, self.debits.counted(name).or(of_shepherd)) {
            (PerSlot::AsCounted, Some(Counted::Job)) => PerSlot::Job,
            (PerSlot::AsCounted, Some(Counted::Host)) => PerSlot::Host,
            (PerSlot::AsCounted, _) => PerSlot::Slot,
            (said, _) => said,
        };
        Some(match per {
            PerSlot::Job if !self.is_master_host => Share::Elsewhere,
            PerSlot::Job | PerSlot::Host => Share::Here { amount, times: 1 },
            _ => Share::Here { amount, times: self.slots },
        })
    }

    /// The lowest share of these requests here; 0 if all were debited elsewhere. `None`: the job has none of them.
    fn lowest(&self, wanted: &[SlotRequest], one: impl Fn(f64, u32) -> u64) -> Option<u64> {
        let shares: Vec<Share> = wanted.iter().filter_map(|request| self.share(request, wanted)).collect();
        let here = shares.iter().filter_map(|share| match share {
            Share::Here { amount, times } => Some(one(*amount, *times)),
            Share::Elsewhere => None,
        });
        here.min().or_else(|| (!shares.is_empty()).then_some(0))
    }

    /// The job's shares here of those of these requests that it has: the request, all of its amount, and how often an amount counts.
    pub fn shares<'a>(&self, wanted: &'a [SlotRequest]) -> Vec<(&'a str, u64, u32)> {
        let one = |request: &'a SlotRequest| match self.share(request, wanted)? {
            Share::Here { amount, times } => {
                Some((request.name.as_str(), whole(amount).saturating_mul(u64::from(times)), times))
            }
            Share::Elsewhere => None,
        };
        wanted.iter().filter_map(one).collect()
    }

    /// Memory in bytes on this host: the lowest of these requests. `None`: the job has none of them.
    pub fn memory(&self, wanted: &[SlotRequest]) -> Option<u64> {
        self.lowest(wanted, |amount, times| whole(amount).saturating_mul(u64::from(times)))
    }

    /// GPUs on this host: the sum of these requests, as the site's JSV has noted them.
    pub fn gpus(&self, wanted: &[SlotRequest]) -> u64 {
        let one = |request: &SlotRequest| match self.share(request, wanted) {
            Some(Share::Here { amount, times }) => whole(amount).saturating_mul(u64::from(times)),
            _ => 0,
        };
        wanted.iter().map(one).fold(0, u64::saturating_add)
    }

    /// Hardware threads on this host: the lowest of these requests. If the job has none of them: `of_a_slot` for each slot.
    pub fn cpus(&self, wanted: &[SlotRequest], of_a_slot: Cpus) -> Cpus {
        let requested = self.lowest(wanted, |amount, times| whole(amount * 1000.0 * f64::from(times)));
        let of_slots = of_a_slot.thousandths().saturating_mul(u64::from(self.slots));
        Cpus::from_thousandths(requested.unwrap_or(of_slots))
    }

    /// Whether execd says all about this request. For `h_rss` and `s_rss` it says the amount, but not whether it is for each slot.
    pub fn is_said(&self, request: &SlotRequest) -> bool {
        let is_parallel = self.facts.pe.known().is_none_or(|pe| !pe.is_empty());
        let is_counted = !["h_rss", "s_rss"].contains(&request.name.as_str());
        is_of_execd(&request.name) && (is_counted || request.per != PerSlot::AsCounted || !is_parallel)
    }

    /// The requests that were debited on the host of the job's script alone, if this is another host.
    pub fn elsewhere<'a>(&self, wanted: &'a [SlotRequest]) -> Vec<&'a str> {
        let is_elsewhere = |request: &&SlotRequest| matches!(self.share(request, wanted), Some(Share::Elsewhere));
        wanted.iter().filter(is_elsewhere).map(|request| request.name.as_str()).collect()
    }
}

/// A job's share of a request on one host.
enum Share {
    /// `amount`, `times` times.
    Here { amount: f64, times: u32 },
    /// All of it was debited on the host of the job's script.
    Elsewhere,
}

/// Whether execd itself writes how much of this request a job has.
pub fn is_of_execd(name: &str) -> bool {
    OF_EXECD.contains(&name)
}

/// The keys and values of a file's lines.
pub(super) struct Values<'a>(pub(super) Vec<(&'a str, &'a str)>);

impl<'a> Values<'a> {
    fn from_text(text: &'a str) -> Self {
        Self(text.lines().filter_map(|line| line.split_once('=')).collect())
    }

    /// Reads `config` as `read_config` of the shepherd's `config_file.c` does: blanks and `=` before a key are skipped, the first of them
    /// behind it ends it, and of two values the last counts. So a forged line means the same here as to the shepherd, and is found.
    pub(super) fn from_config(text: &'a str) -> Result<Self, NotFenced> {
        let asked = |error: Error| NotFenced::Asked(error.hint(NEWLINE));
        let (mut all, mut known, mut before) = (Vec::new(), BTreeMap::new(), "");
        for line in text.split_terminator('\n') {
            let line = line.trim_start_matches(ENDS_OF_KEY);
            let (key, value) = line.split_once(ENDS_OF_KEY).unwrap_or((line, ""));
            if line.len() >= PIECE {
                let long = Error::new(format!("{} is longer than the shepherd reads at once", short(key)));
                return Err(NotFenced::Asked(long.hint("submit the job with less in its arguments and paths")));
            }
            // execd writes only a slave task's number twice.
            if known.insert(key, value).is_some_and(|other| other != value || key != "pe_task_id") {
                return Err(asked(Error::new(format!("{} stands there with more than one value", short(key)))));
            }
            let is_expected = match BEHIND.iter().find(|(of_user, _)| *of_user == before) {
                Some((_, behind)) => key == *behind,
                // execd writes the daemon that the shepherd starts for the client behind the client's address.
                None if before == CALLED => SESSIONS.iter().any(|(of, daemon)| {
                    *daemon == key && known.get(SCRIPT).is_some_and(|file| file.eq_ignore_ascii_case(of))
                }),
                None => !before.starts_with(ARGUMENT) || key.starts_with(ARGUMENT) || key == BEHIND_ARGUMENTS,
            };
            if !is_expected {
                return Err(asked(Error::new(format!("behind {} stands {:?}", short(before), short(line)))));
            }
            all.push((key, value));
            before = key;
        }
        Ok(Self(all))
    }

    pub(super) fn find(&self, key: &str) -> Result<Option<&'a str>, NotFenced> {
        let mut values = self.0.iter().filter(|(of, _)| *of == key).map(|(_, value)| *value);
        match values.next() {
            None => Ok(None),
            Some(value) if values.all(|other| other == value) => Ok(Some(value)),
            Some(_) => {
                let twice = Error::new(format!("{key} stands there with more than one value")).hint(NEWLINE);
                Err(NotFenced::Asked(twice))
            }
        }
    }

    /// The slave task's name, if this directory is a slave task's.
    pub(super) fn slave_task(&self, directory: &str) -> Result<Option<&'a str>, NotFenced> {
        Ok(self.find("pe_task_id")?.filter(|task| *task == directory))
    }

    fn get(&self, key: &str) -> Result<&'a str, NotFenced> {
        Ok(self.find(key)?.ok_or_else(|| Error::new(format!("{key} is missing")))?)
    }
}

/// The text of `pe_hostfile`. execd writes it on the host of the job's script alone, into the job's own spool directory.
fn hosts(dir: &Dir) -> Result<Option<String>> {
    match (dir.read_if_there(HOSTS)?, dir.path().parent()) {
        (None, Some(of_job)) => Dir::open(of_job)?.read_if_there(HOSTS),
        (found, _) => Ok(found),
    }
}

/// The slots on this host. `None`: execd does not say them.
///
/// `host_slots` is right for the job's own script. For a slave task, `exec_job.c` writes 0 unless execd binds to cores. If it binds and the
/// host's name differs from Grid Engine's, it writes all slots of the job that execd knows. On the script's host these are the whole job's,
/// so `hosts` counts there. On another host they are its own: qmaster sends no others (`send_slave_jobs` of `sge_give_jobs.c`).
fn slots(config: &Values<'_>, is_slave: bool, hosts: Option<&str>) -> Result<Option<u32>, NotFenced> {
    let (text, host) = (config.get("host_slots")?, config.find("host")?.unwrap_or_default());
    let number: u32 = text.parse().map_err(|_| Error::new("host_slots is no number of slots:").value(short(text)))?;
    if !is_slave && number > 0 {
        return Ok(Some(number));
    }
    let of_host = |line: &str| {
        let mut words = line.split(' ');
        let is_it = words.next()?.eq_ignore_ascii_case(host);
        words.next()?.parse::<u32>().ok().filter(|_| is_it)
    };
    if let Some(hosts) = hosts {
        let found = hosts.lines().filter_map(of_host).fold(0, u32::saturating_add);
        return Ok(Some(found).filter(|found| *found > 0));
    }
    let known = config.find("pe_slots")?.and_then(|text| text.parse().ok());
    Ok(Some(number).into_iter().chain(known).find(|slots| *slots > 0))
}

/// Why no run with more memory may follow this one.
///
/// All tasks of an array ask for the same. `qmaster_params` has `FORBID_RESCHEDULE` where no exit status of a job puts it back.
fn no_second_run(config: &Values<'_>, is_array: bool, slots: Option<u32>) -> Result<Option<&'static str>, NotFenced> {
    let is_on = |key| Ok::<_, NotFenced>(config.find(key)?.is_some_and(|word| word == "1"));
    let script = config.find(SCRIPT)?.unwrap_or_default();
    let all = config.find("pe_slots")?.and_then(|text| text.parse::<u32>().ok());
    let mut interactive = SESSIONS.iter().map(|(of, _)| *of).chain([TERMINAL]);
    let reasons = [
        (interactive.any(|of| script.eq_ignore_ascii_case(of)), "it is interactive"),
        (is_array, "it is a task of an array, and all tasks ask for the same"),
        (all.is_some_and(|all| Some(all) != slots), "it has slots on other hosts"),
        (is_on("ckpt_job")?, "it has a checkpointing environment"),
        (is_on("forbid_reschedule")?, "qmaster_params has FORBID_RESCHEDULE"),
    ];
    Ok(reasons.into_iter().find_map(|(is_so, why)| is_so.then_some(why)))
}

/// Reads a file that only execd can have written.
fn read(dir: &Dir, name: &str) -> Result<String, NotFenced> {
    let path = dir.path().join(name);
    let file = dir.open_file(name, OFlag::O_RDONLY)?;
    let stat = nix::sys::stat::fstat(&file).map_err(|errno| Error::os("look at", &path, errno))?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_mode & 0o022 != 0 {
        return Err(Error::new("this is no file that execd has written").at(&path).into());
    }
    if u64::try_from(stat.st_size).is_ok_and(|size| size > LARGEST) {
        let long = Error::new("this is too long to be read").at(&path).value(stat.st_size);
        return Err(NotFenced::Asked(long.hint("submit the job with less in its arguments and its variables")));
    }
    Ok(dir.read(name)?)
}

/// The limits that the shepherd sets for each process: for each slot, unless the complex is a consumable of the whole job
/// (`setrlimits.c`). execd does not say that of `h_rss` and `s_rss`: there the site says it with `:job` in the configuration.
fn of_execd(config: &Values<'_>) -> Result<BTreeMap<&'static str, Requested>, NotFenced> {
    let mut all = BTreeMap::new();
    for name in OF_EXECD {
        if let Some(bytes) = config.find(name)?.map(|text| amount_of(name, text)).transpose()?.flatten() {
            let is_of_job = config.find(&format!("{name}{IS_OF_JOB}"))? == Some("1");
            all.insert(name, Requested { bytes, is_of_job });
        }
    }
    Ok(all)
}

/// The requests that the site's JSV has noted, as `NAME=AMOUNT` with commas between them. Without a JSV they are the user's word, so
/// `SlotCPUs`, `SlotMemory` and `SlotGPUs` need it for requests that execd does not write.
fn requested(environment: &Values<'_>) -> Result<BTreeMap<String, f64>, NotFenced> {
    let mut all = BTreeMap::new();
    let noted = environment.find(REQUESTED)?.filter(|noted| !["", NONE].contains(noted));
    for one in noted.into_iter().flat_map(|noted| noted.split(',')) {
        let (name, amount) = one.split_once('=').unwrap_or((one, ""));
        if let Some(amount) = amount_of(name, amount)? {
            all.insert(name.to_owned(), amount);
        }
    }
    Ok(all)
}

/// An amount that a user has asked for. `None`: no limit.
fn amount_of(name: &str, text: &str) -> Result<Option<f64>, NotFenced> {
    let wrong = || format!("{}: found {:?}, expected an amount such as 2 or 1.5G", short(name), short(text));
    number(text).ok_or_else(|| NotFenced::Asked(Error::new(wrong())))
}

/// A value, shortened for a message.
fn short(value: &str) -> String {
    value.chars().filter(|c| is_printable(*c)).take(64).collect()
}

/// The files of a real execd for a job of each kind: the kind, `config` and the hosts.
#[cfg(test)]
pub(super) fn recorded() -> Vec<(String, String, Option<String>)> {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gridengine/recorded/8.1.9");
    let one = |entry: std::io::Result<std::fs::DirEntry>| {
        let job = entry.unwrap();
        let [config, hosts] = [CONFIG, HOSTS].map(|name| std::fs::read_to_string(job.path().join(name)));
        (job.file_name().into_string().unwrap(), config.unwrap(), hosts.ok())
    };
    let all: Vec<_> = std::fs::read_dir(top).unwrap().map(one).collect();
    assert!(all.len() > 10, "{all:?}");
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `config` with its lines in execd's order.
    const JOB: &str = "stdout_path=/home/a\nstderr_path=/home/b\nstdin_path=/dev/null\nmerge_stderr=0\nh_vmem=100M\n\
                       h_vmem_is_consumable_job=0\njob_owner=root\nsuspend_method=NONE\npe=mpi\npe_slots=5\nhost_slots=2\n\
                       queue=all.q\nhost=node2\njob_name=x\njob_id=7\nja_task_id=0\naccount=sge\nsubmission_time=1\nnotify=0\n\
                       acct_project=none\nnjob_args=2\njob_arg1=x\njob_arg2=y\nqueue_tmpdir=/tmp\ndisplay=:0\nuse_afs=0\n";

    const ACCOUNT: &str = "account";

    fn parse(changes: &[(&str, &str)]) -> Result<SpooledJob, NotFenced> {
        parse_beside(changes, None)
    }

    fn parse_beside(changes: &[(&str, &str)], hosts: Option<&str>) -> Result<SpooledJob, NotFenced> {
        let text = changes.iter().fold(JOB.to_owned(), |text, (from, to)| text.replacen(from, to, 1));
        SpooledJob::parse(&text, "1.node2", hosts)
    }

    #[test]
    fn a_job_is_read_as_execd_has_written_it() {
        let job = parse(&[]).unwrap();
        assert_eq!((job.job.as_str(), job.slave_task.as_ref(), job.uid, job.slots), ("7", None, 0, 2));
        assert_eq!(job.memory(&[SlotRequest::new("h_vmem", PerSlot::AsCounted)]), Some(200 << 20));
        assert_eq!(job.facts.partition, Fact::Known("all.q".to_owned()));
        assert_eq!(job.facts.project, Fact::Known(String::new()));
        assert_eq!(job.facts.account, Fact::Claimed("sge".to_owned()), "nobody has checked it");
        assert_eq!(job.facts.pe, Fact::Known("mpi".to_owned()));
        assert_eq!(parse(&[("pe=mpi", "pe=none")]).unwrap().facts.pe, Fact::Known(String::new()));
        assert!(job.is_stopped_at_once);
        assert_eq!((job.errors_path.as_str(), job.errors_name.as_str()), ("/home/b", "x.e7"));
        assert_eq!(job.cpus(&[], Cpus::from_thousandths(500)), Cpus::whole(1));
    }

    /// Files of a real execd (tests/gridengine/record.py), with a user that this host has.
    #[test]
    fn what_execd_has_written_is_understood() {
        for (kind, text, hosts) in recorded() {
            let text = text.replace("job_owner=alice", "job_owner=root");
            let job =
                SpooledJob::parse(&text, "1.node1", hosts.as_deref()).unwrap_or_else(|why| panic!("{kind}: {why}"));
            assert_eq!(job.slave_task.is_some(), kind == "slave", "{kind}");
            assert_eq!(job.slots, if ["slave", "parallel"].contains(&kind.as_str()) { 2 } else { 1 }, "{kind}");
            assert_eq!((job.is_array_task, job.is_bound), (kind == "array", kind == "bound"), "{kind}");
            assert_eq!(job.is_stopped_at_once, kind != "array", "{kind}: with -notify");
            let memory = if kind == "batch" { 100 } else { 200 };
            let found = job.memory(&[SlotRequest::new("h_vmem", PerSlot::AsCounted)]);
            assert_eq!(found, Some((memory << 20) * u64::from(job.slots)), "{kind}");
            let (account, project) = if kind == "batch" { ("lab", "biology") } else { ("sge", "") };
            assert_eq!(job.facts.account, Fact::Claimed(account.to_owned()), "{kind}");
            assert_eq!(job.facts.project, Fact::Known(project.to_owned()), "{kind}");
        }
        for (of_user, behind) in BEHIND {
            let is_there = |text: &str| {
                text.contains(&format!("\n{of_user}=")) && {
                    let keys: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
                    keys.windows(2).any(|pair| pair == [of_user, behind])
                }
            };
            assert!(recorded().iter().any(|(_, text, _)| is_there(&format!("\n{text}"))), "{of_user}");
        }
    }

    #[test]
    fn a_task_of_an_array_and_a_slave_task_have_names_of_their_own() {
        let job = parse(&[("ja_task_id=0", "ja_task_id=3"), ("merge_stderr=0", "merge_stderr=1")]).unwrap();
        assert_eq!((job.job.as_str(), job.errors_name.as_str()), ("7.3", "x.o7.3"));
        let job = parse(&[(ACCOUNT, "pe_task_id=1.node2\naccount"), ("use_afs", "pe_task_id=1.node2\nuse_afs")]);
        assert!(job.is_err(), "behind a user's value");
        let twice = ("queue_tmpdir=/tmp", "queue_tmpdir=/tmp\npe_task_id=1.node2");
        let job = parse(&[(ACCOUNT, "pe_task_id=1.node2\naccount"), twice]).unwrap();
        assert_eq!(job.slave_task.unwrap().as_str(), "1.node2");
        assert_eq!(parse(&[(ACCOUNT, "pe_task_id=2.node2\naccount")]).unwrap().slave_task, None);
    }

    #[test]
    fn a_slave_task_has_the_slots_of_its_host() {
        let slots = |says: &str, hosts| {
            let slave = (ACCOUNT, "pe_task_id=1.node2\naccount");
            let job = parse_beside(&[("host_slots=2", &format!("host_slots={says}")), slave], hosts).unwrap();
            (job.slots, job.are_slots_known)
        };
        // execd binds to cores, and does not.
        assert_eq!(["2", "0"].map(|says| slots(says, None)), [(2, true), (5, true)]);
        let hosts = "node1 2 all.q <NULL>\nNode2 1 all.q <NULL>\nnode2 2 long.q UNDEFINED\nnode22 9 all.q <NULL>\n";
        assert_eq!(["2", "0", "5"].map(|says| slots(says, Some(hosts))), [(3, true); 3]);
        assert_eq!(slots("5", Some("node1 2 all.q <NULL>\nx\nnode2\nnode2 many\n")), (1, false));
        // For the job's own script, execd's number counts.
        let of_job = parse_beside(&[("host_slots=2", "host_slots=5")], Some(hosts)).unwrap();
        assert_eq!((of_job.slots, of_job.are_slots_known), (5, true));
    }

    #[test]
    fn the_hosts_of_a_job_are_beside_its_script() {
        let temp = tempfile::tempdir().unwrap();
        let slave = temp.path().join("7.1/1.node2");
        std::fs::create_dir_all(&slave).unwrap();
        assert_eq!(hosts(&Dir::open(&slave).unwrap()).unwrap(), None);
        std::fs::write(temp.path().join("7.1/pe_hostfile"), "node2 3 all.q\n").unwrap();
        for dir in [&slave, &temp.path().join("7.1")] {
            assert_eq!(hosts(&Dir::open(dir).unwrap()).unwrap().as_deref(), Some("node2 3 all.q\n"));
        }
    }

    #[test]
    fn who_is_warned_or_has_a_method_is_not_stopped_at_once() {
        for change in [("notify=0", "notify=60"), ("suspend_method=NONE", "suspend_method=/bin/stop")] {
            assert!(!parse(&[change]).unwrap().is_stopped_at_once, "{change:?}");
        }
    }

    #[test]
    fn a_second_run_is_for_a_job_of_one_host_that_has_a_script() {
        let reason = |changes: &[(&str, &str)]| parse(changes).unwrap().no_second_run.unwrap_or_default();
        let one_host = ("pe_slots=5", "pe_slots=2");
        assert_eq!(reason(&[one_host]), "");
        assert!(reason(&[]).contains("other hosts"));
        assert!(reason(&[one_host, ("ja_task_id=0", "ja_task_id=3")]).contains("array"));
        for (key, why) in [("forbid_reschedule", "FORBID_RESCHEDULE"), ("ckpt_job", "checkpointing")] {
            let with = |value: u32| [one_host, ("notify=0", &*format!("notify=0\n{key}={value}").leak())];
            assert_eq!(reason(&with(0)), "", "{key}");
            assert!(reason(&with(1)).contains(why), "{key}");
        }
        for (kind, text, hosts) in recorded() {
            let text = text.replace("job_owner=alice", "job_owner=root");
            let job = SpooledJob::parse(&text, "1.node1", hosts.as_deref()).unwrap();
            let may = ["batch", "binary", "bound", "parallel"].contains(&kind.as_str());
            assert_eq!(job.no_second_run.is_none(), may, "{kind}: {:?}", job.no_second_run);
        }
        let environment = |text: &str| parse(&[]).unwrap().with_environment(text).unwrap().is_restarted;
        assert_eq!(["", "RESTARTED=0\n", "RESTARTED=1\n"].map(environment), [false, false, true]);
    }

    #[test]
    fn the_shares_of_a_job_are_what_it_has_here() {
        let of_job = ("h_vmem_is_consumable_job=0", "h_vmem_is_consumable_job=1");
        let shares = |changes: &[(&str, &str)], wanted: &[SlotRequest]| {
            let all = parse(changes).unwrap();
            all.shares(wanted)
                .into_iter()
                .map(|(name, all, times)| (name.to_owned(), all >> 20, times))
                .collect::<Vec<_>>()
        };
        let wanted = named(&["h_vmem", "h_rss", "mem_free"], PerSlot::AsCounted);
        assert_eq!(shares(&[], &wanted), [("h_vmem".to_owned(), 200, 2)]);
        assert_eq!(shares(&[of_job], &wanted), [("h_vmem".to_owned(), 100, 1)]);
    }

    #[test]
    fn a_binding_is_one_to_cores() {
        for (binding, is_bound) in [("NULL", false), ("no_job_binding", false), ("linear:1:0,0", true)] {
            let job = parse(&[("notify=0", &format!("notify=0\nbinding={binding}"))]).unwrap();
            assert_eq!(job.is_bound, is_bound, "{binding}");
        }
    }

    #[test]
    fn what_a_user_can_have_written_there_is_refused() {
        let all = [("host_slots", "64"), ("job_owner", "daemon"), ("h_vmem", "1T"), ("queue", "x"), ("pe", "smp")];
        for (key, forged) in all {
            // A blank ends a key, too.
            for line in [format!("{key}={forged}"), format!("{key} {forged}"), format!(" == {key} {forged}")] {
                let error = parse(&[("job_arg2=y", &format!("job_arg2=y\n{line}"))]).unwrap_err().to_string();
                assert!(error.contains(&format!("{key} stands there with more than one value")), "{error}");
            }
        }
        let words = ["stdout_path=/home/a", "job_name=x", "account=sge", "job_arg1=x", "job_arg2=y", "display=:0"];
        for word in words {
            let (key, _) = word.split_once('=').unwrap();
            for forged in ["h_rss 1T", "", "PARAM l_hard gpu=4", "and more"] {
                let error = parse(&[(word, &format!("{word}\n{forged}"))]).unwrap_err().to_string();
                assert!(error.contains(&format!("behind {key} stands {forged:?}")), "{error}");
            }
        }
        // The shepherd takes the rest of a longer line for the next line.
        let long = format!("job_arg2={}", "y".repeat(PIECE));
        let error = parse(&[("job_arg2=y", &long)]).unwrap_err().to_string();
        assert!(error.contains("job_arg2 is longer than the shepherd reads at once"), "{error}");
        for (from, to, why) in [
            ("host_slots=2", "host_slots=-1", "host_slots is no number of slots"),
            ("host_slots=2\n", "", "host_slots is missing"),
            ("job_owner=root", "job_owner=nobody-has-this-name", "does not know the job's user"),
            ("time=1", "time=1790000000000000", "this is a job of Open Cluster Scheduler"),
            ("h_vmem=100M", "h_vmem=much", "h_vmem: found \"much\", expected an amount"),
        ] {
            let error = parse(&[(from, to)]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn memory_is_of_each_slot_or_of_the_job() {
        let memory = |per, changes: &[(&str, &str)]| parse(changes).unwrap().memory(&[SlotRequest::new("h_vmem", per)]);
        let of_job = ("h_vmem_is_consumable_job=0", "h_vmem_is_consumable_job=1");
        assert_eq!(memory(PerSlot::AsCounted, &[of_job]), Some(100 << 20));
        assert_eq!(memory(PerSlot::Slot, &[of_job]), Some(200 << 20));
        assert_eq!(memory(PerSlot::Job, &[]), Some(100 << 20));
        assert_eq!(memory(PerSlot::Slot, &[("h_vmem=100M", "h_vmem=INFINITY")]), None);
        assert_eq!(memory(PerSlot::Slot, &[("h_vmem=100M\n", "")]), None);
    }

    /// Complexes as in `qconf -sc`. The host has all of them to give.
    fn debits() -> Debits {
        let rows = "mem_free mf MEMORY <= YES YES 1G 0\nmem_job mj MEMORY <= YES JOB 0 0\nmem_host mh MEMORY <= YES HOST 0 0\n\
                    threads threads INT <= YES JOB 3 0\nhalves h DOUBLE <= YES YES 0 0\ngpu gpu INT <= YES HOST 1 0\n";
        let names = ["mem_free", "mem_job", "mem_host", "threads", "halves", "gpu"].map(|name| format!("{name}=9"));
        Debits::from_qconf(rows, &[format!("complex_values {}", names.join(","))])
    }

    /// A job with two slots on each host: its script, a slave task on the script's host, and a slave task on another host.
    fn three_places(noted: &str) -> [SpooledJob; 3] {
        let slave = (ACCOUNT, "pe_task_id=1.node2\naccount");
        let of = |changes: &[(&str, &str)], hosts| {
            let job = parse_beside(changes, hosts).unwrap();
            let job = job.with_environment(&format!("JOBFENCE_REQUESTED={noted}\n")).unwrap();
            SpooledJob { debits: debits(), ..job }
        };
        [of(&[], None), of(&[slave], Some("node2 2 all.q <NULL>\n")), of(&[slave], None)]
    }

    fn named(names: &[&str], per: PerSlot) -> Vec<SlotRequest> {
        names.iter().map(|name| SlotRequest::new(name, per)).collect()
    }

    #[test]
    fn an_amount_is_of_what_qmaster_debits() {
        let noted = "mem_free=100M,mem_job=500M,mem_host=300M";
        let jobs = three_places(noted);
        let memory = |names: &[&str], per| jobs.each_ref().map(|job| job.memory(&named(names, per)).map(|of| of >> 20));
        assert_eq!(memory(&["mem_free"], PerSlot::AsCounted), [Some(200); 3]);
        assert_eq!(memory(&["mem_host"], PerSlot::AsCounted), [Some(300); 3]);
        assert_eq!(memory(&["mem_job"], PerSlot::AsCounted), [Some(500), Some(500), Some(0)]);
        // jobfence.conf overrides qmaster.
        assert_eq!(memory(&["mem_job"], PerSlot::Slot), [Some(1000); 3]);
        assert_eq!(memory(&["mem_free"], PerSlot::Host), [Some(100); 3]);
        assert_eq!(memory(&["mem_free"], PerSlot::Job), [Some(100), Some(100), Some(0)]);
        let both = ["mem_host", "mem_job"];
        assert_eq!(memory(&both, PerSlot::AsCounted), [Some(300); 3], "what is debited here counts");
        let [script, _, elsewhere] = &jobs;
        let both = named(&both, PerSlot::AsCounted);
        assert_eq!((script.elsewhere(&both), elsewhere.elsewhere(&both)), (Vec::new(), vec!["mem_job"]));
        let said = |name: &str, per| script.is_said(&SlotRequest::new(name, per));
        let counted = ["h_vmem", "h_rss", "mem_job"].map(|name| said(name, PerSlot::AsCounted));
        assert_eq!((counted, said("h_rss", PerSlot::Job)), ([true, false, false], true));
        let alone = parse(&[("pe=mpi", "pe=none")]).unwrap();
        assert!(alone.is_said(&SlotRequest::new("h_rss", PerSlot::AsCounted)), "a job of one slot");
        // The same holds for an amount that execd writes.
        let of_job = ("h_vmem_is_consumable_job=0", "h_vmem_is_consumable_job=1");
        let slave = parse(&[of_job, (ACCOUNT, "pe_task_id=1.node2\naccount")]).unwrap();
        assert_eq!(slave.memory(&named(&["h_vmem"], PerSlot::AsCounted)), Some(0));
        let gpus = |noted: &str, per| three_places(noted).map(|job| job.gpus(&named(&["gpu"], per)));
        assert_eq!(gpus("gpu=2", PerSlot::AsCounted), [2; 3]);
        assert_eq!(gpus("gpu=2", PerSlot::Job), [2, 2, 0]);
    }

    #[test]
    fn cpus_are_those_of_a_complex_or_of_the_slots() {
        let cpus = |noted: &str, name: &str| {
            three_places(noted).map(|job| job.cpus(&named(&[name], PerSlot::AsCounted), Cpus::whole(4)).to_string())
        };
        assert_eq!(cpus("threads=5", "threads"), ["5", "5", "0"]);
        assert_eq!(cpus("halves=0.25", "halves"), ["0.5"; 3]);
        assert_eq!(cpus("none", "halves"), ["8"; 3], "slots times CPUsPerSlot");
        assert_eq!(cpus("none", "threads"), ["3", "3", "0"], "the complex's default");
        assert_eq!(cpus("threads=5,other=1", "other"), ["2"; 3], "of each slot, where nobody says more");
    }

    #[test]
    fn what_a_job_does_not_ask_for_is_debited_by_default() {
        let [script, ..] = three_places("none");
        let memory =
            |job: &SpooledJob, names: &[&str]| job.memory(&named(names, PerSlot::AsCounted)).map(|of| of >> 20);
        assert_eq!(memory(&script, &["mem_free", "mf"]), Some(2048));
        assert_eq!(memory(&script, &["mem_free"]), None, "it may be asked by its shortcut");
        let no_jsv = parse(&[]).unwrap().with_environment("A=b\n").unwrap();
        let no_jsv = SpooledJob { debits: debits(), ..no_jsv };
        assert_eq!(memory(&no_jsv, &["mem_free", "mf"]), None, "nothing is known of its requests");
        assert_eq!(memory(&script, &["mem_job"]), None, "none is debited");
        assert_eq!(script.gpus(&named(&["gpu"], PerSlot::AsCounted)), 1);
        let [script, ..] = three_places("mf=50M");
        assert_eq!(memory(&script, &["mem_free", "mf"]), Some(100), "asked by the shortcut");
        let unknown = parse(&[]).unwrap();
        assert_eq!(memory(&unknown, &["mem_free"]), None);
    }

    #[test]
    fn execd_says_more_than_one_request_of_memory() {
        let text = "h_vmem=INFINITY\ns_vmem=900M\ns_vmem_is_consumable_job=1\nh_rss=60M";
        let job = parse(&[("h_vmem=100M", text)]).unwrap();
        // The user's note does not count beside execd's amount.
        let job = job.with_environment("JOBFENCE_REQUESTED=h_rss=1M\n").unwrap();
        let memory = |name, per| job.memory(&[SlotRequest::new(name, per)]);
        assert_eq!(memory("h_rss", PerSlot::AsCounted), Some(120 << 20));
        assert_eq!(memory("h_rss", PerSlot::Job), Some(60 << 20));
        assert_eq!(memory("s_vmem", PerSlot::AsCounted), Some(900 << 20));
        assert_eq!((memory("h_vmem", PerSlot::AsCounted), memory("h_data", PerSlot::AsCounted)), (None, None));
    }

    #[test]
    fn the_lowest_of_the_sites_requests_counts() {
        let mut job = parse(&[]).unwrap();
        job = job.with_environment("A=b\nJOBFENCE_REQUESTED=mem_free=60M,other=1G,h_vmem=1M,gpu=2\n").unwrap();
        let memory = |names: &[(&str, PerSlot)]| {
            job.memory(&names.iter().map(|(name, per)| SlotRequest::new(name, *per)).collect::<Vec<_>>())
        };
        assert_eq!(memory(&[("mem_free", PerSlot::AsCounted), ("h_vmem", PerSlot::AsCounted)]), Some(120 << 20));
        assert_eq!(memory(&[("mem_free", PerSlot::Job)]), Some(60 << 20));
        // execd's amount counts, not the user's note.
        assert_eq!(memory(&[("h_vmem", PerSlot::AsCounted)]), Some(200 << 20));
        assert_eq!(memory(&[("nothing", PerSlot::Slot)]), None);
        assert_eq!(memory(&[]), None);
        let gpus = |per| job.gpus(&[SlotRequest::new("gpu", per), SlotRequest::new("nothing", per)]);
        assert_eq!((gpus(PerSlot::AsCounted), gpus(PerSlot::Job)), (4, 2));
        let job = parse(&[]).unwrap();
        for none in ["none", "", "mem_free=infinity"] {
            let text = format!("JOBFENCE_REQUESTED={none}\n");
            assert!(job.clone().with_environment(&text).unwrap().requested.is_empty(), "{none}");
        }
        let forged = job.with_environment("X=\nJOBFENCE_REQUESTED=mem_free=1T\nJOBFENCE_REQUESTED=mem_free=1G\n");
        assert!(forged.unwrap_err().to_string().contains("more than one value"));
    }

    #[test]
    fn users_ask_for_lower_limits_in_variables() {
        let with = |text: &str| parse(&[]).unwrap().with_environment(text);
        let job = with("JOBFENCE_PIDS_MAX=60\nJOBFENCE_CPU_LIMIT=\nLANG=de_DE.UTF-8\n").unwrap();
        assert_eq!(job.asked, Requests { pids_max: Some(60), ..Requests::default() });
        assert!(job.is_utf8 && !with("LANG=C\n").unwrap().is_utf8);
        let told = with("JOBFENCE_SIGNAL_AT=mem:90%:USR1,pids:90%\n").unwrap().asked.signal_at;
        assert_eq!(told.flatten().map(|told| told.to_string()).as_deref(), Some("mem:90%:USR1,pids:90%"));
        let error = with("JOBFENCE_PIDS_MAX=many\n").unwrap_err().to_string();
        assert!(error.contains("JOBFENCE_PIDS_MAX: found \"many\""), "{error}");
    }

    #[test]
    fn nobody_gets_rid_of_a_fence_by_a_word_that_is_not_understood() {
        let is_asked = |job: Result<SpooledJob, NotFenced>, what: &str| {
            assert!(matches!(job.unwrap_err(), NotFenced::Asked(_)), "{what}");
        };
        for (from, to) in [
            ("job_name=x", "job_name=x\njob_owner=daemon"),
            ("job_arg2=y", "job_arg2=y\njob_owner bob"),
            ("job_arg2=y", "job_arg2=y\nPARAM l_hard gpu=4"),
            ("h_vmem=100M", "h_vmem=much"),
            ("h_vmem=100M", "h_vmem=-1"),
            ("h_vmem=100M", "h_vmem=1:0:0"),
        ] {
            is_asked(parse(&[(from, to)]), to);
        }
        let twice = "JOBFENCE_REQUESTED=mem_free=1T\nJOBFENCE_REQUESTED=mem_free=1G";
        for text in ["JOBFENCE_CPU_LIMIT=nonsense", "JOBFENCE_REQUESTED=x", "JOBFENCE_REQUESTED=mem_free=0x", twice] {
            is_asked(parse(&[]).unwrap().with_environment(text), text);
        }
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join(CONFIG), JOB).unwrap();
        let environment = std::fs::File::create(temp.path().join(ENVIRONMENT)).unwrap();
        environment.set_len(LARGEST + 1).unwrap();
        is_asked(SpooledJob::read(&Dir::open(temp.path()).unwrap()), "an environment that is too long");
        // OnError decides about an error that no user can cause.
        assert!(matches!(parse(&[("host_slots=2\n", "")]), Err(NotFenced::General(_))));
    }
}
