// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's compressed lists: of node names (`node[01-16,20],login1`) and of CPU counts (`3(x2),1`).
//!
//! A list is never expanded: `n[0-999999999]` costs no more than `n1`. Text that is not understood is refused.

/// The most brackets in one name: Slurm's names have one or two, for a rack and a node.
const MAX_BRACKETS: usize = 4;
/// The most digits in a number.
const MAX_DIGITS: usize = 9;

/// Node names, in the order of their list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostList(Vec<Vec<NamePart>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum NamePart {
    Text(String),
    Numbers(Vec<Range>),
}

/// Numbers from `first` to `last`, written with at least `width` digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: number(first)?, last: number(last)?, width: first.len() };
        (range.first <= range.last).then_some(range)
    }

    fn count(self) -> u64 {
        self.last - self.first + 1
    }

    /// How many numbers come before this one, if it is in the range and has the range's format.
    fn place_of(self, digits: &str) -> Option<u64> {
        let value = number(digits)?;
        let width = self.width;
        let is_one = (self.first..=self.last).contains(&value) && format!("{value:0width$}") == digits;
        is_one.then(|| value - self.first)
    }
}

fn number(digits: &str) -> Option<u64> {
    let sound = !digits.is_empty() && digits.len() <= MAX_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    if sound { digits.parse().ok() } else { None }
}

impl HostList {
    /// Parses a list. Names consist of letters, digits, `_`, `-` and `.`, each with at most four pairs of brackets, in which numbers have
    /// at most nine digits. The list stands for at most as many names as 64 bits can count, so that each has a position.
    pub fn parse(text: &str) -> Option<Self> {
        let mut names = Vec::new();
        let mut all: u64 = 0;
        let mut rest = text;
        loop {
            let (name, behind) = first_name(rest)?;
            all = all.checked_add(count(&name)?)?;
            names.push(name);
            if behind.is_empty() {
                return Some(Self(names));
            }
            rest = behind.strip_prefix(',')?;
        }
    }

    /// Whether the list contains this node.
    pub fn contains(&self, node: &str) -> bool {
        self.0.iter().any(|name| place_in(name, node, &mut Vec::new()).is_some())
    }

    /// How many names the list stands for.
    pub fn count(&self) -> u64 {
        // Each of these was counted when the list was parsed.
        self.0.iter().filter_map(|name| count(name)).fold(0, u64::saturating_add)
    }

    /// Whether the order of the names is Slurm's: with three brackets Slurm varies the first faster than the second.
    fn is_in_order(&self) -> bool {
        let brackets = |name: &Vec<NamePart>| name.iter().filter(|part| matches!(part, NamePart::Numbers(_))).count();
        self.0.iter().all(|name| brackets(name) <= 2)
    }

    /// How many names come before this one. `None`: it is not in the list, or the order is not certain.
    pub fn position(&self, node: &str) -> Option<u64> {
        if !self.is_in_order() {
            return None;
        }
        let mut before: u64 = 0;
        for name in &self.0 {
            match place_in(name, node, &mut Vec::new()) {
                Some(place) => return before.checked_add(place),
                None => before = before.checked_add(count(name)?)?,
            }
        }
        None
    }

    /// The names in order. `None`: there are more than `most`, or the order is not certain.
    pub fn names(&self, most: usize) -> Option<Vec<String>> {
        if self.count() > u64::try_from(most).ok()? || !self.is_in_order() {
            return None;
        }
        let mut all = Vec::new();
        for parts in &self.0 {
            let mut names = vec![String::new()];
            for part in parts {
                names = match part {
                    NamePart::Text(text) => names.into_iter().map(|name| name + text).collect(),
                    NamePart::Numbers(ranges) => {
                        let mut longer = Vec::new();
                        for name in names {
                            for range in ranges {
                                let width = range.width;
                                for number in range.first..=range.last {
                                    longer.push(format!("{name}{number:0width$}"));
                                }
                            }
                        }
                        longer
                    }
                };
            }
            all.append(&mut names);
        }
        Some(all)
    }
}

/// The first name of a list, and the rest.
fn first_name(text: &str) -> Option<(Vec<NamePart>, &str)> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut brackets = 0;
    loop {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let behind = rest.trim_start_matches(plain);
        let literal = rest.strip_suffix(behind).unwrap_or_default();
        if !literal.is_empty() {
            parts.push(NamePart::Text(literal.to_owned()));
        }
        let Some(inside) = behind.strip_prefix('[') else {
            return if parts.is_empty() { None } else { Some((parts, behind)) };
        };
        brackets += 1;
        let (ranges, behind) = inside.split_once(']').filter(|_| brackets <= MAX_BRACKETS)?;
        parts.push(NamePart::Numbers(ranges.split(',').map(Range::parse).collect::<Option<_>>()?));
        rest = behind;
    }
}

