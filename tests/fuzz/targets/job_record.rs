// SPDX-License-Identifier: GPL-2.0-or-later
//! The record of a job, as `record`.

use jobfence::facts::{Facts, Gpus};
use jobfence::record::job::{JobRecord, is_device, is_name, parse_gpus};

use super::text;

pub const WORDS: &[&str] = &[
    "jobfence-job 2\n",
    "boot_id=",
    "written=",
    "pid_namespace=",
    "owner_pid=0\n",
    "owner_start=",
    "uid=",
    "partition==",
    "qos=?\n",
    "account==chem\n",
    "cpus=",
    "gpus=0,3\n",
    "gpu_devices=/dev/a,/dev/b\n",
    "gpus_unknown=why\n",
    "end\n",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    if let Some(gpus) = parse_gpus(&text) {
        assert!(gpus.len() <= 1024);
    }
    let Ok(record) = JobRecord::parse(&text) else { return };
    let mut facts = Facts::default();
    record.add_to(&mut facts);
    for fact in [&facts.partition, &facts.qos, &facts.account] {
        assert!(fact.known().is_none_or(|name| is_name(name)));
    }
    if let Gpus::Devices(devices) = &facts.gpus {
        assert!(!devices.is_empty() && devices.iter().all(|(_, path)| is_device(path)));
    }
    assert!(record.cpus != Some(0) && record.writer.as_ref().is_none_or(|(owner, _)| owner.pid > 0));
    let written = record.to_string();
    assert_eq!(JobRecord::parse(&written).as_ref().ok(), Some(&record), "{written:?}");
    let short = written.len() < 4096;
    for length in (0..written.len()).filter(|length| short && written.is_char_boundary(*length)) {
        assert!(JobRecord::parse(&written[..length]).is_err(), "cut after {length} bytes: {written:?}");
    }
}
