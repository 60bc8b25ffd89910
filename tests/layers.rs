// SPDX-License-Identifier: GPL-2.0-or-later
//! The order of the house, read from its sources: a file imports only what is as low as itself or lower, no two import each other,
//! also not through others, and only the rooms that are a scheduler's name one.
//!
//! What counts is the code without its tests: `use` trees and paths, followed through `pub use` to the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The layers, the lowest first. A module is in the layer that names it, or else the nearest module around it.
const LAYERS: &[&[&str]] = &[
    // Values that everybody hands around; they do nothing.
    &["error", "bytes", "cpu_list", "hostlist", "job", "facts"],
    &["sys"],
    &["cgroup"],
    &["config", "requests", "policy", "host"],
    // Only what every scheduler has to answer, not the schedulers.
    &["scheduler"],
    &["record"],
    &["fence"],
    &["report"],
    &["janitor"],
    &["launch"],
    &["scheduler::slurm"],
    &["door"],
    &["lib", "bin"],
];

/// Imports that are still upward, from and to, each with the reason why it is there yet. An entry that is no longer true fails.
const NOT_YET_BELOW: &[(&str, &str, &str)] = &[];

/// Circles that are still there, by all of their files, each with its reason. An entry that is no longer true fails.
const NOT_YET_APART: &[(&[&str], &str)] = &[];

/// Where a scheduler may be named: its own rooms, and the doors that its programs call.
const A_SCHEDULERS: &[&str] = &["scheduler::", "door::adopt", "door::pam", "bin"];

const SCHEDULERS: [&str; 5] = ["slurm", "spank", "pbs", "condor", "gridengine"];

/// Who else says the name of a scheduler, in which identifier or text, and why that is right. An entry that is no longer true fails.
const NAMED: &[(&str, &str, &str)] = &[];

/// One file of the crate.
struct File {
    /// The path of the module that it is: `cgroup::kill`, `bin::check`.
    module: String,
    /// Identifiers, `::`, `{`, `}` and other signs, one by one; a text is a sign with a quotation mark before it.
    tokens: Vec<String>,
}

/// The files of src without what is compiled for tests alone, by their modules.
fn files() -> BTreeMap<String, File> {
    let mut all = BTreeMap::new();
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let top = left[0].clone();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&top).unwrap().with_extension("");
                let names: Vec<&str> = name.iter().map(|part| part.to_str().unwrap()).collect();
                let module = match names.as_slice() {
                    ["bin", "jobfence", "main"] => "bin".to_owned(),
                    ["bin", "jobfence", rest @ ..] => format!("bin::{}", rest.join("::")),
                    names => names.join("::"),
                };
                let tokens = without_tests(tokens(&fs::read_to_string(&path).unwrap()));
                all.insert(module.clone(), File { module, tokens });
            }
        }
    }
    let for_tests: Vec<String> = all.values().flat_map(File::modules_of_tests).collect();
    all.retain(|module, _| !for_tests.contains(module));
    all
}

/// The code's words and signs; comments are none of it.
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
        } else if rest.starts_with('\'') {
            // A character, or a lifetime, which has no end.
            let character = rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'');
            let length = if character { 1 + closing(&rest[1..], '\'') } else { 1 };
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

/// How long a text that begins with r" or r#" is.
fn raw_text(text: &str) -> Option<usize> {
    let behind = ["br", "cr", "r"].into_iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let opened = behind.trim_start_matches('#');
    let hashes = behind.len() - opened.len();
    let body = opened.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - body.len() + body.find(&end)? + end.len())
}

/// Behind the quotation mark that ends a text; what follows a backslash ends nothing.
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

