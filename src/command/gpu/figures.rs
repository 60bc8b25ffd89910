// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job has used of each of its GPUs, added up from what the drivers say from time to time.
//!
//! A GPU that is not the job's alone has figures of its processes, as far as the driver tells; the rest stays unknown. Once it was shared,
//! its earlier figures are no longer those of the job's whole time, so they are unknown, too.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::NvidiaGpu;
use super::dmem::CountedMemory;
use super::drm::{DrmClient, DrmDevice};
use super::nvml::Accounted;
use crate::idle::IdleDecision;

/// NVML's reasons for slow clocks that mean less work, each with its word. A GPU that is idle or set to lower clocks is not slowed.
const SLOWED: [(u64, &str); 4] =
    [(0x04, "power limit"), (0x08, "hardware"), (0x20 | 0x40, "temperature"), (0x80, "power supply")];

/// A GPU that is busy for less is idle, in percent: NVML's figures are whole.
const IDLE: f64 = 1.0;

/// How far two clocks may differ, in microseconds.
const SAME_MOMENT: u64 = 2_000_000;

/// The source of the utilization.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Utilization {
    /// Samples of the driver.
    #[default]
    Sampled,
    /// The driver's records of processes.
    Accounted,
    /// The engines' time of each process.
    Engines,
}

/// All sources with their words.
pub const SOURCES: [(Utilization, &str); 3] =
    [(Utilization::Sampled, "samples"), (Utilization::Accounted, "accounting"), (Utilization::Engines, "fdinfo")];

impl Utilization {
    /// Its word in JSON and for people.
    pub fn word(self) -> &'static str {
        SOURCES.iter().find(|(source, _)| *source == self).map_or("", |(_, word)| word)
    }
}

/// A moment of a job: seconds since 1970, and how many seconds count since the last moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    pub at: f64,
    pub passed: f64,
}

/// What a job has used of one GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuUse {
    /// The GPU's device, which is its name everywhere in jobfence.
    pub device: String,
    pub uuid: Option<String>,
    /// Whether another job had the GPU, too, or whether it is divided into instances.
    pub is_shared: bool,
    /// How long its utilization is known, and how long it was busy, in seconds.
    pub observed: f64,
    pub busy: f64,
    pub source: Utilization,
    /// The utilization at the last look, in percent.
    pub percent_now: Option<f64>,
    pub memory_now: Option<u64>,
    pub memory_peak: Option<u64>,
    pub memory_total: Option<u64>,
    /// Whether the kernel counted the job's memory (`dmem`). Otherwise the driver did, on a shared GPU by process.
    pub is_memory_counted: bool,
    /// The energy in J.
    pub energy: Option<f64>,
    /// How long its clocks were slow, in seconds, and the reasons.
    pub slowed: Option<f64>,
    pub slowed_by: BTreeSet<String>,
    /// Since when it has done nothing, in seconds since 1970.
    pub idle_since: Option<f64>,
    /// The longest time for which it did nothing, in seconds, if that was longer than the site allows.
    pub longest_idle: Option<f64>,
    pub counters: GpuCounters,
}

/// What the last look read, which the next look subtracts. It is for `jobfence hold` alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuCounters {
    /// The energy counter, in mJ.
    pub energy: Option<u64>,
    /// The engines' time of each client, in ns, by address, client and engine.
    pub engines: BTreeMap<String, u64>,
    /// The time that each engine worked for the job, in ns.
    pub engines_sum: BTreeMap<String, u64>,
    /// Ended processes whose records are added already, while the driver keeps the records: pid and beginning.
    pub counted: BTreeSet<(u32, u64)>,
    /// How long ended processes kept the GPU busy, in seconds, how many there were, and whether all of it is known.
    pub ended_busy: f64,
    pub ended: u64,
    pub sampled_busy: f64,
}

impl GpuUse {
    pub fn new(device: &str) -> Self {
        Self { device: device.to_owned(), ..Self::default() }
    }

