// SPDX-License-Identifier: GPL-2.0-or-later
//! How much the fence of one step costs beside the least that the kernel asks for it, and how soon it is gone again.
//!
//! `cargo bench --bench setup`, as root. The executable that `cargo bench --no-run` leaves runs by itself on any host.

mod floor;
mod place;
mod removal;
mod stats;
mod trace;
mod whole;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use floor::Floor;
use jobfence::cgroup::layout::LayoutKind;
use jobfence::cgroup::membership::Membership;
use jobfence::fence;
use jobfence::janitor::{self, JanitorCaller, Launch};
use jobfence::schedulers::ALL;
use nix::unistd::Pid;
use place::{Place, Split, soon};
use removal::{End, Step};
use stats::{Goals, Sample, heading, micros, row};
use trace::between_marks;

/// Anything that ends the benchmark with one line on stderr.
type Failure = Box<dyn std::error::Error>;

/// The whole life of a step may take at most so many times as long as the floor.
const WHOLE_GOAL: f64 = 1.3;

/// The kernel goes on for some milliseconds after a directory's removal, with locks that the next set-up wants.
const QUIET: Duration = Duration::from_millis(20);

/// Measures the set-up and the removal of a step's fence beside bare system calls.
#[derive(Parser)]
#[command(name = "setup")]
struct Options {
    /// Set-ups of each kind
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Fail when a goal is missed
    #[arg(long)]
    strict: bool,
    /// Do one thing once, print the nanoseconds that it took, and end
    #[arg(long)]
    once: Option<What>,
    /// Work below this directory of each hierarchy, which exists already
    #[arg(long)]
    base: Option<String>,
    /// Keep records in this directory, which exists already
    #[arg(long)]
    run_dir: Option<PathBuf>,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// What can be done once, for strace and for fresh processes.
#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Set up a step with jobfence
    Ours,
    /// Set up a step with bare system calls
    Floor,
    /// Close a fence whose last process has exited
    Exited,
    /// Close a fence whose last process has to be killed
    Straggler,
    /// The whole life of a step, with jobfence
    Whole,
    /// The whole life of a step, with bare system calls
    WholeFloor,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(met) if met || !options.strict => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every goal was met.
fn run(options: &Options) -> Result<bool, Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err("this needs root".into());
    }
    let place = Place::make(options.base.clone(), options.run_dir.clone())?;
    if let Some(what) = options.once {
        println!("{}", once(&place, what)?.as_nanos());
        return Ok(true);
    }
    let mut goals = Goals::default();
    let floor = Floor::of(&place, &place.key)?;
    describe(&place, &floor)?;
    same_result(&place, &floor)?;
    whole_life(&place, options.rounds.div_ceil(4), &mut goals)?;
    set_up(&place, &floor, options.rounds)?;
    beside(&place, options.rounds)?;
    for (end, name) in [(End::Exited, "exit of the last process"), (End::Straggler, "call that kills the straggler")] {
        removal(&place, &floor, end, name, options.rounds.div_ceil(2))?;
    }
    system_calls(&place, &mut goals);
    Ok(goals.print())
}

fn describe(place: &Place, floor: &Floor) -> Result<(), Failure> {
    let kind = match place.host.layout.kind() {
        LayoutKind::Unified => "cgroup v2",
        LayoutKind::Hybrid => "hybrid (limits on v1, processes held on cgroup2 too)",
        LayoutKind::Legacy => "cgroup v1",
    };
    let kernel = nix::sys::utsname::uname()?;
    let systemd = if place.host.systemd { "with" } else { "without" };
    println!("{kind}, Linux {}, {systemd} systemd, below {}:", kernel.release().to_string_lossy(), place.host.base);
    for hierarchy in place.host.hierarchies(&fence::controllers(&place.config))? {
        println!("  {hierarchy}");
    }
    println!("one step: {} directories, {} files of limits", floor.directories().len(), floor.files());
    Ok(())
}

/// A floor that does something else would be no floor: says in which files the two differ.
fn same_result(place: &Place, floor: &Floor) -> Result<(), Failure> {
    let (mut fence, _) = place.set_up()?;
    let ours = floor.state()?;
    fence.close(soon())?;
    floor.set_up()?;
    let bare = floor.state()?;
    floor.remove()?;
    for (ours, bare) in ours.iter().zip(&bare).filter(|(ours, bare)| ours != bare) {
        println!("NOT THE SAME: jobfence leaves {ours}, the floor {bare}");
    }
    Ok(())
}

fn set_up(place: &Place, floor: &Floor, rounds: u32) -> Result<(), Failure> {
    const WARM_UP: u32 = 20;
    let (mut splits, mut bare) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let split = one_of_ours(place)?;
        let least = one_floor(floor)?;
        if round >= WARM_UP {
            splits.push(split);
            bare.push(least);
        }
    }
    let part = |part: fn(Split) -> Duration| Sample::new(splits.iter().copied().map(part).collect());
    let (ours, bare) = (part(Split::whole), Sample::new(bare));
    heading(&format!("set-up of a step, {rounds} in turn"));
    row("bare system calls (the floor)", &bare);
    row("jobfence", &ours);
    row("  looking at the host", &part(|split| split.host));
    row("  record and directories", &part(|split| split.open));
    row("  limits", &part(|split| split.limit));
    println!("  times the floor (medians): {:.2}", times(&ours, &bare));
    Ok(())
}

