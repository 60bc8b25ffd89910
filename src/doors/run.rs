// SPDX-License-Identifier: GPL-2.0-or-later
//! The smallest entry point: a fence around any command, without a scheduler.
//!
//! Exit status, signals and terminal are as with sudo(8). The command is in this process's group, so the terminal's signals reach it
//! directly; signals that are sent only to this process are passed on. When the command stops or dies of a signal, so does this process.
//! Another user's command has a session of its own, without the terminal as its controlling one, and a clean environment; the terminal's
//! signals are passed on to its whole process group.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::time::{Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, User, execvp, initgroups, setgid, setsid, setuid};

use crate::bytes;
use crate::cgroup::events::KernelLog;
use crate::cgroup::io::IoRules;
use crate::cgroup::limits::CpuQuota;
use crate::config::{Config, KEYS, Limit, LimitNumbers, Mode, Percent, SwapSpace, UsageCard};
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::fence::Fence;
use crate::figures::{GrantedTo, LimitedTo, Usage};
use crate::host::Host;
use crate::job::{Cpus, Grant, Id, JobKey};
use crate::launch::{self, AskedProcesses, Begin, Begun, Joining, NotFenced, Reported, end};
use crate::policy::{self, Plan};
use crate::private::{PrivateDirs, check_standard_files, ipc, pids, processes};
use crate::record::noted::Noted;
use crate::report;
use crate::report::account::{End, Ending, Exit};
use crate::report::card::{self, Figures, Words};
use crate::requests::UserRequests;
use crate::schedulers::ALL;
use crate::sys::call_bytes::CallBytes;
use crate::sys::child::{PlacedChild, keep_until_waited, leave_descriptors};
use crate::sys::pid_namespace::{self, PidNamespace};
use crate::sys::terminal::Terminal;

/// What to run, as which user, within which limits.
#[derive(Debug)]
pub struct RunRequest {
    /// CPUs. `None`: not limited.
    pub cpus: Option<Cpus>,
    /// Memory in bytes. `None`: not limited.
    pub memory: Option<u64>,
    /// Processes and threads. `None`: not limited.
    pub processes: Option<u64>,
    /// Limits of reading and writing. Empty: not limited.
    pub io: IoRules,
    /// When the run ends with a card. `None`: always with a whole one.
    pub card: Option<UsageCard>,
    /// The user, if not the caller.
    pub user: Option<User>,
    /// When the command is told: nothing else of it counts here.
    pub asked: UserRequests,
    /// The program, searched for in PATH, and its arguments.
    pub command: Vec<OsString>,
}

/// How its job's name begins. No scheduler has such a name.
pub const JOB: &str = "run-";

/// The result of a run.
#[derive(Debug)]
pub struct Ended {
    /// How the command ended.
    pub how: Exit,
    /// What it used, in one line.
    pub used: String,
    /// The limits at which it was stopped, in sentences.
    pub sentences: Vec<String>,
    /// What it used of its limits, in lines for the user.
    pub card: Vec<String>,
    /// If its directories remain, a sentence that says why.
    pub remains: Option<String>,
}

/// Runs a command beside this process, in no fence of its own, and waits for its end. There is no shell that would let this process go on, so it
/// does not stop when the command stops.
pub fn unfenced(command: &[OsString]) -> Result<Exit> {
    spawn(|_| Ok(()), || Ok(()), None, &c_strings(command)?, (None, WaitPidFlag::empty()))
}

