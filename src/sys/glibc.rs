// SPDX-License-Identifier: GPL-2.0-or-later
//! Functions that std or the dependencies call, and that glibc 2.28 (RHEL 8) lacks.
//!
//! A linker gives each function the newest version that the build host's glibc has of it, and the file then does not load with an older
//! glibc. So these are defined here, hidden, for all of the code that is linked with this file, std's too. Functions that 2.28 has
//! elsewhere are in build.rs; the beginning of a program is in `src/command/start.rs`.
//!
//! `tests/shared_object.rs` and `tests/install.sh` fail when a toolchain needs another function, and name it. Other processors than
//! these two have other names, and get what the build host has.

use std::arch::global_asm;
use std::ffi::{c_char, c_int, c_long};

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Defines names that the linker takes for all references in the file, and that are hidden outside of it. Each is in a section of its
/// own, which is dropped if nothing refers to it.
macro_rules! define {
    ($binding:literal: $($name:literal = $function:ident),*) => { $(
        global_asm!(
            concat!(".pushsection .text.jobfence.", $name, ",\"ax\",%progbits"),
            concat!(".", $binding, " ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            jump!(),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );
    )* };
}
pub(super) use {define, jump};

// Until 2.33 these were inline functions around __xstat and the like.
define!("globl": "stat" = stat, "stat64" = stat, "lstat" = lstat, "lstat64" = lstat, "fstat" = fstat, "fstat64" = fstat);
define!("globl": "fstatat" = fstatat, "fstatat64" = fstatat);
// Since 2.30; std refers to it weakly, and does without.
define!("weak": "gettid" = gettid);
// Since 2.29; std calls it for a command with a directory of its own, which no command of jobfence's has.
define!("weak": "posix_spawn_file_actions_addchdir_np" = no_directory);

/// As the kernel has it, which is as glibc has it on 64-bit processors.
type Stat = libc::stat64;

/// # Safety
/// As stat(2): a NUL-terminated path, and room for one answer.
unsafe extern "C" fn stat(path: *const c_char, stat: *mut Stat) -> c_int {
    // SAFETY: as for this function: a NUL-terminated path and room for the answer.
    unsafe { fstatat(libc::AT_FDCWD, path, stat, 0) }
}

/// # Safety
/// As lstat(2): a NUL-terminated path, and room for one answer.
unsafe extern "C" fn lstat(path: *const c_char, stat: *mut Stat) -> c_int {
    // SAFETY: as for this function: a NUL-terminated path and room for the answer.
    unsafe { fstatat(libc::AT_FDCWD, path, stat, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
/// As fstat(2): room for one answer.
unsafe extern "C" fn fstat(fd: c_int, stat: *mut Stat) -> c_int {
    // SAFETY: as for this function: room for the answer.
    answer(unsafe { libc::syscall(libc::SYS_fstat, fd, stat) })
}

/// # Safety
/// As fstatat(2): a NUL-terminated path, and room for one answer.
unsafe extern "C" fn fstatat(dir: c_int, path: *const c_char, stat: *mut Stat, flags: c_int) -> c_int {
    // SAFETY: as for this function: a NUL-terminated path and room for the answer.
    answer(unsafe { libc::syscall(libc::SYS_newfstatat, dir, path, stat, flags) })
}

extern "C" fn gettid() -> libc::pid_t {
    // SAFETY: it takes nothing and cannot fail.
    answer(unsafe { libc::syscall(libc::SYS_gettid) })
}

/// Refuses, as posix_spawn's functions do: by an error number.
extern "C" fn no_directory(_actions: *mut libc::posix_spawn_file_actions_t, _path: *const c_char) -> c_int {
    libc::ENOSYS
}

/// `syscall` has set errno.
fn answer(answer: c_long) -> c_int {
    answer.try_into().unwrap_or(-1)
}

/// GNU ld drops a library that nothing before it has referred to, and std comes after build.rs's libpthread.
#[used]
static LIBPTHREAD: unsafe extern "C" fn(libc::pthread_key_t) -> c_int = libc::pthread_key_delete;
