// SPDX-License-Identifier: GPL-2.0-or-later
//! `docs/troubleshooting.md` and `docs/users.md` have every message that jobfence says by itself, and no other.
//!
//! A message is what stands in a call that writes to a log, to stderr or to the user's job. A page quotes it in a block
//! of `text`, with `...` for each part that varies. Reasons, which stand within such messages, are quoted as well; they
//! are too many to have all of them on a page, so they are only looked for in the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "common/sources.rs"]
mod sources;
use sources::sources;

/// What writes for administrators.
const CALLS: [&str; 4] = ["log::error!(", "log::warn!(", "log::info!(", "eprintln!("];
/// What writes for users.
const USER_CALLS: [&str; 1] = ["tell_user("];
/// Where sentences for users are put together. Fragments of sentences are not quoted.
const USER_FILES: [&str; 2] = ["report.rs", "launch/tell.rs"];
const LEAST_WORDS: usize = 6;

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What is not compiled for tests alone, without comments.
fn code() -> Vec<(PathBuf, String)> {
    let without = |text: &str| {
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    };
    sources().into_iter().map(|(path, text)| (path, without(&text))).collect()
}

/// The literal with which a text begins, if it begins with one, perhaps within `&format!(`.
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

/// With `...` for what varies, and without the name that begins every line.
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
    // Parts that follow each other, and the full stop behind them, are one.
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
    let mut found = BTreeSet::new();
    for (path, code) in code() {
        found.extend(calls(&code, &USER_CALLS));
        if USER_FILES.iter().any(|file| path == Path::new(file)) {
            let sentences = calls(&code, &["format!("]);
            found.extend(sentences.into_iter().filter(|text| text.split_whitespace().count() >= LEAST_WORDS));
        }
    }
    found
}

/// Every literal of the source.
fn literals() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, code) in code() {
        let quotes = code.match_indices('"').filter(|(at, _)| !code[..*at].ends_with('\\'));
        found.extend(quotes.filter_map(|(at, _)| literal(&code[at..])).map(|text| plain(&text)));
    }
    found
}

/// The messages that a page quotes: in blocks of `text`, with an empty line between two.
fn quoted(page: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(top().join("docs").join(page)).unwrap();
    let blocks = page.split("\n```text\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    blocks.flat_map(|block| block.split("\n\n")).map(plain).collect()
}

fn is_in_source(message: &str, literals: &BTreeSet<String>) -> bool {
    // A reason has a path or a value behind it.
    literals.contains(message) || message.strip_suffix(" ...").is_some_and(|message| literals.contains(message))
}

fn listed(messages: &[&String]) -> String {
    messages.iter().map(|message| format!("  {message}\n")).collect()
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
    let (said, quoted) = (for_users(), quoted("users.md"));
    assert!(said.len() > 5, "{said:?}");
    let missing: Vec<_> = said.difference(&quoted).collect();
    assert!(missing.is_empty(), "not in docs/users.md:\n{}", listed(&missing));
}

#[test]
fn every_message_of_a_page_is_in_the_source() {
    let literals = literals();
    for page in ["troubleshooting.md", "users.md"] {
        let quoted = quoted(page);
        let gone: Vec<_> = quoted.iter().filter(|message| !is_in_source(message, &literals)).collect();
        assert!(gone.is_empty(), "docs/{page} has what nothing says:\n{}", listed(&gone));
    }
}
