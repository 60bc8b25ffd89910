// SPDX-License-Identifier: GPL-2.0-or-later
//! The columns of the list of `jobfence top`. If the screen is narrow, columns are left out, and none is cut.

use ratatui_core::style::Color;

use super::fit::{self, shortened, wide};
use super::jobs::{AmountsNow, ListedJob};
use super::list::{ListedLine, TopList};
use crate::living::LivingRow;
use crate::table::{NONE, clock, mib, number, printable};

/// How many cells a bar has.
const BAR: u64 = 10;

/// From these percentages on, a cell of memory is red, and a cell of CPU time is yellow.
const MUCH_MEMORY: u64 = 90;
const ALL_CPU_TIME: u64 = 95;

/// A line of the list, and what its cells are made from.
struct LineInFull<'a> {
    job: &'a ListedJob,
    step: Option<&'a LivingRow>,
    amounts: AmountsNow,
    is_unfolded: bool,
    is_utf8: bool,
}

/// A column of the list.
struct ListColumn {
    head: &'static str,
    is_text: bool,
    /// The rank by which columns are left out: the largest number goes first.
    rank: u8,
    cell: fn(&LineInFull<'_>) -> String,
    colour: fn(&AmountsNow) -> Option<Color>,
}

const fn texts(head: &'static str, rank: u8, cell: fn(&LineInFull<'_>) -> String) -> ListColumn {
    ListColumn { head, is_text: true, rank, cell, colour: |_| None }
}

const fn numbers(head: &'static str, rank: u8, cell: fn(&LineInFull<'_>) -> String) -> ListColumn {
    ListColumn { head, is_text: false, rank, cell, colour: |_| None }
}

/// A column of a bar, or of the number beside it: a user who sees no colours reads the number.
const fn of_grant(mut column: ListColumn, colour: fn(&AmountsNow) -> Option<Color>) -> ListColumn {
    column.colour = colour;
    column
}

const COLUMNS: [ListColumn; 17] = [
    texts("  JOB", 0, |line| line.name()),
    texts("USER", 3, |line| line.of_job(|job| shortened(job.user(), 16, line.is_utf8))),
    texts("PARTITION", 10, |line| {
        line.of_job(|job| shortened(&printable(job.partition.as_deref().unwrap_or(NONE)), 16, line.is_utf8))
    }),
    numbers("STEPS", 9, |line| line.of_job(|job| job.steps.len().to_string())),
    numbers("UPTIME", 8, |line| line.amounts.uptime.map_or_else(|| NONE.to_owned(), clock)),
    numbers("CPU", 6, |line| line.cpus()),
    numbers("CPUS", 11, |line| number(line.amounts.granted.cpus)),
    of_grant(texts("OF GRANT", 4, |line| line.bar(line.amounts.cpu_percent())), of_cpu),
    of_grant(numbers("CPU%", 1, |line| number(line.amounts.cpu_percent())), of_cpu),
    numbers("MEM/MiB", 7, |line| mib(line.amounts.memory)),
    numbers("MAX/MiB", 12, |line| mib(line.amounts.granted.memory)),
    of_grant(texts("OF GRANT", 4, |line| line.bar(line.amounts.memory_percent())), of_memory),
    of_grant(numbers("MEM%", 2, |line| number(line.amounts.memory_percent())), of_memory),
    numbers("GPU%", 5, |line| line.of_job(|job| job.gpu.clone())),
    numbers("PROCS", 13, |line| number(line.amounts.processes)),
    numbers("PEAK/MiB", 14, |line| mib(line.amounts.peak)),
    texts("WHERE", 15, |line| line.placement().to_owned()),
];

fn of_cpu(amounts: &AmountsNow) -> Option<Color> {
    amounts.cpu_percent().filter(|percent| *percent >= ALL_CPU_TIME).map(|_| Color::Yellow)
}

fn of_memory(amounts: &AmountsNow) -> Option<Color> {
    amounts.memory_percent().filter(|percent| *percent >= MUCH_MEMORY).map(|_| Color::Red)
}

