// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes limits, and reads them back: a limit that was not seen in the kernel was not set.
//!
//! Plain one-file writes go through cgroups-rs, which knows the file names of v1 and v2. It opens a missing file with `O_CREAT`, which
//! fails with `EACCES`. So a refused write is explained here by whether the file exists.

use std::error::Error as _;
use std::io;
use std::time::{Duration, Instant};

use cgroups_rs::cpu::CpuController;
use cgroups_rs::memory::MemController;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};

use super::kernel;
use super::layout::Version;
use crate::error::{Error, Result};
use crate::job::Cpus;
use crate::sys::dir::Dir;

/// CPU time in each period: `cpu.max` (cgroup-v2.rst), `cpu.cfs_quota_us` and `cpu.cfs_period_us` (sched-bwc.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time, at least 1000.
    pub quota_us: u64,
    /// Length of a period in microseconds, 1000 to 1000000.
    pub period_us: u64,
}

impl CpuQuota {
    /// The share of time as a number of CPUs, rounded down to thousandths.
    pub fn cpus(self) -> Cpus {
        let thousandths = u128::from(self.quota_us) * 1000 / u128::from(self.period_us.max(1));
        Cpus::from_thousandths(u64::try_from(thousandths).unwrap_or(u64::MAX))
    }

    /// The same share of time in a period of another length, rounded down, at least the kernel's minimum of 1 ms.
    fn in_period(self, period_us: u64) -> Self {
        let quota = u128::from(self.quota_us) * u128::from(period_us) / u128::from(self.period_us.max(1));
        Self { quota_us: u64::try_from(quota).unwrap_or(u64::MAX).max(MIN_QUOTA_US), period_us }
    }

    /// This quota and the time of so many CPUs more.
    #[must_use]
    pub fn and(self, cpus: Cpus) -> Self {
        Self { quota_us: self.quota_us.saturating_add(self.time_of(cpus)), ..self }
    }

    /// This quota without the time of so many CPUs.
    #[must_use]
    pub fn without(self, cpus: Cpus) -> Self {
        Self { quota_us: self.quota_us.saturating_sub(self.time_of(cpus)).max(MIN_QUOTA_US), ..self }
    }

    /// This part of `before` as the same part of `after`.
    #[must_use]
    pub fn in_proportion(self, before: Self, after: Self) -> Self {
        let [quota, above, below] = [
            u128::from(self.quota_us),
            u128::from(after.quota_us).saturating_mul(before.period_us.into()),
            u128::from(before.quota_us).saturating_mul(after.period_us.into()).max(1),
        ];
        let quota = quota.saturating_mul(above) / below;
        Self { quota_us: u64::try_from(quota).unwrap_or(u64::MAX).max(MIN_QUOTA_US), ..self }
    }

    /// How much unused quota may be saved for later, in microseconds. Without this, processes that could use all of a quota get less.
    ///
    /// The kernel hands a quota to CPUs in slices: at the end of a period, what one CPU has left another lacks. And a period that ends
    /// late is charged at once. The slack carries both over; in the long run the quota holds.
    pub fn slack_us(self) -> u64 {
        self.quota_us.min(self.quota_us.saturating_mul(SLACK_US) / self.period_us.max(1))
    }

    /// The time of so many CPUs in one period, in microseconds.
    fn time_of(self, cpus: Cpus) -> u64 {
        cpus.thousandths().saturating_mul(self.period_us) / 1000
    }

    /// The lower of the two.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        if self.is_above(other) { other } else { self }
    }

    /// Whether this allows more time than the other.
    pub fn is_above(self, other: Self) -> bool {
        u128::from(self.quota_us) * u128::from(other.period_us)
            > u128::from(other.quota_us) * u128::from(self.period_us)
    }
}

/// The kernel refuses a smaller quota or period (`min_cfs_quota_period`, kernel/sched/core.c).
pub const MIN_QUOTA_US: u64 = 1000;

/// In microseconds, for each CPU: a slice (5 ms: `sched_cfs_bandwidth_slice_us`), and as much for a late tick or timer. In all
/// measurements half of it was enough, and a tenth was not.
const SLACK_US: u64 = 10_000;

/// A limit of swap, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapLimit {
    /// Swap alone: v2's `memory.swap.max`.
    pub swap: u64,
    /// The RAM beside it: v1's `memory.memsw.limit_in_bytes` limits the sum of both.
    pub ram: u64,
}

