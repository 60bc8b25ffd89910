// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence.service, as 'jobfence enable' and 'jobfence disable' switch it, and what systemd says of other units.

use std::time::{Duration, Instant};

use jobfence::cgroup::layout::{Hierarchy, Layout};
use jobfence::sys::program::{AskedProgram, Silence};

use crate::command::Failure;

pub const SERVICE: &str = "jobfence.service";
/// Longer than systemd lets a service start or stop (`DefaultTimeoutStartSec` of systemd-system.conf(5) is 90 seconds).
const PATIENCE: Duration = Duration::from_secs(300);

/// The service's previous state.
pub struct Service {
    pub enabled: bool,
    pub active: bool,
}

impl Service {
    /// Starts it, now and at every boot.
    pub fn start() -> Result<Self, Failure> {
        // 'make install' or a package may just have installed the unit file.
        systemctl(&["daemon-reload"])?;
        let before = Self::now();
        systemctl(&["enable", "--now", SERVICE]).map_err(|error| {
            before.restore();
            format!("{error} (see 'systemctl status {SERVICE}')")
        })?;
        Ok(before)
    }

    fn now() -> Self {
        let asked = |question| systemctl(&[question, "--quiet", SERVICE]).is_ok();
        Self { enabled: asked("is-enabled"), active: asked("is-active") }
    }

    /// Restores the previous state, as far as possible.
    pub fn restore(&self) {
        if !self.enabled {
            let _ = systemctl(&["disable", SERVICE]);
        }
        if !self.active {
            let _ = systemctl(&["stop", SERVICE]);
        }
    }

    /// Lets it run on, but not from the next boot on.
    pub fn disable() -> Result<(), Failure> {
        if exists() { systemctl(&["disable", SERVICE]) } else { Ok(()) }
    }

    /// Stops it. That does not affect jobs.
    pub fn stop() -> Result<(), Failure> {
        if exists() { systemctl(&["disable", "--now", SERVICE]) } else { Ok(()) }
    }
}

/// The hierarchy in which systemd keeps its units: cgroup2 if it is mounted, `name=systemd` on a pure v1 host.
pub fn systemds_own(layout: &Layout) -> Option<&Hierarchy> {
    let named = || layout.hierarchies.iter().find(|h| h.name.as_deref() == Some("systemd"));
    layout.unified().or_else(named)
}

/// Its state now. `None`: there is no such unit.
pub fn state() -> Option<Service> {
    exists().then(Service::now)
}

fn exists() -> bool {
    systemctl(&["cat", SERVICE]).is_ok()
}

/// What systemd says of a unit.
pub struct UnitProperties {
    pub unit: String,
    properties: Vec<(String, String)>,
}

impl UnitProperties {
    /// Reads what `systemctl show` prints of these units: in their order, with an empty line between two.
    pub fn parse(text: &str, units: &[String]) -> Vec<Self> {
        let of_unit = |(unit, lines): (&String, &str)| {
            let properties = lines.lines().filter_map(|line| line.split_once('='));
            let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            Self { unit: unit.clone(), properties }
        };
        units.iter().zip(text.split("\n\n")).map(of_unit).collect()
    }

    /// The value of one of the properties that were asked for. `None`: this systemd does not know it.
    pub fn value(&self, property: &str) -> Option<&str> {
        self.properties.iter().find(|(name, _)| name == property).map(|(_, value)| value.as_str())
    }
}

/// Asks for properties of units. A unit that does not exist has their defaults.
pub fn show(properties: &[&str], units: &[String], patience: Duration) -> Result<Vec<UnitProperties>, Silence> {
    let mut words = vec!["show".to_owned(), format!("--property={}", properties.join(",")), "--".to_owned()];
    words.extend_from_slice(units);
    let said = AskedProgram::new("systemctl", &words, &[]).ask(Instant::now() + patience)?;
    Ok(UnitProperties::parse(&said, units))
}

/// Stops an empty unit.
pub fn stop_empty(unit: &str) {
    let _ = systemctl(&["stop", unit]);
}

fn systemctl(arguments: &[&str]) -> Result<(), Failure> {
    let asked = AskedProgram::new("systemctl", arguments, &[]).ask(Instant::now() + PATIENCE);
    asked.map(drop).map_err(|why| format!("'systemctl {}' failed: {why}", arguments.join(" ")).into())
}
