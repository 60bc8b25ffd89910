// SPDX-License-Identifier: GPL-2.0-or-later
//! What is left of jobs' own directories: of jobs whose step daemons have died, of an earlier boot, and where there was no time.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use super::end::{finish, finish_disk, new_name, rename, set_aside};
use super::holders;
use super::places::{GONE, LOCK_TIMEOUT, existing_in_run_dir, forget_all, name_of_host};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::record::Records;
use crate::sys::dir::Dir;

/// Removes the directories of jobs that have no step any more, until the deadline. Returns the names of those that are gone, and what
/// stood in the way of others.
pub fn remove(host: &Host, config: &Config, records: &Records, deadline: Instant) -> (Vec<String>, Vec<String>) {
    let (run_dir, base) = (config.run_dir.as_path(), config.private_tmp_base.as_deref());
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    let is_in_run_dir = existing_in_run_dir(run_dir).map(|dir| dir.map(drop));
    let on_disk = match base.map(|base| Dir::open(base)?.child(&name_of_host(run_dir)?)) {
        Some(Err(error)) if Error::is_gone(&error) => Ok(None),
        dir => dir.transpose(),
    };
    if matches!((&is_in_run_dir, &on_disk), (Ok(None), Ok(None))) {
        return (removed, failed);
    }
    let on_disk = on_disk.unwrap_or_else(|error: Error| {
        failed.push(error.to_string());
        None
    });
    let mut done = |name: String, outcome: Result<bool>| match outcome {
        Ok(true) => removed.push(name),
        Ok(false) => {}
        Err(error) => failed.push(error.to_string()),
    };
    match all_set_aside(host, run_dir, records, on_disk.as_ref()) {
        Ok((in_run_dir, names)) => names.into_iter().for_each(|(gone, name)| {
            let here = in_run_dir.as_ref().map_or(Ok(true), |all| finish(all, &gone, deadline));
            let disk = on_disk.as_ref().map_or(Ok(true), |all| finish_disk(all, &gone, deadline));
            done(name, here.and_then(|here| Ok(here && disk?)));
        }),
        Err(error) => done(String::new(), Err(error)),
    }
    let emptied = records.lock_private(Instant::now() + LOCK_TIMEOUT).and_then(|_lock| forget_all(run_dir));
    failed.extend(emptied.err().map(|error| error.to_string()));
    (removed, failed)
}

/// What is set aside now, each with the name of its job if that is known, and the directory of all jobs in `RunDir`.
fn all_set_aside(
    host: &Host,
    run_dir: &Path,
    records: &Records,
    on_disk: Option<&Dir>,
) -> Result<(Option<Dir>, BTreeMap<String, String>)> {
    let _lock = records.lock_private(Instant::now() + LOCK_TIMEOUT)?;
    // Without the lock, another process may remove that directory and make it anew: a living step's holder would not be seen.
    let in_run_dir = existing_in_run_dir(run_dir)?;
    let mut found = BTreeMap::new();
    let parents = |name: &str| name.split(',').map(str::to_owned).collect::<Vec<_>>();
    for (all, is_disk) in [(in_run_dir.as_ref(), false), (on_disk, true)] {
        let Some(all) = all else { continue };
        for name in all.list(true)? {
            if name.starts_with(GONE) {
                found.entry(name).or_insert_with(|| "a job".to_owned());
            } else if holders::has_step(host, records, in_run_dir.as_ref(), &parents(&name), None)? {
                // A living job's.
            } else if is_disk {
                // A name from an earlier boot, in which `RunDir` had it.
                let gone = new_name();
                rename(all, &name, &gone)?;
                found.insert(gone, name);
            } else if let Some(gone) = set_aside(all, &name)? {
                found.insert(gone, name);
            }
        }
    }
    Ok((in_run_dir, found))
}
