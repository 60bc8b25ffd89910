// SPDX-License-Identifier: GPL-2.0-or-later
//! The process that answers one user: `jobfence own-report LOG`, whose stdin is the user's connection.
//!
//! It is no command for people, so the command line's definition does not have it. It writes lines of that user's alone, and ends with the
//! connection, with a user who does not read, or after a minute.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jobfence::config::Config;
use jobfence::report::usage_log::UsageLog;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{END, REFUSED, SCHEMA, peer};
use crate::node_logs::{self, is_own};

/// The word after the program's name.
pub const WORD: &str = "own-report";

/// No question is longer, in bytes.
const LONGEST_QUESTION: u64 = 4096;

/// jobfence writes no longer line, in bytes. `hold` keeps more of a job's GPUs, and logs less.
const LONGEST: u64 = 1 << 20;

/// How long the user may keep it waiting for one piece, and for all.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_FOR_ALL: u32 = 60;

/// Whether this process is to be the teller.
pub fn is_asked_for() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// Answers the user at stdin.
pub fn tell() -> ExitCode {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    nix::unistd::alarm::set(PATIENCE_FOR_ALL);
    let _ = std::env::set_current_dir("/");
    // jobfence.service is spared when memory is short, and what it starts would be, too.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    // SAFETY: this changes how often the process runs, and nothing else.
    unsafe { libc::nice(19) };
    let Some(usage_log) = std::env::args_os().nth(2) else { return ExitCode::FAILURE };
    let config = Config { usage_log: Some(usage_log.into()), ..Config::default() };
    let done = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).and_then(|user| {
        user.set_read_timeout(Some(PATIENCE))?;
        user.set_write_timeout(Some(PATIENCE))?;
        let uid = peer(user.as_fd())?.uid;
        let log = UsageLog::from_config(&config).ok_or(io::ErrorKind::InvalidInput)?;
        answer(&user, uid, &log)
    });
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The number with which the ids of the wanted jobs begin. `None`: the question is not understood.
fn question(user: &UnixStream) -> io::Result<Option<String>> {
    let mut line = String::new();
    BufReader::new(user.take(LONGEST_QUESTION)).read_line(&mut line)?;
    let question: Value = serde_json::from_str(&line).unwrap_or_default();
    let number = question["number"].as_str().filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(number.filter(|_| question["schema"] == SCHEMA).map(str::to_owned))
}

fn answer(user: &UnixStream, uid: u32, usage_log: &UsageLog<'_>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, user);
    let Some(number) = question(user)? else {
        return writeln!(out, "{REFUSED}the question is another release's");
    };
    writeln!(out, "{}", json!({"schema": SCHEMA}))?;
    for (at, log) in node_logs::ALL.into_iter().enumerate() {
        let files = match node_logs::open(usage_log, log) {
            Ok(files) => files,
            Err(error) => {
                // The user is not told more than that: the reason may name what only root sees.
                ::log::debug!("{error}");
                return writeln!(out, "{REFUSED}root cannot read the log either");
            }
        };
        for (path, file) in files {
            each_line(&path, BufReader::with_capacity(1 << 16, file), &mut |line| {
                if is_own(line, uid, &number) {
                    write!(out, "{at}")?;
                    out.write_all(line)?;
                    out.write_all(b"\n")?;
                }
                Ok(())
            })?;
        }
    }
    writeln!(out, "{END}")?;
    out.flush()
}

/// Each whole line. What is longer than jobfence writes is skipped.
fn each_line(path: &Path, mut file: impl BufRead, each: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut file).take(LONGEST).read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(());
        }
        match line.strip_suffix(b"\n") {
            Some(whole) => each(whole)?,
            None if line.len() as u64 == LONGEST => file.skip_until(b'\n').map(drop).map_err(failed)?,
            None => {}
        }
    }
}
