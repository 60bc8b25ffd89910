// SPDX-License-Identifier: GPL-2.0-or-later
//! The functions of NVIDIA's management library (NVML) that are used here, by its nvml.h. Only the probe opens it.
//!
//! A library may be older than a function, so each is looked up when it is called, and its predecessor is called in its place.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;

use libloading::Library;

/// The library that NVIDIA's driver brings.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// The room for a UUID in bytes, with the NUL: `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const TEXT: usize = 96;

/// The most entries of a list that are read. The driver keeps 4000 records of processes at most.
const MOST: usize = 1 << 16;

/// `NVML_GPU_UTILIZATION_SAMPLES`.
const UTILIZATION_SAMPLES: c_int = 1;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED: c_int = 1;
/// `NVML_VALUE_NOT_AVAILABLE_ull`.
const NOT_AVAILABLE: u64 = u64::MAX;

const INSUFFICIENT_SIZE: c_int = 7;
const FUNCTION_NOT_FOUND: c_int = 13;

/// `nvmlReturn_t`, as far as a message names it.
const ERRORS: &[(c_int, &str)] = &[
    (1, "not initialized"),
    (2, "invalid argument"),
    (3, "not supported"),
    (4, "no permission"),
    (6, "not found"),
    (INSUFFICIENT_SIZE, "insufficient size"),
    (9, "the driver is not loaded"),
    (10, "time-out"),
    (12, "a library is not found"),
    (FUNCTION_NOT_FOUND, "the library has no such function"),
    (15, "the GPU is lost"),
    (16, "the GPU has to be reset"),
    (17, "the operating system refused"),
    (18, "library and driver are of different releases"),
    (20, "no memory"),
    (21, "no data"),
    (999, "unknown error"),
];

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmlError {
    function: &'static str,
    code: c_int,
}

impl NvmlError {
    /// Whether the whole library is useless from now on, as after a reload of the driver.
    pub fn is_of_library(&self) -> bool {
        matches!(self.code, 1 | 9 | 12 | 18)
    }

    /// Whether this GPU or this release does not have the figure. That is no error.
    pub fn is_not_supported(&self) -> bool {
        matches!(self.code, 3 | 6 | FUNCTION_NOT_FOUND | 21)
    }
}

impl fmt::Display for NvmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = ERRORS.iter().find(|(code, _)| *code == self.code).map_or("another error", |(_, words)| words);
        write!(f, "{}: {words} ({})", self.function, self.code)
    }
}

/// What a call returns.
pub type NvmlResult<T> = Result<T, NvmlError>;

/// A GPU. The handle is the library's, and valid as long as the library is open.
#[derive(Debug, Clone, Copy)]
pub struct NvmlDevice(*mut c_void);

/// `nvmlUtilization_t`
#[repr(C)]
#[derive(Default)]
struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_t`
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
#[derive(Default)]
struct Memory2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process1 {
    pid: c_uint,
    memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process2 {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlSample_t`: the union is as long as its longest member.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    microseconds: c_ulonglong,
    value: [c_uint; 2],
}

/// `nvmlAccountingStats_t`
#[repr(C)]
#[derive(Default)]
struct AccountingStats {
    gpu: c_uint,
    memory: c_uint,
    most_memory: c_ulonglong,
    milliseconds: c_ulonglong,
    begun: c_ulonglong,
    is_running: c_uint,
    reserved: [c_uint; 5],
}

/// The driver's record of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accounted {
    pub pid: u32,
    /// When the process began to use the GPU, in microseconds since 1970.
    pub begun: u64,
    /// The share of the process's time in which it kept the GPU busy, in percent.
    pub percent: Option<u64>,
    /// The most memory that the process had, in bytes.
    pub memory: Option<u64>,
    /// How long the process used the GPU. It is 0 until the process ends.
    pub milliseconds: u64,
    pub is_running: bool,
}

/// The library.
pub struct Nvml(Library);

impl Nvml {
    /// Opens and initializes the library.
    pub fn open(path: &str) -> Result<Self, String> {
        // SAFETY: the library is NVIDIA's driver's, whose initializers a process may run; this process does nothing else.
        let library = unsafe { Library::new(path) }.map_err(|error| format!("open {path}: {error}"))?;
        let nvml = Self(library);
        nvml.call("nvmlInit_v2", |init: unsafe extern "C" fn() -> c_int| {
            // SAFETY: it takes nothing.
            unsafe { init() }
        })
        .map_err(|error| error.to_string())?;
        Ok(nvml)
    }

    /// Calls a function of the library. `F` is its type by nvml.h.
    fn call<F: Copy>(&self, function: &'static str, call: impl FnOnce(F) -> c_int) -> NvmlResult<()> {
        // SAFETY: each caller names the type that nvml.h gives the function; it is called while the library is open.
        let found = unsafe { self.0.get::<F>(function.as_bytes()) };
        let code = found.map_or(FUNCTION_NOT_FOUND, |found| call(*found));
        if code == 0 { Ok(()) } else { Err(NvmlError { function, code }) }
    }

