// SPDX-License-Identifier: GPL-2.0-or-later
//! `MemoryPool`: a program that outgrows its limit ends with the right result, what is lent comes back, an owner has what nobody uses, and
//! no limit is above what the record says, wherever `jobfence hold` is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use jobfence::cgroup::mark;
use jobfence::record::loan;
use jobfence::sys::dir::Dir;

mod common;

use common::Held as Site;
use common::until;

const MIB: u64 = 1 << 20;

/// Has as many MiB as each line says, and says so. What it frees goes back to the kernel, which the C library's heap does not promise. When
/// it is killed, the kernel has its memory back at once, which it does not have of shared memory.
const PROGRAM: &str = "
import mmap, sys
kept = []
print('ready', flush=True)
for line in sys.stdin:
    wanted = int(line)
    while len(kept) > wanted:
        kept.pop().close()
    while len(kept) < wanted:
        kept.append(mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept[-1].madvise(mmap.MADV_NOHUGEPAGE)
        kept[-1].write(b'x' * (1 << 20))
    print(len(kept), flush=True)
";

/// How the user of a job reads that it was ended.
const ENDED: &str = "job 7 step 0: jobfence ended this job, since the node ran short of memory: ";

/// The job of root's.
const ROOTS: &str = "90";

struct Program {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn has(&mut self, mib: u64) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{mib}").unwrap();
    }

    /// The next line that it says; empty if it has ended.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn site(test: &str, pool: &str) -> Option<Site> {
    let mut site = Site::new("lend", test, &["7", "8", "9"])?;
    for setting in [&format!("MemoryPool={pool}"), "ElasticRAMPercent=200", "ConstrainSwapSpace=yes"] {
        site.settings.push(setting.to_owned());
    }
    Some(site)
}

