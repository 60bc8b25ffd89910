// SPDX-License-Identifier: GPL-2.0-or-later
//! A directory in which a Slurm is only configured, and jobfence is installed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The line by which Slurm loads the plugin.
pub const LINE: &str = "etc/plugstack.conf.d/jobfence.conf";

/// A directory in which a Slurm is configured and jobfence is installed.
pub struct Site {
    top: tempfile::TempDir,
    pub base: super::common::Base,
}

/// The exit status and the output.
pub type Done = (Option<i32>, String);

impl Site {
    /// `None`: they would switch this machine's own jobfence.service.
    pub fn new(file: &str, test: &str) -> Option<Self> {
        if Path::new("/run/systemd/system").is_dir() {
            super::common::skip("needs a host without systemd");
            return None;
        }
        let base = super::common::Base::new(&format!("jobfence-{file}-{}-{test}", std::process::id()));
        let site = Self { top: tempfile::tempdir().unwrap(), base };
        let plugin = std::env::current_exe().unwrap().with_file_name("libjobfence.so");
        let config = site.path("etc/jobfence.conf");
        site.write("etc/slurm.conf", "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n");
        site.write(
            "etc/jobfence.conf",
            &format!("RunDir={}\nCgroupBase={}\n", site.path("run").display(), site.base.name),
        );
        let line = format!("# installed\nrequired {} config={}\n", plugin.display(), config.display());
        site.write("share/plugstack.conf", &line);
        Some(site)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The command with this Slurm.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.args(arguments).env("SLURM_CONF", self.path("etc/slurm.conf"));
        command
    }

    pub fn with(&self, arguments: &[&str]) -> Done {
        let done = self.command(arguments).output().unwrap();
        let said = [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        (done.status.code(), said.concat())
    }

    /// Expects this status and output; after a failure no file may have changed.
    pub fn says(&self, arguments: &[&str], status: i32, part: &str) {
        let before = self.files();
        let (code, said) = self.with(arguments);
        assert!(
            code == Some(status) && said.contains(part),
            "{arguments:?}: {code:?}, should contain {part:?}:\n{said}"
        );
        if status == 1 {
            assert_eq!(self.files(), before, "{arguments:?}");
        }
    }

    /// Every directory, and every file with mode and content, except the records.
    pub fn files(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut look_at = vec![self.path("etc"), self.path("share")];
        while let Some(path) = look_at.pop() {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            match fs::read_dir(&path) {
                Ok(entries) => look_at.extend(entries.map(|entry| entry.unwrap().path())),
                Err(_) => _ = found.insert(path.clone(), (mode, fs::read(&path).unwrap())),
            }
            found.entry(path).or_insert((mode, Vec::new()));
        }
        found
    }
}
