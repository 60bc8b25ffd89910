// SPDX-License-Identifier: GPL-2.0-or-later
//! The files of usage logs: this node's, or all below a directory, plain or packed by gzip or zstd.
//!
//! A file is a log if one of its first lines is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use jobfence::error::{Error, Result};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::line::{self, EndText, Read as LineRead, moment_of};

/// jobfence writes no longer line, in bytes.
const LONGEST: u64 = 1 << 20;

/// How deep directories may be in each other.
const DEEPEST: usize = 32;

/// What a frame of zstd may demand of memory, in bytes. It is what zstd itself uses at most, unless it is told --long or --ultra.
const WINDOW: u64 = 8 << 20;

/// The first lines are read in such pieces.
const PIECE: usize = 1 << 13;

/// So many lines are looked at.
const FIRST_LINES: usize = 16;

/// A file that may have lines.
#[derive(Debug)]
pub struct LogSource {
    pub path: PathBuf,
    /// An open file, for those of this node: they may get other names.
    file: Option<File>,
    /// When the step of the first line ended.
    pub first: EndText,
}

/// The files below a directory, and what could not be read.
#[derive(Debug, Default)]
pub struct FoundLogs {
    pub sources: Vec<LogSource>,
    pub errors: Vec<Error>,
    /// Files that are no usage logs.
    pub others: u64,
}

impl FoundLogs {
    /// The files of this node's log.
    pub fn of_node(files: Vec<(PathBuf, File)>) -> Self {
        let mut found = Self::default();
        for (path, file) in files {
            found.add(path, file);
        }
        found
    }

    /// Every usage log below the directory. Symbolic links are not followed.
    pub fn below(directory: &Path) -> Result<Self> {
        let mut found = Self::default();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = Dir::open(directory, flags, Mode::empty());
        let dir = dir.map_err(|errno| Error::os("open the directory of --logs", directory, errno))?;
        found.walk(dir, directory, 0);
        // Stable: of one moment, that with the lesser path comes first.
        found.sources.sort_by(|one, other| (one.first, &one.path).cmp(&(other.first, &other.path)));
        Ok(found)
    }

    fn walk(&mut self, mut dir: Dir, path: &Path, depth: usize) {
        let mut entries = Vec::new();
        for entry in dir.iter() {
            match entry {
                Ok(entry) => {
                    let name = entry.file_name().to_owned();
                    if !matches!(name.to_bytes(), b"." | b"..") {
                        entries.push((name, entry.file_type()));
                    }
                }
                Err(errno) => self.errors.push(Error::os("list", path, errno)),
            }
        }
        for (name, kind) in entries {
            use std::os::unix::ffi::OsStrExt;
            let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            // Some file systems do not tell the kind.
            let kind = kind.or_else(|| {
                let stat = fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
                match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
                    SFlag::S_IFDIR => Some(Type::Directory),
                    SFlag::S_IFREG => Some(Type::File),
                    _ => None,
                }
            });
            // A pipe in the place of a file must not stop it.
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            match kind {
                Some(Type::Directory) if depth < DEEPEST => {
                    match Dir::openat(&dir, name.as_c_str(), flags | OFlag::O_DIRECTORY, Mode::empty()) {
                        Ok(inner) => self.walk(inner, &path, depth + 1),
                        Err(errno) => self.errors.push(Error::os("open", &path, errno)),
                    }
                }
                Some(Type::File) => match openat(&dir, name.as_c_str(), flags, Mode::empty()) {
                    Ok(file) => {
                        let is_file =
                            fstat(&file).is_ok_and(|stat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits());
                        if is_file {
                            self.add_below(path, File::from(file));
                        }
                    }
                    // It was removed meanwhile.
                    Err(Errno::ENOENT) => {}
                    Err(errno) => self.errors.push(Error::os("open", &path, errno)),
                },
                _ => {}
            }
        }
    }

    fn add_below(&mut self, path: PathBuf, file: File) {
        self.add(path, file);
        if let Some(source) = self.sources.last_mut() {
            // A directory may have more files than may be open at once.
            source.file = None;
        }
    }

    /// Adds a file if its first whole line is one of a usage log.
    fn add(&mut self, path: PathBuf, file: File) {
        match first_of(&file) {
            Ok(Some(first)) => self.sources.push(LogSource { path, file: Some(file), first }),
            Ok(None) => self.others += 1,
            Err(error) => self.errors.push(Error::new(format!("cannot read a usage log: {error}")).at(&path)),
        }
    }
}

