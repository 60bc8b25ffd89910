// SPDX-License-Identifier: GPL-2.0-or-later
//! `SLURM_JOB_CPUS_PER_NODE`, as `4(x2),3`.

use jobfence::hostlist::nth_repeated;

use super::text;

pub const WORDS: &[&str] = &["4(x2)", ",3", "(x", ")", "1(x999999999)", "1(x4000000000)", "999999999"];

pub fn run(data: &[u8]) {
    let text = text(data);
    // Each item by itself, until one is none.
    let mut place: u64 = 0;
    for item in text.split(',') {
        let Some((count, times)) = item_of(item) else {
            assert_eq!(nth_repeated(&text, place), None, "{item:?}");
            break;
        };
        if place > 1 << 40 || times == 0 {
            break;
        }
        // The search begins at the beginning each time: not for every item of a long list.
        if place < 100 {
            assert_eq!(nth_repeated(&text, place), Some(count));
            assert_eq!(nth_repeated(&text, place + times - 1), Some(count));
        }
        place += times;
    }
    let _ = nth_repeated(&text, u64::MAX);
}

fn item_of(item: &str) -> Option<(u32, u64)> {
    let number = |text: &str| {
        let digits = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| digits)
    };
    match item.split_once("(x") {
        Some((count, times)) => Some((number(count)?, number(times.strip_suffix(')')?)?.into())),
        None => Some((number(item)?, 1)),
    }
}
