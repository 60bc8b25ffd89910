// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence explain`: which limits a job gets, from which line of which file, and what is written where.
//!
//! The same code as for a step computes the limits and the files; only the last write is omitted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::cgroup::devices::Devices;
use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::config::{Config, Key, Limit, Loaded, Mode, Resolved, parse_cpus, parse_size};
use jobfence::cpu_list::CpuList;
use jobfence::doors::user::know_groups;
use jobfence::facts::{Fact, Facts, FactsNeeded, Gpus};
use jobfence::fence::explain::{LimitLine, explain as lines_of};
use jobfence::fence::living::{self, LivingStep, Recorded, StepPlace, WantedSteps};
use jobfence::host::Host;
use jobfence::job::{Cpus, Grant, Id, JobKey, JobOnNode};
use jobfence::policy::{self, Level};
use jobfence::record::job::{JobRecord, JobRecords};
use jobfence::record::{Record, Records, Shared};
use jobfence::requests::{REQUESTS, Requests, UserRequests};
use jobfence::scheduler::Scheduler;
use jobfence::schedulers::ALL;
use jobfence::schedulers::slurm::SLURM;
use jobfence::schedulers::slurm::cores::Topology;
use jobfence::schedulers::slurm::prolog::gpus::{self, GpuSources};
use jobfence::sys::dir::Dir;
use nix::unistd::User;

use crate::asked::{FactOptions, RequestOptions, user};
use crate::check::doors;
use crate::command::Failure;
use crate::configured::Configured;
use crate::job_name;
use crate::living::job_id;
use crate::schedulers::slurm::job::SlurmJob;
use crate::schedulers::slurm::name::SlurmName;
use crate::schedulers::slurm::node;
use crate::table::printable;
use jobfence::schedulers::slurm::conf::{self, Checked, Lines};
use jobfence::schedulers::slurm::plugins::{ByConfig, Slurm};

#[derive(Args)]
pub struct ExplainOptions {
    /// A job of Slurm's, such as 12, 12_3 or 12+1; for root any job with a fence here [default: as the options say]
    ///
    /// The CPUs, the memory, the user and the facts by which sections are chosen are then the job's own.
    #[arg(value_name = "JOBID", conflicts_with = "FactOptions", value_parser = job_id)]
    job: Option<Id>,
    /// CPUs (hardware threads) that the job is granted on this node
    #[arg(long, value_name = "CPUS", value_parser = cpus, conflicts_with = "job")]
    cpus: Option<Cpus>,
    /// Memory that the job is granted on this node, such as 200M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "job")]
    mem: Option<u64>,
    /// Cores that the job is granted, by Slurm's numbers, such as 0-3,8
    #[arg(long, value_name = "LIST", value_parser = list)]
    cores: Option<CpuList>,
    /// GPUs that the job is granted, by Slurm's numbers, such as 0,1
    ///
    /// They are looked up in this node's gres.conf.
    #[arg(long, value_name = "LIST", value_parser = list)]
    gpus: Option<CpuList>,
    /// CPUs of one task, as for srun -c
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    cpus_per_task: Option<Cpus>,
    /// The step: batch, extern, interactive or a number [default: batch, if the job has one]
    ///
    /// If the job has no batch step here, the default is the first step that it has here.
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// The job's user, by name or number [default: the calling user]
    #[arg(long, value_name = "USER", conflicts_with = "job", value_parser = user)]
    user: Option<(u32, Option<String>)>,
    #[command(flatten)]
    facts: FactOptions,
    /// This node's name in slurm.conf, or the host's [default: as slurmd finds it]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    asked: RequestOptions,
    /// Assume that the directories are Slurm's own wherever Slurm can have some [default: as slurm.conf says]
    ///
    /// Slurm's names that are not known before the job runs are shown as *.
    #[arg(long)]
    overlay: bool,
    #[command(flatten)]
    configured: Configured,
}

/// What is known about the job.
struct ExplainedJob<'a> {
    id: Id,
    /// The step to explain.
    step: String,
    grant: Grant,
    facts: Facts,
    present: PresentDirs<'a>,
    /// The source of this, in words.
    known_by: Option<String>,
    /// The record of the process that opened the fence, if there is one.
    left: Option<Shared>,
}

