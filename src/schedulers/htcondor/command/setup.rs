// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence setup` does on a host of HTCondor's, as docs/install/htcondor.md says: it writes one file of the configuration, and has the
//! daemons of this host read that. Nothing is restarted.

mod sleeping;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jobfence::requests;
use jobfence::schedulers::htcondor::asked;
use jobfence::sys::dir::Dir;

use super::check::{SCHEDD, STARTD, WHOSE, value_in};
use super::monitor;
use crate::check::daemon::{SchedulerDaemon, is_ours, not_ours};
use crate::command::Failure;
use crate::configured::Configured;
use crate::part::{AfterUndo, StartsJobs};
use crate::setup::plan::{
    Checker, JobTried, PlannedCheck, SetupAction, SetupCommand, SetupHost, SetupPlan, SetupStep, is_shared,
};
use sleeping::SleepingSlotJob;

/// The name of the file. HTCondor reads the files of a directory in the order of their names, and of two lines the later one counts.
const FILE: &str = "90-jobfence.conf";
const HEAD: &str = "# Written by 'jobfence setup'. 'jobfence setup --undo' takes it back.\n";

/// The first release with which jobfence works.
const LEAST: (u32, u32) = (23, 9);

/// The settings that are looked up.
const KEYS: [&str; 6] =
    ["STARTER", "STARTER_LOCAL", "STARTD_JOB_ATTRS", "STARTD_CRON_JOBLIST", "START", "LOCAL_CONFIG_DIR"];

/// The daemons that start jobs, each with the option by which it is asked, and the setting that names the program.
const STARTERS: [(&str, &str, &str); 2] = [("STARTD", "-startd", "STARTER"), ("SCHEDD", "-schedd", "STARTER_LOCAL")];

/// What is known of HTCondor on this host.
#[derive(Debug, Default)]
struct CondorFacts {
    /// Such as `23.9.6`.
    release: String,
    /// The daemons that the master starts here.
    daemons: String,
    /// The settings, as `condor_config_val -macro` prints them.
    settings: String,
    /// The names in `STARTD_CRON_JOBLIST` whose program is jobfence.
    ours_in_cron: Vec<String>,
    /// What our file has now. Empty: there is none.
    file: String,
}

