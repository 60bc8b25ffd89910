// SPDX-License-Identifier: GPL-2.0-or-later
//! A batch job that failed at its memory limit: `scontrol requeuehold`, `update` and `release`, each in the name of the job's user.
//!
//! slurmctld requeues a batch job that has ended as long as it knows it (MinJobAge), and counts that in its `RestartCnt`. It then lets the
//! job wait for two minutes, until the credential of the last run is void. An update of root's would lift the limits of the job's QOS and
//! association for good (`limit_set` in src/slurmctld/job_mgr.c), and none checks what the partition allows at most, or what nodes have:
//! so the user asks, and the bounds are read here.
//!
//! squeue is asked for the job. Its fields here are all Slurm's: users cannot write any of them. Only `scontrol show job` tells memory for a
//! node from memory for a CPU. There, users can write texts; whoever has written Slurm's own key is not understood.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jobfence::schedulers::slurm::HOLDER;
use jobfence::sys::program::{AskedProgram, Silence};
use nix::unistd::User;

use super::job::{KEPT, run_until};
use crate::again::{AgainPart, AgainTrouble, AskedMemory, JobNow, KilledRun, MemoryBounds, MemoryUnit};
use crate::table::printable;

/// Slurm, for `OnOutOfMemory`.
pub struct SlurmAgain;

/// The fields of squeue. They are the same in all releases from 22.05 to 26.05.
const FIELDS: &str =
    "--Format=JobID:|,JobArrayID:|,UserID:|,State:|,RestartCnt:|,Requeue:|,Partition:|,NodeList:|,StartTime:|,Reason:|";

/// What slurmctld says of a job that `requeuehold` has put back (`_job_requeue_op`). Nobody else can have it say so.
const HELD: &str = "job requeued in held state";

/// States in which a run has failed by itself. A job that was cancelled, or ran into its time limit, is in another.
const FAILED: [&str; 2] = ["FAILED", "OUT_OF_MEMORY"];

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
    is_held: bool,
}

impl AgainPart for SlurmAgain {
    fn holder(&self) -> &'static str {
        HOLDER
    }

    fn look(&self, run: &KilledRun, deadline: Instant) -> Result<JobNow, String> {
        let job = match queued(run, deadline) {
            Ok(Ok(job)) => job,
            Ok(Err(why)) => return Ok(JobNow::Other(why)),
            Err(why) => return Err(why),
        };
        *NAMED.lock().unwrap_or_else(PoisonError::into_inner) = Some((run.job.clone(), job.name.clone()));
        match state(&job, run) {
            Some(now) => Ok(now),
            None => failed(&job, run, deadline),
        }
    }

    fn requeue(&self, run: &KilledRun, deadline: Instant) -> Result<(), AgainTrouble> {
        self.tell(run, deadline, &|name| vec!["requeuehold".to_owned(), name.to_owned()])
    }

    fn ask_for(&self, run: &KilledRun, memory: AskedMemory, deadline: Instant) -> Result<(), AgainTrouble> {
        let key = match memory.unit {
            MemoryUnit::Node => "MinMemoryNode",
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
    let user = user.ok_or_else(|| AgainTrouble::Refused("its user is not known on this node".to_owned()))?;
    let command = AskedProgram::new(program, arguments, KEPT).acting_for(user.uid.as_raw(), user.gid.as_raw());
    command.ask(deadline).map(drop).map_err(|error| {
        let why = format!("{program} {}: {error}", arguments.first().map_or("", String::as_str));
        match error {
            // Slurm's commands try for a while to reach the controller.
            Silence::Failed(said) if !cannot_reach(&said) => AgainTrouble::Refused(why),
            _ => AgainTrouble::Unknown(why),
        }
    })
}

/// Whether a command says that the controller has not answered (SLURM_COMMUNICATIONS_... and protocol errors in slurm_errno.c), or that it
/// was ended.
fn cannot_reach(said: &str) -> bool {
    ["Unable to contact", "timed out", "onnection", "ommunication", "has ended it", "Zero Bytes", "Transport"]
        .iter()
        .any(|words| said.contains(words))
}

/// The job, or why it is none of which anything can be done.
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
        let [number, name, uid, state, restarts, requeue, partition, nodes, began, reason, _] =
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
        if requeue == "0" {
            return Err("it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)".to_owned());
        }
        let restarts = restarts.parse().map_err(|_| format!("squeue answers {restarts:?} for its restarts"))?;
        return Ok(QueuedRun {
            name: name.to_owned(),
            state: state.to_owned(),
            restarts,
            partition: partition.to_owned(),
            nodes: nodes.to_owned(),
            began: began.parse().ok(),
            is_held: reason == HELD,
        });
    }
    Err(PURGED.to_owned())
}

