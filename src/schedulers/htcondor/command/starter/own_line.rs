// SPDX-License-Identifier: GPL-2.0-or-later
//! Lines of HTCondor's configuration for the starter that this process becomes, and for no other daemon.
//!
//! Each of HTCondor's daemons takes `_CONDOR_NAME` of its environment for a line of its configuration (the manual's "Configuration", in each
//! release). A site's line can be for some daemons alone: a starter takes the line with its local name before NAME, then the one with its
//! subsystem, and then the plain one (`lookup_macro`). So each of ours stands in all of these forms.

use std::ffi::OsString;

/// As each starter is called there.
const SUBSYSTEM: &str = "STARTER";

/// Has the starter read this line. `local_name` is the one that the starter has.
pub fn set(key: &str, value: &str, local_name: Option<&str>) {
    forms(key, local_name).iter().for_each(|name| set_variable(name, value));
}

fn forms(key: &str, local_name: Option<&str>) -> Vec<String> {
    let prefixes = [Some(String::new()), Some(format!("{SUBSYSTEM}.")), local_name.map(|name| format!("{name}."))];
    prefixes.into_iter().flatten().map(|prefix| format!("_CONDOR_{prefix}{key}")).collect()
}

/// HTCondor takes names in capitals and in small letters for the same. So another spelling of it does not stay beside ours.
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
