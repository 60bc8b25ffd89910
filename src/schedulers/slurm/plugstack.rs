// SPDX-License-Identifier: GPL-2.0-or-later
//! The line of plugstack.conf that makes Slurm load the plugin, found as Slurm finds it.
//!
//! The syntax is `required|optional FILE ARGUMENT…` and `include PATTERN`, separated by spaces and tabs only. `#` begins a comment
//! anywhere. A line with another first word is ignored. A pattern is glob(3)'s; a relative one begins in the directory of the including
//! file. This holds from 22.05 to 26.11: `_plugin_stack_parse_line`, `_spank_stack_load` and `_spank_conf_include` in
//! src/common/plugstack.c, since 23.11 in src/common/spank.c.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::Error;
use crate::schedulers::slurm::conf::Files;

/// Bytes that Slurm reads at once (fgets(3) into `PATH_MAX`): it takes the rest of a longer line for the next line.
const LONGEST: usize = 4095;

/// A line that loads the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlugstackLine {
    /// The file that contains it.
    pub file: PathBuf,
    /// The line number, from 1.
    pub number: usize,
    /// Whether Slurm gives up if it cannot load the plugin; otherwise it goes on without it.
    pub required: bool,
    /// The plugin's file as written. Without a leading `/` Slurm searches for it.
    pub plugin: String,
    /// The arguments, as Slurm splits them.
    pub arguments: Vec<String>,
    /// Whether the line is longer than what Slurm reads at once.
    pub is_cut: bool,
    /// Later lines that load the plugin again, as FILE:NUMBER. Slurm ignores them.
    pub again: Vec<String>,
}

impl PlugstackLine {
    /// FILE:NUMBER.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file.display(), self.number)
    }
}

impl fmt::Display for PlugstackLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.required { "required" } else { "optional" };
        write!(f, "{kind} {} ({})", self.plugin.escape_debug(), self.place())
    }
}

/// What plugstack.conf says about the plugin.
#[derive(Debug, PartialEq, Eq)]
pub enum PlugstackLookup {
    /// The first line that loads it: the one that counts.
    Line(PlugstackLine),
    /// No line loads it. The lines that name it but that Slurm ignores, as FILE:NUMBER.
    Nothing(Vec<String>),
    /// This process may not read one of the files.
    Unseen(Error),
}

/// Searches a plugstack.conf and the files that it includes.
pub fn find(file: &Path) -> PlugstackLookup {
    let search = Search::from_file(file, is_ours);
    match (search.line, search.unseen) {
        (Some(line), _) => PlugstackLookup::Line(line),
        (None, Some(error)) => PlugstackLookup::Unseen(error),
        (None, None) => PlugstackLookup::Nothing(search.ignored),
    }
}

/// Whether a line of it, or of the files that it includes, loads such a plugin.
pub fn loads(file: &Path, is_wanted: fn(&str) -> bool) -> bool {
    Search::from_file(file, is_wanted).line.is_some()
}

/// Whether Slurm would read this file, which need not exist yet, because a plugstack.conf includes it.
pub fn would_read(plugstack: &Path, file: &Path) -> bool {
    includes(&mut Files::new(), plugstack, file)
}

fn includes(files: &mut Files, by: &Path, file: &Path) -> bool {
    let matches = |pattern: &Path| {
        let [pattern, file] = [pattern, file].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default());
        // SAFETY: both texts end with a NUL.
        unsafe { libc::fnmatch(pattern.as_ptr(), file.as_ptr(), libc::FNM_PATHNAME | libc::FNM_PERIOD) == 0 }
    };
    let found = files.read(by, |files, text| {
        text.lines().any(|line| {
            let line = line.split(['#', '\0']).next().unwrap_or_default();
            let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
            let (Some("include"), Some(pattern)) = (words.next(), words.next()) else { return false };
            let pattern = by.parent().unwrap_or(Path::new("/")).join(pattern);
            matches(&pattern) || files.may_include() && glob(&pattern).iter().any(|by| includes(files, by, file))
        })
    });
    found.unwrap_or(false)
}

struct Search {
    /// Whether a file is the plugin's.
    is_wanted: fn(&str) -> bool,
    line: Option<PlugstackLine>,
    ignored: Vec<String>,
    unseen: Option<Error>,
}

impl Search {
    fn from_file(file: &Path, is_wanted: fn(&str) -> bool) -> Self {
        let mut search = Self { is_wanted, line: None, ignored: Vec::new(), unseen: None };
        search.read(&mut Files::new(), file);
        search
    }

