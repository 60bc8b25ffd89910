// SPDX-License-Identifier: GPL-2.0-or-later
//! The text at the end of a step: what it used, and why it was killed.

pub mod account;
pub mod card;
pub mod json;
pub mod nodes;
pub mod usage_log;

use std::fmt::Write;
use std::time::Duration;

use crate::bytes::mebibytes;
use crate::cgroup::events::OomKill;
use crate::fence::MemoryLevel;
use crate::figures::Usage;
use crate::job::JobKey;
use crate::policy::Level;

/// One line for the scheduler's log. Figures that the kernel does not keep are omitted.
pub fn ended(key: &JobKey, usage: &Usage) -> String {
    let mut line = format!("{key} ended:");
    let mut separator = " ";
    let mut add = |text: String| {
        let _ = write!(line, "{separator}{text}");
        separator = ", ";
    };
    if let Some(cpu) = usage.cpu {
        add(format!("cpu {}", seconds(cpu)));
    }
    if let Some(throttled) = usage.throttled {
        add(format!("throttled {}", seconds(throttled)));
    }
    if let Some(peak) = usage.memory_peak {
        add(format!("peak memory {}", mebibytes(peak)));
    }
    if let Some(kills) = usage.oom_kills {
        add(format!("OOM kills {kills}"));
    }
    if let Some(refused) = usage.forks_refused.filter(|refused| *refused > 0) {
        add(format!("forks refused {refused}"));
    }
    if let Some((read, written)) = usage.read.zip(usage.written).filter(|both| *both != (0, 0)) {
        add(format!("read {}, written {}", mebibytes(read), mebibytes(written)));
    }
    line
}

/// Rounded to the millisecond, without floating point: its formatting is 13 KB of code that nothing else needs.
fn seconds(time: Duration) -> String {
    let rounded = time.saturating_add(Duration::from_micros(500));
    format!("{}.{:03} s", rounded.as_secs(), rounded.subsec_millis())
}

/// At which limit, where a directory is not known that the scheduler or the job has made in the step.
pub const INSIDE: &str = "a memory limit that another program has set inside the step";

/// One sentence for the user: which process was killed, at which limit, and the peak use.
///
/// `kill` is from the kernel's log; without it (an unreadable log, kernels before 5.0) the process is unknown. `option` is the user's
/// option for more memory, if the entry point knows it.
pub fn out_of_memory(key: &JobKey, kill: Option<&OomKill>, levels: &[MemoryLevel], option: Option<&str>) -> String {
    let victim = match kill {
        Some(kill) => format!("process {} ({})", kill.pid, kill.name),
        None => "a process".to_owned(),
    };
    let level = match kill {
        // Without the kernel's log: the innermost limit that was reached.
        None => levels.iter().find(|level| level.is_reached()).or(levels.first()),
        Some(kill) => levels.iter().find(|level| kill.limit_at.as_deref() == Some(level.path.as_str())),
    };
    let in_step = |kill: &OomKill| {
        levels
            .iter()
            .any(|level| level.whose == Level::Step && level.holds(kill.limit_at.as_deref().unwrap_or_default()))
    };
    if let Some(kill) = kill.filter(|kill| level.is_none() && in_step(kill)) {
        // Directories of tasks have such names, jobfence's and Slurm's.
        let of_a_task =
            kill.limit_at.as_deref().is_some_and(|path| path.split('/').any(|name| name.starts_with("task")));
        let why = if of_a_task {
            "one task reached the memory limit of a task. Use less memory in each task."
        } else {
            return format!("{key}: {victim} was killed: it reached {INSIDE}. Ask for more memory, or use less.");
        };
        return format!("{key}: {victim} was killed: {why}");
    }
    if let Some(nodes) = kill.and_then(|kill| kill.full.as_ref()) {
        return format!(
            "{key}: {victim} was killed: it is bound to the NUMA nodes {nodes}, which have no memory left. Let it use \
             more NUMA nodes, or use less memory there."
        );
    }
    let Some(level) = level else {
        return format!(
            "{key}: {victim} was killed: the node ran out of memory, not this job. Tell your \
             administrator."
        );
    };
    let limit = level.limit.map_or_else(String::new, |limit| format!(" of {}", mebibytes(limit)));
    // The kernel could reclaim cached files; otherwise a reader would take the peak for the need.
    let cached = kill.and_then(|kill| Some(percent(kill.cached?, level.limit?)));
    let cached = cached.map(|percent| format!("{percent} % of it cached files"));
    // The program's own figures (RSS, `free`) do not include them.
    let huge = kill.and_then(|kill| kill.huge).filter(|huge| *huge > 0);
    let huge = huge.map(|huge| format!("{} of it huge pages", mebibytes(huge)));
    let peak = level.peak.map(|peak| format!("peak use {}", mebibytes(peak)));
    let both: Vec<String> = peak.into_iter().chain(cached).chain(huge).collect();
    let peak = if both.is_empty() { String::new() } else { format!(" ({})", both.join(", ")) };
    if level.whose == Level::User {
        return format!(
            "{key}: {victim} was killed: your jobs on this node together reached their memory limit{limit}. Run fewer \
             at once."
        );
    }
    let more = option.map_or_else(|| "Ask for more memory".to_owned(), |option| format!("Raise {option}"));
    format!(
        "{key}: {victim} was killed: the {} reached its memory limit{limit}{peak}. {more}, or use less.",
        level.whose
    )
}