/// What follows from its state. `None`: the run has failed, and more must be asked.
fn state(job: &QueuedRun, run: &KilledRun) -> Option<JobNow> {
    let says = |state: &str| JobNow::Other(format!("Slurm says that it is {}", printable(state)));
    let is_this_run = match run.restarts {
        Some(restarts) => job.restarts == restarts,
        // A script begins after its job, and the next run of the job behind its end, usually two minutes later.
        None => job.state == "PENDING" || job.began.is_some_and(|began| began <= run.began.saturating_add(CLOCKS)),
    };
    match job.state.as_str() {
        "CANCELLED" => Some(says("CANCELLED")),
        "PENDING" if job.is_held && run.restarts.is_some_and(|count| count.checked_add(1) == Some(job.restarts)) => {
            Some(JobNow::Held)
        }
        "PENDING" => Some(JobNow::Next),
        _ if !is_this_run => Some(JobNow::Next),
        state if FAILED.contains(&state) => None,
        state if ENDING.contains(&state) => Some(JobNow::Ending),
        state => Some(says(state)),
    }
}

/// What it has asked for, and what it can have.
fn failed(job: &QueuedRun, run: &KilledRun, deadline: Instant) -> Result<JobNow, String> {
    let show = |what: &[&str]| {
        let arguments = ["--all", "--oneliner", "show"].iter().chain(what).copied().collect::<Vec<_>>();
        run_until("scontrol", &arguments, deadline)
            .map_err(|error| format!("scontrol show {}: {}", what.join(" "), printable(&error.to_string())))
    };
    let asked = match asked(&show(&["job", &job.name])?, run) {
        Ok(asked) => asked,
        Err(why) => return Ok(JobNow::Other(why)),
    };
    let (per_node, per_cpu) = most_of(&show(&["partition", &job.partition])?);
    let (per_node, per_cpu) = match (per_node, per_cpu) {
        // What all partitions have that say nothing else.
        (None, None) => most_of(&show(&["config"])?),
        of_partition => of_partition,
    };
    let node = show(&["node", &job.nodes])?.lines().map(memory_of).min().flatten();
    let node =
        node.ok_or_else(|| format!("scontrol show node {} does not tell their memory", printable(&job.nodes)))?;
    let bounds = MemoryBounds { per_node, per_cpu, node: Some(node), cpus: run.cpus() };
    Ok(JobNow::Failed { restarts: job.restarts, asked, bounds })
}

