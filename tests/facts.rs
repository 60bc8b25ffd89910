// SPDX-License-Identifier: GPL-2.0-or-later
//! `docs/facts.md` names the source of each fact and number that an entry point accepts, and what happens with invalid values. Each row of
//! Grid Engine and of HTCondor is fed with some, as a user would write them; for Slurm, what the prolog and a step are told. Slurm's rows
//! that users write have their cases in `tests/slurm`, too, and those of OpenPBS in `tests/pbs/replay.py`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jobfence::config::{self, Config, Loaded, PerSlot, SlotRequest};
use jobfence::doors::life;
use jobfence::facts::{Fact, Facts, Gpus};
use jobfence::host::Host;
use jobfence::hostlist::HostList;
use jobfence::job::Name;
use jobfence::launch::{Answer, NotFenced};
use jobfence::record::job::JobRecord;
use jobfence::requests::{self, REQUESTS, Requests};
use jobfence::schedulers::gridengine::spool::{OF_EXECD, SpooledJob};
use jobfence::schedulers::htcondor::asked;
use jobfence::schedulers::htcondor::job_ad::JobAd;
use jobfence::schedulers::htcondor::slot_ad::{SlotAd, SlotJob};
use jobfence::schedulers::slurm::prolog::prolog;
use jobfence::schedulers::slurm::spank::api::bindings::spank_item;
use nix::unistd::User;

mod common;
mod stand_in;

use stand_in::StandIn;

/// A job as execd writes it.
const CONFIG: &str = "stdout_path=/home/a\nstderr_path=/home/b\nstdin_path=/dev/null\nmerge_stderr=0\nh_rt=60\nh_vmem=100M\n\
                      h_vmem_is_consumable_job=0\njob_owner=root\nsuspend_method=NONE\npe=mpi\npe_slots=5\nhost_slots=2\n\
                      queue=all.q\nhost=node1\nbinding=NULL\njob_name=x\njob_id=7\nja_task_id=0\npe_task_id=1.node2\naccount=sge\n\
                      submission_time=1\nnotify=0\nacct_project=none\nqueue_tmpdir=/tmp\n";
const ENVIRONMENT: &str = "JOBFENCE_REQUESTED=mem_free=60M,gpu=1\nJOBFENCE_CPU_LIMIT=0.5\n";
/// What our tests take for execd's: in which file, and between which words.
const STAND_INS: [(&str, &str, &str); 5] = [
    ("tests/facts.rs", "\nconst CONFIG: &str = \"", "\";"),
    ("tests/capacity.rs", "printf '%s\\n' job_owner", " >config"),
    ("tests/fuzz/corpus/spool/job", "", "\0"),
    ("src/schedulers/gridengine/spool.rs", "const JOB: &str = \"", "\";"),
    ("src/schedulers/gridengine/client.rs", "const QRSH: &str = \"", "\";"),
];
/// What no recording has, and yet some execd writes: that of the fork at github.com/daimh/sge.
const OF_OTHERS: [&str; 1] = ["h_rt"];
const NONSENSE: [&str; 6] = ["nonsense", "-1", "0x", "1:0:0", "1e999", "\u{fffd}"];

/// The keys of the tables under this heading, each with the word in the last column.
fn rows_of(heading: &str) -> Vec<(String, String)> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/facts.md")).unwrap();
    let (_, table) = page.split_once(&format!("\n{heading}\n")).unwrap();
    let table = table.split_once("\n## ").map_or(table, |(table, _)| table);
    let table = table.split_once("\n### ").map_or(table, |(table, _)| table);
    let mut found = Vec::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [keys, _, _, word] = cells.as_slice() else { panic!("{line}") };
        found.extend(keys.split(", ").map(|key| (key.trim_matches('`').to_owned(), (*word).to_owned())));
    }
    found
}

/// The keys that execd has written, in tests/gridengine/recorded.
fn recorded() -> BTreeSet<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gridengine/recorded");
    let below = |top: PathBuf| fs::read_dir(top).unwrap().map(|entry| entry.unwrap().path());
    let texts = below(top).flat_map(below).map(|job| fs::read_to_string(job.join("config")).unwrap());
    texts.flat_map(|text| text.lines().map(key).collect::<Vec<_>>()).collect()
}

