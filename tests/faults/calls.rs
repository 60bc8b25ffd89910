// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls: their names, and how each of them can fail.

use libc::c_long;
use nix::errno::Errno;

/// A system call that jobfence makes.
pub struct Call {
    pub number: c_long,
    pub name: &'static str,
    /// What it may answer on a host that has run out of something, is busy, or has a filter for calls.
    pub errors: &'static [Errno],
    /// Whether others see that it was made: a death before it and one after it are not the same. Locks and files go with the
    /// process.
    pub changes: bool,
}

/// How often a call is made depends on the allocator, which asks for memory when it has none: these are not counted. Failing they
/// would end the process, as everywhere in Rust.
const NOT_COUNTED: [c_long; 7] = [
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // Nothing comes after it.
    libc::SYS_exit_group,
];

/// Whether a call about this would lie with this answer, as no kernel does. Whoever believes it is right to do so.
pub fn lies(number: c_long, path: &str, errno: Errno, begins: bool) -> bool {
    let path = path.trim_end_matches(')');
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_ours = ["jobfence-test-", "uid_", "job_", "step_", "task_"].iter().any(|begin| name.starts_with(begin));
    let is_kernels = path.contains("/sys/") || path.contains("/proc/");
    match (number, errno) {
        // It is there, and only its owner or the janitor, who asks, takes it away. At a step's beginning others do.
        (libc::SYS_openat, ENOENT) if is_ours => !begins,
        // For the C library that is the end of a directory which somebody has removed.
        (libc::SYS_getdents64, ENOENT) => true,
        // Then the kernel keeps no account of swap, and needs no limit.
        (libc::SYS_openat, ENOENT) => name.starts_with("memory.memsw."),
        // Somebody is in it, who will remove it himself.
        (libc::SYS_unlinkat, EBUSY | ENOTEMPTY) => name.starts_with("job_") || name.starts_with("uid_"),
        // Files that are not the kernel's have a device, and can be read.
        (libc::SYS_openat | libc::SYS_pread64 | libc::SYS_read | libc::SYS_write, ENODEV | EOPNOTSUPP) => !is_kernels,
        // Another janitor does what this one would have done.
        (libc::SYS_flock, EAGAIN) => name == "run",
        _ => false,
    }
}

/// The same where the scheduler has directories of its own: the janitor takes these for gone, since Slurm removes them, too.
pub fn lies_in_theirs(number: c_long, path: &str, errno: Errno, begins: bool) -> bool {
    let name = path.trim_end_matches(')').trim_end_matches("/.").trim_end_matches('/').rsplit('/').next();
    let is_directory = name.is_some_and(|name| !name.contains('.') || name.ends_with(".scope"));
    match (number, errno) {
        (libc::SYS_openat | libc::SYS_newfstatat, ENOENT | ENODEV) if is_theirs(path) && is_directory => !begins,
        // Where directories can have a mark, each of them can.
        (libc::SYS_fgetxattr, EOPNOTSUPP) => !begins,
        _ => lies(number, path, errno, begins),
    }
}

/// Whether a call is about what Slurm has made.
pub fn is_theirs(path: &str) -> bool {
    path.contains("/slurm_") || path.contains("_slurmstepd.scope")
}

/// Those that stand in no row are not expected: a test that meets one says so.
pub fn find(number: c_long) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.number == number)
}

/// Whether it is one of those that are counted.
pub fn counts(number: c_long) -> bool {
    !NOT_COUNTED.contains(&number)
}

const fn call(number: c_long, name: &'static str, errors: &'static [Errno]) -> Call {
    Call { number, name, errors, changes: false }
}

const fn change(number: c_long, name: &'static str, errors: &'static [Errno]) -> Call {
    Call { number, name, errors, changes: true }
}

use Errno::{
    EACCES, EAGAIN, EBUSY, ECONNREFUSED, EEXIST, EFAULT, EINTR, EINVAL, EIO, EMFILE, ENFILE, ENODEV, ENOENT, ENOLCK,
    ENOMEM, ENOSPC, ENOSYS, ENOTEMPTY, EOPNOTSUPP, EPERM, EROFS, ESRCH,
};

