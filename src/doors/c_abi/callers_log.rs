// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the lines of the log go in a program that loads libjobfence.so: to a function of the program's.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::printable::printable;

/// The first argument of a [`LogFunction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum LogLevel {
    /// `JOBFENCE_LOG_ERROR`.
    Error = 1,
    /// `JOBFENCE_LOG_WARNING`.
    Warning = 2,
    /// `JOBFENCE_LOG_INFO`.
    Info = 3,
    /// `JOBFENCE_LOG_DEBUG`.
    Debug = 4,
}

/// The function that receives the lines of the log.
pub type LogFunction = unsafe extern "C" fn(c_int, *const c_char, *mut c_void);

thread_local! {
    /// Whether the caller's log function is running in this thread.
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// From now on the lines go to this function. `false`: another entry point has installed its log first.
pub(super) fn set(function: Option<LogFunction>, data: *mut c_void) -> bool {
    // Threads that call at once get the same answer.
    if !*IS_OURS.get_or_init(|| log::set_logger(&CallersLog).is_ok()) {
        return false;
    }
    log::set_max_level(if function.is_some() { LevelFilter::Debug } else { LevelFilter::Off });
    if let Ok(mut callers) = CALLERS.lock() {
        *callers = function.map(|function| LogTarget { function, data });
    }
    true
}

/// Where the lines of the log go.
#[derive(Clone, Copy)]
struct LogTarget {
    function: LogFunction,
    data: *mut c_void,
}

// SAFETY: the header says that the function is called in each thread, with this data.
unsafe impl Send for LogTarget {}

static CALLERS: Mutex<Option<LogTarget>> = Mutex::new(None);

/// Whether this log was installed first, before that of another entry point.
static IS_OURS: OnceLock<bool> = OnceLock::new();

/// The logger for a program that has installed none in this library.
struct CallersLog;

impl Log for CallersLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Not under the lock: the function may take as long as it wants, or set another one.
        let Some(target) = CALLERS.lock().ok().and_then(|callers| *callers) else { return };
        let line = printable(&record.args().to_string(), ' ');
        let Ok(line) = CString::new(line) else { return };
        let level = match record.level() {
            Level::Error => LogLevel::Error,
            Level::Warn => LogLevel::Warning,
            Level::Info => LogLevel::Info,
            Level::Debug | Level::Trace => LogLevel::Debug,
        };
        if !IS_LOGGING.replace(true) {
            // SAFETY: the caller's function, a C string that lives during the call, and the caller's data.
            unsafe { (target.function)(level as c_int, line.as_ptr(), target.data) };
            IS_LOGGING.set(false);
        }
    }

    fn flush(&self) {}
}
