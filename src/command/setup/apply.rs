// SPDX-License-Identifier: GPL-2.0-or-later
//! Does the steps of a plan, and takes them back if one of them fails.

use std::path::Path;

use jobfence::error::Error;
use nix::unistd::UnlinkatFlags;

use super::journal::{MadeChange, SetupJournal};
use super::plan::{CommandChange, FileChange, SetupAction, SetupPlan, SetupStep};
use crate::command::Failure;
use crate::whole::{self, Ownership};

/// A step whose effect was looked at.
pub struct SeenStep {
    pub step: SetupStep,
    /// Whether nothing is to be done for it.
    pub is_done: bool,
    /// The file as it is.
    pub before: Option<(Vec<u8>, Ownership)>,
}

/// Looks at what each step would change. Fails if a file cannot be changed safely.
pub fn see(plan: SetupPlan) -> Result<Vec<SeenStep>, Failure> {
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
        all.push(SeenStep { step, is_done, before });
    }
    Ok(all)
}

/// A link is the administrator's, and stays a link: the file that it leads to is changed.
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

/// Does those steps that are to be done here. Returns whether something was changed. If a step fails, the others are undone.
pub fn apply(journal: &mut SetupJournal, scheduler: &str, steps: &[SeenStep], central: bool) -> Result<bool, Failure> {
    let before = journal.entries().last().map_or(0, |last| last.number);
    let is_to_do = |seen: &SeenStep| !seen.is_done && (central || !seen.step.is_central);
    if !steps.iter().any(is_to_do) {
        return Ok(false);
    }
    for seen in steps {
        let done = match &seen.step.action {
            SetupAction::Condition(holds) => match holds() {
                Ok(true) => Ok(()),
                Ok(false) => Err(format!("{}: see above", seen.step.why)),
                Err(error) => Err(error.to_string()),
            },
            SetupAction::File(file) if is_to_do(seen) => change(journal, scheduler, file, seen),
            SetupAction::Command(command) if is_to_do(seen) => run(journal, scheduler, command),
            _ => Ok(()),
        };
        if let Err(why) = done {
            let mut left = Vec::new();
            for entry in journal.entries().to_vec().iter().rev().filter(|entry| entry.number > before) {
                left.extend(journal.undo(entry).err());
            }
            left.insert(0, format!("{why}; nothing was changed"));
            return Err(left.join("; but ").into());
        }
        if is_to_do(seen) {
            println!("{:<14} {}", "changed", seen.step.about());
        }
    }
    Ok(true)
}

fn change(journal: &mut SetupJournal, scheduler: &str, file: &FileChange, seen: &SeenStep) -> Result<(), String> {
    let failed = |error: Error| error.to_string();
    let now = whole::read(&file.path).map_err(failed)?;
    if now != seen.before {
        return Err(format!("{} was changed meanwhile: run this again", file.path.display()));
    }
    for directory in missing(&file.path) {
        let number =
            journal.begin(scheduler, MadeChange::Directory(directory.to_owned()), [None, None]).map_err(failed)?;
        whole::make_directory(directory, 0o755).map_err(failed)?;
        journal.mark(number, true).map_err(failed)?;
    }
    let before = now.as_ref().map(|(_, ownership)| *ownership);
    let ownership = before.unwrap_or(Ownership::of_root(file.mode));
    let made = MadeChange::File { path: file.path.clone(), before, after: file.text.as_ref().map(|_| ownership) };
    let texts = [now.as_ref().map(|(text, _)| text.as_slice()), file.text.as_deref()];
    let number = journal.begin(scheduler, made, texts).map_err(failed)?;
    match &file.text {
        Some(text) => whole::replace_durably(&file.path, text, ownership),
        None => whole::discard(&file.path, UnlinkatFlags::NoRemoveDir),
    }
    .map_err(failed)?;
    journal.mark(number, true).map_err(failed)
}

/// The directories above a file that do not exist, the highest first.
fn missing(file: &Path) -> Vec<&Path> {
    let mut missing: Vec<&Path> = file.ancestors().skip(1).take_while(|directory| !directory.exists()).collect();
    missing.reverse();
    missing
}

fn run(journal: &mut SetupJournal, scheduler: &str, command: &CommandChange) -> Result<(), String> {
    let made = MadeChange::Command { run: command.run.clone(), undo: command.undo.clone() };
    let number = journal.begin(scheduler, made, [None, None]).map_err(|error| error.to_string())?;
    journal.run(&command.run)?;
    journal.mark(number, true).map_err(|error| error.to_string())
}
