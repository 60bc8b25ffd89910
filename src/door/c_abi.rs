// SPDX-License-Identifier: GPL-2.0-or-later
//! The door of C: a fence's life for a program that loads libjobfence.so. `include/jobfence.h` is what its author reads, and says what
//! each function does; `tests/c_abi.rs` holds the two against each other.
//!
//! The host may be a daemon of root's with other threads, whose stdout is a job's. So nothing is printed, no thread is started, and what is
//! remembered between two calls is the text of the last error alone, in the thread that had it.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::config::{self, LoadError, Loaded};
use crate::door::life::{self, Granted, HeldBy, HowClosed, OpenRequest, Seen, Which};
use crate::door::{seen, user};
use crate::error::Error;
use crate::facts::{Fact, Facts};
use crate::host::Host;
use crate::janitor::{self, Who};
use crate::job::{Cpus, Id};
use crate::launch::Answer;
use crate::requests::{REQUESTS, Requests};
use crate::scheduler::all::ALL;
use crate::sys::guard::guard;

/// `JOBFENCE_ABI_VERSION`.
pub const ABI_VERSION: u32 = 1;
/// `JOBFENCE_NO_TASK`.
pub const NO_TASK: i64 = -1;
/// `JOBFENCE_ANY_USER`.
pub const ANY_USER: u32 = 1;

/// What a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum AbiCode {
    /// `JOBFENCE_OK`.
    Ok = 0,
    /// `JOBFENCE_OFF`.
    Off = 1,
    /// `JOBFENCE_UNFENCED`.
    Unfenced = 2,
    /// `JOBFENCE_USAGE`.
    Usage = -1,
    /// `JOBFENCE_REFUSED`.
    Refused = -2,
    /// `JOBFENCE_NO_FENCE`.
    NoFence = -3,
    /// `JOBFENCE_SYSTEM`.
    System = -4,
    /// `JOBFENCE_INTERNAL`.
    Internal = -5,
}

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

/// `struct jobfence_fence`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CFence {
    pub size: usize,
    pub job: *const c_char,
    pub step: *const c_char,
    pub run: u32,
    pub reserved: u32,
}

/// `struct jobfence_grant`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CGrant {
    pub size: usize,
    pub cpus: u64,
    pub memory: u64,
    pub user: *const c_char,
    pub partition: *const c_char,
    pub qos: *const c_char,
    pub account: *const c_char,
    pub cpu_limit: *const c_char,
    pub cpu_burst: *const c_char,
    pub mem_high: *const c_char,
    pub pids_max: *const c_char,
    pub io_max: *const c_char,
}

/// `struct jobfence_reaped`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CReaped {
    pub size: usize,
    pub removed: u32,
    pub alive: u32,
    pub busy: u32,
    pub failed: u32,
}

/// A struct of the caller's: its size stands first, and zero bytes are a value of it.
///
/// # Safety
/// Only for a `repr(C)` struct that begins with a `usize` and has otherwise integers and pointers, without padding.
unsafe trait CStruct: Copy {}
// SAFETY: see above.
unsafe impl CStruct for CFence {}
// SAFETY: see above.
unsafe impl CStruct for CGrant {}
// SAFETY: see above.
unsafe impl CStruct for CReaped {}

/// The function that is given the lines of the log.
pub type LogFunction = unsafe extern "C" fn(c_int, *const c_char, *mut c_void);

/// No release will have so large a struct: a larger size was never set.
const LARGEST: usize = 65536;

/// Of CPUs in thousandths, as of the command.
const MOST_CPUS: u64 = 65_536_000;
/// Of memory in bytes, as of the command.
const LEAST_MEMORY: u64 = 1 << 20;
/// Of `jobfence_reap`, in milliseconds.
const MOST_PATIENCE: u32 = 60_000;

/// Why a call has not done what it is for.
struct NotDone(AbiCode, String);

type Done<T = ()> = Result<T, NotDone>;

impl From<Error> for NotDone {
    fn from(error: Error) -> Self {
        Self(AbiCode::System, error.to_string())
    }
}

/// A mistake of the program that calls.
fn usage(text: impl Into<String>) -> NotDone {
    NotDone(AbiCode::Usage, text.into())
}

