// SPDX-License-Identifier: GPL-2.0-or-later
//! The form of a record's lines.

/// The value of the next line, `KEY=VALUE`.
pub(crate) fn field(lines: &mut std::str::Lines<'_>, key: &str) -> Option<String> {
    let value = lines.next()?.strip_prefix(key)?.strip_prefix('=')?;
    (!value.contains(char::is_control)).then(|| value.to_owned())
}
