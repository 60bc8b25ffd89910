// SPDX-License-Identifier: GPL-2.0-or-later
//! Sets of CPU numbers in the format of the kernel's files: `0-3,8,10-11` (cpuset(7), "List format"). Slurm writes its lists of cores the
//! same way (`bit_fmt`, src/common/bitstring.c).

use std::fmt;

/// A set of CPUs, or of Slurm's cores, by number. It has a bit for each, so that a short text with many numbers costs little. The last word
/// is not zero, so that equal sets are equal.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CpuList(Vec<u64>);

/// More than any kernel has (`NR_CPUS`, 8192 on x86-64 at most) and any list of Slurm can name: all numbers are below it, and a text names
/// no more of them.
const MOST: u32 = 65_536;

impl CpuList {
    /// Reads a list; the empty text is the empty set. `None`: it is not a list, or names more than 65536 numbers or one above 65535.
    pub fn parse(text: &str) -> Option<Self> {
        let mut list = Self::default();
        let mut named = 0u32;
        for item in text.trim().split(',').filter(|item| !item.is_empty()) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (number(first)?, number(last)?);
            // Counted before they are added, and each time that a number is named.
            named = named.checked_add(last.checked_sub(first)?.checked_add(1)?).filter(|named| *named <= MOST)?;
            list.extend(first..=last);
        }
        Some(list)
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest number.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The highest number.
    pub fn last(&self) -> Option<u32> {
        (0..MOST).step_by(64).zip(&self.0).next_back().and_then(|(first, word)| Some(first + word.checked_ilog2()?))
    }

    /// All numbers, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = (0..MOST).step_by(64).zip(&self.0);
        words.flat_map(|(first, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit))
    }

    /// Whether it contains this number.
    pub fn contains(&self, number: u32) -> bool {
        self.word(number as usize / 64) >> (number % 64) & 1 == 1
    }

    /// Whether the other set contains all numbers of this one.
    pub fn is_within(&self, other: &Self) -> bool {
        self.without(other).is_empty()
    }

    /// The union of both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.with(other, |these, others| these | others)
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn in_both(&self, other: &Self) -> Self {
        self.with(other, |these, others| these & others)
    }

    /// This set without the numbers of the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.with(other, |these, others| these & !others)
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn with(&self, other: &Self, merge: impl Fn(u64, u64) -> u64) -> Self {
        let all = 0..self.0.len().max(other.0.len());
        let mut words: Vec<u64> = all.map(|at| merge(self.word(at), other.word(at))).collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        Self(words)
    }
}

/// Numbers above 65535 are not CPUs, and are ignored.
impl Extend<u32> for CpuList {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, numbers: I) {
        for number in numbers.into_iter().filter(|number| *number < MOST) {
            let at = number as usize / 64;
            if self.0.len() <= at {
                self.0.resize(at + 1, 0);
            }
            if let Some(word) = self.0.get_mut(at) {
                *word |= 1 << (number % 64);
            }
        }
    }
}

/// As [`Extend`].
impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut list = Self::default();
        list.extend(numbers);
        list
    }
}

impl fmt::Debug for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuList({self})")
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if_eq(&last.saturating_add(1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Digits only, below [`MOST`].
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number < MOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> CpuList {
        CpuList::parse(text).unwrap()
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, len, written) in [
            ("", 0, ""),
            ("\n", 0, ""),
            ("0", 1, "0"),
            ("0-1", 2, "0-1"),
            ("0-3,8,10-11\n", 7, "0-3,8,10-11"),
            ("11,10,8,3,2,1,0", 7, "0-3,8,10-11"),
            ("1,1-2,2", 2, "1-2"),
            ("0-65535", 65_536, "0-65535"),
        ] {
            assert_eq!((list(text).len(), list(text).to_string().as_str()), (len, written), "{text:?}");
        }
    }

    #[test]
    fn nonsense_and_what_is_too_much_is_no_list() {
        for text in
            ["a", "3-1", "-1", "1-", "0-65536", "1-2-3", "0-65535,0", "4294967296", "+1", "0 1", "0-65535,0-65535"]
        {
            assert_eq!(CpuList::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn sets() {
        let (a, b) = (list("0-3,8"), list("2-5"));
        assert_eq!(a.and(&b), list("0-5,8"));
        assert_eq!(a.in_both(&b), list("2-3"));
        assert_eq!(a.without(&b), list("0-1,8"));
        assert!(list("1,8").is_within(&a) && !b.is_within(&a) && list("").is_within(&b));
        assert_eq!((a.first(), a.last(), list("").first()), (Some(0), Some(8), None));
        assert!(a.contains(8) && !a.contains(4) && !a.contains(u32::MAX));
        // A set after removal equals one that never had more.
        assert_eq!(list("0,65535").without(&list("64-65535")), list("0"));
        assert_eq!((list("0,65535").last(), list("64,63").first(), list("63-64").len()), (Some(65_535), Some(63), 2));
        assert_eq!([5, u32::MAX, 65_536].into_iter().collect::<CpuList>(), list("5"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(numbers in proptest::collection::btree_set(0u32..2000, 0..200)) {
            let cpus: CpuList = numbers.iter().copied().collect();
            prop_assert_eq!(CpuList::parse(&cpus.to_string()), Some(cpus));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9,\\- \n]*|\\PC*") {
            let _ = CpuList::parse(&text);
        }
    }
}
