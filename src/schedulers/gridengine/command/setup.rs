// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence setup` does on an execution host of Grid Engine, as docs/install/gridengine.md says: the configuration of this one host. qmaster
//! has it, so it is printed, and done only with `--central`.
//!
//! The complexes of the load sensor are the site's to make: qmaster keeps the last value that a host has reported, also when the sensor is
//! gone and when qmaster is started anew, and removes no complex that has a value. So nothing could take them back.

mod sleeping;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jobfence::schedulers::gridengine::complexes::{Complex, value_of};
use nix::unistd::gethostname;

use super::check::{COMPLEXES, EXECD, own_cgroups};
use crate::check::daemon::{SchedulerDaemon, is_ours, not_ours, runs};
use crate::command::Failure;
use crate::part::{AfterUndo, StartsJobs};
use crate::setup::plan::{JobTried, PlannedCheck, SetupCommand, SetupHost, SetupPlan, SetupStep};
use sleeping::SleepingQueueJob;

/// Adds (`-Aconf`) or changes (`-Mconf`) the configuration of a host in the file `$2`. An execd that has none yet does not know its version,
/// and asks for it only when that of the cluster changes. So the cluster's is written anew as it is. qmaster
/// does not say whether somebody has changed it in between, so nothing stands between reading and writing.
const PUT: &str = r#""$0" "$1" "$2" || exit
d=$(mktemp -d) || exit
"$0" -sconf global >"$d/global" && "$0" -Mconf "$d/global"
s=$?; rm -r "$d"; exit $s"#;
/// Edits the configuration of the host `$1` by the program `$2` of sed(1). One without lines is removed. execd notices that in the same way.
const EDIT: &str = r#"d=$(mktemp -d) || exit
if "$0" -sconf global >/dev/null && "$0" -sconf "$1" >"$d/was" 2>/dev/null; then
    sed -e :join -e '/\\$/{N;s/, *\\\n */,/;s/ *\\\n */ /;bjoin' -e '}' -e '/^#/d' -e '/^$/d' -e "$2" "$d/was" >"$d/$1" &&
        if [ -s "$d/$1" ]; then "$0" -Mconf "$d/$1"; else "$0" -dconf "$1"; fi &&
        "$0" -sconf global >"$d/global" && "$0" -Mconf "$d/global"
else
    "$0" -sconf global >/dev/null
fi
s=$?; rm -r "$d"; exit $s"#;

/// How long a job needs to begin where nothing stands against it.
const BEGINS: Duration = Duration::from_secs(15);

/// What is known of Grid Engine and of this host in it.
#[derive(Debug, Default)]
struct GridEngineFacts {
    /// What qconf calls itself, such as `SGE 8.1.9`.
    release: String,
    /// The host's name.
    host: String,
    /// What `qconf -sconf` prints of the cluster.
    global: String,
    /// The same of this host. `None`: it has no configuration of its own.
    local: Option<String>,
    /// What `qconf -sc` prints.
    complexes: String,
}

/// No undo waits longer for execd: with a longer load_report_time it starts jobs by jobfence for some time yet.
const LONGEST_REPORT: Duration = Duration::from_secs(90);

/// A line of the host's configuration.
#[derive(Debug, PartialEq, Eq)]
struct HostSetting {
    key: &'static str,
    value: String,
}

impl GridEngineFacts {
    fn read(daemon: &SchedulerDaemon) -> Result<Self, String> {
        let help = daemon.ask(&["qconf", "-help"])?;
        let host = gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let global = daemon.ask(&["qconf", "-sconf", "global"])?;
        let local = match daemon.ask(&["qconf", "-sconf", &host]) {
            Ok(local) => Some(local),
            Err(why) if why.contains("not defined") => None,
            Err(why) => return Err(why),
        };
        let complexes = daemon.ask(&["qconf", "-sc"])?;
        let release = help.lines().next().unwrap_or_default().to_owned();
        Ok(Self { release, host, global, local, complexes })
    }

