// SPDX-License-Identifier: GPL-2.0-or-later
//! `MetricsFile`: the present usage of jobs, and counters of jobfence, for the textfile collector of Prometheus's node_exporter.
//!
//! The text format is that of https://prometheus.io/docs/instrumenting/exposition_formats/: names end with their unit, and counters with
//! `_total`. A job has one value of each label: its number, the user's name, the partition, and the account.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::time::Duration;

use jobfence::config::Config;
use jobfence::facts::Fact;
use jobfence::fence::living::CurrentUse;
use jobfence::fence::search::{Recorded, WantedSteps, find};
use jobfence::figures::{FIGURES, METRICS, Unit};
use jobfence::host::Host;
use jobfence::printable::is_printable;
use jobfence::record::counters::{BOUNDS_MS, Counters};
use jobfence::record::job::JobRecords;
use jobfence::record::noted::Allocated;
use jobfence::schedulers::ALL;

use crate::energy::NodeEnergy;
use crate::gpu::{GPU_FIGURES, GpuUse, JobGpus};
use crate::idle::JobIdle;
use crate::kept;
use crate::lend;
use crate::living::{facts_of, user_name};
use crate::login;
use crate::network::{self, JobNetwork};
use crate::resctrl::JobCache;
use crate::strays::StraysFigures;
use crate::whole;

/// The most jobs in the file: a node has fewer, unless something is wrong.
const MOST_JOBS: usize = 1000;

/// A job that has fences now.
#[derive(Debug, Clone, Default)]
pub struct JobMetrics {
    /// Its number or text id.
    pub job: String,
    /// Its user, by name or uid.
    pub user: String,
    /// Its partition or queue; empty if not known.
    pub partition: String,
    /// Its project if it has one, or else its account; empty if neither is known.
    pub account: String,
    /// What it was granted, if known.
    pub allocated: Allocated,
    /// How many steps it has now.
    pub steps: u64,
    /// What it uses now, what its steps used, including ended ones, and its limits.
    pub current: CurrentUse,
    /// What it uses of GPUs.
    pub gpus: Option<JobGpus>,
    /// What it has sent and received.
    pub network: Option<JobNetwork>,
    /// What it uses of caches and memory bandwidth.
    pub cache: Option<JobCache>,
    /// For how long it has used almost no CPU time, in seconds.
    pub idle: Option<f64>,
}

/// Writes the file, if there is to be one.
pub fn look(
    config: &Config,
    host: &Host,
    energy: Option<NodeEnergy>,
    strays: Option<&StraysFigures>,
) -> Result<(), String> {
    let Some(path) = &config.metrics_file else { return Ok(()) };
    let counters = Counters::read(&config.run_dir).map_err(|error| error.to_string())?;
    let mut text = page(&living_jobs(config, host), &counters);
    of_energy(&mut text, energy);
    text.extend(strays.map(StraysFigures::page));
    text.extend(login::page(&config.run_dir));
    text.extend(lend::page(&config.run_dir, lend::is_on(config)));
    // The collector does not run as root.
    whole::replace(path, text.as_bytes(), Some(0o644)).map_err(|error| error.to_string())
}

/// Every job that has fences now.
fn living_jobs(config: &Config, host: &Host) -> Vec<JobMetrics> {
    let (wanted, mut unseen) = (WantedSteps::default(), Vec::new());
    let recorded = Recorded::read(&config.run_dir, &wanted, &mut unseen);
    let (steps, more) = find(host, ALL, &recorded, &wanted);
    for error in unseen.iter().chain(&more) {
        log::debug!("not all jobs are in {:?}: {error}", config.metrics_file);
    }
    let noted = JobRecords::existing(&config.run_dir).ok().flatten();
    let mut jobs: BTreeMap<(Option<String>, Option<u32>, String), JobMetrics> = BTreeMap::new();
    for step in &steps {
        let job = jobs.entry((step.node.clone(), step.uid, step.job.clone())).or_insert_with(|| {
            let known = facts_of(noted.as_ref(), host, step);
            let (partition, account) = known.map(|known| (known.partition, known.account)).unwrap_or_default();
            JobMetrics {
                job: step.job.clone(),
                user: step.uid.map_or_else(String::new, user_name),
                partition: partition.known().cloned().unwrap_or_default(),
                account: account.said().cloned().unwrap_or_default(),
                current: step.of_job(),
                gpus: kept::living(&config.run_dir, step.node.as_deref(), step.uid, &step.job),
                network: kept::living(&config.run_dir, step.node.as_deref(), step.uid, &step.job),
                cache: kept::living(&config.run_dir, step.node.as_deref(), step.uid, &step.job),
                idle: kept::living(&config.run_dir, step.node.as_deref(), step.uid, &step.job)
                    .and_then(|idle: JobIdle| idle.activity.idle()),
                ..JobMetrics::default()
            }
        });
        job.steps += 1;
        job.allocated = std::mem::take(&mut job.allocated).or(&step.allocated());
    }
    jobs.into_values().map(JobMetrics::by_what_is_noted).collect()
}