fn refused(text: impl Into<String>) -> NotDone {
    NotDone(AbiCode::Refused, text.into())
}

/// The longest text of an error, with its zero byte.
const LONGEST: usize = 4096;

thread_local! {
    // Without a destructor: one would keep the library loaded until the thread ends.
    static LAST_ERROR: UnsafeCell<[u8; LONGEST]> = const { UnsafeCell::new([0; LONGEST]) };
    /// Whether the caller's function has a line now.
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
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

/// Does what a function is for, and says how that ended.
fn call(name: &'static str, body: impl FnOnce() -> Done) -> c_int {
    let (code, text) = match guard(name, body) {
        Some(Ok(())) => (AbiCode::Ok, String::new()),
        Some(Err(NotDone(code, text))) => (code, text),
        None => (AbiCode::Internal, format!("{name} did not finish, by a mistake in jobfence; please report it")),
    };
    remember(&text);
    code as c_int
}

/// The same for one that is about fences, with the configuration. Only root has any.
///
/// # Safety
/// `config` must be NULL or a C string.
unsafe fn call_with(
    name: &'static str,
    config: *const c_char,
    body: impl FnOnce(Result<Loaded, LoadError>) -> Done,
) -> c_int {
    call(name, || {
        if !nix::unistd::geteuid().is_root() {
            return Err(refused(format!("{name} needs root")));
        }
        // SAFETY: as this function's own contract.
        match unsafe { text(config, "config") }? {
            None => body(config::load(&[])),
            Some(file) if !Path::new(file).is_absolute() => Err(usage("config must be an absolute path")),
            Some(file) => {
                let argument = format!("config={file}");
                body(config::load_named(&[argument.as_bytes()], &|_| "config".to_owned()))
            }
        }
    })
}

/// A text of the caller's; `None` for NULL.
///
/// # Safety
/// It must be NULL or a C string that lives as long as is said of the result.
unsafe fn text<'a>(text: *const c_char, name: &str) -> Done<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's own contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| usage(format!("{name} must be UTF-8")))
}

/// What the caller has of a struct. What it does not know is zero.
///
/// # Safety
/// `given` must be NULL or have as many bytes as its first member says.
unsafe fn read<T: CStruct>(given: *const T, name: &str) -> Done<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    if !given.is_aligned() {
        return Err(usage(format!("{name} must be aligned as its members are")));
    }
    // SAFETY: as this function's own contract: there are at least these bytes.
    let size = unsafe { given.cast::<usize>().read() };
    // A part of a member would be another value.
    if size < size_of::<usize>() || size > LARGEST || size % align_of::<T>() != 0 {
        return Err(usage(format!("{name}: the size must be sizeof(struct {name}), and not {size}")));
    }
    let bytes = given.cast::<u8>();
    for at in size_of::<T>()..size {
        // SAFETY: as this function's own contract: below the size.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(usage(format!(
                "{name}: this release knows {} bytes of it, and of the {size} that were given, byte {at} is not zero: \
                 the program needs a newer libjobfence.so",
                size_of::<T>()
            )));
        }
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: below the size of both, and two places. Each byte that is not copied is zero, which is a value of each member.
    let read = unsafe {
        bytes.copy_to_nonoverlapping(read.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        read.assume_init()
    };
    Ok(Some(read))
}

/// Which fences are meant.
///
/// # Safety
/// As of [`read`], and each text must be NULL or a C string.
unsafe fn which(fence: *const CFence) -> Done<Which> {
    // SAFETY: as this function's own contract.
    let fence = unsafe { read(fence, "jobfence_fence") }?.ok_or_else(|| usage("fence must not be NULL"))?;
    if fence.reserved != 0 {
        return Err(usage("jobfence_fence: reserved must be zero"));
    }
    let id = |text: &str| Id::new(text).map_err(|error| usage(error.to_string()));
    // SAFETY: as this function's own contract.
    let (job, step) = unsafe { (text(fence.job, "job")?, text(fence.step, "step")?) };
    let job = id(job.ok_or_else(|| usage("jobfence_fence: job must not be NULL"))?)?;
    Ok(Which { job, step: step.map(id).transpose()?, run: Some(fence.run).filter(|run| *run > 0) })
}