/// Of an argument, the number does not count.
fn key(line: &str) -> String {
    let key = line.split('=').next().unwrap();
    if key.starts_with("job_arg") { key.trim_end_matches(|digit: char| digit.is_ascii_digit()) } else { key }.to_owned()
}

#[test]
fn no_stand_in_of_execd_knows_what_execd_does_not_write() {
    let known = recorded();
    for (file, begin, end) in STAND_INS {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let text = text.split_once(begin).unwrap_or_else(|| panic!("{file} has no {begin:?}")).1;
        let text = text.split_once(end).map_or(text, |(text, _)| text);
        let pieces = text.split("\\n").flat_map(|piece| piece.split(['\n', ' '])).map(|piece| piece.trim_matches('\\'));
        let keys: Vec<String> =
            pieces.filter(|piece| piece.contains('=')).map(key).filter(|key| !key.is_empty()).collect();
        assert!(keys.len() > 4, "{file}: {keys:?}");
        let unknown: Vec<&String> =
            keys.iter().filter(|key| !known.contains(*key) && !OF_OTHERS.contains(&key.as_str())).collect();
        assert!(unknown.is_empty(), "{file} has keys that no recording has: {unknown:?}");
    }
    // What the page tells is no stand-in's, either.
    for (key, _) in rows().iter().filter(|(key, _)| !key.starts_with("JOBFENCE_")) {
        assert!(known.contains(key) || OF_OTHERS.contains(&key.as_str()), "docs/facts.md has {key}");
    }
}

fn rows() -> Vec<(String, String)> {
    rows_of("## Grid Engine")
}

/// The texts between a call and the end of its first string, in this part of the sources.
fn read_in<'a>(code: &'a str, calls: &[&'a str]) -> BTreeSet<&'a str> {
    let (code, _) = code.split_once("\n#[cfg(test)]\nmod ").unwrap_or((code, ""));
    calls.iter().flat_map(|call| code.split(call).skip(1).filter_map(|rest| rest.split('"').next())).collect()
}

fn source(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file)).unwrap()
}

/// The job with another value for this key, or with a second one.
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

/// All that limits the job.
fn limits(job: &SpooledJob) -> (u32, u32, Option<u64>, Option<u64>, u64, Requests, Facts) {
    let of = |name| vec![SlotRequest::new(name, PerSlot::AsCounted)];
    let memory = |name| job.memory(&of(name));
    (
        job.uid,
        job.slots,
        memory("h_vmem"),
        memory("mem_free"),
        job.gpus(&of("gpu")),
        job.asked.clone(),
        unnamed(job.facts.clone()),
    )
}

fn loaded(text: &str) -> Loaded {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    config::load(&[format!("config={}", file.path().display()).as_bytes()]).unwrap()
}

/// Whether the job goes on without a fence, where only OnError could refuse it.
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
    // If the job's errors go into another file than its output, that file's path is not read.
    let is_read = |key: &str| key != "stdout_path" && CONFIG.contains(&format!("{key}="));
    for (key, _) in rows().iter().filter(|(key, _)| is_read(key)) {
        assert!(!goes_on(parse(key, "another", true).expect_err(key)), "{key}");
    }
}

#[test]
fn each_key_that_is_read_has_a_row() {
    let code = source("schedulers/gridengine/spool.rs");
    let read = read_in(&code, &["find(\"", "get(\"", "named(\"", "is_none(\""]);
    // Read by constants.
    let more = ["JOBFENCE_REQUESTED", "stdout_path", "stderr_path"].into_iter().chain(OF_EXECD).map(str::to_owned);
    let more = more.chain(["h_vmem_is_consumable_job".to_owned()]);
    let read = read.into_iter().map(str::to_owned);
    let read: BTreeSet<String> =
        read.chain(more).chain(requests::everywhere().map(|request| request.variable())).collect();
    assert_eq!(read, keys(rows()));
}

fn keys(rows: Vec<(String, String)>) -> BTreeSet<String> {
    rows.into_iter().map(|(key, _)| key).collect()
}

// ---- HTCondor ---------------------------------------------------------------------------------------------------------------------

