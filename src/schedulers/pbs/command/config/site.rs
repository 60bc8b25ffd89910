// SPDX-License-Identifier: GPL-2.0-or-later
//! A site's pbs_cgroups.CF.

use std::collections::BTreeMap;

use jobfence::config::nearest;
use serde_json::Value;

use super::json::{JsonPart, JsonText};
use super::schema::{SUBSYSTEMS, TOP, ValueForm, keys_of};
use super::switch::{Meant, SWITCH_EXPECTED, Switch};

/// A parsed value.
#[derive(Debug, Clone, PartialEq)]
pub enum SiteValue {
    Switch(Switch),
    Text(String),
    Names(Vec<String>),
    /// In bytes.
    Size(u64),
    Number(f64),
    Devices(Vec<AllowedDevice>),
}

/// One entry of `devices.allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedDevice {
    /// A line as the kernel's file takes it.
    Numbers(String),
    /// A name below `/dev`, its access, and minor numbers that replace the device's own.
    Named(String, String, Option<String>),
}

/// A note on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteNote {
    /// `FILE:LINE:COLUMN`; `None` for a key that the file does not have.
    pub place: Option<String>,
    /// The key, as `memory.default`.
    pub key: String,
    /// What differs, and what to do.
    pub text: String,
}

/// The whole file.
#[derive(Debug, Default)]
pub struct SiteConfig {
    values: BTreeMap<(&'static str, &'static str), (String, SiteValue)>,
    /// Keys that the hook does not know either.
    pub unknown: Vec<SiteNote>,
}

/// A key's name in messages.
fn dotted(section: &str, name: &str) -> String {
    if section == TOP { name.to_owned() } else { format!("{section}.{name}") }
}

impl SiteConfig {
    /// Parses a file; the error has all mistakes.
    pub fn parse(json: JsonText<'_>) -> Result<Self, Vec<String>> {
        let mut reader = SiteReader { json, site: Self::default(), errors: Vec::new() };
        let top = json.parse().map_err(|error| vec![error])?;
        reader.section(TOP, top);
        if reader.errors.is_empty() { Ok(reader.site) } else { Err(reader.errors) }
    }

    fn value(&self, section: &'static str, name: &'static str) -> Option<&SiteValue> {
        self.values.get(&(section, name)).map(|(_, value)| value)
    }

    /// Whether the file has the key.
    pub fn has(&self, section: &'static str, name: &'static str) -> bool {
        self.value(section, name).is_some()
    }

    /// A switch; `default` is the hook's, for a file without the key.
    pub fn switch(&self, section: &'static str, name: &'static str, default: bool) -> Switch {
        match self.value(section, name) {
            Some(SiteValue::Switch(switch)) => switch.clone(),
            _ => Switch::always(default),
        }
    }

    pub fn number(&self, section: &'static str, name: &'static str, default: f64) -> f64 {
        match self.value(section, name) {
            Some(SiteValue::Number(number)) => *number,
            _ => default,
        }
    }

    /// An amount of memory in bytes; 0 without the key.
    pub fn size(&self, section: &'static str, name: &'static str) -> u64 {
        match self.value(section, name) {
            Some(SiteValue::Size(bytes)) => *bytes,
            _ => 0,
        }
    }

