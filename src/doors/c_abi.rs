// SPDX-License-Identifier: GPL-2.0-or-later
//! The C interface: a fence's life for a program that loads libjobfence.so. `include/jobfence.h` describes each function for the program's
//! author; `tests/c_abi.rs` compares the two.
//!
//! The host may be a root daemon with other threads, and its stdout may be a job's. So nothing is printed and no thread is started. Between
//! two calls only the text of the last error is kept, in the thread that got it.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::{self, LoadError, Loaded};
use crate::doors::card;
use crate::doors::life::{self, HowClosed, Seen};
use crate::doors::opening::{HeldBy, OpenRequest};
use crate::doors::recorded::{self, WantedFences};
use crate::doors::seen;
use crate::figures::Usage;
use crate::host::Host;
use crate::janitor::{self, JanitorCaller};
use crate::job::Id;
use crate::schedulers::ALL;
use crate::sys::guard::guard;

mod answer;
mod callers_log;
mod given;

pub use answer::AbiCode;
use answer::{Done, NotDone, answered, known, refused, usable, usage};
pub use callers_log::{LogFunction, LogLevel};
pub use given::{ARRAY_TASK, CEnded, CFence, CGrant, CReaped, CTotals, UNKNOWN, UTF8, ZERO_CPUS};
use given::{fill, granted, read, text, which};

/// `JOBFENCE_ABI_VERSION`.
pub const ABI_VERSION: u32 = 1;
/// `JOBFENCE_NO_TASK`.
pub const NO_TASK: i64 = -1;
/// `JOBFENCE_ANY_USER`.
pub const ANY_USER: u32 = 1;

/// The longest patience of `jobfence_reap`, in milliseconds.
const MOST_PATIENCE: u32 = 60_000;

/// The longest text of an error, including its zero byte.
const LONGEST: usize = 4096;

thread_local! {
    // No destructor: it would keep the library loaded until the thread ends.
    static LAST_ERROR: UnsafeCell<[u8; LONGEST]> = const { UnsafeCell::new([0; LONGEST]) };
}

fn remember(text: &str) {
    let cut = (0..LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let bytes = text.get(..cut).unwrap_or(text).bytes().map(|byte| if byte == 0 { b' ' } else { byte });
    LAST_ERROR.with(|last| {
        // SAFETY: this thread's own, and what was given out of it is valid only until this call.
        let last = unsafe { &mut *last.get() };
        last.iter_mut().zip(bytes.chain([0])).for_each(|(place, byte)| *place = byte);
    });
}

/// Runs a function's body and converts its result.
fn call(name: &'static str, body: &dyn Fn() -> Done) -> c_int {
    let (code, text) = match guard(name, body) {
        Some(Ok(())) => (AbiCode::Ok, String::new()),
        Some(Err(NotDone(code, text))) => (code, text),
        None => (AbiCode::Internal, format!("{name} did not finish, by a mistake in jobfence; please report it")),
    };
    remember(&text);
    code as c_int
}

/// The same for a function about fences, with the configuration. Only root has fences.
///
/// # Safety
/// `config` must be NULL or a C string.
unsafe fn call_with(
    name: &'static str,
    config: *const c_char,
    body: &dyn Fn(&Result<Loaded, LoadError>) -> Done,
) -> c_int {
    call(name, &|| {
        if !nix::unistd::geteuid().is_root() {
            return Err(refused(format!("{name} needs root")));
        }
        // SAFETY: as this function's own contract.
        match unsafe { text(config, "config") }? {
            None => body(&config::load(&[])),
            Some(file) if !Path::new(file).is_absolute() => Err(usage("config must be an absolute path")),
            Some(file) => {
                let argument = format!("config={file}");
                body(&config::load_named(&[argument.as_bytes()], &|_| "config".to_owned()))
            }
        }
    })
}

/// The same for a function about a job's fences. Its output texts are set to NULL before anything can fail.
///
/// # Safety
/// As the header says of `config`, of `fence`, and of places for texts.
unsafe fn call_about(
    name: &'static str,
    config: *const c_char,
    fence: *const CFence,
    made: &[*mut *mut c_char],
    body: &dyn Fn(&Result<Loaded, LoadError>, &WantedFences) -> Done,
) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe {
        clear(made);
        call_with(name, config, &|loaded| body(loaded, &which(fence)?))
    }
}