/// The slot's ad, and what condor_status says of its job.
const SLOT: [(&str, &str); 21] = [
    ("Name", "\"slot1_1@node1\""),
    ("Cpus", "2"),
    ("Memory", "512"),
    ("GPUs", "1"),
    ("AssignedGPUs", "\"GPU-11111111\""),
    ("Start", "true"),
    ("JobId", "\"12.0\""),
    ("GlobalJobId", "\"node1#12.0#1\""),
    ("RemoteUser", "\"alice@example\""),
    ("AccountingGroup", "\"group_a.alice@example\""),
    ("AcctGroup", "\"group_a\""),
    ("OsUser", "\"alice\""),
    ("RunAsOwner", "true"),
    ("JobfenceCpuLimit", "0.5"),
    ("JobfenceCpuBurst", "20"),
    ("JobfenceMemHigh", "\"2G\""),
    ("JobfencePidsMax", "100"),
    ("JobfenceIoMax", "\"/ wbps=100M\""),
    ("JobfenceUsageCard", "\"always\""),
    ("JobfenceSignalAt", "\"mem:90%,pids:90%\""),
    ("JobfenceElasticRam", "100"),
];
const IN_SLOT: [&str; 6] = ["Name", "Cpus", "Memory", "GPUs", "AssignedGPUs", "Start"];
/// Attributes that may be expressions.
const EXPRESSIONS: [&str; 2] = ["Start", "RunAsOwner"];
const LOCAL: [(&str, &str); 5] = [
    ("Owner", "\"root\""),
    ("OsUser", "\"root\""),
    ("User", "\"root@example\""),
    ("AccountingGroup", "\"group_a.root@example\""),
    ("GlobalJobId", "\"node1#12.0#1\""),
];

/// An ad in one packet, as the startd sends it.
fn packet(attributes: &[String]) -> Vec<u8> {
    let mut content = (attributes.len() as u64).to_be_bytes().to_vec();
    attributes.iter().for_each(|one| content.extend([one.as_bytes(), b"\0"].concat()));
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&[1][..], &length, &content].concat()
}

fn with<'a>(ad: &'a [(&str, &str)], key: &str, value: &str, is_one: impl Fn(&str) -> bool + 'a) -> Vec<String> {
    let of = |(name, usual): &(&str, &str)| format!("{name} = {}", if *name == key { value } else { usual });
    ad.iter().filter(|(name, _)| is_one(name)).map(of).collect()
}

/// Without the names for reports, by which nothing is limited.
fn unnamed(facts: Facts) -> Facts {
    Facts { global_job: Fact::Unknown, job_name: Fact::Unknown, ..facts }
}

/// All that limits the job in a slot.
type InSlot = (SlotAd, SlotJob, Facts);

fn in_slot(key: &str, value: &str) -> Result<InSlot, NotFenced> {
    let slot = SlotAd::parse(&packet(&with(&SLOT, key, value, |name| IN_SLOT.contains(&name))))?.unwrap();
    let said = with(&SLOT, key, value, |name| !IN_SLOT.contains(&name)).join("\n");
    let mut job = SlotJob::parse(&said).map_err(NotFenced::Asked)?;
    let facts = Facts { gpus: slot.gpus.on_host(|| Some(Vec::new())), ..job.facts(None, None) };
    job.global_job = None;
    Ok((slot, job, unnamed(facts)))
}

fn has_the_strictest(facts: &Facts, section: &str) {
    let loaded = loaded(&format!("MaxProcesses=9\n{section}\nMaxProcesses=unlimited\nMode=observe\n"));
    let resolved = loaded.for_job(facts).unwrap();
    assert_eq!((resolved.candidates.len(), resolved.unknown_in_words().is_some()), (2, true), "{section}: {facts:?}");
}

