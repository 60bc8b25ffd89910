// SPDX-License-Identifier: GPL-2.0-or-later
//! How the shared object is linked, beside what the library's own build.rs says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let loader = match (target("OS").as_str(), target("ENV").as_str(), target("ARCH").as_str()) {
        ("linux", "gnu", "x86_64") => "ld-linux-x86-64.so.2",
        ("linux", "gnu", "aarch64") => "ld-linux-aarch64.so.1",
        _ => return,
    };
    let compiler = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let name = "names_in_the_program";
    let code = out_dir.join(name).with_extension("c");
    let text: String = FROM_THE_PROGRAM.iter().map(|function| format!("void {function}(void) {{}}\n")).collect();
    fs::write(&code, text).expect("write the names");
    let made = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-w", "-o"])
        .arg(out_dir.join(format!("lib{name}.so")))
        .arg(format!("-Wl,-soname,{loader}"))
        .arg(&code)
        .status();
    if made.is_ok_and(|status| status.success()) {
        println!("cargo::rustc-link-search=native={}", out_dir.display());
        println!("cargo::rustc-link-lib=dylib={name}");
        // libc.so.6 needs more of the loader. lld does not mind for a shared object, but for the program of unit tests.
        println!("cargo::rustc-link-arg=-Wl,--allow-shlib-undefined");
    } else {
        println!("cargo::warning=cannot make a library with {}: the shared object loads two more", compiler.display());
    }
}
