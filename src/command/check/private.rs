// SPDX-License-Identifier: GPL-2.0-or-later
//! Says which directories are a job's own, and why a job would be refused for them.

use std::path::Path;

use jobfence::config::{Candidate, Loaded};
use jobfence::private::{self, IsIsolated, dirs, ipc, pids, processes};

use super::rows::Rows;
use super::verdict::Verdict;

/// The row of each kind of jobs.
const ROW: &str = "private";

/// Says it for each combination of sections, each sentence once.
pub fn say(rows: &mut Rows, candidates: &[Candidate], verdict: &mut Verdict) {
    let (mut facts, mut faults) = (Vec::new(), Vec::new());
    for candidate in candidates.iter().filter(|candidate| dirs::has_own(&candidate.config)) {
        let config = &candidate.config;
        let (in_tmpfs, on_disk) = dirs::divided(config);
        let base = config.private_tmp_base.as_deref().unwrap_or(Path::new("/"));
        let kinds = [(in_tmpfs, "in a tmpfs".to_owned()), (on_disk, format!("below {}", base.display()))];
        let parts = kinds.iter().filter(|(paths, _)| !paths.is_empty()).map(|(paths, place)| {
            let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            format!("{} ({place})", names.join(", "))
        });
        facts.push(format!("a job has its own {}", parts.collect::<Vec<_>>().join(" and ")));
        faults.extend(dirs::faults(config).into_iter().map(|error| error.to_string()));
    }
    if candidates.iter().any(|candidate| ipc::is_wanted(&candidate.config)) {
        facts.push("a step has its own System V shared memory, semaphores and queues (PrivateIPC)".to_owned());
        if !Path::new("/proc/self/ns/ipc").exists() {
            faults.push("this kernel has no IPC namespaces, and PrivateIPC needs them".to_owned());
        }
    }
    if candidates.iter().any(|candidate| processes::is_wanted(&candidate.config)) {
        facts.push("a job sees in /proc only the processes of its user (HideProcesses)".to_owned());
        faults.extend(processes::fault().map(|error| error.to_string()));
    }
    if candidates.iter().any(|candidate| pids::is_wanted(&candidate.config)) {
        facts.push("'jobfence run' starts its command in a PID namespace of its own (PrivatePIDs)".to_owned());
        faults.extend(pids::fault());
    }
    facts.dedup();
    faults.dedup();
    facts.iter().for_each(|fact| rows.fact(ROW, fact));
    for fault in faults {
        rows.fault(ROW, &fault);
        verdict.no(format!("a job would be REFUSED here: {fault}"));
    }
}

/// For a scheduler under which no job has directories of its own: jobs are refused if they should have.
pub fn refuse(loaded: &Loaded, scheduler: &str, why: &str, rows: &mut Rows, verdict: &mut Verdict) {
    let all = private::ISOLATION.into_iter().chain([OF_PIDS]);
    all.for_each(|one| refuse_one(one, loaded, (scheduler, why), rows, verdict));
}

const OF_PIDS: (&str, IsIsolated) = (pids::KEY, pids::is_wanted);

/// The same for a scheduler under which jobs have all of it, but no processes of their own.
pub fn refuse_pids(loaded: &Loaded, scheduler: &str, why: &str, rows: &mut Rows, verdict: &mut Verdict) {
    refuse_one(OF_PIDS, loaded, (scheduler, why), rows, verdict);
}

fn refuse_one(
    (key, is_wanted): (&str, IsIsolated),
    loaded: &Loaded,
    (scheduler, why): (&str, &str),
    rows: &mut Rows,
    verdict: &mut Verdict,
) {
    if loaded.one_by_one().any(|candidate| is_wanted(&candidate.config)) {
        rows.fault(ROW, format!("{key} does not work under {scheduler}: {why}"));
        verdict.no(format!("jobs of {scheduler} would be REFUSED here: {key} does not work under it"));
    }
}
