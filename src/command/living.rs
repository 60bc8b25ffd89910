// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence ls`, `show`, `top` and `report` know about live fences, as rows and as JSON.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::usage::Depth;
use jobfence::error::Error;
use jobfence::fence::living::{CurrentUse, LivingStep};
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::figures::LimitedTo;
use jobfence::host::Host;
use jobfence::job::{Id, JobOnNode, Name};
use jobfence::record::job::{JobRecord, JobRecords};
use jobfence::record::noted::Allocated;
use jobfence::report::account::{since_boot, utc};
use jobfence::report::json::{Object, array};
use jobfence::schedulers::ALL;
use nix::unistd::User;

use crate::asked;
use crate::command::Failure;
use crate::configured::Configured;
use crate::gpu::JobGpus;
use crate::idle::JobIdle;
use crate::job_name;
use crate::kept;
use crate::lend::JobLent;
use crate::network::JobNetwork;
use crate::resctrl::JobCache;
use crate::table::{self, Column, NONE, mib, number, numbers, printable, texts};

/// The name of the objects' format. A program that reads them checks it first.
pub const SCHEMA: &str = "jobfence-living-1";

/// How long CPU time is measured without an earlier value.
pub const MEASURED: Duration = Duration::from_millis(250);

/// Which fences.
#[derive(Args)]
pub struct FilterOptions {
    /// Only fences of this user, by name or number; root may ask for any
    #[arg(long, value_name = "USER", value_parser = asked::user)]
    user: Option<(u32, Option<String>)>,
    /// Only fences of this job
    #[arg(long, value_name = "ID", value_parser = job_id)]
    job: Option<Id>,
    #[command(flatten)]
    configured: Configured,
}

impl FilterOptions {
    pub fn view(&self) -> Result<LivingView, Failure> {
        LivingView::new(&self.configured, self.user.as_ref().map(|(uid, _)| *uid), self.job.clone())
    }
}

/// A job's id on the command line.
pub fn job_id(text: &str) -> Result<Id, String> {
    Id::new(text).map_err(|error| error.to_string())
}

/// Reads the fences of this node, repeatedly.
pub struct LivingView {
    pub host: Host,
    pub run_dir: PathBuf,
    wanted: WantedSteps,
    /// The CPU time of each when last read.
    before: CpuTimes,
    /// When that was.
    looked: Option<Instant>,
    users: HashMap<u32, String>,
}

/// A fence at one time.
pub struct LivingRow {
    /// Its directories, by which it is told from every other step.
    pub name: String,
    pub job: String,
    pub step: String,
    pub node: Option<String>,
    pub run: Option<u32>,
    pub holder: Option<String>,
    pub uid: Option<u32>,
    pub user: String,
    /// The program that made its directories.
    pub placement: &'static str,
    pub path: Option<String>,
    pub started: Option<SystemTime>,
    pub uptime: Option<Duration>,
    /// CPUs used since it was last read.
    pub cpus_now: Option<f64>,
    pub current: CurrentUse,
    /// What its job uses of GPUs on this node.
    pub gpus: Option<JobGpus>,
    /// For how long its job has done nothing.
    pub idle: Option<JobIdle>,
    /// What its job has sent and received.
    pub network: Option<JobNetwork>,
    /// What its job is lent.
    pub lent: Option<JobLent>,
    /// What its job may use of caches and memory bandwidth.
    pub cache: Option<JobCache>,
    /// The partition or queue of its job, and what its job was granted; only in [`LivingView::rows`].
    pub partition: Option<String>,
    pub granted: LimitedTo,
}

impl LivingView {
    /// A view of the user's own fences; for root, of all users' fences.
    pub fn new(configured: &Configured, user: Option<u32>, job: Option<Id>) -> Result<Self, Failure> {
        let config = configured.load()?.config;
        let own = nix::unistd::getuid();
        if !own.is_root() && user.is_some_and(|uid| uid != own.as_raw()) {
            return Err("only root can look at the fences of other users".into());
        }
        let uid = if own.is_root() { user } else { Some(own.as_raw()) };
        let mut view = Self {
            host: Host::read(&config)?,
            run_dir: config.run_dir,
            wanted: WantedSteps { uid, job, other_name: None },
            before: HashMap::new(),
            looked: None,
            users: HashMap::new(),
        };
        view.wanted.job = view.wanted.job.as_ref().map(|job| view.resolved(job)).transpose()?;
        Ok(view)
    }

