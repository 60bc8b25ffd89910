// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence setup` does on a host of OpenPBS's, as docs/install/pbs.md says. On a host with a MoM it looks for what the hook needs there.
//! The hook itself is the server's, so it is printed, and made only with `--central`, on the host of the server.

mod sleeping;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::schedulers::pbs::{CONF, CONF_VARIABLE, configured_home};

use super::check::MOM;
use super::mom::{self, EVENTS, MomHook};
use crate::check::daemon::{DaemonKind, SchedulerDaemon};
use crate::command::Failure;
use crate::part::StartsJobs;
use crate::setup::plan::{JobTried, PlannedCheck, SetupCommand, SetupHost, SetupPlan, SetupStep};
use sleeping::SleepingChunkJob;

/// The daemon of the central host.
const SERVER: DaemonKind = DaemonKind { program: "pbs_server.bin", ..MOM };

/// The name of a new hook.
const NAME: &str = "jobfence";

/// The first release whose hooks run with Python 3.
const LEAST: u32 = 20;

/// How often to look whether the server has sent the hook.
const SENT: Duration = Duration::from_secs(1);

/// Deletes the hook that was made, also before it has got a program. In `$2` is its program: the site may have another hook of this name by now.
const DELETE: &str = r#"if [ -s "$2" ] && ! grep -q jobfence_abi_version "$2"; then
    echo "the hook $1 is not jobfence's any more: its program is another" >&2; exit 1
fi
exec "$0" -c "delete hook $1""#;
/// qmgr reads the hook's configuration from its stdin: some releases accept only a few endings of names.
const CONFIGURE: &str = r#""$0" -c "import hook $1 application/x-config default -" <"$2""#;
/// The path of a file that was made for it stands last.
const IMPORT: &str = r#""$0" -c "import hook $1 application/x-python default $2""#;

/// What is known of OpenPBS on this host.
#[derive(Debug, Default)]
struct PbsFacts {
    /// Such as `23.06.06`.
    release: String,
    /// The text of pbs.conf.
    conf: String,
    /// Why MoM's Python cannot load the library; empty: it can, or there is no MoM.
    python: String,
    /// Whether the library can see which jobs MoM has.
    has_home: bool,
    /// Whether this host runs jobs, and whether it has the server.
    roles: HostRoles,
    /// The hooks of the server. `None`: it is on another host, or its directory cannot be read.
    of_server: Option<Vec<MomHook>>,
    /// The same of MoM's.
    of_mom: Option<Vec<MomHook>>,
    /// The directory of those that count.
    kept_in: PathBuf,
}

#[derive(Debug, Default, Clone, Copy)]
struct HostRoles {
    mom: bool,
    server: bool,
}

/// What a hook is made of.
struct HookFiles {
    /// `PREFIX/share/jobfence/pbs`.
    directory: PathBuf,
    /// The attributes of jobfence.HK, as qmgr takes them.
    attributes: Vec<(String, String)>,
    program: Vec<u8>,
}

impl PbsFacts {
    fn value(&self, key: &str) -> Option<&str> {
        value_of(&self.conf, key)
    }

