// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence check`: whether a job would be fenced here, how, and if not, why not.
//!
//! It follows the path of a step: the line in plugstack.conf with its arguments, the file that Slurm loads by it, the limits of every kind
//! of job in the configuration, and the directories for them.

mod attach;
pub mod claims;
pub mod daemon;
mod describe;
mod document;
pub mod doors;
mod health;
mod lustre;
pub mod names;
mod network;
mod observation;
mod oomd;
pub mod private;
mod resctrl;
pub mod rows;
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
use crate::schedulers::slurm::dirs::{SlurmDirs, scopes};
use crate::schedulers::slurm::node;
use crate::schedulers::slurm::pam;
use crate::table::has_colours;
pub use document::SCHEMA;
use rows::{Form, Rows, coloured};
pub use trial::is_of_trial;
use verdict::{Cause, Fault, Judgement, Verdict, VerdictWord, without_root};

#[derive(Args)]
pub struct CheckOptions {
    /// Show every key with its value, in the form of the configuration file
    #[arg(long)]
    pub keys: bool,
    /// Print the same rows as one JSON object, for programs
    #[arg(long, conflicts_with_all = ["keys", "brief", "health"])]
    pub json: bool,
    /// Print one line, which is the same on equal nodes
    #[arg(long, conflicts_with_all = ["keys", "health"])]
    pub brief: bool,
    /// For health checks of nodes: print that line within 4 seconds, and fail only if a job would be unfenced or could not start
    #[arg(long, conflicts_with = "keys")]
    pub health: bool,
    /// After how many seconds --health says that nothing is known
    #[arg(long, value_name = "SECONDS", default_value_t = 3, hide = true)]
    pub within: u32,
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
    #[arg(skip)]
    pub stage: CheckStage,
    #[command(flatten)]
    pub configured: Configured,
}

/// When a check is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CheckStage {
    #[default]
    ByItself,
    /// The schedulers are yet to be told to start jobs by jobfence, so what they do now is no fault.
    BeforeSetup,
    /// They have been told to, so the verdict says what keeps jobs from being fenced until the installation is finished.
    AfterSetup,
}

impl CheckStage {
    fn sentence(self, judged: &Judgement) -> &str {
        if self == Self::AfterSetup { judged.whole() } else { &judged.text }
    }

    /// The word for that sentence.
    fn word(self, judged: &Judgement) -> VerdictWord {
        if self == Self::AfterSetup { judged.short().0 } else { judged.word }
    }
}

impl Default for CheckOptions {
    fn default() -> Self {
        let configured = Configured { config: None, overrides: Vec::new() };
        let (keys, json, brief, health, stage, within) = Default::default();
        let (plugstack, node, pam_directory) = (None, None, PathBuf::from(pam::DIRECTORY));
        Self { keys, json, brief, health, within, plugstack, node, pam_directory, stage, configured }
    }
}

impl CheckOptions {
    fn form(&self) -> Form {
        match (self.json, self.brief, self.health) {
            (true, ..) => Form::Json,
            (_, true, _) => Form::Brief,
            (.., true) => Form::Health,
            _ => Form::Text,
        }
    }
}