/// After a failure, checks whether the cause is that there is no such fence, which has a code of its own.
fn or_no_fence<T>(done: Done<T>, loaded: &Result<Loaded, LoadError>, which: &WantedFences) -> Done<T> {
    done.map_err(|NotDone(code, text)| {
        let is_failure = code != AbiCode::Off
            && loaded.as_ref().is_ok_and(|loaded| recorded::exist(&loaded.config, which) == Ok(false));
        NotDone(if is_failure { AbiCode::NoFence } else { code }, text)
    })
}

/// Returns a text to the caller, if the caller wants it.
///
/// # Safety
/// `place` must be NULL or the caller's place for it.
unsafe fn give(place: *mut *mut c_char, text: impl FnOnce() -> String) {
    if !place.is_null() {
        let text: String = text().chars().map(|c| if c == '\0' { ' ' } else { c }).collect();
        // SAFETY: as this function's own contract.
        unsafe { place.write(CString::new(text).unwrap_or_default().into_raw()) };
    }
}

/// Sets output texts to NULL before anything can fail, so that the caller can free them in any case.
///
/// # Safety
/// Each must be NULL or the caller's place for a text.
unsafe fn clear(places: &[*mut *mut c_char]) {
    for place in places.iter().filter(|place| !place.is_null()) {
        // SAFETY: as this function's own contract.
        unsafe { place.write(std::ptr::null_mut()) };
    }
}

/// `jobfence_abi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn jobfence_abi_version() -> u32 {
    ABI_VERSION
}

/// `jobfence_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn jobfence_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.get().cast::<c_char>().cast_const())
}

/// `jobfence_free`.
///
/// # Safety
/// `text` must be NULL or a text of this library that was not given back yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: as this function's own contract: from `give`.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// `jobfence_set_log`.
///
/// # Safety
/// `data` must be the argument that the function expects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_set_log(function: Option<LogFunction>, data: *mut c_void) -> c_int {
    call("jobfence_set_log", &|| {
        if callers_log::set(function, data) {
            Ok(())
        } else {
            Err(refused("this library already logs to the program that loaded it first"))
        }
    })
}

/// `jobfence_open`.
///
/// # Safety
/// As the header says: NULL, C strings, structs of the size that they say, and places of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_open(
    config: *const c_char,
    fence: *const CFence,
    uid: u32,
    holder: *const c_char,
    grant: *const CGrant,
    path: *mut *mut c_char,
) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { open("jobfence_open", config, fence, uid, holder, grant, [path, std::ptr::null_mut()]) }
}

/// `jobfence_open_gpus`.
///
/// # Safety
/// As of [`jobfence_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_open_gpus(
    config: *const c_char,
    fence: *const CFence,
    uid: u32,
    holder: *const c_char,
    grant: *const CGrant,
    path: *mut *mut c_char,
    visible: *mut *mut c_char,
) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { open("jobfence_open_gpus", config, fence, uid, holder, grant, [path, visible]) }
}

/// # Safety
/// As of [`jobfence_open`].
unsafe fn open(
    name: &'static str,
    config: *const c_char,
    fence: *const CFence,
    uid: u32,
    holder: *const c_char,
    grant: *const CGrant,
    [path, visible]: [*mut *mut c_char; 2],
) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        // SAFETY: as this function's own contract.
        let holder = unsafe { text(holder, "holder") }?;
        if uid == u32::MAX {
            return Err(usage("uid must be a user's"));
        }
        let holder: HeldBy = holder.unwrap_or("manual").parse().map_err(|why| usage(format!("holder: {why}")))?;
        // SAFETY: as this function's own contract.
        let granted = unsafe { granted(grant, Some(uid), loaded) }?;
        let (job, step) = (which.job.clone(), which.step.clone().map_or_else(|| Id::new("0"), Ok)?);
        let request = OpenRequest {
            uid,
            job,
            step,
            run: which.run.unwrap_or(1),
            granted,
            holder,
            ask_unit: None,
            starts_processes: false,
        };
        let seen = answered(life::open_again(loaded.clone(), &request))?;
        // SAFETY: as this function's own contract.
        unsafe {
            give(path, || seen.path.unwrap_or_default());
            if let Some(gpus) = seen.visible_gpus {
                give(visible, || gpus);
            }
        }
        Ok(())
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about(name, config, fence, &[path, visible], &body) }
}

