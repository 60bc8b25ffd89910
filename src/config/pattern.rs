// SPDX-License-Identifier: GPL-2.0-or-later
//! Patterns of names, for a site with more names than it wants to write: `*` stands for any text, `?` for one character.

/// Whether one of these patterns matches this name. Case counts.
pub(super) fn matches_one(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| is_for(pattern, name))
}

/// Goes back only to the last `*`, which is enough: so the time is at most the product of both lengths.
fn is_for(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    let mut last_star = None;
    loop {
        let rest = name.clone();
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                name = rest;
                last_star = Some((pattern.clone(), name.clone()));
            }
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {}
            (Some(_) | None, _) => {
                let Some((behind, from)) = &mut last_star else { return false };
                if from.next().is_none() {
                    return false;
                }
                (pattern, name) = (behind.clone(), from.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_for_whole_names() {
        for (pattern, names, others) in [
            ("gpu", ["gpu", "gpu"], ["gp", "gpus"]),
            ("gpu*", ["gpu", "gpu_a100"], ["gp", "xgpu"]),
            ("*", ["", "a.b"], ["", ""]),
            ("n?-*", ["n1-", "n1-ib0"], ["n-", "n12-"]),
            ("*a*b", ["ab", "xaabab"], ["ba", "aba"]),
            ("*.example.org", ["n1.example.org", ".example.org"], ["n1.example.com", "n1"]),
        ] {
            for name in names {
                assert!(is_for(pattern, name), "{pattern} {name}");
            }
            for name in others.into_iter().filter(|name| !names.contains(name)) {
                assert!(!is_for(pattern, name), "{pattern} {name}");
            }
        }
        let (pattern, name) = ("*a".repeat(50), "a".repeat(5000) + "b");
        assert!(!is_for(&pattern, &name), "and it has an end");
    }
}
