// SPDX-License-Identifier: GPL-2.0-or-later
//! The figures of one GPU: each once, with its name, its unit, where it is, how two are added, and its metric.
//!
//! A new figure needs a row here, and code that adds it up in `figures`. JSON, its reader, sums over GPUs and metrics follow from the row.

use jobfence::figures::Adds;
use serde_json::Value;

use super::figures::GpuUse;

/// A figure of one GPU.
pub struct GpuFigure {
    /// Its member in JSON: its name with its unit behind it.
    pub member: &'static str,
    value: FigureValue,
    adds: Adds,
    /// Whether the job has a member of this name, too: the sum over its GPUs.
    pub is_summed: bool,
    /// Its metric, if it has one: name and help. A metric of a share is a ratio.
    pub metric: &'static [(&'static str, &'static str)],
    per: f64,
}

/// How a figure is read from a GPU's use, and put there. Moments are in seconds since 1970: that of the last look.
#[derive(Clone, Copy)]
enum FigureValue {
    Bytes(fn(&GpuUse) -> Option<u64>, fn(&mut GpuUse, Option<u64>)),
    /// Written to three places. If the GPU cannot be without the figure, putting `None` there fails.
    Decimal(fn(&GpuUse, f64) -> Option<f64>, fn(&mut GpuUse, Option<f64>, f64) -> Option<()>),
}

macro_rules! value {
    (bytes $name:ident) => {
        FigureValue::Bytes(|gpu| gpu.$name, |gpu, bytes| gpu.$name = bytes)
    };
    (decimal $name:ident) => {
        FigureValue::Decimal(
            |gpu, _| gpu.$name,
            |gpu, number, _| {
                gpu.$name = number;
                Some(())
            },
        )
    };
    (always $name:ident) => {
        FigureValue::Decimal(
            |gpu, _| Some(gpu.$name),
            |gpu, number, _| {
                gpu.$name = number?;
                Some(())
            },
        )
    };
    // It follows from the others.
    (shown $name:ident) => {
        FigureValue::Decimal(|gpu, _| gpu.$name(), |_, _, _| Some(()))
    };
    (since $since:ident $name:ident) => {
        FigureValue::Decimal(
            |gpu, looked| gpu.$name(looked),
            |gpu, seconds, looked| {
                gpu.$since = seconds.map(|seconds| looked - seconds);
                Some(())
            },
        )
    };
}

macro_rules! unit {
    (suffix Percent) => {
        "_percent"
    };
    (suffix Bytes) => {
        "_bytes"
    };
    (suffix Joules) => {
        "_joules"
    };
    (suffix Seconds) => {
        "_seconds"
    };
    (per Percent) => {
        100.0
    };
    (per $unit:ident) => {
        1.0
    };
}

/// A row: the member's name without its unit, the unit, where it is, how two are added, `Job` if a job has the sum of it, and its metric.
macro_rules! figures {
    ($($name:ident: $unit:ident, ($($value:tt)*), $adds:ident $(, $job:ident)? $(=> $metric:literal, $help:literal)?;)*) => {
        /// Each figure, in the order of their metrics.
        pub static GPU_FIGURES: &[GpuFigure] = &[$(GpuFigure {
            member: concat!(stringify!($name), unit!(suffix $unit)),
            value: value!($($value)*),
            adds: Adds::$adds,
            is_summed: { let of_job: &[&str] = &[$(stringify!($job))?]; !of_job.is_empty() },
            metric: &[$(($metric, $help))?],
            per: unit!(per $unit),
        }),*];
    };
}

