// SPDX-License-Identifier: GPL-2.0-or-later
//! The recipes of `docs/configure.md`: each file is loaded as printed there, and `jobfence explain` says about it what the page says.
//!
//! The page shows a node with cgroup v2 and systemd. The command sees such a node: the mount table is covered in a mount namespace of its
//! own, and nothing is mounted over this host's cgroup directories.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

// Only its `skip` is needed here.
#[allow(dead_code)]
mod common;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configure.md");
const PROMPT: &str = "$ jobfence explain ";
const BASE: &str = "jobfence.slice/jobfence.scope";
const CONTROLLERS: &str = "cpuset cpu io memory hugetlb pids\n";

/// Covers what differs on the page's node, then runs the command. All of it ends with the namespace.
const COVER: &str = r#"
cd "$0"
mount --bind passwd /etc/passwd
mount --bind group /etc/group
mount -t tmpfs none dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty dev/
mkdir dev/pts dev/shm
mknod dev/nvidiactl c 195 255
mknod dev/nvidia-uvm c 511 0
for gpu in 0 1 2 3; do mknod dev/nvidia$gpu c 195 $gpu; done
mount --bind dev /dev
mount --bind mountinfo /proc/$$/mountinfo
exec "$@"
"#;

struct Recipe {
    title: String,
    file: String,
    /// The arguments of `jobfence explain`.
    asked: String,
    /// What the page quotes of its output.
    said: Vec<String>,
}

/// Every section whose text has a file.
fn recipes() -> Vec<Recipe> {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut found = Vec::new();
    for part in page.split("\n## ").skip(1) {
        let title = part.lines().next().unwrap().to_owned();
        let blocks: Vec<&str> = part.split("\n```").skip(1).step_by(2).collect();
        let Some(file) = blocks.iter().find_map(|block| block.strip_prefix("conf\n")) else {
            assert!(blocks.is_empty(), "{title}: a block, but no file");
            continue;
        };
        let shown = blocks.iter().find_map(|block| block.strip_prefix("console\n")?.strip_prefix(PROMPT));
        let (asked, said) =
            shown.and_then(|shown| shown.split_once('\n')).unwrap_or_else(|| panic!("{title}: no explain"));
        assert_eq!(blocks.len(), 2, "{title}: one file, and what is said of it");
        let said = said.lines().map(str::to_owned).collect();
        found.push(Recipe { title, file: format!("{file}\n"), asked: asked.to_owned(), said });
    }
    found
}

/// The numbers of a disk of this host: any will do.
fn disk() -> String {
    let mut all: Vec<String> = fs::read_dir("/sys/block")
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path().join("dev")).unwrap().trim().to_owned())
        .collect();
    all.sort();
    all.into_iter().next().expect("a disk in /sys/block")
}

/// Makes the page's node below a directory.
fn make_node(dir: &Path, disk: &str) {
    let top = dir.join("cgroup");
    fs::create_dir_all(top.join(BASE)).unwrap();
    fs::create_dir(dir.join("dev")).unwrap();
    for place in ["", "jobfence.slice", BASE] {
        for file in ["cgroup.controllers", "cgroup.subtree_control"] {
            fs::write(top.join(place).join(file), CONTROLLERS).unwrap();
        }
    }
    let mut mounts = format!("30 20 0:26 / {} rw - cgroup2 cgroup2 rw,memory_recursiveprot\n", top.display());
    writeln!(mounts, "20 1 {disk} / / rw - ext4 /dev/sda rw").unwrap();
    writeln!(mounts, "31 20 {disk} / /scratch rw - ext4 /dev/sdb rw").unwrap();
    fs::write(dir.join("mountinfo"), mounts).unwrap();
    fs::write(dir.join("passwd"), "root:x:0:0::/:/bin/sh\nalice:x:1001:1001::/:/bin/sh\n").unwrap();
    fs::write(dir.join("group"), "root:x:0:\nalice:x:1001:\nstudents:x:2001:alice\n").unwrap();
}

fn explain(dir: &Path, asked: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", COVER]).arg(dir).arg(env!("CARGO_BIN_EXE_jobfence")).arg("explain");
    command.arg("--config").arg(dir.join("jobfence.conf"));
    command.arg("-o").arg(format!("CgroupMountpoint={}/cgroup", dir.display()));
    command.arg("-o").arg(format!("CgroupBase={BASE}"));
    command.args(asked.split_whitespace()).output().unwrap()
}

/// The first of these lines that is not in the output, in this order. One that ends with `...` is the beginning of a line.
fn first_missing<'a>(said: &'a [String], answer: &str) -> Option<&'a String> {
    let mut lines = answer.lines();
    said.iter().filter(|line| *line != "...").find(|line| {
        !lines.any(|found| match line.strip_suffix(" ...") {
            Some(beginning) => found.starts_with(beginning),
            None => found == line.as_str(),
        })
    })
}

#[test]
fn there_are_a_dozen_recipes() {
    let titles: Vec<String> = recipes().into_iter().map(|recipe| recipe.title).collect();
    assert!(titles.len() >= 12, "{titles:?}");
}

#[test]
fn each_file_is_understood_without_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobfence.conf");
    for Recipe { title, file: text, .. } in recipes() {
        fs::write(&file, text).unwrap();
        // It does not matter here whether jobs can be fenced on this host.
        let mut check = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        let done = check.args(["explain", "--cpus", "1", "--config"]).arg(&file).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(err.is_empty() && !done.stdout.is_empty(), "{title}: {err}");
    }
}

#[test]
fn each_file_does_what_the_page_says() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("needs root, for a mount namespace");
    }
    let disk = disk();
    let mut wrong = Vec::new();
    for Recipe { title, file, asked, said } in recipes() {
        let dir = tempfile::tempdir().unwrap();
        make_node(dir.path(), &disk);
        fs::write(dir.path().join("jobfence.conf"), file).unwrap();
        let done = explain(dir.path(), &asked);
        if String::from_utf8_lossy(&done.stderr).contains("unshare failed") {
            return common::skip("no mount namespace can be made here");
        }
        let answer = String::from_utf8_lossy(&done.stdout)
            .replace(&format!("{}/cgroup", dir.path().display()), "/sys/fs/cgroup")
            .replace(&dir.path().display().to_string(), "/etc/jobfence")
            .replace(&format!(" {disk} "), " 8:16 ");
        if !done.status.success() || !done.stderr.is_empty() {
            wrong.push(format!("{title}: {answer}{}", String::from_utf8_lossy(&done.stderr)));
        } else if let Some(line) = first_missing(&said, &answer) {
            wrong.push(format!("{title}: not said: {line}\n{answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
