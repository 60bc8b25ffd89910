// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for Slurm: the symbols that spank.h asks a plugin to export, and which file handles them in which program.
//!
//! Return codes are only 0 and -1: up to 24.11 Slurm takes a positive one for success. slurmstepd's stdout is a pipe to slurmd, so nothing
//! here prints. See spank(8).

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicI32, AtomicU32};

pub mod api;
mod arguments;
mod callback;
mod card;
mod environment;
pub mod facts;
pub mod grant;
pub mod hand_over;
mod job;
mod log;
mod node_files;
mod options;
mod private;
mod restart;
mod rights;
mod slurmd;
mod step;
mod unfenced;
pub mod version;
mod waiting_tasks;

pub use api::Context;
use api::{Spank, bindings};
use callback::{ReturnCode, answer, callback};

use crate::sys::guard::guard;

/// Shown by Slurm in its messages.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_name: [u8; 9] = *b"jobfence\0";

/// Slurm loads only plugins that say "spank" here.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// Must be the release of the Slurm that loads the plugin; `version` sets it before Slurm reads it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: AtomicU32 = AtomicU32::new(bindings::SLURM_VERSION_NUMBER);

/// Version of the plugin interface: `SPANK_PLUGIN` in spank.h.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static spank_plugin_version: u32 = 1;

/// `ESPANK_JOB_FAILURE` of Slurm 25.05 and later: if init fails, the job fails instead of the node. Earlier releases ignore it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static slurm_spank_init_failure_mode: AtomicI32 = AtomicI32::new(3012);

/// Called when a program has loaded the plugin.
///
/// # Safety
/// For Slurm only: `spank` must be the handle of this call, and `av` have `ac` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(spank: api::SpankHandle, ac: c_int, av: *mut *mut c_char) -> c_int {
    let _ = callback("slurm_spank_init", || {
        match api::context() {
            // SAFETY: as this function's own contract.
            Context::Slurmd => slurmd::start(&unsafe { api::arguments(ac, av) }),
            Context::Step => {
                options::register(spank);
                // SAFETY: as this function's own contract.
                step::read(&unsafe { api::arguments(ac, av) });
            }
            Context::Srun | Context::Allocator => options::register(spank),
            Context::Other => {}
        }
        ReturnCode::Good
    });
    answer(ReturnCode::Good)
}

/// Called when options have been read. In slurmstepd the step is known, and no user code runs yet.
///
/// # Safety
/// For Slurm only: `spank` must be the handle of this call, and `av` have `ac` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(spank: api::SpankHandle, ac: c_int, av: *mut *mut c_char) -> c_int {
    let _ = callback("slurm_spank_init_post_opt", || {
        match api::context() {
            Context::Step => {
                // SAFETY: as this function's own contract.
                let arguments = unsafe { api::arguments(ac, av) };
                step::begin(&Spank::new(spank), &arguments);
            }
            Context::Allocator => {
                environment::hand_nothing_on();
                options::tell_job(&Spank::new(spank));
            }
            Context::Srun => environment::hand_nothing_on(),
            Context::Slurmd | Context::Other => {}
        }
        ReturnCode::Good
    });
    // Never a failure from here: it would drain the node, and up to 24.11 report the job as completed. If begin did not finish, the state
    // that it left refuses every task.
    answer(ReturnCode::Good)
}

/// Called in each task's process, as root, before it becomes the user's. Only here does a failure fail just the job.
///
/// # Safety
/// For Slurm only: `spank` must be the handle of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init_privileged(
    spank: api::SpankHandle,
    _ac: c_int,
    _av: *mut *mut c_char,
) -> c_int {
    let verdict = callback("slurm_spank_task_init_privileged", || match api::context() {
        Context::Step => step::admit(&Spank::new(spank)),
        _ => ReturnCode::Good,
    });
    answer(verdict.unwrap_or(ReturnCode::Bad))
}

/// Called in each task's process, as the user, just before its exec.
///
/// # Safety
/// For Slurm only: `spank` must be the handle of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(spank: api::SpankHandle, _ac: c_int, _av: *mut *mut c_char) -> c_int {
    let _ = callback("slurm_spank_task_init", || {
        if api::context() == Context::Step {
            step::tell_task(&Spank::new(spank));
        }
        ReturnCode::Good
    });
    answer(ReturnCode::Good)
}

/// Called in the step daemon. The task waits before its exec, in its final place as far as Slurm is concerned.
///
/// # Safety
/// For Slurm only: `spank` must be the handle of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_post_fork(
    spank: api::SpankHandle,
    _ac: c_int,
    _av: *mut *mut c_char,
) -> c_int {
    let verdict = callback("slurm_spank_task_post_fork", || {
        if api::context() == Context::Step {
            step::attach(&Spank::new(spank));
        }
        ReturnCode::Good
    });
    if verdict.is_none() {
        let _ = guard("end the task", || step::attach_did_not_finish(&Spank::new(spank)));
    }
    // Never a failure from here: it would drain the node, as from init_post_opt.
    answer(ReturnCode::Good)
}

/// Called in the step daemon when a task has ended. The user's stderr is still open.
///
/// # Safety
/// For Slurm only: `spank` must be the handle of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_exit(spank: api::SpankHandle, _ac: c_int, _av: *mut *mut c_char) -> c_int {
    let _ = callback("slurm_spank_task_exit", || {
        if api::context() == Context::Step {
            step::task_ended(&Spank::new(spank));
        }
        ReturnCode::Good
    });
    answer(ReturnCode::Good)
}

/// Called in the step daemon when every task has ended.
///
/// # Safety
/// For Slurm only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_exit(_spank: api::SpankHandle, _ac: c_int, _av: *mut *mut c_char) -> c_int {
    let _ = callback("slurm_spank_exit", || {
        if api::context() == Context::Step {
            step::end();
        }
        ReturnCode::Good
    });
    answer(ReturnCode::Good)
}
