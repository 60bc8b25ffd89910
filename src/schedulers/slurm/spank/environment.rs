// SPDX-License-Identifier: GPL-2.0-or-later
//! The variables that tell a job about its fence. A user may have set any of them, or a job may inherit them from the step that called srun
//! or sbatch. So the variable of an absent limit is removed, and what was told to one step is not passed on to another.
//!
//! The commands take over their environment (read in the last release of each series from 22.05 to 26.05) in `_fill_job_desc_from_opts` in
//! sbatch, in `_setup_job_env` and before each launch in srun, and when salloc executes the user's command. All of that comes after
//! `slurm_spank_init_post_opt`, and so does reading the names in `--export=NAME`.

use std::ffi::CStr;

use nix::unistd::Pid;

use crate::cgroup::affinity::Affinity;
use crate::config::{Config, Limit, Mode};
use crate::error::Result;
use crate::fence::Fence;
use crate::job::Cpus;
use crate::policy::Plan;
use crate::policy::threads::{HINT, THREADS, threads};
use crate::policy::variables::{CGROUP, CPUS, MEMORY, PROCESSES};
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::grant::StepKind;

/// The mark that finds processes of the step which left everything else: see `record::tracked`.
pub const STEP: &CStr = c"JOBFENCE_STEP";

/// A limit and the variable that tells it.
struct Variable {
    name: &'static CStr,
    /// The values are the kernel's if its files tell them, to report what is in force and not what was planned. No file is read for a value
    /// that no limit sets: this runs on each launch.
    value: fn(&Plan, &Fence) -> Option<String>,
}

const VARIABLES: &[Variable] = &[
    Variable { name: CPUS, value: |plan, fence| cpus(plan, fence).map(|cpus| cpus.to_string()) },
    Variable {
        name: c"JOBFENCE_CPU_BURST",
        value: |plan, fence| {
            plan.step.burst?;
            Some(fence.burst()?.to_string().trim_end_matches('%').to_owned())
        },
    },
    Variable {
        name: c"JOBFENCE_CPU_WEIGHT",
        value: |plan, fence| if plan.weighs { fence.weight().map(|weight| weight.to_string()) } else { None },
    },
    Variable {
        name: MEMORY,
        value: |plan, fence| {
            let ours = [&plan.user, &plan.job, &plan.step, &plan.task];
            // Slurm's own limits are not reported.
            let ours = ours.iter().any(|limits| limits.ram.is_some() || limits.swap.is_some());
            let around = if ours { fence.lowest_memory() } else { None };
            around.into_iter().chain(plan.task.ram).min().map(|bytes| bytes.to_string())
        },
    },
    Variable {
        name: c"JOBFENCE_MEMORY_HIGH_BYTES",
        value: |plan, fence| {
            let of_step = plan.step.high.and_then(|_| fence.memory_high());
            of_step.into_iter().chain(plan.task.high).min().map(|bytes| bytes.to_string())
        },
    },
    Variable {
        name: PROCESSES,
        value: |plan, fence| {
            let of_step = plan.step.numbers.get(Limit::Processes).and_then(|_| fence.processes());
            of_step.into_iter().chain(plan.task.numbers.get(Limit::Processes)).min().map(|count| count.to_string())
        },
    },
    Variable {
        name: c"JOBFENCE_IO_MAX",
        value: |plan, fence| {
            let rules = fence.io().cloned().unwrap_or_default().at_most(&plan.task.io);
            (!rules.is_empty()).then(|| rules.to_string())
        },
    },
    Variable {
        name: c"JOBFENCE_CORES",
        value: |plan, fence| plan.step.cores.as_ref().and_then(|_| fence.cores()).map(|cpus| cpus.to_string()),
    },
    Variable {
        name: c"JOBFENCE_HUGE_PAGES",
        value: |plan, fence| {
            let pages = fence.huge_pages(&plan.step.huge_pages).at_most(&plan.task.huge_pages);
            (!pages.is_empty()).then(|| pages.to_string())
        },
    },
    Variable {
        name: c"JOBFENCE_DEVICES",
        value: |_, fence| {
            let devices = fence.devices().filter(|devices| devices.are_listed())?.to_string();
            Some(if devices.is_empty() { "none".to_owned() } else { devices })
        },
    },
    Variable { name: c"JOBFENCE_SCAVENGER", value: |plan, _| plan.scavenger.then(|| "1".to_owned()) },
];