    /// How busy it was in the time that is known, in percent.
    pub fn percent(&self) -> Option<f64> {
        (self.observed > 0.0).then(|| (100.0 * self.busy / self.observed).min(100.0))
    }

    /// How long it has done nothing at this moment, in seconds.
    pub fn idle(&self, now: f64) -> Option<f64> {
        self.idle_since.map(|since| (now - since).max(0.0))
    }

    /// Adds a look at a GPU of NVIDIA's. `whole`: only this job has it. `pids`: whether a process is the job's. `began`: when the job
    /// began.
    pub fn add_nvidia(
        &mut self,
        gpu: &NvidiaGpu,
        is_whole: bool,
        has: &dyn Fn(u32) -> bool,
        moment: Moment,
        began: f64,
    ) {
        self.uuid = gpu.uuid.clone().or(self.uuid.take());
        if !is_whole || self.is_shared {
            self.share();
            let own = gpu.processes.as_ref().map(|all| all.iter().filter(|(pid, _)| has(*pid)));
            // If the memory of one process is unknown, the sum is.
            let memory = own.and_then(|own| own.map(|(_, memory)| *memory).sum::<Option<u64>>());
            self.add_memory(memory, None);
            return;
        }
        self.add_memory(gpu.memory, gpu.memory_total);
        self.add_energy(gpu.energy);
        self.add_percent(gpu.percent, gpu.most_percent, moment);
        if let Some(bits) = gpu.slowed {
            let reasons = SLOWED.iter().filter(|(mask, _)| bits & mask != 0).map(|(_, word)| (*word).to_owned());
            let reasons: Vec<String> = reasons.collect();
            let passed = if reasons.is_empty() { 0.0 } else { moment.passed };
            self.slowed = Some(self.slowed.unwrap_or(0.0) + passed);
            self.slowed_by.extend(reasons);
        }
        match &gpu.accounted {
            Some(records) => self.add_accounted(records, moment, began),
            None => {
                (self.source, self.busy) = (Utilization::Sampled, self.counters.sampled_busy);
            }
        }
    }

    /// Adds the driver's records of processes, for a GPU that only this job has. A record that began with the job or later is the job's,
    /// even if no look has seen the process.
    fn add_accounted(&mut self, records: &[Accounted], moment: Moment, began: f64) {
        let (began, before) = ((began * 1e6) as u64, self.counters.ended);
        let ours = || records.iter().filter(|record| record.begun.saturating_add(SAME_MOMENT) >= began);
        let mut running = Some(0.0);
        // The samples say nothing about the time before the first look. So that time must not count in the same figure.
        let first = moment.at - self.observed;
        for record in ours() {
            let begun = record.begun as f64 / 1e6;
            let seconds = match record.is_running {
                true => moment.at - begun.max(first),
                false => (begun + record.milliseconds as f64 / 1000.0 - begun.max(first)).max(0.0),
            };
            let busy = record.percent.map(|percent| percent as f64 / 100.0 * seconds.max(0.0));
            self.memory_peak = self.memory_peak.max(record.memory);
            if record.is_running {
                running = running.zip(busy).map(|(sum, busy)| sum + busy);
            } else if self.counters.counted.insert((record.pid, record.begun)) {
                self.counters.ended += 1;
                self.counters.ended_busy += busy.unwrap_or(0.0);
            }
        }
        let kept: BTreeSet<(u32, u64)> = ours().map(|record| (record.pid, record.begun)).collect();
        self.counters.counted.retain(|counted| kept.contains(counted));
        if self.counters.ended > before {
            // The GPU may have worked between two samples.
            self.idle_since = None;
        }
        // The driver has no record of a process that was there before accounting was on, and a record of 0 for one that lived for less than
        // a second. So the samples count if they say more, or if the share of a running process is unknown.
        let sampled = self.counters.sampled_busy;
        (self.source, self.busy) = match running.map(|running| self.counters.ended_busy + running) {
            Some(accounted) if accounted >= sampled && accounted > 0.0 => (Utilization::Accounted, accounted),
            _ => (Utilization::Sampled, sampled),
        };
        self.busy = self.busy.min(self.observed);
    }

