// SPDX-License-Identifier: GPL-2.0-or-later
//! Walks through the directories below one. A user may have made them: any number, at any depth (beyond the longest path, too), with
//! any name.
//!
//! One directory is open at a time. The way up is `..`: no cgroup is ever moved to another parent, so it leads back.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

/// This many are visited or removed even after the deadline: an ordinary step has fewer, and is not left half done.
const AT_LEAST: u32 = 256;

/// The link count of a directory without directories: its name and its `.`. Each directory in it adds a link, by its `..`
/// (`kernfs_refresh_inode`).
const NO_CHILD: libc::nlink_t = 2;

/// A directory on the way down.
struct OpenLevel {
    /// Its own name; the outermost has none.
    name: Option<OsString>,
    /// The names in it that have not been visited.
    rest: Vec<OsString>,
}

/// Visits a directory and all below it, outer ones first, until `each` returns `false`. An error at one does not end the walk; the
/// first is returned at the end. The deadline ends the walk with an error, since not all have been seen.
pub fn visit(top: &Dir, deadline: Instant, each: &mut dyn FnMut(&Dir) -> Result<bool>) -> Result<()> {
    let mut failed = None;
    let mut seen = 0;
    let mut note = |done: Result<bool>| match done {
        Ok(goes_on) => goes_on,
        Err(error) if error.is_gone() => true,
        Err(error) => {
            failed.get_or_insert(error);
            true
        }
    };
    let mut goes_on = note(each(top));
    let rest = names_in(top)?;
    if rest.is_empty() {
        return failed.map_or(Ok(()), Err);
    }
    let mut here = top.child(".")?;
    let mut way = vec![OpenLevel { name: None, rest }];
    while goes_on && let Some(level) = way.last_mut() {
        seen += 1;
        if seen > AT_LEAST && Instant::now() >= deadline {
            return Err(Error::new("there are more cgroups than can be looked through in time below").at(top.path()));
        }
        let Some(name) = level.rest.pop() else {
            if way.pop().is_some_and(|left| left.name.is_some()) {
                here = here.child("..")?.named(somewhere(top));
            }
            continue;
        };
        let below = match here.child(&name) {
            Ok(below) => below,
            Err(error) => {
                goes_on = note(Err(error));
                continue;
            }
        };
        goes_on = note(each(&below));
        let rest = names_in(&below).unwrap_or_else(|error| {
            note(Err(error));
            Vec::new()
        });
        if !rest.is_empty() {
            way.push(OpenLevel { name: Some(name), rest });
            here = below.named(somewhere(top));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Removes all directories below one, until the deadline; those that are removed by then stay removed. `EBUSY`: a process is in one of
/// them.
pub fn clear(top: &Dir, deadline: Instant) -> Result<()> {
    let mut here = top.child(".")?;
    let mut way = vec![OpenLevel { name: None, rest: names_in(&here)? }];
    let mut seen = 0;
    while let Some(level) = way.last_mut() {
        seen += 1;
        if seen > AT_LEAST && Instant::now() >= deadline {
            return Err(Error::new("there are more cgroups than can be removed in time below")
                .at(top.path())
                .hint("their removal goes on at the next launch on this node, or by 'jobfence reap'"));
        }
        let name = match level.rest.pop() {
            Some(name) => name,
            // New directories in it are seen when it is to be removed itself.
            None => match way.pop().and_then(|left| left.name) {
                None => return Ok(()),
                Some(name) => {
                    here = here.child("..")?.named(somewhere(top));
                    name
                }
            },
        };
        let busy = match here.remove(&name) {
            Ok(_) => continue,
            Err(error) if matches!(error.kernel_errno(), Some(Errno::EBUSY | Errno::ENOTEMPTY)) => error,
            Err(error) => return Err(error),
        };
        let below = match here.child(&name) {
            Ok(below) => below,
            Err(error) if error.is_gone() => continue,
            Err(error) => return Err(error),
        };
        let rest = names_in(&below)?;
        if rest.is_empty() {
            return Err(busy);
        }
        way.push(OpenLevel { name: Some(name), rest });
        here = below.named(somewhere(top));
    }
    Ok(())
}

/// Removes a directory with all below it; see [`clear`].
pub fn remove(parent: &Dir, name: &str, deadline: Instant) -> Result<()> {
    let mut is_first = true;
    loop {
        let busy = match parent.remove(name) {
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.kernel_errno(), Some(Errno::EBUSY | Errno::ENOTEMPTY)) => error,
            Err(error) => return Err(error),
        };
        // A process may make directories there as fast as they are removed.
        if !is_first && Instant::now() >= deadline {
            return Err(busy);
        }
        is_first = false;
        let dir = match parent.child(name) {
            Ok(dir) => dir,
            // The next try shows that.
            Err(error) if error.is_gone() => continue,
            Err(error) => return Err(error),
        };
        match dir.names(true) {
            Ok(names) if names.is_empty() => return Err(busy),
            Err(error) if !error.is_gone() => return Err(error),
            _ => clear(&dir, deadline)?,
        }
    }
}

/// The path in messages: a full one would grow without end.
fn somewhere(top: &Dir) -> PathBuf {
    top.path().join("...")
}

/// Whether a cgroup has no other below it, by one call. Most have none.
pub fn has_none_below(dir: &Dir) -> bool {
    dir.stat().is_ok_and(|stat| stat.st_nlink == NO_CHILD)
}

/// The names of the directories in one; none if it is gone.
fn names_in(dir: &Dir) -> Result<Vec<OsString>> {
    if has_none_below(dir) {
        return Ok(Vec::new());
    }
    dir.names(true).or_else(|error| if error.is_gone() { Ok(Vec::new()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Makes directories so deep that no path can reach the innermost.
    fn dig(top: &Path, levels: usize) {
        let mut here = Dir::open(top).unwrap();
        let name = "d".repeat(250);
        for _ in 0..levels {
            here.make(&name).unwrap();
            here = here.child(&name).unwrap().named(top.to_path_buf());
        }
    }

    fn count(dir: &Dir) -> usize {
        let mut found = 0;
        let counted = visit(dir, later(), &mut |_| {
            found += 1;
            Ok(true)
        });
        counted.unwrap();
        found
    }

    #[test]
    fn however_deep_many_and_called_all_are_seen_and_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        dig(temp.path(), 40);
        for number in 0..300 {
            std::fs::create_dir_all(temp.path().join(format!("{number}/a/b"))).unwrap();
        }
        std::fs::create_dir(temp.path().join(OsString::from_vec(vec![0xff, 0xfe]))).unwrap();
        assert_eq!(count(&dir), 1 + 40 + 300 * 3 + 1);
        clear(&dir, later()).unwrap();
        assert_eq!(count(&dir), 1);
        std::fs::create_dir_all(temp.path().join("x/y/z")).unwrap();
        remove(&dir, "x", later()).unwrap();
        remove(&dir, "x", later()).unwrap();
        assert_eq!(count(&dir), 1);
    }

    #[test]
    fn an_ordinary_step_is_not_left_half_done_and_one_without_end_ends() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let past = Instant::now();
        let all = |top: &Dir| visit(top, past, &mut |_| Ok(true));
        (0..100).for_each(|number| std::fs::create_dir(temp.path().join(number.to_string())).unwrap());
        all(&dir).unwrap();
        clear(&dir, past).unwrap();
        (0..1000).for_each(|number| std::fs::create_dir(temp.path().join(number.to_string())).unwrap());
        assert!(all(&dir).unwrap_err().to_string().contains("looked through in time"));
        assert!(clear(&dir, past).unwrap_err().to_string().contains("removed in time"));
        assert!(count(&dir) < 1000, "what was removed is removed");
    }

    #[test]
    fn an_error_of_one_does_not_save_the_others() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        (0..10).for_each(|number| std::fs::create_dir_all(temp.path().join(format!("{number}/x"))).unwrap());
        let mut seen = 0;
        let done = visit(&dir, later(), &mut |_| {
            seen += 1;
            Err(Error::new("refused").value(seen))
        });
        assert_eq!(seen, 21);
        assert!(done.unwrap_err().to_string().contains('1'));
        seen = 0;
        visit(&dir, later(), &mut |_| {
            seen += 1;
            Ok(seen < 5)
        })
        .unwrap();
        assert_eq!(seen, 5);
    }
}