/// Fails if a limit cannot be set as configured.
pub fn explain(options: &ExplainOptions) -> Result<ExitCode, Failure> {
    let loaded = options.configured.load()?;
    let host = Host::read(&loaded.config)?;
    let slurm_conf = conf::find(loaded.file.as_deref());
    let node = &node::name(options.node.as_deref(), slurm_conf.as_deref()).unwrap_or_else(node::host);
    let checked = slurm_conf.as_deref().map(|file| Checked::by(&Lines::read(file))).unwrap_or_default();
    let places = GpuSources { slurm_conf, proc: &host.proc, root: Path::new("/") };
    let gpus = |numbers: &CpuList| gpus::with_numbers(numbers.iter().collect(), node, &places);
    let mut job = match &options.job {
        Some(job) => Asking { options, loaded: &loaded, host: &host, node, checked, gpus: &gpus }.of(job)?,
        None => as_said(options, &host.proc)?,
    };
    let asked = loaded.asked();
    job.facts.node = Fact::Known(node.clone());
    know_user(&mut job.facts, options, &asked);
    if let Some(numbers) = &options.gpus {
        job.facts.gpus = gpus(numbers);
    }
    let resolved = loaded.for_job(&job.facts)?;
    let config = &resolved.config;
    let requests = UserRequests { job: options.asked.read()?, step: Requests::default() };
    let topology = || Topology::of_node(loaded.file.as_deref(), Some(node));
    // Slurm's name for the only step without tasks.
    let has_tasks = job.step != "extern";
    let left = job.left.as_ref().and_then(|left| left.plan.as_ref());
    let (plan, mut errors) = match left {
        Some(left) => (left.plan.clone(), Vec::new()),
        None => policy::of_step(&resolved, &job.facts, &job.grant, &requests, has_tasks, topology),
    };
    let uid = job.facts.uid.known().copied().unwrap_or_else(|| nix::unistd::getuid().as_raw());
    let node = job.facts.node.known().cloned().filter(|_| job.left.is_none());
    let key = JobKey { node: host.node_level(node)?, uid, job: job.id.clone(), step: Id::new(job.step.clone())? };
    describe(&job, &loaded, &resolved);
    if config.mode != Mode::Enforce {
        println!("mode       {}: none of this is written", mode_of(config));
    }
    let slurm = Slurm::read(loaded.file.as_deref());
    if config.constrain_cores && slurm.is_none() && options.cores.is_none() && left.is_none() {
        errors.retain(|(limit, _)| *limit != Limit::Cores);
        println!("cores      under OpenPBS and by 'jobfence open', CPUs are chosen when the job begins");
    }
    let present = &job.present;
    let is_overlay = &|hierarchy: &Hierarchy| match &slurm {
        // Existing directories need no guess.
        _ if present.is_overlay(hierarchy).is_some() => present.is_overlay(hierarchy) == Some(true),
        _ if job.left.is_some() => false,
        _ if options.overlay => can_be_slurms(hierarchy),
        Some(slurm) => matches!(slurm.placement(hierarchy), ByConfig::Overlay(_)),
        None => false,
    };
    let theirs = slurm.as_ref().and_then(Slurm::swap_in_words);
    let whose = |hierarchy: &Hierarchy| is_overlay(hierarchy).then_some(&SLURM as &'static dyn Scheduler);
    let mut needed = requests.controllers();
    let of_fence = job.left.iter().flat_map(|left| &left.controllers);
    needed.extend(of_fence.filter_map(|name| CONTROLLERS.into_iter().find(|known| known == name)));
    let (lines, more) = lines_of(&host, config, &needed, &key, &plan, whose, theirs.is_some())?;
    errors.extend(more);
    for note in &present.notes {
        println!("{note}");
    }
    for line in &lines {
        println!();
        let found = present.dir(line);
        for text in in_words(line, found.as_deref()) {
            println!("{:6} {text}", line.level.to_string());
        }
        let is_guess = job.left.is_some() && resolved.candidates.len() > 1;
        let by = if is_guess { String::new() } else { reasons(line, &resolved, &requests) };
        match (job.left.is_some(), by.is_empty()) {
            (true, true) => println!("       {} by the record of the fence", line.limit),
            (true, false) => println!("       {} by the record of the fence; {by}", line.limit),
            (false, _) => println!("       {} by {by}", line.limit),
        }
    }
    let in_memory = host.layout.with_controller("memory");
    if let Some(theirs) = theirs.filter(|_| plan.step.swap_yields && in_memory.is_some_and(is_overlay)) {
        println!(
            "\nswap   is as Slurm says, since it limits memory itself: {theirs}; left to it by {}",
            setting("ConstrainSwapSpace", &resolved)
        );
    }
    if let Some(why) = plan.step.devices.as_ref().and_then(Devices::why_no_gpus) {
        println!("\nthe job may use none of its GPUs, since jobfence is not certain which devices they are: {why}");
    }
    let mut failed = false;
    for (limit, error) in &errors {
        println!("\n{limit} cannot be limited: {error}");
        failed = true;
    }
    failed |= lines.iter().any(|line| line.writes.is_err());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The directories that the job has now.
#[derive(Default)]
struct PresentDirs<'a> {
    /// Those of the step in question; if it has none, those of the job's other steps, which have its job and its user.
    steps: Vec<LivingStep<'a>>,
    /// Whether the step itself has some.
    has_step: bool,
    /// Notes to print about the other steps.
    notes: Vec<String>,
}

impl<'a> PresentDirs<'a> {
    /// Finds those of a job of a user, and the step: if none is named, the batch step, or the first one that exists.
    fn find(host: &'a Host, config: &Config, uid: u32, wanted: &WantedSteps, step: Option<&str>) -> (Self, String) {
        let mut unseen = Vec::new();
        let recorded = Recorded::read(&config.run_dir, wanted, &mut unseen);
        let (mut steps, more) = living::find(host, ALL, &recorded, wanted);
        unseen.extend(more);
        // Of a step without a record and without a directory of its user, only its processes say whose it is, and some can be root's.
        let is_guessed = |found: &LivingStep<'_>| {
            found.record.is_none() && found.places.iter().all(|place| place.dir(Level::User).is_none())
        };
        steps.retain(|found| found.uid.is_none_or(|known| known == uid) || is_guessed(found));
        let names: BTreeSet<&str> = steps.iter().map(|step| step.step.as_str()).collect();
        let first = || names.iter().find(|name| **name != EXTERN).or_else(|| names.first()).copied();
        let default = if names.contains(BATCH) { BATCH } else { first().unwrap_or(BATCH) };
        let step = step.unwrap_or(default).to_owned();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let has_step = steps.iter().any(|found| found.step == step);
        let mut notes = Vec::new();
        if steps.is_empty() {
            notes.push("steps      none has directories on this node now: what a step would get".to_owned());
            if !nix::unistd::geteuid().is_root() {
                notes.push(
                    "           only root can read the records in RunDir and the marks on directories".to_owned(),
                );
            }
        } else if has_step {
            notes.push(format!("steps      {names}; what follows is of {step}"));
        } else {
            notes.push(format!("steps      {names}; {step} has no directories: what it would get (see --step)"));
        }
        notes.extend(unseen.iter().map(|error| format!("           cannot see all: {error}")));
        steps.retain(|found| found.step == step || !has_step);
        (Self { steps, has_step, notes }, step)
    }

    fn places(&self) -> impl Iterator<Item = &StepPlace<'a>> {
        self.steps.iter().flat_map(|step| &step.places)
    }

    /// Whether the step is in Slurm's directories in this hierarchy. `None`: it has none there.
    fn is_overlay(&self, hierarchy: &Hierarchy) -> Option<bool> {
        self.places().find(|place| place.hierarchy == hierarchy).map(|place| place.is_overlay)
    }

    /// The existing directory for a line.
    fn dir(&self, line: &LimitLine) -> Option<PathBuf> {
        if line.dir.ends_with("idle") || !self.has_step && matches!(line.level, Level::Step | Level::Task) {
            return None;
        }
        // One hierarchy may be mounted within another.
        let inside = self.places().filter(|place| line.dir.starts_with(&place.hierarchy.mount));
        inside.max_by_key(|place| place.hierarchy.mount.components().count())?.dir(line.level)
    }
}

