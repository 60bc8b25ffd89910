// SPDX-License-Identifier: GPL-2.0-or-later
//! The log for a program whose stderr is not read.

use std::ffi::CString;

use jobfence::printable::printable;
use log::{Level, LevelFilter, Log, Metadata, Record};

/// Logs to syslog(3), as a daemon.
pub struct SyslogOfDaemon;

impl SyslogOfDaemon {
    /// Logs there from now on.
    pub fn begin() {
        if log::set_logger(&Self).is_ok() {
            log::set_max_level(LevelFilter::Info);
        }
    }
}

impl Log for SyslogOfDaemon {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            say(record.level(), &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Logs one message, in one line.
pub fn say(level: Level, text: &str) {
    let priority = match level {
        Level::Error => libc::LOG_ERR,
        Level::Warn => libc::LOG_WARNING,
        _ => libc::LOG_INFO,
    };
    if let Ok(text) = CString::new(format!("jobfence: {}", printable(text, ' '))) {
        // SAFETY: a format of one %s and one NUL-terminated string.
        unsafe { libc::syslog(libc::LOG_DAEMON | priority, c"%s".as_ptr(), text.as_ptr()) };
    }
}
