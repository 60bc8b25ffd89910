// SPDX-License-Identifier: GPL-2.0-or-later
//! Does the steps of a plan, and takes them back if one of them fails.

use std::path::Path;

use jobfence::error::Error;
use nix::unistd::UnlinkatFlags;

use super::journal::{MadeChange, SetupEntry, SetupJournal};
use super::plan::{Checker, CommandChange, FileChange, SetupAction, SetupPlan, SetupStep};
use crate::command::Failure;
use crate::systemd::SERVICE;
use crate::whole::{self, Ownership};

/// A step, and what it finds on the host.
pub struct LookedAtStep {
    pub step: SetupStep,
    /// Whether the host is as the step wants it.
    pub is_done: bool,
    /// The text and the ownership that the file has now.
    pub before: Option<(Vec<u8>, Ownership)>,
}

/// Looks at what each step would change. Fails if a file cannot be changed safely.
pub fn see(plan: SetupPlan) -> Result<Vec<LookedAtStep>, Failure> {
    let mut all = Vec::new();
    for mut step in plan.steps {
        let (mut before, mut is_done) = (None, true);
        match &mut step.action {
            SetupAction::File(file) => {
                follow(file)?;
                before = whole::read(&file.path)?;
                is_done = before.as_ref().map(|(text, _)| text) == file.text.as_ref();
            }
            SetupAction::Command(command) => is_done = command.is_done,
            SetupAction::Condition(_) | SetupAction::Remark => {}
        }
        all.push(LookedAtStep { step, is_done, before });
    }
    Ok(all)
}

/// Follows a link. The link is the administrator's, so it stays, and the file that it leads to is changed.
fn follow(file: &mut FileChange) -> Result<(), Failure> {
    let Ok(found) = file.path.symlink_metadata() else { return Ok(()) };
    if found.is_symlink() {
        let path = file.path.display().to_string();
        let real = std::fs::canonicalize(&file.path)
            .map_err(|error| format!("{path} is a link that leads nowhere: {error}"))?;
        if file.text.is_none() || std::os::unix::fs::MetadataExt::uid(&found) != 0 {
            return Err(format!("{path} is a link to {}: change it by hand", real.display()).into());
        }
        file.path = real;
    }
    Ok(())
}

/// Does the steps that are to be done here, and returns whether something was changed. If a step fails, the steps before it are undone.
pub fn apply(
    journal: &mut SetupJournal,
    scheduler: &str,
    steps: &[LookedAtStep],
    central: bool,
    check: Checker<'_>,
) -> Result<bool, Failure> {
    let before = journal.entries().last().map_or(0, |last| last.number);
    let is_to_do = |seen: &LookedAtStep| !seen.is_done && (central || !seen.step.is_central);
    if !steps.iter().any(is_to_do) {
        return Ok(false);
    }
    for seen in steps {
        let done = match &seen.step.action {
            SetupAction::Condition(holds) => match holds(check) {
                Ok(true) => Ok(()),
                Ok(false) => Err(format!("{}: see above", seen.step.why)),
                Err(error) => Err(error.to_string()),
            },
            SetupAction::File(file) if is_to_do(seen) => change(journal, scheduler, file, seen),
            SetupAction::Command(command) if is_to_do(seen) => run(journal, scheduler, command, seen.step.is_central),
            _ => Ok(()),
        };
        if let Err(why) = done {
            let left = roll_back(journal, before);
            let left = if left.is_empty() { "nothing was changed".to_owned() } else { left.join("; ") };
            return Err(format!("{why}; {left}").into());
        }
        if is_to_do(seen) {
            println!("{:<14} {}", "changed", seen.step.about());
        }
    }
    Ok(true)
}

