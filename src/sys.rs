// SPDX-License-Identifier: GPL-2.0-or-later
//! The operating system as every part of jobfence uses it: directory handles, processes, locks, a user's rights, drivers.
//!
//! Nothing here knows what a cgroup or a job is.

pub mod as_user;
pub mod bpf;
pub mod call_bytes;
pub mod child;
pub mod dir;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod glibc;
pub mod group;
pub mod guard;
pub mod lock;
pub mod mount;
pub mod nvidia;
pub mod pid_namespace;
pub mod process;
pub mod program;
pub mod quota;
pub mod shared;
pub mod systemd;
pub mod terminal;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwinder;
pub mod users_dir;
