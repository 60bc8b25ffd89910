// SPDX-License-Identifier: GPL-2.0-or-later
//! The doors that belong to no scheduler: each reads what its caller says of a step, and hands it to the fence.

pub mod adopt;
mod adoptee;
pub mod c_abi;
pub mod card;
pub mod cores;
pub mod enter;
pub mod gpus;
pub mod life;
pub mod pam;
pub mod run;
pub mod seen;
pub mod take_back;
pub mod user;
