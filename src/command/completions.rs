// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence completions`: scripts with which a shell completes the command's words.

use std::io::Write;
use std::process::ExitCode;

use clap::{Arg, ArgGroup, Args, Command, CommandFactory, Id, ValueEnum, ValueHint};
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

/// Where bash's completion code begins, and the commands for which a word without an option may be a file.
const BASH: &str = "    case \"${cmd}\" in\n        jobfence)\n";
const WITH_FILES: &str = "jobfence__subcmd__run|jobfence__subcmd__pbs__subcmd__config";

/// Prints the script.
pub fn completions<C: CommandFactory>(options: &CompletionsOptions) -> Result<ExitCode, Failure> {
    let shell = match options.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut visible(&C::command(), shell), "jobfence", &mut text);
    let mut text = String::from_utf8(text)?;
    if matches!(options.shell, CompletedShell::Bash) {
        // Otherwise bash offers files wherever it knows nothing else.
        let no_files =
            format!("    [[ \"${{cmd}}\" == @({WITH_FILES}) ]] || compopt +o bashdefault +o default 2>/dev/null\n");
        text = text.replacen(BASH, &(no_files + BASH), 1);
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The command without hidden arguments: the generators do not check whether an argument is hidden.
fn visible(command: &Command, shell: Shell) -> Command {
    let arguments: Vec<Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .map(|argument| with_hint(argument, shell))
        .collect();
    // Arguments refer to these groups if they exclude each other.
    let is_shown = |id: &&Id| arguments.iter().any(|argument| argument.get_id() == *id);
    let groups: Vec<ArgGroup> = command
        .get_groups()
        .map(|group| {
            ArgGroup::new(group.get_id().clone())
                .multiple(true)
                .args(group.get_args().filter(is_shown).cloned().collect::<Vec<_>>())
        })
        .collect();
    let about = command.get_about().cloned().unwrap_or_default();
    // Leaked: it lives as long as this process, which has nothing else to do.
    let name: &'static str = command.get_name().to_owned().leak();
    let shown = Command::new(name).about(about).args(arguments).groups(groups);
    let shown = if command.get_version().is_some() { shown.version("") } else { shown };
    shown.subcommands(command.get_subcommands().map(|command| visible(command, shell)))
}

/// Sets the kind of a value, by its name in the help. Without a kind, a shell offers file names.
fn with_hint(argument: &Arg, shell: Shell) -> Arg {
    let name = argument.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
    let hint = match name {
        "FILE" => ValueHint::FilePath,
        "DIRECTORY" => ValueHint::DirPath,
        // The generated code for bash would offer files.
        "USER" if shell != Shell::Bash => ValueHint::Username,
        "COMMAND" => ValueHint::Unknown,
        _ => ValueHint::Other,
    };
    let argument = argument.clone();
    if argument.get_action().takes_values() { argument.value_hint(hint) } else { argument }
}
