// SPDX-License-Identifier: GPL-2.0-or-later
//! A scheduler's daemon that runs here: what its commands print, and whether the program that it starts is this one.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::sys::dir::Dir;
use jobfence::sys::process;
use jobfence::sys::program::AskedProgram;

/// How long a scheduler's command may take: it asks its server.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How many bytes of a script are read.
const SCRIPT: u64 = 64 << 10;

/// Where a scheduler that was not installed from a package may have its commands, relative to its daemons.
const BIN: &str = "../bin";

/// Which daemon is meant.
#[derive(Debug, Clone, Copy)]
pub struct DaemonKind {
    /// The name of its program.
    pub program: &'static str,
    /// The variables that select its configuration.
    pub variables: &'static [&'static str],
}

/// One that runs here.
pub struct SchedulerDaemon {
    kind: DaemonKind,
    /// The directory of its program, and with some schedulers also of the commands.
    directory: PathBuf,
    /// Its working directory.
    pub cwd: PathBuf,
    /// The unit of systemd's in which it runs; `None`: in none.
    pub unit: Option<String>,
    /// The variables of its environment that the commands need.
    environment: Vec<(&'static str, String)>,
    /// How long a command may take.
    patience: Duration,
}

impl SchedulerDaemon {
    /// A process of root's with this name. Of a user's process, neither the place nor the environment is to be trusted. A container's
    /// daemon starts no jobs of this host, and its commands are not here.
    pub fn find(proc: &Dir, kind: DaemonKind) -> Option<Self> {
        let name = kind.program;
        // A user can give that name to a set-user-ID program, by a link, and choose its environment. Its commands would run by that as root.
        let has_name = |pid: i32| {
            process::name(proc, pid).is_some_and(|found| found == name)
                && process::program(proc, pid).is_some_and(|program| program.starts_with(name))
        };
        let is_it = |pid: i32| has_name(pid) && process::uid(proc, pid) == Some(0) && !process::is_contained(proc, pid);
        let all = process::all(proc).unwrap_or_default();
        let pid = all.iter().map(|one| one.id.pid).find(|pid| is_it(*pid))?;
        Some(Self::from_pid(proc, pid, kind))
    }

    /// None: its commands are looked for where ours are, and find its configuration by our environment.
    pub fn absent(kind: DaemonKind) -> Self {
        let (directory, cwd) = Default::default();
        Self { kind, directory, cwd, unit: None, environment: Vec::new(), patience: PATIENCE }
    }

    /// The one with this number.
    pub fn from_pid(proc: &Dir, pid: i32, kind: DaemonKind) -> Self {
        let link = |name: &str| std::fs::read_link(proc.path().join(pid.to_string()).join(name)).unwrap_or_default();
        let soon = Instant::now() + PATIENCE;
        let value = |name| Some((name, process::environment(proc, pid, name, soon).ok().flatten()?));
        let environment = kind.variables.iter().copied().filter_map(value);
        Self {
            kind,
            directory: link("exe").parent().map(Path::to_path_buf).unwrap_or_default(),
            cwd: link("cwd"),
            unit: std::fs::read_to_string(proc.path().join(pid.to_string()).join("cgroup"))
                .ok()
                .and_then(|text| unit_in(&text)),
            environment: environment.collect(),
            patience: PATIENCE,
        }
    }

    /// The same, whose commands may take so long.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// None runs: its commands are looked for where ours are and beside this directory, and our environment selects its configuration.
    pub fn installed(kind: DaemonKind, directory: PathBuf) -> Self {
        let value = |name| Some((name, std::env::var(name).ok().filter(|value| !value.is_empty())?));
        let environment = kind.variables.iter().copied().filter_map(value).collect();
        Self { directory, environment, ..Self::absent(kind) }
    }

    /// A variable that selects its configuration.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str())
    }

    /// The words by which a shell runs one of its commands as `ask` does. `None`: there is no such program.
    pub fn words(&self, argv: &[&str]) -> Option<Vec<String>> {
        let [program, arguments @ ..] = argv else { return None };
        let program = self.program(program)?.to_str()?.to_owned();
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let variables = (!self.environment.is_empty()).then(|| "/usr/bin/env".to_owned()).into_iter().chain(variables);
        Some(variables.chain([program]).chain(arguments.iter().map(|&word| word.to_owned())).collect())
    }

