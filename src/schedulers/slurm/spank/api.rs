// SPDX-License-Identifier: GPL-2.0-or-later
//! Typed wrappers for Slurm's functions, which are looked up in the program that loaded the plugin.
//!
//! A missing symbol (an older Slurm, another program) is an error only of the call that needs it.

use std::ffi::{CStr, CString, c_char, c_int};

use once_cell::sync::OnceCell;

use crate::error::{Error, Result};

/// The generated declarations.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
pub mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

use bindings::{SpankApi, spank_context, spank_item, spank_option};

/// The programs that load SPANK plugins, as far as jobfence distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// slurmstepd, with a step.
    Step,
    /// slurmd itself.
    Slurmd,
    /// srun.
    Srun,
    /// sbatch, salloc, and other commands that make allocations (scrontab, scrun).
    Allocator,
    /// The process of a prolog or epilog, or a program other than Slurm's.
    Other,
}

/// Slurm's handle of a step, valid during one callback.
pub type SpankHandle = bindings::spank_t;

static API: OnceCell<SpankApi> = OnceCell::new();

/// The functions of this program.
pub fn functions() -> Result<&'static SpankApi> {
    API.get_or_try_init(|| {
        // The declarations are from spank.h, and are the same in all releases that `version` admits.
        // SAFETY: the program itself, which stays loaded; libloading runs no initialiser for it.
        unsafe { SpankApi::from_library(libloading::os::unix::Library::this()) }.map_err(|error| missing(&error))
    })
}

/// Uses these as the functions of this program: for a program that plays slurmstepd, and cannot export variadic functions. `false`: the
/// program's own functions have been looked up before.
#[doc(hidden)]
pub fn play(functions: SpankApi) -> bool {
    API.set(functions).is_ok()
}

/// The error for a missing symbol.
pub fn missing(error: &libloading::Error) -> Error {
    Error::new(format!("this program lacks a function of Slurm's plugin interface: {error}"))
}

/// The kind of this program.
pub fn context() -> Context {
    let Ok(context) = functions().and_then(|api| api.spank_context.as_ref().map_err(missing)) else {
        return Context::Other;
    };
    // SAFETY: takes nothing, and only looks at the plugin stack's own state.
    match unsafe { context() } {
        spank_context::S_CTX_REMOTE => Context::Step,
        spank_context::S_CTX_SLURMD => Context::Slurmd,
        spank_context::S_CTX_LOCAL => Context::Srun,
        spank_context::S_CTX_ALLOCATOR => Context::Allocator,
        _ => Context::Other,
    }
}

/// The plugin's arguments in plugstack.conf.
///
/// # Safety
/// `av` must point to `ac` pointers, each null or to a NUL-terminated string, that outlive the result.
pub unsafe fn arguments<'a>(ac: c_int, av: *mut *mut c_char) -> Vec<&'a [u8]> {
    let count = usize::try_from(ac).unwrap_or(0);
    if av.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let pointers = unsafe { std::slice::from_raw_parts(av, count) };
    let strings = pointers.iter().filter(|pointer| !pointer.is_null());
    // SAFETY: the caller's promise.
    strings.map(|&pointer| unsafe { CStr::from_ptr(pointer) }.to_bytes()).collect()
}

/// `ESPANK_ENV_NOEXIST` in slurm_errno.h, the same in all releases.
const NO_SUCH_VARIABLE: bindings::spank_err_t = 3004;

/// `ESPANK_NOSPACE`, likewise: the value is longer than the buffer.
const NO_SPACE: bindings::spank_err_t = 3005;

/// What Slurm tells about the step.
pub struct Spank(SpankHandle);

impl Spank {
    /// Valid for the length of the callback that received the handle.
    pub fn new(handle: SpankHandle) -> Self {
        Self(handle)
    }

    /// An item of type `uint16_t`: `S_JOB_NCPUS`.
    pub fn u16(&self, item: spank_item::Type) -> Result<u16> {
        // SAFETY: the item has this type in spank.h.
        unsafe { self.get(item, 0u16) }
    }

    /// An item of type `uint32_t` or `uid_t`.
    pub fn u32(&self, item: spank_item::Type) -> Result<u32> {
        // SAFETY: the item has this type in spank.h.
        unsafe { self.get(item, 0u32) }
    }

    /// An item of type `uint64_t`: `S_JOB_ALLOC_MEM`, `S_STEP_ALLOC_MEM`.
    pub fn u64(&self, item: spank_item::Type) -> Result<u64> {
        // SAFETY: the item has this type in spank.h.
        unsafe { self.get(item, 0u64) }
    }

    /// An item of type `int` or `pid_t`.
    pub fn int(&self, item: spank_item::Type) -> Result<c_int> {
        // SAFETY: the item has this type in spank.h.
        unsafe { self.get(item, 0 as c_int) }
    }

