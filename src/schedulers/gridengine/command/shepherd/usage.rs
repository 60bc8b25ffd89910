// SPDX-License-Identifier: GPL-2.0-or-later
//! The shepherd's file `usage`, which execd copies to the accounting file. With the fence's figures, `qacct` shows what all processes of
//! the job used, also those that the shepherd has not waited for.

use std::time::Duration;

use jobfence::doors::card::JobEnd;
use jobfence::error::Result;
use jobfence::figures::Usage;
use jobfence::report::account::Exit;

use super::spool::Spool;

const USAGE: &str = "usage";

/// How the job ended, by the shepherd's file. Empty for a job that never ran.
pub fn end(spool: &Spool) -> JobEnd {
    let text = if spool.dir.has(USAGE) { spool.dir.read(USAGE).unwrap_or_default() } else { String::new() };
    end_in(&text)
}

fn end_in(text: &str) -> JobEnd {
    let number = |wanted: &str| {
        let found = text.lines().filter_map(|line| line.split_once('=')).find(|(key, _)| *key == wanted);
        found.and_then(|(_, value)| value.trim().parse::<i32>().ok())
    };
    let exit = match number("signal") {
        Some(signal) if signal > 0 => Some(Exit::Signal(signal)),
        _ => number("exit_status").map(Exit::Status),
    };
    let took = number("end_time").zip(number("start_time")).and_then(|(end, start)| end.checked_sub(start));
    let wall = took.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    JobEnd { exit, wall, ..JobEnd::default() }
}

/// Raises the file's figures to those of the fence. A job that never ran has no such file.
pub fn raise(spool: &Spool, used: &Usage) -> Result<()> {
    if !spool.dir.has(USAGE) {
        return Ok(());
    }
    let before = spool.dir.read(USAGE)?;
    let after = raised(&before, used);
    if after == before { Ok(()) } else { spool.write(USAGE, after.as_bytes()) }
}

/// The file's text with raised figures, in the units of getrusage(2): seconds, and KiB of memory.
fn raised(text: &str, used: &Usage) -> String {
    let line = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let higher = match key {
            "ru_utime" => used.cpu_user?.as_secs_f64(),
            "ru_stime" => used.cpu_system?.as_secs_f64(),
            // The file cache is not memory that the job needs, so the cache that is left at the end does not count for the peak.
            // A peak of memory is a whole number of KiB, and stays far below 2^52.
            #[allow(clippy::cast_precision_loss, reason = "see above")]
            "ru_maxrss" => (used.memory_peak?.saturating_sub(used.memory_file.unwrap_or(0)) / 1024) as f64,
            _ => return None,
        };
        (higher > value.trim().parse().ok()?).then(|| match key {
            "ru_maxrss" => format!("{key}={higher:.0}"),
            _ => format!("{key}={higher:.6}"),
        })
    };
    text.lines().map(|found| line(found).unwrap_or_else(|| found.to_owned()) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_shepherd_says_how_the_job_has_ended() {
        let end = end_in("wait_status=768\nexit_status=3\nsignal=0\nstart_time=100\nend_time=160\n");
        assert_eq!((end.exit, end.wall), (Some(Exit::Status(3)), Some(Duration::from_secs(60))));
        assert_eq!(end_in("exit_status=137\nsignal=9\nstart_time=5\nend_time=1\n").exit, Some(Exit::Signal(9)));
        let end = end_in("");
        assert_eq!((end.exit, end.wall), (None, None));
    }

    #[test]
    fn only_what_is_higher_and_known_is_raised() {
        let text = "wait_status=0\nexit_status=3\nru_utime=0.500000\nru_stime=2.000000\nru_maxrss=100\nru_ixrss=0\n";
        let used = Usage {
            cpu_user: Some(Duration::from_millis(1500)),
            cpu_system: Some(Duration::from_secs(1)),
            memory_peak: Some(1 << 20),
            ..Usage::default()
        };
        let expected =
            "wait_status=0\nexit_status=3\nru_utime=1.500000\nru_stime=2.000000\nru_maxrss=1024\nru_ixrss=0\n";
        assert_eq!(raised(text, &used), expected);
        let after = raised(text, &Usage { memory_file: Some(512 << 10), ..used.clone() });
        assert_eq!(after, expected.replace("maxrss=1024", "maxrss=512"), "without the cache");
        assert_eq!(raised(text, &Usage::default()), text);
        assert_eq!(raised("ru_utime=x\n", &used), "ru_utime=x\n");
    }
}
