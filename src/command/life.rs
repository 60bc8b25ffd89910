// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence open`, `attach`, `limit`, `usage`, `freeze`, `thaw` and `close`: a fence's life, one command for each stage.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use jobfence::cgroup::huge_pages::HugePages;
use jobfence::config::Loaded;
use jobfence::doors::life::{self, HowClosed, Seen};
use jobfence::doors::opening::{Granted, HeldBy, MOST_GPUS, OpenRequest};
use jobfence::doors::recorded::{self, WantedFences};
use jobfence::doors::{seen, user};
use jobfence::facts::{self, Fact, Facts};
use jobfence::janitor;
use jobfence::job::{Cpus, Id};
use jobfence::launch::Answer;
use jobfence::requests::{Requests, UserRequests};

use nix::unistd::User;

use crate::asked::{self, RequestOptions};
use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::job_name;
use crate::run::{cpus, size};

#[derive(Args)]
pub struct OpenOptions {
    /// The job, as its batch system writes it
    #[arg(long, value_name = "ID", value_parser = id)]
    job: Id,
    /// The job's step
    #[arg(long, value_name = "STEP", default_value = "0", value_parser = id)]
    step: Id,
    /// The run of the job, if it runs again under the same name
    ///
    /// A second 'jobfence open' of the same run is refused.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    run: u32,
    /// The job's user, by name or number
    #[arg(long, value_name = "USER", value_parser = asked::user)]
    user: (u32, Option<String>),
    /// The fence lives as long as this holder: pid:NUMBER, unit:NAME, scheduler:OpenPBS, or manual (until 'jobfence close')
    ///
    /// When the holder has gone, the janitor removes the fence. In any other case the fence stays.
    #[arg(long, value_name = "HOLDER", default_value = "manual")]
    holder: HeldBy,
    #[command(flatten)]
    grant: GrantOptions,
    #[command(flatten)]
    configured: Configured,
}

/// What a job is limited by.
#[derive(Args)]
struct GrantOptions {
    /// CPUs (hardware threads) that the job is granted on this node, such as 0.5 or 4, or 0 [default: not limited]
    ///
    /// CPUQuotaPercent and other keys make a limit of it. With 0, ZeroCPUs holds.
    #[arg(long, value_name = "CPUS", value_parser = granted_cpus)]
    cpus: Option<Cpus>,
    /// Memory that the job is granted on this node, such as 200M or 4G [default: not limited]
    ///
    /// AllowedRAMSpace and other keys make a limit of it.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mem: Option<u64>,
    /// Memory and swap together that the job is granted on this node [default: AllowedSwapSpace says how much swap]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mem_swap: Option<u64>,
    /// GPUs of this node that the job is granted, chosen from the free ones of GPUDevice [default: none]
    ///
    /// 'jobfence limit' leaves the fence the first of its GPUs, and gives it no other. 'jobfence usage --json' says which they are.
    #[arg(long, value_name = "NUMBER", value_parser = gpus)]
    gpus: Option<usize>,
    /// Huge pages that the job is granted on this node, such as 2M:4G,1G:0 [default: none]
    ///
    /// See ConstrainHugePages in jobfence.conf(5).
    #[arg(long, value_name = "SIZE:LIMIT", value_parser = huge_pages)]
    huge_pages: Option<HugePages>,
    /// What the job's user calls it, for the usage log [default: unknown]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    job_name: Option<OsString>,
    #[command(flatten)]
    facts: asked::FactOptions,
    #[command(flatten)]
    asked: RequestOptions,
}

#[derive(Args)]
pub struct FenceOptions {
    /// The job, as its batch system writes it
    #[arg(long, value_name = "ID", value_parser = id)]
    job: Id,
    /// The job's step [default: each]
    #[arg(long, value_name = "STEP", value_parser = id)]
    step: Option<Id>,
    /// The run of the job [default: each]
    #[arg(long, value_name = "NUMBER")]
    run: Option<u32>,
    #[command(flatten)]
    configured: Configured,
}

