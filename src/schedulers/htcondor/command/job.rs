// SPDX-License-Identifier: GPL-2.0-or-later
//! The card of a job of HTCondor: the starter runs this program in place of the job, if `USER_JOB_WRAPPER` of HTCondor's configuration
//! names a link `htcondor-job` to the command.
//!
//! The card follows what the job writes to its standard error, so it must be there before the starter transfers the files back. No other
//! program runs at that moment: a hook of HTCondor's at the end of a job makes the starter exit while it still transfers the output
//! (`HookJobExitClient::hookExited` of 23.0 to 25.13). So this process runs the job, passes signals on, and ends as the job ended. It runs
//! as the job's user in the job's cgroup, and reads only what every user can read.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io::{Write, stderr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::cgroup::limits::{cpu_quota, memory_files, memory_limit, processes};
use jobfence::cgroup::membership::Membership;
use jobfence::cgroup::usage::{Depth, cpu};
use jobfence::config::{UsageCard, usage_card};
use jobfence::doors::run;
use jobfence::error::{Error, Result};
use jobfence::figures::Usage;
use jobfence::report::account::Exit;
use jobfence::report::card::{self, Figures};
use jobfence::schedulers::htcondor::card::WORDS;
use jobfence::sys::call_bytes::CallBytes;
use jobfence::sys::dir::Dir;
use nix::unistd::{execvp, gethostname};

use crate::schedulers::htcondor::monitor::unified;
use crate::schedulers::htcondor::starter::CARD;

/// The name under which this program runs a job.
const NAME: &str = "htcondor-job";
/// The status with which shells end if a program cannot be run.
const NOT_RUN: i32 = 127;

/// Whether this program was started to run a job.
pub fn is_asked_for() -> bool {
    std::env::args_os().next().is_some_and(|word| Path::new(&word).file_name() == Some(OsStr::new(NAME)))
}

/// Runs the job: beside this process if there is to be a card, and in its place otherwise.
pub fn job() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let when = std::env::var(CARD).ok().and_then(|text| usage_card(&text).ok()).unwrap_or(UsageCard::Never);
    let place = if when == UsageCard::Never { None } else { Place::here() };
    let Some(place) = place else {
        let Err(error) = become_job(&words);
        return not_run(&error);
    };
    // CPU time used before the job began is not the job's.
    let began = Began {
        at: Instant::now(),
        cpu: unified().and_then(|hierarchy| cpu(&hierarchy, &place.open(&hierarchy)?)),
        call_bytes: Dir::open("/proc").ok().and_then(|proc| CallBytes::begin(&proc)),
    };
    match run::unfenced(&words) {
        Ok(how) => {
            let lines = card_of(&place, when, how, &began);
            // The status is the job's, whether or not its user can read the card.
            let _ = stderr().write_all(lines.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes());
            exit(run::end_as(how))
        }
        Err(error) => not_run(&error),
    }
}

fn not_run(error: &Error) -> ExitCode {
    let _ = writeln!(stderr(), "jobfence: {error}");
    exit(NOT_RUN)
}

fn exit(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status & 0xff).unwrap_or(u8::MAX))
}

fn become_job(words: &[OsString]) -> Result<Infallible> {
    let c_string = |word: &OsString| CString::new(word.as_bytes()).map_err(|_| Error::new("a NUL in a word"));
    let words: Vec<CString> = words.iter().map(c_string).collect::<Result<_>>()?;
    let program = words.first().ok_or_else(|| Error::new("HTCondor names no program to run"))?;
    execvp(program, &words).map_err(|errno| Error::os("cannot run", program.to_string_lossy().into_owned(), errno))
}

/// The cgroups of this job, as paths below the mount.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// The job: `12.0`.
    job: String,
    /// The fence's directory in which HTCondor makes the job's. The starter is not in there.
    branch: String,
    /// The cgroup of this process.
    own: String,
}

impl Place {
    /// The place of this process. `None`: it is in no fence.
    fn here() -> Option<Self> {
        let place = Membership::read(&Dir::open("/proc").ok()?, nix::unistd::getpid().as_raw()).ok()?;
        Self::from_path(place.in_unified()?.strip_prefix('/')?)
    }

