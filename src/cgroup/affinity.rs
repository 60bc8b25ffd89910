// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps the CPUs that a process may run on while the process is moved.
//!
//! Slurm binds a task to its CPUs (task/affinity) just before it calls plugins for it. If the old and the new cgroup have different
//! cpuset directories, kernels before 6.2 drop that binding in the move (`cpuset_attach`, kernel/cgroup/cpuset.c).

use nix::errno::Errno;

/// A set of CPUs as the kernel has it: one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity(Vec<u64>);

impl Affinity {
    /// The CPUs of a process; `None` if they cannot be read.
    pub fn from_pid(pid: i32) -> Option<Self> {
        // The kernel refuses a buffer that is shorter than its own set.
        let mut words = vec![0u64; 16];
        loop {
            let bytes = words.len() * size_of::<u64>();
            // SAFETY: the buffer has as many bytes as are said, and the kernel writes no more.
            let n = unsafe { libc::syscall(libc::SYS_sched_getaffinity, pid, bytes, words.as_mut_ptr()) };
            match usize::try_from(n) {
                Ok(n) => {
                    words.truncate(n.div_ceil(size_of::<u64>()));
                    return Some(Self(words));
                }
                Err(_) if Errno::last() == Errno::EINVAL && words.len() < 1024 => words.resize(words.len() * 2, 0),
                Err(_) => return None,
            }
        }
    }

    /// How many CPUs it has.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Sets it for a process.
    pub fn set(&self, pid: i32) -> Result<(), Errno> {
        let bytes = self.0.len() * size_of::<u64>();
        // SAFETY: the buffer has as many bytes as are said, and the kernel only reads it.
        let done = unsafe { libc::syscall(libc::SYS_sched_setaffinity, pid, bytes, self.0.as_ptr()) };
        if done == 0 { Ok(()) } else { Err(Errno::last()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_can_be_set() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let all = Affinity::from_pid(pid).unwrap();
        let first = all.0.iter().position(|word| *word != 0).unwrap();
        let mut one = all.clone();
        one.0.iter_mut().for_each(|word| *word = 0);
        one.0[first] = all.0[first] & all.0[first].wrapping_neg();
        one.set(pid).unwrap();
        assert_eq!(Affinity::from_pid(pid), Some(one));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Affinity::from_pid(i32::MAX), None);
    }
}
