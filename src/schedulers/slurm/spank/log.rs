// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes jobfence's messages through Slurm's own log functions, as data and never as a format.

use std::ffi::CString;
use std::sync::Once;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::printable::printable;
use crate::schedulers::slurm::spank::api;

struct SlurmLog;

impl Log for SlurmLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        // Slurm filters by its own debug level.
        true
    }

    fn log(&self, record: &Record<'_>) {
        let prefix = if record.level() == Level::Warn { "jobfence: warning: " } else { "jobfence: " };
        say(record.level(), &format!("{prefix}{}", record.args()));
    }

    fn flush(&self) {}
}

/// Makes this the logger for the whole library. May be called again.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if log::set_logger(&SlurmLog).is_ok() {
            log::set_max_level(LevelFilter::Debug);
        }
    });
}

/// Tells the job's user a sentence: on the job's stderr, while that is open.
pub fn tell_user(sentence: &str) {
    tell(&printable(&format!("jobfence: {sentence}"), ' '));
}

/// Tells the user several lines at once, unchanged. Slurm's log has them, too, as one message.
pub fn tell_user_lines(lines: &[String]) {
    let lines: Vec<String> = lines.iter().map(|line| printable(line, ' ')).collect();
    if !lines.is_empty() {
        tell(&lines.join("\n"));
    }
}

fn tell(text: &str) {
    let Ok(text) = CString::new(text) else { return };
    if let Ok(log) = api::functions().and_then(|api| api.slurm_spank_log.as_ref().map_err(api::missing)) {
        // SAFETY: a printf-like function with a format of one %s and one NUL-terminated string.
        unsafe { log(c"%s".as_ptr(), text.as_ptr()) };
    }
}

fn say(level: Level, line: &str) {
    let Some(text) = c_string(line) else { return };
    let Ok(api) = api::functions() else { return };
    let log = match level {
        Level::Error => &api.slurm_error,
        // Slurm's plugin interface has no level for warnings.
        Level::Warn | Level::Info => &api.slurm_info,
        Level::Debug | Level::Trace => &api.slurm_debug,
    };
    if let Ok(log) = log {
        // SAFETY: as above; Slurm's functions take the format and its arguments by const pointers.
        unsafe { log(c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// Slurm's log consists of C strings, one line each.
fn c_string(text: &str) -> Option<CString> {
    CString::new(printable(text, ' ')).ok()
}
