// SPDX-License-Identifier: GPL-2.0-or-later
//! Gives limits back: nobody stays limited by a program that does not run.

use std::time::{Duration, Instant};

use jobfence::config::Config;
use jobfence::host::Host;
use jobfence::sys::process::Owner;

use super::files::{self, LimitedPlace, LoginUser};
use super::{slices, tree};
use crate::living::user_name;

/// How long the processes of one user may take to leave their fence, and how long all users together may take.
const PATIENCE_FOR_ONE: Duration = Duration::from_secs(5);
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Gives back the values that the user had before. What was used of the budget is kept.
pub fn give_back(host: &Host, config: &Config, user: &mut LoginUser, deadline: Instant) -> Result<(), String> {
    match &user.place {
        None => {}
        Some(LimitedPlace::Slice(back)) => slices::set(&slices::systemctl_until(deadline), user.uid, back)?,
        Some(LimitedPlace::Fence(from)) => {
            tree::give_back(host, config, (user.uid, from), deadline.min(Instant::now() + PATIENCE_FOR_ONE))?;
        }
    }
    (user.place, user.keeper) = (None, None);
    user.set.clear();
    (user.limits, user.until) = (None, None);
    Ok(())
}

/// All users that have a file, or have a fence and no file. Without the file, nothing says where their processes came from.
pub fn known(host: &Host, config: &Config) -> Result<Vec<LoginUser>, String> {
    let mut all = files::all(&config.run_dir).map_err(|error| error.to_string())?;
    for uid in tree::uids(host, config).map_err(|error| error.to_string())? {
        let fence = Some(LimitedPlace::Fence(String::new()));
        match all.iter_mut().find(|user| user.uid == uid && user.boot_id == host.boot_id) {
            Some(user) => user.place = user.place.take().or(fence),
            None => all.push(LoginUser { place: fence, ..LoginUser::new(uid, &host.boot_id) }),
        }
    }
    Ok(all)
}

/// Gives back the limits of a dead `jobfence hold`, for `jobfence reap`. Returns whose limits they were, and what failed.
pub fn reap(host: &Host, config: &Config) -> (Vec<String>, Vec<String>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let all = known(host, config).unwrap_or_else(|why| {
        failed.push(why);
        Vec::new()
    });
    let deadline = Instant::now() + PATIENCE;
    for mut user in all {
        if user.boot_id != host.boot_id {
            files::remove(&config.run_dir, user.uid);
            continue;
        }
        let lives = |keeper: Owner| keeper.is_alive(&host.proc).unwrap_or(true);
        if user.place.is_none() || user.keeper.is_some_and(lives) {
            continue;
        }
        let name = user_name(user.uid);
        let given = give_back(host, config, &mut user, deadline);
        let given = given.and_then(|()| files::write(&config.run_dir, &user).map_err(|error| error.to_string()));
        match given {
            Ok(()) => done.push(format!("the login limits of {name}")),
            Err(why) => failed.push(format!("the login limits of {name} stay: {why}")),
        }
    }
    (done, failed)
}
