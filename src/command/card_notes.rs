// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` knows of a job for its card, and no other process does: its GPUs, its energy, its caches, and what it held and did not
//! use.
//!
//! The card is written by a scheduler's daemon, which asks no driver. So with each sample the text is put on the job's directory, where the
//! daemon reads it with three system calls, and with which it goes.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobfence::bytes::binary;
use jobfence::config::Config;
use jobfence::fence::living::LivingStep;
use jobfence::record::card_note;
use jobfence::report::account::utc;
use jobfence::report::card::{duration, several};
use nix::time::{ClockId, clock_gettime};

use crate::energy::{StepEnergy, carbon, grams, watt_hours};
use crate::gpu::{GpuSampler, GpuUse, JobGpus};
use crate::idle::IdleSampler;
use crate::kept;
use crate::local_time::LocalTime;
use crate::network::{JobNetwork, NetworkKeeper};
use crate::resctrl::JobCache;
use crate::series::Series;

/// A live step: its job's key, and the name of its series.
pub struct StepOfAJob<'a> {
    pub step: &'a LivingStep<'a>,
    pub key: String,
    pub name: String,
}

/// The energy of each job's steps, ended ones included, by the job's key; and the number of the job's directory, since another run of the
/// job has another.
#[derive(Default)]
pub struct CardNotes(HashMap<String, (u64, StepEnergy)>);

impl CardNotes {
    /// Notes what is known of the jobs of these steps. `divided`: the energy of each step since the last sample.
    pub fn look(
        &mut self,
        config: &Config,
        steps: &[StepOfAJob<'_>],
        (divided, series): (&HashMap<String, StepEnergy>, &HashMap<String, Series>),
        (gpus, idle, network): (&GpuSampler, &IdleSampler, &NetworkKeeper),
    ) {
        let mut jobs: BTreeMap<&str, Vec<&StepOfAJob<'_>>> = BTreeMap::new();
        for step in steps {
            jobs.entry(&step.key).or_default().push(step);
        }
        let (since_boot, now) = (clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from), SystemTime::now());
        self.0.retain(|key, _| jobs.contains_key(key.as_str()));
        for (key, steps) in &jobs {
            let Some(first) = steps.first() else { continue };
            let added = sum(steps.iter().filter_map(|step| divided.get(&step.name).copied()));
            let so_far = sum(steps.iter().filter_map(|step| series.get(&step.name)?.energy));
            let energy = self.energy(key, first.step, added, so_far);
            let energy = energy.map(|energy| (energy, first.step.cpu_time_of_job()));
            let idle = idle.of_job(key).and_then(|idle| idle.longest());
            let gpus = gpus.of_job(key);
            let network = network.of_job(key).and_then(JobNetwork::for_a_card);
            let network = network.map(|network| format!("network\t\t{network}"));
            let rows = network.into_iter().chain(of_cache(config, first.step)).collect();
            let text = text(gpus, energy, config.carbon_intensity, rows, idle);
            let text = Some(text).filter(|text| !text.is_empty());
            let note = text.and_then(|text| Some(note(&text, gpus, since_boot?, now)));
            if let Err(error) = first.step.note_for_a_card(note.as_deref()) {
                log::debug!("a card will not say what is known of its job: {error}");
            }
        }
    }

    /// What the job has used so far. What steps have used that ended before this program began is not in it.
    fn energy(
        &mut self,
        key: &str,
        step: &LivingStep<'_>,
        added: Option<StepEnergy>,
        so_far: Option<StepEnergy>,
    ) -> Option<StepEnergy> {
        if so_far.is_none() && !self.0.contains_key(key) {
            return None;
        }
        let number = std::fs::symlink_metadata(&step.places.first()?.job).ok()?.ino();
        match self.0.get_mut(key).filter(|(known, _)| *known == number) {
            Some((_, energy)) => energy.add(added.unwrap_or_default()),
            None => {
                self.0.insert(key.to_owned(), (number, so_far?));
            }
        }
        self.0.get(key).map(|(_, energy)| *energy)
    }
}

/// The row of what the job has used of caches and memory bandwidth, if it has a group.
fn of_cache(config: &Config, step: &LivingStep<'_>) -> Option<String> {
    let job: JobCache = kept::living(&config.run_dir, step.node.as_deref(), step.uid, &step.job)?;
    Some(format!("cache\t\t{}", job.used.for_a_card()?))
}

