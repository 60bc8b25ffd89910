// SPDX-License-Identifier: GPL-2.0-or-later
//! Patterns of names, for a site with more names than it wants to write: `*` stands for any text, `?` for one character.

use super::units::Wrong;

/// Whether one of these patterns matches this name. Case counts.
pub(super) fn matches_one(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| is_for(pattern, name))
}

/// Reads patterns of paths, each absolute, with commas between them.
pub(super) fn paths(text: &str) -> Result<Vec<String>, Wrong> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().any(|byte| byte != b'.');
    let is_path = |path: &str| {
        let names = path.strip_prefix('/');
        names.is_some_and(|names| names.split('/').all(is_name))
            && !path.contains([' ', '"'])
            && !path.contains(char::is_control)
    };
    let paths: Vec<_> = text.split(',').map(str::to_owned).collect();
    if paths.iter().all(|path| is_path(path)) { Ok(paths) } else { Err(Wrong::Form) }
}

/// The first of these patterns of paths that is for this path, or for one above it. A `*` or `?` stands for no `/`.
pub fn at_or_above<'a>(patterns: &'a [String], path: &str) -> Option<&'a str> {
    let is_above = |pattern: &&String| {
        let mut names = path.split('/');
        pattern.split('/').all(|wanted| names.next().is_some_and(|name| is_for(wanted, name)))
    };
    patterns.iter().find(is_above).map(String::as_str)
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
    fn a_path_is_for_all_below_it_and_a_star_for_one_name() {
        let is = |pattern: &str, path: &str| at_or_above(&[pattern.to_owned()], path).is_some();
        assert!(is("/a/b*", "/a/b") && is("/a/b*", "/a/bc/d/e") && is("/*/x", "/a/x"));
        assert!(!is("/a/b", "/a/bc") && !is("/a/b", "/a") && !is("/*/x", "/a/b/x") && !is("/a", "/") && !is("/a", ""));
        assert_eq!(at_or_above(&["/x".to_owned(), "/y".to_owned()], "/y/z"), Some("/y"));
    }

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
