// SPDX-License-Identifier: GPL-2.0-or-later
//! Sorting and sets, with one sort function for all types.
//!
//! The standard library has 3 to 5 KB of code for each type that is sorted, and `collect` sorts the items of a set. Every step daemon maps
//! that code. So this module sorts positions, and then moves each item once. It uses heapsort, which is little code and never slow: a user
//! decides how many processes there are and in which order.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// As `slice::sort`.
pub fn sort<T: Ord>(list: &mut [T]) {
    sort_by(list, T::cmp);
}

/// As `slice::sort_by_key`.
pub fn sort_by_key<T, K: Ord>(list: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(list, |a, b| key(a).cmp(&key(b)));
}

/// As `slice::sort_by`.
pub fn sort_by<T>(list: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let swaps = swaps(list.len(), &|a, b| compare(&list[a], &list[b]));
    for (at, from) in swaps.into_iter().enumerate() {
        list.swap(at, from);
    }
}

/// A sorted list. For a few items, a tree of their type would be 4 KB of code for nothing.
pub fn list<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list = Vec::from_iter(all);
    sort(&mut list);
    list
}

/// As `collect`.
pub fn set<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(all);
    set
}

/// As `BTreeSet::retain`, without the code for removing single items from a tree.
pub fn retain<T: Ord>(set: &mut BTreeSet<T>, is_kept: impl FnMut(&T) -> bool) {
    *set = self::set(std::mem::take(set).into_iter().filter(is_kept));
}

/// For each position in turn, the position behind it to swap it with.
fn swaps(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    // Equal items keep their order.
    let is_less = |a: usize, b: usize| compare(a, b).then(a.cmp(&b)).is_lt();
    let mut order: Vec<usize> = (0..count).collect();
    for top in (0..count / 2).rev() {
        sift(&mut order, top, &is_less);
    }
    for end in (1..count).rev() {
        order.swap(0, end);
        sift(&mut order[..end], 0, &is_less);
    }
    for at in 0..count {
        let mut from = order[at];
        // The item at that position has been swapped away.
        while from < at {
            from = order[from];
        }
        order[at] = from;
    }
    order
}

/// Sinks an item in a heap until no child is greater.
fn sift(heap: &mut [usize], mut at: usize, is_less: &dyn Fn(usize, usize) -> bool) {
    loop {
        let mut child = 2 * at + 1;
        if child + 1 < heap.len() && is_less(heap[child], heap[child + 1]) {
            child += 1;
        }
        if child >= heap.len() || !is_less(heap[at], heap[child]) {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorts_as_the_standard_library_does(list: Vec<(u8, u16)>) {
            let (mut ours, mut theirs) = (list.clone(), list);
            sort_by_key(&mut ours, |item| item.0);
            theirs.sort_by_key(|item| item.0);
            prop_assert_eq!(&ours, &theirs);
            sort(&mut ours);
            theirs.sort();
            prop_assert_eq!(&ours, &theirs);
        }
    }

    #[test]
    fn a_set_has_everything_once_that_is_kept() {
        assert_eq!(set([2, 1, 2]), BTreeSet::from([1, 2]));
        let mut all = set([1, 2, 3]);
        retain(&mut all, |number| *number != 2);
        assert_eq!(all, BTreeSet::from([1, 3]));
    }

    #[test]
    fn a_long_list_that_is_the_wrong_way_round_takes_no_time() {
        let mut list: Vec<u32> = (0..200_000).rev().collect();
        let compared = std::cell::Cell::new(0u64);
        sort_by(&mut list, |a, b| {
            compared.set(compared.get() + 1);
            a.cmp(b)
        });
        assert!(list.is_sorted());
        assert!(compared.get() < 40 * 200_000, "{}", compared.get());
    }
}
