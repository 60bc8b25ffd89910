// SPDX-License-Identifier: GPL-2.0-or-later
//! Names in sections that this host or its schedulers do not know: a section with such a name never applies.

use std::path::Path;

use jobfence::config::{Named, SectionKind, nearest};
use jobfence::hostlist::HostList;
use nix::unistd::{Group, User};

/// A line with more node names is not searched.
const MOST_NODES: usize = 100_000;

/// Whether one of these sections is of one of these kinds.
pub fn have(sections: &[Named<'_>], kinds: &[SectionKind]) -> bool {
    sections.iter().any(|section| kinds.contains(&section.kind()))
}

/// The names that exist. `None`: not known.
#[derive(Default)]
pub struct KnownNames {
    /// One list for each scheduler here.
    pub partitions: Vec<Option<Vec<String>>>,
    /// Those that exist among the names in sections, in lower case.
    pub qos: Option<Vec<String>>,
    /// Like `qos`.
    pub accounts: Option<Vec<String>>,
    /// The file with the lists of nodes, and those lists.
    pub nodes: Option<(&'static str, Vec<String>)>,
    pub projects: Option<Vec<String>>,
    pub environments: Option<Vec<String>>,
}

impl KnownNames {
    /// A sentence for each unknown name of a section.
    pub fn unknown_of(&self, section: &Named<'_>) -> Vec<String> {
        let header = section.header();
        let sentence = |who: &str, what: &str, name: &str, near: Option<&str>| {
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("{header}: {who} no {what} {name}{near}")
        };
        let among = |known: Option<&[String]>, what: &str| -> Vec<String> {
            let Some(known) = known else { return Vec::new() };
            let missing = section.names().iter().filter(|name| !known.contains(name));
            let near = |name: &str| nearest(name, known.iter().map(String::as_str));
            missing.map(|name| sentence("there is", what, name, near(name))).collect()
        };
        match section.kind() {
            SectionKind::User => {
                let is_there = |name: &str| !matches!(User::from_name(name), Ok(None));
                local(section, is_there, "passwd", |name, near| sentence("this host knows", "user", name, near))
            }
            SectionKind::Group => {
                let is_there = |name: &str| !matches!(Group::from_name(name), Ok(None));
                local(section, is_there, "group", |name, near| sentence("this host knows", "group", name, near))
            }
            SectionKind::Partition => {
                let all: Option<Vec<Vec<String>>> = self.partitions.iter().cloned().collect();
                among(all.filter(|all| !all.is_empty()).map(|all| all.concat()).as_deref(), "partition or queue")
            }
            SectionKind::Qos => among(self.qos.as_deref(), "QOS"),
            SectionKind::Account => among(self.accounts.as_deref(), "account"),
            SectionKind::Project => among(self.projects.as_deref(), "project"),
            SectionKind::Pe => among(self.environments.as_deref(), "parallel environment"),
            SectionKind::Node => {
                let is_named = |list: &String| {
                    // A list that is too long to search may contain any.
                    HostList::parse(list)
                        .and_then(|list| list.names(MOST_NODES))
                        .is_none_or(|names| names.iter().any(|name| section.names_node(name)))
                };
                match &self.nodes {
                    Some((file, lists)) if !lists.iter().any(is_named) => {
                        vec![format!("{header}: {file} has no such node")]
                    }
                    _ => Vec::new(),
                }
            }
            SectionKind::VnodeType => Vec::new(),
        }
    }
}

/// Users and groups that this host's database does not know. Similar names are searched for only in the local file: a server may have very
/// many.
fn local(
    section: &Named<'_>,
    is_there: impl Fn(&str) -> bool,
    file: &str,
    sentence: impl Fn(&str, Option<&str>) -> String,
) -> Vec<String> {
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let missing = section.names().iter().filter(|name| !is_number(name) && !is_there(name));
    let text = std::fs::read_to_string(Path::new("/etc").join(file)).unwrap_or_default();
    let names = || text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    missing.map(|name| sentence(name, nearest(name, names()))).collect()
}
