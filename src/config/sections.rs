// SPDX-License-Identifier: GPL-2.0-or-later
//! Sections: what holds for some jobs only.

use std::fmt;

use super::error::ConfigError;
use super::keys::Key;
use super::lexer::Token;
use super::parser::Assignment;
use super::pattern::matches_one;
use super::setting::Setting;
use super::suggest::nearest;
use super::units::keyword_of;
use crate::hostlist::HostList;

/// What a section can be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectionKind {
    /// The partition in which a job runs.
    Partition,
    /// Its quality of service.
    Qos,
    /// Its account.
    Account,
    /// Its project.
    Project,
    /// A type of the vnodes that it has on this node.
    VnodeType,
    /// Its parallel environment.
    Pe,
    /// Its user, by name or number.
    User,
    /// One of its user's groups, by name or number.
    Group,
    /// This node, by its name in slurm.conf; without Slurm, this host.
    Node,
}

/// As they are written. Messages have the first word of each.
pub(super) const KINDS: &[(&str, SectionKind)] = &[
    ("Partition", SectionKind::Partition),
    ("QOS", SectionKind::Qos),
    ("Account", SectionKind::Account),
    ("Project", SectionKind::Project),
    ("VnodeType", SectionKind::VnodeType),
    ("PE", SectionKind::Pe),
    ("User", SectionKind::User),
    ("Group", SectionKind::Group),
    ("Node", SectionKind::Node),
    // Words for sites without partitions, and without slurm.conf.
    ("Queue", SectionKind::Partition),
    ("Host", SectionKind::Node),
];

/// What a header must begin with.
const EXPECTED_KINDS: &str =
    "a section about Partition (or Queue), QOS, Account, Project, VnodeType, PE, User, Group or Node (or Host)";

impl fmt::Display for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(keyword_of(*self, KINDS))
    }
}

/// The jobs that a section is for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    kind: SectionKind,
    /// Accounts and QOS are in lower case: Slurm's database does not distinguish case. Names of nodes and of types of vnodes may be
    /// patterns.
    names: Vec<String>,
    /// For nodes, instead of names that are patterns.
    nodes: Option<HostList>,
}

/// One section of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Section {
    condition: Condition,
    /// As `[Partition=gpu]`, for messages.
    pub header: String,
    /// In the order of the file.
    pub settings: Vec<Setting>,
}

impl Section {
    /// Reads a header.
    pub fn new(header: &Assignment<'_>) -> Result<Self, ConfigError> {
        let Assignment { key: Token { text: kind, at }, value } = *header;
        let Some(&(word, kind)) = KINDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(kind)) else {
            let words = KINDS.iter().map(|(word, _)| *word);
            let hint = nearest(kind, words).map(|word| format!("; did you mean {word}?")).unwrap_or_default();
            return Err(ConfigError::text(at, kind, format!("{EXPECTED_KINDS}{hint}")));
        };
        let refuse = |expected: &str| Err(ConfigError::text(value.at, value.text, expected));
        let header = match value.text.contains([' ', '#']) {
            true => format!("[{word}=\"{}\"]", value.text),
            false => format!("[{word}={}]", value.text),
        };
        let has_patterns = value.text.contains(['*', '?']);
        if kind == SectionKind::Node && !has_patterns {
            let Some(nodes) = HostList::parse(value.text) else {
                return refuse("names of nodes as slurm.conf has them, such as login1,node[01-16]");
            };
            let condition = Condition { kind, names: Vec::new(), nodes: Some(nodes) };
            return Ok(Self { condition, header, settings: Vec::new() });
        }
        let sound = |name: &str| !name.is_empty() && name.trim() == name && !name.contains(char::is_control);
        if !value.text.split(',').all(sound) {
            return refuse("one or more names, separated by commas");
        }
        // Such a section would match no job, without any message.
        if value.text.contains(['[', ']']) {
            return refuse("names without brackets, which only nodes have, and not beside patterns");
        }
        if has_patterns && !matches!(kind, SectionKind::Node | SectionKind::VnodeType) {
            return refuse("names without patterns, which only nodes and types of vnodes have");
        }
        let names = value.text.split(',').map(|name| fold(kind, name)).collect();
        Ok(Self { condition: Condition { kind, names, nodes: None }, header, settings: Vec::new() })
    }

    /// What it is about.
    pub fn kind(&self) -> SectionKind {
        self.condition.kind
    }

    /// Its names; for nodes, only patterns.
    pub fn names(&self) -> &[String] {
        &self.condition.names
    }

    /// Whether it is about nodes, and a node with this name has it.
    pub fn names_node(&self, node: &str) -> bool {
        self.condition.kind == SectionKind::Node && names_of(node).any(|name| self.condition.names_node(name))
    }
}

