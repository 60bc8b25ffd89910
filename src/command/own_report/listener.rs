// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of `jobfence hold`: it learns who asks, and starts the process that answers. Nothing here reads from a user or waits for one.
//!
//! A user has one answer at a time and one in a second, all users together a few, and connections are taken in small numbers. So whatever
//! users do, `hold` has its time for the node, and the others have their turn.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobfence::config::Config;
use jobfence::error::{Error, Result};
use nix::errno::Errno;

use super::{REFUSED, SOCKET, peer, teller};
use crate::series;

/// The most connections that are taken before a pause.
const AT_ONCE: usize = 8;
const PAUSE: Duration = Duration::from_millis(100);

/// The most connections that wait in the kernel, so that a flood of them keeps nobody waiting for long.
const BACKLOG: libc::c_int = 16;

/// The most answers that are under way.
const MOST: usize = 16;

/// How long after a user's question the next one of the same user is answered.
const AGAIN: Duration = Duration::from_secs(1);

/// The user that stands for all that have no number here: user_namespaces(7).
const NOBODY: u32 = 65534;

/// The program, by a name that stays right when its file is replaced.
const THIS: &str = "/proc/self/exe";

/// See the beginning of this file.
#[derive(Debug)]
pub struct OwnReports {
    run_dir: PathBuf,
    usage_log: PathBuf,
    socket: UnixListener,
    /// Who is being answered.
    tellers: Vec<(u32, Child)>,
    /// When each user was last answered.
    answered: HashMap<u32, Instant>,
    /// How many connections were taken since when.
    taken: (usize, Instant),
    /// No connection is taken before.
    not_before: Instant,
}

impl OwnReports {
    /// Listens from now on, if the site wants that.
    pub fn expect(config: &Config) -> Result<Option<Self>> {
        let Some(usage_log) = config.usage_log.clone().filter(|_| config.user_reports) else { return Ok(None) };
        let dir = series::writable(&config.run_dir)?;
        // That of a `hold` that was killed. If two run, the last one is asked.
        series::discard(&dir, SOCKET);
        let at = dir.handle_path().join(SOCKET);
        let failed = |error: std::io::Error| Error::new(format!("cannot listen: {error}")).at(dir.path().join(SOCKET));
        let socket = UnixListener::bind(&at).map_err(failed)?;
        // SAFETY: the descriptor is open. Of a socket that listens, this changes how many wait.
        let limited = Errno::result(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) });
        limited.map_err(|errno| failed(errno.into()))?;
        socket.set_nonblocking(true).map_err(failed)?;
        std::fs::set_permissions(&at, PermissionsExt::from_mode(0o666)).map_err(failed)?;
        Ok(Some(Self {
            run_dir: config.run_dir.clone(),
            usage_log,
            socket,
            tellers: Vec::new(),
            answered: HashMap::new(),
            taken: (0, Instant::now()),
            not_before: Instant::now(),
        }))
    }

    /// Whether it is what this configuration wants.
    pub fn is_of(&self, config: &Config) -> bool {
        config.user_reports && self.run_dir == config.run_dir && config.usage_log.as_ref() == Some(&self.usage_log)
    }

    /// Readable when a user asks.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pause().is_zero().then(|| self.socket.as_fd())
    }

    /// How long it rests.
    pub fn pause(&self) -> Duration {
        self.not_before.saturating_duration_since(Instant::now())
    }

    /// Starts what answers the users who ask.
    pub fn hear(&mut self) {
        if !self.pause().is_zero() {
            return;
        }
        self.tellers.retain_mut(|(_, teller)| matches!(teller.try_wait(), Ok(None)));
        while self.may_take(Instant::now()) {
            match self.socket.accept() {
                Ok((stream, _)) => self.answer(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.taken.0 = self.taken.0.saturating_sub(1);
                    return;
                }
                Err(error) => log::debug!("a user's question is not heard: {error}"),
            }
        }
    }

    /// Whether a connection may be taken now, and counts it. One after the other costs as much as many at once.
    fn may_take(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.taken.1) >= PAUSE {
            self.taken = (0, now);
        }
        if self.taken.0 >= AT_ONCE {
            self.not_before = now + PAUSE;
            return false;
        }
        self.taken.0 += 1;
        true
    }

    fn answer(&mut self, stream: UnixStream) {
        let Ok(asker) = peer(stream.as_fd()) else { return };
        let uid = asker.uid;
        let admitted = if is_of_the_host(asker.pid) {
            self.admit(uid, Instant::now())
        } else {
            // With subordinate uids, one user would be many.
            Err("it cannot be asked for from a user namespace")
        };
        if let Err(why) = admitted {
            // The connection is new, so there is room for one line. It never waits.
            let _ = stream.set_nonblocking(true);
            let _ = (&stream).write_all(format!("{REFUSED}{why}\n").as_bytes());
            return;
        }
        let started = Command::new(THIS)
            .arg0("jobfence")
            .arg(teller::WORD)
            .arg(&self.usage_log)
            .stdin(OwnedFd::from(stream))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => self.tellers.push((uid, child)),
            Err(error) => log::error!("cannot start what answers a user's 'jobfence report': {error}"),
        }
    }

    /// Whether this user has an answer now.
    fn admit(&mut self, uid: u32, now: Instant) -> std::result::Result<(), &'static str> {
        // Root opens the log itself. A program that root was tricked into running must not get it here.
        if uid == 0 || uid == NOBODY {
            return Err("there are no jobs of one user's own here");
        }
        self.answered.retain(|_, answered| now.saturating_duration_since(*answered) < AGAIN);
        if self.answered.contains_key(&uid) || self.tellers.iter().any(|(of, _)| *of == uid) {
            return Err("an answer to the same user is under way, or was given this second");
        }
        if self.tellers.len() >= MOST {
            return Err("too many users ask");
        }
        self.answered.insert(uid, now);
        Ok(())
    }
}