    /// Adds a look at a GPU of another maker's. `clients`: the job's clients of this GPU. `counted`: the job's memory on it, as the kernel
    /// has counted it.
    pub fn add_drm(
        &mut self,
        device: &DrmDevice,
        is_whole: bool,
        (clients, counted): (&[&DrmClient], Option<CountedMemory>),
        moment: Moment,
    ) {
        let mut memory = None;
        let before = self.counters.engines_sum.values().copied().max();
        for client in clients {
            memory = client.memory.map(|bytes| memory.unwrap_or(0_u64).saturating_add(bytes)).or(memory);
            for (engine, busy) in &client.engines {
                let place = format!("{} {} {engine}", client.address, client.id);
                // A new client has worked for the job since the client's beginning.
                let last = self.counters.engines.insert(place, *busy).unwrap_or(0);
                *self.counters.engines_sum.entry(engine.clone()).or_default() += busy.saturating_sub(last);
            }
        }
        let ids: BTreeSet<String> = clients.iter().map(|client| format!("{} {}", client.address, client.id)).collect();
        self.counters.engines.retain(|place, _| place.rsplit_once(' ').is_some_and(|(id, _)| ids.contains(id)));
        let after = self.counters.engines_sum.values().copied().max();
        let is_device_known = is_whole && !self.is_shared && device.percent.is_some();
        if !is_whole {
            self.share();
        }
        if is_device_known {
            let percent = device.percent.map(|percent| percent as f64);
            self.add_percent(percent, percent, moment);
        } else if let Some(busy) = after {
            // The kind of engine with the largest sum counts, since a job may use one kind after another.
            let passed = (busy - before.unwrap_or(0)) as f64 / 1e9;
            self.source = Utilization::Engines;
            let percent = (moment.passed > 0.0).then(|| (100.0 * passed / moment.passed).min(100.0));
            self.add_percent(percent, percent, moment);
        }
        self.add_memory_of_drm(device, memory, counted);
        if !self.is_shared {
            match (device.energy, device.power) {
                (Some(energy), _) => self.add_energy(Some(energy)),
                (None, Some(power)) => {
                    let joules = power as f64 / 1000.0 * moment.passed;
                    self.energy = Some(self.energy.unwrap_or(0.0) + joules);
                }
                (None, None) => {}
            }
        }
    }

    /// Adds the memory of a look. The kernel counts the job's memory alone, so its count goes before the driver's. `of_clients`: what the
    /// driver says of the job's processes.
    fn add_memory_of_drm(&mut self, device: &DrmDevice, of_clients: Option<u64>, counted: Option<CountedMemory>) {
        // The kernel has no count for a part of a card. And its count lacks what the job had before the site switched the controller on.
        let is_most = |counted: &CountedMemory| self.is_memory_counted || self.memory_peak <= Some(counted.most());
        let counted = counted.filter(|counted| !device.is_divided && is_most(counted));
        let of_gpu = device.memory_total.filter(|_| !self.is_shared);
        if counted.is_some() || self.is_memory_counted {
            // A limit that was lifted no longer counts.
            self.memory_total = None;
        }
        self.is_memory_counted = counted.is_some();
        match counted {
            Some(counted) => {
                // The job could have what its directory's limit allows, even if another job has the GPU, too.
                let total = counted.total.filter(|_| counted.is_limited || !self.is_shared);
                self.add_memory(Some(counted.now), total.or(of_gpu));
                self.memory_peak = self.memory_peak.max(counted.peak);
            }
            None => self.add_memory(device.memory.filter(|_| !self.is_shared).or(of_clients), of_gpu),
        }
    }

