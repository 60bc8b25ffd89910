// SPDX-License-Identifier: GPL-2.0-or-later
//! What few readers need of a job, folded: memory at the end, waiting, disks. What is zero has no row, and no part of its own.

use std::time::Duration;

use jobfence::bytes::binary;
use jobfence::cgroup::disk::{Device, Disks};
use jobfence::figures::DiskIo;
use jobfence::report::card::duration as in_words;
use jobfence::sys::dir::Dir;
use maud::{Markup, html};

use super::parts::{Cell, UNKNOWN, bytes, folded, of, percent, seconds, step_name, table};
use crate::gpu::JobGpus;
use crate::logged::LoggedStep;
use crate::table::printable;

/// One part of the page.
pub enum FoldedPart {
    Shown(Markup),
    /// All that is known of it is zero.
    Zero,
    Unknown,
}

impl FoldedPart {
    pub fn markup(&self) -> Option<&Markup> {
        match self {
            Self::Shown(markup) => Some(markup),
            Self::Zero | Self::Unknown => None,
        }
    }
}

/// A figure of a step, with the head of its column.
type StepFigure<T> = (&'static str, fn(&LoggedStep) -> Option<T>);

/// The steps with a figure that is not zero, and the figures that are not zero in all of them, as a table.
fn of_steps<T: Copy + Default + PartialEq>(
    steps: &[&LoggedStep],
    figures: &[StepFigure<T>],
    caption: &str,
    in_words: fn(T) -> String,
    shown: impl FnOnce(&[&LoggedStep], Markup) -> Markup,
) -> FoldedPart {
    let is_zero = |value: Option<T>| value == Some(T::default());
    let is_used =
        |step: &&LoggedStep| figures.iter().any(|(_, of)| of(step).is_some_and(|value| value != T::default()));
    let used: Vec<&LoggedStep> = steps.iter().copied().filter(is_used).collect();
    if used.is_empty() {
        let is_known = steps.iter().any(|step| figures.iter().any(|(_, of)| of(step).is_some()));
        return if is_known { FoldedPart::Zero } else { FoldedPart::Unknown };
    }
    let kept = figures.iter().filter(|(_, of)| !used.iter().all(|step| is_zero(of(step))));
    let kept: Vec<&StepFigure<T>> = kept.collect();
    let heads: Vec<&str> = std::iter::once("Step").chain(kept.iter().map(|(head, _)| *head)).collect();
    let rows = used.iter().map(|step| {
        let cells = kept.iter().map(|(_, of)| Cell::number(of(step).map(in_words)));
        std::iter::once(Cell::text(step_name(step))).chain(cells).collect()
    });
    let body = table(caption, &heads, rows);
    FoldedPart::Shown(shown(&used, body))
}

pub fn memory(steps: &[&LoggedStep]) -> FoldedPart {
    const PARTS: [StepFigure<u64>; 5] = [
        ("Programs", |step| step.usage.memory_anonymous),
        ("Page cache", |step| step.usage.memory_file),
        ("Shared", |step| step.usage.memory_shared),
        ("Kernel", |step| step.usage.memory_kernel),
        ("Swap", |step| step.usage.memory_swap),
    ];
    let caption = "What the memory of each step consisted of when it ended";
    of_steps(steps, &PARTS, caption, binary, |used, body| {
        let killed = used.iter().any(|step| step.usage.oom_kills.is_some_and(|kills| kills > 0));
        folded("Memory at the end", if killed { "what the kills left" } else { "what it consisted of" }, &body)
    })
}

const TIMES: [StepFigure<Duration>; 4] = [
    ("For the quota", |step| step.usage.throttled),
    ("For a CPU", |step| step.usage.cpu_pressure_some),
    ("For memory", |step| step.usage.memory_pressure_some),
    ("For disks", |step| step.usage.io_pressure_some),
];

pub fn waits(steps: &[&LoggedStep]) -> FoldedPart {
    let caption = "How long at least one process of each step has waited";
    of_steps(steps, &TIMES, caption, in_words, |used, body| {
        let times = used.iter().flat_map(|step| TIMES.iter().filter_map(|(_, of)| of(step)));
        let most = times.max().map_or_else(String::new, |most| format!("at most {}", in_words(most)));
        folded("Time spent waiting", &most, &body)
    })
}

/// Disks by the names that the kernel of this host has for them now.
pub struct DiskNames(Option<(Disks, Dir)>);

impl DiskNames {
    /// The names for a log of this node. On another host the same number may be another disk.
    pub fn from_node(node: Option<&str>) -> Self {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let is_here = node.is_none_or(|node| short(node) == short(&host));
        let sys = || Dir::open("/sys").ok();
        Self(is_here.then(|| Some((Disks::new("", sys()?), sys()?))).flatten())
    }

    fn name(&self, (major, minor): (u32, u32)) -> String {
        let disk = Device { major: major.into(), minor: minor.into() };
        let Some((disks, sys)) = &self.0 else { return format!("disk {disk}") };
        // The device mapper has names that people have given.
        let mapped = sys.read_value(&format!("dev/block/{disk}/dm/name")).ok();
        let name = mapped.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        match name.unwrap_or_else(|| disks.name(disk)) {
            name if name == disk.to_string() => format!("disk {disk}"),
            name => format!("{} ({disk})", printable(&name)),
        }
    }
}

pub fn disks(steps: &[&LoggedStep], names: &DiskNames) -> FoldedPart {
    let is_used = |disk: &&DiskIo| [disk.read, disk.written, disk.reads, disk.writes].iter().any(|count| *count > 0);
    let sums = |step: &LoggedStep| [step.usage.read, step.usage.written];
    // An earlier release has written only the sums.
    let is_more =
        steps.iter().any(|step| step.usage.disks.is_none() && sums(step).iter().flatten().any(|sum| *sum > 0));
    let is_known = steps.iter().any(|step| step.usage.disks.is_some() || sums(step).iter().any(Option::is_some));
    let all = steps.iter().flat_map(|step| step.usage.disks.iter().flatten().map(move |disk| (step, disk)));
    let used: Vec<_> = all.filter(|(_, disk)| is_used(disk)).collect();
    if used.is_empty() {
        return if is_known && !is_more { FoldedPart::Zero } else { FoldedPart::Unknown };
    }
    let mut known: Vec<String> = used.iter().map(|(_, disk)| names.name(disk.disk)).collect();
    known.sort_unstable();
    known.dedup();
    let heads = ["Step and disk", "Read", "Written", "Reads", "Writes"];
    let rows = used.iter().map(|(step, DiskIo { disk, read, written, reads, writes })| {
        vec![
            Cell::text(format!("{}, {}", step_name(step), names.name(*disk))),
            Cell::number(Some(binary(*read))),
            Cell::number(Some(binary(*written))),
            Cell::number(Some(reads.to_string())),
            Cell::number(Some(writes.to_string())),
        ]
    });
    let body = table("What went between memory and each disk", &heads, rows);
    FoldedPart::Shown(folded("Disks", &known.join(", "), &body))
}

pub fn gpus(gpus: &JobGpus) -> Markup {
    let heads = ["GPU", "Busy", "By", "Memory at the most", "Energy in Wh", "Slowed"];
    let rows = gpus.gpus.iter().map(|gpu| {
        let share = gpu.percent();
        let by = share.map_or(String::new(), |_| gpu.source_in_words().to_owned());
        let total = gpu.memory_total.map(binary);
        let energy = gpu.energy.map(|joules| format!("{:.1}", joules / 3600.0));
        let busy = share.map_or_else(|| UNKNOWN.to_owned(), |share| percent(Some(share)));
        vec![
            Cell::text(gpu.name()),
            Cell::with_bar(busy, share),
            Cell::text(by),
            Cell::number(Some(of(bytes(gpu.memory_peak), total))),
            Cell::number(energy),
            Cell::number(gpu.slowed.map(seconds)),
        ]
    });
    html! {
        (table("What the job's GPUs did", &heads, rows))
        @if let Some(idle) = gpus.held_idle() { p { (idle) "." } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_zero_has_no_part_and_what_is_unknown_is_no_zero() {
        let step = |anonymous: Option<u64>| LoggedStep::new(json!({"step": "0", "memory_anonymous_bytes": anonymous}));
        let part = |values: [Option<u64>; 2]| {
            let steps = values.map(step);
            match memory(&steps.iter().collect::<Vec<_>>()) {
                FoldedPart::Shown(markup) => markup.into_string().matches("<tr").count().to_string(),
                FoldedPart::Zero => "zero".to_owned(),
                FoldedPart::Unknown => "unknown".to_owned(),
            }
        };
        // The table has a row of heads, too.
        assert_eq!([part([Some(5), Some(0)]), part([Some(5), None])], ["2", "2"]);
        assert_eq!([part([Some(0), None]), part([None, None])], ["zero", "unknown"]);
    }

    #[test]
    fn disks_without_use_have_no_rows() {
        let disk = |bytes: u64| json!([{"disk": "8:0", "read_bytes": bytes, "written_bytes": 0, "read_operations": 0, "write_operations": 0}]);
        let part = |disks: serde_json::Value, read: Option<u64>| {
            let step = LoggedStep::new(json!({"step": "0", "disks": disks, "read_bytes": read, "written_bytes": read}));
            match disks_of(&step) {
                FoldedPart::Shown(_) => "shown",
                FoldedPart::Zero => "zero",
                FoldedPart::Unknown => "unknown",
            }
        };
        let unknown = serde_json::Value::Null;
        assert_eq!(
            [part(disk(5), Some(5)), part(disk(0), Some(0)), part(json!([]), Some(0))],
            ["shown", "zero", "zero"]
        );
        let sums = [part(unknown.clone(), Some(0)), part(unknown.clone(), Some(5)), part(unknown, None)];
        assert_eq!(sums, ["zero", "unknown", "unknown"]);
    }

    fn disks_of(step: &LoggedStep) -> FoldedPart {
        disks(&[step], &DiskNames::from_node(None))
    }

    #[test]
    fn a_disk_has_the_name_of_this_host_or_its_number() {
        let elsewhere = DiskNames::from_node(Some("no-host-is-called-so.example"));
        assert_eq!(elsewhere.name((8, 0)), "disk 8:0");
        // No kernel has a driver of that number.
        assert_eq!(DiskNames::from_node(None).name((4095, 7)), "disk 4095:7");
        let here = std::fs::read_dir("/sys/dev/block").into_iter().flatten().flatten();
        for number in here.filter_map(|entry| entry.file_name().into_string().ok()).take(1) {
            let disk = Device::parse(&number).unwrap();
            let name =
                DiskNames::from_node(None).name((disk.major.try_into().unwrap(), disk.minor.try_into().unwrap()));
            assert!(name.ends_with(&format!(" ({number})")), "{name}");
        }
    }
}
