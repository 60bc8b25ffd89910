// SPDX-License-Identifier: GPL-2.0-or-later
//! This node's name in slurm.conf, if it is not given: found as slurmd finds it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use jobfence::schedulers::slurm::conf::{self, Lines};

use crate::host::grantable::Grantable;

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

/// What a node's line in slurm.conf(5) should say, with comments. RealMemory is in MiB.
pub fn line(name: &str, grantable: &Grantable) -> String {
    let memory = grantable.mem >> 20;
    let cpus = &grantable.cpus;
    if cpus.are_all() {
        return format!("NodeName={name} CPUs={} RealMemory={memory}\n", cpus.count());
    }
    // slurm.conf(5): CPUs is the number of all sockets, cores or threads.
    format!(
        "# CPUs is left out: slurmd counts all hardware threads, and CpuSpecList= takes out those that jobs may not use\n\
         NodeName={name} RealMemory={memory}\n"
    )
}

unsafe extern "C" {
    /// The function of netdb.h. Its result is valid until the next call.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::grantable::tests::{GIB, grantable};

    #[test]
    fn the_line_has_what_slurm_grants() {
        assert_eq!(line("n1", &grantable(GIB)), "NodeName=n1 CPUs=4 RealMemory=15360\n");
    }
}