    /// Makes the GPU a shared one: only figures by process count from now on.
    fn share(&mut self) {
        if self.is_shared {
            return;
        }
        self.is_shared = true;
        (self.percent_now, self.energy, self.slowed, self.idle_since) = (None, None, None, None);
        self.longest_idle = None;
        (self.memory_peak, self.memory_now, self.memory_total) = (None, None, None);
        (self.observed, self.busy, self.counters.sampled_busy) = (0.0, 0.0, 0.0);
        self.slowed_by.clear();
    }

    fn add_memory(&mut self, now: Option<u64>, total: Option<u64>) {
        self.memory_now = now;
        self.memory_peak = self.memory_peak.max(now);
        self.memory_total = total.or(self.memory_total);
    }

    fn add_energy(&mut self, counter: Option<u64>) {
        // A counter that has gone back belongs to a driver that was loaded again.
        let passed = counter.zip(self.counters.energy).and_then(|(now, last)| now.checked_sub(last));
        // The first counter has nothing to be compared with.
        if let Some(passed) = passed {
            self.energy = Some(self.energy.unwrap_or(0.0) + passed as f64 / 1000.0);
        }
        self.counters.energy = counter.or(self.counters.energy);
    }

    fn add_percent(&mut self, mean: Option<f64>, most: Option<f64>, moment: Moment) {
        self.percent_now = mean;
        if let Some(mean) = mean {
            self.observed += moment.passed;
            self.counters.sampled_busy += mean / 100.0 * moment.passed;
            self.busy = self.counters.sampled_busy;
        }
        match most {
            Some(most) if most < IDLE => self.idle_since = self.idle_since.or(Some(moment.at - moment.passed)),
            // A GPU whose use is unknown does not count as idle.
            _ => self.idle_since = None,
        }
    }

    /// The driver does not answer: the GPU's present use is unknown. What it did before stays known.
    pub fn forget_now(&mut self) {
        (self.percent_now, self.memory_now, self.idle_since) = (None, None, None);
    }
}

fn longest(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

/// What a job has used of the GPUs of this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobGpus {
    pub node: Option<String>,
    pub uid: Option<u32>,
    pub job: String,
    /// The job's directory and its number: another job's directory can have the same name.
    pub directory: String,
    pub inode: u64,
    /// When the job began and when it was last looked at, in seconds since 1970.
    pub started: f64,
    pub looked: f64,
    /// How many GPUs it was granted, if that is known.
    pub granted: Option<u64>,
    /// How long a GPU may be idle before its user is told, in seconds.
    pub idle_after: Option<u64>,
    /// What was said and done about idle GPUs.
    pub decision: IdleDecision,
    /// The GPUs in the order of their numbers.
    pub gpus: Vec<GpuUse>,
}

impl JobGpus {
    /// The figures of the GPU with this device. If there are none, they begin here.
    pub fn of(&mut self, device: &str) -> &mut GpuUse {
        let order = |device: &str| (super::number_of(device), device.to_owned());
        let place = self.gpus.binary_search_by_key(&order(device), |gpu| order(&gpu.device));
        let at = place.unwrap_or_else(|at| {
            self.gpus.insert(at, GpuUse::new(device));
            at
        });
        &mut self.gpus[at]
    }

    /// How long the GPU that has been idle longest has done nothing, in seconds, if the site allows less.
    pub fn idle(&self) -> Option<f64> {
        let longest = self.gpus.iter().filter_map(|gpu| gpu.idle(self.looked)).reduce(f64::max)?;
        (longest >= self.idle_after? as f64).then_some(longest)
    }

    /// Notes each GPU's idle time, if the site allows less.
    pub fn note_idle(&mut self) {
        let Some(after) = self.idle_after else { return };
        for gpu in &mut self.gpus {
            let idle = gpu.idle(self.looked).filter(|idle| *idle >= after as f64);
            gpu.longest_idle = longest(gpu.longest_idle, idle);
        }
    }

