// SPDX-License-Identifier: GPL-2.0-or-later
//! What the kernel says of GPUs of AMD and Intel, without a library of theirs: of a whole one in /sys/class/drm, and of each process in
//! /proc/PID/fdinfo (Documentation/gpu/drm-usage-stats.rst). Only the probe reads that: a driver's file may never answer, either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most descriptors of all processes that are looked at, and the most clients that are kept.
const MOST_DESCRIPTORS: usize = 1 << 18;
const MOST_CLIENTS: usize = 4096;

/// How long looking may take: whoever asks waits no longer than 20 s for all.
const PATIENCE: Duration = Duration::from_secs(5);

/// The names of a client's memory regions on the GPU begin with one of these. Other regions are in the host's memory, which the job's
/// cgroup counts.
pub const OWN_MEMORY: [&str; 2] = ["vram", "local"];

/// The figures of a region: the first one that the kernel has counts. Earlier kernels have the second name for the first figure.
const MEMORY: [&str; 3] = ["drm-resident-", "drm-memory-", "drm-total-"];

/// A whole GPU at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrmDevice {
    /// Its name below /sys/class/drm.
    pub name: String,
    /// Its address on the bus.
    pub address: Option<String>,
    /// Whether it is a part of a card.
    pub is_divided: bool,
    pub percent: Option<u64>,
    pub memory: Option<u64>,
    pub memory_total: Option<u64>,
    /// Its energy since some moment, in mJ.
    pub energy: Option<u64>,
    /// Its power, in mW.
    pub power: Option<u64>,
}

/// One client of a driver: a GPU that a process has opened. Children of the process may share it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrmClient {
    pub pid: i32,
    /// The address of its GPU.
    pub address: String,
    pub id: u64,
    /// How long the GPU's engines of each kind worked for the client, in nanoseconds, divided by the number of the kind's engines.
    pub engines: BTreeMap<String, u64>,
    /// The memory on the GPU that the client has, in bytes.
    pub memory: Option<u64>,
}

/// The GPU with this name.
pub fn device(sys: &Path, name: &str) -> DrmDevice {
    let device = sys.join("class/drm").join(name).join("device");
    // A divided card says of each part what the whole card does.
    let partition = fs::read_to_string(device.join("current_compute_partition")).ok();
    let is_divided = partition.is_some_and(|partition| partition.trim() != "SPX");
    let number = |file: &Path| {
        let text = fs::read_to_string(file).ok().filter(|_| !is_divided)?;
        text.trim().parse::<u64>().ok()
    };
    let of_hwmon = |files: &[&str], scale: u64| {
        let monitors = fs::read_dir(device.join("hwmon")).ok()?.flatten().map(|entry| entry.path());
        let mut monitors: Vec<PathBuf> = monitors.collect();
        monitors.sort();
        let found = monitors.iter().flat_map(|monitor| files.iter().map(|file| monitor.join(file)));
        found.filter_map(|file| number(&file)).next().map(|value| value / scale)
    };
    DrmDevice {
        name: name.to_owned(),
        address: fs::canonicalize(&device).ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        is_divided,
        percent: number(&device.join("gpu_busy_percent")).filter(|percent| *percent <= 100),
        memory: number(&device.join("mem_info_vram_used")),
        memory_total: number(&device.join("mem_info_vram_total")),
        // hwmon has microjoules and microwatts.
        energy: of_hwmon(&["energy1_input"], 1000),
        power: of_hwmon(&["power1_average", "power1_input"], 1000),
    }
}

/// The clients of these processes, each once. `None`: there are too many.
pub fn clients(proc: &Path, pids: &[i32]) -> Option<Vec<DrmClient>> {
    let (mut all, mut seen, mut looked) = (Vec::new(), BTreeSet::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    for pid in pids {
        let of_process = proc.join(pid.to_string());
        let Ok(descriptors) = fs::read_dir(of_process.join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            looked += 1;
            if looked > MOST_DESCRIPTORS || all.len() > MOST_CLIENTS || Instant::now() > deadline {
                return None;
            }
            // Reading the text of a descriptor costs more than reading its name. So only GPUs' descriptors are read.
            if !fs::read_link(descriptor.path()).is_ok_and(|target| target.starts_with("/dev/dri")) {
                continue;
            }
            let text = fs::read_to_string(of_process.join("fdinfo").join(descriptor.file_name())).unwrap_or_default();
            let client = client(*pid, &text).filter(|client| seen.insert((client.address.clone(), client.id)));
            all.extend(client);
        }
    }
    Some(all)
}

fn client(pid: i32, text: &str) -> Option<DrmClient> {
    let lines: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim())).collect();
    let mut client = DrmClient {
        pid,
        address: (*lines.get("drm-pdev")?).to_owned(),
        id: lines.get("drm-client-id")?.parse().ok()?,
        ..DrmClient::default()
    };
    let mut regions = BTreeSet::new();
    for (name, value) in &lines {
        if let Some(engine) = name.strip_prefix("drm-engine-").filter(|name| !name.starts_with("capacity-")) {
            let count = lines.get(format!("drm-engine-capacity-{engine}").as_str()).and_then(|text| text.parse().ok());
            let busy = value.strip_suffix(" ns").and_then(|number| number.parse::<u64>().ok());
            let busy = busy.map(|busy| busy / count.filter(|count| *count > 0).unwrap_or(1));
            client.engines.extend(busy.map(|busy| (engine.to_owned(), busy)));
        }
        let region = MEMORY.iter().find_map(|kind| name.strip_prefix(kind));
        regions.extend(region.filter(|region| OWN_MEMORY.iter().any(|own| region.starts_with(own))));
    }
    let of_region = |region: &&str| {
        MEMORY.iter().find_map(|kind| lines.get(format!("{kind}{region}").as_str())).and_then(|text| bytes(text))
    };
    client.memory = regions.iter().filter_map(of_region).reduce(u64::saturating_add);
    Some(client)
}

