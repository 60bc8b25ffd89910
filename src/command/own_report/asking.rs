// SPDX-License-Identifier: GPL-2.0-or-later
//! The user's end: asks `jobfence hold` for the lines of the own jobs.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use jobfence::error::{Error, Result};
use serde_json::{Value, json};

use super::{END, REFUSED, SCHEMA, SOCKET, peer};
use crate::series;
use crate::table::printable;

/// How long a piece of the answer may take: longer than the one who answers waits.
const PATIENCE: Duration = Duration::from_secs(70);

/// Longer than each line and its mark, in bytes.
const LONGEST: u64 = (1 << 20) + 16;

/// How often a refusal is asked again, a little later: another report of the same user may just have been made.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(1100);

/// Calls this with the number of the log and each line of the user's own jobs whose ids begin so.
pub fn ask(run_dir: &Path, number: &str, each: &mut dyn FnMut(usize, &[u8]) -> io::Result<()>) -> Result<()> {
    let place = series::directory_of(run_dir).join(SOCKET);
    let mut why = String::new();
    for try_number in 0..TRIES {
        if try_number > 0 {
            std::thread::sleep(PAUSE);
        }
        match asked(&place, number, each) {
            Ok(None) => return Ok(()),
            Ok(Some(refused)) => why = refused,
            Err(error) => {
                return Err(Error::new(format!("cannot ask 'jobfence hold' for the lines of your own jobs: {error}"))
                    .at(place)
                    .hint("ask your administrator to see that jobfence.service runs, with the same jobfence.conf"));
            }
        }
    }
    Err(Error::new(format!("'jobfence hold' does not tell the lines of your own jobs: {}", printable(&why)))
        .at(place)
        .hint("run the command again later"))
}

/// Returns why there was no answer, if `hold` says so before the first line.
fn asked(
    place: &Path,
    number: &str,
    each: &mut dyn FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<Option<String>> {
    let hold = UnixStream::connect(place)?;
    if peer(hold.as_fd())?.uid != 0 {
        return Err(io::Error::other("another user than root listens there"));
    }
    hold.set_read_timeout(Some(PATIENCE))?;
    hold.set_write_timeout(Some(PATIENCE))?;
    // If it refuses, it does not read.
    let _ = writeln!(&hold, "{}", json!({"schema": SCHEMA, "number": number}));
    let _ = hold.shutdown(Shutdown::Write);
    let mut answer = BufReader::with_capacity(1 << 16, &hold);
    let mut is_begun = false;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = answer.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        if read == 0 || line.last() != Some(&b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\n');
        if let Some(why) = text.strip_prefix(REFUSED) {
            return if is_begun { Err(io::Error::other(printable(why))) } else { Ok(Some(why.to_owned())) };
        }
        if !is_begun {
            let begun: Value = serde_json::from_str(text).unwrap_or_default();
            if begun["schema"] != SCHEMA {
                return Err(io::Error::other("the answer is another release's"));
            }
            is_begun = true;
            continue;
        }
        if text == END {
            return Ok(None);
        }
        let log = line.first().and_then(|mark| usize::from(*mark).checked_sub(usize::from(b'0')));
        match (log, line.get(1..)) {
            (Some(log), Some(rest)) => each(log, rest)?,
            _ => return Err(io::Error::other("the answer is another release's")),
        }
    }
}
