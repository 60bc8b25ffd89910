// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence setup --undo`: takes back what is in the journal, and asks whether a scheduler starts jobs by jobfence all the same.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::apply::still_needed;
use super::journal::{MadeChange, SetupEntry, SetupJournal};
use super::outcome::{Outcome, SetupOptions, say};
use super::plan::{SetupAction, SetupHost};
use crate::command::Failure;
use crate::part::{AfterUndo, SchedulersPart, StartsJobs};
use crate::systemd::SERVICE;

/// How long a daemon may take to notice that a setting is gone.
const NOTICED: Duration = Duration::from_secs(15);
/// How often to look.
const PAUSE: Duration = Duration::from_millis(500);

type AnyPart = &'static dyn SchedulersPart;

/// The entries of a scheduler that are undone, the last one first, and how many stay because they reach more than this node. The latter are
/// shown.
fn of_part(journal: &SetupJournal, part: AnyPart, central: bool) -> (Vec<SetupEntry>, usize) {
    let is_its = |entry: &&SetupEntry| entry.scheduler == part.name() && !entry.is_service();
    let entries = journal.entries().iter().rev().filter(is_its).cloned();
    let (left, entries): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.is_central && !central);
    left.iter().for_each(|entry| say("central", &entry.about()));
    (entries, left.len())
}

/// A sentence about the steps that reach more than this node. It is no failure: the other nodes go on as they are when this one leaves the
/// cluster.
fn left_centrally(part: AnyPart, steps: usize) -> Option<String> {
    (steps > 0).then(|| {
        format!(
            "{}: {steps} steps above ('central') reach more than this node, and stay: run 'jobfence setup --undo --central' when no \
             node needs them",
            part.name()
        )
    })
}

fn stays(part: AnyPart, entry: &SetupEntry) -> String {
    format!("{}: {} stays: see above", part.name(), entry.about())
}

/// Whether the scheduler says that this command is not in effect.
fn is_out_of_effect(part: AnyPart, host: &SetupHost, entry: &SetupEntry) -> bool {
    let MadeChange::Command { run, .. } = &entry.change else { return false };
    let steps = part.plan(host).ok().flatten().map(|plan| plan.steps).unwrap_or_default();
    steps
        .iter()
        .any(|step| matches!(&step.action, SetupAction::Command(command) if command.run == *run && !command.is_done))
}

/// The setting that makes the scheduler start jobs by jobfence after these steps are undone. If that cannot be seen, it counts as if the
/// scheduler does, provided that it was set up.
fn starts(part: AnyPart, host: &SetupHost, entries: &[SetupEntry], undone: &[SetupEntry]) -> Option<String> {
    match part.starts_jobs(host) {
        StartsJobs::No => None,
        StartsJobs::Yes { by, files, commands } => (!would_stop(undone, &files, commands)).then_some(by),
        StartsJobs::Unknown(why) => {
            let is_set_up = entries.iter().any(|entry| entry.scheduler == part.name());
            is_set_up.then(|| format!("this cannot be seen ({why}), and it was set up to"))
        }
    }
}

fn still(part: AnyPart, by: &str) -> String {
    format!("{} still starts jobs of this node by jobfence, so leave its programs here: {by}", part.name())
}

/// The reason why jobfence.service stays: without it, every job that a scheduler starts by jobfence is refused. `entries`: those that are
/// left.
fn needed(entries: &[SetupEntry], others: &[AnyPart], host: &SetupHost) -> Option<String> {
    let left = entries.iter().find(|entry| !entry.is_service()).map(|entry| entry.scheduler.clone());
    let starts = |part: &&AnyPart| starts(**part, host, entries, &[]).is_some();
    left.or_else(|| others.iter().find(starts).map(|part| part.name().to_owned()))
}

/// The schedulers that were not chosen.
fn others(parts: &[AnyPart], all: &[AnyPart]) -> Vec<AnyPart> {
    all.iter().copied().filter(|part| !parts.iter().any(|one| one.name() == part.name())).collect()
}

fn has_any(entries: &[SetupEntry], parts: &[AnyPart]) -> bool {
    entries.iter().any(|entry| parts.iter().any(|part| part.name() == entry.scheduler))
}