impl JobMetrics {
    /// If the scheduler has directories for jobs, the kernel's limits have room for its daemons: this removes that.
    fn by_what_is_noted(mut self) -> Self {
        let Allocated { noted, cpus_limit, processes_limit, .. } = &self.allocated;
        if let Some(partition) = noted.facts().partition.known().filter(|_| self.partition.is_empty()) {
            self.partition.clone_from(partition);
        }
        // A scheduler that has projects checks who may use one, and an account often stands there unasked.
        let facts = noted.facts();
        let name = |fact: &Fact<String>| fact.said().filter(|name| !name.is_empty()).cloned();
        // The scheduler's own name for "no project" begins with an underscore.
        if let Some(project) = name(&facts.project).filter(|name| !name.starts_with('_')) {
            self.account = project;
        } else if self.account.is_empty() {
            self.account = name(&facts.account).unwrap_or_default();
        }
        let limits = &mut self.current.limits;
        limits.cpus = limits.cpus.map(|limit| limit.min(cpus_limit.unwrap_or(limit)));
        limits.processes = limits.processes.map(|limit| limit.min(processes_limit.unwrap_or(limit)));
        self
    }
}

/// A metric: its name, its help text, and its value for a job.
type Gauge = (&'static str, &'static str, fn(&JobMetrics) -> Option<String>);

/// What is known of each job beside its usage, which has its metrics in [`METRICS`].
const GAUGES: &[Gauge] = &[
    ("jobfence_job_steps", "Steps that the job has on this node now.", |job| Some(job.steps.to_string())),
    ("jobfence_job_cpu_limit_cpus", "CPU time that the job may have, as a number of CPUs.", |job| {
        text(job.current.limits.cpus)
    }),
    ("jobfence_job_cpu_granted_cpus", "CPUs that the scheduler has granted to the job on this node.", |job| {
        text(job.allocated.noted.granted.cpus)
    }),
    ("jobfence_job_memory_bytes", "Memory that the job has in use now, with page cache.", |job| {
        text(job.current.memory)
    }),
    ("jobfence_job_memory_limit_bytes", "Memory that the job may have.", |job| text(job.current.limits.memory)),
    ("jobfence_job_memory_granted_bytes", "Memory that the scheduler has granted to the job on this node.", |job| {
        text(job.allocated.noted.granted.memory)
    }),
    ("jobfence_job_gpus_granted", "GPUs that the scheduler has granted to the job on this node.", |job| {
        text(job.allocated.noted.granted.gpus)
    }),
    ("jobfence_job_processes", "Processes and threads of the job.", |job| text(job.current.processes)),
    ("jobfence_job_processes_limit", "Processes and threads that the job may have.", |job| {
        text(job.current.limits.processes)
    }),
    ("jobfence_job_cache_occupancy_bytes", "Bytes of the job's in L3 caches.", |job| {
        text(job.cache.as_ref()?.used.occupancy)
    }),
    ("jobfence_job_memory_traffic_bytes_total", "Bytes that the job has moved between L3 caches and memory.", |job| {
        text(job.cache.as_ref()?.used.memory.map(|memory| memory.all))
    }),
    (
        "jobfence_job_memory_traffic_local_bytes_total",
        "Those of them that are memory of the cache's own node.",
        |job| text(job.cache.as_ref()?.used.local.map(|local| local.all)),
    ),
    ("jobfence_job_idle_seconds", "How long the job has used almost no CPU time.", |job| {
        job.idle.map(|idle| format!("{idle:.3}"))
    }),
];

fn text<T: Display>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn seconds(time: Option<Duration>) -> Option<String> {
    time.map(|time| format!("{:.6}", time.as_secs_f64()))
}

/// A figure of a job's usage, as the file has it.
fn figure(job: &JobMetrics, at: usize) -> Option<String> {
    let number = job.current.usage.numbers().get(at).copied().flatten();
    match FIGURES.get(at)?.unit {
        Unit::Seconds => seconds(number.map(Duration::from_micros)),
        _ => text(number),
    }
}

