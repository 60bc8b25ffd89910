// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence setup`: does what the page of each scheduler tells to do on a node, and takes it back.
//!
//! Each scheduler's part plans, and changes nothing. All of it is shown before anything is done. What is done is recorded first: `journal`.

mod apply;
mod journal;
pub mod plan;
mod real_job;
pub mod sleeping_job;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use diffy::DiffOptions;
use jobfence::printable::printable_lines;
use jobfence::sys::dir::Dir;

use crate::check;
use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::part::SchedulersPart;
use crate::schedulers::ALL;
use crate::systemd::SERVICE;
use apply::LookedAtStep;
use journal::{MadeChange, SetupEntry, SetupJournal};
use plan::{JobTried, SetupAction, SetupHost};

/// The exit status if something was changed, or would be.
const CHANGED: u8 = 2;

/// How long the real job of each scheduler may take.
const JOB: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct SetupOptions {
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Take back what 'jobfence setup' has done
    ///
    /// Each file becomes what it was before, unless somebody has changed it since. Such a file stays, and the command names it.
    #[arg(long)]
    undo: bool,
    /// Only for this scheduler: slurm, gridengine, openpbs or htcondor [default: all that are here]
    ///
    /// May be repeated.
    #[arg(long, value_name = "NAME")]
    scheduler: Vec<String>,
    /// Do what reaches more than this node, too
    ///
    /// Such steps are commands for the scheduler's server, and files that nodes share. They are otherwise only shown.
    #[arg(long)]
    central: bool,
    /// Where the changes are recorded
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/jobfence/setup", hide = true)]
    journal: PathBuf,
    /// Let the schedulers start this program, also if others than root can replace it: for tests
    #[arg(long, hide = true)]
    any_program: bool,
    /// Where the scheduler's files of this installation are
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    data: Option<PathBuf>,
}

/// A scheduler that is here.
struct FoundScheduler {
    part: &'static dyn SchedulersPart,
    config: Option<PathBuf>,
    is_bystander: bool,
    /// What is to be done, or the one thing that the administrator has to do before.
    steps: Result<Vec<LookedAtStep>, String>,
}

/// What came of everything.
#[derive(Default)]
struct Outcome {
    is_changed: bool,
    /// What has gone well.
    good: Vec<String>,
    /// What the administrator has to do.
    to_do: Vec<String>,
}

/// 0: nothing to change; 2: changed, or undone, or with `--dry-run` it would be; 1: failed, or the administrator has to do something.
pub fn setup(options: &SetupOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence setup'")?;
    let parts = chosen(&options.scheduler)?;
    let program = std::env::current_exe().map_err(|error| format!("where this command is cannot be seen: {error}"))?;
    if !options.undo && !options.any_program {
        only_roots(&program)?;
    }
    let data = || program.ancestors().nth(2).unwrap_or(Path::new("/usr")).join("share/jobfence");
    let data = options.data.clone().unwrap_or_else(data);
    let host = SetupHost { proc: Dir::open("/proc")?, program, data };
    let outcome = match (options.undo, options.dry_run) {
        (true, true) => would_undo(options, &parts)?,
        (true, false) => undo(options, &host, &parts)?,
        (false, true) => would_do(&look(&host, &parts, options)?, options.central),
        (false, false) => {
            let mut journal = SetupJournal::open(&options.journal)?;
            let outcome = look(&host, &parts, options).and_then(|found| act(&host, &mut journal, &found, options));
            journal.close();
            outcome?
        }
    };
    Ok(outcome.say(options))
}

/// A scheduler's daemon starts this program as root, so nobody else may put another in its place.
fn only_roots(program: &Path) -> Result<(), Failure> {
    for path in program.ancestors() {
        let found = path.symlink_metadata().map_err(|error| format!("look at {}: {error}", path.display()))?;
        // In a sticky directory, others cannot replace root's. The group of Debian's /usr/local is that of those who may install.
        let open = if found.is_dir() { if found.mode() & 0o1000 == 0 { 0o002 } else { 0 } } else { 0o022 };
        if found.uid() != 0 || found.mode() & open != 0 {
            return Err(format!(
                "others than root can change {}, and root's daemons would start {}: install jobfence where only root can, and run \
                 'jobfence setup' of there",
                path.display(),
                program.display()
            )
            .into());
        }
    }
    Ok(())
}

