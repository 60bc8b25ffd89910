// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds what an unknown word was probably meant to be.

/// The name that `wrong` was probably meant to be: no more than a third of it, and at most three characters, mistyped.
pub fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase();
    names
        .filter(|name| name.len().abs_diff(wrong.len()) <= 3)
        .map(|name| (distance(&wrong, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| *distance <= 3.min(name.len() / 3))
        .min()
        .map(|(_, name)| name)
}

/// How many bytes must be inserted, removed or replaced to make `a` of `b` (Levenshtein's distance).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (1..=b.len()).collect();
    for (index, x) in a.bytes().enumerate() {
        let (mut diagonal, mut left) = (index, index + 1);
        for (above, y) in row.iter_mut().zip(b.bytes()) {
            left = (diagonal + usize::from(x != y)).min(*above + 1).min(left + 1);
            diagonal = std::mem::replace(above, left);
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::*;

    #[test]
    fn only_a_likely_key_is_suggested() {
        let nearest = |wrong| nearest(wrong, KEYS.iter().map(|key| key.name));
        assert_eq!(nearest("constrianramspace"), Some("ConstrainRAMSpace"));
        assert_eq!(nearest("Modes"), Some("Mode"));
        assert_eq!(nearest("ConstrainNetwork"), None);
        assert_eq!(nearest("x"), None);
        assert_eq!([distance("", "ab"), distance("ab", ""), distance("kitten", "sitting")], [2, 2, 3]);
    }
}
