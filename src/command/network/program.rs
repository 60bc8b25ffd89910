// SPDX-License-Identifier: GPL-2.0-or-later
//! The two programs. Each packet of a socket in any job's cgroup runs through one of them: `egress` when the socket has sent it and before
//! it is queued for a device, `ingress` when it arrives.
//!
//! **Counts.** The job's directory is an ancestor of the socket's cgroup, at one of a few levels: that which is in the table of bounds. A
//! socket belongs to the cgroup in which it was made. What is counted are the bytes of IP packets that are not refused, as systemd's
//! `IPAccounting=` counts them: one that the interface divides has one header here. A user can make any number of interfaces in a network
//! namespace of their own. So only numbers of known interfaces are counted apart. Numbers are of a namespace, which the programs do not
//! look at: another namespace's interface with a known number counts as that.
//!
//! **Bounds.** A job's bound is a clock that each packet moves on by the time that its bytes take: the time at which the next packet may
//! leave. A packet that may not leave now is given that time (`skb->tstamp`, an earliest departure time). The qdisc `fq` keeps it until
//! then, and TCP sends no more while much of a connection's is queued. Where an interface has another qdisc, nobody would wait, and a packet
//! leaves at once. Either way, a packet is refused while the job is [`DEPTH`] too fast: TCP keeps it, halves its window and tries again. The
//! limit is one for all interfaces, since the clock is: what waits at one interface must not keep all others' from leaving.
//!
//! Numbers: include/uapi/linux/bpf.h.

use jobfence::error::Result;
use jobfence::sys::bpf::Insn;
use jobfence::sys::bpf::map::{BpfMap, Plain};

use super::assembler::{Assembler, Calculation, Register, STACK, Test, Width};

/// How far ahead of its bound a job may be, in nanoseconds. What is sent beyond is refused. So a job's packets wait no longer than this in
/// a queue that all of the node share.
const DEPTH: i32 = 300_000_000;

/// Where packets wait: from here on TCP is are_devices_known to slow down, by halving its window, so that no connection of a job keeps the others waiting.
const CONGESTED: i32 = 200_000_000;

/// Of Ethernet.
const FRAME_HEADER: i32 = 14;

/// For each further packet into which one is divided: the headers of Ethernet, IPv6, and TCP with times. With IPv4 it is up to 20 less.
const SEGMENT_HEADERS: i32 = 86;

/// No packet takes less on the line, whatever its sender says.
const LEAST_FRAME: i32 = 64;

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

/// The first level, from the root of cgroup2, at which jobs' directories are: `BASE/uid_U/job_J`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLevel(pub i32);

/// How many levels deeper a job's directory may be: below that of scavengers, and below that of one of several nodes.
const DEEPER: i32 = 2;

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
/// When the bound is not needed any more.
const VERDICT: Register = BOUND;

/// Places on the stack: a [`CountKey`], whose first member is the key of a bound, and a [`CountedPackets`].
const KEY: i16 = -16;
const KEY_INTERFACE: i16 = -8;
const VALUE: i16 = -48;

/// The program for packets that arrive.
pub fn ingress(tables: &NetworkTables, level: JobLevel) -> Result<Vec<Insn>> {
    let mut program = Assembler::default();
    find_job(&mut program, tables, level);
    count(&mut program, tables, 16);
    program.name("end").end(KEEP);
    program.finish()
}

/// The program for packets that are sent. What is refused is not counted.
pub fn egress(tables: &NetworkTables, level: JobLevel) -> Result<Vec<Insn>> {
    let mut program = Assembler::default();
    find_job(&mut program, tables, level);
    bound(&mut program);
    program.name("slow").set(VERDICT, SLOW_DOWN).jump("count");
    program.name("keep").set(VERDICT, KEEP);
    program.name("count");
    count(&mut program, tables, 0);
    program.end_with(VERDICT);
    program.name("refuse");
    // The clock goes back to where it would be without this packet.
    program.negate(AMOUNT).add_atomically(BOUND, 8, AMOUNT).end(REFUSE);
    program.name("end").end(KEEP);
    program.finish()
}

