// SPDX-License-Identifier: GPL-2.0-or-later
//! A job of the local universe: the schedd starts the starter for it, and writes the job's ad to the starter's standard input, a pipe.
//! jobfence copies the ad with tee(2) and leaves it there: the starter reads it again.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::job::Id;
use jobfence::launch::NotFenced;
use jobfence::schedulers::htcondor::job_ad::{CondorRelease, JobAd, without_domain};
use jobfence::sys::program::AskedProgram;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, tee};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{User, pipe2};

use super::job::{CONFIGURATION, beside_daemon};
use super::slot::SHORTER;

/// How long to wait for the ad, which the schedd writes as soon as it has started this process.
const PATIENCE: Duration = Duration::from_secs(30);
/// In milliseconds, how long the schedd may write before the pipe is enlarged. Before 25.7 the pipe has 64 KiB, whatever the ad's length.
const WHILE: u8 = 20;
/// In bytes. No job's ad is longer.
const LARGEST: i32 = 16 << 20;
/// HTCondor's own command.
const VERSION: &str = "condor_version";

/// The local job for which the starter is started, and the schedd that starts it.
#[derive(Debug, PartialEq, Eq)]
pub struct LocalOrder {
    /// `12.0`.
    pub id: Id,
    /// The address of the schedd.
    pub schedd: String,
}

/// A job of the local universe.
#[derive(Debug)]
pub struct LocalJob {
    /// The job's number, and its schedd.
    pub order: LocalOrder,
    /// The user as which the starter runs the job.
    pub user: User,
    /// The job's ad.
    pub ad: JobAd,
}

/// The local job for which the schedd has started this program. `None`: none. All of these words are the schedd's own
/// (`Scheduler::spawnLocalStarter`, the same in 23.9 and 25.14), and a startd's command lines begin with others.
pub fn order_in(arguments: &[OsString]) -> Option<LocalOrder> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match words.as_slice() {
        [
            _,
            "-f",
            "-job-cluster",
            cluster,
            "-job-proc",
            process,
            "-header",
            _,
            "-job-input-ad",
            "-",
            "-schedd-addr",
            schedd,
        ] if is_number(cluster) && is_number(process) => {
            Some(LocalOrder { id: Id::new(format!("{cluster}.{process}")).ok()?, schedd: (*schedd).to_owned() })
        }
        _ => None,
    }
}

/// Reads the job's ad from standard input, and finds the job's user on this host.
pub fn job(order: LocalOrder) -> Result<LocalJob, NotFenced> {
    let written = written(std::io::stdin().as_fd(), Instant::now() + PATIENCE)?;
    let ad = JobAd::parse(&written)?;
    let name = ad.user(release)?;
    let known = |name: &str| User::from_name(name).ok().flatten();
    let user = known(name).or_else(|| known(without_domain(name)));
    let user = user.ok_or_else(|| Error::new("this host does not know the job's user:").value(name))?;
    Ok(LocalJob { order, user, ad })
}

/// The user that owns the schedd's sockets. The schedd makes its pipes as the same user (`Scheduler::spawnLocalStarter`).
pub fn sockets_owner() -> Option<u32> {
    Some(fstat(std::io::stdin()).ok()?.st_uid)
}

/// A copy of all that is in the pipe when its writer has closed it.
fn written(pipe: BorrowedFd, deadline: Instant) -> Result<String, NotFenced> {
    let failed = |op: &'static str| move |errno| Error::new(op).errno(errno);
    let size = fcntl(pipe, FcntlArg::F_GETPIPE_SZ)
        .map_err(failed("look at standard input, where the schedd's pipe should be"))?;
    let size = wait_for_the_end(pipe, size, deadline)?;
    // As large as the schedd's pipe, or tee(2) would copy less.
    let (out, into) = pipe2(OFlag::O_CLOEXEC).map_err(failed("make a pipe"))?;
    fcntl(&into, FcntlArg::F_SETPIPE_SZ(size)).map_err(failed("make a pipe as large as the schedd's"))?;
    let length = usize::try_from(LARGEST).unwrap_or_default();
    let seen = tee(pipe, &into, length, SpliceFFlags::SPLICE_F_NONBLOCK);
    if seen.map_err(failed("look at the ad that the schedd has written"))? == 0 {
        return Err(Error::new("the schedd has written no ad of the job").into());
    }
    drop(into);
    let mut bytes = Vec::new();
    let read = File::from(out).read_to_end(&mut bytes);
    read.map_err(|error| Error::new(format!("read the ad that the schedd has written: {error}")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until the writer has closed the pipe, and enlarges it meanwhile. Returns its size.
fn wait_for_the_end(pipe: BorrowedFd, mut size: i32, deadline: Instant) -> Result<i32, NotFenced> {
    loop {
        // No event is asked for: the kernel always reports the end.
        let mut end = [PollFd::new(pipe, PollFlags::empty())];
        match poll(&mut end, PollTimeout::from(WHILE)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::new("wait for the schedd").errno(errno).into()),
            Ok(_) => return Ok(size),
        }
        if Instant::now() >= deadline {
            let late = Error::new("the schedd has not written all of the job's ad within 30 seconds");
            return Err(if is_full(pipe, size) { NotFenced::Asked(late.hint(SHORTER)) } else { late.into() });
        }
        // If the kernel refuses a larger pipe, the ad may still fit into this one.
        if let Some(larger) = size.checked_mul(2).filter(|larger| *larger <= LARGEST) {
            size = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(larger)).unwrap_or(size);
        }
    }
}

/// Whether the writer waits for room. A page of a pipe need not be full of what was written, so half of the bytes count as full.
fn is_full(pipe: BorrowedFd, size: i32) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which is there.
    let asked = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    asked == 0 && bytes >= size / 2
}

