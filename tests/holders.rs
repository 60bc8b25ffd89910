// SPDX-License-Identifier: GPL-2.0-or-later
//! A fence that no process holds, or another one than opened it: other processes go on with it, and the janitor removes it when the holder
//! is gone, and only then.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jobfence::config::{Config, Limit, LimitNumbers};
use jobfence::error::Result;
use jobfence::fence::resume::{self, Closed};
use jobfence::fence::{Fence, Opening};
use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller};
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::policy;
use jobfence::record::closer::Closer;
use jobfence::record::holder::Holder;
use jobfence::record::{Record, Records};
use jobfence::scheduler::{Age, Runs, Schedulers, WithoutCgroups};
use jobfence::schedulers::ALL;
use jobfence::sys::process::Owner;

mod common;
use common::soon;

const INVOCATION: &str = "0123456789abcdef0123456789abcdef";

/// Answers for a job as it is told to.
#[derive(Debug)]
struct StandIn(Mutex<Runs>);

static STAND_IN: StandIn = StandIn(Mutex::new(Runs::Yes));
static WITH_STAND_IN: Schedulers = &[&STAND_IN];
const NOBODY: Schedulers = &[];

impl WithoutCgroups for StandIn {
    fn name(&self) -> &'static str {
        "StandIn"
    }
    fn runs(&self, job: &Id, run: u32, _: Age<'_>) -> Runs {
        assert_eq!((job.as_str(), run), ("12[3].host", 2));
        *self.0.lock().unwrap()
    }
}

struct Site {
    config: Config,
    _run: tempfile::TempDir,
    _base: common::Base,
}

/// systemd is never asked.
fn no_units(_: &str, _: &str) -> Runs {
    Runs::Unknown
}

impl Site {
    fn new(test: &str) -> Self {
        let run = tempfile::tempdir().unwrap();
        let base = common::Base::new(&format!("jobfence-test-{}-{test}", std::process::id()));
        let (cgroup_base, run_dir) = (Some(base.name.clone()), run.path().join("run"));
        let config = Config {
            cgroup_base,
            run_dir,
            numbers_per_task: LimitNumbers::with(Limit::Processes, 7),
            ..Config::default()
        };
        Self { config, _run: run, _base: base }
    }

    fn host(&self) -> Host {
        Host::read(&self.config).unwrap()
    }

    fn try_open(&self, schedulers: Schedulers, holder: &Holder, run: u32) -> Result<Fence> {
        let key = JobKey { node: None, uid: 65_534, job: id(), step: Id::new("a.2").unwrap() };
        let host = self.host();
        let opening = Opening { holder: Some(holder), run, ..janitor::opening(&host, &self.config, schedulers, &key) };
        let mut fence = Fence::open(&opening)?;
        let grant = Grant::whole(Some(Cpus::whole(1)), Some(64 << 20));
        let (plan, errors) = policy::plan(&self.config, &grant);
        assert!(errors.is_empty(), "{errors:?}");
        let errors = fence.limit(&plan);
        assert!(errors.is_empty(), "{errors:?}");
        fence.hand_over(None, Default::default())?;
        Ok(fence)
    }

    /// Opened by a process that then appears to be gone.
    fn open(&self, schedulers: Schedulers, holder: &Holder) {
        drop(self.try_open(schedulers, holder, 2).unwrap());
    }

    fn records(&self) -> Records {
        Records::open(&self.config.run_dir).unwrap()
    }

    fn record(&self) -> Option<Record> {
        self.records().of_job(&id()).unwrap().pop()
    }

    fn resume(&self) -> Fence {
        Fence::resume(&self.host(), ALL, self.records(), &self.record().unwrap()).unwrap()
    }

    fn reap(&self, schedulers: Schedulers, who: JanitorCaller<'_>) -> Vec<String> {
        let reaped = janitor::reap(&self.host(), &self.config, schedulers, who, soon()).unwrap();
        assert_eq!(reaped.failed, Vec::<String>::new());
        reaped.removed
    }

    /// Whether all of it exists in every hierarchy that is used; otherwise nothing may.
    fn is_there(&self) -> bool {
        let mut found = Vec::new();
        for hierarchy in &self.host().layout.hierarchies {
            let base = hierarchy.mount.join(self.config.cgroup_base.as_deref().unwrap());
            found.extend(Some(base.join("uid_65534")).filter(|dir: &PathBuf| dir.exists()));
        }
        assert_eq!(found.is_empty(), self.record().is_none(), "{found:?}");
        !found.is_empty()
    }

    fn close(&self, record: &Record) -> Result<Closed> {
        resume::close(&self.host(), ALL, self.records(), record, soon())
    }
}

fn id() -> Id {
    Id::new("12[3].host").unwrap()
}

fn sleep() -> Child {
    Command::new("/bin/sleep").arg("60").spawn().unwrap()
}

