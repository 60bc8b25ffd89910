// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts a program for the kernel together: instructions by what they do, and jumps to places that have names.
//!
//! Codes: Documentation/bpf/standardization/instruction-set.rst.

use std::collections::BTreeMap;

use jobfence::error::{Error, Result};
use jobfence::sys::bpf::map::BpfMap;
use jobfence::sys::bpf::{Insn, insn};

/// A register: 0 is the result of a call, 1 to 5 are arguments and lost by a call, 6 to 9 are kept, and 10 is the end of the stack.
pub type Register = u8;

/// The end of the stack, of 512 bytes.
pub const STACK: Register = 10;

/// How many bytes are loaded or stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Four,
    Eight,
}

impl Width {
    const fn bits(self) -> u8 {
        match self {
            Self::Four => 0x00,
            Self::Eight => 0x18,
        }
    }
}

/// How two numbers without sign compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    Equal,
    NotEqual,
    AtLeast,
    /// They have a bit in common.
    Shares,
}

impl Test {
    const fn bits(self) -> u8 {
        match self {
            Self::Equal => 0x15,
            Self::NotEqual => 0x55,
            Self::AtLeast => 0x35,
            Self::Shares => 0x45,
        }
    }
}

/// What is calculated, with 64 bits and without sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calculation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Calculation {
    const fn bits(self) -> u8 {
        match self {
            Self::Add => 0x07,
            Self::Subtract => 0x17,
            Self::Multiply => 0x27,
            Self::Divide => 0x37,
        }
    }
}

/// The other operand is a register, and not a number.
const FROM_REGISTER: u8 = 0x08;
const LOAD: u8 = 0x61;
const STORE_VALUE: u8 = 0x62;
const STORE: u8 = 0x63;
const STORE_ATOMIC: u8 = 0xc3;
const MOVE: u8 = 0xb7;
const NEGATE: u8 = 0x87;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Two instructions, with 64 bits in their values.
const WIDE: u8 = 0x18;
/// The value of [`WIDE`] is a map's descriptor.
const OF_MAP: u8 = 1;

const ATOMIC_ADD: i32 = 0x00;
const ATOMIC_FETCH_ADD: i32 = 0x01;
const ATOMIC_COMPARE_EXCHANGE: i32 = 0xf1;

