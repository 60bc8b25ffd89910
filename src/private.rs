// SPDX-License-Identifier: GPL-2.0-or-later
//! A job's own directories in the place of the host's (`PrivateTmp`).
//!
//! Root makes them where no user gets by another way, in one directory for each job: on disk below `PrivateTmpBase`, and in a tmpfs of the
//! job's below `RunDir`. Each process that root starts for the job makes a mount namespace of its own, and binds them over the host's
//! paths there ([`enter`]). So all tasks and steps share them, no process and no file keeps a namespace, and when a process has died its
//! namespace has gone with it.
//!
//! There a job may also have a proc that shows no one else's processes ([`processes`]), and with it a PID namespace ([`pids`]).
//!
//! What is in an IPC namespace ([`ipc`]) is a step's own instead: the kernel makes and removes it.
//!
//! They go with the job's last step on the node ([`end`]). Whatever is left of them has a name under which no job looks for it, and the
//! janitor removes the rest ([`leavings`]).

pub mod dirs;
mod end;
mod enter;
mod holders;
pub mod ipc;
pub mod leavings;
pub mod pids;
pub mod places;
pub mod processes;
mod removal;
mod space;

pub use dirs::{PrivateDirs, is_wanted};
pub use end::end;
pub use enter::check_standard_files;
pub use places::{FORM, FORM_THAT_HIDES};

use crate::config::Config;

/// Whether jobs with a configuration are isolated in one way.
pub type IsIsolated = fn(&Config) -> bool;

/// The keys that isolate the processes of jobs.
pub static ISOLATION: [(&str, IsIsolated); 3] =
    [("PrivateTmp", dirs::has_own), ("PrivateIPC", ipc::is_wanted), ("HideProcesses", processes::is_wanted)];