    pub fn text(&self, section: &'static str, name: &'static str) -> Option<&str> {
        match self.value(section, name) {
            Some(SiteValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn names(&self, section: &'static str, name: &'static str) -> &[String] {
        match self.value(section, name) {
            Some(SiteValue::Names(names)) => names,
            _ => &[],
        }
    }

    pub fn devices(&self) -> &[AllowedDevice] {
        match self.value("devices", "allow") {
            Some(SiteValue::Devices(devices)) => devices,
            _ => &[],
        }
    }

    /// A note on a key.
    pub fn note(&self, section: &'static str, name: &'static str, text: &str) -> SiteNote {
        let place = self.values.get(&(section, name)).map(|(place, _)| place.clone());
        SiteNote { place, key: dotted(section, name), text: text.to_owned() }
    }

    /// On which hosts a section holds: as in the hook, a later list counts more. With it, the name of a list that could not be applied.
    pub fn enabled(&self, section: &'static str) -> (Switch, Option<&'static str>) {
        let switch = self
            .switch(section, "enabled", section == TOP)
            .but(Meant::VnodeType, self.names(section, "exclude_vntypes"), false)
            .but(Meant::Host, self.names(section, "exclude_hosts"), false)
            .but(Meant::Host, self.names(section, "include_hosts"), true);
        match switch.clone().only_on(self.names(section, "run_only_on_hosts")) {
            Some(switch) => (switch, None),
            None => (switch, Some("run_only_on_hosts")),
        }
    }
}

/// Reads a file and collects its mistakes.
struct SiteReader<'a> {
    json: JsonText<'a>,
    site: SiteConfig,
    errors: Vec<String>,
}

impl SiteReader<'_> {
    fn wrong(&mut self, part: JsonPart<'_>, expected: &str) {
        self.errors.push(format!("{}: found {}, expected {expected}", self.json.place(part), part.shown()));
    }

    fn section(&mut self, section: &'static str, part: JsonPart<'_>) {
        let Some(members) = part.members() else {
            let what = if section == TOP { "the whole file" } else { section };
            return self.wrong(part, &format!("{what} to be an object, as {{\"enabled\": true}}"));
        };
        for (name_part, value) in members {
            let name = name_part.text().unwrap_or_default();
            if section == TOP && name == "cgroup" {
                self.subsystems(value);
                continue;
            }
            let Some((name, form)) = keys_of(section).find(|(known, _)| *known == name) else {
                let known = keys_of(section).map(|(known, _)| known);
                self.unknown(name_part, dotted(section, &name), nearest(&name, known));
                continue;
            };
            match read(form, value) {
                Err(expected) => self.wrong(value, &format!("{} to be {expected}", dotted(section, name))),
                Ok(read) => {
                    if self.site.values.insert((section, name), (self.json.place(name_part), read)).is_some() {
                        self.wrong(name_part, &format!("{} only once", dotted(section, name)));
                    }
                }
            }
        }
    }

    fn subsystems(&mut self, part: JsonPart<'_>) {
        let Some(members) = part.members() else {
            return self.wrong(part, "cgroup to be an object with a member for each subsystem");
        };
        for (name_part, value) in members {
            let name = name_part.text().unwrap_or_default();
            match SUBSYSTEMS.iter().find(|known| **known == name) {
                Some(known) => self.section(known, value),
                None => self.unknown(name_part, name.clone(), nearest(&name, SUBSYSTEMS.into_iter())),
            }
        }
    }

    /// Notes an unknown key. It is no mistake: the hook ignores it, too.
    fn unknown(&mut self, part: JsonPart<'_>, key: String, meant: Option<&str>) {
        let hint = meant.map(|meant| format!(" Did you mean {meant}?")).unwrap_or_default();
        let text = format!("The pbs_cgroups of OpenPBS does not know this key, and ignores it.{hint}");
        self.site.unknown.push(SiteNote { place: Some(self.json.place(part)), key, text });
    }
}

/// Reads one value; the error completes "expected ...".
fn read(form: ValueForm, part: JsonPart<'_>) -> Result<SiteValue, String> {
    let value = part.value();
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let (read, expected) = match form {
        ValueForm::Switch => (switch(&value).map(SiteValue::Switch), SWITCH_EXPECTED.to_owned()),
        ValueForm::Text => (value.as_str().map(|text| SiteValue::Text(text.to_owned())), "a text".to_owned()),
        ValueForm::Names => (texts(&value).map(SiteValue::Names), "a list of texts, as [\"n1\", \"n2\"]".to_owned()),
        ValueForm::Size => (size(&value).map(SiteValue::Size), "an amount of memory, as \"256MB\"".to_owned()),
        ValueForm::Number(least, most) => {
            let read = number(&value).filter(|number| (least..=most).contains(number)).map(SiteValue::Number);
            (read, format!("a number from {least} to {most}"))
        }
        ValueForm::CpuNumbers => {
            (cpu_numbers(&value).map(SiteValue::Names), "numbers of CPUs, as \"0-3,8\" or [0, 1]".to_owned())
        }
        ValueForm::Devices => {
            let expected = "a list of texts as \"c 1:3 rwm\", and of names with their access, as [\"fuse\", \"rwm\"]";
            (devices(&value).map(SiteValue::Devices), expected.to_owned())
        }
    };
    read.ok_or(expected)
}

fn switch(value: &Value) -> Option<Switch> {
    match value {
        Value::Bool(value) => Some(Switch::always(*value)),
        Value::String(text) => Switch::parse(text),
        _ => None,
    }
}

/// A number, also as a text: the hook takes both.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_f64(),
    }
}

/// A size of PBS in bytes: a whole number with an optional unit, a power of 1024.
fn size(value: &Value) -> Option<u64> {
    let text = match value {
        Value::String(text) => text.trim().to_lowercase(),
        value => value.as_u64()?.to_string(),
    };
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let power = match unit {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        "p" | "pb" => 50,
        _ => return None,
    };
    count.checked_mul(1 << power)
}

fn cpu_numbers(value: &Value) -> Option<Vec<String>> {
    let items: Vec<String> = match value {
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        }
        Value::String(text) => vec![text.clone()],
        _ => return None,
    };
    let ranges = items.iter().flat_map(|item| item.split(',')).map(str::trim).filter(|range| !range.is_empty());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_range = |range: &str| range.split_once('-').map_or(is_number(range), |(a, b)| is_number(a) && is_number(b));
    ranges.map(|range| is_range(range).then(|| range.to_owned())).collect()
}

fn devices(value: &Value) -> Option<Vec<AllowedDevice>> {
    let one = |item: &Value| match item {
        Value::String(text) => Some(AllowedDevice::Numbers(text.clone())),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().map(Value::as_str).collect::<Option<_>>()?;
            match words.as_slice() {
                [name, access] => Some(AllowedDevice::Named((*name).to_owned(), (*access).to_owned(), None)),
                [name, access, minors] => {
                    Some(AllowedDevice::Named((*name).to_owned(), (*access).to_owned(), Some((*minors).to_owned())))
                }
                _ => None,
            }
        }
        _ => None,
    };
    value.as_array()?.iter().map(one).collect()
}
