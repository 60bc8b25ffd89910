// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence --version` says about the tree from which it was built.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[path = "common/skip.rs"]
mod skip;

#[path = "../src/version/build.rs"]
mod build;

fn run(dir: &Path, program: &str, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(words).current_dir(dir).stderr(Stdio::null());
    // The git configuration of the user who runs the tests must not count.
    for (name, value) in [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")] {
        command.env(name, value);
    }
    // In a git hook these variables refer to the repository in which the hook runs.
    for name in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        command.env_remove(name);
    }
    let said = command.output().unwrap();
    assert!(said.status.success(), "{program} {words:?}");
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

/// A clone, one with changes, the output of 'git archive', and a copy of the files in another tree.
#[test]
fn the_commit_is_known_with_git_and_without() {
    if Command::new("git").arg("--version").output().is_err() {
        return skip::skip("git is not here");
    }
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path();
    let clone = top.join("clone");
    fs::create_dir_all(clone.join("src/version")).unwrap();
    let git = |dir: &Path, words: &[&str]| run(dir, "git", words);
    let commit = |dir: &Path| {
        git(dir, &["add", "."]);
        git(dir, &["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]);
        git(dir, &["log", "-1", "--format=%H"])[..12].to_owned()
    };
    fs::write(clone.join(build::FILE), include_str!("../src/version/commit")).unwrap();
    fs::write(clone.join(".gitattributes"), include_str!("../.gitattributes")).unwrap();
    git(&clone, &["init", "-q"]);
    let first = commit(&clone);
    assert_eq!(build::in_words("1.2", &clone), format!("1.2 ({first})"));
    fs::write(clone.join("page"), "x").unwrap();
    let page = commit(&clone);
    assert_eq!(build::in_words("1.2", &clone), format!("1.2 ({first})"), "what is no source makes no other build");
    git(&clone, &["archive", "--prefix=tarball/", "--output=../x.tar", "HEAD"]);
    fs::write(clone.join("build.rs"), "x").unwrap();
    assert_eq!(build::in_words("1.2", &clone), format!("1.2 ({first} with changes)"));

    run(top, "tar", &["xf", "x.tar"]);
    assert_eq!(build::in_words("1.2", &top.join("tarball")), format!("1.2 ({page})"));
    // The commit of copied files is unknown, even inside a tree that has commits.
    git(top, &["init", "-q"]);
    fs::create_dir_all(top.join("other/src")).unwrap();
    run(top, "cp", &["-r", "clone/src/version", "other/src"]);
    commit(&top.join("other"));
    assert_eq!(build::in_words("1.2", &top.join("other")), "1.2");
}

#[test]
fn the_command_says_it() {
    let said = run(Path::new("/"), env!("CARGO_BIN_EXE_jobfence"), &["--version"]);
    let number = concat!("jobfence ", env!("CARGO_PKG_VERSION"));
    assert!(said == number || said.starts_with(&format!("{number} (")) && said.ends_with(')'), "{said}");
}
