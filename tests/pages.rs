// SPDX-License-Identifier: GPL-2.0-or-later
//! What readers of the pages would stumble over: too long lines, a too long README, links and files that lead nowhere, misspelt words, and
//! manual pages that do not parse.
//!
//! `tests/pages.py` runs the commands of the pages.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

#[path = "common/skip.rs"]
mod skip;
use skip::skip;

const WIDTH: usize = 100;
const README_LINES: usize = 120;

/// How the name of a source file begins on a page.
const SOURCES: [&str; 6] = ["src/", "tests/", "docs/", "benches/", "fuzz/", "plugstack/"];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page of the repository, by its path.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    for directory in ["", "docs", "docs/install", "tests/vm"] {
        for entry in fs::read_dir(top().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(top()).unwrap().display().to_string();
                pages.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(pages.contains_key("README.md") && pages.contains_key("docs/install/slurm.md"), "{:?}", pages.keys());
    pages
}

/// The lines outside fenced blocks, each with its number.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// The parts of a line between backticks, and the line without them.
fn apart(line: &str) -> (Vec<&str>, String) {
    let (code, text): (Vec<_>, Vec<_>) = line.split('`').enumerate().partition(|(index, _)| index % 2 == 1);
    (code.into_iter().map(|(_, part)| part).collect(), text.into_iter().map(|(_, part)| part).collect())
}

/// The targets of a page's links, each with the number of the line on which it ends. A link may begin on the line before.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let (_, line) = apart(line);
        let ends = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(ends.map(|(target, _)| (number, target.to_owned())));
    }
    found
}

/// The anchors of a page: its headings in the form of a link.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text)
        .filter_map(|(_, line)| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let kept = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == ' ';
    headings
        .map(|heading| heading.chars().filter(|c| kept(*c)).collect::<String>().to_lowercase().replace(' ', "-"))
        .collect()
}

/// The target of a relative link, from the top.
fn resolved(page: &str, target: &str) -> String {
    let mut path = PathBuf::new();
    for part in Path::new(page).parent().unwrap().join(target).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{page}: {target} leads out of the repository"),
            part => path.push(part),
        }
    }
    path.display().to_string()
}

#[test]
fn no_line_is_too_long() {
    let mut wrong = Vec::new();
    for (name, text) in pages() {
        let long = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > WIDTH);
        wrong.extend(long.map(|(number, line)| format!("{name}:{number}: {line}")));
    }
    assert!(wrong.is_empty(), "at most {WIDTH} characters to a line:\n{}", wrong.join("\n"));
}

/// A figure that is still to be measured has such a name while a page is written.
#[test]
fn no_page_has_a_gap() {
    let gaps: Vec<String> = pages()
        .iter()
        .flat_map(|(page, text)| text.lines().map(move |line| (page, line)))
        .filter(|(_, line)| line.starts_with("@@") && line.ends_with("@@"))
        .map(|(page, line)| format!("{page}: {line}"))
        .collect();
    assert!(gaps.is_empty(), "{gaps:?}");
}

