// SPDX-License-Identifier: GPL-2.0-or-later
//! The doors of the library, as a shared object: what it marks as `no_mangle` is what this file exports.

extern crate fence;

#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod referred {
    // Not "C": a function that is declared so unwinds nothing. The file is optimised as a whole, so that would hold for each cleanup
    // at a panic, and the process would end there.
    unsafe extern "C-unwind" {
        fn dlsym();
        fn _Unwind_Resume();
    }

    /// GNU ld drops a library, or a part of one, that nothing before it has referred to, and the standard library comes last. These
    /// refer to what build.rs has made, and to `src/sys/unwinder.rs`.
    #[used]
    static REFERRED: [unsafe extern "C-unwind" fn(); 2] = [dlsym, _Unwind_Resume];
}