/// `jobfence_attach`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_attach(
    config: *const c_char,
    fence: *const CFence,
    pid: i32,
    task: i64,
    flags: u32,
) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        let task = match u32::try_from(task) {
            Ok(task) => Some(task),
            Err(_) if task == NO_TASK => None,
            Err(_) => return Err(usage(format!("task must be 0 to 4294967295 or JOBFENCE_NO_TASK, and not {task}"))),
        };
        if flags & !ANY_USER != 0 {
            return Err(usage(format!("flags: this release knows JOBFENCE_ANY_USER, and not {flags}")));
        }
        let done = answered(life::attach(loaded.clone(), which, &[pid], task, flags & ANY_USER != 0));
        or_no_fence(done.map(drop), loaded, which)
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_attach", config, fence, &[], &body) }
}

/// `jobfence_limit`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_limit(config: *const c_char, fence: *const CFence, grant: *const CGrant) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        let uid = loaded.as_ref().ok().and_then(|loaded| recorded::uid_of(&loaded.config, which).ok().flatten());
        // SAFETY: as this function's own contract.
        let granted = unsafe { granted(grant, uid, loaded) }?;
        let all = loaded.as_ref().ok().and_then(|loaded| recorded::each(&loaded.config, which).ok());
        let all = all.filter(|all| !all.is_empty()).unwrap_or_else(|| vec![which.clone()]);
        let one = |which| or_no_fence(answered(life::limit(loaded.clone(), which, &granted)).map(drop), loaded, which);
        // Where one fails, the others are limited all the same.
        all.iter().map(one).fold(Ok(()), Result::and)
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_limit", config, fence, &[], &body) }
}

/// `jobfence_usage`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_usage(
    config: *const c_char,
    fence: *const CFence,
    text: *mut *mut c_char,
    json: *mut *mut c_char,
) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        let all = used(loaded, which)?;
        // SAFETY: as this function's own contract.
        unsafe {
            give(text, || seen::lines(&all));
            give(json, || seen::json(&all));
        }
        Ok(())
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_usage", config, fence, &[text, json], &body) }
}

/// `jobfence_total`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_total(config: *const c_char, fence: *const CFence, totals: *mut CTotals) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        // SAFETY: as this function's own contract.
        let given = unsafe { read(totals, "jobfence_totals") }?.ok_or_else(|| usage("totals must not be NULL"))?;
        let all = used(loaded, which)?;
        let are_all = recorded::are_all(known(loaded)?, which, all.len())?;
        // SAFETY: as this function's own contract, and it was read.
        unsafe { fill(totals, given.size, &totals_of(&all, are_all)) };
        Ok(())
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_total", config, fence, &[], &body) }
}

/// The usage of these fences. No fence is an error.
fn used(loaded: &Result<Loaded, LoadError>, which: &WantedFences) -> Done<Vec<Seen>> {
    let all = life::usage(known(loaded)?, which)?;
    if all.is_empty() {
        usable(loaded)?;
        return Err(NotDone(AbiCode::NoFence, format!("there is no fence of job {}", which.job)));
    }
    Ok(all)
}

fn totals_of(all: &[Seen], are_all: bool) -> CTotals {
    let steps = Usage::sum(&mut all.iter().map(|seen| &seen.usage), Usage::after);
    let number = |known: Option<u64>| known.unwrap_or(UNKNOWN);
    let micros =
        |time: Option<Duration>| time.map_or(UNKNOWN, |time| u64::try_from(time.as_micros()).unwrap_or(UNKNOWN));
    // The job's directory also counts what closed steps used.
    let of_job = all.iter().filter_map(|seen| seen.job.cpu).max().filter(|_| are_all).unwrap_or_default();
    CTotals {
        size: size_of::<CTotals>(),
        fences: all.len() as u64,
        cpu_us: micros(steps.cpu.map(|cpu| cpu.max(of_job))),
        throttled_us: micros(steps.throttled),
        memory_peak: number(all.iter().filter_map(|seen| seen.job.memory_peak).max()),
        memory_swap_peak: number(all.iter().filter_map(|seen| seen.job_memory_swap_peak).max()),
        oom_kills: number(steps.oom_kills),
        forks_refused: number(steps.forks_refused),
        read_bytes: number(steps.read),
        written_bytes: number(steps.written),
    }
}

/// `jobfence_card`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_card(
    config: *const c_char,
    fence: *const CFence,
    grant: *const CGrant,
    ended: *const CEnded,
    text: *mut *mut c_char,
) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        // SAFETY: as this function's own contract.
        let (granted, end) = unsafe { (granted(grant, None, loaded)?, given::ended(ended)?) };
        match card::card(usable(loaded)?, which, &granted, &end)? {
            // SAFETY: as this function's own contract.
            Some(lines) => unsafe { give(text, || lines.join("\n")) },
            None => return Err(NotDone(AbiCode::NoFence, format!("there is no fence of job {}", which.job))),
        }
        Ok(())
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_card", config, fence, &[text], &body) }
}