impl Outcome {
    /// The last line, and the exit status.
    fn say(self, options: &SetupOptions) -> ExitCode {
        if !self.to_do.is_empty() {
            say("to do", &self.to_do.join("; "));
            return ExitCode::FAILURE;
        }
        let word = match (self.is_changed, options.undo, options.dry_run) {
            (true, _, true) => "would change",
            (true, true, false) => "undone",
            (true, false, false) => "set up",
            (false, ..) => "unchanged",
        };
        let good = if self.good.is_empty() { "nothing is to be done".to_owned() } else { self.good.join("; ") };
        say(word, &good);
        if self.is_changed { ExitCode::from(CHANGED) } else { ExitCode::SUCCESS }
    }
}

fn say(label: &str, text: &str) {
    println!("{label:<14} {}", printable_lines(text, '?'));
}

/// The name by which `--scheduler` knows it.
fn word(part: &dyn SchedulersPart) -> String {
    part.name().to_lowercase().replace(' ', "")
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn SchedulersPart>, Failure> {
    let is_known = |name: &String| ALL.iter().any(|part| word(*part) == name.to_lowercase());
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<String> = ALL.iter().map(|part| word(*part)).collect();
        return Err(format!("--scheduler: {unknown:?} is none of {}", known.join(", ")).into());
    }
    let is_chosen =
        |part: &&dyn SchedulersPart| names.is_empty() || names.iter().any(|name| name.to_lowercase() == word(*part));
    Ok(ALL.iter().copied().filter(is_chosen).collect())
}

/// Asks the parts what is here and to be done, and shows all of it.
fn look(
    host: &SetupHost,
    parts: &[&'static dyn SchedulersPart],
    options: &SetupOptions,
) -> Result<Vec<FoundScheduler>, Failure> {
    let mut all = Vec::new();
    for part in parts {
        let label = word(*part);
        let plan = match part.plan(host) {
            Ok(Some(plan)) => plan,
            Ok(None) if options.scheduler.is_empty() => continue,
            Ok(None) => return Err(format!("{} was not found on this host", part.name()).into()),
            // The others of the host are set up all the same.
            Err(why) => {
                let steps = Err(why.to_string());
                all.push(FoundScheduler { part: *part, config: None, is_bystander: false, steps });
                continue;
            }
        };
        plan.found.iter().for_each(|found| say(&label, found));
        let (config, is_bystander) = (plan.config.clone(), plan.is_bystander);
        let steps = match plan.obstacle.clone() {
            Some(obstacle) => Err(obstacle),
            None => apply::see(plan).map_err(|error| error.to_string()),
        };
        steps.iter().flatten().for_each(|seen| show(seen, options.central));
        all.push(FoundScheduler { part: *part, config, is_bystander, steps });
    }
    if all.is_empty() {
        let known: Vec<&str> = parts.iter().map(|part| part.name()).collect();
        return Err(format!("no scheduler was found on this host: looked for {}", known.join(", ")).into());
    }
    Ok(all)
}

fn show(seen: &LookedAtStep, central: bool) {
    let step = &seen.step;
    let label = match (&step.action, seen.is_done, step.is_central) {
        (SetupAction::Remark, ..) => return say("by hand", &step.why),
        (SetupAction::Condition(_), ..) => return say("if", &step.why),
        (_, true, _) => "as it should be",
        (_, false, true) if !central => "central",
        (_, false, _) => "to change",
    };
    say(label, &format!("{}: {}", step.about(), step.why));
    match &step.action {
        _ if seen.is_done => {}
        SetupAction::File(file) => {
            let text = |text: Option<&Vec<u8>>| String::from_utf8_lossy(text.map_or(&[], Vec::as_slice)).into_owned();
            let (before, after) = (text(seen.before.as_ref().map(|(text, _)| text)), text(file.text.as_ref()));
            let name = |is_there: bool| if is_there { file.path.display().to_string() } else { "/dev/null".to_owned() };
            let mut diff = DiffOptions::new();
            diff.set_original_filename(name(seen.before.is_some())).set_modified_filename(name(file.text.is_some()));
            let diff = diff.create_patch(&before, &after).to_string();
            // A tab is part of a diff.
            let lines = diff.split('\t').map(|part| printable_lines(part, '?')).collect::<Vec<_>>();
            print!("{}", lines.join("\t"));
        }
        SetupAction::Command(command) => {
            if let Some((name, text)) = &command.run.file {
                println!("# {name}:\n{}", printable_lines(text.trim_end(), '?'));
            }
        }
        SetupAction::Condition(_) | SetupAction::Remark => {}
    }
}

/// What `--dry-run` says.
fn would_do(found: &[FoundScheduler], central: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for one in found {
        let Ok(steps) = note(one, &mut outcome) else { continue };
        let to_do =
            |is_central: bool| steps.iter().filter(move |seen| !seen.is_done && seen.step.is_central == is_central);
        let here = to_do(false).count() + if central { to_do(true).count() } else { 0 };
        if here > 0 {
            outcome.is_changed = true;
            outcome.good.push(format!("{}: {here} steps", one.part.name()));
        }
        if !central {
            outcome.to_do.extend(centrally(one.part, to_do(true).count()));
        }
    }
    outcome
}

/// What stands against it goes to what is to be done.
fn note<'a>(one: &'a FoundScheduler, outcome: &mut Outcome) -> Result<&'a [LookedAtStep], ()> {
    match &one.steps {
        Ok(steps) => Ok(steps),
        Err(why) => {
            outcome.to_do.push(format!("{}: {why}", one.part.name()));
            Err(())
        }
    }
}

