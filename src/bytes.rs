// SPDX-License-Identifier: GPL-2.0-or-later
//! Amounts of bytes as people write them. All keys and options use this parser, so that the same text is always the same number.

/// Why a text was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// It is not an amount of bytes.
    Form,
    /// It does not fit in 64 bits.
    Overflow,
}

/// The units and their powers of two: binary, as for srun's --mem (`str_to_mbytes` in Slurm's src/common/proc_args.c).
const UNITS: [(&str, u32); 4] = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];

/// Reads digits and a unit: K, M, G or T in any case, alone or before B or iB. A number without a unit is multiplied by `plain`; if that is
/// `None`, a unit is required.
pub fn parse(text: &str, plain: Option<u64>) -> Result<u64, SizeError> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = text.strip_suffix(unit).filter(|digits| !digits.is_empty()).ok_or(SizeError::Form)?;
    let factor = match unit {
        "" => plain.ok_or(SizeError::Form)?,
        _ => 1 << power(unit).ok_or(SizeError::Form)?,
    };
    let count: u64 = digits.parse().map_err(|_| SizeError::Overflow)?;
    count.checked_mul(factor).ok_or(SizeError::Overflow)
}

fn power(unit: &str) -> Option<u32> {
    UNITS.into_iter().find_map(|(letter, power)| {
        let is = |ending: &str| unit.eq_ignore_ascii_case(&format!("{letter}{ending}"));
        ["", "B", "iB"].into_iter().any(is).then_some(power)
    })
}

/// The shortest exact text for an amount; a number without a unit is in bytes.
pub fn text(bytes: u64) -> String {
    let divides = |(_, power): &(&str, u32)| bytes > 0 && bytes.is_multiple_of(1 << power);
    match UNITS.into_iter().rev().find(divides) {
        Some((letter, power)) => format!("{}{letter}", bytes >> power),
        None => bytes.to_string(),
    }
}

/// An amount in MiB, as people request memory.
pub fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// An amount in the largest unit that is not above it, with one decimal: `4.8 GiB`.
pub fn binary(bytes: u64) -> String {
    match UNITS.into_iter().rev().find(|(_, power)| bytes >> power > 0) {
        Some((letter, power)) => {
            // The remainder in 1024ths of the unit.
            let part = bytes >> (power - 10) & 0x3ff;
            format!("{}.{} {letter}iB", bytes >> power, part * 10 / 1024)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_binary_and_have_several_names() {
        for (text, bytes) in [
            ("200M", 200 << 20),
            ("200m", 200 << 20),
            ("200MB", 200 << 20),
            ("200Mb", 200 << 20),
            ("200MiB", 200 << 20),
            ("200mib", 200 << 20),
            ("1k", 1 << 10),
            ("3GiB", 3 << 30),
            ("16777215TB", 16_777_215 << 40),
            ("0K", 0),
        ] {
            assert_eq!((parse(text, None), parse(text, Some(1))), (Ok(bytes), Ok(bytes)), "{text}");
        }
        assert_eq!([parse("30", Some(1)), parse("30", Some(1 << 20))], [Ok(30), Ok(30 << 20)]);
        for text in ["", "M", "30B", "30iB", "1.5G", "-1M", "+1M", "1 M", " 1M", "1M ", "1MiBs", "1P", "٣M", "1Ｍ"] {
            assert_eq!(parse(text, Some(1)), Err(SizeError::Form), "{text:?}");
        }
        assert_eq!(parse("30", None), Err(SizeError::Form));
        for text in ["16777216T", "18446744073709551616", "99999999999999999999K"] {
            assert_eq!(parse(text, Some(1)), Err(SizeError::Overflow), "{text:?}");
        }
    }

    #[test]
    fn the_largest_unit_without_loss_is_written() {
        let texts = [0, 1, 1023, 1 << 10, 1536 << 10, 30 << 20, 4096 << 20, 1 << 40, u64::MAX].map(text);
        assert_eq!(texts, ["0", "1", "1023", "1K", "1536K", "30M", "4G", "1T", "18446744073709551615"]);
    }

    #[test]
    fn people_read_the_largest_unit() {
        let texts = [0, 1023, 1536, 200 << 20, 5_153_960_755, u64::MAX].map(binary);
        assert_eq!(texts, ["0 B", "1023 B", "1.5 KiB", "200.0 MiB", "4.7 GiB", "16777215.9 TiB"]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(bytes: u64, zeroes in 0u32..64) {
            let bytes = bytes << zeroes;
            prop_assert_eq!(parse(&text(bytes), Some(1)), Ok(bytes));
        }
    }
}
