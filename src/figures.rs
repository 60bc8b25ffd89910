// SPDX-License-Identifier: GPL-2.0-or-later
//! The figures of a step's usage: each once, with its unit, and how two values are combined.
//!
//! A figure that this kernel does not keep is `None`, never zero. A new figure needs a row here, and code that reads it in
//! [`crate::cgroup::usage`]. JSON, its reader, sums and metrics follow from the row.

use std::time::Duration;

use crate::job::Cpus;

/// A row: the member of [`Usage`], its unit, how two values are combined, `Card` if nodes pass it on for a card, and its metric. The name
/// in JSON is the member with its unit behind it.
macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident: $unit:ident, $adds:ident $(, $card:ident)? $(=> $metric:literal, $help:literal)?;)*) => {
        /// Counters of one step since its directory was made.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Usage {
            $($(#[$doc])* pub $name: Option<unit!(type $unit)>,)*
        }

        const COUNT: usize = [$(stringify!($name)),*].len();

        /// Each figure, in the order of [`Usage::numbers`].
        pub static FIGURES: [Figure; COUNT] = [$(Figure {
            member: concat!(stringify!($name), unit!(suffix $unit)),
            unit: Unit::$unit,
            adds: Adds::$adds,
            is_on_cards: { let card: &[&str] = &[$(stringify!($card))?]; !card.is_empty() },
        }),*];

        /// The metric of each figure that has one: its name and its help.
        pub static METRICS: [&[(&str, &str)]; COUNT] = [$(&[$(($metric, $help))?]),*];

        impl Usage {
            /// Takes from `other` the figures that are not known here. It converts none, because a step's end does this for each hierarchy.
            #[inline(never)]
            pub fn or(&mut self, other: &Self) {
                $(if self.$name.is_none() {
                    self.$name.clone_from(&other.$name);
                })*
            }

            /// Each figure as a number. Times are in microseconds, and `disks` is `None`.
            #[inline(never)]
            pub fn numbers(&self) -> [Option<u64>; COUNT] {
                [$(unit!(number $unit, self.$name)),*]
            }

            /// The reverse of `numbers`.
            #[inline(never)]
            pub fn from_numbers(numbers: [Option<u64>; COUNT]) -> Self {
                let [$($name),*] = numbers;
                Self { $($name: unit!(figure $unit, $name)),* }
            }
        }
    };
}

macro_rules! unit {
    (type Seconds) => { Duration };
    (type EachDisk) => { Vec<DiskIo> };
    (type $number:ident) => { u64 };
    (suffix Seconds) => { "_seconds" };
    (suffix Bytes) => { "_bytes" };
    (suffix $count:ident) => { "" };
    (number Seconds, $time:expr) => { micros($time) };
    (number EachDisk, $disks:expr) => { None };
    (number $number:ident, $value:expr) => { $value };
    (figure Seconds, $number:expr) => { time($number) };
    (figure EachDisk, $number:expr) => { $number.and(None) };
    (figure $unit:ident, $number:expr) => { $number };
}