#[test]
fn the_readme_is_read_in_one_go() {
    let lines = pages()["README.md"].lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines, and may have {README_LINES}: move something to docs/");
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut wrong = Vec::new();
    for (name, text) in &pages {
        for (number, target) in links(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { name.clone() } else { resolved(name, file) };
            if !top().join(&file).exists() {
                wrong.push(format!("{name}:{number}: there is no {file}"));
            } else if !anchor.is_empty()
                && !pages.get(&file).is_some_and(|text| anchors(text).iter().any(|a| a == anchor))
            {
                wrong.push(format!("{name}:{number}: {file} has no heading #{anchor}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_that_is_named_is_there() {
    let mut wrong = Vec::new();
    for (name, text) in &pages() {
        for (number, line) in prose(text) {
            for path in apart(line).0 {
                let is_path = SOURCES.iter().any(|source| path.starts_with(source)) && !path.contains([' ', '*', '<']);
                if is_path && !top().join(path).exists() {
                    wrong.push(format!("{name}:{number}: there is no {path}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Words that codespell takes for misspelt: two of roff's, one of Rust's, and a daemon.
const SPELT: &str = "bu,te,crate,startd";

/// A program's output for these files. `None`: it is not installed, and the test is skipped.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let done = match Command::new(program).args(arguments).current_dir(top()).output() {
        Ok(done) => done,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip(&format!("{program} is not installed (tests/need host installs it)"));
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    // A program that fails without output has not checked anything.
    assert!(done.status.success() || !said.is_empty(), "{program}: {}", done.status);
    Some(said)
}

const PAGES: [&str; 3] = ["docs/man/jobfence.1", "docs/man/jobfence.8", "docs/man/jobfence.conf.5"];

/// man(1) leaves two of a terminal's 80 columns free.
#[test]
fn manual_pages_have_place_in_80_columns() {
    for page in PAGES {
        let Some(said) = said_by("groff", &["-man", "-t", "-Tutf8", "-P-c", "-rLL=78n", "-ww", page]) else { return };
        // A terminal has no pages that end within a table.
        let is_wrong = |line: &&str| line.contains("warning: ") && !line.contains("will not fit on one page");
        let mut wrong: Vec<String> = said.lines().filter(is_wrong).map(str::to_owned).collect();
        for line in said.lines() {
            // A bold letter is printed twice, with a backspace between.
            let mut shown = String::new();
            for c in line.chars() {
                if c == '\u{8}' { _ = shown.pop() } else { shown.push(c) }
            }
            if shown.chars().count() > 80 {
                wrong.push(shown);
            }
        }
        assert!(wrong.is_empty(), "{page}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn manual_pages_parse_and_no_word_is_misspelt() {
    let pages = PAGES;
    let found = fs::read_dir(top().join("docs/man")).unwrap().count();
    assert_eq!(found, pages.len(), "docs/man has another page: name it here");
    let lint = said_by("mandoc", &[&["-T", "lint", "-W", "warning"], &pages[..]].concat());
    let spelling = said_by("codespell", &["--ignore-words-list", SPELT, "README.md", "docs"]);
    let said = [lint, spelling].into_iter().flatten().collect::<String>();
    assert!(said.is_empty(), "{said}");
}

/// The ways in which a user can try to leave a job, in the table's order.
const WAYS_OUT: [&str; 12] = [
    "ssh to a node, own",
    "ssh to a node, overlay",
    "qrsh by `sshd -i`",
    "su",
    "cron",
    "`@reboot` of cron",
    "at",
    "tmux",
    "`systemd-run --user`",
    "Docker's socket",
    "Docker by our link",
    "podman without root",
];

/// The rows of the first table below a heading, without the table's head.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let section = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}")).1;
    let table = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let words = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect();
    table.skip(2).map(words).collect()
}

/// All files below a directory with this ending, as one text.
fn sources(directory: &Path, end: &str) -> String {
    let of = |path: PathBuf| match path.is_dir() {
        true => sources(&path, end),
        false if path.to_string_lossy().ends_with(end) => fs::read_to_string(path).unwrap(),
        false => String::new(),
    };
    fs::read_dir(directory).unwrap().map(|entry| of(entry.unwrap().path())).collect()
}

#[test]
fn each_way_out_of_a_job_is_in_the_table_and_has_a_test() {
    let pages = pages();
    let ways = rows(&pages["docs/limitations.md"], "## Ways out of a job");
    assert_eq!(ways.iter().map(|row| row[0]).collect::<Vec<_>>(), WAYS_OUT);
    for row in &ways {
        let [way, before, remedy, then] = row.as_slice() else { panic!("{row:?}") };
        let said =
            |outcome: &str| ["in its job", "in a job", "refused", "open"].iter().any(|word| outcome.contains(word));
        assert!(said(before) && (said(then) || remedy.is_empty()), "{way}: {before}, {then}");
        assert!(!before.contains("open") || !then.contains("open"), "{way}: no remedy closes it");
    }
    let tests = rows(&pages["docs/tests.md"], "### The ways out of a job");
    let of = |end| sources(&top().join("tests"), end);
    let (rust, python) = (of(".rs"), of(".py"));
    for row in &tests {
        let [way, test] = row.as_slice() else { panic!("{row:?}") };
        assert!(WAYS_OUT.contains(way), "{way} is no row of the table");
        let test = test.trim_matches('`');
        let is_test =
            rust.contains(&format!("#[test]\nfn {test}()")) || python.contains(&format!("\ndef {test}(site)"));
        assert!(is_test, "{way}: there is no test {test}");
    }
    for way in WAYS_OUT {
        assert!(tests.iter().any(|row| row[0] == way), "{way} has no test");
    }
    let cases = fs::read_to_string(top().join("tests/gridengine/suite/sessions.py")).unwrap();
    for (case, _) in cases.split("@case\ndef ").skip(1).filter_map(|rest| rest.split_once('(')) {
        assert!(tests.iter().any(|row| row[1] == format!("`{case}`")), "{case} is in no row of the table");
    }
}