/// A program that is being made. All jumps go forward.
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    /// Where a jump is that goes to a name.
    jumps: Vec<(usize, &'static str)>,
    names: BTreeMap<&'static str, usize>,
    /// A name that two places have.
    twice: Option<&'static str>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, value: i32) -> &mut Self {
        self.insns.push(insn(code, to, from, offset, value));
        self
    }

    pub fn copy(&mut self, to: Register, from: Register) -> &mut Self {
        self.push(MOVE | FROM_REGISTER, to, from, 0, 0)
    }

    pub fn set(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(MOVE, to, 0, 0, value)
    }

    pub fn set_map(&mut self, to: Register, map: &BpfMap) -> &mut Self {
        self.push(WIDE, to, OF_MAP, 0, map.number()).push(0, 0, 0, 0, 0)
    }

    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) -> &mut Self {
        self.push(LOAD | width.bits(), to, from, offset, 0)
    }

    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) -> &mut Self {
        self.push(STORE | width.bits(), to, from, offset, 0)
    }

    pub fn store_value(&mut self, width: Width, to: Register, offset: i16, value: i32) -> &mut Self {
        self.push(STORE_VALUE | width.bits(), to, 0, offset, value)
    }

    pub fn calculate(&mut self, what: Calculation, to: Register, with: Register) -> &mut Self {
        self.push(what.bits() | FROM_REGISTER, to, with, 0, 0)
    }

    pub fn calculate_value(&mut self, what: Calculation, to: Register, value: i32) -> &mut Self {
        self.push(what.bits(), to, 0, 0, value)
    }

    pub fn negate(&mut self, register: Register) -> &mut Self {
        self.push(NEGATE, register, 0, 0, 0)
    }

    /// Adds to eight bytes in memory, whatever other CPUs do meanwhile.
    pub fn add_atomically(&mut self, to: Register, offset: i16, what: Register) -> &mut Self {
        self.push(STORE_ATOMIC | Width::Eight.bits(), to, what, offset, ATOMIC_ADD)
    }

    /// The same, and `what` is then what was there before.
    pub fn fetch_and_add(&mut self, to: Register, offset: i16, what: Register) -> &mut Self {
        self.push(STORE_ATOMIC | Width::Eight.bits(), to, what, offset, ATOMIC_FETCH_ADD)
    }

    /// Stores `what` if register 0 has what is there. Register 0 is then what was there.
    pub fn compare_and_exchange(&mut self, to: Register, offset: i16, what: Register) -> &mut Self {
        self.push(STORE_ATOMIC | Width::Eight.bits(), to, what, offset, ATOMIC_COMPARE_EXCHANGE)
    }

    /// Calls a function of the kernel, by its number in `enum bpf_func_id`.
    pub fn call(&mut self, function: i32) -> &mut Self {
        self.push(CALL, 0, 0, 0, function)
    }

    pub fn jump(&mut self, to: &'static str) -> &mut Self {
        self.jumps.push((self.insns.len(), to));
        self.push(JUMP, 0, 0, 0, 0)
    }

    pub fn jump_if(&mut self, one: Register, test: Test, value: i32, to: &'static str) -> &mut Self {
        self.jumps.push((self.insns.len(), to));
        self.push(test.bits(), one, 0, 0, value)
    }

    pub fn jump_if_register(&mut self, one: Register, test: Test, other: Register, to: &'static str) -> &mut Self {
        self.jumps.push((self.insns.len(), to));
        self.push(test.bits() | FROM_REGISTER, one, other, 0, 0)
    }

    /// Here is the place of this name.
    pub fn name(&mut self, name: &'static str) -> &mut Self {
        if self.names.insert(name, self.insns.len()).is_some() {
            self.twice = Some(name);
        }
        self
    }

    pub fn end(&mut self, result: i32) -> &mut Self {
        self.set(0, result).push(EXIT, 0, 0, 0, 0)
    }

    /// Ends with what is in this register.
    pub fn end_with(&mut self, register: Register) -> &mut Self {
        self.copy(0, register).push(EXIT, 0, 0, 0, 0)
    }

    /// The program. A jump to a name that is not further down, or that two places have, is an error: it would go to the next instruction.
    pub fn finish(mut self) -> Result<Vec<Insn>> {
        let wrong = |name| Error::new("a network program jumps to a place that is not one further down:").value(name);
        if let Some(name) = self.twice {
            return Err(wrong(name));
        }
        for (at, name) in &self.jumps {
            let to = self.names.get(name).and_then(|to| i16::try_from(to.checked_sub(at + 1)?).ok());
            let (Some(to), Some(insn)) = (to, self.insns.get_mut(*at)) else { return Err(wrong(name)) };
            insn.offset = to;
        }
        Ok(self.insns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_skips_what_is_between() {
        let mut program = Assembler::default();
        program.jump_if(1, Test::Equal, 7, "far").set(2, 2).jump("far").name("far").end(1);
        let program = program.finish().unwrap();
        assert_eq!(program.iter().map(|insn| insn.offset).collect::<Vec<_>>(), [2, 0, 0, 0, 0]);
        assert_eq!((program[0].code, program[2].code, program[4].code), (0x15, 0x05, 0x95));
    }

    #[test]
    fn a_jump_to_nowhere_is_no_program() {
        for names in [&["there"][..], &["far", "far"], &[]] {
            let mut program = Assembler::default();
            program.jump("far");
            names.iter().for_each(|name| {
                program.name(name);
            });
            program.end(1);
            assert!(program.finish().is_err(), "{names:?}");
        }
        let mut back = Assembler::default();
        back.name("here").jump("here").end(1);
        assert!(back.finish().is_err());
    }
}
