// SPDX-License-Identifier: GPL-2.0-or-later
//! The `jobfence` command: see jobfence(8).

mod acl;
mod again;
mod armed;
mod asked;
mod card_notes;
mod check;
mod command;
mod completions;
mod configured;
mod course;
mod docker;
mod energy;
mod explain;
mod fetched;
mod followed;
mod gpu;
mod help;
mod hold;
mod host;
mod idle;
mod job_keys;
mod job_match;
mod job_name;
mod journal;
mod kept;
mod lend;
mod life;
mod living;
mod local_time;
mod logged;
mod login;
mod ls;
#[cfg(test)]
mod manual;
mod metrics;
mod metrics_file;
mod moment;
mod network;
mod node_logs;
mod only;
mod own_report;
mod part;
mod reap;
mod report;
mod resctrl;
mod resize;
mod run;
mod sample;
mod schedulers;
mod series;
mod setup;
mod show;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod start;
mod strays;
mod syslog;
mod systemd;
mod table;
mod top;
mod version;
mod whole;

#[cfg(test)]
#[path = "../../tests/common/skip.rs"]
mod skip;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use configured::Configured;
use jobfence::printable::printable_lines;
use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::sys::signal::{SigHandler, Signal, signal};
use schedulers::{gridengine, htcondor, pbs, slurm};
use syslog::SyslogOfDaemon;

/// Fences batch jobs in cgroups, and tells what they use.
#[derive(Parser)]
#[command(name = "jobfence", version = jobfence::VERSION, long_version = version::long(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say whether a job would be fenced here, how, and if not, why not.
    Check(check::CheckOptions),
    /// Find the schedulers of this node, have them fence jobs, and try it; or take that back.
    #[command(
        after_help = "Exit status: 0 if there was nothing to change, 2 if something was changed, 1 if something failed or is left to do."
    )]
    Setup(setup::SetupOptions),
    /// Check whether jobs can be fenced here, and then have Slurm load the plugin.
    Enable(slurm::enable::EnableOptions),
    /// Stop Slurm from loading the plugin, and remove what no step needs.
    Disable(slurm::disable::DisableOptions),
    /// Say which limits a job gets, which line sets each, and what is written where.
    Explain(explain::ExplainOptions),
    /// Run a command in a fence, without any scheduler.
    Run(run::RunOptions),
    /// Remove what dead step daemons have left.
    Reap(Configured),
    /// For Prolog= of slurm.conf: record what slurmd says about a job. Always succeeds.
    Prolog(Configured),
    /// For Epilog= of slurm.conf: remove what a job left. Always succeeds.
    Epilog(Configured),
    /// Move a process that Slurm did not start into its user's job.
    Adopt(slurm::adopt::AdoptOptions),
    /// For the prolog of any batch system: make a fence for a job.
    Open(life::OpenOptions),
    /// Put processes into a job's fence.
    Attach(life::AttachOptions),
    /// Change the limits of a job's fence.
    Limit(life::LimitOptions),
    /// Give a job that runs more or less than it was granted, whichever program has opened its fence.
    Resize(resize::ResizeOptions),
    /// Say what a job has used.
    Usage(life::UsageOptions),
    /// Stop all processes of a job where they are.
    Freeze(life::FenceOptions),
    /// Let all processes of a job go on.
    Thaw(life::FenceOptions),
    /// For the epilog of any batch system: kill what is left of a job, and remove its fence.
    Close(life::CloseOptions),
    /// List the fences that live on this node now.
    Ls(ls::LsOptions),
    /// Show all that is known of a job that runs on this node.
    Show(show::ShowOptions),
    /// Show the jobs of this node continuously, sorted by usage.
    Top(top::TopOptions),
    /// Report what a finished job used, from the usage log.
    Report(report::ReportOptions),
    /// Say how much memory and how many CPUs of this node a scheduler can grant to jobs.
    Host(host::HostOptions),
    /// For jsv_url of Grid Engine: record what a job asks for, and refuse a job that could not run.
    Jsv(gridengine::jsv::JsvOptions),
    /// Convert the configuration of OpenPBS's cgroup hook to a jobfence.conf, and print it.
    PbsConfig(pbs::config::PbsConfigOptions),
    /// Print a script with which a shell completes this command.
    Completions(completions::CompletionsOptions),
    /// Say which processes of users are in no fence, and what would be done with each.
    Strays(strays::StraysOptions),
    /// Say what you are limited to on this node for logins, and what of the budget is used.
    Login(login::LoginOptions),
    /// For jobfence.service: keep the delegated scope alive, and run the janitor.
    Hold(hold::HoldOptions),
}