/// Whether undoing one of these ends that the scheduler starts jobs by jobfence.
fn would_stop(undone: &[SetupEntry], files: &[PathBuf], commands: &[&str]) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or(path.to_owned());
    undone.iter().any(|entry| match &entry.change {
        MadeChange::File { path, .. } => files.iter().any(|file| real(file) == real(path)),
        MadeChange::Command { undo, .. } => {
            let mut words = undo.iter().flat_map(|command| &command.argv);
            words.any(|word| commands.iter().any(|command| word.contains(command)))
        }
        MadeChange::Directory(_) => false,
    })
}

/// The outcome of `--dry-run`. `all`: all schedulers.
pub fn would_undo(
    options: &SetupOptions,
    host: &SetupHost,
    parts: &[AnyPart],
    all: &[AnyPart],
) -> Result<Outcome, Failure> {
    let journal = SetupJournal::look_at(&options.journal)?;
    let mut outcome = Outcome::default();
    let mut undone: Vec<SetupEntry> = Vec::new();
    for part in parts {
        let (entries, left) = of_part(&journal, *part, options.central);
        outcome.good.extend(left_centrally(*part, left));
        let mut its = Vec::new();
        for entry in entries {
            match journal.can_be_undone(&entry, |file| part.is_as_installed(host, file)) {
                Ok(()) => its.push(entry),
                Err(why) => {
                    say("kept", &why);
                    outcome.to_do.push(stays(*part, &entry));
                }
            }
        }
        outcome.still.extend(starts(*part, host, journal.entries(), &its).map(|by| still(*part, &by)));
        undone.extend(its);
    }
    let left: Vec<SetupEntry> = journal.entries().iter().filter(|entry| !undone.contains(entry)).cloned().collect();
    if has_any(journal.entries(), parts)
        && outcome.still.is_empty()
        && needed(&left, &others(parts, all), host).is_none()
    {
        undone.extend(left);
    }
    undone.retain(|entry| !entry.is_nothing());
    undone.iter().for_each(|entry| say("to undo", &entry.about()));
    if !undone.is_empty() {
        outcome.is_changed = true;
        outcome.good.insert(0, format!("{} steps would be undone", undone.len()));
    }
    Ok(outcome)
}

/// Undoes what was set up. `all`: all schedulers.
pub fn undo(options: &SetupOptions, host: &SetupHost, parts: &[AnyPart], all: &[AnyPart]) -> Result<Outcome, Failure> {
    let mut journal = SetupJournal::open(&options.journal)?;
    let before = journal.entries().to_vec();
    let mut outcome = Outcome::default();
    let mut clear_ups: Vec<(AnyPart, AfterUndo)> = Vec::new();
    let mut needed = None;
    for part in parts {
        let (entries, left) = of_part(&journal, *part, options.central);
        outcome.good.extend(left_centrally(*part, left));
        if entries.is_empty() {
            continue;
        }
        let after = part.after_undo(host);
        clear_ups.extend(part.clear_up(host).map(|clear_up| (*part, clear_up)));
        for entry in &entries {
            match journal.undo_unless_changed(entry, |file| part.is_as_installed(host, file)) {
                Ok(()) if matches!(entry.change, MadeChange::Directory(_)) || entry.is_nothing() => {}
                Ok(()) => say("undone", &entry.about()),
                // Somebody has undone the step by hand, or a process has undone it and died.
                Err(_) if is_out_of_effect(*part, host, entry) => {
                    journal.forget(entry.number)?;
                    say("undone", &format!("{}: somebody has taken it back already", entry.about()));
                }
                Err(why) => {
                    say("kept", &why);
                    outcome.to_do.push(stays(*part, entry));
                }
            }
        }
        outcome.is_changed = true;
        if left == 0 {
            outcome.good.push(format!("{} is as it was before", part.name()));
        }
        if let Some(left) = said(*part, after) {
            outcome.still.push(left);
            needed.get_or_insert_with(|| part.name().to_owned());
        }
    }
    for part in parts {
        let is_its = |entry: &SetupEntry| entry.scheduler == part.name() && !entry.is_service();
        let is_undone = before.iter().any(is_its) && !journal.entries().iter().any(is_its);
        let deadline = Instant::now() + NOTICED;
        while is_undone && matches!(part.starts_jobs(host), StartsJobs::Yes { .. }) && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        if let Some(by) = starts(*part, host, &before, &[]) {
            outcome.still.push(still(*part, &by));
            needed.get_or_insert_with(|| part.name().to_owned());
        }
    }
    // The service comes last: without it, every job that a scheduler starts by jobfence is refused.
    if has_any(&before, parts) {
        let needed = needed.or_else(|| self::needed(journal.entries(), &others(parts, all), host));
        end(&mut journal, &mut outcome, needed, clear_ups);
    }
    journal.close();
    Ok(outcome)
}