    /// The job's id, from another name of it. A job without a fence here keeps the given name.
    fn resolved(&self, job: &Id) -> Result<Id, Failure> {
        if !self.steps().0.is_empty() {
            return Ok(job.clone());
        }
        job_name::resolve(job, self.jobs())
    }

    /// The ids of all jobs with fences.
    pub fn jobs(&self) -> Vec<String> {
        let all = WantedSteps { uid: self.wanted.uid, ..WantedSteps::default() };
        let recorded = Recorded::read(&self.run_dir, &all, &mut Vec::new());
        find(&self.host, ALL, &recorded, &all).0.into_iter().map(|step| step.job).collect()
    }

    /// The job that is shown.
    pub fn job(&self) -> Option<&Id> {
        self.wanted.job.as_ref()
    }

    /// The steps, and reasons why there may be more.
    pub fn steps(&self) -> (Vec<LivingStep<'_>>, Vec<Error>) {
        let mut unseen = Vec::new();
        let recorded = Recorded::read(&self.run_dir, &self.wanted, &mut unseen);
        let (steps, more) = find(&self.host, ALL, &recorded, &self.wanted);
        unseen.extend(more);
        (steps, unseen)
    }

    /// Notes the CPU time of each, from which the next reading measures.
    pub fn begin(&mut self) {
        let (steps, _) = self.steps();
        self.before = steps.iter().filter_map(time_of).collect();
        self.looked = Some(Instant::now());
    }

    /// Reads the fences once, after a time long enough to measure CPU time.
    pub fn measured(&mut self) -> (Vec<LivingRow>, Vec<Error>) {
        let begun = Instant::now();
        let mut users = std::mem::take(&mut self.users);
        // The search is done once: a step that ends meanwhile has no figures then, and is left out.
        let (steps, unseen) = self.steps();
        let before: HashMap<_, _> = steps.iter().filter_map(time_of).collect();
        std::thread::sleep(MEASURED.saturating_sub(begun.elapsed()));
        let rows = steps.iter().map(|step| row(step, &before, &mut users, &mut HashMap::new()));
        let mut rows: Vec<LivingRow> =
            rows.filter(|row| row.current.usage.cpu.is_some() || !before.contains_key(&row.name)).collect();
        drop(steps);
        self.users = users;
        rows.iter_mut().for_each(|row| self.add_gpus(row));
        (rows, unseen)
    }

    /// Reads the fences once.
    pub fn rows(&mut self) -> (Vec<LivingRow>, Vec<Error>) {
        let mut users = std::mem::take(&mut self.users);
        let (steps, unseen) = self.steps();
        let mut after = HashMap::with_capacity(steps.len());
        let noted = JobRecords::existing(&self.run_dir).ok().flatten();
        let (looked, now) = (self.looked, Instant::now());
        let rows = steps.iter().map(|step| {
            let row = row(step, &self.before, &mut users, &mut after);
            let of_new = || cpus_of_new(row.current.usage.cpu, row.uptime, looked.map(|at| at.elapsed()));
            let Allocated { noted: said, .. } = step.allocated();
            let partition = said.facts().partition.known().cloned();
            let of_job = row.current.limits_of_job;
            // The kernel's limits may have room for the scheduler's own processes.
            let granted = LimitedTo {
                cpus: said.granted.cpus.or(of_job.cpus),
                memory: said.granted.memory.or(of_job.memory),
                ..of_job
            };
            LivingRow {
                partition: partition.or_else(|| partition_of(noted.as_ref(), &self.host, step)),
                granted,
                cpus_now: row.cpus_now.or_else(of_new),
                ..row
            }
        });
        // A step that has ended meanwhile has no figures any more.
        let before = &self.before;
        let mut rows: Vec<LivingRow> =
            rows.filter(|row| row.current.usage.cpu.is_some() || !before.contains_key(&row.name)).collect();
        drop(steps);
        self.users = users;
        self.before = after;
        self.looked = Some(now);
        rows.iter_mut().for_each(|row| self.add_gpus(row));
        (rows, unseen)
    }

