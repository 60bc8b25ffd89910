// SPDX-License-Identifier: GPL-2.0-or-later
//! `CacheShare` and `MemoryBandwidthPercent`: how much of the caches and of the memory bandwidth a job may use, by the kernel's resctrl.
//! With `SampleInterval`, what such a job uses of both is read, too.
//!
//! `arithmetic` turns a share into ways and steps, and `plan` into what is to be written, from numbers alone. `schemata` reads and prints
//! the kernel's form, and `tree` is the file system. `group` makes the group of one job, `tasks` moves the job's threads into it, `used`
//! reads the group's counters, and `files` keeps what the job has. `node` says what a share is here. `search` finds the jobs, and `watch`
//! is what `jobfence hold` does with all of them between its other work. Nothing of it runs in a scheduler's daemon.

mod arithmetic;
mod files;
mod group;
mod node;
mod plan;
mod schemata;
mod search;
mod tasks;
mod tree;
mod used;
mod watch;

pub use files::{JobCache, SCHEMA};
pub use node::NodeResctrl;
pub use plan::WantedShares;
pub use watch::{ResctrlWatch, reap};
