// SPDX-License-Identifier: GPL-2.0-or-later
//! Times in the format of the usage log.

pub use usage_lines::moment::seconds_of;