/// What the node has, in MiB.
fn whole(site: &Site) -> u64 {
    let said = site.out(&["host", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    json["total_bytes"].as_u64().unwrap() / MIB
}

impl Site {
    fn lends(&mut self, more: &[&str]) {
        let hold = self.command(&[&["hold", "-o", "ReapInterval=86400"], more].concat());
        self.start_hold(hold);
        until("hold", || self.path("run/hold.lock/early_move").exists());
    }

    fn killed(&mut self) {
        let mut hold = self.hold.take().unwrap();
        hold.kill().unwrap();
        hold.wait().unwrap();
    }

    /// Nothing is lent to root's jobs.
    fn user(&self, job: &str) -> u32 {
        if job == ROOTS { 0 } else { common::uids() }
    }

    fn opens(&self, job: &str, mem: &str, more: &[&str]) {
        let user = self.user(job).to_string();
        self.out(&[&["open", "--job", job, "--user", &user, "--mem", mem, "--cpus", "1"], more].concat());
    }

    fn runs(&self, job: &str, mem: &str) -> Program {
        self.runs_with(job, mem, &[])
    }

    fn runs_with(&self, job: &str, mem: &str, more: &[&str]) -> Program {
        self.opens(job, mem, more);
        let errors = fs::File::create(self.path(format!("errors.{job}"))).unwrap();
        errors.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-S", "-c", PROGRAM]).uid(self.user(job)).gid(self.user(job)).current_dir("/").stderr(errors);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, said };
        assert_eq!(program.says(), "ready");
        self.out(&["attach", "--job", job, &program.child.id().to_string()]);
        program
    }

    /// Lets the program have so many MiB, and each time waits until it is lent more: so it is never faster than what lends.
    fn grows(&self, program: &mut Program, job: &str, from: u64, to: u64) {
        let mut has = from;
        while has < to {
            has = (has + 8).min(to);
            until("more is lent", || self.limits(job).0 >= has + 6);
            program.has(has);
            assert_eq!(program.says(), has.to_string(), "{}", self.said());
        }
    }

    /// The directory with the limit of memory of a job, and of its step.
    fn directories(&self, job: &str) -> (PathBuf, PathBuf) {
        let below = format!("uid_{}/job_{job}", self.user(job));
        let node = self.node();
        // Where one directory has CPU time and memory, scavengers are in a branch of their own.
        let job = [node.join(&below), node.join("idle").join(&below)].into_iter().find(|place| file(place).exists());
        let job = job.unwrap();
        (job.clone(), job.join("step_0"))
    }

    /// The directory above all jobs, in the hierarchy with memory.
    fn node(&self) -> PathBuf {
        let mounts = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let all = mounts.iter().map(|mount| Path::new(mount).join(&self.base.name));
        all.into_iter().find(|place| file(place).exists()).unwrap()
    }

    /// The limits of a job and its step in MiB.
    fn limits(&self, job: &str) -> (u64, u64) {
        let (job, step) = self.directories(job);
        (limit(&job), limit(&step))
    }

    /// Waits until the job and its step have the grant and what the record says is lent, the swap beside it is as at first, and what is lent
    /// is as wanted.
    fn settles(&self, job: &str, grant: u64, is_right: impl Fn(u64) -> bool) {
        let places = self.directories(job);
        until("limits and record agree", || {
            let lent = self.lent();
            let limits = self.limits(job);
            let swaps = [&places.0, &places.1].map(|place| swap(place));
            let is_swap_right = swaps.iter().all(|swap| swap.is_none_or(|swap| swap == first_swap()));
            limits == (grant + lent, grant + lent) && is_swap_right && is_right(lent) && lent == self.lent()
        });
    }

    /// What the records say is lent, in MiB.
    fn lent(&self) -> u64 {
        let mut sum = 0;
        for file in fs::read_dir(self.path("run-series")).into_iter().flatten().flatten() {
            if file.file_name().to_str().is_some_and(|name| name.ends_with(".lent")) {
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                let Ok(json) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
                sum += (json["limit"].as_u64().unwrap() - json["grant"].as_u64().unwrap()) / MIB;
            }
        }
        sum
    }
}

/// What a process has in the kernel's choice.
fn rank(child: &Child) -> String {
    fs::read_to_string(format!("/proc/{}/oom_score_adj", child.id())).unwrap().trim().to_owned()
}

fn set_rank(child: &Child, rank: &str) {
    fs::write(format!("/proc/{}/oom_score_adj", child.id()), rank).unwrap();
}

/// Whether root may keep a user from changing that: in some containers root has no CAP_SYS_RESOURCE (24 in linux/capability.h).
fn may_forbid() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let all = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(all.trim(), 16).unwrap() >> 24 & 1 == 1
}

/// jobfence's directory stands for the node: it has so many MiB.
fn node_has(site: &Site, job: &str, mib: u64) {
    let node = site.directories(job).0.ancestors().nth(2).unwrap().to_path_buf();
    fs::write(file(&node), (mib * MIB).to_string()).unwrap();
}

fn file(dir: &Path) -> PathBuf {
    let v1 = dir.join("memory.limit_in_bytes");
    if v1.exists() { v1 } else { dir.join("memory.max") }
}

/// What v1's limit of memory and swap is above that of memory, in MiB, if this kernel counts swap.
fn swap(dir: &Path) -> Option<u64> {
    let sum = fs::read_to_string(dir.join("memory.memsw.limit_in_bytes")).ok()?;
    Some(sum.trim().parse::<u64>().unwrap() / MIB - limit(dir))
}

/// What `ConstrainSwapSpace=yes` gives beside so many MiB of memory.
fn first_swap() -> u64 {
    0
}

fn limit(dir: &Path) -> u64 {
    fs::read_to_string(file(dir)).unwrap().trim().parse::<u64>().unwrap() / MIB
}

#[test]
fn a_program_that_outgrows_its_limit_goes_on_and_gives_back_what_it_frees() {
    let Some(mut site) = site("grows", "4G") else { return };
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    assert_eq!(site.limits("7").1, site.limits("7").0);
    site.grows(&mut program, "7", 0, 400);
    until("the step follows", || site.limits("7").0 == site.limits("7").1);
    let (job, _) = site.limits("7");
    assert!(job > 400 && job <= 512, "{job}");
    let shown = site.out(&["show", "7"]);
    assert!(shown.contains(" MiB beyond its limit of 256.0 MiB (MemoryPool)"), "{shown}");
    let said = site.said();
    assert!(said.contains("job 7 of ") && said.contains(" is lent ") && said.contains("(MemoryPool)"), "{said}");
    program.has(20);
    assert_eq!(program.says(), "20");
    site.settles("7", 256, |lent| lent == 0);
    until("the log", || site.said().contains("has given back"));
}

#[test]
fn what_was_lent_and_came_back_is_on_the_card_and_in_the_usage_log() {
    let Some(mut site) = site("told", "4G") else { return };
    let Some((_lease, user)) = common::account() else { return common::skip("no account without processes") };
    site.lends(&[]);
    let run = |command: &[&str]| {
        let mut run = site.command(&["run", "--user", &user.name, "--mem", "256M", "--usage-card", "always"]);
        run.arg("--").args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = run.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Program { child, said }
    };
    let end = |mut program: Program| {
        drop(program.child.stdin.take());
        let mut card = String::new();
        program.child.stderr.take().unwrap().read_to_string(&mut card).unwrap();
        assert!(program.child.wait().unwrap().success(), "{card}");
        let log = fs::read_to_string(site.path("log/usage.jsonl")).unwrap();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        let most = line["job_memory_lent_peak_bytes"].clone();
        (card, most, site.out(&["report", line["job"].as_str().unwrap()]))
    };
    let mut program = run(&["/usr/bin/python3", "-S", "-c", PROGRAM]);
    assert_eq!(program.says(), "ready");
    let place = site.node().join(format!("uid_{}/job_run-{}", user.uid, program.child.id()));
    for has in (8..=400).step_by(8) {
        until("more is lent", || limit(&place) >= has + 6);
        program.has(has);
        assert_eq!(program.says(), has.to_string(), "{}", site.said());
    }
    let most = limit(&place) - 256;
    program.has(20);
    assert_eq!(program.says(), "20");
    until("all comes back", || limit(&place) == 256 && site.said().contains("has given back"));
    let (card, of_line, report) = end(program);
    let row = card.lines().find(|line| line.starts_with("  lent ")).unwrap_or_else(|| panic!("{card}"));
    let of_line = of_line.as_u64().unwrap() / MIB;
    assert!(of_line >= most && of_line <= 256, "{of_line} {most}");
    assert!(row.contains(&format!("at most {of_line}.0 MiB beyond")), "{card}");
    assert!(card.split_whitespace().collect::<Vec<_>>().join(" ").contains("all given back at 20"), "{card}");
    assert!(
        report.contains(&format!("  lent      {of_line}.0 MiB beyond its limit at the most (MemoryPool)")),
        "{report}"
    );
    // One that was lent nothing.
    let (card, of_line, report) = end(run(&["/bin/true"]));
    assert!(!card.contains("lent") && of_line.is_null() && !report.contains("lent"), "{card} {of_line} {report}");
}

#[test]
fn nobody_is_lent_more_than_the_share_and_the_kernel_kills_above_it() {
    let Some(mut site) = site("most", "4G") else { return };
    site.lends(&[]);
    let mut program = site.runs("7", "128M");
    site.grows(&mut program, "7", 0, 200);
    program.has(400);
    assert_eq!(program.says(), "", "it has more than twice its limit");
    assert_eq!(program.child.wait().unwrap().signal(), Some(9));
    until("the log", || site.said().contains("job 7"));
}

#[test]
fn a_user_can_refuse_a_loan_or_lower_it_and_not_have_more_than_the_site_says() {
    let Some(mut site) = site("asked", "4G") else { return };
    site.lends(&[]);
    let user = site.user("7").to_string();
    for (job, asked, most) in [("7", "100%", 128), ("8", "150%", 192), ("9", "1000%", 256)] {
        let option = format!("--elastic-ram={asked}");
        let mut program = site.runs_with(job, "128M", &[&option]);
        assert!(site.out(&["show", job]).contains(&format!("up to {asked} of the job's limit at most")));
        if most > 128 {
            site.grows(&mut program, job, 0, most - 24);
            until("all that it may have", || site.limits(job).0 == most);
        }
        program.has(most + 10);
        assert_eq!(program.says(), "");
        assert_eq!((program.child.wait().unwrap().signal(), site.limits(job).0), (Some(9), most));
        let explained = site.out(&["explain", "--user", &user, "--mem", "128M", &option]);
        let line = match asked {
            "100%" => "lent       nothing, by --elastic-ram=100% (the user)",
            "150%" => "lent       memory by --elastic-ram=150% (the user): needs jobfence.service",
            _ => "lent       memory by ElasticRAMPercent=200%",
        };
        assert!(explained.contains(line), "{explained}");
    }
}

#[test]
fn without_room_in_the_pool_a_job_has_its_limit_and_no_more() {
    let Some(mut site) = site("room", "64M") else { return };
    site.lends(&[]);
    let mut first = site.runs("7", "256M");
    site.grows(&mut first, "7", 0, 280);
    until("all is lent", || site.lent() == 64);
    let mut second = site.runs("8", "256M");
    second.has(300);
    assert_eq!(second.says(), "", "there is nothing more to lend");
    assert!(site.lent() <= 64);
}

#[test]
fn what_is_in_use_stays_lent_when_an_owner_comes_and_nothing_more_is_lent() {
    let Some(mut site) = site("owner", "4G") else { return };
    // So that all that is not kept is little more than the first job has: 1 GiB.
    let reserve = format!("MemoryPoolReserve={}M", whole(&site) - 1024);
    site.settings.push(reserve);
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    site.grows(&mut program, "7", 0, 400);
    site.opens("8", "760M", &[]);
    // Five pieces of 32 MiB are in use, or six.
    site.settles("7", 256, |lent| lent == 160 || lent == 192);
    assert_eq!(site.limits("8").0, 760, "the owner has its limit");
    program.has(399);
    assert_eq!(program.says(), "399", "it goes on with what it has");
    // One that wants more ends at its limit, as without a pool.
    program.has(600);
    assert_eq!(program.says(), "");
    assert_eq!(program.child.wait().unwrap().signal(), Some(9));
    assert_eq!(site.limits("8").0, 760);
}

#[test]
fn an_owner_has_what_a_borrower_does_not_use_and_nobody_ends() {
    let Some(mut site) = site("unused", "4G") else { return };
    let reserve = format!("MemoryPoolReserve={}M", whole(&site) - 1024);
    site.settings.push(reserve);
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    site.grows(&mut program, "7", 0, 400);
    program.has(100);
    assert_eq!(program.says(), "100");
    site.opens("8", "760M", &[]);
    site.settles("7", 256, |lent| lent == 0);
    assert_eq!(site.limits("8").0, 760);
    program.has(101);
    assert_eq!(program.says(), "101", "it goes on");
    assert!(!site.said().contains("killed"), "{}", site.said());
}

#[test]
fn the_next_hold_knows_what_a_killed_one_has_lent() {
    let Some(mut site) = site("killed", "4G") else { return };
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    site.grows(&mut program, "7", 0, 400);
    let (lent, limits) = (site.lent(), site.limits("7"));
    assert_eq!(limits.0, 256 + lent);
    site.killed();
    // It is not taken for the job's own limit.
    site.lends(&[]);
    program.has(20);
    assert_eq!(program.says(), "20");
    site.settles("7", 256, |lent| lent == 0);
    // The one before was killed between its record and the limit.
    site.grows(&mut program, "7", 20, 400);
    let lent = site.lent();
    site.killed();
    let (job, step) = site.directories("7");
    program.has(20);
    assert_eq!(program.says(), "20");
    let write = |dir: &Path| until("v1 takes it", || fs::write(file(dir), (256 * MIB).to_string()).is_ok());
    write(&job);
    write(&step);
    assert_eq!((site.lent(), site.limits("7").0), (lent, 256));
    site.lends(&[]);
    site.settles("7", 256, |lent| lent == 0);
    // A site that lends nothing any more has all back.
    site.grows(&mut program, "7", 20, 300);
    site.killed();
    site.settings.retain(|setting| !setting.starts_with("MemoryPool="));
    site.lends(&[]);
    program.has(20);
    assert_eq!(program.says(), "20");
    site.settles("7", 256, |lent| lent == 0);
}

#[test]
fn who_changes_a_jobs_memory_is_alone_and_what_a_job_is_resized_to_is_its_own() {
    let Some(mut site) = site("resized", "4G") else { return };
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    site.grows(&mut program, "7", 0, 300);
    site.settles("7", 256, |lent| lent >= 64);
    let (job, step) = site.directories("7");
    let records = jobfence::record::Records::open(&site.path("run")).unwrap();
    let later = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let lock = records.lock_memory(fs::metadata(&job).unwrap().ino(), later).unwrap();
    let before = site.limits("7");
    program.has(before.0 - 4);
    assert_eq!(program.says(), (before.0 - 4).to_string());
    // It would be lent more in a moment.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(site.limits("7"), before);
    drop(lock);
    until("more is lent", || site.limits("7").0 > before.0);
    site.settles("7", 256, |lent| lent > 0);
    // Just what it has.
    let own = site.limits("7").0;
    site.out(&["resize", "7", "--memory", &format!("{own}M")]);
    site.settles("7", own, |lent| lent == 0);
    program.has(20);
    assert_eq!(program.says(), "20");
    site.grows(&mut program, "7", 20, own - 4);
    site.settles("7", own, |lent| lent > 0);
    program.has(20);
    assert_eq!(program.says(), "20");
    // A step that began when nobody could give it what the job is lent has all of the job's own, and so of what that is now.
    site.killed();
    assert!(site.lent() > 0);
    for name in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"] {
        if step.join(name).exists() {
            until("it fits", || fs::write(step.join(name), (own * MIB).to_string()).is_ok());
        }
    }
    site.out(&["resize", "7", "--memory", &format!("{}M", own + 200)]);
    assert_eq!(site.limits("7"), (own + 200, own + 200));
    site.lends(&[]);
    site.settles("7", own + 200, |lent| lent == 0);
}

