// SPDX-License-Identifier: GPL-2.0-or-later
//! Records of what Slurm says of a job: one small file for each job in `RunDir/jobs`, written by root where no user can write.
//!
//! `jobfence prolog` writes it before any step of the job begins. Without that, the batch step writes what it knows for the steps after
//! it. The epilog removes it; so do the job's extern and batch steps at their end, if it is still the one that they have read or
//! written. The janitor removes what is left after the next boot.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};

use super::files::{self, is_ours, link_new, unlink};
use super::lines::field;
use super::roll::{self, Entry, EntryKind};
use crate::error::{Error, Result};
use crate::facts::{Fact, Facts, Gpus};
use crate::host::Host;
use crate::job::JobOnNode;
use crate::log;
use crate::printable::printable;
use crate::sys::dir::Dir;
use crate::sys::process::Owner;

/// First line of a record; one with another number is another release's, and is not read.
///
/// Number 1 took numbers of GPUs for those of devices, and a QOS that the prolog was not told for no QOS.
pub(super) const VERSION: &str = "jobfence-job 2";
/// The directory in `RunDir`.
pub(super) const DIRECTORY: &str = "jobs";
/// In bytes. A record has one line for each fact; a longer file is none.
const MAX_SIZE: i64 = 64 << 10;
/// In bytes; names in Slurm are shorter.
const MAX_NAME: usize = 1024;
/// No node has more GPUs.
const MAX_GPUS: usize = 1024;

/// The name of a job's record: `5` or `n1,5`. No name has a comma.
fn file_name(id: &JobOnNode) -> String {
    let job = id.job.in_a_name();
    match &id.node {
        None => job,
        Some(node) => format!("{node},{job}"),
    }
}

/// What is recorded of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// The boot in which it was written.
    pub boot_id: String,
    /// When it was written, in nanoseconds since 1970: two runs of a job have different ones.
    pub written: u128,
    /// The batch step's daemon that wrote it and will remove it, with its pid namespace; `None`: the prolog wrote it.
    pub writer: Option<(Owner, String)>,
    /// The job's user.
    pub uid: u32,
    /// See [`Facts::partition`].
    pub partition: Fact<String>,
    /// See [`Facts::qos`].
    pub qos: Fact<String>,
    /// See [`Facts::account`].
    pub account: Fact<String>,
    /// See [`Facts::cpus`].
    pub cpus: Option<u32>,
    /// See [`Facts::gpus`].
    pub gpus: Gpus,
}

impl JobRecord {
    /// A record that says nothing yet.
    pub fn new(host: &Host, writer: Option<Owner>, uid: u32) -> Self {
        Self {
            boot_id: host.boot_id.clone(),
            written: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos(),
            writer: writer.map(|owner| (owner, host.pid_namespace.clone())),
            uid,
            partition: Fact::Unknown,
            qos: Fact::Unknown,
            account: Fact::Unknown,
            cpus: None,
            gpus: Gpus::None,
        }
    }

    /// Its line in the roll; `None` if the prolog wrote it, whose end cannot be seen.
    fn entry(&self, name: &str) -> Option<Entry> {
        let (owner, pid_namespace) = self.writer.clone()?;
        Some(Entry { owner, pid_namespace, kind: EntryKind::Job, name: name.to_owned() })
    }

    /// Reads a record. An incomplete one is an error, never a guess.
    pub fn parse(text: &str) -> Result<Self> {
        Self::understand(text).ok_or_else(|| Error::new("not a complete record of a job"))
    }

    fn understand(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != VERSION || lines.next_back()? != "end" || !text.ends_with('\n') {
            return None;
        }
        let mut next = |key| field(&mut lines, key);
        let boot_id = next("boot_id")?;
        let written = next("written")?.parse().ok()?;
        let namespace = next("pid_namespace")?;
        let pid: i32 = next("owner_pid")?.parse().ok().filter(|pid| *pid >= 0)?;
        let start = next("owner_start")?.parse().ok()?;
        let uid = next("uid")?.parse().ok()?;
        let mut fact = |key| next(key).and_then(|text| fact(&text));
        let (partition, qos, account) = (fact("partition")?, fact("qos")?, fact("account")?);
        let cpus: u32 = next("cpus")?.parse().ok()?;
        let positions = parse_gpus(&next("gpus")?)?;
        let gpus = gpus(positions, &next("gpu_devices")?, next("gpus_unknown")?)?;
        if lines.next().is_some() {
            return None;
        }
        let writer = (pid > 0).then_some((Owner { pid, start }, namespace));
        Some(Self { boot_id, written, writer, uid, partition, qos, account, cpus: (cpus > 0).then_some(cpus), gpus })
    }