/// The release of the schedd and its starter, which are installed together.
fn release() -> Result<CondorRelease> {
    let failed = |why: String| Error::new(format!("{VERSION} does not say which release this is: {why}"));
    let asked = AskedProgram::new(beside_daemon(VERSION), &[""; 0], CONFIGURATION).ask(Instant::now() + PATIENCE);
    let text = asked.map_err(|silence| failed(silence.to_string()))?;
    CondorRelease::parse(&text).ok_or_else(|| failed(text.lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn only_the_schedds_own_words_name_a_local_job() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let text =
            "condor_starter -f -job-cluster 12 -job-proc 3 -header (12.3) -job-input-ad - -schedd-addr <127.0.0.1:1>";
        let order = LocalOrder { id: Id::new("12.3").unwrap(), schedd: "<127.0.0.1:1>".to_owned() };
        assert_eq!(order_in(&words(text)), Some(order));
        for (from, to) in [
            ("12 ", "x "),
            ("-job-proc 3", "-job-proc -3"),
            ("-f ", "-f -a2 "),
            ("-ad -", "-ad /tmp/x"),
            ("-schedd-addr", "-a"),
            (" <127.0.0.1:1>", ""),
        ] {
            assert_eq!(order_in(&words(&text.replacen(from, to, 1))), None, "{to}");
        }
        assert_eq!(order_in(&words("condor_starter -f -local-name slot_type_1 -a slot1_1 host")), None);
    }

    fn pipe() -> (OwnedFd, File) {
        let (out, into) = pipe2(OFlag::O_CLOEXEC).unwrap();
        (out, File::from(into))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(300)
    }

    #[test]
    fn what_is_looked_at_stays_where_it_is() {
        // Less than the pipe has room for, and more, which keeps the writer waiting.
        for length in [1, 5000, 65_536, 700_000] {
            let (out, mut into) = pipe();
            let text = "Cmd = \"x\"\n".repeat(length / 10 + 1);
            let expected = text.clone();
            let writer = std::thread::spawn(move || into.write_all(text.as_bytes()));
            assert!(written(out.as_fd(), soon()).unwrap() == expected, "{length}");
            writer.join().unwrap().unwrap();
            let mut left = String::new();
            File::from(out).read_to_string(&mut left).unwrap();
            assert!(left == expected, "{length}");
        }
    }

    #[test]
    fn a_schedd_that_says_nothing_is_not_waited_for() {
        let (out, mut into) = pipe();
        let shortly = || Instant::now() + Duration::from_millis(50);
        let late = |why: &NotFenced| why.to_string().contains("has not written all");
        let general = written(out.as_fd(), shortly()).unwrap_err();
        assert!(late(&general) && matches!(general, NotFenced::General(_)), "{general}");
        into.write_all(b"Cmd = ").unwrap();
        assert!(matches!(written(out.as_fd(), shortly()), Err(NotFenced::General(_))));
        drop(into);
        let (out, into) = pipe();
        drop(into);
        let error = written(out.as_fd(), soon()).unwrap_err().to_string();
        assert!(error.contains("no ad"), "{error}");
        let null = File::open("/dev/null").unwrap();
        assert!(written(null.as_fd(), soon()).unwrap_err().to_string().contains("standard input"));
    }

    #[test]
    fn nobody_gets_rid_of_a_fence_by_an_ad_that_has_no_room() {
        let (out, mut into) = pipe();
        let writer = std::thread::spawn(move || into.write_all(&vec![b'x'; 20 << 20]));
        // Root alone may have a pipe so large.
        let deadline = Instant::now() + Duration::from_secs(1);
        assert!(matches!(written(out.as_fd(), deadline), Err(NotFenced::Asked(_))));
        drop(out);
        assert!(writer.join().unwrap().is_err());
    }
}
