// SPDX-License-Identifier: GPL-2.0-or-later
//! Which GPUs of this node a job has: those that its scheduler names or, if it gives only a number, those that are chosen here.
//!
//! The choice is in the record of each fence of the job's run, and holds while one of them exists. So it needs no file of its own, which
//! could differ after a crash, and it disappears with the last fence.

use std::time::{Duration, Instant};

use crate::cgroup::devices::{GpuDevice, gpus_of_node};
use crate::config::{Config, DeniedDevices, Mode};
use crate::error::{Error, Result};
use crate::facts::Gpus;
use crate::fence::Fence;
use crate::host::Host;
use crate::job::Id;
use crate::record::{Records, Shared};
use crate::sys::dir::Dir;
use crate::sys::lock::Lock;
use crate::sys::nvidia;

/// How long another process that is making a fence may take to choose.
const PATIENCE: Duration = Duration::from_secs(5);

/// The GPUs of a job's run.
#[derive(Debug, Default)]
pub struct ChosenGpus {
    /// Their devices.
    pub devices: Vec<String>,
    /// Keeps other processes from choosing until these GPUs are recorded.
    _lock: Option<Lock>,
}

/// The GPUs of a run of a job. The scheduler names them or gives their number. Nothing is read if the job has none.
pub fn of_run(
    (host, config): (&Host, &Config),
    (job, run): (&Id, u32),
    (named, count): (&Gpus, Option<usize>),
) -> Result<ChosenGpus> {
    // Under Slurm such a job runs without GPUs, and its own output says so.
    let is_strict = config.constrain_devices != DeniedDevices::None && config.mode == Mode::Enforce;
    let uncertain = |why: &str| {
        Error::new(format!("it is not certain which devices the job's GPUs are: {why}"))
            .hint("take GPUDevice out of jobfence.conf, and with ConstrainDevices=closed have DeviceAllow name the devices of all GPUs")
    };
    match (config.gpu_device.as_ref(), named, count.unwrap_or(0)) {
        (Some(gpu), Gpus::Chosen(devices), _) => match devices.iter().find_map(|path| gpu.number_of(path).err()) {
            Some(why) if is_strict => Err(uncertain(&why)),
            _ => Ok(ChosenGpus { devices: devices.clone(), _lock: None }),
        },
        (Some(_), Gpus::Unknown(why), _) if is_strict => Err(uncertain(why)),
        (None, ..) | (.., 0) => Ok(ChosenGpus::default()),
        (Some(gpu), _, wanted) => choose(&Records::open(&config.run_dir)?, &host.boot_id, gpu, (job, run), wanted),
    }
}

/// Chooses this many GPUs for a run of a job: first those that the run already has, then the first free ones. Too few are an error that may
/// pass: the scheduler counts GPUs, too, so the fence of a job that it has forgotten is about to be closed.
fn choose(
    records: &Records,
    boot_id: &str,
    gpu: &GpuDevice,
    (job, run): (&Id, u32),
    wanted: usize,
) -> Result<ChosenGpus> {
    let devices = ours(&records.with_gpus(boot_id)?, (job, run), wanted);
    if devices.len() == wanted {
        return Ok(ChosenGpus { devices, _lock: None });
    }
    let lock = records.lock_gpus(Instant::now() + PATIENCE)?;
    let recorded = records.with_gpus(boot_id)?;
    let mut devices = ours(&recorded, (job, run), wanted);
    let here = gpus_of_node(gpu)?;
    for path in &here {
        if devices.len() < wanted && !recorded.iter().any(|shared| shared.gpus.contains(path)) {
            devices.push(path.clone());
        }
    }
    if devices.len() == wanted {
        return Ok(ChosenGpus { devices, _lock: Some(lock) });
    }
    let words = format!("job {job}; granted {wanted}, here by GPUDevice={gpu} {}; in use: ", here.len());
    Err(Error::new("too few GPUs are free for this job:")
        .value(words + &in_use(&recorded, (job, run)))
        .hint("a GPU is free again when the fences of its job are closed; 'jobfence usage --job ID' shows them")
        .passing())
}

fn is_of(shared: &Shared, (job, run): (&Id, u32)) -> bool {
    shared.run == run && shared.job == *job
}

