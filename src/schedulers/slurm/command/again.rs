// SPDX-License-Identifier: GPL-2.0-or-later
//! A batch job that failed at its memory limit: `scontrol requeuehold`, `update` and `release`, each in the name of the job's user. One that
//! was ended, by slurmctld or for owners: `scontrol requeue`.
//!
//! slurmctld requeues a batch job that has ended as long as it knows it (MinJobAge), and counts that in its `RestartCnt`. It then lets the
//! job wait, for two minutes by default, until the credential of the last run is void. An update of root's would lift the limits of the job's QOS and
//! association for good (`limit_set` in src/slurmctld/job_mgr.c), and none checks what the partition allows at most, or what nodes have:
//! so the user asks, and the bounds are read here.
//!
//! squeue is asked for the job. Its fields here are all Slurm's: users cannot write any of them. Only `scontrol show job` tells memory for a
//! node from memory for a CPU. There, users can write texts; whoever has written Slurm's own key is not understood.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jobfence::cpu_list::CpuList;
use jobfence::fence::living::LivingStep;
use jobfence::schedulers::slurm::HOLDER;
use jobfence::sys::program::{AskedProgram, Silence};
use nix::unistd::User;

use super::job::{KEPT, run_until};
use crate::again::{AgainPart, AgainTrouble, AskedMemory, JobNow, KilledRun, MemoryBounds, MemoryUnit, RunEnd};
use crate::table::printable;

/// Slurm, for `OnOutOfMemory`, `OnTimeLimit`, `OnPreempt` and `ScavengerEnd`.
pub struct SlurmAgain;

/// The fields of squeue. They are the same in all releases from 22.05 to 26.05.
const FIELDS: &str = "--Format=JobID:|,JobArrayID:|,UserID:|,State:|,RestartCnt:|,Requeue:|,Partition:|,NodeList:|,StartTime:|,EndTime:|,Reason:|";

/// What slurmctld says of a job that `requeuehold` has put back (`_job_requeue_op`), whoever has asked for that. No user can write it.
const HELD: &str = "job requeued in held state";

/// States in which a run has failed by itself. A job that was cancelled, or ran into its time limit, is in another.
const FAILED: [&str; 2] = ["FAILED", "OUT_OF_MEMORY"];

/// States of a run that slurmctld has ended (22.05 to 26.05): at its time limit, or for another job.
const ENDED: [(&str, RunEnd); 2] = [("TIMEOUT", RunEnd::TimeLimit), ("PREEMPTED", RunEnd::Preemption)];

/// How far the clocks of a node and of the controller may differ, in seconds.
const CLOCKS: u64 = 60;

/// States of a run that slurmctld takes for one that has not ended.
const ENDING: [&str; 5] = ["RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED"];

/// A job as squeue has it.
#[derive(Debug, PartialEq, Eq)]
struct QueuedRun {
    /// `12` or `12_3`.
    name: String,
    state: String,
    restarts: u32,
    partition: String,
    nodes: String,
    /// When its last run began, in seconds since 1970 by the controller's clock.
    began: Option<u64>,
    /// When it ended, likewise.
    ended: Option<u64>,
    is_held: bool,
    /// Whether its user and the site let it run again.
    may_requeue: bool,
}

