// SPDX-License-Identifier: GPL-2.0-or-later
//! The roll: one file in `RunDir` with a line for each thing that a step holds. With it a launch finds out in a few system calls
//! whether the owners of some of them live, however many there are.
//!
//! A line is appended before what it names is made: a record, or a mark on a directory of the scheduler's. A line is a hint: a process
//! that finds its owner dead looks at what it names, which says what is to be done. A line that names nothing any more is struck out in
//! place, and now and then the file is written anew without those. That the file exists also says that nothing has been lost (`State`):
//! it goes with `RunDir`, and a process that cannot append to it removes it, so that the next launch looks at everything.
//!
//! No launch waits for another: two at once may look at the same lines, and leave none out.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::sys::uio::{pread, pwrite};

use super::files::{link_new, unlink};
use crate::error::{Error, Result};
use crate::log;
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
use crate::sys::process::Owner;

mod entry;

pub use entry::{Entry, EntryKind};

/// In `RunDir`. It is a directory, since releases without a roll take every file there for a record.
pub(super) const DIRECTORY: &str = "roll";
const LIST: &str = "roll/list";
const NAME: &str = "list";
/// A new list, which has no name yet.
const NEW: &str = ".new";

/// How the file begins. With another number it is another release's, and as good as none.
pub(super) const VERSION: &str = "jobfence-roll 1 ";
/// Where the state and the numbers of [`Hands`] begin, which are overwritten in place.
const PLACE: usize = VERSION.len();
/// The digits of each number.
const DIGITS: usize = 10;
const NUMBERS: usize = 3;
/// The length of the header up to the boot's id.
const FIXED: usize = PLACE + 2 + NUMBERS * (DIGITS + 1);
/// Any number in the header is below this.
const LARGEST: usize = 10_000_000_000;

/// The file is written anew when at least so many lines are struck out, and more than are left.
const STRUCK: usize = 64;

/// How long to wait for another janitor that is making the roll.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// In bytes; a longer file is no roll.
const LONGEST: i64 = 256 << 20;

/// In bytes. Of a longer file a launch reads only three windows: where the two hands are, and what was appended last. So a launch costs
/// the same, however many steps there are.
const SHORT: usize = 16 << 10;
/// In bytes: some dozens of lines.
const WINDOW: usize = 8 << 10;
/// One of so many launches reads all of the file, and tidies it.
const WHOLE: usize = 64;

/// Whether everything has a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A process has begun to look at everything, and has not come to the end.
    Begun,
    /// Everything has a line: what was there before, and what was made since.
    Whole,
}

/// Where the next launch goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Hands {
    /// The place of the next line to look at quickly.
    quick: usize,
    /// The place of the next line to look at closely.
    close: usize,
    /// How many launches there were.
    launches: usize,
}

impl Hands {
    fn text(self, state: State) -> String {
        let sign = if state == State::Whole { '!' } else { '?' };
        let Self { quick, close, launches } = self;
        let numbers = [quick, close, launches].map(|number| number % LARGEST);
        numbers.iter().fold(format!("{sign} "), |mut text, number| {
            let _ = write!(text, "{number:0DIGITS$} ");
            text
        })
    }
}

/// The lines of the roll that a launch looks at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// All of them, with their places.
    pub entries: Vec<(usize, Entry)>,
    /// The owners whose start time is looked at, too.
    pub closely: BTreeSet<Owner>,
}

/// Lines that follow each other.
#[derive(Debug)]
struct Excerpt {
    /// Where the lines begin in the file.
    at: usize,
    text: String,
}