/// Fails unless a job would be fenced as configured.
pub fn check(options: &CheckOptions) -> Result<ExitCode, Failure> {
    if options.health {
        return Ok(health::check(options.within, |rows| judgement(look(options, rows))));
    }
    run(options).map(|fenced| if fenced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a job would be fenced as configured; prints that, and then all that was found.
pub fn run(options: &CheckOptions) -> Result<bool, Failure> {
    let mut rows = Rows::new(options.form());
    let judged = look(options, &mut rows);
    match options.form() {
        Form::Text => {
            let (has_colours, mut first) = (has_colours(), String::new());
            let judged = judged.inspect_err(|_| print!("{}", rows.text(has_colours)))?;
            match judged.mistakes.as_slice() {
                [] => {
                    let colour = Some(options.stage.word(&judged).colour()).filter(|_| has_colours);
                    first = format!("verdict        {}\n", coloured(options.stage.sentence(&judged), colour));
                }
                mistakes => mistakes.iter().for_each(|mistake| eprintln!("jobfence: {mistake}")),
            }
            if let (false, VerdictWord::Unknown) = (judged.mistakes.is_empty(), judged.word) {
                eprintln!("jobfence: {UNSEEN}");
            }
            // At once: a reader of the first line alone may go away.
            print!("{first}{}", rows.text(has_colours));
            Ok(judged.word.is_good())
        }
        Form::Json => {
            let judged = judgement(judged);
            println!("{}", document::document(&rows, &judged));
            Ok(judged.short().0.is_good())
        }
        Form::Brief | Form::Health => {
            let judged = judgement(judged);
            println!("{}", document::line(&judged));
            Ok(judged.short().0.is_good())
        }
    }
}

/// Why mistakes may be none.
const UNSEEN: &str = "files that only root may read were not seen; run 'jobfence check' as root";

/// What an error of the check itself is for programs and in one line: it keeps jobs from nothing.
fn judgement(judged: Result<Judgement, Failure>) -> Judgement {
    judged.unwrap_or_else(|error| Judgement::new(VerdictWord::Unknown, error.to_string()))
}

/// Looks at all that is wanted.
fn look(options: &CheckOptions, rows: &mut Rows) -> Result<Judgement, Failure> {
    let is_root = nix::unistd::geteuid().is_root();
    let named = options.configured.config.as_deref();
    let slurm_conf = conf::find(named);
    let node = node::name(options.node.as_deref(), slurm_conf.as_deref());
    let node = node.as_deref();
    let slurm = slurm_conf.map(|file| Slurm::from_file(&file));
    let found = arguments::find(options.plugstack.as_deref(), slurm.as_ref());
    let given = PluginArguments::from_plugstack(found.as_ref(), &options.configured);
    let loaded = match understood(&given, is_root, rows) {
        Ok(loaded) => loaded,
        Err(judged) => return Ok(judged),
    };
    describe::sections(rows, &loaded, slurm.as_ref(), options.keys);
    let (candidates, untried) = candidates(&loaded, node);
    if candidates.iter().all(|candidate| candidate.config.mode == Mode::Off) {
        return Ok(Judgement::new(VerdictWord::Off, "Mode=off: no job is fenced here"));
    }
    let enforces = candidates.iter().any(|candidate| candidate.config.mode == Mode::Enforce);
    let config = &loaded.config;
    let host = match Host::read(config) {
        Ok(host) => host,
        Err(error) if options.form() == Form::Text => return Err(error.into()),
        // A job would meet it, too.
        Err(error) => {
            let mut verdict = Verdict::default();
            verdict.no(format!("NO job would be fenced here: {error}"));
            return Ok(verdict.judge(enforces, without_root));
        }
    };
    let line = arguments::of_pam(&options.configured, found.as_ref());
    let pam = (options.pam_directory.as_path(), line.as_str());
    let checked = CheckedHost { proc: &host.proc, loaded: &loaded, named, pam };
    if rows.are_wanted() {
        doors::names(&checked, rows);
    }
    let own = describe::host(rows, &host, config, slurm.as_ref(), node);
    if rows.are_wanted() {
        say_of_pam(options, &line, own.limits, rows);
    }
    if config.mode == Mode::Observe {
        rows.fact("mode", "observe: jobs are put in cgroups and measured, but not limited");
    }
    let mut verdict = Verdict::default();
    if let Some(why) = found.as_ref().and_then(|found| arguments::look(rows, found, slurm.as_ref())) {
        verdict.no(why);
    }
    if options.stage == CheckStage::BeforeSetup {
        // What they say now is what setup changes.
        rows.as_remarks(|rows| doors::look(&checked, rows, &mut Verdict::default()));
    } else {
        doors::look(&checked, rows, &mut verdict);
    }
    private::say(rows, &candidates, &mut verdict);
    if rows.are_wanted() {
        say_more(&checked, &host, (slurm.as_ref(), node), &candidates, rows);
        oomd::say(rows, &host, own.any, scopes);
    }
    let places = SlurmDirs::find(&host, slurm.as_ref(), node)?;
    places.describe(rows, &host, &candidates);
    network::say(rows, &host, &loaded, places.are_theirs(), &mut verdict);
    resctrl::say(rows, &host.proc, &candidates, loaded.config.sample_interval.is_some());
    let look = Look { host: &host, loaded: &loaded, slurm: slurm.as_ref(), node, given: &given };
    let tried = look.at_all(&candidates, &places, is_root, rows, &mut verdict)?;
    if untried > 0 {
        rows.remark("sections", format!("{untried} combinations of sections were not looked at: there are too many"));
    }
    if !is_root {
        rows.remark("trial", "none without root: RunDir, the directories of jobs and their limits were not tried");
        return Ok(verdict.judge(enforces, without_root));
    }
    if let Some(what) = tried.filter(|_| verdict.is_good()) {
        rows.fact("trial", what);
    }
    if verdict.is_good() && rows.are_wanted() {
        attach::say(rows, &host, config, slurm.as_ref(), &places, own.any);
    }
    Ok(verdict.judge(enforces, || verdict::good(&host, &loaded, enforces, own.any, &places)))
}

/// Says what is no part of the verdict, and costs time.
fn say_more(
    checked: &CheckedHost<'_>,
    host: &Host,
    (slurm, node): (Option<&Slurm>, Option<&str>),
    candidates: &[Candidate],
    rows: &mut Rows,
) {
    let loaded = checked.loaded;
    observation::say(rows, loaded, host);
    describe::io(rows, host, &loaded.config);
    describe::huge_pages(rows, host);
    lustre::say(rows, checked);
    if slurm.is_some() {
        describe::cores(rows, loaded, node);
    }
    let conf = conf::find(checked.named);
    describe::gpus(rows, host, candidates, slurm, conf, node.unwrap_or_default());
}

/// Says what PAM's services lack.
fn say_of_pam(options: &CheckOptions, line: &str, has_limits: bool, rows: &mut Rows) {
    // Hints, not part of the verdict. If the limits are in Slurm's directories, pam_slurm_adopt suffices.
    let faults = pam::faults(&options.pam_directory, line, has_limits);
    for said in faults.into_iter().chain(pam::ways_out(&options.pam_directory, line, has_limits)) {
        rows.remark("pam", said);
    }
}

/// The configuration, after saying its origin. An error: what is wrong with it.
fn understood(given: &PluginArguments, is_root: bool, rows: &mut Rows) -> Result<Loaded, Judgement> {
    match given.load() {
        Ok(loaded) => {
            match &loaded.file {
                Some(file) => rows.fact("configuration", format!("{} is understood", file.display())),
                None => {
                    rows.fact("configuration", format!("defaults (there is neither {})", DEFAULT_FILES.join(" nor ")));
                }
            }
            unread(rows, &loaded);
            Ok(loaded)
        }
        Err(errors) => {
            let is_unseen = !is_root && errors.errors().iter().any(|error| error.to_string().contains("EACCES"));
            Err(Judgement::wrong(&errors, is_unseen))
        }
    }
}

/// Says which files an administrator could take for the configuration.
fn unread(rows: &mut Rows, loaded: &Loaded) {
    let real = |file: &Path| std::fs::canonicalize(file).ok();
    let (defaults, Some(read)) = (default_files(), &loaded.file) else { return };
    let why = if defaults.first() == Some(read) { "exists" } else { "is named" };
    // A link from one place to the other makes them one file.
    for other in defaults.iter().filter(|other| *other != read && (real(other).is_none() || real(other) != real(read)))
    {
        rows.remark("configuration", format!("{} is not read, since {} {why}", other.display(), read.display()));
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
        rows: &mut Rows,
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
                let (name, value) = fault.row(self.given);
                if fault.is_fatal() {
                    rows.fault(&name, value)
                } else {
                    rows.remark(&name, value)
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_setup_the_verdict_says_what_is_missing() {
        let mut verdict = Verdict::default();
        verdict.not_yet("NO job is fenced here: the hook is missing".to_owned());
        let judged = verdict.judge(true, || Judgement::new(VerdictWord::Ok, "a job would be fenced here"));
        assert_eq!(CheckStage::ByItself.sentence(&judged), "a job would be fenced here");
        assert_eq!(CheckStage::AfterSetup.sentence(&judged), "NO job is fenced here: the hook is missing");
        let words = [CheckStage::ByItself, CheckStage::AfterSetup].map(|stage| stage.word(&judged));
        assert_eq!(words, [VerdictWord::Ok, VerdictWord::Unfenced]);
    }
}