/// Asks the schedulers even if nothing could be undone: the administrator must know before the programs are removed.
pub fn or_asked(done: Result<Outcome, Failure>, host: &SetupHost, parts: &[AnyPart]) -> Result<Outcome, Failure> {
    done.or_else(|why| {
        let by = |part: AnyPart| match part.starts_jobs(host) {
            StartsJobs::Yes { by, .. } | StartsJobs::Unknown(by) => Some(still(part, &by)),
            StartsJobs::No => None,
        };
        let still: Vec<String> = parts.iter().filter_map(|part| by(*part)).collect();
        if still.is_empty() {
            Err(why)
        } else {
            Ok(Outcome { to_do: vec![why.to_string()], still, ..Outcome::default() })
        }
    })
}

/// Ends an undo with what all schedulers share, unless one of them still needs it.
fn end(
    journal: &mut SetupJournal,
    outcome: &mut Outcome,
    needed: Option<String>,
    clear_ups: Vec<(AnyPart, AfterUndo)>,
) {
    let services: Vec<SetupEntry> =
        journal.entries().iter().rev().filter(|entry| entry.is_service()).cloned().collect();
    if let Some(needed) = needed {
        if !services.is_empty() {
            say("kept", &still_needed(&needed));
        }
        return;
    }
    let failed: Vec<String> = services.iter().filter_map(|service| journal.undo(service).err()).collect();
    for why in &failed {
        say("kept", why);
        outcome.to_do.push(format!("{SERVICE} stays: see above"));
    }
    if failed.is_empty() && !services.is_empty() {
        say("undone", &format!("{SERVICE}, which runs on until the next boot, or 'systemctl stop {SERVICE}'"));
        outcome.good.push(format!("{SERVICE} is disabled"));
        outcome.is_changed = true;
    }
    for (part, clear_up) in clear_ups {
        outcome.to_do.extend(said(part, Some(clear_up)));
    }
}

/// Runs what follows an undo. Returns what is left for the administrator.
fn said(part: AnyPart, after: Option<AfterUndo>) -> Option<String> {
    let left = after?().unwrap_or_else(|why| Some(why.to_string()))?;
    Some(format!("{}: {left}", part.name()))
}

#[cfg(test)]
mod tests {
    use super::super::plan::{SetupCommand, SetupPlan, SetupStep};
    use super::super::tests::{FAKE, FakePart, place};
    use super::super::{apply, would_do};
    use super::*;

    fn command(host: &SetupHost, script: &str, undo: &str) -> SetupStep {
        let [run, undo] = [script, undo].map(|script| {
            let script = script.replace("DIR", &host.data.display().to_string());
            SetupCommand::new(&["/bin/sh", "-c", &script, SERVICE])
        });
        SetupStep::command(run, vec![undo], false, "a test")
    }

    fn makes_files(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        let steps = vec![
            command(host, "echo > DIR/service", "rm DIR/service"),
            SetupStep::file(host.data.join("here/file"), "x", "a test"),
            SetupStep::file(host.data.join("shared/file"), "x", "a test").central(),
        ];
        Ok(Some(SetupPlan { steps, ..Default::default() }))
    }

    fn set_up(options: &SetupOptions, name: &str, steps: Vec<SetupStep>) {
        let steps = apply::see(SetupPlan { steps, ..Default::default() }).unwrap();
        let mut journal = SetupJournal::open(&options.journal).unwrap();
        apply::apply(&mut journal, name, &steps, true, &|_| Ok(true)).unwrap();
    }

    fn by_file(host: &SetupHost) -> StartsJobs {
        let files = vec![host.data.join("shared/file")];
        if files[0].exists() {
            StartsJobs::Yes { by: "a file".to_owned(), files, commands: &[] }
        } else {
            StartsJobs::No
        }
    }

