// SPDX-License-Identifier: GPL-2.0-or-later
//! The options of srun, sbatch and salloc, in the commands and in slurmstepd. [`crate::requests`] defines what can be asked for.
//!
//! Facts from Slurm's src/common/spank.c (plugstack.c in 22.05), read in 22.05, 24.11 and 26.05:
//! - In a command the callback is called for each variable `SLURM_SPANK__SLURM_SPANK_OPTION_jobfence_cpu_limit`, then for each
//!   option in turn (in sbatch, for `#SBATCH` lines before that): the last one counts. A failure ends the command, and nothing
//!   is submitted.
//! - sbatch and salloc put these variables into the job's environment, so that each srun in it gets the same options, unless it is
//!   given others.
//! - In slurmstepd the callback is called after `slurm_spank_init` for the options of the launch, and for the variables
//!   `_SLURM_SPANK_OPTION_jobfence_cpu_limit` of the step's environment, which Slurm removes. The user who launches the step chooses
//!   both. A failure is logged and changes nothing, so it is remembered here.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::log;
use crate::requests::{REQUESTS, Request, Requests, UserRequests};
use crate::schedulers::slurm::spank::api::{Spank, SpankHandle, bindings::spank_option};
use crate::schedulers::slurm::spank::callback::{ReturnCode, answer, callback};

/// The options given to this process.
#[derive(Default)]
struct GivenOptions {
    requests: Requests,
    /// The first error.
    error: Option<Error>,
}

static GIVEN: LazyLock<Mutex<GivenOptions>> = LazyLock::new(Mutex::default);

/// A callback that panicked left an error.
fn given() -> MutexGuard<'static, GivenOptions> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the options known, in the commands and in slurmstepd. Only from `slurm_spank_init`, and only once, however often plugstack.conf
/// lists the plugin: Slurm complains of two plugins with the same options.
pub fn register(spank: SpankHandle) {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if ONCE.swap(true, Ordering::Relaxed) {
        return;
    }
    for (index, request) in (0..).zip(REQUESTS) {
        if let Err(error) = register_one(spank, index, request) {
            log::error!("cannot register the option --{}: {error}", request.name);
        }
    }
}

fn register_one(spank: SpankHandle, index: c_int, request: &Request) -> Result<()> {
    let text = |text: &str| CString::new(text).map_err(|_| Error::new("a text with a NUL"));
    let (name, argument) = (text(request.name)?, text(request.argument)?);
    // Other plugins name themselves in the same way.
    let usage = text(&format!("[jobfence] {}; jobs that the job submits inherit this: jobfence(8)", request.usage))?;
    // Slurm copies all of it.
    let mut option = spank_option {
        name: name.as_ptr().cast_mut(),
        arginfo: argument.as_ptr().cast_mut(),
        usage: usage.as_ptr().cast_mut(),
        has_arg: 1,
        val: index,
        cb: Some(option_given),
    };
    Spank::new(spank).register(&mut option)
}

/// Slurm calls this for each option that it is given.
///
/// # Safety
/// For Slurm only: `value` must be null or NUL-terminated.
unsafe extern "C" fn option_given(index: c_int, value: *const c_char, remote: c_int) -> c_int {
    let verdict = callback("the callback of an option", || {
        // SAFETY: as this function's own contract.
        let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes());
        take(index, value, remote != 0)
    });
    if verdict.is_none() {
        given().error.get_or_insert(Error::new("jobfence did not finish reading an option"));
    }
    answer(verdict.unwrap_or(ReturnCode::Bad))
}

