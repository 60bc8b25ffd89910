// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds out whose a process is, and what the site wants of that user.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use jobfence::config::{Config, Loaded, StraysAction};
use nix::unistd::User;

use crate::configured::for_user;
use crate::table::printable;

const LOGIN_DEFS: &str = "/etc/login.defs";

/// The first uid of a person if no file says it, as Debian and Red Hat have it.
const FIRST: u32 = 1000;

/// The uids that systemd gives to services as they start, and those behind them up to `nobody` and the 16-bit "no user".
const SERVICES: std::ops::RangeInclusive<u32> = 61_184..=65_535;

/// Says of each account whether it is a person's, and what is done with its strays.
pub struct StrayAccounts<'a> {
    config: &'a Config,
    loaded: Option<&'a Loaded>,
    first: u32,
    known: RefCell<HashMap<u32, StrayAccount>>,
}

/// What is known of one account.
#[derive(Debug, Clone)]
pub struct StrayAccount {
    /// `None`: this node knows no account with the uid.
    pub name: Option<String>,
    /// What is done with the account's strays. An error: that is not known.
    pub action: Result<StraysAction, String>,
}

impl<'a> StrayAccounts<'a> {
    pub fn new(config: &'a Config, loaded: Option<&'a Loaded>) -> Self {
        let first = config.strays_min_uid.or_else(|| first_uid(Path::new(LOGIN_DEFS))).unwrap_or(FIRST).max(1);
        Self { config, loaded, first, known: RefCell::default() }
    }

    /// Whether the uid is root's or a system account's.
    pub fn is_systems(&self, uid: u32) -> bool {
        uid < self.first || SERVICES.contains(&uid) || uid == u32::MAX
    }

    /// The account with this uid, which is looked up once.
    pub fn get(&self, uid: u32) -> StrayAccount {
        if let Some(known) = self.known.borrow().get(&uid) {
            return known.clone();
        }
        let found = User::from_uid(uid.into());
        let action = match &found {
            Err(errno) => Err(format!("the user database does not answer: {errno}")),
            Ok(_) => self.action(uid),
        };
        let account = StrayAccount { name: found.ok().flatten().map(|user| printable(&user.name)), action };
        self.known.borrow_mut().insert(uid, account.clone());
        account
    }

    fn action(&self, uid: u32) -> Result<StraysAction, String> {
        let Some(loaded) = self.loaded else { return Ok(self.config.strays) };
        for_user(loaded, uid).map(|config| config.strays)
    }
}

/// `UID_MIN` of login.defs(5).
fn first_uid(file: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = |line: &str| line.trim().strip_prefix("UID_MIN")?.trim().parse().ok();
    text.lines().filter_map(value).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_accounts_are_known_by_their_uids() {
        let config = Config { strays_min_uid: Some(500), ..Config::default() };
        let accounts = StrayAccounts::new(&config, None);
        let systems = [0, 499, 61_184, 65_534, 65_535, u32::MAX];
        assert!(systems.iter().all(|uid| accounts.is_systems(*uid)));
        assert!([500, 60_001, 61_183, 65_536, 2_000_000].iter().all(|uid| !accounts.is_systems(*uid)));
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("login.defs");
        assert_eq!(first_uid(&file), None);
        std::fs::write(&file, "# UID_MIN 7\nUID_MIN\t\t  2000\nSYS_UID_MIN 100\n").unwrap();
        assert_eq!(first_uid(&file), Some(2000));
    }
}
