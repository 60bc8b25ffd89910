// SPDX-License-Identifier: GPL-2.0-or-later
//! The parts of jobfence(8) and jobfence(1) that come from the definition of the command line: usage and options of each command.
//!
//! In a page such a part stands between two comments, `.\" usage of COMMAND`, `.\" options of COMMAND` or `.\" brief options of COMMAND`,
//! and `.\" end`. The test fails if a part is not what the definition says. With `WRITE_MANUAL=1` in its environment it writes the parts anew.

use std::collections::HashMap;
use std::fs;

use clap::{Arg, Command, CommandFactory};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/man/jobfence.8");
/// The page for users.
const BRIEF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/man/jobfence.1");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/man/jobfence.conf.5");
/// The command whose options all others share: these have a section of their own in the page.
const COMMON: &str = "reap";

fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| !argument.is_hide_set())
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn values(argument: &Arg) -> Vec<&str> {
    if !argument.get_action().takes_values() {
        return Vec::new();
    }
    argument.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect()
}

/// The argument as a user types it: `-v, --verbose`, `--user USER` or `JOB`.
fn typed(argument: &Arg) -> String {
    let value = values(argument).iter().map(|name| format!("\\fI{name}\\fP")).collect::<Vec<_>>().join(" ");
    let long = argument.get_long_and_visible_aliases().into_iter().flatten().map(|name| format!("--{name}"));
    let names = argument.get_short().map(|name| format!("-{name}")).into_iter().chain(long);
    let all: Vec<_> = names.map(|name| format!("\\fB{}\\fP {value}", escaped(&name)).trim_end().to_owned()).collect();
    if all.is_empty() { value } else { all.join(", ") }
}

/// The name of an option without its value, or the word for a value.
fn name(argument: &Arg) -> String {
    argument.get_long().map_or_else(|| typed(argument), |name| format!("\\fB\\-\\-{}\\fP", escaped(name)))
}

/// A word in the fonts of manual pages: an option, a key, a variable, another page or a file.
fn in_font(word: &str, values: &[&str], keys: &str) -> String {
    let is_mark = |c: char| ".,;:()[]'\"".contains(c);
    let begin = word.len() - word.trim_start_matches(is_mark).len();
    let is_section = |at: &usize| *at > begin && word[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let is_page = word.find('(').filter(is_section);
    let end = begin + word[begin..].trim_end_matches(is_mark).len();
    let (end, rest) = is_page.map_or((end, end), |at| (at, at));
    let (before, name, after) = (&word[..begin], &word[begin..end], &word[rest..]);
    let key = name.split('=').next().unwrap_or_default();
    let is_variable = key.contains('_') && key.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_key = key.starts_with(char::is_uppercase) && keys.contains(&format!("\n.B {key}\n"));
    let font = if name.starts_with('-') || is_variable || is_key || is_page.is_some() {
        'B'
    } else if values.contains(&name) || name.starts_with('/') || name.ends_with(".conf") {
        'I'
    } else {
        return word.replace('\\', "\\e").replace("\"", "\\(dq");
    };
    format!("{before}\\f{font}{}\\fP{after}", escaped(name)).replace('"', "\\(dq")
}

/// A text with a line for each sentence.
fn in_lines(text: &str, values: &[&str], keys: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentences = flat.replace(". ", ".\n");
    let marked = |sentence: &str| sentence.split(' ').map(|word| in_font(word, values, keys)).collect::<Vec<_>>();
    // A line that begins with a quotation mark would be a request of roff's.
    let safe = |line: String| if line.starts_with('\'') { format!("\\&{line}\n") } else { line + "\n" };
    sentences.lines().map(|sentence| safe(marked(sentence).join(" "))).collect()
}

/// The text for `--help` as roff: a line for each sentence.
fn described(argument: &Arg, keys: &str) -> String {
    let text = argument.get_long_help().or(argument.get_help()).expect("a text").to_string();
    let (first, more) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut first = first.trim_end_matches('.').to_owned();
    let possible: Vec<_> = argument.get_possible_values();
    if argument.get_action().takes_values() && !possible.is_empty() {
        let names: Vec<_> = possible.iter().map(|value| value.get_name()).collect();
        first += &format!(" [possible values: {}]", names.join(", "));
    }
    let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if argument.get_action().takes_values() && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        first += &format!(" [default: {}]", defaults.join(" "));
    }
    let names = values(argument);
    in_lines(&format!("{first}."), &names, keys) + &in_lines(more, &names, keys)
}

/// The usage and the summary of a command.
fn usage(command: &Command, keys: &str) -> String {
    let mut text = format!("\\fBjobfence {}\\fP [\\fIOPTION\\fP]...", escaped(command.get_name()));
    for argument in shown(command).filter(|argument| argument.is_required_set() || argument.is_positional()) {
        let many = if argument.get_num_args().is_some_and(|range| range.max_values() > 1) { "..." } else { "" };
        let last = if argument.is_last_set() { "\\fB\\-\\-\\fP " } else { "" };
        let word = format!("{last}{}{many}", typed(argument));
        text += &if argument.is_required_set() { format!(" {word}") } else { format!(" [{word}]") };
    }
    format!("{text}\n.PP\n{}", in_lines(&format!("{}.", command.get_about().expect("a summary")), &[], keys))
}

