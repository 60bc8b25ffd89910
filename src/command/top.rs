// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence top`: the live fences of this node, repeatedly, on a terminal. Without a terminal, one table.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use jobfence::bytes::mebibytes;
use jobfence::report::account::utc;
use jobfence::report::card::several;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::command::Failure;
use crate::living::{FilterOptions, LivingRow, LivingView, MEASURED, print, rows_in_lines, warn_of};
use crate::table::cut;

#[derive(Args)]
pub struct TopOptions {
    #[command(flatten)]
    filter: FilterOptions,
    /// Column by which the fences are sorted
    #[arg(long, value_name = "COLUMN", default_value = "cpu")]
    sort: SortColumn,
    /// Seconds between two readings, 0.2 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    interval: Duration,
    /// Read once, and print one JSON object, as 'jobfence ls' does
    #[arg(long)]
    json: bool,
}

/// By what fences are sorted: amounts with the largest first, names in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortColumn {
    Cpu,
    Memory,
    Processes,
    Time,
    Job,
    User,
}

/// The columns, each with its key and its name on the screen.
const KEYS: [(char, SortColumn, &str); 6] = [
    ('c', SortColumn::Cpu, "CPU"),
    ('m', SortColumn::Memory, "memory"),
    ('p', SortColumn::Processes, "processes"),
    ('t', SortColumn::Time, "time"),
    ('j', SortColumn::Job, "job"),
    ('u', SortColumn::User, "user"),
];

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    let expected = || format!("expected a number of seconds from 0.2 to 3600, found {text:?}");
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}

/// Shows the fences until the user quits.
pub fn top(options: &TopOptions) -> Result<ExitCode, Failure> {
    let mut view = options.filter.view()?;
    if options.json || !io::stdout().is_terminal() {
        let (mut rows, unseen) = view.measured();
        warn_of(&unseen);
        sort(&mut rows, options.sort, false);
        print(&rows, options.json);
        return Ok(ExitCode::SUCCESS);
    }
    Screen::open()?.show(&mut view, options)?;
    Ok(ExitCode::SUCCESS)
}

/// Sorts the rows. Equal ones keep the order of the jobs.
fn sort(rows: &mut [LivingRow], by: SortColumn, is_reversed: bool) {
    let descending = |one: f64, other: f64| other.total_cmp(&one);
    rows.sort_by(|one, other| {
        let order = match by {
            SortColumn::Cpu => descending(one.cpus_now.unwrap_or(-1.0), other.cpus_now.unwrap_or(-1.0)),
            SortColumn::Memory => other.current.memory.cmp(&one.current.memory),
            SortColumn::Processes => other.current.processes.cmp(&one.current.processes),
            SortColumn::Time => other.uptime.cmp(&one.uptime),
            SortColumn::Job => std::cmp::Ordering::Equal,
            SortColumn::User => one.user.cmp(&other.user),
        };
        if is_reversed { order.reverse() } else { order }
    });
    if is_reversed && by == SortColumn::Job {
        rows.reverse();
    }
}

/// Set by a signal that is to end this process: the terminal is restored first.
static IS_ENDED: AtomicBool = AtomicBool::new(false);

/// In seconds. If this process must end but the terminal accepts no output any more, SIGALRM ends it, which has no handler here.
const LAST_MOMENT: nix::libc::c_uint = 10;

extern "C" fn end(_: nix::libc::c_int) {
    IS_ENDED.store(true, Ordering::Relaxed);
    end_soon(LAST_MOMENT);
}

/// Makes this process end in so many seconds; 0: cancels that.
fn end_soon(seconds: nix::libc::c_uint) {
    // SAFETY: alarm(2) takes a number, and may be called by a handler of signals.
    unsafe { nix::libc::alarm(seconds) };
}

/// What may come from the terminal.
#[derive(PartialEq, Eq)]
enum Heard {
    Nothing,
    Something,
    /// Nothing will come any more: the terminal is gone.
    End,
}