#[test]
fn nonsense_of_htcondors_becomes_what_the_page_says() {
    let usual = in_slot("", "").unwrap();
    let rows = rows_of("## HTCondor");
    let (rows, local) = rows.split_at(SLOT.len());
    assert_eq!(rows.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), SLOT.map(|(name, _)| name));
    for (key, word) in rows {
        let is_text = SLOT.iter().any(|(name, usual)| name == key && usual.starts_with('"'));
        for value in NONSENSE {
            // A value of the wrong type.
            let of_other_kind = if is_text { value.to_owned() } else { format!("\"{value}\"") };
            if !EXPRESSIONS.contains(&key.as_str()) {
                let why = in_slot(key, &of_other_kind).expect_err(key);
                assert_eq!(goes_on(why), IN_SLOT.contains(&key.as_str()), "{key} = {of_other_kind}");
            }
            let given = if is_text { format!("\"{value}\"") } else { value.to_owned() };
            let found = in_slot(key, &given);
            if word == "refused" {
                assert!(!goes_on(found.expect_err(key)), "{key} = {given}");
                continue;
            }
            let what = format!("{key} = {given} is {word}: {found:?}");
            match (word.as_str(), found) {
                ("OnError", Err(why)) => assert!(goes_on(why), "{what}"),
                ("name", Ok((slot, job, facts))) => {
                    let named = job.job.as_ref().is_some_and(|job| job.as_str() == value);
                    let users = [job.user.as_deref(), job.os_user.as_deref()];
                    let named = named || users.contains(&Some(value)) || slot.slot.as_str() == value;
                    assert!(named, "{what}");
                    let amounts = (slot.cpus, slot.memory, facts.gpus);
                    assert_eq!(amounts, (usual.0.cpus, usual.0.memory, usual.2.gpus.clone()), "{what}");
                }
                // Then it is not certain as which user the job runs, so no section of its owner applies.
                ("unknown", Ok((_, job, _))) if key == "RunAsOwner" => assert_eq!(job.wants_owner, None, "{what}"),
                ("no limit", Ok((slot, job, facts))) => {
                    assert!(!slot.asks_for_health, "{what}");
                    assert_eq!(
                        (slot.cpus, slot.memory, job, facts),
                        (usual.0.cpus, usual.0.memory, usual.1.clone(), usual.2.clone()),
                        "{what}"
                    );
                }
                ("unknown", Ok((slot, _, facts))) => {
                    assert_eq!((slot.cpus, slot.memory), (usual.0.cpus, usual.0.memory), "{what}");
                    has_the_strictest(&facts, &format!("[Account=\"{value}\"]"));
                }
                ("no GPUs", Ok((.., facts))) => assert!(matches!(facts.gpus, Gpus::Unknown(_)), "{what}"),
                _ => panic!("{what}"),
            }
        }
    }
    of_the_local_universe(local);
}

fn of_the_local_universe(rows: &[(String, String)]) {
    assert_eq!(rows.iter().map(|(key, _)| key.as_str()).collect::<BTreeSet<_>>(), LOCAL.map(|(name, _)| name).into());
    // A starter before 24.7 runs it as Owner, and a later one as OsUser, or else as User.
    for (key, word) in rows {
        let others = |name: &str| !["Owner", "OsUser", "User"].contains(&name);
        for value in NONSENSE {
            let parse =
                |value: &str| JobAd::parse(&with(&LOCAL, key, value, |name| name == key || others(name)).join("\n"));
            assert!(!goes_on(parse(value).expect_err(key)), "{key} = {value}");
            let twice = format!("{}\n{key} = \"another\"", with(&LOCAL, "", "", |_| true).join("\n"));
            assert!(!goes_on(JobAd::parse(&twice).expect_err(key)), "{key} twice");
            let ad = parse(&format!("\"{value}\"")).expect(key);
            let what = format!("{key} = {value} is {word}");
            match word.as_str() {
                "OnError" => {
                    let release = if key == "Owner" { "$CondorVersion: 23.9.6 $" } else { "$CondorVersion: 25.14.1 $" };
                    let user =
                        ad.user(|| Ok(jobfence::schedulers::htcondor::job_ad::CondorRelease::parse(release).unwrap()));
                    assert_eq!(user, Ok(value), "{what}");
                    assert!(User::from_name(value).unwrap().is_none(), "{what}");
                }
                "unknown" => has_the_strictest(&ad.facts("root"), &format!("[Account=\"{value}\"]")),
                "no limit" => assert_eq!(
                    unnamed(ad.facts("root")),
                    unnamed(JobAd::parse(&with(&LOCAL, "", "", |_| true).join("\n")).unwrap().facts("root"))
                ),
                _ => panic!("{what}"),
            }
        }
    }
}

