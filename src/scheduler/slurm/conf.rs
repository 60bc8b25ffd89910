// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's configuration as far as it must be known beforehand; what a job was granted never comes from here.
//!
//! slurm.conf(5). Files that cannot be read are left out: slurmd has understood them, or is not there.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::hostlist::HostList;
use crate::sorted;

/// Where slurm.conf may be, if `SLURM_CONF` does not say: Debian's and others' packages, upstream's default, and what slurmd
/// has fetched in configless mode.
const SLURM_CONF: [&str; 3] = ["/etc/slurm/slurm.conf", "/usr/local/etc/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// slurm.conf of this host: `SLURM_CONF` names it (slurmd sets that for its step daemons), or it is beside `ours`, or where it
/// usually is; `None` where there is none.
pub fn find(ours: Option<&Path>) -> Option<PathBuf> {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let sibling = ours.map(|ours| ours.with_file_name("slurm.conf"));
    let known = SLURM_CONF.iter().map(PathBuf::from);
    named.into_iter().chain(sibling).chain(known).find(|file| file.is_file())
}

/// The files that a pattern with at most one `*`, in its last component, stands for, in their order.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, after)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let entries = pattern.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let matches = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // As for glob(3), `*` stands for no name that begins with a dot.
        let is_hidden = name.starts_with('.') && before.is_empty();
        name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after) && !is_hidden
    };
    let mut found: Vec<PathBuf> =
        entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(matches).collect();
    sorted::sort(&mut found);
    found
}

/// The files that are read for the sake of one, which includes others. A file is never read within itself, and what is read
/// altogether is bounded: files that include each other would never end.
pub struct Files {
    /// What includes what, the first file first.
    open: Vec<PathBuf>,
    /// So many bytes may still be read.
    left: u64,
    /// So many files, or patterns of their names, may still be included.
    includes: u32,
}

impl Files {
    /// No deeper: nobody's configuration is.
    const DEEPEST: usize = 10;
    /// Larger than any: 100000 lines of nodes.
    const MOST: u64 = 16 << 20;
    /// For a pattern a directory is read.
    const MOST_INCLUDES: u32 = 1000;

    /// Nothing has been read.
    pub fn new() -> Self {
        Self { open: Vec::new(), left: Self::MOST, includes: Self::MOST_INCLUDES }
    }

    /// The files for which this stands in a line of `by` that includes.
    fn included(&mut self, by: &Path, pattern: &str) -> Vec<PathBuf> {
        if !self.may_include() {
            return Vec::new();
        }
        matching(&by.parent().unwrap_or(Path::new("/")).join(pattern))
    }

    /// Whether one more may be included; asked before each.
    pub fn may_include(&mut self) -> bool {
        let left = self.includes.checked_sub(1);
        self.includes = left.unwrap_or(0);
        left.is_some()
    }

    /// Has a file looked at; `None` where it cannot be read, or must not be again.
    pub fn read<T>(&mut self, file: &Path, look: impl FnOnce(&mut Self, &str) -> T) -> Option<T> {
        // What is no regular file may have no end, or wait for somebody who writes.
        let is_file = std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file());
        if !is_file || self.open.len() > Self::DEEPEST || self.open.iter().any(|open| open == file) {
            return None;
        }
        let mut text = Vec::new();
        std::fs::File::open(file).ok()?.take(self.left).read_to_end(&mut text).ok()?;
        self.left = self.left.saturating_sub(text.len() as u64);
        self.open.push(file.to_owned());
        let result = look(self, &String::from_utf8_lossy(&text));
        self.open.pop();
        Some(result)
    }
}

impl Default for Files {
    fn default() -> Self {
        Self::new()
    }
}

/// The assignments in a file of Slurm's, with those of the files that it includes.
#[derive(Debug)]
pub struct Lines(Vec<SlurmAssignment>);

/// One `Key=Value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmAssignment {
    /// As it is written.
    pub key: String,
    /// Without quotes.
    pub value: String,
    /// Where it stands.
    pub file: PathBuf,
    /// The line, from 1; the first one, where it goes on.
    pub line: usize,
}

impl Lines {
    /// Reads a file; one that cannot be read has none.
    pub fn read(file: &Path) -> Self {
        let mut lines = Self(Vec::new());
        let mut files = Files::new();
        files.read(file, |files, text| lines.add(files, file, text));
        lines
    }

