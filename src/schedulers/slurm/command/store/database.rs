// SPDX-License-Identifier: GPL-2.0-or-later
//! What slurmdbd knows about jobs, by sacct, and what it is told, by sacctmgr: many jobs in one call each.
//!
//! A requeued job has a record for each run. sacctmgr changes only the newest one of a job's number, whatever times it is given
//! (`as_mysql_modify_job` has JOBCOND_FLAG_NO_DEFAULT_USAGE and never JOBCOND_FLAG_DUP, from 22.05 to 26.05). The others are asked for
//! only to know when the newest run can have begun.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jobfence::sys::program::{AskedProgram, Silence};

use super::gpus::LoggedGpus;
use super::record::RunRecord;
use crate::schedulers::slurm::job::KEPT;

/// How long one Slurm command may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The longest line that sacctmgr is told. Without readline it reads lines of less than 4096 bytes, and takes a longer one for the end.
const LONGEST_LINE: usize = 4000;

/// The fields of sacct. The comment comes last: it can contain any text.
const FIELDS: &str = "--format=JobIDRaw,JobID,Submit,Start,End,State,NNodes,AllocTRES,AdminComment";

/// The state of a record that goes on in the next one, since the job's size was changed.
const RESIZED: &str = "RESIZING";

/// The state of a record that is followed by one of another run.
const REQUEUED: &str = "REQUEUED";

/// What slurmdbd has about some jobs. A job in neither field is not known to it yet.
#[derive(Default)]
pub struct Found {
    pub jobs: BTreeMap<u32, RunRecord>,
    /// Jobs with a longer answer than is read: the number of an array's last job is also that of the whole array.
    pub too_long: BTreeSet<u32>,
    /// What the GPUs of these jobs did on this host.
    pub gpus: LoggedGpus,
}

impl Found {
    /// Asks about all in one call; in halves if the answer is too long.
    pub fn ask(
        &mut self,
        ids: &[u32],
        sacct: &mut impl FnMut(&[u32]) -> Result<String, Silence>,
    ) -> Result<(), String> {
        match sacct(ids) {
            Ok(said) => self.add(ids, &said),
            Err(Silence::Long) => match ids {
                [id] => drop(self.too_long.insert(*id)),
                _ => {
                    let (one, other) = ids.split_at(ids.len() / 2);
                    self.ask(one, sacct)?;
                    self.ask(other, sacct)?;
                }
            },
            Err(silence) => return Err(format!("sacct: {silence}")),
        }
        Ok(())
    }

    pub(super) fn add(&mut self, ids: &[u32], said: &str) {
        let mut of_job: BTreeMap<u32, Vec<(RunRecord, bool)>> = BTreeMap::new();
        for line in said.lines() {
            if let Some((id, record, is_resized)) = read(line)
                && ids.contains(&id)
            {
                of_job.entry(id).or_default().push((record, is_resized));
            }
        }
        for (id, mut records) in of_job {
            records.sort_by_key(|(record, _)| record.submitted);
            let Some((mut newest, _)) = records.pop() else { continue };
            // A record that goes on in the newest one is of the same run.
            newest.before = records
                .iter()
                .rev()
                .find(|(_, is_resized)| !is_resized)
                .map(|(before, _)| before.ended.unwrap_or(newest.submitted));
            if let Some((first, _)) = records.iter().rev().take_while(|(_, is_resized)| *is_resized).last() {
                newest.started = first.started.or(newest.started);
            }
            self.jobs.insert(id, newest);
        }
    }
}

fn read(line: &str) -> Option<(u32, RunRecord, bool)> {
    let words: Vec<&str> = line.splitn(9, '|').collect();
    let [id, name, submitted, started, ended, state, nodes, granted, comment] = words.as_slice() else { return None };
    let gpus = granted.split(',').find_map(|one| one.strip_prefix("gres/gpu=")?.parse().ok());
    let record = RunRecord {
        name: (*name).to_owned(),
        submitted: submitted.parse().ok()?,
        started: started.parse().ok().filter(|started| *started > 0),
        ended: ended.parse().ok().filter(|ended| *ended > 0),
        before: None,
        is_requeued: *state == REQUEUED,
        nodes: nodes.parse().unwrap_or(1),
        gpus: gpus.unwrap_or_default(),
        comment: comment.trim().to_owned(),
    };
    Some((id.parse().ok()?, record, *state == RESIZED))
}

