// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence hold`: makes the delegated scope and keeps it alive, for jobfence.service. It is also the janitor of a node on which no step
//! begins, and tracks the processes of steps without a fence: no scheduler's daemon does that repeatedly.
//!
//! systemd removes a scope when its last process ends, and refuses to make one that exists. So if the scope is alive (jobs run in it), this
//! process goes back into it; otherwise systemd-run makes it around this same command. On cgroup2 the process moves itself into a leaf,
//! since a directory with a process in it cannot give controllers to its children.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, Parser};
use jobfence::cgroup::layout::{Hierarchy, Layout, Version};
use jobfence::config::{Config, Loaded, Mode};
use jobfence::doors::take_back;
use jobfence::error::Result;
use jobfence::host::{Host, SYSTEMD_BASE};
use jobfence::janitor::{self, JanitorCaller};
use jobfence::launch::early_move::EarlyMoves;
use jobfence::record::tracked;
use jobfence::schedulers::ALL;
use jobfence::sys::dir::Dir;
use jobfence::sys::systemd::is_systemd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::again::AgainWatch;
use crate::armed::ArmedWatch;
use crate::command::{Failure, ignore_sigpipe, require_root};
use crate::configured::Configured;
use crate::fetched::report;
use crate::lend::LendWatch;
use crate::login::LoginWatch;
use crate::only::OnlyHold;
use crate::own_report::OwnReports;
use crate::resctrl::ResctrlWatch;
use crate::sample::Sampler;
use crate::schedulers;
use crate::strays::StraysWatch;
use crate::systemd::systemds_own;
use crate::{journal, lend, metrics};

/// Passes the command's options through systemd-run. As arguments of systemd-run, a `$` in them would be expanded (systemd 262 does that,
/// 257 does not yet).
const OPTIONS: &str = "JOBFENCE_HOLD_OPTIONS";

/// Separates the options.
const SEPARATOR: &str = "\u{1f}";

/// The leaf for this process; no user's directory has this name.
const LEAF: &str = "hold";

#[derive(Args)]
pub struct HoldOptions {
    /// systemd-run has made the scope and put this process into it
    #[arg(long, hide = true)]
    inside: bool,
    #[command(flatten)]
    configured: Configured,
}

/// The systemd units for a base directory.
struct Units {
    slice: String,
    scope: String,
}

/// Returns only after SIGTERM, or with an error.
pub fn hold(options: &HoldOptions) -> Result<ExitCode, Failure> {
    ignore_sigpipe();
    journal::use_if_started_so();
    require_root("'jobfence hold'")?;
    let config = match handed_down(options.inside) {
        Some(handed_down) => configuration(&handed_down)?,
        None => configuration(&options.configured)?,
    };
    if is_systemd() {
        hold_scope(&config, options.inside)?;
    }
    let configured = handed_down(options.inside);
    let configured = configured.as_ref().unwrap_or(&options.configured);
    let only = OnlyHold::begin(&config.run_dir)?;
    // No job may begin before: its bound would not hold.
    let mut sampler = Sampler::default();
    sampler.network.tend(&config, configured.load().ok().as_ref());
    ready();
    look_again_and_again(configured, config, sampler, only)?;
    Ok(ExitCode::SUCCESS)
}

/// Puts this process into the scope, or makes systemd create the scope around it.
fn hold_scope(config: &Config, inside: bool) -> Result<(), Failure> {
    let units = Units::from_base(config.cgroup_base.as_deref().unwrap_or(SYSTEMD_BASE))?;
    let layout = Layout::read(&Dir::open("/proc")?, &config.cgroup_mountpoint)?;
    let hierarchy = systemds_own(&layout).ok_or("systemd has no cgroup hierarchy here")?;
    let scope = || {
        let slice = hierarchy.open().and_then(|root| root.child(&units.slice));
        slice.and_then(|slice| slice.child(&units.scope))
    };
    match scope() {
        Ok(scope) => enter(&scope, hierarchy),
        Err(_) if !inside => Err(make_scope(&units)),
        Err(error) => Err(error.into()),
    }
}

/// The command line again, without its program.
#[derive(Parser)]
struct HandedDown {
    #[command(flatten)]
    options: HoldOptions,
}

