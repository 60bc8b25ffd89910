// SPDX-License-Identifier: GPL-2.0-or-later
//! Groups by name, as this node's own database knows them: getgrnam_r(3), nsswitch.conf(5).

use nix::unistd::{Gid, Group};

use crate::error::in_words;
use crate::log;

/// Whether the group of this name is one of `gids`; `None` if that is not known.
///
/// A name that is not found is no proof by itself: if a server does not answer, the next database of nsswitch.conf(5) does not find it.
/// But a user whose groups all have other names is not in this one.
pub fn is_among(name: &str, gids: &[u32]) -> Option<bool> {
    match Group::from_name(name) {
        Ok(Some(group)) => Some(gids.contains(&group.gid.as_raw())),
        Ok(None) => {
            let has_another_name =
                |gid: &u32| matches!(Group::from_gid(Gid::from_raw(*gid)), Ok(Some(group)) if group.name != name);
            gids.iter().all(has_another_name).then_some(false)
        }
        Err(errno) => {
            log::error!("cannot look for group {name}: {}", in_words(errno));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_does_not_exist_is_nobodys() {
        assert_eq!((is_among("root", &[7, 0]), is_among("root", &[7])), (Some(true), Some(false)));
        assert_eq!(is_among("no-such-group", &[0]), Some(false));
        // This number has no known name, so it may be the group that is meant.
        assert_eq!(is_among("no-such-group", &[0, 4_000_000]), None);
    }
}