/// Says that the command line is wrong, or what it asks for, such as the help.
fn refuse(error: &clap::Error) -> ! {
    // That of clap says of `jobfence setup` that it has changed something.
    if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|word| word == "setup") {
        let _ = error.print();
        std::process::exit(1);
    }
    error.exit()
}

fn main() -> ExitCode {
    // A reader that is gone (`jobfence check | head`) must not cause a panic.
    // SAFETY: the default action runs no code of this program, and nothing else runs yet.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    if gpu::probe::is_asked_for() {
        return gpu::probe::probe();
    }
    if again::looking::is_asked_for() {
        if log::set_logger(&Stderr).is_ok() {
            log::set_max_level(LevelFilter::Info);
        }
        return again::looking::look();
    }
    if own_report::is_asked_for() {
        return own_report::tell();
    }
    if docker::is_asked_for() {
        return htcondor::docker::of_starter().unwrap_or_else(docker::docker);
    }
    if htcondor::job::is_asked_for() {
        return htcondor::job::job();
    }
    if let Some(name) = gridengine::shepherd::name() {
        return gridengine::shepherd::shepherd(&name);
    }
    if htcondor::starter::is_asked_for() {
        return htcondor::starter::starter();
    }
    if let Some(status) = htcondor::starter::watch()
        .or_else(htcondor::starter::apart)
        .or_else(htcondor::starter::stand_in)
        .or_else(htcondor::starter::ask_late)
        .or_else(htcondor::starter::refuse)
    {
        return status;
    }
    let matches = help::readable(Cli::command()).try_get_matches().unwrap_or_else(|error| refuse(&error));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error));
    // qmaster denies a job for a line of its JSV's on stderr, and execd has nobody read that of a load sensor.
    match &cli.command {
        Command::Jsv(_) => SyslogOfDaemon::begin(),
        Command::Host(options) if options.is_sensor() => SyslogOfDaemon::begin(),
        _ if log::set_logger(&Stderr).is_ok() => log::set_max_level(LevelFilter::Info),
        _ => {}
    }
    let result = match cli.command {
        Command::Check(options) => check::check(&options),
        Command::Setup(options) => setup::setup(&options),
        Command::Enable(options) => slurm::enable::enable(&options),
        Command::Disable(options) => slurm::disable::disable(&options),
        Command::Explain(options) => explain::explain(&options),
        Command::Run(options) => run::run(&options),
        Command::Reap(configured) => reap::reap(&configured),
        Command::Prolog(configured) => Ok(slurm::prolog::prolog(&configured)),
        Command::Epilog(configured) => Ok(slurm::prolog::epilog(&configured)),
        Command::Adopt(options) => slurm::adopt::adopt(&options),
        Command::Open(options) => life::open(&options),
        Command::Attach(options) => life::attach(&options),
        Command::Limit(options) => life::limit(&options),
        Command::Resize(options) => resize::resize(&options),
        Command::Usage(options) => life::usage(&options),
        Command::Freeze(fences) => life::freeze(&fences, true),
        Command::Thaw(fences) => life::freeze(&fences, false),
        Command::Close(options) => life::close(&options),
        Command::Ls(options) => ls::ls(&options),
        Command::Show(options) => show::show(&options),
        Command::Top(options) => top::top(&options),
        Command::Report(options) => report::report(&options),
        Command::Completions(options) => completions::completions::<Cli>(&options),
        Command::Host(options) => host::host(&options),
        Command::Jsv(options) => gridengine::jsv::jsv(&options),
        Command::PbsConfig(options) => pbs::config::pbs_config(&options),
        Command::Strays(options) => strays::strays(&options),
        Command::Login(options) => login::login(&options),
        Command::Hold(options) => hold::hold(&options),
    };
    result.unwrap_or_else(|error| {
        log::error!("{error}");
        ExitCode::FAILURE
    })
}

/// Prints the library's messages.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            if journal::say(record.level(), &record.args().to_string()) {
                return;
            }
            // A message that nobody can read is no failure.
            let _ = writeln!(io::stderr(), "jobfence: {}", printable_lines(&record.args().to_string(), '?'));
        }
    }

    fn flush(&self) {}
}