    /// The words by which a shell runs this script, in which `$0` is one of its commands.
    pub fn script(&self, program: &str, script: &str, arguments: &[&str]) -> Option<Vec<String>> {
        let mut words = self.words(&[program])?;
        let program = words.pop()?;
        words.extend(["sh", "-c", script].map(str::to_owned));
        words.push(program);
        words.extend(arguments.iter().map(|&word| word.to_owned()));
        Some(words)
    }

    /// Where this command is.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = ["/usr/bin".into(), self.directory.clone(), self.directory.join(BIN)];
        let directories = std::env::split_paths(&path).chain(others);
        directories.map(|directory| directory.join(name)).find(|path| path.is_file())
    }

    /// What a command of this scheduler's prints, or why not. It is looked for where ours are, and beside the daemon.
    pub fn ask(&self, argv: &[&str]) -> Result<String, String> {
        self.ask_by(argv, Instant::now() + self.patience)
    }

    /// The same, by a deadline.
    pub fn ask_by(&self, argv: &[&str], deadline: Instant) -> Result<String, String> {
        let [program, arguments @ ..] = argv else { return Ok(String::new()) };
        let failed = |why: String| format!("{}: {why}", argv.join(" "));
        let found = self.program(program).ok_or_else(|| failed("there is no such program".to_owned()))?;
        // If there is a daemon, what the shell has of these can be for another installation.
        let of_the_shell = if self.directory.as_os_str().is_empty() { self.kind.variables } else { &[] };
        let program = AskedProgram::new(found, arguments, of_the_shell).with(self.environment.iter().cloned());
        program.ask(deadline).map_err(|silence| failed(silence.to_string().replace('\n', "; ")))
    }

    /// What a command of this scheduler's prints that bears this user's name, on stdout and stderr, and whether it has succeeded. The error
    /// says why that is not known.
    pub fn ask_as(&self, argv: &[&str], (uid, gid): (u32, u32), deadline: Instant) -> Result<(bool, String), String> {
        let [program, arguments @ ..] = argv else { return Ok((true, String::new())) };
        let failed = |why: String| format!("{program}: {}", why.replace('\n', "; "));
        let found = self.program(program).ok_or_else(|| failed("there is no such program".to_owned()))?;
        let asked = AskedProgram::new(found, arguments, &[]).with(self.environment.iter().cloned());
        let heard = asked.named_after(uid, gid).tell("", deadline).map_err(|silence| failed(silence.to_string()))?;
        let said = [heard.said.trim(), heard.stderr.as_str()].join("\n").trim().replace('\n', "; ");
        Ok((heard.complaint.is_none(), said))
    }
}

/// The last service in the path of any of its cgroups.
fn unit_in(text: &str) -> Option<String> {
    let services = text.lines().flat_map(|line| line.rsplit('/')).find(|name| name.ends_with(".service"));
    services.map(str::to_owned)
}

/// Why a daemon that is to start what is at this path does not start this program, or another one of its name, to complete "it is PATH, ...".
pub fn not_ours(path: &str) -> Option<String> {
    if !is_ours(path) {
        return Some("and not jobfence".to_owned());
    }
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("and no such file is here".to_owned()),
        Err(error) => Some(format!("and what is there cannot be seen: {error}")),
        Ok(found) if !found.is_file() => Some("which is no file".to_owned()),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Some("which is not executable".to_owned()),
        Ok(_) => None,
    }
}

/// Whether a path means this program, or another one of its name; it may be missing.
pub fn is_ours(path: &str) -> bool {
    let same = || Some(std::fs::canonicalize(path).ok()? == std::fs::canonicalize("/proc/self/exe").ok()?);
    Path::new(path).file_name().is_some_and(|name| name == "jobfence") || same().unwrap_or(false)
}

/// Why a program that a scheduler starts without arguments does not run this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRun {
    /// It is not here. The scheduler may start it on another host.
    Missing,
    /// To complete "it is PATH, ...".
    Other(String),
}

