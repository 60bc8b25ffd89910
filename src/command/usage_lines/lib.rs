// SPDX-License-Identifier: GPL-2.0-or-later
//! What reads the lines of usage logs for `jobfence report --by`, which may be millions.
//!
//! It is a package, since a package is what can be optimised for speed where the rest of the command is for size.

pub mod gpus;
pub mod line;
pub mod lines;
pub mod moment;
pub mod values;
