// SPDX-License-Identifier: GPL-2.0-or-later
//! OpenPBS and PBS Professional: the files in MoM's spool say which jobs MoM has. Its hook calls jobfence through the C ABI.
//!
//! MoM writes `mom_priv/jobs/<id>.JB` on each host of a job, after the job's `execjob_begin` event. The file stays while MoM is down, and
//! MoM removes it after the job's last event. `job_save` and `attrlist_create` write it, in the same form in all releases from 18.1 to
//! 23.06: each attribute is its name, a zero byte, its value, and a zero byte.

pub mod card;
pub mod strays;
pub mod tasks;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};

use crate::job::Id;
use crate::scheduler::{Age, Runs, WithoutCgroups};

/// OpenPBS as a scheduler without cgroups of its own.
#[derive(Debug)]
pub struct PbsScheduler;

/// OpenPBS.
pub static PBS: PbsScheduler = PbsScheduler;

/// The variable that names PBS's configuration if it is not `CONF`. MoM passes it to its hooks.
pub const CONF_VARIABLE: &str = "PBS_CONF_FILE";
/// The variable that overrides that file, as everywhere in PBS. The hook names its MoM's directory with it.
const HOME: &str = "PBS_MOM_HOME";
/// The configuration of all daemons, if the variable names no other.
pub const CONF: &str = "/etc/pbs.conf";

/// How long a job may have a fence before its file: until the next message of the server, or of the first host's MoM to another MoM.
const TO_BEGIN: Duration = Duration::from_secs(600);

/// More than MoM writes of a job, with its environment. In bytes.
const LARGEST_JOB: u64 = 16 << 20;

impl WithoutCgroups for PbsScheduler {
    fn name(&self) -> &'static str {
        "OpenPBS"
    }

    fn runs(&self, job: &Id, run: u32, age: Age<'_>) -> Runs {
        configured_home().map_or(Runs::Unknown, |home| of_home(&home, job, run, age))
    }
}

/// MoM's directory by PBS's configuration. `None`: no trusted configuration names it.
pub fn configured_home() -> Option<PathBuf> {
    let said = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    said(HOME).or_else(|| home(&said(CONF_VARIABLE).unwrap_or_else(|| PathBuf::from(CONF))))
}

/// What this spool says. A MoM that was started with another directory (`pbs_mom -d`) has its jobs there, so a spool proves that a job does
/// not run only while its own MoM lives.
fn of_home(home: &Path, job: &Id, run: u32, age: Age<'_>) -> Runs {
    let home = home.join("mom_priv");
    match in_spool(&home.join("jobs"), job, run, age) {
        Runs::No if !is_locked(&home.join("mom.lock")) => Runs::Unknown,
        said => said,
    }
}

/// Whether a process holds a lock on this file, as MoM does while it lives.
fn is_locked(file: &Path) -> bool {
    let Ok(file) = File::open(file) else { return false };
    let short = |number: libc::c_int| libc::c_short::try_from(number).unwrap_or_default();
    let (l_type, l_whence) = (short(libc::F_WRLCK), short(libc::SEEK_SET));
    let mut lock = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&file, FcntlArg::F_GETLK(&mut lock)).is_ok() && lock.l_type != short(libc::F_UNLCK)
}

/// MoM's directory by this file. `None`: the file does not name it, or is not root's.
fn home(conf: &Path) -> Option<PathBuf> {
    let file = File::open(conf).ok()?;
    let metadata = file.metadata().ok()?;
    // A user who can write this file could have each job taken for ended.
    if !metadata.is_file() || metadata.uid() != nix::unistd::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(1 << 20).read_to_string(&mut text).ok()?;
    let value = |key: &str| {
        let of = |line: &str| Some(line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().to_owned());
        text.lines().filter_map(of).next_back().filter(|value| !value.is_empty())
    };
    // As in MoM: PBS_MOM_HOME overrides PBS_HOME, which is for all daemons.
    value(HOME).or_else(|| value("PBS_HOME")).map(PathBuf::from).filter(|home| home.is_absolute())
}

fn in_spool(jobs: &Path, job: &Id, run: u32, age: Age<'_>) -> Runs {
    if job.as_str().contains('/') {
        return Runs::Unknown;
    }
    match read(&jobs.join(format!("{job}.JB"))) {
        Ok(content) => match runs_of(&content).as_slice() {
            [] => Runs::Yes,
            runs if runs.contains(&run) => Runs::Yes,
            _ => not_this(age),
        },
        // A spool that is missing or unreadable says nothing about a job.
        Err(error) if error.kind() == ErrorKind::NotFound && std::fs::read_dir(jobs).is_ok() => not_this(age),
        Err(_) => Runs::Unknown,
    }
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(file)?.take(LARGEST_JOB).read_to_end(&mut content)?;
    Ok(content)
}

/// What it means that this run of the job is missing from MoM's spool.
fn not_this(age: Age<'_>) -> Runs {
    if age() < TO_BEGIN { Runs::Yes } else { Runs::No }
}