/// Reads a directory's quota; `None` means unlimited.
pub fn cpu_quota(dir: &Dir, version: Version) -> Result<Option<CpuQuota>> {
    match version {
        Version::V2 => parse_quota(dir, &read_control(dir, CPU_MAX, "cpu")?),
        Version::V1 => {
            let quota = read_control(dir, QUOTA, "cpu")?;
            if quota.trim() == "-1" {
                return Ok(None);
            }
            parse_quota(dir, &format!("{} {}", quota.trim(), read_control(dir, PERIOD, "cpu")?))
        }
    }
}

/// `QUOTA PERIOD`, as cpu.max has it.
fn parse_quota(dir: &Dir, text: &str) -> Result<Option<CpuQuota>> {
    let (quota, period) = text.trim().split_once(' ').unwrap_or_default();
    if quota == "max" {
        return Ok(None);
    }
    match (quota.parse(), period.trim().parse()) {
        (Ok(quota_us), Ok(period_us)) => Ok(Some(CpuQuota { quota_us, period_us })),
        _ => Err(Error::new("not a quota and a period in").at(dir.path()).value(text.trim())),
    }
}

const CPU_MAX: &str = "cpu.max";
const QUOTA: &str = "cpu.cfs_quota_us";
const PERIOD: &str = "cpu.cfs_period_us";
/// The period of a new directory (`default_cfs_period`, kernel/sched/fair.c).
const FIRST_PERIOD: &str = "100000";

/// Limits the CPU time of a directory. v1 may refuse another period than that of the present quota: see [`in_its_period`].
///
/// The burst cannot be more than the quota, so one that is in the way is reset. Afterwards it is the quota's slack, which the caller
/// may raise.
pub fn set_cpu_quota(dir: &Dir, version: Version, want: CpuQuota) -> Result<()> {
    match write_cpu_quota(dir, version, want, false) {
        Err(error) if error.kernel_errno() == Some(Errno::EINVAL) && forget_burst(dir, version) => {
            write_cpu_quota(dir, version, want, false)
        }
        other => other,
    }?;
    set_slack(dir, version, want)
}

/// As [`set_cpu_quota`], for a directory whose CPU time has never been limited, such as a new one.
pub fn set_first_cpu_quota(dir: &Dir, version: Version, want: CpuQuota) -> Result<()> {
    write_cpu_quota(dir, version, want, true)?;
    set_slack(dir, version, want)
}

