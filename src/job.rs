// SPDX-License-Identifier: GPL-2.0-or-later
//! What every entry point passes on: which step this is, and what the scheduler granted it.

use std::fmt;

use crate::cpu_list::CpuList;
use crate::error::{Error, Result};
use crate::printable::is_printable;

/// A name that is safe as a path component: `[A-Za-z0-9_.+-]`, 1 to 64 characters, not beginning with a dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Accepts the name if it is safe.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let safe = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(safe) {
            return Err(Error::new("not a name for a cgroup directory").value(name));
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The longest accepted id, in bytes: no scheduler has longer ones.
const LONGEST_ID: usize = 1024;

/// The longest name of an id's directory, not counting its prefix. Two of them, a node's name, a uid, a pid and its start time together are
/// one file name (`NAME_MAX`).
const LONGEST_ESCAPED: usize = 64;

/// Precedes the two hexadecimal digits of a byte; and `-` and a digest, if the name would be too long.
const ESCAPE: char = '+';

/// A job's or a step's id as its scheduler writes it: `5`, `batch`, `12[3].host`. People see this text; a directory's name contains the
/// result of [`Id::in_a_name`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(String);

impl Id {
    /// Accepts any text of valid length without a zero byte.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.is_empty() || text.len() > LONGEST_ID || text.contains('\0') {
            let length = text.len();
            let shown = text.chars().filter(|c| is_printable(*c)).take(LONGEST_ESCAPED).collect::<String>();
            return Err(Error::new("not an id of a job or a step")
                .value(shown)
                .hint(format!("it has {length} bytes, and an id has 1 to {LONGEST_ID}, none of them zero")));
        }
        Ok(Self(text))
    }

    /// The scheduler's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The whole id in `[A-Za-z0-9_.+-]`, at any length. Letters, digits, `_`, `-`, and dots except a leading one are unchanged.
    pub fn escaped(&self) -> String {
        self.escape(true)
    }

    fn escape(&self, has_dots: bool) -> String {
        let mut escaped = String::with_capacity(self.0.len());
        for (at, byte) in self.0.bytes().enumerate() {
            let is_plain = byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || byte == b'.' && has_dots && at > 0;
            if is_plain {
                escaped.push(char::from(byte));
            } else {
                escaped.push_str(&format!("{ESCAPE}{byte:02X}"));
            }
        }
        escaped
    }

    /// The id with this escaped text. `None`: there is none.
    pub fn unescaped(text: &str) -> Option<Self> {
        Self::unescape(text).filter(|id| id.escaped() == text)
    }

    fn unescape(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if char::from(byte) != ESCAPE {
                bytes.push(byte);
                continue;
            }
            let digits = [rest.next()?, rest.next()?];
            let is_upper = |digit: &u8| digit.is_ascii_digit() || (b'A'..=b'F').contains(digit);
            if !digits.iter().all(is_upper) {
                return None;
            }
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        }
        Self::new(String::from_utf8(bytes).ok()?).ok()
    }

    /// The form in names of a job's directories and records. A longer id is cut, and gets a digest that tells it from others.
    pub fn in_a_name(&self) -> String {
        self.cut(self.escape(true))
    }

    /// The same for a step, where a dot would begin the number of a run.
    fn in_a_steps_name(&self) -> String {
        self.cut(self.escape(false))
    }

    fn cut(&self, escaped: String) -> String {
        if escaped.len() <= LONGEST_ESCAPED {
            return escaped;
        }
        let digest = format!("{ESCAPE}-{:032X}", fnv(self.0.as_bytes()));
        let head = escaped.get(..LONGEST_ESCAPED.saturating_sub(digest.len())).unwrap_or_default();
        format!("{head}{digest}")
    }

    /// The id in a job's name. `None`: the name was cut, so that only its record has the id, or is no such name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::unescape(name).filter(|id| id.in_a_name() == name)
    }

    /// The same for a step's name.
    pub fn from_steps_name(name: &str) -> Option<Self> {
        Self::unescape(name).filter(|id| id.in_a_steps_name() == name)
    }
}

/// A job's number, as Slurm has one.
impl From<u32> for Id {
    fn from(number: u32) -> Self {
        Self(number.to_string())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| fmt::Write::write_char(f, if is_printable(c) { c } else { '?' }))
    }
}