impl Excerpt {
    fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// The file as it was read.
#[derive(Debug)]
pub struct Roll {
    fd: OwnedFd,
    /// In the file's order; a single one if all of the file was read.
    parts: Vec<Excerpt>,
    /// The file's size, in bytes.
    size: usize,
    state: State,
    hands: Hands,
}

/// Appends lines for what exists now, or will in a moment. If that fails, the roll is removed.
pub fn note(run_dir: &Dir, entries: &[Entry]) {
    // The first newline ends the line of a process that died while it wrote.
    let lines: String = entries.iter().filter_map(Entry::text).map(|text| format!("\n+ {text}\n")).collect();
    if lines.is_empty() {
        return;
    }
    if let Err(error) = append(run_dir, &lines) {
        log::debug!("{error}");
        let _ = unlink(run_dir, LIST);
    }
}

fn append(run_dir: &Dir, lines: &str) -> Result<()> {
    let failed = |errno| Error::os("write", run_dir.path().join(LIST), errno);
    for _ in 0..3 {
        let fd = match run_dir.open_file(LIST, OFlag::O_WRONLY | OFlag::O_APPEND) {
            // Without a roll the next launch looks at everything.
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(()),
            fd => fd?,
        };
        match nix::unistd::write(&fd, lines.as_bytes()) {
            Ok(n) if n == lines.len() => {}
            Ok(_) => return Err(failed(Errno::ENOSPC)),
            Err(errno) => return Err(failed(errno)),
        }
        // A process that writes the roll anew also copies what was appended to the old file, until that loses its name.
        if fstat(&fd).map_err(failed)?.st_nlink > 0 {
            return Ok(());
        }
    }
    Err(Error::new("other processes keep writing it:").at(run_dir.path().join(LIST)))
}

impl Roll {
    /// Reads the roll. `None`: there is none of this boot.
    pub fn read(run_dir: &Dir, boot_id: &str) -> Result<Option<Self>> {
        Self::read_some(run_dir, boot_id, |_| true)
    }

    /// Reads what a launch looks at, which is only a part of a long roll.
    pub fn read_for_turn(run_dir: &Dir, boot_id: &str) -> Result<Option<Self>> {
        Self::read_some(run_dir, boot_id, |hands| hands.launches % WHOLE == 0)
    }

    fn read_some(run_dir: &Dir, boot_id: &str, is_wanted: impl Fn(Hands) -> bool) -> Result<Option<Self>> {
        let fd = match run_dir.open_file(LIST, OFlag::O_RDWR) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(None),
            fd => fd?,
        };
        let failed = |errno| Error::os("read", run_dir.path().join(LIST), errno);
        let size = fstat(&fd).map_err(failed)?.st_size;
        if size > LONGEST {
            return Ok(None);
        }
        let size = usize::try_from(size).unwrap_or(0);
        let first = read_from(&fd, 0, size.min(SHORT)).map_err(failed)?;
        let header = first.iter().position(|byte| *byte == b'\n').unwrap_or(first.len());
        let text = first.get(..header).and_then(|header| str::from_utf8(header).ok());
        let Some((state, hands)) = text.and_then(|text| Self::understand(text, boot_id)) else { return Ok(None) };
        let mut parts = Vec::new();
        if size <= SHORT || is_wanted(hands) {
            let mut bytes = first;
            bytes.extend(read_from(&fd, bytes.len(), size.saturating_sub(bytes.len())).map_err(failed)?);
            let Ok(text) = String::from_utf8(bytes) else { return Ok(None) };
            parts.push(Excerpt { at: 0, text });
        } else {
            for (from, until) in windows(hands, header + 1, size) {
                let bytes = read_from(&fd, from, until - from).map_err(failed)?;
                let Some((skipped, lines)) = lines_within(&bytes) else { continue };
                let Ok(text) = str::from_utf8(lines) else { return Ok(None) };
                parts.push(Excerpt { at: from + skipped, text: text.to_owned() });
            }
        }
        Ok(Some(Self { fd, parts, size, state, hands }))
    }

    /// Whether all of it was read.
    pub fn is_whole(&self) -> bool {
        self.parts.first().is_some_and(|part| part.at == 0)
    }

    /// The whole text, if all of it was read.
    fn text(&self) -> &str {
        self.parts.first().map_or("", |part| &part.text)
    }