/// What a job is limited by; `uid` is its user's, where that is known.
///
/// # Safety
/// As of [`read`], and each text must be NULL or a C string.
unsafe fn granted(grant: *const CGrant, uid: Option<u32>, loaded: &Result<Loaded, LoadError>) -> Done<Granted> {
    let mut granted = Granted { facts: Facts { uid: uid.into(), ..Facts::default() }, ..Granted::default() };
    // SAFETY: as this function's own contract.
    if let Some(grant) = unsafe { read(grant, "jobfence_grant") }? {
        if grant.cpus > MOST_CPUS {
            return Err(usage(format!("cpus must be 0 to {MOST_CPUS} thousandths, and not {}", grant.cpus)));
        }
        if grant.memory > 0 && grant.memory < LEAST_MEMORY {
            return Err(usage(format!("memory must be 0 or at least {LEAST_MEMORY} bytes, and not {}", grant.memory)));
        }
        granted.cpus = Some(grant.cpus).filter(|cpus| *cpus > 0).map(Cpus::from_thousandths);
        granted.memory = Some(grant.memory).filter(|memory| *memory > 0);
        // SAFETY: as this function's own contract.
        let fact = |given, name| unsafe { text(given, name) }.map(|text| Fact::from(text.map(str::to_owned)));
        granted.facts.user = fact(grant.user, "user")?;
        granted.facts.partition = fact(grant.partition, "partition")?;
        granted.facts.qos = fact(grant.qos, "qos")?;
        granted.facts.account = fact(grant.account, "account")?;
        // SAFETY: as this function's own contract.
        granted.requests.job = unsafe { requests(&grant) }?;
    }
    if let Ok(loaded) = loaded {
        user::know(&mut granted.facts, &loaded.asked());
    }
    if let Some(uid) = uid.filter(|_| granted.requests.names_paths()) {
        let rights = user::rights(uid);
        granted.requests.paths().for_each(|rules| rules.asked_by(&rights));
    }
    Ok(granted)
}

/// What the job's user asks for.
///
/// # Safety
/// Each text must be NULL or a C string.
unsafe fn requests(grant: &CGrant) -> Done<Requests> {
    let mut requests = Requests::default();
    for (name, given) in asked(grant) {
        // SAFETY: as this function's own contract.
        let Some(value) = unsafe { text(given, name) }? else { continue };
        let request = REQUESTS.iter().find(|request| request.name == name);
        let read = request.map_or(Ok(()), |request| request.read(name, value.as_bytes(), &mut requests));
        read.map_err(|error| refused(error.to_string()))?;
    }
    Ok(requests)
}

