// SPDX-License-Identifier: GPL-2.0-or-later
//! HTCondor from 23.9 on. For each job the startd runs the program that `STARTER` of its configuration names, as root. jobfence takes that
//! place under the starter's name: it fences itself, then becomes the starter. For a job of the local universe the schedd does the same
//! with `STARTER_LOCAL`.

use crate::printable::printable;

pub mod asked;
pub mod card;
pub mod environment;
pub mod job_ad;
pub mod query;
pub mod settings;
pub mod slot_ad;
pub mod slot_gpus;
mod value;

/// The directory in `RunDir` for answers of HTCondor's programs that are kept from one job to the next.
pub const KEPT: &str = "htcondor";

/// The hint for a job whose ad has a line end in a text, or an attribute twice.
const NO_LINE_END: &str = "a text of the job has an end of a line in it: submit the job without";

/// The name of the program that runs one job.
pub const STARTER: &str = "condor_starter";

/// The fence's directory for the starter. HTCondor makes the job's own directories beside it, in the parent of the starter's
/// (`VanillaProc::StartJob` of 23.9 and 25.14).
pub const STARTERS_LEAF: &str = "starter";

/// The first directory that HTCondor makes beside the starter's, unless its configuration sets `BASE_CGROUP`.
pub const JOBS_BRANCH: &str = "htcondor";

/// The fence's directory in which Docker makes the cgroups of the job's containers.
pub const CONTAINERS_BRANCH: &str = "docker";

/// The step's name of a job of the local universe, which has no slot. Also its slot type for sections of the configuration.
pub const LOCAL: &str = "local";

/// The text as a ClassAd string, in one line.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, ' ').replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::facts::Fact;
    use crate::job::{Cpus, Id};

    /// The recording of this name from each release, with its directory (tests/htcondor/record.py).
    fn recorded(name: &str) -> Vec<(String, String)> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/htcondor/recorded");
        let one = |release: std::io::Result<std::fs::DirEntry>| {
            let place = release.unwrap().path();
            (place.display().to_string(), std::fs::read_to_string(place.join(name)).unwrap())
        };
        let found: Vec<_> = std::fs::read_dir(top).unwrap().map(one).collect();
        assert!(!found.is_empty());
        found
    }

    /// The message of a recording that has a line for each number and each text.
    fn message_of(text: &str) -> Vec<u8> {
        let bytes = |line: &str| match line.parse::<u64>() {
            Ok(number) => number.to_be_bytes().to_vec(),
            Err(_) => [line.as_bytes(), b"\0"].concat(),
        };
        let content: Vec<u8> = text.lines().flat_map(bytes).collect();
        [&[1][..], &u32::try_from(content.len()).unwrap().to_be_bytes(), &content].concat()
    }

    #[test]
    fn what_a_startd_has_said_is_understood() {
        for (release, text) in recorded("slot/ad") {
            let slot = slot_ad::SlotAd::parse(&message_of(&text)).unwrap().unwrap();
            assert_eq!((slot.name.as_str(), slot.slot.as_str()), ("slot1_1@node1", "slot1_1"), "{release}");
            assert_eq!((slot.cpus, slot.memory, slot.gpus.count), (Cpus::whole(1), 100 << 20, 1), "{release}");
            assert!(slot.gpus.names.is_some_and(|names| names.starts_with("GPU-")), "{release}");
        }
        let answers = recorded("slot/answer");
        for ((release, text), (_, printed)) in answers.iter().zip(recorded("slot/status")) {
            let job = query::answer(&message_of(text)).unwrap().unwrap();
            assert_eq!(slot_ad::SlotJob::parse(&printed).as_ref(), Ok(&job), "{release}: by condor_status");
            assert_eq!(
                (job.user.as_deref(), job.os_user.as_deref()),
                (Some("alice@node1"), Some("alice")),
                "{release}"
            );
            assert!(job.job.is_some() && job.wants_owner == Some(true), "{release}");
            assert_eq!(job.facts(None, None).account, Fact::Claimed("group_a".to_owned()), "{release}");
            asks_for_all(&job.asked, release);
        }
    }

    fn asks_for_all(asked: &crate::requests::Requests, release: &str) {
        assert_eq!(asked.cpu_limit, Some(Cpus::from_thousandths(500)), "{release}");
        assert_eq!((asked.mem_high, asked.pids_max), (Some(80 << 20), Some(100)), "{release}");
        assert!(asked.cpu_burst.is_some() && !asked.io_max.is_empty() && asked.usage_card.is_some(), "{release}");
    }

    #[test]
    fn what_a_schedd_has_said_is_understood() {
        for (release, text) in recorded("local/ad") {
            let ad = job_ad::JobAd::parse(&text).unwrap_or_else(|why| panic!("{release}: {why}"));
            assert_eq!(ad.user(|| panic!("it is clear")), Ok("alice"), "{release}");
            assert_eq!(ad.facts("alice").account, Fact::Claimed("group_a".to_owned()), "{release}");
            assert!(ad.global_job.as_deref().is_some_and(|name| name.starts_with("node1#")), "{release}");
            asks_for_all(&ad.asked, &release);
        }
    }

    #[test]
    fn what_condor_config_val_has_printed_is_understood() {
        for name in ["slot/settings", "local/settings"] {
            for (release, text) in recorded(name) {
                let settings = settings::StarterSettings::parse(&text).unwrap();
                assert!(!settings.has_own_memory_limit && settings.job_environment.as_deref() == Some(""), "{release}");
                assert_eq!(settings.branch, JOBS_BRANCH, "{release}");
                assert!(settings::StarterSettings::sources(&text).is_some_and(|paths| paths.len() > 3), "{release}");
            }
        }
        for question in settings::StarterSettings::questions(&Id::new("slot1_1").unwrap()) {
            let (name, _) = question.split_once(" = ").unwrap();
            assert!(recorded("slot/settings").iter().all(|(_, text)| text.contains(&format!("\n{name} ="))), "{name}");
        }
    }

    #[test]
    fn a_sentence_stays_one_text() {
        assert_eq!(quoted("a \"b\"\nc\\"), "\"a \\\"b\\\" c\\\\\"");
    }
}