impl LineInFull<'_> {
    /// The name of the job or the step. The mark before a job says whether its steps are shown.
    fn name(&self) -> String {
        let Some(step) = self.step else {
            let (node, _, job) = &self.job.identity;
            let node = node.as_ref().map(|node| format!("@{node}")).unwrap_or_default();
            let mark = if self.is_unfolded { '-' } else { '+' };
            return format!("{mark} {}", shortened(&printable(&format!("{job}{node}")), 24, self.is_utf8));
        };
        let run = step.run.filter(|run| *run > 1).map(|run| format!(".{run}")).unwrap_or_default();
        format!("    {}", shortened(&printable(&format!("{}{run}", step.step)), 16, self.is_utf8))
    }

    fn cpus(&self) -> String {
        self.step.or(self.job.steps.first()).map_or_else(|| NONE.to_owned(), |row| row.cpus_cell(self.amounts.cpus))
    }

    /// A cell that is the same for all steps of a job. Only the job's line has it.
    fn of_job(&self, cell: impl Fn(&ListedJob) -> String) -> String {
        if self.step.is_some() { String::new() } else { cell(self.job) }
    }

    fn bar(&self, percent: Option<u64>) -> String {
        let (full, empty) = if self.is_utf8 { ('█', '░') } else { ('#', '.') };
        let of = |percent: u64| percent.saturating_mul(BAR).div_ceil(100).min(BAR);
        let drawn = |cells: u64| (0..BAR).map(|cell| if cell < cells { full } else { empty }).collect();
        percent.map(of).map_or_else(String::new, drawn)
    }

    fn placement(&self) -> &'static str {
        let mut all = self.step.map_or_else(|| self.job.steps.iter(), |step| std::slice::from_ref(step).iter());
        let first = all.next().map_or(NONE, |step| step.placement);
        if all.all(|step| step.placement == first) { first } else { "both" }
    }
}

/// The cells of a line, each with its place and its colour.
pub type Cells = Vec<(usize, String, Option<Color>)>;

/// The cells of the heads, and those of each line.
pub fn cells(list: &TopList, lines: &[ListedLine], width: usize, is_utf8: bool) -> (Cells, Vec<Cells>) {
    let full = lines.iter().filter_map(|line| {
        let job = list.jobs.get(line.job)?;
        let step = line.step.and_then(|step| job.steps.get(step));
        let amounts = step.map_or_else(|| job.amounts.clone(), AmountsNow::from_row);
        Some(LineInFull { job, step, amounts, is_unfolded: list.is_unfolded(job), is_utf8 })
    });
    let full: Vec<LineInFull<'_>> = full.collect();
    // A column is left out if it is empty for every job, whether the filter finds the job or not.
    let has_gpus = list.jobs.iter().any(|job| job.gpu != NONE);
    let has_partitions = list.jobs.iter().any(|job| job.partition.is_some());
    let is_wanted = |column: &&ListColumn| match column.head {
        "GPU%" => has_gpus,
        "PARTITION" => has_partitions,
        _ => true,
    };
    let columns: Vec<&ListColumn> = COLUMNS.iter().filter(is_wanted).collect();
    let texts: Vec<Vec<String>> =
        full.iter().map(|line| columns.iter().map(|column| (column.cell)(line)).collect()).collect();
    let widths: Vec<(u8, usize)> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let widest = texts.iter().filter_map(|cells| cells.get(at)).map(|cell| wide(cell)).max();
            (column.rank, widest.unwrap_or(0).max(wide(column.head)))
        })
        .collect();
    let kept = fit::columns(&widths, width);
    let placed = |text: &dyn Fn(usize) -> (String, Option<Color>)| {
        let mut place = 0;
        let mut cells = Cells::new();
        for at in &kept {
            let column = widths.get(*at).map_or(0, |(_, wide)| *wide);
            let (text, colour) = text(*at);
            let is_text = columns.get(*at).is_some_and(|column| column.is_text);
            let before = if is_text { 0 } else { column.saturating_sub(wide(&text)) };
            cells.push((place + before, text, colour));
            place += column + 1;
        }
        cells
    };
    let heads = placed(&|at| (columns.get(at).map_or(String::new(), |column| column.head.to_owned()), None));
    let all = full.iter().zip(&texts).map(|(line, cells)| {
        placed(&|at| {
            let colour = columns.get(at).and_then(|column| (column.colour)(&line.amounts));
            (cells.get(at).cloned().unwrap_or_default(), colour)
        })
    });
    (heads, all.collect())
}
