// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of a step when it has ended: one line of the usage log. `docs/usage.md` has the table of members.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cgroup::usage::Usage;
use crate::facts::{Fact, Facts};
use crate::job::{Cpus, JobKey};
use crate::report::json::{Object, array, text};

/// The name of what a line has. A program that reads it looks at this first.
pub const SCHEMA: &str = "jobfence-usage-1";

/// So many tasks of a step are in its line; the step's own figures have all of them.
const MOST_TASKS: usize = 64;

/// One step on this node.
#[derive(Debug, Clone)]
pub struct Account<'a> {
    /// Whose.
    pub key: &'a JobKey,
    /// Which run of the step; 0 where nobody counts them.
    pub run: u32,
    /// Whose fence it is: the scheduler, or the holder as its record says it.
    pub holder: &'a str,
    /// Partition, account and so on, as far as they are known.
    pub facts: &'a Facts,
    /// What it was granted.
    pub granted: GrantedTo,
    /// What it was limited to.
    pub limits: LimitedTo,
    /// When its fence was made; `None`: not known.
    pub started: Option<SystemTime>,
    /// When it was seen to have ended.
    pub ended: SystemTime,
    /// How.
    pub end: End,
    /// How its tasks ended, as far as the door was told: the first that failed, or else the last.
    pub exit: Option<Exit>,
    /// What it has used.
    pub usage: &'a Usage,
    /// CPU time and the peak of memory of all its job's steps on this node together, until then.
    pub job: &'a Usage,
    /// Its tasks that had directories.
    pub tasks: &'a [Task],
    /// At which limits it was stopped.
    pub sentences: &'a [String],
}

/// What a step was granted; `None`: nobody has said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrantedTo {
    /// CPUs.
    pub cpus: Option<Cpus>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
}

/// To what a step was limited; `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitedTo {
    /// CPU time.
    pub cpus: Option<Cpus>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// Who has ended a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its holder, or the scheduler's program.
    Closed,
    /// The janitor, since its holder had died: the figures are those at that moment.
    Reaped,
}

/// How a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// Of the number that wait(2) gives.
    pub fn of_wait(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Status(libc::WEXITSTATUS(status))
        }
    }

    /// Whether that is no failure.
    pub fn is_success(self) -> bool {
        self == Self::Status(0)
    }
}

/// One task of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Its number in the step.
    pub number: u32,
    /// How it has ended.
    pub exit: Option<Exit>,
    /// What it has used.
    pub usage: Usage,
}

impl Account<'_> {
    /// One line, without its end.
    pub fn line(&self) -> String {
        let node = self.facts.node.known().map(String::as_str);
        let mut line = Object::new();
        line.text("schema", Some(SCHEMA))
            .text("ended", Some(&utc(self.ended)))
            .text("started", self.started.map(utc).as_deref())
            .seconds("started_unix_seconds", self.started.and_then(since_1970))
            .seconds("ended_unix_seconds", since_1970(self.ended))
            .seconds("wall_seconds", self.started.and_then(|started| self.ended.duration_since(started).ok()))
            .text("node", node)
            .text("job", Some(self.key.job.as_str()))
            .text("step", Some(self.key.step.as_str()))
            .add("run", self.run)
            .add("uid", self.key.uid)
            .text("user", known(&self.facts.user))
            .text("partition", known(&self.facts.partition))
            .text("account", known(&self.facts.account))
            .text("qos", known(&self.facts.qos))
            .text("project", known(&self.facts.project))
            .text("global_job", known(&self.facts.global_job))
            .text("holder", Some(self.holder))
            .text("end", Some(if self.end == End::Closed { "closed" } else { "reaped" }));
        exit_members(&mut line, self.exit);
        line.number("cpus_granted", self.granted.cpus)
            .number("memory_granted_bytes", self.granted.memory)
            .number("cpus_limit", self.limits.cpus)
            .number("memory_limit_bytes", self.limits.memory)
            .number("processes_limit", self.limits.processes)
            .usage(self.usage)
            .seconds("job_cpu_seconds", self.job.cpu)
            .number("job_memory_peak_bytes", self.job.memory_peak)
            .add("tasks", array(self.tasks.iter().take(MOST_TASKS).map(of_task)))
            .add("sentences", array(self.sentences.iter().map(|one| text(one))))
            .end()
    }
}

