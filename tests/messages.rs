// SPDX-License-Identifier: GPL-2.0-or-later
//! `docs/troubleshooting.md` and `docs/users.md` contain every message of jobfence, and no other.
//!
//! A message is the text of a call that writes to a log, to stderr or to the user's job. A page quotes it at the beginning of a list's
//! item, with `...` for each part that varies. Reasons within such messages are quoted as well; there are too many to list all of them,
//! so these are only looked up in the source.
//!
//! A sentence for users is composed of fragments. The page has such a sentence as a whole, so each of its words must come from a literal:
//! the sentence's own, or a fragment's in its place. And each fragment must be in a sentence of the page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

#[path = "common/sources.rs"]
mod sources;
use sources::sources;

/// Calls that write for administrators.
const CALLS: [&str; 4] = ["log::error!(", "log::warn!(", "log::info!(", "eprintln!("];
/// Calls that write for users.
const USER_CALLS: [&str; 1] = ["tell_user("];
/// Where sentences for users are composed.
const USER_FILES: [&str; 3] = ["report.rs", "launch/tell.rs", "launch/refuse.rs"];
/// Functions in these files that write for administrators.
const NOT_FOR_USERS: [&str; 2] = ["pub fn ended(", "pub fn bear("];
/// What the pages quote from other programs and other pages.
const OF_OTHERS: [&str; 4] = [
    "ENVIRONMENT",
    "Operation not permitted",
    "Resource temporarily unavailable",
    "write to unblock task 0 failed: Broken pipe",
];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The code without tests and comments, read once.
fn code() -> &'static [(PathBuf, String)] {
    static CODE: LazyLock<Vec<(PathBuf, String)>> = LazyLock::new(|| {
        let without = |text: &str| {
            let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
            code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
        };
        sources().into_iter().map(|(path, text)| (path, without(&text))).collect()
    });
    &CODE
}