/// Without each item behind `#[cfg(test)]`: to the `;` or the brace that ends it. Such a `mod name;` leaves a mark.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&ONLY_TESTS.map(str::to_owned)) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += ONLY_TESTS.len();
        let begin = at;
        let mut depth = 0_usize;
        while at < tokens.len() {
            match tokens[at].as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 && matches!(tokens[at - 1].as_str(), ";" | "}") {
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
    /// Those that `#[cfg(test)] mod name;` names.
    fn modules_of_tests(&self) -> Vec<String> {
        let pairs = self.tokens.windows(2).filter(|pair| pair[0] == "test_mod");
        pairs.map(|pair| self.child(&pair[1])).collect()
    }

    fn child(&self, name: &str) -> String {
        if self.module == "lib" { name.to_owned() } else { format!("{}::{name}", self.module) }
    }

    /// The modules that it declares.
    fn children(&self) -> BTreeSet<String> {
        let declared = self.tokens.windows(3).filter(|words| words[0] == "mod" && words[2] == ";");
        declared.map(|words| words[1].clone()).collect()
    }

    /// A path as it is written here, from the top of the crate; `None` if it is of another crate.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let mut here: Vec<String> = match self.module.as_str() {
            "lib" => Vec::new(),
            module => module.split("::").map(str::to_owned).collect(),
        };
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                here.truncate(usize::from(self.module == "bin" || self.module.starts_with("bin::")));
                rest = &rest[1..];
            }
            // The command's own library.
            "jobfence" if self.module.starts_with("bin") => {
                here.clear();
                rest = &rest[1..];
            }
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

    /// Each `use`: the whole path, the name by which it is known here, and whether it is handed on by `pub`.
    fn uses(&self) -> Vec<(Vec<String>, String, bool)> {
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

    /// What is neither declared nor imported: the code.
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

/// The paths of a tree of `use`, each with the name that it gives.
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

/// The imports of each file, by modules.
fn imports(files: &BTreeMap<String, File>) -> BTreeMap<&str, BTreeSet<String>> {
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
            // What is only handed on is not needed here.
            if !is_public || code.contains(name) {
                add(path);
            }
        }
        let children = file.children();
        for (at, word) in code.iter().enumerate() {
            let begins = at == 0 || code[at - 1] != "::" && code[at - 1] != "mod";
            let goes_on = code.get(at + 1).is_some_and(|next| next == "::");
            let is_known = ["crate", "self", "super"].contains(&word.as_str())
                || word == "jobfence" && file.module.starts_with("bin")
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

/// The module that defines what is at a path: the longest part of it that is one, or where that has the name from.
fn defined_in(
    path: &[String],
    files: &BTreeMap<String, File>,
    uses: &BTreeMap<&str, Vec<(Vec<String>, String, bool)>>,
    depth: usize,
) -> Option<String> {
    let length = (1..=path.len()).rev().find(|length| files.contains_key(&path[..*length].join("::")))?;
    let module = path[..length].join("::");
    let Some(name) = path.get(length).filter(|_| depth < 9) else { return Some(module) };
    // Also by a plain `use`: what a module has imported, those below it can name.
    let handed_on = uses[module.as_str()].iter().find(|(_, known_as, _)| known_as == name);
    match handed_on {
        Some((from, ..)) => defined_in(from, files, uses, depth + 1).or(Some(module)),
        None => Some(module),
    }
}

/// The number of the layer that a module is in.
fn layer(module: &str) -> Option<usize> {
    let mut name = Some(module);
    while let Some(whole) = name {
        if let Some(found) = LAYERS.iter().position(|layer| layer.contains(&whole)) {
            return Some(found);
        }
        name = whole.rsplit_once("::").map(|(around, _)| around);
    }
    None
}

#[test]
fn every_file_imports_only_what_is_as_low_or_lower() {
    let files = files();
    let mut wrong = Vec::new();
    let mut expected: BTreeSet<(&str, &str)> = NOT_YET_BELOW.iter().map(|(from, to, _)| (*from, *to)).collect();
    let imports = imports(&files);
    for (&from, imported) in &imports {
        let Some(own) = layer(from) else {
            wrong.push(format!("{from} is in no layer: give it its place in LAYERS"));
            continue;
        };
        for to in imported {
            if layer(to).is_some_and(|theirs| theirs > own) && !expected.remove(&(from, to.as_str())) {
                wrong.push(format!("{from} imports {to}, which stands above it"));
            }
        }
    }
    wrong.extend(
        expected.iter().map(|(from, to)| format!("{from} does not import {to} any more: take it out of NOT_YET_BELOW")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_two_files_need_each_other() {
    let files = files();
    let imports = imports(&files);
    let reach = |from: &'_ str| -> BTreeSet<&str> {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut left: Vec<&str> = imports[from].iter().map(String::as_str).filter(|to| seen.insert(to)).collect();
        while let Some(next) = left.pop() {
            left.extend(imports.get(next).into_iter().flatten().map(String::as_str).filter(|to| seen.insert(to)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|module| (*module, reach(module))).collect();
    let circles: BTreeSet<Vec<&str>> = reached
        .iter()
        .filter(|(module, seen)| seen.contains(*module))
        .map(|(module, seen)| seen.iter().copied().filter(|other| reached[other].contains(module)).collect())
        .collect();
    let known: BTreeSet<Vec<&str>> = NOT_YET_APART.iter().map(|(circle, _)| circle.to_vec()).collect();
    let mut wrong = Vec::new();
    for circle in circles.difference(&known) {
        wrong.push(format!("these need each other: {}", circle.join(", ")));
        for module in circle {
            let to: Vec<&str> = imports[module].iter().map(String::as_str).filter(|to| circle.contains(to)).collect();
            wrong.push(format!("    {module} imports {}", to.join(", ")));
        }
    }
    wrong.extend(known.difference(&circles).map(|circle| format!("no circle any more: {}", circle.join(", "))));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_what_is_a_schedulers_names_one() {
    let mut wrong = Vec::new();
    let mut expected: BTreeSet<(&str, &str)> = NAMED.iter().map(|(module, text, _)| (*module, *text)).collect();
    let mut seen = BTreeSet::new();
    for file in files().values() {
        let is_a_schedulers = |room: &&str| {
            file.module == **room || file.module.starts_with(&format!("{}::", room.trim_end_matches("::")))
        };
        if A_SCHEDULERS.iter().any(|room| is_a_schedulers(&room)) {
            continue;
        }
        // The folder of a scheduler is named where it is hung up.
        let code: Vec<&String> = file.tokens.iter().collect();
        for (at, word) in code.iter().enumerate() {
            let names_one = |text: &str| SCHEDULERS.iter().any(|scheduler| text.to_lowercase().contains(scheduler));
            if !names_one(word) {
                continue;
            }
            if file.module == "scheduler" && at > 0 && code[at - 1] == "mod" {
                continue;
            }
            let known = NAMED.iter().find(|(module, text, _)| *module == file.module && word.contains(text));
            match known {
                Some((module, text, _)) => {
                    expected.remove(&(*module, *text));
                }
                None => drop(seen.insert(format!("{} names a scheduler: {word}", file.module))),
            }
        }
    }
    wrong.extend(seen);
    wrong.extend(
        expected.iter().map(|(module, text)| format!("{module} has no {text:?} any more: take it out of NAMED")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
