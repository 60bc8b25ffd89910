// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence setup` has done, kept until it is undone, and how it is undone.
//!
//! An entry is on disk before its step is done, and says whether the step has been done completely. So a process that dies in the middle
//! leaves either nothing of a step, or a step that has an entry. Each changed file is here twice, as it was before and after the step: only
//! a file that is still as the step has left it is restored. A later release of jobfence undoes the entries of an earlier one: `VERSION`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use jobfence::sys::lock::Lock;
use jobfence::sys::program::AskedProgram;
use nix::errno::Errno;
use nix::unistd::UnlinkatFlags;
use serde_json::{Value, json};

use super::plan::SetupCommand;
use crate::systemd;
use crate::whole::{self, Ownership};

/// The form of the journal. A journal of a later form is not touched.
const VERSION: u64 = 1;
const NAME: &str = "journal.json";
/// How long to wait for another `jobfence setup`, which may wait for a job.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a command may take. systemd lets a service start for 90 seconds.
const COMMAND: Duration = Duration::from_secs(120);

/// The journal. One process at a time has it.
pub struct SetupJournal {
    directory: PathBuf,
    entries: Vec<SetupEntry>,
    /// The lock on the journal. `None`: the journal is only looked at.
    _lock: Option<Lock>,
}

/// A step that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupEntry {
    pub number: u64,
    /// The scheduler that the step was for.
    pub scheduler: String,
    /// Whether the step reaches more than this node.
    pub is_central: bool,
    /// Whether the step was done completely.
    pub is_done: bool,
    pub change: MadeChange,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MadeChange {
    /// A directory that was made.
    Directory(PathBuf),
    /// A file that was changed. If it existed before and after the step, `NUMBER.before` and `NUMBER.after` have its texts.
    File {
        path: PathBuf,
        before: Option<Ownership>,
        after: Option<Ownership>,
    },
    Command {
        run: SetupCommand,
        undo: Vec<SetupCommand>,
    },
}

impl SetupEntry {
    /// What the step is about, for people.
    pub fn about(&self) -> String {
        match &self.change {
            MadeChange::Directory(path) | MadeChange::File { path, .. } => path.display().to_string(),
            MadeChange::Command { run, .. } => run.to_string(),
        }
    }

    /// Whether the undo disables jobfence.service. That service is for all schedulers.
    pub fn is_service(&self) -> bool {
        let is_it = |run: &SetupCommand| run.argv.last().is_some_and(|word| word == systemd::SERVICE);
        matches!(&self.change, MadeChange::Command { run, undo } if is_it(run) && !undo.is_empty())
    }

    /// Whether the step has no undo, since it needs none.
    pub fn is_nothing(&self) -> bool {
        matches!(&self.change, MadeChange::Command { undo, .. } if undo.is_empty())
    }
}

/// How often a directory is made again if another process removes it.
const TRIES: u32 = 100;

impl SetupJournal {
    /// Opens the journal, and waits until no other process has it.
    pub fn open(directory: &Path) -> Result<Self> {
        let mut tries = 0;
        loop {
            match Self::open_once(directory) {
                // The process that had the journal has left nothing in it, and has removed it and the directory above.
                Err(error) if error.kernel_errno() == Some(Errno::ENOENT) && tries < TRIES => tries += 1,
                opened => return opened,
            }
        }
    }

    fn open_once(directory: &Path) -> Result<Self> {
        let above = directory.parent().unwrap_or(Path::new("/"));
        for (path, mode) in [(above, 0o755), (directory, 0o700)] {
            match whole::make_directory(path, mode) {
                Err(error) if error.kernel_errno() != Some(Errno::EEXIST) => return Err(error),
                _ => {}
            }
        }
        let above = Dir::open(above)?;
        let name = directory.file_name().unwrap_or_default();
        let stat = above.child(name)?.stat()?;
        // Root runs the commands that are in the journal.
        if stat.st_uid != 0 || stat.st_mode & 0o077 != 0 {
            return Err(Error::new("others than root can open").at(directory).hint("chown root and chmod 0700 it"));
        }
        let lock = Lock::on(&above, &name.to_string_lossy(), Instant::now() + PATIENCE)?;
        // Another process may have removed the journal just before this one had the lock.
        above.child(name)?;
        Ok(Self { directory: directory.to_owned(), entries: Self::read(directory)?, _lock: Some(lock) })
    }