#[test]
fn while_a_job_has_no_limit_or_a_record_cannot_be_read_nothing_more_is_lent() {
    let Some(mut site) = site("unknown", "4G") else { return };
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    site.grows(&mut program, "7", 0, 300);
    site.settles("7", 256, |lent| lent >= 64);
    // A record that says nothing: the next hold knows not what is lent, and takes nothing for a grant.
    let lent = site.lent();
    site.killed();
    let record = site.path("run-series/broken.lent");
    fs::write(&record, "{").unwrap();
    site.lends(&[]);
    until("the log", || site.said().contains("what was lent before is not known"));
    assert_eq!((site.limits("7").0, site.lent()), (256 + lent, lent));
    fs::remove_file(&record).unwrap();
    program.has(20);
    assert_eq!(program.says(), "20");
    site.settles("7", 256, |lent| lent == 0);
    // The administrator changes the limit while nothing is known of a loan: that is the job's own.
    let (job, _) = site.directories("7");
    site.grows(&mut program, "7", 20, 280);
    fs::write(file(&job), (600 * MIB).to_string())
        .or_else(|_| {
            fs::write(job.join("memory.memsw.limit_in_bytes"), (600 * MIB).to_string())?;
            fs::write(file(&job), (600 * MIB).to_string())
        })
        .unwrap();
    until("it is the job's own", || site.lent() == 0);
    program.has(20);
    assert_eq!(program.says(), "20");
    assert_eq!(site.limits("7").0, 600);
}

