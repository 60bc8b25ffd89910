// SPDX-License-Identifier: GPL-2.0-or-later
//! The files of resctrl with a value for each domain: `schemata`, and `bit_usage`.

use std::collections::BTreeMap;
use std::fmt;

/// What a group may use: by resource, and by the number of the cache. The kernel pads names and values with blanks, and writes masks as
/// hexadecimal numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schemata(BTreeMap<String, BTreeMap<u32, String>>);

impl Schemata {
    /// Reads it; what has no value is left out, as of a group that is to lock a part of the cache (`uninitialized`).
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for (resource, values) in text.lines().filter_map(|line| line.split_once(':')) {
            for (domain, value) in values.split(';').filter_map(|part| part.split_once('=')) {
                if let Ok(domain) = domain.trim().parse() {
                    all.set(resource.trim(), domain, value.trim().to_owned());
                }
            }
        }
        all
    }

    /// Adds a value.
    pub fn set(&mut self, resource: &str, domain: u32, value: String) {
        self.0.entry(resource.to_owned()).or_default().insert(domain, value);
    }

    /// Whether it has no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The masks of a resource, by domain.
    pub fn masks(&self, resource: &str) -> BTreeMap<u32, u64> {
        self.values(resource, |text| u64::from_str_radix(text, 16).ok())
    }

    /// The numbers of a resource, by domain.
    pub fn numbers(&self, resource: &str) -> BTreeMap<u32, u64> {
        self.values(resource, |text| text.parse().ok())
    }

    fn values(&self, resource: &str, read: impl Fn(&str) -> Option<u64>) -> BTreeMap<u32, u64> {
        let all = self.0.get(resource).into_iter().flatten();
        all.filter_map(|(domain, text)| Some((*domain, read(text)?))).collect()
    }

    /// The values of those resources alone that the other has.
    pub fn of_the_resources_of(&self, other: &Self) -> Self {
        let kept = self.0.iter().filter(|(name, _)| other.0.contains_key(*name));
        Self(kept.map(|(name, values)| (name.clone(), values.clone())).collect())
    }

    /// Whether a group that was given the other has it. Masks are exactly that. The kernel may have rounded bandwidth up.
    pub fn is_as_planned(&self, planned: &Self) -> bool {
        let is_so = |name: &String| match name.as_str() {
            "MB" => {
                let (has, wanted) = (self.numbers(name), planned.numbers(name));
                wanted.iter().all(|(domain, wanted)| has.get(domain).is_some_and(|has| has >= wanted))
            }
            _ => self.masks(name) == planned.masks(name),
        };
        planned.0.keys().all(is_so)
    }

    /// Takes the other's values in addition.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// As it is written into the file: the kernel takes no line without its end.
impl fmt::Display for Schemata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (resource, values) in &self.0 {
            let values: Vec<String> = values.iter().map(|(domain, value)| format!("{domain}={value}")).collect();
            writeln!(f, "{resource}:{}", values.join(";"))?;
        }
        Ok(())
    }
}

/// The ways of each domain that the kernel gives to no other group, by `bit_usage`: an exclusive group has them (`E`), or they are locked
/// (`P`). The last letter stands for way 0.
pub fn exclusive(bit_usage: &str) -> BTreeMap<u32, u64> {
    let parts = bit_usage.trim().split(';').filter_map(|part| part.split_once('='));
    let mask = |letters: &str| {
        letters.trim().chars().fold(0_u64, |mask, letter| mask << 1 | u64::from(matches!(letter, 'E' | 'P')))
    };
    parts.filter_map(|(domain, letters)| Some((domain.trim().parse().ok()?, mask(letters)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        // Documentation/filesystems/resctrl.rst, and as Linux 5.15 pads it.
        let schemata = Schemata::parse("    MB:0= 100;1=  20\nL3DATA:0=fffff;1=003c0\nL3CODE:0=fffff;3=fffff\n");
        assert_eq!(schemata.numbers("MB"), BTreeMap::from([(0, 100), (1, 20)]));
        assert_eq!(schemata.masks("L3DATA"), BTreeMap::from([(0, 0xf_ffff), (1, 0x3c0)]));
        assert_eq!(schemata.masks("L3CODE"), BTreeMap::from([(0, 0xf_ffff), (3, 0xf_ffff)]));
        assert!(schemata.masks("L3").is_empty() && Schemata::parse("L3:uninitialized\n").is_empty());
        assert_eq!(schemata.to_string(), "L3CODE:0=fffff;3=fffff\nL3DATA:0=fffff;1=003c0\nMB:0=100;1=20\n");
        assert_eq!(Schemata::parse(&schemata.to_string()), schemata);
    }

    #[test]
    fn what_a_group_has_is_compared_by_its_numbers() {
        let planned = Schemata::parse("L3:0=f;1=f\nMB:0=20\n");
        let is_so = |text: &str| Schemata::parse(text).of_the_resources_of(&planned).is_as_planned(&planned);
        assert!(is_so("L2:0=1\n L3:0=00f;1=00f\n MB:0= 30\n"));
        for other in ["L3:0=f;1=f\nMB:0=10\n", "L3:0=f;1=1f\nMB:0=20\n", "L3:0=f\nMB:0=20\n", "L3:0=f;1=f\n"] {
            assert!(!is_so(other), "{other}");
        }
    }

    #[test]
    fn exclusive_and_locked_ways_are_known() {
        assert_eq!(exclusive("0=XXSSSEEP;1=HH000000\n"), BTreeMap::from([(0, 0b111), (1, 0)]));
        assert_eq!(exclusive(""), BTreeMap::new());
    }
}
