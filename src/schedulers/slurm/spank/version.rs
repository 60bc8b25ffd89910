// SPDX-License-Identifier: GPL-2.0-or-later
//! One library file for every Slurm release.
//!
//! Slurm loads a plugin only if its `plugin_version` has the release's major and minor number. Everything of spank.h that is used here is
//! the same in all releases listed below (their headers were compared), so the number is set when the file is loaded, before Slurm reads
//! it. For a release that is not listed the compile-time number stays, and Slurm's own check refuses the file.

use std::ffi::{c_long, c_void};
use std::sync::atomic::Ordering;

use crate::schedulers::slurm::conf;
use crate::schedulers::slurm::spank::plugin_version;

/// The value of `slurm_api_version() >> 16` (`META`'s `API_CURRENT`), and the release. The last release was still being developed when its
/// header was compared (August 2026).
pub const RELEASES: [(c_long, u32); 9] = [
    (38, 0x16_05_00), // 22.05
    (39, 0x17_02_00), // 23.02
    (40, 0x17_0b_00), // 23.11
    (41, 0x18_05_00), // 24.05
    (42, 0x18_0b_00), // 24.11
    (43, 0x19_05_00), // 25.05
    (44, 0x19_0b_00), // 25.11
    (45, 0x1a_05_00), // 26.05
    (46, 0x1a_0b_00), // 26.11
];

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = set_plugin_version;

/// Runs while the file is being loaded: no allocation, no log, no panic.
extern "C" fn set_plugin_version() {
    // SAFETY: the name is NUL-terminated; RTLD_DEFAULT needs no handle.
    let symbol: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"slurm_api_version".as_ptr()) };
    if symbol.is_null() {
        return; // not a program of Slurm's
    }
    // SAFETY: slurm.h declares `long slurm_api_version(void)` in every release.
    let api_version = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_long>(symbol) };
    if let Some(release) = release(api_version()) {
        plugin_version.store(release, Ordering::Relaxed);
        conf::INCLUDES_ARE_BESIDE.store(release < 0x17_02_00, Ordering::Relaxed);
    }
}

/// The number of the release that returns this from `slurm_api_version()`, with 0 for its patch. `None`: unknown.
pub fn release(api_version: c_long) -> Option<u32> {
    RELEASES.iter().find(|(api, _)| *api == api_version >> 16).map(|(_, release)| *release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_releases_and_no_other() {
        assert_eq!(release(38 << 16), Some(0x16_05_00));
        assert_eq!(release((45 << 16) | 0x0102), Some(0x1a_05_00));
        assert_eq!(release(37 << 16), None);
        assert_eq!(release(47 << 16), None);
        assert_eq!(release(-1), None);
    }
}
