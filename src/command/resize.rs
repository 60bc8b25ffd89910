// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence resize`: gives a job that runs more or less than it was granted, whatever has opened its fence.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::cgroup::limits::CpuQuota;
use jobfence::cgroup::usage::Depth;
use jobfence::config::{Config, Limit, Loaded, Mode};
use jobfence::doors::life;
use jobfence::doors::user;
use jobfence::error::Error;
use jobfence::facts::{Fact, Facts};
use jobfence::fence::living::LivingStep;
use jobfence::fence::resize::{self, NewLimits};
use jobfence::figures::GrantedTo;
use jobfence::job::{Cpus, Grant, Id};
use jobfence::policy::{self, Plan};
use jobfence::record::job::JobRecords;
use jobfence::record::noted::Noted;
use jobfence::record::resized::{Changed, Resized};
use jobfence::record::{Record, Records};
use jobfence::report::account::utc;

use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::living::{LivingView, facts_of, job_id, say_none, warn_of};
use crate::run::{cpus, size};
use crate::schedulers;
use crate::table::printable;

/// How long another process may work on the record.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(group(clap::ArgGroup::new("amount").required(true).multiple(true).args(["cpus", "memory"])))]
pub struct ResizeOptions {
    /// The job, as its batch system writes it
    #[arg(value_name = "JOB", value_parser = job_id)]
    job: Id,
    /// Of the job only this step, which gets no more than its job has [default: the job and all its steps]
    #[arg(long, value_name = "STEP", value_parser = job_id)]
    step: Option<Id>,
    /// CPUs (hardware threads) that the job has from now on, such as 0.5 or 4, as if it had been granted so many
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Memory that the job has from now on, such as 200M or 4G, as if it had been granted so much
    ///
    /// If the job uses more, and the kernel cannot take that back within 10 seconds, nothing is changed.
    #[arg(long, alias = "mem", value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    #[command(flatten)]
    configured: Configured,
}