impl Condition {
    fn names_node(&self, name: &str) -> bool {
        self.nodes.as_ref().map_or_else(|| matches_one(&self.names, name), |nodes| nodes.contains(name))
    }
}

/// A node's name, and the same without its domain.
fn names_of(node: &str) -> impl Iterator<Item = &str> {
    let short = node.split_once('.').map(|(short, _)| short);
    std::iter::once(node).chain(short)
}

pub(super) fn fold(kind: SectionKind, name: &str) -> String {
    match kind {
        SectionKind::Qos | SectionKind::Account => name.to_lowercase(),
        _ => name.to_owned(),
    }
}

/// Why a key may not stand in a section, to complete "expected ..."; `None` if it may. In a section with a wrong header, which has its
/// own error, keys of users may stand.
pub(super) fn refuses(section: Option<&Section>, key: &Key) -> Option<String> {
    if !key.is_per_job() {
        return Some(format!("a key that can differ from job to job; {} stands before the first section", key.name));
    }
    // Otherwise the jobs of one user would take turns in changing the user's own limits.
    let is_users = section.is_none_or(|section| {
        matches!(section.condition.kind, SectionKind::User | SectionKind::Group | SectionKind::Node)
    });
    (key.name.ends_with("PerUser") && !is_users).then(|| {
        format!(
            "a key of jobs; {} is for all of a user's together, so only sections by User, Group, Node or Host have it",
            key.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::section;

    #[test]
    fn a_header_that_nobody_understands_is_refused_with_what_was_meant() {
        for (kind, values, error) in [
            (
                "Partiton",
                "gpu",
                "f:1:2: found \"Partiton\", expected a section about Partition (or Queue), QOS, Account, Project, VnodeType, \
                 PE, User, Group or Node (or Host); did you mean Partition?",
            ),
            (
                "Job",
                "1",
                "f:1:2: found \"Job\", expected a section about Partition (or Queue), QOS, Account, Project, VnodeType, PE, \
                 User, Group or Node (or Host)",
            ),
            ("QOS", "a,,b", "f:1:2: found \"a,,b\", expected one or more names, separated by commas"),
            ("Group", "a, b", "f:1:2: found \"a, b\", expected one or more names, separated by commas"),
            (
                "Partition",
                "gpu[1-2]",
                "f:1:2: found \"gpu[1-2]\", expected names without brackets, which only nodes have, and not beside patterns",
            ),
            (
                "Host",
                "login*,n[1-2]",
                "f:1:2: found \"login*,n[1-2]\", expected names without brackets, which only nodes have, and not beside patterns",
            ),
            (
                "User",
                "test*",
                "f:1:2: found \"test*\", expected names without patterns, which only nodes and types of vnodes have",
            ),
            (
                "node",
                "n[1-",
                "f:1:2: found \"n[1-\", expected names of nodes as slurm.conf has them, such as login1,node[01-16]",
            ),
        ] {
            assert_eq!(section(kind, values).unwrap_err().to_string(), error);
        }
        assert_eq!(section("group", "domain users,x").unwrap().header, "[Group=\"domain users,x\"]");
    }
}
