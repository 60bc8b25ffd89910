// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence setup`: does what the page of each scheduler tells to do on a node, and takes it back.

pub mod plan;