    fn yes(_: &SetupHost) -> StartsJobs {
        StartsJobs::Yes { by: "its server".to_owned(), files: Vec::new(), commands: &["take it back"] }
    }

    /// The outcome of a dry run and of the undo itself, which must be the same.
    fn both(options: &SetupOptions, host: &SetupHost, parts: &[AnyPart], all: &[AnyPart]) -> Outcome {
        let would = would_undo(options, host, parts, all).unwrap();
        let outcome = undo(options, host, parts, all).unwrap();
        let of = |outcome: &Outcome| (outcome.is_changed, outcome.to_do.clone(), outcome.still.clone());
        assert_eq!(of(&would), of(&outcome));
        outcome
    }

    #[test]
    fn what_somebody_has_undone_is_forgotten() {
        let Some((temp, host, options)) = place() else { return };
        fn cannot_be_undone(_: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
            let [run, undo] = ["true", "false"].map(|program| SetupCommand::new(&[program]));
            let steps = vec![SetupStep::command(run, vec![undo], false, "a test")];
            Ok(Some(SetupPlan { steps, ..Default::default() }))
        }
        static PARTS: [FakePart; 2] = [FAKE, FakePart { plan: |_| Err("it is down".into()), ..FAKE }];
        static KNOWS: FakePart = FakePart { plan: cannot_be_undone, ..FAKE };
        // Somebody has undone it by hand, or a process has and died before it could say so.
        for is_done in [true, false] {
            set_up(&options, "A", cannot_be_undone(&host).unwrap().unwrap().steps);
            let mut journal = SetupJournal::open(&options.journal).unwrap();
            let number = journal.entries()[0].number;
            journal.mark(number, is_done).unwrap();
            drop(journal);
            for part in &PARTS {
                assert_eq!(undo(&options, &host, &[part], &[]).unwrap().to_do.len(), 1);
            }
            let outcome = undo(&options, &host, &[&KNOWS], &[]).unwrap();
            assert!(outcome.to_do.is_empty() && outcome.is_changed);
            assert!(!options.journal.exists());
            std::fs::create_dir_all(temp.path().join("state")).unwrap();
        }
    }

    #[test]
    fn undo_reaches_further_only_when_it_is_asked_to() {
        let Some((_temp, host, mut options)) = place() else { return };
        static PART: FakePart = FakePart { plan: makes_files, ..FAKE };
        let parts: [AnyPart; 1] = [&PART];
        let at = |name: &str| host.data.join(name).exists();
        set_up(&options, "A", makes_files(&host).unwrap().unwrap().steps);
        assert!(at("here/file") && at("shared/file") && at("service"));

        for is_changed in [true, false] {
            let outcome = both(&options, &host, &parts, &parts);
            assert_eq!(outcome.is_changed, is_changed);
            assert!(outcome.to_do.is_empty() && outcome.good.iter().any(|good| good.contains("2 steps above")));
            // The shared file still has jobs started, so they need the service.
            assert!(!at("here") && at("shared/file") && at("service"));
        }
        options.central = true;
        let done = both(&options, &host, &parts, &parts);
        assert!(done.is_changed && done.to_do.is_empty());
        assert_eq!(done.good, ["A is as it was before", "jobfence.service is disabled"]);
        assert!(!at("shared") && !at("service") && !at("state"));
    }

    #[test]
    fn one_that_still_starts_jobs_is_named() {
        let Some((_temp, host, mut options)) = place() else { return };
        static BY_FILE: FakePart = FakePart { plan: makes_files, starts_jobs: by_file, ..FAKE };
        let parts: [AnyPart; 1] = [&BY_FILE];
        set_up(&options, "A", makes_files(&host).unwrap().unwrap().steps);
        let said = "A still starts jobs of this node by jobfence, so leave its programs here: a file";
        assert_eq!(both(&options, &host, &parts, &parts).still, [said]);
        options.central = true;
        // A file that was changed since then stays.
        let shared = host.data.join("shared/file");
        std::fs::write(&shared, "theirs").unwrap();
        let kept = both(&options, &host, &parts, &parts);
        assert!(kept.still == [said] && kept.to_do.len() == 1 && host.data.join("service").exists());
        assert_eq!(kept.say(&options), std::process::ExitCode::from(3));
        std::fs::write(&shared, "x").unwrap();
        assert!(both(&options, &host, &parts, &parts).still.is_empty());
        assert!(!host.data.join("service").exists());
    }

