// SPDX-License-Identifier: GPL-2.0-or-later
//! A line of the usage log for a summary. [`crate::logged`] reads every member into values of its own, which for millions of lines would
//! take minutes.

pub use usage_lines::line::{EndText, Line, Read, moment_of, read};

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::{Duration, UNIX_EPOCH};

    use jobfence::facts::{Fact, Facts};
    use jobfence::figures::{DiskIo, GrantedTo, LimitedTo, Usage};
    use jobfence::job::{Cpus, Id, JobKey};
    use jobfence::report::account::{Account, End, Ending, Exit, Task};
    use usage_lines::values::NAMES;

    use super::*;

    /// A line in which each figure has another value, and texts have what JSON must escape.
    fn written() -> String {
        let key = JobKey { node: None, uid: 7, job: Id::new("5\"\\").unwrap(), step: Id::new("batch").unwrap() };
        let known = |text: &str| Fact::Known(text.to_owned());
        let facts = Facts {
            node: known("n1"),
            user: known("u\u{1b}}{"),
            partition: known("p"),
            account: known("ä"),
            qos: known("q]["),
            global_job: known("g"),
            job_name: Fact::Claimed("n\n\"}\u{e4}".to_owned()),
            ..Facts::default()
        };
        let numbers = Usage::default().numbers();
        let numbers: Vec<_> = (1..).map(Some).take(numbers.len()).collect();
        let disk = DiskIo { disk: (8, 16), read: 1, written: 2, reads: 3, writes: 4 };
        let usage = Usage { disks: Some(vec![disk]), ..Usage::from_numbers(numbers.try_into().unwrap()) };
        let ending = Ending {
            holder: "manual",
            run: 3,
            facts: &facts,
            granted: GrantedTo { cpus: Some(Cpus::whole(2)), memory: Some(70), gpus: Some(6) },
            limits: LimitedTo { cpus: Some(Cpus::from_thousandths(1500)), memory: Some(80), processes: Some(9) },
            started: Some(UNIX_EPOCH + Duration::from_millis(1250)),
            exit: Some(Exit::Signal(9)),
            tasks: &[Task { number: 4, exit: Some(Exit::Status(1)), usage: usage.clone() }],
            sentences: &["a \"}\" b".to_owned()],
            end: End::Closed,
        };
        let ended = UNIX_EPOCH + Duration::from_millis(2500);
        let (lent, ended_for_owners) = (Some(8), Some("kill"));
        Account { key: &key, ended, usage: &usage, job: &usage, lent, ended_for_owners, ending }.line()
    }

    #[test]
    fn the_members_are_those_of_a_line_in_its_order() {
        let line = written();
        let mut from = 0;
        for name in NAMES {
            let found = line[from..].find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {line}"));
            from += found;
        }
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        let unknown: Vec<_> = read.as_object().unwrap().keys().filter(|key| !NAMES.contains(&key.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn a_line_is_read_as_the_report_of_a_job_reads_it() {
        let text = written();
        let Read::Line(line) = read(text.as_bytes(), "") else { panic!("{text}") };
        let same = crate::logged::LoggedStep::new(serde_json::from_str(&text).unwrap());
        let micros = |time: Option<Duration>| time.map(|time| time.as_micros() as u64);
        let thousandths = |cpus: Option<Cpus>| cpus.map(Cpus::thousandths);
        let usage = &same.usage;
        let expected = Line {
            ended: 2_500_000,
            is_exact: true,
            began: micros(same.started_unix_seconds),
            wall: micros(same.wall_seconds),
            node: same.node.as_deref().map(Cow::Borrowed),
            job: same.job.as_deref().unwrap().into(),
            job_name: same.job_name.as_deref().map(Cow::Borrowed),
            step: same.step.as_deref().unwrap().into(),
            run: same.run.unwrap(),
            uid: same.uid,
            user: same.user.as_deref().map(Cow::Borrowed),
            partition: same.partition.as_deref().map(Cow::Borrowed),
            account: same.account.as_deref().map(Cow::Borrowed),
            qos: same.qos.as_deref().map(Cow::Borrowed),
            global_job: same.global_job.as_deref().map(Cow::Borrowed),
            is_success: same.exit.map(Exit::is_success),
            cpus_granted: thousandths(same.cpus_granted),
            cpus_limit: thousandths(same.cpus_limit),
            memory_granted: same.memory_granted_bytes,
            memory_limit: same.memory_limit_bytes,
            gpus_granted: same.gpus_granted,
            cpu: micros(usage.cpu),
            periods: usage.periods,
            throttled_periods: usage.throttled_periods,
            moved: usage.rchar.zip(usage.wchar),
            memory_peak: usage.memory_peak,
            job_memory_peak: same.job_memory_peak_bytes,
            swap_peak: usage.swap_peak,
            kept_down: Some(usage.memory_high_events.unwrap() + usage.memory_max_events.unwrap()),
            oom_kills: usage.oom_kills,
            was_stopped: true,
        };
        assert_eq!(line, expected);
        // A log collector may write the same object in another form.
        let anew = serde_json::to_string(&serde_json::from_str::<serde_json::Value>(&text).unwrap()).unwrap();
        let spaced = anew.replace("\":", "\" : ").replace(",\"", " ,\t\"");
        for again in [&anew, &spaced] {
            assert_eq!(read(again.as_bytes(), ""), Read::Line(expected.clone()), "{again}");
        }
    }

    #[test]
    fn what_is_no_whole_line_is_none() {
        let whole = written();
        for length in 0..whole.len() {
            let cut = read(&whole.as_bytes()[..length], "");
            assert_eq!(cut, Read::Foreign, "{length}");
        }
        for foreign in ["", "{}", "[]", "nothing", "{\"schema\":1}", "{\"schema\":\"jobfence-series-1\",\"job\":\"7\"}"]
        {
            assert_eq!(read(foreign.as_bytes(), ""), Read::Foreign, "{foreign}");
        }
        assert_eq!(read((whole.clone() + "x").as_bytes(), ""), Read::Foreign);
        assert_eq!(read(whole.replace("usage-1", "usage-2").as_bytes(), ""), Read::Newer);
        assert_eq!(read(whole.replace("\"job\"", "\"jab\"").as_bytes(), ""), Read::Foreign);
        // A name lacks its first quotation mark, or has another character in its place.
        for name in NAMES {
            for damaged in [format!("{name}\":"), format!("x{name}\":")] {
                let line = whole.replacen(&format!("\"{name}\":"), &damaged, 1);
                assert_ne!(line, whole);
                assert_eq!(read(line.as_bytes(), ""), Read::Foreign, "{line}");
            }
        }
        assert_eq!(read(whole.as_bytes(), "1970-01-01T00:00:03Z"), Read::Earlier);
        assert!(matches!(read(whole.as_bytes(), "1970-01-01T00:00:02Z"), Read::Line(_)));
        // Bytes that are no text, in a member that is needed, and in one that is not.
        let mut bytes = whole.clone().into_bytes();
        let at = whole.find("\"job\":\"").unwrap() + 7;
        bytes[at] = 0xff;
        assert_eq!(read(&bytes, ""), Read::Foreign);
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_fail(line: Vec<u8>, at: proptest::sample::Index, byte: u8) {
            let _ = read(&line, "");
            let mut changed = written().into_bytes();
            let at = at.index(changed.len());
            changed[at] = byte;
            let _ = read(&changed, "");
        }
    }
}