/// The options of a command. One that an earlier command has with the same text is not described again.
fn options(command: &Command, keys: &str, before: &mut HashMap<(String, String), String>) -> String {
    let (mut text, mut known) = (String::new(), Vec::<(String, Vec<String>)>::new());
    for argument in shown(command) {
        let entry = (typed(argument), described(argument, keys));
        match before.get(&entry) {
            Some(place) if place == COMMON => {}
            Some(place) => match known.iter_mut().find(|(other, _)| other == place) {
                Some((_, names)) => names.push(name(argument)),
                None => known.push((place.clone(), vec![name(argument)])),
            },
            None => {
                text += &format!(".TP\n{}\n{}", entry.0, entry.1);
                before.insert(entry, command.get_name().to_owned());
            }
        }
    }
    for (place, names) in known {
        let are = if names.len() == 1 { "is" } else { "are" };
        text += &format!(".PP\n{}\n{are} as for \\fB{}\\fP.\n", names.join(", "), escaped(&place));
    }
    text
}

#[test]
fn the_manual_has_the_commands_and_options_as_they_are_defined() {
    let (page, keys) = (fs::read_to_string(PAGE).unwrap(), fs::read_to_string(KEYS).unwrap());
    let program = crate::Cli::command();
    let named = |name: &str| program.find_subcommand(name).unwrap_or_else(|| panic!("jobfence has no {name}"));
    let mut before = HashMap::new();
    let common = options(named(COMMON), &keys, &mut before);
    let mut with_usage = Vec::new();
    let written = filled(&page, &mut |what, name| match what {
        "usage" => {
            with_usage.push(name.to_owned());
            Some(usage(named(name), &keys))
        }
        "options" if name == COMMON => Some(common.clone()),
        "options" => Some(options(named(name), &keys, &mut before)),
        _ => None,
    });
    let all = || program.get_subcommands().map(Command::get_name);
    let without: Vec<_> = all().filter(|name| !with_usage.iter().any(|known| known == name)).collect();
    assert!(without.is_empty(), "jobfence(8) has no usage of {without:?}");
    let is_new = |argument: &Arg| !before.contains_key(&(typed(argument), described(argument, &keys)));
    let without: Vec<_> = all().filter(|name| shown(named(name)).any(is_new)).collect();
    assert!(without.is_empty(), "jobfence(8) has not all options of {without:?}");
    same(PAGE, &page, &written);
}

#[test]
fn the_page_for_users_has_their_commands_as_they_are_defined() {
    let (page, keys) = (fs::read_to_string(BRIEF).unwrap(), fs::read_to_string(KEYS).unwrap());
    let program = crate::Cli::command();
    let named = |name: &str| program.find_subcommand(name).unwrap_or_else(|| panic!("jobfence has no {name}"));
    let mut commons = HashMap::new();
    options(named(COMMON), &keys, &mut commons);
    let mut found = Vec::new();
    let written = filled(&page, &mut |what, name| {
        found.push(format!("{what} of {name}"));
        match what {
            "usage" => Some(usage(named(name), &keys)),
            "brief options" => Some(brief(named(name), &keys, &commons)),
            _ => None,
        }
    });
    assert!(found.iter().any(|part| part == "brief options of report"), "{found:?}");
    same(BRIEF, &page, &written);
}

/// The options of a command in a line each, without those that all commands have, and the same once.
fn brief(command: &Command, keys: &str, commons: &HashMap<(String, String), String>) -> String {
    let is_own = |argument: &&Arg| {
        !argument.is_positional() && !commons.contains_key(&(typed(argument), described(argument, keys)))
    };
    let line = |argument: &Arg| {
        let help = argument.get_help().expect("a text").to_string();
        format!(
            ".TP\n{}\n{}",
            typed(argument),
            in_lines(&format!("{}.", help.trim_end_matches('.')), &values(argument), keys)
        )
    };
    shown(command).filter(is_own).map(line).collect()
}

/// A page with the parts that `part` makes of what stands before and after ` of ` in a mark. `None`: it is no mark.
fn filled(page: &str, part: &mut dyn FnMut(&str, &str) -> Option<String>) -> String {
    let (mut written, mut rest) = (String::new(), page);
    while let Some((text, tail)) = rest.split_once("\n.\\\" ") {
        let (mark, tail) = tail.split_once('\n').unwrap();
        written += &format!("{text}\n.\\\" {mark}\n");
        rest = tail;
        let Some(part) = mark.split_once(" of ").and_then(|(what, name)| part(what, name)) else { continue };
        let (_, tail) = rest.split_once(".\\\" end\n").unwrap_or_else(|| panic!("{mark}: no end"));
        written += &(part + ".\\\" end");
        rest = &rest[rest.len() - tail.len() - 1..];
    }
    written + rest
}

/// Writes the page if that is wanted, and fails if it was another one.
fn same(place: &str, page: &str, written: &str) {
    if std::env::var_os("WRITE_MANUAL").is_some() {
        fs::write(place, written).unwrap();
    }
    let is_other = |(left, right): &(&str, &str)| left != right;
    let other = page.lines().zip(written.lines()).find(is_other);
    assert!(
        page == written,
        "{place} is not what the definition says; `WRITE_MANUAL=1 cargo test --bin jobfence manual` writes it: {other:?}"
    );
}

/// A terminal has 80 columns, and clap wraps nothing.
#[test]
fn long_help_has_place_in_80_columns() {
    let mut program = crate::help::readable(crate::Cli::command());
    for command in program.get_subcommands_mut() {
        let is_long = shown(command).any(|argument| argument.get_long_help().is_some());
        let help = command.render_long_help().to_string();
        let wrong: Vec<_> =
            help.lines().filter(|line| is_long && line.starts_with("    ") && line.chars().count() > 80).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", command.get_name());
    }
}