/// The 128-bit FNV-1a hash (draft-eastlake-fnv): the same in every release.
fn fnv(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// A job on a node: several daemons of the scheduler can share a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOnNode {
    /// The node, if it has its own branch in the tree.
    pub node: Option<Name>,
    /// The job.
    pub job: Id,
}

/// The identity of a step on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKey {
    /// The node, if several of the scheduler's daemons share this host.
    pub node: Option<Name>,
    /// The user that the job belongs to.
    pub uid: u32,
    /// The scheduler's name for the job; under Slurm a number.
    pub job: Id,
    /// The scheduler's name for the step: `batch`, `extern`, `interactive`, or a number.
    pub step: Id,
}

impl JobKey {
    /// The step's job.
    pub fn on_node(&self) -> JobOnNode {
        JobOnNode { node: self.node.clone(), job: self.job.clone() }
    }

    /// The directories above the step, outermost first.
    pub fn parents(&self) -> Vec<String> {
        let mut levels = Vec::with_capacity(3);
        levels.extend(self.node.as_ref().map(Name::to_string));
        levels.push(format!("uid_{}", self.uid));
        levels.push(job_dir(&self.job));
        levels
    }

    /// The step's directory. `again` counts from 1, and is above 1 if the plain name belongs to a live step.
    pub fn step_dir(&self, again: u32) -> String {
        let step = self.step.in_a_steps_name();
        if again <= 1 { format!("step_{step}") } else { format!("step_{step}.{again}") }
    }
}

/// The name of a job's directories.
pub fn job_dir(job: &Id) -> String {
    format!("job_{}", job.in_a_name())
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} step {}", self.job, self.step)
    }
}

/// CPU time as a number of CPUs, in thousandths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(u64);

impl Cpus {
    /// No CPUs: a scheduler may grant that.
    pub const ZERO: Self = Self(0);

    /// Whole CPUs (hardware threads).
    pub fn whole(count: u32) -> Self {
        Self(u64::from(count) * 1000)
    }

    /// Thousandths of a CPU.
    pub fn from_thousandths(thousandths: u64) -> Self {
        Self(thousandths)
    }

    /// Thousandths of a CPU.
    pub fn thousandths(self) -> u64 {
        self.0
    }
}

impl Cpus {
    /// As `1 CPU` or `0.5 CPUs`.
    pub fn in_words(self) -> String {
        format!("{self} {}", if self.0 == 1000 { "CPU" } else { "CPUs" })
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 1000, self.0 % 1000);
        if part == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{part:03}").trim_end_matches('0'))
    }
}

/// How much memory may be in huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePage {
    /// Bytes of one page, a power of two, at least 1024.
    pub page: u64,
    /// Bytes in such pages together, in whole pages.
    pub limit: u64,
}

/// What the scheduler granted on this node. `None`: it does not manage this, or has not said yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// Hardware threads of the whole job.
    pub job_cpus: Option<Cpus>,
    /// Hardware threads of this step.
    pub step_cpus: Option<Cpus>,
    /// Hardware threads of each task, if the tasks share the step's equally.
    pub task_cpus: Option<Cpus>,
    /// Memory of the whole job, in bytes.
    pub job_memory: Option<u64>,
    /// Memory of this step, in bytes.
    pub step_memory: Option<u64>,
    /// Swap of the whole job beside its memory, in bytes. `None`: the scheduler does not say.
    pub swap: Option<u64>,
    /// Huge pages of the whole job; `None`: the scheduler does not say.
    pub huge_pages: Option<Vec<HugePage>>,
    /// The whole job's cores, by the scheduler's own numbers. Empty: the scheduler does not say which.
    pub job_cores: CpuList,
    /// This step's cores.
    pub step_cores: CpuList,
    /// Whether the scheduler allocated nothing and was told to start the job all the same: then no limit follows from a grant.
    pub unallocated: bool,
    /// Whether only the step's grant is known: the job may have other steps, and gets no limit from a grant.
    pub is_of_step: bool,
}

impl Grant {
    /// A job with a single step and a single task, which have all of it, without particular cores.
    pub fn whole(cpus: Option<Cpus>, memory: Option<u64>) -> Self {
        Self {
            job_cpus: cpus,
            step_cpus: cpus,
            task_cpus: cpus,
            job_memory: memory,
            step_memory: memory,
            ..Self::default()
        }
    }

