// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads the unwinder only when it is needed, which is at a panic. Loading it at each launch cost a third of the time that this file
//! takes to load.
//!
//! The loader looks for it as at the start of the process: variables that a user has set since do not count. In a task that another
//! plugin has put into a container it may find the container's, but the task runs as its user by then.
//!
//! The standard library refers to functions of libgcc_s.so.1. Here each has a stand-in of the same name, hidden from other files. It
//! loads the library when it is called first, and calls the function there. Signatures are those of the C++ ABI for Itanium, level 1
//! (Exception Handling), and of gcc's unwind.h.

use std::arch::global_asm;
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::glibc::{define, jump};

const LIBRARY: &CStr = c"libgcc_s.so.1";

/// The value of `_Unwind_Reason_Code` for "no frame was unwound". The standard library then says so, and ends the process.
const FATAL_PHASE1_ERROR: c_int = 3;

/// A function of the unwinder's.
struct Late {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Late {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; null if the host has no unwinder. The library is never closed: its functions may be on the stack.
    fn find(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: names that end with NUL, and a handle that stays open. Two threads may do this at once, and find the same.
            unsafe {
                let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW);
                if !library.is_null() {
                    found = libc::dlsym(library, self.name.as_ptr());
                }
            }
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// Each function's name, its arguments, and what is done on a host without an unwinder.
macro_rules! stand_ins {
    ($($name:ident = $symbol:literal, ($($argument:ident: $type:ty),*) $(-> $answer:ty)?, else $without:expr;)*) => { $(
        /// # Safety
        /// As the function of this name that it calls.
        unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $answer)? {
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            static FUNCTION: Late = Late::new(NAME);
            let found = FUNCTION.find();
            if found.is_null() {
                $without
            } else {
                // SAFETY: the unwinder's function of this name, which has this signature.
                let function: unsafe extern "C-unwind" fn($($type),*) $(-> $answer)? = unsafe { transmute(found) };
                // SAFETY: as this function's own contract.
                unsafe { function($($argument),*) }
            }
        }

        define!("globl": $symbol = $name);
    )* };
}

type RaisedException = *mut c_void;
type FrameContext = *mut c_void;
/// What is called for each frame of a backtrace.
type FrameVisitor = extern "C" fn(FrameContext, *mut c_void) -> c_int;

stand_ins! {
    raise_exception = "_Unwind_RaiseException", (exception: RaisedException) -> c_int, else FATAL_PHASE1_ERROR;
    backtrace = "_Unwind_Backtrace", (trace: FrameVisitor, data: *mut c_void) -> c_int, else FATAL_PHASE1_ERROR;
    // Without an unwinder no exception is raised, so none of the rest is called.
    resume = "_Unwind_Resume", (exception: RaisedException) -> !, else std::process::abort();
    delete_exception = "_Unwind_DeleteException", (exception: RaisedException), else ();
    language_specific_data = "_Unwind_GetLanguageSpecificData", (context: FrameContext) -> *mut c_void, else null_mut();
    region_start = "_Unwind_GetRegionStart", (context: FrameContext) -> usize, else 0;
    text_base = "_Unwind_GetTextRelBase", (context: FrameContext) -> usize, else 0;
    data_base = "_Unwind_GetDataRelBase", (context: FrameContext) -> usize, else 0;
    ip = "_Unwind_GetIP", (context: FrameContext) -> usize, else 0;
    ip_info = "_Unwind_GetIPInfo", (context: FrameContext, is_before: *mut c_int) -> usize, else 0;
    set_register = "_Unwind_SetGR", (context: FrameContext, register: c_int, value: usize), else ();
    set_ip = "_Unwind_SetIP", (context: FrameContext, ip: usize), else ();
}