#[test]
fn a_scavenger_has_what_an_owner_has_not_touched_and_ends_when_the_owner_needs_it() {
    let Some(mut site) = Site::new("lend", "scavenger", &["7", ROOTS]) else { return };
    for setting in
        ["MemoryPool=400M", "MemoryPoolReserve=40M", "MemoryPoolUnused=100", "ElasticRAMPercent=1000", "Scavenger=yes"]
    {
        site.settings.push(setting.to_owned());
    }
    let mut owner = site.runs(ROOTS, "300M");
    // A node of 400 MiB, of which all is reserved: 40 are for the system.
    fs::write(file(&site.node()), (400 * MIB).to_string()).unwrap();
    // Five minutes take five seconds.
    let mut hold = site.command(&["hold", "-o", "ReapInterval=86400"]);
    hold.env("JOBFENCE_TEST_IDLE_SPEED", "60");
    site.start_hold(hold);
    let mut scavenger = site.runs("7", "64M");
    // A daemon of the scheduler's, which tells it of the job's end.
    site.children.push(Command::new("sleep").arg("1000").spawn().unwrap());
    site.out(&["attach", "--job", "7", "--any-user", &site.children[0].id().to_string()]);
    site.grows(&mut scavenger, "7", 0, 150);
    // The owner takes what it has reserved, until less than half of what is kept for the system is left.
    let mut has = 0;
    until("the scavenger ends", || {
        if in_use(&site.node()) < 382 {
            has += 2;
            owner.has(has);
            assert_eq!(owner.says(), has.to_string(), "{}", site.said());
        }
        scavenger.child.try_wait().unwrap().is_some()
    });
    assert_eq!(scavenger.child.wait().unwrap().signal(), Some(9));
    let said = site.said();
    assert!(said.contains("job 7 of ") && said.contains("is ended: the node has only"), "{said}");
    assert_eq!(site.children[0].try_wait().unwrap(), None, "root's process lives");
    owner.has(285);
    assert_eq!(owner.says(), "285", "the owner has what it has reserved: {}", site.said());
    assert_eq!(site.limits(ROOTS).0, 300);
    // Its user reads why, and the log has it. What the kernel itself says of the owner is none of that.
    site.children.clear();
    let said = |job: &str| {
        let closed = site.command(&["close", "--job", job]).output().unwrap();
        assert!(closed.status.success(), "{closed:?}");
        String::from_utf8(closed.stderr).unwrap()
    };
    let (of_scavenger, of_owner) = (said("7"), said(ROOTS));
    assert_eq!(of_scavenger.matches(ENDED).count(), 1, "{of_scavenger}");
    assert!(of_scavenger.contains("The job was granted 64.0 MiB, and used "), "{of_scavenger}");
    assert!(!of_owner.contains("jobfence ended"), "{of_owner}");
    let log = fs::read_to_string(site.path("log/usage.jsonl")).unwrap();
    assert_eq!((log.matches(ENDED).count(), log.matches("jobfence ended").count()), (1, 1), "{log}");
}