    fn understand(text: &str, boot_id: &str) -> Option<(State, Hands)> {
        let header = text.lines().next()?;
        let state = match header.strip_prefix(VERSION)?.get(..1)? {
            "!" => State::Whole,
            "?" => State::Begun,
            _ => return None,
        };
        let mut numbers = header.get(PLACE + 2..FIXED)?.split(' ').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let hands = Hands { quick: next()?, close: next()?, launches: next()? };
        (header.get(FIXED..)? == boot_id).then_some((state, hands))
    }

    /// Reads the roll; makes an empty one if there is none.
    pub fn begin(run_dir: &Dir, boot_id: &str) -> Result<Self> {
        if let Some(roll) = Self::read(run_dir, boot_id)? {
            return Ok(roll);
        }
        match mkdirat(run_dir, DIRECTORY, Mode::from_bits_truncate(0o700)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(Error::os("make the directory", run_dir.path().join(DIRECTORY), errno)),
        }
        let dir = run_dir.child(DIRECTORY)?;
        // Without the lock this could remove a roll that another process is making, to which lines may have been appended already.
        let _lock = Lock::on(&dir, ".", Instant::now() + LOCK_TIMEOUT)?;
        if let Some(roll) = Self::read(run_dir, boot_id)? {
            return Ok(roll);
        }
        // The file is another boot's, or cannot be read.
        unlink(&dir, NAME)?;
        let header = format!("{VERSION}{}{boot_id}\n", Hands::default().text(State::Begun));
        link_new(&dir, NAME, &header)?;
        Self::read(run_dir, boot_id)?.ok_or_else(|| Error::new("it is not what was written:").at(dir.path().join(NAME)))
    }

    /// See [`State`].
    pub fn state(&self) -> State {
        self.state
    }

    /// Adds lines for all that was found: the roll is complete now.
    pub fn complete(mut self, run_dir: &Dir, found: &[Entry]) {
        let mut known: Vec<&str> = self.lines().map(|(_, line)| line).collect();
        sorted::sort(&mut known);
        let is_known = |text: String| known.binary_search(&format!("+ {text}").as_str()).is_ok();
        let is_new = |entry: &&Entry| entry.text().is_some_and(|text| !is_known(text));
        let new: Vec<Entry> = found.iter().filter(is_new).cloned().collect();
        note(run_dir, &new);
        if self.state != State::Whole {
            self.state = State::Whole;
            self.write_hands();
        }
        self.tidy(run_dir);
    }

