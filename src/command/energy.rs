// SPDX-License-Identifier: GPL-2.0-or-later
//! The energy that a node uses, divided among the steps that run on it.
//!
//! `jobfence hold` does that with its samples. A second of a CPU costs the same, whatever it does: the node's energy in that time, divided
//! by all seconds that its CPUs had. A step pays for the seconds that it used. What is left is that of all else, and what the idle
//! CPUs' seconds cost. So the parts add up to what the node's counters say.

mod counters;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use counters::EnergyCounters;
use nix::time::{ClockId, clock_gettime};

/// Where the kernel has the counters.
const CLASS: &str = "/sys/class";

/// A counter of 32 bits in units of 15 microjoules is full after a minute, if its processor uses 1000 watts. So that is never missed.
const MOST_WAIT: Duration = Duration::from_secs(30);

/// Users learn no finer course of the power that a processor uses: from that, others have read secrets (CVE-2020-8694).
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// What a step has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepEnergy {
    /// In joules.
    pub joules: f64,
    /// For so much of its CPU time, in seconds.
    pub cpu_seconds: f64,
}

impl StepEnergy {
    /// Adds another part of the same step, or another step.
    pub fn add(&mut self, other: Self) {
        self.joules += other.joules;
        self.cpu_seconds += other.cpu_seconds;
    }

    /// For people. The CPU time is all that was used.
    pub fn in_words(&self, cpu: Option<Duration>) -> String {
        let energy = watt_hours(self.joules);
        match cpu.map(|cpu| 100.0 * self.cpu_seconds / cpu.as_secs_f64()).filter(|share| share.is_finite()) {
            Some(share) if share < 99.5 => format!("{energy} for {share:.0} % of its CPU time"),
            Some(_) => energy,
            None => format!("{energy} for an unknown part of its CPU time"),
        }
    }
}

/// The CO2 of that energy in grams, if a kilowatt-hour costs so many.
pub fn carbon(joules: f64, of_kwh: u64) -> f64 {
    joules / 3.6e6 * of_kwh as f64
}

/// CO2 for people.
pub fn grams(grams: f64) -> String {
    match grams {
        grams if grams < 10.0 => format!("{grams:.2} g of CO2"),
        grams if grams < 10_000.0 => format!("{grams:.0} g of CO2"),
        grams => format!("{:.1} kg of CO2", grams / 1000.0),
    }
}

/// Energy for people.
pub fn watt_hours(joules: f64) -> String {
    let amount = joules / 3600.0;
    match amount {
        amount if amount > 0.0 && amount < 0.1 => format!("{amount:.4} Wh"),
        amount if amount < 1000.0 => format!("{amount:.1} Wh"),
        amount => format!("{:.1} kWh", amount / 1000.0),
    }
}

/// What the node has used since `jobfence hold` began, in joules. The three parts are all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeEnergy {
    /// What was divided among the steps.
    pub steps: f64,
    /// That of all else that ran.
    pub others: f64,
    /// That of CPUs which did nothing.
    pub idle: f64,
}

/// A step at a sample.
pub struct StepAtSample<'a> {
    /// The name of its series.
    pub name: &'a str,
    /// The CPU time that it has used so far, in seconds.
    pub cpu_seconds: Option<f64>,
    /// How long it has been there, in seconds.
    pub age: f64,
}

/// What is known at one moment.
struct NodeMoment {
    at: Instant,
    cpus: NodeCpus,
    /// The CPU time of each step, by name.
    steps: HashMap<String, f64>,
}

/// What the kernel says of all CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct NodeCpus {
    /// How many there are.
    count: usize,
    /// For how long they were busy since the node booted, in seconds, all together.
    busy: f64,
}

/// Divides a node's energy.
#[derive(Default)]
pub struct EnergyMeter {
    /// The last reading, and for how long the node had been suspended by then.
    read: Option<(Instant, Duration, EnergyCounters)>,
    /// The energy since the last division, in joules. `None`: it is not known.
    gathered: Option<f64>,
    /// The last division.
    divided: Option<NodeMoment>,
    /// The sum of all divisions. `None`: there was none.
    pub node: Option<NodeEnergy>,
}

impl EnergyMeter {
    /// The time until the counters have to be read again. `None`: there are none.
    pub fn wait(&self) -> Option<Duration> {
        let (at, ..) = self.read.as_ref()?;
        Some(MOST_WAIT.saturating_sub(at.elapsed()))
    }

    /// Reads the counters, if that is due.
    pub fn look(&mut self) {
        if self.wait().is_some_and(|wait| wait.is_zero()) {
            self.gather(EnergyCounters::read(Path::new(CLASS)), (Instant::now(), suspended()));
        }
    }