/// Whether Slurm's cgroup plugins make directories in such a hierarchy with some configuration.
fn can_be_slurms(hierarchy: &Hierarchy) -> bool {
    let used: &[&str] = match hierarchy.version {
        Version::V2 => &["cpu", "memory"],
        Version::V1 => &["cpu", "cpuacct", "memory", "cpuset", "devices", "freezer"],
    };
    used.iter().any(|controller| hierarchy.has(controller))
}

/// Prints the job, and which parts of the configuration apply to it.
fn describe(job: &ExplainedJob<'_>, loaded: &Loaded, resolved: &Resolved) {
    let facts = &job.facts;
    let trusts = loaded.config.trust_account;
    let or_unknown = |fact: &Fact<String>| match fact.counts(trusts) {
        Some(name) if name.is_empty() => "none".to_owned(),
        Some(name) => name.clone(),
        None => match fact.said() {
            Some(name) if !name.is_empty() => format!("unknown ({}, as its user says)", printable(name)),
            _ => "unknown".to_owned(),
        },
    };
    let uid = facts.uid.known().map_or_else(|| "unknown".to_owned(), u32::to_string);
    // Facts that Slurm does not have are not printed for its jobs.
    let project = facts.project.counts(trusts).filter(|name| !name.is_empty()).map(|name| format!(", project {name}"));
    let types = facts.vnode_types.known().filter(|types| !types.is_empty());
    let types = types.map(|types| format!(", vnodes of type {}", types.join(",")));
    let pe = facts.pe.known().filter(|name| !name.is_empty()).map(|name| format!(", parallel environment {name}"));
    println!(
        "job        {} of {} (uid {uid}), partition {}, QOS {}, account {}{}{}{}",
        job.id,
        or_unknown(&facts.user),
        or_unknown(&facts.partition),
        or_unknown(&facts.qos),
        or_unknown(&facts.account),
        project.unwrap_or_default(),
        types.unwrap_or_default(),
        pe.unwrap_or_default()
    );
    let instead = |key: &str| format!(", for which {} counts", setting(key, resolved));
    let cpus = match job.grant.job_cpus {
        Some(Cpus::ZERO) => format!("0 CPUs{}", instead("ZeroCPUs")),
        Some(cpus) => cpus.in_words(),
        None => "CPUs not said".to_owned(),
    };
    let memory = match job.grant.job_memory {
        Some(memory) => format!("{} of memory", mebibytes(memory)),
        None if resolved.config.default_ram_space.is_some() => format!("memory not said{}", instead("DefaultRAMSpace")),
        None => "memory not said".to_owned(),
    };
    println!("granted    {cpus}, {memory}");
    if let Some(known_by) = &job.known_by {
        println!("known by   {known_by}");
    }
    match &loaded.file {
        Some(file) => println!("file       {}", file.display()),
        None => println!("file       none: defaults"),
    }
    match resolved.unknown_in_words() {
        Some(unknown) => println!(
            "sections   depend on what is unknown ({unknown}): of {} possibilities the strictest limits hold",
            resolved.candidates.len()
        ),
        None => {
            let sections = resolved.candidates.first().map(|only| only.sections.join(" ")).unwrap_or_default();
            println!("sections   {}", if sections.is_empty() { "none" } else { &sections });
        }
    }
}