    /// Puts what it says into `facts`.
    pub fn add_to(&self, facts: &mut Facts) {
        facts.partition = self.partition.clone();
        facts.qos = self.qos.clone();
        facts.account = self.account.clone();
        facts.cpus = self.cpus;
        facts.gpus = self.gpus.clone();
    }
}

/// Reads `=NAME`; `~NAME` if only the job's user says so; or `?` if it is unknown.
fn fact(text: &str) -> Option<Fact<String>> {
    let name = |text: &str| is_name(text).then(|| text.to_owned());
    match (text, text.strip_prefix('='), text.strip_prefix('~')) {
        ("?", ..) => Some(Fact::Unknown),
        (_, Some(known), _) => name(known).map(Fact::Known),
        (.., Some(claimed)) => name(claimed).map(Fact::Claimed),
        _ => None,
    }
}

/// Whether a name can stand on a line of a record.
pub fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME && !text.contains(char::is_control)
}

/// What three lines say together: the numbers of GPUs, the device of each, or why these are not certain.
fn gpus(positions: Vec<u32>, devices: &str, why: String) -> Option<Gpus> {
    if one_line(&why) != why {
        return None;
    }
    match (positions.is_empty(), devices.is_empty(), why.is_empty()) {
        (true, true, true) => Some(Gpus::None),
        (true, true, false) => Some(Gpus::Unknown(why)),
        (false, true, false) => Some(Gpus::Positions(positions, why)),
        (false, false, true) => {
            let devices: Vec<String> = devices.split(',').map(str::to_owned).collect();
            let all = devices.len() == positions.len() && devices.iter().all(|path| is_device(path));
            all.then(|| Gpus::Devices(positions.into_iter().zip(devices).collect()))
        }
        _ => None,
    }
}

/// Whether a device's path can stand in a list.
pub fn is_device(path: &str) -> bool {
    path.starts_with('/') && path.len() <= MAX_NAME && !path.contains(|c: char| c == ',' || c.is_control())
}

/// Reads Slurm's numbers of GPUs, such as `0,3`.
pub fn parse_gpus(text: &str) -> Option<Vec<u32>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let gpus = text.split(',').map(|gpu| gpu.parse().ok()).collect::<Option<Vec<u32>>>()?;
    (gpus.len() <= MAX_GPUS).then_some(gpus)
}

impl fmt::Display for JobRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, namespace) = match &self.writer {
            Some((owner, namespace)) => (*owner, namespace.as_str()),
            None => (Owner { pid: 0, start: 0 }, ""),
        };
        writeln!(f, "{VERSION}\nboot_id={}\nwritten={}\npid_namespace={namespace}", self.boot_id, self.written)?;
        writeln!(f, "owner_pid={}\nowner_start={}\nuid={}", owner.pid, owner.start, self.uid)?;
        for (key, fact) in [("partition", &self.partition), ("qos", &self.qos), ("account", &self.account)] {
            match (fact, fact.said().filter(|name| is_name(name))) {
                (Fact::Known(_), Some(name)) => writeln!(f, "{key}=={name}")?,
                (_, Some(name)) => writeln!(f, "{key}=~{name}")?,
                (_, None) => writeln!(f, "{key}=?")?,
            }
        }
        let (positions, devices, why): (Vec<u32>, Vec<&str>, &str) = match &self.gpus {
            // GPUs that jobfence chooses are in the record of the fence.
            Gpus::None | Gpus::Chosen(_) => (Vec::new(), Vec::new(), ""),
            Gpus::Unknown(why) => (Vec::new(), Vec::new(), why),
            Gpus::Positions(positions, why) => (positions.clone(), Vec::new(), why),
            Gpus::Devices(devices) => {
                let (positions, paths) = devices.iter().map(|(position, path)| (*position, path.as_str())).unzip();
                (positions, paths, "")
            }
        };
        let positions: Vec<String> = positions.iter().map(u32::to_string).collect();
        writeln!(f, "cpus={}\ngpus={}", self.cpus.unwrap_or(0), positions.join(","))?;
        writeln!(f, "gpu_devices={}\ngpus_unknown={}\nend", devices.join(","), one_line(why))
    }
}