    /// The lines that are not struck out, and where they are.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.parts.iter().flat_map(|part| {
            let mut at = part.at;
            part.text.split_inclusive('\n').filter_map(move |line| {
                let start = at;
                at += line.len();
                line.starts_with("+ ").then(|| (start, line.trim_end_matches('\n')))
            })
        })
    }

    /// The lines that come next from this place on, once around or to the end of the window, and the place that comes after them.
    fn next<'a, 'b>(
        &self,
        lines: &'b [(usize, &'a str)],
        from: usize,
    ) -> (impl Iterator<Item = &'b (usize, &'a str)>, usize) {
        let first = lines.partition_point(|(at, _)| *at < from);
        let (count, then) = if self.is_whole() {
            (lines.len(), 0)
        } else {
            let until = self.parts.iter().map(Excerpt::end).find(|end| *end > from).unwrap_or(self.size);
            let count = lines.partition_point(|(at, _)| *at < until).saturating_sub(first);
            // What was appended meanwhile is looked at with the last window.
            (count, if until >= self.size { 0 } else { until })
        };
        (lines.iter().cycle().skip(first).take(count), then)
    }

    /// The owners of all lines.
    pub fn owners(&self, pid_namespace: &str) -> impl Iterator<Item = Owner> {
        let entries = self.lines().filter_map(|(_, line)| Entry::parse(line));
        entries.filter(move |entry| entry.pid_namespace == pid_namespace).map(|entry| entry.owner)
    }

    /// Every line.
    pub fn all(&self) -> Vec<(usize, Entry)> {
        self.lines().filter_map(|(at, line)| Some((at, Entry::parse(line)?))).collect()
    }

    /// What this launch looks at: the lines of so many owners. Up to half of them have a word of `job` (the same job's), up to a
    /// quarter one of `user` (the same user's). The rest, a quarter at least, takes turns, so that each line is looked at in time.
    pub fn turn(&mut self, pid_namespace: &str, looks: usize, job: &[String], user: &[String]) -> Turn {
        let here = format!(" {pid_namespace} ");
        let lines: Vec<(usize, &str)> = self.lines().filter(|(_, line)| line.contains(&here)).collect();
        let mut chosen = Chosen::default();
        let has = |line: &str, words: &[String]| words.iter().any(|word| line.contains(word.as_str()));
        for (words, share) in [(job, looks / 2), (user, looks / 4)] {
            let theirs: Vec<_> = lines.iter().filter(|(_, line)| has(line, words)).collect();
            // Which of them is the first takes turns, too.
            let first = (self.hands.launches.wrapping_mul(share.max(1))).checked_rem(theirs.len()).unwrap_or(0);
            let most = chosen.owners.len() + share;
            for (at, line) in theirs.iter().cycle().skip(first).take(theirs.len()) {
                chosen.add(*at, line, most);
            }
        }
        let mut hands = Hands { launches: self.hands.launches + 1, ..self.hands };
        let (rest, then) = self.next(&lines, hands.quick);
        hands.quick = then;
        for (at, line) in rest {
            if !chosen.add(*at, line, looks) {
                hands.quick = *at;
                break;
            }
        }
        // One owner each time, or all if they are few.
        let mut closely: BTreeSet<Owner> = BTreeSet::new();
        if self.is_whole() && chosen.owners.len() <= FEW && chosen.places.len() == lines.len() {
            closely.clone_from(&chosen.owners);
        } else {
            let (mut rest, then) = self.next(&lines, hands.close);
            hands.close = then;
            if let Some((at, entry)) = rest.find_map(|(at, line)| Some((*at, Entry::parse(line)?))) {
                hands.close = rest.next().map_or(then, |(next, _)| *next);
                closely.insert(entry.owner);
                chosen.entries.push((at, entry));
            }
        }
        let entries = chosen.entries;
        self.hands = hands;
        self.write_hands();
        Turn { entries, closely }
    }

    /// If this fails, the next launch looks at the same lines.
    fn write_hands(&self) {
        let text = self.hands.text(self.state);
        let _ = pwrite(&self.fd, text.as_bytes(), i64::try_from(PLACE).unwrap_or(0));
    }

    /// Strikes out the line at this place: it names nothing any more.
    pub fn strike(&mut self, at: usize) {
        let _ = pwrite(&self.fd, b"-", i64::try_from(at).unwrap_or(i64::MAX));
        for part in &mut self.parts {
            let Some(at) = at.checked_sub(part.at) else { continue };
            if part.text.get(at..).is_some_and(|rest| rest.starts_with('+')) {
                part.text.replace_range(at..=at, "-");
            }
        }
    }

    /// Writes the file anew without the struck lines, if these are many and all of the file was read. A failure leaves the old file, or
    /// none.
    pub fn tidy(&mut self, run_dir: &Dir) {
        if !self.is_whole() {
            return;
        }
        let struck = self.text().lines().filter(|line| line.starts_with("- ")).count();
        if struck >= STRUCK
            && struck > self.lines().count()
            && let Err(error) = self.write_anew(run_dir)
        {
            log::debug!("the list of all steps is not tidied: {error}");
        }
    }

    fn write_anew(&mut self, run_dir: &Dir) -> Result<()> {
        let dir = run_dir.child(DIRECTORY)?;
        let at = |errno| Error::os("write", dir.path().join(NAME), errno);
        let Some(_lock) = Lock::try_on(&dir, ".")? else { return Ok(()) };
        // Another process was faster.
        if fstat(&self.fd).map_err(at)?.st_nlink == 0 {
            return Ok(());
        }
        let header = self.text().lines().next().map_or(0, |line| line.len() + 1);
        let kept = |before: usize| -> usize {
            self.lines().filter(|(at, _)| *at < before).map(|(_, line)| line.len() + 1).sum()
        };
        let moved = |hand: usize| if hand == 0 { 0 } else { header + kept(hand) };
        let Hands { quick, close, launches } = self.hands;
        let hands = Hands { quick: moved(quick), close: moved(close), launches };
        let mut text = format!("{VERSION}{}", hands.text(self.state));
        text.push_str(self.text().get(FIXED..header).unwrap_or("\n"));
        self.lines().for_each(|(_, line)| text.extend([line, "\n"]));
        unlink(&dir, NEW)?;
        link_new(&dir, NEW, &text)?;
        renameat(&dir, NEW, &dir, NAME).map_err(at)?;
        // Copies what was appended since the file was read, until it lost its name; see `append`.
        let size = usize::try_from(fstat(&self.fd).map_err(at)?.st_size).unwrap_or(0);
        let since = read_from(&self.fd, self.text().len(), size.saturating_sub(self.text().len())).map_err(at)?;
        if since.is_empty() {
            return Ok(());
        }
        let done = dir.open_file(NAME, OFlag::O_WRONLY | OFlag::O_APPEND).and_then(|fd| {
            match nix::unistd::write(&fd, &since).map_err(at)? {
                n if n == since.len() => Ok(()),
                _ => Err(at(Errno::ENOSPC)),
            }
        });
        done.inspect_err(|_| drop(unlink(&dir, NAME)))
    }
}

