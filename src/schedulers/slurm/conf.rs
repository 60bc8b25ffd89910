// SPDX-License-Identifier: GPL-2.0-or-later
//! Slurm's configuration, as far as it must be known beforehand. What a job was granted never comes from here.
//!
//! slurm.conf, gres.conf and cgroup.conf are read as Slurm reads them: `s_p_parse_file` in src/common/parse_config.c, the same from 22.05
//! to 26.05 except for the directory in which a relative name of `Include` begins. Text that this parser refuses is skipped, and so are
//! files that cannot be read: either slurmd understood them, or it is not running.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hostlist::HostList;

/// Whether a relative name of `Include` begins in the directory of the including file, as before Slurm 23.02; since then it begins in the
/// directory of slurm.conf. Set where the release is known; otherwise the later rule is tried first.
pub static INCLUDES_ARE_BESIDE: AtomicBool = AtomicBool::new(false);

/// Where slurm.conf may be if `SLURM_CONF` is not set: Debian's and other packages, upstream's default, and the place of the file that
/// slurmd fetches in configless mode.
const SLURM_CONF: [&str; 3] = ["/etc/slurm/slurm.conf", "/usr/local/etc/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// This host's slurm.conf: the file that `SLURM_CONF` names (slurmd sets it for its step daemons), or the one in Slurm's directory by
/// `ours`, or the one at a usual place. `None`: there is none.
pub fn find(ours: Option<&Path>) -> Option<PathBuf> {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let sibling = ours.map(|ours| directory(Some(ours)).join("slurm.conf"));
    let known = SLURM_CONF.iter().map(PathBuf::from);
    named.into_iter().chain(sibling).chain(known).find(|file| file.is_file())
}

/// Slurm's directory, by the place of jobfence.conf: the directory `slurm` beside a directory `jobfence`, or else that of jobfence.conf
/// itself. `None`: jobfence.conf is at its usual place.
pub fn directory(ours: Option<&Path>) -> PathBuf {
    let directory = ours.unwrap_or(Path::new(SLURM_CONF[0])).parent().unwrap_or(Path::new("/"));
    let slurms = directory.with_file_name("slurm");
    if directory.ends_with("jobfence") && slurms.is_dir() { slurms } else { directory.to_owned() }
}

/// The files that are read because one file includes others. A file is never read within itself, and the total is bounded: files that
/// include each other would otherwise never end.
pub struct Files {
    /// The chain of includes, the first file first.
    open: Vec<PathBuf>,
    /// Bytes that may still be read.
    left: u64,
    /// Files, or patterns of file names, that may still be included.
    includes: u32,
}

impl Files {
    /// No real configuration nests deeper.
    const DEEPEST: usize = 10;
    /// Larger than any real configuration: 100000 lines of nodes.
    const MOST: u64 = 16 << 20;
    /// Bounded because a pattern makes the reader list a directory.
    const MOST_INCLUDES: u32 = 1000;

    /// Nothing has been read.
    pub fn new() -> Self {
        Self { open: Vec::new(), left: Self::MOST, includes: Self::MOST_INCLUDES }
    }

    /// The file that a name in an `Include` line stands for. No release supports patterns here.
    fn included(&mut self, name: &str) -> Option<PathBuf> {
        let (first, by) = (self.open.first()?, self.open.last()?);
        let mut candidates = [first.with_file_name(name), by.with_file_name(name)];
        if INCLUDES_ARE_BESIDE.load(Ordering::Relaxed) {
            candidates.reverse();
        }
        // Slurm has found the file, so the candidate that exists is the right one.
        let may = self.may_include() && !name.contains('*');
        candidates.into_iter().find(|file| may && file.is_file())
    }

    /// Whether one more file may be included. Asked before each.
    pub fn may_include(&mut self) -> bool {
        let left = self.includes.checked_sub(1);
        self.includes = left.unwrap_or(0);
        left.is_some()
    }

    /// Passes a file's text to `look`. `None`: the file cannot be read, or must not be read again.
    pub fn read<T>(&mut self, file: &Path, look: impl FnOnce(&mut Self, &str) -> T) -> Option<T> {
        // Only a regular file: anything else may have no end, or block until a writer opens it.
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

/// The assignments of a Slurm file, line by line, with those of the files that it includes. No line is empty.
#[derive(Debug)]
pub struct Lines(Vec<Vec<SlurmAssignment>>);

/// One `Key=Value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmAssignment {
    /// As written.
    pub key: String,
    /// Without quotes.
    pub value: String,
    /// The file that contains it.
    pub file: PathBuf,
    /// The line, from 1; the first one of a continued line.
    pub line: usize,
}

impl Lines {
    /// Reads a file. A file that cannot be read has no lines.
    pub fn read(file: &Path) -> Self {
        let mut lines = Self(Vec::new());
        let mut files = Files::new();
        files.read(file, |files, text| lines.add(files, file, text));
        lines
    }

    fn add(&mut self, files: &mut Files, file: &Path, text: &str) {
        for (number, line) in whole_lines(text) {
            if let Some(name) = include(&line) {
                let Some(name) = self.with_cluster(name) else { continue };
                let Some(included) = files.included(&name) else { continue };
                files.read(&included, |files, text| self.add(files, &included, text));
                continue;
            }
            let mut assignments = Vec::new();
            let mut rest = line.as_str();
            while let Some((key, value, more)) = assignment(rest) {
                let (key, value) = (key.to_owned(), value.to_owned());
                assignments.push(SlurmAssignment { key, value, file: file.to_owned(), line: number });
                rest = more;
            }
            if !assignments.is_empty() {
                self.0.push(assignments);
            }
        }
    }

    /// A name with `%c` replaced by the cluster's name, as read so far. No other escape is known.
    fn with_cluster(&self, name: &str) -> Option<String> {
        if !name.contains("%c") {
            return Some(name.to_owned());
        }
        Some(name.replace("%c", &self.last("ClusterName")?.value.to_ascii_lowercase()))
    }

    /// The assignments of each line, in order.
    pub fn by_line(&self) -> impl Iterator<Item = &[SlurmAssignment]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// The last line that begins with this key: the one that counts. The first key of a line decides what the line is about.
    pub fn last(&self, key: &str) -> Option<&SlurmAssignment> {
        self.0.iter().rev().filter_map(|line| line.first()).find(|found| found.is(key))
    }
}

/// As isspace(3): no other Unicode blank counts.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The lines as Slurm sees them, each with the number of its first line in the file (`_get_next_line`). A line's comment is removed first.
/// If the rest ends in an odd number of `\`, with or without blanks behind, the line continues on the next one. Finally each `\` is
/// replaced by the character behind it.
fn whole_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut pieces = text.split_inclusive('\n').enumerate();
    std::iter::from_fn(move || {
        let (number, mut piece) = pieces.next()?;
        let mut whole = String::new();
        loop {
            piece = without_comment(piece);
            let end = piece.trim_end_matches(is_blank);
            let before = end.trim_end_matches('\\');
            if (end.len() - before.len()) % 2 == 0 {
                whole.push_str(piece);
                break;
            }
            whole.push_str(&end[..end.len() - 1]);
            let Some((_, next)) = pieces.next() else { break };
            piece = next;
        }
        let mut characters = whole.chars();
        let plain =
            std::iter::from_fn(|| characters.next().and_then(|c| if c == '\\' { characters.next() } else { Some(c) }));
        Some((number + 1, plain.collect()))
    })
}

/// A line up to a `#` with an even number of `\` before it, or up to a NUL: Slurm sees nothing behind that.
fn without_comment(line: &str) -> &str {
    let mut is_escaped = false;
    let end = line.find(|c| {
        let ends = c == '\0' || c == '#' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    &line[..end.unwrap_or(line.len())]
}

/// The name in an `Include` line. Such a line has no leading blank.
fn include(line: &str) -> Option<&str> {
    const WORD: &str = "include";
    let (word, rest) = line.split_at_checked(WORD.len())?;
    let is_one = word.eq_ignore_ascii_case(WORD) && rest.starts_with(is_blank);
    is_one.then(|| rest.trim_start_matches(is_blank).split(is_blank).next().unwrap_or_default())
}

/// The `Key=Value` or `Key = "a value"` at the beginning of a text, and the rest (`keyvalue_pattern`).
fn assignment(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.trim_start_matches(is_blank);
    let (key, rest) = text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c))?);
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['-', '+', '*', '/']).unwrap_or(rest);
    let rest = rest.strip_prefix('=')?.trim_start_matches(is_blank);
    let quoted = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
    if let Some((value, rest)) = quoted.filter(|(_, rest)| rest.is_empty() || rest.starts_with(is_blank)) {
        return (!key.is_empty()).then_some((key, value, rest));
    }
    let (value, rest) = rest.split_at(rest.find(is_blank).unwrap_or(rest.len()));
    (!key.is_empty() && !value.is_empty()).then_some((key, value, rest))
}

