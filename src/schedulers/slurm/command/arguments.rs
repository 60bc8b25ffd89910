// SPDX-License-Identifier: GPL-2.0-or-later
//! The line of plugstack.conf: the plugin's arguments, and what the command line adds to them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jobfence::config::{self, Candidate, KEYS, LoadError, Loaded};
use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::schedulers::slurm::plugstack::{self, PlugstackLine, PlugstackLookup};

use crate::check::rows::Rows;
use crate::configured::Configured;
use crate::schedulers::slurm::line::library;
use crate::schedulers::slurm::load;

/// The line by which Slurm would load the plugin, in `file` or in the file of slurm.conf. `None`: there is no Slurm.
pub fn find(file: Option<&Path>, slurm: Option<&Slurm>) -> Option<(PathBuf, PlugstackLookup)> {
    let file = file.map_or_else(|| slurm.map(Slurm::plugstack), Some)?;
    Some((file.to_owned(), plugstack::find(file)))
}

/// The line, if there is one.
fn of(found: Option<&(PathBuf, PlugstackLookup)>) -> Option<&PlugstackLine> {
    match found {
        Some((_, PlugstackLookup::Line(line))) => Some(line),
        _ => None,
    }
}

/// Says what Slurm would do with the line. Returns why it would load nothing, if so.
pub fn look(rows: &mut Rows, (file, found): &(PathBuf, PlugstackLookup), slurm: Option<&Slurm>) -> Option<String> {
    match found {
        PlugstackLookup::Line(line) if line.is_cut => {
            rows.fault("plugin", format!("{line}: is longer than 4095 bytes, after which Slurm begins another line; put keys into jobfence.conf"
            ));
            Some(format!("NO job would be fenced here: Slurm cuts {}", line.place()))
        }
        PlugstackLookup::Line(line) => match load::load(line, slurm.and_then(Slurm::plugin_dir)) {
            Ok(loaded) => {
                let is = if loaded == Path::new(&line.plugin) {
                    String::new()
                } else {
                    format!(": is {}", loaded.display())
                };
                rows.fact("plugin", format!("{line}{is}"));
                for place in &line.again {
                    rows.remark("plugin", format!("{place}: names the plugin again, and what stands there does not count; remove one of the lines"
                    ));
                }
                let (what, remedy) = closed(&loaded)?;
                let text = format!(
                    "{what}: srun and sbatch load the plugin as the job's user, and users may not read this; {remedy}"
                );
                if line.required {
                    rows.fault("plugin", text)
                } else {
                    rows.remark("plugin", text)
                }
                line.required
                    .then(|| "NO user could start a job here: srun and sbatch cannot load the plugin".to_owned())
            }
            Err(why) => {
                rows.fault("plugin", format!("{line}: {why}"));
                let then = match line.required {
                    true => "Slurm cannot load the plugin, and starts no job without it",
                    false => "Slurm cannot load the plugin, and starts jobs without it (the line says optional)",
                };
                Some(format!("NO job would be fenced here: {then}"))
            }
        },
        PlugstackLookup::Nothing(ignored) => {
            let ignored = match ignored.as_slice() {
                [] => String::new(),
                places => {
                    format!("; Slurm ignores {}, which does not begin with 'required' or 'optional'", places.join(", "))
                }
            };
            rows.fault("plugin", format!("no line of {} loads libjobfence.so{ignored}", file.display()));
            Some(
                "NO job would be fenced here: Slurm does not load the plugin; 'jobfence enable' adds its line"
                    .to_owned(),
            )
        }
        PlugstackLookup::Unseen(error) => {
            rows.remark("plugin", format!("{error}: whether Slurm loads the plugin was not seen"));
            None
        }
    }
}

/// What keeps users from reading a file, and the remedy: the file's own mode, or that of a directory above it. An ACL may allow some users
/// to read it.
fn closed(file: &Path) -> Option<(String, String)> {
    let file = file.canonicalize().ok()?;
    let lacks = |path: &Path, bit: u32| path.metadata().is_ok_and(|found| found.mode() & bit == 0);
    let closed = file.ancestors().skip(1).find(|directory| lacks(directory, 0o001)).map(|directory| (directory, "o+x"));
    let (path, lacking) = closed.or_else(|| lacks(&file, 0o004).then_some((file.as_path(), "o+r")))?;
    let (mode, shown) = (path.metadata().ok()?.mode() & 0o7777, path.display());
    Some((format!("{shown} has the mode {mode:04o}"), format!("chmod {lacking} {shown}")))
}

/// The PAM line that fences sessions with this configuration: the file that Slurm loads, with the same arguments.
pub fn of_pam(configured: &Configured, found: Option<&(PathBuf, PlugstackLookup)>) -> String {
    let (file, mut arguments) = match of(found) {
        Some(line) if line.plugin.starts_with('/') => (PathBuf::from(&line.plugin), line.arguments.clone()),
        Some(line) => (library(), line.arguments.clone()),
        None => (library(), Vec::new()),
    };
    if let Some(config) = &configured.config {
        let config = std::path::absolute(config).unwrap_or_else(|_| config.clone());
        arguments.retain(|argument| !argument.to_ascii_lowercase().starts_with("config="));
        arguments.insert(0, format!("config={}", config.display()));
    }
    let words = [vec![file.display().to_string()], arguments].concat();
    format!("session required {}", words.join(" "))
}

/// The plugin's arguments, each with its origin: those of the line, except keys that are also on the command line, and then those of the
/// command line.
pub struct PluginArguments(Vec<(Vec<u8>, String)>);

impl PluginArguments {
    pub fn from_plugstack(found: Option<&(PathBuf, PlugstackLookup)>, configured: &Configured) -> Self {
        let key =
            |argument: &[u8]| argument.split(|byte| *byte == b'=').next().unwrap_or_default().to_ascii_lowercase();
        let (ours, options) = configured.named_arguments();
        let ours: Vec<(Vec<u8>, String)> = ours.into_iter().zip(options).collect();
        let is_ours = |argument: &[u8]| ours.iter().any(|(ours, _)| key(ours) == key(argument));
        let mut given = Vec::new();
        if let Some(line) = of(found) {
            for (number, argument) in line.arguments.iter().enumerate() {
                if !is_ours(argument.as_bytes()) {
                    given.push((argument.clone().into_bytes(), format!("{} argument {}", line.place(), number + 1)));
                }
            }
        }
        given.extend(ours);
        Self(given)
    }

    /// Reads the configuration as the plugin does.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let arguments: Vec<&[u8]> = self.0.iter().map(|(argument, _)| argument.as_slice()).collect();
        let name =
            |number: usize| self.0.get(number.saturating_sub(1)).map_or_else(String::new, |(_, who)| who.clone());
        config::load_named(&arguments, &name)
    }

    /// The settings of these keys that apply to a job: `KEY=VALUE (PLACE)`.
    pub fn settings(&self, candidate: &Candidate, keys: &[&str]) -> Vec<String> {
        let keys = keys.iter().filter_map(|name| KEYS.iter().find(|key| key.name == *name));
        let last = keys.filter_map(|key| candidate.said_of(key).last());
        last.map(|setting| format!("{setting} ({})", setting.origin())).collect()
    }
}
