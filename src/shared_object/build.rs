// SPDX-License-Identifier: GPL-2.0-or-later
//! How the shared object is linked, beside what the library's own build.rs says.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The file's own symbols are its own: plugin_version is in every plugin, and ours is written to when it is loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
