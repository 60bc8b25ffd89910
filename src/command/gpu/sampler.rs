// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds out which GPUs are which job's, and asks their drivers with each sample of the steps, if a job may have GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jobfence::config::{Config, Loaded};
use jobfence::facts::Gpus;
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::job::{Id, JobOnNode, Name};
use jobfence::record::job::JobRecords;
use jobfence::report::usage_log::UsageLog;

use super::answer::{NvidiaGpu, ProbeAnswer, ProbeQuestion};
use super::dmem::{self, CountedMemory};
use super::figures::{GpuUse, JobGpus, Moment};
use super::prober::Prober;
use super::{drm_name, files, nvidias};
use crate::idle::{IdleJob, IdleKeys, IdleKind, IdleLook, follow, keys_of, speed, states, time_between};
use crate::kept;
use crate::living::described;

/// The most processes that a question names: it has to fit into a pipe at once.
const MOST_PROCESSES: usize = 6000;

/// What `jobfence hold` knows of the GPUs of live jobs.
#[derive(Default)]
pub struct GpuSampler {
    prober: Prober,
    /// What is known of each job, by its key.
    jobs: BTreeMap<String, JobGpus>,
    /// The jobs of the question that has no answer yet.
    asked: Option<AskedGpus>,
    has_taken_over: bool,
}

/// The jobs at the time of a question.
struct AskedGpus {
    at: f64,
    interval: Duration,
    config: Config,
    jobs: BTreeMap<String, LiveJob>,
}

/// A job that is alive.
#[derive(Debug, Default)]
struct LiveJob {
    node: Option<String>,
    uid: Option<u32>,
    job: String,
    directory: PathBuf,
    started: f64,
    granted: Option<u64>,
    idle_keys: IdleKeys,
    /// Whether its processes are stopped or frozen.
    is_stopped: bool,
    /// The devices of its GPUs. `None`: not known.
    devices: Option<Vec<String>>,
    pids: BTreeSet<i32>,
    /// The GPU memory that the kernel has counted, by the GPU's address.
    counted: BTreeMap<String, CountedMemory>,
}

impl GpuSampler {
    /// Asks about the GPUs of these steps' jobs, and ends what is kept of jobs that are gone.
    pub fn look(&mut self, (config, loaded): (&Config, Option<&Loaded>), host: &Host, steps: &[LivingStep<'_>]) {
        self.take_over(&config.run_dir);
        let Some(interval) = config.sample_interval else { return };
        let mut jobs = match may_have_gpus(config, host, steps) {
            true => live_jobs((config, loaded), host, steps),
            false => BTreeMap::new(),
        };
        self.end_others(config, &jobs);
        let mut question = question(config, host, &jobs);
        if question.is_empty() {
            self.prober.rest();
            return;
        }
        add_processes(&mut jobs, steps, host);
        add_counted(&mut jobs, steps);
        question.pids = pids_of(&jobs);
        if question.pids.len() > MOST_PROCESSES {
            // The question cannot name so many processes. The use by some of them would be too little, so the use of these GPUs stays
            // unknown.
            question.pids.clear();
            question.drm.clear();
        }
        if !self.prober.ask(&question) {
            return;
        }
        self.asked = Some(AskedGpus { at: now(), interval, config: config.clone(), jobs });
    }

    /// What is known of the job with this key.
    pub fn of_job(&self, key: &str) -> Option<&JobGpus> {
        self.jobs.get(key)
    }

    /// The descriptor that becomes readable with an answer.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.prober.fd()
    }

    /// How long an answer may still take.
    pub fn patience(&self) -> Option<Duration> {
        self.prober.patience()
    }

