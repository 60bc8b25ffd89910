// SPDX-License-Identifier: GPL-2.0-or-later
//! Which job runs in a slot, and HTCondor's settings, which decide as which user. The startd is asked for the job: it knows the job only
//! after it has started the starter.

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

/// How long an answer may take. The startd has one thread, and starts other jobs meanwhile. Five seconds were too few on a busy host.
const PATIENCE: Duration = Duration::from_secs(30);
/// HTCondor's own commands.
const STATUS: &str = "condor_status";
const CONFIG_VAL: &str = "condor_config_val";
/// The variables by which HTCondor's commands find their configuration.
pub const CONFIGURATION: &[&str] = &["CONDOR_CONFIG", "_CONDOR_"];
/// The variables with the starter's sockets and session keys, which HTCondor's commands do not get.
const SECRETS: &[&str] = &[INHERITED, "CONDOR_PRIVATE_INHERIT"];

/// Asks the startd that has started this process which job runs in the slot.
///
/// The answer has texts of the job's user. If such a text makes it too long or wrong, the error is [`NotFenced::Asked`].
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

/// A question to the startd about a slot.
pub struct Question {
    /// condor_status(1) of the same installation.
    pub program: PathBuf,
    /// The startd's address.
    pub address: String,
    /// The constraint that selects the slot.
    pub is_slot: String,
}

impl Question {
    /// The question to the startd that has started this process.
    pub fn about(slot: &SlotAd) -> Result<Self> {
        let address = address().ok_or_else(|| Error::new("no address of the startd"))?;
        let name = slot.name.replace('\\', "\\\\").replace('"', "\\\"");
        Ok(Self { program: beside_daemon(STATUS), address, is_slot: format!("Name == \"{name}\"") })
    }

    /// Returns what condor_status prints of these attributes.
    pub fn ask(&self, attributes: &str) -> Result<String, Silence> {
        let Self { program, address, is_slot } = self;
        let words = ["-direct", address, "-long", "-attributes", attributes, "-constraint", is_slot];
        AskedProgram::new(program, &words, CONFIGURATION).ask(Instant::now() + PATIENCE)
    }
}

/// HTCondor's settings for the starter. The slot's type can have settings of its own.
pub fn settings(slot: &Id, slot_type: Option<&str>, kept: Option<&Kept>) -> Result<StarterSettings> {
    if let Some(settings) = kept.and_then(|kept| kept.settings(slot, slot_type)) {
        return Ok(settings);
    }
    let began = SystemTime::now();
    let mut words = vec!["-subsystem".to_owned(), "STARTER".to_owned()];
    words.extend(slot_type.into_iter().flat_map(|name| ["-local-name".to_owned(), name.to_owned()]));
    // Also prints the files with the settings.
    words.extend(["-config", "-macro"].map(str::to_owned));
    words.extend(StarterSettings::questions(slot));
    // A starter expands `$ENV()` by the whole environment that it has from the startd.
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

/// A program of the installation of the daemon that has started this process: in `bin` beside that daemon's directory.
pub fn beside_daemon(program: &str) -> PathBuf {
    let daemon = std::fs::read_link(format!("/proc/{}/exe", getppid())).ok();
    let top = daemon.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = top.map(|top| top.join("bin").join(program));
    installed.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(program))
}
