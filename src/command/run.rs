// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence run`: a fence around any command.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Args;
use jobfence::cgroup::io::IoRules;
use jobfence::cgroup::limits::MOST_PROCESSES;
use jobfence::config::{Config, Mode, USAGE_CARD_EXPECTS, UsageCard, parse_size, usage_card};
use jobfence::doors::run::{self, RunRequest};
use jobfence::job::Cpus;
use jobfence::record::tracked;
use jobfence::requests::UserRequests;
use nix::unistd::User;

use crate::asked;
use crate::command::{Failure, require_root};
use crate::configured::Configured;

#[derive(Args)]
pub struct RunOptions {
    /// CPU time as a number of CPUs, such as 0.5 or 4 [default: not limited]
    ///
    /// It is from 0.001 to 65536, with at most three decimals.
    /// The kernel's least quota is 1 ms in each period, so 0.01 CPUs in the period of 100 ms.
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Memory, such as 200M or 4G; a plain number is MiB, as in sbatch [default: not limited]
    ///
    /// It is a whole number, alone or with the unit K, M, G or T, and at least 1M.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mem: Option<u64>,
    /// Processes and threads at once [default: not limited]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=MOST_PROCESSES))]
    processes: Option<u64>,
    /// Rates of reading and writing, such as "/scratch rbps=200M wiops=1000" [default: not limited]
    ///
    /// The form is that of one value of IOMax in jobfence.conf(5).
    #[arg(long, value_name = "RULES", value_parser = IoRules::parse)]
    io_max: Option<IoRules>,
    /// At which shares of its limits the command is told, such as mem:90%:USR1 or pids:90% [default: SignalAt in jobfence.conf(5)]
    ///
    /// jobfence.service writes a sentence to the command's stderr then, and sends the signal, if there is one, to the command's process
    /// group. With B: before it, the command alone gets it. It needs --user: a command of root's is told nothing.
    #[arg(long, value_name = "SHARES")]
    signal_at: Option<String>,
    /// To which share of it the memory limit may grow, if the site lends memory: 100% is no loan [default: ElasticRAMPercent in jobfence.conf(5)]
    ///
    /// A higher share than the site's counts as the site's.
    #[arg(long, value_name = "PERCENT")]
    elastic_ram: Option<String>,
    /// When to say at the end, on stderr, what the command used of its limits: never, failed, wasteful or always [default: always if stderr is a terminal, otherwise never]
    ///
    /// The words are those of UsageCard in jobfence.conf(5), and so is the rule that a short run has one line. The key itself does not
    /// count here. By default a short run has a whole card, too.
    #[arg(long, value_name = "WHEN", value_parser = card)]
    usage_card: Option<UsageCard>,
    /// Run as this user, by name or number, with that user's groups
    ///
    /// The command has a session of its own, so it cannot write to the terminal as if it were typed.
    /// It has no controlling terminal, so a shell has no job control.
    /// If you need job control, become the user inside the fence: jobfence run -- runuser -u alice -- bash.
    ///
    /// HOME, SHELL, USER and LOGNAME are the user's.
    /// Of the other variables, only PATH, TERM, COLORTERM, LANG, LANGUAGE, LC_ALL, TZ and DISPLAY are kept.
    #[arg(long, value_name = "NAME", value_parser = user)]
    user: Option<User>,
    /// Say before the command what its fence is, and at the end in one line what was used
    ///
    /// If stderr is a terminal, the fence is said without this option, too.
    #[arg(short, long)]
    verbose: bool,
    /// Say on a terminal no more than without one: only the limits at which the command was stopped
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    #[command(flatten)]
    configured: Configured,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command and ends as it ended.
pub fn run(options: &RunOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence run'").map_err(|error| {
        format!("{error}, since nobody else may make cgroups: sudo jobfence run --user \"$USER\" -- COMMAND")
    })?;
    let has_reader = !options.quiet && io::stderr().is_terminal();
    let config = options.configured.load()?.config;
    let requests = asked::of_run(options.signal_at.as_deref(), options.elastic_ram.as_deref())?;
    if requests.signal_at.flatten().is_some() {
        if options.user.as_ref().is_none_or(|user| user.uid.is_root()) {
            return Err("--signal-at: a command of root's is told nothing; name another user by --user".into());
        }
        if let Some(why) = nobody_tells(&config) {
            eprintln!("jobfence: --signal-at: nobody tells the command, since {why}");
        }
    }
    let request = RunRequest {
        cpus: options.cpus,
        memory: options.mem,
        processes: options.processes,
        io: options.io_max.clone().unwrap_or_default(),
        card: options.usage_card.or((!has_reader).then_some(UsageCard::Never)),
        user: options.user.clone(),
        asked: UserRequests { step: requests, ..UserRequests::default() },
        command: options.command.clone(),
    };
    let ended = run::run(&config, &request, |fence| {
        if has_reader || options.verbose {
            run::described(fence).iter().for_each(|line| eprintln!("{line}"));
        }
    })?;
    for sentence in &ended.sentences {
        eprintln!("jobfence: {sentence}");
    }
    for line in &ended.card {
        eprintln!("{line}");
    }
    // The exit status stays the command's: this does not change it.
    if let Some(remains) = &ended.remains {
        eprintln!("jobfence: {remains}");
    }
    if options.verbose {
        eprintln!("jobfence: {}", ended.used);
    }
    let status = run::end_as(ended.how);
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

/// Why a command would not be told of what comes near its limit.
fn nobody_tells(config: &Config) -> Option<&'static str> {
    let lack = [
        (!tracked::is_watched(&config.run_dir), "'jobfence hold' (jobfence.service) does not run"),
        (config.mode != Mode::Enforce, "jobfence.service tells nobody without Mode=enforce"),
    ];
    lack.into_iter().find_map(|(is_lost, why)| is_lost.then_some(why))
}

/// CPU time as a number of CPUs.
pub fn cpus(text: &str) -> Result<Cpus, String> {
    let expected =
        || format!("expected a number of CPUs from 0.001 to 65536 with at most three decimals, found {text:?}");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3
        || !(whole.to_owned() + part).bytes().all(|b| b.is_ascii_digit())
        || (whole.is_empty() && part.is_empty())
    {
        return Err(expected());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| expected())? };
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| expected())?;
    match whole.checked_mul(1000).and_then(|thousandths| thousandths.checked_add(part)) {
        Some(thousandths) if (1..=65_536_000).contains(&thousandths) => Ok(Cpus::from_thousandths(thousandths)),
        _ => Err(expected()),
    }
}

/// An amount of memory.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("expected a size of at least 1M, such as 200M or 4G, found {text:?}"))
}

fn card(text: &str) -> Result<UsageCard, String> {
    usage_card(text).map_err(|_| format!("expected {USAGE_CARD_EXPECTS}"))
}

fn user(text: &str) -> Result<User, String> {
    let found = match text.parse::<u32>() {
        Ok(uid) => User::from_uid(uid.into()),
        Err(_) => User::from_name(text),
    };
    found.ok().flatten().ok_or_else(|| format!("unknown user {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_read_exactly() {
        for (text, thousandths) in [("0.5", 500), ("4", 4000), (".25", 250), ("1.001", 1001), ("2.", 2000)] {
            assert_eq!(cpus(text).map(Cpus::thousandths), Ok(thousandths), "{text}");
        }
        for bad in ["", ".", "0", "-1", "1e3", "0.0001", "65537", "99999999999999999999", "1.2.3", "+1", "½"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