fn centrally(part: &dyn SchedulersPart, steps: usize) -> Option<String> {
    (steps > 0).then(|| {
        format!(
            "{}: {steps} steps above ('central') reach more than this node: do them where they belong, or run 'jobfence setup \
             --central' once; then run this again",
            part.name()
        )
    })
}

/// Has the scheduler run a real job, and waits for it.
fn tried(part: &dyn SchedulersPart, host: &SetupHost) -> JobTried {
    let deadline = Instant::now() + JOB;
    match part.try_job(host, deadline) {
        JobTried::Asleep(job) => real_job::try_one(job.as_ref(), deadline),
        tried => tried,
    }
}

/// Has `jobfence check` look at this host, before or after the schedulers' part is done.
fn checked(plugstack: Option<PathBuf>, config: Option<PathBuf>, is_before: bool) -> Result<bool, Failure> {
    let configured = Configured { config, overrides: Vec::new() };
    check::run(&check::CheckOptions { plugstack, is_before, configured, ..Default::default() })
}

fn act(
    host: &SetupHost,
    journal: &mut SetupJournal,
    found: &[FoundScheduler],
    options: &SetupOptions,
) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    journal.settle(|run| {
        let steps = found.iter().flat_map(|one| one.steps.iter().flatten());
        let mut commands = steps.filter_map(|seen| match &seen.step.action {
            SetupAction::Command(command) => Some(command),
            _ => None,
        });
        commands.find(|command| command.run == *run).map(|command| command.is_done)
    })?;
    for one in found {
        let name = one.part.name();
        let Ok(steps) = note(one, &mut outcome) else { continue };
        let is_changed = match apply::apply(journal, name, steps, options.central, &|planned| {
            checked(planned.plugstack, planned.config, true)
        }) {
            Ok(is_changed) => is_changed,
            Err(why) => {
                outcome.to_do.push(format!("{name}: {why}"));
                continue;
            }
        };
        outcome.is_changed |= is_changed;
        let left = steps.iter().filter(|seen| !seen.is_done && seen.step.is_central && !options.central).count();
        if let Some(left) = centrally(one.part, left) {
            outcome.to_do.push(left);
            continue;
        }
        if one.is_bystander {
            continue;
        }
        match checked(None, one.config.clone(), false) {
            Ok(true) if is_changed => match tried(one.part, host) {
                JobTried::Fenced(what) => outcome.good.push(format!("{name}: {what}")),
                JobTried::Asleep(_) => {}
                JobTried::NotRun(why) => outcome.good.push(format!("{name}: ready, but no job was tried: {why}")),
                JobTried::Unfenced(why) => outcome.to_do.push(format!("{name}: {why}")),
            },
            Ok(true) => {}
            Ok(false) => outcome.to_do.push(format!("{name}: no job would be fenced: the verdict above says why")),
            Err(why) => outcome.to_do.push(format!("{name}: {why}")),
        }
    }
    Ok(outcome)
}