/// The note of these lines. It is as old as what it says of GPUs, which a driver that does not answer leaves as it was.
fn note(lines: &str, gpus: Option<&JobGpus>, since_boot: Duration, now: SystemTime) -> String {
    let is_known = |gpu: &GpuUse| {
        gpu.observed > 0.0 || gpu.memory_peak.is_some() || gpu.energy.is_some() || gpu.longest_idle.is_some()
    };
    let gpus = gpus.filter(|gpus| gpus.gpus.iter().any(is_known));
    let looked = gpus.and_then(|gpus| UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(gpus.looked).ok()?));
    // A clock that was set back says of none how old it is.
    let looked = looked.filter(|looked| *looked <= now).unwrap_or(now);
    let age = now.duration_since(looked).unwrap_or_default();
    card_note::note(since_boot.saturating_sub(age), &minute(&utc(looked)), lines)
}

/// A time as people on this host read it, without its seconds.
pub fn minute(moment: &str) -> String {
    let local = LocalTime::from_moment(moment).map(|local| format!("{} {}", local.date, local.clock));
    let local = local.unwrap_or_else(|| moment.replace('T', " "));
    local.get(..16).unwrap_or_default().to_owned()
}

fn sum(all: impl Iterator<Item = StepEnergy>) -> Option<StepEnergy> {
    all.reduce(|mut sum, energy| {
        sum.add(energy);
        sum
    })
}

/// The lines, in the form of the card's `noted`. `energy`: with the job's CPU time. `idle`: in seconds.
fn text(
    gpus: Option<&JobGpus>,
    energy: Option<(StepEnergy, Option<Duration>)>,
    carbon_intensity: Option<u64>,
    rows: Vec<String>,
    idle: Option<f64>,
) -> String {
    let mut lines = gpus.map(of_gpus).unwrap_or_default();
    let of_gpus = gpus.and_then(|gpus| gpus.sum(|gpu| gpu.energy));
    let all = match (energy, gpus.is_some(), of_gpus) {
        (Some((energy, _)), false, _) => Some(energy.joules),
        (Some((energy, _)), true, Some(of_gpus)) => Some(energy.joules + of_gpus),
        _ => None,
    };
    let carbon = all.zip(carbon_intensity).map(|(joules, of_kwh)| grams(carbon(joules, of_kwh)));
    let of_cpus = energy.map(|(energy, cpu)| energy.in_words(cpu));
    let of_gpus = of_gpus.map(|joules| format!("{} of GPUs", watt_hours(joules)));
    let parts: Vec<String> = [of_cpus, of_gpus, carbon].into_iter().flatten().collect();
    if !parts.is_empty() {
        lines.push(format!("energy\t\t{}", parts.join("; ")));
    }
    lines.extend(rows);
    lines.extend(gpus.and_then(JobGpus::held_idle).map(|idle| format!("\t\t{idle}.")));
    let idle = idle.and_then(|idle| Duration::try_from_secs_f64(idle).ok());
    lines.extend(idle.map(|idle| format!("\t\tIt used almost no CPU time for {} at a time.", duration(idle))));
    lines.join("\n")
}