/// What our unit tests take for HTCondor's: in these files, attributes and lines of the configuration.
const OF_HTCONDOR: [&str; 8] = [
    "src/schedulers/htcondor/slot_ad.rs",
    "src/schedulers/htcondor/job_ad.rs",
    "src/schedulers/htcondor/query.rs",
    "src/schedulers/htcondor/settings.rs",
    "src/schedulers/htcondor/asked.rs",
    "src/schedulers/htcondor/command/starter.rs",
    "src/schedulers/htcondor/command/starter/kept.rs",
    "src/schedulers/htcondor/command/starter/local.rs",
];
/// What no recording has, and why a test has it all the same.
const NOT_RECORDED: [(&str, &str); 6] = [
    ("JobfenceSignalAt", "an attribute of the user's own, which came after the recordings"),
    ("JobfenceElasticRam", "another one, which came after the recordings"),
    ("A", "an attribute of the user's own"),
    ("Z", "another one"),
    ("CONFIG", "the end of a name"),
    ("CpuLimit", "it is none of ours"),
];
/// The same of variables.
const NO_VARIABLES: [(&str, &str); 2] = [
    ("CONDOR_CONFIG", "the administrator's, where the configuration is elsewhere"),
    ("_CONDOR_NPROCS", "a job of the parallel universe has it"),
];

/// The names of what HTCondor's daemons have said, in small letters, as HTCondor takes any.
fn said_by_htcondor(names: &[&str], between: &str) -> BTreeSet<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/htcondor/recorded");
    let releases: Vec<PathBuf> = fs::read_dir(top).unwrap().map(|release| release.unwrap().path()).collect();
    let text = |(release, name): (&PathBuf, &&str)| fs::read_to_string(release.join(name)).unwrap();
    let texts = releases.iter().flat_map(|release| names.iter().map(move |name| (release, name))).map(text);
    let name = |line: &str| line.split_once(between).map(|(name, _)| name.trim().to_lowercase());
    texts.flat_map(|text| text.lines().filter_map(name).collect::<Vec<_>>()).collect()
}

#[test]
fn no_stand_in_of_htcondor_knows_what_htcondor_does_not_say() {
    let (ad, answer, local) = (["slot/ad"], ["slot/answer"], ["local/ad"]);
    let says = |files: &[&str], name: &str| said_by_htcondor(files, " =").contains(&name.to_lowercase());
    for (name, _) in SLOT.into_iter().filter(|(name, _)| !NOT_RECORDED.iter().any(|(other, _)| other == name)) {
        let files = if IN_SLOT.contains(&name) { &ad } else { &answer };
        assert!(says(files, name), "{name} is not in {files:?} of any recording");
    }
    for (name, _) in LOCAL {
        assert!(says(&local, name), "{name} is not in {local:?} of any recording");
    }
    let known = said_by_htcondor(&["slot/ad", "slot/answer", "local/ad", "slot/settings", "local/settings"], " =");
    let is_known = |name: &str| known.contains(&name.to_lowercase());
    for file in OF_HTCONDOR {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let (_, tests) = text.split_once("\n#[cfg(test)]\nmod tests").unwrap_or_else(|| panic!("{file} has no tests"));
        let pieces = tests.split("\\n").flat_map(|piece| piece.split('"'));
        let names = pieces.filter_map(|piece| piece.trim_start_matches(['\\', '\n', ' ']).split_once(" = "));
        let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        for (name, _) in names.filter(|(name, _)| is_name(name)) {
            let is_named = NOT_RECORDED.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
            assert!(is_known(name) || is_named, "{file} has {name}, which no recording has");
        }
    }
    for (name, why) in NOT_RECORDED {
        assert!(!is_known(name), "{name} is recorded: not ({why})");
    }
}

#[test]
fn each_variable_of_htcondors_that_is_read_is_recorded() {
    let known = said_by_htcondor(&["slot/environment", "local/environment", "slot/job"], "=");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/schedulers/htcondor/command");
    let files = fs::read_dir(top.join("starter")).unwrap().map(|file| file.unwrap().path());
    let mut read = BTreeSet::new();
    for file in files.chain([top.join("starter.rs"), top.join("job.rs")]) {
        let text = fs::read_to_string(file).unwrap();
        let (code, _) = text.split_once("\n#[cfg(test)]\nmod ").unwrap_or((&text, ""));
        let names = code.split('"').filter(|word| word.starts_with("CONDOR_") || word.starts_with("_CONDOR_"));
        // `_CONDOR_` alone is the beginning of the lines of the configuration.
        let is_name = |name: &&str| *name != "_CONDOR_" && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
        read.extend(names.filter(is_name).map(str::to_lowercase));
    }
    assert!(read.contains("condor_inherit") && read.contains("_condor_execute"), "{read:?}");
    let is_named = |name: &&String| NO_VARIABLES.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    let unknown: Vec<&String> = read.difference(&known).filter(|name| !is_named(name)).collect();
    assert!(unknown.is_empty(), "no starter and no job of a recording had {unknown:?}");
    for (name, why) in NO_VARIABLES {
        assert!(!known.contains(&name.to_lowercase()), "{name} is recorded: not ({why})");
    }
}

