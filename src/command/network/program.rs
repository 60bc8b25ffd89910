// SPDX-License-Identifier: GPL-2.0-or-later
//! The two programs. Each packet of a socket in any job's cgroup runs through one of them: `egress` when the socket has sent it and before
//! it is queued for a device, `ingress` when it arrives.
//!
//! **Counts.** The job's directory is the ancestor of the socket's cgroup at a level that is the same for all jobs below one directory. A
//! socket belongs to the cgroup in which it was made. What is counted are the bytes of IP packets, as systemd's `IPAccounting=` counts
//! them. A user can make any number of interfaces in a network namespace of their own. So only known interfaces are counted apart.
//!
//! **Bounds.** A job's bound is a clock that each packet moves on by the time that its bytes take: the time at which the next packet may
//! leave. A packet that may not leave now is given that time (`skb->tstamp`, an earliest departure time). The qdisc `fq` keeps it until
//! then, and TCP sends no more while much of a connection's is queued: nothing is lost. Where an interface has another qdisc, nobody would
//! wait. There a packet leaves at once while the job is less than [`DEPTH`] too fast, and is refused beyond that: TCP keeps it, halves its
//! window and tries again.
//!
//! Numbers: include/uapi/linux/bpf.h.

use jobfence::sys::bpf::Insn;
use jobfence::sys::bpf::map::{BpfMap, Plain};

use super::assembler::{Assembler, Calculation, Register, STACK, Test, Width};

/// How far ahead of its bound a job may be where packets wait for their time. What is sent beyond is refused. Connections of TCP together
/// fill this only if there are hundreds; a program that sends datagrams in a loop does.
const HORIZON: i32 = 2_000_000_000;

/// The same where packets cannot wait, in nanoseconds.
pub const DEPTH: i32 = 300_000_000;

/// Where packets wait: from here on TCP is told to slow down, by halving its window, so that no connection of a job keeps the others waiting.
const CONGESTED: i32 = 1_000_000_000;

/// Nanoseconds of a second.
const SECOND: i32 = 1_000_000_000;

/// What the programs know of an interface.
pub mod device {
    /// It leads to this host alone.
    pub const LOOPBACK: u32 = 1;
    /// It sends a packet when the time has come that the packet carries.
    pub const KEEPS_TIME: u32 = 2;
}

/// What is counted by: a job's directory, and an interface's number, or 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountKey {
    pub job: u64,
    pub interface: u32,
    pub zero: u32,
}

// SAFETY: these are numbers without space between them.
unsafe impl Plain for CountKey {}

/// What was counted.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountedPackets {
    pub sent: u64,
    pub sent_packets: u64,
    pub received: u64,
    pub received_packets: u64,
}

// SAFETY: these are numbers without space between them.
unsafe impl Plain for CountedPackets {}

/// The tables of the programs.
#[derive(Debug)]
pub struct NetworkTables {
    /// From [`CountKey`] to [`CountedPackets`].
    pub counts: BpfMap,
    /// From an interface's number to its [`device`] bits.
    pub devices: BpfMap,
    /// See `jobfence::cgroup::network::BOUNDS`.
    pub bounds: BpfMap,
}

/// Where jobs' directories are: below a directory at so many levels, except where it has branches of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchLevels {
    /// How deep jobs are, from the root of cgroup2.
    pub jobs: i32,
    /// Directories beside those of users, by their numbers, which have programs of their own.
    pub others: Vec<u64>,
}

/// Functions of the kernel.
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const TIME: i32 = 5;
const ANCESTOR: i32 = 83;
/// `BPF_NOEXIST`.
const NEW: i32 = 1;

/// Members of `struct __sk_buff`.
const LENGTH: i16 = 0;
const INTERFACE: i16 = 40;
const DEPARTURE: i16 = 152;
const SEGMENTS: i16 = 164;

/// What a program for packets that are sent says of one: [`KEEP`] sends it, [`SLOW_DOWN`] sends it and has TCP slow down, and [`REFUSE`]
/// does not send it and has TCP slow down (`BPF_PROG_CGROUP_INET_EGRESS_RUN_ARRAY`). A program for packets that arrive only keeps.
const KEEP: i32 = 1;
const REFUSE: i32 = 2;
const SLOW_DOWN: i32 = 3;

/// Registers, and what is in them all the time.
const PACKET: Register = 6;
const DEVICE: Register = 7;
const AMOUNT: Register = 8;
const BOUND: Register = 9;

/// Places on the stack: a [`CountKey`], whose first member is the key of a bound, and a [`CountedPackets`].
const KEY: i16 = -16;
const KEY_INTERFACE: i16 = -8;
const VALUE: i16 = -48;

/// The program for packets that arrive.
pub fn ingress(tables: &NetworkTables, levels: &BranchLevels) -> Vec<Insn> {
    let mut program = Assembler::default();
    count(&mut program, tables, levels, 16);
    program.name("keep").end(KEEP);
    program.finish()
}