/// Runs the command in its fence and waits for its end. Processes that it leaves in the fence are killed then. `fenced` is called when
/// the command is in its fence and has not begun.
pub fn run(config: &Config, request: &RunRequest, fenced: impl FnOnce(&Fence)) -> Result<Ended> {
    let command = c_strings(&request.command)?;
    let uid = request.user.as_ref().map_or_else(nix::unistd::getuid, |user| user.uid);
    let key =
        JobKey { node: None, uid: uid.as_raw(), job: Id::new(format!("{JOB}{}", Pid::this()))?, step: Id::new("0")? };
    let grant = Grant::whole(request.cpus, request.memory);
    let config = &exactly(config, request);
    let host = Host::read(config)?;
    if pid_namespace::is_within(&host.proc) {
        // The janitor of a host knows a starter by its number there, and has none for this process.
        return Err(Error::new("this process is in a PID namespace of another 'jobfence run' (PrivatePIDs)")
            .hint("there is one fence for it all: start the command without 'jobfence run', or outside"));
    }
    let requests = &request.asked;
    let facts = Facts { user: request.user.as_ref().map(|user| user.name.clone()).into(), ..Facts::default() };
    let granted = GrantedTo { cpus: request.cpus, memory: request.memory, gpus: None };
    // It serves the word and loans alone. Other things that are noted of a scheduler's jobs are not wanted here.
    let is_told = requests.signal_at().unwrap_or(config.signal_at).is_some() || requests.elastic_ram().is_some();
    let noted = is_told.then(|| Noted::new(&facts, granted));
    let begin = Begin {
        host: &host,
        config,
        schedulers: ALL,
        key: &key,
        requests,
        daemon: None,
        holder: None,
        gpus: &[],
        noted: noted.as_ref(),
        starts_processes: true,
        has_pid_namespace: true,
    };
    let Begun { mut fence, plan, private, .. } =
        begin.open(|| with_one_quota(policy::plan(config, &grant))).map_err(in_words)?;
    let (kernel_log, started) = (KernelLog::open().ok(), Some(SystemTime::now()));
    let attach = |fence: &mut Fence, pid: Pid| {
        let joining = Joining { pid: pid.as_raw(), id: None, task: None, is_first: true };
        launch::attach(fence, &host, config, requests, joining).map_err(in_words)?;
        fenced(fence);
        Ok(())
    };
    let call_bytes = CallBytes::begin(&host.proc);
    let isolate = || {
        ipc::enter(ipc::is_wanted(config))?;
        private.as_ref().map_or_else(ipc::enter_mounts, |private| private.enter(&[]))?;
        if pids::is_wanted(config) {
            pids::enter(processes::is_wanted(config))?;
        } else if private.is_none() && !ipc::is_wanted(config) {
            return Ok(());
        }
        check_standard_files().map_err(|error| {
            error.hint("redirect it to another file: through this one, the command would see what is hidden from it")
        })
    };
    let mut namespace = None;
    let terminal = pids::is_wanted(config).then(Terminal::from_own).flatten();
    // In a container, another process may have that number.
    let own_number = (pids::is_wanted(config) && !host.is_in_container()).then_some(PidNamespace::FIRST);
    let start = || {
        namespace = pids::begin(pids::is_wanted(config))?;
        let place = |pid| {
            // The command is in it, and nothing that this process does later.
            namespace.as_ref().map_or(Ok(()), PidNamespace::leave)?;
            attach(&mut fence, pid)
        };
        spawn(place, isolate, request.user.as_ref(), &command, (own_number, WaitPidFlag::WUNTRACED)).inspect_err(|_| {
            // The command may never have been placed.
            let _ = namespace.as_ref().map(PidNamespace::leave);
        })
    };
    let how = start();
    let (rchar, wchar) = CallBytes::since(call_bytes.as_ref());
    let usage = Usage { rchar, wchar, ..fence.usage() };
    let used = report::ended(fence.key(), &usage);
    let asked = request.processes.map(|most| AskedProcesses { most, option: "--processes" });
    let exit = how.as_ref().ok().copied();
    let (mut sentences, _) =
        launch::tell(&fence, kernel_log.as_ref(), asked, Reported::default(), (exit, Some("--mem")));
    sentences.extend(private.iter().flat_map(PrivateDirs::full));
    if namespace.as_ref().is_some_and(|namespace| namespace.is_ending(&host.proc)) {
        sentences.push(report::init_killed(fence.key()));
    }
    let ending = Ending {
        holder: "run",
        run: 0,
        facts: &facts,
        granted,
        limits: launch::limited_to(&fence, config),
        started,
        exit,
        tasks: &[],
        sentences: &sentences,
        end: End::Closed,
    };
    let card = card_of(request, (config, &plan), &fence, (&usage, &ending));
    let line = launch::account(&fence, config, &usage, &ending);
    let deadline = Instant::now() + config.cleanup_timeout;
    namespace.iter().for_each(PidNamespace::kill);
    let remains = end::close(&mut fence, deadline, |_| false);
    private.iter().for_each(|_| end::remove_private(&host, config, &fence, deadline));
    // What keeps a process of it, such as a tracer, keeps nothing of the fence.
    namespace.iter_mut().for_each(|namespace| namespace.end(deadline));
    terminal.iter().for_each(Terminal::take_back);
    launch::write_down(config, line.as_deref().filter(|_| remains.is_none()));
    Ok(Ended { how: how?, used, sentences, card, remains })
}