fn mode_of(config: &Config) -> &'static str {
    match config.mode {
        Mode::Enforce => "Mode=enforce",
        Mode::Observe => "Mode=observe",
        Mode::Off => "Mode=off",
    }
}

/// What is written, file by file, and the present values if the directory exists; or why it cannot be written.
fn in_words(line: &LimitLine, found: Option<&Path>) -> Vec<String> {
    let writes = match &line.writes {
        Ok(writes) => writes,
        Err(error) => return vec![format!("cannot be written: {error}")],
    };
    let opened = found.and_then(|dir| Dir::open(dir).ok());
    let mut words = Vec::new();
    for write in writes {
        words.push(format!("{} = {}", found.unwrap_or(&line.dir).join(&write.file).display(), write.value));
        // Some files can only be written, and a device program is in no file.
        let Some(Ok(Some(value))) = opened.as_ref().map(|dir| dir.read_if_there(&write.file)) else { continue };
        let value = value.trim_end();
        let is_same = value.lines().any(|line| line == write.value);
        words.push(if is_same {
            "    now the same".to_owned()
        } else {
            format!("    now {}", value.replace('\n', "; "))
        });
    }
    words
}

/// The keys behind a limit, with their values and places; and what the job's user requested.
fn reasons(line: &LimitLine, resolved: &Resolved, requests: &UserRequests) -> String {
    let counts = |name: &&&'static str| match line.level {
        // The administrator's numbers for users and tasks do not depend on the job's grant.
        Level::User | Level::Task => name.ends_with(&format!("Per{}", in_key(line.level))) || OF_ALL.contains(name),
        Level::Job | Level::Step => !["PerUser", "PerTask"].iter().any(|end| name.ends_with(end)),
    };
    let keys = line.keys.iter().filter(counts).map(|name| setting(name, resolved)).filter(|text| !text.is_empty());
    let asked = REQUESTS.iter().filter(|request| request.limit == Some(line.limit));
    let asked =
        asked.filter_map(|request| Some(format!("--{}={} (the user)", request.name, request.value(&requests.job)?)));
    let all: Vec<String> = keys.chain(asked).collect();
    all.join(", ")
}

