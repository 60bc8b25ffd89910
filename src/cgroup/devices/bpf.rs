// SPDX-License-Identifier: GPL-2.0-or-later
//! cgroup2: a program of type `BPF_PROG_TYPE_CGROUP_DEVICE` that the kernel runs at every open of a device and every mknod(2).
//!
//! It is attached beside any other programs: all of them must admit an access. Layouts and numbers: include/uapi/linux/bpf.h.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::rules::{Access, DeviceKind};
use super::set::{ForeignProgram, Numbers, Set};
use crate::error::{Error, Result};
use crate::sys::bpf::{ALLOW_MULTI, Attached, BpfProgram, Insn, ProgramKind, attached, insn, ours};
use crate::sys::dir::Dir;

/// `BPF_PROG_TYPE_CGROUP_DEVICE` and `BPF_CGROUP_DEVICE`.
const DEVICES: ProgramKind =
    ProgramKind { kind: 15, expected: 0, attach: 6, name: "jobfence_dev", words: "device program" };

/// Codes: class, operation and source in one (Documentation/bpf/standardization/instruction-set.rst).
const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbf;
const MOVE_VALUE: u8 = 0xb7;
const AND_VALUE: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const JUMP_UNLESS: u8 = 0x55;
const EXIT: u8 = 0x95;

/// Registers: the result, the argument (`struct bpf_cgroup_dev_ctx`), and the values taken from it.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// `BPF_DEVCG_DEV_*`.
const fn kind_number(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::Block => 1,
        DeviceKind::Char => 2,
    }
}

