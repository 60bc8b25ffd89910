// SPDX-License-Identifier: GPL-2.0-or-later
//! The plugin's arguments, from the C strings that Slurm gives to the configuration. An input is arguments, one a line; an empty
//! line is a null pointer.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;

use jobfence::config::{Mode, OnErrors, load, parse};
use jobfence::schedulers::slurm::spank::api;

use super::{files, is_readable};

pub const WORDS: &[&str] = &[
    "config=",
    "CONFIG=/etc/slurm/jobfence.conf",
    "Mode=observe",
    "OnError=warn",
    "onerror = fail",
    "MaxCPUsPerUser=2",
    "IOMax=/a rbps=1M",
    "RunDir=\"/a b\"",
    "=",
    "[Partition=a]",
    "\n\n",
    "#",
];

pub fn run(data: &[u8]) {
    let lines: Vec<&[u8]> = data.split(|&byte| byte == b'\n').collect();
    // A C string ends at its first NUL.
    let string = |line: &&[u8]| CString::new(line.split(|&byte| byte == 0).next().unwrap_or_default()).ok();
    let strings: Vec<Option<CString>> = lines.iter().map(|line| string(line).filter(|_| !line.is_empty())).collect();
    let pointer = |string: &Option<CString>| string.as_ref().map_or(null_mut(), |string| string.as_ptr().cast_mut());
    let mut pointers: Vec<*mut c_char> = strings.iter().map(pointer).collect();
    let count = c_int::try_from(pointers.len()).expect("an input is short");
    // SAFETY: as many pointers as are said, each null or to a string that lives on.
    let arguments = unsafe { api::arguments(count, pointers.as_mut_ptr()) };
    let there: Vec<&[u8]> = strings.iter().flatten().map(|string| string.to_bytes()).collect();
    assert_eq!(arguments, there);
    for (count, pointers) in
        [(0, pointers.as_mut_ptr()), (-1, pointers.as_mut_ptr()), (c_int::MIN, null_mut()), (7, null_mut())]
    {
        // SAFETY: no pointer is to be looked at.
        assert!(unsafe { api::arguments(count, pointers) }.is_empty());
    }

    // An input names no file of this machine's: the first one that is named counts.
    let named = format!("config={}", files::put("empty.conf", b"# nothing\n").display());
    let arguments: Vec<&[u8]> = [named.as_bytes()].into_iter().chain(arguments).collect();
    let said = |word: &str| arguments.iter().any(|text| String::from_utf8_lossy(text).to_lowercase().contains(word));
    match load(&arguments) {
        Ok(loaded) => {
            let written = loaded.config.to_string();
            assert_eq!(parse("again", written.as_bytes()), Ok(loaded.config), "{written}");
        }
        Err(error) => {
            assert!((1..=20).contains(&error.errors().len()));
            error.errors().iter().for_each(|error| is_readable(&error.to_string()));
            // A mistake softens nothing by itself.
            assert!(error.on_error == OnErrors::default() || said("onerror"));
            assert!(error.mode == Mode::Enforce || said("mode"));
        }
    }
}
