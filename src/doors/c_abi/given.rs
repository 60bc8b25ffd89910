// SPDX-License-Identifier: GPL-2.0-or-later
//! What the caller passes: structs that begin with their size, C strings, and their meaning here.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use super::answer::{Done, refused, usage};
use crate::cgroup::huge_pages::HugePages;
use crate::config::{LoadError, Loaded};
use crate::doors::card::JobEnd;
use crate::doors::opening::{Granted, MOST_GPUS, vnode_types};
use crate::doors::recorded::WantedFences;
use crate::doors::user;
use crate::facts::{Fact, Facts, job_name};
use crate::job::{Cpus, Id};
use crate::report::account::Exit;
use crate::requests::{REQUESTS, Requests};

/// `struct jobfence_fence`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CFence {
    pub size: usize,
    pub job: *const c_char,
    pub step: *const c_char,
    pub run: u32,
    pub reserved: u32,
}

/// `struct jobfence_grant`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CGrant {
    pub size: usize,
    pub cpus: u64,
    pub memory: u64,
    pub user: *const c_char,
    pub partition: *const c_char,
    pub qos: *const c_char,
    pub account: *const c_char,
    pub cpu_limit: *const c_char,
    pub cpu_burst: *const c_char,
    pub mem_high: *const c_char,
    pub pids_max: *const c_char,
    pub io_max: *const c_char,
    pub project: *const c_char,
    pub vnode_type: *const c_char,
    pub memory_swap: u64,
    pub gpus: u64,
    pub huge_pages: *const c_char,
    pub job_name: *const c_char,
}

/// `struct jobfence_reaped`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CReaped {
    pub size: usize,
    pub removed: u32,
    pub alive: u32,
    pub busy: u32,
    pub failed: u32,
}

/// `struct jobfence_totals`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CTotals {
    pub size: usize,
    pub fences: u64,
    pub cpu_us: u64,
    pub throttled_us: u64,
    pub memory_peak: u64,
    pub memory_swap_peak: u64,
    pub oom_kills: u64,
    pub forks_refused: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// `struct jobfence_ended`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header says what each is")]
pub struct CEnded {
    pub size: usize,
    pub exit_status: u64,
    pub exit_signal: u64,
    pub wall_seconds: u64,
    pub time_limit_seconds: u64,
    pub nodes: u64,
    pub tasks: u64,
    pub flags: u64,
}

/// A struct of the caller's: its size is the first member, and zero bytes are a valid value of it.
///
/// # Safety
/// Only for a `repr(C)` struct that begins with a `usize` and has otherwise integers and pointers, without padding.
pub(super) unsafe trait CStruct: Copy {}
// SAFETY: see above.
unsafe impl CStruct for CFence {}
// SAFETY: see above.
unsafe impl CStruct for CGrant {}
// SAFETY: see above.
unsafe impl CStruct for CReaped {}
// SAFETY: see above.
unsafe impl CStruct for CTotals {}
// SAFETY: see above.
unsafe impl CStruct for CEnded {}

/// No release will have so large a struct: a larger size was never set.
const LARGEST: usize = 65536;

/// The most CPUs, in thousandths, as in the command.
const MOST_CPUS: u64 = 65_536_000;
/// `JOBFENCE_ZERO_CPUS`.
pub const ZERO_CPUS: u64 = u64::MAX;
/// `JOBFENCE_UNKNOWN`.
pub const UNKNOWN: u64 = u64::MAX;
/// `JOBFENCE_ARRAY_TASK`.
pub const ARRAY_TASK: u64 = 1;
/// `JOBFENCE_UTF8`.
pub const UTF8: u64 = 2;
/// The least memory, in bytes, as in the command.
const LEAST_MEMORY: u64 = 1 << 20;
/// A text of the caller's. `None` for NULL.
///
/// # Safety
/// It must be NULL or a C string that lives as long as is said of the result.
pub(super) unsafe fn text<'a>(text: *const c_char, name: &str) -> Done<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's own contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| usage(format!("{name} must be UTF-8")))
}

