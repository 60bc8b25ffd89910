// SPDX-License-Identifier: GPL-2.0-or-later
//! What HTCondor's startd says of a slot, and its schedd of a local job. An input is what a socket or a pipe holds, and then the name of a
//! user, which nobody checks: nothing that counts changes by it.

use jobfence::schedulers::htcondor::job_ad::{CondorRelease, JobAd};
use jobfence::schedulers::htcondor::slot_ad::{SlotAd, SlotJob};

use super::{is_readable, text};

pub const WORDS: &[&str] = &[
    "\0",
    "\0\0\0\0\0\0\0\x02",
    "\x01\0\0\0\x40",
    "\0\0\0\0\x40",
    "Name = \"slot1@a\"\0",
    "Cpus = 64\0",
    "Memory = 1e9\0",
    "JobId = \"7.0\"\0",
    "GlobalJobId = \"a#7.0#1\"\0",
    "RemoteUser = \"a\\\"@b\"\0",
    "AccountingGroup = \"g.a@b\"\0",
    "Owner = \"alice\"\n",
    "OsUser = \"bob@x\"\n",
    "$CondorVersion: 23.9.6 ",
    "undefined",
];

/// An ad, in one packet.
fn ad(attributes: &[String]) -> Vec<u8> {
    let mut content = (attributes.len() as u64).to_be_bytes().to_vec();
    for one in attributes {
        content.extend_from_slice(one.as_bytes());
        content.push(0);
    }
    let mut bytes = vec![1];
    bytes.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(&content);
    bytes
}

pub fn run(data: &[u8]) {
    match SlotAd::parse(data) {
        Ok(None) => {}
        Ok(Some(slot)) => assert!(!slot.slot.as_str().is_empty()),
        Err(error) => is_readable(&error.to_string()),
    }
    if let Err(error) = SlotJob::parse(&text(data)) {
        is_readable(&error.to_string());
    }
    let _ = CondorRelease::parse(&text(data));
    let release = || Ok(CondorRelease::parse("$CondorVersion: 25.14.1 $").expect("a release"));
    if let Err(error) = JobAd::parse(&text(data)).and_then(|ad| Ok(ad.user(release).map(drop)?)) {
        is_readable(&error.to_string());
    }
    // Neither is in a text: a byte of zero ends it, and condor_status writes an end of a line otherwise.
    let name: String = text(data).chars().filter(|c| !['\0', '\n', '\r'].contains(c)).collect();
    let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
    let of_user = |name: &str| {
        let all = ["Name = \"slot1_1@n\"", "Cpus = 2", "Memory = 100"].map(str::to_owned);
        let last = format!("RemoteUser = \"{name}\"");
        SlotAd::parse(&ad(&[&all[..], &[last]].concat())).expect("an ad").expect("all of it")
    };
    assert_eq!(of_user(&quoted), of_user("x"));
    let job = SlotJob::parse(&format!("JobId = \"7.0\"\nRemoteUser = \"{quoted}\"\n")).expect("a job");
    assert_eq!(job.job.as_ref().map(|job| job.as_str()), Some("7.0"));
    assert_eq!(job.user.as_deref(), Some(name.as_str()));
    let local = format!("Args = \"{quoted}\"\nOwner = \"alice\"\nUser = \"alice@x\"\nZ = \"{quoted}\"\n");
    assert_eq!(JobAd::parse(&local).expect("a local job").user(release), Ok("alice"));
}
