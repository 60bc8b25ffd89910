// SPDX-License-Identifier: GPL-2.0-or-later
//! Messages for the log of the host program, whatever that is.
//!
//! They go to the crate `log`, whose own macros also note down where each call stands. Nobody reads that here, and with the relocations
//! it is 200 bytes of each message in the file that every step daemon maps.

use std::fmt::Arguments;

use ::log::{Level, Record};

/// Hands a message to the host program's log, if it wants messages of this level.
#[inline(never)]
pub fn write(level: Level, text: Arguments<'_>) {
    if level <= ::log::max_level() {
        ::log::logger().log(&Record::builder().level(level).args(text).build());
    }
}

macro_rules! error {
    ($($text:tt)+) => { $crate::log::write(::log::Level::Error, format_args!($($text)+)) };
}
// `warn` is the name of an attribute, too. So the macro gets that name only where it is handed on.
macro_rules! warn_ {
    ($($text:tt)+) => { $crate::log::write(::log::Level::Warn, format_args!($($text)+)) };
}
macro_rules! info {
    ($($text:tt)+) => { $crate::log::write(::log::Level::Info, format_args!($($text)+)) };
}
// The arguments are worked out only if debug messages are wanted.
macro_rules! debug {
    ($($text:tt)+) => {
        if ::log::Level::Debug <= ::log::max_level() {
            $crate::log::write(::log::Level::Debug, format_args!($($text)+));
        }
    };
}
pub(crate) use {debug, error, info, warn_ as warn};