#[test]
fn each_attribute_that_is_read_has_a_row() {
    let slot = source("schedulers/htcondor/slot_ad.rs");
    let job = source("schedulers/htcondor/job_ad.rs");
    let read = read_in(&slot, &["text(\"", "number(\"", "find(\""]);
    let read = read.union(&read_in(&job, &["find(\""])).map(|key| (*key).to_owned()).collect::<BTreeSet<String>>();
    let read: BTreeSet<String> = read.into_iter().chain(requests::everywhere().map(asked::attribute)).collect();
    assert_eq!(read, keys(rows_of("## HTCondor")));
}

// ---- Slurm ------------------------------------------------------------------------------------------------------------------------

const PROLOG: [(&str, &str); 8] = [
    ("SLURM_JOB_ID", "7"),
    ("SLURM_JOB_UID", "61001"),
    ("SLURM_JOB_PARTITION", "p"),
    ("SLURM_JOB_ACCOUNT", "a"),
    ("SLURM_JOB_QOS", "q"),
    ("SLURM_JOB_CPUS_PER_NODE", "2,4"),
    ("SLURM_JOB_NODELIST", "n[1-2]"),
    ("SLURMD_NODENAME", "n2"),
];

/// What the prolog records, if slurm.conf has only this.
fn noted(slurm_conf: &str, key: &str, value: &str) -> Option<JobRecord> {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("slurm.conf");
    fs::write(&file, slurm_conf).unwrap();
    let config = Config { run_dir: temp.path().join("run"), ..Config::default() };
    let host = Host::read(&config).unwrap();
    let env = |name: &str| match name {
        _ if name == key => Some(value.to_owned()),
        "SLURM_CONF" => Some(file.display().to_string()),
        _ => PROLOG.iter().find(|(usual, _)| *usual == name).map(|(_, value)| (*value).to_owned()),
    };
    let record = prolog(&host, &config, &env).ok().map(|(_, record)| record)?;
    // As another process reads it.
    let read = JobRecord::parse(&record.to_string()).unwrap();
    assert_eq!(read, record, "{key}={value}");
    Some(JobRecord { written: 0, ..read })
}

#[test]
fn nonsense_in_the_prolog_becomes_what_the_page_says() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("needs root");
    }
    let usual = noted("", "", "").unwrap();
    for (key, word) in rows_of("### What the prolog is told") {
        for value in NONSENSE {
            let found = noted("", &key, value);
            let what = format!("{key}={value} is {word}: {found:?}");
            match (word.as_str(), found) {
                ("no record", None) => {}
                // Some of these could be names.
                ("no record", Some(found)) if key == "SLURMD_NODENAME" && Name::new(value).is_ok() => {
                    assert_eq!(JobRecord { cpus: usual.cpus, ..found }, usual, "{what}");
                }
                ("name", Some(found)) => {
                    assert_eq!(
                        found,
                        JobRecord { partition: Fact::Known(value.to_owned()), ..usual.clone() },
                        "{what}"
                    );
                }
                ("unknown", Some(found)) => {
                    let mut facts = Facts::default().of_no_project_vnode_or_pe();
                    found.add_to(&mut facts);
                    let kind = if key == "SLURM_JOB_QOS" { "QOS" } else { "Account" };
                    has_the_strictest(&facts, &format!("[{kind}=\"{value}\"]"));
                    assert_eq!(
                        JobRecord { account: usual.account.clone(), qos: usual.qos.clone(), ..found },
                        usual,
                        "{what}"
                    );
                }
                // The step's own number counts.
                ("none", Some(found)) => {
                    assert!(found.cpus.is_none_or(|cpus| Some(cpus) == usual.cpus), "{what}");
                    assert_eq!(JobRecord { cpus: usual.cpus, ..found }, usual, "{what}");
                }
                ("no GPUs", Some(found)) => {
                    assert!(matches!(found.gpus, Gpus::Unknown(_)), "{what}");
                    assert_eq!(JobRecord { gpus: Gpus::None, ..found }, usual, "{what}");
                }
                _ => panic!("{what}"),
            }
        }
    }
    // Facts that slurmctld has checked.
    let database = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageEnforce=";
    let account = |words: &str| noted(&format!("{database}{words}\n"), "", "").unwrap().account;
    assert_eq!(account("associations"), Fact::Known("a".to_owned()));
    assert_eq!(account("nosteps"), Fact::Claimed("a".to_owned()));
}

