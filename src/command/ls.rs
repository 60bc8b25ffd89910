// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence ls`: the live fences of this node, one line each.

use std::process::ExitCode;

use clap::Args;

use crate::command::Failure;
use crate::living::{FilterOptions, LivingRow, document, rows_in_lines, say_none, warn_of};
use crate::table;

#[derive(Args)]
pub struct LsOptions {
    #[command(flatten)]
    filter: FilterOptions,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
}

/// Lists them.
pub fn ls(options: &LsOptions) -> Result<ExitCode, Failure> {
    let (rows, unseen) = options.filter.view()?.measured();
    warn_of(&unseen);
    if options.json {
        println!("{}", document(rows.iter().map(LivingRow::json)));
    } else if rows.is_empty() {
        say_none(None);
    } else {
        rows_in_lines(&rows, table::width()).iter().for_each(|line| println!("{line}"));
    }
    Ok(ExitCode::SUCCESS)
}
