// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the configuration comes from: the defaults, then the file, then the arguments in plugstack.conf.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::error::{ConfigError, MAX_ERRORS};
use super::keys::{FILE_ARGUMENT, KEYS, Key, nearest};
use super::lexer::{Source, Token};
use super::parser::{self, Assignment};
use super::{Config, Mode, OnErrors};

/// Read if no argument `config=PATH` names another.
pub const DEFAULT_FILE: &str = "/etc/slurm/jobfence.conf";

/// A larger file, in bytes, is a mistake, and slurmstepd need not hold it in memory.
const MAX_FILE: usize = 1 << 20;

/// A configuration and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Defaults, file and arguments together.
    pub config: Config,
    /// The file that was read; `None` if there is no [`DEFAULT_FILE`], which leaves the defaults.
    pub file: Option<PathBuf>,
}

/// Why there is no configuration, and what the arguments alone say about such a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// From the arguments if they give it once and rightly, else fail: a broken file cannot soften anything.
    pub on_error: OnErrors,
    /// From the arguments if they give it once and rightly, else enforce.
    pub mode: Mode,
    errors: Vec<ConfigError>,
}

impl LoadError {
    /// At least one and at most 20 errors, those of the arguments before those of the file.
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

/// One error a line.
impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// Reads the arguments of the plugin, as Slurm has split them, and the file.
pub fn load(args: &[&[u8]]) -> Result<Loaded, LoadError> {
    load_or_default(args, Path::new(DEFAULT_FILE))
}

/// The configuration that a file of this text, called `source` in errors, would give.
pub fn parse(source: &str, text: &[u8]) -> Result<Config, Vec<ConfigError>> {
    if text.len() > MAX_FILE {
        return Err(too_large(source, text));
    }
    let mut layer = Layer::default();
    layer.read(parser::file(source, text));
    if layer.errors.is_empty() { Ok(layer.over(Config::default())) } else { Err(layer.errors) }
}

/// The mistakes in what was read of a file that is too large, so that a line without an end is found in its place.
fn too_large(source: &str, text: &[u8]) -> Vec<ConfigError> {
    let cut_line = text.split_inclusive(|&byte| byte == b'\n').next_back().filter(|line| !line.ends_with(b"\n"));
    let mut text = text.to_vec();
    match cut_line.map_or(0, <[u8]>::len) {
        // What is missing of it is no mistake of its own.
        cut if cut <= parser::MAX_LINE => text.truncate(text.len() - cut),
        _ => text.push(b'\n'),
    }
    let mut layer = Layer::default();
    layer.read(parser::file(source, &text));
    let mut errors = layer.errors;
    errors.truncate(MAX_ERRORS - 1);
    errors.push(ConfigError::new(source, "a larger file", format!("at most {MAX_FILE} bytes")));
    errors
}

fn load_or_default(args: &[&[u8]], default: &Path) -> Result<Loaded, LoadError> {
    let mut arguments = Layer::default();
    for (index, text) in args.iter().enumerate() {
        arguments.read(parser::argument(index + 1, text));
    }
    let from_file = match arguments.settings.iter().find(|setting| setting.key.name == FILE_ARGUMENT.name) {
        None => read_file(default, true),
        Some(named) if named.sound => read_file(Path::new(named.first.value.text), false),
        Some(_) => Ok((None, Config::default())),
    };
    let mut errors = std::mem::take(&mut arguments.errors);
    let loaded = from_file.map(|(file, config)| Loaded { config: arguments.over(config), file });
    match loaded {
        Ok(loaded) if errors.is_empty() => return Ok(loaded),
        Ok(_) => {}
        Err(more) => errors.extend(more),
    }
    errors.truncate(MAX_ERRORS);
    let Config { on_error, mode, .. } = arguments.over(Config::default());
    Err(LoadError { on_error, mode, errors })
}

/// What the file gives; nothing may be said of a file but by the handle through which it is read.
fn read_file(path: &Path, may_be_missing: bool) -> Result<(Option<PathBuf>, Config), Vec<ConfigError>> {
    let name = path.display().to_string();
    let refuse = |found: String, expected: &str| vec![ConfigError::new(&name, found, expected)];
    let failed = |error: io::Error| refuse(describe(&error), "a file that can be read");
    // A fifo must not stop slurmstepd until somebody writes, and a terminal must not become its own.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Err(error) if may_be_missing && error.kind() == ErrorKind::NotFound => return Ok((None, Config::default())),
        opened => opened.map_err(failed)?,
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a directory" } else { "a special file" };
        return Err(refuse(found.to_owned(), "a regular file"));
    }
    if metadata.mode() & 0o002 != 0 {
        let found = format!("the mode {:04o}", metadata.mode() & 0o7777);
        return Err(refuse(found, "a file that only trusted users can write, since root obeys it; use chmod o-w"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok((Some(path.to_owned()), parse(&name, &text)?))
}

/// In the words and with the name that manual pages use.
fn describe(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => format!("{} ({errno:?})", errno.desc()),
        None => error.to_string(),
    }
}

/// The settings of one source, of which those that are `sound` hold.
#[derive(Default)]
struct Layer<'a> {
    settings: Vec<Setting<'a>>,
    errors: Vec<ConfigError>,
}

struct Setting<'a> {
    key: &'static Key,
    first: Assignment<'a>,
    sound: bool,
}