    /// Asks a GPU for one value.
    fn of<T: Default>(&self, device: NvmlDevice, function: &'static str) -> NvmlResult<T> {
        self.of_with(device, function, T::default())
    }

    /// Asks a GPU for one value, with something in the value before.
    fn of_with<T>(&self, device: NvmlDevice, function: &'static str, mut value: T) -> NvmlResult<T> {
        self.call(function, |ask: unsafe extern "C" fn(*mut c_void, *mut T) -> c_int| {
            // SAFETY: the value has the layout of nvml.h, and outlives the call.
            unsafe { ask(device.0, &raw mut value) }
        })?;
        Ok(value)
    }

    /// How many GPUs there are.
    pub fn count(&self) -> NvmlResult<u32> {
        let mut count = 0;
        self.call("nvmlDeviceGetCount_v2", |ask: unsafe extern "C" fn(*mut c_uint) -> c_int| {
            // SAFETY: the number outlives the call.
            unsafe { ask(&raw mut count) }
        })?;
        Ok(count)
    }

    /// The GPU at a place.
    pub fn device(&self, at: u32) -> NvmlResult<NvmlDevice> {
        let mut device = std::ptr::null_mut();
        self.call("nvmlDeviceGetHandleByIndex_v2", |ask: unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int| {
            // SAFETY: the pointer outlives the call.
            unsafe { ask(at, &raw mut device) }
        })?;
        Ok(NvmlDevice(device))
    }

    /// The N of the GPU's /dev/nvidiaN.
    pub fn minor(&self, device: NvmlDevice) -> NvmlResult<u32> {
        self.of::<c_uint>(device, "nvmlDeviceGetMinorNumber")
    }

