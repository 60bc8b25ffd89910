// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the holder of a fence is gone if the holder is no process: asks systemd about a unit, or the scheduler about a job. An unknown
//! answer means alive.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fence;
use crate::host::Host;
use crate::record::closer::Closer;
use crate::record::holder::Holder;
use crate::record::{Header, Record, Records};
use crate::scheduler::{Age, Runs, Schedulers};
use crate::sys::program::AskedProgram;

/// How long a fence must not have changed before it counts as empty. Its first process comes soon, if it comes at all.
const EMPTY: Duration = Duration::from_secs(60);

/// Asks about one start of a unit, by the unit's name and the invocation.
pub type AskUnit = fn(&str, &str) -> Runs;

/// The sources that can be asked.
#[derive(Debug, Clone, Copy)]
pub struct Holders {
    /// For jobs.
    pub schedulers: Schedulers,
    /// For units. `None` in a scheduler's process, which must start no program: there each unit counts as alive.
    pub units: Option<AskUnit>,
    /// Whether a fence of a holder that is gone is left to the process that closes it, while that lives. A launch that wants its name
    /// cannot wait for that.
    pub leaves_to_closers: bool,
}

impl Holders {
    /// Whether the holder is certainly gone. `header` is from the record with these names.
    pub(super) fn is_over(self, host: &Host, records: &Records, levels: &[String], header: &Header) -> Result<bool> {
        if header.is_dead(host)? {
            let is_left = self.leaves_to_closers && header.is_shared() && header.boot_id == host.boot_id;
            return Ok(!is_left || !Closer::lives(records.dir(), header.owner.pid.unsigned_abs()));
        }
        if !header.is_shared() || header.pid_namespace != host.pid_namespace {
            return Ok(false);
        }
        // What is not understood is another release's.
        let Some(record) = records.read(levels).ok().flatten() else { return Ok(false) };
        let is_empty = || {
            let left = fence::open_existing(host, &record.base, levels);
            host.has_cgroups() && left.is_ok_and(|left| !left.has_its_job())
        };
        let age = || match records.age(levels).unwrap_or_default() {
            age if age >= EMPTY && is_empty() => Duration::MAX,
            age => age,
        };
        Ok(self.ask(&record, &age) == Runs::No)
    }

    fn ask(self, record: &Record, age: Age<'_>) -> Runs {
        let Some(shared) = &record.shared else { return Runs::Unknown };
        match &shared.holder {
            // The header says whether such a holder is alive.
            Holder::Process(_) | Holder::Manual => Runs::Unknown,
            Holder::Unit { name, invocation } => self.units.map_or(Runs::Unknown, |ask| ask(name, invocation)),
            Holder::Scheduler { name } => {
                let asked = self.schedulers.iter().find(|scheduler| scheduler.name() == name);
                asked.map_or(Runs::Unknown, |scheduler| scheduler.runs(&shared.job, shared.run, age))
            }
        }
    }
}

/// How long systemd may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Asks systemd by a program; only for jobfence's commands.
pub fn ask_systemd(name: &str, invocation: &str) -> Runs {
    systemctl()
        .and_then(|program| answer_of(program, name, Instant::now() + ANSWER_WITHIN))
        .map_or(Runs::Unknown, |text| understand(&text, invocation))
}

fn systemctl() -> Option<&'static Path> {
    ["/usr/bin/systemctl", "/bin/systemctl"].map(Path::new).into_iter().find(|program| program.exists())
}

/// The invocation of a unit that is active now; only for jobfence's commands.
pub fn invocation_of(name: &str) -> Result<String> {
    let failed = |why: &str| {
        Error::new(why.to_owned())
            .value(name)
            .hint("'systemctl show' says what state it is in; or name a process, as pid:N")
    };
    let text = systemctl()
        .and_then(|program| answer_of(program, name, Instant::now() + ANSWER_WITHIN))
        .ok_or_else(|| failed("systemd does not answer about the unit"))?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match (value("ActiveState"), value("InvocationID")) {
        (Some("active" | "activating" | "reloading"), Some(id)) if !id.is_empty() => Ok(id.to_owned()),
        _ => Err(failed("this unit is not active, and cannot hold a fence:")),
    }
}

/// The program's output. `None`: it fails, or takes longer than until the deadline.
fn answer_of(program: &Path, name: &str, deadline: Instant) -> Option<String> {
    let words = ["show", "--property=LoadState,ActiveState,InvocationID", "--", name];
    AskedProgram::new(program, &words, &[]).ask(deadline).ok()
}

fn understand(text: &str, invocation: &str) -> Runs {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let (Some(_), Some(active), Some(now)) = (value("LoadState"), value("ActiveState"), value("InvocationID")) else {
        return Runs::Unknown;
    };
    let is_id = now.len() == 32 && now.chars().all(|c| c.is_ascii_hexdigit());
    match active {
        "inactive" | "failed" => Runs::No,
        _ if is_id && now != invocation => Runs::No,
        "active" | "reloading" | "refreshing" | "activating" | "deactivating" | "maintenance" if is_id => Runs::Yes,
        _ => Runs::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ONE: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_a_clear_answer_is_one() {
        let says = |load: &str, active: &str, id: &str| {
            understand(&format!("LoadState={load}\nActiveState={active}\nInvocationID={id}\n"), ONE)
        };
        assert_eq!(says("loaded", "active", ONE), Runs::Yes);
        assert_eq!(says("loaded", "deactivating", ONE), Runs::Yes);
        assert_eq!(says("loaded", "active", &ONE.replace('0', "f")), Runs::No);
        for over in ["inactive", "failed"] {
            assert_eq!(says("loaded", over, ONE), Runs::No);
            assert_eq!(says("not-found", over, ""), Runs::No);
        }
        for (active, id) in [("active", ""), ("", ONE), ("unknown", ONE), ("active", "x")] {
            assert_eq!(says("loaded", active, id), Runs::Unknown, "{active} {id}");
        }
        for text in ["", "ActiveState=inactive\n", "LoadState=loaded\nActiveState=inactive"] {
            assert_eq!(understand(text, ONE), Runs::Unknown, "{text:?}");
        }
    }

    #[test]
    fn a_program_that_fails_or_stays_says_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let say = |script: &str, patience: u64| {
            let program = temp.path().join("systemctl");
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            answer_of(&program, "a.service", Instant::now() + Duration::from_millis(patience))
        };
        assert_eq!(say("echo \"$# $4 ${HOME-clean}\"", 300_000).as_deref(), Some("4 a.service clean\n"));
        assert_eq!(say("echo x; exit 1", 300_000), None);
        let began = Instant::now();
        assert_eq!(say("exec /bin/sleep 900", 100), None);
        assert!(began.elapsed() < Duration::from_secs(300));
        assert_eq!(answer_of(&temp.path().join("none"), "a.service", Instant::now()), None);
    }
}