/// What the command used of its limits, in lines for the user.
fn card_of(
    request: &RunRequest,
    (config, plan): (&Config, &Plan),
    fence: &Fence,
    (usage, ending): (&Usage, &Ending<'_>),
) -> Vec<String> {
    let figures = Figures {
        job: fence.key().job.as_str(),
        name: None,
        node: None,
        is_array_task: false,
        exit: ending.exit,
        wall: ending.started.and_then(|started| started.elapsed().ok()),
        time_limit: None,
        cpus: request.cpus,
        cpus_limit: plan.step.cpu.map(CpuQuota::cpus),
        memory: request.memory,
        memory_limit: request.memory,
        is_without_swap: plan.job.swap.is_some_and(|swap| swap.swap == 0),
        processes: request.processes,
        has_daemons: false,
        disks: &plan.job.disks,
        usage,
        tasks: Some(1),
        nodes: Some(1),
        others: None,
        // They are shown before the card.
        sentences: &[],
        noted: &fence.noted_for_a_card(config),
        is_utf8: card::is_utf8(|name| std::env::var(name).ok()),
        words: &WORDS,
    };
    request.card.map_or_else(|| figures.card(), |when| card::lines(when, None, &figures))
}

/// The limits of the step, as the kernel has them, and the directories in which they are, in lines for a person.
pub fn described(fence: &Fence) -> Vec<String> {
    let LimitedTo { cpus, memory, processes } = fence.limited_to();
    let limits = [
        ("cpu", cpus.map(Cpus::in_words)),
        ("memory", memory.map(|bytes| bytes::binary(bytes) + " of memory")),
        ("pids", processes.map(|count| card::several(count, "process", "processes"))),
        ("io", fence.io().map(|_| "the rates of its disks".to_owned())),
    ];
    let (controllers, limits): (Vec<_>, Vec<_>) =
        limits.into_iter().filter_map(|(controller, limit)| Some((controller, limit?))).unzip();
    let job = fence.key().job.as_str();
    let title = match limits.as_slice() {
        [] => format!("jobfence: job {job} has no limits"),
        limits => format!("jobfence: the kernel limits job {job} to {}", limits.join(", ")),
    };
    let places = fence.step_dirs(&controllers).into_iter().map(|path| format!("  in {}", path.display()));
    std::iter::once(title).chain(places).collect()
}

/// The step is the whole job. If both had the quota, the kernel would stop now the one and now the other, and neither would count it all.
fn with_one_quota<E>((mut plan, errors): (Plan, E)) -> (Plan, E) {
    plan.job.cpu = None;
    (plan, errors)
}

/// The options of `jobfence run`, in the card's words.
static WORDS: Words = Words {
    memory: |bytes| format!("--mem={}", bytes::text(bytes)),
    cpus: |count| format!("--cpus={count}"),
    all_cpus: "--cpus",
    time: None,
    signal_15: None,
};

/// The error in words for root, who runs this and can correct the configuration.
fn in_words(why: NotFenced) -> Error {
    match why {
        NotFenced::Limit { limit: Some(limit), error, .. } => {
            Error::new(format!("the {limit} limit cannot be set: {error}"))
        }
        NotFenced::General(error) | NotFenced::Limit { error, .. } | NotFenced::Asked(error) => error,
    }
}

/// The configuration for exactly the requested numbers: no percentages, no minimum, and no other limits.
fn exactly(config: &Config, request: &RunRequest) -> Config {
    let mut exact = Config {
        mode: Mode::Enforce,
        constrain_cpu_quota: request.cpus.is_some(),
        cpu_quota_percent: Percent::HUNDRED,
        constrain_ram_space: request.memory.is_some(),
        allowed_ram_space: Percent::HUNDRED,
        min_ram_space: 0,
        // Without --mem no limit is requested.
        default_ram_space: None,
        constrain_swap_space: match request.memory {
            Some(_) => config.constrain_swap_space,
            None => SwapSpace::No,
        },
        allowed_swap_space: Percent::ZERO,
        numbers: LimitNumbers::with(Limit::Processes, request.processes),
        io_max: request.io.clone(),
        network_max: None,
        ..config.clone()
    };
    for key in KEYS.iter().filter(|key| key.name.ends_with("PerTask")) {
        key.reset(&mut exact);
    }
    exact
}

/// Ends this process as the command ended.
pub fn end_as(how: Exit) -> i32 {
    match how {
        Exit::Status(status) => status,
        Exit::Signal(signal) => {
            // No core of this process: only the command's is wanted.
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a resource and a valid limit; the default action runs no code of this program; and a signal is a number.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
                libc::signal(signal, libc::SIG_DFL);
                let _ = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&with_numbers(SigSet::empty(), [signal])), None);
                libc::kill(libc::getpid(), signal);
            }
            128 + signal
        }
    }
}

