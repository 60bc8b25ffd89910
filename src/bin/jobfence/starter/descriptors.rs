// SPDX-License-Identifier: GPL-2.0-or-later
//! What the programs that the door starts do not get: the starter's sockets. The processes at their other ends must see when the starter is
//! gone.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// In a child, before its exec: the program has none of the descriptors beside the first three.
pub fn leave_descriptors() {
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let listed = std::fs::read_dir("/proc/self/fd").map(|all| all.filter_map(number).collect::<Vec<i32>>());
    for fd in listed.unwrap_or_else(|_| (3..1024).collect()).into_iter().filter(|fd| *fd > 2) {
        // SAFETY: fcntl takes a number, whether or not it is a descriptor, and closes nothing now.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// The same of a command.
pub fn leave_inherited(command: &mut Command) {
    let leave = || {
        leave_descriptors();
        Ok(())
    };
    // SAFETY: this process has one thread, so the child may do what it likes until its exec.
    unsafe { command.pre_exec(leave) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_command_has_none_of_the_descriptors_of_this_process() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor is that of the file.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut command = Command::new("test");
        command.args(["-e", &place]);
        assert!(command.status().unwrap().success());
        leave_inherited(&mut command);
        assert!(!command.status().unwrap().success());
    }
}