/// A key with its value and its place; empty if it is not set.
fn setting(name: &str, resolved: &Resolved) -> String {
    let found = jobfence::config::KEYS.iter().find(|key| key.name == name);
    let text = found.and_then(|key: &Key| {
        let value = key.get(&resolved.config)?;
        Some(format!("{}={value} ({})", key.name, resolved.origin(key)))
    });
    text.unwrap_or_default()
}

/// The steps with names.
const BATCH: &str = "batch";
const EXTERN: &str = "extern";

/// Every controller that a limit may need.
const CONTROLLERS: [&str; 8] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "io", "devices", "hugetlb"];

/// Keys that count at every level.
const OF_ALL: [&str; 5] = ["CPUQuotaPeriod", "CPUBurst", "CPUPolicy", "MemoryHighPercent", "Scavenger"];

fn in_key(level: Level) -> &'static str {
    if level == Level::User { "User" } else { "Task" }
}

/// A job that does not exist, from the options.
fn as_said<'a>(options: &ExplainOptions, proc: &Dir) -> Result<ExplainedJob<'a>, Failure> {
    let step = options.step.as_deref().map_or_else(|| Ok(BATCH.to_owned()), step)?;
    let facts = doors::of_user(proc, options.facts.add_to(Facts::default()));
    let grant = grant(options, options.cpus, options.mem, options.cores.clone().unwrap_or_default());
    let (present, known_by, left) = (PresentDirs::default(), None, None);
    Ok(ExplainedJob { id: Id::new("0")?, step, grant, facts, present, known_by, left })
}

fn grant(options: &ExplainOptions, cpus: Option<Cpus>, memory: Option<u64>, cores: CpuList) -> Grant {
    let whole = Grant::whole(cpus, memory);
    Grant { task_cpus: options.cpus_per_task.or(cpus), job_cores: cores.clone(), step_cores: cores, ..whole }
}

/// The sources of what is known about a job.
struct Asking<'a> {
    options: &'a ExplainOptions,
    loaded: &'a Loaded,
    host: &'a Host,
    node: &'a str,
    /// What slurmctld checks of users' words.
    checked: Checked,
    /// The devices of GPUs with Slurm's numbers.
    gpus: &'a dyn Fn(&CpuList) -> Gpus,
}