figures! {
    /// CPU time, user and system together.
    cpu: Seconds, Sum, Card => "jobfence_job_cpu_seconds_total", "CPU time of the job on this node.";
    /// CPU time in user mode.
    cpu_user: Seconds, Sum;
    /// CPU time in the kernel.
    cpu_system: Seconds, Sum;
    /// Periods of the quota in which a process could have run.
    periods: Count, Sum, Card;
    /// Periods in which the quota was used up.
    throttled_periods: Count, Sum, Card;
    /// Time during which the quota held back processes that could have run.
    throttled: Seconds, Sum, Card => "jobfence_job_cpu_throttled_seconds_total",
        "Time during which the quota held back processes of the job that could have run.";
    /// The most memory in use at once; `memory.peak` exists since Linux 5.19.
    memory_peak: Bytes, Most, Card => "jobfence_job_memory_peak_bytes", "The most memory that the job had in use at once.";
    /// The most swap in use at once; since Linux 6.5, and not on v1.
    swap_peak: Bytes, Most, Card;
    /// Memory in use that programs have allocated: heap, stack and the like.
    memory_anonymous: Bytes, Now;
    /// Page cache of files, without shared memory: the kernel takes it back when memory is short.
    memory_file: Bytes, Now, Card => "jobfence_job_memory_file_bytes",
        "Page cache of the job, which the kernel takes back when memory is short.";
    /// Dirty page cache, not yet on a disk or server. `disks` counts it only when the kernel writes it.
    memory_unwritten: Bytes, Now, Card;
    /// Shared memory and files in tmpfs.
    memory_shared: Bytes, Now;
    /// The kernel's own memory for these processes; since Linux 5.18 on v2.
    memory_kernel: Bytes, Now;
    /// Huge pages, where they count as memory (the mount option `memory_hugetlb_accounting` of cgroup2, since Linux 6.6; the figure
    /// since 6.14).
    memory_huge_pages: Bytes, Now;
    /// Swap in use.
    memory_swap: Bytes, Now;
    /// How often memory was reclaimed because it exceeded `memory.high`.
    memory_high_events: Count, Sum, Card;
    /// How often the memory limit was reached. Page cache alone can reach it, too.
    memory_max_events: Count, Sum, Card;
    /// Processes that the kernel OOM-killed.
    oom_kills: Count, Sum, Card => "jobfence_job_oom_kills_total",
        "Processes of the job that the kernel has killed for lack of memory.";
    /// The most processes and threads at once; `pids.peak` exists since Linux 6.1, and only on v2.
    processes_peak: Count, Most, Card;
    /// How often the limit of processes refused a new process or thread.
    forks_refused: Count, Sum, Card => "jobfence_job_forks_refused_total",
        "Processes and threads of the job that its limit refused.";
    /// What was read from disks.
    read: Bytes, Sum, Card => "jobfence_job_read_bytes_total", "Bytes that the job has read from disks.";
    /// What was written to disks.
    written: Bytes, Sum, Card => "jobfence_job_written_bytes_total", "Bytes that the job has written to disks.";
    /// Operations of reading.
    read_operations: Count, Sum;
    /// Operations of writing.
    write_operations: Count, Sum;
    /// Reads and writes of each disk. What goes through one disk to another (LVM, loop) counts at each.
    disks: EachDisk, Now;
    /// Time during which at least one process waited for CPU time (psi.rst; cgroup2 only).
    cpu_pressure_some: Seconds, Sum;
    /// Time during which all processes that could have run waited for CPU time.
    cpu_pressure_full: Seconds, Sum;
    /// Time during which at least one process waited for memory.
    memory_pressure_some: Seconds, Sum, Card;
    /// Time during which all processes waited for memory.
    memory_pressure_full: Seconds, Sum;
    /// Time during which at least one process waited for disks.
    io_pressure_some: Seconds, Sum, Card;
    /// Time during which all processes waited for disks.
    io_pressure_full: Seconds, Sum;
    /// What system calls have read: files of each kind, also on NFS and Lustre and from the page cache, and pipes. No cgroup counts this;
    /// see [`crate::sys::call_bytes`].
    rchar: Bytes, Sum;
    /// What system calls have written, likewise.
    wchar: Bytes, Sum;
}

/// The description of a figure.
#[derive(Debug)]
pub struct Figure {
    /// Its member in JSON.
    pub member: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// How two values are combined.
    pub adds: Adds,
    /// Whether nodes pass it on for the card of a job.
    pub is_on_cards: bool,
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each says it")]
pub enum Unit {
    Seconds,
    Bytes,
    Count,
    EachDisk,
}

/// How the values of two directories of a job are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adds {
    /// Their sum.
    Sum,
    /// The higher one.
    Most,
    /// The later one.
    Now,
}

/// What went between memory and one disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskIo {
    /// Its number, major and minor.
    pub disk: (u32, u32),
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Operations of reading.
    pub reads: u64,
    /// Operations of writing.
    pub writes: u64,
}

