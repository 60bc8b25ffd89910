// SPDX-License-Identifier: GPL-2.0-or-later
//! Converts lines of devices.allow to `DeviceAllow`, which names devices by path or by driver.

use super::site::AllowedDevice;

/// The result of converting `devices.allow`.
#[derive(Debug, Default)]
pub struct AllowedRules {
    /// The entry that allows every character device, if any.
    pub everything: Option<String>,
    /// Rules of `DeviceAllow`.
    pub rules: Vec<String>,
    /// What the rules do not say.
    pub notes: Vec<String>,
}

/// The devices that each job may use in any case (jobfence.conf(5)): by numbers, and by name below /dev.
const EVERYBODYS: [&str; 8] = ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*"];
const EVERYBODYS_NAMES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx"];

/// Fixed major numbers (admin-guide/devices.txt), with the drivers' names in /proc/devices.
const DRIVERS: [(&str, &str); 12] = [
    ("1", "mem"),
    ("4", "tty"),
    ("5", "/dev/tty"),
    ("7", "vcs"),
    ("10", "misc"),
    ("13", "input"),
    ("29", "fb"),
    ("116", "alsa"),
    ("136", "pts"),
    ("189", "usb_device"),
    ("195", "nvidia"),
    ("226", "drm"),
];

/// Devices that share their driver with others, by number.
const DEVICES: [(&str, &str); 5] = [
    ("1:11", "/dev/kmsg"),
    ("5:1", "/dev/console"),
    ("10:200", "/dev/net/tun"),
    ("10:229", "/dev/fuse"),
    ("10:183", "/dev/hwrng"),
];

/// The control device, which each job with an NVIDIA GPU opens. pbs_cgroups allows it with the GPU.
const CONTROL: &str = "/dev/nvidiactl";

/// Converts all entries.
pub fn allowed(entries: &[AllowedDevice]) -> AllowedRules {
    let mut all = AllowedRules::default();
    for entry in entries {
        match entry {
            AllowedDevice::Numbers(text) => by_numbers(text, &mut all),
            AllowedDevice::Named(name, access, minors) => by_name(name, access, minors.as_deref(), &mut all),
        }
    }
    let of = |prefix: &str| all.rules.iter().any(|rule| rule.starts_with(prefix));
    if of("/dev/nvidia") && !of(CONTROL) {
        all.rules.push(CONTROL.to_owned());
    }
    let named: Vec<&str> =
        all.rules.iter().filter_map(|rule| rule.split(' ').next()).filter(|path| path.starts_with('/')).collect();
    if !named.is_empty() {
        all.notes.push(format!(
            "pbs_cgroups passes over a device that a host does not have, and jobfence refuses the job there. Put \
             DeviceAllow into a section of the hosts that have these: {}.",
            named.join(", ")
        ));
    }
    all
}

/// An entry such as `c 1:3 rwm`, as the kernel's file takes it.
fn by_numbers(text: &str, all: &mut AllowedRules) {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (kind, numbers, access) = match words.as_slice() {
        ["a", ..] => ("c", "*:*", "rwm"),
        [kind @ ("b" | "c"), numbers, access] if numbers.contains(':') => (*kind, *numbers, *access),
        _ => return all.notes.push(format!("The entry {text:?} is no line of devices.allow, and is left out.")),
    };
    let (major, minor) = numbers.split_once(':').unwrap_or((numbers, "*"));
    match (kind, major) {
        ("c", "*") if ["r", "w"].iter().all(|one| access.contains(one)) => all.everything = Some(text.to_owned()),
        ("c", "*") => all.notes.push(format!(
            "The entry {text:?} is left out: it does not let a job read and write all devices. DeviceAllow names those that it may."
        )),
        ("b", "*") => all.notes.push(format!(
            "The entry {text:?} is left out: a job needs no disk to read and write files. DeviceAllow names disks \
             one by one, as /dev/sda, or by driver, as block-sd."
        )),
        ("c", _) if EVERYBODYS.contains(&numbers) => {}
        _ => match target(kind, major, minor) {
            Some(target) => rule(&target, access, text, all),
            None => all.notes.push(format!(
                "The entry {text:?} is left out, since jobfence does not know its name. Add the path of the device to \
                 DeviceAllow, or its driver as /proc/devices has it, as char-NAME."
            )),
        },
    }
}

/// The name of these numbers in `DeviceAllow`, if it is known.
fn target(kind: &str, major: &str, minor: &str) -> Option<String> {
    if kind != "c" {
        return None;
    }
    if minor != "*" {
        let numbers = format!("{major}:{minor}");
        return DEVICES.iter().find(|(known, _)| *known == numbers).map(|(_, path)| (*path).to_owned());
    }
    let (_, driver) = DRIVERS.iter().find(|(known, _)| *known == major)?;
    Some(format!("char-{driver}"))
}

/// An entry that names a device below `/dev`.
fn by_name(name: &str, access: &str, minors: Option<&str>, all: &mut AllowedRules) {
    let shown = format!("[{name:?}, {access:?}]");
    if name.is_empty() || name.contains([',', '"', ' ']) || name.split('/').any(|part| part == "..") {
        return all.notes.push(format!("The entry {shown} names no device below /dev, and is left out."));
    }
    if EVERYBODYS_NAMES.contains(&name.strip_prefix("/dev/").unwrap_or(name)) && minors.is_none() {
        return;
    }
    let path = if name.starts_with('/') { name.to_owned() } else { format!("/dev/{name}") };
    if let Some(minors) = minors {
        all.notes.push(format!(
            "The entry {shown} allows minor numbers {minors}, and {path} alone is written. To allow all devices of its \
             driver, write the driver's name in /proc/devices, as char-NAME."
        ));
    }
    rule(&path, access, &shown, all);
}

fn rule(target: &str, access: &str, shown: &str, all: &mut AllowedRules) {
    let is_known = |letter: char| access.matches(letter).count() <= 1 && "rwm".contains(letter);
    if access.is_empty() || !access.chars().all(is_known) {
        return all
            .notes
            .push(format!("The access {access:?} of {shown} is none of r, w and m. The entry is left out."));
    }
    let rule = if access.len() == 3 { target.to_owned() } else { format!("{target} {access}") };
    if !all.rules.contains(&rule) {
        all.rules.push(rule);
    }
}
