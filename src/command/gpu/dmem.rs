// SPDX-License-Identifier: GPL-2.0-or-later
//! The memory of GPUs that a job's directory has, by the kernel's controller `dmem` (Linux 6.14 and cgroup v2): a line for each region of
//! each GPU whose driver registers it, `drm/0000:03:00.0/vram0 8514437120`. The kernel answers these files itself, and asks no driver.
//!
//! jobfence does not switch the controller on. Where the site has done so, it counts what the job's processes allocate, on a shared GPU,
//! too, and what they share with each other once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::drm::OWN_MEMORY;

/// The memory of one GPU over all of its regions, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountedMemory {
    pub now: u64,
    /// The highest use so far. A kernel without `dmem.peak` does not say it.
    pub peak: Option<u64>,
    /// What the directory can have: the limit of each region, or the whole region.
    pub total: Option<u64>,
    /// Whether the directory itself limits a region.
    pub is_limited: bool,
}

impl CountedMemory {
    /// The highest use that is known.
    pub fn most(&self) -> u64 {
        self.peak.unwrap_or(self.now).max(self.now)
    }
}

/// The memory of each GPU, by its address on the bus. It is empty if the directory lacks the controller. `mount`: where the hierarchy is.
pub fn of_directory(directory: &Path, mount: &Path) -> BTreeMap<String, CountedMemory> {
    let Some(now) = regions(&directory.join("dmem.current")) else { return BTreeMap::new() };
    let read = |file: &Path| regions(file).unwrap_or_default();
    let [peaks, limits] = ["dmem.peak", "dmem.max"].map(|file| read(&directory.join(file)));
    let totals = read(&mount.join("dmem.capacity"));
    let mut by_gpu: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for (region, bytes) in now {
        if let (Some(address), Some(bytes)) = (gpu_of(&region).map(str::to_owned), bytes) {
            by_gpu.entry(address).or_default().push((region, bytes));
        }
    }
    let of_gpu = |regions: Vec<(String, u64)>| {
        let figure = |all: &BTreeMap<String, Option<u64>>, region: &str| all.get(region).copied().flatten();
        let available = |region: &str| match (figure(&limits, region), figure(&totals, region)) {
            (Some(limit), Some(all)) => Some(limit.min(all)),
            (limit, all) => limit.or(all),
        };
        // If one region is not known, neither is the sum.
        let sum = |all: &BTreeMap<String, Option<u64>>| {
            regions.iter().map(|(region, _)| figure(all, region)).sum::<Option<u64>>()
        };
        CountedMemory {
            now: regions.iter().map(|(_, bytes)| bytes).sum(),
            peak: sum(&peaks),
            total: regions.iter().map(|(region, _)| available(region)).sum(),
            is_limited: regions.iter().any(|(region, _)| figure(&limits, region).is_some()),
        }
    };
    by_gpu.into_iter().map(|(address, regions)| (address, of_gpu(regions))).collect()
}

/// The bytes of each region in a file. `None` for a region: `max`, or a value that this release does not know.
fn regions(file: &Path) -> Option<BTreeMap<String, Option<u64>>> {
    let text = fs::read_to_string(file).ok()?;
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    Some(
        lines.map(|(region, bytes)| (region.to_owned(), bytes.parse().ok().filter(|bytes| *bytes < 1 << 60))).collect(),
    )
}

/// The address of the GPU whose own memory a region is.
fn gpu_of(region: &str) -> Option<&str> {
    let (address, kind) = region.strip_prefix("drm/")?.rsplit_once('/')?;
    OWN_MEMORY.iter().any(|own| kind.starts_with(own)).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn regions_are_summed_by_gpu() {
        let temp = tempfile::tempdir().unwrap();
        let (mount, job) = (temp.path(), temp.path().join("job_7"));
        assert_eq!(of_directory(&job, mount), BTreeMap::new());
        fs::create_dir(&job).unwrap();
        // The kernel's own examples (Documentation/admin-guide/cgroup-v2.rst), a region of another kind, and a region of a driver that is
        // no GPU's.
        let write = |file: &Path, lines: &[(&str, &str)]| {
            let text: String = lines.iter().map(|(region, bytes)| format!("{region} {bytes}\n")).collect();
            fs::write(file, text).unwrap();
        };
        let [two, other, stolen, dma] =
            ["drm/0000:03:00.0/vram0", "drm/0000:04:00.0/vram", "drm/0000:03:00.0/stolen", "cma/a"];
        let second = "drm/0000:03:00.0/vram1";
        write(
            &mount.join("dmem.capacity"),
            &[(two, "8514437120"), (second, "1073741824"), (stolen, "67108864"), (other, "9")],
        );
        write(
            &job.join("dmem.current"),
            &[(two, "12550144"), (second, "5"), (stolen, "8650752"), (other, "7"), (dma, "3")],
        );
        write(&job.join("dmem.max"), &[(two, "1073741824"), (second, "max"), (stolen, "max"), (other, "8")]);
        let found = of_directory(&job, mount);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["0000:03:00.0", "0000:04:00.0"]);
        // One of its two regions has a limit.
        let both = CountedMemory { now: 12_550_149, peak: None, total: Some(2 * GIB), is_limited: true };
        assert_eq!(found["0000:03:00.0"], both);
        assert_eq!(found["0000:04:00.0"], CountedMemory { now: 7, peak: None, total: Some(8), is_limited: true });
        // A limit may be higher than the GPU's memory, or be lifted.
        for (limit, is_limited) in [("10", true), ("max", false)] {
            write(&job.join("dmem.max"), &[(two, "max"), (second, "max"), (other, limit)]);
            let found = of_directory(&job, mount);
            let of = |address: &str| (found[address].total, found[address].is_limited);
            assert_eq!(of("0000:03:00.0"), (Some(8_514_437_120 + GIB), false));
            assert_eq!(of("0000:04:00.0"), (Some(9), is_limited));
        }
        write(&job.join("dmem.peak"), &[(two, "20000000"), (second, "6"), (other, "8")]);
        let peaks: Vec<_> = of_directory(&job, mount).values().map(|memory| memory.peak).collect();
        assert_eq!(peaks, [Some(20_000_006), Some(8)]);
        // A driver that registers no region leaves the file empty.
        fs::write(job.join("dmem.current"), "").unwrap();
        assert_eq!(of_directory(&job, mount), BTreeMap::new());
    }
}
