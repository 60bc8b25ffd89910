// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds which process the kernel OOM-killed, and at whose limit: only the kernel's log says so.
//!
//! The line is written by `mem_cgroup_print_oom_context` (mm/memcontrol.c, Linux 5.0 and later):
//! `oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/limit/at,task_memcg=/task/in,task=NAME,pid=N,uid=N`.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{Whence, lseek, read};

use crate::error::{Error, Result};
use crate::printable::is_printable;
use crate::sys::dir::Dir;

/// The kernel's log from some record on; see dev-kmsg in the kernel's ABI documents.
#[derive(Debug)]
pub struct KernelLog {
    fd: OwnedFd,
    /// Records before this one are skipped.
    from: Sequence,
}

/// The number of a record. The kernel counts them from its boot on, and gives none twice.
pub type Sequence = u64;

/// The ring holds fewer records than this bound.
const MOST_RECORDS: usize = 100_000;

/// One kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup whose limit was reached, or `None` when the whole machine was out of memory.
    pub limit_at: Option<String>,
    /// The NUMA nodes that were full, if not the whole machine was: those to which a cpuset or a memory policy binds processes.
    pub full: Option<String>,
    /// The cgroup in which the process was.
    pub task_in: String,
    /// The process's name, made printable.
    pub name: String,
    /// The process.
    pub pid: u32,
    /// The page cache of files in use at that limit, in bytes, without shared memory. The kernel takes such pages back before it kills.
    /// `None`: the kernel does not say.
    pub cached: Option<u64>,
    /// The huge pages in use at that limit, in bytes; `None`: they do not count there, or the kernel does not say.
    pub huge: Option<u64>,
}

/// What the kernel says of the memory at a limit, just before it says which process it kills there.
///
/// Since Linux 5.3 it writes `Memory cgroup stats for PATH:`, and then a line for each figure, as in `memory.stat`. The form of earlier
/// kernels is not read.
#[derive(Debug, Default)]
struct Stats {
    file: Option<u64>,
    shared: Option<u64>,
    huge: Option<u64>,
}

impl Stats {
    fn note(&mut self, record: &str) {
        let Some(message) = kernels_message(record) else { return };
        // The kernel writes a newline inside a record so.
        for line in message.split("\\x0a") {
            if line.starts_with("Memory cgroup stats for ") {
                *self = Self::default();
            } else if let Some((key, value)) = line.split_once(' ') {
                // v1 writes the cgroup's own figures first, and then those with all below.
                match key {
                    "file" | "total_cache" => self.file = value.trim().parse().ok(),
                    "shmem" if self.shared.is_none() => self.shared = value.trim().parse().ok(),
                    "hugetlb" => self.huge = value.trim().parse().ok(),
                    "total_shmem" => self.shared = value.trim().parse().ok(),
                    _ => {}
                }
            }
        }
    }

    fn cached(&self) -> Option<u64> {
        Some(self.file?.saturating_sub(self.shared?))
    }
}

/// The first line of a record that the kernel has written: facility 0, which user space cannot use (kernel/printk/printk.c,
/// devkmsg_write).
fn kernels_message(record: &str) -> Option<&str> {
    let (header, message) = record.split_once(';')?;
    let priority: u32 = header.split(',').next()?.parse().ok()?;
    if priority >> 3 == 0 { message.lines().next() } else { None }
}

impl KernelLog {
    /// Opens the log at its end.
    pub fn open() -> Result<Self> {
        let fd = open()?;
        lseek(&fd, 0, Whence::SeekEnd).map_err(|errno| Error::os("seek", "/dev/kmsg", errno))?;
        Ok(Self { fd, from: 0 })
    }

    /// Opens the log at a record, or at its beginning if the ring has overwritten that record; for what happened while no process of
    /// jobfence's had it open.
    pub fn open_at(from: Sequence) -> Result<Self> {
        Ok(Self { fd: open()?, from })
    }

    /// The kills logged since the last call, oldest first.
    pub fn oom_kills(&self) -> Vec<OomKill> {
        let mut kills = Vec::new();
        let mut stats = Stats::default();
        self.read(|record| {
            if self.from == 0 || sequence(record).is_some_and(|number| number >= self.from) {
                stats.note(record);
                if let Some(kill) = OomKill::parse(record) {
                    // Where the whole machine is out of memory, the kernel says nothing of a cgroup.
                    let (cached, huge) = kill.limit_at.as_ref().map_or((None, None), |_| (stats.cached(), stats.huge));
                    kills.push(OomKill { cached, huge, ..kill });
                    stats = Stats::default();
                }
            }
        });
        kills
    }