fn since_1970(time: SystemTime) -> Option<Duration> {
    time.duration_since(UNIX_EPOCH).ok()
}

fn known(fact: &Fact<String>) -> Option<&str> {
    fact.said().map(String::as_str)
}

fn exit_members(object: &mut Object, exit: Option<Exit>) {
    let (status, signal) = match exit {
        Some(Exit::Status(status)) => (Some(status), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    object.number("exit_status", status).number("exit_signal", signal);
}

fn of_task(task: &Task) -> String {
    let mut object = Object::new();
    object.add("task", task.number);
    exit_members(&mut object, task.exit);
    object.usage(&task.usage).end()
}

/// A moment as RFC 3339 has it, in UTC, to the second.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The date so many days after 1970-01-01, in the calendar that is in use.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

/// When a process began that has begun so many ticks after the boot; `None` where the clocks say nothing.
pub fn since_boot(ticks: u64) -> Option<SystemTime> {
    let since_boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    let up = Duration::from(since_boot);
    // /proc/PID/stat counts in hundredths of a second on every architecture (USER_HZ).
    let age = up.checked_sub(Duration::from_millis(ticks.checked_mul(10)?))?;
    SystemTime::now().checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Id;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_764_041_461), "2025-11-25T03:31:01Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn a_line_is_json_whatever_users_write() {
        let key = JobKey { node: None, uid: 7, job: Id::new("5\n\"").unwrap(), step: Id::new("batch").unwrap() };
        let usage = Usage { cpu: Some(Duration::from_millis(1500)), ..Usage::default() };
        let task = Task { number: 3, exit: Some(Exit::Signal(9)), usage: usage.clone() };
        let account = Account {
            key: &key,
            run: 1,
            holder: "manual",
            facts: &Facts { partition: Fact::Known("a\\b".to_owned()), ..Facts::default() },
            granted: GrantedTo { cpus: None, memory: Some(7) },
            limits: LimitedTo { cpus: Some(Cpus::from_thousandths(1500)), ..LimitedTo::default() },
            started: Some(UNIX_EPOCH),
            ended: UNIX_EPOCH + Duration::from_millis(2500),
            end: End::Reaped,
            exit: Some(Exit::of_wait(2 << 8)),
            usage: &usage,
            job: &Usage::default(),
            tasks: &vec![task; 100],
            sentences: &["a\tb".to_owned()],
        };
        let line = account.line();
        assert!(!line.contains('\n'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        for (member, value) in [
            ("job", serde_json::json!("5\n\"")),
            ("partition", "a\\b".into()),
            ("account", serde_json::Value::Null),
            ("end", "reaped".into()),
            ("exit_status", 2.into()),
            ("exit_signal", serde_json::Value::Null),
            ("cpus_granted", serde_json::Value::Null),
            ("memory_granted_bytes", 7.into()),
            ("cpus_limit", 1.5.into()),
            ("cpu_seconds", 1.5.into()),
            ("wall_seconds", 2.5.into()),
            ("started_unix_seconds", 0.0.into()),
            ("ended_unix_seconds", 2.5.into()),
            ("memory_limit_bytes", serde_json::Value::Null),
            ("sentences", serde_json::json!(["a\tb"])),
        ] {
            assert_eq!(read[member], value, "{member} in {line}");
        }
        assert_eq!(read["tasks"].as_array().map(Vec::len), Some(64));
        assert_eq!(read["tasks"][0]["exit_signal"], 9);
    }
}