/// The caller's struct. Members beyond the caller's size are zero.
///
/// # Safety
/// `given` must be NULL or have as many bytes as its first member says.
pub(super) unsafe fn read<T: CStruct>(given: *const T, name: &str) -> Done<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    if !given.is_aligned() {
        return Err(usage(format!("{name} must be aligned as its members are")));
    }
    // SAFETY: as this function's own contract: there are at least these bytes.
    let size = unsafe { given.cast::<usize>().read() };
    // A size must not end within a member, which would change its value.
    if size < size_of::<usize>() || size > LARGEST || size % align_of::<T>() != 0 {
        return Err(usage(format!("{name}: the size must be sizeof(struct {name}), and not {size}")));
    }
    let bytes = given.cast::<u8>();
    for at in size_of::<T>()..size {
        // SAFETY: as this function's own contract: below the size.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(usage(format!(
                "{name}: this release knows {} bytes of it, and of the {size} that were given, byte {at} is not zero: \
                 the program needs a newer libjobfence.so",
                size_of::<T>()
            )));
        }
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: below the size of both, and two places. Each byte that is not copied is zero, which is a value of each member.
    let read = unsafe {
        bytes.copy_to_nonoverlapping(read.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        read.assume_init()
    };
    Ok(Some(read))
}

/// Fills a struct of the caller's as far as its size reaches. The size member stays as the caller set it.
///
/// # Safety
/// `place` must be the caller's struct of this size, for which [`read`] has succeeded.
pub(super) unsafe fn fill<T: CStruct>(place: *mut T, size: usize, value: &T) {
    let (at, bytes) = (size_of::<usize>(), (&raw const *value).cast::<u8>());
    let length = size.min(size_of::<T>()).saturating_sub(at);
    // SAFETY: below the size of both, and two places. There are as many bytes as the caller's first member says.
    unsafe { bytes.add(at).copy_to_nonoverlapping(place.cast::<u8>().add(at), length) };
}

/// The fences that the caller means.
///
/// # Safety
/// As of [`read`], and each text must be NULL or a C string.
pub(super) unsafe fn which(fence: *const CFence) -> Done<WantedFences> {
    // SAFETY: as this function's own contract.
    let fence = unsafe { read(fence, "jobfence_fence") }?.ok_or_else(|| usage("fence must not be NULL"))?;
    if fence.reserved != 0 {
        return Err(usage("jobfence_fence: reserved must be zero"));
    }
    let id = |text: &str| Id::new(text).map_err(|error| usage(error.to_string()));
    // SAFETY: as this function's own contract.
    let (job, step) = unsafe { (text(fence.job, "job")?, text(fence.step, "step")?) };
    let job = id(job.ok_or_else(|| usage("jobfence_fence: job must not be NULL"))?)?;
    Ok(WantedFences { job, step: step.map(id).transpose()?, run: Some(fence.run).filter(|run| *run > 0) })
}

/// What a job was granted. `uid` is its user's, if known.
///
/// # Safety
/// As of [`read`], and each text must be NULL or a C string.
pub(super) unsafe fn granted(
    grant: *const CGrant,
    uid: Option<u32>,
    loaded: &Result<Loaded, LoadError>,
) -> Done<Granted> {
    let facts = Facts { uid: uid.into(), ..Facts::default() };
    let mut granted = Granted { facts, chooses_cores: true, ..Granted::default() };
    // SAFETY: as this function's own contract.
    if let Some(grant) = unsafe { read(grant, "jobfence_grant") }? {
        if grant.cpus > MOST_CPUS && grant.cpus != ZERO_CPUS {
            return Err(usage(format!("cpus must be 0 to {MOST_CPUS} thousandths, and not {}", grant.cpus)));
        }
        if grant.memory > 0 && grant.memory < LEAST_MEMORY {
            return Err(usage(format!("memory must be 0 or at least {LEAST_MEMORY} bytes, and not {}", grant.memory)));
        }
        granted.cpus = match grant.cpus {
            0 => None,
            ZERO_CPUS => Some(Cpus::ZERO),
            cpus => Some(Cpus::from_thousandths(cpus)),
        };
        granted.memory = Some(grant.memory).filter(|memory| *memory > 0);
        if grant.memory_swap > 0 && grant.memory_swap < LEAST_MEMORY {
            let found = grant.memory_swap;
            return Err(usage(format!("memory_swap must be 0 or at least {LEAST_MEMORY} bytes, and not {found}")));
        }
        granted.memory_and_swap = Some(grant.memory_swap).filter(|together| *together > 0);
        let gpus = usize::try_from(grant.gpus).ok().filter(|gpus| *gpus <= MOST_GPUS);
        granted.gpus =
            Some(gpus.ok_or_else(|| usage(format!("gpus must be 0 to {MOST_GPUS}, and not {}", grant.gpus)))?);
        // SAFETY: as this function's own contract.
        let huge_pages = unsafe { text(grant.huge_pages, "huge_pages") }?.map(|text| {
            HugePages::parse(text).ok_or_else(|| usage(format!("huge_pages must be as 2M:4G,1G:0, and not {text:?}")))
        });
        granted.huge_pages = huge_pages.transpose()?.map(HugePages::into_sizes);
        // SAFETY: as this function's own contract.
        let fact = |given, name| unsafe { text(given, name) }.map(|text| Fact::from(text.map(str::to_owned)));
        granted.facts.user = fact(grant.user, "user")?;
        granted.facts.partition = fact(grant.partition, "partition")?;
        granted.facts.qos = fact(grant.qos, "qos")?;
        let claim = |text: Option<&str>| text.map_or(Fact::Unknown, |text| Fact::Claimed(text.to_owned()));
        // SAFETY: as this function's own contract.
        let claimed = |given, name| unsafe { text(given, name) }.map(claim);
        granted.facts.account = claimed(grant.account, "account")?;
        granted.facts.project = claimed(grant.project, "project")?;
        // SAFETY: it is NULL or a text, by this function's own contract.
        let name = (!grant.job_name.is_null()).then(|| unsafe { CStr::from_ptr(grant.job_name) });
        // No letter of what a user calls a job stops it.
        granted.facts.job_name = job_name(&name.unwrap_or_default().to_string_lossy());
        // No caller can name it, and such jobs have none.
        granted.facts.pe = Fact::Known(String::new());
        // SAFETY: as this function's own contract.
        granted.facts.vnode_types = unsafe { text(grant.vnode_type, "vnode_type") }?.map(vnode_types).into();
        // SAFETY: as this function's own contract.
        granted.requests.job = unsafe { requests(&grant) }?;
    }
    if let Ok(loaded) = loaded {
        user::know(&mut granted.facts, &loaded.asked());
    }
    if let Some(uid) = uid.filter(|_| granted.requests.names_paths()) {
        let rights = user::rights(uid);
        granted.requests.paths().for_each(|rules| rules.asked_by(&rights));
    }
    Ok(granted)
}