/// The items that a step is told, by number.
const ITEMS: [(&str, spank_item::Type); 17] = [
    ("S_JOB_UID", spank_item::S_JOB_UID),
    ("S_JOB_ID", spank_item::S_JOB_ID),
    ("S_JOB_STEPID", spank_item::S_JOB_STEPID),
    ("S_JOB_NCPUS", spank_item::S_JOB_NCPUS),
    ("S_JOB_ALLOC_CORES", spank_item::S_JOB_ALLOC_CORES),
    ("S_STEP_ALLOC_CORES", spank_item::S_STEP_ALLOC_CORES),
    ("S_JOB_ALLOC_MEM", spank_item::S_JOB_ALLOC_MEM),
    ("S_STEP_ALLOC_MEM", spank_item::S_STEP_ALLOC_MEM),
    ("S_JOB_LOCAL_TASK_COUNT", spank_item::S_JOB_LOCAL_TASK_COUNT),
    ("S_JOB_GID", spank_item::S_JOB_GID),
    ("S_JOB_SUPPLEMENTARY_GIDS", spank_item::S_JOB_SUPPLEMENTARY_GIDS),
    ("S_TASK_GLOBAL_ID", spank_item::S_TASK_GLOBAL_ID),
    ("S_TASK_PID", spank_item::S_TASK_PID),
    ("S_TASK_ID", spank_item::S_TASK_ID),
    ("S_TASK_EXIT_STATUS", spank_item::S_TASK_EXIT_STATUS),
    ("S_JOB_ARRAY_ID", spank_item::S_JOB_ARRAY_ID),
    ("S_JOB_ARRAY_TASK_ID", spank_item::S_JOB_ARRAY_TASK_ID),
];

const A_STEP: &str = "### What a step is told";

#[test]
fn what_slurmstepd_does_not_tell_becomes_what_the_page_says() {
    let Some(base) = common::Base::if_root("facts", "step") else { return };
    let temp = tempfile::tempdir().unwrap();
    let Some(stand_in) = StandIn::or_skip(temp.path()) else { return };
    // Groups, and the number of tasks, are only read if the configuration needs them.
    let text = "MaxProcesses=40\nMaxRAMPerTask=100M\n[Group=54321]\nMaxProcesses=30\n";
    let arguments = stand_in::arguments(temp.path(), &base, text);
    let run = |on_error: &str, words: &[&str], variable: Option<(&str, &str)>| {
        let arguments = [&arguments[..], &[format!("OnError={on_error}")]].concat();
        let uid = format!("uid={}", common::uids());
        let words: Vec<String> = words.iter().copied().chain([uid.as_str(), "gids=54322"]).map(str::to_owned).collect();
        let output = stand_in.command(&words, &arguments).envs(variable).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (String::from_utf8_lossy(&output.stdout).contains("ran "), log.contains("WITHOUT a fence"), log)
    };
    let (has_run, is_unfenced, log) = run("fail", &[], None);
    assert!(has_run && !is_unfenced, "{log}");
    for (key, word) in rows_of(A_STEP) {
        let item = ITEMS.iter().find(|(name, _)| *name == key).map(|(_, number)| format!("silent={number}"));
        let nonsense =
            if key.ends_with("_CORES") { vec!["cores=nonsense".to_owned(), "cores=1-".to_owned()] } else { Vec::new() };
        for words in item.into_iter().chain(nonsense) {
            let (has_run, is_unfenced, log) = run("warn", &[&words], None);
            let what = format!("{key} ({words}) is {word}: {log}");
            assert!(has_run, "{what}");
            assert_eq!(is_unfenced, word == "OnError", "{what}");
            let (has_run, is_unfenced, log) = run("fail", &[&words], None);
            // A task without a pid cannot be ended.
            let is_refused = word == "OnError" && key != "S_TASK_PID";
            assert_eq!((has_run, is_unfenced), (!is_refused, key == "S_TASK_PID"), "{key}: {log}");
        }
        // Slurm itself passes options: they are tested under Slurm, as are limits.
        for value in NONSENSE.iter().filter(|_| key.starts_with("SLURM") || key.starts_with('L')) {
            let (has_run, is_unfenced, log) = run("warn", &[], Some((&key, value)));
            let what = format!("{key}={value} is {word}: {log}");
            assert_eq!((has_run, is_unfenced), (word != "refused", false), "{what}");
        }
    }
}