    /// Why nothing is set up, and what the administrator does first.
    fn obstacle(&self) -> Option<String> {
        let number = self.release.split('.').next().and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|number| number < LEAST) {
            return Some(format!("this is OpenPBS {}, and the hook needs {LEAST}.0 or later", self.release));
        }
        if !self.python.is_empty() {
            return Some(format!("MoM's Python cannot load a library, which the hook does: {}", self.python));
        }
        if self.roles.mom && !self.has_home {
            return Some(
                "no job would start, since jobfence cannot see which jobs MoM has: pbs.conf must have a line PBS_HOME= or PBS_MOM_HOME=, \
                 and only root may be able to write to the file"
                    .to_owned(),
            );
        }
        if self.roles.server && self.of_server.is_none() {
            return Some(format!(
                "which hooks the server has cannot be seen, since {} cannot be read: start the server, and run this again",
                self.kept_in.display()
            ));
        }
        // qmgr shows no such hook, and makes none of its name.
        let is_going = |hook: &&MomHook| hook.is_ours && !["", "0"].contains(&hook.value("pending_delete"));
        if let Some(going) = self.of_server.iter().flatten().find(is_going) {
            return Some(format!(
                "the hook {} was deleted, and the server keeps its name until each MoM has heard of that: start the MoMs that are down \
                 (pbsnodes -l), and run this again",
                going.name
            ));
        }
        // A hook without a program is not among the server's.
        if self.roles.server && self.ours().is_none() && self.kept_in.join(format!("{NAME}.HK")).exists() {
            return Some(format!(
                "the server has another hook named {NAME}: its program is not jobfence's, or it has none. If an interrupted 'jobfence setup' \
                 has made it, 'jobfence setup --undo --central' deletes it. If not, look at it (qmgr -c 'list hook {NAME}'), delete it if \
                 the site can do without it, and run this again"
            ));
        }
        let all = self.of_server.iter().chain(&self.of_mom).flatten();
        let stock = all.into_iter().find(|hook| hook.name == "pbs_cgroups" && hook.is_enabled());
        stock.map(|_| {
            "the hook pbs_cgroups is enabled, and puts each job into cgroups of its own: take over from it as docs/install/pbs.md says, \
             and run this again"
                .to_owned()
        })
    }

    /// The configuration that the hook names for jobs, or would.
    fn config(&self, host: &SetupHost) -> Option<PathBuf> {
        let of_hook = |hook: &MomHook| self.kept_in.join(format!("{}.CF", hook.name));
        let file = self.ours().map_or_else(|| host.data.join("pbs/jobfence.CF"), of_hook);
        let text = fs::read_to_string(file).ok()?;
        value_of(&text, "Config").map(PathBuf::from).filter(|file| file.exists())
    }

    /// The hook of jobfence's by which MoM starts jobs.
    fn of_mom(&self) -> Option<&MomHook> {
        self.of_mom.iter().flatten().find(|hook| hook.is_ours && hook.is_enabled())
    }

    /// Whether MoM has the hook. `Err`: it does not get one soon.
    fn has_hook(&self) -> Result<bool, String> {
        match (self.of_mom(), self.roles.server) {
            (Some(_), _) => Ok(true),
            (None, true) => Ok(false),
            (None, false) => Err("MoM has no hook of jobfence's, and gets one when the server has it".to_owned()),
        }
    }

    fn starts_jobs(&self) -> StartsJobs {
        match (self.roles.mom, self.of_mom()) {
            (true, Some(hook)) => StartsJobs::Yes {
                by: format!("MoM has the hook {}, which its server sends and deletes", hook.name),
                files: Vec::new(),
                commands: &["delete hook", "enabled = false"],
            },
            (true, None) if self.of_mom.is_none() => {
                StartsJobs::Unknown("the directory of MoM's hooks cannot be read".to_owned())
            }
            _ => StartsJobs::No,
        }
    }

    /// The hook of jobfence's, whatever its name is. MoM's is that of the server, if the server is elsewhere.
    fn ours(&self) -> Option<&MomHook> {
        self.of_server.as_ref().or(self.of_mom.as_ref())?.iter().find(|hook| hook.is_ours)
    }
}

