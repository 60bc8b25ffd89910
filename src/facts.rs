// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of a job beside its grant: by it, sections of the configuration are chosen.
//!
//! What is known is what a user cannot forge; whoever fills it says in its own file where that comes from. What nobody has
//! said whom we trust is [`Fact::Unknown`], and no guess: then the strictest of all that it could be holds.

/// Something that somebody trusted has said, or only the job's user, or nobody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fact<T> {
    /// It is so. An empty text: it is known that there is none, as an account where the cluster has no accounts.
    Known(T),
    /// The job's user says so, and nobody has checked it: it is for reports, and counts only where the site says so.
    Claimed(T),
    /// Nobody whom we trust has said.
    #[default]
    Unknown,
}

impl<T> Fact<T> {
    /// What is known.
    pub fn known(&self) -> Option<&T> {
        self.counts(false)
    }

    /// The same where somebody has checked what the job's user says; otherwise it is no more than that.
    #[must_use]
    pub fn if_checked(self, is_checked: bool) -> Self {
        match self {
            Self::Known(value) if !is_checked => Self::Claimed(value),
            other => other,
        }
    }

    /// What is known, or said by the job's user.
    pub fn said(&self) -> Option<&T> {
        self.counts(true)
    }

    /// What is known; if the site trusts its users, also what they say.
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

/// The GPUs of this node that a job has. Slurm says which, and counts them from 0, in an order that need not be that of the numbers in the
/// names of their devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Gpus {
    /// The job has none, or nobody has said.
    #[default]
    None,
    /// These, by Slurm's numbers, each with the path of its device.
    Devices(Vec<(u32, String)>),
    /// These, by Slurm's numbers; and why it is not certain which devices they are.
    Positions(Vec<u32>, String),
    /// Some; why it is not certain which.
    Unknown(String),
    /// The devices with these paths: we have chosen them where the scheduler has only said how many, or it names them otherwise.
    Chosen(Vec<String>),
}

impl Gpus {
    /// How many they are; `None`: nobody has said.
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

/// What is known of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The partition in which it runs, not the list that was asked for.
    pub partition: Fact<String>,
    /// Its quality of service, by name.
    pub qos: Fact<String>,
    /// Its account.
    pub account: Fact<String>,
    /// Its project, where the scheduler has projects.
    pub project: Fact<String>,
    /// Its name among the jobs of all submitting hosts, where its id is one of several.
    pub global_job: Fact<String>,
    /// The types of the parts of this node that it has, where the scheduler gives them types. Empty: it is known that there is none.
    pub vnode_types: Fact<Vec<String>>,
    /// The parallel environment that grants its slots, where the scheduler has such. Empty: it is known that there is none.
    pub pe: Fact<String>,
    /// Its user, by number.
    pub uid: Fact<u32>,
    /// Its user, by name.
    pub user: Fact<String>,
    /// The groups that it has, by number.
    pub gids: Fact<Vec<u32>>,
    /// Of the groups that were asked for by name, whether it has them; one that is missing is unknown.
    pub groups: Vec<(String, bool)>,
    /// This node's name in slurm.conf; without Slurm, this host's.
    pub node: Fact<String>,
    /// Its GPUs on this node.
    pub gpus: Gpus,
    /// Its hardware threads on this node; `None`: nobody has said.
    pub cpus: Option<u32>,
}

impl Facts {
    /// Whether it has a group that was asked for by name; `None`: unknown.
    pub fn group(&self, name: &str) -> Option<bool> {
        self.groups.iter().find(|(known, _)| known == name).map(|(_, has)| *has)
    }

    /// As far as it is the scheduler that says it, of something that it has not allocated: there is none of that.
    #[must_use]
    pub fn of_no_job(self) -> Self {
        let none = || Fact::Known(String::new());
        Self { partition: none(), qos: none(), account: none(), gpus: Gpus::None, cpus: None, ..self }
            .of_no_project_vnode_or_pe()
    }

    /// Of a scheduler that has neither projects nor types of vnodes nor parallel environments, which is known and no reason to be strict.
    #[must_use]
    pub fn of_no_project_vnode_or_pe(self) -> Self {
        let none = || Fact::Known(String::new());
        Self { project: none(), vnode_types: Fact::Known(Vec::new()), pe: none(), ..self }
    }
}

/// Of what sections speak, so that nothing else need be found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FactsNeeded {
    /// The partition, the QOS or the account.
    pub job: bool,
    /// The user's name.
    pub user: bool,
    /// Groups by number.
    pub gids: bool,
    /// These groups by name.
    pub groups: Vec<String>,
    /// The node.
    pub node: bool,
}