    /// What holds for this host.
    fn value(&self, key: &str) -> String {
        let local = self.local.as_deref().and_then(|local| value_of(local, key));
        local.or_else(|| value_of(&self.global, key)).unwrap_or_else(|| "none".to_owned())
    }

    fn starts_jobs(&self) -> StartsJobs {
        let shepherd = self.value("shepherd_cmd");
        match is_ours(&shepherd) {
            true => StartsJobs::Yes {
                by: format!("shepherd_cmd is {shepherd}"),
                files: Vec::new(),
                commands: &["^shepherd_cmd "],
            },
            false => StartsJobs::No,
        }
    }

    /// Why nothing is set up, and what the administrator does first.
    fn obstacle(&self) -> Option<String> {
        if self.release.starts_with("OCS 9") || self.release.starts_with("GCS 9") {
            return Some(format!("this is {}, whose jobs jobfence refuses: see docs/limitations.md", self.release));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        if self.host.is_empty() || !self.host.chars().all(is_plain) {
            return Some(format!("the host's name is {:?}, and Grid Engine knows no such host", self.host));
        }
        let shepherd = self.value("shepherd_cmd");
        if !shepherd.eq_ignore_ascii_case("none") && !is_ours(&shepherd) {
            return Some(format!(
                "shepherd_cmd is {shepherd}, and jobfence would take its place: take that setting out first, if this host can do without it"
            ));
        }
        own_cgroups(&self.value("execd_params")).pop()
    }

    /// The complexes of the load sensor that are missing.
    fn missing(&self) -> Vec<&'static str> {
        let known: Vec<String> = Complex::all(&self.complexes).into_iter().map(|complex| complex.name).collect();
        COMPLEXES.into_iter().filter(|name| !known.iter().any(|known| known == name)).collect()
    }

    /// What the configuration of this host lacks. `has_sensor`: whether a list of load sensors has ours.
    fn settings(&self, program: &str, sensor: Option<&str>, has_sensor: &dyn Fn(&str) -> bool) -> Vec<HostSetting> {
        let mut settings = Vec::new();
        if not_ours(&self.value("shepherd_cmd")).is_some() {
            settings.push(HostSetting { key: "shepherd_cmd", value: program.to_owned() });
        }
        let sensors = self.value("load_sensor");
        if let Some(sensor) = sensor.filter(|_| !has_sensor(&sensors)) {
            // qconf breaks long lines, and reads a value up to the first blank.
            let others = sensors.split([',', ' ']).filter(|one| !one.is_empty() && !one.eq_ignore_ascii_case("none"));
            let value = others.chain([sensor]).collect::<Vec<_>>().join(",");
            settings.push(HostSetting { key: "load_sensor", value });
        }
        settings
    }