/// How many names a name with brackets stands for. `None`: more than can be counted.
fn count(parts: &[NamePart]) -> Option<u64> {
    let of = |part: &NamePart| match part {
        NamePart::Text(_) => Some(1),
        NamePart::Numbers(ranges) => ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.count())),
    };
    parts.iter().try_fold(1u64, |product, part| product.checked_mul(of(part)?))
}

/// The position of a node among these names, from 0, with the last bracket varying fastest.
///
/// A bracket may match one to nine digits of a node's name, and so may each bracket behind it. `wrong` holds the pairs of remaining lengths
/// that are known not to match: there are few of them, and many ways that lead to each.
fn place_in(parts: &[NamePart], node: &str, wrong: &mut Vec<(usize, usize)>) -> Option<u64> {
    let Some((part, more)) = parts.split_first() else { return node.is_empty().then_some(0) };
    let ranges = match part {
        NamePart::Text(text) => return place_in(more, node.strip_prefix(text.as_str())?, wrong),
        NamePart::Numbers(ranges) => ranges,
    };
    if wrong.contains(&(parts.len(), node.len())) {
        return None;
    }
    let digits = node.bytes().take_while(u8::is_ascii_digit).count().min(MAX_DIGITS);
    let place = (1..=digits).find_map(|length| {
        let (digits, rest) = node.split_at_checked(length)?;
        let mut before: u64 = 0;
        for range in ranges {
            if let Some(place) = range.place_of(digits) {
                let outer = before.checked_add(place)?.checked_mul(count(more)?)?;
                return place_in(more, rest, wrong).and_then(|inner| outer.checked_add(inner));
            }
            before = before.checked_add(range.count())?;
        }
        None
    });
    if place.is_none() {
        wrong.push((parts.len(), node.len()));
    }
    place
}

/// A number for each node of a list, as `3(x2),1` (sbatch(1), `SLURM_JOB_CPUS_PER_NODE`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated(Vec<(u32, u64)>);

impl Repeated {
    /// Parses a list that stands for at most as many numbers as 64 bits can count.
    pub fn parse(list: &str) -> Option<Self> {
        let mut items = Vec::new();
        let mut all: u64 = 0;
        for item in list.split(',') {
            let (value, times) = match item.split_once("(x") {
                Some((value, times)) => (value, number(times.strip_suffix(')')?).filter(|times| *times > 0)?),
                None => (item, 1),
            };
            all = all.checked_add(times)?;
            items.push((u32::try_from(number(value)?).ok()?, times));
        }
        Some(Self(items))
    }

