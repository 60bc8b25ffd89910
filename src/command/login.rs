// SPDX-License-Identifier: GPL-2.0-or-later
//! `LoginLimits`: each user of a node without a scheduler is one fence, with a budget of CPU time.
//!
//! `limits` says what the site wants of a user, and `budget` what follows from the CPU time that was used. systemd limits the user's slice
//! where it makes one (`slices`); otherwise `tree` puts the user's processes into a fence of our own. `terminals` tells the user, `files`
//! keeps what is known, `watch` is when `jobfence hold` does it, `tidy` gives limits back, `show` answers users, and `here` is for the check.

mod budget;
mod figures;
mod files;
mod here;
mod limits;
mod show;
mod slices;
mod terminals;
mod tidy;
mod tree;
mod watch;

pub use figures::page;
pub use files::SCHEMA;
pub use here::here;
pub use show::{LoginOptions, login};
pub use tidy::reap;
pub use watch::LoginWatch;
