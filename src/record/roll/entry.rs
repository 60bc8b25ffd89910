// SPDX-License-Identifier: GPL-2.0-or-later
//! One line of the roll: what it names, and whose that is.

use crate::sys::process::Owner;

/// What a line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A record: the names of a step's directories, with commas.
    Step,
    /// The scheduler's directory of a step, by its path.
    Theirs,
    /// A batch step's record of its job, by its name in `RunDir/jobs`.
    Job,
    /// A step without a fence, by its name in `RunDir/tracked`.
    Tracked,
}

const KINDS: [(EntryKind, &str); 4] = [
    (EntryKind::Step, "step"),
    (EntryKind::Theirs, "theirs"),
    (EntryKind::Job, "job"),
    (EntryKind::Tracked, "tracked"),
];

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The owner of what it names.
    pub owner: Owner,
    /// The owner's pid namespace.
    pub pid_namespace: String,
    /// What it names.
    pub kind: EntryKind,
    /// Its name.
    pub name: String,
}

impl Entry {
    /// The line without the sign before it.
    pub(super) fn text(&self) -> Option<String> {
        let word = KINDS.iter().find(|(kind, _)| *kind == self.kind)?.1;
        let plain = |text: &str| !text.contains(char::is_control) && !text.is_empty();
        (plain(&self.name) && plain(&self.pid_namespace) && !self.pid_namespace.contains(' '))
            .then(|| format!("{} {} {} {word} {};", self.owner.pid, self.owner.start, self.pid_namespace, self.name))
    }

    /// Reads a line that is not struck out.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("+ ")?.strip_suffix(';')?.splitn(5, ' ');
        let owner = Owner { pid: words.next()?.parse().ok()?, start: words.next()?.parse().ok()? };
        let pid_namespace = words.next()?.to_owned();
        let word = words.next()?;
        let kind = KINDS.iter().find(|(_, theirs)| *theirs == word)?.0;
        let name = words.next().filter(|name| !name.is_empty())?.to_owned();
        (owner.pid > 0).then_some(Self { owner, pid_namespace, kind, name })
    }
}