    /// The host's configuration with these settings.
    fn with(&self, settings: &[HostSetting]) -> String {
        let mut text = String::new();
        let mut is_replaced = false;
        for line in
            self.local.iter().flat_map(|local| local.lines()).filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            // A line that begins with a blank goes on with the one before.
            if !line.starts_with(char::is_whitespace) {
                is_replaced = settings.iter().any(|setting| line.split_whitespace().next() == Some(setting.key));
            }
            if !is_replaced {
                text += &format!("{line}\n");
            }
        }
        for HostSetting { key, value } in settings {
            let _ = writeln!(text, "{key} {value}");
        }
        text
    }

    /// The program of sed(1) that takes these settings back, unless somebody has changed them since.
    fn taken_back(&self, settings: &[HostSetting]) -> String {
        let one = |HostSetting { key, value }: &HostSetting| {
            // qconf breaks a long list behind a comma.
            let ours = format!(r"\|^{key}  *{}$|", escaped(value).replace(',', ", *"));
            match self.local.as_deref().and_then(|local| value_of(local, key)) {
                Some(before) => format!("{ours}s|.*|{key} {}|", escaped(&before.replace(", ", ","))),
                None => format!("{ours}d"),
            }
        };
        settings.iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

/// The execd that runs here, or is installed.
fn daemon(host: &SetupHost) -> Option<SchedulerDaemon> {
    SchedulerDaemon::find(&host.proc, EXECD).or_else(|| {
        let installed = SchedulerDaemon::installed(EXECD, PathBuf::from("/usr/sbin"));
        let has = |program| installed.words(&[program]).is_some();
        (has("sge_execd") && has("qconf")).then_some(installed)
    })
}

/// Whether execd starts each job by this program, by the configuration of this host or of the cluster.
pub fn starts_jobs(host: &SetupHost) -> StartsJobs {
    match daemon(host).map(|daemon| GridEngineFacts::read(&daemon)) {
        Some(Ok(facts)) => facts.starts_jobs(),
        Some(Err(why)) => StartsJobs::Unknown(why),
        None => StartsJobs::No,
    }
}

/// If execd starts jobs by this program now: waits until it must have read that it does so no longer. qmaster knows that at once.
pub fn after_undo(host: &SetupHost) -> Option<AfterUndo> {
    let execd = SchedulerDaemon::find(&host.proc, EXECD)?;
    let before = GridEngineFacts::read(&execd).ok()?;
    matches!(before.starts_jobs(), StartsJobs::Yes { .. }).then(|| {
        let wait = seconds(&before.value("load_report_time")).min(LONGEST_REPORT);
        let after: AfterUndo = Box::new(move || {
            if GridEngineFacts::read(&execd).is_ok_and(|now| matches!(now.starts_jobs(), StartsJobs::No)) {
                std::thread::sleep(wait);
            }
            Ok(None)
        });
        after
    })
}

/// What is to be done on this host. `None`: it is no execution host.
pub fn plan(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
    let Some(daemon) = daemon(host) else { return Ok(None) };
    let facts = match GridEngineFacts::read(&daemon) {
        Ok(facts) => facts,
        Err(why) => {
            let obstacle = Some(format!("qmaster does not say how this host is configured: {why}"));
            return Ok(Some(SetupPlan {
                found: vec!["an execution host of Grid Engine".to_owned()],
                obstacle,
                ..SetupPlan::default()
            }));
        }
    };
    let mut plan = SetupPlan { found: found(&facts, &daemon), obstacle: facts.obstacle(), ..SetupPlan::default() };
    if plan.obstacle.is_some() {
        return Ok(Some(plan));
    }
    plan.steps.extend(SetupStep::service());
    plan.steps.push(SetupStep::condition("a job would be fenced here", |check| check(PlannedCheck::default())));
    let sensor = host.data.join("gridengine/load-sensor");
    let missing = facts.missing();
    if !missing.is_empty() {
        plan.found.push(format!(
            "qmaster does not learn what jobs can have of this host, since it has no {}: docs/install/gridengine.md, Tell Grid Engine what a \
             host has",
            missing.join(", ")
        ));
    } else if !sensor.is_file() {
        plan.found.push(format!(
            "qmaster does not learn what jobs can have of this host, since {} is missing",
            sensor.display()
        ));
    }
    let sensor = sensor.to_str().filter(|_| missing.is_empty() && sensor.is_file());
    let program = host.program.to_str().ok_or("the path of this command is no text")?;
    plan.steps.extend(configuration(&facts, &daemon, program, sensor));
    Ok(Some(plan))
}

/// A job of a queue of this host, when execd has read what it is to start.
pub fn try_job(host: &SetupHost, deadline: Instant) -> JobTried {
    let Some(execd) = SchedulerDaemon::find(&host.proc, EXECD) else {
        return JobTried::NotRun("execd does not run here".to_owned());
    };
    let facts = match GridEngineFacts::read(&execd) {
        Ok(facts) => facts,
        Err(why) => return JobTried::NotRun(why),
    };
    let wait = seconds(&facts.value("load_report_time"));
    if Instant::now() + wait + BEGINS > deadline {
        return JobTried::NotRun(format!(
            "execd reads the change with its next load report, within {} s",
            wait.as_secs()
        ));
    }
    std::thread::sleep(wait);
    JobTried::Asleep(Box::new(SleepingQueueJob(execd, facts.host)))
}

/// A time of Grid Engine's, such as 00:00:40, and a little more.
fn seconds(text: &str) -> Duration {
    let parts = text.split(':').map(|part| part.trim().parse::<u64>().unwrap_or(0));
    Duration::from_secs(parts.fold(0_u64, |all, part| all.saturating_mul(60).saturating_add(part)).saturating_add(3))
}

/// The step about the configuration of this host.
fn configuration(
    facts: &GridEngineFacts,
    daemon: &SchedulerDaemon,
    program: &str,
    sensor: Option<&str>,
) -> Option<SetupStep> {
    let has_sensor = |list: &str| list.split([',', ' ']).any(|program| runs(program, "host").is_ok());
    let settings = facts.settings(program, sensor, &has_sensor);
    let option = if facts.local.is_some() { "-Mconf" } else { "-Aconf" };
    let argv = daemon.script("qconf", PUT, &[option]);
    let run = SetupCommand { argv: argv?, file: Some((facts.host.clone(), facts.with(&settings))) };
    let undo = daemon.script("qconf", EDIT, &[&facts.host, &facts.taken_back(&settings)])?;
    let undo = vec![SetupCommand { argv: undo, file: None }];
    let why = "execd of this host starts each job by jobfence, and asks it what jobs can have; so that execd reads this with its next load \
               report, the cluster's configuration is written anew, too, as it is";
    (!settings.is_empty()).then(|| SetupStep::command(run, undo, false, why).central())
}

fn found(facts: &GridEngineFacts, daemon: &SchedulerDaemon) -> Vec<String> {
    let root = daemon.variable("SGE_ROOT").unwrap_or("/var/lib/gridengine");
    let cell = daemon.variable("SGE_CELL").unwrap_or("default");
    let file = format!("{root}/{cell}/common/act_qmaster");
    let mut found = vec![facts.release.clone()];
    if let Ok(qmaster) = std::fs::read_to_string(&file) {
        found.push(format!("qmaster is on {}, by {file}", qmaster.trim()));
    }
    found.push(format!(
        "shepherd_cmd is {} for {}, by {}",
        facts.value("shepherd_cmd"),
        facts.host,
        if facts.local.as_deref().is_some_and(|local| value_of(local, "shepherd_cmd").is_some()) {
            "its own configuration"
        } else {
            "the cluster's configuration"
        }
    ));
    found
}

/// A text as sed(1) matches it, and as it puts it in, between bars.
fn escaped(text: &str) -> String {
    let is_special = |c: char| r"\.*[]^$|&".contains(c);
    text.chars().flat_map(|c| is_special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What 8.1.9 of Debian 12 has printed, shortened.
    const GLOBAL: &str = "#global:\nexecd_spool_dir              /var/spool/gridengine/execd\nload_sensor                  none\n\
        shepherd_cmd                 none\nexecd_params                 none\n\
        reporting_params             accounting=true reporting=false \\\n                             flush_time=00:00:01\n\
        jsv_url                      none\n\n";
    const LOCAL: &str =
        "#node1:\nmailer                       /bin/mail\nxterm                        /usr/bin/xterm\n\n";
    const ROWS: &str = "#name shortcut type relop requestable consumable default urgency \n#---\n\
        arch                 a                    STRING    ==    YES         NO         NONE     0\n\
        jobfence_mem         jobfence_mem         MEMORY    <=    YES         NO         0        0\n\
        # >#< starts a comment but comments are not saved across edits --------\n";
    const PROGRAM: &str = "/usr/sbin/jobfence";
    const SENSOR: &str = "/usr/share/jobfence/gridengine/load-sensor";

    fn facts(local: Option<&str>) -> GridEngineFacts {
        GridEngineFacts {
            release: "SGE 8.1.9".to_owned(),
            host: "node1".to_owned(),
            global: GLOBAL.to_owned(),
            local: local.map(str::to_owned),
            complexes: ROWS.to_owned(),
        }
    }

    fn settings(facts: &GridEngineFacts) -> Vec<HostSetting> {
        facts.settings(PROGRAM, Some(SENSOR), &|list| list.contains(SENSOR))
    }

    #[test]
    fn a_host_without_a_configuration_gets_one() {
        let facts = facts(None);
        assert_eq!(facts.obstacle(), None);
        let settings = settings(&facts);
        assert_eq!(facts.with(&settings), format!("shepherd_cmd {PROGRAM}\nload_sensor {SENSOR}\n"));
        assert_eq!(facts.missing(), ["jobfence_threads", "jobfence_vmem", "jobfence_free", "jobfence_pressure"]);
    }

    #[test]
    fn what_a_site_has_stays() {
        let sensors = format!("{LOCAL}load_sensor                  /opt/a,/opt/b\n");
        let facts = GridEngineFacts {
            global: GLOBAL.replace("load_sensor                  none", "load_sensor /opt/g"),
            ..facts(Some(&sensors))
        };
        let settings = settings(&facts);
        let lines = "mailer                       /bin/mail\nxterm                        /usr/bin/xterm\n";
        assert_eq!(
            facts.with(&settings),
            format!("{lines}shepherd_cmd {PROGRAM}\nload_sensor /opt/a,/opt/b,{SENSOR}\n")
        );
        // A list of several lines is replaced as a whole.
        let long = GridEngineFacts {
            local: Some("load_sensor /opt/a, \\\n            /opt/b\nmailer /bin/mail\n".to_owned()),
            ..facts
        };
        let settings = [HostSetting { key: "load_sensor", value: "x".to_owned() }];
        assert_eq!(long.with(&settings), "mailer /bin/mail\nload_sensor x\n");
        // The sensors of the cluster go on.
        let global = GridEngineFacts { local: None, ..long };
        assert_eq!(global.settings(PROGRAM, Some(SENSOR), &|_| false)[1].value, format!("/opt/g,{SENSOR}"));
        assert_eq!(global.settings(PROGRAM, None, &|_| false).len(), 1);
    }

    #[test]
    fn what_stands_in_the_way_is_said() {
        let with = |from: &str, to: &str| {
            GridEngineFacts { global: GLOBAL.replace(from, to), ..facts(None) }.obstacle().unwrap()
        };
        assert!(
            with("shepherd_cmd                 none", "shepherd_cmd /opt/s").starts_with("shepherd_cmd is /opt/s, ")
        );
        assert!(
            with("execd_params                 none", "execd_params USE_CGROUPS=yes")
                .contains("USE_CGROUPS=yes: execd")
        );
        let relative = GridEngineFacts { release: "OCS 9.0.1".to_owned(), ..facts(None) };
        assert!(relative.obstacle().unwrap().starts_with("this is OCS 9.0.1, "));
        let odd = GridEngineFacts { host: "a b".to_owned(), ..facts(None) };
        assert!(odd.obstacle().is_some());
    }

    #[test]
    fn what_the_host_has_counts_before_what_the_cluster_has() {
        let global = GLOBAL.replace("shepherd_cmd                 none", "shepherd_cmd /opt/sbin/jobfence");
        let of = |local: Option<&str>| GridEngineFacts { global: global.clone(), ..facts(local) }.starts_jobs();
        assert!(matches!(of(None), StartsJobs::Yes { by, .. } if by == "shepherd_cmd is /opt/sbin/jobfence"));
        assert_eq!(of(Some("shepherd_cmd none\n")), StartsJobs::No);
        assert_eq!(facts(None).starts_jobs(), StartsJobs::No);
        let own = facts(Some("shepherd_cmd /usr/sbin/jobfence\n")).starts_jobs();
        let StartsJobs::Yes { commands, .. } = own else { panic!() };
        let undo =
            |facts: &GridEngineFacts| commands.iter().all(|word| facts.taken_back(&settings(facts)).contains(word));
        assert!(undo(&facts(None)) && !undo(&facts(Some("shepherd_cmd /proc/self/exe\n"))));
    }

    #[test]
    fn a_time_of_theirs_is_understood() {
        assert_eq!(seconds("00:00:40").as_secs(), 43);
        assert_eq!(seconds("0:1:5").as_secs(), 68);
    }

    /// Runs a script with a qconf that keeps two files, and returns the configuration of the host after it.
    fn edited(local: Option<&str>, program: &str) -> Option<String> {
        let top = tempfile::tempdir().unwrap();
        let (qconf, conf) = (top.path().join("qconf"), top.path().join("conf"));
        let script = format!(
            "#!/bin/sh\ncase $1$2 in -sconfglobal) cat {c}.global ;; -sconf*) cat {c} ;; -Mconf*/global) cp $2 {c}.global ;; *) echo meanwhile \
             >>{c}.global ;; esac || exit\ncase $1$2 in -Mconf*/node1) cp $2 {c} ;; -dconf*) rm {c} ;; esac\n",
            c = conf.display()
        );
        std::fs::write(&qconf, script).unwrap();
        let global = conf.with_extension("global");
        std::fs::write(&global, "all\n").unwrap();
        if let Some(local) = local {
            std::fs::write(&conf, local).unwrap();
        }
        let argv = ["-c", EDIT, "sh", "node1", program];
        let argv = argv.map(|word| if word == "sh" { qconf.to_str().unwrap() } else { word });
        std::fs::set_permissions(&qconf, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(Command::new("sh").args(argv).status().unwrap().success());
        // What somebody changes in the cluster's configuration stays.
        let expected = if local.is_some() { "all\nmeanwhile\n" } else { "all\n" };
        assert_eq!(std::fs::read_to_string(global).unwrap(), expected);
        std::fs::read_to_string(conf).ok()
    }

    #[test]
    fn it_is_taken_back_exactly() {
        let none = facts(None);
        let ours = settings(&none);
        let after = none.with(&ours).replace(' ', "   ");
        assert_eq!(edited(Some(&format!("#node1:\n{after}\n")), &none.taken_back(&ours)), None);
        assert_eq!(edited(None, &none.taken_back(&ours)), None);
        // A line that somebody else has added since then is kept.
        let more = format!("{after}mailer /bin/mail\n");
        assert_eq!(edited(Some(&more), &none.taken_back(&ours)).as_deref(), Some("mailer /bin/mail\n"));
        let before = facts(Some("mailer /bin/mail\nload_sensor /opt/a&b,/opt/c\n"));
        let ours = settings(&before);
        let back = edited(Some(&before.with(&ours)), &before.taken_back(&ours));
        assert_eq!(back.as_deref(), Some("mailer /bin/mail\nload_sensor /opt/a&b,/opt/c\n"));
        // As qconf 8.1.9 prints a long list.
        let broken = before.with(&ours).replace("/opt/c,", "/opt/c, \\\n                             ");
        assert!(broken.contains("\\\n"), "{broken}");
        assert_eq!(edited(Some(&broken), &before.taken_back(&ours)), back);
        // Grid Engine reads a value up to the first blank.
        let theirs = broken.replace(SENSOR, "/opt/theirs");
        let kept = edited(Some(&theirs), &before.taken_back(&ours)).unwrap();
        assert!(kept.contains("load_sensor /opt/a&b,/opt/c,/opt/theirs\n"), "{kept}");
        // What somebody has changed since is theirs.
        let changed = before.with(&ours).replace(&format!("shepherd_cmd {PROGRAM}"), "shepherd_cmd /opt/other");
        assert!(edited(Some(&changed), &before.taken_back(&ours)).unwrap().contains("shepherd_cmd /opt/other\n"));
    }
}
