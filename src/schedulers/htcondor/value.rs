// SPDX-License-Identifier: GPL-2.0-or-later
//! Values of ClassAd attributes.

use crate::printable::is_printable;

/// The text of a quoted value. `None`: the value is not in quotes.
pub(super) fn text_of(value: &str) -> Option<String> {
    let text = value.strip_prefix('"')?.strip_suffix('"')?;
    let mut is_escaped = false;
    let is_meant = |c: &char| {
        is_escaped = *c == '\\' && !is_escaped;
        !is_escaped
    };
    Some(text.chars().filter(is_meant).collect())
}

pub(super) fn short(text: &str) -> String {
    text.chars().filter(|c| is_printable(*c)).take(40).collect()
}
