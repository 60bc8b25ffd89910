// SPDX-License-Identifier: GPL-2.0-or-later
//! For build scripts: libraries that contain only names, so that the linker records where the loader must look for functions.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// A library of names.
pub struct Names<'a> {
    /// Its name for the linker. It must differ from the real library's: cargo's tests search this directory for libraries, too.
    pub name: &'a str,
    /// The library that the loader searches; or one that every process has, to search everywhere.
    pub soname: &'a str,
    /// The version of all functions.
    pub version: Option<&'a str>,
    pub functions: &'a [&'a str],
}

impl Names<'_> {
    /// Makes the library, and tells cargo to link with it. If that fails, the compiler's name is the error.
    pub fn link(&self, out_dir: &Path) -> Result<(), String> {
        let compiler = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
        let code = out_dir.join(self.name).with_extension("c");
        let text: String = self.functions.iter().map(|function| format!("void {function}(void) {{}}\n")).collect();
        fs::write(&code, text).expect("write the names of a library");
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-w", "-o"]);
        command.arg(out_dir.join(format!("lib{}.so", self.name))).arg(format!("-Wl,-soname,{}", self.soname));
        if let Some(version) = self.version {
            let script = out_dir.join(self.name).with_extension("map");
            let text = format!("{version} {{ global: {}; local: *; }};\n", self.functions.join("; "));
            fs::write(&script, text).expect("write a map");
            command.arg(format!("-Wl,--version-script={}", script.display()));
        }
        if !command.arg(&code).status().is_ok_and(|status| status.success()) {
            return Err(compiler.display().to_string());
        }
        println!("cargo::rustc-link-search=native={}", out_dir.display());
        println!("cargo::rustc-link-lib=dylib={}", self.name);
        Ok(())
    }
}

/// The target's processor, if its names are known.
pub fn processor() -> Option<String> {
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let is_gnu = (target("OS").as_str(), target("ENV").as_str()) == ("linux", "gnu");
    Some(target("ARCH")).filter(|processor| is_gnu && ["x86_64", "aarch64"].contains(&processor.as_str()))
}