    fn read(&mut self, files: &mut Files, file: &Path) {
        if let Err(error) = std::fs::File::open(file)
            && error.kind() == ErrorKind::PermissionDenied
        {
            self.unseen.get_or_insert(Error::os("read", file, Errno::EACCES));
            return;
        }
        files.read(file, |files, text| {
            for (number, line) in text.split_inclusive('\n').enumerate() {
                let bytes = line.as_bytes();
                for piece in bytes.chunks(LONGEST) {
                    let piece = String::from_utf8_lossy(piece);
                    self.look(files, file, number + 1, &piece, bytes.len() > LONGEST);
                }
            }
        });
    }

    fn look(&mut self, files: &mut Files, file: &Path, number: usize, line: &str, is_cut: bool) {
        // As strtok_r(3): a carriage return belongs to the word before it.
        let line = line.split(['#', '\0']).next().unwrap_or_default();
        let words: Vec<&str> = line.split([' ', '\t', '\n']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            ["include", pattern, ..] => {
                let pattern = file.parent().unwrap_or(Path::new("/")).join(pattern);
                let included = if files.may_include() { glob(&pattern) } else { Vec::new() };
                for included in included {
                    self.read(files, &included);
                }
            }
            [kind @ ("required" | "optional"), plugin, ref arguments @ ..] if (self.is_wanted)(plugin) => {
                let line = PlugstackLine {
                    file: file.to_owned(),
                    number,
                    required: kind == "required",
                    plugin: plugin.to_owned(),
                    arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
                    is_cut,
                    again: Vec::new(),
                };
                match &mut self.line {
                    Some(first) => first.again.push(line.place()),
                    None => self.line = Some(line),
                }
            }
            ["required" | "optional", ..] => {}
            _ if words.iter().any(|word| (self.is_wanted)(word)) => {
                self.ignored.push(format!("{}:{number}", file.display()))
            }
            _ => {}
        }
    }
}

/// Whether a file's name is the plugin's: `libjobfence.so`, `/opt/jobfence-1.2/libjobfence.so.1`.
fn is_ours(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    name.contains("jobfence") && name.contains(".so")
}