/// The options from before systemd-run.
fn handed_down(inside: bool) -> Option<Configured> {
    let options = std::env::var(OPTIONS).ok().filter(|_| inside)?;
    let options = options.split(SEPARATOR).filter(|option| !option.is_empty());
    Some(HandedDown::try_parse_from(["jobfence hold"].into_iter().chain(options)).ok()?.options.configured)
}

/// The configuration. A file with mistakes must not keep the scope from being made at boot: jobs are refused until it is corrected, and
/// then fenced. All that is lost is a scope of another name.
fn configuration(configured: &Configured) -> Result<Config, Failure> {
    match configured.load() {
        Ok(loaded) => Ok(loaded.config),
        Err(errors) if configured.is_default() => {
            log::warn!("{errors}; going on with the default CgroupBase");
            Ok(Config::default())
        }
        Err(errors) => Err(errors.to_string().into()),
    }
}

impl Units {
    /// systemd names units after their directories, and nests a slice with a hyphen in others.
    fn from_base(base: &str) -> Result<Self, Failure> {
        let units = base.split_once('/').filter(|(slice, scope)| {
            slice.ends_with(".slice") && !slice.contains('-') && scope.ends_with(".scope") && !scope.contains('/')
        });
        match units {
            Some((slice, scope)) => Ok(Self { slice: slice.to_owned(), scope: scope.to_owned() }),
            None => {
                let form = "CgroupBase=NAME.slice/NAME.scope (no hyphen in the slice)";
                Err(format!("the directory {base} is not one that systemd can make: expected {form}").into())
            }
        }
    }
}

fn enter(scope: &Dir, hierarchy: &Hierarchy) -> Result<(), Failure> {
    let pid = std::process::id().to_string();
    match hierarchy.version {
        Version::V2 => scope.ensure(LEAF)?.write("cgroup.procs", &pid)?,
        Version::V1 => scope.write("cgroup.procs", &pid)?,
    }
    Ok(())
}

/// Becomes systemd-run, which makes the scope, puts this process into it and becomes `jobfence hold` again.
fn make_scope(units: &Units) -> Failure {
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => return format!("find this program: {error}").into(),
    };
    let error = Command::new("systemd-run")
        .args(["--scope", "--quiet", "--collect", "--slice", &units.slice, "--unit", &units.scope])
        .arg("--description=Fences of batch jobs")
        // jobfence sets the limits; systemd's default for tasks would be one limit for all jobs together.
        .args(["-p", "Delegate=yes", "-p", "TasksMax=infinity"])
        .arg("--")
        .arg(this)
        .args(["hold", "--inside"])
        // The first words are this program and its subcommand.
        .env(OPTIONS, std::env::args_os().skip(2).collect::<Vec<_>>().join(SEPARATOR.as_ref()))
        .exec();
    format!("run systemd-run: {error}").into()
}

/// Tells systemd that slurmd may start: sd_notify(3).
fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|sender| sender.send_to(b"READY=1", socket));
    if let Err(error) = sent {
        log::error!("tell systemd that the scope is there: {error}");
    }
}