/// The CPU time of the step, or of each of its tasks if that is less.
fn cpus(plan: &Plan, fence: &Fence) -> Option<Cpus> {
    let of_step = fence.cpus().filter(|_| plan.step.cpu.is_some() || plan.job.cpu.is_some());
    of_step.into_iter().chain(plan.task.cpu.map(|quota| quota.cpus())).min()
}

/// Sets the variables: of all the step's tasks, or of one task if called in its process.
pub fn tell(spank: &Spank, config: &Config, plan: &Plan, fence: &Fence) -> Result<()> {
    match fence.path() {
        Some(path) => spank.setenv(CGROUP, &path)?,
        None => spank.unsetenv(CGROUP),
    }
    for variable in VARIABLES {
        match (variable.value)(plan, fence).filter(|_| config.mode == Mode::Enforce) {
            Some(value) => spank.setenv(variable.name, &value)?,
            None => spank.unsetenv(variable.name),
        }
    }
    Ok(())
}

/// The variables of an environment that jobfence told another step, without thread variables that the user changed, and without the mark.
/// `get` returns a variable's value.
fn set_before(get: impl Fn(&CStr) -> Option<String>) -> Vec<&'static CStr> {
    let hint = get(HINT);
    let hints = THREADS.into_iter().filter(|name| hint.is_some() && get(name) == hint);
    let variables = VARIABLES.iter().map(|variable| variable.name).chain([CGROUP, HINT]);
    hints.chain(variables.filter(|name| get(name).is_some())).collect()
}

/// Called in slurmstepd before anything is set: removes what the step inherited from another step, including the mark of that step. A step
/// without a fence is told nothing instead.
pub fn forget(spank: &Spank) {
    // A value that is too long is not jobfence's.
    set_before(|name| spank.getenv(name).ok().flatten()).into_iter().for_each(|name| spank.unsetenv(name));
    spank.unsetenv(STEP);
}

/// Called in srun, sbatch and salloc when all options have been read: removes the variables, since the next step may not set them anew.
///
/// The mark is removed only in sbatch. What srun and salloc execute themselves runs as processes of the enclosing job.
pub fn hand_nothing_on() {
    let get = |name: &CStr| std::env::var(name.to_str().ok()?).ok();
    let is_sbatch = std::env::current_exe().is_ok_and(|program| program.ends_with("sbatch"));
    for name in set_before(get).into_iter().chain([STEP].into_iter().filter(|_| is_sbatch)) {
        let Ok(name) = name.to_str() else { continue };
        // This is the command's first thread, which has just set variables itself and will set more (`setenvf`). Only 26.05 has other
        // threads by now (its connection manager).
        // SAFETY: unsetenv(3) frees and moves no string, so a thread that looks for a variable meanwhile reads a whole environment.
        unsafe { std::env::remove_var(name) };
    }
}

/// Called in a task's own process, which Slurm has bound to its CPUs: tells programs to start no more threads than the CPU time allows, if
/// the task can see more CPUs than that. If the user set one of the variables, all of them stay as they are.
///
/// The script of a job of several tasks gets no hint: it starts the tasks itself, with mpirun or one by one, and each would start as many
/// threads as all tasks together may use.
pub fn hint_threads(spank: &Spank, config: &Config, plan: &Plan, fence: &Fence) -> Result<()> {
    if !config.thread_hints {
        return Ok(());
    }
    let kind = StepKind::from_step_id(spank.u32(spank_item::S_JOB_STEPID)?);
    let tasks = spank.u32(spank_item::S_JOB_LOCAL_TASK_COUNT).unwrap_or(1);
    // slurmd sets this variable itself in each batch step (`env_array_for_batch_job`): how many tasks mpirun starts on each node. In an
    // interactive step it comes from salloc.
    let is_one_task = || spank.getenv(c"SLURM_TASKS_PER_NODE").is_ok_and(|tasks| tasks.as_deref() == Some("1"));
    let starts_tasks = matches!(kind, StepKind::Batch | StepKind::Interactive) && !is_one_task();
    let enforced = config.mode == Mode::Enforce && !starts_tasks;
    let visible = Affinity::from_pid(Pid::this().as_raw()).map(|cpus| cpus.count());
    let hint = match visible.filter(|_| enforced) {
        Some(visible) => share(of_step(spank, plan, fence), plan, tasks).and_then(|share| threads(share, visible)),
        None => None,
    };
    // jobfence's own values have been removed; one that is too long is the user's, too.
    let is_given = |name: &CStr| spank.getenv(name).map_or(true, |value| value.is_some());
    let Some(hint) = hint.filter(|_| !THREADS.iter().any(|name| is_given(name))) else { return Ok(()) };
    THREADS.iter().chain([&HINT]).try_for_each(|name| spank.setenv(name, &hint.to_string()))
}