fn set_slack(dir: &Dir, version: Version, want: CpuQuota) -> Result<()> {
    match set_cpu_burst(dir, version, want.slack_us()) {
        // Linux before 5.14 has no burst.
        Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

/// `want` in the period of the directory's quota, and that quota, if it has one. v1 takes period and quota one after the other: in
/// between, a directory below could have more than this one.
pub fn in_its_period(dir: &Dir, version: Version, want: CpuQuota) -> Result<(CpuQuota, Option<CpuQuota>)> {
    let current = cpu_quota(dir, version)?;
    Ok((current.map_or(want, |current| want.in_period(current.period_us)), current))
}

fn write_cpu_quota(dir: &Dir, version: Version, want: CpuQuota, is_first: bool) -> Result<()> {
    let too_large = || Error::new("the quota is too large for").at(dir.path()).value(want.quota_us);
    let quota = i64::try_from(want.quota_us).map_err(|_| too_large())?;
    let found = match version {
        Version::V2 => {
            // cgroups-rs is not used: it reads the old value first, to fill in a half that is never left out here.
            let text = dir.write_and_read(CPU_MAX, &format!("{} {}", want.quota_us, want.period_us));
            parse_quota(dir, &text.map_err(|error| explain(dir, CPU_MAX, "cpu", error))?)?
        }
        Version::V1 => {
            let cpu = CpuController::new(dir.handle_path(), false);
            // The period goes first: without a quota any period is allowed, and a quota in the wrong period could be above the
            // parent's, which v1 refuses. It is written only if it differs, since the kernel writes the quota back along with it.
            let mut period = if is_first { FIRST_PERIOD.to_owned() } else { read_control(dir, PERIOD, "cpu")? };
            if period.trim() != want.period_us.to_string() {
                cpu.set_cfs_period(want.period_us)
                    .map_err(|e| refused(dir, PERIOD, "cpu", want.period_us.to_string(), &e))?;
                period = read_control(dir, PERIOD, "cpu")?;
            }
            cpu.set_cfs_quota(quota).map_err(|e| refused(dir, QUOTA, "cpu", want.quota_us.to_string(), &e))?;
            parse_quota(dir, &format!("{} {period}", read_control(dir, QUOTA, "cpu")?.trim()))?
        }
    };
    match found {
        Some(found) if found == want => Ok(()),
        found => Err(Error::new("the CPU quota was written, but the kernel shows another:")
            .at(dir.path())
            .value(format!("wanted {want:?}, found {found:?}"))),
    }
}

/// Limits the CPU time of a directory to at most `want`, and returns its limit: a lower quota that is set already stays.
///
/// v1 refuses a quota below a child's, so children with higher ones are lowered first.
pub fn lower_cpu_quota(dir: &Dir, version: Version, want: CpuQuota) -> Result<CpuQuota> {
    lower_cpu_quota_from(dir, version, in_its_period(dir, version, want)?)
}

/// The same of a directory whose quota has been read: see [`in_its_period`].
pub fn lower_cpu_quota_from(
    dir: &Dir,
    version: Version,
    (want, current): (CpuQuota, Option<CpuQuota>),
) -> Result<CpuQuota> {
    if let Some(current) = current.filter(|current| !current.is_above(want)) {
        return Ok(current);
    }
    // A removed step still counts until the kernel has let go of it: some milliseconds later, on a busy node even after half a second.
    const PATIENCE: Duration = Duration::from_secs(2);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match set_cpu_quota(dir, version, want) {
            Ok(()) => return Ok(want),
            Err(error) if version == Version::V2 || error.kernel_errno() != Some(Errno::EINVAL) => return Err(error),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => {}
        }
        // Each walk has this time for itself: one that the loop's deadline cut short would be taken for an endless one.
        lower_below(dir, version, want, 0, Instant::now() + PATIENCE)?;
        let _ = poll(&mut [], PollTimeout::from(1u8));
    }
}

/// Resets the burst. Returns whether there was one.
fn forget_burst(dir: &Dir, version: Version) -> bool {
    let file = burst_file(version);
    dir.read_value(file).is_ok_and(|text| text.trim() != "0") && dir.write(file, "0").is_ok()
}

/// Lowers quotas above `want`, innermost first. Where Slurm gives a step's directory to the user (22.05), the user may have made so
/// many directories in it that other steps, which wait for this one, would be refused.
fn lower_below(dir: &Dir, version: Version, want: CpuQuota, depth: u32, deadline: Instant) -> Result<()> {
    const DEEPEST: u32 = 32;
    for name in dir.list(true)? {
        if Instant::now() >= deadline {
            return Err(Error::new("there are more cgroups than can be lowered in time below")
                .at(dir.path())
                .hint("steps of this job have made them: remove them, or end those steps"));
        }
        // A step that is ending may have removed its directory.
        let Ok(child) = dir.child(&name) else { continue };
        if depth < DEEPEST {
            lower_below(&child, version, want, depth + 1, deadline)?;
        }
        let Ok(Some(theirs)) = cpu_quota(&child, version) else { continue };
        if theirs.is_above(want)
            && let Err(error) = set_cpu_quota(&child, version, want.in_period(theirs.period_us))
            && child.has("cgroup.procs")
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Writes a number to a file of any controller, and reads it back.
pub fn set_number(dir: &Dir, controller: &'static str, file: &str, want: u64) -> Result<()> {
    set_text(dir, controller, file, &want.to_string())
}

/// Writes a value that the kernel shows as it was written, and reads it back.
pub fn set_text(dir: &Dir, controller: &'static str, file: &str, want: &str) -> Result<()> {
    let found = dir.write_and_read(file, want).map_err(|error| explain(dir, file, controller, error))?;
    if found.trim() == want {
        return Ok(());
    }
    Err(Error::new("the limit was written, but the kernel shows another:")
        .at(dir.path().join(file))
        .value(format!("wanted {want}, found {}", found.trim())))
}

/// The file of a directory's share of CPU time among its siblings.
pub fn weight_file(version: Version) -> &'static str {
    match version {
        Version::V2 => "cpu.weight",
        Version::V1 => "cpu.shares",
    }
}

/// The value of [`weight_file`] for a weight on the scale of cpu.weight, 1 to 10000. v1 has 1024 where cgroup2 has 100 (cgroup-v2.rst,
/// sched-design-CFS.rst), and at least 2.
pub fn weight_value(version: Version, weight: u64) -> u64 {
    match version {
        Version::V2 => weight,
        Version::V1 => (weight.saturating_mul(1024).saturating_add(50) / 100).max(2),
    }
}

/// Reads a directory's weight: the reverse of [`weight_value`].
pub fn cpu_weight(dir: &Dir, version: Version) -> Result<u64> {
    let file = weight_file(version);
    let text = read_control(dir, file, "cpu")?;
    let wrong = || Error::new("not a weight:").at(dir.path().join(file)).value(text.trim());
    let value: u64 = text.trim().parse().map_err(|_| wrong())?;
    Ok(match version {
        Version::V2 => value,
        Version::V1 => value.saturating_mul(100).saturating_add(512) / 1024,
    })
}

/// The file that lets a directory run only on CPU time that no others want, on v1 and v2 (Linux 5.15).
pub const CPU_IDLE: &str = "cpu.idle";

/// The file of the CPU time that may be saved for later (Linux 5.14; sched-bwc.rst).
pub fn burst_file(version: Version) -> &'static str {
    match version {
        Version::V2 => "cpu.max.burst",
        Version::V1 => "cpu.cfs_burst_us",
    }
}

/// Lets a directory save unused quota, up to so many microseconds; no more than its quota.
pub fn set_cpu_burst(dir: &Dir, version: Version, want_us: u64) -> Result<()> {
    set_number(dir, "cpu", burst_file(version), want_us)
}

/// Limits RAM. Rounded down to whole pages, as the kernel would.
pub fn set_ram(dir: &Dir, version: Version, bytes: u64) -> Result<()> {
    let want = whole_pages(bytes);
    let (file, _) = memory_files(version);
    let bytes = signed(dir, file, want)?;
    let memory = MemController::new(dir.handle_path(), version == Version::V2);
    let set = || memory.set_limit(bytes).map_err(|e| refused(dir, file, "memory", want.to_string(), &e));
    match set() {
        Err(error) if version == Version::V1 && error.kernel_errno() == Some(Errno::EINVAL) => {
            // v1 never lets RAM exceed the sum of RAM and swap: the sum that is in the way goes up first; set_swap follows.
            set_sum(dir, want)?;
            set()?;
        }
        other => other?,
    }
    seen(dir, file, &read_control(dir, file, "memory")?, want)
}

/// The file of the soft limit: memory above it is reclaimed, on v1 only when the whole node is short of memory (cgroup-v2.rst;
/// cgroup-v1/memory.rst, 7).
pub fn high_file(version: Version) -> &'static str {
    match version {
        Version::V2 => "memory.high",
        Version::V1 => "memory.soft_limit_in_bytes",
    }
}

