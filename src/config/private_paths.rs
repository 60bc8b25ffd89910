// SPDX-License-Identifier: GPL-2.0-or-later
//! The values of `PrivateTmp` and `PrivateTmpShare`: the directories that each job has for itself, and what stays the host's in them.

use std::path::{Path, PathBuf};

use super::pattern;
use super::units::{self, Wrong, none_or, text_or_none};

/// What each part of a list must be.
pub(super) const PATHS: &str = "none, or absolute paths with commas between them, as /tmp,/var/tmp,/dev/shm: none is in another, none \
                                is /, /dev, /var, and none is in a directory of the kernel's or the system's, as /proc or /etc";
/// Without these of the host's, root's programs in the job would do what its user wants.
const TREES: [&str; 9] = ["/proc", "/sys", "/etc", "/usr", "/bin", "/sbin", "/boot", "/run", "/root"];
/// The same, with patterns.
pub(super) const PATTERNS: &str =
    "none, or absolute paths with commas between them, where * and ? may stand in the last part, as /tmp/.X11-unix";

/// Directories that are a job's own.
pub(super) fn read(text: &str) -> Result<Vec<PathBuf>, Wrong> {
    let paths = list(text)?;
    let is_systems = |path: &PathBuf| {
        ["/", "/dev", "/var"].iter().any(|whole| path == Path::new(whole))
            || TREES.iter().any(|tree| path.starts_with(tree))
            || path.iter().nth(1).is_some_and(|top| top.as_encoded_bytes().starts_with(b"lib"))
    };
    let is_in_another =
        |path: &PathBuf| paths.iter().filter(|other| path.starts_with(other) || other.starts_with(path)).count() > 1;
    if paths.iter().any(|path| is_systems(path) || is_in_another(path)) { Err(Wrong::Form) } else { Ok(paths) }
}

/// What of the host's stays visible.
pub(super) fn read_patterns(text: &str) -> Result<Vec<PathBuf>, Wrong> {
    let paths = list(text)?;
    let is_whole = |path: &Path| !path.to_string_lossy().contains(['*', '?']);
    let is_sound = |path: &PathBuf| path.file_name().is_some() && path.parent().is_some_and(is_whole);
    if paths.iter().all(is_sound) { Ok(paths) } else { Err(Wrong::Form) }
}

fn list(text: &str) -> Result<Vec<PathBuf>, Wrong> {
    let one = |part: &str| Ok(units::path(part.trim())?.components().collect());
    none_or(text, |text| text.split(',').map(one).collect()).map(Option::unwrap_or_default)
}

/// The reverse of both.
pub(super) fn text(paths: &[PathBuf]) -> String {
    let all: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    text_or_none((!all.is_empty()).then(|| all.join(",")))
}

/// Whether the last part of a pattern is for this name.
pub(crate) fn is_shared(share: &Path, name: &str) -> bool {
    let pattern = share.file_name().map(|last| last.to_string_lossy().into_owned());
    pattern::matches_one(pattern.as_slice(), name)
}

/// Both lists' directories. One that lies in another's is left out with its own.
pub(super) fn all(paths: &mut Vec<PathBuf>, other: &Vec<PathBuf>) {
    for path in other {
        if !paths.iter().any(|ours| path.starts_with(ours)) {
            paths.retain(|ours| !ours.starts_with(path));
            paths.push(path.clone());
        }
    }
}

/// What both lists share.
#[expect(clippy::ptr_arg, reason = "the table of keys calls it by this type")]
pub(super) fn common(shares: &mut Vec<PathBuf>, other: &Vec<PathBuf>) {
    shares.retain(|share| other.contains(share));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_in_another_and_none_is_the_kernels() {
        assert_eq!(read("/tmp/, /var/tmp"), Ok(vec!["/tmp".into(), "/var/tmp".into()]));
        assert_eq!(read("/home,/opt/a,/var/lib"), Ok(vec!["/home".into(), "/opt/a".into(), "/var/lib".into()]));
        assert_eq!(read("none"), Ok(Vec::new()));
        for wrong in [
            "",
            "tmp",
            "/",
            "/dev",
            "/proc/1",
            "/sys",
            "/tmp,/tmp",
            "/tmp,/tmp/a",
            "/a/b,/a",
            "/a/../b",
            "/a,",
            "/etc",
            "/usr/bin",
            "/lib64",
            "/run/x",
            "/var",
            "/root",
        ] {
            assert_eq!(read(wrong), Err(Wrong::Form), "{wrong}");
        }
        assert_eq!(read_patterns("/tmp/.X*"), Ok(vec!["/tmp/.X*".into()]));
        for wrong in ["/t*/a", "a", "/"] {
            assert_eq!(read_patterns(wrong), Err(Wrong::Form), "{wrong}");
        }
        assert!(is_shared(Path::new("/tmp/.X*"), ".X11-unix") && !is_shared(Path::new("/tmp/.X1"), ".X11-unix"));
    }

    #[test]
    fn of_two_lists_each_job_has_all_and_shares_what_both_share() {
        let paths = |text| read(text).unwrap();
        let mut both = paths("/a/b,/c");
        all(&mut both, &paths("/a,/c/d,/e"));
        assert_eq!(both, paths("/c,/a,/e"));
        let mut shares = paths("/a,/b");
        common(&mut shares, &paths("/b,/c"));
        assert_eq!(shares, paths("/b"));
    }
}
