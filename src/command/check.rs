// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence check`: whether a job would be fenced here, how, and if not, why not.
//!
//! It follows the path of a step: the line in plugstack.conf with its arguments, the file that Slurm loads by it, the limits of every kind
//! of job in the configuration, and the directories for them.

mod attach;
pub mod claims;
pub mod daemon;
mod describe;
pub mod doors;
pub mod names;
mod observation;
mod trial;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jobfence::config::{Candidate, DEFAULT_FILES, Loaded, Mode, default_files};
use jobfence::error::Error;
use jobfence::host::Host;
use jobfence::schedulers::slurm::conf;
use jobfence::schedulers::slurm::plugins::Slurm;

use crate::command::Failure;
use crate::configured::Configured;
use crate::part::CheckedHost;
use crate::schedulers::slurm::arguments::{self, PluginArguments};
use crate::schedulers::slurm::dirs::SlurmDirs;
use crate::schedulers::slurm::node;
use crate::schedulers::slurm::pam;
use verdict::{Cause, Fault, Verdict};

#[derive(Args)]
pub struct CheckOptions {
    /// Show every key with its value, in the form of the configuration file
    #[arg(long)]
    pub keys: bool,
    /// Read this plugstack.conf, and not the one that Slurm reads
    ///
    /// The check then says whether jobs would be fenced if Slurm read this file.
    #[arg(long, value_name = "FILE")]
    pub plugstack: Option<PathBuf>,
    /// This node's name in slurm.conf [default: as slurmd finds it]
    ///
    /// slurmd finds the node's line by SLURMD_NODENAME, or else by NodeHostname and the host's short name, its full name and its aliases.
    /// If several nodes share the host, or if slurmd was started with -N, the check must be told.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Where PAM's services are configured
    #[arg(long, value_name = "DIRECTORY", default_value = pam::DIRECTORY, hide = true)]
    pub pam_directory: PathBuf,
    #[command(flatten)]
    pub configured: Configured,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let configured = Configured { config: None, overrides: Vec::new() };
        Self { keys: false, plugstack: None, node: None, pam_directory: PathBuf::from(pam::DIRECTORY), configured }
    }
}