/// The last value of a key on a line.
pub fn value<'a>(line: &'a [SlurmAssignment], key: &str) -> Option<&'a str> {
    line.iter().rev().find(|assignment| assignment.is(key)).map(|found| found.value.as_str())
}

impl SlurmAssignment {
    /// Whether this is the key, in any case.
    pub fn is(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }
}

/// This node's name in slurm.conf, found as slurmd finds it: `SLURMD_NODENAME`, or by the host's short name, its full name, each of the
/// `aliases` of the full name, and last `localhost`.
pub fn this_node(lines: &Lines, aliases: impl FnOnce(&str) -> Vec<String>) -> Option<String> {
    std::env::var("SLURMD_NODENAME").ok().or_else(|| {
        let full = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let short = full.split('.').next().unwrap_or_default();
        let of = |host: &str| node_of_host(lines, host);
        let by_alias = || aliases(&full).iter().find_map(|alias| of(alias));
        of(short).or_else(|| of(&full)).or_else(by_alias).or_else(|| of("localhost"))
    })
}

/// The node whose `NodeHostname`, or else whose own name, is this host (`slurm_conf_get_nodename`). `None`: no node, or several, each with
/// a slurmd that was told its name (`-N`).
fn node_of_host(lines: &Lines, host: &str) -> Option<String> {
    /// More nodes than any real line has.
    const MOST: usize = 100_000;
    let mut found = None;
    for line in lines.by_line() {
        let Some(names) = names_of_nodes(line) else { continue };
        let hosts = value(line, "NodeHostname").unwrap_or(names);
        let Some(hosts) = HostList::parse(hosts) else { continue };
        let Some(place) = hosts.position(host) else { continue };
        let nodes = HostList::parse(names)?;
        // If a line has fewer hosts than nodes, all remaining nodes are on the last host.
        let is_one = found.is_none() && (nodes.count() == hosts.count() || place + 1 < hosts.count());
        if !is_one {
            return None;
        }
        found = nodes.names(MOST)?.into_iter().nth(usize::try_from(place).ok()?);
    }
    found
}

