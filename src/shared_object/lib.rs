// SPDX-License-Identifier: GPL-2.0-or-later
//! The doors of the library, as a shared object: what it marks as `no_mangle` is what this file exports.

extern crate fence;