    /// How long all of the job's GPUs have done nothing, in seconds. `None`: one works, or the use of one is not known.
    pub fn all_idle(&self) -> Option<f64> {
        if self.granted.is_some_and(|granted| usize::try_from(granted).is_ok_and(|granted| self.gpus.len() < granted)) {
            return None;
        }
        let all: Option<Vec<f64>> = self.gpus.iter().map(|gpu| gpu.idle(self.looked)).collect();
        all?.into_iter().reduce(f64::min)
    }

    /// Leaves these seconds out of the idle time: nothing is known about them. If the number is negative, the clock was set back, and no
    /// idle time is known.
    pub fn leave_out(&mut self, seconds: f64) {
        for gpu in &mut self.gpus {
            gpu.idle_since = gpu.idle_since.filter(|_| seconds >= 0.0).map(|since| since + seconds);
        }
    }

    /// The mean over its GPUs and their time, in percent. `None` if one of them is unknown.
    pub fn percent(&self) -> Option<f64> {
        let all: Option<Vec<f64>> = self.gpus.iter().map(GpuUse::percent).collect();
        let observed: f64 = self.gpus.iter().map(|gpu| gpu.observed).sum();
        let busy: f64 = self.gpus.iter().map(|gpu| gpu.busy.min(gpu.observed)).sum();
        all.filter(|_| observed > 0.0).map(|_| 100.0 * busy / observed)
    }

    /// The mean over its GPUs at the last look.
    pub fn percent_now(&self) -> Option<f64> {
        let all: Option<Vec<f64>> = self.gpus.iter().map(|gpu| gpu.percent_now).collect();
        let all = all.filter(|all| !all.is_empty())?;
        Some(all.iter().sum::<f64>() / all.len() as f64)
    }

    /// A sum over its GPUs. `None`: a GPU lacks the figure.
    pub fn sum<T: std::iter::Sum>(&self, of: impl Fn(&GpuUse) -> Option<T>) -> Option<T> {
        if self.gpus.is_empty() {
            return None;
        }
        self.gpus.iter().map(of).sum()
    }

