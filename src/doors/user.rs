// SPDX-License-Identifier: GPL-2.0-or-later
//! What this node's own database says about a job's user, if the batch system named only the number or the name.

use std::ffi::CString;

use nix::unistd::{Gid, User};

use crate::facts::{Fact, Facts, FactsNeeded};
use crate::sys::as_user::AsUser;
use crate::sys::group;

/// Completes the user's groups, as far as sections depend on them.
pub fn know_groups(facts: &mut Facts, asked: &FactsNeeded) {
    if !asked.gids {
        return;
    }
    let name = facts.user.known().and_then(|name| CString::new(name.as_str()).ok());
    let user = facts.user.known().and_then(|name| User::from_name(name).ok().flatten());
    if let (Some(name), Some(user)) = (name, user)
        && let Ok(gids) = nix::unistd::getgrouplist(&name, user.gid)
    {
        let gids: Vec<u32> = gids.into_iter().map(Gid::as_raw).collect();
        for name in &asked.groups {
            if let Some(is_in) = group::is_among(name, &gids) {
                facts.groups.push((name.clone(), is_in));
            }
        }
        facts.gids = Fact::Known(gids);
    }
}

/// Completes what is known about the user. The database may be on a server, so it is asked only if a section needs the answer.
pub fn know(facts: &mut Facts, asked: &FactsNeeded) {
    if (asked.user || asked.gids)
        && facts.user.known().is_none()
        && let Some(uid) = facts.uid.known()
    {
        facts.user = User::from_uid((*uid).into()).ok().flatten().map(|user| user.name).into();
    }
    know_groups(facts, asked);
}

/// The user's rights for looking up paths. A user that this node does not know has no groups.
pub fn rights(uid: u32) -> AsUser {
    let user = User::from_uid(uid.into()).ok().flatten();
    let groups = user.as_ref().and_then(|user| {
        let name = CString::new(user.name.as_str()).ok()?;
        nix::unistd::getgrouplist(&name, user.gid).ok()
    });
    let groups: Vec<u32> = groups.unwrap_or_default().into_iter().map(Gid::as_raw).collect();
    AsUser::new(uid, user.map_or(uid, |user| user.gid.as_raw()), &groups)
}