/// Reads `12 KiB`. A number without a unit is in bytes.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let shift = match unit.trim() {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const AMD: &str = "pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-pdev:\t0000:03:00.0\n\
                       drm-memory-vram:\t2048 KiB\ndrm-memory-gtt:\t512 KiB\ndrm-total-vram:\t4 MiB\n\
                       drm-engine-gfx:\t3000 ns\ndrm-engine-compute:\t8000 ns\ndrm-engine-capacity-compute:\t4\n";
    const INTEL: &str = "drm-driver:\txe\ndrm-client-id:\t7\ndrm-pdev:\t0000:04:00.0\ndrm-total-vram0:\t9 MiB\n\
                         drm-resident-vram0:\t1 MiB\ndrm-resident-system:\t5 MiB\ndrm-engine-ccs:\t5 ns\ndrm-cycles-ccs:\t1\n";

    fn open(proc: &Path, pid: i32, fd: u32, target: &str, text: &str) {
        let dir = proc.join(pid.to_string());
        fs::create_dir_all(dir.join("fd")).unwrap();
        fs::create_dir_all(dir.join("fdinfo")).unwrap();
        symlink(target, dir.join("fd").join(fd.to_string())).unwrap();
        fs::write(dir.join("fdinfo").join(fd.to_string()), text).unwrap();
    }

    #[test]
    fn a_client_counts_once_however_many_have_it() {
        let temp = tempfile::tempdir().unwrap();
        for (pid, fd) in [(10, 3), (10, 4), (11, 3)] {
            open(temp.path(), pid, fd, "/dev/dri/renderD128", AMD);
        }
        // The same client number at another GPU is another client. A file of a program's own with such text is no client.
        open(temp.path(), 11, 5, "/dev/dri/renderD129", INTEL);
        open(temp.path(), 11, 6, "/home/u/fake", AMD.replace("\t7", "\t8").as_str());
        open(temp.path(), 12, 3, "/dev/dri/card0", "drm-driver:\tx\n");
        let mut found = clients(temp.path(), &[10, 11, 12, 13]).unwrap();
        found.sort_by(|one, other| one.address.cmp(&other.address));
        let engines = |all: &[(&str, u64)]| all.iter().map(|(name, busy)| ((*name).to_owned(), *busy)).collect();
        let amd = DrmClient {
            pid: 10,
            address: "0000:03:00.0".into(),
            id: 7,
            engines: engines(&[("compute", 2000), ("gfx", 3000)]),
            memory: Some(2 << 20),
        };
        let intel = DrmClient {
            pid: 11,
            address: "0000:04:00.0".into(),
            id: 7,
            engines: engines(&[("ccs", 5)]),
            memory: Some(1 << 20),
        };
        assert_eq!(found, [amd, intel]);
    }

    #[test]
    fn a_whole_gpu_is_what_sysfs_says_and_the_rest_is_unknown() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().join("devices/pci0/0000:03:00.0");
        fs::create_dir_all(real.join("hwmon/hwmon4")).unwrap();
        fs::create_dir_all(temp.path().join("class/drm/renderD128")).unwrap();
        symlink(&real, temp.path().join("class/drm/renderD128/device")).unwrap();
        for (file, text) in [
            ("gpu_busy_percent", "37\n"),
            ("mem_info_vram_used", "1048576\n"),
            ("mem_info_vram_total", "17163091968\n"),
            ("hwmon/hwmon4/power1_average", "42000000\n"),
        ] {
            fs::write(real.join(file), text).unwrap();
        }
        let expected = DrmDevice {
            name: "renderD128".into(),
            address: Some("0000:03:00.0".into()),
            is_divided: false,
            percent: Some(37),
            memory: Some(1 << 20),
            memory_total: Some(17_163_091_968),
            energy: None,
            power: Some(42_000),
        };
        assert_eq!(device(temp.path(), "renderD128"), expected);
        for (partition, is_divided) in [("SPX\n", false), ("CPX\n", true)] {
            fs::write(real.join("current_compute_partition"), partition).unwrap();
            let found = device(temp.path(), "renderD128");
            assert_eq!((found.is_divided, found.memory.is_none()), (is_divided, is_divided), "{partition}");
        }
        let gone = device(temp.path(), "renderD129");
        assert_eq!(gone, DrmDevice { name: "renderD129".into(), ..DrmDevice::default() });
    }
}
