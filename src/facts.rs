// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known about a job beside its grant. Sections of the configuration are chosen by it.
//!
//! A fact is known if a user cannot forge it; the code that sets it names its source. If no trusted source gives it, it is
//! [`Fact::Unknown`], and not guessed: then the strictest of all possible values applies.

/// A value from a trusted source, or only from the job's user, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fact<T> {
    /// It is certain. An empty text: there certainly is none, as an account where the cluster has no accounts.
    Known(T),
    /// The job's user says so, and no trusted source has checked it: for reports; it counts only if the site says so.
    Claimed(T),
    /// No trusted source gives it.
    #[default]
    Unknown,
}

impl<T> Fact<T> {
    /// The value, if certain.
    pub fn known(&self) -> Option<&T> {
        self.counts(false)
    }

    /// The fact if its value was checked; otherwise only a claim.
    #[must_use]
    pub fn if_checked(self, is_checked: bool) -> Self {
        match self {
            Self::Known(value) if !is_checked => Self::Claimed(value),
            other => other,
        }
    }

    /// The value, certain or claimed.
    pub fn said(&self) -> Option<&T> {
        self.counts(true)
    }

    /// The value, if certain or, with `users_are_trusted`, claimed.
    pub fn counts(&self, users_are_trusted: bool) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Claimed(value) if users_are_trusted => Some(value),
            Self::Claimed(_) | Self::Unknown => None,
        }
    }
}

impl<T> From<Option<T>> for Fact<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unknown, Self::Known)
    }
}

/// The GPUs of this node that a job has. Slurm numbers them from 0, in an order that may differ from that of the numbers in their device
/// names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Gpus {
    /// The job has none, or no source says so.
    #[default]
    None,
    /// These, by Slurm's numbers, each with the path of its device.
    Devices(Vec<(u32, String)>),
    /// These, by Slurm's numbers; and why their devices are not certain.
    Positions(Vec<u32>, String),
    /// Some; and why it is not certain which.
    Unknown(String),
    /// The devices with these paths: jobfence chose them since the scheduler gave only their number, or the scheduler named them another
    /// way.
    Chosen(Vec<String>),
}

impl Gpus {
    /// How many they are. `None`: not known.
    pub fn count(&self) -> Option<u64> {
        let count = match self {
            Self::None | Self::Unknown(_) => return None,
            Self::Devices(devices) => devices.len(),
            Self::Positions(positions, _) => positions.len(),
            Self::Chosen(paths) => paths.len(),
        };
        u64::try_from(count).ok()
    }
}

/// The most bytes of a job's name that are kept.
const LONGEST_JOB_NAME: usize = 200;

/// A job's name, which its user has chosen. A long name is cut, and an empty one is none.
pub fn job_name(text: &str) -> Fact<String> {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end <= LONGEST_JOB_NAME).last();
    end.and_then(|end| text.get(..end)).map_or(Fact::Unknown, |name| Fact::Claimed(name.to_owned()))
}

/// What is known about a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The partition in which it runs, not the list that was requested.
    pub partition: Fact<String>,
    /// Its quality of service, by name.
    pub qos: Fact<String>,
    /// Its account.
    pub account: Fact<String>,
    /// Its project, if the scheduler has projects.
    pub project: Fact<String>,
    /// What its user calls it: see [`job_name`].
    pub job_name: Fact<String>,
    /// Its name among the jobs of all submitting hosts, where its id is one of several.
    pub global_job: Fact<String>,
    /// The types of its parts of this node, if the scheduler has such types. Empty: there certainly are none.
    pub vnode_types: Fact<Vec<String>>,
    /// The parallel environment that grants its slots, if the scheduler has such. Empty: there certainly is none.
    pub pe: Fact<String>,
    /// Its user's uid.
    pub uid: Fact<u32>,
    /// Its user's name.
    pub user: Fact<String>,
    /// The gids of its user.
    pub gids: Fact<Vec<u32>>,
    /// For each group in question, by name, whether the user is in it; a missing one is unknown.
    pub groups: Vec<(String, bool)>,
    /// This node's name in slurm.conf; without Slurm, this host's.
    pub node: Fact<String>,
    /// Its GPUs on this node.
    pub gpus: Gpus,
    /// Its hardware threads on this node. `None`: not known.
    pub cpus: Option<u32>,
}

impl Facts {
    /// Whether the user is in a group in question, by name. `None`: unknown.
    pub fn group(&self, name: &str) -> Option<bool> {
        self.groups.iter().find(|(known, _)| known == name).map(|(_, has)| *has)
    }

    /// The facts of something that the scheduler has not allocated: it certainly has none of what a scheduler assigns.
    #[must_use]
    pub fn of_no_job(self) -> Self {
        let none = || Fact::Known(String::new());
        Self { partition: none(), qos: none(), account: none(), gpus: Gpus::None, cpus: None, ..self }
            .of_no_project_vnode_or_pe()
    }

    /// The facts with a scheduler without projects, vnode types and parallel environments: there certainly are none, which is no reason to
    /// be strict.
    #[must_use]
    pub fn of_no_project_vnode_or_pe(self) -> Self {
        let none = || Fact::Known(String::new());
        Self { project: none(), vnode_types: Fact::Known(Vec::new()), pe: none(), ..self }
    }
}

/// The facts that sections depend on; no others need be found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FactsNeeded {
    /// The partition, the QOS or the account.
    pub job: bool,
    /// The user's name.
    pub user: bool,
    /// The user's gids.
    pub gids: bool,
    /// These groups by name.
    pub groups: Vec<String>,
    /// The node.
    pub node: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_name_is_its_users_and_bounded() {
        let name = |text: &str| job_name(text).said().cloned();
        assert_eq!(job_name("a \n\u{1b}"), Fact::Claimed("a \n\u{1b}".to_owned()));
        assert_eq!(name(""), None);
        assert_eq!(name(&"n".repeat(200)).map(|name| name.len()), Some(200));
        // Two bytes each: none is cut in the middle.
        assert_eq!(name(&format!("n{}", "ä".repeat(200))).map(|name| name.len()), Some(199));
    }
}
