// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence check`: would a job be fenced here, how, and if not, why not?

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use jobfence::cgroup::devices::Devices;
use jobfence::cgroup::dir::Dir;
use jobfence::cgroup::disk::Disks;
use jobfence::cgroup::io::{self, IoRules};
use jobfence::cgroup::layout::{self, Hierarchy, Kind, Version};
use jobfence::cgroup::protection;
use jobfence::config::{Config, DEFAULT_FILE, Limit, Loaded, Mode, OnError, OnErrors, Percent, SwapSpace};
use jobfence::entry::run::{self, Ended, How, Request};
use jobfence::error::Error;
use jobfence::fence::{self, Fence};
use jobfence::host::{Host, is_delegated, not_given};
use jobfence::impossible;
use jobfence::janitor;
use jobfence::job::{Cpus, JobKey, Name};
use jobfence::topology::Topology;
use nix::fcntl::OFlag;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use crate::{Configured, Failure, pam};
use jobfence::slurm_placement::{Placement, Plugin, Slurm};

#[derive(Args)]
pub struct Options {
    /// Show every key with its value, in the form of the configuration file
    #[arg(long)]
    keys: bool,
    /// Where PAM's services are configured
    #[arg(long, value_name = "DIRECTORY", default_value = pam::DIRECTORY, hide = true)]
    pam_directory: PathBuf,
    #[command(flatten)]
    configured: Configured,
}