impl<'a> Layer<'a> {
    fn read(&mut self, assignments: impl Iterator<Item = Result<Assignment<'a>, ConfigError>>) {
        for assignment in assignments {
            if self.errors.len() == MAX_ERRORS {
                return;
            }
            if let Err(error) = assignment.and_then(|assignment| self.take(assignment)) {
                self.errors.push(error);
            }
        }
    }

    fn take(&mut self, assignment: Assignment<'a>) -> Result<(), ConfigError> {
        let Assignment { key: name, value } = assignment;
        let key = find(name)?;
        if let Some(earlier) = self.settings.iter_mut().find(|setting| setting.key.name == key.name) {
            // Which of the two was meant cannot be known.
            earlier.sound = false;
            let expected = format!("{} only once; it is given {} already", key.name, earlier.first.key.at.nearby());
            return Err(ConfigError::text(name.at, name.text, expected));
        }
        let checked = (key.set)(&mut Config::default(), value.text);
        self.settings.push(Setting { key, first: assignment, sound: checked.is_ok() });
        checked.map_err(|wrong| {
            ConfigError::text(value.at, value.text, format!("{} to be {}{}", key.name, key.expects, wrong.detail()))
        })
    }

    /// `base`, with what this layer sets.
    fn over(&self, mut base: Config) -> Config {
        for Setting { key, first, .. } in self.settings.iter().filter(|setting| setting.sound) {
            // A sound value has been read once before; a setter that refuses it now changes nothing.
            let _ = (key.set)(&mut base, first.value.text);
        }
        base
    }
}