    /// Adds the answer, if it has arrived.
    pub fn hear(&mut self) {
        let answer = self.prober.hear();
        if answer.is_none() && self.prober.patience().is_some() {
            return;
        }
        let Some(asked) = self.asked.take() else { return };
        let answer = answer.filter(|answer| !answer.nvidia.is_empty() || !answer.drm.is_empty());
        let Some(answer) = answer else {
            for job in self.jobs.values_mut() {
                job.gpus.iter_mut().for_each(GpuUse::forget_now);
                keep(&asked.config.run_dir, job);
            }
            return;
        };
        let deadline = Instant::now() + crate::idle::PATIENCE;
        for (key, live) in &asked.jobs {
            self.add(key, live, &asked, &answer, deadline);
        }
    }

    /// Keeps what is known so far: sampling is off.
    pub fn end(&mut self, config: &Config) {
        self.take_over(&config.run_dir);
        self.asked = None;
        self.prober.rest();
        std::mem::take(&mut self.jobs).values().for_each(|job| finish(config, job));
    }

    /// Continues with what an earlier process has kept.
    fn take_over(&mut self, run_dir: &Path) {
        if !std::mem::replace(&mut self.has_taken_over, true) {
            self.jobs = kept::taken_over(run_dir).unwrap_or_else(|error| {
                log::error!("cannot go on with the figures of GPUs: {error}");
                BTreeMap::new()
            });
        }
    }

    /// Ends what is kept of jobs that are gone. A job that was not found may still be alive: its directory shows that.
    fn end_others(&mut self, config: &Config, living: &BTreeMap<String, LiveJob>) {
        self.jobs.retain(|key, job| {
            let inode = std::fs::symlink_metadata(&job.directory).map(|found| found.ino());
            let is_over = match inode {
                // Another run of the job has a new directory of the same name.
                Ok(inode) => inode != job.inode && living.contains_key(key),
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if is_over {
                finish(config, job);
            }
            !is_over
        });
    }

    fn add(&mut self, key: &str, live: &LiveJob, asked: &AskedGpus, answer: &ProbeAnswer, deadline: Instant) {
        let Some(inode) = std::fs::symlink_metadata(&live.directory).ok().map(|found| found.ino()) else { return };
        let new = !self.jobs.contains_key(key);
        let job = self.jobs.entry(key.to_owned()).or_insert_with(|| JobGpus {
            node: live.node.clone(),
            uid: live.uid,
            job: live.job.clone(),
            directory: live.directory.display().to_string(),
            inode,
            started: live.started,
            looked: live.started,
            ..JobGpus::default()
        });
        // Only counters know what happened during a pause of this program.
        let (counted, is_next) = time_between(job.looked, asked.at, asked.interval);
        let passed = if new { counted.min(asked.interval.as_secs_f64()) } else { counted };
        job.leave_out(asked.at - job.looked - passed);
        let moment = Moment { at: asked.at, passed };
        (job.looked, job.granted) = (asked.at, live.granted);
        job.idle_after = live.idle_keys.gpu_after.map(|after| after.as_secs());
        let others = OtherJobs(asked.jobs.iter().filter(|(other, _)| *other != key).map(|(_, job)| job).collect());
        let mut heard = add_nvidia(job, (live, &others), &answer.nvidia, moment);
        heard.extend(add_drm(job, (live, &others), answer, moment));
        if job.gpus.is_empty() {
            self.jobs.remove(key);
            return;
        }
        // A GPU without an answer has fallen off the bus, or the job does not have it any more.
        job.gpus.iter_mut().filter(|gpu| !heard.contains(&gpu.device)).for_each(GpuUse::forget_now);
        if live.is_stopped {
            // A stopped job cannot use its GPUs. So it is not idle.
            job.gpus.iter_mut().for_each(|gpu| gpu.idle_since = None);
        }
        job.note_idle();
        let (idle, all_idle) = (job.idle(), job.all_idle());
        let look = IdleLook { idle, all_idle, passed: passed * speed(), is_next };
        let (after, action) = (live.idle_keys.gpu_after.unwrap_or_default(), live.idle_keys.gpu_action);
        if let Some(step) = job.decision.look(look, after, action) {
            let which = IdleJob { node: job.node.clone(), uid: job.uid, job: job.job.clone() };
            let what = (IdleKind::Gpu, look.idle.unwrap_or_default(), after);
            follow(&asked.config, &which, what, (step, action), &mut job.decision, deadline);
        }
        keep(&asked.config.run_dir, job);
    }
}

/// The jobs that live beside one.
struct OtherJobs<'a>(Vec<&'a LiveJob>);