/// `jobfence_freeze`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_freeze(config: *const c_char, fence: *const CFence) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_freeze", config, fence, &[], &|loaded, which| switch(loaded, which, true)) }
}

/// `jobfence_thaw`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_thaw(config: *const c_char, fence: *const CFence) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_thaw", config, fence, &[], &|loaded, which| switch(loaded, which, false)) }
}

fn switch(loaded: &Result<Loaded, LoadError>, which: &WantedFences, is_frozen: bool) -> Done {
    let done = life::freeze(known(loaded)?, which, is_frozen).map_err(NotDone::from);
    or_no_fence(done, loaded, which)
}

/// `jobfence_close`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_close(
    config: *const c_char,
    fence: *const CFence,
    text: *mut *mut c_char,
    json: *mut *mut c_char,
) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>, which: &WantedFences| {
        let mut closed: Vec<Seen> = Vec::new();
        let (mut unseen, mut failures) = (Vec::new(), Vec::new());
        let all = life::close(known(loaded)?, which)?;
        if all.is_empty() {
            usable(loaded)?;
        }
        for one in all {
            match one {
                Ok(HowClosed::Removed(seen)) => closed.push(*seen),
                Ok(HowClosed::Unseen(key)) => unseen.push(format!("{key}: what it used is not known")),
                Ok(HowClosed::AnotherBoot(key)) => unseen.push(format!("{key}: the machine has booted since")),
                Err(error) => failures.push(error.to_string()),
            }
        }
        // SAFETY: as this function's own contract.
        unsafe {
            let lines = std::iter::once(seen::lines(&closed)).filter(|lines| !lines.is_empty());
            give(text, || lines.chain(unseen).collect::<Vec<_>>().join("\n"));
            give(json, || seen::json(&closed));
        }
        if failures.is_empty() { Ok(()) } else { Err(NotDone(AbiCode::System, failures.join("\n"))) }
    };
    // SAFETY: as this function's own contract.
    unsafe { call_about("jobfence_close", config, fence, &[text, json], &body) }
}

/// `jobfence_reap`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_reap(config: *const c_char, patience_ms: u32, reaped: *mut CReaped) -> c_int {
    let body = |loaded: &Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let size = unsafe { read(reaped, "jobfence_reaped") }?.map(|given| given.size);
        if patience_ms > MOST_PATIENCE {
            return Err(usage(format!("patience_ms must be 0 to {MOST_PATIENCE}, and not {patience_ms}")));
        }
        let patience = if patience_ms == 0 { janitor::PATIENCE } else { Duration::from_millis(patience_ms.into()) };
        let config = known(loaded)?;
        let (host, no_cgroups) = Host::read_what_there_is(config)?;
        let done = janitor::reap(&host, config, ALL, JanitorCaller::Daemon, Instant::now() + patience)?;
        done.log();
        if let Some(size) = size {
            let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            let (removed, failed) = (count(done.removed.len()), count(done.failed.len()));
            let counted = CReaped { size, removed, alive: count(done.alive), busy: count(done.busy), failed };
            // SAFETY: as this function's own contract, and it was read.
            unsafe { fill(reaped, size, &counted) };
        }
        let failures: Vec<String> = no_cgroups.iter().map(ToString::to_string).chain(done.failed).collect();
        if failures.is_empty() { Ok(()) } else { Err(NotDone(AbiCode::System, failures.join("\n"))) }
    };
    // SAFETY: as this function's own contract.
    unsafe { call_with("jobfence_reap", config, &body) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: a C string of this thread's.
        unsafe { CStr::from_ptr(jobfence_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_number_and_a_sentence() {
        assert_eq!(call("test", &|| panic!("on purpose")), AbiCode::Internal as c_int);
        assert!(last().contains("test did not finish"), "{}", last());
        assert_eq!(call("test", &|| Ok(())), 0);
        assert_eq!(last(), "");
    }

    #[test]
    fn a_long_error_is_cut_between_two_characters() {
        remember(&"ä".repeat(LONGEST));
        assert_eq!(last(), "ä".repeat(LONGEST / 2 - 1));
        remember("a\0b");
        assert_eq!(last(), "a b");
    }
}