impl<'a> Asking<'a> {
    /// A job with a fence's record, which only root can read, or else one of Slurm's.
    fn of(&self, job: &Id) -> Result<ExplainedJob<'a>, Failure> {
        let run_dir = &self.loaded.config.run_dir;
        let is_root = nix::unistd::geteuid().is_root();
        let found = if is_root { job_name::among(job, job_name::recorded(run_dir))? } else { None };
        if let Some(found) = found
            && let Some(explained) = self.of_fence(&found)?
        {
            return Ok(explained);
        }
        match SlurmName::parse(job.as_str()) {
            Some(name) => self.of_slurm(&name),
            None if is_root => {
                Err(format!("no fence of job {job} lives here, and no job of Slurm's has such a name").into())
            }
            None => {
                Err(format!("{job} is no job of Slurm's; only root can read the records of other schedulers' jobs")
                    .into())
            }
        }
    }

    fn present(&self, uid: u32, job: Id, other_name: Option<String>, step: Option<&str>) -> (PresentDirs<'a>, String) {
        let wanted = WantedSteps { uid: None, job: Some(job), other_name };
        PresentDirs::find(self.host, &self.loaded.config, uid, &wanted, step)
    }

    /// From the record of the process that opened the fence. `None`: the record is only for the step's daemon, as with Slurm.
    fn of_fence(&self, job: &Id) -> Result<Option<ExplainedJob<'a>>, Failure> {
        let mut records = Records::open(&self.loaded.config.run_dir)?.of_job(job)?;
        records.retain(|record| record.boot_id == self.host.boot_id);
        let Some(uid) = records.first().and_then(Record::uid) else { return Ok(None) };
        let (present, step) = self.present(uid, job.clone(), None, self.options.step.as_deref());
        let all = records.into_iter().filter(|record| record.uid() == Some(uid)).filter_map(|record| record.shared);
        let left =
            all.map(|shared| *shared).filter(|shared| shared.step.as_str() == step).max_by_key(|shared| shared.run);
        let left = left.ok_or_else(|| format!("job {job} has a fence here, but none of step {step} (see --step)"))?;
        let noted = left.plan.as_ref().map(|left| &left.noted);
        let noted = noted
            .ok_or_else(|| format!("the fence of job {job} step {step} is being opened, or its opening failed"))?;
        let facts = Facts { uid: Fact::Known(uid), ..doors::of_user(&self.host.proc, noted.facts()) };
        let user = facts.user.clone();
        let facts = Facts { user: if user.known().is_some() { user } else { name_of(uid) }, ..facts };
        Ok(Some(ExplainedJob {
            id: job.clone(),
            step,
            grant: Grant::whole(noted.cpus, noted.memory),
            facts,
            present,
            known_by: Some("the fence's record, written when the fence was opened or its limits changed".to_owned()),
            left: Some(left),
        }))
    }

    /// A job as Slurm's controller and its own steps know it.
    fn of_slurm(&self, name: &SlurmName) -> Result<ExplainedJob<'a>, Failure> {
        let asked = self.options.step.as_deref().or(name.step.as_deref()).map(step).transpose()?;
        let SlurmJob { number, uid, partition, qos, account, sluid, granted } =
            crate::schedulers::slurm::job::ask(name, self.node)?;
        let id = Id::from(number);
        let (present, step) = self.present(uid, id.clone(), sluid, asked.as_deref());
        let mut facts =
            Facts { uid: Fact::Known(uid), user: name_of(uid), ..Facts::default() }.of_no_project_vnode_or_pe();
        let record = self.record(id.clone(), uid)?;
        let known_by = match &record {
            Some(record) => {
                record.add_to(&mut facts);
                "the job's record in RunDir, as the job's steps read it"
            }
            None if !present.steps.is_empty() => {
                let why = match nix::unistd::geteuid().is_root() {
                    true => "no 'jobfence prolog' has recorded the job",
                    false => "only root can read the job's record",
                };
                let has_gpus = granted.gpus.as_ref().is_none_or(|gpus| !gpus.is_empty());
                facts.gpus = if has_gpus { Gpus::Unknown(why.to_owned()) } else { Gpus::None };
                why
            }
            None => {
                facts.partition = partition;
                (facts.qos, facts.account) =
                    (qos.if_checked(self.checked.qos), account.if_checked(self.checked.account));
                facts.gpus = match &granted.gpus {
                    Some(numbers) => (self.gpus)(numbers),
                    None => Gpus::Unknown("Slurm does not say which".to_owned()),
                };
                "Slurm's controller; a step knows as much if 'jobfence prolog' has recorded the job"
            }
        };
        let count = u32::try_from(granted.threads.len()).ok().filter(|count| *count > 0);
        let cores = self.options.cores.clone().unwrap_or_else(|| cores_of(&granted.threads));
        let memory = granted.mib.map(|mib| mib.saturating_mul(1 << 20));
        let grant = grant(self.options, count.map(Cpus::whole), memory, cores);
        let known_by = Some(known_by.to_owned());
        Ok(ExplainedJob { id, step, grant, facts, present, known_by, left: None })
    }

    /// The record of a job of Slurm. `None`: there is none, or this process may not read it.
    fn record(&self, job: Id, uid: u32) -> Result<Option<JobRecord>, Failure> {
        if !nix::unistd::geteuid().is_root() || !self.loaded.config.run_dir.is_dir() {
            return Ok(None);
        }
        let id = JobOnNode { node: self.host.node_level(Some(self.node.to_owned()))?, job };
        let records = JobRecords::existing(&self.loaded.config.run_dir)?;
        let record = records.map(|records| records.read(&id, self.host)).transpose()?.flatten();
        // A record may be an older job's: job numbers start again at some point.
        Ok(record.filter(|record| record.uid == uid))
    }
}