impl OtherJobs<'_> {
    fn have(&self, device: &str) -> bool {
        self.0.iter().any(|other| other.devices.iter().flatten().any(|known| known == device))
    }

    fn compute_on(&self, gpu: &NvidiaGpu) -> bool {
        let mut pids = gpu.processes.iter().flatten().filter_map(|(pid, _)| i32::try_from(*pid).ok());
        pids.any(|pid| self.0.iter().any(|other| other.pids.contains(&pid)))
    }

    /// Whether the GPUs of each are known.
    fn are_known(&self) -> bool {
        self.0.iter().all(|other| other.devices.is_some())
    }
}

/// Adds what NVIDIA's driver says, and returns the devices about which it says anything.
fn add_nvidia(
    job: &mut JobGpus,
    (live, others): (&LiveJob, &OtherJobs<'_>),
    gpus: &[NvidiaGpu],
    moment: Moment,
) -> BTreeSet<String> {
    let has = |pid: u32| i32::try_from(pid).is_ok_and(|pid| live.pids.contains(&pid));
    let mut heard = BTreeSet::new();
    for gpu in gpus {
        let is_this = |device: &&String| nvidias(device) == Some(gpu.minor);
        match live.devices.as_ref().map(|devices| devices.iter().find(is_this)) {
            // If the driver names no processes, another job may compute there, too. So the present use is unknown.
            Some(Some(device)) if gpu.processes.is_none() => {
                job.of(device).forget_now();
                heard.insert(device.clone());
            }
            Some(Some(device)) => {
                let is_whole = !others.have(device) && gpu.is_divided == Some(false) && !others.compute_on(gpu);
                job.of(device).add_nvidia(gpu, is_whole, &has, moment, live.started);
                heard.insert(device.clone());
            }
            // The GPU is another job's.
            Some(None) => {}
            None => {
                if gpu.processes.iter().flatten().any(|(pid, _)| has(*pid)) {
                    let device = format!("/dev/nvidia{}", gpu.minor);
                    job.of(&device).add_nvidia(gpu, false, &has, moment, live.started);
                    heard.insert(device);
                }
            }
        }
    }
    heard
}

/// The same for the drivers of other makers.
fn add_drm(
    job: &mut JobGpus,
    (live, others): (&LiveJob, &OtherJobs<'_>),
    answer: &ProbeAnswer,
    moment: Moment,
) -> BTreeSet<String> {
    let mut heard = BTreeSet::new();
    for gpu in &answer.drm {
        let Some(device) = live.devices.iter().flatten().find(|device| drm_name(device) == Some(&gpu.name)) else {
            continue;
        };
        let clients = answer.clients.iter().filter(|client| live.pids.contains(&client.pid));
        let clients: Vec<_> = clients.filter(|client| gpu.address.as_ref() == Some(&client.address)).collect();
        // A job whose GPUs are not known may have this one.
        let is_whole = !others.have(device) && others.are_known();
        let counted = gpu.address.as_ref().and_then(|address| live.counted.get(address));
        job.of(device).add_drm(gpu, is_whole, (&clients, counted.copied()), moment);
        heard.insert(device.clone());
    }
    heard
}

fn keep(run_dir: &Path, job: &JobGpus) {
    if let Err(error) = kept::write(run_dir, job) {
        log::debug!("the figures of a job's GPUs are not kept: {error}");
    }
}

/// Whether a job of this node can have a GPU. Where none can, a look costs two system calls.
fn may_have_gpus(config: &Config, host: &Host, steps: &[LivingStep<'_>]) -> bool {
    let has_chosen = |step: &LivingStep<'_>| {
        step.record.as_ref().and_then(|record| record.shared.as_ref()).is_some_and(|shared| !shared.gpus.is_empty())
    };
    let is_one_here = || config.gpu_device.is_some() || has_driver(host) || Path::new("/dev/dri").exists();
    !steps.is_empty() && (is_one_here() || steps.iter().any(has_chosen))
}

/// Whether NVIDIA's driver has GPUs here.
fn has_driver(host: &Host) -> bool {
    host.proc.child("driver/nvidia/gpus").and_then(|dir| dir.list(true)).is_ok_and(|all| !all.is_empty())
}

fn key_of(step: &LivingStep<'_>) -> String {
    kept::key(step.node.as_deref(), step.uid, &step.job)
}

/// Adds the processes of all jobs, since a job may compute on another job's GPU.
fn add_processes(jobs: &mut BTreeMap<String, LiveJob>, steps: &[LivingStep<'_>], host: &Host) {
    for (key, job) in jobs.iter_mut().filter(|(_, job)| job.idle_keys.gpu_after.is_some()) {
        let own: Vec<&LivingStep<'_>> = steps.iter().filter(|step| key_of(step) == *key).collect();
        job.is_stopped = states(&own, host).is_none_or(|(is_stopped, _)| is_stopped);
    }
    for step in steps {
        if let Some(job) = jobs.get_mut(&key_of(step)) {
            job.pids.extend(step.processes().unwrap_or_default().iter().map(|process| process.pid));
        }
    }
}

/// Adds the GPU memory that the kernel has counted, for drivers that let it count.
fn add_counted(jobs: &mut BTreeMap<String, LiveJob>, steps: &[LivingStep<'_>]) {
    for (key, job) in jobs.iter_mut().filter(|(_, job)| has_drm(job)) {
        let place = steps.iter().find(|step| key_of(step) == *key).and_then(|step| step.places.first());
        job.counted = place.map(|place| dmem::of_directory(&place.job, &place.hierarchy.mount)).unwrap_or_default();
    }
}

fn has_drm(job: &LiveJob) -> bool {
    job.devices.iter().flatten().any(|device| drm_name(device).is_some())
}

/// The processes that the question names: those of jobs that have GPUs of other makers than NVIDIA.
fn pids_of(jobs: &BTreeMap<String, LiveJob>) -> Vec<i32> {
    jobs.values().filter(|job| has_drm(job)).flat_map(|job| &job.pids).copied().collect()
}

/// Writes the line of an ended job to the log, if there is one.
fn finish(config: &Config, job: &JobGpus) {
    if let Some(usage_log) = UsageLog::from_config(config) {
        files::log(&usage_log, job);
    }
    kept::remove(&config.run_dir, job);
}

fn now() -> f64 {
    since_1970(SystemTime::now())
}

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The jobs of these steps.
fn live_jobs(
    (config, loaded): (&Config, Option<&Loaded>),
    host: &Host,
    steps: &[LivingStep<'_>],
) -> BTreeMap<String, LiveJob> {
    let noted = JobRecords::existing(&config.run_dir).ok().flatten();
    let mut jobs: BTreeMap<String, LiveJob> = BTreeMap::new();
    for step in steps {
        let started = described(step).started.map_or_else(now, since_1970);
        let job = jobs.entry(key_of(step)).or_insert_with(|| LiveJob {
            node: step.node.clone(),
            uid: step.uid,
            job: step.job.clone(),
            directory: step.places.first().map(|place| place.job.clone()).unwrap_or_default(),
            started,
            granted: step.allocated().noted.granted.gpus,
            idle_keys: keys_of((config, loaded), (noted.as_ref(), host), step),
            ..LiveJob::default()
        });
        job.started = job.started.min(started);
        job.devices = job.devices.take().or_else(|| devices_of(config, host, noted.as_ref(), step));
    }
    for job in jobs.values_mut() {
        job.granted = job.granted.or(job.devices.as_ref().and_then(|devices| u64::try_from(devices.len()).ok()));
    }
    jobs
}

/// The devices of a step's job. `None`: not known.
fn devices_of(config: &Config, host: &Host, noted: Option<&JobRecords>, step: &LivingStep<'_>) -> Option<Vec<String>> {
    let shared = step.record.as_ref().and_then(|record| record.shared.as_ref());
    if let Some(shared) = shared.filter(|shared| !shared.gpus.is_empty()) {
        return Some(shared.gpus.clone());
    }
    let node = step.node.as_deref().map(Name::new).transpose().ok()?;
    let id = JobOnNode { node, job: Id::new(step.job.as_str()).ok()? };
    let gpus = match noted.and_then(|noted| noted.read(&id, host).ok().flatten()) {
        Some(record) => record.gpus,
        // If the scheduler gives only a number of GPUs, jobfence chooses them, and all that it has chosen are in records.
        None if shared.is_some() && config.gpu_device.is_some() => Gpus::None,
        None => return None,
    };
    match (gpus, &config.gpu_device) {
        (Gpus::None, _) => Some(Vec::new()),
        (Gpus::Devices(devices), _) => Some(devices.into_iter().map(|(_, path)| path).collect()),
        (gpus, Some(gpu)) => {
            let numbers = gpu.numbers_of(&gpus).ok()?;
            Some(numbers.into_iter().map(|number| gpu.path(number).display().to_string()).collect())
        }
        (_, None) => None,
    }
}

/// The question about these jobs. If no job may have a GPU, it is empty.
fn question(config: &Config, host: &Host, jobs: &BTreeMap<String, LiveJob>) -> ProbeQuestion {
    let devices = || jobs.values().flat_map(|job| job.devices.iter().flatten());
    let drm: BTreeSet<&str> = devices().filter_map(|device| drm_name(device)).collect();
    let minors: BTreeSet<u32> = devices().filter_map(|device| nvidias(device)).collect();
    let has = |job: &&LiveJob, minor: u32| job.devices.iter().flatten().any(|device| nvidias(device) == Some(minor));
    // A GPU's use before the last job began is an earlier job's.
    let began = |minor: u32| jobs.values().filter(|job| has(job, minor)).map(|job| job.started).fold(0.0, f64::max);
    ProbeQuestion {
        began: minors.iter().map(|minor| (began(*minor) * 1e6) as u64).collect(),
        nvidia: minors.into_iter().collect(),
        nvidia_all: jobs.values().any(|job| job.devices.is_none()) && has_driver(host),
        accounting: config.gpu_accounting,
        drm: drm.into_iter().map(str::to_owned).collect(),
        pids: pids_of(jobs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::answer::NvidiaGpu;
    use crate::gpu::drm::DrmDevice;

    fn live(temp: &Path, job: &str, devices: Option<&[&str]>, pids: &[i32]) -> (String, LiveJob) {
        let directory = temp.join(job);
        std::fs::create_dir_all(&directory).unwrap();
        let live = LiveJob {
            uid: Some(nix::unistd::getuid().as_raw()),
            job: job.to_owned(),
            directory,
            started: 100.0,
            devices: devices.map(|all| all.iter().map(|device| (*device).to_owned()).collect()),
            pids: pids.iter().copied().collect(),
            ..LiveJob::default()
        };
        (kept::key(None, live.uid, job), live)
    }

    fn gpu(minor: u32, processes: &[(u32, u64)]) -> NvidiaGpu {
        NvidiaGpu {
            minor,
            percent: Some(50.0),
            most_percent: Some(50.0),
            memory: Some(1000),
            is_divided: Some(false),
            processes: Some(processes.iter().map(|(pid, memory)| (*pid, Some(*memory))).collect()),
            ..NvidiaGpu::default()
        }
    }

    fn asked(temp: &Path, at: f64, jobs: BTreeMap<String, LiveJob>) -> AskedGpus {
        let config = Config { run_dir: temp.join("run"), ..Config::default() };
        AskedGpus { at, interval: Duration::from_secs(10), config, jobs }
    }

    /// What each of these jobs has of each GPU after one look.
    fn after(temp: &Path, jobs: Vec<(String, LiveJob)>, nvidia: Vec<NvidiaGpu>) -> BTreeMap<String, JobGpus> {
        after_answer(temp, jobs, ProbeAnswer { nvidia, ..ProbeAnswer::default() })
    }

    fn after_answer(temp: &Path, jobs: Vec<(String, LiveJob)>, answer: ProbeAnswer) -> BTreeMap<String, JobGpus> {
        let mut sampler = GpuSampler { has_taken_over: true, ..GpuSampler::default() };
        let jobs = jobs.into_iter().collect();
        let asked = asked(temp, 110.0, jobs);
        for (key, live) in &asked.jobs {
            sampler.add(key, live, &asked, &answer, Instant::now());
        }
        sampler.jobs.into_values().map(|job| (job.job.clone(), job)).collect()
    }

    /// The utilization and the memory of each of a job's GPUs.
    fn figures(job: &JobGpus) -> Vec<(&str, Option<f64>, Option<u64>)> {
        job.gpus.iter().map(|gpu| (gpu.device.as_str(), gpu.percent(), gpu.memory_peak)).collect()
    }

    #[test]
    fn a_gpu_is_a_jobs_only_if_nobody_else_has_it() {
        let temp = tempfile::tempdir().unwrap();
        let temp = temp.path();
        let (zero, one) = ("/dev/nvidia0", "/dev/nvidia1");
        let jobs = vec![
            live(temp, "whole", Some(&[zero]), &[10]),
            live(temp, "shard1", Some(&[one]), &[20]),
            live(temp, "shard2", Some(&[one]), &[30]),
            live(temp, "none", Some(&[]), &[40]),
        ];
        let gpus = vec![gpu(0, &[(10, 7)]), gpu(1, &[(20, 3), (30, 4), (30, 5)]), gpu(2, &[(40, 1)])];
        let found = after(temp, jobs, gpus);
        assert_eq!(figures(&found["whole"]), [(zero, Some(50.0), Some(1000))]);
        assert_eq!(figures(&found["shard1"]), [(one, None, Some(3))]);
        assert_eq!(figures(&found["shard2"]), [(one, None, Some(9))]);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_is_not_certain_is_by_process() {
        let temp = tempfile::tempdir().unwrap();
        let temp = temp.path();
        let zero = "/dev/nvidia0";
        // The GPUs of the first job are not known, and it computes on the second job's GPU, too.
        let jobs = vec![live(temp, "unknown", None, &[10]), live(temp, "owner", Some(&[zero]), &[20])];
        let found = after(temp, jobs, vec![gpu(0, &[(10, 7), (20, 8)]), gpu(3, &[(10, 1)]), gpu(4, &[])]);
        assert_eq!(figures(&found["unknown"]), [(zero, None, Some(7)), ("/dev/nvidia3", None, Some(1))]);
        assert_eq!(figures(&found["owner"]), [(zero, None, Some(8))]);
        // A divided GPU counts as shared, and so does one that does not say whether it is divided.
        for is_divided in [Some(true), None] {
            let jobs = vec![live(temp, "mig", Some(&[zero]), &[10])];
            let found = after(temp, jobs, vec![NvidiaGpu { is_divided, ..gpu(0, &[(10, 7)]) }]);
            assert_eq!(figures(&found["mig"]), [(zero, None, Some(7))], "{is_divided:?}");
        }
    }

    #[test]
    fn memory_that_the_kernel_has_counted_is_each_jobs_own() {
        let temp = tempfile::tempdir().unwrap();
        let shared = "/dev/dri/renderD128";
        let counted = |now, limit: Option<u64>| CountedMemory {
            now,
            peak: Some(now + 1),
            total: limit.or(Some(50)),
            is_limited: limit.is_some(),
        };
        let mut jobs = Vec::new();
        for (job, now, limit) in [("one", 10, None), ("other", 20, Some(30)), ("uncounted", 0, None)] {
            let (key, mut live) = live(temp.path(), job, Some(&[shared]), &[]);
            if now > 0 {
                live.counted.insert("0000:03:00.0".to_owned(), counted(now, limit));
            }
            jobs.push((key, live));
        }
        let whole = live(temp.path(), "whole", Some(&["/dev/dri/renderD129"]), &[]);
        let whole = (whole.0, LiveJob { counted: [("0000:04:00.0".to_owned(), counted(7, None))].into(), ..whole.1 });
        jobs.push(whole);
        let gpu = |name: &str, address: &str| DrmDevice {
            name: name.to_owned(),
            address: Some(address.to_owned()),
            // The driver counts all jobs' memory. It is more than the kernel has counted for one job.
            memory: Some(40),
            ..DrmDevice::default()
        };
        let drm = vec![gpu("renderD128", "0000:03:00.0"), gpu("renderD129", "0000:04:00.0")];
        let found = after_answer(temp.path(), jobs, ProbeAnswer { drm, ..ProbeAnswer::default() });
        let memory = |job: &str| {
            let gpu = &found[job].gpus[0];
            (gpu.memory_now, gpu.memory_peak, gpu.memory_total, gpu.is_memory_counted)
        };
        assert_eq!(memory("one"), (Some(10), Some(11), None, true));
        assert_eq!(memory("other"), (Some(20), Some(21), Some(30), true));
        assert_eq!(memory("uncounted"), (None, None, None, false));
        assert_eq!(memory("whole"), (Some(7), Some(8), Some(50), true));
    }

    #[test]
    fn a_gpu_that_the_driver_has_lost_does_nothing_known_now() {
        let temp = tempfile::tempdir().unwrap();
        let (key, lost) = live(temp.path(), "lost", Some(&["/dev/nvidia0", "/dev/nvidia1"]), &[]);
        let mut sampler = GpuSampler { has_taken_over: true, ..GpuSampler::default() };
        let asked = |at: f64| asked(temp.path(), at, BTreeMap::new());
        for (at, gpus) in [(110.0, vec![gpu(0, &[]), gpu(1, &[])]), (120.0, vec![gpu(1, &[])])] {
            let answer = ProbeAnswer { nvidia: gpus, ..ProbeAnswer::default() };
            sampler.add(&key, &lost, &asked(at), &answer, Instant::now());
        }
        let now: Vec<_> = sampler.jobs[&key].gpus.iter().map(|gpu| (gpu.percent_now, gpu.observed)).collect();
        assert_eq!(now, [(None, 10.0), (Some(50.0), 20.0)]);
        assert_eq!(kept::all_living::<JobGpus>(&temp.path().join("run")).unwrap().len(), 1);
    }

    #[test]
    fn without_a_job_that_may_have_a_gpu_nothing_is_asked() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config::default();
        let Ok((host, _)) = Host::read_what_there_is(&config) else {
            return crate::skip::skip("this machine has no cgroups");
        };
        let ask = |jobs: Vec<(String, LiveJob)>| question(&config, &host, &jobs.into_iter().collect());
        assert!(ask(vec![live(temp.path(), "none", Some(&[]), &[1])]).is_empty());
        let all = ask(vec![
            live(temp.path(), "a", Some(&["/dev/nvidia3", "/dev/other"]), &[1]),
            live(temp.path(), "b", Some(&["/dev/dri/renderD128"]), &[2]),
        ]);
        assert_eq!((all.nvidia, all.nvidia_all), (vec![3], false));
        assert_eq!((all.drm, all.pids), (vec!["renderD128".to_owned()], vec![2]));
    }
}
