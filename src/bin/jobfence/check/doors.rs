// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the daemons of Grid Engine and of HTCondor that run here start jobs by this program, as their configuration says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jobfence::config::Config;
use jobfence::sys::dir::Dir;
use jobfence::sys::process;

use super::verdict::Verdict;
use crate::command::output_until;

/// How long a program of the scheduler's may take: it asks its server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which configuration a daemon has read.
const NEEDED: [&str; 5] = ["CONDOR_CONFIG", "SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"];
/// Where an HTCondor that is no package has its commands, beside its daemons.
const BIN: &str = "../bin";

/// As in docs/install/gridengine.md.
const COMPLEXES: [&str; 5] =
    ["jobfence_threads", "jobfence_mem", "jobfence_vmem", "jobfence_free", "jobfence_pressure"];

/// Says it, and why no job would be fenced, if so. Nothing where neither runs.
pub fn look(proc: &Dir, config: &Config, verdict: &mut Verdict) {
    if let Some(execd) = Daemon::find(proc, "sge_execd") {
        gridengine(&execd, config, verdict);
    }
    if let Some(startd) = Daemon::find(proc, "condor_startd") {
        htcondor(&startd, verdict);
    }
    if let Some(schedd) = Daemon::find(proc, "condor_schedd") {
        local_universe(&schedd);
    }
}

/// One that runs here.
struct Daemon {
    /// Where its program is, and with some schedulers those of its commands, too.
    directory: PathBuf,
    /// What its commands need of the environment that it was started with.
    environment: Vec<(&'static str, String)>,
}

impl Daemon {
    /// A process of root's with this name. Of a user's process, neither the place nor the environment is to be trusted.
    fn find(proc: &Dir, name: &str) -> Option<Self> {
        let is_it = |pid: i32| process::name(proc, pid).is_some_and(|found| found == name);
        let all = process::all(proc).unwrap_or_default();
        let pid = all.iter().map(|one| one.id.pid).find(|pid| is_it(*pid) && process::uid(proc, *pid) == Some(0))?;
        let exe = std::fs::read_link(proc.path().join(pid.to_string()).join("exe")).unwrap_or_default();
        let soon = Instant::now() + PATIENCE;
        let value = |name| Some((name, process::environment(proc, pid, name, soon).ok().flatten()?));
        let environment = NEEDED.into_iter().filter_map(value);
        Some(Self {
            directory: exe.parent().map(Path::to_path_buf).unwrap_or_default(),
            environment: environment.collect(),
        })
    }

