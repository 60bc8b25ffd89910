// SPDX-License-Identifier: GPL-2.0-or-later
//! What execd of Grid Engine writes of a job. An input is a whole file, and then the name of a job, which its user has chosen: nothing
//! that counts changes by it.

use jobfence::config::{PerSlot, SlotRequest};
use jobfence::facts::{Fact, Facts};
use jobfence::schedulers::gridengine::amount::bytes;
use jobfence::schedulers::gridengine::spool::SpooledJob;

use super::{is_readable, text};

pub const WORDS: &[&str] = &[
    "\n",
    "=",
    "job_id=9",
    "ja_task_id=3",
    "job_owner=daemon",
    "host_slots=64",
    "h_vmem=1.5G",
    "h_vmem=INFINITY",
    "h_vmem_is_consumable_job=1",
    "queue=x",
    "acct_project=x",
    "account=x",
    "pe_task_id=1.node1",
    "notify=60",
    "suspend_method=/x",
    "merge_stderr=1",
    "stderr_path=/etc/passwd",
    "host_slots=2",
    "pe=mpi",
    "pe_slots=2",
    "host=node1",
    "node1 3 all.q <NULL>",
    "job_arg1=x",
    "job_owner bob",
    "submission_time=1",
];

const BEFORE: &str = "stdout_path=/home/a\nstderr_path=/home/b\nstdin_path=/dev/null\nmerge_stderr=0\nh_vmem=100M\nh_vmem_is_consumable_job=0\njob_owner=root\n\
                      suspend_method=NONE\npe=none\nhost_slots=2\nqueue=all.q\njob_name=";
const BEHIND: &str = "\njob_id=7\nja_task_id=0\naccount=sge\nsubmission_time=1\nnotify=0\nacct_project=none\n";

pub fn run(data: &[u8]) {
    let text = text(data);
    match SpooledJob::parse(&text, "7.1", None) {
        Ok(job) => assert!(job.slots > 0 && job.slave_task.is_none_or(|task| task.as_str() == "7.1")),
        Err(error) => is_readable(&error.to_string()),
    }
    let of_user = |name: &str| SpooledJob::parse(&format!("{BEFORE}{name}{BEHIND}"), "7.1", Some(&text));
    let plain = of_user("x").expect("a job");
    if let Ok(named) = of_user(&text) {
        let memory = |job: &SpooledJob| job.memory(&[SlotRequest::new("h_vmem", PerSlot::AsCounted)]);
        assert_eq!((&named.job, named.uid, named.slots), (&plain.job, plain.uid, plain.slots));
        // The name itself is its user's.
        let facts = |job: &SpooledJob| Facts { job_name: Fact::Unknown, ..job.facts.clone() };
        assert_eq!(
            (memory(&named), facts(&named), &named.errors_path),
            (memory(&plain), facts(&plain), &plain.errors_path)
        );
        assert_eq!((&named.slave_task, named.is_stopped_at_once), (&None, true));
    }
    if let Some(Some(amount)) = text.lines().next().and_then(bytes) {
        assert!(amount == 0 || text.contains(|c: char| ('1'..='9').contains(&c)));
    }
}
