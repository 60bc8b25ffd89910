// SPDX-License-Identifier: GPL-2.0-or-later
//! `docs/facts.md` says whose word each fact and number of Grid Engine's is, and what becomes of nonsense: each row is fed with some, as a
//! user would write it. `tests/pbs/replay.py` does the same for OpenPBS.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jobfence::config::{self, Loaded, PerSlot, SlotRequest};
use jobfence::door::life;
use jobfence::facts::{Fact, Facts};
use jobfence::launch::{Answer, NotFenced};
use jobfence::requests::{REQUESTS, Requests};
use jobfence::scheduler::gridengine::spool::{OF_EXECD, SpooledJob};

/// A job as execd writes it.
const CONFIG: &str = "stdout_path=/home/a\nstderr_path=/home/b\nstdin_path=/dev/null\nmerge_stderr=0\nh_rt=60\nh_vmem=100M\n\
                      h_vmem_is_consumable_job=0\njob_owner=root\nsuspend_method=NONE\npe=mpi\npe_slots=5\nhost_slots=2\n\
                      queue=all.q\nhost=node1\nbinding=NULL\njob_name=x\njob_id=7\nja_task_id=0\npe_task_id=1.node2\naccount=sge\n\
                      submission_time=1\nnotify=0\nacct_project=none\nqueue_tmpdir=/tmp\n";
const ENVIRONMENT: &str = "JOBFENCE_REQUESTED=mem_free=60M,gpu=1\nJOBFENCE_CPU_LIMIT=0.5\n";
const NONSENSE: [&str; 6] = ["nonsense", "-1", "0x", "1:0:0", "1e999", "\u{fffd}"];

/// The keys of the table, each with the word in the last column.
fn rows() -> Vec<(String, String)> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/facts.md")).unwrap();
    let (_, table) = page.split_once("\n## Grid Engine\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let mut found = Vec::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [keys, _, _, word] = cells.as_slice() else { panic!("{line}") };
        found.extend(keys.split(", ").map(|key| (key.trim_matches('`').to_owned(), (*word).to_owned())));
    }
    found
}

/// The job where this key has another value, or one more.
fn parse(key: &str, value: &str, is_one_more: bool) -> Result<SpooledJob, NotFenced> {
    let [config, environment] = [CONFIG, ENVIRONMENT].map(|text| {
        let is_here = key.starts_with("JOBFENCE_") == (text == ENVIRONMENT);
        let is_it = |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with('='));
        let new = format!("{key}={value}");
        let is_there = text.lines().any(is_it) && !is_one_more;
        let kept = text.lines().map(|line| if is_it(line) && is_there { new.as_str() } else { line });
        let more = (is_here && !is_there).then_some(new.as_str());
        kept.chain(more).map(|line| format!("{line}\n")).collect::<String>()
    });
    SpooledJob::parse(&config, "7.1", None)?.with_environment(&environment)
}

/// All by which it is limited.
fn limits(job: &SpooledJob) -> (u32, u32, Option<u64>, Option<u64>, u64, Requests, Facts) {
    let of = |name| vec![SlotRequest::of(name, PerSlot::AsCounted)];
    let memory = |name| job.memory(&of(name));
    (
        job.uid,
        job.slots,
        memory("h_vmem"),
        memory("mem_free"),
        job.gpus(&of("gpu")),
        job.asked.clone(),
        job.facts.clone(),
    )
}

fn loaded(text: &str) -> Loaded {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    config::load(&[format!("config={}", file.path().display()).as_bytes()]).unwrap()
}

/// Whether it goes on without a fence, where only OnError could refuse it.
fn goes_on(why: NotFenced) -> bool {
    match life::of_unknown(Ok(loaded("OnError=warn\n")), why) {
        Answer::Refused(_) => false,
        Answer::Unfenced { .. } => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nonsense_becomes_what_the_page_says() {
    let usual = limits(&parse("job_name", "x", false).unwrap());
    for (key, word) in rows() {
        for value in NONSENSE {
            let job = parse(&key, value, false);
            let what = format!("{key}={value} is {word}: {job:?}");
            match (word.as_str(), job) {
                ("refused", Err(why)) => assert!(!goes_on(why), "{what}"),
                ("OnError", Err(why)) => assert!(goes_on(why), "{what}"),
                ("name", Ok(mut job)) => {
                    let Facts { partition, pe, project, .. } = &job.facts;
                    let named = [partition, pe, project].into_iter().any(|fact| *fact == Fact::Known(value.to_owned()));
                    assert!(named || job.job.as_str().contains(value), "{what}");
                    job.facts = usual.6.clone();
                    assert_eq!(limits(&job), usual, "{what}");
                }
                ("unknown", Ok(job)) => {
                    let section = loaded(&format!(
                        "MaxProcesses=9\n[Account=\"{value}\"]\nMaxProcesses=unlimited\nMode=observe\n"
                    ));
                    let resolved = section.for_job(&job.facts).unwrap();
                    assert_eq!(resolved.unknown_in_words().as_deref(), Some("Account"), "{what}");
                    assert_eq!(resolved.candidates.len(), 2, "{what}");
                }
                ("none" | "no limit", Ok(job)) => assert_eq!(limits(&job), usual, "{what}"),
                _ => panic!("{what}"),
            }
        }
    }
}

#[test]
fn a_second_value_is_refused() {
    // The job's errors go into another file than its output, so nobody reads where that goes.
    let is_read = |key: &str| key != "stdout_path" && CONFIG.contains(&format!("{key}="));
    for (key, _) in rows().iter().filter(|(key, _)| is_read(key)) {
        assert!(!goes_on(parse(key, "another", true).expect_err(key)), "{key}");
    }
}

#[test]
fn each_key_that_is_read_has_a_row() {
    let code =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scheduler/gridengine/spool.rs")).unwrap();
    let (code, _) = code.split_once("\n#[cfg(test)]\nmod ").unwrap();
    let calls = ["find(\"", "get(\"", "named(\"", "is_none(\""];
    let read = calls.iter().flat_map(|call| code.split(call).skip(1).filter_map(|rest| rest.split('"').next()));
    // By names of constants.
    let more = ["JOBFENCE_REQUESTED", "stdout_path", "stderr_path"].into_iter().chain(OF_EXECD).map(str::to_owned);
    let more = more.chain(["h_vmem_is_consumable_job".to_owned()]);
    let read: BTreeSet<String> =
        read.map(str::to_owned).chain(more).chain(REQUESTS.iter().map(|request| request.variable())).collect();
    assert_eq!(read, rows().into_iter().map(|(key, _)| key).collect());
}
