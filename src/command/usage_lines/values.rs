// SPDX-License-Identifier: GPL-2.0-or-later
//! The members of a usage log's line, found without reading those that nobody asks for.
//!
//! A log of half a year has millions of lines, so this is what `jobfence report --by` spends its time on. Nothing is allocated, except for
//! a text with an escape in it, and each byte is looked at once: a name is compared with the one that jobfence writes next, and a value is
//! passed over until somebody wants it.

use std::borrow::Cow;

/// The members of a line in the order in which jobfence writes them, so that each is usually found at once.
macro_rules! members {
    ($($name:ident)*) => {
        /// Their names.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The names as a line has them, with quotes and colon.
        const WRITTEN: &[&[u8]] = &[$(concat!("\"", stringify!($name), "\":").as_bytes()),*];

        /// A member, by its name.
        #[allow(non_camel_case_types, missing_docs, reason = "jobfence(8) says what each is")]
        #[derive(Debug, Clone, Copy)]
        pub enum Member { $($name),* }
    };
}

members! {
    schema ended started started_unix_seconds ended_unix_seconds wall_seconds node job job_name step run uid user partition account qos
    project global_job holder end exit_status exit_signal cpus_granted memory_granted_bytes gpus_granted cpus_limit memory_limit_bytes
    processes_limit cpu_seconds cpu_user_seconds cpu_system_seconds periods throttled_periods throttled_seconds memory_peak_bytes
    swap_peak_bytes memory_anonymous_bytes memory_file_bytes memory_unwritten_bytes memory_shared_bytes memory_kernel_bytes
    memory_huge_pages_bytes memory_swap_bytes memory_high_events memory_max_events oom_kills processes_peak forks_refused read_bytes
    written_bytes read_operations write_operations disks cpu_pressure_some_seconds cpu_pressure_full_seconds memory_pressure_some_seconds
    memory_pressure_full_seconds io_pressure_some_seconds io_pressure_full_seconds rchar_bytes wchar_bytes job_cpu_seconds
    job_memory_peak_bytes job_memory_lent_peak_bytes job_ended_for_owners tasks sentences
}

/// A text as the line has it.
pub type Text<'a> = Option<Cow<'a, str>>;

/// The value of each member as the line has it, with the quotes of a text.
#[derive(Debug)]
pub struct LineValues<'a>([Option<&'a [u8]>; NAMES.len()]);

impl<'a> LineValues<'a> {
    /// Finds the values. `None`: it is no object, or not whole.
    pub fn find(line: &'a [u8]) -> Option<Self> {
        let mut found = Self([None; NAMES.len()]);
        let mut rest = trimmed(line).strip_prefix(b"{")?;
        let mut next = 0;
        loop {
            let member = match WRITTEN.get(next).and_then(|written| rest.strip_prefix(*written)) {
                Some(behind) => {
                    rest = behind;
                    Some(next)
                }
                None => {
                    let (member, behind) = named(rest, next)?;
                    rest = behind;
                    member
                }
            };
            rest = trimmed(rest);
            let (value, behind) = rest.split_at_checked(length_of_value(rest)?)?;
            if let Some(member) = member {
                *found.0.get_mut(member)? = Some(value);
                next = member + 1;
            }
            rest = match trimmed(behind).split_first()? {
                (b',', behind) => behind,
                (b'}', behind) => return trimmed(behind).is_empty().then_some(found),
                _ => return None,
            };
        }
    }

    /// The value as the line has it. `None`: the line does not have the member.
    pub fn raw(&self, member: Member) -> Option<&'a [u8]> {
        *self.0.get(member as usize)?
    }

    /// A text without its quotes. `None`: the line does not have the member, or it is no text.
    pub fn text(&self, member: Member) -> Text<'a> {
        text_of(self.raw(member)?)
    }

    /// A number in units of the last of `decimals` decimals. Further decimals are cut off.
    pub fn number(&self, member: Member, decimals: u32) -> Option<u64> {
        amount(self.raw(member)?, decimals)
    }
}

/// The text of a value that has quotes. `None`: the value is no text.
pub(crate) fn text_of(value: &[u8]) -> Text<'_> {
    let quoted = std::str::from_utf8(value).ok()?;
    let plain = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if !plain.as_bytes().contains(&b'\\') {
        return Some(Cow::Borrowed(plain));
    }
    serde_json::from_str::<String>(quoted).ok().map(Cow::Owned)
}

/// Hands over the name and the value of each member of an object. `None`: it is no object, or not whole.
pub(crate) fn each_member<'a>(object: &'a [u8], each: &mut impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    let mut rest = trimmed(object).strip_prefix(b"{")?;
    loop {
        rest = trimmed(rest);
        rest.strip_prefix(b"\"")?;
        let (quoted, behind) = rest.split_at_checked(length_of_text(rest)?)?;
        rest = trimmed(trimmed(behind).strip_prefix(b":")?);
        let (value, behind) = rest.split_at_checked(length_of_value(rest)?)?;
        each(quoted.get(1..quoted.len() - 1)?, value);
        rest = match trimmed(behind).split_first()? {
            (b',', behind) => behind,
            (b'}', behind) => return trimmed(behind).is_empty().then_some(()),
            _ => return None,
        };
    }
}

/// Hands over each value of an array. `None`: it is no array, or not whole.
pub(crate) fn each_item<'a>(array: &'a [u8], each: &mut impl FnMut(&'a [u8])) -> Option<()> {
    let mut rest = trimmed(trimmed(array).strip_prefix(b"[")?);
    if rest == b"]" {
        return Some(());
    }
    loop {
        let (value, behind) = rest.split_at_checked(length_of_value(rest)?)?;
        each(value);
        rest = match trimmed(behind).split_first()? {
            (b',', behind) => trimmed(behind),
            (b']', behind) => return trimmed(behind).is_empty().then_some(()),
            _ => return None,
        };
    }
}