/// What the job has asked for, by `scontrol show job` (`slurm_sprint_job_info`). The error is why that is not known.
fn asked(shown: &str, run: &KilledRun) -> Result<AskedMemory, String> {
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
    // What a site's plugin has changed since, and what follows from something else, is not raised.
    let expected = match unit {
        MemoryUnit::Node => mib,
        MemoryUnit::Cpu => mib.saturating_mul(run.cpus()),
    };
    if mib > 0 && run.granted() != Some(expected.saturating_mul(1 << 20)) {
        return Err(format!("Slurm says that it has asked for {word}, and has granted something else"));
    }
    Ok(AskedMemory { unit, mib })
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::logged::LoggedStep;

    fn run(granted: u64, cpus: u64) -> KilledRun {
        let line = json!({
            "job": "12", "uid": 7, "started_unix_seconds": 1000.5, "ended": "2026-11-25T03:00:10Z", "memory_granted_bytes": granted << 20,
            "cpus_granted": cpus,
        });
        KilledRun::of(LoggedStep::new(line)).unwrap()
    }

    fn job(state: &str, restarts: u32, reason: &str) -> String {
        format!("12|12_2|7|{state}|{restarts}|1|all|n[1-2]|1000|{reason}|\n")
    }

    #[test]
    fn the_state_of_the_run_decides() {
        let begun = KilledRun { restarts: Some(1), ..run(100, 1) };
        let of = |said: &str| find(said, &begun).map(|job| state(&job, &begun));
        let other = |state: &str| Ok(Some(JobNow::Other(format!("Slurm says that it is {state}"))));
        // The last of an array has the array's number.
        let array = "13|12_1|7|RUNNING|0|1|all|n1|1000|None|\n".to_owned() + &job("FAILED", 1, "NonZeroExitCode");
        assert_eq!(of(&array), Ok(None));
        assert_eq!(find(&array, &run(100, 1)).unwrap().name, "12_2");
        for (said, expected) in [
            (job("OUT_OF_MEMORY", 1, "OutOfMemory"), Ok(None)),
            (job("COMPLETING", 1, "None"), Ok(Some(JobNow::Ending))),
            (job("RUNNING", 1, "None"), Ok(Some(JobNow::Ending))),
            (job("CANCELLED", 1, "None"), other("CANCELLED")),
            (job("TIMEOUT", 1, "TimeLimit"), other("TIMEOUT")),
            (job("COMPLETED", 1, "None"), other("COMPLETED")),
            (job("PENDING", 2, HELD), Ok(Some(JobNow::Held))),
            // Its user holds it.
            (job("PENDING", 2, "JobHeldUser"), Ok(Some(JobNow::Next))),
            (job("PENDING", 2, "None"), Ok(Some(JobNow::Next))),
            (job("PENDING", 3, HELD), Ok(Some(JobNow::Next))),
            (job("RUNNING", 2, "None"), Ok(Some(JobNow::Next))),
            (job("CANCELLED", 2, "None"), other("CANCELLED")),
        ] {
            assert_eq!(of(&said), expected, "{said}");
        }
        for (said, why) in [
            ("12|12|8|FAILED|1|1|all|n1|1000|None|\n", "Slurm says that it is of the user 8"),
            ("12|12+0|7|FAILED|1|1|all|n1|1000|None|\n", "it is a component of a heterogeneous job"),
            (
                "12|12|7|FAILED|1|0|all|n1|1000|None|\n",
                "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)",
            ),
            ("12|12|7|FAILED|x|1|all|n1|1000|None|\n", "squeue answers \"x\" for its restarts"),
            ("13|13|7|FAILED|1|1|all|n1|1000|None|\nx\n", PURGED),
        ] {
            assert_eq!(of(said), Err(why.to_owned()));
        }
    }

    #[test]
    fn another_run_is_told_by_its_time_until_its_number_is_known() {
        let of = |began: &str, state_of: &str| {
            let said = format!("12|12|7|{state_of}|4|1|all|n1|{began}|None|\n");
            find(&said, &run(100, 1)).map(|job| state(&job, &run(100, 1))).unwrap()
        };
        for began in ["1", "1000", "1060"] {
            assert_eq!((of(began, "FAILED"), of(began, "COMPLETING")), (None, Some(JobNow::Ending)), "{began}");
        }
        for began in ["1061", "9000", "N/A", ""] {
            assert_eq!(
                (of(began, "FAILED"), of(began, "RUNNING")),
                (Some(JobNow::Next), Some(JobNow::Next)),
                "{began}"
            );
        }
        // Somebody else has requeued it.
        assert_eq!(of("N/A", "PENDING"), Some(JobNow::Next));
    }

    #[test]
    fn what_it_asked_for_is_what_slurm_says_and_has_granted() {
        let shown = |memory: &str| format!("JobId=12 JobName=x MinCPUsNode=1 {memory} MinTmpDiskNode=0 Command=/x\n");
        let of = |memory: &str, granted, cpus| asked(&shown(memory), &run(granted, cpus));
        assert_eq!(of("MinMemoryNode=1536M", 1536, 4), Ok(AskedMemory { unit: MemoryUnit::Node, mib: 1536 }));
        assert_eq!(of("MinMemoryCPU=1.50G", 6144, 4), Ok(AskedMemory { unit: MemoryUnit::Cpu, mib: 1536 }));
        assert_eq!(of("MinMemoryNode=0", 9000, 1), Ok(AskedMemory { unit: MemoryUnit::Node, mib: 0 }));
        for (memory, granted) in [
            ("MinMemoryNode=100M", 200),
            ("MinMemoryCPU=100M", 100),
            ("MinMemoryTRES=100M", 100),
            ("MinMemoryNode=", 100),
            ("MinMemoryNode=x", 100),
            ("MinMemoryNode=100M MinCPUsNode=1", 100),
        ] {
            assert!(of(memory, granted, 2).is_err(), "{memory}");
        }
        let forged = format!("JobId=12 JobName=MinCPUsNode=1 MinMemoryNode=1M {}", shown("MinMemoryNode=100M"));
        assert!(asked(&forged, &run(100, 1)).is_err());
    }

    #[test]
    fn amounts_are_slurms() {
        for (text, mib) in [
            ("100M", Some(100)),
            ("100", Some(100)),
            ("2G", Some(2048)),
            ("1.50G", Some(1536)),
            ("1.5G", Some(1536)),
            ("1T", Some(1 << 20)),
            ("0", Some(0)),
            ("", None),
            ("M", None),
            ("-1M", None),
            ("1K", None),
            ("99999999999999999999M", None),
        ] {
            assert_eq!(mebibytes(text), mib, "{text}");
        }
    }

    #[test]
    fn bounds_are_those_of_the_partition_and_the_nodes() {
        assert_eq!(most_of("PartitionName=all State=UP MaxMemPerNode=500 TRES=cpu=2,mem=1M"), (Some(500), None));
        assert_eq!(most_of("PartitionName=all MaxMemPerCPU=500"), (None, Some(500)));
        assert_eq!(most_of("PartitionName=all MaxMemPerNode=UNLIMITED"), (None, None));
        assert_eq!(most_of("MaxJobCount             = 10\nMaxMemPerNode           = 700\n"), (Some(700), None));
        assert_eq!(memory_of("NodeName=n1 RealMemory=1000 AllocMem=0 MemSpecLimit=100"), Some(900));
        assert_eq!(memory_of("NodeName=n1 RealMemory=1000 AllocMem=0"), Some(1000));
        assert_eq!(memory_of("NodeName=n1"), None);
    }

    #[test]
    fn a_controller_that_does_not_answer_has_refused_nothing() {
        for said in [
            "slurm_update error: Unable to contact slurm controller (connect failure)",
            "Socket timed out on send/recv operation",
            "SIGKILL has ended it",
        ] {
            assert!(cannot_reach(said), "{said}");
        }
        for said in
            ["Access/permission denied", "Requested operation is presently disabled for job 2", "Invalid job id"]
        {
            assert!(!cannot_reach(said), "{said}");
        }
    }
}
