// SPDX-License-Identifier: GPL-2.0-or-later
//! A program that has Slurm's functions, and answers what an input says: what the plugin makes of pointers, counts and codes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Once;

use jobfence::schedulers::slurm::spank::api::bindings::{
    SpankApi, spank_context, spank_err_t, spank_item, spank_item_t, spank_option, spank_t,
};
use jobfence::schedulers::slurm::spank::api::play;

/// What it answers, and what it has been told.
#[derive(Default)]
pub struct Answers {
    /// `spank_context`.
    pub context: u32,
    /// The codes of items, where they are not 0.
    pub codes: BTreeMap<u32, u32>,
    /// Numbers, of whatever type they are.
    pub numbers: BTreeMap<u32, u64>,
    /// Strings; null where there is none.
    pub strings: BTreeMap<u32, CString>,
    /// Groups, and how many of them it says there are: at most as many, or null.
    pub gids: Option<Vec<u32>>,
    pub gid_count: c_int,
    /// The environment of the tasks: values without a NUL.
    pub environment: BTreeMap<CString, CString>,
    /// What `spank_getenv` answers instead, having filled the buffer to its last byte.
    pub getenv_code: Option<u32>,
    /// What the job was told.
    pub of_job: Vec<(CString, CString)>,
    /// The options, as registered.
    pub options: Vec<(CString, c_int, Callback)>,
}

pub type Callback = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

thread_local! {
    static ANSWERS: RefCell<Answers> = RefCell::default();
}

/// Answers so from now on, in this thread.
pub fn answer(answers: Answers) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| assert!(play(functions()), "functions were looked up before there were any"));
    ANSWERS.set(answers);
}

/// What there is now.
pub fn with<T>(body: impl FnOnce(&mut Answers) -> T) -> T {
    ANSWERS.with_borrow_mut(body)
}

fn functions() -> SpankApi {
    // SAFETY: the program itself, which has none of them.
    let api = unsafe { SpankApi::from_library(libloading::os::unix::Library::this()) };
    let mut api = api.expect("what is missing is an error of each function");
    api.spank_context = Ok(context);
    api.spank_option_register = Ok(option_register);
    api.spank_getenv = Ok(getenv);
    api.spank_job_control_setenv = Ok(job_control_setenv);
    // A variadic function cannot be written here, and is called as any other with so few arguments, on the machines that
    // there are tests for (System V on x86-64, AAPCS64).
    // SAFETY: as said.
    api.spank_get_item = Ok(unsafe { std::mem::transmute::<GetItem, Variadic>(get_item) });
    api
}

type GetItem = unsafe extern "C" fn(spank_t, spank_item_t, *mut c_void, *mut c_void) -> spank_err_t;
type Variadic = unsafe extern "C" fn(spank_t, spank_item_t, ...) -> spank_err_t;

unsafe extern "C" fn context() -> u32 {
    with(|answers| answers.context)
}

/// # Safety
/// The pointers are those that spank.h wants for the item.
unsafe extern "C" fn get_item(_: spank_t, item: spank_item_t, first: *mut c_void, second: *mut c_void) -> spank_err_t {
    use spank_item as of;
    with(|answers| {
        if let Some(code) = answers.codes.get(&item) {
            return *code;
        }
        let number = answers.numbers.get(&item).copied().unwrap_or(0);
        // SAFETY: the types are those of spank.h.
        unsafe {
            match item {
                of::S_JOB_NCPUS => first.cast::<u16>().write(number as u16),
                of::S_JOB_ALLOC_MEM | of::S_STEP_ALLOC_MEM => first.cast::<u64>().write(number),
                of::S_JOB_ALLOC_CORES | of::S_STEP_ALLOC_CORES => {
                    let string = answers.strings.get(&item).map_or(std::ptr::null(), |string| string.as_ptr());
                    first.cast::<*const c_char>().write(string);
                }
                of::S_JOB_SUPPLEMENTARY_GIDS => {
                    let gids = answers.gids.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
                    first.cast::<*const u32>().write(gids);
                    second.cast::<c_int>().write(answers.gid_count);
                }
                _ => first.cast::<u32>().write(number as u32),
            }
        }
        0
    })
}

/// As Slurm's own: what does not fit with its NUL is not given.
///
/// # Safety
/// A NUL-terminated name, and a buffer of this length.
unsafe extern "C" fn getenv(_: spank_t, name: *const c_char, buffer: *mut c_char, length: c_int) -> spank_err_t {
    const NO_SUCH_VARIABLE: spank_err_t = 3004;
    const NO_SPACE: spank_err_t = 3005;
    // SAFETY: as this function's own contract.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: as this function's own contract.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length as usize) };
    with(|answers| {
        if let Some(code) = answers.getenv_code {
            buffer.fill(b'x');
            return code;
        }
        let Some(value) = answers.environment.get(name) else { return NO_SUCH_VARIABLE };
        let value = value.as_bytes_with_nul();
        let Some(place) = buffer.get_mut(..value.len()) else { return NO_SPACE };
        place.copy_from_slice(value);
        0
    })
}

/// # Safety
/// An option whose strings end with a NUL.
unsafe extern "C" fn option_register(_: spank_t, option: *mut spank_option) -> spank_err_t {
    // SAFETY: as this function's own contract.
    let (option, name) = unsafe { (&*option, CStr::from_ptr((*option).name)) };
    let callback = option.cb.expect("an option with a callback");
    with(|answers| answers.options.push((name.to_owned(), option.val, callback)));
    0
}

/// # Safety
/// Two NUL-terminated strings.
unsafe extern "C" fn job_control_setenv(
    _: spank_t,
    name: *const c_char,
    value: *const c_char,
    _: c_int,
) -> spank_err_t {
    // SAFETY: as this function's own contract.
    let said = unsafe { (CStr::from_ptr(name).to_owned(), CStr::from_ptr(value).to_owned()) };
    with(|answers| answers.of_job.push(said));
    0
}

/// For what Slurm's programs are.
pub const ALLOCATOR: u32 = spank_context::S_CTX_ALLOCATOR;
