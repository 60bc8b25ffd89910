// SPDX-License-Identifier: GPL-2.0-or-later
//! `CacheShare` and `MemoryBandwidthPercent`: `jobfence hold` with real processes in real cgroups, on a file system that keeps to the
//! kernel's rules of resctrl (tests/resctrl/fake.py); and what jobs use of both. No machine of ours has a CPU with it: `tests/resctrl/real`
//! is for one that has.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

use common::Held as Site;
use common::until;

/// Three processes, one of them with four threads, and one more for each line that it reads but the first: before that it is in no job.
const PROGRAM: &str = "
import subprocess, sys, threading, time
sys.stdin.readline()
for _ in range(3):
    threading.Thread(target=time.sleep, args=(9999,), daemon=True).start()
sleep = lambda: subprocess.Popen(['/bin/sleep', '9999'], stdin=subprocess.DEVNULL)
all = [sleep(), sleep()]
print('ready', flush=True)
for line in sys.stdin:
    all.append(sleep())
    print('ready', flush=True)
";

/// The file system, in a mount namespace that goes with it.
struct Fake {
    server: Child,
    place: tempfile::TempDir,
}

impl Fake {
    fn new(keys: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut server = Command::new("/usr/bin/python3");
        server.args(["-B", "tests/resctrl/fake.py"]).arg(place.path()).args(keys);
        let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { server, place }
    }

