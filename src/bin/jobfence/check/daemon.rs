// SPDX-License-Identifier: GPL-2.0-or-later
//! A daemon of a scheduler's that runs here: what its commands say, and whether what it is to start is this program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::sys::dir::Dir;
use jobfence::sys::process;
use jobfence::sys::program::AskedProgram;

/// How long a program of the scheduler's may take: it asks its server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which configuration a daemon has read.
const NEEDED: [&str; 6] =
    ["PBS_CONF_FILE", "CONDOR_CONFIG", "SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"];
/// Where an HTCondor that is no package has its commands, beside its daemons.
const BIN: &str = "../bin";

/// One that runs here.
pub(super) struct SchedulerDaemon {
    /// Where its program is, and with some schedulers those of its commands, too.
    directory: PathBuf,
    /// Where it works.
    pub(super) cwd: PathBuf,
    /// The unit of systemd's in which it runs; `None`: in none.
    pub(super) unit: Option<String>,
    /// What its commands need of the environment that it was started with.
    environment: Vec<(&'static str, String)>,
}

impl SchedulerDaemon {
    /// A process of root's with this name. Of a user's process, neither the place nor the environment is to be trusted. A container's
    /// daemon starts no jobs of this host, and its commands are not here.
    pub(super) fn find(proc: &Dir, name: &str) -> Option<Self> {
        let has_name = |pid: i32| process::name(proc, pid).is_some_and(|found| found == name);
        let is_it = |pid: i32| has_name(pid) && process::uid(proc, pid) == Some(0) && !process::is_contained(proc, pid);
        let all = process::all(proc).unwrap_or_default();
        let pid = all.iter().map(|one| one.id.pid).find(|pid| is_it(*pid))?;
        let link = |name: &str| std::fs::read_link(proc.path().join(pid.to_string()).join(name)).unwrap_or_default();
        let soon = Instant::now() + PATIENCE;
        let value = |name| Some((name, process::environment(proc, pid, name, soon).ok().flatten()?));
        let environment = NEEDED.into_iter().filter_map(value);
        Some(Self {
            directory: link("exe").parent().map(Path::to_path_buf).unwrap_or_default(),
            cwd: link("cwd"),
            unit: std::fs::read_to_string(proc.path().join(pid.to_string()).join("cgroup"))
                .ok()
                .and_then(|text| unit_in(&text)),
            environment: environment.collect(),
        })
    }

    /// What a command of this scheduler's prints, or why not. It is looked for where ours are, and beside the daemon.
    pub(super) fn ask(&self, argv: &[&str]) -> Result<String, String> {
        let [program, arguments @ ..] = argv else { return Ok(String::new()) };
        let failed = |why: String| format!("{}: {why}", argv.join(" "));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = ["/usr/bin".into(), self.directory.clone(), self.directory.join(BIN)];
        let directories = std::env::split_paths(&path).chain(others);
        let found = directories.map(|directory| directory.join(program)).find(|path| path.is_file());
        let found = found.ok_or_else(|| failed("there is no such program".to_owned()))?;
        // What the shell has of these can be for another installation.
        let program = AskedProgram::new(found, arguments, &[]).with(self.environment.iter().cloned());
        program.ask(Instant::now() + PATIENCE).map_err(|silence| failed(silence.to_string().replace('\n', "; ")))
    }
}

/// The last service in the path of any of its cgroups.
fn unit_in(text: &str) -> Option<String> {
    let services = text.lines().flat_map(|line| line.rsplit('/')).find(|name| name.ends_with(".service"));
    services.map(str::to_owned)
}

/// Why a daemon that is to start what is at this path does not start this program, or another one of its name, to complete "it is PATH, ...".
pub(super) fn not_ours(path: &str) -> Option<String> {
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
pub(super) fn is_ours(path: &str) -> bool {
    let same = || Some(std::fs::canonicalize(path).ok()? == std::fs::canonicalize("/proc/self/exe").ok()?);
    Path::new(path).file_name().is_some_and(|name| name == "jobfence") || same().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_found_beside_the_daemons_directory() {
        let top = tempfile::tempdir().unwrap();
        for name in ["sbin", "bin"] {
            std::fs::create_dir(top.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/bin/sh", top.path().join("bin/condor_sh")).unwrap();
        let environment = vec![("CONDOR_CONFIG", "/x".to_owned())];
        let daemon =
            SchedulerDaemon { directory: top.path().join("sbin"), cwd: PathBuf::new(), unit: None, environment };
        assert_eq!(daemon.ask(&["condor_sh", "-c", "echo $CONDOR_CONFIG"]).as_deref(), Ok("/x\n"));
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
        let daemon =
            SchedulerDaemon { directory: PathBuf::new(), cwd: PathBuf::new(), unit: None, environment: Vec::new() };
        assert_eq!(daemon.ask(&["sh", "-c", "echo $CONDOR_CONFIG"]).as_deref(), Ok("\n"));
    }

    #[test]
    fn this_program_is_known_by_its_name_and_by_itself() {
        assert_eq!(not_ours("/proc/self/exe"), None);
        for other in ["none", "/bin/sh"] {
            assert_eq!(not_ours(other).as_deref(), Some("and not jobfence"), "{other}");
        }
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
