// SPDX-License-Identifier: GPL-2.0-or-later
//! The options as Slurm's commands give them, by the callback that was registered: lines `cpu-limit=0.5`, or `7` for an option that
//! there is not. What sbatch tells the job is what each step of it understands.

use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, OnceLock, PoisonError};

use jobfence::requests::{REQUESTS, Requests};
use jobfence::schedulers::slurm::spank::api::Spank;
use jobfence::schedulers::slurm::spank::{slurm_spank_init, slurm_spank_init_post_opt};

use super::slurmstepd::{ALLOCATOR, Answers, Callback, answer, with};

pub const WORDS: &[&str] = &[
    "cpu-limit=0.5\n",
    "cpu-burst=20\n",
    "mem-high=2G\n",
    "pids-max=100\n",
    "io-max=/scratch rbps=200M;/a,wiops=100\n",
    "-1\n",
    "2147483647\n",
    "\0",
];

/// As they were registered; that is done once in a process.
fn registered() -> &'static [(CString, c_int, Callback)] {
    static REGISTERED: OnceLock<Vec<(CString, c_int, Callback)>> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        // SAFETY: a handle that only this program's functions get, and no arguments.
        assert_eq!(unsafe { slurm_spank_init(null_mut(), 0, null_mut()) }, 0);
        with(|answers| std::mem::take(&mut answers.options))
    })
}

/// What the process has been given belongs to all of its threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub fn run(data: &[u8]) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    answer(Answers { context: ALLOCATOR, ..Answers::default() });
    let options = registered();
    assert_eq!(options.len(), REQUESTS.len());
    let mut expected = Requests::default();
    let mut give = |index: c_int, value: Option<&[u8]>| {
        let value = value.and_then(|value| CString::new(value.split(|&byte| byte == 0).next()?).ok());
        let pointer = value.as_ref().map_or(null(), |value| value.as_ptr());
        // SAFETY: null, or a string that lives on; as from another node, so that nothing is logged.
        let code = unsafe { options[0].2(index, pointer, 1) };
        let request = options.iter().position(|(_, of, _)| *of == index).and_then(|at| REQUESTS.get(at));
        let read = request
            .zip(value)
            .is_some_and(|(request, value)| request.read("x", value.as_bytes(), &mut expected).is_ok());
        assert_eq!(code, if read { 0 } else { -1 }, "option {index}");
    };
    // Where every input begins, whatever was given before.
    for (index, value) in
        ["1024", "100", "1T", "4194304", "none", "never", "no", "none", "1000"].into_iter().enumerate()
    {
        give(index as c_int, Some(value.as_bytes()));
    }
    for line in data.split(|&byte| byte == b'\n') {
        let (name, value) = match line.iter().position(|&byte| byte == b'=') {
            Some(at) => (&line[..at], Some(&line[at + 1..])),
            None => (line, None),
        };
        let known = options.iter().find(|(option, ..)| option.as_bytes() == name).map(|(_, index, _)| *index);
        let number = || String::from_utf8_lossy(name).parse().ok();
        if let Some(index) = known.or_else(number) {
            give(index, value);
        }
    }

    // SAFETY: as above.
    assert_eq!(unsafe { slurm_spank_init_post_opt(null_mut(), 0, null_mut()) }, 0);
    let told = with(|answers| std::mem::take(&mut answers.of_job));
    let mut understood = Requests::default();
    for request in REQUESTS {
        let Some(value) = request.value(&expected) else { continue };
        let name = CString::new(format!("JOBFENCE_{}", request.name.replace('-', "_").to_uppercase())).expect("a name");
        let found = told.iter().find(|(told, _)| *told == name).map(|(_, value)| value);
        assert_eq!(found.map(|value| value.as_bytes()), Some(value.as_bytes()), "{name:?}");
    }
    with(|answers| answers.environment = told.into_iter().collect());
    for (name, request) in REQUESTS.iter().map(|request| (request.name.replace('-', "_").to_uppercase(), request)) {
        let name = CString::new(format!("JOBFENCE_{name}")).expect("a name");
        let value = Spank::new(null_mut()).getenv(&name).expect("what was told is short enough");
        if let Some(value) = value {
            request.read("x", value.as_bytes(), &mut understood).expect("what was told is understood");
        }
    }
    assert_eq!(understood, expected);
}
