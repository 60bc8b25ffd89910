// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence fences every batch job of a shared compute node in its own cgroup.
pub mod error;