impl HookFiles {
    fn read(directory: PathBuf) -> Result<Self, Failure> {
        let read = |name: &str| {
            let file = directory.join(name);
            fs::read(&file).map_err(|error| {
                format!(
                    "read {}: {error}: install the hook (a package jobfence-pbs has it), and run this again",
                    file.display()
                )
            })
        };
        let text = String::from_utf8(read("jobfence.HK")?)?;
        let program = read("jobfence.py")?;
        read("jobfence.CF")?;
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let attributes = pairs.filter(|(key, _)| !["type", "enabled"].contains(key));
        let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ok(Self { directory, attributes, program })
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// A command of qmgr's: its words, and the text of a file whose path stands behind them.
#[derive(Debug, PartialEq, Eq)]
enum Qmgr {
    Line(String),
    Script(&'static str, Vec<String>, Option<Vec<u8>>),
}

/// What is done to the hook: why, the command, and what takes it back.
type HookStep = (&'static str, Qmgr, Vec<Qmgr>);

fn program_of(directory: &Path, hook: &str) -> PathBuf {
    directory.join(format!("{hook}.PY"))
}

/// What the hook lacks. Nothing is known of it if there is none.
fn hook_steps(ours: Option<(&MomHook, Option<&[u8]>)>, files: &HookFiles, kept_in: &Path) -> Vec<HookStep> {
    let name = ours.map_or(NAME, |(hook, _)| &hook.name);
    let line = |text: String| Qmgr::Line(text);
    let program = |path: String| Qmgr::Script(IMPORT, vec![name.to_owned(), path], None);
    let enable = ("it runs at each job from now on", line(format!("set hook {name} enabled = true")));
    let Some((hook, has)) = ours else {
        let attributes: Vec<String> =
            files.attributes.iter().map(|(key, value)| format!("{key} = \"{value}\"")).collect();
        let config = Qmgr::Script(CONFIGURE, vec![name.to_owned(), files.path("jobfence.CF")], None);
        return vec![
            (
                "a hook puts each job into a fence",
                line(format!("create hook {name}")),
                vec![Qmgr::Script(
                    DELETE,
                    vec![name.to_owned(), program_of(kept_in, name).display().to_string()],
                    None,
                )],
            ),
            ("when it runs, and as whom", line(format!("set hook {name} {}", attributes.join(", "))), Vec::new()),
            ("where the hosts have the library and jobfence.conf", config, Vec::new()),
            ("its program", program(files.path("jobfence.py")), Vec::new()),
            (enable.0, enable.1, Vec::new()),
        ];
    };
    let mut steps = Vec::new();
    if EVENTS.iter().any(|event| !hook.value("event").split(',').any(|one| one == *event)) {
        let event = files.attributes.iter().find(|(key, _)| key == "event").map_or("", |(_, value)| value);
        let set = |event: &str| line(format!("set hook {name} event = \"{event}\""));
        steps.push(("a hook without all events leaves jobs outside", set(event), vec![set(hook.value("event"))]));
    }
    if let Some(has) = has.filter(|has| *has != files.program) {
        let before = Qmgr::Script(IMPORT, vec![name.to_owned()], Some(has.to_vec()));
        steps.push(("its program is that of this release", program(files.path("jobfence.py")), vec![before]));
    }
    if !hook.is_enabled() {
        steps.push((enable.0, enable.1, vec![line(format!("set hook {name} enabled = false"))]));
    }
    steps
}

/// What is to be done on this host. `None`: it has neither a MoM nor the server.
pub fn plan(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
    let Some((daemon, facts)) = read(host) else { return Ok(None) };
    let mut plan = SetupPlan {
        found: found(&facts, &daemon),
        obstacle: facts.obstacle(),
        is_bystander: !facts.roles.mom,
        config: facts.config(host),
        ..SetupPlan::default()
    };
    if plan.obstacle.is_some() {
        return Ok(Some(plan));
    }
    if facts.roles.mom {
        plan.steps.extend(SetupStep::service());
        let config = plan.config.clone();
        plan.steps.push(SetupStep::condition("a job would be fenced here", move |check| {
            check(PlannedCheck { config: config.clone(), ..Default::default() })
        }));
    }
    plan.steps.extend(steps(&facts, &daemon, host.data.join("pbs"))?);
    Ok(Some(plan))
}

/// The steps about the hook. A host without the server gets it from the server, and root of that host may not be its manager.
fn steps(facts: &PbsFacts, daemon: &SchedulerDaemon, directory: PathBuf) -> Result<Vec<SetupStep>, Failure> {
    if !facts.roles.server {
        let by_hand = || {
            let server = facts.value("PBS_SERVER").unwrap_or("not named in pbs.conf");
            SetupStep::remark(format!(
                "the hook is the server's: run 'jobfence setup --central' on its host ({server})"
            ))
        };
        let has_it = facts.ours().is_some_and(MomHook::is_enabled);
        return Ok((!has_it).then(by_hand).into_iter().collect());
    }
    let files = HookFiles::read(directory)?;
    let program = |hook: &MomHook| fs::read(program_of(&facts.kept_in, &hook.name)).ok();
    let ours = facts.ours().map(|hook| (hook, program(hook)));
    let ours = ours.as_ref().map(|(hook, program)| (*hook, program.as_deref()));
    let mut steps = Vec::new();
    for (why, run, undo) in hook_steps(ours, &files, &facts.kept_in) {
        let (Some(run), Some(undo)) =
            (command(daemon, run), undo.into_iter().map(|one| command(daemon, one)).collect())
        else {
            return Err("qmgr was not found: it is one of OpenPBS's commands".into());
        };
        steps.push(SetupStep::command(run, undo, false, why).central());
    }
    Ok(steps)
}

/// Whether MoM has the hook, wherever the server is.
pub fn starts_jobs(host: &SetupHost) -> StartsJobs {
    match read(host) {
        Some((daemon, facts)) if daemon.words(&["pbs_mom"]).is_some() => facts.starts_jobs(),
        _ => StartsJobs::No,
    }
}

/// A job with a chunk of this host, when MoM has the hook.
pub fn try_job(host: &SetupHost, deadline: Instant) -> JobTried {
    let mut found = read(host);
    while let Some((daemon, facts)) = found {
        match facts.has_hook() {
            Ok(true) => {
                return JobTried::Asleep(Box::new(SleepingChunkJob { daemon, config: facts.config(host) }));
            }
            Ok(false) => {}
            Err(why) => return JobTried::NotRun(why),
        }
        if Instant::now() + SENT > deadline {
            return JobTried::NotRun("the server has not sent the hook to MoM in time".to_owned());
        }
        std::thread::sleep(SENT);
        found = read(host);
    }
    JobTried::NotRun("OpenPBS does not run here".to_owned())
}

/// The facts, and the daemon that is asked. `None`: OpenPBS is not here, or only its commands are.
fn read(host: &SetupHost) -> Option<(SchedulerDaemon, PbsFacts)> {
    let find = |kind| SchedulerDaemon::find(&host.proc, kind);
    let (mom, server) = (find(MOM), find(SERVER));
    let of_shell = std::env::var(CONF_VARIABLE).ok().filter(|file| !file.is_empty());
    let of_daemon =
        mom.as_ref().or(server.as_ref()).and_then(|daemon| daemon.variable(CONF_VARIABLE)).map(str::to_owned);
    let conf = fs::read_to_string(of_daemon.or(of_shell).unwrap_or_else(|| CONF.to_owned())).ok()?;
    let is_started = |key| value_of(&conf, key) == Some("1");
    let roles = HostRoles {
        mom: mom.is_some() || is_started("PBS_START_MOM"),
        server: server.is_some() || is_started("PBS_START_SERVER"),
    };
    if !roles.mom && !roles.server {
        return None;
    }
    let directory = Path::new(value_of(&conf, "PBS_EXEC").unwrap_or("/opt/pbs")).join("sbin");
    let daemon = mom.or(server).unwrap_or_else(|| SchedulerDaemon::installed(MOM, directory));
    let home = PathBuf::from(value_of(&conf, "PBS_HOME").unwrap_or("/var/spool/pbs"));
    let of_mom = value_of(&conf, "PBS_MOM_HOME").map_or_else(|| home.clone(), PathBuf::from);
    let python = || daemon.ask(&["pbs_python", "-c", "import ctypes"]).unwrap_or_else(|why| why).trim().to_owned();
    let of_server = roles.server.then(|| mom::hooks(&home.join("server_priv"))).flatten();
    let hooks_of_mom = |directory: &Path| match directory.join("hooks").try_exists() {
        // MoM was never started.
        Ok(false) => Some(Vec::new()),
        _ => mom::hooks(directory),
    };
    let kept_in = if roles.server { home.join("server_priv/hooks") } else { of_mom.join("mom_priv/hooks") };
    let facts = PbsFacts {
        release: daemon.ask(&["pbs_mom", "--version"]).ok().and_then(|text| release(&text)).unwrap_or_default(),
        python: if roles.mom { python() } else { String::new() },
        has_home: configured_home().is_some(),
        roles,
        of_server,
        kept_in,
        of_mom: roles.mom.then(|| hooks_of_mom(&of_mom.join("mom_priv"))).flatten(),
        conf,
    };
    Some((daemon, facts))
}

fn command(daemon: &SchedulerDaemon, qmgr: Qmgr) -> Option<SetupCommand> {
    match qmgr {
        Qmgr::Line(line) => Some(SetupCommand { argv: daemon.words(&["qmgr", "-c", &line])?, file: None }),
        Qmgr::Script(script, arguments, file) => {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let file = file.map(|text| (format!("{NAME}.py"), String::from_utf8_lossy(&text).into_owned()));
            Some(SetupCommand { argv: daemon.script("qmgr", script, &arguments)?, file })
        }
    }
}

fn found(facts: &PbsFacts, daemon: &SchedulerDaemon) -> Vec<String> {
    let conf = daemon.variable(CONF_VARIABLE).unwrap_or(CONF);
    let server = facts.value("PBS_SERVER").unwrap_or("not named");
    let does = [(facts.roles.mom, "runs jobs"), (facts.roles.server, "has the server")];
    let does: Vec<&str> = does.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what).collect();
    let mut found = vec![
        format!("OpenPBS {}, by {conf}; its server is {server}", facts.release),
        format!("this host {}", does.join(", and ")),
    ];
    found.push(match facts.ours() {
        Some(hook) if hook.is_enabled() => format!("the hook {} puts jobs into fences", hook.name),
        Some(hook) => format!("the hook {} is not enabled", hook.name),
        None if facts.of_server.is_some() => "the server has no hook of jobfence's".to_owned(),
        None => "MoM has no hook of jobfence's".to_owned(),
    });
    found
}

/// The number in `pbs_version = 23.06.06`.
fn release(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.split_once('=')).map(|(_, number)| number.trim().to_owned())
}

/// The value of a key of pbs.conf. If the key is there more than once, the last line counts.
fn value_of<'a>(conf: &'a str, key: &str) -> Option<&'a str> {
    let value = |line: &'a str| Some(line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim());
    conf.lines().filter_map(value).next_back().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::plan::SetupAction;