/// One sentence for the user: another program than the kernel has killed processes of the step.
pub fn killed_by_oomd(key: &JobKey) -> String {
    format!(
        "{key}: systemd-oomd (or oomd) killed processes of it, since the node or a slice of systemd ran short of memory. No memory \
         limit of the job did that. Tell your administrator: 'jobfence check' says what to set."
    )
}

/// The sentence about a command that has ended with its PID namespace.
pub fn init_killed(key: &JobKey) -> String {
    format!(
        "{key}: the init process of its PID namespace (PrivatePIDs) was killed, and the kernel killed all others in it. No limit of \
         the job did that."
    )
}

/// One sentence for the user: `jobfence hold` has ended the job, and has noted why.
pub fn ended_by_hold(key: &JobKey, why: &str) -> String {
    format!("{key}: jobfence ended this job, since {why}")
}

/// Why `jobfence hold` ends a scavenger. In bytes: what is free on the node, of which at least `short` must be, and what the job was granted
/// and uses beyond that. Whether its user lets it run again is not known then.
pub fn ended_for_owners(free: u64, short: u64, (granted, beyond): (u64, u64), is_requeued: bool) -> String {
    let [free, short, granted, beyond] = [free, short, granted, beyond].map(mebibytes);
    let then = match is_requeued {
        false => "Submit it again.",
        true => "It is requeued if its user and the site allow that, and begins anew.",
    };
    format!(
        "the node ran short of memory: {free} were free, and at least {short} must be. The job was granted {granted}, and used {beyond} \
         more, which others have reserved (Scavenger). {then} A job that uses no more than it was granted is not ended for this."
    )
}

/// The percentage, rounded to the nearest integer, at most 100.
fn percent(part: u64, whole: u64) -> u64 {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    u64::try_from((part * 200 + whole) / (whole * 2)).unwrap_or(100).min(100)
}