/// Undoes all entries after this one. Returns why some of them stay.
fn roll_back(journal: &mut SetupJournal, before: u64) -> Vec<String> {
    let entries = journal.entries().to_vec().into_iter().rev().filter(|entry| entry.number > before);
    let (services, entries): (Vec<_>, Vec<_>) = entries.partition(SetupEntry::is_service);
    let mut left: Vec<String> = entries.iter().filter_map(|entry| journal.undo(entry).err()).collect();
    match journal.entries().iter().find(|entry| !services.contains(entry)) {
        Some(other) if !services.is_empty() => left.push(still_needed(&other.scheduler)),
        _ => left.extend(services.iter().filter_map(|service| journal.undo(service).err())),
    }
    left
}

/// The reason why jobfence.service stays.
pub fn still_needed(scheduler: &str) -> String {
    format!("{SERVICE} stays enabled, since {scheduler} may still start jobs by jobfence")
}

fn change(journal: &mut SetupJournal, scheduler: &str, file: &FileChange, seen: &LookedAtStep) -> Result<(), String> {
    let failed = |error: Error| error.to_string();
    let now = whole::read(&file.path).map_err(failed)?;
    if now != seen.before {
        return Err(format!("{} was changed meanwhile: run this again", file.path.display()));
    }
    let is_central = seen.step.is_central;
    for directory in missing(&file.path) {
        let number = journal
            .begin(scheduler, is_central, MadeChange::Directory(directory.to_owned()), [None, None])
            .map_err(failed)?;
        whole::make_directory(directory, 0o755).map_err(failed)?;
        journal.mark(number, true).map_err(failed)?;
    }
    let before = now.as_ref().map(|(_, ownership)| *ownership);
    let ownership = before.unwrap_or(Ownership::root(file.mode));
    let made = MadeChange::File { path: file.path.clone(), before, after: file.text.as_ref().map(|_| ownership) };
    let texts = [now.as_ref().map(|(text, _)| text.as_slice()), file.text.as_deref()];
    let number = journal.begin(scheduler, is_central, made, texts).map_err(failed)?;
    match &file.text {
        Some(text) => whole::replace_durably(&file.path, text, ownership),
        None => whole::discard(&file.path, UnlinkatFlags::NoRemoveDir),
    }
    .map_err(failed)?;
    journal.mark(number, true).map_err(failed)
}

/// The missing directories above a file, the highest one first.
fn missing(file: &Path) -> Vec<&Path> {
    let mut missing: Vec<&Path> = file.ancestors().skip(1).take_while(|directory| !directory.exists()).collect();
    missing.reverse();
    missing
}

