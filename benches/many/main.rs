// SPDX-License-Identifier: GPL-2.0-or-later
//! What a step costs where there is much: many processes in it, many other steps on the node, many that begin at once.
//!
//! `cargo bench --bench many`, as root.

#[path = "../setup/floor.rs"]
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod floor;
#[path = "../setup/place.rs"]
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod place;
#[path = "../setup/stats.rs"]
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod stats;

mod attach;
mod crowd;
mod daemon;
mod hold;
mod kills;
mod launch;
mod processes;
mod together;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use place::Place;

/// Anything that ends the benchmark with one line on stderr.
type Failure = Box<dyn std::error::Error>;

/// Measures steps where there are many processes, many other steps, or many at once.
#[derive(Parser)]
#[command(name = "many")]
struct Options {
    /// Measure this part only
    #[arg(long)]
    only: Option<Part>,
    /// Processes of a step that is ended
    #[arg(long, num_args = 1.., default_values_t = [1, 64, 512, 5000])]
    processes: Vec<usize>,
    /// Other steps on the node
    #[arg(long, num_args = 1.., default_values_t = [100, 1000, 10_000])]
    others: Vec<usize>,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The end of a step of many processes
    Kills,
    /// A step beside many other steps, cgroups, mounts and processes
    Crowd,
    /// Steps that begin and end at the same moment
    Together,
    /// The tasks of a step are attached
    Attach,
    /// 'jobfence hold' beside steps, for seven minutes
    Hold,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err("this needs root".into());
    }
    let wants = |part| options.only.is_none_or(|only| only == part);
    let place = Place::make(None, None)?;
    if wants(Part::Kills) {
        kills::measure(&place, &options.processes)?;
    }
    if wants(Part::Attach) {
        attach::measure(&place)?;
    }
    if wants(Part::Together) {
        together::measure(&place)?;
    }
    if wants(Part::Crowd) {
        crowd::measure(&place, &options.others)?;
    }
    if wants(Part::Hold) {
        hold::measure(&place, &[0, 1000])?;
    }
    Ok(())
}