/// The key of this name, among those that its source may give.
fn find(name: Token<'_>) -> Result<&'static Key, ConfigError> {
    let of_arguments = matches!(name.at.source, Source::Argument(_)).then_some(&FILE_ARGUMENT);
    let known = || KEYS.iter().chain(of_arguments);
    known().find(|key| key.name.eq_ignore_ascii_case(name.text)).ok_or_else(|| {
        let hint = nearest(name.text, known().map(|key| key.name)).map(|key| format!("; did you mean {key}?"));
        ConfigError::text(name.at, name.text, format!("a key of jobfence.conf(5){}", hint.unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::stat::Mode as FileMode;
    use proptest::prelude::*;

    use super::super::{CpuPolicy, Limit, OnError, Percent, Period, TaskCpus};
    use super::*;
    use crate::job::Cpus;

    fn errors_of(text: &str) -> Vec<String> {
        let errors = parse("/etc/slurm/jobfence.conf", text.as_bytes()).err().unwrap_or_default();
        errors.iter().map(|e| e.to_string().replacen("/etc/slurm/jobfence.conf:", "", 1)).collect()
    }

    /// Loads with these arguments where the default file is `name` in a fresh directory, with that text and mode.
    fn load_file(args: &[&str], file: Option<(&str, u32)>) -> Result<Loaded, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        if let Some((text, mode)) = file {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        load_at(args, &path)
    }

    fn load_at(args: &[&str], path: &Path) -> Result<Loaded, String> {
        let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
        let shorten = |error: LoadError| error.to_string().replace(&path.display().to_string(), "FILE");
        load_or_default(&args, path).map_err(shorten)
    }

    #[test]
    fn every_key_reaches_its_setting() {
        let text = "mode=OBSERVE onerror=warn,ram:fail CgroupMountpoint=/cg CgroupBase=a.slice/b RunDir=\"/run/x y\"\n\
                    ConstrainCPUQuota=no CPUQuotaPercent=150.5 CPUQuotaPeriod=50ms HeadroomCPUs=0.25\r\n\
                    ConstrainRAMSpace=down AllowedRAMSpace=98.05 MinRAMSpace=1G # more\n\
                    ConstrainSwapSpace=0 AllowedSwapSpace=10% MaxProcesses=4096\n\
                    CPUBurst=12.5 CPUPolicy=Both Scavenger=yes MaxCPUsPerUser=1.5 MaxCPUsPerTask=granted\n\
                    MaxRAMPerUser=8G MaxRAMPerTask=64M MemoryHighPercent=90 MemoryLowPercent=5 MemoryMinPercent=1\n\
                    OOMKillStep=yes MaxProcessesPerUser=8192 MaxProcessesPerTask=512\n";
        let config = Config {
            mode: Mode::Observe,
            on_error: OnErrors::all(OnError::Warn).with(Limit::Ram, OnError::Fail),
            cgroup_mountpoint: "/cg".into(),
            cgroup_base: Some("a.slice/b".into()),
            run_dir: "/run/x y".into(),
            constrain_cpu_quota: false,
            cpu_quota_percent: Percent::from_hundredths(15050),
            cpu_quota_period: Period::from_micros(50_000).unwrap(),
            cpu_burst: Percent::from_hundredths(1250),
            cpu_policy: CpuPolicy::Both,
            scavenger: true,
            max_cpus_per_user: Some(Cpus::from_thousandths(1500)),
            max_cpus_per_task: TaskCpus::Granted,
            headroom_cpus: Cpus::from_thousandths(250),
            constrain_ram_space: false,
            allowed_ram_space: Percent::from_hundredths(9805),
            min_ram_space: 1 << 30,
            constrain_swap_space: false,
            allowed_swap_space: Percent::from_hundredths(1000),
            max_ram_per_user: Some(8 << 30),
            max_ram_per_task: Some(64 << 20),
            memory_high: Some(Percent::from_hundredths(9000)),
            memory_low: Percent::from_hundredths(500),
            memory_min: Percent::from_hundredths(100),
            oom_kill_step: true,
            max_processes: Some(4096),
            max_processes_per_user: Some(8192),
            max_processes_per_task: Some(512),
        };
        assert_eq!(parse("f", text.as_bytes()), Ok(config));
        assert_eq!(parse("f", b""), Ok(Config::default()));
    }

    #[test]
    fn all_mistakes_are_told_with_their_places() {
        let text = "Mode=off\n\n ConstrianRAMSpace=yes  Foo=1 mode=observe\nCPUQuotaPercent = 0\nconfig=/x\nMinRAMSpace=\n\
                    AllowedRAMSpace=\"99999999999999999999\" OnError=fial";
        assert_eq!(
            errors_of(text),
            [
                r#"3:2: found "ConstrianRAMSpace", expected a key of jobfence.conf(5); did you mean ConstrainRAMSpace?"#,
                r#"3:25: found "Foo", expected a key of jobfence.conf(5)"#,
                r#"3:31: found "mode", expected Mode only once; it is given on line 1 already"#,
                "4:19: found \"0\", expected CPUQuotaPercent to be a percentage from 1 to 1000 with at most two decimals; \
                 it is out of range",
                r#"5:1: found "config", expected a key of jobfence.conf(5)"#,
                r#"6:13: found the end of the line, expected a value after "=""#,
                "7:17: found \"99999999999999999999\", expected AllowedRAMSpace to be a percentage from 1 to 10000 with \
                 at most two decimals; it does not fit in 64 bits",
                "7:48: found \"fial\", expected OnError to be fail or warn, then perhaps at most once each of cpu, burst, \
                 weight, cores, ram, swap, memhigh, memlow, oomgroup, processes, io, ioweight, hugepages, devices, as \
                 fail,swap:warn",
                "7:52: found the end of the file, expected a newline; the file may have been cut off while it was written",
            ]
        );
        assert_eq!(errors_of(&"x=1\n".repeat(100)).len(), 20);
    }

    #[test]
    fn arguments_override_the_file() {
        let loaded = load_file(&["Mode=off", "rundir=/run/a#b"], Some(("Mode=observe OnError=warn\n", 0o644))).unwrap();
        assert_eq!(loaded.config.mode, Mode::Off);
        assert_eq!(loaded.config.on_error, OnErrors::all(OnError::Warn));
        assert_eq!(loaded.config.run_dir, Path::new("/run/a#b"));
        assert!(loaded.file.is_some());
    }

    #[test]
    fn without_the_default_file_the_defaults_fence() {
        assert_eq!(load_file(&[], None), Ok(Loaded { config: Config::default(), file: None }));
        assert_eq!(
            load_file(&["CONFIG=/nonexistent/f"], None).unwrap_err(),
            "/nonexistent/f: found No such file or directory (ENOENT), expected a file that can be read"
        );
    }

    #[test]
    fn mistakes_in_arguments_name_the_argument() {
        assert_eq!(
            load_file(&["Mode=on", "confg=/x", "config=x", "Config=/y", "RunDir"], Some(("Mode=no\n", 0o644)))
                .unwrap_err(),
            "plugstack.conf argument 1, column 6: found \"on\", expected Mode to be enforce, observe or off\n\
             plugstack.conf argument 2, column 1: found \"confg\", expected a key of jobfence.conf(5); \
             did you mean config?\n\
             plugstack.conf argument 3, column 8: found \"x\", expected config to be an absolute path without \"..\", \
             double quotes or control characters\n\
             plugstack.conf argument 4, column 1: found \"Config\", expected config only once; it is given in argument 3 \
             already\n\
             plugstack.conf argument 5, column 7: found the end of the line, expected \"=\" and a value after the key"
        );
    }

    #[test]
    fn only_sound_arguments_decide_what_a_broken_file_does() {
        let decided = |args: &[&[u8]]| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("f"), "Mode=off OnError=warn torn").unwrap();
            let errors = load_or_default(args, &dir.path().join("f")).unwrap_err();
            (errors.mode, errors.on_error.within(errors.mode).general())
        };
        assert_eq!(decided(&[]), (Mode::Enforce, OnError::Fail));
        assert_eq!(decided(&[b"OnError=warn", b"Mode=enforce", b"what"]), (Mode::Enforce, OnError::Warn));
        assert_eq!(decided(&[b"OnError=fail", b"Mode=observe"]), (Mode::Observe, OnError::Warn));
        assert_eq!(decided(&[b"OnError=warn", b"Mode=of", b"OnError=warn"]), (Mode::Enforce, OnError::Fail));
    }

    #[test]
    fn only_a_small_regular_file_that_others_cannot_write_is_obeyed() {
        assert_eq!(
            load_file(&[], Some(("", 0o646))).unwrap_err(),
            "FILE: found the mode 0646, expected a file that only trusted users can write, since root obeys it; use chmod o-w"
        );
        let line = "#".repeat(63) + "\n";
        assert!(load_file(&[], Some((&line.repeat(1 << 14), 0o644))).is_ok());
        assert_eq!(
            load_file(&[], Some((&(line.repeat(1 << 14) + "\n"), 0o644))).unwrap_err(),
            "FILE: found a larger file, expected at most 1048576 bytes"
        );
        let endless = format!("# first\nMode={}", "x".repeat(10_000_000));
        assert_eq!(
            load_file(&[], Some((&endless, 0o644))).unwrap_err(),
            format!(
                "FILE:2:1: found \"Mode={}...\", expected a line of at most 4096 bytes\n\
                 FILE: found a larger file, expected at most 1048576 bytes",
                "x".repeat(55)
            )
        );
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, FileMode::S_IRWXU).unwrap();
        for (path, found) in
            [(dir.path(), "directory"), (&fifo, "special file"), (Path::new("/dev/null"), "special file")]
        {
            assert_eq!(load_at(&[], path).unwrap_err(), format!("FILE: found a {found}, expected a regular file"));
        }
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let fails = || prop::sample::select(vec![OnError::Fail, OnError::Warn]);
        let percent = |from: u32, to: u32| (from * 100..=to * 100).prop_map(Percent::from_hundredths);
        let path = || "(/[^/\"\\pC.][^/\"\\pC]{0,9}){1,3}".prop_map(PathBuf::from);
        let words = (
            prop::sample::select(vec![Mode::Enforce, Mode::Observe, Mode::Off]),
            (fails(), fails(), fails(), fails(), fails()),
            (path(), prop::option::of("[A-Za-z0-9_-]{1,9}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,9}){0,3}"), path()),
            any::<[bool; 5]>(),
            prop::sample::select(vec![CpuPolicy::Quota, CpuPolicy::Weight, CpuPolicy::Both]),
        );
        let cpus = || (1_u64..=1_024_000).prop_map(Cpus::from_thousandths);
        let task_cpus =
            prop_oneof![Just(TaskCpus::Unlimited), Just(TaskCpus::Granted), cpus().prop_map(TaskCpus::Count),];
        let bytes = || (1_u64 << 10..1 << 54).prop_map(|kib| kib << 10);
        let processes = || prop::option::of(1_u64..=4_194_304);
        let numbers = (
            (percent(1, 1000), percent(1, 10_000), percent(0, 10_000)),
            (1_000_u32..=1_000_000).prop_map(|micros| Period::from_micros(micros).unwrap()),
            bytes(),
            (0_u64..=1_024_000).prop_map(Cpus::from_thousandths),
            (processes(), processes(), processes()),
            (percent(0, 100), percent(0, 100), percent(0, 100), prop::option::of(percent(1, 100))),
            (prop::option::of(cpus()), task_cpus, prop::option::of(bytes()), prop::option::of(bytes())),
        );
        (words, numbers).prop_map(
            |(
                (mode, on, (mount, base, run), yes, policy),
                (percents, period, min, headroom, processes, shares, most),
            )| Config {
                mode,
                on_error: OnErrors::all(on.0)
                    .with(Limit::Cpu, on.1)
                    .with(Limit::Ram, on.2)
                    .with(Limit::Swap, on.3)
                    .with(Limit::Processes, on.4),
                cgroup_mountpoint: mount,
                cgroup_base: base,
                run_dir: run,
                constrain_cpu_quota: yes[0],
                cpu_quota_percent: percents.0,
                cpu_quota_period: period,
                cpu_burst: shares.0,
                cpu_policy: policy,
                scavenger: yes[3],
                max_cpus_per_user: most.0,
                max_cpus_per_task: most.1,
                headroom_cpus: headroom,
                constrain_ram_space: yes[1],
                allowed_ram_space: percents.1,
                min_ram_space: min,
                constrain_swap_space: yes[2],
                allowed_swap_space: percents.2,
                max_ram_per_user: most.2,
                max_ram_per_task: most.3,
                memory_high: shares.3,
                memory_low: shares.1,
                memory_min: shares.2,
                oom_kill_step: yes[4],
                max_processes: processes.0,
                max_processes_per_user: processes.1,
                max_processes_per_task: processes.2,
            },
        )
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, args in prop::collection::vec(any::<Vec<u8>>(), 0..4)) {
            let _ = parse("f", &text);
            let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
            let _ = load_or_default(&args, Path::new("/nonexistent"));
        }

        #[test]
        fn nothing_that_looks_like_a_file_makes_it_panic(
            text in "((Mode|CPUQuotaPercent|MinRAMSpace|OnError|[ä\0])[ \t]?(=|)[ ]?([a-z,:]{0,9}|[0-9.]{0,22}[%KMGTmsib]{0,3}|\"[^\n]{0,5}\"?)[ #\r]?\n?){0,6}"
        ) {
            let refused = parse("f", text.as_bytes()).err();
            prop_assert!(refused.is_none_or(|errors| (1..=20).contains(&errors.len())));
        }

        #[test]
        fn a_configuration_printed_is_read_as_the_same(config in any_config()) {
            prop_assert_eq!(parse("f", config.to_string().as_bytes()), Ok(config));
        }
    }
}
