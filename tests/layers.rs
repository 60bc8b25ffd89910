// SPDX-License-Identifier: GPL-2.0-or-later
//! The order of modules, read from the sources. A file imports only from its own layer or a lower one. Imports have no cycles. Only a
//! scheduler's own modules name a scheduler. No two types share a name, and each name is clear by itself.
//!
//! What counts is the code without its tests: `use` trees and paths, followed through `pub use` to the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

#[path = "common/sources.rs"]
mod sources;
use sources::sources;

/// The layers, the lowest first. A module is in the layer that names it, or else in that of the nearest module around it. `*` stands for
/// each module directly below.
const LAYERS: &[&[&str]] = &[
    // Values that all modules pass around; they do nothing.
    &["error", "bytes", "cpu_list", "figures", "hostlist", "job", "facts", "log", "printable", "sorted"],
    &["sys"],
    &["cgroup"],
    &["config", "requests", "policy", "host"],
    &["scheduler"],
    &["record"],
    &["private"],
    &["fence"],
    &["report"],
    &["janitor"],
    &["launch"],
    // What of each scheduler the table of them names, and that table.
    &["schedulers::*", "schedulers"],
    &["doors"],
    // What reads lines of usage logs, a package of its own.
    &["usage_lines"],
    // The entry points of schedulers.
    &["schedulers::slurm::adopt", "schedulers::slurm::pam", "schedulers::pbs::strays"],
    &["lib", "command"],
];

/// The package in a folder of the command's that reads lines of usage logs.
const LINES: &str = "usage_lines";

/// The files with which a package begins.
const ROOTS: [&str; 3] = ["lib", "command", LINES];

/// Files below src that no module declares, and why they are not looked at. An entry that is no longer true fails.
const UNREAD: &[(&str, &str)] = &[
    ("schedulers::slurm::spank::bindings", "it is generated, and included"),
    ("shared_object::build", "it runs while the shared object is built"),
    ("shared_object::lib", "the package of the shared object, which is the library under other names"),
    ("shared_object::names", "the same"),
    ("version::build", "it runs while the library is built"),
];

/// Imports that are still wrong, upward or part of a cycle: from, to, and the reason. An entry that is no longer true fails.
const NOT_YET: &[(&str, &str, &str)] = &[];

/// Where a scheduler may be named: its folder, and the tables of schedulers.
const A_SCHEDULERS: &[&str] = &["schedulers", "command::schedulers"];

/// Modules of the command that name a scheduler all the same, and why. An entry that is no longer true fails.
const STILL_NAME_ONE: &[(&str, &str)] = &[
    ("command", "it has a row for each subcommand, and some are one scheduler's"),
    ("command::completions", "the name of such a subcommand in a shell's script"),
    ("command::host", "an option for each scheduler"),
    ("command::check", "the order of its lines: slurm.conf says in which directories jobs are"),
    ("command::check::attach", "the same"),
    ("command::check::describe", "the same"),
    ("command::check::trial", "the same"),
    ("command::check::verdict", "the same"),
    ("command::help", "the names of subcommands"),
    ("command::explain", "the placement as slurm.conf says it"),
    ("command::explain::asking", "a job that Slurm's controller knows is explained before it runs"),
];

/// Names of schedulers, in addition to the folders in src/schedulers/.
const MORE_NAMES: [&str; 4] = ["spank", "pbs", "condor", "gridengine"];

/// Other places that name a scheduler, and why: an administrator or a user reads each of these texts, and knows the thing by that name. An
/// entry that is no longer true fails.
const NAMED: &[(&str, &str, &str)] = &[
    ("config::load", "/etc/slurm/jobfence.conf", "where the file is, by jobfence.conf(5)"),
    ("config::layer", "of Slurm's cgroup.conf(5) alone", "the administrator has taken the key from there"),
    ("config::layer", "this key was Slurm's", "the same"),
    ("config::kinds", "in Slurm's order", "a value of GPUDevice, by jobfence.conf(5)"),
    ("config::candidates", "slurm.conf's Prolog=", "the hint names the key to set"),
    ("config::sections", "slurm.conf", "the value of [Node=...] is written as slurm.conf has it, by jobfence.conf(5)"),
    (
        "cgroup::devices::set",
        "if that is Slurm's",
        "the hint names the most likely owner of a program that denies devices",
    ),
    ("sys::bpf", "slurmd.service", "the hint names the unit to change"),
    ("cgroup::devices::gpu", "Slurm has given the job", "the user knows who gave the job its GPUs"),
    ("cgroup::handing_down", "slurm", "the hint names the unit and the daemon to start again"),
];