impl AgainPart for SlurmAgain {
    fn holder(&self) -> &'static str {
        HOLDER
    }

    fn has_script(&self, step: &LivingStep<'_>) -> bool {
        // Slurm's step daemon has made its fence, and no other program.
        step.step == "batch" && step.record.as_ref().is_some_and(|record| record.shared.is_none())
    }

    fn look(&self, run: &KilledRun, deadline: Instant) -> Result<JobNow, String> {
        let job = match queued(run, deadline) {
            Ok(Ok(job)) => job,
            Ok(Err(why)) => return Ok(JobNow::Other(why)),
            Err(why) => return Err(why),
        };
        *NAMED.lock().unwrap_or_else(PoisonError::into_inner) = Some((run.job.clone(), job.name.clone()));
        match state(&job, run) {
            Some(JobNow::Held { .. }) => {
                let shown = show(&["job", &job.name], deadline)?;
                Ok(JobNow::Held { asked: asked(&shown).ok() })
            }
            Some(now) => Ok(now),
            None => match ended(&job, run) {
                Some(end) => {
                    Ok(JobNow::Ended { restarts: job.restarts, end, barred: (!job.may_requeue).then_some(FORBIDDEN) })
                }
                None => failed(&job, run, deadline),
            },
        }
    }

    fn requeue(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble> {
        // What asks for no more is not held, so nobody must let it go.
        let word = if run.end == RunEnd::Memory { "requeuehold" } else { "requeue" };
        self.tell(run, deadline, &|name| vec![word.to_owned(), name.to_owned()])
    }

    fn ask_for(&self, run: &KilledRun, memory: AskedMemory, deadline: Instant) -> Result<(), AgainTrouble> {
        let key = match memory.unit {
            // A job of one host has one node.
            MemoryUnit::Node | MemoryUnit::Host => "MinMemoryNode",
            MemoryUnit::Cpu => "MinMemoryCPU",
        };
        let update = |name: &str| vec!["update".to_owned(), format!("JobId={name}"), format!("{key}={}", memory.mib)];
        self.tell(run, deadline, &update)
    }

    fn let_go(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble> {
        self.tell(run, deadline, &|name| vec!["release".to_owned(), name.to_owned()])
    }

    fn cancel(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble> {
        let name = name_of(run, deadline)?;
        tell(run, "scancel", &[name], deadline)
    }
}

impl SlurmAgain {
    fn tell(
        &self,
        run: &KilledRun,
        deadline: Instant,
        arguments: &dyn Fn(&str) -> Vec<String>,
    ) -> Result<(), AgainTrouble> {
        tell(run, "scontrol", &arguments(&name_of(run, deadline)?), deadline)
    }
}

/// The job's name among its array's: the number of an array's last job is that of the array. A job that has run keeps its name, so it is
/// asked once for all that is done to the job now.
fn name_of(run: &KilledRun, deadline: Instant) -> Result<String, AgainTrouble> {
    let mut known = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((job, name)) = known.as_ref()
        && *job == run.job
    {
        return Ok(name.clone());
    }
    match queued(run, deadline) {
        Ok(Ok(job)) => {
            *known = Some((run.job.clone(), job.name.clone()));
            Ok(job.name)
        }
        Ok(Err(why)) => Err(AgainTrouble::Refused(why)),
        Err(why) => Err(AgainTrouble::Unknown(why)),
    }
}

/// The job that was looked at last, and its name.
static NAMED: Mutex<Option<(String, String)>> = Mutex::new(None);

/// Runs a command of Slurm's for the job's user.
fn tell(run: &KilledRun, program: &str, arguments: &[String], deadline: Instant) -> Result<(), AgainTrouble> {
    let user = User::from_uid(run.uid.into()).ok().flatten();
    // A name service can fail for a moment, and then knows nobody.
    let user = user.ok_or_else(|| AgainTrouble::Unknown("its user is not known on this node".to_owned()))?;
    let command = AskedProgram::new(program, arguments, KEPT).acting_for(user.uid.as_raw(), user.gid.as_raw());
    command.ask(deadline).map(drop).map_err(|error| {
        let why = format!("{program} {}: {error}", arguments.first().map_or("", String::as_str));
        match error {
            Silence::Failed(said) if is_refusal(&said) => AgainTrouble::Refused(why),
            _ => AgainTrouble::Unknown(why),
        }
    })
}

/// Texts of slurm_errno.c (22.05 to 26.05) with which slurmctld refuses for good. Each other text may be of a controller that is busy, of
/// one that has another's work to finish first, or of Slurm's authentication.
const REFUSALS: [&str; 10] = [
    "Access/permission denied",
    "Job violates accounting/QOS policy",
    "Memory required by task is not available",
    "Requested node configuration is not available",
    "CPU count per node can not be satisfied",
    "Requested operation is presently disabled",
    "Requested operation not supported on this system",
    "Only batch jobs are accepted or processed",
    "Cannot modify scrontab jobs",
    // What a plugin of the site's returns that refuses a job (job_submit/lua).
    "Unspecified error",
];

/// Whether a command says that the controller refuses, and will refuse it again.
fn is_refusal(said: &str) -> bool {
    REFUSALS.iter().any(|words| said.contains(words))
}

/// The job. The inner error says why nothing can be done for it.
fn queued(run: &KilledRun, deadline: Instant) -> Result<Result<QueuedRun, String>, String> {
    let options = ["--all", "--noheader", "--states=all", FIELDS, "--jobs", run.job.as_str()];
    // In seconds since 1970, whatever the administrator's own format is.
    let asked = AskedProgram::new("squeue", &options, KEPT).with([("SLURM_TIME_FORMAT", "%s".to_owned())]);
    match asked.ask(deadline) {
        Ok(said) => Ok(find(&said, run)),
        Err(Silence::Failed(said)) if said.contains("Invalid job id") => Ok(Err(PURGED.to_owned())),
        Err(error) => Err(format!("squeue: {}", printable(&error.to_string()))),
    }
}

const PURGED: &str = "Slurm does not know it any more (MinJobAge in slurm.conf)";

/// The job among the lines of its array.
fn find(said: &str, run: &KilledRun) -> Result<QueuedRun, String> {
    for line in said.lines() {
        let [number, name, uid, state, restarts, requeue, partition, nodes, began, ended, reason, _] =
            line.split('|').collect::<Vec<_>>()[..]
        else {
            continue;
        };
        if number != run.job {
            continue;
        }
        if uid != run.uid.to_string() {
            return Err(format!("Slurm says that it is of the user {}", printable(uid)));
        }
        if name.contains('+') {
            return Err("it is a component of a heterogeneous job".to_owned());
        }
        let restarts = restarts.parse().map_err(|_| format!("squeue answers {restarts:?} for its restarts"))?;
        return Ok(QueuedRun {
            name: name.to_owned(),
            state: state.to_owned(),
            restarts,
            partition: partition.to_owned(),
            nodes: nodes.to_owned(),
            began: began.parse().ok(),
            ended: ended.parse().ok(),
            is_held: reason == HELD,
            may_requeue: requeue != "0",
        });
    }
    Err(PURGED.to_owned())
}

/// The reason if its user or the site forbids a requeue.
const FORBIDDEN: &str = "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)";

/// The reason if it is not certain that this run is the killed one.
const NOT_THIS: &str =
    "by its times in Slurm, this is another run of it, or the clocks of the controller and of this node differ";

/// Why the run has ended, if its job is requeued as it is for that.
fn ended(job: &QueuedRun, run: &KilledRun) -> Option<RunEnd> {
    match run.end {
        RunEnd::Memory => None,
        RunEnd::Owners => Some(RunEnd::Owners),
        RunEnd::Unknown | RunEnd::TimeLimit | RunEnd::Preemption => {
            ENDED.iter().find(|(state, _)| *state == job.state).map(|(_, end)| *end)
        }
    }
}

/// What follows from its state. `None`: the run has failed or was ended, and more must be asked.
fn state(job: &QueuedRun, run: &KilledRun) -> Option<JobNow> {
    let says = |state: &str| JobNow::Other(format!("Slurm says that it is {}", printable(state)));
    let other = |why: &str| Some(JobNow::Other(why.to_owned()));
    if job.state == "CANCELLED" {
        return Some(says("CANCELLED"));
    }
    if job.state == "PENDING" {
        let is_ours = job.is_held && run.restarts.is_some_and(|count| count.checked_add(1) == Some(job.restarts));
        return Some(if is_ours { JobNow::Held { asked: None } } else { JobNow::Next });
    }
    let is_of_slurm = run.end.is_of_scheduler();
    let has_failed = if is_of_slurm { ended(job, run).is_some() } else { FAILED.contains(&job.state.as_str()) };
    match run.restarts {
        Some(restarts) if job.restarts != restarts => return Some(JobNow::Next),
        Some(_) => {}
        // A script begins after its job, and the job ends with it.
        None => {
            let has_begun = job.began.is_some_and(|began| began <= run.began.saturating_add(CLOCKS));
            // slurmctld ends a job, and then the script has the time of KillWait.
            let has_ended = job.ended.is_some_and(|ended| match is_of_slurm {
                true => ended <= run.ended.saturating_add(CLOCKS),
                false => ended.abs_diff(run.ended) <= CLOCKS,
            });
            if !has_begun || has_failed && !has_ended {
                return other(NOT_THIS);
            }
        }
    }
    match job.state.as_str() {
        _ if has_failed && is_of_slurm => None,
        _ if has_failed && !job.may_requeue => other(FORBIDDEN),
        _ if has_failed => None,
        state if ENDING.contains(&state) => Some(JobNow::Ending { restarts: job.restarts }),
        state => Some(says(state)),
    }
}

/// What `scontrol show` says, with the CPUs on each node of a job.
fn show(what: &[&str], deadline: Instant) -> Result<String, String> {
    let arguments = ["--all", "--oneliner", "--details", "show"].iter().chain(what).copied().collect::<Vec<_>>();
    run_until("scontrol", &arguments, deadline)
        .map_err(|error| format!("scontrol show {}: {}", what.join(" "), printable(&error.to_string())))
}

/// What `scontrol show` said of what is no job's: a look is a process of its own, and asks for each of it once.
static SHOWN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// What `scontrol show` says of a partition, of nodes or of the configuration.
fn show_once(what: &[&str], deadline: Instant) -> Result<String, String> {
    let mut all = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = what.join(" ");
    if let Some(known) = all.get(&key) {
        return Ok(known.clone());
    }
    let said = show(what, deadline)?;
    all.insert(key, said.clone());
    Ok(said)
}

/// What it has asked for, and what it can have.
fn failed(job: &QueuedRun, run: &KilledRun, deadline: Instant) -> Result<JobNow, String> {
    let show_once = |what: &[&str]| show_once(what, deadline);
    let shown = show(&["job", &job.name], deadline)?;
    let asked = match asked(&shown).and_then(|asked| as_granted(asked, run)) {
        Ok(asked) => asked,
        Err(why) => return Ok(JobNow::Other(why)),
    };
    let (per_node, per_cpu) = most_of(&show_once(&["partition", &job.partition])?);
    let (per_node, per_cpu) = match (per_node, per_cpu) {
        // What all partitions have that say nothing else.
        (None, None) => most_of(&show_once(&["config"])?),
        of_partition => of_partition,
    };
    let node = show_once(&["node", &job.nodes])?.lines().map(memory_of).min().flatten();
    let node =
        node.ok_or_else(|| format!("scontrol show node {} does not tell their memory", printable(&job.nodes)))?;
    let (fewest, most) = cpus_of(&shown, run.cpus());
    let bounds = MemoryBounds { per_node, per_cpu, node: Some(node), cpus: most, fewest_cpus: fewest };
    Ok(JobNow::Failed { restarts: job.restarts, asked, bounds })
}

/// The CPUs that the job had on the node with the fewest, and on that with the most: Slurm writes `CPU_IDs=LIST` for each kind of node.
/// `here`: on this node. A user can write the key, too, and then has less memory at most.
fn cpus_of(shown: &str, here: u64) -> (u64, u64) {
    let of =
        |word: &str| u64::try_from(CpuList::parse(word.strip_prefix("CPU_IDs=")?)?.len()).ok().filter(|cpus| *cpus > 0);
    let all = || shown.split_whitespace().filter_map(of).chain([here]);
    (all().min().unwrap_or(here), all().max().unwrap_or(here))
}

/// What the job asks for, by `scontrol show job` (`slurm_sprint_job_info`). The error is why that is not known.
fn asked(shown: &str) -> Result<AskedMemory, String> {
    let mut parts = shown.split("MinCPUsNode=");
    let (Some(_), Some(rest), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err("a text of the job's has a key of Slurm's in it (see scontrol show job)".to_owned());
    };
    let word = rest.split_whitespace().nth(1).unwrap_or_default();
    let units = [("MinMemoryNode=", MemoryUnit::Node), ("MinMemoryCPU=", MemoryUnit::Cpu)];
    let found = units.into_iter().find_map(|(key, unit)| Some((unit, word.strip_prefix(key)?)));
    let Some((unit, amount)) = found else {
        return Err("it has asked for memory by neither --mem nor --mem-per-cpu".to_owned());
    };
    let mib = mebibytes(amount).ok_or_else(|| format!("Slurm answers {word:?} for its memory"))?;
    Ok(AskedMemory { unit, mib })
}

/// What the killed run has asked for, if that is what it was granted: what a site's plugin has changed since, and what follows from
/// something else, is not raised.
fn as_granted(asked: AskedMemory, run: &KilledRun) -> Result<AskedMemory, String> {
    let expected = match asked.unit {
        MemoryUnit::Node | MemoryUnit::Host => asked.mib,
        MemoryUnit::Cpu => asked.mib.saturating_mul(run.cpus()),
    };
    if asked.mib > 0 && run.granted() != Some(expected.saturating_mul(1 << 20)) {
        return Err(format!("Slurm says that it has asked for {asked}, and has granted something else"));
    }
    if asked.unit == MemoryUnit::Node && run.is_killed_step_smaller() {
        return Err("a step was killed at a limit of its own: it needs more by srun --mem".to_owned());
    }
    Ok(asked)
}

/// An amount as Slurm prints it (`convert_num_unit`), which is exact here.
fn mebibytes(amount: &str) -> Option<u64> {
    let digits = amount.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match amount.get(digits.len()..)? {
        "" | "M" => 1,
        "G" => 1 << 10,
        "T" => 1 << 20,
        "P" => 1 << 30,
        _ => return None,
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let part = format!("{part:0<3}");
    let thousandths = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part.parse().ok()?)?;
    thousandths.checked_mul(unit).map(|mib| mib / 1000)
}

/// The most of a node and of a CPU, by `scontrol show partition` or `show config`.
fn most_of(shown: &str) -> (Option<u64>, Option<u64>) {
    let of = |key: &str| shown.lines().find_map(|line| value_of(line, key)?.parse().ok());
    (of("MaxMemPerNode"), of("MaxMemPerCPU"))
}

/// The value of a key in a line of such keys. A line of the configuration has one, with spaces around the sign.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    match line.split_once(" = ") {
        Some((name, value)) => (name.trim() == key).then(|| value.trim()),
        None => line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')),
    }
}

/// The memory of a node for jobs, by its line of `scontrol show node`.
fn memory_of(line: &str) -> Option<u64> {
    let of = |key: &str| value_of(line, key)?.parse::<u64>().ok();
    Some(of("RealMemory")?.saturating_sub(of("MemSpecLimit").unwrap_or(0)))
}

#[cfg(test)]
mod tests;
