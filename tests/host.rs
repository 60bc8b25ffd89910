// SPDX-License-Identifier: GPL-2.0-or-later
//! The fence on this host's real cgroups, without a scheduler: as root, below a directory of its own in each hierarchy.
//!
//! Actions of another process (own a step and die, compete for a directory) are done by this same test program, run again with
//! `JOBFENCE_TEST_CHILD` set.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobfence::cgroup::cpuset;
use jobfence::cgroup::disk::Disks;
use jobfence::cgroup::huge_pages::HugePages;
use jobfence::cgroup::io::{self, IoRates, IoRules};
use jobfence::cgroup::kernel::LoadedScheduler;
use jobfence::cgroup::kill::{Members, kill_all};
use jobfence::cgroup::layout::Version;
use jobfence::cgroup::limits::{self, CpuQuota};
use jobfence::cgroup::membership::Membership;
use jobfence::config::{Config, CpuPolicy, Limit, LimitNumbers, Percent, Period, TaskCpus};
use jobfence::cpu_list::CpuList;
use jobfence::fence::Fence;
use jobfence::fence::explain::explain;
use jobfence::fence::limiting::{self, Placing};
use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller};
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::policy::{self, CoreMap, Level, Limits};
use jobfence::schedulers::ALL;
use jobfence::schedulers::slurm::cores::Topology;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::{Owner, is_ending};

mod common;
use common::soon;

/// A configuration with directories of its own, which must be empty again in the end.
struct Site {
    config: Config,
    _run: tempfile::TempDir,
    /// `None` in a child, which must not remove it.
    _base: Option<common::Base>,
}

impl Site {
    fn new(test: &str) -> Self {
        let run = tempfile::tempdir().unwrap();
        let base = common::Base::new(&format!("jobfence-test-{}-{test}", std::process::id()));
        let (cgroup_base, run_dir) = (Some(base.name.clone()), run.path().join("run"));
        Self { config: Config { cgroup_base, run_dir, ..Config::default() }, _run: run, _base: Some(base) }
    }

    /// The same site in a child.
    fn inherited() -> Self {
        let base = std::env::var("JOBFENCE_TEST_BASE").unwrap();
        let run_dir = PathBuf::from(std::env::var("JOBFENCE_TEST_RUN").unwrap());
        let config = Config { cgroup_base: Some(base), run_dir, ..Config::default() };
        Self { config, _run: tempfile::tempdir().unwrap(), _base: None }
    }

    fn base(&self) -> &str {
        self.config.cgroup_base.as_deref().unwrap()
    }

    fn host(&self) -> Host {
        Host::read(&self.config).unwrap()
    }

    fn child(&self, role: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("JOBFENCE_TEST_CHILD", role)
            .env("JOBFENCE_TEST_BASE", self.base())
            .env("JOBFENCE_TEST_RUN", &self.config.run_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// jobfence's directories that exist, below the base, in every hierarchy.
    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for hierarchy in &self.host().layout.hierarchies {
            walk(&hierarchy.mount.join(self.base()), &mut left);
        }
        // That belongs to jobfence hold.
        left.retain(|path| !path.ends_with("hold"));
        if let Ok(records) = fs::read_dir(&self.config.run_dir) {
            left.extend(records.map(|record| record.unwrap().path()).filter(|path| !path.is_dir()));
        }
        left
    }
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), found);
            found.push(entry.path());
        }
    }
}

fn path(fence: &Fence) -> String {
    fence.path().unwrap()
}

fn key(step: &str) -> JobKey {
    JobKey { node: None, uid: 65_534, job: Id::new("1").unwrap(), step: Id::new(step).unwrap() }
}

fn grant(cpus: u32, mib: u64) -> Grant {
    let (cpus, memory) = (Some(Cpus::whole(cpus)), Some(mib << 20));
    Grant::whole(cpus, memory)
}

fn open(site: &Site, step: &str, grant: &Grant) -> Fence {
    let mut fence = common::open(&site.host(), &site.config, &key(step), None).unwrap();
    let (plan, errors) = policy::plan(&site.config, grant);
    assert!(errors.is_empty(), "{errors:?}");
    let errors = fence.limit(&plan);
    assert!(errors.is_empty(), "{errors:?}");
    fence
}

/// The directory of a step, or of its job, in the hierarchy of a controller.
fn dir_of(site: &Site, fence: &Fence, controller: &str, job: bool) -> (Dir, Version) {
    let host = site.host();
    let hierarchy = host.layout.with_controller(controller).unwrap();
    let path = path(fence);
    let path = Path::new(path.trim_start_matches("/"));
    let path = if job { path.parent().unwrap() } else { path };
    (Dir::open(hierarchy.mount.join(path)).unwrap(), hierarchy.version)
}

fn quota(site: &Site, fence: &Fence, job: bool) -> CpuQuota {
    let (dir, version) = dir_of(site, fence, "cpu", job);
    limits::cpu_quota(&dir, version).unwrap().unwrap()
}

/// A process that does nothing, and a second one that it starts in another session when it reads a line.
fn stragglers() -> Child {
    let script = "read line; setsid sleep 1000 & exec sleep 1000";
    Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
}