fn of_gpus(gpus: &JobGpus) -> Vec<String> {
    let count = gpus.gpus.len() as u64;
    let are_all_seen = gpus.granted.is_none_or(|granted| granted <= count);
    let share = gpus.percent().filter(|_| are_all_seen).map(|percent| {
        let busy = percent / 100.0 * count as f64;
        format!("GPUs\t{percent:.0}\t{busy:.2} of {} on average", several(count, "GPU", "GPUs"))
    });
    let memory = gpus.sum(|gpu| gpu.memory_peak).filter(|_| are_all_seen).map(|peak| {
        let total = gpus.sum(|gpu| gpu.memory_total).filter(|total| *total > 0);
        let share = total.map(|total| format!("{:.0}", 100.0 * peak as f64 / total as f64)).unwrap_or_default();
        let of = total.map(|total| format!(" of {}", binary(total))).unwrap_or_default();
        format!("GPU mem\t{share}\tpeak {}{of}", binary(peak))
    });
    [share, memory].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(longest: [Option<f64>; 2]) -> JobGpus {
        let mut job = JobGpus { granted: Some(2), ..JobGpus::default() };
        for (number, longest) in longest.into_iter().enumerate() {
            let gpu = job.of(&format!("/dev/nvidia{number}"));
            (gpu.observed, gpu.busy, gpu.longest_idle) = (100.0, 22.0 * (1.0 + number as f64), longest);
            (gpu.memory_peak, gpu.memory_total, gpu.energy) = (Some(3 << 30), Some(40 << 30), Some(3600.0));
        }
        job
    }

    #[test]
    fn a_card_says_what_is_known_and_no_more() {
        let energy = StepEnergy { joules: 7200.0, cpu_seconds: 50.0 };
        let energy = Some((energy, Some(Duration::from_secs(100))));
        let job = gpus([None; 2]);
        let all = "GPUs\t33\t0.66 of 2 GPUs on average\nGPU mem\t8\tpeak 6.0 GiB of 80.0 GiB\n\
                   energy\t\t2.0 Wh for 50 % of its CPU time; 2.0 Wh of GPUs; 1.60 g of CO2";
        assert_eq!(text(Some(&job), energy, Some(400), Vec::new(), None), all);
        assert_eq!(text(None, None, Some(400), Vec::new(), None), "");
        assert_eq!(text(None, energy, None, Vec::new(), None), "energy\t\t2.0 Wh for 50 % of its CPU time");
        let rows = ["network\t\t1.0 GiB sent", "cache\t\tup to 1.0 MiB"].map(str::to_owned);
        assert_eq!(text(None, None, None, rows.to_vec(), None), rows.join("\n"));
        // One of three was never seen, or is shared: the CO2 of all is unknown.
        let shared = {
            let mut job = gpus([None; 2]);
            job.granted = Some(3);
            job.gpus[0].energy = None;
            job
        };
        assert_eq!(
            text(Some(&shared), energy, Some(400), Vec::new(), None),
            "energy\t\t2.0 Wh for 50 % of its CPU time"
        );
    }

    #[test]
    fn a_note_is_as_old_as_its_figures_of_gpus() {
        let (now, since_boot) = (UNIX_EPOCH + Duration::from_secs(1_800_000_000), Duration::from_secs(5000));
        let head = |gpus: Option<&JobGpus>| note("a\t\tb", gpus, since_boot, now).lines().next().unwrap().to_owned();
        let of = |seconds: u64| {
            let at = now - Duration::from_secs(seconds);
            format!("1 {} {}", 5000 - seconds, minute(&utc(at)))
        };
        let looked = |looked| JobGpus { looked, ..gpus([None; 2]) };
        assert_eq!(head(None), of(0));
        assert_eq!(head(Some(&looked(1_799_999_000.0))), of(1000));
        // A clock was set back, a time is none, or nothing is said of the GPUs.
        for none in [1_800_000_001.0, f64::NAN, -1.0, f64::MAX] {
            assert_eq!(head(Some(&looked(none))), of(0), "{none}");
        }
        let mut unknown = JobGpus { looked: 1_799_999_000.0, ..JobGpus::default() };
        unknown.of("/dev/nvidia0");
        assert_eq!(head(Some(&unknown)), of(0));
        // The figures are from before the boot.
        assert!(note("a", Some(&looked(1.0)), since_boot, now).starts_with("1 0 "));
    }

    #[test]
    fn what_was_held_and_idle_is_a_remark() {
        let of = |longest, idle| text(Some(&gpus(longest)), None, None, Vec::new(), idle).replace("at a time", "@");
        let said = |longest, idle| of(longest, idle).lines().filter(|line| line.starts_with('\t')).collect::<String>();
        assert_eq!(said([None, None], None), "");
        assert_eq!(said([Some(2310.0), None], None), "\t\tGPU 0 did nothing for 38 min 30 s @.");
        assert_eq!(said([Some(60.0), Some(2310.0)], None), "\t\tEach of its GPUs did nothing for up to 38 min 30 s @.");
        assert_eq!(said([None; 2], Some(5400.0)), "\t\tIt used almost no CPU time for 1 h 30 min @.");
    }
}
