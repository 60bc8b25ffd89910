// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry points that belong to no scheduler. Each reads what its caller says about a step, and passes it to the fence.

pub mod adoptee;
pub mod c_abi;
pub mod card;
pub mod cores;
pub mod enter;
pub mod gpus;
pub mod life;
pub mod opening;
pub mod recorded;
pub mod run;
pub mod seen;
pub mod take_back;
pub mod user;