/// Whether what is at a path, or behind a link there, is a script that starts this program, or another one of its name, with this word.
pub fn runs(path: &str, word: &str) -> Result<(), NotRun> {
    let other = |why: String| Err(NotRun::Other(why));
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && path.starts_with('/') => {
            return Err(NotRun::Missing);
        }
        Err(_) => return other(format!("and not 'jobfence {word}'")),
        Ok(found) => found,
    };
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return other("which is no executable file".to_owned());
    }
    if std::fs::canonicalize(path).is_ok_and(|path| path.to_str().is_some_and(is_ours)) {
        return other(format!("which is jobfence without the word {word}: name a script that runs 'jobfence {word}'"));
    }
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(SCRIPT).read_to_end(&mut text));
    if read.is_err() || !text.starts_with(b"#!") {
        return other(format!("which is not seen to run 'jobfence {word}'"));
    }
    let text = String::from_utf8_lossy(&text);
    let words = |line: &str| -> Vec<String> {
        let words = line.split(|c: char| c.is_whitespace() || "\"'".contains(c));
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let started = text.lines().filter(|line| !line.trim_start().starts_with('#')).find_map(|line| {
        let words = words(line);
        let at = words.iter().zip(words.iter().skip(1)).find(|(program, next)| is_ours(program) && *next == word);
        at.map(|(program, _)| program.clone())
    });
    match started {
        None => other(format!("which is not seen to run 'jobfence {word}'")),
        Some(program) if program.starts_with('/') => match not_ours(&program) {
            Some(why) => other(format!("which runs {program}, {why}")),
            None => Ok(()),
        },
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: DaemonKind = DaemonKind { program: "x", variables: &["CONDOR_CONFIG"] };

    #[test]
    fn a_command_is_found_beside_the_daemons_directory() {
        let top = tempfile::tempdir().unwrap();
        for name in ["sbin", "bin"] {
            std::fs::create_dir(top.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/bin/sh", top.path().join("bin/condor_sh")).unwrap();
        let environment = vec![("CONDOR_CONFIG", "/x".to_owned())];
        let daemon =
            SchedulerDaemon { directory: top.path().join("sbin"), environment, ..SchedulerDaemon::absent(KIND) };
        assert_eq!(daemon.ask(&["condor_sh", "-c", "echo $CONDOR_CONFIG"]).as_deref(), Ok("/x\n"));
        let sh = top.path().join("sbin/../bin/condor_sh").display().to_string();
        let words = ["/usr/bin/env", "CONDOR_CONFIG=/x", &sh, "-c", "true"].map(str::to_owned);
        assert_eq!(daemon.words(&["condor_sh", "-c", "true"]), Some(words.to_vec()));
        assert_eq!(daemon.words(&["condor_none"]), None);
        let words = ["/usr/bin/env", "CONDOR_CONFIG=/x", "sh", "-c", "$0 -c $1", &sh, "true"].map(str::to_owned);
        assert_eq!(daemon.script("condor_sh", "$0 -c $1", &["true"]), Some(words.to_vec()));
    }

    #[test]
    fn a_name_alone_is_no_daemon() {
        let proc = Dir::open("/proc").unwrap();
        if !nix::unistd::geteuid().is_root() || process::is_contained(&proc, std::process::id().cast_signed()) {
            return;
        }
        for (is_link, name) in [(true, "jobfence_linkd"), (false, "jobfence_filed")] {
            let temp = tempfile::tempdir().unwrap();
            let program = temp.path().join(name);
            match is_link {
                true => std::os::unix::fs::symlink("/bin/sleep", &program).unwrap(),
                false => _ = std::fs::copy("/bin/sleep", &program).unwrap(),
            }
            let start = || std::process::Command::new("/bin/sh").args(["-c", "exec \"$0\" 60"]).arg(&program).spawn();
            let mut child = start().unwrap();
            // It is not executed while a child of another test has it open for writing.
            while process::name(&proc, child.id().cast_signed()).as_deref() != Some(name) {
                std::thread::yield_now();
                if child.try_wait().unwrap().is_some() {
                    child = start().unwrap();
                }
            }
            let found = SchedulerDaemon::find(&proc, DaemonKind { program: name, ..KIND }).is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, !is_link, "{name}");
        }
    }

    #[test]
    fn what_the_shell_has_is_no_daemons() {
        let shells = "/of-the-shell";
        if std::env::var_os("CONDOR_CONFIG").is_none_or(|value| value != shells) {
            // In a process of its own, which has that.
            let mut this = std::process::Command::new(std::env::current_exe().unwrap());
            this.args(["--exact", "check::daemon::tests::what_the_shell_has_is_no_daemons"]);
            let done = this.env("CONDOR_CONFIG", shells).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            return;
        }
        let daemon = SchedulerDaemon { directory: PathBuf::from("/none"), ..SchedulerDaemon::absent(KIND) };
        assert_eq!(daemon.ask(&["sh", "-c", "echo $CONDOR_CONFIG"]).as_deref(), Ok("\n"));
    }

    #[test]
    fn a_daemon_is_in_the_last_service_of_its_path() {
        let unit = |text: &str| unit_in(text);
        assert_eq!(unit("0::/system.slice/a.service/leaf\n").as_deref(), Some("a.service"));
        let hybrid = "4:pids:/user.slice/user@0.service/b.service\n1:name=systemd:/system.slice/b.service\n0::/\n";
        assert_eq!(unit(hybrid).as_deref(), Some("b.service"));
        assert_eq!(unit("0::/user.slice/user-0.slice/session-1.scope\n"), None);
    }

    #[test]
    fn this_program_is_known_by_its_name_and_by_itself() {
        assert_eq!(not_ours("/proc/self/exe"), None);
        for other in ["none", "/bin/sh"] {
            assert_eq!(not_ours(other).as_deref(), Some("and not jobfence"), "{other}");
        }
    }

    #[test]
    fn a_script_is_known_by_what_it_runs() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name).display().to_string();
        let script = |name: &str, text: &str| {
            std::fs::write(at(name), text).unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(0o755)).unwrap();
            runs(&at(name), "jsv")
        };
        let program = at("jobfence");
        script("jobfence", "#!/bin/sh\n").unwrap_err();
        assert_eq!(script("verify", &format!("#!/bin/sh\n# ours\nexec \"{program}\" jsv -- /opt/x y\n")), Ok(()));
        std::os::unix::fs::symlink(at("verify"), at("link")).unwrap();
        assert_eq!(runs(&at("link"), "jsv"), Ok(()), "a link to one");
        let other = |why: &str| Err(NotRun::Other(why.to_owned()));
        let unseen = || other("which is not seen to run 'jobfence jsv'");
        assert_eq!(script("jobfence-jsv", "#!/bin/sh\n# exec /usr/sbin/jobfence jsv\nexec perl x\n"), unseen());
        assert_eq!(script("jobfence-sensor", &format!("#!/bin/sh\nexec {program} host --gridengine\n")), unseen());
        let gone = script("gone", "#!/bin/sh\nexec /none/jobfence jsv\n");
        assert_eq!(gone, other("which runs /none/jobfence, and no such file is here"));
        let itself = other("which is jobfence without the word jsv: name a script that runs 'jobfence jsv'");
        assert_eq!([runs(&program, "jsv"), runs("/proc/self/exe", "jsv")], [itself.clone(), itself]);
        assert_eq!(runs("/none/jobfence/jsv", "jsv"), Err(NotRun::Missing));
        assert_eq!(runs("none", "jsv"), other("and not 'jobfence jsv'"));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_not_ours() {
        let top = std::env::temp_dir().join(format!("jobfence-doors-{}", std::process::id()));
        std::fs::create_dir(&top).unwrap();
        let file = top.join("jobfence");
        let why = || not_ours(file.to_str().unwrap());
        let missing = why();
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            why()
        };
        let (plain, executable) = (with_mode(0o644), with_mode(0o755));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let directory = why();
        std::fs::remove_dir_all(&top).unwrap();
        assert_eq!(missing.as_deref(), Some("and no such file is here"));
        assert_eq!(plain.as_deref(), Some("which is not executable"));
        assert_eq!(executable, None);
        assert_eq!(directory.as_deref(), Some("which is no file"));
    }
}