#[derive(Args)]
pub struct AttachOptions {
    #[command(flatten)]
    fences: FenceOptions,
    /// The processes are this task of the step, and have the limits of a task
    #[arg(long, value_name = "NUMBER")]
    task: Option<u32>,
    /// Also put in processes of another user than the job's
    #[arg(long)]
    any_user: bool,
    /// The processes
    #[arg(required = true, value_name = "PID")]
    pids: Vec<i32>,
}

#[derive(Args)]
pub struct LimitOptions {
    #[command(flatten)]
    fences: FenceOptions,
    #[command(flatten)]
    grant: GrantOptions,
}

#[derive(Args)]
pub struct UsageOptions {
    #[command(flatten)]
    fences: FenceOptions,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct CloseOptions {
    #[command(flatten)]
    fences: FenceOptions,
    /// Say what was used
    #[arg(short, long)]
    verbose: bool,
}

/// Makes a fence and prints its path.
pub fn open(options: &OpenOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence open'")?;
    let loaded = options.configured.load();
    let (uid, user) = options.user.clone();
    let facts = Facts { uid: Fact::Known(uid), user: Fact::from(user), ..Facts::default() };
    let mut granted = options.grant.read(facts)?;
    if let Ok(loaded) = &loaded {
        user::know_groups(&mut granted.facts, &loaded.asked());
    }
    let request = OpenRequest {
        uid,
        job: options.job.clone(),
        step: options.step.clone(),
        run: options.run,
        granted,
        holder: options.holder.clone(),
        ask_unit: Some(janitor::invocation_of),
        starts_processes: false,
    };
    answered(life::open(loaded, &request), |seen| println!("{}", seen.path.unwrap_or_default()))
}

/// Puts processes into a fence.
pub fn attach(options: &AttachOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence attach'")?;
    let loaded = options.fences.configured.load();
    let which = options.fences.resolved(loaded.as_ref().ok())?;
    let answer = life::attach(loaded, &which, &options.pids, options.task, options.any_user);
    answered(answer, |_| ())
}

/// Changes limits.
pub fn limit(options: &LimitOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence limit'")?;
    let loaded = options.fences.configured.load();
    let which = options.fences.resolved(loaded.as_ref().ok())?;
    let mut granted = options.grant.read(Facts::default())?;
    if let Ok(loaded) = &loaded
        && let Some(uid) = recorded::uid_of(&loaded.config, &which)?
    {
        let name = User::from_uid(uid.into()).ok().flatten().map(|user| user.name);
        granted.facts = Facts { uid: Fact::Known(uid), user: Fact::from(name), ..granted.facts };
        user::know_groups(&mut granted.facts, &loaded.asked());
    }
    answered(life::limit(loaded, &which, &granted), |_| ())
}

/// Prints the usage.
pub fn usage(options: &UsageOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence usage'")?;
    let loaded = options.fences.configured.load()?;
    let which = options.fences.resolved(Some(&loaded))?;
    let all = life::usage(&loaded.config, &which)?;
    if options.json {
        println!("{}", seen::json(&all));
    } else {
        for one in &all {
            println!("{}", life::in_words(one));
            tell(one);
        }
    }
    if all.is_empty() {
        eprintln!("jobfence: there is no fence of job {}", which.job);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Freezes or thaws processes.
pub fn freeze(fences: &FenceOptions, is_frozen: bool) -> Result<ExitCode, Failure> {
    require_root(if is_frozen { "'jobfence freeze'" } else { "'jobfence thaw'" })?;
    let loaded = fences.configured.load()?;
    life::freeze(&loaded.config, &fences.resolved(Some(&loaded))?, is_frozen)?;
    Ok(ExitCode::SUCCESS)
}

/// Closes fences. A missing fence is no failure: an epilog may run twice. A job's fence is closed only by its exact id, so that a second
/// run cannot close another job's fence.
pub fn close(options: &CloseOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence close'")?;
    let which = options.fences.which();
    let config = options.fences.configured.load()?.config;
    let closed = life::close(&config, &which)?;
    let mut has_failed = false;
    for one in &closed {
        match one {
            Err(error) => {
                eprintln!("jobfence: {error}");
                has_failed = true;
            }
            Ok(one) => say_closed(one, options.verbose),
        }
    }
    if closed.is_empty() {
        let meant = job_name::among(&which.job, job_name::recorded(&config.run_dir)).ok().flatten();
        let meant = meant.map(|id| format!("; did you mean {id}?")).unwrap_or_default();
        eprintln!("jobfence: there is no fence of job {}: nothing to close{meant}", which.job);
    }
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn say_closed(closed: &HowClosed, is_verbose: bool) {
    match closed {
        HowClosed::Removed(seen) => {
            tell(seen);
            if is_verbose {
                println!("{}", life::in_words(seen));
            }
        }
        HowClosed::Unseen(key) => {
            eprintln!("jobfence: {key}: what the step used is not known, since its fence was not whole");
        }
        HowClosed::AnotherBoot(key) => {
            eprintln!("jobfence: {key}: the machine has booted since; only its record was left");
        }
    }
}

impl FenceOptions {
    /// The job's fences; the job may be named as its scheduler names it.
    fn resolved(&self, loaded: Option<&Loaded>) -> Result<WantedFences, Failure> {
        let run_dir = loaded.map(|loaded| &loaded.config.run_dir);
        let job = run_dir.map(|run_dir| job_name::resolve(&self.job, job_name::recorded(run_dir))).transpose()?;
        Ok(WantedFences { job: job.unwrap_or_else(|| self.job.clone()), ..self.which() })
    }

    fn which(&self) -> WantedFences {
        WantedFences { job: self.job.clone(), step: self.step.clone(), run: self.run }
    }
}

impl GrantOptions {
    fn read(&self, facts: Facts) -> Result<Granted, Failure> {
        let requests = UserRequests { job: self.asked.read()?, step: Requests::default() };
        let name = self.job_name.as_ref().map(|name| name.to_string_lossy());
        Ok(Granted {
            cpus: self.cpus,
            memory: self.mem,
            memory_and_swap: self.mem_swap,
            gpus: self.gpus,
            huge_pages: self.huge_pages.clone().map(HugePages::into_sizes),
            requests,
            facts: Facts {
                job_name: name.map_or(Fact::Unknown, |name| facts::job_name(&name)),
                ..self.facts.add_to(facts)
            },
            chooses_cores: true,
            is_of_step: false,
        })
    }
}

fn answered<T>(answer: Answer<T>, done: impl FnOnce(T)) -> Result<ExitCode, Failure> {
    match answer {
        Answer::Fenced(value) => done(value),
        Answer::Off => eprintln!("jobfence: Mode=off: nothing is fenced"),
        Answer::Unfenced { by, why, .. } => eprintln!("jobfence: the job goes on WITHOUT a fence ({by}): {why}"),
        Answer::Refused(why) => return Err(why.to_string().into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(seen: &Seen) {
    for sentence in &seen.sentences {
        eprintln!("jobfence: {sentence}");
    }
}

/// Also zero, which is different from no grant.
fn granted_cpus(text: &str) -> Result<Cpus, String> {
    if text == "0" { Ok(Cpus::ZERO) } else { cpus(text) }
}

fn gpus(text: &str) -> Result<usize, String> {
    let expected = || format!("expected a number of GPUs, found {text:?}");
    text.parse().ok().filter(|gpus| *gpus <= MOST_GPUS).ok_or_else(expected)
}

fn huge_pages(text: &str) -> Result<HugePages, String> {
    HugePages::parse(text)
        .ok_or_else(|| format!("expected sizes of pages with a limit each, as 2M:4G,1G:0, found {text:?}"))
}

fn id(text: &str) -> Result<Id, String> {
    Id::new(text).map_err(|error| error.to_string())
}
