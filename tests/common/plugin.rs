// SPDX-License-Identifier: GPL-2.0-or-later
//! The file that Slurm loads, as cargo builds it for the tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

static BUILT: OnceLock<PathBuf> = OnceLock::new();

/// Built by cargo here: the package is separate, and no test program links it. After the first time it exists already. With the test that
/// asks for it, since cargo compiles all libraries once more for a package that it builds without tests.
pub fn shared_object() -> PathBuf {
    BUILT
        .get_or_init(|| {
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--locked", "--offline", "--lib", "--test", env!("CARGO_CRATE_NAME")])
                .args((!cfg!(debug_assertions)).then_some("--release"))
                .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
                .output()
                .unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            let test = std::env::current_exe().unwrap();
            let file = test.ancestors().nth(2).unwrap().join("libjobfence.so");
            assert!(file.exists(), "{} is missing", file.display());
            file
        })
        .clone()
}
