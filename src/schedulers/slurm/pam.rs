// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for PAM: `session required /usr/lib/slurm/libjobfence.so` puts a session into its user's job as `jobfence adopt` does.
//!
//! pam_exec(8) would start a root program with PAM's environment, and a user can put variables there that the dynamic linker obeys
//! (pam_env(8) with `user_readenv=1`, at any place in the stack). Here no program is started and no environment is read. The functions of
//! libpam are those of the library that loaded this module; see pam(3).
//!
//! The same line may be in a stack twice. Before pam_systemd it records where the process is, in PAM's data for this session. Behind
//! pam_systemd it puts a session that comes from a job back into it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use ::log::{Level, LevelFilter, Log, Metadata, Record};
use libloading::os::unix::Library;

use crate::cgroup::membership::Membership;
use crate::config;
use crate::launch::Answer;
use crate::log;
use crate::printable::printable;
use crate::schedulers::slurm::adopt::{self, AdoptRequest, Pam};
use crate::schedulers::slurm::spank::api::arguments;
use crate::sys::dir::Dir;
use crate::sys::guard::guard;

/// Return codes for libpam; numbers of `security/_pam_types.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Code {
    Success = 0,
    SessionErr = 14,
}

/// The caller wants no messages.
const PAM_SILENT: c_int = 0x8000;
/// The item with the user's name.
const PAM_USER: c_int = 2;
/// The style of an error message.
const PAM_ERROR_MSG: c_int = 3;

/// The argument for a line that puts only sessions from a job back into it, and no others into a job.
const STAY: &[u8] = b"stay";
/// The name under which PAM keeps where the process was.
const BEGAN: &CStr = c"jobfence_began";

/// libpam's handle of a session, valid during one call.
type PamHandle = *mut c_void;
type GetItem = unsafe extern "C" fn(PamHandle, c_int, *mut *const c_void) -> c_int;
type GetData = unsafe extern "C" fn(PamHandle, *const c_char, *mut *const c_void) -> c_int;
type Cleanup = extern "C" fn(PamHandle, *mut c_void, c_int);
type SetData = unsafe extern "C" fn(PamHandle, *const c_char, *mut c_void, Cleanup) -> c_int;
type Prompt = unsafe extern "C" fn(PamHandle, c_int, *mut *mut c_char, *const c_char, ...) -> c_int;

/// Called when a session is opened, in the process from which all of it descends. The arguments are the same as in plugstack.conf.
///
/// # Safety
/// For libpam only: `pam` must be the handle of this call, and `av` have `ac` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_open_session(pam: PamHandle, flags: c_int, ac: c_int, av: *mut *mut c_char) -> c_int {
    install_log();
    let code = guard("pam_sm_open_session", || {
        // SAFETY: as this function's own contract.
        let arguments = unsafe { arguments(ac, av) };
        // SAFETY: as this function's own contract.
        match unsafe { user(pam) } {
            Ok(user) => {
                // SAFETY: as this function's own contract.
                let began = unsafe { began(pam) };
                // Not fatal for the login: the session's ancestors show where it began, too.
                let began = began.inspect_err(|why| log::warn!("cannot keep where a session began: {why}")).ok();
                open(&user, began, &arguments, |sentence| {
                    if flags & PAM_SILENT == 0 {
                        // SAFETY: as this function's own contract.
                        unsafe { tell(pam, sentence) };
                    }
                })
            }
            Err(why) => {
                log::error!("a session is denied: {why}");
                Code::SessionErr
            }
        }
    });
    code.unwrap_or(Code::SessionErr) as c_int
}

/// Called when a session is closed. Its processes may go on, and end with the job.
#[unsafe(no_mangle)]
pub extern "C" fn pam_sm_close_session(_pam: PamHandle, _flags: c_int, _ac: c_int, _av: *mut *mut c_char) -> c_int {
    Code::Success as c_int
}

fn open(user: &str, began: Option<Membership>, arguments: &[&[u8]], tell: impl Fn(&str)) -> Code {
    let pid = std::process::id().cast_signed();
    let pam = Pam { kind: "open_session".to_owned(), user: user.to_owned(), caller: pid };
    let stay = arguments.iter().position(|argument| *argument == STAY);
    let request = AdoptRequest { pid: Some(pid), pam: Some(pam), began, stays: stay.is_some(), ..Default::default() };
    let mut arguments = arguments.to_vec();
    arguments.retain(|argument| *argument != STAY);
    let as_given = |number: usize| number + usize::from(stay.is_some_and(|stay| stay < number));
    let loaded = config::load_named(&arguments, &|number| format!("PAM argument {}", as_given(number)));
    match adopt::answer(loaded, &request) {
        Answer::Off | Answer::Fenced(_) => Code::Success,
        Answer::Unfenced { why, by, .. } => {
            let sentence = adopt::goes_on_without(&why, by);
            log::warn!("session of {user}: {sentence}");
            tell(&sentence);
            Code::Success
        }
        Answer::Refused(why) => {
            log::error!("session of {user} is denied: {why}");
            tell(&why.to_string());
            Code::SessionErr
        }
    }
}