/// The nodes that a line is about, or `DEFAULT`. `None`: it is about something else.
fn names_of_nodes(line: &[SlurmAssignment]) -> Option<&str> {
    line.first().filter(|first| first.is("NodeName")).map(|first| first.value.as_str())
}

/// What slurm.conf says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfNode<'a> {
    /// The value on the node's own line, or on the last `NodeName=DEFAULT` line before it that has one.
    pub value: Option<&'a str>,
    /// The node's line, as text for people.
    pub place: String,
}

/// The value of a key for a node. `None`: no line is about the node, as with a dynamic node.
pub fn of_node<'a>(lines: &'a Lines, node: &str, key: &str) -> Option<OfNode<'a>> {
    let (mut default, mut found) = (None, None);
    for line in lines.by_line() {
        let Some(names) = names_of_nodes(line) else { continue };
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

/// What slurmctld checks of a user's words before it accepts a job. An unchecked word is whatever the user wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Whether the account must be one of the user's.
    pub account: bool,
    /// Whether the account must be allowed to use the QOS.
    pub qos: bool,
}

impl Checked {
    /// From `AccountingStorageEnforce`, which has an effect only with slurmdbd (`_validate_accounting_storage_enforce` in
    /// src/common/read_config.c and `slurm_with_slurmdbd`, the same from 22.05 to 26.05).
    pub fn by(lines: &Lines) -> Self {
        let value = |key: &str| lines.last(key).map(|found| found.value.to_ascii_lowercase()).unwrap_or_default();
        let mut checked = Self::default();
        if value("AccountingStorageType") != "accounting_storage/slurmdbd" {
            return checked;
        }
        for word in value("AccountingStorageEnforce").split(',') {
            match word {
                "" | "nojobs" | "nosteps" => {}
                "1" | "associations" | "2" | "limits" | "safe" | "wckeys" => checked.account = true,
                "qos" | "all" => checked = Self { account: true, qos: true },
                // One unknown word makes Slurm ignore the whole setting.
                _ => return Self::default(),
            }
        }
        checked
    }
}

