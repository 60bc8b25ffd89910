// SPDX-License-Identifier: GPL-2.0-or-later
//! The schedulers: a room for each.

pub mod slurm;