    /// A pbs.conf that pbs_postinstall of 23.06.06 has written, on a host with all daemons.
    const CONF: &str = "PBS_EXEC=/opt/pbs\nPBS_HOME=/var/spool/pbs\nPBS_SERVER=node1\nPBS_START_SERVER=1\nPBS_START_SCHED=1\n\
                        PBS_START_COMM=1\nPBS_START_MOM=1\nPBS_CORE_LIMIT=unlimited\n";
    /// What the server of 23.06.06 has written of the hook, as it keeps it.
    const HK: &str = "hook_name=jobfence\nevent=execjob_begin,execjob_prologue,execjob_epilogue,execjob_end,execjob_preterm,execjob_launch,\
                      execjob_attach,execjob_resize,execjob_abort,execjob_postsuspend,execjob_preresume,exechost_periodic,exechost_startup\n\
                      order=100\nalarm=60\nfreq=60\n";

    fn files() -> HookFiles {
        HookFiles::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/pbs")).unwrap()
    }

    /// The hooks of a directory with this one.
    fn hooks(name: &str, attributes: &str, program: &str) -> Vec<MomHook> {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("hooks");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(format!("{name}.HK")), attributes).unwrap();
        fs::write(directory.join(format!("{name}.PY")), program).unwrap();
        mom::hooks(temp.path()).unwrap()
    }

    fn facts(of_server: Vec<MomHook>) -> PbsFacts {
        let release = release("pbs_version = 23.06.06\n").unwrap();
        let roles = HostRoles { mom: true, server: true };
        PbsFacts {
            release,
            conf: CONF.to_owned(),
            has_home: true,
            roles,
            of_server: Some(of_server),
            ..PbsFacts::default()
        }
    }

    fn lines(steps: &[HookStep]) -> Vec<String> {
        let text = |qmgr: &Qmgr| match qmgr {
            Qmgr::Line(line) => line.clone(),
            Qmgr::Script(script, arguments, _) => format!("{script} {}", arguments.join(" ")),
        };
        steps.iter().map(|(_, run, _)| text(run)).collect()
    }

    #[test]
    fn a_server_without_the_hook_gets_it() {
        let steps = hook_steps(None, &files(), Path::new("/hooks"));
        let said = lines(&steps);
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[0], "create hook jobfence");
        assert!(
            said[1]
                .starts_with("set hook jobfence debug = \"false\", user = \"pbsadmin\", event = \"exechost_startup,"),
            "{said:?}"
        );
        assert!(!said[1].contains("type") && !said[1].contains("enabled"), "{said:?}");
        assert!(said[2].ends_with("hooks/pbs/jobfence.CF") && said[3].ends_with("hooks/pbs/jobfence.py"), "{said:?}");
        assert_eq!(said[4], "set hook jobfence enabled = true");
        let undo: Vec<&Vec<Qmgr>> = steps.iter().map(|(_, _, undo)| undo).filter(|undo| !undo.is_empty()).collect();
        let words = ["jobfence", "/hooks/jobfence.PY"].map(str::to_owned);
        assert_eq!(undo, [&vec![Qmgr::Script(DELETE, words.to_vec(), None)]]);
    }

    #[test]
    fn the_hook_is_deleted_only_while_it_is_ours() {
        let temp = tempfile::tempdir().unwrap();
        let program = program_of(temp.path(), "jobfence");
        let delete = || {
            let done = std::process::Command::new("sh").args(["-c", DELETE, "echo", "jobfence"]).arg(&program).output();
            let done = done.unwrap();
            String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
        };
        // A setup that was killed has left it without a program.
        assert_eq!(delete(), "-c delete hook jobfence\n");
        for (text, said) in [
            (String::new(), "-c delete hook jobfence\n"),
            (String::from_utf8(files().program).unwrap(), "-c delete hook jobfence\n"),
            ("import pbs\n".to_owned(), "the hook jobfence is not jobfence's any more: its program is another\n"),
        ] {
            fs::write(&program, text).unwrap();
            assert_eq!(delete(), said);
        }
    }

    #[test]
    fn mom_starts_jobs_by_the_hook_that_it_has() {
        let of = |mom, of_mom| PbsFacts { roles: HostRoles { mom, server: true }, of_mom, ..facts(Vec::new()) };
        let program = String::from_utf8(files().program).unwrap();
        let ours = |line: &str| Some(hooks("fence", &format!("{HK}{line}"), &program));
        let StartsJobs::Yes { by, commands, .. } = of(true, ours("")).starts_jobs() else { panic!() };
        assert!(by.starts_with("MoM has the hook fence, ") && DELETE.contains(commands[0]), "{by}");
        for none in [of(true, ours("enabled=false\n")), of(true, Some(hooks("fence", HK, "x"))), of(false, ours(""))] {
            assert_eq!(none.starts_jobs(), StartsJobs::No);
        }
        assert!(matches!(of(true, None).starts_jobs(), StartsJobs::Unknown(_)));
        // Only where the server is, it is on its way.
        assert_eq!((of(true, ours("")).has_hook(), of(true, Some(Vec::new())).has_hook()), (Ok(true), Ok(false)));
        let elsewhere = PbsFacts { roles: HostRoles { mom: true, server: false }, ..of(true, Some(Vec::new())) };
        assert!(elsewhere.has_hook().is_err());
    }

    #[test]
    fn what_is_so_already_is_left_alone() {
        let files = files();
        let program = String::from_utf8(files.program.clone()).unwrap();
        let of = |name: &str, attributes: &str, program: &str| {
            let facts = facts(hooks(name, attributes, program));
            let steps =
                hook_steps(Some((facts.ours().unwrap(), Some(program.as_bytes()))), &files, Path::new("/hooks"));
            lines(&steps)
        };
        assert!(of("jobfence", HK, &program).is_empty());
        assert_eq!(of("fence", &format!("{HK}enabled=false\n"), &program), ["set hook fence enabled = true"]);
        let old = format!("{program}# old\n");
        assert!(of("jobfence", HK, &old)[0].ends_with("hooks/pbs/jobfence.py"));
        let events = of("jobfence", &HK.replace("execjob_end,", ""), &program);
        assert!(
            events.len() == 1 && events[0].starts_with("set hook jobfence event = \"exechost_startup,"),
            "{events:?}"
        );
        // The old program comes back.
        let facts = facts(hooks("jobfence", HK, &old));
        let steps = hook_steps(Some((facts.ours().unwrap(), Some(old.as_bytes()))), &files, Path::new("/hooks"));
        assert_eq!(steps[0].2, [Qmgr::Script(IMPORT, vec!["jobfence".to_owned()], Some(old.into_bytes()))]);
    }

    #[test]
    fn what_stands_in_the_way_is_said() {
        assert_eq!(facts(Vec::new()).obstacle(), None);
        assert_eq!(facts(hooks("pbs_cgroups", "event=execjob_begin\nenabled=false\n", "x")).obstacle(), None);
        let stock = facts(hooks("pbs_cgroups", "event=execjob_begin\n", "x"));
        assert!(stock.obstacle().unwrap().starts_with("the hook pbs_cgroups is enabled"));
        let old = PbsFacts { release: "19.1.3".to_owned(), ..facts(Vec::new()) };
        assert_eq!(old.obstacle().unwrap(), "this is OpenPBS 19.1.3, and the hook needs 20.0 or later");
        let python = PbsFacts { python: "ImportError".to_owned(), ..facts(Vec::new()) };
        assert!(python.obstacle().unwrap().ends_with("ImportError"));
        let without = PbsFacts { has_home: false, ..facts(Vec::new()) };
        assert!(without.obstacle().unwrap().contains("PBS_MOM_HOME="));
        let server = PbsFacts { has_home: false, roles: HostRoles { mom: false, server: true }, ..facts(Vec::new()) };
        assert_eq!(server.obstacle(), None);
    }

    #[test]
    fn another_hook_of_this_name_is_not_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let of = |of_server| PbsFacts { kept_in: temp.path().to_owned(), ..facts(of_server) };
        fs::write(temp.path().join("fence.HK"), HK).unwrap();
        assert_eq!(of(Vec::new()).obstacle(), None);
        fs::write(temp.path().join("jobfence.HK"), HK).unwrap();
        for other in [Vec::new(), hooks("jobfence", HK, "import pbs\n")] {
            assert!(of(other).obstacle().unwrap().starts_with("the server has another hook named jobfence: "));
        }
        let program = String::from_utf8(files().program).unwrap();
        assert_eq!(of(hooks("jobfence", HK, &program)).obstacle(), None);
        assert_eq!(of(hooks("fence", HK, &program)).obstacle(), None);
    }

    #[test]
    fn a_hook_that_is_being_deleted_does_not_count() {
        let program = String::from_utf8(files().program).unwrap();
        let of = |line: &str| facts(hooks("jobfence", &format!("{HK}{line}"), &program)).obstacle();
        assert!(of("pending_delete=1\n").unwrap().starts_with("the hook jobfence was deleted, and the server keeps"));
        assert_eq!(of("pending_delete=0\n"), None);
    }

    #[test]
    fn what_is_the_servers_is_done_on_its_host() {
        let nowhere = || PathBuf::from("/no/such/directory");
        let daemon = SchedulerDaemon::installed(MOM, nowhere());
        let roles = HostRoles { mom: true, server: false };
        let of_mom = |hooks| PbsFacts { roles, of_server: None, of_mom: Some(hooks), ..facts(Vec::new()) };
        let without = steps(&of_mom(Vec::new()), &daemon, nowhere()).unwrap();
        assert!(matches!(&without[..], [SetupStep { is_central: false, action: SetupAction::Remark, .. }]));
        assert_eq!(without[0].why, "the hook is the server's: run 'jobfence setup --central' on its host (node1)");
        let program = String::from_utf8(files().program).unwrap();
        let disabled = of_mom(hooks("jobfence", &format!("{HK}enabled=false\n"), &program));
        assert_eq!(steps(&disabled, &daemon, nowhere()).unwrap().len(), 1);
        assert!(steps(&of_mom(hooks("fence", HK, &program)), &daemon, nowhere()).unwrap().is_empty());
        // On its host the files are needed.
        assert!(steps(&facts(Vec::new()), &daemon, nowhere()).is_err());
        let unseen = PbsFacts { of_server: None, ..facts(Vec::new()) };
        assert!(unseen.obstacle().unwrap().starts_with("which hooks the server has cannot be seen"));
    }

    #[test]
    fn the_last_line_of_pbs_conf_counts() {
        assert_eq!(value_of(CONF, "PBS_SERVER"), Some("node1"));
        assert_eq!(value_of("PBS_EXEC=/a\n PBS_EXEC = /b\n#PBS_EXEC=/c\n", "PBS_EXEC"), Some("/b"));
        assert_eq!(value_of(CONF, "PBS_START"), None);
        assert_eq!(value_of("PBS_MOM_HOME=\n", "PBS_MOM_HOME"), None);
    }
}