/// Fails unless a job would be fenced as configured.
pub fn check(options: &CheckOptions) -> Result<ExitCode, Failure> {
    run(options).map(|fenced| if fenced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a job would be fenced as configured; prints all that is found.
pub fn run(options: &CheckOptions) -> Result<bool, Failure> {
    let is_root = nix::unistd::geteuid().is_root();
    let named = options.configured.config.as_deref();
    let slurm_conf = conf::find(named);
    let node = node::name(options.node.as_deref(), slurm_conf.as_deref());
    let node = node.as_deref();
    let slurm = slurm_conf.map(|file| Slurm::from_file(&file));
    let found = arguments::find(options.plugstack.as_deref(), slurm.as_ref());
    let given = PluginArguments::from_plugstack(found.as_ref(), &options.configured);
    let Some(loaded) = understood(&given, is_root) else { return Ok(false) };
    describe::sections(&loaded, slurm.as_ref(), options.keys);
    let (candidates, untried) = candidates(&loaded, node);
    if candidates.iter().all(|candidate| candidate.config.mode == Mode::Off) {
        println!("verdict        Mode=off: no job is fenced here");
        return Ok(true);
    }
    let config = &loaded.config;
    let host = Host::read(config)?;
    let line = arguments::of_pam(&options.configured, found.as_ref());
    let pam = (options.pam_directory.as_path(), line.as_str());
    let checked = CheckedHost { proc: &host.proc, loaded: &loaded, named, pam };
    doors::names(&checked);
    let own = describe::host(&host, config, slurm.as_ref(), node);
    // Hints, not part of the verdict. If the limits are in Slurm's directories, pam_slurm_adopt suffices.
    let faults = pam::faults(&options.pam_directory, &line, own.limits);
    for said in faults.into_iter().chain(pam::ways_out(&options.pam_directory, &line, own.limits)) {
        println!("pam            {said}");
    }
    if config.mode == Mode::Observe {
        println!("mode           observe: jobs are put in cgroups and measured, but not limited");
    }
    let mut verdict = Verdict::default();
    if let Some(why) = found.as_ref().and_then(|found| arguments::look(found, slurm.as_ref())) {
        verdict.no(why);
    }
    doors::look(&checked, &mut verdict);
    observation::say(config);
    describe::io(&host, config);
    describe::huge_pages(&host);
    if slurm.is_some() {
        describe::cores(&loaded, node);
    }
    describe::gpus(&host, &candidates, slurm.as_ref(), conf::find(named), node.unwrap_or_default());
    let places = SlurmDirs::find(&host, slurm.as_ref(), node)?;
    places.describe(&host, &candidates);
    let look = Look { host: &host, loaded: &loaded, slurm: slurm.as_ref(), node, given: &given };
    let tried = look.at_all(&candidates, &places, is_root, &mut verdict)?;
    if untried > 0 {
        println!("sections       {untried} combinations of sections were not looked at: there are too many");
    }
    if !is_root {
        println!("trial          none without root: RunDir, the directories of jobs and their limits were not tried");
        return Ok(verdict.without_root());
    }
    if let Some(what) = tried.filter(|_| verdict.is_good()) {
        println!("trial          {what}");
    }
    if verdict.is_good() {
        attach::say(&host, config, slurm.as_ref(), &places, own.any);
    }
    Ok(verdict.say(&host, config.mode, own.any, &places))
}

/// The configuration, after printing its origin. `None`: it has errors, which have been printed.
fn understood(given: &PluginArguments, is_root: bool) -> Option<Loaded> {
    match given.load() {
        Ok(loaded) => {
            match &loaded.file {
                Some(file) => println!("configuration  {} is understood", file.display()),
                None => println!("configuration  defaults (there is neither {})", DEFAULT_FILES.join(" nor ")),
            }
            unread(&loaded);
            Some(loaded)
        }
        // The errors are complete sentences with file, line and column.
        Err(errors) => {
            for error in &errors {
                eprintln!("jobfence: {error}");
            }
            if !is_root && errors.iter().any(|error| error.contains("EACCES")) {
                eprintln!("jobfence: files that only root may read were not seen; run 'jobfence check' as root");
            }
            None
        }
    }
}

/// Says which files an administrator could take for the configuration.
fn unread(loaded: &Loaded) {
    let real = |file: &Path| std::fs::canonicalize(file).ok();
    let (defaults, Some(read)) = (default_files(), &loaded.file) else { return };
    let why = if defaults.first() == Some(read) { "exists" } else { "is named" };
    // A link from one place to the other makes them one file.
    for other in defaults.iter().filter(|other| *other != read && (real(other).is_none() || real(other) != real(read)))
    {
        println!("configuration  {} is not read, since {} {why}", other.display(), read.display());
    }
}

/// The combinations of sections that a job on this node can have, up to a maximum, those with fewer sections first. And how many more there
/// are.
fn candidates(loaded: &Loaded, node: Option<&str>) -> (Vec<Candidate>, usize) {
    const MOST: usize = 64;
    let facts = jobfence::facts::Facts { node: node.map(str::to_owned).into(), ..Default::default() };
    let mut all = match loaded.for_job(&facts) {
        Ok(resolved) => resolved.candidates,
        Err(_) => loaded.one_by_one().collect(),
    };
    all.sort_by_key(|candidate| candidate.sections.len());
    let untried = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    (all, untried)
}

/// What the check works on.
struct Look<'a> {
    host: &'a Host,
    loaded: &'a Loaded,
    slurm: Option<&'a Slurm>,
    node: Option<&'a str>,
    given: &'a PluginArguments,
}

impl Look<'_> {
    /// Checks every candidate, and tries it if possible. Returns what was tried, in words.
    fn at_all(
        &self,
        candidates: &[Candidate],
        places: &SlurmDirs,
        is_root: bool,
        verdict: &mut Verdict,
    ) -> Result<Option<String>, Failure> {
        let mut said: Vec<(Cause, String)> = Vec::new();
        let mut known = Vec::new();
        let mut first = None;
        for candidate in candidates.iter().filter(|candidate| candidate.config.mode != Mode::Off) {
            let planned = trial::Planned::new(self.host, self.loaded, (self.slurm, self.node), candidate, places);
            // A candidate that writes the same need not be tried again.
            if known.contains(&planned) {
                continue;
            }
            let mut errors = planned.errors.clone();
            let mut found: Vec<(Cause, Error)> = Vec::new();
            if is_root {
                match planned.run(self.host, self.slurm, places) {
                    Ok(more) => errors.extend(more),
                    Err(fault) => found.push(fault),
                }
            }
            let limits = errors.into_iter().map(|(limit, error)| (Cause::Limit(limit), error));
            for (cause, error) in limits.chain(found) {
                let fault = Fault { candidate, cause, error };
                let text = fault.error.to_string();
                if said.contains(&(cause, text.clone())) {
                    continue;
                }
                said.push((cause, text));
                println!("{}", fault.line(self.given));
                verdict.add(&fault);
            }
            if planned.can_be_tried(places) {
                first.get_or_insert_with(|| planned.in_words());
            }
            known.push(planned);
        }
        Ok(match (first, known.len()) {
            (Some(what), 1) => Some(what),
            (Some(what), count) => Some(format!("{what}; and so for each of {count} kinds of jobs, by their sections")),
            (None, _) => None,
        })
    }
}