/// The text without white space at its beginning. jobfence writes none, so the first byte usually tells.
fn trimmed(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(b' ' | b'\t' | b'\r' | b'\n') => text.trim_ascii_start(),
        _ => text,
    }
}

/// The member that begins here, and the text behind its colon. The member is `None` if [`NAMES`] does not have it. `next`: the likely one.
/// `None`: no name is here.
#[cold]
fn named(rest: &[u8], next: usize) -> Option<(Option<usize>, &[u8])> {
    let rest = trimmed(rest);
    rest.strip_prefix(b"\"")?;
    let (quoted, behind) = rest.split_at_checked(length_of_text(rest)?)?;
    let name = quoted.get(1..quoted.len() - 1)?;
    let is_it = |known: &&str| known.as_bytes() == name;
    // A line of another release may lack some members, but has the others in the same order. So the later names come first.
    let later = NAMES.iter().skip(next).position(is_it).map(|member| next + member);
    Some((later.or_else(|| NAMES.iter().position(is_it)), trimmed(behind).strip_prefix(b":")?))
}

/// The length of the value at the beginning of the text.
fn length_of_value(rest: &[u8]) -> Option<usize> {
    match rest.first()? {
        b'"' => length_of_text(rest),
        b'{' | b'[' => length_of_nested(rest),
        _ => first_of(*b",}] \t", rest).filter(|length| *length > 0),
    }
}

/// The length of a text with its quotes. The caller has seen the first quote.
fn length_of_text(rest: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += first_of(*b"\"\\", rest.get(at..)?)?;
        if rest.get(at)? == &b'"' {
            return Some(at + 1);
        }
        // A quote behind a backslash does not end the text.
        at += 2;
    }
}

/// The place of the first of these bytes. Eight bytes are compared at a time: the byte is usually near, since most values are short.
#[inline]
fn first_of<const N: usize>(wanted: [u8; N], text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHEST: u64 = u64::from_ne_bytes([0x80; 8]);
    let (words, rest) = text.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest byte whose highest bit is set is a byte that was looked for. A higher one may be set in error.
        let mut found = 0;
        for byte in wanted {
            let differs = word ^ (ONES * u64::from(byte));
            found |= differs.wrapping_sub(ONES) & !differs;
        }
        found &= HIGHEST;
        if found != 0 {
            return Some(8 * number + found.trailing_zeros() as usize / 8);
        }
    }
    Some(text.len() - rest.len() + rest.iter().position(|byte| wanted.contains(byte))?)
}

/// The length of an object or an array.
fn length_of_nested(rest: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        match rest.get(at)? {
            b'"' => {
                at += length_of_text(rest.get(at..)?)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// A number of at most this many bytes fits into 64 bits.
const SHORT: usize = 19;

/// A number of JSON in units of the last of `decimals` decimals. `None`: it is no such number, or it is negative.
pub(crate) fn amount(text: &[u8], decimals: u32) -> Option<u64> {
    // jobfence writes `null` for a value that it does not know.
    if matches!(text, [] | [b'n', ..]) {
        return None;
    }
    let (mut number, mut left, mut is_behind_point) = (0_u64, decimals, false);
    for byte in text {
        match byte {
            b'0'..=b'9' if !is_behind_point => number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')),
            b'0'..=b'9' if left > 0 => {
                number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                left -= 1;
            }
            b'0'..=b'9' => {}
            b'.' if !is_behind_point => is_behind_point = true,
            _ => return amount_of_any(text, decimals),
        }
    }
    if text.len() > SHORT {
        return amount_of_any(text, decimals);
    }
    number.checked_mul(10_u64.checked_pow(left)?)
}

/// Reads a number of any length and form.
#[cold]
fn amount_of_any(text: &[u8], decimals: u32) -> Option<u64> {
    let (mut number, mut left) = (0_u64, None);
    for byte in text {
        match (byte, left) {
            (b'0'..=b'9', Some(0)) => {}
            (b'0'..=b'9', _) => {
                number = number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                left = left.map(|left: u32| left - 1);
            }
            (b'.', None) => left = Some(decimals),
            // A log collector can have written the number in another form.
            _ => return in_floating_point(text, decimals),
        }
    }
    if text.is_empty() {
        return None;
    }
    number.checked_mul(10_u64.checked_pow(left.unwrap_or(decimals))?)
}

#[cold]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
fn in_floating_point(text: &[u8], decimals: u32) -> Option<u64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let scaled = number * 10_f64.powi(decimals.cast_signed());
    (0.0..9e18).contains(&scaled).then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_exact_as_they_are_written() {
        let of = |text: &str, decimals| amount(text.as_bytes(), decimals);
        assert_eq!(of("8388609.000005", 6), Some(8_388_609_000_005));
        assert_eq!((of("1.5", 3), of("2", 3), of("0.0001", 3), of("7", 0)), (Some(1500), Some(2000), Some(0), Some(7)));
        assert_eq!((of("1.5e3", 0), of("1E2", 3)), (Some(1500), Some(100_000)));
        assert_eq!((of("null", 0), of("-1", 0), of("", 0), of("\"7\"", 0)), (None, None, None, None));
        assert_eq!((of("18446744073709551616", 0), of("1e300", 6)), (None, None));
    }
}
