// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether systemd-oomd would end jobs when memory runs short on the node, whatever limits they have.
//!
//! It acts below a unit with `ManagedOOMSwap=kill` or `ManagedOOMMemoryPressure=kill`: on a directory that has no other below it, or that
//! the kernel kills as a whole (src/oom/oomd-manager.c). Those are the directories of steps and tasks. `ManagedOOMPreference` is written
//! on the directory of a unit alone, and read from the directory that it acts on: systemd.resource-control(5) says that it does not hold
//! for what is below.

use std::path::Path;
use std::time::Duration;

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::host::Host;
use jobfence::sys::dir::Dir;
use jobfence::sys::systemd::is_systemd;

use super::rows::Rows;
use crate::systemd;

/// The row.
const ROW: &str = "systemd-oomd";

const SERVICE: &str = "systemd-oomd.service";

/// The properties by which it acts below a unit.
const ACTS: [&str; 2] = ["ManagedOOMSwap", "ManagedOOMMemoryPressure"];

/// How long systemd may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says it for the units above the directories of jobs. `has_own`: some of these are jobfence's. `scopes`: the units of a scheduler in a
/// hierarchy that have others.
pub fn say(rows: &mut Rows, host: &Host, has_own: bool, scopes: impl Fn(&Hierarchy) -> Vec<Dir>) {
    let Some(unified) = host.layout.unified().filter(|unified| unified.version == Version::V2) else { return };
    if !is_systemd() {
        return;
    }
    let own = has_own.then(|| units(Path::new(&host.base)));
    let scopes = scopes(unified);
    let theirs = scopes.iter().filter_map(|scope| Some(units(scope.path().strip_prefix(&unified.mount).ok()?)));
    let mut asked = vec![SERVICE.to_owned()];
    for unit in own.into_iter().chain(theirs).flatten() {
        if !asked.contains(&unit) {
            asked.push(unit);
        }
    }
    // Without the daemon, systemd may know no such properties either.
    if let Ok(shown) = systemd::show(&["ActiveState", ACTS[0], ACTS[1]], &asked, PATIENCE) {
        acting(&shown).iter().for_each(|(unit, properties)| rows.remark(ROW, in_words(unit, properties)));
    }
}

/// The units of which a path of directories consists, outermost first, with the slice of all.
fn units(path: &Path) -> Vec<String> {
    let names = path.iter().filter_map(|name| name.to_str());
    let is_unit = |name: &&str| [".slice", ".scope", ".service"].iter().any(|kind| name.ends_with(kind));
    ["-.slice"].into_iter().chain(names.take_while(is_unit)).map(str::to_owned).collect()
}

/// The units below which it acts, with the properties that say so. None if it does not run.
fn acting(shown: &[systemd::UnitProperties]) -> Vec<(&str, Vec<&str>)> {
    let Some((service, units)) = shown.split_first() else { return Vec::new() };
    if service.value("ActiveState") != Some("active") {
        return Vec::new();
    }
    let of_unit =
        |unit: &'_ systemd::UnitProperties| ACTS.into_iter().filter(|name| unit.value(name) == Some("kill")).collect();
    let all = units.iter().map(|unit| (unit.unit.as_str(), of_unit(unit)));
    all.filter(|(_, properties): &(_, Vec<&str>)| !properties.is_empty()).collect()
}

fn in_words(unit: &str, properties: &[&str]) -> String {
    let set = |value: &str| properties.iter().map(|name| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
    format!(
        "it acts below {unit}, where jobs are ({}): if memory runs short there, it kills a step, whatever limits that has. \
         'systemctl set-property -- {unit} {}' spares jobs; ManagedOOMPreference of a unit does not hold for the steps below it",
        set("kill"),
        set("auto")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systemd::UnitProperties;

    #[test]
    fn the_units_above_jobs_are_asked_about() {
        let of = |path: &str| units(Path::new(path)).join(" ");
        assert_eq!(of("jobfence.slice/jobfence.scope"), "-.slice jobfence.slice jobfence.scope");
        assert_eq!(of("system.slice/slurmstepd.scope/job_1"), "-.slice system.slice slurmstepd.scope");
        assert_eq!(of("site"), "-.slice");
    }

    #[test]
    fn it_is_said_of_each_unit_below_which_it_acts_and_only_if_it_runs() {
        let shown = |state: &str| {
            let asked = [SERVICE, "-.slice", "a.slice", "b.scope"].map(str::to_owned);
            let text = format!(
                "ActiveState={state}\n\nManagedOOMSwap=kill\nManagedOOMMemoryPressure=auto\nActiveState=active\n\n\
                 ManagedOOMMemoryPressure=kill\nManagedOOMSwap=kill\n\nManagedOOMSwap=auto\n"
            );
            UnitProperties::parse(&text, &asked)
        };
        let running = shown("active");
        let found = acting(&running);
        let [root, slice] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(root, &("-.slice", vec!["ManagedOOMSwap"]));
        assert_eq!(slice, &("a.slice", vec!["ManagedOOMSwap", "ManagedOOMMemoryPressure"]));
        assert!(in_words(slice.0, &slice.1).contains(
            "'systemctl set-property -- a.slice ManagedOOMSwap=auto ManagedOOMMemoryPressure=auto' spares jobs"
        ));
        assert!(acting(&shown("inactive")).is_empty());
        assert!(acting(&[]).is_empty());
    }
}
