// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step daemon reads of the node. It is read in `slurm_spank_init`, before another plugin can have changed the daemon's root or
//! mounts, as container plugins do in `slurm_spank_init_post_opt`.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use nix::sys::stat;

use crate::config::{LoadError, Loaded, Mode};
use crate::error::Result;
use crate::log;
use crate::record;
use crate::schedulers::slurm::cores::Topology;
use crate::schedulers::slurm::spank::arguments;
use crate::sys::dir::Dir;

/// The files' contents.
pub struct NodeFiles {
    loaded: Result<Loaded, LoadError>,
    /// Present if a job can be given cores of its own.
    topology: Option<Result<Topology>>,
    /// `None`: there is none; the code that needs it reports that.
    run_dir: Option<Dir>,
}

/// `RunDir`, kept open for the daemon's life if its path leads elsewhere now.
static RUN_DIR: OnceLock<Dir> = OnceLock::new();

impl NodeFiles {
    pub fn read(arguments: &[&[u8]]) -> Self {
        let loaded = arguments::load(arguments);
        let config = loaded.as_ref().ok().map(|loaded| &loaded.config).filter(|config| config.mode != Mode::Off);
        let run_dir = config.and_then(|config| record::open_run_dir(&config.run_dir).ok());
        let constrains = loaded.as_ref().is_ok_and(Loaded::can_constrain_cores);
        Self { topology: constrains.then(|| Topology::from_machine(None, None)), run_dir, loaded }
    }

    /// The configuration, and the machine's cores.
    pub fn now(self) -> (Result<Loaded, LoadError>, impl FnOnce() -> Result<Topology>) {
        let Self { mut loaded, topology, run_dir } = self;
        if let (Ok(loaded), Some(dir)) = (&mut loaded, run_dir) {
            let path = &mut loaded.config.run_dir;
            let identity = |stat: stat::FileStat| (stat.st_dev, stat.st_ino);
            let is_there =
                dir.stat().is_ok_and(|dir| stat::stat(path).is_ok_and(|by_path| identity(by_path) == identity(dir)));
            if !is_there {
                log::info!("another plugin has changed the step daemon's root: RunDir is not where its path leads");
                // The process is found by pid, since a child of the daemon need not have its descriptors.
                *path = format!("/proc/{}/fd/{}", std::process::id(), dir.as_fd().as_raw_fd()).into();
                let _ = RUN_DIR.set(dir);
            }
        }
        (loaded, || topology.unwrap_or_else(|| Topology::from_machine(None, None)))
    }
}