    pub fn uuid(&self, device: NvmlDevice) -> NvmlResult<String> {
        let mut text = [0; TEXT];
        self.call("nvmlDeviceGetUUID", |ask: unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int| {
            // SAFETY: the room is as long as it says, less the last byte, which stays NUL.
            unsafe { ask(device.0, text.as_mut_ptr(), TEXT as c_uint - 1) }
        })?;
        // SAFETY: the last byte is NUL.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// How busy the GPU was since `seen`: the mean and the highest of the driver's samples, in percent. The third number is the time of the
    /// last sample, to be given as `seen` the next time.
    pub fn utilization(&self, device: NvmlDevice, seen: u64) -> NvmlResult<(f64, f64, u64)> {
        match self.samples(device, seen) {
            Ok(samples) if !samples.is_empty() => {
                let values = || samples.iter().map(|sample| f64::from(sample.value[0]));
                let last = samples.iter().map(|sample| sample.microseconds).max().unwrap_or(seen);
                Ok((values().sum::<f64>() / samples.len() as f64, values().fold(0.0, f64::max), last))
            }
            Err(error) if error.is_of_library() => Err(error),
            _ => {
                let rates = self.of::<Rates>(device, "nvmlDeviceGetUtilizationRates")?;
                Ok((f64::from(rates.gpu), f64::from(rates.gpu), seen))
            }
        }
    }

    fn samples(&self, device: NvmlDevice, seen: u64) -> NvmlResult<Vec<Sample>> {
        type AskSamples =
            unsafe extern "C" fn(*mut c_void, c_int, c_ulonglong, *mut c_int, *mut c_uint, *mut Sample) -> c_int;
        const FUNCTION: &str = "nvmlDeviceGetSamples";
        let (mut kind, mut count) = (UNSIGNED, 0);
        self.call(FUNCTION, |ask: AskSamples| {
            // SAFETY: without room, it says how many there are.
            unsafe { ask(device.0, UTILIZATION_SAMPLES, seen, &raw mut kind, &raw mut count, std::ptr::null_mut()) }
        })?;
        let mut samples = vec![Sample::default(); (count as usize).min(MOST)];
        count = samples.len() as c_uint;
        self.call(FUNCTION, |ask: AskSamples| {
            // SAFETY: there is room for so many.
            unsafe { ask(device.0, UTILIZATION_SAMPLES, seen, &raw mut kind, &raw mut count, samples.as_mut_ptr()) }
        })?;
        samples.truncate(count as usize);
        // A sample of another kind does not count, nor does one that the driver has not taken.
        samples.retain(|sample| kind == UNSIGNED && sample.microseconds > seen && sample.value[0] <= 100);
        Ok(samples)
    }

    /// The memory in use, without what the driver reserves, and all of it: in bytes.
    pub fn memory(&self, device: NvmlDevice) -> NvmlResult<(u64, u64)> {
        let version = (2 << 24) | size_of::<Memory2>() as c_uint;
        let new = self.of_with(device, "nvmlDeviceGetMemoryInfo_v2", Memory2 { version, ..Memory2::default() });
        match new {
            Ok(memory) => Ok((memory.used, memory.total)),
            // A driver before release 510 lacks the function. Its used memory includes what it reserves.
            Err(error) if error.is_not_supported() || error.code == 2 => {
                let memory = self.of::<Memory>(device, "nvmlDeviceGetMemoryInfo")?;
                Ok((memory.used, memory.total))
            }
            Err(error) => Err(error),
        }
    }

    /// The energy since the driver was loaded, in mJ.
    pub fn energy(&self, device: NvmlDevice) -> NvmlResult<u64> {
        self.of::<c_ulonglong>(device, "nvmlDeviceGetTotalEnergyConsumption")
    }

    /// Why its clocks are slow now: `nvmlClocksEventReasons`.
    pub fn slowed(&self, device: NvmlDevice) -> NvmlResult<u64> {
        let new = self.of::<c_ulonglong>(device, "nvmlDeviceGetCurrentClocksEventReasons");
        // The function had another name before release 535.
        new.or_else(|_| self.of::<c_ulonglong>(device, "nvmlDeviceGetCurrentClocksThrottleReasons"))
    }

    /// Whether the GPU is divided into instances (MIG).
    pub fn is_divided(&self, device: NvmlDevice) -> NvmlResult<bool> {
        let (mut now, mut later) = (0, 0);
        let done = self.call(
            "nvmlDeviceGetMigMode",
            |ask: unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> c_int| {
                // SAFETY: both numbers outlive the call.
                unsafe { ask(device.0, &raw mut now, &raw mut later) }
            },
        );
        match done {
            Ok(()) => Ok(now == 1),
            // The GPU or the driver cannot divide.
            Err(error) if error.is_not_supported() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The processes that compute on the GPU, each with its memory in bytes.
    pub fn processes(&self, device: NvmlDevice) -> NvmlResult<Vec<(u32, Option<u64>)>> {
        let known = |memory: u64| Some(memory).filter(|memory| *memory != NOT_AVAILABLE);
        for function in ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"] {
            match self.list::<Process2>(device, function) {
                Err(error) if error.code == FUNCTION_NOT_FOUND => {}
                done => return Ok(done?.iter().map(|process| (process.pid, known(process.memory))).collect()),
            }
        }
        let old = self.list::<Process1>(device, "nvmlDeviceGetComputeRunningProcesses")?;
        Ok(old.iter().map(|process| (process.pid, known(process.memory))).collect())
    }

    /// A list that a GPU has. The list may grow between two calls.
    fn list<T: Copy + Default>(&self, device: NvmlDevice, function: &'static str) -> NvmlResult<Vec<T>> {
        let mut room: Vec<T> = vec![T::default(); 64];
        loop {
            let mut count = room.len() as c_uint;
            let done = self.call(function, |ask: unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut T) -> c_int| {
                // SAFETY: there is room for so many, each with the layout of nvml.h.
                unsafe { ask(device.0, &raw mut count, room.as_mut_ptr()) }
            });
            match done {
                Err(error) if error.code == INSUFFICIENT_SIZE && room.len() < MOST => {
                    let wanted = (count as usize).max(room.len()).saturating_mul(2).min(MOST);
                    room.resize(wanted, T::default());
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    room.truncate(count as usize);
                    return Ok(room);
                }
            }
        }
    }

    /// Whether the driver keeps a record of each process.
    pub fn accounts(&self, device: NvmlDevice) -> NvmlResult<bool> {
        Ok(self.of::<c_uint>(device, "nvmlDeviceGetAccountingMode")? == 1)
    }

    /// Has the driver keep a record of each process.
    pub fn begin_accounting(&self, device: NvmlDevice) -> NvmlResult<()> {
        self.call("nvmlDeviceSetAccountingMode", |set: unsafe extern "C" fn(*mut c_void, c_uint) -> c_int| {
            // SAFETY: it takes a number.
            unsafe { set(device.0, 1) }
        })
    }

    /// The driver's records of processes, ended ones included.
    pub fn accounted(&self, device: NvmlDevice) -> NvmlResult<Vec<Accounted>> {
        let pids = self.list::<c_uint>(device, "nvmlDeviceGetAccountingPids")?;
        let mut all = Vec::with_capacity(pids.len());
        for pid in pids {
            let mut stats = AccountingStats::default();
            let done = self.call(
                "nvmlDeviceGetAccountingStats",
                |ask: unsafe extern "C" fn(*mut c_void, c_uint, *mut AccountingStats) -> c_int| {
                    // SAFETY: the record has the layout of nvml.h, and outlives the call.
                    unsafe { ask(device.0, pid, &raw mut stats) }
                },
            );
            match done {
                Ok(()) => all.push(Accounted {
                    pid,
                    begun: stats.begun,
                    percent: Some(stats.gpu.into()).filter(|percent| *percent <= 100),
                    memory: Some(stats.most_memory).filter(|memory| *memory != NOT_AVAILABLE),
                    milliseconds: stats.milliseconds,
                    is_running: stats.is_running != 0,
                }),
                // Another process has taken the record's place meanwhile.
                Err(error) if error.is_not_supported() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}