/// Until it is told to end: runs the janitor, and waits.
fn look_again_and_again(
    configured: &Configured,
    mut config: Config,
    mut sampler: Sampler,
    mut only: OnlyHold,
) -> Result<(), Failure> {
    let mut ends = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| ends.add(signal));
    ends.thread_block()?;
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (mut said, mut said_back, mut unwritten) = (Vec::new(), Vec::new(), None);
    let mut chores: Vec<_> = schedulers::ALL.iter().filter_map(|part| part.chore()).collect();
    // All are kept: the directory may be deleted, and made anew.
    let mut watching = Vec::new();
    let mut next = Instant::now();
    let mut strays = StraysWatch::default();
    let (mut armed, mut lend) = (ArmedWatch::default(), LendWatch::default());
    let (mut logins, mut resctrl) = (LoginWatch::default(), ResctrlWatch::default());
    let mut again = AgainWatch::default();
    let mut moves: Option<EarlyMoves> = None;
    let (mut reports, mut unheard): (Option<OwnReports>, Option<String>) = (None, None);
    // The configuration with its sections, which may differ from job to job.
    let mut sections: Option<Loaded> = None;
    loop {
        if next > Instant::now() {
            sampler.look(&config, sections.as_ref());
            strays.look(&config, sections.as_ref());
            armed.look(&config);
            lend.look(&config, sections.as_ref());
            logins.look(&config, sections.as_ref());
            resctrl.look(&config, sections.as_ref());
            again.hear();
            let patience = patience(next, &sampler, &config).min(armed.wait().unwrap_or(Duration::MAX));
            let patience = strays.wait(&config, sections.as_ref()).map_or(patience, |wait| patience.min(wait));
            let patience = logins.wait(&config).map_or(patience, |wait| patience.min(wait));
            let patience = again.wait().map_or(patience, |wait| patience.min(wait));
            let patience = lend.wait(&config).map_or(patience, |wait| patience.min(wait));
            let patience = resctrl.wait().map_or(patience, |wait| patience.min(wait));
            let heard = (&mut sampler, &mut armed, &mut lend, &mut resctrl);
            if is_asked_to_end(&ends, moves.as_ref(), heard, &mut reports, (patience, &config))? {
                logins.end(&config);
                return Ok(());
            }
            continue;
        }
        // If the file has mistakes, its previous settings stay.
        if let Ok(loaded) = configured.load()
            && only.may_have(&loaded.config.run_dir)?
        {
            config = loaded.config.clone();
            sections = Some(loaded);
        }
        // What was begun is finished, whatever the configuration says now.
        again.begin(configured, &config, sections.as_ref());
        sampler.network.tend(&config, sections.as_ref());
        resctrl.tend(sections.as_ref());
        if config.reap_interval.is_some() && config.mode != Mode::Off {
            watching.extend(tracked::watch(&config.run_dir).ok().flatten());
            look(&config, &mut said);
            armed.search_soon();
            lend.search_soon();
            fetch_back(&config, &mut said_back);
            chores.iter_mut().for_each(|chore| chore.once(&config, sections.as_ref()));
            let written = Host::read_what_there_is(&config).map_err(|error| error.to_string()).and_then(|(host, _)| {
                let strays = strays.figures(&config, sections.as_ref());
                metrics::look(&config, &host, sampler.energy.node, strays)
            });
            match written {
                Ok(()) => unwritten = None,
                Err(error) if unwritten.as_ref() == Some(&error) => {}
                Err(error) => {
                    log::error!("no figures for Prometheus: {error}");
                    unwritten = Some(error);
                }
            }
        } else {
            watching.clear();
        }
        moves =
            moves.filter(|moves| config.early_moves && moves.is_in(&config.run_dir)).or_else(|| expect_moves(&config));
        reports = match reports.take().filter(|reports| reports.is_of(&config)) {
            Some(reports) => Some(reports),
            None => expect_users(&config, &mut unheard),
        };
        // If ReapInterval is off, check later whether it has changed.
        next = Instant::now() + config.reap_interval.unwrap_or(WHEN_NEVER);
    }
}

/// The time until the janitor's next run or the next sample.
fn patience(next: Instant, sampler: &Sampler, config: &Config) -> Duration {
    let left = next.saturating_duration_since(Instant::now());
    [sampler.wait(config), sampler.gpus.patience()].into_iter().flatten().fold(left, Duration::min)
}

const WHEN_NEVER: Duration = Duration::from_secs(600);

fn look(config: &Config, said: &mut Vec<String>) {
    let reaped = Host::read_what_there_is(config).and_then(|(host, _)| {
        janitor::reap(&host, config, ALL, JanitorCaller::command(), Instant::now() + config.cleanup_timeout)
    });
    match reaped {
        Ok(mut reaped) => {
            // A failure that stays is reported once.
            let failed = std::mem::take(&mut reaped.failed);
            reaped.failed = failed.iter().filter(|failure| !said.contains(failure)).cloned().collect();
            reaped.log();
            *said = failed;
        }
        Err(error) => {
            let failed = vec![error.to_string()];
            if *said != failed {
                log::error!("cannot look for what dead step daemons left: {error}");
            }
            *said = failed;
        }
    }
}