fn c_strings(words: &[OsString]) -> Result<Vec<CString>> {
    let c_string = |word: &OsString| {
        CString::new(word.clone().into_vec()).map_err(|_| Error::new("a NUL in the command").value(word.display()))
    };
    let words: Vec<CString> = words.iter().map(c_string).collect::<Result<_>>()?;
    if words.is_empty() { Err(Error::new("no command is given")) } else { Ok(words) }
}

/// What has become of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Nothing new.
    Nothing,
    /// It has stopped.
    Stopped,
    /// It has ended.
    Ended(Exit),
}

/// Looks, without waiting. nix knows no end by a signal for real time.
pub fn waited(child: Pid, also: WaitPidFlag) -> nix::Result<Waited> {
    let mut status = 0;
    // SAFETY: a number, a place for the status, and flags.
    let found = unsafe { libc::waitpid(child.as_raw(), &raw mut status, (WaitPidFlag::WNOHANG | also).bits()) };
    Ok(match Errno::result(found)? {
        0 => Waited::Nothing,
        _ if libc::WIFSTOPPED(status) => Waited::Stopped,
        _ => Waited::Ended(Exit::from_wait(status)),
    })
}

/// These signals, and those with these numbers.
fn with_numbers(set: SigSet, numbers: impl IntoIterator<Item = i32>) -> SigSet {
    let mut all = *set.as_ref();
    for number in numbers {
        // SAFETY: a valid set and a number.
        unsafe { libc::sigaddset(&raw mut all, number) };
    }
    // SAFETY: it was a valid set, and still is.
    unsafe { SigSet::from_sigset_t_unchecked(all) }
}

/// The signals that are passed on, or that tell about the child; beside these, all for real time. Others end this process, or are its own
/// faults.
const WATCHED: [Signal; 17] = [
    Signal::SIGXCPU,
    Signal::SIGPWR,
    Signal::SIGIO,
    Signal::SIGURG,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGCHLD,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

fn spawn(
    attach: impl FnOnce(Pid) -> Result<()>,
    isolate: impl FnOnce() -> Result<()>,
    user: Option<&User>,
    command: &[CString],
    (own_number, also): (Option<Pid>, WaitPidFlag),
) -> Result<Exit> {
    let os = |op: &'static str| move |errno| Error::new(op).errno(errno);
    let mut watched = SigSet::empty();
    WATCHED.iter().for_each(|signal| watched.add(*signal));
    let watched = with_numbers(watched, libc::SIGRTMIN()..=libc::SIGRTMAX());
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&watched), Some(&mut before)).map_err(os("block signals"))?;
    keep_until_waited().map_err(os("watch for the end of the command"))?;
    let child = PlacedChild::start(attach, || {
        isolate()?;
        let program = command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        become_command(user, command, &before).map_err(|errno| Error::os("cannot run", program, errno))
    })?;
    let how = watch((child.pid, own_number), &watched, user.is_some(), also)?;
    child.failure().map_or(Ok(how), Err)
}

/// The variables that another user's command keeps of root's environment, as with sudo's env_reset.
const KEPT: [&str; 8] = ["PATH", "TERM", "COLORTERM", "LANG", "LANGUAGE", "LC_ALL", "TZ", "DISPLAY"];