/// Words that are clear only to a reader who already knows the code: no name may contain them.
const UNCLEAR: [&str; 7] = ["impossible", "beside", "told", "outside", "withheld", "there", "Word"];

/// No type is named so: such a name says nothing away from its module.
const PRONOUNS: [&str; 9] = ["What", "Which", "Whose", "Who", "How", "Has", "At", "Part", "Said"];

/// Sequences of words that only these modules may use: each is the one safe way to do something. An entry that is no longer true fails.
const ONE_WAY: &[OneWay] = &[
    (
        &["Command", "::", "new"],
        &[
            ("sys::program", "the way in which a program is run for what it says"),
            (
                "command::schedulers::htcondor::docker",
                "the client that HTCondor runs and waits for, with what HTCondor has given it",
            ),
            (
                "command::schedulers::gridengine::jsv::theirs",
                "the other JSV of a site, which is talked with as long as qmaster talks with ours",
            ),
            ("command::hold", "becomes systemd-run, and runs nothing"),
            ("command::own_report::listener", "what answers a user, who may take a minute: nobody waits for it"),
            ("command::again::chore", "a look for jobs that are to run again: nobody waits for it"),
            ("command::gpu::prober", "the probe, which is asked again and again, and given up without a wait"),
            ("command::completions", "clap's Command, which is no program"),
        ],
    ),
    (
        &["flock"],
        &[
            ("sys::lock", "the locks of the next two rows"),
            ("schedulers::pbs", "asks who holds the lock of MoM's, and takes none"),
        ],
    ),
    (&["fork"], &[("sys::child", "a child never returns to the code of its parent")]),
    (&["FD_CLOEXEC"], &[("sys::child", "what a program does not get of this process")]),
    (&["Lock", "::", "on"], ON_LOCKS),
    (&["Lock", "::", "try_on"], TRY_LOCKS),
    (&["\"/environ\""], &[("sys::process", "it is read in a process that can be left waiting")]),
    (&["\"/jobfence.conf\""], &[("config::load", "one order of files, for whatever reads the configuration")]),
];

/// A process that can open a locked file can keep the lock. `RunDir` is refused if users other than root can open it.
const ON_LOCKS: &[(&str, &str)] = &[
    ("command::setup::journal", "the journal's directory, which others than root cannot open"),
    ("record::counters", "in RunDir"),
    ("record::roll", "in RunDir"),
    ("record::steps", "RunDir, or in it"),
    ("record::tracked::record", "in RunDir"),
    ("report::usage_log", "a directory of mode 0700 of its own"),
    (
        "schedulers::slurm::leftovers",
        "Slurm's lock on its cgroups, which users can open: it is waited for until a deadline",
    ),
];
const TRY_LOCKS: &[(&str, &str)] = &[
    ("record::roll", "in RunDir"),
    ("record::steps", "RunDir, or in it"),
    ("record::tracked", "in RunDir"),
    ("record::tracked::record", "in RunDir"),
];

/// Words, and the modules that may use them, each with its reason.
type OneWay = (&'static [&'static str], &'static [(&'static str, &'static str)]);

/// A whole path, the name that it gives, and whether it is `pub`.
type Use = (Vec<String>, String, bool);

/// One file of the crate.
struct File {
    /// The path of its module: `cgroup::kill`, `command::check`.
    module: String,
    /// Identifiers, `::`, `{`, `}` and other signs, one by one; a string is a token with a quotation mark before it.
    tokens: Vec<String>,
}

/// The files of src by module, without code that is compiled only for tests. They are read once, since that takes a second.
fn files() -> &'static BTreeMap<String, File> {
    static FILES: LazyLock<BTreeMap<String, File>> = LazyLock::new(read_files);
    &FILES
}

fn read_files() -> BTreeMap<String, File> {
    let mut all = BTreeMap::new();
    for (path, text) in sources() {
        let name = path.with_extension("");
        let names: Vec<&str> = name.iter().map(|part| part.to_str().unwrap()).collect();
        assert!(
            !name.ends_with("mod") || name.ends_with("command/mod"),
            "{}: a module is in the file of its name, unless that file is named by its path",
            path.display()
        );
        let module = match names.as_slice() {
            ["command", "main"] => "command".to_owned(),
            ["command", LINES, "lib"] => LINES.to_owned(),
            ["command", LINES, rest @ ..] => format!("{LINES}::{}", rest.join("::")),
            // A scheduler's part of the command is in that scheduler's folder.
            ["schedulers", scheduler, "command", rest @ ..] => {
                let below = rest.iter().filter(|name| **name != "mod").map(|name| format!("::{name}"));
                format!("command::schedulers::{scheduler}{}", below.collect::<String>())
            }
            names => names.join("::"),
        };
        all.insert(module.clone(), File { module, tokens: without_tests(tokens(&text)) });
    }
    let for_tests: Vec<String> = all.values().flat_map(File::modules_of_tests).collect();
    // Generated bindings are included, not declared as a module.
    let declared: BTreeSet<String> =
        all.values().flat_map(|file| file.children().into_iter().map(|name| file.child(&name))).collect();
    let is_known = |module: &String| declared.contains(module) || ROOTS.contains(&module.as_str());
    let is_looked_at = |module: &String| is_known(module) || for_tests.contains(module);
    let unknown: BTreeSet<&str> = all.keys().filter(|module| !is_looked_at(module)).map(String::as_str).collect();
    let expected: BTreeSet<&str> = UNREAD.iter().map(|(module, _)| *module).collect();
    assert_eq!(unknown, expected, "files that no module declares, and those of UNREAD");
    all.retain(|module, _| is_known(module) && !for_tests.contains(module));
    all
}

