// SPDX-License-Identifier: GPL-2.0-or-later
//! `NetworkAccounting` and `NetworkMax`: what jobs send and receive, and how fast they may send.
//!
//! `jobfence hold` attaches two programs (`program`, made with `assembler`) to its own directory in cgroup2, above all users' (`branches`), with
//! tables of its own (`attachment`). They outlive it: a later `hold` goes on with the same tables. `devices` tells the programs which
//! interfaces there are, and which of them send a packet at the time that it carries. `sampler` reads the counts into the `figures` of
//! jobs, and `files` keeps these. `keeper` does all this between the other work of `hold`. What a launch writes is in
//! `jobfence::cgroup::network`.

mod assembler;
mod attachment;
mod branches;
mod devices;
mod figures;
mod files;
mod keeper;
mod program;
mod qdiscs;
mod sampler;

pub use attachment::try_programs;
pub use branches::obstacle;
pub use devices::NetworkDevice;
pub use figures::{JobNetwork, page};
pub use files::SCHEMA;
pub use keeper::{NetworkKeeper, is_bounded, reap};