#[test]
fn a_fence_is_left_to_the_process_that_closes_it_while_that_lives() {
    let site = Site::new("closer");
    let mut process = Command::new("/bin/sleep").arg("900").spawn().unwrap();
    let owner = Owner::from_pid(&site.host().proc, process.id().cast_signed()).unwrap().unwrap();
    site.open(NOBODY, &Holder::Process(owner));
    let closer = Closer::new(site.records().dir(), process.id()).unwrap();
    process.kill().and_then(|()| process.wait()).unwrap();
    assert_eq!(site.reap(NOBODY, JanitorCaller::Command(no_units)), Vec::<String>::new());
    assert!(site.is_there());
    drop(closer);
    assert_eq!(site.reap(NOBODY, JanitorCaller::Command(no_units)).len(), 1);
    assert!(!site.is_there());
}

/// A launch that wants the fence's name gets that, and no other.
#[test]
fn a_name_is_freed_also_while_a_process_lives_that_would_close_its_fence() {
    let site = Site::new("closer-name");
    let mut process = Command::new("/bin/sleep").arg("900").spawn().unwrap();
    let owner = Owner::from_pid(&site.host().proc, process.id().cast_signed()).unwrap().unwrap();
    site.open(NOBODY, &Holder::Process(owner));
    let _closer = Closer::new(site.records().dir(), process.id()).unwrap();
    process.kill().and_then(|()| process.wait()).unwrap();
    let again = site.try_open(NOBODY, &Holder::Manual, 3).unwrap();
    drop(again);
    let records = site.records().of_job(&id()).unwrap();
    let names: Vec<_> = records.iter().filter_map(|record| record.levels.last().map(String::as_str)).collect();
    assert_eq!(names, ["step_a+2E2"], "the names of the fences");
    assert_eq!(site.record().unwrap().shared.unwrap().run, 3);
    let closed = resume::close(&site.host(), ALL, site.records(), &site.record().unwrap(), soon()).unwrap();
    assert_eq!(closed, Closed::Removed);
}

#[test]
fn another_process_can_do_all_that_the_opening_one_can() {
    let site = Site::new("resume");
    site.open(ALL, &Holder::Manual);
    let record = site.record().unwrap();
    assert_eq!((record.levels[1].as_str(), record.levels[2].as_str()), ("job_12+5B3+5D.host", "step_a+2E2"));
    let mut child = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut fence = site.resume();
    fence.check_whole(&site.host()).unwrap();
    assert_eq!(fence.key().to_string(), "job 12[3].host step a.2");
    let errors = fence.attach(&site.host(), pid, Some(0)).unwrap();
    assert!(errors.is_empty(), "{errors:?}");
    let at = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(at.contains("/uid_65534/job_12+5B3+5D.host/step_a+2E2/task_0"), "{at}");
    drop(fence);
    let fence = site.resume();
    assert_eq!((fence.processes_of_task(), fence.forks_refused(), fence.oom_kills()), (Some(7), 0, 0));
    assert_eq!(fence.cpus(), Some(Cpus::whole(1)));
    assert!(fence.usage() != jobfence::figures::Usage::default());
    // In clock ticks, hundredths of a second.
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(11).unwrap().parse::<u64>().unwrap()
    };
    fence.freeze(soon()).unwrap();
    fence.freeze(soon()).unwrap();
    let frozen = used();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(used(), frozen);
    site.resume().thaw(soon()).unwrap();
    fence.thaw(soon()).unwrap();
    let deadline = soon();
    while used() == frozen {
        assert!(Instant::now() < deadline, "it stays frozen");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Two that began at the same time.
    let mut other = site.resume();
    assert_eq!(site.close(&record), Ok(Closed::Removed));
    assert!(!site.is_there());
    other.close(soon()).unwrap();
    assert_eq!(site.close(&record), Ok(Closed::Gone));
    assert!(child.wait().unwrap().code().is_none(), "killed");
    let mut late = sleep();
    assert!(fence_is_closed(fence, &site, i32::try_from(late.id()).unwrap()));
    late.kill().unwrap();
    late.wait().unwrap();
}

fn fence_is_closed(mut fence: Fence, site: &Site, pid: i32) -> bool {
    fence.attach(&site.host(), pid, Some(1)).is_err()
}

#[test]
fn a_name_that_is_used_again_is_not_closed_by_who_closed_the_earlier_one() {
    let site = Site::new("again");
    site.open(ALL, &Holder::Manual);
    let first = site.record().unwrap();
    let mut late = site.resume();
    let error = site.try_open(ALL, &Holder::Manual, 2).unwrap_err().to_string();
    assert!(error.contains("has a fence already") && error.contains("manual"), "{error}");
    // The next run of the same job overlaps the end of this one.
    let mut next = site.try_open(ALL, &Holder::Manual, 3).unwrap();
    assert!(next.path().unwrap().ends_with("/step_a+2E2.2"));
    next.close(soon()).unwrap();
    assert_eq!(site.close(&first), Ok(Closed::Removed));
    // As if another process had opened it.
    site.open(ALL, &Holder::Manual);
    let mut text = fs::read_to_string(record_file(&site)).unwrap();
    let opener = first.shared.as_ref().unwrap().opener;
    text = text.replace(&format!("opener=process {}", opener.pid), &format!("opener=process {}", opener.pid + 1));
    fs::write(record_file(&site), text).unwrap();
    late.close(soon()).unwrap();
    assert_eq!(site.close(&first), Ok(Closed::Gone));
    assert!(site.is_there(), "it is another's");
    assert_eq!(site.close(&site.record().unwrap()), Ok(Closed::Removed));
    assert!(!site.is_there());
}