/// The library that called; its symbols need not be visible to the whole program.
fn libpam() -> Result<Library, String> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: it is loaded already, so that none of its code runs now.
    unsafe { Library::open(Some("libpam.so.0"), flags) }
        .map_err(|error| format!("this is no program of libpam's: {error}"))
}

/// The user of the session.
///
/// # Safety
/// `pam` must be libpam's handle of this call.
unsafe fn user(pam: PamHandle) -> Result<String, String> {
    let libpam = libpam()?;
    // SAFETY: the declaration is that of security/_pam_types.h.
    let get_item = unsafe { libpam.get::<GetItem>(b"pam_get_item\0") }.map_err(|error| error.to_string())?;
    let mut item = std::ptr::null();
    // SAFETY: a handle of this call, an item, and a pointer to a pointer.
    let code = unsafe { get_item(pam, PAM_USER, &raw mut item) };
    if code != Code::Success as c_int || item.is_null() {
        return Err(format!("PAM names no user (error {code})"));
    }
    // SAFETY: this item is a NUL-terminated string of libpam's, which lives as long as the session.
    let user = unsafe { CStr::from_ptr(item.cast()) };
    user.to_str().map(str::to_owned).map_err(|_| "the user's name is not UTF-8".to_owned())
}

/// Where this process was at PAM's first call for this session.
///
/// # Safety
/// `pam` must be libpam's handle of this call.
unsafe fn began(pam: PamHandle) -> Result<Membership, String> {
    let libpam = libpam()?;
    // SAFETY: the declarations are those of security/pam_modules.h.
    let get_data = unsafe { libpam.get::<GetData>(b"pam_get_data\0") }.map_err(|error| error.to_string())?;
    // SAFETY: likewise.
    let set_data = unsafe { libpam.get::<SetData>(b"pam_set_data\0") }.map_err(|error| error.to_string())?;
    let mut noted = std::ptr::null();
    // SAFETY: a handle of this call, a name, and a pointer to a pointer.
    let code = unsafe { get_data(pam, BEGAN.as_ptr(), &raw mut noted) };
    if code == Code::Success as c_int && !noted.is_null() {
        // SAFETY: nothing else is kept by this name than what is made below, and it lives until `forget` is called.
        return Ok(unsafe { &*noted.cast::<Membership>() }.clone());
    }
    let now = Dir::open("/proc").and_then(|proc| Membership::read(&proc, std::process::id().cast_signed()));
    let now = now.map_err(|error| error.to_string())?;
    let kept = Box::into_raw(Box::new(now.clone())).cast();
    // SAFETY: a handle of this call, a name, and what `forget` takes.
    match unsafe { set_data(pam, BEGAN.as_ptr(), kept, forget) } {
        code if code == Code::Success as c_int => Ok(now),
        code => {
            forget(pam, kept, code);
            Err(format!("PAM does not keep where the session began (error {code})"))
        }
    }
}

/// libpam frees what it kept: at the session's end, or when it is replaced.
extern "C" fn forget(_pam: PamHandle, kept: *mut c_void, _code: c_int) {
    if !kept.is_null() {
        // SAFETY: it is the box of `began`, and each is given back once.
        drop(unsafe { Box::from_raw(kept.cast::<Membership>()) });
    }
}

/// Shows the sentence to the user who opens the session.
///
/// # Safety
/// `pam` must be libpam's handle of this call.
unsafe fn tell(pam: PamHandle, sentence: &str) {
    let (Ok(libpam), Some(text)) = (libpam(), c_string(&format!("jobfence: {sentence}"))) else { return };
    // SAFETY: the declaration is that of security/pam_ext.h.
    let Ok(prompt) = (unsafe { libpam.get::<Prompt>(b"pam_prompt\0") }) else { return };
    // SAFETY: a handle of this call, no room for an answer (a message has none), a format of one %s, and one C string.
    let _ = unsafe { prompt(pam, PAM_ERROR_MSG, std::ptr::null_mut(), c"%s".as_ptr(), text.as_ptr()) };
}

/// The log of PAM's modules.
struct Syslog;

impl Log for Syslog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let priority = if record.level() == Level::Error { libc::LOG_ERR } else { libc::LOG_WARNING };
        if let Some(text) = c_string(&format!("jobfence: {}", record.args())) {
            // SAFETY: a format of one %s and one NUL-terminated string.
            unsafe { libc::syslog(libc::LOG_AUTHPRIV | priority, c"%s".as_ptr(), text.as_ptr()) };
        }
    }

    fn flush(&self) {}
}

/// May be called again. A Slurm program that opens PAM sessions already has its own logger.
fn install_log() {
    if ::log::set_logger(&Syslog).is_ok() {
        ::log::set_max_level(LevelFilter::Warn);
    }
}

/// One line, for terminals and logs.
fn c_string(text: &str) -> Option<CString> {
    CString::new(printable(text, ' ')).ok()
}