    fn read(&self, mut each: impl FnMut(&str)) {
        // A record is at most 8 KiB (CONSOLE_EXT_LOG_MAX).
        let mut record = [0u8; 8192];
        for _ in 0..MOST_RECORDS {
            match read(&self.fd, &mut record) {
                Ok(0) => break,
                Ok(n) => each(&String::from_utf8_lossy(record.get(..n).unwrap_or_default())),
                // EPIPE: the ring has overwritten the record that would have been next.
                Err(Errno::EINTR | Errno::EPIPE) => {}
                Err(_) => break,
            }
        }
    }
}

fn open() -> Result<OwnedFd> {
    Dir::open("/dev")?.open_file("kmsg", OFlag::O_RDONLY | OFlag::O_NONBLOCK)
}

/// The number in a record's header; see [`OomKill::parse`].
fn sequence(record: &str) -> Option<Sequence> {
    record.split(',').nth(1)?.parse().ok()
}

impl OomKill {
    /// Reads one record of `/dev/kmsg`: `PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE`. The user chooses the process's name, which may hold
    /// anything but a slash. So what stands before it is read from the left, and what stands after it from the right.
    pub fn parse(record: &str) -> Option<Self> {
        let message = kernels_message(record)?.strip_prefix("oom-kill:")?;
        let (before, rest) = message.split_once(",task_memcg=")?;
        let (task_in, rest) = rest.split_once(",task=")?;
        let (rest, _uid) = rest.rsplit_once(",uid=")?;
        let (name, pid) = rest.rsplit_once(",pid=")?;
        let limit_at = before.split_once(",oom_memcg=").map(|(_, path)| path.to_owned());
        // A user may have made a directory whose name has these words and another step's path in it. But a process that is killed at a
        // limit is below it, and the beginning of a path is not the user's.
        if limit_at.as_deref().is_some_and(|limit| !is_below(task_in, limit)) {
            return None;
        }
        Some(Self {
            full: full(before),
            limit_at,
            task_in: task_in.to_owned(),
            name: name.chars().map(|c| if is_printable(c) { c } else { '?' }).take(32).collect(),
            pid: pid.parse().ok()?,
            cached: None,
            huge: None,
        })
    }
}

/// See [`OomKill::full`]. Reads `constraint=WHY,nodemask=LIST,cpuset=NAME,mems_allowed=LIST,global_oom`, in which a user may choose
/// NAME (`dump_oom_summary`, mm/oom_kill.c). For a cpuset the kernel gives no nodemask.
fn full(before: &str) -> Option<String> {
    let (why, rest) = before.strip_prefix("constraint=")?.split_once(",nodemask=")?;
    let nodes = match why {
        "CONSTRAINT_CPUSET" => rest.strip_suffix(",global_oom")?.rsplit_once(",mems_allowed=")?.1,
        "CONSTRAINT_MEMORY_POLICY" => rest.split_once(",cpuset=")?.0,
        _ => return None,
    };
    let is_list = !nodes.is_empty() && nodes.bytes().all(|b| b.is_ascii_digit() || b"-,".contains(&b));
    is_list.then(|| nodes.to_owned())
}

