// SPDX-License-Identifier: GPL-2.0-or-later
//! Settings of HTCondor for the starter that this process becomes, and for no other daemon.
//!
//! Each daemon of HTCondor takes `_CONDOR_NAME` of its environment for the setting NAME (the manual's "Configuration", in each release). A
//! site's setting can be for some daemons alone: a starter takes NAME behind its local name first, then NAME behind its subsystem, and then
//! the plain NAME (`lookup_macro`). So jobfence sets each of these forms.

use std::ffi::OsString;

/// The subsystem of each starter.
const SUBSYSTEM: &str = "STARTER";

/// Has the starter read this setting. `local_name`: the starter's local name.
pub fn set(key: &str, value: &str, local_name: Option<&str>) {
    forms(key, local_name).iter().for_each(|name| set_variable(name, value));
}

fn forms(key: &str, local_name: Option<&str>) -> Vec<String> {
    let prefixes = [Some(String::new()), Some(format!("{SUBSYSTEM}.")), local_name.map(|name| format!("{name}."))];
    prefixes.into_iter().flatten().map(|prefix| format!("_CONDOR_{prefix}{key}")).collect()
}

/// Sets a variable, and removes its other spellings: HTCondor ignores the case of names.
pub fn set_variable(name: &str, value: &str) {
    let is_it = |found: &OsString| found.to_str().is_some_and(|found| found.trim_end().eq_ignore_ascii_case(name));
    let others: Vec<OsString> = std::env::vars_os().map(|(found, _)| found).filter(is_it).collect();
    // SAFETY: this process has one thread.
    unsafe {
        others.iter().for_each(|found| std::env::remove_var(found));
        std::env::set_var(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_stands_in_each_form_that_a_starter_looks_for() {
        let plain = ["_CONDOR_A", "_CONDOR_STARTER.A"];
        assert_eq!(forms("A", None), plain);
        assert_eq!(forms("A", Some("slot_type_1")), [&plain[..], &["_CONDOR_slot_type_1.A"]].concat());
    }
}
