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
use jobfence::fence::LimitError;
use jobfence::fence::living::LivingStep;
use jobfence::fence::resize::{self, Before, NewLimits};
use jobfence::fence::seen::SeenDirs;
use jobfence::figures::GrantedTo;
use jobfence::job::{Cpus, Grant, Id};
use jobfence::policy::{self, Plan};
use jobfence::record::job::JobRecords;
use jobfence::record::noted::{Allocated, Noted};
use jobfence::record::resized::{Changed, Resized};
use jobfence::record::{Record, Records};
use jobfence::report::account::utc;

use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::lend;
use crate::living::{LivingView, facts_of, job_id, say_none, warn_of};
use crate::run::{cpus, size};
use crate::schedulers;
use crate::table::printable;

/// How long the kernel may look for memory to take back.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long another process may work on a record.
const FOR_A_RECORD: Duration = Duration::from_secs(5);

/// How long other changes of running jobs' limits may take.
const OTHERS: Duration = Duration::from_secs(60);

/// How often it is looked for steps that have begun meanwhile.
const ROUNDS: u32 = 3;

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
    /// If the job uses more, and that is not page cache that the kernel gives back within 10 seconds, nothing is changed.
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
    if !view.run_dir.is_dir() && view.steps().0.is_empty() {
        say_none(view.job());
        return Ok(ExitCode::FAILURE);
    }
    // One at a time, from the first look to the last note.
    let records = Records::open(&view.run_dir)?;
    let _lock = records.lock_resizes(Instant::now() + OTHERS)?;
    let (mut steps, mut unseen) = view.steps();
    if let Some(wanted) = &options.step {
        steps.retain(|step| step.step == wanted.as_str());
    }
    let Some(first) = steps.first() else {
        warn_of(&unseen);
        say_none(view.job());
        return Ok(ExitCode::FAILURE);
    };
    let mut known = Before::default();
    known.dirs.see(&steps)?;
    let _memory = if options.memory.is_some() {
        // hold may have lent the job memory, and changes the same limits.
        let locks = records.lock_memories(known.dirs.with_memory(&steps), Instant::now() + OTHERS)?;
        known.lent = lend::loans(&view.run_dir)?;
        locks
    } else {
        Vec::new()
    };
    refuse_two(options, &steps)?;
    if options.memory.is_some()
        && let Some(path) = resize::limited_by_others(&steps, &known.dirs)?
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
    resize::look(&steps, &new, &mut known)?;
    let mut had: Vec<_> = steps.iter().map(|step| resize::cpus_of(step, &known.dirs)).collect();
    let earlier = steps.iter().find_map(LivingStep::resized);
    let change = new.whole_job.then(|| change(options, &steps.iter().map(before).collect::<Vec<_>>()));
    // Before the first limit: a step that begins meanwhile must not set the limits of the grant again.
    if let Some(change) = change.clone() {
        note_on_jobs((&steps, &known.dirs), Some(&change.after_any(earlier.as_ref())), earlier.as_ref())?;
    }
    let deadline = Instant::now() + PATIENCE;
    let first_try = set(&steps, &new, &mut known, (&records, deadline));
    let mut errors = match first_try {
        Ok(errors) => errors,
        Err(error) => {
            note_on_jobs((&steps, &known.dirs), earlier.as_ref(), earlier.as_ref())?;
            return Err(error.into());
        }
    };
    // What fails later is of a step alone.
    let change = change.map(|change| without(change, &errors));
    if let Some(rest) = change.clone().filter(|_| !errors.is_empty()) {
        let is_changed = rest.cpus.is_some() || rest.memory.is_some();
        let rest = if is_changed { Some(rest.after_any(earlier.as_ref())) } else { earlier };
        note_on_jobs((&steps, &known.dirs), rest.as_ref(), rest.as_ref())?;
    }
    if new.whole_job {
        for _ in 0..ROUNDS {
            // It knew nothing of the note yet, or had read the limits of before.
            let (mut late, more) = view.steps();
            let more: Vec<_> = more.into_iter().filter(|error| !unseen.contains(error)).collect();
            unseen.extend(more);
            late.retain(|late| !steps.iter().any(|step| late.is_within(step)));
            known.dirs.see_late(&mut late)?;
            if late.is_empty() {
                break;
            }
            had.extend(late.iter().map(|step| resize::cpus_of(step, &known.dirs)));
            match set(&late, &new, &mut known, (&records, deadline)) {
                Ok(more) => errors.extend(more),
                Err(error) => errors.push((Limit::Ram, error)),
            }
            steps.extend(late);
        }
    }
    for (limit, error) in &errors {
        eprintln!("jobfence: {}: {error}", limit.word());
    }
    let mut has_failed = !errors.is_empty();
    for (step, cpus) in steps.iter().zip(&had) {
        // A step that ends meanwhile has nothing to note.
        let noted = note(&records, step, (&new, &known.dirs), *cpus, change.as_ref());
        if let Some(error) = noted.err().filter(|error| !error.is_gone()) {
            // The limits are set all the same.
            eprintln!("jobfence: {error}");
            has_failed = true;
        }
    }
    warn_of(&unseen);
    if !known.dirs.have_a_job(&steps) {
        return Err(format!("job {} has ended meanwhile, and nothing of it is left to change", options.job).into());
    }
    Ok(if has_failed || !unseen.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Refuses a name that several jobs have.
fn refuse_two(options: &ResizeOptions, steps: &[LivingStep<'_>]) -> Result<(), Failure> {
    let of = |step: &LivingStep<'_>| format!("user {:?} of node {:?}", step.uid, step.node);
    // What is not known of a step is no difference.
    fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
        one.zip(other).is_some_and(|(one, other)| one != other)
    }
    for (index, one) in steps.iter().enumerate() {
        let is_another =
            |other: &&LivingStep<'_>| differ(one.uid, other.uid) || differ(one.node.as_ref(), other.node.as_ref());
        if let Some(other) = steps.iter().skip(index).find(is_another) {
            return Err(format!("job {} is here twice, of {} and of {}", options.job, of(one), of(other)).into());
        }
    }
    Ok(())
}

/// Sets the limits. An error: those of memory could not be set, and all are as before.
fn set(
    steps: &[LivingStep<'_>],
    new: &NewLimits<'_>,
    known: &mut Before,
    (records, deadline): (&Records, Instant),
) -> Result<Vec<LimitError>, Error> {
    if new.memory {
        resize::change_memory(steps, new, known, deadline)?;
    }
    if !new.cpus {
        return Ok(Vec::new());
    }
    // Memory stays as it is now, also if this fails.
    let done = resize::change_cpus(steps, new, known, (records, Instant::now() + PATIENCE));
    Ok(done.unwrap_or_else(|error| vec![(Limit::Cpu, error)]))
}

/// Notes on the job's directories what it has; if that fails, what it had.
fn note_on_jobs(
    (steps, dirs): (&[LivingStep<'_>], &SeenDirs),
    resized: Option<&Resized>,
    earlier: Option<&Resized>,
) -> Result<(), Error> {
    dirs.note_resized(steps, resized).inspect_err(|_| {
        let _ = dirs.note_resized(steps, earlier);
    })
}

/// CPUs in thousandths, and bytes of memory.
type BeforeResize = (Option<u64>, Option<u64>);

/// CPUs in thousandths, and bytes of memory, that a step's job was granted, or that the step is limited to.
fn before(step: &LivingStep<'_>) -> BeforeResize {
    let (granted, limits) = (step.allocated().noted.granted, step.current(Depth::Job).limits);
    (granted.cpus.or(limits.cpus).map(Cpus::thousandths), granted.memory.or(limits.memory))
}

fn change(options: &ResizeOptions, had: &[BeforeResize]) -> Resized {
    let most = |of: fn(&BeforeResize) -> Option<u64>| had.iter().filter_map(of).max();
    let changed = |before, now: Option<u64>| now.map(|now| Changed { before, now });
    Resized {
        at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        cpus: changed(most(|had| had.0), options.cpus.map(Cpus::thousandths)),
        memory: changed(most(|had| had.1), options.memory),
    }
}

/// A change without what could not be set.
fn without(change: Resized, failed: &[LimitError]) -> Resized {
    let has = |limits: &[Limit]| failed.iter().any(|(limit, _)| limits.contains(limit));
    let cpus = change.cpus.filter(|_| !has(&[Limit::Cpu, Limit::Weight, Limit::Burst]));
    Resized { cpus, memory: change.memory.filter(|_| !has(&[Limit::Ram])), ..change }
}

/// Has the processes that go on with the fence, and those that read it, know of the new limits.
fn note(
    records: &Records,
    step: &LivingStep<'_>,
    (new, dirs): (&NewLimits<'_>, &SeenDirs),
    cpus_before: Option<CpuQuota>,
    change: Option<&Resized>,
) -> Result<(), Error> {
    let granted = |granted: &mut GrantedTo| {
        if let Some(change) = change {
            granted.cpus = change.cpus().map(|(_, now)| now).or(granted.cpus);
            granted.memory = change.memory.map(|memory| memory.now).or(granted.memory);
        }
    };
    let renew = |allocated: &mut Allocated| {
        granted(&mut allocated.noted.granted);
        if change.is_some_and(|change| change.cpus.is_some()) {
            allocated.cpus_limit = new.plan.job.cpu.map(CpuQuota::cpus);
        }
    };
    step.renew_allocated(|path| dirs.open(path), renew)?;
    let Some(known) = &step.record else { return Ok(()) };
    // Another process may have changed it since.
    let Some(mut record) = records.read(&known.levels)?.filter(|record| record.is_same(known)) else { return Ok(()) };
    let Some(left) = record.shared.as_mut().and_then(|shared| shared.plan.as_mut()) else { return Ok(()) };
    resize::renew(&mut left.plan, step, (new, dirs), cpus_before)?;
    if left.noted != Noted::default() {
        granted(&mut left.noted.granted);
    }
    records.replace(&record, Instant::now() + FOR_A_RECORD)
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
    if let (Some(asked), Some(most)) = (options.cpus, plan.user.cpu.map(CpuQuota::cpus))
        && asked > most
    {
        return Err(format!("all jobs of the user have no more than {} (MaxCPUsPerUser)", most.in_words()).into());
    }
    if let (Some(asked), Some(most)) = (options.memory, plan.user.ram)
        && asked > most
    {
        return Err(format!("all jobs of the user have no more than {} (MaxRAMPerUser)", mebibytes(most)).into());
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
