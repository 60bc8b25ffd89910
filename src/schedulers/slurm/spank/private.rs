// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's own directories in slurmstepd: each task enters them in its own process. What Slurm itself puts into `TmpFS` for a task stays
//! visible.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::private::PrivateDirs;
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;

/// The directories of this step's job.
#[derive(Debug)]
pub struct PrivateStep {
    dirs: PrivateDirs,
    /// What Slurm has made for the step.
    slurms: Vec<PathBuf>,
    /// Whether the user was told that they are full.
    is_said: bool,
}

impl PrivateStep {
    /// Remembers what Slurm has made, since a task must not ask for another step's.
    pub fn from_spank(spank: &Spank, dirs: PrivateDirs) -> Self {
        let ids = [spank_item::S_JOB_UID, spank_item::S_JOB_ID, spank_item::S_JOB_STEPID].map(|item| spank.u32(item));
        let slurms = match ids {
            // mpi/pmix: the sockets of the step daemon's PMIx server.
            [Ok(uid), Ok(job), Ok(step)] => vec![format!("spmix_appdir_{uid}_{job}.{step}")],
            _ => Vec::new(),
        };
        let paths = |name: &String| dirs.paths().map(|dir| dir.join(name)).collect::<Vec<_>>();
        let mut slurms: Vec<PathBuf> = slurms.iter().flat_map(paths).collect();
        // X11 of Slurm's: made by mkstemp(3) in TmpFS. The user can write the variable, but not the file's owner.
        if let Ok(Some(file)) = spank.getenv(c"XAUTHORITY")
            && let file = PathBuf::from(file)
            && dirs.paths().any(|dir| file.parent() == Some(dir))
            && file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".Xauthority-"))
            // Not a directory of the user's, which two jobs would share.
            && file.symlink_metadata().is_ok_and(|file| file.is_file())
        {
            slurms.push(file);
        }
        Self { dirs, slurms, is_said: false }
    }

    /// In a task's process, which is root's.
    pub fn enter(&self, daemon: Pid) -> Result<()> {
        // Set in a task's own process alone: plugstack.conf may list the plugin twice.
        static HAS_ENTERED: AtomicBool = AtomicBool::new(false);
        if HAS_ENTERED.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(path) = self.dirs.replaced_by_another(daemon.as_raw()) {
            return Err(Error::new("another plugin has already given the job a directory of its own:")
                .at(path)
                .hint("remove JobContainerType from slurm.conf, or set PrivateTmp=none in jobfence.conf"));
        }
        self.dirs.enter(&self.slurms)
    }

    /// In a task's process, which is the user's now: the step daemon has looked for the user's working directory on the host.
    pub fn go_where_asked(&self, spank: &Spank) {
        if let Ok(Some(wanted)) = spank.getenv(c"PWD")
            && Path::new(&wanted).is_absolute()
        {
            self.dirs.go_back_to(Path::new(&wanted));
        }
    }

    /// Sentences for the user, once.
    pub fn full(&mut self) -> Vec<String> {
        if self.is_said {
            return Vec::new();
        }
        let full = self.dirs.full();
        self.is_said = !full.is_empty();
        full
    }
}
