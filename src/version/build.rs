// SPDX-License-Identifier: GPL-2.0-or-later
//! The commit that this tree is of. build.rs and the tests ask for it.

use std::path::Path;
use std::process::Command;

/// A file that names the commit of a release without git: 'git archive' fills it in, and so each tarball that is made with it has it.
pub const FILE: &str = "src/version/commit";

/// The files that decide what is built. packaging/dist reads this list, too.
const SOURCES: &str = include_str!("sources");

/// How many characters of a commit's name are shown. git's own short form is longer in a clone with more commits.
const SHORT: usize = 12;

/// The version as `0.1.0 (91fb6ef12ab3)`, with ` with changes` behind the commit if the tree has some. If the commit is not known, it is
/// the number alone.
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
        // While a hook of git runs, these variables name the hook's tree.
        ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"].iter().for_each(|name| {
            command.env_remove(name);
        });
        let said = command.output().ok()?;
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    // The tree may lie within another repository, whose commit says nothing about it.
    let is_ours =
        std::fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()? == std::fs::canonicalize(top).ok()?;
    // Only commits that changed a source count. So a commit that changes a page alone builds nothing again.
    let sources: Vec<_> = SOURCES.lines().collect();
    let of_sources = |first: &[&'static str]| git(&[first, &["--"], &sources].concat());
    let commit = of_sources(&["log", "-1", "--format=%H"]).filter(|commit| is_ours && !commit.is_empty())?;
    let has_changes = !of_sources(&["status", "--porcelain"])?.is_empty();
    Some(short(&commit) + if has_changes { " with changes" } else { "" })
}

fn short(commit: &str) -> String {
    commit.chars().take(SHORT).collect()
}