/// How a job ended.
///
/// # Safety
/// As of [`read`].
pub(super) unsafe fn ended(ended: *const CEnded) -> Done<JobEnd> {
    // SAFETY: as this function's own contract.
    let Some(ended) = unsafe { read(ended, "jobfence_ended") }? else { return Ok(JobEnd::default()) };
    if ended.flags & !(ARRAY_TASK | UTF8) != 0 {
        return Err(usage(format!(
            "flags: this release knows JOBFENCE_ARRAY_TASK and JOBFENCE_UTF8, and not {}",
            ended.flags
        )));
    }
    let number = |number: u64| u32::try_from(number).ok().filter(|number| *number > 0);
    let seconds =
        |seconds: u64| Some(seconds).filter(|seconds| ![0, UNKNOWN].contains(seconds)).map(Duration::from_secs);
    let status = |status: u64| i32::try_from(status).ok();
    Ok(JobEnd {
        exit: match ended.exit_signal {
            0 | UNKNOWN => status(ended.exit_status).map(Exit::Status),
            signal => status(signal).map(Exit::Signal),
        },
        wall: seconds(ended.wall_seconds),
        time_limit: seconds(ended.time_limit_seconds),
        nodes: number(ended.nodes),
        tasks: number(ended.tasks),
        is_array_task: ended.flags & ARRAY_TASK != 0,
        is_utf8: ended.flags & UTF8 != 0,
        words: None,
    })
}

/// What the job's user requests.
///
/// # Safety
/// Each text must be NULL or a C string.
pub(super) unsafe fn requests(grant: &CGrant) -> Done<Requests> {
    let mut requests = Requests::default();
    for (name, given) in asked(grant) {
        // SAFETY: as this function's own contract.
        let Some(value) = unsafe { text(given, name) }? else { continue };
        let request = REQUESTS.iter().find(|request| request.name == name);
        let read = request.map_or(Ok(()), |request| request.read(name, value.as_bytes(), &mut requests));
        read.map_err(|error| refused(error.to_string()))?;
    }
    Ok(requests)
}

/// Every limit that can be requested, by the name of its option.
pub(super) fn asked(grant: &CGrant) -> [(&'static str, *const c_char); 5] {
    [
        ("cpu-limit", grant.cpu_limit),
        ("cpu-burst", grant.cpu_burst),
        ("mem-high", grant.mem_high),
        ("pids-max", grant.pids_max),
        ("io-max", grant.io_max),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_that_can_be_asked_for_can_be_asked_for_here() {
        // SAFETY: zero is a value of each member.
        let grant: CGrant = unsafe { MaybeUninit::zeroed().assume_init() };
        let limits = REQUESTS.iter().filter(|request| request.limit.is_some());
        let names: Vec<&str> = limits.map(|request| request.name).collect();
        assert_eq!(asked(&grant).map(|(name, _)| name).as_slice(), names);
    }
}