    /// How many numbers the list stands for.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, times)| times).sum()
    }

    /// The number at a position, from 0.
    pub fn nth(&self, place: u64) -> Option<u32> {
        let mut before: u64 = 0;
        for (value, times) in &self.0 {
            before = before.checked_add(*times)?;
            if place < before {
                return Some(*value);
            }
        }
        None
    }

    /// The number at every position, if all are equal.
    pub fn everywhere(&self) -> Option<u32> {
        let (first, _) = self.0.first()?;
        self.0.iter().all(|(value, _)| value == first).then_some(*first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> HostList {
        HostList::parse(text).unwrap()
    }

    #[test]
    fn names_are_found_as_slurm_writes_them() {
        let nodes = list("node[01-16,20],login1,rack[1-2]n[8-11]x,a-b.c");
        for yes in ["node01", "node16", "node20", "login1", "rack2n8x", "rack1n11x", "a-b.c"] {
            assert!(nodes.contains(yes), "{yes}");
        }
        for no in ["node1", "node001", "node17", "node", "node016", "login", "login11", "rack3n8x", "rack1n08x", ""] {
            assert!(!nodes.contains(no), "{no}");
        }
        // A number behind a bracket's.
        assert!(list("n[1-12]3").contains("n123") && list("n[1-12]3").contains("n13"));
    }

    #[test]
    fn their_order_is_the_lists() {
        let nodes = list("b2,node[9-11,01-02],r[1-2]n[1-3]");
        let order = ["b2", "node9", "node10", "node11", "node01", "node02", "r1n1", "r1n2", "r1n3", "r2n1"];
        for (place, node) in order.iter().enumerate() {
            assert_eq!(nodes.position(node), Some(place as u64), "{node}");
        }
        assert_eq!(nodes.position("node12"), None);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in [
            "",
            ",",
            "a,",
            ",a",
            "a b",
            "a[",
            "a]",
            "a[1",
            "a[]",
            "a[1-]",
            "a[-1]",
            "a[2-1]",
            "a[1-2-3]",
            "a[x]",
            "a[[1]]",
            "a[1]]",
            "ä",
            "a/b",
            "a[1234567890]",
            "a[1][1][1][1][1]",
            "a[0-999999999][0-999999999][0-99]",
            "a[0-999999999][0-999999999][0-9],b[0-999999999][0-999999999][0-9]",
            "a[1,]",
            "*",
            "a\n",
        ] {
            assert_eq!(HostList::parse(bad), None, "{bad:?}");
        }
        assert!(list("a[1][1][1][1]").contains("a1111"));
        let (two, three) = (list("a[0-999999999][0-999999999]"), list("a[0-999999999][0-999999999][0-9]"));
        assert_eq!(two.position("a999999999999999999"), Some(999_999_999_999_999_999));
        // Slurm itself orders a name with three brackets in another way.
        assert!(three.contains("a9999999999999999999"));
        assert_eq!((three.position("a9999999999999999999"), list("a[1][1][1]").names(9)), (None, None));
    }

    #[test]
    fn many_ways_to_read_a_name_do_not_take_long() {
        let ranges: Vec<String> = (2..30_000).step_by(3).map(|number| number.to_string()).collect();
        let nodes = list(&format!("n{}[{}]x", "[0-99999]".repeat(3), ranges.join(",")));
        let once = || {
            let begun = std::time::Instant::now();
            assert!(!nodes.contains(&format!("n{}y", "1".repeat(36))));
            assert!(nodes.contains("n1112x") && nodes.contains("n1111111111111115x"));
            begun.elapsed()
        };
        // A busy machine can only make it longer.
        assert!((0..20).any(|_| once() < std::time::Duration::from_secs(5)), "{:?}", once());
    }

    #[test]
    fn counts_are_found_by_place() {
        let counts = Repeated::parse("3(x2),1").unwrap();
        for (place, count) in [(0, Some(3)), (1, Some(3)), (2, Some(1)), (3, None), (u64::MAX, None)] {
            assert_eq!(counts.nth(place), count, "{place}");
        }
        assert_eq!((counts.count(), counts.everywhere()), (3, None));
        for (list, count) in [("4", 1), ("4(x7)", 7), ("4(x2),4", 3)] {
            let counts = Repeated::parse(list).unwrap();
            assert_eq!((counts.count(), counts.everywhere()), (count, Some(4)), "{list}");
        }
        for bad in ["", "x", "3(x", "3(x)", "3x2", "3(x2", "-1", "4294967296", "3(x0)", "3,", "3,x"] {
            assert_eq!(Repeated::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_are_counted() {
        for (text, count) in [("a", 1), ("n[1-2],z", 3), ("r[1-2]n[08-11],x", 9), ("a,a", 2)] {
            assert_eq!(list(text).count(), count, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z0-9,\\[\\]()x-]{0,40}", node in "[a-z0-9-]{0,20}", place: u64) {
            let _ = HostList::parse(&text).map(|list| (list.contains(&node), list.position(&node), list.count()));
            let _ = Repeated::parse(&text).map(|list| (list.nth(place), list.count(), list.everywhere()));
        }

        /// Compared with the list written out.
        #[test]
        fn a_range_is_what_it_stands_for(first in 0u64..300, more in 0u64..50, width in 1usize..5, asked in 0u64..400, wide in 1usize..5) {
            let last = first + more;
            let list = HostList::parse(&format!("x,n[{first:0width$}-{last}]y")).unwrap();
            let node = format!("n{asked:0wide$}y");
            let width = width.max(first.to_string().len());
            let expected = (first..=last).position(|number| format!("n{number:0width$}y") == node);
            prop_assert_eq!(list.position(&node), expected.map(|place| place as u64 + 1));
        }
    }

    #[test]
    fn names_stand_in_their_order() {
        let names = |text: &str, most| HostList::parse(text).unwrap().names(most).map(|names| names.join(" "));
        assert_eq!(names("n[1-2,08-10]b,z", 9).as_deref(), Some("n1b n2b n08b n09b n10b z"));
        assert_eq!(names("a[1-2]-[3-4]", 4).as_deref(), Some("a1-3 a1-4 a2-3 a2-4"));
        assert_eq!(names("a[1-2]-[3-4]", 3), None);
    }
}