/// Makes a text one short line, so that it ends no line of the record and keeps the record small.
fn one_line(text: &str) -> String {
    printable(text, ' ').chars().take(MAX_NAME).collect()
}

/// The directory of jobs' records.
#[derive(Debug)]
pub struct JobRecords {
    run_dir: Dir,
    dir: Dir,
}

impl JobRecords {
    /// Opens it in `RunDir`, making what is missing, and refuses one that other users could use.
    pub fn open(run_dir: &Path) -> Result<Self> {
        let dir = files::make_directory(run_dir, DIRECTORY)?;
        Ok(Self { run_dir: Dir::open(run_dir)?, dir })
    }

    /// As `open`, but makes nothing. `None`: no job has been recorded.
    pub fn existing(run_dir: &Path) -> Result<Option<Self>> {
        let Some(dir) = files::directory(run_dir, DIRECTORY)? else { return Ok(None) };
        Ok(Some(Self { run_dir: Dir::open(run_dir)?, dir }))
    }

    /// Writes a record in place of an earlier one. A process that dies meanwhile leaves none, or the old one.
    pub fn write(&self, id: &JobOnNode, record: &JobRecord) -> Result<()> {
        let name = file_name(id);
        roll::note(&self.run_dir, record.entry(&name).as_slice());
        // Two prologs of one job do not run at once. The bound ends the loop if another process keeps writing.
        for _ in 0..3 {
            if link_new(&self.dir, &name, &record.to_string())? {
                return Ok(());
            }
            unlink(&self.dir, &name)?;
        }
        Err(Error::new("another process keeps writing the record of this job:").at(self.dir.path().join(name)))
    }

    /// The record of a job; `None`: there is none, or it is by another boot or a dead batch step. Such a record is of an earlier run of
    /// the job, which may have been requeued to another partition.
    pub fn read(&self, id: &JobOnNode, host: &Host) -> Result<Option<JobRecord>> {
        match self.read_name(&file_name(id))? {
            Some(record) if !is_stale(&record, host)? => Ok(Some(record)),
            _ => Ok(None),
        }
    }

    fn read_name(&self, name: &str) -> Result<Option<JobRecord>> {
        let at = |error: Error| error.at(self.dir.path().join(name));
        let fd: OwnedFd = match self.dir.open_file(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => return Ok(None),
            opened => opened?,
        };
        let stat = fstat(&fd).map_err(|errno| Error::os("stat", self.dir.path().join(name), errno))?;
        if !is_ours(&stat, SFlag::S_IFREG) || stat.st_size > MAX_SIZE {
            return Err(at(Error::new("the record of a job is not a small file that only root can write:")));
        }
        let size = usize::try_from(stat.st_size).unwrap_or(0);
        let mut text = vec![0u8; size];
        let mut filled = 0;
        while let Some(rest) = text.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match nix::unistd::read(&fd, rest) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::os("read", self.dir.path().join(name), errno)),
            }
        }
        text.truncate(filled);
        JobRecord::parse(&String::from_utf8_lossy(&text)).map(Some).map_err(at)
    }

    /// Removes a job's record, whatever process wrote it. No error if there is none.
    pub fn forget(&self, id: &JobOnNode) -> Result<()> {
        unlink(&self.dir, &file_name(id))
    }

    /// Removes a job's record if it is the one that was seen: another is of a new run of the job.
    pub fn forget_this(&self, id: &JobOnNode, seen: &JobRecord) -> Result<()> {
        match self.read_name(&file_name(id))? {
            Some(record) if record.written == seen.written && record.boot_id == seen.boot_id => self.forget(id),
            _ => Ok(()),
        }
    }

    /// Removes the records of another boot, and those by a batch step whose daemon is certainly dead. One that cannot be read may be
    /// another release's, and stays. Those by batch steps that live are returned for the roll.
    pub fn reap(&self, host: &Host) -> Result<Vec<Entry>> {
        let mut living = Vec::new();
        for name in self.dir.list(false)? {
            living.extend(self.reap_one(&name, host)?);
        }
        Ok(living)
    }

    /// As `reap`, for one of them. `None`: it is gone, or no living batch step wrote it.
    pub fn reap_one(&self, name: &str, host: &Host) -> Result<Option<Entry>> {
        match self.read_name(name) {
            Ok(Some(record)) if is_stale(&record, host)? => unlink(&self.dir, name).map(|()| None),
            Ok(record) => Ok(record.and_then(|record| record.entry(name))),
            Err(error) => {
                log::debug!("left alone: {error}");
                Ok(None)
            }
        }
    }
}

