// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known about a step when it has ended: one line of the usage log. `docs/usage.md` lists the members.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::facts::{Fact, Facts};
use crate::figures::{GrantedTo, LimitedTo, Usage};
use crate::job::{Cpus, JobKey};
use crate::report::json::{Given, Object, array};

/// The name of the line's format. A program that reads a line checks it first.
pub const SCHEMA: &str = "jobfence-usage-1";

/// The end of a line whose step the janitor has found.
pub const REAPED: &str = "reaped";

/// The most tasks in a step's line; the step's own figures include all tasks.
const MOST_TASKS: usize = 64;

/// One step on this node.
#[derive(Debug, Clone)]
pub struct Account<'a> {
    /// The step.
    pub key: &'a JobKey,
    /// When its end was noticed.
    pub ended: SystemTime,
    /// What it has used.
    pub usage: &'a Usage,
    /// CPU time and peak memory of all steps of its job on this node together, until then.
    pub job: &'a Usage,
    /// The most bytes that its job was lent beyond its memory limit at once. `None`: nothing, or not known.
    pub lent: Option<u64>,
    /// What becomes of its job, which `jobfence hold` has ended for owners of memory (`record::loan`). `None`: it has not.
    pub ended_for_owners: Option<&'a str>,
    /// What else is known.
    pub ending: Ending<'a>,
}

/// What only the entry point knows about a step at its end.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// The holder of the fence: the scheduler, or the holder as in the record.
    pub holder: &'a str,
    /// The run of the step; 0 if runs are not counted.
    pub run: u32,
    /// Partition, account and so on, as far as they are known.
    pub facts: &'a Facts,
    /// What it was granted.
    pub granted: GrantedTo,
    /// Its limits.
    pub limits: LimitedTo,
    /// When its fence was made. `None`: not known.
    pub started: Option<SystemTime>,
    /// How its tasks ended, as far as the entry point was told: the first that failed, or else the last.
    pub exit: Option<Exit>,
    /// Its tasks that had directories.
    pub tasks: &'a [Task],
    /// The limits at which it was stopped.
    pub sentences: &'a [String],
    /// How it came to its end.
    pub end: End,
}

/// How a fence came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its holder closed it, or the scheduler's program.
    Closed,
    /// The janitor removed it, since its holder had died. The figures are those of that moment.
    Reaped,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The program ended with this status.
    Status(i32),
    /// This signal ended the program.
    Signal(i32),
}

impl Exit {
    /// The result from the status that wait(2) returns.
    pub fn from_wait(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Status(libc::WEXITSTATUS(status))
        }
    }

    /// Whether this signal ended the process, or one that a shell has waited for and then ended.
    pub fn is_by(self, signal: i32) -> bool {
        self == Self::Signal(signal) || self == Self::Status(128 + signal)
    }

    /// Whether the process succeeded.
    pub fn is_success(self) -> bool {
        self == Self::Status(0)
    }
}

/// One task of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Its number in the step.
    pub number: u32,
    /// How it ended.
    pub exit: Option<Exit>,
    /// What it has used.
    pub usage: Usage,
}

/// The members of a line, in order: the name, its kind, and what is written. The kinds are the methods of [`Object`] and of [`Given`].
macro_rules! line {
    ($account:ident, $ending:ident: $($member:ident: $kind:ident = $value:expr;)*) => {
        impl Account<'_> {
            /// The line, without a newline.
            pub fn line(&self) -> String {
                let ($account, $ending) = (self, &self.ending);
                let mut line = Object::new();
                $(kind!(write $kind, line, stringify!($member), $value);)*
                line.end()
            }
        }

        /// A line that was read.
        #[derive(Debug, Clone, Default, PartialEq)]
        #[allow(missing_docs, reason = "docs/usage.md lists the members")]
        pub struct UsageLine {
            $(pub $member: kind!(type $kind),)*
        }

        impl UsageLine {
            /// Reads the object of a line. A figure that an older release did not write is not known.
            pub fn from_json<'a>(line: impl Given<'a>) -> Self {
                Self { $($member: kind!(read $kind, line, stringify!($member)),)* }
            }
        }
    };
}