/// The first of each are those that are most often met.
static CALLS: &[Call] = &[
    call(libc::SYS_openat, "openat", &[EMFILE, ENOENT, EACCES, EINTR, ENOMEM, ENODEV, ENFILE, EIO, EPERM]),
    call(libc::SYS_open, "open", &[EMFILE, ENOENT, EACCES, EINTR, ENOMEM, ENODEV, ENFILE, EIO, EPERM]),
    change(libc::SYS_mkdirat, "mkdirat", &[ENOSPC, EEXIST, ENOENT, EACCES, EROFS, ENOMEM, EAGAIN, EPERM, EIO]),
    change(
        libc::SYS_write,
        "write",
        &[EBUSY, EINVAL, EINTR, ENODEV, ENOSPC, EIO, EPERM, ENOMEM, EACCES, EOPNOTSUPP, EAGAIN],
    ),
    change(libc::SYS_pwrite64, "pwrite64", &[ENOSPC, EIO, EINTR]),
    change(libc::SYS_linkat, "linkat", &[ENOSPC, EEXIST, ENOENT, EPERM, EROFS, EIO, ENOMEM, EACCES]),
    change(libc::SYS_renameat, "renameat", &[ENOSPC, ENOENT, EPERM, EROFS, EIO, ENOMEM, EACCES]),
    change(libc::SYS_unlinkat, "unlinkat", &[EBUSY, ENOTEMPTY, EPERM, EROFS, EIO, EACCES, ENOMEM]),
    change(libc::SYS_kill, "kill", &[EPERM, ESRCH]),
    change(libc::SYS_pidfd_send_signal, "pidfd_send_signal", &[EPERM, ESRCH, ENOSYS]),
    call(libc::SYS_flock, "flock", &[EAGAIN, EINTR, ENOLCK]),
    change(libc::SYS_sched_setaffinity, "sched_setaffinity", &[EPERM, ESRCH, EINVAL]),
    call(libc::SYS_close, "close", &[EIO, EINTR]),
    change(libc::SYS_bpf, "bpf", &[EPERM, ENOMEM, EINVAL, EBUSY, ENOSYS]),
    call(libc::SYS_read, "read", &[EIO, EINTR, ENODEV, ENOMEM, EOPNOTSUPP, EINVAL]),
    call(libc::SYS_pread64, "pread64", &[EIO, EINTR, ENODEV, ENOMEM, EOPNOTSUPP, EINVAL]),
    call(libc::SYS_getdents64, "getdents64", &[EIO, ENOENT, EINTR, ENOMEM]),
    call(libc::SYS_newfstatat, "newfstatat", &[ENOENT, EACCES, ENOMEM, EIO]),
    call(libc::SYS_statx, "statx", &[ENOENT, EACCES, ENOMEM, ENOSYS]),
    call(libc::SYS_fstat, "fstat", &[EIO, ENOMEM]),
    call(libc::SYS_fstatfs, "fstatfs", &[EIO, EINTR, ENOMEM]),
    call(libc::SYS_readlinkat, "readlinkat", &[EACCES, ENOENT, EIO, ENOMEM]),
    call(libc::SYS_getxattr, "getxattr", &[EOPNOTSUPP, EPERM, EIO]),
    // By which an environment is read, where somebody is beside Slurm's daemons.
    call(libc::SYS_pipe2, "pipe2", &[EMFILE, ENFILE]),
    change(libc::SYS_clone, "clone", &[EAGAIN, ENOMEM]),
    call(libc::SYS_wait4, "wait4", &[EINTR]),
    call(libc::SYS_fgetxattr, "fgetxattr", &[EOPNOTSUPP, EPERM, EIO, ENOMEM]),
    call(libc::SYS_fsetxattr, "fsetxattr", &[EOPNOTSUPP, ENOSPC, EPERM, ENOMEM]),
    // By which 'jobfence hold' is told of a launch: nobody waits for an answer.
    call(libc::SYS_socket, "socket", &[EMFILE, ENFILE, ENOMEM, EACCES]),
    call(libc::SYS_ioctl, "ioctl", &[EINVAL]),
    call(libc::SYS_connect, "connect", &[EAGAIN, ECONNREFUSED, ENOENT, EACCES]),
    call(libc::SYS_sendto, "sendto", &[EAGAIN, ENOMEM, EACCES, EPERM]),
    call(libc::SYS_poll, "poll", &[EINTR, ENOMEM, EINVAL]),
    call(libc::SYS_ppoll, "ppoll", &[EINTR, ENOMEM, EINVAL]),
    call(libc::SYS_lseek, "lseek", &[EINVAL]),
    call(libc::SYS_pidfd_open, "pidfd_open", &[EMFILE, ENOMEM, EPERM, ENOSYS, ENODEV]),
    call(libc::SYS_sched_getaffinity, "sched_getaffinity", &[EPERM, ESRCH, EINVAL]),
    call(libc::SYS_syslog, "syslog", &[EPERM]),
    call(libc::SYS_uname, "uname", &[EFAULT]),
    call(libc::SYS_fcntl, "fcntl", &[EINVAL, EMFILE]),
    // The process's own: how long it waits, and how often, differs by the machine's speed.
    call(libc::SYS_clock_nanosleep, "clock_nanosleep", &[EINTR]),
    call(libc::SYS_futex, "futex", &[EAGAIN, EINTR]),
    call(libc::SYS_rt_sigprocmask, "rt_sigprocmask", &[]),
    call(libc::SYS_prctl, "prctl", &[EINVAL, EPERM]),
    // They do not fail.
    call(libc::SYS_getpid, "getpid", &[]),
    call(libc::SYS_getuid, "getuid", &[]),
    call(libc::SYS_geteuid, "geteuid", &[]),
    call(libc::SYS_sched_yield, "sched_yield", &[]),
    call(libc::SYS_sigaltstack, "sigaltstack", &[]),
];