    fn from_path(own: &str) -> Option<Self> {
        let names: Vec<&str> = own.split('/').collect();
        let at = names
            .windows(2)
            .position(|two| matches!(two, [job, step] if job.starts_with("job_") && step.starts_with("step_")))?;
        let job = names.get(at)?.strip_prefix("job_")?.to_owned();
        Some(Self { job, branch: names.get(..at + 3)?.join("/"), own: own.to_owned() })
    }

    /// The branch's directory.
    fn open(&self, hierarchy: &Hierarchy) -> Option<Dir> {
        hierarchy.open().and_then(|root| root.child(self.branch.as_str())).ok()
    }

    /// The lowest of the limits that the directories have, from the job's own to the root.
    fn least<T: Ord>(&self, root: &Dir, limit: impl Fn(&Dir) -> Result<Option<T>>) -> Option<T> {
        let above = self.own.match_indices('/').filter_map(|(at, _)| self.own.get(..at));
        let dirs = above.chain([self.own.as_str()]).filter_map(|path| root.child(path).ok());
        dirs.filter_map(|dir| limit(&dir).ok().flatten()).min()
    }
}

/// When the job began, and what was counted then.
struct Began {
    at: Instant,
    /// CPU time of its directory.
    cpu: Option<Duration>,
    /// What this process and its children have moved.
    call_bytes: Option<CallBytes>,
}

fn card_of(place: &Place, when: UsageCard, how: Exit, began: &Began) -> Vec<String> {
    unified().and_then(|hierarchy| lines(&hierarchy, place, when, how, began)).unwrap_or_default()
}

fn lines(hierarchy: &Hierarchy, place: &Place, when: UsageCard, how: Exit, began: &Began) -> Option<Vec<String>> {
    let root = hierarchy.open().ok()?;
    let (rchar, wchar) = CallBytes::since(began.call_bytes.as_ref());
    let mut usage = Usage { rchar, wchar, ..Usage::read(hierarchy, &place.open(hierarchy)?, Depth::Card) };
    usage.cpu = usage.cpu.map(|cpu| cpu.saturating_sub(began.cpu.unwrap_or_default()));
    let memory_limit = place.least(&root, |dir| memory_limit(dir, memory_files(Version::V2).0));
    let cpus_limit = place.least(&root, |dir| Ok(cpu_quota(dir, Version::V2)?.map(|quota| quota.cpus())));
    let variable = |name: &str| std::env::var(name).ok();
    // In the parallel universe, each node of a job has its own program and its own card.
    let nodes = variable("_CONDOR_NPROCS").and_then(|count| count.parse().ok()).filter(|count| *count > 0).unwrap_or(1);
    let node = gethostname().ok().and_then(|name| name.into_string().ok());
    let figures = Figures {
        job: &place.job,
        name: None,
        node: node.as_deref(),
        is_array_task: false,
        exit: Some(how),
        wall: Some(began.at.elapsed()),
        time_limit: None,
        cpus: cpus_limit,
        cpus_limit,
        memory: memory_limit,
        memory_limit,
        is_without_swap: false,
        processes: place.least(&root, processes),
        has_daemons: false,
        disks: &[],
        usage: &usage,
        tasks: Some(1),
        nodes: Some(nodes),
        others: None,
        sentences: &[],
        // Only root can read it, and this is the job's user.
        noted: "",
        is_utf8: card::is_utf8(variable),
        words: &WORDS,
    };
    Some(card::lines(when, None, &figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_where_htcondor_puts_it_into_the_fence() {
        let own = "jobfence.slice/jobfence.scope/uid_1000/job_12.0/step_slot1_1/htcondor/a_slot1_1@n.slice/b.scope";
        let place = Place::from_path(own).unwrap();
        assert_eq!((place.job.as_str(), place.own.as_str()), ("12.0", own));
        assert_eq!(place.branch, "jobfence.slice/jobfence.scope/uid_1000/job_12.0/step_slot1_1/htcondor");
        for outside in ["", "system.slice/condor.service/htcondor/x", "jobfence/uid_1/job_1/step_0", "job_1/x/step_1/y"]
        {
            assert_eq!(Place::from_path(outside), None, "{outside}");
        }
    }
}
