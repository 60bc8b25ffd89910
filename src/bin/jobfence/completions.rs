// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence completions`: what a shell reads to complete the command's words.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};

use crate::command::Failure;

#[derive(Args)]
pub struct CompletionsOptions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: CompletedShell,
}

/// Those for which completions are installed.
#[derive(Clone, Copy, ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

/// Prints them.
pub fn completions<C: CommandFactory>(options: &CompletionsOptions) -> Result<ExitCode, Failure> {
    let shell = match options.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut C::command(), "jobfence", &mut text);
    std::io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
