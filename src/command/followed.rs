// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the usage log on, from where it was read before: also when its file was set aside since.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use jobfence::report::usage_log::UsageLog;

/// jobfence writes no longer line, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// The file that was read last, by its number, and how much of it was read, in bytes.
pub type LogPlace = (u64, u64);

/// The files of the log that have something new after a place, the oldest first. `None`: the file of that place is gone.
fn files_from(usage_log: &UsageLog<'_>, place: LogPlace) -> Result<Option<Vec<PathBuf>>, String> {
    let files = usage_log.files().map_err(|error| error.to_string())?;
    let is_it = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.ino() == place.0 && found.len() >= place.1);
    Ok(files.iter().position(is_it).map(|from| files.get(from..).unwrap_or_default().to_vec()))
}

/// Whether the log can be read on from this place.
pub fn is_there(usage_log: &UsageLog<'_>, place: LogPlace) -> Result<bool, String> {
    files_from(usage_log, place).map(|files| files.is_some())
}

/// Passes on each whole line after the place, or each of the log if there is none, and moves the place behind it.
pub fn read_on(
    usage_log: &UsageLog<'_>,
    place: &mut Option<LogPlace>,
    add: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let all = || usage_log.files().map_err(|error| error.to_string());
    let before = *place;
    let files = match before {
        Some(place) => files_from(usage_log, place)?.map_or_else(all, Ok)?,
        None => all()?,
    };
    for path in files {
        let Ok(mut file) = File::open(&path) else { continue };
        let Ok(ino) = file.metadata().map(|found| found.ino()) else { continue };
        let mut at = before.filter(|(read, _)| *read == ino).map_or(0, |(_, at)| at);
        let failed = |error| format!("{}: {error}", path.display());
        file.seek(SeekFrom::Start(at)).map_err(failed)?;
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(failed)?;
            // The line is still being written, or was cut short.
            if !line.ends_with(b"\n") && length < LONGEST_LINE as usize {
                break;
            }
            at += length as u64;
            add(&String::from_utf8_lossy(&line));
        }
        *place = Some((ino, at));
    }
    Ok(())
}

/// The place behind all that the log has.
pub fn end(usage_log: &UsageLog<'_>) -> Result<Option<LogPlace>, String> {
    let files = usage_log.files().map_err(|error| error.to_string())?;
    let Some(last) = files.last() else { return Ok(None) };
    let found = fs::metadata(last).map_err(|error| format!("{}: {error}", last.display()))?;
    Ok(Some((found.ino(), found.len())))
}
