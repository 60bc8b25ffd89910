// SPDX-License-Identifier: GPL-2.0-or-later
//! The rows of a card: what was used of each resource, with a bar.

use super::figures::{Figures, percent};
use super::words::{cut, decimal, duration, printable, shown, wrapped};
use crate::bytes::binary;
use crate::cgroup::io::DiskLimit;
use crate::report::nodes::Nodes;

/// The usage of one resource.
struct Row<'a> {
    label: &'a str,
    /// In percent. `None`: it has no limit.
    share: Option<u64>,
    text: String,
}

impl Figures<'_> {
    pub(super) fn row_lines(&self) -> Vec<String> {
        self.rows().iter().flat_map(|row| self.lines_of(row)).collect()
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let usage = self.usage;
        let mut rows = Vec::new();
        let mut add = |label, share, text| rows.push(Row { label, share, text });
        match (self.busy(), usage.cpu) {
            (Some(busy), _) => {
                let of = self.most_cpus().map_or_else(|| "CPUs".to_owned(), |cpus| format!("of {}", cpus.in_words()));
                let granted = self.kept_from_it().map(|(_, granted)| format!("; {granted} granted"));
                // The job's counter includes what ended step daemons used, and no other figure shows that.
                let daemons = self.has_daemons && self.cpu_share().is_some_and(|share| share > 100);
                let daemons = if daemons { ", step daemons counted" } else { "" };
                add(
                    "CPU",
                    self.cpu_share(),
                    format!("{} {of} on average{daemons}{}", decimal(busy), granted.unwrap_or_default()),
                );
            }
            (None, Some(cpu)) => add("CPU", None, format!("{} of CPU time", duration(cpu))),
            (None, None) => {}
        }
        if let Some(peak) = usage.memory_peak {
            let of =
                self.most_memory().map_or_else(|| ", not limited".to_owned(), |most| format!(" of {}", binary(most)));
            add("memory", self.memory_share(), format!("peak {}{of}{}", binary(peak), self.on_fullest()));
        }
        if let Some(peak) = usage.processes_peak.filter(|_| self.has_daemons) {
            add("processes", None, format!("peak {peak} with threads and step daemons"));
        } else if let Some(peak) = usage.processes_peak {
            let share = self.processes.and_then(|most| percent(peak.into(), most.into()));
            let of = self.processes.map_or_else(String::new, |most| format!(" of {most}"));
            add("processes", share, format!("peak {peak}{of}, threads counted"));
        }
        if let Some((read, written)) = usage.read.zip(usage.written) {
            let share = self.busiest().map(|(share, _)| share);
            add("disks", share, format!("read {}, wrote {}", binary(read), binary(written)));
        }
        if let Some((read, written)) = usage.moved_beside_disks() {
            add("all files", None, format!("read {}, wrote {} with pipes", binary(read), binary(written)));
        }
        for (label, share, text) in self.noted_rows() {
            let here = if self.nodes.is_some_and(|nodes| nodes > 1) { " on this node" } else { "" };
            add(label, share, printable(text) + here);
        }
        // Without a limit, the title says it all.
        if let (Some(wall), Some(limit)) = (self.wall, self.time_limit) {
            let share = percent(wall.as_micros(), limit.as_micros());
            add("time", share, format!("{} of {}", duration(wall), duration(limit)));
        }
        rows
    }

    /// The node on which memory was nearest to its limit, if the job has several nodes.
    fn on_fullest(&self) -> String {
        let fullest = self.others.and_then(Nodes::fullest);
        fullest.map_or_else(String::new, |(name, _)| format!(" on {}", cut(&printable(name), 24)))
    }

    /// The I/O rate that was nearest to its limit on average, in percent of the limit, and in words.
    pub(super) fn busiest(&self) -> Option<(u64, String)> {
        let wall = self.wall?.as_micros();
        let disks = self.usage.disks.as_ref()?;
        let of_disk = |limit: &DiskLimit| {
            let number = (limit.disk.major, limit.disk.minor);
            let used = disks.iter().find(|disk| (disk.disk.0.into(), disk.disk.1.into()) == number).copied();
            let used = used.unwrap_or_default();
            let rates = limit.rates;
            [
                ("Reading", rates.rbps, used.read, true),
                ("Writing", rates.wbps, used.written, true),
                ("Reading", rates.riops, used.reads, false),
                ("Writing", rates.wiops, used.writes, false),
            ]
            .map(|(what, most, used, is_bytes)| {
                let (most, rate) = (most?, u128::from(used).checked_mul(1_000_000)?.checked_div(wall)?);
                let unit = if is_bytes { binary(most) } else { format!("{most} operations") };
                let words = format!("{what} on disk {}:{} is limited to {unit} a second", number.0, number.1);
                Some((percent(rate, most.into())?, words))
            })
        };
        self.disks.iter().flat_map(of_disk).flatten().max_by_key(|(share, _)| *share)
    }

    fn lines_of(&self, row: &Row<'_>) -> Vec<String> {
        const CELLS: u64 = 20;
        let (full, empty) = if self.is_utf8 { ('█', '░') } else { ('#', '.') };
        let (bar, share) = match row.share {
            Some(share) => {
                let cells = share.saturating_mul(CELLS).div_ceil(100).min(CELLS);
                let bar = (0..CELLS).map(|cell| if cell < cells { full } else { empty }).collect();
                (bar, shown(share))
            }
            None => (String::new(), String::new()),
        };
        // A bar's characters are counted, not its bytes.
        let head = format!("  {:<9} {bar:<20} {share:>6}  ", row.label);
        wrapped(&row.text, &head, &" ".repeat(head.chars().count()))
    }
}
