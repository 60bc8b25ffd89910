// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobs use of GPUs, for people.

use std::time::Duration;

use jobfence::bytes::mebibytes;
use jobfence::report::card;

use super::figures::{GpuUse, JobGpus};
use crate::energy::watt_hours;
use crate::table::{NONE, clock, printable};

/// The note on memory that the kernel has counted.
const COUNTED: &str = " (by dmem)";

impl GpuUse {
    /// The GPU's number, if it has one.
    pub fn number(&self) -> Option<u32> {
        super::number_of(&self.device)
    }

    /// The GPU's number or, if it has none, its device.
    pub fn name(&self) -> String {
        self.number().map_or_else(|| printable(&self.device), |number| number.to_string())
    }

    /// The source of its utilization.
    pub fn source_in_words(&self) -> &'static str {
        self.source.word()
    }

    /// Its figures in lines of a narrow page.
    fn in_words(&self, looked: f64) -> Vec<String> {
        let mean = match self.percent() {
            Some(mean) => format!(", {mean:.1} % so far (by {})", self.source.word()),
            None if self.is_shared => "; not this job's alone".to_owned(),
            None => String::new(),
        };
        let memory = memory(self.memory_peak, self.memory_total) + if self.is_memory_counted { COUNTED } else { "" };
        let mut lines = vec![
            format!("{} busy {} now{mean}", self.name(), percent(self.percent_now)),
            memory + &energy(self.energy),
        ];
        let slowed = self.slowed.filter(|seconds| *seconds > 0.0).map(|seconds| {
            let reasons: Vec<&str> = self.slowed_by.iter().map(String::as_str).collect();
            format!("slowed for {} by {}", time(seconds), reasons.join(", "))
        });
        let idle = self.idle(looked).filter(|seconds| *seconds >= 1.0);
        lines.extend(idle.map(|seconds| format!("idle for {}", time(seconds))));
        lines.extend(slowed);
        lines
    }
}

impl JobGpus {
    /// A sentence that says which GPUs did nothing for longer than the site allows, and for how long.
    pub fn held_idle(&self) -> Option<String> {
        let idle: Vec<(&GpuUse, f64)> =
            self.gpus.iter().filter_map(|gpu| gpu.longest_idle.map(|longest| (gpu, longest))).collect();
        let longest = idle.iter().map(|(_, longest)| *longest).reduce(f64::max)?;
        let longest = card::duration(Duration::try_from_secs_f64(longest).ok()?);
        let names: Vec<String> = idle.iter().map(|(gpu, _)| gpu.name()).collect();
        Some(match (&names[..], self.gpus.len()) {
            ([_], 1) => format!("Its GPU did nothing for {longest} at a time"),
            ([name], _) => format!("GPU {name} did nothing for {longest} at a time"),
            (names, all) if names.len() == all => format!("Each of its GPUs did nothing for up to {longest} at a time"),
            (names, _) => format!("GPUs {} did nothing for up to {longest} at a time", names.join(", ")),
        })
    }
}

/// Lines for each GPU of a live job: the head and the text of each.
pub fn in_words(gpus: &JobGpus) -> Vec<(&'static str, String)> {
    let of_gpu = |gpu: &GpuUse| gpu.in_words(gpus.looked).into_iter().enumerate();
    gpus.gpus.iter().flat_map(of_gpu).map(|(at, text)| (if at == 0 { "GPU" } else { "" }, text)).collect()
}

/// The sums over a job's GPUs: how busy they were, and their memory.
pub fn of_all(gpus: &JobGpus) -> [String; 2] {
    let count = gpus.granted.unwrap_or(gpus.gpus.len() as u64);
    let mut sources: Vec<&str> =
        gpus.gpus.iter().filter(|gpu| gpu.percent().is_some()).map(|gpu| gpu.source.word()).collect();
    sources.dedup();
    let busy = match gpus.percent() {
        Some(percent) => format!("busy {percent:.1} % (by {})", sources.join(" and ")),
        None => "busy for an unknown time".to_owned(),
    };
    let are_counted = !gpus.gpus.is_empty() && gpus.gpus.iter().all(|gpu| gpu.is_memory_counted);
    let memory = memory(gpus.sum(|gpu| gpu.memory_peak), gpus.sum(|gpu| gpu.memory_total));
    let memory = memory + if are_counted { COUNTED } else { "" };
    [format!("{count}, {busy}{}", energy(gpus.sum(|gpu| gpu.energy))), memory]
}

fn energy(joules: Option<f64>) -> String {
    joules.map(|joules| format!(", {}", watt_hours(joules))).unwrap_or_default()
}

fn memory(peak: Option<u64>, total: Option<u64>) -> String {
    let peak = peak.map_or_else(|| NONE.to_owned(), mebibytes);
    let total = total.map(|total| format!(" of {}", mebibytes(total))).unwrap_or_default();
    format!("{peak}{total} at the most")
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.0} %"))
}

fn time(seconds: f64) -> String {
    clock(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_to_be() {
        let mut job = JobGpus { looked: 100.0, ..JobGpus::default() };
        let gpu = job.of("/dev/nvidia0");
        (gpu.observed, gpu.busy, gpu.percent_now) = (100.0, 25.0, Some(0.0));
        (gpu.memory_peak, gpu.memory_total) = (Some(1 << 30), Some(4 << 30));
        (gpu.energy, gpu.slowed, gpu.idle_since) = (Some(7200.0), Some(61.0), Some(40.0));
        gpu.slowed_by.insert("temperature".into());
        let lines = [
            ("GPU", "0 busy 0 % now, 25.0 % so far (by samples)"),
            ("", "1024.0 MiB of 4096.0 MiB at the most, 2.0 Wh"),
            ("", "idle for 1:00"),
            ("", "slowed for 1:01 by temperature"),
        ];
        assert_eq!(in_words(&job), lines.map(|(head, text)| (head, text.to_owned())));
        assert_eq!(of_all(&job), ["1, busy 25.0 % (by samples), 2.0 Wh", "1024.0 MiB of 4096.0 MiB at the most"]);
        job.of("/dev/nvidia0").is_memory_counted = true;
        assert_eq!(in_words(&job)[1].1, "1024.0 MiB of 4096.0 MiB at the most (by dmem), 2.0 Wh");
        assert_eq!(of_all(&job)[1], "1024.0 MiB of 4096.0 MiB at the most (by dmem)");
        job.of("/dev/nvidia1").is_shared = true;
        let lines = in_words(&job);
        assert_eq!((lines[4].1.as_str(), lines[5].1.as_str()), ("1 busy - now; not this job's alone", "- at the most"));
        assert_eq!(of_all(&job), ["2, busy for an unknown time", "- at the most"]);
    }
}