fn take(index: c_int, value: Option<&[u8]>, remote: bool) -> ReturnCode {
    let request = usize::try_from(index).ok().and_then(|index| REQUESTS.get(index));
    // Never seen, but a launch message could come without a value.
    let (Some(request), Some(value)) = (request, value) else {
        let error = Error::new("Slurm has named an option without a value, or one that is not jobfence's");
        given().error.get_or_insert(error);
        return ReturnCode::Bad;
    };
    let mut given = given();
    let result = request.read(&format!("--{}", request.name), value, &mut given.requests);
    match result {
        Ok(()) => ReturnCode::Good,
        Err(error) => {
            // At the prompt this is the answer; in slurmstepd the log has it when the step is refused.
            if !remote {
                log::error!("{error}");
            }
            given.error.get_or_insert(error);
            ReturnCode::Bad
        }
    }
}

/// Called in sbatch and salloc when all options have been read: passes the job's options to all of its steps, including those with options
/// of their own. Slurm puts these variables into the job's environment with the prefix `SLURM_SPANK_`, and into that of Prolog and Epilog
/// with `SPANK_`. Values from an enclosing job stay unless replaced, as with the options themselves.
pub fn tell_job(spank: &Spank) {
    let requests = given().requests.clone();
    for request in REQUESTS {
        let Some(value) = request.value(&requests) else { continue };
        if let Err(error) = spank.set_for_job(&request.variable(), &value) {
            log::error!("cannot hand the job's options to its steps, so only their own options limit them: {error}");
        }
    }
}

/// In slurmstepd: what was requested for the job and for the step. The first mistake in any of it is the error.
pub fn requests(spank: &Spank) -> Result<UserRequests> {
    let given = given();
    if let Some(error) = &given.error {
        return Err(error.clone());
    }
    let mut requests = UserRequests { job: Requests::default(), step: given.requests.clone() };
    for request in REQUESTS {
        let name = format!("SLURM_SPANK_{}", request.variable());
        let c_name = CString::new(name.as_str()).map_err(|_| Error::new("a variable's name with a NUL"))?;
        if let Some(value) = spank.getenv(&c_name).map_err(|error| error.hint(request.for_example()))? {
            request.read_with(&name, &request.for_example(), value.as_bytes(), &mut requests.job)?;
        }
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_one_that_slurm_takes() {
        for request in REQUESTS {
            // SPANK_OPTION_MAXLEN; the name in the environment has these characters unchanged.
            assert!(request.name.len() <= 75 && request.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
            assert!(!request.usage.is_empty() && !request.argument.is_empty());
        }
        let variables: Vec<_> = REQUESTS.iter().map(Request::variable).collect();
        assert_eq!(
            variables,
            [
                "JOBFENCE_CPU_LIMIT",
                "JOBFENCE_CPU_BURST",
                "JOBFENCE_MEM_HIGH",
                "JOBFENCE_PIDS_MAX",
                "JOBFENCE_IO_MAX",
                "JOBFENCE_USAGE_CARD",
                "JOBFENCE_DELEGATE",
                "JOBFENCE_SIGNAL_AT",
                "JOBFENCE_ELASTIC_RAM"
            ]
        );
    }

    /// One test, since the given options belong to the process.
    #[test]
    fn the_last_value_counts_and_the_first_error_stays() {
        let pids = REQUESTS.iter().position(|request| request.name == "pids-max").unwrap();
        let pids = c_int::try_from(pids).unwrap();
        assert_eq!(take(pids, Some(b"50"), true), ReturnCode::Good);
        assert_eq!(take(pids, Some(b"60"), true), ReturnCode::Good);
        assert_eq!(given().requests.pids_max, Some(60));
        assert_eq!(take(pids, Some(b"many"), true), ReturnCode::Bad);
        assert_eq!(take(pids, None, true), ReturnCode::Bad);
        assert_eq!(take(-1, Some(b"1"), true), ReturnCode::Bad);
        assert_eq!(take(c_int::MAX, Some(b"1"), true), ReturnCode::Bad);
        assert_eq!(given().requests.pids_max, Some(60));
        let error = given().error.take().unwrap().to_string();
        assert!(error.starts_with("--pids-max: found \"many\""), "{error}");
    }
}