    /// The same with a total of memory and swap: what is not memory may be swap. Without a memory grant, the total is memory.
    #[must_use]
    pub fn with_memory_and_swap(self, together: Option<u64>) -> Self {
        let Some(together) = together else { return self };
        let memory = |memory: Option<u64>| Some(memory.unwrap_or(together).min(together));
        let (job_memory, step_memory) = (memory(self.job_memory), memory(self.step_memory));
        Self { job_memory, step_memory, swap: job_memory.map(|memory| together - memory), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_tree_are_refused() {
        for bad in ["", ".", "..", ".x", "a/b", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in ["5", "batch", "1234.server-1", "0+1", "n_1"] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn what_has_a_plain_name_keeps_it() {
        for (job, step, dirs) in [
            ("5", "0", ["job_5", "step_0"]),
            ("4294967295", "batch", ["job_4294967295", "step_batch"]),
            ("run-123", "extern", ["job_run-123", "step_extern"]),
            ("4711.server-1", "n_1", ["job_4711.server-1", "step_n_1"]),
            ("12[3].host", "a.2", ["job_12+5B3+5D.host", "step_a+2E2"]),
            ("..", "..", ["job_+2E.", "step_+2E+2E"]),
            ("a/b", "+", ["job_a+2Fb", "step_+2B"]),
            ("\u{e4}", ",", ["job_+C3+A4", "step_+2C"]),
        ] {
            let key = JobKey { node: None, uid: 1, job: Id::new(job).unwrap(), step: Id::new(step).unwrap() };
            assert_eq!([key.parents().pop().unwrap(), key.step_dir(1)], dirs);
            assert_eq!(key.step_dir(2), format!("{}.2", dirs[1]));
            assert_eq!(key.to_string(), format!("job {job} step {step}"));
        }
    }

    #[test]
    fn an_id_that_is_too_long_is_told_from_others_by_its_end() {
        let [one, other] = ["a", "b"].map(|end| Id::new("x".repeat(500) + end).unwrap());
        assert_ne!(one.in_a_name(), other.in_a_name());
        assert_eq!(one.in_a_name().len(), LONGEST_ESCAPED);
        assert_eq!(Id::from_name(&one.in_a_name()), None);
        assert_eq!(Id::unescaped(&one.escaped()), Some(one));
        for bad in [String::new(), "x".repeat(LONGEST_ID + 1), "a\0b".to_owned()] {
            assert!(Id::new(bad).is_err());
        }
    }

    /// Every later release must find what this one named.
    #[test]
    fn the_digest_is_the_same_in_every_release() {
        assert_eq!(fnv(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(fnv(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    proptest::proptest! {
        #[test]
        fn names_are_safe_and_lead_back(one in "\\PC{1,40}|[0-9.\\[\\]+-]{1,30}|(?s:.{1,200})", other in "[a+.-]{1,3}|(?s:.{1,30})") {
            let ids = [&one, &other].map(|text| Id::new(text.clone()));
            for id in ids.iter().flatten() {
                for (name, back) in [
                    (id.in_a_name(), Id::from_name as fn(&str) -> Option<Id>),
                    (id.in_a_steps_name(), Id::from_steps_name),
                ] {
                    proptest::prop_assert!(Name::new(name.clone()).is_ok(), "{name}");
                    proptest::prop_assert!(back(&name).is_none_or(|found| found == *id));
                    proptest::prop_assert!(name.contains("+-") || back(&name).as_ref() == Some(id));
                }
                proptest::prop_assert!(!id.in_a_steps_name().contains('.'));
                let found = Id::unescaped(&id.escaped());
                proptest::prop_assert_eq!(found.as_ref(), Some(id));
            }
            if let ([Ok(one), Ok(other)], true) = (&ids, one != other) {
                proptest::prop_assert_ne!(one.in_a_name(), other.in_a_name());
                proptest::prop_assert_ne!(one.in_a_steps_name(), other.in_a_steps_name());
            }
        }
    }

    #[test]
    fn cpus_are_written_as_people_write_them() {
        assert_eq!(Cpus::whole(4).to_string(), "4");
        assert_eq!(Cpus::from_thousandths(500).to_string(), "0.5");
        assert_eq!(Cpus::from_thousandths(1001).to_string(), "1.001");
    }
}
