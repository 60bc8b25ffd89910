// SPDX-License-Identifier: GPL-2.0-or-later
//! The children that speak: so many at once, of one user a few, and none for ever. A user may stop a process that has the user's rights
//! (SIGSTOP), and then its alarm does not end it. So `jobfence hold` ends it, and others are heard meanwhile.

use std::time::{Duration, Instant};

use jobfence::sys::process::send;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::word::{self, Announcement};

/// The most children at once, and the most with the rights of one user.
const MOST: usize = 64;
const MOST_OF_USER: usize = 8;

/// The most words that wait for room, of all and of one user, and how long one may: at the next crossing a step is told anew.
const MOST_WAITING: usize = 4000;
const MOST_WAITING_OF_USER: usize = MOST_WAITING / 8;
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// By then its own alarm has ended each child that nobody has stopped.
const AT_MOST: Duration = Duration::from_secs(word::SECONDS as u64 + 2);

/// The children that speak, and what others are to say when there is room.
#[derive(Debug, Default)]
pub struct Speakers {
    speaking: Vec<Speaker>,
    waiting: Vec<WaitingWord>,
}

#[derive(Debug)]
struct Speaker {
    child: Pid,
    uid: u32,
    /// The step's.
    name: String,
    /// What it speaks for.
    key: &'static str,
    begun: Instant,
}

#[derive(Debug)]
struct WaitingWord {
    word: Announcement,
    name: String,
    since: Instant,
}

impl Speakers {
    /// Whether there is something to look after.
    pub fn are_busy(&self) -> bool {
        !self.speaking.is_empty() || !self.waiting.is_empty()
    }

    /// Starts a child that speaks, or does so at one of the next looks.
    pub fn add(&mut self, word: Announcement, name: String) {
        let of_user = self.waiting.iter().filter(|waiting| waiting.word.uid == word.uid).count();
        if of_user == 0 && self.has_room(word.uid) {
            self.start(&word, name);
        } else if self.waiting.len() < MOST_WAITING && of_user < MOST_WAITING_OF_USER {
            self.waiting.push(WaitingWord { word, name, since: Instant::now() });
        } else {
            log::error!("{name}: its user is not told, since {} others wait for their word", self.waiting.len());
        }
    }

    /// Waits for the children that have ended, ends those that do not, and starts those for which there was no room.
    pub fn look(&mut self) {
        self.speaking.retain(Speaker::goes_on);
        self.start_waiting();
    }

    fn start_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            if self.has_room(waiting.word.uid) {
                self.start(&waiting.word, waiting.name);
            } else if waiting.since.elapsed() < LONGEST_WAIT {
                self.waiting.push(waiting);
            } else {
                log::error!("{}: its user is not told, since others are being told and do not read", waiting.name);
            }
        }
    }

    fn has_room(&self, uid: u32) -> bool {
        let of_user = self.speaking.iter().filter(|speaker| speaker.uid == uid).count();
        self.speaking.len() < MOST && of_user < MOST_OF_USER
    }

    fn start(&mut self, word: &Announcement, name: String) {
        match word::start(word) {
            Ok(child) => {
                self.speaking.push(Speaker { child, uid: word.uid, name, key: word.key, begun: Instant::now() });
            }
            Err(errno) => log::error!("{name}: its user is not told: fork: {}", errno.desc()),
        }
    }
}

impl Speaker {
    /// Whether it has not ended.
    fn goes_on(&self) -> bool {
        use nix::sys::wait::WaitStatus::StillAlive;
        match waitpid(self.child, Some(WaitPidFlag::WNOHANG)) {
            Ok(StillAlive) | Err(Errno::EINTR) => {
                // Nobody has waited for it, so no other process has its number.
                if self.begun.elapsed() >= AT_MOST {
                    let _ = send(self.child, None, Signal::SIGKILL);
                }
                true
            }
            Err(_) => false,
            Ok(status) => {
                if let Some(why) = word::failure(status) {
                    match self.key {
                        "MemoryPool" => log::warn!("{}: MemoryPool: {why}", self.name),
                        _ => log::warn!("{}: SignalAt: {why}", self.name),
                    }
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(uid: u32, begun: Instant) -> Speaker {
        let child = jobfence::sys::child::start(|| {
            loop {
                nix::unistd::pause();
            }
        });
        let child = child.unwrap();
        nix::sys::signal::kill(child, Signal::SIGSTOP).unwrap();
        Speaker { child, uid, name: "job 7 step 0".to_owned(), key: "SignalAt", begun }
    }

    fn word(uid: u32) -> Announcement {
        Announcement {
            uid,
            key: "SignalAt",
            directory: "/nonexistent".into(),
            inode: 0,
            sentence: String::new(),
            signal: None,
            to_first_alone: false,
        }
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(300);
        while !is_so() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_user_who_stops_those_who_speak_silences_nobody_else_and_nobody_for_ever() {
        let now = Instant::now();
        let mut speakers = Speakers::default();
        speakers.speaking.extend((0..MOST_OF_USER).map(|_| stopped(1000, now)));
        speakers.add(word(1000), "job 7 step 0".to_owned());
        assert_eq!((speakers.speaking.len(), speakers.waiting.len()), (MOST_OF_USER, 1), "it waits");
        speakers.add(word(1001), "job 8 step 0".to_owned());
        assert_eq!((speakers.speaking.len(), speakers.waiting.len()), (MOST_OF_USER + 1, 1), "another user's does not");
        let Some(long_ago) = now.checked_sub(AT_MOST) else { return };
        speakers.speaking.iter_mut().for_each(|speaker| speaker.begun = long_ago);
        until(|| {
            speakers.look();
            !speakers.are_busy()
        });
    }

    #[test]
    fn the_words_of_one_user_leave_room_for_those_of_others() {
        let mut speakers = Speakers::default();
        speakers.speaking.extend((0..MOST_OF_USER).map(|_| stopped(1000, Instant::now())));
        (0..=MOST_WAITING_OF_USER).for_each(|_| speakers.add(word(1000), "job 7 step 0".to_owned()));
        assert_eq!(speakers.waiting.len(), MOST_WAITING_OF_USER);
        speakers.add(word(1001), "job 8 step 0".to_owned());
        assert_eq!(speakers.speaking.len(), MOST_OF_USER + 1);
        speakers.waiting.clear();
        for speaker in &speakers.speaking {
            let _ = nix::sys::signal::kill(speaker.child, Signal::SIGKILL);
        }
        until(|| {
            speakers.look();
            !speakers.are_busy()
        });
    }

    #[test]
    fn a_word_that_finds_no_room_for_a_minute_is_none_in_time() {
        let now = Instant::now();
        let mut speakers = Speakers::default();
        speakers.speaking.extend((0..MOST_OF_USER).map(|_| stopped(1000, now)));
        speakers.add(word(1000), "job 7 step 0".to_owned());
        let Some(long_ago) = now.checked_sub(LONGEST_WAIT) else { return };
        speakers.waiting.iter_mut().for_each(|waiting| waiting.since = long_ago);
        speakers.look();
        assert!(speakers.waiting.is_empty());
        for speaker in &speakers.speaking {
            nix::sys::signal::kill(speaker.child, Signal::SIGKILL).unwrap();
        }
        until(|| {
            speakers.look();
            !speakers.are_busy()
        });
    }
}