impl CondorFacts {
    fn read(daemon: &SchedulerDaemon) -> Result<Self, String> {
        let mut words = ["condor_config_val", "-subsystem", "STARTD", "-macro"].map(str::to_owned).to_vec();
        words.extend(KEYS.iter().map(|key| format!("{key} = $({key})")));
        let settings = daemon.ask(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut facts = Self {
            release: release(&daemon.ask(&["condor_version"])?).to_owned(),
            daemons: daemon.ask(&["condor_config_val", "DAEMON_LIST"])?,
            settings,
            ..Self::default()
        };
        let has_ours = |name: &&str| {
            let key = format!("STARTD_CRON_{name}_EXECUTABLE");
            daemon.ask(&["condor_config_val", &key]).is_ok_and(|program| not_ours(program.trim()).is_none())
        };
        let ours = words_of(&facts.value("STARTD_CRON_JOBLIST")).filter(has_ours).map(str::to_owned).collect();
        facts.ours_in_cron = ours;
        facts.file = match facts.path().map(fs::read) {
            Some(Ok(text)) => String::from_utf8_lossy(&text).into_owned(),
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => return Err(format!("read its {FILE}: {error}")),
            _ => String::new(),
        };
        Ok(facts)
    }

    fn value(&self, key: &str) -> String {
        value_in(&self.settings, key)
    }

    fn starts(&self, daemon: &str) -> bool {
        words_of(&self.daemons).any(|name| name.eq_ignore_ascii_case(daemon))
    }

    /// Our file, in the last directory, which counts before the others. `None`: HTCondor reads no directory.
    fn path(&self) -> Option<PathBuf> {
        words_of(&self.value("LOCAL_CONFIG_DIR")).last().map(|directory| Path::new(directory).join(FILE))
    }

    /// The file as it should be: what the configuration lacks without it. Empty: nothing.
    fn wanted(&self, program: &str, is_ours: &dyn Fn(&str) -> bool) -> String {
        let (jobs, own) = (self.starts("STARTD"), self.starts("SCHEDD"));
        let mut text = String::new();
        for (key, lines) in pieces(program) {
            let value = self.value(key);
            let lists = |name: &String| words_of(&value).any(|found| found.eq_ignore_ascii_case(name));
            let is_done = match key {
                "STARTD_JOB_ATTRS" => attributes().iter().all(lists),
                "STARTD_CRON_JOBLIST" => !self.ours_in_cron.is_empty(),
                // Without START, HTCondor would not understand the line.
                "START" => value.is_empty() || value.to_ascii_lowercase().contains("jobfencehealthy"),
                _ => is_ours(&value),
            };
            let is_here = if key == "STARTER_LOCAL" { own } else { jobs };
            if is_here && (!is_done || self.has_line(key)) {
                text.push_str(&lines);
            }
        }
        if text.is_empty() { text } else { format!("{HEAD}{text}") }
    }

    /// The configuration tells it, or else what a daemon has read of it.
    fn starts_jobs(&self, read: impl Fn(&str, &str) -> Option<String>) -> StartsJobs {
        let here = STARTERS.iter().filter(|(daemon, ..)| self.starts(daemon));
        let found = here.into_iter().find_map(|(_, option, key)| {
            let now = [Some(self.value(key)), read(option, key)].into_iter().flatten();
            Some((key, now.into_iter().find(|value| is_ours(value.trim()))?))
        });
        let Some((key, value)) = found else { return StartsJobs::No };
        let files = self.path().into_iter().filter(|_| self.has_line(key)).collect();
        StartsJobs::Yes { by: format!("{key} is {}", value.trim()), files, commands: &[] }
    }

    /// Whether our file sets it.
    fn has_line(&self, key: &str) -> bool {
        self.file.lines().any(|line| line.split('=').next().is_some_and(|at| at.trim() == key))
    }

    /// Why the file is not written, and what the administrator does first.
    fn obstacle(&self, is_ours: &dyn Fn(&str) -> bool) -> Option<String> {
        let mut numbers = self.release.split('.').map(|number| number.parse().unwrap_or(0));
        if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < LEAST {
            let (major, minor) = LEAST;
            return Some(format!("this is HTCondor {}, and jobfence needs {major}.{minor} or later", self.release));
        }
        let is_own = self.file.strip_prefix(HEAD).is_some_and(|lines| lines.lines().all(is_own));
        if let Some(path) = self.path().filter(|_| !self.file.is_empty() && !is_own) {
            return Some(format!(
                "{} has lines that are not of 'jobfence setup': move them to another file, such as 95-site.conf, and run this again",
                path.display()
            ));
        }
        for (daemon, _, key) in STARTERS {
            let value = self.value(key);
            let is_stock =
                value.is_empty() || Path::new(&value).file_name().is_some_and(|name| name == "condor_starter");
            if self.starts(daemon) && !is_stock && !is_ours(&value) && !self.file.contains(&value) {
                return Some(format!(
                    "{key} is {value}, and jobfence would take its place: take that setting out first, if this host can do without it"
                ));
            }
        }
        self.path().is_none().then(|| {
            "HTCondor reads no directory of files (LOCAL_CONFIG_DIR): add to its configuration the lines that docs/install/htcondor.md \
             has"
                .to_owned()
        })
    }
}

/// All that the file can have: the key that says whether the configuration has it already, and the lines.
fn pieces(program: &str) -> [(&'static str, String); 5] {
    [
        ("STARTER", format!("STARTER = {program}\n")),
        ("STARTER_LOCAL", format!("STARTER_LOCAL = {program}\n")),
        ("STARTD_JOB_ATTRS", format!("STARTD_JOB_ATTRS = $(STARTD_JOB_ATTRS) {}\n", attributes().join(" "))),
        (
            "STARTD_CRON_JOBLIST",
            format!(
                "STARTD_CRON_JOBLIST = $(STARTD_CRON_JOBLIST) JOBFENCE\n\
                 STARTD_CRON_JOBFENCE_EXECUTABLE = {program}\n\
                 STARTD_CRON_JOBFENCE_ARGS = host --htcondor\n\
                 STARTD_CRON_JOBFENCE_PERIOD = 1m\n\
                 STARTD_CRON_JOBFENCE_METRICS = PEAK:JobfenceMemory, PEAK:JobfenceCache, PEAK:JobfenceCpuTime\n"
            ),
        ),
        ("START", "START = ($(START)) && (JobfenceHealthy =!= False)\n".to_owned()),
    ]
}

/// What jobfence reads in a slot's ad.
fn attributes() -> Vec<String> {
    WHOSE.into_iter().map(str::to_owned).chain(requests::everywhere().map(asked::attribute)).collect()
}

/// Whether this command has written a line, also of another release or at another place.
fn is_own(line: &str) -> bool {
    let Some((key, value)) = line.split_once(" = ") else { return false };
    let is_asked = |word: &str| WHOSE.contains(&word) || word.starts_with("Jobfence");
    let is_written_as = |own: &str| match own.split_once(" = ") {
        Some((own, "")) => own == key && is_ours(value),
        Some((own @ "STARTD_JOB_ATTRS", _)) => {
            own == key && value.strip_prefix("$(STARTD_JOB_ATTRS) ").is_some_and(|list| words_of(list).all(is_asked))
        }
        _ => own == line,
    };
    pieces("").iter().flat_map(|(_, lines)| lines.lines()).any(is_written_as)
}

/// What is to be done on this host. `None`: HTCondor starts no job here.
pub fn plan(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
    let Some((daemon, runs)) = daemon(&host.proc) else { return Ok(None) };
    let facts = match CondorFacts::read(&daemon) {
        Ok(facts) => facts,
        Err(_) if !runs => return Ok(None),
        Err(why) => return Err(format!("HTCondor does not say how it is configured: {why}").into()),
    };
    if !facts.starts("STARTD") && !facts.starts("SCHEDD") {
        return Ok(None);
    }
    let program = host.program.to_str().ok_or("the path of this command is no text")?;
    let is_ours = |value: &str| not_ours(value).is_none();
    let read = daemon.ask(&["condor_config_val", "-config"]).unwrap_or_default();
    let mut plan =
        SetupPlan { found: found(&facts, &read), obstacle: facts.obstacle(&is_ours), ..SetupPlan::default() };
    let (None, Some(path)) = (&plan.obstacle, facts.path()) else { return Ok(Some(plan)) };
    let wanted = facts.wanted(program, &is_ours);
    plan.steps.extend(SetupStep::service());
    plan.steps.push(SetupStep::condition("a job would be fenced here", can_fence));
    let reconfigure = runs.then(|| daemon.words(&["condor_reconfig"])).flatten();
    plan.steps.extend(steps(&path, &facts.file, wanted, is_shared(&path), reconfigure, || in_effect(&daemon, &facts)));
    Ok(Some(plan))
}

/// The file, and the command by which the daemons that run read it.
fn steps(
    path: &Path,
    has: &str,
    wanted: String,
    is_shared: bool,
    reconfigure: Option<Vec<String>>,
    in_effect: impl Fn() -> bool,
) -> Vec<SetupStep> {
    let is_written = wanted == has;
    let mut steps = Vec::new();
    if !wanted.is_empty() {
        steps.push(SetupStep::file(path, wanted, "HTCondor starts each job by jobfence, and hears what the host has"));
    }
    if let Some(argv) = reconfigure {
        let run = SetupCommand { argv, file: None };
        let why = "the daemons here read it; none is started anew, and jobs go on";
        steps.push(SetupStep::command(run, Vec::new(), is_written && in_effect(), why));
    }
    // There is nothing to read before somebody has written the file for all hosts.
    let is_central = |step: &SetupStep| is_shared && (!is_written || matches!(step.action, SetupAction::File(_)));
    steps.into_iter().map(|step| if is_central(&step) { step.central() } else { step }).collect()
}

/// Whether the startd or the schedd starts jobs by this program, or will when it reads its configuration.
pub fn starts_jobs(host: &SetupHost) -> StartsJobs {
    let Some((daemon, runs)) = daemon(&host.proc) else { return StartsJobs::No };
    match CondorFacts::read(&daemon) {
        Ok(facts) => {
            facts.starts_jobs(|option, key| daemon.ask(&["condor_config_val", option, key]).ok().filter(|_| runs))
        }
        Err(why) if runs => StartsJobs::Unknown(why),
        Err(_) => StartsJobs::No,
    }
}

/// Whether jobs can be fenced here, whatever starts them until now.
fn can_fence(check: Checker<'_>) -> Result<bool, Failure> {
    if let Some(Err(why)) = monitor::health(&Configured { config: None, overrides: Vec::new() }) {
        return Err(format!("no job could be fenced here: {why}").into());
    }
    check(PlannedCheck::default())
}

/// Has the daemons read the configuration without our file.
pub fn after_undo(host: &SetupHost) -> Option<AfterUndo> {
    let (daemon, _) = daemon(&host.proc).filter(|(_, runs)| *runs)?;
    let facts = CondorFacts::read(&daemon).ok()?;
    (!facts.file.is_empty()).then(|| -> AfterUndo {
        Box::new(move || {
            let failed = daemon.ask(&["condor_reconfig"]).err();
            Ok(failed.map(|why| {
                format!(
                    "the daemons start jobs by jobfence until they read their configuration, and condor_reconfig has failed: {why}: run \
                     condor_reconfig before jobfence.service is stopped, and before jobfence is removed"
                )
            }))
        })
    })
}

/// A job of a slot of this host.
pub fn try_job(host: &SetupHost) -> JobTried {
    match daemon(&host.proc) {
        Some((daemon, true)) => JobTried::Asleep(Box::new(SleepingSlotJob(daemon))),
        _ => JobTried::NotRun("HTCondor does not run here".to_owned()),
    }
}

/// The daemon whose configuration it is, and whether it runs.
fn daemon(proc: &Dir) -> Option<(SchedulerDaemon, bool)> {
    let running = SchedulerDaemon::find(proc, STARTD).or_else(|| SchedulerDaemon::find(proc, SCHEDD));
    if let Some(daemon) = running {
        return Some((daemon, true));
    }
    let installed = SchedulerDaemon::installed(STARTD, PathBuf::from("/usr/sbin"));
    installed.words(&["condor_config_val"]).is_some().then_some((installed, false))
}

/// Whether the daemons that run have read the file. One that does not say so is believed to have.
fn in_effect(daemon: &SchedulerDaemon, facts: &CondorFacts) -> bool {
    STARTERS.iter().all(|(name, option, key)| {
        let said = facts.starts(name).then(|| daemon.ask(&["condor_config_val", option, key]));
        said.is_none_or(|said| said.is_err() || said.is_ok_and(|value| value.trim() == facts.value(key)))
    })
}

fn found(facts: &CondorFacts, read: &str) -> Vec<String> {
    let mut found = vec![format!("HTCondor {}", facts.release)];
    let files: Vec<&str> = read.lines().filter(|line| line.starts_with(char::is_whitespace)).map(str::trim).collect();
    found
        .push(format!("it reads {}", files.into_iter().filter(|file| !file.is_empty()).collect::<Vec<_>>().join(", ")));
    let does = [("STARTD", "runs jobs"), ("SCHEDD", "has a schedd, whose local jobs run here")];
    let does: Vec<&str> = does.into_iter().filter(|(name, _)| facts.starts(name)).map(|(_, what)| what).collect();
    found.push(format!("this host {}", does.join(", and ")));
    found
}

/// The number in `$CondorVersion: 23.9.6 2026-07-12 … $`.
fn release(text: &str) -> &str {
    text.split_whitespace().nth(1).unwrap_or_default()
}

/// The words of a list, which commas and blanks separate.
fn words_of(list: &str) -> impl Iterator<Item = &str> {
    list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "/usr/sbin/jobfence";

    /// What 23.9.6 of Debian 13 has printed on a host with all daemons.
    fn stock() -> CondorFacts {
        CondorFacts {
            release: release("$CondorVersion: 23.9.6 2026-07-12 PackageID: 23.9.6+dfsg-2.1+b10 $\n").to_owned(),
            daemons: "MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD\n".to_owned(),
            settings: "STARTER = /usr/sbin/condor_starter\nSTARTER_LOCAL = /usr/sbin/condor_starter\nSTARTD_JOB_ATTRS = \n\
                       STARTD_CRON_JOBLIST = \nSTART = True\nLOCAL_CONFIG_DIR = /usr/share/condor/config.d,/etc/condor/config.d\n"
                .to_owned(),
            ..CondorFacts::default()
        }
    }

    /// The same after the file was written.
    fn set_up() -> CondorFacts {
        let file = stock().wanted(PROGRAM, &is_ours);
        let before = stock().settings;
        let value = |key: &str| value_in(&before, key);
        let settings = file.lines().filter_map(|line| {
            let (key, value_of) = line.split_once(" = ")?;
            Some(format!("{key} = {}\n", value_of.replace(&format!("$({key})"), &value(key))))
        });
        let settings = before.clone() + &settings.collect::<String>();
        CondorFacts { settings, ours_in_cron: vec!["JOBFENCE".to_owned()], file, ..stock() }
    }

    fn is_ours(value: &str) -> bool {
        value == PROGRAM
    }

    #[test]
    fn a_stock_host_gets_all_of_the_page() {
        let facts = stock();
        assert_eq!(facts.path(), Some("/etc/condor/config.d/90-jobfence.conf".into()));
        assert_eq!(facts.obstacle(&is_ours), None);
        let wanted = facts.wanted(PROGRAM, &is_ours);
        let keys: Vec<&str> = wanted.lines().skip(1).filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        let expected = [
            "STARTER",
            "STARTER_LOCAL",
            "STARTD_JOB_ATTRS",
            "STARTD_CRON_JOBLIST",
            "STARTD_CRON_JOBFENCE_EXECUTABLE",
            "STARTD_CRON_JOBFENCE_ARGS",
            "STARTD_CRON_JOBFENCE_PERIOD",
            "STARTD_CRON_JOBFENCE_METRICS",
            "START",
        ];
        assert_eq!(keys, expected);
        // A macro is text, and && binds more than || in the site's expression.
        assert!(wanted.contains("\nSTART = ($(START)) && ("), "{wanted}");
        // Each line but those of another program is word by word on the page.
        let page = include_str!("../../../../docs/install/htcondor.md").replace("\\\n    ", "");
        for line in wanted.lines().filter(|line| !line.starts_with('#')) {
            let line = line.replace(PROGRAM, "/usr/local/sbin/jobfence");
            assert!(page.contains(&line), "{line}");
        }
    }

    #[test]
    fn the_second_time_nothing_changes() {
        let facts = set_up();
        assert_eq!(facts.wanted(PROGRAM, &is_ours), facts.file);
        assert_eq!(facts.obstacle(&is_ours), None);
        // After the program has moved, the file follows, and the old value in it is no obstacle.
        let moved = |value: &str| value == "/opt/sbin/jobfence";
        assert_eq!(facts.obstacle(&moved), None);
        assert_eq!(facts.wanted("/opt/sbin/jobfence", &moved), facts.file.replace(PROGRAM, "/opt/sbin/jobfence"));
    }

    #[test]
    fn lines_of_others_are_not_overwritten() {
        let with = |file: String| CondorFacts { file, ..set_up() }.obstacle(&is_ours);
        let file = set_up().file;
        let changed = [
            file.replace(HEAD, ""),
            format!("{file}DOCKER = /usr/local/libexec/jobfence/htcondor-docker\n"),
            format!("{file}# why\n"),
            file.replace("PERIOD = 1m", "PERIOD = 5m"),
            file.replace(&format!("STARTER = {PROGRAM}"), "STARTER = /opt/wrapper"),
            file.replace("$(STARTD_JOB_ATTRS) ", "$(STARTD_JOB_ATTRS) Department "),
            file.replace("$(STARTD_JOB_ATTRS) ", ""),
        ];
        for other in changed {
            assert_ne!(other, file);
            let why = with(other.clone()).unwrap_or_else(|| panic!("{other}"));
            assert!(why.starts_with("/etc/condor/config.d/90-jobfence.conf has lines that are not of "), "{why}");
        }
        // Those of another release, and of another place.
        assert_eq!(with(file.replace(PROGRAM, "/opt/sbin/jobfence").replace("JobfenceCpuLimit", "JobfenceNew")), None);
        assert_eq!(with(file.replace(" JobfenceCpuLimit", "")), None);
    }

    #[test]
    fn what_the_site_has_done_is_left_alone() {
        let by_hand = CondorFacts { file: String::new(), ..set_up() };
        assert_eq!(by_hand.wanted(PROGRAM, &is_ours), "");
        let schedd = CondorFacts { daemons: "MASTER, SCHEDD\n".to_owned(), ..stock() };
        assert_eq!(schedd.wanted(PROGRAM, &is_ours), format!("{HEAD}STARTER_LOCAL = {PROGRAM}\n"));
        let without = CondorFacts { settings: stock().settings.replace("START = True\n", "START = \n"), ..stock() };
        assert!(!without.wanted(PROGRAM, &is_ours).contains("\nSTART ="));
    }

    #[test]
    fn what_a_daemon_has_read_counts_beside_the_configuration() {
        let starts = |facts: CondorFacts, now: &str| match facts.starts_jobs(|_, _| Some(now.to_owned())) {
            StartsJobs::Yes { by, files, .. } => format!("{by} {}", files.len()),
            other => format!("{other:?}"),
        };
        let stock_starter = "/usr/sbin/condor_starter";
        assert_eq!(starts(set_up(), stock_starter), "STARTER is /usr/sbin/jobfence 1");
        assert_eq!(starts(stock(), stock_starter), "No");
        // It has not read yet that the file is gone.
        assert_eq!(starts(stock(), "/usr/sbin/jobfence\n"), "STARTER is /usr/sbin/jobfence 0");
        let by_hand = CondorFacts { file: String::new(), ..set_up() };
        assert_eq!(starts(by_hand, stock_starter), "STARTER is /usr/sbin/jobfence 0");
        let schedd = || CondorFacts { daemons: "SCHEDD".to_owned(), ..set_up() };
        assert_eq!(starts(schedd(), stock_starter), "STARTER_LOCAL is /usr/sbin/jobfence 1");
        assert_eq!(starts(CondorFacts { daemons: "MASTER".to_owned(), ..set_up() }, "/usr/sbin/jobfence"), "No");
    }

    #[test]
    fn a_file_of_all_hosts_is_read_when_somebody_has_written_it() {
        let central = |has: &str, is_shared| {
            let reconfigure = Some(vec!["condor_reconfig".to_owned()]);
            let steps = steps(Path::new("/x"), has, "STARTER = x".to_owned(), is_shared, reconfigure, || false);
            steps.iter().map(|step| step.is_central).collect::<Vec<_>>()
        };
        assert_eq!(central("", false), [false, false]);
        assert_eq!(central("", true), [true, true]);
        assert_eq!(central("STARTER = x", true), [true, false]);
    }

    #[test]
    fn another_starter_is_not_replaced() {
        let other = CondorFacts {
            settings: stock().settings.replacen("/usr/sbin/condor_starter", "/opt/wrapper", 1),
            ..stock()
        };
        assert!(other.obstacle(&is_ours).unwrap().starts_with("STARTER is /opt/wrapper, "));
        let schedd = CondorFacts { daemons: "SCHEDD".to_owned(), ..other };
        assert_eq!(schedd.obstacle(&is_ours), None);
        let old = CondorFacts { release: "23.0.14".to_owned(), ..stock() };
        assert_eq!(old.obstacle(&is_ours).unwrap(), "this is HTCondor 23.0.14, and jobfence needs 23.9 or later");
        let none = CondorFacts {
            settings: stock().settings.replace("/usr/share/condor/config.d,/etc/condor/config.d", ""),
            ..stock()
        };
        assert!(none.obstacle(&is_ours).unwrap().contains("LOCAL_CONFIG_DIR"));
    }
}
