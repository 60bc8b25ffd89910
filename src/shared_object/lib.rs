// SPDX-License-Identifier: GPL-2.0-or-later
//! The library's entry points, as a shared object: this file exports what the library marks as `no_mangle`.

extern crate fence;

#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod referred {
    // Not "C": the compiler takes a function with that ABI as one that never unwinds. The file is optimised as a whole, so that would hold
    // for each cleanup at a panic, and the process would end there.
    unsafe extern "C-unwind" {
        fn dlsym();
        fn _Unwind_Resume();
    }

    /// GNU ld drops a library, or a part of one, unless something before it refers to it, and the standard library comes last. These refer
    /// to the library that build.rs made, and to `src/sys/unwinder.rs`.
    #[used]
    static REFERRED: [unsafe extern "C-unwind" fn(); 2] = [dlsym, _Unwind_Resume];
}