/// The runs of the job that the file names. There may be several, since a user's value, as the job's name, can look like this attribute.
/// If MoM has written the run, it is among them.
fn runs_of(content: &[u8]) -> Vec<u32> {
    const NAME: &[u8] = b"run_version\0";
    let value = |at: usize| {
        let value = content.get(at + NAME.len()..)?;
        let digits = value.get(..value.iter().position(|byte| *byte == 0)?)?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    };
    let named = content.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME);
    named.filter_map(|(at, _)| value(at)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    const LATER: Duration = Duration::from_secs(601);

    fn id(text: &str) -> Id {
        Id::new(text).unwrap()
    }

    #[test]
    fn mom_has_what_is_in_its_spool() {
        let temp = tempfile::tempdir().unwrap();
        let job = id("12[3].host");
        let says = |run, age: Duration| in_spool(temp.path(), &job, run, &|| age);
        assert_eq!(says(2, Duration::ZERO), Runs::Yes, "it has not been written yet");
        assert_eq!(says(2, LATER), Runs::No);
        fs::write(temp.path().join("12[3].host.JB"), b"\x01\0run_version\x002\0\0Job_Name\0run_version\0x\0").unwrap();
        assert_eq!(says(2, LATER), Runs::Yes);
        assert_eq!(says(1, LATER), Runs::No, "an earlier run");
        assert_eq!(says(3, Duration::ZERO), Runs::Yes, "the next run, whose file is not there yet");
        fs::write(temp.path().join("12[3].host.JB"), b"without it").unwrap();
        assert_eq!(says(7, LATER), Runs::Yes);
    }

    /// As after `pbs_mom -d`: the configuration names the spool of a MoM that has ended.
    #[test]
    fn a_spool_without_its_mom_does_not_say_no() {
        let temp = tempfile::tempdir().unwrap();
        let (jobs, lock) = (temp.path().join("mom_priv/jobs"), temp.path().join("mom_priv/mom.lock"));
        fs::create_dir_all(&jobs).unwrap();
        let says = || of_home(temp.path(), &id("7.host"), 1, &|| LATER);
        assert_eq!(says(), Runs::Unknown);
        fs::write(&lock, "1\n").unwrap();
        assert_eq!(says(), Runs::Unknown);
        // A process does not see its own locks.
        let locker = "import fcntl, sys\nfile = open(sys.argv[1], 'r+')\nfcntl.lockf(file, fcntl.LOCK_EX)\nprint(flush=True)\nsys.stdin.read()";
        let mut mom = Command::new("python3");
        mom.args(["-c", locker]).arg(&lock).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut mom = mom.spawn().unwrap();
        mom.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(says(), Runs::No);
        fs::write(jobs.join("7.host.JB"), b"run_version\x001\0").unwrap();
        assert_eq!(says(), Runs::Yes);
        drop(mom.stdin.take());
        mom.wait().unwrap();
        assert_eq!(says(), Runs::Yes);
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(in_spool(&temp.path().join("none"), &id("1.host"), 1, &|| LATER), Runs::Unknown);
        assert_eq!(in_spool(temp.path(), &id("../1.host"), 1, &|| LATER), Runs::Unknown);
        fs::create_dir(temp.path().join("1.host.JB")).unwrap();
        assert_eq!(in_spool(temp.path(), &id("1.host"), 1, &|| LATER), Runs::Unknown);
    }

    #[test]
    fn a_user_who_names_a_job_like_the_attribute_hides_no_run() {
        assert_eq!(runs_of(b"Job_Name\0run_version\x009\0\0\0run_version\x002\0"), [9, 2]);
        assert!(runs_of(b"run_version\0").is_empty());
        assert!(runs_of(b"run_version\x0012").is_empty());
        assert!(runs_of(b"run_version\0-1\0").is_empty());
    }

    #[test]
    fn only_a_file_of_roots_says_where_the_spool_is() {
        let temp = tempfile::tempdir().unwrap();
        let conf = temp.path().join("pbs.conf");
        let found = |text: &str, mode: u32| {
            fs::write(&conf, text).unwrap();
            fs::set_permissions(&conf, fs::Permissions::from_mode(mode)).unwrap();
            home(&conf)
        };
        let there = Some(PathBuf::from("/var/spool/pbs"));
        assert_eq!(found("PBS_EXEC=/opt/pbs\nPBS_HOME=/var/spool/pbs\n", 0o644), there);
        assert_eq!(found(" PBS_HOME = /var/spool/pbs\n", 0o644), there);
        assert_eq!(found("#PBS_HOME=/x\n", 0o644), None);
        assert_eq!(found("PBS_MOM_HOME=/var/spool/pbs\nPBS_HOME=/shared\n", 0o644), there);
        assert_eq!(found("PBS_MOM_HOME=\nPBS_HOME=/var/spool/pbs\n", 0o644), there);
        assert_eq!(found("PBS_HOME=var\n", 0o644), None);
        assert_eq!(found("PBS_HOME=/var/spool/pbs\n", 0o666), None);
        assert_eq!(home(temp.path()), None);
        assert_eq!(home(&temp.path().join("none")), None);
    }
}