figures! {
    utilization_now: Percent, (decimal percent_now), Now => "jobfence_job_gpu_utilization_ratio",
        "Share of the time at the last sample in which the job's GPU was busy.";
    utilization: Percent, (shown percent), Now => "jobfence_job_gpu_mean_utilization_ratio",
        "Share of the job's time so far in which its GPU was busy, as far as that is known.";
    observed: Seconds, (always observed), Sum;
    busy: Seconds, (always busy), Sum;
    memory_now: Bytes, (bytes memory_now), Now => "jobfence_job_gpu_memory_used_bytes",
        "Memory of the GPU that the job has in use.";
    memory_peak: Bytes, (bytes memory_peak), Most, Job => "jobfence_job_gpu_memory_peak_bytes",
        "Most memory of the GPU that the job has had in use.";
    memory_total: Bytes, (bytes memory_total), Most, Job => "jobfence_job_gpu_memory_total_bytes",
        "Memory of the GPU that the job has.";
    energy: Joules, (decimal energy), Sum, Job => "jobfence_job_gpu_energy_joules_total",
        "Energy that the GPU has used for the job.";
    slowed: Seconds, (decimal slowed), Sum => "jobfence_job_gpu_slowed_seconds_total",
        "Time in which the GPU's clocks were slow for lack of power or cooling.";
    longest_idle: Seconds, (decimal longest_idle), Most;
    idle: Seconds, (since idle_since idle), Now;
}

impl GpuFigure {
    /// As JSON has it.
    pub fn json(&self, gpu: &GpuUse, looked: f64) -> Value {
        match self.value {
            FigureValue::Bytes(of, _) => of(gpu).into(),
            FigureValue::Decimal(of, _) => of(gpu, looked).map(decimal).into(),
        }
    }

    /// Puts what JSON has there. `None`: a GPU's use cannot be without it.
    pub fn put(&self, gpu: &mut GpuUse, json: &Value, looked: f64) -> Option<()> {
        let value = json.get(self.member);
        match self.value {
            FigureValue::Bytes(_, put) => put(gpu, value.and_then(Value::as_u64)),
            FigureValue::Decimal(_, put) => put(gpu, value.and_then(Value::as_f64), looked)?,
        }
        Some(())
    }

    /// As a metric has it.
    pub fn amount(&self, gpu: &GpuUse, looked: f64) -> Option<String> {
        match self.value {
            FigureValue::Bytes(of, _) => of(gpu).map(|bytes| bytes.to_string()),
            FigureValue::Decimal(of, _) => of(gpu, looked).map(|number| (number / self.per).to_string()),
        }
    }

    /// The sum over these GPUs. It is null if one of them lacks the figure, or if there are none.
    pub fn sum(&self, gpus: &[GpuUse], looked: f64) -> Value {
        match self.value {
            _ if gpus.is_empty() => Value::Null,
            FigureValue::Bytes(of, _) => gpus.iter().map(of).sum::<Option<u64>>().into(),
            FigureValue::Decimal(of, _) => {
                gpus.iter().map(|gpu| of(gpu, looked)).sum::<Option<f64>>().map(decimal).into()
            }
        }
    }

    /// Adds that of an earlier or parallel part.
    fn add(&self, gpu: &mut GpuUse, other: &GpuUse) {
        match (self.value, self.adds) {
            (_, Adds::Now) => {}
            (FigureValue::Bytes(of, put), adds) => put(gpu, added(adds, of(gpu), of(other), u64::saturating_add)),
            (FigureValue::Decimal(of, put), adds) => {
                let _ = put(gpu, added(adds, of(gpu, 0.0), of(other, 0.0), |one, other| one + other), 0.0);
            }
        }
    }
}

/// If one of them is not known, it is the other.
fn added<T: PartialOrd>(adds: Adds, one: Option<T>, other: Option<T>, sum: fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) if adds == Adds::Sum => Some(sum(one, other)),
        (Some(one), Some(other)) => Some(if other > one { other } else { one }),
        (one, other) => one.or(other),
    }
}

impl GpuUse {
    /// Adds what an earlier or parallel part of the same job has used of the same GPU.
    pub fn merge(&mut self, other: &Self) {
        self.is_shared |= other.is_shared;
        self.slowed_by.extend(other.slowed_by.iter().cloned());
        if other.memory_peak > self.memory_peak {
            self.is_memory_counted = other.is_memory_counted;
        }
        GPU_FIGURES.iter().for_each(|figure| figure.add(self, other));
        // On a shared GPU, nobody knows whose idle time it is.
        self.longest_idle = self.longest_idle.filter(|_| !self.is_shared);
    }
}