/// If there are no more owners than this, each is looked at closely.
const FEW: usize = 4;

/// The lines of some owners.
#[derive(Default)]
struct Chosen {
    entries: Vec<(usize, Entry)>,
    places: Vec<usize>,
    owners: BTreeSet<Owner>,
}

impl Chosen {
    /// Adds a line. `false`: its owner would be one too many.
    fn add(&mut self, at: usize, line: &str, most: usize) -> bool {
        let Some(entry) = Entry::parse(line) else { return true };
        if !self.owners.contains(&entry.owner) {
            if self.owners.len() >= most {
                return false;
            }
            self.owners.insert(entry.owner);
        }
        if let Err(place) = self.places.binary_search(&at) {
            self.places.insert(place, at);
            self.entries.push((at, entry));
        }
        true
    }
}

/// Where a launch reads a long file, in the file's order. Each window begins with the end of the line before it.
fn windows(hands: Hands, header: usize, size: usize) -> Vec<(usize, usize)> {
    let last = size.saturating_sub(WINDOW).max(header);
    let begin = |hand: usize| hand.clamp(header, last);
    let (quick, close) = (begin(hands.quick), begin(hands.close));
    let found = [quick.min(close), quick.max(close), last].map(|at| (at - 1, (at + WINDOW).min(size)));
    let mut windows: Vec<(usize, usize)> = Vec::new();
    for (from, until) in found {
        match windows.last_mut() {
            Some((_, last)) if from <= *last => *last = until.max(*last),
            _ => windows.push((from, until)),
        }
    }
    windows
}

/// The lines that begin and end in `bytes`, and where the first of them begins.
fn lines_within(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let first = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let end = bytes.iter().rposition(|byte| *byte == b'\n')? + 1;
    Some((first, bytes.get(first..end)?)).filter(|(_, lines)| !lines.is_empty())
}