/// What a job was granted on this node; of a step that has less than its job, CPUs and memory are the step's. `None`: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrantedTo {
    /// CPUs.
    pub cpus: Option<Cpus>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// The number of GPUs.
    pub gpus: Option<u64>,
}

impl GrantedTo {
    /// Adds what `other` knows and this one does not.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { cpus: self.cpus.or(other.cpus), memory: self.memory.or(other.memory), gpus: self.gpus.or(other.gpus) }
    }
}

/// The limits of a step. `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitedTo {
    /// CPU time.
    pub cpus: Option<Cpus>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

impl LimitedTo {
    /// The lower of each two limits.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.into_iter().chain(other.cpus).min(),
            memory: self.memory.into_iter().chain(other.memory).min(),
            processes: self.processes.into_iter().chain(other.processes).min(),
        }
    }
}

impl Usage {
    /// The figures of these disks.
    pub fn from_disks(disks: Vec<DiskIo>) -> Self {
        let sum = |of: fn(&DiskIo) -> u64| Some(disks.iter().map(of).fold(0, u64::saturating_add));
        Self {
            read: sum(|disk| disk.read),
            written: sum(|disk| disk.written),
            read_operations: sum(|disk| disk.reads),
            write_operations: sum(|disk| disk.writes),
            disks: Some(disks),
            ..Self::default()
        }
    }

    /// What system calls have read and written, if that is much, and disks tell little of it.
    pub fn moved_beside_disks(&self) -> Option<(u64, u64)> {
        const MUCH: u64 = 1 << 30;
        let (read, written) = self.rchar.zip(self.wchar)?;
        let moved = read.saturating_add(written);
        let disks = self.read.unwrap_or(0).saturating_add(self.written.unwrap_or(0));
        (moved >= MUCH && moved / 2 > disks).then_some((read, written))
    }

    /// The sum of all: `with` combines each with the sum so far.
    #[inline(never)]
    pub fn sum<'a>(all: &mut dyn Iterator<Item = &'a Self>, with: fn(&Self, &Self) -> Self) -> Self {
        let mut sum = all.next().map_or_else(Self::default, Self::without_disks);
        for next in all {
            sum = with(next, &sum);
        }
        sum
    }

    /// The same without `disks`.
    pub fn without_disks(&self) -> Self {
        Self::from_numbers(self.numbers())
    }

    /// Combines the figure with an earlier count. The present value of [`Adds::Now`] counts. Any other figure that one of them lacks is
    /// unknown.
    pub fn after(&self, before: &Self) -> Self {
        self.merged(before, |adds, now, before| if adds == Adds::Now { now } else { added(adds, now?, before?) })
    }

    /// Combined with an earlier or parallel count. If one of them lacks a figure, the other's counts.
    pub fn with(&self, other: &Self) -> Self {
        self.merged(other, |adds, own, other| match (own, other) {
            (Some(own), Some(other)) => added(adds, own, other),
            _ => own.or(other),
        })
    }

    /// Each number merged; without disks.
    #[inline(never)]
    fn merged(&self, other: &Self, with: fn(Adds, Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        let mut numbers = self.numbers();
        for ((number, other), figure) in numbers.iter_mut().zip(other.numbers()).zip(&FIGURES) {
            *number = with(figure.adds, *number, other);
        }
        Self::from_numbers(numbers)
    }
}

fn added(adds: Adds, now: u64, before: u64) -> Option<u64> {
    Some(match adds {
        Adds::Sum => now.saturating_add(before),
        Adds::Most => now.max(before),
        Adds::Now => now,
    })
}

// Not inlined, like the functions above: unrolled for each figure and caller, they would be a large part of the shared object.
#[inline(never)]
fn time(micros: Option<u64>) -> Option<Duration> {
    micros.map(Duration::from_micros)
}

/// Rounded to the microsecond.
#[inline(never)]
fn micros(time: Option<Duration>) -> Option<u64> {
    let time = time?;
    let below = (u64::from(time.subsec_nanos()) + 500) / 1000;
    Some(time.as_secs().saturating_mul(1_000_000).saturating_add(below))
}
