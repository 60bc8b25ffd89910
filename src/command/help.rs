// SPDX-License-Identifier: GPL-2.0-or-later
//! The layout of `--help`: the commands in groups, and long texts in lines of a terminal. clap does neither.

use clap::Command;

/// The commands, by who needs them.
const GROUPS: [(&str, &[&str]); 4] = [
    ("For users and administrators", &["ls", "show", "top", "report", "explain", "login", "run", "completions"]),
    ("For administrators", &["check", "setup", "enable", "disable", "host", "reap", "strays", "resize", "pbs-config"]),
    ("For the prolog and epilog of any batch system", &["open", "attach", "limit", "usage", "freeze", "thaw", "close"]),
    ("Started by a scheduler, PAM or systemd", &["prolog", "epilog", "adopt", "jsv", "hold"]),
];

/// The width of a terminal without what clap puts before an option's text.
const BESIDE_OPTIONS: usize = 70;

/// The same for the name of a command.
const BESIDE_COMMANDS: usize = 65;

/// The program with its help as people read it.
pub fn readable(program: Command) -> Command {
    let groups = grouped(&program);
    program
        .help_template(format!(
            "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}\nOptions:\n{{options}}\n\n\
             'jobfence COMMAND --help' says more about a command, and jobfence(8) says all."
        ))
        .mut_subcommands(with_long_texts)
}

/// Each group with its commands, and what each does.
fn grouped(program: &Command) -> String {
    let of = |name: &str| {
        let about = program.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
        let about = wrapped(&about.unwrap_or_default(), BESIDE_COMMANDS).replace('\n', &format!("\n{:15}", ""));
        format!("  {name:<12} {about}\n")
    };
    let group = |(title, names): &(&str, &[&str])| {
        format!("{title}:\n{}\n", names.iter().map(|name| of(name)).collect::<String>())
    };
    GROUPS.iter().map(group).collect::<String>().trim_end().to_owned() + "\n"
}

/// The long texts in lines of a terminal, since clap alone wraps none.
fn with_long_texts(command: Command) -> Command {
    if command.get_arguments().all(|argument| argument.get_long_help().is_none()) {
        return command;
    }
    command.mut_args(|argument| {
        let text = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
        argument.long_help(
            text.split('\n').map(|paragraph| wrapped(paragraph, BESIDE_OPTIONS)).collect::<Vec<_>>().join("\n"),
        )
    })
}

/// A paragraph in lines of at most so many characters.
fn wrapped(paragraph: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in paragraph.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let program = crate::Cli::command();
        let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
        let shown: BTreeSet<&str> = shown.map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), shown);
        assert_eq!(grouped.len(), shown.len(), "a command is in two groups");
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let help = readable(crate::Cli::command()).render_help().to_string();
        assert!(help.contains("\nFor administrators:\n  check        Say whether a job would be fenced"), "{help}");
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}