/// The user's name. A uid that this host does not know may have any name.
fn name_of(uid: u32) -> Fact<String> {
    Fact::from(User::from_uid(uid.into()).ok().flatten().map(|user| user.name))
}

/// The cores of hardware threads by Slurm's numbers, in which the threads of a core are consecutive.
fn cores_of(threads: &CpuList) -> CpuList {
    let per_core = jobfence::host::threads_per_core().and_then(|count| u32::try_from(count).ok()).unwrap_or(1).max(1);
    let cores: Vec<String> = threads.iter().map(|thread| (thread / per_core).to_string()).collect();
    CpuList::parse(&cores.join(",")).unwrap_or_default()
}

/// Completes what is known about the user.
fn know_user(facts: &mut Facts, options: &ExplainOptions, asked: &FactsNeeded) {
    if facts.uid.known().is_none() {
        let asking = || {
            let uid = nix::unistd::getuid();
            (uid.as_raw(), User::from_uid(uid).ok().flatten().map(|user| user.name))
        };
        let (uid, name) = options.user.clone().unwrap_or_else(asking);
        facts.uid = Fact::Known(uid);
        facts.user = Fact::from(name);
    }
    know_groups(facts, asked);
}

fn cpus(text: &str) -> Result<Cpus, String> {
    parse_cpus(text).ok_or_else(|| format!("expected a number of CPUs with at most three decimals, found {text:?}"))
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("expected a size of at least 1M, such as 200M or 4G, found {text:?}"))
}

fn list(text: &str) -> Result<CpuList, String> {
    CpuList::parse(text).ok_or_else(|| format!("expected a list of numbers as 0-3,8, found {text:?}"))
}

/// The step as Slurm names it.
fn step(text: &str) -> Result<String, String> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // Larger numbers are the steps with names (slurm.h, SLURM_MAX_NORMAL_STEP_ID).
    let number = text.parse::<u32>().ok().filter(|number| is_number && *number <= 0xffff_fff0);
    match (text, number) {
        ("batch" | "extern" | "interactive", _) => Ok(text.to_owned()),
        (_, Some(number)) => Ok(number.to_string()),
        _ => Err(format!("expected batch, extern, interactive or a number, found {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_that_slurm_has() {
        for name in ["batch", "extern", "interactive", "0", "17"] {
            assert_eq!(step(name).as_deref(), Ok(name));
        }
        assert_eq!(step("007").as_deref(), Ok("7"));
        for wrong in ["", "foo", "Batch", "-1", "+1", "1.0", "5.batch", "4294967291", "99999999999", "batch "] {
            assert!(step(wrong).unwrap_err().contains("expected batch, extern"), "{wrong}");
        }
    }
}
