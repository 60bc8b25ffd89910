// SPDX-License-Identifier: GPL-2.0-or-later
//! What was read, and what was begun, across a restart: in a file beside the usage log, which outlives a reboot as the log does.
//!
//! It is written before a job is requeued, so the next `jobfence hold` knows which jobs this one has had held.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use jobfence::report::usage_log::UsageLog;
use nix::unistd::{getegid, geteuid};
use serde_json::{Value, json};

use super::killed::{KilledRun, PartsOfRuns};
use super::size::{AskedMemory, MemoryUnit};
use crate::followed::LogPlace;
use crate::logged::LoggedStep;
use crate::whole::{self, Ownership};

/// The version of the file's format. Another one is not read: then nothing is known.
const VERSION: u64 = 1;

/// The longest file that is read.
const LONGEST: u64 = 64 << 20;

/// A run whose job may run again.
#[derive(Debug, Clone)]
pub struct WaitingRun {
    pub run: KilledRun,
    /// What its next run is to ask for, once that is decided: from then on, the job may be held by us.
    pub begun: Option<AskedMemory>,
    /// How often something was tried in vain since.
    pub tries: u64,
}

/// All that is known.
#[derive(Debug, Default)]
pub struct AgainState {
    /// How far the log was read. `None`: not at all.
    pub place: Option<LogPlace>,
    pub parts: PartsOfRuns,
    /// In the order in which they ended.
    pub waiting: Vec<WaitingRun>,
}

impl AgainState {
    /// What was known before a restart.
    pub fn load(usage_log: &UsageLog<'_>) -> Self {
        let mut text = String::new();
        let read = File::open(place(usage_log)).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        read.ok().and_then(|_| Self::of_json(&serde_json::from_str(&text).ok()?)).unwrap_or_default()
    }

    /// Writes it down. `written`: what was written last.
    pub fn save(&self, usage_log: &UsageLog<'_>, written: &mut String) -> Result<(), String> {
        let text = self.json().to_string();
        // The directory is made with the log's first line. Before that nothing is known.
        if text != *written && usage_log.path().parent().is_some_and(Path::is_dir) {
            let ours = Ownership { mode: 0o600, uid: geteuid().as_raw(), gid: getegid().as_raw() };
            whole::replace_durably(&place(usage_log), text.as_bytes(), ours).map_err(|error| error.to_string())?;
            *written = text;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let unit = |unit| match unit {
            MemoryUnit::Node => "node",
            MemoryUnit::Cpu => "cpu",
        };
        let waiting = |one: &WaitingRun| {
            let begun = one.begun.map(|begun| json!([unit(begun.unit), begun.mib]));
            json!({"line": one.run.line.json, "restarts": one.run.restarts, "begun": begun, "tries": one.tries})
        };
        json!({
            "version": VERSION,
            "place": self.place,
            "parts": self.parts.json(),
            "waiting": self.waiting.iter().map(waiting).collect::<Vec<_>>(),
        })
    }

    pub fn of_json(json: &Value) -> Option<Self> {
        let unit = |text: &str| match text {
            "node" => Some(MemoryUnit::Node),
            "cpu" => Some(MemoryUnit::Cpu),
            _ => None,
        };
        let begun =
            |value: &Value| Some(AskedMemory { unit: unit(value.get(0)?.as_str()?)?, mib: value.get(1)?.as_u64()? });
        let waiting = |one: &Value| {
            let restarts = one.get("restarts").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
            Some(WaitingRun {
                run: KilledRun { restarts, ..KilledRun::of(LoggedStep::new(one.get("line")?.clone()))? },
                begun: one.get("begun").and_then(begun),
                tries: one.get("tries")?.as_u64()?,
            })
        };
        if json.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let place = json.get("place").and_then(|place| Some((place.get(0)?.as_u64()?, place.get(1)?.as_u64()?)));
        Some(Self {
            place,
            parts: PartsOfRuns::of_json(json.get("parts")?),
            waiting: json.get("waiting")?.as_array()?.iter().filter_map(waiting).collect(),
        })
    }
}

/// The file, beside the log.
fn place(usage_log: &UsageLog<'_>) -> PathBuf {
    let name = usage_log.path().file_name().unwrap_or_default();
    usage_log.path().with_file_name(format!(".{}.again", name.display()))
}