    /// Reads the journal without waiting for another process.
    pub fn look_at(directory: &Path) -> Result<Self> {
        Ok(Self { directory: directory.to_owned(), entries: Self::read(directory)?, _lock: None })
    }

    /// The entries.
    pub fn read(directory: &Path) -> Result<Vec<SetupEntry>> {
        let file = directory.join(NAME);
        let Some((text, _)) = whole::read(&file)? else { return Ok(Vec::new()) };
        let not_understood = || Error::new("this journal is of a later release of jobfence, or is broken:").at(&file);
        let found: Value = serde_json::from_slice(&text).map_err(|_| not_understood())?;
        let entries = found.get("entries").and_then(Value::as_array).filter(|_| found["version"] == VERSION);
        let entries = entries.ok_or_else(not_understood)?.iter().map(entry_from);
        entries.collect::<Option<Vec<_>>>().ok_or_else(not_understood)
    }

    pub fn entries(&self) -> &[SetupEntry] {
        &self.entries
    }

    /// Records that a step begins; `texts` are those of the file before and after it. Returns the number of its entry.
    pub fn begin(
        &mut self,
        scheduler: &str,
        is_central: bool,
        change: MadeChange,
        texts: [Option<&[u8]>; 2],
    ) -> Result<u64> {
        let number = self.entries.last().map_or(1, |last| last.number + 1);
        for (text, kind) in texts.into_iter().zip(["before", "after"]) {
            if let Some(text) = text {
                whole::replace_durably(&self.copy(number, kind), text, Ownership::root(0o600))?;
            }
        }
        let scheduler = scheduler.to_owned();
        self.entries.push(SetupEntry { number, scheduler, is_central, is_done: false, change });
        self.save()?;
        Ok(number)
    }

    /// Records whether the step was done completely.
    pub fn mark(&mut self, number: u64, is_done: bool) -> Result<()> {
        self.entries.iter_mut().filter(|entry| entry.number == number).for_each(|entry| entry.is_done = is_done);
        self.save()
    }

    /// Removes the entry of a step, when nothing of the step is left.
    pub(super) fn forget(&mut self, number: u64) -> Result<()> {
        self.entries.retain(|entry| entry.number != number);
        self.save()?;
        for kind in ["before", "after"] {
            whole::discard(&self.copy(number, kind), UnlinkatFlags::NoRemoveDir)?;
        }
        Ok(())
    }

