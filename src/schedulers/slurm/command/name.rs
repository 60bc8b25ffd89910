// SPDX-License-Identifier: GPL-2.0-or-later
//! The names of jobs in Slurm's commands.

use crate::job_match::is_number;

/// A job as Slurm's commands write it: `12`, `12_3` of an array, `12+1` of a heterogeneous job; followed by `.STEP`, a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmName {
    /// The job without the step.
    pub job: String,
    /// The number before `_` and `+`.
    pub number: u32,
    /// Whether `_` or `+` follows.
    pub is_part: bool,
    /// The step.
    pub step: Option<String>,
}

impl SlurmName {
    /// Parses a name.
    pub fn parse(text: &str) -> Option<Self> {
        let (job, step) = text.split_once('.').map_or((text, None), |(job, step)| (job, Some(step)));
        let (number, part) = job.split_once(['_', '+']).map_or((job, None), |(number, part)| (number, Some(part)));
        let is_one = is_number(number) && part.is_none_or(|part| is_number(part) && part.parse::<u32>().is_ok());
        let number = number.parse().ok().filter(|number| is_one && *number > 0)?;
        let step = step.map(str::to_owned);
        Some(Self { job: job.to_owned(), number, is_part: part.is_some(), step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_slurms_are_read_as_its_commands_write_them() {
        let parse = |text: &str| SlurmName::parse(text).map(|name| (name.job, name.number, name.is_part, name.step));
        let name = |job: &str, part, step: Option<&str>| Some((job.to_owned(), 12, part, step.map(str::to_owned)));
        assert_eq!(parse("12"), name("12", false, None));
        assert_eq!(parse("12_3"), name("12_3", true, None));
        assert_eq!(parse("12+1"), name("12+1", true, None));
        assert_eq!(parse("12.batch"), name("12", false, Some("batch")));
        assert_eq!(parse("12_3.0"), name("12_3", true, Some("0")));
        for wrong in [
            "",
            "0",
            "x",
            "12_",
            "12+",
            "_3",
            "12_[3]",
            "12_3_4",
            "12+1_2",
            "-1",
            "+1",
            "4294967296",
            "12_4294967296",
            "12[3].s",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