    fn gather(&mut self, counters: Option<EnergyCounters>, (now, suspended): (Instant, Duration)) {
        let used = self.read.as_ref().zip(counters.as_ref());
        // A processor that was without power begins to count anew.
        let used = used.filter(|((_, before, _), _)| suspended.abs_diff(*before) < Duration::from_secs(1));
        let used = used.and_then(|((at, _, before), counters)| counters.since(before, now.duration_since(*at)));
        self.gathered = self.gathered.zip(used).map(|(gathered, used)| gathered + used);
        self.read = counters.map(|counters| (now, suspended, counters));
    }

    /// What each of these steps has used since the last division. A step whose use is not known is left out.
    pub fn divide(&mut self, steps: &[StepAtSample<'_>]) -> HashMap<String, StepEnergy> {
        let now = Instant::now();
        if self.divided.as_ref().is_some_and(|before| now.duration_since(before.at) < LEAST_WAIT) {
            return HashMap::new();
        }
        let counters = EnergyCounters::read(Path::new(CLASS));
        let cpus = counters.as_ref().and_then(|_| node_cpus());
        self.divide_at((now, suspended()), counters, cpus, steps)
    }

    fn divide_at(
        &mut self,
        (now, suspended): (Instant, Duration),
        counters: Option<EnergyCounters>,
        cpus: Option<NodeCpus>,
        steps: &[StepAtSample<'_>],
    ) -> HashMap<String, StepEnergy> {
        self.gather(counters, (now, suspended));
        let joules = self.gathered.take();
        // What is gathered from here on is known again.
        self.gathered = self.read.is_some().then_some(0.0);
        let known = steps.iter().filter_map(|step| Some((step.name.to_owned(), step.cpu_seconds?)));
        let after =
            cpus.filter(|_| self.read.is_some()).map(|cpus| NodeMoment { at: now, cpus, steps: known.collect() });
        let before = std::mem::replace(&mut self.divided, after);
        let (Some(joules), Some(before), Some(after)) = (joules, before, &self.divided) else { return HashMap::new() };
        let passed = now.duration_since(before.at).as_secs_f64();
        let used = steps.iter().filter_map(|step| {
            // A step that was not there at the last division has used all its CPU time since then.
            let earlier = before.steps.get(step.name).copied().or((step.age <= passed).then_some(0.0))?;
            Some((step.name, (step.cpu_seconds? - earlier).max(0.0)))
        });
        let used: Vec<(&str, f64)> = used.collect();
        let of_steps: f64 = used.iter().map(|(_, seconds)| seconds).sum();
        let busy = (after.cpus.busy - before.cpus.busy).max(of_steps);
        // The times are not read at the same moment.
        let all = (passed * after.cpus.count as f64).max(busy);
        if all <= 0.0 {
            return HashMap::new();
        }
        let cost = joules / all;
        let node = self.node.get_or_insert_default();
        node.steps += cost * of_steps;
        node.others += cost * (busy - of_steps);
        node.idle += cost * (all - busy);
        let energy = |cpu_seconds: f64| StepEnergy { joules: cost * cpu_seconds, cpu_seconds };
        used.into_iter().map(|(name, seconds)| (name.to_owned(), energy(seconds))).collect()
    }
}

/// For how long the node was suspended since it booted.
fn suspended() -> Duration {
    let of = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
    // This clock goes on meanwhile.
    of(ClockId::CLOCK_BOOTTIME).saturating_sub(of(ClockId::CLOCK_MONOTONIC))
}

/// The CPU time of the node, from /proc/stat (proc_stat(5)). `None`: it is not known.
fn node_cpus() -> Option<NodeCpus> {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().filter(|ticks| *ticks > 0)?;
    cpus_of(&std::fs::read_to_string("/proc/stat").ok()?, ticks as f64)
}

fn cpus_of(stat: &str, ticks: f64) -> Option<NodeCpus> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<f64> = all.split_whitespace().map(|time| time.parse().ok()).collect::<Option<_>>()?;
    // user, nice and system, and then irq and softirq. What virtual machines have run is in user.
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|at| times.get(*at)).sum();
    let count = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    (count > 0).then_some(NodeCpus { count, busy: busy / ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one zone of RAPL says.
    fn counters(joules: f64) -> Option<EnergyCounters> {
        let class = tempfile::tempdir().unwrap();
        let zone = class.path().join("powercap/intel-rapl:0");
        std::fs::create_dir_all(&zone).unwrap();
        for (name, text) in [("name", "package-0"), ("energy_uj", &format!("{}", (joules * 1e6) as u64))] {
            std::fs::write(zone.join(name), text).unwrap();
        }
        EnergyCounters::read(class.path())
    }

    fn step(name: &str, cpu_seconds: Option<f64>, age: f64) -> StepAtSample<'_> {
        StepAtSample { name, cpu_seconds, age }
    }

    fn cpus(busy: f64) -> Option<NodeCpus> {
        Some(NodeCpus { count: 4, busy })
    }

    #[test]
    fn the_parts_are_all_of_what_the_counter_says() {
        let (mut meter, start) = (EnergyMeter::default(), Instant::now());
        let at = |seconds| (start + Duration::from_secs(seconds), Duration::ZERO);
        assert_eq!(meter.wait(), None);
        assert_eq!(
            meter.divide_at(at(0), counters(1000.0), cpus(50.0), &[step("a", Some(5.0), 100.0)]),
            HashMap::new()
        );
        // The counters can be read between two divisions.
        meter.gather(counters(1900.0), at(20));
        // The last one has run before, and was not seen.
        let seen = [
            step("a", Some(25.0), 130.0),
            step("b", Some(15.0), 20.0),
            step("c", None, 130.0),
            step("d", Some(9.0), 31.0),
        ];
        let divided = meter.divide_at(at(30), counters(2200.0), cpus(110.0), &seen);
        // 1200 J in 120 seconds of CPUs.
        assert_eq!(divided.get("a"), Some(&StepEnergy { joules: 200.0, cpu_seconds: 20.0 }));
        assert_eq!(divided.get("b"), Some(&StepEnergy { joules: 150.0, cpu_seconds: 15.0 }));
        assert_eq!(divided.len(), 2);
        let node = meter.node.unwrap();
        assert_eq!(node, NodeEnergy { steps: 350.0, others: 250.0, idle: 600.0 });
        assert_eq!(node.steps + node.others + node.idle, 1200.0);
    }

    #[test]
    fn what_was_not_measured_is_nobodys() {
        let (mut meter, start) = (EnergyMeter::default(), Instant::now());
        let at = |seconds| (start + Duration::from_secs(seconds), Duration::ZERO);
        let seen = |cpu| [step("a", Some(cpu), 1000.0)];
        assert_eq!(meter.divide_at(at(0), None, cpus(0.0), &seen(0.0)), HashMap::new());
        assert_eq!(meter.divide_at(at(10), counters(100.0), cpus(1.0), &seen(1.0)), HashMap::new());
        // It begins anew: the counter has no largest number that is known.
        assert_eq!(meter.divide_at(at(20), counters(5.0), cpus(2.0), &seen(2.0)), HashMap::new());
        assert_eq!(meter.node, None);
        assert_eq!(meter.divide_at(at(30), counters(45.0), cpus(3.0), &seen(3.0))["a"].joules, 1.0);
        // The driver is gone, between two divisions, and comes back.
        meter.gather(None, at(35));
        assert_eq!(meter.wait(), None);
        assert_eq!(meter.divide_at(at(40), counters(90.0), cpus(4.0), &seen(4.0)), HashMap::new());
        assert_eq!(meter.divide_at(at(50), counters(130.0), cpus(5.0), &seen(5.0))["a"].joules, 1.0);
        // The node was suspended.
        let later = (at(55).0, Duration::from_secs(3600));
        assert_eq!(meter.divide_at(later, counters(150.0), cpus(5.0), &seen(5.0)), HashMap::new());
        let at = |seconds| (at(seconds).0, later.1);
        // More CPU time of steps than the node has had: it is read a moment later.
        let divided = meter.divide_at(at(65), counters(190.0), cpus(15.0), &seen(55.0));
        assert_eq!(divided["a"], StepEnergy { joules: 40.0, cpu_seconds: 50.0 });
    }

    #[test]
    fn the_kernels_times_of_cpus() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 2 3 4 5 6 7 8 9 0\ncpu3 1 2\nintr 5\n";
        assert_eq!(cpus_of(stat, 100.0), Some(NodeCpus { count: 2, busy: 1.63 }));
        assert_eq!(cpus_of("intr 5\n", 100.0), None);
        assert!(node_cpus().is_some_and(|cpus| cpus.busy > 0.0 && cpus.count > 0));
    }

    #[test]
    fn energy_is_said_with_what_it_is_for() {
        let energy = StepEnergy { joules: 7200.0, cpu_seconds: 90.0 };
        assert_eq!(energy.in_words(Some(Duration::from_secs(90))), "2.0 Wh");
        assert_eq!(energy.in_words(Some(Duration::from_secs(120))), "2.0 Wh for 75 % of its CPU time");
        assert_eq!(energy.in_words(None), "2.0 Wh for an unknown part of its CPU time");
        assert_eq!(
            [0.01, 12.0, 50_000.0].map(|kwh| grams(carbon(kwh * 3.6e6, 400))),
            ["4.00 g of CO2", "4800 g of CO2", "20000.0 kg of CO2"]
        );
        assert_eq!([0.0, 18.0, 7.2e6].map(watt_hours), ["0.0 Wh", "0.0050 Wh", "2.0 kWh"]);
    }
}