/// Asks slurmdbd about jobs: all their runs.
pub fn sacct(ids: &[u32]) -> Result<String, Silence> {
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    program("sacct", &["--noheader", "--parsable2", "--allocations", "--duplicates", "--jobs", &ids, FIELDS])
        .ask(Instant::now() + PATIENCE)
}

/// The comment of one job's newest run, and when that was submitted.
pub fn comment_of(job: &str) -> Result<Option<(u64, String)>, Silence> {
    let arguments = ["--noheader", "--parsable2", "--allocations", "--jobs", job, "--format=Submit,AdminComment"];
    let said = program("sacct", &arguments).ask(Instant::now() + PATIENCE)?;
    let line = said.lines().next().and_then(|line| line.split_once('|'));
    Ok(line.and_then(|(submitted, comment)| Some((submitted.parse().ok()?, comment.trim().to_owned()))))
}

/// A comment to be stored.
pub struct Comment {
    pub id: u32,
    /// The job's name in its record.
    pub name: String,
    pub text: String,
}

/// Stores comments: a call for each that does not fit into a line of sacctmgr's, and one for all others. Those of many nodes are the long
/// ones, and come first: other nodes write them, too. Nothing is written any more when the answer to which it belongs is not fresh. Returns
/// the jobs that have theirs.
pub fn store(
    comments: &[Comment],
    is_fresh: &dyn Fn() -> bool,
    sacctmgr: &mut impl FnMut(&[&str], &str) -> Result<(String, Option<String>), Silence>,
) -> (BTreeSet<u32>, Result<(), String>) {
    let (mut stored, mut refused) = (BTreeSet::new(), Ok(()));
    let mut tell = |arguments: &[&str], text: &str| {
        if !is_fresh() {
            if refused.is_ok() {
                refused = Err("sacctmgr takes too long".to_owned());
            }
            return;
        }
        let complaint = match sacctmgr(arguments, text) {
            Ok((said, complaint)) => {
                stored.extend(said.lines().filter_map(changed));
                complaint
            }
            Err(silence) => Some(silence.to_string()),
        };
        if let Some(complaint) = complaint
            && refused.is_ok()
        {
            refused = Err(format!("sacctmgr: {complaint}"));
        }
    };
    let words = |comment: &Comment| {
        let (job, set) = (format!("jobid={}", comment.name), format!("AdminComment={}", comment.text));
        ["modify".to_owned(), "job".to_owned(), "where".to_owned(), job, "set".to_owned(), set]
    };
    let (short, long): (Vec<_>, Vec<_>) = comments
        .iter()
        .map(words)
        .partition(|words| words.iter().map(|word| word.len() + 1).sum::<usize>() < LONGEST_LINE);
    for words in &long {
        tell(&words.each_ref().map(String::as_str), "");
    }
    if !short.is_empty() {
        tell(&[], &short.iter().map(|words| words.join(" ") + "\n").collect::<String>());
    }
    (stored, refused)
}

/// The job of a line such as `  12 submitted at 2026-11-25T03:00:10`.
fn changed(line: &str) -> Option<u32> {
    line.split_once(" submitted at ")?.0.trim().parse().ok()
}

/// Runs sacctmgr with these arguments, or with these lines to read.
pub fn sacctmgr(arguments: &[&str], text: &str) -> Result<(String, Option<String>), Silence> {
    let all: Vec<&str> = ["--immediate"].iter().chain(arguments).copied().collect();
    let heard = program("sacctmgr", &all)
        // readline reads the settings of a user's terminal otherwise.
        .with([("INPUTRC", "/dev/null".to_owned()), ("TERM", "dumb".to_owned())])
        .tell(text, Instant::now() + PATIENCE)?;
    Ok((heard.said, heard.complaint))
}

