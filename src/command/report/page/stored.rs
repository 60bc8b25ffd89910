// SPDX-License-Identifier: GPL-2.0-or-later
//! The page of what the scheduler's accounting has about a job.

use std::time::Duration;

use jobfence::bytes::binary;
use jobfence::report::card::{duration as in_words, several};
use maud::html;

use super::super::accounting::StoredJob;
use super::headline::{self, Headline};
use super::parts::{Bar, Cell, UNKNOWN, bars, bytes, of, page, seconds, table};
use crate::table::printable;

/// The page. `source`: the accounting's name.
pub fn of_stored(job: &str, source: &str, stored: &StoredJob) -> String {
    let job = printable(job);
    let wall = stored.seconds;
    let parts = &stored.nodes;
    let share = |used: Option<f64>, of: Option<f64>| Some(100.0 * used? / of.filter(|of| *of > 0.0)?);
    let cpus = parts.iter().map(|(_, part)| part.cpus).sum::<Option<u64>>();
    let used = parts.iter().map(|(_, part)| part.cpu_seconds).sum::<Option<f64>>();
    let granted = cpus.map(|cpus| cpus as f64 * wall as f64);
    let fullest = parts.iter().filter_map(|(node, part)| Some((node, part.memory_peak?, part.memory)));
    let fullest = fullest.max_by_key(|(_, peak, _)| *peak);
    let memory = fullest.and_then(|(_, peak, most)| share(Some(peak as f64), most.map(|most| most as f64)));
    let body = html! {
        header {
            h1 { "Job " (job) }
            (Headline::open(&headline::used(share(used, granted), memory)).markup())
            p.facts { "From " (source) ". It ran for " (in_words(Duration::from_secs(wall))) " on "
                (several(parts.len() as u64, "node", "nodes")) "." }
        }
        section aria-labelledby="used" {
            h2 #used { "Used of what was granted" }
            (bars(&[
                Bar {
                    name: "CPU time",
                    share: share(used, granted),
                    text: used.map_or_else(|| UNKNOWN.to_owned(), |used| of(seconds(used), granted.map(seconds))),
                    is_bad: false,
                },
                Bar {
                    name: "Memory",
                    share: memory,
                    text: fullest.map_or_else(|| UNKNOWN.to_owned(), |(node, peak, most)| {
                        format!("{} at the most, on {}", of(binary(peak), most.map(binary)), printable(node))
                    }),
                    is_bad: false,
                },
            ]))
        }
        section aria-labelledby="nodes" {
            h2 #nodes { "Nodes" }
            (table("What each node has said", &["Node", "CPU time", "CPUs", "Peak of memory", "Memory granted"], parts.iter().map(|(node, part)| vec![
                Cell::text(printable(node)),
                Cell::with_bar(part.cpu_seconds.map_or_else(|| UNKNOWN.to_owned(), seconds), share(part.cpu_seconds, part.cpus.map(|cpus| cpus as f64 * wall as f64))),
                Cell::number(part.cpus.map(|cpus| cpus.to_string())),
                Cell::with_bar(bytes(part.memory_peak), share(part.memory_peak.map(|peak| peak as f64), part.memory.map(|most| most as f64))),
                Cell::number(part.memory.map(binary)),
            ])))
        }
        section aria-labelledby="unknown" {
            h2 #unknown { "Not known here" }
            p { (source) " has one summary of a job. How the job ended, its steps, what went to disks and what "
                "GPUs did are not in it. The usage log of each node has its steps: run " code { "jobfence report " (job) } " there." }
        }
    };
    page(&format!("Job {job}"), &body)
}
