// SPDX-License-Identifier: GPL-2.0-or-later
//! v1: `devices.deny`, `devices.allow` and `devices.list` of a directory (cgroup-v1/devices.rst).
//!
//! cgroups-rs writes the rules. The list is read here, since the reader of cgroups-rs stops at an unknown line and logs by itself.

use cgroups_rs::devices::{DevicePermissions, DeviceType, DevicesController};
use nix::errno::Errno;

use super::rules::{Access, DeviceKind};
use super::set::{Numbers, Set, is_everybodys};
use crate::cgroup::kernel::missing;
use crate::cgroup::layout::DEVICES;
use crate::cgroup::limits::refused;
use crate::error::{Error, Result};
use crate::sorted;
use crate::sys::dir::Dir;

const ALLOW: &str = "devices.allow";
const DENY: &str = "devices.deny";
const LIST: &str = "devices.list";

/// The kernel takes this for any number.
const ANY: i64 = -1;

/// Denies everything but the set. If the set is open, denies only what it denies.
pub fn constrain(dir: &Dir, set: &Set) -> Result<()> {
    if set.is_open {
        return deny(dir, set);
    }
    if let Some(denied) = set.deny.first() {
        return Err(Error::new("cgroup v1 cannot deny one device of a class that is allowed:")
            .value(denied)
            .hint("it is a GPU of others: list single devices in DeviceAllow instead of its class"));
    }
    // A list that is right is not written again: if the directory has children, the kernel refuses that.
    if list(dir)?.as_ref() == Some(&set.allow) {
        return Ok(());
    }
    let devices = DevicesController::new(dir.handle_path());
    devices.deny_device(DeviceType::All, ANY, ANY, &DevicePermissions::all()).map_err(|error| {
        let error = refused(dir, DENY, DEVICES, "a".to_owned(), &error);
        match error.kernel_errno() {
            Some(Errno::EINVAL) => error.hint("the cgroup has children, and then the kernel allows no change of this"),
            _ => error,
        }
    })?;
    let mut want = set.allow.clone();
    for (numbers, access) in &set.allow {
        let kind = if numbers.kind == DeviceKind::Char { DeviceType::Char } else { DeviceType::Block };
        let letters = access.to_string();
        let permissions: Vec<_> = letters.chars().filter_map(DevicePermissions::from_char).collect();
        let minor = numbers.minor.map_or(ANY, i64::from);
        let Err(error) = devices.allow_device(kind, i64::from(numbers.major), minor, &permissions) else { continue };
        let error = refused(dir, ALLOW, DEVICES, format!("{numbers} {access}"), &error);
        match error.kernel_errno() {
            // The cgroup above may not use it either, as in a container. The site did not ask for it, so it is left out.
            Some(Errno::EPERM) if is_everybodys(*numbers) => {
                want.retain(|(known, _)| known != numbers);
            }
            Some(Errno::EPERM) => return Err(error.hint("the cgroup above is itself not allowed to use it")),
            _ => return Err(error),
        }
    }
    match list(dir)? {
        Some(found) if found == want => Ok(()),
        found => {
            Err(Error::new("the devices were written, but the kernel shows others:").at(dir.path().join(LIST)).value(
                format!("wanted {}, found {}", words(&want), found.map_or("all".to_owned(), |found| words(&found))),
            ))
        }
    }
}

/// Denies single devices, and leaves all else as it is above.
fn deny(dir: &Dir, set: &Set) -> Result<()> {
    let devices = DevicesController::new(dir.handle_path());
    for numbers in &set.deny {
        let kind = if numbers.kind == DeviceKind::Char { DeviceType::Char } else { DeviceType::Block };
        let minor = numbers.minor.map_or(ANY, i64::from);
        devices
            .deny_device(kind, i64::from(numbers.major), minor, &DevicePermissions::all())
            .map_err(|error| refused(dir, DENY, DEVICES, numbers.to_string(), &error))?;
    }
    // If all else is allowed, the kernel shows only that, and not what is denied (`devcgroup_seq_show`). If the directory above has a
    // list, the kernel shows what is left of that.
    let left = list(dir)?.unwrap_or_default();
    match left.iter().find(|(allowed, _)| set.deny.iter().any(|denied| allowed.has(*denied))) {
        Some((allowed, _)) => Err(Error::new("a device was denied, but the kernel allows it:")
            .at(dir.path().join(LIST))
            .value(allowed)
            .hint("the cgroup above allows the whole class, of which v1 can deny no single device")),
        None => Ok(()),
    }
}

fn words(list: &[(Numbers, Access)]) -> String {
    list.iter().map(|(numbers, access)| format!("{numbers} {access}")).collect::<Vec<_>>().join(", ")
}

/// What the directory is allowed; `None`: everything, or a line that jobfence does not write.
fn list(dir: &Dir) -> Result<Option<Vec<(Numbers, Access)>>> {
    let Some(text) = dir.read_if_there(LIST)? else { return Err(missing(dir, LIST, DEVICES)) };
    let mut list = text.lines().map(line).collect::<Option<Vec<_>>>();
    list.iter_mut().for_each(|list| sorted::sort_by_key(list, |(numbers, _)| *numbers));
    Ok(list)
}

/// A line `c 1:3 rwm`, as `devcgroup_seq_show` (security/device_cgroup.c) writes it.
fn line(line: &str) -> Option<(Numbers, Access)> {
    let mut words = line.split(' ');
    let kind = match words.next()? {
        "c" => DeviceKind::Char,
        "b" => DeviceKind::Block,
        _ => return None,
    };
    let (major, minor) = words.next()?.split_once(':')?;
    let minor = if minor == "*" { None } else { Some(minor.parse().ok()?) };
    let access = Access::parse(words.next()?)?;
    Some((Numbers { kind, major: major.parse().ok()?, minor }, access))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_list() {
        let null = Numbers { kind: DeviceKind::Char, major: 1, minor: Some(3) };
        assert_eq!(line("c 1:3 rwm"), Some((null, Access::ALL)));
        let loops = Numbers { kind: DeviceKind::Block, major: 7, minor: None };
        assert_eq!(line("b 7:* r"), Some((loops, Access::parse("r").unwrap())));
        for text in ["a *:* rwm", "c *:3 r", "c 1 r", "c 1:3", "", "c 1:-3 r", "c 1:3 x"] {
            assert_eq!(line(text), None, "{text}");
        }
    }

    #[test]
    fn a_gpu_of_others_within_an_allowed_class_is_an_error_before_anything_is_written() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let class = Numbers { kind: DeviceKind::Char, major: 195, minor: None };
        let set = Set::new(vec![(class, Access::ALL)], &[Numbers { minor: Some(1), ..class }]);
        let error = constrain(&dir, &set).unwrap_err().to_string();
        assert!(error.contains("c 195:1") && error.contains("DeviceAllow"), "{error}");
        assert!(constrain(&dir, &Set::new(Vec::new(), &[])).unwrap_err().to_string().contains("devices controller"));
    }
}
