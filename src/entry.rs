// SPDX-License-Identifier: GPL-2.0-or-later
//! The doors: each reads what a host program knows about a step, and hands it to the fence.

pub mod adopt;
pub mod guard;
pub mod pam;
pub mod prolog;
pub mod run;
pub mod spank;
