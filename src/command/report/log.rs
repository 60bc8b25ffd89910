// SPDX-License-Identifier: GPL-2.0-or-later
//! The lines of the usage log about one job. Lines that jobfence did not write are skipped and reported.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};

use jobfence::error::{Error, Result};
use jobfence::job::Id;
use jobfence::report::account::SCHEMA;
use jobfence::report::json::text;

use crate::logged::LoggedStep;
use crate::node_logs::USAGE;
use crate::own_report::ReadableLogs;

/// jobfence writes no longer line, in bytes.
const LONGEST: u64 = 1 << 20;

/// What the log has about one job.
#[derive(Default)]
pub struct LoggedSteps {
    /// In the order of the log.
    pub lines: Vec<LoggedStep>,
    /// What was skipped, as text.
    pub skipped: Option<String>,
}

/// Reads all files of the log, the oldest first.
pub fn read(logs: &ReadableLogs<'_>, job: &Id) -> Result<LoggedSteps> {
    let mut reading = Reading::new(job);
    for (path, file) in logs.open(USAGE)? {
        reading
            .add(BufReader::with_capacity(1 << 16, file))
            .map_err(|error| Error::new(format!("cannot read the usage log: {error}")).at(&path))?;
    }
    Ok(LoggedSteps { skipped: reading.in_words(), lines: reading.lines })
}

/// The jobs that have this text in their lines. One of them may be the named one.
pub fn jobs_with(logs: &ReadableLogs<'_>, name: &str) -> Result<BTreeSet<String>> {
    let mut reading = Reading { job: None, member: text(name).trim_matches('"').to_owned(), ..Reading::default() };
    for (path, file) in logs.open(USAGE)? {
        let read = reading.add(BufReader::with_capacity(1 << 16, file));
        read.map_err(|error| Error::new(format!("cannot read the usage log: {error}")).at(&path))?;
    }
    Ok(reading.lines.iter().filter_map(|line| line.job.clone()).collect())
}

#[derive(Default)]
struct Reading {
    /// The job in question. `None`: all.
    job: Option<String>,
    /// A text in every wanted line, such as the job's id.
    member: String,
    lines: Vec<LoggedStep>,
    half: u64,
    foreign: u64,
    newer: u64,
}

impl Reading {
    fn new(job: &Id) -> Self {
        let member = format!("\"job\":{}", text(job.as_str()));
        Self { job: Some(job.as_str().to_owned()), member, ..Self::default() }
    }

    fn add(&mut self, mut file: impl BufRead) -> std::io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = std::io::Read::take(&mut file, LONGEST).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            match line.strip_suffix(b"\n") {
                Some(whole) => self.line(whole),
                None if line.len() as u64 == LONGEST => {
                    self.foreign += 1;
                    skip_line(&mut file)?;
                }
                None => self.half += 1,
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        // Lines that are certainly another job's are not parsed: the log may have a hundred thousand lines.
        let begin = format!("{{\"schema\":\"{SCHEMA}\",");
        let is_ours = line.starts_with(begin.as_bytes()) && line.ends_with(b"}");
        let whole = std::str::from_utf8(line);
        if let Ok(whole) = whole
            && is_ours
            && !whole.contains(&self.member)
        {
            return;
        }
        let Some(step) = whole.ok().and_then(|whole| serde_json::from_str(whole).ok()).map(LoggedStep::new) else {
            self.foreign += 1;
            return;
        };
        match &step.schema {
            Some(schema) if schema == SCHEMA => {
                let has_ended = step.ended.as_ref().is_some_and(|ended| ended.len() == 20);
                if step.job.is_none() || step.step.is_none() || !has_ended {
                    self.foreign += 1;
                } else if self.job.is_none() || step.job == self.job {
                    self.lines.push(step);
                }
            }
            Some(schema) if schema.starts_with("jobfence-usage-") => self.newer += 1,
            _ => self.foreign += 1,
        }
    }

    fn in_words(&self) -> Option<String> {
        passed_over(&[
            (self.half, "without an end"),
            (self.foreign, "that jobfence has not written"),
            (self.newer, "of another release"),
        ])
    }
}

/// The lines that were passed over, in words: how many, and why.
pub fn passed_over(counts: &[(u64, &str)]) -> Option<String> {
    let lines = |(count, what): &(u64, &str)| match count {
        0 => None,
        1 => Some(format!("1 line {what}")),
        count => Some(format!("{count} lines {what}")),
    };
    let all: Vec<String> = counts.iter().filter_map(lines).collect();
    (!all.is_empty()).then(|| format!("passed over in the usage log: {}", all.join(", ")))
}

/// Skips to the end of the line, without keeping it.
pub fn skip_line(file: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let piece = file.fill_buf()?;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let (length, is_end) = (end.map_or(piece.len(), |end| end + 1), end.is_some() || piece.is_empty());
        file.consume(length);
        if is_end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_line_of_ours_is_passed_over() {
        let of = |job: &str| {
            format!(
                "{{\"schema\":\"jobfence-usage-1\",\"ended\":\"2026-11-25T03:31:01Z\",\"job\":{},\"step\":\"0\"}}\n",
                text(job)
            )
        };
        let mut log =
            (of("7") + &of("77") + &of("5\n\"") + "nothing of ours\n{\"schema\":\"jobfence-usage-2\"}\n").into_bytes();
        // These are skipped, too: no text, too long, without required members, and cut short.
        log.extend(b"{\"schema\":\"jobfence-usage-1\",\"job\":\"7\xff\"}\n");
        log.extend(vec![b'x'; 3 << 20]);
        log.extend(b"\n{\"schema\":\"jobfence-usage-1\",\"job\":\"7\"}\n");
        log.extend(of("7").as_bytes());
        log.extend(b"{\"schema\":\"jobfence-usage-1\",\"job\":\"7\"");
        let read = |job: &str| {
            let mut reading = Reading::new(&Id::new(job).unwrap());
            reading.add(log.as_slice()).unwrap();
            (reading.lines.len(), reading.in_words())
        };
        let skipped = "passed over in the usage log: 1 line without an end, 4 lines that jobfence has not written, 1 line of \
                       another release";
        assert_eq!(read("7"), (2, Some(skipped.to_owned())));
        assert_eq!(read("5\n\"").0, 1);
        assert_eq!(read("6").0, 0);
    }
}