#[test]
fn who_is_no_scavenger_was_not_ended() {
    let Some(site) = Site::new("lend", "owner", &["7"]) else { return };
    for (setting, is_told) in [("Scavenger=yes", true), ("Scavenger=no", false)] {
        site.opens("7", "64M", &["-o", setting]);
        let note = loan::note(1 << 20, "lent\t\tx", "0 0 0 0 1", Some(("the node ran short", false)));
        mark::set_lent(&Dir::open(&site.directories("7").0).unwrap(), &note).unwrap();
        let closed = site.command(&["close", "--job", "7"]).output().unwrap();
        let said = String::from_utf8(closed.stderr).unwrap();
        assert_eq!(said.contains("jobfence ended this job, since the node ran short"), is_told, "{said}");
    }
}

/// What is in use below, in MiB, without page cache. Not the sums of memory.stat: the kernel brings them up to date every two seconds.
fn in_use(dir: &Path) -> u64 {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let used: u64 = read("memory.usage_in_bytes").or_else(|| read("memory.current")).unwrap().trim().parse().unwrap();
    let stat = read("memory.stat").unwrap();
    let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let caches =
        ["inactive_file", "active_file"].map(|name| of(&format!("total_{name}")).or_else(|| of(name)).unwrap());
    used.saturating_sub(caches.iter().sum()) / MIB
}

