// SPDX-License-Identifier: GPL-2.0-or-later
//! Inputs that resemble the corpus: the same seed makes the same ones, on every machine.

/// No input is longer, in bytes.
pub const LONGEST: usize = 64 << 10;

/// Numbers at which arithmetic goes wrong, and what is written beside them.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "+1",
    "00",
    "1",
    "255",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "0.001",
    "1e9",
    "0x10",
];

/// Bytes that mean something in one text or another, or to nobody.
const BYTES: &[u8] = b" \t\n\r\0=:;,.-/\\\"'#%*?()[]{}<>~@!\x7f\x80\xc3\xff09aZ";

/// Random numbers (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to less than `most`; 0 if that is none.
    pub fn below(&mut self, most: usize) -> usize {
        if most == 0 { 0 } else { (self.next() % most as u64) as usize }
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> Option<&'a T> {
        all.get(self.below(all.len())).copied()
    }

    /// A piece of `length` bytes that there is, seldom a large one.
    fn piece(&mut self, length: usize) -> std::ops::Range<usize> {
        let most = if self.below(4) == 0 { length } else { length.min(16) };
        let start = self.below(length + 1);
        start..(start + self.below(most + 1)).min(length)
    }
}

/// One of the seeds, changed a few times.
pub fn mutated(rng: &mut Rng, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let Some(seed) = seeds.get(rng.below(seeds.len())) else { return Vec::new() };
    let mut text = seed.clone();
    for _ in 0..=rng.below(6) {
        change(rng, &mut text, seeds, words);
        text.truncate(LONGEST);
    }
    text
}

fn change(rng: &mut Rng, text: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str]) {
    let at = rng.below(text.len() + 1);
    match rng.below(14) {
        0 => {
            if let Some(byte) = text.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => text.insert(at, BYTES[rng.below(BYTES.len())]),
        2 => text.insert(at, rng.next() as u8),
        3 => {
            if let Some(byte) = text.get_mut(at) {
                *byte = BYTES[rng.below(BYTES.len())];
            }
        }
        4 => drop(text.drain(rng.piece(text.len()))),
        5 => text.truncate(at),
        6 | 7 => {
            let word = rng.one_of(words).unwrap_or_default();
            drop(text.splice(at..at, word.bytes()));
        }
        // A number in the place of a number.
        8 | 9 => {
            let number = rng.one_of(NUMBERS).unwrap_or_default();
            let there = number_in(text, at).unwrap_or(at..at);
            drop(text.splice(there, number.bytes()));
        }
        10 => {
            let piece = text[rng.piece(text.len())].to_vec();
            drop(text.splice(at..at, piece));
        }
        // The end of another.
        11 => {
            if let Some(other) = seeds.get(rng.below(seeds.len())) {
                text.truncate(at);
                text.extend_from_slice(&other[rng.below(other.len() + 1)..]);
            }
        }
        12 => {
            let piece = text[rng.piece(text.len())].to_vec();
            let times = rng.below(64);
            drop(text.splice(at..at, piece.repeat(times)));
        }
        // Seldom, since it takes long.
        _ if rng.below(32) == 0 => *text = grown(rng, text, LONGEST),
        _ => swap_lines(rng, text),
    }
}

/// The first number that begins here or later.
fn number_in(text: &[u8], at: usize) -> Option<std::ops::Range<usize>> {
    let start = at + text.get(at..)?.iter().position(u8::is_ascii_digit)?;
    let length = text.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some(start..start + length)
}

fn swap_lines(rng: &mut Rng, text: &mut Vec<u8>) {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let (one, other) = (rng.below(lines.len()), rng.below(lines.len()));
    if lines.len() > 1 {
        lines.swap(one, other);
        *text = lines.concat();
    }
}

/// What makes work grow faster than the text: all of it or a piece again and again, mostly with another number each time, so that
/// no two are the same.
pub fn grown(rng: &mut Rng, text: &[u8], length: usize) -> Vec<u8> {
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let whole = [text];
    let unit = match rng.below(3) {
        0 => text[rng.piece(text.len())].to_vec(),
        1 => whole.concat(),
        _ => lines.get(rng.below(lines.len())).copied().unwrap_or_default().to_vec(),
    };
    if unit.is_empty() {
        return Vec::new();
    }
    let number = (rng.below(4) > 0).then(|| number_in(&unit, rng.below(unit.len()))).flatten();
    // What stands before it stays, as a header or a first line does.
    let keep = if rng.below(2) == 0 { rng.below(text.len() + 1) } else { 0 };
    let mut all = text[..keep].to_vec();
    let mut count = rng.below(1000);
    while all.len() + unit.len() <= length {
        match &number {
            Some(there) => {
                all.extend_from_slice(&unit[..there.start]);
                all.extend_from_slice(count.to_string().as_bytes());
                all.extend_from_slice(&unit[there.end..]);
            }
            None => all.extend_from_slice(&unit),
        }
        count += 1;
    }
    // The end, which complete texts have.
    all.extend_from_slice(lines.last().copied().unwrap_or_default());
    all.truncate(length);
    all
}