/// The content of the file.
pub fn page(jobs: &[JobMetrics], counters: &Counters) -> String {
    let mut page = String::new();
    let shown = jobs.get(..jobs.len().min(MOST_JOBS)).unwrap_or(jobs);
    for (name, help, of) in GAUGES {
        figures(&mut page, name, help, shown, of);
    }
    for (at, (name, help)) in METRICS.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |one| (at, *one))) {
        figures(&mut page, name, help, shown, |job| figure(job, at));
    }
    pressure(&mut page, shown);
    of_gpus(&mut page, shown);
    page += &network::page(shown.iter().filter_map(|job| Some((labels(job), job.network.as_ref()?))));
    let hidden = jobs.len() - shown.len();
    one(&mut page, "jobfence_jobs", "gauge", "Jobs that have fences on this node now.", jobs.len());
    one(&mut page, "jobfence_jobs_hidden", "gauge", "Jobs on this node that this file leaves out.", hidden);
    head(
        &mut page,
        "jobfence_begun_steps_total",
        "counter",
        "Steps that began on this node since it booted, by outcome.",
    );
    for (outcome, count) in
        [("fenced", counters.fenced), ("unfenced", counters.unfenced), ("refused", counters.refused)]
    {
        let _ = writeln!(page, "jobfence_begun_steps_total{{outcome=\"{outcome}\"}} {count}");
    }
    one(
        &mut page,
        "jobfence_reaped_fences_total",
        "counter",
        "Fences of dead holders that the janitor has removed since the node booted.",
        counters.reaped,
    );
    histogram(&mut page, counters);
    page
}