/// Each thing that can be asked for, by the name of its option.
fn asked(grant: &CGrant) -> [(&'static str, *const c_char); 5] {
    [
        ("cpu-limit", grant.cpu_limit),
        ("cpu-burst", grant.cpu_burst),
        ("mem-high", grant.mem_high),
        ("pids-max", grant.pids_max),
        ("io-max", grant.io_max),
    ]
}

/// The configuration, where a fence is there already: what is fenced is also ended with Mode=off.
fn usable(loaded: &Result<Loaded, LoadError>) -> Done<&Loaded> {
    loaded.as_ref().map_err(|errors| refused(errors.to_string()))
}

fn answered<T>(answer: Answer<T>) -> Done<T> {
    match answer {
        Answer::Fenced(value) => Ok(value),
        Answer::Off => Err(NotDone(AbiCode::Off, "Mode=off: nothing is fenced".to_owned())),
        Answer::Unfenced { by, why, .. } => {
            Err(NotDone(AbiCode::Unfenced, format!("the job goes on without a fence ({by}): {why}")))
        }
        Answer::Refused(why) => Err(refused(why.to_string())),
    }
}

/// What has failed may have failed because there is no such fence. The caller is told so by a number of its own.
fn or_no_fence<T>(done: Done<T>, loaded: &Result<Loaded, LoadError>, which: &Which) -> Done<T> {
    done.map_err(|NotDone(code, text)| {
        let is_missing = |loaded: &Loaded| life::exist(&loaded.config, which) == Ok(false);
        let is_failure = code != AbiCode::Off && loaded.as_ref().is_ok_and(is_missing);
        NotDone(if is_failure { AbiCode::NoFence } else { code }, text)
    })
}

/// Hands a text over, if the caller wants it.
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

/// Before anything can fail: whoever frees what was not made has NULL.
///
/// # Safety
/// Each must be NULL or the caller's place for a text.
unsafe fn clear<const N: usize>(places: [*mut *mut c_char; N]) {
    for place in places.into_iter().filter(|place| !place.is_null()) {
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
/// The function must be one for which `data` is meant.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_set_log(function: Option<LogFunction>, data: *mut c_void) -> c_int {
    call("jobfence_set_log", || {
        if log::set_logger(&CallersLog).is_ok() {
            IS_OURS.store(true, Ordering::Release);
        }
        if !IS_OURS.load(Ordering::Acquire) {
            return Err(refused("the log of this library is that of the program that has loaded it before"));
        }
        log::set_max_level(if function.is_some() { LevelFilter::Debug } else { LevelFilter::Off });
        if let Ok(mut callers) = CALLERS.lock() {
            *callers = function.map(|function| LogTarget { function, data });
        }
        Ok(())
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
    let body = |loaded: Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let (which, holder) = unsafe { (which(fence)?, text(holder, "holder")?) };
        if uid == u32::MAX {
            return Err(usage("uid must be a user's"));
        }
        let holder: HeldBy = holder.unwrap_or("manual").parse().map_err(|why| usage(format!("holder: {why}")))?;
        // SAFETY: as this function's own contract.
        let granted = unsafe { granted(grant, Some(uid), &loaded) }?;
        let step = which.step.map_or_else(|| Id::new("0"), Ok)?;
        let request =
            OpenRequest { uid, job: which.job, step, run: which.run.unwrap_or(1), granted, holder, ask_unit: None };
        let seen = answered(life::open_again(loaded, &request))?;
        // SAFETY: as this function's own contract.
        unsafe { give(path, || seen.path.unwrap_or_default()) };
        Ok(())
    };
    // SAFETY: as this function's own contract.
    unsafe {
        clear([path]);
        call_with("jobfence_open", config, body)
    }
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
    let body = |loaded: Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let which = unsafe { which(fence) }?;
        let task = match u32::try_from(task) {
            Ok(task) => Some(task),
            Err(_) if task == NO_TASK => None,
            Err(_) => return Err(usage(format!("task must be 0 to 4294967295 or JOBFENCE_NO_TASK, and not {task}"))),
        };
        if flags & !ANY_USER != 0 {
            return Err(usage(format!("flags: this release knows JOBFENCE_ANY_USER, and not {flags}")));
        }
        let done = answered(life::attach(loaded.clone(), &which, &[pid], task, flags & ANY_USER != 0));
        or_no_fence(done.map(drop), &loaded, &which)
    };
    // SAFETY: as this function's own contract.
    unsafe { call_with("jobfence_attach", config, body) }
}

/// `jobfence_limit`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_limit(config: *const c_char, fence: *const CFence, grant: *const CGrant) -> c_int {
    let body = |loaded: Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let which = unsafe { which(fence) }?;
        let uid = loaded.as_ref().ok().and_then(|loaded| life::uid_of(&loaded.config, &which).ok().flatten());
        // SAFETY: as this function's own contract.
        let granted = unsafe { granted(grant, uid, &loaded) }?;
        let done = answered(life::limit(loaded.clone(), &which, &granted));
        or_no_fence(done.map(drop), &loaded, &which)
    };
    // SAFETY: as this function's own contract.
    unsafe { call_with("jobfence_limit", config, body) }
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
    let body = |loaded: Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let which = unsafe { which(fence) }?;
        let all = life::usage(&usable(&loaded)?.config, &which)?;
        if all.is_empty() {
            return Err(NotDone(AbiCode::NoFence, format!("there is no fence of job {}", which.job)));
        }
        // SAFETY: as this function's own contract.
        unsafe {
            give(text, || seen::lines(&all));
            give(json, || seen::json(&all));
        }
        Ok(())
    };
    // SAFETY: as this function's own contract.
    unsafe {
        clear([text, json]);
        call_with("jobfence_usage", config, body)
    }
}

