// SPDX-License-Identifier: GPL-2.0-or-later
//! What was read, and what was begun, across a restart: in a file beside the usage log, which outlives a reboot as the log does.
//!
//! It is written before a job is requeued, so the next `jobfence hold` knows which jobs this one has had held.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use jobfence::report::usage_log::UsageLog;
use nix::unistd::{getegid, geteuid};
use serde_json::{Value, json};

use super::killed::{KilledRun, PartsOfRuns, RunEnd};
use super::size::{AskedMemory, MemoryUnit, NextRun};
use crate::followed::LogPlace;
use crate::logged::LoggedStep;
use crate::table::printable;
use crate::whole::{self, Ownership};

/// The version of the file's format. A file of another one is set aside.
const VERSION: u64 = 1;

/// The longest file that is read and written.
const LONGEST: u64 = 64 << 20;

/// A run whose job may run again.
#[derive(Debug, Clone)]
pub struct WaitingRun {
    pub run: KilledRun,
    /// What its next run is to have, once that is decided. From then on, the job may be held by us if that is more.
    pub begun: Option<NextRun>,
    /// How often something has failed for this run since then.
    pub tries: u64,
    /// What the scheduler has refused at the last attempts, one after the other. Any other outcome resets it.
    pub refused: Refusals,
}

/// Refusals of more memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusals {
    pub count: u64,
    /// When the last one was, in seconds since 1970.
    pub last: u64,
}

/// The units, as the file has them.
const UNITS: [(&str, MemoryUnit); 3] =
    [("node", MemoryUnit::Node), ("cpu", MemoryUnit::Cpu), ("host", MemoryUnit::Host)];

/// A next run that has the same, as the file has it.
const SAME: &str = "same";

impl WaitingRun {
    pub fn json(&self) -> Value {
        let unit = |of: MemoryUnit| UNITS.iter().find(|(_, unit)| *unit == of).map(|(name, _)| *name);
        let begun = self.begun.map(|begun| match begun {
            NextRun::Same => json!(SAME),
            NextRun::More(more) => json!([unit(more.unit), more.mib]),
        });
        let refused = (self.refused.count, self.refused.last);
        json!({
            "line": small(&self.run.line.json), "restarts": self.run.restarts, "begun": begun, "tries": self.tries,
            "refused": refused, "end": self.run.end.word(),
        })
    }

    /// Reads what `json` wrote.
    pub fn from_json(one: &Value) -> Option<Self> {
        let unit = |text: &str| UNITS.iter().find(|(name, _)| *name == text).map(|(_, unit)| *unit);
        let more =
            |value: &Value| Some(AskedMemory { unit: unit(value.get(0)?.as_str()?)?, mib: value.get(1)?.as_u64()? });
        let begun = |value: &Value| match value.as_str() {
            Some(SAME) => Some(NextRun::Same),
            _ => more(value).map(NextRun::More),
        };
        let refused = |value: &Value| Some(Refusals { count: value.get(0)?.as_u64()?, last: value.get(1)?.as_u64()? });
        let restarts = one.get("restarts").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
        let run = KilledRun::from_line(LoggedStep::new(one.get("line")?.clone()))?;
        let end = one.get("end").and_then(Value::as_str).map_or(Some(run.end), RunEnd::from_word)?;
        Some(Self {
            run: KilledRun { restarts, end, ..run },
            begun: one.get("begun").and_then(begun),
            tries: one.get("tries")?.as_u64()?,
            // A build before this member has not written it, and does not read it.
            refused: one.get("refused").and_then(refused).unwrap_or_default(),
        })
    }
}

/// All that is known.
#[derive(Debug, Default)]
pub struct AgainState {
    /// How far the log was read. `None`: not at all.
    pub place: Option<LogPlace>,
    pub parts: PartsOfRuns,
    /// The runs to look at, the next one first.
    pub waiting: Vec<WaitingRun>,
    /// The text that is in the file.
    pub written: String,
    /// The last part of the file's name: see [`super::AgainPart::kept`].
    pub name: &'static str,
}