/// The code's words and signs, without comments.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = raw_text(rest) {
            found.push(format!("\"{}", &rest[..raw]));
            raw
        } else if let Some(quote) = ["\"", "b\"", "c\""].into_iter().find(|quote| rest.starts_with(quote)) {
            let length = quote.len() + closing(&rest[quote.len()..], '"');
            found.push(format!("\"{}", &rest[..length]));
            length
        } else if let Some(behind) = rest.strip_prefix('\'') {
            // A character, or a lifetime, which has no end.
            let is_character = behind.starts_with('\\') || behind.chars().nth(1) == Some('\'');
            let length = if is_character { 1 + closing(behind, '\'') } else { 1 };
            found.push("'".to_owned());
            length
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            found.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            found.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                found.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// The length of a text that begins with r" or r#".
fn raw_text(text: &str) -> Option<usize> {
    let behind = ["br", "cr", "r"].into_iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let opened = behind.trim_start_matches('#');
    let hashes = behind.len() - opened.len();
    let body = opened.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - body.len() + body.find(&end)? + end.len())
}

/// The position behind the quotation mark that ends a text; a character behind a backslash does not end it.
fn closing(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

const ONLY_TESTS: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

/// Removes each item behind `#[cfg(test)]`, up to the `;` or the brace that ends it, and each field, up to its comma. A removed `mod name;` leaves a mark.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].iter().take(ONLY_TESTS.len()).eq(&ONLY_TESTS) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += ONLY_TESTS.len();
        let begin = at;
        let mut depth = 0_usize;
        let is_field = tokens[at..].iter().skip_while(|word| *word == "pub").nth(1).is_some_and(|word| word == ":");
        while at < tokens.len() {
            match tokens[at].as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" if depth == 0 => break,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            at += 1;
            let ends = if is_field { &[","][..] } else { &[";", "}"] };
            if depth == 0 && ends.contains(&tokens[at - 1].as_str()) {
                break;
            }
        }
        let item = &tokens[begin..at];
        if let Some(name) = item.iter().position(|word| word == "mod").filter(|_| item.ends_with(&[";".to_owned()])) {
            kept.extend(["test_mod".to_owned(), item[name + 1].clone()]);
        }
    }
    kept
}

impl File {
    /// The modules that `#[cfg(test)] mod name;` names.
    fn modules_of_tests(&self) -> Vec<String> {
        let pairs = self.tokens.windows(2).filter(|pair| pair[0] == "test_mod");
        pairs.map(|pair| self.child(&pair[1])).collect()
    }

    /// Whether it is of the command's crate.
    fn is_commands(&self) -> bool {
        self.module == "command" || self.module.starts_with("command::")
    }

    /// Whether it is of a crate that stands on the library.
    fn is_above(&self) -> bool {
        self.is_commands() || is_in(LINES, &self.module)
    }

    fn child(&self, name: &str) -> String {
        if self.module == "lib" { name.to_owned() } else { format!("{}::{name}", self.module) }
    }

    /// The modules that it declares.
    fn children(&self) -> BTreeSet<String> {
        let declared = self.tokens.windows(3).filter(|words| words[0] == "mod" && words[2] == ";");
        declared.map(|words| words[1].clone()).collect()
    }