/// Rounds to the millisecond: times are not known better.
pub fn decimal(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A use in which each figure that is kept has a value of its own, as the object of it.
    fn object() -> Value {
        let members =
            GPU_FIGURES.iter().zip(1..).map(|(figure, number)| (figure.member.to_owned(), Value::from(number)));
        let mut all: Value = members.collect::<serde_json::Map<_, _>>().into();
        // The share of the two.
        (all["observed_seconds"], all["busy_seconds"]) = (100.0.into(), 2.0.into());
        all
    }

    fn read(object: &Value) -> Option<GpuUse> {
        let mut gpu = GpuUse::new("/dev/nvidia0");
        GPU_FIGURES.iter().try_for_each(|figure| figure.put(&mut gpu, object, 500.0)).map(|()| gpu)
    }

    #[test]
    fn the_members_of_a_gpu_are_those_of_the_format() {
        // Logs of earlier releases have these names. Under another one a figure of theirs would be read as unknown.
        let members: Vec<&str> = GPU_FIGURES.iter().map(|figure| figure.member).collect();
        let format = [
            "utilization_now_percent",
            "utilization_percent",
            "observed_seconds",
            "busy_seconds",
            "memory_now_bytes",
            "memory_peak_bytes",
            "memory_total_bytes",
            "energy_joules",
            "slowed_seconds",
            "longest_idle_seconds",
            "idle_seconds",
        ];
        assert_eq!(members, format);
        let manual = include_str!("../../../docs/man/jobfence.8");
        let unknown: Vec<&str> = members.into_iter().filter(|member| !manual.contains(member)).collect();
        assert!(unknown.is_empty(), "jobfence(8) does not have {unknown:?}");
    }

    #[test]
    fn each_figure_is_read_as_it_was_written() {
        let object = object();
        let gpu = read(&object).unwrap();
        for figure in GPU_FIGURES {
            let (written, read) = (object[figure.member].as_f64(), figure.json(&gpu, 500.0).as_f64());
            assert_eq!(read, written, "{}", figure.member);
            let per = if figure.member.ends_with("_percent") { 100.0 } else { 1.0 };
            let amount = figure.amount(&gpu, 500.0).and_then(|amount| amount.parse::<f64>().ok());
            assert_eq!(amount, written.map(|number| number / per), "{}", figure.member);
            let sum = figure.sum(&[gpu.clone(), gpu.clone()], 500.0).as_f64();
            assert_eq!(sum, written.map(|number| number * 2.0), "{}", figure.member);
        }
        assert_eq!(GPU_FIGURES[0].sum(&[], 500.0), Value::Null);
        // How long it is known is known of each GPU. Anything else may be unknown.
        for figure in GPU_FIGURES {
            let mut object = object.clone();
            object[figure.member] = Value::Null;
            let is_needed = ["observed_seconds", "busy_seconds"].contains(&figure.member);
            assert_eq!(read(&object).is_none(), is_needed, "{}", figure.member);
        }
    }

    #[test]
    fn two_parts_are_added_each_figure_in_its_way() {
        let one = read(&object()).unwrap();
        let other = GpuUse {
            percent_now: Some(90.0),
            memory_total: None,
            slowed: None,
            longest_idle: Some(99.0),
            ..one.clone()
        };
        let mut both = one.clone();
        both.merge(&other);
        let of = |gpu: &GpuUse| (gpu.observed, gpu.busy, gpu.energy, gpu.slowed, gpu.memory_peak, gpu.memory_total);
        assert_eq!(
            of(&both),
            (200.0, 4.0, one.energy.map(|joules| joules * 2.0), one.slowed, one.memory_peak, one.memory_total)
        );
        assert_eq!(
            (both.percent_now, both.idle_since, both.longest_idle),
            (one.percent_now, one.idle_since, Some(99.0))
        );
        both.merge(&GpuUse { is_shared: true, ..other });
        assert_eq!(both.longest_idle, None);
    }
}