    /// What a command of this scheduler's prints, or why not. It is looked for where ours are, and beside the daemon.
    fn ask(&self, argv: &[&str]) -> Result<String, String> {
        let [program, arguments @ ..] = argv else { return Ok(String::new()) };
        let failed = |why: String| format!("{}: {why}", argv.join(" "));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = ["/usr/bin".into(), self.directory.clone(), self.directory.join(BIN)];
        let directories = std::env::split_paths(&path).chain(others);
        let found = directories.map(|directory| directory.join(program)).find(|path| path.is_file());
        let mut command = Command::new(found.ok_or_else(|| failed("there is no such program".to_owned()))?);
        command.args(arguments).envs(self.environment.iter().cloned());
        match output_until(&mut command, Instant::now() + PATIENCE) {
            Ok(Some(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(Some(output)) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))),
            Ok(None) => Err(failed("there was no answer within 10 seconds".to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Whether this program, or another one of its name, is at this path.
fn is_ours(path: &str) -> bool {
    let same = || Some(std::fs::canonicalize(path).ok()? == std::fs::canonicalize("/proc/self/exe").ok()?);
    Path::new(path).file_name().is_some_and(|name| name == "jobfence") || same().unwrap_or(false)
}

fn gridengine(execd: &Daemon, config: &Config, verdict: &mut Verdict) {
    let say = |what: &str| println!("gridengine     {what}");
    let global = match execd.ask(&["qconf", "-sconf", "global"]) {
        Ok(global) => global,
        Err(why) => {
            say(&format!("what its configuration says is not known: {why}"));
            return verdict
                .no("NO job is known to be fenced here: Grid Engine does not say what starts its jobs".to_owned());
        }
    };
    let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    // A host without a configuration of its own is no mistake.
    let local = execd.ask(&["qconf", "-sconf", &host]).unwrap_or_default();
    let value =
        |key: &str| value_of(&local, key).or_else(|| value_of(&global, key)).unwrap_or_else(|| "none".to_owned());
    let shepherd = value("shepherd_cmd");
    say(&format!("shepherd_cmd is {shepherd}"));
    if !is_ours(&shepherd) {
        verdict.no(format!("NO job would be fenced here: shepherd_cmd of Grid Engine is {shepherd}, and not jobfence"));
    }
    let jsv = value("jsv_url");
    let has_jsv = jsv.contains("jobfence");
    let needs_jsv = !config.slot_gpus.is_empty() || config.slot_memory.iter().any(|memory| memory.name != "h_vmem");
    match (has_jsv, needs_jsv) {
        (true, _) => say(&format!("jsv_url is {jsv}")),
        (false, false) => say(&format!("jsv_url is {jsv}: only h_vmem counts as memory, and no job has GPUs")),
        (false, true) => {
            say(&format!("jsv_url is {jsv}, and SlotMemory and SlotGPUs need 'jobfence jsv' there"));
            verdict.no(format!("NO job would be fenced here as configured: jsv_url of Grid Engine is {jsv}"));
        }
    }
    let sensor = value("load_sensor");
    match sensor.contains("jobfence") {
        true => say(&format!("load_sensor is {sensor}")),
        false => say(&format!("load_sensor is {sensor}: qmaster does not learn what jobs can have of this host")),
    }
    let complexes = execd.ask(&["qconf", "-sc"]).unwrap_or_default();
    let has = |name: &&str| complexes.lines().any(|line| line.split_whitespace().next() == Some(*name));
    let missing: Vec<&str> = COMPLEXES.into_iter().filter(|name| !has(name)).collect();
    if sensor.contains("jobfence") && !missing.is_empty() {
        say(&format!("complexes are missing, so their values are lost: {}", missing.join(", ")));
    }
}

/// The value of a key of `qconf -sconf`, also one that goes on in the next line.
fn value_of(text: &str, key: &str) -> Option<String> {
    let text = text.replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = text.lines().map(words).find(|words| words.first().is_some_and(|first| first == key))?;
    Some(found.get(1..)?.join(" "))
}

fn htcondor(startd: &Daemon, verdict: &mut Verdict) {
    let say = |what: &str| println!("htcondor       {what}");
    match startd.ask(&["condor_config_val", "STARTER"]) {
        Ok(starter) => {
            let starter = starter.trim();
            say(&format!("STARTER is {starter}"));
            if !is_ours(starter) {
                verdict.no(format!("NO job would be fenced here: STARTER of HTCondor is {starter}, and not jobfence"));
            }
        }
        Err(why) => {
            say(&format!("what its configuration says is not known: {why}"));
            verdict.no("NO job is known to be fenced here: HTCondor does not say what starts its jobs".to_owned());
        }
    }
    let list = startd.ask(&["condor_config_val", "STARTD_CRON_JOBLIST"]).unwrap_or_default();
    let has_ours = |name: &str| {
        let key = format!("STARTD_CRON_{name}_EXECUTABLE");
        startd.ask(&["condor_config_val", &key]).is_ok_and(|program| is_ours(program.trim()))
    };
    let mut names = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
    match names.find(|name| has_ours(name)) {
        Some(name) => say(&format!("STARTD_CRON_JOBLIST has {name}")),
        None => say("STARTD_CRON_JOBLIST has no jobfence: the slots do not say what jobs can have of this host"),
    }
    docker_universe(startd);
}

/// Few sites have such jobs, and each other job is fenced without it. Without Docker nothing is said.
fn docker_universe(startd: &Daemon) {
    let Ok(client) = startd.ask(&["condor_config_val", "DOCKER"]) else { return };
    let client = client.trim();
    // Behind sudo(8), as the starter has it.
    let path = client.strip_prefix("sudo ").unwrap_or(client).trim_start();
    let Ok(real) = std::fs::canonicalize(path) else { return };
    let unless = if !(is_ours(path) || real.ends_with("jobfence")) {
        ": containers of the Docker universe are not fenced".to_owned()
    } else if Path::new(path).file_name().is_none_or(|name| name != "docker") {
        ": it is Docker's client only by a link of the name docker".to_owned()
    } else {
        match startd.ask(&[path, "info", "--format", "{{.CgroupDriver}}"]) {
            Ok(driver) if driver.trim() == "cgroupfs" => String::new(),
            Ok(driver) => {
                format!(": jobs of the Docker universe are refused, since Docker's cgroup driver is {}", driver.trim())
            }
            Err(why) => format!(": Docker does not say whether its containers can be fenced: {why}"),
        }
    };
    println!("htcondor       DOCKER is {client}{unless}");
}

/// Few sites have such jobs, and each job of a slot is fenced without it.
fn local_universe(schedd: &Daemon) {
    let Ok(starter) = schedd.ask(&["condor_config_val", "STARTER_LOCAL"]) else { return };
    let starter = starter.trim();
    let unless = if is_ours(starter) { "" } else { ": jobs of the local universe are not fenced" };
    println!("htcondor       STARTER_LOCAL is {starter}{unless}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_qconf_may_have_several_lines() {
        let text =
            "#global:\nshepherd_cmd                 /usr/sbin/jobfence\nload_sensor  /a,\\\n             /b\nx\n";
        assert_eq!(value_of(text, "shepherd_cmd").as_deref(), Some("/usr/sbin/jobfence"));
        assert_eq!(value_of(text, "load_sensor").as_deref(), Some("/a, /b"));
        assert_eq!(value_of(text, "jsv_url"), None);
        assert_eq!(value_of(text, "x").as_deref(), Some(""));
    }

    #[test]
    fn a_command_is_found_beside_the_daemons_directory() {
        let top = tempfile::tempdir().unwrap();
        for name in ["sbin", "bin"] {
            std::fs::create_dir(top.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/bin/sh", top.path().join("bin/condor_sh")).unwrap();
        let environment = vec![("CONDOR_CONFIG", "/x".to_owned())];
        let daemon = Daemon { directory: top.path().join("sbin"), environment };
        assert_eq!(daemon.ask(&["condor_sh", "-c", "echo $CONDOR_CONFIG"]).as_deref(), Ok("/x\n"));
    }

    #[test]
    fn this_program_is_known_by_its_name_and_by_itself() {
        assert!(is_ours("/nowhere/sbin/jobfence") && is_ours("/proc/self/exe"));
        assert!(!is_ours("none") && !is_ours("/bin/sh"));
    }
}