/// The entries of the chosen schedulers, the last first.
fn of_parts(entries: Vec<SetupEntry>, parts: &[&dyn SchedulersPart]) -> Vec<SetupEntry> {
    let is_chosen = |entry: &SetupEntry| parts.iter().any(|part| part.name() == entry.scheduler);
    entries.into_iter().rev().filter(is_chosen).collect()
}

/// Splits off what reaches more than this node, unless `--central` was given, and shows it.
fn without_central(entries: Vec<SetupEntry>, central: bool) -> (Vec<SetupEntry>, usize) {
    let (left, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.is_central && !central);
    left.iter().for_each(|entry| say("central", &entry.about()));
    (entries, left.len())
}

/// No failure: a node that is taken out of the cluster leaves the others as they are.
fn left_centrally(steps: usize) -> Option<String> {
    (steps > 0).then(|| {
        format!(
            "{steps} steps above ('central') reach more than this node, and stay: run 'jobfence setup --undo --central' when no \
             node needs them"
        )
    })
}

/// Whether the scheduler says that this command is not in effect.
fn is_out_of_effect(part: &dyn SchedulersPart, host: &SetupHost, entry: &SetupEntry) -> bool {
    let MadeChange::Command { run, .. } = &entry.change else { return false };
    let steps = part.plan(host).ok().flatten().map(|plan| plan.steps).unwrap_or_default();
    steps
        .iter()
        .any(|step| matches!(&step.action, SetupAction::Command(command) if command.run == *run && !command.is_done))
}

