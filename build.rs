// SPDX-License-Identifier: GPL-2.0-or-later
//! Takes the committed bindings to Slurm's spank.h, or generates them; and sees to it that what is built loads with an older
//! glibc than this machine's.
//!
//! A build for tests generates them if the header and libclang are here, and a test compares. A release is the same file
//! whatever is installed. `SLURM_INCLUDE_DIR` names the directory that holds another `slurm/spank.h`, for both.

#[path = "src/shared_object/names.rs"]
mod names;
#[path = "src/version/build.rs"]
mod version;

use std::path::{Path, PathBuf};
use std::{env, fs, panic};

use names::Names;

/// Paths are relative to src, where cargo runs this program.
const COMMITTED: &str = "schedulers/slurm/spank/bindings.rs";

fn main() {
    println!("cargo::rerun-if-changed=../build.rs");
    println!("cargo::rerun-if-changed=shared_object/names.rs");
    println!("cargo::rerun-if-changed=../include/wrapper.h");
    println!("cargo::rerun-if-changed={COMMITTED}");
    println!("cargo::rerun-if-env-changed=SLURM_INCLUDE_DIR");
    of_commit();
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let glibc = as_in_old_glibc(&out_dir);
    let target = env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo::rustc-env=JOBFENCE_BUILT_FOR={target}, {glibc}");
    let out = out_dir.join("bindings.rs");
    let include = env::var_os("SLURM_INCLUDE_DIR").map(PathBuf::from);
    let header = include.clone().unwrap_or_else(|| PathBuf::from("/usr/include")).join("slurm/spank.h");
    println!("cargo::rerun-if-changed={}", header.display());
    let is_wanted = header.exists() && (include.is_some() || !is_release());
    let generated = is_wanted.then(|| generate(include.as_deref())).flatten();
    // The test that compares the committed file with a fresh one asks where the fresh one came from.
    println!("cargo::rustc-env=JOBFENCE_BINDINGS={}", if generated.is_some() { "generated" } else { "committed" });
    match generated {
        Some(text) => fs::write(&out, text).expect("write the bindings"),
        None if include.is_some() => panic!("cannot generate bindings from {}", header.display()),
        None => drop(fs::copy(COMMITTED, &out).expect("copy the committed bindings")),
    }
}

fn is_release() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "release")
}

/// Has `--version` say of which commit a release is. A build for tests does not: it would begin anew here with each change.
fn of_commit() {
    let number = env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    let version = if is_release() {
        for changed in [".", "../include", "../Cargo.toml", "../Cargo.lock", "../.cargo"] {
            println!("cargo::rerun-if-changed={changed}");
        }
        version::in_words(&number, Path::new(".."))
    } else {
        number
    };
    println!("cargo::rustc-env=JOBFENCE_VERSION={version}");
}

/// What glibc 2.28 (RHEL 8) has beside libc.so.6, of all that is used here; 2.32 and 2.34 moved it there, where the linker
/// gives it a version that older ones lack. `tests/shared_object.rs` says what else there is with another toolchain.
const MOVED: [(&str, &[&str]); 2] = [
    ("libdl.so.2", &["dlclose", "dlerror", "dlopen", "dlsym"]),
    (
        "libpthread.so.0",
        &[
            "pthread_attr_getguardsize",
            "pthread_attr_getstack",
            "pthread_getattr_np",
            "pthread_key_create",
            "pthread_key_delete",
            "pthread_setspecific",
            "pthread_sigmask",
        ],
    ),
];

/// Lets the linker find these functions where an old glibc has them: in libraries made here, which have nothing but the names.
/// New ones load the same file, since their libdl.so.2 and libpthread.so.0 still exist, and the old version of each function
/// in libc.so.6. The rest is in src/sys/glibc.rs. Says which glibc is needed.
fn as_in_old_glibc(out_dir: &Path) -> &'static str {
    const LIKE_HERE: &str = "glibc as new as where it was built";
    let Some(processor) = names::processor() else { return LIKE_HERE };
    let first = if processor == "x86_64" { "GLIBC_2.2.5" } else { "GLIBC_2.17" };
    for (library, functions) in MOVED {
        let name = format!("names_of_{}", library.split('.').next().unwrap_or_default());
        let names = Names { name: &name, soname: library, version: Some(first), functions };
        if let Err(compiler) = names.link(out_dir) {
            println!("cargo::warning=cannot make a {library} with {compiler}");
            println!("cargo::warning=what is built needs a glibc as new as this machine's");
            return LIKE_HERE;
        }
    }
    "glibc 2.28 or later"
}

fn generate(include: Option<&Path>) -> Option<String> {
    // bindgen panics where libclang is not to be found; the committed file serves then.
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let bindings = panic::catch_unwind(|| {
        let mut builder = bindgen::Builder::default()
            .header("../include/wrapper.h")
            // Only what is used, so that a newer header gives the same file; nothing newer than Slurm 22.05.
            .allowlist_function("spank_(context|get_item|getenv|setenv|unsetenv|option_register|job_control_setenv)")
            .allowlist_function("slurm_(error|info|debug|spank_log)")
            .allowlist_type("spank_(item|context)")
            .allowlist_var("SLURM_VERSION_NUMBER")
            // Every release adds error numbers; 0 is success in all of them.
            .blocklist_type("slurm_err_t")
            // Module constants: a value that this header does not know must not be undefined behaviour.
            .default_enum_style(bindgen::EnumVariation::ModuleConsts)
            // Symbols are looked up in the process that loads us, so that one file serves every release and program.
            .dynamic_library_name("SpankApi")
            .dynamic_link_require_all(false)
            .raw_line("// SPDX-License-Identifier: GPL-2.0-or-later")
            .raw_line("// Generated from slurm/spank.h by build.rs; 'make bindings' renews it.")
            .raw_line("pub mod slurm_err_t { pub type Type = ::core::ffi::c_uint; }")
            .generate_comments(false)
            .layout_tests(false)
            .wrap_unsafe_ops(true)
            .rust_edition(bindgen::RustEdition::Edition2024)
            .use_core()
            .formatter(bindgen::Formatter::Prettyplease);
        if let Some(include) = include {
            builder = builder.clang_arg(format!("-I{}", include.display()));
        }
        builder.generate()
    });
    panic::set_hook(quiet);
    bindings.ok()?.ok().map(|bindings| bindings.to_string())
}
