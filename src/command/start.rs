// SPDX-License-Identifier: GPL-2.0-or-later
//! The start of a program in the form for glibc 2.28: see `src/glibc.rs` of the library.
//!
//! Since 2.34 `__libc_start_main` itself calls a program's constructors; before, it calls a function that the program passes. So this
//! module passes a function with which both versions of `__libc_start_main` work.

use std::arch::global_asm;
use std::ffi::{c_char, c_int};

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl __libc_start_main",
    ".hidden __libc_start_main",
    ".type __libc_start_main, @function",
    "__libc_start_main:",
    "test %rcx, %rcx", // where the build host's glibc is old, there is a function already
    "jne 1f",
    "lea {constructors}(%rip), %rcx",
    "1: jmp *jobfence.start@GOTPCREL(%rip)",
    ".size __libc_start_main, . - __libc_start_main",
    ".symver jobfence.start, __libc_start_main@GLIBC_2.2.5",
    constructors = sym constructors,
    options(att_syntax)
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl __libc_start_main",
    ".hidden __libc_start_main",
    ".type __libc_start_main, %function",
    "__libc_start_main:",
    "cbnz x3, 1f", // where the build host's glibc is old, there is a function already
    "adrp x3, {constructors}",
    "add x3, x3, :lo12:{constructors}",
    "1: adrp x16, :got:jobfence.start",
    "ldr x16, [x16, :got_lo12:jobfence.start]",
    "br x16",
    ".size __libc_start_main, . - __libc_start_main",
    ".symver jobfence.start, __libc_start_main@GLIBC_2.17",
    constructors = sym constructors,
);

type Constructor = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

// SAFETY: the linker defines both, at the two ends of the list of constructors; only their addresses are used.
unsafe extern "C" {
    static __init_array_start: [Constructor; 0];
    static __init_array_end: [Constructor; 0];
}

/// # Safety
/// To be called once, before `main` and with its arguments.
unsafe extern "C" fn constructors(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    let mut next = (&raw const __init_array_start).cast::<Constructor>();
    let end = (&raw const __init_array_end).cast::<Constructor>();
    while next < end {
        // The C library passes these arguments to constructors before `main`; this does the same in its place.
        // SAFETY: between these two the linker has put pointers to functions of this type.
        unsafe {
            (*next)(argc, argv, envp);
            next = next.add(1);
        }
    }
}