/// Puts back processes of jobs' sessions that are outside their fences.
fn fetch_back(config: &Config, said: &mut Vec<String>) {
    let fetched = Host::read_what_there_is(config).and_then(|(host, _)| take_back::fetch_back(&host, config));
    report(
        fetched,
        said,
        |done| log::warn!("{done}: pam_systemd had moved it out, see 'jobfence check'"),
        |error| log::error!("cannot put a process back into its job: {error}"),
    );
}

/// Early moves help launches; without them, launches wait a little longer.
fn expect_moves(config: &Config) -> Option<EarlyMoves> {
    if !config.early_moves || config.mode == Mode::Off {
        return None;
    }
    let (host, _) = Host::read_what_there_is(config).ok()?;
    let expected = EarlyMoves::expect(&host, &config.run_dir);
    expected.inspect_err(|error| log::debug!("launches are not helped: {error}")).ok()
}

/// Users who ask for their reports. A failure that stays is reported once.
fn expect_users(config: &Config, said: &mut Option<String>) -> Option<OwnReports> {
    let expected = OwnReports::expect(config).map_err(|error| error.to_string());
    let failed = expected.as_ref().err().cloned();
    if let Some(error) = failed.as_ref().filter(|_| *said != failed) {
        log::error!("users cannot ask for the reports of their jobs: {error}");
    }
    *said = failed;
    expected.ok().flatten()
}

/// Waits this long, or until the kernel tells of a step's memory, and returns whether one of the signals has arrived. Meanwhile it helps
/// launches, hears what GPUs' drivers say, and has users answered.
fn is_asked_to_end(
    ends: &SignalFd,
    moves: Option<&EarlyMoves>,
    (sampler, armed, lend, resctrl): (&mut Sampler, &mut ArmedWatch, &mut LendWatch, &mut ResctrlWatch),
    reports: &mut Option<OwnReports>,
    (patience, config): (Duration, &Config),
) -> Result<bool, Failure> {
    let deadline = Instant::now() + patience;
    let mut has_heard = false;
    loop {
        if ends.read_signal()?.is_some() {
            return Ok(true);
        }
        sampler.gpus.hear();
        let left = deadline.saturating_duration_since(Instant::now());
        // However much there is to do: each time, all are heard once.
        if left.is_zero() && std::mem::replace(&mut has_heard, true) {
            return Ok(false);
        }
        let rest = reports.as_ref().map(OwnReports::pause).filter(|rest| !rest.is_zero()).unwrap_or(Duration::MAX);
        let wait = left.min(rest).min(Duration::from_secs(60));
        let timeout = if left.is_zero() { Duration::ZERO } else { wait + Duration::from_millis(1) };
        let timeout = PollTimeout::try_from(timeout)?;
        let mut fds = vec![PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
        fds.extend(moves.map(|moves| PollFd::new(moves.fd(), PollFlags::POLLIN)));
        fds.extend(sampler.gpus.fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        fds.extend(reports.as_ref().and_then(OwnReports::fd).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let others = fds.len();
        let now = Instant::now();
        fds.extend(armed.events(now).map(|(fd, of)| PollFd::new(fd, of)));
        let of_armed = fds.len() - others;
        fds.extend(lend.events().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let _ = poll(&mut fds, timeout);
        let ready: Vec<bool> = fds.iter().skip(others).map(|fd| fd.any().unwrap_or(false)).collect();
        let (of_armed, of_lend) = ready.split_at(of_armed.min(ready.len()));
        if let Some(reports) = reports {
            reports.hear();
        }
        let mut has_begun = false;
        if let Some(moves) = moves {
            let (launches, made) = moves.make();
            if launches.armed {
                armed.ring();
            }
            if launches.any {
                lend.ring();
            }
            let is_bounded = launches.any && resctrl.ring();
            has_begun = launches.armed || is_bounded || launches.any && lend::is_on(config);
            if let Err(error) = made {
                log::debug!("a launch is not helped: {error}");
            }
        }
        if of_armed.contains(&true) {
            armed.hear(of_armed, now);
        }
        if of_lend.contains(&true) {
            lend.hear(of_lend);
        }
        // The caller looks.
        if has_begun || ready.contains(&true) {
            return Ok(ends.read_signal()?.is_some());
        }
    }
}