/// Sets [`high_file`], unless it is as wanted: a write returns only after the kernel has reclaimed what is above.
pub fn set_high(dir: &Dir, version: Version, bytes: u64) -> Result<()> {
    let file = high_file(version);
    let want = whole_pages(bytes);
    if memory_limit(dir, file)? == Some(want) {
        return Ok(());
    }
    set_number(dir, "memory", file, want).map_err(|error| match error.kernel_errno() {
        Some(Errno::EOPNOTSUPP) => error.hint("a real-time kernel has no soft limits on cgroup v1"),
        _ => error,
    })
}

/// Limits swap. `Ok(false)`: this kernel counts no swap, so there is no file to write.
pub fn set_swap(dir: &Dir, version: Version, want: SwapLimit, ram_is_limited: bool) -> Result<bool> {
    match version {
        Version::V2 => {
            let want = whole_pages(want.swap);
            // cgroups-rs is not used: it writes this file under the name of another limit.
            match dir.write_and_read(SWAP, &want.to_string()) {
                Ok(text) => seen(dir, SWAP, &text, want)?,
                Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Version::V1 => {
            let sum = whole_pages(want.ram.saturating_add(want.swap));
            if !ram_is_limited && dir.has(MEMSW) {
                // The sum cannot be below the limit of RAM, which is infinite here.
                set_ram(dir, version, sum)?;
            }
            match set_sum(dir, sum) {
                Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(false),
                other => other?,
            }
        }
    }
    Ok(true)
}

/// The kernel takes no higher limit than this many processes (`PID_MAX_LIMIT`, include/linux/threads.h).
pub const MOST_PROCESSES: u64 = 4 << 20;

/// Reads how many processes and threads there may be; `None` means unlimited.
pub fn processes(dir: &Dir) -> Result<Option<u64>> {
    parse_limit(dir, PIDS_MAX, &read_control(dir, PIDS_MAX, "pids")?)
}

const PIDS_MAX: &str = "pids.max";

/// The files of the limits of RAM and of swap; v1's second one limits both together.
pub fn memory_files(version: Version) -> (&'static str, &'static str) {
    match version {
        Version::V2 => ("memory.max", SWAP),
        Version::V1 => ("memory.limit_in_bytes", MEMSW),
    }
}

/// Reads a memory limit; `None` means unlimited.
pub fn memory_limit(dir: &Dir, file: &str) -> Result<Option<u64>> {
    parse_limit(dir, file, &read_control(dir, file, "memory")?)
}

/// Memory that a directory's processes use now, in bytes; `None` where that cannot be read.
pub fn memory_in_use(dir: &Dir, version: Version) -> Option<u64> {
    let file = match version {
        Version::V2 => "memory.current",
        Version::V1 => "memory.usage_in_bytes",
    };
    dir.read_value(file).ok()?.trim().parse().ok()
}

fn parse_limit(dir: &Dir, file: &str, text: &str) -> Result<Option<u64>> {
    // v1 shows "unlimited" as the largest number of whole pages, which is above any machine's memory and below 2^63.
    const UNLIMITED_V1: u64 = 0x7fff_ffff_ffff_0000;
    match text.trim() {
        "max" => Ok(None),
        text => match text.parse::<u64>() {
            Ok(bytes) if bytes >= UNLIMITED_V1 => Ok(None),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => Err(Error::new("not a limit:").at(dir.path().join(file)).value(text)),
        },
    }
}

const SWAP: &str = "memory.swap.max";
const MEMSW: &str = "memory.memsw.limit_in_bytes";

fn set_sum(dir: &Dir, want: u64) -> Result<()> {
    MemController::new(dir.handle_path(), false)
        .set_memswap_limit(signed(dir, MEMSW, want)?)
        .map_err(|e| refused(dir, MEMSW, "memory", want.to_string(), &e))?;
    seen(dir, MEMSW, &read_control(dir, MEMSW, "memory")?, want)
}

/// Whether the kernel shows (`text`) what was written.
fn seen(dir: &Dir, file: &str, text: &str, want: u64) -> Result<()> {
    match parse_limit(dir, file, text)? {
        Some(found) if found == want => Ok(()),
        found => Err(Error::new("the limit was written, but the kernel shows another:")
            .at(dir.path().join(file))
            .value(format!("wanted {want}, found {}", found.map_or_else(|| "none".to_owned(), |b| b.to_string())))),
    }
}

fn signed(dir: &Dir, file: &str, bytes: u64) -> Result<i64> {
    i64::try_from(bytes).map_err(|_| Error::new("the limit is too large for").at(dir.path().join(file)).value(bytes))
}

/// The largest number of whole pages in so many bytes, in bytes.
pub fn whole_pages(bytes: u64) -> u64 {
    static PAGE: once_cell::sync::OnceCell<u64> = once_cell::sync::OnceCell::new();
    let page = *PAGE.get_or_init(|| {
        let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
        size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0).unwrap_or(4096)
    });
    bytes / page * page
}

fn read_control(dir: &Dir, file: &str, controller: &'static str) -> Result<String> {
    match dir.read_if_there(file)? {
        Some(text) => Ok(text),
        None => Err(kernel::missing(dir, file, controller)),
    }
}

/// Explains a missing file by its controller.
fn explain(dir: &Dir, file: &str, controller: &'static str, error: Error) -> Error {
    if error.kernel_errno() == Some(Errno::ENOENT) { kernel::missing(dir, file, controller) } else { error }
}

/// Explains a write that cgroups-rs reports as failed.
pub(super) fn refused(
    dir: &Dir,
    file: &str,
    controller: &'static str,
    value: String,
    error: &cgroups_rs::error::Error,
) -> Error {
    if !dir.has(file) {
        return kernel::missing(dir, file, controller).value(value);
    }
    let errno = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    match errno {
        Some(errno) => Error::os("write", dir.path().join(file), Errno::from_raw(errno)).value(value),
        None => Error::new(format!("write ({error})")).at(dir.path().join(file)).value(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: CpuQuota = CpuQuota { quota_us: 50_000, period_us: 100_000 };

    #[test]
    fn quotas_are_compared_as_shares_of_time() {
        let same = CpuQuota { quota_us: 5_000, period_us: 10_000 };
        assert!(!HALF.is_above(same) && !same.is_above(HALF));
        assert!(HALF.is_above(CpuQuota { quota_us: 49_999, ..HALF }));
        assert_eq!(HALF.in_period(10_000), same);
        assert_eq!(HALF.in_period(1_000).quota_us, MIN_QUOTA_US);
    }

    #[test]
    fn a_weight_of_v1_has_its_own_unit() {
        let of = |weight| [Version::V2, Version::V1].map(|version| weight_value(version, weight));
        assert_eq!([of(1), of(10), of(100), of(10_000)], [[1, 10], [10, 102], [100, 1024], [10_000, 102_400]]);
        assert_eq!(weight_value(Version::V1, 0), 2);
    }

    #[test]
    fn slack_is_ten_milliseconds_of_each_cpu_and_no_more_than_the_quota() {
        let slack = |quota_us, period_us| CpuQuota { quota_us, period_us }.slack_us();
        assert_eq!(
            (slack(200_000, 100_000), slack(50_000, 100_000), slack(4_000_000, 1_000_000)),
            (20_000, 5_000, 40_000)
        );
        assert_eq!((slack(20_000, 10_000), slack(2_000, 1_000), slack(1_000, 1_000_000)), (20_000, 2_000, 10));
        assert_eq!((slack(0, 0), slack(u64::MAX, 1)), (0, u64::MAX));
    }

    #[test]
    fn a_quota_comes_with_its_slack_where_the_kernel_has_any() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        std::fs::write(temp.path().join(CPU_MAX), "max 100000").unwrap();
        set_cpu_quota(&dir, Version::V2, HALF).unwrap();
        let burst = temp.path().join(burst_file(Version::V2));
        assert!(!burst.exists());
        std::fs::write(&burst, "0").unwrap();
        set_cpu_quota(&dir, Version::V2, HALF).unwrap();
        assert_eq!(std::fs::read_to_string(&burst).unwrap(), "5000");
    }

    #[test]
    fn unlimited_in_both_spellings() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        for (text, limit) in [("max\n", None), ("9223372036854771712\n", None), ("4096\n", Some(4096))] {
            std::fs::write(temp.path().join("memory.max"), text).unwrap();
            assert_eq!(memory_limit(&dir, "memory.max").unwrap(), limit);
        }
        let error = memory_limit(&dir, "memory.high").unwrap_err().to_string();
        assert!(error.contains("the memory controller is not available here"), "{error}");
    }

    #[test]
    fn what_takes_too_long_to_lower_is_not_lowered() {
        let temp = tempfile::tempdir().unwrap();
        let inner = temp.path().join("step_0/users");
        std::fs::create_dir_all(&inner).unwrap();
        for (file, text) in [(QUOTA, "90000"), (PERIOD, "100000")] {
            std::fs::write(inner.join(file), text).unwrap();
        }
        let dir = Dir::open(temp.path()).unwrap();
        let quota = || std::fs::read_to_string(inner.join(QUOTA)).unwrap();
        let error = lower_below(&dir, Version::V1, HALF, 0, Instant::now()).unwrap_err().to_string();
        assert!(error.contains("more cgroups than can be lowered in time below"), "{error}");
        assert_eq!(quota(), "90000");
        lower_below(&dir, Version::V1, HALF, 0, Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(quota(), "50000");
    }

    #[test]
    fn a_lower_quota_stays_and_a_higher_one_goes_down() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let file = temp.path().join("cpu.max");
        for (before, after) in
            [("max 100000", "50000 100000"), ("20000 100000", "20000 100000"), ("90000 100000", "50000 100000")]
        {
            std::fs::write(&file, before).unwrap();
            lower_cpu_quota(&dir, Version::V2, HALF).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), after);
        }
    }
}