    /// Adds another part of the same job.
    pub fn merge(&mut self, other: &Self) {
        for gpu in &other.gpus {
            match self.gpus.iter().position(|own| own.device == gpu.device) {
                Some(at) => self.gpus[at].merge(gpu),
                None => *self.of(&gpu.device) = gpu.clone(),
            }
        }
        self.granted = self.granted.max(other.granted);
        self.started = self.started.min(other.started);
        self.looked = self.looked.max(other.looked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: &dyn Fn(u32) -> bool = &|_| false;

    fn moment(at: f64, passed: f64) -> Moment {
        Moment { at, passed }
    }

    fn gpu(percent: f64, memory: u64, energy: u64) -> NvidiaGpu {
        NvidiaGpu {
            percent: Some(percent),
            most_percent: Some(percent),
            memory: Some(memory),
            memory_total: Some(100),
            energy: Some(energy),
            slowed: Some(0x01),
            ..NvidiaGpu::default()
        }
    }

    #[test]
    fn a_whole_gpu_is_weighted_by_time() {
        let mut used = GpuUse::new("/dev/nvidia0");
        for (at, passed, percent, memory, energy) in
            [(110.0, 10.0, 50.0, 7, 5_000), (120.0, 10.0, 100.0, 9, 6_500), (150.0, 30.0, 0.0, 2, 9_000)]
        {
            used.add_nvidia(&gpu(percent, memory, energy), true, NOBODY, moment(at, passed), 100.0);
        }
        assert_eq!((used.percent(), used.observed), (Some(30.0), 50.0));
        assert_eq!((used.memory_peak, used.memory_now, used.memory_total), (Some(9), Some(2), Some(100)));
        assert_eq!((used.energy, used.slowed, used.source), (Some(4.0), Some(0.0), Utilization::Sampled));
        // The GPU has been idle since the look before.
        assert_eq!((used.idle_since, used.idle(155.0)), (Some(120.0), Some(35.0)));
        // A driver that was loaded again counts from 0. A figure that it does not say is not 0, and is no idleness.
        let mut unknown = gpu(0.0, 1, 10);
        (unknown.percent, unknown.most_percent, unknown.memory) = (None, None, None);
        unknown.slowed = Some(0x40 | 0x01);
        used.add_nvidia(&unknown, true, NOBODY, moment(160.0, 10.0), 100.0);
        assert_eq!((used.energy, used.percent(), used.idle_since), (Some(4.0), Some(30.0), None));
        assert_eq!((used.memory_now, used.slowed), (None, Some(10.0)));
        assert_eq!(used.slowed_by.iter().collect::<Vec<_>>(), ["temperature"]);
    }

    #[test]
    fn of_a_shared_gpu_only_the_jobs_processes_count() {
        let mut used = GpuUse::new("/dev/nvidia0");
        used.add_nvidia(&gpu(50.0, 70, 5_000), true, NOBODY, moment(110.0, 10.0), 100.0);
        let shared =
            NvidiaGpu { processes: Some(vec![(7, Some(20)), (8, Some(40)), (9, Some(3))]), ..gpu(90.0, 80, 9_000) };
        used.add_nvidia(&shared, false, &|pid| pid == 7 || pid == 9, moment(120.0, 10.0), 100.0);
        assert_eq!((used.percent(), used.percent_now, used.energy, used.idle_since), (None, None, None, None));
        assert_eq!((used.memory_now, used.memory_peak, used.memory_total), (Some(23), Some(23), None));
        // The figures stay unknown when the other job has ended.
        used.add_nvidia(&shared, true, &|pid| pid == 7, moment(130.0, 10.0), 100.0);
        assert_eq!((used.percent(), used.energy, used.memory_peak), (None, None, Some(23)));
        // The memory of a process is unknown.
        let unknown = NvidiaGpu { processes: Some(vec![(7, None)]), ..shared };
        used.add_nvidia(&unknown, false, &|pid| pid == 7, moment(140.0, 10.0), 100.0);
        assert_eq!((used.memory_now, used.memory_peak), (None, Some(23)));
    }

    fn record(pid: u32, begun: u64, percent: u64, milliseconds: u64, is_running: bool) -> Accounted {
        let begun = begun * 1_000_000;
        Accounted { pid, begun, percent: Some(percent), memory: Some(pid.into()), milliseconds, is_running }
    }

    fn busy(used: &GpuUse) -> f64 {
        (used.busy * 1000.0).round() / 1000.0
    }

    #[test]
    fn records_count_processes_that_no_look_has_seen() {
        let mut used = GpuUse::new("/dev/nvidia0");
        let look = |used: &mut GpuUse, at: f64, records: Vec<Accounted>| {
            let gpu = NvidiaGpu { accounted: Some(records), ..gpu(0.0, 1, 0) };
            used.add_nvidia(&gpu, true, NOBODY, moment(at, 10.0), 100.0);
        };
        // A hundred short processes are the job's, and one is an earlier job's.
        let mut short: Vec<Accounted> = (1..=100).map(|pid| record(pid, 105, 100, 50, false)).collect();
        short.push(record(999, 50, 100, 60_000, false));
        look(&mut used, 110.0, short.clone());
        assert_eq!((busy(&used), used.counters.ended, used.source), (5.0, 100, Utilization::Accounted));
        assert_eq!(used.memory_peak, Some(100));
        // Each record counts once. A running process counts by its time so far, and at its end by its record.
        short.push(record(200, 112, 50, 0, true));
        look(&mut used, 120.0, short);
        assert_eq!((busy(&used), used.counters.ended), (9.0, 100));
        look(&mut used, 130.0, vec![record(200, 112, 50, 10_000, false)]);
        assert_eq!((busy(&used), used.counters.ended), (10.0, 101));
        assert_eq!(used.counters.counted.len(), 1, "no more than the driver has");
    }

    #[test]
    fn other_makers_count_by_device_or_by_the_busiest_engine() {
        let client = |id: u64, gfx: u64, compute: u64| DrmClient {
            pid: 1,
            address: "a".into(),
            id,
            engines: BTreeMap::from([("gfx".to_owned(), gfx), ("compute".to_owned(), compute)]),
            memory: Some(id * 10),
        };
        const SECOND: u64 = 1_000_000_000;
        let mut used = GpuUse::new("/dev/dri/renderD128");
        let device = DrmDevice { name: "renderD128".into(), memory_total: Some(99), ..DrmDevice::default() };
        let mut look = |at: f64, clients: &[DrmClient]| {
            used.add_drm(&device, true, (&clients.iter().collect::<Vec<_>>(), None), moment(at, 10.0));
        };
        look(10.0, &[client(1, SECOND, 4 * SECOND)]);
        look(20.0, &[client(1, SECOND, 6 * SECOND), client(2, SECOND, 0)]);
        look(30.0, &[client(2, SECOND, 0)]);
        assert_eq!((used.percent(), used.source), (Some(20.0), Utilization::Engines));
        assert_eq!((used.memory_peak, used.memory_now, used.memory_total), (Some(30), Some(20), Some(99)));
        assert_eq!((used.idle_since, used.energy), (Some(20.0), None));
        assert_eq!(used.counters.engines.len(), 2, "of clients that are there");
        let mut used = GpuUse::new("/dev/dri/renderD128");
        let device = DrmDevice { percent: Some(40), memory: Some(5), power: Some(2000), ..device };
        used.add_drm(&device, true, (&[], None), moment(10.0, 10.0));
        assert_eq!((used.percent(), used.energy, used.memory_now), (Some(40.0), Some(20.0), Some(5)));
        used.add_drm(&device, false, (&[], None), moment(20.0, 10.0));
        assert_eq!((used.percent(), used.energy, used.memory_now), (None, None, None));
        // The engines' time is known by process, also on a shared GPU.
        let own = client(3, SECOND, 0);
        used.add_drm(&device, false, (&[&own], None), moment(30.0, 10.0));
        assert_eq!((used.percent(), used.memory_now, used.memory_total), (Some(10.0), Some(30), None));
    }

    /// The memory after these looks: now, peak, total, and whether the kernel counted it. The driver says 100 of 900 at each look. `looks`:
    /// whether the card is divided, and the kernel's count.
    fn memory_after(looks: &[(bool, Option<CountedMemory>)]) -> (Option<u64>, Option<u64>, Option<u64>, bool) {
        let device = DrmDevice { memory: Some(100), memory_total: Some(900), ..DrmDevice::default() };
        let mut used = GpuUse::new("/dev/dri/renderD128");
        for (is_divided, counted) in looks {
            let device = DrmDevice { is_divided: *is_divided, ..device.clone() };
            used.add_drm(&device, true, (&[], *counted), moment(10.0, 10.0));
        }
        (used.memory_now, used.memory_peak, used.memory_total, used.is_memory_counted)
    }

    #[test]
    fn memory_is_of_the_kernel_or_of_the_driver_and_never_of_both() {
        let of = |now, peak| Some(CountedMemory { now, peak: Some(peak), total: Some(800), is_limited: false });
        let drivers = (Some(100), Some(100), Some(900), false);
        assert_eq!(memory_after(&[(false, of(7, 8))]), (Some(7), Some(8), Some(800), true));
        assert_eq!(memory_after(&[(false, None)]), drivers);
        // The controller is switched off, or is switched on after the driver has said more.
        assert_eq!(memory_after(&[(false, of(7, 8)), (false, None)]), drivers);
        assert_eq!(memory_after(&[(false, None), (false, of(7, 99))]), drivers);
        assert_eq!(memory_after(&[(false, None), (false, of(7, 100))]), (Some(7), Some(100), Some(800), true));
        // If the kernel has no peak, the highest value that was read is the peak.
        let without_peak = |now| Some(CountedMemory { peak: None, ..of(now, 0).unwrap() });
        let looks = [(false, without_peak(9)), (false, without_peak(7))];
        assert_eq!(memory_after(&looks), (Some(7), Some(9), Some(800), true));
        // The kernel has no count for a part of a card.
        assert_eq!(memory_after(&[(true, of(7, 8))]), drivers);
        let mut parts = [(300, true), (200, false)].map(|(peak, is_memory_counted)| GpuUse {
            memory_peak: Some(peak),
            is_memory_counted,
            ..GpuUse::new("/dev/dri/renderD128")
        });
        let (one, other) = (parts[0].clone(), parts[1].clone());
        parts[0].merge(&other);
        parts[1].merge(&one);
        assert_eq!(parts.map(|part| (part.memory_peak, part.is_memory_counted)), [(Some(300), true); 2]);
    }

    #[test]
    fn a_limit_of_memory_that_was_lifted_is_none() {
        let limited = |total| CountedMemory { now: 7, peak: None, total: Some(total), is_limited: true };
        let lifted = CountedMemory { is_limited: false, ..limited(800) };
        assert_eq!(memory_after(&[(false, Some(limited(30)))]).2, Some(30));
        assert_eq!(memory_after(&[(false, Some(limited(30))), (false, Some(lifted))]).2, Some(800));
        let mut shared = GpuUse::new("/dev/dri/renderD128");
        for (counted, total) in
            [(Some(limited(30)), Some(30)), (Some(lifted), None), (Some(limited(20)), Some(20)), (None, None)]
        {
            let device = DrmDevice { memory_total: Some(900), ..DrmDevice::default() };
            shared.add_drm(&device, false, (&[], counted), moment(10.0, 10.0));
            assert_eq!(shared.memory_total, total, "{counted:?}");
        }
    }

    #[test]
    fn a_job_is_the_sum_of_its_gpus_and_idle_if_one_is() {
        let mut job = JobGpus { looked: 100.0, ..JobGpus::default() };
        for number in [10_u32, 2] {
            let gpu = job.of(&format!("/dev/nvidia{number}"));
            (gpu.observed, gpu.busy, gpu.memory_peak) = (10.0, f64::from(number) / 2.0, Some(number.into()));
        }
        assert_eq!(
            job.gpus.iter().map(|gpu| gpu.device.as_str()).collect::<Vec<_>>(),
            ["/dev/nvidia2", "/dev/nvidia10"]
        );
        assert_eq!((job.percent(), job.sum(|gpu| gpu.memory_peak)), (Some(30.0), Some(12)));
        job.of("/dev/nvidia2").idle_since = Some(30.0);
        assert_eq!(job.idle(), None);
        job.idle_after = Some(71);
        assert_eq!(job.idle(), None);
        job.idle_after = Some(70);
        assert_eq!(job.idle(), Some(70.0));
        // The longest time stays.
        let longest = |job: &mut JobGpus| {
            job.note_idle();
            job.gpus.iter().map(|gpu| gpu.longest_idle).collect::<Vec<_>>()
        };
        job.of("/dev/nvidia10").idle_since = Some(31.0);
        assert_eq!(longest(&mut job), [Some(70.0), None]);
        job.gpus.iter_mut().for_each(|gpu| gpu.idle_since = None);
        assert_eq!(longest(&mut job), [Some(70.0), None]);
        let mut both = job.clone();
        both.merge(&job);
        assert_eq!((both.gpus.len(), both.percent(), both.sum(|gpu| gpu.memory_peak)), (2, Some(30.0), Some(12)));
        job.of("/dev/nvidia3");
        assert_eq!((job.percent(), job.sum(|gpu| gpu.memory_peak)), (None, None));
        assert_eq!((JobGpus::default().percent(), JobGpus::default().sum(|gpu| gpu.memory_peak)), (None, None));
    }
}