    /// Finds out what became of steps that a dead process had begun. `is_in_effect`: whether the scheduler says that a command is in
    /// effect. `None`: it does not say.
    pub fn settle(&mut self, is_in_effect: impl Fn(&SetupCommand) -> Option<bool>) -> Result<()> {
        for entry in self.entries.clone().iter().filter(|entry| !entry.is_done) {
            let is_done = match &entry.change {
                MadeChange::Directory(path) => Some(path.is_dir()),
                MadeChange::File { path, .. } => {
                    whole::discard_new(path);
                    let now = whole::read(path)?.map(|(text, _)| text);
                    if now == self.text(entry, "after")? {
                        Some(true)
                    } else {
                        (now == self.text(entry, "before")?).then_some(false)
                    }
                }
                MadeChange::Command { run, .. } => is_in_effect(run),
            };
            match is_done {
                Some(true) => self.mark(entry.number, true)?,
                Some(false) => self.forget(entry.number)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Undoes a step. `Err`: a sentence that says why it stays.
    pub fn undo(&mut self, entry: &SetupEntry) -> Result<(), String> {
        self.undo_unless_changed(entry, |_| false)
    }

    /// Undoes a step, unless somebody has changed the file since. A file that is the installation's own, by `is_ours`, may have changed.
    pub fn undo_unless_changed(&mut self, entry: &SetupEntry, is_ours: impl Fn(&Path) -> bool) -> Result<(), String> {
        let failed = |error: Error| error.to_string();
        self.can_be_undone(entry, is_ours)?;
        match &entry.change {
            MadeChange::Directory(path) => match whole::discard(path, UnlinkatFlags::RemoveDir) {
                // The directory stays, since others have put something into it.
                Err(error) if error.kernel_errno() != Some(Errno::ENOTEMPTY) => return Err(failed(error)),
                _ => {}
            },
            MadeChange::File { path, before, .. } => self.restore(entry, path, *before).map_err(failed)?,
            MadeChange::Command { undo, .. } => {
                self.mark(entry.number, false).map_err(failed)?;
                let mut left = None;
                for command in undo {
                    if let Err(why) = self.run(command) {
                        left.get_or_insert(why);
                        // A step that was done only in part may be undone in part. So the other commands are run, too.
                        if entry.is_done {
                            break;
                        }
                    }
                }
                if let Some(why) = left {
                    self.mark(entry.number, entry.is_done).map_err(failed)?;
                    let still = if entry.is_done { "it is undone by" } else { "it may be in effect, and is undone by" };
                    return Err(format!("{why}; {still}: {}", in_words(undo)));
                }
            }
        }
        self.forget(entry.number).map_err(failed)
    }

    /// Looks whether a step can be taken back. `Err`: why it stays.
    pub fn can_be_undone(&self, entry: &SetupEntry, is_ours: impl Fn(&Path) -> bool) -> Result<(), String> {
        let failed = |error: Error| error.to_string();
        let MadeChange::File { path, .. } = &entry.change else { return Ok(()) };
        let now = whole::read(path).map_err(failed)?.map(|(text, _)| text);
        let before = self.text(entry, "before").map_err(failed)?;
        if now == before || now == self.text(entry, "after").map_err(failed)? || is_ours(path) {
            return Ok(());
        }
        let path = path.display();
        Err(match before {
            Some(_) => format!(
                "{path} was changed after jobfence setup, and stays; as it was before is in {}",
                self.copy(entry.number, "before").display()
            ),
            None => format!("{path} was changed after jobfence setup, and stays; before, there was no such file"),
        })
    }

    fn restore(&self, entry: &SetupEntry, path: &Path, before: Option<Ownership>) -> Result<()> {
        whole::discard_new(path);
        let now = whole::read(path)?;
        let text = self.text(entry, "before")?;
        if now.as_ref().map(|(text, _)| text) == text.as_ref() {
            return Ok(());
        }
        match (text, now.map(|(_, now)| now).or(before)) {
            (Some(text), Some(ownership)) => whole::replace_durably(path, &text, ownership),
            _ => whole::discard(path, UnlinkatFlags::NoRemoveDir),
        }
    }

    /// Runs a command to its end.
    pub fn run(&self, command: &SetupCommand) -> Result<(), String> {
        let [program, arguments @ ..] = command.argv.as_slice() else { return Ok(()) };
        let mut arguments = arguments.to_vec();
        let place = self.directory.join("given");
        let file = command.file.as_ref().map(|(name, text)| (place.join(name), text));
        if let Some((file, text)) = &file {
            let made = whole::make_directory(&place, 0o700);
            if made.as_ref().is_err_and(|error| error.kernel_errno() != Some(Errno::EEXIST)) {
                return made.map_err(|error| error.to_string());
            }
            whole::replace_durably(file, text.as_bytes(), Ownership::root(0o600)).map_err(|error| error.to_string())?;
            arguments.push(file.display().to_string());
        }
        let asked = AskedProgram::new(program, &arguments, &[]).ask(Instant::now() + COMMAND);
        if let Some((file, _)) = &file {
            let _ = whole::discard(file, UnlinkatFlags::NoRemoveDir);
            let _ = whole::discard(&place, UnlinkatFlags::RemoveDir);
        }
        asked.map(drop).map_err(|why| format!("'{command}' failed: {}", why.to_string().replace('\n', "; ")))
    }

    /// Removes the journal from the disk, if it is empty.
    pub fn close(self) {
        if self.entries.is_empty() {
            for file in Dir::open(&self.directory).and_then(|dir| dir.list(false)).unwrap_or_default() {
                let _ = whole::discard(&self.directory.join(file), UnlinkatFlags::NoRemoveDir);
            }
            for directory in [Some(self.directory.as_path()), self.directory.parent()].into_iter().flatten() {
                let _ = whole::discard(directory, UnlinkatFlags::RemoveDir);
            }
        }
    }

    fn copy(&self, number: u64, kind: &str) -> PathBuf {
        self.directory.join(format!("{number}.{kind}"))
    }

    /// The file before or after the step. `None`: there was no file.
    fn text(&self, entry: &SetupEntry, kind: &str) -> Result<Option<Vec<u8>>> {
        let (MadeChange::File { before, after, .. }, path) = (&entry.change, self.copy(entry.number, kind)) else {
            return Ok(None);
        };
        if (if kind == "before" { before } else { after }).is_none() {
            return Ok(None);
        }
        let text = whole::read(&path)?.map(|(text, _)| text);
        text.ok_or_else(|| Error::new("a file of the journal is missing:").at(&path)).map(Some)
    }

    fn save(&self) -> Result<()> {
        let entries: Vec<Value> = self.entries.iter().map(value_of).collect();
        let text = format!("{:#}\n", json!({"version": VERSION, "entries": entries}));
        whole::replace_durably(&self.directory.join(NAME), text.as_bytes(), Ownership::root(0o600))
    }
}

/// Commands as an administrator would type them.
pub fn in_words(commands: &[SetupCommand]) -> String {
    commands.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn value_of(entry: &SetupEntry) -> Value {
    let ownership = |of: &Option<Ownership>| of.map(|of| json!([of.mode, of.uid, of.gid]));
    let command = |command: &SetupCommand| json!({"argv": command.argv, "file": command.file});
    let change = match &entry.change {
        MadeChange::Directory(path) => json!({"directory": path.to_string_lossy()}),
        MadeChange::File { path, before, after } => {
            json!({"file": path.to_string_lossy(), "before": ownership(before), "after": ownership(after)})
        }
        MadeChange::Command { run, undo } => {
            json!({"run": command(run), "undo": undo.iter().map(command).collect::<Vec<_>>()})
        }
    };
    json!({
        "number": entry.number, "scheduler": entry.scheduler, "central": entry.is_central, "done": entry.is_done, "change": change
    })
}

/// Reads an entry. `None`: it is none.
fn entry_from(value: &Value) -> Option<SetupEntry> {
    let change = value.get("change")?;
    let path = |key: &str| change.get(key)?.as_str().map(PathBuf::from);
    let ownership = |key: &str| {
        let of: Vec<u32> = change.get(key)?.as_array()?.iter().filter_map(|it| it.as_u64()?.try_into().ok()).collect();
        Some(Ownership { mode: *of.first()?, uid: *of.get(1)?, gid: *of.get(2)? })
    };
    let change = if let Some(path) = path("directory") {
        MadeChange::Directory(path)
    } else if let Some(path) = path("file") {
        MadeChange::File { path, before: ownership("before"), after: ownership("after") }
    } else {
        let undo = change.get("undo")?.as_array()?.iter().map(command_from).collect::<Option<_>>()?;
        MadeChange::Command { run: command_from(change.get("run")?)?, undo }
    };
    Some(SetupEntry {
        number: value.get("number")?.as_u64()?,
        scheduler: value.get("scheduler")?.as_str()?.to_owned(),
        is_central: value.get("central").and_then(Value::as_bool).unwrap_or(false),
        is_done: value.get("done")?.as_bool()?,
        change,
    })
}

fn command_from(value: &Value) -> Option<SetupCommand> {
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let argv = value.get("argv")?.as_array()?.iter().map(word).collect::<Option<_>>()?;
    let file = value.get("file").and_then(Value::as_array);
    let file = file.and_then(|file| Some((word(file.first()?)?, word(file.get(1)?)?)));
    Some(SetupCommand { argv, file })
}