    /// The absolute path for a path in this file. `None`: it is of another crate.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let mut here: Vec<String> = match self.module.as_str() {
            "lib" => Vec::new(),
            module => module.split("::").map(str::to_owned).collect(),
        };
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                here.truncate(usize::from(self.is_above()));
                rest = &rest[1..];
            }
            // The command's own library.
            "jobfence" if self.is_above() => {
                here.clear();
                rest = &rest[1..];
            }
            LINES if self.is_commands() => here.clear(),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
            }
            name if self.children().contains(name) => {}
            _ => return None,
        }
        here.extend(rest.iter().cloned());
        Some(here)
    }

    /// Each path of each `use`.
    fn uses(&self) -> Vec<Use> {
        let mut all = Vec::new();
        for (at, _) in self.tokens.iter().enumerate().filter(|(_, word)| *word == "use") {
            let before: Vec<&str> = self.tokens[..at].iter().rev().take(4).map(String::as_str).collect();
            let is_public = before.first() == Some(&"pub") || matches!(before.as_slice(), [")", _, "(", "pub"]);
            let end = at + self.tokens[at..].iter().position(|word| word == ";").unwrap();
            let mut paths = Vec::new();
            expand(&[], &self.tokens[at + 1..end], &mut paths);
            all.extend(paths.into_iter().filter_map(|(path, name)| Some((self.resolve(&path)?, name, is_public))));
        }
        all
    }

    /// The types that it defines, of any visibility. A `type` in an `impl` of a trait does not count.
    fn types(&self) -> Vec<&str> {
        let mut types = Vec::new();
        // For each open brace, whether it belongs to an `impl` or a `trait`.
        let mut open: Vec<bool> = Vec::new();
        let mut is_of_trait = false;
        for (at, word) in self.tokens.iter().enumerate() {
            let names =
                self.tokens.get(at + 1).filter(|next| next.starts_with(|c: char| c.is_alphabetic() || c == '_'));
            match (word.as_str(), names) {
                ("struct" | "enum" | "union", Some(name)) => types.push(name.as_str()),
                ("trait", Some(name)) => {
                    types.push(name);
                    is_of_trait = true;
                }
                ("type", Some(name)) if open.last() != Some(&true) => types.push(name),
                // Not `-> impl Trait`, nor `(x: impl Trait)`.
                ("impl", _) => {
                    is_of_trait |= at == 0 || matches!(self.tokens[at - 1].as_str(), "}" | ";" | "]" | "{" | "unsafe");
                }
                ("{", _) => open.push(std::mem::take(&mut is_of_trait)),
                ("}", _) => drop(open.pop()),
                (";", _) => is_of_trait = false,
                _ => {}
            }
        }
        types
    }

    /// The code without declarations and imports.
    fn code(&self) -> Vec<String> {
        let mut code = Vec::new();
        let mut is_use = false;
        for word in &self.tokens {
            is_use |= word == "use";
            if !is_use {
                code.push(word.clone());
            }
            is_use &= word != ";";
        }
        code
    }
}

