// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence ls`: the live fences of this node, one line each.

use std::process::ExitCode;

use clap::Args;

use crate::command::Failure;
use crate::living::{FilterOptions, print, warn_of};

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
    print(&rows, options.json);
    Ok(ExitCode::SUCCESS)
}