/// The program for packets that are sent.
pub fn egress(tables: &NetworkTables, levels: &BranchLevels) -> Vec<Insn> {
    let mut program = Assembler::default();
    count(&mut program, tables, levels, 0);
    bound(&mut program, tables);
    program.name("keep").end(KEEP);
    program.name("slow").end(SLOW_DOWN);
    program.name("refuse");
    // The clock goes back to where it would be without this packet.
    program.negate(AMOUNT).add_atomically(BOUND, 8, AMOUNT).end(REFUSE);
    program.finish()
}

/// Counts the packet in the members of [`CountedPackets`] from `member` on. Goes to `keep` if it is no job's.
fn count(program: &mut Assembler, tables: &NetworkTables, levels: &BranchLevels, member: i16) {
    use Width::{Eight, Four};
    program.copy(PACKET, 1);
    if !levels.others.is_empty() {
        program.set(2, levels.jobs - 1).call(ANCESTOR);
        for other in &levels.others {
            program.set_wide(1, *other).jump_if_register(0, Test::Equal, 1, "keep");
        }
        program.copy(1, PACKET);
    }
    program.set(2, levels.jobs).call(ANCESTOR).jump_if(0, Test::Equal, 0, "keep");
    program.store(Eight, STACK, KEY, 0);
    program.load(Four, 1, PACKET, INTERFACE).store(Four, STACK, KEY_INTERFACE, 1);
    program.store_value(Four, STACK, KEY_INTERFACE + 4, 0);
    program.load(Four, AMOUNT, PACKET, LENGTH);

    // Which interface it is.
    look_up(program, &tables.devices, KEY_INTERFACE);
    program.jump_if(0, Test::NotEqual, 0, "known");
    program.store_value(Four, STACK, KEY_INTERFACE, 0).set(DEVICE, 0).jump("look");
    program.name("known").load(Four, DEVICE, 0, 0);

    program.name("look");
    look_up(program, &tables.counts, KEY);
    program.jump_if(0, Test::NotEqual, 0, "add");
    for at in 0..4 {
        program.store_value(Eight, STACK, VALUE + 8 * at, 0);
    }
    program.set_map(1, &tables.counts);
    at_stack(program, 2, KEY);
    at_stack(program, 3, VALUE);
    // Another CPU may be first: then its entry stays.
    program.set(4, NEW).call(UPDATE);
    look_up(program, &tables.counts, KEY);
    // Without room it is not counted.
    program.jump_if(0, Test::Equal, 0, "counted");
    program.name("add").add_atomically(0, member, AMOUNT);
    // One that the interface divides into many.
    program.load(Four, 1, PACKET, SEGMENTS).jump_if(1, Test::NotEqual, 0, "many").set(1, 1);
    program.name("many").add_atomically(0, member + 8, 1);
    program.name("counted");
}

/// Holds the packet back if the job has a bound.
fn bound(program: &mut Assembler, tables: &NetworkTables) {
    use Width::Eight;
    let [loopback, keeps_time] = [device::LOOPBACK, device::KEEPS_TIME].map(u32::cast_signed);
    program.jump_if(DEVICE, Test::Shares, loopback, "keep");
    look_up(program, &tables.bounds, KEY);
    program.jump_if(0, Test::Equal, 0, "keep");
    program.copy(BOUND, 0).load(Eight, 1, BOUND, 0).jump_if(1, Test::Equal, 0, "keep");
    // From here on AMOUNT is the time that its bytes take.
    program.calculate_value(Calculation::Multiply, AMOUNT, SECOND).calculate(Calculation::Divide, AMOUNT, 1);
    // 2: now, 3: when it may leave.
    program.call(TIME).copy(2, 0);
    program.copy(3, AMOUNT).fetch_and_add(BOUND, 8, 3).jump_if_register(3, Test::AtLeast, 2, "late");
    // The job was slower than its bound: that is not saved. If another CPU moves the clock meanwhile, it stays so.
    program.copy(0, 3).calculate(Calculation::Add, 0, AMOUNT);
    program.copy(4, 2).calculate(Calculation::Add, 4, AMOUNT);
    program.compare_and_exchange(BOUND, 8, 4).jump("keep");

    program.name("late").copy(4, 3).calculate(Calculation::Subtract, 4, 2);
    program.jump_if(DEVICE, Test::Shares, keeps_time, "time");
    program.jump_if(4, Test::AtLeast, DEPTH, "refuse").jump("keep");
    program.name("time").jump_if(4, Test::AtLeast, HORIZON, "refuse");
    // TCP may have set a later time.
    program.load(Eight, 1, PACKET, DEPARTURE).jump_if_register(1, Test::AtLeast, 3, "timed");
    program.store(Eight, PACKET, DEPARTURE, 3);
    program.name("timed").jump_if(4, Test::AtLeast, CONGESTED, "slow").jump("keep");
}

/// Register 0 is then the place of the value for the key at this place of the stack, or 0.
fn look_up(program: &mut Assembler, map: &BpfMap, key: i16) {
    program.set_map(1, map);
    at_stack(program, 2, key);
    program.call(LOOKUP);
}

fn at_stack(program: &mut Assembler, to: Register, place: i16) {
    program.copy(to, STACK).calculate_value(Calculation::Add, to, place.into());
}