/// The paths of a `use` tree, each with the name that it gives.
fn expand(before: &[String], tree: &[String], all: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tree.len() {
        match tree[at].as_str() {
            "::" => {}
            "{" => {
                let mut depth = 0;
                let mut begin = at + 1;
                for (index, word) in tree.iter().enumerate().skip(at) {
                    depth += i32::from(word == "{") - i32::from(word == "}");
                    if (depth == 1 && word == ",") || depth == 0 {
                        if begin < index {
                            expand(&path, &tree[begin..index], all);
                        }
                        begin = index + 1;
                    }
                    if depth == 0 {
                        break;
                    }
                }
                return;
            }
            "as" => {
                all.push((path, tree[at + 1].clone()));
                return;
            }
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    let name = path.last().cloned().unwrap_or_default();
    all.push((path, name));
}

type Imports<'a> = BTreeMap<&'a str, BTreeSet<String>>;

/// What each file imports, by module.
fn imports_of(files: &BTreeMap<String, File>) -> Imports<'_> {
    let uses: BTreeMap<&str, _> = files.values().map(|file| (file.module.as_str(), file.uses())).collect();
    let mut all = BTreeMap::new();
    for file in files.values() {
        let mut imported: BTreeSet<String> = BTreeSet::new();
        let code = file.code();
        let mut add = |path: &[String]| {
            if let Some(module) = defined_in(path, files, &uses, 0).filter(|module| *module != file.module) {
                imported.insert(module);
            }
        };
        for (path, name, is_public) in &uses[file.module.as_str()] {
            // A name that is only passed on is not needed here.
            if !is_public || code.contains(name) {
                add(path);
            }
        }
        let children = file.children();
        for (at, word) in code.iter().enumerate() {
            let begins = at == 0 || code[at - 1] != "::" && code[at - 1] != "mod";
            let goes_on = code.get(at + 1).is_some_and(|next| next == "::");
            let is_known = ["crate", "self", "super"].contains(&word.as_str())
                || word == "jobfence" && file.is_commands()
                || children.contains(word);
            if begins && goes_on && is_known {
                let mut path = vec![word.clone()];
                for pair in code[at + 1..].chunks(2) {
                    match pair {
                        [colons, name] if colons == "::" => path.push(name.clone()),
                        _ => break,
                    }
                }
                file.resolve(&path).iter().for_each(|path| add(path));
            }
        }
        all.insert(file.module.as_str(), imported);
    }
    all
}

/// The module that defines the object at a path: the longest part of the path that is a module, or the source of the imported name.
fn defined_in(
    path: &[String],
    files: &BTreeMap<String, File>,
    uses: &BTreeMap<&str, Vec<Use>>,
    depth: usize,
) -> Option<String> {
    let length = (1..=path.len()).rev().find(|length| files.contains_key(&path[..*length].join("::")))?;
    let module = path[..length].join("::");
    let Some(name) = path.get(length).filter(|_| depth < 9) else { return Some(module) };
    // Also by a plain `use`: modules below can name what a module has imported.
    let handed_on = uses[module.as_str()].iter().find(|(_, known_as, _)| known_as == name);
    match handed_on {
        Some((from, ..)) => defined_in(from, files, uses, depth + 1).or(Some(module)),
        None => Some(module),
    }
}

/// The number of a module's layer.
fn layer(module: &str) -> Option<usize> {
    let mut name = Some(module);
    while let Some(whole) = name {
        if let Some(found) = LAYERS.iter().position(|layer| layer.iter().any(|pattern| is_named(pattern, whole))) {
            return Some(found);
        }
        name = whole.rsplit_once("::").map(|(around, _)| around);
    }
    None
}

/// Whether this is the module of the name, or with a `*` one directly below it.
fn is_named(pattern: &str, module: &str) -> bool {
    match pattern.strip_suffix("::*") {
        Some(around) => module.rsplit_once("::").is_some_and(|(above, _)| above == around),
        None => module == pattern,
    }
}

/// Whether a module is the one of this name, or below it.
fn is_in(pattern: &str, module: &str) -> bool {
    let mut around = module.match_indices("::").map(|(end, _)| &module[..end]).chain([module]);
    around.any(|whole| is_named(pattern, whole))
}

/// Case-insensitive.
fn says(word: &str, text: &str) -> bool {
    word.to_lowercase().contains(&text.to_lowercase())
}

/// Imports from a higher layer.
fn upward<'a>(imports: &'a Imports<'a>) -> Vec<(&'a str, &'a str)> {
    let edges = imports.iter().flat_map(|(from, all)| all.iter().map(move |to| (*from, to.as_str())));
    edges.filter(|(from, to)| layer(to) > layer(from)).collect()
}