#[test]
fn when_the_node_has_no_memory_left_a_borrower_dies_and_no_owner() {
    let Some(mut site) = site("node", "4G") else { return };
    site.lends(&[]);
    let mut owner = site.runs("8", "256M");
    // It is lent something, too, and does not use it.
    site.grows(&mut owner, "8", 0, 235);
    until("it is lent some", || site.limits("8").0 > 256);
    // Three times. Then it is as if nobody were marked: the kernel takes the one that has most.
    for is_marked in [true, true, true, false] {
        owner.has(200);
        assert_eq!(owner.says(), "200");
        let mut borrower = site.runs("7", "64M");
        site.grows(&mut borrower, "7", 0, 100);
        until("it is marked", || rank(&borrower.child) == "999");
        assert_eq!(rank(&owner.child), "0");
        if !is_marked {
            site.killed();
            set_rank(&borrower.child, "0");
        }
        node_has(&site, "8", 320);
        // The owner stays within what it reserved, and together they want more than there is.
        owner.has(240);
        let (dies, lives) = if is_marked { (&mut borrower, &mut owner) } else { (&mut owner, &mut borrower) };
        assert_eq!((dies.says().as_str(), dies.child.wait().unwrap().signal()), ("", Some(9)));
        if is_marked {
            assert_eq!(lives.says(), "240");
        }
        lives.has(90);
        assert_eq!(lives.says(), "90");
        assert_eq!(lives.child.try_wait().unwrap(), None);
        node_has(&site, "8", 4096);
        site.out(&["close", "--job", "7"]);
    }
}

