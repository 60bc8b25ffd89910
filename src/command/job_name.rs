// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the id of a job's fences on a node by the name that people use.
//!
//! A fence has the id that the scheduler's daemon gives. Under OpenPBS that is `12[3].server`, and people omit the server, as qstat(1)
//! allows. Under Grid Engine and HTCondor it is `12.3`, and people may name all of `12`. Under Slurm it is a number, also for a task of an
//! array and for a component of a heterogeneous job, which squeue(1) calls `12_3` and `12+1`: only Slurm knows that number.

use std::collections::BTreeSet;
use std::path::Path;

use jobfence::job::Id;
use jobfence::record::Records;

use crate::command::Failure;
use crate::job_match::JobMatch;
use crate::schedulers;
use crate::table::printable;

/// The matching one of these ids. `None`: none matches.
pub fn among(job: &Id, ids: impl IntoIterator<Item = String>) -> Result<Option<Id>, Failure> {
    let text = job.as_str();
    let ids: BTreeSet<String> = ids.into_iter().collect();
    if ids.contains(text) {
        return Ok(Some(job.clone()));
    }
    let meant = |id: &String| schedulers::ALL.iter().find_map(|part| part.means(text, id));
    let (its, parts): (Vec<_>, Vec<_>) =
        ids.iter().filter_map(|id| Some((id, meant(id)?))).partition(|(_, meant)| *meant == JobMatch::It);
    match (&its[..], &parts[..]) {
        ([(id, _)], _) => Ok(Some(Id::new(id.as_str())?)),
        ([], []) => Ok(None),
        _ => {
            let all: Vec<String> = its.iter().chain(&parts).map(|(id, _)| printable(id)).collect();
            let all = all.join(", ");
            Err(format!("the name {} means several jobs here, and this command takes one: {all}", printable(text))
                .into())
        }
    }
}

/// The same; if none matches, asks the schedulers for an id that only they can know. Without such an id, the text itself is the id.
pub fn resolve(job: &Id, ids: impl IntoIterator<Item = String>) -> Result<Id, Failure> {
    let ids: Vec<String> = ids.into_iter().collect();
    if let Some(found) = among(job, ids.iter().cloned())? {
        return Ok(found);
    }
    schedulers::ALL.iter().find_map(|part| part.id_of(job.as_str(), &ids)).unwrap_or_else(|| Ok(job.clone()))
}

/// The jobs with records; only root can read them. A record that is not understood is another release's.
pub fn recorded(run_dir: &Path) -> Vec<String> {
    // Opening would make a missing directory.
    let Some(records) = run_dir.is_dir().then(|| Records::open(run_dir).ok()).flatten() else { return Vec::new() };
    let all = records.list().unwrap_or_default();
    let found = all.iter().filter_map(|levels| records.read(levels).ok().flatten()?.job());
    found.map(|id| id.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, ids: &[&str]) -> Result<Option<String>, String> {
        let found = among(&Id::new(text).unwrap(), ids.iter().map(|id| (*id).to_owned()));
        found.map(|id| id.map(|id| id.as_str().to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_job_is_found_by_what_its_scheduler_calls_it() {
        let pbs = ["12.server.site", "13[3].server.site", "13[31].server.site", "14[].server.site"];
        for (text, id) in [
            ("12", "12.server.site"),
            ("12.server", "12.server.site"),
            ("12.server.site", "12.server.site"),
            ("13[3]", "13[3].server.site"),
            ("13[31].server", "13[31].server.site"),
        ] {
            assert_eq!(found(text, &pbs), Ok(Some(id.to_owned())), "{text}");
        }
        for text in ["1", "13", "13[]x", "12.serve", "12.other", "2", "12[3]", "14", "13[3", "", "12_1"]
            .iter()
            .filter(|t| !t.is_empty())
        {
            assert_eq!(found(text, &pbs), Ok(None), "{text}");
        }
        let of_parts = ["12.1", "12.10", "13.0", "131.0", "12"];
        assert_eq!(found("12.1", &of_parts), Ok(Some("12.1".to_owned())));
        // An existing id takes precedence.
        assert_eq!(found("12", &of_parts), Ok(Some("12".to_owned())));
        assert_eq!(found("1", &of_parts), Ok(None));
        assert_eq!(found("12.1", &["12.server"]), Ok(None));
    }

    #[test]
    fn of_several_one_has_to_be_said() {
        let several = |text, ids: &[&str]| found(text, ids).unwrap_err();
        assert_eq!(
            several("12", &["12.1", "12.2", "13.1"]),
            "the name 12 means several jobs here, and this command takes one: 12.1, 12.2"
        );
        assert_eq!(several("12", &["12.1"]), "the name 12 means several jobs here, and this command takes one: 12.1");
        assert!(several("13[]", &["13[1].s", "13[2].s", "13.s"]).ends_with("13[1].s, 13[2].s"));
        assert!(several("12", &["12.a", "12.b"]).ends_with("12.a, 12.b"));
    }

    #[test]
    fn what_names_a_step_says_which_job() {
        let resolved = |text: &str, ids: &[&str]| {
            let found = resolve(&Id::new(text).unwrap(), ids.iter().map(|id| (*id).to_owned()));
            found.map(|id| id.as_str().to_owned()).map_err(|error| error.to_string())
        };
        assert_eq!(resolved("12.batch", &["12"]), Err("12.batch is a step of Slurm's: the job is 12".to_owned()));
        assert_eq!(resolved("12_3.0", &[]), Err("12_3.0 is a step of Slurm's: the job is 12_3".to_owned()));
        // It may be a task of Grid Engine that has ended.
        assert_eq!(resolved("12.1", &["13"]).as_deref(), Ok("12.1"));
        assert_eq!(resolved("run-7", &["13"]).as_deref(), Ok("run-7"));
    }
}