    /// Looks with this at one job alone.
    pub fn with_job<T>(&mut self, job: Id, look: impl FnOnce(&Self) -> T) -> T {
        let before = self.wanted.job.replace(job);
        let seen = look(self);
        self.wanted.job = before;
        seen
    }

    /// Adds what `jobfence hold` has last heard of the GPUs and the network of the row's job, what it has last seen the job do, and what
    /// it lends the job.
    pub fn add_gpus(&self, row: &mut LivingRow) {
        row.idle = kept::living(&self.run_dir, row.node.as_deref(), row.uid, &row.job);
        row.gpus = kept::living(&self.run_dir, row.node.as_deref(), row.uid, &row.job);
        row.network = kept::living(&self.run_dir, row.node.as_deref(), row.uid, &row.job);
        row.cache = kept::living(&self.run_dir, row.node.as_deref(), row.uid, &row.job);
        row.lent = kept::living(&self.run_dir, row.node.as_deref(), row.uid, &row.job);
    }
}

/// The partition of a step's job, as recorded by `jobfence prolog` or the batch step.
fn partition_of(noted: Option<&JobRecords>, host: &Host, step: &LivingStep<'_>) -> Option<String> {
    facts_of(noted, host, step)?.partition.known().cloned()
}

/// What `jobfence prolog` or the batch step has recorded of a step's job.
pub fn facts_of(noted: Option<&JobRecords>, host: &Host, step: &LivingStep<'_>) -> Option<JobRecord> {
    let node = step.node.as_deref().map(Name::new).transpose().ok()?;
    let id = JobOnNode { node, job: Id::new(step.job.as_str()).ok()? };
    noted?.read(&id, host).ok()?
}

/// CPU times of steps, each with the time when it was read.
type CpuTimes = HashMap<String, (Instant, Duration)>;

fn time_of(step: &LivingStep<'_>) -> Option<(String, (Instant, Duration))> {
    let cpu = step.cpu_time()?;
    Some((name_of(step), (Instant::now(), cpu)))
}

/// A step's present state, with its usage since `before`; adds its time to `after`.
fn row(step: &LivingStep<'_>, before: &CpuTimes, users: &mut HashMap<u32, String>, after: &mut CpuTimes) -> LivingRow {
    let name = name_of(step);
    let current = step.current(Depth::Job);
    let now = Instant::now();
    let since = before.get(&name).zip(current.usage.cpu).and_then(|((then, cpu), new)| {
        let passed = now.duration_since(*then).as_secs_f64();
        (passed > 0.0).then(|| new.saturating_sub(*cpu).as_secs_f64() / passed)
    });
    after.extend(current.usage.cpu.map(|cpu| (name.clone(), (now, cpu))));
    let user = step.uid.map(|uid| users.entry(uid).or_insert_with(|| user_name(uid)).clone());
    let user = user.unwrap_or_else(|| NONE.to_owned());
    LivingRow { cpus_now: since, user, current, ..described(step) }
}

/// The CPUs that a step uses that began after the last look: all of its CPU time was used since then. `looked`: how long ago that look was.
fn cpus_of_new(cpu: Option<Duration>, uptime: Option<Duration>, looked: Option<Duration>) -> Option<f64> {
    let uptime = uptime.filter(|uptime| !uptime.is_zero() && looked.is_some_and(|looked| *uptime <= looked))?;
    Some(cpu?.as_secs_f64() / uptime.as_secs_f64())
}

/// What is known about a step without measuring.
pub fn described(step: &LivingStep<'_>) -> LivingRow {
    let shared = step.record.as_ref().and_then(|record| record.shared.as_deref());
    let owner = step.record.as_ref().map(|record| record.owner);
    let started = shared.map(|shared| shared.opener).or(owner).and_then(|owner| since_boot(owner.start));
    let started = started.or_else(|| step.made());
    let is_overlay = step.places.iter().any(|place| place.is_overlay);
    let is_own = step.places.iter().any(|place| !place.is_overlay);
    LivingRow {
        name: name_of(step),
        job: step.job.clone(),
        step: step.step.clone(),
        node: step.node.clone(),
        run: shared.map(|shared| shared.run),
        holder: shared
            .map(|shared| shared.holder.to_string())
            .or_else(|| owner.map(|owner| format!("process {}", owner.pid))),
        uid: step.uid,
        user: String::new(),
        placement: match (is_own, is_overlay) {
            (true, true) => "both",
            (false, true) => "overlay",
            _ => "own",
        },
        path: step.path(),
        started,
        uptime: started.and_then(|started| SystemTime::now().duration_since(started).ok()),
        cpus_now: None,
        current: CurrentUse::default(),
        gpus: None,
        idle: None,
        network: None,
        lent: None,
        cache: None,
        partition: None,
        granted: LimitedTo::default(),
    }
}