fn record_file(site: &Site) -> PathBuf {
    let files = fs::read_dir(&site.config.run_dir).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.to_string_lossy().contains("job_")).last().unwrap()
}

#[test]
fn what_another_boot_has_left_is_a_record_alone() {
    let site = Site::new("boot");
    site.open(ALL, &Holder::Manual);
    let record = site.record().unwrap();
    site.resume().close(soon()).unwrap();
    for is_closed in [true, false] {
        let earlier = Record { boot_id: "another".into(), ..record.clone() };
        assert!(site.records().claim(&earlier).unwrap());
        let error = Fence::resume(&site.host(), ALL, site.records(), &earlier).unwrap_err().to_string();
        assert!(error.contains("has booted since"), "{error}");
        if is_closed {
            assert_eq!(site.close(&earlier), Ok(Closed::AnotherBoot));
            assert_eq!(site.close(&earlier), Ok(Closed::AnotherBoot));
        } else {
            assert_eq!(site.reap(NOBODY, JanitorCaller::Command(no_units)).len(), 1);
        }
        assert!(!site.is_there());
    }
}

#[test]
fn a_fence_that_a_scheduler_holds_goes_when_the_scheduler_says_no() {
    let site = Site::new("scheduler");
    site.open(WITH_STAND_IN, &Holder::scheduler("StandIn").unwrap());
    let says = |runs| *STAND_IN.0.lock().unwrap() = runs;
    for answer in [Runs::Yes, Runs::Unknown, Runs::Yes] {
        says(answer);
        for who in [JanitorCaller::Command(no_units), JanitorCaller::Daemon] {
            assert_eq!(site.reap(WITH_STAND_IN, who), Vec::<String>::new(), "{answer:?}");
            assert!(site.is_there());
        }
    }
    says(Runs::No);
    // The scheduler does not exist, whatever it would say.
    assert_eq!(site.reap(NOBODY, JanitorCaller::Command(no_units)), Vec::<String>::new());
    assert!(site.is_there());
    assert_eq!(site.reap(WITH_STAND_IN, JanitorCaller::Daemon), ["uid_65534/job_12+5B3+5D.host/step_a+2E2"]);
    assert!(!site.is_there());
}

#[test]
fn a_fence_that_a_unit_holds_goes_when_systemd_says_so() {
    let site = Site::new("unit");
    let unit = Holder::unit("a.service", INVOCATION).unwrap();
    fn over(name: &str, invocation: &str) -> Runs {
        assert_eq!((name, invocation), ("a.service", INVOCATION));
        Runs::No
    }
    fn alive(_: &str, _: &str) -> Runs {
        Runs::Yes
    }
    site.open(ALL, &unit);
    for who in [JanitorCaller::Command(no_units), JanitorCaller::Command(alive), JanitorCaller::Daemon] {
        assert_eq!(site.reap(NOBODY, who), Vec::<String>::new());
        assert!(site.is_there());
    }
    assert_eq!(site.reap(NOBODY, JanitorCaller::Command(over)).len(), 1);
    assert!(!site.is_there());
}

#[test]
fn a_fence_that_another_process_holds_goes_with_that() {
    let site = Site::new("process");
    let mut holder = sleep();
    let owner = Owner::from_pid(&site.host().proc, i32::try_from(holder.id()).unwrap()).unwrap().unwrap();
    site.open(ALL, &Holder::Process(owner));
    assert_eq!(site.reap(NOBODY, JanitorCaller::Command(no_units)), Vec::<String>::new());
    assert!(site.is_there());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(site.reap(NOBODY, JanitorCaller::Daemon).len(), 1);
    assert!(!site.is_there());
}

#[test]
fn a_fence_that_nobody_holds_stays_until_it_is_closed() {
    let site = Site::new("manual");
    fn over(_: &str, _: &str) -> Runs {
        Runs::No
    }
    site.open(ALL, &Holder::Manual);
    for who in [JanitorCaller::Command(over), JanitorCaller::Daemon] {
        assert_eq!(site.reap(NOBODY, who), Vec::<String>::new());
    }
    // A fence whose opening did not finish can only be closed.
    let mut record = site.record().unwrap();
    record.shared.as_mut().unwrap().plan = None;
    site.records().replace(&record, soon()).unwrap();
    assert!(site.resume().check_whole(&site.host()).unwrap_err().to_string().contains("not whole"));
    assert_eq!(site.close(&record), Ok(Closed::Removed));
    assert!(!site.is_there());
}
