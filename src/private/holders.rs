// SPDX-License-Identifier: GPL-2.0-or-later
//! The processes that hold steps of a job with directories of its own. A step in a scheduler's own cgroups has no record in `RunDir`, and a
//! step that others hold has no process, so both are looked for.

use super::places::name_of_job;
use crate::error::Result;
use crate::host::Host;
use crate::record::{Owner, Records};
use crate::sys::dir::Dir;

/// How the name of a holder's file begins, in the job's directory in `RunDir`.
const HOLDER: &str = "holder";

fn name(host: &Host, owner: Owner) -> String {
    format!("{HOLDER} {} {} {}", host.pid_namespace, owner.pid, owner.start)
}

/// Notes this process.
pub(super) fn add(host: &Host, jobs: &Dir) -> Result<()> {
    jobs.replace_file(&name(host, Owner::this(&host.proc)?), b"")
}

/// Takes this process out.
pub(super) fn take_out(host: &Host, all: &Dir, parents: &[String]) -> Result<()> {
    match all.child(&name_of_job(parents)) {
        Ok(jobs) => jobs.remove_file(&name(host, Owner::this(&host.proc)?)),
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the job has a step other than `except`: one that is recorded, or one whose holder lives. What is not known counts as alive.
/// `all` is the directory of all jobs in `RunDir`.
pub(super) fn has_step(
    host: &Host,
    records: &Records,
    all: Option<&Dir>,
    parents: &[String],
    except: Option<&[String]>,
) -> Result<bool> {
    if records.has_step_of(parents, except)? {
        return Ok(true);
    }
    let Some(all) = all else { return Ok(false) };
    let names = match all.child(&name_of_job(parents)) {
        Ok(jobs) => jobs.list(false)?,
        Err(error) if error.is_gone() => return Ok(false),
        Err(error) => return Err(error),
    };
    for name in names {
        let words: Vec<&str> = name.split(' ').collect();
        let [HOLDER, namespace, pid, start] = words.as_slice() else { continue };
        let owner = pid.parse().ok().zip(start.parse().ok()).map(|(pid, start)| Owner { pid, start });
        if *namespace != host.pid_namespace || owner.map_or(Ok(true), |owner| owner.is_alive(&host.proc))? {
            return Ok(true);
        }
    }
    Ok(false)
}
