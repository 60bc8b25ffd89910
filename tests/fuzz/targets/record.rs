// SPDX-License-Identifier: GPL-2.0-or-later
//! The record of a step: what it says is what was written, and no part of one is taken for one.

use jobfence::record::{Header, Record};

use super::{is_readable, text};

pub const WORDS: &[&str] = &[
    "jobfence-record 1\n",
    "jobfence-record 2\n",
    "boot_id=",
    "pid_namespace=",
    "owner_pid=",
    "owner_start=",
    "base=",
    "path=uid_1/job_5/step_0\n",
    "n1/",
    "/..",
    "asked_processes=7\nplan=1\n",
    "noted.user=u\n",
    "noted.partition=q+20\n",
    "noted.project=p\nnoted.cpus=1500\n",
    "noted.memory=9\nplan=1\n",
    "end\n",
    "end",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    let header = Header::parse(&text);
    match Record::parse(&text) {
        Ok(record) => {
            // Whoever reads the beginning alone reads the same.
            let header = header.expect("the beginning of a record");
            assert_eq!((&header.boot_id, &header.pid_namespace), (&record.boot_id, &record.pid_namespace));
            assert_eq!(header.owner, record.owner);
            assert!(record.owner.pid > 0);
            // Nothing leads out of the tree.
            let names = record.levels.iter().map(String::as_str).chain(record.base.split('/'));
            names.for_each(|name| {
                assert!(!name.is_empty() && !name.starts_with('.') && !name.contains(['/', ',', '\0']))
            });
            assert!((3..=4).contains(&record.levels.len()));
            let written = record.to_string();
            assert_eq!(Record::parse(&written).as_ref(), Ok(&record), "{written:?}");
            let short = written.len() < 4096;
            for length in (0..written.len()).filter(|length| short && written.is_char_boundary(*length)) {
                assert!(Record::parse(&written[..length]).is_err(), "cut after {length} bytes: {written:?}");
            }
        }
        Err(error) if text.len() < 1024 => is_readable(&error.to_string().replace('\r', "")),
        Err(_) => {}
    }
}
