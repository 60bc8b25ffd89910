// SPDX-License-Identifier: GPL-2.0-or-later
//! Which job it is that runs in a slot, and as whom: the startd is asked, since it knows that only when it has started the starter, and what
//! HTCondor's configuration says to starters.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use jobfence::error::{Error, Result};
use jobfence::job::Id;
use jobfence::launch::NotFenced;
use jobfence::schedulers::htcondor::query::Address;
use jobfence::schedulers::htcondor::settings::StarterSettings;
use jobfence::schedulers::htcondor::slot_ad::{SlotAd, SlotJob};
use jobfence::sys::program::{AskedProgram, Silence};
use nix::unistd::getppid;

use super::kept::Kept;
use super::slot::{INHERITED, SHORTER, address, sockets_owner};
use super::startd::{self, StartdAnswer};

/// The startd has one thread, and starts other jobs meanwhile. Five seconds were too few on a busy host.
const PATIENCE: Duration = Duration::from_secs(30);
/// HTCondor's own commands.
const STATUS: &str = "condor_status";
const CONFIG_VAL: &str = "condor_config_val";
/// By which HTCondor's commands find their configuration.
pub const CONFIGURATION: &[&str] = &["CONDOR_CONFIG", "_CONDOR_"];
/// What names the starter's sockets, and the keys of its sessions, is not for them.
const SECRETS: &[&str] = &[INHERITED, "CONDOR_PRIVATE_INHERIT"];

/// Asks the startd that has started this process.
///
/// The startd says texts of the job's user. One that makes the answer too long, or something else, is not overlooked.
pub fn job_in(slot: &SlotAd, kept: Option<&Kept>) -> Result<SlotJob, NotFenced> {
    let failed = |why: String| Error::new(format!("{STATUS} does not say which job runs here: {why}"));
    let question = Question::about(slot).map_err(|error| failed(error.to_string()))?;
    let is_asked = !kept.is_some_and(Kept::refuses);
    if let (true, Some(address), Some(owner)) = (is_asked, Address::parse(&question.address), sockets_owner()) {
        match startd::ask(&address, &question.is_slot, owner, PATIENCE) {
            StartdAnswer::Said(job) => return Ok(*job),
            StartdAnswer::Refused => kept.into_iter().for_each(Kept::note_refusal),
            StartdAnswer::Unclear => {}
            StartdAnswer::Silent => return Err(Error::new("the startd does not answer").into()),
        }
    }
    match question.ask(&SlotJob::attributes()) {
        Ok(said) => SlotJob::parse(&said).map_err(NotFenced::Asked),
        Err(silence @ Silence::Long) => Err(NotFenced::Asked(failed(silence.to_string()).hint(SHORTER))),
        Err(silence) => Err(failed(silence.to_string()).into()),
    }
}

/// How the startd is asked about a slot.
pub struct Question {
    /// condor_status(1) of the same installation.
    pub program: PathBuf,
    /// Which startd.
    pub address: String,
    /// Which of its slots.
    pub is_slot: String,
}

impl Question {
    /// To the startd that has started this process.
    pub fn about(slot: &SlotAd) -> Result<Self> {
        let address = address().ok_or_else(|| Error::new("no address of the startd"))?;
        let name = slot.name.replace('\\', "\\\\").replace('"', "\\\"");
        Ok(Self { program: beside_daemon(STATUS), address, is_slot: format!("Name == \"{name}\"") })
    }

    /// What condor_status prints of these attributes.
    pub fn ask(&self, attributes: &str) -> Result<String, Silence> {
        let Self { program, address, is_slot } = self;
        let words = ["-direct", address, "-long", "-attributes", attributes, "-constraint", is_slot];
        AskedProgram::new(program, &words, CONFIGURATION).ask(Instant::now() + PATIENCE)
    }
}

/// What HTCondor's configuration says to the starter, whose slot can have a type with settings of its own.
pub fn settings(slot: &Id, slot_type: Option<&str>, kept: Option<&Kept>) -> Result<StarterSettings> {
    if let Some(settings) = kept.and_then(|kept| kept.settings(slot, slot_type)) {
        return Ok(settings);
    }
    let began = SystemTime::now();
    let mut words = vec!["-subsystem".to_owned(), "STARTER".to_owned()];
    words.extend(slot_type.into_iter().flat_map(|name| ["-local-name".to_owned(), name.to_owned()]));
    // The files, too, from which it is.
    words.extend(["-config", "-macro"].map(str::to_owned));
    words.extend(StarterSettings::questions(slot));
    // A starter expands `$ENV()` by all of the startd's environment, which it has.
    let program = AskedProgram::new(beside_daemon(CONFIG_VAL), &words, CONFIGURATION).with_all_but(SECRETS);
    let said = program.ask(Instant::now() + PATIENCE).map_err(|silence| {
        Error::new(format!("{CONFIG_VAL} does not say as which user this starter runs jobs: {silence}"))
    })?;
    let settings = StarterSettings::parse(&said)?;
    if let Some(kept) = kept {
        kept.keep(slot, slot_type, &said, began);
    }
    Ok(settings)
}

/// A program of the same installation as the daemon that has started this process, whose directory has `bin` beside it.
pub fn beside_daemon(program: &str) -> PathBuf {
    let daemon = std::fs::read_link(format!("/proc/{}/exe", getppid())).ok();
    let top = daemon.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = top.map(|top| top.join("bin").join(program));
    installed.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(program))
}