/// `jobfence_freeze`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_freeze(config: *const c_char, fence: *const CFence) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { call_with("jobfence_freeze", config, |loaded| switch(&loaded, fence, true)) }
}

/// `jobfence_thaw`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_thaw(config: *const c_char, fence: *const CFence) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { call_with("jobfence_thaw", config, |loaded| switch(&loaded, fence, false)) }
}

/// # Safety
/// As of [`which`].
unsafe fn switch(loaded: &Result<Loaded, LoadError>, fence: *const CFence, is_frozen: bool) -> Done {
    // SAFETY: as this function's own contract.
    let which = unsafe { which(fence) }?;
    let done = life::freeze(&usable(loaded)?.config, &which, is_frozen).map_err(NotDone::from);
    or_no_fence(done, loaded, &which)
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
    let body = |loaded: Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let which = unsafe { which(fence) }?;
        let mut closed: Vec<Seen> = Vec::new();
        let (mut unseen, mut failures) = (Vec::new(), Vec::new());
        for one in life::close(&usable(&loaded)?.config, &which)? {
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
    unsafe {
        clear([text, json]);
        call_with("jobfence_close", config, body)
    }
}

/// `jobfence_reap`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jobfence_reap(config: *const c_char, patience_ms: u32, reaped: *mut CReaped) -> c_int {
    let body = |loaded: Result<Loaded, LoadError>| {
        // SAFETY: as this function's own contract.
        let size = unsafe { read(reaped, "jobfence_reaped") }?.map(|given| given.size);
        if patience_ms > MOST_PATIENCE {
            return Err(usage(format!("patience_ms must be 0 to {MOST_PATIENCE}, and not {patience_ms}")));
        }
        let patience = if patience_ms == 0 { janitor::PATIENCE } else { Duration::from_millis(patience_ms.into()) };
        let config = &usable(&loaded)?.config;
        let (host, no_cgroups) = Host::read_what_there_is(config)?;
        let done = janitor::reap(&host, config, ALL, Who::Daemon, Instant::now() + patience)?;
        done.log();
        if let Some(size) = size {
            let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            let (removed, failed) = (count(done.removed.len()), count(done.failed.len()));
            let counted = CReaped { size, removed, alive: count(done.alive), busy: count(done.busy), failed };
            let bytes = (&raw const counted).cast::<u8>();
            // SAFETY: below the size of both. There are as many bytes as the caller's first member says.
            unsafe { bytes.copy_to_nonoverlapping(reaped.cast::<u8>(), size.min(size_of::<CReaped>())) };
        }
        let failures: Vec<String> = no_cgroups.iter().map(ToString::to_string).chain(done.failed).collect();
        if failures.is_empty() { Ok(()) } else { Err(NotDone(AbiCode::System, failures.join("\n"))) }
    };
    // SAFETY: as this function's own contract.
    unsafe { call_with("jobfence_reap", config, body) }
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

/// Whether no other door's log was there first.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// The log of a program that has none of its own that we know.
struct CallersLog;

impl Log for CallersLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Not under the lock: the function may take as long as it wants, and set another one.
        let Some(target) = CALLERS.lock().ok().and_then(|callers| *callers) else { return };
        let line: String = record.args().to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: a C string of this thread's.
        unsafe { CStr::from_ptr(jobfence_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_number_and_a_sentence() {
        assert_eq!(call("test", || panic!("on purpose")), AbiCode::Internal as c_int);
        assert!(last().contains("test did not finish"), "{}", last());
        assert_eq!(call("test", || Ok(())), 0);
        assert_eq!(last(), "");
    }

    #[test]
    fn a_long_error_is_cut_between_two_characters() {
        remember(&"ä".repeat(LONGEST));
        assert_eq!(last(), "ä".repeat(LONGEST / 2 - 1));
        remember("a\0b");
        assert_eq!(last(), "a b");
    }

    #[test]
    fn all_that_can_be_asked_for_can_be_asked_for_here() {
        // SAFETY: zero is a value of each member.
        let grant: CGrant = unsafe { MaybeUninit::zeroed().assume_init() };
        let names: Vec<&str> = REQUESTS.iter().map(|request| request.name).collect();
        assert_eq!(asked(&grant).map(|(name, _)| name).as_slice(), names);
    }
}
