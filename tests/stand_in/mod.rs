// SPDX-License-Identifier: GPL-2.0-or-later
//! The stand-in for slurmstepd, `slurmstepd.c`: compiled here, and started with what it needs to know.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Base, shared_object, skip};

/// The compiled program.
pub struct StandIn {
    file: PathBuf,
    shared_object: PathBuf,
}

impl StandIn {
    /// Compiles it into a directory; where that cannot be done, the test is skipped.
    pub fn or_skip(into: &Path) -> Option<Self> {
        Self::compile(into).map_err(|why| skip(&why)).ok()
    }

    /// Compiles it into a directory; where that cannot be done, says why.
    fn compile(into: &Path) -> Result<Self, String> {
        if !Path::new("/usr/include/slurm/spank.h").exists() {
            return Err("no slurm/spank.h".to_owned());
        }
        let (source, file) = (Path::new("tests/stand_in/slurmstepd.c"), into.join("slurmstepd"));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-rdynamic", "-o"]);
        let Ok(output) = compiler.arg(&file).arg(source).arg("-ldl").output() else {
            return Err("no C compiler".to_owned());
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { file, shared_object: shared_object() })
    }

    #[allow(dead_code)]
    /// To be started with these words and the plugin's arguments. Its stdin has ended, and the rest is for the caller to direct.
    pub fn command(&self, words: &[String], arguments: &[String]) -> Command {
        self.command_below(Command::new(&self.file), words, arguments)
    }

    /// The same as the arguments of another program.
    pub fn command_below(&self, mut command: Command, words: &[String], arguments: &[String]) -> Command {
        if command.get_program() != self.file.as_os_str() {
            command.arg(&self.file);
        }
        command.arg(&self.shared_object).args(words).arg("--").args(arguments);
        // As jobs see the node: of slurmd's environment nothing else is looked at.
        command.env_remove("SLURMD_NODENAME").stdin(Stdio::null());
        command
    }
}

/// The plugin's arguments: a configuration file with this text, and what the test has of its own.
#[allow(dead_code)]
pub fn arguments(own: &Path, base: &Base, text: &str) -> Vec<String> {
    let config = own.join("jobfence.conf");
    std::fs::write(&config, text).unwrap();
    let [config, run] = [config, own.join("run")].map(|path| path.display().to_string());
    vec![format!("config={config}"), format!("CgroupBase={}", base.name), format!("RunDir={run}")]
}