/// Finds the job's directory and the interface. Goes to `end` if the packet is no job's.
///
/// Directories of jobs that are bounded are in the table of bounds from before their first process starts, and `jobfence hold` adds all
/// others. Until it has, the first of the levels is that of the job, unless the job is in a branch.
fn find_job(program: &mut Assembler, tables: &NetworkTables, level: JobLevel) {
    use Width::{Eight, Four};
    const FOUND: [&str; 3] = ["at_0", "at_1", "at_2"];
    program.copy(PACKET, 1);
    for (deeper, not_this) in (0..=DEEPER).zip(FOUND) {
        program.copy(1, PACKET).set(2, level.0 + deeper).call(ANCESTOR);
        // A socket outside of any job, or one that is not so deep.
        program.jump_if(0, Test::Equal, 0, if deeper == 0 { "end" } else { "none" });
        program.store(Eight, STACK, KEY, 0);
        look_up(program, &tables.bounds, KEY);
        program.copy(BOUND, 0).jump_if(0, Test::Equal, 0, not_this).jump("found").name(not_this);
    }
    program.name("none").set(BOUND, 0);
    program.copy(1, PACKET).set(2, level.0).call(ANCESTOR).store(Eight, STACK, KEY, 0);
    program.name("found");
    program.load(Four, 1, PACKET, INTERFACE).store(Four, STACK, KEY_INTERFACE, 1);
    program.store_value(Four, STACK, KEY_INTERFACE + 4, 0);

    look_up(program, &tables.devices, KEY_INTERFACE);
    program.jump_if(0, Test::NotEqual, 0, "known");
    program.store_value(Four, STACK, KEY_INTERFACE, 0).set(DEVICE, 0).jump("look");
    program.name("known").load(Four, DEVICE, 0, 0);
    program.name("look");
}

/// Counts the packet in the members of [`CountedPackets`] from `member` on.
fn count(program: &mut Assembler, tables: &NetworkTables, member: i16) {
    use Width::{Eight, Four};
    program.load(Four, AMOUNT, PACKET, LENGTH);
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
    segments(program, "many");
    program.add_atomically(0, member + 8, 1);
    program.name("counted");
}

/// Register 1 is then into how many packets the interface divides this one.
fn segments(program: &mut Assembler, many: &'static str) {
    program.load(Width::Four, 1, PACKET, SEGMENTS).jump_if(1, Test::NotEqual, 0, many).set(1, 1).name(many);
}

/// Holds the packet back if the job has a bound. Goes to `keep`, `slow` or `refuse`.
fn bound(program: &mut Assembler) {
    use Calculation::{Add, Divide, Multiply, Subtract};
    use Width::{Eight, Four};
    let [loopback, keeps_time] = [device::LOOPBACK, device::KEEPS_TIME].map(u32::cast_signed);
    program.jump_if(BOUND, Test::Equal, 0, "keep").jump_if(DEVICE, Test::Shares, loopback, "keep");

    // What it takes on the line: one that is divided has more headers than it says.
    program.load(Four, AMOUNT, PACKET, LENGTH);
    segments(program, "divided");
    program.calculate_value(Subtract, 1, 1).calculate_value(Multiply, 1, SEGMENT_HEADERS);
    program.calculate(Add, AMOUNT, 1).calculate_value(Add, AMOUNT, FRAME_HEADER);
    program.jump_if(AMOUNT, Test::AtLeast, LEAST_FRAME, "long").set(AMOUNT, LEAST_FRAME).name("long");

    program.load(Eight, 1, BOUND, 0).jump_if(1, Test::Equal, 0, "keep");
    // From here on AMOUNT is the time that its bytes take, rounded up.
    program.calculate_value(Multiply, AMOUNT, SECOND).calculate(Add, AMOUNT, 1);
    program.calculate_value(Subtract, AMOUNT, 1).calculate(Divide, AMOUNT, 1);
    // 2: now, 3: when it may leave.
    program.call(TIME).copy(2, 0);
    program.copy(3, AMOUNT).fetch_and_add(BOUND, 8, 3).jump_if_register(3, Test::AtLeast, 2, "late");
    // The job was slower than its bound: that is not saved. If another CPU moves the clock meanwhile, it stays so.
    program.copy(0, 3).calculate(Add, 0, AMOUNT);
    program.copy(4, 2).calculate(Add, 4, AMOUNT);
    program.compare_and_exchange(BOUND, 8, 4).jump("keep");

    program.name("late").copy(4, 3).calculate(Subtract, 4, 2);
    program.jump_if(4, Test::AtLeast, DEPTH, "refuse");
    program.jump_if(DEVICE, Test::Shares, keeps_time, "time").jump("keep");
    // TCP may have set a later time.
    program.name("time").load(Eight, 1, PACKET, DEPARTURE).jump_if_register(1, Test::AtLeast, 3, "timed");
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