/// The GPUs that this run of the job already has, at most as many as wanted.
fn ours(recorded: &[Shared], whose: (&Id, u32), wanted: usize) -> Vec<String> {
    let lists = recorded.iter().filter(|shared| is_of(shared, whose)).map(|shared| &shared.gpus);
    let mut ours = lists.max_by_key(|list| list.len()).cloned().unwrap_or_default();
    ours.truncate(wanted);
    ours
}

/// The GPUs of other runs, as text.
fn in_use(recorded: &[Shared], whose: (&Id, u32)) -> String {
    let mut words: Vec<String> = Vec::new();
    for shared in recorded.iter().filter(|shared| !is_of(shared, whose)) {
        let word = format!("{} by job {} run {}", shared.gpus.join(", "), shared.job, shared.run);
        if !words.contains(&word) {
            words.push(word);
        }
    }
    if words.is_empty() { "none".to_owned() } else { words.join("; ") }
}

/// The value of `CUDA_VISIBLE_DEVICES` in a fence; see `visible`.
pub fn visible_in(fence: &Fence, host: &Host, config: &Config) -> Option<String> {
    visible(&host.proc, config.gpu_device.as_ref(), fence.gpus(), fence.devices().is_some())
}

/// The value of `CUDA_VISIBLE_DEVICES` for processes that have these devices, and can open no others if `are_denied`. `None`: jobfence does
/// not set it, since the node's GPUs are not NVIDIA's, or not known.
///
/// A UUID does not depend on what is visible. A number is a position in CUDA's order, which is that of PCI addresses if `CUDA_DEVICE_ORDER`
/// says so, and counts only what the process can open.
fn visible(proc: &Dir, gpu: Option<&GpuDevice>, devices: &[String], are_denied: bool) -> Option<String> {
    let gpu = gpu.filter(|gpu| gpu.is_nvidias())?;
    if devices.is_empty() {
        return Some(String::new());
    }
    let minors: Vec<u32> = devices.iter().filter_map(|path| gpu.number_of(path).ok()).collect();
    let driver = nvidia::gpus(proc).unwrap_or_default();
    let at = |minor: &u32| driver.iter().position(|known| known.minor == *minor);
    let uuids: Option<Vec<String>> = minors.iter().map(|minor| driver.get(at(minor)?)?.uuid.clone()).collect();
    let numbers = || -> Vec<String> {
        let places: Option<Vec<usize>> = match are_denied {
            true => Some((0..minors.len()).collect()),
            false => minors.iter().map(at).collect(),
        };
        // For a GPU that the driver does not list, its own number is most likely right.
        let places = places.map(|places| places.iter().map(ToString::to_string).collect());
        places.unwrap_or_else(|| minors.iter().map(ToString::to_string).collect())
    };
    Some(uuids.unwrap_or_else(numbers).join(","))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::record::holder::Holder;
    use crate::record::{Owner, Record};

    fn id(text: &str) -> Id {
        Id::new(text).unwrap()
    }

    /// A node whose GPUs have these numbers.
    fn node(top: &Path, numbers: &[u32]) -> GpuDevice {
        // Links stand for the devices, so that tests do not need mknod.
        for number in numbers {
            std::os::unix::fs::symlink("/dev/zero", top.join(format!("nvidia{number}"))).unwrap();
        }
        GpuDevice::parse(&format!("{}/nvidia%d", top.display())).unwrap()
    }

    fn record(records: &Records, (job, step, run): (&str, &str, u32), boot_id: &str, gpus: &[String]) -> Record {
        let shared = Shared {
            holder: Holder::Manual,
            opener: Owner { pid: 7, start: 9 },
            job: id(job),
            step: id(step),
            run,
            controllers: Vec::new(),
            log_from: None,
            overlay: false,
            gpus: gpus.to_vec(),
            plan: None,
        };
        let levels = vec!["uid_1".into(), format!("job_{job}"), format!("step_{step}.{run}")];
        let record = Record {
            boot_id: boot_id.into(),
            pid_namespace: "p".into(),
            owner: Owner { pid: 1, start: 2 },
            base: "b".into(),
            levels,
            shared: Some(Box::new(shared)),
        };
        assert!(records.claim(&record).unwrap());
        record
    }

    #[test]
    fn a_job_has_its_own_gpus_and_those_that_nobody_has() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records::open(&temp.path().join("run")).unwrap();
        let gpu = node(temp.path(), &[0, 1, 3]);
        let path = |number: u32| format!("{}/nvidia{number}", temp.path().display());
        let choose = |job: &str, run: u32, wanted: usize| {
            choose(&records, "boot", &gpu, (&id(job), run), wanted).map(|chosen| chosen.devices)
        };
        assert_eq!(choose("1", 1, 2).unwrap(), [path(0), path(1)]);
        record(&records, ("1", "extern", 1), "boot", &[path(0), path(1)]);
        // A later step of the same run; then one to which the scheduler gave fewer.
        assert_eq!(choose("1", 1, 2).unwrap(), [path(0), path(1)]);
        assert_eq!(choose("1", 1, 1).unwrap(), [path(0)]);
        assert_eq!(choose("1", 1, 3).unwrap(), [path(0), path(1), path(3)]);
        assert_eq!(choose("2", 1, 1).unwrap(), [path(3)]);
        // Another run of the same job does not share them.
        assert_eq!(choose("1", 2, 1).unwrap(), [path(3)]);
        let error = choose("2", 1, 2).unwrap_err();
        assert!(error.is_passing(), "{error}");
        for part in [
            "for this job: (value \"job 2; granted 2, here by",
            &format!("{}, {} by job 1 run 1", path(0), path(1)),
            "free again",
        ] {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
        let second = record(&records, ("2", "extern", 1), "boot", &[path(3)]);
        assert!(choose("3", 1, 1).is_err());
        records.forget(&second.levels).unwrap();
        assert_eq!(choose("3", 1, 1).unwrap(), [path(3)]);
        // A record of another boot holds no GPU.
        record(&records, ("4", "extern", 1), "another boot", &[path(3)]);
        assert_eq!(choose("3", 1, 1).unwrap(), [path(3)]);
        assert_eq!(choose("3", 1, 0).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn two_that_choose_at_once_choose_one_after_the_other() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records::open(&temp.path().join("run")).unwrap();
        let gpu = node(temp.path(), &[0, 1]);
        let first = choose(&records, "boot", &gpu, (&id("1"), 1), 1).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| choose(&records, "boot", &gpu, (&id("2"), 1), 1).unwrap().devices);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished());
            record(&records, ("1", "extern", 1), "boot", &first.devices);
            drop(first);
            assert_eq!(second.join().unwrap(), [format!("{}/nvidia1", temp.path().display())]);
        });
    }

    #[test]
    fn what_is_visible_is_said_by_uuids_or_by_places_in_the_order_that_counts() {
        let temp = tempfile::tempdir().unwrap();
        let proc = Dir::open(temp.path()).unwrap();
        let gpu = GpuDevice::parse("/dev/nvidia%d").unwrap();
        let devices = [2, 0].map(|number| format!("/dev/nvidia{number}"));
        let said = |are_denied| visible(&proc, Some(&gpu), &devices, are_denied).unwrap();
        // Without a driver.
        assert_eq!((said(false), said(true)), ("2,0".into(), "0,1".into()));
        let put = |address: &str, minor: u32, uuid: &str| {
            let dir = temp.path().join("driver/nvidia/gpus").join(address);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("information"), format!("GPU UUID: {uuid}\nDevice Minor: {minor}\n")).unwrap();
        };
        put("0000:01:00.0", 1, "GPU-b");
        put("0000:02:00.0", 2, "GPU-c");
        put("0000:03:00.0", 0, "??");
        assert_eq!((said(false), said(true)), ("1,2".into(), "0,1".into()));
        put("0000:03:00.0", 0, "GPU-a");
        assert_eq!((said(false), said(true)), ("GPU-c,GPU-a".into(), "GPU-c,GPU-a".into()));
        assert_eq!(visible(&proc, Some(&gpu), &[], true), Some(String::new()));
        assert_eq!(visible(&proc, None, &[], true), None);
        let other = GpuDevice::parse("/dev/dri/renderD%d").unwrap();
        assert_eq!(visible(&proc, Some(&other), &["/dev/dri/renderD128".into()], true), None);
    }
}