fn would_undo(options: &SetupOptions, parts: &[&dyn SchedulersPart]) -> Result<Outcome, Failure> {
    let entries = of_parts(SetupJournal::read(&options.journal)?, parts);
    let (services, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(SetupEntry::is_service);
    let (entries, left) = without_central(entries, options.central);
    let entries = [entries, if left > 0 { Vec::new() } else { services }].concat();
    entries.iter().for_each(|entry| say("to undo", &entry.about()));
    let good = (!entries.is_empty()).then(|| format!("{} steps would be undone", entries.len()));
    let good = good.into_iter().chain(left_centrally(left)).collect();
    Ok(Outcome { is_changed: !entries.is_empty(), good, to_do: Vec::new() })
}

fn undo(options: &SetupOptions, host: &SetupHost, parts: &[&'static dyn SchedulersPart]) -> Result<Outcome, Failure> {
    let mut journal = SetupJournal::open(&options.journal)?;
    let mut outcome = Outcome::default();
    let mut services = Vec::new();
    for part in parts {
        let entries = of_parts(journal.entries().to_vec(), &[*part]);
        let (of_service, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(SetupEntry::is_service);
        let (entries, left) = without_central(entries, options.central);
        outcome.good.extend(left_centrally(left).map(|left| format!("{}: {left}", part.name())));
        if entries.is_empty() && (of_service.is_empty() || left > 0) {
            continue;
        }
        services.extend(of_service);
        let after = part.after_undo(host);
        for entry in &entries {
            match journal.undo_unless_changed(entry, |file| part.is_as_installed(host, file)) {
                Ok(()) if matches!(entry.change, MadeChange::Directory(_)) => {}
                Ok(()) => say("undone", &entry.about()),
                // The process that had begun it, or its undo, has died, and nothing is left of it.
                Err(_) if !entry.is_done && is_out_of_effect(*part, host, entry) => journal.forget(entry.number)?,
                Err(why) => {
                    say("kept", &why);
                    outcome.to_do.push(format!("{}: {} stays: see above", part.name(), entry.about()));
                }
            }
        }
        outcome.is_changed = true;
        if left == 0 {
            outcome.good.push(format!("{} is as it was before", part.name()));
        }
        if let Some(left) = after.and_then(|after| after().unwrap_or_else(|why| Some(why.to_string()))) {
            outcome.to_do.push(format!("{}: {left}", part.name()));
        }
    }
    // All else comes first: without the service each job that a scheduler starts by jobfence is refused.
    for service in &services {
        match journal.undo_service(service, |name| parts.iter().any(|part| part.name() == name)) {
            Ok(None) => {
                say("undone", &format!("{SERVICE}, which runs on until the next boot, or 'systemctl stop {SERVICE}'"))
            }
            Ok(Some(needed)) => say("kept", &apply::still_needed(&needed)),
            Err(why) => {
                say("kept", &why);
                outcome.to_do.push(format!("{SERVICE} stays: see above"));
            }
        }
    }
    journal.close();
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{SetupCommand, SetupPlan, SetupStep};

    /// A scheduler that nobody has.
    struct FakePart {
        name: &'static str,
        plan: fn(&SetupHost) -> Result<Option<SetupPlan>, Failure>,
    }

    impl SchedulersPart for FakePart {
        fn name(&self) -> &'static str {
            self.name
        }

        fn plan(&self, host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
            (self.plan)(host)
        }
    }

    /// Options whose journal is in a directory of its own. `None` without root.
    fn place() -> Option<(tempfile::TempDir, SetupHost, SetupOptions)> {
        if !nix::unistd::geteuid().is_root() {
            crate::skip::skip("needs root");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("state")).unwrap();
        let journal = temp.path().join("state/setup");
        let options = SetupOptions {
            dry_run: false,
            undo: false,
            scheduler: Vec::new(),
            central: false,
            journal,
            any_program: false,
            data: None,
        };
        let host = SetupHost {
            proc: Dir::open("/proc").unwrap(),
            program: "/usr/sbin/jobfence".into(),
            data: temp.path().to_owned(),
        };
        Some((temp, host, options))
    }

    fn makes_files(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        let command = |script: &str, undo: &str| {
            let [run, undo] = [script, undo].map(|script| {
                let script = script.replace("DIR", &host.data.display().to_string());
                SetupCommand::new(&["/bin/sh", "-c", &script, SERVICE])
            });
            SetupStep::command(run, vec![undo], false, "a test")
        };
        let steps = vec![
            command("echo > DIR/service", "rm DIR/service"),
            SetupStep::file(host.data.join("here/file"), "x", "a test"),
            SetupStep::file(host.data.join("shared/file"), "x", "a test").central(),
        ];
        Ok(Some(SetupPlan { steps, ..Default::default() }))
    }

    #[test]
    fn what_a_dead_process_has_undone_is_forgotten() {
        let Some((temp, host, options)) = place() else { return };
        let cannot_be_undone = |_: &SetupHost| {
            let [run, undo] = ["true", "false"].map(|program| SetupCommand::new(&[program]));
            let steps = vec![SetupStep::command(run, vec![undo], false, "a test")];
            Ok(Some(SetupPlan { steps, ..Default::default() }))
        };
        static PARTS: [FakePart; 2] =
            [FakePart { name: "A", plan: |_| Ok(None) }, FakePart { name: "A", plan: |_| Err("it is down".into()) }];
        let knows = Box::leak(Box::new(FakePart { name: "A", plan: cannot_be_undone }));
        let steps = apply::see(cannot_be_undone(&host).unwrap().unwrap()).unwrap();
        let mut journal = SetupJournal::open(&options.journal).unwrap();
        apply::apply(&mut journal, "A", &steps, false, &|_| Ok(true)).unwrap();
        let number = journal.entries()[0].number;
        for is_done in [true, false] {
            journal.mark(number, is_done).unwrap();
            drop(journal);
            for part in &PARTS {
                assert_eq!(undo(&options, &host, &[part]).unwrap().to_do.len(), 1);
            }
            journal = SetupJournal::open(&options.journal).unwrap();
        }
        drop(journal);
        assert!(undo(&options, &host, &[knows]).unwrap().to_do.is_empty());
        assert!(!temp.path().join("state").exists());
    }

    #[test]
    fn one_that_cannot_be_looked_at_leaves_the_others() {
        let Some((_temp, host, options)) = place() else { return };
        static PARTS: [FakePart; 2] = [
            FakePart { name: "A", plan: |_| Err("its file is broken".into()) },
            FakePart { name: "B", plan: makes_files },
        ];
        let found = look(&host, &[&PARTS[0], &PARTS[1]], &options).unwrap();
        let outcome = would_do(&found, true);
        assert_eq!(
            (&outcome.to_do[..], &outcome.good[..]),
            (&["A: its file is broken".into()][..], &["B: 3 steps".into()][..])
        );
    }

    #[test]
    fn nobody_but_root_may_replace_what_root_starts() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::{PermissionsExt, chown};
        let Some((temp, ..)) = place() else { return };
        let [directory, program] = ["bin", "bin/jobfence"].map(|name| temp.path().join(name));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(&program, "").unwrap();
        let is_refused = |path: &Path, mode: u32, owner: u32| {
            for path in [&directory, &program] {
                chown(path, Some(0), None).unwrap();
                set_permissions(path, Permissions::from_mode(0o755)).unwrap();
            }
            chown(path, Some(owner), None).unwrap();
            set_permissions(path, Permissions::from_mode(mode)).unwrap();
            let said = only_roots(&program).err().map(|why| why.to_string());
            said.is_some_and(|why| why.starts_with(&format!("others than root can change {},", path.display())))
        };
        for (path, mode, owner, refused) in [
            (&program, 0o755, 0, false),
            (&program, 0o775, 0, true),
            (&program, 0o757, 0, true),
            (&program, 0o755, 4242, true),
            (&directory, 0o755, 4242, true),
            (&directory, 0o777, 0, true),
            (&directory, 0o1777, 0, false),
            (&directory, 0o2775, 0, false),
        ] {
            assert_eq!(is_refused(path, mode, owner), refused, "{} {mode:o} {owner}", path.display());
        }
    }

    #[test]
    fn undo_reaches_further_only_when_it_is_asked_to() {
        let Some((_temp, host, mut options)) = place() else { return };
        let part: &FakePart = &FakePart { name: "A", plan: makes_files };
        let parts: [&'static dyn SchedulersPart; 1] = [part];
        let at = |name: &str| host.data.join(name).exists();
        let steps = apply::see(makes_files(&host).unwrap().unwrap()).unwrap();
        let mut journal = SetupJournal::open(&options.journal).unwrap();
        assert!(apply::apply(&mut journal, "A", &steps, true, &|_| Ok(true)).unwrap());
        drop(journal);
        assert!(at("here/file") && at("shared/file") && at("service"));

        for is_changed in [true, false] {
            let would = would_undo(&options, &parts).unwrap();
            let done = undo(&options, &host, &parts).unwrap();
            for outcome in [would, done] {
                assert_eq!(outcome.is_changed, is_changed);
                assert!(outcome.to_do.is_empty() && outcome.good.iter().any(|good| good.contains("2 steps above")));
            }
            // The service goes on for those jobs that the shared file still has started.
            assert!(!at("here") && at("shared/file") && at("service"));
        }
        options.central = true;
        let done = undo(&options, &host, &parts).unwrap();
        assert!(done.is_changed && done.good == ["A is as it was before"] && done.to_do.is_empty());
        assert!(!at("shared") && !at("service") && !at("state"));
    }
}