fn name_of(step: &LivingStep<'_>) -> String {
    let places = step.places.iter().map(|place| place.step.display().to_string());
    places.collect::<Vec<_>>().join(":")
}

/// The user's name, or the uid if this node knows none.
pub fn user_name(uid: u32) -> String {
    let user = User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| printable(&user.name))
}

/// The columns of `ls` and `top`; the last one only if the page is wide enough.
pub const COLUMNS: [Column; 12] = [
    texts("JOB"),
    texts("STEP"),
    texts("USER"),
    numbers("UPTIME"),
    numbers("CPU"),
    numbers("CPUS"),
    numbers("MEM/MiB"),
    numbers("PEAK/MiB"),
    numbers("MAX/MiB"),
    numbers("PROCS"),
    texts("WHERE"),
    texts("PATH"),
];

impl LivingRow {
    /// For how long its job has used almost no CPU time, if that is too long, in seconds.
    pub fn idle(&self) -> Option<f64> {
        self.idle.as_ref().and_then(JobIdle::idle)
    }

    /// These CPUs that its job or it uses now; `idle` if the job has used almost none for too long.
    pub fn cpus_cell(&self, cpus: Option<f64>) -> String {
        match (self.idle(), cpus) {
            (Some(_), _) => IDLE.to_owned(),
            (None, Some(cpus)) => format!("{cpus:.2}"),
            (None, None) => NONE.to_owned(),
        }
    }

    /// The row's cells.
    pub fn cells(&self) -> Vec<String> {
        let current = &self.current;
        let node = self.node.as_ref().map(|node| format!("@{node}")).unwrap_or_default();
        let step = match self.run {
            Some(run) if run > 1 => format!("{}.{run}{node}", self.step),
            _ => format!("{}{node}", self.step),
        };
        vec![
            table::cut(&printable(&self.job), 24),
            table::cut(&printable(&step), 16),
            table::cut(&self.user, 16),
            self.uptime.map_or_else(|| NONE.to_owned(), table::clock),
            self.cpus_cell(self.cpus_now),
            number(current.limits.cpus),
            mib(current.memory),
            mib(current.usage.memory_peak),
            mib(current.limits.memory),
            number(current.processes),
            self.placement.to_owned(),
            printable(self.path.as_deref().unwrap_or(NONE)),
        ]
    }

    /// The members for the fence's identity, place and limits.
    pub fn identity(&self, object: &mut Object) {
        object
            .text("job", Some(&self.job))
            .text("step", Some(&self.step))
            .number("run", self.run)
            .number("uid", self.uid)
            .text("user", self.uid.map(|_| self.user.as_str()))
            .text("node", self.node.as_deref())
            .text("holder", self.holder.as_deref())
            .text("placement", Some(self.placement))
            .text("path", self.path.as_deref())
            .text("started", self.started.map(utc).as_deref())
            .seconds("uptime_seconds", self.uptime)
            .number("cpus_now", self.cpus_now.map(|cpus| format!("{cpus:.3}")))
            .number("gpus", self.gpus.as_ref().map(JobGpus::json))
            .number("network", self.network.as_ref().map(JobNetwork::json))
            .number("idle_seconds", self.idle().map(|idle| format!("{idle:.3}")))
            .number("cache", self.cache.as_ref().map(JobCache::json))
            .number("memory_lent_bytes", self.lent.as_ref().map(JobLent::lent));
        now(object, &self.current);
    }