/// The files that a pattern matches, in Slurm's order.
fn glob(pattern: &Path) -> Vec<PathBuf> {
    let Ok(pattern) = CString::new(pattern.as_os_str().as_bytes()) else { return Vec::new() };
    // SAFETY: glob_t is plain data; zeroed it is what glob(3) wants without GLOB_DOOFFS. The pattern is NUL-terminated.
    let (status, mut found) = unsafe {
        let mut found: libc::glob_t = std::mem::zeroed();
        (libc::glob(pattern.as_ptr(), 0, None, &raw mut found), found)
    };
    let mut paths = Vec::new();
    if status == 0 && !found.gl_pathv.is_null() {
        for index in 0..found.gl_pathc {
            // SAFETY: glob(3) has filled in so many pointers to NUL-terminated strings, which live until globfree.
            let path = unsafe { CStr::from_ptr(*found.gl_pathv.add(index)) };
            paths.push(PathBuf::from(OsStr::from_bytes(path.to_bytes())));
        }
    }
    // SAFETY: what glob(3) has filled in, whatever it answered.
    unsafe { libc::globfree(&raw mut found) };
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(text: &str) -> PlugstackLookup {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plugstack.conf");
        std::fs::write(&file, text).unwrap();
        find(&file)
    }

    fn arguments(text: &str) -> Option<(String, Vec<String>)> {
        match line_of(text) {
            PlugstackLookup::Line(line) => Some((line.plugin, line.arguments)),
            _ => None,
        }
    }

    #[test]
    fn the_first_of_several_lines_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("conf.d")).unwrap();
        std::fs::write(path("conf.d/x"), "optional other.so\noptional /x/libjobfence.so Mode=off\n").unwrap();
        let text =
            "include conf.d/*\n# required libjobfence.so\nrequired libjobfence.so\nrequired libjobfence.so a=b\n";
        std::fs::write(path("plugstack.conf"), text).unwrap();
        let PlugstackLookup::Line(line) = find(&path("plugstack.conf")) else { panic!("no line") };
        assert_eq!((line.file, line.number, line.arguments), (path("conf.d/x"), 2, vec!["Mode=off".to_owned()]));
        assert_eq!(line.again, [3, 4].map(|number| format!("{}:{number}", path("plugstack.conf").display())));
        let PlugstackLookup::Line(line) = find(&path("conf.d/x")) else { panic!("no line") };
        assert_eq!(line.again, [""; 0]);
    }

    #[test]
    fn finds_the_line_that_loads_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let find = || match find(&path("plugstack.conf")) {
            PlugstackLookup::Line(line) => line.to_string().replace(&format!("{}/", dir.path().display()), ""),
            other => format!("{other:?}"),
        };
        assert_eq!(find(), "Nothing([])");
        std::fs::create_dir_all(path("conf.d/more")).unwrap();
        std::fs::write(path("conf.d/more/50-jobfence.conf"), "# x\nrequired\t/x/libjobfence.so Mode=observe\n")
            .unwrap();
        std::fs::write(path("plugstack.conf"), "optional other.so\n#include conf.d/more/*\n").unwrap();
        assert_eq!(find(), "Nothing([])");
        // More of glob(3) than a star at the end.
        for pattern in ["conf.d/more/*.conf", "conf.*/m[a-o]re/50-jobfence.conf", "*/*/??-*.conf"] {
            std::fs::write(path("plugstack.conf"), format!("include {pattern}\n")).unwrap();
            assert_eq!(find(), "required /x/libjobfence.so (conf.d/more/50-jobfence.conf:2)", "{pattern}");
        }
        // Files that include each other come to an end.
        std::fs::write(path("plugstack.conf"), "include *.conf\ninclude conf.d/more/*.conf\n").unwrap();
        assert_eq!(find(), "required /x/libjobfence.so (conf.d/more/50-jobfence.conf:2)");
    }

    #[test]
    fn a_file_that_does_not_exist_yet_would_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let would = |text: &str| {
            std::fs::write(path("plugstack.conf"), text).unwrap();
            would_read(&path("plugstack.conf"), &path("plugstack.conf.d/jobfence.conf"))
        };
        let whole = format!("include {}/*.conf\n", path("plugstack.conf.d").display());
        std::fs::write(path("more"), &whole).unwrap();
        for text in [&whole, "include plugstack.conf.d/*\n", " include\tplugstack.conf.d/*.conf # x", "include mo*\n"] {
            assert!(would(text), "{text}");
        }
        for text in
            ["", "# include plugstack.conf.d/*\n", "include *\n", "include plugstack.conf.d/x*\n", "include none\n"]
        {
            std::fs::write(path("more"), "").unwrap();
            assert!(!would(text), "{text}");
        }
        assert!(!would_read(&path("none"), &path("plugstack.conf.d/jobfence.conf")));
    }

    #[test]
    fn a_line_is_split_as_slurm_splits_it() {
        let split = |text| arguments(text).map(|(plugin, words)| (plugin, words.join("|")));
        let found = |plugin: &str, words: &str| Some((plugin.to_owned(), words.to_owned()));
        assert_eq!(split("optional libjobfence.so a=\"b c\"\t d#e f\n"), found("libjobfence.so", "a=\"b|c\"|d"));
        // Slurm does not take a carriage return for a blank, so the file that it looks for ends with one.
        assert_eq!(split("required /x/libjobfence.so\r\n"), found("/x/libjobfence.so\r", ""));
        assert_eq!(split("required /x/libjobfence.so a=b\r\n"), found("/x/libjobfence.so", "a=b\r"));
        assert_eq!(split("required /x/libjobfence.so.1 a=b"), found("/x/libjobfence.so.1", "a=b"));
        assert_eq!(split("required /jobfence/other.so\n"), None);
        // A line that Slurm ignores loads nothing, and is reported.
        let PlugstackLookup::Nothing(ignored) = line_of("\nrequird /x/libjobfence.so\n/x/libjobfence.so\n") else {
            panic!()
        };
        assert_eq!(ignored.iter().filter_map(|place| place.rsplit(':').next()).collect::<Vec<_>>(), ["2", "3"]);
    }

    #[test]
    fn a_line_longer_than_slurm_reads_at_once_is_two() {
        let long = format!("required /x/libjobfence.so {} end=1\n", "x".repeat(LONGEST));
        let PlugstackLookup::Line(line) = line_of(&long) else { panic!() };
        assert!(line.is_cut && line.arguments.len() == 1 && line.arguments[0].len() < LONGEST);
        let comment = format!("# {}\nrequired /x/libjobfence.so a=b\n", "x".repeat(2 * LONGEST));
        let PlugstackLookup::Line(line) = line_of(&comment) else { panic!() };
        assert_eq!((line.is_cut, line.number, line.arguments.len()), (false, 2, 1));
    }
}