/// Fails unless a job would be fenced as configured.
pub fn check(options: &Options) -> Result<ExitCode, Failure> {
    // Already complete sentences with file, line and column.
    let loaded = match options.configured.load() {
        Ok(loaded) => loaded,
        Err(errors) => {
            for error in errors.errors() {
                eprintln!("jobfence: {error}");
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    match &loaded.file {
        Some(file) => println!("configuration  {} is understood", file.display()),
        None => println!("configuration  defaults (there is no {DEFAULT_FILE})"),
    }
    let slurm = Slurm::read(loaded.file.as_deref());
    describe_sections(&loaded, slurm.as_ref(), options.keys);
    let config = loaded.config.clone();
    if config.mode == Mode::Off {
        println!("verdict        Mode=off: no job is fenced here");
        return Ok(ExitCode::SUCCESS);
    }
    let host = Host::read(&config)?;
    let own = describe(&host, &config, slurm.as_ref());
    let plugin = slurm.as_ref().map(Slurm::plugin);
    // No verdict on a job: hints. Where the limits are in Slurm's directories, pam_slurm_adopt does it all.
    for fault in pam::faults(&options.pam_directory, &pam_line(&options.configured, plugin.as_ref()), own.limits) {
        println!("pam            {fault}");
    }
    match config.mode {
        Mode::Observe => println!("mode           observe: jobs are put in cgroups and measured, but not limited"),
        Mode::Enforce | Mode::Off => {}
    }
    match plugin {
        None => {}
        Some(Plugin::Line { line, .. }) => println!("plugin         {line}"),
        Some(Plugin::NoFile(line)) => {
            println!("plugin         {line}: there is no such file");
            println!("verdict        NO job would be fenced here: slurmd cannot load the plugin");
            return Ok(ExitCode::FAILURE);
        }
        Some(Plugin::Missing(file)) => {
            println!("plugin         no line of {} loads libjobfence.so", file.display());
            println!("verdict        NO job would be fenced here: Slurm does not load the plugin");
            return Ok(ExitCode::FAILURE);
        }
    }
    let throttled = describe_io(&host, &config);
    if config.constrain_cores
        && let Ok(topology) = Topology::of_node(loaded.file.as_deref())
    {
        println!(
            "cores          Slurm's {} cores are certain to be these of the machine, each with {} hardware threads",
            topology.cores(),
            topology.threads_per_core()
        );
    }
    let mut impossible = impossible::on_node(&host, &loaded, slurm.as_ref());
    impossible.extend(missing_devices(&config).map(|error| (Limit::Devices, error)));
    for (limit, error) in &impossible {
        println!("{:<14} {error}", limit.to_string());
    }
    if let Some((_, error)) = impossible.iter().find(|(limit, _)| config.on_error.for_limit(*limit) == OnError::Fail) {
        println!("verdict        NO job would be fenced here as configured: {error}");
        return Ok(ExitCode::FAILURE);
    }
    if !own.any {
        return overlay_alone(&host, &config, throttled);
    }
    match trial(&config) {
        Ok(what) => {
            println!("trial          {what}");
            attach_time(&host, &config, "");
            println!(
                "verdict        a job would be {} here, in {}/uid_UID/job_JOB/step_STEP of each hierarchy with placement own",
                word(config.mode),
                host.base
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            println!("trial          {why}");
            let verdict = match (config.mode, config.on_error.general()) {
                (Mode::Observe, _) => "NO job would be observed here; jobs run as if there were no jobfence",
                (_, OnError::Warn) => "NO job would be fenced here as configured; with OnError=warn jobs run without",
                (_, OnError::Fail) => "NO job would be fenced here as configured",
            };
            println!("verdict        {verdict}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Says what holds for some jobs only; with `keys` the whole as a file.
fn describe_sections(loaded: &Loaded, slurm: Option<&Slurm>, keys: bool) {
    if keys {
        print!("{}", loaded.config);
    }
    for (header, settings) in loaded.sections() {
        if keys {
            println!("{header}");
            settings.iter().for_each(|setting| println!("{setting}"));
        } else {
            let keys: Vec<&str> = settings.iter().map(|setting| setting.key().name).collect();
            println!("section        {header} {}", keys.join(", "));
        }
    }
    if loaded.asked().job && slurm.is_some_and(|slurm| !slurm.has_prolog()) {
        println!(
            "sections       slurm.conf has no Prolog=, so nobody says a job's QOS and account, nor the partition of one without a \
             batch step: the strictest of all that it could be holds; see 'jobfence prolog' in jobfence(8)"
        );
    }
}

/// The line by which sessions are fenced, with this configuration: the file that Slurm loads, with the same arguments.
fn pam_line(configured: &Configured, plugin: Option<&Plugin>) -> String {
    let beside = || {
        let program = std::env::current_exe().unwrap_or_default();
        let found = program.ancestors().nth(2).map(|prefix| prefix.join("lib/slurm/libjobfence.so"));
        found.filter(|file| file.is_file()).unwrap_or_else(|| PathBuf::from("/usr/lib/slurm/libjobfence.so"))
    };
    let (file, mut arguments) = match plugin {
        Some(Plugin::Line { file, arguments, .. }) if file.is_absolute() => (file.clone(), arguments.clone()),
        Some(Plugin::Line { arguments, .. }) => (beside(), arguments.clone()),
        _ => (beside(), Vec::new()),
    };
    if let Some(config) = &configured.config {
        let config = std::path::absolute(config).unwrap_or_else(|_| config.clone());
        arguments.retain(|argument| !argument.to_ascii_lowercase().starts_with("config="));
        arguments.insert(0, format!("config={}", config.display()));
    }
    let words = [vec![file.display().to_string()], arguments].concat();
    format!("session required {}", words.join(" "))
}

/// Which of the devices that a step may use is not there.
fn missing_devices(config: &Config) -> Option<Error> {
    let enforced = config.mode == Mode::Enforce && config.constrain_devices;
    let devices = enforced.then(|| Devices::new(config.device_allow.clone(), config.gpu_device.clone()));
    devices?.are_there().err()
}

/// Which directories would be ours.
#[derive(Default)]
struct Ours {
    any: bool,
    /// Those in which something is limited.
    limits: bool,
}

/// Says what is here.
fn describe(host: &Host, config: &Config, slurm: Option<&Slurm>) -> Ours {
    let kind = match host.layout.kind() {
        Kind::Unified => "unified: cgroup v2 alone",
        Kind::Hybrid => "hybrid: limits on cgroup v1, killing and counting on cgroup v2",
        Kind::Legacy => "legacy: cgroup v1 alone",
    };
    println!("layout         {kind}");
    println!("systemd        {}", if host.systemd { "is the service manager" } else { "is not running here" });
    if let Some(scheduler) = &host.scheduler {
        println!("scheduler      {scheduler}");
    }
    let controllers = fence::controllers(config);
    let used = host.hierarchies(&controllers).unwrap_or_default();
    match slurm {
        Some(slurm) => println!("slurm.conf     {}", slurm.file().display()),
        None => println!(
            "slurm.conf     was not found (SLURM_CONF can name it): taking it that Slurm uses no cgroups itself"
        ),
    }
    let mut own = Ours::default();
    for hierarchy in &host.layout.hierarchies {
        let mark = if used.contains(&hierarchy) { "used" } else { "-" };
        println!("hierarchy      {hierarchy}: {mark}");
        if !used.contains(&hierarchy) {
            continue;
        }
        match slurm.map(|slurm| slurm.placement(hierarchy)) {
            Some(Placement::Overlay(because)) => {
                println!("placement      overlay, in Slurm's own directories: {because}");
                if hierarchy.has("memory") && config.constrain_ram_space && !slurm.is_some_and(Slurm::limits_memory) {
                    println!(
                        "               memory is limited for each step, and not for a job as a whole: let Slurm do it \
                         (TaskPlugin=task/cgroup, ConstrainRAMSpace=yes in cgroup.conf)"
                    );
                }
                let swap = slurm.and_then(Slurm::swap_in_words).filter(|_| hierarchy.has("memory"));
                if let (Some(theirs), SwapSpace::Auto) = (swap, config.constrain_swap_space) {
                    println!("               swap is as Slurm says, since it limits memory itself: {theirs}");
                }
                for scope in scopes(hierarchy).unwrap_or_default() {
                    protected(host, config, hierarchy, &scope.path().to_string_lossy());
                }
                if !slurm.is_some_and(|slurm| slurm.makes_ours_first(hierarchy)) {
                    continue;
                }
                // Until Slurm makes its own.
                own.any = true;
            }
            other => {
                let because = match other {
                    Some(Placement::Own(because)) => format!(": {because}"),
                    _ => String::new(),
                };
                println!("placement      own, below {}{because}", host.base);
                own.any = true;
                own.limits |= controllers.iter().any(|controller| hierarchy.has(controller));
                protected(host, config, hierarchy, &hierarchy.mount.join(&host.base).to_string_lossy());
            }
        }
        let base = || {
            hierarchy.open().and_then(|mut dir| {
                for name in host.base.split('/') {
                    dir = dir.child(name)?;
                }
                Ok(dir)
            })
        };
        match base() {
            Ok(base) if hierarchy.version == Version::V2 && host.systemd => println!(
                "delegation     {} {}",
                base.path().display(),
                match is_delegated(&base) {
                    Some(true) => "is delegated to us by systemd",
                    Some(false) => "is NOT delegated by systemd",
                    None => "exists (whether it is delegated cannot be read here)",
                }
            ),
            Ok(base) => println!("delegation     {} exists", base.path().display()),
            Err(error) if hierarchy.version == Version::V2 && host.systemd => println!("delegation     {error}"),
            Err(_) => println!("delegation     {}/{} will be made", hierarchy.mount.display(), host.base),
        }
    }
    own
}

/// Says which disks would be throttled, and what the kernel does not hold; an error where a target is on none.
fn describe_io(host: &Host, config: &Config) -> Result<(), String> {
    let rules = [&config.io_max, &config.io_max_per_user, &config.io_max_per_task];
    let all = rules.into_iter().fold(IoRules::default(), |all, rules| all.at_most(rules));
    let Some(hierarchy) = host.layout.with_controller("io") else { return Ok(()) };
    let root = || hierarchy.open().ok().filter(|_| hierarchy.version == Version::V2);
    if config.io_weight.is_some() && !Dir::open("/sys").is_ok_and(|sys| io::weights_work(&sys, root().as_ref())) {
        println!(
            "i/o            IOWeight changes nothing now: no disk has the scheduler bfq (/sys/block/DISK/queue/scheduler) or, on \
             cgroup2, blk-iocost (io.cost.qos)"
        );
    }
    if all.is_empty() {
        return Ok(());
    }
    let disks = Disks::read(&host.proc).map_err(|error| error.to_string())?;
    let mut failed = Ok(());
    for rule in all.iter() {
        match disks.of(&rule.target) {
            Ok(disk) => println!("i/o            {} is on {} ({disk})", rule.target.display(), disks.name(disk)),
            Err(error) => {
                println!("i/o            {error}");
                failed = Err(error.to_string());
            }
        }
    }
    if hierarchy.version == Version::V1 {
        println!(
            "i/o            cgroup v1 throttles each step by itself and not those of a job or user together, and nothing that the \
             kernel writes out later from the page cache: only reading, and direct or synchronous writing. cgroup2 does both"
        );
    }
    failed
}

/// Says whether the protection of jobs' memory reaches those that are to be below this directory, and what to set where not:
/// nothing of what is above our own directory, or of Slurm's, is ours to write.
fn protected(host: &Host, config: &Config, hierarchy: &Hierarchy, top: &str) {
    let wanted = [("memory.low", "MemoryLow", config.memory_low), ("memory.min", "MemoryMin", config.memory_min)];
    if hierarchy.version == Version::V1 || !hierarchy.has("memory") {
        return;
    }
    let mounts = host.proc.read("self/mountinfo").unwrap_or_default();
    let recursive = layout::options(&mounts, &hierarchy.mount).contains(&"memory_recursiveprot");
    let mount = hierarchy.mount.to_string_lossy();
    let below = top.strip_prefix(&*mount).unwrap_or(top);
    for (file, property, _) in wanted.into_iter().filter(|(.., percent)| *percent > Percent::ZERO) {
        match hierarchy.open().and_then(|root| protection::gap(&root, below, file, recursive)) {
            Ok(None) => println!("protection     {file} of jobs has an effect: what is above them is protected, too"),
            Ok(Some(path)) => {
                let remedy = match path.rsplit('/').next() {
                    Some(unit) if host.systemd => format!("systemctl set-property {unit} {property}=SIZE"),
                    _ => format!("echo SIZE >{mount}/{path}/{file}"),
                };
                println!(
                    "protection     {file} of jobs has NO effect: {path} is not protected itself; for as much as jobs are to have \
                     together: {remedy}"
                );
            }
            Err(error) => println!("protection     {file}: {error}"),
        }
    }
}

/// Where every directory will be Slurm's there is nothing to try before a job runs, but for its scope, and for how long Slurm's
/// moves of a process would take.
fn overlay_alone(host: &Host, config: &Config, throttled: Result<(), String>) -> Result<ExitCode, Failure> {
    if let (Err(why), Mode::Enforce, OnError::Fail) = (&throttled, config.mode, config.on_error.for_limit(Limit::Io)) {
        println!("verdict        NO job would be fenced here as configured: {why}");
        return Ok(ExitCode::FAILURE);
    }
    let controllers = fence::controllers(config);
    let scopes = host.layout.unified().map(scopes).transpose()?.unwrap_or_default();
    for scope in &scopes {
        let given = scope.read_value("cgroup.controllers")?;
        println!("scope          {} has {}", scope.path().display(), given.trim());
        let missing = |controller: &&str| not_given(scope, host.layout.unified()?, controller, host.systemd);
        if let Some(error) = controllers.iter().find_map(missing) {
            println!("verdict        NO job would be fenced here as configured: {error}");
            return Ok(ExitCode::FAILURE);
        }
    }
    let unknown = scopes.is_empty() && host.layout.kind() == Kind::Unified;
    if unknown {
        println!("scope          Slurm has none yet: it makes one when slurmd starts");
    }
    println!("trial          none: only Slurm makes these directories, when a job starts");
    attach_time(host, config, ", in moves by Slurm");
    let unless = if unknown { "; run this again when slurmd has, to see whether it has the controllers" } else { "" };
    println!("verdict        a job would be {} here, in Slurm's own directories{unless}", word(config.mode));
    Ok(ExitCode::SUCCESS)
}

/// The scopes in which Slurm's step daemons keep their jobs, as far as slurmd has made them.
fn scopes(hierarchy: &Hierarchy) -> jobfence::error::Result<Vec<Dir>> {
    let root = hierarchy.open()?;
    let mut scopes = Vec::new();
    for slice in root.list(true)?.iter().filter(|name| name.ends_with(".slice")) {
        let slice = root.child(slice)?;
        for name in slice.list(true)?.iter().filter(|name| name.ends_with("slurmstepd.scope")) {
            scopes.push(slice.child(name)?);
        }
    }
    Ok(scopes)
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "fenced",
        Mode::Observe | Mode::Off => "observed",
    }
}

/// Fences a command that does nothing, by the way that a job goes.
fn trial(config: &Config) -> Result<String, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root: run 'jobfence check' as root to see whether it works".to_owned());
    }
    // Strictly: what OnError would let pass is to be known, too.
    let config = &Config { on_error: OnErrors::all(OnError::Fail), ..config.clone() };
    let limited = config.mode == Mode::Enforce;
    let request = Request {
        cpus: (limited && config.constrain_cpu_quota).then(|| Cpus::whole(1)),
        memory: (limited && (config.constrain_ram_space || config.constrain_swap_space.limits())).then_some(64 << 20),
        processes: config.max_processes.filter(|_| limited),
        io: if limited { config.io_max.clone() } else { IoRules::default() },
        user: None,
        command: vec!["true".into()],
    };
    let processes = request.processes.map(|count| format!("{count} processes"));
    let io = (!request.io.is_empty()).then(|| format!("I/O {}", request.io));
    let limits = [request.cpus.map(|_| "1 CPU".to_owned()), request.memory.map(|_| "64 MiB".to_owned()), processes, io];
    let limits = limits.into_iter().flatten().reduce(|all, one| format!("{all} and {one}"));
    let limits = limits.unwrap_or_else(|| "no limits".to_owned());
    match run::run(config, &request) {
        Ok(Ended { left: Some(error), .. }) => Err(error.to_string()),
        Ok(ended) if ended.how == How::Exited(0) => {
            Ok(format!("a step with {limits} was made, read back, entered by a process, and removed"))
        }
        Ok(ended) => Err(format!("'true' in a fence with {limits} ended as {:?}", ended.how)),
        Err(error) => Err(error.to_string()),
    }
}

/// Says how long it takes to move a process, and whether the mount option `favordynmods` would save most of that. Since Linux
/// 6.0 a move waits for an RCU grace period when there was none for a while, as before a job starts; a mount of any hierarchy
/// with this option ends that for all. `when`: of a job's start.
fn attach_time(host: &Host, config: &Config, when: &str) {
    let saved = match measure(host, config) {
        Ok((first, next)) => {
            let (first, next) = (first.as_secs_f64() * 1e3, next.as_secs_f64() * 1e3);
            println!("attach         a process was moved in {first:.2} ms, and the next in {next:.2} ms");
            format!("; it would save a job's start about {:.1} ms{when}", (first - next).max(0.0))
        }
        Err(error) => {
            println!("attach         cannot be measured: {error}");
            String::new()
        }
    };
    let mounts = host.proc.read("self/mountinfo").unwrap_or_default();
    let controllers = fence::controllers(config);
    let used = host.hierarchies(&controllers).unwrap_or_default();
    let mut has = Vec::new();
    let mut lacks = Vec::new();
    for hierarchy in used {
        let is_on = layout::options(&mounts, &hierarchy.mount).contains(&"favordynmods");
        if is_on { &mut has } else { &mut lacks }.push(hierarchy.mount.display().to_string());
    }
    let (has, lacks) = (has.join(", "), lacks.join(", "));
    if lacks.is_empty() {
        return println!("favordynmods   is on in {has}");
    } else if !has.is_empty() {
        return println!("favordynmods   is on in {has} (that counts for all), off in {lacks}");
    } else if !knows_favordynmods() {
        return println!("favordynmods   is off in {lacks}: Linux before 6.0 has no such option, and does not wait");
    }
    println!("favordynmods   is off in {lacks}{saved}");
    match host.layout.unified() {
        Some(unified) => {
            // What is not named again is switched off.
            let mut options = layout::options(&mounts, &unified.mount);
            options.retain(|option| !matches!(*option, "rw" | "ro"));
            options.push("favordynmods");
            println!(
                "               mount -o remount,{} {}; read jobfence(8) before",
                options.join(","),
                unified.mount.display()
            );
        }
        None => {
            println!("               a v1 hierarchy takes it only when it is mounted at boot; read jobfence(8) before")
        }
    }
}

/// Moves two processes into a step, the first of them when nobody has been moved for a while.
fn measure(host: &Host, config: &Config) -> Result<(Duration, Duration), Failure> {
    /// More than the grace periods that are still to come after the step was made.
    const QUIET: Duration = Duration::from_millis(50);
    let job = Name::new(format!("check-{}", std::process::id()))?;
    let key = JobKey { node: None, uid: nix::unistd::getuid().as_raw(), job, step: Name::new("0")? };
    let mut fence = Fence::open(host, config, &key, None)?;
    // What is read from never comes, and ends when the writing end is closed: with us, at the latest.
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let mut idle = Vec::new();
    for _ in 0..2 {
        // SAFETY: this process has one thread, and the child makes system calls only.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => idle.push(child),
            ForkResult::Child => {
                drop(write);
                let _ = nix::unistd::read(&read, &mut [0]);
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(0) }
            }
        }
    }
    std::thread::sleep(QUIET);
    let moved = idle.iter().map(|child| {
        let start = Instant::now();
        fence.attach(host, child.as_raw(), None).map(|_| start.elapsed())
    });
    let moved: Result<Vec<Duration>, Error> = moved.collect();
    drop(write);
    for child in &idle {
        waitpid(*child, None)?;
    }
    fence.close(Instant::now() + janitor::PATIENCE)?;
    match moved?[..] {
        [first, next] => Ok((first, next)),
        _ => Err("not measured".into()),
    }
}

/// Linux 6.0 brought the wait and the option.
fn knows_favordynmods() -> bool {
    let major = |name: nix::sys::utsname::UtsName| name.release().to_str()?.split('.').next()?.parse::<u32>().ok();
    nix::sys::utsname::uname().ok().and_then(major).is_none_or(|major| major >= 6)
}