impl AgainState {
    /// What was known at the end of the last look. A file that is not understood may name jobs that are held: it is set aside, and said.
    pub fn load(usage_log: &UsageLog<'_>, name: &'static str) -> Result<Self, String> {
        let place = place(usage_log, name);
        let failed = |what: &str, error: &dyn Display| format!("{what} {}: {error}", place.display());
        let mut text = String::new();
        let why = match File::open(&place).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self { name, ..Self::default() }),
            Err(error) if error.kind() != ErrorKind::InvalidData => return Err(failed("read", &error)),
            Err(error) => error.to_string(),
            Ok(_) if text.len() as u64 > LONGEST => format!("it is longer than {} MiB", LONGEST >> 20),
            Ok(_) => match serde_json::from_str(&text) {
                Err(error) => error.to_string(),
                Ok(json) => match Self::from_json(&json) {
                    Some(state) => return Ok(Self { written: text, name, ..state }),
                    None => format!("it is not in the form of this release, whose version is {VERSION}"),
                },
            },
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let aside = PathBuf::from(format!("{}.{now}", place.display()));
        fs::rename(&place, &aside).map_err(|error| failed("set aside", &error))?;
        log::error!(
            "jobs that failed at their memory limits may be held in the queue, since what was begun for them is not understood: {}: {}; \
             release or cancel such jobs, and remove the file",
            aside.display(),
            printable(&why)
        );
        Ok(Self { name, ..Self::default() })
    }

    /// Whether something was left to do at the last look, or to be looked for.
    pub fn is_there(usage_log: &UsageLog<'_>, name: &str) -> bool {
        place(usage_log, name).exists()
    }

    /// Forgets all, where nothing is wanted any more.
    pub fn remove(&self, usage_log: &UsageLog<'_>) -> Result<(), String> {
        let place = place(usage_log, self.name);
        match fs::remove_file(&place) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("remove {}: {error}", place.display())),
            _ => Ok(()),
        }
    }

    /// Writes it down, if it has changed.
    pub fn save(&mut self, usage_log: &UsageLog<'_>) -> Result<(), String> {
        let text = self.json().to_string();
        if text.len() as u64 > LONGEST {
            return Err(format!(
                "{} would be longer than {} MiB",
                place(usage_log, self.name).display(),
                LONGEST >> 20
            ));
        }
        // The log's directory is made with its first line. Before that, there is nothing to keep.
        if text != self.written && usage_log.path().parent().is_some_and(Path::is_dir) {
            let ours = Ownership { mode: 0o600, uid: geteuid().as_raw(), gid: getegid().as_raw() };
            whole::replace_durably(&place(usage_log, self.name), text.as_bytes(), ours)
                .map_err(|error| error.to_string())?;
            self.written = text;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        json!({
            "version": VERSION,
            "place": self.place,
            "parts": self.parts.json(),
            "waiting": self.waiting.iter().map(WaitingRun::json).collect::<Vec<_>>(),
        })
    }

    pub fn from_json(json: &Value) -> Option<Self> {
        if json.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let place = json.get("place").and_then(|place| Some((place.get(0)?.as_u64()?, place.get(1)?.as_u64()?)));
        Some(Self {
            place,
            parts: PartsOfRuns::from_json(json.get("parts")?),
            // A run that is not understood may be held. So the whole file then counts as not understood.
            waiting: json.get("waiting")?.as_array()?.iter().map(WaitingRun::from_json).collect::<Option<_>>()?,
            written: String::new(),
            name: "",
        })
    }
}

/// The members of a batch script's line that tell the run: those that are no lists or objects.
fn small(line: &Value) -> Value {
    let is_small = |(_, value): &(&String, &Value)| !value.is_array() && !value.is_object() && !value.is_null();
    let members = line.as_object().into_iter().flatten().filter(is_small);
    Value::Object(members.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The file, beside the log.
pub(super) fn place(usage_log: &UsageLog<'_>, name: &str) -> PathBuf {
    let log = usage_log.path().file_name().unwrap_or_default();
    usage_log.path().with_file_name(format!(".{}.{name}", log.display()))
}
