// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence setup`: does what the page of each scheduler tells to do on a node, and takes it back.
//!
//! Each scheduler's part plans, and changes nothing. All of it is shown before anything is done. What is done is recorded first: `journal`.

mod apply;
mod journal;
mod outcome;
pub mod plan;
mod real_job;
pub mod sleeping_job;
mod undo;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use diffy::DiffOptions;
use jobfence::printable::printable_lines;
use jobfence::sys::dir::Dir;

use crate::check::{self, CheckStage};
use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::part::SchedulersPart;
use crate::schedulers::ALL;
use apply::LookedAtStep;
use journal::SetupJournal;
pub use outcome::SetupOptions;
use outcome::{Outcome, say};
use plan::{JobTried, SetupAction, SetupHost};

/// How long the real job of each scheduler may take.
const JOB: Duration = Duration::from_secs(60);

/// A scheduler that is here.
struct FoundScheduler {
    part: &'static dyn SchedulersPart,
    config: Option<PathBuf>,
    is_bystander: bool,
    /// The steps. The error is the one thing that the administrator has to do before.
    steps: Result<Vec<LookedAtStep>, String>,
}

/// The exit status is 0 if nothing is to be changed; 2 if something was changed or undone, or would be with `--dry-run`; 1 if something
/// failed, or the administrator has to do something; 3 if all that can be undone was, and a scheduler still starts jobs by jobfence.
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
        (true, true) => undo::or_asked(undo::would_undo(options, &host, &parts, ALL), &host, &parts)?,
        (true, false) => undo::or_asked(undo::undo(options, &host, &parts, ALL), &host, &parts)?,
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

/// Fails if others than root can replace the program: a scheduler's daemon starts it as root.
fn only_roots(program: &Path) -> Result<(), Failure> {
    for path in program.ancestors() {
        let found = path.symlink_metadata().map_err(|error| format!("look at {}: {error}", path.display()))?;
        // In a sticky directory, others cannot replace root's file. A group may write to Debian's /usr/local: its members may install
        // programs.
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

/// The scheduler's name for `--scheduler`.
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

/// Asks the parts what is here and what is to be done, and shows all of it.
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
            // The other schedulers of the host are set up all the same.
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

/// The outcome of `--dry-run`.
fn would_do(found: &[FoundScheduler], central: bool) -> Outcome {
    let mut outcome = Outcome { is_by_hand: has_remark(found), ..Outcome::default() };
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

fn has_remark(found: &[FoundScheduler]) -> bool {
    let mut steps = found.iter().flat_map(|one| one.steps.iter().flatten());
    steps.any(|seen| matches!(seen.step.action, SetupAction::Remark))
}

/// The steps of a scheduler. If there is an obstacle, the administrator has to remove it.
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

/// Has `jobfence check` look at this host, before or after a scheduler is set up.
fn checked(plugstack: Option<PathBuf>, config: Option<PathBuf>, is_before: bool) -> Result<bool, Failure> {
    let configured = Configured { config, overrides: Vec::new() };
    let stage = if is_before { CheckStage::BeforeSetup } else { CheckStage::AfterSetup };
    check::run(&check::CheckOptions { plugstack, stage, configured, ..Default::default() })
}

fn act(
    host: &SetupHost,
    journal: &mut SetupJournal,
    found: &[FoundScheduler],
    options: &SetupOptions,
) -> Result<Outcome, Failure> {
    let mut outcome = Outcome { is_by_hand: has_remark(found), ..Outcome::default() };
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
            if is_changed {
                outcome.good.push(format!("{name}: done; no job runs on this host"));
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::StartsJobs;
    use plan::{SetupPlan, SetupStep};

    /// A scheduler that no host has.
    pub(super) struct FakePart {
        pub(super) name: &'static str,
        pub(super) plan: fn(&SetupHost) -> Result<Option<SetupPlan>, Failure>,
        pub(super) starts_jobs: fn(&SetupHost) -> StartsJobs,
    }

    pub(super) const FAKE: FakePart = FakePart { name: "A", plan: |_| Ok(None), starts_jobs: |_| StartsJobs::No };

    impl SchedulersPart for FakePart {
        fn name(&self) -> &'static str {
            self.name
        }

        fn daemons(&self) -> &'static [&'static str] {
            &[]
        }

        fn plan(&self, host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
            (self.plan)(host)
        }

        fn starts_jobs(&self, host: &SetupHost) -> StartsJobs {
            (self.starts_jobs)(host)
        }
    }

    /// Options with a journal in a directory of its own. `None`: the test does not run as root.
    pub(super) fn place() -> Option<(tempfile::TempDir, SetupHost, SetupOptions)> {
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

    fn makes_a_file(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
        let steps = vec![SetupStep::file(host.data.join("here/file"), "x", "a test").central()];
        Ok(Some(SetupPlan { steps, ..Default::default() }))
    }

    #[test]
    fn one_that_cannot_be_looked_at_leaves_the_others() {
        let Some((_temp, host, options)) = place() else { return };
        static PARTS: [FakePart; 2] = [
            FakePart { plan: |_| Err("its file is broken".into()), ..FAKE },
            FakePart { name: "B", plan: makes_a_file, ..FAKE },
        ];
        let found = look(&host, &[&PARTS[0], &PARTS[1]], &options).unwrap();
        let outcome = would_do(&found, true);
        assert_eq!(
            (&outcome.to_do[..], &outcome.good[..]),
            (&["A: its file is broken".into()][..], &["B: 1 steps".into()][..])
        );
    }

    #[test]
    fn a_host_without_jobs_is_not_checked() {
        let Some((_temp, host, options)) = place() else { return };
        let options = SetupOptions { central: true, ..options };
        let mut found = look(&host, &[&FakePart { plan: makes_a_file, ..FAKE }], &options).unwrap();
        found[0].is_bystander = true;
        let mut journal = SetupJournal::open(&options.journal).unwrap();
        let outcome = act(&host, &mut journal, &found, &options).unwrap();
        assert!(outcome.is_changed && outcome.to_do.is_empty());
        assert_eq!(outcome.good, ["A: done; no job runs on this host"]);
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
}