    /// A file or a group, as this process reaches it.
    fn at(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.server.id()));
        root.join(self.place.path().strip_prefix("/").unwrap()).join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    fn tasks(&self, group: &str) -> BTreeSet<i32> {
        self.read(&format!("{group}/tasks")).lines().map(|line| line.parse().unwrap()).collect()
    }

    /// The same command where the file system is.
    fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("nsenter");
        within.arg(format!("--mount=/proc/{}/ns/mnt", self.server.id())).arg("--").arg(command.get_program());
        within.args(command.get_args()).env("LC_ALL", "C.UTF-8").env("JOBFENCE_TEST_RESCTRL", self.place.path());
        within.stdin(Stdio::null());
        within
    }

    /// A group of somebody else's, with a process.
    fn others(&self, name: &str, schemata: &str) -> Child {
        fs::create_dir(self.at(name)).unwrap();
        fs::write(self.at(name).join("schemata"), schemata).unwrap();
        let process = Command::new("/bin/sleep").arg("9999").stdout(Stdio::null()).spawn().unwrap();
        fs::write(self.at(name).join("tasks"), process.id().to_string()).unwrap();
        process
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn site(test: &str, settings: &[&str]) -> Option<Site> {
    if !Path::new("/dev/fuse").exists() {
        common::skip("no FUSE, by which the tests have their resctrl");
        return None;
    }
    let mut site = Site::new("resctrl", test, &["7", "8", "9"])?;
    site.settings.extend(settings.iter().map(|setting| (*setting).to_owned()));
    Some(site)
}

trait Bounds {
    fn holds(&mut self, fake: &Fake);
    fn killed(&mut self);
    fn runs(&mut self, job: &str) -> usize;
    fn directory(&self, job: &str) -> PathBuf;
    fn group(&self, job: &str) -> String;
    fn threads(&self, job: &str) -> BTreeSet<i32>;
    fn is_bounded(&self, fake: &Fake, job: &str);
    fn records(&self) -> usize;
}

impl Bounds for Site {
    /// Jobs are known by their launches alone: nothing else looks for them within the test.
    fn holds(&mut self, fake: &Fake) {
        let _ = fs::remove_file(self.path("run/hold.lock/early_move"));
        let hold = fake.within(&self.command(&["hold", "-o", "ReapInterval=86400"]));
        self.start_hold(hold);
        until("hold", || self.path("run/hold.lock/early_move").exists());
    }

    fn killed(&mut self) {
        let mut hold = self.hold.take().unwrap();
        hold.kill().unwrap();
        hold.wait().unwrap();
    }

    /// Opens a job with the program. Returns which of the children that is.
    fn runs(&mut self, job: &str) -> usize {
        let user = common::uids();
        self.out(&["open", "--job", job, "--user", &user.to_string(), "--mem", "256M", "--cpus", "1"]);
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-S", "-c", PROGRAM]).uid(user).gid(user).current_dir("/").process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        self.out(&["attach", "--job", job, &child.id().to_string()]);
        writeln!(child.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        self.children.push(child);
        self.children.len() - 1
    }

    /// The job's directory, where memory is limited.
    fn directory(&self, job: &str) -> PathBuf {
        let below = format!("{}/uid_{}/job_{job}", self.base.name, common::uids());
        let mounts = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let has_limit =
            |place: &PathBuf| ["memory.limit_in_bytes", "memory.max"].iter().any(|name| place.join(name).exists());
        mounts.iter().map(|mount| Path::new(mount).join(&below)).find(has_limit).unwrap()
    }

    fn group(&self, job: &str) -> String {
        format!("jobfence-{}", fs::metadata(self.directory(job)).unwrap().ino())
    }

    /// All threads of a job, by the kernel.
    fn threads(&self, job: &str) -> BTreeSet<i32> {
        let mut all = BTreeSet::new();
        let mut rest = vec![self.directory(job)];
        while let Some(place) = rest.pop() {
            let text = ["tasks", "cgroup.threads"].iter().find_map(|name| fs::read_to_string(place.join(name)).ok());
            all.extend(text.unwrap().lines().map(|line| line.parse::<i32>().unwrap()));
            let below = fs::read_dir(place).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_dir());
            rest.extend(below.map(|entry| entry.path()));
        }
        all
    }

    /// Waits until all threads of the job are in its group.
    fn is_bounded(&self, fake: &Fake, job: &str) {
        let group = self.group(job);
        until("all threads are in the group", || {
            let threads = self.threads(job);
            threads.len() >= 6 && fake.tasks(&group) == threads
        });
    }

    fn records(&self) -> usize {
        let all = fs::read_dir(self.path("run-series")).into_iter().flatten().flatten();
        all.filter(|file| file.file_name().to_str().is_some_and(|name| name.ends_with(".cache"))).count()
    }
}

const BOTH: [&str; 2] = ["CacheShare=25", "MemoryBandwidthPercent=41"];

#[test]
fn a_job_is_bounded_with_all_its_threads_and_nobody_else_is() {
    let Some(mut site) = site("bounded", &BOTH) else { return };
    let fake = Fake::new(&[]);
    let mut stranger = fake.others("p0", "L3:0=f;1=7ff\nMB:0=70\n");
    site.holds(&fake);
    let program = site.runs("7");
    site.is_bounded(&fake, "7");
    let group = site.group("7");
    // Three of eleven ways, beside those of the other group where it leaves some, and none of the devices'.
    assert_eq!(fake.read(&format!("{group}/schemata")), "L3:0=070;1=007\nMB:0=  50;1=  50\n");
    // What begins later, and what comes into the job from elsewhere.
    writeln!(site.children[program].stdin.as_mut().unwrap()).unwrap();
    let late = Command::new("/bin/sleep").arg("9999").stdout(Stdio::null()).uid(common::uids()).spawn().unwrap();
    site.out(&["attach", "--job", "7", &late.id().to_string()]);
    let late_id = late.id() as i32;
    site.children.push(late);
    until("it is in the job", || site.threads("7").contains(&late_id));
    site.is_bounded(&fake, "7");
    // What leaves the job, as whoever may move it can make it do.
    let outside = PathBuf::from(site.directory("7").ancestors().nth(3).unwrap());
    fs::write(outside.join("cgroup.procs"), late_id.to_string()).unwrap();
    until("it is given back", || !fake.tasks(&group).contains(&late_id));
    site.is_bounded(&fake, "7");
    let shown = site.out(&["show", "7"]);
    let words = "the job: at most 3 of 11 ways of each L3 cache (CacheShare=25%); at most 50% of the memory bandwidth";
    assert!(shown.contains(words), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&site.out(&["ls", "--json"])).unwrap();
    assert_eq!(json["fences"][0]["cache"]["group"], group, "{json}");
    site.out(&["close", "--job", "7"]);
    until("the group is free", || !fake.at(&group).exists() && site.records() == 0);
    // The other group is as it was.
    assert_eq!(fake.read("p0/schemata"), "L3:0=00f;1=7ff\nMB:0=  70;1= 100\n");
    assert_eq!(fake.tasks("p0"), [stranger.id() as i32].into());
    assert!(!site.said().contains("WARN") && !site.said().contains("warn"), "{}", site.said());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_job_without_a_group_runs_and_is_said_once_until_one_is_free() {
    let Some(mut site) = site("full", &BOTH) else { return };
    // The default group, somebody's, and one for a job.
    let fake = Fake::new(&["closids=3"]);
    let mut stranger = fake.others("p0", "L3:0=f\n");
    site.holds(&fake);
    site.runs("7");
    site.is_bounded(&fake, "7");
    site.runs("8");
    let why = "job 8 has no group of resctrl, and is not bounded: the CPU has 3 groups: 1 are jobs', 1 are others', and one is for \
               all else";
    until("it is said", || site.said().contains(why));
    assert!(site.said().contains("the kernel says: Out of CLOSIDs"), "{}", site.said());
    assert!(site.out(&["show", "8"]).contains(why));
    assert!(!site.out(&["show", "7"]).contains("no group"));
    assert!(!fake.at(&site.group("8")).exists() && !site.threads("8").is_empty());
    let before = fake.read("info/last_cmd_status");
    assert!(before.contains("Out of CLOSIDs"), "{before}");
    // Another one's group comes instead of the job's, before hold has seen that there was room.
    let (hold, group) = (Pid::from_raw(site.hold.as_ref().unwrap().id() as i32), site.group("7"));
    kill(hold, Signal::SIGSTOP).unwrap();
    site.out(&["close", "--job", "7"]);
    fs::remove_dir(fake.at(&group)).unwrap();
    fs::create_dir(fake.at("p1")).unwrap();
    kill(hold, Signal::SIGCONT).unwrap();
    until("it is counted again", || site.out(&["show", "8"]).contains("0 are jobs', 2 are others'"));
    // It is tried again, and said no more.
    fs::remove_dir(fake.at("p1")).unwrap();
    site.is_bounded(&fake, "8");
    assert_eq!(site.said().matches("job 8 has no group of resctrl").count(), 1, "{}", site.said());
    assert!(site.out(&["show", "8"]).contains("at most 3 of 11 ways"));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn the_next_hold_knows_the_groups_of_a_killed_one() {
    let Some(mut site) = site("killed", &BOTH) else { return };
    let fake = Fake::new(&[]);
    site.holds(&fake);
    site.runs("7");
    site.runs("8");
    site.is_bounded(&fake, "7");
    site.is_bounded(&fake, "8");
    let groups = [site.group("7"), site.group("8")];
    let schemata = groups.clone().map(|group| fake.read(&format!("{group}/schemata")));
    assert_ne!(schemata[0], schemata[1], "they have ways apart");
    site.killed();
    // One ends meanwhile. A record of the other is lost, as if hold had been killed between two steps of its own.
    site.out(&["close", "--job", "7"]);
    for file in fs::read_dir(site.path("run-series")).unwrap().flatten() {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        if file.file_name().to_str().unwrap().ends_with(".cache") && text.contains("job_8\"") {
            fs::remove_file(file.path()).unwrap();
        }
    }
    assert_eq!(site.records(), 1);
    site.holds(&fake);
    until("one group is free", || !fake.at(&groups[0]).exists());
    until("the other is known", || site.out(&["show", "8"]).contains("at most 3 of 11 ways"));
    site.is_bounded(&fake, "8");
    assert_eq!(site.records(), 1);
    // And without hold.
    site.killed();
    site.out(&["close", "--job", "8"]);
    assert!(fake.at(&groups[1]).exists());
    let reaped = fake.within(&site.command(&["reap"])).output().unwrap();
    assert!(String::from_utf8_lossy(&reaped.stdout).contains("removed the group of resctrl of job 8"), "{reaped:?}");
    assert!(!fake.at(&groups[1]).exists() && site.records() == 0);
}

#[test]
fn nothing_is_left_wherever_hold_is_killed() {
    let Some(mut site) = site("anywhere", &BOTH) else { return };
    let fake = Fake::new(&[]);
    for wait in (0..12_u64).map(|time| time * time * 2) {
        site.holds(&fake);
        site.runs("7");
        std::thread::sleep(std::time::Duration::from_millis(wait));
        site.killed();
        site.out(&["close", "--job", "7"]);
        site.runs("8");
        site.holds(&fake);
        site.is_bounded(&fake, "8");
        site.killed();
        site.out(&["close", "--job", "8"]);
    }
    site.holds(&fake);
    until("no group is left", || {
        let mut left = fs::read_dir(fake.at("")).unwrap().flatten();
        site.records() == 0 && !left.any(|entry| entry.file_name().to_str().unwrap().starts_with("jobfence-"))
    });
}

#[test]
fn a_bound_goes_with_its_setting_and_holds_for_its_section() {
    let Some(mut site) = site("setting", &[]) else { return };
    let fake = Fake::new(&["cdp=1", "mb=0", "l3=fffff", "least=2", "devices=0"]);
    let file = site.path("jobfence.conf");
    let user = common::uids();
    let written = |share: &str| fs::write(&file, format!("[User={user}]\nCacheShare={share}\n")).unwrap();
    written("1");
    let argument = format!("{}", file.display());
    let hold = |site: &mut Site| {
        let command = fake.within(&site.command(&["hold", "--config", &argument, "-o", "ReapInterval=1"]));
        site.start_hold(command);
    };
    hold(&mut site);
    until("hold", || site.path("run/hold.lock/early_move").exists());
    site.runs("7");
    site.is_bounded(&fake, "7");
    let group = site.group("7");
    assert_eq!(fake.read(&format!("{group}/schemata")), "L3CODE:0=00003;1=00003\nL3DATA:0=00003;1=00003\n");
    written("30");
    until("the new share", || fake.read(&format!("{group}/schemata")).starts_with("L3CODE:0=0003f;1=0003f\n"));
    site.is_bounded(&fake, "7");
    written("100");
    until("the group is free", || !fake.at(&group).exists() && site.records() == 0);
    assert!(!site.threads("7").is_empty());
}

/// What is noted for cards in this site's directories.
const NOTES: &str = "import os, sys
for place, *_ in os.walk('/sys/fs/cgroup'):
    if f'/{sys.argv[1]}/' in place and 'trusted.jobfence.card' in os.listxattr(place):
        print(os.getxattr(place, 'trusted.jobfence.card').decode())
";

#[test]
fn what_a_job_uses_is_counted_while_the_site_asks_for_it() {
    let Some(mut site) = site("counted", &[]) else { return };
    let fake = Fake::new(&[]);
    let (file, metrics, user) = (site.path("jobfence.conf"), site.path("jobfence.prom"), common::uids());
    let written = |interval: &str, share: u32, metrics: &Path| {
        let node = format!("SampleInterval={interval}\nMetricsFile={}\n", metrics.display());
        fs::write(&file, format!("{node}[User={user}]\nCacheShare={share}\n")).unwrap();
    };
    let argument = format!("{}", file.display());
    let hold = |site: &mut Site| {
        let command = fake.within(&site.command(&["hold", "--config", &argument, "-o", "ReapInterval=1"]));
        site.start_hold(command);
    };
    let count = |group: &str, cache: u32, counter: &str, text: &str| {
        fs::write(fake.at(&format!("{group}/mon_data/mon_L3_{cache:02}/{counter}")), format!("{text}\n")).unwrap();
    };
    let figures = |site: &Site| {
        let json: serde_json::Value = serde_json::from_str(&site.out(&["ls", "--json"])).unwrap();
        let cache = &json["fences"][0]["cache"];
        ["occupancy_bytes", "occupancy_peak_bytes", "memory_traffic_bytes", "memory_traffic_local_bytes"]
            .map(|member| cache[member].as_u64())
    };
    written("1", 25, &metrics);
    hold(&mut site);
    until("hold", || site.path("run/hold.lock/early_move").exists());
    site.runs("7");
    site.is_bounded(&fake, "7");
    let group = site.group("7");
    for (cache, counter, text) in [
        (0, "llc_occupancy", "1048576"),
        (1, "llc_occupancy", "2097152"),
        (0, "mbm_total_bytes", "1073741824"),
        (1, "mbm_total_bytes", "1073741824"),
        (0, "mbm_local_bytes", "1073741824"),
    ] {
        count(&group, cache, counter, text);
    }
    until("the figures", || figures(&site) == [Some(3 << 20), Some(3 << 20), Some(2 << 30), Some(1 << 30)]);
    let words = "2.0 GiB from and to memory, 1.0 GiB of it on its own node";
    assert!(site.out(&["show", "7"]).contains(&format!("3.0 MiB in L3 caches now; {words}\n")));
    let note = || {
        let notes = Command::new("/usr/bin/python3").args(["-S", "-c", NOTES, &site.base.name]).output().unwrap();
        String::from_utf8(notes.stdout).unwrap()
    };
    until("the card", || note().contains(&format!("cache\t\tup to 3.0 MiB in L3 caches; {words}\n")));
    until("the metrics", || {
        let text = fs::read_to_string(&metrics).unwrap_or_default();
        [
            ("cache_occupancy_bytes", 3 << 20),
            ("memory_traffic_bytes_total", 2_u64 << 30),
            ("memory_traffic_local_bytes_total", 1 << 30),
        ]
        .iter()
        .all(|(name, value)| {
            let of = |line: &str| {
                line.starts_with(&format!("jobfence_job_{name}{{")) && line.ends_with(&format!(" {value}"))
            };
            text.lines().any(of)
        })
    });
    // What is no number is not known, and what was counted before stays. Occupancy is written last and read first, so it says that the rest
    // is read, too.
    count(&group, 0, "mbm_total_bytes", "Error");
    count(&group, 1, "mbm_local_bytes", "5");
    count(&group, 0, "llc_occupancy", "Unavailable");
    let more = (1 << 30) + 5;
    until("a look", || figures(&site)[0].is_none());
    assert_eq!(figures(&site), [None, Some(3 << 20), Some(2 << 30), Some(more)]);
    // Another hold, and another group.
    site.killed();
    count(&group, 0, "mbm_total_bytes", "1073741825");
    count(&group, 0, "llc_occupancy", "1");
    hold(&mut site);
    until("a look of the next hold", || figures(&site)[0].is_some());
    assert_eq!(figures(&site), [Some((2 << 20) + 1), Some(3 << 20), Some((2 << 30) + 1), Some(more)]);
    written("1", 30, &metrics);
    until("the new group", || fake.read(&format!("{group}/mon_data/mon_L3_01/mbm_local_bytes")) == "0\n");
    count(&group, 0, "mbm_total_bytes", "7");
    count(&group, 0, "llc_occupancy", "4194304");
    until("a look at the new group", || figures(&site)[0] == Some(4 << 20));
    assert_eq!(figures(&site), [Some(4 << 20), Some(4 << 20), Some((2 << 30) + 8), Some(more)]);
    // The second time this file is there, it was looked with the new setting.
    let other = site.path("other.prom");
    written("never", 30, &other);
    for _ in 0..2 {
        until("the new setting", || fs::remove_file(&other).is_ok());
    }
    assert_eq!(figures(&site), [None; 4]);
    site.is_bounded(&fake, "7");
}

#[test]
fn what_the_cpu_or_the_mount_does_not_do_is_said_and_the_rest_is_done() {
    let Some(mut site) = site("lacks", &BOTH) else { return };
    for (keys, said, schemata) in [
        (
            &["mb=2048", "mb_least=0", "mb_step=1", "l3=ffff", "least=0", "sparse=1"][..],
            "counts memory bandwidth in amounts",
            "000f",
        ),
        (&["mb=4294967295"][..], "mounted with mba_MBps", "007"),
        (&["mb=0"][..], "the CPU does not bound memory bandwidth", "007"),
        (&["linear=0"][..], "the kernel says: No support for non-linear MB domains", "007"),
    ] {
        let fake = Fake::new(keys);
        site.holds(&fake);
        site.runs("7");
        site.is_bounded(&fake, "7");
        let has = fake.read(&format!("{}/schemata", site.group("7")));
        let line = has.lines().find(|line| line.contains("L3")).unwrap().trim();
        assert!(line.starts_with(&format!("L3:0={}", schemata.trim_start())), "{has}");
        until("it is said", || site.said().contains(said));
        assert!(site.out(&["show", "7"]).contains(said));
        let checked = fake.within(&site.command(&["check"])).output().unwrap();
        // That a kernel refuses a value is not known before.
        let is_known = String::from_utf8_lossy(&checked.stdout).contains("MemoryBandwidthPercent=41% bounds nothing");
        assert_eq!(is_known, keys != ["linear=0"], "{checked:?}");
        site.out(&["close", "--job", "7"]);
        until("the record is gone", || site.records() == 0);
        site.killed();
    }
    // Bandwidth alone.
    let fake = Fake::new(&["l3=0"]);
    site.holds(&fake);
    site.runs("7");
    site.is_bounded(&fake, "7");
    assert_eq!(fake.read(&format!("{}/schemata", site.group("7"))), "MB:0=  50;1=  50\n");
    assert!(site.out(&["show", "7"]).contains("the CPU does not divide its L3 cache"));
}

#[test]
fn exclusive_ways_of_others_are_left_to_them() {
    let Some(mut site) = site("exclusive", &BOTH) else { return };
    let fake = Fake::new(&["domains=0,2"]);
    // The default group gives them up first.
    fs::write(fake.at("schemata"), "L3:0=7f0;2=700\n").unwrap();
    let mut stranger = fake.others("p0", "L3:0=f;2=ff\n");
    fs::write(fake.at("p0/mode"), "exclusive").unwrap();
    site.holds(&fake);
    site.runs("7");
    site.is_bounded(&fake, "7");
    assert_eq!(fake.read(&format!("{}/schemata", site.group("7"))), "L3:0=070;2=700\nMB:0=  50;2=  50\n");
    site.out(&["close", "--job", "7"]);
    until("the record is gone", || site.records() == 0);
    site.killed();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    // On one cache nothing is left.
    fs::remove_dir(fake.at("p0")).unwrap();
    fs::write(fake.at("schemata"), "L3:0=7ff;2=7ff\n").unwrap();
    fs::create_dir(fake.at("p1")).unwrap();
    fs::write(fake.at("schemata"), "L3:0=001;2=001\n").unwrap();
    fs::write(fake.at("p1/schemata"), "L3:0=7fe;2=7fe\n").unwrap();
    fs::write(fake.at("p1/mode"), "exclusive").unwrap();
    fs::write(fake.at("schemata"), "L3:0=001;2=001\n").unwrap();
    site.holds(&fake);
    site.runs("8");
    site.is_bounded(&fake, "8");
    assert_eq!(fake.read(&format!("{}/schemata", site.group("8"))), "L3:0=001;2=001\nMB:0=  50;2=  50\n");
}

#[test]
fn a_check_says_what_each_section_would_have() {
    let Some(site) = site("check", &[BOTH[0], BOTH[1], "SampleInterval=1"]) else { return };
    let fake = Fake::new(&["closids=4"]);
    let checked = fake.within(&site.command(&["check"])).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    for part in [
        "L3 caches of 11 ways, of which a group has at least 1",
        "memory bandwidth in steps of 10 from 10",
        "of 4 groups, 0 are jobs', 0 others', one is for all else, 3 are free",
        "CacheShare=25%: a job may use 3 of 11 ways of each L3 cache",
        "MemoryBandwidthPercent=41%: a job may use 50% of the memory bandwidth",
        "llc_occupancy, mbm_total_bytes, mbm_local_bytes of each job with a group are counted (SampleInterval)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Without it, jobs run all the same, and that is said.
    let without = site.command(&["check"]).output().unwrap();
    let said = String::from_utf8_lossy(&without.stdout);
    assert!(said.contains("CacheShare and MemoryBandwidthPercent bound nothing, and jobs run all the same"), "{said}");
    assert_eq!(checked.status.code(), without.status.code());
    let explained = fake.within(&site.command(&["explain", "--cpus", "1", "--mem", "100M"])).output().unwrap();
    let said = String::from_utf8_lossy(&explained.stdout);
    assert!(said.contains("3 of 11 ways of each L3 cache, if a group is free"), "{said} {explained:?}");
}