/// The program: first the denied devices, then each rule that allows. All else is denied, unless the set is open.
fn program(set: &Set) -> Vec<Insn> {
    let mut program = vec![
        // access_type has the kind in its lower half and the access in its upper one.
        insn(LOAD_WORD, KIND, CONTEXT, 0, 0),
        insn(MOVE, ACCESS, KIND, 0, 0),
        insn(AND_VALUE, KIND, 0, 0, 0xffff),
        insn(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        insn(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        insn(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for denied in &set.deny {
        answer(&mut program, *denied, Access::ALL, 0);
    }
    for (numbers, access) in &set.allow {
        answer(&mut program, *numbers, *access, 1);
    }
    program.extend([insn(MOVE_VALUE, RESULT, 0, 0, i32::from(set.is_open)), insn(EXIT, 0, 0, 0, 0)]);
    program
}

/// Adds a rule that returns `result` for these devices if no other access is asked for. Otherwise the program goes on behind it.
fn answer(program: &mut Vec<Insn>, numbers: Numbers, access: Access, result: i32) {
    // Both numbers are far below 2^31: `Numbers` says how far.
    let unless = |register, number| insn(JUMP_UNLESS, register, 0, 0, i32::try_from(number).unwrap_or(i32::MAX));
    let mut rule = vec![unless(KIND, kind_number(numbers.kind)), unless(MAJOR, numbers.major)];
    rule.extend(numbers.minor.map(|minor| unless(MINOR, minor)));
    if access != Access::ALL {
        let others = Access::ALL.bits() & !access.bits();
        rule.extend([
            insn(MOVE, RESULT, ACCESS, 0, 0),
            insn(AND_VALUE, RESULT, 0, 0, i32::from(others)),
            unless(RESULT, 0),
        ]);
    }
    rule.extend([insn(MOVE_VALUE, RESULT, 0, 0, result), insn(EXIT, 0, 0, 0, 0)]);
    let mut left = rule.len();
    for insn in &mut rule {
        left -= 1;
        if insn.code == JUMP_UNLESS {
            // Jumps over the rest of the rule, which has eight instructions at most.
            insn.offset = i16::try_from(left).unwrap_or(i16::MAX);
        }
    }
    program.append(&mut rule);
}

fn attached_to(dir: &Dir) -> Result<Attached> {
    attached(&DEVICES, dir.as_fd()).map_err(|errno| unanswered(dir.path(), errno))
}

fn unanswered(path: &Path, errno: Errno) -> Error {
    let error = Error::os("ask for the device programs of", path, errno);
    match errno {
        // A kernel that has device programs has this query, too.
        Errno::EINVAL | Errno::ENOSYS => {
            error.hint("this kernel has no device programs (Linux 4.15, CONFIG_CGROUP_BPF, CONFIG_BPF_SYSCALL)")
        }
        _ => error,
    }
}

/// The program that decides alone over a directory, attached to it (with `here`) or above it. As for the kernel, the nearest directory
/// with a program counts (`hierarchy_allows_attach` and `compute_effective_progs`, kernel/bpf/cgroup.c).
fn alone(dir: &Dir, here: bool) -> Result<Option<ForeignProgram>> {
    /// No real tree of cgroups is deeper.
    const DEEPEST: usize = 256;
    let mut path = dir.path().to_path_buf();
    let mut above: Option<OwnedFd> = None;
    for level in 0..DEEPEST {
        let fd = above.as_ref().map_or_else(|| dir.as_fd(), AsFd::as_fd);
        if here || level > 0 {
            let found = match attached(&DEVICES, fd) {
                Ok(found) => found,
                // Above the root of the hierarchy.
                Err(Errno::EBADF) if level > 0 => return Ok(None),
                Err(errno) => return Err(unanswered(&path, errno)),
            };
            if let Some(id) = found.ids.first() {
                return Ok(
                    (found.flags & ALLOW_MULTI == 0).then(|| ForeignProgram { dir: path, program: in_words(*id) })
                );
            }
        }
        let parent = openat(fd, "..", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        above = Some(parent.map_err(|errno| Error::os("open the directory above", &path, errno))?);
        path.pop();
    }
    Err(Error::new("the cgroups are nested too deeply at").at(dir.path()))
}

/// jobfence's own programs at a directory.
fn ours_at(dir: &Dir) -> Result<Vec<BpfProgram>> {
    let failed = |(errno, id)| Error::os("ask for a device program of", dir.path(), errno).value(id);
    ours(&DEVICES, &attached_to(dir)?.ids).map_err(failed)
}

fn in_words(id: u32) -> String {
    match BpfProgram::by_id(id) {
        Ok(program) if !program.name.is_empty() => format!("the device program {} (id {id})", program.name),
        _ => format!("a device program without a name (id {id})"),
    }
}

/// Attaches a program for the set, unless it is there, and detaches an earlier one of jobfence's.
pub fn constrain(dir: &Dir, set: &Set) -> Result<()> {
    if let Some(alone) = alone(dir, true)? {
        return Err(not_attached(dir).hint(alone.to_string()));
    }
    let earlier = ours_at(dir)?;
    let program = BpfProgram::load(&DEVICES, &program(set))?;
    // The kernel's tag is a hash of the instructions.
    if earlier.iter().any(|known| known.tag == program.tag) {
        return still_counts(dir);
    }
    program.attach(&DEVICES, dir).map_err(|errno| {
        let error = not_attached(dir).errno(errno);
        match (errno, alone(dir, true)) {
            (Errno::EPERM, Ok(Some(alone))) => error.hint(alone.to_string()),
            (Errno::E2BIG, _) => error.hint("too many programs are attached to it"),
            _ => error,
        }
    })?;
    // Detached only now, so that one of them held at every moment.
    for earlier in earlier {
        earlier
            .detach(&DEVICES, dir)
            .map_err(|errno| Error::os("detach our earlier device program from", dir.path(), errno))?;
    }
    still_counts(dir)?;
    if attached_to(dir)?.ids.contains(&program.id) {
        return Ok(());
    }
    Err(Error::new("the device program was attached, but the kernel does not show it at")
        .at(dir.path())
        .value(program.id))
}

fn not_attached(dir: &Dir) -> Error {
    Error::new("cannot attach a device program to").at(dir.path())
}

/// See [`super::still_counts`].
pub fn still_counts(dir: &Dir) -> Result<()> {
    let ours = ours_at(dir)?;
    if ours.is_empty() {
        return Ok(());
    }
    let Some(above) = alone(dir, false)? else { return Ok(()) };
    for program in ours {
        program
            .detach(&DEVICES, dir)
            .map_err(|errno| Error::os("detach our device program from", dir.path(), errno))?;
    }
    Err(not_attached(dir).hint(format!("ours would lift the other's: {above}")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    /// Runs the program as the kernel would, for one access; `None` where it would not be accepted.
    fn run(program: &[Insn], kind: DeviceKind, access: u32, major: u32, minor: u32) -> Option<i64> {
        let mut registers = [0i64; 6];
        let context = [kind_number(kind) | access << 16, major, minor];
        let mut at = 0;
        // No loops: every jump goes forward.
        while let Some(insn) = program.get(at) {
            at += 1;
            let (to, from) = (usize::from(insn.registers & 15), usize::from(insn.registers >> 4));
            let value = i64::from(insn.value);
            match insn.code {
                LOAD_WORD => registers[to] = i64::from(context[usize::try_from(insn.offset).ok()? / 4]),
                MOVE => registers[to] = registers[from],
                MOVE_VALUE => registers[to] = value,
                AND_VALUE => registers[to] &= value,
                SHIFT_RIGHT => registers[to] >>= value,
                JUMP_UNLESS if registers[to] != value => at += usize::try_from(insn.offset).ok()?,
                JUMP_UNLESS => {}
                EXIT => return Some(registers[0]),
                _ => return None,
            }
        }
        None
    }

    /// What the set means.
    fn admits(set: &Set, kind: DeviceKind, access: u32, major: u32, minor: u32) -> bool {
        let one = Numbers { kind, major, minor: Some(minor) };
        let is_within = |allowed: &Access| access & !u32::from(allowed.bits()) == 0;
        !set.deny.iter().any(|numbers| numbers.has(one))
            && set.allow.iter().any(|(numbers, allowed)| numbers.has(one) && is_within(allowed))
    }

    fn kinds() -> impl Strategy<Value = DeviceKind> {
        prop_oneof![Just(DeviceKind::Char), Just(DeviceKind::Block)]
    }

    fn some_numbers() -> impl Strategy<Value = Numbers> {
        (kinds(), 0u32..4, proptest::option::of(0u32..4)).prop_map(|(kind, major, minor)| Numbers {
            kind,
            major,
            minor,
        })
    }

    fn access() -> impl Strategy<Value = Access> {
        "[r]?[w]?[m]?".prop_filter_map("none", |text| Access::parse(&text))
    }

    proptest! {
        #[test]
        fn the_program_answers_as_the_set_means(
            allow in proptest::collection::vec((some_numbers(), access()), 0..12),
            deny in proptest::collection::vec((kinds(), 0u32..4, 0u32..4), 0..3),
            asked in proptest::collection::vec((kinds(), 1u32..8, 0u32..6, 0u32..10), 1..50),
        ) {
            let deny: Vec<_> =
                deny.into_iter().map(|(kind, major, minor)| Numbers { kind, major, minor: Some(minor) }).collect();
            let set = Set::new(allow, &deny);
            let program = program(&set);
            for (kind, access, major, minor) in asked {
                let expected = i64::from(admits(&set, kind, access, major, minor));
                prop_assert_eq!(run(&program, kind, access, major, minor), Some(expected));
            }
        }
    }

    #[test]
    fn what_everybody_may_use_is_admitted_and_nothing_else() {
        let program = program(&Set::new(Vec::new(), &[]));
        let ask = |kind, access, major, minor| run(&program, kind, access, major, minor).unwrap();
        assert_eq!(ask(DeviceKind::Char, 7, 1, 3), 1);
        assert_eq!(ask(DeviceKind::Block, 2, 1, 3), 0);
        assert_eq!(ask(DeviceKind::Char, 2, 1, 1), 0);
        assert_eq!(ask(DeviceKind::Char, 6, 136, 1_000_000), 1);
        // mknod
        assert_eq!(ask(DeviceKind::Char, 1, 136, 0), 0);
        assert_eq!(ask(DeviceKind::Char, 2, 10, 237), 0);
    }

    #[test]
    fn the_most_rules_fit_into_what_old_kernels_load() {
        let rule = |minor| (Numbers { kind: DeviceKind::Block, major: 4095, minor: Some(minor) }, Access::READ_WRITE);
        let set = Set::new((0..u32::try_from(super::super::MOST_RULES).unwrap()).map(rule).collect(), &[]);
        // BPF_MAXINSNS
        assert!(program(&set).len() < 4096);
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap().named(PathBuf::from("/x"));
        let error = constrain(&dir, &Set::new(Vec::new(), &[])).unwrap_err().to_string();
        assert!(error.contains("ask for the device programs of /x"), "{error}");
    }
}