    /// The row as an object.
    pub fn json(&self) -> String {
        let mut object = Object::new();
        self.identity(&mut object);
        object
            .seconds("cpu_seconds", self.current.usage.cpu)
            .number("memory_peak_bytes", self.current.usage.memory_peak)
            .end()
    }
}

/// The members for what is in use now, and for its limits.
pub fn now(object: &mut Object, current: &CurrentUse) {
    object
        .number("cpus_limit", current.limits.cpus)
        .number("memory_now_bytes", current.memory)
        .number("memory_limit_bytes", current.limits.memory)
        .number("processes_now", current.processes)
        .number("processes_limit", current.limits.processes);
}

/// The mark of a job that holds what it does not use.
const IDLE: &str = "idle";

/// Before this column stands that of GPUs, if a job has some.
const BEHIND_GPUS: usize = 5;

/// A table of these fences: with their paths if the page is wide enough.
pub fn rows_in_lines(rows: &[LivingRow], width: usize) -> Vec<String> {
    let mut cells: Vec<Vec<String>> = rows.iter().map(LivingRow::cells).collect();
    let mut columns = COLUMNS.to_vec();
    if rows.iter().any(|row| row.gpus.is_some()) {
        columns.insert(BEHIND_GPUS, numbers("GPU%"));
        rows.iter().zip(&mut cells).for_each(|(row, cells)| cells.insert(BEHIND_GPUS, gpu_cell(row.gpus.as_ref())));
    }
    let whole = table::lines(&columns, &cells, None);
    if whole.iter().all(|line| line.chars().count() <= width) {
        return whole;
    }
    table::lines(columns.split_last().map_or(&[], |(_, but_last)| but_last), &cells, None)
}

/// How busy the job's GPUs were at the last sample, in percent; `idle` if one of them has done nothing for too long.
pub fn gpu_cell(gpus: Option<&JobGpus>) -> String {
    let Some(gpus) = gpus else { return NONE.to_owned() };
    let now = gpus.percent_now();
    if gpus.idle().is_some() {
        return IDLE.to_owned();
    }
    now.map_or_else(|| NONE.to_owned(), |percent| format!("{percent:.0}"))
}

/// The whole printed object, from objects of fences.
pub fn document(fences: impl Iterator<Item = String>) -> String {
    let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    Object::new()
        .text("schema", Some(SCHEMA))
        .text("node", node.as_deref())
        .text("time", Some(&utc(SystemTime::now())))
        .add("fences", array(fences))
        .end()
}

/// Warns that there may be more fences, and why.
pub fn warn_of(unseen: &[Error]) {
    const MOST: usize = 5;
    for error in unseen.iter().take(MOST) {
        eprintln!("jobfence: cannot see all: {error}");
    }
    if let Some(more) = unseen.len().checked_sub(MOST).filter(|more| *more > 0) {
        eprintln!("jobfence: cannot see all, for {more} more reasons");
    }
}

/// Prints these fences once, for programs or for people.
pub fn print(rows: &[LivingRow], as_json: bool) {
    if as_json {
        println!("{}", document(rows.iter().map(LivingRow::json)));
    } else if rows.is_empty() {
        say_none(None);
    } else {
        rows_in_lines(rows, table::width()).iter().for_each(|line| println!("{line}"));
    }
}

/// Prints that there is nothing to show.
pub fn say_none(job: Option<&Id>) {
    match job {
        Some(job) => {
            eprintln!("jobfence: no fence of job {} that you may see lives on this node", printable(job.as_str()))
        }
        None => eprintln!("jobfence: no fence that you may see lives on this node"),
    }
}

/// The name of a version of the kernel's interface.
pub fn version(version: Version) -> &'static str {
    if version == Version::V1 { "v1" } else { "v2" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_step_uses_is_known_at_once() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(cpus_of_new(seconds(3), seconds(2), seconds(2)), Some(1.5));
        // The step was there at the last look, or there was no look yet.
        assert_eq!(cpus_of_new(seconds(3), seconds(3), seconds(2)), None);
        assert_eq!(cpus_of_new(seconds(3), seconds(2), None), None);
        assert_eq!(
            [cpus_of_new(None, seconds(1), seconds(2)), cpus_of_new(seconds(1), seconds(0), seconds(2))],
            [None; 2]
        );
    }
}
