// SPDX-License-Identifier: GPL-2.0-or-later
//! Programs for the kernel that are made of raw instructions and loaded with bpf(2): a few dozen of them need neither a compiler nor a
//! library.
//!
//! A program is attached to a directory of cgroup2 beside any others (`BPF_F_ALLOW_MULTI`). The attachment holds the program; no
//! descriptor is kept, and it goes with its directory. Layouts and numbers: include/uapi/linux/bpf.h.

pub mod map;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::log;
use crate::sys::dir::Dir;

/// One instruction (`struct bpf_insn`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Class, operation and source in one (Documentation/bpf/standardization/instruction-set.rst).
    pub code: u8,
    /// The register that is written, and the one that is read.
    pub registers: u8,
    /// How far to jump, or where to load from.
    pub offset: i16,
    /// The number that the instruction works with.
    pub value: i32,
}

/// An instruction from its parts; `to` and `from` are registers.
pub const fn insn(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Insn {
    // Two bit fields in C, whose order follows the machine's byte order.
    let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
    Insn { code, registers, offset, value }
}

/// What a program is for, and how jobfence's are known.
#[derive(Debug, Clone, Copy)]
pub struct ProgramKind {
    /// `BPF_PROG_TYPE_*`.
    pub kind: u32,
    /// The attach type that the program must be loaded for (`expected_attach_type`); 0: none.
    pub expected: u32,
    /// Where it is attached (`BPF_CGROUP_*`).
    pub attach: u32,
    /// The name of jobfence's programs, by which an earlier one is found at a directory. At most 15 bytes.
    pub name: &'static str,
    /// What an error calls it.
    pub words: &'static str,
}

const PROG_LOAD: i32 = 5;
const PROG_ATTACH: i32 = 8;
const PROG_DETACH: i32 = 9;
const PROG_GET_FD_BY_ID: i32 = 13;
const OBJ_GET_INFO_BY_FD: i32 = 15;
const PROG_QUERY: i32 = 16;

/// `BPF_F_ALLOW_MULTI`.
pub const ALLOW_MULTI: u32 = 1 << 1;

/// `BPF_F_REPLACE`.
const REPLACE: u32 = 1 << 2;

/// The argument of each command, and zeros behind it. The kernel accepts unknown fields if they are zero, and writes some answers
/// (`query.revision`) without asking how much room there is. No padding may be between the two: its bytes could be anything.
#[repr(C)]
struct Argument<T> {
    command: T,
    _room: [u64; 16],
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    expected: u32,
}

#[repr(C)]
#[derive(Default)]
struct BpfAttachment {
    directory: u32,
    program: u32,
    kind: u32,
    flags: u32,
    /// The program that is replaced.
    replaced: u32,
    _pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct Query {
    directory: u32,
    kind: u32,
    query_flags: u32,
    flags: u32,
    ids: u64,
    count: u32,
    _pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct ById {
    id: u32,
    _pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct GetInfo {
    program: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`, which a kernel of any age has.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    _lengths: [u32; 2],
    _insns: [u64; 3],
    _uid: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// bpf(2). Returns what the call returned, and the argument as the kernel left it.
///
/// # Safety
///
/// What the argument points to must live, be as long as the argument says, and be writable where the command writes.
pub unsafe fn bpf<T>(command: i32, argument: T) -> Result<(i32, T), Errno> {
    const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>())) }
    let mut argument = Argument { command: argument, _room: [0; 16] };
    // SAFETY: the argument is as long as is said, and zero behind what the command knows. What it points to is the caller's.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut argument, size_of_val(&argument)) };
    // A descriptor or 0: it fits.
    Errno::result(done).map(|done| (i32::try_from(done).unwrap_or(-1), argument.command))
}

/// A descriptor as arguments have it.
pub fn raw(fd: BorrowedFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// An address for the kernel to read from.
pub fn address<T>(of: &[T]) -> u64 {
    // Exposed, so that the compiler does not assume that nothing reads the memory. A pointer is never longer than 64 bits.
    of.as_ptr().expose_provenance() as u64
}

/// An address for the kernel to write to.
pub fn place<T>(of: &mut [T]) -> u64 {
    of.as_mut_ptr().expose_provenance() as u64
}

/// Takes a descriptor that bpf(2) has just made.
///
/// # Safety
///
/// Nothing else may own it.
pub unsafe fn owned(fd: i32) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: it is open, and by the caller's word it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A program that the kernel has accepted.
#[derive(Debug)]
pub struct BpfProgram {
    fd: OwnedFd,
    /// The kernel's number of it.
    pub id: u32,
    /// The kernel's hash of its instructions. Those of two programs with different maps may be equal.
    pub tag: [u8; 8],
    /// Its name; empty: it has none.
    pub name: String,
}

impl BpfProgram {
    /// Loads a program.
    pub fn load(kind: &ProgramKind, insns: &[Insn]) -> Result<Self> {
        let mut log = Vec::new();
        let words = kind.words;
        let fd = load(kind, insns, &mut log).map_err(|errno| {
            // The log is asked for only after a failure, since writing it takes time.
            log.resize(64 << 10, 0);
            if load(kind, insns, &mut log).is_err() {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let text = String::from_utf8_lossy(log.get(..end).unwrap_or_default());
                log::debug!("the kernel's verifier on the {words}: {}", text.trim());
            }
            let error = Error::new(format!("load a {words} of {} instructions", insns.len())).errno(errno);
            match errno {
                Errno::EPERM => error.hint(
                    "it needs CAP_SYS_ADMIN, on Linux before 5.11 also RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in slurmd.service), and \
                     a kernel that is not locked down for bpf",
                ),
                _ => error,
            }
        })?;
        Self::from_fd(fd).map_err(|errno| Error::new(format!("ask for the {words} that was just loaded")).errno(errno))
    }

    /// Opens the program with this number.
    pub fn by_id(id: u32) -> Result<Self, Errno> {
        // SAFETY: the argument points to nothing.
        let (fd, _) = unsafe { bpf(PROG_GET_FD_BY_ID, ById { id, _pad: 0 }) }?;
        // SAFETY: the kernel has just made it.
        Self::from_fd(unsafe { owned(fd) }?)
    }

    fn from_fd(fd: OwnedFd) -> Result<Self, Errno> {
        let info = info(&fd, &mut [])?;
        let name = info.name.iter().take_while(|byte| **byte != 0);
        // The kernel lets only letters, digits, dots and underscores into it.
        let name = name.map(|byte| char::from(*byte)).collect();
        Ok(Self { fd, id: info.id, tag: info.tag, name })
    }

    /// The kernel's numbers of the maps that it uses.
    pub fn maps(&self) -> Result<Vec<u32>, Errno> {
        let mut ids = [0; 16];
        let count = info(&self.fd, &mut ids)?.map_count;
        Ok(ids.iter().take(usize::try_from(count).unwrap_or_default()).copied().collect())
    }

    /// Whether jobfence has loaded it for this.
    pub fn is_ours(&self, kind: &ProgramKind) -> bool {
        self.name == kind.name
    }

    /// Attaches it to a directory, beside any others.
    pub fn attach(&self, kind: &ProgramKind, dir: &Dir) -> Result<(), Errno> {
        self.change(PROG_ATTACH, kind, dir, ALLOW_MULTI, 0)
    }

    /// Attaches it in the place of another one, so that no packet passes both or none.
    pub fn replace(&self, other: &Self, kind: &ProgramKind, dir: &Dir) -> Result<(), Errno> {
        self.change(PROG_ATTACH, kind, dir, ALLOW_MULTI | REPLACE, raw(other.fd.as_fd()))
    }

    /// Detaches it.
    pub fn detach(&self, kind: &ProgramKind, dir: &Dir) -> Result<(), Errno> {
        self.change(PROG_DETACH, kind, dir, 0, 0)
    }

    fn change(&self, command: i32, kind: &ProgramKind, dir: &Dir, flags: u32, replaced: u32) -> Result<(), Errno> {
        let (directory, program) = (raw(dir.as_fd()), raw(self.fd.as_fd()));
        // SAFETY: the argument points to nothing.
        unsafe { bpf(command, BpfAttachment { directory, program, kind: kind.attach, flags, replaced, _pad: 0 }) }
            .map(drop)
    }
}

/// What the kernel says of a program. `maps` gets the numbers of its maps.
fn info(program: &OwnedFd, maps: &mut [u32]) -> Result<Info, Errno> {
    let map_count = u32::try_from(maps.len()).unwrap_or_default();
    let mut info = [Info { map_count, map_ids: place(maps), ..Info::default() }];
    let length = u32::try_from(size_of_val(&info)).unwrap_or_default();
    let argument = GetInfo { program: raw(program.as_fd()), length, info: place(&mut info) };
    // SAFETY: `info` and `maps` live, and are as long as is said.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, argument) }?;
    let [info] = info;
    Ok(info)
}

/// Loads a program. The verifier writes into `log`, if that has room.
fn load(kind: &ProgramKind, insns: &[Insn], log: &mut [u8]) -> Result<OwnedFd, Errno> {
    const LICENSE: &[u8; 4] = b"GPL\0";
    let mut name = [0; 16];
    name.iter_mut().zip(kind.name.bytes()).for_each(|(to, from)| *to = from);
    let argument = Load {
        kind: kind.kind,
        insn_count: u32::try_from(insns.len()).map_err(|_| Errno::E2BIG)?,
        insns: address(insns),
        license: address(LICENSE),
        log_level: u32::from(!log.is_empty()),
        log_size: u32::try_from(log.len()).map_err(|_| Errno::E2BIG)?,
        log: if log.is_empty() { 0 } else { place(log) },
        name,
        expected: kind.expected,
        ..Load::default()
    };
    // SAFETY: instructions, licence and log live, and are as long as is said.
    let (fd, _) = unsafe { bpf(PROG_LOAD, argument) }?;
    // SAFETY: the kernel has just made it.
    unsafe { owned(fd) }
}

/// What is attached to one directory itself.
#[derive(Debug)]
pub struct Attached {
    /// The kernel's numbers of the programs.
    pub ids: Vec<u32>,
    /// `BPF_F_ALLOW_*`; 0 if nothing is attached.
    pub flags: u32,
}

/// The most programs that the kernel attaches to a directory (`BPF_CGROUP_MAX_PROGS`, kernel/bpf/cgroup.c).
const MOST_PROGRAMS: usize = 64;

/// Asks for the programs of a kind at a directory.
pub fn attached(kind: &ProgramKind, dir: BorrowedFd) -> Result<Attached, Errno> {
    let mut ids = [0u32; MOST_PROGRAMS];
    let query = Query {
        directory: raw(dir),
        kind: kind.attach,
        ids: place(&mut ids),
        count: u32::try_from(ids.len()).unwrap_or_default(),
        ..Query::default()
    };
    // SAFETY: `ids` lives, and is as long as is said.
    let (_, query) = unsafe { bpf(PROG_QUERY, query) }?;
    let count = usize::try_from(query.count).unwrap_or_default();
    Ok(Attached { ids: ids.iter().take(count).copied().collect(), flags: query.flags })
}

/// jobfence's own programs among these numbers. An error says of which number.
pub fn ours(kind: &ProgramKind, ids: &[u32]) -> Result<Vec<BpfProgram>, (Errno, u32)> {
    let mut ours = Vec::new();
    for id in ids {
        match BpfProgram::by_id(*id) {
            Ok(program) if program.is_ours(kind) => ours.push(program),
            // Another program, or one that was detached meanwhile.
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err((errno, *id)),
        }
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_are_the_kernels() {
        assert_eq!((size_of::<Insn>(), size_of::<Info>()), (8, 80));
        assert_eq!((std::mem::offset_of!(Load, name), std::mem::offset_of!(Load, log)), (48, 32));
        assert_eq!(std::mem::offset_of!(Load, expected), 68);
        assert_eq!((std::mem::offset_of!(Query, ids), std::mem::offset_of!(Query, count)), (16, 24));
        assert_eq!((std::mem::offset_of!(Info, name), std::mem::offset_of!(Info, map_count)), (64, 52));
    }
}
