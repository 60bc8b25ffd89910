// SPDX-License-Identifier: GPL-2.0-or-later
//! A line of the usage log as it was read, for the report and for Slurm's accounting.

use std::ops::Deref;

use jobfence::report::account::UsageLine;
use jobfence::report::json::Given;
use serde_json::Value;

/// The line of one step.
#[derive(Debug, Clone)]
pub struct LoggedStep {
    /// The line's object, as the log has it.
    pub json: Value,
    line: UsageLine,
}

impl LoggedStep {
    /// Reads a line's object.
    pub fn new(json: Value) -> Self {
        Self { line: UsageLine::from_json(Json(&json)), json }
    }
}

impl Deref for LoggedStep {
    type Target = UsageLine;

    fn deref(&self) -> &UsageLine {
        &self.line
    }
}

#[derive(Clone, Copy)]
struct Json<'a>(&'a Value);

impl<'a> Given<'a> for Json<'a> {
    fn member(self, name: &str) -> Option<Self> {
        self.0.get(name).map(Self)
    }

    fn values(self) -> Option<Vec<Self>> {
        Some(self.0.as_array()?.iter().map(Self).collect())
    }

    fn as_text(self) -> Option<&'a str> {
        self.0.as_str()
    }

    fn as_decimal(self) -> Option<f64> {
        self.0.as_f64()
    }

    fn as_whole(self) -> Option<u64> {
        self.0.as_u64()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use jobfence::facts::{Fact, Facts};
    use jobfence::figures::{DiskIo, GrantedTo, LimitedTo, Usage};
    use jobfence::job::{Cpus, Id, JobKey};
    use jobfence::report::account::{Account, End, Ending, Exit, SCHEMA, Task};

    use super::*;

    /// A line as every release writes it: other releases do not know a member that is renamed here.
    const LINE: &str = concat!(
        r#"{"schema":"jobfence-usage-1","ended":"1970-01-01T00:00:02Z","started":"1970-01-01T00:00:01Z","#,
        r#""started_unix_seconds":1.250000,"ended_unix_seconds":2.500000,"wall_seconds":1.250000,"#,
        r#""node":"n1","job":"5","job_name":"n","step":"0","run":3,"uid":7,"user":"u","partition":"p","account":"a","qos":"q","#,
        r#""project":"r","global_job":"g","holder":"manual","end":"reaped","exit_status":null,"exit_signal":9,"#,
        r#""cpus_granted":2,"memory_granted_bytes":7,"gpus_granted":6,"cpus_limit":1.5,"memory_limit_bytes":8,"processes_limit":9,"#,
        r#""cpu_seconds":0.000001,"cpu_user_seconds":0.000002,"cpu_system_seconds":0.000003,"periods":4,"#,
        r#""throttled_periods":5,"throttled_seconds":0.000006,"memory_peak_bytes":7,"swap_peak_bytes":8,"#,
        r#""memory_anonymous_bytes":9,"memory_file_bytes":10,"memory_unwritten_bytes":11,"#,
        r#""memory_shared_bytes":12,"memory_kernel_bytes":13,"memory_huge_pages_bytes":14,"#,
        r#""memory_swap_bytes":15,"memory_high_events":16,"memory_max_events":17,"oom_kills":18,"#,
        r#""processes_peak":19,"forks_refused":20,"read_bytes":21,"written_bytes":22,"read_operations":23,"#,
        r#""write_operations":24,"disks":[{"disk":"8:16","read_bytes":1,"written_bytes":2,"#,
        r#""read_operations":3,"write_operations":4}],"cpu_pressure_some_seconds":0.000026,"#,
        r#""cpu_pressure_full_seconds":0.000027,"memory_pressure_some_seconds":0.000028,"#,
        r#""memory_pressure_full_seconds":0.000029,"io_pressure_some_seconds":0.000030,"#,
        r#""io_pressure_full_seconds":0.000031,"rchar_bytes":32,"wchar_bytes":33,"job_cpu_seconds":0.000001,"job_memory_peak_bytes":7,"#,
        r#""job_memory_lent_peak_bytes":8,"job_ended_for_owners":"requeue","tasks":["#
    );

    #[test]
    fn a_line_is_read_as_it_was_written_and_each_release_writes_the_same() {
        let key = JobKey { node: None, uid: 7, job: Id::new("5").unwrap(), step: Id::new("0").unwrap() };
        let known = |text: &str| Fact::Known(text.to_owned());
        let facts = Facts {
            node: known("n1"),
            user: known("u"),
            partition: known("p"),
            account: known("a"),
            qos: known("q"),
            project: known("r"),
            global_job: known("g"),
            job_name: known("n"),
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
            granted: GrantedTo { cpus: Some(Cpus::whole(2)), memory: Some(7), gpus: Some(6) },
            limits: LimitedTo { cpus: Some(Cpus::from_thousandths(1500)), memory: Some(8), processes: Some(9) },
            started: Some(UNIX_EPOCH + Duration::from_millis(1250)),
            exit: Some(Exit::Signal(9)),
            tasks: &[Task { number: 4, exit: Some(Exit::Status(1)), usage: usage.clone() }],
            sentences: &["a".to_owned()],
            end: End::Reaped,
        };
        let ended = UNIX_EPOCH + Duration::from_millis(2500);
        let (lent, ended_for_owners) = (Some(8), Some("requeue"));
        let account = Account { key: &key, ended, usage: &usage, job: &usage, lent, ended_for_owners, ending };
        let line = account.line();
        assert_eq!(line.get(..LINE.len()), Some(LINE), "{line}");
        assert!(line.ends_with("}],\"sentences\":[\"a\"]}"), "{line}");
        let text = |text: &str| Some(text.to_owned());
        let expected = UsageLine {
            schema: text(SCHEMA),
            ended: text("1970-01-01T00:00:02Z"),
            started: text("1970-01-01T00:00:01Z"),
            started_unix_seconds: Some(Duration::from_millis(1250)),
            ended_unix_seconds: Some(Duration::from_millis(2500)),
            wall_seconds: Some(Duration::from_millis(1250)),
            node: text("n1"),
            job: text("5"),
            step: text("0"),
            run: Some(3),
            uid: Some(7),
            user: text("u"),
            partition: text("p"),
            account: text("a"),
            qos: text("q"),
            project: text("r"),
            global_job: text("g"),
            job_name: text("n"),
            gpus_granted: Some(6),
            holder: text("manual"),
            end: text("reaped"),
            exit: ending.exit,
            cpus_granted: ending.granted.cpus,
            memory_granted_bytes: Some(7),
            cpus_limit: ending.limits.cpus,
            memory_limit_bytes: Some(8),
            processes_limit: Some(9),
            job_cpu_seconds: usage.cpu,
            job_memory_peak_bytes: Some(7),
            job_memory_lent_peak_bytes: Some(8),
            job_ended_for_owners: text("requeue"),
            tasks: ending.tasks.to_vec(),
            sentences: ending.sentences.to_vec(),
            usage: usage.clone(),
        };
        assert_eq!(*LoggedStep::new(serde_json::from_str(&line).unwrap()), expected);
        // Days of CPU time are read to the microsecond.
        let long = LoggedStep::new(serde_json::from_str("{\"cpu_seconds\":8388609.000005}").unwrap());
        assert_eq!(long.usage.cpu, Some(Duration::from_micros(8_388_609_000_005)));
        // A line of an older release, which did not write each member, with a member of a newer one.
        let older = LoggedStep::new(serde_json::json!({"schema": SCHEMA, "job": "5", "cpu_seconds": 1.5, "new": {}}));
        let cpu = Some(Duration::from_millis(1500));
        let usage = Usage { cpu, ..Usage::default() };
        assert_eq!(*older, UsageLine { schema: text(SCHEMA), job: text("5"), usage, ..UsageLine::default() });
    }
}