/// One figure of each job that has it.
fn figures(page: &mut String, name: &str, help: &str, jobs: &[JobMetrics], of: impl Fn(&JobMetrics) -> Option<String>) {
    let values: Vec<_> = jobs.iter().filter_map(|job| Some((job, of(job)?))).collect();
    if !values.is_empty() {
        head(page, name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
    }
    for (job, value) in values {
        let _ = writeln!(page, "{name}{{{}}} {value}", labels(job));
    }
}

fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn one(page: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    head(page, name, kind, help);
    let _ = writeln!(page, "{name} {value}");
}

fn pressure(page: &mut String, jobs: &[JobMetrics]) {
    const NAME: &str = "jobfence_job_pressure_seconds_total";
    let of_job = |job: &JobMetrics| {
        let usage = &job.current.usage;
        let each = [
            ("cpu", "some", usage.cpu_pressure_some),
            ("cpu", "full", usage.cpu_pressure_full),
            ("memory", "some", usage.memory_pressure_some),
            ("memory", "full", usage.memory_pressure_full),
            ("io", "some", usage.io_pressure_some),
            ("io", "full", usage.io_pressure_full),
        ];
        let known = each.into_iter().filter_map(|(resource, kind, time)| Some((resource, kind, seconds(time)?)));
        known.collect::<Vec<_>>()
    };
    if jobs.iter().all(|job| of_job(job).is_empty()) {
        return;
    }
    head(page, NAME, "counter", "How long some or all processes of the job have waited for a resource.");
    for job in jobs {
        for (resource, kind, value) in of_job(job) {
            let labels = labels(job);
            let _ = writeln!(page, "{NAME}{{{labels},resource=\"{resource}\",kind=\"{kind}\"}} {value}");
        }
    }
}

/// What is known of each GPU of each job. A metric is absent for a GPU if its value is not known, as for a GPU that several jobs share.
fn of_gpus(page: &mut String, jobs: &[JobMetrics]) {
    let metrics = GPU_FIGURES.iter().flat_map(|figure| figure.metric.iter().map(move |metric| (figure, *metric)));
    for (figure, metric) in metrics {
        of_each_gpu(page, metric, jobs, &|gpu, looked| figure.amount(gpu, looked));
    }
    let idle = ("jobfence_job_gpu_idle_seconds", "How long the job's GPU has done nothing.");
    of_each_gpu(page, idle, jobs, &|gpu, looked| {
        text((!gpu.is_shared && gpu.percent_now.is_some()).then(|| gpu.idle(looked).unwrap_or(0.0)))
    });
}

/// One metric of each GPU of each job. The moment is that of the last sample.
fn of_each_gpu(
    page: &mut String,
    (name, help): (&str, &str),
    jobs: &[JobMetrics],
    of: &dyn Fn(&GpuUse, f64) -> Option<String>,
) {
    let mut lines = String::new();
    for job in jobs {
        let gpus = job.gpus.iter().flat_map(|job| job.gpus.iter().map(|gpu| (gpu, job.looked)));
        for (gpu, value) in gpus.filter_map(|(gpu, looked)| Some((gpu, of(gpu, looked)?))) {
            let labels = labels(job);
            let _ = writeln!(lines, "{name}{{{labels},gpu=\"{}\"}} {value}", gpu.name());
        }
    }
    if !lines.is_empty() {
        head(page, name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        page.push_str(&lines);
    }
}

fn of_energy(page: &mut String, energy: Option<NodeEnergy>) {
    const NAME: &str = "jobfence_node_energy_joules_total";
    let Some(energy) = energy else { return };
    head(
        page,
        NAME,
        "counter",
        "Energy of the node's processors and memory since jobfence.service began, by what has used it: sampled steps, all else, idle CPUs.",
    );
    for (part, joules) in [("jobs", energy.steps), ("others", energy.others), ("idle", energy.idle)] {
        let _ = writeln!(page, "{NAME}{{part=\"{part}\"}} {joules:.3}");
    }
}

fn histogram(page: &mut String, counters: &Counters) {
    const NAME: &str = "jobfence_begin_seconds";
    head(page, NAME, "histogram", "How long it took to make and limit the fence of a step.");
    let mut below = 0;
    for (bound, count) in BOUNDS_MS.iter().zip(counters.began_within) {
        below += count;
        let _ = writeln!(page, "{NAME}_bucket{{le=\"{}\"}} {below}", Duration::from_millis(*bound).as_secs_f64());
    }
    let _ = writeln!(page, "{NAME}_bucket{{le=\"+Inf\"}} {}", counters.fenced);
    let _ = writeln!(page, "{NAME}_sum {:.6}", Duration::from_micros(counters.began_us).as_secs_f64());
    let _ = writeln!(page, "{NAME}_count {}", counters.fenced);
}

fn labels(job: &JobMetrics) -> String {
    // In the order of their names.
    let all = [("account", &job.account), ("jobid", &job.job), ("partition", &job.partition), ("user", &job.user)];
    let all: Vec<String> = all.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    all.join(",")
}

/// A label's value, without characters that the format uses or a terminal would act on.
fn escaped(value: &str) -> String {
    let mut safe = String::new();
    for c in value.chars() {
        match c {
            '\\' | '"' => safe.extend(['\\', c]),
            '\n' => safe.push_str("\\n"),
            c => safe.push(if is_printable(c) { c } else { '?' }),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use jobfence::facts::Facts;
    use jobfence::figures::{GrantedTo, LimitedTo, Usage};
    use jobfence::job::Cpus;
    use jobfence::record::noted::Noted;

    use super::*;
    use crate::metrics_file::BEGIN;

    fn job(name: &str) -> JobMetrics {
        JobMetrics {
            job: name.to_owned(),
            user: "alice".to_owned(),
            partition: "p".to_owned(),
            account: "physics".to_owned(),
            ..JobMetrics::default()
        }
    }

    #[test]
    fn each_figure_has_its_help_and_type_once() {
        let usage = Usage { cpu: Some(Duration::from_millis(1500)), oom_kills: Some(2), ..Usage::default() };
        let limits = LimitedTo { cpus: Some(Cpus::from_thousandths(1500)), ..LimitedTo::default() };
        let current = CurrentUse { usage, limits, ..CurrentUse::default() };
        let jobs = [JobMetrics { current, ..job("7") }, job("8")];
        let counters =
            Counters { fenced: 4, began_us: 12_000, began_within: [0, 1, 2, 0, 0, 0, 0, 0, 0], ..Counters::default() };
        let page = page(&jobs, &counters);
        for line in [
            "jobfence_job_cpu_seconds_total{account=\"physics\",jobid=\"7\",partition=\"p\",user=\"alice\"} 1.500000\n",
            "jobfence_job_cpu_limit_cpus{account=\"physics\",jobid=\"7\",partition=\"p\",user=\"alice\"} 1.5\n",
            "jobfence_job_steps{account=\"physics\",jobid=\"8\",partition=\"p\",user=\"alice\"} 0\n",
            "# TYPE jobfence_job_oom_kills_total counter\n",
            "jobfence_begun_steps_total{outcome=\"fenced\"} 4\n",
            "jobfence_begin_seconds_bucket{le=\"0.002\"} 1\njobfence_begin_seconds_bucket{le=\"0.005\"} 3\n",
            "jobfence_begin_seconds_bucket{le=\"+Inf\"} 4\njobfence_begin_seconds_sum 0.012000\n",
            "jobfence_jobs 2\n",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
        // A figure that no job has is absent, and never 0.
        assert!(!page.contains("memory_peak") && !page.contains("pressure"), "{page}");
        let helps: Vec<&str> = page.lines().filter(|line| line.starts_with("# HELP ")).collect();
        let mut names: Vec<&str> = helps.iter().filter_map(|line| line.split(' ').nth(2)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{helps:?}");
    }

    #[test]
    fn each_gpu_of_a_job_has_what_is_known_of_it() {
        let mut gpus = JobGpus { looked: 100.0, ..JobGpus::default() };
        let gpu = gpus.of("/dev/nvidia3");
        (gpu.percent_now, gpu.memory_now, gpu.energy) = (Some(25.0), Some(5), Some(1.5));
        let gpu = gpus.of("/dev/nvidia1");
        (gpu.is_shared, gpu.memory_now) = (true, Some(7));
        let text = page(&[JobMetrics { gpus: Some(gpus), ..job("7") }, job("8")], &Counters::default());
        for line in [
            "# TYPE jobfence_job_gpu_energy_joules_total counter\n",
            "jobfence_job_gpu_utilization_ratio{account=\"physics\",jobid=\"7\",partition=\"p\",user=\"alice\",gpu=\"3\"} 0.25\n",
            "jobfence_job_gpu_energy_joules_total{account=\"physics\",jobid=\"7\",partition=\"p\",user=\"alice\",gpu=\"3\"} 1.5\n",
            "jobfence_job_gpu_idle_seconds{account=\"physics\",jobid=\"7\",partition=\"p\",user=\"alice\",gpu=\"3\"} 0\n",
            "jobfence_job_gpu_memory_used_bytes{account=\"physics\",jobid=\"7\",partition=\"p\",user=\"alice\",gpu=\"1\"} 7\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let of_shared = text.lines().filter(|line| line.contains("gpu=\"1\""));
        assert_eq!(of_shared.count(), 1, "{text}");
        assert!(!text.contains("gpu_memory_total"), "{text}");
    }

    fn limited(cpus: Option<u32>, processes: Option<u64>) -> CurrentUse {
        let limits = LimitedTo { cpus: cpus.map(Cpus::whole), processes, ..LimitedTo::default() };
        CurrentUse { limits, ..CurrentUse::default() }
    }

    #[test]
    fn limits_are_without_room_for_daemons_and_what_was_granted_is_there() {
        let known = |text: &str| Fact::Known(text.to_owned());
        let granted = GrantedTo { cpus: Some(Cpus::whole(2)), memory: Some(9), gpus: Some(1) };
        let noted = Noted::new(
            &Facts { partition: known("short"), account: known("lab"), project: known("biology"), ..Facts::default() },
            granted,
        );
        // An attribute has the partition alone, and the step's record the rest.
        let allocated = Allocated::new(&noted, (Some(Cpus::whole(2)), Some(100)));
        let allocated = allocated.or(&Allocated { noted, ..Allocated::default() });
        let of_scheduler = JobMetrics {
            partition: String::new(),
            account: String::new(),
            current: limited(Some(3), Some(164)),
            allocated,
            ..job("7")
        };
        let text = page(&[of_scheduler.clone().by_what_is_noted()], &Counters::default());
        for (name, value) in [
            ("cpu_limit_cpus", 2),
            ("cpu_granted_cpus", 2),
            ("processes_limit", 100),
            ("memory_granted_bytes", 9),
            ("gpus_granted", 1),
        ] {
            let line = format!("jobfence_job_{name}{{account=\"biology\",jobid=\"7\",partition=\"short\",");
            let line = text.lines().find_map(|known| known.strip_prefix(&line));
            assert!(line.is_some_and(|line| line.ends_with(&format!(" {value}"))), "{name}: {text}");
        }
        // A lower present limit counts; a missing one is not invented.
        let lower = JobMetrics { current: limited(Some(1), None), ..of_scheduler };
        let lower = lower.by_what_is_noted().current.limits;
        assert_eq!((lower.cpus, lower.processes), (Some(Cpus::whole(1)), None));
    }

    #[test]
    fn no_label_breaks_the_file() {
        let page = page(&[job("a\"b\\c\nd\u{1b}[0m")], &Counters::default());
        assert!(page.contains("{account=\"physics\",jobid=\"a\\\"b\\\\c\\nd?[0m\","), "{page}");
    }

    #[test]
    fn the_number_of_jobs_is_bounded() {
        assert!(page(&[], &Counters::default()).starts_with(BEGIN));
        let jobs: Vec<JobMetrics> = (0..1200).map(|number| job(&number.to_string())).collect();
        let page = page(&jobs, &Counters::default());
        assert_eq!(page.lines().filter(|line| line.starts_with("jobfence_job_steps{")).count(), 1000);
        assert!(page.contains("jobfence_jobs 1200\n") && page.contains("jobfence_jobs_hidden 200\n"));
    }
}