fn run(journal: &mut SetupJournal, scheduler: &str, command: &CommandChange, is_central: bool) -> Result<(), String> {
    let made = MadeChange::Command { run: command.run.clone(), undo: command.undo.clone() };
    let number = journal.begin(scheduler, is_central, made, [None, None]).map_err(|error| error.to_string())?;
    journal.run(&command.run)?;
    journal.mark(number, true).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::setup::plan::{PlannedCheck, SetupCommand};

    /// A directory that has a journal of its own. `None`: the test does not run as root.
    fn place() -> Option<(tempfile::TempDir, SetupJournal)> {
        if !nix::unistd::geteuid().is_root() {
            crate::skip::skip("needs root");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("state")).unwrap();
        let journal = SetupJournal::open(&temp.path().join("state/setup")).unwrap();
        Some((temp, journal))
    }

    fn seen(steps: Vec<SetupStep>) -> Vec<LookedAtStep> {
        see(SetupPlan { steps, ..Default::default() }).unwrap()
    }

    /// A step whose command adds a line to a file, and whose undo removes the last line.
    fn adds(file: &Path, is_done: bool) -> SetupStep {
        let [add, take] = ["echo x >> ", "sed -i '$d' "].map(|what| format!("{what}{}", file.display()));
        let [add, take] = [add, take].map(|script| SetupCommand::new(&["/bin/sh", "-c", &script]));
        SetupStep::command(add, vec![take], is_done, "a test")
    }

    fn undo_all(journal: &mut SetupJournal) -> Vec<String> {
        journal.entries().to_vec().iter().rev().filter_map(|entry| journal.undo(entry).err()).collect()
    }

    #[test]
    fn a_step_that_fails_takes_the_others_back() {
        let Some((temp, mut journal)) = place() else { return };
        let at = |name: &str| temp.path().join(name);
        fs::write(at("kept"), "kept\n").unwrap();
        fs::set_permissions(at("kept"), fs::Permissions::from_mode(0o604)).unwrap();
        fs::write(at("counted"), "0\n").unwrap();
        let fails = || SetupStep::command(SetupCommand::new(&["/bin/false"]), vec![], false, "fails");
        let refused = || SetupStep::condition("it holds", |check| check(PlannedCheck::default()));
        for last in [fails as fn() -> SetupStep, refused] {
            let steps = vec![
                SetupStep::file(at("new/er/file"), "new", "a test"),
                SetupStep::file(at("kept"), "changed", "a test"),
                adds(&at("counted"), false),
                last(),
                SetupStep::file(at("late"), "late", "a test"),
            ];
            let error = apply(&mut journal, "x", &seen(steps), false, &|_| Ok(false)).unwrap_err().to_string();
            assert!(error.ends_with("; nothing was changed"), "{error}");
            assert!(!at("new").exists() && !at("late").exists());
            assert_eq!(fs::read_to_string(at("kept")).unwrap(), "kept\n");
            assert_eq!(fs::metadata(at("kept")).unwrap().permissions().mode() & 0o7777, 0o604);
            assert_eq!(fs::read_to_string(at("counted")).unwrap(), "0\n");
            assert!(journal.entries().is_empty());
        }
        journal.close();
        assert!(!at("state").exists());
    }

    /// A step as `SetupStep::service` makes one. Its undo makes a file.
    fn service(undone: &Path) -> SetupStep {
        let undo = format!("echo x > {}", undone.display());
        let [run, undo] = ["true", &undo].map(|script| SetupCommand::new(&["/bin/sh", "-c", script, SERVICE]));
        SetupStep::command(run, vec![undo], false, "a test")
    }

    #[test]
    fn the_service_stays_as_long_as_something_may_need_it() {
        let Some((temp, mut journal)) = place() else { return };
        let at = |name: &str| temp.path().join(name);
        let fails = || SetupStep::command(SetupCommand::new(&["/bin/false"]), vec![], false, "fails");
        let fail = |journal: &mut SetupJournal, more: Vec<SetupStep>| {
            let steps = [service(&at("undone"))].into_iter().chain(more).chain([fails()]).collect();
            apply(journal, "x", &seen(steps), false, &|_| Ok(false)).unwrap_err().to_string()
        };
        fail(&mut journal, vec![]);
        assert!(at("undone").exists() && journal.entries().is_empty());
        fs::remove_file(at("undone")).unwrap();
        // A step of this scheduler's cannot be undone, and stays.
        let stuck = SetupCommand::new(&["/bin/false"]);
        let stuck = SetupStep::command(SetupCommand::new(&["/bin/true"]), vec![stuck], false, "stuck");
        let why = fail(&mut journal, vec![stuck]);
        assert!(why.ends_with("jobfence.service stays enabled, since x may still start jobs by jobfence"), "{why}");
        assert!(!at("undone").exists() && journal.entries().len() == 2);
        // A step that was there before stays as well.
        let why = fail(&mut journal, vec![]);
        assert!(why.contains("stays enabled, since x may") && !at("undone").exists(), "{why}");
        for entry in journal.entries().to_vec() {
            journal.forget(entry.number).unwrap();
        }
        // A service that was enabled before stays enabled, and is not mentioned.
        let enabled = SetupStep::command(SetupCommand::new(&["true", SERVICE]), vec![], false, "a test");
        let other = MadeChange::Directory(at("of y"));
        journal.begin("y", false, other, [None, None]).unwrap();
        let steps = seen(vec![enabled, fails()]);
        let why = apply(&mut journal, "x", &steps, false, &|_| Ok(false)).unwrap_err().to_string();
        assert!(why.ends_with("; nothing was changed") && journal.entries().len() == 1, "{why}");
    }

    #[test]
    fn what_reaches_further_is_done_only_when_it_was_asked_for() {
        let Some((temp, mut journal)) = place() else { return };
        let counted = temp.path().join("counted");
        let steps = || seen(vec![adds(&counted, false).central()]);
        assert!(!apply(&mut journal, "x", &steps(), false, &|_| Ok(false)).unwrap() && !counted.exists());
        assert!(
            !apply(&mut journal, "x", &seen(vec![adds(&counted, true)]), true, &|_| Ok(false)).unwrap()
                && !counted.exists()
        );
        assert!(apply(&mut journal, "x", &steps(), true, &|_| Ok(false)).unwrap());
        assert_eq!(fs::read_to_string(&counted).unwrap(), "x\n");
        drop(journal);
        let mut journal = SetupJournal::open(&temp.path().join("state/setup")).unwrap();
        assert_eq!(undo_all(&mut journal), [""; 0]);
        assert_eq!(fs::read_to_string(&counted).unwrap(), "");
    }

    #[test]
    fn a_command_has_a_file_by_its_name() {
        let Some((temp, mut journal)) = place() else { return };
        let script = format!("cp \"$0\" {0}; echo \"$0\" >> {0}", temp.path().join("got").display());
        let file = Some(("node1".to_owned(), "slots 4\n".to_owned()));
        let run = SetupCommand { file, ..SetupCommand::new(&["/bin/sh", "-c", &script]) };
        let step = SetupStep::command(run.clone(), vec![SetupCommand::new(&["/bin/false"])], false, "a test");
        assert!(apply(&mut journal, "x", &seen(vec![step]), false, &|_| Ok(false)).unwrap());
        let got = fs::read_to_string(temp.path().join("got")).unwrap();
        assert!(got.starts_with("slots 4\n") && got.ends_with("/node1\n"), "{got}");
        assert!(run.to_string().ends_with(" node1"));
        // A step that cannot be undone stays in the journal, with the commands that undo it by hand.
        let [why] = &undo_all(&mut journal)[..] else { panic!() };
        assert!(why.ends_with("it is undone by: /bin/false"), "{why}");
        assert_eq!(SetupJournal::read(&temp.path().join("state/setup")).unwrap(), journal.entries());
        // If a process died in the middle, a step may be undone or not. That is said, and the entry stays.
        let number = journal.entries()[0].number;
        journal.mark(number, false).unwrap();
        let [why] = &undo_all(&mut journal)[..] else { panic!() };
        assert!(why.ends_with("it may be in effect, and is undone by: /bin/false"), "{why}");
        assert!(!journal.entries()[0].is_done);
    }

    #[test]
    fn a_command_that_fails_may_be_in_effect() {
        let Some((temp, mut journal)) = place() else { return };
        let script = |script: &str| {
            SetupCommand::new(&["/bin/sh", "-c", &script.replace("AT", &temp.path().display().to_string())])
        };
        let fail = |journal: &mut SetupJournal, undo: &[&str]| {
            let undo = undo.iter().map(|undo| script(undo)).collect();
            let step = SetupStep::command(script("echo > AT/half; exit 1"), undo, false, "fails");
            apply(journal, "x", &seen(vec![step]), false, &|_| Ok(false)).unwrap_err().to_string()
        };
        let why = fail(&mut journal, &["rm AT/half"]);
        assert!(why.ends_with("nothing was changed") && journal.entries().is_empty(), "{why}");
        let why = fail(&mut journal, &["exit 3", "rm AT/half"]);
        assert!(why.contains("it may be in effect, and is undone by: /bin/sh -c 'exit 3'; "), "{why}");
        assert!(!why.contains("nothing was changed") && journal.entries().len() == 1, "{why}");
        assert!(!temp.path().join("half").exists());
    }

    #[test]
    fn what_a_dead_process_has_begun_is_settled() {
        let Some((temp, mut journal)) = place() else { return };
        let at = |name: &str| temp.path().join(name);
        let ownership = Some(Ownership::root(0o644));
        let file = |name: &str| MadeChange::File { path: at(name), before: ownership, after: ownership };
        let command = |word: &str| MadeChange::Command { run: SetupCommand::new(&[word]), undo: Vec::new() };
        for (name, text) in [("before", "b"), ("after", "a"), ("other", "o")] {
            fs::write(at(name), text).unwrap();
            journal.begin("x", false, file(name), [Some(b"b"), Some(b"a")]).unwrap();
        }
        fs::create_dir(at("made")).unwrap();
        for change in ["made", "not"].map(|name| MadeChange::Directory(at(name))) {
            journal.begin("x", false, change, [None, None]).unwrap();
        }
        for change in ["yes", "no", "unknown"].map(command) {
            journal.begin("x", false, change, [None, None]).unwrap();
        }
        fs::write(at(".after.new"), "of the dead process").unwrap();
        journal
            .settle(|run| {
                [("yes", true), ("no", false)].into_iter().find(|(word, _)| run.argv == [*word]).map(|found| found.1)
            })
            .unwrap();
        let left: Vec<(u64, bool)> = journal.entries().iter().map(|entry| (entry.number, entry.is_done)).collect();
        assert_eq!(left, [(2, true), (3, false), (4, true), (6, true), (8, false)]);
        assert!(!at(".after.new").exists());
    }

    #[test]
    fn one_process_at_a_time_has_the_journal() {
        let Some((temp, mut journal)) = place() else { return };
        let directory = temp.path().join("state/setup");
        let (has, had) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let journal = SetupJournal::open(&directory).unwrap();
                has.send(journal.entries().len()).unwrap();
            });
            assert!(had.recv_timeout(std::time::Duration::from_millis(500)).is_err(), "two have it");
            journal.begin("x", false, MadeChange::Directory(temp.path().join("made")), [None, None]).unwrap();
            drop(journal);
            // The second has read what the first has written.
            assert_eq!(had.recv_timeout(std::time::Duration::from_secs(60)), Ok(1));
        });
        // The first process may remove the journal if it is empty.
        fs::remove_dir_all(temp.path().join("state")).unwrap();
        fs::create_dir(temp.path().join("state")).unwrap();
        let journal = SetupJournal::open(&directory).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| SetupJournal::open(&directory).map(SetupJournal::close));
            std::thread::sleep(std::time::Duration::from_millis(300));
            journal.close();
            assert_eq!(second.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_journal_that_is_not_understood_is_not_touched() {
        let Some((temp, journal)) = place() else { return };
        let directory = temp.path().join("state/setup");
        drop(journal);
        for text in ["", "{\"version\":2,\"entries\":[]}", "{\"version\":1,\"entries\":[{\"number\":1}]}"] {
            fs::write(directory.join("journal.json"), text).unwrap();
            let error = SetupJournal::open(&directory).err().unwrap().to_string();
            assert!(error.contains("is of a later release of jobfence, or is broken"), "{error}");
        }
        // An earlier release does not say whether a step reaches more than this node.
        let earlier =
            r#"{"version":1,"entries":[{"number":1,"scheduler":"x","done":true,"change":{"directory":"/x"}}]}"#;
        fs::write(directory.join("journal.json"), earlier).unwrap();
        assert!(!SetupJournal::read(&directory).unwrap()[0].is_central);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(SetupJournal::open(&directory).err().unwrap().to_string().contains("others than root can open"));
    }
}