/// Waits for input. The terminal library must not wait: it reads a terminal that is gone for ever.
fn listen(terminal: &OwnedFd, patience: Duration) -> io::Result<Heard> {
    let mut fds = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
    let waited = poll(&mut fds, PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX));
    if IS_ENDED.load(Ordering::Relaxed) {
        return Ok(Heard::End);
    }
    match waited {
        Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(Heard::Nothing),
        Ok(_) if fds.iter().all(|fd| fd.revents() == Some(PollFlags::POLLIN)) => Ok(Heard::Something),
        Ok(_) => Ok(Heard::End),
        Err(errno) => Err(errno.into()),
    }
}

/// The terminal while this program uses it; restored when dropped.
struct Screen {
    /// The descriptor that keys come from, found as the terminal library finds it.
    keys: OwnedFd,
    sorted_by: SortColumn,
    is_reversed: bool,
    /// How many fences are above the first visible one.
    scrolled: usize,
    has_colours: bool,
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone, and then nothing must be restored.
        let mut stdout = io::stdout();
        let _ =
            execute!(stdout, ResetColor, SetAttribute(Attribute::Reset), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
            let action = SigAction::new(SigHandler::Handler(end), SaFlags::empty(), SigSet::empty());
            // SAFETY: the handler only stores into an atomic variable.
            unsafe { sigaction(signal, &action)? };
        }
        let stdin = io::stdin();
        let keys = if stdin.is_terminal() {
            stdin.as_fd().try_clone_to_owned()
        } else {
            File::open("/dev/tty").map(OwnedFd::from)
        };
        let unusable = |error| format!("the terminal cannot be used: {error}");
        let keys = keys.map_err(unusable)?;
        terminal::enable_raw_mode().map_err(unusable)?;
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let screen = Self { keys, sorted_by: SortColumn::Cpu, is_reversed: false, scrolled: 0, has_colours };
        // A name with wide characters takes more columns than it has characters.
        execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide)?;
        Ok(screen)
    }

    fn show(mut self, view: &mut LivingView, options: &TopOptions) -> Result<(), Failure> {
        self.sorted_by = options.sort;
        view.begin();
        let mut next = Instant::now() + MEASURED;
        let mut seen: (Vec<LivingRow>, usize) = (Vec::new(), 0);
        loop {
            if Instant::now() >= next {
                let (rows, unseen) = view.rows();
                seen = (rows, unseen.len());
                next = Instant::now() + options.interval;
            }
            self.draw(&mut seen.0, seen.1)?;
            // A signal is handled within this time, whatever the interval.
            let patience = next.saturating_duration_since(Instant::now()).min(Duration::from_millis(500));
            match listen(&self.keys, patience)? {
                Heard::Nothing => {}
                Heard::Something => {
                    if self.answer()? {
                        return Ok(());
                    }
                }
                Heard::End => return Ok(()),
            }
        }
    }

    /// Handles all keys that have arrived. Returns whether one of them quits.
    fn answer(&mut self) -> io::Result<bool> {
        // In case the terminal disappears just now.
        end_soon(LAST_MOMENT);
        let mut is_end = false;
        while !is_end && event::poll(Duration::ZERO)? {
            is_end = matches!(event::read()?, Event::Key(key) if self.is_end(&key));
        }
        end_soon(0);
        Ok(is_end)
    }

    /// Handles a key. Returns whether it quits.
    fn is_end(&mut self, key: &KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return true,
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => return true,
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char(letter) => {
                if let Some((_, column, _)) = KEYS.iter().find(|(key, ..)| *key == letter) {
                    (self.sorted_by, self.is_reversed, self.scrolled) = (*column, false, 0);
                }
            }
            KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_add(page()),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(page()),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        false
    }

    /// Writes the whole screen at once over the old one, so that nothing flickers.
    fn draw(&mut self, rows: &mut [LivingRow], unseen: usize) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let (width, height) = (usize::from(width), usize::from(height));
        sort(rows, self.sorted_by, self.is_reversed);
        let place = height.saturating_sub(HEAD + 1);
        self.scrolled = self.scrolled.min(rows.len().saturating_sub(place));
        let mut lines = rows_in_lines(rows, width).into_iter();
        let mut screen = Vec::new();
        let mut line = |at: usize, text: &str, style: Style| -> io::Result<()> {
            let Ok(at) = u16::try_from(at) else { return Ok(()) };
            queue!(screen, MoveTo(0, at))?;
            match style {
                Style::Plain => {}
                Style::Reverse => queue!(screen, SetAttribute(Attribute::Reverse))?,
                Style::Coloured(colour) => queue!(screen, SetForegroundColor(colour))?,
            }
            let text = cut(text, width);
            let shown = if style == Style::Reverse { format!("{text:<width$}") } else { text };
            queue!(screen, Print(shown), SetAttribute(Attribute::Reset), ResetColor)?;
            queue!(screen, Clear(ClearType::UntilNewLine))
        };
        line(0, &self.summary(rows, unseen), Style::Plain)?;
        line(1, &lines.next().unwrap_or_default(), Style::Reverse)?;
        let shown = rows.iter().zip(lines).skip(self.scrolled).take(place);
        let mut used = HEAD;
        for (row, text) in shown {
            let colour = if self.has_colours { colour_of(row) } else { None };
            line(used, &text, colour.map_or(Style::Plain, Style::Coloured))?;
            used += 1;
        }
        for empty in used..height.saturating_sub(1) {
            line(empty, "", Style::Plain)?;
        }
        let keys: Vec<String> = KEYS.iter().map(|(key, _, name)| format!("{key} {name}")).collect();
        let help = format!("sort: {}   r reverse   q quit", keys.join("  "));
        line(height.saturating_sub(1), &help, Style::Plain)?;
        let mut stdout = io::stdout();
        stdout.write_all(&screen)?;
        stdout.flush()
    }

    fn summary(&self, rows: &[LivingRow], unseen: usize) -> String {
        let cpus: f64 = rows.iter().filter_map(|row| row.cpus_now).sum();
        let memory = rows.iter().filter_map(|row| row.current.memory).fold(0, u64::saturating_add);
        let name = KEYS.iter().find(|(_, column, _)| *column == self.sorted_by).map_or("", |(.., name)| name);
        let now = utc(std::time::SystemTime::now());
        let clock = now.get(11..19).unwrap_or_default();
        let unseen = if unseen > 0 { format!(", {unseen} not seen") } else { String::new() };
        let reversed = if self.is_reversed { ", reversed" } else { "" };
        format!(
            "{clock} UTC  {}{unseen}, {cpus:.2} CPUs, {}, by {name}{reversed}",
            several(rows.len() as u64, "fence", "fences"),
            mebibytes(memory)
        )
    }
}

/// Lines above the fences.
const HEAD: usize = 2;

#[derive(PartialEq, Eq)]
enum Style {
    Plain,
    Reverse,
    Coloured(Color),
}

fn page() -> usize {
    terminal::size().map_or(1, |(_, height)| usize::from(height).saturating_sub(HEAD + 1)).max(1)
}

/// Red if the memory is nearly used up, yellow if the CPU time is.
fn colour_of(row: &LivingRow) -> Option<Color> {
    let current = &row.current;
    let (memory, limit) = (current.memory.unwrap_or(0), current.limits.memory.unwrap_or(u64::MAX));
    if memory >= limit / 10 * 9 {
        return Some(Color::Red);
    }
    let cpus = row.cpus_now.unwrap_or(0.0) * 1000.0;
    let is_busy = current.limits.cpus.is_some_and(|limit| cpus >= 0.95 * limit.thousandths() as f64);
    is_busy.then_some(Color::Yellow)
}