/// Changes the limits.
pub fn resize(options: &ResizeOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence resize'")?;
    let loaded = options.configured.load()?;
    let view = LivingView::new(&options.configured, None, Some(options.job.clone()))?;
    let (mut steps, unseen) = view.steps();
    warn_of(&unseen);
    if let Some(wanted) = &options.step {
        steps.retain(|step| step.step == wanted.as_str());
    }
    let Some(first) = steps.first() else {
        say_none(view.job());
        return Ok(ExitCode::FAILURE);
    };
    if let Some(other) = steps.iter().find(|step| (step.uid, &step.node) != (first.uid, &first.node)) {
        let of = |step: &LivingStep<'_>| format!("user {:?} of node {:?}", step.uid, step.node);
        return Err(format!("job {} is here twice, of {} and of {}", options.job, of(first), of(other)).into());
    }
    if options.memory.is_some()
        && let Some(path) = resize::limited_by_others(&steps)
    {
        let how = schedulers::ALL.iter().find_map(|part| part.changes_memory()).unwrap_or("ask the scheduler");
        return Err(format!(
            "the scheduler itself limits the memory of job {} in {}, and jobfence leaves that limit alone: {how}",
            printable(&first.job),
            printable(&path.to_string_lossy()),
        )
        .into());
    }
    let resolved = life::resolve(&loaded, facts(&loaded, &view, first))?;
    let config = &resolved.config;
    if config.mode != Mode::Enforce {
        return Err("Mode of jobfence.conf lets no limit be set for this job".into());
    }
    let plan = plan(config, options)?;
    let new = NewLimits {
        plan: &plan,
        cpus: options.cpus.is_some(),
        memory: options.memory.is_some(),
        whole_job: options.step.is_none(),
        task_cpus: config.max_cpus_per_task,
        headroom: config.headroom_cpus,
    };
    let had: Vec<_> = steps.iter().map(|step| (resize::cpus_of(step), before(step))).collect();
    let mut errors = resize::resize(&steps, &new)?;
    let change = new.whole_job.then(|| change(options, had.iter().map(|(_, granted)| *granted)));
    for (step, (cpus, _)) in steps.iter().zip(&had) {
        let done = note(config, step, &new, *cpus, change.as_ref());
        // A step that ends meanwhile has nothing to note.
        errors.extend(done.err().filter(|error| !error.is_gone()).map(|error| (Limit::Cpu, error)));
    }
    for (limit, error) in &errors {
        eprintln!("jobfence: {}: {error}", limit.word());
    }
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// CPUs in thousandths, and bytes of memory, that a step's job was granted, or that the step is limited to.
fn before(step: &LivingStep<'_>) -> (Option<u64>, Option<u64>) {
    let (granted, limits) = (step.allocated().noted.granted, step.current(Depth::Job).limits);
    (granted.cpus.or(limits.cpus).map(Cpus::thousandths), granted.memory.or(limits.memory))
}

fn change(options: &ResizeOptions, had: impl Iterator<Item = (Option<u64>, Option<u64>)> + Clone) -> Resized {
    let most = |of: fn((Option<u64>, Option<u64>)) -> Option<u64>| had.clone().filter_map(of).max();
    let changed = |before, now: Option<u64>| now.map(|now| Changed { before, now });
    Resized {
        at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        cpus: changed(most(|had| had.0), options.cpus.map(Cpus::thousandths)),
        memory: changed(most(|had| had.1), options.memory),
    }
}

/// Has the processes that go on with the fence, and those that read it, know of the new limits.
fn note(
    config: &Config,
    step: &LivingStep<'_>,
    new: &NewLimits<'_>,
    cpus_before: Option<CpuQuota>,
    change: Option<&Resized>,
) -> Result<(), Error> {
    let granted = |granted: &mut GrantedTo| {
        if let Some(change) = change {
            granted.cpus = change.cpus().map(|(_, now)| now).or(granted.cpus);
            granted.memory = change.memory.map(|memory| memory.now).or(granted.memory);
        }
    };
    if let Some(change) = change {
        step.note_resized(change)?;
    }
    step.renew_allocated(|allocated| {
        granted(&mut allocated.noted.granted);
        if new.cpus && new.whole_job {
            allocated.cpus_limit = new.plan.job.cpu.map(CpuQuota::cpus);
        }
    })?;
    let Some(mut record) = step.record.clone() else { return Ok(()) };
    let Some(left) = record.shared.as_mut().and_then(|shared| shared.plan.as_mut()) else { return Ok(()) };
    resize::renew(&mut left.plan, step, new, cpus_before);
    if left.noted != Noted::default() {
        granted(&mut left.noted.granted);
    }
    Records::open(&config.run_dir)?.replace(&record, Instant::now() + PATIENCE)
}

/// What is known of the job, for the sections of jobfence.conf.
fn facts(loaded: &Loaded, view: &LivingView, step: &LivingStep<'_>) -> Facts {
    let noted = step.record.as_ref().map(Record::noted).unwrap_or_default();
    let mut facts = Facts { uid: Fact::from(step.uid), ..noted.facts() };
    let records = JobRecords::existing(&view.run_dir).ok().flatten();
    if let Some(record) = facts_of(records.as_ref(), &view.host, step) {
        record.add_to(&mut facts);
    }
    user::know(&mut facts, &loaded.asked());
    facts
}

/// The limits of a job with the new amounts.
fn plan(config: &Config, options: &ResizeOptions) -> Result<Plan, Failure> {
    let (plan, errors) = policy::plan(config, &Grant::whole(options.cpus, options.memory));
    if let Some((_, error)) = errors.into_iter().next() {
        return Err(error.into());
    }
    if options.cpus.is_some() && plan.job.cpu.is_none() && plan.job.weight.is_none() {
        return Err("jobfence.conf does not limit the CPU time of this job (ConstrainCPUQuota, CPUPolicy)".into());
    }
    if options.memory.is_some() && plan.job.ram.is_none() {
        return Err("jobfence.conf does not limit the memory of this job (ConstrainRAMSpace)".into());
    }
    Ok(plan)
}

/// What `jobfence resize` has made of a job's grant, and when.
pub fn in_words_of(resized: &Resized) -> String {
    let from = |before: Option<String>| before.map_or_else(String::new, |before| format!("from {before} "));
    let cpus = resized.cpus().map(|(before, now)| {
        let before = before.map(|before| before.in_words().to_string());
        format!("{}to {}", from(before), now.in_words())
    });
    let memory = resized
        .memory
        .map(|memory| format!("{}to {} of memory", from(memory.before.map(mebibytes)), mebibytes(memory.now)));
    let all: Vec<String> = cpus.into_iter().chain(memory).collect();
    format!("{}, at {}", all.join("; "), utc(resized.time()))
}