/// One sentence for the user: why fork(2) failed. Programs report that as a lack of memory or as "Resource temporarily unavailable". Not
/// every kernel says whether it was the limit of the job or of a task.
///
/// `asked` is the option with which the user set the job's limit.
pub fn too_many_processes(
    key: &JobKey,
    refused: u64,
    of_job: Option<u64>,
    of_task: Option<u64>,
    asked: Option<&str>,
) -> String {
    let refused = if refused == 1 {
        "1 process or thread was".to_owned()
    } else {
        format!("{refused} processes or threads were")
    };
    let job = of_job.map(|limit| (format!("the job {limit} at once"), "MaxProcesses"));
    let task = of_task.map(|limit| (format!("each of its tasks {limit} at once"), "MaxProcessesPerTask"));
    let (limits, keys): (Vec<_>, Vec<_>) = job.into_iter().chain(task).unzip();
    let remedy = match asked {
        Some(option) if of_task.is_none() => format!("Start fewer, or ask for more with {option}"),
        _ => format!("Start fewer, or ask your administrator ({})", keys.join(", ")),
    };
    format!("{key}: {refused} refused: this node allows {}. {remedy}.", limits.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::DiskIo;
    use crate::job::Id;

    fn key() -> JobKey {
        JobKey { node: None, uid: 1, job: Id::new("5").unwrap(), step: Id::new("batch").unwrap() }
    }

    fn levels() -> Vec<MemoryLevel> {
        let level = |path: &str, whose, limit, peak| MemoryLevel { path: path.into(), whose, limit, peak };
        vec![
            level("/jobfence/uid_1/job_5/step_batch", Level::Step, Some(200 << 20), Some(150 << 20)),
            level("/jobfence/uid_1/job_5", Level::Job, Some(200 << 20), Some(200 << 20)),
        ]
    }

    #[test]
    fn forks_are_refused_by_the_limits_that_there_are() {
        let said = |job, task| too_many_processes(&key(), 2, job, task, None);
        let begin = "job 5 step batch: 2 processes or threads were refused: this node allows";
        let end = "Start fewer, or ask your administrator";
        assert_eq!(said(Some(60), None), format!("{begin} the job 60 at once. {end} (MaxProcesses)."));
        assert_eq!(
            said(Some(60), Some(9)),
            format!(
                "{begin} the job 60 at once, and each of its tasks 9 at once. {end} (MaxProcesses, \
                 MaxProcessesPerTask)."
            )
        );
        assert_eq!(said(None, Some(9)), format!("{begin} each of its tasks 9 at once. {end} (MaxProcessesPerTask)."));
        // Only the user can raise the user's own limit.
        assert_eq!(
            too_many_processes(&key(), 2, Some(60), None, Some("--pids-max")),
            format!("{begin} the job 60 at once. Start fewer, or ask for more with --pids-max.")
        );
    }

    #[test]
    fn who_loses_a_loan_reads_by_how_much_the_node_was_short() {
        let said = |is_requeued| {
            ended_by_hold(&key(), &ended_for_owners(12 << 20, 20 << 20, (64 << 20, 86 << 20), is_requeued))
        };
        let (killed, requeued) = (said(false), said(true));
        let begin = "job 5 step batch: jobfence ended this job, since the node ran short of memory: 12.0 MiB were free, and at least 20.0 MiB must be. \
                     The job was granted 64.0 MiB, and used 86.0 MiB more, which others have reserved (Scavenger). ";
        for said in [&killed, &requeued] {
            assert!(said.starts_with(begin) && !said.contains('\n'), "{said}");
        }
        let again = |said: &str| (said.contains("Submit it again."), said.contains("It is requeued if "));
        assert_eq!((again(&killed), again(&requeued)), ((true, false), (false, true)));
    }

    #[test]
    fn the_line_at_the_end() {
        let usage = Usage {
            cpu: Some(Duration::from_millis(12_340)),
            throttled: Some(Duration::from_millis(3_200)),
            memory_peak: Some(200 << 20),
            oom_kills: Some(1),
            forks_refused: Some(0),
            ..Usage::from_disks(Vec::new())
        };
        let line = "job 5 step batch ended: cpu 12.340 s, throttled 3.200 s, peak memory 200.0 MiB, OOM kills 1";
        assert_eq!(ended(&key(), &usage), line);
        let refused = Usage { forks_refused: Some(3), ..usage.clone() };
        assert_eq!(ended(&key(), &refused), format!("{line}, forks refused 3"));
        let one = DiskIo { read: 3 << 20, written: 1 << 19, ..DiskIo::default() };
        let moved = Usage { read: Some(one.read), written: Some(one.written), ..usage.clone() };
        assert_eq!(ended(&key(), &moved), format!("{line}, read 3.0 MiB, written 0.5 MiB"));
        let usage = Usage { memory_peak: None, ..usage };
        assert!(!ended(&key(), &usage).contains("peak"));
    }

    #[test]
    fn the_sentence_names_the_limit_that_was_reached() {
        let kill = OomKill {
            limit_at: Some("/jobfence/uid_1/job_5".into()),
            full: None,
            task_in: String::new(),
            name: "python3".into(),
            pid: 77,
            cached: None,
            huge: None,
        };
        let sentence = "job 5 step batch: process 77 (python3) was killed: the job reached its memory limit of 200.0 MiB \
                        (peak use 200.0 MiB). Raise --mem, or use less.";
        assert_eq!(out_of_memory(&key(), Some(&kill), &levels(), Some("--mem")), sentence);
        let with_cache = OomKill { cached: Some(5 << 20), ..kill.clone() };
        let said = out_of_memory(&key(), Some(&with_cache), &levels(), None);
        assert!(said.contains("200.0 MiB (peak use 200.0 MiB, 3 % of it cached files)."), "{said}");
        let with_huge = OomKill { huge: Some(30 << 20), ..with_cache };
        let said = out_of_memory(&key(), Some(&with_huge), &levels(), None);
        assert!(said.contains(", 3 % of it cached files, 30.0 MiB of it huge pages)."), "{said}");
        let no_option = out_of_memory(&key(), Some(&kill), &levels(), None);
        assert!(no_option.ends_with("Ask for more memory, or use less."), "{no_option}");
        let unknown = out_of_memory(&key(), None, &levels(), None);
        assert!(unknown.contains("a process was killed: the job reached"), "{unknown}");
        let task = OomKill { limit_at: Some("/jobfence/uid_1/job_5/step_batch/task_0".into()), ..kill.clone() };
        let said = out_of_memory(&key(), Some(&task), &levels(), None);
        assert!(said.contains("one task reached the memory limit of a task"), "{said}");
        let of_another =
            OomKill { limit_at: Some("/jobfence/uid_1/job_5/step_batch/htcondor/x".into()), ..kill.clone() };
        let said = out_of_memory(&key(), Some(&of_another), &levels(), None);
        assert!(said.contains("that another program has set inside the step"), "{said}");
        let bound = OomKill { limit_at: None, full: Some("1".into()), ..kill.clone() };
        let said = out_of_memory(&key(), Some(&bound), &levels(), None);
        assert!(said.contains("it is bound to the NUMA nodes 1, which have no memory left."), "{said}");
        let of_node = OomKill { limit_at: None, ..kill };
        assert!(out_of_memory(&key(), Some(&of_node), &levels(), None).contains("the node ran out of memory"));
    }
}
