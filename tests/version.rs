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
    let said = |option| run(Path::new("/"), env!("CARGO_BIN_EXE_jobfence"), &[option]);
    let short = said("-V");
    let number = concat!("jobfence ", env!("CARGO_PKG_VERSION"));
    assert!(short == number || short.starts_with(&format!("{number} (")) && short.ends_with(')'), "{short}");
    assert_eq!(short.lines().count(), 1);
    assert_eq!(said("--version").lines().next(), Some(short.as_str()));
}

/// What `--version` says of the interfaces is what the page about releases promises for, and CHANGELOG.md says it of the newest release.
#[test]
fn the_changelog_has_the_numbers_of_the_interfaces() {
    let said = run(Path::new("/"), env!("CARGO_BIN_EXE_jobfence"), &["--version"]);
    let (built_for, interfaces): (Vec<&str>, Vec<&str>) =
        said.lines().skip(1).partition(|line| line.starts_with("built for: "));
    assert!(built_for[0].contains("-linux-") && built_for[0].contains("glibc "), "{built_for:?}");
    let names: Vec<_> = interfaces.iter().filter_map(|line| line.split_once(": ")).map(|(name, _)| name).collect();
    assert_eq!(names, ["Slurm", "configuration", "records", "C ABI", "JSON"]);
    let changelog = include_str!("../CHANGELOG.md");
    let newest = changelog.split("\n## [").nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for line in interfaces {
        assert!(newest.contains(&format!("- {line}")), "the newest section of CHANGELOG.md does not have: {line}");
    }
}

/// Each name in JSON that an object of ours can have as its schema, and each first line of a record.
#[test]
fn each_number_is_said() {
    let said = run(Path::new("/"), env!("CARGO_BIN_EXE_jobfence"), &["--version"]);
    let mut found = 0;
    let mut directories = vec![Path::new("src").to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                for line in text.lines().filter(|line| line.contains("const ") && line.contains("\"jobfence-")) {
                    let value = line.split('"').nth(1).unwrap().trim_end();
                    if value.ends_with(|c: char| c.is_ascii_digit()) {
                        assert!(said.contains(value), "--version does not say {value} of {}", path.display());
                        found += 1;
                    }
                }
            }
        }
    }
    assert!(found >= 8, "{found}");
    let header = include_str!("../include/jobfence.h");
    let abi = header.lines().find_map(|line| line.strip_prefix("#define JOBFENCE_ABI_VERSION ")).unwrap();
    assert!(said.contains(&format!("C ABI: {abi}\n")), "{said}");
}
