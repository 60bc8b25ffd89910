// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel's side: cgroup directories, and the files that are written and read there.
//!
//! Nothing here knows a scheduler. Directories are held as handles, and every change is made relative to one, so that renaming a path
//! cannot make root write somewhere else.

pub mod affinity;
pub mod base;
pub mod cpuset;
pub mod devices;
pub mod disk;
pub mod events;
pub mod handing_down;
pub mod huge_pages;
pub mod io;
pub mod kernel;
pub mod kill;
pub mod layout;
pub mod limits;
pub mod mark;
pub mod membership;
pub mod network;
pub mod now;
pub mod protection;
pub mod usage;
pub mod walk;
