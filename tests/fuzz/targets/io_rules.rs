// SPDX-License-Identifier: GPL-2.0-or-later
//! `IOMax`: each line is a value. The lower of two is above neither.

use jobfence::cgroup::io::{IoRates, IoRules, Rate};

use super::{is_readable, text};

pub const WORDS: &[&str] = &[
    "/scratch rbps=200M",
    "; ",
    " wbps=1K",
    ",riops=1000",
    "WIOPS=1",
    "/dev/sdb",
    "none",
    "18446744073709551614",
    "4294967294",
    "16777215T",
    "/..",
];

pub fn run(data: &[u8]) {
    let mut last = IoRules::default();
    for line in text(data).split('\n').take(64) {
        let rules = match IoRules::parse(line) {
            Ok(rules) => rules,
            Err(error) => {
                is_readable(&error.to_string());
                continue;
            }
        };
        let written = rules.to_string();
        assert!(written.len() <= 2048 && rules.iter().count() <= 16);
        assert_eq!(IoRules::parse(&written).as_ref(), Ok(&rules), "{written:?}");
        let lower = rules.clone().at_most(&last);
        for one in [&rules, &last] {
            for rule in one.iter() {
                let of =
                    |rules: &IoRules| rules.iter().find(|other| other.target == rule.target).map(|rule| rule.rates);
                let least = of(&lower).unwrap_or_default();
                let both = rule.rates.at_most(of(&last).unwrap_or_default());
                for rate in Rate::ALL {
                    assert!(is_below(least, rule.rates, rate) && is_below(least, both, rate), "{line:?}");
                    assert_ne!(rule.rates.get(rate), Some(0));
                }
            }
        }
        assert!(lower.iter().all(|rule| rules.iter().chain(last.iter()).any(|other| other.target == rule.target)));
        last = rules;
    }
}

fn is_below(one: IoRates, other: IoRates, rate: Rate) -> bool {
    other.get(rate).is_none_or(|most| one.get(rate).is_some_and(|value| value <= most))
}
