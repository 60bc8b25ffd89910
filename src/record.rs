// SPDX-License-Identifier: GPL-2.0-or-later
//! Records of which process owns which directories: one small root-owned file for each step below `RunDir`.
//!
//! A record is written before its directories are made and removed after them, so whatever exists has a record. Making it also decides
//! which of two step daemons has a name: `link` of a finished file succeeds for one of them.

pub mod card_note;
pub mod closer;
pub mod counters;
mod files;
mod header;
pub mod holder;
pub mod job;
mod lines;
pub mod loan;
pub mod noted;
mod plan;
mod removal;
pub mod resized;
pub mod roll;
mod shared;
mod step;
mod steps;
pub mod tracked;

pub use crate::sys::process::Owner;
pub use files::{make_directory, open_run_dir};
pub use header::Header;
pub use shared::{HandedOver, Shared};
pub use step::Record;
pub use steps::Records;

/// The first words of what this release writes into `RunDir`.
pub const FORMS: [&str; 4] = [header::VERSION, header::SHARED, job::VERSION, roll::VERSION];

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::header::VERSION;
    use super::holder::Holder;
    use super::noted::Noted;
    use super::*;
    use crate::facts::{Fact, Facts, job_name};
    use crate::figures::GrantedTo;
    use crate::job::{Cpus, Id, JobKey, Name};
    use crate::policy::Plan;

    fn record(owner: Owner) -> Record {
        let levels = ["uid_1", "job_2", "step_0"].map(str::to_owned).to_vec();
        Record { boot_id: "b".into(), pid_namespace: "p".into(), owner, base: "jobfence".into(), levels, shared: None }
    }

    #[test]
    fn what_is_written_is_understood_again() {
        let record = record(Owner { pid: 7, start: 9 });
        assert_eq!(Record::parse(&record.to_string()).unwrap(), record);
    }

    fn noted() -> Noted {
        let known = |text: &str| Fact::Known(text.to_owned());
        let job_name = job_name("=\n\"");
        let facts =
            Facts { user: known("u"), partition: known("q =\n"), project: known("p"), job_name, ..Facts::default() };
        Noted::new(&facts, GrantedTo { cpus: Some(Cpus::from_thousandths(1500)), memory: Some(9), gpus: Some(2) })
    }

    /// Its holder is no process, and its names are the longest that there are.
    fn shared() -> Record {
        let id = |text: &str| Id::new(text.repeat(1000)).unwrap();
        let key = JobKey { node: Some(Name::new("n".repeat(64)).unwrap()), uid: u32::MAX, job: id("["), step: id(".") };
        let shared = Shared {
            holder: Holder::unit("a.service", "0123456789abcdef0123456789abcdef").unwrap(),
            opener: Owner { pid: 7, start: 9 },
            job: key.job.clone(),
            step: key.step.clone(),
            run: 3,
            controllers: vec!["cpu".into(), "memory".into()],
            log_from: Some(12),
            overlay: false,
            gpus: vec!["/dev/nvidia0".into(), "/dev/nvidia2".into()],
            plan: Some(HandedOver {
                plan: Plan { weighs: true, ..Plan::default() },
                asked_processes: Some(7),
                noted: noted(),
            }),
        };
        let mut levels = key.parents();
        levels.push(key.step_dir(100));
        Record { levels, shared: Some(Box::new(shared)), ..record(Owner { pid: 1, start: 2 }) }
    }

    #[test]
    fn what_is_noted_of_a_job_is_known_again() {
        let noted = noted();
        assert_eq!(Noted::new(&noted.facts(), noted.granted), noted);
        let granted = GrantedTo { memory: Some(8), ..GrantedTo::default() };
        let newer = Noted::new(&Facts { qos: Fact::Known("q".into()), ..Facts::default() }, granted);
        let both = newer.or(&noted);
        assert_eq!((both.facts().qos, both.facts().user), (Fact::Known("q".into()), Fact::Known("u".into())));
        assert_eq!(both.granted, GrantedTo { memory: Some(8), ..noted.granted });
        assert_eq!(noted.facts().job_name, Fact::Known("=\n\"".into()));
    }

    #[test]
    fn what_several_processes_share_is_understood_again_and_nothing_less() {
        let shared = shared();
        let text = shared.to_string();
        assert_eq!(Record::parse(&text).unwrap(), shared);
        for end in 0..text.len() - 1 {
            assert!(Record::parse(&text[..end]).is_err(), "{end}");
        }
        for (from, to) in [
            ("record 2", "record 1"),
            ("run=3", "run=03"),
            ("overlay=no", "overlay=maybe"),
            ("log_from=12", "log_from=x"),
            ("opener=process 7 9", "opener=manual"),
            ("holder=unit", "holder=somebody"),
            ("weighs=yes\n", "weighs=yes\nx=1\n"),
            ("plan=1", "plan=9"),
            ("asked_processes=7", "asked_processes=07"),
            ("asked_processes=7", "asked_processes="),
            ("noted.user=u", "noted.user="),
            ("noted.user=u\n", "noted.user=u\nnoted.user=u\n"),
            ("noted.partition=q+20+3D+0A", "noted.partition=q "),
            ("noted.cpus=1500", "noted.cpus=1.5"),
            ("noted.memory=9", "noted.memory=-9"),
            ("noted.memory=9\n", "noted.memory=9\nnoted.cpus=1\n"),
            ("plan=1\nweighs=yes\n", "plan=none\n"),
            ("gpus=/dev/nvidia0,", "gpus=,"),
            ("gpus=/dev/nvidia0,", "gpus=nvidia0,"),
        ] {
            assert!(text.contains(from) && Record::parse(&text.replace(from, to)).is_err(), "{to}");
        }
        // As an older build writes it, which does not know these lines.
        let mut unasked = shared.clone();
        let plan = unasked.shared.as_mut().unwrap().plan.as_mut().unwrap();
        (plan.asked_processes, plan.noted) = (None, Noted::default());
        let is_new = |line: &&str| line.starts_with("asked_processes=") || line.starts_with("noted.");
        let older: String = text.lines().filter(|line| !is_new(line)).flat_map(|line| [line, "\n"]).collect();
        assert_eq!(older, unasked.to_string());
        assert_eq!(Record::parse(&unasked.to_string()).unwrap(), unasked);
        let mut without = shared.clone();
        without.shared.as_mut().unwrap().gpus.clear();
        assert_eq!(text.replace("gpus=/dev/nvidia0,/dev/nvidia2\n", ""), without.to_string());
        assert_eq!(Record::parse(&without.to_string()).unwrap(), without);
        let mark = Record::parse(&shared.mark()).unwrap();
        assert!(mark.is_same(&shared));
        let mark = mark.shared.unwrap();
        assert!(mark.plan.is_none() && mark.gpus.is_empty(), "there is little room for it");
        assert!(shared.entry().name.len() + ",2147483647.18446744073709551615".len() <= 255, "the name of a file");
    }

    #[test]
    fn what_a_later_release_notes_beside_it_stays() {
        let shared = shared();
        let text = shared.to_string().replace("noted.gpus=2\n", "noted.gpus=2\nnoted.queue=q+20\nnoted.x=\n");
        let later = Record::parse(&text).unwrap();
        assert_eq!((later.to_string(), later.noted().facts()), (text.clone(), shared.noted().facts()));
        assert_eq!(later.noted().or(&Noted::default()), later.noted());
        assert_eq!(Noted::default().or(&later.noted()), later.noted());
        for wrong in ["noted.gpus=3\n", "noted.x\n", "later.x=1\n"] {
            assert!(Record::parse(&text.replace("noted.x=\n", wrong)).is_err(), "{wrong}");
        }
    }

    /// As the previous release reads a record: it must not act on one that is not its own.
    #[test]
    fn an_older_release_takes_what_is_shared_for_that_of_a_living_process() {
        let header = Header::parse(&shared().to_string()).unwrap();
        assert_ne!(header.version, VERSION, "it does not understand more than this, and removes nothing then");
        assert_eq!(header.owner.pid, 1);
    }

    #[test]
    fn a_record_is_replaced_only_while_it_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        let records = Records::open(&run).unwrap();
        let whole = shared();
        let mut begun = whole.clone();
        begun.shared.as_mut().unwrap().plan = None;
        let soon = || Instant::now() + std::time::Duration::from_secs(300);
        assert!(records.replace(&whole, soon()).is_err());
        assert!(records.claim(&begun).unwrap());
        records.replace(&whole, soon()).unwrap();
        let job = &whole.shared.as_ref().unwrap().job;
        assert_eq!(records.of_job(job).unwrap(), std::slice::from_ref(&whole));
        assert_eq!(records.of_job(&Id::new("[").unwrap()).unwrap(), []);
        records.forget(&whole.levels).unwrap();
        assert!(records.replace(&whole, soon()).is_err());
        assert_eq!(records.list().unwrap(), Vec::<Vec<String>>::new());
        let mut other = whole.clone();
        other.shared.as_mut().unwrap().opener.start += 1;
        assert!(records.claim(&other).unwrap());
        assert!(records.replace(&whole, soon()).is_err(), "another's");
        records.forget(&whole.levels).unwrap();
        assert!(Records::remove(&run, &[]).unwrap());
    }

    #[test]
    fn an_incomplete_or_forged_record_is_refused() {
        let text = record(Owner { pid: 7, start: 9 }).to_string();
        for end in 0..text.len() - 1 {
            assert!(Record::parse(&text[..end]).is_err(), "{end}");
        }
        for (from, to) in [
            ("uid_1", ".."),
            ("uid_1", ""),
            ("jobfence", "/"),
            ("=7", "=0"),
            ("record 1", "record 2"),
            ("record 1", "record 3"),
        ] {
            assert!(Record::parse(&text.replace(from, to)).is_err(), "{to}");
        }
    }

    /// Never to be changed: what a release writes here, others on the same node must be able to read.
    #[test]
    fn the_beginning_is_the_same_in_every_release() {
        let text = "jobfence-record 3\nboot_id=b\npid_namespace=p\nowner_pid=7\nowner_start=9\nwhat=ever\nend\n";
        let header = Header::parse(text).unwrap();
        assert_eq!((header.version.as_str(), header.owner), ("jobfence-record 3", Owner { pid: 7, start: 9 }));
        assert_eq!((header.boot_id.as_str(), header.pid_namespace.as_str()), ("b", "p"));
        let error = Record::parse(text).unwrap_err().to_string();
        assert!(error.contains("a record of another release") && error.contains("jobfence-record 3"), "{error}");
        let ours = record(header.owner).to_string();
        assert_eq!(Header::parse(&ours).unwrap(), Header { version: VERSION.into(), ..header });
        for end in 0..ours.len() - 1 {
            assert!(Header::parse(&ours[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn one_claims_the_other_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records::open(&temp.path().join("run")).unwrap();
        let record = record(Owner { pid: 7, start: 9 });
        assert!(records.claim(&record).unwrap());
        assert!(!records.claim(&record).unwrap());
        assert_eq!(records.list().unwrap(), std::slice::from_ref(&record.levels));
        assert_eq!(records.read(&record.levels).unwrap(), Some(record.clone()));
        records.forget(&record.levels).unwrap();
        records.forget(&record.levels).unwrap();
        assert!(records.list().unwrap().is_empty());
    }

    #[test]
    fn one_janitor_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records::open(&temp.path().join("run")).unwrap();
        let lock = records.lock_janitor().unwrap();
        assert!(lock.is_some());
        assert!(records.lock_janitor().unwrap().is_none());
        drop(lock);
        assert!(records.lock_janitor().unwrap().is_some());
    }

    #[test]
    fn a_directory_others_can_open_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Records::open(temp.path()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(jobfence-record 1\n)?(boot_id=.*\n)?(owner_pid=[0-9-]*\n)?(.*\n)*end") {
            let _ = Record::parse(&text);
            let _ = Header::parse(&text);
        }
    }
}
