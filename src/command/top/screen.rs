// SPDX-License-Identifier: GPL-2.0-or-later
//! The terminal while `jobfence top` uses it. When the program ends, the terminal is as before, unless this process hangs in a look at jobs
//! and SIGALRM has to end it.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyEvent};
use crossterm::style::{Attribute, Color as TerminalColor, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};

use crate::command::Failure;

/// Set by a signal that is to end this process: the terminal is restored first.
static IS_ENDED: AtomicBool = AtomicBool::new(false);

/// How many seconds this process has to end. If the terminal then accepts no output, SIGALRM ends the process, since it has no handler for
/// it.
const LAST_MOMENT: nix::libc::c_uint = 10;

extern "C" fn end(_: nix::libc::c_int) {
    IS_ENDED.store(true, Ordering::Relaxed);
    end_soon(LAST_MOMENT);
}

/// Does nothing: the signal ends the poll of [`Screen::listen`], and the screen is drawn in its new size.
extern "C" fn resized(_: nix::libc::c_int) {}

/// Makes the kernel end this process after so many seconds. 0 cancels that.
fn end_soon(seconds: nix::libc::c_uint) {
    // SAFETY: alarm(2) takes a number, and may be called by a handler of signals.
    unsafe { nix::libc::alarm(seconds) };
}

/// Cancels `end_soon`, unless a signal wants this process to end.
fn go_on() {
    if !IS_ENDED.load(Ordering::Relaxed) {
        end_soon(0);
    }
}

/// What may come from the terminal.
#[derive(PartialEq, Eq)]
pub enum Heard {
    Nothing,
    Something,
    /// Nothing will come any more: the terminal is gone.
    End,
}

/// The terminal while this program uses it; restored when dropped.
pub struct Screen {
    /// The descriptor that keys come from. The terminal library finds the same one.
    keys: OwnedFd,
    /// What the terminal shows.
    shown: Buffer,
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, nothing can be restored, and errors do not matter.
        let mut stdout = io::stdout();
        let _ =
            execute!(stdout, ResetColor, SetAttribute(Attribute::Reset), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

impl Screen {
    pub fn open() -> Result<Self, Failure> {
        for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
            handle(signal, end, SaFlags::empty())?;
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
        let mut screen = Self { keys, shown: Buffer::default() };
        // Lines are not wrapped: a terminal may take more columns for a character than are expected here.
        execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide)?;
        // The terminal has just been cleared.
        screen.shown = empty()?;
        // The terminal library handles SIGWINCH from its first poll on. If a key came together with the signal, the library would hear of
        // the key only with the next one. So it polls now, and this program then takes the signal over.
        end_soon(LAST_MOMENT);
        event::poll(Duration::ZERO)?;
        go_on();
        // The signal ends a wait for keys, but no reading of the node.
        handle(Signal::SIGWINCH, resized, SaFlags::SA_RESTART)?;
        Ok(screen)
    }

    /// Waits for input. The terminal library must not wait: it reads a terminal that is gone for ever.
    pub fn listen(&self, patience: Duration) -> io::Result<Heard> {
        let mut fds = [PollFd::new(self.keys.as_fd(), PollFlags::POLLIN)];
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

    /// Hands on the keys that have arrived, until one of them is the last. Returns whether there were some.
    pub fn keys(&self, is_last: &mut dyn FnMut(&KeyEvent) -> bool) -> io::Result<bool> {
        // The terminal may disappear just now, and then the library would wait for ever.
        end_soon(LAST_MOMENT);
        let (mut is_some, mut is_end) = (false, false);
        while !is_end && event::poll(Duration::ZERO)? {
            is_some = true;
            is_end = matches!(event::read()?, Event::Key(key) if is_last(&key));
        }
        go_on();
        Ok(is_some)
    }

    /// Forgets what the terminal shows, so that all of it is written again.
    pub fn forget(&mut self) {
        self.shown = Buffer::default();
    }

    /// Writes what has changed, in one piece, so that nothing flickers.
    pub fn show(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let mut next = empty()?;
        draw(&mut next);
        let mut bytes = Vec::new();
        if self.shown.area != next.area {
            queue!(bytes, Clear(ClearType::All))?;
            self.shown = Buffer::empty(next.area);
        }
        write(&mut bytes, &self.shown, &next)?;
        self.shown = next;
        let mut stdout = io::stdout();
        stdout.write_all(&bytes)?;
        stdout.flush()
    }
}

fn handle(signal: Signal, handler: extern "C" fn(nix::libc::c_int), flags: SaFlags) -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(handler), flags, SigSet::empty());
    // SAFETY: the handlers do nothing, or store into an atomic variable and call alarm(2).
    unsafe { sigaction(signal, &action).map(drop) }
}

/// A screen of the terminal's size, without anything on it.
fn empty() -> io::Result<Buffer> {
    // A serial console does not know its width and height.
    let or = |found, usual| if found == 0 { usual } else { found };
    let (width, height) = terminal::size().map(|(width, height)| (or(width, 80), or(height, 24)))?;
    Ok(Buffer::empty(Rect::new(0, 0, width, height)))
}

/// Writes the cells that differ from what is shown.
fn write(bytes: &mut Vec<u8>, shown: &Buffer, next: &Buffer) -> io::Result<()> {
    let mut style = (Color::Reset, Modifier::empty());
    let mut expected = None;
    for (x, y, cell) in shown.diff(next) {
        if expected != Some((x, y)) {
            queue!(bytes, MoveTo(x, y))?;
        }
        if style != (cell.fg, cell.modifier) {
            restyle(bytes, cell)?;
            style = (cell.fg, cell.modifier);
        }
        queue!(bytes, Print(cell.symbol()))?;
        // Only the terminal knows how far a character that is not ASCII moves the cursor.
        expected = cell.symbol().is_ascii().then_some((x + 1, y));
    }
    queue!(bytes, SetAttribute(Attribute::Reset))
}

fn restyle(bytes: &mut Vec<u8>, cell: &Cell) -> io::Result<()> {
    queue!(bytes, SetAttribute(Attribute::Reset))?;
    for (modifier, attribute) in [(Modifier::BOLD, Attribute::Bold), (Modifier::REVERSED, Attribute::Reverse)] {
        if cell.modifier.contains(modifier) {
            queue!(bytes, SetAttribute(attribute))?;
        }
    }
    match cell.fg {
        Color::Red => queue!(bytes, SetForegroundColor(TerminalColor::Red)),
        Color::Yellow => queue!(bytes, SetForegroundColor(TerminalColor::Yellow)),
        _ => Ok(()),
    }
}
