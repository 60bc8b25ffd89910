// SPDX-License-Identifier: GPL-2.0-or-later
//! How the shared object is linked, beside what the library's own build.rs says.

mod names;

use std::env;
use std::path::{Path, PathBuf};

use names::Names;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=names.rs");
    // The file's own symbols are its own: plugin_version is in every plugin, and ours is written to when it is loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    from_the_program(&PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")));
}

/// What is in libc.so.6 since glibc 2.34 and in libdl.so.2 or libpthread.so.0 before, as far as the standard library and ours
/// use it; and what the linker would else look for in the loader.
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

/// Has these functions looked for by name alone, in whatever the program has loaded. Every program that loads this file has them:
/// it loads a file, and it has threads. Two libraries that are empty today would else be loaded at each launch.
///
/// A linker notes down a library and a version for each function that it finds. So it finds these in a library made here, which
/// has no versions, and the name of one that every process has: the loader.
fn from_the_program(out_dir: &Path) {
    let Some(processor) = names::processor() else { return };
    let soname = if processor == "x86_64" { "ld-linux-x86-64.so.2" } else { "ld-linux-aarch64.so.1" };
    let names = Names { name: "names_in_the_program", soname, version: None, functions: &FROM_THE_PROGRAM };
    match names.link(out_dir) {
        // libc.so.6 needs more of the loader. lld does not mind for a shared object, but for the program of unit tests.
        Ok(()) => println!("cargo::rustc-link-arg=-Wl,--allow-shlib-undefined"),
        Err(compiler) => {
            println!("cargo::warning=cannot make a library with {compiler}: the shared object loads two more");
        }
    }
}