/// The CPU time of the step. `CPUS` holds it, unless the task was told a limit of its own.
fn of_step(spank: &Spank, plan: &Plan, fence: &Fence) -> Option<Cpus> {
    match plan.task.cpu {
        None => spank.getenv(CPUS).ok().flatten().and_then(|text| as_told(&text)),
        Some(_) => fence.cpus().filter(|_| plan.step.cpu.is_some() || plan.job.cpu.is_some()),
    }
}

/// Parses what [`tell`] writes: `1.5`.
fn as_told(text: &str) -> Option<Cpus> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let thousandths = format!("{whole}{part:0<3}").parse().ok().filter(|_| !whole.is_empty() && part.len() <= 3)?;
    Some(Cpus::from_thousandths(thousandths))
}

/// The CPU time that a task has if the step's other tasks use theirs.
fn share(of_step: Option<Cpus>, plan: &Plan, tasks: u32) -> Option<Cpus> {
    let share = |cpus: Cpus| Cpus::from_thousandths(cpus.thousandths().div_ceil(u64::from(tasks.max(1))));
    of_step.map(share).into_iter().chain(plan.task.cpu.map(|quota| quota.cpus())).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_understood() {
        for thousandths in [1, 20, 500, 1000, 1050, 12_345, 64_000] {
            let cpus = Cpus::from_thousandths(thousandths);
            assert_eq!(as_told(&cpus.to_string()), Some(cpus));
        }
        assert!(["", ".5", "1.0005", "one", "-1"].iter().all(|text| as_told(text).is_none()));
    }

    #[test]
    fn only_what_another_step_was_told_is_taken_out() {
        let taken = |environment: &[(&str, &str)]| {
            let get = |name: &CStr| {
                let found = environment.iter().find(|(key, _)| name.to_str() == Ok(key));
                found.map(|(_, value)| (*value).to_owned())
            };
            let mut names: Vec<&str> = set_before(get).into_iter().map(|name| name.to_str().unwrap()).collect();
            names.sort_unstable();
            names
        };
        let variables = [("JOBFENCE_CGROUP", "/x"), ("JOBFENCE_CPUS", "1"), ("JOBFENCE_STEP", "b/1/2")];
        assert_eq!(taken(&variables), ["JOBFENCE_CGROUP", "JOBFENCE_CPUS"]);
        let theirs = [("OMP_NUM_THREADS", "1"), ("JOBFENCE_MINE", "1"), ("SLURM_SPANK_JOBFENCE_CPU_LIMIT", "1")];
        assert!(taken(&theirs).is_empty());
        let changed = [("JOBFENCE_THREADS", "1"), ("OMP_NUM_THREADS", "7"), ("GOMAXPROCS", "1")];
        assert_eq!(taken(&changed), ["GOMAXPROCS", "JOBFENCE_THREADS"]);
        let all: Vec<(&str, &str)> = THREADS.iter().chain([&HINT]).map(|name| (name.to_str().unwrap(), "2")).collect();
        assert_eq!(taken(&all).len(), THREADS.len() + 1);
    }

    #[test]
    fn no_variable_is_told_twice() {
        let mut names: Vec<_> =
            VARIABLES.iter().map(|variable| variable.name).chain(THREADS).chain([HINT, STEP]).collect();
        assert_eq!(STEP.to_str(), Ok(crate::record::tracked::VARIABLE));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