macro_rules! kind {
    (type text) => { Option<String> };
    (type number) => { Option<u64> };
    (type seconds) => { Option<Duration> };
    (type cpus) => { Option<Cpus> };
    (type exit) => { Option<Exit> };
    (type usage) => { Usage };
    (type tasks) => { Vec<Task> };
    (type texts) => { Vec<String> };
    (write exit, $line:ident, $name:expr, $exit:expr) => { exit_members(&mut $line, $exit) };
    (write usage, $line:ident, $name:expr, $usage:expr) => { $line.usage($usage) };
    (write tasks, $line:ident, $name:expr, $tasks:expr) => {
        $line.add($name, array($tasks.iter().take(MOST_TASKS).map(of_task)))
    };
    (write $kind:ident, $line:ident, $name:expr, $value:expr) => { $line.$kind($name, $value) };
    (read exit, $line:ident, $name:expr) => { exit_of($line) };
    (read usage, $line:ident, $name:expr) => { $line.usage() };
    (read tasks, $line:ident, $name:expr) => {
        $line.member($name).and_then(Given::values).unwrap_or_default().into_iter().filter_map(task_of).collect()
    };
    (read $kind:ident, $line:ident, $name:expr) => { $line.$kind($name) };
}

line! { account, ending:
    schema: text = Some(SCHEMA);
    ended: text = Some(&utc(account.ended));
    started: text = ending.started.map(utc).as_deref();
    started_unix_seconds: seconds = ending.started.and_then(since_1970);
    ended_unix_seconds: seconds = since_1970(account.ended);
    wall_seconds: seconds = ending.started.and_then(|started| account.ended.duration_since(started).ok());
    node: text = ending.facts.node.known().map(String::as_str);
    job: text = Some(account.key.job.as_str());
    job_name: text = said(&ending.facts.job_name);
    step: text = Some(account.key.step.as_str());
    run: number = Some(ending.run);
    uid: number = Some(account.key.uid);
    user: text = said(&ending.facts.user);
    partition: text = said(&ending.facts.partition);
    account: text = said(&ending.facts.account);
    qos: text = said(&ending.facts.qos);
    project: text = said(&ending.facts.project);
    global_job: text = said(&ending.facts.global_job);
    holder: text = Some(ending.holder);
    end: text = Some(if ending.end == End::Closed { "closed" } else { REAPED });
    exit: exit = ending.exit;
    cpus_granted: cpus = ending.granted.cpus;
    memory_granted_bytes: number = ending.granted.memory;
    gpus_granted: number = ending.granted.gpus;
    cpus_limit: cpus = ending.limits.cpus;
    memory_limit_bytes: number = ending.limits.memory;
    processes_limit: number = ending.limits.processes;
    usage: usage = account.usage;
    job_cpu_seconds: seconds = account.job.cpu;
    job_memory_peak_bytes: number = account.job.memory_peak;
    job_memory_lent_peak_bytes: number = account.lent;
    job_ended_for_owners: text = account.ended_for_owners;
    tasks: tasks = ending.tasks;
    sentences: texts = ending.sentences;
}

fn since_1970(time: SystemTime) -> Option<Duration> {
    time.duration_since(UNIX_EPOCH).ok()
}

fn said(fact: &Fact<String>) -> Option<&str> {
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

fn exit_of<'a>(given: impl Given<'a>) -> Option<Exit> {
    #[allow(clippy::cast_possible_truncation, reason = "it saturates")]
    let number = |name| Some(given.member(name)?.as_decimal()? as i32);
    number("exit_status").map(Exit::Status).or_else(|| number("exit_signal").map(Exit::Signal))
}

fn of_task(task: &Task) -> String {
    let mut object = Object::new();
    object.add("task", task.number);
    exit_members(&mut object, task.exit);
    object.usage(&task.usage).end()
}

fn task_of<'a>(given: impl Given<'a>) -> Option<Task> {
    let number = given.number("task").and_then(|number| u32::try_from(number).ok())?;
    Some(Task { number, exit: exit_of(given), usage: given.usage() })
}

/// A time in the format of RFC 3339, in UTC, to the second.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The date so many days after 1970-01-01, in the Gregorian calendar.
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

/// The start time of a process that started so many clock ticks after boot. `None`: the clocks do not tell.
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
            ended: UNIX_EPOCH + Duration::from_millis(2500),
            usage: &usage,
            job: &Usage::default(),
            lent: Some(9),
            ended_for_owners: Some("kill"),
            ending: Ending {
                holder: "manual",
                run: 1,
                facts: &Facts { partition: Fact::Known("a\\b".to_owned()), ..Facts::default() },
                granted: GrantedTo { memory: Some(7), ..GrantedTo::default() },
                limits: LimitedTo { cpus: Some(Cpus::from_thousandths(1500)), ..LimitedTo::default() },
                started: Some(UNIX_EPOCH),
                exit: Some(Exit::from_wait(2 << 8)),
                tasks: &vec![task; 100],
                sentences: &["a\tb".to_owned()],
                end: End::Reaped,
            },
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
            ("job_memory_lent_peak_bytes", 9.into()),
            ("job_ended_for_owners", "kill".into()),
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
