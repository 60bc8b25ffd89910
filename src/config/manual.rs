// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps jobfence.conf(5) in step with the table of keys. The value, the default and the first paragraph of each key come from the table,
//! and so does the list of keys that stand in no section. All else on the page is written by hand.

use std::{env, fs};

use super::keys::{Config, KEYS, Key, MEANINGS};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/man/jobfence.conf.5");

/// The variable that has the test renew the page.
const RENEW: &str = "JOBFENCE_RENEW";

/// A text of the table in roff. Each line begins a new line, and a long line is wrapped.
fn lines(text: &str) -> Vec<String> {
    let mut roff = String::new();
    let mut is_open = [false, false];
    for c in text.chars() {
        match c {
            '`' | '"' => {
                let (pair, open) =
                    if c == '`' { ([r"\fB", r"\fP"], &mut is_open[0]) } else { ([r"\(lq", r"\(rq"], &mut is_open[1]) };
                roff.push_str(pair[usize::from(*open)]);
                *open = !*open;
            }
            '-' => roff.push_str(r"\-"),
            _ => roff.push(c),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for line in roff.lines() {
        lines.push(String::new());
        for word in line.split_whitespace() {
            match lines.last_mut() {
                Some(line) if line.is_empty() => line.push_str(word),
                Some(line) if line.len() + word.len() < 120 => *line = format!("{line} {word}"),
                _ => lines.push(word.to_owned()),
            }
        }
    }
    assert!(lines.iter().all(|line| !line.starts_with(['.', '\''])), "roff takes a line for a request: {lines:?}");
    lines
}

/// What the value of a key must be, as a sentence.
fn form(key: &Key) -> Vec<String> {
    let first = KEYS.iter().find(|other| other.expects == key.expects && key.expects.len() > 100);
    if let Some(first) = first.filter(|first| first.name != key.name) {
        return lines(&format!("As `{}`.", first.name));
    }
    let words: Vec<&str> = key.expects.split(' ').collect();
    // Whether a word may itself be the value.
    let is_value = |at: usize| {
        let (before, word, behind) = (at.checked_sub(1).map(|at| words[at]), words[at], words.get(at + 1));
        let begins = before.is_none_or(|before| before == "or" || before.ends_with(','));
        let ends = word.ends_with(',') || behind.is_none_or(|behind| *behind == "or");
        begins && ends && key.set(&mut Config::default(), word.trim_end_matches(',')).is_ok()
    };
    let marked = words.iter().enumerate().map(|(at, word)| match (is_value(at), word.strip_suffix(',')) {
        (false, _) => (*word).to_owned(),
        (true, Some(word)) => format!("`{word}`,"),
        (true, None) => format!("`{word}`"),
    });
    let text = marked.collect::<Vec<_>>().join(" ");
    let first = text.find(char::is_alphabetic).filter(|at| *at == 0).map_or(0, |_| 1);
    lines(&format!("{}{}.", text[..first].to_uppercase(), &text[first..]))
}

/// The page as it must be.
fn renewed(page: &str) -> String {
    let mut page: Vec<String> = page.lines().map(str::to_owned).collect();
    let find = |page: &[String], from: usize, what: &dyn Fn(&str) -> bool, name: &str| {
        let found = page.iter().skip(from).position(|line| what(line));
        from + found.unwrap_or_else(|| panic!("no {name} behind line {from} of {PAGE}"))
    };

    let from = 1 + find(&page, 0, &|line| line == ".B What stands in no section.", "list of the node's keys");
    let to = find(&page, from, &|line| line.starts_with(r"\fBMode=off"), "Mode=off");
    let node: Vec<String> = KEYS.iter().filter(|key| !key.is_per_job()).map(|key| format!("`{}`", key.name)).collect();
    let (last, others) = node.split_last().unwrap();
    let list = format!("These keys hold for the whole node:\n{} and {last}.", others.join(", "));
    page.splice(from..to, lines(&list));

    let end = |page: &[String]| find(page, 0, &|line| line == ".SH FILES", "FILES");
    let mut at = find(&page, 0, &|line| line == ".SH KEYS", "KEYS");
    for (number, key) in KEYS.iter().enumerate() {
        let of = |key: &Key, page: &[String]| page.iter().position(|line| *line == format!(".B {}", key.name));
        let begin = of(key, &page).unwrap_or_else(|| {
            // A new key goes before the next key of the table.
            let next = KEYS[number + 1..].iter().find_map(|next| of(next, &page));
            let place = next.map_or_else(|| end(&page), |next| next - 1);
            page.splice(place..place, [".TP".to_owned(), format!(".B {}", key.name), "Default: not set.".to_owned()]);
            place + 1
        });
        assert!(begin > at && page[begin - 1] == ".TP", "{} is not at its place in the order of the table", key.name);
        let default = find(&page, begin, &|line| line.starts_with("Default: "), "default");
        let mut entry = form(key);
        entry.push(match key.default_value() {
            Some(path) if path.starts_with('/') => format!(r"Default: \fI{path}\fP."),
            Some(value) => lines(&format!("Default: `{value}`.")).concat(),
            // A default that depends on the host is described by hand.
            None => page[default].clone(),
        });
        let mut to = default + 1;
        // The paragraphs about keys of numbers are written by hand.
        if let Some((.., meaning)) = MEANINGS.iter().find(|(name, ..)| *name == key.name) {
            entry.push(".IP".to_owned());
            entry.extend(lines(meaning));
            if page[to] == ".IP" {
                to = find(&page, to + 1, &|line| line.starts_with('.'), "end of the paragraph");
            }
        }
        page.splice(begin + 1..to, entry);
        at = begin;
    }
    page.join("\n") + "\n"
}

#[test]
fn jobfence_conf_5_is_as_the_table_of_keys() {
    let page = fs::read_to_string(PAGE).unwrap();
    let renewed = renewed(&page);
    if env::var_os(RENEW).is_some() {
        return fs::write(PAGE, renewed).unwrap();
    }
    let differs = (1..).zip(page.lines().zip(renewed.lines())).find(|(_, (is, should))| is != should);
    assert!(
        page == renewed,
        "docs/man/jobfence.conf.5 is not as the table of keys says: {differs:?}. {RENEW}=1 cargo test --lib \
         jobfence_conf_5 renews it. Then read the page, and add what the administrator needs to know of the key."
    );
    let keys = page.split_once(".SH KEYS").unwrap().1;
    for name in keys.split(".TP\n.B ").skip(1).filter_map(|entry| entry.lines().next()) {
        // The values of a key stand below it in the same form, in lower case.
        let is_key = KEYS.iter().any(|key| key.name == name);
        assert!(is_key || name.starts_with(char::is_lowercase), "{name} is no key");
    }
}
