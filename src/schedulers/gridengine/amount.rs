// SPDX-License-Identifier: GPL-2.0-or-later
//! Amounts, as users of Grid Engine write them and qmaster reads them.

/// An amount in bytes, or of another whole unit: see [`number`].
pub fn bytes(text: &str) -> Option<Option<u64>> {
    Some(number(text)?.map(whole))
}

/// An amount without its fraction. More than `u64::MAX` is `u64::MAX`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is more than a u64 is its maximum")]
pub fn whole(amount: f64) -> u64 {
    amount as u64
}

/// An amount, as qmaster and the shepherd read it (`sge_parse_num_val`). Outer `None`: not an amount. Inner `None`: no limit.
///
/// A number that begins with 0 and has no point is octal or hexadecimal; any other may have an exponent. Grid Engine also takes signs,
/// times and truth values, and cuts an octal or hexadecimal number to its lowest 32 bits. Here these are not amounts.
pub fn number(text: &str) -> Option<Option<f64>> {
    if text.eq_ignore_ascii_case("infinity") {
        return Some(None);
    }
    let (number, unit): (&str, f64) = match text.char_indices().next_back()? {
        (at, 'k') => (text.get(..at)?, 1e3),
        (at, 'K') => (text.get(..at)?, 1024.0),
        (at, 'm') => (text.get(..at)?, 1e6),
        (at, 'M') => (text.get(..at)?, 1_048_576.0),
        (at, 'g') => (text.get(..at)?, 1e9),
        (at, 'G') => (text.get(..at)?, 1_073_741_824.0),
        (at, 't') => (text.get(..at)?, 1e12),
        (at, 'T') => (text.get(..at)?, 1_099_511_627_776.0),
        _ => (text, 1.0),
    };
    let of_base = |digits: &str, base| {
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(digits, base).ok().filter(|_| is_number).map(f64::from)
    };
    let count = match number.strip_prefix('0').filter(|_| !number.contains('.')) {
        Some(rest) => rest.strip_prefix(['x', 'X']).map_or_else(|| of_base(number, 8), |digits| of_base(digits, 16)),
        // `parse` alone would also take signs and words.
        None => {
            number.parse().ok().filter(|_| number.starts_with(|first: char| first.is_ascii_digit() || first == '.'))
        }
    };
    let amount = count? * unit;
    amount.is_finite().then_some(Some(amount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_qmaster_counts_them() {
        for (text, amount) in [
            ("1024", 1024),
            ("1k", 1000),
            ("1K", 1024),
            ("1.5G", 3 << 29),
            ("2m", 2_000_000),
            ("0.5T", 1 << 39),
            (".5K", 512),
            ("5.", 5),
            ("0", 0),
            ("99999999999999999999T", u64::MAX),
            ("010", 8),
            ("0400M", 256 << 20),
            ("037777777777", u64::from(u32::MAX)),
            ("0x40000000", 1 << 30),
            ("0X1fK", 31 << 10),
            // A number with a point is decimal.
            ("010.0", 10),
            ("1e3", 1000),
            ("1E+1K", 10_240),
            ("15e-1K", 1536),
        ] {
            assert_eq!(bytes(text), Some(Some(amount)), "{text}");
        }
        assert_eq!(bytes("INFINITY"), Some(None));
        for wrong in [
            "",
            "M",
            ".",
            "e3",
            "-1",
            "+1",
            "1.2.3",
            "\u{e4}",
            "1 M",
            "1MB",
            "true",
            "nan",
            "inf",
            "1:0:0",
            "1e999",
            "1e",
            "08",
            "0e3",
            "0k1",
            "0x",
            "0x+1",
            "0xg",
            "0x1.8",
            "0b1",
            "0100000000000",
            "0x100000000",
        ] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
