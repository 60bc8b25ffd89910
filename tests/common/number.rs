// SPDX-License-Identifier: GPL-2.0-or-later
//! Another process under the number of one that has ended.

/// Starts a program under this number, as this user, and waits for it. `None`: the kernel gives nobody the number (clone3(2), `set_tid`).
pub fn start_under(pid: i32, uid: u32, seconds: &std::ffi::CStr) -> Option<i32> {
    #[repr(C)]
    #[derive(Default)]
    struct CloneArguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
    }
    let number = pid;
    let exit_signal = u64::try_from(libc::SIGCHLD).unwrap();
    let arguments =
        CloneArguments { exit_signal, set_tid: (&raw const number) as u64, set_tid_size: 1, ..Default::default() };
    let words = [c"/bin/sleep".as_ptr(), seconds.as_ptr(), std::ptr::null()];
    // SAFETY: as fork(2); the child calls nothing but system calls before its exec, with what was made before.
    unsafe {
        let started = libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>());
        if started == 0 {
            libc::syscall(libc::SYS_setuid, uid);
            libc::execv(words[0], words.as_ptr());
            libc::_exit(1);
        }
        i32::try_from(started).ok().filter(|started| *started > 0)
    }
}
