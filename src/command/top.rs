// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence top`: the jobs of this node, repeatedly, on a terminal. Without a terminal, one table of their fences.

mod columns;
mod draw;
#[cfg(test)]
mod drawn;
mod fit;
mod jobs;
mod list;
mod node;
mod pager;
mod screen;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use jobfence::job::Id;
use jobfence::report::card::is_utf8;

use crate::command::Failure;
use crate::living::{FilterOptions, LivingView, MEASURED, print, warn_of};
use crate::show;
use crate::table::{has_colours, printable};
use draw::{Manner, draw};
use jobs::{AmountsNow, SortColumn, sort};
use list::{TopList, Wish};
use node::NodeNow;
use pager::Pager;
use screen::{Heard, Screen};

#[derive(Args)]
pub struct TopOptions {
    #[command(flatten)]
    filter: FilterOptions,
    /// Column by which the jobs are sorted
    #[arg(long, value_name = "COLUMN", default_value = "cpu")]
    sort: SortColumn,
    /// Seconds between two readings, 0.2 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    interval: Duration,
    /// Read once, and print one JSON object, as 'jobfence ls' does
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    let expected = || format!("expected a number of seconds from 0.2 to 3600, found {text:?}");
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}

/// Shows the jobs until the user quits.
pub fn top(options: &TopOptions) -> Result<ExitCode, Failure> {
    let mut view = options.filter.view()?;
    if options.json || !io::stdout().is_terminal() {
        let (mut rows, unseen) = view.measured();
        warn_of(&unseen);
        sort(&mut rows, options.sort, false, |row| (AmountsNow::from_row(row), row.user.clone()));
        print(&rows, options.json);
        return Ok(ExitCode::SUCCESS);
    }
    show_until_the_end(Screen::open()?, &mut view, options)?;
    Ok(ExitCode::SUCCESS)
}

fn show_until_the_end(mut screen: Screen, view: &mut LivingView, options: &TopOptions) -> Result<(), Failure> {
    let manner = Manner { has_colours: has_colours(), is_utf8: is_utf8(|name| std::env::var(name).ok()) };
    let mut list = TopList::new(options.sort);
    list.node = NodeNow::read(&view.host);
    view.begin();
    let mut next = Instant::now() + MEASURED;
    loop {
        if Instant::now() >= next {
            let (rows, unseen) = view.rows();
            list.take(NodeNow::read(&view.host), rows, unseen.len());
            if let Some(pager) = &mut list.pager
                && let Some(job) = &pager.job
            {
                pager.text = all_of(view, job);
            }
            next = Instant::now() + options.interval;
        }
        screen.show(|cells| draw(&mut list, cells, manner, SystemTime::now()))?;
        // This is how long a signal may wait, whatever the interval is.
        let patience = next.saturating_duration_since(Instant::now()).min(Duration::from_millis(500));
        let heard = screen.listen(patience)?;
        if heard == Heard::End {
            return Ok(());
        }
        let mut wish = Wish::None;
        let is_some = screen.keys(&mut |key| {
            wish = list.key(key);
            wish != Wish::None
        })?;
        match wish {
            // A part of a key has arrived. The rest may take its time.
            Wish::None if heard == Heard::Something && !is_some => std::thread::sleep(Duration::from_millis(50)),
            Wish::None => {}
            Wish::Quit => return Ok(()),
            Wish::Redraw => screen.forget(),
            Wish::Show(job) => {
                let title = format!("jobfence show {}", printable(job.as_str()));
                list.pager = Some(Pager::new(title, all_of(view, &job), Some(job)));
            }
        }
    }
}

/// The text of 'jobfence show' about the job.
fn all_of(view: &mut LivingView, job: &Id) -> String {
    let in_words = view.with_job(job.clone(), |view| match view.steps() {
        (steps, _) if !steps.is_empty() => Some(show::in_words(&steps, view)),
        (_, unseen) => unseen.first().map(|error| format!("It cannot be seen whether the job runs: {error}")),
    });
    in_words.unwrap_or_else(|| {
        let job = printable(job.as_str());
        format!("The job does not run here any more.\nWhat it has used: jobfence report {job}")
    })
}
