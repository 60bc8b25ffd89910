// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that holds what it does not use: `scontrol notify` tells its user, and `scancel` ends it. slurmctld takes both from root of any
//! node of the cluster.
//!
//! squeue is asked first. Its fields are all Slurm's: users cannot write any of them. The number of the last job of an array is that of the
//! array, so scancel is told the job's name among its array's (`12_3`).

use std::time::Instant;

use jobfence::config::IdleAction;
use jobfence::sys::program::Silence;

use super::job::run_until;
use crate::part::{JobHere, ReachedJob};
use crate::table::printable;

/// A running job.
#[derive(Debug, PartialEq, Eq)]
struct RunningJob {
    number: String,
    /// `12` or `12_3`; `12+1` for a component of a heterogeneous job.
    name: String,
    nodes: u32,
}

pub fn reach(job: &JobHere<'_>, deadline: Instant) -> Option<Result<Box<dyn ReachedJob>, String>> {
    // A fence that another program has opened may be of another scheduler's job of the same number.
    if job.is_opened || job.id.is_empty() || !job.id.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let options = ["--all", "--noheader", "--states=all", "--format=%A|%i|%U|%T|%D", "--jobs", job.id];
    let said = run_until("squeue", &options, deadline).map_err(|error| in_words("squeue", &error));
    let found = said.and_then(|said| find(&said, job));
    Some(found.map(|found| Box::new(found) as Box<dyn ReachedJob>))
}

/// The job among the lines of its array or its heterogeneous job, if it runs.
fn find(said: &str, job: &JobHere<'_>) -> Result<RunningJob, String> {
    for line in said.lines() {
        let [number, name, uid, state, nodes] = line.split('|').collect::<Vec<_>>()[..] else { continue };
        if number != job.id {
            continue;
        }
        if uid != job.uid.to_string() {
            return Err(format!("Slurm says that it is of the user {}", printable(uid)));
        }
        if state != "RUNNING" {
            return Err(format!("Slurm says that it is {}", printable(state)));
        }
        let nodes = nodes.parse().map_err(|_| format!("squeue answers {nodes:?} for its nodes"))?;
        return Ok(RunningJob { number: number.to_owned(), name: name.to_owned(), nodes });
    }
    Err("Slurm does not know it".to_owned())
}

fn in_words(program: &str, error: &Silence) -> String {
    format!("{program}: {}", printable(&error.to_string()))
}

impl ReachedJob for RunningJob {
    fn is_here_alone(&self) -> bool {
        // Whoever cancels one component of a heterogeneous job cancels all.
        self.nodes == 1 && !self.name.contains('+')
    }

    fn tell(&self, text: &str, deadline: Instant) -> Result<(), String> {
        let announced = run_until("scontrol", &["notify", &self.number, text], deadline);
        announced.map(drop).map_err(|error| in_words("scontrol notify", &error))
    }

    fn end(&self, how: IdleAction, deadline: Instant) -> Result<(), String> {
        let done = match how {
            IdleAction::Warn => return Ok(()),
            // Without --full the batch script gets none.
            IdleAction::Signal => run_until("scancel", &["--full", "--signal=TERM", &self.name], deadline),
            IdleAction::Cancel => run_until("scancel", &[self.name.as_str()], deadline),
        };
        done.map(drop).map_err(|error| in_words("scancel", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_running_job_of_this_number_is_found() {
        let found = |said: &str| find(said, &JobHere { id: "12", uid: 7, is_opened: false });
        let name = |said: &str| found(said).map(|job| (job.name.clone(), job.is_here_alone()));
        // The last of an array has the array's number.
        assert_eq!(name("13|12_1|7|RUNNING|1\n12|12_2|7|RUNNING|1\n"), Ok(("12_2".to_owned(), true)));
        assert_eq!(name("12|12|7|RUNNING|2\n"), Ok(("12".to_owned(), false)));
        assert_eq!(name("12|12+0|7|RUNNING|1\n13|12+1|7|RUNNING|1\n"), Ok(("12+0".to_owned(), false)));
        for (said, why) in [
            ("12|12|8|RUNNING|1\n", "Slurm says that it is of the user 8"),
            ("12|12|7|SUSPENDED|1\n", "Slurm says that it is SUSPENDED"),
            ("12|12|7|RUNNING|1K\n", "squeue answers \"1K\" for its nodes"),
            ("13|13|7|RUNNING|1\nx\n", "Slurm does not know it"),
        ] {
            assert_eq!(found(said), Err(why.to_owned()));
        }
    }

    #[test]
    fn what_another_program_has_opened_is_not_looked_for() {
        for (id, is_opened) in [("12", true), ("12.server", false), ("", false)] {
            assert!(reach(&JobHere { id, uid: 7, is_opened }, Instant::now()).is_none(), "{id}");
        }
    }
}