#[test]
fn each_fact_of_slurms_that_is_read_has_a_row() {
    let prolog = ["schedulers/slurm/prolog.rs", "schedulers/slurm/prolog/gpus.rs"].map(source);
    let read = prolog.iter().flat_map(|code| read_in(code, &["env(\"", "number(env, \"", "fact(\""]));
    assert_eq!(read.map(str::to_owned).collect::<BTreeSet<_>>(), keys(rows_of("### What the prolog is told")));

    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/schedulers/slurm/spank");
    let mut read: BTreeSet<String> = BTreeSet::new();
    let files = ["", "step"].iter().flat_map(|below| fs::read_dir(dir.join(below)).unwrap());
    for file in files.map(|entry| entry.unwrap().path()).filter(|path| !path.is_dir()) {
        let code = fs::read_to_string(&file).unwrap();
        let (code, _) = code.split_once("\n#[cfg(test)]\nmod ").unwrap_or((&code, ""));
        let until = |text: &str| text.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect::<String>();
        read.extend(code.split("spank_item::S_").skip(1).map(|rest| format!("S_{}", until(rest))));
        read.extend(code.split("c\"SLURM").skip(1).map(|rest| format!("SLURM{}", until(rest))));
    }
    read.extend(["LC_ALL", "LC_CTYPE", "LANG"].map(str::to_owned));
    for request in REQUESTS {
        read.insert(format!("SLURM_SPANK_{}", request.variable()));
        read.insert(format!("_SLURM_SPANK_OPTION_jobfence_{}", request.name.replace('-', "_")));
    }
    assert_eq!(read, keys(rows_of(A_STEP)));
    let items: BTreeSet<&str> = ITEMS.iter().map(|(name, _)| *name).collect();
    assert_eq!(items, read.iter().map(String::as_str).filter(|key| key.starts_with("S_")).collect());
}

/// Node lists are in `SLURM_JOB_NODELIST`, in slurm.conf, and in sections. Slurm's own command says what they mean.
#[test]
fn lists_of_nodes_are_what_slurm_takes_them_for() {
    let temp = tempfile::tempdir().unwrap();
    let conf = temp.path().join("slurm.conf");
    fs::write(&conf, "ClusterName=c\nSlurmctldHost=h\n").unwrap();
    let slurms = |list: &str| {
        let output = Command::new("scontrol").args(["show", "hostnames", list]).env("SLURM_CONF", &conf).output()?;
        let names = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>();
        // For a list that it refuses, it prints only to stderr.
        std::io::Result::Ok((!names.is_empty()).then_some(names))
    };
    match slurms("n[1-2]") {
        Ok(found) => assert_eq!(found, Some(vec!["n1".to_owned(), "n2".to_owned()])),
        Err(error) => return common::skip(&format!("no scontrol: {error}")),
    }
    let pieces = [
        "n", "a-b", "[1-3]", "[08-11]", "[2,4-5]", "[1-010]", "[3-1]", "[,1]", "[1 -2]", "[1-3,2]", "7", "-2", ",",
        ",,", "]", "[", " ",
    ];
    let mut seed = 36u64;
    let mut chosen = |most: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % most
    };
    let mut understood = 0;
    for _ in 0..500 {
        let list: String = (0..=chosen(5)).map(|_| pieces[chosen(pieces.len())]).collect();
        // A list that is not understood is refused; Slurm's releases differ in which unusual lists they accept.
        let (Some(ours), Ok(Some(theirs))) = (HostList::parse(&list), slurms(&list)) else { continue };
        assert_eq!(ours.count(), theirs.len() as u64, "{list}");
        assert!(theirs.iter().all(|name| ours.contains(name)), "{list}");
        if let Some(names) = ours.names(1000) {
            assert_eq!(names, theirs, "{list}");
            understood += 1;
        }
    }
    assert!(understood > 50, "{understood}");
}