    /// An item of type `char *`, which Slurm owns. `None`: Slurm has none.
    pub fn string(&self, item: spank_item::Type) -> Result<Option<String>> {
        // SAFETY: the item has this type in spank.h.
        let pointer: *const c_char = unsafe { self.get(item, std::ptr::null())? };
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: Slurm's own NUL-terminated string, which lives as long as the step.
        Ok(Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()))
    }

    /// # Safety
    /// `T` must be the type that spank.h gives for the item.
    unsafe fn get<T>(&self, item: spank_item::Type, mut value: T) -> Result<T> {
        let get_item = functions()?.spank_get_item.as_ref().map_err(missing)?;
        // SAFETY: a handle of this callback, an item, and a pointer to a value of the item's type.
        match unsafe { get_item(self.0, item, &raw mut value) } {
            0 => Ok(value),
            code => Err(Error::new(format!("Slurm does not tell item {item} of the step (spank error {code})"))),
        }
    }

    /// All groups of the step's user, including the primary one, from the credential. `None`: Slurm does not say, as with
    /// `LaunchParameters=disable_send_gids`.
    pub fn gids(&self) -> Result<Option<Vec<u32>>> {
        let get_item = functions()?.spank_get_item.as_ref().map_err(missing)?;
        let (mut gids, mut count): (*const u32, c_int) = (std::ptr::null(), 0);
        // SAFETY: a handle of this callback; the item fills in a `gid_t *` and an `int` (spank.h).
        match unsafe { get_item(self.0, spank_item::S_JOB_SUPPLEMENTARY_GIDS, &raw mut gids, &raw mut count) } {
            0 => {}
            code => return Err(Error::new(format!("Slurm does not tell the groups of the step (spank error {code})"))),
        }
        let count = usize::try_from(count).unwrap_or(0);
        if gids.is_null() || count == 0 {
            return Ok(None);
        }
        // SAFETY: Slurm's own array of so many numbers, which lives as long as the step.
        let mut all = unsafe { std::slice::from_raw_parts(gids, count) }.to_vec();
        all.push(self.u32(spank_item::S_JOB_GID)?);
        Ok(Some(all))
    }

    /// A variable in the environment of the step's tasks. `None`: it is not set. Most of them are the user's.
    pub fn getenv(&self, name: &CStr) -> Result<Option<String>> {
        let getenv = functions()?.spank_getenv.as_ref().map_err(missing)?;
        let mut value = [0u8; 1024];
        let length = c_int::try_from(value.len()).unwrap_or(0);
        // SAFETY: a handle of this callback, a NUL-terminated string, and a buffer of this length.
        match unsafe { getenv(self.0, name.as_ptr(), value.as_mut_ptr().cast(), length) } {
            0 => {
                let text = CStr::from_bytes_until_nul(&value).map(|text| text.to_string_lossy().into_owned());
                Ok(text.ok())
            }
            NO_SUCH_VARIABLE => Ok(None),
            NO_SPACE => Err(Error::new(format!("{}: found more than {} bytes", name.to_string_lossy(), length - 1))),
            code => Err(Error::new(format!("Slurm does not tell {} (spank error {code})", name.to_string_lossy()))),
        }
    }

    /// Adds an option to the command's options. Only in `slurm_spank_init`.
    pub fn register(&self, option: &mut spank_option) -> Result<()> {
        let register = functions()?.spank_option_register.as_ref().map_err(missing)?;
        // SAFETY: a handle of this callback, and an option whose strings live until it returns; Slurm copies them.
        match unsafe { register(self.0, option) } {
            0 => Ok(()),
            code => Err(Error::new(format!("Slurm does not take it (spank error {code})"))),
        }
    }

    /// In a command that makes an allocation, sets a variable for the job and for its prolog and epilog: see "job control environment" in
    /// spank(8).
    pub fn set_for_job(&self, name: &str, value: &str) -> Result<()> {
        let setenv = functions()?.spank_job_control_setenv.as_ref().map_err(missing)?;
        let text = |text: &str| CString::new(text).map_err(|_| Error::new("a variable with a NUL").value(text));
        let (c_name, c_value) = (text(name)?, text(value)?);
        // SAFETY: a handle of this callback and two NUL-terminated strings, which Slurm copies.
        match unsafe { setenv(self.0, c_name.as_ptr(), c_value.as_ptr(), 1) } {
            0 => Ok(()),
            code => Err(Error::new(format!("Slurm does not set {name} (spank error {code})"))),
        }
    }

    /// Removes a variable from the environment of the step's tasks, if it is set.
    pub fn unsetenv(&self, name: &CStr) {
        if let Ok(unsetenv) = functions().and_then(|api| api.spank_unsetenv.as_ref().map_err(missing)) {
            // SAFETY: a handle of this callback and a NUL-terminated string.
            let _ = unsafe { unsetenv(self.0, name.as_ptr()) };
        }
    }

    /// Sets a variable in the environment of the step's tasks.
    pub fn setenv(&self, name: &CStr, value: &str) -> Result<()> {
        let setenv = functions()?.spank_setenv.as_ref().map_err(missing)?;
        let value = CString::new(value).map_err(|_| Error::new("a variable's value with a NUL").value(value))?;
        // SAFETY: a handle of this callback and two NUL-terminated strings, which Slurm copies.
        match unsafe { setenv(self.0, name.as_ptr(), value.as_ptr(), 1) } {
            0 => Ok(()),
            code => Err(Error::new(format!("Slurm does not set {} (spank error {code})", name.to_string_lossy()))),
        }
    }
}

#[cfg(test)]
mod tests {
    /// `make bindings` renews the committed file.
    #[test]
    fn the_committed_bindings_are_fresh() {
        assert_eq!(
            env!("JOBFENCE_BINDINGS"),
            "generated",
            "slurm/spank.h or libclang is missing: install libslurm-dev and libclang-dev"
        );
        let fresh = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
        let committed = include_str!("bindings.rs");
        // Only the number of the header's release may differ.
        let without_release = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.contains("SLURM_VERSION_NUMBER")).map(str::to_owned).collect()
        };
        assert_eq!(without_release(fresh), without_release(committed));
    }
}