    #[test]
    fn a_dry_run_knows_which_command_it_is() {
        let Some((_temp, host, options)) = place() else { return };
        static A: FakePart = FakePart { starts_jobs: yes, ..FAKE };
        for (number, undo) in ["true # the rest", "true # take it back"].iter().enumerate() {
            set_up(
                &options,
                "A",
                vec![command(&host, "true", "true"), {
                    let [run, undo] = ["true", undo].map(|script| SetupCommand::new(&["/bin/sh", "-c", script]));
                    SetupStep::command(run, vec![undo], false, "a test")
                }],
            );
            let would = would_undo(&options, &host, &[&A], &[]).unwrap();
            assert_eq!(would.still.len(), 1 - number, "{undo}");
        }
    }

    #[test]
    fn the_service_stays_while_any_scheduler_starts_jobs() {
        let Some((_temp, host, options)) = place() else { return };
        static A: FakePart = FAKE;
        static OTHERS: [FakePart; 4] = [
            FakePart { name: "B", starts_jobs: yes, ..FAKE },
            FakePart { name: "B", starts_jobs: |_| StartsJobs::Unknown("it is down".to_owned()), ..FAKE },
            FakePart { name: "B", ..FAKE },
            FAKE,
        ];
        let [starts, unknown, stopped, _] = &OTHERS;
        let is_on = || host.data.join("service").exists();
        let service = || command(&host, "echo > DIR/service", "rm -f DIR/service");
        let file = |name: &str| SetupStep::file(host.data.join(name), "x", "a test");
        let both = |parts: &[AnyPart], all: &[AnyPart]| both(&options, &host, parts, all);

        set_up(&options, "A", vec![service(), file("a")]);
        let done = both(&[&A], &[&A, starts]);
        assert!(done.still.is_empty() && done.to_do.is_empty() && done.is_changed && is_on());
        // Nothing of the chosen scheduler is left, and the service is another's.
        assert!(!both(&[stopped], &[&A, stopped]).is_changed && is_on());
        // Nobody knows whether the second scheduler starts jobs by jobfence. It was not set up here.
        assert!(both(&[&A], &[&A, unknown]).is_changed && !is_on());

        // Both schedulers have set the service up.
        set_up(&options, "A", vec![service(), file("a")]);
        set_up(&options, "B", vec![service(), file("b")]);
        assert!(both(&[&A], &[&A, stopped]).is_changed && is_on());
        assert_eq!(both(&[unknown], &[&A, unknown]).still.len(), 1);
        assert!(is_on() && !host.data.join("b").exists());
        assert!(both(&[stopped], &[&A, stopped]).is_changed && !is_on() && !options.journal.exists());

        // A scheduler without an entry starts jobs by jobfence all the same.
        std::fs::create_dir_all(options.journal.parent().unwrap()).unwrap();
        let done = both(&[starts], &[&A, starts]);
        assert!(done.still.len() == 1 && !done.is_changed);
    }

    #[test]
    fn one_that_was_enabled_before_is_not_said_to_be_disabled() {
        let Some((_temp, host, options)) = place() else { return };
        static A: FakePart = FAKE;
        let enabled = SetupStep::command(SetupCommand::new(&["true", SERVICE]), vec![], false, "a test");
        set_up(&options, "A", vec![enabled, SetupStep::file(host.data.join("a"), "x", "a test")]);
        let would = would_undo(&options, &host, &[&A], &[]).unwrap();
        assert_eq!(would.good, ["1 steps would be undone"]);
        assert_eq!(undo(&options, &host, &[&A], &[]).unwrap().good, ["A is as it was before"]);
    }

    #[test]
    fn what_is_by_hand_is_not_contradicted() {
        use super::super::{FoundScheduler, apply::LookedAtStep};
        let step = LookedAtStep { step: SetupStep::remark("PAM"), is_done: true, before: None };
        let found = FoundScheduler { part: &FAKE, config: None, is_bystander: false, steps: Ok(vec![step]) };
        assert!(would_do(&[found], false).is_by_hand);
    }
}
