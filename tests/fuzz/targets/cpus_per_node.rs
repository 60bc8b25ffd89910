// SPDX-License-Identifier: GPL-2.0-or-later
//! `SLURM_JOB_CPUS_PER_NODE`, as `4(x2),3`.

use jobfence::hostlist::Repeated;

use super::text;

pub const WORDS: &[&str] = &["4(x2)", ",3", "(x", ")", "1(x999999999)", "1(x4000000000)", "999999999"];

pub fn run(data: &[u8]) {
    let text = text(data);
    // Each item by itself: one that is none spoils the list.
    let items: Option<Vec<(u32, u64)>> = text.split(',').map(item_of).collect();
    let list = Repeated::parse(&text);
    assert_eq!(list.is_some(), items.is_some(), "{text:?}");
    let (Some(list), Some(items)) = (list, items) else { return };
    let mut place: u64 = 0;
    for (at, (count, times)) in items.iter().enumerate() {
        // The search begins at the beginning each time: not for every item of a long list.
        if at < 100 {
            assert_eq!(list.nth(place), Some(*count));
            assert_eq!(list.nth(place + times - 1), Some(*count));
        }
        place += times;
    }
    assert_eq!((list.count(), list.nth(place), list.nth(u64::MAX)), (place, None, None));
    let is_one = items.iter().all(|(count, _)| *count == items[0].0);
    assert_eq!(list.everywhere(), is_one.then_some(items[0].0));
}

fn item_of(item: &str) -> Option<(u32, u64)> {
    let number = |text: &str| {
        let digits = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| digits)
    };
    match item.split_once("(x") {
        Some((count, times)) => {
            let times = number(times.strip_suffix(')')?).filter(|times| *times > 0)?;
            Some((number(count)?, times.into()))
        }
        None => Some((number(item)?, 1)),
    }
}