/// Whether the process that has connected is in no other user namespace than this one.
fn is_of_the_host(pid: libc::pid_t) -> bool {
    let namespace = |of: String| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let asker = namespace(pid.to_string());
    asker.is_some() && asker == namespace("self".to_owned())
}

impl Drop for OwnReports {
    fn drop(&mut self) {
        if let Ok(dir) = series::writable(&self.run_dir) {
            series::discard(&dir, SOCKET);
        }
        for (_, teller) in &mut self.tellers {
            let _ = teller.kill();
            let _ = teller.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_one_answer_in_a_second_and_all_together_a_few() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("the directory of the socket is root's");
        }
        let temp = tempfile::tempdir().unwrap();
        let config = Config {
            run_dir: temp.path().join("run"),
            usage_log: Some(temp.path().join("usage.jsonl")),
            user_reports: true,
            ..Config::default()
        };
        assert!(OwnReports::expect(&Config { user_reports: false, ..config.clone() }).unwrap().is_none());
        let mut reports = OwnReports::expect(&config).unwrap().unwrap();
        let now = Instant::now();
        assert!(reports.admit(0, now).is_err() && reports.admit(NOBODY, now).is_err());
        assert_eq!(reports.admit(7, now), Ok(()));
        assert!(reports.admit(7, now + AGAIN / 2).is_err());
        assert_eq!(reports.admit(8, now + AGAIN / 2), Ok(()));
        assert_eq!(reports.admit(7, now + AGAIN), Ok(()));
        let busy = |uid| (uid, Command::new("sleep").arg("1000").spawn().unwrap());
        reports.tellers.extend((100..100 + MOST as u32).map(busy));
        let later = now + AGAIN * 9;
        assert!(reports.admit(100, later).is_err() && reports.admit(7, later).is_err());
        assert!(reports.answered.is_empty(), "what is remembered does not grow");
        reports.tellers.pop().map(|(_, mut child)| child.kill().and_then(|()| child.wait()));
        assert_eq!(reports.admit(7, later), Ok(()));
        // Also those that come one after the other, a little later each.
        reports.taken = (0, now);
        let taken = (0..50).filter(|at| reports.may_take(now + Duration::from_millis(*at))).count();
        assert_eq!(taken, AT_ONCE);
        assert!(reports.not_before > now && reports.may_take(now + PAUSE * 2));
        drop(reports);
        assert!(!temp.path().join("run-series/reports").exists());
    }
}
