// SPDX-License-Identifier: GPL-2.0-or-later
//! Messages for the log of the host program.
//!
//! They go to the crate `log`. Its own macros also record each call's source position, which is not used here and, with relocations, takes
//! 200 bytes for each message in the file that every step daemon maps.

use std::fmt::Arguments;

use ::log::{Level, Record};

/// Passes a message to the host program's log, if that wants messages of this level.
#[inline(never)]
pub fn write(level: Level, text: Arguments<'_>) {
    if level <= ::log::max_level() {
        ::log::logger().log(&Record::builder().level(level).args(text).build());
    }
}

macro_rules! error {
    ($($text:tt)+) => { $crate::log::write(::log::Level::Error, format_args!($($text)+)) };
}
// `warn` is the name of an attribute, too, so the macro gets that name only where it is exported.
macro_rules! warn_ {
    ($($text:tt)+) => { $crate::log::write(::log::Level::Warn, format_args!($($text)+)) };
}
macro_rules! info {
    ($($text:tt)+) => { $crate::log::write(::log::Level::Info, format_args!($($text)+)) };
}
// The arguments are evaluated only if debug messages are wanted.
macro_rules! debug {
    ($($text:tt)+) => {
        if ::log::Level::Debug <= ::log::max_level() {
            $crate::log::write(::log::Level::Debug, format_args!($($text)+));
        }
    };
}
pub(crate) use {debug, error, info, warn_ as warn};