/// Whether `path` is the directory or below it.
fn is_below(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "6,1134,85220,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
oom_memcg=/jobfence/uid_1/job_2,task_memcg=/jobfence/uid_1/job_2/step_0,task=python3,pid=77,uid=1\n SUBSYSTEM=x\n";

    #[test]
    fn reads_the_kernels_line() {
        let kill = OomKill::parse(LINE).unwrap();
        assert_eq!(kill.limit_at.as_deref(), Some("/jobfence/uid_1/job_2"));
        assert_eq!(kill.task_in, "/jobfence/uid_1/job_2/step_0");
        assert_eq!((kill.name.as_str(), kill.pid), ("python3", 77));
    }

    #[test]
    fn the_kernel_says_what_was_cached() {
        let cached = |records: &[&str]| {
            let mut stats = Stats::default();
            records.iter().for_each(|record| stats.note(&format!("6,1,1,-;{record}\n")));
            stats.cached()
        };
        let v2 = ["anon 5", "file 70", "kernel 3", "shmem 20", "file_mapped 1"];
        assert_eq!(cached(&v2), Some(50));
        assert_eq!(cached(&[&v2.join("\\x0a")]), Some(50));
        assert_eq!(cached(&["cache 0", "rss 0", "shmem 0", "total_cache 9", "total_shmem 1"]), Some(8));
        let mut stats = Stats::default();
        ["anon 5", "hugetlb 31457280"].iter().for_each(|record| stats.note(&format!("6,1,1,-;{record}\n")));
        assert_eq!(stats.huge, Some(30 << 20));
        // These figures are of another limit.
        assert_eq!(cached(&["file 70", "shmem 20", "Memory cgroup stats for /a:", "anon 4"]), None);
        assert_eq!(cached(&["Memory cgroup stats for /a: cache:0KB rss:9KB"]), None);
        let mut stats = Stats::default();
        ["14,1,1,-;file 70", "14,2,1,-;shmem 1"].iter().for_each(|record| stats.note(record));
        assert_eq!(stats.cached(), None, "a process has written it");
    }

    #[test]
    fn a_record_has_a_number() {
        assert_eq!(sequence(LINE), Some(1134));
        assert_eq!(sequence("6,x,1,-;oom-kill:"), None);
        assert_eq!(sequence(""), None);
    }

    #[test]
    fn a_name_made_to_deceive_does_not() {
        let kill = OomKill::parse(&LINE.replace("task=python3", "task=x,pid=1,uid=0,t\u{1b}")).unwrap();
        assert_eq!((kill.name.as_str(), kill.pid), ("x,pid=1,uid=0,t?", 77));
    }

    #[test]
    fn a_directory_made_to_deceive_is_nobodys() {
        let place = "/user.slice/x,task_memcg=/jobfence/uid_5/job_5/step_0,task=a,pid=1,uid=5";
        let line =
            |limit: &str| LINE.replace("/jobfence/uid_1/job_2/step_0", place).replace("/jobfence/uid_1/job_2", limit);
        assert_eq!(OomKill::parse(&line(place)), None);
        // The rest of the path is the user's, and is below the limit.
        let kill = OomKill::parse(&line("/user.slice")).unwrap();
        assert_eq!((kill.task_in.as_str(), kill.pid), (place.split_once(",task=").unwrap().0, 77));
    }

    #[test]
    fn a_line_written_by_a_process_is_not_the_kernels() {
        assert_eq!(OomKill::parse(&LINE.replacen("6,", "14,", 1)), None);
    }

    #[test]
    fn the_whole_machine_out_of_memory() {
        let line = "3,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
task_memcg=/jobfence/uid_1/job_2/step_0,task=a,pid=3,uid=1";
        let kill = OomKill::parse(line).unwrap();
        assert_eq!((kill.limit_at, kill.full), (None, None));
    }

    #[test]
    fn the_nodes_to_which_a_process_is_bound_are_full() {
        let line = |words: &str| {
            let end = "task_memcg=/jobfence/uid_1/job_2/step_0,task=python,pid=13,uid=1";
            OomKill::parse(&format!("3,1,1,-;oom-kill:constraint=CONSTRAINT_{words},{end}")).and_then(|kill| kill.full)
        };
        let cpuset = "CPUSET,nodemask=(null),cpuset=x,mems_allowed=7,y,mems_allowed=1,3-4,global_oom";
        assert_eq!(line(cpuset), Some("1,3-4".to_owned()));
        let policy = "MEMORY_POLICY,nodemask=1,cpuset=step_0,mems_allowed=0-1,global_oom";
        assert_eq!(line(policy), Some("1".to_owned()));
        for none in [
            "MEMCG,nodemask=1,cpuset=/,mems_allowed=0,oom_memcg=/jobfence",
            "CPUSET,nodemask=(null)",
            "CPUSET,nodemask=(null),cpuset=,mems_allowed=x,global_oom",
        ] {
            assert_eq!(line(none), None, "{none}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_stats_make_it_panic(text in "[0-6],1,1,-;(Memory cgroup stats for .*:|(file|shmem|total_cache|total_shmem) .*|.*\\\\x0a.*)") {
            let mut stats = Stats::default();
            stats.note(&text);
            let _ = stats.cached();
        }

        #[test]
        fn no_record_makes_it_panic(text in "[0-9,]*;oom-kill:.*(,oom_memcg=.*)?,task_memcg=.*,task=.*,pid=.*,uid=.*") {
            let _ = OomKill::parse(&text);
        }
    }
}