/// A command of Slurm's, which prints times as seconds since 1970.
pub(super) fn program(name: &str, arguments: &[&str]) -> AskedProgram {
    AskedProgram::new(name, arguments, KEPT).with([("SLURM_TIME_FORMAT", "%s".to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_of_which_too_much_is_said_does_not_keep_the_others() {
        let (mut found, mut calls) = (Found::default(), 0);
        let mut sacct = |ids: &[u32]| {
            calls += 1;
            let of = |id: &str, name: &str, comment: &str| format!("{id}|{name}|1|2|3|COMPLETED|1|cpu=1|{comment}\n");
            let line = |id: &u32| {
                of(&id.to_string(), &format!("5_{id}"), &format!("of {id}|x"))
                    + &of(&format!("1{id}"), "7_1", "another's")
            };
            if ids.contains(&5) { Err(Silence::Long) } else { Ok(ids.iter().map(line).collect()) }
        };
        found.ask(&(1..=8).collect::<Vec<_>>(), &mut sacct).unwrap();
        assert_eq!(calls, 7);
        assert_eq!(found.too_long, BTreeSet::from([5]));
        let names: Vec<String> = found.jobs.values().map(|job| format!("{} {}", job.name, job.comment)).collect();
        assert_eq!(names, [1, 2, 3, 4, 6, 7, 8].map(|id| format!("5_{id} of {id}|x")));
        assert!(Found::default().ask(&[1, 2], &mut |_| Err(Silence::Late)).is_err());
    }

    #[test]
    fn the_newest_run_is_apart_from_those_before() {
        let of = |said: &str| {
            let mut found = Found::default();
            found.add(&[7], said);
            found.jobs.remove(&7).unwrap()
        };
        let once = of("7|7|100|101|200|CANCELLED by 5|2|billing=2,cpu=2,gres/gpu=3,gres/gpu:a=3,mem=1G|\n");
        assert_eq!((once.started, once.ended, once.nodes, once.gpus), (Some(101), Some(200), 2, 3));
        // The node's clock is behind.
        assert!(once.has(90));
        let twice = of("7|7|200|320|400|COMPLETED|1||second\n7|7|100|101|200|REQUEUED|1||first\n");
        assert_eq!((twice.submitted, &*twice.comment, twice.before), (200, "second", Some(200)));
        assert!(!twice.has(101) && !twice.has(205) && twice.has(319));
        let waiting = of("7|7|200|Unknown|Unknown|PENDING|1||\n7|7|100|101|200|REQUEUED|1||first\n");
        assert!(waiting.ended.is_none() && !waiting.has(101) && !waiting.has(500));
        let resized = of("7|7|150|150|400|COMPLETED|1||\n7|7|100|101|150|RESIZING|2||\n");
        assert!(resized.has(101) && resized.started == Some(101));
    }

    #[test]
    fn all_that_fit_into_lines_are_one_call_and_each_says_for_itself_whether_it_is_stored() {
        let comment = |id: u32, text: &str| Comment { id, name: format!("5_{id}"), text: text.to_owned() };
        let long = "x".repeat(5000);
        let mut calls = Vec::new();
        let mut sacctmgr = |arguments: &[&str], text: &str| {
            calls.push((arguments.len(), text.to_owned()));
            let said = if arguments.is_empty() {
                "sacctmgr: modify job\n Modified jobs...\n  1 submitted at 9 submitted at\nx\n  2 submitted at 5\n"
            } else {
                "  4 submitted at 2026-11-25T03:00:10\n"
            };
            Ok((said.to_owned(), arguments.is_empty().then(|| "Error with request".to_owned())))
        };
        let all = [comment(1, "a"), comment(2, "b"), comment(3, "c"), comment(4, &long)];
        let (stored, refused) = store(&all, &|| true, &mut sacctmgr);
        assert_eq!((stored, refused), (BTreeSet::from([1, 2, 4]), Err("sacctmgr: Error with request".to_owned())));
        let line = |id: u32, text: &str| format!("modify job where jobid=5_{id} set AdminComment={text}\n");
        assert_eq!(calls, [(6, String::new()), (0, line(1, "a") + &line(2, "b") + &line(3, "c"))]);
        let (stored, refused) = store(&all, &|| true, &mut |_, _| Err(Silence::Late));
        assert!(stored.is_empty() && refused.is_err());
        // Another node may have written meanwhile.
        let late = store(&all, &|| false, &mut |_, _| panic!("nothing is written any more"));
        assert_eq!(late, (BTreeSet::new(), Err("sacctmgr takes too long".to_owned())));
    }
}
