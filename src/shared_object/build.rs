// SPDX-License-Identifier: GPL-2.0-or-later
//! How the shared object is linked, beyond the library's own build.rs.

mod names;

use std::env;
use std::path::{Path, PathBuf};

use names::Names;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=names.rs");
    // The file must use its own symbols: plugin_version is in every plugin, and this one is written to at load time.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    from_the_program(&PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")));
}

/// The functions that the standard library and this library use and that are in libc.so.6 only since glibc 2.34, before that in libdl.so.2
/// or libpthread.so.0; and one that the linker would otherwise look for in the loader.
const FROM_THE_PROGRAM: [&str; 12] = [
    "__tls_get_addr",
    "dlclose",
    "dlerror",
    "dlopen",
    "dlsym",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_getattr_np",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setspecific",
    "pthread_sigmask",
];

/// Makes the dynamic loader search for these functions by name alone, in all that the program has loaded. Every program that loads this
/// file has them: it loads a file, and it has threads. Otherwise two libraries that are empty today would be loaded at each launch.
///
/// A linker records a library and a version for each function that it finds. So it finds these in a library made here, which has no
/// versions and bears the name of a library that every process has: the loader.
fn from_the_program(out_dir: &Path) {
    let Some(processor) = names::processor() else { return };
    let soname = if processor == "x86_64" { "ld-linux-x86-64.so.2" } else { "ld-linux-aarch64.so.1" };
    let names = Names { name: "names_in_the_program", soname, version: None, functions: &FROM_THE_PROGRAM };
    match names.link(out_dir) {
        // libc.so.6 needs more of the loader. lld accepts that for a shared object, but not for the program of unit tests.
        Ok(()) => println!("cargo::rustc-link-arg=-Wl,--allow-shlib-undefined"),
        Err(compiler) => {
            println!("cargo::warning=cannot make a library with {compiler}: the shared object loads two more");
        }
    }
}