/// In the child: becomes the user and the command.
fn become_command(
    user: Option<&User>,
    command: &[CString],
    mask: &SigSet,
) -> std::result::Result<std::convert::Infallible, Errno> {
    // Descriptors that the caller has open, say of a file that only root may read, must not reach the command.
    leave_descriptors()?;
    if let Some(user) = user {
        // Without a controlling terminal it cannot type into root's (TIOCSTI).
        setsid()?;
        let name = CString::new(user.name.as_str()).map_err(|_| Errno::EINVAL)?;
        initgroups(&name, user.gid)?;
        setgid(user.gid)?;
        setuid(user.uid)?;
        // SAFETY: one thread.
        unsafe {
            for (variable, _) in std::env::vars_os() {
                if !KEPT.iter().any(|kept| variable == *kept) {
                    std::env::remove_var(variable);
                }
            }
            std::env::set_var("HOME", &user.dir);
            std::env::set_var("SHELL", &user.shell);
            std::env::set_var("USER", &user.name);
            std::env::set_var("LOGNAME", &user.name);
        }
    }
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(mask), None)?;
    let program = command.first().ok_or(Errno::EINVAL)?;
    execvp(program, command)
}

/// Waits for the child's end, and for what `also` says, and passes on the signals that it did not get itself. `own_number`: the child's in
/// a PID namespace of its own.
fn watch(
    (child, own_number): (Pid, Option<Pid>),
    watched: &SigSet,
    own_session: bool,
    also: WaitPidFlag,
) -> Result<Exit> {
    loop {
        let info = wait_signal(watched)?;
        let signal = info.si_signo;
        if signal != libc::SIGCHLD {
            // The terminal signals the whole process group, and so the child, too, unless it has its own session. A signal from the child
            // itself is not passed on.
            let from_person = matches!(info.si_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
            // SAFETY: with these codes the kernel has filled in si_pid (sigaction(2)): the sender's number in its own namespace.
            let sender = Pid::from_raw(unsafe { info.si_pid() });
            let from_child = from_person && (sender == child || Some(sender) == own_number);
            if (from_person && !from_child) || own_session || signal == libc::SIGCONT {
                // A process group that is orphaned in its session does not stop for SIGTSTP.
                let signal = if own_session && signal == libc::SIGTSTP { libc::SIGSTOP } else { signal };
                // As the leader of its session the child leads a process group, too. It is not waited for yet, so the number is still its
                // own.
                let from_terminal = own_session && !from_person;
                // SAFETY: two numbers.
                unsafe {
                    if !(from_terminal && libc::killpg(child.as_raw(), signal) == 0) {
                        libc::kill(child.as_raw(), signal);
                    }
                }
            }
            continue;
        }
        loop {
            match waited(child, also) {
                Ok(Waited::Ended(how)) => return Ok(how),
                Ok(Waited::Stopped) => {
                    // Both stop, so that the shell sees its job stopped; the shell's `fg` continues both.
                    let _ = kill(Pid::this(), Signal::SIGSTOP);
                    let _ = kill(child, Signal::SIGCONT);
                }
                Ok(Waited::Nothing) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::new("wait for the command").errno(errno)),
            }
        }
    }
}

fn wait_signal(set: &SigSet) -> Result<libc::siginfo_t> {
    loop {
        // SAFETY: siginfo_t is plain data that the kernel fills in; the set is valid.
        let (signal, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigwaitinfo(set.as_ref(), &raw mut info), info)
        };
        match signal {
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Err(Error::new("wait for a signal").errno(Errno::last())),
            _ => return Ok(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On cgroup2 a step with task directories can hold no process itself, and the command would be put there.
    #[test]
    fn a_command_is_no_task() {
        let text = "MaxCPUsPerTask=1 MaxRAMPerTask=1G MaxProcessesPerTask=9 MaxHugePagesPerTask=2M:0\nIOMaxPerTask=/ rbps=1M\n";
        let config = crate::config::parse("test", text.as_bytes()).unwrap();
        let of = |config: &Config| policy::plan(config, &Grant::default()).0.task;
        assert!(!of(&config).is_empty());
        let request = RunRequest {
            cpus: None,
            memory: None,
            processes: None,
            io: IoRules::default(),
            card: Some(UsageCard::Never),
            user: None,
            asked: UserRequests::default(),
            command: Vec::new(),
        };
        assert!(of(&exactly(&config, &request)).is_empty());
    }
}