fn times(ours: &Sample, bare: &Sample) -> f64 {
    micros(ours.median()) / micros(bare.median())
}

/// Lets the kernel finish what the last removal began, and then the processor wake up again: neither is the set-up's.
fn settle() {
    std::thread::sleep(QUIET);
    let awake = Instant::now();
    while awake.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
}

fn one_of_ours(place: &Place) -> Result<Split, Failure> {
    settle();
    let (mut fence, split) = place.set_up()?;
    fence.close(soon())?;
    Ok(split)
}

fn one_floor(floor: &Floor) -> Result<Duration, Failure> {
    settle();
    let start = Instant::now();
    floor.set_up()?;
    let took = start.elapsed();
    floor.remove()?;
    Ok(took)
}

/// A step daemon has one step in its life, with cold caches: each is measured in a process of its own.
fn whole_life(place: &Place, rounds: u32, goals: &mut Goals) -> Result<(), Failure> {
    let mut found = [What::WholeFloor, What::Whole, What::Floor, What::Ours].map(|what| (what, Vec::new()));
    for _ in 0..rounds {
        for (what, durations) in &mut found {
            durations.push(in_fresh_process(place, *what)?);
        }
    }
    let [whole_floor, whole, floor, ours] = found.map(|(_, durations)| Sample::new(durations));
    heading(&format!("the whole life of a step, in {rounds} fresh processes each"));
    row("bare system calls (the floor)", &whole_floor);
    row("jobfence", &whole);
    row("  bare system calls, set-up alone", &floor);
    row("  jobfence, set-up alone", &ours);
    let ratio = times(&whole, &whole_floor);
    let wanted = format!("<= {WHOLE_GOAL}");
    let name = "the whole life of a step, times the floor (medians)";
    goals.add(name, &format!("{ratio:.2}"), &wanted, ratio <= WHOLE_GOAL);
    Ok(())
}

fn in_fresh_process(place: &Place, what: What) -> Result<Duration, Failure> {
    let what = what.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let run = Command::new(std::env::current_exe()?).args(["--once", &what]).args(place.options()).output()?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).trim_end().into());
    }
    Ok(Duration::from_nanos(String::from_utf8_lossy(&run.stdout).trim().parse()?))
}

/// What a launch does beside the set-up.
fn beside(place: &Place, rounds: u32) -> Result<(), Failure> {
    let (mut membership, mut janitor) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let here = Membership::read(&place.host.proc, Pid::this().as_raw())?;
        let read = Instant::now();
        janitor::reap(
            &place.host,
            &place.config,
            ALL,
            JanitorCaller::Launch(Launch { daemon: &here, key: None, all: false }),
            soon(),
        )?;
        membership.push(read - start);
        janitor.push(read.elapsed());
    }
    heading("beside it, at each launch");
    row("whose cgroup the step daemon is in", &Sample::new(membership));
    row("whether a dead step daemon left anything", &Sample::new(janitor));
    Ok(())
}

fn removal(place: &Place, floor: &Floor, end: End, name: &str, rounds: u32) -> Result<(), Failure> {
    let mut durations = Vec::new();
    for _ in 0..rounds {
        durations.push(Step::start(place, end)?.close()?);
        if let Some(left) = floor.directories().iter().find(|directory| directory.exists()) {
            return Err(format!("{} was left", left.display()).into());
        }
    }
    let sample = Sample::new(durations);
    heading(&format!("removal, {rounds} times"));
    row(&format!("from the {name}"), &sample);
    print!("{}", sample.histogram());
    Ok(())
}

fn system_calls(place: &Place, goals: &mut Goals) {
    println!("\nsystem calls, one time each");
    let mut sleeps = None;
    for (what, name) in [
        ("floor", "bare set-up"),
        ("ours", "jobfence's set-up"),
        ("whole-floor", "bare, the whole life"),
        ("whole", "jobfence's, the whole life"),
        ("exited", "close, nobody left"),
        ("straggler", "close, with a straggler"),
    ] {
        let Some(calls) = trace::calls(place, what) else {
            println!("  strace is missing or may not trace: not counted");
            break;
        };
        println!("  {name}: {} ({calls})", calls.count());
        if matches!(what, "exited" | "straggler") {
            sleeps = Some(sleeps.unwrap_or(0) + calls.sleeps());
        }
    }
    if let Some(sleeps) = sleeps {
        goals.add("removal, calls that only let time pass", &sleeps.to_string(), "0", sleeps == 0);
    }
}

fn once(place: &Place, what: What) -> Result<Duration, Failure> {
    match what {
        What::Ours => {
            let (mut fence, split) = between_marks(|| place.set_up())?;
            fence.close(soon())?;
            Ok(split.whole())
        }
        What::Floor => {
            let floor = Floor::of(place, &place.key)?;
            let start = Instant::now();
            between_marks(|| floor.set_up())?;
            let took = start.elapsed();
            floor.remove()?;
            Ok(took)
        }
        What::Exited => Step::start(place, End::Exited)?.close(),
        What::Straggler => Step::start(place, End::Straggler)?.close(),
        What::Whole => whole::ours(place),
        What::WholeFloor => whole::bare(place, &Floor::of(place, &place.key)?),
    }
}