/// What `jobfence explain` says is what a step finds: values that were never written differ from all of these.
#[test]
fn what_is_explained_is_what_is_written() {
    let _alone = SCAVENGERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut site = Site::new("explain");
    site.config = Config {
        cpu_policy: CpuPolicy::Both,
        cpu_burst: Percent::from_hundredths(5_000),
        scavenger: true,
        max_cpus_per_user: Some(Cpus::whole(3)),
        max_cpus_per_task: TaskCpus::Count(Cpus::from_thousandths(500)),
        max_ram_per_user: Some(300 << 20),
        max_ram_per_task: Some(70 << 20),
        memory_high: Some(Percent::from_hundredths(9_000)),
        numbers: LimitNumbers::with(Limit::Processes, 50),
        numbers_per_user: LimitNumbers::with(Limit::Processes, 60),
        numbers_per_task: LimitNumbers::with(Limit::Processes, 40),
        ..site.config.clone()
    };
    let (plan, errors) = policy::plan(&site.config, &grant(2, 200));
    assert!(errors.is_empty(), "{errors:?}");
    let (lines, errors) = explain(&site.host(), &site.config, &[], &key("0"), &plan, |_| None, false).unwrap();
    assert_eq!(errors, []);
    let mut fence = open(&site, "0", &grant(2, 200));
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    assert_eq!(fence.attach(&site.host(), child.id().cast_signed(), Some(0)).unwrap(), []);
    let mut seen = Vec::new();
    for line in &lines {
        for write in line.writes.as_ref().unwrap() {
            let path = line.dir.join(&write.file);
            let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(found.trim(), write.value, "{}", path.display());
        }
        seen.push((line.limit, line.level));
    }
    for limit in [Limit::Cpu, Limit::Ram, Limit::MemoryHigh, Limit::Processes] {
        for level in [Level::User, Level::Job, Level::Step, Level::Task] {
            assert!(seen.contains(&(limit, level)), "{limit} of the {level} is not explained: {seen:?}");
        }
    }
    let task = Membership::read(&site.host().proc, child.id().cast_signed()).unwrap();
    let cpu = site.host();
    let cpu = cpu.layout.with_controller("cpu").unwrap();
    assert!(task.path_in(cpu).unwrap().ends_with("/idle/uid_65534/job_1/step_0/task_0"), "{task:?}");
    fence.close(soon()).unwrap();
    child.wait().unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// Whether this host has the controller and a test can enable it; reports if not.
fn has_controller(controller: &str) -> bool {
    let host = Host::read(&Config::default()).unwrap();
    if host.layout.with_controller(controller).is_none() {
        common::skip(&format!("no {controller} controller"));
        return false;
    }
    true
}

#[test]
fn a_program_that_makes_groups_beside_its_own_is_fenced_with_them() {
    let site = Site::new("leaf");
    let mut fence = open(&site, "0", &grant(1, 200));
    let mut starter = Command::new("sleep").arg("1000").spawn().unwrap();
    assert_eq!(fence.attach_in(&site.host(), starter.id().cast_signed(), "starter").unwrap(), []);
    let own = Membership::read(&site.host().proc, starter.id().cast_signed()).unwrap();
    let host = site.host();
    let memory = host.layout.with_controller("memory").unwrap();
    assert!(own.path_in(memory).unwrap().ends_with("/job_1/step_0/starter"), "{own:?}");
    // Like HTCondor: in the parent of its own.
    let (step, _) = dir_of(&site, &fence, "memory", false);
    let theirs = step.ensure("htcondor").unwrap().ensure("slot1").unwrap();
    let mut job = Command::new("sleep").arg("1000").spawn().unwrap();
    theirs.write("cgroup.procs", &job.id().to_string()).unwrap();
    fence.close(soon()).unwrap();
    assert!(!step.path().exists(), "{}", step.path().display());
    for child in [&mut starter, &mut job] {
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

#[test]
fn a_step_runs_on_the_cpus_of_its_cores_within_those_of_its_job() {
    if !has_controller("cpuset") {
        return;
    }
    let mut site = Site::new("cores");
    site.config.constrain_cores = true;
    let topology = match Topology::read(&Dir::open("/sys/devices").unwrap()) {
        Ok(topology) if topology.cores() > 1 => topology,
        Ok(_) => return common::skip("one core"),
        Err(error) => return common::skip(&format!("this machine's cores cannot be mapped: {error}")),
    };
    let list = |text: &str| CpuList::parse(text).unwrap();
    let planned = |job: &str, step: &str| {
        let grant = Grant { job_cores: list(job), step_cores: list(step), ..grant(1, 100) };
        let (mut plan, _) = policy::plan(&site.config, &grant);
        policy::pin(&mut plan, &grant, &topology).unwrap();
        plan
    };
    let cpus = |cores: &str| topology.cpus_of(&list(cores)).unwrap();
    let mut first = common::open(&site.host(), &site.config, &key("0"), None).unwrap();
    assert_eq!(first.limit(&planned("0-1", "1")), []);
    let of = |fence: &Fence, job: bool| {
        let (dir, _) = dir_of(&site, fence, "cpuset", job);
        cpuset::cpus(&dir).unwrap().unwrap()
    };
    assert_eq!((of(&first, true), of(&first, false)), (cpus("0-1"), cpus("1")));
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    assert_eq!(first.attach(&site.host(), child.id().cast_signed(), None).unwrap(), []);
    let status = || fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let allowed = || status().lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(list)).unwrap();
    assert_eq!(allowed(), cpus("1"));

    // The job loses a core, and with it the step that has it: v1 would refuse that from the top down.
    let mut second = common::open(&site.host(), &site.config, &key("1"), None).unwrap();
    assert_eq!(second.limit(&planned("0", "0")), []);
    assert_eq!((of(&second, true), of(&second, false)), (cpus("0"), cpus("0")));
    assert_eq!(allowed(), cpus("0"));
    // A directory that belongs to no single job has every CPU.
    let (user, version) = dir_of(&site, &second, "cpuset", true);
    let user = Dir::open(user.path().parent().unwrap()).unwrap();
    assert_eq!(
        cpuset::effective(&user, version).unwrap(),
        list(&fs::read_to_string("/sys/devices/system/cpu/online").unwrap())
    );
    child.kill().unwrap();
    child.wait().unwrap();
    first.close(soon()).unwrap();
    second.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn huge_pages_are_limited_where_they_are_touched_and_where_they_are_reserved() {
    if !has_controller("hugetlb") {
        return;
    }
    let Ok(sizes) = fs::read_dir("/sys/kernel/mm/hugepages") else { return common::skip("no huge pages") };
    let sizes: Vec<String> = sizes.map(|size| size.unwrap().file_name().into_string().unwrap()).collect();
    if !sizes.iter().any(|size| size == "hugepages-2048kB") {
        return common::skip("no huge pages of 2 MiB");
    }
    let mut site = Site::new("hugetlb");
    site.config.max_huge_pages = HugePages::parse("2M:7M").unwrap();
    let host = site.host();
    let hierarchy = host.layout.with_controller("hugetlb").unwrap();
    // Restored in the end: it may be off in cgroup2's root.
    let control = hierarchy.mount.join("cgroup.subtree_control");
    let was_on = hierarchy.version == Version::V1 || fs::read_to_string(&control).unwrap().contains("hugetlb");
    if host.systemd && !was_on {
        return common::skip("systemd does not hand the hugetlb controller down");
    }
    let mut fence = open(&site, "0", &grant(1, 100));
    for job in [true, false] {
        let (dir, version) = dir_of(&site, &fence, "hugetlb", job);
        let (limit, reserved) = match version {
            Version::V2 => ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"),
            Version::V1 => ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes"),
        };
        assert_eq!(dir.read(limit).unwrap().trim(), (6u64 << 20).to_string());
        assert!(!dir.has(reserved) || dir.read(reserved).unwrap().trim() == (6u64 << 20).to_string());
    }
    fence.close(soon()).unwrap();
    site.config.max_huge_pages = HugePages::parse("8K:1M").unwrap();
    let mut fence = common::open(&host, &site.config, &key("0"), None).unwrap();
    let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
    let said: Vec<String> = errors.iter().map(|(limit, error)| format!("{limit}: {error}")).collect();
    assert!(
        said.iter().all(|said| said.contains("no huge pages of the size (value \"8K\")")) && said.len() == 2,
        "{said:?}"
    );
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
    drop(site);
    if !was_on {
        // Fails if another test has it on further down.
        let _ = fs::write(&control, "-hugetlb");
    }
}

#[test]
fn cpus_that_slurm_has_set_stay() {
    if !has_controller("cpuset") || std::thread::available_parallelism().unwrap().get() < 2 {
        return common::skip("one CPU, or no cpuset controller");
    }
    let mut site = Site::new("theircores");
    site.config.constrain_cores = true;
    let list = |text: &str| CpuList::parse(text).unwrap();
    let all = list(&fs::read_to_string("/sys/devices/system/cpu/online").unwrap());
    for (theirs, left) in [(Some("0"), "0"), (None, "1")] {
        let slurms = Slurms::make(&site, &["cpuset"]);
        let (_, step, version) = slurms.job_and_step("cpuset");
        let task = PathBuf::from(step.path()).join("task_0");
        if version == Version::V2 {
            return common::skip("cgroup2 has the cpuset controller: the cases in guests show this");
        }
        // As task/cgroup does on v1, from the top down.
        for dir in task.ancestors().take(5).collect::<Vec<_>>().iter().rev() {
            let inner = dir.ends_with("step_0") || dir.ends_with("task_0");
            let cpus = theirs.filter(|_| inner).map_or_else(|| all.to_string(), str::to_owned);
            fs::write(dir.join("cpuset.mems"), "0").unwrap();
            fs::write(dir.join("cpuset.cpus"), cpus).unwrap();
        }
        let daemon = Membership::read(&site.host().proc, std::process::id().cast_signed()).unwrap();
        let mut fence = common::open(&site.host(), &site.config, &key("0"), Some(&daemon)).unwrap();
        let mut plan = policy::plan(&site.config, &grant(1, 100)).0;
        (plan.job.cores, plan.step.cores) = (Some(list("1")), Some(list("1")));
        assert_eq!(fence.limit(&plan), []);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        slurms.take(child.id());
        let errors = fence.attach(&site.host(), child.id().cast_signed(), None).unwrap();
        assert_eq!(errors, []);
        assert_eq!(cpuset::cpus(&step).unwrap(), Some(list(left)));
        child.kill().unwrap();
        child.wait().unwrap();
        fence.close(soon()).unwrap();
        slurms.remove();
        assert_eq!(site.left(), Vec::<PathBuf>::new());
    }
}

#[test]
fn from_beginning_to_end() {
    let site = Site::new("life");
    let mut fence = open(&site, "0", &grant(2, 200));
    assert_eq!(quota(&site, &fence, true), CpuQuota { quota_us: 200_000, period_us: 100_000 });
    assert_eq!(quota(&site, &fence, false), CpuQuota { quota_us: 200_000, period_us: 100_000 });
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    fence.attach(&site.host(), child.id().cast_signed(), None).unwrap();
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    assert!(cgroups.matches(&path(&fence)).count() >= 1, "{cgroups}");
    assert!(fence.usage().cpu.is_some());
    fence.close(soon()).unwrap();
    fence.close(soon()).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn no_more_processes_than_the_site_allows() {
    let mut site = Site::new("pids");
    site.config.numbers = LimitNumbers::with(Limit::Processes, 3);
    let mut fence = open(&site, "0", &grant(1, 100));
    for job in [false, true] {
        let (dir, _) = dir_of(&site, &fence, "pids", job);
        assert_eq!(limits::processes(&dir).unwrap(), Some(3), "{job}");
    }
    assert_eq!((fence.processes(), fence.forks_refused()), (Some(3), 0));
    // The shell itself, and what it can start: it reports "Cannot fork" for the third.
    let script = "read line; sleep 1000 & sleep 1000 & sleep 1000 & wait";
    let mut child = Command::new("sh");
    let mut child = child.args(["-c", script]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    fence.attach(&site.host(), child.id().cast_signed(), None).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(fence.forks_refused(), 1);
    let used = fence.usage();
    assert_eq!(used.forks_refused, Some(1));
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// The kernel accepts its pid for `cgroup.procs` but does not move it; the caller must learn why.
#[test]
fn a_process_that_is_about_to_end_is_known_before_it_is_a_zombie() {
    let site = Site::new("ending");
    let host = site.host();
    let mut fence = open(&site, "0", &grant(1, 100));
    // So much memory that the kernel needs a while to free it.
    let script = "import time; held = b'x' * 300_000_000; print('SAYS', len(held), flush=True); time.sleep(300)";
    let mut comes_upon_it = || {
        let mut child = Command::new("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        read_line(&mut child);
        assert!(!is_ending(&host.proc, pid));
        child.kill().unwrap();
        while !is_ending(&host.proc, pid) {}
        fence.attach(&host, pid, None).unwrap_err();
        let is_no_zombie = Owner::from_pid(&host.proc, pid).unwrap().is_some();
        child.wait().unwrap();
        assert!(is_ending(&host.proc, pid), "gone");
        is_no_zombie
    };
    // On a busy machine this may come too late.
    assert!((0..50).any(|_| comes_upon_it()));
    fence.close(soon()).unwrap();
}

#[test]
fn a_second_step_with_the_same_name_has_its_own_directories() {
    let site = Site::new("twice");
    let mut first = open(&site, "0", &grant(1, 100));
    let mut second = open(&site, "0", &grant(1, 100));
    assert!(path(&first).ends_with("/step_0"), "{:?}", path(&first));
    assert!(path(&second).ends_with("/step_0.2"), "{}", path(&second));
    first.close(soon()).unwrap();
    assert!(site.left().iter().any(|path| path.ends_with("job_1/step_0.2")));
    second.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_later_step_never_raises_the_jobs_cpus_and_may_lower_them() {
    let site = Site::new("never");
    // The extern step, told nothing but cores, comes first; then the batch step; then srun, which counts whole cores.
    let mut first = open(&site, "extern", &grant(4, 100));
    let mut batch = open(&site, "batch", &grant(1, 100));
    assert_eq!(quota(&site, &batch, true).quota_us, 100_000);
    assert!(quota(&site, &first, false).quota_us >= 100_000);
    let mut srun = open(&site, "0", &grant(2, 100));
    assert_eq!(quota(&site, &srun, true).quota_us, 100_000);
    for fence in [&mut first, &mut batch, &mut srun] {
        fence.close(soon()).unwrap();
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_step_that_made_its_job_sees_what_another_has_limited_meanwhile() {
    let site = Site::new("meanwhile");
    let (plan, _) = policy::plan(&site.config, &grant(4, 100));
    let mut first = common::open(&site.host(), &site.config, &key("0"), None).unwrap();
    let mut second = open(&site, "1", &grant(1, 100));
    let errors = first.limit(&plan);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(quota(&site, &second, true).quota_us, 100_000);
    for fence in [&mut first, &mut second] {
        fence.close(soon()).unwrap();
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_job_whose_memory_grows_and_shrinks_is_limited_anew() {
    let site = Site::new("memory");
    for mib in [100, 400, 50] {
        let mut fence = open(&site, "0", &grant(1, mib));
        let mut again = open(&site, "1", &grant(1, mib * 2));
        assert_eq!(again.memory_levels()[1].limit, Some((mib * 2) << 20));
        again.close(soon()).unwrap();
        fence.close(soon()).unwrap();
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_jobs_memory_is_lowered_unless_processes_of_another_step_run() {
    let mut site = Site::new("lower");
    site.config.memory_high = Some(Percent::HUNDRED);
    let limits =
        |fence: &Fence| fence.memory_levels().iter().map(|level| level.limit.unwrap() >> 20).collect::<Vec<_>>();
    // A lower high limit would slow running processes down, as a lower limit would kill them.
    let high = |fence: &Fence| {
        let (job, version) = dir_of(&site, fence, "memory", true);
        limits::memory_limit(&job, limits::high_file(version)).unwrap().unwrap() >> 20
    };
    // Exists from the job's beginning to its end.
    let mut empty = open(&site, "extern", &grant(1, 400));
    let mut first = open(&site, "0", &grant(1, 300));
    assert_eq!((limits(&first), high(&first)), (vec![300, 300], 300));
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    first.attach(&site.host(), child.id().cast_signed(), None).unwrap();
    let mut second = open(&site, "1", &grant(1, 100));
    assert_eq!((limits(&second), high(&second)), (vec![100, 300], 300));
    second.close(soon()).unwrap();
    first.close(soon()).unwrap();
    child.wait().unwrap();
    let mut third = open(&site, "2", &grant(1, 100));
    assert_eq!((limits(&third), high(&third)), (vec![100, 100], 100));
    third.close(soon()).unwrap();
    empty.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// No cgroup file tells: the kernel accepts the quota and shows it.
#[test]
fn a_quota_that_the_loaded_scheduler_ignores_is_not_set() {
    let mut site = Site::new("scheduler");
    let loaded = |everybody| LoadedScheduler { name: "simple".to_owned(), everybody };
    let errors = |site: &Site, everybody| {
        let host = Host { scheduler: Some(loaded(everybody)), ..site.host() };
        let mut fence = common::open(&host, &site.config, &key("0"), None).unwrap();
        let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
        fence.close(soon()).unwrap();
        errors
    };
    let found = errors(&site, true);
    assert!(matches!(&found[..], [(Limit::Cpu, error)] if error.to_string().contains("\"simple\"")), "{found:?}");
    assert_eq!(errors(&site, false), []);
    site.config.constrain_cpu_quota = false;
    assert_eq!(errors(&site, true), []);
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn who_lives_in_a_directory_without_a_record_is_not_killed() {
    let site = Site::new("stranger");
    let host = site.host();
    let hierarchy = &host.hierarchies(&["cpu"]).unwrap()[0];
    let theirs = hierarchy.mount.join(site.base()).join("uid_65534/job_1/step_0");
    fs::create_dir_all(theirs.join("empty")).unwrap();
    let mut stranger = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    fs::write(theirs.join("cgroup.procs"), stranger.id().to_string()).unwrap();
    let mut fence = open(&site, "0", &grant(1, 100));
    assert!(path(&fence).ends_with("/step_0.2"), "{}", path(&fence));
    fence.close(soon()).unwrap();
    assert!(stranger.try_wait().unwrap().is_none(), "killed");
    assert!(theirs.join("empty").is_dir(), "a directory of theirs was removed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    // No process is there any more: the name is free.
    while fs::read_to_string(theirs.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty()) {}
    let mut fence = open(&site, "0", &grant(1, 100));
    assert!(path(&fence).ends_with("/step_0"), "{}", path(&fence));
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_a_dead_owner_left_is_removed_and_what_a_living_one_has_is_not() {
    let site = Site::new("dead");
    let mut mine = open(&site, "0", &grant(1, 100));
    let mut owner = site.child("own a step with a straggler and say so");
    let straggler = read_line(&mut owner);
    assert!(site.left().iter().any(|path| path.ends_with("job_1/step_7")), "{:?}", site.left());
    assert_eq!(
        janitor::reap(&site.host(), &site.config, ALL, JanitorCaller::command(), soon()).unwrap().removed,
        Vec::<String>::new()
    );
    owner.kill().unwrap();
    owner.wait().unwrap();
    let reaped = janitor::reap(&site.host(), &site.config, ALL, JanitorCaller::command(), soon()).unwrap();
    assert_eq!(reaped.removed, ["uid_65534/job_1/step_7"]);
    assert_eq!((reaped.alive, reaped.failed), (1, Vec::new()));
    assert!(!is_running(&straggler), "{straggler} lives");
    assert!(site.left().iter().any(|path| path.ends_with("job_1/step_0")));
    mine.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn the_name_of_a_dead_owner_is_free_again() {
    let site = Site::new("free");
    let mut owner = site.child("own a step with a straggler and say so");
    read_line(&mut owner);
    owner.kill().unwrap();
    owner.wait().unwrap();
    let mut fence = open(&site, "7", &grant(1, 100));
    assert!(path(&fence).ends_with("/step_7"), "{}", path(&fence));
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_record_of_another_boot_is_forgotten_and_kills_nobody() {
    let site = Site::new("boot");
    let mut fence = open(&site, "0", &grant(1, 100));
    let record = site.config.run_dir.join("uid_65534,job_1,step_0");
    let text = fs::read_to_string(&record).unwrap();
    let other: String = text
        .lines()
        .map(|line| if line.starts_with("boot_id=") { "boot_id=other\n".to_owned() } else { format!("{line}\n") })
        .collect();
    fs::write(&record, other).unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    fence.attach(&site.host(), child.id().cast_signed(), None).unwrap();
    let reaped = janitor::reap(&site.host(), &site.config, ALL, JanitorCaller::command(), soon()).unwrap();
    assert_eq!(reaped.removed.len(), 1);
    assert!(child.try_wait().unwrap().is_none(), "the child was killed");
    let mut fence = fence;
    fence.close(soon()).unwrap();
    child.wait().unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_record_that_is_not_understood_is_left_alone() {
    let site = Site::new("strange");
    let mut fence = open(&site, "0", &grant(1, 100));
    let record = site.config.run_dir.join("uid_65534,job_1,step_5");
    fs::write(&record, "jobfence-record 9\n").unwrap();
    let reaped = janitor::reap(&site.host(), &site.config, ALL, JanitorCaller::command(), soon()).unwrap();
    assert_eq!((reaped.removed.len(), reaped.alive, reaped.failed.len()), (0, 1, 1));
    fs::remove_file(record).unwrap();
    fence.close(soon()).unwrap();
}

#[test]
fn a_step_of_another_release_keeps_its_name_while_it_may_live() {
    let site = Site::new("release");
    let mut first = open(&site, "0", &grant(1, 100));
    let record = site.config.run_dir.join("uid_65534,job_1,step_0");
    let ours = fs::read_to_string(&record).unwrap();
    let change = |from: &str, to: &str| {
        let text = ours.replace("jobfence-record 1\n", "jobfence-record 3\n").replace(from, to);
        fs::write(&record, text).unwrap();
    };
    // Of a live owner, and of a dead one.
    for start in ["owner_start=", "owner_start=1"] {
        change("owner_start=", start);
        let mut second = open(&site, "0", &grant(1, 100));
        assert!(path(&second).ends_with("/step_0.2"), "{start}: {}", path(&second));
        second.close(soon()).unwrap();
        assert!(record.exists(), "{start}");
    }
    // Another boot's directories are gone, whatever they were.
    change("boot_id=", "boot_id=other");
    let reaped = janitor::reap(&site.host(), &site.config, ALL, JanitorCaller::command(), soon()).unwrap();
    assert_eq!((reaped.removed.len(), reaped.failed.len()), (1, 0));
    assert!(!record.exists());
    first.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn steps_that_begin_and_end_at_once_do_not_disturb_each_other() {
    let site = Site::new("race");
    let mut children: Vec<Child> = (0..4).map(|_| site.child("begin and end steps")).collect();
    for child in &mut children {
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// In a directory, and in all below it.
fn process_count(dir: &Path) -> usize {
    let within = fs::read_dir(dir).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let own = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines().count();
    own + within.map(|entry| process_count(&entry.path())).sum::<usize>()
}

#[test]
fn a_fork_storm_is_ended_with_and_without_cgroup_kill() {
    for long_way in [false, true] {
        let site = Site::new(if long_way { "storm" } else { "storm2" });
        let mut fence = open(&site, "0", &grant(1, 100));
        let storm = "import os\nfor _ in range(20):\n if os.fork() == 0:\n  while True:\n   if os.fork(): os._exit(0)\n\
                     while True: pass";
        let mut child = Command::new("sh")
            .args(["-c", "read go; exec python3 -S -c \"$0\"", storm])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        fence.attach(&site.host(), child.id().cast_signed(), None).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let (dir, _) = dir_of(&site, &fence, "memory", false);
        common::until("the storm", || process_count(dir.path()) >= 10);
        if long_way {
            kill_all(Members { unified: None, freezer: None, any: &dir }, soon()).unwrap();
        }
        fence.close(soon()).unwrap();
        child.wait().unwrap();
        assert_eq!(site.left(), Vec::<PathBuf>::new());
    }
}

/// As if another thread of the step daemon had given up root's rights for all of them.
fn kill_without_rights(dir: &Dir) -> jobfence::error::Result<()> {
    std::thread::scope(|scope| {
        let without_rights = scope.spawn(|| {
            let (same, nobody): (libc::c_long, libc::c_long) = (-1, 65_534);
            // SAFETY: three numbers, of which two say "as it is"; the call itself changes this thread alone, which ends here.
            unsafe { libc::syscall(libc::SYS_setresuid, same, nobody, same) };
            kill_all(Members { unified: None, freezer: None, any: dir }, soon())
        });
        without_rights.join().unwrap()
    })
}

#[test]
fn who_cannot_be_seen_is_not_gone() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new("unseen");
    let mut fence = open(&site, "0", &grant(1, 100));
    let (dir, _) = dir_of(&site, &fence, "memory", false);
    fs::create_dir(dir.path().join("a")).unwrap();
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    fs::write(dir.path().join("a/cgroup.procs"), child.id().to_string()).unwrap();
    let with_mode = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    with_mode(0o711);
    let killed = kill_without_rights(&dir);
    with_mode(0o755);
    fence.close(soon()).unwrap();
    child.wait().unwrap();
    let error = killed.unwrap_err();
    assert!(error.is_about_rights(), "{error}");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn many_and_deep_directories_are_looked_through_with_few_descriptors() {
    let site = Site::new("few");
    let mut child = site.child("kill with few descriptors");
    let said = read_line(&mut child);
    child.wait().unwrap();
    assert_eq!(said, "Ok(())");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_process_that_may_not_be_killed_is_no_process_that_does_not_die() {
    use std::os::unix::process::CommandExt;
    let site = Site::new("rights");
    let mut fence = open(&site, "0", &grant(1, 100));
    let mut child = Command::new("sleep").arg("1000").uid(1234).spawn().unwrap();
    fence.attach(&site.host(), child.id().cast_signed(), None).unwrap();
    let (dir, _) = dir_of(&site, &fence, "memory", false);
    let begun = Instant::now();
    let error = kill_without_rights(&dir).unwrap_err();
    assert!(begun.elapsed() < common::PATIENCE / 2, "waited for it: {error}");
    assert!(error.is_about_rights(), "{error}");
    assert!(error.to_string().contains(&format!("pid {}", child.id())), "{error}");
    fence.close(soon()).unwrap();
    child.wait().unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn directories_made_inside_a_step_go_with_it() {
    let site = Site::new("inside");
    let mut fence = open(&site, "0", &grant(1, 100));
    let (dir, _) = dir_of(&site, &fence, "memory", false);
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let mut child = stragglers();
    let members = dir.path().join("a/b/cgroup.procs");
    fs::write(&members, child.id().to_string()).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    while fs::read_to_string(&members).unwrap().lines().count() < 2 {
        std::thread::yield_now();
    }
    fence.close(soon()).unwrap();
    child.wait().unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// A disk on a file. It disappears with its last user: the file has no name, and only this holds the device.
struct Loop {
    device: String,
    _open: fs::File,
}

impl Loop {
    fn new(mib: u64) -> Option<Self> {
        // Not below /tmp if that is in memory: then there is no O_DIRECT.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        if !made.status.success() {
            return None;
        }
        let open = fs::File::open(&device).unwrap();
        // Done at the last close of the device, however this process ends.
        assert!(Command::new("losetup").args(["--detach", &device]).status().unwrap().success());
        Some(Self { device, _open: open })
    }
}

/// A dd in the fence, which waits for a line, without the page cache.
fn dd(site: &Site, fence: &mut Fence, arguments: &[&str]) -> Child {
    let mut child = Command::new("sh");
    let script = "read line; exec dd bs=512K status=none \"$@\"";
    let child = child.args(["-c", script, "sh"]).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    fence.attach(&site.host(), child.id().cast_signed(), Some(0)).unwrap();
    child
}

fn let_go(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
}

fn io_site(test: &str, rules: &str) -> Site {
    let mut site = Site::new(test);
    site.config.io_max = IoRules::parse(rules).unwrap();
    site
}

/// The scheduler bfq for a loop device. The next user gets back its previous scheduler.
struct Scheduler {
    file: String,
    before: String,
}

impl Scheduler {
    fn bfq(disk: &Loop) -> Option<Self> {
        let file = format!("/sys/block/{}/queue/scheduler", disk.device.trim_start_matches("/dev/"));
        let all = fs::read_to_string(&file).ok()?;
        let before = all.split_whitespace().find(|word| word.starts_with('['))?.trim_matches(['[', ']']).to_owned();
        fs::write(&file, "bfq").ok()?;
        Some(Self { file, before })
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, &self.before);
    }
}

/// A disk with the scheduler bfq changes what a scavenger gets on the whole host.
static SCAVENGERS: Mutex<()> = Mutex::new(());

/// Weights have an effect only on a disk with the scheduler bfq: a loop device of the test gets it.
#[test]
fn a_scavenger_has_the_least_weight_of_io() {
    let _alone = SCAVENGERS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(disk) = Loop::new(8) else { return common::skip("no loop device can be made") };
    let Some(_scheduler) = Scheduler::bfq(&disk) else { return common::skip("no scheduler bfq") };
    let mut site = Site::new("scavenger");
    site.config.scavenger = true;
    if site.host().layout.with_controller("io").is_none() {
        return common::skip("no controller of I/O");
    }
    let mut fence = open(&site, "0", &grant(1, 100));
    let (job, version) = dir_of(&site, &fence, "io", true);
    let file = if version == Version::V2 { "io.bfq.weight" } else { "blkio.bfq.weight" };
    let class = job.child("../..").unwrap();
    assert!(class.path().ends_with("idle/uid_65534/job_1/../.."), "{}", class.path().display());
    for dir in [&class, &job] {
        let text = dir.read(file).unwrap();
        assert_eq!(text.trim_start_matches("default ").trim(), "1", "{}", dir.path().display());
    }
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// Each takes so many seconds by the kernel's limit: never less, and once no more. A busy machine can make it longer. Returns the number of
/// that attempt.
fn takes<const N: usize>(seconds: f64, what: &str, mut once: impl FnMut() -> [Duration; N]) -> u64 {
    for time in 1..=20 {
        let took = once().map(|took| took.as_secs_f64() / seconds);
        println!("{what}: {took:?} of {seconds} s");
        assert!(took.iter().all(|took| *took > 0.85), "{what} took {took:?} of {seconds} s");
        if took.iter().all(|took| *took < 1.15) {
            return time;
        }
    }
    panic!("{what} never took {seconds} s, but more")
}

#[test]
fn who_reads_and_writes_a_disk_keeps_to_his_rate() {
    const MIB: u64 = 1 << 20;
    let Some(disk) = Loop::new(64) else { return common::skip("no loop device can be made") };
    let device = disk.device.as_str();
    let site = io_site("io", &format!("{device} rbps=8M wbps=4M"));
    let host = site.host();
    if host.layout.with_controller("io").is_none() {
        return common::skip("no controller of I/O");
    }
    let mut fences = ["0", "1"].map(|job| {
        let key = JobKey { job: Id::new(job).unwrap(), ..key("0") };
        let mut fence = common::open(&host, &site.config, &key, None).unwrap();
        let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
        assert!(errors.is_empty(), "{errors:?}");
        fence
    });
    let (dir, version) = dir_of(&site, &fences[0], "io", false);
    let number = Disks::read(&host.proc).unwrap().of(Path::new(device)).unwrap();
    let rates = IoRates { rbps: Some(8 * MIB), wbps: Some(4 * MIB), ..IoRates::default() };
    assert_eq!(io::max(&dir, version, number).unwrap(), rates);
    assert_eq!(fences[0].io(), Some(&site.config.io_max));
    // Two jobs at once, each as fast as it may be: the limit is for each, not for both together.
    let [reads, writes] = [
        ["if=DISK", "of=/dev/null", "iflag=direct", "count=48"],
        ["if=/dev/zero", "of=DISK", "oflag=direct", "count=24"],
    ]
    .map(|arguments| {
        let arguments = arguments.map(|argument| argument.replace("DISK", device));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        takes(3.0, &format!("{arguments:?}"), || {
            let mut children = fences.each_mut().map(|fence| dd(&site, fence, &arguments));
            let begun = Instant::now();
            children.iter_mut().for_each(let_go);
            children.map(|mut child| {
                assert!(child.wait().unwrap().success());
                begun.elapsed()
            })
        })
    });
    let used = fences[0].usage();
    let (read, written) = used.read.zip(used.written).unwrap();
    // A write passes the loop device and then the disk that holds its file.
    assert!((24 * MIB * reads..=(48 * reads + 2) * MIB).contains(&read), "{reads} times: {used:?}");
    assert!((12 * MIB * writes..=(24 * writes + 2) * MIB).contains(&written), "{writes} times: {used:?}");
    for fence in &mut fences {
        fence.close(soon()).unwrap();
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_is_on_no_disk_is_said_and_the_rest_is_throttled() {
    let Some(disk) = Loop::new(8) else { return common::skip("no loop device can be made") };
    let device = disk.device.as_str();
    let site = io_site("io-none", &format!("/dev/shm rbps=1M; {device} riops=50; /nowhere/at/all wiops=1"));
    let host = site.host();
    let mut fence = common::open(&host, &site.config, &key("0"), None).unwrap();
    let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
    let said: Vec<String> = errors.iter().map(|(limit, error)| format!("{limit}: {error}")).collect();
    let (dir, version) = dir_of(&site, &fence, "io", false);
    let number = Disks::read(&host.proc).unwrap().of(Path::new(device)).unwrap();
    assert_eq!(io::max(&dir, version, number).unwrap(), IoRates { riops: Some(50), ..IoRates::default() });
    assert_eq!(fence.io().unwrap().to_string(), format!("{device} riops=50"));
    fence.close(soon()).unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("I/O: /dev/shm is on /dev/shm (tmpfs of tmpfs), which is kept in memory"), "{said:?}");
    assert!(said[1].starts_with("I/O: find /nowhere: No such file or directory"), "{said:?}");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn each_task_has_its_own_rate_within_its_steps() {
    let Some(disk) = Loop::new(32) else { return common::skip("no loop device can be made") };
    let device = disk.device.as_str();
    let mut site = io_site("io-task", &format!("{device} rbps=8M riops=900"));
    site.config.io_max_per_task = IoRules::parse(&format!("{device} rbps=2M wiops=70")).unwrap();
    let mut fence = open(&site, "0", &grant(1, 100));
    let arguments = [&format!("if={device}"), "of=/dev/null", "iflag=direct", "count=12"];
    let (step, version) = dir_of(&site, &fence, "io", false);
    let number = Disks::read(&site.host().proc).unwrap().of(Path::new(device)).unwrap();
    let rates = |dir: &Dir| io::max(dir, version, number).unwrap();
    // v1 checks only the process's own directory.
    let riops = Some(900).filter(|_| version == Version::V1);
    let of_task = IoRates { rbps: Some(2 << 20), wiops: Some(70), riops, ..IoRates::default() };
    takes(3.0, "a task", || {
        let mut child = dd(&site, &mut fence, &arguments);
        let begun = Instant::now();
        let_go(&mut child);
        assert_eq!(rates(&step.child("task_0").unwrap()), of_task);
        assert!(child.wait().unwrap().success());
        [begun.elapsed()]
    });
    assert_eq!(rates(&step), IoRates { rbps: Some(8 << 20), riops: Some(900), ..IoRates::default() });
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_v1_cannot_throttle_together_is_said() {
    let Some(disk) = Loop::new(8) else { return common::skip("no loop device can be made") };
    let mut site = Site::new("io-user");
    site.config.io_max_per_user = IoRules::parse(&format!("{} rbps=1M", disk.device)).unwrap();
    let mut fence = common::open(&site.host(), &site.config, &key("0"), None).unwrap();
    let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
    let (step, version) = dir_of(&site, &fence, "io", false);
    let user = Dir::open(step.path().parent().unwrap().parent().unwrap()).unwrap();
    let number = Disks::read(&site.host().proc).unwrap().of(Path::new(&disk.device)).unwrap();
    let shown = [&user, &step].map(|dir| io::max(dir, version, number).unwrap().rbps);
    fence.close(soon()).unwrap();
    match version {
        Version::V1 => {
            assert_eq!(shown, [None, Some(1 << 20)]);
            assert!(errors[0].1.to_string().contains("cannot be throttled together"), "{errors:?}");
        }
        Version::V2 => assert_eq!((shown, errors), ([Some(1 << 20), None], vec![])),
    }
}

#[test]
fn a_job_has_a_weight_of_io_where_the_kernel_has_any() {
    let mut site = Site::new("io-weight");
    site.config.io_weight = Some(50);
    let mut fence = common::open(&site.host(), &site.config, &key("0"), None).unwrap();
    let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
    let (job, version) = dir_of(&site, &fence, "io", true);
    let user = Dir::open(job.path().parent().unwrap()).unwrap();
    let shown = [&job, &user].map(|dir| io::weight(dir, version));
    fence.close(soon()).unwrap();
    match shown {
        [None, _] => assert!(errors[0].1.to_string().contains("this kernel has no weights of I/O"), "{errors:?}"),
        both => assert_eq!((both, errors), ([Some(50), Some(50)], vec![])),
    }
}

/// Otherwise the weight of an ended job would count for its user's other jobs as long as they run.
#[test]
fn when_a_job_ends_its_users_weight_of_io_is_that_of_the_others() {
    let mut site = Site::new("io-weights");
    site.config.io_weight = Some(50);
    let plan = policy::plan(&site.config, &grant(1, 100)).0;
    let begin = |job: &str| {
        let key = JobKey { job: Id::new(job).unwrap(), ..key("0") };
        let mut fence = common::open(&site.host(), &site.config, &key, None).unwrap();
        fence.limit(&plan);
        fence
    };
    let (mut first, mut second) = (begin("1"), begin("2"));
    let (job, version) = dir_of(&site, &first, "io", true);
    let user = Dir::open(job.path().parent().unwrap()).unwrap();
    let both = io::weight(&user, version);
    second.close(soon()).unwrap();
    let one = io::weight(&user, version);
    first.close(soon()).unwrap();
    if both.is_none() {
        return common::skip("this kernel has no weights of I/O");
    }
    assert_eq!((both, one), (Some(100), Some(50)));
}

/// The kernel first shares CPU time among users: a user's directory has the weight of all jobs in it.
#[test]
fn a_user_weighs_what_the_users_jobs_weigh_and_less_when_one_has_ended() {
    let mut site = Site::new("cpu-weights");
    site.config.cpu_policy = CpuPolicy::Weight;
    let plan = policy::plan(&site.config, &grant(2, 100)).0;
    let begin = |job: &str| {
        let key = JobKey { job: Id::new(job).unwrap(), ..key("0") };
        let mut fence = common::open(&site.host(), &site.config, &key, None).unwrap();
        assert_eq!(fence.limit(&plan), []);
        fence
    };
    let (mut first, mut second) = (begin("1"), begin("2"));
    let (job, version) = dir_of(&site, &first, "cpu", true);
    let user = Dir::open(job.path().parent().unwrap()).unwrap();
    // v1 stores a weight in other units, with rounding.
    let weights = || [&job, &user].map(|dir| limits::cpu_weight(dir, version).unwrap());
    let of_two = weights();
    second.close(soon()).unwrap();
    let of_one = weights();
    first.close(soon()).unwrap();
    assert_eq!((of_two, of_one), ([20, 40], [20, 20]));
}

#[test]
fn a_users_quota_may_be_said_in_another_period_while_he_has_jobs() {
    let mut site = Site::new("period");
    site.config.max_cpus_per_user = Some(Cpus::whole(2));
    let mut first = open(&site, "0", &grant(2, 100));
    site.config.cpu_quota_period = Period::from_micros(200_000).unwrap();
    // The period first would leave the user one CPU, and the user's job has two.
    site.config.max_cpus_per_user = Some(Cpus::from_thousandths(2500));
    let mut second = open(&site, "1", &grant(2, 100));
    let (job, version) = dir_of(&site, &first, "cpu", true);
    let user = Dir::open(job.path().parent().unwrap()).unwrap();
    let found = limits::cpu_quota(&user, version).unwrap().map(CpuQuota::cpus);
    second.close(soon()).unwrap();
    first.close(soon()).unwrap();
    assert_eq!(found, Some(Cpus::from_thousandths(2500)));
}

/// A job that spins on as many CPUs as were granted loses next to nothing by the quota. Tested with short periods, where it loses most
/// without slack; in relation to what it used, since other work of this machine can only reduce that.
#[test]
fn who_uses_all_that_was_granted_is_not_throttled() {
    let mut site = Site::new("slack");
    site.config.cpu_quota_period = Period::from_micros(2_000).unwrap();
    let mut fence = open(&site, "0", &grant(1, 100));
    let (job, version) = dir_of(&site, &fence, "cpu", true);
    let has_burst = job.has(limits::burst_file(version));
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    assert_eq!(fence.attach(&site.host(), child.id().cast_signed(), None).unwrap(), []);
    let throttled_of_job = || {
        let stat = job.read("cpu.stat").unwrap();
        let number = |name| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let micros = number("throttled_usec ").map(Duration::from_micros);
        micros.or_else(|| number("throttled_time ").map(Duration::from_nanos)).unwrap()
    };
    let sum = || {
        let usage = fence.usage();
        (usage.cpu.unwrap(), usage.throttled.unwrap() + throttled_of_job())
    };
    // If other work takes processors away, the kernel hands out the remaining quota in parts larger than a period has. So there must be a
    // moment in which it does not; without the slack there is none.
    let lost_of_all = || {
        let before = sum();
        common::until("half a second of CPU time", || sum().0 - before.0 >= Duration::from_millis(500));
        let after = sum();
        let (used, lost) = (after.0 - before.0, after.1 - before.1);
        (lost > (used + lost) / 200).then(|| format!("throttled for {lost:?} beside {used:?} of CPU time"))
    };
    let found: Vec<_> = (0..20).map_while(|_| lost_of_all()).collect();
    fence.close(soon()).unwrap();
    child.wait().unwrap();
    if !has_burst {
        return common::skip("this kernel saves no CPU time for later");
    }
    assert!(found.len() < 20, "{found:?}");
}

/// With OnError=warn the job runs, with all limits that could be set.
#[test]
fn a_job_is_limited_where_its_user_cannot_be() {
    let mut site = Site::new("user-fails");
    site.config.max_cpus_per_user = Some(Cpus::whole(4));
    let fence = common::open(&site.host(), &site.config, &key("0"), None).unwrap();
    let (job, version) = dir_of(&site, &fence, "cpu", true);
    let mut fence = fence;
    // v1 refuses more than the directory around has.
    let base = Dir::open(job.path().parent().and_then(Path::parent).unwrap()).unwrap();
    let around = CpuQuota { quota_us: 200_000, period_us: 100_000 };
    limits::set_cpu_quota(&base, version, around).unwrap();
    let errors = fence.limit(&policy::plan(&site.config, &grant(1, 100)).0);
    let found = [quota(&site, &fence, true), quota(&site, &fence, false)].map(CpuQuota::cpus);
    fence.close(soon()).unwrap();
    let failed = errors.iter().filter(|(limit, _)| *limit == Limit::Cpu).count();
    assert_eq!(failed, usize::from(version == Version::V1), "{errors:?}");
    assert_eq!(found, [Cpus::whole(1); 2]);
}

#[test]
fn what_nobody_limits_costs_nothing() {
    let site = Site::new("nothing");
    let mut child = site.child("set what nobody limits without descriptors");
    assert_eq!(read_line(&mut child), "[]");
    child.wait().unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_missing_controller_is_named() {
    let site = Site::new("missing");
    let mut host = site.host();
    for hierarchy in &mut host.layout.hierarchies {
        hierarchy.controllers.retain(|has| has != "memory");
    }
    let mut fence = common::open(&host, &site.config, &key("0"), None).unwrap();
    let (plan, _) = policy::plan(&site.config, &grant(1, 100));
    let errors = fence.limit(&plan);
    let limits: Vec<Limit> = errors.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(limits, [Limit::Ram, Limit::Swap]);
    let error = errors[0].1.to_string();
    fence.close(soon()).unwrap();
    assert!(error.contains("the memory controller is in no cgroup hierarchy of this host"), "{error}");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_controller_that_is_not_handed_down_is_named_with_the_line_to_add() {
    let site = Site::new("given");
    let host = site.host();
    let mut spare = ["pids", "hugetlb", "io", "misc"].into_iter();
    let found = host.layout.unified().and_then(|unified| Some((unified, spare.find(|name| unified.has(name))?)));
    let Some((unified, controller)) = found else {
        return common::skip("no cgroup2 with a controller that our directories do not need");
    };
    let base = unified.mount.join(site.base());
    let child = base.join("given/below");
    fs::create_dir_all(&child).unwrap();
    let error =
        jobfence::cgroup::handing_down::enable(&Dir::open(&child).unwrap(), unified, &[controller], false).unwrap_err();
    fs::remove_dir(&child).unwrap();
    fs::remove_dir(child.parent().unwrap()).unwrap();
    let said = error.to_string();
    assert!(said.contains(&format!("{} (value", child.display())), "{said}");
    assert!(said.contains(&format!("does not have the {controller} controller")), "{said}");
    assert!(said.contains("/cgroup.subtree_control lacks it: "), "{said}");
    // Not as if the directory had disappeared, which would be tried again.
    assert_eq!(error.kernel_errno(), None);
}

#[test]
fn nothing_is_left_when_a_step_cannot_be_made() {
    let site = Site::new("half");
    let mut host = site.host();
    // The last hierarchy is not where it is said to be, after the others have been made.
    let memory = host.layout.hierarchies.iter_mut().find(|h| h.has("memory")).unwrap();
    memory.mount = PathBuf::from("/proc");
    let error = common::open(&host, &site.config, &key("0"), None).unwrap_err().to_string();
    assert!(error.contains("not a cgroup file system"), "{error}");
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn no_descriptor_is_left_over() {
    let site = Site::new("fds");
    let mut child = site.child("count descriptors over 200 steps");
    let said = read_line(&mut child);
    assert_eq!(said, "same", "descriptors before and after");
    child.wait().unwrap();
}

fn read_line(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The child's test harness prints a few lines of its own.
    lines.find_map(|line| line.ok()?.strip_prefix("SAYS ").map(str::to_owned)).unwrap()
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Limits this process's descriptors, and returns the previous limit.
fn rlimit(soft: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes a structure of the right size.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, soft);
    // SAFETY: the kernel reads a structure of the right size.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    before
}

/// Not a test: what the children of the tests above do.
#[test]
fn child() {
    let Ok(role) = std::env::var("JOBFENCE_TEST_CHILD") else { return };
    let site = Site::inherited();
    match role.as_str() {
        "own a step with a straggler and say so" => {
            let mut fence = open(&site, "7", &grant(1, 100));
            // Never waited for: this process is killed.
            #[allow(clippy::zombie_processes)]
            let straggler = Command::new("setsid").args(["sleep", "1000"]).stdout(Stdio::null()).spawn().unwrap();
            fence.attach(&site.host(), straggler.id().cast_signed(), None).unwrap();
            println!("\nSAYS {}", straggler.id());
            loop {
                std::thread::park();
            }
        }
        "begin and end steps" => {
            for round in 0..100 {
                let mut fence = open(&site, &(round % 3).to_string(), &grant(1 + round % 2, 100));
                fence.close(soon()).unwrap();
            }
        }
        "count descriptors over 200 steps" => {
            let count = || fs::read_dir("/proc/self/fd").unwrap().count();
            open(&site, "9", &grant(1, 100)).close(soon()).unwrap();
            let before = count();
            for _ in 0..200 {
                open(&site, "9", &grant(1, 100)).close(soon()).unwrap();
            }
            println!("\nSAYS {}", if count() == before { "same" } else { "different" });
        }
        "set what nobody limits without descriptors" => {
            let mut fence = open(&site, "0", &grant(1, 100));
            let (dir, _) = dir_of(&site, &fence, "memory", false);
            let host = site.host();
            let before = rlimit(0);
            let mut errors = Vec::new();
            for hierarchy in &host.layout.hierarchies {
                for level in [Level::User, Level::Job, Level::Step, Level::Task] {
                    let nothing = Limits::default();
                    limiting::set(&dir, hierarchy, level, Placing::Own, &nothing, |_| true, &mut errors);
                }
            }
            rlimit(before);
            fence.close(soon()).unwrap();
            println!("\nSAYS {errors:?}");
        }
        "kill with few descriptors" => {
            let mut fence = open(&site, "0", &grant(1, 1000));
            let (dir, _) = dir_of(&site, &fence, "memory", false);
            let deep = "b/".repeat(25);
            // More processes than descriptors, in two places.
            let many = "read go; for i in $(seq 200); do sleep 1000 & done; echo; wait";
            let mut shells = Vec::new();
            for place in ["a", &deep] {
                fs::create_dir_all(dir.path().join(place)).unwrap();
                let mut shell = Command::new("sh");
                let mut shell = shell.args(["-c", many]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                fs::write(dir.path().join(place).join("cgroup.procs"), shell.id().to_string()).unwrap();
                shell.stdin.take().unwrap().write_all(b"\n").unwrap();
                std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
                shells.push(shell);
            }
            let limit = libc::rlimit { rlim_cur: 330, rlim_max: 330 };
            // SAFETY: the kernel reads a structure of the right size.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
            let killed = kill_all(Members { unified: None, freezer: None, any: &dir }, soon());
            fence.close(soon()).unwrap();
            for shell in &mut shells {
                shell.wait().unwrap();
            }
            println!("\nSAYS {killed:?}");
        }
        other => panic!("unknown role {other}"),
    }
}

/// Directories like those of Slurm's own plugins, in the hierarchies of these controllers, or in cgroup2 as Slurm tracks processes there
/// (`TRACKED`), below the test's base.
struct Slurms {
    tasks: Vec<(PathBuf, Version)>,
}

/// Stands for cgroup2 in place of a controller: on hybrid hosts it has none.
const TRACKED: &str = "";

impl Slurms {
    fn make(site: &Site, controllers: &[&str]) -> Self {
        let layout = site.host().layout;
        let mut tasks = Vec::new();
        for controller in controllers {
            let hierarchy = match *controller {
                TRACKED => layout.unified(),
                controller => layout.with_controller(controller),
            };
            let hierarchy = hierarchy.unwrap();
            let task = match hierarchy.version {
                Version::V1 => {
                    hierarchy.mount.join(format!("slurm_{}", site.base())).join("uid_65534/job_1/step_0/task_0")
                }
                Version::V2 => hierarchy.mount.join(site.base()).join("x_slurmstepd.scope/job_1/step_0/user/task_0"),
            };
            fs::create_dir_all(&task).unwrap();
            if !tasks.iter().any(|(known, _)| *known == task) {
                tasks.push((task, hierarchy.version));
            }
        }
        Self { tasks }
    }

    fn take(&self, pid: u32) {
        for (task, _) in &self.tasks {
            fs::write(task.join("cgroup.procs"), pid.to_string()).unwrap();
        }
    }

    /// The directories of the job and of its step's tasks.
    fn job_and_step(&self, controller: &str) -> (Dir, Dir, Version) {
        let has = |(task, version): &&(PathBuf, Version)| {
            *version == Version::V2 || task.to_string_lossy().contains(controller)
        };
        let (task, version) = self.tasks.iter().find(has).unwrap();
        let step = task.parent().unwrap();
        let job = if *version == Version::V1 { step.parent() } else { step.parent().and_then(Path::parent) };
        (Dir::open(job.unwrap()).unwrap(), Dir::open(step).unwrap(), *version)
    }

    /// As Slurm does it: one rmdir for each, which fails if a foreign directory is inside.
    fn remove(&self) {
        for (task, _) in &self.tasks {
            // task_0, step_0, job_1, and on v1 uid_65534, on v2 user; and the first.
            for dir in task.ancestors().take(5) {
                fs::remove_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
            }
        }
    }
}

#[test]
fn where_the_scheduler_has_its_own_directories_those_are_limited() {
    let site = Site::new("overlay");
    let daemon = Membership::read(&site.host().proc, std::process::id().cast_signed()).unwrap();
    // jobfence's directories come first, as on v1 and with task/cgroup: what Slurm will do cannot be seen from its daemon.
    let mut fence = common::open(&site.host(), &site.config, &key("0"), Some(&daemon)).unwrap();
    let (plan, _) = policy::plan(&site.config, &grant(1, 100));
    assert_eq!(fence.limit(&plan), vec![]);
    let before = site.left().len();
    let slurms = Slurms::make(&site, &["cpu", "memory"]);
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    slurms.take(child.id());
    let place = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    assert_eq!(fence.attach(&site.host(), child.id().cast_signed(), None).unwrap(), vec![]);

    let (job, step, version) = slurms.job_and_step("cpu");
    let quota = |dir: &Dir| limits::cpu_quota(dir, version).unwrap().map(|quota| quota.quota_us);
    // Slurm's daemons are in the job's directory on v2, and get one CPU more.
    assert_eq!(quota(&job), Some(if version == Version::V1 { 100_000 } else { 200_000 }));
    assert_eq!(quota(&step), Some(100_000));
    let (job, step, version) = slurms.job_and_step("memory");
    let file = if version == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
    assert_eq!(limits::memory_limit(&job, file).unwrap(), None);
    assert_eq!(limits::memory_limit(&step, file).unwrap(), Some(100 << 20));
    assert_eq!(fence.cpus(), Some(Cpus::whole(1)));
    assert!(fence.usage().cpu.is_some());

    // No process was moved out of Slurm's directories, and jobfence's are gone there.
    let after = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    for line in place.lines().filter(|line| line.contains("slurm")) {
        assert!(after.contains(line), "{line} is not in {after}");
    }
    let ours = site.left().iter().filter(|path| !path.to_string_lossy().contains("slurm")).count();
    assert!(ours < before, "{ours} of {before} directories are left");

    // Each later task's place is checked, too.
    let mut untracked = Command::new("sleep").arg("1000").spawn().unwrap();
    let error = fence.attach(&site.host(), untracked.id().cast_signed(), None).unwrap_err().to_string();
    assert!(error.contains("is not where Slurm tracks its step"), "{error}");

    for child in [&mut child, &mut untracked] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    fence.close(soon()).unwrap();
    slurms.remove();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn limits_that_the_scheduler_has_set_stay() {
    let mut site = Site::new("theirs");
    // On v1 jobfence's would limit the sum of both.
    site.config.allowed_swap_space = Percent::from_hundredths(5000);
    let slurms = Slurms::make(&site, &["memory"]);
    let daemon = Membership::read(&site.host().proc, std::process::id().cast_signed()).unwrap();
    let mut fence = common::open(&site.host(), &site.config, &key("0"), Some(&daemon)).unwrap();
    let (plan, _) = policy::plan(&site.config, &grant(1, 100));
    assert_eq!(fence.limit(&plan), vec![]);
    let (_, step, version) = slurms.job_and_step("memory");
    let file = if version == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
    if version == Version::V2 {
        // Slurm enables the controllers that it writes to.
        for dir in step.path().ancestors().skip(1).take(3).collect::<Vec<_>>().iter().rev() {
            fs::write(dir.join("cgroup.subtree_control"), "+memory").unwrap();
        }
    }
    fs::write(step.path().join(file), (200u64 << 20).to_string()).unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    slurms.take(child.id());
    assert_eq!(fence.attach(&site.host(), child.id().cast_signed(), None).unwrap(), vec![]);
    assert_eq!(limits::memory_limit(&step, file).unwrap(), Some(200 << 20));
    child.kill().unwrap();
    child.wait().unwrap();
    fence.close(soon()).unwrap();
    slurms.remove();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn another_steps_directory_is_not_limited_for_this_one() {
    let site = Site::new("other");
    let slurms = Slurms::make(&site, &["cpu"]);
    let daemon = Membership::read(&site.host().proc, std::process::id().cast_signed()).unwrap();
    let other_job = JobKey { job: Id::new("2").unwrap(), ..key("0") };
    // On v2 a job's directory need not have its number, and only root can move a task there.
    let others = if slurms.tasks[0].1 == Version::V1 { vec![key("1"), other_job] } else { vec![key("1")] };
    for other in others {
        let mut fence = common::open(&site.host(), &site.config, &other, Some(&daemon)).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        slurms.take(child.id());
        let error = fence.attach(&site.host(), child.id().cast_signed(), None).unwrap_err().to_string();
        assert!(error.contains("another step's cgroup"), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
        fence.close(soon()).unwrap();
    }
    slurms.remove();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// As if a Slurm of its own was started within a job: its slurmd and step daemons are where the job's task was.
#[test]
fn a_step_daemon_within_another_step_leaves_that_alone() {
    let site = Site::new("nested");
    let host = site.host();
    let mut controllers = vec!["cpu"];
    controllers.extend(host.layout.unified().map(|_| TRACKED));
    for controller in controllers {
        let slurms = Slurms::make(&site, &[controller]);
        let (task, version) = &slurms.tasks[0];
        let mut outer = Command::new("sleep").arg("1000").spawn().unwrap();
        slurms.take(outer.id());
        let daemon = Membership::read(&host.proc, outer.id().cast_signed()).unwrap();
        let other_job = JobKey { job: Id::new("2").unwrap(), ..key("0") };
        // On v2 a job's name says little (SLUID); but a daemon is never beside its tasks.
        let others =
            if *version == Version::V2 { vec![key("1"), other_job, key("0")] } else { vec![key("1"), other_job] };
        for other in others {
            let opened = common::open(&host, &site.config, &other, Some(&daemon)).map(|mut fence| {
                let (plan, _) = policy::plan(&site.config, &grant(1, 100));
                fence.limit(&plan);
                fence.close(soon())
            });
            assert!(outer.try_wait().unwrap().is_none(), "{other} in {} ended it", task.display());
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("another step's cgroup") && error.contains("started within a job"), "{error}");
            if controller == "cpu" {
                let (job, step, version) = slurms.job_and_step("cpu");
                // On v2 the controller is not enabled, and must not be.
                let quota = |dir: &Dir| limits::cpu_quota(dir, version).ok().flatten();
                assert_eq!((quota(&job), quota(&step)), (None, None), "{other}");
            }
        }
        outer.kill().unwrap();
        outer.wait().unwrap();
        slurms.remove();
    }
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_step_daemon_in_its_own_leaf_shows_where_its_step_is() {
    let site = Site::new("leaf");
    let host = site.host();
    if host.layout.unified().is_none() {
        return common::skip("no cgroup2, where a step daemon has a leaf of its own");
    }
    let slurms = Slurms::make(&site, &[TRACKED]);
    let step = slurms.tasks[0].0.ancestors().nth(2).unwrap();
    let leaf = step.join("slurm");
    fs::create_dir(&leaf).unwrap();
    let mut daemon = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(leaf.join("cgroup.procs"), daemon.id().to_string()).unwrap();
    let member = Membership::read(&host.proc, daemon.id().cast_signed()).unwrap();
    let mut task = Command::new("sleep").arg("1000").spawn().unwrap();
    slurms.take(task.id());
    let mut fence = common::open(&host, &site.config, &key("0"), Some(&member)).unwrap();
    assert!(fence.has_overlay(), "{}", fence.placement());
    fence.close(soon()).unwrap();
    assert_eq!(task.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(daemon.try_wait().unwrap().is_none());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    fs::remove_dir(&leaf).unwrap();
    slurms.remove();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// On v1 a step daemon is in its job's directory: another process shows where its step is.
#[test]
fn who_has_only_looked_where_a_process_is_ends_nobody_there() {
    let site = Site::new("looked");
    let host = site.host();
    let slurms = Slurms::make(&site, &["cpu"]);
    let (job, _, version) = slurms.job_and_step("cpu");
    if version == Version::V2 {
        common::skip("no cgroup v1, where a step daemon is in its job's directory");
    } else {
        let daemon = Command::new("sleep").arg("1000").spawn().unwrap();
        job.write("cgroup.procs", &daemon.id().to_string()).unwrap();
        let other = Command::new("sleep").arg("1000").spawn().unwrap();
        slurms.take(other.id());
        let member = |child: &Child| Membership::read(&host.proc, child.id().cast_signed()).unwrap();
        let mut fence = common::open(&host, &site.config, &key("1"), Some(&member(&daemon))).unwrap();
        fence.look_from(&member(&other));
        assert!(fence.placement().contains("job_1/step_0"), "{}", fence.placement());
        fence.close(soon()).unwrap();
        for mut child in [daemon, other] {
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    slurms.remove();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// From now on this thread has its own copy of the descriptors, and shares the memory with the others.
fn with_descriptors_of_its_own() {
    // SAFETY: takes a flag and no memory; this thread closes nothing that another one has opened.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
}

/// With contain_spank tasks are attached in a process with the step daemon's memory and a copy of its descriptors.
#[test]
fn giving_way_in_a_process_with_other_descriptors_leaves_none_behind() {
    let site = Site::new("shared");
    let host = site.host();
    let count = || fs::read_dir("/proc/thread-self/fd").unwrap().count();
    let ours = Membership::read(&host.proc, std::process::id().cast_signed()).unwrap();
    let slurms = Slurms::make(&site, &["cpu"]);
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    slurms.take(child.id());
    // A separate descriptor table for this thread: it does not contain other tests' descriptors.
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| {
            with_descriptors_of_its_own();
            let before = count();
            let mut fence = common::open(&host, &site.config, &key("0"), Some(&ours)).unwrap();
            std::thread::scope(|scope| {
                let contained = scope.spawn(|| {
                    with_descriptors_of_its_own();
                    fence.attach(&host, child.id().cast_signed(), None).unwrap();
                });
                contained.join().unwrap();
            });
            assert!(fence.has_overlay());
            fence.close(soon()).unwrap();
            drop(fence);
            assert_eq!(count(), before, "descriptors");
        });
        daemon.join().unwrap();
    });
    child.wait().unwrap();
    slurms.remove();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_name_that_never_becomes_free_is_given_up() {
    let site = Site::new("again");
    let mut fence = open(&site, "0", &grant(1, 100));
    let record = |again: u32| {
        let name = if again == 1 { "step_0".to_owned() } else { format!("step_0.{again}") };
        (site.config.run_dir.join(format!("uid_65534,job_1,{name}")), name)
    };
    // This process owns every possible name.
    let text = fs::read_to_string(record(1).0).unwrap();
    for again in 2..=101 {
        let (file, name) = record(again);
        fs::write(file, text.replace("step_0\n", &format!("{name}\n"))).unwrap();
    }
    let error =
        common::open(&site.host(), &site.config, &key("0"), None).map(|mut fence| fence.close(soon())).unwrap_err();
    assert!(error.to_string().contains("a hundred times"), "{error}");
    (2..=101).for_each(|again| fs::remove_file(record(again).0).unwrap());
    fence.close(soon()).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}

/// Here a device that does not exist; if no device can be opened at all, it is a record that may not be read.
#[test]
fn a_record_that_cannot_be_read_keeps_its_name() {
    let site = Site::new("unread");
    open(&site, "0", &grant(1, 100)).close(soon()).unwrap();
    // A miscellaneous device with a number that no driver has.
    let (kind, number) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::makedev(10, 250));
    let record = site.config.run_dir.join("uid_65534,job_1,step_0");
    nix::sys::stat::mknod(&record, kind, nix::sys::stat::Mode::S_IRUSR, number).unwrap();
    let mut fence = open(&site, "0", &grant(1, 100));
    assert!(path(&fence).ends_with("/step_0.2"), "{}", path(&fence));
    fence.close(soon()).unwrap();
    fs::remove_file(record).unwrap();
    assert_eq!(site.left(), Vec::<PathBuf>::new());
}