/// When the step of the first line ended. `None`: it is no usage log.
fn first_of(file: &File) -> io::Result<Option<EndText>> {
    let mut lines = LogLines::new(file.try_clone()?, PIECE)?;
    let mut first = None;
    // Half a line at the beginning, or one of others, does not hide the rest. A log has no line of any length.
    for _ in 0..FIRST_LINES {
        match lines.read()? {
            Some(Next::Whole) => {
                if matches!(line::read(lines.line(), ""), LineRead::Line(_) | LineRead::Newer) {
                    first = moment_of(lines.line());
                    break;
                }
            }
            Some(Next::TooLong | Next::Half) | None => break,
        }
    }
    let mut file = file;
    file.rewind()?;
    Ok(first)
}

impl LogSource {
    /// The lines, from the first.
    pub fn lines(self, piece: usize) -> Result<LogLines> {
        let failed = |error: io::Error| Error::new(format!("cannot open a usage log: {error}")).at(&self.path);
        let file = match self.file {
            Some(file) => file,
            None => {
                use std::os::unix::fs::OpenOptionsExt;
                let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
                File::options().read(true).custom_flags(flags).open(&self.path).map_err(failed)?
            }
        };
        LogLines::new(file, piece).map_err(failed)
    }
}

/// What comes next in a file.
pub enum Next {
    /// [`LogLines::line`] has it.
    Whole,
    /// The end of the file, without the end of a line.
    Half,
    TooLong,
}

/// The lines of a file.
pub struct LogLines {
    /// `None`: closed.
    file: Option<BufReader<Box<dyn Read>>>,
    line: Vec<u8>,
    /// Whether the rest of a line is still to be passed over.
    is_within: bool,
}

impl LogLines {
    fn new(mut file: File, piece: usize) -> io::Result<Self> {
        let mut magic = [0; 4];
        let mut length = 0;
        while let Some(rest) = magic.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match file.read(rest)? {
                0 => break,
                read => length += read,
            }
        }
        file.rewind()?;
        let reader: Box<dyn Read> = match magic {
            [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(piece, file))),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(Zstd::new(BufReader::with_capacity(piece, file))?),
            _ => Box::new(file),
        };
        let file = Some(BufReader::with_capacity(piece, reader));
        Ok(Self { file, line: Vec::new(), is_within: false })
    }

    /// Reads the next line. `None`: there is none.
    pub fn read(&mut self) -> io::Result<Option<Next>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        if std::mem::take(&mut self.is_within) {
            super::super::log::skip_line(file)?;
        }
        self.line.clear();
        let read = Read::take(&mut *file, LONGEST).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        if self.line.pop_if(|last| *last == b'\n').is_some() {
            return Ok(Some(Next::Whole));
        }
        self.is_within = self.line.len() as u64 == LONGEST;
        Ok(Some(if self.is_within { Next::TooLong } else { Next::Half }))
    }

    /// The line that was read, without its end.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// Gives back the file and its memory.
    pub fn close(&mut self) {
        (self.file, self.line) = (None, Vec::new());
    }
}

/// All frames of a file, one after another.
struct Zstd {
    /// `None`: the file has ended.
    frame: Option<StreamingDecoder<BufReader<File>, FrameDecoder>>,
}

impl Zstd {
    fn new(file: BufReader<File>) -> io::Result<Self> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        let frame = StreamingDecoder::new_with_decoder(file, decoder).map_err(io::Error::other)?;
        Ok(Self { frame: Some(frame) })
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else { return Ok(0) };
            let read = frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some((mut file, decoder)) = self.frame.take().map(StreamingDecoder::into_parts) else { return Ok(0) };
            if file.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let next = StreamingDecoder::new_with_decoder(file, decoder).map_err(io::Error::other)?;
            self.frame = Some(next);
        }
    }
}