fn is_stale(record: &JobRecord, host: &Host) -> Result<bool> {
    if record.boot_id != host.boot_id {
        return Ok(true);
    }
    match &record.writer {
        Some((owner, namespace)) if *namespace == host.pid_namespace => Ok(!owner.is_alive(&host.proc)?),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use nix::sys::stat::Mode;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::job::Name;

    fn record(written: u128) -> JobRecord {
        JobRecord {
            boot_id: "b".into(),
            written,
            writer: None,
            uid: 1001,
            partition: Fact::Known("gpu".into()),
            qos: Fact::Unknown,
            account: Fact::Known(String::new()),
            cpus: Some(3),
            gpus: Gpus::Devices(vec![(0, "/dev/nvidia2".into()), (3, "/dev/nvidia5".into())]),
        }
    }

    fn of_boot(boot_id: &str) -> Host {
        Host { boot_id: boot_id.to_owned(), ..Host::read(&Config::default()).unwrap() }
    }

    fn id(job: u32) -> JobOnNode {
        JobOnNode { node: None, job: job.into() }
    }

    #[test]
    fn no_text_becomes_two() {
        assert!(is_device("/dev/nvidia0"));
        for path in ["/dev/a,/dev/b", "/dev/a\n", "dev/a"] {
            assert!(!is_device(path), "{path:?}");
        }
        let why = JobRecord { gpus: Gpus::Unknown("why\nend".into()), ..record(7) };
        assert_eq!(JobRecord::parse(&why.to_string()).unwrap().gpus, Gpus::Unknown("why end".into()));
    }

    #[test]
    fn what_is_written_is_understood_again_and_nothing_less() {
        let owner = Some((Owner { pid: 7, start: 9 }, "pid:[1]".to_owned()));
        let steps =
            JobRecord { writer: owner, cpus: None, gpus: Gpus::None, qos: Fact::Known("a=? b".into()), ..record(0) };
        let uncertain = [Gpus::Positions(vec![1], "b=c, d".into()), Gpus::Unknown("why".into())];
        let uncertain = uncertain.map(|gpus| JobRecord { gpus, ..record(7) });
        let claimed = |text: &str| Fact::Claimed(text.to_owned());
        let claimed = JobRecord { account: claimed("=a"), qos: claimed(""), ..record(8) };
        for record in [record(5), steps, claimed].into_iter().chain(uncertain) {
            let text = record.to_string();
            assert_eq!(JobRecord::parse(&text).unwrap(), record);
            for end in 0..text.len() {
                assert!(JobRecord::parse(&text[..end]).is_err(), "{end}");
            }
            for (from, to) in [
                ("job 2", "job 1"),
                ("uid=", "uid=x"),
                ("gpus=", "gpus=1,,"),
                ("cpus=", "cpus=-"),
                ("end\n", "x=1\nend\n"),
            ] {
                assert!(JobRecord::parse(&text.replace(from, to)).is_err(), "{to}");
            }
        }
        // A device for each GPU, or a reason why not.
        let text = record(5).to_string();
        for (from, to) in [
            ("gpu_devices=/dev/nvidia2,/dev/nvidia5", "gpu_devices="),
            ("gpu_devices=/dev/nvidia2,", "gpu_devices="),
            ("gpu_devices=/", "gpu_devices="),
            ("gpus=0,3", "gpus="),
            ("gpus_unknown=", "gpus_unknown=why"),
            (
                "gpu_devices=/dev/nvidia2,/dev/nvidia5\ngpus_unknown=",
                &format!("gpu_devices=\ngpus_unknown={}", "x".repeat(1025)),
            ),
        ] {
            assert!(text.contains(from) && JobRecord::parse(&text.replace(from, to)).is_err(), "{to}");
        }
        // What could end a line is not written, and so is unknown.
        let forged = JobRecord { partition: Fact::Known("a\naccount==b".into()), ..record(5) };
        assert_eq!(JobRecord::parse(&forged.to_string()).unwrap().partition, Fact::Unknown);
    }

    #[test]
    fn the_last_prolog_counts_and_a_step_forgets_only_its_own_run() {
        let temp = tempfile::tempdir().unwrap();
        let records = JobRecords::open(&temp.path().join("run")).unwrap();
        let (first, second) = (record(1), JobRecord { uid: 7, ..record(2) });
        assert_eq!(records.read(&id(5), &of_boot("b")).unwrap(), None);
        records.write(&id(5), &first).unwrap();
        records.write(&id(5), &second).unwrap();
        assert_eq!(records.read(&id(5), &of_boot("b")).unwrap(), Some(second.clone()));
        assert_eq!(records.read(&id(5), &of_boot("another boot")).unwrap(), None);
        // Another slurmd's on this host.
        let other = JobOnNode { node: Some(Name::new("n2").unwrap()), ..id(5) };
        assert_eq!(records.read(&other, &of_boot("b")).unwrap(), None);
        records.write(&other, &first).unwrap();

        records.forget_this(&id(5), &first).unwrap();
        assert!(records.read(&id(5), &of_boot("b")).unwrap().is_some(), "it is a new run's");
        records.forget_this(&id(5), &second).unwrap();
        records.forget_this(&id(5), &second).unwrap();
        assert_eq!(records.read(&id(5), &of_boot("b")).unwrap(), None);
        assert!(records.read(&other, &of_boot("b")).unwrap().is_some());
        records.forget(&other).unwrap();
        records.forget(&other).unwrap();
        assert_eq!(fs::read_dir(temp.path().join("run/jobs")).unwrap().count(), 0);
    }

    #[test]
    fn only_what_root_alone_can_write_is_believed() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        let records = JobRecords::open(&run).unwrap();
        records.write(&id(1), &record(1)).unwrap();
        let (file, elsewhere) = (run.join("jobs/1"), temp.path().join("elsewhere"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(records.read(&id(1), &of_boot("b")).is_err());
        fs::rename(&file, &elsewhere).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert!(records.read(&id(1), &of_boot("b")).is_err(), "a link");
        fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, Mode::S_IRWXU).unwrap();
        assert!(records.read(&id(1), &of_boot("b")).is_err(), "a fifo, and nobody waits for it");
        fs::remove_file(&file).unwrap();
        fs::write(&file, "x".repeat(100_000)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(records.read(&id(1), &of_boot("b")).is_err(), "too long");
        if nix::unistd::geteuid().is_root() {
            records.forget(&id(1)).unwrap();
            records.write(&id(1), &record(1)).unwrap();
            std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
            assert!(records.read(&id(1), &of_boot("b")).is_err(), "another's");
        }
        fs::set_permissions(run.join("jobs"), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(JobRecords::open(&run).is_err());
    }

    #[test]
    fn what_is_stale_is_forgotten_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let records = JobRecords::open(&temp.path().join("run")).unwrap();
        let host = Host::read(&Config::default()).unwrap();
        let alive = Owner::this(&host.proc).unwrap();
        let dead = Owner { start: alive.start + 1, ..alive };
        let write = |job, writer| records.write(&id(job), &JobRecord::new(&host, writer, 1)).unwrap();
        write(1, None);
        write(2, Some(alive));
        write(3, Some(dead));
        records.write(&id(4), &record(1)).unwrap();
        let elsewhere = JobRecord { writer: Some((dead, "pid:[1]".into())), ..JobRecord::new(&host, None, 1) };
        records.write(&id(5), &elsewhere).unwrap();
        link_new(&records.dir, "6", "of another release\n").unwrap();
        let is_believed = |job| records.read(&id(job), &host).unwrap().is_some();
        assert_eq!([1, 2, 3, 4, 5].map(is_believed), [true, true, false, false, true]);
        records.reap(&host).unwrap();
        let mut left = records.dir.list(false).unwrap();
        left.sort();
        assert_eq!(left, ["1", "2", "5", "6"]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(jobfence-job 1\n)?(boot_id=.*\n)?(uid=[0-9-]*\n)?(gpus=[0-9,]*\n)?(.*\n)*(end\n)?") {
            let _ = JobRecord::parse(&text);
            let _ = parse_gpus(&text);
        }
    }
}