fn read_from(fd: &OwnedFd, from: usize, length: usize) -> nix::Result<Vec<u8>> {
    let mut bytes = vec![0u8; length];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(fd, rest, i64::try_from(from + filled).unwrap_or(i64::MAX)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::record::files::open_run_dir;

    const BOOT: &str = "b-1";

    struct Site {
        _temp: tempfile::TempDir,
        dir: Dir,
    }

    impl Site {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let dir = open_run_dir(&temp.path().join("run")).unwrap();
            Roll::begin(&dir, BOOT).unwrap().complete(&dir, &[]);
            Self { _temp: temp, dir }
        }

        fn roll(&self) -> Roll {
            Roll::read(&self.dir, BOOT).unwrap().expect("no roll")
        }

        fn roll_for_turn(&self) -> Roll {
            Roll::read_for_turn(&self.dir, BOOT).unwrap().expect("no roll")
        }

        fn names(&self) -> Vec<String> {
            self.roll().all().into_iter().map(|(_, entry)| entry.name).collect()
        }

        fn turn(&self, looks: usize, job: &str, user: &str) -> Turn {
            let words = |word: &str| if word.is_empty() { Vec::new() } else { vec![word.to_owned()] };
            self.roll_for_turn().turn("p", looks, &words(job), &words(user))
        }
    }

    fn entry(number: usize) -> Entry {
        let owner = Owner { pid: 2 + i32::try_from(number).unwrap(), start: 100 };
        let name = format!("uid_{},job_{number},step_0", number % 7);
        Entry { owner, pid_namespace: "p".into(), kind: EntryKind::Step, name }
    }

    fn owners(turn: &Turn) -> BTreeSet<Owner> {
        turn.entries.iter().map(|(_, entry)| entry.owner).collect()
    }

    #[test]
    fn everybody_comes_to_it_in_turn() {
        for (count, looks) in [(1, 16), (16, 16), (17, 16), (100, 16), (33, 4), (1000, 16), (4000, 12)] {
            let site = Site::new();
            note(&site.dir, &(0..count).map(entry).collect::<Vec<_>>());
            let all: BTreeSet<Owner> = (0..count).map(|number| entry(number).owner).collect();
            let mut rounds = 0;
            for _ in 0..3 {
                let mut seen = BTreeSet::new();
                for _ in 0..count.div_ceil(looks) {
                    let turn = site.turn(looks, "", "");
                    assert!(owners(&turn).len() <= looks + 1, "{count}, {looks}: {}", owners(&turn).len());
                    seen.extend(owners(&turn));
                }
                rounds += usize::from(seen == all);
            }
            assert_eq!(rounds, 3, "{count}, {looks}");
            let mut closely = BTreeSet::new();
            for _ in 0..count {
                closely.extend(site.turn(looks, "", "").closely);
            }
            assert_eq!(closely, all, "{count}, {looks}: closely");
        }
    }

    /// Meanwhile each launch adds a step, and strikes out the added ones that it comes to.
    #[test]
    fn nobody_is_passed_over_while_others_come_and_go() {
        let site = Site::new();
        let (count, looks) = (200, 16);
        note(&site.dir, &(0..count).map(entry).collect::<Vec<_>>());
        let mut last_seen: BTreeMap<Owner, usize> = (0..count).map(|number| (entry(number).owner, 0)).collect();
        for launch in 1..600 {
            let mut roll = site.roll_for_turn();
            let turn = roll.turn("p", looks, &[" uid_3,".to_owned()], &[" uid_4,".to_owned()]);
            for (at, entry) in &turn.entries {
                match last_seen.get_mut(&entry.owner) {
                    Some(last) => *last = launch,
                    None => roll.strike(*at),
                }
            }
            roll.tidy(&site.dir);
            note(&site.dir, &[entry(count + launch)]);
            // A quarter of the looks always takes turns, through the new lines, too.
            let most = (count + 2 * launch.min(60)).div_ceil(looks / 4 - 1);
            let longest = last_seen.values().map(|last| launch - last).max().unwrap();
            assert!(longest <= most, "launch {launch}: {longest}");
        }
        assert!(site.names().len() < count + 200, "{}", site.names().len());
        let size = site.roll().size;
        assert!(size < 60 * (count + 2 * STRUCK + 300), "it grows: {size}");
    }

    #[test]
    fn a_launch_reads_no_more_of_a_long_one_than_of_a_short_one() {
        let site = Site::new();
        note(&site.dir, &(0..10_000).map(entry).collect::<Vec<_>>());
        assert!(site.roll().size > 20 * SHORT);
        let read = |roll: &Roll| roll.parts.iter().map(|part| part.text.len()).sum::<usize>();
        let mut whole = 0;
        for _ in 0..2 * WHOLE {
            let mut roll = site.roll_for_turn();
            whole += usize::from(roll.is_whole());
            assert!(roll.is_whole() || read(&roll) <= 3 * WINDOW, "{}", read(&roll));
            let (at, last) = roll.all().pop().unwrap();
            assert_eq!(last, entry(9_999), "what was appended last");
            assert_eq!(roll.turn("p", 12, &[], &[]).entries.len(), 13);
            roll.strike(at);
            assert_ne!(roll.all().pop().unwrap().1, entry(9_999));
            pwrite(&roll.fd, b"+", i64::try_from(at).unwrap()).unwrap();
        }
        assert_eq!(whole, 2, "one of {WHOLE}");
        // Many lines that have been struck out are passed over, window by window.
        let mut roll = site.roll();
        for (at, entry) in roll.all() {
            if entry.owner.pid < 9_000 {
                roll.strike(at);
            }
        }
        roll.hands = Hands { quick: 0, close: 0, launches: 1 };
        roll.write_hands();
        let living = site.roll().all().first().unwrap().0;
        let windows = living / WINDOW + 1;
        assert!((40..WHOLE - 2).contains(&windows), "no launch of these reads all: {windows}");
        (0..windows).for_each(|_| drop(site.turn(12, "", "")));
        let Hands { quick, close, .. } = site.roll().hands;
        assert!(quick > living && close > living, "{quick}, {close}, {living}");
        let rest = 1_000 / 12 + 4;
        let seen: BTreeSet<Owner> = (0..rest).flat_map(|_| owners(&site.turn(12, "", ""))).collect();
        assert!(seen.iter().filter(|owner| owner.pid >= 9_000).count() >= 990, "{}", seen.len());
    }

    #[test]
    fn the_same_jobs_come_first_and_then_the_same_users() {
        let site = Site::new();
        note(&site.dir, &(0..500).map(entry).collect::<Vec<_>>());
        let own = |name: &str, pid| Entry { owner: Owner { pid, start: 7 }, name: name.to_owned(), ..entry(0) };
        note(&site.dir, &[own("uid_9,job_9,step_1", 9001), own("uid_9,job_8,step_1", 9002)]);
        for _ in 0..50 {
            let turn = site.turn(16, " uid_9,job_9,", " uid_9,");
            let pids: BTreeSet<i32> = owners(&turn).iter().map(|owner| owner.pid).collect();
            assert!(pids.contains(&9001) && pids.contains(&9002), "{pids:?}");
        }
        // If there are more than there is room for, each comes to its turn.
        note(
            &site.dir,
            &(0..40).map(|number| own(&format!("uid_9,job_9,step_{number}"), 10_000 + number)).collect::<Vec<_>>(),
        );
        let mut seen = BTreeSet::new();
        for _ in 0..6 {
            seen.extend(owners(&site.turn(16, " uid_9,job_9,", "")).iter().map(|owner| owner.pid));
        }
        assert!((10_000..10_040).all(|pid| seen.contains(&pid)), "{seen:?}");
        // Lines of another pid namespace are not looked at here.
        let theirs = Entry { pid_namespace: "q".into(), ..own("uid_9,job_9,step_99", 9003) };
        note(&site.dir, &[theirs]);
        assert!(!owners(&site.turn(1000, " uid_9,job_9,", "")).iter().any(|owner| owner.pid == 9003));
    }

    #[test]
    fn what_is_appended_while_it_is_written_anew_is_kept() {
        let site = Site::new();
        note(&site.dir, &[entry(0), entry(1), entry(2)]);
        let mut roll = site.roll();
        let second = roll.all().get(1).unwrap().0;
        roll.strike(second);
        roll.hands = Hands { quick: roll.all().get(1).unwrap().0, close: 0, launches: 7 };
        note(&site.dir, &[entry(3)]);
        roll.write_anew(&site.dir).unwrap();
        let names = |numbers: &[usize]| numbers.iter().map(|number| entry(*number).name).collect::<Vec<_>>();
        assert_eq!(site.names(), names(&[0, 2, 3]));
        let again = site.roll();
        assert_eq!((again.state, again.hands.launches), (State::Whole, 7));
        assert_eq!(again.hands.quick, again.all().get(1).unwrap().0, "it goes on with the same one");
        // A process that has read the old file does no harm.
        roll.strike(second);
        roll.write_anew(&site.dir).unwrap();
        assert_eq!(site.names(), names(&[0, 2, 3]));
    }

    #[test]
    fn where_it_cannot_be_said_there_is_no_roll() {
        let site = Site::new();
        unlink(&site.dir, LIST).unwrap();
        note(&site.dir, &[entry(0)]);
        assert!(Roll::read(&site.dir, BOOT).unwrap().is_none(), "it is made by who looks at everything");
        assert_eq!(Roll::begin(&site.dir, BOOT).unwrap().state(), State::Begun);
        assert_eq!(Roll::begin(&site.dir, BOOT).unwrap().state(), State::Begun);
        note(&site.dir, &[entry(0)]);
        Roll::begin(&site.dir, BOOT).unwrap().complete(&site.dir, &[entry(0), entry(1)]);
        assert_eq!((site.roll().state(), site.names().len()), (State::Whole, 2));
        assert!(Roll::read(&site.dir, "b-2").unwrap().is_none(), "another boot's");
        assert_eq!(Roll::begin(&site.dir, "b-2").unwrap().all(), vec![]);
        // A directory in its place: nothing can be appended.
        unlink(&site.dir, LIST).unwrap();
        site.dir.child(DIRECTORY).unwrap().make(NAME).unwrap();
        note(&site.dir, &[entry(0)]);
        assert!(Roll::read(&site.dir, BOOT).is_err() && Roll::begin(&site.dir, BOOT).is_err());
    }

    #[test]
    fn a_line_that_was_not_ended_is_none_and_takes_no_other_with_it() {
        let site = Site::new();
        note(&site.dir, &[entry(0)]);
        let fd = site.dir.open_file(LIST, OFlag::O_WRONLY | OFlag::O_APPEND).unwrap();
        nix::unistd::write(&fd, b"\n+ 5 100 p step uid_1,job_2,st").unwrap();
        note(&site.dir, &[entry(1)]);
        assert_eq!(site.names(), [entry(0).name, entry(1).name]);
        for name in ["", "a\nb"] {
            note(&site.dir, &[Entry { name: name.to_owned(), ..entry(2) }]);
        }
        note(&site.dir, &[Entry { kind: EntryKind::Theirs, name: "/a b/c;".to_owned(), ..entry(3) }]);
        assert_eq!(site.names(), [entry(0).name, entry(1).name, "/a b/c;".to_owned()]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(
            text in "(jobfence-roll 1 )?[!?] ([0-9]{10} ){3}b-1\n(\n|[-+] [0-9-]{1,9} [0-9]{1,9} p (step|theirs|x) [a-zé,;]{0,9}\n)*",
        ) {
            let site = Site::new();
            let dir = site.dir.child(DIRECTORY).unwrap();
            unlink(&dir, NAME).unwrap();
            link_new(&dir, NAME, &text).unwrap();
            for read in [Roll::read, Roll::read_for_turn] {
                let Some(mut roll) = read(&site.dir, BOOT).unwrap() else { continue };
                let turn = roll.turn("p", 4, &["a".to_owned()], &[]);
                for (at, _) in turn.entries {
                    roll.strike(at);
                }
                roll.write_anew(&site.dir).unwrap();
                site.roll();
            }
        }
    }
}
