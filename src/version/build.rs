// SPDX-License-Identifier: GPL-2.0-or-later
//! Of which commit this tree is. build.rs asks, and the tests.

use std::path::Path;
use std::process::Command;

/// What a release may be built from beside git: 'git archive', and each tarball that is made with it, fills the file in.
pub const FILE: &str = "src/version/commit";

/// What decides what is built. packaging/dist reads the file, too.
const SOURCES: &str = include_str!("sources");

/// So many characters of a commit's name are said. git's own short form is longer in a clone that has more.
const SHORT: usize = 12;

/// As `0.1.0 (91fb6ef12ab3)`, or ` with changes` behind the commit. The number alone where nobody knows.
pub fn in_words(number: &str, top: &Path) -> String {
    commit(top).map_or_else(|| number.to_owned(), |commit| format!("{number} ({commit})"))
}

fn commit(top: &Path) -> Option<String> {
    let archived = std::fs::read_to_string(top.join(FILE)).ok()?;
    let archived = archived.trim();
    if !archived.starts_with('$') {
        return (!archived.is_empty()).then(|| short(archived));
    }
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(top).args(words);
        // In a hook of git's they name the tree that the hook is about.
        ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"].iter().for_each(|name| {
            command.env_remove(name);
        });
        let said = command.output().ok()?;
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    // The tree may lie within that of something else.
    let is_ours =
        std::fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()? == std::fs::canonicalize(top).ok()?;
    // The last that has changed something of it: then a page that is rewritten builds nothing again.
    let sources: Vec<_> = SOURCES.lines().collect();
    let of_sources = |first: &[&'static str]| git(&[first, &["--"], &sources].concat());
    let commit = of_sources(&["log", "-1", "--format=%H"]).filter(|commit| is_ours && !commit.is_empty())?;
    let has_changes = !of_sources(&["status", "--porcelain"])?.is_empty();
    Some(short(&commit) + if has_changes { " with changes" } else { "" })
}

fn short(commit: &str) -> String {
    commit.chars().take(SHORT).collect()
}