#[test]
fn the_mark_comes_with_a_loan_and_goes_with_it_also_if_hold_was_killed() {
    let Some(mut site) = site("mark", "4G") else { return };
    site.lends(&[]);
    let mut program = site.runs("7", "256M");
    let asleep = |uid| Command::new("sleep").arg("1000").uid(uid).gid(uid).current_dir("/").spawn().unwrap();
    site.children.extend([asleep(site.user("7")), asleep(0), asleep(site.user("7"))]);
    let pid = |site: &Site, at: usize| site.children[at].id().to_string();
    let roots = pid(&site, 1);
    site.out(&["attach", "--job", "7", "--any-user", &pid(&site, 0), &roots]);
    set_rank(&site.children[0], "300");
    let ranks = |site: &Site, program: &Program| {
        let [one, roots, other] = [0, 1, 2].map(|at| rank(&site.children[at]));
        [rank(&program.child), one, roots, other]
    };
    site.grows(&mut program, "7", 0, 235);
    until("it is lent some", || site.limits("7").0 > 256);
    assert_eq!(ranks(&site, &program), ["0", "300", "0", "0"], "and uses none of that");
    site.grows(&mut program, "7", 235, 300);
    until("all are marked but root's", || ranks(&site, &program) == ["999", "999", "0", "0"]);
    // One that comes later has it, too, and the user cannot take it away.
    site.out(&["attach", "--job", "7", &pid(&site, 2)]);
    until("it is marked", || ranks(&site, &program) == ["999", "999", "0", "999"]);
    let take_away = format!("echo 0 > /proc/{}/oom_score_adj", program.child.id());
    let user = site.user("7");
    let done = Command::new("sh").args(["-c", &take_away]).uid(user).gid(user).stderr(Stdio::null()).status();
    assert_eq!(done.unwrap().success(), !may_forbid());
    until("it is marked again", || rank(&program.child) == "999");
    // hold was killed after its record and before its marks.
    site.killed();
    set_rank(&program.child, "0");
    site.lends(&[]);
    until("it is marked again", || rank(&program.child) == "999");
    // What the next hold takes back it unmarks, too; also if nothing is lent any more.
    program.has(20);
    assert_eq!(program.says(), "20");
    site.settles("7", 256, |lent| lent == 0);
    until("no marks", || ranks(&site, &program) == ["0"; 4]);
    let no_record = || {
        fs::read_dir(site.path("run-series"))
            .unwrap()
            .flatten()
            .all(|file| file.file_name().to_str().is_some_and(|name| !name.ends_with(".lent")))
    };
    until("no record", no_record);
    site.grows(&mut program, "7", 20, 300);
    until("it is marked", || rank(&program.child) == "999");
    site.killed();
    let (job, step) = site.directories("7");
    program.has(20);
    assert_eq!(program.says(), "20");
    let write = |dir: &Path| until("v1 takes it", || fs::write(file(dir), (256 * MIB).to_string()).is_ok());
    write(&job);
    write(&step);
    site.lends(&[]);
    until("no marks", || ranks(&site, &program) == ["0"; 4]);
}

#[test]
fn a_second_hold_with_one_run_dir_is_refused_and_the_next_one_waits_for_the_end_of_the_last() {
    let Some(mut site) = site("two", "4G") else { return };
    site.lends(&[]);
    let first = site.hold.take().unwrap();
    let pid = first.id();
    site.children.push(first);
    let ready = std::os::unix::net::UnixDatagram::bind(site.path("ready")).unwrap();
    ready.set_nonblocking(true).unwrap();
    let has_begun = || ready.recv(&mut [0; 64]).is_ok();
    let another = |site: &Site| {
        let mut hold = site.command(&["hold", "-o", "ReapInterval=86400"]);
        hold.env("NOTIFY_SOCKET", site.path("ready"));
        hold
    };
    let hold = another(&site);
    site.start_hold(hold);
    until("it is refused", || {
        assert!(!has_begun(), "two at once");
        site.hold.as_mut().unwrap().try_wait().unwrap().is_some()
    });
    assert_eq!(site.hold.as_mut().unwrap().wait().unwrap().code(), Some(1));
    let said = format!("another 'jobfence hold' (process {pid}) has RunDir={}", site.path("run").display());
    assert!(site.said().contains(&said), "{}", site.said());
    assert_eq!(site.children[0].try_wait().unwrap(), None);
    let mut program = site.runs("7", "256M");
    site.grows(&mut program, "7", 0, 280);
    // systemd starts the next one.
    let hold = another(&site);
    site.start_hold(hold);
    until("it waits", || site.said().matches("; waiting for its end").count() == 2);
    site.children[0].kill().unwrap();
    site.children[0].wait().unwrap();
    until("the next one works", has_begun);
    program.has(20);
    assert_eq!(program.says(), "20");
    site.settles("7", 256, |lent| lent == 0);
}