    /// `Key=Value`, one or more on a line, which goes on after a `\` at its end; `#` comments; `Include FILE`: slurm.conf(5). What
    /// cannot be read is left out.
    fn add(&mut self, files: &mut Files, file: &Path, text: &str) {
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let mut line = line.to_owned();
            while line.ends_with('\\') {
                line.pop();
                line.push_str(lines.next().map_or("", |(_, more)| more));
            }
            let line = line.split('#').next().unwrap_or_default().trim();
            let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            if first.eq_ignore_ascii_case("include") {
                for included in files.included(file, rest.trim()) {
                    files.read(&included, |files, text| self.add(files, &included, text));
                }
                continue;
            }
            let assignments = assignments(line).into_iter();
            let assignment = |(key, value)| SlurmAssignment { key, value, file: file.to_owned(), line: number + 1 };
            self.0.extend(assignments.map(assignment));
        }
    }

    /// The assignments of each line, as they stand on it.
    pub fn by_line(&self) -> impl Iterator<Item = &[SlurmAssignment]> {
        self.0.chunk_by(|one, next| (&one.file, one.line) == (&next.file, next.line))
    }

    /// The last one of this key, which counts, as in Slurm.
    pub fn last(&self, key: &str) -> Option<&SlurmAssignment> {
        self.0.iter().rev().find(|found| found.is(key))
    }
}

/// The last value of a key on a line.
pub fn value<'a>(line: &'a [SlurmAssignment], key: &str) -> Option<&'a str> {
    line.iter().rev().find(|assignment| assignment.is(key)).map(|found| found.value.as_str())
}

impl SlurmAssignment {
    /// Whether it is of this key, in any case.
    pub fn is(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }
}

/// `Key=Value Key = "a value"`; what is not such is left out.
fn assignments(line: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((key, value)) = rest.split_once('=') {
        let value = value.trim_start();
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => value.split_once(char::is_whitespace).unwrap_or((value, "")),
        };
        let key = key.split_whitespace().next_back().unwrap_or_default();
        found.push((key.to_owned(), value.to_owned()));
        rest = after;
    }
    found
}

/// What slurm.conf says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfNode<'a> {
    /// The value: of the node's own line, or of the last line `NodeName=DEFAULT` before it that has one.
    pub value: Option<&'a str>,
    /// The node's line, in words.
    pub place: String,
}

/// The value of a key for a node; `None`: no line is the node's, as where it is a dynamic one.
pub fn of_node<'a>(lines: &'a Lines, node: &str, key: &str) -> Option<OfNode<'a>> {
    let (mut default, mut found) = (None, None);
    for line in lines.by_line() {
        let Some(names) = value(line, "NodeName") else { continue };
        let own = value(line, key);
        if names.eq_ignore_ascii_case("DEFAULT") {
            default = own.or(default);
        } else if HostList::parse(names).is_some_and(|names| names.contains(node)) {
            let first = line.first()?;
            let place = format!("NodeName={names} ({}:{})", first.file.display(), first.line);
            found = Some(OfNode { value: own.or(default), place });
        }
    }
    found
}

/// How many hardware threads each core of this node has in Slurm's eyes, and the line that says so. `None`: no line is the node's.
///
/// A node line has every key, or what a line `NodeName=DEFAULT` before it says, or Slurm's own default, which is one thread; so
/// a node with `CPUs=` alone has cores of one thread, whatever the machine has.
pub fn threads_per_core(lines: &Lines, node: &str) -> Option<(usize, String)> {
    let found = of_node(lines, node, "ThreadsPerCore")?;
    Some((found.value.and_then(|text| text.parse().ok()).unwrap_or(1), found.place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_those_of_the_nodes_own_line_or_of_the_defaults_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        let more = "NodeName=DEFAULT Sockets=2 ThreadsPerCore=2\nNodeName=n[01-04] CoresPerSocket=8\n\
                    nodename=smt4 threadspercore = 4 \\\n CPUs=16\nPartitionName=x Nodes=n9 ThreadsPerCore=8\n";
        std::fs::write(dir.path().join("nodes.conf"), more).unwrap();
        std::fs::write(&file, "NodeName=plain CPUs=4\nInclude nodes.conf\nNodeName=late CPUs=4 # ThreadsPerCore=1\n")
            .unwrap();
        let lines = Lines::read(&file);
        let threads = |node| threads_per_core(&lines, node).map(|(threads, _)| threads);
        assert_eq!(
            ["plain", "n03", "smt4", "late", "n3", "n9", "DEFAULT"].map(threads),
            [Some(1), Some(2), Some(4), Some(2), None, None, None]
        );
        let (_, place) = threads_per_core(&lines, "n01").unwrap();
        assert!(place.starts_with("NodeName=n[01-04] (") && place.ends_with("nodes.conf:2)"), "{place}");
    }

    #[test]
    fn files_that_include_each_other_are_read_to_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        std::fs::write(&file, "A=1\nInclude slurm.conf\nInclude *.conf\nInclude *.conf\nB=2\n").unwrap();
        for name in ["x.conf", "y.conf", "z.conf"] {
            std::fs::write(dir.path().join(name), "Include *.conf\nInclude *.conf\nC=3\n").unwrap();
        }
        nix::unistd::mkfifo(&dir.path().join("fifo.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let lines = Lines::read(&file);
        assert_eq!(["A", "B", "C"].map(|key| lines.last(key).unwrap().value.as_str()), ["1", "2", "3"]);
        let times = |key| lines.0.iter().filter(|found| found.is(key)).count();
        assert_eq!((times("A"), times("B")), (1, 1));
    }
}