/// How many hardware threads each core of this node has according to Slurm, and the line that says so. `None`: no line is about the node.
///
/// A node line takes a missing key from the `NodeName=DEFAULT` line before it, or else from Slurm's default, which is one thread. So a node
/// with only `CPUs=` has cores of one thread, whatever the machine has.
pub fn threads_per_core(lines: &Lines, node: &str) -> Option<(usize, String)> {
    let found = of_node(lines, node, "ThreadsPerCore")?;
    Some((found.value.and_then(|text| text.parse().ok()).unwrap_or(1), found.place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_directory_is_beside_ours() {
        let temp = tempfile::tempdir().unwrap();
        let [own, slurms, other] =
            ["jobfence", "slurm", "other"].map(|name| temp.path().join(name).join("jobfence.conf"));
        // A directory of this name may have been all that there is.
        assert_eq!(directory(Some(&own)), own.parent().unwrap());
        std::fs::create_dir(slurms.parent().unwrap()).unwrap();
        for (ours, slurms) in [(&own, &slurms), (&slurms, &slurms), (&other, &other)] {
            assert_eq!(directory(Some(ours)), slurms.parent().unwrap());
        }
        assert_eq!(directory(None), Path::new("/etc/slurm"));
    }

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
    fn what_slurmctld_checks() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("slurm.conf");
        let of = |lines: &[&str]| {
            std::fs::write(&file, lines.join("\n")).unwrap();
            let Checked { account, qos } = Checked::by(&Lines::read(&file));
            (account, qos)
        };
        let database = "accountingstoragetype=Accounting_Storage/SlurmDBD";
        for (enforce, expected) in [
            ("associations", (true, false)),
            ("1", (true, false)),
            ("Limits,nosteps", (true, false)),
            ("safe", (true, false)),
            ("wckeys", (true, false)),
            ("associations,,QOS", (true, true)),
            ("all", (true, true)),
            ("nojobs", (false, false)),
            ("none", (false, false)),
            ("associations,nonsense", (false, false)),
        ] {
            let enforce = format!("AccountingStorageEnforce={enforce}");
            assert_eq!(of(&[database, &enforce]), expected, "{enforce}");
            // Without the database Slurm checks nothing, whatever the setting.
            assert_eq!(of(&[&enforce]), (false, false), "{enforce}");
            assert_eq!(of(&["AccountingStorageType=slurmdbd", &enforce]), (false, false), "{enforce}");
        }
        assert_eq!(of(&[database]), (false, false));
    }

    fn read(dir: &Path, text: &str) -> Vec<String> {
        let file = dir.join("slurm.conf");
        std::fs::write(&file, text).unwrap();
        let in_words = |one: &SlurmAssignment| format!("{}={}", one.key, one.value);
        Lines::read(&file).by_line().map(|line| line.iter().map(in_words).collect::<Vec<_>>().join("|")).collect()
    }

    /// Each case was compared with Slurm's own reader, as the case `slurms_files_are_read_as_slurm_reads_them` does with random files.
    #[test]
    fn a_line_is_what_slurm_takes_for_one() {
        let dir = tempfile::tempdir().unwrap();
        for (text, expected) in [
            // A comment is removed before the search for a continuation; blanks behind the backslash do not count.
            ("A=1 \\ \n  B=2\nC=3\n", &["A=1|B=2", "C=3"][..]),
            ("A=1 \\\t \r\n  B=2\r\nC=3\r\n", &["A=1|B=2", "C=3"]),
            ("# once: A=0 \\\nA=1\n", &["A=1"]),
            ("A=1 \\  # two\n  B=2\n", &["A=1|B=2"]),
            ("A=1 \\\n# B=2 \\\nC=3\n", &["A=1", "C=3"]),
            ("A=n[1-\\\n2]\n", &["A=n[1-2]"]),
            ("A=1 \\", &["A=1"]),
            ("A=1 \\\\\nB=2\n", &["A=1", "B=2"]),
            ("A=1\\\\\\\nB=2\n", &["A=1\\B=2"]),
            // What a backslash escapes.
            ("A=1\\# B=2\n", &["A=1#|B=2"]),
            ("A=1\\\\# B=2\n", &["A=1\\"]),
            ("A=\\x\\\\y\n", &["A=x\\y"]),
            ("A=\"disk \\# 3\" B=2\n", &["A=disk # 3|B=2"]),
            // Quotes and blanks, and what is neither.
            ("A = \"b  c\"\tB\t=2\n", &["A=b  c|B=2"]),
            ("A=\"\" B=\"x\n", &["A=|B=\"x"]),
            ("A=\"b\"c B=2\n", &["A=\"b\"c|B=2"]),
            ("A=\"b c\"d=2\n", &["A=\"b"]),
            ("A+=1 B.x_y-=2 C=*3\n", &["A=1|B.x_y=2|C=*3"]),
            ("A=1 B C=2\n", &["A=1"]),
            ("A=\nB=\u{a0}2\n", &["B=\u{a0}2"]),
            ("A=1\u{b}B=2\n", &["A=1|B=2"]),
            ("A=1\0 B=2\nC=3\n", &["A=1", "C=3"]),
            ("-A=1\n=2\nA-B=3\n", &[]),
        ] {
            assert_eq!(read(dir.path(), text), expected, "{text:?}");
        }
    }

    #[test]
    fn files_are_included_as_slurm_includes_them() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        put("one.conf", "A=one\n");
        put("a*.conf", "A=star\n");
        put("tau.conf", "A=tau\n");
        put("%h.conf", "A=%h\n");
        for (text, expected) in [
            ("Include one.conf # x\nINCLUDE\tone.conf\r\n", &["A=one", "A=one"][..]),
            ("Include one.conf", &["A=one"]),
            (" Include one.conf\nIncludes one.conf\nInclude\nInclude=one.conf\n", &["Include=one.conf"]),
            ("Include \"one.conf\"\nInclude a*.conf\nInclude nowhere\nB=2\n", &["B=2"]),
            ("Include %c.conf\nClusterName=Tau\nInclude %c.conf\n", &["ClusterName=Tau", "A=tau"]),
            ("Include %h.conf\n", &["A=%h"]),
        ] {
            assert_eq!(read(dir.path(), text), expected, "{text:?}");
        }
        // A relative name in an included file begins in the directory of slurm.conf; before 23.02, in the directory of the including file.
        put("sub/more.conf", "Include one.conf\nInclude alone.conf\n");
        put("sub/one.conf", "A=sub\n");
        put("sub/alone.conf", "B=alone\n");
        assert_eq!(read(dir.path(), "Include sub/more.conf\n"), ["A=one", "B=alone"]);
        INCLUDES_ARE_BESIDE.store(true, Ordering::Relaxed);
        let before = read(dir.path(), "Include sub/more.conf\n");
        INCLUDES_ARE_BESIDE.store(false, Ordering::Relaxed);
        assert_eq!(before, ["A=sub", "B=alone"]);
    }

    #[test]
    fn a_node_is_found_by_its_hosts_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        let of = |text: &str, host: &str| {
            std::fs::write(&file, text).unwrap();
            node_of_host(&Lines::read(&file), host)
        };
        for (text, expected) in [
            ("NodeName=DEFAULT CPUs=2\nNodeName=h CPUs=4\n", Some("h")),
            ("NodeName=dyn-1 NodeHostname=h\n", Some("dyn-1")),
            ("NodeName=n[01-12],x NodeHostName=g[1-11],h,k\n", Some("n12")),
            ("NodeName=h NodeHostname=other\n", None),
            ("NodeName=other\nPartitionName=p Nodes=h NodeName=h\n", None),
            // Several slurmd on one host are told their names.
            ("NodeName=n[1-2] NodeHostname=h\n", None),
            ("NodeName=n[1-3] NodeHostname=h,g\n", Some("n1")),
            ("NodeName=n[1-3] NodeHostname=g,h\n", None),
            ("NodeName=n1 NodeHostname=h\nNodeName=n2 NodeHostname=h\n", None),
        ] {
            assert_eq!(of(text, "h").as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn files_that_include_each_other_are_read_to_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let names = ["x", "y", "z", "fifo", "slurm"];
        let all = names.map(|name| format!("Include {name}.conf\n")).concat();
        for name in ["x.conf", "y.conf", "z.conf"] {
            std::fs::write(path.join(name), format!("{all}{all}C=3\n")).unwrap();
        }
        nix::unistd::mkfifo(&path.join("fifo.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let lines = read(path, &format!("A=1\n{all}{all}B=2\n"));
        let times = |line: &str| lines.iter().filter(|found| *found == line).count();
        assert_eq!((times("A=1"), times("B=2")), (1, 1));
        assert!(times("C=3") > 3);
    }
}