/// The literal at the beginning of a text, possibly within `&format!(`.
fn literal(code: &str) -> Option<String> {
    let code = code.trim_start();
    let code = code.strip_prefix("&format!(").unwrap_or(code).trim_start();
    let mut rest = code.strip_prefix('"')?.chars().peekable();
    let mut text = String::new();
    loop {
        match rest.next()? {
            '"' => return Some(text),
            '\\' => match rest.next()? {
                '\n' => while rest.next_if(|c| c.is_whitespace()).is_some() {},
                'n' => text.push('\n'),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
}

/// The text with `...` for each varying part, and without the name that begins every line.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0;
    for c in text.replace("{{", "(").replace("}}", ")").chars() {
        match c {
            '{' => {
                depth += 1;
                plain.push_str("...");
            }
            '}' => depth -= 1,
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    // Consecutive varying parts, and the full stop behind them, are one.
    let mut short = plain.trim_start_matches("jobfence: ").to_owned();
    while short.contains("....") {
        short = short.replace("....", "...");
    }
    short
}

fn has_words(text: &str) -> bool {
    text.replace("...", "").chars().any(char::is_alphabetic)
}

fn calls(code: &str, calls: &[&str]) -> BTreeSet<String> {
    let found = calls.iter().flat_map(|call| code.split(call).skip(1)).filter_map(literal);
    found.map(|text| plain(&text)).filter(|text| has_words(text)).collect()
}

fn for_administrators() -> BTreeSet<String> {
    code().iter().flat_map(|(_, code)| calls(code, &CALLS)).collect()
}

fn for_users() -> BTreeSet<String> {
    code().iter().flat_map(|(_, code)| calls(code, &USER_CALLS)).chain(fragments()).collect()
}

/// The parts of sentences for users, and these sentences.
fn fragments() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let of_users = code().iter().filter(|(path, _)| USER_FILES.iter().any(|file| path == Path::new(file)));
    for mut code in of_users.map(|(_, code)| code.clone()) {
        for function in NOT_FOR_USERS {
            let Some(begin) = code.find(function) else { continue };
            let end = begin + code[begin..].find("\n}").unwrap();
            code.replace_range(begin..end, "");
        }
        found.extend(literals_of(&code));
    }
    found
}

/// Every literal of the source.
fn literals() -> BTreeSet<String> {
    code().iter().flat_map(|(_, code)| literals_of(code)).collect()
}

fn literals_of(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // A character, and no beginning of a text.
    let code = code.replace("'\"'", "' '");
    let mut rest = code.as_str();
    while let Some(at) = rest.find('"') {
        rest = &rest[at..];
        let Some(text) = literal(rest) else { break };
        found.insert(plain(&text));
        rest = &rest[length(rest)..];
    }
    found.retain(|text| has_words(text));
    found
}

/// The length of the literal at the beginning of a text.
fn length(code: &str) -> usize {
    let mut is_escaped = false;
    let is_end = |(_, c): &(usize, char)| {
        let is_end = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    };
    code.char_indices().skip(1).find(is_end).map_or(code.len(), |(at, _)| at + 1)
}

/// Whether a text is this literal, with fragments or unknown text in place of the varying parts.
fn is_made_of(text: &str, literal: &str, fragments: &BTreeSet<String>) -> bool {
    let Some((before, after)) = literal.split_once("...") else { return text == literal };
    let Some(rest) = text.strip_prefix(before) else { return false };
    let next = after.split("...").next().unwrap();
    let ends = (0..=rest.len()).filter(|end| rest.is_char_boundary(*end) && rest[*end..].starts_with(next));
    ends.into_iter()
        .any(|end| is_made_of(&rest[end..], after, fragments) && has_no_other_words(&rest[..end], fragments))
}

/// Whether all words of a text come from fragments.
fn has_no_other_words(text: &str, fragments: &BTreeSet<String>) -> bool {
    let Some(first) = text.chars().next() else { return true };
    if !first.is_alphabetic() && has_no_other_words(&text[first.len_utf8()..], fragments) {
        return true;
    }
    let ends = (1..=text.len()).filter(|end| text.is_char_boundary(*end) && has_words(&text[..*end]));
    ends.into_iter().any(|end| {
        fragments.iter().any(|fragment| is_made_of(&text[..end], fragment, fragments))
            && has_no_other_words(&text[end..], fragments)
    })
}

/// Whether a literal is in a text of the page, with fragments in place of the varying parts.
fn is_in(text: &str, literal: &str, fragments: &BTreeSet<String>) -> bool {
    let begins = (0..text.len()).filter(|at| text.is_char_boundary(*at));
    begins.into_iter().any(|begin| {
        let ends = (begin + 1..=text.len()).filter(|end| text.is_char_boundary(*end));
        ends.into_iter().any(|end| is_made_of(&text[begin..end], literal, fragments))
    })
}

/// The messages that a page quotes at the beginning of a list's items, up to a colon.
fn quoted(page: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(top().join("docs").join(page)).unwrap();
    // On the page for users, other lists come before.
    let page = page.split_once("\n## Messages").map_or(page.as_str(), |(_, rest)| rest);
    let items = page.split("\n- `").skip(1).filter_map(|item| item.split("`:").next());
    items.flat_map(|item| item.split("`;")).map(|message| plain(&message.replace('`', ""))).collect()
}

/// What the page quotes in its sentences, between quotation marks.
fn mentioned(page: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(top().join("docs").join(page)).unwrap();
    // Every second part is a block, and then one within backquotes.
    let prose: String = page.split("\n```").step_by(2).collect();
    let prose: String = prose.split('`').step_by(2).collect();
    assert_eq!(prose.matches('"').count() % 2, 0);
    prose.split('"').skip(1).step_by(2).map(plain).filter(|text| !OF_OTHERS.contains(&text.as_str())).collect()
}

fn is_in_source(message: &str, literals: &BTreeSet<String>, fragments: &BTreeSet<String>) -> bool {
    // A reason is followed by a path or a value.
    let short = message.strip_suffix(" ...").unwrap_or(message);
    literals.contains(short) || literals.iter().any(|literal| is_made_of(message, literal, fragments))
}

fn listed(messages: &[&String]) -> String {
    messages.iter().map(|message| format!("  {message}\n")).collect()
}

/// Only one function makes users' names printable. It knows all characters that a terminal or a reader could take for a command.
#[test]
fn what_others_have_written_is_made_printable_in_one_place() {
    for (path, text) in code() {
        // Text that is refused for its control characters is never shown.
        let is_shown =
            |line: &&str| line.contains("is_control()") && !line.contains("contains(") && !line.contains("any(");
        let wrong: Vec<&str> = text.lines().filter(is_shown).collect();
        assert!(
            wrong.is_empty() || path == Path::new("printable.rs"),
            "{}: use src/printable.rs\n{wrong:#?}",
            path.display()
        );
    }
}

/// Texts whose number of CPUs is never 1, or has a decimal point. `Cpus::in_words` writes all others.
const NEVER_ONE: [&str; 4] = [
    "NodeName={name} CPUs={}",
    "{} of {granted} CPUs were busy on average",
    "{cpus:.2} CPUs",
    "cpus => format!(\", as if {} CPUs",
];

#[test]
fn one_cpu_is_no_cpus() {
    for (path, text) in code() {
        for line in text.lines().filter(|line| line.contains("} CPUs")) {
            assert!(NEVER_ONE.iter().any(|known| line.contains(known)), "{}: {line}", path.display());
        }
    }
}

#[test]
fn every_message_for_an_administrator_stands_in_troubleshooting() {
    let (said, quoted) = (for_administrators(), quoted("troubleshooting.md"));
    assert!(said.len() > 30, "{said:?}");
    let missing: Vec<_> = said.difference(&quoted).collect();
    assert!(missing.is_empty(), "not in docs/troubleshooting.md:\n{}", listed(&missing));
}

#[test]
fn every_message_for_a_user_stands_in_users() {
    let (said, fragments) = (for_users(), fragments());
    assert!(said.len() > 15, "{said:?}");
    let page: Vec<String> = quoted("users.md").into_iter().chain(mentioned("users.md")).collect();
    let is_on_page = |message: &&String| page.iter().any(|text| is_in(text, message, &fragments));
    let missing: Vec<_> = said.iter().filter(|message| !is_on_page(message)).collect();
    assert!(missing.is_empty(), "not in docs/users.md:\n{}", listed(&missing));
}

#[test]
fn every_message_of_a_page_is_in_the_source() {
    let (literals, fragments) = (literals(), fragments());
    for page in ["troubleshooting.md", "users.md"] {
        let (quoted, mentioned) = (quoted(page), mentioned(page));
        let is_said = |message: &String| is_in_source(message, &literals, &fragments);
        // A sentence may mention a few words of a message.
        let is_part = |words: &String| literals.iter().any(|literal| literal.contains(words.as_str()));
        let gone = quoted.iter().filter(|message| !is_said(message));
        let gone: Vec<_> = gone.chain(mentioned.iter().filter(|words| !is_part(words) && !is_said(words))).collect();
        assert!(gone.is_empty(), "docs/{page} has what nothing says:\n{}", listed(&gone));
    }
}

#[test]
fn a_sentence_is_compared_with_its_fragments() {
    let set = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
    let fragments = set(&["of ...", "Ask for more", "...: the end. ..., or less"]);
    let is_made = |text: &str| is_in_source(text, &fragments, &fragments);
    assert!(is_made("...: the end. Ask for more, or less") && is_made("...: the end. of .... Ask for more, or less"));
    assert!(is_made("...: the end. ..., or less"));
    for other in ["...: the end. Ask for much more, or less", "...: the end. Ask for, or less", "...: the end. Ask"] {
        assert!(!is_made(other), "{other}");
    }
    let code = "let a = format!(\"{b} is \\\"c\\\"\"); let d = ['\"', 'e']; f(\"g \\\n   h\")";
    assert_eq!(literals_of(code), set(&["... is \"c\"", "g h"]));
}