/// The files that need each other, each cycle once.
fn circles<'a>(imports: &'a Imports<'a>) -> BTreeSet<Vec<&'a str>> {
    let reach = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut left: Vec<&str> = imports[from].iter().map(String::as_str).filter(|to| seen.insert(to)).collect();
        while let Some(next) = left.pop() {
            left.extend(imports.get(next).into_iter().flatten().map(String::as_str).filter(|to| seen.insert(to)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|module| (*module, reach(module))).collect();
    let in_circles = reached.iter().filter(|(module, seen)| seen.contains(*module));
    in_circles.map(|(module, seen)| seen.iter().copied().filter(|to| reached[to].contains(module)).collect()).collect()
}

/// Each word or text that names a scheduler outside a scheduler's modules, with its module.
fn names(files: &BTreeMap<String, File>) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    let folders = files.keys().filter(|module| is_named("schedulers::*", module));
    let mut schedulers: Vec<&str> = folders.map(|module| module.trim_start_matches("schedulers::")).collect();
    schedulers.extend(MORE_NAMES);
    for file in files.values() {
        if A_SCHEDULERS.iter().any(|room| is_in(room, &file.module)) {
            continue;
        }
        for word in &file.tokens {
            let lower = word.to_lowercase();
            if schedulers.iter().any(|scheduler| lower.contains(scheduler)) {
                all.push((file.module.as_str(), word.as_str()));
            }
        }
    }
    all
}

#[test]
fn every_file_imports_only_what_is_as_low_or_lower() {
    let files = files();
    let imports = imports_of(files);
    let nowhere = files.keys().filter(|module| layer(module).is_none());
    let mut wrong: Vec<String> = nowhere.map(|module| format!("{module} is in no layer: see LAYERS")).collect();
    let is_known = |from: &str, to: &str| NOT_YET.iter().any(|known| (known.0, known.1) == (from, to));
    let upward = upward(&imports).into_iter().filter(|(from, to)| !is_known(from, to));
    wrong.extend(upward.map(|(from, to)| format!("{from} imports {to}, which stands above it")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_two_files_need_each_other() {
    let files = files();
    let mut imports = imports_of(files);
    for (from, to, _) in NOT_YET {
        imports.get_mut(from).map(|all| all.remove(*to));
    }
    let mut wrong = Vec::new();
    for circle in circles(&imports) {
        wrong.push(format!("these need each other: {}", circle.join(", ")));
        for module in &circle {
            let to: Vec<&str> = imports[module].iter().map(String::as_str).filter(|to| circle.contains(to)).collect();
            wrong.push(format!("    {module} imports {}", to.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_what_is_a_schedulers_names_one() {
    let files = files();
    let is_known = |module: &str, word: &str| {
        STILL_NAME_ONE.iter().any(|known| known.0 == module)
            || NAMED.iter().any(|known| known.0 == module && says(word, known.1))
    };
    let named: BTreeSet<_> = names(files).into_iter().filter(|(module, word)| !is_known(module, word)).collect();
    let wrong: Vec<String> = named.iter().map(|(module, word)| format!("{module} names a scheduler: {word}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The modules that contain this sequence of words. A word that begins with a quotation mark is the end of a text.
fn say<'a>(files: &'a BTreeMap<String, File>, words: &[&str]) -> BTreeSet<&'a str> {
    let is_word = |(found, word): (&String, &&str)| match word.strip_prefix('"') {
        Some(end) => found.starts_with('"') && found.ends_with(end),
        None => found == word,
    };
    let says = |file: &&File| file.tokens.windows(words.len()).any(|some| some.iter().zip(words).all(is_word));
    files.values().filter(says).map(|file| file.module.as_str()).collect()
}

#[test]
fn for_what_is_easily_done_wrong_there_is_one_way() {
    let files = files();
    let mut wrong = Vec::new();
    for (words, modules) in ONE_WAY {
        let (found, known): (_, BTreeSet<&str>) =
            (say(files, words), modules.iter().map(|(module, _)| *module).collect());
        wrong.extend(found.difference(&known).map(|module| format!("{module} says {}: see ONE_WAY", words.concat())));
        wrong.extend(
            known.difference(&found).map(|module| format!("{module} does not say {} any more", words.concat())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_hook_and_no_unit_names_the_configuration() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut looked_at = 0;
    for directory in ["hooks/pbs", "hooks/gridengine", "plugstack/systemd"] {
        for entry in fs::read_dir(top.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let named = text.lines().find(|line| !line.starts_with('#') && line.contains("/jobfence.conf"));
            assert_eq!(named, None, "{}", path.display());
            looked_at += 1;
        }
    }
    assert!(looked_at >= 7, "{looked_at}");
}

/// Each name of more than one type, and the modules that define one.
fn shared_names(files: &BTreeMap<String, File>) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files.values() {
        for name in file.types() {
            all.entry(name).or_default().push(&file.module);
        }
    }
    all.retain(|_, modules| modules.len() > 1);
    all
}

/// Each identifier in `UNCLEAR`, with its module.
fn unclear(files: &BTreeMap<String, File>) -> BTreeSet<(&str, &str)> {
    let all = files.values().flat_map(|file| file.tokens.iter().map(|word| (file.module.as_str(), word.as_str())));
    all.filter(|(_, word)| UNCLEAR.contains(word)).collect()
}

/// Functions `of…` that make a value of their own type, with their modules. One that takes `self` is none of them.
fn constructors_called_of(files: &BTreeMap<String, File>) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    for file in files.values() {
        for (at, words) in file.tokens.windows(2).enumerate() {
            let is_of = words[0] == "fn" && (words[1] == "of" || words[1].starts_with("of_"));
            if is_of && makes_its_own(&file.tokens[at + 2..]) {
                all.push((file.module.as_str(), words[1].as_str()));
            }
        }
    }
    all
}

/// Whether a function returns `Self`, or an `Option` or `Result` of it, and takes no `self`. `signature`: what is behind its name.
fn makes_its_own(signature: &[String]) -> bool {
    // Brackets of generics hold no parenthesis in this crate's constructors.
    let Some(open) = signature.iter().position(|word| word == "(") else { return false };
    let mut depth = 0;
    let closed = signature[open..].iter().position(|word| {
        depth += i32::from(word == "(") - i32::from(word == ")");
        depth == 0
    });
    let Some(closed) = closed.map(|closed| open + closed) else { return false };
    let first = signature[open + 1..closed].split(|word| word == ",").next().unwrap_or_default();
    let mut returned = signature[closed + 1..].iter().map(String::as_str);
    if first.last().is_some_and(|word| word == "self") || returned.next() != Some("-") || returned.next() != Some(">") {
        return false;
    }
    let mut last = "";
    for word in returned.take_while(|word| !["{", ";", "where"].contains(word)) {
        match word {
            "Self" => return true,
            "&" | "(" | "[" => return false,
            "<" if ["Option", "Result"].contains(&last) => {}
            "::" => {}
            _ if ["", "::", "<"].contains(&last) => {}
            _ => return false,
        }
        last = word;
    }
    false
}

/// Files and folders, including tests, whose names contain such a word.
fn unclear_files(directory: &Path, wrong: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_code = path.extension().is_some_and(|extension| extension == "rs" || extension == "py");
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if (is_code || path.is_dir()) && name.split('_').any(|word| UNCLEAR.contains(&word)) {
            wrong.push(format!("{} does not say what it is", path.display()));
        }
        if path.is_dir() {
            unclear_files(&path, wrong);
        }
    }
}

/// Files whose code changes the owner of a file, and why. No user may own space on RunDir's file system: when it is full, each step on the
/// node is refused.
const CHANGES_OWNERS: [(&str, &str); 3] = [
    ("command::schedulers::slurm::line", "a file of the administrator's keeps its owner when it is replaced"),
    ("command::whole", "the same"),
    ("fence::delegation", "a directory of cgroup2, which is on no disk"),
];

#[test]
fn no_file_is_given_to_a_user() {
    let files = files();
    let names = ["chown", "fchown", "lchown", "fchownat"];
    let gives = |file: &&File| file.tokens.iter().any(|word| names.contains(&word.as_str()));
    let found: Vec<&str> = files.values().filter(gives).map(|file| file.module.as_str()).collect();
    assert_eq!(found, CHANGES_OWNERS.map(|(module, _)| module), "who gives files away");
}

#[test]
fn no_two_types_share_a_name() {
    let files = files();
    let shared = shared_names(files);
    let wrong: Vec<String> = shared.iter().map(|(name, modules)| format!("{name} of {}", modules.join(", "))).collect();
    assert!(wrong.is_empty(), "types of one name:\n{}", wrong.join("\n"));
}

#[test]
fn names_say_what_they_name() {
    let files = files();
    let unclear = unclear(files);
    let mut wrong: Vec<String> =
        unclear.iter().map(|(module, word)| format!("{module} calls something {word}")).collect();
    for file in files.values() {
        let by_a_pronoun = file.types().into_iter().filter(|name| PRONOUNS.contains(name));
        wrong.extend(by_a_pronoun.map(|name| format!("{} calls a type {name}", file.module)));
    }
    let of = constructors_called_of(files);
    wrong.extend(
        of.iter().map(|(module, name)| format!("{module}: {name} makes a value: call it from_ what it is made")),
    );
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    for directory in ["src", "tests"] {
        unclear_files(&top.join(directory), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_not_yet_so_is_still_not_so() {
    let files = files();
    let imports = imports_of(files);
    let (upward, circles) = (upward(&imports), circles(&imports));
    let is_wrong = |from: &str, to: &str| {
        let in_circle = circles.iter().any(|circle| circle.contains(&from) && circle.contains(&to));
        upward.contains(&(from, to)) || in_circle && imports[from].contains(to)
    };
    let mended = NOT_YET.iter().filter(|(from, to, _)| !is_wrong(from, to));
    let mut stale: Vec<String> =
        mended.map(|(from, to, _)| format!("NOT_YET: nothing is wrong any more with {from}, {to}")).collect();
    let names = names(files);
    let is_named = |of: &str, text: &str| names.iter().any(|(module, word)| *module == of && says(word, text));
    let unnamed = NAMED.iter().filter(|(module, text, _)| !is_named(module, text));
    let silent = STILL_NAME_ONE.iter().filter(|known| !names.iter().any(|(module, _)| *module == known.0));
    stale.extend(silent.map(|(module, _)| format!("STILL_NAME_ONE: {module} does not any more")));
    stale.extend(unnamed.map(|(module, text, _)| format!("NAMED: {module} does not say {text:?} any more")));
    assert!(stale.is_empty(), "take out what has been mended:\n{}", stale.join("\n"));
}

/// A crate of these files.
fn house(texts: &[(&str, &str)]) -> BTreeMap<String, File> {
    let file = |module: &str, text: &str| File { module: module.to_owned(), tokens: without_tests(tokens(text)) };
    texts.iter().map(|(module, text)| ((*module).to_owned(), file(module, text))).collect()
}

#[test]
fn what_is_built_upside_down_is_seen() {
    let files = house(&[
        ("error", "pub struct Error;"),
        ("fence", "mod own; pub use own::Own; use crate::error::Error; pub struct Fence;"),
        ("fence::own", "use super::Fence; pub struct Own;"),
        ("policy", "use crate::{error::Error, fence::{self, Own as Theirs}}; // crate::doors::run"),
        (
            "sys",
            "fn f() -> &'static str { crate::error::f('\"'); \"crate::doors::run\" } #[cfg(test)] mod tests { use crate::doors; } \
             struct T { #[cfg(test)] pub a: fn(crate::doors::D), #[cfg(test)] b: crate::fence::F } \
             const C: T = T { #[cfg(test)] a: |d| { crate::doors::run(d, 1); } };",
        ),
        ("doors", "use jobfence::sys; fn f() { r#\"\"Slurm\"\"# }"),
        ("cgroup", "fn condor_of() { b\"/slurm\\\"\" } // pbs"),
        ("scheduler", "fn f() { \"Newest\" }"),
        ("schedulers", "pub mod slurm; pub mod new; use new::NEW;"),
        ("schedulers::slurm", ""),
        ("schedulers::new", "pub static NEW: u8 = 0; fn f() { \"slurm, new\" }"),
        ("schedulers::new::door", "use crate::doors::run;"),
        ("doors::run", ""),
    ]);
    let imports = imports_of(&files);
    let of = |module: &str| imports[module].iter().map(String::as_str).collect::<Vec<_>>();
    // A name that is only passed on is not needed; a file that uses it needs the file that defines it.
    assert_eq!(of("fence"), ["error"]);
    assert_eq!(of("policy"), ["error", "fence", "fence::own"]);
    assert_eq!((of("fence::own"), of("sys"), of("doors")), (vec!["fence"], vec!["error"], vec![]));
    let from_a_folder = ("schedulers::new::door", "doors::run");
    assert_eq!(upward(&imports), [("policy", "fence"), ("policy", "fence::own"), from_a_folder]);
    assert_eq!(
        names(&files),
        [
            ("cgroup", "condor_of"),
            ("cgroup", "\"b\"/slurm\\\"\""),
            ("doors", "\"r#\"\"Slurm\"\"#"),
            ("scheduler", "\"\"Newest\""),
        ]
    );
    assert!(circles(&imports).is_empty());
    for needs in ["fn f() -> Own", "fn f() { own::f() }", "use self::own::g;"] {
        let text = format!("mod own; pub use own::Own; {needs}");
        let files = house(&[("fence", &text), ("fence::own", "use super::Fence; pub struct Own;")]);
        let imports = imports_of(&files);
        assert_eq!(circles(&imports), BTreeSet::from([vec!["fence", "fence::own"]]), "{needs}");
    }
}

#[test]
fn what_is_called_badly_is_seen() {
    let files = house(&[
        (
            "sys",
            "pub struct Kind; type Outcome = u8; impl Iterator for Kind { type Item = u8; } fn told() { let there = \"beside\"; }",
        ),
        (
            "cgroup",
            "pub(crate) enum Kind<'a> { Word } trait Item { type Outcome; fn f(x: impl Fn()) { type Outcome = u8; } }",
        ),
        (
            "fence",
            "fn f() -> impl Fn() { struct Whole {} } impl X { fn f() { x } } #[cfg(test)] mod tests { struct Kind; }",
        ),
    ]);
    let shared: Vec<(&str, Vec<&str>)> = shared_names(&files).into_iter().collect();
    assert_eq!(shared, [("Kind", vec!["cgroup", "sys"]), ("Outcome", vec!["cgroup", "sys"])]);
    assert_eq!(Vec::from_iter(unclear(&files)), [("cgroup", "Word"), ("sys", "there"), ("sys", "told")]);
}

#[test]
fn what_makes_a_value_and_is_called_of_is_seen() {
    for (signature, is_one) in [
        ("fn of(text: &str) -> Self { x }", true),
        ("fn of_json<'a, T: X<u8>>(value: &'a Value, more: fn(u8) -> T) -> Option<Self>;", true),
        ("fn of_dir((host, config): (&Host, &Config)) -> std::io::Result<Option<Self>> where T: X { x }", true),
        ("fn of_text() -> Result<Self, String> { x }", true),
        ("fn of_run(mut self, run: u64) -> Self { x }", false),
        ("fn of_run(&'a self) -> Option<Self> { x }", false),
        ("fn of_all(all: &'a [Self]) -> Option<&'a Self> { x }", false),
        ("fn of_all(all: u8) -> Vec<Self> { x }", false),
        ("fn of_all(all: u8) -> (Self, u8) { x }", false),
        ("fn of_all(all: u8) { let f = |x| -> Self { x }; }", false),
        ("fn offered() -> Self { x }", false),
        ("fn from_json(value: Value) -> Self { x }", false),
    ] {
        let files = house(&[("sys", &format!("impl Kind {{ {signature} }}"))]);
        assert_eq!(!constructors_called_of(&files).is_empty(), is_one, "{signature}");
    }
}
