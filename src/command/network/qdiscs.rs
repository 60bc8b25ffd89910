// SPDX-License-Identifier: GPL-2.0-or-later
//! Which queueing discipline (qdisc) each interface has, as the kernel says by rtnetlink(7).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The kernel answers at once.
const PATIENCE_MS: u16 = 2000;

/// The most answers of 32 KiB: a node with hundreds of queues for each of many interfaces needs fewer.
const MOST_ANSWERS: usize = 1000;

const GET_QDISC: u16 = 38;
const NEW_QDISC: u16 = 36;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST` and `NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `TCA_KIND`.
const KIND: u16 = 1;
/// The kind of a qdisc that is none.
const NO_QUEUE: &str = "noqueue";
/// `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;
/// The length of `struct nlmsghdr`, and of that with `struct tcmsg`.
const HEADER: usize = 16;
const MESSAGE: usize = 36;

/// One qdisc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    pub interface: u32,
    pub handle: u32,
    pub parent: u32,
    pub kind: String,
}

/// The qdiscs of this network namespace that an administrator or the kernel has set. An interface without a queue has none.
pub fn all() -> Result<Vec<Qdisc>, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes no pointer.
    let fd = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    nix::unistd::write(&socket, &question())?;
    let (mut all, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
    for _ in 0..MOST_ANSWERS {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(PATIENCE_MS))? == 0 {
            return Err(Errno::ETIMEDOUT);
        }
        let length = nix::unistd::read(&socket, &mut buffer)?;
        if add(buffer.get(..length).unwrap_or_default(), &mut all)? {
            return Ok(all);
        }
    }
    Err(Errno::E2BIG)
}

fn question() -> Vec<u8> {
    let mut question = Vec::with_capacity(MESSAGE);
    question.extend(36_u32.to_ne_bytes());
    question.extend(GET_QDISC.to_ne_bytes());
    question.extend(DUMP.to_ne_bytes());
    // No number of ours, of any interface.
    question.resize(MESSAGE, 0);
    question
}

/// Adds what is in an answer. Returns whether it was the last one.
fn add(mut answer: &[u8], all: &mut Vec<Qdisc>) -> Result<bool, Errno> {
    while let (Some(length), Some(kind)) = (word(answer, 0), half(answer, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let message = answer.get(..length).filter(|_| length >= HEADER).ok_or(Errno::EBADMSG)?;
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let errno = word(message, HEADER).map_or(0, |errno| errno.cast_signed().wrapping_neg());
                return Err(Errno::from_raw(errno));
            }
            NEW_QDISC => all.extend(qdisc(message)),
            _ => {}
        }
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn qdisc(message: &[u8]) -> Option<Qdisc> {
    let at = |offset| word(message, HEADER + offset);
    let mut attributes = message.get(MESSAGE..)?;
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let length = usize::from(length);
        let value = attributes.get(4..length)?;
        if kind == KIND {
            let text = String::from_utf8_lossy(value);
            let kind = text.trim_end_matches('\0').to_owned();
            return Some(Qdisc { interface: at(4)?, handle: at(8)?, parent: at(12)?, kind });
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// What queues packets of each interface: `fq`, or with several queues what all of them have. An interface with different qdiscs has a
/// text with all of them.
pub fn by_interface(all: &[Qdisc]) -> BTreeMap<u32, String> {
    const MAJOR: u32 = 0xffff_0000;
    let mut found = BTreeMap::new();
    // The kernel also says it of an interface that has no queue: what is sent by it is at once given to another.
    for root in all.iter().filter(|qdisc| qdisc.parent == ROOT && qdisc.kind != NO_QUEUE) {
        let is_below = |qdisc: &&Qdisc| {
            qdisc.interface == root.interface && qdisc.parent != ROOT && qdisc.parent & MAJOR == root.handle & MAJOR
        };
        // These two only have one qdisc for each queue of the device.
        let mut kinds: Vec<&str> = match root.kind.as_str() {
            "mq" | "mqprio" => all.iter().filter(is_below).map(|qdisc| qdisc.kind.as_str()).collect(),
            kind => vec![kind],
        };
        kinds.sort_unstable();
        kinds.dedup();
        found.insert(root.interface, if kinds.is_empty() { root.kind.clone() } else { kinds.join(", ") });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, interface: u32, handle: u32, parent: u32, name: &str) -> Vec<u8> {
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        let mut message = vec![0; HEADER];
        message.extend([0; 4]);
        [interface, handle, parent, 1].iter().for_each(|word| message.extend(word.to_ne_bytes()));
        // Another attribute first.
        message.extend([6_u16.to_ne_bytes(), 9_u16.to_ne_bytes()].concat());
        message.extend([1, 2, 0, 0]);
        message.extend([(text.len() as u16 + 4).to_ne_bytes(), KIND.to_ne_bytes()].concat());
        message.extend(text);
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn an_answer_is_read_and_nonsense_is_an_error() {
        let mut all = Vec::new();
        let answer = [message(NEW_QDISC, 2, 0x8001_0000, ROOT, "fq"), message(17, 3, 0, ROOT, "tbf")].concat();
        assert_eq!(add(&answer, &mut all), Ok(false));
        assert_eq!(all, [Qdisc { interface: 2, handle: 0x8001_0000, parent: ROOT, kind: "fq".to_owned() }]);
        assert_eq!(add(&message(DONE, 0, 0, 0, ""), &mut all), Ok(true));
        let mut wrong = message(ERROR, 0, 0, 0, "");
        wrong[HEADER..HEADER + 4].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(add(&wrong, &mut all), Err(Errno::EPERM));
        // Cut off, too short, and a length that leads out of it.
        for length in 0..answer.len() {
            let _ = add(&answer[..length], &mut Vec::new());
        }
        assert_eq!(add(&[3, 0, 0, 0, 36, 0, 0, 0], &mut Vec::new()), Err(Errno::EBADMSG));
    }

    #[test]
    fn an_interface_with_many_queues_has_what_all_of_them_have() {
        let of = |interface, handle, parent, kind: &str| Qdisc { interface, handle, parent, kind: kind.to_owned() };
        let all = [
            of(1, 0, ROOT, "mq"),
            of(1, 0, 1, "fq"),
            of(1, 0, 2, "fq"),
            of(2, 0x1_0000, ROOT, "mq"),
            of(2, 0, 0x1_0001, "fq"),
            of(2, 0, 0x1_0002, "fq_codel"),
            of(3, 0, ROOT, "fq"),
            of(4, 0x1_0000, ROOT, "htb"),
            of(4, 0, 0x1_0001, "fq"),
        ];
        let found: Vec<_> = by_interface(&all).into_values().collect();
        assert_eq!(found, ["fq", "fq, fq_codel", "fq", "htb"]);
    }

    #[test]
    fn the_kernel_answers() {
        all().unwrap();
    }
}
