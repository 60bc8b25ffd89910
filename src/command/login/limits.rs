// SPDX-License-Identifier: GPL-2.0-or-later
//! What the site wants of a user of a login node: the limits of that user's jobs together, from the sections for that user.

use jobfence::bytes;
use jobfence::cgroup::io::IoRules;
use jobfence::config::{Config, Limit, Loaded, LoginBudget, Mode};
use jobfence::job::Cpus;

use crate::configured::for_user;

/// The limits of all processes of a user together. `None`: not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserLimits {
    pub cpus: Option<Cpus>,
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    pub io: IoRules,
}

impl UserLimits {
    /// These limits, with at most this many CPUs.
    pub fn within(&self, cpus: Option<Cpus>) -> Self {
        let least = self.cpus.into_iter().chain(cpus).min();
        Self { cpus: least, ..self.clone() }
    }

    /// The limits as part of a sentence: `2 CPUs, 8 GiB of memory`. `None`: nothing is limited.
    pub fn in_words(&self) -> Option<String> {
        let parts = [
            self.cpus.map(Cpus::in_words),
            self.memory.map(|memory| format!("{} of memory", bytes::binary(memory))),
            self.processes.map(|count| format!("{count} processes")),
            (!self.io.is_empty()).then(|| format!("disks: {}", self.io)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// What the site wants of one user.
#[derive(Debug, Clone)]
pub struct WantedOfUser {
    pub mode: Mode,
    pub limits: UserLimits,
    pub budget: Option<LoginBudget>,
}

impl WantedOfUser {
    /// Whether the site wants anything of the user.
    pub fn is_any(&self) -> bool {
        self.mode != Mode::Off && (self.limits != UserLimits::default() || self.budget.is_some())
    }
}

impl From<&Config> for WantedOfUser {
    fn from(config: &Config) -> Self {
        let limits = UserLimits {
            cpus: config.max_cpus_per_user,
            memory: config.max_ram_per_user,
            processes: config.numbers_per_user.get(Limit::Processes),
            io: config.io_max_per_user.clone(),
        };
        Self { mode: config.mode, limits, budget: config.login_budget }
    }
}

/// What the site wants of a user. An error: it is not known.
pub fn wanted((config, loaded): (&Config, Option<&Loaded>), uid: u32) -> Result<WantedOfUser, String> {
    let Some(loaded) = loaded else { return Ok(config.into()) };
    for_user(loaded, uid).map(|config| (&config).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_only_lowers() {
        let cpus = |thousandths| Some(Cpus::from_thousandths(thousandths));
        let limits = |cpus| UserLimits { cpus, memory: Some(1 << 30), ..UserLimits::default() };
        assert_eq!(limits(None).within(cpus(500)), limits(cpus(500)));
        assert_eq!(limits(cpus(4000)).within(cpus(500)), limits(cpus(500)));
        assert_eq!(limits(cpus(100)).within(cpus(500)), limits(cpus(100)));
        assert_eq!(limits(cpus(100)).within(None), limits(cpus(100)));
        assert_eq!(limits(cpus(500)).in_words().as_deref(), Some("0.5 CPUs, 1.0 GiB of memory"));
        assert_eq!(UserLimits::default().in_words(), None);
    }
}
