// SPDX-License-Identifier: GPL-2.0-or-later
//! This node's name in slurm.conf, if it is not given: found as slurmd finds it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use jobfence::schedulers::slurm::conf::{self, Lines};

/// The given name, or the one by slurm.conf, or, without slurm.conf, the host's. `None`: slurm.conf has no node of this host, or several.
pub fn name(given: Option<&str>, slurm_conf: Option<&Path>) -> Option<String> {
    let found = || match slurm_conf {
        Some(file) => conf::this_node(&Lines::read(file), aliases),
        None => Some(std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| host())),
    };
    given.map(str::to_owned).or_else(found)
}

/// The host's short name.
pub fn host() -> String {
    let full = nix::unistd::gethostname().unwrap_or_default();
    full.to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

unsafe extern "C" {
    /// From netdb.h. Its result is valid until the next call.
    fn gethostbyname2(name: *const c_char, family: c_int) -> *const libc::hostent;
}

/// Other names of a host, first the one that the others are aliases of: gethostbyname(3).
fn aliases(host: &str) -> Vec<String> {
    let mut all = Vec::new();
    let Ok(host) = CString::new(host) else { return all };
    for family in [libc::AF_INET, libc::AF_INET6] {
        // SAFETY: the name ends with a NUL, and this process has one thread.
        let Some(found) = (unsafe { gethostbyname2(host.as_ptr(), family).as_ref() }) else { continue };
        // SAFETY: a name, and a list of names with a null pointer at its end; each ends with a NUL.
        unsafe {
            all.push(CStr::from_ptr(found.h_name).to_string_lossy().into_owned());
            let mut next = found.h_aliases;
            while let Some(alias) = next.as_ref().filter(|alias| !alias.is_null()) {
                all.push(CStr::from_ptr(*alias).to_string_lossy().into_owned());
                next = next.add(1);
            }
        }
    }
    all
}
